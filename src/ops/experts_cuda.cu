/* Mixtures of experts on a GPU (experts.c has the equations). How many tokens an expert has is known there alone: entries are sorted, and products
 * find their expert, on the device; what a launch is sized by is the most that there may be. Every sum has one order. */
#include "device/mma.cuh"

extern "C" {
#include "ops/experts.h"
#include "program/program.h"
}

static __device__ __forceinline__ float element(const void *p, bool f32, int64_t i)
{
    return f32 ? ((const float *)p)[i] : to_float(((const bf16 *)p)[i]);
}

/* ---- route: a warp has a token --------------------------------------------------------------------------------------------- */

struct expert_route_args {
    const void *z;
    bool z_f32;
    int64_t tokens;
    int E, k;
    bool sigmoid, renormalise, d_f32, add;
    float scale, share;      /* share: of a token in the gradient that evens loads out; 0: none */
    float *w;
    const float *dw;
    int *count;              /* [E] tokens that choose an expert */
    void *d;
};

/* Scores [E] of a token, and the places of its k experts in the order of their scores; of equal ones the first. `left` [E] is scratch. */
__device__ static void choose(const expert_route_args &a, int64_t t, float *s, float *left, int *chosen)
{
    const int lane = (int)threadIdx.x % 32;
    float top = -INFINITY, sum = 0;
    for (int e = lane; e < a.E; e += 32) {
        s[e] = element(a.z, a.z_f32, t * a.E + e);
        top = fmaxf(top, s[e]);
    }
    top = warp_max(top);
    for (int e = lane; e < a.E; e += 32) {
        s[e] = a.sigmoid ? 1.0f / (1.0f + expf(-s[e])) : expf(s[e] - top);
        sum += s[e];
    }
    sum = warp_sum(sum);
    for (int e = lane; e < a.E; e += 32) left[e] = s[e] = a.sigmoid ? s[e] : s[e] / sum;
    for (int j = 0; j < a.k; j++) {
        int best = a.E;
        float most = -1.0f; /* below every score; what was taken has it */
        for (int e = lane; e < a.E; e += 32)
            if (left[e] != -1.0f && (best == a.E || left[e] > most)) best = e, most = left[e];
        for (int o = 16; o; o >>= 1) {
            const int other = __shfl_xor_sync(~0u, best, o);
            const float there = __shfl_xor_sync(~0u, most, o);
            if (other < a.E && (best == a.E || there > most || (!(most > there) && other < best))) best = other, most = there;
        }
        if (lane == 0) chosen[j] = best, left[best] = -1.0f;
        __syncwarp();
    }
}

__device__ static float chosen_sum(const expert_route_args &a, const float *s, const int *chosen)
{
    float sum = 0;
    for (int j = 0; j < a.k; j++) sum += s[chosen[j]];
    return sum;
}

/* A warp's [E] twice and [k]. */
struct route_room {
    float *s, *left;
    int *chosen;
    int64_t t;
};
__device__ static route_room room_of(const expert_route_args &a, float *memory)
{
    const int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    float *mine = memory + warp * (2 * a.E + LNT_EXPERTS_TOKEN_MOST);
    return { mine, mine + a.E, (int *)(mine + 2 * a.E), (int64_t)blockIdx.x * warps + warp };
}

static __global__ void route_kernel(const __grid_constant__ expert_route_args a)
{
    extern __shared__ __align__(16) float memory[];
    const route_room m = room_of(a, memory);
    const int lane = (int)threadIdx.x % 32;
    if (m.t >= a.tokens) return;
    choose(a, m.t, m.s, m.left, m.chosen);
    const float scale = a.scale / (a.renormalise ? chosen_sum(a, m.s, m.chosen) : 1.0f);
    for (int e = lane; e < a.E; e += 32) a.w[m.t * a.E + e] = m.left[e] == -1.0f ? scale * m.s[e] : 0.0f;
}

static __global__ void route_count_kernel(const __grid_constant__ expert_route_args a)
{
    extern __shared__ __align__(16) float memory[];
    const route_room m = room_of(a, memory);
    if (m.t >= a.tokens) return;
    choose(a, m.t, m.s, m.left, m.chosen);
    for (int j = (int)threadIdx.x % 32; j < a.k; j += 32) atomicAdd(a.count + m.chosen[j], 1); /* whole numbers: any order */
}

static __global__ void route_back_kernel(const __grid_constant__ expert_route_args a)
{
    extern __shared__ __align__(16) float memory[];
    const route_room m = room_of(a, memory);
    const int lane = (int)threadIdx.x % 32;
    if (m.t >= a.tokens) return;
    const float *dw = a.dw + m.t * a.E;
    float *s = m.s, *ds = m.left;
    choose(a, m.t, s, ds, m.chosen);
    const float sum = a.renormalise ? chosen_sum(a, s, m.chosen) : 1.0f;
    float along = 0, mean = 0;
    for (int j = 0; j < a.k; j++) along += dw[m.chosen[j]] * s[m.chosen[j]] / sum;
    for (int e = lane; e < a.E; e += 32) {
        const bool taken = ds[e] == -1.0f;
        ds[e] = a.share > 0 ? a.share * (float)a.count[e] : 0.0f;
        if (taken) ds[e] += a.scale / sum * (dw[e] - (a.renormalise ? along : 0.0f));
        mean += s[e] * ds[e];
    }
    mean = warp_sum(mean);
    for (int e = lane; e < a.E; e += 32) {
        const int64_t at = m.t * a.E + e;
        const float d = (a.sigmoid ? s[e] * (1.0f - s[e]) * ds[e] : s[e] * (ds[e] - mean)) + (a.add ? element(a.d, a.d_f32, at) : 0.0f);
        if (a.d_f32)
            ((float *)a.d)[at] = d;
        else
            ((bf16 *)a.d)[at] = from_float<bf16>(d);
    }
}

static expert_route_args route_of(const lnt_call *k)
{
    const lnt_route_attr *r = (const lnt_route_attr *)k->attr;
    expert_route_args a = {};
    a.z = k->in[0].data, a.z_f32 = k->in[0].dtype == LINNET_F32, a.tokens = k->tokens, a.E = (int)k->in[0].cols, a.k = (int)r->k;
    a.sigmoid = r->sigmoid, a.renormalise = r->renormalise, a.scale = (float)r->scale;
    return a;
}
static void put_route(const lnt_call *k, void (*kernel)(const expert_route_args), const expert_route_args &a)
{
    const int warps = a.E <= 1024 ? 4 : 1;
    const size_t shared = (size_t)warps * (2 * a.E + LNT_EXPERTS_TOKEN_MOST) * sizeof(float);
    if (a.tokens) kernel<<<(unsigned)lnt_div_up(a.tokens, warps), 32 * warps, shared, lnt_stream(k->c)>>>(a);
}

extern "C" linnet_status lnt_route_forward_cuda(const lnt_call *k)
{
    expert_route_args a = route_of(k);
    a.w = (float *)k->out[0].data;
    put_route(k, route_kernel, a);
    return LINNET_OK;
}

extern "C" linnet_status lnt_route_backward_cuda(const lnt_call *k)
{
    const lnt_route_attr *r = (const lnt_route_attr *)k->attr;
    expert_route_args a = route_of(k);
    a.dw = (const float *)k->d_out[0].data, a.d = k->d_in[0].data, a.d_f32 = k->d_in[0].dtype == LINNET_F32, a.add = k->accumulate[0];
    a.count = (int *)k->work;
    a.share = (float)(r->balance * (double)a.E * k->loss_scale / (double)(k->tokens ? k->tokens : 1));
    if (r->balance > 0) {
        lnt_cuda_note(lnt_cuda_of(k->c), cudaMemsetAsync(a.count, 0, (size_t)a.E * sizeof(int), lnt_stream(k->c)));
        put_route(k, route_count_kernel, a);
    } else
        a.share = 0;
    put_route(k, route_back_kernel, a);
    return LINNET_OK;
}

/* ---- entries by expert, and in each by token ------------------------------------------------------------------------------- */

static constexpr int SORT = 256, TILE = LNT_EXPERT_TILE;

struct expert_sort_args {
    const float *w; /* [T,E] */
    int64_t tokens;
    int E, k;
    int32_t *first, *token, *slot, *tile;
    float *weight;
    int tiles;
};

/* first[e]: how many tokens expert e has. */
static __global__ __launch_bounds__(SORT) void count_kernel(const __grid_constant__ expert_sort_args a)
{
    __shared__ int share[SORT / 32];
    int n = 0;
    for (int64_t t = threadIdx.x; t < a.tokens; t += SORT) n += a.w[t * a.E + blockIdx.x] != 0.0f;
    for (int o = 16; o; o >>= 1) n += __shfl_xor_sync(~0u, n, o);
    if (threadIdx.x % 32 == 0) share[threadIdx.x / 32] = n;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < SORT / 32; i++) n += share[i];
    a.first[blockIdx.x] = n;
}

/* Where the experts' entries begin; and of every tile of rows its expert and its first entry, -1 behind the last. */
static __global__ __launch_bounds__(SORT) void place_kernel(const __grid_constant__ expert_sort_args a)
{
    __shared__ int begin[LNT_EXPERTS_MOST + 1], tile[LNT_EXPERTS_MOST + 1];
    for (int e = (int)threadIdx.x; e < a.E; e += SORT) begin[e] = a.first[e];
    __syncthreads();
    if (threadIdx.x == 0) {
        int at = 0, tiles = 0;
        for (int e = 0; e < a.E; e++) {
            const int n = begin[e];
            begin[e] = at, tile[e] = tiles;
            at += n, tiles += (n + TILE - 1) / TILE;
        }
        begin[a.E] = at, tile[a.E] = tiles;
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e <= a.E; e += SORT) a.first[e] = begin[e];
    for (int e = (int)threadIdx.x; e < a.E; e += SORT)
        for (int i = tile[e]; i < tile[e + 1]; i++) a.tile[2 * i] = e, a.tile[2 * i + 1] = begin[e] + (i - tile[e]) * TILE;
    for (int i = tile[a.E] + (int)threadIdx.x; i < a.tiles; i += SORT) a.tile[2 * i] = -1;
}

static __global__ __launch_bounds__(SORT) void entries_kernel(const __grid_constant__ expert_sort_args a)
{
    __shared__ int share[SORT / 32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int at = a.first[blockIdx.x];
    for (int64_t t0 = 0; t0 < a.tokens; t0 += SORT) {
        const int64_t t = t0 + threadIdx.x;
        const float w = t < a.tokens ? a.w[t * a.E + blockIdx.x] : 0.0f;
        const unsigned there = __ballot_sync(~0u, w != 0.0f);
        if (lane == 0) share[warp] = __popc(there);
        __syncthreads();
        int mine = at + __popc(there & ((1u << lane) - 1));
        for (int i = 0; i < SORT / 32; i++) {
            mine += i < warp ? share[i] : 0;
            at += share[i];
        }
        if (w != 0.0f) a.token[mine] = (int32_t)t, a.weight[mine] = w;
        __syncthreads();
    }
}

/* A warp a token: its experts in order, and where among an expert's tokens it stands. */
static __global__ __launch_bounds__(128) void slots_kernel(const __grid_constant__ expert_sort_args a)
{
    const int lane = (int)threadIdx.x % 32;
    const int64_t t = blockIdx.x * 4ll + threadIdx.x / 32;
    if (t >= a.tokens) return;
    int32_t *slot = a.slot + t * a.k;
    int n = 0;
    for (int e0 = 0; e0 < a.E; e0 += 32) {
        const int e = e0 + lane;
        const bool has = e < a.E && a.w[t * a.E + e] != 0.0f;
        const unsigned there = __ballot_sync(~0u, has);
        const int j = n + __popc(there & ((1u << lane) - 1));
        n += __popc(there);
        if (!has || j >= a.k) continue;
        int low = a.first[e], high = a.first[e + 1] - 1;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (a.token[middle] < t)
                low = middle + 1;
            else
                high = middle;
        }
        slot[j] = low;
    }
    for (int j = n + lane; j < a.k; j += 32) slot[j] = -1;
}

extern "C" void lnt_expert_sort_cuda(lnt_ctx *c, const float *w, lnt_expert_rows *r)
{
    cudaStream_t s = lnt_stream(c);
    const expert_sort_args a = { w,        r->tokens, (int)r->experts, (int)r->k, r->first, r->token,
                                 r->slot,  r->tile,   r->weight,       (int)lnt_expert_tiles(r) };
    r->entries = r->tokens * r->k;
    if (!r->tokens) return;
    count_kernel<<<(unsigned)a.E, SORT, 0, s>>>(a);
    place_kernel<<<1, SORT, 0, s>>>(a);
    entries_kernel<<<(unsigned)a.E, SORT, 0, s>>>(a);
    slots_kernel<<<(unsigned)lnt_div_up(r->tokens, 4), 128, 0, s>>>(a);
}

/* ---- rows on their way ----------------------------------------------------------------------------------------------------- */

struct expert_rows_args {
    const int32_t *first, *token, *slot;
    const float *weight, *src;
    int64_t entries, tokens, cols, ld;
    int E, k;
    const char *from;
    char *to, *other;
    bool f32, weighted, add;
    float *dot;
};

/* A block a row; entries behind the last are left as they are. */
static __global__ __launch_bounds__(128) void gather_kernel(const __grid_constant__ expert_rows_args a)
{
    const int64_t i = blockIdx.x, size = a.f32 ? 4 : 2;
    if (i >= a.first[a.E]) return;
    const char *from = a.from + a.token[i] * a.ld * size;
    char *to = a.to + i * a.cols * size;
    if ((a.cols * size) % 16 == 0 && ((uintptr_t)from | (uintptr_t)to) % 16 == 0)
        for (int64_t j = threadIdx.x; j < a.cols * size / 16; j += 128) ((uint4 *)to)[j] = ((const uint4 *)from)[j];
    else
        for (int64_t j = threadIdx.x; j < a.cols * size / 2; j += 128) ((uint16_t *)to)[j] = ((const uint16_t *)from)[j];
}

static __global__ __launch_bounds__(128) void combine_kernel(const __grid_constant__ expert_rows_args a)
{
    const int64_t t = blockIdx.x;
    const int32_t *slot = a.slot + t * a.k;
    for (int64_t j = threadIdx.x; j < a.cols; j += 128) {
        const int64_t at = t * a.ld + j;
        float s = a.add ? element(a.to, a.f32, at) : 0.0f, sum = 0;
        for (int q = 0; q < a.k && slot[q] >= 0; q++) sum += (a.weighted ? a.weight[slot[q]] : 1.0f) * a.src[slot[q] * a.cols + j];
        s += sum;
        if (a.f32)
            ((float *)a.to)[at] = s;
        else
            ((bf16 *)a.to)[at] = from_float<bf16>(s);
    }
}

/* A warp an entry. */
template <typename T> static __global__ __launch_bounds__(128) void weigh_kernel(const __grid_constant__ expert_rows_args a)
{
    const int64_t i = blockIdx.x * 4ll + threadIdx.x / 32;
    if (i >= a.first[a.E]) return;
    T *x = (T *)a.to + i * a.cols, *y = (T *)a.other + i * a.cols;
    const float w = a.weight[i];
    float s = 0;
    for (int64_t j = threadIdx.x % 32; j < a.cols; j += 32) {
        const float u = to_float(x[j]), v = to_float(y[j]);
        s += u * v;
        x[j] = from_float<T>(u * w);
        y[j] = from_float<T>(v * w);
    }
    s = warp_sum(s);
    if (threadIdx.x % 32 == 0) a.dot[i] = s;
}

/* d[token,e] += dot of that entry: a block an expert. */
static __global__ __launch_bounds__(128) void dots_kernel(const __grid_constant__ expert_rows_args a)
{
    const int e = (int)blockIdx.x;
    for (int i = a.first[e] + (int)threadIdx.x; i < a.first[e + 1]; i += 128) ((float *)a.to)[(int64_t)a.token[i] * a.E + e] += a.dot[i];
}

static expert_rows_args rows_of(const lnt_expert_rows *r)
{
    expert_rows_args a = {};
    a.first = r->first, a.token = r->token, a.slot = r->slot, a.weight = r->weight;
    a.entries = r->entries, a.tokens = r->tokens, a.E = (int)r->experts, a.k = (int)r->k;
    return a;
}

extern "C" void lnt_expert_gather_cuda(lnt_ctx *c, const lnt_expert_rows *r, const lnt_tensor *src, void *dst)
{
    expert_rows_args a = rows_of(r);
    a.from = (const char *)src->data, a.to = (char *)dst, a.cols = src->cols, a.ld = src->ld, a.f32 = src->dtype == LINNET_F32;
    if (a.entries) gather_kernel<<<(unsigned)a.entries, 128, 0, lnt_stream(c)>>>(a);
}

extern "C" void lnt_expert_combine_cuda(lnt_ctx *c, const lnt_expert_rows *r, const float *src, const lnt_tensor *dst, bool weighted, bool add)
{
    expert_rows_args a = rows_of(r);
    a.src = src, a.to = (char *)dst->data, a.cols = dst->cols, a.ld = dst->ld, a.f32 = dst->dtype == LINNET_F32, a.weighted = weighted, a.add = add;
    if (a.tokens) combine_kernel<<<(unsigned)a.tokens, 128, 0, lnt_stream(c)>>>(a);
}

extern "C" void lnt_expert_weigh_cuda(lnt_ctx *c, const lnt_expert_rows *r, void *x, void *y, lnt_dtype type, int64_t cols, float *dot)
{
    expert_rows_args a = rows_of(r);
    a.to = (char *)x, a.other = (char *)y, a.cols = cols, a.dot = dot;
    if (a.entries) LNT_BY_TYPE(type, T, weigh_kernel<T><<<(unsigned)lnt_div_up(a.entries, 4), 128, 0, lnt_stream(c)>>>(a));
}

extern "C" void lnt_expert_dots_cuda(lnt_ctx *c, const lnt_expert_rows *r, const float *dot, float *d)
{
    expert_rows_args a = rows_of(r);
    a.dot = (float *)dot, a.to = (char *)d;
    if (a.entries) dots_kernel<<<(unsigned)a.E, 128, 0, lnt_stream(c)>>>(a);
}

/* ---- products -------------------------------------------------------------------------------------------------------------- */

/* C (+)= A B of each expert. rows: A and C are of its entries, a block 64 of them by 64 columns; else K runs over its entries, and C is its own. */
struct expert_product_args {
    const int32_t *first, *tile;
    const void *a, *b;
    void *c;
    int64_t N, K, lda, ldb, ldc, b_each, c_each; /* each: elements of an expert's matrix */
    int M;
    bool rows, c_f32, add, wide;                 /* wide: 8 neighbours lie at a multiple of 16 bytes */
};

struct product_place {
    int64_t M, K, m0, n0; /* A, B, C begin at the expert's; M, K from there */
};
template <typename T> __device__ static bool place_of(const expert_product_args &x, product_place *p, const T **a, const T **b, int64_t *c)
{
    const int e = x.rows ? x.tile[2 * blockIdx.x] : (int)blockIdx.z;
    if (e < 0) return false;
    const int64_t begin = x.rows ? x.tile[2 * blockIdx.x + 1] : x.first[e], end = x.first[e + 1];
    *p = { x.rows ? end - begin : x.M, x.rows ? x.K : end - begin, x.rows ? 0 : (int64_t)blockIdx.x * TILE, (int64_t)blockIdx.y * TILE };
    *a = (const T *)x.a + begin * x.lda;
    *b = (const T *)x.b + (x.rows ? e * x.b_each : begin * x.ldb);
    *c = x.rows ? begin * x.ldc : e * x.c_each;
    return p->K > 0 && p->M > 0;
}
__device__ static void put_sum(const expert_product_args &x, const product_place &p, int64_t c, int64_t i, int64_t n, float s)
{
    if (i >= p.M || n >= x.N) return;
    const int64_t at = c + i * x.ldc + n;
    if (x.c_f32)
        ((float *)x.c)[at] = x.add ? ((float *)x.c)[at] + s : s;
    else
        ((bf16 *)x.c)[at] = from_float<bf16>(x.add ? to_float(((bf16 *)x.c)[at]) + s : s);
}

/* A tile of an operand [64][32] for bf16: eight neighbours a thread, along k (KS) or across. In shared memory rows are 16 bytes further apart than
 * they are long, so that the eight rows of a matrix lie in different banks. */
static constexpr int DEEP = 32, ALONG = DEEP + 8, ACROSS = TILE + 8, OPERAND = TILE * ALONG > DEEP * ACROSS ? TILE * ALONG : DEEP * ACROSS;
template <bool KS>
__device__ __forceinline__ uint4 fetch_eight(const expert_product_args &x, const bf16 *p, int64_t ld, int64_t i0, int64_t k0, int64_t M, int64_t K)
{
    const int id = (int)threadIdx.x;
    const int64_t i = i0 + (KS ? id / 4 : id % 8 * 8), k = k0 + (KS ? id % 4 * 8 : id / 8);
    const bf16 *from = p + (KS ? i * ld + k : k * ld + i);
    const bool inside = KS ? i < M : k < K;
    const int64_t left = KS ? K - k : M - i;
    if (inside && left >= 8 && x.wide) return *(const uint4 *)from;
    uint32_t y[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        y[j] = pack_bf16(inside && 2 * j < left ? to_float(from[2 * j]) : 0.0f, inside && 2 * j + 1 < left ? to_float(from[2 * j + 1]) : 0.0f);
    return make_uint4(y[0], y[1], y[2], y[3]);
}
template <bool KS> __device__ __forceinline__ void put_eight(bf16 *to, uint4 y)
{
    const int id = (int)threadIdx.x;
    *(uint4 *)(to + (KS ? id / 4 * ALONG + id % 4 * 8 : id / 8 * ACROSS + id % 8 * 8)) = y;
}

/* AK, BK: K runs along A's rows; along B's columns, as B transposed lies in memory. */
template <bool AK, bool BK> static __global__ __launch_bounds__(256) void product_halves(const __grid_constant__ expert_product_args x)
{
    __shared__ __align__(16) bf16 left[2][OPERAND], right[2][OPERAND];
    product_place p;
    const bf16 *a, *b;
    int64_t c;
    if (!place_of(x, &p, &a, &b, &c)) return;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, m = warp % 4 * 16, n = warp / 4 * 32, i = lane / 8, r = lane % 8;
    float acc[4][4] = {};
    uint4 y = fetch_eight<AK>(x, a, x.lda, p.m0, 0, p.M, p.K), z = fetch_eight<BK>(x, b, x.ldb, p.n0, 0, x.N, p.K);
    for (int64_t k0 = 0, side = 0; k0 < p.K; k0 += DEEP, side ^= 1) {
        put_eight<AK>(left[side], y);
        put_eight<BK>(right[side], z);
        __syncthreads();
        if (k0 + DEEP < p.K) y = fetch_eight<AK>(x, a, x.lda, p.m0, k0 + DEEP, p.M, p.K), z = fetch_eight<BK>(x, b, x.ldb, p.n0, k0 + DEEP, x.N, p.K);
        const uint32_t A = shared_address(left[side]), B = shared_address(right[side]);
#pragma unroll
        for (int k = 0; k < DEEP; k += 16) {
            uint32_t f[4];
            if (AK)
                ldmatrix_x4(f, A + 2 * ((m + i % 2 * 8 + r) * ALONG + k + i / 2 * 8));
            else
                ldmatrix_x4_trans(f, A + 2 * ((k + i / 2 * 8 + r) * ACROSS + m + i % 2 * 8));
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t g[4];
                if (BK)
                    ldmatrix_x4(g, B + 2 * ((n + j * 16 + i / 2 * 8 + r) * ALONG + k + i % 2 * 8));
                else
                    ldmatrix_x4_trans(g, B + 2 * ((k + i % 2 * 8 + r) * ACROSS + n + j * 16 + i / 2 * 8));
                mma_bf16(acc[2 * j], f, g[0], g[1]);
                mma_bf16(acc[2 * j + 1], f, g[2], g[3]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) put_sum(x, p, c, p.m0 + m + lane / 4 + q / 2 * 8, p.n0 + n + j * 8 + lane % 4 * 2 + q % 2, acc[j][q]);
}

/* Float32: a thread has 4 by 4. */
template <bool AK, bool BK> static __global__ __launch_bounds__(256) void product_floats(const __grid_constant__ expert_product_args x)
{
    constexpr int K = 16;
    __shared__ __align__(16) float left[K][TILE + 4], right[K][TILE + 4];
    product_place p;
    const float *a, *b;
    int64_t c;
    if (!place_of(x, &p, &a, &b, &c)) return;
    const int id = (int)threadIdx.x, m = id / 16 * 4, n = id % 16 * 4;
    float acc[4][4] = {};
    for (int64_t k0 = 0; k0 < p.K; k0 += K) {
        __syncthreads();
        for (int q = id; q < K * TILE; q += 256) {
            const int ka = AK ? q % K : q / TILE, ma = AK ? q / K : q % TILE, kb = BK ? q % K : q / TILE, nb = BK ? q / K : q % TILE;
            const int64_t i = p.m0 + ma, j = p.n0 + nb;
            left[ka][ma] = i < p.M && k0 + ka < p.K ? a[AK ? i * x.lda + k0 + ka : (k0 + ka) * x.lda + i] : 0.0f;
            right[kb][nb] = j < x.N && k0 + kb < p.K ? b[BK ? j * x.ldb + k0 + kb : (k0 + kb) * x.ldb + j] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < K; k++) {
            float f[4], g[4];
            load_pack<4>(f, &left[k][m]);
            load_pack<4>(g, &right[k][n]);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] = fmaf(f[i], g[j], acc[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) put_sum(x, p, c, p.m0 + m + i, p.n0 + n + j, acc[i][j]);
}

template <bool AK, bool BK> static void put_product(lnt_ctx *c, dim3 grid, bool half, const expert_product_args &x)
{
    if (half)
        product_halves<AK, BK><<<grid, 256, 0, lnt_stream(c)>>>(x);
    else
        product_floats<AK, BK><<<grid, 256, 0, lnt_stream(c)>>>(x);
}

extern "C" void lnt_expert_product_cuda(lnt_ctx *c, const lnt_expert_rows *r, const lnt_expert_product *y)
{
    const bool half = y->ab == LINNET_BF16, weights = y->kind == LNT_EXPERT_WEIGHTS, through = y->kind == LNT_EXPERT_THROUGH;
    expert_product_args x = {};
    if (!r->entries) return;
    x.first = r->first, x.tile = r->tile, x.c = y->to, x.c_f32 = y->type == LINNET_F32, x.add = y->add, x.rows = !weights;
    x.a = through ? y->x : y->dy, x.b = weights ? y->x : y->w;
    x.lda = through ? y->in : y->out, x.ldb = y->in;
    x.N = x.ldc = through ? y->out : y->in;
    x.K = through ? y->in : y->out;
    x.M = (int)y->out, x.b_each = x.c_each = y->in * y->out;
    x.wide = (y->in | y->out) % 8 == 0 && ((uintptr_t)x.a | (uintptr_t)x.b) % 16 == 0;
    const unsigned columns = (unsigned)lnt_div_up(x.N, TILE);
    if (through)
        put_product<true, true>(c, dim3((unsigned)lnt_expert_tiles(r), columns), half, x);
    else if (weights)
        put_product<false, false>(c, dim3((unsigned)lnt_div_up(y->out, TILE), columns, (unsigned)r->experts), half, x);
    else
        put_product<true, false>(c, dim3((unsigned)lnt_expert_tiles(r), columns), half, x);
}

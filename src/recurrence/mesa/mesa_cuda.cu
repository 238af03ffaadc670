/* The Mesa core on a GPU: the order of the kernels, and the small ones between the solve and the decay core's passes. Equations: operators.md#mesa.
 *
 * Forward: kb = beta k; H at every chunk's start; the solve; o by the decay core with query x and key kb. Backward: the decay core's backward of
 * (x, kb, v, do), whose dq is y = G do; the solve for y gives e; the decay core's backward of (x, kb, k, e), whose results count negatively, as
 * all of them are linear in e; the sums of both. Where all of the decay core's passes go by tensor cores, beta is a factor of what their tokens write
 * and there is no kb: its gradient is had from that by k. Through the steps (LNT_CG_UNROLLED), two kernels around a scan of the decay core stand
 * where the solve and its backward pass do, and leave their results in the same places. */
#include "recurrence/mesa/mesa_cuda.cuh"

#include "recurrence/decay/decay_cuda.cuh"
#include "recurrence/recur_cuda.cuh"

extern "C" {
extern const lnt_recur_impl lnt_decay_chunk_sm90, lnt_decay_chunk_sm80, lnt_decay_chunk_cuda;
}

static constexpr int WIDEST = 256, THREADS = 256;

/* ---- small kernels ------------------------------------------------------------------------------------------------------------------ */

/* Slot i is chunk p of sequence n, where cu[n] / 64 + n + p = i for the largest such n. */
__global__ __launch_bounds__(THREADS) void mesa_table(const int64_t *cu, int64_t N, int64_t chunks, int4 *table)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= chunks) return;
    int64_t low = 0, high = N; /* low has begun at i, high has not */
    while (high - low > 1) {
        const int64_t n = (low + high) / 2;
        if (cu[n] / LNT_MESA_C + n <= i)
            low = n;
        else
            high = n;
    }
    const int64_t p = i - (cu[low] / LNT_MESA_C + low), first = cu[low] + p * LNT_MESA_C, left = cu[low + 1] - first;
    table[i] = make_int4((int)low, (int)first, (int)(left < 0 ? 0 : left > LNT_MESA_C ? LNT_MESA_C : left), (int)p);
}

/* Of kb [T,Hv,K] = beta k and kr, k of every value head, those that are asked for; `half`: of k rounded to float16. EACH neighbours a thread. */
template <typename T, int EACH>
__global__ __launch_bounds__(THREADS) void mesa_keys(const T *k, const float *beta, T *kb, T *kr, int64_t n, int Hq, int Hv, int K, bool half)
{
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EACH; i < n; i += (int64_t)gridDim.x * THREADS * EACH) {
        const int64_t row = i / K, t = row / Hv;
        float x[EACH];
        load_pack(x, k + (t * Hq + row % Hv * Hq / Hv) * K + i % K);
#pragma unroll
        for (int j = 0; half && j < EACH; j++) x[j] = lnt_to_half(x[j]);
        if (kr) store_pack(kr + i, x);
        if (!kb) continue;
        const float by = beta[row];
#pragma unroll
        for (int j = 0; j < EACH; j++) x[j] *= by;
        store_pack(kb + i, x);
    }
}

template <int EACH> __global__ __launch_bounds__(THREADS) void mesa_narrow(const float *x, bf16 *to, int64_t n)
{
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EACH; i < n; i += (int64_t)gridDim.x * THREADS * EACH) {
        float y[EACH];
        load_pack(y, x + i);
        store_pack(to + i, y);
    }
}

/* to = -from^T for every head [K,K]; the states of e^T x are those of x^T e turned. */
__global__ __launch_bounds__(THREADS) void mesa_turn(const float *from, float *to, int K)
{
    __shared__ float tile[32][33];
    const int blocks = (K + 31) / 32, row = (int)(blockIdx.x / blocks % blocks) * 32, column = (int)(blockIdx.x % blocks) * 32;
    const int x = (int)threadIdx.x % 32, y = (int)threadIdx.x / 32;
    const int64_t head = (int64_t)(blockIdx.x / (blocks * blocks)) * K * K;
    for (int i = y; i < 32; i += THREADS / 32)
        if (row + i < K && column + x < K) tile[i][x] = from[head + (int64_t)(row + i) * K + column + x];
    __syncthreads();
    for (int i = y; i < 32; i += THREADS / 32)
        if (column + i < K && row + x < K) to[head + (int64_t)(column + i) * K + row + x] = -tile[x][i];
}

/* Of both passes, a CTA a chunk and query-key head, a warp a token at a time: u = dkb - dkb2 (`scaled`: of the gradients by k, that by beta),
 *   dq = sum e      dk = sum beta u - dvalue      dbeta = k.u      dg = dg - dg2                (sums over the value heads that share it)
 * and part[slot,h] = sum over the chunk of x.e, of which dlambda [Hv,K] is - the sum over the slots. Without x, `part` is there. */
template <typename T> struct mesa_sums {
    const int4 *table;
    const T *k, *x, *e, *dkb, *dkb2, *dvalue; /* [T,Hq,K]; [T,Hv,K] */
    const float *beta, *dg, *dg2;             /* [T,Hv] */
    T *dq, *dk;                               /* [T,Hq,K] or NULL */
    float *dbeta, *to_dg;                     /* [T,Hv] or NULL */
    float *part;                              /* [slots,Hv,K] */
    int Hq, Hv, K;
    bool scaled;

    __device__ __forceinline__ float by(float strength) const { return scaled ? 1.0f / decay_strength(strength) : 1.0f; }
};
template <typename T, int EACH> __global__ __launch_bounds__(THREADS) void mesa_combine(const __grid_constant__ mesa_sums<T> a)
{
    constexpr int PACKS = WIDEST / 32 / EACH, WARPS = THREADS / 32;
    __shared__ float sums[WARPS][WIDEST];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, hq = (int)(blockIdx.x % a.Hq), group = a.Hv / a.Hq, K = a.K;
    const int64_t slot = blockIdx.x / a.Hq;
    const int4 chunk = a.table[slot];
    for (int member = 0; member < group; member++) {
        const int h = hq * group + member;
        float part[PACKS][EACH] = {};
        for (int r = warp; r < chunk.z; r += WARPS) {
            const int64_t t = chunk.y + (int64_t)r, at = t * a.Hv + h, row = t * a.Hq + hq;
            const float beta = a.beta[at], by = a.by(beta);
            float dot = 0;
#pragma unroll
            for (int i = 0; i < PACKS; i++) {
                const int d = (i * 32 + lane) * EACH;
                if (d >= K) continue;
                float k[EACH], x[EACH] = {}, e[EACH], u[EACH], u2[EACH], value[EACH];
                load_pack(k, a.k + row * K + d);
                if (a.x) load_pack(x, a.x + at * K + d);
                load_pack(e, a.e + at * K + d);
                load_pack(u, a.dkb + at * K + d);
                load_pack(u2, a.dkb2 + at * K + d);
                load_pack(value, a.dvalue + at * K + d);
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    u[j] = by * (u[j] - u2[j]);
                    dot += k[j] * u[j];
                    part[i][j] += x[j] * e[j];
                    value[j] = beta * u[j] - value[j];
                }
                if (group == 1) {
                    if (a.dq) store_pack(a.dq + row * K + d, e);
                    if (a.dk) store_pack(a.dk + row * K + d, value);
                }
            }
            dot = warp_sum(dot);
            if (lane == 0 && a.dbeta) a.dbeta[at] = dot;
            if (lane == 0 && a.to_dg) a.to_dg[at] = a.dg[at] - a.dg2[at];
        }
        if (!a.x) continue;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PACKS; i++)
            if ((i * 32 + lane) * EACH < K) store_pack(&sums[warp][(i * 32 + lane) * EACH], part[i]);
        __syncthreads();
        for (int d = (int)threadIdx.x; d < K; d += THREADS) {
            float sum = 0;
            for (int w = 0; w < WARPS; w++) sum += sums[w][d];
            a.part[(slot * a.Hv + h) * K + d] = sum;
        }
    }
    for (int r = warp; group > 1 && r < chunk.z; r += WARPS) {
        const int64_t t = chunk.y + (int64_t)r, row = t * a.Hq + hq;
        for (int d = lane; d < K; d += 32) {
            float dq = 0, dk = 0;
            for (int h = hq * group; h < (hq + 1) * group; h++) {
                const int64_t i = (t * a.Hv + h) * K + d;
                const float beta = a.beta[t * a.Hv + h];
                dq += to_float(a.e[i]);
                dk += beta * a.by(beta) * (to_float(a.dkb[i]) - to_float(a.dkb2[i])) - to_float(a.dvalue[i]);
            }
            if (a.dq) a.dq[row * K + d] = from_float<T>(dq);
            if (a.dk) a.dk[row * K + d] = from_float<T>(dk);
        }
    }
}
__global__ __launch_bounds__(THREADS) void mesa_lambda_sum(const float *part, float *dlambda, int64_t chunks, int n)
{
    __shared__ float sums[THREADS / 32][32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, i = (int)blockIdx.x * 32 + lane;
    float sum = 0;
    if (i < n)
#pragma unroll 4
        for (int64_t c = warp; c < chunks; c += THREADS / 32) sum += part[c * n + i];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp || i >= n) return;
    for (int w = 1; w < THREADS / 32; w++) sum += sums[w][lane];
    dlambda[i] = -sum;
}

/* ---- a call ------------------------------------------------------------------------------------------------------------------------- */

/* Both directions: table [chunks], kb (and kr, k of every value head, where k is not it) [T,Hv,K], x [T,Hv,K] in the tensors' type, H
 * [chunks,Hv,K,K]; kb: on tensor cores none. Backward, in the tensors' type: y e dkb dkb2 dvalue [T,Hv,K]; float32: dg dg2 [T,Hv], part
 * [chunks,Hv,K], turned: dhT [N,Hv,K,K], dh0: the same. Through the steps, float32: what lnt_mesa_unroll names, E0 being dh0. */
struct mesa_work {
    int4 *table;
    void *kb, *kr, *x, *H, *y, *e, *dkb, *dkb2, *dvalue;
    float *dg, *dg2, *part, *turned, *dh0, *E, *dkb_steps, *dvalue_steps, *db, *fade, *ring;
    void *decay, *read; /* the decay core's workspace; another one for o, where start states of segments of H and G are made together */
    size_t decay_bytes;
};

static int64_t slots_of(const lnt_mesa_args *a) { return a->tokens / LNT_MESA_C + a->sequences; }
static bool rounds(const lnt_mesa_args *a) { return a->cg_solver == LNT_CG_FLASH; }
static bool unrolled(const lnt_mesa_args *a) { return a->cg_gradient == LNT_CG_UNROLLED; }
static bool other_keys(const lnt_mesa_args *a) { return a->Hq < a->Hv || rounds(a); }
static const void *values_k(const lnt_mesa_args *a, const mesa_work &w) { return w.kr ? w.kr : a->k; }

/* The decay core's call with query x, key kb (without one, k of strength beta) and value `v` of V columns, both [T,Hv,.]. */
static lnt_recur_args decay_call(const lnt_mesa_args *a, const mesa_work &w, const void *v, int V)
{
    lnt_recur_args d = {};
    d.op = &lnt_recur_simple_gla;
    d.dtype = a->dtype;
    d.form = LINNET_FORM_CHUNK;
    d.tokens = a->tokens;
    d.sequences = a->sequences;
    d.longest = a->longest;
    d.cu_seqlens = a->cu_seqlens;
    d.cu_seqlens_device = a->cu_seqlens_device;
    d.Hq = d.Hv = a->Hv;
    d.K = a->K;
    d.V = V;
    d.scale = 1;
    d.q = w.x;
    d.k = w.kb ? w.kb : values_k(a, w);
    d.beta = w.kb ? NULL : a->beta;
    d.v = v;
    d.g = a->g;
    d.workspace = w.decay;
    d.workspace_size = w.decay_bytes;
    return d;
}

/* Its implementation; of a backward pass on Hopper the one by wgmma. (Forward o takes longer there.) */
static const lnt_recur_impl *decay_impl(const lnt_recur_args *d, bool backward, bool hopper)
{
    if (lnt_decay_chunk_sm80.declines(d, backward)) return &lnt_decay_chunk_cuda;
    return hopper && backward && !lnt_decay_chunk_sm90.declines(d, backward) ? &lnt_decay_chunk_sm90 : &lnt_decay_chunk_sm80;
}

/* On any GPU: no workspace is asked for by its capability. */
static size_t decay_bytes(const lnt_mesa_args *a, bool backward, bool tiles)
{
    const mesa_work none = {};
    size_t most = 0;
    for (int pass = 0; pass < (backward ? 2 : 1); pass++)
        for (int hopper = 0; hopper < 2; hopper++) {
            const lnt_recur_args d = decay_call(a, none, NULL, pass ? a->K : a->V);
            const bool passes = tiles && backward && !hopper && (pass || a->V == a->K); /* as backward below */
            const size_t bytes = passes ? lnt_decay_tiles_backward_bytes(&d) : decay_impl(&d, backward, hopper)->workspace(&d, backward, 1);
            most = bytes > most ? bytes : most;
        }
    lnt_recur_args starts = decay_call(a, none, NULL, a->K);
    const size_t bytes = tiles ? lnt_decay_tiles_starts_bytes(&starts, backward) : lnt_decay_starts_bytes(&starts);
    return bytes > most ? bytes : most;
}

static size_t carve(const lnt_mesa_args *a, bool backward, bool tiles, void *base, mesa_work *w)
{
    size_t used = 0;
    auto take = [&](int64_t n, size_t size) {
        void *p = base ? (char *)base + used : NULL;
        used += ((size_t)n * size + 255) / 256 * 256;
        return p;
    };
    const int64_t chunks = slots_of(a), rows = a->tokens * a->Hv, heads = a->sequences * a->Hv, square = (int64_t)a->K * a->K;
    const size_t wide = lnt_dtype_size(a->dtype);
    *w = {};
    w->table = (int4 *)take(chunks, sizeof *w->table);
    if (!tiles || a->V % 64) w->kb = take(rows * a->K, wide);
    if (other_keys(a)) w->kr = take(rows * a->K, wide);
    w->x = take(rows * a->K, wide);
    w->H = take(chunks * a->Hv * square, tiles ? 2 : 4);
    if (backward) {
        void **each[] = { &w->y, &w->e, &w->dkb, &w->dkb2, &w->dvalue };
        for (int i = 0; i < 5; i++) *each[i] = take(rows * a->K, wide);
        w->dg = (float *)take(rows, 4);
        w->dg2 = (float *)take(rows, 4);
        w->part = (float *)take(chunks * a->Hv * a->K, 4);
        if (!unrolled(a)) w->turned = (float *)take(heads * square, 4);
        w->dh0 = (float *)take(heads * square, 4);
    }
    if (backward && unrolled(a)) {
        const lnt_mesa_rings rings = lnt_mesa_rings_of(a->K, a->cg_max_steps, chunks * a->Hv);
        w->E = (float *)take(chunks * a->Hv * square, 4);
        w->dkb_steps = (float *)take(rows * a->K, 4);
        w->dvalue_steps = (float *)take(rows * a->K, 4);
        w->db = (float *)take(rows, 4);
        w->fade = (float *)take(chunks * a->Hv, 4);
        w->ring = (float *)take(rings.n * rings.floats, 4);
    }
    w->decay_bytes = decay_bytes(a, backward, tiles);
    w->decay = take((int64_t)w->decay_bytes, 1);
    if (!backward && tiles && a->V == a->K) w->read = take((int64_t)w->decay_bytes, 1);
    return used;
}

static unsigned grid_of(const lnt_cuda *d, int64_t n, int each)
{
    const int64_t pieces = lnt_div_up(n, (int64_t)THREADS * each), most = (int64_t)d->base.multiprocessors * 16;
    return (unsigned)(pieces < most ? pieces : most);
}

void lnt_mesa_table_put(const lnt_mesa_args *a, int4 *table, lnt_cuda *d)
{
    const int64_t chunks = slots_of(a);
    if (a->sequences)
        mesa_table<<<(unsigned)lnt_div_up(chunks, THREADS), THREADS, 0, d->stream>>>(a->cu_seqlens_device, a->sequences, chunks, table);
}

template <typename T> static void put_keys(const lnt_mesa_args *a, const mesa_work &w, lnt_cuda *d)
{
    const int64_t n = a->tokens * a->Hv * a->K;
    lnt_mesa_table_put(a, w.table, d);
    if (!n || (!w.kb && !w.kr)) return;
    constexpr int EACH = 16 / sizeof(T);
    const T *k = (const T *)a->k;
    const float *beta = (const float *)a->beta;
    if (a->K % EACH == 0 && (uintptr_t)k % 16 == 0)
        mesa_keys<T, EACH><<<grid_of(d, n, EACH), THREADS, 0, d->stream>>>(k, beta, (T *)w.kb, (T *)w.kr, n, a->Hq, a->Hv, a->K, rounds(a));
    else
        mesa_keys<T, 1><<<grid_of(d, n, 1), THREADS, 0, d->stream>>>(k, beta, (T *)w.kb, (T *)w.kr, n, a->Hq, a->Hv, a->K, rounds(a));
}

/* The decay core's call whose states are H, its end states to hT. */
static lnt_recur_args call_of_H(const lnt_mesa_args *a, const mesa_work &w, float *hT)
{
    lnt_recur_args d = decay_call(a, w, values_k(a, w), a->K);
    d.s0 = a->h0;
    d.sT = hT;
    return d;
}

/* H at every chunk's start from h0, its end states to hT; the call of (H_t + Lambda) x = rhs, without a place for x. `has_starts`: of segments. */
template <typename T, typename S>
static lnt_mesa_solve<T, S> put_starts(const lnt_mesa_args *a, const mesa_work &w, const void *rhs, int heads, float *hT, bool has_starts,
                                       lnt_cuda *d)
{
    const lnt_recur_args starts = call_of_H(a, w, hT);
    if constexpr (sizeof(S) == 2)
        lnt_decay_tiles_starts(&starts, &d->base, w.y && d->base.capability < 90, has_starts, (bf16 *)w.H);
    else
        lnt_decay_starts(&starts, &d->base, (float *)w.H);
    lnt_mesa_solve<T, S> s = lnt_mesa_options_of<T, S>(a);
    s.chunks = slots_of(a);
    s.table = w.table;
    s.K = a->K;
    s.Hv = a->Hv;
    s.Hk = w.kr ? a->Hv : a->Hq;
    s.Hr = heads;
    s.rhs = (const T *)rhs;
    s.k = (const T *)values_k(a, w);
    s.half_ends = rhs == a->q;
    s.g = (const float *)a->g;
    s.beta = (const float *)a->beta;
    s.lambda = (const float *)a->lambda;
    s.H = (const S *)w.H;
    s.empty = !a->h0;
    s.taken = (float *)a->steps;
    s.residual = (float *)a->residual;
    return s;
}

template <typename T, typename S>
static void put_solve(const lnt_mesa_args *a, const mesa_work &w, const void *rhs, int heads, void *x, float *x_float, float *hT, bool has_starts,
                      lnt_cuda *d)
{
    lnt_mesa_solve<T, S> s = put_starts<T, S>(a, w, rhs, heads, hT, has_starts, d);
    s.x = (T *)x;
    s.x_float = x_float;
    if constexpr (sizeof(S) == 2) {
        const bool steps = s.steps > 0 || s.solver == LNT_CG_PLAIN;
        if (d->base.capability >= 90 && !(s.absolute > 0) && (s.solver == LNT_CG_LEVEL || s.solver == LNT_CG_PLAIN) && steps &&
            ((uintptr_t)s.k | (uintptr_t)s.x | (uintptr_t)s.x_float | (uintptr_t)s.rhs) % 16 == 0) {
            lnt_mesa_cg_sm90(s, d);
            s.without_steps = true; /* the guess alone, where no level step is drawn */
            if (!s.drawn || s.solver == LNT_CG_PLAIN) return;
        }
    }
    lnt_mesa_solve_put(s, d);
}

template <typename T, typename S> static void forward(const lnt_mesa_args *a, lnt_cuda *d)
{
    mesa_work w;
    carve(a, false, sizeof(S) == 2, a->workspace, &w);
    put_keys<T>(a, w, d);
    float *x_float = (float *)a->x;
    if (sizeof(T) == 4 && a->x) {
        w.x = a->x;
        x_float = NULL;
    }
    lnt_recur_args read = decay_call(a, w, a->v, a->V);
    read.o = a->o;
    read.s0 = a->s0;
    read.sT = a->sT;
    const lnt_recur_impl *impl = decay_impl(&read, false, false);
    const bool two = w.read && d->base.capability >= 90 && impl == &lnt_decay_chunk_sm80;
    if (two) {
        const lnt_recur_args H = call_of_H(a, w, NULL);
        read.workspace = w.read;
        lnt_decay_tiles_two(&H, &read, &d->base);
    }
    put_solve<T, S>(a, w, a->q, a->Hq, w.x, x_float, (float *)a->hT, two, d);
    if (two)
        lnt_decay_tiles_forward(&read, &d->base, true);
    else
        impl->put_forward(&read, &d->base);
    lnt_cuda_note(d, cudaGetLastError());
}

static void turn(const lnt_mesa_args *a, const float *from, float *to, lnt_cuda *d)
{
    const int64_t blocks = (a->K + 31) / 32, grid = a->sequences * a->Hv * blocks * blocks;
    if (grid) mesa_turn<<<(unsigned)grid, THREADS, 0, d->stream>>>(from, to, a->K);
}

static void put_lambda(const lnt_mesa_args *a, const mesa_work &w, lnt_cuda *d)
{
    const int n = a->Hv * a->K;
    if (a->dlambda) mesa_lambda_sum<<<(unsigned)lnt_div_up(n, 32), THREADS, 0, d->stream>>>(w.part, (float *)a->dlambda, slots_of(a), n);
}

template <typename T> static void put_sums(const lnt_mesa_args *a, const mesa_work &w, lnt_cuda *d)
{
    const int64_t chunks = slots_of(a), grid = chunks * a->Hq;
    mesa_sums<T> s = {};
    s.table = w.table;
    s.k = (const T *)a->k;
    s.x = unrolled(a) ? NULL : (const T *)w.x;
    s.e = (const T *)w.e;
    s.dkb = (const T *)w.dkb;
    s.dkb2 = (const T *)w.dkb2;
    s.dvalue = (const T *)w.dvalue;
    s.beta = (const float *)a->beta;
    s.dg = w.dg;
    s.dg2 = w.dg2;
    s.dq = a->dq == w.e ? NULL : (T *)a->dq;
    s.dk = (T *)a->dk;
    s.dbeta = (float *)a->dbeta;
    s.to_dg = (float *)a->dg;
    s.part = w.part;
    s.Hq = a->Hq;
    s.Hv = a->Hv;
    s.K = a->K;
    s.scaled = !w.kb;
    const bool packs = a->K % 4 == 0 && ((uintptr_t)s.k | (uintptr_t)s.x | (uintptr_t)s.dq | (uintptr_t)s.dk) % 16 == 0;
    if (grid && packs)
        mesa_combine<T, 4><<<(unsigned)grid, THREADS, 0, d->stream>>>(s);
    else if (grid)
        mesa_combine<T, 1><<<(unsigned)grid, THREADS, 0, d->stream>>>(s);
    put_lambda(a, w, d);
}

/* From y the solve's own gradients: e = dq, dkb2, dvalue, dg2 (all but e negative), dh0, and dlambda's parts. */
template <typename T> static void put_steps_back(const lnt_mesa_args *a, const mesa_work &w, lnt_cuda *d)
{
    const lnt_mesa_rings rings = lnt_mesa_rings_of(a->K, a->cg_max_steps, slots_of(a) * a->Hv);
    lnt_mesa_unroll<T> u = {};
    u.solve = put_starts<T, float>(a, w, a->q, a->Hq, NULL, false, d);
    u.y = (const T *)w.y;
    u.dq = (T *)w.e;
    u.ring = w.ring;
    u.ring_floats = rings.floats;
    u.blocks = rings.blocks;
    u.part = w.part;
    u.fade = w.fade;
    u.E = w.E;
    u.E0 = a->dh0 ? w.dh0 : NULL;
    u.dkb = w.dkb_steps;
    u.dvalue = w.dvalue_steps;
    u.db = w.db;
    u.less_dkb = (T *)w.dkb2;
    u.less_dvalue = (T *)w.dvalue;
    u.less_dg = w.dg2;
    u.dh0 = (float *)a->dh0;
    lnt_mesa_unroll_put(u, d);
    const int64_t longest = a->longest;
    const decay_cut cut = { a->cu_seqlens_device, a->sequences, a->tokens, LNT_MESA_C, longest ? (int)lnt_div_up(longest, LNT_MESA_C) : 1, a->Hv,
                            (const float *)a->g, NULL, 1.0f };
    lnt_decay_scan(cut, w.E, w.fade, (const float *)a->dhT, NULL, a->K, a->K, a->K, true, d);
    lnt_mesa_unroll_end_put(u, d);
}

template <typename T, typename S> static void backward(const lnt_mesa_args *a, lnt_cuda *d)
{
    mesa_work w;
    carve(a, true, sizeof(S) == 2, a->workspace, &w);
    if (a->dq && a->Hq == a->Hv && (uintptr_t)a->dq % 16 == 0) w.e = a->dq; /* they are the same */
    put_keys<T>(a, w, d);
    const int64_t n = a->tokens * a->Hv * a->K;
    if constexpr (sizeof(T) == 4)
        w.x = a->x;
    else if (n && n % 8 == 0 && (uintptr_t)a->x % 16 == 0)
        mesa_narrow<8><<<grid_of(d, n, 8), THREADS, 0, d->stream>>>((const float *)a->x, (bf16 *)w.x, n);
    else if (n)
        mesa_narrow<1><<<grid_of(d, n, 1), THREADS, 0, d->stream>>>((const float *)a->x, (bf16 *)w.x, n);

    lnt_recur_args read = decay_call(a, w, a->v, a->V);
    read.do_ = a->do_;
    read.s0 = a->s0;
    read.dsT = a->dsT;
    read.dq = w.y;
    read.dk = w.dkb;
    read.dv = a->dv;
    read.dg = w.dg;
    read.ds0 = a->ds0;
    /* In tiles of one shape, the gates' pairs of both passes are one kernel, the second's; on Hopper each pass has its own on the way. */
    const bool hopper = sizeof(S) == 2 && d->base.capability >= 90, one_kernel = sizeof(S) == 2 && !hopper && a->V == a->K;
    if (one_kernel)
        lnt_decay_tiles_backward(&read, &d->base, { false, true, NULL, NULL });
    else
        decay_impl(&read, true, hopper)->put_backward(&read, &d->base);

    if constexpr (sizeof(S) == 4)
        if (unrolled(a)) {
            put_steps_back<T>(a, w, d);
            put_sums<T>(a, w, d);
            lnt_cuda_note(d, cudaGetLastError());
            return;
        }
    put_solve<T, S>(a, w, w.y, a->Hv, w.e, NULL, NULL, false, d);

    /* Where each query-key head has one value head, the second pass on Hopper leaves what put_sums would. */
    const bool joined = hopper && !w.kb && a->Hq == a->Hv && (!a->dq || w.e == a->dq);
    if (a->dhT) turn(a, (const float *)a->dhT, w.turned, d);
    lnt_recur_args through = decay_call(a, w, values_k(a, w), a->K);
    through.do_ = w.e;
    through.s0 = a->h0;
    through.dsT = a->dhT ? w.turned : NULL;
    through.dk = w.dkb2;
    through.dv = w.dvalue;
    through.dg = w.dg2;
    through.ds0 = a->dh0 ? w.dh0 : NULL;
    if (joined) {
        const size_t parts = (size_t)(slots_of(a) * a->Hv * a->K) * sizeof(float);
        through.dk = a->dk;
        through.dv = NULL;
        if (a->dg) through.dg = a->dg;
        lnt_cuda_note(d, cudaMemsetAsync(w.part, 0, parts, d->stream)); /* segments are as many as slots at most */
        lnt_decay_cuda_backward(&through, &d->base, lnt_decay_hopper(), { .joined = { (const bf16 *)w.dkb, w.dg, (float *)a->dbeta, w.part } });
    } else if (sizeof(S) == 2 && !hopper)
        lnt_decay_tiles_backward(&through, &d->base, { true, false, one_kernel ? a->v : NULL, one_kernel ? a->do_ : NULL });
    else
        decay_impl(&through, true, hopper)->put_backward(&through, &d->base);
    if (a->dh0) turn(a, w.dh0, (float *)a->dh0, d);
    joined ? put_lambda(a, w, d) : put_sums<T>(a, w, d);
    lnt_cuda_note(d, cudaGetLastError());
}

/* ---- the implementations ------------------------------------------------------------------------------------------------------------ */

static const char *general_declines(const void *args, bool back)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)args;
    if (a->heads.window) return "it has no window";
    if (a->lambda_varies) return "a Lambda of each token has no kernel for a GPU";
    if (a->K > WIDEST || a->V > WIDEST) return "K and V of at most 256 are offered";
    if (a->tokens > INT32_MAX || a->sequences > INT32_MAX) return "at most 2^31 tokens are offered";
    return NULL;
}
static size_t general_workspace(const void *args, bool back, int threads)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)args;
    mesa_work w;
    return carve(a, back, false, NULL, &w);
}
static void general_forward(const void *args, const lnt_device *d)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)args;
    LNT_BY_TYPE(a->dtype, T, forward<T, float>(a, (lnt_cuda *)d));
}
static void general_backward(const void *args, const lnt_device *d)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)args;
    LNT_BY_TYPE(a->dtype, T, backward<T, float>(a, (lnt_cuda *)d));
}

static const char *tiles_declines(const void *args, bool back)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)args;
    if (a->dtype != LINNET_BF16) return "it takes bf16 tensors";
    if (a->K != 64 && a->K != 128) return "K of 64 or 128 is offered";
    if (a->cg_solver == LNT_CG_FLASH) return "it does not round to float16";
    if (unrolled(a)) return "steps that are differentiated are those of the general solve";
    return general_declines(a, back);
}
static size_t tiles_workspace(const void *args, bool back, int threads)
{
    const lnt_mesa_args *a = (const lnt_mesa_args *)args;
    mesa_work w;
    return carve(a, back, true, NULL, &w);
}
static void tiles_forward(const void *args, const lnt_device *d) { forward<bf16, bf16>((const lnt_mesa_args *)args, (lnt_cuda *)d); }
static void tiles_backward(const void *args, const lnt_device *d) { backward<bf16, bf16>((const lnt_mesa_args *)args, (lnt_cuda *)d); }

static size_t step_workspace(const void *args, bool back, int threads) { return lnt_mesa_step_bytes((const lnt_mesa_args *)args); }
static void step_forward(const void *args, const lnt_device *d) { lnt_mesa_step_put((const lnt_mesa_args *)args, (lnt_cuda *)d); }

LNT_CUDA_FORM(lnt_mesa_chunk_cuda, "chunk-cuda", CHUNK, 80, general_declines, general_workspace, general_forward, general_backward)
LNT_CUDA_FORM(lnt_mesa_chunk_sm80, "chunk-sm80", CHUNK, 80, tiles_declines, tiles_workspace, tiles_forward, tiles_backward)
LNT_CUDA_FORM(lnt_mesa_recurrent_cuda, "recurrent-cuda", RECURRENT, 80, general_declines, step_workspace, step_forward, NULL)

/* Rows of a table. Backward needs the tokens of each id together: a stable radix sort of (id, token), 8 bits a pass, then sums of neighbours in that
 * order, in fixed chunks, so that a frequent id is as fast as a rare one and the bits are always the same. Floor: dy read once, the rows of the
 * gradient that occur read and written once. */
#include "ops/rows.cuh"

extern "C" {
#include "ops/embedding.h"
}

/* ---- forward: ids outside the vocabulary give zeros ----------------------------------------------------------------------------------- */

struct embed_args {
    lnt_view y;
    const float *table;
    const int32_t *id;
    int64_t units, vocab, row; /* units of all rows; units of a row */
    float scale;
};

template <class P> __global__ void __launch_bounds__(256) embed_kernel(const __grid_constant__ embed_args a)
{
    let_next();
    await_last();
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= a.units) return;
    const int64_t t = i / a.row, id = a.id[t];
    float e[P::U] = {};
    if (id >= 0 && id < a.vocab) get_weights(e, a.table + (id * a.row + i - t * a.row) * P::U);
#pragma unroll
    for (int u = 0; u < P::U; u++) e[u] *= a.scale;
    put<P>(a.y, i * P::U, e);
}

extern "C" linnet_status lnt_embedding_forward_cuda(const lnt_call *k)
{
    const lnt_embedding_attr *attr = (const lnt_embedding_attr *)k->attr;
    const lnt_tensor *y = &k->out[0];
    if (k->tokens <= 0) return LINNET_OK;
    const int unit = (uintptr_t)k->param[0].master % 16 ? 1 : unit_of(y->cols, &y, 1);
    const embed_args a = {view_of(y),  k->param[0].master, (const int32_t *)k->in[0].data, k->tokens * y->cols / unit,
                          attr->vocab, y->cols / unit,     (float)attr->scale};
    LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(k->c), embed_kernel<P>, (unsigned)lnt_div_up(a.units, 256), 256, a)));
    return LINNET_OK;
}

/* ---- sorting ------------------------------------------------------------------------------------------------------------------------------ */

enum { TILE = 2048, SORT_WARPS = 8, WARP_KEYS = TILE / SORT_WARPS, DIGITS = 256 };

struct sort_args {
    const int32_t *id;              /* first pass: keys are ids (those outside the vocabulary: vocab), values 0, 1, 2 .. */
    const int32_t *key_in, *value_in;
    int32_t *key_out, *value_out;
    int32_t *count;                 /* [DIGITS, tiles] */
    int n, vocab, shift, tiles;
};

__device__ __forceinline__ int key_at(const sort_args &a, int i)
{
    if (!a.id) return a.key_in[i];
    const int id = a.id[i];
    return id < 0 || id >= a.vocab ? a.vocab : id;
}

/* Keys of each digit in each warp's part of the tile. A digit's first lane in a group of 32 keys counts for all of them. */
__device__ __forceinline__ void count_digits(const sort_args &a, int (*count)[DIGITS], const int (&key)[WARP_KEYS / 32])
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int i = (int)threadIdx.x; i < SORT_WARPS * DIGITS; i += (int)blockDim.x) (&count[0][0])[i] = 0;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < WARP_KEYS / 32; r++) {
        const int digit = key[r] < 0 ? DIGITS : key[r] >> a.shift & (DIGITS - 1);
        const unsigned same = __match_any_sync(0xffffffffu, digit);
        if (digit < DIGITS && __ffs((int)same) - 1 == lane) count[warp][digit] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
}

__device__ __forceinline__ void load_keys(const sort_args &a, int (&key)[WARP_KEYS / 32])
{
    const int first = (int)blockIdx.x * TILE + (int)threadIdx.x / 32 * WARP_KEYS + (int)threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < WARP_KEYS / 32; r++) key[r] = first + 32 * r < a.n ? key_at(a, first + 32 * r) : -1;
}

static __global__ void __launch_bounds__(256) count_kernel(const __grid_constant__ sort_args a)
{
    __shared__ int count[SORT_WARPS][DIGITS];
    int key[WARP_KEYS / 32], sum = 0;
    load_keys(a, key);
    count_digits(a, count, key);
#pragma unroll
    for (int w = 0; w < SORT_WARPS; w++) sum += count[w][threadIdx.x];
    a.count[threadIdx.x * a.tiles + blockIdx.x] = sum;
}

/* Exclusive sums of x[n], by one block. */
static __global__ void __launch_bounds__(1024) scan_kernel(int32_t *x, int n)
{
    __shared__ int warps[32], carry;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    if (!threadIdx.x) carry = 0;
    for (int base = 0; base < n; base += 1024) {
        const int i = base + (int)threadIdx.x, own = i < n ? x[i] : 0;
        int s = own;
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            const int before = __shfl_up_sync(0xffffffffu, s, o);
            if (lane >= o) s += before;
        }
        if (lane == 31) warps[warp] = s;
        __syncthreads();
        int ahead = carry, total = 0;
        for (int w = 0; w < 32; w++) {
            if (w < warp) ahead += warps[w];
            total += warps[w];
        }
        if (i < n) x[i] = ahead + s - own;
        __syncthreads();
        if (!threadIdx.x) carry += total;
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(256) scatter_kernel(const __grid_constant__ sort_args a)
{
    __shared__ int place[SORT_WARPS][DIGITS];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int key[WARP_KEYS / 32];
    load_keys(a, key);
    count_digits(a, place, key);
    int at = a.count[threadIdx.x * a.tiles + blockIdx.x];
#pragma unroll
    for (int w = 0; w < SORT_WARPS; w++) {
        const int here = place[w][threadIdx.x];
        place[w][threadIdx.x] = at;
        at += here;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < WARP_KEYS / 32; r++) {
        const int i = (int)blockIdx.x * TILE + warp * WARP_KEYS + 32 * r + lane;
        const int digit = key[r] < 0 ? DIGITS : key[r] >> a.shift & (DIGITS - 1);
        const unsigned same = __match_any_sync(0xffffffffu, digit);
        const int rank = __popc(same & ((1u << lane) - 1));
        const int to = digit < DIGITS ? place[warp][digit] + rank : 0;
        __syncwarp();
        if (digit < DIGITS) {
            a.key_out[to] = key[r];
            a.value_out[to] = a.id ? i : a.value_in[i];
            if (!rank) place[warp][digit] += __popc(same);
        }
        __syncwarp();
    }
}

/* ---- sums of neighbours ----------------------------------------------------------------------------------------------------------------------
 * A chunk is LNT_EMBED_CHUNK tokens of the sorted order. The sum of an id that begins and ends in the chunk goes to its row; of one that came from
 * the chunk before to part[chunk][0], of one that only goes on to part[chunk][1], and a second kernel adds those in order. */

struct embed_sum_args {
    lnt_view dy;
    const int32_t *key, *order; /* sorted; -> token */
    float *grad, *part;         /* [vocab, cols]; [chunks][2][cols] */
    int64_t cols;
    int n, vocab;
    float scale;
};

template <class P> __device__ __forceinline__ void add_row(float *row, const float (&s)[P::U], float scale)
{
    float g[P::U];
    get_weights(g, row);
#pragma unroll
    for (int u = 0; u < P::U; u++) g[u] += scale * s[u];
    put<lnt_unit<P::U, false>>(view_on(row), 0, g);
}

template <class P> __global__ void __launch_bounds__(128) chunk_kernel(const __grid_constant__ embed_sum_args a)
{
    __shared__ int key[LNT_EMBED_CHUNK + 2], order[LNT_EMBED_CHUNK]; /* key[1 + i]; before and behind: the neighbours' */
    const int first = (int)blockIdx.x * LNT_EMBED_CHUNK, n = min(LNT_EMBED_CHUNK, a.n - first);
    const int64_t c = ((int64_t)blockIdx.y * 128 + threadIdx.x) * P::U;
    if ((int)threadIdx.x < n + 2) {
        const int i = first + (int)threadIdx.x - 1;
        key[threadIdx.x] = i >= 0 && i < a.n ? a.key[i] : -1;
    }
    if ((int)threadIdx.x < n) order[threadIdx.x] = a.order[first + (int)threadIdx.x];
    __syncthreads();
    if (c >= a.cols) return;
    constexpr int AHEAD = 8;
    float s[P::U] = {};
    bool from_before = key[0] == key[1];
    for (int base = 0; base < n; base += AHEAD) {
        lnt_raw<P> raw[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (base + i < n) raw[i] = fetch<P>(a.dy, (int64_t)order[base + i] * a.cols + c);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (base + i >= n) break;
            float x[P::U];
            widen<P>(x, raw[i], a.dy.f32);
#pragma unroll
            for (int u = 0; u < P::U; u++) s[u] += x[u];
            const int id = key[1 + base + i];
            const bool ends = key[2 + base + i] != id;
            if (!ends && base + i + 1 < n) continue;
            if (id < a.vocab) {
                if (from_before || !ends)
                    put<lnt_unit<P::U, false>>(view_on(a.part), (2 * (int64_t)blockIdx.x + !from_before) * a.cols + c, s);
                else
                    add_row<P>(a.grad + id * a.cols + c, s, a.scale);
            }
            from_before = false;
#pragma unroll
            for (int u = 0; u < P::U; u++) s[u] = 0.0f;
        }
    }
}

/* The id that begins in chunk blockIdx.x and goes on: its parts, in order. */
template <class P> __global__ void __launch_bounds__(128) join_kernel(const __grid_constant__ embed_sum_args a)
{
    using F = lnt_unit<P::U, false>;
    const int chunk = (int)blockIdx.x, last = (chunk + 1) * LNT_EMBED_CHUNK - 1; /* of the chunk */
    const int64_t c = ((int64_t)blockIdx.y * 128 + threadIdx.x) * P::U;
    if (c >= a.cols || last + 1 >= a.n) return;
    const int id = a.key[last], first = chunk * LNT_EMBED_CHUNK;
    if (id >= a.vocab || a.key[last + 1] != id) return;
    if (a.key[first] == id && first > 0 && a.key[first - 1] == id) return; /* it began before */
    int end = chunk + 2; /* chunks chunk+1 .. end-1 have a part of it */
    while ((int64_t)end * LNT_EMBED_CHUNK < a.n && a.key[end * LNT_EMBED_CHUNK] == id && a.key[end * LNT_EMBED_CHUNK - 1] == id) end++;
    float s[P::U], x[P::U];
    get<F>(s, view_on(a.part), (2 * (int64_t)chunk + 1) * a.cols + c);
#pragma unroll 4
    for (int i = chunk + 1; i < end; i++) {
        get<F>(x, view_on(a.part), 2 * (int64_t)i * a.cols + c);
#pragma unroll
        for (int u = 0; u < P::U; u++) s[u] += x[u];
    }
    add_row<P>(a.grad + id * a.cols + c, s, a.scale);
}

extern "C" linnet_status lnt_embedding_backward_cuda(const lnt_call *k)
{
    const lnt_embedding_attr *attr = (const lnt_embedding_attr *)k->attr;
    const lnt_tensor *dy = &k->d_out[0];
    if (k->tokens <= 0) return LINNET_OK;
    if (k->tokens > INT32_MAX / 2) return lnt_fail(k->c, LINNET_EUNSUPPORTED, "an embedding of %lld tokens at once", (long long)k->tokens);
    const int n = (int)k->tokens, tiles = (int)lnt_div_up(n, TILE);
    cudaStream_t stream = lnt_stream(k->c);
    float *part = (float *)k->work; /* embedding.c has the layout */
    int32_t *key[2], *value[2];
    key[0] = (int32_t *)(part + lnt_div_up(n, LNT_EMBED_CHUNK) * 2 * dy->cols), key[1] = key[0] + n;
    value[0] = key[1] + n, value[1] = value[0] + n;
    sort_args s = {(const int32_t *)k->in[0].data, NULL, NULL, key[0], value[0], value[1] + n, n, (int)attr->vocab, 0, tiles};
    int now = 0;
    for (; s.shift == 0 || attr->vocab >> s.shift; s.shift += 8) {
        count_kernel<<<(unsigned)tiles, 256, 0, stream>>>(s);
        scan_kernel<<<1, 1024, 0, stream>>>(s.count, DIGITS * tiles);
        scatter_kernel<<<(unsigned)tiles, 256, 0, stream>>>(s);
        s.id = NULL, s.key_in = key[now], s.value_in = value[now];
        now ^= 1;
        s.key_out = key[now], s.value_out = value[now];
    }
    const embed_sum_args a = {view_of(dy), s.key_in, s.value_in, k->param[0].grad, part, dy->cols, n, (int)attr->vocab, (float)attr->scale};
    const int unit = (uintptr_t)a.grad % 16 ? 1 : unit_of(a.cols, &dy, 1);
    const unsigned chunks = (unsigned)lnt_div_up(n, LNT_EMBED_CHUNK);
    LNT_BY_UNIT(unit, P, {
        using Q = lnt_unit<(P::U == 8 ? 4 : P::U), P::HALF>; /* what goes on is float32 in units of 4 */
        const dim3 wide(chunks, (unsigned)lnt_div_up(a.cols / Q::U, 128));
        chunk_kernel<Q><<<wide, 128, 0, stream>>>(a);
        join_kernel<Q><<<wide, 128, 0, stream>>>(a);
    });
    return LINNET_OK;
}

/* Chains of plain operators over few rows (row_chain.h). A thread has eight columns of a row. First it asks for all that comes from outside: what no
 * kernel of the run writes ahead of the wait for the kernel before, the rest behind it. Copies go to planes of shared memory that the thread alone
 * reads. Then it goes through the functions, whose results lie in planes as well: no thread waits for another, but for the sums of heads, which go
 * over lanes of a warp, or, of a whole row, over the warps of its block. What a function takes from another node is rounded as that node would store
 * it, and the sums of a row do not depend on other rows. Floor: every operand read once, and one latency of memory for all of them. */
#include "device/mma.cuh"
#include "ops/rows.cuh"

extern "C" {
#include "ops/row_chain_table.h"
}

namespace {

constexpr int U = LNT_CHAIN_UNIT;

/* Where a thread is. */
struct chain_place {
    uint4 *planes; /* its own 16 bytes of plane 0 */
    int threads, row, col;
    int64_t seq;
};

__device__ __forceinline__ bool has(const chain_place &p, int first, int end) { return p.col >= first && p.col < end; }

__device__ __forceinline__ const char *source(const lnt_chain_load &l, const chain_place &p)
{
    int c = p.col - l.first;
    if (l.stretch > 1) c /= l.stretch;
    if (l.period) c %= l.period;
    return l.data + (l.by_sequence ? p.seq : (int64_t)p.row) * l.row + (int64_t)c * l.size;
}

/* Loads begin .. end - 1: units are copied, not waited for; single numbers some at once. */
__device__ __forceinline__ void bring(const lnt_chain &a, const chain_place &p, int begin, int end)
{
    int i = begin;
#pragma unroll 1
    for (; i < end && a.load[i].bytes >= 16; i++) {
        const lnt_chain_load &l = a.load[i];
        if (!has(p, l.first, l.end)) continue;
        const char *from = source(l, p);
#pragma unroll 1
        for (int b = 0; b < l.bytes / 16; b++) cp_async_16(shared_address(p.planes + (l.plane + b) * p.threads), from + 16 * b);
    }
    constexpr int ONCE = 4;
#pragma unroll 1
    for (; i < end; i += ONCE) {
        float x[ONCE] = {};
#pragma unroll
        for (int j = 0; j < ONCE; j++) {
            const lnt_chain_load &l = a.load[min(i + j, end - 1)];
            if (has(p, l.first, l.end)) x[j] = l.size == 4 ? *(const float *)source(l, p) : to_float(*(const bf16 *)source(l, p));
        }
#pragma unroll
        for (int j = 0; j < ONCE; j++)
            if (i + j < end) *(float *)(p.planes + a.load[i + j].plane * p.threads) = x[j];
    }
}

__device__ __forceinline__ void floats_of(float *x, const uint4 &q)
{
    x[0] = __uint_as_float(q.x), x[1] = __uint_as_float(q.y), x[2] = __uint_as_float(q.z), x[3] = __uint_as_float(q.w);
}

__device__ __forceinline__ void read(float (&x)[U], const lnt_chain_operand &o, const chain_place &p)
{
    const uint4 *at = p.planes + o.plane * p.threads;
    if (o.form == LNT_CHAIN_ONE) {
        const float one = *(const float *)at;
#pragma unroll
        for (int u = 0; u < U; u++) x[u] = one;
        return;
    }
    const uint4 q = at[0];
    if (o.form == LNT_CHAIN_FLOATS) {
        floats_of(x, q);
        floats_of(x + 4, at[p.threads]);
    } else {
        const uint32_t w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int j = 0; j < 4; j++) x[2 * j] = low_half(w[j]), x[2 * j + 1] = high_half(w[j]);
    }
}

/* Functions that take many instructions: called, so that there is one of each. A step's kernels take turns, and each finds little of itself in the
 * instruction cache. */
__device__ __noinline__ float4 four_acts(float4 q, int act)
{
    float x[4] = {q.x, q.y, q.z, q.w};
    act_all(x, act);
    return make_float4(x[0], x[1], x[2], x[3]);
}
__device__ __forceinline__ void acts(float (&x)[U], int act)
{
    if (act == LNT_IDENTITY) return;
#pragma unroll
    for (int h = 0; h < U; h += 4) {
        const float4 y = four_acts(make_float4(x[h], x[h + 1], x[h + 2], x[h + 3]), act);
        x[h] = y.x, x[h + 1] = y.y, x[h + 2] = y.z, x[h + 3] = y.w;
    }
}
__device__ __noinline__ float log_one_plus(float x) { return log1pf(x); }

/* Eight neighbours in global memory, rounded to their type. */
__device__ __forceinline__ void store(char *to, const float (&x)[U], bool f32)
{
    if (f32) {
        *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
        *(float4 *)(to + 16) = make_float4(x[4], x[5], x[6], x[7]);
    } else
        *(uint4 *)to = make_uint4(two_halves(x[0], x[1]), two_halves(x[2], x[3]), two_halves(x[4], x[5]), two_halves(x[6], x[7]));
}

/* A result: kept for the functions that follow, and stored where others read it. */
__device__ __forceinline__ void finish(const lnt_chain_op &o, const chain_place &p, float (&x)[U])
{
    if (!o.f32) {
#pragma unroll
        for (int u = 0; u < U; u++) x[u] = __bfloat162float(__float2bfloat16_rn(x[u]));
    }
    uint4 *at = p.planes + o.plane * p.threads;
    at[0] = make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
    at[p.threads] = make_uint4(__float_as_uint(x[4]), __float_as_uint(x[5]), __float_as_uint(x[6]), __float_as_uint(x[7]));
    const int c = p.col - o.first;
    if (!o.out || !has(p, o.first, o.end)) return;
    char *to = o.out + p.row * o.out_row;
    if (o.stretch == 1) return store(to + (int64_t)c * (o.f32 ? 4 : 2), x, o.f32);
    if (c % o.stretch) return;
    if (o.f32)
        ((float *)to)[c / o.stretch] = x[0];
    else
        ((bf16 *)to)[c / o.stretch] = __float2bfloat16_rn(x[0]);
}

/* The sum over a head of what its threads have; `turn` counts those of a block. */
template <bool WIDE> __device__ __forceinline__ float head_sum(const lnt_chain_op &o, const chain_place &p, float s, int &turn)
{
    if (!has(p, o.first, o.end)) s = 0.0f;
    if (!WIDE || o.lanes) {
#pragma unroll 1
        for (int w = o.lanes / 2; w; w >>= 1) s += __shfl_xor_sync(0xffffffffu, s, w);
        return s;
    }
    __shared__ float part[2][32];
    s = warp_sum(s);
    if (threadIdx.x % 32 == 0) part[turn & 1][threadIdx.x / 32] = s;
    __syncthreads();
    const int begin = o.first + (max(p.col - o.first, 0) / o.head) * o.head, end = min(begin + o.head, o.end);
    s = 0.0f;
#pragma unroll 4
    for (int w = begin / LNT_CHAIN_WARP; w < (end + LNT_CHAIN_WARP - 1) / LNT_CHAIN_WARP; w++) s += part[turn & 1][w];
    turn++;
    return s;
}

/* y: weights, z: a gate or what is added, where there are any. */
template <bool WIDE>
__device__ __forceinline__ void norm(const lnt_chain_op &o, const chain_place &p, float (&x)[U], const float (&y)[U], float (&z)[U], int &turn)
{
    const bool layer = o.kind == LNT_ROW_LAYER, squares = o.kind == LNT_ROW_RMS || o.kind == LNT_ROW_L2;
    float s, r = 1.0f, by = 1.0f / (float)o.head;
#pragma unroll 1
    for (int pass = 0; pass <= layer; pass++) { /* of LAYER: the mean, then the variance */
        s = 0.0f;
#pragma unroll
        for (int u = 0; u < U; u++) s += squares || pass ? x[u] * x[u] : x[u];
        s = head_sum<WIDE>(o, p, s, turn);
        if (layer && !pass) {
            const float mean = s / (float)o.head;
#pragma unroll
            for (int u = 0; u < U; u++) x[u] -= mean;
        }
    }
    if (o.kind == LNT_ROW_SUM)
        r = 1.0f / (s + o.number[0]);
    else
        r = 1.0f / sqrtf((layer ? s / (float)o.head : o.kind == LNT_ROW_RMS ? s * by : s) + o.number[0]);
    const bool weights = o.operand[1].form;
    if (o.operand[2].form && !layer) acts(z, o.act);
#pragma unroll
    for (int u = 0; u < U; u++) {
        x[u] *= layer || !weights ? r : r * (y[u] + o.number[1]);
        if (layer && weights) x[u] *= y[u];
        if (o.operand[2].form) x[u] = layer ? x[u] + z[u] : x[u] * z[u];
    }
}

/* Of four taps; y and z: the first two rows of the state. A column's taps are one plane. */
__device__ __forceinline__ void convolve(const lnt_chain_op &o, const chain_place &p, float (&x)[U], const float (&y)[U], const float (&z)[U])
{
    float last[U];
    read(last, o.operand[3], p);
    if (has(p, o.first, o.end)) {
        char *state = (char *)(o.state + p.seq * o.state_stride + (p.col - o.first));
        store(state, z, true);
        store(state + 4 * o.state_cols, last, true);
        store(state + 8 * o.state_cols, x, true);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        float w[4];
        floats_of(w, p.planes[(o.operand[4].plane + u) * p.threads]);
        x[u] = w[0] * y[u] + w[1] * z[u] + w[2] * last[u] + w[3] * x[u];
    }
    if (o.operand[5].form) {
        read(last, o.operand[5], p);
#pragma unroll
        for (int u = 0; u < U; u++) x[u] += last[u];
    }
    acts(x, o.act);
}

__device__ __forceinline__ void decay(const lnt_chain_op &o, float (&x)[U], const float (&y)[U], const float (&z)[U])
{
    const float lower = o.number[0];
    float e[U], w[U];
#pragma unroll
    for (int u = 0; u < U; u++) e[u] = y[u];
    acts(e, LNT_EXP);
#pragma unroll
    for (int u = 0; u < U; u++) w[u] = lower < 0.0f ? e[u] * (x[u] + z[u]) : x[u] + z[u];
    acts(w, lower < 0.0f ? LNT_SIGMOID : LNT_SOFTPLUS);
#pragma unroll
    for (int u = 0; u < U; u++) x[u] = lower < 0.0f ? lower * w[u] : -e[u] * w[u];
}

/* Several side by side, of which nobody here reads any. */
__device__ __forceinline__ void lerps(const lnt_chain_op &o, const chain_place &p, const float (&x)[U], const float (&y)[U])
{
    if (!has(p, o.first, o.end)) return;
#pragma unroll 1
    for (int i = 0; i < o.count; i++) {
        float z[U];
        read(z, o.operand[2 + i], p);
#pragma unroll
        for (int u = 0; u < U; u++) z[u] = x[u] + (y[u] - x[u]) * z[u];
        store(o.out + p.row * o.out_row + ((int64_t)i * (o.end - o.first) + p.col - o.first) * (o.f32 ? 4 : 2), z, o.f32);
    }
}

#define EACH(expression) _Pragma("unroll") for (int u = 0; u < U; u++) x[u] = (expression)

template <bool WIDE> __device__ __forceinline__ void run(const lnt_chain_op &o, const chain_place &p, int &turn)
{
    float x[U], y[U], z[U];
    read(x, o.operand[0], p);
    if (o.operand[1].form) read(y, o.operand[1], p);
    if (o.operand[2].form) read(z, o.operand[2], p);
    switch (o.kind) {
    case LNT_ROW_ACTIVATION:
        acts(x, o.act);
        EACH(o.number[1] != 0.0f ? x[u] * o.number[0] + o.number[1] : x[u] * o.number[0]);
        break;
    case LNT_ROW_ADD: EACH(x[u] + y[u]); break;
    case LNT_ROW_MUL: EACH(x[u] * y[u]); break;
    case LNT_ROW_GLU:
        acts(x, o.act);
        EACH(x[u] * y[u]);
        break;
    case LNT_ROW_LERP:
        if (o.count > 1) return lerps(o, p, x, y);
        EACH(x[u] + (y[u] - x[u]) * z[u]);
        break;
    case LNT_ROW_CLAMP: EACH(x[u] < o.number[0] ? o.number[0] : x[u] > o.number[1] ? o.number[1] : x[u]); break;
    case LNT_ROW_CAP: EACH(x[u] + log_one_plus(-o.number[0] * y[u] * y[u])); break;
    case LNT_ROW_DECAY: decay(o, x, y, z); break;
    case LNT_ROW_DOT: {
        float s = 0.0f;
#pragma unroll
        for (int u = 0; u < U; u++) s += x[u] * y[u];
        s = head_sum<WIDE>(o, p, s, turn);
        EACH(s);
        break;
    }
    case LNT_ROW_BEFORE:
        if (has(p, o.first, o.end)) store((char *)(o.state + p.seq * o.state_stride + (p.col - o.first)), x, true);
        EACH(y[u]);
        break;
    case LNT_ROW_CONV: convolve(o, p, x, y, z); break;
    default: norm<WIDE>(o, p, x, y, z, turn); break;
    }
    finish(o, p, x);
}

template <bool WIDE>
__global__ void __launch_bounds__(WIDE ? LNT_CHAIN_MOST_THREADS : LNT_CHAIN_THREADS) chain_kernel(const __grid_constant__ lnt_chain a)
{
    extern __shared__ __align__(16) uint4 memory[];
    chain_place p;
    p.planes = memory + threadIdx.x, p.threads = (int)blockDim.x;
    p.row = (int)blockIdx.y, p.col = (int)(blockIdx.x * blockDim.x + threadIdx.x) * U, p.seq = p.row;
    int early = 0, turn = 0;
    let_next();
    while (early < a.loads && a.load[early].early) early++;
#pragma unroll 1
    for (int late = 0; late < 2; late++) {
        if (late) await_last();
        if (late && a.cu) p.seq = sequence_at({a.cu, a.n_seq, a.tokens}, p.row);
        bring(a, p, late ? early : 0, late ? a.loads : early);
    }
    cp_async_commit();
    cp_async_wait<0>();
    const int warp = p.col - (int)threadIdx.x % 32 * U; /* its first column */
#pragma unroll 1
    for (int i = 0; i < a.ops; i++) {
        const lnt_chain_op &o = a.op[i];
        const bool waits = WIDE && o.kind >= LNT_ROW_DOT && o.kind <= LNT_ROW_LAYER && !o.lanes;
        if (waits || (warp < o.end && warp + LNT_CHAIN_WARP > o.first)) run<WIDE>(o, p, turn);
    }
}

template <bool WIDE> void launch(lnt_cuda *d, const lnt_chain &chain, size_t bytes, size_t most)
{
    const dim3 blocks((unsigned)lnt_div_up(chain.cols, chain.threads * LNT_CHAIN_UNIT), (unsigned)chain.rows);
    lnt_launch_with(d, chain_kernel<WIDE>, blocks, chain.threads, bytes, 1, chain);
    /* a graph holds chains of many sizes, and asks for the room of its largest when it is made ready */
    lnt_cuda_note(d, cudaFuncSetAttribute(chain_kernel<WIDE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most));
}

} // namespace

extern "C" bool lnt_row_chain_cuda(lnt_ctx *c, const lnt_chain *chain)
{
    lnt_cuda *d = lnt_cuda_of(c);
    const size_t bytes = (size_t)chain->planes * 16 * chain->threads, room = d->base.block_shared - LNT_CHAIN_OWN;
    if (bytes > room) return false;
    if (chain->wide)
        launch<true>(d, *chain, bytes, room);
    else
        launch<false>(d, *chain, bytes, room);
    return true;
}

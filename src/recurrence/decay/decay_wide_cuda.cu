/* Heads wider than the tiles of the tensor cores go in slices of K and V (decay_slices): what that takes beside the kernels of narrow heads, sums of
 * the parts that slices leave, and states as slices have them. The sums also serve value heads that share a query-key head. */
#include "recurrence/decay/decay_wide.cuh"

static constexpr int THREADS = 256, MOST_BLOCKS = 1 << 16;

/* A thread has L neighbours of [rows,width]. */
template <int L, typename TO, typename T>
__global__ __launch_bounds__(THREADS) void decay_sum(TO *out, const T *parts, int64_t packs, int group, int width, const float *by,
                                                     int each)
{
    const int per = width / L;
    await_last();
    let_next();
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < packs; i += gridDim.x * (int64_t)THREADS) {
        const int64_t row = packs >> 31 ? i / per : (int64_t)((unsigned)i / (unsigned)per), at = (i - row * per) * L;
        const T *from = parts + row * group * width + at;
        float sum[L];
        load_pack<L>(sum, from);
#pragma unroll 4
        for (int g = 1; g < group; g++) {
            float more[L];
            load_pack<L>(more, from + (int64_t)g * width);
#pragma unroll
            for (int j = 0; j < L; j++) sum[j] += more[j];
        }
        if (by) {
            const float factor = by[row / each];
#pragma unroll
            for (int j = 0; j < L; j++) sum[j] *= factor;
        }
        store_pack<L>(out + i * L, sum);
    }
}
template <int L, typename TO, typename T>
static void put_sum(void *out, const void *parts, int64_t rows, int group, int width, const lnt_cuda *d, const float *by, int each)
{
    const int64_t packs = rows * (width / L), blocks = lnt_div_up(packs, THREADS);
    if (packs > 0)
        lnt_launch(d, decay_sum<L, TO, T>, dim3((unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS)), THREADS, (TO *)out, (const T *)parts,
                   packs, group, width, by, each);
}
void lnt_decay_sum(void *out, int out_bf16, const void *parts, int parts_bf16, int64_t rows, int group, int width, const lnt_cuda *d, const float *by,
                   int each)
{
    if (!out) return;
    const bool packs = width % 8 == 0 && ((uintptr_t)out | (uintptr_t)parts) % 32 == 0;
    if (parts_bf16)
        (packs ? put_sum<8, bf16, bf16> : put_sum<1, bf16, bf16>)(out, parts, rows, group, width, d, by, each);
    else if (out_bf16)
        (packs ? put_sum<8, bf16, float> : put_sum<1, bf16, float>)(out, parts, rows, group, width, d, by, each);
    else
        (packs ? put_sum<8, float, float> : put_sum<1, float, float>)(out, parts, rows, group, width, d, by, each);
}

/* A slice goes by several CTAs, thread by thread over its numbers. */
static constexpr int CTAS = 8;
__global__ __launch_bounds__(THREADS) void decay_slice_states(float *to, const float *from, bool back, const __grid_constant__ decay_slices by)
{
    await_last();
    let_next();
    const unsigned slice = blockIdx.x / CTAS, ks = slice % (unsigned)by.k, vs = slice / (unsigned)by.k % (unsigned)by.v, V = (unsigned)(by.v * by.V);
    const int64_t head = slice / (unsigned)(by.k * by.v), numbers = by.K * by.V, first = (head * by.k + ks) * by.v * numbers + vs * by.V;
    for (unsigned i = blockIdx.x % CTAS * THREADS + threadIdx.x; i < numbers; i += CTAS * THREADS) {
        const int64_t whole = first + (int64_t)(i / (unsigned)by.V) * V + i % (unsigned)by.V, own = slice * numbers + i;
        to[back ? whole : own] = from[back ? own : whole];
    }
}
void lnt_decay_slice_states(float *to, const float *from, bool back, int64_t heads, const decay_slices &by, const lnt_cuda *d)
{
    const int64_t ctas = heads * by.k * by.v * CTAS;
    if (ctas > 0) lnt_launch(d, decay_slice_states, dim3((unsigned)ctas), THREADS, to, from, back, by);
}

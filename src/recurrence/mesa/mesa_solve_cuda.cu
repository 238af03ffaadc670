/* Conjugate gradients of a chunk in float32, any K up to 256: x of every row. */
#include "recurrence/mesa/mesa_rows_cuda.cuh"

namespace {

template <int KP, int ROWS, bool HALF, typename T, typename S>
__global__ __launch_bounds__(tile<KP, ROWS>::threads) void mesa_solve(const __grid_constant__ lnt_mesa_solve<T, S> a)
{
    extern __shared__ __align__(16) unsigned char memory[];
    tile<KP, ROWS> &s = *(tile<KP, ROWS> *)memory;
    __shared__ uint64_t barriers[ROWS / 16];
    constexpr int parts = C / ROWS;
    const int part = (int)(blockIdx.x % parts), h = (int)(blockIdx.x / parts % a.Hv), K = a.K, first = part * ROWS;
    const int64_t chunk = blockIdx.x / parts / a.Hv;
    const int4 chunk_at = a.table[chunk];
    const int64_t t0 = chunk_at.y;
    const int len = chunk_at.z;
    const lnt_mesa_course course = lnt_mesa_course_now(a);
    if (len <= first || (a.without_steps && course.steps)) return;
    const S *H = a.H + (chunk * a.Hv + h) * (int64_t)K * K;
    const place at = place_of<KP, ROWS>(barriers);
    load<KP, ROWS, HALF>(s, a, H, t0, len, h, first);
    rows_of t;
    outcome out;
    take_steps<KP, ROWS, HALF, false>(s, at, t, a, course, H, t0, len, h, first, {}, out);
    report(a, course, at, out, t0, len, h, first);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (first + at.row[i] >= len) continue;
        const int64_t token = (t0 + first + at.row[i]) * a.Hv + h;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int d = column_of(at, j);
            if (d >= K) continue;
            if (HALF && a.half_ends) t.X[i][j] = lnt_to_half(t.X[i][j]);
            a.x[token * K + d] = from_float<T>(t.X[i][j]);
            if (a.x_float) a.x_float[token * K + d] = t.X[i][j];
        }
    }
}

template <int KP, int ROWS, bool HALF, typename T, typename S> void put(const lnt_mesa_solve<T, S> &a, lnt_cuda *d)
{
    using shared = tile<KP, ROWS>;
    const int64_t grid = a.chunks * a.Hv * (C / ROWS);
    if (!grid) return;
    lnt_cuda_note(d, cudaFuncSetAttribute(mesa_solve<KP, ROWS, HALF, T, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(shared)));
    mesa_solve<KP, ROWS, HALF, T, S><<<(unsigned)grid, shared::threads, sizeof(shared), d->stream>>>(a);
    lnt_cuda_note(d, cudaGetLastError());
}

} // namespace

template <bool HALF, typename T, typename S> static void put_by_width(const lnt_mesa_solve<T, S> &a, lnt_cuda *d)
{
    with_cta(a.K, d, [&](auto shape) {
        static_assert(sizeof(tile<shape.columns, shape.rows>) + shape.rows / 2 <= shape.room); /* barriers: 8 bytes for 16 rows */
        if constexpr (sizeof(S) == 4 || shape.columns <= 128) put<shape.columns, shape.rows, HALF>(a, d);
    });
}

template <typename T, typename S> void lnt_mesa_solve_put(const lnt_mesa_solve<T, S> &a, lnt_cuda *d)
{
    if constexpr (sizeof(S) == 4)
        if (a.half) {
            put_by_width<true>(a, d);
            return;
        }
    put_by_width<false>(a, d);
}

template void lnt_mesa_solve_put(const lnt_mesa_solve<float, float> &, lnt_cuda *);
template void lnt_mesa_solve_put(const lnt_mesa_solve<bf16, float> &, lnt_cuda *);
template void lnt_mesa_solve_put(const lnt_mesa_solve<bf16, bf16> &, lnt_cuda *);

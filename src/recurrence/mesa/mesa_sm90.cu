/* Conjugate gradients on Hopper over all tokens: bf16, K = 64 or 128, level and plain steps. */
#include "recurrence/mesa/mesa_sm90.cuh"

namespace {

/* P = X = rhs / (diag(H_t) + lambda), R = rhs - Op(X). The diagonals are a product with the squared keys, which use the tile of the next chunk. */
template <int K, bool SLOW> __device__ __forceinline__ void guess(rows_of<K, WHOLE> &t, shared_of<K, false> &s, int buf, int group)
{
    const int tid = thread(), c = tid % 4;
    for (int i = tid; i < K / 64 * C * 32; i += GROUP) {
        const float2 k = __bfloat1622float2(((const __nv_bfloat162 *)s.Kc[buf])[i]);
        ((__nv_bfloat162 *)s.Kc[buf ^ 1])[i] = __floats2bfloat162_rn(k.x * k.x, k.y * k.y);
    }
    fence_async();
    group_sync(group);
    uint32_t a[C / 4];
    const float none[C / 2] = {}, e[2] = { s.row[first_row(tid)].x, s.row[first_row(tid) + 8].x };
    decayed<K, SLOW, true>(a, none, s);
    wgmma_fence();
    times_rows<K>(t, a, s.Kc[buf ^ 1], false);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(t.w);
#pragma unroll
    for (int j = 0; j < K / 8; j++) {
        float x[4];
        for (int n = 0; n < 4; n++) {
            const int column = 8 * j + 2 * c + n % 2;
            const float h = __bfloat162float(*(&s.H[buf][column / 64][0][0] + swizzled(column, column % 64))), w = t.w[4 * j + n];
            x[n] = __fdividef(t.r[4 * j + n], (SLOW ? e[n / 2] * (h + w) : e[n / 2] * h + w) + s.lambda[column]);
        }
        for (int i = 0; i < 2; i++) {
            t.p[2 * j + i] = pack_bf16(x[2 * i], x[2 * i + 1]);
            x[2 * i] = low_bf16(t.p[2 * j + i]), x[2 * i + 1] = high_bf16(t.p[2 * j + i]);
        }
        if (j < HELD<K, false>)
            for (int n = 0; n < 4; n++) t.x[4 * j + n] = x[n];
        else
            s.X[j - HELD<K, false>][tid] = *(float4 *)x;
    }
    float pw[2], rz[2];
    const float one[2] = { 1.f, 1.f };
    apply<K, SLOW>(t, s, buf, pw);
    precondition<K>(t, s, one, rz);
    group_sync(group);
}

/* x of the place's rows: rounded through the tile of H, which is done with, so that rows are written 16 bytes a thread. */
template <int K>
__device__ __forceinline__ void leave(const lnt_mesa_cg &a, const place &p, shared_of<K, false> &s, rows_of<K, WHOLE> &t, int buf, int group,
                                      int taken)
{
    const int tid = thread(), c = tid % 4;
    bf16 *stage = &s.H[buf][0][0][0];
    group_sync(group);
#pragma unroll
    for (int j = 0; j < K / 8; j++) {
        float x[4];
        solution<K>(tid, x, t, s, j);
        for (int i = 0; i < 2; i++) {
            *(uint32_t *)(stage + j / 8 * C * 64 + swizzled(first_row(tid) + 8 * i, j % 8 * 8 + 2 * c)) = pack_bf16(x[2 * i], x[2 * i + 1]);
            if (a.x_float && first_row(tid) + 8 * i < p.rows)
                *(float2 *)(a.x_float + ((p.first + first_row(tid) + 8 * i) * a.Hv + p.h) * K + 8 * j + 2 * c) = make_float2(x[2 * i], x[2 * i + 1]);
        }
    }
    group_sync(group);
    leave_rows<K>(tid, a, p, a.x, stage);
    report<K>(tid, a, p, s, t, taken);
}

/* The chunk of an item from its first right side to its last x; the tiles are on their way to `buf`, those of `next` go to the other. */
template <int K, bool SLOW>
__device__ __forceinline__ void work(const lnt_mesa_cg &a, shared_of<K, false> &s, int item, int next, int buf, int group)
{
    rows_of<K, WHOLE> t;
    begin<K>(a, place_of(a, item), s, t, buf, group);
    if (a.diagonal && a.solver == LNT_CG_PLAIN) guess<K, SLOW>(t, s, buf, group);
    if (next < (int)a.chunks * a.Hv) fetch<K>(a, place_of(a, next), s.H[buf ^ 1], s.Kc[buf ^ 1]);
    int taken = 0;
    solve<K, SLOW>(a, s, t, buf, group, taken);
    leave<K>(a, place_of(a, item), s, t, buf, group, taken);
}

/* Level steps of which none is drawn are the general solve's. */
__device__ __forceinline__ bool left_to_the_other(const lnt_mesa_cg &a) { return a.drawn && a.solver == LNT_CG_LEVEL && *a.drawn == 0; }

/* Every chunk with slow gates. */
template <int K> __global__ void __launch_bounds__(GROUP * GROUPS<K>, 1) slow_kernel(const __grid_constant__ lnt_mesa_cg a)
{
    if (left_to_the_other(a)) return;
    extern __shared__ __align__(1024) char raw[];
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0), step = (int)gridDim.x * GROUPS<K>;
    shared_of<K, false> &s = ((shared_of<K, false> *)raw)[group];
    int item = find(a, (int)blockIdx.x * GROUPS<K> + group, step), buf = 0;
    if (item < (int)a.chunks * a.Hv) fetch<K>(a, place_of(a, item), s.H[0], s.Kc[0]);
    while (item < (int)a.chunks * a.Hv) {
        const int next = find(a, item + step, step);
        if (scan_gates(a, place_of(a, item), s, group)) {
            work<K, true>(a, s, item, next, buf, group);
        } else if (next < (int)a.chunks * a.Hv) {
            fetch<K>(a, place_of(a, next), s.H[buf ^ 1], s.Kc[buf ^ 1]);
        }
        item = next, buf ^= 1;
    }
}

/* The others, 16 looked at at once: mostly there are none. A kernel of their own: as a branch of the loop above they cost it 20 registers. */
template <int K> __global__ void __launch_bounds__(GROUP * GROUPS<K>, 1) fast_kernel(const __grid_constant__ lnt_mesa_cg a)
{
    if (left_to_the_other(a)) return;
    extern __shared__ __align__(1024) char raw[];
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0), step = (int)gridDim.x * GROUPS<K>, items = (int)a.chunks * a.Hv;
    shared_of<K, false> &s = ((shared_of<K, false> *)raw)[group];
    for (int64_t first = (int)blockIdx.x * GROUPS<K> + group; first < items; first += 16 * step) {
        uint32_t found = with_fast_gates(a, first, step, group, s.since);
        for (; found; found &= found - 1) {
            const int item = (int)first + (__ffs((int)found) - 1) * step;
            group_sync(group);
            if (scan_gates(a, place_of(a, item), s, group)) continue;
            fetch<K>(a, place_of(a, item), s.H[0], s.Kc[0]);
            work<K, false>(a, s, item, items, 0, group);
        }
    }
}

template <int K> void launch(const lnt_mesa_cg &a, cudaStream_t stream)
{
    const int bytes = (int)sizeof(shared_of<K, false>) * GROUPS<K>;
    int device = 0, sms = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    cudaFuncSetAttribute(slow_kernel<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaFuncSetAttribute(fast_kernel<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const int64_t wanted = lnt_div_up(a.chunks * a.Hv, GROUPS<K>);
    const unsigned ctas = (unsigned)(wanted < sms ? wanted : sms);
    slow_kernel<K><<<ctas, GROUP * GROUPS<K>, (size_t)bytes, stream>>>(a);
    if (a.g) fast_kernel<K><<<ctas, GROUP * GROUPS<K>, (size_t)bytes, stream>>>(a);
}

} // namespace

void lnt_mesa_cg_sm90(const lnt_mesa_cg &a, cudaStream_t stream)
{
    if (a.chunks == 0) return;
    if (a.K == 128)
        launch<128>(a, stream);
    else
        launch<64>(a, stream);
}

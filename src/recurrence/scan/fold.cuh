/* Several sums over lanes at once. */
#ifndef LNT_SCAN_FOLD_CUH
#define LNT_SCAN_FOLD_CUH

#include "device/cuda.cuh"

namespace {

/* v[0 .. N-1] each summed over the lanes whose numbers differ in the bits O, O / 2 .. LAST: a lane is left with N over their number of the sums (one,
 * if that is less), the higher ones where the higher bits are set. */
template <int N, int O, int LAST, int SIZE> __device__ __forceinline__ void fold(float (&v)[SIZE])
{
    if constexpr (O >= LAST && N > 1) {
        const bool up = threadIdx.x & O;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float keep = up ? v[i + N / 2] : v[i], send = up ? v[i] : v[i + N / 2];
            v[i] = keep + __shfl_xor_sync(~0u, send, O);
        }
        fold<N / 2, O / 2, LAST>(v);
    } else if constexpr (O >= LAST) {
        v[0] += __shfl_xor_sync(~0u, v[0], O);
        fold<1, O / 2, LAST>(v);
    }
}

} // namespace

#endif

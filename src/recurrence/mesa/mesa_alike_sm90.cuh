/* Steps on Hopper of rows that all take the same number, more than they need: no row ends, so that nothing looks whether one does, and the
 * preconditioner is in what the steps read (`prepare`). Otherwise as mesa_sm90.cuh. */
#ifndef LNT_MESA_ALIKE_SM90_CUH
#define LNT_MESA_ALIKE_SM90_CUH

#include "recurrence/mesa/mesa_sm90.cuh"

namespace {

/* R -= alpha W (not the first time, when there is no W); r.r of the two rows. */
template <int K, bool FIRST = false, int W> __device__ __forceinline__ void descend(rows_of<K, W> &t, const float (&alpha)[2], float (&rr)[2])
{
    float sum[2][2] = {};
#pragma unroll
    for (int i = 0; i < K / 2; i++) {
        if (!FIRST) t.r[i] -= alpha[i / 2 % 2] * t.w[i];
        sum[i / 2 % 2][i % 2] += t.r[i] * t.r[i];
    }
    for (int i = 0; i < 2; i++) rr[i] = quad_sum(sum[i][0] + sum[i][1]);
}

/* All of `most` steps, of S R and X / S: on entry t.r = S rhs, x = 0. `whole`: R of the end is wanted. taken: as `solve`'s. EMPTY: H is 0. */
template <int K, bool SLOW, bool EMPTY, int W>
__device__ __forceinline__ void solve_alike(shared_of<K, (W > WHOLE)> &s, rows_of<K, W> &t, int buf, int most, bool whole, int &taken)
{
    float d[2], alpha[2] = {}, beta[2] = {};
    descend<K, true>(t, alpha, d);
#pragma unroll
    for (int i = 0; i < K / 4; i++) t.p[i] = pack_bf16(t.r[2 * i], t.r[2 * i + 1]);
    for (int left = most; left > 0; left--) {
        float pw[2], rr[2];
        apply<K, SLOW, EMPTY>(t, s, buf, pw);
        for (int i = 0; i < 2; i++) {
            alpha[i] = (d[i] > 0.f && pw[i] > 0.f ? __fdividef(d[i], pw[i]) : 0.f) + lnt_mesa_lost(d[i], pw[i]);
            if (alpha[i] > 0.f) taken += i ? 65536 : 1;
        }
        if (left == 1 && !whole) {
            advance<K, true, true>(t, s, alpha, beta);
            break;
        }
        descend<K>(t, alpha, rr);
        for (int i = 0; i < 2; i++) {
            const bool more = alpha[i] > 0.f; /* not NaN either */
            beta[i] = more ? __fdividef(rr[i], d[i]) : 0.f;
            d[i] = more ? rr[i] : 0.f;
        }
        advance<K, true>(t, s, alpha, beta);
    }
}

/* Two bf16 times x and y, both powers of 2. */
__device__ __forceinline__ uint32_t times(uint32_t both, float x, float y) { return pack_bf16(low_bf16(both) * x, high_bf16(both) * y); }
/* The tiles, and rows that are there, times S: S H S, K S, S R. Between barriers of the group, those of wgmma's proxy included. */
template <int K, int W> __device__ __forceinline__ void scale(rows_of<K, W> &t, shared_of<K, (W > WHOLE)> &s, int buf)
{
    const int tid = thread();
#pragma unroll 1
    for (int i = tid; i < (K + C) * K / 8; i += GROUP) {
        const bool key = i >= K * K / 8;
        const int at = key ? i - K * K / 8 : i, rows = key ? C : K, row = at / 8 % rows, column = at / (8 * rows) * 64 + (at % 8 ^ (row & 7)) * 8;
        uint4 *to = key ? (uint4 *)&s.Kc[buf][0][0][0] + at : (uint4 *)&s.H[buf][0][0][0] + at;
        const float *S = &s.level[spot(column)], own = key ? 1.f : s.level[spot(row)];
        uint4 x = *to;
        x.x = times(x.x, own * S[0], own * S[1]), x.y = times(x.y, own * S[4], own * S[5]);
        x.z = times(x.z, own * S[8], own * S[9]), x.w = times(x.w, own * S[12], own * S[13]);
        *to = x;
    }
#pragma unroll
    for (int i = 0; i < K / 2; i++) t.r[i] *= s.level[i / 8 * 16 + tid % 4 * 4 + i / 4 % 2 * 2 + i % 2];
}
/* X and R as they are, from X / S and S R. */
template <int K, int W> __device__ __forceinline__ void unscale(rows_of<K, W> &t, shared_of<K, (W > WHOLE)> &s)
{
    constexpr int held = HELD<K, (W > WHOLE)>;
    const int tid = thread();
#pragma unroll
    for (int j = 0; j < K / 8; j++) {
        const float2 S = *(const float2 *)&s.level[j / 2 * 16 + tid % 4 * 4 + j % 2 * 2];
        float *waiting = (float *)&s.X[j < held ? 0 : j - held][tid];
        for (int n = 0; n < 4; n++) {
            const float one = n % 2 ? S.y : S.x;
            t.r[4 * j + n] *= __fdividef(1.f, one);
            if (j < held)
                t.x[j < held ? 4 * j + n : 0] *= one;
            else
                waiting[n] *= one;
        }
    }
}

} // namespace

#endif

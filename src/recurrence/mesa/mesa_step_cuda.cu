/* The Mesa core token by token: one CTA a value head, for all tokens of the call. Equations: operators.md#mesa.
 *
 * A thread has a column of H and of G, W/PARTS rows of it, in registers where K and V are at most W = 64 or 128, else in the state's memory (each
 * word touched by its own thread alone). H is symmetric, so H p is a sum over rows for every column: p from shared memory, the parts' sums through
 * it. What belongs to a column (x, r, p) every part computes alike. */
#include "recurrence/mesa/mesa_cuda.cuh"

#include <float.h>

#include "recurrence/decay/decay_cuda.cuh"

extern "C" {
#include "recurrence/mesa/mesa_gpu.h"
}

namespace {

template <typename T> struct step_args {
    const int64_t *cu;
    const T *q, *k, *v;
    const float *g, *beta, *lambda, *h0, *s0;
    float *hT, *sT; /* NULL: not wanted; never NULL where the states do not fit the registers */
    float *x, *taken, *residual;
    T *o;
    int64_t H_stride, G_stride; /* of sequences */
    int Hq, Hv, K, V, steps;
    const int *drawn; /* NULL: steps */
    float tolerance2, absolute;
    int32_t solver;
    bool diagonal, half;
};

template <int W> struct step_shared {
    static constexpr int parts = W == 256 ? 2 : 4, warps = W / 32;
    float p[W], k[W], diagonal[W], sums[3][2][warps];
    float columns[parts][W];
};

/* Sums (N = 1: the smallest if `least`) over the columns, the same bits in all threads. `round` tells apart calls that no barrier parts. */
template <int W, int N> __device__ __forceinline__ void over_columns(step_shared<W> &s, int round, float (&x)[N], bool least = false)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (least)
            for (int o = 16; o; o >>= 1) x[n] = lnt_mesa_least(x[n], __shfl_xor_sync(0xffffffffu, x[n], o));
        else x[n] = warp_sum(x[n]);
        if (lane == 0 && warp < step_shared<W>::warps) s.sums[round][n][warp] = x[n];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; n++) {
        x[n] = s.sums[round][n][0];
        for (int w = 1; w < step_shared<W>::warps; w++) x[n] = least ? lnt_mesa_least(x[n], s.sums[round][n][w]) : x[n] + s.sums[round][n][w];
    }
}

/* sum_i rows_i S[i][column], rows from s.p; begins (rows are there) and ends with barriers inside. */
template <int W, int UNROLL, typename F> __device__ __forceinline__ float times(step_shared<W> &s, int part, int column, int rows, bool half, F S)
{
    constexpr int ROWS = W / step_shared<W>::parts;
    __syncthreads();
    float sum[4] = {};
#pragma unroll (UNROLL / 4)
    for (int i = 0; i < ROWS; i += 4) {
        if (UNROLL < ROWS && part * ROWS + i >= rows) break; /* in registers, what lies beyond is 0 */
        float p[4];
        load_pack<4>(p, &s.p[part * ROWS + i]);
        if (half)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j] += p[j] * lnt_to_half(S(i + j));
        else
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j] += p[j] * S(i + j);
    }
    s.columns[part][column] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    __syncthreads();
    float all = s.columns[0][column];
#pragma unroll
    for (int i = 1; i < step_shared<W>::parts; i++) all += s.columns[i][column];
    return all;
}

/* All tokens of a value head. Long: H, G and the step's numbers are in registers from the first token to the last. */
template <typename T, int W, bool HELD>
__global__ __launch_bounds__(W * step_shared<W>::parts) void mesa_step(const __grid_constant__ step_args<T> a)
{
    constexpr int ROWS = W / step_shared<W>::parts, UNROLL = HELD ? ROWS : 8;
    __shared__ __align__(16) step_shared<W> s;
    const int column = (int)threadIdx.x % W, part = (int)threadIdx.x / W, first = part * ROWS, K = a.K, V = a.V;
    const int h = (int)(blockIdx.x % a.Hv), hq = (int)((int64_t)h * a.Hq / a.Hv);
    const int64_t n = blockIdx.x / a.Hv;
    const int64_t H0 = n * a.H_stride + ((int64_t)h * K + first) * K + column, G0 = n * a.G_stride + ((int64_t)h * K + first) * V + column;
    const bool in_H = column < K, in_G = column < V;
    float H[HELD ? ROWS : 1], G[HELD ? ROWS : 1];
    const int rows = K - first < ROWS ? K - first : ROWS; /* its own; may be negative */
    if constexpr (HELD) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) H[i] = in_H && i < rows && a.h0 ? a.h0[H0 + (int64_t)i * K] : 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i++) G[i] = in_G && i < rows && a.s0 ? a.s0[G0 + (int64_t)i * V] : 0.0f;
    } else {
        for (int i = 0; i < rows; i++) {
            if (in_H) a.hT[H0 + (int64_t)i * K] = a.h0 ? a.h0[H0 + (int64_t)i * K] : 0.0f;
            if (in_G) a.sT[G0 + (int64_t)i * V] = a.s0 ? a.s0[G0 + (int64_t)i * V] : 0.0f;
        }
    }
    auto at_H = [&](int i) -> float {
        if constexpr (HELD) return H[i];
        else return in_H && i < rows ? a.hT[H0 + (int64_t)i * K] : 0.0f;
    };
    auto at_G = [&](int i) -> float {
        if constexpr (HELD) return G[i];
        else return in_G && i < rows ? a.sT[G0 + (int64_t)i * V] : 0.0f;
    };
    const lnt_mesa_course course = lnt_mesa_course_now(a);
    const float lambda = in_H && a.lambda ? a.lambda[(int64_t)h * K + column] : 1.0f;

    for (int64_t t = a.cu[n]; t < a.cu[n + 1]; t++) {
        const int64_t token = t * a.Hv + h;
        const float gate = a.g[token], beta = a.beta[token], less = expm1f(lnt_gate(gate));
        float q = in_H ? to_float(a.q[(t * a.Hq + hq) * K + column]) : 0.0f, k = in_H ? to_float(a.k[(t * a.Hq + hq) * K + column]) : 0.0f;
        if (a.half) {
            q = lnt_to_half(q);
            k = lnt_to_half(k);
        }
        const float v = in_G ? to_float(a.v[token * V + column]) : 0.0f;
        __syncthreads(); /* the token before is done with shared memory */
        if (part == 0) s.k[column] = beta * k;
        __syncthreads();
#pragma unroll (UNROLL)
        for (int i = 0; i < ROWS; i++) {
            if (!HELD && i >= rows) break;
            const float kb = s.k[first + i], y = fmaf(kb, k, fmaf(less, at_H(i), at_H(i))), z = fmaf(kb, v, fmaf(less, at_G(i), at_G(i)));
            if (first + i == column) s.diagonal[column] = y;
            if constexpr (HELD) {
                H[i] = y;
                G[i] = z;
            } else {
                if (in_H) a.hT[H0 + (int64_t)i * K] = y;
                if (in_G) a.sT[G0 + (int64_t)i * V] = z;
            }
        }
        __syncthreads();
        const float diagonal = in_H ? s.diagonal[column] : FLT_MAX;
        float one[1] = { diagonal }, m = diagonal;
        if (course.solver == LNT_CG_LEVEL) {
            over_columns(s, 0, one, true);
            m = one[0];
        }
        m = 1.0f / (m + lambda);

        float x = course.from_guess ? m * q : 0.0f, r = q, start[2] = { q * q, 0.0f };
        if (course.from_guess) {
            if (part == 0) s.p[column] = a.half ? lnt_to_half(x) : x;
            r -= times<W, UNROLL>(s, part, column, K, a.half, at_H) + lambda * x;
        }
        if (course.solver > LNT_CG_JACOBI) m = 1.0f;
        float p = m * r;
        start[1] = p * r;
        over_columns(s, 1, start);
        const float size = start[0];
        float delta = start[1];
        int taken = 0;
        while (taken < course.most) {
            if (part == 0) s.p[column] = a.half ? lnt_to_half(p) : p;
            const float w = times<W, UNROLL>(s, part, column, K, a.half, at_H) + lambda * p;
            one[0] = p * w;
            over_columns(s, 0, one);
            const bool useful = delta > 0 && one[0] > 0 && one[0] < INFINITY;
            if (!useful && !(a.absolute > 0 && lnt_mesa_lost(delta, one[0]) == 0)) {
                const float lost = lnt_mesa_lost(delta, one[0]); /* 0 but for what is no number */
                x += lost;
                r += lost;
                break;
            }
            const float alpha = delta / (one[0] + a.absolute);
            x += alpha * p;
            r -= alpha * w;
            taken++;
            float next[2] = { r * (m * r), r * r };
            over_columns(s, 1, next);
            if (next[1] <= a.tolerance2 * size) break;
            p = m * r + next[0] / (delta + a.absolute) * p;
            delta = next[0];
        }
        if (a.residual) {
            one[0] = r * r;
            over_columns(s, 2, one);
        }
        if (threadIdx.x == 0 && a.taken) a.taken[token] = (float)(taken > course.free_steps ? taken - course.free_steps : 0);
        if (threadIdx.x == 0 && a.residual) a.residual[token] = lnt_mesa_left(one[0], size);
        if (a.half) x = lnt_to_half(x);
        if (part == 0 && in_H && a.x) a.x[token * K + column] = x;
        if (part == 0) s.p[column] = x;
        const float o = times<W, UNROLL>(s, part, column, K, false, at_G);
        if (part == 0 && in_G) a.o[token * V + column] = from_float<T>(o);
    }
    if constexpr (HELD) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (in_H && i < rows && a.hT) a.hT[H0 + (int64_t)i * K] = H[i];
            if (in_G && i < rows && a.sT) a.sT[G0 + (int64_t)i * V] = G[i];
        }
    }
}

bool wide(const lnt_mesa_args *a) { return a->K > 128 || a->V > 128; }

template <typename T> void put(const lnt_mesa_args *r, int64_t stride, const lnt_mesa_solve<T, T> &solve, lnt_cuda *d)
{
    float *states = (float *)r->workspace;
    const int64_t heads = r->sequences * r->Hv;
    step_args<T> a = {};
    a.cu = r->cu_seqlens_device;
    a.q = (const T *)r->q;
    a.k = (const T *)r->k;
    a.v = (const T *)r->v;
    a.g = (const float *)r->g;
    a.beta = (const float *)r->beta;
    a.lambda = (const float *)r->lambda;
    a.h0 = (const float *)r->h0;
    a.s0 = (const float *)r->s0;
    a.hT = (float *)r->hT;
    a.sT = (float *)r->sT;
    if (wide(r) && !a.hT) a.hT = states;
    if (wide(r) && !a.sT) a.sT = states + heads * r->K * r->K;
    a.x = (float *)r->x;
    a.taken = (float *)r->steps;
    a.residual = (float *)r->residual;
    a.o = (T *)r->o;
    a.H_stride = stride ? stride : (int64_t)r->Hv * r->K * r->K;
    a.G_stride = stride ? stride : (int64_t)r->Hv * r->K * r->V;
    a.Hq = r->Hq;
    a.Hv = r->Hv;
    a.K = r->K;
    a.V = r->V;
    a.steps = solve.steps;
    a.drawn = solve.drawn;
    a.tolerance2 = solve.tolerance2;
    a.absolute = solve.absolute;
    a.solver = solve.solver;
    a.diagonal = solve.diagonal;
    a.half = solve.half;
    if (!heads) return;
    if (wide(r))
        mesa_step<T, 256, false><<<(unsigned)heads, 512, 0, d->stream>>>(a);
    else if (r->K > 64 || r->V > 64)
        mesa_step<T, 128, true><<<(unsigned)heads, 512, 0, d->stream>>>(a);
    else
        mesa_step<T, 64, true><<<(unsigned)heads, 256, 0, d->stream>>>(a);
    lnt_cuda_note(d, cudaGetLastError());
}

} // namespace

size_t lnt_mesa_step_bytes(const lnt_mesa_args *a)
{
    return wide(a) ? (size_t)a->sequences * (size_t)a->Hv * (size_t)a->K * (size_t)(a->K + a->V) * sizeof(float) : 0;
}

void lnt_mesa_step_put(const lnt_mesa_args *a, lnt_cuda *d) { LNT_BY_TYPE(a->dtype, T, put<T>(a, 0, lnt_mesa_options_of<T, T>(a), d)); }

extern "C" void lnt_mesa_step_states(const lnt_mesa_args *a, int64_t stride, lnt_device *d)
{
    LNT_BY_TYPE(a->dtype, T, put<T>(a, stride, lnt_mesa_options_of<T, T>(a), (lnt_cuda *)d));
}

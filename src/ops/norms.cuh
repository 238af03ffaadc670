/* Norms of rows on a GPU, forward: what their kernels (norms_cuda.cu) and a kernel of a whole step (recurrence/persistent_sm90.cu) do alike. */
#ifndef LNT_OPS_NORMS_CUH
#define LNT_OPS_NORMS_CUH

#include "device/persistent.cuh"
#include "ops/rows.cuh"

enum norm_kind { RMS, L2, SUM };
/* SUMMED: x = a + b is made here, and its gradient handed on; GATE_FIRST: x = silu(gate) u is, and x, dx are u and its gradient */
enum norm_form { ALONE, GATED, SUMMED, GATE_FIRST };

struct norm_args {
    lnt_view x, gate, y, dy, dx, dg;
    lnt_view a, b, da, db; /* SUMMED */
    const float *w;  /* [d], NULL: none */
    float centre;    /* what is added to it */
    float *part;     /* [blocks, d], NULL: dw is not wanted */
    int64_t rows;
    int64_t ld_gate, ld_dg, ld_u, ld_du; /* from a row to the next, of the gate, and GATE_FIRST of x and dx */
    int d, units;    /* columns, and units of columns, of a row */
    int lanes;       /* of a team */
    int kind, act;
    float eps, mean; /* mean: 1/d for RMS, 1 for L2 */
    bool add_x, add_g, add_a, add_b;
};

template <class P> __device__ __forceinline__ void get_centred(float (&w)[P::U], const norm_args &a, int c)
{
    get_weights(w, a.w + c);
#pragma unroll
    for (int j = 0; j < P::U; j++) w[j] += a.centre;
}

/* x = silu(g) u of one unit, from u in x, rounded as it would be stored; sigmoid: of g. */
template <class P> __device__ __forceinline__ void gate_first(const norm_args &a, float (&x)[P::U], const float (&g)[P::U], const float *sigmoid)
{
#pragma unroll
    for (int u = 0; u < P::U; u++) x[u] *= g[u] * sigmoid[u];
    const lnt_raw<P> stored = unit_from<P>(x, a.x.f32);
    widen<P>(x, stored, a.x.f32);
}

/* The sums of two numbers over a team, the same bits in all its threads. A block's shared memory takes turns: one barrier a call is enough. */
template <bool WIDE> __device__ __forceinline__ void team_sums(float &a, float &b, int lanes, int turn)
{
    for (int o = WIDE ? 16 : lanes / 2; o; o >>= 1) {
        a += __shfl_xor_sync(0xffffffffu, a, o);
        b += __shfl_xor_sync(0xffffffffu, b, o);
    }
    if constexpr (WIDE) {
        __shared__ float2 part[2][32];
        const int warps = (int)blockDim.x / 32;
        if (threadIdx.x % 32 == 0) part[turn & 1][threadIdx.x / 32] = make_float2(a, b);
        __syncthreads();
        a = b = 0.0f;
        for (int w = 0; w < warps; w++) a += part[turn & 1][w].x, b += part[turn & 1][w].y; /* sixteen read at once: no faster in a step */
    }
}

/* r, from s = sum x^2 (or sum x). */
__device__ __forceinline__ float inverse_of(const norm_args &a, float s)
{
    return a.kind == SUM ? 1.0f / (s + a.eps) : 1.0f / sqrtf(s * a.mean + a.eps);
}

template <class P, int N, bool WIDE, norm_form FORM, class Work>
__device__ __forceinline__ void norm_rows(const norm_args &a, int block, const Work &work)
{
    const int lanes = WIDE ? (int)blockDim.x : a.lanes, lane = WIDE ? (int)threadIdx.x : (int)threadIdx.x & (lanes - 1);
    const int64_t row = WIDE ? block : ((int64_t)block * 256 + threadIdx.x) / lanes, at = row * a.d;
    const int units = row < a.rows ? a.units : 0;
    float w[N][P::U];
    work.begin();
#pragma unroll
    for (int i = 0; i < N; i++)
        if (a.w && lane + i * lanes < units) get_centred<P>(w[i], a, (lane + i * lanes) * P::U);
    work.wait();
    lnt_raw<P> x[N], g[FORM == ALONE ? 1 : N];
    float v[P::U], s = 0.0f, none = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + i * lanes < units) {
            x[i] = fetch<P>(FORM == SUMMED ? a.a : a.x, (FORM == GATE_FIRST ? row * a.ld_u : at) + (lane + i * lanes) * P::U);
            if constexpr (FORM == SUMMED) g[i] = fetch<P>(a.b, at + (lane + i * lanes) * P::U);
            if constexpr (FORM == GATED || FORM == GATE_FIRST) g[i] = fetch<P>(a.gate, row * a.ld_gate + (lane + i * lanes) * P::U);
        }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + i * lanes < units) {
            if constexpr (FORM == SUMMED) {
                float b[P::U];
                widen<P>(v, x[i], a.a.f32);
                widen<P>(b, g[i], a.b.f32);
#pragma unroll
                for (int u = 0; u < P::U; u++) v[u] += b[u];
                x[i] = unit_from<P>(v, a.x.f32);
                put_raw<P>(a.x, at + (lane + i * lanes) * P::U, x[i]);
            }
            widen<P>(v, x[i], a.x.f32);
            if constexpr (FORM == GATE_FIRST) {
                float gate[P::U], sigmoid[P::U];
                widen<P>(gate, g[i], a.gate.f32);
#pragma unroll
                for (int u = 0; u < P::U; u++) sigmoid[u] = sigmoid_of(gate[u]);
                gate_first<P>(a, v, gate, sigmoid);
                x[i] = unit_from<P>(v, a.x.f32);
            }
#pragma unroll
            for (int u = 0; u < P::U; u++) s += a.kind == SUM ? v[u] : v[u] * v[u];
        }
    team_sums<WIDE>(s, none, lanes, 0);
    const float r = inverse_of(a, s);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + i * lanes < units) {
            const int c = (lane + i * lanes) * P::U;
            widen<P>(v, x[i], a.x.f32);
#pragma unroll
            for (int u = 0; u < P::U; u++) v[u] *= a.w ? r * w[i][u] : r;
            if constexpr (FORM == GATED) {
                float gate[P::U];
                widen<P>(gate, g[i], a.gate.f32);
                gate_all(gate, a.act);
#pragma unroll
                for (int u = 0; u < P::U; u++) v[u] *= gate[u];
            }
            put<P>(a.y, at + c, v);
        }
}

/* As a piece of a recorded step: heads, with a gate or without. */
struct norm_piece {
    norm_args args;
    bool gated;
    template <class Work> __device__ __forceinline__ void step(int b, const Work &work) const
    {
        if (gated)
            norm_rows<half8, 2, false, GATED>(args, b, work);
        else
            norm_rows<half8, 2, false, ALONE>(args, b, work);
    }
};

#endif

/* Softmax cross entropy over rows of logits, and the soft cap. A block has one row and reads it twice: for its largest element and the sum of
 * exponentials, kept together, and, out of the second-level cache, for the gradient. Floor: z read once, dz written once. Targets outside the
 * vocabulary are left out. */
#include "ops/rows.cuh"

enum { XENT_THREADS = 512 };

struct xent_args {
    lnt_view z, dz;
    const int32_t *target;
    float *loss;
    int64_t ld;
    int vocab;
    float cap, scale; /* cap 0: none */
};

__device__ __forceinline__ float capped(float z, float cap) { return cap > 0.0f ? cap * tanhf(z / cap) : z; }

/* (m, s) stands for s e^m; the sum of two. */
__device__ __forceinline__ void join(float &m, float &s, float m2, float s2)
{
    const float top = fmaxf(m, m2);
    if (top > -INFINITY) s = s * expf(m - top) + s2 * expf(m2 - top); /* both empty: nothing */
    m = top;
}

template <class P> __device__ __forceinline__ void get_logits(const xent_args &a, int64_t row, int i, float (&z)[P::U])
{
    get<P>(z, a.z, row * a.ld + i);
#pragma unroll
    for (int u = 0; u < P::U; u++) z[u] = capped(z[u], a.cap);
}

/* work(logits, first column) of a thread's units of a row, in order: four are on their way before the first is looked at. */
template <class P, class Work> __device__ __forceinline__ void each_unit(const xent_args &a, int64_t row, const Work &work)
{
    enum { AHEAD = 4 };
    const lnt_view logits = {a.z.p, true};
    const int units = a.vocab / P::U;
    for (int first = (int)threadIdx.x; first < units; first += AHEAD * XENT_THREADS) {
        lnt_raw<P> raw[AHEAD];
#pragma unroll
        for (int b = 0; b < AHEAD; b++)
            if (first + b * XENT_THREADS < units) raw[b] = fetch<P>(logits, row * a.ld + (first + b * XENT_THREADS) * P::U);
#pragma unroll
        for (int b = 0; b < AHEAD; b++) {
            float z[P::U];
            if (first + b * XENT_THREADS >= units) return;
            widen<P>(z, raw[b], true);
#pragma unroll
            for (int u = 0; u < P::U; u++) z[u] = capped(z[u], a.cap);
            work(z, (first + b * XENT_THREADS) * P::U);
        }
    }
}

/* Largest element and sum of exponentials of a row, the same in all threads. */
template <class P> __device__ __forceinline__ void row_sum(const xent_args &a, int64_t row, float &m, float &s)
{
    __shared__ float2 part[XENT_THREADS / 32];
    m = -INFINITY, s = 0.0f;
    const int units = a.vocab / P::U;
    each_unit<P>(a, row, [&](const float(&z)[P::U], int) {
        float top = m;
#pragma unroll
        for (int u = 0; u < P::U; u++) top = fmaxf(top, z[u]);
        if (top > m) s *= expf(m - top), m = top;
#pragma unroll
        for (int u = 0; u < P::U; u++) s += __expf(z[u] - m);
    });
    if (units * P::U + (int)threadIdx.x < a.vocab) {
        float z[1];
        get_logits<any1>(a, row, units * P::U + (int)threadIdx.x, z);
        join(m, s, z[0], 1.0f);
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) join(m, s, __shfl_xor_sync(0xffffffffu, m, o), __shfl_xor_sync(0xffffffffu, s, o));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = make_float2(m, s);
    __syncthreads();
    m = part[0].x, s = part[0].y;
    for (int w = 1; w < XENT_THREADS / 32; w++) join(m, s, part[w].x, part[w].y);
}

/* A unit of the gradient. In bf16, beside z, it leaves the second-level cache first: rows that are still to be read again stay there. */
template <class P> __device__ __forceinline__ void put_gradient(lnt_view v, int64_t i, const float (&x)[P::U])
{
    const lnt_raw<P> r = unit_from<P>(x, v.f32);
    if constexpr (P::U == 4)
        if (!v.f32) return __stcs((uint2 *)(v.p + 2 * i), make_uint2(r.w[0], r.w[1]));
    put_raw<P>(v, i, r);
}

template <class P>
__device__ __forceinline__ void gradient_at(const xent_args &a, const float (&z)[P::U], int64_t row, int i, int target, float m, float scale)
{
    float d[P::U];
#pragma unroll
    for (int u = 0; u < P::U; u++) {
        d[u] = __expf(z[u] - m) * scale;
        if (i + u == target) d[u] -= a.scale;
        if (a.cap > 0.0f) d[u] *= 1.0f - z[u] * z[u] / (a.cap * a.cap);
    }
    put_gradient<P>(a.dz, row * a.ld + i, d);
}

/* Two blocks a multiprocessor: the rows of all of them (float32 of a vocabulary of 32000: 34 MB) stay in the second-level cache until they are
 * read again. */
template <class P> __global__ void __launch_bounds__(XENT_THREADS, 2) xent_kernel(const __grid_constant__ xent_args a)
{
    const int64_t row = blockIdx.x;
    const int target = a.target[row], units = a.vocab / P::U;
    if (target < 0 || target >= a.vocab) {
        if (!threadIdx.x) a.loss[row] = 0.0f;
        const float zero[1] = {0.0f};
        for (int i = (int)threadIdx.x; i < a.vocab && a.dz.p; i += XENT_THREADS) put<any1>(a.dz, row * a.ld + i, zero);
        return;
    }
    float m, s, at_target[1];
    get_logits<any1>(a, row, target, at_target); /* before dz, which may lie where z is */
    row_sum<P>(a, row, m, s);
    if (!threadIdx.x) a.loss[row] = logf(s) + (m - at_target[0]);
    if (!a.dz.p) return;
    const float scale = a.scale / s;
    each_unit<P>(a, row, [&](const float(&z)[P::U], int i) { gradient_at<P>(a, z, row, i, target, m, scale); });
    if (units * P::U + (int)threadIdx.x < a.vocab) {
        float z[1];
        get_logits<any1>(a, row, units * P::U + (int)threadIdx.x, z);
        gradient_at<any1>(a, z, row, units * P::U + (int)threadIdx.x, target, m, scale);
    }
}

extern "C" void lnt_xent_cuda(lnt_ctx *c, const lnt_xent_args *x)
{
    if (x->rows <= 0) return;
    const xent_args a = {view_on(x->z), {(char *)x->dz, x->dz_type == LINNET_F32}, x->target, x->loss, x->ld, (int)x->vocab, (float)x->softcap,
                         x->scale};
    const bool aligned = x->ld % 4 == 0 && (uintptr_t)x->z % 16 == 0 && (uintptr_t)x->dz % 16 == 0;
    if (aligned)
        xent_kernel<any4><<<(unsigned)x->rows, XENT_THREADS, 0, lnt_stream(c)>>>(a);
    else
        xent_kernel<any1><<<(unsigned)x->rows, XENT_THREADS, 0, lnt_stream(c)>>>(a);
}

/* ---- soft cap: y = cap tanh(z / cap),  dz = dy (1 - (y / cap)^2) ------------------------------------------------------------------------ */

struct cap_map {
    static constexpr int IN = 1, OUT = 1;
    float cap;
    template <int U> __device__ void operator()(const float (&in)[1][U], float (&out)[1][U], int64_t) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = capped(in[0][u], cap);
    }
};

struct cap_slope {
    static constexpr int IN = 2, OUT = 1; /* dy, y */
    float f;                              /* cap^-2 */
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[1][U], int64_t) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u] * (1.0f - in[1][u] * in[1][u] * f);
    }
};

static lnt_tensor flat(const void *p, lnt_dtype t, int64_t n) { return {(void *)p, t, 1, n, 1, n}; }

extern "C" void lnt_softcap_cuda(lnt_ctx *c, float *z, int64_t n, double cap)
{
    const lnt_tensor t = flat(z, LINNET_F32, n);
    point_run(c, cap_map{(float)cap}, n, {&t}, {&t}, NULL);
}

extern "C" void lnt_softcap_back_cuda(lnt_ctx *c, void *dz, lnt_dtype type, const float *dy, const float *y, int64_t n, double cap)
{
    const lnt_tensor g = flat(dy, LINNET_F32, n), v = flat(y, LINNET_F32, n), d = flat(dz, type, n);
    point_run(c, cap_slope{cap > 0 ? (float)(1.0 / (cap * cap)) : 0.0f}, n, {&g, &v}, {&d}, NULL);
}

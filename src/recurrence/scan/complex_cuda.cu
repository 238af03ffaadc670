/* Complex scans on a GPU: walks (walk.cuh) over rows of real parts beside rows of imaginary ones. */
#include "recurrence/scan/walk.cuh"

namespace {

/* What of a token both have. */
template <typename T> struct complex_token {
    pair<float> log_a, angle;
    pair<T> x[2], before[2];
};
template <typename T, bool BACK, bool WHOLE>
__device__ __forceinline__ void fetch_complex(complex_token<T> &to, const walk_args &p, const place &at, const rows_at &r, int off, bool real,
                                              bool first)
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        to.x[k] = take<WHOLE, 2>((const T *)(BACK ? p.dout : p.x), p, at, r, off, k, real);
        if (BACK) to.before[k] = take<WHOLE, 2>((const T *)p.before, p, at, r, off - 1, k, real && !first);
    }
}
template <typename T, bool WHOLE>
__device__ __forceinline__ void put_dx(const walk_args &p, const place &at, const rows_at &r, int off, const number<2> (&lam)[V])
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float dx[V] = { lam[0].x[k], lam[1].x[k] };
        put<WHOLE, 2>((T *)p.out, p, at, r, off, k, dx);
    }
}
/* z conj(h): the gradients of log_a and of the angle. */
__device__ __forceinline__ number<2> of_decay(number<2> z, number<2> h)
{
    return { { fmaf(z.x[0], h.x[0], z.x[1] * h.x[1]), fmaf(z.x[1], h.x[0], -z.x[0] * h.x[1]) } };
}

template <typename T_, bool BACK_> struct complex_rule {
    using T = T_;
    static constexpr bool BACK = BACK_, LASTING = false;
    static constexpr int P = 2, EACH = 4, SUMS = 0;
    using token = complex_token<T>;
    struct kept {};

    template <bool WHOLE>
    static __device__ __forceinline__ void fetch(token &to, const walk_args &p, const place &at, const rows_at &r, int off, bool real, bool first)
    {
        to.log_a = take<WHOLE, 1>(p.log_a, p, at, r, off, 0, real), to.angle = take<WHOLE, 1>(p.other, p, at, r, off, 0, real);
        fetch_complex<T, BACK, WHOLE>(to, p, at, r, off, real, first);
    }
    __device__ __forceinline__ void begin(const walk_args &, const place &, void *) {}
    __device__ __forceinline__ void open(const token &of, int c, bool, number<2> &e, number<2> &x, kept &) const
    {
        float sine, cosine;
        sincosf(of.angle.at(c), &sine, &cosine);
        const float size = expf(of.log_a.at(c));
        e = { { size * cosine, BACK ? -size * sine : size * sine } };
        x = { { of.x[0].at(c), of.x[1].at(c) } };
    }
    __device__ __forceinline__ number<2> decay(number<2> e, int) const { return e; }
    __device__ __forceinline__ number<2> quick(number<2> e, int) const { return e; }
    template <bool WHOLE>
    __device__ __forceinline__ void emit(const walk_args &p, const place &at, const rows_at &r, int off, const token &, const kept (&)[V], bool whole,
                                         const number<2> (&before)[V], const number<2> (&lam)[V], const number<2> (&z)[V])
    {
        put_dx<T, WHOLE>(p, at, r, off, lam);
        const number<2> d[V] = { of_decay(z[0], before[0]), of_decay(z[1], before[1]) };
        const float dlog_a[V] = { d[0].x[0], d[1].x[0] }, dangle[V] = { d[0].x[1], d[1].x[1] };
        put<WHOLE, 1>(p.dlog_a, p, at, r, off, 0, dlog_a);
        put<WHOLE, 1>(p.dother, p, at, r, off, 0, dangle);
    }
};

/* The decay of `tokens` tokens. What a lasting one lacks by rounding, it lacks at every token. */
template <bool BACK> __device__ fine_decay lasting(const walk_args &p, int channel, int tokens)
{
    if (channel >= p.D) return {};
    const double angle = tokens * (double)p.other[channel], size = exp(tokens * (double)p.log_a[channel]);
    const double part[2] = { size * cos(angle), BACK ? -size * sin(angle) : size * sin(angle) };
    fine_decay a;
#pragma unroll
    for (int k = 0; k < 2; k++) a.high.x[k] = (float)part[k], a.low.x[k] = (float)(part[k] - (double)a.high.x[k]);
    return a;
}

template <typename T_, bool BACK_> struct lru_rule {
    using T = T_;
    static constexpr bool BACK = BACK_, LASTING = true;
    static constexpr int P = 2, EACH = BACK ? 4 : 8, SUMS = BACK ? 2 : 0;
    using token = complex_token<T>;
    struct kept {};
    fine_decay a[V], of_slot[V], of_warp;
    float sum[2][V];

    template <bool WHOLE>
    static __device__ __forceinline__ void fetch(token &to, const walk_args &p, const place &at, const rows_at &r, int off, bool real, bool first)
    {
        fetch_complex<T, BACK, WHOLE>(to, p, at, r, off, real, first);
    }
    __device__ __forceinline__ void begin(const walk_args &p, const place &at, void *memory)
    {
        sum[0][0] = sum[0][1] = sum[1][0] = sum[1][1] = 0.f;
        if (!memory) {
#pragma unroll
            for (int c = 0; c < V; c++) a[c] = lasting<BACK>(p, at.first + c, 1);
            return;
        }
        fine_decay(*of)[CH] = (fine_decay(*)[CH])memory;
        const int tid = (int)threadIdx.x, lane = tid % HALF * V, strip = at.first - lane;
        if (tid < 3 * CH) of[tid / CH][tid % CH] = lasting<BACK>(p, strip + tid % CH, tid < CH ? 1 : tid / CH * EACH);
        __syncthreads();
#pragma unroll
        for (int c = 0; c < V; c++) a[c] = of[0][lane + c], of_slot[c] = of[1][lane + c];
        of_warp = of[2][tid % CH];
        __syncthreads();
    }
    __device__ __forceinline__ void open(const token &of, int c, bool, number<2> &, number<2> &x, kept &) const
    {
        x = { { of.x[0].at(c), of.x[1].at(c) } };
    }
    __device__ __forceinline__ const fine_decay &decay(number<2>, int c) const { return a[c]; }
    __device__ __forceinline__ number<2> quick(number<2>, int c) const { return a[c].high; }
    template <bool WHOLE>
    __device__ __forceinline__ void emit(const walk_args &p, const place &at, const rows_at &r, int off, const token &, const kept (&)[V], bool whole,
                                         const number<2> (&before)[V], const number<2> (&lam)[V], const number<2> (&z)[V])
    {
        put_dx<T, WHOLE>(p, at, r, off, lam);
#pragma unroll
        for (int c = 0; c < V; c++) {
            const number<2> d = of_decay(z[c], before[c]);
            sum[0][c] += d.x[0], sum[1][c] += d.x[1];
        }
    }
    static __device__ __forceinline__ void finish(const walk_args &p, int k, int channel, float sum)
    {
        float *to = k ? p.dother : p.dlog_a;
        if (to) to[channel] = sum;
    }
};

walk_args args_of(const lnt_complex_args *a, bool back)
{
    walk_args p = walk_args_of(a, back);
    p.log_a = (const float *)a->log_a, p.other = (const float *)a->angle, p.x = a->x;
    p.dlog_a = (float *)a->dlog_a, p.dother = (float *)a->dangle;
    return p;
}
bool lasts(const lnt_complex_args *a) { return a->op->kind == LNT_LRU; }

void forward(const void *args, const lnt_device *d)
{
    const lnt_complex_args *a = (const lnt_complex_args *)args;
    const walk_args p = args_of(a, false);
    LNT_BY_TYPE(a->dtype, T, lasts(a) ? walk<lru_rule<T, false>>(a, p, d) : walk<complex_rule<T, false>>(a, p, d));
}
void backward(const void *args, const lnt_device *d)
{
    const lnt_complex_args *a = (const lnt_complex_args *)args;
    const walk_args p = args_of(a, true);
    LNT_BY_TYPE(a->dtype, T, lasts(a) ? walk<lru_rule<T, true>>(a, p, d) : walk<complex_rule<T, true>>(a, p, d));
}
void step(const void *args, const lnt_device *d)
{
    const lnt_complex_args *a = (const lnt_complex_args *)args;
    const walk_args p = args_of(a, false);
    LNT_BY_TYPE(a->dtype, T, lasts(a) ? walk_step<lru_rule<T, false>>(a, p, d) : walk_step<complex_rule<T, false>>(a, p, d));
}

size_t workspace(const void *args, bool back, int)
{
    const lnt_complex_args *a = (const lnt_complex_args *)args;
    if (!lasts(a)) return walk_bytes<complex_rule<bf16, false>>(a);
    return back ? walk_bytes<lru_rule<bf16, true>>(a) : walk_bytes<lru_rule<bf16, false>>(a);
}

} // namespace

LNT_CUDA_FORMS(lnt_complex, chunk, walk_declines<lnt_complex_args>, workspace, forward, backward, NULL, step)

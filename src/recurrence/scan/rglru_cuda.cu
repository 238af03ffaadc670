/* RG-LRU on a GPU: a walk (walk.cuh) that makes its decays and writes of two gates. */
#include "recurrence/scan/walk.cuh"

namespace {

template <typename T_, bool BACK_> struct rglru_rule {
    using T = T_;
    static constexpr bool BACK = BACK_, LASTING = false;
    static constexpr int P = 1, EACH = BACK ? 4 : 8, SUMS = BACK ? 1 : 0;

    struct token {
        pair<T> x, r, i, dout, before[1];
    };
    struct kept {
        float m, input, recur; /* the latter two: gates */
    };
    float rate[V], sum[1][V]; /* -c softplus(lambda); sigmoid(r) dlog a over tokens */

    template <bool WHOLE>
    static __device__ __forceinline__ void fetch(token &to, const walk_args &p, const place &at, const rows_at &r, int off, bool real, bool first)
    {
        to.x = take<WHOLE, 1>((const T *)p.x, p, at, r, off, 0, real);
        to.r = take<WHOLE, 1>((const T *)p.r, p, at, r, off, 0, real);
        to.i = take<WHOLE, 1>((const T *)p.i, p, at, r, off, 0, real);
        if (!BACK) return;
        to.dout = take<WHOLE, 1>((const T *)p.dout, p, at, r, off, 0, real);
        to.before[0] = take<WHOLE, 1>((const T *)p.before, p, at, r, off - 1, 0, real && !first);
    }
    __device__ __forceinline__ void begin(const walk_args &p, const place &at, void *)
    {
#pragma unroll
        for (int c = 0; c < V; c++) {
            const float lambda = at.there[c] ? p.channel[at.first + c] : 0.f;
            rate[c] = -p.c * softplus_of(lambda);
            sum[0][c] = 0.f;
        }
    }
    /* Both sigmoids by one division: e^-x is held below e^43, whose square is a float. With y = n log 2 + f, a = e^y is 2^n (1 + q), q = e^f - 1 by
     * its series (to f^7: 1.5e-8 of q); a - 1 = 2^n q + (2^n - 1) loses nothing where a is near 1, nor does 1 - a^2 = (1 - a) (1 + a). */
    __device__ __forceinline__ void open(const token &of, int c, bool whole, number<1> &e, number<1> &x, kept &k) const
    {
        const float er = fast_exp(at_most(-of.r.at(c), 43.f)) + 1.f, ei = fast_exp(at_most(-of.i.at(c), 43.f)) + 1.f;
        const float both = fast_inverse(er * ei);
        k.recur = ei * both, k.input = er * both;
        const float y = at_least(rate[c] * k.recur, -80.f), shifted = fmaf(y, (float)LNT_LOG2E, 12582912.f), n = shifted - 12582912.f;
        const float f = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, y));
        float q = 1.f / 5040;
        q = fmaf(q, f, 1.f / 720);
        q = fmaf(q, f, 1.f / 120);
        q = fmaf(q, f, 1.f / 24);
        q = fmaf(q, f, 1.f / 6);
        q = fmaf(q, f, 0.5f);
        q = fmaf(q, f, 1.f) * f;
        const float power = __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u), a = fmaf(power, q, power);
        e.x[0] = whole ? 0.f : a;
        k.m = whole ? 1.f : fast_root(-fmaf(power, q, power - 1.f) * (1.f + a));
        x.x[0] = BACK ? of.dout.at(c) : k.m * k.input * of.x.at(c);
    }
    __device__ __forceinline__ number<1> decay(number<1> e, int) const { return e; }
    __device__ __forceinline__ number<1> quick(number<1> e, int) const { return e; }
    /* The slope of the square root is cut at 1000. */
    template <bool WHOLE>
    __device__ __forceinline__ void emit(const walk_args &p, const place &at, const rows_at &r, int off, const token &of,
                                         const kept (&k)[V], bool whole, const number<1> (&before)[V], const number<1> (&lam)[V],
                                         const number<1> (&z)[V])
    {
        float dx[V], dr[V], di[V];
#pragma unroll
        for (int c = 0; c < V; c++) {
            const float x = of.x.at(c), write = lam[c].x[0] * k[c].input, squared = 1.f - k[c].m * k[c].m;
            dx[c] = k[c].m * write, di[c] = dx[c] * x * (1.f - k[c].input);
            float dlog = fmaf(z[c].x[0], before[c].x[0], -squared * fminf(fast_inverse(k[c].m), 2000.f) * write * x);
            dlog = whole ? 0.f : dlog * k[c].recur;
            sum[0][c] += dlog;
            dr[c] = rate[c] * (1.f - k[c].recur) * dlog;
        }
        put<WHOLE, 1>((T *)p.out, p, at, r, off, 0, dx);
        put<WHOLE, 1>((T *)p.dr, p, at, r, off, 0, dr);
        put<WHOLE, 1>((T *)p.di, p, at, r, off, 0, di);
    }
    static __device__ __forceinline__ void finish(const walk_args &p, int, int channel, float sum)
    {
        if (p.dlog_a) p.dlog_a[channel] = -p.c / (1.f + expf(-p.channel[channel])) * sum;
    }
};

walk_args args_of(const lnt_rglru_args *a, bool back)
{
    walk_args p = walk_args_of(a, back);
    p.x = a->x, p.r = a->r, p.i = a->i, p.channel = (const float *)a->lambda, p.c = (float)a->c, p.starts_whole = a->first;
    p.dr = a->dr, p.di = a->di, p.dlog_a = (float *)a->dlambda;
    return p;
}

void forward(const void *args, const lnt_device *d)
{
    const lnt_rglru_args *a = (const lnt_rglru_args *)args;
    LNT_BY_TYPE(a->dtype, T, walk<rglru_rule<T, false>>(a, args_of(a, false), d));
}
void backward(const void *args, const lnt_device *d)
{
    const lnt_rglru_args *a = (const lnt_rglru_args *)args;
    LNT_BY_TYPE(a->dtype, T, walk<rglru_rule<T, true>>(a, args_of(a, true), d));
}
void step(const void *args, const lnt_device *d)
{
    const lnt_rglru_args *a = (const lnt_rglru_args *)args;
    LNT_BY_TYPE(a->dtype, T, walk_step<rglru_rule<T, false>>(a, args_of(a, false), d));
}

size_t workspace(const void *args, bool back, int)
{
    const lnt_rglru_args *a = (const lnt_rglru_args *)args;
    return back ? walk_bytes<rglru_rule<bf16, true>>(a) : walk_bytes<rglru_rule<bf16, false>>(a);
}

} // namespace

LNT_CUDA_FORMS(lnt_rglru, chunk, walk_declines<lnt_rglru_args>, workspace, forward, backward, NULL, step)

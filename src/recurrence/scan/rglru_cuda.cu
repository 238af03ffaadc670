/* RG-LRU on a GPU: a walk (walk.cuh) that makes its decays and writes of two gates. */
#include "recurrence/scan/walk.cuh"

namespace {

constexpr float LOG2E = 1.44269504088896341f;

/* e^x; what is below float32's normal range is 0. */
__device__ __forceinline__ float fast_exp(float x)
{
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * LOG2E));
    return e;
}
__device__ __forceinline__ float fast_root(float x)
{
    float r;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

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

    template <bool PAIRS> static __device__ __forceinline__ void fetch(token &to, const walk_args &p, const place &at, int64_t t, bool real)
    {
        to.x = take<PAIRS>((const T *)p.x, t, p, at, real);
        to.r = take<PAIRS>((const T *)p.r, t, p, at, real);
        to.i = take<PAIRS>((const T *)p.i, t, p, at, real);
        if (!BACK) return;
        to.dout = take<PAIRS>((const T *)p.dout, t, p, at, real);
        to.before[0] = take<PAIRS>((const T *)p.before, t - 1, p, at, real && t > at.begin);
    }
    __device__ __forceinline__ void begin(const walk_args &p, const place &at, void *)
    {
#pragma unroll
        for (int c = 0; c < V; c++) {
            const float lambda = at.there[c] ? p.channel[at.first + c] : 0.f;
            rate[c] = -p.c * (fmaxf(lambda, 0.f) + log1pf(expf(-fabsf(lambda))));
            sum[0][c] = 0.f;
        }
    }
    /* Both sigmoids by one division: e^-x is held below e^43, whose square is a float. 1 - a^2 = -(a - 1)(a + 1), a - 1 by its series where a is
     * near 1. */
    __device__ __forceinline__ void open(const token &of, int c, bool whole, number<1> &e, number<1> &x, kept &k) const
    {
        const float er = fast_exp(fminf(43.f, -to_float(of.r.x[c]))) + 1.f, ei = fast_exp(fminf(43.f, -to_float(of.i.x[c]))) + 1.f;
        const float both = __fdividef(1.f, er * ei);
        k.recur = ei * both, k.input = er * both;
        const float y = rate[c] * k.recur;
        float s = 1.f / 40320; /* to y^8: 5e-9 of the sum where y is -1/2 */
        s = fmaf(s, y, 1.f / 5040);
        s = fmaf(s, y, 1.f / 720);
        s = fmaf(s, y, 1.f / 120);
        s = fmaf(s, y, 1.f / 24);
        s = fmaf(s, y, 1.f / 6);
        s = fmaf(s, y, 0.5f);
        s = fmaf(s, y, 1.f);
        const float less = y > -0.5f ? s * y : fast_exp(y) - 1.f;
        e.x[0] = whole ? 0.f : y > -0.5f ? less + 1.f : fast_exp(y);
        k.m = whole ? 1.f : fast_root(-less * (e.x[0] + 1.f));
        x.x[0] = BACK ? to_float(of.dout.x[c]) : k.m * k.input * to_float(of.x.x[c]);
    }
    __device__ __forceinline__ number<1> decay(number<1> e, int) const { return e; }
    /* The slope of the square root is cut at 1000. */
    __device__ __forceinline__ void emit(const walk_args &p, const place &at, int64_t t, const token &of, const kept (&k)[V],
                                         const number<1> (&before)[V], const number<1> (&lam)[V], const number<1> (&z)[V])
    {
        const bool whole = p.starts_whole && t == at.begin;
        float dx[V], dr[V], di[V];
#pragma unroll
        for (int c = 0; c < V; c++) {
            const float x = to_float(of.x.x[c]), write = lam[c].x[0] * k[c].input, squared = 1.f - k[c].m * k[c].m;
            dx[c] = k[c].m * write, di[c] = dx[c] * x * (1.f - k[c].input);
            float dlog = fmaf(z[c].x[0], before[c].x[0], -squared * fminf(__fdividef(1.f, k[c].m), 2000.f) * write * x);
            dlog = whole ? 0.f : dlog * k[c].recur;
            sum[0][c] += dlog;
            dr[c] = rate[c] * (1.f - k[c].recur) * dlog;
        }
        put((T *)p.out, t, p, at, dx);
        put((T *)p.dr, t, p, at, dr);
        put((T *)p.di, t, p, at, di);
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

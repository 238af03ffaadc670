/* The scan on a GPU: a walk (walk.cuh) whose decays are read, and may have signs. */
#include "recurrence/scan/walk.cuh"

namespace {

template <typename T_, bool BACK_, bool SIGNED> struct scan_rule {
    using T = T_;
    static constexpr bool BACK = BACK_, LASTING = false;
    static constexpr int P = 1, EACH = BACK && SIGNED ? 4 : 8, SUMS = 0;

    struct token {
        pair<float> log_a, sign;
        pair<T> x, before[1];
    };
    struct kept {
        float size; /* of the decay */
    };

    template <bool WHOLE>
    static __device__ __forceinline__ void fetch(token &to, const walk_args &p, const place &at, const rows_at &r, int off, bool real, bool first)
    {
        to.log_a = take<WHOLE, 1>(p.log_a, p, at, r, off, 0, real);
        if (SIGNED) to.sign = take<WHOLE, 1>(p.other, p, at, r, off, 0, real);
        to.x = take<WHOLE, 1>((const T *)(BACK ? p.dout : p.x), p, at, r, off, 0, real);
        if (BACK) to.before[0] = take<WHOLE, 1>((const T *)p.before, p, at, r, off - 1, 0, real && !first);
    }
    __device__ __forceinline__ void begin(const walk_args &, const place &, void *) {}
    __device__ __forceinline__ void open(const token &of, int c, bool, number<1> &e, number<1> &x, kept &k) const
    {
        k.size = expf(of.log_a.at(c)); /* by ex2 and a product alone sT was 2.9e-6 off after 5000 tokens of decays near 1 (H200) */
        e.x[0] = SIGNED ? k.size * of.sign.at(c) : k.size;
        x.x[0] = of.x.at(c);
    }
    __device__ __forceinline__ number<1> decay(number<1> e, int) const { return e; }
    __device__ __forceinline__ number<1> quick(number<1> e, int) const { return e; }
    template <bool WHOLE>
    __device__ __forceinline__ void emit(const walk_args &p, const place &at, const rows_at &r, int off, const token &,
                                         const kept (&k)[V], bool whole, const number<1> (&before)[V], const number<1> (&lam)[V],
                                         const number<1> (&z)[V])
    {
        const float dx[V] = { lam[0].x[0], lam[1].x[0] }, dlog_a[V] = { z[0].x[0] * before[0].x[0], z[1].x[0] * before[1].x[0] };
        put<WHOLE, 1>((T *)p.out, p, at, r, off, 0, dx);
        put<WHOLE, 1>(p.dlog_a, p, at, r, off, 0, dlog_a);
        if (!SIGNED) return;
        const float dsign[V] = { k[0].size * dx[0] * before[0].x[0], k[1].size * dx[1] * before[1].x[0] };
        put<WHOLE, 1>(p.dother, p, at, r, off, 0, dsign);
    }
};

walk_args args_of(const lnt_scan_args *a, bool back)
{
    walk_args p = walk_args_of(a, back);
    p.log_a = (const float *)a->log_a, p.other = (const float *)a->sign, p.x = a->x;
    p.dlog_a = (float *)a->dlog_a, p.dother = (float *)a->dsign;
    return p;
}

void forward(const void *args, const lnt_device *d)
{
    const lnt_scan_args *a = (const lnt_scan_args *)args;
    const walk_args p = args_of(a, false);
    LNT_BY_TYPE(a->dtype, T, a->has_sign ? walk<scan_rule<T, false, true>>(a, p, d) : walk<scan_rule<T, false, false>>(a, p, d));
}
void backward(const void *args, const lnt_device *d)
{
    const lnt_scan_args *a = (const lnt_scan_args *)args;
    const walk_args p = args_of(a, true);
    LNT_BY_TYPE(a->dtype, T, a->has_sign ? walk<scan_rule<T, true, true>>(a, p, d) : walk<scan_rule<T, true, false>>(a, p, d));
}
void step(const void *args, const lnt_device *d)
{
    const lnt_scan_args *a = (const lnt_scan_args *)args;
    const walk_args p = args_of(a, false);
    LNT_BY_TYPE(a->dtype, T, a->has_sign ? walk_step<scan_rule<T, false, true>>(a, p, d) : walk_step<scan_rule<T, false, false>>(a, p, d));
}

size_t workspace(const void *args, bool back, int)
{
    const lnt_scan_args *a = (const lnt_scan_args *)args;
    return back && a->has_sign ? walk_bytes<scan_rule<bf16, true, true>>(a) : walk_bytes<scan_rule<bf16, false, false>>(a);
}

} // namespace

LNT_CUDA_FORMS(lnt_scan, chunk, walk_declines<lnt_scan_args>, workspace, forward, backward, NULL, step)

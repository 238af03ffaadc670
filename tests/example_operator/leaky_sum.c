/* An operator as docs/adding-an-operator.md walks through it: s_t = e^{g_t} s_{t-1} + x_t, o_t = s_t, with one decay a head. */
#include <math.h>

#include "recurrence/cases.h"
#include "recurrence/recur_node.h"

/* ---- arguments: the head, sizes, then tensors with their gradients ------------------------------------------------------------------------- */

typedef struct {
    LNT_RECUR_HEAD
    int32_t H, V;
    const void *x, *g;       /* x [T,H,V] of the call's dtype, f [T,H] */
    const void *s0, *dsT, *dout;
    void *o, *sT, *dx, *dg, *ds0;
} leaky_args;

/* ---- the reference: float64 inside, a head of a sequence at a time ---------------------------------------------------------------------------- */

static double at(const void *p, lnt_dtype t, int64_t i) { return p ? lnt_load_element(p, t, i) : 0; }
static void put(void *p, lnt_dtype t, int64_t i, double value)
{
    if (p) lnt_store_element(p, t, i, value);
}
static lnt_dtype small(const leaky_args *a) { return a->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }

static void forward(const void *args, int threads)
{
    const leaky_args *a = args;
#pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < a->sequences * a->H * a->V; p++) {
        const int64_t n = p / (a->H * a->V), h = p / a->V % a->H, v = p % a->V;
        double s = at(a->s0, small(a), p);
        for (int64_t t = a->cu_seqlens[n]; t < a->cu_seqlens[n + 1]; t++) {
            s = exp(at(a->g, small(a), t * a->H + h)) * s + at(a->x, a->dtype, (t * a->H + h) * a->V + v);
            put(a->o, a->dtype, (t * a->H + h) * a->V + v, s);
        }
        put(a->sT, small(a), p, s);
    }
}

/* The states of all tokens again, then ds_t = do_t + e^{g_{t+1}} ds_{t+1}, dx_t = ds_t, dg_t = sum_v e^{g_t} s_{t-1} ds_t. */
static void backward(const void *args, int threads)
{
    const leaky_args *a = args;
#pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < a->sequences * a->H; p++) {
        const int64_t n = p / a->H, h = p % a->H, first = a->cu_seqlens[n], end = a->cu_seqlens[n + 1];
        double *s = (double *)a->workspace + (first * a->H + h * (end - first)) * a->V; /* [tokens,V] of this head */
        for (int64_t t = first; t < end; t++)
            for (int64_t v = 0; v < a->V; v++) {
                const double before = t > first ? s[(t - 1 - first) * a->V + v] : at(a->s0, small(a), p * a->V + v);
                s[(t - first) * a->V + v] = exp(at(a->g, small(a), t * a->H + h)) * before + at(a->x, a->dtype, (t * a->H + h) * a->V + v);
            }
        for (int64_t t = first; t < end; t++) put(a->dg, small(a), t * a->H + h, 0);
        for (int64_t v = 0; v < a->V; v++) {
            double ds = at(a->dsT, small(a), p * a->V + v);
            for (int64_t t = end - 1; t >= first; t--) {
                const int64_t i = (t * a->H + h) * a->V + v;
                const double before = t > first ? s[(t - 1 - first) * a->V + v] : at(a->s0, small(a), p * a->V + v);
                const double decay = exp(at(a->g, small(a), t * a->H + h));
                ds += at(a->dout, a->dtype, i);
                put(a->dx, a->dtype, i, ds);
                put(a->dg, small(a), t * a->H + h, at(a->dg, small(a), t * a->H + h) + decay * before * ds);
                ds *= decay;
            }
            put(a->ds0, small(a), p * a->V + v, ds);
        }
    }
}

static size_t workspace(const void *args, bool back, int threads)
{
    const leaky_args *a = args;
    (void)threads;
    return back ? (size_t)a->tokens * (size_t)a->H * (size_t)a->V * sizeof(double) : 0;
}

static const lnt_recur_impl reference = { .name = "reference", .form = LINNET_FORM_RECURRENT, .workspace = workspace, .forward = forward,
                                          .backward = backward };
static const lnt_recur_impl *const impls[] = { &reference, NULL };

/* ---- the description -------------------------------------------------------------------------------------------------------------------------- */

static double flops(const void *args, int C, bool back)
{
    const leaky_args *a = args;
    (void)C;
    return (back ? 6.0 : 2.0) * (double)a->tokens * a->H * a->V;
}

static const lnt_recur_size sizes[] = {
    { "H", LNT_AT(leaky_args, H), 4, 1, 65536, 16, NULL, "heads" },
    { "V", LNT_AT(leaky_args, V), 4, 1, 65536, 128, NULL, "numbers of a head" },
    { 0 },
};
static const lnt_recur_option options[] = { { 0 } };
static const lnt_recur_tensor tensors[] = {
    LNT_INPUT(leaky_args, "x", "T H V", x, .wide = true),
    LNT_INPUT(leaky_args, "g", "T H", g, .values = LNT_VALUES_DECAY, .gate = true, .help = "natural log of the decay, at most 0"),
    LNT_STATE(leaky_args, "s", "", "N H V", s),
    LNT_OUTPUT(leaky_args, "o", "T H V", o, dout, .wide = true),
    { 0 },
};
static const lnt_recur_case cases[] = {
    { "leaky_sum", 1, { 100 }, { { "H", 2 }, { "V", 24 } }, .gate = -0.3, .states = true },
    { "leaky_sum", 4, { 17, 0, 65, 1 }, { { "H", 3 }, { "V", 5 } }, .gate = -2, .reset = 0.1, .states = true },
    { "leaky_sum", 1, { 0 }, { { "H", 1 }, { "V", 16 } }, .gate = -1 },
    { 0 },
};

const lnt_recur_op lnt_recur_leaky_sum = {
    .name = "leaky_sum",
    .core = "example_operator",
    .equation = "s_t = e^{g_t} s_{t-1} + x_t, o_t = s_t",
    .args_size = sizeof(leaky_args),
    .sizes = sizes,
    .tensors = tensors,
    .options = options,
    .impls = impls,
    .cases = cases,
    .f32 = { 2e-6, 1e-5, 5e-5 },
    .bf16 = { 5e-3, 5e-3, 2e-2 },
    .flops = flops,
    .node = &(const lnt_op){ LNT_RECUR_NODE("leaky_sum") },
};

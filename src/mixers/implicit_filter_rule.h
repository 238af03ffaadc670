/* Hyena's filters (arXiv 2302.10866, section 3.3), as the layers with a filter a channel and with one a head make them: for each lag l features z_l
 * of its place, a small network with sines, and a window that decays,
 *   h_l = (e^{-d t} + shift) W_out sin(f . (W_m .. sin(f . (W_0 z_l + b_0)) .. + b_m)),  t = l / (L-1)
 * with one f for all sines and rates d of log(1 / target) / slow_decay_pct for the first column to log(1 / target) / fast_decay_pct for the last, in
 * float32 under every policy. Names of parameters are those of the authors' code. */
#ifndef LNT_IMPLICIT_FILTER_RULE_H
#define LNT_IMPLICIT_FILTER_RULE_H

#include <math.h>
#include <stdio.h>

#include "mixers/mixers.h"

typedef struct {
    int64_t length, order, emb_dim, inner;
    double frequency, fast, slow, target, shift;
} lnt_filter;

/* The fields and the keys of a mixer's options. */
#define LNT_FILTER_FIELDS                                                                                                          \
    int64_t filter_length, filter_order, emb_dim, num_inner_mlps;                                                                  \
    double sine_frequency, fast_decay_pct, slow_decay_pct, target, shift;
#define LNT_FILTER_KEYS(type)                                                                                                      \
    LNT_INT(type, filter_length, 1, 16777216, 2048, "lags of a filter; inputs further back are not seen"),                         \
        LNT_INT(type, filter_order, 1, 512, 64, "columns of the network that makes the filters"),                                  \
        LNT_INT(type, emb_dim, 3, 511, 33, "features of a place, an odd number"),                                                  \
        LNT_INT(type, num_inner_mlps, 0, 8, 2, "maps between the network's first and last"),                                       \
        LNT_REAL(type, sine_frequency, 1e-3, 1e3, 14, "factor of what goes into a sine, to begin with"),                           \
        LNT_REAL(type, fast_decay_pct, 1e-3, 1e3, 0.3, "share of filter_length at which the last column has decayed to target"),   \
        LNT_REAL(type, slow_decay_pct, 1e-3, 1e3, 1.5, "the same of the first column"),                                            \
        LNT_REAL(type, target, 1e-12, 1, 1e-2, "what a window decays to"), LNT_REAL(type, shift, 0, 1, 0.05, "added to the window")
#define LNT_FILTER_OF(o)                                                                                                           \
    ((lnt_filter){(o)->filter_length, (o)->filter_order, (o)->emb_dim, (o)->num_inner_mlps, (o)->sine_frequency,                   \
                  (o)->fast_decay_pct, (o)->slow_decay_pct, (o)->target, (o)->shift})

static inline linnet_status lnt_check_filter(lnt_ctx *c, const lnt_layer *l, lnt_filter f)
{
    if (f.emb_dim % 2) return LINNET_OK;
    return lnt_fail(c, LINNET_EINVAL, "%semb_dim is %lld, expected an odd number", l->where, (long long)f.emb_dim);
}

/* sin(f . x). */
static inline lnt_buf lnt_sine(lnt_program *p, lnt_filter f, lnt_buf x)
{
    x = lnt_scale_columns(p, x, "1.freq", (lnt_init){LNT_INIT_CONST, f.frequency, 0});
    return lnt_slice(p, lnt_circular(p, x), 0, f.order, 1);
}

/* h [filter_length, cols], under the current scope. */
static inline lnt_buf lnt_implicit_filters(lnt_program *p, lnt_filter f, int64_t cols)
{
    char name[16];
    lnt_push_scope(p, "implicit_filter");
    lnt_buf x = lnt_sine(p, f, lnt_linear_f32(p, lnt_place_features(p, f.length, f.emb_dim), "0", f.order, true));
    for (int64_t i = 0; i < f.inner; i++) {
        snprintf(name, sizeof name, "%d", (int)(2 + 2 * i));
        x = lnt_sine(p, f, lnt_linear_f32(p, x, name, f.order, true));
    }
    snprintf(name, sizeof name, "%d", (int)(2 + 2 * f.inner));
    x = lnt_linear_f32(p, x, name, cols, false);
    lnt_pop_scope(p);
    return lnt_decay_window(p, x, -log(f.target) / f.slow, -log(f.target) / f.fast, f.shift);
}

#endif

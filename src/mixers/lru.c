/* The linear recurrent unit (arXiv 2303.06349, sections 3 and 4): h_t = lam.h_{t-1} + gam.(B x_t) in complex numbers, lam = exp(-exp(nu_log) +
 * i exp(theta_log)), gam = sqrt(1 - |lam|^2), y_t = Re(C h_t) + D.x_t, and behind it o_proj(gelu y) sigmoid(g_proj(gelu y)) or o_proj(gelu y). B
 * and C are one product each, real parts before imaginary ones. */
#include "mixers/mixers.h"

typedef struct {
    int64_t state_size;
    double r_min, r_max, max_phase;
    bool use_glu;
} options;

static const lnt_option keys[] = {
    LNT_MAYBE_INT(options, state_size, 1, LNT_MOST_WIDTH, 0, 0, "complex numbers of the state; null: hidden_size"),
    LNT_REAL(options, r_min, 0, 1, 0.9, "decays begin above this"),
    LNT_REAL(options, r_max, 1e-3, 0.9999, 0.999, "and below this"),
    LNT_REAL(options, max_phase, 1e-3, 6.2832, 6.2831853071795865, "angles begin below this"),
    LNT_SWITCH(options, use_glu, true, "a gate behind the recurrence"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    if (o->r_min < o->r_max) return LINNET_OK;
    return lnt_fail(c, LINNET_EINVAL, "%sr_min is %g, expected below r_max = %g", l->where, o->r_min, o->r_max);
}

static void size(void *options_, int64_t heads, int64_t head)
{
    (void)heads, (void)head;
    ((options *)options_)->state_size = 0;
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t N = o->state_size ? o->state_size : l->width;
    lnt_buf nu = lnt_row_param(p, "nu_log", 1, N, (lnt_init){LNT_INIT_DECAY_LOG, o->r_min, o->r_max});
    lnt_buf angle = lnt_activation(p, lnt_row_param(p, "theta_log", 1, N, (lnt_init){LNT_INIT_A_LOG, 0, o->max_phase}), LNT_EXP, 1, true);
    lnt_buf gamma = lnt_activation(p, lnt_activation(p, lnt_activation(p, nu, LNT_EXP, -2, true), LNT_ONE_MINUS_EXP, 1, true), LNT_SQRT, 1, true);
    lnt_buf in = lnt_scale_rows(p, lnt_linear(p, x, "B", 2 * N), lnt_with_heads(p, lnt_repeat_heads(p, gamma, 2), 1));
    lnt_buf h = lnt_recur(p, "lru", (lnt_recur_in){.tensor = {{"x", lnt_with_heads(p, in, 2)}, {"log_a", lnt_activation(p, nu, LNT_EXP, -1, true)},
                                                              {"angle", angle}}});
    lnt_buf y = lnt_linear(p, h, "C", l->width);
    y = lnt_add_buf(p, y, lnt_scale_columns(p, x, "D", (lnt_init){LNT_INIT_NORMAL, 1, 0}));
    return lnt_gelu_out(p, l, y, o->use_glu);
}

const lnt_mixer lnt_mixer_lru = {
    .kind = {{"lru", "a linear recurrence of complex numbers that turn and decay at learned rates", "Orvieto et al. 2023, arXiv 2303.06349", "lru"},
             LNT_OPTIONS(options, keys), check},
    .size = size,
    .build = build,
};

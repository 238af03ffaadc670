/* S4D (arXiv 2206.11893): each channel of x is the input of a linear system of state_size / 2 complex numbers with a diagonal matrix, h' = A h + u,
 * y = 2 Re(C h) + D u, in steps of exp(log_dt): A = -exp(A_log) + i A_im, which begins as S4D-Lin's -1/2 + i pi n. Behind it
 * o_proj(gelu y) sigmoid(g_proj(gelu y)) or o_proj(gelu y). */
#include <math.h>

#include "mixers/mixers.h"

typedef struct {
    int64_t state_size;
    double dt_min, dt_max;
    int discretization;
    bool use_glu;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, state_size, 2, 8192, 64, "real numbers of a channel's state, two for each complex one"),
    LNT_REAL(options, dt_min, 1e-6, 10, 1e-3, "step sizes begin above this"),
    LNT_REAL(options, dt_max, 1e-6, 10, 0.1, "and below this"),
    LNT_WORD(options, discretization, "zoh bilinear", 0, "how the equation in time becomes steps"),
    LNT_SWITCH(options, use_glu, true, "a gate behind the recurrence"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    if (o->state_size % 2)
        return lnt_fail(c, LINNET_EINVAL, "%sstate_size is %lld, expected an even number", l->where, (long long)o->state_size);
    if (o->dt_min <= o->dt_max) return LINNET_OK;
    return lnt_fail(c, LINNET_EINVAL, "%sdt_min is %g, expected at most dt_max = %g", l->where, o->dt_min, o->dt_max);
}

/* A parameter [channels, M], a row for each channel. */
static lnt_buf numbers(lnt_program *p, const char *name, int64_t D, int64_t M, lnt_init init)
{
    const int param = lnt_add_param(p, name, 2, (int64_t[]){D, M}, init, false, false);
    return lnt_param_value(p, param, D, 1);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t D = l->width, M = o->state_size / 2;
    const lnt_init steps = {LNT_INIT_UNIFORM, log(o->dt_min), log(o->dt_max)}, one = {LNT_INIT_NORMAL, 1, 0}, read = {LNT_INIT_NORMAL, sqrt(0.5), 0};
    lnt_buf dt = lnt_activation(p, lnt_row_param(p, "log_dt", 1, D, steps), LNT_EXP, 1, true);
    lnt_buf A_re = lnt_activation(p, numbers(p, "A_log", D, M, (lnt_init){LNT_INIT_CONST, log(0.5), 0}), LNT_EXP, -1, true);
    A_re = lnt_clamp(p, A_re, -1e6, -1e-4);
    lnt_buf A_im = numbers(p, "A_im", D, M, (lnt_init){LNT_INIT_PLACE, 3.14159265358979, 0});
    lnt_buf C_re = numbers(p, "C_re", D, M, read), C_im = numbers(p, "C_im", D, M, read);
    lnt_buf y = lnt_recur(p, "s4d", (lnt_recur_in){.tensor = {{"u", x}, {"dt", dt}, {"A_re", A_re}, {"A_im", A_im}, {"C_re", C_re}, {"C_im", C_im},
                                                              {"D", lnt_row_param(p, "D", 1, D, one)}},
                                                   .option = {{"discretization", o->discretization}}});
    return lnt_gelu_out(p, l, y, o->use_glu);
}

const lnt_mixer lnt_mixer_s4d = {
    .kind = {{"s4d", "a diagonal state space: a small linear system of complex numbers for each channel", "Gu et al. 2022, arXiv 2206.11893", "s4d"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};

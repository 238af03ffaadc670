/* Titans' neural memory (arXiv 2501.00663) with a matrix for a memory: gradient descent over mini-batches of tokens with momentum and forgetting,
 *   S_t = eta_t S_{t-1} - theta_t dl(k_t, v_t)/dM,  M_t = (1 - alpha_t) M_{t-1} + S_t,  o_t = q_t M_t,  l = |k M - v|^2 / 2,
 * gradients taken at the mini-batch's first memory; q, k and v convolved, q and k of unit norm, the output normalised and gated. The memory begins
 * with what is learned outside. theta_t = base_lr sigmoid(theta_proj x_t) / mini_batch_size: keys of a mini-batch that are alike add up. */
#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads, head_dim, mini_batch_size, conv_size;
    double base_lr;
    int inner;
    bool use_gate, use_short_conv;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 16, "heads"),
    LNT_INT(options, head_dim, 1, 4096, 64, "columns of a head"),
    LNT_INT(options, mini_batch_size, 1, 256, 16, "tokens whose gradients are taken at the same memory"),
    LNT_REAL(options, base_lr, 0, 1e3, 1, "largest step size of a mini-batch"),
    LNT_WORD(options, inner, "plain ln", 0, "the loss: of k M itself, or of its norm, whose target is v - k"),
    LNT_SWITCH(options, use_gate, true, "outputs times silu(g_proj x) behind their norm"),
    LNT_SWITCH(options, use_short_conv, true, "a causal convolution behind the projections to q, k and v"),
    LNT_INT(options, conv_size, 1, LNT_CONV_MAX, 4, "taps of the convolution"),
};

/* A gate of each head, sigmoid(name x + bias) times `scale`; the bias begins as `start`. */
static lnt_buf gate(lnt_program *p, lnt_buf x, const char *name, const char *bias, int64_t heads, double start, double scale)
{
    lnt_add_param(p, bias, 1, &heads, (lnt_init){LNT_INIT_CONST, start, 0}, false, false);
    return lnt_activation(p, lnt_linear_bias(p, x, name, heads), LNT_SIGMOID, scale, true);
}

/* Forgetting begins at 2% a token, and half of the momentum is kept. */
static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t H = o->num_heads, D = o->head_dim, conv = o->use_short_conv ? o->conv_size : 0, memory[] = {H, D, D}, norm[] = {H, D};
    const lnt_init one = {LNT_INIT_CONST, 1, 0}, none = {LNT_INIT_CONST, 0, 0};
    lnt_buf q = lnt_l2norm(p, lnt_project(p, x, "q", H, D, conv, LNT_SILU), 1e-6);
    lnt_buf k = lnt_l2norm(p, lnt_project(p, x, "k", H, D, conv, LNT_SILU), 1e-6);
    lnt_buf v = lnt_project(p, x, "v", H, D, conv, LNT_SILU);
    lnt_buf theta = gate(p, x, "theta_proj", "theta_proj.bias", H, 0, o->base_lr / (double)o->mini_batch_size);
    lnt_buf alpha = gate(p, x, "alpha_proj", "alpha_proj.bias", H, -4, 1), eta = gate(p, x, "eta_proj", "eta_proj.bias", H, 0, 1);
    const lnt_init normal = {LNT_INIT_NORMAL, lnt_init_std(p, D), 0};
    lnt_buf m = lnt_param_value(p, lnt_add_param(p, "memory", 3, memory, normal, false, false), H * D, 1), w = LNT_NO_BUF, b = LNT_NO_BUF;
    if (o->inner) {
        w = lnt_param_value(p, lnt_add_param(p, "inner_norm.weight", 2, norm, one, false, false), H, 1);
        b = lnt_param_value(p, lnt_add_param(p, "inner_norm.bias", 2, norm, none, false, false), H, 1);
    }
    const lnt_recur_in in = {.tensor = {{"q", q}, {"k", k}, {"v", v}, {"theta", theta}, {"alpha", alpha}, {"eta", eta}, {"m", m},
                                        {"ln_w", w}, {"ln_b", b}},
                             .option = {{"mini_batch", (double)o->mini_batch_size}, {"inner", o->inner}}};
    return lnt_out_proj(p, l, lnt_output_norm(p, l, x, lnt_recur(p, "titans", in), o->use_gate, "o_norm", "o_norm"));
}

const lnt_mixer lnt_mixer_titans = {
    .kind = {{"titans", "a memory that learns by gradient descent while it reads, with momentum and forgetting",
              "Behrouz et al. 2025, arXiv 2501.00663", "titans"},
             LNT_OPTIONS(options, keys), NULL},
    .build = build,
};

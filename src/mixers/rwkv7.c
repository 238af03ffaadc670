/* RWKV-7's time mix, "Goose" (arXiv 2503.14456, section 4). With x' the token before x, x_i = x + (x' - x) mu_i for i = r, w, k, v, a, g, and
 * low-rank maps lora(x) = B act(A x) + b:
 *   r = W_r x_r,  k = W_k x_k,  v = W_v x_v;  behind the first layer v += (v_1 - v) sigmoid(lora(x_v)) with the first layer's v_1
 *   w = -e^{-1/2} sigmoid(lora_tanh(x_w)),  eta = sigmoid(lora(x_a)),  g = lora_sigmoid(x_g),  kappa = k.k_k / |k.k_k|,  k~ = k.(1 + (eta - 1).k_a)
 *   S_t = diag(e^{w_t}) S_{t-1} - (kappa_t.eta_t) (S_{t-1}^T kappa_t)^T + k~_t v_t^T,  o_t = S_t^T r_t
 *   y = W_o (g . (GroupNorm(o) + (r . r_k).k~ v))
 * Its block (model type rwkv7) has LayerNorm, one more of the embeddings, and the channel mix without receptance. */
#include <math.h>
#include <stdio.h>

#include "mixers/mixers.h"

typedef struct {
    int64_t head_dim, num_heads, decay_low_rank_dim, gate_low_rank_dim, a_low_rank_dim, v_low_rank_dim;
    bool fuse_norm;
} options;

static const lnt_option keys[] = {
    LNT_MAYBE_INT(options, head_dim, 1, LNT_MOST_WIDTH, 64, 0, "columns of a head; null: hidden_size / num_heads"),
    LNT_MAYBE_INT(options, num_heads, 1, LNT_MOST_WIDTH, 0, 0, "heads; null: hidden_size / head_dim"),
    LNT_MAYBE_INT(options, decay_low_rank_dim, 1, LNT_MOST_WIDTH, 64, 0, "rank of the decay's map; null: about 2.5 hidden_size^1/2 head_dim / 64"),
    LNT_MAYBE_INT(options, gate_low_rank_dim, 1, LNT_MOST_WIDTH, 128, 0, "rank of the gate's map; null: about 5 hidden_size^1/2"),
    LNT_MAYBE_INT(options, a_low_rank_dim, 1, LNT_MOST_WIDTH, 64, 0, "rank of the learning rate's map; null: as the decay's"),
    LNT_MAYBE_INT(options, v_low_rank_dim, 1, LNT_MOST_WIDTH, 16, 0, "rank of the first values' map; null: about 1.7 hidden_size^1/2 head_dim / 64"),
    LNT_SWITCH(options, fuse_norm, true, "kappa is k / (|k|^2 + 1e-6)^1/2, as the fused norm has it; false: k / |k|"),
};

/* As many heads as the width has, whatever it becomes. */
static void size(void *options_, int64_t heads, int64_t head)
{
    options *o = options_;
    (void)heads;
    o->head_dim = head;
    o->num_heads = 0;
}

static int64_t head_of(const lnt_layer *l)
{
    const options *o = l->options;
    return o->head_dim ? o->head_dim : o->num_heads ? l->width / o->num_heads : 0;
}

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    if (!o->head_dim && !o->num_heads) return lnt_fail(c, LINNET_EINVAL, "%shead_dim and num_heads are null, expected one of them", l->where);
    if (!o->head_dim) return lnt_check_divides(c, l, "num_heads", o->num_heads, "hidden_size", l->width);
    LNT_TRY(lnt_check_divides(c, l, "head_dim", o->head_dim, "hidden_size", l->width));
    if (!o->num_heads || o->num_heads * o->head_dim == l->width) return LINNET_OK;
    lnt_fail(c, LINNET_EINVAL, "%snum_heads is %lld, expected null or hidden_size / head_dim = %lld", l->where, (long long)o->num_heads,
             (long long)(l->width / o->head_dim));
    return lnt_hint(c, "With head_dim = null, a head is hidden_size / num_heads columns.");
}

/* A rank that was not given: `per` hidden_size^1/2, to a multiple of 32, ties to even. */
static int64_t rank_of(const lnt_layer *l, int64_t given, double per)
{
    const int64_t rank = 32 * (int64_t)nearbyint(per * sqrt((double)l->width) / 32);
    return given ? given : rank > 32 ? rank : 32;
}

/* What the projections see: x + (x' - x) mu, each with its mu [1,1,width]. */
enum { R, W, K, V, A, G, MIXES };
static void mix(lnt_program *p, lnt_buf x, lnt_buf seen[MIXES])
{
    static const char *const names[MIXES] = {"x_r", "x_w", "x_k", "x_v", "x_a", "x_g"};
    static const double start[MIXES] = {0.2, 0.5, 0.4, 0.4, 0.5, 0.2};
    const int64_t width = lnt_cols(p, x), dim[3] = {1, 1, width};
    lnt_buf mu[MIXES];
    for (int i = 0; i < MIXES; i++)
        mu[i] = lnt_param_value(p, lnt_add_param(p, names[i], 3, dim, (lnt_init){LNT_INIT_CONST, start[i], 0}, false, false), 1, 1);
    lnt_buf all = lnt_lerps(p, x, lnt_token_shift(p, x), MIXES, mu);
    for (int i = 0; i < MIXES; i++) seen[i] = lnt_slice(p, all, i * width, width, 1);
}

/* B act(A x) + b, b starting within [low, high]; low > high: no b. */
static lnt_buf low_rank(lnt_program *p, lnt_buf x, const char *name, int64_t rank, lnt_act act, double low, double high)
{
    char part[32];
    const int64_t width = lnt_cols(p, x);
    snprintf(part, sizeof part, "%s.lora.0", name);
    lnt_buf y = lnt_linear(p, x, part, rank);
    if (act != LNT_IDENTITY) y = lnt_activation(p, y, act, 1, false);
    snprintf(part, sizeof part, "%s.lora.2.bias", name);
    if (low <= high) lnt_add_param(p, part, 1, &width, (lnt_init){LNT_INIT_UNIFORM, low, high}, false, false); /* found by what follows */
    snprintf(part, sizeof part, "%s.lora.2", name);
    return low <= high ? lnt_linear_bias(p, y, part, width) : lnt_linear(p, y, part, width);
}

/* The values, pulled towards those of the first layer that has any. */
static lnt_buf values(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    static const char first[] = "first values of rwkv7";
    const options *o = l->options;
    lnt_buf v = lnt_linear(p, x, "v_proj", l->width), v1 = lnt_kept(p, first);
    if (!v1.id) {
        lnt_keep(p, first, v);
        return v;
    }
    const int64_t rank = rank_of(l, o->v_low_rank_dim, 1.7 * (double)head_of(l) / 64);
    lnt_buf share = low_rank(p, x, "v_lora", rank, LNT_IDENTITY, 0.53, 0.93);
    return lnt_lerp(p, v, v1, lnt_activation(p, share, LNT_SIGMOID, 1, false));
}

/* The constants that parameters start at are means over columns and layers, or the range, of what the paper's code gives each column and layer. */
static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t head = head_of(l), heads = l->width / (head ? head : 1);
    const int32_t H = (int32_t)heads;
    const double per = (double)head / 64;
    lnt_buf seen[MIXES];
    mix(p, x, seen);
    lnt_buf r = lnt_heads_of(p, seen[R], "r_proj", heads, head);
    lnt_buf w = low_rank(p, seen[W], "w_lora", rank_of(l, o->decay_low_rank_dim, 2.5 * per), LNT_TANH, -5.5, 0.5);
    w = lnt_with_heads(p, lnt_activation(p, w, LNT_SIGMOID, -exp(-0.5), true), H);
    lnt_buf k = lnt_linear(p, seen[K], "k_proj", l->width);
    lnt_buf v = lnt_with_heads(p, values(p, l, seen[V]), H);
    lnt_buf eta = low_rank(p, seen[A], "a_lora", rank_of(l, o->a_low_rank_dim, 2.5 * per), LNT_IDENTITY, -0.69, 0.31);
    eta = lnt_activation(p, eta, LNT_SIGMOID, 1, false);
    lnt_buf g = low_rank(p, seen[G], "g_lora", rank_of(l, o->gate_low_rank_dim, 5), LNT_SIGMOID, 1, 0);

    lnt_buf kappa = lnt_with_heads(p, lnt_scale_columns(p, k, "k_k", (lnt_init){LNT_INIT_CONST, 0.71, 0}), H);
    kappa = lnt_l2norm(p, kappa, o->fuse_norm ? 1e-6 : 1e-24);
    k = lnt_with_heads(p, lnt_lerp_param(p, k, lnt_mul_buf(p, k, eta), "k_a", (lnt_init){LNT_INIT_CONST, 1.02, 0}), H);
    lnt_buf a = lnt_activation(p, kappa, LNT_IDENTITY, -1, false), b = lnt_mul_buf(p, kappa, lnt_with_heads(p, eta, H));
    const lnt_recur_in in = {.tensor = {{"q", r}, {"k", k}, {"v", v}, {"a", a}, {"b", b}, {"gk", w}}, .option = {{"scale", 1}}};
    lnt_buf y = lnt_layernorm(p, lnt_recur(p, "dplr", in), "g_norm", (double)head * l->norm_eps, true, true);
    lnt_buf own = lnt_head_dot(p, lnt_scale_by(p, r, lnt_row_param(p, "r_k", heads, head, (lnt_init){LNT_INIT_CONST, -0.04, 0})), k);
    y = lnt_mul_buf(p, lnt_add_buf(p, y, lnt_mul_buf(p, v, own)), lnt_with_heads(p, g, H));
    return lnt_out_proj(p, l, y);
}

const lnt_mixer lnt_mixer_rwkv7 = {
    .kind = {{"rwkv7", "a state that forgets by rows and erases what a key of its own reads, values tied to the first layer's",
              "Peng et al. 2025, arXiv 2503.14456", "dplr"},
             LNT_OPTIONS(options, keys), check},
    .size = size,
    .build = build,
};

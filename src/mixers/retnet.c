/* Retention (arXiv 2307.08621): S_t = gamma_h S_{t-1} + k_t v_t^T with gamma_h = 1 - 2^{-5-h}, rotary q and k, and a swish-gated per-head norm of the
 * output. */
#include <math.h>

#include "mixers/mixers.h"

static const double ROPE_THETA = 10000;

typedef struct {
    int64_t num_heads, num_kv_heads;
    double expand_k, expand_v;
    bool use_output_gate;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 8, "query heads"),
    LNT_MAYBE_INT(options, num_kv_heads, 1, LNT_MOST_WIDTH, 0, 0, "heads of keys and values; null: num_heads"),
    LNT_REAL(options, expand_k, 1.0 / LNT_MOST_WIDTH, 64, 1, "columns of all keys, as a share of hidden_size"),
    LNT_REAL(options, expand_v, 1.0 / LNT_MOST_WIDTH, 64, 2, "columns of all values, as a share of hidden_size"),
    LNT_SWITCH(options, use_output_gate, true, "outputs times silu(g_proj x) behind their norm"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    LNT_TRY(lnt_check_expanded(c, l, o->num_heads, o->num_kv_heads, o->expand_k, o->expand_v));
    return lnt_check_even(c, l, "hidden_size * expand_k / num_heads", lnt_expand(l, o->num_heads, 0, o->expand_k, o->expand_v).key);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const lnt_expanded n = lnt_expand(l, o->num_heads, o->num_kv_heads, o->expand_k, o->expand_v);
    lnt_buf q = lnt_heads_of(p, x, "q_proj", n.heads, n.key);
    lnt_buf k = lnt_heads_of(p, x, "k_proj", n.kv_heads, n.key);
    lnt_buf v = lnt_heads_of(p, x, "v_proj", n.kv_heads, n.value);
    double *g = lnt_program_alloc(p, lnt_bytes((size_t)n.heads, sizeof *g));
    for (int h = 0; g && h < n.heads; h++) g[h] = log1p(-exp2(-5.0 - h));
    q = lnt_rotary(p, q, ROPE_THETA);
    k = lnt_repeat_heads(p, lnt_rotary(p, k, ROPE_THETA), (int)(n.heads / n.kv_heads));
    v = lnt_repeat_heads(p, v, (int)(n.heads / n.kv_heads));
    lnt_buf y = lnt_recur(p, "retention", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}}, .constant = {"g_head", g}});
    return lnt_out_proj(p, l, lnt_output_norm(p, l, x, y, o->use_output_gate, "g_norm_swish_gate", "g_norm"));
}

const lnt_mixer lnt_mixer_retnet = {
    .kind = {{"retnet", "retention: one constant decay a head, rotary q and k, gated output", "Sun et al. 2023, arXiv 2307.08621", "retention"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};

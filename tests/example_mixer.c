/* The example of docs/adding-a-mixer.md: a layer of linear attention in which a head forgets at a rate it learns,
 *   S_t = e^{g_t} S_{t-1} + k_t v_t^T,  o_t = S_t^T q_t K^{-1/2},  g_t = logsigmoid(W_a x_t + b) / slowness,  y_t = W_o RMSNorm(o_t). */
#include <math.h>

#include "mixers/mixers.h"

typedef struct {
    int64_t num_heads;
    double slowness;
    bool use_gate;
    int key_map;
} options;

static const lnt_act maps[] = {LNT_IDENTITY, LNT_RELU, LNT_ELU1}; /* the words of key_map */

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 4, "heads; each has hidden_size / num_heads columns"),
    LNT_REAL(options, slowness, 1, 1e6, 16, "a head's gate is divided by this"),
    LNT_SWITCH(options, use_gate, true, "outputs times silu(g_proj x) behind their norm"),
    LNT_WORD(options, key_map, "none relu elu", 0, "what queries and keys go through"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return lnt_check_divides(c, l, "num_heads", o->num_heads, "hidden_size", l->width);
}

static lnt_buf query_or_key(lnt_program *p, const lnt_layer *l, lnt_buf x, const char *name)
{
    const options *o = l->options;
    return lnt_project(p, x, name, o->num_heads, l->width / o->num_heads, 0, maps[o->key_map]);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    lnt_buf q = query_or_key(p, l, x, "q"), k = query_or_key(p, l, x, "k");
    lnt_buf v = lnt_heads_of(p, x, "v_proj", o->num_heads, l->width / o->num_heads);
    lnt_buf g = lnt_activation(p, lnt_linear_bias(p, x, "a_proj", o->num_heads), LNT_LOG_SIGMOID, 1 / o->slowness, true);
    lnt_buf y = lnt_recur(p, "simple_gla", (lnt_recur_in){.tensor = {{"q", q}, {"k", k}, {"v", v}, {"g", g}}});
    return lnt_out_proj(p, l, lnt_output_norm(p, l, x, y, o->use_gate, "o_norm", "o_norm"));
}

const lnt_mixer lnt_mixer_example = {
    .kind = {{"example", "the mixer of the guide: linear attention with a learned rate of forgetting", NULL, "simple_gla"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};

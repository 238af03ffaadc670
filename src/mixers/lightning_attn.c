/* Lightning attention as MiniMax-01 has it (arXiv 2501.08313, 2401.04658): linear attention with constant decays, slower from head to head and from
 * layer to layer, on q, k and v behind silu,
 *   S_t = e^{-s_h} S_{t-1} + k_t v_t^T,   o_t = S_t^T q_t,   y = W_o (sigmoid(W_g x) . RMSNorm(o)),   the norm over the whole width
 * with s_h = 2^{-8 (h+1) / H} (1 - l / (L - 1 + 1e-5) + 1e-5) in layer l of L; or, as other code has it, s_h = 8/H (1 - l/L) h. */
#include <math.h>

#include "mixers/mixers.h"

enum { EXPONENTIAL, LINEAR }; /* the words of slopes */

typedef struct {
    int64_t num_heads, head_dim;
    int slopes;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, num_heads, 1, LNT_MOST_WIDTH, 32, "heads"),
    LNT_MAYBE_INT(options, head_dim, 1, LNT_MOST_WIDTH, 0, 0, "columns of a head; null: hidden_size / num_heads"),
    LNT_WORD(options, slopes, "exponential linear", EXPONENTIAL,
             "decays e^{-s} of head h of H in layer l of L: s = 2^{-8(h+1)/H} (1 - l/(L-1)), or 8/H (1 - l/L) h"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    return o->head_dim ? LINNET_OK : lnt_check_divides(c, l, "num_heads", o->num_heads, "hidden_size", l->width);
}

static double slope(const options *o, const lnt_layer *l, int64_t h)
{
    const double heads = (double)o->num_heads, at = l->index, layers = l->layers;
    if (o->slopes == LINEAR) return 8 / heads * (1 - at / layers) * (double)h;
    return exp2(-8 * (double)(h + 1) / heads) * (1 - at / (layers - 1 + 1e-5) + 1e-5);
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t head = o->head_dim ? o->head_dim : l->width / o->num_heads;
    lnt_buf q = lnt_project(p, x, "q", o->num_heads, head, 0, LNT_SILU);
    lnt_buf k = lnt_project(p, x, "k", o->num_heads, head, 0, LNT_SILU);
    lnt_buf v = lnt_project(p, x, "v", o->num_heads, head, 0, LNT_SILU);
    double *g = lnt_program_alloc(p, lnt_bytes((size_t)o->num_heads, sizeof *g));
    for (int64_t h = 0; g && h < o->num_heads; h++) g[h] = -slope(o, l, h);
    const lnt_recur_in in = {.tensor = {{"q", q}, {"k", k}, {"v", v}}, .option = {{"scale", 1}}, .constant = {"g_head", g}};
    lnt_buf y = lnt_with_heads(p, lnt_recur(p, "retention", in), 1);
    return lnt_out_proj(p, l, lnt_gated_rmsnorm(p, y, lnt_linear(p, x, "g_proj", lnt_cols(p, y)), "norm", 1e-6, LNT_SIGMOID));
}

const lnt_mixer lnt_mixer_lightning_attn = {
    .kind = {{"lightning_attn", "linear attention with constant decays by head and layer, gated output",
              "MiniMax 2025, arXiv 2501.08313", "retention"},
             LNT_OPTIONS(options, keys), check},
    .build = build,
};

/* Softmax attention (arXiv 1706.03762) as in today's transformers: rotary positions, of a part of each head and scaled for longer texts where that is
 * wanted, grouped key-value heads, optional window, RMSNorm of q and k, and a gate on the output (arXiv 2505.06708). */
#include "mixers/attention_rule.h"

#include <math.h>

static const lnt_option keys[] = {LNT_ATTENTION_KEYS(32)};
enum { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

static int64_t head_of(const lnt_layer *l, const lnt_attention_options *o)
{
    return o->attention_head_dim ? o->attention_head_dim : l->width / o->num_heads;
}

/* Columns of a head that turn. */
static int64_t turning(const lnt_layer *l, const lnt_attention_options *o) { return (int64_t)((double)head_of(l, o) * o->rotary_factor); }

linnet_status lnt_check_attention(lnt_ctx *c, const lnt_layer *l, const lnt_attention_options *o)
{
    if (!o->attention_head_dim) LNT_TRY(lnt_check_divides(c, l, "num_heads", o->num_heads, "hidden_size", l->width));
    const char *head = o->attention_head_dim ? "attention_head_dim" : "hidden_size / num_heads";
    const char *what = o->rotary_factor != 1 ? "a head's columns * rotary_factor" : head;
    if (o->rope_theta > 0) LNT_TRY(lnt_check_even(c, l, what, turning(l, o)));
    if (o->rope_theta > 0 && turning(l, o) < 2)
        return lnt_fail(c, LINNET_EINVAL, "%s%s is %lld, expected at least 2", l->where, what, (long long)turning(l, o));
    if (o->rope_type == ROPE_LLAMA3 && !(o->rope_low_freq_factor < o->rope_high_freq_factor))
        return lnt_fail(c, LINNET_EINVAL, "%srope_low_freq_factor is %g, expected less than rope_high_freq_factor = %g", l->where,
                        o->rope_low_freq_factor, o->rope_high_freq_factor);
    return o->num_kv_heads ? lnt_check_divides(c, l, "num_kv_heads", o->num_kv_heads, "num_heads", o->num_heads) : LINNET_OK;
}

/* ---- angles of one position ---- */

/* Waves much longer than the old length are stretched, short ones stay, and between them it is a mixture (Llama 3.1, arXiv 2407.21783). */
static double llama3_angle(const lnt_attention_options *o, double theta)
{
    const double old = (double)o->rope_original_positions, wave = 2 * acos(-1.0) / theta;
    if (wave > old / o->rope_low_freq_factor) return theta / o->rope_factor;
    if (wave < old / o->rope_high_freq_factor) return theta;
    const double keep = (old / wave - o->rope_low_freq_factor) / (o->rope_high_freq_factor - o->rope_low_freq_factor);
    return (1 - keep) * theta / o->rope_factor + keep * theta;
}

/* The column (of `turning`) whose wave turns so often in the old length. */
static double column_of(const lnt_attention_options *o, double turns, double columns)
{
    return columns * log((double)o->rope_original_positions / (turns * 2 * acos(-1.0))) / (2 * log(o->rope_theta));
}

/* YaRN (arXiv 2309.00071, section 3.2): as above, with a ramp over the columns. */
static double yarn_angle(const lnt_attention_options *o, double theta, double i, double columns)
{
    double low = column_of(o, o->rope_beta_fast, columns), high = column_of(o, o->rope_beta_slow, columns);
    if (o->rope_truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, columns - 1);
    if (low == high) high += 0.001;
    const double stretched = fmin(fmax((i - low) / (high - low), 0), 1);
    return stretched * theta / o->rope_factor + (1 - stretched) * theta;
}

static double yarn_mscale(double factor, double m) { return factor > 1 ? 0.1 * m * log(factor) + 1 : 1; }

/* Factor of cosines and sines (section 3.4). */
static double scale_of(const lnt_attention_options *o)
{
    if (o->rope_type != ROPE_YARN) return 1;
    if (o->rope_attention_factor > 0) return o->rope_attention_factor;
    if (o->rope_mscale != 0 && o->rope_mscale_all_dim != 0)
        return yarn_mscale(o->rope_factor, o->rope_mscale) / yarn_mscale(o->rope_factor, o->rope_mscale_all_dim);
    return yarn_mscale(o->rope_factor, 1);
}

static lnt_buf turned(lnt_program *p, const lnt_layer *l, const lnt_attention_options *o, lnt_buf x)
{
    const int64_t columns = turning(l, o);
    if (!(o->rope_theta > 0) || !o->attention_rope) return x;
    double *theta = lnt_program_alloc(p, lnt_bytes((size_t)columns, sizeof *theta));
    for (int64_t i = 0; theta && i < columns / 2; i++) {
        theta[i] = pow(o->rope_theta, -2.0 * (double)i / (double)columns);
        if (o->rope_type == ROPE_LINEAR) theta[i] /= o->rope_factor;
        else if (o->rope_type == ROPE_LLAMA3) theta[i] = llama3_angle(o, theta[i]);
        else if (o->rope_type == ROPE_YARN) theta[i] = yarn_angle(o, theta[i], (double)i, (double)columns);
    }
    return theta ? lnt_rotary_by(p, x, columns / 2, theta, scale_of(o)) : LNT_NO_BUF;
}

/* ---- the layer ---- */

static lnt_buf qkv(lnt_program *p, const lnt_layer *l, const lnt_attention_options *o, lnt_buf x, const char *name, int64_t heads)
{
    const int64_t out = heads * head_of(l, o);
    return lnt_with_heads(p, o->qkv_bias ? lnt_linear_bias(p, x, name, out) : lnt_linear(p, x, name, out), (int32_t)heads);
}

static lnt_buf normed(lnt_program *p, const lnt_layer *l, const lnt_attention_options *o, lnt_buf x, const char *name)
{
    const double eps = o->qk_norm_eps > 0 ? o->qk_norm_eps : l->norm_eps;
    const int32_t heads = lnt_heads(p, x);
    if (!o->qk_norm) return x;
    if (o->qk_norm_of == 1) x = lnt_with_heads(p, x, 1);
    x = o->centred_qk_norm ? lnt_centred_rmsnorm(p, x, name, eps) : lnt_rmsnorm(p, x, name, eps);
    return lnt_with_heads(p, x, heads);
}

lnt_buf lnt_softmax_attention(lnt_program *p, const lnt_layer *l, const lnt_attention_options *o, lnt_buf x)
{
    const int64_t groups = o->num_kv_heads ? o->num_kv_heads : o->num_heads;
    lnt_buf q = qkv(p, l, o, x, "q_proj", o->num_heads), k = qkv(p, l, o, x, "k_proj", groups), v = qkv(p, l, o, x, "v_proj", groups);
    q = normed(p, l, o, q, "q_norm");
    k = normed(p, l, o, k, "k_norm");
    if (o->key_multiplier != 1) k = lnt_activation(p, k, LNT_IDENTITY, o->key_multiplier, false);
    q = turned(p, l, o, q);
    k = turned(p, l, o, k);
    lnt_recur_in in = {.tensor = {{"q", q}, {"k", k}, {"v", v}}, .option = {{"window", (double)o->window_size}}};
    if (o->attention_scale > 0) in.option[1].key = "scale", in.option[1].value = o->attention_scale;
    lnt_buf y = lnt_recur(p, "attention", in);
    if (o->attention_gate) {
        lnt_buf g = lnt_linear(p, x, "g_proj", lnt_cols(p, y));
        y = lnt_glu(p, lnt_with_heads(p, g, lnt_heads(p, y)), y, LNT_SIGMOID);
    }
    return o->o_bias ? lnt_linear_bias(p, lnt_with_heads(p, y, 1), "o_proj", l->width) : lnt_out_proj(p, l, y);
}

static linnet_status check(lnt_ctx *c, const lnt_layer *l) { return lnt_check_attention(c, l, l->options); }
static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x) { return lnt_softmax_attention(p, l, l->options, x); }

static void size(void *options, int64_t heads, int64_t head)
{
    lnt_attention_options *o = options;
    (void)head;
    o->num_heads = heads;
    o->num_kv_heads = o->attention_head_dim = 0;
}

const lnt_mixer lnt_mixer_attention = {
    .kind = {{"attention", "softmax attention: rotary, grouped heads, optional window, qk-norm and gate",
              "Vaswani et al. 2017, arXiv 1706.03762; Transformer++ as in Llama", "attention"},
             LNT_OPTIONS(lnt_attention_options, keys), check},
    .size = size,
    .build = build,
};

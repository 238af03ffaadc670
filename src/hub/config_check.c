/* What a configuration as a whole must satisfy, and what follows from it. */
#include <stdio.h>
#include <string.h>

#include "hub/config_keys.h"
#include "model/config.h"

int64_t lnt_config_mlp_width(const lnt_config *k)
{
    if (k->intermediate_size > 0) return k->intermediate_size;
    if (strcmp(k->model_type, "equal_backbone") == 0) return 3 * k->hidden_size; /* arXiv 2506.05233, section 4 */
    int64_t w = (int64_t)((double)k->hidden_size * (k->hidden_ratio > 0 ? k->hidden_ratio : 4) * 2 / 3);
    return (w + 255) / 256 * 256;
}

const lnt_attn_spec *lnt_config_attn_at(const lnt_config *k, int layer)
{
    for (int i = 0; i < k->n_attn; i++)
        for (int j = 0; j < k->attn[i].n_layers; j++)
            if (k->attn[i].layers[j] == layer) return &k->attn[i];
    return NULL;
}

static linnet_status divides(lnt_ctx *c, const char *by, int64_t b, const char *what, int64_t w)
{
    if (b > 0 && w % b == 0) return LINNET_OK;
    return lnt_fail(c, LINNET_EINVAL, "%s is %lld, expected a divisor of %s = %lld", by, (long long)b, what, (long long)w);
}

/* Softmax attention with rotary embedding: heads divide the width, the head size is even (rotation works on pairs). */
static linnet_status check_attention(lnt_ctx *c, const lnt_config *k, const char *where, int64_t heads, int64_t kv_heads)
{
    char name[64];
    snprintf(name, sizeof name, "%snum_heads", where);
    LNT_TRY(divides(c, name, heads, "hidden_size", k->hidden_size));
    if (k->hidden_size / heads % 2)
        return lnt_fail(c, LINNET_EINVAL, "hidden_size / %s is %lld, expected an even head size", name, (long long)(k->hidden_size / heads));
    char kv_name[64];
    snprintf(kv_name, sizeof kv_name, "%snum_kv_heads", where);
    return kv_heads ? divides(c, kv_name, kv_heads, name, heads) : LINNET_OK;
}

/* Mixers whose key and value widths are the model's times expand_k and expand_v. */
static linnet_status check_expanded(lnt_ctx *c, const lnt_config *k, bool grouped, bool rotary)
{
    int64_t key_width = (int64_t)((double)k->hidden_size * k->expand_k), value_width = (int64_t)((double)k->hidden_size * k->expand_v);
    if (key_width < 1 || value_width < 1)
        return lnt_fail(c, LINNET_EINVAL, "expand_k = %g and expand_v = %g of hidden_size = %lld leave no key or value", k->expand_k, k->expand_v,
                        (long long)k->hidden_size);
    LNT_TRY(divides(c, "num_heads", k->num_heads, "hidden_size * expand_k", key_width));
    LNT_TRY(divides(c, "num_heads", k->num_heads, "hidden_size * expand_v", value_width));
    if (grouped && k->num_kv_heads) LNT_TRY(divides(c, "num_kv_heads", k->num_kv_heads, "num_heads", k->num_heads));
    int64_t head = key_width / k->num_heads;
    if (rotary && head % 2)
        return lnt_fail(c, LINNET_EINVAL, "hidden_size * expand_k / num_heads is %lld, expected an even head size", (long long)head);
    return LINNET_OK;
}

static linnet_status check_gated_deltanet(lnt_ctx *c, const lnt_config *k)
{
    double value = (double)k->head_dim * k->expand_v;
    if (value < 1 || value != (double)(int64_t)value)
        return lnt_fail(c, LINNET_EINVAL, "head_dim * expand_v is %g, expected a whole value size", value);
    return k->num_v_heads ? divides(c, "num_heads", k->num_heads, "num_v_heads", k->num_v_heads) : LINNET_OK;
}

static linnet_status check_solver(lnt_ctx *c, const lnt_config *k)
{
    if (k->min_cg_step_training > k->max_cg_step_training)
        return lnt_fail(c, LINNET_EINVAL, "min_cg_step_training is %lld, expected at most max_cg_step_training = %lld",
                        (long long)k->min_cg_step_training, (long long)k->max_cg_step_training);
    if (strcmp(k->cg_gradient, "unrolled") != 0) return LINNET_OK;
    if (strcmp(k->cg_solver, "flash") == 0)
        return lnt_fail(c, LINNET_EINVAL, "cg_gradient is unrolled, but the steps of cg_solver = flash round to float16");
    if (k->max_cg_step_training > 1024)
        return lnt_fail(c, LINNET_EINVAL, "max_cg_step_training is %lld, expected at most 1024 with cg_gradient = unrolled",
                        (long long)k->max_cg_step_training);
    return LINNET_OK;
}

static linnet_status check_equal_backbone(lnt_ctx *c, const lnt_config *k)
{
    bool attention = k->n_layer_mixers == 0 && strcmp(k->rule, "attention") == 0;
    for (int i = 0; i < k->n_layer_mixers; i++) attention |= strcmp(k->layer_mixers[i], "attention") == 0;
    if (attention && k->head_dim % 2)
        return lnt_fail(c, LINNET_EINVAL, "head_dim is %lld, expected an even head size", (long long)k->head_dim);
    return check_solver(c, k);
}

static linnet_status check_mixer(lnt_ctx *c, const lnt_config *k, const char *mixer)
{
    if (strcmp(mixer, "linear_attn") == 0 || strcmp(mixer, "simple_gla") == 0) return check_expanded(c, k, true, false);
    if (strcmp(mixer, "retnet") == 0) return check_expanded(c, k, true, true);
    if (strcmp(mixer, "delta_net") == 0) return check_expanded(c, k, false, false);
    if (strcmp(mixer, "gated_deltanet") == 0) return check_gated_deltanet(c, k);
    if (strcmp(mixer, "mesa_net") == 0) return check_solver(c, k);
    return check_attention(c, k, "", k->num_heads, k->num_kv_heads);
}

static linnet_status check_attn(lnt_ctx *c, const lnt_config *k)
{
    bool seen[LNT_MAX_LAYERS] = {false};
    for (int i = 0; i < k->n_attn; i++) {
        const lnt_attn_spec *a = &k->attn[i];
        LNT_TRY(check_attention(c, k, "attn.", a->num_heads, a->num_kv_heads));
        for (int j = 0; j < a->n_layers; j++) {
            int layer = a->layers[j];
            if (layer < 0 || layer >= k->num_hidden_layers)
                return lnt_fail(c, LINNET_EINVAL, "attn.layers has %d, expected layers below num_hidden_layers = %lld", layer,
                                (long long)k->num_hidden_layers);
            if (seen[layer]) return lnt_fail(c, LINNET_EINVAL, "attn.layers has layer %d twice", layer);
            seen[layer] = true;
        }
    }
    return LINNET_OK;
}

linnet_status lnt_config_check(lnt_ctx *c, const lnt_config *k)
{
    unsigned bit = lnt_model_type_bit(k->model_type);
    if (!bit) return lnt_fail(c, LINNET_EINVAL, "model type \"%s\" is not offered", k->model_type);
    if (k->n_layer_mixers && k->n_layer_mixers != k->num_hidden_layers)
        return lnt_fail(c, LINNET_EINVAL, "layer_mixers names %d layers, expected num_hidden_layers = %lld", k->n_layer_mixers,
                        (long long)k->num_hidden_layers);
    if (k->pad_token_id >= k->vocab_size)
        return lnt_fail(c, LINNET_EINVAL, "pad_token_id is %lld, expected less than vocab_size = %lld", (long long)k->pad_token_id,
                        (long long)k->vocab_size);
    LNT_TRY(check_attn(c, k));
    if (strcmp(k->model_type, "equal_backbone") == 0) return check_equal_backbone(c, k);
    if (k->n_layer_mixers == 0) return check_mixer(c, k, lnt_model_types[__builtin_ctz(bit)].mixer);
    for (int i = 0; i < k->n_layer_mixers; i++) LNT_TRY(check_mixer(c, k, k->layer_mixers[i]));
    return LINNET_OK;
}

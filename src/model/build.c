/* From a configuration to a program: embedding, blocks of a mixer and a SwiGLU, final norm, head. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "linnet/recurrence.h"
#include "mixers/mixers.h"
#include "model/model.h"

static lnt_act act_named(const char *name)
{
    if (!strcmp(name, "relu")) return LNT_RELU;
    if (!strcmp(name, "elu")) return LNT_ELU1;
    if (!strcmp(name, "identity")) return LNT_IDENTITY;
    return LNT_SILU;
}

static lnt_feature_map map_named(const char *name)
{
    static const struct {
        const char *name;
        lnt_feature_map map;
    } maps[] = {{"elementwise_product", LNT_MAP_ELEMENTWISE_PRODUCT},
                {"hedgehog", LNT_MAP_HEDGEHOG},
                {"t2r", LNT_MAP_T2R},
                {"dpfp", LNT_MAP_DPFP},
                {"elu", LNT_MAP_ELU},
                {"relu", LNT_MAP_RELU}};
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++)
        if (!strcmp(maps[i].name, name)) return maps[i].map;
    return LNT_MAP_IDENTITY;
}

static linnet_cg_solver solver_named(const char *name)
{
    if (!strcmp(name, "flash")) return LINNET_CG_FLASH;
    if (!strcmp(name, "absolute")) return LINNET_CG_ABSOLUTE;
    if (!strcmp(name, "plain")) return LINNET_CG_PLAIN;
    return !strcmp(name, "jacobi") ? LINNET_CG_JACOBI : LINNET_CG_LEVEL;
}

/* The mixer of a layer and its resolved sizes. */
static const char *mixer_of(const lnt_config *k, int layer, lnt_mixer_config *m)
{
    bool equal = !strcmp(k->model_type, "equal_backbone"), named = k->n_layer_mixers > 0;
    const char *name = named && !equal ? k->layer_mixers[layer] : !strcmp(k->model_type, "transformer") ? "attention" : k->model_type;
    const lnt_attn_spec *attn = lnt_config_attn_at(k, layer);
    if (attn) name = "attention";
    *m = (lnt_mixer_config){
        .width = k->hidden_size,
        .heads = (int32_t)k->num_heads,
        .norm_eps = k->norm_eps,
        .short_conv = k->use_short_conv,
        .beta = k->use_beta,
        .neg_eigval = k->allow_neg_eigval,
        .conv_size = (int)k->conv_size,
        .qk_activation = act_named(k->qk_activation),
        .qk_sum_norm = !strcmp(k->qk_norm, "sum"),
        .qk_norm = !strcmp(k->qk_norm, "true"),
        .qkv_bias = k->qkv_bias,
        .window = k->window_size,
        .rope_theta = k->rope_theta,
        .feature_map = map_named(k->feature_map),
        .tie_feature_map = k->tie_feature_map_qk,
        .norm_q = k->norm_q,
        .norm_k = k->norm_k,
        .normalize = k->norm_feature_map,
        .rule = named && equal ? k->layer_mixers[layer] : k->rule,
        .gamma_cap = k->gamma_cap,
        .lambda_lower_bound = k->lambda_lower_bound,
        .cg_tolerance = k->cg_tolerance,
        .cg_steps = (int32_t)k->max_cg_step_training,
        .cg_steps_min = (int32_t)k->min_cg_step_training,
        .cg_steps_decoding = (int32_t)k->max_cg_step_decoding,
        .cg_guess = !strcmp(k->cg_guess, "zero") ? LINNET_CG_ZERO : LINNET_CG_DIAGONAL,
        .cg_solver = solver_named(k->cg_solver),
        .cg_gradient = !strcmp(k->cg_gradient, "unrolled") ? LINNET_CG_UNROLLED : LINNET_CG_IMPLICIT,
    };
    m->kv_heads = (int32_t)(k->num_kv_heads ? k->num_kv_heads : k->num_heads);
    m->v_heads = (int32_t)(k->num_v_heads ? k->num_v_heads : k->num_heads);
    bool mesa = !strcmp(name, "mesa_net"), gated = mesa || !strcmp(name, "retnet") || !strcmp(name, "simple_gla");
    m->output_gate = gated ? k->use_output_gate : k->use_gate;
    if (attn) {
        m->heads = (int32_t)attn->num_heads;
        m->kv_heads = (int32_t)(attn->num_kv_heads ? attn->num_kv_heads : attn->num_heads);
        m->qkv_bias = attn->qkv_bias;
        m->window = attn->window_size;
        m->rope_theta = attn->rope_theta;
        m->qk_norm = false;
    }
    if (!strcmp(name, "attention"))
        m->key_dim = m->value_dim = k->hidden_size / m->heads;
    else if (!strcmp(name, "gated_deltanet") || equal || mesa) {
        m->key_dim = k->head_dim;
        m->value_dim = equal || mesa ? k->head_dim : (int64_t)llround((double)k->head_dim * k->expand_v);
    } else {
        m->key_dim = (int64_t)llround((double)k->hidden_size * k->expand_k) / m->heads;
        m->value_dim = (int64_t)llround((double)k->hidden_size * k->expand_v) / m->heads;
    }
    /* variance of what projects back to the residual stream times 2/N (arXiv 2506.05233, appendix D) */
    if (equal) m->out_std = sqrt(2.0 / (double)k->num_hidden_layers / (double)(m->heads * m->value_dim));
    return name;
}

static lnt_buf mlp(lnt_program *p, const lnt_config *k, lnt_buf x, bool equal)
{
    int64_t inner = lnt_config_mlp_width(k);
    lnt_push_scope(p, "mlp");
    const lnt_buf gate = lnt_linear(p, x, "gate_proj", inner), up = lnt_linear(p, x, "up_proj", inner); /* in this order, whatever the compiler */
    lnt_buf y = lnt_swiglu(p, gate, up);
    double before = equal ? lnt_set_init_std(p, sqrt(2.0 / (double)k->num_hidden_layers / (double)inner)) : 0;
    y = lnt_linear(p, y, "down_proj", k->hidden_size);
    if (equal) lnt_set_init_std(p, before);
    lnt_pop_scope(p);
    return y;
}

static lnt_buf block(lnt_program *p, const lnt_config *k, int layer, lnt_buf x)
{
    bool equal = !strcmp(k->model_type, "equal_backbone");
    lnt_mixer_config m;
    const lnt_mixer *mixer = lnt_mixer_find(mixer_of(k, layer, &m));
    lnt_set_block(p, layer);
    lnt_push_scope(p, "layers.%d", layer);
    lnt_buf y = lnt_rmsnorm(p, x, "attn_norm", k->norm_eps);
    lnt_push_scope(p, "attn");
    y = mixer ? mixer->build(p, &m, y) : lnt_program_fail(p, "there is no mixer \"%s\"", k->layer_mixers[layer]);
    lnt_pop_scope(p);
    x = lnt_add_buf(p, x, y);
    x = lnt_add_buf(p, x, mlp(p, k, lnt_rmsnorm(p, x, "mlp_norm", k->norm_eps), equal));
    lnt_pop_scope(p);
    return x;
}

static void build(linnet_model *m)
{
    const lnt_config *k = m->config;
    lnt_program *p = m->p;
    bool equal = !strcmp(k->model_type, "equal_backbone");
    double width = (double)k->hidden_size;
    /* equal_backbone: N(0, 1/width) times sqrt(width) at look-up, so that the residual stream starts with variance 1 */
    lnt_init embedding = {LNT_INIT_NORMAL, equal ? 1 / sqrt(width) : k->initializer_range, 0};
    lnt_set_init_std(p, equal ? 0 : k->initializer_range);
    m->ids = lnt_external(p, "input_ids");
    m->targets = lnt_external(p, "targets");
    lnt_push_scope(p, "model");
    lnt_buf x = lnt_embedding(p, m->ids, "embeddings", k->vocab_size, k->hidden_size, equal ? sqrt(width) : 1, embedding, false);
    for (int l = 0; l < k->num_hidden_layers; l++) x = block(p, k, l, x);
    lnt_set_block(p, -1);
    m->hidden = lnt_rmsnorm(p, x, "norm", k->norm_eps);
    lnt_pop_scope(p);
    const char *head = k->tie_word_embeddings ? "model.embeddings.weight" : "lm_head.weight";
    double cap = equal ? k->logit_soft_cap : 0;
    m->loss = lnt_lm_loss(p, m->hidden, m->targets, head, k->vocab_size, cap, embedding);
    m->logits = lnt_lm_logits(p, m->hidden, head, k->vocab_size, cap, embedding);
}

/* The model without weights. */
static linnet_status build_model(lnt_ctx *c, const lnt_config *k, lnt_dtype dtype, linnet_model **out)
{
    *out = NULL;
    if (dtype != LINNET_F32 && dtype != LINNET_BF16)
        return lnt_fail(c, LINNET_EINVAL, "dtype is %s, expected float32 or bf16", lnt_dtype_name(dtype));
    LNT_TRY(lnt_config_check(c, k));
    linnet_model *m = lnt_calloc(sizeof *m);
    if (!m) return lnt_fail_memory(c, sizeof *m);
    m->c = c;
    m->dtype = dtype;
    linnet_status s;
    LNT_TRY_GOTO(s, lnt_config_copy(c, k, &m->config), fail);
    LNT_TRY_GOTO(s, lnt_program_create(c, &m->p), fail);
    build(m);
    LNT_TRY_GOTO(s, lnt_program_finish(m->p), fail);
    *out = m;
    return LINNET_OK;
fail:
    linnet_model_destroy(m);
    return s;
}

linnet_status lnt_model_build(lnt_ctx *c, const lnt_config *k, lnt_dtype dtype, lnt_dtype kept, linnet_model **out)
{
    LNT_TRY(build_model(c, k, dtype, out));
    linnet_status s = lnt_weights_create(c, (*out)->p, dtype, kept, &(*out)->w);
    if (s == LINNET_OK) return s;
    linnet_model_destroy(*out);
    *out = NULL;
    return s;
}

static bool same_parameters(const lnt_program *a, const lnt_program *b)
{
    bool same = lnt_param_count(a) == lnt_param_count(b);
    for (int i = 0; same && i < lnt_param_count(a); i++) {
        const lnt_param *x = lnt_param_at(a, i), *y = lnt_param_at(b, i);
        same = x->offset == y->offset && x->count == y->count && strcmp(x->name, y->name) == 0;
    }
    return same;
}

linnet_status lnt_model_view(lnt_ctx *c, const linnet_model *m, const lnt_config *k, linnet_model **out)
{
    LNT_TRY(build_model(c, k, m->dtype, out));
    (*out)->w = m->w;
    (*out)->borrowed = true;
    if (same_parameters(m->p, (*out)->p)) return LINNET_OK;
    linnet_model_destroy(*out);
    *out = NULL;
    return lnt_fail(c, LINNET_EINTERNAL, "a view of a model with other parameters");
}

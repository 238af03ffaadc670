/* From a configuration to a program: embedding, blocks, final norm, head. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"

struct lnt_block_parts {
    const lnt_config *k;
    const lnt_part *mixer;
    int layer;
};

const void *lnt_block_options(const lnt_block_parts *b) { return b->k->block.options; }

int lnt_block_layer(const lnt_block_parts *b) { return b->layer; }

bool lnt_block_first_mixer(const lnt_block_parts *b) { return b->mixer == &b->k->mixers[0]; }

static lnt_buf norm(lnt_program *p, const lnt_config *k, int layer, lnt_buf x, const char *name)
{
    const lnt_layer l = lnt_config_layer(k, &k->norm, layer);
    return ((const lnt_norm *)k->norm.kind)->build(p, &l, x, name);
}

lnt_buf lnt_block_norm(lnt_program *p, const lnt_block_parts *b, lnt_buf x, const char *name) { return norm(p, b->k, b->layer, x, name); }

lnt_buf lnt_block_mixer(lnt_program *p, const lnt_block_parts *b, lnt_buf x)
{
    const lnt_layer l = lnt_config_layer(b->k, b->mixer, b->layer);
    lnt_push_scope(p, "attn");
    x = ((const lnt_mixer *)b->mixer->kind)->build(p, &l, x);
    lnt_pop_scope(p);
    return x;
}

bool lnt_block_has_mlp(const lnt_block_parts *b) { return ((const lnt_mlp *)b->k->mlp.kind)->build != NULL; }

lnt_buf lnt_block_mlp(lnt_program *p, const lnt_block_parts *b, lnt_buf x)
{
    const lnt_layer l = lnt_config_layer(b->k, &b->k->mlp, b->layer);
    lnt_push_scope(p, "mlp");
    x = ((const lnt_mlp *)b->k->mlp.kind)->build(p, &l, x);
    lnt_pop_scope(p);
    return x;
}

/* What stood at each place of a sequence, said from its last vector alone: the decoder of MAD's compression (arXiv 2403.17844). */
static lnt_buf decode(lnt_program *p, const lnt_config *k, lnt_buf x)
{
    lnt_push_scope(p, "decoder");
    x = lnt_from_last(p, x);
    for (int i = 0; i < 2; i++) {
        lnt_push_scope(p, "%d", i);
        x = lnt_activation(p, lnt_linear_bias(p, norm(p, k, -1, x, "norm"), "proj", k->hidden_size), LNT_GELU, 1, false);
        lnt_pop_scope(p);
    }
    lnt_pop_scope(p);
    return x;
}

static void build(linnet_model *m)
{
    const lnt_config *k = m->config;
    lnt_program *p = m->p;
    double root = sqrt((double)k->hidden_size);
    lnt_init embedding = {LNT_INIT_NORMAL, k->fan_in_init ? 1 / root : k->initializer_range, 0};
    lnt_set_init_std(p, k->fan_in_init ? 0 : k->initializer_range);
    m->ids = lnt_external(p, "input_ids");
    m->targets = lnt_external(p, "targets");
    lnt_push_scope(p, "model");
    const double times = k->embedding_multiplier * (k->scale_embeddings ? root : 1);
    lnt_buf x = lnt_embedding(p, m->ids, "embeddings", k->vocab_size, k->hidden_size, times, embedding, false);
    if (!k->residual_in_fp32) x = lnt_activation(p, x, LNT_IDENTITY, 1, false); /* sums take the type of what they are added to */
    m->layers = lnt_program_alloc(p, lnt_bytes((size_t)k->num_hidden_layers, sizeof *m->layers));
    for (int l = 0; l < k->num_hidden_layers; l++) {
        const lnt_block_parts b = {k, &k->mixers[k->mixer_of[l]], l};
        lnt_set_block(p, l);
        lnt_push_scope(p, "layers.%d", l);
        x = ((const lnt_block *)k->block.kind)->build(p, &b, x);
        if (m->layers) m->layers[l] = x;
        lnt_pop_scope(p);
    }
    lnt_set_block(p, -1);
    if (k->readout == LNT_FROM_LAST) x = decode(p, k, x);
    m->hidden = norm(p, k, -1, x, "norm");
    lnt_pop_scope(p);
    const double scale = k->logit_multiplier / k->logit_divisor; /* of what goes into the head, which is linear */
    lnt_buf last = scale == 1 ? m->hidden : lnt_activation(p, m->hidden, LNT_IDENTITY, scale, false);
    const char *head = k->tie_word_embeddings ? "model.embeddings.weight" : "lm_head.weight";
    m->loss = lnt_lm_loss(p, last, m->targets, head, k->vocab_size, k->logit_soft_cap, embedding);
    m->logits = lnt_lm_logits(p, last, head, k->vocab_size, k->logit_soft_cap, embedding);
}

linnet_status lnt_model_outline(lnt_ctx *c, const lnt_config *k, lnt_dtype dtype, linnet_model **out)
{
    *out = NULL;
    LNT_TRY(lnt_model_dtype_check(c, "dtype", dtype));
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
    LNT_TRY(lnt_model_outline(c, k, dtype, out));
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
    LNT_TRY(lnt_model_outline(c, k, m->dtype, out));
    (*out)->w = m->w;
    (*out)->borrowed = true;
    if (same_parameters(m->p, (*out)->p)) return LINNET_OK;
    linnet_model_destroy(*out);
    *out = NULL;
    return lnt_fail(c, LINNET_EINTERNAL, "a view of a model with other parameters");
}

/* The public face of a model: create, describe, logits. */
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#include "device/device.h"

linnet_status linnet_model_create(linnet_context *c, const linnet_config *k, linnet_dtype dtype, uint64_t seed, linnet_model **out)
{
    return linnet_model_create_kept(c, k, dtype, LINNET_F32, seed, out);
}

linnet_status linnet_model_create_kept(linnet_context *c, const linnet_config *k, linnet_dtype dtype, linnet_dtype weights, uint64_t seed,
                                       linnet_model **out)
{
    LNT_NEED(c, k);
    LNT_NEED(c, out);
    LNT_TRY(lnt_model_dtype_check(c, "dtype", dtype));
    LNT_TRY(lnt_weights_dtype_check(c, weights));
    LNT_TRY(lnt_model_build(c, k, dtype, weights, out));
    linnet_status s = lnt_weights_init((*out)->w, seed);
    if (s != LINNET_OK) {
        linnet_model_destroy(*out);
        *out = NULL;
    }
    return s;
}

linnet_status linnet_model_outline(linnet_context *c, const linnet_config *k, linnet_dtype dtype, linnet_model **out)
{
    return lnt_model_outline(c, k, dtype, out);
}

void linnet_model_destroy(linnet_model *m)
{
    if (!m) return;
    if (!m->borrowed) lnt_weights_destroy(m->w);
    lnt_program_destroy(m->p);
    linnet_config_destroy(m->config);
    lnt_free(m);
}

static int64_t count_parameters(const lnt_program *p)
{
    int64_t n = 0;
    for (int i = 0; i < lnt_param_count(p); i++) n += lnt_param_at(p, i)->count;
    return n;
}

linnet_status lnt_model_check(lnt_ctx *c, const linnet_model *m)
{
    LNT_TRY(lnt_need(c, m, "the model"));
    if (m->c == c) return LINNET_OK;
    lnt_fail(c, LINNET_EINVAL, "the model belongs to another context");
    return lnt_hint(c, "A model is used with the context that it was made with.");
}

linnet_status lnt_model_check_next(lnt_ctx *c, const linnet_model *m)
{
    LNT_TRY(lnt_model_check(c, m));
    return lnt_config_check_next(c, m->config);
}

linnet_status lnt_model_check_own(lnt_ctx *c, const linnet_model *m)
{
    LNT_TRY(lnt_model_check(c, m));
    if (!m->w) return lnt_fail(c, LINNET_EINVAL, "the model is an outline, which has no weights");
    if (!m->w->of) return LINNET_OK;
    lnt_fail(c, LINNET_EINVAL, "the model shares the weights of another, which are read alone");
    return lnt_hint(c, "The model that linnet_model_share was given can be changed when nobody shares it any more.");
}

linnet_status linnet_model_share(linnet_context *c, const linnet_model *m, linnet_model **out)
{
    LNT_NEED(c, m);
    LNT_NEED(c, out);
    *out = NULL;
    if (!m->w) return lnt_fail(c, LINNET_EINVAL, "the model is an outline, which has no weights");
    if (!lnt_device_same(c, m->c)) return lnt_fail(c, LINNET_EINVAL, "the model is on another device than this context's");
    lnt_device_wait(m->c); /* for who wrote the weights last */
    LNT_TRY(lnt_model_outline(c, m->config, m->dtype, out));
    const linnet_status s = lnt_weights_share(c, (*out)->p, m->w, &(*out)->w);
    if (s == LINNET_OK) return s;
    linnet_model_destroy(*out);
    *out = NULL;
    return s;
}

linnet_status linnet_model_get_info(const linnet_model *m, linnet_model_info *out)
{
    if (!m) return LINNET_EINVAL;
    LNT_TRY(lnt_result_check(m->c, out));
    const lnt_config *k = m->config;
    linnet_model_info i = {.parameters = count_parameters(m->p),
                           .vocabulary = k->vocab_size,
                           .width = k->hidden_size,
                           .layers = k->num_hidden_layers,
                           .state_capacity = k->max_position_embeddings,
                           .model_type = k->model_type};
    i.state_bytes_per_sequence = (int64_t)lnt_state_bytes(m->p, m->dtype, i.state_capacity);
    const bool grows = (int64_t)lnt_state_bytes(m->p, m->dtype, i.state_capacity - 1) != i.state_bytes_per_sequence;
    if (!grows) i.state_capacity = 0;
    LNT_GIVE(out, i);
    return LINNET_OK;
}

linnet_status lnt_check_ids(lnt_ctx *c, const linnet_model *m, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= m->config->vocab_size)
            return lnt_fail(c, LINNET_EINVAL, "token id %d at position %lld, expected 0 to %lld", ids[i], (long long)i,
                            (long long)m->config->vocab_size - 1);
    return LINNET_OK;
}

linnet_status linnet_model_logits(linnet_context *c, linnet_model *m, const int64_t *ids, int64_t B, int64_t T, float *logits)
{
    LNT_TRY(lnt_model_check(c, m));
    const int64_t dims[3] = {B, T, m->config->vocab_size};
    int64_t all, tokens;
    if (B < 0 || T < 0) return lnt_fail(c, LINNET_EINVAL, "logits of [%lld,%lld] tokens", (long long)B, (long long)T);
    if (B == 0 || T == 0) return LINNET_OK; /* nothing is there, however often */
    LNT_NEED(c, ids);
    LNT_NEED(c, logits);
    LNT_TRY(lnt_size_product(c, "the array of ids", 2, dims, &tokens));
    LNT_TRY(lnt_size_product(c, "the array of logits", 4, (int64_t[]){B, T, dims[2], sizeof *logits}, &all));
    int32_t *ids32 = lnt_alloc(lnt_bytes((size_t)tokens, 4));
    if (!ids32) return lnt_fail_memory(c, lnt_bytes((size_t)tokens, 4));
    lnt_plan *plan = NULL;
    linnet_status s = LINNET_OK;
    for (int64_t i = 0; i < tokens; i++) {
        if (ids[i] < 0 || ids[i] >= m->config->vocab_size) {
            s = lnt_fail(c, LINNET_EINVAL, "token id %lld at position %lld, expected 0 to %lld", (long long)ids[i], (long long)i,
                         (long long)m->config->vocab_size - 1);
            goto done;
        }
        ids32[i] = (int32_t)ids[i];
    }
    lnt_plan_options o = {.tokens = tokens, .n_seq = B, .dtype = m->dtype, .n_outputs = 1, .outputs = {m->logits}};
    LNT_TRY_GOTO(s, lnt_plan_create(c, m->p, &o, &plan), done);
    lnt_batch b = {.tokens = tokens, .n_seq = B, .n_inputs = 1, .inputs = {{m->ids, ids32}}};
    LNT_TRY_GOTO(s, lnt_plan_run(plan, m->w, &b), done);
    lnt_to_host(c, logits, lnt_plan_output(plan, m->logits).data, (size_t)all);
done:
    lnt_plan_destroy(plan);
    lnt_free(ids32);
    return s;
}

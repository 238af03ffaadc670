/* `linnet logits`: input_ids of one safetensors file to logits of another, in one pass or token by token through the state. */
#include <string.h>

#include "device/device.h"
#include "hub/safetensors.h"
#include "model/model.h"

static linnet_status logits_by_step(lnt_ctx *c, linnet_model *m, const int64_t *ids, int64_t B, int64_t T, float *logits)
{
    int64_t V = m->config->vocab_size;
    lnt_state *state = NULL;
    lnt_plan *plan = NULL;
    linnet_status s;
    int32_t *now = lnt_alloc(lnt_bytes((size_t)B, 4));
    if (!now) return lnt_fail_memory(c, lnt_bytes((size_t)B, 4));
    lnt_plan_options o = {.tokens = B, .n_seq = B, .dtype = m->dtype, .has_state = true, .state_capacity = T, .n_outputs = 1, .outputs = {m->logits}};
    LNT_TRY_GOTO(s, lnt_state_create(c, m->p, m->dtype, B, T, &state), done);
    LNT_TRY_GOTO(s, lnt_plan_create(c, m->p, &o, &plan), done);
    for (int64_t t = 0; t < T; t++) {
        for (int64_t b = 0; b < B; b++) now[b] = (int32_t)ids[b * T + t];
        lnt_batch run = {.tokens = B, .n_seq = B, .n_inputs = 1, .inputs = {{m->ids, now}}, .state = state};
        LNT_TRY_GOTO(s, lnt_plan_run(plan, m->w, &run), done);
        const float *row = lnt_plan_output(plan, m->logits).data;
        for (int64_t b = 0; b < B; b++) lnt_to_host(c, logits + (b * T + t) * V, row + b * V, (size_t)V * 4);
    }
done:
    lnt_plan_destroy(plan);
    lnt_state_destroy(state);
    lnt_free(now);
    return s;
}

linnet_status linnet_model_logits_file(linnet_context *c, linnet_model *m, const char *in, const char *out, int step)
{
    lnt_safetensors *file;
    LNT_TRY(step ? lnt_model_check_next(c, m) : lnt_model_check(c, m));
    LNT_NEED(c, in);
    LNT_NEED(c, out);
    LNT_TRY(lnt_safetensors_open(c, in, &file));
    linnet_status s = LINNET_OK;
    float *logits = NULL;
    int64_t *ids = NULL, all;
    const lnt_st_tensor *t = lnt_safetensors_find(file, "input_ids");
    if (!t || t->ndim != 2 || (t->dtype != LINNET_I64 && t->dtype != LINNET_I32)) {
        s = lnt_fail(c, LINNET_EFORMAT, t ? "tensor \"input_ids\" is not a two-dimensional array of i64 or i32" : "tensor \"input_ids\" is missing");
        lnt_detail(c, "Read from %s.", in);
        goto done;
    }
    int64_t V = m->config->vocab_size, B = t->dim[0], T = t->dim[1];
    LNT_TRY_GOTO(s, lnt_size_product(c, "the array of logits", 3, (int64_t[]){B, T, V * 4}, &all), done);
    logits = lnt_alloc((size_t)all);
    ids = lnt_alloc(lnt_bytes((size_t)t->count, 8));
    if (!logits || !ids) {
        s = lnt_fail_memory(c, (size_t)all);
        goto done;
    }
    for (int64_t i = 0; i < t->count; i++) {
        int64_t one = 0;
        memcpy(&one, (const char *)t->data + (size_t)i * lnt_dtype_size(t->dtype), lnt_dtype_size(t->dtype));
        ids[i] = t->dtype == LINNET_I32 ? (int32_t)one : one;
        if (ids[i] < 0 || ids[i] >= V) {
            s = lnt_fail(c, LINNET_EINVAL, "token id %lld at position %lld, expected 0 to %lld", (long long)ids[i], (long long)i, (long long)V - 1);
            lnt_detail(c, "Read from %s.", in);
            goto done;
        }
    }
    if (t->count) LNT_TRY_GOTO(s, step ? logits_by_step(c, m, ids, B, T, logits) : linnet_model_logits(c, m, ids, B, T, logits), done);
    lnt_st_tensor result = {.name = "logits", .dtype = LINNET_F32, .ndim = 3, .dim = {B, T, V}, .count = t->count * V, .data = logits};
    s = lnt_safetensors_write(c, out, 1, &result, 0, NULL);
done:
    lnt_free(ids);
    lnt_free(logits);
    lnt_safetensors_close(file);
    return s;
}

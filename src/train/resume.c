#include "train/resume.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "device/device.h"
#include "hub/checkpoint.h"

static void state_path(char *path, size_t size, const char *folder) { snprintf(path, size, "%s/train_state.safetensors", folder); }

static bool all_finite(const float *x, int64_t n)
{
    const uint32_t exponent = 0x7f800000;
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bad |= (bits & exponent) == exponent;
    }
    return !bad;
}

static linnet_status check_finite(lnt_ctx *c, const lnt_st_tensor *tensors, int n, int64_t step)
{
    for (int i = 0; i < n; i++)
        if (!all_finite(tensors[i].data, tensors[i].count))
            return lnt_fail(c, LINNET_EINVAL, "\"%s\" holds what is not finite after step %" PRId64, tensors[i].name, step);
    return LINNET_OK;
}

linnet_status lnt_resume_stage(lnt_ctx *c, const lnt_trainer *t, const lnt_run_settings *r, lnt_file_writer *w)
{
    static const char *const prefix[3] = {"weight.", "moment1.", "moment2."};
    const lnt_program *p = t->m->p;
    const size_t bytes = lnt_bytes((size_t)t->m->w->elements, 4);
    int n = lnt_param_count(p);
    lnt_arena scratch = {0};
    float *host[3] = {0};
    char path[4096];
    const char *metadata[2 * LNT_SETTINGS];
    const int n_metadata = lnt_settings_list(r, &scratch, metadata);
    lnt_st_tensor *tensors = lnt_calloc(lnt_bytes(lnt_bytes(3, (size_t)n), sizeof *tensors));
    linnet_status s = n_metadata && tensors ? LINNET_OK : lnt_fail_memory(c, lnt_bytes(lnt_bytes(3, (size_t)n), sizeof *tensors));
    *w = (lnt_file_writer){0};
    for (int i = 0; s == LINNET_OK && i < 3; i++) {
        host[i] = lnt_alloc(bytes);
        if (!host[i]) s = lnt_fail_memory(c, bytes);
        else if (i) lnt_to_host(c, host[i], i == 1 ? t->optimizer->m : t->optimizer->v, bytes);
        else s = lnt_weights_get(t->m->w, host[0]);
        if (s == LINNET_OK) s = lnt_checkpoint_list(c, p, NULL, prefix[i], host[i], &scratch, tensors + i * n);
    }
    if (s == LINNET_OK) s = check_finite(c, tensors, 3 * n, r->at.step);
    state_path(path, sizeof path, r->o.out);
    if (s == LINNET_OK) s = lnt_safetensors_stage(c, path, 3 * n, tensors, n_metadata, metadata, w);
    for (int i = 0; i < 3; i++) lnt_free(host[i]);
    lnt_free(tensors);
    lnt_arena_free(&scratch);
    return s;
}

static linnet_status open_state(lnt_ctx *c, const char *folder, lnt_safetensors **out)
{
    char path[4096];
    state_path(path, sizeof path, folder);
    return lnt_safetensors_open(c, path, out);
}

static const char *metadata_of(const void *file, const char *key) { return lnt_safetensors_metadata(file, key); }

linnet_status lnt_resume_read_settings(lnt_ctx *c, lnt_run_settings *r)
{
    lnt_safetensors *s;
    LNT_TRY(open_state(c, r->o.out, &s));
    linnet_status status = lnt_settings_read(c, s->path, metadata_of, s, r);
    lnt_safetensors_close(s);
    return status;
}

linnet_status lnt_resume_check(lnt_ctx *c, const char *folder, const lnt_config *k, lnt_dtype dtype)
{
    static const char *const prefix[3] = {"weight.", "moment1.", "moment2."};
    linnet_model *m;
    lnt_safetensors *s = NULL;
    LNT_TRY(lnt_model_outline(c, k, dtype, &m));
    linnet_status status = open_state(c, folder, &s);
    for (int i = 0; status == LINNET_OK && i < 3; i++) status = lnt_checkpoint_check(c, s, NULL, prefix[i], m->p, false);
    lnt_safetensors_close(s);
    linnet_model_destroy(m);
    return status;
}

linnet_status lnt_resume_read_weights(lnt_ctx *c, const char *folder, lnt_trainer *t)
{
    lnt_safetensors *s;
    LNT_TRY(open_state(c, folder, &s));
    linnet_status status = lnt_checkpoint_read(c, s, NULL, "weight.", t->m->w, false);
    if (status == LINNET_OK) status = lnt_checkpoint_read_arena(c, s, "moment1.", t->m->p, t->optimizer->m);
    if (status == LINNET_OK) status = lnt_checkpoint_read_arena(c, s, "moment2.", t->m->p, t->optimizer->v);
    lnt_safetensors_close(s);
    return status;
}

#include "hub/checkpoint.h"

#include <stdio.h>
#include <string.h>

#include "device/device.h"

static void print_shape(char *text, size_t size, const int64_t *dim, int ndim)
{
    int n = snprintf(text, size, "[");
    for (int i = 0; i < ndim && n < (int)size; i++) n += snprintf(text + n, size - (size_t)n, "%s%lld", i ? "," : "", (long long)dim[i]);
    if (n < (int)size) snprintf(text + n, size - (size_t)n, "]");
}

static linnet_status check_tensor(lnt_ctx *c, const lnt_safetensors *s, const char *name, const lnt_param *q, const lnt_st_tensor *t)
{
    if (!t) {
        lnt_fail(c, LINNET_EFORMAT, "tensor \"%s\" is missing", name);
        return lnt_detail(c, "Looked for in %s, which holds %d tensors.", s->path, s->n);
    }
    if (t->ndim != q->ndim || memcmp(t->dim, q->dim, (size_t)q->ndim * sizeof *q->dim)) {
        char have[128], want[128];
        print_shape(have, sizeof have, t->dim, t->ndim);
        print_shape(want, sizeof want, q->dim, q->ndim);
        lnt_fail(c, LINNET_EFORMAT, "tensor \"%s\" has shape %s, expected %s", name, have, want);
        lnt_detail(c, "Read from %s.", s->path);
        return lnt_hint(c, "config.json and the weights do not belong together.");
    }
    if (t->dtype != LINNET_F32 && t->dtype != LINNET_BF16 && t->dtype != LINNET_F16 && t->dtype != LINNET_F64) {
        lnt_fail(c, LINNET_EFORMAT, "tensor \"%s\" has dtype %s, expected f32, bf16, f16 or f64", name, lnt_dtype_name(t->dtype));
        return lnt_detail(c, "Read from %s.", s->path);
    }
    return LINNET_OK;
}

/* Elements i.. of a tensor that may be unaligned, as float32. */
static void read_elements(float *dst, const lnt_st_tensor *t, int64_t i, int64_t n)
{
    size_t size = lnt_dtype_size(t->dtype);
    const char *src = (const char *)t->data + (size_t)i * size;
    if (t->dtype == LINNET_F32) {
        memcpy(dst, src, (size_t)n * 4);
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        double one;
        memcpy(&one, src + (size_t)k * size, size);
        dst[k] = (float)lnt_load_element(&one, t->dtype, 0);
    }
}

/* A parameter's tensor. flash-linear-attention names the gated output norm by whether its own kernel was fused: g_norm_swish_gate or g_norm. */
static const lnt_st_tensor *find_tensor(const lnt_safetensors *s, const char *name)
{
    static const char fused[] = "g_norm_swish_gate.weight", plain[] = "g_norm.weight";
    const lnt_st_tensor *t = lnt_safetensors_find(s, name);
    size_t n = strlen(name), m = sizeof fused - 1;
    if (t || n < m || strcmp(name + n - m, fused)) return t;
    char other[640];
    snprintf(other, sizeof other, "%.*s%s", (int)(n - m), name, plain);
    return lnt_safetensors_find(s, other);
}

/* Whether `given` is a tensor that some parameter of p reads. */
static bool belongs(const lnt_program *p, const char *given)
{
    static const char plain[] = "g_norm.weight";
    size_t n = strlen(given), m = sizeof plain - 1;
    if (lnt_param_find(p, given)) return true;
    if (!strcmp(given, "lm_head.weight")) return true; /* tied models are stored with and without a copy of the head */
    char other[640];
    if (n < m || strcmp(given + n - m, plain) || n + 16 > sizeof other) return false;
    snprintf(other, sizeof other, "%.*sg_norm_swish_gate.weight", (int)(n - m), given);
    return lnt_param_find(p, other) != NULL;
}

/* Into w, or into arena where there is no w. */
static linnet_status read_all(lnt_ctx *c, const lnt_safetensors *s, const char *prefix, const lnt_program *p, lnt_weights *w, float *arena,
                              bool strict)
{
    enum { BLOCK = 1 << 20 };
    int n = lnt_param_count(p);
    char name[640];
    for (int i = 0; i < n; i++) {
        const lnt_param *q = lnt_param_at(p, i);
        snprintf(name, sizeof name, "%s%s", prefix, q->name);
        LNT_TRY(check_tensor(c, s, name, q, find_tensor(s, name)));
    }
    for (int i = 0; strict && i < s->n; i++) {
        const char *given = s->tensors[i].name;
        if (strncmp(given, prefix, strlen(prefix)) || !belongs(p, given + strlen(prefix))) {
            lnt_fail(c, LINNET_EFORMAT, "tensor \"%s\" belongs to no parameter of this model", given);
            lnt_detail(c, "Read from %s.", s->path);
            return lnt_hint(c, "config.json and the weights do not belong together.");
        }
    }
    float *block = lnt_alloc(BLOCK * sizeof *block);
    if (!block) return lnt_fail_memory(c, BLOCK * sizeof *block);
    linnet_status status = LINNET_OK;
    for (int i = 0; i < n; i++) {
        const lnt_param *q = lnt_param_at(p, i);
        snprintf(name, sizeof name, "%s%s", prefix, q->name);
        const lnt_st_tensor *t = find_tensor(s, name);
        for (int64_t at = 0; status == LINNET_OK && at < q->count; at += BLOCK) {
            int64_t m = q->count - at < BLOCK ? q->count - at : BLOCK;
            read_elements(block, t, at, m);
            if (w) status = lnt_weights_put(w, q, at, block, m);
            else lnt_to_device(c, arena + q->offset + at, block, (size_t)m * 4);
        }
    }
    lnt_free(block);
    return status;
}

linnet_status lnt_checkpoint_read(lnt_ctx *c, const lnt_safetensors *s, const char *prefix, lnt_weights *w, bool strict)
{
    return read_all(c, s, prefix, w->program, w, NULL, strict);
}

linnet_status lnt_checkpoint_read_arena(lnt_ctx *c, const lnt_safetensors *s, const char *prefix, const lnt_program *p, float *arena)
{
    return read_all(c, s, prefix, p, NULL, arena, false);
}

linnet_status lnt_checkpoint_list(lnt_ctx *c, const lnt_program *p, const char *prefix, const float *values, lnt_arena *scratch,
                                  lnt_st_tensor *tensors)
{
    for (int i = 0; i < lnt_param_count(p); i++) {
        const lnt_param *q = lnt_param_at(p, i);
        lnt_st_tensor *t = &tensors[i];
        *t = (lnt_st_tensor){.name = lnt_arena_printf(scratch, "%s%s", prefix, q->name),
                             .dtype = LINNET_F32,
                             .ndim = q->ndim,
                             .count = q->count,
                             .data = values + q->offset};
        if (!t->name) return lnt_fail_memory(c, strlen(q->name));
        memcpy(t->dim, q->dim, (size_t)q->ndim * sizeof *q->dim);
    }
    return LINNET_OK;
}

/* ---- public: a checkpoint folder ---- */

linnet_status linnet_model_load(linnet_context *c, const char *folder, linnet_dtype dtype, linnet_model **out)
{
    char path[4096];
    linnet_config *k = NULL;
    linnet_model *m = NULL;
    lnt_safetensors *file = NULL;
    linnet_status s;
    *out = NULL;
    if (!lnt_is_folder(folder)) {
        lnt_fail(c, LINNET_EIO, "\"%s\" is not a folder", folder);
        return lnt_hint(c, "A checkpoint is a folder that holds config.json and model.safetensors.");
    }
    LNT_TRY_GOTO(s, linnet_config_load(c, folder, &k), done);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    LNT_TRY_GOTO(s, lnt_safetensors_open(c, path, &file), done);
    LNT_TRY_GOTO(s, lnt_model_build(c, k, dtype, LINNET_F32, &m), done);
    LNT_TRY_GOTO(s, lnt_checkpoint_read(c, file, "", m->w, true), done);
    *out = m;
    m = NULL;
done:
    lnt_safetensors_close(file);
    linnet_config_destroy(k);
    linnet_model_destroy(m);
    return s;
}

static linnet_status write_text(lnt_ctx *c, const char *path, const char *text)
{
    lnt_file_writer w;
    LNT_TRY(lnt_file_begin(c, path, &w));
    linnet_status s = lnt_file_write(c, &w, text, strlen(text));
    if (s == LINNET_OK) s = lnt_file_commit(c, &w);
    lnt_file_abandon(&w);
    return s;
}

linnet_status linnet_model_save(linnet_context *c, const linnet_model *m, const char *folder)
{
    static const char *const metadata[] = {"format", "pt"}; /* what Transformers expects to find */
    char path[4096];
    lnt_arena scratch = {0};
    linnet_status s;
    int n = lnt_param_count(m->p);
    const size_t bytes = (size_t)m->w->elements * 4;
    float *values = lnt_alloc(bytes);
    lnt_st_tensor *tensors = lnt_calloc((size_t)n * sizeof *tensors);
    if (!values || !tensors) {
        s = lnt_fail_memory(c, bytes);
        goto done;
    }
    LNT_TRY_GOTO(s, lnt_make_folder(c, folder), done);
    LNT_TRY_GOTO(s, lnt_weights_get(m->w, values), done);
    LNT_TRY_GOTO(s, lnt_checkpoint_list(c, m->p, "", values, &scratch, tensors), done);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    LNT_TRY_GOTO(s, lnt_safetensors_write(c, path, n, tensors, 1, metadata), done);
    const char *json = linnet_config_json(m->config);
    if (!json) {
        s = lnt_fail_memory(c, 4096);
        goto done;
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    s = write_text(c, path, json);
done:
    lnt_free(values);
    lnt_free(tensors);
    lnt_arena_free(&scratch);
    return s;
}

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

/* A parameter's tensor, under the names that files of the architecture have for it. */
static const lnt_st_tensor *find_tensor(const lnt_safetensors *s, const lnt_arch *a, const char *prefix, const char *name)
{
    char full[640], theirs[640 - 64];
    for (int try = 0; try < 2 && lnt_arch_tensor_name(a, name, try, theirs, sizeof theirs); try++) {
        snprintf(full, sizeof full, "%.63s%s", prefix, theirs);
        const lnt_st_tensor *t = lnt_safetensors_find(s, full);
        if (t) return t;
    }
    return NULL;
}

/* The first tensor that no parameter of p reads; NULL: none. Tied models are stored with and without a copy of the head. */
static const char *left_over(lnt_ctx *c, const lnt_safetensors *s, const lnt_arch *a, const char *prefix, const lnt_program *p, linnet_status *status)
{
    const char *given = NULL;
    bool *used = lnt_calloc(lnt_bytes((size_t)s->n, sizeof *used));
    *status = used || !s->n ? LINNET_OK : lnt_fail_memory(c, (size_t)s->n);
    for (int i = 0; *status == LINNET_OK && i < lnt_param_count(p); i++) {
        const lnt_st_tensor *t = find_tensor(s, a, prefix, lnt_param_at(p, i)->name);
        if (t) used[t - s->tensors] = true;
    }
    for (int i = 0; *status == LINNET_OK && i < s->n && !given; i++)
        if (!used[i] && strcmp(s->tensors[i].name, "lm_head.weight") != 0) given = s->tensors[i].name;
    lnt_free(used);
    return given;
}

linnet_status lnt_checkpoint_check(lnt_ctx *c, const lnt_safetensors *s, const lnt_arch *a, const char *prefix, const lnt_program *p, bool strict)
{
    char name[640];
    for (int i = 0; i < lnt_param_count(p); i++) {
        const lnt_param *q = lnt_param_at(p, i);
        snprintf(name, sizeof name, "%s%s", prefix, q->name);
        LNT_TRY(check_tensor(c, s, name, q, find_tensor(s, a, prefix, q->name)));
    }
    linnet_status status = LINNET_OK;
    const char *given = strict ? left_over(c, s, a, prefix, p, &status) : NULL;
    if (given) {
        lnt_fail(c, LINNET_EFORMAT, "tensor \"%s\" belongs to no parameter of this model", given);
        lnt_detail(c, "Read from %s.", s->path);
        return lnt_hint(c, "config.json and the weights do not belong together.");
    }
    return status;
}

/* Into w, or into arena where there is no w. */
static linnet_status read_all(lnt_ctx *c, const lnt_safetensors *s, const lnt_arch *a, const char *prefix, const lnt_program *p, lnt_weights *w,
                              float *arena, bool strict)
{
    enum { BLOCK = 1 << 20 };
    int n = lnt_param_count(p);
    linnet_status status = LINNET_OK;
    LNT_TRY(lnt_checkpoint_check(c, s, a, prefix, p, strict));
    float *block = lnt_alloc(BLOCK * sizeof *block);
    if (!block) return lnt_fail_memory(c, BLOCK * sizeof *block);
    for (int i = 0; i < n; i++) {
        const lnt_param *q = lnt_param_at(p, i);
        const lnt_st_tensor *t = find_tensor(s, a, prefix, q->name);
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

linnet_status lnt_checkpoint_read(lnt_ctx *c, const lnt_safetensors *s, const lnt_arch *a, const char *prefix, lnt_weights *w, bool strict)
{
    return read_all(c, s, a, prefix, w->program, w, NULL, strict);
}

linnet_status lnt_checkpoint_read_arena(lnt_ctx *c, const lnt_safetensors *s, const char *prefix, const lnt_program *p, float *arena)
{
    return read_all(c, s, NULL, prefix, p, NULL, arena, false);
}

linnet_status lnt_checkpoint_list(lnt_ctx *c, const lnt_program *p, const lnt_arch *a, const char *prefix, const float *values, lnt_arena *scratch,
                                  lnt_st_tensor *tensors)
{
    char name[640];
    for (int i = 0; i < lnt_param_count(p); i++) {
        const lnt_param *q = lnt_param_at(p, i);
        lnt_st_tensor *t = &tensors[i];
        *t = (lnt_st_tensor){.name = lnt_arena_printf(scratch, "%s%s", prefix, lnt_arch_tensor_name(a, q->name, 0, name, sizeof name)),
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

/* A folder's model, its weights compared by name, type and shape where they are there, and read where that is wanted. */
static linnet_status open_folder(linnet_context *c, const char *folder, linnet_dtype dtype, bool weights, linnet_model **out)
{
    char path[4096];
    linnet_config *k = NULL;
    linnet_model *m = NULL;
    lnt_safetensors *file = NULL;
    linnet_status s;
    LNT_NEED(c, folder);
    LNT_NEED(c, out);
    LNT_TRY(lnt_model_dtype_check(c, "dtype", dtype));
    *out = NULL;
    if (!lnt_is_folder(folder)) {
        lnt_fail(c, LINNET_EIO, "\"%s\" is not a folder", folder);
        return lnt_hint(c, "A checkpoint is a folder that holds config.json and model.safetensors.");
    }
    LNT_TRY_GOTO(s, linnet_config_load(c, folder, &k), done);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (weights || lnt_file_exists(path)) LNT_TRY_GOTO(s, lnt_safetensors_open(c, path, &file), done);
    const lnt_arch *a = lnt_arch_find(k->model_type);
    LNT_TRY_GOTO(s, lnt_model_outline(c, k, dtype, &m), done);
    if (file) LNT_TRY_GOTO(s, lnt_checkpoint_check(c, file, a, "", m->p, true), done); /* before what config.json asks for is taken */
    if (weights) {
        LNT_TRY_GOTO(s, lnt_weights_create(c, m->p, dtype, LINNET_F32, &m->w), done);
        LNT_TRY_GOTO(s, lnt_checkpoint_read(c, file, a, "", m->w, true), done);
    }
    *out = m;
    m = NULL;
done:
    lnt_safetensors_close(file);
    linnet_config_destroy(k);
    linnet_model_destroy(m);
    return s;
}

linnet_status linnet_model_load(linnet_context *c, const char *folder, linnet_dtype dtype, linnet_model **out)
{
    return open_folder(c, folder, dtype, true, out);
}

linnet_status linnet_model_look(linnet_context *c, const char *folder, linnet_dtype dtype, linnet_model **out)
{
    return open_folder(c, folder, dtype, false, out);
}

static linnet_status stage_text(lnt_ctx *c, const char *path, const char *text, lnt_file_writer *w)
{
    LNT_TRY(lnt_file_begin(c, path, w));
    linnet_status s = lnt_file_write(c, w, text, strlen(text));
    return s == LINNET_OK ? lnt_file_sync(c, w) : s;
}

linnet_status lnt_model_stage(lnt_ctx *c, const linnet_model *m, const char *folder, lnt_file_writer w[2])
{
    static const char *const metadata[] = {"format", "pt"}; /* what Transformers expects to find */
    char path[4096];
    lnt_arena scratch = {0};
    linnet_status s;
    int n = lnt_param_count(m->p);
    const size_t bytes = lnt_bytes((size_t)m->w->elements, 4);
    float *values = lnt_alloc(bytes);
    lnt_st_tensor *tensors = lnt_calloc(lnt_bytes((size_t)n, sizeof *tensors));
    const char *json = linnet_config_json(m->config);
    w[0] = w[1] = (lnt_file_writer){0};
    if (!values || !tensors || !json) {
        s = lnt_fail_memory(c, bytes);
        goto done;
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    LNT_TRY_GOTO(s, stage_text(c, path, json, &w[0]), done);
    LNT_TRY_GOTO(s, lnt_weights_get(m->w, values), done);
    LNT_TRY_GOTO(s, lnt_checkpoint_list(c, m->p, lnt_arch_of(m->config), "", values, &scratch, tensors), done);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    s = lnt_safetensors_stage(c, path, n, tensors, 1, metadata, &w[1]);
done:
    if (s != LINNET_OK) lnt_file_abandon(&w[0]);
    lnt_free(values);
    lnt_free(tensors);
    lnt_arena_free(&scratch);
    return s;
}

linnet_status linnet_model_save(linnet_context *c, const linnet_model *m, const char *folder)
{
    lnt_file_writer w[2];
    LNT_TRY(lnt_model_check(c, m));
    LNT_NEED(c, folder);
    LNT_TRY(lnt_make_folder(c, folder));
    LNT_TRY(lnt_model_stage(c, m, folder, w));
    return lnt_file_commit_all(c, w, 2);
}

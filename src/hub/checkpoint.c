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

int lnt_checkpoint_shape(lnt_arch_form form, int ndim, const int64_t *dim, int64_t want[LNT_ST_MAX_DIMS])
{
    for (int i = 0; i < LNT_ST_MAX_DIMS; i++) want[i] = 1;
    if (form.turned) {
        want[0] = form.turned, want[1] = dim[1] / form.turned, want[2] = dim[0];
        return 3;
    }
    memcpy(want + form.lead, dim, (size_t)ndim * sizeof *dim);
    return ndim + form.lead;
}

/* t has the dimensions dim, in the file's form. */
static linnet_status check_tensor(lnt_ctx *c, const lnt_safetensors *s, const char *name, int ndim, const int64_t *dim, lnt_arch_form form,
                                  const lnt_st_tensor *t)
{
    int64_t want[LNT_ST_MAX_DIMS];
    ndim = lnt_checkpoint_shape(form, ndim, dim, want);
    if (!t) {
        lnt_fail(c, LINNET_EFORMAT, "tensor \"%s\" is missing", name);
        return lnt_detail(c, "Looked for in %s, which holds %d tensors.", s->path, s->n);
    }
    if (t->ndim != ndim || memcmp(t->dim, want, (size_t)ndim * sizeof *want)) {
        char have[128], expected[128];
        print_shape(have, sizeof have, t->dim, t->ndim);
        print_shape(expected, sizeof expected, want, ndim);
        lnt_fail(c, LINNET_EFORMAT, "tensor \"%s\" has shape %s, expected %s", name, have, expected);
        lnt_detail(c, "Read from %s.", t->file ? t->file : s->path);
        return lnt_hint(c, "config.json and the weights do not belong together.");
    }
    if (t->dtype != LINNET_F32 && t->dtype != LINNET_BF16 && t->dtype != LINNET_F16 && t->dtype != LINNET_F64) {
        lnt_fail(c, LINNET_EFORMAT, "tensor \"%s\" has dtype %s, expected f32, bf16, f16 or f64", name, lnt_dtype_name(t->dtype));
        return lnt_detail(c, "Read from %s.", t->file ? t->file : s->path);
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

static const lnt_st_tensor *with_prefix(const lnt_safetensors *s, const char *prefix, const char *name)
{
    char full[640];
    snprintf(full, sizeof full, "%.63s%.512s", prefix, name);
    return lnt_safetensors_find(s, full);
}

/* A parameter's tensor, under the names that files of the architecture have for it. */
static const lnt_st_tensor *find_tensor(const lnt_safetensors *s, const lnt_naming *n, const char *name)
{
    char theirs[512];
    for (int try = 0; try < 2 && lnt_arch_tensor_name(n->a, n->k, name, try, theirs, sizeof theirs); try++) {
        const lnt_st_tensor *t = with_prefix(s, n->prefix, theirs);
        if (t) return t;
    }
    return NULL;
}

/* The name of the i-th of a place's tensors. */
static void piece_name(const lnt_arch_place *x, int64_t i, char *out, size_t size)
{
    const char *at = x->pieces > 1 || strstr(x->theirs, "%d") ? strstr(x->theirs, "%d") : NULL;
    if (at) snprintf(out, size, "%.*s%lld%s", (int)(at - x->theirs), x->theirs, (long long)i, at + 2);
    else snprintf(out, size, "%s", x->theirs);
}

linnet_status lnt_checkpoint_each(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, const lnt_program *p, const lnt_param *q,
                                  lnt_checkpoint_visit *f, void *user)
{
    lnt_arch_place x;
    bool found;
    char name[700], full[800];
    LNT_TRY(lnt_arch_find_place(c, n->a, n->k, p, q, &x, &found));
    for (int64_t i = 0; found && i < x.pieces; i++) {
        piece_name(&x, i, name, sizeof name);
        snprintf(full, sizeof full, "%.63s%.700s", n->prefix, name);
        LNT_TRY(f(c, s, full, lnt_safetensors_find(s, full), q, &x, i, user));
    }
    if (found) return LINNET_OK;
    lnt_arch_tensor_name(n->a, n->k, q->name, 0, name, sizeof name);
    snprintf(full, sizeof full, "%.63s%.700s", n->prefix, name);
    return f(c, s, full, find_tensor(s, n, q->name), q, NULL, 0, user);
}

static linnet_status mark_used(lnt_ctx *c, const lnt_safetensors *s, const char *name, const lnt_st_tensor *t, const lnt_param *q,
                               const lnt_arch_place *x, int64_t piece, void *user)
{
    (void)c, (void)name, (void)q, (void)x, (void)piece;
    if (t) ((bool *)user)[t - s->tensors] = true;
    return LINNET_OK;
}

/* The first tensor that no parameter of p reads and the architecture cannot do without; NULL: none. Tied models are stored with and without a copy of
 * the head. */
static linnet_status find_left_over(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, const lnt_program *p, const char **given)
{
    bool *used = lnt_calloc(lnt_bytes((size_t)s->n, sizeof *used));
    linnet_status status = used || !s->n ? LINNET_OK : lnt_fail_memory(c, (size_t)s->n);
    *given = NULL;
    for (int i = 0; status == LINNET_OK && i < lnt_param_count(p); i++) status = lnt_checkpoint_each(c, s, n, p, lnt_param_at(p, i), mark_used, used);
    for (int i = 0; status == LINNET_OK && i < s->n && !*given; i++) {
        bool fine = used[i] || !strcmp(s->tensors[i].name, "lm_head.weight");
        for (const lnt_arch *a = n->a; a; a = a->base)
            for (const char *const *w = a->ignored; w && *w; w++) fine |= strstr(s->tensors[i].name, *w) != NULL;
        if (!fine) *given = s->tensors[i].name;
    }
    lnt_free(used);
    return status;
}

/* The tensors of a list that has q first, and their parameters; 0: they are not all there, or already are as the parameters are. */
static int find_cut(const lnt_safetensors *s, const lnt_naming *n, const lnt_program *p, const lnt_param *q, const char *list, lnt_st_tensor **t,
                    const lnt_param **part)
{
    char word[128], name[640];
    const size_t stem = strlen(q->name), end = strlen(lnt_word_at(list, 0, word, sizeof word));
    int64_t rows = 0, wanted = 0;
    bool equal = true;
    int k = 0;
    if (stem < end || strcmp(q->name + stem - end, word) != 0) return 0;
    for (; k < LNT_ARCH_PARTS && *lnt_word_at(list, k, word, sizeof word); k++) {
        snprintf(name, sizeof name, "%.*s%s", (int)(stem - end), q->name, word);
        part[k] = lnt_param_find(p, name);
        t[k] = part[k] ? (lnt_st_tensor *)(uintptr_t)find_tensor(s, n, name) : NULL;
        if (!t[k] || t[k]->ndim < 1 || t[k]->dim[0] < 1 || t[k]->dtype != t[0]->dtype) return 0;
        if (t[k]->count / t[k]->dim[0] != t[0]->count / t[0]->dim[0]) return 0;
        rows += t[k]->dim[0], wanted += part[k]->dim[0];
        equal &= t[k]->dim[0] == part[k]->dim[0];
    }
    return equal || rows != wanted ? 0 : k;
}

linnet_status lnt_checkpoint_recut(lnt_ctx *c, lnt_safetensors *s, const lnt_naming *n, const lnt_program *p)
{
    lnt_st_tensor *t[LNT_ARCH_PARTS];
    const lnt_param *part[LNT_ARCH_PARTS];
    for (const lnt_arch *a = n->a; a; a = a->base)
        for (int i = 0; a->one_of && i < lnt_param_count(p); i++) {
            const int parts = find_cut(s, n, p, lnt_param_at(p, i), a->one_of, t, part);
            size_t bytes = 0;
            if (!parts) continue;
            const size_t row = (size_t)(t[0]->count / t[0]->dim[0]) * lnt_dtype_size(t[0]->dtype);
            for (int k = 0; k < parts; k++) bytes += (size_t)t[k]->dim[0] * row;
            char *all = lnt_arena_alloc(&s->arena, bytes), *at = all;
            if (!all) return lnt_fail_memory(c, bytes);
            for (int k = 0; k < parts; at += (size_t)t[k]->dim[0] * row, k++) memcpy(at, t[k]->data, (size_t)t[k]->dim[0] * row);
            for (int k = 0; k < parts; all += (size_t)t[k]->dim[0] * row, k++) {
                t[k]->data = all;
                t[k]->count = t[k]->count / t[k]->dim[0] * part[k]->dim[0];
                t[k]->dim[0] = part[k]->dim[0];
            }
        }
    return LINNET_OK;
}

/* A tensor with rows of q: all of it, one of its pieces, or one that has other rows beside. */
static linnet_status check_part(lnt_ctx *c, const lnt_safetensors *s, const char *name, const lnt_st_tensor *t, const lnt_param *q,
                                const lnt_arch_place *x, int64_t piece, void *user)
{
    const lnt_naming *n = user;
    int64_t dim[4];
    (void)piece;
    memcpy(dim, q->dim, sizeof dim);
    if (x) dim[0] = x->pieces > 1 ? q->dim[0] / x->pieces : x->groups * x->all;
    return check_tensor(c, s, name, q->ndim, dim, x ? (lnt_arch_form){0, 0} : lnt_arch_tensor_form(n->a, n->k, q->name), t);
}

linnet_status lnt_checkpoint_check(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, const lnt_program *p)
{
    const char *given = NULL;
    for (int i = 0; i < lnt_param_count(p); i++) LNT_TRY(lnt_checkpoint_each(c, s, n, p, lnt_param_at(p, i), check_part, (void *)(uintptr_t)n));
    if (n->strict) LNT_TRY(find_left_over(c, s, n, p, &given));
    if (!given) return LINNET_OK;
    lnt_fail(c, LINNET_EFORMAT, "tensor \"%s\" belongs to no parameter of this model", given);
    lnt_detail(c, "Read from %s.", s->path);
    return lnt_hint(c, "config.json and the weights do not belong together.");
}

enum { BLOCK = 1 << 20 }; /* elements, or a row where that is longer */
static int64_t block_of(const lnt_param *q)
{
    const int64_t row = q->dim[q->ndim - 1];
    return row > BLOCK ? row : BLOCK / row * row;
}

typedef struct {
    const lnt_naming *n;
    lnt_weights *w;           /* where to: there, */
    void *arena;              /* or to the device's arena */
    lnt_dtype type;           /* of numbers of this type, */
    float *host;              /* or to the parameter's own values on the host */
    float *block;
} sink;

static linnet_status hand_over(lnt_ctx *c, const sink *out, const lnt_param *q, int64_t to, const float *values, int64_t n)
{
    if (out->w) return lnt_weights_put(out->w, q, to, values, n);
    if (!out->host) return lnt_floats_to_device(c, (char *)out->arena + (q->offset + to) * (int64_t)lnt_dtype_size(out->type), out->type, values, n);
    memcpy(out->host + to, values, (size_t)n * sizeof *values);
    return LINNET_OK;
}

/* n elements of t from `from` on become those of q from `to` on. */
static linnet_status take(lnt_ctx *c, const sink *out, const lnt_st_tensor *t, const lnt_param *q, int64_t from, int64_t to, int64_t n)
{
    linnet_status status = LINNET_OK;
    const int64_t block = block_of(q);
    for (int64_t at = 0; status == LINNET_OK && at < n; at += block) {
        const int64_t m = n - at < block ? n - at : block;
        read_elements(out->block, t, from + at, m);
        status = hand_over(c, out, q, to + at, out->block, m);
    }
    return status;
}

void lnt_turn(float *out, const float *in, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) out[j * rows + i] = in[i * cols + j];
}

/* All of a tensor that is ours transposed. */
static linnet_status take_turned(lnt_ctx *c, const sink *out, const lnt_st_tensor *t, const lnt_param *q)
{
    const size_t bytes = lnt_bytes(lnt_bytes(2, (size_t)q->count), sizeof(float));
    float *theirs = lnt_alloc(bytes), *ours = theirs ? theirs + q->count : NULL;
    if (!theirs) return lnt_fail_memory(c, bytes);
    read_elements(theirs, t, 0, q->count);
    lnt_turn(ours, theirs, q->dim[1], q->dim[0]);
    const linnet_status s = hand_over(c, out, q, 0, ours, q->count);
    lnt_free(theirs);
    return s;
}

static linnet_status read_part(lnt_ctx *c, const lnt_safetensors *s, const char *name, const lnt_st_tensor *t, const lnt_param *q,
                               const lnt_arch_place *x, int64_t piece, void *user)
{
    const sink *out = user;
    const int64_t row = q->dim[0] ? q->count / q->dim[0] : 0;
    linnet_status status = LINNET_OK;
    (void)name;
    if (!x) {
        const bool turned = lnt_arch_tensor_form(out->n->a, out->n->k, q->name).turned > 0;
        status = turned ? take_turned(c, out, t, q) : take(c, out, t, q, 0, 0, q->count);
    } else if (x->pieces > 1) {
        status = take(c, out, t, q, 0, piece * t->count, t->count);
    } else {
        int64_t first = 0;
        for (int i = 0; i < x->which; i++) first += x->rows[i];
        for (int64_t g = 0; g < x->groups && status == LINNET_OK; g++)
            status = take(c, out, t, q, (g * x->all + first) * row, g * x->rows[x->which] * row, x->rows[x->which] * row);
    }
    lnt_safetensors_forget(s, t);
    return status;
}

static linnet_status read_all(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, const lnt_program *p, sink out)
{
    linnet_status status = LINNET_OK;
    LNT_TRY(lnt_checkpoint_check(c, s, n, p));
    out.n = n;
    int64_t most = BLOCK;
    for (int i = 0; i < lnt_param_count(p); i++) most = block_of(lnt_param_at(p, i)) > most ? block_of(lnt_param_at(p, i)) : most;
    out.block = lnt_alloc(lnt_bytes((size_t)most, sizeof(float)));
    if (!out.block) return lnt_fail_memory(c, lnt_bytes((size_t)most, sizeof(float)));
    for (int i = 0; status == LINNET_OK && i < lnt_param_count(p); i++) status = lnt_checkpoint_each(c, s, n, p, lnt_param_at(p, i), read_part, &out);
    lnt_free(out.block);
    return status;
}

linnet_status lnt_checkpoint_read(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, lnt_weights *w)
{
    return read_all(c, s, n, w->program, (sink){.w = w});
}

linnet_status lnt_checkpoint_read_arena(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, const lnt_program *p, void *arena, lnt_dtype t)
{
    return read_all(c, s, n, p, (sink){.arena = arena, .type = t});
}

linnet_status lnt_checkpoint_read_param(lnt_ctx *c, const lnt_safetensors *s, const lnt_naming *n, const lnt_program *p, const lnt_param *q,
                                        float *values)
{
    const size_t bytes = lnt_bytes((size_t)(block_of(q) > BLOCK ? block_of(q) : BLOCK), sizeof(float));
    sink out = {.n = n, .host = values, .block = lnt_alloc(bytes)};
    if (!out.block) return lnt_fail_memory(c, bytes);
    const linnet_status status = lnt_checkpoint_each(c, s, n, p, q, read_part, &out);
    lnt_free(out.block);
    return status;
}

/* ---- public: a checkpoint folder ---- */

/* A folder's model, its weights compared by name, type and shape where they are there, and read where that is wanted. */
static linnet_status open_folder(linnet_context *c, const char *folder, linnet_dtype dtype, linnet_dtype kept, bool weights, linnet_model **out)
{
    char path[4096], index[4112];
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
    snprintf(index, sizeof index, "%s.index.json", path);
    if (weights || lnt_file_exists(path) || lnt_file_exists(index)) LNT_TRY_GOTO(s, lnt_safetensors_open_folder(c, folder, &file), done);
    const lnt_naming naming = {.a = lnt_arch_find(k->model_type), .k = k, .prefix = "", .strict = true};
    LNT_TRY_GOTO(s, lnt_model_outline(c, k, dtype, &m), done);
    if (file) LNT_TRY_GOTO(s, lnt_checkpoint_recut(c, file, &naming, m->p), done);
    if (file) LNT_TRY_GOTO(s, lnt_checkpoint_check(c, file, &naming, m->p), done); /* before what config.json asks for is taken */
    if (weights) {
        LNT_TRY_GOTO(s, lnt_weights_create(c, m->p, dtype, kept, &m->w), done);
        LNT_TRY_GOTO(s, lnt_checkpoint_read(c, file, &naming, m->w), done);
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
    return open_folder(c, folder, dtype, LINNET_F32, true, out);
}

linnet_status linnet_model_load_kept(linnet_context *c, const char *folder, linnet_dtype dtype, linnet_dtype weights, linnet_model **out)
{
    LNT_TRY(lnt_weights_dtype_check(c, weights));
    return open_folder(c, folder, dtype, weights, true, out);
}

linnet_status linnet_model_look(linnet_context *c, const char *folder, linnet_dtype dtype, linnet_model **out)
{
    return open_folder(c, folder, dtype, LINNET_F32, false, out);
}

/* Writing weights: one or several safetensors files with the names and forms that an architecture has, one tensor in memory at a time. */
#include "hub/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

linnet_status lnt_checkpoint_list(lnt_ctx *c, const lnt_program *p, const char *prefix, const float *values, lnt_arena *scratch,
                                  lnt_st_tensor **tensors)
{
    const int n = lnt_param_count(p);
    *tensors = lnt_arena_alloc(scratch, lnt_bytes((size_t)n + 1, sizeof **tensors));
    for (int i = 0; *tensors && i < n; i++) {
        const lnt_param *q = lnt_param_at(p, i);
        lnt_st_tensor *t = &(*tensors)[i];
        *t = (lnt_st_tensor){.name = lnt_arena_printf(scratch, "%s%s", prefix, q->name), .dtype = LINNET_F32, .ndim = q->ndim, .count = q->count,
                             .data = values + q->offset};
        memcpy(t->dim, q->dim, (size_t)q->ndim * sizeof *q->dim);
        if (!t->name) return lnt_fail_memory(c, strlen(q->name));
    }
    return *tensors ? LINNET_OK : lnt_fail_memory(c, lnt_bytes((size_t)n, sizeof **tensors));
}

/* ---- what lies in which file ---- */

/* What a tensor is made of: all of q, one of its pieces, or rows of the parts of `place`. */
typedef struct lnt_weight_part {
    const lnt_param *q;
    lnt_arch_place *place;
    int64_t piece;
    bool turned;
} part;

/* Counted where there is no list yet. */
static linnet_status add_tensor(lnt_ctx *c, const lnt_safetensors *s, const char *name, const lnt_st_tensor *found, const lnt_param *q,
                                const lnt_arch_place *x, int64_t piece, void *user)
{
    lnt_weight_files *f = user;
    (void)s, (void)found;
    const bool woven = x && x->pieces == 1;
    if (woven && x->which > 0) return LINNET_OK; /* with the first of them */
    if (!f->tensors) return f->count++, LINNET_OK;
    const lnt_arch_form form = x ? (lnt_arch_form){0, 0} : lnt_arch_tensor_form(f->n->a, f->n->k, q->name);
    lnt_st_tensor *t = &f->tensors[f->count];
    part *made = &f->part[f->count++];
    int64_t dim[4];
    memcpy(dim, q->dim, sizeof dim);
    if (x) dim[0] = woven ? x->groups * x->all : q->dim[0] / x->pieces;
    *t = (lnt_st_tensor){.name = lnt_arena_strdup(&f->scratch, name), .count = 1};
    t->dtype = f->from.dtype ? f->from.dtype(f->from.user, q) : LINNET_F32;
    t->ndim = lnt_checkpoint_shape(form, q->ndim, dim, t->dim);
    for (int i = 0; i < t->ndim; i++) t->count *= t->dim[i];
    *made = (part){.q = q, .piece = piece, .turned = form.turned > 0};
    if (x) made->place = lnt_arena_alloc(&f->scratch, sizeof *x);
    if (x && made->place) *made->place = *x;
    return t->name && (!x || made->place) ? LINNET_OK : lnt_fail_memory(c, sizeof *x);
}

static int64_t bytes_of(const lnt_st_tensor *t) { return t->count * (int64_t)lnt_dtype_size(t->dtype); }

static void cut_into_files(lnt_weight_files *f, int64_t most)
{
    int64_t bytes = 0;
    f->files = 0;
    for (int i = 0; i < f->count; i++) {
        const int64_t n = bytes_of(&f->tensors[i]);
        if (i == 0 || (most > 0 && bytes + n > most)) f->first[f->files++] = i, bytes = 0;
        bytes += n;
        f->bytes += n;
    }
    f->first[f->files] = f->count;
}

linnet_status lnt_weight_files_open(lnt_ctx *c, const lnt_program *p, const lnt_naming *n, lnt_weight_source from, int64_t most,
                                    lnt_weight_files *f)
{
    const lnt_safetensors none = {.path = ""};
    *f = (lnt_weight_files){.c = c, .p = p, .n = n, .from = from};
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < lnt_param_count(p); i++) LNT_TRY(lnt_checkpoint_each(c, &none, n, p, lnt_param_at(p, i), add_tensor, f));
        if (turn) break;
        const size_t room = (size_t)f->count + 2;
        f->tensors = lnt_arena_alloc(&f->scratch, lnt_bytes(room, sizeof *f->tensors));
        f->part = lnt_arena_alloc(&f->scratch, lnt_bytes(room, sizeof *f->part));
        f->first = lnt_arena_alloc(&f->scratch, lnt_bytes(room, sizeof *f->first));
        if (!f->tensors || !f->part || !f->first) return lnt_fail_memory(c, lnt_bytes(room, sizeof *f->tensors));
        f->count = 0;
    }
    cut_into_files(f, most);
    return LINNET_OK;
}

void lnt_weight_files_close(lnt_weight_files *f)
{
    lnt_free(f->values);
    lnt_free(f->made);
    lnt_free(f->rounded);
    lnt_arena_free(&f->scratch);
    *f = (lnt_weight_files){0};
}

const char *lnt_weight_file_name(const lnt_weight_files *f, int i, char name[64])
{
    if (f->files <= 1) snprintf(name, 64, "model.safetensors");
    else snprintf(name, 64, "model-%05d-of-%05d.safetensors", i + 1, f->files);
    return name;
}

char *lnt_weight_files_index(const lnt_weight_files *f)
{
    char name[64];
    json_t *map = json_object(), *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)f->bytes, "weight_map", map);
    bool fine = index != NULL;
    for (int i = 0; i < f->files && fine; i++)
        for (int t = f->first[i]; t < f->first[i + 1] && fine; t++)
            fine = json_object_set_new(map, f->tensors[t].name, json_string(lnt_weight_file_name(f, i, name))) == 0;
    char *text = fine ? lnt_json_text(index, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(index);
    return text;
}

/* ---- a tensor's bytes ---- */

static linnet_status room_for(lnt_ctx *c, void **buffer, size_t *size, int64_t n)
{
    const size_t bytes = lnt_bytes((size_t)n + 1, sizeof(float));
    if (bytes <= *size) return LINNET_OK;
    lnt_free(*buffer);
    *buffer = lnt_alloc(bytes);
    *size = *buffer ? bytes : 0;
    return *buffer ? LINNET_OK : lnt_fail_memory(c, bytes);
}

/* A parameter's values; of one that lies in pieces they are read once. */
static linnet_status hold(lnt_weight_files *f, const lnt_param *q)
{
    if (f->held == q) return LINNET_OK;
    f->held = NULL;
    LNT_TRY(room_for(f->c, (void **)&f->values, &f->values_size, q->count));
    LNT_TRY(f->from.read(f->c, f->from.user, q, f->values));
    f->held = q;
    return LINNET_OK;
}

/* Rows of several parameters. */
static linnet_status weave(lnt_weight_files *f, const lnt_arch_place *x, int64_t row)
{
    int64_t first = 0;
    for (int i = 0; i < x->parts; i++) {
        LNT_TRY(hold(f, x->part[i]));
        for (int64_t g = 0; g < x->groups; g++)
            memcpy(f->made + (g * x->all + first) * row, f->values + g * x->rows[i] * row, (size_t)(x->rows[i] * row) * sizeof(float));
        first += x->rows[i];
    }
    return LINNET_OK;
}

/* bf16 and float16 to the nearest; what float16 cannot hold is no number to save. */
static linnet_status rounded(lnt_weight_files *f, const lnt_st_tensor *t, const float *values, const void **bytes)
{
    *bytes = values;
    if (t->dtype == LINNET_F32) return LINNET_OK;
    LNT_TRY(room_for(f->c, &f->rounded, &f->rounded_size, t->count));
    lnt_convert(f->rounded, t->dtype, values, LINNET_F32, t->count);
    *bytes = f->rounded;
    for (int64_t i = 0; t->dtype == LINNET_F16 && i < t->count; i++)
        if (isfinite(values[i]) && !isfinite(lnt_load_element(f->rounded, t->dtype, i)))
            return lnt_fail(f->c, LINNET_EINVAL, "tensor \"%s\" holds %g, which float16 cannot", t->name, (double)values[i]);
    return LINNET_OK;
}

static linnet_status data_of(lnt_ctx *c, void *user, int i, const void **bytes)
{
    lnt_weight_files *f = user;
    const lnt_st_tensor *t = &f->tensors[f->now + i];
    const part *x = &f->part[f->now + i];
    const float *values;
    (void)c;
    if (x->place && x->place->pieces == 1) {
        LNT_TRY(room_for(f->c, (void **)&f->made, &f->made_size, t->count));
        LNT_TRY(weave(f, x->place, x->q->dim[0] ? x->q->count / x->q->dim[0] : 0));
        values = f->made;
    } else {
        LNT_TRY(hold(f, x->q));
        values = f->values + x->piece * t->count;
    }
    if (x->turned) {
        LNT_TRY(room_for(f->c, (void **)&f->made, &f->made_size, t->count));
        lnt_turn(f->made, values, x->q->dim[0], x->q->dim[1]);
        values = f->made;
    }
    return rounded(f, t, values, bytes);
}

linnet_status lnt_weight_file_stage(lnt_weight_files *f, int i, const char *path, lnt_file_writer *w)
{
    static const char *const metadata[] = {"format", "pt"}; /* what Transformers expects to find */
    f->now = f->files ? f->first[i] : 0;
    const int n = f->files ? f->first[i + 1] - f->now : 0;
    return lnt_safetensors_stage_made(f->c, path, n, f->tensors + f->now, data_of, f, 1, metadata, w);
}

/* ---- a model's folder ---- */

linnet_status lnt_stage_text(lnt_ctx *c, const char *path, const char *text, lnt_file_writer *w)
{
    LNT_TRY(lnt_file_begin(c, path, w));
    linnet_status s = lnt_file_write(c, w, text, strlen(text));
    return s == LINNET_OK ? lnt_file_sync(c, w) : s;
}

static linnet_status weights_of(lnt_ctx *c, void *user, const lnt_param *q, float *values)
{
    (void)c;
    return lnt_weights_take(((const linnet_model *)user)->w, q, 0, values, q->count);
}

linnet_status lnt_model_stage(lnt_ctx *c, const linnet_model *m, const char *folder, lnt_file_writer w[2])
{
    const lnt_naming naming = {.a = lnt_arch_of(m->config), .k = m->config, .prefix = ""};
    const char *json = linnet_config_json(m->config);
    char path[4096];
    lnt_weight_files f = {0};
    linnet_status s;
    w[0] = w[1] = (lnt_file_writer){0};
    if (!json) return lnt_fail_memory(c, 4096);
    snprintf(path, sizeof path, "%s/config.json", folder);
    LNT_TRY_GOTO(s, lnt_stage_text(c, path, json, &w[0]), done);
    LNT_TRY_GOTO(s, lnt_weight_files_open(c, m->p, &naming, (lnt_weight_source){weights_of, NULL, (void *)(uintptr_t)m}, 0, &f), done);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    s = lnt_weight_file_stage(&f, 0, path, &w[1]);
done:
    if (s != LINNET_OK) lnt_file_abandon(&w[0]);
    lnt_weight_files_close(&f);
    return s;
}

/* Every file has its name before the next is begun. */
static linnet_status put_shards(lnt_ctx *c, lnt_weight_files *f, const char *folder)
{
    char path[4096], name[64];
    lnt_file_writer w = {0};
    linnet_status s = LINNET_OK;
    for (int i = 0; i < f->files && s == LINNET_OK; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, lnt_weight_file_name(f, i, name));
        s = lnt_weight_file_stage(f, i, path, &w);
        if (s == LINNET_OK) s = lnt_file_commit(c, &w);
        lnt_file_abandon(&w);
    }
    LNT_TRY(s);
    char *text = lnt_weight_files_index(f);
    if (!text) return lnt_fail_memory(c, 4096);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    s = lnt_stage_text(c, path, text, &w);
    if (s == LINNET_OK) s = lnt_file_commit(c, &w);
    lnt_file_abandon(&w);
    lnt_free(text);
    return s;
}

linnet_status lnt_model_cut(lnt_ctx *c, const linnet_model *m, const char *folder, int64_t most)
{
    const lnt_naming naming = {.a = lnt_arch_of(m->config), .k = m->config, .prefix = ""};
    char path[4096];
    lnt_weight_files f = {0};
    linnet_status s = lnt_weight_files_open(c, m->p, &naming, (lnt_weight_source){weights_of, NULL, (void *)(uintptr_t)m}, most, &f);
    if (s == LINNET_OK && f.files > 1) {
        s = put_shards(c, &f, folder);
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        if (s == LINNET_OK) unlink(path);
    }
    lnt_weight_files_close(&f);
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

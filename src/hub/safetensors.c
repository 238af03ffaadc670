#include "hub/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hub/json.h"

enum { PREFIX = 8, MAX_HEADER = 100 * 1000 * 1000 }; /* bytes; the format's own limit */

/* The format's names, by lnt_dtype. */
static const char *const dtype_names[] = {
    [LINNET_F32] = "F32", [LINNET_BF16] = "BF16", [LINNET_F64] = "F64", [LINNET_F16] = "F16",
    [LINNET_I64] = "I64", [LINNET_I32] = "I32",   [LINNET_U8] = "U8",    [LINNET_I8] = "I8",
};

static bool dtype_of(const char *name, lnt_dtype *out)
{
    for (size_t i = 0; i < sizeof dtype_names / sizeof *dtype_names; i++) {
        if (strcmp(name, dtype_names[i]) != 0) continue;
        *out = (lnt_dtype)i;
        return true;
    }
    return false;
}

/* ---- reading ---- */

static linnet_status read_metadata(lnt_ctx *c, lnt_safetensors *s, const json_t *o)
{
    const char *key;
    json_t *value;
    if (!json_is_object(o)) return lnt_malformed(c, s->path, "__metadata__ is not an object of strings");
    s->metadata = lnt_arena_alloc(&s->arena, lnt_bytes(lnt_bytes(2, json_object_size(o)), sizeof *s->metadata));
    if (!s->metadata) return lnt_fail_memory(c, lnt_bytes(lnt_bytes(2, json_object_size(o)), sizeof *s->metadata));
    json_object_foreach((json_t *)(uintptr_t)o, key, value) {
        if (!json_is_string(value)) return lnt_malformed(c, s->path, "the value of metadata key \"%.100s\" is not a string", key);
        const char *k = lnt_arena_strdup(&s->arena, key), *v = lnt_arena_strdup(&s->arena, json_string_value(value));
        if (!k || !v) return lnt_fail_memory(c, strlen(key) + json_string_length(value));
        s->metadata[2 * s->n_metadata] = k;
        s->metadata[2 * s->n_metadata + 1] = v;
        s->n_metadata++;
    }
    return LINNET_OK;
}

static linnet_status read_shape(lnt_ctx *c, const char *path, const json_t *shape, lnt_st_tensor *t)
{
    if (!json_is_array(shape)) return lnt_malformed(c, path, "tensor \"%.200s\" has no shape", t->name);
    size_t n = json_array_size(shape);
    if (n > LNT_ST_MAX_DIMS) return lnt_malformed(c, path, "tensor \"%.200s\" has %zu dimensions, expected at most %d", t->name, n, LNT_ST_MAX_DIMS);
    t->ndim = (int)n;
    t->count = 1;
    int64_t bytes;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return lnt_malformed(c, path, "dimension %zu of tensor \"%.200s\" is not a non-negative integer", i, t->name);
        t->dim[i] = json_integer_value(d);
        if (!lnt_mul(t->count, t->dim[i], &t->count) || !lnt_mul(t->count, (int64_t)lnt_dtype_size(t->dtype), &bytes))
            return lnt_malformed(c, path, "the size of tensor \"%.200s\" does not fit in 63 bits", t->name);
    }
    return LINNET_OK;
}

/* One entry of the header; the tensor's bytes must lie in data[0, size). */
static linnet_status read_tensor(lnt_ctx *c, const char *path, const json_t *o, const uint8_t *data, int64_t size, lnt_st_tensor *t)
{
    const json_t *offsets = json_object_get(o, "data_offsets"), *dtype = json_object_get(o, "dtype");
    if (!json_is_object(o)) return lnt_malformed(c, path, "the entry of tensor \"%.200s\" is not an object", t->name);
    if (!json_is_string(dtype)) return lnt_malformed(c, path, "tensor \"%.200s\" has no dtype", t->name);
    if (!dtype_of(json_string_value(dtype), &t->dtype))
        return lnt_malformed(c, path, "tensor \"%.200s\" has dtype \"%.40s\", expected F32, F64, BF16, F16, I64, I32, U8 or I8", t->name,
                             json_string_value(dtype));
    LNT_TRY(read_shape(c, path, json_object_get(o, "shape"), t));
    const json_t *b = json_array_get(offsets, 0), *e = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(e))
        return lnt_malformed(c, path, "data_offsets of tensor \"%.200s\" are not two integers", t->name);
    int64_t begin = json_integer_value(b), end = json_integer_value(e);
    if (begin < 0 || end < begin)
        return lnt_malformed(c, path, "tensor \"%.200s\" lies from byte %lld to byte %lld", t->name, (long long)begin, (long long)end);
    if (end > size)
        return lnt_malformed(c, path, "tensor \"%.200s\" ends at byte %lld, but the file holds %lld", t->name, (long long)end, (long long)size);
    int64_t expected = t->count * (int64_t)lnt_dtype_size(t->dtype);
    if (end - begin != expected)
        return lnt_malformed(c, path, "tensor \"%.200s\" has %lld bytes, but its shape and dtype need %lld", t->name, (long long)(end - begin),
                             (long long)expected);
    t->data = data + begin;
    return LINNET_OK;
}

static int64_t bytes_of(const lnt_st_tensor *t) { return t->count * (int64_t)lnt_dtype_size(t->dtype); }

static int by_place(const void *a, const void *b)
{
    const lnt_st_tensor *x = a, *y = b;
    if (x->data != y->data) return (const uint8_t *)x->data < (const uint8_t *)y->data ? -1 : 1;
    int64_t n = bytes_of(x), m = bytes_of(y); /* an empty tensor before the one that begins where it stands */
    return n != m ? (n < m ? -1 : 1) : strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b) { return strcmp(((const lnt_st_tensor *)a)->name, ((const lnt_st_tensor *)b)->name); }

/* The tensors must fill data[0, size) without overlap or gap. */
static linnet_status check_cover(lnt_ctx *c, lnt_safetensors *s, const uint8_t *data, int64_t size)
{
    int64_t at = 0;
    qsort(s->tensors, (size_t)s->n, sizeof *s->tensors, by_place);
    for (int i = 0; i < s->n; i++) {
        const lnt_st_tensor *t = &s->tensors[i];
        int64_t begin = (const uint8_t *)t->data - data;
        if (begin < at)
            return lnt_malformed(c, s->path, "tensor \"%.200s\" begins at byte %lld, but tensor \"%.200s\" ends at byte %lld", t->name,
                                 (long long)begin, t[-1].name, (long long)at);
        if (begin > at)
            return lnt_malformed(c, s->path, "bytes %lld to %lld before tensor \"%.200s\" belong to no tensor", (long long)at, (long long)begin,
                                 t->name);
        at = begin + bytes_of(t);
    }
    if (at != size) return lnt_malformed(c, s->path, "the tensors end at byte %lld, but the file holds %lld", (long long)at, (long long)size);
    return LINNET_OK;
}

static linnet_status read_header(lnt_ctx *c, lnt_safetensors *s, const json_t *header, const uint8_t *data, int64_t size)
{
    const char *key;
    json_t *value;
    if (!json_is_object(header)) return lnt_malformed(c, s->path, "the header is not an object of tensors");
    s->tensors = lnt_arena_alloc(&s->arena, lnt_bytes(json_object_size(header) + 1, sizeof *s->tensors));
    if (!s->tensors) return lnt_fail_memory(c, lnt_bytes(json_object_size(header), sizeof *s->tensors));
    json_object_foreach((json_t *)(uintptr_t)header, key, value) {
        if (strcmp(key, "__metadata__") == 0) {
            LNT_TRY(read_metadata(c, s, value));
            continue;
        }
        lnt_st_tensor *t = &s->tensors[s->n];
        t->name = lnt_arena_strdup(&s->arena, key);
        if (!t->name) return lnt_fail_memory(c, strlen(key) + 1);
        LNT_TRY(read_tensor(c, s->path, value, data, size, t));
        s->n++;
    }
    LNT_TRY(check_cover(c, s, data, size));
    qsort(s->tensors, (size_t)s->n, sizeof *s->tensors, by_name);
    return LINNET_OK;
}

static linnet_status read_bytes(lnt_ctx *c, lnt_safetensors *s, const uint8_t *file, size_t bytes)
{
    uint64_t length = 0;
    if (bytes < PREFIX) return lnt_malformed(c, s->path, "the file holds %zu bytes, expected at least %d", bytes, PREFIX);
    for (int i = 0; i < PREFIX; i++) length |= (uint64_t)file[i] << (8 * i);
    if (length > MAX_HEADER)
        return lnt_malformed(c, s->path, "the header has %llu bytes, expected at most %d", (unsigned long long)length, MAX_HEADER);
    if (length > bytes - PREFIX)
        return lnt_malformed(c, s->path, "the header ends at byte %llu, but the file holds %zu", (unsigned long long)length + PREFIX, bytes);
    json_t *header;
    LNT_TRY(lnt_json_parse(c, s->path, (const char *)file + PREFIX, length, &header));
    linnet_status status = read_header(c, s, header, file + PREFIX + length, (int64_t)(bytes - PREFIX - length));
    json_decref(header);
    return status;
}

static lnt_safetensors *create(const char *path)
{
    lnt_safetensors *s = lnt_calloc(sizeof *s);
    if (s && !(s->path = lnt_strdup(path))) {
        lnt_free(s);
        return NULL;
    }
    return s;
}

linnet_status lnt_safetensors_parse(lnt_ctx *c, const char *path, const void *data, size_t bytes, lnt_safetensors **out)
{
    lnt_safetensors *s = create(path);
    if (!s) return lnt_fail_memory(c, sizeof *s);
    s->view = (lnt_file_view){.data = data, .size = bytes};
    linnet_status status = read_bytes(c, s, data, bytes);
    if (status == LINNET_OK)
        *out = s;
    else
        lnt_safetensors_close(s);
    return status;
}

linnet_status lnt_safetensors_open(lnt_ctx *c, const char *path, lnt_safetensors **out)
{
    lnt_safetensors *s = create(path);
    if (!s) return lnt_fail_memory(c, sizeof *s);
    linnet_status status = lnt_file_map(c, path, &s->view);
    if (status == LINNET_OK) status = read_bytes(c, s, s->view.data, s->view.size);
    if (status == LINNET_OK)
        *out = s;
    else
        lnt_safetensors_close(s);
    return status;
}

void lnt_safetensors_close(lnt_safetensors *s)
{
    if (!s) return;
    for (int i = 0; i < s->n_shards; i++) lnt_safetensors_close(s->shards[i]);
    lnt_file_unmap(&s->view);
    lnt_arena_free(&s->arena);
    lnt_free(s->path);
    lnt_free(s);
}

const lnt_st_tensor *lnt_safetensors_find(const lnt_safetensors *s, const char *name)
{
    const lnt_st_tensor key = {.name = name};
    return s->n ? bsearch(&key, s->tensors, (size_t)s->n, sizeof *s->tensors, by_name) : NULL; /* bsearch takes no NULL */
}

void lnt_safetensors_forget(const lnt_safetensors *s, const lnt_st_tensor *t)
{
    const uint8_t *at = t->data;
    for (int i = 0; i < s->n_shards; i++) lnt_safetensors_forget(s->shards[i], t);
    if (s->view.mapped && at >= s->view.data && at < s->view.data + s->view.size) lnt_file_forget(&s->view, at, (size_t)bytes_of(t));
}

const char *lnt_safetensors_metadata(const lnt_safetensors *s, const char *key)
{
    for (int i = 0; i < s->n_metadata; i++)
        if (strcmp(s->metadata[2 * i], key) == 0) return s->metadata[2 * i + 1];
    return NULL;
}

/* ---- writing ---- */

/* One header entry, with the tensor at byte *at of the data; *at moves behind it. */
static linnet_status add_entry(lnt_ctx *c, json_t *header, const lnt_st_tensor *t, int64_t *at)
{
    int64_t count, bytes, end;
    if (t->ndim < 0 || t->ndim > LNT_ST_MAX_DIMS)
        return lnt_fail(c, LINNET_EINVAL, "tensor \"%.200s\" has %d dimensions, expected at most %d", t->name, t->ndim, LNT_ST_MAX_DIMS);
    LNT_TRY(lnt_size_product(c, t->name, t->ndim, t->dim, &count));
    if (count != t->count || !lnt_mul(count, (int64_t)lnt_dtype_size(t->dtype), &bytes) || !lnt_add(*at, bytes, &end))
        return lnt_fail(c, LINNET_EINVAL, "tensor \"%.200s\" has %lld elements, but its shape holds %lld", t->name, (long long)t->count,
                        (long long)count);
    if (strcmp(t->name, "__metadata__") == 0 || json_object_get(header, t->name))
        return lnt_fail(c, LINNET_EINVAL, "two entries are named \"%.200s\"", t->name);

    json_t *shape = json_array();
    bool ok = shape != NULL;
    for (int i = 0; i < t->ndim && ok; i++) ok = json_array_append_new(shape, json_integer(t->dim[i])) == 0;
    json_t *entry =
        json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype_names[t->dtype], "shape", shape, "data_offsets", (json_int_t)*at, (json_int_t)end);
    if (json_object_set_new(header, t->name, entry) != 0 || !ok)
        return lnt_fail(c, LINNET_ENOMEM, "the header entry of tensor \"%.200s\" could not be made: out of memory, or a name that is not UTF-8",
                        t->name);
    *at = end;
    return LINNET_OK;
}

static linnet_status build_header(lnt_ctx *c, json_t *header, int n, const lnt_st_tensor *tensors, int n_metadata, const char *const *metadata)
{
    int64_t at = 0;
    if (n_metadata > 0) {
        json_t *o = json_object();
        bool ok = o != NULL;
        for (int i = 0; i < n_metadata && ok; i++) ok = json_object_set_new(o, metadata[2 * i], json_string(metadata[2 * i + 1])) == 0;
        if (json_object_set_new(header, "__metadata__", o) != 0 || !ok)
            return lnt_fail(c, LINNET_ENOMEM, "the metadata of the header could not be made: out of memory, or not UTF-8");
    }
    for (int i = 0; i < n; i++) LNT_TRY(add_entry(c, header, &tensors[i], &at));
    return LINNET_OK;
}

linnet_status lnt_safetensors_write(lnt_ctx *c, const char *path, int n, const lnt_st_tensor *tensors, int n_metadata, const char *const *metadata)
{
    lnt_file_writer w;
    linnet_status s = lnt_safetensors_stage(c, path, n, tensors, n_metadata, metadata, &w);
    if (s == LINNET_OK) s = lnt_file_commit(c, &w);
    lnt_file_abandon(&w);
    return s;
}

static linnet_status data_there(lnt_ctx *c, void *user, int i, const void **bytes)
{
    (void)c;
    *bytes = ((const lnt_st_tensor *)user)[i].data;
    return LINNET_OK;
}

linnet_status lnt_safetensors_stage(lnt_ctx *c, const char *path, int n, const lnt_st_tensor *tensors, int n_metadata, const char *const *metadata,
                                    lnt_file_writer *w)
{
    return lnt_safetensors_stage_made(c, path, n, tensors, data_there, (void *)(uintptr_t)tensors, n_metadata, metadata, w);
}

linnet_status lnt_safetensors_stage_made(lnt_ctx *c, const char *path, int n, const lnt_st_tensor *tensors, lnt_st_data *data, void *user,
                                         int n_metadata, const char *const *metadata, lnt_file_writer *w)
{
    *w = (lnt_file_writer){0};
    json_t *header = json_object();
    if (!header) return lnt_fail_memory(c, 64);
    linnet_status s = build_header(c, header, n, tensors, n_metadata, metadata);
    char *text = s == LINNET_OK ? lnt_json_text(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (s != LINNET_OK) return s;
    if (!text) return lnt_fail_memory(c, lnt_bytes((size_t)n, 64));

    /* The header is padded with spaces so that the data begins at a multiple of 8. */
    size_t length = strlen(text), pad = (8 - length % 8) % 8;
    uint8_t prefix[PREFIX];
    for (int i = 0; i < PREFIX; i++) prefix[i] = (uint8_t)((uint64_t)(length + pad) >> (8 * i));
    s = lnt_file_begin(c, path, w);
    if (s == LINNET_OK) s = lnt_file_write(c, w, prefix, PREFIX);
    if (s == LINNET_OK) s = lnt_file_write(c, w, text, length);
    if (s == LINNET_OK) s = lnt_file_write(c, w, "        ", pad);
    for (int i = 0; s == LINNET_OK && i < n; i++) {
        const void *bytes = NULL;
        s = data(c, user, i, &bytes);
        if (s == LINNET_OK) s = lnt_file_write(c, w, bytes, (size_t)bytes_of(&tensors[i]));
    }
    if (s == LINNET_OK) s = lnt_file_sync(c, w);
    if (s != LINNET_OK) lnt_file_abandon(w);
    lnt_free(text);
    return s;
}

#include "hub/corpus.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/border.h"
#include "hub/records.h"
#include "hub/unpack.h"

/* ---- which files ---- */

typedef struct {
    lnt_arena arena;
    char **path;
    int n, capacity;
} file_list;

static linnet_status add_file(lnt_ctx *c, file_list *l, const char *path)
{
    if (l->n == l->capacity) {
        int more = l->capacity ? 2 * l->capacity : 64;
        char **grown = lnt_realloc(l->path, lnt_bytes((size_t)l->n, sizeof *grown), lnt_bytes((size_t)more, sizeof *grown));
        if (!grown) return lnt_fail_memory(c, lnt_bytes((size_t)more, sizeof *grown));
        l->path = grown;
        l->capacity = more;
    }
    l->path[l->n] = lnt_arena_strdup(&l->arena, path);
    if (!l->path[l->n]) return lnt_fail_memory(c, strlen(path) + 1);
    l->n++;
    return LINNET_OK;
}

/* By bytes: alphasort's order is the locale's. */
static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static linnet_status add_folder(lnt_ctx *c, file_list *l, const char *folder, int depth)
{
    enum { DEEPEST = 64 };
    if (depth > DEEPEST) return lnt_fail(c, LINNET_EIO, "folders are nested more than %d deep at \"%s\"", DEEPEST, folder);
    struct dirent **entry;
    int n = scandir(folder, &entry, NULL, by_name);
    if (n < 0) return lnt_fail(c, LINNET_EIO, "cannot read folder \"%s\": %s", folder, strerror(errno));
    linnet_status s = LINNET_OK;
    for (int i = 0; i < n; i++) {
        char path[4096];
        struct stat st;
        if (s == LINNET_OK && entry[i]->d_name[0] != '.' && snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name) < (int)sizeof path &&
            stat(path, &st) == 0) {
            if (S_ISDIR(st.st_mode))
                s = add_folder(c, l, path, depth + 1);
            else if (S_ISREG(st.st_mode))
                s = add_file(c, l, path);
        }
        free(entry[i]);
    }
    free(entry);
    return s;
}

static void free_list(file_list *l)
{
    lnt_free(l->path);
    lnt_arena_free(&l->arena);
}

static linnet_status list_files(lnt_ctx *c, const char *const *paths, int n_paths, file_list *l)
{
    *l = (file_list){0};
    linnet_status s = LINNET_OK;
    for (int i = 0; s == LINNET_OK && i < n_paths; i++)
        s = lnt_is_folder(paths[i]) ? add_folder(c, l, paths[i], 0) : add_file(c, l, paths[i]);
    if (s == LINNET_OK && !l->n) {
        s = lnt_fail(c, LINNET_EINVAL, n_paths ? "there is no file in \"%s\"" : "no text was given", n_paths ? paths[0] : "");
        lnt_hint(c, "Name one or more text files or folders.");
    }
    if (s != LINNET_OK) free_list(l);
    return s;
}

/* ---- text ---- */

typedef struct {
    char *bytes;
    size_t used, size, limit;
} text_bytes;

static linnet_status add_text(lnt_ctx *c, text_bytes *t, const char *text, size_t n)
{
    if (n > t->limit - t->used) n = t->limit - t->used;
    if (t->used + n > t->size || !t->bytes) {
        const size_t more = lnt_bytes(2, lnt_bytes_plus(t->used + n, 1));
        char *grown = lnt_realloc(t->bytes, t->used, more);
        if (!grown) return lnt_fail_memory(c, more);
        t->bytes = grown;
        t->size = more;
    }
    memcpy(t->bytes + t->used, text, n);
    t->used += n;
    return LINNET_OK;
}

static linnet_status add_records(lnt_ctx *c, text_bytes *t, const char *path, const char *field, const lnt_file_view *v)
{
    lnt_records r;
    const char *text;
    size_t n;
    lnt_records_begin(c, path, field, (const char *)v->data, v->size, &r);
    linnet_status s;
    while ((s = lnt_records_next(&r, &text, &n)) == LINNET_OK && text && t->used < t->limit) {
        LNT_TRY_GOTO(s, add_text(c, t, text, n), done);
        LNT_TRY_GOTO(s, add_text(c, t, "\n", 1), done);
    }
done:
    lnt_records_end(&r);
    return s;
}

linnet_status lnt_corpus_text(lnt_ctx *c, const lnt_texts *texts, size_t limit, char **text, size_t *bytes)
{
    file_list l;
    LNT_TRY(list_files(c, texts->paths, texts->n_paths, &l));
    text_bytes all = {.limit = limit};
    linnet_status s = LINNET_OK;
    for (int i = 0; s == LINNET_OK && i < l.n && all.used < limit; i++) {
        lnt_file_view v;
        LNT_TRY_GOTO(s, lnt_text_open(c, l.path[i], &v), done);
        s = texts->field ? add_records(c, &all, l.path[i], texts->field, &v) : add_text(c, &all, (const char *)v.data, v.size);
        lnt_file_unmap(&v);
    }
    if (s == LINNET_OK && !all.used) s = lnt_fail(c, LINNET_EINVAL, "the text is empty: \"%s\" holds no byte", texts->paths[0]);
done:
    free_list(&l);
    if (s != LINNET_OK) {
        lnt_free(all.bytes);
        return s;
    }
    *text = all.bytes;
    *bytes = all.used;
    return LINNET_OK;
}

/* ---- ids ---- */

static linnet_status append(lnt_ctx *c, lnt_corpus *k, int64_t *capacity, const int32_t *ids, int64_t n)
{
    if (k->n + n > *capacity) {
        int64_t more = 2 * (k->n + n) + 1024;
        int32_t *grown = lnt_realloc(k->ids, lnt_bytes((size_t)k->n, 4), lnt_bytes((size_t)more, 4));
        if (!grown) return lnt_fail_memory(c, lnt_bytes((size_t)more, 4));
        k->ids = grown;
        *capacity = more;
    }
    if (n) memcpy(k->ids + k->n, ids, (size_t)n * 4); /* an empty file has no ids: both may be NULL */
    k->n += n;
    return LINNET_OK;
}

static uint64_t fnv(const int32_t *ids, int64_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n; i++) h = (h ^ (uint32_t)ids[i]) * 0x100000001b3u;
    return h;
}

/* A document, closed by the separator. */
static linnet_status append_text(lnt_ctx *c, lnt_corpus *k, int64_t *capacity, const linnet_tokenizer *t, const char *text, size_t bytes)
{
    int32_t *ids = NULL;
    int64_t n = 0;
    linnet_status s = linnet_tokenizer_encode(c, t, text, bytes, &ids, &n);
    if (s == LINNET_OK) s = append(c, k, capacity, ids, n);
    if (s == LINNET_OK && k->separator >= 0) s = append(c, k, capacity, &(int32_t){(int32_t)k->separator}, 1);
    linnet_free(ids);
    k->bytes += (int64_t)bytes;
    return s;
}

static linnet_status append_records(lnt_ctx *c, lnt_corpus *k, int64_t *capacity, const linnet_tokenizer *t, lnt_records *r)
{
    const char *text;
    size_t n;
    do {
        LNT_TRY(lnt_records_next(r, &text, &n));
        if (text) LNT_TRY(append_text(c, k, capacity, t, text, n));
        if (text && k->separator < 0) LNT_TRY(append_text(c, k, capacity, t, "\n", 1));
    } while (text);
    return LINNET_OK;
}

static linnet_status append_file(lnt_ctx *c, lnt_corpus *k, int64_t *capacity, const char *path, const char *field, const linnet_tokenizer *t,
                                 uint64_t *fingerprint)
{
    lnt_file_view v;
    const int64_t before = k->n, bytes = k->bytes;
    LNT_TRY(lnt_text_open(c, path, &v));
    linnet_status s;
    if (field) {
        lnt_records r;
        lnt_records_begin(c, path, field, (const char *)v.data, v.size, &r);
        s = append_records(c, k, capacity, t, &r);
        lnt_records_end(&r);
    } else
        s = append_text(c, k, capacity, t, (const char *)v.data, v.size);
    if (s == LINNET_OK) *fingerprint = k->bytes > bytes ? fnv(k->ids + before, k->n - before - (!field && k->separator >= 0)) : 0;
    lnt_file_unmap(&v);
    return s;
}

linnet_status lnt_corpus_load(lnt_ctx *c, const lnt_texts *texts, const linnet_tokenizer *t, lnt_corpus **out)
{
    const char *const *paths = texts->paths;
    const int n_paths = texts->n_paths;
    file_list l;
    *out = NULL;
    LNT_TRY(lnt_need(c, n_paths > 0 ? paths : NULL, "the list of texts"));
    for (int i = 0; i < n_paths; i++) LNT_TRY(lnt_need(c, paths[i], "the name of a text"));
    LNT_TRY(list_files(c, paths, n_paths, &l));
    linnet_status s = LINNET_OK;
    int64_t capacity = 0;
    lnt_corpus *k = lnt_calloc(sizeof *k);
    if (!k) {
        s = lnt_fail_memory(c, sizeof *k);
        goto done;
    }
    k->vocabulary = linnet_tokenizer_vocabulary(t);
    k->separator = linnet_tokenizer_separator(t);
    k->files = l.n;
    k->id_bytes = lnt_calloc(lnt_bytes((size_t)k->vocabulary, sizeof *k->id_bytes));
    k->of_file = lnt_calloc(lnt_bytes((size_t)l.n, sizeof *k->of_file));
    if (!k->id_bytes || !k->of_file) {
        s = lnt_fail_memory(c, lnt_bytes((size_t)k->vocabulary, sizeof *k->id_bytes));
        goto done;
    }
    for (int64_t i = 0; i < k->vocabulary; i++) {
        size_t n = 0;
        if (i != k->separator && linnet_tokenizer_piece(t, i, &n)) k->id_bytes[i] = (int32_t)n;
    }
    for (int i = 0; s == LINNET_OK && i < l.n; i++) s = append_file(c, k, &capacity, l.path[i], texts->field, t, &k->of_file[i]);
    if (s == LINNET_OK && !k->bytes) s = lnt_fail(c, LINNET_EINVAL, "the text is empty: \"%s\" holds no byte", paths[0]);
    k->fingerprint = fnv(k->ids, k->n);
done:
    free_list(&l);
    if (s != LINNET_OK) {
        lnt_corpus_free(k);
        return s;
    }
    *out = k;
    return LINNET_OK;
}

void lnt_corpus_free(lnt_corpus *k)
{
    if (!k) return;
    lnt_free(k->ids);
    lnt_free(k->id_bytes);
    lnt_free(k->of_file);
    lnt_free(k);
}

linnet_status linnet_tokenizer_encode_files(linnet_context *c, const linnet_tokenizer *t, const char *const *paths, int32_t n_paths,
                                            const char *field, int32_t **ids, int64_t *count)
{
    lnt_corpus *k;
    LNT_NEED(c, ids);
    *ids = NULL;
    LNT_NEED(c, t);
    LNT_NEED(c, count);
    LNT_TRY(lnt_corpus_load(c, &(lnt_texts){.paths = paths, .n_paths = n_paths, .field = field}, t, &k));
    *ids = k->ids, *count = k->n;
    k->ids = NULL;
    lnt_corpus_free(k);
    return LINNET_OK;
}

int64_t lnt_corpus_bytes(const lnt_corpus *k, const int32_t *ids, int64_t n)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < n; i++) bytes += k->id_bytes[ids[i]];
    return bytes;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

linnet_status lnt_corpus_apart(lnt_ctx *c, const lnt_corpus *train, const lnt_corpus *held, const char *path)
{
    const size_t bytes = lnt_bytes((size_t)train->files, sizeof *train->of_file);
    uint64_t *sorted = lnt_alloc(bytes);
    if (!sorted) return lnt_fail_memory(c, bytes);
    memcpy(sorted, train->of_file, bytes);
    qsort(sorted, (size_t)train->files, sizeof *sorted, by_value);
    bool other = false;
    for (int64_t i = 0; i < held->files && !other; i++)
        other = held->of_file[i] && !bsearch(&held->of_file[i], sorted, (size_t)train->files, sizeof *sorted, by_value);
    lnt_free(sorted);
    if (other) return LINNET_OK;
    lnt_fail(c, LINNET_EINVAL, "the held-out text \"%s\" is part of the training text: nothing is held out", path);
    return lnt_hint(c, "Name another one, or leave --held-out away: the last part of the texts is then held out.");
}

linnet_status linnet_text_note(linnet_context *c, const char *const *texts, int n_texts, char *note, size_t size)
{
    enum { HEAD = 65536, FILES = 1000 };
    file_list l;
    if (!note || !size) return lnt_fail(c, LINNET_EINVAL, "note is missing: a place of at least one byte");
    *note = 0;
    LNT_TRY(list_files(c, texts, n_texts, &l));
    linnet_status s = LINNET_OK;
    uint8_t *head = lnt_alloc(HEAD);
    if (!head) s = lnt_fail_memory(c, HEAD);
    for (int i = 0; s == LINNET_OK && i < l.n && i < FILES && !*note; i++) {
        size_t n;
        s = lnt_text_head(c, l.path[i], head, HEAD, &n);
        if (s == LINNET_OK && lnt_text_is_json_lines((const char *)head, n))
            snprintf(note, size, "\"%s\" holds JSON objects: their keys, quotes and escapes are read as text too; one field alone: --field text",
                     l.path[i]);
    }
    lnt_free(head);
    free_list(&l);
    return s;
}

#include "hub/corpus.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"

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
        char **grown = lnt_realloc(l->path, (size_t)l->n * sizeof *grown, (size_t)more * sizeof *grown);
        if (!grown) return lnt_fail_memory(c, (size_t)more * sizeof *grown);
        l->path = grown;
        l->capacity = more;
    }
    l->path[l->n] = lnt_arena_strdup(&l->arena, path);
    if (!l->path[l->n]) return lnt_fail_memory(c, strlen(path) + 1);
    l->n++;
    return LINNET_OK;
}

static linnet_status add_folder(lnt_ctx *c, file_list *l, const char *folder, int depth)
{
    enum { DEEPEST = 64 };
    if (depth > DEEPEST) return lnt_fail(c, LINNET_EIO, "folders are nested more than %d deep at \"%s\"", DEEPEST, folder);
    struct dirent **entry;
    int n = scandir(folder, &entry, NULL, alphasort);
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

linnet_status lnt_corpus_text(lnt_ctx *c, const char *const *paths, int n_paths, size_t limit, char **text, size_t *bytes)
{
    file_list l;
    LNT_TRY(list_files(c, paths, n_paths, &l));
    char *all = NULL;
    size_t used = 0, size = 0;
    linnet_status s = LINNET_OK;
    for (int i = 0; s == LINNET_OK && i < l.n && used < limit; i++) {
        lnt_file_view v;
        LNT_TRY_GOTO(s, lnt_file_map(c, l.path[i], &v), done);
        size_t n = v.size < limit - used ? v.size : limit - used;
        if (used + n > size || !all) {
            size_t more = 2 * (used + n) + 1;
            char *grown = lnt_realloc(all, used, more);
            if (!grown) {
                lnt_file_unmap(&v);
                s = lnt_fail_memory(c, more);
                goto done;
            }
            all = grown;
            size = more;
        }
        memcpy(all + used, v.data, n);
        used += n;
        lnt_file_unmap(&v);
    }
    if (!used) s = lnt_fail(c, LINNET_EINVAL, "the text is empty: \"%s\" holds no byte", paths[0]);
done:
    free_list(&l);
    if (s != LINNET_OK) {
        lnt_free(all);
        return s;
    }
    *text = all;
    *bytes = used;
    return LINNET_OK;
}

/* ---- ids ---- */

static linnet_status append(lnt_ctx *c, lnt_corpus *k, int64_t *capacity, const int32_t *ids, int64_t n)
{
    if (k->n + n > *capacity) {
        int64_t more = 2 * (k->n + n) + 1024;
        int32_t *grown = lnt_realloc(k->ids, (size_t)k->n * 4, (size_t)more * 4);
        if (!grown) return lnt_fail_memory(c, (size_t)more * 4);
        k->ids = grown;
        *capacity = more;
    }
    if (n) memcpy(k->ids + k->n, ids, (size_t)n * 4); /* an empty file has no ids: both may be NULL */
    k->n += n;
    return LINNET_OK;
}

static linnet_status append_file(lnt_ctx *c, lnt_corpus *k, int64_t *capacity, const char *path, const linnet_tokenizer *t)
{
    lnt_file_view v;
    int32_t *ids = NULL;
    int64_t n;
    LNT_TRY(lnt_file_map(c, path, &v));
    linnet_status s = linnet_tokenizer_encode(c, t, (const char *)v.data, v.size, &ids, &n);
    if (s == LINNET_OK) s = append(c, k, capacity, ids, n);
    if (s == LINNET_OK && k->separator >= 0) s = append(c, k, capacity, &(int32_t){(int32_t)k->separator}, 1);
    k->bytes += (int64_t)v.size;
    linnet_free(ids);
    lnt_file_unmap(&v);
    return s;
}

linnet_status lnt_corpus_load(lnt_ctx *c, const char *const *paths, int n_paths, const linnet_tokenizer *t, lnt_corpus **out)
{
    file_list l;
    *out = NULL;
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
    k->id_bytes = lnt_calloc((size_t)k->vocabulary * sizeof *k->id_bytes);
    if (!k->id_bytes) {
        s = lnt_fail_memory(c, (size_t)k->vocabulary * sizeof *k->id_bytes);
        goto done;
    }
    for (int64_t i = 0; i < k->vocabulary; i++) {
        size_t n = 0;
        if (i != k->separator && linnet_tokenizer_piece(t, i, &n)) k->id_bytes[i] = (int32_t)n;
    }
    for (int i = 0; s == LINNET_OK && i < l.n; i++) s = append_file(c, k, &capacity, l.path[i], t);
    if (s == LINNET_OK && !k->bytes) s = lnt_fail(c, LINNET_EINVAL, "the text is empty: \"%s\" holds no byte", paths[0]);
    k->fingerprint = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < k->n; i++) k->fingerprint = (k->fingerprint ^ (uint32_t)k->ids[i]) * 0x100000001b3u;
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
    lnt_free(k);
}

int64_t lnt_corpus_bytes(const lnt_corpus *k, const int32_t *ids, int64_t n)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < n; i++) bytes += k->id_bytes[ids[i]];
    return bytes;
}

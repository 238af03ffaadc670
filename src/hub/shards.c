/* A model in several files: model.safetensors.index.json names the file of every tensor, {"metadata": ..., "weight_map": {"a.weight":
 * "model-00001-of-00003.safetensors", ...}}. Every file is mapped; nothing in it or in the index is trusted. */
#include "hub/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hub/json.h"

enum { MOST_SHARDS = 4096, MAX_INDEX_BYTES = 64 << 20 };

/* A file beside the index: a plain name. */
static bool plain_name(const char *name) { return name && *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0; }

static lnt_safetensors *shard_of(const lnt_safetensors *all, const char *folder, const char *file, char *path, size_t size)
{
    snprintf(path, size, "%s/%s", folder, file);
    for (int i = 0; i < all->n_shards; i++)
        if (!strcmp(all->shards[i]->path, path)) return all->shards[i];
    return NULL;
}

/* The file that the index names for a tensor, mapped. */
static linnet_status need_shard(lnt_ctx *c, lnt_safetensors *all, const char *folder, const char *tensor, const json_t *file, lnt_safetensors **out)
{
    char path[4096];
    if (!plain_name(json_string_value(file))) return lnt_malformed(c, all->path, "the file of tensor \"%.200s\" is no name of a file", tensor);
    *out = shard_of(all, folder, json_string_value(file), path, sizeof path);
    if (*out) return LINNET_OK;
    if (all->n_shards == MOST_SHARDS) return lnt_malformed(c, all->path, "more than %d files", MOST_SHARDS);
    if (!lnt_file_exists(path)) {
        lnt_fail(c, LINNET_EFORMAT, "the file \"%.200s\" with tensor \"%.200s\" is missing", json_string_value(file), tensor);
        return lnt_detail(c, "Named in %s.", all->path);
    }
    LNT_TRY(lnt_safetensors_open(c, path, out));
    all->shards[all->n_shards++] = *out;
    return LINNET_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(((const lnt_st_tensor *)a)->name, ((const lnt_st_tensor *)b)->name); }

static linnet_status read_map(lnt_ctx *c, lnt_safetensors *all, const char *folder, const json_t *map)
{
    const char *name;
    json_t *file;
    if (!json_is_object(map)) return lnt_malformed(c, all->path, "weight_map is not an object of tensors and files");
    all->tensors = lnt_arena_alloc(&all->arena, lnt_bytes(json_object_size(map) + 1, sizeof *all->tensors));
    all->shards = lnt_arena_alloc(&all->arena, lnt_bytes(MOST_SHARDS, sizeof(lnt_safetensors *)));
    if (!all->tensors || !all->shards) return lnt_fail_memory(c, lnt_bytes(json_object_size(map), sizeof *all->tensors));
    json_object_foreach((json_t *)(uintptr_t)map, name, file) {
        lnt_safetensors *shard;
        LNT_TRY(need_shard(c, all, folder, name, file, &shard));
        const lnt_st_tensor *t = lnt_safetensors_find(shard, name);
        if (!t) {
            lnt_fail(c, LINNET_EFORMAT, "tensor \"%.200s\" is not in \"%.200s\", where the index says it lies", name, json_string_value(file));
            return lnt_detail(c, "Read from %s; the file holds %d tensors.", all->path, shard->n);
        }
        all->tensors[all->n] = *t;
        all->tensors[all->n++].file = shard->path;
    }
    qsort(all->tensors, (size_t)all->n, sizeof *all->tensors, by_name);
    for (int i = 0; i < all->n_shards; i++)
        for (int j = 0; j < all->shards[i]->n; j++) {
            const lnt_st_tensor *t = &all->shards[i]->tensors[j], *named = lnt_safetensors_find(all, t->name);
            if (named && named->file == all->shards[i]->path) continue;
            lnt_fail(c, LINNET_EFORMAT, "tensor \"%.200s\" lies in \"%.200s\", but the index %s", t->name, all->shards[i]->path,
                     named ? "names another file" : "does not name it");
            return lnt_detail(c, "Read from %s.", all->path);
        }
    return LINNET_OK;
}

linnet_status lnt_safetensors_open_index(lnt_ctx *c, const char *folder, const char *path, lnt_safetensors **out)
{
    json_t *index;
    LNT_TRY(lnt_json_load(c, path, MAX_INDEX_BYTES, &index));
    lnt_safetensors *all = lnt_calloc(sizeof *all);
    linnet_status s = all && (all->path = lnt_strdup(path)) ? LINNET_OK : lnt_fail_memory(c, sizeof *all);
    if (s == LINNET_OK) s = read_map(c, all, folder, json_object_get(index, "weight_map"));
    json_decref(index);
    if (s == LINNET_OK) *out = all;
    else lnt_safetensors_close(all);
    return s;
}

linnet_status lnt_safetensors_open_folder(lnt_ctx *c, const char *folder, lnt_safetensors **out)
{
    char whole[4096], index[4096];
    snprintf(whole, sizeof whole, "%s/model.safetensors", folder);
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder);
    if (lnt_file_exists(whole) || !lnt_file_exists(index)) return lnt_safetensors_open(c, whole, out);
    return lnt_safetensors_open_index(c, folder, index, out);
}

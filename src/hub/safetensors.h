/* safetensors files: an 8-byte little-endian header length, a JSON header, the tensors' bytes. Reading maps the file and trusts nothing in it. */
#ifndef LNT_HUB_SAFETENSORS_H
#define LNT_HUB_SAFETENSORS_H

#include "core/dtype.h"
#include "core/file.h"

enum { LNT_ST_MAX_DIMS = 8 };

typedef struct {
    const char *name;
    lnt_dtype dtype;
    int ndim;
    int64_t dim[LNT_ST_MAX_DIMS];
    int64_t count;     /* elements */
    const void *data;  /* in the map, or the caller's when writing; maybe unaligned */
    const char *file;  /* of one of several files: where it lies; NULL: in the one */
} lnt_st_tensor;

typedef struct lnt_safetensors {
    char *path;
    lnt_file_view view;
    lnt_arena arena;
    int n;
    lnt_st_tensor *tensors; /* sorted by name */
    int n_metadata;
    const char **metadata;  /* key, value, key, value ... */
    int n_shards;           /* files that an index names: their tensors stand here too */
    struct lnt_safetensors **shards;
} lnt_safetensors;

/* Refused, each with the file, tensor and values: a truncated file, a header longer than the file or 100 MB, JSON that is not an object of
 * tensors, unknown dtypes, negative or overflowing shapes, offsets outside the data or that disagree with shape and dtype, overlaps, gaps,
 * duplicate names. */
linnet_status lnt_safetensors_open(lnt_ctx *c, const char *path, lnt_safetensors **out);
/* The weights of a folder: model.safetensors, or the files that model.safetensors.index.json names. Refused besides: a file that is missing, a tensor
 * that does not lie where the index says, one that the index does not name. shards.c. */
linnet_status lnt_safetensors_open_folder(lnt_ctx *c, const char *folder, lnt_safetensors **out);
linnet_status lnt_safetensors_open_index(lnt_ctx *c, const char *folder, const char *path, lnt_safetensors **out);
/* The same from memory that outlives the result (fuzzing, tests); `path` is only for messages. */
linnet_status lnt_safetensors_parse(lnt_ctx *c, const char *path, const void *data, size_t bytes, lnt_safetensors **out);
void lnt_safetensors_close(lnt_safetensors *s);
const lnt_st_tensor *lnt_safetensors_find(const lnt_safetensors *s, const char *name); /* NULL: absent */
const char *lnt_safetensors_metadata(const lnt_safetensors *s, const char *key);      /* NULL: absent */

/* Write atomically; tensors in the order given (the bytes of an equal list are equal). metadata: n_metadata pairs, key, value,
 * key, value ...; NULL when there are none. */
linnet_status lnt_safetensors_write(lnt_ctx *c, const char *path, int n, const lnt_st_tensor *tensors, int n_metadata,
                                    const char *const *metadata);
/* The same up to lnt_file_commit, which is left to the caller: the file lies aside, on the disk. */
linnet_status lnt_safetensors_stage(lnt_ctx *c, const char *path, int n, const lnt_st_tensor *tensors, int n_metadata, const char *const *metadata,
                                    lnt_file_writer *w);

/* The same of tensors whose data is made when its turn comes: data(c, user, i, &bytes) hands out the i-th's, good until the next call. */
typedef linnet_status lnt_st_data(lnt_ctx *c, void *user, int i, const void **bytes);
linnet_status lnt_safetensors_stage_made(lnt_ctx *c, const char *path, int n, const lnt_st_tensor *tensors, lnt_st_data *data, void *user,
                                         int n_metadata, const char *const *metadata, lnt_file_writer *w);
/* A tensor's bytes were read and need not stay in memory where its file is mapped. */
void lnt_safetensors_forget(const lnt_safetensors *s, const lnt_st_tensor *t);

#endif

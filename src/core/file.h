/* Files: read whole, map, and replace atomically (write aside, fsync, rename), so that a good file never gives way to half of one. */
#ifndef LNT_CORE_FILE_H
#define LNT_CORE_FILE_H

#include "core/memory.h"

typedef struct {
    const uint8_t *data;
    size_t size;
    bool mapped;
} lnt_file_view;

/* Map a file for reading (an empty file gives data = "" and size 0). */
linnet_status lnt_file_map(lnt_ctx *c, const char *path, lnt_file_view *out);
void lnt_file_unmap(lnt_file_view *v);
/* Read a whole file into memory that ends in an extra 0 byte; free with lnt_free. Refuses files above `limit` bytes. */
linnet_status lnt_file_read(lnt_ctx *c, const char *path, size_t limit, char **data, size_t *size);

/* An atomic writer: nothing appears at `path` before lnt_file_commit succeeds; lnt_file_abandon (safe after commit) removes the rest. */
typedef struct {
    void *stream; /* FILE* */
    char *path, *aside;
} lnt_file_writer;

linnet_status lnt_file_begin(lnt_ctx *c, const char *path, lnt_file_writer *w);
linnet_status lnt_file_write(lnt_ctx *c, lnt_file_writer *w, const void *data, size_t bytes);
linnet_status lnt_file_commit(lnt_ctx *c, lnt_file_writer *w);
void lnt_file_abandon(lnt_file_writer *w);

/* mkdir -p. */
linnet_status lnt_make_folder(lnt_ctx *c, const char *path);
bool lnt_file_exists(const char *path);
bool lnt_is_folder(const char *path);

#endif

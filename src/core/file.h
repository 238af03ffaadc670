/* Files: read whole, map, and replace atomically (write aside, fsync, rename), so that a good file never gives way to half of one.
 * Nothing here waits for another process: what is no regular file is refused, not opened and read. */
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
/* A part of the map need not stay in memory; it is read again when somebody asks for it. */
void lnt_file_forget(const lnt_file_view *v, const void *part, size_t bytes);
/* Read a whole file into memory that ends in an extra 0 byte; free with lnt_free. Refuses files above `limit` bytes. */
linnet_status lnt_file_read(lnt_ctx *c, const char *path, size_t limit, char **data, size_t *size);

/* An atomic writer: nothing appears at `path` before lnt_file_commit succeeds; lnt_file_abandon (safe after commit) removes the rest. What is written
 * lies in the same folder as PATH.writing-*, under a name that nobody can guess, and is locked while its writer lives: what dead writers of `path`
 * left is removed by lnt_file_begin. A path that is there and no regular file (a device, a FIFO, a folder) is refused. */
typedef struct {
    void *stream;       /* FILE* */
    void *folder;       /* DIR*, NULL: it cannot be read, and so not flushed */
    char *path, *aside;
} lnt_file_writer;

linnet_status lnt_file_begin(lnt_ctx *c, const char *path, lnt_file_writer *w);
linnet_status lnt_file_write(lnt_ctx *c, lnt_file_writer *w, const void *data, size_t bytes);
/* Everything written is on the disk, still aside: between several files that are to be replaced together. */
linnet_status lnt_file_sync(lnt_ctx *c, lnt_file_writer *w);
linnet_status lnt_file_commit(lnt_ctx *c, lnt_file_writer *w);
/* Several, in order; those after a failing one are abandoned. */
linnet_status lnt_file_commit_all(lnt_ctx *c, lnt_file_writer *w, int n);
void lnt_file_abandon(lnt_file_writer *w);
/* Remove what dead writers of any file left in a folder. */
void lnt_file_sweep(const char *folder);

/* A file that grows: *stream (a FILE*) appends to it; made when it is not there. Links and what is no regular file are refused. */
linnet_status lnt_file_append(lnt_ctx *c, const char *path, void **stream);
/* Everything written to it is on the disk. */
linnet_status lnt_file_flush(lnt_ctx *c, const char *path, void *stream);

/* One writer at a time: a lock on a file of its own, which dies with its process. */
typedef struct {
    int fd;
    char *path; /* NULL: not held */
} lnt_file_lock;

/* LINNET_EINVAL, naming the process, when another one (or another call of this one) holds it; `what` is what the message calls the thing. Where the
 * file system has no locks, the file is made and nothing is held against others. */
linnet_status lnt_lock_take(lnt_ctx *c, const char *path, const char *what, lnt_file_lock *l);
/* Safe when not held. With `remove`, the file goes too. */
void lnt_lock_drop(lnt_file_lock *l, bool remove);

/* mkdir -p. */
linnet_status lnt_make_folder(lnt_ctx *c, const char *path);
/* LINNET_EINVAL where there is no room behind it for the names of files. */
linnet_status lnt_folder_path_check(lnt_ctx *c, const char *path);
bool lnt_file_exists(const char *path);
bool lnt_is_folder(const char *path);
/* Whether path, or where it would be made, lies in the folder, or is it. */
bool lnt_lies_in(const char *path, const char *folder);

#endif

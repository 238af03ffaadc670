/* A folder that appears whole or not at all: its files are written into a folder beside it, which takes its name at the end. */
#ifndef LNT_CORE_FOLDER_H
#define LNT_CORE_FOLDER_H

#include "core/file.h"

typedef struct {
    char *path;
    char *aside;        /* where files are written until then: PATH.writing-*; NULL: not begun */
    lnt_file_lock lock; /* in it: what is not locked was left by a writer that lives no more, and the next one for that path removes it */
} lnt_folder_writer;

/* Refused: a path that is there and is no empty folder. Folders above it are made. */
linnet_status lnt_folder_begin(lnt_ctx *c, const char *path, lnt_folder_writer *w);
linnet_status lnt_folder_commit(lnt_ctx *c, lnt_folder_writer *w);
/* Removes what was written; safe after commit. */
void lnt_folder_abandon(lnt_folder_writer *w);

#endif

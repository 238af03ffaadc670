/* What the tests of a file format begin with: a context, a folder of their own, and the name of one file in it. */
#ifndef ONE_FILE_H
#define ONE_FILE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "linnet/linnet.h"

static linnet_context *ctx;
static char folder[64], file[128];

static inline int open_folder(const char *name)
{
    strcpy(folder, "/tmp/linnet-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/%s", folder, name);
    return linnet_context_create(NULL, &ctx);
}

static inline int close_folder(void **state)
{
    (void)state;
    unlink(file);
    rmdir(folder);
    linnet_context_destroy(ctx);
    return 0;
}

#endif

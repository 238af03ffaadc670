/* Targets whose reader takes paths: the bytes as files in a folder of this process. */
#ifndef FUZZ_FILE_H
#define FUZZ_FILE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char fuzz_folder[64];

static void fuzz_remove_folder(void)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", fuzz_folder);
    if (system(command)) perror(command);
}

/* Where file `name` of the folder is. */
static char *fuzz_path(const char *name)
{
    static char paths[4][96];
    static int at;
    if (!*fuzz_folder) {
        snprintf(fuzz_folder, sizeof fuzz_folder, "/tmp/linnet-fuzz-%ld", (long)getpid());
        if (mkdir(fuzz_folder, 0700)) abort();
        atexit(fuzz_remove_folder);
    }
    char *path = paths[at++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder, name);
    return path;
}

static inline const char *fuzz_write(const char *name, const void *data, size_t size)
{
    const char *path = fuzz_path(name);
    FILE *f = fopen(path, "wb");
    if (!f || (size && fwrite(data, 1, size, f) != size) || fclose(f)) abort();
    return path;
}

static inline linnet_context *fuzz_context(void)
{
    static linnet_context *c;
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.threads = 1;
    if (!c && linnet_context_create(&o, &c) != LINNET_OK) abort();
    return c;
}

/* A refusal says why. */
static inline linnet_status fuzz_said(linnet_context *c, linnet_status s)
{
    if (s != LINNET_OK && !linnet_error_message(c)[0]) abort();
    return s;
}

/* A configuration of one layer of width 16. */
static inline linnet_config *fuzz_config(void)
{
    static const char *const keys[][2] = {
        {"hidden_size", "16"}, {"num_hidden_layers", "1"}, {"num_heads", "2"}, {"head_dim", "8"}, {"vocab_size", "260"}};
    linnet_config *k;
    if (linnet_config_create(fuzz_context(), "gated_deltanet", &k) != LINNET_OK) abort();
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (linnet_config_set(fuzz_context(), k, keys[i][0], keys[i][1]) != LINNET_OK) abort();
    return k;
}

#endif

/* A small trained folder, for the tests of what reads and writes one: a text, a model of width 32, a few steps. */
#ifndef ONE_RUN_H
#define ONE_RUN_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "linnet/linnet.h"

/* Write a file, or end the test. */
static inline void put_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The bytes of a file and a 0 behind them; free(). */
static inline char *get_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is not there", path);
    size_t size = 0, room = 1 << 16;
    char *text = malloc(room);
    for (size_t got; (got = fread(text + size, 1, room - size - 1, f)) > 0;) {
        size += got;
        if (size + 1 == room) text = realloc(text, room *= 2);
    }
    fclose(f);
    text[size] = 0;
    if (n) *n = size;
    return text;
}

/* A folder and the files in it; it holds no folders of folders. */
static inline void remove_folder(const char *path)
{
    DIR *d = opendir(path);
    char inside[1024];
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(inside, sizeof inside, "%.700s/%.255s", path, e->d_name);
        if (unlink(inside) != 0) remove_folder(inside);
    }
    if (d) closedir(d);
    rmdir(path);
}

/* where/text: 8000 bytes that have something to learn. */
static inline const char *put_text(const char *where)
{
    static char path[300];
    char text[8000];
    for (int i = 0; i < 8000; i++) text[i] = "the quick brown fox jumps over it\n"[(i * i / 7 + i) % 34];
    snprintf(path, sizeof path, "%s/text", where);
    put_file(path, text, sizeof text);
    return path;
}

/* A configuration of width 32 with two layers and two heads. */
static inline linnet_config *small_config(linnet_context *c, const char *type)
{
    static const char *const set[][2] = {{"hidden_size", "32"}, {"num_hidden_layers", "2"}, {"num_heads", "2"}, {"vocab_size", "256"}};
    linnet_config *k;
    assert_int_equal(linnet_config_create(c, type, &k), LINNET_OK);
    for (int i = 0; i < 4; i++)
        if (linnet_config_set(c, k, set[i][0], set[i][1]) != LINNET_OK) fail_msg("%s", linnet_error_message(c));
    return k;
}

/* Options of a run over `text` into `out`: 4 steps of 2 sequences of 32 bytes. */
static inline linnet_train_options small_run(const char *const *text, const char *out)
{
    linnet_train_options o = LINNET_TRAIN_OPTIONS_INIT;
    o.texts = text;
    o.n_texts = 1;
    o.out = out;
    o.steps = 4;
    o.batch = 2;
    o.length = 32;
    o.warmup = 1;
    o.eval_every = 2;
    o.save_every = 2;
    return o;
}

#endif

/* For tests of tasks that read: a small model over bytes, a folder for files, what a run says, and the model's own word by its logits. */
#ifndef READING_H
#define READING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hub/json.h"
#include "tasks/reader.h"

static linnet_context *c;
static linnet_model *m;
static linnet_tokenizer *bytes;
static char folder[64], path[128];
static double allowed; /* seconds of a run; 0: no limit */

static inline const char *written(const char *text)
{
    snprintf(path, sizeof path, "%s/file", folder);
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
    return path;
}

/* ---- what runs say ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    int n;
    json_t *row[8];
} rows;

static inline void keep(void *user, const char *json, const char *text)
{
    rows *r = user;
    assert_true(*text && r->n < 8);
    r->row[r->n++] = json_loads(json, 0, NULL);
    assert_non_null(r->row[r->n - 1]);
}

static inline double number(const rows *r, int i, const char *key)
{
    assert_true(i < r->n);
    const json_t *v = json_object_get(r->row[i], key);
    if (!json_is_number(v)) fail_msg("row %d has no number %s", i, key);
    return json_number_value(v);
}

static inline void drop(rows *r)
{
    while (r->n) json_decref(r->row[--r->n]);
}

static inline rows run(const char *task, const char *file, const char *labels, const char *const *set, int n_set, linnet_status expected)
{
    rows out = {0};
    linnet_task_options o = LINNET_TASK_OPTIONS_INIT;
    linnet_task_callbacks k = LINNET_TASK_CALLBACKS_INIT;
    const char *files[] = {file, labels};
    o.model = m;
    o.tokenizer = bytes;
    o.set = set;
    o.n_set = n_set;
    o.max_seconds = allowed;
    o.files = files;
    o.n_files = (file != NULL) + (labels != NULL);
    k.user = &out;
    k.result = keep;
    const linnet_status s = linnet_task_run(c, task, &o, &k);
    if (s != expected) fail_msg("%s: %d, %s", task, (int)s, linnet_error_message(c));
    return out;
}

/* ---- the model's own word --------------------------------------------------------------------------------------------------- */

/* -log p of text[from..], from the logits of one pass over all of it; whether each byte is the largest logit's. */
static inline double nats_of(const char *text, size_t from, bool *greedy)
{
    const size_t n = strlen(text);
    int64_t *ids = calloc(n + 1, sizeof *ids);
    float *logits = malloc(n * 256 * sizeof *logits);
    double nats = 0;
    for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)text[i];
    assert_int_equal(linnet_model_logits(c, m, ids, 1, (int64_t)n, logits), LINNET_OK);
    if (greedy) *greedy = true;
    for (size_t i = from; i < n; i++) {
        const float *row = logits + (i - 1) * 256;
        double sum = 0;
        int best = 0;
        for (int v = 0; v < 256; v++) {
            sum += exp(row[v]);
            if (row[v] > row[best]) best = v;
        }
        nats += log(sum) - row[ids[i]];
        if (greedy) *greedy = *greedy && best == ids[i];
    }
    free(ids);
    free(logits);
    return nats;
}

static inline void near(const char *what, double got, double expected)
{
    if (!(fabs(got - expected) <= 2e-5 * fmax(1, fabs(expected)))) fail_msg("%s is %.9g, expected %.9g", what, got, expected);
}

/* Opens the model and the folder; false: it did not work. */
static inline bool reading_open(linnet_config **k)
{
    snprintf(folder, sizeof folder, "/tmp/linnet-test-reading-XXXXXX");
    if (!mkdtemp(folder) || linnet_context_create(NULL, &c) != LINNET_OK || linnet_config_create(c, "gated_deltanet", k) != LINNET_OK) return false;
    static const char *const keys[][2] = {{"hidden_size", "32"}, {"num_hidden_layers", "2"}, {"num_heads", "2"},
                                          {"head_dim", "16"},    {"vocab_size", "256"},      {"initializer_range", "0.3"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (linnet_config_set(c, *k, keys[i][0], keys[i][1]) != LINNET_OK) return false;
    if (linnet_model_create(c, *k, LINNET_F32, 5, &m) != LINNET_OK || linnet_tokenizer_open(c, "bytes", &bytes) != LINNET_OK) return false;
    snprintf(path, sizeof path, "%s/model", folder);
    return linnet_model_save(c, m, path) == LINNET_OK;
}

/* Closes what reading_open made; returns `failed`, and one more when the folder is not empty but for `left`, n names. */
static inline int reading_close(linnet_config *k, const char *const *left, size_t n, int failed)
{
    static const char *const always[] = {"file", "model/config.json", "model/model.safetensors", "model"};
    linnet_model_destroy(m);
    linnet_tokenizer_destroy(bytes);
    linnet_config_destroy(k);
    linnet_context_destroy(c);
    for (size_t i = 0; i < n + sizeof always / sizeof *always; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i < n ? left[i] : always[i - n]);
        remove(path);
    }
    return failed + (rmdir(folder) != 0);
}

#endif

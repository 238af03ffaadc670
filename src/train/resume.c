#include "train/resume.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "hub/checkpoint.h"

/* The hyper-parameters a resumed run must share with the run before: one line each. */
typedef struct {
    const char *key;
    enum { INT64, DOUBLE, INT, UINT64 } type;
    size_t offset;
    bool optional; /* files written before it was there lack it: the default, 0 */
} field;

#define OPTION(name, type) {"option." #name, type, offsetof(linnet_train_options, name), false}
static const field options[] = {
    OPTION(batch, INT64), OPTION(length, INT64), OPTION(accumulate, INT64), OPTION(learning_rate, DOUBLE), OPTION(min_learning_rate_share, DOUBLE),
    OPTION(warmup, INT64), OPTION(beta1, DOUBLE), OPTION(beta2, DOUBLE), OPTION(epsilon, DOUBLE), OPTION(weight_decay, DOUBLE), OPTION(clip, DOUBLE),
    OPTION(seed, UINT64), OPTION(isolate_documents, INT), OPTION(held_out_share, DOUBLE), OPTION(eval_every, INT64), OPTION(eval_tokens, INT64),
    OPTION(save_every, INT64), OPTION(recompute, INT), OPTION(max_seconds, DOUBLE),
    {"option.weights", INT, offsetof(linnet_train_options, weights), true},
};
#undef OPTION
#define COUNTER(name, type) {"run." #name, type, offsetof(lnt_run_position, name), false}
static const field counters[] = {
    COUNTER(step, INT64),    COUNTER(steps, INT64),    COUNTER(tokens, INT64),
    COUNTER(samples, INT64), COUNTER(seconds, DOUBLE), COUNTER(fingerprint, UINT64),
};
#undef COUNTER
enum { N_OPTIONS = sizeof options / sizeof options[0], N_COUNTERS = sizeof counters / sizeof counters[0], N_FIELDS = N_OPTIONS + N_COUNTERS };

static char *text_of(lnt_arena *a, const field *f, const void *base)
{
    const void *p = (const char *)base + f->offset;
    switch (f->type) {
    case INT64: return lnt_arena_printf(a, "%" PRId64, *(const int64_t *)p);
    case UINT64: return lnt_arena_printf(a, "%" PRIu64, *(const uint64_t *)p);
    case INT: return lnt_arena_printf(a, "%d", *(const int *)p);
    case DOUBLE: return lnt_arena_printf(a, "%.17g", *(const double *)p);
    }
    return NULL;
}

static linnet_status read_field(lnt_ctx *c, const lnt_safetensors *s, const field *f, void *base)
{
    const char *text = lnt_safetensors_metadata(s, f->key);
    if (!text && f->optional) text = "0";
    if (!text) {
        lnt_fail(c, LINNET_EFORMAT, "\"%s\" is missing", f->key);
        return lnt_detail(c, "Read from the metadata of %s.", s->path);
    }
    void *p = (char *)base + f->offset;
    char *end;
    switch (f->type) {
    case INT64: *(int64_t *)p = strtoll(text, &end, 10); break;
    case UINT64: *(uint64_t *)p = strtoull(text, &end, 10); break;
    case INT: *(int *)p = (int)strtol(text, &end, 10); break;
    default: *(double *)p = strtod(text, &end); break;
    }
    if (*text && !*end) return LINNET_OK;
    lnt_fail(c, LINNET_EFORMAT, "\"%s\" is \"%.60s\", expected a number", f->key, text);
    return lnt_detail(c, "Read from the metadata of %s.", s->path);
}

static void state_path(char *path, size_t size, const char *folder) { snprintf(path, size, "%s/train_state.safetensors", folder); }

linnet_status lnt_resume_save(lnt_ctx *c, const char *folder, const lnt_trainer *t, const linnet_train_options *o, const lnt_run_position *at)
{
    static const char *const prefix[3] = {"weight.", "moment1.", "moment2."};
    const lnt_program *p = t->m->p;
    const size_t bytes = (size_t)t->m->w->elements * 4;
    int n = lnt_param_count(p);
    lnt_arena scratch = {0};
    float *host[3] = {0};
    char path[4096];
    linnet_status s = LINNET_OK;
    const char *metadata[2 * N_FIELDS];
    for (int i = 0; i < N_FIELDS; i++) {
        const field *f = i < N_OPTIONS ? &options[i] : &counters[i - N_OPTIONS];
        metadata[2 * i] = f->key;
        metadata[2 * i + 1] = text_of(&scratch, f, i < N_OPTIONS ? (const void *)o : (const void *)at);
        if (!metadata[2 * i + 1]) s = lnt_fail_memory(c, 32);
    }
    lnt_st_tensor *tensors = lnt_calloc((size_t)(3 * n) * sizeof *tensors);
    if (!tensors) s = lnt_fail_memory(c, (size_t)(3 * n) * sizeof *tensors);
    for (int i = 0; s == LINNET_OK && i < 3; i++) {
        host[i] = lnt_alloc(bytes);
        if (!host[i]) s = lnt_fail_memory(c, bytes);
        else if (i) lnt_to_host(c, host[i], i == 1 ? t->optimizer->m : t->optimizer->v, bytes);
        else s = lnt_weights_get(t->m->w, host[0]);
        if (s == LINNET_OK) s = lnt_checkpoint_list(c, p, prefix[i], host[i], &scratch, tensors + i * n);
    }
    if (s != LINNET_OK) goto done;
    state_path(path, sizeof path, folder);
    s = lnt_safetensors_write(c, path, 3 * n, tensors, N_FIELDS, metadata);
done:
    for (int i = 0; i < 3; i++) lnt_free(host[i]);
    lnt_free(tensors);
    lnt_arena_free(&scratch);
    return s;
}

static linnet_status open_state(lnt_ctx *c, const char *folder, lnt_safetensors **out)
{
    char path[4096];
    state_path(path, sizeof path, folder);
    if (!lnt_file_exists(path)) {
        lnt_fail(c, LINNET_EIO, "there is nothing to resume in \"%s\": train_state.safetensors is not there", folder);
        return lnt_hint(c, "Start the run without --resume.");
    }
    return lnt_safetensors_open(c, path, out);
}

linnet_status lnt_resume_read_options(lnt_ctx *c, const char *folder, linnet_train_options *o, lnt_run_position *at)
{
    lnt_safetensors *s;
    LNT_TRY(open_state(c, folder, &s));
    linnet_status status = LINNET_OK;
    for (int i = 0; status == LINNET_OK && i < N_OPTIONS; i++) status = read_field(c, s, &options[i], o);
    for (int i = 0; status == LINNET_OK && i < N_COUNTERS; i++) status = read_field(c, s, &counters[i], at);
    lnt_safetensors_close(s);
    return status;
}

linnet_status lnt_resume_read_weights(lnt_ctx *c, const char *folder, lnt_trainer *t)
{
    lnt_safetensors *s;
    LNT_TRY(open_state(c, folder, &s));
    linnet_status status = lnt_checkpoint_read(c, s, "weight.", t->m->w, false);
    if (status == LINNET_OK) status = lnt_checkpoint_read_arena(c, s, "moment1.", t->m->p, t->optimizer->m);
    if (status == LINNET_OK) status = lnt_checkpoint_read_arena(c, s, "moment2.", t->m->p, t->optimizer->v);
    lnt_safetensors_close(s);
    return status;
}

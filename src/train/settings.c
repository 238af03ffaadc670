#include "train/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/options.h"

typedef enum { INT64, UINT64, INT, DTYPE, DOUBLE } kind;

typedef struct {
    const char *key;    /* in files; messages leave out what stands before the point */
    kind kind;
    bool optional;      /* files written before it was there lack it */
    size_t offset;
    double least, most; /* of numbers; whole ones are below 2^53. most 0: the option's own, as linnet_option_range has them */
    /* Of messages: */
    const char *words;  /* its values by name, from 0 on */
    const char *unit;   /* behind a number */
    const char *zero;   /* in place of 0 */
} setting;

#define OPTION(name, type, ...) {.key = "option." #name, .kind = type, .offset = offsetof(lnt_run_settings, o.name), __VA_ARGS__}
#define RUN(name, type, ...) {.key = "run." #name, .kind = type, .offset = offsetof(lnt_run_settings, at.name), __VA_ARGS__}
static const setting settings[] = {
    OPTION(batch, INT64),
    OPTION(length, INT64),
    OPTION(accumulate, INT64),
    OPTION(learning_rate, DOUBLE),
    OPTION(min_learning_rate_share, DOUBLE),
    OPTION(warmup, INT64, .least = LINNET_WARMUP_AUTO),
    OPTION(beta1, DOUBLE),
    OPTION(beta2, DOUBLE),
    OPTION(epsilon, DOUBLE),
    OPTION(weight_decay, DOUBLE),
    OPTION(clip, DOUBLE),
    OPTION(seed, UINT64),
    OPTION(isolate_documents, INT, .most = 1, .words = "off on"),
    OPTION(held_out_share, DOUBLE),
    OPTION(eval_every, INT64),
    OPTION(eval_tokens, INT64),
    OPTION(save_every, INT64),
    OPTION(recompute, INT, .words = "none blocks cheap"),
    OPTION(max_seconds, DOUBLE, .unit = " seconds", .zero = "no limit"),
    OPTION(weights, DTYPE, .optional = true),
    OPTION(moments, DTYPE, .optional = true),
    OPTION(train_tokenizer, INT64, .optional = true, .most = INT32_MAX),
    {.key = "option.dtype", .kind = DTYPE, .optional = true, .offset = offsetof(lnt_run_settings, dtype)},
    OPTION(warmup_from, DOUBLE, .optional = true),
    OPTION(no_separator_loss, INT, .optional = true, .most = 1, .words = "off on"),
    OPTION(shard_bytes, INT64, .optional = true, .most = 9e15, .unit = " bytes", .zero = "one file"),
    RUN(steps, INT64, .most = 1e15),
    RUN(step, INT64, .most = 1e15),
    RUN(tokens, INT64, .most = 9e15),
    RUN(samples, INT64, .most = 9e15),
    RUN(seconds, DOUBLE, .most = 1e12),
    RUN(fingerprint, UINT64),
    RUN(held_fingerprint, UINT64, .optional = true),
    RUN(init_fingerprint, UINT64, .optional = true),
};
#undef RUN
#undef OPTION
enum { N = sizeof settings / sizeof *settings };
_Static_assert((int)N <= (int)LNT_SETTINGS, "room for every setting");

static const char *name_of(const setting *s) { return strchr(s->key, '.') + 1; }

static bool is_whole(const setting *s) { return s->kind == INT64 || s->kind == INT; }

static double number_of(const setting *s, const lnt_run_settings *r)
{
    const void *p = (const char *)r + s->offset;
    switch (s->kind) {
    case INT64: return (double)*(const int64_t *)p;
    case INT: return *(const int *)p;
    case DTYPE: return *(const linnet_dtype *)p;
    case DOUBLE: return *(const double *)p;
    case UINT64: break;
    }
    return 0;
}

static void limits_of(const setting *s, double *least, double *most)
{
    *least = s->least;
    *most = s->most;
    if (*most == 0) linnet_option_range("train", name_of(s), least, most);
}

static bool is_allowed(const setting *s, const lnt_run_settings *r)
{
    const double x = number_of(s, r);
    if (s->kind == UINT64) return true;
    if (s->kind == DTYPE) return x == LINNET_F32 || x == LINNET_BF16;
    double least, most;
    limits_of(s, &least, &most);
    return x >= least && x <= most;
}

/* As a file has it. */
static const char *file_text(const setting *s, const lnt_run_settings *r, char text[40])
{
    const void *p = (const char *)r + s->offset;
    switch (s->kind) {
    case INT64: snprintf(text, 40, "%" PRId64, *(const int64_t *)p); break;
    case UINT64: snprintf(text, 40, "%" PRIu64, *(const uint64_t *)p); break;
    case INT: snprintf(text, 40, "%d", *(const int *)p); break;
    case DTYPE: snprintf(text, 40, "%d", (int)*(const linnet_dtype *)p); break;
    case DOUBLE: lnt_format(text, 40, "%.17g", *(const double *)p); break;
    }
    return text;
}

/* As a message has it. */
static const char *shown(const setting *s, const lnt_run_settings *r, char text[40])
{
    if (s->kind == DTYPE) return linnet_dtype_name(*(const linnet_dtype *)((const char *)r + s->offset));
    if (s->least == LINNET_WARMUP_AUTO && number_of(s, r) == LINNET_WARMUP_AUTO) return "left to linnet";
    if (s->words) return lnt_word_at(s->words, (int)number_of(s, r), text, 40);
    if (s->zero && number_of(s, r) == 0) return s->zero;
    if (s->kind == DOUBLE) lnt_format(text, 40, "%.10g", number_of(s, r));
    else file_text(s, r, text);
    return s->unit ? strcat(text, s->unit) : text;
}

static const char *range_of(const setting *s, char text[80])
{
    double least, most;
    limits_of(s, &least, &most);
    if (s->kind == UINT64) snprintf(text, 80, "a number from 0 to 2^64 - 1");
    else if (s->kind == DTYPE) snprintf(text, 80, "%d (float32) or %d (bf16)", LINNET_F32, LINNET_BF16);
    else lnt_format(text, 80, "a %snumber from %g to %g", is_whole(s) ? "whole " : "", least, most);
    return text;
}

linnet_status lnt_settings_check(lnt_ctx *c, const lnt_run_settings *r)
{
    for (int i = 0; i < N; i++) {
        char value[40], range[80];
        if (!is_allowed(&settings[i], r))
            return lnt_fail_option(c, name_of(&settings[i]), "is %s, expected %s", file_text(&settings[i], r, value), range_of(&settings[i], range));
    }
    return LINNET_OK;
}

int lnt_settings_list(const lnt_run_settings *r, lnt_arena *scratch, const char *pairs[2 * LNT_SETTINGS])
{
    for (int i = 0; i < N; i++) {
        char text[40];
        pairs[2 * i] = settings[i].key;
        pairs[2 * i + 1] = lnt_arena_strdup(scratch, file_text(&settings[i], r, text));
        if (!pairs[2 * i + 1]) return 0;
    }
    return N;
}

/* The whole text as a number of the setting's type; false where it is none or does not fit. */
static bool parse(const setting *s, const char *text, lnt_run_settings *r)
{
    void *p = (char *)r + s->offset;
    char *end;
    int64_t whole = 0;
    errno = 0;
    if (!*text || strspn(text, "0123456789+-.eE") != strlen(text) || (*text == '-' && s->kind == UINT64)) return false;
    if (s->kind == DOUBLE) *(double *)p = lnt_parse_real(text, &end);
    else if (s->kind == UINT64) *(uint64_t *)p = strtoull(text, &end, 10);
    else whole = strtoll(text, &end, 10);
    if (*end || (errno && s->kind != DOUBLE)) return false; /* a double that is too small for its type reads as what is nearest */
    if (s->kind == INT64) *(int64_t *)p = whole;
    if (s->kind == INT || s->kind == DTYPE) {
        if (whole < INT32_MIN || whole > INT32_MAX) return false;
        if (s->kind == INT) *(int *)p = (int)whole;
        else *(linnet_dtype *)p = (linnet_dtype)whole;
    }
    return true;
}

static linnet_status malformed(lnt_ctx *c, const char *path)
{
    return lnt_detail(c, "Read from the metadata of %s.", path);
}

/* Every counter follows from the number of steps: what does not fit together was not written by a run. */
static linnet_status check_counters(lnt_ctx *c, const char *path, const lnt_run_settings *r)
{
    const lnt_run_position *at = &r->at;
    int64_t sequences, samples, tokens;
    if (at->steps && at->step > at->steps) {
        lnt_fail(c, LINNET_EFORMAT, "\"run.step\" is %" PRId64 ", expected at most \"run.steps\", %" PRId64, at->step, at->steps);
        return malformed(c, path);
    }
    if (!at->steps && r->o.max_seconds <= 0) {
        lnt_fail(c, LINNET_EFORMAT, "\"run.steps\" is 0 in a run without a time, expected at least 1");
        return malformed(c, path);
    }
    if (!lnt_mul(r->o.batch, r->o.accumulate, &sequences) || !lnt_mul(sequences, at->step, &samples) || !lnt_mul(samples, r->o.length, &tokens)) {
        lnt_fail(c, LINNET_EFORMAT, "%" PRId64 " steps of %" PRId64 " x %" PRId64 " sequences of %" PRId64 " tokens cannot be counted", at->step,
                 r->o.accumulate, r->o.batch, r->o.length);
        return malformed(c, path);
    }
    if (at->samples == samples && at->tokens == tokens) return LINNET_OK;
    const bool first = at->samples != samples;
    lnt_fail(c, LINNET_EFORMAT, "\"run.%s\" is %" PRId64 ", expected %" PRId64 " after %" PRId64 " steps", first ? "samples" : "tokens",
             first ? at->samples : at->tokens, first ? samples : tokens, at->step);
    return malformed(c, path);
}

bool lnt_settings_given(const linnet_train_options *o, const char *name)
{
    for (int i = 0; i < o->n_given; i++)
        if (strcmp(o->given[i], name) == 0) return true;
    return false;
}

/* More steps than a run at its end had are so many more to go, whatever time it was given. */
static void lengthen(const lnt_run_settings *asked, lnt_run_settings *was)
{
    if (!lnt_settings_given(&asked->o, "steps") || was->at.step != was->at.steps || asked->at.steps <= was->at.steps) return;
    was->lengthened = was->at.steps;
    was->at.steps = asked->at.steps;
    was->o.max_seconds = 0;
}

linnet_status lnt_settings_read(lnt_ctx *c, const char *path, const char *(*get)(const void *from, const char *key), const void *from,
                                lnt_run_settings *r)
{
    lnt_run_settings was = *r;
    char a[40], b[40], range[80];
    was.at = (lnt_run_position){0};
    was.o.weights = was.o.moments = LINNET_F32; /* as before they could be anything else */
    for (int i = 0; i < N; i++) {
        const setting *s = &settings[i];
        const char *text = get(from, s->key);
        if (!text && s->optional) continue;
        if (!text) {
            lnt_fail(c, LINNET_EFORMAT, "\"%s\" is missing", s->key);
            return malformed(c, path);
        }
        if (!parse(s, text, &was) || !is_allowed(s, &was)) {
            lnt_fail(c, LINNET_EFORMAT, "\"%s\" is \"%.60s\", expected %s", s->key, text, range_of(s, range));
            return malformed(c, path);
        }
    }
    LNT_TRY(check_counters(c, path, &was));
    r->at.steps = r->o.steps; /* asked for as an option, kept as a counter */
    lengthen(r, &was);
    for (int i = 0; i < N; i++) {
        const setting *s = &settings[i];
        if (!lnt_settings_given(&r->o, name_of(s)) || strcmp(file_text(s, r, a), file_text(s, &was, b)) == 0) continue;
        lnt_fail_option(c, name_of(s), "is %s, but the run in \"%s\" was started with %s", shown(s, r, a), r->o.out, shown(s, &was, b));
        return lnt_hint(c, "Resume without it, or start a new run in another folder.");
    }
    *r = was;
    return LINNET_OK;
}

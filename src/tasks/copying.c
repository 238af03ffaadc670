/* Copying: a string, a separator, and the string again (Jelassi et al., arXiv 2402.01032): what a state of fixed size holds word for word. */
#include "tasks/study.h"

typedef struct {
    int64_t vocabulary, length, test_length;
    lnt_study study;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, vocabulary, 2, 1 << 20, 26, "letters"),
    LNT_INT(options, length, 1, 1 << 20, 20, "letters of the longest string to learn from; lengths are uniform from 1"),
    LNT_INT(options, test_length, 1, 1 << 20, 20, "letters of every string of the test"),
    LNT_STUDY_ROWS(options, 2000, 64, 512, 0.1),
};
static const lnt_task_text texts[] = {LNT_STUDY_TEXT(options, "1e-3")};
static const char *const paper[] = {"length=300", "test_length=300", "steps=100000", NULL};
static const char *const size[] = {"num_hidden_layers=2", "hidden_size=128", "num_heads=4", NULL};

/* Letters 0 .. V-1, then V, from which on the next letter is asked for. */
static int64_t example(const lnt_source *s, int set, uint64_t index, int32_t *ids, int32_t *targets)
{
    const options *o = s->own;
    lnt_rng r = lnt_task_rng(s->name, s->seed, set, index);
    const int64_t n = set ? o->test_length : 1 + (int64_t)lnt_rng_below(&r, (uint64_t)o->length);
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)lnt_rng_below(&r, (uint64_t)o->vocabulary);
        targets[i] = -1;
        targets[n + i] = ids[i];
        if (i + 1 < n) ids[n + 1 + i] = ids[i];
    }
    ids[n] = (int32_t)o->vocabulary;
    return 2 * n;
}

static linnet_status source(lnt_ctx *c, const void *values, lnt_arena *arena, lnt_source *s)
{
    const options *o = values;
    (void)c;
    (void)arena;
    s->vocabulary = o->vocabulary + 1;
    s->n_sets = 2;
    s->set[0].longest = 2 * o->length;
    s->set[1].longest = 2 * o->test_length;
    s->example = example;
    s->own = (void *)(uintptr_t)o;
    return LINNET_OK;
}

static linnet_status run(lnt_run *r) { return lnt_study_task(r, &((const options *)r->values)->study); }

const lnt_task lnt_task_copying = {
    .info = {"copying", "a string, a separator, and the string again",
             "Every letter of the copy is predicted from those before it. exact is the share of strings copied without a mistake.",
             "Jelassi et al. 2024, arXiv 2402.01032", "linnet task copying --mixer attention --length 20", LINNET_TASK_TRAINS, 0, 0, "", size, NULL,
             "The paper's models are far larger."},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 1,
    .paper = paper,
    .run = run,
    .source = source,
};

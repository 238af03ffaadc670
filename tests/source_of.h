/* For tests of tasks: the source of a task with some of its options set, and whether counts follow a law. */
#ifndef SOURCE_OF_H
#define SOURCE_OF_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tasks/study.h"

typedef struct {
    lnt_arena arena;
    lnt_source s;
    int32_t *ids, *targets; /* room for the longest example and one more */
} opened;

/* `set` is "key=value key=value". */
static inline opened source_of(linnet_context *c, const char *task, const char *set)
{
    const lnt_task *t = lnt_task_find(task);
    opened o = {.s = {.name = task, .seed = 3}};
    char text[256], *word = text;
    const char *pairs[16];
    int n = 0;
    void *values;
    assert_non_null(t);
    snprintf(text, sizeof text, "%s", set);
    for (word = strtok(text, " "); word; word = strtok(NULL, " ")) pairs[n++] = word;
    if (lnt_task_values(c, t, "short", pairs, n, &o.arena, &values) != LINNET_OK || t->source(c, values, &o.arena, &o.s) != LINNET_OK)
        fail_msg("%s %s: %s", task, set, linnet_error_message(c));
    int64_t longest = 0;
    for (int i = 0; i < o.s.n_sets; i++)
        if (o.s.set[i].longest > longest) longest = o.s.set[i].longest;
    o.ids = calloc((size_t)longest + 1, sizeof *o.ids);
    o.targets = calloc((size_t)longest + 1, sizeof *o.targets);
    return o;
}

static inline void close_source(opened *o)
{
    free(o->ids);
    free(o->targets);
    lnt_arena_free(&o->arena);
}

static inline int64_t take(opened *o, int set, uint64_t index) { return o->s.example(&o->s, set, index, o->ids, o->targets); }

/* Counts [n] against probabilities [n] (NULL: all equal): Pearson's statistic within five standard deviations of its mean. */
static inline void follows(const char *what, const int64_t *count, const double *law, int n)
{
    double total = 0, statistic = 0;
    for (int i = 0; i < n; i++) total += (double)count[i];
    for (int i = 0; i < n; i++) {
        const double expected = total * (law ? law[i] : 1.0 / n);
        if (expected < 5) fail_msg("%s: %g expected at %d, too few to judge", what, expected, i);
        statistic += ((double)count[i] - expected) * ((double)count[i] - expected) / expected;
    }
    const double freedom = n - 1;
    if (!(statistic < freedom + 5 * sqrt(2 * freedom))) fail_msg("%s: chi-square %g with %g degrees of freedom", what, statistic, freedom);
    /* a law that is followed too well is none: draws that are no draws */
    if (n > 60 && !(statistic > freedom - 5 * sqrt(2 * freedom)))
        fail_msg("%s: chi-square %g with %g degrees of freedom is too good", what, statistic, freedom);
}

#endif

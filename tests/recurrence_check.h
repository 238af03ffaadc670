/* One checker for every implementation of every recurrence: it runs a case as asked and compares with the float64 reference. */
#ifndef RECURRENCE_CHECK_H
#define RECURRENCE_CHECK_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/dtype.h"
#include "core/memory.h"
#include "core/rng.h"
#include "recurrence/problem.h"
#include "recurrence/recur_args.h"

static inline linnet_context *make_context(int threads)
{
    linnet_context *c;
    assert_int_equal(linnet_context_create(&(linnet_context_options){ .size = sizeof(linnet_context_options), .threads = threads }, &c), LINNET_OK);
    return c;
}

#define OK(c, call)                                                                                                                \
    do {                                                                                                                           \
        if ((call) != LINNET_OK) fail_msg("%s: %s (%s)", #call, linnet_error_message(c), linnet_error_detail(c));                  \
    } while (0)

static inline void describe_case(const lnt_recur_case *k, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, "%s T=", k->op);
    for (int i = 0; i < k->sequences && n < size; i++) n += (size_t)snprintf(text + n, size - n, "%s%lld", i ? "+" : "", (long long)k->length[i]);
    for (int i = 0; i < LNT_CASE_SIZES && k->size[i].letter && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, " %s=%lld", k->size[i].letter, (long long)k->size[i].value);
    for (int i = 0; i < LNT_CASE_OPTIONS && k->option[i].key && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, " %s=%g", k->option[i].key, k->option[i].value);
    if (n < size) snprintf(text + n, size - n, " gate=%g reset=%g beta=%g states=%d", k->gate, k->reset, k->beta, k->states);
}

/* A tensor of a problem by name; NULL: absent. */
static inline float *tensor(const lnt_problem *p, const char *name)
{
    int i = lnt_recur_tensor_find(p->op, name);
    return i < 0 ? NULL : p->data[i];
}
static inline size_t tensor_bytes(const lnt_problem *p, const char *name)
{
    int i = lnt_recur_tensor_find(p->op, name);
    return i < 0 ? 0 : p->bytes[i];
}
/* The arguments of an operator with heads of keys and values. */
static inline lnt_recur_args *args(const lnt_problem *p) { return (lnt_recur_args *)(uintptr_t)&p->call; }
static inline bool is_result(const lnt_problem *p, int i) { return p->op->tensors[i].role >= LNT_T_OUTPUT; }

/* Float32 tensors and blocks. */
static inline int64_t elements(const lnt_problem *p, const char *name) { return (int64_t)(tensor_bytes(p, name) / 4); }

static inline void close_to(const char *who, const char *what, const float *x, const float *y, int64_t n, double allowed)
{
    double error = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        norm += (double)y[i] * y[i];
    }
    if (!(error <= allowed * allowed * norm)) fail_msg("%s: %s differs: relative %.3g, allowed %.3g", who, what, sqrt(error / norm), allowed);
}

static inline void check_guards(const void *data, size_t bytes, const char *what, const char *who)
{
    const uint8_t *p = data;
    for (int i = 1; i <= LNT_PROBLEM_GUARD; i++)
        if (p[-i] != 0xa5 || p[bytes + (size_t)i - 1] != 0xa5) fail_msg("%s wrote outside %s (byte %d)", who, what, i);
}

/* The float64 truth of a case whose inputs were rounded to `round`. */
static inline void make_truth(linnet_context *c, const lnt_recur_case *k, lnt_dtype round, lnt_problem *truth)
{
    OK(c, lnt_problem_make(c, k, LINNET_F64, round, 7, truth));
    OK(c, lnt_problem_run(c, truth, false));
    OK(c, lnt_problem_run(c, truth, true));
}

typedef struct {
    double output, gradient, gate; /* the largest relative errors seen */
} seen;

static inline void compare_results(const lnt_problem *p, const lnt_problem *truth, const char *who, bool backward, seen *most)
{
    for (int i = 0; p->op->tensors[i].name; i++) {
        const lnt_recur_tensor *t = &p->op->tensors[i];
        if (!p->data[i] || !is_result(p, i) || (!backward && (t->role == LNT_T_GRADIENT || t->role == LNT_T_REPORT))) continue;
        lnt_recur_error e = lnt_problem_error(p, truth, i);
        double allowed = lnt_recur_allowed(p->op, p->r.dtype, i);
        double *record = t->role != LNT_T_GRADIENT ? &most->output : t->gate ? &most->gate : &most->gradient;
        if (e.most > 1e-6 && e.relative > *record) *record = e.relative;
        if (!(e.most <= 1e-6) && !(e.relative <= allowed))
            fail_msg("%s: %s has relative error %.3g, allowed %.3g; largest %.3g at element %lld", who, t->name, e.relative, allowed, e.most,
                     (long long)e.worst);
    }
}

static inline void compare(const lnt_problem *p, const lnt_problem *truth, const char *who, seen *most)
{
    compare_results(p, truth, who, true, most);
}

/* Run forward, and backward where `directions` is 2, as p->r says; check that inputs and guards are untouched. The directions that ran: fewer where
 * the implementation declines. */
static inline int run_some(linnet_context *c, lnt_problem *p, const char *who, int directions)
{
    void *copy[LNT_RECUR_TENSORS] = { 0 };
    for (int i = 0; p->op->tensors[i].name; i++)
        if (p->data[i] && !is_result(p, i)) {
            copy[i] = lnt_alloc(p->bytes[i]);
            memcpy(copy[i], p->data[i], p->bytes[i]);
        }
    int ran = 0;
    for (linnet_status s = LINNET_OK; ran < directions && s == LINNET_OK; ran += s == LINNET_OK) {
        s = lnt_problem_run(c, p, ran > 0);
        if (s != LINNET_OK && !(s == LINNET_EUNSUPPORTED && p->r.impl)) fail_msg("%s: %s", who, linnet_error_message(c));
        if (s == LINNET_OK) check_guards(p->workspace, p->r.workspace_size, "workspace", who);
    }
    for (int i = 0; p->op->tensors[i].name; i++) {
        if (p->data[i]) check_guards(p->data[i], p->bytes[i], p->op->tensors[i].name, who);
        if (copy[i] && memcmp(copy[i], p->data[i], p->bytes[i])) fail_msg("%s changed its input %s", who, p->op->tensors[i].name);
        lnt_free(copy[i]);
    }
    return ran;
}
static inline bool run_both(linnet_context *c, lnt_problem *p, const char *who) { return run_some(c, p, who, 2) == 2; }

static inline void check_same_bits(const lnt_problem *a, const lnt_problem *b, const char *who)
{
    for (int i = 0; a->op->tensors[i].name; i++)
        if (a->data[i] && memcmp(a->data[i], b->data[i], a->bytes[i])) fail_msg("%s: %s differs in its bits", who, a->op->tensors[i].name);
}

/* A result or what is given has rows of sequences, those of sequence n `*from` to `*to` in bytes. */
static inline bool rows_of(const lnt_problem *p, int i, int n, size_t *from, size_t *to)
{
    const char first = p->op->tensors[i].shape[0];
    const int64_t rows = first == 'T' ? p->r.tokens : p->r.sequences;
    if (!p->data[i] || (first != 'T' && first != 'N') || rows == 0) return false;
    const size_t row = p->bytes[i] / (size_t)rows;
    *from = row * (size_t)(first == 'T' ? p->r.cu_seqlens[n] : n), *to = row * (size_t)(first == 'T' ? p->r.cu_seqlens[n + 1] : n + 1);
    return true;
}

/* Packed sequences do not see each other: what every other one of them is given becomes NaN, and the rest keep their bits. False: the
 * implementation that p->r names declines. */
static inline bool stay_apart(linnet_context *c, lnt_problem *p, lnt_problem *poisoned, const char *who, int directions)
{
    size_t from, to;
    for (int odd = 0; odd < 2; odd++) {
        for (int i = 0; p->op->tensors[i].name; i++) {
            if (is_result(p, i) || !p->data[i]) continue;
            memcpy(poisoned->data[i], p->data[i], p->bytes[i]);
            for (int n = odd; n < p->r.sequences && p->op->tensors[i].values != LNT_VALUES_COUNT; n += 2)
                if (rows_of(p, i, n, &from, &to)) memset((char *)poisoned->data[i] + from, 0xff, to - from);
        }
        if (!odd && run_some(c, p, who, directions) != directions) return false;
        poisoned->r.impl = p->r.impl;
        if (run_some(c, poisoned, who, directions) != directions) return false;
        for (int i = 0; p->op->tensors[i].name; i++)
            for (int n = !odd; is_result(p, i) && n < p->r.sequences; n += 2)
                if (rows_of(p, i, n, &from, &to) && memcmp((char *)p->data[i] + from, (char *)poisoned->data[i] + from, to - from))
                    fail_msg("%s: %s of sequence %d differs by what its neighbours are", who, p->op->tensors[i].name, n);
    }
    return true;
}

/* Of an implementation, in both directions or forward alone. */
static inline bool check_apart(linnet_context *c, const lnt_recur_case *k, const lnt_recur_impl *impl, lnt_dtype dtype)
{
    lnt_problem p[2];
    char who[384];
    const int at = snprintf(who, sizeof who, "%s %s ", impl->name, lnt_dtype_name(dtype));
    describe_case(k, who + at, sizeof who - (size_t)at);
    for (int i = 0; i < 2; i++) OK(c, lnt_problem_make(c, k, dtype, dtype, 7, &p[i]));
    p[0].r.impl = impl->name;
    const bool ran = stay_apart(c, &p[0], &p[1], who, 2) || stay_apart(c, &p[0], &p[1], who, 1);
    for (int i = 0; i < 2; i++) lnt_problem_free(&p[i]);
    return ran;
}

#endif

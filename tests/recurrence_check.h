/* One checker for every implementation of every recurrence: it runs a case as asked and compares with the float64 reference. */
#ifndef RECURRENCE_CHECK_H
#define RECURRENCE_CHECK_H

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
    for (int i = 0; i < k->sequences; i++) n += (size_t)snprintf(text + n, size - n, "%s%lld", i ? "+" : "", (long long)k->length[i]);
    snprintf(text + n, size - n, " Hq=%d Hv=%d K=%d V=%d gate=%g reset=%g beta=%g normalize=%d states=%d window=%lld offset=%lld", k->Hq, k->Hv, k->K,
             k->V, k->gate, k->reset, k->beta, k->normalize, k->states, (long long)k->window, (long long)k->offset);
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

static inline void compare(const lnt_problem *p, const lnt_problem *truth, const char *who, seen *most)
{
    lnt_recur_budget budget = lnt_recur_budget_of(p->op, p->r.dtype);
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) {
        const lnt_recur_tensor *t = &lnt_recur_tensors[i];
        if (!p->data[i] || t->role < LNT_T_OUTPUT) continue;
        lnt_recur_error e = lnt_problem_error(p, truth, i);
        bool gate = !strcmp(t->name, "dg") || !strcmp(t->name, "dg_head") || !strcmp(t->name, "dbeta");
        double allowed = t->role != LNT_T_GRADIENT ? budget.output : gate ? budget.gate : budget.gradient;
        double *record = t->role != LNT_T_GRADIENT ? &most->output : gate ? &most->gate : &most->gradient;
        if (e.most > 1e-6 && e.relative > *record) *record = e.relative;
        if (!(e.most <= 1e-6) && !(e.relative <= allowed))
            fail_msg("%s: %s has relative error %.3g, allowed %.3g; largest %.3g at element %lld", who, t->name, e.relative, allowed, e.most,
                     (long long)e.worst);
    }
}

/* Run forward and backward as p->r says; check that inputs and guards are untouched. False: the implementation declines. */
static inline bool run_both(linnet_context *c, lnt_problem *p, const char *who)
{
    void *copy[LNT_RECUR_TENSORS] = { 0 };
    for (int i = 0; i < LNT_RECUR_TENSORS; i++)
        if (p->data[i] && lnt_recur_tensors[i].role < LNT_T_OUTPUT) {
            copy[i] = lnt_alloc(p->bytes[i]);
            memcpy(copy[i], p->data[i], p->bytes[i]);
        }
    bool ran = true;
    for (int backward = 0; backward < 2 && ran; backward++) {
        linnet_status s = lnt_problem_run(c, p, backward);
        if (s == LINNET_EUNSUPPORTED && p->r.impl)
            ran = false;
        else if (s != LINNET_OK)
            fail_msg("%s: %s", who, linnet_error_message(c));
        if (ran) check_guards(p->workspace, p->r.workspace_size, "workspace", who);
    }
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) {
        if (p->data[i]) check_guards(p->data[i], p->bytes[i], lnt_recur_tensors[i].name, who);
        if (copy[i] && memcmp(copy[i], p->data[i], p->bytes[i])) fail_msg("%s changed its input %s", who, lnt_recur_tensors[i].name);
        lnt_free(copy[i]);
    }
    return ran;
}

static inline void check_same_bits(const lnt_problem *a, const lnt_problem *b, const char *who)
{
    for (int i = 0; i < LNT_RECUR_TENSORS; i++)
        if (a->data[i] && memcmp(a->data[i], b->data[i], a->bytes[i])) fail_msg("%s: %s differs in its bits", who, lnt_recur_tensors[i].name);
}

#endif

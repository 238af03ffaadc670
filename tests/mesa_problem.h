/* Problems of Mesa, for its own tests. */
#ifndef MESA_PROBLEM_H
#define MESA_PROBLEM_H

#include "mesa_nan.h"

static inline lnt_recur_case case_of(int64_t T, bool states)
{
    return (lnt_recur_case){ "mesa", 1, { T }, LNT_HEADS(2, 2, 20, 24), .gate = -0.1, .beta = 1, .states = states };
}

static inline double element(const lnt_problem *p, const char *name, int64_t i)
{
    int t = lnt_recur_tensor_find(p->op, name);
    return lnt_load_element(p->data[t], lnt_recur_type(&p->call, t), i);
}
static inline void put(const lnt_problem *p, const char *name, int64_t i, double x)
{
    int t = lnt_recur_tensor_find(p->op, name);
    lnt_store_element(p->data[t], lnt_recur_type(&p->call, t), i, x);
}

static inline void make(linnet_context *c, lnt_recur_case k, lnt_dtype dtype, lnt_problem *p)
{
    OK(c, lnt_problem_make(c, &k, dtype, dtype, 5, p));
}
static inline void both(linnet_context *c, lnt_problem *p)
{
    OK(c, lnt_problem_run(c, p, false));
    OK(c, lnt_problem_run(c, p, true));
}

/* <rows of name, rows of other> of token and head i, widths alike. */
static inline double row_product(const lnt_problem *p, const char *name, const char *other, int64_t i, int64_t width)
{
    double sum = 0;
    for (int64_t j = i * width; j < (i + 1) * width; j++) sum += element(p, name, j) * element(p, other, j);
    return sum;
}

static inline void assert_close(const char *what, const lnt_problem *a, const lnt_problem *b, const char *name, double factor, double allowed)
{
    double error = 0, norm = 0;
    int64_t n = lnt_recur_elements(&a->call, lnt_recur_tensor_find(a->op, name));
    for (int64_t i = 0; i < n; i++) {
        double x = factor * element(a, name, i), y = element(b, name, i);
        error += (x - y) * (x - y);
        norm += y * y;
    }
    if (!(error <= allowed * allowed * norm)) fail_msg("%s: %s differs by %.3g, allowed %.3g", what, name, sqrt(error / norm), allowed);
}

#endif

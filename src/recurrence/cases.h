/* The cases that a core's implementations are checked on: <core>_cases.c. */
#ifndef LNT_RECUR_CASES_H
#define LNT_RECUR_CASES_H

#include <stdbool.h>
#include <stdint.h>

enum { LNT_CASE_SEQUENCES = 64, LNT_CASE_SIZES = 8, LNT_CASE_OPTIONS = 4 };

/* A shape and the ranges of its inputs. A list ends with op == NULL. */
typedef struct lnt_recur_case {
    const char *op;
    int sequences;
    int64_t length[LNT_CASE_SEQUENCES];
    struct {
        const char *letter; /* those that are left out follow from others (lnt_recur_size.same_as) */
        int64_t value;
    } size[LNT_CASE_SIZES];
    double gate;   /* decays uniform in [gate, 0] */
    double reset;  /* probability of a decay of -inf */
    double beta;   /* write strengths uniform in (0, beta); 0: (0, 1) */
    double positive; /* numbers above 0 are from half of this to one and a half of it, and weights of norms, of which it may be below 0; 0: of 1 */
    bool states;   /* initial state in, gradients of the final state in */
    struct {
        const char *key;
        double value;
    } option[LNT_CASE_OPTIONS];
    const void *given; /* a call (lnt_recur_call) whose options these become: shapes follow from them; NULL: none */
    bool inexact;      /* also those that lnt_recur_op.exact sets; otherwise an operator that has it takes words alone */
} lnt_recur_case;
#define LNT_HEADS(HQ, HV, SIZE_K, SIZE_V) { { "Hq", HQ }, { "Hk", HQ }, { "Hv", HV }, { "K", SIZE_K }, { "V", SIZE_V } }

#endif

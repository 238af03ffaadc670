/* Chains: plain operators that stand between two products in a step of few rows, as one kernel on a GPU.
 *
 * An operator says in its hook `row` how one row of its result is made (lnt_row_step): which function of columns it is, and where each number comes
 * from. A plan asks the first of a run of nodes which others go with it (lnt_op.follows), and hands it all their calls (lnt_op.run_group). Threads
 * have two neighbouring columns each and go through the functions one after the other; what one of them makes for the next stays with the thread,
 * rounded as it would be stored (not what a pair hands on, which nobody stores: lnt_pair). So nodes go together when their columns do: row_chain.c
 * finds every node a place among the threads' columns, such that what reads a result stands where that was made. */
#ifndef LNT_OPS_ROW_CHAIN_H
#define LNT_OPS_ROW_CHAIN_H

#include "program/program.h"

typedef enum {
    LNT_ROW_ACTIVATION, /* number[0] act(x) + number[1] */
    LNT_ROW_ADD,        /* x + y */
    LNT_ROW_MUL,        /* x y */
    LNT_ROW_GLU,        /* act(x) y */
    LNT_ROW_LERP,       /* x + (y - x) z_i, `count` of them side by side */
    LNT_ROW_CLAMP,      /* x within number[0] .. number[1] */
    LNT_ROW_CAP,        /* x + log(1 - number[0] y^2) */
    LNT_ROW_DECAY,      /* -exp(y) softplus(x + z); number[0] < 0: number[0] sigmoid(exp(y) (x + z)) */
    LNT_ROW_DOT,        /* sum of x y over a head: one result a head */
    LNT_ROW_RMS,        /* x / sqrt(mean x^2 + number[0]) over a head, times number[1] + y, times act(z) */
    LNT_ROW_L2,         /* x / sqrt(sum x^2 + number[0]) over a head */
    LNT_ROW_SUM,        /* x / (sum x + number[0]) over a head */
    LNT_ROW_LAYER,      /* (x - mean) / sqrt(variance + number[0]) y + z over a head */
    LNT_ROW_BEFORE,     /* the state, a row; x becomes it */
    LNT_ROW_CONV,       /* act(sum of four taps times the state's three rows and x, plus a bias if there is one); those move up */
    LNT_ROW_UNTIED,     /* number[0] S^T x, S [heads, head, head] the state behind the untied rule's step (operators.md#untied): q k v a b gk */
    LNT_ROW_TIED,       /* the same of the delta rule with a gate for each row (operators.md#delta): q k v gk beta */
    LNT_ROW_DECAYED,    /* number[0] S^T x, S [heads, count, head] behind a step with a decay a head: q k v g, q and k the same for all heads */
} lnt_row_kind;

/* Which elements of an operand belong to a column. */
typedef enum {
    LNT_ROW_EACH,   /* its own */
    LNT_ROW_HEAD,   /* one for all columns of its head */
    LNT_ROW_SHARED, /* the head's columns have their own, the same ones in every head */
    LNT_ROW_TAPS,   /* `count` neighbours */
} lnt_row_spread;

enum { LNT_ROW_OPERANDS = 8, LNT_ROW_PARAM = 64, LNT_ROW_STATE = 96, LNT_ROW_NONE = -1 };

typedef struct {
    int from; /* input i; LNT_ROW_PARAM + i: parameter i; LNT_ROW_STATE + i: row i of the state; LNT_ROW_NONE: absent */
    lnt_row_spread spread;
    int64_t first; /* column it begins at */
} lnt_row_operand;

typedef struct lnt_row_step {
    lnt_row_kind kind;
    int act, count; /* lnt_act; results side by side, or taps */
    float number[2];
    int64_t cols, head; /* columns of x; of a head of them */
    int operands;
    lnt_row_operand operand[LNT_ROW_OPERANDS];
} lnt_row_step;

/* A function of input 0's columns whose operands are all inputs, in their order. */
static inline void lnt_row_inputs(const lnt_node *n, lnt_row_kind kind, lnt_row_step *s)
{
    s->kind = kind;
    s->cols = lnt_cols(n->program, n->in[0]), s->head = s->cols / lnt_heads(n->program, n->in[0]);
    s->operands = n->n_in;
    for (int i = 0; i < n->n_in && i < LNT_ROW_OPERANDS; i++) s->operand[i].from = i;
}

/* Whether n goes with the nodes before it; and all of them. */
bool lnt_row_chain_follows(const lnt_node *const *group, int count, const lnt_node *n);
linnet_status lnt_row_chain_run(const lnt_call *calls, int count);
/* Calls of a group one after the other, pairs as pairs. */
linnet_status lnt_row_chain_apart(const lnt_call *calls, int count);

/* The same of a chain with a rule, which reads the results of f's maps: these its blocks make themselves. False: nothing was put. */
struct lnt_few_rows;
bool lnt_row_chain_with_maps(const lnt_call *calls, int count, const struct lnt_few_rows *f);

/* The hooks of an operator that says nothing else of its company. */
#define LNT_ROW_CHAIN(hook) .row = (hook), .follows = lnt_row_chain_follows, .run_group = lnt_row_chain_run

#endif

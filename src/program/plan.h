/* Running a program: weights, states, and plans.
 *
 * A plan fixes what is wanted of a program (which outputs, gradients or not, which policy, how many rows at most), schedules its nodes, and places
 * every value, gradient and saved residual in one block of device memory so that values whose lifetimes do not meet share bytes. Running a plan
 * allocates nothing.
 *
 *   training schedule:  forward of every needed node, then backward in reverse; with `recompute`, the values inside a block (a layer) are dropped
 * after the forward pass and computed again just before the block's backward pass. */
#ifndef LNT_PROGRAM_PLAN_H
#define LNT_PROGRAM_PLAN_H

#include "program/program.h"

/* ---- weights ---- */

typedef struct lnt_weights {
    lnt_ctx *c;
    const lnt_program *program;
    lnt_dtype dtype;   /* of the working copy of product parameters: LINNET_F32 or LINNET_BF16 */
    int64_t elements;
    float *master;     /* device, [elements] */
    void *work;        /* device, [elements] of dtype; the master itself under float32 */
    float *grad;       /* device, [elements], NULL without gradients */
} lnt_weights;

linnet_status lnt_weights_create(lnt_ctx *c, const lnt_program *p, lnt_dtype dtype, lnt_weights **out);
void lnt_weights_destroy(lnt_weights *w);
/* Draw every parameter from its own stream (its name), so that one parameter's values depend on the seed and its name alone. */
linnet_status lnt_weights_init(lnt_weights *w, uint64_t seed);
linnet_status lnt_weights_need_grad(lnt_weights *w); /* allocate and zero the gradients, once */
void lnt_weights_zero_grad(lnt_weights *w);
linnet_status lnt_weights_refresh(lnt_weights *w);   /* working copy from the master */

/* ---- states ---- */

/* What generation carries from token to token, for n_seq sequences: every node's state, contiguous over sequences, and positions. */
typedef struct lnt_state {
    lnt_ctx *c;
    int64_t n_seq, capacity;
    size_t bytes;
    char *data;          /* device */
    int64_t *offset;     /* host, [nodes]: of the node's array, -1: none */
    int64_t *stride;     /* host, [nodes]: bytes a sequence */
    int64_t *position;   /* host, [n_seq]: tokens seen */
    int64_t *position_device; /* device, [n_seq]: the same when a run begins */
} lnt_state;

/* Zero states for n_seq sequences; growing states (key-value caches) get room for `capacity` tokens. */
linnet_status lnt_state_create(lnt_ctx *c, const lnt_program *p, lnt_dtype dtype, int64_t n_seq, int64_t capacity, lnt_state **out);
void lnt_state_destroy(lnt_state *s);
void lnt_state_reset(lnt_state *s);
size_t lnt_state_bytes(const lnt_program *p, lnt_dtype dtype, int64_t capacity); /* of one sequence */

/* ---- plans ---- */

typedef struct {
    int64_t tokens, n_seq;   /* most rows of a run, and its usual number of sequences (a run with its own cu may have more) */
    lnt_dtype dtype;
    bool training;           /* gradients of every parameter */
    bool recompute;
    bool has_state;
    int64_t state_capacity;
    int n_outputs;
    lnt_buf outputs[4];      /* kept until the next run */
} lnt_plan_options;

typedef struct {
    int64_t tokens, n_seq;
    const int64_t *cu;       /* host, [n_seq+1]; NULL: n_seq equal sequences */
    int n_inputs;
    struct {
        lnt_buf buf;
        const int32_t *host; /* [tokens] */
    } inputs[4];
    double loss_scale;
    lnt_state *state;        /* advanced by the run; NULL: every sequence starts from zero */
} lnt_batch;

typedef struct lnt_plan lnt_plan;

linnet_status lnt_plan_create(lnt_ctx *c, const lnt_program *p, const lnt_plan_options *o, lnt_plan **out);
void lnt_plan_destroy(lnt_plan *plan);
/* Gradients are added to w->grad. */
linnet_status lnt_plan_run(lnt_plan *plan, lnt_weights *w, const lnt_batch *b);
/* An output of the last run; device memory, valid until the next run. */
lnt_tensor lnt_plan_output(const lnt_plan *plan, lnt_buf b);
size_t lnt_plan_bytes(const lnt_plan *plan);          /* activations, gradients, residuals and workspace */
double lnt_plan_flops(const lnt_plan *plan);          /* useful FLOPs of the last run's shape, recomputation not counted */

/* Seconds by operator type since the last reset; off until the first call to lnt_plan_profile_reset. */
void lnt_plan_profile_reset(lnt_plan *plan);
char *lnt_plan_profile(const lnt_plan *plan);         /* a table, lnt_free */

#endif

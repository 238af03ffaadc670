/* Running a program: weights, states, and plans.
 *
 * A plan fixes what is wanted of a program (which outputs, gradients or not, which policy, how many rows at most), schedules its nodes, and places
 * every value, gradient and saved residual in one block of device memory so that values whose lifetimes do not meet share bytes. Running a plan
 * allocates nothing.
 *
 *   training schedule:  forward of every needed node, then backward in reverse; with `recompute`, values inside a block (a layer) are dropped
 * after the forward pass and computed again just before the block's backward pass: all of them, or only the cheap ones.
 *
 * Neighbouring nodes whose operators know each other (lnt_pair) run in one call, forward and backward; a value between them that nobody else reads
 * may then not exist at all. In training on a GPU maps of one input do so, too (lnt_op.continues), with their results side by side. Programs,
 * parameters and results are the same.
 *
 * What is made of parameters alone (filters of long convolutions) is made once, by the first run without gradients after the weights changed, and
 * stays in the plan.
 *
 * On a GPU, a run of the same shape as one before (same tokens, sequences of equal length, weights, state, scale of the loss) is recorded once and
 * replayed from then on: the same kernels with the same arguments, hence the same bits. */
#ifndef LNT_PROGRAM_PLAN_H
#define LNT_PROGRAM_PLAN_H

#include "device/device.h"
#include "program/program.h"

/* ---- weights ---- */

typedef struct lnt_weights {
    lnt_ctx *c;
    const lnt_program *program;
    lnt_dtype dtype;     /* of the working copy of product parameters: LINNET_F32 or LINNET_BF16 */
    int64_t elements;    /* of all parameters */
    int64_t masters;     /* those that have a float32 master: all, or only what is read as float32 */
    int64_t work_begin;  /* the first that has a working copy */
    float *master;       /* device, [masters] */
    void *work;          /* device, [elements - work_begin] of dtype, [masters - work_begin] beside int8; under float32 that part of the master */
    int8_t *small;       /* [elements - masters] where those are int8, and what they are multiplied by, row by row; NULL: they are not */
    float *scale;
    float *grad;         /* device, [elements], NULL without gradients */
    /* No gradient yet: those of what is read as float32 are zero, those of what products alone read are anything. The next run with gradients
     * stores each of these where the first comes, and adds the others. */
    bool grad_empty;
    const struct lnt_weights *of; /* whose master and work these are; NULL: its own */
    uint64_t version;    /* another number after every change of values, and in every structure */
} lnt_weights;

/* kept: LINNET_F32, or what products alone read is kept without a master: LINNET_BF16 under that dtype, LINNET_I8 on a CPU, for models that are not
 * trained. */
linnet_status lnt_weights_create(lnt_ctx *c, const lnt_program *p, lnt_dtype dtype, lnt_dtype kept, lnt_weights **out);
void lnt_weights_destroy(lnt_weights *w);
/* Those of `w`, which outlive them, for another context of the same device and a program with the same parameters: to be read. */
linnet_status lnt_weights_share(lnt_ctx *c, const lnt_program *p, const lnt_weights *w, lnt_weights **out);
/* Draw every parameter from its own stream (its name), so that one parameter's values depend on the seed and its name alone. */
linnet_status lnt_weights_init(lnt_weights *w, uint64_t seed);
linnet_status lnt_weights_need_grad(lnt_weights *w); /* allocate and zero the gradients, once */
void lnt_weights_zero_grad(lnt_weights *w);          /* and grad_empty */
lnt_param_view lnt_weights_view(const lnt_weights *w, const lnt_param *q);
/* Who writes values past lnt_weights_put says so: plans keep what is made of parameters alone. */
void lnt_weights_changed(lnt_weights *w);
/* Elements first .. first+n of a parameter, host to device: master and working copy, rounded to what is kept; whole rows where that is int8. */
linnet_status lnt_weights_put(lnt_weights *w, const lnt_param *q, int64_t first, const float *values, int64_t n);
/* The same way back. */
linnet_status lnt_weights_take(const lnt_weights *w, const lnt_param *q, int64_t first, float *values, int64_t n);
linnet_status lnt_weights_get(const lnt_weights *w, float *values); /* all [elements], device to host */

/* ---- states ---- */

/* What generation carries from token to token, for n_seq sequences, each in a slot: every node's state, contiguous over slots, and positions. */
typedef struct lnt_state {
    lnt_ctx *c;
    const lnt_program *program;
    lnt_dtype dtype;
    int64_t n_seq, capacity;
    size_t bytes;
    char *data;          /* device */
    int64_t *offset;     /* host, [nodes]: of the node's array, -1: none */
    int64_t *stride;     /* host, [nodes]: bytes a sequence */
    int64_t *position;   /* host, [n_seq]: tokens seen */
    int64_t *position_device; /* device, [n_seq]: the same when a run begins that has a node which reads it */
    struct lnt_state *staging; /* where a run has slots that do not lie side by side; NULL: there was none yet */
} lnt_state;

/* Zero states for n_seq sequences; growing states (key-value caches) get room for `capacity` tokens. */
linnet_status lnt_state_create(lnt_ctx *c, const lnt_program *p, lnt_dtype dtype, int64_t n_seq, int64_t capacity, lnt_state **out);
void lnt_state_destroy(lnt_state *s);
void lnt_state_reset(lnt_state *s);
void lnt_state_reset_slot(lnt_state *s, int64_t slot);
/* What slot `from` holds into slot `to` of the same state, or of another of the same program, dtype and capacity. */
void lnt_state_copy_slot(const lnt_state *a, int64_t from, lnt_state *b, int64_t to);
/* Whether the capacity is the end: no run may take a sequence past it. */
bool lnt_state_limited(const lnt_state *s);
/* A slot as it stands, in device memory of lnt_state_snapshot_bytes, but for what is only appended to (going back there needs no more than the
 * position); and back. */
size_t lnt_state_snapshot_bytes(const lnt_state *s);
void lnt_state_snapshot(const lnt_state *s, int64_t slot, void *to);
void lnt_state_restore(lnt_state *s, int64_t slot, const void *from, int64_t position);
/* The tensors of node i's state after `tokens` tokens; their number. Name of one, unique in the program: "model.layers.0.attn.q_conv1d.inputs". */
int lnt_state_tensors(const lnt_state *s, int node, int64_t tokens, lnt_state_tensor *tensors);
void lnt_state_name(const lnt_program *p, int node, const lnt_state_tensor *t, char *text, size_t size);
static inline char *lnt_state_at(const lnt_state *s, int node, int64_t slot) { return s->data + s->offset[node] + slot * s->stride[node]; }
size_t lnt_state_bytes(const lnt_program *p, lnt_dtype dtype, int64_t capacity); /* of one sequence */

/* ---- plans ---- */

/* So many tokens of a sequence at once have the bits of one by one under rows_alone: recurrences take them token by token. On a GPU other kernels
 * do what is around those. */
enum { LNT_ALONE_TOKENS = 8 };
static inline int lnt_alone_tokens(const lnt_ctx *c) { return lnt_on_cuda(c) ? 1 : LNT_ALONE_TOKENS; }

typedef enum {
    LNT_RECOMPUTE_NONE,
    LNT_RECOMPUTE_BLOCKS, /* every value inside a block: only what crosses blocks is kept */
    LNT_RECOMPUTE_CHEAP,  /* results of operators without flops() (norms, convolutions, activations); those of products and recurrences are kept */
} lnt_recompute;

typedef struct {
    int64_t tokens, n_seq;   /* most rows of a run, and its usual number of sequences (a run with its own cu may have more) */
    lnt_dtype dtype;
    bool training;           /* gradients of every parameter */
    lnt_recompute recompute;
    bool has_state;
    int64_t state_capacity;
    bool alone;              /* every node by itself: no pairs, no groups */
    bool rows_alone;         /* a run has the bits of its tokens one by one (core/threads.h): up to lnt_alone_tokens of a sequence */
    bool finite;             /* every call's results are looked at: a run ends with an error at the first that is not finite; slow */
    int n_outputs;
    lnt_buf outputs[4];      /* kept until the next run */
    int n_kept;              /* values from the middle, kept too: what an analysis looks at; read while the plan is made alone */
    const lnt_buf *kept;
    int n_given;             /* values that the caller puts where lnt_plan_output has them before a run: what makes them does not run */
    const lnt_buf *given;    /* read while the plan is made alone */
} lnt_plan_options;

/* Work that is put behind a run on a GPU, and recorded with it: a run with these two pointers and as many tokens repeats what the first one put. */
typedef struct {
    void (*put)(void *of); /* NULL: none */
    void *of;
} lnt_after;

typedef struct lnt_batch {
    int64_t tokens, n_seq;
    const int64_t *cu;       /* host, [n_seq+1]; NULL: n_seq equal sequences */
    int n_inputs;
    struct {
        lnt_buf buf;
        const int32_t *host; /* [tokens] */
    } inputs[4];
    double loss_scale;
    double draw;             /* lnt_call.draw; a recorded run reads it on the device */
    lnt_state *state;        /* advanced by the run; NULL: every sequence starts from zero */
    int64_t first;           /* the slot of sequence 0, that of sequence n being first + n; */
    const int64_t *slots;    /* or the slots of all, in any order, none twice: host, [n_seq]. What does not lie side by side is copied, and back */
    lnt_after after;
} lnt_batch;

typedef struct lnt_plan lnt_plan;

linnet_status lnt_plan_create(lnt_ctx *c, const lnt_program *p, const lnt_plan_options *o, lnt_plan **out);
void lnt_plan_destroy(lnt_plan *plan);
/* lnt_plan_bytes of the plan that lnt_plan_create would make. */
linnet_status lnt_plan_measure(lnt_ctx *c, const lnt_program *p, const lnt_plan_options *o, size_t *bytes);
/* Gradients are added to w->grad, if that is not empty. */
linnet_status lnt_plan_run(lnt_plan *plan, lnt_weights *w, const lnt_batch *b);
/* An output of the last run; device memory, valid until the next run. Of a given value: where it is read. */
lnt_tensor lnt_plan_output(const lnt_plan *plan, lnt_buf b);
/* Where a run reads its input b, int32 [tokens] on the device: a run whose batch does not name b takes what is there. NULL: no node reads it. */
int32_t *lnt_plan_input(const lnt_plan *plan, lnt_buf b);
size_t lnt_plan_bytes(const lnt_plan *plan);          /* activations, gradients, residuals and workspace */
bool lnt_plan_recorded(const lnt_plan *plan);         /* runs like the last one are replayed */
double lnt_plan_flops(const lnt_plan *plan);          /* useful FLOPs of the last run's shape, recomputation not counted */

/* Seconds by operator type since the last reset (a pair's are its second's, a group's its head's); off until the first call to
 * lnt_plan_profile_reset. On a GPU runs then go step by step, with a wait behind each. */
void lnt_plan_profile_reset(lnt_plan *plan);
char *lnt_plan_profile(const lnt_plan *plan);         /* a table, lnt_free */

#endif

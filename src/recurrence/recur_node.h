/* The operators of the recurrences as nodes of a program, by their descriptions. */
#ifndef LNT_RECUR_NODE_H
#define LNT_RECUR_NODE_H

#include "program/program.h"
#include "recurrence/recurrence.h"

/* What a node is built from. Sizes come from the buffers; options that are not named have their standard. */
typedef struct {
    struct {
        const char *name;
        lnt_buf value;
    } tensor[12];
    struct {
        const char *key;
        double value;
    } option[8];
    struct {
        const char *name;
        const double *value; /* copied; as many as its shape says, rounded to float32 */
    } constant;              /* an input that is the same for every token and is no parameter */
} lnt_recur_in;

/* E.g. lnt_recur(p, "simple_gla", (lnt_recur_in){ .tensor = { { "q", q }, { "k", k }, { "v", v }, { "g", g } } }). */
lnt_buf lnt_recur(lnt_program *p, const char *op, lnt_recur_in in);

/* ---- for cores whose node does more (then lnt_recur_op.node is theirs) -------------------------------------------------------------------- */

/* The attributes of a node; a core's own structure begins with them. */
typedef struct {
    const lnt_recur_op *op;
    lnt_recur_call call;       /* sizes and options; tokens, tensors and workspace are a run's */
    int8_t input[LNT_MAX_IN];  /* rows of the description */
    int8_t output, constant;   /* the latter -1: none */
    const float *constant_value;
} lnt_recur_attr;

/* Its sizes and options, as the core's arguments. */
static inline const void *lnt_recur_args_of(const lnt_node *n) { return &((const lnt_recur_attr *)n->attr)->call; }

/* Add the node; `x` (zeroed, of the program's memory) receives the attributes. NULL after a mistake. */
lnt_node *lnt_recur_add(lnt_program *p, const lnt_recur_op *op, const lnt_op *type, const lnt_recur_in *in, lnt_recur_attr *x, int n_param,
                        const int *param);

/* The call of node n in shape s, without tensors. `cu` is s->cu, or made equal. */
void lnt_recur_shape(const lnt_node *n, const lnt_shape *s, const int64_t *cu, lnt_recur_call *a);
/* Run f with the offsets of s: s->cu, or those of equal sequences; 0 when there is no memory for them (the run refuses with what it needs). */
size_t lnt_recur_with_offsets(const lnt_node *n, const lnt_shape *s, bool backward,
                              size_t (*f)(const lnt_node *n, const lnt_shape *s, const int64_t *cu, bool backward));
/* The call on k's tensors, saved ones among them. */
void lnt_recur_bind(const lnt_call *k, lnt_recur_call *a);
/* Run it from k's states, or none; and backward, gradients added where they have to be. */
linnet_status lnt_recur_forward(const lnt_call *k, const lnt_recur_call *a);
linnet_status lnt_recur_backward(const lnt_call *k, lnt_recur_call *a);
/* A ring of R rows, token p in row p mod R: put `count` rows in, the first of token `position`; get the `count` rows before token `position`, in
 * order. */
void lnt_ring_put(lnt_ctx *c, char *ring, int64_t R, int64_t position, const char *rows, int64_t count, size_t row_bytes);
void lnt_ring_get(lnt_ctx *c, char *dst, const char *ring, int64_t R, int64_t position, int64_t count, size_t row_bytes);
/* Rows [first, first + length) of a: its tensors along the token axis moved there. `cu` [2] is the caller's. */
void lnt_recur_slice(lnt_recur_call *a, int64_t first, int64_t length, int64_t *cu);
/* The first bytes of the workspace, for something else than the kernel's scratch. */
void *lnt_recur_take(lnt_recur_call *a, size_t bytes);
static inline size_t lnt_recur_padded(size_t bytes) { return (bytes + LNT_ALIGN - 1) / LNT_ALIGN * LNT_ALIGN; }

int64_t lnt_recur_save_size(const lnt_node *n, const lnt_shape *s);
int64_t lnt_recur_state_size(const lnt_node *n, int64_t capacity, lnt_dtype dtype);
int lnt_recur_state_tensors(const lnt_node *n, int64_t capacity, lnt_dtype dtype, int64_t tokens, lnt_state_tensor *out);
size_t lnt_recur_node_workspace(const lnt_node *n, const lnt_shape *s, bool backward);
/* Of a call with these offsets. */
size_t lnt_recur_workspace_for(const lnt_node *n, const lnt_shape *s, const int64_t *cu, bool backward);
double lnt_recur_node_flops(const lnt_node *n, const lnt_shape *s, bool backward);
void lnt_recur_describe(const lnt_node *n, char *text, size_t size);
linnet_status lnt_recur_node_forward(const lnt_call *k);
linnet_status lnt_recur_node_backward(const lnt_call *k);

/* A decoding step: every sequence has one token. */
static inline bool lnt_one_token_each(const lnt_call *k)
{
    for (int64_t n = 0; n < k->n_seq; n++)
        if (k->cu[n + 1] - k->cu[n] != 1) return false;
    return true;
}

/* The fields of an lnt_op that is just its description; and of one whose backward pass reads these values: inputs in the description's order, and the
 * output. */
#define LNT_RECUR_NODE(NAME) LNT_RECUR_NODE_READING(NAME, LNT_NEEDS_ALL_IN)
#define LNT_RECUR_NODE_READING(NAME, NEEDS)                                                                                        \
    .name = NAME, .backward_needs = NEEDS, .save_size = lnt_recur_save_size, .state_size = lnt_recur_state_size,                   \
    .state_tensors = lnt_recur_state_tensors, .workspace = lnt_recur_node_workspace, .flops = lnt_recur_node_flops,                \
    .forward = lnt_recur_node_forward, .backward = lnt_recur_node_backward, .describe = lnt_recur_describe

/* sum[i] += part[i], on a GPU. */
void lnt_gradient_add_cuda(lnt_ctx *c, void *sum, const void *part, lnt_dtype type, int64_t n);

#endif

/* Programs: a static list of typed operators over named buffers. From one description come the parameter table, training forward and backward,
 * prefill, the one-token step, the memory plan, the profile and the picture.
 *
 * Building never fails in the middle: the first mistake is remembered, later calls return the null buffer, and lnt_program_finish reports it. So a
 * mixer is straight-line code.
 *
 * Activations are [tokens, cols], row major, tokens = all rows of all sequences of the batch (sequence n is rows cu[n] .. cu[n+1]-1). A buffer's
 * `heads` says how its columns split ([tokens, heads, cols/heads]); an operator that works per head reads it. Others have `each` rows a token
 * (token t has rows t*each .. t*each + each - 1), or a fixed number of rows whatever the tokens are: parameters that an operator reads as an input,
 * and what is made of them. A view (other heads, rows for columns, a slice of the columns) shares the memory of what it is a view of. */
#ifndef LNT_PROGRAM_H
#define LNT_PROGRAM_H

#include "core/dtype.h"
#include "core/memory.h"
#include "core/rng.h"

typedef struct lnt_program lnt_program;
typedef struct lnt_node lnt_node;
typedef struct lnt_op lnt_op;
struct lnt_row_step;

/* A handle; id 0 is the null buffer. */
typedef struct {
    int32_t id;
} lnt_buf;
#define LNT_NO_BUF ((lnt_buf){0})

enum { LNT_MAX_IN = 12, LNT_MAX_OUT = 4, LNT_MAX_PARAM = 8, LNT_MADE_MOST = 3 };

/* ---- parameters ------------------------------------------------------------------------------------------------------------- */

typedef enum {
    LNT_INIT_CONST,   /* a */
    LNT_INIT_NORMAL,  /* mean 0, standard deviation a */
    LNT_INIT_UNIFORM, /* [a, b) */
    LNT_INIT_IDENTITY,/* [n,n] identity, repeated over leading dimensions */
    LNT_INIT_A_LOG,   /* log of U(a, b): A_log of Mamba-2 and Gated DeltaNet */
    LNT_INIT_SPREAD,  /* from a to b along the last dimension, both among them */
    LNT_INIT_LOG_PLACE, /* log of 1, 2, 3 .. along the last dimension: A_log of Mamba */
    LNT_INIT_DT_BIAS, /* inverse softplus of a log-uniform step in [a, b], at least 1e-4 */
    LNT_INIT_PLACE,   /* a times 0, 1, 2 .. along the last dimension: frequencies of S4D */
    /* of a decay whose square is uniform in [a^2, b^2]: */
    LNT_INIT_DECAY_SOFTPLUS, /* softplus^-1 of -log: RG-LRU */
    LNT_INIT_DECAY_LOG,      /* log of -log: LRU */
} lnt_init_kind;

typedef struct {
    lnt_init_kind kind;
    double a, b;
} lnt_init;

typedef struct lnt_param {
    const char *name; /* full, for example "model.layers.3.attn.q_proj.weight" */
    int ndim;
    int64_t dim[4];
    int64_t count;
    lnt_init init;
    bool decay;        /* weight decay applies */
    bool product;      /* an operand of matrix products: has a working copy in the policy's dtype */
    bool plain;        /* read as float32; a tied embedding is both */
    int64_t offset;    /* first element in the arenas (multiples of 64): what products do not read first, what they alone read last */
    int64_t row;       /* of what products alone read: rows of those before it */
} lnt_param;

/* ---- operators -------------------------------------------------------------------------------------------------------------- */

/* A tensor as a kernel sees it. data == NULL: absent (an input gradient nobody wants). */
typedef struct {
    void *data;
    lnt_dtype dtype;
    int64_t rows, cols;
    int32_t heads;
    int64_t ld; /* elements from a row to the next: cols, or more of a slice */
} lnt_tensor;

typedef struct {
    const float *master; /* float32; NULL for what products alone read, when that is kept without a master */
    const void *work;    /* working copy of dtype work_dtype; the master itself under float32 and for what products do not read */
    lnt_dtype work_dtype;
    const float *scale;  /* of work's rows, where that is int8; NULL: it is not */
    float *grad;         /* float32, kernels ADD to it, but for `set`; NULL: not wanted */
    bool set;            /* store the gradient: what is there means nothing. Only of parameters of `stores_first` operators */
    int64_t count;
} lnt_param_view;

/* Everything a kernel needs for one call. */
typedef struct lnt_call {
    lnt_ctx *c;
    const lnt_node *node;
    const void *attr;            /* the operator's own structure */
    int64_t tokens;
    int64_t n_seq;
    const int64_t *cu;           /* host, [n_seq+1] */
    const int64_t *cu_device;    /* the same on the device */
    bool training;               /* a backward pass will follow */
    double loss_scale;           /* a loss node: factor on the gradient of the sum of its output */
    double draw;                 /* training: this step's number, uniform in (0,1], for nodes that draw one; 0: nothing is drawn */
    const double *draw_device;   /* the same on the device: a recorded call reads it there */
    lnt_tensor in[LNT_MAX_IN], out[LNT_MAX_OUT];
    lnt_tensor d_in[LNT_MAX_IN]; /* backward: write here (accumulate[i]: add), skip when data == NULL */
    lnt_tensor d_out[LNT_MAX_OUT]; /* backward: gradient that came in; data == NULL: zero */
    bool accumulate[LNT_MAX_IN];
    lnt_param_view param[LNT_MAX_PARAM];
    void *save;                  /* what forward left for backward, save_size bytes; NULL outside training */
    /* generation: the node's state, sequence n at state + n*state_stride, and how many tokens each sequence has seen; NULL in training
     * (fresh zero state for every sequence) */
    void *state;
    int64_t state_stride;
    const int64_t *position;     /* host, [n_seq] */
    const int64_t *position_device; /* the same on the device */
    int64_t state_capacity;      /* longest sequence a growing state (key-value cache) was made for */
    void *work;
    size_t work_size;
    bool inner;                  /* one of a group: out[0] is read inside the group alone, and need not be written */
} lnt_call;

typedef struct {
    int64_t tokens, n_seq;
    const int64_t *cu;           /* NULL: n_seq equal sequences */
    bool training;
    bool has_state;
    int64_t state_capacity;
    lnt_dtype dtype;             /* the policy */
    int threads;
    struct lnt_device *device;
} lnt_shape;

/* A tensor of a node's state, of one sequence. */
enum { LNT_STATE_TENSORS = 16, LNT_STATE_DIMS = 4 };
typedef struct {
    const char *name;
    lnt_dtype dtype;
    int ndim;
    int64_t dim[LNT_STATE_DIMS];
    int64_t offset;    /* bytes, in the sequence's state */
    bool appended;     /* a row (of the first dimension) a token, written once: such a state has room for its capacity of tokens and no more */
} lnt_state_tensor;

enum { LNT_NEEDS_IN0 = 1 << 0, LNT_NEEDS_IN1 = 1 << 1, LNT_NEEDS_IN2 = 1 << 2, LNT_NEEDS_IN3 = 1 << 3, LNT_NEEDS_IN4 = 1 << 4,
       LNT_NEEDS_ALL_IN = (1 << LNT_MAX_IN) - 1, LNT_NEEDS_OUT0 = 1 << LNT_MAX_IN, LNT_NEEDS_OUT1 = 2 << LNT_MAX_IN };

/* How a node runs in one call with the node just before it, whose output 0 is one of its inputs. Both calls are as if they came one after the other.
 * A plan decides which pairs it runs so; the program knows nothing of it. */
typedef struct lnt_pair {
    const lnt_op *first;
    int input;                   /* which, usually 0 */
    const struct lnt_pair *next; /* the second's pair with another first; NULL: no more */
    /* The value between the two is not stored, nor its gradient (their tensors are absent), and backward of the second does not read it: such a pair
     * needs that nobody else wants it. Otherwise both are written as by the two nodes. */
    bool inner;
    bool (*fits)(const lnt_node *first, const lnt_node *second, const lnt_shape *s); /* NULL: always */
    linnet_status (*forward)(const lnt_call *first, const lnt_call *second);
    linnet_status (*backward)(const lnt_call *first, const lnt_call *second);
} lnt_pair;

/* An operator type: one static structure, one file in ops/ or recurrence/. */
struct lnt_op {
    const char *name;
    unsigned backward_needs;     /* which forward values backward reads (LNT_NEEDS_*) */
    unsigned strided;            /* inputs (LNT_NEEDS_IN*) that may be slices: it reads them, and writes their gradients, by lnt_tensor.ld */
    /* the gradient of every input is that of output 0: one input may take over its memory (and is absent for the call) */
    bool passes_gradient;
    bool stores_first;           /* backward can store a parameter's gradient (lnt_param_view.set) */
    bool backward_is_forward;    /* the node (a loss) computes value and gradients in its backward call; forward is skipped in training */
    int64_t (*save_size)(const lnt_node *n, const lnt_shape *s);              /* bytes, NULL: 0 */
    int64_t (*state_size)(const lnt_node *n, int64_t capacity, lnt_dtype dtype); /* bytes a sequence under a policy, NULL: 0 */
    /* What the state holds after `tokens` tokens, at most LNT_STATE_TENSORS; all else in it is never read. Its bytes may come from a file: nothing in
     * it may lead outside of it. NULL: one tensor of all of it. */
    int (*state_tensors)(const lnt_node *n, int64_t capacity, lnt_dtype dtype, int64_t tokens, lnt_state_tensor *tensors);
    size_t (*workspace)(const lnt_node *n, const lnt_shape *s, bool backward); /* NULL: 0 */
    double (*flops)(const lnt_node *n, const lnt_shape *s, bool backward);    /* useful ones, NULL: 0 (bandwidth-bound) */
    double (*most_flops)(const lnt_node *n, const lnt_shape *s); /* forward: beside flops, what depends on values takes at most; NULL: nothing does */
    bool (*draws)(const lnt_node *n); /* whether a training step draws a number for the node; NULL: no */
    bool position;               /* a call reads lnt_call.position_device */
    bool host_position;          /* what a call does to a state depends on lnt_call.position, so that it cannot be recorded and replayed */
    linnet_status (*forward)(const lnt_call *k);
    linnet_status (*backward)(const lnt_call *k);
    /* Training on a GPU: whether b, a map of a's input, is one with a: its parameter lies right behind a's, and a call whose result has b's columns
     * behind a's does both. NULL: never. */
    bool (*continues)(const lnt_node *a, const lnt_node *b);
    const lnt_pair *pair;        /* with the node before, or the first of several; NULL: none */
    /* Decoding on a GPU: nodes done in one call of one of them, the group's head. makes_input: whether n, as a head, does the node that makes its
     * input i, with the other of its pair; nobody else reads that result. At most LNT_MADE_MOST inputs; their nodes stand ahead of the head. follows:
     * whether n, whose inputs are there or are results of the group (`count` nodes), goes with them, behind the head. run_group: all. NULL: none. */
    bool (*makes_input)(const lnt_node *n, int i, const lnt_shape *s);
    bool (*follows)(const lnt_node *const *group, int count, const lnt_node *n);
    linnet_status (*run_group)(const lnt_call *calls, int count);
    /* Training on a GPU: up to `beside` nodes one behind the other, each with the other of its pair, which do not read each other and whose first
     * inputs are not the same value, are a group for run_group; back_group: their backward passes, in the order of those. */
    linnet_status (*back_group)(const lnt_call *calls, int count);
    int beside;
    bool (*row)(const lnt_node *n, struct lnt_row_step *s); /* how a row of the result is made (ops/row_chain.h); false, NULL: not said */
    void (*describe)(const lnt_node *n, char *text, size_t size);             /* attributes, for the printed program; NULL: nothing */
};

struct lnt_node {
    const lnt_op *op;
    const void *attr;
    int n_in, n_out, n_param;
    lnt_buf in[LNT_MAX_IN], out[LNT_MAX_OUT];
    int param[LNT_MAX_PARAM]; /* index into the parameter table */
    int block;                /* the recompute group (a layer), -1: none */
    const char *scope;        /* of a node with a state: the names it was made under */
    lnt_program *program;
};

/* A value of the program. */
typedef struct lnt_value {
    const char *name;
    int64_t cols;
    int32_t heads;
    int32_t each;    /* rows a token */
    int64_t rows;    /* a fixed number of rows; 0: tokens * each */
    int64_t first;   /* a slice: its first column in what it is a view of */
    int64_t ld;
    bool f32;        /* float32 under every policy (gates, write strengths, losses) */
    bool external;   /* filled by the caller (token ids, targets), int32 */
    int producer;    /* node index, -1: external or a parameter */
    int param;       /* the parameter it is, -1: none */
} lnt_value;

/* ---- building (used by ops/, recurrence/ and model/) -------------------------------------------------------------------------- */

linnet_status lnt_program_create(lnt_ctx *c, lnt_program **out);
void lnt_program_destroy(lnt_program *p);
/* The first mistake made while building, as an error; LINNET_OK when there was none. */
linnet_status lnt_program_finish(lnt_program *p);
/* Remember a mistake (only the first counts); returns the null buffer. */
lnt_buf lnt_program_fail(lnt_program *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool lnt_program_failed(const lnt_program *p);

/* Names: parameters made between push and pop are prefixed "a.b.". */
void lnt_push_scope(lnt_program *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void lnt_pop_scope(lnt_program *p);
/* Names from now on are under the first `count` of the scopes pushed (all, when that is more); returns the count before. For what layers share. */
int lnt_set_scopes(lnt_program *p, int count);
enum { LNT_ALL_SCOPES = INT32_MAX };
/* Nodes added from now on belong to recompute group `block` (-1: none). */
void lnt_set_block(lnt_program *p, int block);
int lnt_current_block(const lnt_program *p);
/* Standard deviation for products made from now on; LNT_INIT_NORMAL of every lnt_linear that names no other. <= 0: fan-in^-1/2. */
double lnt_set_init_std(lnt_program *p, double std); /* returns the one before */
double lnt_init_std(const lnt_program *p, int64_t fan_in);

/* Values that one layer makes and others read: `value` is kept under a name, and found under it; the null buffer where there is none yet. */
void lnt_keep(lnt_program *p, const char *name, lnt_buf value);
lnt_buf lnt_kept(const lnt_program *p, const char *name);

lnt_buf lnt_external(lnt_program *p, const char *name); /* int32 [tokens] */
/* Add a parameter under the current scope (or find the one of that name made before: tied weights; shapes must agree). product: the caller reads the
 * working copy, otherwise float32. -1 after a mistake. */
int lnt_add_param(lnt_program *p, const char *name, int ndim, const int64_t *dim, lnt_init init, bool decay, bool product);
/* Zeroed memory that lives as long as the program, for attributes. NULL (and a remembered mistake) when there is none. */
void *lnt_program_alloc(lnt_program *p, size_t bytes);
/* Parameter `param` as a value of `rows` rows, float32: an input like any other. Its gradient is always added to what is there. */
lnt_buf lnt_param_value(lnt_program *p, int param, int64_t rows, int32_t heads);
/* Add a node; outputs are declared by cols, heads and f32, and have the rows of the first input that is there. */
typedef struct {
    int64_t cols;
    int32_t heads;
    bool f32;
} lnt_out_spec;
lnt_node *lnt_add_node(lnt_program *p, const lnt_op *op, const void *attr, int n_in, const lnt_buf *in, int n_param, const int *param, int n_out,
                       const lnt_out_spec *out);
/* A node without inputs, of `rows` fixed rows; the null buffer after a mistake. */
lnt_buf lnt_add_source(lnt_program *p, const lnt_op *op, const void *attr, int64_t rows, lnt_out_spec out);
/* Views: no node is added. Same data, other head split; [rows, cols] as [rows*n, cols/n]; columns first .. first+cols-1. Gradients of slices that do
 * not overlap, and leave nothing out, are stored where they belong; for others the whole gradient is cleared first. */
lnt_buf lnt_with_heads(lnt_program *p, lnt_buf x, int32_t heads);
lnt_buf lnt_split_rows(lnt_program *p, lnt_buf x, int32_t n);
lnt_buf lnt_slice(lnt_program *p, lnt_buf x, int64_t first, int64_t cols, int32_t heads);

/* ---- reading ------------------------------------------------------------------------------------------------------------------ */

const lnt_value *lnt_program_value(const lnt_program *p, lnt_buf b);
bool lnt_same_data(const lnt_program *p, lnt_buf a, lnt_buf b);  /* row for row the same; heads may differ */
bool lnt_shares_data(const lnt_program *p, lnt_buf a, lnt_buf b); /* both are views of one value */
bool lnt_same_rows(const lnt_program *p, lnt_buf a, lnt_buf b);
bool lnt_is_slice(const lnt_program *p, lnt_buf b);
int64_t lnt_rows(const lnt_program *p, lnt_buf b, int64_t tokens);
int64_t lnt_cols(const lnt_program *p, lnt_buf b);
int32_t lnt_heads(const lnt_program *p, lnt_buf b);
int lnt_param_count(const lnt_program *p);
const lnt_param *lnt_param_at(const lnt_program *p, int i);
const lnt_param *lnt_param_find(const lnt_program *p, const char *name);
int64_t lnt_param_elements(const lnt_program *p); /* of one arena, paddings included */
int64_t lnt_param_work_begin(const lnt_program *p);  /* the first element that products read */
int64_t lnt_param_rows(const lnt_program *p);        /* of what products alone read: a row is what the last dimension counts */
int64_t lnt_param_plain_end(const lnt_program *p);   /* behind the last element that is read as float32 */
bool lnt_program_draws(const lnt_program *p); /* some node does */
const lnt_pair *lnt_pair_of(const lnt_op *first, const lnt_op *second); /* NULL: they are none */
int lnt_node_count(const lnt_program *p);
const lnt_node *lnt_node_at(const lnt_program *p, int i);

/* The program as text (one node a line) and as Graphviz. */
char *lnt_program_text(const lnt_program *p);      /* lnt_free */
char *lnt_program_graphviz(const lnt_program *p);  /* lnt_free */

#endif

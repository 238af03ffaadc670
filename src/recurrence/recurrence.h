/* The operators behind one call. A core is a folder: <core>.c (descriptions of its operators, choice of implementation), <core>_reference.c (float64,
 * token by token: the truth), <core>_cpu.c (chunk and step, compiled for every CPU variant), <core>_cases.c (shapes, ranges).
 *
 * An operator is one static description (lnt_recur_op), one line in operators.def. Everything that handles operators alike reads descriptions:
 * validation, files, random problems, benchmarks, the program's node, the documentation. None of it names an operator.
 *
 * A call is a plain structure of the core's own, its "arguments": it begins with LNT_RECUR_HEAD, and the description says at which offset each size,
 * option and tensor stands in it. recurrence.c fills it from names (the public call) or takes it filled (a program's node, tests), checks it once
 * (the values of gates are the caller's duty, except in `linnet op`), and walks the list of implementations, fastest first, reference last. */
#ifndef LNT_RECURRENCE_H
#define LNT_RECURRENCE_H

#include "core/cpu.h"
#include "core/dtype.h"
#include "core/status.h"
#include "device/device.h"
#include "linnet/recurrence.h"

typedef struct lnt_recur_op lnt_recur_op;
struct lnt_op;
struct lnt_recur_case;

/* Workspaces grow with it: of no call does their size leave 63 bits by a chunk's length. */
enum { LNT_MOST_CHUNK = 1 << 20 };

/* What the arguments of every operator begin with. Sequence n is the rows cu_seqlens[n] .. cu_seqlens[n+1]-1 of the token axis. */
#define LNT_RECUR_HEAD                                                                                                             \
    const lnt_recur_op *op;                                                                                                        \
    lnt_dtype dtype;            /* of tensors that are `wide`: LINNET_F32, LINNET_BF16, or LINNET_F64, which is the reference's */  \
    linnet_form form;           /* in an implementation neither AUTO nor PARALLEL, which is CHUNK with the longest sequence as chunk */ \
    const char *impl;           /* force an implementation by name */                                                              \
    int32_t chunk;              /* chunk length, up to LNT_MOST_CHUNK; 0: the implementation's own */                              \
    int64_t tokens, sequences;                                                                                                     \
    const int64_t *cu_seqlens;  /* host, [N+1] */                                                                                  \
    const int64_t *cu_seqlens_device; /* cuda: never NULL in an implementation */                                                  \
    int64_t longest;            /* in an implementation: tokens of the longest sequence */                                         \
    bool states_early;          /* cuda: no kernel that may still run writes initial states, a plan's: device/cuda.cuh */          \
    void *workspace;                                                                                                               \
    size_t workspace_size;
typedef struct {
    LNT_RECUR_HEAD
} lnt_recur_head;

/* Room for the arguments of any operator. */
enum { LNT_RECUR_ROOM = 1024 };
typedef union {
    lnt_recur_head head;
    char room[LNT_RECUR_ROOM];
} lnt_recur_call;

/* One way to compute an operator; `args` are its core's arguments. Kernels own nothing: all scratch is args->workspace. On the CPU they run `threads`
 * OpenMP threads, and cut the work into pieces that do not depend on `threads`: same bits for any count. On a GPU they put kernels on the stream;
 * tensors, workspace and cu_seqlens_device are device memory, cu_seqlens is the host's. */
typedef struct lnt_recur_impl {
    const char *name;      /* "chunk-avx512" */
    linnet_form form;      /* what it is: LINNET_FORM_CHUNK or LINNET_FORM_RECURRENT; the reference serves both */
    lnt_device_kind device;
    int needs;             /* cpu: an lnt_cpu_level; cuda: a compute capability times ten */
    /* NULL when it accepts these arguments; otherwise the reason, static text. Looks at the shape, the dtype and the options, never at the tensors'
     * pointers, so that the workspace query and the run choose alike. declines == NULL: accepts everything (but F64, which is the reference's). */
    const char *(*declines)(const void *args, bool backward);
    size_t (*workspace)(const void *args, bool backward, int threads);
    void (*forward)(const void *args, int threads);
    void (*backward)(const void *args, int threads); /* NULL: forward only */
    /* cuda, in place of the two above */
    void (*put_forward)(const void *args, const lnt_device *d);
    void (*put_backward)(const void *args, const lnt_device *d);
} lnt_recur_impl;

/* ---- the description ------------------------------------------------------------------------------------------------------------------- */

/* A size: a letter of shapes. "T" (tokens) and "N" (sequences) stand in the head; the core adds its own. */
typedef struct {
    const char *letter;
    size_t field;
    int bytes;           /* of the field: 4 or 8 */
    int64_t least, most; /* the same: it need not be given */
    int64_t usual;       /* what a benchmark takes */
    const char *same_as; /* the letter whose value it takes when a call does not give it; NULL: it must be given */
    const char *help;
} lnt_recur_size;

typedef enum { LNT_RECUR_REAL, LNT_RECUR_INT, LNT_RECUR_SWITCH, LNT_RECUR_WORD } lnt_recur_option_kind;

typedef struct {
    const char *key;
    lnt_recur_option_kind kind; /* fields: double, int64_t or int32_t, int32_t, int32_t (place among the words) */
    size_t field;
    int bytes;
    double least, most;
    double standard;      /* NaN: the operator's `fill` decides, as `help` says */
    const char *words;    /* apart by blanks */
    const char *help;
} lnt_recur_option;

typedef enum {
    LNT_T_INPUT,
    LNT_T_STATE,     /* initial state: zeros when absent */
    LNT_T_COTANGENT, /* backward only, absent: zeros */
    LNT_T_OUTPUT,
    LNT_T_SAVED,     /* an output that backward reads and no one else asks for */
    LNT_T_GRADIENT,
    LNT_T_REPORT,    /* of either call, on request: how it went */
} lnt_tensor_role;

/* What a tensor's values are: how a random problem draws them, and what `linnet op` refuses. */
typedef enum {
    LNT_VALUES_ANY,       /* normal */
    LNT_VALUES_UNIT,      /* rows (the last letter) of unit norm */
    LNT_VALUES_DECAY,     /* natural logs of decays, at most 0; -inf is an exact reset */
    LNT_VALUES_STRENGTH,  /* above 0 as a rule */
    LNT_VALUES_STEP,      /* at least 0: below, what decays would grow */
    LNT_VALUES_WEIGHT,    /* of a norm: about 1, and what it will */
    LNT_VALUES_POSITIVE,  /* above 0, about 1 */
    LNT_VALUES_NEGATIVE,  /* below 0, about -1 */
    LNT_VALUES_SIGN,      /* from -1 to 1; 0 and both ends too */
    LNT_VALUES_SYMMETRIC, /* symmetric matrices (the last two letters) that are not negative */
    LNT_VALUES_COUNT,     /* whole numbers, of rows that a state holds; no gradient */
} lnt_tensor_values;

/* A tensor. The rows of a description come in groups that macros below write: an input is followed by its gradient; an output by its cotangent; an
 * initial state by its gradient, the final state and that one's cotangent. */
typedef struct {
    const char *name;  /* a gradient's is "d" before that of what it belongs to */
    const char *shape; /* letters apart by blanks, "T Hk K"; a first letter that begins with T is rows of the token axis, and N one for a sequence;
                          "T*key" is as many rows a token, one behind the other, as the option of that name says, and "key" a size that it says */
    size_t field;      /* offset of the pointer in the arguments */
    lnt_tensor_role role;
    lnt_tensor_values values;
    bool wide;         /* of the call's dtype; otherwise float32 (float64 under LINNET_F64) */
    bool gate;         /* its gradient is held to the budget of gates */
    bool read_back;    /* an output that backward reads */
    bool forward_only; /* an input that backward does not read */
    bool passed;       /* a decay that something of the old state passes (it acts behind the read-out, or is not all of the transition): a reset is
                          no boundary of sequences */
    size_t with;       /* offset of a switch without which the operator has no such tensor; 0: none */
    size_t without;    /* offset of an option with which it has none, whatever else the option says; 0: none */
    size_t positive;   /* offset of a switch with which its values are to be above 0; 0: none */
    const char *carried; /* an initial state: what it is called from call to call */
    const char *absent; /* an input that may be absent: what that means; NULL: it may not */
    const char *help;
} lnt_recur_tensor;

#define LNT_AT(ARGS, FIELD) offsetof(ARGS, FIELD)
#define LNT_ROW(NAME, SHAPE, FIELD, ROLE, ...) { .name = NAME, .shape = SHAPE, .field = FIELD, .role = ROLE, __VA_ARGS__ }
#define LNT_INPUT(ARGS, NAME, SHAPE, FIELD, ...)                                                                                   \
    LNT_ROW(NAME, SHAPE, LNT_AT(ARGS, FIELD), LNT_T_INPUT, __VA_ARGS__),                                                           \
        LNT_ROW("d" NAME, SHAPE, LNT_AT(ARGS, d##FIELD), LNT_T_GRADIENT, __VA_ARGS__)
#define LNT_OUTPUT(ARGS, NAME, SHAPE, FIELD, COTANGENT, ...)                                                                       \
    LNT_ROW(NAME, SHAPE, LNT_AT(ARGS, FIELD), LNT_T_OUTPUT, __VA_ARGS__),                                                          \
        LNT_ROW("d" NAME, SHAPE, LNT_AT(ARGS, COTANGENT), LNT_T_COTANGENT, __VA_ARGS__)
/* FIELD0, dFIELD0, FIELDT, dFIELDT; named NAME0SUFFIX and so on. */
#define LNT_STATE(ARGS, NAME, SUFFIX, SHAPE, FIELD, ...)                                                                           \
    LNT_ROW(NAME "0" SUFFIX, SHAPE, LNT_AT(ARGS, FIELD##0), LNT_T_STATE, .carried = NAME SUFFIX, __VA_ARGS__),                     \
        LNT_ROW("d" NAME "0" SUFFIX, SHAPE, LNT_AT(ARGS, d##FIELD##0), LNT_T_GRADIENT, __VA_ARGS__),                               \
        LNT_ROW(NAME "T" SUFFIX, SHAPE, LNT_AT(ARGS, FIELD##T), LNT_T_OUTPUT, __VA_ARGS__),                                        \
        LNT_ROW("d" NAME "T" SUFFIX, SHAPE, LNT_AT(ARGS, d##FIELD##T), LNT_T_COTANGENT, __VA_ARGS__)

/* Room for the rows of any description. */
enum { LNT_RECUR_TENSORS = 80 };

/* Errors that implementations are held to, rms(error) / rms(reference): of outputs, gradients, gradients of gates and write strengths. */
typedef struct {
    double output, gradient, gate;
} lnt_recur_budget;

struct lnt_recur_op {
    const char *name;
    const char *core;     /* folder */
    const char *equation; /* one line */
    int kind;             /* which of its core's operators: the core's own number */
    size_t args_size;
    const lnt_recur_size *sizes;        /* these three end with a row of zeros */
    const lnt_recur_tensor *tensors;
    const lnt_recur_option *options;
    const lnt_recur_impl *const *impls; /* NULL-terminated, fastest first, reference last */
    const struct lnt_recur_case *cases; /* what its core's implementations are checked on (problem.h) */
    bool weights;                       /* o_t is a sum of rows of v, weighed by numbers that v has no part in, and what states add */
    lnt_recur_budget f32, bf16;
    bool nonlinear;                     /* outputs are no linear function of values and states */
    void (*fill)(void *args);           /* what options left to the operator are, and what follows from sizes; NULL: nothing */
    linnet_status (*check)(lnt_ctx *c, const void *args, bool backward); /* what sizes and options must satisfy together; NULL: nothing */
    void (*exact)(void *args);          /* options with which a random problem has one truth to the last digit; NULL: any */
    double (*flops)(const void *args, int C, bool backward); /* useful ones of the call at chunk length C (operators.md#flops) */
    const char *channel;                /* the letter of channels that see no others, of an operator without heads (letters H..), which see none
                                           either: some of them say what all are worth; NULL: none */
    struct {
        size_t field;                   /* of a tensor of gates' type that implementations read and no caller has: zeros, in the workspace */
        const char *shape;              /* NULL: there is none such */
    } zeros;
    const char *counted;                /* a report on whose mean more of them depend, with the function; NULL: none */
    double (*counted_flops)(const void *args, double mean);
    const struct lnt_op *node;          /* in a program: LNT_RECUR_NODE (recur_node.h), or the core's own; NULL: not in programs */
};

#define X(NAME) extern const lnt_recur_op lnt_recur_##NAME;
#include "recurrence/operators.def"
#undef X

const lnt_recur_op *lnt_recur_find(const char *name); /* NULL: unknown */
const lnt_recur_op *lnt_recur_at(int i);              /* NULL past the end */

const char *lnt_form_name(linnet_form form);          /* NULL: there is none such */

/* ---- reading arguments by description ---------------------------------------------------------------------------------------------------- */

int lnt_recur_tensor_count(const lnt_recur_op *op);                        /* rows */
int lnt_recur_tensor_find(const lnt_recur_op *op, const char *name);       /* -1: none */
const lnt_recur_size *lnt_recur_size_find(const lnt_recur_op *op, const char *letter, size_t length);
const lnt_recur_option *lnt_recur_option_find(const lnt_recur_op *op, const char *key);
int64_t lnt_recur_size_get(const lnt_recur_size *s, const void *args);
void lnt_recur_size_set(const lnt_recur_size *s, void *args, int64_t value);
/* The value of a letter; -1: the operator has none such. */
int64_t lnt_recur_letter(const lnt_recur_op *op, const void *args, const char *letter, size_t length);
double lnt_recur_option_get(const lnt_recur_option *o, const void *args);
/* Checked against the option's range; `text` (NULL: none) may be a word. */
linnet_status lnt_recur_option_set(lnt_ctx *c, const lnt_recur_op *op, void *args, const char *key, double value, const char *text);
/* The next letter of a shape: its start, its length in *length, `shape` moved behind it. NULL at the end. */
const char *lnt_recur_next_letter(const char **shape, size_t *length);
/* Whether tensor row i is there under the call's options. */
bool lnt_recur_has(const void *args, int i);
/* LINNET_EINVAL: it is not, and which option says so. */
linnet_status lnt_recur_refuse(lnt_ctx *c, const void *args, int i);
lnt_dtype lnt_recur_type(const void *args, int i);
int64_t lnt_recur_elements(const void *args, int i); /* its shape in terms of the call's sizes */
int64_t lnt_recur_shape_elements(const void *args, const char *shape);
static inline void *lnt_recur_get(const void *args, const lnt_recur_tensor *t) { return *(void *const *)((const char *)args + t->field); }
static inline void lnt_recur_set(void *args, const lnt_recur_tensor *t, const void *p) { *(const void **)((char *)args + t->field) = p; }
/* Whether it has to begin at a multiple of 16 bytes on a GPU: the letters of its shape but T, N and heads are whole 16 bytes each. */
bool lnt_recur_aligned(const void *args, int i);
/* The longest sequence. */
int64_t lnt_recur_longest(const void *args);

/* ---- calls ------------------------------------------------------------------------------------------------------------------------------------ */

/* Arguments with every option at its standard; sizes 0, tensors absent. */
void lnt_recur_init(const lnt_recur_op *op, void *args);
/* Bytes of workspace that a call needs; pointers of tensors need not be set. */
linnet_status lnt_recur_workspace(lnt_ctx *c, const void *args, bool backward, size_t *bytes);
/* The same where there is no context; 0 of a call that would be refused. */
size_t lnt_recur_workspace_quiet(const void *args, bool backward, int threads, lnt_device *device);
/* Whether a form that the call names is the one that runs: LINNET_EUNSUPPORTED where the reference alone takes the call, LINNET_EINVAL where the
 * call's implementation is of another form. lnt_recur_run lets both pass. Pointers of tensors need not be set. */
linnet_status lnt_recur_check_form(lnt_ctx *c, const void *args, bool backward);
/* LINNET_EINVAL with the reason when a shape, a pointer or an option is wrong; nothing is written then. */
linnet_status lnt_recur_run(lnt_ctx *c, const void *args, bool backward);

#endif

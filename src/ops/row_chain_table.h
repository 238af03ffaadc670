/* A chain as its kernel gets it. Columns are those of the chain: places among the threads, two columns each. */
#ifndef LNT_OPS_ROW_CHAIN_TABLE_H
#define LNT_OPS_ROW_CHAIN_TABLE_H

#include "ops/row_chain.h"

enum { LNT_CHAIN_NODES = 24, LNT_CHAIN_LOADS = 64, LNT_CHAIN_UNIT = 2, LNT_CHAIN_WARP = 32 * LNT_CHAIN_UNIT };
/* The most threads of a block and blocks of a cluster, and columns that fit into those. */
enum { LNT_CHAIN_MOST_THREADS = 512, LNT_CHAIN_CLUSTER = 8, LNT_CHAIN_MOST_COLUMNS = LNT_CHAIN_MOST_THREADS * LNT_CHAIN_UNIT };

/* What a thread has of an operand in its 8 bytes of shared memory: two floats, two halves in the first 4, or one float for both columns. */
typedef enum { LNT_CHAIN_ABSENT, LNT_CHAIN_FLOATS, LNT_CHAIN_HALVES, LNT_CHAIN_ONE } lnt_chain_form;

/* Division by multiplication: i / n is the upper half of i times the inverse of n, for i n below 2^32. */
static inline uint32_t lnt_chain_inverse(int64_t n) { return (uint32_t)((((int64_t)1 << 32) + n - 1) / n); }

/* Numbers that come from outside. Column c of the chain has element c - first of a row, modulo `period` where that is not 0; where all of a thread's
 * columns have one number, element (c - first) / stretch. */
typedef struct {
    const char *data;
    int64_t row;        /* bytes from a row to the next; 0: one row for all */
    int32_t first, end; /* columns of the chain */
    int32_t period;
    uint32_t inverse;   /* of period or stretch; 0: there is neither */
    int32_t at;         /* in shared memory: 8 bytes a thread, of more than 8 as many as there are */
    int16_t bytes;      /* of a thread */
    int16_t size;       /* bytes of an element, times the neighbours that a column has */
    bool single;        /* one number for all of a thread's columns */
    bool early;         /* no kernel of the run writes it before this one */
    bool by_sequence;   /* rows are sequences */
    char unused[5];
} lnt_chain_load;

/* An operand: where it lies in shared memory, a multiple of 8, plus its form. */
typedef uint32_t lnt_chain_operand;

/* Rules that are functions of a chain; one of LNT_ROW_DECAYED has a kernel with two chains around it. */
static inline bool lnt_chain_is_rule(int kind) { return kind == LNT_ROW_UNTIED || kind == LNT_ROW_TIED; }

/* What every function needs, 16 bytes a read. */
typedef struct {
    int32_t kind, act;
    int32_t count;          /* of LERP: results side by side; of sums: lanes of a head, within a warp, 0: whole warps */
    int32_t f32;            /* the result is float32 */
    int32_t first, end;     /* columns of the chain */
    int32_t stretch;        /* of the result */
    int32_t at;             /* of the result in shared memory, 8 bytes a thread */
    lnt_chain_operand operand[4];
    char *out;              /* NULL: the next ones read it here alone */
    int64_t out_row;        /* bytes */
} lnt_chain_head;

typedef struct {
    lnt_chain_head head;
    lnt_chain_operand more[LNT_ROW_OPERANDS - 4];
    float number[2];
    int32_t columns;                 /* of a head */
    uint32_t by_columns, by_stretch; /* inverses */
    int32_t state_cols;
    float *state;                    /* NULL: none */
    int64_t state_stride;
    int64_t unused;
} lnt_chain_op;

/* Up to where loads go: those of units, then those of single numbers. */
typedef struct {
    int32_t units, end;
} lnt_chain_loads;

typedef struct {
    const int64_t *cu; /* device; NULL: row n is sequence n */
    int64_t n_seq, tokens;
    int32_t rows, cols;
    int32_t block, cluster; /* columns of a block; blocks of a row that take sums together, all of it, or 1 */
    int32_t bytes;          /* of shared memory that operands and results take */
    int32_t ops;
    lnt_chain_loads early, late;
    lnt_chain_op op[LNT_CHAIN_NODES];
    lnt_chain_load load[LNT_CHAIN_LOADS]; /* early ones, then the others */
} lnt_chain;

/* A step of LNT_ROW_DECAYED between a chain that makes its operands and one that ends in a norm of whole rows. */
typedef struct {
    lnt_chain ahead, behind;
    const void *q, *k, *v, *g, *o; /* where they would lie: which results of `ahead` are which, and o among the operands of `behind` */
    float *state;                  /* [rows][heads, K, V], rows state_stride floats apart */
    int64_t state_stride;
    float *squares;                /* room for [rows][heads V / 32] */
    int32_t heads, K, V;
    float scale;
} lnt_chain_decay;
bool lnt_row_chain_decay_cuda(lnt_ctx *c, const lnt_chain_decay *d); /* false: it is not known; nothing was put */

bool lnt_row_chain_maps_cuda(lnt_ctx *c, const lnt_chain *chain, const struct lnt_few_rows *f); /* lnt_row_chain_with_maps */

/* Nothing was put: a block of this device has no room for it, or a chain with a rule is not known. */
typedef enum { LNT_CHAIN_NOT_PUT, LNT_CHAIN_BY_TABLE, LNT_CHAIN_KNOWN } lnt_chain_way;
lnt_chain_way lnt_row_chain_cuda(lnt_ctx *c, const lnt_chain *chain);

#endif

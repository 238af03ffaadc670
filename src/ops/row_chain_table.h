/* A chain as its kernel gets it. Columns are those of the chain: places among the threads, eight columns each. */
#ifndef LNT_OPS_ROW_CHAIN_TABLE_H
#define LNT_OPS_ROW_CHAIN_TABLE_H

#include "ops/row_chain.h"

enum { LNT_CHAIN_NODES = 24, LNT_CHAIN_LOADS = 64, LNT_CHAIN_UNIT = 8, LNT_CHAIN_THREADS = 64, LNT_CHAIN_MOST_THREADS = 1024 };
enum { LNT_CHAIN_WARP = 32 * LNT_CHAIN_UNIT, LNT_CHAIN_WIDEST = LNT_CHAIN_MOST_THREADS * LNT_CHAIN_UNIT };

/* What a thread's shared memory holds of an operand: one or more planes of 16 bytes. */
typedef enum { LNT_CHAIN_ABSENT, LNT_CHAIN_FLOATS, LNT_CHAIN_HALVES, LNT_CHAIN_ONE } lnt_chain_form;

/* Numbers that come from outside. Column c of the chain has element (c - first) / stretch of a row, modulo `period` where that is not 0. */
typedef struct {
    const char *data;
    int64_t row;       /* bytes from a row to the next; 0: one row for all */
    int32_t first, end; /* columns of the chain */
    int32_t stretch, period;
    int16_t plane;     /* the first of the thread's planes */
    int16_t bytes;     /* of a thread: 16 or more; less where all its columns have one number */
    int16_t size;      /* bytes of an element, times the neighbours that a column has */
    bool early;        /* no kernel of the run writes it before this one */
    bool by_sequence;  /* rows are sequences */
} lnt_chain_load;

typedef struct {
    int16_t plane;
    uint8_t form;
} lnt_chain_operand;

typedef struct {
    uint8_t kind, act, count, operands;
    bool f32;          /* the result is float32 */
    uint8_t lanes;     /* of a head, within a warp; 0: whole warps of a block */
    int16_t plane;     /* of the result */
    int32_t first, end, stretch, head; /* stretch: of the result */
    float number[2];
    lnt_chain_operand operand[LNT_ROW_OPERANDS];
    char *out;         /* NULL: the next ones read it here alone */
    int64_t out_row;   /* bytes */
    float *state;      /* NULL: none */
    int64_t state_stride, state_cols;
} lnt_chain_op;

typedef struct {
    const int64_t *cu; /* device; NULL: row n is sequence n */
    int64_t n_seq, tokens;
    int32_t rows, cols, threads, planes;
    bool wide;         /* one block has all columns: some sum goes over its warps */
    int16_t loads, ops;
    lnt_chain_load load[LNT_CHAIN_LOADS]; /* early ones first; of both, those of single numbers last */
    lnt_chain_op op[LNT_CHAIN_NODES];
} lnt_chain;

/* What a block's shared memory holds besides: at most this. */
enum { LNT_CHAIN_OWN = 1024 };

/* False: a block of this device has no room for it; nothing was put. */
bool lnt_row_chain_cuda(lnt_ctx *c, const lnt_chain *chain);

#endif

/* The tensors of linnet_recurrence by name: fields, shapes, roles. For everything that handles them all alike (files, benchmarks, tests). */
#ifndef LNT_RECURRENCE_TENSORS_H
#define LNT_RECURRENCE_TENSORS_H

#include "recurrence/recurrence.h"

typedef enum {
    LNT_T_INPUT,     /* must be there */
    LNT_T_STATE,     /* initial state: may be absent */
    LNT_T_COTANGENT, /* backward only, absent: zeros */
    LNT_T_OUTPUT,
    LNT_T_SAVED,     /* an output that backward reads and no one else asks for */
    LNT_T_GRADIENT,
    LNT_T_REPORT,    /* of either call, on request: how it went */
} lnt_tensor_role;

typedef struct {
    const char *name;
    size_t field;           /* offset of the pointer in linnet_recurrence */
    lnt_tensor_role role;
    bool wide;              /* of the call's dtype; otherwise float32 (float64 with LINNET_F64) */
    /* Letters: B T (their product is the token axis), N, q = Hq, h = Hv, K, V; NULL: operators with a state (attention) do not have it. */
    const char *state, *attention;
} lnt_recur_tensor;

enum { LNT_RECUR_TENSORS = 36 };
extern const lnt_recur_tensor lnt_recur_tensors[LNT_RECUR_TENSORS];

int lnt_recur_tensor_find(const char *name); /* -1: unknown */
/* Does this operator (with r->normalize as it is) have tensor i? */
bool lnt_recur_tensor_taken(const lnt_recur_op *op, const linnet_recurrence *r, int i);
lnt_dtype lnt_recur_tensor_type(const linnet_recurrence *r, int i);
/* Elements: the shape in terms of r's sizes, the rows of `offset` included. */
int64_t lnt_recur_tensor_count(const lnt_recur_op *op, const linnet_recurrence *r, int i);
/* Whether it begins at a multiple of 16 bytes on a GPU: K and V, as far as its shape has them, are whole 16 bytes each. */
bool lnt_recur_tensor_aligned(const lnt_recur_op *op, const linnet_recurrence *r, int i);
static inline void lnt_recur_tensor_set(linnet_recurrence *r, int i, void *p) { *(void **)((char *)r + lnt_recur_tensors[i].field) = p; }

#endif

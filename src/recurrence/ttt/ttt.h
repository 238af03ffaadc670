/* What the files of the ttt core share. */
#ifndef LNT_TTT_H
#define LNT_TTT_H

#include "recurrence/cases.h"
#include "recurrence/recurrence.h"

enum { LNT_TTT_LINEAR, LNT_TTT_MLP, LNT_TITANS };     /* lnt_recur_op.kind */
enum { LNT_TTT_PLAIN, LNT_TTT_LN };                   /* inner, in the order of the option's words */
enum { LNT_TTT_LAYERS = 2, LNT_TTT_LONGEST = 256 };   /* the longest mini-batch */

/* A layer of the inner model and what a state holds of it, all f. Of an open mini-batch x are the inputs of its rows and u the gradients of their
 * outputs times `rate`. */
typedef struct {
    void *w, *b;             /* [H,I,O] [H,O] what states are differences to; NULL: zeros */
    void *w0, *b0, *wT, *bT; /* [N,H,I,O] [N,H,O]; initial ones NULL: zeros, final ones NULL: not wanted */
    void *sw0, *sb0, *swT, *sbT; /* the same at the start of the open mini-batch, where there is one */
    void *x0, *u0, *xT, *uT; /* [N,H,mini_batch,I] [N,H,mini_batch,O] */
} lnt_ttt_layer;

/* Row major and dense; x is the call's dtype, f float32 (float64 when that is LINNET_F64). */
typedef struct {
    LNT_RECUR_HEAD
    int32_t H, D, F;                /* F: columns between the layers of ttt_mlp */
    int32_t mini_batch, inner, bias;
    const void *q, *k, *v;          /* x [T,H,D] */
    const void *eta;                /* ttt: f [T,H,mini_batch] step sizes of a row; titans: f [T,H] what is kept of the momentum */
    const void *rate, *token_idx;   /* f [T,H], f [mini_batch] */
    const void *theta, *alpha;      /* titans: f [T,H] */
    const void *ln_w, *ln_b;        /* f [H,D] */
    lnt_ttt_layer layer[LNT_TTT_LAYERS], dlayer[LNT_TTT_LAYERS]; /* and the gradients and cotangents of the same; titans has w alone, its memory */
    const void *n0;                 /* f [N,H] rows of the open mini-batch */
    const void *m0, *g0;            /* titans: f [N,H,D,D] momentum, and the memory at the start of the open mini-batch */
    void *nT, *mT, *gT;
    const void *dnT, *dmT, *dgT;
    void *o;                        /* x [T,H,D] */
    const void *dout;
    void *dq, *dk, *dv, *deta, *drate, *dtoken_idx, *dtheta, *dalpha, *dln_w, *dln_b, *dn0, *dm0, *dg0; /* NULL: not wanted */
} lnt_ttt_args;

static inline lnt_dtype lnt_ttt_small(const lnt_ttt_args *a) { return a->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }
static inline int lnt_ttt_layers(const lnt_ttt_args *a) { return a->op->kind == LNT_TTT_MLP ? 2 : 1; }
/* Columns into and out of layer l. */
static inline int64_t lnt_ttt_in(const lnt_ttt_args *a, int l) { return l ? a->F : a->D; }
static inline int64_t lnt_ttt_out(const lnt_ttt_args *a, int l) { return l + 1 < lnt_ttt_layers(a) ? a->F : a->D; }
/* Rows of the open mini-batch from what a state says, which may be anything. */
static inline int64_t lnt_ttt_count(const lnt_ttt_args *a, double n)
{
    const double most = a->mini_batch - 1;
    return n > 0 ? (int64_t)((n < most ? n : most) + 0.5) : 0;
}
/* Mini-batch c of a sequence of len tokens whose state has an open one of `open` rows: where its rows begin in the sequence, how many of those rows
 * are in the state, and how many it has in all. */
typedef struct {
    int64_t first, open, rows;
} lnt_ttt_batch;
static inline int64_t lnt_ttt_batches(const lnt_ttt_args *a, int64_t open, int64_t len) { return (open + len + a->mini_batch - 1) / a->mini_batch; }
static inline lnt_ttt_batch lnt_ttt_batch_at(const lnt_ttt_args *a, int64_t open, int64_t len, int64_t c)
{
    const int64_t begin = c * a->mini_batch, end = begin + a->mini_batch < open + len ? begin + a->mini_batch : open + len;
    return (lnt_ttt_batch){ c ? begin - open : 0, c ? 0 : open, end - begin };
}

extern const lnt_recur_impl lnt_ttt_reference, lnt_titans_reference;
extern const lnt_recur_case lnt_ttt_cases[];

#endif

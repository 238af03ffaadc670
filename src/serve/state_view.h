/* A look into the state of a text while it is read and written: of every layer that keeps a matrix for each head its norm, how long it remembers by
 * its decay, and what it recalls of a key. What there is to see follows from the operators' descriptions; a layer with no such matrix says so.
 *
 * Norm. Frobenius, of the head's matrix as it is kept, behind a token. Inside a piece of a prompt there is no state of a token's own: NaN.
 * Memory. m_t = 1 + gamma_t m_{t-1}, gamma_t being the decay that the token brings: what is left of the weights of all writes so far, in tokens;
 * 1 / (1 - gamma) where the decay stays the same, and t where there is none. Of decays by channel the mean over them. What a delta rule takes out
 * by its writes is no decay, and does not count.
 * Recall. r = S^T k_j, what the matrix behind the prompt says to the key of token j: its cosine to that token's value v_j, and the tokens whose
 * values are nearest to r by their cosines. (Were the key the query, r is what the layer would read, but for a factor.) */
#ifndef LNT_SERVE_STATE_VIEW_H
#define LNT_SERVE_STATE_VIEW_H

#include "linnet/state.h"
#include "program/plan.h"
#include "serve/request.h"

/* A node of the program that carries a recurrence's state. */
typedef struct {
    const char *name;       /* "model.layers.0.attn.gated_delta_rule" */
    const char *op;         /* the operator's name */
    int64_t layer;
    const char *nothing;    /* why there is nothing to see; NULL: there is, and what follows is set */
    const char *no_memory;  /* the same of the memory, */
    const char *no_recall;  /* and of the recall */
    int64_t heads, rows, columns; /* of the matrices, rows being those of keys */
    int64_t first;          /* of its heads, among those of all parts that have something to see */
    int tensor;             /* of the session's states */
    bool decays;
    lnt_buf decay;          /* the natural logs; or */
    const float *fixed;     /* [heads], the same for every token */
    int64_t channels;       /* of the decay, a head */
    int64_t first_channel;
    lnt_buf key, value;
    int64_t key_heads;
} lnt_view_part;

/* What there is to see of a model. */
typedef struct {
    linnet_session *session;
    int n_parts;
    lnt_view_part *parts;
    int64_t heads, channels; /* of all parts */
    int64_t value_bytes;     /* of a token, that a recall needs */
    lnt_buf *looked;         /* what plans keep for it */
    int n_looked;
    lnt_arena arena;
} lnt_views;

linnet_status lnt_views_open(lnt_ctx *c, linnet_session *s, lnt_views *out);
void lnt_views_close(lnt_views *w);

/* One text's. */
typedef struct lnt_view lnt_view;
/* `recall`: the token whose key is asked of the state behind `n` tokens; -1: none is. */
linnet_status lnt_view_create(lnt_ctx *c, const lnt_views *w, int64_t recall, int64_t n, lnt_view **out);
void lnt_view_destroy(lnt_view *view);
/* A run has gone over n ids of the text, whose values are rows row .. of the plan's. */
linnet_status lnt_view_see(lnt_ctx *c, lnt_view *view, const lnt_plan *plan, const int32_t *ids, int64_t row, int64_t n);
/* And this is the state behind them. `to` gets what was seen since the last time, under the lock of its request; false: no memory. */
linnet_status lnt_view_norms(lnt_ctx *c, lnt_view *view, const linnet_state *state);
bool lnt_view_tell(lnt_view *view, lnt_viewed *to);

#endif

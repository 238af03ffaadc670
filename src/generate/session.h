/* The inside of linnet_session and linnet_state (linnet/state.h). */
#ifndef LNT_GENERATE_SESSION_H
#define LNT_GENERATE_SESSION_H

#include "linnet/state.h"
#include "model/model.h"

/* One tensor of a state: which of its node's, and its name. */
typedef struct {
    int node, k;
    const char *name;
} lnt_session_tensor;

/* Where a row of logits goes. */
typedef struct {
    float *to;
    bool on_device;
} lnt_session_row;

/* What is told of a run that is looked at: rows row .. row+n-1 of the plan's values belong to ids first .. first+n-1 of the call. */
typedef linnet_status lnt_session_seen(void *user, const linnet_session_call *k, const lnt_plan *plan, int64_t row, int64_t first, int64_t n);

struct linnet_session {
    lnt_ctx *c;
    linnet_model *m;
    linnet_session_options o; /* capacity: 0 where there is no limit */
    lnt_state *slots;
    linnet_state **owner;     /* [slots] whose a slot is, NULL: free */
    int64_t used;
    int64_t log;              /* tokens that are remembered for going back: pieces of `chunk`, one for each snapshot */
    int64_t snapshots;        /* of a state: so many, at multiples of the chunk, that the oldest of them is `rollback` tokens back or more */
    size_t snapshot_bytes;    /* of one */
    int n_tensors;
    lnt_session_tensor *tensors;
    lnt_arena arena;
    uint64_t fingerprint;     /* 0: not known yet */

    lnt_plan *piece[3], *step[3]; /* made when first wanted; [1]: with the result of every layer; [2]: with the values looked at */
    const lnt_buf *looked;    /* [n_looked] */
    int n_looked;
    lnt_session_seen *seen;   /* NULL: runs are not looked at */
    void *seen_user;
    lnt_plan *head;           /* logits of rows that are given to it */
    int64_t waiting;          /* rows that have been given, */
    lnt_session_row *logits;  /* [HEAD_ROWS] and where their logits go */
    const linnet_session_call **call; /* [slots] the call of the state in a slot, in a run */
    int64_t *step_slots;      /* [slots] */
    int32_t *step_ids;        /* [slots] */
};

/* What a state was fed lately: id of token p, and whether a piece began with it, at p modulo the session's `log`; and how it was at some multiples of
 * the chunk, the oldest at `oldest`. */
struct linnet_state {
    linnet_session *s;
    int64_t slot;
    bool lost;
    int32_t *ids;
    bool *begins;
    char *kept;        /* device, [snapshots][snapshot_bytes] */
    int64_t *at;       /* [snapshots] tokens of each */
    int64_t oldest, n; /* a ring */
};

/* ---- session.c ---- */

linnet_status lnt_session_check(const linnet_session *s);
/* One piece of a state by itself; or up to lnt_alone_tokens steps, which a piece of one id is too. `plan` becomes the one that ran. */
linnet_status lnt_session_piece(linnet_session *s, linnet_state *state, const int32_t *ids, int64_t n, bool steps, bool layers, lnt_plan **plan);

/* From now on runs keep `n` values of the program besides, the same ones at every call, and tell `seen` of them; the bits are those of other runs.
 * seen NULL: no more. No call wants the result of a layer meanwhile. */
void lnt_session_look(linnet_session *s, const lnt_buf *values, int n, lnt_session_seen *seen, void *user);

/* ---- session_state.c ---- */

/* The state is there, and not lost. */
linnet_status lnt_session_state_check(const linnet_state *state);
/* It has no slot's content to go back to but this. */
void lnt_session_state_begin(linnet_state *state);
/* Remember a piece that was fed, or steps. */
void lnt_session_state_fed(linnet_state *state, const int32_t *ids, int64_t n, bool steps);
static inline int64_t lnt_session_tokens(const linnet_state *state) { return state->s->slots->position[state->slot]; }
/* The tensor as it is after so many tokens. */
lnt_state_tensor lnt_session_tensor_of(const linnet_session *s, int i, int64_t tokens);
static inline int64_t lnt_session_tensor_bytes(const lnt_state_tensor *t)
{
    int64_t n = (int64_t)lnt_dtype_size(t->dtype);
    for (int i = 0; i < t->ndim; i++) n *= t->dim[i];
    return n;
}
static inline char *lnt_session_tensor_at(const linnet_state *state, int i, const lnt_state_tensor *t)
{
    return lnt_state_at(state->s->slots, state->s->tensors[i].node, state->slot) + t->offset;
}

#endif

/* States: slots of a session, and going back in them. */
#include <string.h>

#include "device/device.h"
#include "generate/session.h"

linnet_status lnt_session_state_check(const linnet_state *state)
{
    if (!state) return LINNET_EINVAL;
    if (!state->lost) return LINNET_OK;
    lnt_fail(state->s->c, LINNET_EINVAL, "the state was lost when a run failed half way");
    return lnt_hint(state->s->c, "Destroy it, or copy another one onto it.");
}

/* ---- what a state was --------------------------------------------------------------------------------------------------------------- */

/* Place i of the ring of snapshots, 0 being the oldest. */
static int64_t place(const linnet_state *state, int64_t i) { return (state->oldest + i) % state->s->snapshots; }
static char *snapshot(const linnet_state *state, int64_t place) { return state->kept + (size_t)place * state->s->snapshot_bytes; }

static void keep(linnet_state *state)
{
    linnet_session *s = state->s;
    if (state->n == s->snapshots) state->oldest = place(state, 1);
    else state->n++;
    const int64_t now = place(state, state->n - 1);
    state->at[now] = lnt_session_tokens(state);
    lnt_state_snapshot(s->slots, state->slot, snapshot(state, now));
}

void lnt_session_state_begin(linnet_state *state)
{
    state->oldest = state->n = 0;
    if (state->s->snapshots) keep(state);
}

void lnt_session_state_fed(linnet_state *state, const int32_t *ids, int64_t n, bool steps)
{
    linnet_session *s = state->s;
    const int64_t tokens = lnt_session_tokens(state), first = tokens - n;
    if (!s->snapshots) return;
    for (int64_t i = 0; i < n; i++) { /* a piece lies inside a chunk, and the log is whole chunks: it has no end in between */
        state->ids[(first + i) % s->log] = ids[i];
        state->begins[(first + i) % s->log] = i == 0 || steps;
    }
    if (tokens % s->o.chunk == 0 && tokens > state->at[place(state, state->n - 1)]) keep(state);
}

/* The most tokens that can be taken back. */
static int64_t reach(const linnet_state *state)
{
    if (!state->s->snapshots) return 0;
    const int64_t back = lnt_session_tokens(state) - state->at[place(state, 0)];
    return back < state->s->o.rollback ? back : state->s->o.rollback;
}

static linnet_status go_back(linnet_state *state, int64_t to)
{
    linnet_session *s = state->s;
    lnt_plan *plan;
    while (state->at[place(state, state->n - 1)] > to) state->n--;
    const int64_t kept = place(state, state->n - 1);
    int64_t at = state->at[kept];
    lnt_state_restore(s->slots, state->slot, snapshot(state, kept), at);
    while (at < to) {
        const int64_t room = s->o.chunk - at % s->o.chunk, end = to - at < room ? to : at + room;
        int64_t n = 1;
        while (at + n < end && !state->begins[(at + n) % s->log]) n++;
        const bool steps = n == 1; /* as many as there are behind one another, at once */
        while (steps && n < lnt_alone_tokens(s->c) && at + n < end && (at + n + 1 == end || state->begins[(at + n + 1) % s->log])) n++;
        LNT_TRY(lnt_session_piece(s, state, state->ids + at % s->log, n, steps, false, &plan));
        at += n;
    }
    return LINNET_OK;
}

linnet_status linnet_state_rollback(linnet_state *state, int64_t tokens)
{
    LNT_TRY(lnt_session_state_check(state));
    linnet_session *s = state->s;
    if (tokens < 0 || tokens > reach(state)) {
        lnt_fail(s->c, LINNET_EINVAL, "%lld tokens to take back, expected 0 to %lld", (long long)tokens, (long long)reach(state));
        return lnt_hint(s->c, s->o.rollback ? "A state goes back no further than to where it began, or was loaded, and by no more than the session's "
                                              "rollback."
                                            : "The session was made without rollback.");
    }
    if (!tokens) return LINNET_OK;
    state->lost = true;
    LNT_TRY(go_back(state, lnt_session_tokens(state) - tokens));
    state->lost = false;
    return LINNET_OK;
}

/* ---- coming and going ----------------------------------------------------------------------------------------------------------------- */

static linnet_status make_log(linnet_state *state)
{
    linnet_session *s = state->s;
    if (!s->snapshots) return LINNET_OK;
    state->ids = lnt_calloc(lnt_bytes((size_t)s->log, sizeof *state->ids));
    state->begins = lnt_calloc(lnt_bytes((size_t)s->log, sizeof *state->begins));
    state->at = lnt_calloc(lnt_bytes((size_t)s->snapshots, sizeof *state->at));
    if (!state->ids || !state->begins || !state->at) return lnt_fail_memory(s->c, lnt_bytes((size_t)s->log, 5));
    return lnt_device_alloc(s->c, lnt_bytes((size_t)s->snapshots, s->snapshot_bytes), (void **)&state->kept);
}

/* A state in the first free slot, whose content is left as it is. */
static linnet_status take_slot(linnet_session *s, linnet_state **out)
{
    int64_t slot = 0;
    *out = NULL;
    while (slot < s->o.slots && s->owner[slot]) slot++;
    if (slot == s->o.slots) {
        lnt_fail(s->c, LINNET_EINVAL, "all %lld slots of the session hold states", (long long)s->o.slots);
        return lnt_hint(s->c, "Destroy one, or make the session with more.");
    }
    linnet_state *state = lnt_calloc(sizeof *state);
    if (!state) return lnt_fail_memory(s->c, sizeof *state);
    state->s = s;
    state->slot = slot;
    s->owner[slot] = state;
    s->used++;
    const linnet_status status = make_log(state);
    if (status == LINNET_OK)
        *out = state;
    else
        linnet_state_destroy(state);
    return status;
}

linnet_status linnet_state_create(linnet_session *s, linnet_state **out)
{
    LNT_TRY(lnt_session_check(s));
    LNT_TRY(lnt_need(s->c, out, "the place for the state"));
    LNT_TRY(take_slot(s, out));
    lnt_state_reset_slot(s->slots, (*out)->slot);
    lnt_session_state_begin(*out);
    return LINNET_OK;
}

void linnet_state_destroy(linnet_state *state)
{
    if (!state) return;
    linnet_session *s = state->s;
    s->owner[state->slot] = NULL;
    s->used--;
    lnt_free(state->ids);
    lnt_free(state->begins);
    lnt_free(state->at);
    lnt_device_free(s->c, state->kept);
    lnt_free(state);
}

static void put_onto(const linnet_state *from, linnet_state *to)
{
    linnet_session *s = from->s;
    lnt_state_copy_slot(s->slots, from->slot, s->slots, to->slot);
    to->lost = false;
    if (!s->snapshots) return;
    to->oldest = from->oldest;
    to->n = from->n;
    memcpy(to->ids, from->ids, (size_t)s->log * sizeof *to->ids);
    memcpy(to->begins, from->begins, (size_t)s->log * sizeof *to->begins);
    memcpy(to->at, from->at, (size_t)s->snapshots * sizeof *to->at);
    lnt_device_copy(s->c, to->kept, from->kept, (size_t)s->snapshots * s->snapshot_bytes);
}

linnet_status linnet_state_fork(const linnet_state *state, linnet_state **out)
{
    LNT_TRY(lnt_session_state_check(state));
    LNT_TRY(lnt_need(state->s->c, out, "the place for the state"));
    LNT_TRY(take_slot(state->s, out));
    put_onto(state, *out);
    return LINNET_OK;
}

linnet_status linnet_state_copy(const linnet_state *from, linnet_state *to)
{
    LNT_TRY(lnt_session_state_check(from));
    LNT_TRY(lnt_need(from->s->c, to, "the state to be written"));
    if (from->s != to->s) return lnt_fail(from->s->c, LINNET_EINVAL, "the two states belong to different sessions");
    if (from != to) put_onto(from, to);
    return LINNET_OK;
}

/* ---- looking in -------------------------------------------------------------------------------------------------------------------------- */

lnt_state_tensor lnt_session_tensor_of(const linnet_session *s, int i, int64_t tokens)
{
    lnt_state_tensor t[LNT_STATE_TENSORS];
    lnt_state_tensors(s->slots, s->tensors[i].node, tokens, t);
    return t[s->tensors[i].k];
}

linnet_status linnet_state_get_info(const linnet_state *state, linnet_state_info *out)
{
    LNT_TRY(lnt_session_state_check(state));
    LNT_TRY(lnt_result_check(state->s->c, out));
    linnet_state_info r = {.tokens = lnt_session_tokens(state), .rollback = reach(state), .slot = state->slot};
    for (int i = 0; i < state->s->n_tensors; i++) {
        const lnt_state_tensor t = lnt_session_tensor_of(state->s, i, r.tokens);
        r.bytes += lnt_session_tensor_bytes(&t);
    }
    LNT_GIVE(out, r);
    return LINNET_OK;
}

int64_t linnet_state_tensor_count(const linnet_state *state) { return state ? state->s->n_tensors : 0; }

static linnet_status check_index(const linnet_state *state, int64_t i)
{
    LNT_TRY(lnt_session_state_check(state));
    if (i >= 0 && i < state->s->n_tensors) return LINNET_OK;
    return lnt_fail(state->s->c, LINNET_EINVAL, "tensor %lld of a state that has %d", (long long)i, state->s->n_tensors);
}

linnet_status linnet_state_tensor_at(const linnet_state *state, int64_t i, linnet_state_tensor *out)
{
    LNT_TRY(check_index(state, i));
    LNT_TRY(lnt_result_check(state->s->c, out));
    const lnt_session_tensor *which = &state->s->tensors[i];
    const lnt_state_tensor t = lnt_session_tensor_of(state->s, (int)i, lnt_session_tokens(state));
    linnet_state_tensor r = {.name = which->name,
                             .layer = lnt_node_at(state->s->m->p, which->node)->block,
                             .dtype = t.dtype,
                             .n_dims = t.ndim,
                             .bytes = lnt_session_tensor_bytes(&t)};
    for (int d = 0; d < t.ndim; d++) r.dims[d] = t.dim[d];
    LNT_GIVE(out, r);
    return LINNET_OK;
}

linnet_status linnet_state_tensor_read(const linnet_state *state, int64_t i, void *data, size_t bytes)
{
    LNT_TRY(check_index(state, i));
    const lnt_state_tensor t = lnt_session_tensor_of(state->s, (int)i, lnt_session_tokens(state));
    const size_t has = (size_t)lnt_session_tensor_bytes(&t);
    if (bytes != has) return lnt_fail(state->s->c, LINNET_EINVAL, "%zu bytes for tensor %s, which has %zu", bytes, state->s->tensors[i].name, has);
    if (has) LNT_TRY(lnt_need(state->s->c, data, "the place for the tensor"));
    lnt_to_host(state->s->c, data, lnt_session_tensor_at(state, (int)i, &t), has);
    return LINNET_OK;
}

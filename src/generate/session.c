/* Sessions: the plans of a model, its slots, and a run of many states. Every piece of a state runs alone, so that its products are those of a piece
 * of its length; the calls of one id run together, in a plan in which no row depends on another. Logits are made behind them, by a plan of the head
 * alone over the rows that are wanted, in which none does either. */
#include <string.h>

#include "device/device.h"
#include "generate/session.h"

enum { HEAD_ROWS = 64 }; /* logits at once: 32 MiB for a vocabulary of 131072; the head's weights are read once for so many */

/* ---- making a session ---------------------------------------------------------------------------------------------------------------- */

static linnet_status list_tensors(linnet_session *s)
{
    char name[768];
    lnt_state_tensor t[LNT_STATE_TENSORS];
    for (int pass = 0; pass < 2; pass++) {
        s->n_tensors = 0;
        for (int i = 0; i < lnt_node_count(s->m->p); i++)
            for (int n = lnt_state_tensors(s->slots, i, 0, t), k = 0; k < n; k++, s->n_tensors++) {
                if (!pass) continue;
                lnt_state_name(s->m->p, i, &t[k], name, sizeof name);
                s->tensors[s->n_tensors] = (lnt_session_tensor){.node = i, .k = k, .name = lnt_arena_strdup(&s->arena, name)};
                if (!s->tensors[s->n_tensors].name) return lnt_fail_memory(s->c, sizeof name);
            }
        if (pass) break;
        s->tensors = lnt_arena_alloc(&s->arena, lnt_bytes((size_t)s->n_tensors, sizeof *s->tensors));
        if (!s->tensors) return lnt_fail_memory(s->c, lnt_bytes((size_t)s->n_tensors, sizeof *s->tensors));
    }
    return LINNET_OK;
}

static linnet_status open_session(linnet_session *s)
{
    const size_t slots = (size_t)s->o.slots;
    LNT_TRY(lnt_state_create(s->c, s->m->p, s->m->dtype, s->o.slots, s->o.capacity, &s->slots));
    if (!lnt_state_limited(s->slots)) s->o.capacity = 0;
    if (s->o.rollback) {
        s->snapshots = (s->o.rollback + s->o.chunk - 1) / s->o.chunk + 1;
        if (!lnt_mul(s->snapshots, s->o.chunk, &s->log)) return lnt_fail_memory(s->c, SIZE_MAX);
        s->snapshot_bytes = lnt_state_snapshot_bytes(s->slots);
    }
    s->owner = lnt_calloc(lnt_bytes(slots, sizeof *s->owner));
    s->call = lnt_calloc(lnt_bytes(slots, sizeof *s->call));
    s->step_slots = lnt_calloc(lnt_bytes(slots, sizeof *s->step_slots));
    s->step_ids = lnt_calloc(lnt_bytes(slots, sizeof *s->step_ids));
    s->logits = lnt_calloc(HEAD_ROWS * sizeof *s->logits);
    if (!s->owner || !s->call || !s->step_slots || !s->step_ids || !s->logits) return lnt_fail_memory(s->c, lnt_bytes(slots, 32));
    return list_tensors(s);
}

linnet_status linnet_session_create(linnet_context *c, linnet_model *m, const linnet_session_options *options, linnet_session **out)
{
    linnet_session_options o = LINNET_SESSION_OPTIONS_INIT;
    LNT_TRY(lnt_model_check_next(c, m));
    LNT_NEED(c, out);
    *out = NULL;
    if (options) LNT_TRY(lnt_options_take(c, "session", options, &o));
    if (!m->w) return lnt_fail(c, LINNET_EINVAL, "the model is an outline: it has no weights");
    if (!o.capacity) o.capacity = m->config->max_position_embeddings;
    linnet_session *s = lnt_calloc(sizeof *s);
    if (!s) return lnt_fail_memory(c, sizeof *s);
    s->c = c;
    s->m = m;
    s->o = o;
    const linnet_status status = open_session(s);
    if (status == LINNET_OK)
        *out = s;
    else
        linnet_session_destroy(s);
    return status;
}

void linnet_session_destroy(linnet_session *s)
{
    if (!s) return;
    for (int64_t i = 0; s->owner && i < s->o.slots; i++) linnet_state_destroy(s->owner[i]);
    for (int i = 0; i < 3; i++) {
        lnt_plan_destroy(s->piece[i]);
        lnt_plan_destroy(s->step[i]);
    }
    lnt_plan_destroy(s->head);
    lnt_state_destroy(s->slots);
    lnt_arena_free(&s->arena);
    lnt_free(s->owner);
    lnt_free(s->call);
    lnt_free(s->step_slots);
    lnt_free(s->step_ids);
    lnt_free(s->logits);
    lnt_free(s);
}

linnet_status lnt_session_check(const linnet_session *s) { return s ? LINNET_OK : LINNET_EINVAL; }

linnet_status linnet_session_get_info(const linnet_session *s, linnet_session_info *out)
{
    LNT_TRY(lnt_session_check(s));
    LNT_TRY(lnt_result_check(s->c, out));
    const linnet_session_info i = {.slots = s->o.slots,
                                   .used = s->used,
                                   .capacity = s->o.capacity,
                                   .rollback = s->o.rollback,
                                   .chunk = s->o.chunk,
                                   .vocabulary = s->m->config->vocab_size,
                                   .width = s->m->config->hidden_size,
                                   .layers = s->m->config->num_hidden_layers,
                                   .state_bytes = (int64_t)lnt_state_bytes(s->m->p, s->m->dtype, s->slots->capacity),
                                   .rollback_bytes = s->snapshots * (int64_t)s->snapshot_bytes + s->log * 5};
    LNT_GIVE(out, i);
    return LINNET_OK;
}

/* ---- plans --------------------------------------------------------------------------------------------------------------------------- */

/* A plan of up to `tokens` tokens: of one state (a piece), or of as many with one token each (a step). */
static linnet_status plan_for(linnet_session *s, bool step, bool layers, lnt_plan **out)
{
    lnt_plan **plan = &(step ? s->step : s->piece)[s->seen ? 2 : layers];
    *out = *plan;
    if (*plan) return LINNET_OK;
    const int64_t slots = s->o.slots, steps = (lnt_alone_tokens(s->c) + slots - 1) / slots * slots;
    const lnt_plan_options o = {.tokens = step ? steps : s->o.chunk, .n_seq = step ? slots : 1, .dtype = s->m->dtype, .has_state = true,
                                .state_capacity = s->slots->capacity, .rows_alone = step, .n_outputs = 1, .outputs = {s->m->hidden},
                                .n_kept = s->seen ? s->n_looked : layers ? (int)s->m->config->num_hidden_layers : 0,
                                .kept = s->seen ? s->looked : s->m->layers};
    LNT_TRY(lnt_plan_create(s->c, s->m->p, &o, plan));
    *out = *plan;
    return LINNET_OK;
}

static linnet_status head_plan(linnet_session *s)
{
    const lnt_plan_options o = {.tokens = HEAD_ROWS, .n_seq = 1, .dtype = s->m->dtype, .rows_alone = true, .n_outputs = 1,
                                .outputs = {s->m->logits}, .n_given = 1, .given = &s->m->hidden};
    return s->head ? LINNET_OK : lnt_plan_create(s->c, s->m->p, &o, &s->head);
}

/* ids NULL: they are where the plan reads them. */
static linnet_status run(linnet_session *s, lnt_plan *plan, const int32_t *ids, int64_t tokens, const int64_t *slots, int64_t n)
{
    const lnt_batch b = {.tokens = tokens, .n_seq = n, .n_inputs = ids != NULL, .inputs = {{s->m->ids, ids}}, .state = s->slots, .slots = slots};
    return lnt_plan_run(plan, s->m->w, &b);
}

void lnt_session_look(linnet_session *s, const lnt_buf *values, int n, lnt_session_seen *seen, void *user)
{
    s->looked = values;
    s->n_looked = n;
    s->seen = seen;
    s->seen_user = user;
}

linnet_status lnt_session_piece(linnet_session *s, linnet_state *state, const int32_t *ids, int64_t n, bool steps, bool layers, lnt_plan **plan)
{
    LNT_TRY(plan_for(s, steps || n == 1, layers, plan));
    LNT_TRY(run(s, *plan, ids, n, &state->slot, 1));
    lnt_session_state_fed(state, ids, n, steps);
    return LINNET_OK;
}

/* ---- results --------------------------------------------------------------------------------------------------------------------------- */

static char *row_of(const lnt_tensor *t, int64_t row) { return (char *)t->data + (size_t)(row * t->cols) * lnt_dtype_size(t->dtype); }

/* The logits of the rows that wait. Those that go side by side are one copy: on a GPU each costs more than its bytes. */
static linnet_status flush_logits(linnet_session *s)
{
    const lnt_batch b = {.tokens = s->waiting, .n_seq = 1};
    const int64_t V = s->m->config->vocab_size;
    const lnt_session_row *to = s->logits;
    if (!s->waiting) return LINNET_OK;
    LNT_TRY(lnt_plan_run(s->head, s->m->w, &b));
    const lnt_tensor z = lnt_plan_output(s->head, s->m->logits);
    for (int64_t i = 0, n; i < s->waiting; i += n) {
        for (n = 1; i + n < s->waiting && to[i + n].to == to[i].to + n * V && to[i + n].on_device == to[i].on_device;) n++;
        (to[i].on_device ? lnt_device_copy : lnt_to_host)(s->c, to[i].to, row_of(&z, i), (size_t)(n * V) * sizeof *to[i].to);
    }
    s->waiting = 0;
    return LINNET_OK;
}

/* The logits of n rows of what a plan gave, from `row` on. */
static linnet_status want_logits(linnet_session *s, const lnt_plan *plan, int64_t row, const lnt_session_row *to, int64_t n)
{
    LNT_TRY(head_plan(s));
    const lnt_tensor from = lnt_plan_output(plan, s->m->hidden), given = lnt_plan_output(s->head, s->m->hidden);
    for (int64_t m; n; row += m, to += m, n -= m) {
        m = n < HEAD_ROWS - s->waiting ? n : HEAD_ROWS - s->waiting;
        lnt_device_copy(s->c, row_of(&given, s->waiting), row_of(&from, row), (size_t)(m * from.cols) * lnt_dtype_size(from.dtype));
        memcpy(s->logits + s->waiting, to, (size_t)m * sizeof *to);
        s->waiting += m;
        if (s->waiting == HEAD_ROWS) LNT_TRY(flush_logits(s));
    }
    return LINNET_OK;
}

/* Rows of `x` as floats: into their upper half as they are, and from there one by one to the front. */
static void rows_to_host(linnet_session *s, const lnt_tensor *x, int64_t row, int64_t n, float *to)
{
    const size_t count = (size_t)(n * x->cols), size = lnt_dtype_size(x->dtype);
    char *raw = (char *)to + count * (sizeof *to - size);
    lnt_to_host(s->c, raw, row_of(x, row), count * size);
    if (x->dtype == LINNET_F32) return;
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, raw + i * size, size);
        const uint32_t bits = (uint32_t)half << 16;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

/* What is looked at, and hidden results, of a call's ids first .. first+n-1, whose rows are `row` and those behind it. */
static linnet_status give(linnet_session *s, const linnet_session_call *k, const lnt_plan *plan, int64_t row, int64_t first, int64_t n)
{
    if (s->seen) LNT_TRY(s->seen(s->seen_user, k, plan, row, first, n));
    if (k->hidden) {
        const int64_t layers = s->m->config->num_hidden_layers, width = s->m->config->hidden_size;
        const lnt_tensor x = lnt_plan_output(plan, k->layer == layers ? s->m->hidden : s->m->layers[k->layer]);
        rows_to_host(s, &x, row, n, k->hidden + first * width);
    }
    return LINNET_OK;
}

/* Where the logits behind id i of a call go. */
static lnt_session_row place(const linnet_session *s, const linnet_session_call *k, int64_t i)
{
    return (lnt_session_row){k->logits + (k->wants == LINNET_LOGITS_ALL ? i * s->m->config->vocab_size : 0), k->on_device & LINNET_ON_DEVICE_LOGITS};
}

/* The same of a piece, and the logits that are wanted of it. */
static linnet_status give_piece(linnet_session *s, const linnet_session_call *k, const lnt_plan *plan, int64_t first, int64_t n)
{
    lnt_session_row to[HEAD_ROWS];
    LNT_TRY(give(s, k, plan, 0, first, n));
    const int64_t wanted = k->wants == LINNET_LOGITS_ALL ? n : k->wants == LINNET_LOGITS_LAST && first + n == k->n_ids;
    for (int64_t i = n - wanted, m; i < n; i += m) {
        for (m = 0; m < HEAD_ROWS && i + m < n; m++) to[m] = place(s, k, first + i + m);
        LNT_TRY(want_logits(s, plan, i, to, m));
    }
    return LINNET_OK;
}

/* The same of a step, whose rows are those of the calls in the order of their slots. */
static linnet_status give_step(linnet_session *s, const lnt_plan *plan, int64_t n)
{
    lnt_session_row to[HEAD_ROWS];
    for (int64_t i = 0, m = 0; i < n; i++) {
        const linnet_session_call *k = s->call[s->step_slots[i]];
        LNT_TRY(give(s, k, plan, i, k->n_ids - 1, 1));
        const bool wanted = k->wants != LINNET_LOGITS_NONE;
        if (wanted) to[m++] = place(s, k, k->n_ids - 1);
        if (!m || (wanted && m < HEAD_ROWS && i + 1 < n)) continue;
        LNT_TRY(want_logits(s, plan, i + wanted - m, to, m));
        m = 0;
    }
    return LINNET_OK;
}

/* ---- a run ----------------------------------------------------------------------------------------------------------------------------- */

static bool ids_there(const linnet_session_call *k) { return k->on_device & LINNET_ON_DEVICE_IDS; }

/* The result of a layer is wanted, which is not kept otherwise. */
static bool wants_layers(const linnet_session *s, const linnet_session_call *k)
{
    return k->hidden && k->layer < s->m->config->num_hidden_layers;
}

/* All pieces of a call but a last one of one id, which waits for the other steps. Pieces end at multiples of the chunk. */
static linnet_status feed(linnet_session *s, const linnet_session_call *k, int64_t *fed)
{
    lnt_plan *plan;
    for (int64_t n; *fed < k->n_ids; *fed += n) {
        const int64_t room = s->o.chunk - lnt_session_tokens(k->state) % s->o.chunk, rest = k->n_ids - *fed;
        n = rest < room ? rest : room;
        if (k->steps && n > lnt_alone_tokens(s->c)) n = lnt_alone_tokens(s->c);
        if (n == 1 && rest == 1) return LINNET_OK;
        LNT_TRY(lnt_session_piece(s, k->state, k->ids + *fed, n, k->steps, wants_layers(s, k), &plan));
        LNT_TRY(give_piece(s, k, plan, *fed, n));
    }
    return LINNET_OK;
}

/* The ids of a step to where its plan reads them, some of which are on the device. Those that go side by side are one copy. */
static void bring_ids(linnet_session *s, int32_t *to, int64_t n)
{
    for (int64_t i = 0, m; i < n; i += m) {
        const linnet_session_call *k = s->call[s->step_slots[i]];
        const bool there = ids_there(k);
        for (m = 1; i + m < n; m++) {
            const linnet_session_call *next = s->call[s->step_slots[i + m]];
            if (ids_there(next) != there || (there && next->ids != k->ids + m)) break;
        }
        (there ? lnt_device_copy : lnt_to_device)(s->c, to + i, there ? k->ids : s->step_ids + i, (size_t)m * sizeof *to);
    }
}

/* The last ids of the calls in s->call, in the order of their slots. */
static linnet_status step_together(linnet_session *s)
{
    lnt_plan *plan;
    int64_t n = 0;
    bool layers = false, there = false;
    for (int64_t i = 0; i < s->o.slots; i++) {
        if (!s->call[i]) continue;
        s->step_slots[n] = i;
        there |= ids_there(s->call[i]);
        s->step_ids[n++] = ids_there(s->call[i]) ? 0 : s->call[i]->ids[s->call[i]->n_ids - 1];
        layers |= wants_layers(s, s->call[i]);
    }
    if (!n) return LINNET_OK;
    LNT_TRY(plan_for(s, true, layers, &plan));
    if (there) bring_ids(s, lnt_plan_input(plan, s->m->ids), n);
    LNT_TRY(run(s, plan, there ? NULL : s->step_ids, n, s->step_slots, n));
    for (int64_t i = 0; i < n; i++) lnt_session_state_fed(s->call[s->step_slots[i]]->state, &s->step_ids[i], 1, true);
    return give_step(s, plan, n);
}

static const linnet_session_call *call_at(const linnet_session_call *calls, int64_t i)
{
    return (const linnet_session_call *)((const char *)calls + (size_t)i * calls->size);
}

/* Ids on a GPU cannot be looked at without waiting for them. */
static linnet_status check_ids(const linnet_session *s, const linnet_session_call *k)
{
    if (!ids_there(k)) return lnt_check_ids(s->c, s->m, k->ids, k->n_ids);
    if (k->n_ids != 1) return lnt_fail(s->c, LINNET_EINVAL, "%lld ids on the device, expected one", (long long)k->n_ids);
    if (s->snapshots) {
        lnt_fail(s->c, LINNET_EINVAL, "an id on the device for a session with a rollback, which remembers ids");
        return lnt_hint(s->c, "Make the session without, or give the id from the host.");
    }
    return lnt_on_cuda(s->c) ? LINNET_OK : lnt_check_ids(s->c, s->m, k->ids, 1);
}

static linnet_status check_call(linnet_session *s, const linnet_session_call *k)
{
    lnt_ctx *c = s->c;
    const int64_t tokens = k->state && k->state->s == s ? lnt_session_tokens(k->state) : 0;
    LNT_TRY(lnt_need(c, k->state, "the state of a call"));
    if (k->state->s != s) return lnt_fail(c, LINNET_EINVAL, "a state of another session");
    LNT_TRY(lnt_session_state_check(k->state));
    if (s->call[k->state->slot]) return lnt_fail(c, LINNET_EINVAL, "the state of slot %lld is in two calls", (long long)k->state->slot);
    if (k->n_ids) LNT_TRY(lnt_need(c, k->ids, "the array of ids"));
    LNT_TRY(check_ids(s, k));
    if (s->o.capacity && k->n_ids > s->o.capacity - tokens) {
        lnt_fail(c, LINNET_EINVAL, "%lld token%s for a state with %lld, which has room for %lld", (long long)k->n_ids,
                 k->n_ids == 1 ? "" : "s", (long long)tokens, (long long)s->o.capacity);
        return lnt_hint(c, "A session with a larger capacity keeps longer texts.");
    }
    if (k->wants != LINNET_LOGITS_NONE && k->n_ids) LNT_TRY(lnt_need(c, k->logits, "the array of logits"));
    if (k->wants == LINNET_LOGITS_LAST && !k->n_ids) return lnt_fail(c, LINNET_EINVAL, "logits of the last of no ids");
    if (k->hidden && k->layer > s->m->config->num_hidden_layers)
        return lnt_fail(c, LINNET_EINVAL, "layer is %d, expected 0 to %lld", k->layer, (long long)s->m->config->num_hidden_layers);
    return LINNET_OK;
}

/* Every call against all that can be known ahead; s->call then has those that are there. */
static linnet_status check_calls(linnet_session *s, const linnet_session_call *calls, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        linnet_session_call k = LINNET_SESSION_CALL_INIT;
        if (call_at(calls, i)->size != calls->size)
            return lnt_fail(s->c, LINNET_EINVAL, "call %lld says it has %zu bytes, the first %zu", (long long)i, call_at(calls, i)->size,
                            calls->size);
        LNT_TRY(lnt_options_take(s->c, "session_call", call_at(calls, i), &k));
        if (calls->size < sizeof k) return lnt_fail(s->c, LINNET_EINVAL, "a call of %zu bytes, expected %zu", calls->size, sizeof k);
        LNT_TRY(check_call(s, &k));
        s->call[k.state->slot] = call_at(calls, i);
    }
    return LINNET_OK;
}

static linnet_status run_calls(linnet_session *s, const linnet_session_call *calls, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const linnet_session_call *k = call_at(calls, i);
        int64_t fed = 0;
        LNT_TRY(feed(s, k, &fed));
        if (fed == k->n_ids) s->call[k->state->slot] = NULL;
    }
    LNT_TRY(step_together(s));
    return flush_logits(s);
}

linnet_status linnet_session_run(linnet_session *s, const linnet_session_call *calls, int64_t n)
{
    LNT_TRY(lnt_session_check(s));
    if (n < 0 || n > s->o.slots) return lnt_fail(s->c, LINNET_EINVAL, "%lld calls for %lld slots", (long long)n, (long long)s->o.slots);
    if (n) LNT_TRY(lnt_need(s->c, calls, "the array of calls"));
    memset(s->call, 0, (size_t)s->o.slots * sizeof *s->call);
    if (n && calls->size % _Alignof(linnet_session_call))
        return lnt_fail(s->c, LINNET_EINVAL, "a structure of a call that says it has %zu bytes", calls->size);
    LNT_TRY(check_calls(s, calls, n));
    for (int64_t i = 0; i < n; i++) call_at(calls, i)->state->lost = true;
    s->waiting = 0;
    LNT_TRY(run_calls(s, calls, n));
    for (int64_t i = 0; i < n; i++) call_at(calls, i)->state->lost = false;
    return LINNET_OK;
}

/* Continuous batching. Places 0 .. writing-1 hold the texts that are being written, side by side, because states that a step takes from slots side by
 * side need not be copied; texts whose prompt is being read stand in the other places. There is a place more than texts, so that one can always step
 * aside. */
#include "serve/scheduler.h"

#include <string.h>

#include "core/clock.h"
#include "core/threads.h"
#include "device/device.h"
#include "generate/greedy.h"
#include "generate/sample.h"
#include "generate/session.h"
#include "generate/stop.h"
#include "model/model.h"
#include "serve/prefix_cache.h"
#include "serve/prompt_scores.h"
#include "serve/queue.h"

enum { MOST_CACHED = 4096 };

/* A text that has a place; of a prompt that is being read the first choice, which stands for the others. */
typedef struct {
    lnt_request *r; /* held */
    int prompt, choice;
    lnt_written *w;
    int64_t fed;    /* tokens of the prompt */
    int64_t turn;   /* when a piece was read last */
    double since;
    int32_t now;    /* the token told last; -1: there was none to draw */
    int64_t row, later; /* its rows of the step under way and of the one put behind that; -1: it is not in it */
    double logprob;
    int32_t *top;   /* [alternatives] */
    double *top_logprob;
    lnt_sampler *sampler;
    lnt_stopper stopper;
    lnt_view *view; /* where a look into the state is wanted */
} text;

struct lnt_scheduler {
    lnt_ctx *c;
    linnet_model *m;
    const linnet_tokenizer *t;
    lnt_scheduler_options o;
    lnt_metrics *metrics;
    linnet_session *session;
    lnt_prefix_cache *cache;
    lnt_views views;
    text *reading;         /* whose prompt's piece runs */
    int64_t V, known;      /* ids of the model, and of the tokenizer */
    int64_t state_bytes;

    linnet_state **state;  /* [slots + 1], by place */
    text **at;             /* [slots + 1] */
    int64_t writing;       /* texts at the front */
    int64_t taken;         /* texts, with the choices that wait for their prompt */
    int64_t clock;
    linnet_session_call *calls; /* [slots] */
    float *logits;         /* device, [slots, V] */
    float *rows;           /* the same on the host, where that is another memory */
    float *row;            /* host, [V], behind a prompt */
    lnt_prompt_scores scores;
    bool chooses;          /* the device: on a GPU, or ahead of the host */
    lnt_greedy greedy;     /* then */
    int32_t *next;         /* device, [slots] what the step put last chose */
    bool under_way;        /* a step whose tokens are not told yet */

    lnt_queue queue;
};

/* ---- making one ------------------------------------------------------------------------------------------------------------------------- */

static linnet_status open_session(lnt_scheduler *s)
{
    linnet_session_options o = LINNET_SESSION_OPTIONS_INIT;
    linnet_session_info info = {.size = sizeof info};
    const int64_t positions = s->m->config->max_position_embeddings;
    lnt_state *probe;
    LNT_TRY(lnt_state_create(s->c, s->m->p, s->m->dtype, 0, 1, &probe));
    if (lnt_state_limited(probe) && positions > 0 && s->o.context > positions) s->o.context = positions;
    lnt_state_destroy(probe);
    const size_t bytes = lnt_state_bytes(s->m->p, s->m->dtype, s->o.context);
    int64_t cached = bytes ? s->o.cache_bytes / (int64_t)bytes : 0;
    if (cached > MOST_CACHED) cached = MOST_CACHED;
    o.chunk = s->o.chunk;
    o.capacity = s->o.context;
    o.slots = s->o.slots + 1 + cached;
    LNT_TRY(linnet_session_create(s->c, s->m, &o, &s->session));
    LNT_TRY(linnet_session_get_info(s->session, &info));
    s->state_bytes = info.state_bytes;
    LNT_TRY(lnt_prefix_cache_create(s->c, s->session, cached, s->o.chunk, &s->cache));
    LNT_TRY(lnt_views_open(s->c, s->session, &s->views));
    for (int64_t i = 0; i <= s->o.slots; i++) LNT_TRY(linnet_state_create(s->session, &s->state[i]));
    return LINNET_OK;
}

static linnet_status open_all(lnt_scheduler *s)
{
    const size_t places = lnt_bytes_plus((size_t)s->o.slots, 1), row = lnt_bytes((size_t)s->V, sizeof(float));
    const size_t rows = lnt_bytes((size_t)s->o.slots, row);
    s->state = lnt_calloc(lnt_bytes(places, sizeof *s->state));
    s->at = lnt_calloc(lnt_bytes(places, sizeof *s->at));
    s->calls = lnt_calloc(lnt_bytes(places, sizeof *s->calls));
    s->row = lnt_device_of(s->c)->alloc_shared(lnt_device_of(s->c), row);
    if (!s->state || !s->at || !s->calls || !s->row) return lnt_fail_memory(s->c, lnt_bytes_plus(lnt_bytes(places, sizeof *s->calls), row));
    LNT_TRY(open_session(s));
    LNT_TRY(lnt_device_alloc(s->c, rows, (void **)&s->logits));
    s->chooses = lnt_on_cuda(s->c) || s->o.ahead;
    if (lnt_on_cuda(s->c) && !(s->rows = lnt_device_of(s->c)->alloc_shared(lnt_device_of(s->c), rows))) return lnt_fail_memory(s->c, rows);
    if (!s->chooses) return LINNET_OK;
    LNT_TRY(lnt_device_alloc(s->c, lnt_bytes((size_t)s->o.slots, sizeof *s->next), (void **)&s->next));
    LNT_TRY(lnt_greedy_over(s->c, s->logits, s->o.slots, s->V, s->known, s->next, &s->greedy));
    return lnt_greedy_by_chance(&s->greedy);
}

linnet_status lnt_scheduler_create(lnt_ctx *c, linnet_model *m, const linnet_tokenizer *t, const lnt_scheduler_options *o, lnt_metrics *metrics,
                                   lnt_scheduler **out)
{
    lnt_scheduler *s = *out = lnt_calloc(sizeof *s);
    if (!s) return lnt_fail_memory(c, sizeof *s);
    s->c = c, s->m = m, s->t = t, s->o = *o, s->metrics = metrics;
    s->V = m->config->vocab_size;
    s->known = linnet_tokenizer_vocabulary(t);
    lnt_queue_open(&s->queue, o->waiting);
    linnet_status status = LINNET_OK;
    if (s->known > s->V)
        status = lnt_fail(c, LINNET_EINVAL, "the tokenizer has %lld ids, but the model knows %lld", (long long)s->known, (long long)s->V);
    if (status == LINNET_OK) status = open_all(s);
    if (status != LINNET_OK) {
        lnt_scheduler_destroy(s);
        *out = NULL;
        return status;
    }
    lnt_gauge(&metrics->slots, s->o.slots);
    return LINNET_OK;
}

void lnt_scheduler_destroy(lnt_scheduler *s)
{
    if (!s) return;
    lnt_scheduler_close(s);
    if (s->session) lnt_scheduler_abandon(s);
    lnt_greedy_close(&s->greedy);
    lnt_prefix_cache_destroy(s->cache);
    linnet_session_destroy(s->session);
    lnt_views_close(&s->views);
    lnt_device_free(s->c, s->logits);
    lnt_device_free(s->c, s->next);
    if (s->rows) lnt_device_of(s->c)->free_shared(lnt_device_of(s->c), s->rows);
    if (s->row) lnt_device_of(s->c)->free_shared(lnt_device_of(s->c), s->row);
    lnt_prompt_scores_free(&s->scores);
    lnt_free(s->calls);
    lnt_free(s->state);
    lnt_free(s->at);
    lnt_queue_free(&s->queue);
    lnt_free(s);
}

int64_t lnt_scheduler_context(const lnt_scheduler *s) { return s->o.context; }
int64_t lnt_scheduler_slots(const lnt_scheduler *s) { return s->o.slots; }
const lnt_views *lnt_scheduler_views(const lnt_scheduler *s) { return &s->views; }

/* ---- the queue -------------------------------------------------------------------------------------------------------------------------- */

linnet_status lnt_scheduler_put(lnt_scheduler *s, lnt_ctx *c, lnt_request *r) { return lnt_queue_put(&s->queue, c, r); }
void lnt_scheduler_nudge(lnt_scheduler *s) { lnt_queue_nudge(&s->queue); }
void lnt_scheduler_close(lnt_scheduler *s) { lnt_queue_close(&s->queue); }
void lnt_scheduler_wait(lnt_scheduler *s, double seconds) { lnt_queue_wait(&s->queue, seconds); }

static void sweep_queue(lnt_scheduler *s, bool all) { lnt_gauge(&s->metrics->waiting, lnt_queue_sweep(&s->queue, s->c, all)); }

/* ---- places ----------------------------------------------------------------------------------------------------------------------------- */

static void free_text(text *t)
{
    if (!t) return;
    lnt_sampler_destroy(t->sampler);
    lnt_stopper_close(&t->stopper);
    lnt_view_destroy(t->view);
    lnt_free(t->top);
    lnt_free(t->top_logprob);
    lnt_request_release(t->r);
    lnt_free(t);
}

static linnet_status make_text(lnt_scheduler *s, lnt_request *r, int prompt, int choice, text **out)
{
    linnet_generate_options o = r->o;
    const size_t n = (size_t)o.alternatives;
    text *t = *out = lnt_calloc(sizeof *t);
    if (!t) return lnt_fail_memory(s->c, sizeof *t);
    lnt_request_hold(r);
    *t = (text){.r = r, .prompt = prompt, .choice = choice, .w = &r->written[prompt * r->n + choice], .row = -1, .later = -1,
                .stopper = {.stop = o.stop, .n = o.n_stop}};
    o.seed += (uint64_t)choice;
    linnet_status status = lnt_sampler_create(s->c, s->known, &o, &t->sampler);
    if (status == LINNET_OK && r->viewed) status = lnt_view_create(s->c, &s->views, r->recall, r->prompts[prompt].n, &t->view);
    t->top = lnt_alloc(lnt_bytes(n, sizeof *t->top));
    t->top_logprob = lnt_alloc(lnt_bytes(n, sizeof *t->top_logprob));
    if (status == LINNET_OK && (!t->top || !t->top_logprob)) status = lnt_fail_memory(s->c, lnt_bytes(n, sizeof *t->top_logprob));
    if (status == LINNET_OK) {
        lnt_sampler_saw(t->sampler, r->prompts[prompt].ids, r->prompts[prompt].n);
        return LINNET_OK;
    }
    free_text(t);
    *out = NULL;
    return status;
}

static int64_t free_place(const lnt_scheduler *s, int64_t but)
{
    int64_t i = s->o.slots;
    while (i >= 0 && (s->at[i] || i == but)) i--;
    return i;
}

static linnet_status move(lnt_scheduler *s, int64_t from, int64_t to)
{
    LNT_TRY(linnet_state_copy(s->state[from], s->state[to]));
    s->at[to] = s->at[from];
    s->at[from] = NULL;
    return LINNET_OK;
}

/* The place behind the texts that are written becomes free; `keep` is a place whose state is still needed. */
static linnet_status clear_front(lnt_scheduler *s, int64_t keep)
{
    return s->at[s->writing] ? move(s, s->writing, free_place(s, keep)) : LINNET_OK;
}

/* A text is over, or not wanted any more: the last one that is written takes its place. */
static void leave_front(lnt_scheduler *s, int64_t i)
{
    const int64_t last = --s->writing;
    free_text(s->at[i]);
    s->at[i] = NULL;
    s->taken--;
    if (i == last) return;
    text *t = s->at[last];
    const linnet_status status = move(s, last, i);
    if (status == LINNET_OK) return;
    lnt_request_fail(t->r, s->c, status); /* its state was lost */
    s->at[i] = t;
    s->at[last] = NULL;
}

/* ---- what a text gets ------------------------------------------------------------------------------------------------------------------- */

/* From the logits behind it, on the host; `chosen`: by the device, before, or -2. */
static void draw(const lnt_scheduler *s, text *t, const float *row, int32_t chosen)
{
    t->now = chosen != -2 ? chosen : lnt_sampler_draw(t->sampler, row);
    if (!t->r->scored || t->now < 0) return;
    t->logprob = lnt_log_probability(row, s->V, t->now);
    lnt_most_probable(row, s->V, t->r->o.alternatives, t->top, t->top_logprob);
}

static bool ends(const lnt_request *r, int32_t id)
{
    for (int i = 0; i < r->n_end_ids; i++)
        if (r->end_ids[i] == id) return true;
    return false;
}

static linnet_status add_drawn(lnt_scheduler *s, text *t)
{
    const linnet_generate_options *o = &t->r->o;
    lnt_written *w = t->w;
    bool found = false, good = true;
    size_t bytes = 0;
    const char *piece;
    w->drawn++;
    if (t->r->scored) good = lnt_written_said(w, t->now, t->logprob, o->alternatives, t->top, t->top_logprob);
    int32_t ended = w->drawn >= o->max_tokens ? LINNET_ENDED_LENGTH : LNT_GOES_ON;
    if (ends(t->r, t->now)) ended = LINNET_ENDED_SEPARATOR;
    else {
        piece = linnet_tokenizer_piece(s->t, t->now, &bytes);
        if (o->n_stop) LNT_TRY(lnt_stopper_put(s->c, &t->stopper, piece, bytes, &piece, &bytes, &found));
        good = good && lnt_written_bytes(w, piece, bytes);
        if (found) ended = LINNET_ENDED_STOP;
    }
    if (ended != LNT_GOES_ON && ended != LINNET_ENDED_STOP && o->n_stop) {
        piece = lnt_stopper_rest(&t->stopper, &bytes);
        good = good && lnt_written_bytes(w, piece, bytes);
    }
    if (!good) return lnt_fail_memory(s->c, bytes);
    w->ended = ended;
    t->r->ended += ended != LNT_GOES_ON;
    return LINNET_OK;
}

/* What was drawn belongs to the text; false: the text is over. */
static bool tell(lnt_scheduler *s, text *t)
{
    linnet_status status = t->now < 0 ? lnt_fail_logits(s->c, t->w->drawn) : LINNET_OK;
    lnt_count(&s->metrics->tokens, 1);
    pthread_mutex_lock(&t->r->lock);
    if (status == LINNET_OK) status = add_drawn(s, t);
    const bool goes_on = status == LINNET_OK && t->w->ended == LNT_GOES_ON;
    if (status == LINNET_OK) lnt_request_tell(t->r);
    pthread_mutex_unlock(&t->r->lock);
    if (status != LINNET_OK) lnt_request_fail(t->r, s->c, status);
    return goes_on;
}

/* ---- a look into states ------------------------------------------------------------------------------------------------------------------ */

/* A run that is looked at has gone over ids of a call: of a step, whose calls stand by place, or of the piece that is being read. */
static linnet_status seen(void *user, const linnet_session_call *k, const lnt_plan *plan, int64_t row, int64_t first, int64_t n)
{
    const lnt_scheduler *s = user;
    const text *t = s->reading ? s->reading : s->at[k - s->calls];
    return t->view ? lnt_view_see(s->c, t->view, plan, k->ids + first, row, n) : LINNET_OK;
}

/* A run, looked at where a text wants that. */
static linnet_status run_calls(lnt_scheduler *s, const linnet_session_call *calls, int64_t n, bool looked_at)
{
    if (looked_at) lnt_session_look(s->session, s->views.looked, s->views.n_looked, seen, s);
    const linnet_status status = linnet_session_run(s->session, calls, n);
    lnt_session_look(s->session, NULL, 0, NULL, NULL);
    return status;
}

/* What a run has left in the state of a text goes to its request. */
static linnet_status show(lnt_scheduler *s, text *t, const linnet_state *state)
{
    if (!t->view) return LINNET_OK;
    LNT_TRY(lnt_view_norms(s->c, t->view, state));
    pthread_mutex_lock(&t->r->lock);
    const bool good = lnt_view_tell(t->view, &t->w->viewed);
    lnt_request_tell(t->r);
    pthread_mutex_unlock(&t->r->lock);
    return good ? LINNET_OK : lnt_fail_memory(s->c, lnt_bytes((size_t)s->views.heads, sizeof(float)));
}

/* ---- prompts ---------------------------------------------------------------------------------------------------------------------------- */

/* All texts of a prompt are over with no token. */
static void end_empty(lnt_request *r, int prompt)
{
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->n; i++) r->written[prompt * r->n + i].ended = LINNET_ENDED_LENGTH;
    r->ended += r->n;
    lnt_request_tell(r);
    pthread_mutex_unlock(&r->lock);
}

/* The state at a place becomes that of the longest beginning known, or an empty one. */
static linnet_status begin_state(lnt_scheduler *s, int64_t place, text *t)
{
    lnt_prompt *p = &t->r->prompts[t->prompt];
    if (!t->r->score_prompt && !t->view) {
        LNT_TRY(lnt_prefix_cache_find(s->cache, p->ids, p->n, s->state[place], &t->fed));
        lnt_count(&s->metrics->cache_asked, 1);
        lnt_count(&s->metrics->cache_hits, t->fed > 0);
        lnt_count(&s->metrics->cached_tokens, t->fed);
        p->cached = t->fed;
    }
    if (t->fed) return LINNET_OK;
    linnet_state_destroy(s->state[place]);
    s->state[place] = NULL;
    return linnet_state_create(s->session, &s->state[place]); /* in the slot that became free: states of places have the first ones */
}

static void begin(lnt_scheduler *s, const lnt_waiting *w)
{
    text *t = NULL;
    const int64_t place = free_place(s, -1);
    lnt_count(&s->metrics->prompt_tokens, w->r->prompts[w->prompt].n);
    if (!w->r->o.max_tokens && !w->r->score_prompt && !w->r->viewed) {
        end_empty(w->r, w->prompt);
        return;
    }
    linnet_status status = make_text(s, w->r, w->prompt, 0, &t);
    if (status == LINNET_OK) status = begin_state(s, place, t);
    if (status != LINNET_OK) {
        lnt_request_fail(w->r, s->c, status);
        free_text(t);
        return;
    }
    t->since = w->since;
    t->turn = ++s->clock;
    s->at[place] = t;
    s->taken += w->r->n;
}

static void admit(lnt_scheduler *s)
{
    for (lnt_waiting *w; (w = lnt_queue_take(&s->queue, s->o.slots - s->taken));) {
        if (lnt_request_wanted(w->r, s->c)) begin(s, w);
        lnt_queue_drop(w);
    }
}

/* A prompt is read: its texts begin, each with a state of its own. `row`: the logits behind it. */
static linnet_status begin_texts(lnt_scheduler *s, int64_t place, const float *row)
{
    text *lead = s->at[place], *t;
    lnt_request *r = lead->r;
    const int prompt = lead->prompt;
    int64_t first = -1;
    linnet_status status = LINNET_OK;
    lnt_count(&s->metrics->first_microseconds, (int64_t)(1e6 * (lnt_now() - lead->since)));
    lnt_count(&s->metrics->firsts, 1);
    s->at[place] = NULL;
    s->taken -= r->n;
    lnt_request_hold(r);
    for (int i = 0; i < r->n && status == LINNET_OK; i++) {
        t = i ? NULL : lead;
        if (i) status = make_text(s, r, prompt, i, &t);
        if (status != LINNET_OK) break;
        draw(s, t, row, -2);
        if (!tell(s, t)) {
            free_text(t);
            continue;
        }
        status = clear_front(s, first < 0 ? place : -1);
        const int64_t from = first < 0 ? place : first;
        if (status == LINNET_OK && from != s->writing) status = linnet_state_copy(s->state[from], s->state[s->writing]);
        if (status != LINNET_OK) {
            free_text(t);
            break;
        }
        if (first < 0) first = s->writing;
        s->at[s->writing++] = t;
        s->taken++;
    }
    if (status != LINNET_OK) lnt_request_fail(r, s->c, status);
    lnt_request_release(r);
    return LINNET_OK;
}

/* One piece of the prompt of the text at a place. */
static linnet_status read_piece(lnt_scheduler *s, int64_t place)
{
    text *t = s->at[place];
    lnt_prompt *p = &t->r->prompts[t->prompt];
    const int64_t room = s->o.chunk - t->fed % s->o.chunk, rest = p->n - t->fed, n = rest < room ? rest : room, at = t->fed;
    const bool scored = t->r->score_prompt, last = n == rest;
    linnet_session_call k = LINNET_SESSION_CALL_INIT;
    if (scored) LNT_TRY(lnt_prompt_scores_room(s->c, &s->scores, s->o.chunk, s->V, t->r->o.alternatives));
    k.state = s->state[place];
    k.ids = p->ids + at;
    k.n_ids = n;
    k.wants = scored ? LINNET_LOGITS_ALL : last ? LINNET_LOGITS_LAST : LINNET_LOGITS_NONE;
    k.logits = scored ? s->scores.logits : s->row;
    s->reading = t;
    const linnet_status status = run_calls(s, &k, 1, t->view);
    s->reading = NULL;
    LNT_TRY(status);
    LNT_TRY(show(s, t, s->state[place]));
    t->fed += n;
    t->turn = ++s->clock;
    if (t->fed % s->o.chunk == 0) LNT_TRY(lnt_prefix_cache_put(s->cache, p->ids, t->fed, s->state[place]));
    lnt_gauge(&s->metrics->cache_states, lnt_prefix_cache_states(s->cache));
    lnt_gauge(&s->metrics->cache_bytes, lnt_prefix_cache_states(s->cache) * s->state_bytes);
    if (scored) LNT_TRY(lnt_prompt_scores_tell(s->c, &s->scores, s->V, t->r, t->prompt, at, n, t->top, t->top_logprob));
    if (!last) return LINNET_OK;
    if (t->r->o.max_tokens) return begin_texts(s, place, scored ? s->scores.logits + (n - 1) * s->V : s->row);
    end_empty(t->r, t->prompt);
    s->taken -= t->r->n;
    s->at[place] = NULL;
    free_text(t);
    return LINNET_OK;
}

static void drop_reader(lnt_scheduler *s, int64_t place)
{
    s->taken -= s->at[place]->r->n;
    free_text(s->at[place]);
    s->at[place] = NULL;
}

/* Of the prompts, the one that has waited longest for its turn; false: there is none. */
static bool read_one(lnt_scheduler *s)
{
    int64_t turn = -1;
    for (int64_t i = s->writing; i <= s->o.slots; i++)
        if (s->at[i] && (turn < 0 || s->at[i]->turn < s->at[turn]->turn)) turn = i;
    if (turn < 0) return false;
    const linnet_status status = read_piece(s, turn);
    if (status != LINNET_OK) {
        lnt_request_fail(s->at[turn]->r, s->c, status);
        drop_reader(s, turn);
    }
    return true;
}

/* ---- a step ----------------------------------------------------------------------------------------------------------------------------- */

/* Its tokens can be chosen on the device, from its logits alone. */
static bool plain(const text *t)
{
    const linnet_generate_options *o = &t->r->o;
    const bool cut = o->temperature != 0 && (o->top_k > 0 || o->top_p < 1 || o->min_p > 0);
    return !cut && o->repetition_penalty == 1 && !t->r->scored;
}

/* Behind a step, the device chooses the token of each text that is plain. */
static linnet_status choose(lnt_scheduler *s)
{
    s->greedy.rows = s->writing;
    for (int64_t i = 0; i < s->writing; i++) s->greedy.chance[i] = plain(s->at[i]) ? lnt_sampler_chance(s->at[i]->sampler) : (lnt_chance){0};
    return lnt_greedy_put(&s->greedy);
}

/* Logits of the texts that are not plain to the host. Those that go side by side are one copy. */
static void bring_rows(lnt_scheduler *s)
{
    for (int64_t i = 0, n; i < s->writing; i += n) {
        for (n = 0; i + n < s->writing && !plain(s->at[i + n]);) n++;
        lnt_to_host(s->c, s->rows + i * s->V, s->logits + i * s->V, (size_t)(n * s->V) * sizeof *s->rows);
        n += !n;
    }
}

/* The next token of each text, from the logits of the step. */
static linnet_status draw_all(lnt_scheduler *s)
{
    const int64_t n = s->writing;
    const float *rows = s->rows ? s->rows : s->logits;
    const int32_t *chosen = NULL;
    if (s->chooses) { /* what is plain needs no logits here */
        LNT_TRY(choose(s));
        if (s->rows) bring_rows(s);
        chosen = lnt_greedy_take(&s->greedy);
        LNT_TRY(lnt_device_check(s->c));
    }
    int64_t here = n; /* whose logits are looked through here */
    for (int64_t i = 0; i < n; i++) here -= chosen && plain(s->at[i]);
    lnt_threads_for(s->c, 20.0 * (double)here * (double)s->V, 0);
#pragma omp parallel for schedule(dynamic, 1) num_threads(lnt_threads(s->c))
    for (int64_t i = 0; i < n; i++) draw(s, s->at[i], rows + i * s->V, chosen && plain(s->at[i]) ? chosen[i] : -2);
    return LINNET_OK;
}

/* Every text by the token that it was told last, or by that of the step under way, which is on the device alone. */
static linnet_status run_step(lnt_scheduler *s)
{
    bool looked_at = false;
    for (int64_t i = 0; i < s->writing; i++) {
        const text *t = s->at[i];
        linnet_session_call k = LINNET_SESSION_CALL_INIT;
        k.state = s->state[i];
        k.ids = t->row < 0 ? &t->now : s->next + t->row;
        k.n_ids = 1;
        k.wants = LINNET_LOGITS_LAST;
        k.logits = s->logits + i * s->V;
        k.on_device = LINNET_ON_DEVICE_LOGITS + (t->row < 0 ? 0 : LINNET_ON_DEVICE_IDS);
        s->calls[i] = k;
        looked_at |= t->view != NULL;
    }
    lnt_count(&s->metrics->steps, 1);
    return run_calls(s, s->calls, s->writing, looked_at);
}

/* A step with the host between its logits and its tokens. */
static void step_and_tell(lnt_scheduler *s)
{
    linnet_status status = run_step(s);
    if (status == LINNET_OK) status = draw_all(s);
    for (int64_t i = s->writing - 1; i >= 0; i--) { /* from behind: who takes a place has been told */
        const linnet_status mine = status == LINNET_OK ? show(s, s->at[i], s->state[i]) : status;
        if (mine != LINNET_OK) lnt_request_fail(s->at[i]->r, s->c, mine);
        if (mine != LINNET_OK || !tell(s, s->at[i])) leave_front(s, i);
    }
}

/* A step is put: the first, or one behind that which is under way. */
static linnet_status put_step(lnt_scheduler *s)
{
    LNT_TRY(run_step(s));
    LNT_TRY(choose(s));
    for (int64_t i = 0; i < s->writing; i++) *(s->under_way ? &s->at[i]->later : &s->at[i]->row) = i;
    return LINNET_OK;
}

/* The tokens of the step under way are told; from then on the one behind it is under way, if there is one. */
static void tell_step(lnt_scheduler *s, linnet_status status, bool behind)
{
    const int32_t *ids = s->under_way ? lnt_greedy_take(&s->greedy) : NULL;
    if (status == LINNET_OK) status = lnt_device_check(s->c);
    s->under_way = behind;
    if (!behind) s->greedy.taken = s->greedy.put; /* one that failed between the two is not waited for */
    for (int64_t i = s->writing - 1; i >= 0; i--) {
        text *t = s->at[i];
        const int64_t row = t->row;
        t->row = t->later;
        t->later = -1;
        if (status != LINNET_OK) lnt_request_fail(t->r, s->c, status);
        else if (row < 0) continue;
        else t->now = ids[row];
        if (status != LINNET_OK || !tell(s, t)) leave_front(s, i);
    }
}

/* A step is under way between two rounds, and the next one is put before the first one's tokens are told. A text that has ended by its token has read
 * that as well, and its state goes; whoever comes into its slot comes behind that in the device's order. */
static void step_ahead(lnt_scheduler *s)
{
    linnet_status status = LINNET_OK;
    bool behind = false;
    if (!s->under_way) {
        status = put_step(s);
        s->under_way = status == LINNET_OK;
    }
    for (int64_t i = 0; i < s->writing; i++) behind |= s->at[i]->w->drawn + (s->at[i]->row >= 0) < s->at[i]->r->o.max_tokens;
    behind = behind && status == LINNET_OK;
    if (behind) status = put_step(s);
    lnt_count(&s->metrics->ahead, behind);
    tell_step(s, status, behind && status == LINNET_OK);
}

static bool step(lnt_scheduler *s)
{
    bool ahead = s->o.ahead;
    for (int64_t i = 0; i < s->writing; i++) ahead = ahead && plain(s->at[i]) && !s->at[i]->view;
    if (s->under_way && (!ahead || !s->writing)) tell_step(s, LINNET_OK, false);
    if (!s->writing) return false;
    if (ahead) step_ahead(s);
    else step_and_tell(s);
    return true;
}

/* ---- rounds ----------------------------------------------------------------------------------------------------------------------------- */

static void sweep_places(lnt_scheduler *s)
{
    for (int64_t i = s->o.slots; i >= 0; i--) {
        if (!s->at[i]) continue;
        if (lnt_request_wanted(s->at[i]->r, s->c)) continue;
        if (i < s->writing) leave_front(s, i);
        else drop_reader(s, i);
    }
}

bool lnt_scheduler_round(lnt_scheduler *s)
{
    sweep_queue(s, false);
    sweep_places(s);
    admit(s);
    lnt_gauge(&s->metrics->writing, s->taken);
    const bool read = read_one(s), stepped = step(s);
    lnt_gauge(&s->metrics->writing, s->taken);
    return read || stepped;
}

void lnt_scheduler_abandon(lnt_scheduler *s)
{
    sweep_queue(s, true);
    for (int64_t i = 0; i <= s->o.slots; i++)
        if (s->at[i]) lnt_request_fail(s->at[i]->r, s->c, lnt_fail(s->c, LINNET_EINTERRUPTED, "the server stops"));
    sweep_places(s);
}

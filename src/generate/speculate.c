/* One round: the draft goes on from the last token by up to `guesses` of its own draws; the model reads them all as steps, which gives the logits
 * that it has when it reads them one by one; from these its own tokens are drawn, until one is not what was guessed. The draft draws with the numbers
 * that the model will draw with, so that models that agree guess right at any temperature.
 *
 * Behind a wrong guess both states have read too much: they go back to copies from before the round, and read what became of it. */
#include "generate/speculate.h"

#include <string.h>

#include "core/memory.h"
#include "model/model.h"

enum { READER, KEPT, STATES, LONGEST = 512 }; /* pieces as linnet_generate's */

typedef struct {
    linnet_session *session;
    linnet_state *state[STATES];
} reader;

struct lnt_speculation {
    lnt_ctx *c;
    int64_t V, guesses;
    int32_t last;            /* the token that neither has read */
    reader model, draft;
    lnt_sampler *guesser;
    int32_t *ids;            /* [1 + guesses] the last token, the guesses */
    int32_t *drawn;          /* [1 + guesses] of the last round, */
    int64_t n_drawn, taken;  /* so many, and those that were handed out */
    float *logits;           /* [1 + guesses][vocabulary of the larger] */
    int64_t guessed, kept;
};

static linnet_status read_ids(reader *r, const int32_t *ids, int64_t n, bool steps, int32_t wants, float *logits)
{
    linnet_session_call k = LINNET_SESSION_CALL_INIT;
    k.state = r->state[READER], k.ids = ids, k.n_ids = n, k.steps = steps, k.wants = wants, k.logits = logits;
    return linnet_session_run(r->session, &k, 1);
}

static linnet_status open_reader(lnt_ctx *c, linnet_model *m, const int32_t *ids, int64_t n, int64_t capacity, reader *r)
{
    linnet_session_options o = LINNET_SESSION_OPTIONS_INIT;
    double least, most;
    LNT_TRY(linnet_option_range("session", "capacity", &least, &most));
    o.slots = STATES, o.capacity = (double)capacity < most ? capacity : (int64_t)most, o.chunk = LONGEST;
    LNT_TRY(linnet_session_create(c, m, &o, &r->session));
    for (int i = 0; i < STATES; i++) LNT_TRY(linnet_state_create(r->session, &r->state[i]));
    return read_ids(r, ids, n, false, LINNET_LOGITS_NONE, NULL);
}

static linnet_status check(lnt_ctx *c, const linnet_generate_options *o, int64_t V)
{
    LNT_TRY(lnt_model_check_next(c, o->draft));
    if (o->check_finite) return lnt_fail(c, LINNET_EINVAL, "check_finite looks at one model: leave out the draft");
    if (o->draft->config->vocab_size >= V) return LINNET_OK;
    lnt_fail(c, LINNET_EINVAL, "the draft knows %lld ids, the tokenizer has %lld", (long long)o->draft->config->vocab_size, (long long)V);
    return lnt_hint(c, "A draft guesses with the same tokenizer.");
}

linnet_status lnt_speculation_open(lnt_ctx *c, linnet_model *m, const linnet_generate_options *o, int64_t V, const int32_t *ids, int64_t n,
                                   int64_t capacity, lnt_speculation **out)
{
    *out = NULL;
    LNT_TRY(check(c, o, V));
    lnt_speculation *s = lnt_calloc(sizeof *s);
    if (!s) return lnt_fail_memory(c, sizeof *s);
    *s = (lnt_speculation){.c = c, .V = V, .guesses = o->draft_tokens, .last = ids[n - 1]};
    const int64_t a = m->config->vocab_size, b = o->draft->config->vocab_size;
    const size_t rows = (size_t)o->draft_tokens + 1, room = lnt_bytes(lnt_bytes(rows, (size_t)(a > b ? a : b)), sizeof *s->logits);
    linnet_status status;
    s->ids = lnt_alloc(lnt_bytes(rows, sizeof *s->ids));
    s->drawn = lnt_alloc(lnt_bytes(rows, sizeof *s->drawn));
    s->logits = lnt_alloc(room);
    if (!s->ids || !s->drawn || !s->logits) {
        status = lnt_fail_memory(c, room);
        goto fail;
    }
    LNT_TRY_GOTO(status, lnt_sampler_create(c, V, o, &s->guesser), fail);
    LNT_TRY_GOTO(status, open_reader(c, m, ids, n - 1, capacity, &s->model), fail);
    LNT_TRY_GOTO(status, open_reader(c, o->draft, ids, n - 1, capacity, &s->draft), fail);
    *out = s;
    return LINNET_OK;
fail:
    lnt_speculation_close(s);
    return status;
}

void lnt_speculation_close(lnt_speculation *s)
{
    if (!s) return;
    linnet_session_destroy(s->model.session);
    linnet_session_destroy(s->draft.session);
    lnt_sampler_destroy(s->guesser);
    lnt_free(s->ids);
    lnt_free(s->drawn);
    lnt_free(s->logits);
    lnt_free(s);
}

int64_t lnt_speculation_state_bytes(const lnt_speculation *s)
{
    linnet_session_info info = {.size = sizeof info};
    return linnet_session_get_info(s->model.session, &info) == LINNET_OK ? info.state_bytes : 0;
}

void lnt_speculation_count(const lnt_speculation *s, int64_t *guessed, int64_t *kept)
{
    *guessed = s->guessed;
    *kept = s->kept;
}

/* ids [1 .. n] behind ids[0]; fewer where the draft's logits are no numbers. */
static linnet_status guess(lnt_speculation *s, lnt_sampler *sampler, int64_t *n)
{
    lnt_sampler_follow(s->guesser, sampler);
    for (int64_t i = 0; i < *n; i++) {
        LNT_TRY(read_ids(&s->draft, &s->ids[i], 1, true, LINNET_LOGITS_LAST, s->logits));
        s->ids[i + 1] = lnt_sampler_draw(s->guesser, s->logits);
        if (s->ids[i + 1] < 0) *n = i;
    }
    return LINNET_OK;
}

/* The state has read `had` ids of the round, and is to have read the first `n`. */
static linnet_status settle(lnt_speculation *s, reader *r, int64_t had, int64_t n)
{
    if (had > n) {
        LNT_TRY(linnet_state_copy(r->state[KEPT], r->state[READER]));
        had = 0;
    }
    return read_ids(r, s->ids + had, n - had, true, LINNET_LOGITS_NONE, NULL);
}

static linnet_status round_of(lnt_speculation *s, lnt_sampler *sampler, int64_t left, int64_t drawn)
{
    int64_t n = s->guesses < left - 1 ? s->guesses : left - 1, right = 0, vocabulary = 0;
    linnet_session_info info = {.size = sizeof info};
    LNT_TRY(linnet_session_get_info(s->model.session, &info));
    vocabulary = info.vocabulary;
    const int64_t most = n;
    s->ids[0] = s->last;
    LNT_TRY(linnet_state_copy(s->model.state[READER], s->model.state[KEPT]));
    LNT_TRY(linnet_state_copy(s->draft.state[READER], s->draft.state[KEPT]));
    LNT_TRY(guess(s, sampler, &n));
    LNT_TRY(read_ids(&s->model, s->ids, n + 1, true, LINNET_LOGITS_ALL, s->logits));
    s->n_drawn = s->taken = 0;
    for (bool same = true; same && s->n_drawn <= n;) {
        const int32_t id = lnt_sampler_draw(sampler, s->logits + s->n_drawn * vocabulary);
        if (id < 0) return lnt_fail_logits(s->c, drawn + s->n_drawn);
        s->drawn[s->n_drawn++] = id;
        same = s->n_drawn <= n && id == s->ids[s->n_drawn];
        right += same;
    }
    s->last = s->drawn[s->n_drawn - 1];
    s->guessed += n;
    s->kept += right;
    LNT_TRY(settle(s, &s->model, n + 1, right + 1));
    return settle(s, &s->draft, n < most ? n + 1 : n, right + 1);
}

linnet_status lnt_speculation_next(lnt_speculation *s, lnt_sampler *sampler, int64_t left, int64_t drawn, int32_t *now)
{
    if (s->taken == s->n_drawn) LNT_TRY(round_of(s, sampler, left, drawn));
    *now = s->drawn[s->taken++];
    return LINNET_OK;
}

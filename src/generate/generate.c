/* linnet_generate: prefill the prompt into a state, then one token at a time. Memory does not grow with the length for recurrent layers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/options.h"
#include "device/device.h"
#include "generate/greedy.h"
#include "generate/prompt.h"
#include "generate/sample.h"
#include "generate/speculate.h"
#include "generate/stop.h"
#include "model/model.h"

enum { PREFILL = 512 }; /* prompt tokens a run */

typedef struct {
    lnt_ctx *c;
    linnet_model *m;
    lnt_state *state;
    lnt_plan *prefill, *step;
    lnt_speculation *draft; /* NULL: none guesses; otherwise it has what stands above */
    float *logits;    /* host, [vocabulary] */
    lnt_greedy greedy;
    int queued;       /* greedy steps that were put and not taken */
    int64_t drawn;    /* tokens */
} session;

static void close_session(session *k)
{
    lnt_greedy_close(&k->greedy);
    lnt_speculation_close(k->draft);
    lnt_plan_destroy(k->prefill);
    lnt_plan_destroy(k->step);
    lnt_state_destroy(k->state);
    lnt_free(k->logits);
}

static linnet_status open_session(session *k, int64_t V, int64_t prompt, int64_t capacity, bool finite)
{
    LNT_TRY(lnt_state_create(k->c, k->m->p, k->m->dtype, 1, capacity, &k->state));
    lnt_plan_options o = {
        .tokens = 1, .n_seq = 1, .dtype = k->m->dtype, .has_state = true, .state_capacity = capacity, .finite = finite,
        .rows_alone = true, /* the bits that a session's steps have, with a draft or without */
        .n_outputs = 1, .outputs = {k->m->logits}};
    LNT_TRY(lnt_plan_create(k->c, k->m->p, &o, &k->step));
    if (prompt > 1) { /* all but the prompt's last token: no logits are made for them */
        o.tokens = prompt - 1 < PREFILL ? prompt - 1 : PREFILL;
        o.rows_alone = false;
        o.outputs[0] = k->m->hidden;
        LNT_TRY(lnt_plan_create(k->c, k->m->p, &o, &k->prefill));
    }
    LNT_TRY(lnt_greedy_open(k->c, k->step, k->m->logits, k->m->ids, V, &k->greedy));
    k->logits = lnt_alloc(lnt_bytes((size_t)k->m->config->vocab_size, 4));
    return k->logits ? LINNET_OK : lnt_fail_memory(k->c, lnt_bytes((size_t)k->m->config->vocab_size, 4));
}

/* ids NULL: the one that the step before left. */
static lnt_batch batch_of(const session *k, const int32_t *ids, int64_t n)
{
    return (lnt_batch){.tokens = n, .n_seq = 1, .n_inputs = ids != NULL, .inputs = {{k->m->ids, ids}}, .state = k->state};
}
static linnet_status feed(session *k, lnt_plan *plan, const int32_t *ids, int64_t n)
{
    const lnt_batch b = batch_of(k, ids, n);
    return lnt_plan_run(plan, k->m->w, &b);
}

/* All but the last token, which is the first step's. */
static linnet_status read_prompt(session *k, const int32_t *ids, int64_t n)
{
    for (int64_t at = 0; at + 1 < n; at += PREFILL) LNT_TRY(feed(k, k->prefill, ids + at, n - 1 - at < PREFILL ? n - 1 - at : PREFILL));
    lnt_device_wait(k->c);
    return LINNET_OK;
}

static linnet_status greedy_step(session *k, const int32_t *id)
{
    const lnt_batch b = batch_of(k, id, 1);
    k->queued++;
    return lnt_greedy_step(&k->greedy, k->step, k->m->w, &b);
}

/* The token behind `now`. A GPU goes on with the next, if there may be one, while the host looks at this. */
static linnet_status greedy_token(session *k, bool more, int32_t *now)
{
    if (!k->queued) LNT_TRY(greedy_step(k, now));
    if (more && lnt_on_cuda(k->c)) LNT_TRY(greedy_step(k, NULL));
    *now = *lnt_greedy_take(&k->greedy);
    k->queued--;
    LNT_TRY(lnt_device_check(k->c));
    return *now < 0 ? lnt_fail_logits(k->c, k->drawn) : LINNET_OK;
}

static linnet_status drawn_token(session *k, lnt_sampler *sampler, int32_t *now)
{
    LNT_TRY(feed(k, k->step, now, 1));
    lnt_to_host(k->c, k->logits, lnt_plan_output(k->step, k->m->logits).data, (size_t)k->m->config->vocab_size * 4);
    *now = lnt_sampler_draw(sampler, k->logits);
    return *now < 0 ? lnt_fail_logits(k->c, k->drawn) : LINNET_OK;
}

static linnet_status check(lnt_ctx *c, const linnet_model *m, const linnet_tokenizer *t, const linnet_generate_options *o)
{
    if (linnet_tokenizer_vocabulary(t) > m->config->vocab_size) {
        lnt_fail(c, LINNET_EINVAL, "the tokenizer has %lld ids, but the model knows %lld", (long long)linnet_tokenizer_vocabulary(t),
                 (long long)m->config->vocab_size);
        return lnt_hint(c, "Use the tokenizer the model was trained with.");
    }
    if (!(o->top_p > 0)) return lnt_fail(c, LINNET_EINVAL, "top_p is %g, expected a number above 0 and up to 1", o->top_p);
    if (o->prompt_bytes) LNT_NEED(c, o->prompt);
    if (o->n_stop) LNT_NEED(c, o->stop);
    for (int i = 0; i < o->n_stop; i++)
        if (!o->stop[i] || !*o->stop[i]) return lnt_fail(c, LINNET_EINVAL, "stop[%d] is empty, expected a string of at least a byte", i);
    if (o->scored && o->draft) {
        lnt_fail(c, LINNET_EINVAL, "log-probabilities are asked for, and a draft");
        return lnt_hint(c, "Leave the draft out: the text is the same.");
    }
    if (o->scored && o->alternatives > linnet_tokenizer_vocabulary(t))
        return lnt_fail_option(c, "alternatives", "is %d, expected at most the vocabulary's %lld", o->alternatives,
                               (long long)linnet_tokenizer_vocabulary(t));
    return LINNET_OK;
}

linnet_status lnt_prompt_ids(lnt_ctx *c, const linnet_tokenizer *t, const char *text, size_t bytes, int32_t **ids, int64_t *n)
{
    if (bytes) return linnet_tokenizer_encode_as(c, t, text, bytes, LINNET_ENCODE_TEMPLATE, ids, n);
    if (linnet_tokenizer_separator(t) < 0) return linnet_tokenizer_encode(c, t, "\n", 1, ids, n);
    *ids = lnt_alloc(sizeof **ids);
    if (!*ids) return lnt_fail_memory(c, sizeof **ids);
    **ids = (int32_t)linnet_tokenizer_separator(t);
    *n = 1;
    return LINNET_OK;
}

/* What the caller hears of tokens. */
typedef struct {
    lnt_ctx *c;
    const linnet_tokenizer *t;
    const linnet_generate_options *o;
    lnt_stopper stopper;
    int32_t *top;  /* [alternatives] */
    double *top_logprob;
} listener;

static linnet_status open_listener(listener *l, lnt_ctx *c, const linnet_tokenizer *t, const linnet_generate_options *o)
{
    *l = (listener){.c = c, .t = t, .o = o, .stopper = {.stop = o->stop, .n = o->n_stop}};
    if (!o->scored || !o->alternatives) return LINNET_OK;
    const size_t n = (size_t)o->alternatives;
    l->top = lnt_alloc(lnt_bytes(n, sizeof *l->top));
    l->top_logprob = lnt_alloc(lnt_bytes(n, sizeof *l->top_logprob));
    return l->top && l->top_logprob ? LINNET_OK : lnt_fail_memory(c, lnt_bytes(n, sizeof *l->top_logprob));
}

static void close_listener(listener *l)
{
    lnt_stopper_close(&l->stopper);
    lnt_free(l->top);
    lnt_free(l->top_logprob);
}

/* logits: those that the token was drawn from; NULL: they are not wanted. */
static linnet_status tell(listener *l, const float *logits, int32_t id, int32_t *ended)
{
    const linnet_generate_options *o = l->o;
    const int64_t V = linnet_tokenizer_vocabulary(l->t);
    size_t bytes = 0;
    bool found = false;
    const char *piece = linnet_tokenizer_piece(l->t, id, &bytes);
    if (o->scored) {
        lnt_most_probable(logits, V, o->alternatives, l->top, l->top_logprob);
        const linnet_scored_token scored = {.size = sizeof scored, .id = id, .bytes = piece, .n_bytes = bytes,
                                            .logprob = lnt_log_probability(logits, V, id), .n_top = o->alternatives, .top = l->top,
                                            .top_logprob = l->top_logprob};
        if (o->scored(o->user, &scored)) *ended = LINNET_ENDED_CALLER;
    }
    if (o->stop_at_separator && id == linnet_tokenizer_separator(l->t)) {
        *ended = LINNET_ENDED_SEPARATOR;
        return LINNET_OK;
    }
    if (o->n_stop) LNT_TRY(lnt_stopper_put(l->c, &l->stopper, piece, bytes, &piece, &bytes, &found));
    if (o->token && o->token(o->user, id, piece, bytes)) *ended = LINNET_ENDED_CALLER;
    if (found) *ended = LINNET_ENDED_STOP;
    return LINNET_OK;
}

/* Bytes that could have begun a string, and did not. */
static void tell_rest(listener *l)
{
    size_t bytes = 0;
    const char *rest = lnt_stopper_rest(&l->stopper, &bytes);
    if (bytes && l->o->token) (void)l->o->token(l->o->user, -1, rest, bytes);
}

static linnet_status generate(lnt_ctx *c, linnet_model *m, const linnet_tokenizer *t, const linnet_generate_options *o, linnet_generate_result *out)
{
    LNT_TRY(check(c, m, t, o));
    int32_t *ids = NULL;
    int64_t n = 0, V = linnet_tokenizer_vocabulary(t), capacity;
    session k = {.c = c, .m = m};
    lnt_sampler *sampler = NULL;
    listener l = {.c = c};
    linnet_status s;
    LNT_TRY(lnt_prompt_ids(c, t, o->prompt, o->prompt_bytes, &ids, &n));
    if (!lnt_add(n, o->max_tokens, &capacity)) {
        s = lnt_fail(c, LINNET_EINVAL, "max_tokens is %lld, which is too large", (long long)o->max_tokens);
        goto done;
    }
    LNT_TRY_GOTO(s, lnt_sampler_create(c, V, o, &sampler), done);
    LNT_TRY_GOTO(s, open_listener(&l, c, t, o), done);
    lnt_sampler_saw(sampler, ids, n);
    if (!o->draft) LNT_TRY_GOTO(s, open_session(&k, V, n, capacity, o->check_finite), done);
    double start = lnt_now();
    LNT_TRY_GOTO(s, o->draft ? lnt_speculation_open(c, m, o, V, ids, n, capacity, &k.draft) : read_prompt(&k, ids, n), done);
    *out = (linnet_generate_result){.prompt_tokens = n,
                                    .state_bytes = k.draft ? lnt_speculation_state_bytes(k.draft) : (int64_t)k.state->bytes};
    out->prefill_seconds = lnt_now() - start;
    const bool largest = o->temperature == 0 && o->repetition_penalty == 1 && !o->scored; /* the choice needs no logits on the host */
    int32_t now = ids[n - 1];
    start = lnt_now();
    while (out->tokens < o->max_tokens && out->ended == LINNET_ENDED_LENGTH) {
        const bool more = out->tokens + 1 < o->max_tokens;
        LNT_TRY_GOTO(s, k.draft   ? lnt_speculation_next(k.draft, sampler, o->max_tokens - out->tokens, out->tokens, &now)
                        : largest ? greedy_token(&k, more, &now)
                                  : drawn_token(&k, sampler, &now), done);
        k.drawn = ++out->tokens;
        LNT_TRY_GOTO(s, tell(&l, k.logits, now, &out->ended), done);
    }
    if (out->ended != LINNET_ENDED_STOP) tell_rest(&l);
    out->decode_seconds = lnt_now() - start;
    if (k.draft) lnt_speculation_count(k.draft, &out->guessed, &out->guessed_right);
done:
    close_session(&k);
    close_listener(&l);
    lnt_sampler_destroy(sampler);
    linnet_free(ids);
    return s;
}

linnet_status linnet_generate(linnet_context *c, linnet_model *m, const linnet_tokenizer *t, const linnet_generate_options *options,
                              linnet_generate_result *out)
{
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    linnet_generate_result r = {.size = sizeof r};
    LNT_TRY(lnt_model_check_next(c, m));
    LNT_TRY(lnt_need(c, t, "the tokenizer"));
    LNT_TRY(lnt_options_take(c, "generate", options, &o));
    LNT_TRY(lnt_result_check(c, out));
    LNT_TRY(generate(c, m, t, &o, &r));
    LNT_GIVE(out, r);
    return LINNET_OK;
}

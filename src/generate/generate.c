/* linnet_generate: prefill the prompt into a state, then one token at a time. Memory does not grow with the length for recurrent layers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "device/device.h"
#include "generate/greedy.h"
#include "generate/sample.h"
#include "generate/speculate.h"
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
static linnet_status feed(session *k, lnt_plan *plan, const int32_t *ids, int64_t n)
{
    lnt_batch b = {.tokens = n, .n_seq = 1, .n_inputs = ids != NULL, .inputs = {{k->m->ids, ids}}, .state = k->state};
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
    LNT_TRY(feed(k, k->step, id, 1));
    k->queued++;
    return lnt_greedy_put(&k->greedy);
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
    return LINNET_OK;
}

/* The prompt's ids; an empty prompt starts from the separator, or from a newline when there is none. */
static linnet_status prompt_ids(lnt_ctx *c, const linnet_tokenizer *t, const linnet_generate_options *o, int32_t **ids, int64_t *n)
{
    if (o->prompt_bytes) return linnet_tokenizer_encode(c, t, o->prompt, o->prompt_bytes, ids, n);
    if (linnet_tokenizer_separator(t) < 0) return linnet_tokenizer_encode(c, t, "\n", 1, ids, n);
    *ids = lnt_alloc(sizeof **ids);
    if (!*ids) return lnt_fail_memory(c, sizeof **ids);
    **ids = (int32_t)linnet_tokenizer_separator(t);
    *n = 1;
    return LINNET_OK;
}

static linnet_status generate(lnt_ctx *c, linnet_model *m, const linnet_tokenizer *t, const linnet_generate_options *o, linnet_generate_result *out)
{
    LNT_TRY(check(c, m, t, o));
    int32_t *ids = NULL;
    int64_t n = 0, V = linnet_tokenizer_vocabulary(t), capacity;
    session k = {.c = c, .m = m};
    lnt_sampler *sampler = NULL;
    linnet_status s;
    LNT_TRY(prompt_ids(c, t, o, &ids, &n));
    if (!lnt_add(n, o->max_tokens, &capacity)) {
        s = lnt_fail(c, LINNET_EINVAL, "max_tokens is %lld, which is too large", (long long)o->max_tokens);
        goto done;
    }
    LNT_TRY_GOTO(s, lnt_sampler_create(c, V, o, &sampler), done);
    if (!o->draft) LNT_TRY_GOTO(s, open_session(&k, V, n, capacity, o->check_finite), done);
    double start = lnt_now();
    LNT_TRY_GOTO(s, o->draft ? lnt_speculation_open(c, m, o, V, ids, n, capacity, &k.draft) : read_prompt(&k, ids, n), done);
    *out = (linnet_generate_result){.prompt_tokens = n,
                                    .state_bytes = k.draft ? lnt_speculation_state_bytes(k.draft) : (int64_t)k.state->bytes};
    out->prefill_seconds = lnt_now() - start;
    int32_t now = ids[n - 1];
    start = lnt_now();
    while (out->tokens < o->max_tokens) {
        const bool more = out->tokens + 1 < o->max_tokens;
        LNT_TRY_GOTO(s, k.draft               ? lnt_speculation_next(k.draft, sampler, o->max_tokens - out->tokens, out->tokens, &now)
                        : o->temperature == 0 ? greedy_token(&k, more, &now)
                                              : drawn_token(&k, sampler, &now), done);
        k.drawn = ++out->tokens;
        if (o->stop_at_separator && now == linnet_tokenizer_separator(t)) break;
        size_t bytes = 0;
        const char *piece = linnet_tokenizer_piece(t, now, &bytes);
        if (o->token && o->token(o->user, now, piece, bytes)) break;
    }
    out->decode_seconds = lnt_now() - start;
    if (k.draft) lnt_speculation_count(k.draft, &out->guessed, &out->guessed_right);
done:
    close_session(&k);
    lnt_sampler_destroy(sampler);
    linnet_free(ids);
    return s;
}

linnet_status linnet_generate(linnet_context *c, linnet_model *m, const linnet_tokenizer *t, const linnet_generate_options *options,
                              linnet_generate_result *out)
{
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    linnet_generate_result r = {.size = sizeof r};
    LNT_TRY(lnt_model_check(c, m));
    LNT_TRY(lnt_need(c, t, "the tokenizer"));
    LNT_TRY(lnt_options_take(c, "generate", options, &o));
    LNT_TRY(lnt_result_check(c, out));
    LNT_TRY(generate(c, m, t, &o, &r));
    LNT_GIVE(out, r);
    return LINNET_OK;
}

/* linnet_chat: a conversation by the scheduler that a server has, with one slot and nobody else. Every turn is asked for with all the messages before
 * it, as a server's client asks; what was read of them is in the cache. */
#include <string.h>

#include "core/border.h"
#include "core/clock.h"
#include "model/model.h"
#include "linnet/serve.h"
#include "serve/answer.h"

struct linnet_chat {
    lnt_ctx *c;
    lnt_specials specials;
    lnt_chat_template template;
    lnt_scheduler *scheduler;
    lnt_metrics metrics;
    lnt_message *messages; /* [n]; texts are lnt_alloc's */
    int64_t n, room;
    bool has_system;
};

static linnet_status add_message(linnet_chat *k, lnt_role role, const char *text, size_t bytes)
{
    if (k->n == k->room) {
        const int64_t room = 2 * k->room + 16;
        lnt_message *grown = lnt_realloc(k->messages, lnt_bytes((size_t)k->room, sizeof *grown), lnt_bytes((size_t)room, sizeof *grown));
        if (!grown) return lnt_fail_memory(k->c, lnt_bytes((size_t)room, sizeof *grown));
        k->messages = grown;
        k->room = room;
    }
    char *copy = lnt_alloc(lnt_bytes_plus(bytes, 1));
    if (!copy) return lnt_fail_memory(k->c, bytes);
    if (bytes) memcpy(copy, text, bytes);
    k->messages[k->n++] = (lnt_message){.role = role, .text = copy, .bytes = bytes};
    return LINNET_OK;
}

/* As a server's client, which hears UTF-8, gives it back. */
static linnet_status add_answer(linnet_chat *k, const char *text, size_t bytes)
{
    size_t used, n;
    char *clean = lnt_utf8_of(text, bytes, true, &used, &n);
    const linnet_status s = clean ? add_message(k, LNT_ASSISTANT, clean, n) : lnt_fail_memory(k->c, bytes);
    lnt_free(clean);
    return s;
}

static void forget(linnet_chat *k, int64_t keep)
{
    while (k->n > keep) lnt_free((void *)(uintptr_t)k->messages[--k->n].text);
}

void linnet_chat_clear(linnet_chat *k)
{
    if (k) forget(k, k->has_system);
}

static linnet_status open_chat(linnet_chat *k, linnet_model *m, const linnet_tokenizer *t, const linnet_chat_options *o)
{
    LNT_TRY(lnt_specials_open(k->c, t, o->folder, &k->specials));
    LNT_TRY(lnt_chat_template_find(k->c, &k->specials, o->chat_template, &k->template));
    int32_t *ids;
    int64_t n;
    LNT_TRY(lnt_chat_template_ids(k->c, &k->template, &k->specials, NULL, 0, &ids, &n)); /* is there one? */
    lnt_free(ids);
    if (o->system) LNT_TRY(add_message(k, LNT_SYSTEM, o->system, strlen(o->system)));
    k->has_system = o->system;
    const lnt_scheduler_options s = {.slots = 1, .waiting = 1, .context = o->context, .chunk = o->chunk, .cache_bytes = o->cache_bytes};
    return lnt_scheduler_create(k->c, m, t, &s, &k->metrics, &k->scheduler);
}

linnet_status linnet_chat_create(linnet_context *c, linnet_model *m, const linnet_tokenizer *t, const linnet_chat_options *options, linnet_chat **out)
{
    linnet_chat_options o = LINNET_CHAT_OPTIONS_INIT;
    LNT_TRY(lnt_model_check_next(c, m));
    LNT_TRY(lnt_need(c, t, "the tokenizer"));
    LNT_NEED(c, out);
    *out = NULL;
    if (options) LNT_TRY(lnt_options_take(c, "chat", options, &o));
    if (!m->w) return lnt_fail(c, LINNET_EINVAL, "the model is an outline: it has no weights");
    linnet_chat *k = lnt_calloc(sizeof *k);
    if (!k) return lnt_fail_memory(c, sizeof *k);
    k->c = c;
    const linnet_status s = open_chat(k, m, t, &o);
    if (s == LINNET_OK) *out = k;
    else linnet_chat_destroy(k);
    return s;
}

void linnet_chat_destroy(linnet_chat *k)
{
    if (!k) return;
    lnt_scheduler_destroy(k->scheduler);
    forget(k, 0);
    lnt_free(k->messages);
    lnt_specials_close(&k->specials);
    lnt_free(k);
}

/* The request for what comes behind the messages. */
static linnet_status ask(linnet_chat *k, const linnet_generate_options *o, lnt_request **out)
{
    const char *end = lnt_chat_template_end(&k->template), *stop = lnt_chat_template_stop(&k->template);
    const int32_t end_id = end ? lnt_specials_id(&k->specials, end, strlen(end)) : -1;
    LNT_TRY(lnt_request_create(k->c, out));
    lnt_request *r = *out;
    r->o = *o;
    r->o.alternatives = 0;
    r->n_prompts = 1;
    r->each = true;
    memcpy(r->end_ids, k->specials.end_ids, sizeof r->end_ids);
    r->n_end_ids = k->specials.n_end_ids;
    if (end_id >= 0 && r->n_end_ids < LNT_END_IDS) r->end_ids[r->n_end_ids++] = end_id;
    if (end && end_id < 0) stop = end;
    const char **stops = lnt_arena_alloc(&r->arena, lnt_bytes(lnt_bytes_plus((size_t)o->n_stop, 1), sizeof *stops));
    if (!stops) return lnt_fail_memory(k->c, lnt_bytes((size_t)o->n_stop, sizeof *stops));
    for (int i = 0; i < o->n_stop; i++) stops[i] = o->stop[i];
    if (stop) stops[r->o.n_stop++] = stop;
    r->o.stop = stops;
    return LINNET_OK;
}

/* Its prompt, in the request's arena. */
static linnet_status put_prompt(linnet_chat *k, lnt_request *r)
{
    const int64_t context = lnt_scheduler_context(k->scheduler);
    int32_t *ids;
    int64_t n;
    LNT_TRY(lnt_chat_template_ids(k->c, &k->template, &k->specials, k->messages, k->n, &ids, &n));
    r->prompts = lnt_arena_alloc(&r->arena, sizeof *r->prompts);
    int32_t *mine = lnt_arena_alloc(&r->arena, lnt_bytes((size_t)n, sizeof *mine));
    if (mine) memcpy(mine, ids, (size_t)n * sizeof *mine);
    lnt_free(ids);
    if (!r->prompts || !mine) return lnt_fail_memory(k->c, lnt_bytes((size_t)n, sizeof *mine));
    *r->prompts = (lnt_prompt){.ids = mine, .n = n};
    if (n >= context) {
        lnt_fail(k->c, LINNET_EINVAL, "the conversation has %lld tokens, expected fewer than %lld", (long long)n, (long long)context);
        return lnt_hint(k->c, "Begin a new one, or give it more room with --context.");
    }
    if (r->o.max_tokens > context - n) r->o.max_tokens = context - n;
    return lnt_request_ready(k->c, r);
}

/* What is new of a text, as a server gives it: UTF-8. `whole`: nothing comes behind it. */
static linnet_status hear(linnet_chat *k, const lnt_request *r, bool whole, linnet_generate_result *out, size_t *heard)
{
    const lnt_written *w = r->written;
    size_t used, n;
    if (w->n_text == *heard) return LINNET_OK;
    char *text = lnt_utf8_of(w->text + *heard, w->n_text - *heard, whole, &used, &n);
    if (!text) return lnt_fail_memory(k->c, w->n_text - *heard);
    if (n && r->o.token && r->o.token(r->o.user, -1, text, n)) out->ended = LINNET_ENDED_CALLER;
    *heard += used;
    lnt_free(text);
    return LINNET_OK;
}

/* Rounds until the text is over or the caller has heard enough; *heard: bytes it heard. */
static linnet_status listen(linnet_chat *k, lnt_request *r, linnet_generate_result *out, size_t *heard)
{
    const double start = lnt_now();
    linnet_status s = LINNET_OK;
    for (bool over = false; !over && s == LINNET_OK;) {
        lnt_scheduler_round(k->scheduler);
        pthread_mutex_lock(&r->lock);
        if (r->written->drawn && !out->tokens) out->prefill_seconds = lnt_now() - start;
        out->tokens = r->written->drawn;
        over = lnt_request_over(r);
        s = hear(k, r, over, out, heard);
        over = over || out->ended == LINNET_ENDED_CALLER;
        pthread_mutex_unlock(&r->lock);
    }
    atomic_store(&r->dropped, true);
    lnt_scheduler_round(k->scheduler); /* its slot is free again */
    out->decode_seconds = lnt_now() - start - out->prefill_seconds;
    if (r->status != LINNET_OK) return lnt_fail(k->c, r->status, "%s", r->error);
    if (out->ended != LINNET_ENDED_CALLER) out->ended = r->written->ended;
    return s;
}

linnet_status linnet_chat_say(linnet_chat *k, const char *text, size_t bytes, const linnet_generate_options *options, linnet_generate_result *out)
{
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    linnet_generate_result result = {.size = sizeof result};
    lnt_request *r = NULL;
    size_t heard = 0;
    if (!k) return LINNET_EINVAL;
    if (bytes) LNT_NEED(k->c, text);
    if (options) LNT_TRY(lnt_options_take(k->c, "generate", options, &o));
    if (out) LNT_TRY(lnt_result_check(k->c, out));
    if (!(o.top_p > 0)) return lnt_fail(k->c, LINNET_EINVAL, "top_p is %g, expected a number above 0 and up to 1", o.top_p);
    if (o.n_stop) LNT_NEED(k->c, o.stop);
    if (o.prompt_bytes || o.draft || o.scored) return lnt_fail(k->c, LINNET_EINVAL, "a prompt, a draft or log-probabilities in a conversation");
    const int64_t before = k->n;
    linnet_status s = add_message(k, LNT_USER, text, bytes);
    if (s == LINNET_OK) s = ask(k, &o, &r);
    if (s == LINNET_OK) s = put_prompt(k, r);
    if (s == LINNET_OK) s = lnt_scheduler_put(k->scheduler, k->c, r);
    if (s == LINNET_OK) s = listen(k, r, &result, &heard);
    if (s == LINNET_OK) s = add_answer(k, r->written->text, heard);
    if (s == LINNET_OK) result.prompt_tokens = r->prompts->n;
    if (s != LINNET_OK) forget(k, before);
    lnt_request_release(r);
    if (s == LINNET_OK && out) LNT_GIVE(out, result);
    return s;
}

#include "serve/ask.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "core/border.h"
#include "core/clock.h"
#include "generate/prompt.h"
#include "hub/json.h"

enum { MOST_ALTERNATIVES = 20, MOST_STOPS = 64, MOST_TEXTS = 1 << 16, DEFAULT_TOKENS = 16, SHOWN = 80 };
#define UNSAID INT64_MIN

typedef struct {
    lnt_ctx *c;
    const lnt_service *v;
    lnt_ask *a;
    lnt_request *r;
    int64_t logprobs;     /* alternatives; UNSAID, as of the next: no log-probabilities */
    int64_t max_tokens;
    bool logprobs_on;     /* of a chat */
    bool ignore_eos;      /* texts end nowhere but at their length or at a stop string */
    int64_t top_logprobs;
    int32_t *ids;         /* [n_ids] of the prompt, where the body has it as a plain list; NULL: it is in the JSON */
    int64_t n_ids;
} reading;

/* ---- parameters ------------------------------------------------------------------------------------------------------------------------- */

typedef enum { INTEGER, REAL, SWITCH, SEED, STOP, STREAM_OPTIONS, STATE, HERE, NEUTRAL, ANYTHING } kind;
enum { COMPLETION = 1, CHAT = 2, BOTH = 3 };

typedef struct {
    const char *key;
    kind kind;
    int where;
    size_t offset;       /* into reading, lnt_ask or the generation's options, as `in` says */
    enum { READING, ASK, OPTIONS } in;
    const char *neutral; /* the values that say nothing, as JSON; behind one another, each ending in a newline */
} parameter;

#define OF_OPTIONS(name) offsetof(linnet_generate_options, name), OPTIONS
static const parameter parameters[] = {
    {"model", ANYTHING, BOTH, .neutral = NULL}, /* there is but one */
    {"prompt", HERE, COMPLETION, .neutral = NULL},
    {"messages", HERE, CHAT, .neutral = NULL},
    {"max_tokens", INTEGER, BOTH, offsetof(reading, max_tokens), READING, NULL},
    {"max_completion_tokens", INTEGER, CHAT, offsetof(reading, max_tokens), READING, NULL},
    {"temperature", REAL, BOTH, OF_OPTIONS(temperature), NULL},
    {"top_p", REAL, BOTH, OF_OPTIONS(top_p), NULL},
    {"top_k", INTEGER, BOTH, OF_OPTIONS(top_k), NULL},
    {"min_p", REAL, BOTH, OF_OPTIONS(min_p), NULL},
    {"repetition_penalty", REAL, BOTH, OF_OPTIONS(repetition_penalty), NULL},
    {"seed", SEED, BOTH, OF_OPTIONS(seed), NULL},
    {"stop", STOP, BOTH, .neutral = NULL},
    {"ignore_eos", SWITCH, BOTH, offsetof(reading, ignore_eos), READING, NULL},
    {"n", HERE, BOTH, .neutral = NULL},
    {"stream", SWITCH, BOTH, offsetof(lnt_ask, stream), ASK, NULL},
    {"stream_options", STREAM_OPTIONS, BOTH, .neutral = NULL},
    {"state", STATE, BOTH, .neutral = NULL},
    {"echo", SWITCH, COMPLETION, offsetof(lnt_ask, echo), ASK, NULL},
    {"logprobs", INTEGER, COMPLETION, offsetof(reading, logprobs), READING, NULL},
    {"logprobs", SWITCH, CHAT, offsetof(reading, logprobs_on), READING, NULL},
    {"top_logprobs", INTEGER, CHAT, offsetof(reading, top_logprobs), READING, NULL},
    {"best_of", NEUTRAL, COMPLETION, .neutral = "1\n"},
    {"suffix", NEUTRAL, COMPLETION, .neutral = "\"\"\n"},
    {"frequency_penalty", NEUTRAL, BOTH, .neutral = "0\n0.0\n"},
    {"presence_penalty", NEUTRAL, BOTH, .neutral = "0\n0.0\n"},
    {"logit_bias", NEUTRAL, BOTH, .neutral = "{}\n"},
    {"response_format", NEUTRAL, CHAT, .neutral = "{\"type\": \"text\"}\n"},
    {"tools", NEUTRAL, CHAT, .neutral = "[]\n"},
    {"tool_choice", NEUTRAL, CHAT, .neutral = "\"none\"\n\"auto\"\n"},
    {"parallel_tool_calls", ANYTHING, CHAT, .neutral = NULL},
    {"user", ANYTHING, BOTH, .neutral = NULL},
    {"metadata", ANYTHING, BOTH, .neutral = NULL},
    {"store", ANYTHING, BOTH, .neutral = NULL},
    {"service_tier", ANYTHING, BOTH, .neutral = NULL},
    {"safety_identifier", ANYTHING, BOTH, .neutral = NULL},
    {"prompt_cache_key", ANYTHING, BOTH, .neutral = NULL},
};
enum { PARAMETERS = sizeof parameters / sizeof *parameters };

static linnet_status wrong(reading *k, const char *key, const json_t *value, const char *expected)
{
    char shown[SHOWN];
    lnt_format(k->a->parameter_text, sizeof k->a->parameter_text, "%s", key);
    k->a->parameter = k->a->parameter_text;
    return lnt_fail(k->c, LINNET_EINVAL, "%s is %s, expected %s", key, lnt_json_show(value, shown, sizeof shown), expected);
}

static linnet_status put_switch(reading *k, const parameter *p, const json_t *value, bool *to)
{
    if (!json_is_boolean(value)) return wrong(k, p->key, value, "true or false");
    *to = json_is_true(value);
    return LINNET_OK;
}

static linnet_status put_stream_options(reading *k, const parameter *p, const json_t *value)
{
    const json_t *usage = json_object_get(value, "include_usage");
    if (!json_is_object(value)) return wrong(k, p->key, value, "an object");
    k->a->usage = json_is_true(usage);
    return LINNET_OK;
}

/* A look into the state: true, or {"recall": place}. */
static linnet_status put_state(reading *k, const parameter *p, const json_t *value)
{
    const json_t *place = json_object_get(value, "recall");
    const bool recall = json_is_object(value) && json_object_size(value) == 1 && json_is_integer(place) && json_integer_value(place) >= 0;
    if (!json_is_boolean(value) && !recall) return wrong(k, p->key, value, "true, false, or {\"recall\": the place of a token in the prompt}");
    k->r->viewed = recall || json_is_true(value);
    k->r->recall = recall ? json_integer_value(place) : -1;
    return LINNET_OK;
}

static linnet_status put_stop(reading *k, const parameter *p, const json_t *value)
{
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > MOST_STOPS) return wrong(k, p->key, value, "at most 64 strings");
    const char **stops = lnt_arena_alloc(&k->r->arena, lnt_bytes(lnt_bytes_plus(n, 1), sizeof *stops)); /* one more: a template's */
    if (!stops) return lnt_fail_memory(k->c, lnt_bytes(n, sizeof *stops));
    k->r->o.stop = stops;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(one) || !json_string_length(one)) return wrong(k, p->key, value, "a string that is not empty, or a list of such");
        stops[i] = lnt_arena_strdup(&k->r->arena, json_string_value(one));
        if (!stops[i]) return lnt_fail_memory(k->c, json_string_length(one));
        k->r->o.n_stop = (int32_t)i + 1;
    }
    return LINNET_OK;
}

static linnet_status put_neutral(reading *k, const parameter *p, const json_t *value)
{
    char shown[SHOWN], expected[SHOWN];
    lnt_json_show(value, shown, sizeof shown - 1);
    strcat(shown, "\n");
    const char *found = strstr(p->neutral, shown);
    if (found && (found == p->neutral || found[-1] == '\n')) return LINNET_OK;
    lnt_format(expected, sizeof expected, "%.*s, for it is not offered", (int)strcspn(p->neutral, "\n"), p->neutral);
    return wrong(k, p->key, value, expected);
}

static linnet_status put(reading *k, const parameter *p, const json_t *value)
{
    char *to = (p->in == READING ? (char *)k : p->in == ASK ? (char *)k->a : (char *)&k->r->o) + p->offset;
    switch (p->kind) {
    case INTEGER:
    case SEED:
        if (!json_is_integer(value) || (p->kind == SEED && json_integer_value(value) < 0))
            return wrong(k, p->key, value, p->kind == SEED ? "a whole number from 0 on" : "a whole number");
        memcpy(to, &(int64_t){json_integer_value(value)}, sizeof(int64_t));
        return LINNET_OK;
    case REAL:
        if (!json_is_number(value)) return wrong(k, p->key, value, "a number");
        memcpy(to, &(double){json_number_value(value)}, sizeof(double));
        return LINNET_OK;
    case SWITCH: return put_switch(k, p, value, (bool *)to);
    case STOP: return put_stop(k, p, value);
    case STREAM_OPTIONS: return put_stream_options(k, p, value);
    case STATE: return put_state(k, p, value);
    case NEUTRAL: return put_neutral(k, p, value);
    default: return LINNET_OK;
    }
}

static linnet_status unknown_key(reading *k, const char *key)
{
    char names[512] = "";
    const int mine = k->a->chat ? CHAT : COMPLETION;
    for (int i = 0; i < PARAMETERS; i++)
        if (parameters[i].where & mine && parameters[i].kind != ANYTHING && parameters[i].kind != NEUTRAL)
            strcat(strcat(names, *names ? ", " : ""), parameters[i].key);
    lnt_format(k->a->parameter_text, sizeof k->a->parameter_text, "%s", key);
    k->a->parameter = k->a->parameter_text;
    lnt_fail(k->c, LINNET_EINVAL, "there is no parameter \"%.60s\" here", key);
    return lnt_hint(k->c, "There are %s.", names);
}

static linnet_status read_parameters(reading *k, const json_t *body)
{
    const int mine = k->a->chat ? CHAT : COMPLETION;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)body, key, value) {
        int i = 0;
        while (i < PARAMETERS && (!(parameters[i].where & mine) || strcmp(parameters[i].key, key) != 0)) i++;
        if (i == PARAMETERS) return unknown_key(k, key);
        if (!json_is_null(value)) LNT_TRY(put(k, &parameters[i], value));
    }
    const json_t *n = json_object_get(body, "n");
    const int64_t slots = lnt_scheduler_slots(k->v->scheduler);
    char expected[SHOWN];
    lnt_format(expected, sizeof expected, "1 to %lld, the server's slots", (long long)slots);
    if (n && !json_is_null(n)) {
        if (!json_is_integer(n) || json_integer_value(n) < 1 || json_integer_value(n) > slots) return wrong(k, "n", n, expected);
        k->r->n = (int)json_integer_value(n);
    }
    return LINNET_OK;
}

/* What the parameters say together. */
static linnet_status settle(reading *k)
{
    linnet_generate_options *o = &k->r->o;
    if (k->a->chat && k->top_logprobs != UNSAID && !k->logprobs_on) {
        k->a->parameter = "top_logprobs";
        return lnt_fail(k->c, LINNET_EINVAL, "top_logprobs is %lld, but logprobs is not true", (long long)k->top_logprobs);
    }
    if (k->a->chat) k->logprobs = !k->logprobs_on ? UNSAID : k->top_logprobs == UNSAID ? 0 : k->top_logprobs;
    if (k->logprobs != UNSAID && (k->logprobs < 0 || k->logprobs > MOST_ALTERNATIVES)) {
        k->a->parameter = k->a->chat ? "top_logprobs" : "logprobs";
        return lnt_fail(k->c, LINNET_EINVAL, "%s is %lld, expected 0 to %d", k->a->parameter, (long long)k->logprobs, MOST_ALTERNATIVES);
    }
    k->r->scored = k->logprobs != UNSAID;
    k->r->score_prompt = k->r->scored && k->a->echo;
    o->alternatives = k->r->scored ? (int32_t)k->logprobs : 0;
    if (o->alternatives > linnet_tokenizer_vocabulary(k->v->t)) o->alternatives = (int32_t)linnet_tokenizer_vocabulary(k->v->t);
    if (!(o->top_p > 0)) {
        k->a->parameter = "top_p";
        return lnt_fail(k->c, LINNET_EINVAL, "top_p is %g, expected a number above 0 and up to 1", o->top_p);
    }
    if (o->top_k == -1) o->top_k = 0; /* as some clients switch it off */
    k->r->each = k->a->stream;
    k->r->until = lnt_now() + k->v->o.seconds;
    memcpy(k->r->end_ids, k->v->specials.end_ids, sizeof k->r->end_ids);
    k->r->n_end_ids = k->ignore_eos ? 0 : k->v->specials.n_end_ids;
    const linnet_status s = lnt_options_check(k->c, "generate", o);
    if (s == LINNET_OK) return s;
    for (int i = 0; i < PARAMETERS; i++) { /* the message begins with the field's name, which is the parameter's */
        const size_t n = strlen(parameters[i].key);
        if (!strncmp(linnet_error_message(k->c), parameters[i].key, n) && linnet_error_message(k->c)[n] == ' ') k->a->parameter = parameters[i].key;
    }
    return s;
}

/* ---- prompts ---------------------------------------------------------------------------------------------------------------------------- */

/* The arena's own copy of ids. */
static linnet_status take_ids(reading *k, const int32_t *ids, int64_t n)
{
    lnt_prompt *p = &k->r->prompts[k->r->n_prompts++];
    p->n = n;
    p->ids = lnt_arena_alloc(&k->r->arena, lnt_bytes((size_t)n, sizeof *p->ids));
    if (!p->ids) return lnt_fail_memory(k->c, lnt_bytes((size_t)n, sizeof *p->ids));
    memcpy(p->ids, ids, (size_t)n * sizeof *ids);
    return LINNET_OK;
}

static linnet_status text_prompt(reading *k, const json_t *text)
{
    int32_t *ids = NULL;
    int64_t n = 0;
    LNT_TRY(lnt_prompt_ids(k->c, k->v->t, json_string_value(text), json_string_length(text), &ids, &n));
    const linnet_status s = take_ids(k, ids, n);
    linnet_free(ids);
    return s;
}

/* Numbers of a JSON list as ids of the tokenizer. */
static linnet_status read_ids(lnt_ctx *c, const linnet_tokenizer *t, const char *key, const json_t *list, int32_t *ids)
{
    const int64_t V = linnet_tokenizer_vocabulary(t);
    char shown[SHOWN];
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one) {
        if (!json_is_integer(one) || json_integer_value(one) < 0 || json_integer_value(one) >= V)
            return lnt_fail(c, LINNET_EINVAL, "%s has %s at place %zu, expected an id from 0 to %lld", key, lnt_json_show(one, shown, sizeof shown),
                            i, (long long)V - 1);
        ids[i] = (int32_t)json_integer_value(one);
    }
    return LINNET_OK;
}

static linnet_status ids_prompt(reading *k, const json_t *list)
{
    const size_t n = json_array_size(list);
    if (!n) return lnt_fail(k->c, LINNET_EINVAL, "prompt has an empty list of ids, expected at least one");
    int32_t *ids = lnt_alloc(lnt_bytes(n, sizeof *ids));
    if (!ids) return lnt_fail_memory(k->c, lnt_bytes(n, sizeof *ids));
    linnet_status s = read_ids(k->c, k->v->t, "prompt", list, ids);
    if (s == LINNET_OK) s = take_ids(k, ids, (int64_t)n);
    lnt_free(ids);
    return s;
}

static linnet_status room_for_prompts(reading *k, size_t n)
{
    k->r->prompts = lnt_arena_alloc(&k->r->arena, lnt_bytes(n, sizeof *k->r->prompts));
    return k->r->prompts ? LINNET_OK : lnt_fail_memory(k->c, lnt_bytes(n, sizeof *k->r->prompts));
}

static linnet_status read_prompts(reading *k, const json_t *prompt)
{
    if (k->ids) {
        LNT_TRY(room_for_prompts(k, 1));
        return take_ids(k, k->ids, k->n_ids);
    }
    const json_t *first = json_array_get(prompt, 0);
    const bool several = json_is_string(first) || json_is_array(first);
    const size_t n = several ? json_array_size(prompt) : 1;
    k->a->parameter = "prompt";
    if (!prompt) return lnt_fail(k->c, LINNET_EINVAL, "prompt is missing");
    if (!json_is_string(prompt) && (!json_is_array(prompt) || !first))
        return wrong(k, "prompt", prompt, "a string, a list of ids, or a list of such");
    if ((int64_t)n > k->v->o.waiting)
        return lnt_fail(k->c, LINNET_EINVAL, "prompt has %zu prompts, expected at most %lld", n, (long long)k->v->o.waiting);
    if (lnt_bytes(n, (size_t)k->r->n) > MOST_TEXTS)
        return lnt_fail(k->c, LINNET_EINVAL, "prompt has %zu prompts of %d choices, expected at most %d texts", n, k->r->n, MOST_TEXTS);
    LNT_TRY(room_for_prompts(k, n));
    for (size_t i = 0; i < n; i++) {
        const json_t *one = several ? json_array_get(prompt, i) : prompt;
        if (!json_is_string(one) && !json_is_array(one)) return wrong(k, "prompt", one, "a string or a list of ids in a list of such");
        LNT_TRY(json_is_string(one) ? text_prompt(k, one) : ids_prompt(k, one));
    }
    k->a->parameter = NULL;
    return LINNET_OK;
}

/* ---- messages --------------------------------------------------------------------------------------------------------------------------- */

/* Text of a message: a string, or a list of parts that are texts. */
static linnet_status read_content(reading *k, const json_t *content, lnt_message *m)
{
    const json_t *part;
    size_t i, n = 0;
    if (json_is_string(content)) {
        m->text = json_string_value(content);
        m->bytes = json_string_length(content);
        return LINNET_OK;
    }
    json_array_foreach(content, i, part) n = lnt_bytes_plus(n, json_string_length(json_object_get(part, "text")));
    char *text = lnt_arena_alloc(&k->r->arena, lnt_bytes_plus(n, 1));
    if (!text) return lnt_fail_memory(k->c, n);
    *m = (lnt_message){.role = m->role, .text = text};
    json_array_foreach(content, i, part) {
        const json_t *piece = json_object_get(part, "text");
        if (!json_is_string(piece)) return wrong(k, "messages", part, "parts of the type \"text\"");
        memcpy(text + m->bytes, json_string_value(piece), json_string_length(piece));
        m->bytes += json_string_length(piece);
    }
    return json_is_array(content) ? LINNET_OK : wrong(k, "messages", content, "a content that is a string, or a list of texts");
}

static linnet_status read_message(reading *k, const json_t *one, lnt_message *m)
{
    static const struct {
        const char *name;
        lnt_role role;
    } roles[] = {{"system", LNT_SYSTEM}, {"developer", LNT_SYSTEM}, {"user", LNT_USER}, {"assistant", LNT_ASSISTANT}};
    const char *role = json_string_value(json_object_get(one, "role"));
    size_t i = 0;
    while (i < sizeof roles / sizeof *roles && (!role || strcmp(role, roles[i].name) != 0)) i++;
    if (i == sizeof roles / sizeof *roles) return wrong(k, "messages", one, "objects with a role (system, user, assistant) and a content");
    m->role = roles[i].role;
    const json_t *content = json_object_get(one, "content");
    return content ? read_content(k, content, m) : wrong(k, "messages", one, "objects with a role and a content");
}

static linnet_status read_messages(reading *k, const json_t *messages)
{
    const size_t n = json_array_size(messages);
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    k->a->parameter = "messages";
    if (!messages) return lnt_fail(k->c, LINNET_EINVAL, "messages is missing");
    if (!n) return wrong(k, "messages", messages, "a list of at least one message");
    lnt_message *m = lnt_arena_alloc(&k->r->arena, lnt_bytes(n, sizeof *m));
    if (!m) return lnt_fail_memory(k->c, lnt_bytes(n, sizeof *m));
    for (size_t i = 0; i < n; i++) LNT_TRY(read_message(k, json_array_get(messages, i), &m[i]));
    LNT_TRY(lnt_chat_template_ids(k->c, &k->v->chat, &k->v->specials, m, (int64_t)n, &ids, &n_ids));
    linnet_status s = room_for_prompts(k, 1);
    if (s == LINNET_OK) s = take_ids(k, ids, n_ids);
    lnt_free(ids);
    k->a->parameter = NULL;
    return s;
}

/* A turn ends with the template's mark. */
static linnet_status end_turns(reading *k)
{
    const char *end = lnt_chat_template_end(&k->v->chat), *stop = lnt_chat_template_stop(&k->v->chat);
    const int32_t id = end ? lnt_specials_id(&k->v->specials, end, strlen(end)) : -1;
    if (id >= 0 && k->r->n_end_ids < LNT_END_IDS) k->r->end_ids[k->r->n_end_ids++] = id;
    if (end && id < 0) stop = end; /* a tokenizer that spells it */
    if (!stop) return LINNET_OK;
    const char **stops = lnt_arena_alloc(&k->r->arena, lnt_bytes(MOST_STOPS + 1, sizeof *stops));
    if (!stops) return lnt_fail_memory(k->c, lnt_bytes(MOST_STOPS + 1, sizeof *stops));
    for (int i = 0; i < k->r->o.n_stop; i++) stops[i] = k->r->o.stop[i];
    stops[k->r->o.n_stop++] = stop;
    k->r->o.stop = stops;
    return LINNET_OK;
}

/* ---- both ------------------------------------------------------------------------------------------------------------------------------- */

static linnet_status fit(reading *k)
{
    const int64_t context = lnt_scheduler_context(k->v->scheduler);
    int64_t longest = 0;
    for (int i = 0; i < k->r->n_prompts; i++)
        if (k->r->prompts[i].n > longest) longest = k->r->prompts[i].n;
    const bool said = k->max_tokens != UNSAID;
    k->a->parameter = said && longest < context ? "max_tokens" : k->a->chat ? "messages" : "prompt";
    if (said && k->max_tokens < 0) return lnt_fail(k->c, LINNET_EINVAL, "max_tokens is %lld, expected at least 0", (long long)k->max_tokens);
    const int64_t want = said ? k->max_tokens : !k->a->chat ? DEFAULT_TOKENS : longest < context ? context - longest : 1;
    if (want > context - longest)
        return lnt_fail(k->c, LINNET_EINVAL, "a prompt of %lld tokens and %lld more, expected at most %lld together", (long long)longest,
                        (long long)want, (long long)context);
    k->r->o.max_tokens = want;
    k->a->parameter = "state";
    if (k->r->viewed && (k->r->n_prompts > 1 || k->r->n > 1))
        return lnt_fail(k->c, LINNET_EINVAL, "state is shown of one text, but there are %d", k->r->n_prompts * k->r->n);
    if (k->r->recall >= k->r->prompts[0].n)
        return lnt_fail(k->c, LINNET_EINVAL, "state.recall is %lld, but the prompt has %lld tokens", (long long)k->r->recall,
                        (long long)k->r->prompts[0].n);
    k->a->parameter = NULL;
    return LINNET_OK;
}

static linnet_status read_body(reading *k, const json_t *body)
{
    if (!json_is_object(body)) return lnt_fail(k->c, LINNET_EINVAL, "the body is no JSON object");
    LNT_TRY(read_parameters(k, body));
    LNT_TRY(settle(k));
    LNT_TRY(k->a->chat ? read_messages(k, json_object_get(body, "messages")) : read_prompts(k, json_object_get(body, "prompt")));
    if (k->a->chat && !k->ignore_eos) LNT_TRY(end_turns(k));
    LNT_TRY(fit(k));
    return lnt_request_ready(k->c, k->r);
}

/* ---- a prompt of ids ---------------------------------------------------------------------------------------------------------------------- */

/* Of 8,000 ids a JSON value each takes longer to make, to read and to free than a cached prompt to answer: 1.5 ms, of the plain list 0.03. */

static size_t skip_space(const char *at, size_t i, size_t n)
{
    while (i < n && (at[i] == ' ' || at[i] == '\t' || at[i] == '\n' || at[i] == '\r')) i++;
    return i;
}

/* The place of the bracket that begins the value of the body's own "prompt", n: there is none. What is no JSON finds any or none. */
static size_t list_of_prompt(const char *at, size_t n)
{
    static const char key[] = "\"prompt\"";
    for (size_t i = 0, depth = 0; i < n; i++) {
        if (at[i] == '{' || at[i] == '[') depth++;
        if (at[i] == '}' || at[i] == ']') depth--;
        if (at[i] != '"') continue;
        const size_t from = i;
        for (i++; i < n && at[i] != '"'; i++) i += at[i] == '\\';
        if (depth != 1 || i >= n || i - from != sizeof key - 2 || memcmp(at + from, key, sizeof key - 1) != 0) continue;
        const size_t colon = skip_space(at, i + 1, n), value = colon < n && at[colon] == ':' ? skip_space(at, colon + 1, n) : n;
        if (value < n && at[value] == '[') return value;
    }
    return n;
}

/* Ids below V, separated by commas, up to a bracket, whose place comes back; n: something else is there. */
static size_t read_list(const char *at, size_t i, size_t n, int64_t V, int32_t *ids, int64_t *count)
{
    for (*count = 0; i < n;) {
        int64_t id = 0;
        i = skip_space(at, i, n);
        const size_t from = i;
        for (; i < n && at[i] >= '0' && at[i] <= '9' && id < V; i++) id = 10 * id + (at[i] - '0');
        if (i == from || (at[from] == '0' && i > from + 1) || id >= V) return n;
        ids[(*count)++] = (int32_t)id;
        i = skip_space(at, i, n);
        if (i < n && at[i] == ']') return i;
        if (i >= n || at[i++] != ',') return n;
    }
    return n;
}

/* The body with an empty list for a prompt that is a list of ids, which k->ids then has. The body as it is, where that is not so, or where it is
 * no JSON: then the error is the whole body's. */
static linnet_status parse_body(reading *k, const char *body, size_t bytes, json_t **json)
{
    const size_t from = k->a->chat ? bytes : list_of_prompt(body, bytes);
    const char *end = from < bytes ? memchr(body + from, ']', bytes - from) : NULL;
    json_error_t ignored;
    size_t most = 1;
    *json = NULL;
    for (const char *p = body + from; end && (p = memchr(p, ',', (size_t)(end - p))); p++) most++;
    int32_t *ids = end ? lnt_alloc(lnt_bytes(most, sizeof *ids)) : NULL;
    char *rest = end ? lnt_alloc(lnt_bytes_plus(bytes, 2)) : NULL;
    const size_t to = ids && rest ? read_list(body, from + 1, bytes, linnet_tokenizer_vocabulary(k->v->t), ids, &k->n_ids) : bytes;
    if (to < bytes) {
        memcpy(rest, body, from + 1);
        memcpy(rest + from + 1, body + to, bytes - to);
        *json = json_loadb(rest, from + 1 + bytes - to, JSON_REJECT_DUPLICATES, &ignored);
    }
    lnt_free(rest);
    if (*json) k->ids = ids;
    else lnt_free(ids);
    return *json ? LINNET_OK : lnt_json_parse(k->c, "the body", body, bytes, json);
}

linnet_status lnt_ask_read(lnt_ctx *c, const lnt_service *v, bool chat, const char *body, size_t bytes, lnt_ask *out)
{
    json_t *json;
    *out = (lnt_ask){.chat = chat};
    reading k = {.c = c, .v = v, .a = out, .logprobs = UNSAID, .max_tokens = UNSAID, .top_logprobs = UNSAID};
    LNT_TRY(parse_body(&k, body, bytes, &json));
    linnet_status s = lnt_request_create(c, &out->r);
    if (s == LINNET_OK) {
        k.r = out->r;
        if (getrandom(&out->r->o.seed, sizeof out->r->o.seed / 2, GRND_NONBLOCK) < 0) out->r->o.seed = (uint64_t)(1e9 * lnt_now());
        s = read_body(&k, json);
    }
    lnt_free(k.ids);
    json_decref(json);
    return s;
}

/* The body's value under a key, whose body the caller releases. */
static linnet_status open_body(lnt_ctx *c, const char *body, size_t bytes, const char *key, json_t **all, json_t **value)
{
    LNT_TRY(lnt_json_parse(c, "the body", body, bytes, all));
    *value = json_object_get(*all, key);
    if (*value) return LINNET_OK;
    json_decref(*all);
    return lnt_fail(c, LINNET_EINVAL, "%s is missing", key);
}

linnet_status lnt_ask_tokenize(lnt_ctx *c, const lnt_service *v, const char *body, size_t bytes, int32_t **ids, int64_t *n)
{
    json_t *all, *text;
    char shown[SHOWN];
    lnt_ids_out o = {.c = c, .s = &v->specials};
    LNT_TRY(open_body(c, body, bytes, "prompt", &all, &text));
    linnet_status s = json_is_string(text) ? lnt_ids_marks(&o, json_string_value(text), json_string_length(text))
                                           : lnt_fail(c, LINNET_EINVAL, "prompt is %s, expected a string", lnt_json_show(text, shown, sizeof shown));
    if (s == LINNET_OK) s = lnt_ids_end(&o);
    if (s == LINNET_OK) *ids = o.ids, *n = o.n, o.ids = NULL;
    lnt_ids_close(&o);
    json_decref(all);
    return s;
}

static linnet_status spell(lnt_ctx *c, const lnt_service *v, const json_t *list, int32_t *ids, char **text, size_t *n)
{
    size_t bytes;
    LNT_TRY(read_ids(c, v->t, "tokens", list, ids));
    *n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) linnet_tokenizer_piece(v->t, ids[i], &bytes), *n = lnt_bytes_plus(*n, bytes);
    char *at = *text = lnt_alloc(lnt_bytes_plus(*n, 1));
    if (!at) return lnt_fail_memory(c, *n);
    for (size_t i = 0; i < json_array_size(list); i++, at += bytes) {
        const char *piece = linnet_tokenizer_piece(v->t, ids[i], &bytes);
        memcpy(at, piece, bytes);
    }
    return LINNET_OK;
}

linnet_status lnt_ask_detokenize(lnt_ctx *c, const lnt_service *v, const char *body, size_t bytes, char **text, size_t *n)
{
    json_t *all, *list;
    char shown[SHOWN];
    LNT_TRY(open_body(c, body, bytes, "tokens", &all, &list));
    int32_t *ids = lnt_alloc(lnt_bytes(json_array_size(list), sizeof *ids));
    linnet_status s = ids ? LINNET_OK : lnt_fail_memory(c, lnt_bytes(json_array_size(list), sizeof *ids));
    if (!json_is_array(list)) s = lnt_fail(c, LINNET_EINVAL, "tokens is %s, expected a list of ids", lnt_json_show(list, shown, sizeof shown));
    if (s == LINNET_OK) s = spell(c, v, list, ids, text, n);
    lnt_free(ids);
    json_decref(all);
    return s;
}

#include "serve/answer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "hub/json.h"
#include "hub/normalize.h"

/* How far a stream has come with a text. */
typedef struct lnt_sent {
    size_t bytes;   /* of it */
    int64_t said;
    int64_t offset; /* characters of the tokens said */
    int64_t viewed; /* tokens whose states were sent */
    bool recalled;
    bool begun, ended;
} lnt_sent;

/* ---- replies ---------------------------------------------------------------------------------------------------------------------------- */

void lnt_reply_bytes(lnt_reply *r, const char *type, char *body, size_t n)
{
    *r = (lnt_reply){.status = 200, .type = type, .body = body, .n = n};
    if (body) return;
    r->status = 500;
    r->type = "application/json";
    r->still = "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,\"code\":null}}";
    r->n = strlen(r->still);
}

static void reply_json(lnt_reply *r, int status, json_t *json)
{
    char *text = json ? lnt_json_text(json, JSON_COMPACT) : NULL;
    json_decref(json);
    lnt_reply_bytes(r, "application/json", text, text ? strlen(text) : 0);
    if (text) r->status = status;
}

static json_t *error_json(int status, const char *message, const char *parameter)
{
    size_t used, n;
    char *text = lnt_utf8_of(message, strlen(message), true, &used, &n);
    json_t *json = !text ? NULL
                         : json_pack("{s:{s:s%,s:s,s:s?,s:n}}", "error", "message", text, n, "type",
                                     status < 500 ? "invalid_request_error" : "server_error", "param", parameter, "code");
    lnt_free(text);
    return json;
}

void lnt_reply_error(lnt_reply *r, int status, const char *message, const char *parameter)
{
    reply_json(r, status, error_json(status, message, parameter));
}

void lnt_reply_failure(lnt_reply *r, const lnt_ctx *c, linnet_status s, const char *parameter)
{
    char text[LNT_ERROR_TEXT];
    const char *detail = linnet_error_detail(c), *hint = linnet_error_hint(c);
    snprintf(text, sizeof text, "%s%s%s%s%s", linnet_error_message(c), *detail ? ". " : "", detail, !*hint ? "" : *detail ? " " : ". ", hint);
    const bool theirs = s == LINNET_EINVAL || s == LINNET_EFORMAT || s == LINNET_EUNSUPPORTED;
    lnt_reply_error(r, theirs ? 400 : 500, text, parameter);
}

void lnt_reply_free(lnt_reply *r)
{
    lnt_free(r->body);
    *r = (lnt_reply){0};
}

/* ---- text ------------------------------------------------------------------------------------------------------------------------------- */

/* Could these bytes, which are no character, become one with more behind them? */
static bool open_end(const char *at, size_t n)
{
    char tried[4];
    const unsigned char b = (unsigned char)*at;
    const size_t whole = b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : 2;
    if (b < 0xc2 || b > 0xf4 || n >= whole) return false;
    for (int second = 0x80; second < 0xc0; second += n > 1 ? 0x40 : 1) { /* the second byte has exceptions: one that fits will do */
        memset(tried, 0x80, sizeof tried);
        if (n == 1) tried[1] = (char)second;
        memcpy(tried, at, n);
        if (lnt_utf8_prefix((const uint8_t *)tried, whole) == whole) return true;
    }
    return false;
}

char *lnt_utf8_of(const char *bytes, size_t n, bool whole, size_t *used, size_t *out_bytes)
{
    char *out = lnt_alloc(lnt_bytes_plus(lnt_bytes(n, 3), 1));
    *used = *out_bytes = 0;
    if (!out) return NULL;
    while (*used < n) {
        const size_t run = lnt_utf8_prefix((const uint8_t *)bytes + *used, n - *used);
        if (run) memcpy(out + *out_bytes, bytes + *used, run);
        *out_bytes += run;
        *used += run;
        if (*used == n || (!whole && open_end(bytes + *used, n - *used))) break;
        memcpy(out + *out_bytes, "\xef\xbf\xbd", 3);
        *out_bytes += 3;
        *used += 1;
    }
    out[*out_bytes] = 0;
    return out;
}

static json_t *json_bytes(const char *bytes, size_t n, bool whole, size_t *used)
{
    size_t m;
    char *text = lnt_utf8_of(bytes, n, whole, used, &m);
    json_t *json = text ? json_stringn(text, m) : NULL;
    lnt_free(text);
    return json;
}

/* ---- log-probabilities -------------------------------------------------------------------------------------------------------------------- */

static const char *piece_of(const lnt_answer *a, int32_t id, size_t *n)
{
    const char *piece = id < 0 ? NULL : linnet_tokenizer_piece(a->v->t, id, n);
    if (piece) return piece;
    *n = 0;
    return "";
}

/* A token's string; of one that is no whole text its bytes, so that no two look alike: "bytes:\xe2\x80". *room of `text` is enough for any. */
static const char *token_text(const lnt_answer *a, int32_t id, char *text, size_t room)
{
    size_t n;
    const char *piece = piece_of(a, id, &n);
    if (!n) return lnt_format(text, room, "token_id:%d", id), text;
    if (n < room && lnt_utf8_prefix((const uint8_t *)piece, n) == n && !memchr(piece, 0, n)) return memcpy(text, piece, n), text[n] = 0, text;
    size_t at = (size_t)lnt_format(text, room, "bytes:");
    for (size_t i = 0; i < n && at + 5 < room; i++) at += (size_t)lnt_format(text + at, room - at, "\\x%02x", (unsigned char)piece[i]);
    return text;
}

static int64_t characters(const char *bytes, size_t n)
{
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    return count;
}

enum { TOKEN_TEXT = 1024 };

/* JSON has no infinity: the logarithm of zero is OpenAI's number for it. */
static json_t *number(double x) { return isnan(x) ? json_null() : json_real(isinf(x) ? -9999.0 : x); }

/* logprobs of /v1/completions: entries from `from` on; *offset: characters in front of the first. */
static json_t *completion_logprobs(const lnt_answer *a, const lnt_written *w, int64_t from, int64_t *offset)
{
    const int row = a->ask.r->o.alternatives;
    char text[TOKEN_TEXT];
    size_t n;
    json_t *tokens = json_array(), *logprobs = json_array(), *tops = json_array(), *offsets = json_array();
    for (int64_t i = from; i < w->n_said; i++) {
        const lnt_said *s = &w->said[i];
        const char *piece = piece_of(a, s->id, &n);
        json_t *top = isnan(s->logprob) ? json_null() : json_object();
        for (int k = 0; k < row && json_is_object(top); k++) {
            const char *key = token_text(a, w->top[i * row + k], text, sizeof text);
            if (!json_object_get(top, key)) json_object_set_new(top, key, number(w->top_logprob[i * row + k]));
        }
        token_text(a, s->id, text, sizeof text);
        if (json_is_object(top) && !json_object_get(top, text)) json_object_set_new(top, text, number(s->logprob));
        json_array_append_new(tokens, json_string(text));
        json_array_append_new(logprobs, number(s->logprob));
        json_array_append_new(tops, top);
        json_array_append_new(offsets, json_integer(*offset));
        *offset += characters(piece, n);
    }
    return json_pack("{s:o,s:o,s:o,s:o}", "tokens", tokens, "token_logprobs", logprobs, "top_logprobs", tops, "text_offset", offsets);
}

static json_t *chat_token(const lnt_answer *a, int32_t id, double logprob)
{
    size_t n, used;
    const char *piece = piece_of(a, id, &n);
    json_t *bytes = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(bytes, json_integer((unsigned char)piece[i]));
    return json_pack("{s:o,s:o,s:o}", "token", json_bytes(piece, n, true, &used), "logprob", number(logprob), "bytes", bytes);
}

static json_t *chat_logprobs(const lnt_answer *a, const lnt_written *w, int64_t from)
{
    const int row = a->ask.r->o.alternatives;
    json_t *content = json_array();
    for (int64_t i = from; i < w->n_said; i++) {
        json_t *one = chat_token(a, w->said[i].id, w->said[i].logprob), *tops = json_array();
        for (int k = 0; k < row; k++) json_array_append_new(tops, chat_token(a, w->top[i * row + k], w->top_logprob[i * row + k]));
        json_object_set_new(one, "top_logprobs", tops);
        json_array_append_new(content, one);
    }
    return json_pack("{s:o}", "content", content);
}

/* ---- a look into the state ------------------------------------------------------------------------------------------------------------------ */

/* A row of numbers; null where there is none of them. */
static json_t *row_json(const float *row, int64_t n)
{
    int64_t there = 0;
    for (int64_t i = 0; i < n; i++) there += !isnan(row[i]);
    json_t *json = there ? json_array() : json_null();
    for (int64_t i = 0; i < n && there; i++) json_array_append_new(json, number((double)row[i]));
    return json;
}

static json_t *recall_json(const lnt_viewed *v, int64_t of)
{
    json_t *nearest = json_array(), *nearness = json_array();
    for (int64_t h = 0; h < v->heads; h++) {
        json_t *ids = json_array(), *near = json_array();
        for (int64_t i = h * LNT_RECALLED; i < (h + 1) * LNT_RECALLED && v->nearest[i] >= 0; i++) {
            json_array_append_new(ids, json_integer(v->nearest[i]));
            json_array_append_new(near, number((double)v->nearness[i]));
        }
        json_array_append_new(nearest, ids);
        json_array_append_new(nearness, near);
    }
    return json_pack("{s:I,s:o,s:o,s:o}", "of", (json_int_t)of, "cosine", row_json(v->cosine, v->heads), "nearest", nearest, "nearness", nearness);
}

/* Tokens from `from` on, and the recall where it is there and not sent. */
static json_t *state_json(const lnt_answer *a, const lnt_viewed *v, int64_t from, bool recalled)
{
    char text[TOKEN_TEXT];
    json_t *ids = json_array(), *tokens = json_array(), *norm = json_array(), *memory = json_array();
    for (int64_t i = from; i < v->n; i++) {
        json_array_append_new(ids, json_integer(v->ids[i]));
        json_array_append_new(tokens, json_string(token_text(a, v->ids[i], text, sizeof text)));
        json_array_append_new(norm, row_json(v->norm + i * v->heads, v->heads));
        json_array_append_new(memory, row_json(v->memory + i * v->heads, v->heads));
    }
    json_t *json = json_pack("{s:I,s:I,s:o,s:o,s:o,s:o}", "prompt", (json_int_t)a->ask.r->prompts[0].n, "first", (json_int_t)from, "ids", ids,
                             "tokens", tokens, "norm", norm, "memory", memory);
    if (v->cosine && !recalled) json_object_set_new(json, "recall", recall_json(v, a->ask.r->recall));
    return json;
}

/* ---- answers ---------------------------------------------------------------------------------------------------------------------------- */

linnet_status lnt_answer_begin(lnt_ctx *c, const lnt_service *v, const lnt_ask *ask, lnt_answer *a)
{
    uint64_t name = 0;
    const size_t texts = lnt_bytes((size_t)ask->r->n_prompts, (size_t)ask->r->n);
    *a = (lnt_answer){.v = v, .ask = *ask, .created = (int64_t)time(NULL)};
    if (getrandom(&name, sizeof name, GRND_NONBLOCK) < 0) name = (uint64_t)(uintptr_t)ask->r;
    snprintf(a->id, sizeof a->id, "%s-%016llx", ask->chat ? "chatcmpl" : "cmpl", (unsigned long long)name);
    a->sent = lnt_calloc(lnt_bytes(texts, sizeof *a->sent));
    return a->sent ? LINNET_OK : lnt_fail_memory(c, lnt_bytes(texts, sizeof *a->sent));
}

void lnt_answer_end(lnt_answer *a)
{
    lnt_request_release(a->ask.r);
    lnt_free(a->sent);
    lnt_free(a->out);
    *a = (lnt_answer){0};
}

static const char *finish(int32_t ended) { return ended == LINNET_ENDED_LENGTH ? "length" : "stop"; }

static json_t *usage(const lnt_answer *a)
{
    const lnt_request *r = a->ask.r;
    json_int_t read = 0, cached = 0, written = 0;
    for (int i = 0; i < r->n_prompts; i++) read += r->prompts[i].n, cached += r->prompts[i].cached;
    for (int i = 0; i < r->n_prompts * r->n; i++) written += r->written[i].drawn;
    return json_pack("{s:I,s:I,s:I,s:{s:I}}", "prompt_tokens", read, "completion_tokens", written, "total_tokens", read + written,
                     "prompt_tokens_details", "cached_tokens", cached);
}

static json_t *head(const lnt_answer *a, const char *object, json_t *choices)
{
    return json_pack("{s:s,s:s,s:I,s:s,s:o}", "id", a->id, "object", object, "created", (json_int_t)a->created, "model", a->v->o.name, "choices",
                     choices);
}

/* The prompt's bytes in front of a text's, from `from` on; freed with lnt_free. */
static char *with_prompt(const lnt_answer *a, int prompt, const lnt_written *w, size_t from, size_t *n)
{
    const lnt_prompt *p = &a->ask.r->prompts[prompt];
    size_t bytes = 0;
    *n = w->n_text - from;
    for (int64_t i = 0; i < p->n; i++) piece_of(a, p->ids[i], &bytes), *n = lnt_bytes_plus(*n, bytes);
    char *text = lnt_alloc(lnt_bytes_plus(*n, 1)), *to = text;
    if (!text) return NULL;
    for (int64_t i = 0; i < p->n; i++, to += bytes) {
        const char *piece = piece_of(a, p->ids[i], &bytes);
        memcpy(to, piece, bytes);
    }
    if (w->n_text > from) memcpy(to, w->text + from, w->n_text - from);
    return text;
}

static json_t *whole_choice(const lnt_answer *a, int i)
{
    const lnt_request *r = a->ask.r;
    const lnt_written *w = &r->written[i];
    size_t used, n = w->n_text;
    int64_t offset = 0;
    char *both = a->ask.echo ? with_prompt(a, i / r->n, w, 0, &n) : NULL;
    json_t *text = json_bytes(both ? both : w->text ? w->text : "", n, true, &used);
    lnt_free(both);
    json_t *said = !r->scored ? json_null() : a->ask.chat ? chat_logprobs(a, w, 0) : completion_logprobs(a, w, 0, &offset);
    json_t *state = r->viewed ? state_json(a, &w->viewed, 0, false) : NULL;
    if (a->ask.chat)
        return json_pack("{s:i,s:{s:s,s:o},s:o,s:s,s:o*}", "index", i, "message", "role", "assistant", "content", text, "logprobs", said,
                         "finish_reason", finish(w->ended), "state", state);
    return json_pack("{s:i,s:o,s:o,s:s,s:o*}", "index", i, "text", text, "logprobs", said, "finish_reason", finish(w->ended), "state", state);
}

/* Requests that failed: the server's fault, but for its time and its end. */
static int status_of(const lnt_request *r) { return r->status == LINNET_EINTERRUPTED ? 503 : 500; }

void lnt_answer_whole(lnt_answer *a, lnt_reply *out)
{
    const lnt_request *r = a->ask.r;
    if (r->status != LINNET_OK) {
        lnt_reply_error(out, status_of(r), r->error, NULL);
        return;
    }
    json_t *choices = json_array();
    for (int i = 0; i < r->n_prompts * r->n; i++) json_array_append_new(choices, whole_choice(a, i));
    json_t *json = head(a, a->ask.chat ? "chat.completion" : "text_completion", choices);
    json_object_set_new(json, "usage", usage(a));
    reply_json(out, 200, json);
}

/* ---- streams ---------------------------------------------------------------------------------------------------------------------------- */

static void put_out(lnt_answer *a, const char *text, size_t n)
{
    if (a->n_out + n > a->room_out) {
        const size_t room = lnt_bytes_plus(lnt_bytes(a->n_out, 2), lnt_bytes_plus(n, 1024));
        char *grown = lnt_realloc(a->out, a->room_out, room);
        a->last |= !grown; /* without memory a stream breaks off */
        if (!grown) return;
        a->out = grown;
        a->room_out = room;
    }
    memcpy(a->out + a->n_out, text, n);
    a->n_out += n;
}

static void put_event(lnt_answer *a, json_t *json)
{
    char *text = json ? lnt_json_text(json, JSON_COMPACT) : NULL;
    json_decref(json);
    a->last |= !text;
    if (!text) return;
    put_out(a, "data: ", 6);
    put_out(a, text, strlen(text));
    put_out(a, "\n\n", 2);
    lnt_free(text);
}

static void put_chunk(lnt_answer *a, json_t *choice, json_t *counts)
{
    json_t *choices = json_array();
    if (choice) json_array_append_new(choices, choice);
    json_t *json = head(a, a->ask.chat ? "chat.completion.chunk" : "text_completion", choices);
    if (counts) json_object_set_new(json, "usage", counts);
    put_event(a, json);
}

/* What is new of a text, as one event. */
static void put_news(lnt_answer *a, int i)
{
    lnt_request *r = a->ask.r;
    const lnt_written *w = &r->written[i];
    lnt_sent *k = &a->sent[i];
    const bool ended = w->ended != LNT_GOES_ON, first = !k->begun, echo = first && a->ask.echo;
    size_t used = 0, n = w->n_text - k->bytes, front = 0;
    const bool seen = w->viewed.n > k->viewed || (w->viewed.cosine && !k->recalled);
    if (k->ended || (!ended && !n && w->n_said == k->said && !echo && !seen)) return;
    char *both = echo ? with_prompt(a, i / r->n, w, 0, &n) : NULL;
    front = both ? n - w->n_text : 0;
    json_t *text = json_bytes(both ? both : w->text ? w->text + k->bytes : "", n, ended, &used);
    lnt_free(both);
    if (used < front || (!ended && !echo && !seen && !json_string_length(text) && w->n_said == k->said)) { /* a character is not whole */
        json_decref(text);
        return;
    }
    k->bytes += used - front;
    k->begun = true;
    k->ended = ended;
    json_t *said = !r->scored ? json_null() : a->ask.chat ? chat_logprobs(a, w, k->said) : completion_logprobs(a, w, k->said, &k->offset);
    k->said = w->n_said;
    json_t *state = r->viewed ? state_json(a, &w->viewed, k->viewed, k->recalled) : NULL;
    k->viewed = w->viewed.n;
    k->recalled = w->viewed.cosine != NULL;
    json_t *reason = ended ? json_string(finish(w->ended)) : json_null();
    if (!a->ask.chat) {
        put_chunk(a, json_pack("{s:i,s:o,s:o,s:o,s:o*}", "index", i, "text", text, "logprobs", said, "finish_reason", reason, "state", state), NULL);
        return;
    }
    json_t *delta = json_pack("{s:o}", "content", text);
    if (first) json_object_set_new(delta, "role", json_string("assistant"));
    put_chunk(a, json_pack("{s:i,s:o,s:o,s:o,s:o*}", "index", i, "delta", delta, "logprobs", said, "finish_reason", reason, "state", state), NULL);
}

void lnt_answer_events(lnt_answer *a)
{
    lnt_request *r = a->ask.r;
    a->n_out = a->at_out = 0;
    if (a->last) return;
    for (int i = 0; i < r->n_prompts * r->n; i++) put_news(a, i);
    if (!lnt_request_over(r)) return;
    if (r->status != LINNET_OK) put_event(a, error_json(status_of(r), r->error, NULL));
    else if (a->ask.usage) put_chunk(a, NULL, usage(a));
    if (r->status == LINNET_OK) put_out(a, "data: [DONE]\n\n", 14);
    a->last = true;
}

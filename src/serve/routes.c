#include "serve/routes.h"

#include <stdio.h>
#include <string.h>

#include "hub/json.h"

typedef bool answers(lnt_ctx *c, lnt_service *v, const char *body, size_t bytes, lnt_reply *r, lnt_answer *a);

struct lnt_route {
    const char *method, *path;
    answers *answer;
    bool open; /* without a key, too */
};

static void reply_json(lnt_reply *r, json_t *json)
{
    char *text = json ? lnt_json_text(json, JSON_COMPACT) : NULL;
    json_decref(json);
    lnt_reply_bytes(r, "application/json", text, text ? strlen(text) : 0);
}

/* ---- texts ------------------------------------------------------------------------------------------------------------------------------ */

static bool write_text(lnt_ctx *c, lnt_service *v, bool chat, const char *body, size_t bytes, lnt_reply *r, lnt_answer *a)
{
    lnt_ask ask;
    linnet_status s = lnt_ask_read(c, v, chat, body, bytes, &ask);
    if (s == LINNET_OK) {
        s = lnt_answer_begin(c, v, &ask, a);
        if (s == LINNET_OK) return true;
        lnt_answer_end(a);
    } else
        lnt_request_release(ask.r);
    lnt_reply_failure(r, c, s, ask.parameter);
    return false;
}

static bool completions(lnt_ctx *c, lnt_service *v, const char *body, size_t bytes, lnt_reply *r, lnt_answer *a)
{
    return write_text(c, v, false, body, bytes, r, a);
}

static bool chat_completions(lnt_ctx *c, lnt_service *v, const char *body, size_t bytes, lnt_reply *r, lnt_answer *a)
{
    return write_text(c, v, true, body, bytes, r, a);
}

bool lnt_route_start(lnt_ctx *c, lnt_service *v, lnt_answer *a, lnt_reply *r)
{
    const linnet_status s = lnt_scheduler_put(v->scheduler, c, a->ask.r);
    if (s == LINNET_OK) return true;
    lnt_reply_error(r, s == LINNET_EUNSUPPORTED ? 503 : 500, linnet_error_message(c), NULL);
    return false;
}

/* ---- the tokenizer ---------------------------------------------------------------------------------------------------------------------- */

static bool tokenize(lnt_ctx *c, lnt_service *v, const char *body, size_t bytes, lnt_reply *r, lnt_answer *a)
{
    (void)a;
    int32_t *ids = NULL;
    int64_t n = 0;
    const linnet_status s = lnt_ask_tokenize(c, v, body, bytes, &ids, &n);
    if (s != LINNET_OK) {
        lnt_reply_failure(r, c, s, NULL);
        return false;
    }
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    lnt_free(ids);
    const json_int_t context = lnt_scheduler_context(v->scheduler);
    reply_json(r, json_pack("{s:o,s:I,s:I}", "tokens", list, "count", (json_int_t)n, "max_model_len", context));
    return false;
}

static bool detokenize(lnt_ctx *c, lnt_service *v, const char *body, size_t bytes, lnt_reply *r, lnt_answer *a)
{
    (void)a;
    char *text = NULL, *clean = NULL;
    size_t n = 0, used, m = 0;
    const linnet_status s = lnt_ask_detokenize(c, v, body, bytes, &text, &n);
    if (s == LINNET_OK) clean = lnt_utf8_of(text, n, true, &used, &m);
    if (s != LINNET_OK) lnt_reply_failure(r, c, s, NULL);
    else reply_json(r, clean ? json_pack("{s:o}", "prompt", json_stringn(clean, m)) : NULL);
    lnt_free(clean);
    lnt_free(text);
    return false;
}

static bool tokenizer_info(lnt_ctx *c, lnt_service *v, const char *body, size_t bytes, lnt_reply *r, lnt_answer *a)
{
    (void)c, (void)body, (void)bytes, (void)a;
    const lnt_specials *s = &v->specials;
    /* a text that begins from nothing begins from the separator, or from a newline where there is none */
    reply_json(r, json_pack("{s:s,s:s?,s:s?,s:I,s:s*}", "eos_token", s->eos ? s->eos : "\n", "bos_token", s->bos, "pad_token", s->pad, "vocab_size",
                            (json_int_t)linnet_tokenizer_vocabulary(v->t), "chat_template", s->chat_template));
    return false;
}

/* ---- the server ------------------------------------------------------------------------------------------------------------------------- */

static bool models(lnt_ctx *c, lnt_service *v, const char *body, size_t bytes, lnt_reply *r, lnt_answer *a)
{
    (void)c, (void)body, (void)bytes, (void)a;
    reply_json(r, json_pack("{s:s,s:[{s:s,s:s,s:I,s:s,s:I}]}", "object", "list", "data", "id", v->o.name, "object", "model", "created",
                            (json_int_t)v->started, "owned_by", "linnet", "max_model_len", (json_int_t)lnt_scheduler_context(v->scheduler)));
    return false;
}

static json_t *part_json(const lnt_view_part *p)
{
    json_t *json = json_pack("{s:s,s:I,s:s}", "name", p->name, "layer", (json_int_t)p->layer, "operator", p->op);
    if (p->nothing) {
        json_object_set_new(json, "nothing", json_string(p->nothing));
        return json;
    }
    json_t *more = json_pack("{s:I,s:I,s:I,s:I,s:b,s:s?,s:s?}", "first", (json_int_t)p->first, "heads", (json_int_t)p->heads, "rows",
                             (json_int_t)p->rows, "columns", (json_int_t)p->columns, "decays", p->decays, "no_memory", p->no_memory, "no_recall",
                             p->no_recall);
    json_object_update(json, more);
    json_decref(more);
    return json;
}

/* What a page has to know of the model. */
static bool model_info(lnt_ctx *c, lnt_service *v, const char *body, size_t bytes, lnt_reply *r, lnt_answer *a)
{
    (void)c, (void)body, (void)bytes, (void)a;
    const lnt_views *w = lnt_scheduler_views(v->scheduler);
    json_t *parts = json_array();
    for (int i = 0; i < w->n_parts; i++) json_array_append_new(parts, part_json(&w->parts[i]));
    reply_json(r, json_pack("{s:s,s:I,s:b,s:s?,s:o}", "name", v->o.name, "context", (json_int_t)lnt_scheduler_context(v->scheduler), "chat",
                            v->chat.family != NULL, "no_chat", v->chat.family ? NULL : v->chat.why, "state", parts));
    return false;
}

static bool health(lnt_ctx *c, lnt_service *v, const char *body, size_t bytes, lnt_reply *r, lnt_answer *a)
{
    (void)c, (void)v, (void)body, (void)bytes, (void)a;
    reply_json(r, json_pack("{s:s}", "status", "ok"));
    return false;
}

static bool metrics(lnt_ctx *c, lnt_service *v, const char *body, size_t bytes, lnt_reply *r, lnt_answer *a)
{
    (void)c, (void)body, (void)bytes, (void)a;
    char *text = lnt_metrics_text(&v->metrics);
    lnt_reply_bytes(r, "text/plain; version=0.0.4", text, text ? strlen(text) : 0);
    return false;
}

static const lnt_route routes[] = {
    {"POST", "/v1/completions", completions, false},
    {"POST", "/v1/chat/completions", chat_completions, false},
    {"GET", "/v1/models", models, false},
    {"POST", "/tokenize", tokenize, false},
    {"POST", "/detokenize", detokenize, false},
    {"GET", "/tokenizer_info", tokenizer_info, false},
    {"GET", "/model_info", model_info, false},
    {"GET", "/metrics", metrics, false},
    {"GET", "/health", health, true},
};
enum { ROUTES = sizeof routes / sizeof *routes };

/* Whether two strings are equal, in a time that says nothing of where they differ. */
static bool same_secret(const char *mine, const char *theirs)
{
    const size_t n = strlen(mine), m = strlen(theirs);
    unsigned differs = n != m;
    for (size_t i = 0; i < m; i++) differs |= (unsigned char)theirs[i] ^ (unsigned char)mine[n ? i % n : 0];
    return !differs;
}

static bool may(const lnt_service *v, const char *authorization)
{
    static const char scheme[] = "Bearer ";
    if (!v->o.key) return true;
    return authorization && !strncmp(authorization, scheme, sizeof scheme - 1) && same_secret(v->o.key, authorization + sizeof scheme - 1);
}

static void reply_page(const char *path, lnt_reply *r)
{
    const lnt_page_file *f = lnt_page_find(path);
    char text[160];
    if (f) {
        *r = (lnt_reply){.status = 200, .type = f->type, .still = f->bytes, .n = f->n, .page = true};
        return;
    }
    snprintf(text, sizeof text, "there is nothing at %.100s", path);
    lnt_reply_error(r, 404, text, NULL);
}

const lnt_route *lnt_route_find(lnt_service *v, const char *method, const char *path, const char *authorization, lnt_reply *r)
{
    const bool reads = !strcmp(method, "GET") || !strcmp(method, "HEAD");
    char text[160];
    const lnt_route *found = NULL;
    for (int i = 0; i < ROUTES && !found; i++)
        if (!strcmp(routes[i].path, path)) found = &routes[i];
    if (found && strcmp(found->method, reads ? "GET" : method) != 0) {
        snprintf(text, sizeof text, "the method is %.16s, expected %s", method, found->method);
        lnt_reply_error(r, 405, text, NULL);
    } else if (found && !found->open && !may(v, authorization))
        lnt_reply_error(r, 401, authorization ? "the API key is not the server's" : "the API key is missing: Authorization: Bearer KEY", NULL);
    else if (found)
        return found;
    else if (reads)
        reply_page(path, r);
    else
        lnt_reply_error(r, 404, "there is nothing there", NULL);
    return NULL;
}

/* "localhost:8080", "127.0.0.1", "[::1]:80". */
static bool is_loopback(const char *host)
{
    const size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    if (n == 9 && !strncmp(host, "localhost", n)) return true;
    if (n == 5 && !strncmp(host, "[::1]", n)) return true;
    return !strncmp(host, "127.", 4) && strspn(host, "0123456789.") == n;
}

bool lnt_route_foreign(const lnt_service *v, const char *address, const char *host, const char *origin, lnt_reply *r)
{
    static const char *const schemes[] = {"http://", "https://"};
    const bool here = !strncmp(address, "http://127.", 11) || !strncmp(address, "http://[::1]", 12);
    bool ours = !origin;
    char text[256];
    if (v->o.key) return false; /* whoever has the key may */
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes && !ours; i++)
        ours = host && !strncmp(origin, schemes[i], strlen(schemes[i])) && !strcmp(origin + strlen(schemes[i]), host);
    if (ours && !(here && host && !is_loopback(host))) return false;
    if (!ours) snprintf(text, sizeof text, "a page of %.100s asks, which is another site; with an API key it may", origin);
    else snprintf(text, sizeof text, "the request is for %.100s, but this server is for this machine alone; with an API key it may come", host);
    lnt_reply_error(r, 403, text, NULL);
    return true;
}

bool lnt_route_takes_body(const lnt_route *route) { return !strcmp(route->method, "POST"); }

bool lnt_route_answer(const lnt_route *route, lnt_ctx *c, lnt_service *v, const char *body, size_t bytes, lnt_reply *r, lnt_answer *a)
{
    return route->answer(c, v, body, bytes, r, a);
}

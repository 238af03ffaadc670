/* A byte for the path, the rest as the body of a request: refused with a message, or answered with JSON. */
#include <stdlib.h>
#include <string.h>

#include "hub/json.h"
#include "serve/routes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_TOKENS = 96 }; /* of a request that is run */

static linnet_context *c;
static lnt_service service;

static void open_service(void)
{
    static const char *const set[][2] = {{"hidden_size", "16"}, {"num_hidden_layers", "1"}, {"num_heads", "1"}, {"vocab_size", "256"}};
    const linnet_server_options o = LINNET_SERVER_OPTIONS_INIT;
    const lnt_scheduler_options limits = {.slots = 3, .waiting = 8, .context = 512, .chunk = 8, .cache_bytes = 1 << 16};
    linnet_config *k;
    linnet_model *m;
    linnet_tokenizer *t;
    if (linnet_context_create(NULL, &c) != LINNET_OK || linnet_config_create(c, "retnet", &k) != LINNET_OK) abort();
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        if (linnet_config_set(c, k, set[i][0], set[i][1]) != LINNET_OK) abort();
    if (linnet_model_create(c, k, LINNET_F32, 1, &m) != LINNET_OK || linnet_tokenizer_open(c, "bytes", &t) != LINNET_OK) abort();
    service.o = o;
    service.o.name = "m";
    service.t = t;
    if (lnt_specials_open(c, t, NULL, &service.specials) != LINNET_OK) abort();
    if (lnt_chat_template_find(c, &service.specials, "plain", &service.chat) != LINNET_OK) abort();
    if (lnt_scheduler_create(c, m, t, &limits, &service.metrics, &service.scheduler) != LINNET_OK) abort();
    linnet_config_destroy(k);
}

static void check_json(const char *text, size_t n)
{
    json_t *json = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    if (!json) abort();
    json_decref(json);
}

static void check_reply(lnt_reply *r)
{
    check_json(r->still ? r->still : r->body, r->n);
    lnt_reply_free(r);
}

/* The same as a whole and as events. */
static void write_text(lnt_answer *a)
{
    lnt_request *r = a->ask.r;
    int64_t tokens = 0;
    lnt_reply reply = {0};
    for (int i = 0; i < r->n_prompts; i++) tokens += r->prompts[i].n + r->n * r->o.max_tokens;
    r->each = true;
    if (tokens > MOST_TOKENS || !lnt_route_start(c, &service, a, &reply)) {
        lnt_reply_free(&reply);
        return;
    }
    while (!lnt_request_over(r)) lnt_scheduler_round(service.scheduler);
    lnt_answer_whole(a, &reply);
    check_reply(&reply);
    lnt_answer_events(a);
    if (!a->last) abort();
    for (size_t at = 0; at < a->n_out;) {
        const char *line = a->out + at, *end = memmem(line, a->n_out - at, "\n\n", 2);
        if (!end || memcmp(line, "data: ", 6) != 0) abort();
        if (memcmp(line, "data: [DONE]", 12) != 0) check_json(line + 6, (size_t)(end - line) - 6);
        at += (size_t)(end - line) + 2;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const paths[] = {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"};
    lnt_reply reply = {0};
    lnt_answer answer = {0};
    if (!c) open_service();
    if (!size) return 0;
    const lnt_route *route = lnt_route_find(&service, "POST", paths[*data % 4], NULL, &reply);
    if (!route) abort();
    if (lnt_route_answer(route, c, &service, (const char *)data + 1, size - 1, &reply, &answer)) {
        write_text(&answer);
        lnt_answer_end(&answer);
        lnt_scheduler_round(service.scheduler);
    } else
        check_reply(&reply);
    return 0;
}

/* linnet_server: what is asked of it, and its life. */
#include <string.h>
#include <time.h>

#include "core/border.h"
#include "core/clock.h"
#include "device/device.h"
#include "model/model.h"
#include "serve/http.h"

struct linnet_server {
    lnt_ctx *c;
    lnt_service v;
    lnt_http *http;
};

/* Seconds between looks at `stop` and at clients that have gone. */
static const double LOOK = 0.1;

static linnet_status keep_text(linnet_server *s, const char **text, const char *fallback)
{
    if (!*text) *text = fallback;
    if (!*text) return LINNET_OK;
    *text = lnt_arena_strdup(&s->v.arena, *text);
    return *text ? LINNET_OK : lnt_fail_memory(s->c, 1);
}

static linnet_status open_service(linnet_server *s, linnet_model *m, const linnet_tokenizer *t)
{
    lnt_service *v = &s->v;
    LNT_TRY(keep_text(s, &v->o.host, "127.0.0.1"));
    LNT_TRY(keep_text(s, &v->o.key, NULL));
    LNT_TRY(keep_text(s, &v->o.name, "linnet"));
    v->t = t;
    v->started = (int64_t)time(NULL);
    LNT_TRY(lnt_specials_open(s->c, t, v->o.folder, &v->specials));
    LNT_TRY(lnt_chat_template_find(s->c, &v->specials, v->o.chat_template, &v->chat));
    const lnt_scheduler_options o = {.slots = v->o.slots, .waiting = v->o.waiting, .context = v->o.context, .chunk = v->o.chunk,
                                     .cache_bytes = v->o.cache_bytes, .ahead = v->o.ahead < 0 ? lnt_on_cuda(s->c) : v->o.ahead};
    LNT_TRY(lnt_scheduler_create(s->c, m, t, &o, &v->metrics, &v->scheduler));
    return lnt_http_open(s->c, v, &s->http);
}

linnet_status linnet_server_create(linnet_context *c, linnet_model *m, const linnet_tokenizer *t, const linnet_server_options *options,
                                   linnet_server **out)
{
    linnet_server_options o = LINNET_SERVER_OPTIONS_INIT;
    LNT_TRY(lnt_model_check_next(c, m));
    LNT_TRY(lnt_need(c, t, "the tokenizer"));
    LNT_NEED(c, out);
    *out = NULL;
    if (options) LNT_TRY(lnt_options_take(c, "server", options, &o));
    if (o.key && !*o.key) return lnt_fail(c, LINNET_EINVAL, "the API key is empty");
    if (!m->w) return lnt_fail(c, LINNET_EINVAL, "the model is an outline: it has no weights");
    linnet_server *s = lnt_calloc(sizeof *s);
    if (!s) return lnt_fail_memory(c, sizeof *s);
    s->c = c;
    s->v.o = o;
    const linnet_status status = open_service(s, m, t);
    if (status == LINNET_OK) *out = s;
    else linnet_server_destroy(s);
    return status;
}

const char *linnet_server_address(const linnet_server *s) { return s ? lnt_http_address(s->http) : ""; }

/* Rounds until `until`, or until nobody is heard any more if that is asked for. */
static void work(linnet_server *s, double until, bool to_the_end, int (*stop)(void *user), void *user)
{
    double looked = 0;
    for (;;) {
        if (lnt_now() - looked >= LOOK) { /* before the first round, too: who is told to end meanwhile has to be somebody who looks */
            looked = lnt_now();
            lnt_http_watch(s->http);
            if ((stop && stop(user)) || lnt_now() > until || (to_the_end && !lnt_http_busy(s->http))) return;
        }
        if (!lnt_scheduler_round(s->v.scheduler)) lnt_scheduler_wait(s->v.scheduler, LOOK);
    }
}

linnet_status linnet_server_run(linnet_server *s, int (*stop)(void *user), void *user)
{
    if (!s) return LINNET_EINVAL;
    LNT_NEED(s->c, stop);
    work(s, INFINITY, false, stop, user);
    lnt_http_quiet(s->http);
    lnt_scheduler_close(s->v.scheduler);
    work(s, lnt_now() + s->v.o.idle_seconds, true, NULL, NULL);
    lnt_scheduler_abandon(s->v.scheduler);
    for (double until = lnt_now() + 1; lnt_http_busy(s->http) && lnt_now() < until;) lnt_scheduler_wait(s->v.scheduler, 0.01); /* they are told */
    return LINNET_OK;
}

void linnet_server_destroy(linnet_server *s)
{
    if (!s) return;
    if (s->v.scheduler) lnt_scheduler_close(s->v.scheduler);
    if (s->v.scheduler) lnt_scheduler_abandon(s->v.scheduler);
    lnt_http_close(s->http);
    lnt_scheduler_destroy(s->v.scheduler);
    lnt_specials_close(&s->v.specials);
    lnt_arena_free(&s->v.arena);
    lnt_free(s);
}

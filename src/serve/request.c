#include "serve/request.h"

#include <stdio.h>
#include <string.h>

#include "core/clock.h"

linnet_status lnt_request_create(lnt_ctx *c, lnt_request **out)
{
    const linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    lnt_request *r = *out = lnt_calloc(sizeof *r);
    if (!r) return lnt_fail_memory(c, sizeof *r);
    r->o = o;
    r->n = 1;
    r->recall = -1;
    pthread_mutex_init(&r->lock, NULL);
    atomic_init(&r->dropped, false);
    atomic_init(&r->holders, 1);
    return LINNET_OK;
}

linnet_status lnt_request_ready(lnt_ctx *c, lnt_request *r)
{
    const size_t bytes = lnt_bytes(lnt_bytes((size_t)r->n_prompts, (size_t)r->n), sizeof *r->written);
    if (!(r->written = lnt_calloc(bytes))) return lnt_fail_memory(c, bytes);
    for (int i = 0; i < r->n_prompts * r->n; i++) r->written[i].ended = LNT_GOES_ON;
    return LINNET_OK;
}

void lnt_request_hold(lnt_request *r) { atomic_fetch_add(&r->holders, 1); }

void lnt_request_release(lnt_request *r)
{
    if (!r || atomic_fetch_sub(&r->holders, 1) > 1) return;
    for (int i = 0; r->written && i < r->n_prompts * r->n; i++) {
        lnt_free(r->written[i].text);
        lnt_free(r->written[i].said);
        lnt_free(r->written[i].top);
        lnt_free(r->written[i].top_logprob);
        void *const seen[] = {r->written[i].viewed.ids, r->written[i].viewed.norm, r->written[i].viewed.memory, r->written[i].viewed.cosine,
                              r->written[i].viewed.nearest, r->written[i].viewed.nearness};
        for (size_t k = 0; k < sizeof seen / sizeof *seen; k++) lnt_free(seen[k]);
    }
    lnt_free(r->written);
    lnt_arena_free(&r->arena);
    pthread_mutex_destroy(&r->lock);
    lnt_free(r);
}

void lnt_request_tell(lnt_request *r)
{
    if (r->wake && (r->each || lnt_request_over(r))) r->wake(r->user);
}

void lnt_request_fail(lnt_request *r, const lnt_ctx *c, linnet_status s)
{
    const char *const part[] = {linnet_error_message(c), linnet_error_detail(c), linnet_error_hint(c)};
    pthread_mutex_lock(&r->lock);
    if (!lnt_request_over(r)) {
        r->status = s;
        snprintf(r->error, sizeof r->error, "%s%s%s%s%s", part[0], *part[1] ? ". " : "", part[1], !*part[2] ? "" : *part[1] ? " " : ". ", part[2]);
        lnt_request_tell(r);
    }
    pthread_mutex_unlock(&r->lock);
}

bool lnt_request_wanted(lnt_request *r, lnt_ctx *c)
{
    if (r->until && lnt_now() > r->until) lnt_request_fail(r, c, lnt_fail(c, LINNET_EINTERRUPTED, "the request took longer than it may"));
    pthread_mutex_lock(&r->lock);
    const bool wanted = !atomic_load(&r->dropped) && !lnt_request_over(r);
    pthread_mutex_unlock(&r->lock);
    return wanted;
}

/* Room for `more` beside `used` of `size` bytes each: *room becomes what there is. */
static bool grow(void **p, int64_t used, int64_t more, int64_t room, int64_t *grown, size_t size)
{
    *grown = room;
    if (used + more <= room) return true;
    *grown = 2 * room + more + 64;
    void *at = lnt_realloc(*p, lnt_bytes((size_t)room, size), lnt_bytes((size_t)*grown, size));
    if (at) *p = at;
    return at;
}

bool lnt_written_bytes(lnt_written *w, const char *bytes, size_t n)
{
    int64_t room;
    void *text = w->text;
    if (!n) return true;
    if (!grow(&text, (int64_t)w->n_text, (int64_t)n, (int64_t)w->room_text, &room, 1)) return false;
    w->text = text;
    w->room_text = (size_t)room;
    memcpy(w->text + w->n_text, bytes, n);
    w->n_text += n;
    return true;
}

bool lnt_written_said(lnt_written *w, int32_t id, double logprob, int alternatives, const int32_t *top, const double *top_logprob)
{
    const size_t row = (size_t)alternatives;
    void *said = w->said, *ids = w->top, *probable = w->top_logprob;
    int64_t room;
    bool good = grow(&said, w->n_said, 1, w->room_said, &room, sizeof *w->said);
    w->said = said;
    good = good && (!row || grow(&ids, w->n_said, 1, w->room_said, &room, lnt_bytes(row, sizeof *w->top)));
    w->top = ids;
    good = good && (!row || grow(&probable, w->n_said, 1, w->room_said, &room, lnt_bytes(row, sizeof *w->top_logprob)));
    w->top_logprob = probable;
    if (!good) return false;
    w->room_said = room;
    w->said[w->n_said] = (lnt_said){.id = id, .logprob = logprob};
    if (row) memcpy(w->top + (size_t)w->n_said * row, top, row * sizeof *top);
    if (row) memcpy(w->top_logprob + (size_t)w->n_said * row, top_logprob, row * sizeof *top_logprob);
    w->n_said++;
    return true;
}

#include "serve/queue.h"

#include <time.h>

#include "core/clock.h"

void lnt_queue_open(lnt_queue *q, int64_t most)
{
    pthread_condattr_t monotonic;
    *q = (lnt_queue){.most = most};
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&q->work, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void lnt_queue_free(lnt_queue *q)
{
    pthread_cond_destroy(&q->work);
    pthread_mutex_destroy(&q->lock);
}

/* A list of a request's prompts; NULL: no memory. */
static lnt_waiting *list_of(lnt_request *r, lnt_waiting **last)
{
    lnt_waiting *list = NULL;
    *last = NULL;
    for (int i = r->n_prompts - 1; i >= 0; i--) {
        lnt_waiting *w = lnt_calloc(sizeof *w);
        if (!w) break;
        lnt_request_hold(r);
        *w = (lnt_waiting){.next = list, .r = r, .prompt = i, .since = lnt_now()};
        list = w;
        if (!*last) *last = w;
        if (i == 0) return list;
    }
    for (lnt_waiting *w; (w = list);) {
        list = w->next;
        lnt_queue_drop(w);
    }
    return NULL;
}

linnet_status lnt_queue_put(lnt_queue *q, lnt_ctx *c, lnt_request *r)
{
    linnet_status s = LINNET_OK;
    lnt_waiting *last, *list = NULL;
    pthread_mutex_lock(&q->lock);
    if (q->closed) s = lnt_fail(c, LINNET_EUNSUPPORTED, "the server stops");
    else if (q->n + r->n_prompts > q->most)
        s = lnt_fail(c, LINNET_EUNSUPPORTED, "%lld prompts wait already, at most %lld may", (long long)q->n, (long long)q->most);
    else if (!(list = list_of(r, &last)))
        s = lnt_fail_memory(c, lnt_bytes((size_t)r->n_prompts, sizeof *list));
    if (list) {
        *(q->last ? &q->last->next : &q->first) = list;
        q->last = last;
        q->n += r->n_prompts;
        pthread_cond_signal(&q->work);
    }
    pthread_mutex_unlock(&q->lock);
    return s;
}

void lnt_queue_close(lnt_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

lnt_waiting *lnt_queue_take(lnt_queue *q, int64_t room)
{
    pthread_mutex_lock(&q->lock);
    lnt_waiting *w = q->first && q->first->r->n <= room ? q->first : NULL;
    if (w) {
        q->first = w->next;
        if (!q->first) q->last = NULL;
        q->n--;
    }
    pthread_mutex_unlock(&q->lock);
    return w;
}

void lnt_queue_drop(lnt_waiting *w)
{
    lnt_request_release(w->r);
    lnt_free(w);
}

int64_t lnt_queue_sweep(lnt_queue *q, lnt_ctx *c, bool all)
{
    lnt_waiting *gone = NULL;
    pthread_mutex_lock(&q->lock);
    q->last = NULL;
    for (lnt_waiting **at = &q->first; *at;) {
        lnt_waiting *w = *at;
        if (!all && lnt_request_wanted(w->r, c)) {
            q->last = w;
            at = &w->next;
            continue;
        }
        *at = w->next;
        q->n--;
        w->next = gone;
        gone = w;
    }
    const int64_t left = q->n;
    pthread_mutex_unlock(&q->lock);
    for (lnt_waiting *w; (w = gone);) {
        gone = w->next;
        if (all) lnt_request_fail(w->r, c, lnt_fail(c, LINNET_EINTERRUPTED, "the server stops"));
        lnt_queue_drop(w);
    }
    return left;
}

void lnt_queue_wait(lnt_queue *q, double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const int64_t nanoseconds = t.tv_nsec + (int64_t)(seconds * 1e9);
    t.tv_sec += nanoseconds / 1000000000;
    t.tv_nsec = nanoseconds % 1000000000;
    pthread_mutex_lock(&q->lock);
    while (!q->first && !q->nudged && pthread_cond_timedwait(&q->work, &q->lock, &t) == 0) {}
    q->nudged = false;
    pthread_mutex_unlock(&q->lock);
}

void lnt_queue_nudge(lnt_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->nudged = true;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

/* HTTP by libmicrohttpd. A few threads of its own hear and answer; a connection whose answer is not there yet is suspended, and resumed by the thread
 * that writes. Locks are taken in this order: the list's, a request's, libmicrohttpd's own. */
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve/http.h"
#include "serve/routes.h"

enum { THREADS = 4, BACKLOG = 512, BLOCK = 16384, WASTE = 4 /* times the largest body that are heard and thrown away */, BODIES = 16 /* at once */ };

typedef struct exchange {
    struct exchange *next, **back;
    lnt_http *h;
    struct MHD_Connection *connection;
    int fd;
    linnet_context *c; /* for errors */
    const lnt_route *route;
    char *body;
    size_t n, room;
    bool too_large;
    lnt_reply reply;
    lnt_answer answer; /* its request: under way */
    atomic_bool started; /* the scheduler has the request */
    bool suspended;    /* under the request's lock */
} exchange;

struct lnt_http {
    lnt_service *v;
    struct MHD_Daemon *daemon;
    int listener;   /* -1: closed, or libmicrohttpd's */
    char address[320];
    pthread_mutex_t lock;
    exchange *first;
    int64_t busy;
    atomic_size_t held; /* bytes of bodies */
    atomic_bool stopping;
};

/* ---- exchanges -------------------------------------------------------------------------------------------------------------------------- */

static exchange *begin(lnt_http *h, struct MHD_Connection *connection)
{
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.threads = 1;
    exchange *e = lnt_calloc(sizeof *e);
    if (!e) return NULL;
    if (linnet_context_create(&o, &e->c) != LINNET_OK) {
        linnet_context_destroy(e->c);
        lnt_free(e);
        return NULL;
    }
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    e->h = h;
    e->connection = connection;
    e->fd = info ? info->connect_fd : -1;
    pthread_mutex_lock(&h->lock);
    e->next = h->first;
    e->back = &h->first;
    if (h->first) h->first->back = &e->next;
    h->first = e;
    lnt_gauge(&h->v->metrics.connections, ++h->busy);
    pthread_mutex_unlock(&h->lock);
    lnt_count(&h->v->metrics.requests, 1);
    return e;
}

/* Nobody waits for the request any more; with its lock held, under which it is counted too: whoever sees its slots free finds it counted. True: it
 * was under way until now. */
static bool drop(exchange *e)
{
    lnt_request *r = e->answer.ask.r;
    const bool early = !atomic_exchange(&r->dropped, true) && e->started && !lnt_request_over(r);
    if (early) lnt_count(&e->h->v->metrics.cancelled, 1);
    return early;
}

static void leave(exchange *e)
{
    lnt_request *r = e->answer.ask.r;
    pthread_mutex_lock(&r->lock);
    r->wake = NULL;
    const bool early = drop(e);
    pthread_mutex_unlock(&r->lock);
    if (early) lnt_scheduler_nudge(e->h->v->scheduler);
    lnt_answer_end(&e->answer);
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode how)
{
    (void)connection, (void)how;
    lnt_http *h = cls;
    exchange *e = *state;
    if (!e) return;
    *state = NULL;
    pthread_mutex_lock(&h->lock);
    *e->back = e->next;
    if (e->next) e->next->back = e->back;
    lnt_gauge(&h->v->metrics.connections, --h->busy);
    pthread_mutex_unlock(&h->lock);
    if (e->answer.ask.r) leave(e);
    atomic_fetch_sub(&h->held, e->room);
    lnt_free(e->body);
    lnt_reply_free(&e->reply);
    linnet_context_destroy(e->c);
    lnt_free(e);
}

/* The connection goes on; with the request's lock held. */
static void wake(void *user)
{
    exchange *e = user;
    if (!e->suspended) return;
    e->suspended = false;
    MHD_resume_connection(e->connection);
}

/* Something is to come; with the request's lock held. false: the server stops, and nothing will. */
static bool suspend(exchange *e)
{
    if (atomic_load(&e->h->stopping)) return false;
    e->suspended = true;
    MHD_suspend_connection(e->connection);
    return true;
}

/* ---- replies ---------------------------------------------------------------------------------------------------------------------------- */

static void free_bytes(void *bytes) { lnt_free(bytes); }

static enum MHD_Result send_reply(exchange *e)
{
    lnt_reply *r = &e->reply;
    if (r->status >= 400) lnt_count(r->status < 500 ? &e->h->v->metrics.refused : &e->h->v->metrics.failed, 1);
    void *bytes = r->still ? (void *)(uintptr_t)r->still : r->body;
    struct MHD_Response *m = r->still ? MHD_create_response_from_buffer(r->n, bytes, MHD_RESPMEM_PERSISTENT)
                                      : MHD_create_response_from_buffer_with_free_callback(r->n, bytes, free_bytes);
    if (!m) return MHD_NO;
    r->body = NULL;
    MHD_add_response_header(m, MHD_HTTP_HEADER_CONTENT_TYPE, r->type);
    MHD_add_response_header(m, "X-Content-Type-Options", "nosniff");
    if (r->page) { /* what a page may load, and where it may be shown: from here and nowhere else */
        MHD_add_response_header(m, "Content-Security-Policy",
                                "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; "
                                "form-action 'none'; frame-ancestors 'none'");
        MHD_add_response_header(m, "Referrer-Policy", "no-referrer");
        MHD_add_response_header(m, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    }
    if (r->status == 401) MHD_add_response_header(m, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (r->status == 503) MHD_add_response_header(m, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    const enum MHD_Result done = MHD_queue_response(e->connection, (unsigned)r->status, m);
    MHD_destroy_response(m);
    return done;
}

/* The next bytes of a stream. */
static ssize_t on_stream(void *cls, uint64_t at, char *to, size_t most)
{
    (void)at;
    exchange *e = cls;
    lnt_answer *a = &e->answer;
    lnt_request *r = a->ask.r;
    if (atomic_load(&r->dropped)) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (a->at_out == a->n_out) {
        if (a->last) return MHD_CONTENT_READER_END_OF_STREAM;
        pthread_mutex_lock(&r->lock);
        lnt_answer_events(a);
        const bool stuck = !a->n_out && !a->last && !suspend(e);
        pthread_mutex_unlock(&r->lock);
        if (stuck) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (!a->n_out) return a->last ? MHD_CONTENT_READER_END_OF_STREAM : 0;
    }
    const size_t n = a->n_out - a->at_out < most ? a->n_out - a->at_out : most;
    memcpy(to, a->out + a->at_out, n);
    a->at_out += n;
    return (ssize_t)n;
}

static enum MHD_Result send_stream(exchange *e)
{
    struct MHD_Response *m = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, on_stream, e, NULL);
    if (!m) return MHD_NO;
    MHD_add_response_header(m, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream");
    MHD_add_response_header(m, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    const enum MHD_Result done = MHD_queue_response(e->connection, 200, m);
    MHD_destroy_response(m);
    return done;
}

/* A request that is under way: its answer if it is there, otherwise the connection waits. */
static enum MHD_Result go_on(exchange *e)
{
    lnt_request *r = e->answer.ask.r;
    if (e->answer.ask.stream) return send_stream(e);
    pthread_mutex_lock(&r->lock);
    const bool over = lnt_request_over(r), gone = atomic_load(&r->dropped), waits = !over && !gone && suspend(e);
    pthread_mutex_unlock(&r->lock);
    if (waits) return MHD_YES;
    if (!over) return MHD_NO;
    lnt_answer_whole(&e->answer, &e->reply);
    return send_reply(e);
}

static enum MHD_Result answer(exchange *e)
{
    lnt_service *v = e->h->v;
    if (e->too_large) {
        char text[96];
        snprintf(text, sizeof text, "the body is larger than %lld bytes", (long long)v->o.body_bytes);
        lnt_reply_error(&e->reply, 413, text, NULL);
        return send_reply(e);
    }
    if (!lnt_route_answer(e->route, e->c, v, e->body ? e->body : "", e->n, &e->reply, &e->answer)) return send_reply(e);
    lnt_request *r = e->answer.ask.r;
    r->wake = wake;
    r->user = e;
    e->started = lnt_route_start(e->c, v, &e->answer, &e->reply);
    return e->started ? go_on(e) : send_reply(e);
}

/* ---- requests --------------------------------------------------------------------------------------------------------------------------- */

/* The head of a request is there: what can be refused before its body is. */
static enum MHD_Result hear_head(exchange *e, const char *method, const char *path)
{
    lnt_service *v = e->h->v;
    const char *length = MHD_lookup_connection_value(e->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const char *authorization = MHD_lookup_connection_value(e->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    const char *host = MHD_lookup_connection_value(e->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    const char *origin = MHD_lookup_connection_value(e->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN);
    if (lnt_route_foreign(v, e->h->address, host, origin, &e->reply)) return send_reply(e);
    e->route = lnt_route_find(v, method, path, authorization, &e->reply);
    if (!e->route) return send_reply(e);
    e->too_large = length && strtoull(length, NULL, 10) > (unsigned long long)v->o.body_bytes;
    if (e->too_large) return answer(e);
    return MHD_YES;
}

static bool take_body(exchange *e, const char *data, size_t n)
{
    const size_t most = (size_t)e->h->v->o.body_bytes;
    e->n += n;
    if (e->n > most) e->too_large = true;
    if (e->too_large) return e->n <= WASTE * most;
    if (e->n > e->room) {
        const size_t wanted = lnt_bytes_plus(lnt_bytes(e->room, 2), lnt_bytes_plus(n, 4096)), room = wanted < most ? wanted : most;
        if (atomic_fetch_add(&e->h->held, room - e->room) + room - e->room > BODIES * most) {
            atomic_fetch_sub(&e->h->held, room - e->room);
            return false;
        }
        char *grown = lnt_realloc(e->body, e->room, room);
        if (!grown) atomic_fetch_sub(&e->h->held, room - e->room);
        if (!grown) return false;
        e->body = grown;
        e->room = room;
    }
    memcpy(e->body + e->n - n, data, n);
    return true;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *path, const char *method, const char *version,
                                  const char *data, size_t *n, void **state)
{
    (void)version;
    lnt_http *h = cls;
    exchange *e = *state;
    if (!e) {
        if (!(e = *state = begin(h, connection))) return MHD_NO;
        return hear_head(e, method, path);
    }
    if (*n) {
        const bool taken = take_body(e, data, *n);
        *n = 0;
        return taken ? MHD_YES : MHD_NO;
    }
    return e->answer.ask.r ? go_on(e) : answer(e);
}

/* ---- listening -------------------------------------------------------------------------------------------------------------------------- */

static linnet_status listen_at(lnt_ctx *c, lnt_http *h)
{
    const char *host = h->v->o.host;
    char port[16];
    struct addrinfo *found = NULL, hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct sockaddr_storage mine;
    socklen_t size = sizeof mine;
    char numeric[NI_MAXHOST], service[NI_MAXSERV];
    snprintf(port, sizeof port, "%d", (int)h->v->o.port);
    const int wrong = getaddrinfo(host, port, &hints, &found);
    if (wrong) return lnt_fail(c, LINNET_EIO, "there is no address \"%.200s\": %s", host, gai_strerror(wrong));
    h->listener = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, found->ai_protocol);
    if (h->listener >= 0) setsockopt(h->listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    const bool good = h->listener >= 0 && bind(h->listener, found->ai_addr, found->ai_addrlen) == 0 && listen(h->listener, BACKLOG) == 0 &&
                      getsockname(h->listener, (struct sockaddr *)&mine, &size) == 0;
    const int error = errno;
    freeaddrinfo(found);
    if (!good) {
        lnt_fail(c, LINNET_EIO, "cannot listen at %.200s, port %d: %s", host, (int)h->v->o.port, strerror(error));
        return lnt_hint(c, error == EADDRINUSE ? "Another program has this port: choose another with --port, or 0 for one that is free."
                                               : "Ports below 1024 are the system's.");
    }
    getnameinfo((struct sockaddr *)&mine, size, numeric, sizeof numeric, service, sizeof service, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(h->address, sizeof h->address, strchr(numeric, ':') ? "http://[%.250s]:%.10s" : "http://%.250s:%.10s", numeric, service);
    return LINNET_OK;
}

linnet_status lnt_http_open(lnt_ctx *c, lnt_service *v, lnt_http **out)
{
    lnt_http *h = *out = lnt_calloc(sizeof *h);
    if (!h) return lnt_fail_memory(c, sizeof *h);
    h->v = v;
    h->listener = -1;
    pthread_mutex_init(&h->lock, NULL);
    linnet_status s = listen_at(c, h);
    if (s == LINNET_OK) {
        const unsigned most = (unsigned)v->o.connections, threads = most < THREADS ? 1 : THREADS;
        const struct MHD_OptionItem pool[] = {{threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, threads, NULL}, {MHD_OPTION_END, 0, NULL}};
        const double idle = v->o.idle_seconds < 1 ? 1 : v->o.idle_seconds;
        /* By poll: with epoll and several threads MHD_quiesce_daemon and a thread that wakes up just then both take the listening socket out of that
         * thread's set, and the second ends the program (libmicrohttpd 0.9.75). */
        h->daemon = MHD_start_daemon(MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC, 0, NULL, NULL, on_request, h,
                                     MHD_OPTION_LISTEN_SOCKET, h->listener, MHD_OPTION_CONNECTION_LIMIT, most, MHD_OPTION_CONNECTION_TIMEOUT,
                                     (unsigned)idle, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_ARRAY, pool, MHD_OPTION_END);
        if (!h->daemon) s = lnt_fail(c, LINNET_EIO, "libmicrohttpd cannot start for %u connections: %s", most, strerror(errno));
        else h->listener = -1; /* its own now */
    }
    if (s == LINNET_OK) return s;
    lnt_http_close(h);
    *out = NULL;
    return s;
}

const char *lnt_http_address(const lnt_http *h) { return h->address; }

void lnt_http_watch(lnt_http *h)
{
    pthread_mutex_lock(&h->lock);
    for (exchange *e = h->first; e; e = e->next) {
        struct pollfd p = {.fd = e->fd, .events = POLLRDHUP};
        lnt_request *r = e->started ? e->answer.ask.r : NULL;
        if (!r || e->fd < 0 || poll(&p, 1, 0) <= 0 || !(p.revents & (POLLRDHUP | POLLHUP | POLLERR))) continue;
        pthread_mutex_lock(&r->lock);
        if (e->suspended && !lnt_request_over(r)) {
            drop(e);
            wake(e);
        }
        pthread_mutex_unlock(&r->lock);
    }
    pthread_mutex_unlock(&h->lock);
}

void lnt_http_quiet(lnt_http *h)
{
    if (h->listener < 0) h->listener = MHD_quiesce_daemon(h->daemon);
}

int64_t lnt_http_busy(lnt_http *h)
{
    pthread_mutex_lock(&h->lock);
    const int64_t busy = h->busy;
    pthread_mutex_unlock(&h->lock);
    return busy;
}

void lnt_http_close(lnt_http *h)
{
    if (!h) return;
    atomic_store(&h->stopping, true);
    pthread_mutex_lock(&h->lock); /* a suspended connection cannot be closed */
    for (exchange *e = h->first; e; e = e->next) {
        if (!e->started) continue;
        pthread_mutex_lock(&e->answer.ask.r->lock);
        wake(e);
        pthread_mutex_unlock(&e->answer.ask.r->lock);
    }
    pthread_mutex_unlock(&h->lock);
    if (h->daemon) MHD_stop_daemon(h->daemon);
    if (h->listener >= 0) close(h->listener);
    pthread_mutex_destroy(&h->lock);
    lnt_free(h);
}

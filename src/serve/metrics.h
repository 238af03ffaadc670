/* What a server counts, as /metrics says it; from several threads. */
#ifndef LNT_SERVE_METRICS_H
#define LNT_SERVE_METRICS_H

#include <stdatomic.h>

#include "core/memory.h"

/* X(field, name without "linnet_", counter or gauge, what it is) */
#define LNT_METRICS(X)                                                                                                              \
    X(requests, "requests_total", "counter", "requests that were begun")                                                            \
    X(refused, "requests_refused_total", "counter", "requests answered with an error of the client's")                              \
    X(failed, "requests_failed_total", "counter", "requests that failed here")                                                      \
    X(cancelled, "requests_cancelled_total", "counter", "requests whose client went away")                                          \
    X(prompt_tokens, "prompt_tokens_total", "counter", "tokens of prompts")                                                         \
    X(cached_tokens, "prefix_cache_tokens_total", "counter", "tokens of prompts that were not read again")                          \
    X(cache_asked, "prefix_cache_queries_total", "counter", "prompts that were looked for in the cache")                            \
    X(cache_hits, "prefix_cache_hits_total", "counter", "prompts whose beginning was there")                                        \
    X(cache_states, "prefix_cache_states", "gauge", "states kept")                                                                  \
    X(cache_bytes, "prefix_cache_bytes", "gauge", "bytes of the states kept")                                                       \
    X(tokens, "generated_tokens_total", "counter", "tokens written")                                                                \
    X(steps, "steps_total", "counter", "runs of one token for every text that is being written")                                    \
    X(ahead, "steps_ahead_total", "counter", "of them, those begun before the tokens of the last were told")                        \
    X(slots, "slots", "gauge", "texts that can be written at once")                                                                 \
    X(writing, "slots_busy", "gauge", "texts that are being written, or whose prompt is read")                                      \
    X(waiting, "waiting", "gauge", "prompts that wait for a slot")                                                                  \
    X(connections, "connections", "gauge", "connections with a request")                                                            \
    X(first_microseconds, "time_to_first_token_microseconds_total", "counter", "from a request to its prompts' first tokens, summed") \
    X(firsts, "first_tokens_total", "counter", "prompts of that sum")

typedef struct {
#define X(field, name, kind, help) atomic_int_least64_t field;
    LNT_METRICS(X)
#undef X
} lnt_metrics;

static inline void lnt_count(atomic_int_least64_t *m, int64_t n) { atomic_fetch_add_explicit(m, n, memory_order_relaxed); }
static inline void lnt_gauge(atomic_int_least64_t *m, int64_t n) { atomic_store_explicit(m, n, memory_order_relaxed); }
/* In the text form of Prometheus; freed with lnt_free. NULL: no memory. */
char *lnt_metrics_text(lnt_metrics *m);

#endif

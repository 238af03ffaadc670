/* Sessions and states without words, for their tests: what fails ends the test. Include it behind model_recipes.h. */
#ifndef SESSION_OF_H
#define SESSION_OF_H

#include <stdlib.h>

#include "generate/session.h"

static linnet_context *c;

#define OK(call)                                                                                                                   \
    do {                                                                                                                           \
        if ((call) != LINNET_OK) fail_msg("%s: %s (%s)", #call, linnet_error_message(c), linnet_error_detail(c));                  \
    } while (0)

static inline linnet_context *context_of(int threads)
{
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    linnet_context *made;
    o.threads = threads;
    assert_int_equal(linnet_context_create(&o, &made), LINNET_OK);
    return made;
}

/* NULL, with the reason printed, where there is no GPU. */
static inline linnet_context *gpu_context_of(int threads)
{
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    linnet_context *made;
    o.threads = threads;
    o.device = "cuda";
    if (linnet_context_create(&o, &made) == LINNET_OK) return made;
    print_message("skipped: %s\n", linnet_error_message(made));
    linnet_context_destroy(made);
    return NULL;
}

static inline linnet_session *session_of(linnet_model *m, int64_t slots, int64_t capacity, int64_t rollback, int64_t chunk)
{
    linnet_session_options o = LINNET_SESSION_OPTIONS_INIT;
    linnet_session *s;
    o.slots = slots, o.capacity = capacity, o.rollback = rollback, o.chunk = chunk;
    OK(linnet_session_create(c, m, &o, &s));
    return s;
}

static inline linnet_state *state_of(linnet_session *s)
{
    linnet_state *state;
    OK(linnet_state_create(s, &state));
    return state;
}

/* One id, and the logits behind it. */
static inline linnet_session_call step_of(linnet_state *s, const int32_t *id, float *logits)
{
    linnet_session_call k = LINNET_SESSION_CALL_INIT;
    k.state = s, k.ids = id, k.n_ids = 1, k.wants = LINNET_LOGITS_LAST, k.logits = logits;
    return k;
}

/* n ids in one call, with the logits of all where `logits` is not NULL. */
static inline void feed(linnet_state *s, const int32_t *ids, int n, float *logits)
{
    linnet_session_call k = LINNET_SESSION_CALL_INIT;
    k.state = s, k.ids = ids, k.n_ids = n, k.wants = logits ? LINNET_LOGITS_ALL : LINNET_LOGITS_NONE, k.logits = logits;
    OK(linnet_session_run(s->s, &k, 1));
}

/* All their tensors, bit for bit. */
static inline void same_states(const char *what, const linnet_state *a, const linnet_state *b)
{
    linnet_state_info x = {.size = sizeof x}, y = {.size = sizeof y};
    OK(linnet_state_get_info(a, &x));
    OK(linnet_state_get_info(b, &y));
    if (x.tokens != y.tokens || x.bytes != y.bytes) fail_msg("%s: %lld and %lld tokens", what, (long long)x.tokens, (long long)y.tokens);
    assert_int_equal(linnet_state_tensor_count(a), linnet_state_tensor_count(b));
    for (int64_t i = 0; i < linnet_state_tensor_count(a); i++) {
        linnet_state_tensor t = {.size = sizeof t};
        OK(linnet_state_tensor_at(a, i, &t));
        const size_t bytes = (size_t)t.bytes;
        char *p = malloc(bytes + 1), *q = malloc(bytes + 1);
        OK(linnet_state_tensor_read(a, i, p, bytes));
        OK(linnet_state_tensor_read(b, i, q, bytes));
        if (memcmp(p, q, bytes)) fail_msg("%s: %s differs", what, t.name);
        free(p);
        free(q);
    }
}

/* Two layers of a mixer, of a width that is no whole number of vectors where it can be. */
static inline linnet_model *mixer_model(const char *name, linnet_dtype dtype)
{
    static const char *const common[][2] = {{"hidden_size", "32"}, {"num_hidden_layers", "2"}, {"vocab_size", "61"}, {"initializer_range", "0.2"}};
    linnet_config *k;
    linnet_model *m;
    OK(linnet_config_create(c, name, &k));
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) OK(linnet_config_set(c, k, common[i][0], common[i][1]));
    lnt_config_put_int(k, "intermediate_size", 40); /* whoever has them */
    lnt_config_put_int(k, "num_heads", 2);
    lnt_config_put_int(k, "head_dim", 16);
    OK(linnet_model_create(c, k, dtype, 7, &m));
    linnet_config_destroy(k);
    return m;
}

#endif

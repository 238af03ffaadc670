/* linnet_bench_decode: one token at a time for a batch of sequences, and the bytes it cannot avoid. */
#include <math.h>
#include <string.h>

#include "bench/measure.h"
#include "core/clock.h"
#include "core/memory.h"
#include "core/rng.h"
#include "generate/greedy.h"
#include "model/model.h"

/* Tokens that are fed both one at a time and at once, before the clock runs: so many that the recurrences take their chunk form for them. */
enum { CHECKED = 24 };
/* Steps before those that count: the first touches the memory, the second may be recorded. */
enum { WARM_UP = 4 };

typedef struct {
    lnt_ctx *c;
    linnet_model *m;
    int64_t batch, V;
    lnt_state *state;
    lnt_plan *plan;
    int32_t *ids;     /* host, [batch] */
    lnt_greedy greedy;
    double *seconds;  /* [steps] */
    float *logits;    /* host, [CHECKED + 1, vocabulary]: of one pass, then of the last step */
} decode;

/* Every product's weights and every other parameter once (of the embedding, a row for each sequence), states read and written. */
static double step_bytes(const decode *k)
{
    const linnet_model *m = k->m;
    double bytes = 2 * (double)k->state->bytes;
    for (int i = 0; i < lnt_param_count(m->p); i++) {
        const lnt_param *q = lnt_param_at(m->p, i);
        bool looked_up = !m->config->tie_word_embeddings && !strcmp(q->name, "model.embeddings.weight");
        bytes += (double)(looked_up ? k->batch * q->dim[1] : q->count) * (double)(q->product ? lnt_dtype_size(m->dtype) : 4);
    }
    return bytes;
}

static linnet_status open_decode(decode *k, int64_t steps)
{
    int64_t capacity = CHECKED + 1 + WARM_UP + steps;
    lnt_plan_options o = { .tokens = k->batch, .n_seq = k->batch, .dtype = k->m->dtype, .has_state = true, .state_capacity = capacity, .n_outputs = 1,
                           .outputs = { k->m->logits } };
    k->V = k->m->config->vocab_size;
    k->ids = lnt_alloc(lnt_bytes((size_t)k->batch, sizeof *k->ids));
    k->seconds = lnt_alloc(lnt_bytes((size_t)steps, sizeof *k->seconds));
    k->logits = lnt_alloc(lnt_bytes(lnt_bytes(CHECKED + 1, (size_t)k->V), sizeof *k->logits));
    if (!k->ids || !k->seconds || !k->logits) return lnt_fail_memory(k->c, lnt_bytes(lnt_bytes(CHECKED + 1, (size_t)k->V), sizeof *k->logits));
    LNT_TRY(lnt_state_create(k->c, k->m->p, k->m->dtype, k->batch, capacity, &k->state));
    LNT_TRY(lnt_plan_create(k->c, k->m->p, &o, &k->plan));
    return lnt_greedy_open(k->c, k->plan, k->m->logits, k->m->ids, k->V, &k->greedy);
}

static void close_decode(decode *k)
{
    lnt_greedy_close(&k->greedy);
    lnt_plan_destroy(k->plan);
    lnt_state_destroy(k->state);
    lnt_free(k->ids);
    lnt_free(k->seconds);
    lnt_free(k->logits);
}

/* ids: host, [batch]; NULL: those that the step before left. */
static lnt_batch batch_of(const decode *k, const int32_t *ids)
{
    return (lnt_batch){ .tokens = k->batch, .n_seq = k->batch, .n_inputs = ids != NULL, .inputs = { { k->m->ids, ids } }, .state = k->state };
}
static linnet_status step(decode *k, const int32_t *ids)
{
    const lnt_batch b = batch_of(k, ids);
    return lnt_greedy_step(&k->greedy, k->plan, k->m->w, &b);
}

static const float *step_logits(const decode *k) { return lnt_plan_output(k->plan, k->m->logits).data; }

/* Every sequence reads the same tokens; the logits of the last one after them must be those of one pass. */
static linnet_status check(decode *k, double *error)
{
    int64_t ids[CHECKED];
    lnt_rng r = lnt_rng_make(1, lnt_stream_of("bench ids"));
    for (int t = 0; t < CHECKED; t++) {
        ids[t] = (int64_t)lnt_rng_below(&r, (uint64_t)k->V);
        for (int64_t n = 0; n < k->batch; n++) k->ids[n] = (int32_t)ids[t];
        const lnt_batch b = batch_of(k, k->ids);
        LNT_TRY(lnt_plan_run(k->plan, k->m->w, &b));
    }
    LNT_TRY(linnet_model_logits(k->c, k->m, ids, 1, CHECKED, k->logits));
    const float *pass = k->logits + (CHECKED - 1) * k->V;
    float *step = k->logits + CHECKED * k->V;
    lnt_to_host(k->c, step, step_logits(k) + (k->batch - 1) * k->V, (size_t)k->V * sizeof *step);
    double wrong = 0, size = 0;
    for (int64_t v = 0; v < k->V; v++) {
        double d = (double)step[v] - pass[v];
        wrong += d * d;
        size += (double)pass[v] * pass[v];
    }
    *error = sqrt(wrong / size);
    double allowed = k->m->dtype == LINNET_F32 ? 1e-4 : 4e-2; /* of small models in bf16, as in the tests */
    if (*error <= allowed) return LINNET_OK;
    return lnt_fail(k->c, LINNET_EINTERNAL, "%d tokens one at a time give other logits than at once: relative error %.3g", CHECKED, *error);
}

/* The check runs on a model of the same layers, but two of them: with random weights a layer of linear attention or RetNet enlarges bf16's roundings,
 * and 24 of them made 0.3 of one's 7e-3 (RetNet, width 2048), while in float32 the two ways agreed within 1e-5. */
static linnet_status check_small(const decode *k, double *error)
{
    linnet_config *config;
    decode small = { .c = k->c, .batch = k->batch };
    LNT_TRY(lnt_config_copy(k->c, k->m->config, &config));
    bool alike = config->n_mixers == 1 && !config->named_layers; /* else a hybrid, whose list of layers says how many there are */
    if (alike && config->num_hidden_layers > 2) config->num_hidden_layers = 2;
    linnet_status s = linnet_model_create(k->c, config, k->m->dtype, 1, &small.m);
    linnet_config_destroy(config);
    if (s == LINNET_OK) s = open_decode(&small, 1);
    if (s == LINNET_OK) s = check(&small, error);
    close_decode(&small);
    linnet_model_destroy(small.m);
    return s;
}

static linnet_status run(decode *k, int64_t steps, linnet_bench_decode_result *out)
{
    LNT_TRY(check_small(k, &out->check_error));
    LNT_TRY(open_decode(k, steps));
    for (int64_t n = 0; n < k->batch; n++) k->ids[n] = (int32_t)(n % k->V);
    LNT_TRY(step(k, k->ids));
    for (int64_t i = -WARM_UP; i < steps; i++) { /* a step is put while the one before it runs, whose ids are then read */
        double start = lnt_now();
        LNT_TRY(step(k, NULL));
        lnt_greedy_take(&k->greedy);
        if (i >= 0) k->seconds[i] = lnt_now() - start;
    }
    lnt_device_wait(k->c);
    LNT_TRY(lnt_device_check(k->c));
    linnet_model_info info = { .size = sizeof info };
    linnet_model_get_info(k->m, &info);
    out->step_seconds = lnt_median(k->seconds, steps);
    out->tokens_per_second = (double)k->batch / out->step_seconds;
    out->bytes = step_bytes(k);
    out->parameters = info.parameters;
    out->state_bytes = (int64_t)k->state->bytes / k->batch;
    out->peak_memory = lnt_device_of(k->c)->peak;
    return LINNET_OK;
}

linnet_status linnet_bench_decode(linnet_context *c, linnet_model *m, const linnet_bench_decode_options *options, linnet_bench_decode_result *out)
{
    linnet_bench_decode_options o = LINNET_BENCH_DECODE_OPTIONS_INIT;
    LNT_TRY(lnt_model_check_next(c, m));
    LNT_TRY(lnt_options_take(c, "bench_decode", options, &o));
    LNT_TRY(lnt_result_check(c, out));
    decode k = { .c = c, .m = m, .batch = o.batch };
    linnet_bench_decode_result result = { .size = sizeof result };
    lnt_device_of(c)->peak = 0;
    linnet_status s = run(&k, o.steps, &result);
    close_decode(&k);
    if (s == LINNET_OK) LNT_GIVE(out, result);
    return s;
}

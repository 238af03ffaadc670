/* linnet_task_mqar: train a small model on fresh recall examples, then test it on examples it cannot have seen. */
#include <math.h>
#include <string.h>

#include "core/clock.h"
#include "device/device.h"
#include "tasks/mqar.h"
#include "train/trainer.h"

enum { TEST_EVERY = 100 };

typedef struct {
    lnt_ctx *c;
    const linnet_mqar_options *o;
    lnt_mqar q;
    linnet_model *m;
    lnt_trainer *t;
    lnt_plan *test;
    int32_t *ids, *targets; /* host, [batch*length] */
    float *logits;          /* host, [vocabulary] */
    double *scratch;
} recall;

static void fill(recall *k, uint64_t seed, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        lnt_mqar_example(&k->q, seed, (uint64_t)(first + i), k->ids + i * k->q.length, k->targets + i * k->q.length, k->scratch);
}

/* Mean over examples of the share of queries answered right. Every example has as many queries, so this is the share of all queries. */
static linnet_status measure(recall *k, int64_t examples, double *accuracy)
{
    int64_t V = k->m->config->vocab_size, right = 0, asked = 0;
    uint64_t seed = k->o->seed ^ 0x9e3779b97f4a7c15u; /* not the training seed, whatever that is */
    for (int64_t first = 0; first < examples; first += k->o->batch) {
        int64_t n = examples - first < k->o->batch ? examples - first : k->o->batch, tokens = n * k->q.length;
        fill(k, seed, first, n);
        lnt_batch b = {.tokens = tokens, .n_seq = n, .n_inputs = 1, .inputs = {{k->m->ids, k->ids}}};
        LNT_TRY(lnt_plan_run(k->test, k->m->w, &b));
        const float *rows = lnt_plan_output(k->test, k->m->logits).data;
        for (int64_t i = 0; i < tokens; i++) {
            if (k->targets[i] < 0) continue;
            lnt_to_host(k->c, k->logits, rows + i * V, (size_t)V * 4);
            int64_t best = 0;
            for (int64_t v = 1; v < V; v++)
                if (k->logits[v] > k->logits[best]) best = v;
            right += best == k->targets[i];
            asked++;
        }
    }
    *accuracy = asked ? (double)right / (double)asked : 0;
    return LINNET_OK;
}

static linnet_status open_recall(recall *k, const linnet_config *config, lnt_dtype dtype)
{
    const linnet_mqar_options *o = k->o;
    k->q = (lnt_mqar){.vocabulary = o->vocabulary, .length = o->length, .pairs = o->pairs, .rounds = o->rounds, .random_non_queries = true};
    LNT_TRY(lnt_mqar_check(k->c, &k->q));
    linnet_config *mine;
    LNT_TRY(lnt_config_copy(k->c, config, &mine));
    mine->vocab_size = o->vocabulary;
    linnet_status s = linnet_model_create(k->c, mine, dtype, o->seed, &k->m);
    linnet_config_destroy(mine);
    LNT_TRY(s);
    LNT_TRY(lnt_trainer_create(k->c, k->m, o->batch, o->length, LNT_RECOMPUTE_NONE, &k->t));
    k->t->hyper.weight_decay = o->weight_decay;
    k->t->hyper.beta2 = 0.999; /* the benchmark's AdamW is the default one */
    int64_t tokens = o->batch * o->length;
    lnt_plan_options p = {.tokens = tokens, .n_seq = o->batch, .dtype = dtype, .n_outputs = 1, .outputs = {k->m->logits}};
    LNT_TRY(lnt_plan_create(k->c, k->m->p, &p, &k->test));
    k->ids = lnt_alloc(lnt_bytes((size_t)tokens, 4));
    k->targets = lnt_alloc(lnt_bytes((size_t)tokens, 4));
    k->logits = lnt_alloc(lnt_bytes((size_t)o->vocabulary, 4));
    k->scratch = lnt_alloc(lnt_bytes(lnt_bytes_plus((size_t)o->length, (size_t)o->vocabulary), sizeof *k->scratch));
    return k->ids && k->targets && k->logits && k->scratch ? LINNET_OK : lnt_fail_memory(k->c, lnt_bytes((size_t)tokens, 4));
}

static void close_recall(recall *k)
{
    lnt_plan_destroy(k->test);
    lnt_trainer_destroy(k->t);
    linnet_model_destroy(k->m);
    lnt_free(k->ids);
    lnt_free(k->targets);
    lnt_free(k->logits);
    lnt_free(k->scratch);
}

static linnet_status task(lnt_ctx *c, const lnt_config *config, lnt_dtype dtype, const linnet_mqar_options *o, linnet_mqar_result *out)
{
    recall k = {.c = c, .o = o};
    linnet_status s = open_recall(&k, config, dtype);
    double start = lnt_now(), accuracy = 0, loss = NAN;
    int64_t step = 0;
    while (s == LINNET_OK && step < o->steps) {
        fill(&k, o->seed, step * o->batch, o->batch);
        double queries = (double)(o->batch * o->pairs);
        lnt_step_sums sums;
        LNT_TRY_GOTO(s, lnt_trainer_micro(k.t, k.ids, k.targets, o->batch * o->length, o->batch, NULL, 1 / queries), done);
        LNT_TRY_GOTO(s, lnt_trainer_update(k.t, linnet_learning_rate(step, o->steps, o->steps / 20, o->learning_rate, 0), &sums), done);
        loss = sums.nats / queries;
        step++;
        bool late = o->max_seconds > 0 && lnt_now() - start > o->max_seconds;
        if (step % TEST_EVERY == 0 && step < o->steps && !late) {
            LNT_TRY_GOTO(s, measure(&k, o->batch, &accuracy), done);
            if (accuracy > 0.99) break; /* learned: the benchmark stops here, too */
        }
        if (o->progress && o->progress(o->user, step, o->steps, loss, accuracy)) {
            s = lnt_fail(c, LINNET_EINTERRUPTED, "the task was stopped after step %lld", (long long)step);
            goto done;
        }
        if (late) break;
    }
    if (s == LINNET_OK) s = measure(&k, o->test_examples, &accuracy);
    if (s == LINNET_OK) {
        linnet_model_info info = {.size = sizeof info};
        linnet_model_get_info(k.m, &info);
        *out = (linnet_mqar_result){.size = sizeof *out, .accuracy = accuracy, .loss = loss,
                                    .seconds = lnt_now() - start, .parameters = info.parameters, .steps = step};
    }
done:
    close_recall(&k);
    return s;
}

linnet_status linnet_task_mqar(linnet_context *c, const linnet_config *config, linnet_dtype dtype, const linnet_mqar_options *options,
                               linnet_mqar_result *out)
{
    linnet_mqar_options o = LINNET_MQAR_OPTIONS_INIT;
    linnet_mqar_result r = {.size = sizeof r};
    LNT_TRY(lnt_need(c, config, "the configuration"));
    LNT_TRY(lnt_model_dtype_check(c, "dtype", dtype));
    LNT_TRY(lnt_options_take(c, "mqar", options, &o));
    LNT_TRY(lnt_result_check(c, out));
    LNT_TRY(task(c, config, dtype, &o, &r));
    LNT_GIVE(out, r);
    return LINNET_OK;
}

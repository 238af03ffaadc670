/* Tokens a second over the length: training at a fixed number of tokens a step, prefill, decoding; and the bytes of a state. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "device/device.h"
#include "tasks/task.h"

enum { MOST_LENGTHS = 16, PIECE = 512, MOST_STEPS = 1024 };

typedef struct {
    int64_t tokens, steps;
    bool training;
    const char *lengths;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, tokens, 16, 1 << 24, 4096, "of a training step: of length N there are as many sequences as fit, one at least"),
    LNT_INT(options, steps, 1, MOST_STEPS, 16, "tokens decoded behind each length; their median counts"),
    LNT_SWITCH(options, training, true, "measure training, too, of a model of the same configuration"),
};
static const lnt_task_text texts[] = {LNT_TEXT(options, lengths, "N,N...", "256,1024,4096", "tokens before what is measured")};
static const char *const paper[] = {"tokens=16384", "steps=128", "lengths=2048,4096,8192,16384", NULL};

typedef struct {
    double length, train, prefill, decode, bytes;
} point;

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static linnet_status feed(lnt_run *r, lnt_plan *plan, lnt_state *state, const int32_t *ids, int64_t n)
{
    linnet_model *m = r->o->model;
    lnt_batch b = {.tokens = n, .n_seq = 1, .n_inputs = 1, .inputs = {{m->ids, ids}}, .state = state};
    LNT_TRY(lnt_plan_run(plan, m->w, &b));
    return lnt_device_check(r->c);
}

/* Prefill in pieces, the second time timed; then steps. */
static linnet_status read_and_write(lnt_run *r, lnt_plan *prefill, lnt_plan *step, lnt_state *state, const int32_t *ids, point *p)
{
    const options *o = r->values;
    const int64_t n = (int64_t)p->length;
    double seconds[MOST_STEPS], begin = 0;
    for (int turn = 0; turn < 2; turn++) {
        lnt_state_reset(state);
        begin = lnt_now();
        for (int64_t at = 0; at < n; at += PIECE) LNT_TRY(feed(r, prefill, state, ids + at, n - at < PIECE ? n - at : PIECE));
        p->prefill = (double)n / (lnt_now() - begin);
    }
    for (int64_t i = 0; i < o->steps; i++) {
        begin = lnt_now();
        LNT_TRY(feed(r, step, state, ids + i % n, 1));
        seconds[i] = lnt_now() - begin;
    }
    qsort(seconds, (size_t)o->steps, sizeof *seconds, by_size);
    p->decode = 1 / seconds[o->steps / 2];
    return LINNET_OK;
}

static linnet_status measure_reading(lnt_run *r, point *p)
{
    const options *o = r->values;
    linnet_model *m = r->o->model;
    const int64_t n = (int64_t)p->length, capacity = n + o->steps;
    lnt_state *state = NULL;
    lnt_plan *prefill = NULL, *step = NULL;
    int32_t *ids = lnt_alloc(lnt_bytes((size_t)n, sizeof *ids));
    if (!ids) return lnt_fail_memory(r->c, lnt_bytes((size_t)n, sizeof *ids));
    lnt_rng rng = lnt_task_rng("throughput", 1, 0, (uint64_t)n);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)lnt_rng_below(&rng, (uint64_t)m->config->vocab_size);
    lnt_plan_options plan = {.tokens = 1, .n_seq = 1, .dtype = m->dtype, .has_state = true, .state_capacity = capacity, .n_outputs = 1,
                             .outputs = {m->logits}};
    linnet_status s = lnt_state_create(r->c, m->p, m->dtype, 1, capacity, &state);
    if (s == LINNET_OK) s = lnt_plan_create(r->c, m->p, &plan, &step);
    plan.tokens = PIECE;
    plan.outputs[0] = m->hidden;
    if (s == LINNET_OK) s = lnt_plan_create(r->c, m->p, &plan, &prefill);
    if (s == LINNET_OK) s = read_and_write(r, prefill, step, state, ids, p);
    p->bytes = (double)lnt_state_bytes(m->p, m->dtype, n);
    lnt_plan_destroy(prefill);
    lnt_plan_destroy(step);
    lnt_state_destroy(state);
    lnt_free(ids);
    return s;
}

static linnet_status measure_training(lnt_run *r, linnet_model *m, point *p)
{
    const options *o = r->values;
    linnet_bench_train_options b = LINNET_BENCH_TRAIN_OPTIONS_INIT;
    linnet_bench_train_result result = {.size = sizeof result};
    b.length = (int64_t)p->length;
    b.batch = o->tokens / b.length ? o->tokens / b.length : 1;
    b.repeats = 3;
    LNT_TRY(linnet_bench_train(r->c, m, &b, &result));
    p->train = result.tokens_per_second;
    linnet_free(result.profile);
    return LINNET_OK;
}

static void draw_plots(lnt_run *r, const point *p, int n)
{
    double x[MOST_LENGTHS], y[4][MOST_LENGTHS];
    for (int i = 0; i < n; i++) {
        x[i] = p[i].length;
        y[0][i] = p[i].prefill;
        y[1][i] = p[i].decode;
        y[2][i] = p[i].bytes;
        y[3][i] = p[i].train;
    }
    const lnt_plot_line lines[] = {{.name = "prefill", .x = x, .y = y[0], .n = n}, {.name = "decoding", .x = x, .y = y[1], .n = n},
                                   {.name = "training", .x = x, .y = y[3], .n = n}},
                        bytes = {.name = "state", .x = x, .y = y[2], .n = n};
    lnt_report_plot_add(&r->report, &(lnt_plot){.title = "Tokens a second over the length", .x_label = "tokens", .y_label = "tokens/s",
                                                .n_lines = p->train > 0 ? 3 : 2, .lines = lines});
    lnt_report_plot_add(&r->report, &(lnt_plot){.title = "Bytes of a state over the length", .x_label = "tokens", .y_label = "bytes", .n_lines = 1,
                                                .lines = &bytes});
}

static linnet_status run(lnt_run *r)
{
    const options *o = r->values;
    double lengths[MOST_LENGTHS], tokens = 0;
    point points[MOST_LENGTHS];
    int n;
    linnet_model *learner = NULL;
    linnet_model_info info = {.size = sizeof info};
    LNT_TRY(lnt_task_numbers(r->c, "lengths", o->lengths, 1, 1 << 24, MOST_LENGTHS, lengths, &n));
    for (int i = 0; i < n; i++) tokens += 2 * lengths[i] + (o->training ? 5.0 * (double)o->tokens : 0);
    linnet_model_get_info(r->o->model, &info);
    LNT_TRY(lnt_run_cost(r, 0, 0, (int64_t)tokens, 4 * (double)info.parameters * tokens, NAN));
    linnet_status s = o->training ? linnet_model_create(r->c, r->o->model->config, r->o->model->dtype, 1, &learner) : LINNET_OK;
    for (int i = 0; i < n && s == LINNET_OK; i++) {
        if (i && lnt_run_late(r)) n = i;
        if (i == n) break;
        point *p = &points[i];
        *p = (point){.length = lengths[i], .train = NAN};
        s = measure_reading(r, p);
        if (s == LINNET_OK && learner) s = measure_training(r, learner, p);
        if (s == LINNET_OK) s = lnt_run_progress(r, (double)(i + 1) / n, "%.0f tokens", p->length);
        if (s != LINNET_OK) break;
        lnt_row_begin(&r->report, "result");
        lnt_row_int(&r->report, "length", (int64_t)p->length);
        lnt_row_real(&r->report, "prefill_tokens_per_second", p->prefill);
        lnt_row_real(&r->report, "decode_tokens_per_second", p->decode);
        lnt_row_int(&r->report, "state_bytes", (int64_t)p->bytes);
        if (learner) lnt_row_real(&r->report, "train_tokens_per_second", p->train);
        lnt_row_end(&r->report);
    }
    linnet_model_destroy(learner);
    if (s == LINNET_OK) draw_plots(r, points, n);
    return s == LINNET_OK ? r->report.s : s;
}

const lnt_task lnt_task_throughput = {
    .info = {"throughput", "tokens a second over the length, and the bytes of a state",
             "For each length: prefill of one sequence in pieces of 512, the median of decoding steps behind it, a training step of a fixed number "
             "of tokens, and what the state of a sequence of that length takes. Times are of this machine, now.",
             "Yang et al. 2024, arXiv 2406.06484 and 2412.06464; von Oswald et al. 2025, arXiv 2506.05233",
             "linnet task throughput model/ --lengths 2048,4096,8192,16384", LINNET_TASK_READS, 0, 0, "", NULL, NULL, NULL},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 1,
    .paper = paper,
    .run = run,
};

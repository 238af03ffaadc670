#include "tasks/study.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "device/device.h"
#include "train/trainer.h"

enum { MICRO_TOKENS = 32768, LOGITS = 1 << 24 /* of a test's run */, POINTS = 256 /* of a curve */, CURVE = 2 * POINTS + 3,
       BINS = 24 /* of the lengths of a test */, MOST_DRAWN = 2 * LNT_LINES_MOST /* settings, of which curves are on the page */ };

/* What a training leaves for the plots: every so many updates and where tests were looked at, held-out losses there alone. */
typedef struct {
    int n, n_looks, n_held;
    double step[CURVE], loss[CURVE], rate[CURVE], norm[CURVE];
    double look_step[POINTS + 1], look[POINTS + 1], look_nats[POINTS + 1];
    double held_step[POINTS + 2], held[POINTS + 2]; /* one more at the end: of the whole test */
} curve;

typedef struct {
    lnt_run *r;
    const lnt_study *o;
    lnt_source *s;
    linnet_model *m;
    linnet_trainer *t;
    lnt_plan *plan[LNT_SETS];  /* of the tests */
    int64_t steps, batch, micro; /* examples of an update, of a run of the trainer */
    int64_t rows[LNT_SETS];    /* examples of a test's run */
    int32_t *ids, *targets;    /* one batch, packed */
    int64_t *cu, *some_cu;     /* [batch + 1] */
    int64_t *order;            /* [examples] of this epoch */
    float *logits;             /* [vocabulary] */
    double step_seconds;
    int64_t test_examples;     /* of each test, as many as there is time for */
    double until;              /* when this training has to end; 0: no limit */
    double part, parts;        /* trainings done before this one, and all */
} study;

/* ---- examples ------------------------------------------------------------------------------------------------------------------------ */

/* Every epoch visits all examples in another order. */
static void shuffle(study *k, int64_t epoch)
{
    lnt_rng rng = lnt_rng_make((uint64_t)k->o->data_seed, lnt_stream_of("order of examples") + (uint64_t)epoch);
    for (int64_t i = 0; i < k->o->examples; i++) k->order[i] = i;
    for (int64_t i = k->o->examples - 1; i > 0; i--) {
        const int64_t j = (int64_t)lnt_rng_below(&rng, (uint64_t)i + 1), x = k->order[i];
        k->order[i] = k->order[j];
        k->order[j] = x;
    }
}

static void put_example(study *k, int set, uint64_t index, int64_t at)
{
    const int64_t first = k->cu[at];
    k->cu[at + 1] = first + k->s->example(k->s, set, index, k->ids + first, k->targets + first);
}

static int64_t count_asked(const study *k, int64_t n)
{
    int64_t asked = 0;
    for (int64_t i = 0; i < k->cu[n]; i++) asked += k->targets[i] >= 0;
    return asked;
}

static void fill_batch(study *k, int64_t step)
{
    k->cu[0] = 0;
    for (int64_t i = 0; i < k->batch; i++) {
        const int64_t n = step * k->batch + i, E = k->o->examples;
        if (E && n % E == 0) shuffle(k, n / E);
        put_example(k, 0, (uint64_t)(E ? k->order[n % E] : n), i);
    }
}

/* Gradients of examples first .. first+n of the batch. */
static linnet_status micro(study *k, int64_t first, int64_t n, double scale)
{
    linnet_micro_batch b = LINNET_MICRO_BATCH_INIT;
    for (int64_t i = 0; i <= n; i++) k->some_cu[i] = k->cu[first + i] - k->cu[first];
    b.ids = k->ids + k->cu[first];
    b.targets = k->targets + k->cu[first];
    b.tokens = k->some_cu[n];
    b.sequences = n;
    b.cu_seqlens = k->some_cu;
    b.scale = scale;
    return linnet_trainer_micro(k->t, &b);
}

/* ---- tests --------------------------------------------------------------------------------------------------------------------------- */

static linnet_status make_room(lnt_run *r, lnt_test *t, int64_t longest)
{
    int64_t **const arrays[] = {&t->position_asked, &t->position_right, &t->prefix_right, &t->length_examples, &t->length_asked, &t->length_right};
    t->longest = longest;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        void *p;
        LNT_TRY(lnt_run_memory(r, lnt_bytes(lnt_bytes_plus((size_t)longest, 1), sizeof(int64_t)), &p));
        *arrays[i] = p;
    }
    return LINNET_OK;
}

static int32_t largest(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return (int32_t)best;
}

static double nats_of(const float *x, int64_t n, int32_t best, int32_t target)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - x[best]);
    return log(sum) + x[best] - x[target];
}

/* Example i of a run, whose logits stand in rows cu[i] .. cu[i+1]. */
static void look_at(study *k, int set, uint64_t example, int64_t i, const float *rows, lnt_test *t)
{
    const int64_t V = k->s->vocabulary, first = k->cu[i], length = k->cu[i + 1] - first;
    int64_t asked = 0, right = 0;
    for (int64_t p = 0; p < length; p++) {
        const int32_t target = k->targets[first + p];
        if (target < 0) {
            if (t->prefix_right) t->prefix_right[p] += asked == right;
            continue;
        }
        lnt_to_host(k->r->c, k->logits, rows + (first + p) * V, (size_t)V * sizeof *k->logits);
        const int32_t best = largest(k->logits, V);
        const lnt_answer a = {.set = set, .example = example, .position = p, .length = length, .ids = k->ids + first, .target = target,
                              .best = best, .logits = k->logits};
        asked++;
        right += best == target;
        t->nats += nats_of(k->logits, V, best, target);
        if (k->s->answer) k->s->answer(k->s, &a);
        if (!t->prefix_right) continue;
        t->prefix_right[p] += asked == right;
        t->position_asked[p]++;
        t->position_right[p] += best == target;
    }
    t->examples++;
    t->asked += asked;
    t->right += right;
    t->exact += asked == right;
    t->accuracy += asked ? (double)right / (double)asked : 1;
    if (!t->prefix_right) return;
    t->length_examples[length]++;
    t->length_asked[length] += asked;
    t->length_right[length] += right;
}

static linnet_status test(study *k, int set, int64_t examples, lnt_test *t)
{
    if (k->s->begin) k->s->begin(k->s, set);
    for (int64_t first = 0; first < examples; first += k->rows[set]) {
        const int64_t n = examples - first < k->rows[set] ? examples - first : k->rows[set];
        k->cu[0] = 0;
        for (int64_t i = 0; i < n; i++) put_example(k, set, (uint64_t)(first + i), i);
        lnt_batch b = {.tokens = k->cu[n], .n_seq = n, .cu = k->cu, .n_inputs = 1, .inputs = {{k->m->ids, k->ids}}};
        LNT_TRY(lnt_plan_run(k->plan[set], k->m->w, &b));
        const float *rows = lnt_plan_output(k->plan[set], k->m->logits).data;
        for (int64_t i = 0; i < n; i++) look_at(k, set, (uint64_t)(first + i), i, rows, t);
        LNT_TRY(lnt_device_check(k->r->c));
        LNT_TRY(lnt_run_progress(k->r, (k->part + 1) / k->parts, "test %d of %d  %lld/%lld examples", set, k->s->n_sets - 1, (long long)(first + n),
                                 (long long)examples));
    }
    if (k->s->end) k->s->end(k->s, t->extra);
    t->accuracy /= (double)t->examples;
    t->nats /= t->asked ? (double)t->asked : 1;
    return LINNET_OK;
}

/* ---- one training --------------------------------------------------------------------------------------------------------------------- */

static void close_model(study *k)
{
    for (int i = 0; i < LNT_SETS; i++) lnt_plan_destroy(k->plan[i]);
    linnet_trainer_destroy(k->t);
    linnet_model_destroy(k->m);
    k->m = NULL;
    k->t = NULL;
    memset(k->plan, 0, sizeof k->plan);
}

static linnet_status open_model(study *k)
{
    lnt_ctx *c = k->r->c;
    linnet_config *mine;
    if (!k->s->whole) LNT_TRY(lnt_config_check_next(c, k->r->o->config));
    LNT_TRY(lnt_config_copy(c, k->r->o->config, &mine));
    if (k->s->whole) mine->readout = LNT_FROM_LAST;
    mine->vocab_size = k->s->vocabulary;
    linnet_status s = linnet_model_create(c, mine, (linnet_dtype)k->r->o->dtype, (uint64_t)k->o->seed, &k->m);
    linnet_config_destroy(mine);
    LNT_TRY(s);
    linnet_trainer_options o = LINNET_TRAINER_OPTIONS_INIT;
    o.batch = k->micro;
    o.length = k->s->set[0].longest;
    o.beta2 = k->o->beta2;
    o.weight_decay = k->o->weight_decay;
    o.seed = (uint64_t)k->o->seed;
    LNT_TRY(linnet_trainer_create(c, k->m, &o, &k->t));
    for (int i = 1; i < k->s->n_sets; i++) {
        lnt_plan_options p = {.tokens = k->rows[i] * k->s->set[i].longest, .n_seq = k->rows[i], .dtype = k->m->dtype, .n_outputs = 1,
                              .outputs = {k->m->logits}};
        LNT_TRY(lnt_plan_create(c, k->m->p, &p, &k->plan[i]));
    }
    return LINNET_OK;
}

/* How long an update takes, by an eighth of one; what all trainings cost. */
static linnet_status measure_cost(study *k)
{
    int64_t n = k->micro / 8;
    double flops = 0;
    n = n > 0 ? n : 1;
    fill_batch(k, 0);
    for (int i = 0; i < 2; i++) {
        const double begin = lnt_now();
        LNT_TRY(micro(k, 0, n, 1.0 / (double)k->cu[n]));
        LNT_TRY(linnet_trainer_drop(k->t)); /* and waits for the device */
        const double share = (double)k->cu[n] / (double)k->cu[k->batch];
        k->step_seconds = (lnt_now() - begin) / share;
        flops = lnt_plan_flops(k->t->plan) / share;
    }
    const double all = k->parts * (double)k->steps;
    return lnt_run_cost(k->r, (int64_t)k->parts, (int64_t)all, (int64_t)(all * (double)k->cu[k->batch]), all * flops, all * k->step_seconds);
}

/* As many updates and examples of the tests as there is time for: tests, which go forward alone, get a third of it at most. */
static int64_t steps_in_time(study *k)
{
    k->test_examples = k->o->test_examples;
    k->until = 0;
    if (!k->r->deadline) return k->steps;
    const double now = lnt_now(), share = 0.95 * (k->r->deadline - now) / (k->parts - k->part), token = k->step_seconds / (double)k->cu[k->batch] / 3;
    double example = 0;
    for (int i = 1; i < k->s->n_sets; i++) example += token * (double)k->s->set[i].longest;
    const double most = share / 3 / example;
    if (most < (double)k->test_examples) k->test_examples = most < 1 ? 1 : (int64_t)most;
    const double rest = share - example * (double)k->test_examples, fit = rest / k->step_seconds;
    k->until = now + rest;
    return fit < 1 ? 1 : fit < (double)k->steps ? (int64_t)fit : k->steps;
}

static int looked_at(const study *k) { return k->s->looks ? k->s->looks : 1; }

/* Accuracy and loss of so far, the means over a batch of each test that is looked at. */
static linnet_status look(study *k, lnt_test *mean)
{
    const int n = looked_at(k);
    for (int i = 1; i <= n; i++) {
        lnt_test t = {0};
        LNT_TRY(test(k, i, k->test_examples < k->batch ? k->test_examples : k->batch, &t));
        mean->accuracy += t.accuracy / n;
        mean->nats += t.nats / n;
    }
    return LINNET_OK;
}

static linnet_status update(study *k, double rate, linnet_trainer_result *out)
{
    linnet_trainer_result result = {.size = sizeof result};
    const double scale = 1 / (double)count_asked(k, k->batch);
    for (int64_t first = 0; first < k->batch; first += k->micro)
        LNT_TRY(micro(k, first, k->batch - first < k->micro ? k->batch - first : k->micro, scale));
    LNT_TRY(linnet_trainer_update(k->t, rate, &result));
    *out = result;
    return LINNET_OK;
}

static void note_left_out(study *k, int64_t steps)
{
    lnt_left_out *l = &k->r->left_out;
    if (steps < k->steps) {
        l->cut++;
        l->updates += steps;
        l->updates_wanted += k->steps;
    }
    if (k->test_examples < k->o->test_examples) {
        if (!l->examples_wanted || k->test_examples < l->examples) l->examples = k->test_examples;
        l->examples_wanted = k->o->test_examples;
    }
}

static void put_point(curve *v, int64_t step, const linnet_trainer_result *u)
{
    if (v->n == CURVE || (v->n && v->step[v->n - 1] == (double)step)) return;
    v->step[v->n] = (double)step;
    v->loss[v->n] = u->loss;
    v->rate[v->n] = u->learning_rate;
    v->norm[v->n++] = u->gradient_norm;
}

static void put_held(curve *v, int64_t step, double nats)
{
    if (v->n_held && v->held_step[v->n_held - 1] == (double)step) v->n_held--;
    v->held_step[v->n_held] = (double)step;
    v->held[v->n_held++] = nats;
}

static linnet_status train(study *k, double rate, int n_rates, lnt_trial *out, curve *v)
{
    const int64_t steps = steps_in_time(k), warmup = llround(k->o->warmup * (double)steps);
    const int64_t every = (steps + POINTS - 1) / POINTS, look_every = k->o->test_every > every ? k->o->test_every : every;
    linnet_trainer_result u = {.loss = NAN};
    char seen[32] = "";
    int64_t step = 0;
    bool ended = false; /* by itself, before its time */
    while (step < steps) {
        fill_batch(k, step);
        linnet_status s = update(k, linnet_learning_rate(step, steps, warmup, rate, k->o->floor), &u);
        ended = s == LINNET_EINVAL && n_rates > 1; /* a rate too high: the loss is no number, the weights are those before this update */
        if (ended) break;
        LNT_TRY(s);
        step++;
        if (step % every == 0) put_point(v, step, &u);
        if (k->o->test_every && step % look_every == 0 && step < steps && v->n_looks <= POINTS) {
            lnt_test t = {0};
            LNT_TRY(look(k, &t));
            put_point(v, step, &u);
            put_held(v, step, t.nats);
            v->look_step[v->n_looks] = (double)step;
            v->look_nats[v->n_looks] = t.nats;
            v->look[v->n_looks++] = t.accuracy;
            lnt_format(seen, sizeof seen, "  accuracy %.1f%%", 100 * t.accuracy);
            ended = t.accuracy > k->o->enough;
            if (ended) break;
        }
        LNT_TRY(lnt_run_progress(k->r, (k->part + (double)step / (double)steps) / k->parts, "step %lld/%lld  loss %.4f%s",
                                 (long long)step, (long long)steps, u.loss, seen));
        if (k->until && lnt_now() > k->until) break;
    }
    note_left_out(k, ended ? k->steps : step);
    if (step) put_point(v, step, &u);
    out->learning_rate = rate;
    out->steps = step;
    out->loss = u.loss;
    return LINNET_OK;
}

static linnet_status try_rate(study *k, double rate, int n_rates, lnt_trial *out, curve *v)
{
    linnet_model_info info = {.size = sizeof info};
    const double begin = lnt_now();
    LNT_TRY(open_model(k));
    linnet_model_get_info(k->m, &info);
    out->parameters = info.parameters;
    LNT_TRY(measure_cost(k));
    LNT_TRY(train(k, rate, n_rates, out, v));
    for (int i = 1; i < k->s->n_sets; i++) {
        LNT_TRY(make_room(k->r, &out->test[i], k->s->set[i].longest));
        LNT_TRY(test(k, i, k->test_examples, &out->test[i]));
    }
    double held = 0;
    for (int i = 1; i <= looked_at(k); i++) held += out->test[i].nats / looked_at(k);
    put_held(v, out->steps, held);
    out->seconds = lnt_now() - begin;
    return LINNET_OK;
}

/* ---- the report ------------------------------------------------------------------------------------------------------------------------ */

static const char *set_name(const lnt_source *s, int set) { return s->set[set].name ? s->set[set].name : "test"; }

static void put_rows(study *k, const char *setting, const lnt_trial *t, bool best)
{
    lnt_report *p = &k->r->report;
    for (int i = 1; i < k->s->n_sets; i++) {
        const lnt_test *x = &t->test[i];
        lnt_row_begin(p, "result");
        if (setting) lnt_row_text(p, "setting", setting);
        if (k->s->n_sets > 2) lnt_row_text(p, "test", set_name(k->s, i));
        lnt_row_text(p, "model_type", k->r->o->config->model_type);
        lnt_row_int(p, "parameters", t->parameters);
        lnt_row_real(p, "learning_rate", t->learning_rate);
        lnt_row_int(p, "best", best);
        lnt_row_int(p, "steps", t->steps);
        if (k->r->deadline) lnt_row_int(p, "steps_wanted", k->steps);
        lnt_row_real(p, "loss", t->loss);
        lnt_row_real(p, "accuracy", x->accuracy);
        lnt_row_real(p, "micro_accuracy", x->asked ? (double)x->right / (double)x->asked : NAN);
        lnt_row_real(p, "exact", (double)x->exact / (double)x->examples);
        if (k->s->chance > 0) lnt_row_real(p, "scaled_accuracy", (x->accuracy - k->s->chance) / (1 - k->s->chance));
        for (int e = 0; e < LNT_EXTRAS && k->s->extra[e]; e++) lnt_row_real(p, k->s->extra[e], x->extra[e]);
        lnt_row_real(p, "test_loss", x->nats);
        lnt_row_int(p, "examples", x->examples);
        if (k->r->deadline) lnt_row_int(p, "examples_wanted", k->o->test_examples);
        lnt_row_int(p, "predictions", x->asked);
        lnt_row_real(p, "seconds", t->seconds);
        lnt_row_end(p);
    }
}

/* Behind the run's last training: what there was no time for. */
static void put_left_out(lnt_run *r)
{
    const lnt_left_out *l = &r->left_out;
    char text[256] = "";
    size_t n = 0;
    if (l->cut) n += (size_t)snprintf(text, sizeof text, ", updates %lld of %lld", (long long)l->updates, (long long)l->updates_wanted);
    if (l->cut > 1) n += (size_t)snprintf(text + n, sizeof text - n, " in %lld trainings", (long long)l->cut);
    if (l->examples_wanted)
        n += (size_t)snprintf(text + n, sizeof text - n, ", examples of a test %lld of %lld", (long long)l->examples, (long long)l->examples_wanted);
    if (l->begun < l->trainings) {
        snprintf(text + n, sizeof text - n, ", %lld of %lld trainings not begun", (long long)(l->trainings - l->begun), (long long)l->trainings);
        lnt_row_begin(&r->report, "left_out");
        lnt_row_int(&r->report, "trainings", l->trainings);
        lnt_row_int(&r->report, "begun", l->begun);
        lnt_row_end(&r->report);
    }
    if (*text) lnt_report_words(&r->report, "The time allowed was over before the end: %s.", text + 2);
}

static void plot_curves(lnt_report *p, const curve *v, const char *name)
{
    const struct {
        const char *title, *label;
        const double *x, *y;
        int n;
        bool share, log_y;
    } all[] = {
        {"Training loss", "nats a prediction", v->step, v->loss, v->n, false, false},
        {"Held-out loss", "nats a prediction", v->held_step, v->held, v->n_held, false, false},
        {"Learning rate", "", v->step, v->rate, v->n, false, false},
        {"Gradient norm", "", v->step, v->norm, v->n, false, true},
        {"Looks while training", "accuracy", v->look_step, v->look, v->n_looks, true, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].n)
            lnt_report_plot_join(p, &(lnt_plot){.title = all[i].title, .x_label = "update", .y_label = all[i].label, .y_high = all[i].share,
                                                .log_y = all[i].log_y, .n_lines = 1,
                                                .lines = &(lnt_plot_line){.name = name, .x = all[i].x, .y = all[i].y, .n = all[i].n}});
}

/* training.csv and looks.csv; of several trainings, the number-th's. */
static void write_curves(lnt_report *p, const curve *v, int number, int of)
{
    static const char *const keys[] = {"step", "loss", "learning_rate", "gradient_norm", "held_out_loss"};
    static const char *const look_keys[] = {"step", "accuracy", "loss"};
    char end[16] = "", file[64];
    double held[CURVE];
    for (int i = 0, at = 0; i < v->n; i++) {
        const bool there = at < v->n_held && v->held_step[at] == v->step[i];
        held[i] = there ? v->held[at++] : NAN;
    }
    if (of > 1) snprintf(end, sizeof end, "-%d", number);
    snprintf(file, sizeof file, "training%s", end);
    lnt_report_series(p, file, 5, keys, (const double *[]){v->step, v->loss, v->rate, v->norm, held}, v->n);
    snprintf(file, sizeof file, "looks%s", end);
    if (v->n_looks) lnt_report_series(p, file, 3, look_keys, (const double *[]){v->look_step, v->look, v->look_nats}, v->n_looks);
}

/* Lines are called by the rate; where the run has several settings, the best rate's alone are drawn, of the first MOST_DRAWN, and called by the
 * setting: the others are in their files. */
static void report_training(study *k, const curve *v, const lnt_trial *trial, int n, int done, int best, const char *setting, int part)
{
    const bool several = (int)k->parts > n;
    char name[48];
    for (int i = 0; i < done; i++) {
        lnt_format(name, sizeof name, "rate %g", trial[i].learning_rate);
        if (!several) plot_curves(&k->r->report, &v[i], n > 1 ? name : NULL);
        else if (i == best && part < MOST_DRAWN) plot_curves(&k->r->report, &v[i], setting);
        write_curves(&k->r->report, &v[i], part * n + i + 1, (int)k->parts);
    }
}

/* Means of y over neighbours in x, weighted, of a BINS-th of all weights at least: points of a curve that few examples stand for would hide it. */
static int64_t merge(int64_t n, const double *x, const double *weight, const double *y, double *x_out, double *y_out)
{
    double all = 0, w = 0, wx = 0, wy = 0;
    int64_t m = 0;
    for (int64_t i = 0; i < n; i++) all += weight[i];
    for (int64_t i = 0; i < n; i++) {
        w += weight[i];
        wx += weight[i] * x[i];
        wy += weight[i] * y[i];
        if (w < all / BINS && i + 1 < n) continue;
        x_out[m] = wx / w;
        y_out[m++] = wy / w;
        w = wx = wy = 0;
    }
    return m;
}

/* The share of right predictions, and of examples right up to there, over position; or over the length of the example where lengths differ. */
static linnet_status plot_test(study *k, int set, const lnt_test *t)
{
    const char *const keys[2][4] = {{"position", "asked", "accuracy", "prefix_right"}, {"length", "examples", "accuracy", NULL}};
    int64_t lengths = 0, positions = 0, n = 0;
    void *memory;
    char title[96], file[96];
    for (int64_t i = 0; i <= t->longest; i++) lengths += t->length_examples[i] > 0;
    for (int64_t i = 0; i < t->longest; i++) positions += t->position_asked[i] > 0;
    const bool by_length = lengths > 1;
    if (!by_length && positions < 2) return LINNET_OK;
    LNT_TRY(lnt_run_memory(k->r, lnt_bytes(lnt_bytes_plus((size_t)t->longest, 1), 6 * sizeof(double)), &memory));
    double *x = memory, *asked = x + t->longest + 1, *right = asked + t->longest + 1, *prefix = right + t->longest + 1;
    double *near_x = prefix + t->longest + 1, *near_y = near_x + t->longest + 1;
    for (int64_t i = 0; i <= t->longest; i++) {
        const int64_t a = by_length ? t->length_asked[i] : i < t->longest ? t->position_asked[i] : 0;
        if (!a) continue;
        x[n] = (double)i + !by_length;
        asked[n] = (double)(by_length ? t->length_examples[i] : a);
        right[n] = (double)(by_length ? t->length_right[i] : t->position_right[i]) / (double)a;
        prefix[n++] = by_length ? NAN : (double)t->prefix_right[i] / (double)t->examples;
    }
    const int64_t merged = by_length ? merge(n, x, asked, right, near_x, near_y) : 0;
    const lnt_plot_line line[2] = {by_length ? (lnt_plot_line){.x = near_x, .y = near_y, .n = merged}
                                             : (lnt_plot_line){.name = "this position", .x = x, .y = right, .n = n},
                                   {.name = "all up to here", .x = x, .y = prefix, .n = n}};
    snprintf(title, sizeof title, "Accuracy over %s, %s", keys[by_length][0], set_name(k->s, set));
    lnt_report_plot_add(&k->r->report, &(lnt_plot){.title = title, .x_label = keys[by_length][0], .y_label = "share", .y_low = 0, .y_high = 1,
                                                   .n_lines = by_length ? 1 : 2, .lines = line});
    snprintf(file, sizeof file, k->s->n_sets > 2 ? "%s-%d" : "%s", keys[by_length][0], set);
    lnt_report_series(&k->r->report, file, by_length ? 3 : 4, keys[by_length], (const double *[]){x, asked, right, prefix}, n);
    return LINNET_OK;
}

/* ---- the study -------------------------------------------------------------------------------------------------------------------------- */

static linnet_status open_study(study *k)
{
    lnt_run *r = k->r;
    const lnt_study *o = k->o;
    int64_t longest = 0, most = 0, tokens;
    void *p;
    k->batch = o->batch;
    if (o->epochs && !o->examples)
        return lnt_fail_option(r->c, "epochs", "is %lld, but the number of examples is not set", (long long)o->epochs);
    if (o->epochs) LNT_TRY(lnt_run_unread(r, "steps", "epochs stands in its place, and 0 of them lets updates count"));
    k->steps = o->epochs ? (o->epochs * o->examples + k->batch - 1) / k->batch : o->steps;
    k->micro = MICRO_TOKENS / k->s->set[0].longest;
    k->micro = k->micro < 1 ? 1 : k->micro < k->batch ? k->micro : k->batch;
    for (int i = 0; i < k->s->n_sets; i++) {
        const int64_t rows = LOGITS / k->s->vocabulary / k->s->set[i].longest;
        k->rows[i] = rows < 1 ? 1 : rows < k->batch ? rows : k->batch;
        if (k->s->set[i].longest > longest) longest = k->s->set[i].longest;
        if (i && k->rows[i] > most) most = k->rows[i];
    }
    if (most < k->batch) most = k->batch;
    if (!lnt_mul(most, longest, &tokens) || tokens > INT32_MAX)
        return lnt_fail_option(r->c, "batch", "is %lld, which is too large for examples of %lld tokens", (long long)o->batch,
                               (long long)longest);
    LNT_TRY(lnt_run_memory(r, lnt_bytes((size_t)tokens, sizeof *k->ids), &p));
    k->ids = p;
    LNT_TRY(lnt_run_memory(r, lnt_bytes((size_t)tokens, sizeof *k->targets), &p));
    k->targets = p;
    LNT_TRY(lnt_run_memory(r, lnt_bytes(lnt_bytes_plus((size_t)most, 1), 2 * sizeof *k->cu), &p));
    k->cu = p;
    k->some_cu = k->cu + most + 1;
    LNT_TRY(lnt_run_memory(r, lnt_bytes((size_t)k->s->vocabulary, sizeof *k->logits), &p));
    k->logits = p;
    LNT_TRY(lnt_run_memory(r, lnt_bytes(lnt_bytes_plus((size_t)o->examples, 1), sizeof *k->order), &p));
    k->order = p;
    return LINNET_OK;
}

static double score_of(const study *k, const lnt_trial *t)
{
    double sum = 0;
    for (int i = 1; i < k->s->n_sets; i++) sum += k->s->score ? t->test[i].extra[k->s->score - 1] : t->test[i].accuracy;
    return sum;
}

linnet_status lnt_study_run(lnt_run *r, const lnt_study *o, lnt_source *source, const char *setting, int part, int parts, lnt_trial *best)
{
    study k = {.r = r, .o = o, .s = source};
    double rate[LNT_RATES];
    int n = 0, first = 0, done = 0;
    void *p;
    LNT_TRY(lnt_task_numbers(r->c, "learning_rate", o->learning_rate ? o->learning_rate : "", 0, 1e3, LNT_RATES, rate, &n));
    LNT_TRY(open_study(&k));
    LNT_TRY(lnt_run_memory(r, lnt_bytes((size_t)n, sizeof(lnt_trial)), &p));
    lnt_trial *trial = p;
    LNT_TRY(lnt_run_memory(r, lnt_bytes((size_t)n, sizeof(curve)), &p));
    curve *v = p;
    k.parts = (double)parts * n;
    r->left_out.trainings = (int64_t)parts * n;
    linnet_status s = LINNET_OK;
    for (int i = 0; i < n && s == LINNET_OK; i++) {
        k.part = (double)part * n + i;
        if (k.part > 0 && r->deadline && lnt_now() > r->deadline) break; /* the first is made in any case */
        r->left_out.begun++;
        s = try_rate(&k, rate[i], n, &trial[i], &v[i]);
        close_model(&k);
        done += s == LINNET_OK;
        if (s == LINNET_OK && score_of(&k, &trial[i]) > score_of(&k, &trial[first])) first = i;
    }
    for (int i = 0; i < done; i++) put_rows(&k, setting, &trial[i], i == first);
    LNT_TRY(s);
    if (part + 1 == parts) put_left_out(r);
    report_training(&k, v, trial, n, done, first, setting, part);
    if (parts == 1) {
        for (int i = 1; i < source->n_sets; i++) LNT_TRY(plot_test(&k, i, &trial[first].test[i]));
    }
    if (best) *best = trial[first];
    return r->report.s;
}

linnet_status lnt_study_task(lnt_run *r, const lnt_study *o)
{
    lnt_source source = {.name = r->task->info.name, .seed = (uint64_t)o->data_seed};
    LNT_TRY(r->task->source(r->c, r->values, r->arena, &source));
    return lnt_study_run(r, o, &source, NULL, 0, 1, NULL);
}

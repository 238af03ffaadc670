/* The caller's threads (linnet_context_options.parallel): every mixer trained, run and stepped on pools of several widths and manners has the bits of
 * one thread, no thread of the library's comes into being, and threads that work for several contexts mix nothing up. Operators one by one:
 * test_ops.c and test_recurrence.c. Races: clang's `./run races` cannot look; this program does under -DLINNET_SANITIZE=thread with GCC. */
#include "model_recipes.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "linnet/train.h"
#include "mixers/mixers.h"
#include "pool_of.h"
#include "session_of.h"

enum { BATCH = 2, LENGTH = 512, STEPS = 3, CHUNK = 256 };

static int32_t text[BATCH * LENGTH];

typedef struct {
    float *weights, *logits; /* after an update; of all tokens, then of steps */
    int64_t n_weights, n_logits;
} result;

static linnet_context *pooled(int threads, pool *p)
{
    const linnet_context_options o = pool_options(threads, p);
    linnet_context *made;
    if (linnet_context_create(&o, &made) != LINNET_OK) fail_msg("%s", linnet_error_message(made));
    return made;
}

static void train(linnet_model *m)
{
    linnet_trainer *t;
    linnet_trainer_options o = LINNET_TRAINER_OPTIONS_INIT;
    linnet_trainer_result did = {.size = sizeof did};
    linnet_micro_batch b = LINNET_MICRO_BATCH_INIT;
    o.batch = BATCH, o.length = LENGTH, b.ids = text, b.tokens = BATCH * LENGTH, b.sequences = BATCH;
    OK(linnet_trainer_create(c, m, &o, &t));
    OK(linnet_trainer_micro(t, &b));
    OK(linnet_trainer_update(t, 1e-3, &did));
    assert_true(did.loss > 0 && did.gradient_norm > 0);
    linnet_trainer_destroy(t);
}

/* A step of training, a prompt, some steps of two texts at once. */
static result live(const char *mixer, linnet_dtype dtype)
{
    result r = {NULL, NULL, 0, (LENGTH + 2 * STEPS) * VOCAB};
    linnet_model *m = mixer_model(mixer, dtype);
    train(m);
    for (int64_t i = 0; i < linnet_parameter_count(m); i++) {
        linnet_parameter_info is = {.size = sizeof is};
        OK(linnet_parameter_at(c, m, i, &is));
        r.weights = realloc(r.weights, (size_t)(r.n_weights + is.elements) * sizeof(float));
        OK(linnet_parameter_read(c, m, is.name, 0, is.elements, r.weights + r.n_weights));
        r.n_weights += is.elements;
    }
    r.logits = calloc((size_t)r.n_logits, sizeof(float));
    linnet_session *s = session_of(m, 2, LENGTH + STEPS, 0, CHUNK);
    linnet_state *a = state_of(s), *b;
    feed(a, text, LENGTH, r.logits);
    OK(linnet_state_fork(a, &b));
    for (int i = 0; i < STEPS; i++) {
        float *to = r.logits + (LENGTH + 2 * i) * VOCAB;
        const linnet_session_call k[2] = {step_of(a, text + i, to), step_of(b, text + i + 1, to + VOCAB)};
        OK(linnet_session_run(s, k, 2));
    }
    linnet_session_destroy(s);
    linnet_model_destroy(m);
    return r;
}

static void drop(result *r)
{
    free(r->weights);
    free(r->logits);
}

static void same(const char *name, const char *how, const result *a, const result *b)
{
    assert_int_equal(a->n_weights, b->n_weights);
    if (memcmp(a->weights, b->weights, (size_t)a->n_weights * sizeof(float))) fail_msg("%s: other weights on a pool (%s)", name, how);
    if (memcmp(a->logits, b->logits, (size_t)a->n_logits * sizeof(float))) fail_msg("%s: other logits on a pool (%s)", name, how);
}

static int tasks_here(void)
{
    DIR *d = opendir("/proc/self/task");
    int n = 0;
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void every_mixer_on_every_pool(void **state)
{
    (void)state;
    static const char *const names[WAYS] = {"backwards", "side by side", "careless"};
    if (!lnt_pool_possible()) skip();
    const int before = tasks_here();
    for (int i = 0; lnt_mixer_at(i); i++) {
        const char *name = lnt_mixer_at(i)->kind.about.name;
        const linnet_dtype dtype = i % 2 ? LINNET_BF16 : LINNET_F32;
        c = context_of(1);
        result one = live(name, dtype);
        linnet_context_destroy(c);
        for (int way = 0; way < WAYS; way++) {
            pool p = {.way = way};
            const int width = (int[]){2, 3, 7}[(i + way) % 3];
            c = pooled(width, &p);
            result r = live(name, dtype);
            linnet_context_destroy(c);
            same(name, names[way], &one, &r);
            if (p.regions < 10 || p.widest != width)
                fail_msg("%s: the pool of %d was asked %lld times for at most %d", name, width, (long long)p.regions, (int)p.widest);
            drop(&r);
        }
        drop(&one);
    }
    assert_int_equal(tasks_here(), before); /* nobody's team */
}

/* ---- a thread that works for two contexts: while it waits for one's pool, it serves the other ----------------------------------------------- */

static linnet_context *other;
static linnet_model *others;
static float *others_logits;
static pool others_pool;
static bool within;

static void another_job(void *user, int32_t n, void (*body)(void *arg, int32_t i), void *arg)
{
    int64_t ids[LENGTH];
    pool_run(user, n, body, arg);
    if (within) return;
    within = true;
    for (int i = 0; i < LENGTH; i++) ids[i] = text[i];
    assert_int_equal(linnet_model_logits(other, others, ids, 1, LENGTH, others_logits), LINNET_OK);
    within = false;
}

static void other_work_while_waiting(void **state)
{
    (void)state;
    if (!lnt_pool_possible()) skip();
    static float got[LENGTH * VOCAB];
    pool mine = {.way = BACKWARDS};
    int64_t ids[LENGTH];
    for (int i = 0; i < LENGTH; i++) ids[i] = text[i];
    c = context_of(1);
    result one = live("gated_deltanet", LINNET_F32);
    linnet_context_destroy(c);
    for (int with = 0; with < 2; with++) { /* the other has a pool of its own, or OpenMP's threads */
        linnet_context_options o = pool_options(3, &mine);
        o.parallel = another_job;
        others_pool = (pool){.way = BACKWARDS};
        c = other = with ? pooled(2, &others_pool) : context_of(2);
        others = mixer_model("retnet", LINNET_F32);
        others_logits = calloc(LENGTH * VOCAB, sizeof(float));
        OK(linnet_model_logits(other, others, ids, 1, LENGTH, got));
        assert_int_equal(linnet_context_create(&o, &c), LINNET_OK);
        result r = live("gated_deltanet", LINNET_F32);
        linnet_context_destroy(c);
        same("gated_deltanet", "other work", &one, &r);
        assert_memory_equal(got, others_logits, sizeof got);
        drop(&r);
        free(others_logits);
        linnet_model_destroy(others);
        linnet_context_destroy(other);
    }
    drop(&one);
}

/* A context with a pool leaves nothing behind for one without. */
static void threads_of_its_own_again(void **state)
{
    (void)state;
    if (!lnt_pool_possible()) skip();
    pool p = {.way = SIDE_BY_SIDE};
    c = pooled(3, &p);
    result r = live("gla", LINNET_F32);
    linnet_context_destroy(c);
    const int64_t asked = p.regions;
    c = context_of(3);
    result own = live("gla", LINNET_F32);
    linnet_context_destroy(c);
    assert_int_equal(p.regions, asked);
    same("gla", "OpenMP's threads", &own, &r);
    drop(&r);
    drop(&own);
}

static void where_there_is_none(void **state)
{
    (void)state;
    pool p = {.way = BACKWARDS};
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.parallel = pool_run, o.parallel_user = &p;
    const linnet_status s = linnet_context_create(&o, &c);
    assert_int_equal(s, lnt_pool_possible() ? LINNET_OK : LINNET_EUNSUPPORTED);
    if (s != LINNET_OK) assert_non_null(strstr(linnet_error_message(c), "GCC"));
    linnet_context_destroy(c);
}

int main(int argc, char **argv)
{
    draw_ids(text, BATCH * LENGTH);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mixer_on_every_pool), /* first: teams stay */
        cmocka_unit_test(other_work_while_waiting),
        cmocka_unit_test(threads_of_its_own_again),
        cmocka_unit_test(where_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

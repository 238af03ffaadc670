/* Several threads at once: models shared between their contexts, tokenizers and descriptions read by all, trainers side by side, a caller's own
 * threads and a caller's own OpenMP; always the bits of one thread alone. `./run races` runs this under ThreadSanitizer; LINNET_TEST_RACE=session or
 * =team in the environment makes a mistake instead, which it must see. */
#include "model_recipes.h"

#include <dirent.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "linnet/recurrence.h"
#include "linnet/task.h"
#include "linnet/train.h"
#include "mixers/mixers.h"
#include "session_of.h"

enum { MANY = 4, TEXT = 40, PREFILL = 21, CHUNK = 16 };

static int32_t text[TEXT + MANY];

/* What a thread does and what came of it; threads fail by status, the one that waits for them by cmocka. */
typedef struct {
    linnet_context *c;
    linnet_model *m;
    const linnet_tokenizer *t;
    int index;
    linnet_status status;
    float *logits; /* [TEXT][VOCAB] */
    int64_t done;
} job;

static void in_threads(job *jobs, int n, void *(*work)(void *))
{
    pthread_t thread[MANY];
    for (int i = 0; i < n; i++) assert_int_equal(pthread_create(&thread[i], NULL, work, &jobs[i]), 0);
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
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

/* ---- one model, several threads ------------------------------------------------------------------------------------------------------- */

#define STEP(call)                          \
    do {                                    \
        const linnet_status s_ = (call);    \
        if (s_ != LINNET_OK) return s_;     \
    } while (0)

/* A prompt, steps, a fork that is taken back and catches up, a file; logits of all that was fed. */
static linnet_status speak(job *j, linnet_session *s)
{
    linnet_state *a, *b, *back;
    char file[64];
    linnet_session_call k = LINNET_SESSION_CALL_INIT;
    const int32_t *ids = text + j->index;
    STEP(linnet_state_create(s, &a));
    k.state = a, k.ids = ids, k.n_ids = PREFILL, k.wants = LINNET_LOGITS_ALL, k.logits = j->logits;
    STEP(linnet_session_run(s, &k, 1));
    STEP(linnet_state_fork(a, &b));
    STEP(linnet_state_rollback(b, 2));
    for (int i = PREFILL; i < TEXT; i++) {
        k.ids = ids + i, k.n_ids = 1, k.logits = j->logits + i * VOCAB;
        STEP(linnet_session_run(s, &k, 1));
    }
    snprintf(file, sizeof file, "/tmp/linnet-threads-%d-%d", (int)getpid(), j->index);
    STEP(linnet_state_save(b, file));
    linnet_state_destroy(a);
    const linnet_status loaded = linnet_state_load(s, file, &back);
    unlink(file);
    return loaded;
}

static void *speak_in_a_thread(void *p)
{
    job *j = p;
    linnet_session *s = NULL;
    linnet_session_options o = LINNET_SESSION_OPTIONS_INIT;
    o.slots = 2, o.rollback = 8, o.chunk = CHUNK, o.capacity = TEXT;
    j->status = linnet_session_create(j->c, j->m, &o, &s);
    if (j->status == LINNET_OK) j->status = speak(j, s);
    linnet_session_destroy(s);
    return NULL;
}

static void open_jobs(job *jobs, linnet_model *m)
{
    for (int i = 0; i < MANY; i++) {
        jobs[i] = (job){.c = context_of(1 + i % 2), .index = i, .logits = calloc(TEXT * VOCAB, sizeof(float))};
        assert_non_null(jobs[i].logits);
        if (linnet_model_share(jobs[i].c, m, &jobs[i].m) != LINNET_OK) fail_msg("%s", linnet_error_message(jobs[i].c));
    }
}

static void close_jobs(job *jobs)
{
    for (int i = 0; i < MANY; i++) {
        linnet_model_destroy(jobs[i].m);
        linnet_context_destroy(jobs[i].c);
        free(jobs[i].logits);
    }
}

static void shared_by_threads(const char *name, linnet_model *m)
{
    job jobs[MANY], alone = {.c = c, .m = m};
    static float own[TEXT * VOCAB];
    open_jobs(jobs, m);
    in_threads(jobs, MANY, speak_in_a_thread);
    for (int i = 0; i < MANY; i++) {
        if (jobs[i].status != LINNET_OK) fail_msg("%s, thread %d: %s", name, i, linnet_error_message(jobs[i].c));
        alone.index = i, alone.logits = own;
        speak_in_a_thread(&alone);
        assert_int_equal(alone.status, LINNET_OK);
        if (memcmp(own, jobs[i].logits, sizeof own)) fail_msg("%s: thread %d has other logits than one alone", name, i);
    }
    close_jobs(jobs);
}

static void one_model_many_threads(void **state)
{
    (void)state;
    c = context_of(1);
    for (int i = 0; lnt_mixer_at(i); i++) {
        const char *name = lnt_mixer_at(i)->kind.about.name;
        linnet_model *m = mixer_model(name, i % 2 ? LINNET_BF16 : LINNET_F32);
        shared_by_threads(name, m);
        linnet_model_destroy(m);
    }
    linnet_context_destroy(c);
}

/* A model of layers that are large enough to be shared among the threads of a context. */
static linnet_model *wide_model(void)
{
    linnet_config *k;
    linnet_model *m;
    OK(linnet_config_create(c, "gated_deltanet", &k));
    OK(linnet_config_set(c, k, "vocab_size", "61"));
    OK(linnet_config_set(c, k, "hidden_size", "512"));
    OK(linnet_config_set(c, k, "num_hidden_layers", "2"));
    OK(linnet_model_create(c, k, LINNET_F32, 1, &m));
    linnet_config_destroy(k);
    return m;
}

static void teams_side_by_side(void **state)
{
    (void)state;
    c = context_of(1);
    linnet_model *m = wide_model();
    shared_by_threads("wide", m);
    linnet_model_destroy(m);
    linnet_context_destroy(c);
}

/* What sharing refuses, and that it leaves the weights alone. */
static void sharing_is_reading(void **state)
{
    (void)state;
    c = context_of(1);
    linnet_context *other = context_of(1);
    linnet_model *m = mixer_model("delta_net", LINNET_F32), *shared, *outline, *again;
    linnet_config *k;
    linnet_trainer *t;
    linnet_trainer_options o = LINNET_TRAINER_OPTIONS_INIT;
    linnet_session *s;
    float values[4] = {0}, was[4];
    assert_int_equal(linnet_model_share(NULL, m, &shared), LINNET_EINVAL);
    assert_int_equal(linnet_model_share(other, NULL, &shared), LINNET_EINVAL);
    assert_int_equal(linnet_model_share(other, m, NULL), LINNET_EINVAL);
    OK(linnet_config_create(c, "delta_net", &k));
    OK(linnet_model_outline(c, k, LINNET_F32, &outline));
    assert_int_equal(linnet_model_share(other, outline, &shared), LINNET_EINVAL);
    assert_int_equal(linnet_session_create(other, m, NULL, &s), LINNET_EINVAL); /* not without sharing */
    assert_int_equal(linnet_model_share(other, m, &shared), LINNET_OK);
    assert_int_equal(linnet_model_share(c, shared, &again), LINNET_OK); /* of the shared one, back again */
    assert_int_equal(linnet_trainer_create(other, shared, &o, &t), LINNET_EINVAL);
    assert_non_null(strstr(linnet_error_message(other), "shares"));
    OK(linnet_parameter_read(c, m, "model.norm.weight", 0, 4, was));
    assert_int_equal(linnet_parameter_write(other, shared, "model.norm.weight", 0, 4, values), LINNET_EINVAL);
    OK(linnet_parameter_write(c, m, "model.norm.weight", 0, 4, (float[]){2, 3, 4, 5}));
    assert_int_equal(linnet_parameter_read(other, shared, "model.norm.weight", 0, 4, values), LINNET_OK);
    assert_true(values[0] == 2 && values[3] == 5 && was[0] == 1); /* they are the same weights */
    linnet_model_destroy(again);
    linnet_model_destroy(shared);
    OK(linnet_parameter_read(c, m, "model.norm.weight", 0, 4, values));
    assert_true(values[1] == 3);
    linnet_model_destroy(outline);
    linnet_config_destroy(k);
    linnet_model_destroy(m);
    linnet_context_destroy(other);
    linnet_context_destroy(c);
}

/* ---- what belongs to no context -------------------------------------------------------------------------------------------------------- */

static const char said[] = "linnets sing, and 1234 other birds listen: \xc3\xa9t\xc3\xa9";

static void *read_what_is_there(void *p)
{
    job *j = p;
    char json[256];
    for (int turn = 0; turn < 20; turn++) {
        int32_t *ids;
        int64_t n;
        size_t bytes;
        double least, most;
        j->status = linnet_tokenizer_encode(j->c, j->t, said, sizeof said - 1, &ids, &n);
        if (j->status != LINNET_OK) return NULL;
        for (int64_t i = 0; i < n; i++) j->done += ids[i] * (i + 1) + (linnet_tokenizer_piece(j->t, ids[i], &bytes) != NULL);
        linnet_free(ids);
        for (int i = 0; linnet_mixer_at(i); i++) j->done += (int64_t)strlen(linnet_mixer_at(i)->name);
        for (int i = 0; linnet_operator_at(i); i++) j->done += (int64_t)linnet_operator_describe(linnet_operator_at(i), json, sizeof json);
        char *kind = linnet_kind_describe("gated_deltanet", 1);
        j->done += kind ? (int64_t)strlen(kind) : 0;
        linnet_free(kind);
        j->done += linnet_option_range("train", "batch", &least, &most) == LINNET_OK && linnet_task_at(0) && linnet_dtype_name(LINNET_F32);
        if (linnet_config_create(j->c, "no_such_mixer", &(linnet_config *){NULL}) != LINNET_EINVAL || !strstr(linnet_error_message(j->c), "no_such"))
            j->status = LINNET_EINTERNAL;
    }
    return NULL;
}

static void what_all_may_read(void **state)
{
    (void)state;
    job jobs[MANY];
    linnet_tokenizer *t;
    c = context_of(1);
    char corpus[4000];
    for (size_t i = 0; i < sizeof corpus; i++) corpus[i] = said[i * i % (sizeof said - 1)];
    OK(linnet_tokenizer_train(c, corpus, sizeof corpus, 300, &t));
    for (int i = 0; i < MANY; i++) jobs[i] = (job){.c = context_of(1), .t = t, .index = i};
    in_threads(jobs, MANY, read_what_is_there);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(jobs[i].status, LINNET_OK);
        assert_true(jobs[i].done > 0 && jobs[i].done == jobs[0].done);
        linnet_context_destroy(jobs[i].c);
    }
    linnet_tokenizer_destroy(t);
    linnet_context_destroy(c);
}

/* ---- training side by side --------------------------------------------------------------------------------------------------------------- */

static void *train_in_a_thread(void *p)
{
    job *j = p;
    linnet_trainer *t;
    linnet_trainer_options o = LINNET_TRAINER_OPTIONS_INIT;
    linnet_trainer_result did = {.size = sizeof did};
    linnet_micro_batch b = LINNET_MICRO_BATCH_INIT;
    o.batch = 2, o.length = 20, b.ids = text + j->index, b.tokens = 40, b.sequences = 2;
    j->status = linnet_trainer_create(j->c, j->m, &o, &t);
    for (int step = 0; step < 4 && j->status == LINNET_OK; step++) {
        j->status = linnet_trainer_micro(t, &b);
        if (j->status == LINNET_OK) j->status = linnet_trainer_update(t, 1e-2, &did);
        j->logits[step] = (float)did.loss;
    }
    linnet_trainer_destroy(t);
    return NULL;
}

static void trainers_side_by_side(void **state)
{
    (void)state;
    static const char *const mixers[MANY] = {"gated_deltanet", "simple_gla", "transformer", "mesa_net"};
    static float losses[2][MANY][4];
    for (int together = 0; together < 2; together++) {
        job jobs[MANY];
        for (int i = 0; i < MANY; i++) {
            c = context_of(1 + i % 2);
            jobs[i] = (job){.c = c, .m = mixer_model(mixers[i], LINNET_F32), .index = i, .logits = losses[together][i]};
        }
        if (together) in_threads(jobs, MANY, train_in_a_thread);
        for (int i = 0; i < MANY; i++) {
            if (!together) train_in_a_thread(&jobs[i]);
            if (jobs[i].status != LINNET_OK) fail_msg("%s: %s", mixers[i], linnet_error_message(jobs[i].c));
            linnet_model_destroy(jobs[i].m);
            linnet_context_destroy(jobs[i].c);
        }
    }
    assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
    for (int i = 0; i < MANY; i++) assert_true(losses[0][i][3] < losses[0][i][0]);
}

/* ---- whose threads ------------------------------------------------------------------------------------------------------------------------ */

/* A context of one thread makes none; one of three makes two more, which stay for the next call. */
static void one_thread_makes_none(void **state)
{
    (void)state;
#ifdef __clang__
    skip(); /* LLVM's OpenMP makes a thread for itself */
#endif
    static float one[TEXT * VOCAB], three[TEXT * VOCAB];
    const int before = tasks_here();
    job j = {.index = 0, .logits = one};
    j.c = c = context_of(1);
    j.m = mixer_model("gated_deltanet", LINNET_F32);
    speak_in_a_thread(&j);
    assert_int_equal(j.status, LINNET_OK);
    linnet_model_destroy(j.m);
    linnet_context_destroy(c);
    assert_int_equal(tasks_here(), before);
    j.c = c = context_of(3), j.logits = three;
    j.m = wide_model();
    speak_in_a_thread(&j);
    assert_int_equal(j.status, LINNET_OK);
    assert_int_equal(tasks_here(), before + 2);
    linnet_model_destroy(j.m);
    linnet_context_destroy(c);
}

/* Inside a caller's own parallel region the work is done where it is asked for. */
static void inside_a_parallel_region(void **state)
{
    (void)state;
    job jobs[MANY], alone = {.logits = NULL};
    static float own[TEXT * VOCAB];
    c = context_of(1);
    linnet_model *m = mixer_model("gla", LINNET_F32);
    for (int i = 0; i < MANY; i++) {
        jobs[i] = (job){.c = context_of(3), .index = i, .logits = calloc(TEXT * VOCAB, sizeof(float))};
        assert_non_null(jobs[i].logits);
        assert_int_equal(linnet_model_share(jobs[i].c, m, &jobs[i].m), LINNET_OK);
    }
#pragma omp parallel for num_threads(2) schedule(static, 1)
    for (int i = 0; i < MANY; i++) speak_in_a_thread(&jobs[i]);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(jobs[i].status, LINNET_OK);
        alone = (job){.c = c, .m = m, .index = i, .logits = own};
        speak_in_a_thread(&alone);
        assert_memory_equal(own, jobs[i].logits, sizeof own);
    }
    close_jobs(jobs);
    linnet_model_destroy(m);
    linnet_context_destroy(c);
}

/* ---- the mistake that must be seen -------------------------------------------------------------------------------------------------------- */

static linnet_session *for_two;

static void *use_one_session(void *p)
{
    job *j = p;
    linnet_state *a;
    linnet_session_call k = LINNET_SESSION_CALL_INIT;
    j->status = linnet_state_create(for_two, &a);
    k.state = a, k.ids = text, k.n_ids = 1, k.wants = LINNET_LOGITS_LAST, k.logits = j->logits;
    for (int i = 0; i < 20 && j->status == LINNET_OK; i++) j->status = linnet_session_run(for_two, &k, 1);
    return NULL;
}

/* Two threads write one number. */
static int race_in_a_team(void)
{
    int64_t all = 0;
#pragma omp parallel for num_threads(2)
    for (int i = 0; i < 2000; i++) all += i;
    return printf("%lld\n", (long long)all) < 0;
}

/* Two threads, one session: what the header forbids. It may never end: `./run races` stops it at the first report. */
static int race_in_a_session(void)
{
    static float logits[2][VOCAB];
    job jobs[2] = {{.index = 0, .logits = logits[0]}, {.index = 1, .logits = logits[1]}};
    pthread_t thread[2];
    c = context_of(1);
    linnet_model *m = mixer_model("delta_net", LINNET_F32);
    for_two = session_of(m, 4, TEXT, 0, CHUNK);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, use_one_session, &jobs[i])) return 1;
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    printf("two threads used one session\n");
    return 0;
}

int main(int argc, char **argv)
{
    draw_ids(text, TEXT + MANY);
    const char *mistake = getenv("LINNET_TEST_RACE");
    if (mistake) return !strcmp(mistake, "team") ? race_in_a_team() : race_in_a_session();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_thread_makes_none), /* first: teams stay */
        cmocka_unit_test(one_model_many_threads), cmocka_unit_test(teams_side_by_side),    cmocka_unit_test(sharing_is_reading),
        cmocka_unit_test(what_all_may_read),      cmocka_unit_test(trainers_side_by_side), cmocka_unit_test(inside_a_parallel_region),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The caller's allocator (linnet_allocator_set): everything comes from it and goes back, it may run dry or give what is not aligned, and once the
 * shapes have been met neither sessions nor trainers of any mixer ask it for more. A process of its own: an allocator is set before all else. */
#include "model_recipes.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "linnet/train.h"
#include "mixers/mixers.h"
#include "session_of.h"

enum { CHUNK = 16 };

static atomic_llong taken, alive, odd; /* odd: calls that were not as the header has them */
static atomic_int dry, askew;          /* give nothing; give what is not aligned */
static int the_user;

/* In front of every block: where malloc's begins, and a mark. */
typedef struct {
    void *base;
    uint64_t mark;
} header;
static const uint64_t MARK = 0x6c696e6e6574206d;

static void *allocate(void *user, size_t bytes, size_t alignment)
{
    atomic_fetch_add(&taken, 1);
    if (user != &the_user || !bytes || bytes % alignment || alignment & (alignment - 1)) atomic_fetch_add(&odd, 1);
    if (atomic_load(&dry)) return NULL;
    char *base = malloc(bytes + 2 * alignment + sizeof(header));
    if (!base) return NULL;
    char *block = base + sizeof(header);
    block += (alignment - (uintptr_t)block % alignment) % alignment + (atomic_load(&askew) ? 8 : 0);
    const header h = {base, MARK};
    memcpy(block - sizeof h, &h, sizeof h);
    memset(block, 0xa5, bytes);
    atomic_fetch_add(&alive, 1);
    return block;
}

static void release(void *user, void *block)
{
    header h = {NULL, 0};
    if (block) memcpy(&h, (char *)block - sizeof h, sizeof h);
    if (user != &the_user || h.mark != MARK) {
        atomic_fetch_add(&odd, 1);
        return; /* a block that is not ours */
    }
    h.mark = 0;
    memcpy((char *)block - sizeof h, &h, sizeof h);
    atomic_fetch_sub(&alive, 1);
    free(h.base);
}

static void only_before_all_else(void **state)
{
    (void)state;
    linnet_allocator a = {sizeof a, &the_user, allocate, release};
    linnet_allocator half = a;
    assert_int_equal(linnet_allocator_set(NULL), LINNET_EINVAL);
    half.release = NULL;
    assert_int_equal(linnet_allocator_set(&half), LINNET_EINVAL);
    half = a, half.allocate = NULL;
    assert_int_equal(linnet_allocator_set(&half), LINNET_EINVAL);
    half = a, half.size = 3;
    assert_int_equal(linnet_allocator_set(&half), LINNET_EINVAL);
    assert_int_equal(linnet_allocator_set(&a), LINNET_OK);
    assert_int_equal(linnet_allocator_set(&a), LINNET_OK); /* nothing was allocated in between */
    c = context_of(1);
    assert_true(atomic_load(&taken) > 0);
    assert_int_equal(linnet_allocator_set(&a), LINNET_EINVAL);
    linnet_context_destroy(c);
    c = NULL;
    assert_int_equal(linnet_allocator_set(&a), LINNET_EINVAL);
    assert_int_equal(atomic_load(&alive), 0);
}

/* ---- a life of many objects, whose statuses are returned: it runs in a thread, and with memory that runs out ------------------------ */

static linnet_status configured(linnet_context *x, linnet_config **k)
{
    static const char *const set[][2] = {
        {"hidden_size", "32"}, {"num_hidden_layers", "2"}, {"vocab_size", "256"}, {"num_heads", "2"}, {"head_dim", "16"}};
    LNT_TRY(linnet_config_create(x, "gated_deltanet", k));
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) LNT_TRY(linnet_config_set(x, *k, set[i][0], set[i][1]));
    return linnet_config_json(*k) ? LINNET_OK : LINNET_ENOMEM;
}

static linnet_status trained(linnet_context *x, linnet_model *m)
{
    int32_t ids[32];
    linnet_trainer *t;
    linnet_trainer_options o = LINNET_TRAINER_OPTIONS_INIT;
    linnet_trainer_result did = {.size = sizeof did};
    linnet_micro_batch b = LINNET_MICRO_BATCH_INIT;
    for (int i = 0; i < 32; i++) ids[i] = i * 7;
    o.batch = 2, o.length = 16, b.ids = ids, b.tokens = 32, b.sequences = 2;
    LNT_TRY(linnet_trainer_create(x, m, &o, &t));
    linnet_status s = linnet_trainer_micro(t, &b);
    if (s == LINNET_OK) s = linnet_trainer_update(t, 1e-3, &did);
    linnet_trainer_destroy(t);
    return s;
}

static linnet_status spoken(linnet_context *x, linnet_model *m)
{
    static const char said[] = "a linnet sang";
    linnet_session *s = NULL;
    linnet_state *a, *b;
    linnet_tokenizer *t;
    linnet_session_options o = LINNET_SESSION_OPTIONS_INIT;
    linnet_session_call k = LINNET_SESSION_CALL_INIT;
    int32_t *ids = NULL;
    float logits[256];
    o.slots = 2, o.rollback = 8, o.chunk = 8;
    LNT_TRY(linnet_tokenizer_open(x, "bytes", &t));
    linnet_status z = linnet_tokenizer_encode(x, t, said, sizeof said - 1, &ids, &k.n_ids);
    if (z == LINNET_OK) z = linnet_session_create(x, m, &o, &s);
    if (z == LINNET_OK) z = linnet_state_create(s, &a);
    if (z == LINNET_OK) {
        k.state = a, k.ids = ids, k.wants = LINNET_LOGITS_LAST, k.logits = logits;
        z = linnet_session_run(s, &k, 1);
    }
    if (z == LINNET_OK) z = linnet_state_fork(a, &b);
    if (z == LINNET_OK) z = linnet_state_rollback(b, 3);
    linnet_free(ids);
    linnet_session_destroy(s);
    linnet_tokenizer_destroy(t);
    return z;
}

static linnet_status life(void)
{
    linnet_context *x = NULL, *y = NULL;
    linnet_config *k = NULL;
    linnet_model *m = NULL, *shared = NULL;
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.threads = 1;
    linnet_status s = linnet_context_create(&o, &x);
    if (s == LINNET_OK) s = linnet_context_create(&o, &y);
    if (s == LINNET_OK) s = configured(x, &k);
    if (s == LINNET_OK) s = linnet_model_create(x, k, LINNET_F32, 1, &m);
    if (s == LINNET_OK) s = trained(x, m);
    if (s == LINNET_OK) s = linnet_model_share(y, m, &shared);
    if (s == LINNET_OK) s = spoken(y, shared);
    linnet_model_destroy(shared);
    linnet_model_destroy(m);
    linnet_config_destroy(k);
    linnet_context_destroy(y);
    linnet_context_destroy(x);
    return s;
}

static void *live_in_a_thread(void *out)
{
    *(linnet_status *)out = life();
    return NULL;
}

static linnet_status live(void)
{
    pthread_t thread;
    linnet_status s = LINNET_EINTERNAL;
    assert_int_equal(pthread_create(&thread, NULL, live_in_a_thread, &s), 0);
    pthread_join(thread, NULL); /* a thread's own buffers go with it */
    return s;
}

static void all_of_it_and_all_back(void **state)
{
    (void)state;
    const long long before = atomic_load(&taken);
    assert_int_equal(live(), LINNET_OK);
    assert_true(atomic_load(&taken) - before > 100);
    assert_int_equal(atomic_load(&alive), 0);
    assert_int_equal(atomic_load(&odd), 0);
}

static void none_or_askew(void **state)
{
    (void)state;
    atomic_store(&dry, 1);
    linnet_context *x = (linnet_context *)&the_user;
    assert_int_equal(linnet_context_create(NULL, &x), LINNET_ENOMEM);
    assert_null(x);
    atomic_store(&dry, 0);
    atomic_store(&askew, 1);
    assert_int_equal(linnet_context_create(NULL, &x), LINNET_ENOMEM); /* and what was given went back */
    atomic_store(&askew, 0);
    assert_int_equal(atomic_load(&alive), 0);
    assert_int_equal(atomic_load(&odd), 0);
}

/* ---- no more of it after the first calls of a shape ---------------------------------------------------------------------------------- */

static int32_t text[TOKENS];
static float logits[TOKENS * VOCAB];

/* Prefills, steps of one to four states, results of layers, going back, copies: each shape once. */
static void round_of(linnet_session *s, linnet_state **a)
{
    static float hidden[TOKENS * 32];
    linnet_session_call k[4];
    for (int n = 1; n <= 4; n++) {
        for (int i = 0; i < n; i++) k[i] = step_of(a[(i * 3 + 1) % 4], text + i, logits + i * VOCAB);
        OK(linnet_session_run(s, k, n));
    }
    feed(a[2], text, 30, logits);
    feed(a[1], text, 3, logits);
    for (int i = 0; i < 4; i++) k[i].n_ids = 1 + i, k[i].hidden = hidden, k[i].layer = i % 3;
    OK(linnet_session_run(s, k, 4));
    OK(linnet_state_rollback(a[2], 7));
    OK(linnet_state_copy(a[2], a[3]));
    OK(linnet_state_rollback(a[3], 1));
}

static void sessions_of(const char *name, linnet_model *m)
{
    linnet_session *s = session_of(m, 4, 256, 8, CHUNK);
    linnet_state *a[4];
    for (int k = 0; k < 4; k++) a[k] = state_of(s);
    feed(a[0], text, 2 * CHUNK, NULL); /* a whole piece: no later one is longer */
    round_of(s, a);
    const long long before = atomic_load(&taken);
    round_of(s, a);
    if (atomic_load(&taken) != before) fail_msg("%s: %lld allocations in a session", name, (long long)atomic_load(&taken) - before);
    linnet_session_destroy(s);
}

static void trainer_of(const char *name, linnet_model *m)
{
    enum { LENGTH = 24 };
    linnet_trainer *t;
    linnet_trainer_options o = LINNET_TRAINER_OPTIONS_INIT;
    linnet_trainer_result did = {.size = sizeof did};
    linnet_micro_batch b = LINNET_MICRO_BATCH_INIT;
    long long before = 0;
    o.batch = 2, o.length = LENGTH, b.ids = text, b.tokens = 2 * LENGTH, b.sequences = 2;
    OK(linnet_trainer_create(c, m, &o, &t));
    for (int step = 0; step < 3; step++) {
        if (step == 1) before = atomic_load(&taken);
        OK(linnet_trainer_micro(t, &b));
        OK(linnet_trainer_update(t, 1e-4, &did));
    }
    if (atomic_load(&taken) != before) fail_msg("%s: %lld allocations in a training step", name, (long long)atomic_load(&taken) - before);
    linnet_trainer_destroy(t);
}

static void no_more_after_the_first(void **state)
{
    (void)state;
    draw_ids(text, TOKENS);
    c = context_of(2);
    for (int i = 0; i < RECIPES; i++) {
        linnet_model *m = model_of(c, &recipes[i], i % 2 ? LINNET_BF16 : LINNET_F32);
        sessions_of(recipes[i].name, m);
        trainer_of(recipes[i].name, m);
        linnet_model_destroy(m);
    }
    for (int i = 0; lnt_mixer_at(i); i++) {
        const char *name = lnt_mixer_at(i)->kind.about.name;
        linnet_model *m = mixer_model(name, i % 2 ? LINNET_F32 : LINNET_BF16);
        sessions_of(name, m);
        trainer_of(name, m);
        linnet_model_destroy(m);
    }
    linnet_context_destroy(c);
    assert_int_equal(atomic_load(&odd), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_before_all_else), /* first */
        cmocka_unit_test(all_of_it_and_all_back),
        cmocka_unit_test(none_or_askew),
        cmocka_unit_test(no_more_after_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

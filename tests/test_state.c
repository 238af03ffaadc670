/* States as objects: the same splits give the same bits, alone or in company, forked, taken back, saved and loaded; every mixer and hybrid.
 * test_state [TEST [MODEL]]: those whose names fit the patterns. LINNET_TEST_LONG in the environment: 64 states over 2000 calls. test_state_cuda.c is
 * this file with STATE_ON_GPU. */
#include "model_recipes.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/cpu.h"
#include "core/dtype.h"
#include "core/file.h"
#include "generate/greedy.h"
#include "generate/sample.h"
#include "linnet/state.h"
#include "linnet/train.h"
#include "mixers/mixers.h"
#include "sanitized.h"
#include "session_of.h"

#ifdef STATE_ON_GPU
#define MAKE_CONTEXT gpu_context_of
static const bool on_gpu = true;
static const double rounding = 1e-5; /* that of test_model_cuda.c */
#else
#define MAKE_CONTEXT context_of
static const bool on_gpu = false;
static const double rounding = 5e-6;
#endif

enum { TEXT = 300, CHUNK = 64, CAPACITY = TEXT + 20 };

static int32_t text[TEXT + 64];
static float logits[2][TEXT * VOCAB];
static char folder[64], file[96];

/* Calls of `piece` ids each, with the logits of all. */
static void feed_in(linnet_state *s, const int32_t *ids, int n, int piece, float *to)
{
    for (int at = 0; at < n; at += piece) feed(s, ids + at, n - at < piece ? n - at : piece, to ? to + at * VOCAB : NULL);
}

/* What is not the same split is the same but for rounding: the tolerance of token by token against the whole in test_model.c. */
static void near(const char *what, const float *a, const float *b)
{
    const double e = relative_rms(a, b, TEXT * VOCAB);
    if (!(e < rounding)) fail_msg("%s differs by %g", what, e);
}

/* ---- splits, forks, going back, files ---- */

static void splits_of(const char *name, linnet_model *m)
{
    static const int pieces[] = {1, 7, 100};
    static float whole[TEXT * VOCAB];
    int64_t ids[TEXT];
    for (int i = 0; i < TEXT; i++) ids[i] = text[i];
    linnet_session *s = session_of(m, 3, CAPACITY, 0, CHUNK);
    linnet_state *a = state_of(s), *b = state_of(s);
    feed(a, text, TEXT, logits[0]);
    feed_in(b, text, TEXT, CHUNK, logits[1]);
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]); /* calls that are cut at multiples of the chunk */
    same_states(name, a, b);
    OK(linnet_model_logits(c, m, ids, 1, TEXT, whole));
    near(name, logits[0], whole);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        linnet_state_destroy(a);
        linnet_state_destroy(b);
        a = state_of(s), b = state_of(s);
        feed_in(a, text, TEXT, pieces[i], logits[0]);
        near(name, logits[0], whole);
        feed_in(b, text, TEXT, pieces[i], logits[1]);
        assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
        same_states(name, a, b);
    }
    linnet_state_destroy(a);
    linnet_state_destroy(b);
    a = state_of(s), b = state_of(s);
    feed_in(a, text, TEXT, 1, logits[0]); /* as steps: some at once, with the bits of one by one */
    linnet_session_call k = step_of(b, text, logits[1]);
    k.n_ids = TEXT, k.wants = LINNET_LOGITS_ALL, k.steps = 1;
    OK(linnet_session_run(s, &k, 1));
    if (memcmp(logits[0], logits[1], sizeof logits[0])) fail_msg("%s: steps at once have other logits", name);
    same_states(name, a, b);
    linnet_session_destroy(s);
}

static void forks_of(const char *name, linnet_model *m)
{
    linnet_session *s = session_of(m, 4, CAPACITY, 64, CHUNK);
    linnet_state *a = state_of(s), *b, *d = state_of(s);
    feed(a, text, 150, NULL);
    feed(d, text, 150, NULL);
    OK(linnet_state_fork(a, &b));
    same_states(name, a, b);
    feed(a, text + 150, 150, logits[0]);
    same_states(name, b, d); /* which is no other's business */
    feed(b, text + 150, 150, logits[1]);
    assert_memory_equal(logits[0], logits[1], 150 * VOCAB * 4);
    feed(d, text + 150, 150, logits[1]);
    assert_memory_equal(logits[0], logits[1], 150 * VOCAB * 4);
    same_states(name, a, d);
    OK(linnet_state_rollback(b, 40)); /* a fork goes back on its own */
    same_states(name, a, d);
    OK(linnet_state_rollback(d, 40));
    same_states(name, b, d);
    OK(linnet_state_copy(b, a));
    same_states(name, a, b);
    linnet_session_destroy(s);
}

/* `a`, which was fed the text, goes back by n, then on: as `b`, which was fed up to there in the same pieces and no further. Both end here. */
static void back_by(const char *name, linnet_state *a, linnet_state *b, int n)
{
    OK(linnet_state_rollback(a, n));
    same_states(name, a, b);
    feed(a, text + 7, 20, logits[0]);
    feed(b, text + 7, 20, logits[1]);
    assert_memory_equal(logits[0], logits[1], 20 * VOCAB * 4);
    same_states(name, a, b);
    OK(linnet_state_rollback(a, 20)); /* and back from there */
    OK(linnet_state_rollback(b, 20));
    same_states(name, a, b);
    linnet_state_destroy(a);
    linnet_state_destroy(b);
}

static void rollback_of(const char *name, linnet_model *m)
{
    linnet_session *s = session_of(m, 4, CAPACITY, 64, CHUNK);
    static const int back[] = {64, 33, 1}, pieces[] = {TEXT, 7};
    linnet_state *a, *b, *whole = state_of(s), *part = state_of(s);
    feed_in(whole, text, TEXT, 1, NULL); /* steps are the same from wherever they begin: one text serves all */
    for (int i = 0, at = 0; i < 3; i++) {
        feed_in(part, text + at, TEXT - back[i] - at, 1, NULL);
        at = TEXT - back[i];
        OK(linnet_state_fork(whole, &a));
        OK(linnet_state_fork(part, &b));
        back_by(name, a, b, back[i]);
        for (int k = 0; k < 2; k++) {
            a = state_of(s), b = state_of(s);
            feed_in(a, text, TEXT, pieces[k], NULL);
            feed_in(b, text, TEXT - back[i], pieces[k], NULL);
            back_by(name, a, b, back[i]);
        }
    }
    linnet_session_destroy(s);
}

static void files_of(const char *name, linnet_model *m)
{
    linnet_session *s = session_of(m, 2, CAPACITY, 0, CHUNK), *other;
    linnet_state *a = state_of(s), *b;
    linnet_model *again;
    for (int n = 0; n <= 150; n += 150) {
        feed(a, text, n, NULL);
        OK(linnet_state_save(a, file));
        OK(linnet_state_load(s, file, &b));
        same_states(name, a, b);
        linnet_state_destroy(b);
    }
    OK(linnet_model_save(c, m, folder)); /* the same model in another life */
    OK(linnet_model_load(c, folder, m->dtype, &again));
    other = session_of(again, 1, CAPACITY + 100, 64, 32);
    OK(linnet_state_load(other, file, &b));
    feed(a, text + 150, 10, logits[0]); /* inside a piece of either chunk */
    feed(b, text + 150, 10, logits[1]);
    assert_memory_equal(logits[0], logits[1], 10 * VOCAB * 4);
    same_states(name, a, b);
    OK(linnet_state_rollback(b, 10)); /* but no further */
    assert_int_equal(linnet_state_rollback(b, 1), LINNET_EINVAL);
    linnet_session_destroy(s);
    linnet_session_destroy(other);
    linnet_parameter_info first = {.size = sizeof first};
    float w;
    OK(linnet_parameter_at(c, again, 0, &first)); /* one weight is another: so is the model */
    OK(linnet_parameter_read(c, again, first.name, 0, 1, &w));
    w = w + 1;
    OK(linnet_parameter_write(c, again, first.name, 0, 1, &w));
    other = session_of(again, 1, CAPACITY, 0, CHUNK);
    if (linnet_state_load(other, file, &b) != LINNET_EINVAL || !strstr(linnet_error_message(c), "another model"))
        fail_msg("%s: the state of another model is taken", name);
    linnet_session_destroy(other);
    linnet_model_destroy(again);
}

/* ---- a look inside ---- */

/* The state's tensors have names of their own and all of its bytes, and what a text leaves is seen in them. */
static void look_at_tensors(const char *name, const linnet_state *a, const linnet_state *empty, int64_t layers)
{
    linnet_state_info is = {.size = sizeof is};
    int64_t bytes = 0, other = 0;
    OK(linnet_state_get_info(a, &is));
    const int64_t n = linnet_state_tensor_count(a);
    assert_int_equal(n, linnet_state_tensor_count(empty));
    for (int64_t i = 0; i < n; i++) {
        linnet_state_tensor t = {.size = sizeof t}, u = {.size = sizeof u}, begun = {.size = sizeof begun};
        int64_t elements = 1;
        OK(linnet_state_tensor_at(a, i, &t));
        OK(linnet_state_tensor_at(empty, i, &begun));
        char start[48];
        snprintf(start, sizeof start, "model.layers.%lld.", (long long)t.layer);
        if (t.layer < 0 || t.layer >= layers || strncmp(t.name, start, strlen(start))) fail_msg("%s: %s of layer %d", name, t.name, (int)t.layer);
        for (int d = 0; d < t.n_dims; d++) elements *= t.dims[d];
        assert_int_equal(t.bytes, elements * (int64_t)lnt_dtype_size((linnet_dtype)t.dtype));
        for (int64_t j = 0; j < i; j++) {
            OK(linnet_state_tensor_at(a, j, &u));
            if (!strcmp(t.name, u.name)) fail_msg("%s: two are called %s", name, t.name);
        }
        char *now = calloc(1, (size_t)t.bytes + 1), *then = calloc(1, (size_t)begun.bytes + 1);
        OK(linnet_state_tensor_read(a, i, now, (size_t)t.bytes));
        OK(linnet_state_tensor_read(empty, i, then, (size_t)begun.bytes));
        other += t.bytes != begun.bytes || memcmp(now, then, (size_t)t.bytes) != 0;
        free(now);
        free(then);
        bytes += t.bytes;
    }
    assert_int_equal(bytes, is.bytes);
    if (other * 2 < n) fail_msg("%s: %d of %d tensors are as in a state of no tokens", name, (int)(n - other), (int)n);
}

/* What the layers give, in one call and step by step; behind the final norm it is what the head multiplies. */
static void inside_of(const char *name, linnet_model *m)
{
    enum { N = 43, MOST = 96 }; /* no whole number of mini-batches */
    static float whole[N * MOST], steps[N * MOST], before[N * MOST], head[VOCAB * MOST], product[N * VOCAB], last[N * VOCAB];
    linnet_session *s = session_of(m, 2, CAPACITY, 0, CHUNK);
    linnet_state *empty = state_of(s), *a;
    linnet_session_info is = {.size = sizeof is};
    OK(linnet_session_get_info(s, &is));
    assert_true(is.width <= MOST && is.layers >= 2);
    for (int layer = 0; layer <= is.layers; layer++) {
        a = state_of(s);
        linnet_session_call k = step_of(a, text, last);
        k.n_ids = N, k.wants = LINNET_LOGITS_ALL, k.layer = layer, k.hidden = whole;
        OK(linnet_session_run(s, &k, 1));
        look_at_tensors(name, a, empty, is.layers);
        linnet_state_destroy(a);
        a = state_of(s);
        for (int i = 0; i < N; i++) {
            k = step_of(a, text + i, logits[0]);
            k.layer = layer, k.hidden = steps + i * is.width;
            OK(linnet_session_run(s, &k, 1));
        }
        linnet_state_destroy(a);
        const double e = relative_rms(steps, whole, (int)(N * is.width));
        if (!(e < rounding)) fail_msg("%s: layer %d in steps differs by %g", name, layer, e);
        if (layer && !memcmp(before, whole, (size_t)(N * is.width) * 4)) fail_msg("%s: layers %d and %d are the same", name, layer - 1, layer);
        memcpy(before, whole, (size_t)(N * is.width) * 4);
    }
    const bool tied = linnet_parameter_find(c, m, "lm_head.weight", &(linnet_parameter_info){.size = sizeof(linnet_parameter_info)}) != LINNET_OK;
    OK(linnet_parameter_read(c, m, tied ? "model.embeddings.weight" : "lm_head.weight", 0, VOCAB * is.width, head));
    for (int i = 0; i < N * VOCAB; i++) {
        double sum = 0;
        for (int64_t k = 0; k < is.width; k++) sum += (double)whole[i / VOCAB * is.width + k] * head[i % VOCAB * is.width + k];
        const lnt_config *k = m->config;
        sum *= k->logit_multiplier / k->logit_divisor;
        product[i] = (float)(k->logit_soft_cap > 0 ? k->logit_soft_cap * tanh(sum / k->logit_soft_cap) : sum);
    }
    const double e = relative_rms(last, product, N * VOCAB);
    if (!(e < rounding)) fail_msg("%s: the head's product of what is behind the norm differs from the logits by %g", name, e);
    linnet_session_destroy(s);
}

/* Whether the device takes the model's prompts and its steps; where not, that is said. */
static bool offered(const char *name, linnet_model *m)
{
    static const int32_t ids[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
    float last[VOCAB];
    linnet_session *s = session_of(m, 1, 10, 0, 9);
    linnet_state *state = state_of(s);
    linnet_session_call step = step_of(state, ids + 9, last), prompt = step;
    prompt.ids = ids, prompt.n_ids = 9;
    linnet_status ran = linnet_session_run(s, &prompt, 1);
    if (ran == LINNET_OK) ran = linnet_session_run(s, &step, 1);
    if (ran == LINNET_EUNSUPPORTED && !on_gpu) fail_msg("%s: %s", name, linnet_error_message(c));
    if (ran == LINNET_EUNSUPPORTED) print_message("  %s: %s\n", name, linnet_error_message(c));
    linnet_state_destroy(state);
    linnet_session_destroy(s);
    return ran != LINNET_EUNSUPPORTED;
}

static const char *models = "*"; /* the pattern of their names */

/* Every recipe, and every mixer of the list: those without a recipe too. With `by_turns` the number of the model chooses the dtype, otherwise it is
 * `dtype`. */
static void of_models(void (*check)(const char *name, linnet_model *m), bool by_turns, linnet_dtype dtype)
{
    if (!c) skip();
    for (int i = 0; i < RECIPES || lnt_mixer_at(i - RECIPES); i++) {
        const char *name = i < RECIPES ? recipes[i].name : lnt_mixer_at(i - RECIPES)->kind.about.name;
        const linnet_dtype t = !by_turns ? dtype : i % 2 ? LINNET_BF16 : LINNET_F32;
        if (fnmatch(models, name, 0) != 0) continue;
        linnet_model *m = i < RECIPES ? model_of(c, &recipes[i], t) : mixer_model(name, t);
        if (offered(name, m)) check(name, m);
        linnet_model_destroy(m);
    }
}

static void same_splits_same_bits(void **state) { (void)state, of_models(splits_of, false, LINNET_F32); }
static void forked(void **state) { (void)state, of_models(forks_of, false, LINNET_F32); }
static void taken_back(void **state) { (void)state, of_models(rollback_of, false, LINNET_F32); }
static void saved_and_loaded(void **state) { (void)state, of_models(files_of, false, LINNET_F32); }
static void looked_into(void **state) { (void)state, of_models(inside_of, false, LINNET_F32); }

/* ---- company ---- */

/* One step of 1, 2, 7 and 64 states, of different lengths and in different slots: as each does it alone. */
static void company_of(const char *name, linnet_model *m)
{
    enum { MOST = 64 };
    static const int rows[] = {1, 2, 7, MOST};
    static float alone[MOST][VOCAB], beside[MOST][VOCAB];
    linnet_session *one = session_of(m, 1, CAPACITY, 0, CHUNK), *many = session_of(m, MOST, CAPACITY, 0, CHUNK);
    linnet_state *s[MOST], *own;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        linnet_session_call call[MOST];
        for (int i = 0; i < MOST; i++) s[i] = state_of(many);
        for (int i = 0; i < rows[r]; i++) { /* some slots, far apart while they are few */
            linnet_state *at = s[(i * 37 + 5) % MOST];
            feed(at, text + i, i % 9, NULL);
            call[i] = step_of(at, &text[100 + i], beside[i]);
        }
        OK(linnet_session_run(many, call, rows[r]));
        for (int i = 0; i < rows[r]; i++) {
            own = state_of(one);
            feed(own, text + i, i % 9, NULL);
            linnet_session_call single = step_of(own, &text[100 + i], alone[i]);
            OK(linnet_session_run(one, &single, 1));
            same_states(name, own, s[(i * 37 + 5) % MOST]);
            linnet_state_destroy(own);
        }
        if (memcmp(alone, beside, (size_t)rows[r] * sizeof *alone)) fail_msg("%s: %d rows change the logits", name, rows[r]);
        for (int i = 0; i < MOST; i++) linnet_state_destroy(s[i]);
    }
    linnet_session_destroy(one);
    linnet_session_destroy(many);
}

static void company_changes_no_bit(void **state)
{
    (void)state;
    const lnt_cpu_level most = lnt_cpu();
    for (int level = on_gpu || SANITIZED ? (int)most : LNT_CPU_BASE; level <= (int)most; level++) {
        lnt_cpu_force((lnt_cpu_level)level);
        of_models(company_of, false, LINNET_F32);
        of_models(company_of, false, LINNET_BF16);
    }
    lnt_cpu_force(most);
}

/* ---- ahead of the host ---- */

enum { TEXTS = 3, WRITTEN = 8 };

/* How token n of text i is chosen: one of the texts is drawn. */
static lnt_chance chance_of(int i, int n) { return (lnt_chance){i == 1 ? 0.8 : 0, 0x9E3779B97F4A7C15u * (uint64_t)(100 * i + n + 1)}; }

/* Tokens behind text i, with the host between two steps. */
static void write_by_host(linnet_session *one, int i, int32_t *ids)
{
    static float row[VOCAB];
    linnet_state *s = state_of(one);
    feed(s, text + i, 5 + i, NULL);
    for (int n = 0; n < WRITTEN; n++) {
        linnet_session_call k = step_of(s, n ? &ids[n - 1] : &text[100 + i], row);
        OK(linnet_session_run(one, &k, 1));
        ids[n] = lnt_draw_by(chance_of(i, n), row, VOCAB);
        assert_true(ids[n] >= 0);
    }
    linnet_state_destroy(s);
}

/* The same side by side, every step put behind one that is under way and whose ids are on the device alone. Text i joins at step i, by an id of the
 * host's, and goes when its last token is known, by when its state has read that, too. */
static void write_ahead(linnet_session *many, lnt_greedy *g, linnet_state **s, int32_t ids[TEXTS][WRITTEN])
{
    int text_of[2][TEXTS], rows[2] = {0}, row[2][TEXTS] = {{0}}, told[TEXTS] = {0}, left = TEXTS;
    for (int t = 0; left; t++) {
        linnet_session_call call[TEXTS];
        int n = 0;
        for (int i = TEXTS - 1; i >= 0; i--) { /* rows stand the other way round than slots */
            if (!s[i] || t < i) continue;
            call[n] = step_of(s[i], t == i ? &text[100 + i] : g->next + row[(t + 1) % 2][i], (float *)g->logits + n * VOCAB);
            call[n].on_device = LINNET_ON_DEVICE_LOGITS + (t == i ? 0 : LINNET_ON_DEVICE_IDS);
            g->chance[n] = chance_of(i, t - i);
            text_of[t % 2][n] = i, row[t % 2][i] = n++;
        }
        OK(linnet_session_run(many, call, n));
        g->rows = rows[t % 2] = n;
        OK(lnt_greedy_put(g));
        const int32_t *chosen = t ? lnt_greedy_take(g) : NULL;
        for (int r = 0; t && r < rows[(t - 1) % 2]; r++) {
            const int i = text_of[(t - 1) % 2][r];
            if (!s[i]) continue;
            ids[i][told[i]++] = chosen[r];
            if (told[i] < WRITTEN) continue;
            linnet_state_destroy(s[i]);
            s[i] = NULL, left--;
        }
    }
    lnt_greedy_take(g);
}

static void ahead_of(const char *name, linnet_model *m)
{
    static int32_t want[TEXTS][WRITTEN], got[TEXTS][WRITTEN];
    linnet_session *one = session_of(m, 1, CAPACITY, 0, CHUNK), *many = session_of(m, TEXTS, CAPACITY, 0, CHUNK);
    linnet_state *s[TEXTS];
    float *there;
    int32_t *next;
    lnt_greedy g;
    OK(lnt_device_alloc(c, TEXTS * VOCAB * sizeof *there, (void **)&there));
    OK(lnt_device_alloc(c, TEXTS * sizeof *next, (void **)&next));
    OK(lnt_greedy_over(c, there, TEXTS, VOCAB, VOCAB, next, &g));
    OK(lnt_greedy_by_chance(&g));
    for (int i = 0; i < TEXTS; i++) {
        write_by_host(one, i, want[i]);
        s[i] = state_of(many);
        feed(s[i], text + i, 5 + i, NULL);
    }
    memset(got, 0xff, sizeof got);
    write_ahead(many, &g, s, got);
    if (memcmp(want, got, sizeof want)) fail_msg("%s: ahead of the host other tokens are chosen", name);
    s[0] = state_of(many), s[1] = state_of(one); /* what was in the slot is gone */
    feed(s[0], text, 7, NULL);
    feed(s[1], text, 7, NULL);
    same_states(name, s[1], s[0]);
    lnt_greedy_close(&g);
    lnt_device_free(c, there);
    lnt_device_free(c, next);
    linnet_session_destroy(one);
    linnet_session_destroy(many);
}

static void written_ahead(void **state)
{
    (void)state;
    of_models(ahead_of, true, LINNET_F32);
}

/* What the device chooses is what the host would, of fewer rows and columns than there is room for too. */
static void chosen_by_the_device(void **state)
{
    (void)state;
    enum { ROWS = 6, LD = 50003, V = 50001 };
    static float z[ROWS * LD];
    static const double temperature[ROWS] = {0, 1, 0.3, 0, 1, 1.5};
    float *there;
    int32_t *next, back[ROWS];
    lnt_greedy g;
    lnt_rng r = lnt_rng_make(3, 1);
    if (!c) skip();
    for (int i = 0; i < ROWS * LD; i++) z[i] = (float)(3 * lnt_rng_normal(&r));
    for (int i = 0; i < ROWS; i++) z[i * LD + V] = z[i * LD + V + 1] = 1000; /* not among the first V */
    z[3 * LD + 77] = NAN, z[4 * LD + 50000] = INFINITY, z[5 * LD + 1] = z[5 * LD + 40000] = 50;
    OK(lnt_device_alloc(c, sizeof z, (void **)&there));
    OK(lnt_device_alloc(c, ROWS * sizeof *next, (void **)&next));
    lnt_to_device(c, there, z, sizeof z);
    OK(lnt_greedy_over(c, there, ROWS, LD, V, next, &g));
    for (int round = 0; round < 20; round++) {
        const int rows = round % 4 == 3 ? 3 : ROWS;
        const bool drawn = round > 1;
        if (round == 2) OK(lnt_greedy_by_chance(&g));
        for (int i = 0; i < rows && drawn; i++) g.chance[i] = (lnt_chance){temperature[i], lnt_rng_u64(&r)};
        g.rows = rows;
        OK(lnt_greedy_put(&g));
        const int32_t *ids = lnt_greedy_take(&g);
        lnt_to_host(c, back, next, (size_t)rows * sizeof *next);
        for (int i = 0; i < rows; i++) {
            const int32_t want = lnt_draw_by(drawn ? g.chance[i] : (lnt_chance){0}, z + i * LD, V);
            if (ids[i] != want || back[i] != (want < 0 ? 0 : want)) fail_msg("row %d: %d and %d, expected %d", i, ids[i], back[i], want);
            if ((want < 0) != (i == 3 || i == 4)) fail_msg("row %d: %d", i, want);
        }
    }
    lnt_greedy_close(&g);
    lnt_device_free(c, there);
    lnt_device_free(c, next);
}

/* Steps of a plan with their choices, recorded on a GPU, between choices alone and one that fails there: each is the largest of the logits then. */
static void stepped_with_a_plan(void **state)
{
    (void)state;
    enum { ROWS = 3, STEPS = 12 };
    static const int32_t first[ROWS] = {1, 2, 3};
    if (!c) skip();
    linnet_model *m = mixer_model("gated_deltanet", LINNET_F32);
    const lnt_plan_options o = {.tokens = ROWS, .n_seq = ROWS, .dtype = m->dtype, .has_state = true, .state_capacity = CAPACITY,
                                .n_outputs = 1, .outputs = {m->logits}};
    lnt_state *states;
    lnt_plan *plan;
    lnt_greedy g;
    OK(lnt_state_create(c, m->p, m->dtype, ROWS, CAPACITY, &states));
    OK(lnt_plan_create(c, m->p, &o, &plan));
    OK(lnt_greedy_open(c, plan, m->logits, m->ids, VOCAB, &g));
    for (int t = 0; t < STEPS; t++) {
        const lnt_batch b = {.tokens = ROWS, .n_seq = ROWS, .n_inputs = t == 0, .inputs = {{m->ids, first}}, .state = states};
        if (on_gpu && t % 4 == 3) { /* no rows are no kernel there */
            g.rows = 0;
            assert_int_not_equal(lnt_greedy_put(&g), LINNET_OK);
        }
#ifdef STATE_ON_GPU
        if (t % 4 == 1) { /* a step that the device has made, and that is said to have failed */
            g.rows = 0;
            lnt_greedy_cuda(&g, NULL);
            assert_int_not_equal(lnt_greedy_step(&g, plan, m->w, &b), LINNET_OK);
        }
#endif
        OK(lnt_greedy_step(&g, plan, m->w, &b));
        const int32_t *ids = lnt_greedy_take(&g);
        const lnt_tensor z = lnt_plan_output(plan, m->logits);
        lnt_to_host(c, logits[0], z.data, (size_t)(ROWS * z.cols) * sizeof **logits);
        for (int again = 0; again < 1 + (t % 3 == 2); again++) {
            if (again) {
                OK(lnt_greedy_put(&g));
                ids = lnt_greedy_take(&g);
            }
            for (int r = 0; r < ROWS; r++) assert_int_equal(ids[r], lnt_draw_by((lnt_chance){0}, logits[0] + r * z.cols, VOCAB));
        }
    }
    lnt_greedy_close(&g);
    lnt_plan_destroy(plan);
    lnt_state_destroy(states);
    linnet_model_destroy(m);
}

/* ---- states at random ---- */

/* What a state has lived through: ids of calls, and steps back. */
typedef struct {
    int n;
    struct {
        int ids;   /* > 0: so many, text[from ..]; < 0: back by so many */
        int from;
        bool steps;
        float last[VOCAB];
    } event[400];
} life;

static void relive(const char *name, linnet_session *one, life *l, const linnet_state *became)
{
    linnet_state *own = state_of(one);
    float last[VOCAB];
    for (int i = 0; i < l->n; i++) {
        if (l->event[i].ids < 0) {
            OK(linnet_state_rollback(own, -l->event[i].ids));
            continue;
        }
        if (l->event[i].steps) {
            l->event[i].steps = false;
            feed_in(own, text + l->event[i].from, l->event[i].ids - 1, 1, NULL);
            l->event[i].from += l->event[i].ids - 1;
            l->event[i].ids = 1;
        }
        linnet_session_call k = step_of(own, text + l->event[i].from, last);
        k.n_ids = l->event[i].ids;
        OK(linnet_session_run(one, &k, 1));
        if (memcmp(last, l->event[i].last, sizeof last)) fail_msg("%s: event %d of %d gave other logits in company", name, i, l->n);
    }
    same_states(name, own, became);
    linnet_state_destroy(own);
}

static void at_random(const char *name, linnet_model *m, int states, int calls)
{
    linnet_session *many = session_of(m, states, CAPACITY, 30, 16), *one = session_of(m, 1, CAPACITY, 30, 16);
    linnet_state **s = calloc((size_t)states, sizeof *s);
    life *lives = calloc((size_t)states, sizeof *lives);
    linnet_session_call *call = calloc((size_t)states, sizeof *call);
    static float hidden[TEXT * 32];
    lnt_rng r = lnt_rng_make(21, 0);
    for (int i = 0; i < states; i++) s[i] = state_of(many);
    for (int turn = 0; turn < calls; turn++) {
        int n = 0;
        for (int i = 0; i < states; i++) {
            const uint64_t what = lnt_rng_below(&r, 20);
            linnet_state_info is = {.size = sizeof is};
            OK(linnet_state_get_info(s[i], &is));
            if (lives[i].n == 400 || is.tokens > TEXT - 40) { /* a new life */
                relive(name, one, &lives[i], s[i]);
                linnet_state_destroy(s[i]);
                s[i] = state_of(many);
                lives[i].n = 0;
            } else if (what == 0 && is.rollback) {
                lives[i].event[lives[i].n].ids = -1 - (int)lnt_rng_below(&r, (uint64_t)is.rollback);
                OK(linnet_state_rollback(s[i], -lives[i].event[lives[i].n++].ids));
            } else if (what == 1) {
                const int other = (int)lnt_rng_below(&r, (uint64_t)states);
                OK(linnet_state_copy(s[other], s[i]));
                lives[i] = lives[other];
            }
        }
        for (int i = 0; i < states; i++) {
            if (lives[i].n == 400 || lnt_rng_below(&r, 3) == 0) continue;
            const int ids = lnt_rng_below(&r, 8) ? 1 : 1 + (int)lnt_rng_below(&r, 40), e = lives[i].n++;
            lives[i].event[e].ids = ids;
            lives[i].event[e].from = (int)lnt_rng_below(&r, TEXT - 40);
            call[n] = step_of(s[i], text + lives[i].event[e].from, lives[i].event[e].last);
            call[n].n_ids = ids;
            call[n].steps = lives[i].event[e].steps = lnt_rng_below(&r, 2);
            if (turn % 5 == 0 && i % 3 == 0) call[n].hidden = hidden, call[n].layer = (int32_t)lnt_rng_below(&r, 3);
            n++;
        }
        OK(linnet_session_run(many, call, n));
    }
    for (int i = 0; i < states; i++) relive(name, one, &lives[i], s[i]);
    linnet_session_destroy(many);
    linnet_session_destroy(one);
    free(s);
    free(lives);
    free(call);
}

static void some_calls(const char *name, linnet_model *m)
{
    const bool longer = getenv("LINNET_TEST_LONG") != NULL;
    at_random(name, m, longer ? 64 : 9, longer ? 2000 : 60);
}

static void interleaved(void **state)
{
    (void)state;
    of_models(some_calls, true, LINNET_F32);
}

static void interleaved_with_threads(void **state)
{
    (void)state;
    linnet_context *keep = c;
    if (!c) skip();
    c = MAKE_CONTEXT(3);
    for (int i = 0; i < RECIPES; i += 6) {
        if (fnmatch(models, recipes[i].name, 0) != 0) continue;
        linnet_model *m = model_of(c, &recipes[i], LINNET_F32);
        if (offered(recipes[i].name, m)) at_random(recipes[i].name, m, 9, 60);
        linnet_model_destroy(m);
    }
    linnet_context_destroy(c);
    c = keep;
}

static int open_all(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/linnet-state-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/state", folder);
    draw_ids(text, TEXT + 64);
    c = MAKE_CONTEXT(1); /* small work: threads would wait for each other */
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    char cmd[96];
    snprintf(cmd, sizeof cmd, "rm -r %s", folder);
    linnet_context_destroy(c);
    return system(cmd);
}

#ifndef STATE_ON_GPU
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (argc > 2) models = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_splits_same_bits),  cmocka_unit_test(forked),      cmocka_unit_test(taken_back), cmocka_unit_test(saved_and_loaded),
        cmocka_unit_test(company_changes_no_bit), cmocka_unit_test(interleaved), cmocka_unit_test(interleaved_with_threads),
        cmocka_unit_test(looked_into),            cmocka_unit_test(written_ahead),  cmocka_unit_test(chosen_by_the_device),
        cmocka_unit_test(stepped_with_a_plan),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
#endif

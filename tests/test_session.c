/* The border of linnet/state.h: what is refused and leaves states alone, files nobody vouches for, memory that runs out, tensors, results of layers,
 * and that a session stops allocating. */
#include "model_recipes.h"

#include <stdio.h>
#include <unistd.h>

#include "core/memory.h"
#include "session_of.h"

enum { CHUNK = 16, CAPACITY = 64 };

static const recipe hybrid = {
    "hybrid", "gated_deltanet", {{"num_heads", "2"}, {"head_dim", "16"}, {"attn", "{\"layers\":[1],\"num_heads\":2,\"window_size\":7}"}}};
static const recipe full = {
    "full attention", "gated_deltanet", {{"num_heads", "2"}, {"head_dim", "16"}, {"attn", "{\"layers\":[1],\"num_heads\":2}"}}};

static char folder[64], file[96], bad_file[96];
static int32_t text[TOKENS];
static float logits[TOKENS * VOCAB];

/* Refused, with a text, and without a trace in the state. */
#define REFUSED(status, call)                                                                                                      \
    do {                                                                                                                           \
        if ((call) != (status)) fail_msg("not refused: %s", #call);                                                               \
        if (!*linnet_error_message(c)) fail_msg("nothing was said about %s", #call);                                              \
    } while (0)
#define BAD(call) REFUSED(LINNET_EINVAL, call)

static void what_is_refused(void **unused)
{
    (void)unused;
    linnet_model *m = model_of(c, &full, LINNET_F32), *outline;
    linnet_session_options o = LINNET_SESSION_OPTIONS_INIT;
    linnet_session *s = session_of(m, 3, CAPACITY, 8, CHUNK), *other = session_of(m, 1, CAPACITY, 0, CHUNK), *none;
    linnet_state *a = state_of(s), *b = state_of(s), *foreign = state_of(other), *more;
    BAD(linnet_session_create(c, NULL, &o, &none));
    BAD(linnet_session_create(c, m, &o, NULL));
    o.slots = 0;
    BAD(linnet_session_create(c, m, &o, &none));
    o.slots = 1, o.chunk = 0;
    BAD(linnet_session_create(c, m, &o, &none));
    o.chunk = 1, o.rollback = -1;
    BAD(linnet_session_create(c, m, &o, &none));
    linnet_config *k = config_of(c, &full);
    OK(linnet_model_outline(c, k, LINNET_F32, &outline));
    BAD(linnet_session_create(c, outline, NULL, &none));
    linnet_model_destroy(outline);
    linnet_config_destroy(k);
    feed(a, text, 20, NULL);
    feed(b, text, 20, NULL);

    linnet_session_call call[4];
    for (int i = 0; i < 4; i++) call[i] = step_of(a, text, logits);
    assert_int_equal(linnet_session_run(NULL, call, 1), LINNET_EINVAL);
    BAD(linnet_session_run(s, NULL, 1));
    BAD(linnet_session_run(s, call, -1));
    BAD(linnet_session_run(s, call, 4)); /* more than slots */
    BAD(linnet_session_run(s, call, 2)); /* one state twice */
#define REFUSED_CALL(change)                                                                                                       \
    do {                                                                                                                           \
        call[0] = step_of(b, text, logits), call[1] = step_of(a, text, logits);                                                    \
        change;                                                                                                                    \
        BAD(linnet_session_run(s, call, 2));                                                                                       \
    } while (0)
    REFUSED_CALL(call[1].state = NULL);
    REFUSED_CALL(call[1].state = foreign);
    REFUSED_CALL(call[1].ids = NULL);
    REFUSED_CALL(call[1].n_ids = -1);
    REFUSED_CALL(call[1].n_ids = 0); /* logits of the last of none */
    REFUSED_CALL(call[1].ids = (const int32_t[]){VOCAB});
    REFUSED_CALL(call[1].ids = (const int32_t[]){-1});
    REFUSED_CALL(call[1].logits = NULL);
    REFUSED_CALL(call[1].wants = 3);
    REFUSED_CALL(call[1].layer = -1);
    REFUSED_CALL(call[1].steps = 2);
    REFUSED_CALL(call[1].on_device = 4);
    REFUSED_CALL(call[1].on_device = LINNET_ON_DEVICE_IDS); /* of a session that remembers ids */
    linnet_session *ahead = session_of(m, 1, CAPACITY, 0, CHUNK);
    linnet_session_call there = step_of(state_of(ahead), text, logits);
    there.on_device = LINNET_ON_DEVICE_IDS, there.n_ids = 2;
    BAD(linnet_session_run(ahead, &there, 1));
    there.n_ids = 1, there.ids = (const int32_t[]){VOCAB};
    BAD(linnet_session_run(ahead, &there, 1)); /* which a CPU can see */
    linnet_session_destroy(ahead);
    REFUSED_CALL(call[1].layer = 3; call[1].hidden = logits);
    REFUSED_CALL(call[1].size = 8);
    REFUSED_CALL(call[0].size = 8);
    REFUSED_CALL(call[0].size = 1; call[1].size = 1);
    REFUSED_CALL(call[1].ids = text; call[1].n_ids = CAPACITY - 19); /* one more than there is room for */
    same_states("a refused call", a, b);

    BAD(linnet_state_rollback(a, 9));
    BAD(linnet_state_rollback(a, -1));
    BAD(linnet_state_rollback(foreign, 1));
    OK(linnet_state_rollback(a, 0));
    BAD(linnet_state_copy(a, foreign));
    BAD(linnet_state_copy(a, NULL));
    BAD(linnet_state_fork(a, NULL));
    BAD(linnet_state_save(a, NULL));
    BAD(linnet_state_load(s, NULL, &more));
    OK(linnet_state_fork(a, &more));
    BAD(linnet_state_create(s, &(linnet_state *){NULL})); /* no slot */
    BAD(linnet_state_fork(a, &(linnet_state *){NULL}));
    same_states("what was refused", a, b);
    same_states("what was refused", a, more);
    assert_int_equal(linnet_state_create(NULL, &more), LINNET_EINVAL);
    assert_int_equal(linnet_state_rollback(NULL, 1), LINNET_EINVAL);
    assert_int_equal(linnet_state_get_info(NULL, NULL), LINNET_EINVAL);
    assert_int_equal(linnet_state_tensor_count(NULL), 0);
    linnet_state_destroy(NULL);
    linnet_session_destroy(NULL);

    feed(a, text, CAPACITY - 20, NULL); /* to the end of the capacity, and back from there */
    BAD(linnet_session_run(s, &(linnet_session_call){sizeof *call, a, text, 1, 0, 0, NULL, NULL, 0, 0}, 1));
    OK(linnet_state_rollback(a, 5));
    feed(a, text, 5, NULL);
    linnet_session_destroy(s);
    linnet_session_destroy(other);
    linnet_model_destroy(m);
}

/* ---- tensors, results of layers ---- */

static void tensors_by_name(void **unused)
{
    (void)unused;
    static const struct {
        const char *name;
        int64_t layer, n_dims, dims[3];
    } want[] = {{"model.layers.0.attn.q_conv1d.inputs", 0, 2, {3, 32}},
                {"model.layers.0.attn.k_conv1d.inputs", 0, 2, {3, 32}},
                {"model.layers.0.attn.v_conv1d.inputs", 0, 2, {3, 64}},
                {"model.layers.0.attn.gated_delta_rule.s", 0, 3, {2, 16, 32}},
                {"model.layers.1.attn.attention.k", 1, 3, {5, 2, 16}},
                {"model.layers.1.attn.attention.v", 1, 3, {5, 2, 16}}};
    linnet_model *m = model_of(c, &full, LINNET_BF16);
    linnet_session *s = session_of(m, 2, CAPACITY, 0, CHUNK);
    linnet_state *a = state_of(s);
    float was[3 * 32];
    int64_t bytes = 0;
    feed(a, text, 5, NULL);
    assert_int_equal(linnet_state_tensor_count(a), sizeof want / sizeof *want);
    for (int64_t i = 0; i < linnet_state_tensor_count(a); i++) {
        linnet_state_tensor t = {.size = sizeof t};
        int64_t elements = 1;
        OK(linnet_state_tensor_at(a, i, &t));
        assert_string_equal(t.name, want[i].name);
        assert_int_equal(t.layer, want[i].layer);
        assert_int_equal(t.n_dims, want[i].n_dims);
        for (int d = 0; d < t.n_dims; d++) {
            assert_int_equal(t.dims[d], want[i].dims[d]);
            elements *= t.dims[d];
        }
        assert_int_equal(t.dtype, i < 4 ? LINNET_F32 : LINNET_BF16); /* caches are the policy's */
        assert_int_equal(t.bytes, elements * (i < 4 ? 4 : 2));
        bytes += t.bytes;
    }
    linnet_state_info is = {.size = sizeof is};
    OK(linnet_state_get_info(a, &is));
    assert_int_equal(is.bytes, bytes);
    assert_int_equal(is.tokens, 5);
    OK(linnet_state_tensor_read(a, 0, was, sizeof was));
    assert_true(was[0] != 0);
    BAD(linnet_state_tensor_read(a, 0, was, sizeof was - 1));
    BAD(linnet_state_tensor_read(a, 0, NULL, sizeof was));
    BAD(linnet_state_tensor_read(a, 6, was, sizeof was));
    BAD(linnet_state_tensor_at(a, -1, &(linnet_state_tensor){.size = sizeof(linnet_state_tensor)}));
    BAD(linnet_state_tensor_at(a, 0, &(linnet_state_tensor){.size = 0}));
    linnet_session_info of = {.size = sizeof of};
    OK(linnet_session_get_info(s, &of));
    assert_int_equal(of.used, 1);
    assert_int_equal(of.capacity, CAPACITY);
    assert_int_equal(of.layers, 2);
    assert_true(of.state_bytes >= bytes && of.rollback_bytes == 0);
    linnet_session_destroy(s);
    linnet_model_destroy(m);
}

/* What operators say their states hold lies inside of them, apart, and under names of its own. */
static void tensors_of_every_model(void **unused)
{
    (void)unused;
    for (int i = 0; i < RECIPES; i++)
        for (int64_t tokens = 0; tokens < 140; tokens += 46) {
            linnet_model *m = model_of(c, &recipes[i], LINNET_BF16);
            linnet_session *s = session_of(m, 1, 200, 0, CHUNK);
            int64_t all = 0;
            for (int k = 0; k < s->n_tensors; k++) {
                const lnt_state_tensor a = lnt_session_tensor_of(s, k, tokens);
                const int64_t end = a.offset + lnt_session_tensor_bytes(&a);
                assert_true(a.offset >= 0 && end <= s->slots->stride[s->tensors[k].node]);
                all += lnt_session_tensor_bytes(&a);
                for (int j = 0; j < k; j++) {
                    const lnt_state_tensor b = lnt_session_tensor_of(s, j, tokens);
                    const bool apart = end <= b.offset || b.offset + lnt_session_tensor_bytes(&b) <= a.offset;
                    if (s->tensors[j].node == s->tensors[k].node && !apart) fail_msg("%s overlaps", s->tensors[k].name);
                    if (!strcmp(s->tensors[j].name, s->tensors[k].name)) fail_msg("%s: two are called %s", recipes[i].name, s->tensors[k].name);
                }
            }
            assert_true(all > 0 || tokens == 0);
            linnet_session_destroy(s);
            linnet_model_destroy(m);
        }
}

/* A whole prefill is one run of the program: layers' results and logits are that run's, whether they are wanted or not. */
static void results_of_layers(void **unused)
{
    (void)unused;
    enum { N = 40, WIDTH = 32 };
    static float hidden[3][N * WIDTH], steps[N * WIDTH], all[N * VOCAB], last[VOCAB];
    linnet_model *m = model_of(c, &hybrid, LINNET_F32);
    linnet_session *s = session_of(m, 2, CAPACITY, 0, N);
    lnt_plan *plan;
    lnt_plan_options o = {.tokens = N, .n_seq = 1, .n_outputs = 3, .outputs = {m->layers[0], m->layers[1], m->hidden}};
    lnt_batch b = {.tokens = N, .n_seq = 1, .n_inputs = 1, .inputs = {{m->ids, text}}};
    OK(lnt_plan_create(c, m->p, &o, &plan));
    OK(lnt_plan_run(plan, m->w, &b));
    linnet_state *first = state_of(s);
    feed(first, text, N, all);
    for (int layer = 0; layer < 3; layer++) {
        linnet_state *a = state_of(s);
        linnet_session_call k = step_of(a, text, last);
        k.n_ids = N, k.layer = layer, k.hidden = hidden[layer];
        OK(linnet_session_run(s, &k, 1));
        assert_memory_equal(hidden[layer], lnt_plan_output(plan, o.outputs[layer]).data, sizeof hidden[layer]);
        assert_memory_equal(last, all + (N - 1) * VOCAB, sizeof last);
        same_states("with results of layers", first, a);
        linnet_state_destroy(a);
        a = state_of(s);
        for (int i = 0; i < N; i++) {
            k = step_of(a, text + i, last);
            k.layer = layer, k.hidden = steps + i * WIDTH;
            OK(linnet_session_run(s, &k, 1));
        }
        assert_true(relative_rms(steps, hidden[layer], N * WIDTH) < 5e-6);
        linnet_state_destroy(a);
    }
    lnt_plan_destroy(plan);
    linnet_session_destroy(s);
    linnet_model_destroy(m);
}

/* ---- memory ---- */

/* Everything once, then again: nothing more is allocated. */
static void round_of(linnet_session *s, linnet_state **a)
{
    static const int64_t together[] = {1, 3, 2, 4};
    static float hidden[TOKENS * 32];
    linnet_session_call k[4];
    for (size_t t = 0; t < sizeof together / sizeof *together; t++) {
        for (int i = 0; i < 4; i++) k[i] = step_of(a[(i * 3 + 1) % 4], text + i, logits + i * VOCAB);
        OK(linnet_session_run(s, k, together[t]));
    }
    feed(a[2], text, 30, logits);
    feed(a[1], text, 3, logits);
    for (int i = 0; i < 4; i++) k[i].n_ids = 1 + i, k[i].hidden = hidden, k[i].layer = i % 3;
    OK(linnet_session_run(s, k, 4));
    OK(linnet_state_rollback(a[2], 7));
    OK(linnet_state_copy(a[2], a[3]));
    OK(linnet_state_rollback(a[3], 1));
}

static void no_allocation_after_the_first(void **unused)
{
    (void)unused;
    for (int i = 0; i < RECIPES; i++) {
        linnet_model *m = model_of(c, &recipes[i], i % 2 ? LINNET_BF16 : LINNET_F32);
        linnet_session *s = session_of(m, 4, 256, 8, CHUNK);
        linnet_state *a[4];
        for (int k = 0; k < 4; k++) a[k] = state_of(s);
        feed(a[0], text, 2 * CHUNK, NULL); /* a whole piece: no later one is longer */
        round_of(s, a);
        lnt_alloc_fail_at(0); /* counts from here */
        round_of(s, a);
        if (lnt_alloc_count()) fail_msg("%s: %lld allocations", recipes[i].name, (long long)lnt_alloc_count());
        linnet_session_destroy(s);
        linnet_model_destroy(m);
    }
}

static linnet_status live(linnet_model *m)
{
    linnet_session_options o = LINNET_SESSION_OPTIONS_INIT;
    linnet_session *s;
    linnet_state *a = NULL, *b = NULL;
    o.slots = 3, o.capacity = CAPACITY, o.rollback = 4, o.chunk = CHUNK;
    LNT_TRY(linnet_session_create(c, m, &o, &s));
    linnet_status status = linnet_state_create(s, &a);
    if (status == LINNET_OK) {
        linnet_session_call k = step_of(a, text, logits);
        k.n_ids = 18;
        status = linnet_session_run(s, &k, 1);
        if (status != LINNET_OK) { /* half way */
            assert_int_equal(linnet_state_save(a, file), LINNET_EINVAL);
            assert_non_null(strstr(linnet_error_message(c), "lost"));
        }
    }
    if (status == LINNET_OK) status = linnet_state_fork(a, &b);
    if (status == LINNET_OK) linnet_state_destroy(a);
    if (status == LINNET_OK) status = linnet_state_fork(b, &a);
    if (status == LINNET_OK) status = linnet_state_fork(b, &(linnet_state *){NULL});
    if (status == LINNET_OK) {
        linnet_state_destroy(a); /* slots 1 and 2 are left, then 0 is new: not side by side with 2 */
        status = linnet_state_create(s, &a);
    }
    if (status == LINNET_OK) {
        const linnet_session_call k[2] = {step_of(a, text, logits), step_of(s->owner[2], text, logits + VOCAB)};
        status = linnet_session_run(s, k, 2);
    }
    if (status == LINNET_OK) status = linnet_state_save(b, file);
    if (status == LINNET_OK) {
        linnet_state_destroy(a);
        status = linnet_state_load(s, file, &a);
    }
    linnet_session_destroy(s);
    return status;
}

static void memory_runs_out(void **unused)
{
    (void)unused;
    linnet_model *m = model_of(c, &hybrid, LINNET_F32);
    OK(live(m));
    int64_t n = 1;
    for (; n < 2000; n++) {
        lnt_alloc_fail_at(n);
        const linnet_status s = live(m);
        const bool met = lnt_alloc_count() >= n;
        lnt_alloc_fail_at(0);
        if (!met) break;
        if (s != LINNET_ENOMEM && s != LINNET_OK) fail_msg("allocation %lld: %s", (long long)n, linnet_error_message(c));
    }
    assert_true(n > 30 && n < 2000);
    OK(live(m));
    linnet_model_destroy(m);
}

/* A lost state: what it can still do. */
static void lost_states(void **unused)
{
    (void)unused;
    linnet_model *m = model_of(c, &hybrid, LINNET_F32);
    linnet_session *s = session_of(m, 3, CAPACITY, 4, CHUNK);
    linnet_state *a = state_of(s), *b = state_of(s), *unusual;
    feed(b, text, 3, NULL);
    linnet_session_call k = step_of(a, text, logits); /* its first step: a plan is made */
    lnt_alloc_fail_at(1);
    REFUSED(LINNET_ENOMEM, linnet_session_run(s, &k, 1));
    lnt_alloc_fail_at(0);
    BAD(linnet_session_run(s, &k, 1));
    BAD(linnet_state_rollback(a, 0));
    BAD(linnet_state_fork(a, &unusual));
    BAD(linnet_state_copy(a, b));
    BAD(linnet_state_get_info(a, &(linnet_state_info){.size = sizeof(linnet_state_info)}));
    OK(linnet_state_copy(b, a));
    same_states("found again", a, b);
    feed(a, text, 1, NULL);
    linnet_session_destroy(s);
    linnet_model_destroy(m);
}

/* A window longer than a session's capacity takes no more than that: the bits of a larger session, back and on again too, from one session to the
 * other through a file, and no token past its end. */
static void window_past_the_capacity(void **unused)
{
    (void)unused;
    enum { SMALL = 24, AT = 18 };
    static const recipe windows = {
        "mesa and attention, long windows", "mesa_net",
        {{"num_heads", "2"}, {"head_dim", "12"}, {"pattern", "mesa_net:2147483647,attention:2147483647"}}};
    static const recipe short_windows = {"mesa, a shorter window", "mesa_net", {{"num_heads", "2"}, {"head_dim", "12"}, {"mesa_window", "21"}}};
    static float expected[SMALL * VOCAB];
    for (int turn = 0; turn < 2; turn++) {
        linnet_model *m = model_of(c, turn ? &short_windows : &windows, LINNET_F32);
        linnet_session *s = session_of(m, 2, SMALL, SMALL, CHUNK), *large = session_of(m, 2, CAPACITY, SMALL, CHUNK);
        linnet_state *a = state_of(s), *b = state_of(large), *moved, *back;
        linnet_session_info is = {.size = sizeof is}, be = is;
        OK(linnet_session_get_info(s, &is));
        OK(linnet_session_get_info(large, &be));
        if (turn ? is.state_bytes != be.state_bytes : is.state_bytes >= be.state_bytes) fail_msg("%lld bytes", (long long)is.state_bytes);
        for (int i = 0, n; i < SMALL; i += n) { /* a piece, then step by step */
            n = i < 9 ? 9 : 1;
            feed(a, text + i, n, logits + i * VOCAB);
            feed(b, text + i, n, expected + i * VOCAB);
        }
        assert_memory_equal(logits, expected, sizeof expected);
        same_states("a small session's", a, b);
        if (!turn) BAD(linnet_session_run(s, &(linnet_session_call){.size = sizeof(linnet_session_call), .state = a, .ids = text, .n_ids = 1}, 1));
        OK(linnet_state_rollback(a, SMALL - AT));
        OK(linnet_state_save(a, file));
        OK(linnet_state_load(large, file, &moved));
        OK(linnet_state_save(moved, file));
        OK(linnet_state_load(s, file, &back));
        linnet_state *const from[] = {a, moved, back};
        for (int j = 0; j < 3; j++)
            for (int i = AT; i < SMALL; i++) {
                feed(from[j], text + i, 1, logits);
                assert_memory_equal(logits, expected + i * VOCAB, VOCAB * sizeof *logits);
            }
        linnet_session_destroy(s);
        linnet_session_destroy(large);
        linnet_model_destroy(m);
    }
}

/* ---- files ---- */

static void write_file(const char *data, size_t n)
{
    FILE *f = fopen(bad_file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void files_nobody_vouches_for(void **unused)
{
    (void)unused;
    linnet_model *m = model_of(c, &full, LINNET_F32), *weights, *sums = model_of(c, &full, LINNET_BF16), *shapes = model_of(c, &hybrid, LINNET_F32);
    linnet_config *config = config_of(c, &full);
    OK(linnet_model_create(c, config, LINNET_F32, 6, &weights)); /* drawn from another seed */
    linnet_session *s = session_of(m, 2, CAPACITY, 0, CHUNK), *small = session_of(m, 1, 16, 0, CHUNK);
    linnet_model *const others[] = {weights, sums, shapes};
    linnet_state *a = state_of(s), *b;
    feed(a, text, 17, NULL);
    OK(linnet_state_save(a, file));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        linnet_session *other = session_of(others[i], 1, CAPACITY, 0, CHUNK);
        BAD(linnet_state_load(other, file, &b));
        assert_non_null(strstr(linnet_error_message(c), "another model"));
        assert_null(b);
        linnet_session_destroy(other);
    }
    BAD(linnet_state_load(small, file, &b)); /* 17 tokens for 16 */
    assert_non_null(strstr(linnet_error_message(c), "room for 16"));
    REFUSED(LINNET_EIO, linnet_state_load(s, folder, &b));
    REFUSED(LINNET_EIO, linnet_state_save(a, folder));

    static char good[1 << 16], changed[1 << 16];
    FILE *f = fopen(file, "rb");
    const size_t n = fread(good, 1, sizeof good, f);
    assert_true(n > 1000 && n < sizeof good);
    fclose(f);
    for (size_t cut = 0; cut < n; cut += cut < 1200 ? 7 : 511) {
        write_file(good, cut);
        REFUSED(LINNET_EFORMAT, linnet_state_load(s, bad_file, &b));
    }
    static const char *const swaps[][2] = {{"\"tokens\":\"17\"", "\"tokens\":\"16\""}, {"\"tokens\":\"17\"", "\"tokens\":\"-7\""},
                                           {"\"tokens\":\"17\"", "\"tokenz\":\"17\""}, {"linnet state 1", "linnet state 2"},
                                           {"attention.k", "attention.q"},             {"[17,2,16]", "[34,1,16]"}};
    for (size_t i = 0; i < sizeof swaps / sizeof *swaps; i++) {
        memcpy(changed, good, n);
        char *at = memmem(changed, n, swaps[i][0], strlen(swaps[i][0]));
        assert_non_null(at);
        memcpy(at, swaps[i][1], strlen(swaps[i][1]));
        write_file(changed, n);
        if (linnet_state_load(s, bad_file, &b) != LINNET_EFORMAT) fail_msg("%s is read", swaps[i][1]);
    }
    lnt_rng r = lnt_rng_make(3, 0);
    for (int turn = 0; turn < 3000; turn++) { /* any bytes: refused, or a state like another */
        memcpy(changed, good, n);
        for (int k = 0; k < 3; k++) changed[lnt_rng_below(&r, turn % 2 ? n : 900)] = (char)lnt_rng_u32(&r);
        write_file(changed, n);
        if (linnet_state_load(s, bad_file, &b) != LINNET_OK) continue;
        feed(b, text, 2, logits);
        linnet_state_destroy(b);
    }
    OK(linnet_state_load(s, file, &b)); /* what was refused took no slot */
    same_states("from the file", a, b);
    linnet_session_destroy(s);
    linnet_session_destroy(small);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) linnet_model_destroy(others[i]);
    linnet_model_destroy(m);
    linnet_config_destroy(config);
}

static int open_all(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/linnet-session-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/state", folder);
    snprintf(bad_file, sizeof bad_file, "%s/bad", folder);
    draw_ids(text, TOKENS);
    c = context_of(1);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    unlink(file);
    unlink(bad_file);
    linnet_context_destroy(c);
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_refused),   cmocka_unit_test(tensors_by_name), cmocka_unit_test(tensors_of_every_model),
        cmocka_unit_test(results_of_layers), cmocka_unit_test(memory_runs_out), cmocka_unit_test(no_allocation_after_the_first),
        cmocka_unit_test(lost_states),       cmocka_unit_test(files_nobody_vouches_for), cmocka_unit_test(window_past_the_capacity),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

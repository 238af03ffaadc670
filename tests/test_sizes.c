/* Sizes that files and callers name: products of them are checked, and nothing is allocated on the word of a few bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/memory.h"
#include "one_file.h"
#include "one_run.h"
#include "program/plan.h"
#include "model/model.h"

enum { MEBI = 1 << 20 };

static linnet_model *model_of_type(const char *type, const char *key, const char *value)
{
    linnet_model *m;
    linnet_config *k = small_config(ctx, type);
    if (key) assert_int_equal(linnet_config_set(ctx, k, key, value), LINNET_OK);
    assert_int_equal(linnet_model_create(ctx, k, LINNET_F32, 1, &m), LINNET_OK);
    linnet_config_destroy(k);
    return m;
}

static void products_saturate(void **state)
{
    (void)state;
    assert_int_equal(lnt_bytes(3, 8), 24);
    assert_int_equal(lnt_bytes(0, SIZE_MAX), 0);
    assert_int_equal(lnt_bytes((size_t)1 << 61, 8), SIZE_MAX);
    assert_int_equal(lnt_bytes((size_t)1 << 60, 8), SIZE_MAX); /* 2^63 is no size either */
    assert_int_equal(lnt_bytes((size_t)-1, 1), SIZE_MAX);
    assert_int_equal(lnt_bytes(SIZE_MAX, 4), SIZE_MAX);
    assert_int_equal(lnt_bytes_plus(SIZE_MAX, 64), SIZE_MAX);
    assert_int_equal(lnt_bytes_plus(INT64_MAX, 1), SIZE_MAX);
    assert_int_equal(lnt_bytes_plus(5, 64), 69);
    assert_null(lnt_alloc(lnt_bytes(SIZE_MAX / 2, 8)));
    assert_null(lnt_calloc(SIZE_MAX));
    lnt_arena a = {0};
    assert_null(lnt_arena_alloc(&a, SIZE_MAX));
    lnt_arena_free(&a);
}

static void logits_of_nothing(void **state)
{
    (void)state;
    linnet_model *m = model_of_type("gated_deltanet", NULL, NULL);
    const int64_t id = 1;
    float out;
    lnt_alloc_fail_at(0);
    assert_int_equal(linnet_model_logits(ctx, m, &id, (int64_t)1 << 61, 0, &out), LINNET_OK);
    assert_int_equal(linnet_model_logits(ctx, m, &id, INT64_MAX, 0, &out), LINNET_OK);
    assert_int_equal(linnet_model_logits(ctx, m, &id, 0, (int64_t)1 << 40, &out), LINNET_OK);
    assert_int_equal(linnet_model_logits(ctx, m, &id, (int64_t)1 << 61, 16, &out), LINNET_EINVAL);
    assert_int_equal(linnet_model_logits(ctx, m, &id, (int64_t)1 << 53, 1, &out), LINNET_EINVAL); /* 2^53 x 256 x 4 bytes of logits */
    assert_int_equal(linnet_model_logits(ctx, m, &id, -1, -1, &out), LINNET_EINVAL);
    assert_true(lnt_alloc_largest() < MEBI);
    linnet_model_destroy(m);
}

/* Input ids that a hundred bytes promise: no id, in very many or very long sequences. */
static void ids_of_few_bytes(void **state)
{
    (void)state;
    static const char *const shapes[] = {"2305843009213693951,0", "0,1099511627776", "0,9223372036854775807", "2147483648,0", "65536,0"};
    linnet_model *m = model_of_type("gated_deltanet", NULL, NULL);
    char out[160];
    snprintf(out, sizeof out, "%s/logits", folder);
    for (int i = 0; i < 20; i++) {
        char header[200];
        const char *shape = shapes[i / 4], *type = i % 2 ? "I64" : "I32";
        const int step = i / 2 % 2;
        uint64_t n = (uint64_t)snprintf(header + 8, sizeof header - 8,
                                        "{\"input_ids\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[0,0]}}", type, shape);
        memcpy(header, &n, 8);
        put_file(file, header, n + 8);
        lnt_alloc_fail_at(0);
        const linnet_status s = linnet_model_logits_file(ctx, m, file, out, step);
        assert_true(lnt_alloc_largest() < MEBI);
        if (s == LINNET_EFORMAT && i < 4) continue; /* a factor that alone is no size may be refused */
        if (s != LINNET_OK) fail_msg("[%s] %s: %s", shape, type, linnet_error_message(ctx));
        char *text = get_file(out, NULL), wanted[100];
        snprintf(wanted, sizeof wanted, "[%s,256]", shape);
        assert_non_null(strstr(text + 8, wanted));
        free(text);
    }
    unlink(out);
    linnet_model_destroy(m);
}

/* A plan and a state of sizes that only a product of them would notice. */
static void plans_and_states(void **state)
{
    (void)state;
    linnet_model *m = model_of_type("transformer", NULL, NULL), *window = model_of_type("transformer", "window_size", "9");
    lnt_plan *plan;
    lnt_state *s;
    size_t bytes;
    const int64_t huge[] = {(int64_t)1 << 40, (int64_t)1 << 55, (int64_t)1 << 56, 288230376151711743, (int64_t)1 << 61, INT64_MAX - 64, INT64_MAX};
    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
        for (int which = 0; which < 2; which++) {
            lnt_plan_options o = {.tokens = which ? 0 : huge[i], .n_seq = which ? huge[i] : 1, .dtype = LINNET_F32, .n_outputs = 1,
                                  .outputs = {m->logits}};
            lnt_alloc_fail_at(0);
            if (i || which) assert_true(lnt_plan_create(ctx, m->p, &o, &plan) < 0);
            if (!which && i) assert_true(lnt_plan_measure(ctx, m->p, &o, &bytes) < 0);
        }
        assert_true(lnt_state_create(ctx, m->p, LINNET_F32, 1, huge[i], &s) < 0);
        assert_true(lnt_state_create(ctx, m->p, LINNET_F32, huge[i], 16, &s) < 0);
        assert_true(lnt_state_bytes(m->p, LINNET_F32, huge[i]) >= (size_t)huge[i]); /* saturates */
        /* a window is full soon */
        assert_int_equal(lnt_state_create(ctx, window->p, LINNET_F32, 1, huge[i], &s), LINNET_OK);
        assert_int_equal(s->bytes, lnt_state_bytes(window->p, LINNET_F32, 9));
        lnt_state_destroy(s);
    }
    assert_int_equal(lnt_state_create(ctx, m->p, LINNET_F32, -1, 4, &s), LINNET_EINVAL);
    assert_int_equal(lnt_state_create(ctx, m->p, LINNET_F32, 1, -4, &s), LINNET_EINVAL);
    linnet_model_destroy(m);
    linnet_model_destroy(window);
}

static int stop_at_once(void *user, int64_t id, const char *bytes, size_t n)
{
    (void)user, (void)id, (void)bytes, (void)n;
    return 1;
}

static void tokens_beyond_memory(void **state)
{
    (void)state;
    linnet_tokenizer *t;
    linnet_generate_result r = { .size = sizeof r };
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    assert_int_equal(linnet_tokenizer_open(ctx, "bytes", &t), LINNET_OK);
    o.prompt = "a";
    o.prompt_bytes = 1;
    o.token = stop_at_once;
    const int64_t tokens[] = {(int64_t)1 << 48, 72057594037927936, 288230376151711743, INT64_MAX};
    linnet_model *m[2] = {model_of_type("transformer", NULL, NULL), model_of_type("gated_deltanet", NULL, NULL)};
    for (int i = 0; i < 4; i++) {
        o.max_tokens = tokens[i];
        assert_true(linnet_generate(ctx, m[0], t, &o, &r) < 0); /* its cache would need a row for each */
        assert_int_equal(linnet_generate(ctx, m[1], t, &o, &r), i < 3 ? LINNET_OK : LINNET_EINVAL); /* its state does not grow */
    }
    for (int i = 0; i < 2; i++) linnet_model_destroy(m[i]);
    linnet_tokenizer_destroy(t);
}

/* config.json asks for a vocabulary of ten million, 1.3 GB of weights at width 32; the weights beside it have 256 rows. */
static void weights_are_compared_before_memory_is_taken(void **state)
{
    (void)state;
    char out[100], path[160];
    const char *const text[] = {put_text(folder)};
    snprintf(out, sizeof out, "%s/run", folder);
    linnet_train_options o = small_run(text, out);
    linnet_config *k = small_config(ctx, "gated_deltanet");
    if (linnet_train(ctx, k, LINNET_F32, &o) != LINNET_OK) fail_msg("%s", linnet_error_message(ctx));
    linnet_config_destroy(k);
    snprintf(path, sizeof path, "%s/config.json", out);
    char *json = get_file(path, NULL), *at = strstr(json, "\"vocab_size\": 256"), changed[8192];
    assert_non_null(at);
    const int n = snprintf(changed, sizeof changed, "%.*s\"vocab_size\": 10000000%s", (int)(at - json), json, at + 17);
    put_file(path, changed, (size_t)n);
    free(json);
    linnet_model *m;
    lnt_alloc_fail_at(0);
    assert_int_equal(linnet_model_load(ctx, out, LINNET_F32, &m), LINNET_EFORMAT);
    assert_non_null(strstr(linnet_error_message(ctx), "has shape [256,32], expected [10000000,32]"));
    assert_true(lnt_alloc_largest() < MEBI);
    o.resume = 1;
    lnt_alloc_fail_at(0);
    assert_int_equal(linnet_train(ctx, NULL, LINNET_F32, &o), LINNET_EFORMAT);
    assert_non_null(strstr(linnet_error_message(ctx), "has shape [256,32], expected [10000000,32]"));
    assert_true(lnt_alloc_largest() < MEBI);
    remove_folder(out);
    unlink(text[0]);
}

static int open_all(void **state)
{
    (void)state;
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    open_folder("ids");
    linnet_context_destroy(ctx);
    o.threads = 1;
    return linnet_context_create(&o, &ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_saturate),   cmocka_unit_test(logits_of_nothing),
        cmocka_unit_test(ids_of_few_bytes),    cmocka_unit_test(plans_and_states),
        cmocka_unit_test(tokens_beyond_memory), cmocka_unit_test(weights_are_compared_before_memory_is_taken),
    };
    return cmocka_run_group_tests(tests, open_all, close_folder);
}

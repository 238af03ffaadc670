/* The border of the public interface: NULL, sizes of structures, enumerations, contexts, ranges, and headers that every compiler takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>

#include "linnet/recurrence.h"
#include "linnet/task.h"
#include "one_file.h"
#include "one_run.h"

static linnet_config *config;
static linnet_model *model;
static linnet_tokenizer *bytes;
static const char *texts[1];

static int open_all(void **state)
{
    (void)state;
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.threads = 1;
    strcpy(folder, "/tmp/linnet-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(linnet_context_create(&o, &ctx), LINNET_OK);
    config = small_config(ctx, "gated_deltanet");
    assert_int_equal(linnet_model_create(ctx, config, LINNET_F32, 1, &model), LINNET_OK);
    assert_int_equal(linnet_tokenizer_open(ctx, "bytes", &bytes), LINNET_OK);
    texts[0] = put_text(folder);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    linnet_tokenizer_destroy(bytes);
    linnet_model_destroy(model);
    linnet_config_destroy(config);
    linnet_context_destroy(ctx);
    remove_folder(folder);
    return 0;
}

#define REFUSED(call) \
    do { \
        if ((call) != LINNET_EINVAL) fail_msg("not refused: %s", #call); \
    } while (0)
/* Refused, with a text. */
#define SAID(call) \
    do { \
        REFUSED(call); \
        if (!*linnet_error_message(ctx)) fail_msg("nothing was said about %s", #call); \
    } while (0)

/* Long: a line for every function of the interface. */
static void null_is_refused(void **state)
{
    (void)state;
    linnet_config *k;
    linnet_model *m;
    linnet_tokenizer *t;
    linnet_dtype d;
    int32_t *ids;
    int64_t id = 1, n;
    float logits[256];
    double least, most;
    linnet_eval_options eval = LINNET_EVAL_OPTIONS_INIT;
    linnet_generate_options generate = LINNET_GENERATE_OPTIONS_INIT;
    linnet_train_options train = LINNET_TRAIN_OPTIONS_INIT;
    linnet_eval_result evaluated = {.size = sizeof evaluated};
    linnet_generate_result generated = {.size = sizeof generated};
    linnet_context *none = NULL;

    REFUSED(linnet_context_create(NULL, NULL));
    assert_string_equal(linnet_machine(none), "");
    assert_string_equal(linnet_error_message(none), "");
    assert_int_equal(linnet_threads(none), 0);
    SAID(linnet_dtype_parse(ctx, NULL, &d));
    SAID(linnet_dtype_parse(ctx, "f32", NULL));

    SAID(linnet_config_create(ctx, NULL, &k));
    SAID(linnet_config_create(ctx, "retnet", NULL));
    REFUSED(linnet_config_create(none, "retnet", &k));
    SAID(linnet_config_load(ctx, NULL, &k));
    SAID(linnet_config_load(ctx, folder, NULL));
    SAID(linnet_config_set(ctx, NULL, "num_heads", "2"));
    SAID(linnet_config_set(ctx, config, NULL, "2"));
    SAID(linnet_config_set(ctx, config, "num_heads", NULL));
    SAID(linnet_config_preset(ctx, NULL, "tiny"));
    SAID(linnet_config_preset(ctx, config, NULL));
    SAID(linnet_config_pattern(ctx, NULL, "retnet"));
    SAID(linnet_config_pattern(ctx, config, NULL));
    assert_null(linnet_config_json(NULL));
    char shown[8];
    SAID(linnet_config_get(ctx, NULL, "num_heads", shown, sizeof shown));
    SAID(linnet_config_get(ctx, config, NULL, shown, sizeof shown));
    SAID(linnet_config_get(ctx, config, "num_heads", NULL, 8));
    assert_null(linnet_config_class(NULL));
    assert_null(linnet_kind_describe(NULL, 0));
    assert_null(linnet_kind_at(NULL, 0));

    SAID(linnet_model_create(ctx, NULL, LINNET_F32, 1, &m));
    SAID(linnet_model_create(ctx, config, LINNET_F32, 1, NULL));
    REFUSED(linnet_model_create(none, config, LINNET_F32, 1, &m));
    SAID(linnet_model_load(ctx, NULL, LINNET_F32, &m));
    SAID(linnet_model_load(ctx, folder, LINNET_F32, NULL));
    SAID(linnet_model_save(ctx, NULL, folder));
    SAID(linnet_model_save(ctx, model, NULL));
    REFUSED(linnet_model_get_info(NULL, NULL));
    SAID(linnet_model_get_info(model, NULL));
    assert_null(linnet_model_describe(NULL, LINNET_DESCRIBE_TEXT));
    SAID(linnet_model_logits(ctx, NULL, &id, 1, 1, logits));
    SAID(linnet_model_logits(ctx, model, NULL, 1, 1, logits));
    SAID(linnet_model_logits(ctx, model, &id, 1, 1, NULL));
    REFUSED(linnet_model_logits(none, model, &id, 1, 1, logits));
    SAID(linnet_model_logits_file(ctx, NULL, "a", "b", 0));
    SAID(linnet_model_logits_file(ctx, model, NULL, "b", 0));
    SAID(linnet_model_logits_file(ctx, model, "a", NULL, 0));

    SAID(linnet_tokenizer_open(ctx, NULL, &t));
    SAID(linnet_tokenizer_open(ctx, "bytes", NULL));
    SAID(linnet_tokenizer_train(ctx, NULL, 5, 300, &t));
    SAID(linnet_tokenizer_train(ctx, "aaaaa", 5, 300, NULL));
    SAID(linnet_tokenizer_save(ctx, NULL, folder));
    SAID(linnet_tokenizer_save(ctx, bytes, NULL));
    SAID(linnet_tokenizer_encode(ctx, NULL, "a", 1, &ids, &n));
    SAID(linnet_tokenizer_encode(ctx, bytes, NULL, 1, &ids, &n));
    SAID(linnet_tokenizer_encode(ctx, bytes, "a", 1, NULL, &n));
    SAID(linnet_tokenizer_encode(ctx, bytes, "a", 1, &ids, NULL));
    assert_int_equal(linnet_tokenizer_vocabulary(NULL), 0);
    assert_int_equal(linnet_tokenizer_separator(NULL), -1);
    assert_null(linnet_tokenizer_piece(NULL, 0, NULL));
    assert_null(linnet_tokenizer_piece(bytes, 0, NULL));

    eval.texts = texts;
    eval.n_texts = 1;
    SAID(linnet_eval(ctx, NULL, bytes, &eval, &evaluated));
    SAID(linnet_eval(ctx, model, NULL, &eval, &evaluated));
    SAID(linnet_eval(ctx, model, bytes, NULL, &evaluated));
    SAID(linnet_eval(ctx, model, bytes, &eval, NULL));
    REFUSED(linnet_eval(none, model, bytes, &eval, &evaluated));
    eval.texts = NULL;
    SAID(linnet_eval(ctx, model, bytes, &eval, &evaluated));
    eval.texts = (const char *const[]){NULL};
    SAID(linnet_eval(ctx, model, bytes, &eval, &evaluated));
    SAID(linnet_generate(ctx, NULL, bytes, &generate, &generated));
    SAID(linnet_generate(ctx, model, NULL, &generate, &generated));
    SAID(linnet_generate(ctx, model, bytes, NULL, &generated));
    SAID(linnet_generate(ctx, model, bytes, &generate, NULL));
    generate.prompt_bytes = 7;
    SAID(linnet_generate(ctx, model, bytes, &generate, &generated));
    SAID(linnet_train(ctx, config, LINNET_F32, NULL));
    SAID(linnet_train(ctx, config, LINNET_F32, &train)); /* no folder, no texts */
    SAID(linnet_train(ctx, NULL, LINNET_F32, &train));
    REFUSED(linnet_train(none, config, LINNET_F32, &train));
    train.out = folder;
    train.n_texts = 1;
    SAID(linnet_train(ctx, config, LINNET_F32, &train));
    SAID(linnet_op_file(ctx, NULL, NULL, 0));
    SAID(linnet_bench_machine(ctx, NULL));
    SAID(linnet_bench_op(ctx, NULL, NULL));
    SAID(linnet_bench_train(ctx, model, NULL, NULL));
    SAID(linnet_bench_train(ctx, NULL, NULL, NULL));
    SAID(linnet_bench_decode(ctx, model, NULL, NULL));
    linnet_task_options task = LINNET_TASK_OPTIONS_INIT;
    SAID(linnet_task_run(ctx, NULL, &task, NULL));
    SAID(linnet_task_run(ctx, "sorting", &task, NULL));
    for (int i = 0; linnet_task_at(i); i++) {
        SAID(linnet_task_run(ctx, linnet_task_at(i)->name, NULL, NULL));
        SAID(linnet_task_run(ctx, linnet_task_at(i)->name, &task, NULL)); /* neither configuration nor model */
        REFUSED(linnet_task_run(none, linnet_task_at(i)->name, &task, NULL));
    }
    linnet_convert_options convert = LINNET_CONVERT_OPTIONS_INIT;
    linnet_convert_result converted = {.size = 3};
    SAID(linnet_convert(ctx, NULL, folder, &convert, NULL));
    SAID(linnet_convert(ctx, folder, NULL, &convert, NULL));
    SAID(linnet_convert(ctx, folder, file, NULL, NULL));
    SAID(linnet_convert(ctx, folder, file, &convert, NULL)); /* to what? */
    convert.to = "linnet";
    SAID(linnet_convert(ctx, folder, file, &convert, &converted));
    REFUSED(linnet_convert(none, folder, file, &convert, NULL));
    convert.dtype = LINNET_U8;
    SAID(linnet_convert(ctx, folder, file, &convert, NULL));
    linnet_compare_options compared = LINNET_COMPARE_OPTIONS_INIT;
    SAID(linnet_compare(ctx, NULL, NULL));
    SAID(linnet_compare(ctx, &compared, NULL));
    compared.n_runs = 1;
    SAID(linnet_compare(ctx, &compared, NULL));
    const char *const no_run[] = {file};
    compared.runs = no_run;
    SAID(linnet_compare(ctx, &compared, NULL));
    REFUSED(linnet_task_option_at("mqar", 0, NULL));
    REFUSED(linnet_task_option_at(NULL, 0, NULL));
    REFUSED(linnet_option_range(NULL, "batch", &least, &most));
    REFUSED(linnet_option_range("train", NULL, &least, &most));
    REFUSED(linnet_option_range("train", "batch", NULL, &most));
}

static void enumerations_are_checked(void **state)
{
    (void)state;
    linnet_model *m;
    const int bad[] = {-1, LINNET_F64, LINNET_F16, LINNET_U8, LINNET_I8, LINNET_I8 + 1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        linnet_train_options train = small_run(texts, folder);
        linnet_task_options task = LINNET_TASK_OPTIONS_INIT;
        task.config = config;
        task.dtype = bad[i];
        SAID(linnet_model_create(ctx, config, (linnet_dtype)bad[i], 1, &m));
        SAID(linnet_model_create_kept(ctx, config, (linnet_dtype)bad[i], LINNET_F32, 1, &m));
        SAID(linnet_model_load(ctx, folder, (linnet_dtype)bad[i], &m));
        if (bad[i] != LINNET_I8) { /* how weights may be kept */
            SAID(linnet_model_create_kept(ctx, config, LINNET_BF16, (linnet_dtype)bad[i], 1, &m));
            SAID(linnet_model_load_kept(ctx, folder, LINNET_BF16, (linnet_dtype)bad[i], &m));
        }
        SAID(linnet_train(ctx, config, (linnet_dtype)bad[i], &train));
        SAID(linnet_task_run(ctx, "parity", &task, NULL));
        train.weights = bad[i];
        SAID(linnet_train(ctx, config, LINNET_BF16, &train));
        train.weights = LINNET_F32, train.moments = bad[i];
        SAID(linnet_train(ctx, config, LINNET_BF16, &train));
    }
    linnet_train_options train = small_run(texts, folder);
    train.recompute = 3;
    SAID(linnet_train(ctx, config, LINNET_F32, &train));
    linnet_op_options op = LINNET_OP_OPTIONS_INIT;
    char line[80];
    op.op = "retention";
    op.in = op.out = file;
    op.dtype = -1;
    SAID(linnet_op_file(ctx, &op, line, sizeof line));
    assert_null(linnet_model_describe(model, (linnet_describe)17));
    assert_string_equal(linnet_dtype_name((linnet_dtype)-1), "?");
    assert_string_equal(linnet_status_name((linnet_status)12), "unknown status");
}

/* A caller of another age: bytes behind the structure's size are not read, and fields it does not have are the defaults. */
static void options_are_read_by_size(void **state)
{
    (void)state;
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    linnet_generate_result r = {.size = sizeof r};
    o.prompt = "a";
    o.prompt_bytes = 1;
    o.max_tokens = 3;
    o.size = offsetof(linnet_generate_options, temperature);
    o.temperature = NAN; /* what is here belongs to nobody */
    o.top_k = -5;
    o.token = (int (*)(void *, int64_t, const char *, size_t))(uintptr_t)1;
    assert_int_equal(linnet_generate(ctx, model, bytes, &o, &r), LINNET_OK);
    assert_int_equal(r.tokens, 3);

    linnet_eval_options e = LINNET_EVAL_OPTIONS_INIT;
    linnet_eval_result evaluated = {.size = sizeof evaluated};
    e.texts = texts;
    e.n_texts = 1;
    e.size = offsetof(linnet_eval_options, length);
    e.length = -1;
    e.csv = (const char *)(uintptr_t)1;
    assert_int_equal(linnet_eval(ctx, model, bytes, &e, &evaluated), LINNET_OK);

    static const char *const set[] = {"steps=1", "batch=1", "test_examples=2"};
    linnet_task_options q = LINNET_TASK_OPTIONS_INIT;
    q.config = config;
    q.set = set;
    q.n_set = 3;
    q.size = offsetof(linnet_task_options, model);
    q.model = (linnet_model *)(uintptr_t)1;
    q.n_files = -1;
    assert_int_equal(linnet_task_run(ctx, "parity", &q, NULL), LINNET_OK);

    char out[100];
    snprintf(out, sizeof out, "%s/older", folder);
    linnet_train_options t = small_run(texts, out);
    t.size = offsetof(linnet_train_options, isolate_documents);
    t.recompute = 77;
    t.progress = (int (*)(void *, const linnet_train_progress *))(uintptr_t)1;
    t.weights = t.moments = -1;
    if (linnet_train(ctx, config, LINNET_F32, &t) != LINNET_OK) fail_msg("%s", linnet_error_message(ctx));

    linnet_bench_train_options b = LINNET_BENCH_TRAIN_OPTIONS_INIT;
    linnet_bench_train_result measured = {.size = sizeof measured};
    b.batch = b.repeats = 1;
    b.length = 16;
    b.size = offsetof(linnet_bench_train_options, recompute);
    b.recompute = 77;
    assert_int_equal(linnet_bench_train(ctx, model, &b, &measured), LINNET_OK);
    linnet_free(measured.profile);

    /* a newer caller's fields are no secret as long as they are not used */
    struct {
        linnet_generate_options now;
        int64_t later;
    } newer = {LINNET_GENERATE_OPTIONS_INIT, 0};
    newer.now.size = sizeof newer;
    newer.now.max_tokens = 1;
    assert_int_equal(linnet_generate(ctx, model, bytes, &newer.now, &r), LINNET_OK);
    newer.later = 1;
    assert_int_equal(linnet_generate(ctx, model, bytes, &newer.now, &r), LINNET_EUNSUPPORTED);
    const size_t no_sizes[] = {0, 1, 7, (size_t)1 << 40, SIZE_MAX};
    for (int i = 0; i < 5; i++) {
        newer.now.size = no_sizes[i];
        SAID(linnet_generate(ctx, model, bytes, &newer.now, &r));
        linnet_context_options c = LINNET_CONTEXT_OPTIONS_INIT;
        linnet_context *bad;
        c.size = no_sizes[i];
        REFUSED(linnet_context_create(&c, &bad));
        assert_true(*linnet_error_message(bad));
        linnet_context_destroy(bad);
    }
}

static void results_are_written_by_size(void **state)
{
    (void)state;
    linnet_model_info i;
    memset(&i, 0x55, sizeof i);
    i.size = offsetof(linnet_model_info, width);
    assert_int_equal(linnet_model_get_info(model, &i), LINNET_OK);
    assert_int_equal(i.size, offsetof(linnet_model_info, width));
    assert_int_equal(i.vocabulary, 256);
    assert_int_equal(i.width, 0x5555555555555555);
    i.size = sizeof i + 64; /* a newer caller learns how much was filled */
    assert_int_equal(linnet_model_get_info(model, &i), LINNET_OK);
    assert_int_equal(i.size, sizeof i);
    assert_int_equal(i.width, 32);
    i.size = 0x5555555555555555;
    SAID(linnet_model_get_info(model, &i));

    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    linnet_generate_result r;
    memset(&r, 0x55, sizeof r);
    r.size = offsetof(linnet_generate_result, prefill_seconds);
    o.max_tokens = 2;
    assert_int_equal(linnet_generate(ctx, model, bytes, &o, &r), LINNET_OK);
    assert_int_equal(r.tokens, 2);
    assert_int_equal(r.state_bytes, 0x5555555555555555);
    const linnet_generate_result before = r;
    o.top_p = 0;
    SAID(linnet_generate(ctx, model, bytes, &o, &r));
    assert_memory_equal(&before, &r, sizeof r);
}

static int check_progress(void *user, const linnet_train_progress *p)
{
    assert_int_equal(p->size, sizeof *p);
    ++*(int *)user;
    return 0;
}

static void a_model_stays_with_its_context(void **state)
{
    (void)state;
    linnet_context *other;
    linnet_context_options co = LINNET_CONTEXT_OPTIONS_INIT;
    linnet_generate_options g = LINNET_GENERATE_OPTIONS_INIT;
    linnet_generate_result r = {.size = sizeof r};
    float logits[256];
    const int64_t id = 1;
    co.threads = 1;
    assert_int_equal(linnet_context_create(&co, &other), LINNET_OK);
    REFUSED(linnet_model_logits(other, model, &id, 1, 1, logits));
    assert_string_equal(linnet_error_message(other), "the model belongs to another context");
    REFUSED(linnet_model_save(other, model, folder));
    REFUSED(linnet_model_logits_file(other, model, "a", "b", 0));
    REFUSED(linnet_generate(other, model, bytes, &g, &r));
    /* a tokenizer and a configuration belong to nobody */
    linnet_model *m;
    assert_int_equal(linnet_model_create(other, config, LINNET_F32, 1, &m), LINNET_OK);
    assert_int_equal(linnet_generate(other, m, bytes, &g, &r), LINNET_OK);
    linnet_model_destroy(m);
    linnet_context_destroy(other);

    char out[100];
    int steps = 0;
    snprintf(out, sizeof out, "%s/told", folder);
    linnet_train_options t = small_run(texts, out);
    t.progress = check_progress;
    t.user = &steps;
    assert_int_equal(linnet_train(ctx, config, LINNET_F32, &t), LINNET_OK);
    assert_int_equal(steps, 4);
}

/* What linnet_option_range says is what the library takes. */
static void ranges_are_what_is_taken(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t offset;
        bool real;
    } fields[] = {
        {"batch", offsetof(linnet_train_options, batch), false}, {"length", offsetof(linnet_train_options, length), false},
        {"train_tokenizer", offsetof(linnet_train_options, train_tokenizer), false}, {"warmup", offsetof(linnet_train_options, warmup), false},
        {"beta2", offsetof(linnet_train_options, beta2), true}, {"clip", offsetof(linnet_train_options, clip), true},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        double least, most;
        assert_int_equal(linnet_option_range("train", fields[i].name, &least, &most), LINNET_OK);
        const double outside[] = {fields[i].real ? nextafter(least, -1e300) : least - 1, fields[i].real ? nextafter(most, 1e300) : most + 1};
        for (int k = 0; k < 2; k++) {
            linnet_train_options o = small_run(texts, "/nonexistent/folder");
            char *at = (char *)&o + fields[i].offset;
            const int64_t whole = (int64_t)outside[k];
            memcpy(at, fields[i].real ? (const void *)&outside[k] : (const void *)&whole, 8);
            SAID(linnet_train(ctx, config, LINNET_F32, &o));
            if (strncmp(linnet_error_message(ctx), fields[i].name, strlen(fields[i].name)) != 0) fail_msg("%s", linnet_error_message(ctx));
        }
    }
    linnet_tokenizer *t;
    double least, most;
    assert_int_equal(linnet_option_range("train", "train_tokenizer", &least, &most), LINNET_OK);
    SAID(linnet_tokenizer_train(ctx, "some text", 9, (int64_t)least - 1, &t));
    SAID(linnet_tokenizer_train(ctx, "some text", 9, (int64_t)most + 1, &t));
    assert_int_equal(linnet_tokenizer_train(ctx, "some text", 9, (int64_t)least, &t), LINNET_OK);
    linnet_tokenizer_destroy(t);
    REFUSED(linnet_option_range("train", "no such", &least, &most));
    REFUSED(linnet_option_range("trains", "batch", &least, &most));
}

static void one_version(void **state)
{
    (void)state;
    char wanted[40];
    snprintf(wanted, sizeof wanted, "%d.%d.%d", LINNET_VERSION_MAJOR, LINNET_VERSION_MINOR, LINNET_VERSION_PATCH);
    assert_string_equal(linnet_version(), wanted);
    assert_string_equal(LINNET_BUILD_VERSION, wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_is_refused),
        cmocka_unit_test(enumerations_are_checked),
        cmocka_unit_test(options_are_read_by_size),
        cmocka_unit_test(results_are_written_by_size),
        cmocka_unit_test(a_model_stays_with_its_context),
        cmocka_unit_test(ranges_are_what_is_taken),
        cmocka_unit_test(one_version),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

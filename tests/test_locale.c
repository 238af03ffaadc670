/* A host program with a decimal comma: files, plots, checkpoints and lines are the same bytes, and what was written before is read. The locale is
 * made by localedef into a folder of the test, so that the machine need not have it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <locale.h>

#include "core/number.h"
#include "hub/json.h"
#include "one_file.h"
#include "one_run.h"

static const char *texts[1];
static char locales[128];

/* True under a locale with a comma. */
static bool set_comma(void)
{
    char command[400];
    snprintf(locales, sizeof locales, "%s/locales", folder);
    snprintf(command, sizeof command, "mkdir -p %s && localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", locales, locales);
    if (system(command) != 0) return false;
    setenv("LOCPATH", locales, 1);
    return setlocale(LC_ALL, "de_DE.UTF-8") && strcmp(localeconv()->decimal_point, ",") == 0;
}

static int open_all(void **state)
{
    (void)state;
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.threads = 1;
    strcpy(folder, "/tmp/linnet-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(linnet_context_create(&o, &ctx), LINNET_OK);
    texts[0] = put_text(folder);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    char command[200];
    setlocale(LC_ALL, "C");
    linnet_context_destroy(ctx);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* Digits behind `key`, those of a clock, become one 0. */
static void blank(char *text, const char *key)
{
    for (char *at = text; (at = strstr(at, key)) != NULL;) {
        at += strlen(key);
        const size_t n = strspn(at, "0123456789.,e+-");
        char *end = at + n;
        if (n && end[-1] == ',') end--; /* between fields */
        *at = '0';
        memmove(at + 1, end, strlen(end) + 1);
    }
}

/* name of the folder of results -> everything that is written there, in this locale. */
static void write_all(const char *out, int resume_from)
{
    char path[200], csv[200], svg[200], ids[200], line[300];
    linnet_train_options t = small_run(texts, out);
    linnet_config *k = small_config(ctx, "gated_deltanet");
    assert_int_equal(linnet_config_set(ctx, k, "norm_eps", "2.5e-5"), LINNET_OK);
    assert_int_equal(linnet_config_set(ctx, k, "expand_v", "1.5"), LINNET_OK);
    assert_non_null(strstr(linnet_config_json(k), "1.5"));
    t.learning_rate = 1.25e-3;
    t.steps = 6;
    t.resume = resume_from;
    if (linnet_train(ctx, resume_from ? NULL : k, LINNET_F32, &t) != LINNET_OK) fail_msg("%s", linnet_error_message(ctx));
    linnet_config_destroy(k);

    linnet_model *m;
    linnet_tokenizer *b;
    linnet_eval_options e = LINNET_EVAL_OPTIONS_INIT;
    linnet_eval_result r = {.size = sizeof r};
    snprintf(csv, sizeof csv, "%s/loss.csv", out);
    snprintf(svg, sizeof svg, "%s/loss.svg", out);
    e.texts = texts;
    e.n_texts = 1;
    e.length = 64;
    e.csv = csv;
    e.plot = svg;
    assert_int_equal(linnet_tokenizer_open(ctx, "bytes", &b), LINNET_OK);
    if (linnet_model_load(ctx, out, LINNET_F32, &m) != LINNET_OK) fail_msg("%s", linnet_error_message(ctx));
    if (linnet_eval(ctx, m, b, &e, &r) != LINNET_OK) fail_msg("%s", linnet_error_message(ctx));
    char *text = linnet_model_describe(m, LINNET_DESCRIBE_TEXT), *table = linnet_model_describe(m, LINNET_DESCRIBE_PARAMETERS);
    snprintf(path, sizeof path, "%s/program", out);
    put_file(path, text, strlen(text));
    snprintf(path, sizeof path, "%s/parameters", out);
    put_file(path, table, strlen(table));
    linnet_free(text);
    linnet_free(table);
    linnet_model_destroy(m);
    linnet_tokenizer_destroy(b);

    char op[2048] = {0};
    const int n = snprintf(op + 8, 1000,
                           "{\"q\":{\"dtype\":\"F32\",\"shape\":[1,2,1,2],\"data_offsets\":[0,16]},\"k\":{\"dtype\":\"F32\",\"shape\":[1,2,1,2],"
                           "\"data_offsets\":[16,32]},\"v\":{\"dtype\":\"F32\",\"shape\":[1,2,1,2],\"data_offsets\":[32,48]}}");
    const uint64_t header = (uint64_t)n;
    const float one[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    memcpy(op, &header, 8);
    memcpy(op + 8 + n, one, sizeof one);
    snprintf(ids, sizeof ids, "%s/op.in", out);
    snprintf(path, sizeof path, "%s/op.out", out);
    put_file(ids, op, (size_t)n + 8 + sizeof one);
    linnet_op_options o = LINNET_OP_OPTIONS_INIT;
    o.op = "linear_attn";
    o.in = ids;
    o.out = path;
    o.set = (const char *const[]){"scale=0.75"};
    o.n_set = 1;
    if (linnet_op_file(ctx, &o, line, sizeof line) != LINNET_OK) fail_msg("%s", linnet_error_message(ctx));
    assert_null(strchr(line, ','));
    assert_non_null(strchr(line, '.'));

    t.held_out_share = 2.5;
    t.resume = 0;
    assert_int_equal(linnet_train(ctx, NULL, LINNET_F32, &t), LINNET_EINVAL);
    if (!strstr(linnet_error_message(ctx), "held_out_share is 2.5, expected 0 to 0.9")) fail_msg("%s", linnet_error_message(ctx));
}

static void same_files(const char *a, const char *b)
{
    static const char *const names[] = {"config.json", "model.safetensors", "train_state.safetensors", "log.jsonl", "loss.csv",
                                        "loss.svg",    "program",           "parameters",              "op.out"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[300];
        size_t na, nb;
        snprintf(path, sizeof path, "%s/%s", a, names[i]);
        char *x = get_file(path, &na);
        snprintf(path, sizeof path, "%s/%s", b, names[i]);
        char *y = get_file(path, &nb);
        if (!strcmp(names[i], "log.jsonl")) { /* what a clock said may differ */
            blank(x, "\"seconds\":"), blank(x, "\"tokens_per_second\":");
            blank(y, "\"seconds\":"), blank(y, "\"tokens_per_second\":");
            na = strlen(x), nb = strlen(y);
        }
        if (!strcmp(names[i], "train_state.safetensors")) {
            char *s = strstr(x + 8, "\"run.seconds\":\""), *t = strstr(y + 8, "\"run.seconds\":\"");
            assert_non_null(s);
            assert_non_null(t);
            s += 15, t += 15;
            assert_int_equal(s[strcspn(s, ".,\"")], '.');
            assert_int_equal(t[strcspn(t, ".,\"")], '.');
            /* all before, and the weights behind the header, which is padded */
            uint64_t hx, hy;
            memcpy(&hx, x, 8);
            memcpy(&hy, y, 8);
            assert_int_equal(na - hx, nb - hy);
            assert_memory_equal(x + 8 + hx, y + 8 + hy, na - hx - 8);
        } else if (na != nb || memcmp(x, y, na) != 0)
            fail_msg("%s differs:\n%.600s\n%.600s", names[i], x, y);
        free(x);
        free(y);
    }
}

static void a_comma_changes_nothing(void **state)
{
    (void)state;
    char a[100], b[100];
    snprintf(a, sizeof a, "%s/point", folder);
    snprintf(b, sizeof b, "%s/comma", folder);
    write_all(a, 0);
    if (!set_comma()) {
        print_message("no locale with a comma can be made here\n");
        skip();
    }
    char shown[40];
    snprintf(shown, sizeof shown, "%.1f", 1.5);
    assert_string_equal(shown, "1,5"); /* the host's own printf has the comma */
    write_all(b, 0);
    same_files(a, b);
    assert_string_equal(setlocale(LC_ALL, NULL), "de_DE.UTF-8");
    snprintf(shown, sizeof shown, "%.1f", 1.5);
    assert_string_equal(shown, "1,5"); /* and has it still */

    /* a run of another locale goes on */
    linnet_train_options t = small_run(texts, a);
    t.resume = 1;
    if (linnet_train(ctx, NULL, LINNET_F32, &t) != LINNET_OK) fail_msg("%s", linnet_error_message(ctx));
    setlocale(LC_ALL, "C");
    t.out = b;
    if (linnet_train(ctx, NULL, LINNET_F32, &t) != LINNET_OK) fail_msg("%s", linnet_error_message(ctx));
}

static void helpers_have_a_point(void **state)
{
    (void)state;
    char text[40], *end;
    if (!set_comma()) skip();
    assert_int_equal(lnt_format(text, sizeof text, "%.2f %d %s", 2.25, 7, "a"), 8);
    assert_string_equal(text, "2.25 7 a");
    assert_true(lnt_parse_real("2.25x", &end) == 2.25 && *end == 'x');
    assert_true(lnt_parse_real("2,25", &end) == 2 && *end == ',');
    assert_true(lnt_same_word("BFloat16", "bfloat16") && !lnt_same_word("f3", "f32") && !lnt_same_word("f32", "f3"));
    setlocale(LC_ALL, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_comma_changes_nothing), cmocka_unit_test(helpers_have_a_point)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}

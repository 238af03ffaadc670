/* tasks/: which settings a protocol takes, which differences from the paper are named, and what a limit of time leaves out and says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "one_file.h"
#include "one_run.h"
#include "tasks/study.h"

enum { ROWS = 64 };

/* What a run said. */
typedef struct {
    char cuts[1024], *row[ROWS];
    int rows;
    int64_t trainings, steps;
    int last_test; /* times that the mixed setting's seventh test was read */
    bool stop;     /* after the cost */
} said;

static void on_cost(void *user, const linnet_task_cost *cost)
{
    said *s = user;
    snprintf(s->cuts, sizeof s->cuts, "%s", cost->cuts);
    s->trainings = cost->trainings;
    s->steps = cost->steps;
}

static int on_progress(void *user, const linnet_task_progress *p)
{
    said *s = user;
    s->last_test += !strncmp(p->words, "test 7 of 7", 11);
    return s->stop;
}

static void on_result(void *user, const char *json, const char *text)
{
    (void)text;
    said *s = user;
    assert_true(s->rows < ROWS);
    s->row[s->rows++] = strdup(json);
}

static void forget(said *s)
{
    for (int i = 0; i < s->rows; i++) free(s->row[i]);
}

/* "key=value key=value" as words in place; their number. */
static int words_of(char *text, const char **word)
{
    int n = 0;
    for (char *x = strtok(text, " "); x; x = strtok(NULL, " ")) word[n++] = x;
    return n;
}

/* The task on a model of the size that `linnet task` gives it, with `keys` besides. */
static said run_task(const char *task, const char *protocol, const char *set, const char *mixer, const char *keys, double seconds, const char *out,
                     bool stop)
{
    const linnet_task_info *t = linnet_task_find(task);
    const char *const *const size[] = {t->size, !strcmp(protocol, "paper") ? t->paper_size : NULL};
    const char *word[32], *pairs[32];
    char text[256], given[256], key[64];
    linnet_task_options o = LINNET_TASK_OPTIONS_INIT;
    linnet_task_callbacks k = LINNET_TASK_CALLBACKS_INIT;
    linnet_config *config;
    said s = {.stop = stop};
    assert_int_equal(linnet_config_create(ctx, mixer, &config), LINNET_OK);
    for (int l = 0; l < 2; l++)
        for (int i = 0; size[l] && size[l][i]; i++) {
            snprintf(key, sizeof key, "%s", size[l][i]);
            *strchr(key, '=') = 0;
            linnet_config_set(ctx, config, key, size[l][i] + strlen(key) + 1); /* a layer without the key goes without */
        }
    snprintf(text, sizeof text, "%s", keys);
    for (int i = 0, n = words_of(text, word); i < n; i++) {
        char *sign = strchr(word[i], '=');
        *sign = 0;
        assert_int_equal(linnet_config_set(ctx, config, word[i], sign + 1), LINNET_OK);
    }
    snprintf(given, sizeof given, "%s", set);
    o.set = pairs, o.n_set = words_of(given, pairs), o.protocol = protocol, o.max_seconds = seconds, o.out = out, o.config = config;
    k.user = &s, k.cost = on_cost, k.progress = on_progress, k.result = on_result;
    const linnet_status status = linnet_task_run(ctx, task, &o, &k);
    if (status != (stop ? LINNET_EINTERRUPTED : LINNET_OK)) fail_msg("%s %s: %s", task, set, linnet_error_message(ctx));
    linnet_config_destroy(config);
    return s;
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("expected \"%s\" in \"%s\"", part, text);
}

static void lacks(const char *text, const char *part)
{
    if (strstr(text, part)) fail_msg("expected no \"%s\" in \"%s\"", part, text);
}

/* ---- protocols ---------------------------------------------------------------------------------------------------------------- */

static void check_value(const lnt_task *t, const void *values, const char *key, double wanted)
{
    const lnt_option *o = lnt_option_find(&t->options, key);
    assert_non_null(o);
    const double have = lnt_option_get(o, values).real;
    if (have != wanted) fail_msg("%s is %g, expected %g", key, have, wanted);
}

/* Zoology's figure 2, DeltaNet's hardest row, and the mixed setting of Based have each their own. */
static void recalls_paper_goes_by_the_setting(void **state)
{
    (void)state;
    static const char figure[] = "1e-4,4.64e-4,2.15e-3,1e-2", based[] = "1e-3,3.16e-3,1e-2,3.16e-2";
    static const struct {
        const char *set, *rates;
        double place, batch, epochs, examples, tests, random;
    } settings[] = {{"setting=64x4", figure, 1, 512, 64, 100000, 3000, 0},   {"setting=128x8", figure, 2, 512, 64, 100000, 3000, 0},
                    {"setting=256x16", figure, 3, 256, 64, 100000, 3000, 0}, {"setting=512x64", figure, 4, 128, 64, 100000, 3000, 0},
                    {"setting=mixed", based, 5, 256, 32, 180000, 1000, 1},   {"data_seed=12345", figure, 3, 256, 64, 100000, 3000, 0}};
    const lnt_task *t = lnt_task_find("mqar");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        lnt_arena arena = {0};
        void *values;
        const char *const set[] = {settings[i].set, "beta2=0.99"};
        assert_int_equal(lnt_task_values(ctx, t, "paper", set, 2, &arena, &values), LINNET_OK);
        const char *rates = *(const char **)((char *)values + t->texts[0].offset);
        assert_string_equal(rates, settings[i].rates);
        check_value(t, values, "vocabulary", 8192);
        check_value(t, values, "batch", settings[i].batch);
        check_value(t, values, "epochs", settings[i].epochs);
        check_value(t, values, "examples", settings[i].examples);
        check_value(t, values, "test_examples", settings[i].tests);
        check_value(t, values, "random_non_queries", settings[i].random);
        check_value(t, values, "seed", 123);
        check_value(t, values, "beta2", 0.99); /* what is given counts in any case */
        assert_int_equal(lnt_option_get(lnt_option_find(&t->options, "setting"), values).integer, (int64_t)settings[i].place);
        lnt_arena_free(&arena);
        /* none of them is a cut: the width is, and what is given */
        char words[64];
        snprintf(words, sizeof words, "%s batch=8", settings[i].set);
        said s = run_task("mqar", "paper", words, "delta_net", "hidden_size=8", 0, NULL, true);
        snprintf(words, sizeof words, "batch 8 (%g), hidden_size 8 (64)", settings[i].batch);
        assert_string_equal(s.cuts, words);
        forget(&s);
    }
    said s = run_task("mqar", "paper", "setting=own length=16 pairs=2 batch=256", "delta_net", "", 0, NULL, true);
    assert_string_equal(s.cuts, "setting own (256x16), length 16 (64), pairs 2 (8)");
    forget(&s);
    /* what ends a training there is the accuracy of all tests, not of the easiest */
    s = run_task("mqar", "short", "setting=mixed vocabulary=1024 batch=1 steps=2 test_every=1 test_examples=1", "delta_net", "hidden_size=8", 0, NULL,
                 false);
    assert_int_equal(s.last_test, 2);
    forget(&s);
    s = run_task("mqar", "short", "setting=mixed vocabulary=1024 batch=8", "delta_net", "hidden_size=256", 0, NULL, true);
    has(s.cuts, "hidden_size 256 (64)"); /* which has two widths of the four */
    has(s.cuts, "steps 1000 (22500), epochs 0 (32), batch 8 (256), examples 0 (180000)");
    lacks(s.cuts, "setting");
    forget(&s);
}

/* Where the paper names a number of updates or epochs and no accuracy at which it ends, there is none. */
static void papers_trainings_are_whole(void **state)
{
    (void)state;
    static const char *const tasks[] = {"mad", "regbench", "parity", "mod-arith", "mesa-parity"};
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        lnt_arena arena = {0};
        void *values;
        assert_int_equal(lnt_task_values(ctx, lnt_task_find(tasks[i]), "paper", NULL, 0, &arena, &values), LINNET_OK);
        check_value(lnt_task_find(tasks[i]), values, "enough", 2);
        lnt_arena_free(&arena);
    }
}

/* By the keys that the paper's size has and the layer knows. */
static void the_models_cuts_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *task, *mixer, *keys, *named[4], *not_named[3];
    } models[] = {
        {"regbench", "gla", "", {"num_hidden_layers 2 (8)", "hidden_size 128 (256)"}, {"num_heads"}},
        {"mqar", "delta_net", "", {"mlp swiglu (none)", "norm rmsnorm (layernorm)", "use_short_conv true (false)"}, {"hidden_size", "num_hidden"}},
        {"mqar", "attention", "num_heads=4 hidden_size=256", {"num_heads 4 (2)"}, {"use_short_conv", "hidden_size"}}, /* one of four widths */
        {"mqar", "attention", "hidden_size=32", {"hidden_size 32 (64)"}, {"use_short_conv"}},
        {"regbench", "gla", "num_hidden_layers=12 hidden_size=64", {"hidden_size 64 (256)"}, {"num_hidden_layers"}},
        {"mad", "mamba", "hidden_size=64", {"hidden_size 64 (128)"}, {"num_heads", "head_dim"}},
        {"parity", "attention", "num_hidden_layers=1", {"num_hidden_layers 1 (2)"}, {"hidden_size", "num_heads"}},
        {"word-problem", "gated_deltaproduct", "", {"num_heads 8 (12)"}, {"hidden_size", "num_hidden_layers"}},
        {"mesa-parity", "mesa_net", "", {"lambda_lower_bound 0.25 (49"}, {"head_dim"}},
        {"copying", "delta_net", "hidden_size=32", {NULL}, {"hidden_size"}}, /* no size of linnet's is that paper's */
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const char *set = !strcmp(models[i].task, "regbench") ? "automata=8 test_automata=4 batch=1" : "batch=1";
        said s = run_task(models[i].task, "short", set, models[i].mixer, models[i].keys, 0, NULL, true);
        for (int k = 0; k < 4 && models[i].named[k]; k++) has(s.cuts, models[i].named[k]);
        for (int k = 0; k < 3 && models[i].not_named[k]; k++) lacks(s.cuts, models[i].not_named[k]);
        forget(&s);
        s = run_task(models[i].task, "paper", set, models[i].mixer, "", 0, NULL, true);
        for (int k = 0; k < 4 && models[i].named[k]; k++) {
            char key[64];
            snprintf(key, sizeof key, "%.*s ", (int)strcspn(models[i].named[k], " "), models[i].named[k]);
            lacks(s.cuts, key);
        }
        forget(&s);
    }
}

/* What a task does not read, its cuts do not name: of regbench, test_automata alone says how many tests there are. */
static void no_option_stands_for_nothing(void **state)
{
    (void)state;
    static const char *const unread[] = {"test_examples=16", "examples=16"};
    for (int i = 0; i < 2; i++) {
        lnt_arena arena = {0};
        void *values;
        assert_int_equal(lnt_task_values(ctx, lnt_task_find("regbench"), NULL, &unread[i], 1, &arena, &values), LINNET_EINVAL);
        has(linnet_error_message(ctx), "no option");
        lnt_arena_free(&arena);
    }
    said s = run_task("regbench", "short", "automata=8 test_automata=6 steps=1 batch=2", "delta_net", "hidden_size=16", 0, NULL, false);
    has(s.cuts, "test_automata 6 (500)");
    lacks(s.cuts, "examples");
    for (int i = 0; i < 2; i++) has(s.row[i], "\"examples\": 3,"); /* validation and test */
    forget(&s);
}

/* ---- limits of time ------------------------------------------------------------------------------------------------------------- */

/* Run it with a page; the page's text, free(). */
static char *page_of(said *s, const char *task, const char *set, double seconds)
{
    char out[128], path[192];
    snprintf(out, sizeof out, "%s/out", folder);
    *s = run_task(task, "short", set, "delta_net", "hidden_size=16 num_heads=1 num_hidden_layers=1", seconds, out, false);
    snprintf(path, sizeof path, "%s/page.svg", out);
    char *page = get_file(path, NULL);
    remove_folder(out);
    return page;
}

static void fewer_updates_are_said(void **state)
{
    (void)state;
    const struct {
        const char *task, *set;
        double seconds;
        const char *row, *page;
    } runs[] = {{"parity", "steps=4000 batch=2 test_examples=1", 1e-3, "\"steps\": 1, \"steps_wanted\": 4000", "updates 1 of 4000"},
                {"parity", "steps=1 batch=2 test_examples=99", 1e-3, "\"examples\": 1, \"examples_wanted\": 99", "examples of a test 1 of 99"},
                {"word-problem", "steps=4000 batch=2 test_examples=1", 1e-3, "\"steps\": 1, \"steps_wanted\": 4000", "updates 1 of 4000"},
                {"regbench", "steps=4000 batch=2 automata=8 test_automata=2", 1e-3, "\"steps\": 1, \"steps_wanted\": 4000", "updates 1 of 4000"}};
    said s;
    char *page;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        page = page_of(&s, runs[i].task, runs[i].set, runs[i].seconds);
        has(page, "The time allowed was over");
        has(page, runs[i].page);
        has(s.row[0], runs[i].row);
        lacks(page, "not begun");
        free(page);
        forget(&s);
    }
    /* all of them, or as many as the accuracy asked for: nothing was left out */
    static const char *const whole[] = {"steps=3 batch=2 test_examples=4", "steps=4000 batch=64 test_examples=64 test_every=1 enough=0"};
    for (int i = 0; i < 2; i++) {
        page = page_of(&s, "parity", whole[i], 1e6);
        has(page, "Never as in the paper: Training is in float32");
        has(s.row[0], i ? "\"steps_wanted\": 4000" : "\"steps\": 3, \"steps_wanted\": 3");
        lacks(s.row[0], "\"steps\": 4000");
        lacks(page, "time allowed");
        free(page);
        forget(&s);
    }
    page = page_of(&s, "parity", "steps=3 batch=2 test_examples=4", 0);
    lacks(s.row[0], "wanted");
    free(page);
    forget(&s);
}

/* The one row of a table. */
static const char *row_of(const said *s, const char *table)
{
    char begin[64];
    const char *found = NULL;
    snprintf(begin, sizeof begin, "\"row\": \"%s\"", table);
    for (int i = 0; i < s->rows; i++) {
        if (!strstr(s->row[i], begin)) continue;
        if (found) fail_msg("two rows of %s: %s and %s", table, found, s->row[i]);
        found = s->row[i];
    }
    if (!found) fail_msg("no row of %s", table);
    return found;
}

/* Behind the deadline no training begins: the first one alone is made in any case. */
static void no_training_begins_late(void **state)
{
    (void)state;
    said s;
    char *page = page_of(&s, "mqar", "length=16 pairs=2 vocabulary=16 batch=2 test_examples=1 learning_rate=1e-3,2e-3,3e-3", 1e-3);
    assert_int_equal(s.trainings, 3);
    has(row_of(&s, "result"), "\"learning_rate\": 0.001, \"best\": 1, \"steps\": 1, \"steps_wanted\": 1000");
    has(row_of(&s, "left_out"), "\"trainings\": 3, \"begun\": 1}");
    has(page, "2 of 3 trainings not begun");
    free(page);
    forget(&s);
    page = page_of(&s, "mad", "kind=all batch=2 test_examples=1 decays=0,0.1", 1e-3);
    assert_int_equal(s.trainings, 12);
    has(row_of(&s, "result"), "in-context, baseline, decay 0");
    has(row_of(&s, "left_out"), "\"trainings\": 12, \"begun\": 1}");
    /* of the one kind that was begun: no score of all kinds */
    has(row_of(&s, "score"), "\"mad\": \"in-context\", \"settings\": 1, \"settings_wanted\": 1");
    has(page, "11 of 12 trainings not begun");
    free(page);
    forget(&s);
    page = page_of(&s, "mad", "kind=copying settings=all batch=2 test_examples=1", 1e-3);
    has(row_of(&s, "score"), "\"settings\": 1, \"settings_wanted\": 13");
    free(page);
    forget(&s);
}

static int open_all(void **state)
{
    (void)state;
    return open_folder("none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(recalls_paper_goes_by_the_setting), cmocka_unit_test(papers_trainings_are_whole),
                                       cmocka_unit_test(the_models_cuts_are_named), cmocka_unit_test(no_option_stands_for_nothing),
                                       cmocka_unit_test(fewer_updates_are_said), cmocka_unit_test(no_training_begins_late)};
    return cmocka_run_group_tests(tests, open_all, close_folder);
}

/* Measures of texts on values computed by hand, and the tasks that take them: what they ask and count is what the model itself would say. */
#include "reading.h"

#include "tasks/nearness.h"

static double measured(linnet_status (*measure)(lnt_ctx *, const char *, const char *, double *), const char *text, const char *reference)
{
    double x = -1;
    assert_int_equal(measure(c, text, reference, &x), LINNET_OK);
    return x;
}

static void words_of_answers(void **state)
{
    (void)state;
    near("equal but for an article and signs", measured(lnt_word_f1, "The cat!", "a cat"), 1);
    near("two of three, two of four", measured(lnt_word_f1, "red green blue", "green red black white"), 2 * (2. / 3) * (2. / 4) / (2. / 3 + 2. / 4));
    near("a word twice counts as often as both have it", measured(lnt_word_f1, "no no no", "no no yes"), 2. / 3);
    near("nothing common", measured(lnt_word_f1, "x", "y"), 0);
    near("empty", measured(lnt_word_f1, "", "y") + measured(lnt_word_f1, "the", "the"), 0);
    near("an article inside a word stays", measured(lnt_word_f1, "theatre", "atre"), 0);
    near("letters become small, marks of other scripts stay", measured(lnt_word_f1, "\xc3\x89T\xc3\x89 \xe2\x80\x9cx\xe2\x80\x9d",
                                                                      "\xc3\xa9t\xc3\xa9 \xe2\x80\x9cx\xe2\x80\x9d"), 1);
}

static void longest_common_subsequences(void **state)
{
    (void)state;
    near("order counts", measured(lnt_rouge_l, "police kill the gunman", "police killed the gunman"), 0.75); /* 3 of 4 and 4 (Lin 2004) */
    near("one word before another", measured(lnt_rouge_l, "the gunman kill police", "police killed the gunman"), 0.5);
    near("signs part words", measured(lnt_rouge_l, "A-b, C!", "a b c d"), 2 * 3. / 7);
    near("no word", measured(lnt_rouge_l, "...", "a"), 0);
    near("characters", measured(lnt_edit_similarity, "kitten", "sitting"), 0.62); /* ittn: 8 of 13 */
    near("equal", measured(lnt_edit_similarity, "", "") + measured(lnt_edit_similarity, "ab", "ab"), 2);
    near("none", measured(lnt_edit_similarity, "", "ab"), 0);
    near("not bytes", measured(lnt_edit_similarity, "\xc3\xa9", "\xc3\xa8"), 0);
}

static void tokens_of_13a(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"Hello, world!", "  Hello , world !  "}, {"3.14 1,000 x.5 5.x", " 3.14 1,000 x . 5 5 . x "}, {"2-3 a-b", " 2 - 3 a-b "},
        {"&quot;a&amp;b&quot; &lt;c&gt;", "\"a&b\" <c>"},
        {"it's (so) [that]/this", " it's ( so ) [ that ] / this "}, {"a<skipped>b\nc-\nd", " ab cd "},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        lnt_arena arena = {0};
        char *got = lnt_tokens_13a(&arena, pairs[i][0]), *want = lnt_tokens_13a(&arena, pairs[i][1]), joined[2][100] = {"", ""};
        for (int k = 0; k < 2; k++) /* blanks in a row are one */
            for (char *word = strtok(k ? want : got, " "); word; word = strtok(NULL, " ")) strcat(strcat(joined[k], word), " ");
        assert_string_equal(joined[0], joined[1]);
        if (i == 0) assert_string_equal(joined[0], "Hello , world ! ");
        if (i == 5) assert_string_equal(joined[0], "ab cd ");
        lnt_arena_free(&arena);
    }
}

static double bleu(int n, const char *const (*pairs)[2])
{
    lnt_bleu b = {.length = 0};
    for (int i = 0; i < n; i++) assert_int_equal(lnt_bleu_add(c, &b, pairs[i][0], pairs[i][1]), LINNET_OK);
    return lnt_bleu_score(&b);
}

static void bleu_of_a_corpus(void **state)
{
    (void)state;
    static const char *const same[][2] = {{"the cat sat on the mat", "the cat sat on the mat"}};
    static const char *const some[][2] = {{"the cat sat on a mat", "the cat sat on the mat"}};
    static const char *const shorter[][2] = {{"the cat sat on", "the cat sat on the mat"}};
    static const char *const none[][2] = {{"the the the the", "the cat sat"}};
    static const char *const two[][2] = {{"the cat sat on a mat", "the cat sat on the mat"}, {"a b c d", "a b c d"}};
    near("equal", bleu(1, same), 100);
    near("5/6 3/5 2/4 1/3", bleu(1, some), 100 * pow(5. / 6 * 3. / 5 * 2. / 4 * 1. / 3, 0.25));
    near("brevity", bleu(1, shorter), 100 * exp(1 - 6. / 4));
    near("one the of four, then no match: 1/2, 1/4, 1/8 of one", bleu(1, none),
         100 * pow(1. / 4 * (1. / (2 * 3)) * (1. / (4 * 2)) * (1. / (8 * 1)), 0.25));
    near("a corpus adds counts", bleu(2, two), 100 * pow(9. / 10 * 6. / 8 * 4. / 6 * 2. / 4, 0.25));
    near("no word", bleu(1, (const char *const[][2]){{"x", "y"}}), 0);
}

static void windows_say_local_or_global(void **state)
{
    (void)state;
    static const int64_t w[] = {4, 16, 64, 1024};
    assert_true(lnt_is_global(w, (const double[]){24.6, 40.0, 46.1}, 3, 48.9));
    assert_false(lnt_is_global(w, (const double[]){24.6, 24.6, 46.1}, 3, 48.9));     /* does not rise */
    assert_false(lnt_is_global(w, (const double[]){24.6, 40.0, 49.0}, 3, 48.9));     /* a small window is better */
    assert_true(lnt_is_global(w, (const double[]){24.6, 40.0, 46.1, 50.4}, 4, 48.9)); /* a large one may be */
}

/* ---- the tasks -------------------------------------------------------------------------------------------------------------------------------- */

static void answers_behind_examples(void **state)
{
    (void)state;
    bool greedy[2];
    const char *file = written("{\"context\": \"\\nba =\", \"completion\": \" ab\"}\n{\"context\": \"\\ndc =\", \"completion\": \" cd\"}\n");
    nats_of("\nba = ab", 5, &greedy[0]);
    nats_of("\ndc = cd", 5, &greedy[1]);
    rows r = run("few-shot", file, NULL, (const char *const[]){"shots=0,1", "draws=4"}, 2, LINNET_OK);
    assert_int_equal(r.n, 2);
    near("without examples", number(&r, 0, "acc"), (greedy[0] + greedy[1]) / 2.0);
    assert_true(number(&r, 0, "draws") == 1 && number(&r, 1, "draws") == 4);
    nats_of("\ndc = cd\nba = ab", 13, &greedy[0]); /* with one of two, the other one is the example in every draw */
    nats_of("\nba = ab\ndc = cd", 13, &greedy[1]);
    near("behind one", number(&r, 1, "acc"), (greedy[0] + greedy[1]) / 2.0);
    near("no deviation", number(&r, 1, "acc_deviation"), 0);
    drop(&r);
    /* what the model itself goes on with is right */
    char own[3][40] = {"\nq = ", "\nw = ", "\ne = "}, text[400] = "";
    for (int i = 0; i < 3; i++) {
        for (int n = 5, v = 'a'; n < 7; v++) {
            bool fine = false;
            own[i][n] = (char)v;
            nats_of(own[i], (size_t)n, &fine);
            if (fine) n++, v = 'a';
            else if (v == 'z') break;
        }
        if (strlen(own[i]) > 5 && own[i][strlen(own[i]) - 1] == 'z') own[i][strlen(own[i]) - 1] = 0;
        own[i][4] = 0;
        snprintf(text + strlen(text), sizeof text - strlen(text), "{\"context\": \"\\n%s\", \"completion\": \" %s\"}\n", own[i] + 1, own[i] + 5);
    }
    r = run("few-shot", written(text), NULL, (const char *const[]){"shots=0,2", "examples=2"}, 2, LINNET_OK);
    double right = 0;
    for (int i = 0; i < 2; i++) {
        char whole[140];
        bool fine;
        snprintf(whole, sizeof whole, "%s %s", own[i], own[i] + 5);
        nats_of(whole, strlen(own[i]), &fine);
        right += fine;
    }
    near("its own", number(&r, 0, "acc"), right / 2);
    drop(&r);
    run("few-shot", file, NULL, (const char *const[]){"shots=3"}, 1, LINNET_EINVAL);
    run("few-shot", written("{\"context\": \"x\"}\n"), NULL, NULL, 0, LINNET_EFORMAT);
    run("few-shot", written("\n"), NULL, NULL, 0, LINNET_EINVAL);
}

static int take(void *user, int64_t id, const char *piece, size_t n)
{
    (void)id;
    strncat(user, piece, n);
    return 0;
}

/* What the model writes behind a prompt, greedily. */
static void goes_on(const char *prompt, int64_t tokens, char *out)
{
    linnet_generate_options g = LINNET_GENERATE_OPTIONS_INIT;
    linnet_generate_result result = {.size = sizeof result};
    *out = 0;
    g.prompt = prompt;
    g.prompt_bytes = strlen(prompt);
    g.max_tokens = tokens;
    g.temperature = 0;
    g.token = take;
    g.user = out;
    assert_int_equal(linnet_generate(c, m, bytes, &g, &result), LINNET_OK);
}

static void append(char *text, char x)
{
    const size_t n = strlen(text);
    text[n] = x;
    text[n + 1] = 0;
}

static void translations(void **state)
{
    (void)state;
    char said[2][600];
    lnt_bleu b = {.length = 0};
    static const char *const prompts[] = {"Q: What is the English translation of le chat A:", "le chien = the dog\nle chat ="};
    const char *file = written("{\"translation\": {\"fr\": \"le chat\", \"en\": \"the cat sat here\"}}\n"
                               "{\"translation\": {\"fr\": \"le chien\", \"en\": \"the dog\"}}\n");
    static const char *const set[] = {"shots=0,1", "source=fr", "target=en", "examples=1", "tokens=40"};
    rows r = run("translate", file, NULL, set, 5, LINNET_OK);
    assert_int_equal(r.n, 2);
    for (int i = 0; i < 2; i++) {
        goes_on(prompts[i], 40, said[i]);
        said[i][strcspn(said[i], "\n")] = 0;
        b = (lnt_bleu){.length = 0};
        assert_int_equal(lnt_bleu_add(c, &b, said[i], "the cat sat here"), LINNET_OK);
        near("bleu", number(&r, i, "bleu"), lnt_bleu_score(&b));
        near("length_ratio", number(&r, i, "length_ratio"), b.length / 4);
    }
    drop(&r);
    run("translate", file, NULL, set, 1, LINNET_EFORMAT);
    run("translate", written("{\"source\": \"a\", \"target\": \"b\"}\n"), NULL, (const char *const[]){"shots=1"}, 1, LINNET_EINVAL);
}

static void long_answers(void **state)
{
    (void)state;
    char said[2000], text[600], answer[9] = "", *word;
    double expected;
    goes_on("ctx one\n\nQuestion: why\nAnswer:", 128, said);
    for (word = said; *word && strlen(answer) < 4; word++)
        if ((*word >= 'a' && *word <= 'z') || (*word >= '0' && *word <= '9')) append(answer, *word);
    snprintf(text, sizeof text,
             "{\"dataset\": \"qasper\", \"context\": \"ctx one\", \"input\": \"why\", \"answers\": [\"no such words\", \"x %s y\"], "
             "\"all_classes\": null}\n"
             "{\"dataset\": \"lcc\", \"context\": \"int f(\", \"input\": \"\", \"answers\": [\"return 1;\"]}\n", answer);
    double a, b;
    char reference[20];
    snprintf(reference, sizeof reference, "x %s y", answer);
    assert_int_equal(lnt_word_f1(c, said, "no such words", &a), LINNET_OK);
    assert_int_equal(lnt_word_f1(c, said, reference, &b), LINNET_OK);
    expected = 100 * fmax(a, b);
    rows r = run("longbench", written(text), NULL, NULL, 0, LINNET_OK);
    assert_int_equal(r.n, 3);
    near("the better answer", number(&r, 0, "score"), expected);
    near("their mean", number(&r, 2, "score"), (number(&r, 0, "score") + number(&r, 1, "score")) / 2);
    assert_string_equal(json_string_value(json_object_get(r.row[1], "measure")), "edit_similarity");
    goes_on("int f(", 64, said); /* the first line that is neither comment nor fence; of none, nothing */
    const char *code = "";
    for (char *line = strtok(said, "\n"); line && !*code; line = strtok(NULL, "\n"))
        if (!strchr(line, '#') && !strchr(line, '`') && !strstr(line, "//")) code = line;
    assert_int_equal(lnt_edit_similarity(c, code, "return 1;", &a), LINNET_OK);
    near("code", number(&r, 1, "score"), 100 * a);
    drop(&r);
    /* two classes in the first line of the answer, the right one and another: a half; alone: all; the wrong one: nothing */
    char letters[3] = "";
    goes_on("shots\nTokens:", 64, said);
    said[strspn(said, "\n") + strcspn(said + strspn(said, "\n"), "\n")] = 0;
    for (word = said; *word && strlen(letters) < 2; word++)
        if (((*word >= 'a' && *word <= 'z') || (*word >= 'A' && *word <= 'Z')) && !strchr(letters, *word)) append(letters, *word);
    assert_int_equal(strlen(letters), 2);
    static const double scores[] = {50, 100, 0};
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "{\"dataset\": \"trec\", \"context\": \"shots\", \"input\": \"Tokens:\", \"answers\": [\"%c\"], "
                 "\"all_classes\": [\"%c\", \"%c\", \"no such class\"]}\n", i == 2 ? '~' : letters[0], letters[0], i ? '~' : letters[1]);
        r = run("longbench", written(text), NULL, NULL, 0, LINNET_OK);
        near("classes", number(&r, 0, "score"), scores[i]);
        drop(&r);
    }
    /* a prompt that is too long: 5 bytes from each end */
    goes_on("01234swer:", 128, said);
    assert_int_equal(lnt_word_f1(c, said, "no such words", &a), LINNET_OK);
    r = run("longbench",
            written("{\"dataset\": \"qasper\", \"context\": \"0123456789\", \"input\": \"w\", \"answers\": [\"no such words\"]}\n"), NULL,
            (const char *const[]){"length=10"}, 1, LINNET_OK);
    near("from both ends", number(&r, 0, "score"), 100 * a);
    drop(&r);
    run("longbench", written("{\"dataset\": \"other\", \"context\": \"\", \"input\": \"\", \"answers\": [\"\"]}\n"), NULL, NULL, 0, LINNET_EFORMAT);
    assert_non_null(strstr(linnet_error_message(c), "\"other\""));
}

static void windows_and_throughput(void **state)
{
    (void)state;
    char windows[300];
    snprintf(windows, sizeof windows, "windows=4=%s/model,16=%s/model", folder, folder);
    const char *file = written("{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0}\n");
    const char *const set[] = {windows};
    run("local-global", file, NULL, set, 1, LINNET_EINVAL); /* no attention */
    assert_non_null(strstr(linnet_error_message(c), "layer 0 of the model is no softmax attention"));
    static const char *const spans[] = {"4", "16", "null"};
    linnet_model *given = m, *all = NULL;
    for (int i = 0; i < 3; i++) {
        linnet_config *k;
        assert_int_equal(linnet_config_create(c, "attention", &k), LINNET_OK);
        static const char *const keys[][2] = {{"hidden_size", "32"}, {"num_hidden_layers", "2"}, {"num_heads", "2"}, {"vocab_size", "256"}};
        for (size_t j = 0; j < sizeof keys / sizeof *keys; j++) assert_int_equal(linnet_config_set(c, k, keys[j][0], keys[j][1]), LINNET_OK);
        assert_int_equal(linnet_config_set(c, k, "window_size", spans[i]), LINNET_OK);
        linnet_model_destroy(all);
        assert_int_equal(linnet_model_create(c, k, LINNET_F32, 5, &all), LINNET_OK);
        linnet_config_destroy(k);
        char place[128];
        snprintf(place, sizeof place, "%s/window-%s", folder, spans[i]);
        if (i < 2) assert_int_equal(linnet_model_save(c, all, place), LINNET_OK);
    }
    m = all;
    snprintf(windows, sizeof windows, "windows=4=%s/window-4,16=%s/window-16", folder, folder);
    rows r = run("local-global", file, NULL, set, 1, LINNET_OK);
    assert_true(number(&r, 0, "window_4") == number(&r, 0, "full") && number(&r, 0, "window_16") == number(&r, 0, "full"));
    assert_string_equal(json_string_value(json_object_get(r.row[0], "kind")), "local"); /* one short question does not tell them apart */
    drop(&r);
    snprintf(windows, sizeof windows, "windows=4=%s/window-4,8=%s/window-16", folder, folder);
    run("local-global", file, NULL, set, 1, LINNET_EINVAL);
    assert_non_null(strstr(linnet_error_message(c), "over 16 tokens, expected softmax attention over 8 tokens"));
    linnet_model_destroy(all);
    m = given;
    run("local-global", file, NULL, NULL, 0, LINNET_EINVAL);
    r = run("throughput", NULL, NULL, (const char *const[]){"lengths=32,600", "steps=3", "tokens=64"}, 3, LINNET_OK);
    assert_int_equal(r.n, 2);
    for (int i = 0; i < 2; i++)
        assert_true(number(&r, i, "prefill_tokens_per_second") > 0 && number(&r, i, "decode_tokens_per_second") > 0 &&
                    number(&r, i, "train_tokens_per_second") > 0);
    assert_true(number(&r, 0, "state_bytes") > 0 && number(&r, 0, "state_bytes") == number(&r, 1, "state_bytes")); /* a recurrence does not grow */
    drop(&r);
}

int main(void)
{
    linnet_config *k;
    if (!reading_open(&k)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_answers), cmocka_unit_test(longest_common_subsequences), cmocka_unit_test(tokens_of_13a),
        cmocka_unit_test(bleu_of_a_corpus), cmocka_unit_test(windows_say_local_or_global), cmocka_unit_test(answers_behind_examples),
        cmocka_unit_test(translations), cmocka_unit_test(long_answers), cmocka_unit_test(windows_and_throughput)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    static const char *const made[] = {"window-4/config.json", "window-4/model.safetensors", "window-4",
                                       "window-16/config.json", "window-16/model.safetensors", "window-16"};
    return reading_close(k, made, sizeof made / sizeof *made, failed);
}

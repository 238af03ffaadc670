/* Tasks that read with a model: texts, prompts and needles are what the benchmarks say; measures are those made by hand from the model's logits. */
#include "reading.h"

#include "tasks/choice.h"
#include "tasks/niah.h"

/* ---- texts ------------------------------------------------------------------------------------------------------------------ */

static void texts_are_counted(void **state)
{
    (void)state;
    assert_int_equal(lnt_count_words("a b  c"), 3);
    assert_int_equal(lnt_count_words(" a\n\tb "), 4); /* a split has empty pieces at the ends */
    assert_int_equal(lnt_count_words(""), 1);
    assert_int_equal(lnt_count_words("a\xc2\xa0" "b\xe3\x80\x80" "c\xe2\x80\x89" "d\xe2\x82\xac" "e"), 4); /* the euro is no space */
    assert_int_equal(lnt_count_characters("a\xc3\xa9\xe2\x82\xac"), 3);
    assert_true(lnt_text_contains("The ANSWER is 42.", "answer") && lnt_text_contains("x", "") && !lnt_text_contains("answe", "answer"));
    static const char *const pairs[][2] = {
        {"The dogs ' bone , 1 @,@ 000 @.@ 5 and so @-@ called .", "The dogs' bone, 1,000.5 and so-called ."},
        {"He said : \" well ; no ! yes ? \" ( in 1990 ) [ x ] { y }", "He said: \"well; no! yes?\" (in 1990) [x] {y}"},
        {" = = = Title = = = \n The end . \n", " === Title ===\nThe end.\n"},
        {"it 's 5 \xc2\xb0 C , N men", "it's 5\xc2\xb0" "C, 1 men"},
        {"an open ( bracket and a \" quote", "an open ( bracket and a \" quote"},
        {"a ' b ' c", "a 'b' c"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        lnt_arena arena = {0};
        assert_string_equal(lnt_detokenise(&arena, pairs[i][0]), pairs[i][1]);
        lnt_arena_free(&arena);
    }
}

static void lines_are_read_or_named(void **state)
{
    (void)state;
    lnt_lines l;
    json_t *line;
    const char *text;
    assert_int_equal(lnt_lines_open(c, written("{\"a\": \"x\"}\n\n  \n{\"a\": 1}\n[1]\n{\"a\": }\n"), &l), LINNET_OK);
    assert_int_equal(lnt_lines_next(&l, &line), LINNET_OK);
    assert_int_equal(lnt_lines_text(&l, line, "a", &text), LINNET_OK);
    assert_string_equal(text, "x");
    json_decref(line);
    assert_int_equal(lnt_lines_next(&l, &line), LINNET_OK);
    assert_int_equal(lnt_lines_text(&l, line, "a", &text), LINNET_EFORMAT);
    assert_non_null(strstr(linnet_error_message(c), "line 4"));
    json_decref(line);
    assert_int_equal(lnt_lines_next(&l, &line), LINNET_EFORMAT);
    assert_non_null(strstr(linnet_error_message(c), "line 5"));
    assert_int_equal(lnt_lines_next(&l, &line), LINNET_EFORMAT);
    assert_non_null(strstr(linnet_error_message(c), "malformed JSON at line 6, column 7"));
    assert_int_equal(lnt_lines_next(&l, &line), LINNET_OK);
    assert_null(line);
    lnt_lines_close(&l);
    int64_t lines; /* what a run will read, for its cost */
    assert_int_equal(lnt_lines_open(c, written("{\"a\": 1}\n\n  \n{\"a\": 12}\n{\"a\": 1}"), &l), LINNET_OK);
    assert_true(lnt_lines_bytes(&l, 0, &lines) == 8 + 9 + 8 && lines == 3);
    assert_true(lnt_lines_bytes(&l, 2, &lines) == 8 + 9 && lines == 2);
    lnt_lines_close(&l);
}

/* ---- prompts of multiple choice --------------------------------------------------------------------------------------------- */

#define OF_RACE "Article: T.\n\nQuestion: Who?\nAnswer: b\n _  .c\nWhy?"
#define OF_MMLU \
    "The following are multiple choice questions (with answers) about us law.\n\nWhich?\nA. w\nB. x\nC. y\nD. z\nAnswer:"

static void prompts_are_the_harness_s(void **state)
{
    (void)state;
    static const struct {
        int format;
        const char *line, *labels, *context, *last, *choice; /* of the first choice, of the last; the last choice */
        int n, answer;
    } cases[] = {
        {0, "{'prompt': 'P', 'choices': ['a', 'b', 'c'], 'answer': 2}", NULL, "P", "P", "c", 3, 2},
        {1, "{'goal': 'G?', 'sol1': 'x', 'sol2': 'y'}", "1\n0\n", "Question: G?\nAnswer:", "Question: G?\nAnswer:", "y", 2, 1},
        {1, "{'goal': 'G?', 'sol1': 'x', 'sol2': 'y', 'label': 0}", NULL, "Question: G?\nAnswer:", "Question: G?\nAnswer:", "y", 2, 0},
        {2, "{'activity_label': 'Roof', 'ctx_a': 'A man [header] sits [title] and  waits.', 'ctx_b': 'he Is', 'endings': [' e [step] f ', 'g'],"
            "'label': '1'}", NULL, "Roof: A man sits. and waits. He is", "Roof: A man sits. and waits. He is", "g", 2, 1},
        {3, "{'sentence': 'The _ is big.', 'option1': 'cat', 'option2': 'dog', 'answer': '2'}", NULL, "The cat", "The dog", "is big.", 2, 1},
        {4, "{'question': {'stem': 'Why?', 'choices': [{'text': 'a', 'label': 'A'}, {'text': 'b', 'label': 'B'}]}, 'answerKey': 'B'}",
         NULL, "Question: Why?\nAnswer:", "Question: Why?\nAnswer:", "b", 2, 1},
        {5, "{'question': 'Why?', 'choices': {'text': ['a', 'b'], 'label': ['1', '2']}, 'answerKey': '1'}", NULL,
         "Question: Why?\nAnswer:", "Question: Why?\nAnswer:", "b", 2, 0},
        {6, "{'question_stem': 'Sun', 'choices': {'text': ['a', 'b'], 'label': ['A', 'B']}, 'answerKey': 'A'}", NULL, "Sun", "Sun", "b", 2, 0},
        {7, "{'context': 'C.', 'question': 'Q?', 'answerA': 'a', 'answerB': 'b', 'answerC': 'c', 'label': '3'}", NULL, "Q: C. Q?\nA:",
         "Q: C. Q?\nA:", "c", 3, 2},
        {8, "{'passage': 'P.', 'question': 'is it', 'answer': true}", NULL, "P.\nQuestion: is it?\nAnswer:",
         "P.\nQuestion: is it?\nAnswer:", "yes", 2, 1},
        {9, "{'article': 'T.', 'question': 'Who', 'options': ['a', 'b', 'c', 'd'], 'answer': 'C'}", NULL, "Article: T.\n\nWho", "Article: T.\n\nWho",
         "d", 4, 2},
        {9, "{'article': 'T.', 'questions': ['Who?', 'It is  _  .', 'Why?'], 'options': [['a', 'b'], ['c', 'd'], ['e', 'f']],"
            "'answers': ['B', 'A', 'B']}", NULL, OF_RACE, OF_RACE, "f", 2, 1},
        {9, "{'article': 'T.', 'problems': [{'question': 'Who?', 'options': ['a', 'b'], 'answer': 'B'}, {'question': 'It is  _  .', 'options':"
            "['c', 'd'], 'answer': 'A'}, {'question': 'Why?', 'options': ['e', 'f'], 'answer': 'B'}]}", NULL, OF_RACE, OF_RACE, "f", 2, 1},
        {10, "{'input_sentence_1': 'A.', 'input_sentence_2': 'B.', 'input_sentence_3': 'C.', 'input_sentence_4': 'D.', 'sentence_quiz1': 'E.',"
            "'sentence_quiz2': 'F.', 'answer_right_ending': 2}", NULL, "A. B. C. D.", "A. B. C. D.", "F.", 2, 1},
        {11, "{'question': ' Which? ', 'choices': ['w', 'x', 'y', 'z'], 'answer': 3, 'subject': 'us_law'}", NULL, OF_MMLU, OF_MMLU, "D", 4, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lnt_arena arena = {0};
        lnt_question q;
        const lnt_lines l = {.c = c, .path = "here"};
        char json[400];
        snprintf(json, sizeof json, "%s", cases[i].line);
        for (char *p = json; *p; p++)
            if (*p == '\'') *p = '"';
        json_t *line = json_loads(json, 0, NULL);
        lnt_labels labels = {"labels", cases[i].labels};
        assert_non_null(line);
        if (lnt_choice_read(&l, line, cases[i].format, labels.at ? &labels : NULL, &arena, &q) != LINNET_OK)
            fail_msg("case %d: %s", (int)i, linnet_error_message(c));
        assert_int_equal(q.n, cases[i].n);
        assert_int_equal(q.answer, cases[i].answer);
        assert_string_equal(q.context[0], cases[i].context);
        assert_string_equal(q.context[q.n - 1], cases[i].last);
        assert_string_equal(q.choice[q.n - 1], cases[i].choice);
        if (cases[i].format == 2) assert_string_equal(q.choice[0], "e f");
        json_decref(line);
        for (int f = 0; f < 12 && !i; f++) { /* an empty object is none of them */
            line = json_object();
            assert_int_equal(lnt_choice_read(&l, line, f, NULL, &arena, &q), LINNET_EFORMAT);
            json_decref(line);
        }
        lnt_arena_free(&arena);
    }
}

static void bad_questions_are_named(void **state)
{
    (void)state;
    static const struct {
        int format;
        const char *line, *labels, *says;
    } bad[] = {
        {2, "{'activity_label': 'a', 'ctx_a': 'b', 'ctx_b': 'c', 'label': '1'}", NULL, "\"endings\" is missing"},
        {9, "{'article': 'a', 'options': ['a', 'b'], 'answer': 'A'}", NULL, "\"question|questions|problems\" is missing"},
        {1, "{'goal': 'G?', 'sol1': 'x', 'label': 0}", NULL, "\"sol2\" is missing"},
        {1, "{'goal': 'G?', 'sol1': 'x', 'sol2': 'y'}", NULL, "\"label\" is missing"},
        {1, "{'goal': 'G?', 'sol1': 'x', 'sol2': 'y'}", "7\n", "the label of line 3 is answer 7, expected 0 to 1"},
        {1, "{'goal': 'G?', 'sol1': 'x', 'sol2': 'y'}", "\n", "no label for line 3"},
        {1, "{'goal': 'G?', 'sol1': 'x', 'sol2': ''}", "1\n", "empty"},
        {0, "{'prompt': 'P', 'choices': ['a'], 'answer': 0}", NULL, "1 choice, expected at least 2"},
        {0, "{'prompt': 'P', 'choices': ['a', 'b'], 'answer': 7}", NULL, "\"answer\", is 7, none of the 2"},
        {3, "{'sentence': 'no gap', 'option1': 'a', 'option2': 'b', 'answer': 1}", NULL, "form, of sentence"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lnt_arena arena = {0};
        lnt_question q;
        const lnt_lines l = {.c = c, .path = "here", .line = 3};
        char json[200];
        snprintf(json, sizeof json, "%s", bad[i].line);
        for (char *p = json; *p; p++)
            if (*p == '\'') *p = '"';
        json_t *line = json_loads(json, 0, NULL);
        lnt_labels labels = {"labels", bad[i].labels};
        assert_int_equal(lnt_choice_read(&l, line, bad[i].format, labels.at ? &labels : NULL, &arena, &q), LINNET_EFORMAT);
        if (!strstr(linnet_error_message(c), bad[i].says)) fail_msg("%d: %s", (int)i, linnet_error_message(c));
        assert_string_equal(linnet_error_detail(c), strstr(bad[i].says, "label ") ? "Read from labels." : "Read from here.");
        json_decref(line);
        lnt_arena_free(&arena);
    }
}

/* ---- measures --------------------------------------------------------------------------------------------------------------- */

static void lambada_is_the_last_word(void **state)
{
    (void)state;
    static const char *const texts[] = {"the cat sat on the mat", "a \xc3\xa9t\xc3\xa9 b c"};
    double nats = 0;
    int tokens = 0, right = 0;
    for (int i = 0; i < 2; i++) {
        const size_t from = (size_t)(strrchr(texts[i], ' ') - texts[i]);
        bool greedy;
        nats += nats_of(texts[i], from, &greedy);
        tokens += (int)(strlen(texts[i]) - from);
        right += greedy;
    }
    const char *file = written("{\"text\": \"the cat sat on the mat\"}\n{\"text\": \"a \\u00e9t\\u00e9 b c\"}\n{\"text\": \"not read\"}\n");
    rows r = run("lambada", file, NULL, (const char *const[]){"examples=2"}, 1, LINNET_OK);
    near("perplexity", number(&r, 0, "perplexity"), exp(nats / 2));
    near("nats_per_token", number(&r, 0, "nats_per_token"), nats / tokens);
    near("acc", number(&r, 0, "acc"), right / 2.0);
    assert_true(number(&r, 0, "examples") == 2);
    drop(&r);
    for (int i = 0; i < 2; i++) { /* called as the harness calls it */
        static const char *const set[] = {"examples=1", "format=lambada_standard"};
        r = run("lambada", file, NULL, set, 1 + i, LINNET_OK);
        assert_string_equal(json_string_value(json_object_get(r.row[0], "format")), i ? "lambada_standard" : "lambada_openai");
        drop(&r);
    }
    /* a passage that goes on as the model itself would is right */
    char own[64] = "abcab ", line[128];
    for (int n = 6; n < 9; n++) {
        bool greedy = false;
        for (int v = 'a'; v <= 'z' && !greedy; v++) {
            own[n] = (char)v;
            own[n + 1] = 0;
            nats_of(own, (size_t)n, &greedy);
        }
        if (!greedy) {
            own[n] = 0;
            break;
        }
    }
    if (own[6]) {
        bool space;
        nats_of(own, 5, &space); /* of the word, its blank too */
        snprintf(line, sizeof line, "{\"text\": \"%s\"}\n", own);
        r = run("lambada", written(line), NULL, NULL, 0, LINNET_OK);
        assert_true(number(&r, 0, "acc") == space);
        drop(&r);
    }
    drop(&r);
    run("lambada", written("{\"text\": \"word\"}\n"), NULL, NULL, 0, LINNET_EFORMAT);
    run("lambada", written("\n"), NULL, NULL, 0, LINNET_EINVAL);
}

static void choices_are_by_likelihood(void **state)
{
    (void)state;
    static const char *const prompt = "Which of them? ", *const choice[3] = {"one", "another one", "z"};
    double by[3][3];
    int best[3] = {0};
    for (int i = 0; i < 3; i++) {
        char all[64]; /* the prompt's blank counts to the choice */
        snprintf(all, sizeof all, "%s %s", prompt, choice[i]);
        by[0][i] = nats_of(all, strlen(prompt) - 1, NULL);
        by[1][i] = by[0][i] / (double)strlen(choice[i]);
        by[2][i] = by[0][i] / (double)(strlen(choice[i]) + 2);
        for (int k = 0; k < 3; k++)
            if (by[k][i] < by[k][best[k]]) best[k] = i;
    }
    char lines[1024] = "";
    for (int i = 0; i < 3; i++)
        sprintf(lines + strlen(lines), "{\"prompt\": \"%s\", \"choices\": [\"%s\", \"%s\", \"%s\"], \"answer\": %d}\n", prompt, choice[0], choice[1],
                choice[2], i);
    for (int i = 0; i < 3; i++) sprintf(lines + strlen(lines), "{\"prompt\": \"x\", \"choices\": [\"q\", \"q\"], \"answer\": %d}\n", i > 1);
    rows r = run("choice", written(lines), NULL, NULL, 0, LINNET_OK);
    near("acc", number(&r, 0, "acc"), 3 / 6.0); /* one of the three, and a tie goes to the first: two of three */
    near("acc_norm", number(&r, 0, "acc_norm"), 3 / 6.0);
    near("acc_stderr", number(&r, 0, "acc_stderr"), sqrt(0.25 / 5));
    drop(&r);
    static const char exam[] = "{\"id\": \"Mercury_1\", \"question\": \"W\", \"choices\": {\"text\": [\"a\", \"b\"], \"label\": [\"A\", \"B\"]}, "
                               "\"answerKey\": \"A\"}\n";
    static const char *const sets[][2] = {{"format=arc_easy", "arc_easy"}, {"format=arc_challenge", "arc_challenge"}};
    for (int i = 0; i < 2; i++) { /* the same file, called as whoever asks calls it */
        r = run("choice", written(exam), NULL, sets[i], 1, LINNET_OK);
        assert_string_equal(json_string_value(json_object_get(r.row[0], "format")), sets[i][1]);
        drop(&r);
    }
    for (int i = 0; i < 3; i++) { /* which one it is */
        sprintf(lines, "{\"prompt\": \"%s\", \"choices\": [\"%s\", \"%s\", \"%s\"], \"answer\": %d}\n", prompt, choice[0], choice[1], choice[2], i);
        r = run("choice", written(lines), NULL, NULL, 0, LINNET_OK);
        assert_true(number(&r, 0, "acc") == (best[0] == i) && number(&r, 0, "acc_norm") == (best[1] == i));
        assert_true(number(&r, 0, "acc_per_token") == (best[2] == i));
        drop(&r);
    }
    assert_true(best[0] != best[1]); /* or the lengths would say nothing */
    run("choice", written("{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 2}\n"), NULL, NULL, 0, LINNET_EFORMAT);
}

static bool never(void *user, const char *so_far)
{
    (void)user;
    (void)so_far;
    return false;
}

static int take(void *user, int64_t id, const char *piece, size_t n)
{
    (void)id;
    strncat(user, piece, n);
    return 0;
}

/* What linnet_generate writes is what the reader goes on with; the answer counts before the line's end alone. */
static void cloze_looks_for_the_value(void **state)
{
    (void)state;
    lnt_run r = {.c = c, .o = &(linnet_task_options){.model = m, .tokenizer = bytes}};
    lnt_reader k;
    lnt_arena arena = {0};
    linnet_generate_options g = LINNET_GENERATE_OPTIONS_INIT;
    linnet_generate_result result = {.size = sizeof result};
    int32_t *ids;
    int64_t n;
    char *text, line[256];
    assert_int_equal(lnt_reader_open(&r, false, &k), LINNET_OK);
    for (int i = 0; i < 3; i++) {
        static const char *const prompts[] = {"the ", "a much longer prompt: ", "z"};
        assert_int_equal(lnt_reader_ids(&k, prompts[i], strlen(prompts[i]), &arena, &ids, &n), LINNET_OK);
        assert_int_equal(lnt_reader_go_on(&k, ids, n, 12, never, NULL, &arena, &text), LINNET_OK);
        char said[64] = "";
        g.prompt = prompts[i];
        g.prompt_bytes = strlen(prompts[i]);
        g.max_tokens = 12;
        g.temperature = 0;
        g.token = take;
        g.user = said;
        assert_int_equal(linnet_generate(c, m, bytes, &g, &result), LINNET_OK);
        assert_string_equal(text, said);
    }
    lnt_reader_close(&k);
    /* "z" goes on with `text`; its first printable letters are the value of one text, something else that of another */
    char value[3] = "";
    for (const char *p = text; *p && *p != '\n' && strlen(value) < 2; p++)
        if (*p > ' ' && *p < 127 && *p != '"' && *p != '\\') strncat(value, p, 1);
        else break;
    if (strlen(value) == 2) {
        snprintf(line, sizeof line, "{\"text\": \"z\", \"value\": \"%s\"}\n{\"text\": \"z\", \"value\": \"no such answer\"}\n", value);
        rows got = run("cloze", written(line), NULL, (const char *const[]){"tokens=12"}, 1, LINNET_OK);
        near("contains", number(&got, 0, "contains"), 0.5);
        drop(&got);
    }
    lnt_arena_free(&arena);
    run("cloze", written("{\"text\": \"z\"}\n"), NULL, NULL, 0, LINNET_EFORMAT);
}

/* Windows by hand; documents token by token, each once, with the context that rolling windows leave it. */
static void perplexity_is_over_tokens(void **state)
{
    (void)state;
    static const char text[] = " = A = \n One two , three @-@ four . \n = = B = = \n five ( six ) \n = C = \n seven \n";
    const char *file = written(text);
    const int n = (int)strlen(text);
    double nats = 0;
    rows r = run("ppl", file, NULL, (const char *const[]){"lengths=16", "documents=wikitext", "rolling=10"}, 3, LINNET_OK);
    for (int first = 0; first < n - 1; first += 16) {
        char window[32];
        snprintf(window, sizeof window, "%.*s", n - first < 17 ? n - first : 17, text + first);
        nats += nats_of(window, 1, NULL);
    }
    near("nats_per_token", number(&r, 0, "nats_per_token"), nats / (n - 1));
    near("perplexity", number(&r, 0, "perplexity"), exp(nats / (n - 1)));
    near("bits_per_byte", number(&r, 0, "bits_per_byte"), nats / (n - 1) / M_LN2);
    static const char *const pages[] = {" = A =\nOne two, three-four.\n== B ==\nfive (six)\n", " = C =\nseven\n"};
    double all = 0;
    for (int d = 0; d < 2; d++) {
        char page[128]; /* a newline stands for the separator that bytes lack */
        snprintf(page, sizeof page, "\n%s", pages[d]);
        const int count = (int)strlen(page) - 1;
        for (int from = 0; from < count; from += 10) {
            const int end = from + 10 < count ? from + 10 : count, start = end > 10 ? end - 10 : 0;
            char window[32];
            snprintf(window, sizeof window, "%.*s", end + 1 - start, page + start);
            all += nats_of(window, (size_t)(from + 1 - start), NULL);
        }
    }
    int64_t words = 0;
    const char *c_page = strstr(text, " = C");
    char first[128];
    snprintf(first, sizeof first, "%.*s", (int)(c_page - text), text);
    words = lnt_count_words(first) + lnt_count_words(c_page);
    assert_true(number(&r, 1, "documents") == 2 && number(&r, 1, "words") == (double)words && number(&r, 1, "bytes") == n);
    assert_true(number(&r, 1, "tokens") == (double)(strlen(pages[0]) + strlen(pages[1])));
    near("word_perplexity", log(number(&r, 1, "word_perplexity")), all / (double)words);
    near("byte_perplexity", log(number(&r, 1, "byte_perplexity")), all / n);
    near("bits_per_byte", number(&r, 1, "bits_per_byte"), all / n / M_LN2);
    drop(&r);
    snprintf(first, sizeof first, "reference=%s/model", folder);
    r = run("ppl", written(text), NULL, (const char *const[]){"lengths=16", first}, 2, LINNET_OK);
    near("the same model's difference", number(&r, 0, "difference"), 0);
    drop(&r);
    run("ppl", file, NULL, (const char *const[]){"lengths=1.5"}, 1, LINNET_EINVAL);
    const char *const most[] = {"lengths=17"}, *const more[] = {"lengths=18"}, *const cut[] = {"lengths=17", "tokens=16"};
    r = run("ppl", written("A text to be read."), NULL, most, 1, LINNET_OK); /* 18 bytes, 17 of them predicted */
    drop(&r);
    run("ppl", path, NULL, more, 1, LINNET_EINVAL);
    assert_non_null(strstr(linnet_error_message(c), "lengths has 18"));
    run("ppl", path, NULL, cut, 2, LINNET_EINVAL);
    r = run("ppl", path, NULL, NULL, 0, LINNET_OK); /* lengths that nobody asked for: all of the text, once */
    near("a short text's own length", number(&r, 0, "length"), 17);
    assert_int_equal(r.n, 1);
    drop(&r);
    run("ppl", written("x"), NULL, NULL, 0, LINNET_EINVAL);
}

/* ---- needles ---------------------------------------------------------------------------------------------------------------- */

static int times(const char *text, const char *part)
{
    int n = 0;
    while ((text = strstr(text, part)) != NULL) n++, text += strlen(part);
    return n;
}

static void needles_stand_in_their_hay(void **state)
{
    (void)state;
    char *adjectives[] = {"red", "old"}, *nouns[] = {"cat", "dog", "sun"};
    char *words[] = {"One", "two.", "Mr.", "Three", "four?", "Five", "six!\"", "Seven"};
    const lnt_niah_texts t = {adjectives, nouns, 2, 3, words, 8};
    int keys[6] = {0}, depths[101] = {0};
    int64_t places = 0;
    for (int kind = 0; kind < 3; kind++)
        for (uint64_t i = 0; i < 2000; i++) {
            const lnt_needle z = lnt_niah_draw(&t, kind, 42, i);
            int a = 0, b = 0;
            while (strncmp(z.key, adjectives[a], 3) != 0) a++;
            while (strcmp(z.key + 4, nouns[b]) != 0) b++;
            keys[3 * a + b]++;
            if (kind < 2) assert_true(strlen(z.value) == 7 && z.value[0] > '0' && strspn(z.value, "0123456789") == 7);
            else assert_true(strlen(z.value) == 36 && z.value[14] == '4' && strchr("89ab", z.value[19]) && times(z.value, "-") == 4);
            if (kind) depths[z.depth]++;
            else assert_int_equal(z.depth, -1);
        }
    for (int i = 0; i < 6; i++) assert_in_range(keys[i], 850, 1150); /* 1000 each; five standard deviations are 145 */
    int seen = 0;
    for (int d = 0; d <= 100; d++) {
        if (!depths[d]) continue;
        assert_in_range(depths[d], 50, 150); /* 100 each */
        seen++;
    }
    assert_true(seen == 40 && depths[0] && depths[3] && depths[5] && depths[8] && depths[100]);
    for (uint64_t i = 0; i < 200; i++) {
        lnt_arena arena = {0};
        char needle[300];
        const lnt_needle z = lnt_niah_draw(&t, 0, 42, i);
        const char *prompt = lnt_niah_prompt(&t, 0, &z, 10, &arena);
        snprintf(needle, sizeof needle, "\nOne of the special magic numbers for %s is: %s.\nThe grass", z.key, z.value);
        assert_int_equal(times(prompt, needle), 1);
        assert_int_equal(times(prompt, "\nThe grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."), 10);
        assert_int_equal(times(prompt, z.value), 1);
        snprintf(needle, sizeof needle, "number for %s mentioned in the provided text is", z.key);
        assert_string_equal(prompt + strlen(prompt) - strlen(needle), needle);
        assert_memory_equal(prompt, "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz", 97);
        for (const char *p = prompt; (p = strstr(p, "\nThe grass")) && p < strstr(prompt, z.value); p++) places++;
        lnt_arena_free(&arena);
    }
    assert_true(places > 750 && places < 1050); /* before a uniform one of ten: 4.5 of them in front, 900 in all */
    for (int depth = 0; depth <= 100; depth += 25) { /* "One two." "Mr. Three four?" "Five six!\"" "Seven" */
        static const char *const behind[] = {"\n", "two. ", "four? ", "six!\" ", "Seven "};
        lnt_arena arena = {0};
        lnt_needle z = lnt_niah_draw(&t, 2, 42, 0);
        char needle[300];
        z.depth = depth;
        snprintf(needle, sizeof needle, "%sOne of the special magic uuids for %s is: %s.", behind[depth / 25], z.key, z.value);
        assert_int_equal(times(lnt_niah_prompt(&t, 2, &z, 8, &arena), needle), 1);
        lnt_arena_free(&arena);
    }
}

static void niah_fills_its_length(void **state)
{
    (void)state;
    char set[3][160];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i ? "nounlist.txt" : "adjectivelist.txt");
        FILE *f = fopen(path, "w");
        fputs(i ? "cat\n\ndog\n" : "red\nold\n", f);
        fclose(f);
    }
    snprintf(set[0], sizeof set[0], "words=%s", folder);
    const char *const all[] = {set[0], "samples=2", "lengths=700,1400", "tokens=8"};
    rows r = run("niah", NULL, NULL, all, 4, LINNET_OK);
    assert_int_equal(r.n, 2);
    /* bytes: the frame is 360 or so, a repeat 90 */
    assert_true(number(&r, 0, "hay") >= 2 && number(&r, 0, "hay") <= 4 && number(&r, 1, "hay") >= 9 && number(&r, 1, "hay") <= 12);
    assert_true(number(&r, 0, "found") >= 0 && number(&r, 0, "samples") == 2);
    drop(&r);
    run("niah", NULL, NULL, all + 1, 3, LINNET_EINVAL);
    run("niah", NULL, NULL, (const char *const[]){set[0], "lengths=100"}, 2, LINNET_EINVAL);
    run("niah", NULL, NULL, (const char *const[]){set[0], "kind=2"}, 2, LINNET_EINVAL);
}

/* A run whose time is over reads a first piece and says so in its rows. */
static void time_is_up(void **state)
{
    (void)state;
    char words[128];
    snprintf(words, sizeof words, "words=%s", folder);
    const char *const niah[] = {words, "samples=3", "lengths=700,800", "tokens=4"};
    static const char asked[] = "{\"prompt\": \"x\", \"choices\": [\"q\", \"r\"], \"answer\": 1}\n",
                      cloze[] = "{\"text\": \"a\", \"value\": \"b\"}\n";
    char twice[2 * sizeof asked];
    for (int late = 0; late < 2; late++) {
        allowed = late ? 1e-9 : 0;
        snprintf(twice, sizeof twice, "%s%s", asked, asked);
        rows r = run("choice", written(twice), NULL, NULL, 0, LINNET_OK);
        assert_int_equal(number(&r, 0, "examples"), 2 - late);
        drop(&r);
        snprintf(twice, sizeof twice, "%s%s", cloze, cloze);
        r = run("cloze", written(twice), NULL, NULL, 0, LINNET_OK);
        assert_int_equal(number(&r, 0, "examples"), 2 - late);
        drop(&r);
        r = run("niah", NULL, NULL, niah, 4, LINNET_OK);
        assert_true(r.n == 2 - late && number(&r, 0, "samples") == (late ? 1 : 3));
        drop(&r);
        r = run("ppl", written("A text to be read."), NULL, (const char *const[]){"lengths=4,8"}, 1, LINNET_OK);
        assert_int_equal(r.n, 2 - late);
        drop(&r);
        r = run("throughput", NULL, NULL, (const char *const[]){"lengths=8,16", "steps=1", "training=false"}, 3, LINNET_OK);
        assert_int_equal(r.n, 2 - late);
        drop(&r);
    }
    allowed = 0;
}

int main(void)
{
    linnet_config *k;
    if (!reading_open(&k)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_counted), cmocka_unit_test(lines_are_read_or_named), cmocka_unit_test(prompts_are_the_harness_s),
        cmocka_unit_test(bad_questions_are_named),
        cmocka_unit_test(lambada_is_the_last_word), cmocka_unit_test(choices_are_by_likelihood), cmocka_unit_test(cloze_looks_for_the_value),
        cmocka_unit_test(perplexity_is_over_tokens), cmocka_unit_test(needles_stand_in_their_hay), cmocka_unit_test(niah_fills_its_length),
        cmocka_unit_test(time_is_up)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return reading_close(k, (const char *const[]){"adjectivelist.txt", "nounlist.txt"}, 2, failed);
}

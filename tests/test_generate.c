/* What ends a text and what a token is drawn from: stop strings, the repetition penalty, min-p, log-probabilities. */
#include "model_recipes.h"

#include "generate/sample.h"
#include "generate/stop.h"
#include "session_of.h"

static linnet_tokenizer *bytes;
static linnet_model *m;

/* ---- strings that end a text -------------------------------------------------------------------------------------------------------- */

/* The text put in pieces of every size up to its own: what comes out, and whether a string was found, do not depend on the size. */
static void ends(const char *text, const char *const *stop, int n, const char *wanted, bool is_found)
{
    const size_t length = strlen(text);
    for (size_t piece = 1; piece <= length; piece++) {
        lnt_stopper s = {.stop = stop, .n = n};
        char out[100];
        size_t used = 0, bytes_out = 0;
        bool found = false;
        for (size_t at = 0; at < length && !found; at += piece) {
            const char *now;
            OK(lnt_stopper_put(c, &s, text + at, at + piece < length ? piece : length - at, &now, &bytes_out, &found));
            memcpy(out + used, now, bytes_out), used += bytes_out;
        }
        if (!found) {
            const char *rest = lnt_stopper_rest(&s, &bytes_out);
            memcpy(out + used, rest, bytes_out), used += bytes_out;
        }
        out[used] = 0;
        if (strcmp(out, wanted) || found != is_found) fail_msg("pieces of %d bytes: \"%s\", wanted \"%s\"", (int)piece, out, wanted);
        lnt_stopper_close(&s);
    }
}

static void strings_end_a_text(void **state)
{
    (void)state;
    static const char *const stop[] = {"abac", "xy"};
    ends("one abababac two", stop, 2, "one abab", true); /* begun again within itself */
    ends("one abab", stop, 2, "one abab", false);        /* begun and not ended */
    ends("axyabac", stop, 2, "a", true);                 /* the first in the text, not in the list */
    ends("xy", stop, 2, "", true);
    ends("x", stop, 2, "x", false);
    static const char *const nested[] = {"bc", "abcd"};
    ends("zabcd", nested, 2, "za", true); /* "bc" is whole first */
}

typedef struct {
    char text[400];
    size_t used;
} sink;

static int keep(void *user, int64_t id, const char *piece, size_t n)
{
    sink *k = user;
    (void)id;
    memcpy(k->text + k->used, piece, n), k->used += n;
    return 0;
}

static void generation_ends_there(void **state)
{
    (void)state;
    sink whole = {.used = 0}, cut = {.used = 0};
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    linnet_generate_result r = {.size = sizeof r};
    o.prompt = "abc", o.prompt_bytes = 3, o.max_tokens = 100, o.token = keep, o.user = &whole;
    OK(linnet_generate(c, m, bytes, &o, &r));
    assert_int_equal(r.ended, LINNET_ENDED_LENGTH);
    assert_int_equal(whole.used, 100);
    char three[4] = {0};
    memcpy(three, whole.text + 50, 3);
    assert_true(strlen(three) == 3);
    const char *stop[] = {"never in here", three};
    o.stop = stop, o.n_stop = 2, o.user = &cut;
    OK(linnet_generate(c, m, bytes, &o, &r));
    assert_int_equal(r.ended, LINNET_ENDED_STOP);
    assert_true(cut.used <= 50 && !memcmp(cut.text, whole.text, cut.used) && !memcmp(whole.text + cut.used, three, 3));
    assert_int_equal(r.tokens, cut.used + 3);
    cut.used = 0, o.draft = m;
    const size_t before = (size_t)r.tokens;
    OK(linnet_generate(c, m, bytes, &o, &r)); /* a draft changes nothing */
    assert_true(r.ended == LINNET_ENDED_STOP && (size_t)r.tokens == before && cut.used + 3 == before);
    stop[1] = "";
    assert_int_equal(linnet_generate(c, m, bytes, &o, &r), LINNET_EINVAL);
}

/* ---- what is drawn ------------------------------------------------------------------------------------------------------------------- */

static void draws_follow_the_law(void **state)
{
    (void)state;
    enum { V = 5, DRAWS = 20000 };
    static const float logits[V] = {1.0f, 0.0f, 2.0f, -1.0f, 0.5f};
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    lnt_sampler *s;
    int count[V] = {0};
    o.min_p = 0.2; /* e^-1 and e^-1.5 of the largest stay, e^-2 and e^-3 do not */
    OK(lnt_sampler_create(c, V, &o, &s));
    for (int i = 0; i < DRAWS; i++) count[lnt_sampler_draw(s, logits)]++;
    lnt_sampler_destroy(s);
    const double sum = 1 + exp(-1) + exp(-1.5), p[V] = {exp(-1) / sum, 0, 1 / sum, 0, exp(-1.5) / sum};
    for (int i = 0; i < V; i++) assert_true(fabs(count[i] - DRAWS * p[i]) <= 4 * sqrt(DRAWS * p[i] * (1 - p[i]))); /* 0: never */

    o = (linnet_generate_options)LINNET_GENERATE_OPTIONS_INIT;
    o.temperature = 0, o.repetition_penalty = 3;
    OK(lnt_sampler_create(c, V, &o, &s));
    const int32_t seen = 4;
    lnt_sampler_saw(s, &seen, 1); /* 0.5 / 3 is above 0 still */
    static const int32_t order[] = {2, 0, 2, 2}; /* 2; 2/3 is below 1: 0; 1/3 is below 2/3 */
    for (int i = 0; i < 4; i++) assert_int_equal(lnt_sampler_draw(s, logits), order[i]);
    static const float negative[V] = {-1, -2, -9, -1.5f, -9};
    assert_int_equal(lnt_sampler_draw(s, negative), 3); /* -1 * 3 is below -1.5 */
    lnt_sampler_destroy(s);
}

typedef struct {
    int n;
    double wrong;
    int32_t ids[60];
} scores;

static float row_of[256];

/* Against the logits of the whole text in one pass. */
static int check_score(void *user, const linnet_scored_token *t)
{
    scores *k = user;
    int64_t ids[64];
    memcpy(ids, (int64_t[]){'a', 'b', 'c'}, 3 * sizeof *ids);
    for (int i = 0; i < k->n; i++) ids[3 + i] = k->ids[i];
    float *all = malloc((size_t)(3 + k->n) * 256 * sizeof *all);
    linnet_context *other = context_of(1);
    linnet_model *copy;
    linnet_config *config = config_of(other, &recipes[0]);
    OK(linnet_config_set(other, config, "vocab_size", "256"));
    OK(linnet_model_create(other, config, LINNET_F32, 5, &copy));
    assert_int_equal(linnet_model_logits(other, copy, ids, 1, 3 + k->n, all), LINNET_OK);
    memcpy(row_of, all + (size_t)(2 + k->n) * 256, sizeof row_of);
    linnet_model_destroy(copy);
    linnet_config_destroy(config);
    linnet_context_destroy(other);
    free(all);
    double sum = 0;
    for (int i = 0; i < 256; i++) sum += exp(row_of[i]);
    k->wrong = fmax(k->wrong, fabs(t->logprob - (row_of[t->id] - log(sum))));
    assert_int_equal(t->n_top, 3);
    for (int i = 0; i < 3; i++) {
        k->wrong = fmax(k->wrong, fabs(t->top_logprob[i] - (row_of[t->top[i]] - log(sum))));
        int above = 0; /* ids that the pass gives clearly more */
        for (int j = 0; j < 256; j++) above += row_of[j] > row_of[t->top[i]] + 1e-4;
        assert_true(above <= i && (i == 0 || t->top_logprob[i] <= t->top_logprob[i - 1]));
    }
    k->ids[k->n++] = (int32_t)t->id;
    return 0;
}

static void scores_are_the_models(void **state)
{
    (void)state;
    scores k = {.n = 0};
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    linnet_generate_result r = {.size = sizeof r};
    o.prompt = "abc", o.prompt_bytes = 3, o.max_tokens = 20, o.scored = check_score, o.alternatives = 3, o.user = &k;
    o.temperature = 0.5, o.top_k = 40, o.repetition_penalty = 1.2; /* change what is drawn, not what is told */
    OK(linnet_generate(c, m, bytes, &o, &r));
    assert_int_equal(k.n, 20);
    if (!(k.wrong < 1e-4)) fail_msg("log-probabilities are %g off", k.wrong);
    o.draft = m;
    assert_int_equal(linnet_generate(c, m, bytes, &o, &r), LINNET_EINVAL);
    o.draft = NULL, o.alternatives = 257;
    assert_int_equal(linnet_generate(c, m, bytes, &o, &r), LINNET_EINVAL);
}

/* The penalty's memory is the text: a draft's guesses, right or wrong, leave nothing in it. */
static void penalties_with_a_draft(void **state)
{
    (void)state;
    for (int greedy = 0; greedy < 2; greedy++) {
        sink plain = {.used = 0}, guessed = {.used = 0};
        linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
        linnet_generate_result r = {.size = sizeof r};
        o.prompt = "abc", o.prompt_bytes = 3, o.max_tokens = 60, o.token = keep, o.user = &plain, o.repetition_penalty = 1.5, o.min_p = 0.05;
        o.temperature = greedy ? 0 : 1;
        OK(linnet_generate(c, m, bytes, &o, &r));
        o.user = &guessed, o.draft = m;
        OK(linnet_generate(c, m, bytes, &o, &r));
        assert_int_equal(plain.used, guessed.used);
        assert_memory_equal(plain.text, guessed.text, plain.used);
        o.repetition_penalty = 1, o.draft = NULL, guessed.used = 0;
        OK(linnet_generate(c, m, bytes, &o, &r));
        assert_memory_not_equal(plain.text, guessed.text, plain.used);
    }
}

static int open_all(void **state)
{
    (void)state;
    c = context_of(1);
    linnet_config *k = config_of(c, &recipes[0]);
    OK(linnet_config_set(c, k, "vocab_size", "256"));
    OK(linnet_model_create(c, k, LINNET_F32, 5, &m));
    linnet_config_destroy(k);
    return linnet_tokenizer_open(c, "bytes", &bytes);
}

static int close_all(void **state)
{
    (void)state;
    linnet_tokenizer_destroy(bytes);
    linnet_model_destroy(m);
    linnet_context_destroy(c);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_end_a_text),   cmocka_unit_test(generation_ends_there),  cmocka_unit_test(draws_follow_the_law),
        cmocka_unit_test(scores_are_the_models), cmocka_unit_test(penalties_with_a_draft),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

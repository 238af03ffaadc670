/* Text with a draft is the text without it, for drafts that guess well and badly, greedy and drawn, of every mixer and hybrid. */
#include "model_recipes.h"

#include "session_of.h"

enum { MOST = 48 };
static const char prompt[] = "the quick brown fox jumps over";

static linnet_tokenizer *bytes;

typedef struct {
    int n, until; /* until: the callback ends the text there */
    int64_t id[MOST];
} written;

static int note(void *user, int64_t id, const char *piece, size_t n)
{
    written *w = user;
    (void)piece, (void)n;
    w->id[w->n++] = id;
    return w->n == w->until;
}

static linnet_model *of_bytes(const recipe *r, uint64_t seed)
{
    linnet_config *k = config_of(c, r);
    linnet_model *m;
    OK(linnet_config_set(c, k, "vocab_size", "256"));
    OK(linnet_model_create(c, k, LINNET_F32, seed, &m));
    linnet_config_destroy(k);
    return m;
}

static written write_text(linnet_model *m, linnet_model *draft, int way, int tokens, int guesses, int until, linnet_generate_result *r)
{
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    written w = {.until = until};
    *r = (linnet_generate_result){.size = sizeof *r};
    o.prompt = prompt, o.prompt_bytes = sizeof prompt - 1, o.max_tokens = tokens, o.token = note, o.user = &w;
    o.temperature = way ? 0.7 : 0, o.top_k = way == 2 ? 20 : 0, o.top_p = way == 2 ? 0.9 : 1;
    o.draft = draft;
    if (draft) o.draft_tokens = guesses;
    OK(linnet_generate(c, m, bytes, &o, r));
    return w;
}

/* Greedy, drawn, drawn from few: the way is the sampler's and knows no mixer, so that each length has one of them, another with the next `turn`. */
static void same_text(const char *name, linnet_model *m, linnet_model *draft, bool agrees, int turn)
{
    static const int tokens[] = {1, 2, 7, MOST}, guesses[] = {1, 4, 11};
    int64_t right = 0;
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
        const int way = (turn + (int)t) % 3;
        linnet_generate_result a, b;
        const written plain = write_text(m, NULL, way, tokens[t], 0, 0, &a);
        assert_int_equal(plain.n, tokens[t]);
        for (size_t g = 0; g < sizeof guesses / sizeof *guesses; g++) {
            const written guessed = write_text(m, draft, way, tokens[t], guesses[g], 0, &b);
            if (guessed.n != plain.n || memcmp(guessed.id, plain.id, (size_t)plain.n * sizeof *plain.id))
                fail_msg("%s: another text, way %d, %d tokens, %d guesses", name, way, tokens[t], guesses[g]);
            assert_true(b.tokens == a.tokens && b.prompt_tokens == a.prompt_tokens && b.guessed_right <= b.guessed);
            assert_true(b.guessed > 0 || tokens[t] == 1);
            if (agrees) assert_int_equal(b.guessed_right, b.guessed);
            right += b.guessed_right;
        }
    }
    assert_true(right > 0 || !agrees);
}

static void text_with_a_draft(void **state)
{
    (void)state;
    static const recipe other = {"another", "retnet", {{"num_heads", "2"}, {"hidden_size", "16"}}};
    linnet_model *stranger = of_bytes(&other, 3);
    for (int i = 0; i < RECIPES; i++) {
        linnet_model *m = of_bytes(&recipes[i], 5);
        same_text(recipes[i].name, m, m, true, i); /* it guesses what it says itself */
        same_text(recipes[i].name, m, stranger, false, i + 1);
        linnet_model_destroy(m);
    }
    linnet_model_destroy(stranger);
}

static void what_is_refused(void **state)
{
    (void)state;
    linnet_model *m = of_bytes(&recipes[0], 5), *small = model_of(c, &recipes[1], LINNET_F32), *foreign;
    linnet_context *mine = c;
    linnet_generate_result r = {.size = sizeof r};
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    o.max_tokens = 4;
    o.draft = small; /* of 61 ids */
    assert_int_equal(linnet_generate(c, m, bytes, &o, &r), LINNET_EINVAL);
    assert_non_null(strstr(linnet_error_message(c), "61 ids"));
    o.draft = m, o.check_finite = 1;
    assert_int_equal(linnet_generate(c, m, bytes, &o, &r), LINNET_EINVAL);
    o.check_finite = 0, o.draft_tokens = 0;
    assert_int_equal(linnet_generate(c, m, bytes, &o, &r), LINNET_EINVAL);
    o.draft_tokens = 65;
    assert_int_equal(linnet_generate(c, m, bytes, &o, &r), LINNET_EINVAL);
    c = context_of(1);
    foreign = of_bytes(&recipes[0], 5);
    o.draft = foreign, o.draft_tokens = 4;
    assert_int_equal(linnet_generate(mine, m, bytes, &o, &r), LINNET_EINVAL);
    linnet_model_destroy(foreign);
    linnet_context_destroy(c);
    c = mine;

    const written whole = write_text(m, NULL, 1, MOST, 0, 0, &r), cut = write_text(m, m, 1, MOST, 4, 7, &r); /* the callback stops it */
    assert_int_equal(cut.n, 7);
    assert_memory_equal(whole.id, cut.id, 7 * sizeof *cut.id);
    linnet_model_destroy(m);
    linnet_model_destroy(small);
}

static int open_all(void **state)
{
    (void)state;
    c = context_of(1);
    return linnet_tokenizer_open(c, "bytes", &bytes);
}

static int close_all(void **state)
{
    (void)state;
    linnet_tokenizer_destroy(bytes);
    linnet_context_destroy(c);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_with_a_draft), cmocka_unit_test(what_is_refused)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}

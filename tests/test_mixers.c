/* What linnet writes, linnet reads: every mixer and every block, norm and MLP on the lists, alone and beside others, is created, trained a step,
 * saved, loaded, evaluated and resumed. No name stands here. LINNET_TEST_PAIRS in the environment: every ordered pair of mixers
 * too (./run faults). The list has one mixer more than the library's, tests/example_mixer.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "hub/archs.h"
#include "model/model.h"

enum { TOKENS = 48, VOCAB = 256 };

static linnet_context *c;
static char folder[64], text_file[96];
static int n_layers = 3;

#define OK(what, call)                                                                                                             \
    do {                                                                                                                           \
        if ((call) != LINNET_OK) fail_msg("%s: %s: %s (%s)", what, #call, linnet_error_message(c), linnet_error_detail(c));        \
    } while (0)

/* The configuration of width 32 whose layers take the pattern's mixers by turns. */
static linnet_config *config_of(const char *type, const char *pattern, const char *set[2])
{
    static const char *const common[][2] = {{"hidden_size", "32"}, {"vocab_size", "256"},
                                            {"bos_token_id", "null"}, {"eos_token_id", "null"}}; /* as training on bytes has it */
    char layers[16];
    linnet_config *k;
    OK(pattern, linnet_config_create(c, type, &k));
    snprintf(layers, sizeof layers, "%d", n_layers);
    OK(pattern, linnet_config_set(c, k, "num_hidden_layers", layers));
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) OK(pattern, linnet_config_set(c, k, common[i][0], common[i][1]));
    OK(pattern, linnet_config_pattern(c, k, pattern));
    lnt_config_put_int(k, "intermediate_size", 40); /* whoever has them */
    lnt_config_put_int(k, "num_heads", 2);
    lnt_config_put_int(k, "head_dim", 16);
    if (set) OK(pattern, linnet_config_set(c, k, set[0], set[1]));
    return k;
}

static void logits_of(linnet_model *m, float *logits)
{
    int64_t ids[TOKENS];
    lnt_rng r = lnt_rng_make(3, 0);
    for (int i = 0; i < TOKENS; i++) ids[i] = (int64_t)lnt_rng_below(&r, VOCAB);
    OK("logits", linnet_model_logits(c, m, ids, 1, TOKENS, logits));
}

typedef struct {
    int64_t id[40];
    int n;
} token_list;

static int keep_token(void *user, int64_t id, const char *piece, size_t n)
{
    token_list *l = user;
    (void)piece, (void)n;
    assert_true(l->n < 40);
    l->id[l->n++] = id;
    return 0;
}

/* A text goes on for 40 tokens, the likeliest each, twice alike. */
static void write_text(const char *what, linnet_model *m, const linnet_tokenizer *t)
{
    linnet_generate_options o = LINNET_GENERATE_OPTIONS_INIT;
    linnet_generate_result r = {.size = sizeof r};
    token_list text[2] = {{.n = 0}, {.n = 0}};
    o.prompt = "line 7 of a text to learn\nline 8 of a te", o.prompt_bytes = 40;
    o.max_tokens = 40, o.temperature = 0, o.stop_at_separator = 0, o.token = keep_token;
    for (int i = 0; i < 2; i++) {
        o.user = &text[i];
        OK(what, linnet_generate(c, m, t, &o, &r));
        assert_int_equal(text[i].n, 40);
    }
    assert_memory_equal(&text[0], &text[1], sizeof text[0]);
}

static int stop_after_one(void *user, const linnet_train_progress *p)
{
    (void)user;
    return p->step == 1;
}

/* A step, its folder, what eval says of it, and a second step that the folder goes on with. */
static void live(const char *what, linnet_config *k)
{
    static float before[TOKENS * VOCAB], after[TOKENS * VOCAB];
    char *said = strdup(linnet_config_json(k));
    const char *const texts[] = {text_file};
    linnet_train_options o = LINNET_TRAIN_OPTIONS_INIT;
    linnet_model *m, *again;
    linnet_config *read;
    linnet_eval_result result = {.size = sizeof result};
    linnet_tokenizer *t;
    o.texts = texts, o.n_texts = 1, o.out = folder;
    o.batch = 1, o.length = 32, o.steps = 2, o.warmup = 0, o.eval_tokens = 64, o.save_every = 1;
    o.progress = stop_after_one;
    if (linnet_train(c, k, LINNET_F32, &o) != LINNET_EINTERRUPTED) fail_msg("%s: %s", what, linnet_error_message(c));
    OK(what, linnet_config_load(c, folder, &read));
    if (strcmp(said, linnet_config_json(read))) fail_msg("%s: wrote\n%sread\n%s", what, said, linnet_config_json(read));
    OK(what, linnet_model_load(c, folder, LINNET_F32, &m));
    logits_of(m, before);
    linnet_eval_options e = LINNET_EVAL_OPTIONS_INIT;
    e.texts = texts, e.n_texts = 1, e.length = 32, e.max_tokens = 64;
    OK(what, linnet_tokenizer_open(c, "bytes", &t));
    OK(what, linnet_eval(c, m, t, &e, &result));
    if (!(result.nats_per_token > 3 && result.nats_per_token < 9)) fail_msg("%s: loss %g", what, result.nats_per_token);
    write_text(what, m, t);
    OK(what, linnet_model_save(c, m, folder));
    OK(what, linnet_model_load(c, folder, LINNET_F32, &again));
    logits_of(again, after);
    assert_memory_equal(before, after, sizeof before);
    o.resume = 1, o.progress = NULL;
    OK(what, linnet_train(c, NULL, LINNET_F32, &o));
    linnet_model_destroy(again);
    OK(what, linnet_model_load(c, folder, LINNET_F32, &again));
    logits_of(again, after);
    assert_memory_not_equal(before, after, sizeof before);
    linnet_model_destroy(again);
    linnet_model_destroy(m);
    linnet_tokenizer_destroy(t);
    linnet_config_destroy(read);
    free(said);
    char cmd[96];
    snprintf(cmd, sizeof cmd, "rm -r %s/*", folder);
    assert_int_equal(system(cmd), 0);
}

static const char *name_at(int i)
{
    int n = 0;
    while (lnt_mixer_at(n)) n++;
    return lnt_mixer_at(i % n)->kind.about.name;
}

static void mixers_alone_and_beside_others(void **state)
{
    (void)state;
    for (int i = 0; lnt_mixer_at(i); i++) {
        char pattern[160];
        for (int beside = 0; beside < 3; beside++) { /* alone, before its neighbours on the list, between two others */
            if (beside == 0) snprintf(pattern, sizeof pattern, "%s", name_at(i));
            if (beside == 1) snprintf(pattern, sizeof pattern, "%s,%s,%s", name_at(i), name_at(i + 1), name_at(i + 2));
            if (beside == 2) snprintf(pattern, sizeof pattern, "%s,%s,%s", name_at(i + 5), name_at(i), name_at(i + 3));
            linnet_config *k = config_of(name_at(i + 5 * (beside == 2)), pattern, NULL);
            live(pattern, k);
            linnet_config_destroy(k);
        }
    }
}

/* The hybrids of the papers, by their patterns. */
static void hybrids_of_the_papers(void **state)
{
    (void)state;
    static const struct {
        const char *name, *type, *pattern;
        int layers;
        const char *set[2];
    } hybrids[] = {
        {"Samba", "mamba", "mamba,attention:8", 4, {NULL}},
        {"Griffin", "rglru", "2*rglru,attention:8", 6, {NULL}},
        {"Hawk and Mesa", "rglru", "rglru,mesa_net", 4, {NULL}},
        {"Hawk and Mesa in the MesaNet paper's backbone", "equal_backbone", "hawk,mesa", 4, {NULL}},
        {"Jamba", "mamba", "4*mamba,attention,3*mamba", 8, {NULL}},
        {"MiniMax-01, 7:1", "lightning_attn", "7*lightning_attn,attention", 8, {NULL}},
        {"Gated DeltaNet-H1", "gated_deltanet", "gated_deltanet,attention:8", 4, {NULL}},
        {"Gated DeltaNet-H2", "mamba2", "mamba2,gated_deltanet,attention:8", 6, {NULL}},
        {"DeltaNet and a window", "delta_net", "delta_net,attention:8", 4, {NULL}},
        {"DeltaNet and two global layers", "delta_net", "delta_net,attention,2*delta_net,attention,3*delta_net", 8, {NULL}},
        {"xLSTM[7:1]", "mlstm", "7*mlstm,slstm", 8, {NULL}},
        {"Atlas, read as Mesa over a window", "mesa_net", "mesa_net:8", 2, {NULL}},
        {"windows of Mesa and of attention", "mesa_net", "mesa_net:8,mesa_net,attention:8", 3, {NULL}},
        {"the same in the MesaNet paper's backbone", "equal_backbone", "mesa:8,mesa,attention:8", 3, {NULL}},
        {"Mesa with gammas of both signs", "mesa_net", "mesa_net", 2, {"allow_neg_gamma", "true"}},
    };
    for (size_t i = 0; i < sizeof hybrids / sizeof *hybrids; i++) {
        n_layers = hybrids[i].layers;
        linnet_config *k = config_of(hybrids[i].type, hybrids[i].pattern, NULL);
        if (hybrids[i].set[0]) {
            OK(hybrids[i].name, linnet_config_set(c, k, hybrids[i].set[0], hybrids[i].set[1]));
            OK(hybrids[i].name, linnet_config_set(c, k, "lambda_lower_bound", "49"));
        }
        live(hybrids[i].name, k);
        linnet_config_destroy(k);
    }
    n_layers = 3;
}

static void blocks_norms_mlps(void **state)
{
    (void)state;
    for (int f = LNT_BLOCKS; f < LNT_FAMILIES; f++)
        for (int i = 0; lnt_kind_at((lnt_family)f, i); i++) {
            const char *set[2] = {lnt_family_name((lnt_family)f), lnt_kind_at((lnt_family)f, i)->about.name};
            linnet_config *k = config_of(name_at(i), name_at(i), set);
            live(set[1], k);
            linnet_config_destroy(k);
        }
}

/* Every ordered pair: its configuration is read as written and its model trains; with LINNET_TEST_PAIRS it lives a whole life. */
static void pairs(void **state)
{
    (void)state;
    for (int i = 0; lnt_mixer_at(i); i++)
        for (int j = 0; lnt_mixer_at(j); j++) {
            char pattern[112], path[112];
            linnet_config *again;
            linnet_model *m;
            snprintf(pattern, sizeof pattern, "%s,%s", name_at(i), name_at(j));
            linnet_config *k = config_of(name_at(i), pattern, NULL);
            if (getenv("LINNET_TEST_PAIRS")) live(pattern, k);
            snprintf(path, sizeof path, "%s/config.json", folder);
            FILE *out = fopen(path, "w");
            assert_non_null(out);
            fputs(linnet_config_json(k), out);
            fclose(out);
            OK(pattern, linnet_config_load(c, path, &again));
            assert_string_equal(linnet_config_json(k), linnet_config_json(again));
            OK(pattern, lnt_model_build(c, again, LINNET_F32, LINNET_F32, &m));
            assert_int_equal(remove(path), 0);
            linnet_model_destroy(m);
            linnet_config_destroy(again);
            linnet_config_destroy(k);
        }
}

/* Every key of every kind: its default and its ends go into a configuration and come back; what is past the ends is refused by name. */
static void keys_come_back(void **state)
{
    (void)state;
    for (int i = 0; lnt_mixer_at(i); i++) {
        const lnt_options *t = &lnt_mixer_at(i)->kind.options;
        linnet_config *k;
        OK(name_at(i), linnet_config_create(c, name_at(i), &k));
        for (int j = 0; j < t->n; j++) {
            const lnt_option *o = &t->row[j];
            char given[64], have[64];
            assert_true(o->help && *o->help);
            int many = o->kind == LNT_OPTION_WORD ? 0 : 2;
            while (o->kind == LNT_OPTION_WORD && *lnt_word_at(o->words, many, given, sizeof given)) many++;
            for (int v = 0; v < many; v++) {
                if (o->kind == LNT_OPTION_WORD) lnt_word_at(o->words, v, given, sizeof given);
                else if (o->kind == LNT_OPTION_SWITCH) snprintf(given, sizeof given, "%s", v ? "true" : "false");
                else snprintf(given, sizeof given, "%.17g", v ? o->hi : o->lo);
                OK(o->key, linnet_config_set(c, k, o->key, given));
                OK(o->key, linnet_config_get(c, k, o->key, have, sizeof have));
                if (o->kind == LNT_OPTION_INT || o->kind == LNT_OPTION_REAL)
                    assert_true(!strcmp(have, "null") ? o->nullable && atof(given) == o->null : atof(have) == atof(given));
                else assert_non_null(strstr(have, given));
            }
            if (o->nullable) OK(o->key, linnet_config_set(c, k, o->key, "null"));
            else assert_int_equal(linnet_config_set(c, k, o->key, "null"), LINNET_EINVAL);
            if (o->kind == LNT_OPTION_SWITCH) continue;
            snprintf(given, sizeof given, "%.17g", o->hi * 2 + 1);
            assert_int_equal(linnet_config_set(c, k, o->key, o->kind == LNT_OPTION_WORD ? "nonsense" : given), LINNET_EINVAL);
            assert_non_null(strstr(linnet_error_message(c), o->key));
        }
        linnet_config_destroy(k);
    }
}

/* A number of at most 64 is built at its ends: a layer takes what its keys say that it takes. */
static void small_numbers_are_built(void **state)
{
    (void)state;
    for (int i = 0; lnt_mixer_at(i); i++) {
        const lnt_options *t = &lnt_mixer_at(i)->kind.options;
        for (int j = 0; j < t->n; j++)
            for (int end = 0; end < 2 && t->row[j].kind == LNT_OPTION_INT && t->row[j].hi <= 64; end++) {
                char number[32], what[96];
                snprintf(number, sizeof number, "%g", end ? t->row[j].hi : t->row[j].lo);
                snprintf(what, sizeof what, "%s with %s = %s", name_at(i), t->row[j].key, number);
                linnet_config *k = config_of(name_at(i), name_at(i), (const char *[2]){t->row[j].key, number});
                linnet_model *m;
                OK(what, linnet_model_create(c, k, LINNET_F32, 1, &m));
                linnet_model_destroy(m);
                linnet_config_destroy(k);
            }
    }
}

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/linnet-mixers-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(text_file, sizeof text_file, "%s.txt", folder);
    FILE *f = fopen(text_file, "w");
    assert_non_null(f);
    for (int i = 0; i < 200; i++) fprintf(f, "line %d of a text to learn\n", i * 7919 % 200);
    fclose(f);
    return linnet_context_create(NULL, &c);
}

static int teardown(void **state)
{
    (void)state;
    linnet_context_destroy(c);
    return remove(folder) | remove(text_file);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixers_alone_and_beside_others),
        cmocka_unit_test(hybrids_of_the_papers),
        cmocka_unit_test(blocks_norms_mlps),
        cmocka_unit_test(pairs),
        cmocka_unit_test(keys_come_back),
        cmocka_unit_test(small_numbers_are_built),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* Models that are loaded with matrices in 8 bits: a number of 8 bits is the nearest of 255 between the largest of its row and its negative; what such
 * a model computes is what one of float32 with those numbers does, with few rows and with many; it is refused where it is not offered. */
#include "model_recipes.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "linnet/train.h"

enum { LENGTH = 12, FEW = 5 };

static linnet_context *c;
static char folder[] = "/tmp/linnet-kept-XXXXXX";

static void well(linnet_status s, const char *what)
{
    if (s != LINNET_OK) fail_msg("%s: %s", what, linnet_error_message(c));
}

static const recipe *recipe_of(const char *type)
{
    for (int i = 0; i < RECIPES; i++)
        if (!strcmp(recipes[i].type, type)) return &recipes[i];
    fail_msg("no recipe of %s", type);
    return NULL;
}

/* Every matrix that is kept in 8 bits, against what it was; rounded[] into the float32 model. Returns how many there are. */
static int round_like(const char *name, linnet_model *whole, const linnet_model *small)
{
    int matrices = 0;
    for (int64_t i = 0; i < linnet_parameter_count(small); i++) {
        linnet_parameter_info q = {.size = sizeof q};
        well(linnet_parameter_at(c, small, i, &q), name);
        const int64_t row = q.shape[q.rank - 1];
        float *was = malloc((size_t)q.elements * 4), *is = malloc((size_t)q.elements * 4);
        assert_true(was && is);
        well(linnet_parameter_read(c, whole, q.name, 0, q.elements, was), q.name);
        well(linnet_parameter_read(c, small, q.name, 0, q.elements, is), q.name);
        for (int64_t r = 0; r < q.elements / row; r++) {
            float most = 0;
            for (int64_t j = 0; j < row; j++) most = fmaxf(most, fabsf(was[r * row + j]));
            for (int64_t j = 0; j < row; j++) {
                const double off = fabs((double)is[r * row + j] - was[r * row + j]);
                if (off > (q.kept == LINNET_I8 ? most / 127.0 * 0.50001 : 0))
                    fail_msg("%s %s[%d]: %g became %g", name, q.name, (int)j, was[r * row + j], is[r * row + j]);
            }
        }
        matrices += q.kept == LINNET_I8;
        well(linnet_parameter_write(c, whole, q.name, 0, q.elements, is), q.name);
        free(was);
        free(is);
    }
    return matrices;
}

/* Few rows are multiplied with the integers as they are, many with what they stand for: both against the float32 model of the same numbers. */
static void as_the_numbers_say(void **state)
{
    (void)state;
    const linnet_dtype types[] = {LINNET_F32, LINNET_BF16};
    for (int i = 0; i < RECIPES; i++)
        for (int t = 0; t < 2; t++) {
            linnet_model *m = model_of(c, &recipes[i], LINNET_F32), *small, *whole;
            int64_t ids[TOKENS];
            int32_t drawn[TOKENS];
            static float a[TOKENS * VOCAB], b[TOKENS * VOCAB];
            well(linnet_model_save(c, m, folder), recipes[i].name);
            linnet_model_destroy(m);
            well(linnet_model_load_kept(c, folder, types[t], LINNET_I8, &small), recipes[i].name);
            well(linnet_model_load(c, folder, LINNET_F32, &whole), recipes[i].name);
            assert_true(round_like(recipes[i].name, whole, small) > 0);
            draw_ids(drawn, TOKENS);
            for (int j = 0; j < TOKENS; j++) ids[j] = drawn[j];
            for (int tokens = types[t] == LINNET_F32 ? FEW : TOKENS; tokens <= TOKENS; tokens += TOKENS - FEW) {
                well(linnet_model_logits(c, small, ids, 1, tokens, a), recipes[i].name);
                well(linnet_model_logits(c, whole, ids, 1, tokens, b), recipes[i].name);
                const double e = relative_rms(a, b, (int64_t)tokens * VOCAB), most = types[t] == LINNET_F32 ? 2e-5 : 4e-2;
                if (!(e < most))
                    fail_msg("%s %s, %d tokens: %.1e from float32 with the same numbers", recipes[i].name, linnet_dtype_name(types[t]), tokens, e);
            }
            linnet_model_destroy(small);
            linnet_model_destroy(whole);
        }
}

/* A row that is zero, and one with the least and largest numbers. */
static void rows_of_their_own(void **state)
{
    (void)state;
    const recipe *r = recipe_of("gated_deltanet");
    linnet_model *small;
    linnet_config *k = config_of(c, r);
    linnet_parameter_info q = {.size = sizeof q};
    well(linnet_model_create_kept(c, k, LINNET_F32, LINNET_I8, 3, &small), r->name);
    well(linnet_parameter_find(c, small, "lm_head.weight", &q), r->name);
    assert_int_equal(q.kept, LINNET_I8);
    const int64_t row = q.shape[1];
    float values[2 * 64], back[2 * 64];
    assert_true(row <= 64);
    for (int64_t i = 0; i < 2 * row; i++) values[i] = i < row ? 0 : i == row ? -3e38f : 1e30f * (float)(i - row);
    well(linnet_parameter_write(c, small, q.name, row, 2 * row, values), q.name);
    well(linnet_parameter_read(c, small, q.name, row, 2 * row, back), q.name);
    for (int64_t i = 0; i < 2 * row; i++) assert_true(isfinite(back[i]) && fabs((double)back[i] - values[i]) <= (i < row ? 0 : 3e38 / 127 * 0.50001));
    assert_int_equal(linnet_parameter_write(c, small, q.name, 1, row, values), LINNET_EINVAL);
    assert_non_null(strstr(linnet_error_message(c), "expected whole rows"));
    linnet_model_destroy(small);
    assert_int_equal(linnet_model_create_kept(c, k, LINNET_F32, LINNET_F16, 3, &small), LINNET_EINVAL);
    assert_non_null(strstr(linnet_error_message(c), "weights is f16, expected float32, bf16 or int8"));
    assert_int_equal(linnet_model_create_kept(c, k, LINNET_F32, LINNET_BF16, 3, &small), LINNET_EINVAL);
    linnet_config_destroy(k);
}

/* Saved, it has the numbers that it computes with; it is shared; it is not trained. */
static void saved_shared_not_trained(void **state)
{
    (void)state;
    const recipe *r = recipe_of("gated_deltanet");
    linnet_config *k = config_of(c, r);
    linnet_model *small, *shared, *again;
    linnet_context *other;
    const int64_t ids[LENGTH] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
    static float a[LENGTH * VOCAB], b[LENGTH * VOCAB];
    well(linnet_model_create_kept(c, k, LINNET_F32, LINNET_I8, 3, &small), r->name);
    well(linnet_model_logits(c, small, ids, 1, LENGTH, a), r->name);
    assert_int_equal(linnet_context_create(NULL, &other), LINNET_OK);
    assert_int_equal(linnet_model_share(other, small, &shared), LINNET_OK);
    assert_int_equal(linnet_model_logits(other, shared, ids, 1, LENGTH, b), LINNET_OK);
    assert_memory_equal(a, b, sizeof a);
    linnet_model_destroy(shared);
    linnet_context_destroy(other);
    well(linnet_model_save(c, small, folder), r->name);
    well(linnet_model_load(c, folder, LINNET_F32, &again), r->name);
    well(linnet_model_logits(c, again, ids, 1, LENGTH, b), r->name);
    assert_true(relative_rms(a, b, LENGTH * VOCAB) < 2e-5);
    linnet_model_destroy(again);
    linnet_trainer *t;
    linnet_trainer_options o = LINNET_TRAINER_OPTIONS_INIT;
    assert_int_not_equal(linnet_trainer_create(c, small, &o, &t), LINNET_OK);
    assert_non_null(strstr(linnet_error_message(c), "weights kept as int8 are not trained"));
    linnet_model_destroy(small);
    linnet_config_destroy(k);
}

static int begin(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    return linnet_context_create(NULL, &c);
}

static int end(void **state)
{
    char cmd[64];
    (void)state;
    linnet_context_destroy(c);
    snprintf(cmd, sizeof cmd, "rm -r %s", folder);
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_numbers_say), cmocka_unit_test(rows_of_their_own),
                                       cmocka_unit_test(saved_shared_not_trained)};
    return cmocka_run_group_tests(tests, begin, end);
}

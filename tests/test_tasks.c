/* tasks/: the examples of associative recall are what they claim to be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "tasks/mqar.h"

enum { VOCAB = 40, LENGTH = 64, PAIRS = 6 };

/* Every query is a key shown before, its target the value that followed the key last, every pair is asked for once, and queries stand at even places
 * of the tail. */
static void recall_examples_are_right(void **state)
{
    (void)state;
    for (int64_t rounds = 1; rounds <= 3; rounds++) {
        lnt_mqar q = {.vocabulary = VOCAB, .length = LENGTH, .pairs = PAIRS, .rounds = rounds, .random_non_queries = true};
        assert_int_equal(lnt_mqar_check(NULL, &q), LINNET_OK);
        int64_t early = 0, late = 0;
        for (uint64_t index = 0; index < 500; index++) {
            int32_t ids[LENGTH], targets[LENGTH], again[LENGTH], latest[VOCAB];
            double scratch[LENGTH + VOCAB];
            int asked[VOCAB] = {0}, questions = 0;
            lnt_mqar_example(&q, 3, index, ids, targets, scratch);
            lnt_mqar_example(&q, 3, index, again, targets, scratch);
            assert_memory_equal(ids, again, sizeof ids);
            memset(latest, -1, sizeof latest);
            for (int64_t i = 0; i < PAIRS * rounds; i++) {
                assert_in_range(ids[2 * i], 1, VOCAB / 2 - 1);
                assert_in_range(ids[2 * i + 1], VOCAB / 2, VOCAB - 1);
                assert_int_equal(targets[2 * i], -1);
                latest[ids[2 * i]] = ids[2 * i + 1];
            }
            for (int64_t i = 2 * PAIRS * rounds; i < LENGTH; i++) {
                assert_in_range(ids[i], 0, VOCAB - 1);
                if (targets[i] < 0) continue;
                assert_int_equal((i - 2 * PAIRS * rounds) % 2, 0);
                assert_int_equal(targets[i], latest[ids[i]]);
                assert_int_equal(asked[ids[i]]++, 0);
                questions++;
                *(i < (LENGTH + 2 * PAIRS * rounds) / 2 ? &early : &late) += 1;
            }
            assert_int_equal(questions, PAIRS);
        }
        assert_true(early > late); /* the power law asks soon */
    }
}

static void recall_refuses_what_does_not_fit(void **state)
{
    (void)state;
    const lnt_mqar bad[] = {
        {.vocabulary = 40, .length = 64, .pairs = 17, .rounds = 1}, {.vocabulary = 40, .length = 64, .pairs = 11, .rounds = 2},
        {.vocabulary = 12, .length = 64, .pairs = 6, .rounds = 1},  {.vocabulary = 40, .length = 63, .pairs = 6, .rounds = 1},
        {.vocabulary = 40, .length = 64, .pairs = 0, .rounds = 1},  {.vocabulary = 40, .length = 64, .pairs = 6, .rounds = 0},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_int_equal(lnt_mqar_check(NULL, &bad[i]), LINNET_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(recall_examples_are_right), cmocka_unit_test(recall_refuses_what_does_not_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

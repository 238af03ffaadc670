/* tasks/: examples are what their papers say, one law after the other; what every task has comes from the list. Long: a law for each of nine. */
#include "source_of.h"

#include <stdio.h>

static linnet_context *c;

/* ---- every task ------------------------------------------------------------------------------------------------------------- */

static void every_task_describes_itself(void **state)
{
    (void)state;
    const lnt_task *t;
    for (int i = 0; (t = lnt_task_at(i)) != NULL; i++) {
        const linnet_task_info *a = &t->info;
        lnt_arena arena = {0};
        void *values;
        assert_ptr_equal(lnt_task_find(a->name), t);
        assert_ptr_equal(linnet_task_at(i), a);
        assert_true(*a->summary && *a->about && *a->paper && !strncmp(a->example, "linnet task ", 12) && strstr(a->example, a->name));
        for (const char *end = a->about; (end = strchr(end, '\n')) != NULL; end++) assert_int_equal(end[-1], '.'); /* paragraphs are sentences */
        assert_true((a->kind == LINNET_TASK_TRAINS) == (a->size != NULL) && (a->kind == LINNET_TASK_TRAINS) == (t->source != NULL));
        assert_true(!a->never || a->never[strlen(a->never) - 1] == '.');
        assert_true(*a->files ? a->most_files != 0 : a->most_files == 0);
        for (int p = 0; p < 2; p++) assert_int_equal(lnt_task_values(c, t, p ? "paper" : "short", NULL, 0, &arena, &values), LINNET_OK);
        linnet_task_option o = {.size = sizeof o}, other = {.size = sizeof other};
        int n = 0;
        for (; linnet_task_option_at(a->name, n, &o) == LINNET_OK; n++) {
            char pair[200];
            const char *set[] = {pair};
            assert_true(*o.help && strlen(o.key) > 1);
            for (int j = 0; j < n; j++) {
                assert_int_equal(linnet_task_option_at(a->name, j, &other), LINNET_OK);
                assert_string_not_equal(other.key, o.key);
            }
            for (int p = 0; p < 2; p++) { /* what it says of its defaults it takes back */
                snprintf(pair, sizeof pair, "%s=%s", o.key, p ? o.paper_value : o.short_value);
                assert_int_equal(lnt_task_values(c, t, NULL, set, 1, &arena, &values), LINNET_OK);
            }
            snprintf(pair, sizeof pair, "%s=~", o.key);
            assert_int_equal(lnt_task_values(c, t, NULL, set, 1, &arena, &values), o.kind == LINNET_OPTION_TEXT ? LINNET_OK : LINNET_EINVAL);
            snprintf(pair, sizeof pair, "%s=%g", o.key, o.most * 2 + 1);
            if (o.kind != LINNET_OPTION_INTEGER && o.kind != LINNET_OPTION_NUMBER) continue;
            assert_int_equal(lnt_task_values(c, t, NULL, set, 1, &arena, &values), LINNET_EINVAL);
            assert_string_equal(linnet_error_option(c), o.key); /* by itself and at the head of the message */
            assert_memory_equal(linnet_error_message(c), o.key, strlen(o.key));
        }
        assert_true(n > 0);
        assert_int_equal(lnt_task_values(c, t, NULL, (const char *const[]){"no_such_key=1"}, 1, &arena, &values), LINNET_EINVAL);
        assert_string_equal(linnet_error_option(c), "");
        assert_int_equal(lnt_task_values(c, t, "long", NULL, 0, &arena, &values), LINNET_EINVAL);
        lnt_arena_free(&arena);
    }
}

static void every_source_gives_examples(void **state)
{
    (void)state;
    const lnt_task *t;
    for (int i = 0; (t = lnt_task_at(i)) != NULL; i++) {
        if (!t->source) continue;
        opened o = source_of(c, t->info.name, ""), again = source_of(c, t->info.name, "");
        for (int set = 0; set < o.s.n_sets; set++)
            for (uint64_t index = 0; index < 50; index++) {
                const int64_t n = take(&o, set, index);
                int asked = 0;
                assert_true(n >= 1 && n <= o.s.set[set].longest);
                for (int64_t p = 0; p < n; p++) {
                    assert_true(o.ids[p] >= 0 && o.ids[p] < o.s.vocabulary && o.targets[p] >= -1 && o.targets[p] < o.s.vocabulary);
                    asked += o.targets[p] >= 0;
                }
                assert_true(asked > 0);
                assert_int_equal(take(&again, set, index), n); /* the same from the same, */
                assert_memory_equal(o.ids, again.ids, (size_t)n * 4);
                assert_memory_equal(o.targets, again.targets, (size_t)n * 4);
                if (n < 16) continue;
                assert_true(take(&again, set, index + 1) != n || memcmp(o.ids, again.ids, (size_t)n * 4) != 0); /* another from another */
                if (set) assert_true(take(&again, 0, index) < n || memcmp(o.ids, again.ids, (size_t)n * 4) != 0); /* tests are not learnt from */
            }
        close_source(&o);
        close_source(&again);
    }
}

/* ---- recall ----------------------------------------------------------------------------------------------------------------- */

/* Every query is a key shown before, its target the value that followed the key last, every pair is asked for once, and queries stand at even places
 * of the tail. */
static void recall_examples_are_right(void **state)
{
    (void)state;
    enum { VOCAB = 40, LENGTH = 64, PAIRS = 6 };
    for (int64_t rounds = 1; rounds <= 3; rounds++) {
        char set[80];
        snprintf(set, sizeof set, "vocabulary=40 length=64 pairs=6 rounds=%d", (int)rounds);
        opened o = source_of(c, "mqar", set);
        for (uint64_t index = 0; index < 300; index++) {
            int32_t latest[VOCAB];
            int asked[VOCAB] = {0}, questions = 0;
            assert_int_equal(take(&o, 1, index), LENGTH);
            memset(latest, -1, sizeof latest);
            for (int64_t i = 0; i < PAIRS * rounds; i++) {
                assert_in_range(o.ids[2 * i], 1, VOCAB / 2 - 1);
                assert_in_range(o.ids[2 * i + 1], VOCAB / 2, VOCAB - 1);
                assert_int_equal(o.targets[2 * i], -1);
                latest[o.ids[2 * i]] = o.ids[2 * i + 1];
            }
            for (int64_t i = 2 * PAIRS * rounds; i < LENGTH; i++) {
                if (o.targets[i] < 0) continue;
                assert_int_equal((i - 2 * PAIRS * rounds) % 2, 0);
                assert_int_equal(o.targets[i], latest[o.ids[i]]);
                assert_int_equal(asked[o.ids[i]]++, 0);
                questions++;
            }
            assert_int_equal(questions, PAIRS);
        }
        close_source(&o);
    }
}

/* With one pair: its slot by the power law, its key and value evenly, what is neither by the switch. */
static void recall_draws_by_its_law(void **state)
{
    (void)state;
    enum { SLOTS = 14, N = 12000 };
    int64_t slot[SLOTS] = {0}, key[15] = {0}, value[16] = {0};
    double law[SLOTS], sum = 0;
    opened o = source_of(c, "mqar", "vocabulary=32 length=30 pairs=1 random_non_queries=false");
    for (uint64_t index = 0; index < N; index++) {
        int64_t at = 2;
        take(&o, 0, index);
        while (o.targets[at] < 0) assert_int_equal(o.ids[at++], 0);
        slot[(at - 2) / 2]++;
        key[o.ids[0] - 1]++;
        value[o.ids[1] - 16]++;
    }
    for (int j = 0; j < SLOTS; j++) sum += law[j] = pow(j + 1, 0.01 - 1);
    for (int j = 0; j < SLOTS; j++) law[j] /= sum;
    follows("mqar's slots", slot, law, SLOTS);
    follows("mqar's keys", key, NULL, 15);
    follows("mqar's values", value, NULL, 16);
    close_source(&o);
}

static void recall_has_zoologys_settings(void **state)
{
    (void)state;
    static const int64_t zoology[][3] = {{64, 4, 1}, {128, 8, 2}, {256, 16, 3}, {512, 64, 4}}, tests[] = {64, 64, 64, 128, 256, 512, 1024},
                         pairs[] = {4, 8, 16, 32, 64, 128, 256};
    static const char *const words[] = {"64x4", "128x8", "256x16", "512x64"};
    for (int i = 0; i < 4; i++) {
        char set[80];
        snprintf(set, sizeof set, "vocabulary=8192 setting=%s", words[i]);
        opened o = source_of(c, "mqar", set);
        int asked = 0;
        assert_int_equal(take(&o, 1, 0), zoology[i][0]);
        for (int64_t p = 0; p < zoology[i][0]; p++) asked += o.targets[p] >= 0;
        assert_int_equal(asked, zoology[i][1]);
        close_source(&o);
    }
    opened o = source_of(c, "mqar", "vocabulary=8192 setting=mixed");
    int64_t learnt[3] = {0}; /* of 64, 128 and 256 tokens */
    assert_int_equal(o.s.n_sets, 8);
    for (int i = 0; i < 7; i++) {
        int asked = 0;
        assert_int_equal(take(&o, i + 1, 5), tests[i]);
        for (int64_t p = 0; p < tests[i]; p++) asked += o.targets[p] >= 0;
        assert_int_equal(asked, pairs[i]);
    }
    for (uint64_t i = 0; i < 180; i++) learnt[take(&o, 0, i) / 128]++;
    assert_true(learnt[0] == 100 && learnt[1] == 20 && learnt[2] == 60);
    close_source(&o);
    const char *const bad[] = {"pairs=17", "length=63", "pairs=11 rounds=2", "vocabulary=12 pairs=6"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lnt_arena arena = {0};
        lnt_source s = {.name = "mqar"};
        const char *set[3];
        char text[64];
        void *values;
        int n = 0;
        snprintf(text, sizeof text, "%s", bad[i]);
        for (char *w = strtok(text, " "); w; w = strtok(NULL, " ")) set[n++] = w;
        assert_int_equal(lnt_task_values(c, lnt_task_find("mqar"), NULL, set, n, &arena, &values), LINNET_OK);
        assert_int_equal(lnt_task_find("mqar")->source(c, values, &arena, &s), LINNET_EINVAL);
        lnt_arena_free(&arena);
    }
}

/* ---- parity, copying -------------------------------------------------------------------------------------------------------- */

static void parities_are_right(void **state)
{
    (void)state;
    int64_t length[38] = {0}, far[217] = {0}, bit[2] = {0}, answers[2] = {0};
    opened o = source_of(c, "parity", "");
    for (uint64_t index = 0; index < 8000; index++) {
        const int64_t n = take(&o, 0, index);
        int sum = 0;
        for (int64_t i = 0; i < n; i++) {
            assert_in_range(o.ids[i], 1, 2);
            sum += o.ids[i] - 1;
            bit[o.ids[i] - 1]++;
            assert_int_equal(o.targets[i], i + 1 < n ? -1 : 1 + sum % 2);
        }
        length[n + 1 - 3]++;
        answers[sum % 2]++;
        far[take(&o, 1, index) + 1 - 40]++;
    }
    follows("parity's lengths", length, NULL, 38);
    follows("parity's lengths of tests", far, NULL, 217);
    follows("parity's bits", bit, NULL, 2);
    follows("parity's answers", answers, NULL, 2);
    close_source(&o);
    o = source_of(c, "mesa-parity", "length=30 test_length=50");
    int64_t pair[4] = {0}, so_far[2] = {0}; /* bits beside one another, and the last answers */
    for (uint64_t index = 0; index < 2000; index++)
        for (int set = 0; set < 2; set++) {
            const int64_t n = take(&o, set, index);
            int sum = 0;
            assert_int_equal(n, set ? 50 : 30);
            for (int64_t i = 0; i < n; i++) {
                assert_in_range(o.ids[i], 0, 1);
                assert_int_equal(o.targets[i], (sum += o.ids[i]) % 2);
                if (i % 2) pair[2 * o.ids[i - 1] + o.ids[i]]++;
            }
            so_far[sum % 2]++;
        }
    follows("mesa-parity's bits, two by two", pair, NULL, 4);
    follows("mesa-parity's answers", so_far, NULL, 2);
    close_source(&o);
    o = source_of(c, "copying", "vocabulary=7 length=12 test_length=20");
    int64_t copied[12] = {0}, letter[7] = {0};
    for (uint64_t index = 0; index < 4000; index++) {
        const int64_t n = take(&o, 0, index) / 2;
        for (int64_t i = 0; i < n; i++) {
            letter[o.ids[i]]++;
            assert_true(o.targets[i] == -1 && o.targets[n + i] == o.ids[i] && o.ids[n + i] == (i ? o.ids[i - 1] : 7));
        }
        copied[n - 1]++;
        assert_int_equal(take(&o, 1, index), 40);
    }
    follows("copying's lengths", copied, NULL, 12);
    follows("copying's letters", letter, NULL, 7);
    close_source(&o);
}

/* ---- arithmetic modulo 5 ---------------------------------------------------------------------------------------------------- */

/* By a second rule: find the last sum or difference, else the last product, and take both sides. */
static int value_plain(const int32_t *ids, int64_t n)
{
    for (int64_t i = n - 2; i > 0; i -= 2)
        if (ids[i] != 3) {
            const int a = value_plain(ids, i), b = value_plain(ids + i + 1, n - i - 1);
            return (ids[i] == 1 ? a + b : a - b + 5) % 5;
        }
    return n == 1 ? ids[0] - 5 : value_plain(ids, n - 2) * (ids[n - 1] - 5) % 5;
}

/* A parser of the grammar: expression = digit | - digit | ( expression ) | ( expression op expression ). */
static int value_nested(const int32_t **at)
{
    const int32_t x = *(*at)++;
    if (x < 5) return x;
    if (x == 6) return (5 - *(*at)++) % 5;
    assert_int_equal(x, 8);
    int a = value_nested(at);
    const int32_t op = *(*at)++;
    if (op == 9) return a;
    assert_in_range(op, 5, 7);
    const int b = value_nested(at);
    assert_int_equal(*(*at)++, 9);
    return (op == 5 ? a + b : op == 6 ? a - b + 5 : a * b) % 5;
}

static void arithmetic_is_right(void **state)
{
    (void)state;
    int64_t length[19] = {0}, digit[5] = {0}, op[3] = {0}, nested_length[36] = {0}, nested_op[3] = {0}, left[9] = {0};
    opened o = source_of(c, "mod-arith", "");
    for (uint64_t index = 0; index < 6000; index++) {
        const int64_t n = take(&o, 0, index); /* without the value: 2 to 38 */
        assert_true(n % 2 == 0 && o.ids[n - 1] == 4);
        assert_int_equal(o.targets[n - 1], 5 + value_plain(o.ids, n - 1));
        for (int64_t i = 0; i < n - 1; i++) {
            assert_int_equal(o.targets[i], -1);
            if (i % 2) op[o.ids[i] - 1]++;
            else digit[o.ids[i] - 5]++;
        }
        length[(n - 2) / 2]++;
        assert_in_range(take(&o, 1, index), 38, 254);
    }
    follows("lengths without brackets", length, NULL, 19);
    follows("digits", digit, NULL, 5);
    follows("operators", op, NULL, 3);
    close_source(&o);
    o = source_of(c, "mod-arith", "brackets=true mult=true");
    for (uint64_t index = 0; index < 8000; index++) {
        const int64_t n = take(&o, 0, index) + 2; /* with the value and the pad: 5 to 40 */
        const int32_t *at = o.ids;
        assert_int_equal(o.targets[n - 3], value_nested(&at));
        assert_true(at == o.ids + n - 3 && *at == 10);
        nested_length[n - 5]++;
        if (n - 3 < 5) continue;
        at = o.ids + 1;
        value_nested(&at);
        nested_op[*at - 5]++;
        if (n - 3 == 13) left[at - o.ids - 2]++;
    }
    double law[36];
    for (int i = 0; i < 36; i++) law[i] = (i ? 1 : 3) / 38.0; /* 3, 4 and 5 are 5 */
    follows("lengths with brackets", nested_length, law, 36);
    follows("outer operators", nested_op, NULL, 3);
    follows("where the outer operator stands", left, NULL, 9);
    close_source(&o);
    o = source_of(c, "mod-arith", "brackets=true");
    for (uint64_t index = 0; index < 200; index++)
        for (int64_t i = take(&o, 1, index); i-- > 0;) assert_true(o.ids[i] != 7);
    close_source(&o);
}

/* ---- groups ----------------------------------------------------------------------------------------------------------------- */

/* The k-th permutation of n points in lexicographic order, by its digits in the factorial base. */
static void permutation(int k, int n, int *out)
{
    int left[5] = {0, 1, 2, 3, 4}, f = 1;
    for (int i = 2; i < n; i++) f *= i;
    for (int i = 0; i < n; i++) {
        const int d = k / f;
        out[i] = left[d];
        memmove(left + d, left + d + 1, (size_t)(4 - d) * sizeof *left);
        k %= f;
        if (i < n - 2) f /= n - 1 - i;
    }
}

static bool even(const int *p, int n)
{
    int s = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) s += p[j] > p[i];
    return s % 2 == 0;
}

/* What has no examples, or an option that would do nothing. */
static void empty_settings_are_refused(void **state)
{
    (void)state;
    static const char *const bad[][4] = {{"word-problem", "limit is 1", "group=S3", "limit=1"}, {"word-problem", "swap", "group=A5", "variant=swaps"},
                                         {"mod-arith", "mult is true", "brackets=false", "mult=true"},
                                         {"word-problem", "at least 4", "variant=hard", "length=3"},
                                         {"word-problem", "at least 4", "variant=hard", "test_length=3"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lnt_arena arena = {0};
        lnt_source s = {.name = bad[i][0]};
        void *values;
        assert_int_equal(lnt_task_values(c, lnt_task_find(bad[i][0]), NULL, bad[i] + 2, 2, &arena, &values), LINNET_OK);
        assert_int_equal(lnt_task_find(bad[i][0])->source(c, values, &arena, &s), LINNET_EINVAL);
        assert_non_null(strstr(linnet_error_message(c), bad[i][1]));
        lnt_arena_free(&arena);
    }
}

static void word_problems_are_right(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        int points, order, drawn;
        bool even, hard, swaps;
    } groups[] = {
        {"group=S3 length=12", 3, 6, 6, false, false, false},         {"group=S4 length=12", 4, 24, 24, false, false, false},
        {"group=A5 length=12", 5, 60, 60, true, false, false},        {"group=S5 length=12", 5, 120, 120, false, false, false},
        {"group=S5 variant=swaps length=12", 5, 120, 10, false, false, true}, {"group=S4 variant=hard length=12", 4, 24, 24, false, true, false},
        {"group=S5 limit=2 length=12", 5, 120, 11, false, false, false},
    };
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        const int n = groups[g].points, order = groups[g].order;
        int element[120][5], count = 0, seen = 0;
        int64_t drawn[120] = {0}, there[120];
        for (int k = 0; k < (n == 3 ? 6 : n == 4 ? 24 : 120); k++) {
            permutation(k, n, element[count]);
            count += !groups[g].even || even(element[count], n);
        }
        assert_int_equal(count, order);
        opened o = source_of(c, "word-problem", groups[g].set);
        assert_int_equal(o.s.vocabulary, order + 1);
        for (uint64_t index = 0; index < 2000; index++) {
            int so_far[5] = {0, 1, 2, 3, 4};
            assert_int_equal(take(&o, 0, index), 13);
            assert_true(o.ids[0] == order && o.targets[0] == order);
            for (int t = 1; t <= 12; t++) {
                for (int i = 0; i < n; i++) so_far[i] = element[o.ids[t]][so_far[i]];
                assert_memory_equal(so_far, element[o.targets[t]], (size_t)n * sizeof(int));
                if (!groups[g].hard || t % 4 == 0) drawn[o.ids[t]]++;
                else assert_int_equal(o.ids[t], 0);
            }
        }
        for (int k = 0; k < order; k++) {
            if (!drawn[k]) continue;
            int moved = 0;
            for (int i = 0; i < n; i++) moved += element[k][i] != i;
            if (groups[g].swaps) assert_int_equal(moved, 2);
            there[seen++] = drawn[k];
        }
        assert_int_equal(seen, groups[g].drawn);
        follows(groups[g].set, there, NULL, seen);
        close_source(&o);
    }
}

/* ---- automata --------------------------------------------------------------------------------------------------------------- */

static double choose(int n, int k)
{
    double x = 1;
    for (int i = 0; i < k; i++) x = x * (n - i) / (i + 1);
    return x;
}

/* Chance that n draws of d letters meet exactly k of them. */
static double meets(int n, int d, int k)
{
    double onto = 0;
    for (int j = 0; j <= k; j++) onto += (j % 2 ? -1 : 1) * choose(k, j) * pow((double)(k - j) / d, n);
    return choose(d, k) * onto;
}

static void automata_are_drawn_by_their_law(void **state)
{
    (void)state;
    int64_t strings[10] = {0}, length[49] = {0}, first[3] = {0};
    double law[3] = {0};
    opened o = source_of(c, "regbench", "automata=6000 test_automata=2");
    for (uint64_t index = 0; index < 6000; index++) {
        const int64_t n = take(&o, 0, index);
        int count = 0, run = 0, letters = 0, starts = 0;
        bool used[20] = {false}, start[20] = {false};
        for (int64_t i = 0; i <= n; i++) {
            const int32_t id = i < n ? o.ids[i] : o.targets[n - 1]; /* the last symbol is wanted alone; it may be a string of its own */
            if (i < n - 1) assert_int_equal(o.targets[i], o.ids[i + 1] == 19 ? -1 : o.ids[i + 1]);
            assert_in_range(id, 1, 19);
            if (id == 19) {
                length[run - 1]++;
                count++;
                run = 0;
                continue;
            }
            if (!run) start[id] = true;
            used[id] = true;
            run++;
        }
        length[run - 1]++;
        strings[count + 1 - 10]++;
        for (int i = 0; i < 19; i++) letters += used[i], starts += start[i];
        assert_true(letters <= 18 && starts >= 1 && starts <= 3);
        first[starts - 1]++;
    }
    for (int d = 1; d <= 3; d++)
        for (int n = 10; n < 20; n++)
            for (int k = 1; k <= d; k++) law[k - 1] += meets(n, d, k) / 30;
    follows("strings of an example", strings, NULL, 10);
    follows("letters of a string", length, NULL, 49);
    follows("letters that a string may begin with", first, law, 3);
    close_source(&o);
}

/* A flat law is wrong by 1 - d/20 where d letters are allowed, and its guess is valid when that letter is one of them. */
static void regbench_measures(void **state)
{
    (void)state;
    opened o = source_of(c, "regbench", "automata=50 test_automata=20");
    float flat[20] = {0};
    double extra[LNT_EXTRAS], away = 0, valid = 0;
    int asked = 0;
    o.s.begin(&o.s, 1);
    for (uint64_t index = 0; index < 10; index++) {
        const int64_t n = take(&o, 1, index);
        bool follow[20][20] = {{false}}; /* what was seen behind the start, by first letter alone */
        for (int64_t i = 0; i <= n; i++)
            if (i == 0 || (i < n && o.ids[i - 1] == 19)) follow[0][o.ids[i]] = true;
        for (int64_t i = 0; i < n; i++) {
            if (o.ids[i] != 19) continue;
            int d = 0;
            for (int k = 0; k < 20; k++) d += follow[0][k];
            const lnt_answer a = {.set = 1, .example = index, .position = i, .length = n, .ids = o.ids, .target = o.targets[i], .best = o.targets[i],
                                  .logits = flat};
            o.s.answer(&o.s, &a);
            asked++;
            valid++;
            away += 1 - d / 20.0;
        }
        const lnt_answer pad = {.set = 1, .example = index, .position = n - 1, .length = n, .ids = o.ids, .target = o.targets[n - 1], .best = 0,
                                .logits = flat};
        o.s.answer(&o.s, &pad); /* the pad is never allowed */
        asked++;
        away += 1;
    }
    o.s.end(&o.s, extra);
    assert_true(fabs(extra[0] - valid / asked) < 1e-12);
    /* the last prediction of each example adds 1 - d/20 for an unknown d of 1 to 3; letters that no string began with may be allowed besides */
    assert_true(extra[1] < away / asked + 1e-9 && extra[1] > (away - 10 * 3 / 20.0 - asked * 0.02) / asked);
    close_source(&o);
}

/* ---- MAD -------------------------------------------------------------------------------------------------------------------- */

static void mad_recall_is_right(void **state)
{
    (void)state;
    static const char *const sets[] = {"kind=in-context", "kind=noisy"};
    for (int noisy = 0; noisy < 2; noisy++) {
        const int n = 8; /* keys, and values; ids of noise from 16 */
        int64_t keys[8] = {0}, values[8] = {0}, noise[2] = {0}, steps_of_noise = 0, steps = 0;
        opened o = source_of(c, "mad", sets[noisy]);
        for (uint64_t index = 0; index < 1500; index++) {
            int32_t value[8];
            memset(value, -1, sizeof value);
            assert_int_equal(take(&o, 1, index), 127);
            for (int i = 0; i < 128; i += 2) {
                const int32_t key = o.ids[i], next = i + 1 < 127 ? o.ids[i + 1] : o.targets[126];
                if (i < 126) steps++;
                if (key >= 16) {
                    assert_true(noisy && i < 126 && next >= 16 && o.targets[i] == -1 && o.targets[i + 1] == -1);
                    steps_of_noise++;
                    continue;
                }
                assert_true(key < n && next >= n && next < 2 * n);
                assert_int_equal(o.targets[i], value[key]);
                if (i < 126) keys[key]++;
                if (value[key] < 0) values[next - n]++;
                else assert_int_equal(next, value[key]);
                value[key] = next;
                if (i + 1 < 127) assert_int_equal(o.targets[i + 1], -1);
                if (i == 126) assert_true(o.targets[126] >= 0); /* the probe was seen */
            }
            take(&o, 0, index);
            for (int i = 0; i < 126; i++) assert_int_equal(o.targets[i], o.ids[i + 1]); /* all next tokens are learnt */
        }
        follows("mad's keys", keys, NULL, n);
        follows("mad's values", values, NULL, n);
        noise[0] = steps_of_noise;
        noise[1] = steps - 1500 - steps_of_noise; /* one step of an example may not be noise */
        if (noisy) follows("mad's noise", noise, (const double[]){0.2, 0.8}, 2);
        else assert_int_equal(noise[0], 0);
        close_source(&o);
    }
}

static void mad_fuzzy_recall_is_right(void **state)
{
    (void)state;
    opened o = source_of(c, "mad", "kind=fuzzy");
    int64_t sizes[3] = {0}, first[7] = {0};
    for (uint64_t index = 0; index < 3000; index++) {
        assert_int_equal(take(&o, 1, index), 128);
        int64_t at = 0, last = 127;
        while (o.ids[at] == 15) assert_int_equal(o.targets[at++], -1);
        int32_t all[129];
        memcpy(all, o.ids, 128 * 4);
        all[128] = o.targets[127];
        while (all[last] >= 7) last--; /* the last key's last token */
        const int values = (int)(128 - last);
        assert_true(values >= 1 && values <= 3);
        sizes[values - 1]++;
        first[all[at]]++;
        for (int i = 0; i < values; i++) assert_int_equal(o.targets[last + i], all[last + 1 + i]); /* the probe is asked for */
        bool there = false; /* and was there before, key and value */
        for (int64_t i = at; !there && i < last - 2 - values; i++) there = !memcmp(all + i, all + last - 2, (size_t)(3 + values) * 4);
        assert_true(there);
        for (int64_t i = at; i < 128;) { /* keys of three distinct tokens, then one to three values */
            assert_true(all[i] < 7 && all[i + 1] < 7 && all[i + 2] < 7);
            assert_true(all[i] != all[i + 1] && all[i] != all[i + 2] && all[i + 1] != all[i + 2]);
            i += 3;
            int64_t v = i;
            while (i <= 128 && all[i] >= 7) assert_in_range(all[i++], 7, 14);
            assert_true(i > v && i - v <= 3);
        }
    }
    follows("sizes of probed values", sizes, NULL, 3);
    follows("first tokens of keys", first, NULL, 7);
    close_source(&o);
}

static void mad_others_are_right(void **state)
{
    (void)state;
    opened o = source_of(c, "mad", "kind=memorisation");
    int32_t map[127];
    bool used[255] = {false};
    int64_t keys[127] = {0};
    memset(map, -1, sizeof map);
    for (int set = 0; set < 2; set++) /* one map for both */
        for (uint64_t index = 0; index < 800; index++) {
            assert_int_equal(take(&o, set, index), 32);
            for (int i = 0; i < 32; i += 2) {
                const int32_t key = o.ids[i], value = o.targets[i + 1];
                assert_true(key < 127 && o.ids[i + 1] == 255 && o.targets[i] == -1 && value >= 127 && value < 255);
                keys[key]++;
                assert_true(map[key] < 0 ? !used[value] : map[key] == value);
                map[key] = value;
                used[value] = true;
            }
        }
    follows("keys to memorise", keys, NULL, 127);
    close_source(&o);
    o = source_of(c, "mad", "kind=compression");
    int64_t tokens[15] = {0};
    for (uint64_t index = 0; index < 500; index++) {
        assert_int_equal(take(&o, 1, index), 32);
        for (int i = 0; i < 32; i++) {
            if (i < 31) tokens[o.ids[i]]++;
            assert_int_equal(o.targets[i], o.ids[i]);
        }
        assert_int_equal(o.ids[31], 15);
    }
    follows("tokens to compress", tokens, NULL, 15);
    close_source(&o);
    o = source_of(c, "mad", "kind=copying");
    int64_t copied[14] = {0}, before_first = 0;
    for (uint64_t index = 0; index < 1000; index++) {
        int m = 0;
        assert_int_equal(take(&o, 1, index), 256);
        for (int i = 0; i < 239; i++) {
            assert_int_equal(o.targets[i], -1);
            before_first += m == 0 && o.ids[i] == 14;
            if (o.ids[i] == 14) continue;
            copied[o.ids[i]]++;
            assert_int_equal(o.targets[240 + m++], o.ids[i]);
        }
        assert_true(m == 16 && o.ids[238] != 14 && o.ids[239] == 15 && o.targets[239] == -1);
        for (int i = 240; i < 256; i++) assert_int_equal(o.ids[i], 14);
    }
    follows("tokens to copy", copied, NULL, 14);
    const double mean = 223.0 / 16 * 1000; /* blanks before the first token: binomial */
    assert_true(fabs((double)before_first - mean) < 5 * sqrt(mean));
    close_source(&o);
}

/* Two batches by hand. In the first, class 1 is right once of two, class 2 is a guess alone: (1/2 + 0) / 2; the second, one example, is right: 1. */
static void mad_counts_classes(void **state)
{
    (void)state;
    opened o = source_of(c, "mad", "kind=in-context");
    const float logits[16] = {0};
    double extra[LNT_EXTRAS];
    o.s.begin(&o.s, 1);
    for (int i = 0; i < 129; i++) {
        const lnt_answer a = {.set = 1, .example = (uint64_t)i, .target = 1, .best = i < 64 ? 2 : 1, .logits = logits};
        o.s.answer(&o.s, &a);
    }
    o.s.end(&o.s, extra);
    assert_true(fabs(extra[0] - (128 * 0.25 + 1 * 1.0) / 129) < 1e-12);
    close_source(&o);
}

int main(void)
{
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.threads = 1;
    if (linnet_context_create(&o, &c) != LINNET_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_describes_itself), cmocka_unit_test(every_source_gives_examples), cmocka_unit_test(recall_examples_are_right),
        cmocka_unit_test(recall_draws_by_its_law), cmocka_unit_test(recall_has_zoologys_settings), cmocka_unit_test(parities_are_right),
        cmocka_unit_test(arithmetic_is_right), cmocka_unit_test(word_problems_are_right), cmocka_unit_test(empty_settings_are_refused),
        cmocka_unit_test(automata_are_drawn_by_their_law),
        cmocka_unit_test(regbench_measures), cmocka_unit_test(mad_recall_is_right), cmocka_unit_test(mad_fuzzy_recall_is_right),
        cmocka_unit_test(mad_others_are_right), cmocka_unit_test(mad_counts_classes)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    linnet_context_destroy(c);
    return failed;
}

/* Lengths and sizes of every operator, counted: T of 0, 1, 15, 63, 64, 65, 100 and 1000, K other than V, sizes of 50, 60 and 100, packed with empty
 * sequences, states in and their gradients out, by every implementation that this machine has, against the float64 reference. No operator stands
 * here; each is taken without options and with each of its switches. test_lengths [OPERATOR]. */
#include "recurrence_check.h"
#include "sanitized.h"

#include <math.h>

static const char *only;
static const int64_t lengths[] = { 0, 1, 15, 63, 64, 65, 100, 1000 };
enum { LENGTHS = sizeof lengths / sizeof *lengths - SANITIZED }; /* the longest goes where the others go */

/* How many times the letter in front of it a size is in all of the operator's own cases; 0: it is no multiple of it, or the same. */
static int64_t times_before(const lnt_recur_op *op, const lnt_recur_size *s)
{
    int64_t times = 0;
    for (const lnt_recur_case *k = op->cases; s > op->sizes && k->op; k++) {
        if (strcmp(k->op, op->name) != 0) continue;
        const int64_t before = lnt_case_size(k, s[-1].letter), size = lnt_case_size(k, s->letter);
        if (!before || size % before || (times && size / before != times)) return 0;
        times = size / before;
    }
    return times > 1 ? times : 0;
}

/* Sizes by turns, the first letters in the description's order: 50, 60, 100, so that no two that follow each other are alike; heads 2. */
static lnt_recur_case case_of(const lnt_recur_op *op, int turn)
{
    static const int64_t sizes[] = { 50, 60, 100 };
    lnt_recur_case k = { .op = op->name, .gate = -0.3, .reset = 0.01, .beta = 1, .states = false };
    int n = turn;
    for (const lnt_recur_size *s = op->sizes; s->letter; s++) {
        if (s->letter[0] == 'T' || s->least == s->most) continue;
        if (s->letter[0] == 'H') lnt_case_set(&k, s->letter, 2);
        else if (times_before(op, s)) lnt_case_set(&k, s->letter, times_before(op, s) * lnt_case_size(&k, s[-1].letter));
        else lnt_case_set(&k, s->letter, s->most < 100 ? s->most : sizes[n++ % 3]);
    }
    for (int i = 0; op->tensors[i].name; i++) k.states |= op->tensors[i].role == LNT_T_STATE;
    return k;
}

/* The operator's own choice, and then with each of its switches; false: there is no v-th. */
static bool variant(const lnt_recur_op *op, int v, lnt_recur_case *k)
{
    for (const lnt_recur_option *x = op->options; v && x->key; x++) {
        if (x->kind != LNT_RECUR_SWITCH || --v) continue;
        k->option[0].key = x->key;
        k->option[0].value = x->standard == 0;
        if (!strcmp(x->key, "signed")) k->positive = 20; /* mesa's Lambda outweighs what is turned around */
    }
    return v == 0;
}

/* What ran: implementations times cases. */
static int run_case(linnet_context *c, const lnt_recur_case *k)
{
    lnt_problem truth, p;
    seen most = { 0 };
    int runs = 0;
    make_truth(c, k, LINNET_F32, &truth);
    OK(c, lnt_problem_make(c, k, LINNET_F32, LINNET_F32, 7, &p));
    for (int i = 0; p.op->impls[i]; i++) {
        const lnt_recur_impl *impl = p.op->impls[i];
        if (impl->device != LNT_DEVICE_CPU || impl->needs > (int)lnt_cpu_machine()) continue;
        lnt_cpu_force((lnt_cpu_level)impl->needs);
        p.r.impl = impl->name;
        char who[384];
        int n = snprintf(who, sizeof who, "%s ", impl->name);
        describe_case(k, who + n, sizeof who - (size_t)n);
        if (!run_both(c, &p, who)) continue;
        compare(&p, &truth, who, &most);
        runs++;
    }
    lnt_cpu_force(lnt_cpu_machine());
    lnt_problem_free(&p);
    lnt_problem_free(&truth);
    return runs;
}

static void every_length_of_every_operator(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    int all = 0;
    for (int o = 0; lnt_recur_at(o); o++) {
        const lnt_recur_op *op = lnt_recur_at(o);
        int runs = 0, cases = 0, variants = 0;
        if (only && strcmp(only, op->name) != 0) continue;
        lnt_recur_case k;
        for (int v = 0; k = case_of(op, 0), variant(op, v, &k); v++, variants++)
            for (int t = 0; t < LENGTHS; t++) {
                k = case_of(op, t);
                /* A state of titans is its memory less the layer's own. Where tokens forget half of it each, what is left is now and then a hundredth
                 * of the layer's, and float32 states, which tokens one by one go through, leave 5e-6 of it right (chunks, and tokens beside a layer's
                 * memory of zeros, 4e-7). Tokens forget a fifth here, as they do at most in layers. */
                if (lengths[t] == 1000 && !strcmp(op->name, "titans")) k.beta = 0.4;
                variant(op, v, &k);
                const bool packed = t % 2; /* every other length beside an empty sequence and others */
                k.sequences = packed ? 4 : 1;
                memcpy(k.length, packed ? (int64_t[]){ lengths[t], 0, 17, 1 } : (int64_t[]){ lengths[t], 0, 0, 0 }, 4 * sizeof *k.length);
                const int n = run_case(c, &k);
                if (!n) fail_msg("%s: no implementation took T = %lld", op->name, (long long)lengths[t]);
                runs += n, cases++;
            }
        printf("  %-20s %d variants, %d cases, %d runs of implementations in both directions\n", op->name, variants, cases, runs);
        all += runs;
    }
    printf("  %d runs\n", all);
    assert_true(all > 0);
    linnet_context_destroy(c);
}

int main(int argc, char **argv)
{
    only = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_length_of_every_operator) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

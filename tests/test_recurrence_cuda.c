/* Every GPU implementation on every case, float32 and bf16, forward and backward, against the float64 reference on the CPU; twice, with the same
 * bits. Long: what its tests compare, and by which functions, is the same. */
#include "mesa_nan.h"
#include "gpu_context.h"

#include <math.h>

#include "core/context.h"

/* On an H200, more columns of V than multiprocessors: 128 of them a CTA. */
static const lnt_recur_case wide_delta_cases[] = {
    { "gated_delta_rule", 18, { 66, 1, 64, 130, 65, 3, 0, 70, 129, 2, 67, 40, 64, 66, 10, 65, 128, 5 }, LNT_HEADS(2, 4, 128, 128), .gate = -0.5,
          .beta = 1,
      .states = true },
    { "delta_rule", 18, { 65, 66, 1, 0, 65, 3, 64, 70, 2, 129, 67, 40, 64, 66, 10, 65, 4, 5 }, LNT_HEADS(4, 4, 64, 128), .beta = 1, .states = true },
    { 0 },
};
/* Tiles of vector decay take as many heads of keys as of values. Ragged and empty sequences, segments, resets, gates that leave nothing. */
static const lnt_recur_case vector_cases[] = {
    { "gla", 6, { 1, 15, 64, 0, 65, 130 }, LNT_HEADS(2, 2, 128, 128), .gate = -0.05, .states = true },
    { "gla", 1, { 300 }, LNT_HEADS(3, 3, 64, 128), .gate = -3, .reset = 0.03, .states = true },
    { "gla", 2, { 1100, 70 }, LNT_HEADS(1, 1, 128, 64), .gate = -0.02, .reset = 0.001, .states = true },
    { "gla", 1, { 100 }, LNT_HEADS(2, 2, 64, 64), .gate = -40 },
    { "rwkv6", 5, { 64, 63, 0, 66, 200 }, LNT_HEADS(2, 2, 64, 64), .gate = -0.5, .reset = 0.01, .states = true },
    { "rwkv6", 2, { 1030, 3 }, LNT_HEADS(1, 1, 128, 128), .gate = -0.05, .states = true },
    { "rwkv6", 1, { 129 }, LNT_HEADS(2, 2, 128, 64), .gate = -4, .states = true },
    { "gla_v", 6, { 1, 15, 64, 0, 65, 130 }, LNT_HEADS(2, 2, 128, 128), .gate = -0.05, .states = true },
    { "gla_v", 1, { 300 }, LNT_HEADS(3, 3, 128, 64), .gate = -3, .reset = 0.03, .states = true },
    { "gla_v", 2, { 1100, 70 }, LNT_HEADS(1, 1, 64, 128), .gate = -0.02, .reset = 0.001, .states = true },
    { "gla_v", 2, { 1030, 3 }, LNT_HEADS(1, 1, 128, 64), .gate = -0.3, .states = true },
    { "gla_v", 2, { 100, 129 }, LNT_HEADS(2, 2, 64, 64), .gate = -1000, .reset = 0.1, .states = true },
    { "gla_kv", 3, { 129, 0, 70 }, LNT_HEADS(2, 4, 100, 140), .gate = -0.3, .reset = 0.02, .states = true },
    { "mlstm", 5, { 64, 63, 0, 66, 200 }, LNT_HEADS(2, 4, 64, 64), .gate = -0.5, .reset = 0.02, .states = true },
    { "mlstm", 2, { 1100, 70 }, LNT_HEADS(1, 1, 128, 64), .gate = -0.02, .states = true, .option = { { "eps", 1e-2 } } },
    { "mlstm", 2, { 129, 400 }, LNT_HEADS(2, 2, 64, 128), .gate = -4 },
    { "mlstm", 1, { 150 }, LNT_HEADS(1, 1, 200, 256), .gate = -0.1, .states = true },
    { "mlstm", 2, { 33, 20 }, LNT_HEADS(1, 2, 256, 300), .gate = -0.1, .states = true },
    { 0 },
};
/* One sequence in parts (lnt_delta_in_parts), on an H200 and on a GPU of 4 multiprocessors. */
static const lnt_recur_case parts_cases[] = {
    { "gated_delta_rule", 1, { 1700 }, LNT_HEADS(32, 64, 64, 64), .gate = -0.02, .reset = 0.001, .beta = 2, .states = true },
    { "gated_delta_product", 1, { 850 }, LNT_HEADS(64, 64, 64, 64), .gate = -0.05, .beta = 1, .states = true, .option = { { "n_householder", 2 } } },
    { "kda", 1, { 1700 }, LNT_HEADS(64, 64, 64, 64), .gate = -0.05, .reset = 0.001, .beta = 2, .states = true },
    { "gated_delta_rule", 1, { 1600 }, LNT_HEADS(1, 2, 64, 64), .gate = -0.05, .reset = 0.002, .beta = 2, .states = true },
    { "gated_delta_rule", 1, { 1700 }, LNT_HEADS(32, 64, 128, 64), .gate = -0.02, .reset = 0.001, .beta = 2, .states = true },
    { "delta_rule", 1, { 1665 }, LNT_HEADS(64, 64, 128, 64), .beta = 1 },
    { "gated_delta_rule", 1, { 1540 }, LNT_HEADS(2, 2, 128, 64), .gate = -0.01, .beta = 1 },
    { "gated_delta_rule", 1, { 1570 }, LNT_HEADS(1, 2, 128, 64), .gate = -0.02, .reset = 0.001, .beta = 2, .states = true },
    { "delta_rule", 1, { 1599 }, LNT_HEADS(2, 2, 128, 64), .beta = 1, .states = true },
    { "gated_delta_product", 1, { 770 }, LNT_HEADS(1, 2, 64, 64), .gate = -0.05, .beta = 1, .states = true, .option = { { "n_householder", 2 } } },
    { "kda", 1, { 1599 }, LNT_HEADS(2, 2, 64, 64), .gate = -0.05, .reset = 0.002, .beta = 2, .states = true },
    { "kda", 1, { 1600 }, LNT_HEADS(2, 2, 128, 64), .gate = -0.01, .beta = 1 },
    { "dplr", 1, { 1537 }, LNT_HEADS(2, 2, 64, 64), .gate = -0.05, .reset = 0.002, .states = true },
    { 0 },
};
/* Several writes on tensor cores, in segments too; rows of 256; channels and tokens that fill several CTAs and tiles. */
static const lnt_recur_case many_cases[] = {
    { "gated_delta_product", 3, { 65, 0, 130 }, LNT_HEADS(2, 4, 128, 128), .gate = -0.1, .reset = 0.02, .beta = 2, .states = true,
      .option = { { "n_householder", 2 } } },
    { "gated_delta_product", 1, { 900 }, LNT_HEADS(1, 1, 128, 64), .gate = -0.01, .beta = 1, .states = true,
      .option = { { "n_householder", 3 } } },
    { "gated_delta_rule", 2, { 2047, 70 }, LNT_HEADS(1, 1, 128, 128), .gate = -0.01, .reset = 0.001, .beta = 1, .states = true },
    { "gated_delta_product", 2, { 1, 9 }, LNT_HEADS(1, 2, 64, 128), .beta = 1, .states = true, .option = { { "n_householder", 4 } } },
    { "kda", 6, { 1, 15, 64, 0, 65, 130 }, LNT_HEADS(2, 2, 128, 128), .gate = -0.05, .beta = 1, .states = true },
    { "kda", 1, { 300 }, LNT_HEADS(3, 3, 64, 128), .gate = -3, .reset = 0.03, .beta = 2, .states = true },
    { "kda", 2, { 500, 70 }, LNT_HEADS(1, 1, 128, 96), .gate = -0.02, .reset = 0.001, .beta = 1 },
    { "kda", 1, { 100 }, LNT_HEADS(2, 2, 64, 64), .gate = -40, .beta = 1, .states = true },
    { "kda", 2, { 129, 70 }, LNT_HEADS(2, 2, 128, 64), .gate = -0.3, .reset = 0.02, .beta = 2, .states = true },
    { "titans", 2, { 50, 33 }, { { "H", 2 }, { "D", 64 } }, .beta = 0.5, .states = true },
    { "titans", 1, { 70 }, { { "H", 1 }, { "D", 128 } }, .beta = 0.5 },
    { "ttt_linear", 2, { 50, 33 }, { { "H", 2 }, { "D", 64 } }, .beta = 0.5, .states = true },
    { "ttt_linear", 1, { 70 }, { { "H", 1 }, { "D", 128 } }, .beta = 0.5 },
    { "ttt_mlp", 2, { 40, 17 }, { { "H", 1 }, { "D", 64 }, { "F", 256 } }, .beta = 0.3, .states = true },
    { "ttt_mlp", 4, { 16, 0, 3, 130 }, { { "H", 2 }, { "D", 64 }, { "F", 256 } }, .beta = 0.3, .states = true, .option = { { "bias", 0 } } },
    { "ttt_mlp", 1, { 320 }, { { "H", 1 }, { "D", 64 }, { "F", 256 } }, .beta = 0.3, .states = true },
    { "ttt_mlp", 1, { 295 }, { { "H", 2 }, { "D", 64 }, { "F", 256 } }, .beta = 0.3, .states = true, .option = { { "bias", 0 } } },
    { "ttt_mlp", 4, { 16, 16, 17, 16 }, { { "H", 2 }, { "D", 64 }, { "F", 256 } }, .beta = 0.3 }, /* more chains than the emulated GPU has places */
    { "ttt_linear", 4, { 16, 0, 3, 130 }, { { "H", 2 }, { "D", 128 } }, .beta = 0.5, .states = true, .option = { { "bias", 0 } } },
    { "ttt_linear", 1, { 640 }, { { "H", 1 }, { "D", 128 } }, .beta = 0.5, .states = true },
    { "ttt_linear", 4, { 16, 16, 17, 16 }, { { "H", 2 }, { "D", 64 } }, .beta = 0.5 },
    { "titans", 4, { 16, 16, 17, 16 }, { { "H", 2 }, { "D", 64 } }, .beta = 0.5 },
    { "titans", 4, { 16, 0, 3, 130 }, { { "H", 2 }, { "D", 128 } }, .beta = 0.5, .states = true },
    { "titans", 1, { 640 }, { { "H", 1 }, { "D", 128 } }, .beta = 0.5 },
    { "dplr", 2, { 70, 129 }, LNT_HEADS(1, 2, 200, 256), .gate = -0.1, .reset = 0.01, .states = true },
    { "dplr", 1, { 200 }, LNT_HEADS(2, 2, 128, 128), .gate = -0.02, .states = true },
    { "dplr", 6, { 1, 15, 64, 0, 65, 130 }, LNT_HEADS(2, 2, 64, 128), .gate = -0.3, .reset = 0.02, .states = true },
    { "dplr", 2, { 129, 70 }, LNT_HEADS(3, 3, 128, 64), .gate = -3 },
    { "dplr", 1, { 100 }, LNT_HEADS(2, 2, 64, 64), .gate = -40, .reset = 0.02, .states = true },
    { "dplr", 1, { 90 }, LNT_HEADS(2, 2, 64, 192), .gate = -0.2, .states = true }, /* forward alone on tensor cores */
    { "scan", 3, { 700, 0, 1300 }, { { "D", 1000 } }, .gate = -0.02, .reset = 0.001, .states = true },
    { "scan", 40, { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20 }, { { "D", 70 } }, .gate = -0.5, .states = true },
    { "selective_scan", 2, { 40, 33 }, { { "D", 50 }, { "M", 40 } }, .beta = 0.3, .states = true },
    { "selective_scan", 3, { 17, 0, 9 }, { { "D", 21 }, { "M", 128 } }, .beta = 0.3, .states = true },
    { "selective_scan", 2, { 100, 31 }, { { "D", 40 }, { "M", 29 } }, .beta = 0.3, .states = true },
    { "selective_scan", 2, { 40, 70 }, { { "D", 34 }, { "M", 90 } }, .beta = 0.3, .states = true, .option = { { "signed", 1 } } },
    { "longhorn", 3, { 40, 0, 33 }, { { "D", 50 }, { "M", 40 } }, .beta = 1, .states = true },
    { "longhorn", 2, { 70, 9 }, { { "D", 21 }, { "M", 128 } }, .beta = 3, .states = true },
    { "complex_scan", 3, { 300, 0, 513 }, { { "D", 1000 } }, .gate = -0.02, .reset = 0.001, .states = true },
    { "lru", 3, { 700, 0, 1300 }, { { "D", 1000 } }, .gate = -0.01, .states = true },
    { "rglru", 3, { 700, 0, 1300 }, { { "D", 1000 } }, .states = true, .option = { { "first", 1 } } },
    { "rglru", 1, { 1500 }, { { "D", 65 } }, .states = true },
    { "mesa", 2, { 90, 33 }, LNT_HEADS(1, 1, 130, 140), .gate = -0.05, .reset = 0.02, .beta = 1, .option = { { "window", 70 } } },
    { "mesa", 7, { 1, 63, 64, 0, 130, 100, 257 }, LNT_HEADS(2, 4, 64, 64), .gate = -0.02, .beta = 1, .option = { { "window", 64 } } },
    { "mesa", 2, { 420, 128 }, LNT_HEADS(1, 1, 128, 128), .gate = -0.01, .reset = 0.004, .beta = 1, .option = { { "window", 128 } } },
    { "mesa", 2, { 63, 600 }, LNT_HEADS(1, 1, 64, 64), .gate = -0.005, .beta = 1, .option = { { "window", 256 } } },
    { "mesa", 1, { 350 }, LNT_HEADS(2, 2, 128, 128), .gate = -4, .beta = 1, .option = { { "window", 192 } } },
    { "mesa", 1, { 300 }, LNT_HEADS(1, 1, 128, 128), .beta = 1, .option = { { "window", 256 } } },
    { "wkv", 4, { 700, 0, 128, 129 }, { { "D", 300 } }, .states = true },
    { "s4d", 2, { 130, 9 }, { { "D", 40 }, { "M", 64 } }, .beta = 0.1, .states = true },
    { "s4d", 3, { 40, 0, 67 }, { { "D", 21 }, { "M", 100 } }, .beta = 0.1, .states = true, .option = { { "discretization", 1 } } },
    { "s4d", 2, { 700, 1100 }, { { "D", 40 }, { "M", 32 } }, .beta = 0.02, .states = true }, /* and four of products of tiles */
    { "s4d", 1, { 2112 }, { { "D", 8 }, { "M", 20 } }, .beta = 0.005, .option = { { "discretization", 1 } } },
    { "s4d", 4, { 130, 0, 1027, 64 }, { { "D", 24 }, { "M", 7 } }, .beta = 0.3, .states = true },
    { "s4d", 9, { 1, 15, 63, 64, 65, 0, 31, 32, 33 }, { { "D", 16 }, { "M", 32 } }, .beta = 0.1, .states = true },
    { 0 },
};
/* The cases of every core, and those here. */
enum { LISTS_MOST = 64 };
static const lnt_recur_case *all_cases[LISTS_MOST];
static size_t lists;
static void list_cases(void)
{
    lists = 0;
    all_cases[lists++] = wide_delta_cases;
    all_cases[lists++] = vector_cases;
    all_cases[lists++] = many_cases;
    all_cases[lists++] = parts_cases;
    for (int o = 0; lnt_recur_at(o) && lists < LISTS_MOST; o++) {
        bool there = false;
        for (size_t i = 0; i < lists; i++) there |= all_cases[i] == lnt_recur_at(o)->cases;
        if (!there) all_cases[lists++] = lnt_recur_at(o)->cases;
    }
}

/* "test_recurrence_cuda NAME TOKENS EACH": only where "operator implementation" contains NAME, and cases of at most so many tokens; of the many runs
 * of "mesa chunk-cuda unrolled K=90" and "mesa in 99 KB K=100", each so-manieth. */
static int64_t most_tokens = INT64_MAX, each = 1;

static bool asked_for(const lnt_recur_case *k, const lnt_recur_impl *impl)
{
    char name[128];
    snprintf(name, sizeof name, "%s %s", k->op, impl->name);
    return wanted(name);
}
static bool any_asked_for(const lnt_recur_case *k)
{
    bool any = false;
    for (const lnt_recur_impl *const *i = lnt_recur_find(k->op)->impls; *i; i++) any |= (*i)->device == LNT_DEVICE_CUDA && asked_for(k, *i);
    return any;
}
static int64_t tokens_of(const lnt_recur_case *k)
{
    int64_t n = 0;
    for (int i = 0; i < k->sequences; i++) n += k->length[i];
    return n;
}

/* Outputs alone, and that another run gives the same bits. */
static void check_forward(linnet_context *c, const lnt_recur_case *k, lnt_problem *p, const lnt_problem *truth, const char *who, seen *most)
{
    lnt_problem again;
    OK(c, lnt_problem_make(c, k, p->r.dtype, p->r.dtype, 7, &again));
    again.r.impl = p->r.impl;
    OK(c, lnt_problem_run(c, &again, false));
    for (int i = 0; p->op->tensors[i].name; i++) {
        if (!p->data[i]) continue;
        check_guards(p->data[i], p->bytes[i], p->op->tensors[i].name, who);
        if (p->op->tensors[i].role != LNT_T_OUTPUT) continue;
        const double budget = lnt_recur_allowed(p->op, p->r.dtype, i);
        lnt_recur_error e = lnt_problem_error(p, truth, i);
        if (e.most > 1e-6 && e.relative > most->output) most->output = e.relative;
        if (!(e.most <= 1e-6) && !(e.relative <= budget))
            fail_msg("%s: %s has relative error %.3g, allowed %.3g; largest %.3g at element %lld", who, p->op->tensors[i].name, e.relative, budget,
                     e.most, (long long)e.worst);
        if (memcmp(p->data[i], again.data[i], p->bytes[i])) fail_msg("%s: %s differs in its bits", who, p->op->tensors[i].name);
    }
    check_guards(p->workspace, p->r.workspace_size, "workspace", who);
    lnt_problem_free(&again);
}

/* False: the implementation declines the case. */
static bool check_implementation(linnet_context *c, const lnt_recur_case *k, const lnt_recur_impl *impl, lnt_problem *p, const lnt_problem *truth,
                                 seen *most)
{
    char who[384];
    p->r.impl = impl->name;
    int n = snprintf(who, sizeof who, "%s %s ", impl->name, lnt_dtype_name(p->r.dtype));
    describe_case(k, who + n, sizeof who - (size_t)n);
    if (!impl->put_backward || !run_both(c, p, who)) { /* it may take the forward pass alone */
        linnet_status s = lnt_problem_run(c, p, false);
        if (s == LINNET_EUNSUPPORTED) return false;
        if (s != LINNET_OK) fail_msg("%s: %s", who, linnet_error_message(c));
        check_forward(c, k, p, truth, who, most);
        return true;
    }
    assert_string_equal(linnet_operator_ran(c), impl->name);
    compare(p, truth, who, most);
    lnt_problem again;
    OK(c, lnt_problem_make(c, k, p->r.dtype, p->r.dtype, 7, &again));
    again.r.impl = impl->name;
    assert_true(run_both(c, &again, who));
    check_same_bits(p, &again, who);
    lnt_problem_free(&again);
    return true;
}

/* Every implementation of a core takes some of the core's cases, or it was not tested. */
static void each_ran(const lnt_recur_case *cases, const lnt_device *d, const int *ran)
{
    const lnt_recur_impl *const *impls = lnt_recur_find(cases->op)->impls;
    for (int i = 0; impls[i]; i++)
        if (impls[i]->device == LNT_DEVICE_CUDA && impls[i]->needs <= d->capability && !ran[i]) fail_msg("no case was taken by %s", impls[i]->name);
}

static void implementations_match_reference(void **state)
{
    (void)state;
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    seen most[2] = { { 0 } };
    int runs = 0, declined = 0;
    list_cases();
    for (size_t s = 0; s < lists; s++) {
        int ran[32] = { 0 };
        for (const lnt_recur_case *k = all_cases[s]; k->op; k++)
            for (int b = 0; b < 2 && tokens_of(k) <= most_tokens && any_asked_for(k); b++) {
                lnt_dtype dtype = b ? LINNET_BF16 : LINNET_F32;
                lnt_problem truth, p;
                make_truth(c, k, dtype, &truth);
                OK(c, lnt_problem_make(c, k, dtype, dtype, 7, &p));
                for (int i = 0; p.op->impls[i]; i++) {
                    const lnt_recur_impl *impl = p.op->impls[i];
                    if (impl->device != LNT_DEVICE_CUDA || impl->needs > c->device->capability) continue;
                    if (!asked_for(k, impl)) continue;
                    bool took = check_implementation(c, k, impl, &p, &truth, &most[b]);
                    ran[i] += took;
                    runs += took;
                    declined += !took;
                }
                lnt_problem_free(&p);
                lnt_problem_free(&truth);
            }
        if (!*only && most_tokens == INT64_MAX) each_ran(all_cases[s], c->device, ran);
    }
    print_message("%d runs, %d declined; largest relative errors (outputs, gradients, gates) float32 %.2g %.2g %.2g, bf16 %.2g %.2g %.2g\n", runs,
                  declined, most[0].output, most[0].gradient, most[0].gate, most[1].output, most[1].gradient, most[1].gate);
    if (!runs && (declined || !*only || most_tokens < INT64_MAX)) fail_msg("of %d runs none was taken: more tokens, or another name", declined);
    linnet_context_destroy(c);
}

/* Every implementation: NaN of one packed sequence reaches no other. */
static void sequences_are_apart(void **state)
{
    (void)state;
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    int runs = 0;
    list_cases();
    for (size_t s = 0; s < lists; s++)
        for (const lnt_recur_case *k = all_cases[s]; k->op; k++) {
            const int64_t tokens = tokens_of(k);
            if (k->sequences < 2 || tokens > most_tokens || tokens > 600) continue;
            for (int run = 0; lnt_recur_find(k->op)->impls[run / 2]; run++) {
                const lnt_recur_impl *impl = lnt_recur_find(k->op)->impls[run / 2];
                if (impl->device != LNT_DEVICE_CUDA || impl->needs > c->device->capability || !asked_for(k, impl)) continue;
                runs += check_apart(c, k, impl, run % 2 ? LINNET_BF16 : LINNET_F32);
            }
        }
    print_message("%d runs\n", runs);
    assert_true(runs > 0 || *only || most_tokens < INT64_MAX);
    linnet_context_destroy(c);
}

/* Writes of strength 0: nothing is written, and what the write would have brought is in dbeta all the same. */
static void strengths_of_zero(void **state)
{
    (void)state;
    static const lnt_recur_case cases[] = {
        { "gated_delta_rule", 1, { 150 }, LNT_HEADS(1, 2, 64, 64), .gate = -0.1, .beta = 1, .states = true },
        { "kda", 2, { 100, 33 }, LNT_HEADS(2, 2, 64, 128), .gate = -0.1, .beta = 1, .states = true },
        { "kda", 1, { 70 }, LNT_HEADS(1, 1, 128, 128), .gate = -0.1, .beta = 2, .states = true },
        { "mesa", 2, { 100, 33 }, LNT_HEADS(1, 2, 64, 64), .gate = -0.1, .beta = 1, .states = true },
        { "mesa", 1, { 70 }, LNT_HEADS(1, 1, 128, 128), .gate = -0.1, .beta = 1, .states = true },
    };
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (const lnt_recur_impl *const *impl = lnt_recur_find(cases[n].op)->impls; *impl; impl++) {
            if ((*impl)->device != LNT_DEVICE_CUDA || !(*impl)->put_backward || !asked_for(&cases[n], *impl)) continue;
            lnt_problem truth, p;
            OK(c, lnt_problem_make(c, &cases[n], LINNET_F64, LINNET_BF16, 7, &truth));
            OK(c, lnt_problem_make(c, &cases[n], LINNET_BF16, LINNET_BF16, 7, &p));
            for (int i = 0; p.op->tensors[i].name; i++)
                for (size_t e = 0; !strcmp(p.op->tensors[i].name, "beta") && e < p.bytes[i] / sizeof(float); e += 3)
                    ((float *)p.data[i])[e] = 0, ((double *)truth.data[i])[e] = 0;
            OK(c, lnt_problem_run(c, &truth, false));
            OK(c, lnt_problem_run(c, &truth, true));
            p.r.impl = (*impl)->name;
            seen most = { 0 };
            if (run_both(c, &p, (*impl)->name)) compare(&p, &truth, (*impl)->name, &most);
            lnt_problem_free(&p);
            lnt_problem_free(&truth);
        }
    linnet_context_destroy(c);
}

static void leave_out(lnt_problem *p, int i)
{
    if (p->data[i]) lnt_free((char *)p->data[i] - LNT_PROBLEM_GUARD);
    p->data[i] = NULL;
    lnt_recur_set(&p->call, &p->op->tensors[i], NULL);
}

/* Every implementation of a case here, without one of its tensors, or (`which` below 0) without all inputs that may be absent, against float64. */
static void check_without(linnet_context *c, const lnt_recur_case *k, int which)
{
    const lnt_recur_op *op = lnt_recur_find(k->op);
    for (int run = 0; op->impls[run / 2]; run++) {
        const lnt_recur_impl *impl = op->impls[run / 2];
        const lnt_dtype dtype = run % 2 ? LINNET_BF16 : LINNET_F32;
        if (impl->device != LNT_DEVICE_CUDA || impl->needs > c->device->capability) continue;
        if (!asked_for(k, impl) || tokens_of(k) > most_tokens) continue;
        lnt_problem p[2];
        char who[384];
        const int at = snprintf(who, sizeof who, "%s %s, without %s, ", impl->name, lnt_dtype_name(dtype),
                                which < 0 ? "what may be absent" : op->tensors[which].name);
        describe_case(k, who + at, sizeof who - (size_t)at);
        for (int t = 0; t < 2; t++) {
            OK(c, lnt_problem_make(c, k, t ? LINNET_F64 : dtype, dtype, 7, &p[t]));
            for (int i = 0; op->tensors[i].name; i++)
                if (which < 0 ? op->tensors[i].absent && op->tensors[i].role == LNT_T_INPUT : i == which) leave_out(&p[t], i);
        }
        OK(c, lnt_problem_run(c, &p[1], false));
        OK(c, lnt_problem_run(c, &p[1], true));
        p[0].r.impl = impl->name;
        seen most = { 0 };
        const int directions = run_some(c, &p[0], who, impl->put_backward ? 2 : 1);
        if (directions) compare_results(&p[0], &p[1], who, directions == 2, &most);
        for (int t = 0; t < 2; t++) lnt_problem_free(&p[t]);
    }
}

/* Inputs that may be absent and are: their gradients are those at what their absence means. */
static void absent_inputs_have_gradients(void **state)
{
    (void)state;
    static const lnt_recur_case cases[] = {
        { "gated_delta_product", 3, { 70, 0, 33 }, LNT_HEADS(1, 2, 20, 24), .beta = 1, .states = true, .option = { { "n_householder", 2 } } },
        { "gated_delta_product", 2, { 130, 9 }, LNT_HEADS(1, 2, 64, 64), .beta = 1, .states = true, .option = { { "n_householder", 2 } } },
        { "gated_delta_product", 1, { 100 }, LNT_HEADS(2, 2, 128, 128), .beta = 2, .states = true },
        { "ttt_linear", 2, { 40, 9 }, { { "H", 2 }, { "D", 20 } }, .beta = 0.3, .states = true },
        { "ttt_mlp", 1, { 40 }, { { "H", 1 }, { "D", 64 }, { "F", 256 } }, .beta = 0.3, .states = true },
        { "titans", 2, { 33, 20 }, { { "H", 2 }, { "D", 64 } }, .beta = 0.3, .states = true },
        { "selective_scan", 2, { 40, 33 }, { { "D", 20 }, { "M", 16 } }, .beta = 0.3, .states = true },
        { "longhorn", 2, { 40, 33 }, { { "D", 20 }, { "M", 16 } }, .beta = 1, .states = true },
        { "s4d", 2, { 130, 9 }, { { "D", 24 }, { "M", 16 } }, .beta = 0.1, .states = true },
        { "long_conv", 2, { 40, 7 }, { { "D", 20 }, { "L", 30 }, { "R", 30 } }, .states = true },
        { "multihead_long_conv", 2, { 40, 7 }, { { "H", 2 }, { "K", 4 }, { "V", 12 }, { "L", 30 }, { "R", 30 } }, .states = true },
    };
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) check_without(c, &cases[n], -1);
    linnet_context_destroy(c);
}

/* Of several initial states, and gradients of results, one that is not given is zeros, whatever the others are. */
static void zeros_may_be_absent_one_by_one(void **state)
{
    (void)state;
    static const lnt_recur_case cases[] = {
        { "multihead_long_conv", 2, { 40, 7 }, { { "H", 2 }, { "K", 4 }, { "V", 12 }, { "L", 30 }, { "R", 30 } }, .states = true },
        { "simple_gla", 2, { 40, 7 }, LNT_HEADS(1, 2, 20, 24), .gate = -0.1, .states = true, .option = { { "normalize", 1 } } },
        { "simple_gla", 1, { 100 }, LNT_HEADS(1, 2, 64, 64), .gate = -0.1, .states = true, .option = { { "normalize", 1 } } },
        { "mlstm", 2, { 70, 7 }, LNT_HEADS(1, 2, 64, 64), .gate = -0.1, .states = true },
        { "mesa", 2, { 70, 7 }, LNT_HEADS(1, 2, 64, 64), .gate = -0.1, .beta = 1, .states = true },
        { "wkv", 2, { 40, 7 }, { { "D", 20 } }, .states = true },
        { "slstm", 2, { 20, 7 }, { { "H", 2 }, { "D", 20 }, { "E", 80 } }, .states = true },
        { "ttt_linear", 2, { 40, 9 }, { { "H", 1 }, { "D", 20 } }, .beta = 0.3, .states = true },
        { "titans", 2, { 33, 20 }, { { "H", 1 }, { "D", 64 } }, .beta = 0.3, .states = true },
    };
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const lnt_recur_tensor *tensors = lnt_recur_find(cases[n].op)->tensors;
        for (int i = 0; tensors[i].name; i++)
            if (tensors[i].role == LNT_T_STATE || tensors[i].role == LNT_T_COTANGENT) check_without(c, &cases[n], i);
    }
    linnet_context_destroy(c);
}

/* A call whose implementation is not named is taken, forward or (`directions` 2) both ways. */
static void check_chosen(linnet_context *c, const lnt_recur_case *k, int directions)
{
    for (int half = 0; half < 2; half++) {
        const lnt_dtype dtype = half ? LINNET_BF16 : LINNET_F32;
        lnt_problem truth, p;
        char who[256];
        describe_case(k, who, sizeof who);
        make_truth(c, k, dtype, &truth);
        OK(c, lnt_problem_make(c, k, dtype, dtype, 7, &p));
        seen most = { 0 };
        assert_int_equal(run_some(c, &p, who, directions), directions);
        compare_results(&p, &truth, who, directions == 2, &most);
        lnt_problem_free(&p);
        lnt_problem_free(&truth);
    }
}

/* Calls of few tokens whose steps a GPU declines, not its chunks: form "auto" takes those. */
static void few_tokens_by_chunks(void **state)
{
    (void)state;
    static const lnt_recur_case cases[] = {
        { "mesa", 2, { 5, 8 }, LNT_HEADS(1, 2, 20, 24), .gate = -0.1, .beta = 1, .option = { { "window", 3 } } },
        { "mesa", 2, { 0, 1 }, LNT_HEADS(1, 1, 64, 64), .gate = -0.1, .beta = 1, .option = { { "window", 64 } } },
        { "simple_gla", 2, { 5, 1 }, LNT_HEADS(1, 1, 600, 24), .gate = -0.1, .states = true },
    };
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        if (wanted(cases[n].op)) check_chosen(c, &cases[n], 1);
    linnet_context_destroy(c);
}

/* Heads as wide as mixers have them unless told otherwise (gated_deltanet, comba) are taken in both directions. */
static void usual_heads_are_taken(void **state)
{
    (void)state;
    static const lnt_recur_case cases[] = {
        { "gated_delta_rule", 2, { 10, 23 }, LNT_HEADS(1, 1, 256, 512), .gate = -0.1, .beta = 1, .states = true },
        { "dplr", 3, { 70, 0, 9 }, LNT_HEADS(1, 2, 60, 300), .gate = -0.1, .reset = 0.02, .states = true },
        { "dplr", 1, { 17 }, LNT_HEADS(1, 1, 256, 512), .gate = -0.1, .states = true },
    };
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        if (wanted(cases[n].op) && tokens_of(&cases[n]) <= most_tokens) check_chosen(c, &cases[n], 2);
    linnet_context_destroy(c);
}

/* GPUs whose blocks have 99 KB of shared memory pass more barriers, and have the same bits. */
static void scans_in_little_shared_memory(void **state)
{
    (void)state;
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    static const lnt_recur_case cases[] = {
        { "selective_scan", 3, { 70, 0, 33 }, { { "D", 50 }, { "M", 16 } }, .beta = 0.3, .states = true },
        { "selective_scan", 2, { 100, 31 }, { { "D", 40 }, { "M", 29 } }, .beta = 0.3, .states = true },
        { "selective_scan", 2, { 40, 7 }, { { "D", 21 }, { "M", 100 } }, .beta = 0.3, .states = true },
        { "longhorn", 2, { 70, 9 }, { { "D", 40 }, { "M", 16 } }, .beta = 3, .states = true },
    };
    const size_t has = c->device->block_shared;
    seen most = { 0 };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        if (!wanted(cases[n].op) || tokens_of(&cases[n]) > most_tokens) continue;
        lnt_problem p[3] = { { 0 } }; /* the truth, with all the shared memory that there is, with 99 KB */
        char who[256];
        describe_case(&cases[n], who, sizeof who);
        for (int i = 0; i < 3; i++) {
            c->device->block_shared = i == 2 ? 99 << 10 : has;
            OK(c, lnt_problem_make(c, &cases[n], i ? LINNET_BF16 : LINNET_F64, LINNET_BF16, 7, &p[i]));
            p[i].r.impl = i ? "chunk-cuda" : NULL;
            if (run_both(c, &p[i], who) && i) compare(&p[i], &p[0], who, &most);
        }
        c->device->block_shared = has;
        for (int i = 0; p[1].op->tensors[i].name; i++)
            if (p[1].data[i] && memcmp(p[1].data[i], p[2].data[i], p[1].bytes[i])) fail_msg("%s: %s has other bits", who, p[1].op->tensors[i].name);
        for (int i = 0; i < 3; i++) lnt_problem_free(&p[i]);
    }
    linnet_context_destroy(c);
}

/* Tensors an element behind a boundary of 16 bytes: those that may be, which every implementation takes, or all. One that has to be aligned is
 * refused, and nothing is written. */
static void unaligned(linnet_context *c, const lnt_recur_case *k, lnt_dtype dtype, const lnt_recur_impl *impl, const lnt_problem *truth, bool all,
                      seen *most)
{
    lnt_problem p;
    char who[384];
    int n = snprintf(who, sizeof who, "%s %s, unaligned, ", impl ? impl->name : "chosen", lnt_dtype_name(dtype));
    describe_case(k, who + n, sizeof who - (size_t)n);
    OK(c, lnt_problem_make(c, k, dtype, dtype, 7, &p));
    p.r.impl = impl ? impl->name : NULL;
    bool refused = false;
    for (int i = 0; p.op->tensors[i].name; i++) {
        const bool has_to = lnt_recur_aligned(&p.call, i);
        if (!p.data[i] || (has_to && !all)) continue;
        p.shift[i] = (uint8_t)lnt_dtype_size(lnt_recur_type(&p.call, i));
        refused |= has_to;
    }
    const bool backward = !impl || impl->put_backward != NULL;
    if (refused) {
        for (int b = 0; b <= backward; b++) {
            const linnet_status s = lnt_problem_run(c, &p, b);
            if (s == LINNET_EUNSUPPORTED && impl) break;
            if (s != LINNET_EINVAL || !strstr(linnet_error_message(c), "a multiple of 16")) fail_msg("%s: %s", who, linnet_error_message(c));
            for (int i = 0; p.op->tensors[i].name; i++)
                for (size_t e = 0; p.data[i] && p.op->tensors[i].role == (b ? LNT_T_GRADIENT : LNT_T_OUTPUT) && e < p.bytes[i]; e++)
                    if (((uint8_t *)p.data[i])[e] != 0xff) fail_msg("%s: %s was written", who, p.op->tensors[i].name);
        }
    } else if (!backward) {
        const linnet_status s = lnt_problem_run(c, &p, false);
        if (s != LINNET_OK && s != LINNET_EUNSUPPORTED) fail_msg("%s: %s", who, linnet_error_message(c));
        for (int i = 0; p.op->tensors[i].name; i++) { /* other bits than aligned tensors give: sums may go in another order */
            if (s != LINNET_OK || !p.data[i] || p.op->tensors[i].role != LNT_T_OUTPUT) continue;
            const lnt_recur_error e = lnt_problem_error(&p, truth, i);
            if (!(e.relative <= lnt_recur_allowed(p.op, dtype, i)))
                fail_msg("%s: %s has relative error %.3g", who, p.op->tensors[i].name, e.relative);
            check_guards(p.data[i], p.bytes[i], p.op->tensors[i].name, who);
        }
    } else if (run_both(c, &p, who))
        compare(&p, truth, who, most);
    OK(c, lnt_device_check(c));
    lnt_problem_free(&p);
}

static void unaligned_tensors(void **state)
{
    (void)state;
    linnet_context *c = wanted("unaligned") ? make_cuda_context() : NULL;
    if (!c) skip();
    static const char *const ops[] = { "simple_gla", "gated_delta_rule", "attention", "mesa" };
    seen most = { 0 };
    for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
        for (int half = 0; half < 2; half++)
            for (int size = 0; size < 4; size++) {
                const lnt_recur_case k = { ops[o], 2, { 70, 33 }, LNT_HEADS(2, 2, size % 2 ? 64 : 18, size / 2 ? 64 : 22), .gate = -0.1, .beta = 1,
                                           .states = strcmp(ops[o], "attention") != 0 };
                const lnt_dtype dtype = half ? LINNET_BF16 : LINNET_F32;
                lnt_problem truth;
                make_truth(c, &k, dtype, &truth);
                for (int all = 0; all < 2; all++) {
                    unaligned(c, &k, dtype, NULL, &truth, all, &most);
                    for (int i = 0; truth.op->impls[i]; i++) {
                        const lnt_recur_impl *impl = truth.op->impls[i];
                        if (impl->device == LNT_DEVICE_CUDA && impl->needs <= c->device->capability)
                            unaligned(c, &k, dtype, impl, &truth, all, &most);
                    }
                }
                lnt_problem_free(&truth);
            }
    linnet_context_destroy(c);
}

static int tensor_named(const lnt_problem *p, const char *name)
{
    int i = lnt_recur_tensor_find(p->op, name);
    assert_true(i >= 0);
    return i;
}

/* The reports, which problems do not ask for. */
static void ask_for(lnt_problem *p, const char *name)
{
    int i = tensor_named(p, name);
    p->bytes[i] = (size_t)lnt_recur_elements(&p->call, i) * sizeof(float);
    char *block = lnt_alloc(p->bytes[i] + 2 * LNT_PROBLEM_GUARD);
    assert_non_null(block);
    memset(block, 0xa5, p->bytes[i] + 2 * LNT_PROBLEM_GUARD);
    p->data[i] = block + LNT_PROBLEM_GUARD;
    lnt_recur_set(&p->call, &p->op->tensors[i], p->data[i]);
}

static void same(const lnt_problem *gpu, const lnt_problem *cpu, const char *name, double allowed, const char *who)
{
    lnt_recur_error e = lnt_problem_error(gpu, cpu, tensor_named(gpu, name));
    if (!(e.relative <= allowed) && !(e.most <= 1e-6)) fail_msg("%s: %s differs by %.3g, allowed %.3g", who, name, e.relative, allowed);
}

/* Every solver and guess takes the CPU's steps, leaves its residuals and gives its gradients; at a tolerance too. */
static void mesa_solvers_match_the_cpu(void **state)
{
    (void)state;
    linnet_context *gpu = wanted("mesa solvers") ? make_cuda_context() : NULL, *cpu;
    if (!gpu) skip();
    cpu = make_context(2);
    static const int counts[] = { 0, 1, 5, 40 };
    static const lnt_recur_case shapes[] = {
        { "mesa", 2, { 70, 33 }, LNT_HEADS(1, 2, 20, 24), .gate = -0.1, .beta = 1, .states = true },
        { "mesa", 1, { 67 }, LNT_HEADS(1, 1, 130, 64), .gate = -0.05, .beta = 1, .states = true },
    };
    for (int run = 0; run < 160; run++) {
        lnt_problem p[2];
        int solver = (run % 5);
        bool token = run / 10 % 2, half = solver == LNT_CG_FLASH;
        int most = counts[run / 20 % 4];
        char who[128];
        snprintf(who, sizeof who, "solver %d, guess %d, %s, %d steps, shape %d", (int)solver, run / 5 % 2, token ? "by tokens" : "in chunks", most,
                 run / 80);
        for (int i = 0; i < 2; i++) {
            OK(cpu, lnt_problem_make(cpu, &shapes[run / 80], LINNET_F32, LINNET_F32, 5, &p[i]));
            ask_for(&p[i], "steps");
            ask_for(&p[i], "residual");
            mesa_args(&p[i])->cg_solver = solver;
            mesa_args(&p[i])->cg_guess = (run / 5 % 2);
            p[i].r.form = token ? LINNET_FORM_RECURRENT : LINNET_FORM_CHUNK;
            mesa_args(&p[i])->cg_max_steps = most;
            mesa_args(&p[i])->cg_tolerance = most == 40 ? 1e-4 : 0;
            OK(i ? cpu : gpu, lnt_problem_run(i ? cpu : gpu, &p[i], false));
        }
        double allowed = half ? 3e-3 : most == 40 ? 1e-3 : 2e-5;
        same(&p[0], &p[1], "x", allowed, who);
        same(&p[0], &p[1], "o", allowed, who);
        const float *steps[2] = { mesa_args(&p[0])->steps, mesa_args(&p[1])->steps };
        const float *left[2] = { mesa_args(&p[0])->residual, mesa_args(&p[1])->residual };
        for (int64_t i = 0; i < p[0].r.tokens * mesa_args(&p[0])->Hv; i++) {
            if (!(fabsf(steps[0][i] - steps[1][i]) <= (most == 40 ? 1 : 0)))
                fail_msg("%s: token %lld took %g steps, %g on the CPU", who, (long long)i, steps[0][i], steps[1][i]);
            if (!half && most < 40 && !(fabsf(left[0][i] - left[1][i]) <= 2e-5f * (1 + left[1][i])))
                fail_msg("%s: the residual of token %lld is %g, %g on the CPU", who, (long long)i, left[0][i], left[1][i]);
        }
        if (!token) {
            for (int i = 0; i < 2; i++) OK(i ? cpu : gpu, lnt_problem_run(i ? cpu : gpu, &p[i], true));
            static const char *const gradients[] = { "dq", "dk", "dv", "dg", "dbeta", "dlambda" };
            for (int i = 0; i < 6; i++) same(&p[0], &p[1], gradients[i], half ? 1e-2 : most == 40 ? 2e-3 : 1e-4, who);
        }
        for (int i = 0; i < 2; i++) lnt_problem_free(&p[i]);
    }
    linnet_context_destroy(gpu);
    linnet_context_destroy(cpu);
}

/* Many steps, the same number for all rows (on Hopper a preconditioner of its own), at Lambdas close and far apart, against the solution; the
 * last shape, of chunks enough that those that begin a sequence are dealt out on their own, against the CPU. */
static void mesa_many_steps_match_reference(void **state)
{
    (void)state;
    linnet_context *c = wanted("mesa chunk-sm80 many steps") ? make_cuda_context() : NULL;
    if (!c) skip();
    linnet_context *cpu = make_context(2);
    static const lnt_recur_case shapes[] = {
        { "mesa", 2, { 130, 63 }, LNT_HEADS(1, 2, 64, 64), .gate = -0.1, .beta = 1, .states = true },
        { "mesa", 1, { 150 }, LNT_HEADS(1, 1, 128, 128), .gate = -0.05, .reset = 0.02, .beta = 1, .states = true },
        { "mesa", 1, { 190 }, LNT_HEADS(1, 2, 128, 64), .gate = -0.02, .beta = 1 },
        { "mesa", 1, { 3300 }, LNT_HEADS(4, 32, 64, 64), .gate = -0.02, .beta = 1 },
    };
    for (int run = 0; run < 8 && tokens_of(&shapes[run / 2]) <= most_tokens; run++) {
        const bool large = run / 2 == 3;
        lnt_problem p[2];
        char who[64];
        snprintf(who, sizeof who, "shape %d, Lambda %s", run / 2, run % 2 ? "far apart" : "close");
        for (int i = 0; i < 2; i++) {
            OK(c, lnt_problem_make(c, &shapes[run / 2], i ? LINNET_BF16 : large ? LINNET_F32 : LINNET_F64, LINNET_BF16, 5, &p[i]));
            const int lambda = tensor_named(&p[i], "lambda");
            for (int64_t n = 0; run % 2 && n < lnt_recur_elements(&p[i].call, lambda); n++) {
                const double x = ldexp(1, (int)(n * 5 % 11) - 4);
                if (i || large)
                    ((float *)p[i].data[lambda])[n] = (float)x;
                else
                    ((double *)p[i].data[lambda])[n] = x;
            }
            if (i || large) mesa_args(&p[i])->cg_max_steps = 30, mesa_args(&p[i])->cg_tolerance = 0;
            linnet_context *on = i || !large ? c : cpu;
            OK(on, lnt_problem_run(on, &p[i], false));
            OK(on, lnt_problem_run(on, &p[i], true));
        }
        static const char *const names[] = { "o", "dq", "dk", "dv", "dg", "dbeta", "dlambda" };
        for (int i = 0; i < 7; i++) same(&p[1], &p[0], names[i], i < 4 ? 8e-3 : 2e-2, who);
        for (int i = 0; i < 2; i++) lnt_problem_free(&p[i]);
    }
    linnet_context_destroy(cpu);
    linnet_context_destroy(c);
}

/* ---- mesa's gradient through its steps, and steps whose number a GPU reads --------------------------------------------------------------- */

static void unrolled(lnt_problem *p, int solver, int guess, int steps, double tolerance)
{
    mesa_args(p)->cg_gradient = LNT_CG_UNROLLED;
    mesa_args(p)->cg_solver = solver;
    mesa_args(p)->cg_guess = guess;
    mesa_args(p)->cg_max_steps = steps;
    mesa_args(p)->cg_tolerance = tolerance;
}

static void run_twice(linnet_context *c, const lnt_recur_case *k, lnt_problem *p, const char *who)
{
    lnt_problem again;
    OK(c, lnt_problem_make(c, k, p->r.dtype, p->r.dtype, 7, &again));
    unrolled(&again, (int)mesa_args(p)->cg_solver, (int)mesa_args(p)->cg_guess, mesa_args(p)->cg_max_steps, mesa_args(p)->cg_tolerance);
    assert_true(run_both(c, p, who));
    assert_true(run_both(c, &again, who));
    check_same_bits(p, &again, who);
    lnt_problem_free(&again);
}

/* Every solver and guess, from no step to more than converge, against the same steps in float64; a tolerance that is met between steps. */
static void mesa_unrolled_matches_reference(void **state)
{
    (void)state;
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    static const int counts[] = { 0, 1, 2, 7, 30 };
    static const lnt_recur_case cases[] = {
        { "mesa", 6, { 0, 1, 15, 63, 64, 65 }, LNT_HEADS(1, 2, 32, 40), .gate = -0.1, .beta = 1, .states = true },
        { "mesa", 1, { 100 }, LNT_HEADS(2, 2, 64, 64), .gate = -0.3, .beta = 1, .states = true },
        { "mesa", 1, { 0 }, LNT_HEADS(1, 1, 16, 16), .gate = -0.3, .beta = 1, .states = true },
        { "mesa", 3, { 66, 0, 10 }, LNT_HEADS(1, 2, 128, 64), .gate = -0.05, .reset = 0.03, .beta = 1, .states = true },
        { "mesa", 1, { 65 }, LNT_HEADS(1, 1, 130, 20), .gate = -0.1, .beta = 1 },
        { "mesa", 1, { 64 }, LNT_HEADS(1, 1, 90, 30), .gate = -0.1, .beta = 1, .states = true },
        { "mesa", 1, { 64 }, LNT_HEADS(1, 1, 40, 30), .gate = -0.1, .beta = 1, .states = true },
        { "mesa", 2, { 20, 3 }, LNT_HEADS(1, 1, 100, 30), .gate = -0.1, .beta = 1, .states = true },
        { "mesa", 2, { 200, 1 }, LNT_HEADS(1, 1, 7, 5), .gate = -4, .beta = 1, .states = true },
        { "mesa", 1, { 129 }, LNT_HEADS(1, 3, 50, 60), .gate = -0.02, .beta = 1, .states = true },
    };
    enum { CASES = sizeof cases / sizeof cases[0], RUNS = 8 * 5 };
    seen most[2] = { { 0 } };
    int runs = 0;
    for (int n = 0; n < CASES; n++) {
        char name[64];
        snprintf(name, sizeof name, "mesa chunk-cuda unrolled K=%d", (int)lnt_case_size(&cases[n], "K"));
        if (!wanted(name)) continue;
        for (int run = 0; run < RUNS && tokens_of(&cases[n]) <= most_tokens; run += (int)each)
            for (int b = 0; b < 1 + ((run + n) % 3 == 0); b++) { /* a third of the runs in bf16 too */
                lnt_dtype dtype = b ? LINNET_BF16 : LINNET_F32;
                const int steps = counts[run / 8];
                const double tolerance = run % 8 == 2 && steps == 7 ? 0.1 : 0;
                lnt_problem truth, p;
                char who[256];
                int at = snprintf(who, sizeof who, "%s, solver %d, guess %d, %d steps, tolerance %g ", lnt_dtype_name(dtype), run % 4, run / 4 % 2,
                                  steps, tolerance);
                describe_case(&cases[n], who + at, sizeof who - (size_t)at);
                OK(c, lnt_problem_make(c, &cases[n], LINNET_F64, dtype, 7, &truth));
                OK(c, lnt_problem_make(c, &cases[n], dtype, dtype, 7, &p));
                unrolled(&truth, run % 4, run / 4 % 2, steps, tolerance);
                unrolled(&p, run % 4, run / 4 % 2, steps, tolerance);
                OK(c, lnt_problem_run(c, &truth, false));
                OK(c, lnt_problem_run(c, &truth, true));
                run_twice(c, &cases[n], &p, who);
                assert_string_equal(linnet_operator_ran(c), "chunk-cuda");
                compare(&p, &truth, who, &most[b]);
                runs++;
                lnt_problem_free(&p);
                lnt_problem_free(&truth);
            }
    }
    print_message("%d runs through mesa's steps; largest relative errors (outputs, gradients, gates) float32 %.2g %.2g %.2g, bf16 %.2g %.2g %.2g\n",
                  runs, most[0].output, most[0].gradient, most[0].gate, most[1].output, most[1].gradient, most[1].gate);
    linnet_context_destroy(c);
}

/* GPUs whose blocks have 99 KB of shared memory take other CTAs where K > 64: without tensor cores in the general solve, the sums are the same. */
static void mesa_in_little_shared_memory(void **state)
{
    (void)state;
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    static const lnt_recur_case cases[] = {
        { "mesa", 2, { 70, 33 }, LNT_HEADS(1, 2, 128, 128), .gate = -0.1, .beta = 1, .states = true },
        { "mesa", 3, { 66, 0, 10 }, LNT_HEADS(1, 1, 90, 64), .gate = -0.05, .reset = 0.03, .beta = 1, .states = true },
        { "mesa", 1, { 100 }, LNT_HEADS(1, 1, 256, 20), .gate = -0.1, .beta = 1, .states = true },
        { "mesa", 2, { 65, 3 }, LNT_HEADS(1, 2, 130, 40), .gate = -0.3, .beta = 1 },
        { "mesa", 1, { 70 }, LNT_HEADS(1, 1, 64, 64), .gate = -0.1, .beta = 1, .states = true },
        { "mesa", 2, { 20, 3 }, LNT_HEADS(1, 1, 100, 30), .gate = -0.1, .beta = 1, .states = true },
        { "mesa", 1, { 18 }, LNT_HEADS(1, 1, 140, 30), .gate = -0.1, .beta = 1, .states = true },
    };
    static const char *const impls[] = { "chunk-cuda", "chunk-sm80" };
    const size_t has = c->device->block_shared;
    seen most[2] = { { 0 } };
    int runs = 0;
    static const int solvers[] = { LNT_CG_JACOBI, LNT_CG_PLAIN, LNT_CG_FLASH };
    for (int run = 0; run < (int)(sizeof cases / sizeof *cases) * 24; run++) { /* case, type, implementation, gradient, solver */
        const lnt_recur_case *k = &cases[run / 24];
        const int half = run / 12 % 2, tiles = run / 6 % 2, steps = run / 3 % 2;
        const lnt_dtype dtype = half ? LINNET_BF16 : LINNET_F32;
        const int solver = solvers[run % 3];
        char who[256];
        snprintf(who, sizeof who, "mesa in 99 KB K=%d", (int)lnt_case_size(k, "K"));
        if (!wanted(who) || tokens_of(k) > most_tokens || run % 24 % each || (solver == LNT_CG_FLASH && steps)) continue;
        int n = snprintf(who, sizeof who, "%s %s in 99 KB, gradient %d, solver %d, ", impls[tiles], lnt_dtype_name(dtype), steps, (int)solver);
        describe_case(k, who + n, sizeof who - (size_t)n);
        lnt_problem p[3] = { { 0 } }; /* the truth, with all the shared memory that there is, with 99 KB */
        bool took = true;
        for (int i = 0; i < 3 && took; i++) {
            c->device->block_shared = i == 2 ? 99 << 10 : has;
            OK(c, lnt_problem_make(c, k, i ? dtype : LINNET_F64, dtype, 7, &p[i]));
            unrolled(&p[i], (int)solver, LNT_CG_DIAGONAL, steps ? 5 : 300, steps ? 0 : 1e-6);
            if (!steps) mesa_args(&p[i])->cg_gradient = LNT_CG_IMPLICIT;
            p[i].r.impl = i ? impls[tiles] : NULL;
            took = run_both(c, &p[i], who);
            if (took && i && solver != LNT_CG_FLASH) compare(&p[i], &p[0], who, &most[half]);
        }
        if (took) {
            const int x = tensor_named(&p[0], "x");
            const bool same_sums = !half || solver == LNT_CG_FLASH;
            if (same_sums && memcmp(p[1].data[x], p[2].data[x], p[1].bytes[x])) fail_msg("%s: x has other bits", who);
            if (half && !tiles && !same_sums && (int)lnt_case_size(k, "K") > 64 && (int)lnt_case_size(k,
                    "K") <= 128) assert_memory_not_equal(p[1].data[x], p[2].data[x], p[1].bytes[x]);
            runs++;
        }
        for (int i = 0; i < 3; i++) lnt_problem_free(&p[i]);
    }
    print_message("%d runs in 99 KB; largest relative errors (outputs, gradients, gates) float32 %.2g %.2g %.2g, bf16 %.2g %.2g %.2g\n", runs,
                  most[0].output, most[0].gradient, most[0].gate, most[1].output, most[1].gradient, most[1].gate);
    assert_true(runs > 30 || *only);
    linnet_context_destroy(c);
}

/* Steps behind the one that solves the system leave its solution alone: few columns, or many steps without a tolerance. */
static void mesa_steps_behind_the_solution(void **state)
{
    (void)state;
    static const lnt_recur_case shapes[] = {
        { "mesa", 2, { 5, 1 }, LNT_HEADS(1, 2, 1, 3), .gate = -0.1, .beta = 1 },
        { "mesa", 2, { 1, 9 }, LNT_HEADS(1, 2, 20, 24), .gate = -0.1, .beta = 1 },
    };
    static const int solvers[] = { LNT_CG_LEVEL, LNT_CG_JACOBI, LNT_CG_PLAIN };
    linnet_context *c = wanted("mesa behind the solution") ? make_cuda_context() : NULL;
    if (!c) skip();
    for (int run = 0; run < 2 * 3 * 2 * 2; run++) { /* shape, solver, guess, steps */
        lnt_problem p[2];
        for (int i = 0; i < 2; i++) {
            OK(c, lnt_problem_make(c, &shapes[run / 12], i ? LINNET_F64 : LINNET_F32, LINNET_F32, 3, &p[i]));
            const int lambda = tensor_named(&p[i], "lambda"); /* a model begins with Lambdas that are alike */
            for (int64_t e = 0; e < lnt_recur_elements(&p[i].call, lambda); e++)
                lnt_store_element(p[i].data[lambda], i ? LINNET_F64 : LINNET_F32, e, 1);
        }
        OK(c, lnt_problem_run(c, &p[1], false));
        for (int i = 0; p[0].op->impls[i]; i++) {
            const lnt_recur_impl *impl = p[0].op->impls[i];
            if (impl->device != LNT_DEVICE_CUDA || impl->needs > c->device->capability) continue;
            mesa_args(&p[0])->cg_solver = solvers[run / 4 % 3];
            mesa_args(&p[0])->cg_guess = run / 2 % 2;
            mesa_args(&p[0])->cg_max_steps = run % 2 ? 200 : 40;
            mesa_args(&p[0])->cg_tolerance = 0;
            p[0].r.impl = impl->name;
            const linnet_status s = lnt_problem_run(c, &p[0], false);
            char who[128];
            snprintf(who, sizeof who, "%s, solver %d, guess %d, %d steps", impl->name, solvers[run / 4 % 3], run / 2 % 2, run % 2 ? 200 : 40);
            if (s == LINNET_EUNSUPPORTED) continue;
            OK(c, s);
            same(&p[0], &p[1], "o", 1e-5, who);
        }
        for (int i = 0; i < 2; i++) lnt_problem_free(&p[i]);
    }
    linnet_context_destroy(c);
}

/* A number of steps that is read on the device gives the bits of the same number in the call: all ways to solve, none included. */
static void mesa_steps_on_the_device(void **state)
{
    (void)state;
    linnet_context *c = wanted("mesa drawn") ? make_cuda_context() : NULL;
    if (!c) skip();
    static const lnt_recur_case shapes[] = {
        { "mesa", 2, { 70, 33 }, LNT_HEADS(1, 2, 64, 24), .gate = -0.1, .beta = 1, .states = true },
        { "mesa", 1, { 67 }, LNT_HEADS(1, 1, 140, 64), .gate = -0.05, .beta = 1, .states = true },
    };
    static const char *const impls[] = { "chunk-sm80", "chunk-cuda", "recurrent-cuda" };
    void *place;
    OK(c, lnt_device_alloc(c, sizeof(int32_t), &place));
    int ran = 0;
    for (int run = 0; run < 3 * 5 * 2; run++) { /* implementation, solver, guess */
        const int which = run % 3, solver = run / 3 % 5, guess = run / 15;
        const lnt_recur_case *k = &shapes[which && (solver + guess) % 2];
        for (int32_t steps = 0; steps < 4; steps += 3) {
            lnt_problem p[2];
            bool took = true;
            lnt_dtype dtype = which ? LINNET_F32 : LINNET_BF16;
            for (int i = 0; i < 2 && took; i++) {
                OK(c, lnt_problem_make(c, k, dtype, dtype, 5, &p[i]));
                ask_for(&p[i], "steps");
                unrolled(&p[i], solver, guess, i ? 6 : steps, 0);
                mesa_args(&p[i])->cg_gradient = which && guess != solver % 2 && solver < 4 ? LNT_CG_UNROLLED : LNT_CG_IMPLICIT;
                p[i].r.impl = impls[which];
                if (i) {
                    lnt_to_device(c, place, &steps, sizeof steps);
                    mesa_args(&p[i])->cg_steps_device = place;
                }
                linnet_status s = lnt_problem_run(c, &p[i], false);
                took = s == LINNET_OK;
                if (s != LINNET_EUNSUPPORTED) OK(c, s);
                if (took && which < 2) OK(c, lnt_problem_run(c, &p[i], true));
                if (!took) lnt_problem_free(&p[i]);
            }
            if (!took) continue;
            char who[128];
            snprintf(who, sizeof who, "%s, solver %d, guess %d, %d steps on the device", impls[which], solver, guess, (int)steps);
            check_same_bits(&p[0], &p[1], who);
            ran++;
            for (int i = 0; i < 2; i++) lnt_problem_free(&p[i]);
        }
    }
    print_message("%d calls whose steps the device reads\n", ran);
    assert_true(ran > 50);
    lnt_device_free(c, place);
    linnet_context_destroy(c);
}

/* NaN stays NaN, whatever solves: no comparison takes it for a row that is done. */
static void mesa_shows_nan_on_the_gpu(void **state)
{
    (void)state;
    linnet_context *c = wanted("mesa nan") ? make_cuda_context() : NULL;
    if (!c) skip();
    for (int i = 0; lnt_recur_mesa.impls[i]; i++) {
        const lnt_recur_impl *impl = lnt_recur_mesa.impls[i];
        if (impl->device != LNT_DEVICE_CUDA || impl->needs > c->device->capability) continue;
        int ran = 0;
        for (int half = 0; half < 2; half++) ran += mesa_shows_nan(c, impl, half ? LINNET_BF16 : LINNET_F32, 0);
        for (int half = 0; half < 2 && !ran; half++) ran += mesa_shows_nan(c, impl, half ? LINNET_BF16 : LINNET_F32, 5 * NAN_CHUNK);
        if (!ran) fail_msg("%s took no call", impl->name);
    }
    linnet_context_destroy(c);
}

int main(int argc, char **argv)
{
    if (argc > 1) only = argv[1];
    if (argc > 2) most_tokens = strtoll(argv[2], NULL, 10);
    if (argc > 3) each = strtoll(argv[3], NULL, 10);
    const struct CMUnitTest tests[] = { cmocka_unit_test(implementations_match_reference),
        cmocka_unit_test(sequences_are_apart),
        cmocka_unit_test(strengths_of_zero), cmocka_unit_test(absent_inputs_have_gradients),
        cmocka_unit_test(zeros_may_be_absent_one_by_one), cmocka_unit_test(few_tokens_by_chunks),
        cmocka_unit_test(usual_heads_are_taken),
        cmocka_unit_test(mesa_steps_behind_the_solution), cmocka_unit_test(mesa_solvers_match_the_cpu),
                                        cmocka_unit_test(mesa_many_steps_match_reference),
                                        cmocka_unit_test(mesa_unrolled_matches_reference), cmocka_unit_test(mesa_steps_on_the_device),
                                        cmocka_unit_test(mesa_shows_nan_on_the_gpu), cmocka_unit_test(mesa_in_little_shared_memory),
                                        cmocka_unit_test(scans_in_little_shared_memory),
                                        cmocka_unit_test(unaligned_tensors) };
    return exit_status(cmocka_run_group_tests(tests, NULL, NULL));
}

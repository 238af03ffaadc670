/* The recurrences: references against mathematics, every implementation against the references, the public call, goldens. Long: one walk over
 * cases serves all tests. */
#include "recurrence_check.h"

#include <fnmatch.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/context.h"
#include "hub/safetensors.h"
#include "core/threads.h"
#include "golden_files.h"
#include "pool_of.h"
#include "sanitized.h"

/* ---- references ---------------------------------------------------------------------------------------------------------------------- */

/* The cases of every core, each once: operators of a core share them. `at` begins as zeros; NULL at the end. */
typedef struct {
    int op;
    const lnt_recur_case *k;
} cursor;
static const char *only; /* of operators of this pattern alone */
static bool is_wanted(const char *op) { return !only || fnmatch(only, op, 0) == 0; }
static const lnt_recur_case *next_case(cursor *at)
{
    for (; lnt_recur_at(at->op); at->op++, at->k = NULL) {
        bool seen_before = false;
        for (int i = 0; i < at->op; i++) seen_before |= lnt_recur_at(i)->cases == lnt_recur_at(at->op)->cases;
        if (seen_before) continue;
        at->k = at->k ? at->k + 1 : lnt_recur_at(at->op)->cases;
        while (at->k->op && !is_wanted(at->k->op)) at->k++;
        if (at->k->op) return at->k;
    }
    return NULL;
}

/* The float64 references take most of the time that long cases take. Their own code for other types of tensors is tested on the rest. */
enum { LONG = 300 };
static bool is_long(const lnt_recur_case *k)
{
    int64_t tokens = 0;
    for (int i = 0; i < k->sequences; i++) tokens += k->length[i];
    return tokens > LONG;
}

static bool is_reference(const lnt_recur_impl *impl) { return !strcmp(impl->name, "reference"); }

/* <outputs, their cotangents>: an output's row is followed by its cotangent's. */
static double objective(const lnt_problem *p)
{
    double sum = 0;
    for (int i = 0; p->op->tensors[i].name; i++) {
        const double *x = p->data[i], *d = p->data[i + 1];
        if (p->op->tensors[i].role != LNT_T_OUTPUT || !x || !d) continue;
        for (size_t j = 0; j < p->bytes[i] / 8; j++) sum += x[j] * d[j];
    }
    return sum;
}

/* The objective's central difference along `way`. */
static double quotient(linnet_context *c, lnt_problem *p, double *x, const double *kept, const double *way, int64_t count, double h)
{
    double side[2];
    for (int s = 0; s < 2; s++) {
        for (int64_t j = 0; j < count; j++) x[j] = kept[j] + (s ? -h : h) * way[j];
        OK(c, lnt_problem_run(c, p, false));
        side[s] = objective(p);
    }
    return (side[0] - side[1]) / (2 * h);
}

/* Gradients against central differences along random directions, one input at a time, on every short case. A reset (g = -inf) is left where it is. */
static void gradients_match_differences(void **state)
{
    (void)state;
    if (SANITIZED) skip(); /* the reference runs on every case below */
    linnet_context *c = make_context(1);
    cursor at = { 0 };
    uint64_t n = 0;
    for (const lnt_recur_case *k; (k = next_case(&at)); n++) {
        int64_t tokens = 0;
        for (int i = 0; i < k->sequences; i++) tokens += k->length[i];
        if (tokens > 110) continue;
        lnt_problem p;
        char who[256];
        describe_case(k, who, sizeof who);
        make_truth(c, k, LINNET_F64, &p);
        for (int i = 0; p.op->tensors[i].name; i++) {
            const lnt_recur_tensor *t = &p.op->tensors[i];
            if (!p.data[i] || t->role > LNT_T_STATE) continue;
            const char *name = t[1].name; /* its gradient */
            int64_t count = (int64_t)(p.bytes[i] / 8);
            double *x = p.data[i], *dx = p.data[i + 1], *kept = lnt_alloc(p.bytes[i]), *way = lnt_alloc(p.bytes[i]), dot = 0;
            memcpy(kept, x, p.bytes[i]);
            lnt_rng rng = lnt_rng_make(3, n * 100 + (uint64_t)i);
            bool symmetric = t->values == LNT_VALUES_SYMMETRIC;
            int64_t K = lnt_case_size(k, "K");
            for (int64_t j = 0; j < count; j++) {
                int64_t mirror = symmetric ? j / (K * K) * K * K + j % K * K + j / K % K : j;
                way[j] = symmetric && mirror < j ? way[mirror] : lnt_rng_normal(&rng);
                dot += dx[j] * way[j];
            }
            double slope = quotient(c, &p, x, kept, way, count, 1e-5);
            /* a bent objective: the quotient's error goes with h^2, and two of them tell it */
            if (fabs(slope - dot) > 1e-6 * (1 + fabs(slope))) slope = (4 * quotient(c, &p, x, kept, way, count, 0.5e-5) - slope) / 3;
            memcpy(x, kept, p.bytes[i]);
            OK(c, lnt_problem_run(c, &p, false));
            if (fabs(slope - dot) > 1e-6 * (1 + fabs(slope)))
                fail_msg("%s: <%s, direction> = %.10g, difference quotient %.10g", who, name, dot, slope);
            lnt_free(kept);
            lnt_free(way);
        }
        lnt_problem_free(&p);
    }
    linnet_context_destroy(c);
}

/* Outputs are linear in v and the state it is written to: <outputs, cotangents> = <v, dv> + <state, dstate>. Mesa's H and mLSTM's n and m do not
 * depend on v, and normalised outputs are not linear in the sum of keys. Changes the truth. */
static void check_adjoint(const lnt_recur_case *k, lnt_problem *p)
{
    if (k->option[0].value == 1 || p->op->nonlinear) return;
    static const char *const aside[] = { "sT_kk", "nT", "mT" }; /* states beside it */
    for (int i = 0; i < 3; i++)
        if (tensor(p, aside[i])) memset(tensor(p, aside[i]), 0, tensor_bytes(p, aside[i]));
    double left = objective(p), right = 0, size = 1;
    static const char *const linear[] = { "v", "x", "u", "s0", "s0_kv" };
    for (int i = 0; i < 5; i++) {
        if (i == 1 && tensor(p, "v")) continue; /* mesa's x is another */
        const int row = lnt_recur_tensor_find(p->op, linear[i]);
        const double *x = row < 0 ? NULL : p->data[row], *d = x ? p->data[row + 1] : NULL;
        for (size_t j = 0; d && j < p->bytes[row] / 8; j++) right += x[j] * d[j], size += fabs(x[j] * d[j]);
    }
    char who[256];
    describe_case(k, who, sizeof who);
    if (fabs(left - right) > 1e-12 * size) fail_msg("%s: %.15g is not %.15g", who, left, right);
}

/* ---- implementations ------------------------------------------------------------------------------------------------------------------- */

/* Every implementation that this machine can run has taken a case in each direction that it has; it says how many cannot be run here. */
static void each_ran(bool (*ran)[2], int *absent)
{
    for (int o = 0, at = 0; lnt_recur_at(o); o++)
        for (int i = 0; lnt_recur_at(o)->impls[i]; i++, at++) {
            const lnt_recur_impl *impl = lnt_recur_at(o)->impls[i];
            if (impl->device != LNT_DEVICE_CPU || !is_wanted(lnt_recur_at(o)->name)) continue;
            *absent += impl->needs > (int)lnt_cpu_machine();
            for (int back = 0; back < (impl->backward ? 2 : 1) && impl->needs <= (int)lnt_cpu_machine(); back++)
                if (!ran[at][back]) fail_msg("no case of %s was taken by %s %s", lnt_recur_at(o)->name, impl->name, back ? "backward" : "forward");
        }
}

/* The place of an operator's i-th implementation in each_ran's list. */
static int place_of(const lnt_recur_op *op, int i)
{
    for (int o = 0; lnt_recur_at(o) != op; o++)
        for (int n = 0; lnt_recur_at(o)->impls[n]; n++) i++;
    return i;
}

typedef struct {
    linnet_context *c;
    seen most[2], of_chunks; /* float32, bf16; both */
    int runs, declined;
    bool ran[1024][2]; /* forward, backward */
} tally;

/* Every implementation that this machine has; the reference on cases that are not long. */
static void check_implementations(tally *all, const lnt_recur_case *k, lnt_problem *p, const lnt_problem *truth)
{
    const lnt_dtype dtype = p->r.dtype;
    linnet_context *c = all->c;
    for (int i = 0; p->op->impls[i]; i++) {
        const lnt_recur_impl *impl = p->op->impls[i];
        if (impl->device != LNT_DEVICE_CPU || impl->needs > (int)lnt_cpu_machine() || (is_reference(impl) && is_long(k))) continue;
        if (SANITIZED && dtype == LINNET_BF16 && impl->needs < (int)lnt_cpu_machine()) continue;
        lnt_cpu_force((lnt_cpu_level)impl->needs);
        p->r.impl = impl->name;
        char who[384];
        int n = snprintf(who, sizeof who, "%s %s ", impl->name, lnt_dtype_name(dtype));
        describe_case(k, who + n, sizeof who - (size_t)n);
        const int ran = run_some(c, p, who, 2), place = place_of(p->op, i);
        all->runs += ran > 0, all->declined += ran == 0;
        if (!ran) continue;
        assert_string_equal(linnet_operator_ran(c), impl->name);
        compare_results(p, truth, who, ran == 2, &all->most[dtype == LINNET_BF16]);
        all->ran[place][0] = true, all->ran[place][1] |= ran == 2;
    }
    lnt_cpu_force(lnt_cpu_machine());
    p->r.impl = NULL;
}

/* NaN of one packed sequence reaches no other. */
static void sequences_are_apart(void **state)
{
    (void)state;
    linnet_context *c = make_context(1);
    cursor at = { 0 };
    int runs = 0;
    for (const lnt_recur_case *k; (k = next_case(&at));) {
        int64_t tokens = 0;
        for (int i = 0; i < k->sequences; i++) tokens += k->length[i];
        if (k->sequences < 2 || tokens > 200) continue;
        for (int run = 0; lnt_recur_find(k->op)->impls[run / 2]; run++) {
            const lnt_recur_impl *impl = lnt_recur_find(k->op)->impls[run / 2];
            if (impl->device != LNT_DEVICE_CPU || impl->needs != (int)lnt_cpu() || is_reference(impl)) continue;
            runs += check_apart(c, k, impl, run % 2 ? LINNET_BF16 : LINNET_F32);
        }
    }
    print_message("%d runs\n", runs);
    assert_true(runs > 0);
    linnet_context_destroy(c);
}

/* Any chunk length and every form give the same result, within rounding. */
static void check_chunk_lengths(tally *all, const lnt_recur_case *k, lnt_problem *p, const lnt_problem *truth)
{
    static const int chunks[] = { 1, 7, 16, 64 };
    linnet_context *c = all->c;
    /* The parallel form's float32 error grows with its one chunk: 2.5e-6 at 2300 tokens, where chunks have 1e-6. */
    if (lnt_case_size(k, "K") > 64 || k->length[0] > 2000) return;
    for (int i = 0; i < (is_long(k) ? 5 : 6); i++) {
        p->r.form = i < 4 ? LINNET_FORM_CHUNK : i == 4 ? LINNET_FORM_PARALLEL : LINNET_FORM_RECURRENT;
        p->r.chunk = i < 4 ? chunks[i] : 0;
        char who[384];
        int n = snprintf(who, sizeof who, "form %d chunk %d %s ", (int)p->r.form, p->r.chunk, lnt_dtype_name(p->r.dtype));
        describe_case(k, who + n, sizeof who - (size_t)n);
        assert_true(run_both(c, p, who));
        compare(p, truth, who, &all->of_chunks);
    }
}

/* Every case, float32 and bf16, forward and backward, against one reference each. */
static void implementations_match_reference(void **state)
{
    (void)state;
    tally all = { .c = make_context(2) };
    int absent = 0;
    cursor at = { 0 };
    for (const lnt_recur_case *k; (k = next_case(&at));)
        for (int b = 0; b < 2; b++) {
            lnt_dtype dtype = b ? LINNET_BF16 : LINNET_F32;
            lnt_problem truth, p;
            make_truth(all.c, k, dtype, &truth);
            OK(all.c, lnt_problem_make(all.c, k, dtype, dtype, 7, &p));
            check_implementations(&all, k, &p, &truth);
            if (!SANITIZED || !b) check_chunk_lengths(&all, k, &p, &truth);
            if (b) check_adjoint(k, &truth);
            lnt_problem_free(&p);
            lnt_problem_free(&truth);
        }
    each_ran(all.ran, &absent);
    const seen *most = all.most;
    printf("  up to %s: %d runs, %d declined, %d implementations that this machine lacks; largest errors f32 %.1e %.1e %.1e, "
           "bf16 %.1e %.1e %.1e (outputs, gradients, gates)\n",
           lnt_cpu_name(lnt_cpu_machine()), all.runs, all.declined, absent, most[0].output, most[0].gradient, most[0].gate, most[1].output,
           most[1].gradient, most[1].gate);
    linnet_context_destroy(all.c);
}

/* Whether another implementation than the reference has the recurrent form's backward pass. */
static bool has_recurrent_backward(const lnt_recur_op *op)
{
    for (int i = 0; op->impls[i]; i++)
        if (op->impls[i]->form == LINNET_FORM_RECURRENT && op->impls[i]->backward && !is_reference(op->impls[i])) return true;
    return false;
}

/* Each case's tensors are drawn once: that takes longer than most calls. */
static void threads_do_not_change_bits(void **state)
{
    (void)state;
    pool backwards = { .way = BACKWARDS };
    const linnet_context_options lent = pool_options(5, &backwards);
    linnet_context *c[4] = { make_context(1), make_context(2), make_context(3), NULL };
    assert_int_equal(linnet_context_create(&lent, &c[3]), LINNET_OK);
    cursor at = { 0 };
    for (const lnt_recur_case *k; (k = next_case(&at));)
        for (int b = 0; b < 2 - SANITIZED; b++) {
            lnt_problem p;
            char who[256];
            void *first[LNT_RECUR_TENSORS] = { 0 };
            describe_case(k, who, sizeof who);
            OK(c[0], lnt_problem_make(c[0], k, b ? LINNET_BF16 : LINNET_F32, b ? LINNET_BF16 : LINNET_F32, 7, &p));
            for (int recurrent = 0; recurrent < 2; recurrent++) {
                p.r.form = recurrent ? LINNET_FORM_RECURRENT : LINNET_FORM_CHUNK;
                for (int i = 0; i < 4; i++) {
                    assert_true(run_some(c[i], &p, who, recurrent && is_long(k) && !has_recurrent_backward(p.op) ? 1 : 2));
                    for (int n = 0; p.op->tensors[n].name; n++) {
                        if (!p.data[n] || !is_result(&p, n)) continue;
                        if (!first[n]) first[n] = lnt_alloc(p.bytes[n]);
                        if (!i)
                            memcpy(first[n], p.data[n], p.bytes[n]);
                        else if (memcmp(first[n], p.data[n], p.bytes[n]))
                            fail_msg("%s: %s differs in its bits with %s threads", who, p.op->tensors[n].name, i == 3 ? "lent" : i == 2 ? "3" : "2");
                    }
                }
            }
            for (int n = 0; n < LNT_RECUR_TENSORS; n++) lnt_free(first[n]);
            lnt_problem_free(&p);
        }
    for (int i = 0; i < 4; i++) linnet_context_destroy(c[i]);
    assert_true(backwards.regions > 100 || only || !lnt_pool_possible());
}

/* Left to itself a call of float32 is not taken by the reference, which is there to be right. */
static void nothing_is_left_to_the_reference(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    cursor at = { 0 };
    for (const lnt_recur_case *k; (k = next_case(&at));) {
        if (is_long(k) || !lnt_recur_find(k->op)->impls[1]) continue; /* an operator may have nothing else */
        lnt_problem p;
        char who[256];
        describe_case(k, who, sizeof who);
        OK(c, lnt_problem_make(c, k, LINNET_F32, LINNET_F32, 7, &p));
        for (int back = 0; back < 2; back++) {
            OK(c, lnt_problem_run(c, &p, back));
            if (!strcmp(linnet_operator_ran(c), "reference")) fail_msg("%s: %s is the reference's", who, back ? "backward" : "forward");
        }
        lnt_problem_free(&p);
    }
    linnet_context_destroy(c);
}

/* The token form goes back over a million tokens with some hundred states, not with one each. */
static void token_form_keeps_few_states(void **state)
{
    (void)state;
    enum { TOKENS = 1 << 20, STATES = 100 };
    static const char *const names[] = { "simple_gla", "gla", "mlstm", "gated_delta_rule", "kda", "dplr" };
    const int64_t cu[2] = { 0, TOKENS };
    linnet_context *c = make_context(1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const lnt_recur_op *op = lnt_recur_find(names[i]);
        lnt_recur_args a;
        size_t bytes;
        lnt_recur_init(op, &a);
        a.dtype = LINNET_F32, a.form = LINNET_FORM_RECURRENT;
        a.tokens = TOKENS, a.sequences = 1, a.cu_seqlens = cu;
        a.Hq = a.Hk = a.Hv = 1, a.K = a.V = 64;
        OK(c, lnt_recur_workspace(c, &a, true, &bytes));
        if (bytes > STATES * 64 * 64 * sizeof(float)) fail_msg("%s: %zu bytes", names[i], bytes);
    }
    linnet_context_destroy(c);
}

/* CPU seconds of both directions of a call whose tokens come behind `empty` sequences of none; the better of two. */
static double seconds_behind(linnet_context *c, lnt_problem *p, int64_t empty, linnet_form form)
{
    double best = INFINITY;
    int64_t *cu = lnt_calloc((size_t)(empty + 2) * sizeof *cu);
    lnt_recur_call call = p->call;
    cu[empty + 1] = call.head.tokens;
    call.head.cu_seqlens = cu, call.head.sequences = empty + 1, call.head.form = form;
    for (int i = 0; p->op->tensors[i].name; i++) /* a state for each would cost in proportion */
        if (p->op->tensors[i].shape[0] == 'N') lnt_recur_set(&call, &p->op->tensors[i], NULL);
    for (int backward = 0; backward < 2; backward++) {
        OK(c, lnt_recur_workspace(c, &call, backward, &call.head.workspace_size));
        call.head.workspace = lnt_alloc(call.head.workspace_size);
        double least = INFINITY;
        for (int i = 0; i < 2; i++) {
            const clock_t start = clock();
            OK(c, lnt_recur_run(c, &call, backward));
            least = fmin(least, (double)(clock() - start) / CLOCKS_PER_SEC);
        }
        best = backward ? best + least : least;
        lnt_free(call.head.workspace);
    }
    lnt_free(cu);
    return best;
}

/* Eight times the sequences cost at most eight times as much and not sixty-four times. */
static void sequences_cost_in_proportion(void **state)
{
    (void)state;
    if (SANITIZED) skip();
    linnet_context *c = make_context(1);
    for (int o = 0; lnt_recur_at(o); o++)
        for (const lnt_recur_case *k = lnt_recur_at(o)->cases; k->op; k++) {
            if (strcmp(k->op, lnt_recur_at(o)->name) != 0) continue;
            lnt_recur_case one = *k;
            one.sequences = 1, one.length[0] = 5;
            for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
                lnt_problem p;
                OK(c, lnt_problem_make(c, &one, LINNET_F32, LINNET_F32, 7, &p));
                const double few = seconds_behind(c, &p, 4096, (linnet_form)form), many = seconds_behind(c, &p, 32768, (linnet_form)form);
                lnt_problem_free(&p);
                if (many > 24 * few + 0.01) fail_msg("%s: %.4f s with 4096 empty sequences, %.4f s with 32768", k->op, few, many);
            }
            break;
        }
    linnet_context_destroy(c);
}

/* ---- the public call ---------------------------------------------------------------------------------------------------------------------- */

/* A problem as a caller gives it: sizes, tensors and options by name. */
typedef struct {
    linnet_operator_call call;
    linnet_operator_size size[12];
    linnet_operator_tensor tensor[LNT_RECUR_TENSORS];
    linnet_operator_option option[12];
} named_call;

static void name_all(lnt_problem *p, named_call *n)
{
    *n = (named_call){ .call = LINNET_OPERATOR_CALL_INIT };
    linnet_operator_call *x = &n->call;
    x->op = p->op->name;
    x->dtype = p->r.dtype;
    x->tokens = p->r.tokens;
    x->sequences = p->r.sequences;
    x->cu_seqlens = p->r.cu_seqlens;
    x->workspace = p->workspace;
    x->workspace_size = p->r.workspace_size;
    for (const lnt_recur_size *s = p->op->sizes; s->letter; s++)
        n->size[x->n_sizes++] = (linnet_operator_size){ s->letter, lnt_recur_size_get(s, &p->call) };
    for (int i = 0; p->op->tensors[i].name; i++)
        if (p->data[i]) n->tensor[x->n_tensors++] = (linnet_operator_tensor){ p->op->tensors[i].name, p->data[i] };
    for (const lnt_recur_option *o = p->op->options; o->key; o++)
        if (!isnan(lnt_recur_option_get(o, &p->call)))
            n->option[x->n_options++] = (linnet_operator_option){ o->key, lnt_recur_option_get(o, &p->call), NULL };
    x->sizes = n->size;
    x->tensors = n->tensor;
    x->options = n->option;
}

/* Every operator called by names gives what its problem gives, forward and backward, bit for bit. */
static void names_are_arguments(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int o = 0; lnt_recur_at(o); o++) {
        const lnt_recur_case *k = lnt_recur_at(o)->cases;
        while (strcmp(k->op, lnt_recur_at(o)->name) != 0) k++;
        lnt_problem a, b;
        named_call n;
        OK(c, lnt_problem_make(c, k, LINNET_F32, LINNET_F32, 5, &a));
        OK(c, lnt_problem_make(c, k, LINNET_F32, LINNET_F32, 5, &b));
        for (int back = 0; back < 2; back++) {
            size_t bytes;
            OK(c, lnt_problem_run(c, &a, back));
            name_all(&b, &n);
            OK(c, linnet_operator_workspace(c, &n.call, back, &bytes));
            n.call.workspace = lnt_alloc(bytes);
            n.call.workspace_size = bytes;
            OK(c, (back ? linnet_operator_backward : linnet_operator_forward)(c, &n.call));
            lnt_free(n.call.workspace);
        }
        for (int i = 0; a.op->tensors[i].name; i++)
            if (a.data[i] && memcmp(a.data[i], b.data[i], a.bytes[i])) fail_msg("%s: %s differs by name", k->op, a.op->tensors[i].name);
        lnt_problem_free(&a);
        lnt_problem_free(&b);
    }
    linnet_context_destroy(c);
}

static void set_tensor(named_call *n, const char *name, void *data)
{
    for (int i = 0; i < n->call.n_tensors; i++)
        if (!strcmp(n->tensor[i].name, name)) {
            n->tensor[i].data = data;
            return;
        }
    n->tensor[n->call.n_tensors++] = (linnet_operator_tensor){ name, data };
}

static void set_size(named_call *n, const char *letter, int64_t value)
{
    for (int i = 0; i < n->call.n_sizes; i++)
        if (!strcmp(n->size[i].letter, letter)) n->size[i].value = value;
}

static void set_option(named_call *n, const char *key, double value) { n->option[n->call.n_options++] = (linnet_operator_option){ key, value,
      NULL }; }

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    lnt_recur_case k = { "gated_delta_rule", 1, { 20 }, LNT_HEADS(1, 2, 20, 24), .gate = -0.3, .beta = 1, .states = true };
    lnt_problem p;
    OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &p));
    OK(c, lnt_problem_run(c, &p, false));
    memset(tensor(&p, "o"), 0x11, tensor_bytes(&p, "o"));
    static const int64_t falling[] = { 0, 12, 8, 20 }, short_cu[] = { 0, 19 }, late[] = { 1, 20 };
    float spare[4] = { 0 };
    named_call n;
#define REFUSED(status, ...)                                                                                                       \
    do {                                                                                                                           \
        name_all(&p, &n);                                                                                                          \
        linnet_operator_call *r = &n.call;                                                                                         \
        (void)r;                                                                                                                   \
        __VA_ARGS__;                                                                                                               \
        assert_int_equal(linnet_operator_forward(c, &n.call), status);                                                             \
        assert_true(strlen(linnet_error_message(c)) > 0);                                                                          \
    } while (0)
    REFUSED(LINNET_EINVAL, r->size = 0);
    REFUSED(LINNET_EINVAL, r->op = "no_such");
    assert_non_null(strstr(linnet_error_hint(c), "gated_delta_rule"));
    REFUSED(LINNET_EINVAL, r->op = NULL);
    REFUSED(LINNET_EINVAL, r->dtype = LINNET_F16);
    REFUSED(LINNET_EINVAL, r->dtype = -1);
    REFUSED(LINNET_EINVAL, r->form = 9);
    REFUSED(LINNET_EINVAL, r->chunk = -1);
    REFUSED(LINNET_EINVAL, r->chunk = (1 << 20) + 1);
    REFUSED(LINNET_EINVAL, set_size(&n, "Hq", 3), set_size(&n, "Hk", 3));
    REFUSED(LINNET_EINVAL, set_size(&n, "Hk", 2));
    REFUSED(LINNET_EINVAL, set_size(&n, "Hq", 0));
    REFUSED(LINNET_EINVAL, set_size(&n, "K", 0));
    REFUSED(LINNET_EINVAL, set_size(&n, "V", 1 << 20));
    REFUSED(LINNET_EINVAL, n.size[0].letter = "X");
    assert_non_null(strstr(linnet_error_hint(c), "Hv"));
    REFUSED(LINNET_EINVAL, r->n_sizes = 0);
    REFUSED(LINNET_EINVAL, r->n_tensors = -1);
    REFUSED(LINNET_EINVAL, r->tensors = NULL);
    REFUSED(LINNET_EINVAL, r->tokens = -1);
    REFUSED(LINNET_EINVAL, r->sequences = -1);
    REFUSED(LINNET_EINVAL, r->cu_seqlens = NULL);
    REFUSED(LINNET_EINVAL, r->cu_seqlens = short_cu);
    REFUSED(LINNET_EINVAL, r->cu_seqlens = late);
    REFUSED(LINNET_EINVAL, r->cu_seqlens = falling, r->sequences = 3);
    REFUSED(LINNET_EINVAL, set_option(&n, "scale", INFINITY));
    REFUSED(LINNET_EINVAL, set_option(&n, "normalize", 1));
    assert_non_null(strstr(linnet_error_hint(c), "scale"));
    REFUSED(LINNET_EINVAL, set_option(&n, "window", 3));
    REFUSED(LINNET_EINVAL, set_tensor(&n, "q", NULL));
    REFUSED(LINNET_EINVAL, set_tensor(&n, "g", NULL));
    REFUSED(LINNET_EINVAL, set_tensor(&n, "beta", NULL));
    REFUSED(LINNET_EINVAL, set_tensor(&n, "o", NULL));
    REFUSED(LINNET_EINVAL, set_tensor(&n, "g_head", spare));
    assert_non_null(strstr(linnet_error_hint(c), "beta"));
    REFUSED(LINNET_EINVAL, set_tensor(&n, "lse", spare));
    REFUSED(LINNET_EINVAL, r->workspace = NULL);
    REFUSED(LINNET_EINVAL, r->workspace_size = 1);
    REFUSED(LINNET_EINVAL, r->workspace = (char *)r->workspace + 4, r->workspace_size -= 4);
    REFUSED(LINNET_EINVAL, r->impl = "no_such");
    assert_non_null(strstr(linnet_error_hint(c), "reference"));
    for (const lnt_recur_impl *const *i = p.op->impls; i[1]; i++) REFUSED(LINNET_EUNSUPPORTED, r->impl = (*i)->name, r->dtype = LINNET_F64);
    for (int level = 1; level < LNT_CPU_VARIANTS; level++) {
        char better[32];
        snprintf(better, sizeof better, "chunk-%s", lnt_cpu_name((lnt_cpu_level)level));
        lnt_cpu_force(LNT_CPU_BASE);
        REFUSED(LINNET_EUNSUPPORTED, r->impl = better);
        lnt_cpu_force(lnt_cpu_machine());
    }
#undef REFUSED
    assert_int_equal(linnet_operator_forward(NULL, &n.call), LINNET_EINVAL);
    assert_int_equal(linnet_operator_forward(c, NULL), LINNET_EINVAL);
    assert_int_equal(linnet_operator_workspace(c, &n.call, 0, NULL), LINNET_EINVAL);
    const uint8_t *o = (const uint8_t *)tensor(&p, "o");
    for (size_t i = 0; i < tensor_bytes(&p, "o"); i++) assert_int_equal(o[i], 0x11); /* nothing was written */
    lnt_problem_free(&p);
    linnet_context_destroy(c);
}

/* Its first case of one sequence that has tokens. */
static const lnt_recur_case *whole_case(const lnt_recur_op *op)
{
    const lnt_recur_case *k = op->cases;
    while (strcmp(k->op, op->name) != 0 || k->sequences != 1 || !k->length[0]) k++;
    return k;
}

/* What a problem has for an operator, as tensors of a file. */
static int given_tensors(const lnt_problem *p, lnt_st_tensor *given)
{
    int n = 0;
    for (int i = 0; p->op->tensors[i].name; i++) {
        if (!p->data[i] || is_result(p, i)) continue;
        const char *shape = p->op->tensors[i].shape, *letter;
        size_t length;
        lnt_st_tensor *t = &given[n++];
        *t = (lnt_st_tensor){ .name = p->op->tensors[i].name, .dtype = LINNET_F32, .count = (int64_t)(p->bytes[i] / 4), .data = p->data[i] };
        if (*shape == 'T') t->dim[t->ndim++] = 1;
        while ((letter = lnt_recur_next_letter(&shape, &length))) t->dim[t->ndim++] = lnt_recur_letter(p->op, &p->call, letter, length);
    }
    return n;
}

/* o_t = sum_s weights_ts v_s for the case of an operator; rows of values that come later have no weight. */
static void check_weights(linnet_context *c, const lnt_recur_op *op, const char *form, const char *in, const char *out)
{
    lnt_recur_case k = *whole_case(op);
    char line[512], pair[LNT_CASE_OPTIONS][64];
    const char *set[LNT_CASE_OPTIONS];
    lnt_problem p;
    k.states = false;
    OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &p));
    lnt_st_tensor given[LNT_RECUR_TENSORS] = { 0 };
    OK(c, lnt_safetensors_write(c, in, given_tensors(&p, given), given, 0, NULL));
    linnet_op_options q = LINNET_OP_OPTIONS_INIT;
    q.op = op->name, q.in = in, q.out = out, q.weights = 1, q.form = form, q.set = set;
    for (; q.n_set < LNT_CASE_OPTIONS && k.option[q.n_set].key; q.n_set++) {
        snprintf(pair[q.n_set], sizeof pair[0], "%s=%g", k.option[q.n_set].key, k.option[q.n_set].value);
        set[q.n_set] = pair[q.n_set];
    }
    OK(c, linnet_op_file(c, &q, line, sizeof line));
    lnt_safetensors *got;
    OK(c, lnt_safetensors_open(c, out, &got));
    const lnt_st_tensor *w = lnt_safetensors_find(got, "weights"), *o = lnt_safetensors_find(got, "o");
    assert_true(w && o && w->ndim == 4 && w->dim[1] == p.r.tokens);
    const int64_t T = p.r.tokens, H = w->dim[2], S = w->dim[3], V = o->dim[3];
    const float *v = tensor(&p, "v");
    assert_true(S % T == 0 && (int64_t)(tensor_bytes(&p, "v") / 4) == S * H * V);
    double error = 0, size = 0;
    for (int64_t i = 0; i < T * H; i++) {
        const float *row = (const float *)w->data + i * S;
        for (int64_t s = (i / H + 1) * (S / T); s < S; s++)
            if (row[s] != 0) fail_msg("%s %s: token %lld weighs row %lld by %g", op->name, form, (long long)(i / H), (long long)s, row[s]);
        for (int64_t j = 0; j < V; j++) {
            double sum = 0;
            for (int64_t s = 0; s < S; s++) sum += (double)row[s] * v[(s * H + i % H) * V + j];
            const double x = ((const float *)o->data)[i * V + j];
            error += (sum - x) * (sum - x);
            size += x * x;
        }
    }
    if (!(error <= 1e-10 * size)) fail_msg("%s %s: the weighed values are %.3g from o", op->name, form, sqrt(error / size));
    lnt_safetensors_close(got);
    lnt_problem_free(&p);
}

static void refuse_weights(linnet_context *c, const lnt_recur_op *op, const char *in, const char *out)
{
    char line[512];
    lnt_problem p;
    lnt_st_tensor given[LNT_RECUR_TENSORS] = { 0 };
    OK(c, lnt_problem_make(c, whole_case(op), LINNET_F32, LINNET_F32, 5, &p));
    OK(c, lnt_safetensors_write(c, in, given_tensors(&p, given), given, 0, NULL));
    linnet_op_options q = LINNET_OP_OPTIONS_INIT;
    q.op = op->name, q.in = in, q.out = out, q.weights = 1;
    assert_int_equal(linnet_op_file(c, &q, line, sizeof line), LINNET_EINVAL);
    if (!strstr(linnet_error_message(c), "are not offered")) fail_msg("%s: %s", op->name, linnet_error_message(c));
    lnt_problem_free(&p);
}

/* The implicit attention matrix of every operator that has one, and the refusal of the others. */
static void weights_are_those_of_values(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    char in[64], out[64];
    int some = 0;
    snprintf(in, sizeof in, "/tmp/linnet-test-op-in-%ld.safetensors", (long)getpid());
    snprintf(out, sizeof out, "/tmp/linnet-test-op-out-%ld.safetensors", (long)getpid());
    for (int o = 0; lnt_recur_at(o); o++) {
        const lnt_recur_op *op = lnt_recur_at(o);
        const bool has = op->weights && lnt_recur_tensor_find(op, "gv") < 0; /* gates of the columns of v */
        some += has;
        for (int f = LINNET_FORM_AUTO; has && f <= LINNET_FORM_PARALLEL; f++) check_weights(c, op, lnt_form_name((linnet_form)f), in, out);
        if (!has) refuse_weights(c, op, in, out);
    }
    assert_true(some >= 8);
    remove(in);
    remove(out);
    linnet_context_destroy(c);
}

/* Every operator through a file, by `linnet op`'s function, gives what its problem gives. */
static void every_operator_on_a_file(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    char in[64], out[64], line[512];
    snprintf(in, sizeof in, "/tmp/linnet-test-op-in-%ld.safetensors", (long)getpid());
    snprintf(out, sizeof out, "/tmp/linnet-test-op-out-%ld.safetensors", (long)getpid());
    for (int o = 0; lnt_recur_at(o); o++) {
        const lnt_recur_op *op = lnt_recur_at(o);
        lnt_problem p;
        OK(c, lnt_problem_make(c, whole_case(op), LINNET_F32, LINNET_F32, 5, &p));
        lnt_st_tensor given[LNT_RECUR_TENSORS] = { 0 };
        const int n = given_tensors(&p, given);
        char text[12][32], pair[12][64];
        const char *metadata[24], *set[12];
        int scalars = 0;
        for (const lnt_recur_option *x = op->options; x->key; x++) {
            const double value = lnt_recur_option_get(x, &p.call);
            if (isnan(value)) continue;
            snprintf(text[scalars], sizeof text[0], "%.17g", value);
            snprintf(pair[scalars], sizeof pair[0], "%s=%s", x->key, text[scalars]);
            set[scalars] = pair[scalars];
            metadata[2 * scalars] = x->key;
            metadata[2 * scalars + 1] = text[scalars];
            scalars++;
        }
        OK(c, lnt_safetensors_write(c, in, n, given, o % 2 ? scalars : 0, metadata));
        linnet_op_options q = LINNET_OP_OPTIONS_INIT;
        q.op = op->name;
        q.in = in;
        q.out = out;
        q.backward = 1;
        q.form = "auto";
        q.dtype = LINNET_F32;
        q.set = o % 2 ? NULL : set;
        q.n_set = o % 2 ? 0 : scalars;
        OK(c, linnet_op_file(c, &q, line, sizeof line));
        OK(c, lnt_problem_run(c, &p, false));
        OK(c, lnt_problem_run(c, &p, true));
        lnt_safetensors *got;
        OK(c, lnt_safetensors_open(c, out, &got));
        int seen_results = 0;
        for (int i = 0; i < got->n; i++) {
            const int row = lnt_recur_tensor_find(op, got->tensors[i].name);
            assert_true(row >= 0);
            if (op->tensors[row].role == LNT_T_REPORT) continue; /* for which a problem does not ask */
            assert_true(p.bytes[row] == (size_t)got->tensors[i].count * 4);
            if (memcmp(got->tensors[i].data, p.data[row], p.bytes[row])) fail_msg("%s: %s differs through a file", op->name, got->tensors[i].name);
            seen_results++;
        }
        assert_true(seen_results >= 2);
        lnt_safetensors_close(got);
        lnt_problem_free(&p);
    }
    remove(in);
    remove(out);
    linnet_context_destroy(c);
}

/* An operator that a GPU has no kernel of says so. */
static void a_gpu_without_kernels_is_refused(void **state)
{
    (void)state;
    linnet_context *c = make_context(1);
    lnt_device *cpu = c->device, gpu = { .kind = LNT_DEVICE_CUDA, .capability = 90 };
    int refused = 0;
    for (int o = 0; lnt_recur_at(o); o++) {
        const lnt_recur_op *op = lnt_recur_at(o);
        bool on_gpu = false;
        for (int i = 0; op->impls[i]; i++) on_gpu |= op->impls[i]->device == LNT_DEVICE_CUDA;
        if (on_gpu) continue;
        lnt_problem p;
        size_t bytes;
        char expected[128];
        OK(c, lnt_problem_make(c, whole_case(op), LINNET_F32, LINNET_F32, 5, &p));
        c->device = &gpu;
        assert_int_equal(lnt_recur_workspace(c, &p.call, false, &bytes), LINNET_EUNSUPPORTED);
        c->device = cpu;
        snprintf(expected, sizeof expected, "%s has no implementation for a GPU", op->name);
        assert_string_equal(linnet_error_message(c), expected);
        lnt_problem_free(&p);
        refused++;
    }
    assert_true(refused > 0); /* the example operator is the CPU's */
    linnet_context_destroy(c);
}

/* `linnet bench op` takes every operator. */
/* A short call with the sizes and options of a case: options that tensors' shapes follow from, too. */
static void time_case(linnet_context *c, const lnt_recur_case *k)
{
    char pair[LNT_CASE_SIZES + LNT_CASE_OPTIONS][64];
    const char *set[LNT_CASE_SIZES + LNT_CASE_OPTIONS];
    linnet_bench_op_options b = LINNET_BENCH_OP_OPTIONS_INIT;
    linnet_bench_op_result r = { .size = sizeof r };
    b.op = k->op;
    b.dtype = LINNET_F32;
    b.B = 2;
    b.T = 40;
    b.repeats = 1;
    for (int i = 0; i < LNT_CASE_SIZES && k->size[i].letter; i++, b.n_set++)
        snprintf(pair[b.n_set], sizeof pair[0], "%s=%lld", k->size[i].letter, (long long)k->size[i].value);
    for (int i = 0; i < LNT_CASE_OPTIONS && k->option[i].key; i++, b.n_set++)
        snprintf(pair[b.n_set], sizeof pair[0], "%s=%g", k->option[i].key, k->option[i].value);
    for (int i = 0; i < b.n_set; i++) set[i] = pair[i];
    b.set = set;
    OK(c, linnet_bench_op(c, &b, &r));
    assert_true(r.forward_seconds > 0 && r.both_seconds > r.forward_seconds && r.forward_flops > 0 && r.both_bytes > r.forward_bytes);
    assert_true(r.forward_error < 1e-4 && r.backward_error < 1e-4 && strchr(r.sizes, '='));
}

static void every_operator_is_timed(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    int with_options = 0;
    for (int o = 0; lnt_recur_at(o); o++) {
        const lnt_recur_op *op = lnt_recur_at(o);
        const char *taken[16] = { NULL };
        int n = 0;
        time_case(c, whole_case(op));
        for (const lnt_recur_case *k = op->cases; k->op; k++) { /* each option alone, with the first case's value of it */
            lnt_recur_case one = *whole_case(op);
            bool new_one = !strcmp(k->op, op->name) && k->option[0].key && !k->option[1].key && n < 16;
            for (int i = 0; i < n && new_one; i++) new_one = strcmp(taken[i], k->option[0].key) != 0;
            if (!new_one) continue;
            taken[n++] = k->option[0].key;
            memset(one.option, 0, sizeof one.option);
            one.option[0] = k->option[0];
            time_case(c, &one);
            with_options++;
        }
    }
    assert_true(with_options > 3);
    linnet_context_destroy(c);
}

/* Descriptions are complete: whole JSON, groups of rows as lnt_recur_tensor says, letters known, arguments that fit. */
static void descriptions_are_whole(void **state)
{
    (void)state;
    for (int o = 0; lnt_recur_at(o); o++) {
        const lnt_recur_op *op = lnt_recur_at(o);
        char text[32768];
        lnt_recur_call call;
        lnt_recur_init(op, &call);
        const size_t length = linnet_operator_describe(op->name, text, sizeof text);
        assert_true(length > 100 && length < sizeof text && text[0] == '{' && text[length - 1] == '}');
        assert_int_equal(linnet_operator_describe(op->name, NULL, 0), length);
        assert_true(op->args_size <= LNT_RECUR_ROOM && lnt_recur_tensor_count(op) < LNT_RECUR_TENSORS);
        for (int i = 0; op->tensors[i].name; i++) {
            const lnt_recur_tensor *t = &op->tensors[i];
            const char *shape = t->shape, *letter;
            size_t n;
            while ((letter = lnt_recur_next_letter(&shape, &n)))
                if (!(n == 1 && (*letter == 'T' || *letter == 'N')) && lnt_recur_letter(op, &call, letter, n) < 0)
                    fail_msg("%s: %s [%s] has a letter that is no size", op->name, t->name, t->shape);
            char gradient[32];
            snprintf(gradient, sizeof gradient, "d%s", t->name);
            if (t->role == LNT_T_INPUT || t->role == LNT_T_STATE || t->role == LNT_T_OUTPUT) assert_string_equal(t[1].name, gradient);
            if (t->role == LNT_T_STATE) assert_true(t[2].role == LNT_T_OUTPUT && t[3].role == LNT_T_COTANGENT && t->shape[0] == 'N');
        }
        bool cased = false;
        for (const lnt_recur_case *k = op->cases; k->op; k++) cased |= !strcmp(k->op, op->name);
        if (!cased) fail_msg("%s has no case", op->name);
    }
    assert_int_equal(linnet_operator_describe("no_such", NULL, 0), 0);
}

/* ---- goldens ------------------------------------------------------------------------------------------------------------------------- */

static void check_golden(linnet_context *c, const char *op, const char *path, lnt_dtype dtype, const char *form, const char *what)
{
    char out[64]; /* of this process: tests may run side by side */
    snprintf(out, sizeof out, "/tmp/linnet-test-recurrence-%ld.safetensors", (long)getpid());
    char line[256];
    linnet_op_options o = LINNET_OP_OPTIONS_INIT;
    o.op = op;
    o.in = path;
    o.out = out;
    o.backward = 1;
    o.form = form;
    o.dtype = dtype;
    OK(c, linnet_op_file(c, &o, line, sizeof line));
    lnt_safetensors *got, *want;
    OK(c, lnt_safetensors_open(c, out, &got));
    OK(c, lnt_safetensors_open(c, path, &want));
    const lnt_recur_op *described = lnt_recur_find(op);
    for (int i = 0; i < got->n; i++) {
        const lnt_st_tensor *x = &got->tensors[i], *y = lnt_safetensors_find(want, x->name);
        const lnt_recur_tensor *row = &described->tensors[lnt_recur_tensor_find(described, x->name)];
        if (!y && (row->shape[0] == 'N' || row->role == LNT_T_REPORT)) continue; /* a final state, how a call went: it does not say */
        if (!y) fail_msg("%s: the golden has no %s", path, x->name);
        assert_int_equal(x->count, y->count);
        double error = 0, norm = 0;
        for (int64_t j = 0; j < x->count; j++) {
            char a[8], b[4];
            memcpy(a, (const char *)x->data + (size_t)j * lnt_dtype_size(x->dtype), lnt_dtype_size(x->dtype));
            memcpy(b, (const char *)y->data + (size_t)j * 4, 4);
            double have = lnt_load_element(a, x->dtype, 0), expect = lnt_load_element(b, LINNET_F32, 0);
            error += (have - expect) * (have - expect);
            norm += expect * expect;
        }
        double allowed = dtype == LINNET_F64 ? 1e-7 : lnt_recur_allowed(described, LINNET_F32, lnt_recur_tensor_find(described, x->name));
        if (!(sqrt(error / norm) <= allowed)) fail_msg("%s %s (%s): %s has relative error %.3g", path, what, line, x->name, sqrt(error / norm));
    }
    lnt_safetensors_close(got);
    lnt_safetensors_close(want);
    remove(out);
}

static void check_goldens(const char *folder)
{
    static const char *const sets[][4] = { { "linear_attn", "linear_attn" },
                                           { "simple_gla", "simple_gla" },
                                           { "mlstm", "mlstm", "full" },
                                           { "gla", "gla" },
                                           { "gla_kv", "gla_kv" },
                                           { "rwkv6", "rwkv6" },
                                           { "dplr", "dplr", "full" }, /* the 8 MB of the tree have no room for these */
                                           { "delta_rule", "delta_rule" },
                                           { "delta_rule_negeig", "delta_rule" },
                                           { "gated_delta_rule", "gated_delta_rule" },
                                           { "kda", "kda" },
                                           { "mesa", "mesa" },
                                           { "scan", "scan" },
                                           { "selective_scan", "selective_scan", "full" },
                                           { "ttt_linear", "ttt_linear", "full", "packed" }, /* which there is none of */
                                           { "ttt_mlp", "ttt_mlp", "full", "packed" },
                                           { "titans", "titans", "full", "packed" },
                                           { "attention", "attention" },
                                           { "attention_window", "attention" } };
    static const char *const files[] = { "base", "packed", "ragged" }, *const forms[] = { "recurrent", "chunk", "parallel" };
    char path[512];
    linnet_context *c = make_context(2);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        for (int f = 0; f < 3; f++) {
            if (sets[i][2] && strcmp(folder, GOLDENS) == 0) continue;
            if (sets[i][3] && strcmp(files[f], sets[i][3]) == 0) continue;
            snprintf(path, sizeof path, "%s/ops/%s/%s.safetensors", folder, sets[i][0], files[f]);
            if (access(path, R_OK) && strcmp(folder, GOLDENS) == 0 && strcmp(files[f], "packed") != 0) continue; /* one of three is in the tree */
            check_golden(c, sets[i][1], path, LINNET_F64, "auto", "f64");
            for (int level = 0; level <= (int)lnt_cpu_machine(); level++)
                for (int form = 0; form < 3; form++) {
                    lnt_cpu_force((lnt_cpu_level)level);
                    check_golden(c, sets[i][1], path, LINNET_F32, forms[form], lnt_cpu_name((lnt_cpu_level)level));
                }
            lnt_cpu_force(lnt_cpu_machine());
        }
    linnet_context_destroy(c);
}

static void goldens(void **state) { (void)state, check_goldens(GOLDENS); }

static void full_goldens(void **state)
{
    (void)state;
    NEEDS_FULL_GOLDENS;
    check_goldens(FULL_GOLDENS);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptions_are_whole),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(implementations_match_reference),
        cmocka_unit_test(sequences_are_apart),
        cmocka_unit_test(threads_do_not_change_bits),
        cmocka_unit_test(nothing_is_left_to_the_reference),
        cmocka_unit_test(token_form_keeps_few_states),
        cmocka_unit_test(sequences_cost_in_proportion),
        cmocka_unit_test(names_are_arguments),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(every_operator_on_a_file), cmocka_unit_test(weights_are_those_of_values),
        cmocka_unit_test(a_gpu_without_kernels_is_refused),
        cmocka_unit_test(every_operator_is_timed),
        cmocka_unit_test(goldens),
        cmocka_unit_test(full_goldens),
    };
    /* test_recurrence [TEST [OPERATOR]], patterns; one that fits nothing is a mistake, and no success */
    bool tests_fit = argc < 2, operators_fit = argc < 3;
    only = argc > 2 ? argv[2] : NULL;
    for (size_t i = 0; argc > 1 && i < sizeof tests / sizeof *tests; i++) tests_fit |= fnmatch(argv[1], tests[i].name, 0) == 0;
    for (int i = 0; lnt_recur_at(i); i++) operators_fit |= is_wanted(lnt_recur_at(i)->name);
    if (!tests_fit || !operators_fit)
        return fprintf(stderr, "test_recurrence: no %s fits %s\n", tests_fit ? "operator" : "test", argv[tests_fit ? 2 : 1]), 2;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The recurrences: references against mathematics, every implementation against the references, identities, goldens, refusals. */
#include "recurrence_check.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/context.h"
#include "hub/safetensors.h"
#include "core/threads.h"
#include "recurrence/recur_node.h"
#include "recurrence/tensors.h"

static const lnt_recur_case *const all_cases[] = { lnt_decay_cases, lnt_delta_cases, lnt_attention_cases, lnt_mesa_cases };

/* ---- references ---------------------------------------------------------------------------------------------------------------------- */

/* <outputs, their cotangents> */
static double objective(const lnt_problem *p)
{
    static const char *const pairs[][2] = { { "o", "do" }, { "sT", "dsT" }, { "zT", "dzT" }, { "sT_kk", "dsT_kk" }, { "sT_kv", "dsT_kv" } };
    double sum = 0;
    for (int i = 0; i < 5; i++) {
        const double *x = p->data[lnt_recur_tensor_find(pairs[i][0])], *d = p->data[lnt_recur_tensor_find(pairs[i][1])];
        size_t n = x && d ? p->bytes[lnt_recur_tensor_find(pairs[i][0])] / 8 : 0;
        for (size_t j = 0; j < n; j++) sum += x[j] * d[j];
    }
    return sum;
}

/* Gradients against central differences along random directions, one input at a time. A reset (g = -inf) is left where it is. */
static void gradients_match_differences(void **state)
{
    (void)state;
    static const lnt_recur_case cases[] = {
        { "linear_attn", 2, { 9, 40 }, 1, 2, 3, 4, .states = true },
        { "linear_attn", 1, { 35 }, 1, 1, 4, 3, .states = true, .normalize = true },
        { "retention", 2, { 5, 7 }, 1, 2, 3, 4, .gate = -1, .states = true },
        { "retention", 1, { 12 }, 1, 2, 3, 4, .gate = -1, .states = true, .normalize = true },
        { "simple_gla", 3, { 7, 0, 35 }, 2, 4, 3, 5, .gate = -1, .reset = 0.1, .states = true },
        { "simple_gla", 1, { 20 }, 1, 1, 3, 5, .gate = -1, .states = true, .normalize = true },
        { "delta_rule", 2, { 7, 35 }, 1, 2, 4, 3, .beta = 2, .states = true },
        { "gated_delta_rule", 3, { 7, 0, 35 }, 2, 4, 3, 5, .gate = -1, .reset = 0.1, .beta = 1, .states = true },
        { "mesa", 3, { 7, 0, 35 }, 1, 2, 4, 5, .gate = -1, .reset = 0.1, .beta = 1, .states = true },
        { "attention", 2, { 7, 12 }, 1, 2, 3, 4, .gate = 0 },
        { "attention", 1, { 9 }, 2, 2, 3, 4, .window = 4, .offset = 6 },
    };
    linnet_context *c = make_context(1);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        lnt_problem p;
        char who[256];
        describe_case(&cases[n], who, sizeof who);
        make_truth(c, &cases[n], LINNET_F64, &p);
        for (int i = 0; i < LNT_RECUR_TENSORS; i++) {
            char name[16];
            snprintf(name, sizeof name, "d%s", lnt_recur_tensors[i].name);
            int d = lnt_recur_tensor_find(name);
            if (!p.data[i] || lnt_recur_tensors[i].role > LNT_T_STATE || d < 0) continue;
            int64_t count = (int64_t)(p.bytes[i] / 8);
            double *x = p.data[i], *dx = p.data[d], *kept = lnt_alloc(p.bytes[i]), *way = lnt_alloc(p.bytes[i]), dot = 0, side[2];
            memcpy(kept, x, p.bytes[i]);
            lnt_rng rng = lnt_rng_make(3, n * 100 + (size_t)i);
            bool symmetric = !strcmp(lnt_recur_tensors[i].name, "s0_kk");
            int64_t K = p.r.K;
            for (int64_t j = 0; j < count; j++) {
                int64_t mirror = j / (K * K) * K * K + j % K * K + j / K % K;
                way[j] = symmetric && mirror < j ? way[mirror] : lnt_rng_normal(&rng);
                dot += dx[j] * way[j];
            }
            double h = 1e-5;
            for (int s = 0; s < 2; s++) {
                for (int64_t j = 0; j < count; j++) x[j] = kept[j] + (s ? -h : h) * way[j];
                OK(c, lnt_problem_run(c, &p, false));
                side[s] = objective(&p);
            }
            memcpy(x, kept, p.bytes[i]);
            OK(c, lnt_problem_run(c, &p, false));
            double slope = (side[0] - side[1]) / (2 * h);
            if (fabs(slope - dot) > 1e-6 * (1 + fabs(slope)))
                fail_msg("%s: <%s, direction> = %.10g, difference quotient %.10g", who, name, dot, slope);
            lnt_free(kept);
            lnt_free(way);
        }
        lnt_problem_free(&p);
    }
    linnet_context_destroy(c);
}

/* Outputs are linear in (v, s0): <outputs, cotangents> = <v, dv> + <s0, ds0>, and for attention <v, dv>. Mesa's H does not depend on v. */
static void adjoint_identity(void **state)
{
    (void)state;
    linnet_context *c = make_context(1);
    for (size_t s = 0; s < sizeof all_cases / sizeof *all_cases; s++)
        for (const lnt_recur_case *k = all_cases[s]; k->op; k++) {
            if (k->normalize) continue;
            lnt_problem p;
            make_truth(c, k, LINNET_F64, &p);
            if (p.op->solve) memset(p.data[lnt_recur_tensor_find("sT_kk")], 0, p.bytes[lnt_recur_tensor_find("sT_kk")]);
            double left = objective(&p), right = 0, size = 1;
            static const char *const pairs[][2] = { { "v", "dv" }, { "s0", "ds0" }, { "s0_kv", "ds0_kv" } };
            for (int i = 0; i < 3; i++) {
                const double *x = p.data[lnt_recur_tensor_find(pairs[i][0])], *d = p.data[lnt_recur_tensor_find(pairs[i][1])];
                size_t count = x && d ? p.bytes[lnt_recur_tensor_find(pairs[i][0])] / 8 : 0;
                for (size_t j = 0; j < count; j++) right += x[j] * d[j], size += fabs(x[j] * d[j]);
            }
            char who[256];
            describe_case(k, who, sizeof who);
            if (fabs(left - right) > 1e-12 * size) fail_msg("%s: %.15g is not %.15g", who, left, right);
            lnt_problem_free(&p);
        }
    linnet_context_destroy(c);
}

/* ---- implementations ------------------------------------------------------------------------------------------------------------------- */

/* Every implementation that this machine has, on every case, float32 and bf16, forward and backward. */
static void implementations_match_reference(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    seen most[2] = { { 0 } };
    int runs = 0, declined = 0;
    for (size_t s = 0; s < sizeof all_cases / sizeof *all_cases; s++)
        for (const lnt_recur_case *k = all_cases[s]; k->op; k++)
            for (int b = 0; b < 2; b++) {
                lnt_dtype dtype = b ? LINNET_BF16 : LINNET_F32;
                lnt_problem truth, p;
                make_truth(c, k, dtype, &truth);
                OK(c, lnt_problem_make(c, k, dtype, dtype, 7, &p));
                for (const lnt_recur_impl *const *i = p.op->impls; *i; i++) {
                    if ((*i)->device != LNT_DEVICE_CPU || (*i)->needs > (int)lnt_cpu_machine()) continue;
                    lnt_cpu_force((lnt_cpu_level)(*i)->needs);
                    p.r.impl = (*i)->name;
                    char who[384];
                    int n = snprintf(who, sizeof who, "%s %s ", (*i)->name, lnt_dtype_name(dtype));
                    describe_case(k, who + n, sizeof who - (size_t)n);
                    if (run_both(c, &p, who)) {
                        assert_string_equal(linnet_recurrence_ran(c), (*i)->name);
                        compare(&p, &truth, who, &most[b]);
                        runs++;
                    } else
                        declined++;
                }
                lnt_cpu_force(lnt_cpu_machine());
                lnt_problem_free(&p);
                lnt_problem_free(&truth);
            }
    printf("  up to %s: %d runs, %d declined; largest errors f32 %.1e %.1e %.1e, bf16 %.1e %.1e %.1e (outputs, gradients, gates)\n",
           lnt_cpu_name(lnt_cpu_machine()), runs, declined, most[0].output, most[0].gradient, most[0].gate, most[1].output, most[1].gradient,
           most[1].gate);
    linnet_context_destroy(c);
}

/* Any chunk length and every form give the same result, within rounding. */
static void chunk_lengths_agree(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    seen most = { 0 };
    for (size_t s = 0; s < sizeof all_cases / sizeof *all_cases; s++)
        for (const lnt_recur_case *k = all_cases[s]; k->op; k++) {
            /* The parallel form's float32 error grows with its one chunk: 2.5e-6 at 2300 tokens, where chunks have 1e-6. */
            if (k->K > 64 || k->length[0] > 2000) continue;
            for (int b = 0; b < 2; b++) {
                static const int chunks[] = { 1, 7, 16, 64 };
                lnt_dtype dtype = b ? LINNET_BF16 : LINNET_F32;
                lnt_problem truth, p;
                make_truth(c, k, dtype, &truth);
                OK(c, lnt_problem_make(c, k, dtype, dtype, 7, &p));
                for (int i = 0; i < 6; i++) {
                    p.r.form = i < 4 ? LINNET_FORM_CHUNK : i == 4 ? LINNET_FORM_PARALLEL : LINNET_FORM_RECURRENT;
                    p.r.chunk = i < 4 ? chunks[i] : 0;
                    char who[384];
                    int n = snprintf(who, sizeof who, "form %d chunk %d %s ", (int)p.r.form, p.r.chunk, lnt_dtype_name(dtype));
                    describe_case(k, who + n, sizeof who - (size_t)n);
                    assert_true(run_both(c, &p, who));
                    compare(&p, &truth, who, &most);
                }
                lnt_problem_free(&p);
                lnt_problem_free(&truth);
            }
        }
    linnet_context_destroy(c);
}

static void threads_do_not_change_bits(void **state)
{
    (void)state;
    linnet_context *c[3] = { make_context(1), make_context(2), make_context(3) };
    for (size_t s = 0; s < sizeof all_cases / sizeof *all_cases; s++)
        for (const lnt_recur_case *k = all_cases[s]; k->op; k++)
            for (int b = 0; b < 4; b++) {
                lnt_problem p[3];
                char who[256];
                describe_case(k, who, sizeof who);
                for (int i = 0; i < 3; i++) {
                    lnt_dtype dtype = b & 1 ? LINNET_BF16 : LINNET_F32;
                    OK(c[i], lnt_problem_make(c[i], k, dtype, dtype, 7, &p[i]));
                    p[i].r.form = b & 2 ? LINNET_FORM_RECURRENT : LINNET_FORM_CHUNK;
                    assert_true(run_both(c[i], &p[i], who));
                    if (i) check_same_bits(&p[0], &p[i], who);
                }
                for (int i = 0; i < 3; i++) lnt_problem_free(&p[i]);
            }
    for (int i = 0; i < 3; i++) linnet_context_destroy(c[i]);
}

/* ---- identities ---------------------------------------------------------------------------------------------------------------------- */

static float *tensor(lnt_problem *p, const char *name) { return p->data[lnt_recur_tensor_find(name)]; }
static int64_t elements(const lnt_problem *p, const char *name) { return (int64_t)(p->bytes[lnt_recur_tensor_find(name)] / 4); }

static void close_to(const char *what, const float *x, const float *y, int64_t n, double allowed)
{
    double error = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        norm += (double)y[i] * y[i];
    }
    if (!(error <= allowed * allowed * norm)) fail_msg("%s differs: relative %.3g, allowed %.3g", what, sqrt(error / norm), allowed);
}

static const char *const with_state[] = { "linear_attn", "retention", "simple_gla", "delta_rule", "gated_delta_rule", "mesa" };
enum { WITH_STATE = sizeof with_state / sizeof *with_state };
static lnt_recur_case plain_case(const char *op, int64_t T)
{
    return (lnt_recur_case){ op, 1, { T }, 1, 2, 20, 24, .gate = -0.3, .beta = 1, .states = true };
}

/* Point q k v g beta o and their gradients at rows `first` on. */
static void shift_rows(linnet_recurrence *r, const lnt_problem *p, int64_t first)
{
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) {
        const char *shape = p->op->cache ? lnt_recur_tensors[i].attention : lnt_recur_tensors[i].state;
        if (p->data[i] && shape && shape[0] == 'B')
            lnt_recur_tensor_set(r, i, (char *)p->data[i] + p->bytes[i] / (size_t)p->r.tokens * (size_t)first);
    }
}

/* Running rows [0,a) and [a,T) with the state (and its gradient) handed over is running all rows. */
static void split_and_hand_over(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (size_t o = 0; o < WITH_STATE; o++)
        for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
            lnt_recur_case k = plain_case(with_state[o], 90);
            lnt_problem whole, parts;
            OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &whole));
            OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &parts));
            whole.r.form = parts.r.form = (linnet_form)form;
            OK(c, lnt_problem_run(c, &whole, false));
            OK(c, lnt_problem_run(c, &whole, true));
            size_t n = whole.bytes[lnt_recur_tensor_find(whole.op->solve ? "sT_kv" : "sT")], m = whole.bytes[lnt_recur_tensor_find("sT_kk")];
            float *middle = lnt_alloc(n), *d_middle = lnt_alloc(n), *h_middle = m ? lnt_alloc(m) : NULL, *dh_middle = m ? lnt_alloc(m) : NULL;
            lnt_problem first = parts, second = parts;
            int64_t at = 37;
            first.r.tokens = first.cu[1] = at;
            second.r.tokens = second.cu[1] = 90 - at;
            first.r.cu_seqlens = first.cu;
            second.r.cu_seqlens = second.cu;
            shift_rows(&second.r, &parts, at);
            first.r.sT = middle;
            second.r.s0 = middle;
            second.r.ds0 = d_middle;
            first.r.dsT = d_middle;
            if (m) {
                first.r.hT = h_middle;
                second.r.h0 = h_middle;
                second.r.dh0 = dh_middle;
                first.r.dhT = dh_middle;
            }
            const char *summed = m ? "dlambda" : "dg_head"; /* over all rows */
            float *sum = NULL, *g_sum = tensor(&parts, summed);
            size_t sum_bytes = parts.bytes[lnt_recur_tensor_find(summed)];
            if (g_sum) sum = lnt_calloc(sum_bytes);
            for (int step = 0; step < 4; step++) {
                linnet_recurrence *r = step == 0 || step == 3 ? &first.r : &second.r;
                size_t bytes;
                OK(c, linnet_recurrence_workspace(c, r, step >= 2, &bytes));
                r->workspace = lnt_alloc(bytes);
                r->workspace_size = bytes;
                OK(c, (step >= 2 ? linnet_recurrence_backward : linnet_recurrence_forward)(c, r));
                for (size_t j = 0; g_sum && step >= 2 && j < sum_bytes / 4; j++) sum[j] += g_sum[j];
                lnt_free(r->workspace);
            }
            if (g_sum) memcpy(g_sum, sum, sum_bytes);
            for (int i = 0; i < LNT_RECUR_TENSORS; i++)
                if (whole.data[i] && lnt_recur_tensors[i].role >= LNT_T_OUTPUT)
                    close_to(lnt_recur_tensors[i].name, parts.data[i], whole.data[i], (int64_t)(whole.bytes[i] / 4),
                             !strncmp(lnt_recur_tensors[i].name, "dg", 2) ? 2e-5 : 3e-6);
            lnt_free(h_middle);
            lnt_free(dh_middle);
            lnt_free(sum);
            lnt_free(middle);
            lnt_free(d_middle);
            lnt_problem_free(&whole);
            lnt_problem_free(&parts);
        }
    linnet_context_destroy(c);
}

/* A packed call is bit for bit the separate calls. */
static void packed_is_separate(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    static const char *const ops[] = { "linear_attn", "simple_gla", "delta_rule", "gated_delta_rule", "mesa", "attention" };
    for (size_t o = 0; o < 6; o++) {
        lnt_recur_case k = { ops[o], 4, { 33, 0, 70, 5 }, 1, 2, 20, 24, .gate = -0.3, .beta = 1, .states = strcmp(ops[o], "attention") != 0 };
        lnt_problem packed, alone;
        OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &packed));
        OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &alone));
        packed.r.form = alone.r.form = LINNET_FORM_CHUNK;
        packed.r.chunk = alone.r.chunk = 16; /* the same cut whatever the longest sequence is */
        if (packed.op->cache) packed.r.chunk = alone.r.chunk = 5;
        OK(c, lnt_problem_run(c, &packed, false));
        OK(c, lnt_problem_run(c, &packed, true));
        for (int n = 0; n < k.sequences; n++) {
            linnet_recurrence r = alone.r;
            int64_t cu[2] = { 0, k.length[n] };
            if (cu[1] > 0 && cu[1] < r.chunk && !packed.op->cache) continue; /* a chunk is cut to the longest sequence */
            r.tokens = cu[1];
            r.sequences = 1;
            r.cu_seqlens = cu;
            shift_rows(&r, &alone, alone.cu[n]);
            for (int i = 0; i < LNT_RECUR_TENSORS; i++)
                if (alone.data[i] && lnt_recur_tensors[i].state && lnt_recur_tensors[i].state[0] == 'N' && !alone.op->cache)
                    lnt_recur_tensor_set(&r, i, (char *)alone.data[i] + alone.bytes[i] / (size_t)k.sequences * (size_t)n);
            for (int b = 0; b < 2; b++) {
                size_t bytes;
                OK(c, linnet_recurrence_workspace(c, &r, b, &bytes));
                r.workspace = lnt_alloc(bytes);
                r.workspace_size = bytes;
                OK(c, (b ? linnet_recurrence_backward : linnet_recurrence_forward)(c, &r));
                lnt_free(r.workspace);
            }
        }
        int64_t rows = packed.cu[3]; /* all but the short last one */
        static const char *const names[] = { "o", "dq", "dk", "dv", "dg", "dbeta" };
        for (int i = 0; i < 6; i++) {
            float *x = tensor(&packed, names[i]), *y = tensor(&alone, names[i]);
            if (x && memcmp(x, y, packed.bytes[lnt_recur_tensor_find(names[i])] / (size_t)packed.r.tokens * (size_t)rows))
                fail_msg("%s: %s differs", ops[o], names[i]);
        }
        lnt_problem_free(&packed);
        lnt_problem_free(&alone);
    }
    linnet_context_destroy(c);
}

/* Changing token t leaves the outputs before it untouched, bit for bit. */
static void causality(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int o = 0; lnt_recur_at(o); o++)
        for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
            lnt_recur_case k = plain_case(lnt_recur_at(o)->name, 90);
            k.states = !lnt_recur_at(o)->cache;
            lnt_problem a, b;
            OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &a));
            OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &b));
            a.r.form = b.r.form = (linnet_form)form;
            int64_t t = 41;
            static const char *const names[] = { "q", "k", "v", "g", "beta" };
            for (int i = 0; i < 5; i++) {
                float *x = tensor(&b, names[i]);
                int64_t width = x ? elements(&b, names[i]) / 90 : 0;
                for (int64_t j = t * width; j < 90 * width; j++) x[j] *= 0.7f;
            }
            OK(c, lnt_problem_run(c, &a, false));
            OK(c, lnt_problem_run(c, &b, false));
            size_t row = a.bytes[lnt_recur_tensor_find("o")] / 90;
            if (memcmp(tensor(&a, "o"), tensor(&b, "o"), row * (size_t)t)) fail_msg("%s looks ahead", k.op);
            if (!memcmp((char *)tensor(&a, "o") + row * (size_t)t, (char *)tensor(&b, "o") + row * (size_t)t, row))
                fail_msg("%s does not look", k.op);
            lnt_problem_free(&a);
            lnt_problem_free(&b);
        }
    linnet_context_destroy(c);
}

/* simple_gla with a constant gate is retention, without one linear_attn; the gated delta rule with g = 0 is the delta rule; a window over everything
 * is no window; beta = 0 leaves the decayed state; orthonormal keys turn the delta rule into linear attention of beta v. */
static void families_reduce(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int f = 0; f < 6; f++) {
        static const char *const from[] = { "simple_gla", "simple_gla", "gated_delta_rule", "attention", "gated_delta_rule", "delta_rule" };
        static const char *const to[] = { "retention", "linear_attn", "delta_rule", "attention", "simple_gla", "linear_attn" };
        lnt_recur_case ka = plain_case(from[f], f == 5 ? 20 : 70), kb = plain_case(to[f], f == 5 ? 20 : 70);
        ka.states = kb.states = f != 3;
        lnt_problem a, b;
        OK(c, lnt_problem_make(c, &ka, LINNET_F32, LINNET_F32, 5, &a));
        OK(c, lnt_problem_make(c, &kb, LINNET_F32, LINNET_F32, 5, &b));
        float *g = tensor(&a, "g");
        for (int64_t i = 0; f < 3 && i < elements(&a, "g"); i++) g[i] = f == 0 ? tensor(&b, "g_head")[i % 2] : 0.0f;
        if (f == 3) a.r.window = 70;
        if (f == 4) { /* what remains without writes */
            memset(tensor(&a, "beta"), 0, a.bytes[lnt_recur_tensor_find("beta")]);
            memset(tensor(&b, "v"), 0, b.bytes[lnt_recur_tensor_find("v")]);
        }
        if (f == 5) {
            float *ak = tensor(&a, "k"), *bk = tensor(&b, "k"), *v = tensor(&b, "v"), *beta = tensor(&a, "beta");
            for (int64_t i = 0; i < 400; i++) ak[i] = bk[i] = i / 20 == i % 20;
            for (int64_t i = 0; i < elements(&b, "v"); i++) v[i] *= beta[i / 24];
            memset(tensor(&a, "s0"), 0, a.bytes[lnt_recur_tensor_find("s0")]);
            memset(tensor(&b, "s0"), 0, b.bytes[lnt_recur_tensor_find("s0")]);
        }
        a.r.form = b.r.form = LINNET_FORM_CHUNK;
        OK(c, lnt_problem_run(c, &a, false));
        OK(c, lnt_problem_run(c, &b, false));
        char what[64];
        snprintf(what, sizeof what, "%s as %s", from[f], to[f]);
        close_to(what, tensor(&a, "o"), tensor(&b, "o"), elements(&a, "o"), 1e-6);
        if (f != 3) close_to(what, tensor(&a, "sT"), tensor(&b, "sT"), elements(&a, "sT"), 1e-6);
        lnt_problem_free(&a);
        lnt_problem_free(&b);
    }
    linnet_context_destroy(c);
}

/* A window of one token: o = v. (Its dq and dk are exactly zero, so that no relative error can be told; it is not among the cases.) */
static void window_of_one(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
        lnt_recur_case k = { "attention", 2, { 70, 3 }, 2, 2, 20, 24, .window = 1 };
        lnt_problem p;
        OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &p));
        p.r.form = (linnet_form)form;
        OK(c, lnt_problem_run(c, &p, false));
        assert_memory_equal(tensor(&p, "o"), tensor(&p, "v"), p.bytes[lnt_recur_tensor_find("o")]);
        OK(c, lnt_problem_run(c, &p, true));
        close_to("dv", tensor(&p, "dv"), tensor(&p, "do"), elements(&p, "dv"), 1e-6);
        for (int64_t i = 0; i < elements(&p, "dk"); i++) assert_true(fabsf(tensor(&p, "dk")[i]) < 1e-5f && fabsf(tensor(&p, "dq")[i]) < 1e-5f);
        lnt_problem_free(&p);
    }
    linnet_context_destroy(c);
}

/* g = -inf at token t is the start of a new sequence with a zero state. */
static void reset_is_boundary(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    static const char *const ops[] = { "simple_gla", "gated_delta_rule", "mesa" };
    for (int o = 0; o < 3; o++)
        for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
            lnt_recur_case one = plain_case(ops[o], 70), two = one;
            one.states = two.states = false;
            two.sequences = 2;
            two.length[0] = 21;
            two.length[1] = 49;
            lnt_problem a, b;
            OK(c, lnt_problem_make(c, &one, LINNET_F32, LINNET_F32, 5, &a));
            OK(c, lnt_problem_make(c, &two, LINNET_F32, LINNET_F32, 5, &b));
            for (int h = 0; h < 2; h++) tensor(&a, "g")[21 * 2 + h] = -INFINITY;
            a.r.form = b.r.form = (linnet_form)form;
            for (int back = 0; back < 2; back++) {
                OK(c, lnt_problem_run(c, &a, back));
                OK(c, lnt_problem_run(c, &b, back));
            }
            static const char *const names[] = { "o", "dq", "dk", "dv", "dbeta" };
            for (int i = 0; i < 5; i++)
                if (tensor(&a, names[i])) close_to(names[i], tensor(&a, names[i]), tensor(&b, names[i]), elements(&a, names[i]), 3e-6);
            for (int h = 0; h < 2; h++) assert_true(tensor(&a, "dg")[21 * 2 + h] == 0.0f);
            lnt_problem_free(&a);
            lnt_problem_free(&b);
        }
    linnet_context_destroy(c);
}

/* sT may be s0. */
static void state_in_place(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (size_t o = 0; o < WITH_STATE; o++)
        for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
            lnt_recur_case k = plain_case(with_state[o], 40);
            lnt_problem a, b;
            OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &a));
            OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &b));
            a.r.form = b.r.form = (linnet_form)form;
            b.r.sT = (void *)b.r.s0;
            b.r.hT = (void *)b.r.h0;
            OK(c, lnt_problem_run(c, &a, false));
            OK(c, lnt_problem_run(c, &b, false));
            assert_memory_equal(a.r.sT, b.r.sT, a.bytes[lnt_recur_tensor_find(a.op->solve ? "sT_kv" : "sT")]);
            if (a.op->solve) assert_memory_equal(a.r.hT, b.r.hT, a.bytes[lnt_recur_tensor_find("sT_kk")]);
            assert_memory_equal(a.r.o, b.r.o, a.bytes[lnt_recur_tensor_find("o")]);
            lnt_problem_free(&a);
            lnt_problem_free(&b);
        }
    linnet_context_destroy(c);
}

/* ---- the node ------------------------------------------------------------------------------------------------------------------------- */

static const lnt_op source_type = { .name = "source" };

/* A program of one recurrence over made-up inputs. */
static lnt_node *node_of(linnet_context *c, lnt_program **p, const lnt_recur_case *k)
{
    OK(c, lnt_program_create(c, p));
    const lnt_recur_op *op = lnt_recur_find(k->op);
    int32_t heads[3] = { op->cache ? k->Hv : k->Hq, k->Hq, op->cache ? k->Hq : k->Hv }, width[3] = { k->K, k->K, k->V };
    lnt_buf in[5] = { { 0 } };
    for (int i = 0; i < 5; i++) {
        lnt_out_spec spec = i < 3 ? (lnt_out_spec){ (int64_t)heads[i] * width[i], heads[i], false } : (lnt_out_spec){ k->Hv, k->Hv, true };
        in[i] = lnt_add_node(*p, &source_type, NULL, 0, in, 0, (int[]){ 0 }, 1, &spec)->out[0];
    }
    double g_head[8];
    for (int h = 0; h < 8; h++) g_head[h] = -0.05 * (h + 1);
    lnt_recur_in args = { .q = in[0], .k = in[1], .v = in[2], .scale = NAN, .normalize = k->normalize, .window = k->window };
    if (op->gate == LNT_GATE_SCALAR) args.g = in[3];
    if (op->gate == LNT_GATE_HEAD) args.g_head = g_head;
    if (op->beta) args.beta = in[4];
    lnt_mesa_options solve = { .lambda = "lambda", .lower = 0.25, .start = 1, .tolerance = 1e-7, .max_steps = 200, .max_steps_decoding = 200 };
    if (op->solve) args.mesa = &solve;
    lnt_recur(*p, k->op, args);
    OK(c, lnt_program_finish(*p));
    return (lnt_node *)lnt_node_at(*p, lnt_node_count(*p) - 1);
}

/* Run rows cu[n] .. of a problem's inputs through the node; `first` is the row of the problem where the call's rows begin. */
static void run_node(linnet_context *c, const lnt_node *node, lnt_problem *p, int64_t first, int64_t n_seq, const int64_t *cu, void *state,
                     int64_t stride, const int64_t *position, int64_t capacity)
{
    static const char *const names[] = { "q", "k", "v", "g", "beta" };
    lnt_shape shape = { .tokens = cu[n_seq], .n_seq = n_seq, .cu = cu, .has_state = state != NULL, .state_capacity = capacity, .dtype = LINNET_F32,
                        .threads = lnt_threads(c), .device = c->device };
    lnt_call k = { .c = c, .node = node, .attr = node->attr, .tokens = cu[n_seq], .n_seq = n_seq, .cu = cu, .state = state, .state_stride = stride,
                   .position = position, .state_capacity = capacity };
    int n = 0;
    for (int i = 0; i < 5; i++)
        if (i < 3 || tensor(p, names[i]))
            k.in[n++] = (lnt_tensor){ .data = tensor(p, names[i]) + elements(p, names[i]) / p->r.tokens * first, .rows = k.tokens };
    k.out[0].data = tensor(p, "o") + elements(p, "o") / p->r.tokens * first;
    float lambda[64];
    for (int i = 0; i < 64; i++) lambda[i] = logf(expm1f(0.75f)); /* mesa's Lambda is 1 then */
    if (node->n_param) k.param[0].master = lambda;
    k.work_size = node->op->workspace(node, &shape, false);
    k.work = lnt_alloc(k.work_size);
    memset(k.work, 0xff, k.work_size);
    OK(c, node->op->forward(&k));
    lnt_free(k.work);
}

/* Prefill and steps through the node's state give what one call over everything gives: recurrent states, caches, rings. */
static void node_keeps_state(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    static const lnt_recur_case cases[] = {
        { "linear_attn", 1, { 60 }, 2, 2, 16, 24, .normalize = true },
        { "retention", 1, { 60 }, 1, 2, 16, 24, .gate = 0 },
        { "gated_delta_rule", 1, { 60 }, 1, 2, 16, 24, .gate = -0.3, .beta = 1 },
        { "mesa", 1, { 60 }, 1, 2, 16, 24, .gate = -0.3, .beta = 1 },
        { "attention", 1, { 60 }, 2, 4, 16, 24, .gate = 0 },
        { "attention", 1, { 60 }, 2, 4, 16, 24, .window = 9 },
        { "attention", 1, { 60 }, 2, 4, 16, 24, .window = 100 },
    };
    static const int64_t parts[][8] = { { 60 }, { 20, 1, 1, 1, 17, 1, 19 }, { 3, 5, 1, 30, 2, 19 }, { 1, 1, 1, 57 }, { 9, 9, 1, 41 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lnt_program *program;
        lnt_node *node = node_of(c, &program, &cases[i]);
        lnt_problem whole, pieces;
        OK(c, lnt_problem_make(c, &cases[i], LINNET_F32, LINNET_F32, 5, &whole));
        OK(c, lnt_problem_make(c, &cases[i], LINNET_F32, LINNET_F32, 5, &pieces));
        for (int h = 0; tensor(&whole, "g_head") && h < cases[i].Hv; h++) tensor(&whole, "g_head")[h] = (float)(-0.05 * (h + 1));
        for (int j = 0; whole.op->solve && j < cases[i].Hv * cases[i].K; j++) tensor(&whole, "lambda")[j] = 1;
        OK(c, lnt_problem_run(c, &whole, false));
        for (size_t s = 0; s < sizeof parts / sizeof *parts; s++) {
            int64_t capacity = 64, stride = node->op->state_size(node, capacity, LINNET_F32), first = 0;
            void *memory = lnt_calloc((size_t)stride);
            memset(tensor(&pieces, "o"), 0xff, pieces.bytes[lnt_recur_tensor_find("o")]);
            for (int j = 0; j < 8 && parts[s][j]; j++) {
                run_node(c, node, &pieces, first, 1, (int64_t[]){ 0, parts[s][j] }, memory, stride, &first, capacity);
                first += parts[s][j];
            }
            assert_int_equal(first, 60);
            close_to(cases[i].op, tensor(&pieces, "o"), tensor(&whole, "o"), elements(&whole, "o"), 2e-6);
            lnt_free(memory);
        }
        /* three sequences at once: rows 0-24, 25-29, 30-59, then nothing of the second */
        int64_t capacity = 64, stride = node->op->state_size(node, capacity, LINNET_F32), position[3] = { 0 };
        void *memory = lnt_calloc((size_t)stride * 3);
        lnt_recur_case packed = cases[i];
        packed.sequences = 3;
        packed.length[0] = 25;
        packed.length[1] = 5;
        packed.length[2] = 30;
        for (int n = 0; n < 3; n++) whole.cu[n + 1] = whole.cu[n] + packed.length[n];
        whole.r.sequences = 3;
        void *last = whole.r.sT, *last_z = whole.r.zT, *last_h = whole.r.hT;
        whole.r.sT = whole.r.zT = whole.r.hT = NULL; /* made for one sequence */
        OK(c, lnt_problem_run(c, &whole, false));
        whole.r.sT = last;
        whole.r.zT = last_z;
        whole.r.hT = last_h;
        run_node(c, node, &pieces, 0, 3, whole.cu, memory, stride, position, capacity);
        close_to("packed", tensor(&pieces, "o"), tensor(&whole, "o"), elements(&whole, "o"), 2e-6);
        lnt_free(memory);
        lnt_problem_free(&whole);
        lnt_problem_free(&pieces);
        lnt_program_destroy(program);
    }
    linnet_context_destroy(c);
}

/* ---- refusals -------------------------------------------------------------------------------------------------------------------------- */

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    lnt_recur_case k = plain_case("gated_delta_rule", 20);
    lnt_problem p;
    OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &p));
    OK(c, lnt_problem_run(c, &p, false));
    memset(p.data[lnt_recur_tensor_find("o")], 0x11, p.bytes[lnt_recur_tensor_find("o")]);
    const linnet_recurrence good = p.r;
    static const int64_t falling[] = { 0, 12, 8, 20 }, short_cu[] = { 0, 19 }, late[] = { 1, 20 };
    float spare[4] = { 0 };
#define REFUSED(status, ...)                                                                                                       \
    do {                                                                                                                           \
        linnet_recurrence r = good;                                                                                                \
        __VA_ARGS__;                                                                                                               \
        assert_int_equal(linnet_recurrence_forward(c, &r), status);                                                                \
        assert_true(strlen(linnet_error_message(c)) > 0);                                                                          \
    } while (0)
    REFUSED(LINNET_EINVAL, r.size = 0);
    REFUSED(LINNET_EINVAL, r.op = "no_such");
    assert_non_null(strstr(linnet_error_hint(c), "gated_delta_rule"));
    REFUSED(LINNET_EINVAL, r.op = NULL);
    REFUSED(LINNET_EINVAL, r.dtype = LINNET_F16);
    REFUSED(LINNET_EINVAL, r.form = (linnet_form)9);
    REFUSED(LINNET_EINVAL, r.chunk = -1);
    REFUSED(LINNET_EINVAL, r.Hq = 3);
    REFUSED(LINNET_EINVAL, r.Hq = 0);
    REFUSED(LINNET_EINVAL, r.K = 0);
    REFUSED(LINNET_EINVAL, r.V = 1 << 20);
    REFUSED(LINNET_EINVAL, r.tokens = -1);
    REFUSED(LINNET_EINVAL, r.sequences = -1);
    REFUSED(LINNET_EINVAL, r.cu_seqlens = NULL);
    REFUSED(LINNET_EINVAL, r.cu_seqlens = short_cu);
    REFUSED(LINNET_EINVAL, r.cu_seqlens = late);
    REFUSED(LINNET_EINVAL, r.cu_seqlens = falling, r.sequences = 3);
    REFUSED(LINNET_EINVAL, r.scale = INFINITY);
    REFUSED(LINNET_EINVAL, r.eps = -1);
    REFUSED(LINNET_EINVAL, r.normalize = 1);
    REFUSED(LINNET_EINVAL, r.window = 3);
    REFUSED(LINNET_EINVAL, r.offset = 3);
    REFUSED(LINNET_EINVAL, r.q = NULL);
    REFUSED(LINNET_EINVAL, r.g = NULL);
    REFUSED(LINNET_EINVAL, r.beta = NULL);
    REFUSED(LINNET_EINVAL, r.o = NULL);
    REFUSED(LINNET_EINVAL, r.g_head = spare);
    REFUSED(LINNET_EINVAL, r.z0 = spare);
    REFUSED(LINNET_EINVAL, r.lse = spare);
    REFUSED(LINNET_EINVAL, r.lambda = spare);
    REFUSED(LINNET_EINVAL, r.steps = spare);
    REFUSED(LINNET_EINVAL, r.cg_tolerance = 0);
    REFUSED(LINNET_EINVAL, r.workspace = NULL);
    REFUSED(LINNET_EINVAL, r.workspace_size = 1);
    REFUSED(LINNET_EINVAL, r.workspace = (char *)r.workspace + 4, r.workspace_size -= 4);
    REFUSED(LINNET_EINVAL, r.impl = "no_such");
    assert_non_null(strstr(linnet_error_hint(c), "reference"));
    for (const lnt_recur_impl *const *i = p.op->impls; i[1]; i++) REFUSED(LINNET_EUNSUPPORTED, r.impl = (*i)->name, r.dtype = LINNET_F64);
    lnt_cpu_force(LNT_CPU_BASE);
    REFUSED(LINNET_EUNSUPPORTED, r.impl = "chunk-avx2");
    lnt_cpu_force(lnt_cpu_machine());
#undef REFUSED
    const uint8_t *o = p.data[lnt_recur_tensor_find("o")];
    for (size_t i = 0; i < p.bytes[lnt_recur_tensor_find("o")]; i++) assert_int_equal(o[i], 0x11); /* nothing was written */
    lnt_problem_free(&p);
    linnet_context_destroy(c);
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
    lnt_recur_budget budget = lnt_recur_budget_of(lnt_recur_find(op), LINNET_F32);
    for (int i = 0; i < got->n; i++) {
        const lnt_st_tensor *x = &got->tensors[i], *y = lnt_safetensors_find(want, x->name);
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
        bool gate = !strcmp(x->name, "dg") || !strcmp(x->name, "dbeta");
        double allowed = dtype == LINNET_F64 ? 1e-7 : *x->name != 'd' ? budget.output : gate ? budget.gate : budget.gradient;
        if (!(sqrt(error / norm) <= allowed)) fail_msg("%s %s (%s): %s has relative error %.3g", path, what, line, x->name, sqrt(error / norm));
    }
    lnt_safetensors_close(got);
    lnt_safetensors_close(want);
    remove(out);
}

static void goldens(void **state)
{
    (void)state;
    static const char *const sets[][2] = { { "linear_attn", "linear_attn" },
                                           { "simple_gla", "simple_gla" },
                                           { "delta_rule", "delta_rule" },
                                           { "delta_rule_negeig", "delta_rule" },
                                           { "gated_delta_rule", "gated_delta_rule" },
                                           { "mesa", "mesa" },
                                           { "attention", "attention" },
                                           { "attention_window", "attention" } };
    static const char *const files[] = { "base", "packed", "ragged" }, *const forms[] = { "recurrent", "chunk", "parallel" };
    struct stat unused;
    char path[512];
    if (stat(LINNET_SOURCE_DIR "/../shared/goldens/ops", &unused)) {
        print_message("no goldens beside the source tree: skipped\n");
        skip();
    }
    linnet_context *c = make_context(2);
    for (int i = 0; i < 8; i++)
        for (int f = 0; f < 3; f++) {
            snprintf(path, sizeof path, LINNET_SOURCE_DIR "/../shared/goldens/ops/%s/%s.safetensors", sets[i][0], files[f]);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(adjoint_identity),
        cmocka_unit_test(implementations_match_reference),
        cmocka_unit_test(chunk_lengths_agree),
        cmocka_unit_test(threads_do_not_change_bits),
        cmocka_unit_test(split_and_hand_over),
        cmocka_unit_test(packed_is_separate),
        cmocka_unit_test(causality),
        cmocka_unit_test(families_reduce),
        cmocka_unit_test(window_of_one),
        cmocka_unit_test(reset_is_boundary),
        cmocka_unit_test(state_in_place),
        cmocka_unit_test(node_keeps_state),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(goldens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

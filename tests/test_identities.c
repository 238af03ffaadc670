/* Identities of the recurrences, over descriptions: splitting and handing over, packing, causality, resets, states in place, families; and the
 * program's node. What an operator has decides which hold for it; a test that meets an input it cannot change fails.
 * Long: an identity each, and operators bring theirs. */
#include "recurrence_check.h"

#include <math.h>

#include "core/threads.h"
#include "device/device.h"
#include "recurrence/mesa/mesa_node.h"
#include "recurrence/recur_node.h"
#include "sanitized.h"

static bool has_state(const lnt_recur_op *op)
{
    bool any = false;
    for (int i = 0; op->tensors[i].name; i++) any |= op->tensors[i].role == LNT_T_STATE;
    return any;
}

/* The row of a decay of each token; -1: none. */
static int decay_row(const lnt_recur_op *op)
{
    for (int i = 0; op->tensors[i].name; i++)
        if (op->tensors[i].role == LNT_T_INPUT && op->tensors[i].values == LNT_VALUES_DECAY && op->tensors[i].shape[0] == 'T') return i;
    return -1;
}

/* T tokens of one sequence at the sizes of the operator's first case of its own, without options. */
static lnt_recur_case plain_case(const lnt_recur_op *op, int64_t T)
{
    const lnt_recur_case *first = op->cases;
    while (strcmp(first->op, op->name) != 0) first++;
    lnt_recur_case k = *first;
    memset(k.length, 0, sizeof k.length);
    memset(k.option, 0, sizeof k.option);
    for (int i = 0; i < LNT_CASE_SIZES && k.size[i].letter; i++)
        if (k.size[i].letter[0] == 'T') k.size[i].value = 0;
    k.sequences = 1;
    k.length[0] = T;
    k.gate = -0.3;
    k.reset = 0;
    k.beta = 1;
    k.states = has_state(op);
    return k;
}

/* The plain case, and then with each of the operator's switches on by itself; false: there is no v-th. */
static bool variant(const lnt_recur_op *op, int v, lnt_recur_case *k)
{
    for (const lnt_recur_option *x = op->options; v && x->key; x++) {
        if (x->kind != LNT_RECUR_SWITCH || --v) continue;
        k->option[0].key = x->key;
        k->option[0].value = 1;
        if (!strcmp(x->key, "signed")) k->positive = 20; /* mesa's Lambda outweighs what is turned around */
    }
    return v == 0;
}

static void run_call(linnet_context *c, lnt_recur_call *a, bool backward)
{
    size_t bytes;
    OK(c, lnt_recur_workspace(c, a, backward, &bytes));
    a->head.workspace = lnt_alloc(bytes);
    a->head.workspace_size = bytes;
    OK(c, lnt_recur_run(c, a, backward));
    lnt_free(a->head.workspace);
}

/* A gradient of something that all tokens share. */
static bool is_summed(const lnt_recur_tensor *t) { return t->role == LNT_T_GRADIENT && t->shape[0] != 'T' && t->shape[0] != 'N'; }

/* Tokens [0,at), then the others, both ways, into the results of `parts`, with the state and its gradient handed over. */
static void run_parts(linnet_context *c, lnt_problem *parts, int64_t at)
{
    const lnt_recur_op *op = parts->op;
    lnt_recur_call half[2] = { parts->call, parts->call };
    int64_t cu[2][2];
    void *handed[LNT_RECUR_TENSORS] = { 0 };
    float *sum[LNT_RECUR_TENSORS] = { 0 };
    lnt_recur_slice(&half[0], 0, at, cu[0]);
    lnt_recur_slice(&half[1], at, parts->r.tokens - at, cu[1]);
    if (lnt_recur_option_find(op, "first")) /* the second half begins no sequence */
        OK(c, lnt_recur_option_set(c, op, &half[1], "first", 0, NULL));
    for (int i = 0; op->tensors[i].name; i++) {
        if (is_summed(&op->tensors[i])) sum[i] = lnt_calloc(parts->bytes[i]);
        if (op->tensors[i].role != LNT_T_STATE || !parts->data[i]) continue;
        for (int j = 0; j < 2; j++) handed[i + j] = lnt_alloc(parts->bytes[i]);
        lnt_recur_set(&half[0], &op->tensors[i + 2], handed[i]); /* the first's final state is the second's initial one, */
        lnt_recur_set(&half[1], &op->tensors[i], handed[i]);
        lnt_recur_set(&half[1], &op->tensors[i + 1], handed[i + 1]); /* the gradient of that the first's cotangent */
        lnt_recur_set(&half[0], &op->tensors[i + 3], handed[i + 1]);
    }
    for (int step = 0; step < 4; step++) {
        run_call(c, &half[step == 1 || step == 2], step >= 2);
        for (int i = 0; step >= 2 && op->tensors[i].name; i++)
            for (size_t j = 0; sum[i] && j < parts->bytes[i] / 4; j++) sum[i][j] += ((const float *)parts->data[i])[j];
    }
    for (int i = 0; op->tensors[i].name; i++) {
        if (sum[i] && parts->bytes[i]) memcpy(parts->data[i], sum[i], parts->bytes[i]);
        lnt_free(sum[i]);
        lnt_free(handed[i]);
    }
}

static bool split_one(linnet_context *c, const lnt_recur_op *op, linnet_form form, int v)
{
    enum { T = 90, AT = 37 };
    lnt_recur_case k = plain_case(op, T);
    lnt_problem whole, parts;
    if (!variant(op, v, &k)) return false;
    OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &whole));
    OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &parts));
    whole.r.form = parts.r.form = form;
    OK(c, lnt_problem_run(c, &whole, false));
    OK(c, lnt_problem_run(c, &whole, true));
    run_parts(c, &parts, AT);
    for (int i = 0; op->tensors[i].name; i++)
        if (whole.data[i] && is_result(&whole, i))
            close_to(op->name, op->tensors[i].name, parts.data[i], whole.data[i], (int64_t)(whole.bytes[i] / 4), op->tensors[i].gate ? 2e-5 : 3e-6);
    lnt_problem_free(&whole);
    lnt_problem_free(&parts);
    return true;
}

/* Running rows [0,a) and [a,T) with the state (and its gradient) handed over is running all rows. */
static void split_and_hand_over(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int o = 0; lnt_recur_at(o); o++)
        for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK && has_state(lnt_recur_at(o)); form++)
            for (int v = 0; split_one(c, lnt_recur_at(o), (linnet_form)form, v);) v++;
    linnet_context_destroy(c);
}

/* Results of 8 MiB (SCAN_PAST), which go past the caches, are those of calls that are smaller, by one thread and by three: of selective_scan; the
 * others have cases of that size in scan_cases.c. In bf16 a row of gradients may be made of the state that was handed over, where the whole call has
 * its rounded output: 2^-9 / T^1/2 = 6e-5. */
static void results_past_the_caches(void **state)
{
    (void)state;
    enum { T = 1040, AT = 400 };
    const lnt_recur_op *op = lnt_recur_find("selective_scan");
    if (SANITIZED) skip();
    linnet_context *const c[] = { make_context(1), make_context(3) };
    for (int f32 = 0; f32 < 2; f32++) {
        const lnt_dtype dtype = f32 ? LINNET_F32 : LINNET_BF16;
        lnt_recur_case k = plain_case(op, T);
        lnt_case_set(&k, "D", f32 ? 2064 : 4128);
        lnt_case_set(&k, "M", 3);
        lnt_problem whole, parts; /* drawn once: that takes longer than the calls */
        OK(c[0], lnt_problem_make(c[0], &k, dtype, dtype, 5, &whole));
        run_parts(c[1], &whole, AT);
        parts = whole;
        for (int i = 0; op->tensors[i].name; i++)
            if (whole.data[i] && is_result(&whole, i)) parts.data[i] = memcpy(lnt_alloc(whole.bytes[i]), whole.data[i], whole.bytes[i]);
        for (int n = 0; n < 2; n++)
            for (int back = 0; back < 2; back++) {
                OK(c[n], lnt_problem_run(c[n], &whole, back));
                for (int i = 0; op->tensors[i].name; i++) {
                    if (!whole.data[i] || !is_result(&whole, i) || (op->tensors[i].role == LNT_T_GRADIENT) != back) continue;
                    const lnt_recur_error e = lnt_problem_error(&parts, &whole, i);
                    if (!(e.relative <= (!f32 ? 1e-4 : op->tensors[i].gate ? 2e-5 : 3e-6)))
                        fail_msg("%s, %d threads: %s differs by %.3g", lnt_dtype_name(dtype), n ? 3 : 1, op->tensors[i].name, e.relative);
                }
            }
        for (int i = 0; op->tensors[i].name; i++)
            if (whole.data[i] && is_result(&whole, i)) lnt_free(parts.data[i]);
        lnt_problem_free(&whole);
    }
    linnet_context_destroy(c[0]);
    linnet_context_destroy(c[1]);
}

/* A packed call is bit for bit the separate calls. A chunk is cut to the longest sequence, so that all are at least a chunk long, or empty. */
static bool packed_one(linnet_context *c, const lnt_recur_op *op, linnet_form form, int v)
{
    lnt_recur_case k = plain_case(op, 0);
    k.sequences = 4;
    memcpy(k.length, (int64_t[]){ 33, 0, 70, 16 }, 4 * sizeof *k.length);
    if (!variant(op, v, &k)) return false;
    lnt_problem packed, alone;
    OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &packed));
    OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &alone));
    packed.r.form = alone.r.form = form;
    packed.r.chunk = alone.r.chunk = 16; /* the same cut whatever the longest sequence is */
    OK(c, lnt_problem_run(c, &packed, false));
    OK(c, lnt_problem_run(c, &packed, true));
    for (int n = 0; n < k.sequences; n++) {
        lnt_recur_call a = alone.call;
        int64_t cu[2];
        lnt_recur_slice(&a, alone.cu[n], k.length[n], cu);
        for (int i = 0; op->tensors[i].name; i++)
            if (alone.data[i] && op->tensors[i].shape[0] == 'N')
                lnt_recur_set(&a, &op->tensors[i], (char *)alone.data[i] + alone.bytes[i] / (size_t)k.sequences * (size_t)n);
        run_call(c, &a, false);
        run_call(c, &a, true);
    }
    for (int i = 0; op->tensors[i].name; i++)
        if (alone.data[i] && !is_summed(&op->tensors[i]) && memcmp(packed.data[i], alone.data[i], alone.bytes[i]))
            fail_msg("%s, form %d, switch %d: %s differs", op->name, (int)form, v, op->tensors[i].name);
    lnt_problem_free(&packed);
    lnt_problem_free(&alone);
    return true;
}

static void packed_is_separate(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int o = 0; lnt_recur_at(o); o++)
        for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++)
            for (int v = 0; packed_one(c, lnt_recur_at(o), (linnet_form)form, v);) v++;
    linnet_context_destroy(c);
}

/* Changing any input from token t on leaves the outputs before it untouched, bit for bit, and changes some from there on. */
static void causality(void **state)
{
    (void)state;
    enum { T = 90, AT = 41 };
    linnet_context *c = make_context(2);
    for (int o = 0; lnt_recur_at(o); o++)
        for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
            const lnt_recur_op *op = lnt_recur_at(o);
            for (int i = 0; op->tensors[i].name; i++) {
                if (op->tensors[i].role != LNT_T_INPUT || op->tensors[i].shape[0] != 'T') continue;
                lnt_recur_case k = plain_case(op, T);
                for (const lnt_recur_option *x = op->options; op->tensors[i].with && x->key; x++) /* with what it is there */
                    if (x->field == op->tensors[i].with) k.option[0].key = x->key, k.option[0].value = 1;
                lnt_problem a, b;
                OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &a));
                a.r.form = (linnet_form)form;
                OK(c, lnt_problem_run(c, &a, false));
                OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &b));
                b.r.form = (linnet_form)form;
                if (!b.data[i]) fail_msg("%s: %s is not there to be changed", op->name, op->tensors[i].name);
                float *x = b.data[i];
                const int64_t width = (int64_t)(b.bytes[i] / 4) / T;
                for (int64_t j = AT * width; j < T * width; j++) x[j] *= 0.7f;
                OK(c, lnt_problem_run(c, &b, false));
                const size_t row = tensor_bytes(&a, "o") / T;
                if (memcmp(tensor(&a, "o"), tensor(&b, "o"), row * AT)) fail_msg("%s looks ahead at %s", op->name, op->tensors[i].name);
                if (!memcmp((char *)tensor(&a, "o") + row * AT, (char *)tensor(&b, "o") + row * AT, row * (T - AT)))
                    fail_msg("%s does not look at %s", op->name, op->tensors[i].name);
                lnt_problem_free(&a);
                lnt_problem_free(&b);
            }
        }
    linnet_context_destroy(c);
}

/* Operators that reduce to each other when a decay is constant or absent: simple_gla with a constant gate is retention, with none linear_attn; the
 * gated delta rule with g = 0 is the delta rule; a window over everything is no window; beta = 0 leaves the decayed state; orthonormal keys turn
 * the delta rule into linear attention of beta v; dplr that reads nothing is gla, and with a = -beta e^gk k, b = k and values beta v kda; gla_kv
 * without gates of the rows is gla_v, dplr without gates iplr. So do the gradients of what both have and the reduction does not touch. */
static void families_reduce(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int f = 0; f < 10; f++) {
        static const char *const from[] = { "simple_gla", "simple_gla", "gated_delta_rule", "attention", "gated_delta_rule", "delta_rule",
                                            "dplr", "dplr", "gla_kv", "dplr" };
        static const char *const to[] = { "retention", "linear_attn", "delta_rule", "attention", "simple_gla", "linear_attn",
                                          "gla", "kda", "gla_v", "iplr" };
        static const char *const alike[][7] = { { "dq", "dk", "dv", "ds0" }, { "dq", "dk", "dv", "ds0" }, { "dq", "dk", "dv", "dbeta", "ds0" },
                                                { "dq", "dk", "dv" }, { "dq", "dg", "ds0" }, { "dq" }, { "dq", "dk", "dv", "dgk", "ds0" },
                                                { "dq", "ds0" }, { "dq", "dk", "dv", "dgv", "ds0" }, { "dq", "dk", "dv", "da", "db", "ds0" } };
        const int64_t T = f == 5 ? 20 : 70;
        lnt_recur_case ka = { from[f], 1, { T }, LNT_HEADS(1, 2, 20, 24), .gate = -0.3, .beta = 1, .states = f != 3 }, kb = ka;
        if (f == 3) lnt_case_set(&ka, "Hq", 2), lnt_case_set(&ka, "Hk", 2);
        kb = ka;
        kb.op = to[f];
        lnt_problem a, b;
        OK(c, lnt_problem_make(c, &ka, LINNET_F32, LINNET_F32, 5, &a));
        OK(c, lnt_problem_make(c, &kb, LINNET_F32, LINNET_F32, 5, &b));
        float *g = f < 3 ? tensor(&a, "g") : NULL;
        for (int64_t i = 0; f < 3 && i < elements(&a, "g"); i++) g[i] = f == 0 ? tensor(&b, "g_head")[i % 2] : 0.0f;
        if (f == 3) args(&a)->window = 70;
        if (f == 4) { /* what remains without writes */
            memset(tensor(&a, "beta"), 0, tensor_bytes(&a, "beta"));
            memset(tensor(&b, "v"), 0, tensor_bytes(&b, "v"));
        }
        if (f == 5) {
            float *ak = tensor(&a, "k"), *bk = tensor(&b, "k"), *v = tensor(&b, "v"), *beta = tensor(&a, "beta");
            for (int64_t i = 0; i < 400; i++) ak[i] = bk[i] = i / 20 == i % 20;
            for (int64_t i = 0; i < elements(&b, "v"); i++) v[i] *= beta[i / 24];
            memset(tensor(&a, "s0"), 0, tensor_bytes(&a, "s0"));
            memset(tensor(&b, "s0"), 0, tensor_bytes(&b, "s0"));
        }
        if (f == 6) memset(tensor(&a, "a"), 0, tensor_bytes(&a, "a"));
        if (f == 9) memset(tensor(&a, "gk"), 0, tensor_bytes(&a, "gk"));
        if (f == 8) { /* each has drawn its own gates of the columns */
            memset(tensor(&a, "gk"), 0, tensor_bytes(&a, "gk"));
            memcpy(tensor(&a, "gv"), tensor(&b, "gv"), tensor_bytes(&b, "gv"));
        }
        for (int64_t i = 0; f == 7 && i < elements(&a, "a"); i++) { /* [T,2,20], keys [T,1,20] */
            const float k = tensor(&a, "k")[i / 40 * 20 + i % 20];
            tensor(&a, "a")[i] = -tensor(&b, "beta")[i / 20] * expf(tensor(&a, "gk")[i]) * k;
            tensor(&a, "b")[i] = k;
        }
        for (int64_t i = 0; f == 7 && i < elements(&a, "v"); i++) tensor(&a, "v")[i] *= tensor(&b, "beta")[i / 24];
        a.r.form = b.r.form = LINNET_FORM_CHUNK;
        for (int back = 0; back < 2; back++) {
            OK(c, lnt_problem_run(c, &a, back));
            OK(c, lnt_problem_run(c, &b, back));
        }
        close_to(from[f], to[f], tensor(&a, "o"), tensor(&b, "o"), elements(&a, "o"), 1e-6);
        if (f != 3) close_to(from[f], to[f], tensor(&a, "sT"), tensor(&b, "sT"), elements(&a, "sT"), 1e-6);
        for (const char *const *name = alike[f]; *name; name++)
            close_to(from[f], *name, tensor(&a, *name), tensor(&b, *name), elements(&a, *name), 2e-6);
        lnt_problem_free(&a);
        lnt_problem_free(&b);
    }
    linnet_context_destroy(c);
}

/* Decays with signs that are all 1 are those without. With signs of 1 and -1, whose products are s_t, simple_gla is that of s_t q_t and s_t k_t: what
 * belongs to them turns with them, and so does the final state. */
static void signs_are_of_rows(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int f = 0; f < 6; f++) {
        enum { T = 70, H = 2, K = 20, V = 24 };
        const bool turned = f >= 4;
        lnt_recur_case kb = { f % 2 ? "mesa" : "simple_gla", 1, { T }, LNT_HEADS(1, H, K, V), .gate = -0.3, .beta = 1, .states = true }, ka = kb;
        if (turned) ka.op = kb.op = "simple_gla", lnt_case_set(&ka, "Hq", H), lnt_case_set(&ka, "Hk", H), kb = ka;
        ka.option[0].key = "signed", ka.option[0].value = 1;
        lnt_problem a, b;
        OK(c, lnt_problem_make(c, &ka, LINNET_F32, LINNET_F32, 5, &a));
        OK(c, lnt_problem_make(c, &kb, LINNET_F32, LINNET_F32, 5, &b));
        a.r.form = b.r.form = turned ? (linnet_form)(f - 4) + LINNET_FORM_RECURRENT : f < 2 ? LINNET_FORM_CHUNK : LINNET_FORM_RECURRENT;
        float *sign = tensor(&a, "sign"), product[T * H];
        for (int i = 0; i < T * H; i++) {
            sign[i] = turned && (i * 7919 % 11) < 5 ? -1.0f : 1.0f;
            product[i] = sign[i] * (i < H ? 1 : product[i - H]);
        }
        static const char *const turns[] = { "q", "k" }, *const back[] = { "dq", "dk" }, *const state_back[] = { "sT", "dsT" };
        for (int n = 0; n < 2 && turned; n++) {
            for (int i = 0; i < T * H * K; i++) tensor(&b, turns[n])[i] *= product[i / K];
            for (int i = 0; i < H * K * V && n == 1; i++) tensor(&b, "dsT")[i] *= product[(T - 1) * H + i / (K * V)];
        }
        for (int n = 0; n < 2; n++) {
            OK(c, lnt_problem_run(c, &a, n));
            OK(c, lnt_problem_run(c, &b, n));
        }
        for (int n = 0; n < 2 && turned; n++)
            for (int i = 0; i < T * H * K; i++) tensor(&b, back[n])[i] *= product[i / K];
        for (int i = 0; i < H * K * V && turned; i++) tensor(&b, state_back[0])[i] *= product[(T - 1) * H + i / (K * V)];
        for (int i = 0; a.op->tensors[i].name; i++)
            if (b.data[i] && is_result(&a, i) && a.op->tensors[i].role != LNT_T_REPORT)
                close_to(a.op->name, a.op->tensors[i].name, a.data[i], b.data[i], (int64_t)(a.bytes[i] / 4), a.op->tensors[i].gate ? 2e-5 : 3e-6);
        lnt_problem_free(&a);
        lnt_problem_free(&b);
    }
    linnet_context_destroy(c);
}

/* Where all rows of a state, or all its columns, have one decay and one sign, gla and gla_v are simple_gla, whose gradients are the sums of
 * theirs; and gla_kv with such columns is gla with decays of both. Signs of 0 and both ends are among them. */
static void signs_of_rows_and_columns(void **state)
{
    (void)state;
    enum { T = 70, H = 2, K = 20, V = 24 };
    static const char *const names[] = { "gla", "gla_v", "gla_kv" };
    static const char *const inputs[] = { "q", "k", "v", "s0", "do", "dsT" }, *const results[] = { "o", "sT", "dq", "dk", "dv", "ds0" };
    linnet_context *c = make_context(2);
    for (int f = 0; f < 3; f++) {
        lnt_recur_case ka = { names[f], 2, { T - 9, 9 }, LNT_HEADS(1, H, K, V), .gate = -0.3, .reset = 0.05, .states = true }, kb = ka;
        kb.op = f < 2 ? "simple_gla" : "gla";
        ka.option[0].key = kb.option[0].key = "signed", ka.option[0].value = kb.option[0].value = 1;
        lnt_problem a, b;
        OK(c, lnt_problem_make(c, &ka, LINNET_F32, LINNET_F32, 5, &a));
        OK(c, lnt_problem_make(c, &kb, LINNET_F32, LINNET_F32, 5, &b));
        b.r.form = f < 2 ? LINNET_FORM_CHUNK : LINNET_FORM_RECURRENT;
        for (int i = 0; i < 6; i++) memcpy(tensor(&b, inputs[i]), tensor(&a, inputs[i]), tensor_bytes(&a, inputs[i]));
        const int width = f == 1 ? V : K;
        if (f < 2) { /* one decay of a token for all rows, or for all columns */
            float *g = tensor(&a, f ? "gv" : "gk"), *sign = tensor(&a, f ? "sign_v" : "sign_k");
            for (int i = 0; i < T * H * width; i++) {
                g[i] = tensor(&b, "g")[i / width];
                sign[i] = tensor(&b, "sign")[i / width];
            }
        } else { /* decays of columns, the same in all of a token's, are decays of its rows */
            for (int i = 0; i < T * H * V; i++) {
                tensor(&a, "gv")[i] = tensor(&a, "gv")[i / V * V];
                tensor(&a, "sign_v")[i] = tensor(&a, "sign_v")[i / V * V];
            }
            for (int i = 0; i < T * H * K; i++) {
                tensor(&b, "gk")[i] = tensor(&a, "gk")[i] + tensor(&a, "gv")[i / K * V];
                tensor(&b, "sign_k")[i] = tensor(&a, "sign_k")[i] * tensor(&a, "sign_v")[i / K * V];
            }
        }
        for (int n = 0; n < 2; n++) {
            OK(c, lnt_problem_run(c, &a, n));
            OK(c, lnt_problem_run(c, &b, n));
        }
        for (int i = 0; i < 6; i++) close_to(names[f], results[i], tensor(&a, results[i]), tensor(&b, results[i]), elements(&a, results[i]), 3e-6);
        static const char *const grads[2][3] = { { "dgk", "dgv", "dgk" }, { "dsign_k", "dsign_v", "dsign_k" } };
        for (int n = 0; n < 2; n++) {
            static float one[T * H], other[T * H];
            const float *each = tensor(&a, grads[n][f]), *all = tensor(&b, f == 2 ? grads[n][f] : n ? "dsign" : "dg");
            for (int i = 0; i < T * H; i++) {
                one[i] = other[i] = 0;
                const float turn = n && f == 2 ? tensor(&a, "sign_v")[i * V] : 1; /* a factor of the other's sign */
                for (int j = 0; j < width; j++) one[i] += each[i * width + j];
                for (int j = 0; j < (f == 2 ? K : 1); j++) other[i] += turn * all[f == 2 ? i * K + j : i];
            }
            close_to(names[f], grads[n][f], one, other, T * H, 2e-5);
        }
        lnt_problem_free(&a);
        lnt_problem_free(&b);
    }
    linnet_context_destroy(c);
}

/* W writes a token are the gated delta rule on as many tokens, of which the first alone decays and the last alone is read: both directions. */
static void writes_of(linnet_context *c, int W, linnet_form form)
{
    enum { T = 53, LENGTH = 20 };
    const lnt_recur_case ka = { "gated_delta_product", 2, { T - LENGTH, LENGTH }, LNT_HEADS(1, 2, 20, 24), .gate = -0.3, .reset = 0.05, .beta = 2,
                                .states = true, .option = { { "n_householder", W } } };
    const lnt_recur_case kb = { "gated_delta_rule", 2, { (T - LENGTH) * W, LENGTH * W }, LNT_HEADS(1, 2, 20, 24), .states = true };
    lnt_problem a, b;
    OK(c, lnt_problem_make(c, &ka, LINNET_F32, LINNET_F32, 5, &a));
    OK(c, lnt_problem_make(c, &kb, LINNET_F32, LINNET_F32, 5, &b));
    a.r.form = b.r.form = form;
    static const char *const same[] = { "k", "v", "beta", "s0", "dsT" }, *const token[] = { "q", "do", "g" };
    static const char *const result[] = { "sT", "dk", "dv", "dbeta", "ds0" }, *const read[] = { "o", "dq", "dg" };
    for (int i = 0; i < 5; i++) {
        assert_int_equal(tensor_bytes(&a, same[i]), tensor_bytes(&b, same[i]));
        memcpy(tensor(&b, same[i]), tensor(&a, same[i]), tensor_bytes(&a, same[i]));
    }
    for (int i = 0; i < 3; i++) {
        const int64_t width = elements(&a, token[i]) / T;
        memset(tensor(&b, token[i]), 0, tensor_bytes(&b, token[i]));
        for (int64_t t = 0; t < T; t++)
            memcpy(tensor(&b, token[i]) + (t * W + (i < 2 ? W - 1 : 0)) * width, tensor(&a, token[i]) + t * width, (size_t)width * 4);
    }
    for (int back = 0; back < 2; back++) {
        OK(c, lnt_problem_run(c, &a, back));
        OK(c, lnt_problem_run(c, &b, back));
    }
    for (int i = 0; i < 5; i++) close_to("writes", result[i], tensor(&a, result[i]), tensor(&b, result[i]), elements(&a, result[i]), 3e-6);
    for (int i = 0; i < 3; i++) {
        const int64_t width = elements(&a, read[i]) / T;
        float *expected = tensor(&b, read[i]);
        for (int64_t t = 0; t < T; t++) memmove(expected + t * width, expected + (t * W + (i < 2 ? W - 1 : 0)) * width, (size_t)width * 4);
        close_to("writes", read[i], tensor(&a, read[i]), expected, T * width, i == 2 ? 2e-5 : 3e-6);
    }
    if (W == 1) /* nothing is left that would round otherwise */
        for (int i = 0; i < 8; i++) {
            const char *name = i < 5 ? result[i] : read[i - 5];
            if (memcmp(tensor(&a, name), tensor(&b, name), tensor_bytes(&a, name))) fail_msg("one write, form %d: %s differs", (int)form, name);
        }
    lnt_problem_free(&a);
    lnt_problem_free(&b);
}

static void writes_are_tokens(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++)
        for (int W = 1; W <= 3; W += 2) writes_of(c, W, (linnet_form)form);
    linnet_context_destroy(c);
}

/* A scan is gla_v with keys and queries of one 1: both directions, states too. */
static void scan_is_gates_of_columns(void **state)
{
    (void)state;
    static const char *const ours[] = { "log_a", "x", "s0", "do", "dsT" }, *const theirs[] = { "gv", "v", "s0", "do", "dsT" };
    static const char *const out[] = { "o", "sT", "dlog_a", "dx", "ds0" }, *const same[] = { "o", "sT", "dgv", "dv", "ds0" };
    linnet_context *c = make_context(2);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
        lnt_recur_case ka = { "scan", 2, { 70, 33 }, { { "D", 24 } }, .gate = -0.5, .reset = 0.02, .states = true };
        lnt_recur_case kb = { "gla_v", 2, { 70, 33 }, LNT_HEADS(1, 1, 1, 24), .states = true, .option = { { "scale", 1 } } };
        lnt_problem a, b;
        OK(c, lnt_problem_make(c, &ka, LINNET_F32, LINNET_F32, 5, &a));
        OK(c, lnt_problem_make(c, &kb, LINNET_F32, LINNET_F32, 5, &b));
        a.r.form = b.r.form = (linnet_form)form;
        for (int i = 0; i < 5; i++) {
            assert_int_equal(tensor_bytes(&a, ours[i]), tensor_bytes(&b, theirs[i]));
            memcpy(tensor(&b, theirs[i]), tensor(&a, ours[i]), tensor_bytes(&a, ours[i]));
        }
        for (int64_t i = 0; i < elements(&b, "q"); i++) tensor(&b, "q")[i] = tensor(&b, "k")[i] = 1;
        for (int back = 0; back < 2; back++) {
            OK(c, lnt_problem_run(c, &a, back));
            OK(c, lnt_problem_run(c, &b, back));
        }
        for (int i = 0; i < 5; i++) close_to("scan", out[i], tensor(&a, out[i]), tensor(&b, same[i]), elements(&a, out[i]), i == 2 ? 2e-5 : 2e-6);
        lnt_problem_free(&a);
        lnt_problem_free(&b);
    }
    linnet_context_destroy(c);
}

/* Long convolutions in heads, with filters gamma^l, are retention; and with keys, values and queries of one column, the queries and keys 1, a filter
 * a channel. Both directions. */
static void long_convolutions_reduce(void **state)
{
    (void)state;
    enum { T = 100, L = 70 };
    linnet_context *c = make_context(2);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
        lnt_recur_case ka = { "multihead_long_conv", 2, { L, T - L }, { { "H", 2 }, { "K", 20 }, { "V", 24 }, { "L", L } }, .gate = 0 };
        lnt_recur_case kb = { "retention", 2, { L, T - L }, LNT_HEADS(2, 2, 20, 24), .gate = -0.2, .option = { { "scale", 1 } } };
        lnt_recur_case kc = { "multihead_long_conv", 2, { L, T - L }, { { "H", 33 }, { "K", 1 }, { "V", 1 }, { "L", L } }, .states = true };
        lnt_recur_case kd = { "long_conv", 2, { L, T - L }, { { "D", 33 }, { "L", L } }, .states = true };
        lnt_problem a, b;
        OK(c, lnt_problem_make(c, &ka, LINNET_F32, LINNET_F32, 5, &a));
        OK(c, lnt_problem_make(c, &kb, LINNET_F32, LINNET_F32, 5, &b));
        memset(tensor(&a, "D"), 0, tensor_bytes(&a, "D"));
        for (int i = 0; i < 2 * L; i++) tensor(&a, "h")[i] = (float)exp(i / 2 * (double)tensor(&b, "g_head")[i % 2]);
        static const char *const same[] = { "q", "k", "v", "do" }, *const out[] = { "o", "dq", "dk", "dv" };
        for (int i = 0; i < 4; i++) memcpy(tensor(&b, same[i]), tensor(&a, same[i]), tensor_bytes(&a, same[i]));
        a.r.form = b.r.form = (linnet_form)form;
        for (int back = 0; back < 2; back++) {
            OK(c, lnt_problem_run(c, &a, back));
            OK(c, lnt_problem_run(c, &b, back));
        }
        for (int i = 0; i < 4; i++) close_to("retention", out[i], tensor(&a, out[i]), tensor(&b, out[i]), elements(&a, out[i]), 2e-6);
        lnt_problem_free(&a);
        lnt_problem_free(&b);
        OK(c, lnt_problem_make(c, &kc, LINNET_F32, LINNET_F32, 5, &a));
        OK(c, lnt_problem_make(c, &kd, LINNET_F32, LINNET_F32, 5, &b));
        static const char *const ones[] = { "q", "k", "s0_k" };
        for (int n = 0; n < 3; n++)
            for (int64_t i = 0; i < elements(&a, ones[n]); i++) tensor(&a, ones[n])[i] = 1;
        static const char *const heads[] = { "v", "h", "D", "s0_v", "do", "dsT_v" }, *const channels[] = { "u", "h", "D", "s0", "do", "dsT" };
        for (int i = 0; i < 6; i++) {
            assert_int_equal(tensor_bytes(&a, heads[i]), tensor_bytes(&b, channels[i]));
            memcpy(tensor(&b, channels[i]), tensor(&a, heads[i]), tensor_bytes(&a, heads[i]));
        }
        a.r.form = b.r.form = (linnet_form)form;
        for (int back = 0; back < 2; back++) {
            OK(c, lnt_problem_run(c, &a, back));
            OK(c, lnt_problem_run(c, &b, back));
        }
        static const char *const mine[] = { "o", "sT_v", "dv", "dh", "dD", "ds0_v" }, *const theirs[] = { "o", "sT", "du", "dh", "dD", "ds0" };
        for (int i = 0; i < 6; i++) close_to("long_conv", mine[i], tensor(&a, mine[i]), tensor(&b, theirs[i]), elements(&a, mine[i]), 2e-6);
        lnt_problem_free(&a);
        lnt_problem_free(&b);
    }
    linnet_context_destroy(c);
}

/* A selective scan of one rate a channel is a scan of delta u B, log_a = delta A, read by C, and simple_gla with a head a channel, q = C, k = B,
 * v = delta u, g = delta A. Both directions, outputs without D u; the first sequence's step sizes are constant, and so are its decays. */
static void selective_scan_of_one_rate(void **state)
{
    (void)state;
    enum { T = 70, LENGTH = 45, D = 7, M = 5 };
    linnet_context *c = make_context(2);
    for (int f = 0; f < 4; f++) {
        const bool scan = f < 2;
        const lnt_recur_case ka = { "selective_scan", 2, { LENGTH, T - LENGTH }, { { "D", D }, { "M", M } }, .beta = 0.5, .states = true };
        const lnt_recur_case kb = { "scan", 2, { LENGTH, T - LENGTH }, { { "D", D * M } }, .gate = -1, .states = true };
        const lnt_recur_case kc = { "simple_gla", 2, { LENGTH, T - LENGTH }, LNT_HEADS(1, D, M, 1), .gate = -1, .states = true,
                                    .option = { { "scale", 1 } } };
        lnt_problem a, b;
        OK(c, lnt_problem_make(c, &ka, LINNET_F32, LINNET_F32, 5, &a));
        OK(c, lnt_problem_make(c, scan ? &kb : &kc, LINNET_F32, LINNET_F32, 5, &b));
        a.r.form = b.r.form = f % 2 ? LINNET_FORM_CHUNK : LINNET_FORM_RECURRENT;
        float *A = tensor(&a, "A"), *delta = tensor(&a, "delta"), *u = tensor(&a, "u"), *B = tensor(&a, "B"), *C = tensor(&a, "C");
        memset(tensor(&a, "D"), 0, tensor_bytes(&a, "D"));
        for (int i = 0; i < D * M; i++) A[i] = A[i / M * M];
        for (int i = D; i < LENGTH * D; i++) delta[i] = delta[i % D];
        static const char *const states[] = { "s0", "dsT" };
        for (int i = 0; i < 2; i++) {
            assert_int_equal(tensor_bytes(&a, states[i]), tensor_bytes(&b, states[i]));
            memcpy(tensor(&b, states[i]), tensor(&a, states[i]), tensor_bytes(&a, states[i]));
        }
        for (int i = 0; i < T * D * M && scan; i++) { /* token, channel, column */
            const int row = i / M, column = i / (D * M) * M + i % M;
            tensor(&b, "log_a")[i] = delta[row] * A[i % (D * M)];
            tensor(&b, "x")[i] = delta[row] * u[row] * B[column];
            tensor(&b, "do")[i] = tensor(&a, "do")[row] * C[column];
        }
        for (int i = 0; i < T * D && !scan; i++) {
            tensor(&b, "g")[i] = delta[i] * A[i % D * M];
            tensor(&b, "v")[i] = delta[i] * u[i];
            tensor(&b, "do")[i] = tensor(&a, "do")[i];
        }
        if (!scan) memcpy(tensor(&b, "q"), C, tensor_bytes(&a, "C")), memcpy(tensor(&b, "k"), B, tensor_bytes(&a, "B"));
        for (int back = 0; back < 2; back++) {
            OK(c, lnt_problem_run(c, &a, back));
            OK(c, lnt_problem_run(c, &b, back));
        }
        float o[T * D] = { 0 }, du[T * D] = { 0 }, ddelta[T * D] = { 0 }, dA[D] = { 0 }, summed[D] = { 0 }, dB[T * M] = { 0 }, dC[T * M] = { 0 };
        for (int i = 0; i < T * D * M && scan; i++) {
            const int row = i / M, column = i / (D * M) * M + i % M;
            const float dx = tensor(&b, "dx")[i], dlog = tensor(&b, "dlog_a")[i], h = tensor(&b, "o")[i];
            o[row] += C[column] * h;
            du[row] += delta[row] * dx * B[column];
            ddelta[row] += A[i % (D * M)] * dlog + u[row] * dx * B[column];
            dA[row % D] += delta[row] * dlog;
            dB[column] += delta[row] * u[row] * dx;
            dC[column] += tensor(&a, "do")[row] * h;
        }
        for (int i = 0; i < T * D && !scan; i++) {
            o[i] = tensor(&b, "o")[i];
            du[i] = delta[i] * tensor(&b, "dv")[i];
            ddelta[i] = A[i % D * M] * tensor(&b, "dg")[i] + u[i] * tensor(&b, "dv")[i];
            dA[i % D] += delta[i] * tensor(&b, "dg")[i];
        }
        if (!scan) memcpy(dB, tensor(&b, "dk"), sizeof dB), memcpy(dC, tensor(&b, "dq"), sizeof dC);
        for (int i = 0; i < D * M; i++) summed[i / M] += tensor(&a, "dA")[i];
        close_to(b.op->name, "o", tensor(&a, "o"), o, T * D, 2e-6);
        close_to(b.op->name, "sT", tensor(&a, "sT"), tensor(&b, "sT"), 2 * D * M, 2e-6);
        close_to(b.op->name, "du", tensor(&a, "du"), du, T * D, 3e-6);
        close_to(b.op->name, "ddelta", tensor(&a, "ddelta"), ddelta, T * D, 2e-5);
        close_to(b.op->name, "dA", summed, dA, D, 2e-5);
        close_to(b.op->name, "dB", tensor(&a, "dB"), dB, T * M, 3e-6);
        close_to(b.op->name, "dC", tensor(&a, "dC"), dC, T * M, 3e-6);
        close_to(b.op->name, "ds0", tensor(&a, "ds0"), tensor(&b, "ds0"), 2 * D * M, 3e-6);
        lnt_problem_free(&a);
        lnt_problem_free(&b);
    }
    linnet_context_destroy(c);
}

/* A channel of a selective scan is gla with one value column: q = C, k = B, v = delta u, gk = delta A. */
static void selective_scan_is_gates_of_rows(void **state)
{
    (void)state;
    enum { T = 70, D = 7, M = 5 };
    linnet_context *c = make_context(2);
    lnt_recur_case ka = { "selective_scan", 1, { T }, { { "D", D }, { "M", M } }, .beta = 0.5, .states = true };
    lnt_recur_case kb = { "gla", 1, { T }, LNT_HEADS(1, 1, M, 1), .states = true, .option = { { "scale", 1 } } };
    lnt_problem a, b;
    OK(c, lnt_problem_make(c, &ka, LINNET_F32, LINNET_F32, 5, &a));
    OK(c, lnt_problem_make(c, &kb, LINNET_F32, LINNET_F32, 5, &b));
    memset(tensor(&a, "D"), 0, tensor_bytes(&a, "D"));
    OK(c, lnt_problem_run(c, &a, false));
    OK(c, lnt_problem_run(c, &a, true));
    memcpy(tensor(&b, "q"), tensor(&a, "C"), tensor_bytes(&b, "q"));
    memcpy(tensor(&b, "k"), tensor(&a, "B"), tensor_bytes(&b, "k"));
    for (int d = 0; d < D; d++) {
        float o[T], dv[T], expected[T];
        for (int t = 0; t < T; t++) {
            const float delta = tensor(&a, "delta")[t * D + d];
            tensor(&b, "v")[t] = delta * tensor(&a, "u")[t * D + d];
            tensor(&b, "do")[t] = tensor(&a, "do")[t * D + d];
            for (int m = 0; m < M; m++) tensor(&b, "gk")[t * M + m] = delta * tensor(&a, "A")[d * M + m];
        }
        memcpy(tensor(&b, "s0"), tensor(&a, "s0") + d * M, M * sizeof(float));
        memcpy(tensor(&b, "dsT"), tensor(&a, "dsT") + d * M, M * sizeof(float));
        OK(c, lnt_problem_run(c, &b, false));
        OK(c, lnt_problem_run(c, &b, true));
        for (int t = 0; t < T; t++) {
            o[t] = tensor(&a, "o")[t * D + d];
            dv[t] = tensor(&a, "du")[t * D + d];
            expected[t] = tensor(&a, "delta")[t * D + d] * tensor(&b, "dv")[t];
        }
        close_to("selective_scan", "o", o, tensor(&b, "o"), T, 2e-6);
        close_to("selective_scan", "du", dv, expected, T, 3e-6);
        close_to("selective_scan", "sT", tensor(&a, "sT") + d * M, tensor(&b, "sT"), M, 2e-6);
        close_to("selective_scan", "ds0", tensor(&a, "ds0") + d * M, tensor(&b, "ds0"), M, 3e-6);
    }
    lnt_problem_free(&a);
    lnt_problem_free(&b);
    linnet_context_destroy(c);
}

/* A window of one token: o = v. (Its dq and dk are exactly zero, so that no relative error can be told; it is not among the cases.) */
static void window_of_one(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK; form++) {
        lnt_recur_case k = { "attention", 2, { 70, 3 }, { { "Hq", 2 }, { "K", 20 }, { "V", 24 } }, .option = { { "window", 1 } } };
        lnt_problem p;
        OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &p));
        p.r.form = (linnet_form)form;
        OK(c, lnt_problem_run(c, &p, false));
        assert_memory_equal(tensor(&p, "o"), tensor(&p, "v"), tensor_bytes(&p, "o"));
        OK(c, lnt_problem_run(c, &p, true));
        close_to("window of 1", "dv", tensor(&p, "dv"), tensor(&p, "do"), elements(&p, "dv"), 1e-6);
        for (int64_t i = 0; i < elements(&p, "dk"); i++) assert_true(fabsf(tensor(&p, "dk")[i]) < 1e-5f && fabsf(tensor(&p, "dq")[i]) < 1e-5f);
        lnt_problem_free(&p);
    }
    linnet_context_destroy(c);
}

/* A decay of -inf at token t is the start of a new sequence with a zero state. */
static void reset_is_boundary(void **state)
{
    (void)state;
    enum { T = 70, AT = 21 };
    linnet_context *c = make_context(2);
    for (int o = 0; lnt_recur_at(o); o++)
        for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK && decay_row(lnt_recur_at(o)) >= 0; form++) {
            const lnt_recur_op *op = lnt_recur_at(o);
            if (op->tensors[decay_row(op)].passed) continue;
            lnt_recur_case one = plain_case(op, T), two = one;
            one.states = two.states = false;
            two.sequences = 2;
            two.length[0] = AT;
            two.length[1] = T - AT;
            lnt_problem a, b;
            OK(c, lnt_problem_make(c, &one, LINNET_F32, LINNET_F32, 5, &a));
            OK(c, lnt_problem_make(c, &two, LINNET_F32, LINNET_F32, 5, &b));
            const int g = decay_row(op);
            const int64_t width = (int64_t)(a.bytes[g] / 4) / T;
            for (int64_t j = AT * width; j < (AT + 1) * width; j++) ((float *)a.data[g])[j] = -INFINITY;
            a.r.form = b.r.form = (linnet_form)form;
            for (int back = 0; back < 2; back++) {
                OK(c, lnt_problem_run(c, &a, back));
                OK(c, lnt_problem_run(c, &b, back));
            }
            for (int i = 0; op->tensors[i].name; i++)
                if (a.data[i] && is_result(&a, i) && op->tensors[i].shape[0] == 'T' && i != g + 1)
                    close_to(op->name, op->tensors[i].name, a.data[i], b.data[i], (int64_t)(a.bytes[i] / 4), op->tensors[i].gate ? 2e-5 : 3e-6);
            for (int64_t j = AT * width; j < (AT + 1) * width; j++) assert_true(((float *)a.data[g + 1])[j] == 0.0f);
            lnt_problem_free(&a);
            lnt_problem_free(&b);
        }
    linnet_context_destroy(c);
}

/* A final state may be where its initial state is. */
static void state_in_place(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int o = 0; lnt_recur_at(o); o++)
        for (int form = LINNET_FORM_RECURRENT; form <= LINNET_FORM_CHUNK && has_state(lnt_recur_at(o)); form++) {
            const lnt_recur_op *op = lnt_recur_at(o);
            lnt_recur_case k = plain_case(op, 40);
            lnt_problem a, b;
            OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &a));
            OK(c, lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 5, &b));
            a.r.form = b.r.form = (linnet_form)form;
            for (int i = 0; op->tensors[i].name; i++)
                if (op->tensors[i].role == LNT_T_STATE && b.data[i]) lnt_recur_set(&b.call, &op->tensors[i + 2], b.data[i]);
            OK(c, lnt_problem_run(c, &a, false));
            OK(c, lnt_problem_run(c, &b, false));
            assert_memory_equal(tensor(&a, "o"), tensor(&b, "o"), tensor_bytes(&a, "o"));
            for (int i = 0; op->tensors[i].name; i++)
                if (op->tensors[i].role == LNT_T_STATE && b.data[i]) assert_memory_equal(a.data[i + 2], b.data[i], a.bytes[i]);
            lnt_problem_free(&a);
            lnt_problem_free(&b);
        }
    linnet_context_destroy(c);
}

/* ---- the node ------------------------------------------------------------------------------------------------------------------------- */

static const lnt_op source_type = { .name = "source" };

/* The value of letter i of a shape behind its first. */
static int64_t letter_of(const lnt_problem *p, const char *shape, int i)
{
    const char *letter;
    size_t length;
    lnt_recur_next_letter(&shape, &length);
    for (letter = lnt_recur_next_letter(&shape, &length); letter && i > 0; i--) letter = lnt_recur_next_letter(&shape, &length);
    return letter ? lnt_recur_letter(p->op, &p->call, letter, length) : 1;
}

/* A program of one operator over made-up inputs of the sizes of a problem; inputs that are no values of tokens are told apart here: constants,
 * mesa's Lambda, and parameters that are read as they are. */
static const lnt_node *node_of(linnet_context *c, lnt_program **program, lnt_problem *p)
{
    OK(c, lnt_program_create(c, program));
    lnt_recur_in in = { 0 };
    double constant[64];
    int n = 0;
    for (int i = 0; p->op->tensors[i].name; i++) {
        const lnt_recur_tensor *t = &p->op->tensors[i];
        if (t->role != LNT_T_INPUT || !p->data[i]) continue;
        if (t->shape[0] != 'T') {
            if (t->values == LNT_VALUES_DECAY) {
                for (size_t j = 0; j < p->bytes[i] / 4 && j < 64; j++) constant[j] = ((const float *)p->data[i])[j];
                in.constant.name = t->name, in.constant.value = constant;
            } else if (p->op != &lnt_recur_mesa) {
                int letters = 0; /* behind the first */
                for (const char *x = t->shape; *x; x++) letters += *x == ' ';
                const int64_t cols = letter_of(p, t->shape, letters > 1 ? letters - 1 : 0), dim[] = { elements(p, t->name) / cols, cols };
                in.tensor[n].name = t->name;
                in.tensor[n++].value = lnt_param_value(*program, lnt_add_param(*program, t->name, 2, dim, (lnt_init){ LNT_INIT_CONST, 0, 0 },
                                                                               false, false),
                                                             dim[0], 1);
            }
            continue;
        }
        const int64_t a = letter_of(p, t->shape, 0), b = letter_of(p, t->shape, 1);
        const int64_t each = elements(p, t->name) / (p->r.tokens * a * b); /* rows a token */
        const lnt_out_spec spec = { each * a * b, (int32_t)(each * a), !t->wide };
        const lnt_buf source = lnt_add_node(*program, &source_type, NULL, 0, NULL, 0, (int[]){ 0 }, 1, &spec)->out[0];
        in.tensor[n].name = t->name;
        in.tensor[n++].value = each > 1 ? lnt_split_rows(*program, source, (int32_t)each) : source;
    }
    for (int i = 0, o = 0; p->op->options[o].key; o++) {
        const double value = lnt_recur_option_get(&p->op->options[o], &p->call);
        if (isnan(value) || value == p->op->options[o].standard) continue;
        in.option[i].key = p->op->options[o].key;
        in.option[i++].value = value;
    }
    if (p->op == &lnt_recur_mesa) {
        lnt_mesa_options solve = { .lambda = "lambda", .lower = 0.25, .start = 1, .tolerance = 1e-7, .max_steps = 200, .max_steps_decoding = 200,
                                   .min_steps = -1, .window = args(p)->window };
        lnt_mesa(*program, in.tensor[0].value, in.tensor[1].value, in.tensor[2].value, in.tensor[3].value, in.tensor[4].value, &solve);
        for (int64_t i = 0; i < elements(p, "lambda"); i++) tensor(p, "lambda")[i] = 1;
    } else
        lnt_recur(*program, p->op->name, in);
    OK(c, lnt_program_finish(*program));
    return lnt_node_at(*program, lnt_node_count(*program) - 1);
}

/* Run rows cu[n] .. of a problem's inputs through the node; `first` is the row of the problem where the call's rows begin. */
static void run_node(linnet_context *c, const lnt_node *node, lnt_problem *p, int64_t first, int64_t n_seq, const int64_t *cu, void *state,
                     int64_t stride, const int64_t *position, int64_t capacity)
{
    const lnt_recur_attr *x = node->attr;
    lnt_shape shape = { .tokens = cu[n_seq], .n_seq = n_seq, .cu = cu, .has_state = state != NULL, .state_capacity = capacity, .dtype = LINNET_F32,
                        .threads = lnt_threads(c), .device = lnt_device_of(c) };
    lnt_call k = { .c = c, .node = node, .attr = node->attr, .tokens = cu[n_seq], .n_seq = n_seq, .cu = cu, .state = state, .state_stride = stride,
                   .position = position, .state_capacity = capacity };
    for (int i = 0; i < node->n_in; i++) {
        const int row = x->input[i];
        const int64_t skipped = p->op->tensors[row].shape[0] == 'T' ? (int64_t)(p->bytes[row] / 4) / p->r.tokens * first : 0;
        k.in[i] = (lnt_tensor){ .data = (float *)p->data[row] + skipped, .rows = k.tokens };
    }
    k.out[0].data = tensor(p, "o") + elements(p, "o") / p->r.tokens * first;
    float lambda[256];
    for (int i = 0; i < 256; i++) lambda[i] = logf(expm1f(0.75f)); /* mesa's Lambda is 1 then */
    if (node->n_param) k.param[0].master = lambda;
    k.work_size = node->op->workspace(node, &shape, false);
    k.work = lnt_alloc(k.work_size);
    memset(k.work, 0xff, k.work_size);
    OK(c, node->op->forward(&k));
    lnt_free(k.work);
}

/* Prefill and steps through the node's state give what one call over everything gives, recurrent states, caches and rings; so do three sequences at
 * once. */
static void node_keeps_one(linnet_context *c, const lnt_recur_case *k)
{
    static const int64_t parts[][8] = { { 60 }, { 20, 1, 1, 1, 17, 1, 19 }, { 3, 5, 1, 30, 2, 19 }, { 1, 1, 1, 57 }, { 9, 9, 1, 41 } };
    lnt_program *program;
    lnt_problem whole, pieces;
    OK(c, lnt_problem_make(c, k, LINNET_F32, LINNET_F32, 5, &whole));
    OK(c, lnt_problem_make(c, k, LINNET_F32, LINNET_F32, 5, &pieces));
    const lnt_node *node = node_of(c, &program, &whole);
    OK(c, lnt_problem_run(c, &whole, false));
    const int64_t capacity = 64, stride = node->op->state_size(node, capacity, LINNET_F32);
    for (size_t s = 0; s < sizeof parts / sizeof *parts; s++) {
        int64_t first = 0;
        void *memory = lnt_calloc((size_t)stride);
        memset(tensor(&pieces, "o"), 0xff, tensor_bytes(&pieces, "o"));
        for (int j = 0; j < 8 && parts[s][j]; j++) {
            run_node(c, node, &pieces, first, 1, (int64_t[]){ 0, parts[s][j] }, memory, stride, &first, capacity);
            first += parts[s][j];
        }
        assert_int_equal(first, 60);
        close_to(k->op, "o by pieces", tensor(&pieces, "o"), tensor(&whole, "o"), elements(&whole, "o"), 2e-6);
        lnt_free(memory);
    }
    int64_t position[3] = { 0 };
    void *memory = lnt_calloc((size_t)stride * 3);
    memcpy(whole.cu, (int64_t[]){ 0, 25, 30, 60 }, 4 * sizeof *whole.cu);
    whole.r.sequences = 3;
    for (int i = 0; whole.op->tensors[i].name; i++) /* states were made for one sequence */
        if (whole.op->tensors[i].shape[0] == 'N') lnt_recur_set(&whole.call, &whole.op->tensors[i], NULL);
    OK(c, lnt_problem_run(c, &whole, false));
    run_node(c, node, &pieces, 0, 3, whole.cu, memory, stride, position, capacity);
    close_to(k->op, "o packed", tensor(&pieces, "o"), tensor(&whole, "o"), elements(&whole, "o"), 2e-6);
    lnt_free(memory);
    lnt_problem_free(&whole);
    lnt_problem_free(&pieces);
    lnt_program_destroy(program);
}

static void node_keeps_state(void **state)
{
    (void)state;
    linnet_context *c = make_context(2);
    for (int o = 0; lnt_recur_at(o); o++) {
        lnt_recur_case k = plain_case(lnt_recur_at(o), 60);
        k.states = false;
        if (lnt_recur_at(o)->node) node_keeps_one(c, &k);
        for (const lnt_recur_option *x = lnt_recur_at(o)->options; x->key; x++) { /* what gives it another state */
            const bool window = !strcmp(x->key, "window");
            if (!window && (x->kind != LNT_RECUR_SWITCH || lnt_recur_at(o) == &lnt_recur_mesa)) continue; /* mesa's Lambda is node_of's */
            k.option[0].key = x->key;
            for (int value = window ? 9 : 1; value <= (window ? 100 : 1); value += 91) {
                k.option[0].value = value;
                node_keeps_one(c, &k);
            }
        }
    }
    linnet_context_destroy(c);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_and_hand_over), cmocka_unit_test(packed_is_separate), cmocka_unit_test(causality),
        cmocka_unit_test(results_past_the_caches),
        cmocka_unit_test(families_reduce),     cmocka_unit_test(window_of_one),      cmocka_unit_test(reset_is_boundary),
        cmocka_unit_test(scan_is_gates_of_columns), cmocka_unit_test(selective_scan_is_gates_of_rows),
        cmocka_unit_test(selective_scan_of_one_rate),
        cmocka_unit_test(writes_are_tokens),   cmocka_unit_test(signs_are_of_rows),
        cmocka_unit_test(signs_of_rows_and_columns), cmocka_unit_test(long_convolutions_reduce),
        cmocka_unit_test(state_in_place),      cmocka_unit_test(node_keeps_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

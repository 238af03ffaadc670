/* What a server shows of states (serve/state_view.h): every mixer of the list, looked at and not, and the numbers against ones made here from the
 * tensors of the state, from a plan of the test's own over the whole text, and from a decay that is known. test_state_view_cuda.c is this file with
 * VIEW_ON_GPU. */
#include "model_recipes.h"

#include <stdio.h>
#include <stdlib.h>

#include "linnet/state.h"
#include "mixers/mixers.h"
#include "recurrence/recur_node.h"
#include "serve/state_view.h"
#include "session_of.h"

enum { PROMPT = 75, STEPS = 6, TEXT = PROMPT + STEPS, CHUNK = 32, CAPACITY = 128 };

#ifdef VIEW_ON_GPU
static const bool on_gpu = true;
#else
static const bool on_gpu = false;
#endif

static int32_t text[TEXT];

typedef struct {
    lnt_view *view;
    int64_t told; /* rows */
} looking;

static linnet_status seen(void *user, const linnet_session_call *k, const lnt_plan *plan, int64_t row, int64_t first, int64_t n)
{
    looking *l = user;
    l->told += n;
    return lnt_view_see(c, l->view, plan, k->ids + first, row, n);
}

static void run_looked_at(linnet_session *s, const lnt_views *w, looking *l, const linnet_session_call *k)
{
    lnt_session_look(s, w->looked, w->n_looked, seen, l);
    OK(linnet_session_run(s, k, 1));
    lnt_session_look(s, NULL, 0, NULL, NULL);
    OK(lnt_view_norms(c, l->view, k->state));
}

/* The prompt in pieces, then steps, with the logits of all; looked at where there is a view. */
static void feed_text(linnet_session *s, linnet_state *state, const lnt_views *w, looking *l, lnt_viewed *to, float *logits)
{
    for (int at = 0; at < TEXT;) {
        linnet_session_call k = step_of(state, text + at, logits + at * VOCAB);
        const int rest = PROMPT - at;
        k.n_ids = rest > CHUNK ? CHUNK : rest > 0 ? rest : 1;
        k.wants = LINNET_LOGITS_ALL;
        if (l) run_looked_at(s, w, l, &k);
        else OK(linnet_session_run(s, &k, 1));
        at += (int)k.n_ids;
        if (l) assert_true(lnt_view_tell(l->view, to));
    }
}

static double norm_of(const linnet_state *state, const lnt_view_part *p, int64_t head)
{
    linnet_state_tensor t = {.size = sizeof t};
    OK(linnet_state_tensor_at(state, p->tensor, &t));
    assert_int_equal(strncmp(t.name, p->name, strlen(p->name)), 0);
    assert_int_equal(t.n_dims, 3);
    assert_int_equal(t.dtype, LINNET_F32);
    float *S = malloc((size_t)t.bytes);
    OK(linnet_state_tensor_read(state, p->tensor, S, (size_t)t.bytes));
    const int64_t count = t.dims[1] * t.dims[2];
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)S[head * count + i] * (double)S[head * count + i];
    free(S);
    return sqrt(sum);
}

static void forget(lnt_viewed *v)
{
    void *const all[] = {v->ids, v->norm, v->memory, v->cosine, v->nearest, v->nearness};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) lnt_free(all[i]);
}

/* What is told of a part, against its state and what follows from the definitions. */
static void check_part(const char *name, const lnt_view_part *p, const linnet_state *state, const lnt_viewed *v)
{
    for (int64_t h = p->first; h < p->first + p->heads; h++) {
        const float *norm = v->norm + h, *memory = v->memory + h;
        const double want = norm_of(state, p, h - p->first), got = (double)norm[(TEXT - 1) * v->heads];
        if (!(fabs(got - want) <= 1e-6 * want) || !(want > 0)) fail_msg("%s: norm %g, expected %g", name, got, want);
        for (int t = 0; t < TEXT; t++) {
            const bool known = t == CHUNK - 1 || t == 2 * CHUNK - 1 || t >= PROMPT - 1;
            assert_int_equal(!isnan(norm[t * v->heads]), known);
            const float m = memory[t * v->heads], before = t ? memory[(t - 1) * v->heads] : 0;
            if (p->no_memory) assert_true(isnan(m));
            else if (!p->decays) assert_float_equal(m, t + 1, 0);
            else if (!(m >= 1 && m <= (1 + before) * 1.000001f)) fail_msg("%s: memory %g behind %g", name, (double)m, (double)before);
        }
    }
}

/* Whether the device has all that the model needs. */
static bool offered(linnet_model *m)
{
    static float one[VOCAB];
    const int64_t id = 1;
    const linnet_status s = linnet_model_logits(c, m, &id, 1, 1, one);
    if (s != LINNET_EUNSUPPORTED) OK(s);
    assert_true(on_gpu || s == LINNET_OK);
    return s == LINNET_OK;
}

static bool look_at(const char *name, linnet_dtype dtype)
{
    static float plain[TEXT * VOCAB], looked[TEXT * VOCAB];
    linnet_model *m = mixer_model(name, dtype);
    if (!offered(m)) {
        linnet_model_destroy(m);
        return false;
    }
    linnet_session *s = session_of(m, 2, CAPACITY, 0, CHUNK);
    linnet_state *a = state_of(s), *b = state_of(s);
    lnt_views w;
    lnt_viewed v = {0};
    looking l = {0};
    OK(lnt_views_open(c, s, &w));
    OK(lnt_view_create(c, &w, -1, PROMPT, &l.view));
    feed_text(s, a, NULL, NULL, NULL, plain);
    feed_text(s, b, &w, &l, &v, looked);
    if (memcmp(plain, looked, sizeof plain)) fail_msg("%s: a look changes logits", name);
    same_states(name, a, b);
    assert_int_equal(l.told, TEXT);
    assert_int_equal(v.n, TEXT);
    assert_memory_equal(v.ids, text, sizeof text);
    for (int i = 0; i < w.n_parts; i++) {
        const lnt_view_part *p = &w.parts[i];
        if (p->nothing) assert_int_equal(strncmp(p->nothing, "no state of this kind: ", 23), 0);
        else check_part(name, p, b, &v);
    }
    lnt_view_destroy(l.view);
    lnt_views_close(&w);
    forget(&v);
    linnet_session_destroy(s);
    linnet_model_destroy(m);
    return true;
}

static void every_mixer(void **state)
{
    (void)state;
    int seen = 0;
    if (!c) skip();
    for (int i = 0; lnt_mixer_at(i); i++)
        for (int t = 0; t < 2; t++) seen += look_at(lnt_mixer_at(i)->kind.about.name, t ? LINNET_BF16 : LINNET_F32);
    assert_true(seen > 20);
}

/* ---- numbers made another way ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    linnet_model *m;
    linnet_session *s;
    lnt_views w;
    lnt_viewed v;
} watched;

static watched watch(const char *name, int64_t recall)
{
    static float logits[TEXT * VOCAB];
    watched x = {.m = mixer_model(name, LINNET_F32)};
    looking l = {0};
    x.s = session_of(x.m, 1, CAPACITY, 0, CHUNK);
    OK(lnt_views_open(c, x.s, &x.w));
    OK(lnt_view_create(c, &x.w, recall, PROMPT, &l.view));
    feed_text(x.s, state_of(x.s), &x.w, &l, &x.v, logits);
    lnt_view_destroy(l.view);
    return x;
}

static void unwatch(watched *x)
{
    lnt_views_close(&x->w);
    forget(&x->v);
    linnet_session_destroy(x->s);
    linnet_model_destroy(x->m);
}

/* 1 / (1 - gamma) is where a decay that stays the same leads: RetNet's heads have 1 - 2^-5, 1 - 2^-6. */
static void a_fixed_decay(void **state)
{
    (void)state;
    if (!c) skip();
    watched x = watch("retnet", -1);
    assert_int_equal(x.w.parts[0].heads, 2);
    for (int t = 0; t < TEXT; t++)
        for (int h = 0; h < 2; h++) {
            const double gamma = 1 - ldexp(1, -5 - h), want = (1 - pow(gamma, t + 1)) / (1 - gamma);
            assert_true(fabs((double)x.v.memory[t * x.v.heads + h] - want) < 1e-5 * want);
        }
    unwatch(&x);
}

static double at(const float *x, const lnt_tensor *t, int64_t row, int64_t col) { return (double)x[row * t->ld + col]; }

/* A head's matrix behind the prompt, as the session has it. */
static void dump(watched *x, const lnt_view_part *p, int64_t head, double *S)
{
    linnet_session *s = session_of(x->m, 1, CAPACITY, 0, CHUNK);
    linnet_state *state = state_of(s);
    const size_t count = (size_t)(p->rows * p->columns);
    float *all = malloc((size_t)p->heads * count * sizeof *all);
    feed(state, text, PROMPT, NULL);
    OK(linnet_state_tensor_read(state, p->tensor, all, (size_t)p->heads * count * sizeof *all));
    for (size_t i = 0; i < count; i++) S[i] = (double)all[(size_t)head * count + i];
    free(all);
    linnet_session_destroy(s);
}

/* The inputs of every part's node by a plan over the whole prompt, without a state: decays to memories, and keys and values to the matrix that a
 * sequential loop leaves, which is asked for the recall; of a delta rule, the one that stands in the session's state. */
static void check_whole(const char *name, bool delta)
{
    enum { ASKED = 20 };
    watched x = watch(name, ASKED);
    lnt_plan *plan;
    const lnt_plan_options o = {.tokens = PROMPT, .n_seq = 1, .dtype = LINNET_F32, .n_outputs = 1, .outputs = {x.m->hidden}, .alone = true,
                                .n_kept = x.w.n_looked, .kept = x.w.looked};
    OK(lnt_plan_create(c, x.m->p, &o, &plan));
    const lnt_batch b = {.tokens = PROMPT, .n_seq = 1, .n_inputs = 1, .inputs = {{x.m->ids, text}}};
    OK(lnt_plan_run(plan, x.m->w, &b));
    assert_non_null(x.v.cosine);
    for (int i = 0; i < x.w.n_parts; i++) {
        const lnt_view_part *p = &x.w.parts[i];
        if (p->nothing) continue; /* a convolution's */
        assert_null(p->no_recall);
        assert_null(p->no_memory);
        const lnt_tensor v = lnt_plan_output(plan, p->value), k = lnt_plan_output(plan, p->key), none = {0};
        const lnt_tensor g = p->decay.id ? lnt_plan_output(plan, p->decay) : none;
        const int64_t K = p->rows, V = p->columns;
        double *S = calloc((size_t)(K * V), sizeof *S), *m = calloc((size_t)p->channels, sizeof *m), r[64], answer = 0, rr = 0, vv = 0;
        for (int64_t h = 0; h < p->heads; h++) {
            memset(S, 0, (size_t)(K * V) * sizeof *S);
            memset(m, 0, (size_t)p->channels * sizeof *m);
            for (int t = 0; t < PROMPT; t++) {
                double mean = 0;
                for (int64_t j = 0; j < p->channels; j++) {
                    m[j] = 1 + (g.data ? exp(at(g.data, &g, t, h * p->channels + j)) : 1) * m[j];
                    mean += m[j] / (double)p->channels;
                }
                const double got = (double)x.v.memory[t * x.v.heads + p->first + h];
                if (!(fabs(got - mean) < 1e-4 * mean)) fail_msg("%s: memory %g, expected %g", name, got, mean);
                if (delta) continue;
                for (int64_t a = 0; a < K; a++) {
                    const double decay = !g.data ? 1 : exp(at(g.data, &g, t, p->channels > 1 ? h * K + a : h));
                    for (int64_t e = 0; e < V; e++) S[a * V + e] = decay * S[a * V + e] + at(k.data, &k, t, h * K + a) * at(v.data, &v, t, h * V + e);
                }
            }
            if (delta) dump(&x, p, h, S);
            answer = rr = vv = 0;
            for (int64_t e = 0; e < V; e++) {
                r[e] = 0;
                for (int64_t a = 0; a < K; a++) r[e] += at(k.data, &k, ASKED, h * K + a) * S[a * V + e];
                const double value = at(v.data, &v, ASKED, h * V + e);
                answer += r[e] * value, rr += r[e] * r[e], vv += value * value;
            }
            answer /= sqrt(rr * vv);
            if (!(fabs(answer - (double)x.v.cosine[p->first + h]) < 1e-4))
                fail_msg("%s: cosine %g, expected %g", name, (double)x.v.cosine[p->first + h], answer);
        }
        free(S);
        free(m);
    }
    lnt_plan_destroy(plan);
    unwatch(&x);
}

static void decays_and_sums(void **state)
{
    (void)state;
    if (on_gpu) skip(); /* it reads a plan's values where they are */
    check_whole("linear_attn", false);
    check_whole("simple_gla", false);
    check_whole("gla", false);
    check_whole("gated_deltanet", true);
    check_whole("delta_net", true);
}

/* The nearest are in order, and none is nearer. */
static void a_recall(void **state)
{
    (void)state;
    if (!c) skip();
    watched x = watch("delta_net", PROMPT - 1);
    for (int64_t h = 0; h < x.v.heads; h++) {
        const int32_t *nearest = x.v.nearest + h * LNT_RECALLED;
        const float *near = x.v.nearness + h * LNT_RECALLED;
        assert_true(near[0] >= near[1] && near[1] >= near[2] && near[0] >= x.v.cosine[h]);
        for (int i = 0; i < LNT_RECALLED; i++) {
            assert_in_range(nearest[i], 0, PROMPT - 1);
            if (nearest[i] == PROMPT - 1) assert_float_equal(near[i], x.v.cosine[h], 0);
        }
    }
    unwatch(&x);
}

/* A recall over more values than there is room for is refused, and nothing is taken. */
static void too_long(void **state)
{
    (void)state;
    if (!c) skip();
    linnet_model *m = mixer_model("delta_net", LINNET_F32);
    linnet_session *s = session_of(m, 1, CAPACITY, 0, CHUNK);
    lnt_views w;
    lnt_view *view;
    OK(lnt_views_open(c, s, &w));
    assert_int_equal(lnt_view_create(c, &w, 0, (int64_t)1 << 40, &view), LINNET_EINVAL);
    assert_null(view);
    assert_non_null(strstr(linnet_error_message(c), "at most 268435456"));
    assert_int_equal(lnt_view_create(c, &w, 0, INT64_MAX, &view), LINNET_EINVAL);
    lnt_views_close(&w);
    linnet_session_destroy(s);
    linnet_model_destroy(m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mixer), cmocka_unit_test(a_fixed_decay), cmocka_unit_test(decays_and_sums),
        cmocka_unit_test(a_recall),    cmocka_unit_test(too_long),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    c = on_gpu ? gpu_context_of(2) : context_of(2);
    lnt_rng r = lnt_rng_make(3, 0);
    for (int i = 0; i < TEXT; i++) text[i] = (int32_t)lnt_rng_below(&r, VOCAB);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (c) linnet_context_destroy(c);
    return failed;
}

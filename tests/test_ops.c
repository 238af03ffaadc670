/* The operators of ops/ against float64: forward and backward, float32 and bf16, every CPU variant, 1 to 3 threads (same bits), gradients accumulated
 * and absent, packed sequences, guarded buffers filled with NaN. The references themselves are checked by central
 * differences. Long: one set-up serves all tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "core/cpu.h"
#include "core/memory.h"
#include "core/rng.h"
#include "op_cases.h"
#include "pool_of.h"

enum { GUARD = 64 }; /* bytes behind every buffer */

/* ---- a buffer with a guard -------------------------------------------------------------------------------------------------------------- */

static void *guarded(size_t bytes)
{
    unsigned char *p = lnt_alloc(bytes + GUARD);
    memset(p, 0xff, bytes); /* NaN in every type */
    memset(p + bytes, 0x5a, GUARD);
    return p;
}
static void check_guard(const void *p, size_t bytes)
{
    for (int i = 0; i < GUARD; i++) assert_int_equal(((const unsigned char *)p)[bytes + i], 0x5a);
}

/* ---- one setting: a node of an operator, its call, its reference --------------------------------------------------------------------------- */

typedef struct {
    const op_case *o;
    linnet_context *c;
    lnt_program *p;
    const lnt_node *node, *first; /* first: of a pair, or NULL */
    lnt_call k;
    lnt_tensor middle, d_middle;
    bool middle_there;  /* others brought it a gradient */
    ref r;
    int id_at;          /* input that holds ids, -1 */
    int64_t *cu;        /* [n_seq+1] */
    int32_t *id;
    size_t work_size;
    int n_param;
    bool accumulate;
} setting;

static size_t bytes_of(const lnt_tensor *t) { return (size_t)(t->rows * t->cols) * lnt_dtype_size(t->dtype); }

static lnt_tensor tensor(int64_t rows, int64_t cols, int32_t heads, lnt_dtype t)
{
    lnt_tensor x = {NULL, t, rows, cols, heads, cols};
    x.data = guarded(bytes_of(&x));
    return x;
}

/* Random values, rounded to the tensor's type in both. */
static void fill(lnt_tensor *x, double *value, lnt_rng *r, bool positive)
{
    for (int64_t i = 0; i < x->rows * x->cols; i++) {
        lnt_store_element(x->data, x->dtype, i, positive ? 0.05 + 0.9 * lnt_rng_uniform(r) : lnt_rng_normal(r));
        if (value) value[i] = lnt_load_element(x->data, x->dtype, i);
    }
}
static double *doubles(int64_t n) { return lnt_calloc((size_t)(n > 0 ? n : 1) * sizeof(double)); }

static const lnt_op source_op = {.name = "source"};

/* Up to three sequences, one of them empty. */
static void cut_sequences(setting *s, int64_t T)
{
    const int64_t cu[3][5] = {{0, T}, {0, T / 3, T / 3, T}, {0, 0, 2 * T / 3, T, T}};
    s->k.n_seq = (int64_t[]){1, 3, 4}[T % 3];
    s->cu = lnt_alloc(sizeof cu[0]);
    memcpy(s->cu, cu[T % 3], sizeof cu[0]);
}

static void make_middle(setting *s, int64_t T, lnt_dtype policy, lnt_rng *rng)
{
    const lnt_value *v = lnt_program_value(s->p, s->first->out[0]);
    const lnt_dtype t = v->f32 ? LINNET_F32 : policy;
    s->middle = tensor(T, v->cols, v->heads, t), s->d_middle = tensor(T, v->cols, v->heads, t);
    s->r.middle = doubles(T * v->cols), s->r.d_middle = doubles(T * v->cols), s->r.d_middle_all = doubles(T * v->cols);
    s->middle_there = T % 2 && !s->node->op->pair->inner;
    if (s->middle_there) fill(&s->d_middle, s->r.d_middle, rng, false);
}

enum { ON_A_POOL = 4 }; /* as a number of threads: the caller's */
static pool backwards;

static setting make(const op_case *o, int64_t T, lnt_dtype policy, int threads, bool accumulate)
{
    setting s = {.o = o, .id_at = -1, .accumulate = accumulate};
    linnet_context_options options = LINNET_CONTEXT_OPTIONS_INIT;
    if (threads == ON_A_POOL) options = pool_options(threads, &backwards);
    options.threads = threads;
    assert_int_equal(linnet_context_create(&options, &s.c), LINNET_OK);
    assert_int_equal(lnt_program_create(s.c, &s.p), LINNET_OK);
    lnt_buf in[3] = {{0}, {0}, {0}};
    for (int i = 0; i < o->n_in; i++) {
        if (is_row(o, i)) {
            in[i] = o->alone ? LNT_NO_BUF : lnt_row_param(s.p, "row", 1, o->cols[i], normal);
            continue;
        }
        lnt_out_spec spec = {o->cols[i], i ? 1 : o->heads, o->f32_in};
        in[i] = lnt_add_node(s.p, &source_op, NULL, 0, in, 0, NULL, 1, &spec)->out[0];
    }
    if (o->ids) in[s.id_at = o->first_id ? 0 : o->n_in] = lnt_external(s.p, "ids");
    lnt_buf out = o->build(s.p, in, &o->a);
    if (!out.id) fail_msg("%s: %s", o->name, (lnt_program_finish(s.p), linnet_error_message(s.c)));
    s.node = lnt_node_at(s.p, lnt_node_count(s.p) - 1);
    if (o->pair) s.first = lnt_node_at(s.p, lnt_node_count(s.p) - 2);

    lnt_rng rng = lnt_rng_make(7, (uint64_t)T);
    lnt_call *k = &s.k;
    ref *r = &s.r;
    *r = o->a;
    cut_sequences(&s, T);
    *k = (lnt_call){.c = s.c, .node = s.node, .attr = s.node->attr, .tokens = T, .n_seq = k->n_seq, .cu = s.cu, .training = true, .loss_scale = 0.5};
    r->T = T, r->heads = o->heads, r->n_seq = k->n_seq, r->cu = s.cu;
    const int64_t out_cols = lnt_cols(s.p, out), out_rows = lnt_rows(s.p, out, T);
    r->out_cols = out_cols;
    k->out[0] = tensor(out_rows, out_cols, lnt_heads(s.p, out), lnt_program_value(s.p, out)->f32 ? LINNET_F32 : policy);
    k->d_out[0] = tensor(out_rows, out_cols, lnt_heads(s.p, out), k->out[0].dtype);
    r->out = doubles(out_rows * out_cols), r->d_out = doubles(out_rows * out_cols);
    fill(&k->d_out[0], r->d_out, &rng, false);
    if (s.node->op->backward_is_forward)
        for (int64_t t = 0; t < T; t++) r->d_out[t] = k->loss_scale;
    for (int i = 0; i < o->n_in; i++) {
        const lnt_dtype t = o->f32_in || is_row(o, i) ? LINNET_F32 : policy;
        const int64_t rows = rows_in(o, i, T);
        r->in_cols[i] = o->cols[i];
        r->in[i] = doubles(rows * o->cols[i]), r->d_in[i] = doubles(rows * o->cols[i]);
        if (i + 1 == o->absent) continue;
        k->in[i] = tensor(rows, o->cols[i], i ? 1 : o->heads, t);
        k->d_in[i] = tensor(rows, o->cols[i], i ? 1 : o->heads, t);
        fill(&k->in[i], r->in[i], &rng, is_positive(o, i));
        k->accumulate[i] = accumulate;
        if (accumulate) fill(&k->d_in[i], r->d_in[i], &rng, false);
    }
    if (o->ids) {
        s.id = lnt_calloc((size_t)(T + 1) * sizeof *s.id);
        for (int64_t t = 0; t < T; t++) s.id[t] = (int32_t)lnt_rng_below(&rng, (uint64_t)o->a.vocab);
        for (int64_t t = 0; t < T && !o->first_id; t += 4) s.id[t] = -1 - (int32_t)t;
        k->in[s.id_at] = (lnt_tensor){s.id, LINNET_I32, T, 1, 1, 1};
        r->id = s.id;
    }
    if (s.first) make_middle(&s, T, policy, &rng);
    s.n_param = s.node->n_param + (s.first ? s.first->n_param : 0);
    for (int i = 0; i < s.n_param; i++) {
        const int before = s.n_param - s.node->n_param; /* the first's */
        const lnt_param *q = lnt_param_at(s.p, i < before ? s.first->param[i] : s.node->param[i - before]);
        float *master = guarded((size_t)q->count * 4), *grad = guarded((size_t)q->count * 4);
        lnt_bf16 *half = lnt_alloc((size_t)q->count * 2);
        r->param[i] = doubles(q->count), r->d_param[i] = doubles(q->count);
        for (int64_t j = 0; j < q->count; j++) {
            master[j] = (float)(lnt_rng_normal(&rng) * 0.3 + (q->ndim == 1 ? 1 : 0));
            grad[j] = (float)lnt_rng_normal(&rng);
            half[j] = lnt_f32_to_bf16(master[j]);
            bool rounded = q->product && policy == LINNET_BF16 && !o->first_id;
            r->param[i][j] = rounded ? lnt_bf16_to_f32(half[j]) : master[j];
            r->d_param[i][j] = grad[j];
        }
        k->param[i] = (lnt_param_view){master, policy == LINNET_BF16 ? (void *)half : (void *)master, policy, NULL, grad, false, q->count};
        if (policy == LINNET_F32) lnt_free(half);
    }
    lnt_shape shape = {.tokens = T, .n_seq = k->n_seq, .cu = s.cu, .training = true, .dtype = policy, .threads = threads};
    size_t need[2] = {0, 0};
    for (int b = 0; b < 2; b++)
        for (const lnt_node *n = s.node; n; n = n == s.first ? NULL : s.first) {
            const size_t bytes = n->op->workspace ? n->op->workspace(n, &shape, b) : 0;
            if (bytes > need[b]) need[b] = bytes;
        }
    s.work_size = need[0] > need[1] ? need[0] : need[1];
    k->work = guarded(s.work_size), k->work_size = s.work_size;
    return s;
}

static void drop(setting *s)
{
    lnt_call *k = &s->k;
    if (s->first) {
        check_guard(s->middle.data, bytes_of(&s->middle));
        check_guard(s->d_middle.data, bytes_of(&s->d_middle));
        lnt_free(s->middle.data);
        lnt_free(s->d_middle.data);
        lnt_free(s->r.middle);
        lnt_free(s->r.d_middle);
        lnt_free(s->r.d_middle_all);
    }
    check_guard(k->work, s->work_size);
    check_guard(k->out[0].data, bytes_of(&k->out[0]));
    lnt_free(k->work);
    lnt_free(k->out[0].data);
    lnt_free(k->d_out[0].data);
    lnt_free(s->r.out);
    lnt_free(s->r.d_out);
    lnt_free(s->id);
    lnt_free(s->cu);
    for (int i = 0; i < s->o->n_in; i++) {
        if (k->d_in[i].data) check_guard(k->d_in[i].data, bytes_of(&k->d_in[i]));
        lnt_free(k->in[i].data);
        lnt_free(k->d_in[i].data);
        lnt_free(s->r.in[i]);
        lnt_free(s->r.d_in[i]);
    }
    for (int i = 0; i < s->n_param; i++) {
        lnt_param_view *v = &k->param[i];
        if (v->grad) check_guard(v->grad, (size_t)v->count * 4);
        if (v->work != (const void *)v->master) lnt_free((void *)(uintptr_t)v->work);
        lnt_free((void *)(uintptr_t)v->master);
        lnt_free(v->grad);
        lnt_free(s->r.param[i]);
        lnt_free(s->r.d_param[i]);
    }
    lnt_program_destroy(s->p);
    linnet_context_destroy(s->c);
}

/* A pair in one call, or (apart) its nodes one by one. */
static void run_pair(setting *s, bool apart)
{
    const lnt_pair *pair = s->node->op->pair;
    const lnt_shape shape = {.tokens = s->k.tokens, .n_seq = s->k.n_seq, .cu = s->cu, .training = true};
    lnt_call a, b;
    split_pair(&s->k, s->first, s->node, s->middle, s->d_middle, s->middle_there, &a, &b);
    assert_ptr_equal(pair->first, s->first->op);
    if (apart || (pair->fits && !pair->fits(s->first, s->node, &shape))) {
        assert_int_equal(a.node->op->forward(&a), LINNET_OK);
        assert_int_equal(b.node->op->forward(&b), LINNET_OK);
        assert_int_equal(b.node->op->backward(&b), LINNET_OK);
        assert_int_equal(a.node->op->backward(&a), LINNET_OK);
    } else {
        assert_int_equal(pair->forward(&a, &b), LINNET_OK);
        assert_int_equal(pair->backward(&a, &b), LINNET_OK);
    }
}

static void run(setting *s)
{
    if (s->first) return run_pair(s, false);
    if (!s->node->op->backward_is_forward) assert_int_equal(s->node->op->forward(&s->k), LINNET_OK);
    assert_int_equal(s->node->op->backward(&s->k), LINNET_OK);
}

static void run_reference(setting *s)
{
    s->o->forward(&s->r);
    s->o->backward(&s->r);
}

static void compare(const setting *s, const char *what, const void *got, lnt_dtype t, const double *want, int64_t n, double limit)
{
    double error = 0, square = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = lnt_load_element(got, t, i) - want[i];
        if (isnan(d)) fail_msg("%s %s (T=%lld, %s): NaN at %lld", s->o->name, what, (long long)s->k.tokens, lnt_cpu_name(lnt_cpu()), (long long)i);
        error += d * d, square += want[i] * want[i], largest = fabs(d) > largest ? fabs(d) : largest;
    }
    if (largest <= 1e-7) return;
    if (!(sqrt(error) <= limit * sqrt(square)))
        fail_msg("%s %s (T=%lld, %s): relative error %.2e, expected at most %.0e", s->o->name, what, (long long)s->k.tokens, lnt_cpu_name(lnt_cpu()),
                 sqrt(error / square), limit);
}

static void compare_all(const setting *s, lnt_dtype policy)
{
    const lnt_call *k = &s->k;
    const double forward = policy == LINNET_F32 ? 1e-6 : 5e-3, backward = policy == LINNET_F32 ? 5e-6 : 5e-3;
    static const char *const d_in[] = {"d_in 0", "d_in 1", "d_in 2"};
    compare(s, "output", k->out[0].data, k->out[0].dtype, s->r.out, k->out[0].rows * s->r.out_cols, forward);
    for (int i = 0; i < s->o->n_in; i++)
        if (k->d_in[i].data) compare(s, d_in[i], k->d_in[i].data, k->d_in[i].dtype, s->r.d_in[i], k->d_in[i].rows * s->o->cols[i], backward);
    if (s->first) compare(s, "middle", s->middle.data, s->middle.dtype, s->r.middle, k->tokens * s->middle.cols, forward);
    if (s->first) compare(s, "d_middle", s->d_middle.data, s->d_middle.dtype, s->r.d_middle_all, k->tokens * s->middle.cols, backward);
    for (int i = 0; i < s->n_param; i++)
        compare(s, i ? "d_param 1" : "d_param 0", k->param[i].grad, LINNET_F32, s->r.d_param[i], k->param[i].count, backward);
}

static void same_bits(const setting *a, const setting *b)
{
    assert_memory_equal(a->k.out[0].data, b->k.out[0].data, bytes_of(&a->k.out[0]));
    if (a->first) assert_memory_equal(a->middle.data, b->middle.data, bytes_of(&a->middle));
    if (a->first) assert_memory_equal(a->d_middle.data, b->d_middle.data, bytes_of(&a->d_middle));
    for (int i = 0; i < a->o->n_in; i++)
        if (a->k.d_in[i].data) assert_memory_equal(a->k.d_in[i].data, b->k.d_in[i].data, bytes_of(&a->k.d_in[i]));
    for (int i = 0; i < a->n_param; i++) assert_memory_equal(a->k.param[i].grad, b->k.param[i].grad, (size_t)a->k.param[i].count * 4);
}

/* ---- tests ---------------------------------------------------------------------------------------------------------------------------------- */

/* d/dx of sum(d_out out) by central differences against the reference's backward. */
static double objective(setting *s)
{
    double sum = 0;
    s->o->forward(&s->r);
    for (int64_t i = 0; i < s->k.out[0].rows * s->r.out_cols; i++) sum += s->r.out[i] * s->r.d_out[i];
    for (int64_t i = 0; s->first && i < s->k.tokens * s->middle.cols; i++) sum += s->r.middle[i] * s->r.d_middle[i];
    return sum;
}

static void check_slope(setting *s, double *x, const double *before, const double *d, int64_t n)
{
    const double h = 1e-5;
    for (int64_t i = 0; i < n; i++) {
        const double at = x[i];
        x[i] = at + h;
        double up = objective(s);
        x[i] = at - h;
        double slope = (up - objective(s)) / (2 * h), want = d[i] - (before ? before[i] : 0);
        x[i] = at;
        if (!(fabs(slope - want) < 1e-6 * (1 + fabs(want))))
            fail_msg("%s: reference gradient %lld is %.9g, central difference %.9g", s->o->name, (long long)i, want, slope);
    }
}

static void references(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        setting s = make(&cases[i], 5, LINNET_F32, 1, false);
        double *before[2] = {NULL, NULL};
        for (int q = 0; q < s.n_param; q++) {
            before[q] = doubles(s.k.param[q].count);
            memcpy(before[q], s.r.d_param[q], (size_t)s.k.param[q].count * sizeof(double));
        }
        run_reference(&s);
        for (int q = 0; q < s.o->n_in; q++) if (s.k.in[q].data) check_slope(&s, s.r.in[q], NULL, s.r.d_in[q], s.k.in[q].rows * s.o->cols[q]);
        for (int q = 0; q < s.n_param; q++)
            check_slope(&s, s.r.param[q], before[q], s.r.d_param[q], s.k.param[q].count < 200 ? s.k.param[q].count : 200);
        lnt_free(before[0]);
        lnt_free(before[1]);
        drop(&s);
    }
}

static void kernels(void **state)
{
    (void)state;
    static const int64_t lengths[] = {0, 1, 5, 64, 100};
    for (int level = 0; level <= (int)lnt_cpu_machine(); level++) {
        lnt_cpu_force((lnt_cpu_level)level);
        for (int i = 0; i < CASES; i++)
            for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
                for (int variant = 0; variant < 4; variant++) {
                    const lnt_dtype policy = variant & 1 ? LINNET_BF16 : LINNET_F32;
                    const bool accumulate = variant & 2;
                    setting one = make(&cases[i], lengths[l], policy, 1, accumulate);
                    run(&one);
                    run_reference(&one);
                    compare_all(&one, policy);
                    for (int threads = 2; threads <= ON_A_POOL; threads++) {
                        setting other = make(&cases[i], lengths[l], policy, threads, accumulate);
                        run(&other);
                        same_bits(&one, &other);
                        drop(&other);
                    }
                    drop(&one);
                }
    }
    lnt_cpu_force(lnt_cpu_machine());
    assert_true(backwards.regions > 200 || !lnt_pool_possible()); /* a build may have one variant */
}

/* On the CPU a pair gives the bits of its nodes. */
static void pairs(void **state)
{
    (void)state;
    for (int level = 0; level <= (int)lnt_cpu_machine(); level++) {
        lnt_cpu_force((lnt_cpu_level)level);
        for (int i = 0; i < CASES; i++)
            for (int variant = 0; cases[i].pair && variant < 12; variant++) {
                const int64_t T = (int64_t[]){5, 64, 2100}[variant / 4];
                const lnt_dtype policy = variant & 1 ? LINNET_BF16 : LINNET_F32;
                setting one = make(&cases[i], T, policy, 2, variant & 2), two = make(&cases[i], T, policy, 2, variant & 2);
                run_pair(&one, false);
                run_pair(&two, true);
                same_bits(&one, &two);
                drop(&one);
                drop(&two);
            }
    }
    lnt_cpu_force(lnt_cpu_machine());
}

/* Many blocks of rows, so that sums over tokens really have parts. */
static void long_sums(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        if (cases[i].a.vocab > 100) continue;
        setting one = make(&cases[i], 2100, LINNET_F32, 1, false), two = make(&cases[i], 2100, LINNET_F32, 3, false);
        run(&one);
        run(&two);
        run_reference(&one);
        compare_all(&one, LINNET_F32);
        same_bits(&one, &two);
        drop(&one);
        drop(&two);
    }
}

/* An absent gradient changes nothing in the others; an absent d_out makes zeros. */
static void absent(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        setting all = make(&cases[i], 64, LINNET_F32, 2, false);
        run(&all);
        for (int skip = 0; skip < all.o->n_in + all.n_param; skip++) {
            setting s = make(&cases[i], 64, LINNET_F32, 2, false);
            const int q = skip - s.o->n_in; /* a parameter */
            if (q < 0 && !s.k.d_in[skip].data) {
                drop(&s);
                continue;
            }
            void **gone = q < 0 ? &s.k.d_in[skip].data : (void **)&s.k.param[q].grad;
            lnt_free(*gone);
            *gone = NULL;
            run(&s);
            for (int j = 0; j < s.o->n_in; j++)
                if (j != skip && s.k.d_in[j].data) assert_memory_equal(s.k.d_in[j].data, all.k.d_in[j].data, bytes_of(&s.k.d_in[j]));
            for (int j = 0; j < s.n_param; j++)
                if (j != q) assert_memory_equal(s.k.param[j].grad, all.k.param[j].grad, (size_t)s.k.param[j].count * 4);
            drop(&s);
        }
        if (!all.node->op->backward_is_forward && !(all.first && all.node->op->pair->inner)) {
            setting s = make(&cases[i], 64, LINNET_F32, 2, false);
            float *before = NULL;
            if (s.n_param) {
                before = lnt_alloc((size_t)s.k.param[0].count * 4);
                memcpy(before, s.k.param[0].grad, (size_t)s.k.param[0].count * 4);
            }
            lnt_free(s.k.d_out[0].data);
            s.k.d_out[0].data = NULL;
            run(&s);
            for (int j = 0; j < s.o->n_in; j++)
                for (int64_t e = 0; e < s.k.d_in[j].rows * s.o->cols[j]; e++) assert_true(((float *)s.k.d_in[j].data)[e] == 0);
            if (before) assert_memory_equal(before, s.k.param[0].grad, (size_t)s.k.param[0].count * 4);
            lnt_free(before);
            drop(&s);
        }
        drop(&all);
    }
}

/* A gradient that is stored instead of added: what was there means nothing. Two blocks of the output head. */
static void stored(void **state)
{
    (void)state;
    int stores = 0;
    for (int i = 0; i < CASES; i++)
        for (int variant = 0; variant < 4; variant++) {
            const lnt_dtype policy = variant & 1 ? LINNET_BF16 : LINNET_F32;
            setting s = make(&cases[i], variant & 2 ? 100 : 0, policy, 2, false);
            if (s.node->op->stores_first && s.k.tokens) {
                const int64_t n = s.k.param[0].count;
                memset(s.k.param[0].grad, 0xff, (size_t)n * 4);
                memset(s.r.d_param[0], 0, (size_t)n * sizeof(double));
                s.k.param[0].set = true;
                run(&s);
                run_reference(&s);
                compare_all(&s, policy);
                stores++;
                if (!s.node->op->backward_is_forward) { /* of a gradient that did not arrive: zero */
                    lnt_free(s.k.d_out[0].data);
                    s.k.d_out[0].data = NULL;
                    assert_int_equal(s.node->op->backward(&s.k), LINNET_OK);
                    for (int64_t e = 0; e < n; e++) assert_true(s.k.param[0].grad[e] == 0);
                }
            }
            drop(&s);
        }
    assert_true(stores >= 12);
}

/* An input that may be a slice: read, and its gradient written, between columns of others that stay as they are. */
static void slices(void **state)
{
    (void)state;
    enum { LEFT = 8, RIGHT = 16 };
    int read = 0;
    for (int i = 0; i < CASES; i++)
        for (int variant = 0; variant < 4; variant++) {
            const lnt_dtype policy = variant & 1 ? LINNET_BF16 : LINNET_F32;
            setting s = make(&cases[i], 37, policy, 2, variant & 2);
            run_reference(&s);
            for (int j = 0; j < s.o->n_in; j++) {
                if (!(s.node->op->strided >> j & 1) || !s.k.in[j].data || (s.o->heads > 1 && s.node->n_param)) continue;
                lnt_tensor dense[2] = {s.k.in[j], s.k.d_in[j]}, *slot[2] = {&s.k.in[j], &s.k.d_in[j]};
                const int64_t rows = dense[0].rows, cols = dense[0].cols, ld = cols + LEFT + RIGHT;
                const size_t size = lnt_dtype_size(dense[0].dtype), bytes = (size_t)(rows * ld) * size;
                char *wide[2] = {guarded(bytes), guarded(bytes)}, *before = lnt_alloc((size_t)(rows * cols) * size);
                for (int q = 0; q < 2; q++) {
                    for (int64_t r = 0; r < rows; r++)
                        memcpy(wide[q] + (size_t)(r * ld + LEFT) * size, (char *)dense[q].data + (size_t)(r * cols) * size, (size_t)cols * size);
                    slot[q]->data = wide[q] + LEFT * size, slot[q]->ld = ld;
                }
                memcpy(before, dense[1].data, (size_t)(rows * cols) * size);
                run(&s);
                check_guard(wide[1], bytes);
                for (int64_t r = 0; r < rows; r++) {
                    memcpy((char *)dense[1].data + (size_t)(r * cols) * size, wide[1] + (size_t)(r * ld + LEFT) * size, (size_t)cols * size);
                    for (size_t e = 0; e < LEFT * size; e++) assert_int_equal((unsigned char)wide[1][(size_t)(r * ld) * size + e], 0xff);
                    for (size_t e = 0; e < RIGHT * size; e++)
                        assert_int_equal((unsigned char)wide[1][(size_t)(r * ld + LEFT + cols) * size + e], 0xff);
                }
                const double limit = policy == LINNET_F32 ? 5e-6 : 5e-3;
                compare(&s, "output of a slice", s.k.out[0].data, s.k.out[0].dtype, s.r.out, s.k.out[0].rows * s.r.out_cols, limit);
                compare(&s, "gradient of a slice", dense[1].data, dense[1].dtype, s.r.d_in[j], rows * cols, limit);
                memcpy(dense[1].data, before, (size_t)(rows * cols) * size);
                s.k.in[j] = dense[0], s.k.d_in[j] = dense[1];
                lnt_free(wide[0]);
                lnt_free(wide[1]);
                lnt_free(before);
                read++;
                break; /* others would add their gradients a second time */
            }
            drop(&s);
        }
    assert_true(read >= 20);
}

static const op_case *find(const char *name)
{
    for (int i = 0; i < CASES; i++)
        if (!strcmp(cases[i].name, name)) return &cases[i];
    fail_msg("no case %s", name);
    return NULL;
}

/* Feed a sequence in pieces through the state: the same outputs as at once (bits), and the reference with the state agrees. */
static void conv_state(void **state)
{
    (void)state;
    static const char *const names[] = {"conv silu", "conv", "conv of one", "conv of 32", "token shift", "conv bias silu"};
    static const int64_t parts[] = {1, 2, 1, 5, 0, 40, 15};
    for (int n = 0; n < 6; n++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            setting s = make(find(names[n]), 64, bf16 ? LINNET_BF16 : LINNET_F32, 2, false);
            const int64_t cols = s.o->cols[0], keep = n == 4 ? 1 : s.r.size - 1, cu[2] = {0, 64};
            const size_t row = (size_t)cols * lnt_dtype_size(s.k.in[0].dtype), bytes = (size_t)keep * (size_t)cols * 4;
            assert_int_equal(s.node->op->state_size(s.node, 64, LINNET_F32), (int64_t)bytes);
            char *whole = lnt_alloc(64 * row);
            s.k.cu = cu, s.k.n_seq = 1;
            assert_int_equal(s.node->op->forward(&s.k), LINNET_OK);
            memcpy(whole, s.k.out[0].data, 64 * row);
            /* Sequence 1 of 2 is the one under test; sequence 0 gets rows of its own (none). */
            char *memory = guarded(2 * bytes);
            memset(memory, 0, 2 * bytes);
            lnt_call k = s.k;
            int64_t at = 0;
            for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
                const int64_t piece[3] = {0, 0, parts[i]};
                k.tokens = parts[i], k.n_seq = 2, k.cu = piece, k.state = memory, k.state_stride = (int64_t)bytes, k.training = false;
                k.in[0].data = (char *)s.k.in[0].data + (size_t)at * row, k.in[0].rows = parts[i];
                k.out[0].data = (char *)s.k.out[0].data + (size_t)at * row, k.out[0].rows = parts[i];
                assert_int_equal(s.node->op->forward(&k), LINNET_OK);
                at += parts[i];
            }
            assert_int_equal(at, 64);
            assert_memory_equal(whole, s.k.out[0].data, 64 * row);
            for (size_t i = 0; i < bytes; i++) assert_int_equal(memory[i], 0);
            for (int64_t j = 0; j < keep; j++)
                for (int64_t c = 0; c < cols; c++)
                    assert_true(((float *)(memory + bytes))[j * cols + c] ==
                                (float)lnt_load_element(s.k.in[0].data, s.k.in[0].dtype, (64 - keep + j) * cols + c));
            check_guard(memory, 2 * bytes);
            lnt_free(memory);
            lnt_free(whole);
            drop(&s);
        }
}

/* Positions go on where each sequence left off, and stay exact far out. */
static void rotary_positions(void **state)
{
    (void)state;
    static const char *const names[] = {"rotary", "rotary within 7"};
    for (int i = 0; i < 2; i++) {
        setting s = make(find(names[i]), 100, LINNET_F32, 2, false);
        const int64_t cu[4] = {0, 30, 30, 100}, position[3] = {5, 3, 1000000};
        s.k.cu = s.r.cu = cu, s.k.n_seq = s.r.n_seq = 3, s.k.position = s.r.position = position;
        run(&s);
        run_reference(&s);
        compare_all(&s, LINNET_F32);
        drop(&s);
    }
}

/* Extreme inputs of activations, norms and gates: finite where mathematics is, NaN where the input is. */
static void extremes(void **state)
{
    (void)state;
    static const float values[] = {0.0f,   -0.0f, 1e-30f, -1e-30f, 100.0f,  -100.0f, 1000.0f, -1000.0f, 3e38f,
                                   -3e38f, NAN,   1.0f,   0.2499f, 0.2501f, -0.25f,  20.0f,   -20.0f};
    static const char *const names[] = {"identity", "silu", "sigmoid", "relu", "elu + 1", "log sigmoid", "tanh",
                                        "gelu",     "gelu tanh", "squared relu", "exp", "softplus", "1 - exp"};
    enum { N = sizeof values / sizeof *values };
    for (int level = 0; level <= (int)lnt_cpu_machine(); level++) {
        lnt_cpu_force((lnt_cpu_level)level);
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            setting s = make(find(names[n]), 5, LINNET_F32, 1, false);
            float *x = s.k.in[0].data, *y = s.k.out[0].data, *dx = s.k.d_in[0].data, *dy = s.k.d_out[0].data;
            const int64_t count = 5 * s.o->cols[0];
            for (int64_t i = 0; i < count; i++) x[i] = values[i % N], dy[i] = 1;
            run(&s);
            for (int64_t i = 0; i < count; i++) {
                const double want = s.r.scale * ref_act((double)x[i], s.r.act), slope = s.r.scale * ref_slope((double)x[i], s.r.act);
                if (isnan(x[i])) {
                    assert_true(isnan(y[i]));
                    continue;
                }
                if (fabs(want) > 3.3e38) continue;
                if (!(fabs(y[i] - want) <= 3e-7 * fabs(want) + 1e-37))
                    fail_msg("%s(%g) is %.9g, expected %.9g (%s)", names[n], x[i], y[i], want, lnt_cpu_name(lnt_cpu()));
                if (!(fabs(dx[i] - slope) <= 1e-6 * fabs(slope) + 2e-7 * fabs(s.r.scale)))
                    fail_msg("%s'(%g) is %.9g, expected %.9g (%s)", names[n], x[i], dx[i], slope, lnt_cpu_name(lnt_cpu()));
            }
            drop(&s);
        }
    }
    lnt_cpu_force(lnt_cpu_machine());
    /* A zero row: y = 0 and dx = dy / sqrt(eps). */
    setting s = make(find("l2norm"), 1, LINNET_F32, 1, false);
    memset(s.k.in[0].data, 0, bytes_of(&s.k.in[0]));
    run(&s);
    for (int i = 0; i < 100; i++) {
        assert_true(((float *)s.k.out[0].data)[i] == 0);
        double want = (double)((float *)s.k.d_out[0].data)[i] * 1e3;
        assert_true(fabs(((float *)s.k.d_in[0].data)[i] - want) <= 1e-6 * fabs(want));
    }
    drop(&s);
}

/* Blocks of the output head: a vocabulary so large that a quarter of the tokens' logits, or 32 MiB, are a few rows. */
static void loss_blocks(void **state)
{
    (void)state;
    const op_case large = {
        .name = "large vocabulary", .build = build_loss, BOTH(loss), .n_in = 1, .cols = {3}, .heads = 1, .ids = true, .a = {.vocab = 100003}};
    for (int bf16 = 0; bf16 < 2; bf16++) {
        setting one = make(&large, 140, bf16 ? LINNET_BF16 : LINNET_F32, 1, true), two = make(&large, 140, bf16 ? LINNET_BF16 : LINNET_F32, 3, true);
        assert_true(one.work_size < (size_t)140 * 100003 * 4);
        run(&one);
        run(&two);
        run_reference(&one);
        compare_all(&one, bf16 ? LINNET_BF16 : LINNET_F32);
        same_bits(&one, &two);
        drop(&one);
        drop(&two);
    }
}

/* What a mixer's author or a caller does wrong has a message. */
static void refuses(void **state)
{
    (void)state;
    setting s = make(find("embedding"), 5, LINNET_F32, 1, false);
    s.id[3] = 11;
    assert_int_equal(s.node->op->forward(&s.k), LINNET_EINVAL);
    assert_string_equal(linnet_error_message(s.c), "token 3 has id 11, expected 0 .. 10");
    drop(&s);
    s = make(find("lm loss"), 5, LINNET_F32, 1, false);
    s.id[2] = 101;
    assert_int_equal(s.node->op->forward(&s.k), LINNET_EINVAL);
    drop(&s);

    linnet_context *c;
    assert_int_equal(linnet_context_create(NULL, &c), LINNET_OK);
    for (int i = 0; i < 10; i++) {
        lnt_program *p;
        assert_int_equal(lnt_program_create(c, &p), LINNET_OK);
        const lnt_out_spec spec[2] = {{6, 2, false}, {5, 1, false}};
        const lnt_buf none[1] = {{0}};
        lnt_buf a = lnt_add_node(p, &source_op, NULL, 0, none, 0, NULL, 1, &spec[0])->out[0],
                b = lnt_add_node(p, &source_op, NULL, 0, none, 0, NULL, 1, &spec[1])->out[0];
        lnt_buf y = LNT_NO_BUF;
        switch (i) {
        case 0: y = lnt_add_buf(p, a, b); break;
        case 1: y = lnt_swiglu(p, a, LNT_NO_BUF); break;
        case 2: y = lnt_rotary(p, b, 10000); break;
        case 3: y = lnt_short_conv(p, a, "c", 33, LNT_SILU); break;
        case 4: y = lnt_linear(p, a, "w", 0); break;
        case 5: y = lnt_gated_rmsnorm(p, a, b, "n", 1e-5, LNT_SILU); break;
        case 6: y = lnt_gated_rmsnorm(p, a, a, "n", 1e-5, LNT_GELU); break;
        case 7: y = lnt_token_shift(p, lnt_split_rows(p, a, 2)); break;
        case 8: y = lnt_lerp(p, a, a, b); break;
        case 9: y = lnt_bounded_decay(p, a, a); break;
        }
        assert_int_equal(y.id, 0);
        assert_int_equal(lnt_add_buf(p, y, a).id, 0);
        assert_int_equal(lnt_program_finish(p), LINNET_EINVAL);
        assert_true(strlen(linnet_error_message(c)) > 0);
        lnt_program_destroy(p);
    }
    linnet_context_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references), cmocka_unit_test(kernels),          cmocka_unit_test(long_sums), cmocka_unit_test(absent),
        cmocka_unit_test(conv_state), cmocka_unit_test(rotary_positions), cmocka_unit_test(extremes),  cmocka_unit_test(loss_blocks),
        cmocka_unit_test(refuses),    cmocka_unit_test(pairs),          cmocka_unit_test(stored),    cmocka_unit_test(slices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

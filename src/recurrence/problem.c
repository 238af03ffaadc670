#include "recurrence/problem.h"

#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "device/device.h"
#include "core/rng.h"

double lnt_recur_allowed(const lnt_recur_op *op, lnt_dtype dtype, int i)
{
    if (dtype == LINNET_F64) return 1e-12;
    const lnt_recur_budget *b = dtype == LINNET_F32 ? &op->f32 : &op->bf16;
    const lnt_recur_tensor *t = &op->tensors[i];
    return t->role != LNT_T_GRADIENT ? b->output : t->gate ? b->gate : b->gradient;
}

int64_t lnt_case_size(const lnt_recur_case *k, const char *letter)
{
    for (int i = 0; i < LNT_CASE_SIZES && k->size[i].letter; i++)
        if (!strcmp(k->size[i].letter, letter)) return k->size[i].value;
    return 0;
}

void lnt_case_set(lnt_recur_case *k, const char *letter, int64_t value)
{
    int i = 0;
    while (i < LNT_CASE_SIZES - 1 && k->size[i].letter && strcmp(k->size[i].letter, letter) != 0) i++;
    k->size[i].letter = letter;
    k->size[i].value = value;
}

static void *guarded(size_t bytes)
{
    char *p = lnt_alloc(bytes + 2 * LNT_PROBLEM_GUARD);
    if (!p) return NULL;
    memset(p, 0xa5, bytes + 2 * LNT_PROBLEM_GUARD);
    return p + LNT_PROBLEM_GUARD;
}

static void guarded_free(void *p)
{
    if (p) lnt_free((char *)p - LNT_PROBLEM_GUARD);
}

static bool flag(const lnt_problem *p, size_t field) { return field && *(const int32_t *)((const char *)&p->call + field) != 0; }

static double draw(const lnt_recur_case *k, const lnt_problem *p, const lnt_recur_tensor *t, lnt_rng *rng)
{
    switch (t->values) {
    case LNT_VALUES_DECAY: return lnt_rng_uniform(rng) < k->reset ? -INFINITY : k->gate * lnt_rng_uniform(rng);
    case LNT_VALUES_STRENGTH:
    case LNT_VALUES_STEP: return (k->beta > 0 ? k->beta : 1) * lnt_rng_uniform(rng);
    case LNT_VALUES_POSITIVE: return (k->positive > 0 ? k->positive : 1) * (0.5 + lnt_rng_uniform(rng));
    case LNT_VALUES_WEIGHT: return (k->positive != 0 ? k->positive : 1) * (0.5 + lnt_rng_uniform(rng));
    case LNT_VALUES_NEGATIVE: return -0.5 - lnt_rng_uniform(rng);
    case LNT_VALUES_SIGN: { /* one in eight each: -1, 0, 1 */
        const double x = 8 * lnt_rng_uniform(rng);
        return x < 5 ? x / 2.5 - 1 : floor(x) - 6;
    }
    case LNT_VALUES_COUNT: return floor(8 * lnt_rng_uniform(rng));
    default: break;
    }
    double x = lnt_rng_normal(rng);
    return flag(p, t->positive) ? fabs(x) + 0.01 : x;
}

/* The size of a shape's last letter: a row. */
static int64_t row_size(const lnt_problem *p, const char *shape)
{
    const char *letter, *last = NULL;
    size_t length, n = 0;
    while ((letter = lnt_recur_next_letter(&shape, &length))) last = letter, n = length;
    return last ? lnt_recur_letter(p->op, &p->call, last, n) : 1;
}

static double rounded(double x, lnt_dtype t)
{
    char one[8];
    lnt_store_element(one, t, 0, x);
    return lnt_load_element(one, t, 0);
}

static void fill(const lnt_recur_case *k, lnt_problem *p, int i, lnt_dtype round, uint64_t seed)
{
    const lnt_recur_tensor *t = &p->op->tensors[i];
    lnt_dtype type = lnt_recur_type(&p->call, i), to = t->wide ? round : round == LINNET_F64 ? LINNET_F64 : LINNET_F32;
    const bool unit = t->values == LNT_VALUES_UNIT;
    int64_t n = lnt_recur_elements(&p->call, i), width = unit ? row_size(p, t->shape) : 1;
    lnt_rng rng = lnt_rng_make(seed, lnt_stream_of(t->name));
    for (int64_t row = 0; row < n; row += width) {
        double sum = 0;
        for (int64_t j = row; j < row + width; j++) {
            double x = draw(k, p, t, &rng);
            lnt_store_element(p->data[i], type, j, rounded(x, to));
            sum += x * x;
        }
        if (unit)
            for (int64_t j = row; j < row + width; j++)
                lnt_store_element(p->data[i], type, j, rounded(lnt_load_element(p->data[i], type, j) / sqrt(sum), to));
    }
}

/* Each [K,K] matrix becomes symmetric with a dominant diagonal. */
static void make_symmetric(lnt_problem *p, int i, lnt_dtype round)
{
    lnt_dtype type = lnt_recur_type(&p->call, i), to = round == LINNET_F64 ? LINNET_F64 : LINNET_F32;
    int64_t K = row_size(p, p->op->tensors[i].shape), n = lnt_recur_elements(&p->call, i);
    for (int64_t first = 0; first < n; first += K * K)
        for (int64_t r = 0; r < K; r++)
            for (int64_t s = 0; s <= r; s++) {
                double x = lnt_load_element(p->data[i], type, first + r * K + s), y = rounded(r == s ? 1 + fabs(x) : x / (double)K, to);
                lnt_store_element(p->data[i], type, first + r * K + s, y);
                lnt_store_element(p->data[i], type, first + s * K + r, y);
            }
}

static bool is_result(const lnt_problem *p, int i) { return p->op->tensors[i].role >= LNT_T_OUTPUT; }

/* Sizes and options of a case; sizes that it leaves out follow from others. */
static linnet_status take_case(lnt_ctx *c, const lnt_recur_case *k, lnt_problem *p)
{
    for (int n = 0; n < k->sequences; n++) p->cu[n + 1] = p->cu[n] + k->length[n];
    p->r.tokens = p->cu[k->sequences];
    p->r.sequences = k->sequences;
    p->r.cu_seqlens = p->cu;
    for (const lnt_recur_size *s = p->op->sizes; s->letter; s++) {
        int64_t value = lnt_case_size(k, s->letter);
        if (!value && s->least == s->most) value = s->least;
        if (!value && s->same_as) value = lnt_recur_letter(p->op, &p->call, s->same_as, strlen(s->same_as));
        if (value < s->least || value > s->most)
            return lnt_fail(c, LINNET_EINVAL, "%s = %lld; expected %lld .. %lld", s->letter, (long long)value, (long long)s->least,
                            (long long)s->most);
        lnt_recur_size_set(s, &p->call, value);
    }
    if (p->op->exact) p->op->exact(&p->call);
    for (const lnt_recur_option *x = p->op->options; k->given && x->key; x++)
        if (!p->op->exact || k->inexact || x->kind == LNT_RECUR_WORD)
            memcpy((char *)&p->call + x->field, (const char *)k->given + x->field, (size_t)x->bytes);
    for (int i = 0; i < LNT_CASE_OPTIONS && k->option[i].key; i++)
        LNT_TRY(lnt_recur_option_set(c, p->op, &p->call, k->option[i].key, k->option[i].value, NULL));
    return LINNET_OK;
}

linnet_status lnt_problem_make(lnt_ctx *c, const lnt_recur_case *k, lnt_dtype dtype, lnt_dtype round, uint64_t seed, lnt_problem *p)
{
    *p = (lnt_problem){ .op = lnt_recur_find(k->op) };
    if (!p->op) return lnt_fail(c, LINNET_EINVAL, "unknown operator \"%s\"", k->op);
    lnt_recur_init(p->op, &p->call);
    p->r.dtype = dtype;
    LNT_TRY(take_case(c, k, p));
    for (int i = 0; p->op->tensors[i].name; i++) {
        const lnt_recur_tensor *t = &p->op->tensors[i];
        const bool of_state = t->shape[0] == 'N' && !is_result(p, i);
        if (!lnt_recur_has(&p->call, i) || (of_state && !k->states) || t->role == LNT_T_REPORT) continue;
        p->bytes[i] = (size_t)lnt_recur_elements(&p->call, i) * lnt_dtype_size(lnt_recur_type(&p->call, i));
        p->data[i] = guarded(p->bytes[i]);
        if (!p->data[i]) {
            lnt_problem_free(p);
            return lnt_fail_memory(c, p->bytes[i]);
        }
        if (!is_result(p, i)) fill(k, p, i, round, seed);
        if (t->values == LNT_VALUES_SYMMETRIC && t->role == LNT_T_STATE) make_symmetric(p, i, round);
        lnt_recur_set(&p->call, t, p->data[i]);
    }
    return LINNET_OK;
}

void lnt_problem_free(lnt_problem *p)
{
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) {
        guarded_free(p->data[i]);
        p->data[i] = NULL;
    }
    guarded_free(p->workspace);
    p->workspace = NULL;
}

/* Room in front of a block on the device. */
enum { DEVICE_ALIGN = 256 };

static void *with_guards(void *p) { return (char *)p - LNT_PROBLEM_GUARD; }

/* Tensor and workspace pointers of the call changed to device copies of p's, run, and all of it copied back. */
static linnet_status run_on_device(lnt_ctx *c, lnt_problem *p, bool backward)
{
    enum { ALL = LNT_RECUR_TENSORS + 1 };
    lnt_recur_call r = p->call;
    void *block[ALL] = { 0 };
    linnet_status s = LINNET_OK;
    for (int i = 0; i < ALL; i++) {
        bool tensor = i < LNT_RECUR_TENSORS;
        void *host = tensor ? p->data[i] : p->workspace;
        size_t bytes = (tensor ? p->bytes[i] : r.head.workspace_size) + 2 * LNT_PROBLEM_GUARD;
        if (!host) continue;
        LNT_TRY_GOTO(s, lnt_device_alloc(c, bytes + DEVICE_ALIGN, &block[i]), out);
        /* The tensor itself begins on a boundary of 256 bytes, as an allocation does, or as far behind it as is wanted. */
        char *at = (char *)block[i] + DEVICE_ALIGN - LNT_PROBLEM_GUARD + (tensor ? p->shift[i] : 0);
        lnt_to_device(c, at, with_guards(host), bytes);
        if (tensor)
            lnt_recur_set(&r, &p->op->tensors[i], at + LNT_PROBLEM_GUARD);
        else
            r.head.workspace = at + LNT_PROBLEM_GUARD;
    }
    LNT_TRY_GOTO(s, lnt_recur_run(c, &r, backward), out);
    for (int i = 0; i < ALL; i++) {
        bool tensor = i < LNT_RECUR_TENSORS;
        void *host = tensor ? p->data[i] : p->workspace;
        size_t bytes = (tensor ? p->bytes[i] : r.head.workspace_size) + 2 * LNT_PROBLEM_GUARD;
        if (host) lnt_to_host(c, with_guards(host), (char *)block[i] + DEVICE_ALIGN - LNT_PROBLEM_GUARD + (tensor ? p->shift[i] : 0), bytes);
    }
    s = lnt_device_check(c);
out:
    for (int i = 0; i < ALL; i++) lnt_device_free(c, block[i]);
    return s;
}

static linnet_status run_here(lnt_ctx *c, lnt_problem *p, bool backward)
{
    size_t need;
    LNT_TRY(lnt_recur_workspace(c, &p->call, backward, &need));
    guarded_free(p->workspace);
    p->workspace = guarded(need);
    if (!p->workspace) return lnt_fail_memory(c, need);
    memset(p->workspace, 0xff, need); /* NaN of every type */
    p->r.workspace = p->workspace;
    p->r.workspace_size = need;
    for (int i = 0; p->op->tensors[i].name; i++)
        if (p->data[i] && is_result(p, i) && backward == (p->op->tensors[i].role == LNT_T_GRADIENT)) memset(p->data[i], 0xff, p->bytes[i]);
    return lnt_on_cuda(c) ? run_on_device(c, p, backward) : lnt_recur_run(c, &p->call, backward);
}

linnet_status lnt_problem_run(lnt_ctx *c, lnt_problem *p, bool backward)
{
    lnt_device *device = c->device;
    if (p->r.dtype == LINNET_F64) c->device = lnt_device_cpu();
    linnet_status s = run_here(c, p, backward);
    c->device = device;
    return s;
}

lnt_recur_error lnt_problem_error(const lnt_problem *p, const lnt_problem *truth, int i)
{
    lnt_recur_error e = { 0, 0, -1 };
    int64_t n = lnt_recur_elements(&p->call, i);
    double error = 0, norm = 0;
    for (int64_t j = 0; j < n; j++) {
        double x = lnt_load_element(p->data[i], lnt_recur_type(&p->call, i), j);
        double y = lnt_load_element(truth->data[i], lnt_recur_type(&truth->call, i), j), d = fabs(x - y);
        if (x == y || (isnan(x) && isnan(y))) d = 0;
        if (isnan(d)) d = INFINITY;
        if (d > e.most) {
            e.most = d;
            e.worst = j;
        }
        error += d * d;
        norm += isfinite(y) ? y * y : 0;
    }
    e.relative = error == 0 ? 0 : sqrt(error / norm);
    return e;
}

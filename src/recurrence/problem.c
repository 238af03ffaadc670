#include "recurrence/problem.h"

#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "device/device.h"
#include "core/rng.h"

lnt_recur_budget lnt_recur_budget_of(const lnt_recur_op *op, lnt_dtype dtype)
{
    if (dtype == LINNET_F64) return (lnt_recur_budget){ 1e-12, 1e-12, 1e-12 };
    if (dtype == LINNET_F32) return op->solve ? (lnt_recur_budget){ 5e-5, 5e-5, 5e-5 } : (lnt_recur_budget){ 2e-6, 1e-5, 5e-5 };
    double wide = op->beta ? 8e-3 : 5e-3;
    return (lnt_recur_budget){ wide, wide, 2e-2 };
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

static double draw(const lnt_recur_case *k, const char *name, lnt_rng *rng)
{
    if (!strcmp(name, "g") || !strcmp(name, "g_head")) return lnt_rng_uniform(rng) < k->reset ? -INFINITY : k->gate * lnt_rng_uniform(rng);
    if (!strcmp(name, "beta")) return k->beta * lnt_rng_uniform(rng);
    if (!strcmp(name, "lambda")) return 0.5 + lnt_rng_uniform(rng);
    double x = lnt_rng_normal(rng);
    bool positive = k->normalize && strchr("qkz", *name);
    return positive ? fabs(x) + 0.01 : x;
}

static double rounded(double x, lnt_dtype t)
{
    char one[8];
    lnt_store_element(one, t, 0, x);
    return lnt_load_element(one, t, 0);
}

static void fill(const lnt_recur_case *k, lnt_problem *p, int i, lnt_dtype round, uint64_t seed)
{
    const lnt_recur_tensor *t = &lnt_recur_tensors[i];
    lnt_dtype type = lnt_recur_tensor_type(&p->r, i), to = t->wide ? round : round == LINNET_F64 ? LINNET_F64 : LINNET_F32;
    int64_t n = lnt_recur_tensor_count(p->op, &p->r, i), width = !strcmp(t->name, "k") ? p->r.K : 1;
    lnt_rng rng = lnt_rng_make(seed, lnt_stream_of(t->name));
    for (int64_t row = 0; row < n; row += width) {
        double sum = 0;
        for (int64_t j = row; j < row + width; j++) {
            double x = draw(k, t->name, &rng);
            lnt_store_element(p->data[i], type, j, rounded(x, to));
            sum += x * x;
        }
        if (width > 1)
            for (int64_t j = row; j < row + width; j++)
                lnt_store_element(p->data[i], type, j, rounded(lnt_load_element(p->data[i], type, j) / sqrt(sum), to));
    }
}

/* Each [K,K] matrix becomes symmetric with a dominant diagonal. */
static void make_symmetric(lnt_problem *p, int i, lnt_dtype round)
{
    lnt_dtype type = lnt_recur_tensor_type(&p->r, i), to = round == LINNET_F64 ? LINNET_F64 : LINNET_F32;
    int64_t K = p->r.K, n = lnt_recur_tensor_count(p->op, &p->r, i);
    for (int64_t first = 0; first < n; first += K * K)
        for (int64_t r = 0; r < K; r++)
            for (int64_t s = 0; s <= r; s++) {
                double x = lnt_load_element(p->data[i], type, first + r * K + s), y = rounded(r == s ? 1 + fabs(x) : x / (double)K, to);
                lnt_store_element(p->data[i], type, first + r * K + s, y);
                lnt_store_element(p->data[i], type, first + s * K + r, y);
            }
}

static bool is_result(int i) { return lnt_recur_tensors[i].role >= LNT_T_OUTPUT; }

linnet_status lnt_problem_make(lnt_ctx *c, const lnt_recur_case *k, lnt_dtype dtype, lnt_dtype round, uint64_t seed, lnt_problem *p)
{
    *p = (lnt_problem){ .op = lnt_recur_find(k->op), .r = LINNET_RECURRENCE_INIT };
    if (!p->op) return lnt_fail(c, LINNET_EINVAL, "unknown operator \"%s\"", k->op);
    for (int n = 0; n < k->sequences; n++) p->cu[n + 1] = p->cu[n] + k->length[n];
    linnet_recurrence *r = &p->r;
    r->op = k->op;
    r->dtype = dtype;
    r->tokens = p->cu[k->sequences];
    r->sequences = k->sequences;
    r->cu_seqlens = p->cu;
    r->Hq = k->Hq;
    r->Hv = k->Hv;
    r->K = k->K;
    r->V = k->V;
    r->normalize = k->normalize;
    r->window = k->window;
    r->offset = k->offset;
    if (p->op->solve) {
        r->cg_tolerance = 1e-7;
        r->cg_max_steps = 4 * k->K + 16;
    }
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) {
        const char *name = lnt_recur_tensors[i].name;
        bool of_state = !strncmp(name, "s0", 2) || !strcmp(name, "z0") || !strncmp(name, "dsT", 3) || !strcmp(name, "dzT");
        if (!lnt_recur_tensor_taken(p->op, r, i) || (of_state && !k->states) || lnt_recur_tensors[i].role == LNT_T_REPORT) continue;
        p->bytes[i] = (size_t)lnt_recur_tensor_count(p->op, r, i) * lnt_dtype_size(lnt_recur_tensor_type(r, i));
        p->data[i] = guarded(p->bytes[i]);
        if (!p->data[i]) {
            lnt_problem_free(p);
            return lnt_fail_memory(c, p->bytes[i]);
        }
        if (!is_result(i)) fill(k, p, i, round, seed);
        if (!strcmp(name, "s0_kk")) make_symmetric(p, i, round);
        lnt_recur_tensor_set(r, i, p->data[i]);
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

/* Tensor and workspace pointers of `r` changed to device copies of p's, run, and all of it copied back. */
static linnet_status run_on_device(lnt_ctx *c, lnt_problem *p, bool backward)
{
    enum { ALL = LNT_RECUR_TENSORS + 1 };
    linnet_recurrence r = p->r;
    void *block[ALL] = { 0 };
    linnet_status s = LINNET_OK;
    for (int i = 0; i < ALL; i++) {
        bool tensor = i < LNT_RECUR_TENSORS;
        void *host = tensor ? p->data[i] : p->workspace;
        size_t bytes = (tensor ? p->bytes[i] : r.workspace_size) + 2 * LNT_PROBLEM_GUARD;
        if (!host) continue;
        LNT_TRY_GOTO(s, lnt_device_alloc(c, bytes + DEVICE_ALIGN, &block[i]), out);
        /* The tensor itself begins on a boundary of 256 bytes, as an allocation does, or as far behind it as is wanted. */
        char *at = (char *)block[i] + DEVICE_ALIGN - LNT_PROBLEM_GUARD + (tensor ? p->shift[i] : 0);
        lnt_to_device(c, at, with_guards(host), bytes);
        if (tensor)
            lnt_recur_tensor_set(&r, i, at + LNT_PROBLEM_GUARD);
        else
            r.workspace = at + LNT_PROBLEM_GUARD;
    }
    LNT_TRY_GOTO(s, (backward ? linnet_recurrence_backward : linnet_recurrence_forward)(c, &r), out);
    for (int i = 0; i < ALL; i++) {
        bool tensor = i < LNT_RECUR_TENSORS;
        void *host = tensor ? p->data[i] : p->workspace;
        size_t bytes = (tensor ? p->bytes[i] : r.workspace_size) + 2 * LNT_PROBLEM_GUARD;
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
    LNT_TRY(linnet_recurrence_workspace(c, &p->r, backward, &need));
    guarded_free(p->workspace);
    p->workspace = guarded(need);
    if (!p->workspace) return lnt_fail_memory(c, need);
    memset(p->workspace, 0xff, need); /* NaN of every type */
    p->r.workspace = p->workspace;
    p->r.workspace_size = need;
    for (int i = 0; i < LNT_RECUR_TENSORS; i++)
        if (p->data[i] && is_result(i) && backward == (lnt_recur_tensors[i].role == LNT_T_GRADIENT)) memset(p->data[i], 0xff, p->bytes[i]);
    if (lnt_on_cuda(c)) return run_on_device(c, p, backward);
    return (backward ? linnet_recurrence_backward : linnet_recurrence_forward)(c, &p->r);
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
    int64_t n = lnt_recur_tensor_count(p->op, &p->r, i);
    double error = 0, norm = 0;
    for (int64_t j = 0; j < n; j++) {
        double x = lnt_load_element(p->data[i], lnt_recur_tensor_type(&p->r, i), j);
        double y = lnt_load_element(truth->data[i], lnt_recur_tensor_type(&truth->r, i), j), d = fabs(x - y);
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

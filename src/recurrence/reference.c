#include "recurrence/reference.h"

enum { BLOCK = 32 };

static size_t steps_of(const lnt_recur_args *a) { return (size_t)a->longest * (size_t)lnt_recur_writes(a); }
static size_t blocks_of(const lnt_recur_args *a) { return (steps_of(a) + BLOCK - 1) / BLOCK; }

/* A thread's scratch at p (NULL: only measure); returns its doubles. The states at the start of every block and inside one come last. */
static size_t carve(const ref_core *core, const lnt_recur_args *a, bool backward, double *p, ref_head *x, double **starts)
{
    size_t K = (size_t)a->K, V = (size_t)a->V, state = (size_t)core->state(a), len = (size_t)a->longest, used = 0;
    const struct {
        double **at;
        size_t count;
    } parts[] = { { &x->S, state },
                  { &x->q, K },
                  { &x->k, K },
                  { &x->v, V + 1 },
                  { &x->own, (size_t)core->own(a, backward) },
                  { &x->dS, backward ? state : 0 },
                  { &x->dq, backward ? len * K : 0 },
                  { &x->dk, backward ? steps_of(a) * K : 0 },
                  { starts, backward ? (BLOCK + blocks_of(a)) * state : 0 } };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].at = p && parts[i].count ? p + used : NULL;
        used += parts[i].count;
    }
    return used;
}

static size_t doubles(const ref_core *core, const lnt_recur_args *a, bool backward)
{
    ref_head x;
    double *starts;
    return carve(core, a, backward, NULL, &x, &starts);
}

/* [N,Hv,sums] */
static int64_t sum_count(const ref_core *core, const lnt_recur_args *a) { return core->sums ? a->sequences * a->Hv * core->sums(a) : 0; }

size_t lnt_ref_workspace(const ref_core *core, const lnt_recur_args *a, bool backward, int threads)
{
    return ((size_t)threads * doubles(core, a, backward) + (backward ? (size_t)sum_count(core, a) : 0)) * sizeof(double);
}

static void load_step(const ref_head *x, int64_t u)
{
    const lnt_recur_args *a = x->a;
    int64_t hq = (int64_t)x->h * a->Hq / a->Hv;
    ref_get_row(x->q, a->q, a->dtype, u / lnt_recur_writes(a) * a->Hq + hq, a->K);
    ref_get_row(x->k, a->k, a->dtype, u * a->Hq + hq, a->K);
    ref_get_row(x->v, a->v, a->dtype, u * a->Hv + x->h, a->V);
}

void lnt_ref_forward(const ref_core *core, const lnt_recur_args *a, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < a->sequences * a->Hv; i++) {
        ref_head x = { .a = a, .n = i / a->Hv, .h = (int)(i % a->Hv) };
        double *starts;
        carve(core, a, false, (double *)a->workspace + (size_t)omp_get_thread_num() * doubles(core, a, false), &x, &starts);
        core->load(&x, false, x.S);
        const int64_t writes = lnt_recur_writes(a);
        for (int64_t u = a->cu_seqlens[x.n] * writes; u < a->cu_seqlens[x.n + 1] * writes; u++) {
            load_step(&x, u);
            core->step(&x, u);
            if ((u + 1) % writes == 0) core->read(&x, u / writes);
        }
        core->store(&x, false, x.S);
    }
}

static void step(const ref_core *core, const ref_head *x, int64_t u)
{
    load_step(x, u);
    core->step(x, u);
}

static void backward_head(const ref_core *core, const ref_head *x, double *starts)
{
    const lnt_recur_args *a = x->a;
    const int64_t writes = lnt_recur_writes(a);
    int64_t first = a->cu_seqlens[x->n] * writes, len = a->cu_seqlens[x->n + 1] * writes - first;
    size_t state = (size_t)core->state(a), bytes = state * sizeof(double);
    double *inside = starts + blocks_of(a) * state;
    core->load(x, false, x->S);
    for (int64_t i = 0; i < len; i++) {
        if (i % BLOCK == 0) memcpy(starts + (size_t)(i / BLOCK) * state, x->S, bytes);
        step(core, x, first + i);
    }
    core->load(x, true, x->dS);
    for (int64_t b = (len + BLOCK - 1) / BLOCK - 1; b >= 0; b--) {
        int64_t end = (b + 1) * BLOCK < len ? (b + 1) * BLOCK : len;
        const double *start = starts + (size_t)b * state;
        memcpy(x->S, start, bytes);
        for (int64_t i = b * BLOCK; i < end; i++) {
            step(core, x, first + i);
            memcpy(inside + (size_t)(i % BLOCK) * state, x->S, bytes);
        }
        for (int64_t i = end - 1; i >= b * BLOCK; i--) {
            const double *S = inside + (size_t)(i % BLOCK) * state;
            load_step(x, first + i);
            core->back(x, first + i, S, i % BLOCK ? S - state : start);
        }
    }
    core->store(x, true, x->dS);
}

void lnt_ref_backward(const ref_core *core, const lnt_recur_args *a, int threads)
{
    const int64_t writes = lnt_recur_writes(a);
    int64_t group = a->Hv / a->Hq, sums = core->sums ? core->sums(a) : 0;
    double *partial = a->workspace, *scratches = partial + sum_count(core, a);
    if (sums) memset(partial, 0, (size_t)sum_count(core, a) * sizeof(double));
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < a->sequences * a->Hq; i++) {
        ref_head x = { .a = a, .n = i / a->Hq };
        int64_t hq = i % a->Hq, first = a->cu_seqlens[x.n], len = a->cu_seqlens[x.n + 1] - first;
        double *starts;
        carve(core, a, true, scratches + (size_t)omp_get_thread_num() * doubles(core, a, true), &x, &starts);
        if (len) {
            memset(x.dq, 0, (size_t)(len * a->K) * sizeof(double));
            memset(x.dk, 0, (size_t)(len * writes * a->K) * sizeof(double));
        }
        for (int64_t h = hq * group; h < (hq + 1) * group; h++) {
            x.h = (int)h;
            x.sums = partial + ref_index(&x) * sums;
            backward_head(core, &x, starts);
        }
        for (int64_t t = 0; t < len; t++) ref_put_row(a->dq, a->dtype, (first + t) * a->Hq + hq, a->K, x.dq + t * a->K);
        for (int64_t u = 0; u < len * writes; u++) ref_put_row(a->dk, a->dtype, (first * writes + u) * a->Hq + hq, a->K, x.dk + u * a->K);
    }
    for (int64_t i = 0; i < a->Hv * sums; i++) {
        double sum = 0;
        for (int64_t n = 0; n < a->sequences; n++) sum += partial[n * a->Hv * sums + i];
        ref_put(core->sum_out(a), ref_f(a), i, sum);
    }
}

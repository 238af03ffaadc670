/* The delta core's CPU implementations against the float64 reference: outputs, states and every gradient, float32 and bf16, on ragged, packed,
 * grouped and odd shapes, with resets and strong decays; chunk lengths agree; results have the same bits for any number of threads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/dtype.h"
#include "recurrence/recur_args.h"

typedef enum { NO_GATE, MILD, STRONG, RESETS } gates;
typedef struct {
    const char *name;
    int32_t Hq, Hv, K, V;
    int64_t cu[6];
    int64_t sequences;
    gates g;
    bool states;  /* s0 and dsT given */
    float beta;   /* beta in (0, this) */
    int32_t chunk;
} shape;

static const shape shapes[] = {
    { "one token", 1, 1, 16, 16, { 0, 1 }, 1, MILD, true, 1, 0 },
    { "short", 2, 2, 32, 32, { 0, 15 }, 1, MILD, true, 1, 0 },
    { "no gate", 2, 2, 64, 64, { 0, 65 }, 1, NO_GATE, true, 2, 0 },
    { "no states", 1, 1, 50, 60, { 0, 63 }, 1, MILD, false, 1, 0 },
    { "odd", 1, 1, 100, 50, { 0, 100 }, 1, MILD, true, 2, 0 },
    { "tiny heads", 1, 2, 3, 5, { 0, 37 }, 1, MILD, true, 1, 0 },
    { "grouped", 2, 6, 48, 40, { 0, 70 }, 1, MILD, true, 1, 0 },
    { "packed", 2, 4, 64, 32, { 0, 64, 64, 65, 130, 147 }, 5, MILD, true, 1, 0 },
    { "strong", 1, 1, 64, 64, { 0, 129 }, 1, STRONG, true, 1, 0 },
    { "resets", 2, 2, 32, 64, { 0, 100, 150 }, 2, RESETS, true, 1, 0 },
    { "wide", 1, 1, 128, 128, { 0, 1000 }, 1, MILD, true, 1, 0 },
    { "chunk 1", 1, 2, 20, 24, { 0, 33 }, 1, RESETS, true, 1, 1 },
    { "chunk 7", 1, 1, 20, 24, { 0, 33 }, 1, MILD, true, 1, 7 },
    { "chunk 16", 1, 1, 128, 64, { 0, 70 }, 1, MILD, true, 1, 16 },
    { "chunk 48", 1, 1, 64, 64, { 0, 200 }, 1, MILD, true, 2, 48 },
    { "chunk 200", 1, 1, 64, 64, { 0, 200 }, 1, MILD, true, 1, 200 },
    { "empty", 1, 1, 8, 8, { 0, 0 }, 1, MILD, true, 1, 0 },
};

enum { Q, K_, V_, G, BETA, S0, DO, DST, O, ST, DQ, DK, DV, DG, DBETA, DS0, TENSORS };
static const char *const names[TENSORS] = { "q", "k", "v", "g", "beta", "s0", "do", "dsT", "o", "sT", "dq", "dk", "dv", "dg", "dbeta", "ds0" };
static bool of_structure(int t) { return t <= V_ || t == DO || t == O || (t >= DQ && t <= DV); }

typedef struct {
    lnt_recur_args r;
    void *t[TENSORS];
    int64_t n[TENSORS];
} call;

static uint64_t seed;
static double uniform(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) / 9007199254740992.0;
}

static void sizes(const shape *s, int64_t n[TENSORS])
{
    int64_t T = s->cu[s->sequences], q = T * s->Hq * s->K, v = T * s->Hv * s->V, g = T * s->Hv, S = s->sequences * s->Hv * s->K * s->V;
    const int64_t all[TENSORS] = { q, q, v, g, g, S, v, S, v, S, q, q, v, g, g, S };
    memcpy(n, all, sizeof all);
}

/* Inputs as double, exactly representable in the structure's type (bf16) or float32. */
static void draw(const shape *s, lnt_dtype t, double *x[TENSORS], const int64_t n[TENSORS])
{
    seed = (uint64_t)(s->K * 1000 + s->V);
    for (int i = 0; i <= DST; i++)
        for (int64_t j = 0; j < n[i]; j++) {
            double u = uniform(), z = u + uniform() + uniform() - 1.5;
            if (i == G) {
                z = s->g == STRONG ? -40.0 * u : -0.3 * u;
                if (s->g == RESETS && uniform() < 0.1) z = -INFINITY;
            } else if (i == BETA)
                z = s->beta * u;
            x[i][j] = z;
        }
    for (int64_t r = 0; r < n[K_] / s->K; r++) { /* unit keys */
        double sum = 1e-12;
        for (int j = 0; j < s->K; j++) sum += x[K_][r * s->K + j] * x[K_][r * s->K + j];
        for (int j = 0; j < s->K; j++) x[K_][r * s->K + j] /= sqrt(sum);
    }
    for (int i = 0; i <= DST; i++)
        for (int64_t j = 0; j < n[i]; j++)
            x[i][j] = t == LINNET_BF16 && of_structure(i) ? lnt_bf16_to_f32(lnt_f32_to_bf16((float)x[i][j])) : (float)x[i][j];
}

static void make(const shape *s, lnt_dtype t, double *const x[TENSORS], const int64_t n[TENSORS], call *c)
{
    lnt_recur_init(s->g != NO_GATE ? &lnt_recur_gated_delta_rule : &lnt_recur_delta_rule, &c->r);
    for (int i = 0; i < TENSORS; i++) {
        lnt_dtype e = t == LINNET_F64 ? LINNET_F64 : of_structure(i) ? t : LINNET_F32;
        c->n[i] = n[i];
        c->t[i] = malloc((size_t)n[i] * lnt_dtype_size(e) + 1);
        for (int64_t j = 0; j < n[i]; j++) lnt_store_element(c->t[i], e, j, i <= DST ? x[i][j] : NAN);
    }
    bool gated = s->g != NO_GATE;
    lnt_recur_args *r = &c->r;
    r->dtype = t;
    r->tokens = s->cu[s->sequences];
    r->sequences = s->sequences;
    r->cu_seqlens = s->cu;
    r->Hq = r->Hk = s->Hq, r->Hv = s->Hv, r->K = s->K, r->V = s->V, r->chunk = s->chunk;
    r->q = c->t[Q], r->k = c->t[K_], r->v = c->t[V_], r->beta = c->t[BETA], r->do_ = c->t[DO];
    r->o = c->t[O], r->sT = c->t[ST], r->dq = c->t[DQ], r->dk = c->t[DK], r->dv = c->t[DV], r->dbeta = c->t[DBETA], r->ds0 = c->t[DS0];
    if (gated) r->g = c->t[G], r->dg = c->t[DG];
    if (s->states) r->s0 = c->t[S0], r->dsT = c->t[DST];
}

static void drop(call *c)
{
    for (int i = 0; i < TENSORS; i++) free(c->t[i]);
}

static void run(call *c, const char *impl, int threads)
{
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.threads = threads;
    linnet_context *ctx;
    assert_int_equal(linnet_context_create(&o, &ctx), LINNET_OK);
    c->r.impl = impl;
    for (int back = 0; back < 2; back++) {
        size_t bytes;
        if (lnt_recur_workspace(ctx, &c->r, back, &bytes) != LINNET_OK) fail_msg("%s: %s", impl, linnet_error_message(ctx));
        bytes = (bytes + 63) / 64 * 64 + 64;
        unsigned char *w = aligned_alloc(64, bytes);
        memset(w, 0xff, bytes); /* NaN, and a guard */
        c->r.workspace = w;
        c->r.workspace_size = bytes - 64;
        if (lnt_recur_run(ctx, &c->r, back) != LINNET_OK)
            fail_msg("%s: %s", impl, linnet_error_message(ctx));
        for (size_t i = bytes - 64; i < bytes; i++) assert_int_equal(w[i], 0xff);
        free(w);
    }
    linnet_context_destroy(ctx);
}

/* Relative rms of output i, 0 when the largest error is at most 1e-6. */
static double error_of(const call *c, const call *truth, int i, lnt_dtype t)
{
    double err = 0, ref = 0, worst = 0;
    lnt_dtype e = of_structure(i) ? t : LINNET_F32;
    for (int64_t j = 0; j < c->n[i]; j++) {
        double want = ((double *)truth->t[i])[j], d = fabs(lnt_load_element(c->t[i], e, j) - want);
        if (!(d >= 0)) return INFINITY;
        err += d * d, ref += want * want, worst = d > worst ? d : worst;
    }
    return worst <= 1e-6 ? 0 : sqrt(err / ref);
}

static double budget(int i, lnt_dtype t)
{
    bool gate = i == DG || i == DBETA;
    if (t == LINNET_BF16) return gate ? 2e-2 : 8e-3;
    return gate ? 5e-5 : i <= ST ? 2e-6 : 1e-5;
}

static void against_reference(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        for (int t = 0; t < 2; t++) {
            const shape *s = &shapes[k];
            lnt_dtype type = t ? LINNET_BF16 : LINNET_F32;
            int64_t n[TENSORS];
            double *x[TENSORS];
            sizes(s, n);
            for (int i = 0; i < TENSORS; i++) x[i] = malloc((size_t)n[i] * sizeof(double) + 1);
            draw(s, type, x, n);
            call truth;
            make(s, LINNET_F64, x, n, &truth);
            run(&truth, "reference", 1);
            for (const lnt_recur_impl *const *i = lnt_recur_delta_rule.impls; i[1]; i++) {
                if ((*i)->device != LNT_DEVICE_CPU) continue;
                if ((*i)->needs > (int)lnt_cpu_machine()) {
                    if (!k && !t) print_message("not on this machine: %s\n", (*i)->name);
                    continue;
                }
                call c, again;
                make(s, type, x, n, &c);
                if ((*i)->declines && (*i)->declines(&c.r, true)) {
                    drop(&c);
                    continue;
                }
                make(s, type, x, n, &again);
                run(&c, (*i)->name, 1);
                run(&again, (*i)->name, 3);
                for (int o = O; o < TENSORS; o++) {
                    if (o == DG && s->g == NO_GATE) continue;
                    double e = error_of(&c, &truth, o, type);
                    if (getenv("SHOW")) print_message("%-10s %-18s %-4s %-5s %.1e\n", s->name, (*i)->name, lnt_dtype_name(type), names[o], e);
                    if (!(e <= budget(o, type)))
                        fail_msg("%s %s %s: %s is off by %g, budget %g", s->name, (*i)->name, lnt_dtype_name(type), names[o], e, budget(o, type));
                    size_t bytes = (size_t)n[o] * (of_structure(o) ? lnt_dtype_size(type) : 4);
                    if (memcmp(c.t[o], again.t[o], bytes)) fail_msg("%s %s: %s differs with three threads", s->name, (*i)->name, names[o]);
                }
                drop(&c);
                drop(&again);
            }
            drop(&truth);
            for (int i = 0; i < TENSORS; i++) free(x[i]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(against_reference) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "tasks/mesa_numbers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/threads.h"
#include "device/device.h"
#include "recurrence/mesa/mesa_node.h"
#include "recurrence/mesa/mesa_args.h"
#include "tasks/spectrum.h"

enum { TOKENS_A_RUN = 8192, INSIDE = 4 /* what looking inside costs, in evaluations, for the progress alone */ };
#define SOLVED 1e-6 /* the residual at which an output counts as the layer's solution */

/* ---- options ---- */

static const struct {
    const char *name;
    int solver;
} stopping[] = {{"level", LNT_CG_LEVEL}, {"jacobi", LNT_CG_JACOBI}, {"plain", LNT_CG_PLAIN}}; /* the others take all their steps */

static bool find_solver(const char *name, lnt_mesa_solver *out)
{
    for (size_t i = 0; i < sizeof stopping / sizeof *stopping; i++)
        if (strcmp(stopping[i].name, name) == 0) {
            out->name = stopping[i].name;
            out->solver = stopping[i].solver;
            return true;
        }
    return false;
}

static const char *solver_name(int solver)
{
    for (size_t i = 0; i < sizeof stopping / sizeof *stopping; i++)
        if ((int)stopping[i].solver == solver) return stopping[i].name;
    return "level";
}

static linnet_status choose_solvers(lnt_ctx *c, const lnt_mesa_ask *o, const lnt_mesa_options *own, lnt_mesa_numbers *z)
{
    lnt_mesa_solver *s = &z->solvers[0];
    if (o->solver && !find_solver(o->solver, s))
        return lnt_fail_option(c, "solver", "is \"%.40s\", expected level, jacobi or plain", o->solver);
    if (!o->solver) find_solver(solver_name(own->solver), s);
    s->guess = (int)s->solver == own->solver && own->guess == LNT_CG_ZERO ? LNT_CG_ZERO : LNT_CG_DIAGONAL;
    z->solvers[1] = (lnt_mesa_solver){"plain", LNT_CG_PLAIN, LNT_CG_DIAGONAL}; /* arXiv 2506.05233, algorithm 1 */
    z->n_solvers = s->solver == LNT_CG_PLAIN && s->guess == LNT_CG_DIAGONAL ? 1 : 2;
    return LINNET_OK;
}

static linnet_status choose_settings(lnt_ctx *c, const lnt_mesa_ask *o, lnt_mesa_numbers *z)
{
    static const int64_t budgets[] = {0, 5, 10, 15, 30}; /* arXiv 2506.05233, section 5 */
    static const double tolerances[] = {1e-1, 1e-2, 1e-3, 1e-4};
    int n_budgets = o->budgets ? o->n_budgets : (int)(sizeof budgets / sizeof *budgets);
    z->n_tolerances = o->tolerances ? o->n_tolerances : (int)(sizeof tolerances / sizeof *tolerances);
    if (n_budgets < 1 || n_budgets > LNT_MESA_MOST)
        return lnt_fail(c, LINNET_EINVAL, "%d numbers of steps, expected 1 to %d", n_budgets, LNT_MESA_MOST);
    if (z->n_tolerances < 1 || z->n_tolerances > LNT_MESA_MOST)
        return lnt_fail(c, LINNET_EINVAL, "%d tolerances, expected 1 to %d", z->n_tolerances, LNT_MESA_MOST);
    z->settings[z->n_settings++] = (lnt_mesa_setting){.kind = LNT_MESA_MODEL, .value = NAN};
    for (int i = 0; i < n_budgets; i++) {
        int64_t b = o->budgets ? o->budgets[i] : budgets[i];
        if (b < 0 || b > 65536) return lnt_fail(c, LINNET_EINVAL, "%lld steps, expected 0 to 65536", (long long)b);
        z->settings[z->n_settings++] = (lnt_mesa_setting){.kind = LNT_MESA_STEPS, .value = (double)b};
    }
    for (int i = 0; i < z->n_tolerances; i++) {
        double t = o->tolerances ? o->tolerances[i] : tolerances[i];
        if (!(t > 0 && t < 1)) return lnt_fail(c, LINNET_EINVAL, "a tolerance of %g, expected a number between 0 and 1", t);
        z->tolerances[i] = t;
        z->settings[z->n_settings++] = (lnt_mesa_setting){.kind = LNT_MESA_TOLERANCE, .value = t};
    }
    return LINNET_OK;
}

/* ---- room ---- */

static void *room(lnt_mesa_numbers *z, int64_t n, size_t size, bool *fine)
{
    void *p = lnt_arena_alloc(&z->arena, lnt_bytes((size_t)n, size));
    *fine = *fine && p;
    return p;
}

/* Lambda of every head, from the weights. */
static linnet_status read_lambda(lnt_ctx *c, lnt_mesa_numbers *z)
{
    const int64_t n = z->heads * z->K;
    float *p = lnt_alloc(lnt_bytes((size_t)n, sizeof *p));
    if (!p) return lnt_fail_memory(c, lnt_bytes((size_t)n, sizeof *p));
    for (int l = 0; l < z->layers; l++) {
        const lnt_param *q = lnt_param_at(z->m->p, z->node[l]->param[0]);
        double lower = lnt_mesa_of(z->node[l])->lower;
        lnt_to_host(c, p, lnt_weights_view(z->m->w, q).master, (size_t)n * sizeof *p);
        for (int64_t i = 0; i < n; i++) z->lambda[l * n + i] = lower + (p[i] > 20 ? (double)p[i] : log1p(exp(p[i])));
    }
    lnt_free(p);
    return LINNET_OK;
}

linnet_status lnt_mesa_open(lnt_ctx *c, linnet_model *m, const lnt_mesa_ask *o, lnt_mesa_numbers *z)
{
    *z = (lnt_mesa_numbers){.m = m};
    for (int i = 0; i < lnt_node_count(m->p); i++) z->layers += lnt_mesa_of(lnt_node_at(m->p, i)) != NULL;
    if (!z->layers) {
        lnt_fail(c, LINNET_EINVAL, "the model has no mesa layer: its type is %s", m->config->model_type);
        return lnt_hint(c, "Train one with --mixer mesa_net, or --mixer equal_backbone --set rule=mesa.");
    }
    bool fine = true;
    z->node = room(z, z->layers, sizeof(lnt_node *), &fine);
    if (!fine) return lnt_fail_memory(c, lnt_bytes((size_t)z->layers, sizeof *z->node));
    for (int i = 0, l = 0; i < lnt_node_count(m->p); i++)
        if (lnt_mesa_of(lnt_node_at(m->p, i))) z->node[l++] = lnt_node_at(m->p, i);
    const lnt_buf k = z->node[0]->in[1];
    z->heads = lnt_heads(m->p, k);
    z->K = lnt_cols(m->p, k) / z->heads;
    int64_t all = (int64_t)z->layers * z->heads;
    z->lambda = room(z, all * z->K, sizeof(double), &fine);
    z->beta = room(z, all, sizeof(double), &fine);
    z->gamma = room(z, all, sizeof(double), &fine);
    if (!fine) return lnt_fail_memory(c, lnt_bytes(lnt_bytes((size_t)all, (size_t)z->K), sizeof(double)));
    if (lnt_mesa_of(z->node[0])->window)
        return lnt_fail(c, LINNET_EINVAL, "mesa_window is %lld; a look inside takes layers without a window",
                        (long long)lnt_mesa_of(z->node[0])->window);
    LNT_TRY(choose_solvers(c, o, lnt_mesa_of(z->node[0]), z));
    LNT_TRY(choose_settings(c, o, z));
    return read_lambda(c, z);
}

/* Bins end behind 1, 2, 3, 4, 6, 8, 12, 16 ... positions. */
static int make_bins(int64_t length, int64_t *bin)
{
    bin[0] = 0;
    for (int64_t end = 1, n = 1;; n++) {
        bin[n] = end < length ? end : length;
        if (end >= length) return (int)n;
        end = end == 1 ? 2 : end % 3 ? end + end / 2 : end / 3 * 4;
    }
}

linnet_status lnt_mesa_set_text(lnt_ctx *c, lnt_mesa_numbers *z, const int32_t *ids, int64_t n, int64_t length)
{
    if (length < 1) return lnt_fail_option(c, "length", "is %lld, expected at least 1", (long long)length);
    if (n < 2) return lnt_fail(c, LINNET_EINVAL, "the text gives %lld token%s, expected at least 2", (long long)n, n == 1 ? "" : "s");
    LNT_TRY(lnt_check_ids(c, z->m, ids, n));
    z->ids = ids;
    z->length = length < n - 1 ? length : n - 1;
    z->windows = (n - 1) / z->length;
    bool fine = true;
    z->bin = room(z, 130, sizeof(int64_t), &fine);
    if (!fine) return lnt_fail_memory(c, 130 * sizeof(int64_t));
    z->n_bins = make_bins(z->length, z->bin);
    int64_t all = (int64_t)z->layers * z->heads * z->n_bins, solves = all * z->n_solvers * z->n_tolerances;
    z->low = room(z, all, sizeof(double), &fine);
    z->high = room(z, all, sizeof(double), &fine);
    z->cosine = room(z, all, sizeof(double), &fine);
    z->steps = room(z, solves, sizeof(double), &fine);
    z->most = room(z, solves, sizeof(double), &fine);
    z->unfinished = room(z, solves, sizeof(double), &fine);
    for (int i = 0; i < z->n_settings; i++) z->settings[i].position = room(z, z->length, sizeof(double), &fine);
    return fine ? LINNET_OK : lnt_fail_memory(c, lnt_bytes((size_t)solves, sizeof(double)));
}

void lnt_mesa_close(lnt_mesa_numbers *z)
{
    lnt_arena_free(&z->arena);
    *z = (lnt_mesa_numbers){0};
}

/* ---- inside: what the layers are given, and the spectrum of what they solve ---- */

/* Host and device memory for one window and one layer. k [length, heads * K]; g, beta, steps, residual [length, heads]; first, solved [length,
 * heads, V]: outputs without steps and of the solve. */
typedef struct {
    lnt_ctx *c;
    lnt_mesa_numbers *z;
    lnt_plan *plan;
    void *raw;
    float *k, *g, *beta, *steps, *residual, *lambda, *first, *solved;
    double *scratch; /* [threads][2 K^2 + 3 K] */
    void *o, *device_steps, *device_residual, *device_lambda, *work;
    size_t work_size;
} inside;

static void close_inside(inside *w)
{
    lnt_plan_destroy(w->plan);
    lnt_free(w->raw);
    lnt_free(w->k);
    lnt_free(w->first);
    lnt_free(w->solved);
    lnt_free(w->scratch);
    void *device[] = {w->o, w->device_steps, w->device_residual, w->device_lambda, w->work};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) lnt_device_free(w->c, device[i]);
}

/* The solves of a layer as a call on the recurrence, on the values that the last run left. */
static lnt_mesa_args solve_call(const inside *w, int layer, const int64_t *cu)
{
    const lnt_node *n = w->z->node[layer];
    lnt_mesa_args r;
    lnt_recur_init(&lnt_recur_mesa, &r);
    const lnt_tensor q = lnt_plan_output(w->plan, n->in[0]), v = lnt_plan_output(w->plan, n->in[2]);
    r.dtype = q.dtype;
    r.tokens = w->z->length;
    r.sequences = 1;
    r.cu_seqlens = cu;
    r.Hq = r.Hk = q.heads;
    r.Hv = v.heads;
    r.K = (int32_t)(q.cols / q.heads);
    r.V = (int32_t)(v.cols / v.heads);
    r.q = q.data;
    r.k = lnt_plan_output(w->plan, n->in[1]).data;
    r.v = v.data;
    r.g = lnt_plan_output(w->plan, n->in[3]).data;
    r.beta = lnt_plan_output(w->plan, n->in[4]).data;
    r.lambda = w->device_lambda;
    r.o = w->o;
    r.steps = w->device_steps;
    r.residual = w->device_residual;
    r.workspace = w->work;
    r.workspace_size = w->work_size;
    r.cg_max_steps = LNT_MESA_MOST_STEPS;
    r.cg_tolerance = w->z->tolerances[0];
    return r;
}

static linnet_status open_plan(inside *w)
{
    lnt_mesa_numbers *z = w->z;
    lnt_buf *kept = lnt_alloc(lnt_bytes(lnt_bytes((size_t)z->layers, 5), sizeof *kept));
    if (!kept) return lnt_fail_memory(w->c, lnt_bytes(lnt_bytes((size_t)z->layers, 5), sizeof *kept));
    for (int l = 0; l < z->layers; l++) memcpy(kept + 5 * l, z->node[l]->in, 5 * sizeof *kept);
    lnt_plan_options o = {.tokens = z->length, .n_seq = 1, .dtype = z->m->dtype, .n_kept = 5 * z->layers, .kept = kept};
    linnet_status s = lnt_plan_create(w->c, z->m->p, &o, &w->plan);
    lnt_free(kept);
    return s;
}

static linnet_status open_inside(inside *w)
{
    lnt_mesa_numbers *z = w->z;
    const int64_t T = z->length, H = z->heads, cols = H * z->K, cu[2] = {0, T};
    LNT_TRY(open_plan(w));
    const size_t each = lnt_bytes((size_t)T, (size_t)H), all = lnt_bytes((size_t)T, (size_t)cols), K = (size_t)z->K;
    const size_t host = lnt_bytes(lnt_bytes_plus(lnt_bytes_plus(all, lnt_bytes(4, each)), (size_t)cols), sizeof(float));
    const size_t scratch = lnt_bytes(lnt_bytes((size_t)lnt_threads(w->c), lnt_bytes(lnt_bytes_plus(lnt_bytes(K, 2), 3), K)), sizeof(double));
    w->raw = lnt_alloc(lnt_bytes(all, sizeof(float)));
    w->k = lnt_alloc(host);
    w->scratch = lnt_alloc(scratch);
    if (!w->raw || !w->k || !w->scratch) return lnt_fail_memory(w->c, lnt_bytes_plus(host, scratch));
    w->g = w->k + T * cols;
    w->beta = w->g + T * H;
    w->steps = w->beta + T * H;
    w->residual = w->steps + T * H;
    w->lambda = w->residual + T * H;
    LNT_TRY(lnt_device_alloc(w->c, lnt_bytes(each, 4), &w->device_steps));
    LNT_TRY(lnt_device_alloc(w->c, lnt_bytes(each, 4), &w->device_residual));
    LNT_TRY(lnt_device_alloc(w->c, lnt_bytes((size_t)cols, 4), &w->device_lambda));
    for (int s = 0; s < z->n_solvers; s++) {
        lnt_mesa_args r = solve_call(w, 0, cu);
        size_t bytes;
        r.cg_solver = z->solvers[s].solver;
        r.cg_guess = z->solvers[s].guess;
        LNT_TRY(lnt_recur_workspace(w->c, &r, false, &bytes));
        w->work_size = bytes > w->work_size ? bytes : w->work_size;
    }
    LNT_TRY(lnt_device_alloc(w->c, w->work_size, &w->work));
    const lnt_mesa_args r = solve_call(w, 0, cu);
    const size_t out = lnt_bytes(lnt_bytes(lnt_bytes((size_t)T, (size_t)r.Hv), (size_t)r.V), sizeof(float));
    w->first = lnt_alloc(out);
    w->solved = lnt_alloc(out);
    if (!w->first || !w->solved) return lnt_fail_memory(w->c, out);
    return lnt_device_alloc(w->c, out, &w->o);
}

static void bring(const inside *w, lnt_buf b, float *out)
{
    const lnt_tensor t = lnt_plan_output(w->plan, b);
    const int64_t n = w->z->length * t.cols;
    if (t.dtype == LINNET_F32) {
        lnt_to_host(w->c, out, t.data, (size_t)n * sizeof *out);
        return;
    }
    lnt_to_host(w->c, w->raw, t.data, (size_t)n * lnt_dtype_size(t.dtype));
    lnt_convert(out, LINNET_F32, w->raw, t.dtype, n);
}

/* H_t = e^{g_t} H_{t-1} + beta_t k_t k_t^T of one head in float64, and the logarithms of the ends of the spectrum of H_t + Lambda at the end of every
 * bin, added to low and high. */
static void spectrum_of_head(const inside *w, int layer, int h, double *scratch)
{
    const lnt_mesa_numbers *z = w->z;
    const int64_t K = z->K, x = (int64_t)layer * z->heads + h;
    double *H = scratch, *A = H + K * K, *work = A + K * K;
    const double *lambda = z->lambda + x * K;
    memset(H, 0, (size_t)(K * K) * sizeof *H);
    for (int64_t t = 0, b = 0; t < z->length; t++) {
        const float *k = w->k + (t * z->heads + h) * K;
        const double gamma = exp((double)w->g[t * z->heads + h]), beta = w->beta[t * z->heads + h];
        z->beta[x] += beta;
        z->gamma[x] += gamma;
        for (int64_t i = 0; i < K; i++) { /* the lower triangle */
            const double s = beta * k[i];
            for (int64_t j = 0; j <= i; j++) H[i * K + j] = gamma * H[i * K + j] + s * k[j];
        }
        if (t + 1 < z->bin[b + 1]) continue;
        for (int64_t i = 0; i < K; i++) {
            for (int64_t j = 0; j < i; j++) A[i * K + j] = A[j * K + i] = H[i * K + j];
            A[i * K + i] = H[i * K + i] + lambda[i];
        }
        double low, high;
        lnt_extreme_eigenvalues(K, A, work, &low, &high);
        z->low[x * z->n_bins + b] += log(low);
        z->high[x * z->n_bins + b] += log(high);
        b++;
    }
}

static void look_at_gates(const inside *w, int layer)
{
    const lnt_mesa_numbers *z = w->z;
    const lnt_buf *in = z->node[layer]->in;
    bring(w, in[1], w->k);
    bring(w, in[3], w->g);
    bring(w, in[4], w->beta);
#pragma omp parallel for num_threads(lnt_threads(w->c)) schedule(dynamic)
    for (int h = 0; h < z->heads; h++) spectrum_of_head(w, layer, h, w->scratch + lnt_thread_index() * (2 * z->K * z->K + 3 * z->K));
}

static void count_steps(const inside *w, int layer, int solver, int tolerance)
{
    const lnt_mesa_numbers *z = w->z;
    for (int h = 0; h < z->heads; h++) {
        const int64_t row = lnt_mesa_row(z, solver, tolerance, layer * z->heads + h);
        for (int64_t t = 0, b = 0; t < z->length; t++) {
            if (t >= z->bin[b + 1]) b++;
            const double steps = w->steps[t * z->heads + h];
            z->steps[row + b] += steps;
            z->most[row + b] = fmax(z->most[row + b], steps);
            z->unfinished[row + b] += steps >= LNT_MESA_MOST_STEPS && !(w->residual[t * z->heads + h] <= z->tolerances[tolerance]);
        }
    }
}

/* The output of a layer's call, as float32. */
static linnet_status bring_output(const inside *w, lnt_mesa_args *r, float *out)
{
    const int64_t n = r->tokens * r->Hv * r->V;
    LNT_TRY(lnt_recur_run(w->c, r, false));
    if (r->dtype == LINNET_F32) {
        lnt_to_host(w->c, out, w->o, (size_t)n * sizeof *out);
        return LINNET_OK;
    }
    void *raw = lnt_alloc(lnt_bytes((size_t)n, lnt_dtype_size(r->dtype)));
    if (!raw) return lnt_fail_memory(w->c, lnt_bytes((size_t)n, lnt_dtype_size(r->dtype)));
    lnt_to_host(w->c, raw, w->o, (size_t)n * lnt_dtype_size(r->dtype));
    lnt_convert(out, LINNET_F32, raw, r->dtype, n);
    lnt_free(raw);
    return LINNET_OK;
}

/* How much of a head's output is there before the first step: the cosine between G_t' (q / diag(H_t + Lambda)) and G_t' (H_t + Lambda)^-1 q. */
static linnet_status look_at_outputs(const inside *w, int layer)
{
    const lnt_mesa_numbers *z = w->z;
    const int64_t cu[2] = {0, z->length};
    lnt_mesa_args none = solve_call(w, layer, cu), all = solve_call(w, layer, cu);
    none.cg_solver = LNT_CG_PLAIN;
    none.cg_guess = LNT_CG_DIAGONAL;
    none.cg_max_steps = 0;
    all.cg_solver = z->solvers[0].solver;
    all.cg_guess = z->solvers[0].guess;
    all.cg_tolerance = SOLVED;
    LNT_TRY(bring_output(w, &none, w->first));
    LNT_TRY(bring_output(w, &all, w->solved));
    const int64_t V = all.V;
    for (int h = 0; h < z->heads; h++)
        for (int64_t t = 0, b = 0; t < z->length; t++) {
            const float *x = w->first + (t * z->heads + h) * V, *y = w->solved + (t * z->heads + h) * V;
            double xx = 0, yy = 0, xy = 0;
            if (t >= z->bin[b + 1]) b++;
            for (int64_t i = 0; i < V; i++) {
                xx += (double)x[i] * x[i];
                yy += (double)y[i] * y[i];
                xy += (double)x[i] * y[i];
            }
            z->cosine[((int64_t)layer * z->heads + h) * z->n_bins + b] += xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 1; /* nothing is its own likeness */
        }
    return LINNET_OK;
}

static linnet_status look_at_solves(const inside *w, int layer)
{
    const lnt_mesa_numbers *z = w->z;
    const int64_t cu[2] = {0, z->length}, cols = z->heads * z->K;
    for (int64_t i = 0; i < cols; i++) w->lambda[i] = (float)z->lambda[layer * cols + i];
    lnt_to_device(w->c, w->device_lambda, w->lambda, (size_t)cols * 4);
    for (int s = 0; s < z->n_solvers; s++)
        for (int i = 0; i < z->n_tolerances; i++) {
            lnt_mesa_args r = solve_call(w, layer, cu);
            r.cg_solver = z->solvers[s].solver;
            r.cg_guess = z->solvers[s].guess;
            r.cg_tolerance = z->tolerances[i];
            LNT_TRY(lnt_recur_run(w->c, &r, false));
            lnt_to_host(w->c, w->steps, w->device_steps, (size_t)(z->length * z->heads) * 4);
            lnt_to_host(w->c, w->residual, w->device_residual, (size_t)(z->length * z->heads) * 4);
            count_steps(w, layer, s, i);
        }
    return look_at_outputs(w, layer);
}

/* Sums over tokens and windows become means. */
static void finish_inside(lnt_mesa_numbers *z)
{
    const int64_t all = (int64_t)z->layers * z->heads;
    const double windows = (double)z->windows, tokens = windows * (double)z->length;
    for (int64_t x = 0; x < all; x++) {
        z->beta[x] /= tokens;
        z->gamma[x] /= tokens;
    }
    for (int64_t i = 0; i < all * z->n_bins; i++) {
        z->low[i] = exp(z->low[i] / windows);
        z->high[i] = exp(z->high[i] / windows);
        z->cosine[i] /= windows * (double)(z->bin[i % z->n_bins + 1] - z->bin[i % z->n_bins]);
    }
    for (int64_t i = 0; i < all * z->n_bins * z->n_solvers * z->n_tolerances; i++) {
        const int64_t b = i % z->n_bins;
        const double count = windows * (double)(z->bin[b + 1] - z->bin[b]);
        z->steps[i] /= count;
        z->unfinished[i] /= count;
    }
}

typedef struct {
    int (*call)(void *user, int64_t done, int64_t total);
    void *user;
    int64_t before, total;
} reporter;

static int report(void *user, int64_t done, int64_t total)
{
    const reporter *r = user;
    (void)total;
    return r->call ? r->call(r->user, r->before + done, r->total) : 0;
}

static linnet_status look_inside(lnt_ctx *c, lnt_mesa_numbers *z, reporter *r)
{
    inside w = {.c = c, .z = z};
    linnet_status s;
    const double begin = lnt_now();
    LNT_TRY_GOTO(s, open_inside(&w), done);
    for (int64_t i = 0; i < z->windows; i++) {
        lnt_batch b = {.tokens = z->length, .n_seq = 1, .n_inputs = 1, .inputs = {{z->m->ids, z->ids + i * z->length}}};
        LNT_TRY_GOTO(s, lnt_plan_run(w.plan, z->m->w, &b), done);
        for (int l = 0; l < z->layers; l++) {
            look_at_gates(&w, l);
            LNT_TRY_GOTO(s, look_at_solves(&w, l), done);
        }
        if (report(r, INSIDE * (i + 1) * z->length, 0)) {
            s = lnt_fail(c, LINNET_EINTERRUPTED, "the analysis was stopped");
            goto done;
        }
        const double now = lnt_now(), losses = (now - begin) * z->n_settings / INSIDE; /* what these windows' take */
        if (z->deadline && now + losses > z->deadline) z->windows = i + 1;
    }
    finish_inside(z);
done:
    close_inside(&w);
    return s;
}

/* ---- loss ---- */

/* The model with its solves as a setting says. */
static linnet_status model_under(lnt_ctx *c, const lnt_mesa_numbers *z, const lnt_mesa_setting *s, linnet_model **out)
{
    lnt_config *k;
    LNT_TRY(lnt_config_copy(c, z->m->config, &k));
    linnet_status status = LINNET_OK;
    if (s->kind != LNT_MESA_MODEL) {
        const bool tolerance = s->kind == LNT_MESA_TOLERANCE;
        const struct {
            const char *key;
            lnt_given value;
        } set[] = {{"cg_solver", lnt_given_word(z->solvers[0].name)},
                   {"cg_guess", lnt_given_word(z->solvers[0].guess == LNT_CG_ZERO ? "zero" : "diagonal")},
                   {"cg_tolerance", lnt_given_real(tolerance ? s->value : 0)},
                   {"max_cg_step_training", lnt_given_int(tolerance ? LNT_MESA_MOST_STEPS : (int64_t)s->value)},
                   {"min_cg_step_training", {.kind = LNT_GIVEN_NULL}}, /* nothing is trained here */
                   {"cg_gradient", lnt_given_word("implicit")}};
        bool known;
        for (size_t i = 0; i < sizeof set / sizeof *set && status == LINNET_OK; i++) status = lnt_config_put(c, k, set[i].key, &set[i].value, &known);
    }
    if (status == LINNET_OK) status = lnt_model_view(c, z->m, k, out);
    linnet_config_destroy(k);
    return status;
}

static linnet_status score(lnt_ctx *c, const lnt_mesa_numbers *z, lnt_mesa_setting *s, reporter *r)
{
    const int64_t most = TOKENS_A_RUN / z->length, windows = most < 1 ? 1 : most < z->windows ? most : z->windows;
    linnet_model *m = NULL;
    lnt_scorer *scorer = NULL;
    lnt_score sum = {.position_nats = s->position, .position_count = lnt_calloc(lnt_bytes((size_t)z->length, sizeof(int64_t)))};
    linnet_status status = sum.position_count ? model_under(c, z, s, &m) : lnt_fail_memory(c, lnt_bytes((size_t)z->length, sizeof(int64_t)));
    if (status == LINNET_OK) status = lnt_scorer_create(c, m, z->length, windows, &scorer);
    if (status == LINNET_OK) status = lnt_scorer_run(scorer, z->ids, z->windows * z->length + 1, report, r, &sum);
    if (status == LINNET_OK) {
        s->nats = sum.nats / (double)sum.tokens;
        for (int64_t i = 0; i < z->length; i++) s->position[i] /= (double)sum.position_count[i];
    }
    lnt_scorer_destroy(scorer);
    linnet_model_destroy(m);
    lnt_free(sum.position_count);
    return status;
}

linnet_status lnt_mesa_measure(lnt_ctx *c, lnt_mesa_numbers *z, int (*progress)(void *, int64_t, int64_t), void *user)
{
    const int64_t tokens = z->windows * z->length;
    reporter r = {.call = progress, .user = user, .total = (INSIDE + z->n_settings) * tokens};
    LNT_TRY(look_inside(c, z, &r));
    for (int i = 0; i < z->n_settings; i++) {
        r.before = (INSIDE + i) * tokens;
        LNT_TRY(score(c, z, &z->settings[i], &r));
    }
    return LINNET_OK;
}

double lnt_mesa_mean_steps(const lnt_mesa_numbers *z, int solver, int tolerance)
{
    double sum = 0, count = 0;
    for (int x = 0; x < z->layers * z->heads; x++)
        for (int b = 0; b < z->n_bins; b++) {
            const double positions = (double)(z->bin[b + 1] - z->bin[b]);
            sum += positions * z->steps[lnt_mesa_row(z, solver, tolerance, x) + b];
            count += positions;
        }
    return sum / count;
}

/* The recurrences as a node of a program.
 *
 * State of a sequence. Cores with a state: S [Hv,K,V], then z [Hv,K] when normalised or H [Hv,K,K] of mesa, float32 (of mesa solved as
 * flash-linear-attention does: recur_replay.h). Attention: a cache of k rows
 * [R,Hq,K], then v rows [R,Hq,V], in the policy's dtype; R is the capacity, or the window w of a ring in which token p sits in row p mod w (softmax
 * does not care in which order rows come, and rotary positions were applied before). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/threads.h"
#include "device/device.h"
#include "ops/norms.h"
#include "ops/short_conv.h"
#include "recurrence/attention/attention_gpu.h"
#include "recurrence/delta/delta_gpu.h"
#include "recurrence/mesa/mesa_gpu.h"
#include "recurrence/recur_node.h"
#include "recurrence/recur_replay.h"
#include "recurrence/recurrence.h"

typedef struct {
    const lnt_recur_op *op;
    int32_t Hq, Hv, K, V;
    int g, beta;         /* places among the inputs, -1: none; q k v are 0 1 2 */
    const float *g_head; /* host, [Hv] */
    double scale, eps;
    bool normalize;
    int64_t window;
    lnt_mesa_options mesa;
} recur_attr;

/* ---- description ------------------------------------------------------------------------------------------------------------------- */

static bool replays(const recur_attr *x) { return x->op->solve && x->mesa.solver == LINNET_CG_FLASH; }

static lnt_recur_args describe_call(const recur_attr *x, lnt_dtype dtype, int64_t tokens, int64_t n_seq, const int64_t *cu)
{
    lnt_recur_args a = LINNET_RECURRENCE_INIT;
    a.op = x->op->name;
    a.dtype = dtype;
    a.tokens = tokens;
    a.sequences = n_seq;
    a.cu_seqlens = cu;
    a.Hq = x->Hq;
    a.Hv = x->Hv;
    a.K = x->K;
    a.V = x->V;
    a.scale = x->scale;
    a.normalize = x->normalize;
    a.eps = x->eps;
    a.window = x->window;
    a.g_head = x->g_head;
    if (!x->op->solve) return a;
    a.cg_tolerance = x->mesa.tolerance;
    a.cg_max_steps = x->mesa.max_steps;
    a.cg_guess = (linnet_cg_guess)x->mesa.guess;
    a.cg_solver = (linnet_cg_solver)x->mesa.solver;
    a.cg_gradient = (linnet_cg_gradient)x->mesa.gradient;
    if (replays(x)) a.form = LINNET_FORM_CHUNK;
    return a;
}

static int64_t cache_rows(const recur_attr *x, int64_t capacity) { return x->window > 0 && x->window < capacity ? x->window : capacity; }

static int64_t state_size(const lnt_node *n, int64_t capacity, lnt_dtype dtype)
{
    const recur_attr *x = n->attr;
    lnt_recur_args a = describe_call(x, dtype, 0, 0, NULL);
    if (replays(x)) return lnt_replay_state_bytes(&a);
    if (x->op->cache) return cache_rows(x, capacity) * x->Hq * ((int64_t)x->K + x->V) * (int64_t)lnt_dtype_size(dtype);
    return (int64_t)x->Hv * x->K * ((int64_t)x->V + x->normalize + (x->op->solve ? x->K : 0)) * 4;
}

static int64_t save_size(const lnt_node *n, const lnt_shape *s)
{
    const recur_attr *x = n->attr;
    return x->op->cache || x->op->solve ? s->tokens * x->Hv * (x->op->solve ? x->K : 1) * 4 : 0; /* lse [T,Hv]; x [T,Hv,K] */
}

static size_t aligned(size_t bytes) { return (bytes + LNT_ALIGN - 1) / LNT_ALIGN * LNT_ALIGN; }

/* Input i of this node feeds something else too (or twice), so that its gradient may have to be added to what others left. */
static bool shared_input(const lnt_node *n, int i)
{
    int32_t producer = lnt_program_value(n->program, n->in[i])->producer, uses = 0;
    for (int m = 0; m < lnt_node_count(n->program); m++) {
        const lnt_node *other = lnt_node_at(n->program, m);
        for (int k = 0; k < other->n_in; k++) uses += other->in[k].id && lnt_program_value(n->program, other->in[k])->producer == producer;
    }
    return uses > 1;
}

static size_t gradient_bytes(const lnt_node *n, int i, int64_t tokens, lnt_dtype dtype)
{
    const lnt_value *v = lnt_program_value(n->program, n->in[i]);
    return aligned((size_t)(tokens * v->cols) * (v->f32 ? 4 : lnt_dtype_size(dtype)));
}

/* On a GPU the constant decays of the heads stand at the head of the workspace. */
static size_t head_bytes(const recur_attr *x, const lnt_device *d)
{
    return x->g_head && d->kind == LNT_DEVICE_CUDA ? aligned((size_t)x->Hv * 4) : 0;
}

/* Mesa's Lambda, and in the backward pass its gradient. */
static size_t lambda_bytes(const recur_attr *x) { return x->op->solve ? aligned((size_t)x->Hv * (size_t)x->K * 4) : 0; }

/* On a GPU, mesa's number of steps where it is drawn. */
static size_t draw_bytes(const recur_attr *x, const lnt_device *d)
{
    return x->op->solve && x->mesa.min_steps >= 0 && d->kind == LNT_DEVICE_CUDA ? aligned(sizeof(int32_t)) : 0;
}

/* Rows of a windowed cache and of new tokens, side by side: k, then v. */
static size_t joined_bytes(const recur_attr *x, int64_t tokens, lnt_dtype dtype)
{
    return x->op->cache && x->window > 0 ? aligned((size_t)((x->window + tokens) * x->Hq * ((int64_t)x->K + x->V)) * lnt_dtype_size(dtype)) : 0;
}

static size_t workspace_for(const lnt_node *n, const lnt_shape *s, const int64_t *cu, bool backward)
{
    const recur_attr *x = n->attr;
    lnt_recur_args a = describe_call(x, s->dtype, s->tokens, s->n_seq, cu);
    size_t bytes = lnt_recur_workspace(&a, backward, s->threads, s->device);
    if (backward) {
        for (int i = 0; i < n->n_in; i++)
            if (shared_input(n, i)) bytes = aligned(bytes) + gradient_bytes(n, i, s->tokens, s->dtype);
        return bytes;
    }
    if (!s->has_state || !(x->op->cache || x->normalize || x->op->solve)) return bytes;
    int64_t longest = lnt_recur_longest(&a), one[2] = { 0, longest }; /* sequence by sequence */
    a.tokens = longest;
    a.sequences = 1;
    a.cu_seqlens = one;
    if (x->op->cache) a.offset = cache_rows(x, s->state_capacity);
    if (replays(x)) a.tokens = one[1] = longest + LNT_REPLAY_CHUNK;
    size_t alone = lnt_recur_workspace(&a, false, s->threads, s->device);
    if ((x->op->cache || x->op->solve) && longest > 1) { /* short tails of a long batch may take the token form */
        one[1] = a.tokens = 1;
        size_t step = lnt_recur_workspace(&a, false, s->threads, s->device);
        alone = alone > step ? alone : step;
    }
#ifdef LINNET_CUDA
    if (x->op->cache && s->device->kind == LNT_DEVICE_CUDA) {
        size_t step = lnt_attention_step_bytes(s->n_seq, x->Hv, x->V, cache_rows(x, s->state_capacity));
        bytes = bytes > step ? bytes : step;
    }
#endif
    return aligned(bytes > alone ? bytes : alone) + joined_bytes(x, longest, s->dtype) + (replays(x) ? lnt_replay_bytes(&a, longest) : 0);
}

static size_t workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    size_t heads = head_bytes(n->attr, s->device) + lambda_bytes(n->attr) * (backward ? 2 : 1) + draw_bytes(n->attr, s->device);
    if (s->cu) return heads + workspace_for(n, s, s->cu, backward);
    int64_t *cu = lnt_alloc((size_t)(s->n_seq + 1) * sizeof *cu);
    if (!cu) return 0; /* the run refuses with what it needs */
    for (int64_t i = 0; i <= s->n_seq; i++) cu[i] = s->n_seq ? s->tokens / s->n_seq * i : 0;
    cu[s->n_seq] = s->tokens;
    size_t bytes = heads + workspace_for(n, s, cu, backward);
    lnt_free(cu);
    return bytes;
}

/* Counted at C = 16, the cheapest chunk that is all useful work (operators.md 13). */
static double flops(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const recur_attr *x = n->attr;
    int64_t equal[2] = { 0, s->n_seq ? s->tokens / s->n_seq : 0 };
    lnt_recur_args a = s->cu ? describe_call(x, s->dtype, s->tokens, s->n_seq, s->cu) : describe_call(x, s->dtype, equal[1], 1, equal);
    return x->op->flops(&a, 16, backward) * (double)s->tokens * x->Hv;
}

static void describe(const lnt_node *n, char *text, size_t size)
{
    const recur_attr *x = n->attr;
    int at = snprintf(text, size, "Hq=%d Hv=%d K=%d V=%d", x->Hq, x->Hv, x->K, x->V);
    if (!isnan(x->scale) && at > 0 && (size_t)at < size) at += snprintf(text + at, size - (size_t)at, " scale=%g", x->scale);
    if (x->normalize && at > 0 && (size_t)at < size) at += snprintf(text + at, size - (size_t)at, " normalize");
    if (x->window && at > 0 && (size_t)at < size) snprintf(text + at, size - (size_t)at, " window=%lld", (long long)x->window);
    if (x->op->solve && at > 0 && (size_t)at < size)
        snprintf(text + at, size - (size_t)at, " tolerance=%g steps=%d", x->mesa.tolerance, x->mesa.max_steps);
}

/* ---- running ----------------------------------------------------------------------------------------------------------------------- */

/* The first bytes of the workspace, for something else than the kernel's scratch. */
static void *take(lnt_recur_args *a, size_t bytes)
{
    void *p = a->workspace;
    bytes = bytes < a->workspace_size ? bytes : a->workspace_size; /* too little for the kernel then, which says so */
    a->workspace = (char *)p + bytes;
    a->workspace_size -= bytes;
    return p;
}

static bool draws(const lnt_call *k)
{
    const recur_attr *x = k->attr;
    return k->chance > 0 && x->op->solve && x->mesa.min_steps >= 0;
}

static lnt_recur_args call_of(const lnt_call *k)
{
    const recur_attr *x = k->attr;
    lnt_recur_args a = describe_call(x, k->in[0].dtype, k->tokens, k->n_seq, k->cu);
    a.cu_seqlens_device = k->cu_device;
    a.q = k->in[0].data;
    a.k = k->in[1].data;
    a.v = k->in[2].data;
    if (x->g >= 0) a.g = k->in[x->g].data;
    if (x->beta >= 0) a.beta = k->in[x->beta].data;
    a.o = k->out[0].data;
    a.workspace = k->work;
    a.workspace_size = k->work_size;
    if (draws(k) && !lnt_on_cuda(k->c))
        a.cg_max_steps = x->mesa.min_steps + (int32_t)ceil(k->chance * (x->mesa.max_steps - x->mesa.min_steps + 1)) - 1;
    size_t heads = head_bytes(x, lnt_device_of(k->c));
    if (heads && heads <= k->work_size) {
        a.g_head = take(&a, heads);
        lnt_device_put(k->c, (void *)a.g_head, x->g_head, (size_t)x->Hv * sizeof *x->g_head);
    }
    return a;
}

/* Lambda = lower + softplus(p), [Hv,K], in the workspace; on a GPU the number of steps that is drawn, too. */
static void bring_lambda(const lnt_call *k, lnt_recur_args *a)
{
    const recur_attr *x = k->attr;
    const float *p = k->param[0].master;
    float *lambda = take(a, lambda_bytes(x));
    a->lambda = lambda;
#ifdef LINNET_CUDA
    if (lnt_on_cuda(k->c)) {
        lnt_steps_draw draw = { .chance = k->chance_device, .min = x->mesa.min_steps, .max = x->mesa.max_steps };
        if (draws(k)) a->cg_steps_device = draw.steps = take(a, draw_bytes(x, lnt_device_of(k->c)));
        lnt_lambda_cuda(k->c, lambda, p, (float)x->mesa.lower, (int64_t)x->Hv * x->K, draw);
        return;
    }
#endif
    for (int64_t i = 0; i < (int64_t)x->Hv * x->K; i++) lambda[i] = (float)x->mesa.lower + (p[i] > 20 ? p[i] : log1pf(expf(p[i])));
}

/* p's gradient takes sigmoid(p) dLambda. */
static void put_lambda_gradient(const lnt_call *k, const float *dlambda)
{
    const recur_attr *x = k->attr;
    const float *p = k->param[0].master;
    float *dp = k->param[0].grad;
#ifdef LINNET_CUDA
    if (dp && lnt_on_cuda(k->c)) {
        lnt_lambda_gradient_cuda(k->c, dp, p, dlambda, (int64_t)x->Hv * x->K);
        return;
    }
#endif
    for (int64_t i = 0; dp && i < (int64_t)x->Hv * x->K; i++) dp[i] += dlambda[i] / (1 + expf(-p[i]));
}

static char *at_row(const void *p, int64_t row, int64_t cols, lnt_dtype t) { return (char *)p + (size_t)(row * cols) * lnt_dtype_size(t); }

static linnet_status forward_state(const lnt_call *k)
{
    const recur_attr *x = k->attr;
    lnt_recur_args a = call_of(k);
    if (x->op->solve) {
        bring_lambda(k, &a);
        a.x = k->save;
        if (k->state && k->tokens == k->n_seq) a.cg_max_steps = x->mesa.max_steps_decoding;
    }
    if (!k->state) return linnet_recurrence_forward(k->c, &a);
    if (replays(x)) return lnt_replay_forward(k, &a);
    if (!x->normalize && !x->op->solve) { /* states lie one after the other: [N,Hv,K,V] */
        a.s0 = a.sT = k->state;
        return linnet_recurrence_forward(k->c, &a);
    }
#ifdef LINNET_CUDA
    if (x->op->solve && lnt_on_cuda(k->c) && lnt_recur_longest(&a) <= LNT_MESA_FEW && x->K <= LNT_MESA_WIDEST && x->V <= LNT_MESA_WIDEST) {
        a.s0 = a.sT = k->state; /* all sequences in one launch */
        a.h0 = a.hT = (float *)k->state + (int64_t)x->Hv * x->K * x->V;
        lnt_mesa_step_states(&a, (int64_t)(k->state_stride / sizeof(float)), lnt_device_of(k->c));
        return lnt_device_check(k->c);
    }
#endif
    for (int64_t n = 0; n < k->n_seq; n++) {
        int64_t first = k->cu[n], cu[2] = { 0, k->cu[n + 1] - first };
        lnt_recur_args b = a;
        b.tokens = cu[1];
        b.sequences = 1;
        b.cu_seqlens = cu;
        b.cu_seqlens_device = NULL;
        b.q = at_row(a.q, first, (int64_t)x->Hq * x->K, a.dtype);
        b.k = at_row(a.k, first, (int64_t)x->Hq * x->K, a.dtype);
        b.v = at_row(a.v, first, (int64_t)x->Hv * x->V, a.dtype);
        b.o = at_row(a.o, first, (int64_t)x->Hv * x->V, a.dtype);
        if (a.g) b.g = at_row(a.g, first, x->Hv, LINNET_F32);
        b.s0 = b.sT = (char *)k->state + n * k->state_stride;
        void *second = (float *)b.sT + (int64_t)x->Hv * x->K * x->V;
        if (x->normalize) b.z0 = b.zT = second;
        if (x->op->solve) {
            b.beta = at_row(a.beta, first, x->Hv, LINNET_F32);
            b.h0 = b.hT = second;
        }
        LNT_TRY(linnet_recurrence_forward(k->c, &b));
    }
    return LINNET_OK;
}

/* sum += part */
static void add_gradient(lnt_ctx *c, const lnt_tensor *sum, const void *part)
{
    int64_t count = sum->rows * sum->cols;
#ifdef LINNET_CUDA
    if (lnt_on_cuda(c)) {
        lnt_gradient_add_cuda(c, sum->data, part, sum->dtype, count);
        return;
    }
#endif
#pragma omp parallel for num_threads(lnt_threads(c))
    for (int64_t j = 0; j < count; j++)
        lnt_store_element(sum->data, sum->dtype, j, lnt_load_element(sum->data, sum->dtype, j) + lnt_load_element(part, sum->dtype, j));
}

static linnet_status backward_state_or_attention(const lnt_call *k)
{
    const recur_attr *x = k->attr;
    lnt_recur_args a = call_of(k);
    a.do_ = k->d_out[0].data;
    if (x->op->cache)
        a.lse = k->save;
    else
        a.o = NULL;
    if (x->op->solve) {
        bring_lambda(k, &a);
        a.dlambda = take(&a, lambda_bytes(x));
        a.x = k->save;
    }
    void **grad[LNT_MAX_IN] = { &a.dq, &a.dk, &a.dv };
    if (x->g >= 0) grad[x->g] = &a.dg;
    if (x->beta >= 0) grad[x->beta] = &a.dbeta;
    for (int i = 0; i < k->node->n_in; i++) { /* gradients to be added to others come first in the workspace */
        lnt_tensor d = k->d_in[i];
        if (d.data) *grad[i] = k->accumulate[i] ? take(&a, aligned((size_t)(d.rows * d.cols) * lnt_dtype_size(d.dtype))) : d.data;
    }
    LNT_TRY(linnet_recurrence_backward(k->c, &a));
    if (x->op->solve) put_lambda_gradient(k, a.dlambda);
    for (int i = 0; i < k->node->n_in; i++)
        if (k->d_in[i].data && k->accumulate[i]) add_gradient(k->c, &k->d_in[i], *grad[i]);
    return lnt_device_check(k->c);
}

#ifdef LINNET_CUDA
static bool one_token_each(const lnt_call *k)
{
    for (int64_t n = 0; n < k->n_seq; n++)
        if (k->cu[n + 1] - k->cu[n] != 1) return false;
    return true;
}

/* ---- the step of a delta layer: convolutions of q, k, v with their norms, the recurrence, the norm of its heads ------------------------------ */

static const lnt_node *maker(const lnt_node *n, int i)
{
    const int32_t at = lnt_program_value(n->program, n->in[i])->producer;
    return at < 0 ? NULL : lnt_node_at(n->program, at);
}

static bool layer_takes(const lnt_node *n, int i, const lnt_shape *s)
{
    const recur_attr *x = n->attr;
    if (i > 2 || !s->has_state || s->tokens != s->n_seq || s->device->capability / 10 != 9) return false;
    if (!lnt_delta_layer_fits(x->K, x->V)) return false;
    for (int j = 0; j < 3; j++) {
        const lnt_node *m = maker(n, j);
        if (j < 2 && (!m || m->op != &lnt_l2norm_op || lnt_heads(n->program, m->in[0]) != x->Hq)) return false;
        if (j < 2) m = maker(m, 0);
        const lnt_conv_attr *conv = m && m->op == &lnt_conv_op ? m->attr : NULL;
        if (!conv || conv->size != 4 || conv->act != LNT_SILU) return false;
    }
    return true;
}

static linnet_status run_layer(const lnt_call *calls, int count);

static bool layer_joins(const lnt_node *const *group, int count, const lnt_node *n)
{
    const lnt_node *last = group[count - 1];
    if (count == 1 || last->op->run_group != run_layer || (n->op != &lnt_rmsnorm_op && n->op != &lnt_gated_rmsnorm_op)) return false;
    return lnt_same_data(n->program, n->in[0], last->out[0]) && lnt_heads(n->program, n->in[0]) == ((const recur_attr *)last->attr)->Hv;
}

/* The calls ahead of `head`, a pair's first has no result. False: some convolution is not among them. */
static bool find_convolutions(const lnt_call *calls, int head, lnt_delta_layer *layer)
{
    for (int j = 0; j < 3; j++) {
        int i = 0;
        while (i < head && calls[i].out[0].data != calls[head].in[j].data) i++;
        if (i == head || (j < 2 && (i == 0 || calls[i - 1].out[0].data))) return false;
        if (j < 2) layer->l2norm[j] = &calls[i];
        layer->conv[j] = j < 2 ? &calls[i - 1] : &calls[i];
    }
    return true;
}

static linnet_status run_layer(const lnt_call *calls, int count)
{
    int head = 0;
    while (calls[head].node->op->run_group != run_layer) head++;
    const lnt_call *k = &calls[head];
    const recur_attr *x = k->attr;
    lnt_delta_layer layer = { .rmsnorm = head + 1 < count ? k + 1 : NULL, .keeps_o = !k->inner };
    if (k->state && one_token_each(k) && find_convolutions(calls, head, &layer)) {
        lnt_recur_args a = call_of(k);
        a.s0 = a.sT = k->state;
        if (isnan(a.scale)) a.scale = 1 / sqrt((double)x->K);
        if (lnt_delta_layer_sm90(&layer, &a, lnt_device_of(k->c))) return lnt_device_check(k->c);
    }
    for (int i = 0; i < count; i++) {
        const bool pair = !calls[i].out[0].data;
        LNT_TRY(pair ? calls[i + 1].node->op->pair->forward(&calls[i], &calls[i + 1]) : calls[i].node->op->forward(&calls[i]));
        i += pair;
    }
    return LINNET_OK;
}
#else
#define layer_takes NULL
#define layer_joins NULL
#define run_layer NULL
#endif

/* ---- attention with a cache ---------------------------------------------------------------------------------------------------------- */

/* Put `count` rows, the first of token `position`, into a ring of R rows. */
static void into_ring(lnt_ctx *c, char *ring, int64_t R, int64_t position, const char *rows, int64_t count, size_t row_bytes)
{
    int64_t skip = count > R ? count - R : 0;
    for (int64_t i = skip; i < count;) {
        int64_t slot = (position + i) % R, run = R - slot < count - i ? R - slot : count - i;
        lnt_device_copy(c, ring + (size_t)slot * row_bytes, rows + (size_t)i * row_bytes, (size_t)run * row_bytes);
        i += run;
    }
}

/* The `count` rows before token `position`, in order. */
static void from_ring(lnt_ctx *c, char *dst, const char *ring, int64_t R, int64_t position, int64_t count, size_t row_bytes)
{
    for (int64_t i = 0; i < count;) {
        int64_t slot = (position - count + i) % R, run = R - slot < count - i ? R - slot : count - i;
        lnt_device_copy(c, dst + (size_t)i * row_bytes, ring + (size_t)slot * row_bytes, (size_t)run * row_bytes);
        i += run;
    }
}

/* Sequence n. The new rows go into the cache first, unless they would overwrite rows that the first of them still sees. */
static linnet_status attend_sequence(const lnt_call *k, const lnt_recur_args *all, int64_t n)
{
    const recur_attr *x = k->attr;
    int64_t first = k->cu[n], len = k->cu[n + 1] - first, position = k->position[n], cu[2] = { 0, len };
    int64_t R = cache_rows(x, k->state_capacity);
    if (len == 0) return LINNET_OK;
    if (R == k->state_capacity && position + len > R)
        return lnt_fail(k->c, LINNET_EINVAL, "%lld tokens do not fit a key-value cache of %lld", (long long)(position + len), (long long)R);
    size_t size = lnt_dtype_size(all->dtype), k_row = (size_t)(x->Hq * x->K) * size, v_row = (size_t)(x->Hq * x->V) * size;
    char *keys = (char *)k->state + n * k->state_stride, *values = keys + (size_t)R * k_row;
    lnt_recur_args a = *all;
    a.tokens = len;
    a.sequences = 1;
    a.cu_seqlens = cu;
    a.cu_seqlens_device = NULL;
    a.q = at_row(all->q, first, (int64_t)x->Hv * x->K, all->dtype);
    a.k = at_row(all->k, first, (int64_t)x->Hq * x->K, all->dtype);
    a.v = at_row(all->v, first, (int64_t)x->Hq * x->V, all->dtype);
    a.o = at_row(all->o, first, (int64_t)x->Hv * x->V, all->dtype);
    const char *new_k = a.k, *new_v = a.v;
    bool straight = position + len <= R; /* nothing in the ring is overwritten: rows are in order */
    if (straight || len == 1) {
        into_ring(k->c, keys, R, position, new_k, len, k_row);
        into_ring(k->c, values, R, position, new_v, len, v_row);
        a.k = keys;
        a.v = values;
        a.offset = straight ? position : R - 1;
        if (!straight) a.window = 0; /* the ring is the window */
        return linnet_recurrence_forward(k->c, &a);
    }
    int64_t past = position < R - 1 ? position : R - 1;
    if (past) {
        size_t joined = joined_bytes(x, len, all->dtype);
        char *jk = a.workspace, *jv = jk + (size_t)(past + len) * k_row;
        if (joined > a.workspace_size)
            return lnt_fail(k->c, LINNET_EINTERNAL, "attention workspace of %zu bytes; needs %zu", a.workspace_size, joined);
        from_ring(k->c, jk, keys, R, position, past, k_row);
        from_ring(k->c, jv, values, R, position, past, v_row);
        lnt_device_copy(k->c, jk + (size_t)past * k_row, new_k, (size_t)len * k_row);
        lnt_device_copy(k->c, jv + (size_t)past * v_row, new_v, (size_t)len * v_row);
        a.k = jk;
        a.v = jv;
        a.offset = past;
        a.workspace = (char *)a.workspace + joined;
        a.workspace_size -= joined;
    }
    LNT_TRY(linnet_recurrence_forward(k->c, &a));
    into_ring(k->c, keys, R, position, new_k, len, k_row);
    into_ring(k->c, values, R, position, new_v, len, v_row);
    return LINNET_OK;
}

#ifdef LINNET_CUDA
/* The decoding step of all sequences, which a graph may record: where they stand is read on the device. */
static linnet_status attend_step(const lnt_call *k, const lnt_recur_args *a)
{
    const recur_attr *x = k->attr;
    const int64_t R = cache_rows(x, k->state_capacity);
    for (int64_t n = 0; n < k->n_seq; n++)
        if (R == k->state_capacity && k->position[n] >= R)
            return lnt_fail(k->c, LINNET_EINVAL, "%lld tokens do not fit a key-value cache of %lld", (long long)k->position[n] + 1, (long long)R);
    const lnt_attention_step step = { .sequences = k->n_seq, .Hq = x->Hq, .Hv = x->Hv, .K = x->K, .V = x->V, .dtype = a->dtype,
                                      .scale = isnan(x->scale) ? 1 / sqrt((double)x->K) : x->scale, .rows = R, .q = a->q, .k = a->k, .v = a->v,
                                      .o = a->o, .cache = k->state, .stride = k->state_stride, .position = k->position_device,
                                      .workspace = a->workspace, .stream = lnt_device_of(k->c)->stream };
    if (lnt_attention_step_bytes(k->n_seq, x->Hv, x->V, R) > a->workspace_size)
        return lnt_fail(k->c, LINNET_EINTERNAL, "attention workspace of %zu bytes is too small for a step", a->workspace_size);
    lnt_attention_step_put(&step);
    return lnt_device_check(k->c);
}
#endif

static linnet_status forward_attention(const lnt_call *k)
{
    lnt_recur_args a = call_of(k);
    a.lse = k->save;
    if (!k->state) return linnet_recurrence_forward(k->c, &a);
#ifdef LINNET_CUDA
    if (lnt_on_cuda(k->c) && one_token_each(k)) return attend_step(k, &a);
#endif
    for (int64_t n = 0; n < k->n_seq; n++) LNT_TRY(attend_sequence(k, &a, n));
    return LINNET_OK;
}

/* ---- building ------------------------------------------------------------------------------------------------------------------------ */

#define STATE_NODE(NAME)                                                                                                           \
    { .name = NAME, .backward_needs = LNT_NEEDS_ALL_IN, .state_size = state_size, .workspace = workspace, .flops = flops,          \
      .forward = forward_state, .backward = backward_state_or_attention, .describe = describe }
#define DELTA_NODE(NAME)                                                                                                           \
    { .name = NAME, .backward_needs = LNT_NEEDS_ALL_IN, .state_size = state_size, .workspace = workspace, .flops = flops,          \
      .forward = forward_state, .backward = backward_state_or_attention, .takes = layer_takes, .joins = layer_joins,               \
      .run_group = run_layer, .describe = describe }
#define MESA_NODE(POSITION)                                                                                                        \
    { .name = "mesa", .backward_needs = LNT_NEEDS_ALL_IN, .save_size = save_size, .state_size = state_size, .workspace = workspace, \
      .flops = flops, .host_position = POSITION, .forward = forward_state, .backward = backward_state_or_attention, .describe = describe }
static const lnt_op mesa_replayed = MESA_NODE(true);
static const lnt_op node_types[] = {
    STATE_NODE("linear_attn"),
    STATE_NODE("retention"),
    STATE_NODE("simple_gla"),
    DELTA_NODE("delta_rule"),
    DELTA_NODE("gated_delta_rule"),
    MESA_NODE(false),
    { .name = "attention",
      .backward_needs = LNT_NEEDS_ALL_IN | LNT_NEEDS_OUT0,
      .save_size = save_size,
      .state_size = state_size,
      .workspace = workspace,
      .flops = flops,
      .position = true,
      .host_position = true,
      .forward = forward_attention,
      .backward = backward_state_or_attention,
      .describe = describe },
};

static const lnt_op *node_type(const char *name)
{
    for (size_t i = 0; i < sizeof node_types / sizeof *node_types; i++)
        if (strcmp(node_types[i].name, name) == 0) return &node_types[i];
    return NULL;
}

/* A gate: one float32 column a value head. */
static bool gate_fits(lnt_program *p, const char *op, const char *name, lnt_buf b, int32_t heads, bool taken)
{
    if (!taken && b.id) return lnt_program_fail(p, "%s takes no %s", op, name), false;
    if (!taken) return true;
    if (!b.id) return lnt_program_fail(p, "%s needs %s", op, name), false;
    if (lnt_cols(p, b) != heads)
        return lnt_program_fail(p, "%s: %s has %lld columns, expected one for each of %d value heads", op, name, (long long)lnt_cols(p, b), heads),
               false;
    if (!lnt_program_value(p, b)->f32) return lnt_program_fail(p, "%s: %s must be float32 under every policy", op, name), false;
    return true;
}

lnt_buf lnt_recur(lnt_program *p, const char *name, lnt_recur_in in)
{
    if (lnt_program_failed(p)) return LNT_NO_BUF;
    const lnt_recur_op *op = lnt_recur_find(name);
    const lnt_op *type = op ? node_type(name) : NULL;
    if (!type) return lnt_program_fail(p, "unknown operator \"%s\"", name);
    if (!in.q.id || !in.k.id || !in.v.id) return lnt_program_fail(p, "%s needs q, k and v", name);
    int32_t hq = lnt_heads(p, in.q), hk = lnt_heads(p, in.k), hv = lnt_heads(p, in.v);
    int64_t K = lnt_cols(p, in.q) / hq, V = lnt_cols(p, in.v) / hv, k_size = lnt_cols(p, in.k) / hk;
    int32_t few = hk, many = op->cache ? hq : hv;
    if (K != k_size) return lnt_program_fail(p, "%s: heads of q have %lld columns, heads of k %lld", name, (long long)K, (long long)k_size);
    if (op->cache ? hk != hv : hq != hk)
        return lnt_program_fail(p, "%s: q, k, v have %d, %d, %d heads; expected as many of %s", name, hq, hk, hv, op->cache ? "k and v" : "q and k");
    if (many % few) return lnt_program_fail(p, "%s: %d heads of %s are not a multiple of %d", name, many, op->cache ? "q" : "v", few);
    if (in.normalize && !op->normalize) return lnt_program_fail(p, "%s takes no normalize", name);
    if (in.window && !op->cache) return lnt_program_fail(p, "%s takes no window", name);
    if (in.window < 0) return lnt_program_fail(p, "%s: window %lld is negative", name, (long long)in.window);
    if ((op->gate == LNT_GATE_HEAD) != (in.g_head != NULL)) return lnt_program_fail(p, "%s %s g_head", name, in.g_head ? "takes no" : "needs");
    if (!gate_fits(p, name, "g", in.g, many, op->gate == LNT_GATE_SCALAR) || !gate_fits(p, name, "beta", in.beta, many, op->beta)) return LNT_NO_BUF;

    if (op->solve != (in.mesa != NULL)) return lnt_program_fail(p, "%s %s solver options", name, in.mesa ? "takes no" : "needs");

    recur_attr *x = lnt_program_alloc(p, sizeof *x);
    if (!x) return LNT_NO_BUF;
    *x = (recur_attr){ .op = op, .Hq = few, .Hv = many, .K = (int32_t)K, .V = (int32_t)V, .g = -1, .beta = -1, .scale = in.scale, .eps = in.eps,
                       .normalize = in.normalize, .window = in.window };
    if (in.g_head) {
        float *g = lnt_program_alloc(p, (size_t)many * sizeof *g);
        if (!g) return LNT_NO_BUF;
        for (int32_t h = 0; h < many; h++) g[h] = (float)in.g_head[h];
        x->g_head = g;
    }
    int lambda = -1;
    if (in.mesa) {
        x->mesa = *in.mesa;
        double p0 = log(expm1(in.mesa->start - in.mesa->lower));
        lambda = lnt_add_param(p, in.mesa->lambda, 1, &(int64_t){ many * K }, (lnt_init){ LNT_INIT_CONST, p0, 0 }, false, false);
        if (lambda < 0) return LNT_NO_BUF;
    }
    lnt_buf inputs[5] = { in.q, in.k, in.v };
    int n = 3;
    if (in.g.id) inputs[x->g = n++] = in.g;
    if (in.beta.id) inputs[x->beta = n++] = in.beta;
    lnt_node *node = lnt_add_node(p, replays(x) ? &mesa_replayed : type, x, n, inputs, in.mesa ? 1 : 0, &lambda, 1,
                                  &(lnt_out_spec){ .cols = many * V, .heads = many });
    return node ? node->out[0] : LNT_NO_BUF;
}

const lnt_mesa_options *lnt_mesa_of(const lnt_node *n)
{
    return n->op == node_type("mesa") || n->op == &mesa_replayed ? &((const recur_attr *)n->attr)->mesa : NULL;
}

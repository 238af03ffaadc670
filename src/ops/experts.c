/* Mixtures of experts (arXiv 1701.06538, 2101.03961): each token goes through k of E MLPs.
 *
 *   route    s = softmax(z) or sigmoid(z) over the E columns of z;  S: the k largest (of equal ones the first);
 *            w_e = scale s_e for e in S, else 0;  divided by the sum of s over S where they are renormalised
 *   experts  y_t = sum over e in S of w_te D_e (act(G_e x_t) . U_e x_t)          without G: D_e act(U_e x_t)
 *
 * Balance (arXiv 2101.03961, equation 4): E sum_e f_e P_e with f_e the share of tokens that choose e (k in all) and P_e the mean of s_e has the
 * gradient balance E f_e / tokens for every s_te. It is added in route's backward pass; the loss that is shown is without it.
 *
 * G, U and D are [E, out, in] with the experts' rows one below the other. The products of an expert are over its tokens alone; backward makes what
 * lay between them again. dw_te = dh.h, with dh = D_e^T dy and h what enters D_e. */
#include "ops/experts.h"

#include <math.h>

#include "core/threads.h"
#include "ops/builder.h"
#include "ops/pointwise.h"

/* ---- route ---- */

static float load(const lnt_tensor *x, int64_t i)
{
    return x->dtype == LINNET_F32 ? ((const float *)x->data)[i] : lnt_bf16_to_f32(((const lnt_bf16 *)x->data)[i]);
}

/* Scores of a token, and its k experts in the order of their scores. */
static void choose(const lnt_route_attr *a, const lnt_tensor *z, int64_t t, float *s, int32_t *chosen)
{
    const int64_t E = z->cols;
    float top = -INFINITY, sum = 0;
    for (int64_t e = 0; e < E; e++) {
        s[e] = load(z, t * E + e);
        top = s[e] > top ? s[e] : top;
    }
    for (int64_t e = 0; e < E; e++) {
        s[e] = a->sigmoid ? 1 / (1 + expf(-s[e])) : expf(s[e] - top);
        sum += s[e];
    }
    for (int64_t e = 0; e < E && !a->sigmoid; e++) s[e] /= sum;
    for (int64_t j = 0; j < a->k; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < E; e++) {
            bool taken = false;
            for (int64_t i = 0; i < j; i++) taken |= chosen[i] == e;
            if (!taken && (best < 0 || s[e] > s[best])) best = e;
        }
        chosen[j] = (int32_t)best;
    }
}

static float chosen_sum(const lnt_route_attr *a, const float *s, const int32_t *chosen)
{
    float sum = 0;
    for (int64_t j = 0; j < a->k; j++) sum += s[chosen[j]];
    return sum;
}

static linnet_status route_forward(const lnt_call *k)
{
    const lnt_route_attr *a = k->attr;
    const int64_t E = k->in[0].cols;
#ifdef LINNET_CUDA
    if (lnt_on_cuda(k->c)) return lnt_route_forward_cuda(k);
#endif
#pragma omp parallel for num_threads(lnt_threads(k->c)) if (k->tokens > 64)
    for (int64_t t = 0; t < k->tokens; t++) {
        float s[LNT_EXPERTS_MOST], *w = (float *)k->out[0].data + t * E;
        int32_t chosen[LNT_EXPERTS_TOKEN_MOST];
        choose(a, &k->in[0], t, s, chosen);
        const float scale = (float)a->scale / (a->renormalise ? chosen_sum(a, s, chosen) : 1);
        for (int64_t e = 0; e < E; e++) w[e] = 0;
        for (int64_t j = 0; j < a->k; j++) w[chosen[j]] = scale * s[chosen[j]];
    }
    return LINNET_OK;
}

/* The share of tokens that choose an expert, times balance, E and the loss's scale. */
static void loads(const lnt_call *k, float *load_of)
{
    const lnt_route_attr *a = k->attr;
    const int64_t E = k->in[0].cols;
    int32_t chosen[LNT_EXPERTS_TOKEN_MOST];
    float s[LNT_EXPERTS_MOST];
    for (int64_t e = 0; e < E; e++) load_of[e] = 0;
    for (int64_t t = 0; t < k->tokens && a->balance > 0; t++) {
        choose(a, &k->in[0], t, s, chosen);
        for (int64_t j = 0; j < a->k; j++) load_of[chosen[j]] += 1;
    }
    for (int64_t e = 0; e < E; e++) load_of[e] *= (float)(a->balance * (double)E * k->loss_scale / (double)(k->tokens ? k->tokens : 1));
}

static linnet_status route_backward(const lnt_call *k)
{
    const lnt_route_attr *a = k->attr;
    const int64_t E = k->in[0].cols;
    float *load_of = k->work;
    if (!k->d_in[0].data) return LINNET_OK;
    if (!k->d_out[0].data) return lnt_zero_gradients(k);
#ifdef LINNET_CUDA
    if (lnt_on_cuda(k->c)) return lnt_route_backward_cuda(k);
#endif
    loads(k, load_of);
#pragma omp parallel for num_threads(lnt_threads(k->c)) if (k->tokens > 64)
    for (int64_t t = 0; t < k->tokens; t++) {
        float s[LNT_EXPERTS_MOST], ds[LNT_EXPERTS_MOST], mean = 0, along = 0;
        const float *dw = (const float *)k->d_out[0].data + t * E;
        int32_t chosen[LNT_EXPERTS_TOKEN_MOST];
        choose(a, &k->in[0], t, s, chosen);
        const float sum = a->renormalise ? chosen_sum(a, s, chosen) : 1;
        for (int64_t e = 0; e < E; e++) ds[e] = load_of[e];
        for (int64_t j = 0; j < a->k; j++) along += dw[chosen[j]] * s[chosen[j]] / sum;
        for (int64_t j = 0; j < a->k; j++) ds[chosen[j]] += (float)a->scale / sum * (dw[chosen[j]] - (a->renormalise ? along : 0));
        for (int64_t e = 0; e < E; e++) mean += s[e] * ds[e];
        for (int64_t e = 0; e < E; e++) {
            const float d = a->sigmoid ? s[e] * (1 - s[e]) * ds[e] : s[e] * (ds[e] - mean);
            const int64_t at = t * E + e;
            lnt_store_element(k->d_in[0].data, k->d_in[0].dtype, at, d + (k->accumulate[0] ? load(&k->d_in[0], at) : 0));
        }
    }
    return LINNET_OK;
}

static size_t route_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    (void)s;
    return backward ? (size_t)lnt_in_cols(n, 0) * sizeof(float) : 0;
}

static void route_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_route_attr *a = n->attr;
    lnt_format(text, size, "%lld of %lld, %s%s", (long long)a->k, (long long)lnt_in_cols(n, 0), a->sigmoid ? "sigmoid" : "softmax",
               a->renormalise ? ", sum 1" : "");
}

static const lnt_op route_op = {.name = "route", .backward_needs = LNT_NEEDS_IN0, .workspace = route_workspace, .forward = route_forward,
                                .backward = route_backward, .describe = route_describe};

lnt_buf lnt_route(lnt_program *p, lnt_buf logits, int64_t k, bool sigmoid, bool renormalise, double scale, double balance)
{
    if (!lnt_ready(p, "route", 1, &logits) || !lnt_row_a_token(p, "route", logits)) return LNT_NO_BUF;
    const int64_t E = lnt_cols(p, logits);
    if (E > LNT_EXPERTS_MOST || k < 1 || k > E || k > LNT_EXPERTS_TOKEN_MOST)
        return lnt_program_fail(p, "route: %lld of %lld experts, expected at most %d of %d", (long long)k, (long long)E, LNT_EXPERTS_TOKEN_MOST,
                                LNT_EXPERTS_MOST);
    const lnt_route_attr a = {k, sigmoid, renormalise, scale, balance};
    return lnt_add_op(p, &route_op, lnt_attr(p, &a, sizeof a), 1, &logits, 0, NULL, (lnt_out_spec){E, 1, true});
}

/* ---- experts ---- */

typedef struct {
    int64_t experts, k, inner;
    lnt_act act;
    bool gated;
} experts_attr;

enum { UP, DOWN, GATE };

/* What a call works on: rows by expert, and [entries, ..] of the policy's type or, where a name ends in f, float32. */
typedef struct {
    lnt_expert_rows r;
    void *x, *g, *u, *h, *dy, *dh, *dg, *du;
    float *yf, *dxf, *dot;
    size_t bytes;
} room;

static void *take(room *m, char *base, size_t bytes)
{
    char *at = base ? base + m->bytes : NULL;
    m->bytes += (bytes + LNT_ALIGN - 1) / LNT_ALIGN * LNT_ALIGN;
    return at;
}

static room room_of(const experts_attr *a, int64_t tokens, int64_t width, size_t size, bool backward, void *work)
{
    room m = {.r = {.tokens = tokens, .experts = a->experts, .k = a->k}};
    const size_t n = (size_t)(tokens * a->k), d = (size_t)width, f = (size_t)a->inner;
    m.r.first = take(&m, work, (size_t)(a->experts + 1) * 4);
    m.r.token = take(&m, work, n * 4);
    m.r.slot = take(&m, work, n * 4);
    m.r.weight = take(&m, work, n * 4);
    m.r.tile = take(&m, work, (size_t)lnt_expert_tiles(&m.r) * 2 * 4);
    m.x = take(&m, work, n * d * size);
    m.g = a->gated ? take(&m, work, n * f * size) : NULL;
    m.u = take(&m, work, n * f * size);
    m.h = take(&m, work, n * f * size);
    if (!backward) {
        m.yf = take(&m, work, n * d * 4);
        return m;
    }
    m.dy = take(&m, work, n * d * size);
    m.dh = take(&m, work, n * f * size);
    m.dg = a->gated ? take(&m, work, n * f * size) : NULL;
    m.du = take(&m, work, n * f * size);
    m.dxf = take(&m, work, n * d * 4);
    m.dot = take(&m, work, n * 4);
    return m;
}

static size_t experts_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    return room_of(n->attr, s->tokens, lnt_in_cols(n, 0), lnt_dtype_size(s->dtype), backward, NULL).bytes;
}

/* Entries by expert, and in each by token. */
static linnet_status sort_rows(const lnt_call *k, lnt_expert_rows *r)
{
    const float *w = k->in[1].data;
    const int64_t E = r->experts;
#ifdef LINNET_CUDA
    if (lnt_on_cuda(k->c)) return lnt_expert_sort_cuda(k->c, w, r), LINNET_OK;
#endif
    for (int64_t i = 0; i < r->tokens * r->k; i++) r->slot[i] = -1;
    int64_t n = 0;
    for (int64_t e = 0; e < E; e++) {
        r->first[e] = (int32_t)n;
        for (int64_t t = 0; t < r->tokens; t++) {
            if (w[t * E + e] == 0) continue;
            int64_t j = 0;
            while (j < r->k && r->slot[t * r->k + j] >= 0) j++;
            if (j == r->k) return lnt_fail(k->c, LINNET_EINTERNAL, "experts: token %lld has more than %lld", (long long)t, (long long)r->k);
            r->slot[t * r->k + j] = (int32_t)n;
            r->token[n] = (int32_t)t;
            r->weight[n++] = w[t * E + e];
        }
    }
    r->first[E] = (int32_t)n;
    r->entries = n;
    return LINNET_OK;
}

static void *at_row(const void *p, lnt_dtype t, int64_t row, int64_t cols) { return (char *)(uintptr_t)p + row * cols * (int64_t)lnt_dtype_size(t); }

/* y[entries, out] = (or +=) x[entries, in] W_e^T, expert by expert; W [E out, in]. */
static linnet_status through(const lnt_call *k, const lnt_expert_rows *r, const void *x, int64_t in, int which, int64_t out, void *y, lnt_dtype type)
{
    const lnt_dtype ab = k->in[0].dtype;
#ifdef LINNET_CUDA
    if (lnt_on_cuda(k->c)) {
        const lnt_expert_product p = {.kind = LNT_EXPERT_THROUGH, .in = in, .out = out, .x = x, .w = k->param[which].work, .to = y, .ab = ab,
                                      .type = type};
        return lnt_expert_product_cuda(k->c, r, &p), LINNET_OK;
    }
#endif
    for (int64_t e = 0; e < r->experts; e++) {
        const int64_t at = r->first[e], n = r->first[e + 1] - at;
        if (n)
            LNT_TRY(lnt_gemm(k->c, &(lnt_gemm_args){.trans_b = true, .weights = true, .M = n, .N = out, .K = in, .alpha = 1, .ab = ab, .c = type,
                                                    .a = at_row(x, ab, at, in), .lda = in,
                                                    .b = at_row(k->param[which].work, k->param[which].work_dtype, e * out, in), .ldb = in,
                                                    .b_scale = k->param[which].scale ? k->param[which].scale + e * out : NULL,
                                                    .C = at_row(y, type, at, out), .ldc = out}));
    }
    return LINNET_OK;
}

/* dx[entries, in] = (or +=) dy[entries, out] W_e, and dW_e += dy^T x. */
static linnet_status back_through(const lnt_call *k, const lnt_expert_rows *r, const void *x, int64_t in, int which, int64_t out, const void *dy,
                                  void *dx, lnt_dtype type, bool add)
{
    const lnt_dtype ab = k->in[0].dtype;
#ifdef LINNET_CUDA
    if (lnt_on_cuda(k->c)) {
        const lnt_expert_product to_x = {.kind = LNT_EXPERT_BACK, .in = in, .out = out, .dy = dy, .w = k->param[which].work, .to = dx, .ab = ab,
                                         .type = type, .add = add},
                                 to_w = {.kind = LNT_EXPERT_WEIGHTS, .in = in, .out = out, .x = x, .dy = dy, .to = k->param[which].grad, .ab = ab,
                                         .type = LINNET_F32, .add = true};
        if (dx) lnt_expert_product_cuda(k->c, r, &to_x);
        if (x && to_w.to) lnt_expert_product_cuda(k->c, r, &to_w);
        return LINNET_OK;
    }
#endif
    for (int64_t e = 0; e < r->experts; e++) {
        const int64_t at = r->first[e], n = r->first[e + 1] - at;
        if (!n) continue;
        if (dx)
            LNT_TRY(lnt_gemm(k->c, &(lnt_gemm_args){.M = n, .N = in, .K = out, .alpha = 1, .beta = add, .ab = ab, .c = type,
                                                    .a = at_row(dy, ab, at, out), .lda = out, .b = at_row(k->param[which].work, ab, e * out, in),
                                                    .ldb = in, .C = at_row(dx, type, at, in), .ldc = in}));
        if (x && k->param[which].grad)
            LNT_TRY(lnt_gemm(k->c, &(lnt_gemm_args){.trans_a = true, .M = out, .N = in, .K = n, .alpha = 1, .beta = 1, .ab = ab, .c = LINNET_F32,
                                                    .a = at_row(dy, ab, at, out), .lda = out, .b = at_row(x, ab, at, in), .ldb = in,
                                                    .C = k->param[which].grad + e * out * in, .ldc = in}));
    }
    return LINNET_OK;
}

/* h = act(g) u, or act(u): the element-wise operators' kernels on the entries; backward: dg and du of dh. */
static linnet_status inner_act(const lnt_call *k, const experts_attr *a, const room *m, bool backward)
{
    const lnt_tensor like = {.dtype = k->in[0].dtype, .rows = m->r.entries, .cols = a->inner, .heads = 1, .ld = a->inner};
    const lnt_glu_attr glu = {a->act};
    const lnt_activation_attr plain = {a->act, 1, 0};
    void *const in[2] = {a->gated ? m->g : m->u, m->u}, *const d_in[2] = {a->gated ? m->dg : m->du, m->du};
    lnt_call one = {.c = k->c, .node = k->node, .attr = a->gated ? (const void *)&glu : (const void *)&plain, .tokens = m->r.entries,
                    .training = k->training};
    for (int i = 0; i < 2; i++) {
        one.in[i] = one.d_in[i] = like;
        one.in[i].data = in[i], one.d_in[i].data = d_in[i];
    }
    one.out[0] = one.d_out[0] = like;
    one.out[0].data = m->h, one.d_out[0].data = m->dh;
    if (a->gated) return backward ? LNT_KERNEL(k->c, lnt_glu_backward)(&one) : LNT_KERNEL(k->c, lnt_glu_forward)(&one);
    return backward ? LNT_KERNEL(k->c, lnt_activation_backward)(&one) : LNT_KERNEL(k->c, lnt_activation_forward)(&one);
}

/* Rows, what the first products make of them, and h. */
static linnet_status begin(const lnt_call *k, const experts_attr *a, room *m)
{
    const lnt_tensor *x = &k->in[0];
    LNT_TRY(sort_rows(k, &m->r));
    LNT_KERNEL(k->c, lnt_expert_gather)(k->c, &m->r, x, m->x);
    if (a->gated) LNT_TRY(through(k, &m->r, m->x, x->cols, GATE, a->inner, m->g, x->dtype));
    LNT_TRY(through(k, &m->r, m->x, x->cols, UP, a->inner, m->u, x->dtype));
    return inner_act(k, a, m, false);
}

static linnet_status experts_forward(const lnt_call *k)
{
    const experts_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0];
    room m = room_of(a, k->tokens, x->cols, lnt_dtype_size(x->dtype), false, k->work);
    LNT_TRY(begin(k, a, &m));
    LNT_TRY(through(k, &m.r, m.h, a->inner, DOWN, x->cols, m.yf, LINNET_F32));
    LNT_KERNEL(k->c, lnt_expert_combine)(k->c, &m.r, m.yf, &k->out[0], true, false);
    return LINNET_OK;
}

static linnet_status experts_backward(const lnt_call *k)
{
    const experts_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0], *dw = &k->d_in[1];
    const int64_t E = a->experts;
    room m = room_of(a, k->tokens, x->cols, lnt_dtype_size(x->dtype), true, k->work);
    if (!k->d_out[0].data) return lnt_zero_gradients(k);
    LNT_TRY(begin(k, a, &m));
    LNT_KERNEL(k->c, lnt_expert_gather)(k->c, &m.r, &k->d_out[0], m.dy);
    LNT_TRY(back_through(k, &m.r, NULL, a->inner, DOWN, x->cols, m.dy, m.dh, x->dtype, false));
    LNT_KERNEL(k->c, lnt_expert_weigh)(k->c, &m.r, m.dh, m.h, x->dtype, a->inner, m.dot);
    LNT_TRY(back_through(k, &m.r, m.h, a->inner, DOWN, x->cols, m.dy, NULL, x->dtype, false));
    LNT_TRY(inner_act(k, a, &m, true));
    if (a->gated) LNT_TRY(back_through(k, &m.r, m.x, x->cols, GATE, a->inner, m.dg, m.dxf, LINNET_F32, false));
    LNT_TRY(back_through(k, &m.r, m.x, x->cols, UP, a->inner, m.du, m.dxf, LINNET_F32, a->gated));
    if (k->d_in[0].data) LNT_KERNEL(k->c, lnt_expert_combine)(k->c, &m.r, m.dxf, &k->d_in[0], false, k->accumulate[0]);
    if (!dw->data) return LINNET_OK;
    float *out = dw->data;
#ifdef LINNET_CUDA
    if (lnt_on_cuda(k->c)) {
        if (!k->accumulate[1]) lnt_device_zero(k->c, out, (size_t)(k->tokens * E) * sizeof *out);
        lnt_expert_dots_cuda(k->c, &m.r, m.dot, out);
        return lnt_device_check(k->c);
    }
#endif
    if (!k->accumulate[1]) memset(out, 0, (size_t)(k->tokens * E) * sizeof *out);
    for (int64_t e = 0; e < E; e++)
        for (int32_t i = m.r.first[e]; i < m.r.first[e + 1]; i++) out[m.r.token[i] * E + e] += m.dot[i];
    return LINNET_OK;
}

static double experts_flops(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const experts_attr *a = n->attr;
    return (backward ? 4.0 : 2.0) * (double)s->tokens * (double)a->k * (double)lnt_in_cols(n, 0) * (double)a->inner * (a->gated ? 3 : 2);
}

static void experts_describe(const lnt_node *n, char *text, size_t size)
{
    const experts_attr *a = n->attr;
    snprintf(text, size, "%lld of %lld columns, %s", (long long)a->experts, (long long)a->inner, lnt_act_name(a->act));
}

static const lnt_op experts_op = {.name = "experts", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_IN1, .workspace = experts_workspace,
                                  .flops = experts_flops, .forward = experts_forward, .backward = experts_backward, .describe = experts_describe};

lnt_buf lnt_experts(lnt_program *p, lnt_buf x, lnt_buf weights, const char *name, int64_t k, int64_t inner, lnt_act act, bool gated)
{
    const lnt_buf in[2] = {x, weights};
    if (!lnt_ready(p, "experts", 2, in) || !lnt_row_a_token(p, "experts", x)) return LNT_NO_BUF;
    const int64_t E = lnt_cols(p, weights), d = lnt_cols(p, x);
    if (lnt_program_value(p, x)->f32 || !lnt_program_value(p, weights)->f32)
        return lnt_program_fail(p, "experts: expected an activation and float32 weights of the experts");
    if (inner < 1 || k < 1 || k > E)
        return lnt_program_fail(p, "experts: %lld of %lld, of %lld columns", (long long)k, (long long)E, (long long)inner);
    const experts_attr a = {E, k, inner, act, gated};
    const lnt_init into = {LNT_INIT_NORMAL, lnt_init_std(p, d), 0}, back = {LNT_INIT_NORMAL, lnt_init_std(p, inner), 0};
    lnt_push_scope(p, "%s", name);
    int param[3];
    param[GATE] = gated ? lnt_named_param(p, "gate_proj", "weight", E * inner, d, into, true, true) : -1;
    param[UP] = lnt_named_param(p, "up_proj", "weight", E * inner, d, into, true, true);
    param[DOWN] = lnt_named_param(p, "down_proj", "weight", E * d, inner, back, true, true);
    lnt_pop_scope(p);
    return lnt_add_op(p, &experts_op, lnt_attr(p, &a, sizeof a), 2, in, gated ? 3 : 2, param, (lnt_out_spec){d, 1, false});
}

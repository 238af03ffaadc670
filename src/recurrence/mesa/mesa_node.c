/* The Mesa core's node. The state of a sequence is G [Hv,K,V], then H [Hv,K,K], float32; of the solver that rounds as flash-linear-attention does,
 * what mesa_replay.h says, and with a window what mesa_ring.h says; of the recursive one H is the
 * inverse P. */
#include "recurrence/mesa/mesa_node.h"

#include <math.h>

#include "core/threads.h"
#include "device/device.h"
#include "ops/norms.h"
#include "ops/row_chain.h"
#include "ops/short_conv.h"
#include "recurrence/mesa/mesa_gpu.h"
#include "recurrence/mesa/mesa_replay.h"
#include "recurrence/mesa/mesa_ring.h"
#include "recurrence/mesa/mesa_args.h"
#include "recurrence/recur_node.h"

typedef struct {
    lnt_recur_attr base;
    lnt_mesa_options solve;
} mesa_attr;

static lnt_mesa_args *args_of(lnt_recur_call *a) { return (void *)a; }
/* Whether the state is rows: of a window, or of a chunk. */
static bool is_recursive(const mesa_attr *x) { return x->solve.solver == LNT_CG_SHERMAN_MORRISON; }
static bool has_ring(const mesa_attr *x) { return x->solve.window > 0; }
static bool replays(const mesa_attr *x) { return x->solve.solver == LNT_CG_FLASH; }
static int64_t lambda_count(const lnt_node *n)
{
    const lnt_mesa_args *a = lnt_recur_args_of(n);
    return (int64_t)a->Hv * a->K;
}
static size_t lambda_bytes(const lnt_node *n) { return lnt_recur_padded((size_t)lambda_count(n) * 4); }

/* On a GPU, the number of steps where it is drawn. */
static size_t draw_bytes(const mesa_attr *x, const lnt_device *d)
{
    return x->solve.min_steps >= 0 && d->kind == LNT_DEVICE_CUDA ? lnt_recur_padded(sizeof(int32_t)) : 0;
}

static bool draws(const lnt_node *n) { return ((const mesa_attr *)n->attr)->solve.min_steps >= 0; }

/* ---- bytes --------------------------------------------------------------------------------------------------------------------------- */

static int64_t state_size(const lnt_node *n, int64_t capacity, lnt_dtype dtype)
{
    if (!replays(n->attr) && !has_ring(n->attr)) return lnt_recur_state_size(n, capacity, dtype);
    lnt_recur_call a;
    lnt_recur_shape(n, &(lnt_shape){ .dtype = dtype }, NULL, &a);
    return has_ring(n->attr) ? lnt_mesa_ring_bytes(args_of(&a), capacity) : lnt_replay_state_bytes(args_of(&a));
}

static int state_tensors(const lnt_node *n, int64_t capacity, lnt_dtype dtype, int64_t tokens, lnt_state_tensor *t)
{
    lnt_recur_call a;
    if (!replays(n->attr) && !has_ring(n->attr)) return lnt_recur_state_tensors(n, capacity, dtype, tokens, t);
    lnt_recur_shape(n, &(lnt_shape){ .dtype = dtype }, NULL, &a);
    if (has_ring(n->attr)) return lnt_mesa_ring_tensors(args_of(&a), capacity, tokens, t);
    return lnt_replay_state_tensors(args_of(&a), tokens, t);
}

static size_t workspace_for(const lnt_node *n, const lnt_shape *s, const int64_t *cu, bool backward)
{
    const mesa_attr *x = n->attr;
    size_t bytes = lnt_recur_workspace_for(n, s, cu, backward), replay = 0;
    if (!backward && s->has_state && replays(x)) {
        lnt_recur_call a;
        lnt_recur_shape(n, s, cu, &a);
        const int64_t longest = lnt_recur_longest(&a), one[2] = { 0, longest + LNT_REPLAY_CHUNK };
        const lnt_shape alone = { .tokens = one[1], .n_seq = 1, .dtype = s->dtype };
        replay = lnt_replay_bytes(args_of(&a), longest);
        lnt_recur_shape(n, &alone, one, &a);
        const size_t need = lnt_recur_workspace_quiet(&a, false, s->threads, s->device);
        bytes = need > bytes ? need : bytes;
    }
    if (!backward && s->has_state && has_ring(x)) {
        lnt_recur_call a;
        lnt_recur_shape(n, s, cu, &a);
        replay = lnt_mesa_ring_workspace(args_of(&a), s->state_capacity, lnt_recur_longest(&a), s->threads, s->device);
    }
    return lnt_recur_padded(bytes) + replay + lambda_bytes(n) * (backward ? 2 : 1) + draw_bytes(x, s->device);
}

static size_t workspace(const lnt_node *n, const lnt_shape *s, bool backward) { return lnt_recur_with_offsets(n, s, backward, workspace_for); }

/* Of solves that take all the steps that they may. */
static double most_flops(const lnt_node *n, const lnt_shape *s)
{
    const mesa_attr *x = n->attr;
    lnt_recur_call a;
    lnt_recur_shape(n, s, s->cu, &a);
    return is_recursive(x) ? 0 : x->base.op->counted_flops(&a, x->solve.max_steps);
}

/* ---- running --------------------------------------------------------------------------------------------------------------------------- */

/* Whether a call is one launch for all sequences, which makes its Lambda, too (mesa_gpu.h). */
static bool is_few(const lnt_call *k, const lnt_mesa_args *a)
{
    const mesa_attr *x = k->attr;
    if (!k->state || !lnt_on_cuda(k->c) || has_ring(x) || is_recursive(x) || replays(x) || (k->draw > 0 && draws(k->node))) return false;
    return lnt_recur_longest(a) <= LNT_MESA_FEW && a->K <= LNT_MESA_WIDEST && a->V <= LNT_MESA_WIDEST;
}

/* The call with its Lambda = lower + softplus(p), [Hv,K], in the workspace, and the number of steps where it is drawn. */
static void bind(const lnt_call *k, lnt_recur_call *call)
{
    const mesa_attr *x = k->attr;
    const float *p = k->param[0].master;
    lnt_recur_bind(k, call);
    lnt_mesa_args *a = args_of(call);
    const bool drawn = k->draw > 0 && draws(k->node);
    if (is_few(k, a)) return;
    float *lambda = lnt_recur_take(call, lambda_bytes(k->node));
    a->lambda = lambda;
#ifdef LINNET_CUDA
    if (lnt_on_cuda(k->c)) {
        lnt_steps_draw draw = { .chance = k->draw_device, .min = x->solve.min_steps, .max = x->solve.max_steps };
        if (drawn) a->cg_steps_device = draw.steps = lnt_recur_take(call, draw_bytes(x, lnt_device_of(k->c)));
        lnt_lambda_cuda(k->c, lambda, p, (float)x->solve.lower, lambda_count(k->node), draw);
        return;
    }
#endif
    if (drawn) a->cg_max_steps = x->solve.min_steps + (int32_t)ceil(k->draw * (x->solve.max_steps - x->solve.min_steps + 1)) - 1;
    for (int64_t i = 0; i < lambda_count(k->node); i++) lambda[i] = (float)x->solve.lower + (p[i] > 20 ? p[i] : log1pf(expf(p[i])));
}

/* A state that begins is the inverse of Lambda, not 0. */
static void begin_inverses(const lnt_call *k, const lnt_mesa_args *a)
{
    const float *lambda = a->lambda;
    for (int64_t n = 0; n < k->n_seq; n++) {
        float *P = (float *)(void *)((char *)k->state + n * k->state_stride) + (int64_t)a->Hv * a->K * a->V;
        for (int64_t i = 0; k->position[n] == 0 && i < (int64_t)a->Hv * a->K; i++) P[i * a->K + i % a->K] = 1.0f / lambda[i];
    }
}

/* Calls of few tokens each hardly forget: what they have forgotten together shows in the state, and their results were NaN. */
static linnet_status check_inverses(const lnt_call *k, const lnt_mesa_args *a)
{
    const float *lambda = a->lambda;
    for (int64_t n = 0; n < k->n_seq; n++) {
        const float *P = (const float *)(const void *)((const char *)k->state + n * k->state_stride) + (int64_t)a->Hv * a->K * a->V;
        for (int64_t i = 0; i < (int64_t)a->Hv * a->K; i++) {
            const double grown = P[i * a->K + i % a->K] * lambda[i];
            if (!(grown > LNT_MESA_GROWTH)) continue; /* nor is NaN growth: it has come in */
            lnt_fail(k->c, LINNET_EINVAL, "behind token %lld the inverse of cg_solver sherman_morrison has grown %g times in head %lld, at most %g",
                     (long long)(k->position[n] + k->cu[n + 1] - k->cu[n]), grown, (long long)(i / a->K), (double)LNT_MESA_GROWTH);
            return lnt_hint(k->c, "It is for what hardly forgets (use_forget_gate = false).");
        }
    }
    return LINNET_OK;
}

static void limit_steps(const lnt_call *k, lnt_mesa_args *a)
{
    const mesa_attr *x = k->attr;
    if (k->tokens == k->n_seq || lnt_rows_are_alone(k->c)) a->cg_max_steps = x->solve.max_steps_decoding;
}

#ifdef LINNET_CUDA
static linnet_status few_forward(const lnt_call *k, lnt_mesa_args *a, const lnt_mesa_around *around)
{
    const mesa_attr *x = k->attr;
    const lnt_mesa_lambda made = { .p = k->param[0].master, .lower = (float)x->solve.lower };
    a->scale = 1, a->states_early = true;
    a->s0 = a->sT = k->state;
    a->h0 = a->hT = (float *)k->state + (int64_t)a->Hv * a->K * a->V;
    lnt_mesa_step_states(a, made, around, (int64_t)(k->state_stride / sizeof(float)), lnt_device_of(k->c));
    return lnt_device_check(k->c);
}
#endif

static linnet_status forward(const lnt_call *k)
{
    const mesa_attr *x = k->attr;
    lnt_recur_call call;
    bind(k, &call);
    lnt_mesa_args *a = args_of(&call);
    if (k->state) limit_steps(k, a);
    if (k->state && has_ring(x) && !lnt_on_cuda(k->c)) return lnt_mesa_ring_forward(k, a);
    if (k->state && has_ring(x)) {
        lnt_fail(k->c, LINNET_EUNSUPPORTED, "mesa with a window keeps no state on a GPU");
        return lnt_hint(k->c, "Use --device cpu.");
    }
    if (has_ring(x)) return lnt_recur_run(k->c, a, false);
    if (is_recursive(x) && lnt_on_cuda(k->c)) return lnt_recur_run(k->c, a, false); /* which says that it cannot */
    if (is_recursive(x) && k->state) begin_inverses(k, a);
    if (k->state && replays(x)) return lnt_replay_forward(k, a);
#ifdef LINNET_CUDA
    if (is_few(k, a)) return few_forward(k, a, &(lnt_mesa_around){ 0 });
#endif
    LNT_TRY(lnt_recur_forward(k, &call));
    return is_recursive(x) && k->state ? check_inverses(k, a) : LINNET_OK;
}

/* ---- a step on a GPU, with the convolutions of q and k and the norm of its heads ---------------------------------------------------------- */

#ifdef LINNET_CUDA
static linnet_status step_group(const lnt_call *calls, int count);

static const lnt_node *maker(const lnt_node *n, int i)
{
    const int32_t at = lnt_program_value(n->program, n->in[i])->producer;
    return at < 0 ? NULL : lnt_node_at(n->program, at);
}

/* q and k, both or none; a convolution and the norm behind it are a pair (norms.c). */
static bool makes_input(const lnt_node *n, int i, const lnt_shape *s)
{
    const lnt_mesa_args *x = lnt_recur_args_of(n);
    if (i > 1 || !s->has_state || s->tokens != s->n_seq || s->device->kind != LNT_DEVICE_CUDA || x->Hq != x->Hv || x->Hk != x->Hv) return false;
    for (int j = 0; j < 2; j++) {
        const lnt_node *norm = maker(n, j), *made = norm && norm->op == &lnt_l2norm_op ? maker(norm, 0) : NULL;
        const lnt_conv_attr *conv = made && made->op == &lnt_conv_op ? made->attr : NULL;
        if (!conv || conv->size != 4 || lnt_is_slice(n->program, made->in[0])) return false;
        if (lnt_pair_of(made->op, norm->op) == NULL || !lnt_pair_of(made->op, norm->op)->fits(made, norm, s)) return false;
        if (lnt_heads(n->program, norm->in[0]) != x->Hq) return false;
    }
    return x->K <= LNT_MESA_HELD && x->V <= LNT_MESA_HELD;
}

static bool norm_follows(const lnt_node *const *group, int count, const lnt_node *n)
{
    const lnt_node *last = group[count - 1];
    if (last->op->run_group != step_group || (n->op != &lnt_rmsnorm_op && n->op != &lnt_gated_rmsnorm_op)) return false;
    const lnt_mesa_args *x = lnt_recur_args_of(last);
    if (x->K > LNT_MESA_HELD || x->V > LNT_MESA_HELD) return false;
    return lnt_same_data(n->program, n->in[0], last->out[0]) && lnt_heads(n->program, n->in[0]) == x->Hv;
}

/* The convolutions ahead of calls[head], each the first of a pair; there are none, or both. False: something does not fit. */
static bool find_convolutions(const lnt_call *calls, int head, const lnt_mesa_args *a, lnt_mesa_conv conv[2])
{
    for (int j = 0; j < 2 && head; j++) {
        int i = 0;
        while (i < head && calls[i].out[0].data != calls[head].in[j].data) i++;
        if (i == 0 || i == head || calls[i - 1].out[0].data) return false;
        const lnt_call *k = &calls[i - 1];
        conv[j] = (lnt_mesa_conv){ .x = k->in[0].data, .w = k->param[0].master, .window = k->state, .stride = k->state_stride,
                                   .eps = (float)((const lnt_norm_attr *)calls[i].attr)->eps };
        if (!k->state || k->in[0].dtype != a->dtype || (uintptr_t)conv[j].w % 16) return false;
    }
    return !head || lnt_one_token_each(&calls[head]);
}

/* False: something does not fit. */
static bool find_norm(const lnt_call *head, const lnt_call *n, const lnt_mesa_args *a, lnt_mesa_norm *norm)
{
    const lnt_norm_attr *attr = n->attr;
    const bool gated = n->node->n_in > 1;
    *norm = (lnt_mesa_norm){ .y = n->out[0].data, .w = n->node->n_param ? n->param[0].master : NULL, .gate = gated ? n->in[1].data : NULL,
                             .eps = (float)attr->eps, .silu = attr->act == LNT_SILU, .keeps_o = !head->inner };
    if (gated && (n->in[1].dtype != a->dtype || (attr->act != LNT_SILU && attr->act != LNT_SIGMOID))) return false;
    return n->out[0].dtype == a->dtype;
}

static linnet_status step_group(const lnt_call *calls, int count)
{
    int head = 0;
    while (calls[head].node->op->run_group != step_group) head++;
    const lnt_call *k = &calls[head];
    lnt_mesa_around around = { 0 };
    lnt_recur_call call;
    bind(k, &call);
    lnt_mesa_args *a = args_of(&call);
    if (is_few(k, a) && find_convolutions(calls, head, a, around.conv) &&
        (head + 1 == count || find_norm(k, &calls[head + 1], a, &around.norm))) {
        limit_steps(k, a);
        return few_forward(k, a, &around);
    }
    return lnt_row_chain_apart(calls, count);
}
#define STEP_GROUP .makes_input = makes_input, .follows = norm_follows, .run_group = step_group,
#else
#define STEP_GROUP
#endif

/* p's gradient takes sigmoid(p) dLambda. */
static void put_lambda_gradient(const lnt_call *k, const float *dlambda)
{
    const float *p = k->param[0].master;
    float *dp = k->param[0].grad;
#ifdef LINNET_CUDA
    if (dp && lnt_on_cuda(k->c)) {
        lnt_lambda_gradient_cuda(k->c, dp, p, dlambda, lambda_count(k->node));
        return;
    }
#endif
    for (int64_t i = 0; dp && i < lambda_count(k->node); i++) dp[i] += dlambda[i] / (1 + expf(-p[i]));
}

static linnet_status backward(const lnt_call *k)
{
    lnt_recur_call call;
    bind(k, &call);
    float *dlambda = lnt_recur_take(&call, lambda_bytes(k->node));
    args_of(&call)->dlambda = dlambda;
    LNT_TRY(lnt_recur_backward(k, &call));
    put_lambda_gradient(k, dlambda);
    return LINNET_OK;
}

/* ---- building -------------------------------------------------------------------------------------------------------------------------- */

#define NODE(POSITION, ...)                                                                                                        \
    { .name = "mesa", .backward_needs = LNT_NEEDS_ALL_IN, .save_size = lnt_recur_save_size, .state_size = state_size,              \
      .state_tensors = state_tensors, .workspace = workspace, .flops = lnt_recur_node_flops, .most_flops = most_flops,           \
      .draws = draws, .host_position = POSITION, __VA_ARGS__ .forward = forward, .backward = backward, .describe = lnt_recur_describe }
const lnt_op lnt_mesa_node = NODE(false, STEP_GROUP);
static const lnt_op replayed = NODE(true, );

lnt_buf lnt_mesa(lnt_program *p, lnt_buf q, lnt_buf k, lnt_buf v, lnt_buf g, lnt_buf beta, const lnt_mesa_options *o)
{
    if (lnt_program_failed(p)) return LNT_NO_BUF;
    if (!q.id || !v.id) return lnt_program_fail(p, "mesa needs q and v");
    mesa_attr *x = lnt_program_alloc(p, sizeof *x);
    if (!x) return LNT_NO_BUF;
    x->solve = *o;
    const lnt_recur_in in = { .tensor = { { "q", q }, { "k", k }, { "v", v }, { "g", g }, { "beta", beta }, { "sign", o->sign } },
                              .option = { { "cg_tol", o->tolerance },
                                          { "cg_max_iter", o->max_steps },
                                          { "cg_guess", o->guess },
                                          { "cg_solver", o->solver },
                                          { "cg_gradient", o->gradient },
                                          { "window", (double)o->window },
                                          { "signed", o->sign.id != 0 } } };
    const int64_t count = (int64_t)lnt_heads(p, v) * (lnt_cols(p, q) / lnt_heads(p, q));
    const int lambda = lnt_add_param(p, o->lambda, 1, &count, (lnt_init){ LNT_INIT_CONST, log(expm1(o->start - o->lower)), 0 }, false, false);
    if (lambda < 0) return LNT_NO_BUF;
    const lnt_op *type = replays(x) || has_ring(x) || is_recursive(x) ? &replayed : &lnt_mesa_node;
    const lnt_node *node = lnt_recur_add(p, &lnt_recur_mesa, type, &in, &x->base, 1, &lambda);
    if (node && replays(x)) x->base.call.head.form = LINNET_FORM_CHUNK;
    return node ? node->out[0] : LNT_NO_BUF;
}

const lnt_mesa_options *lnt_mesa_of(const lnt_node *n)
{
    return n->op == &lnt_mesa_node || n->op == &replayed ? &((const mesa_attr *)n->attr)->solve : NULL;
}

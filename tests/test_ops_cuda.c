/* The operators of ops/ on a GPU against float64: forward and backward, float32, bf16 and mixtures, gradients accumulated and absent, packed
 * sequences, states, guarded buffers filled with NaN; everything twice, with the same bits. Products of every form. "test_ops_cuda NAME": of cases,
 * products, loss blocks and what is stored only what contains NAME. Long: one set-up serves all tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "core/context.h"
#include "core/memory.h"
#include "core/rng.h"
#include "device/device.h"
#include "gpu_context.h"
#include "op_cases.h"
#include "ops/gemm.h"

enum { GUARD = 64 };
#define OK(c, call)                                                                                                                \
    do {                                                                                                                           \
        if ((call) != LINNET_OK) fail_msg("%s: %s", #call, linnet_error_message(c));                                               \
    } while (0)

static lnt_buf build_repeat(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_repeat_heads(p, in[0], (int)a->nu); }
static void ref_repeat(ref *r, bool backward)
{
    const int64_t d = r->in_cols[0] / r->heads, many = r->heads * r->nu;
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t h = 0; h < many; h++)
            for (int64_t i = 0; i < d; i++) {
                const int64_t x = (t * r->heads + h / r->nu) * d + i, y = (t * many + h) * d + i;
                if (backward)
                    r->d_in[0][x] += r->d_out[y];
                else
                    r->out[y] = r->in[0][x];
            }
}
static void ref_repeat_forward(ref *r) { ref_repeat(r, false); }
static void ref_repeat_backward(ref *r) { ref_repeat(r, true); }

/* Sizes that reach every way a kernel is compiled: units of 8, 4 and 1, teams of a few lanes, of a warp, of a block. */
static const op_case more[] = {
    {.name = "linear of 64", .build = build_linear, BOTH(linear), .n_in = 1, .cols = {64}, .heads = 1, .a = {.size = 40}},
    {.name = "linear to 13", .build = build_linear, BOTH(linear), .n_in = 1, .cols = {128}, .heads = 1, .a = {.size = 13}},
    {.name = "linear of 1000", .build = build_linear, BOTH(linear), .n_in = 1, .cols = {1000}, .heads = 1, .a = {.size = 24}},
    {.name = "embedding of 72", .build = build_embedding,
     BOTH(embedding),
     .ids = true, .first_id = true, .heads = 1, .a = {.size = 72, .vocab = 7, .scale = 1}},
    {.name = "embedding of 20", .build = build_embedding,
     BOTH(embedding),
     .ids = true, .first_id = true, .heads = 1, .a = {.size = 20, .vocab = 70000, .scale = 3}},
    {.name = "rmsnorm of 768", .build = build_rmsnorm, BOTH(rmsnorm), .n_in = 1, .cols = {768}, .heads = 1, .a = {.eps = 1e-6}},
    {.name = "rmsnorm of 2400", .build = build_rmsnorm, BOTH(rmsnorm), .n_in = 1, .cols = {2400}, .heads = 1, .a = {.eps = 1e-6}},
    {.name = "rmsnorm of 8 x 40", .build = build_rmsnorm, BOTH(rmsnorm), .n_in = 1, .cols = {320}, .heads = 8, .a = {.eps = 1e-2}},
    {.name = "rmsnorm of 5 x 128", .build = build_rmsnorm, BOTH(rmsnorm), .n_in = 1, .cols = {640}, .heads = 5, .a = {.eps = 1e-5}},
    {.name = "rmsnorm of 2 x 256", .build = build_rmsnorm, BOTH(rmsnorm), .n_in = 1, .cols = {512}, .heads = 2, .a = {.eps = 1e-2}},
    {.name = "rmsnorm of 2049", .build = build_rmsnorm, BOTH(rmsnorm), .n_in = 1, .cols = {2049}, .heads = 1, .a = {.eps = 1e-6}},
    {.name = "gated rmsnorm of 3 x 128", .build = build_gated,
     BOTH(rmsnorm),
     .n_in = 2, .cols = {384, 384}, .heads = 3, .a = {.eps = 1e-5, .act = LNT_SILU}},
    {.name = "gated rmsnorm of 520", .build = build_gated,
     BOTH(rmsnorm),
     .n_in = 2, .cols = {520, 520}, .heads = 1, .a = {.eps = 1e-5, .act = LNT_SIGMOID}},
    {.name = "l2norm of 5 x 128", .build = build_l2norm, BOTH(l2norm), .n_in = 1, .cols = {640}, .heads = 5, .a = {.eps = 1e-6}},
    {.name = "l2norm of 3 x 12", .build = build_l2norm, BOTH(l2norm), .n_in = 1, .cols = {36}, .heads = 3, .a = {.eps = 1e-6}},
    {.name = "sumnorm of 2 x 64", .build = build_sumnorm,
     BOTH(sumnorm),
     .n_in = 1, .cols = {128}, .heads = 2, .positive = true, .a = {.eps = 1e-4}},
    {.name = "sum and rmsnorm of 2048", .build = build_sum_norm,
     BOTH(sum_norm),
     .n_in = 2, .cols = {2048, 2048}, .heads = 1, .pair = true, .a = {.eps = 1e-6}},
    {.name = "sum and rmsnorm of 512", .build = build_sum_norm,
     BOTH(sum_norm),
     .n_in = 2, .cols = {512, 512}, .heads = 1, .pair = true, .a = {.eps = 1e-5}},
    {.name = "sum and rmsnorm of 520", .build = build_sum_norm,
     BOTH(sum_norm),
     .n_in = 2, .cols = {520, 520}, .heads = 1, .pair = true, .a = {.eps = 1e-5}},
    {.name = "sum and rmsnorm of 136", .build = build_sum_norm,
     BOTH(sum_norm),
     .n_in = 2, .cols = {136, 136}, .heads = 1, .pair = true, .a = {.eps = 1e-5}},
    {.name = "sum and rmsnorm of 2 x 64", .build = build_sum_norm,
     BOTH(sum_norm),
     .n_in = 2, .cols = {128, 128}, .heads = 2, .pair = true, .a = {.eps = 1e-5}},
    {.name = "conv of 2056 columns", .build = build_conv, BOTH(conv), .n_in = 1, .cols = {2056}, .heads = 1, .a = {.size = 4, .act = LNT_SILU}},
    {.name = "conv bias of 2056 columns", .build = build_conv_bias,
     BOTH(conv),
     .n_in = 1, .cols = {2056}, .heads = 1, .a = {.size = 4, .act = LNT_SILU}},
    {.name = "conv of 8 columns", .build = build_conv, BOTH(conv), .n_in = 1, .cols = {8}, .heads = 1, .a = {.size = 4, .act = LNT_SILU}},
    {.name = "conv bias of 8 columns", .build = build_conv_bias, BOTH(conv), .n_in = 1, .cols = {8}, .heads = 1, .a = {.size = 4, .act = LNT_SILU}},
    {.name = "conv of 68 columns", .build = build_conv, BOTH(conv), .n_in = 1, .cols = {68}, .heads = 1, .a = {.size = 3, .act = LNT_SIGMOID}},
    {.name = "conv of 2 taps", .build = build_conv, BOTH(conv), .n_in = 1, .cols = {24}, .heads = 1, .a = {.size = 2, .act = LNT_SILU}},
    {.name = "conv and l2norm of 5 x 128", .build = build_conv_norm,
     BOTH(conv_norm),
     .n_in = 1, .cols = {640}, .heads = 5, .pair = true, .a = {.size = 4, .act = LNT_SILU, .eps = 1e-6}},
    {.name = "conv and l2norm of 1 x 128", .build = build_conv_norm,
     BOTH(conv_norm),
     .n_in = 1, .cols = {128}, .heads = 1, .pair = true, .a = {.size = 4, .act = LNT_SILU, .eps = 1e-6}},
    {.name = "conv and l2norm of 4 x 64", .build = build_conv_norm,
     BOTH(conv_norm),
     .n_in = 1, .cols = {256}, .heads = 4, .pair = true, .a = {.size = 3, .act = LNT_SILU, .eps = 1e-2}},
    {.name = "conv and l2norm of 32 x 4", .build = build_conv_norm,
     BOTH(conv_norm),
     .n_in = 1, .cols = {128}, .heads = 32, .pair = true, .a = {.size = 1, .act = LNT_SILU, .eps = 1e-6}},
    {.name = "silu of 48", .build = build_activation, BOTH(activation), .n_in = 1, .cols = {48}, .heads = 1, .a = {.act = LNT_SILU, .scale = 1}},
    {.name = "decay gate of 300", .build = build_decay_gate, BOTH(decay_gate), .n_in = 1, .cols = {300}, .heads = 1},
    {.name = "rotary of 128", .build = build_rotary, BOTH(rotary), .n_in = 1, .cols = {256}, .heads = 2, .a = {.base = 10000}},
    {.name = "rotary of 2", .build = build_rotary, BOTH(rotary), .n_in = 1, .cols = {4}, .heads = 2, .a = {.base = 10000}},
    {.name = "add of 1024", .build = build_add, BOTH(add), .n_in = 2, .cols = {1024, 1024}, .heads = 1},
    {.name = "mul per head of 128", .build = build_mul, BOTH(mul), .n_in = 2, .cols = {384, 3}, .heads = 3},
    {.name = "swiglu of 264", .build = build_glu, BOTH(glu), .n_in = 2, .cols = {264, 264}, .heads = 1, .a = {.act = LNT_SILU}},
    {.name = "head dot of 64", .build = build_head_dot, BOTH(head_dot), .n_in = 2, .cols = {256, 256}, .heads = 4},
    {.name = "softmax of 64", .build = build_softmax, BOTH(softmax), .n_in = 1, .cols = {128}, .heads = 2},
    {.name = "layernorm of 768", .build = build_layernorm, BOTH(layernorm), .n_in = 1, .cols = {768}, .heads = 1, .a = {.eps = 1e-5}},
    {.name = "layernorm of 2048", .build = build_layernorm, BOTH(layernorm), .n_in = 1, .cols = {2048}, .heads = 1, .a = {.eps = 1e-5}},
    {.name = "layernorm of 1100", .build = build_layernorm, BOTH(layernorm), .n_in = 1, .cols = {1100}, .heads = 1, .a = {.eps = 1e-5}},
    {.name = "groupnorm of 8 x 64", .build = build_layernorm, BOTH(layernorm), .n_in = 1, .cols = {512}, .heads = 8, .a = {.eps = 6.4e-4}},
    {.name = "token shift of 2056", .build = build_shift, BOTH(shift), .n_in = 1, .cols = {2056}, .heads = 1},
    {.name = "lerp of 1028", .build = build_lerp, BOTH(lerp), .n_in = 3, .cols = {1028, 1028, 1028}, .heads = 1},
    {.name = "lerp of 264", .build = build_lerp, BOTH(lerp), .n_in = 3, .cols = {264, 264, 264}, .heads = 1},
    {.name = "six lerps of 264 by a row", .build = build_lerp,
     BOTH(lerp),
     .n_in = 3, .cols = {264, 264, 6 * 264}, .heads = 1, .row = true, .a = {.row = true}},
    {.name = "five lerps of 264", .build = build_lerp, BOTH(lerp), .n_in = 3, .cols = {264, 264, 5 * 264}, .heads = 1},
    {.name = "lerp of 264 by a row", .build = build_lerp,
     BOTH(lerp),
     .n_in = 3, .cols = {264, 264, 264}, .heads = 1, .row = true, .a = {.row = true}},
    {.name = "group linear of 5 x 32", .build = build_group_linear, BOTH(group_linear), .n_in = 1, .cols = {160}, .heads = 5, .a = {.size = 64}},
    {.name = "vector decay gate of 4 x 128", .build = build_vector_gate, BOTH(vector_gate), .n_in = 1, .cols = {512}, .heads = 4, .a = {.size = 128}},
    {.name = "bounded decay of 512", .build = build_bounded, BOTH(bounded), .n_in = 2, .cols = {512, 512}, .heads = 1, .positive = true, .row = true},
    {.name = "hedgehog of 64", .build = build_hedgehog, BOTH(hedgehog), .n_in = 1, .cols = {128}, .heads = 2},
    {.name = "lm loss of 1003", .build = build_loss, BOTH(loss), .n_in = 1, .cols = {64}, .heads = 1, .ids = true, .a = {.vocab = 1003}},
    {.name = "lm loss of 5000", .build = build_loss, BOTH(loss), .n_in = 1, .cols = {8}, .heads = 1, .ids = true, .a = {.vocab = 5000, .cap = 20}},
    {.name = "repeat heads of 16", .build = build_repeat, BOTH(repeat), .n_in = 1, .cols = {48}, .heads = 3, .a = {.nu = 4}},
    {.name = "repeat heads of 5", .build = build_repeat, BOTH(repeat), .n_in = 1, .cols = {15}, .heads = 3, .a = {.nu = 2}},
};
enum { MORE = sizeof more / sizeof *more, ALL = CASES + MORE };

static const op_case *case_at(int i) { return i < CASES ? &cases[i] : &more[i - CASES]; }

/* ---- device buffers with a host image: what they begin with, and what came out --------------------------------------------------------------- */

typedef struct {
    void *device;
    unsigned char *begin, *now; /* bytes + GUARD */
    size_t bytes;
} buffer;

static buffer make_buffer(linnet_context *c, size_t bytes)
{
    buffer b = {NULL, lnt_alloc(bytes + GUARD), lnt_alloc(bytes + GUARD), bytes};
    memset(b.begin, 0xff, bytes); /* NaN in every type */
    memset(b.begin + bytes, 0x5a, GUARD);
    OK(c, lnt_device_alloc(c, bytes + GUARD, &b.device));
    return b;
}
static void send(linnet_context *c, buffer *b) { lnt_to_device(c, b->device, b->begin, b->bytes + GUARD); }
static void receive(linnet_context *c, buffer *b, const char *who)
{
    lnt_to_host(c, b->now, b->device, b->bytes + GUARD);
    for (int i = 0; i < GUARD; i++)
        if (b->now[b->bytes + (size_t)i] != 0x5a) fail_msg("%s: written behind a buffer of %zu bytes", who, b->bytes);
}
static void free_buffer(linnet_context *c, buffer *b)
{
    if (!b->begin) return;
    lnt_device_free(c, b->device);
    lnt_free(b->begin);
    lnt_free(b->now);
}

/* ---- one setting: a node of an operator, its call, its reference ---------------------------------------------------------------- */

enum { IN, D_IN, OUT, D_OUT, MASTER, GRAD, HALF, MIDDLE, KINDS }; /* MIDDLE: of a pair, and its gradient */

typedef struct {
    const op_case *o;
    linnet_context *c;
    lnt_program *p;
    const lnt_node *node, *first; /* first: of a pair, or NULL */
    lnt_dtype policy;
    lnt_call k;
    lnt_tensor middle, d_middle;  /* of a pair; absent where it runs without */
    bool there;                   /* d_middle has a gradient from others */
    bool together;                /* the pair in one call */
    ref r;
    int64_t cu[8];
    int32_t *id;
    buffer b[KINDS][3], ids, cuts, work;
    char who[160];
} setting;

static double *doubles(int64_t n) { return lnt_calloc((size_t)(n > 0 ? n : 1) * sizeof(double)); }
static size_t bytes_of(const lnt_tensor *t) { return (size_t)(t->rows * t->cols) * lnt_dtype_size(t->dtype); }

static const lnt_op source_op = {.name = "source"};

static lnt_tensor tensor(setting *s, buffer *b, int64_t rows, int64_t cols, int32_t heads, lnt_dtype t)
{
    lnt_tensor x = {NULL, t, rows, cols, heads, cols};
    *b = make_buffer(s->c, bytes_of(&x));
    x.data = b->device;
    return x;
}

/* Random values, rounded to the tensor's type in both. */
static void fill(const lnt_tensor *x, buffer *b, double *value, lnt_rng *r, bool positive)
{
    for (int64_t i = 0; i < x->rows * x->cols; i++) {
        lnt_store_element(b->begin, x->dtype, i, positive ? 0.05 + 0.9 * lnt_rng_uniform(r) : lnt_rng_normal(r));
        value[i] = lnt_load_element(b->begin, x->dtype, i);
    }
}

static int params_of(const setting *s) { return s->node->n_param + (s->first ? s->first->n_param : 0); }

/* The value between the nodes of a pair: with a gradient from others when the number of tokens is odd. */
static void make_middle(setting *s, int64_t T, lnt_dtype policy, lnt_rng *rng)
{
    const lnt_value *v = lnt_program_value(s->p, s->first->out[0]);
    const lnt_dtype t = v->f32 ? LINNET_F32 : policy;
    const lnt_pair *pair = s->node->op->pair;
    const lnt_shape shape = {.tokens = T, .n_seq = s->k.n_seq, .cu = s->cu, .training = true, .dtype = policy, .threads = 1, .device = s->c->device};
    lnt_tensor middle = tensor(s, &s->b[MIDDLE][0], T, v->cols, v->heads, t), d_middle = tensor(s, &s->b[MIDDLE][1], T, v->cols, v->heads, t);
    const bool fits = !pair->fits || pair->fits(s->first, s->node, &shape), there = T % 2 && !pair->inner;
    s->together = fits;
    s->r.middle = doubles(T * v->cols), s->r.d_middle = doubles(T * v->cols), s->r.d_middle_all = doubles(T * v->cols);
    if (there) fill(&d_middle, &s->b[MIDDLE][1], s->r.d_middle, rng, false);
    if (pair->inner && fits) middle.data = d_middle.data = NULL;
    s->middle = middle, s->d_middle = d_middle, s->there = there;
}

static void make_params(setting *s, lnt_dtype policy, lnt_rng *rng)
{
    const int before = s->first ? s->first->n_param : 0;
    for (int i = 0; i < params_of(s); i++) {
        const lnt_param *q = lnt_param_at(s->p, i < before ? s->first->param[i] : s->node->param[i - before]);
        s->b[MASTER][i] = make_buffer(s->c, (size_t)q->count * 4);
        s->b[GRAD][i] = make_buffer(s->c, (size_t)q->count * 4);
        s->b[HALF][i] = make_buffer(s->c, (size_t)q->count * 2);
        s->r.param[i] = doubles(q->count), s->r.d_param[i] = doubles(q->count);
        const bool rounded = q->product && policy == LINNET_BF16 && !s->o->first_id;
        for (int64_t j = 0; j < q->count; j++) {
            const float w = (float)(lnt_rng_normal(rng) * 0.3 + (q->ndim == 1 ? 1 : 0)), g = (float)lnt_rng_normal(rng);
            ((float *)s->b[MASTER][i].begin)[j] = w, ((float *)s->b[GRAD][i].begin)[j] = g;
            ((lnt_bf16 *)s->b[HALF][i].begin)[j] = lnt_f32_to_bf16(w);
            s->r.param[i][j] = rounded ? lnt_bf16_to_f32(lnt_f32_to_bf16(w)) : w;
            s->r.d_param[i][j] = g;
        }
        s->k.param[i] = (lnt_param_view){s->b[MASTER][i].device, s->b[policy == LINNET_BF16 ? HALF : MASTER][i].device, policy,
                                         NULL, s->b[GRAD][i].device, false, q->count};
    }
}

static void make_ids(setting *s, int at, lnt_rng *rng)
{
    const int64_t T = s->k.tokens;
    s->id = lnt_calloc((size_t)(T + 1) * sizeof *s->id);
    for (int64_t t = 0; t < T; t++) s->id[t] = (int32_t)lnt_rng_below(rng, (uint64_t)s->o->a.vocab);
    for (int64_t t = 0; t < T && !s->o->first_id; t += 4) s->id[t] = -1 - (int32_t)t;
    s->ids = make_buffer(s->c, (size_t)T * 4);
    memcpy(s->ids.begin, s->id, (size_t)T * 4);
    s->k.in[at] = (lnt_tensor){s->ids.device, LINNET_I32, T, 1, 1, 1};
    s->r.id = s->id;
}

/* `mix`: bit i makes input i float32 under every policy. False when the operator does not take that. */
static bool make(setting *s, linnet_context *c, const op_case *o, int64_t T, lnt_dtype policy, int mix, bool accumulate)
{
    *s = (setting){.o = o, .c = c, .policy = policy};
    snprintf(s->who, sizeof s->who, "%s, %lld tokens, %s, mix %d%s", o->name, (long long)T, lnt_dtype_name(policy), mix, accumulate ? ", added" : "");
    OK(c, lnt_program_create(c, &s->p));
    lnt_buf in[3] = {{0}, {0}, {0}};
    const int id_at = !o->ids ? -1 : o->first_id ? 0 : o->n_in;
    for (int i = 0; i < o->n_in; i++) {
        if (is_row(o, i)) {
            in[i] = o->alone ? LNT_NO_BUF : lnt_row_param(s->p, "row", 1, o->cols[i], normal);
            continue;
        }
        lnt_out_spec spec = {o->cols[i], i ? 1 : o->heads, o->f32_in || mix >> i & 1};
        in[i] = lnt_add_node(s->p, &source_op, NULL, 0, in, 0, NULL, 1, &spec)->out[0];
    }
    if (o->ids) in[id_at] = lnt_external(s->p, "ids");
    const lnt_buf out = o->build(s->p, in, &o->a);
    if (!out.id && mix) {
        lnt_program_destroy(s->p);
        return false;
    }
    if (!out.id) fail_msg("%s: %s", s->who, (lnt_program_finish(s->p), linnet_error_message(c)));
    s->node = lnt_node_at(s->p, lnt_node_count(s->p) - 1);
    if (o->pair) s->first = lnt_node_at(s->p, lnt_node_count(s->p) - 2);

    lnt_rng rng = lnt_rng_make(7, (uint64_t)T);
    lnt_call *k = &s->k;
    ref *r = &s->r;
    const int64_t cu[3][5] = {{0, T}, {0, T / 3, T / 3, T}, {0, 0, 2 * T / 3, T, T}}, out_cols = lnt_cols(s->p, out);
    memcpy(s->cu, cu[T % 3], sizeof cu[0]);
    s->cuts = make_buffer(c, sizeof s->cu);
    memcpy(s->cuts.begin, s->cu, sizeof s->cu);
    *r = o->a;
    *k = (lnt_call){.c = c, .node = s->node, .attr = s->node->attr, .tokens = T, .n_seq = (int64_t[]){1, 3, 4}[T % 3], .cu = s->cu,
                    .cu_device = s->cuts.device, .training = true, .loss_scale = 0.5};
    r->T = T, r->heads = o->heads, r->n_seq = k->n_seq, r->cu = s->cu, r->out_cols = out_cols;
    const int64_t out_rows = lnt_rows(s->p, out, T);
    const lnt_dtype type = lnt_program_value(s->p, out)->f32 ? LINNET_F32 : policy;
    k->out[0] = tensor(s, &s->b[OUT][0], out_rows, out_cols, lnt_heads(s->p, out), type);
    k->d_out[0] = tensor(s, &s->b[D_OUT][0], out_rows, out_cols, lnt_heads(s->p, out), type);
    r->out = doubles(out_rows * out_cols), r->d_out = doubles(out_rows * out_cols);
    fill(&k->d_out[0], &s->b[D_OUT][0], r->d_out, &rng, false);
    if (s->node->op->backward_is_forward)
        for (int64_t t = 0; t < T; t++) r->d_out[t] = k->loss_scale;
    for (int i = 0; i < o->n_in; i++) {
        const lnt_dtype t = o->f32_in || mix >> i & 1 || is_row(o, i) ? LINNET_F32 : policy;
        const int64_t rows = rows_in(o, i, T);
        r->in_cols[i] = o->cols[i];
        r->in[i] = doubles(rows * o->cols[i]), r->d_in[i] = doubles(rows * o->cols[i]);
        if (i + 1 == o->absent) continue;
        k->in[i] = tensor(s, &s->b[IN][i], rows, o->cols[i], i ? 1 : o->heads, t);
        k->d_in[i] = tensor(s, &s->b[D_IN][i], rows, o->cols[i], i ? 1 : o->heads, t);
        fill(&k->in[i], &s->b[IN][i], r->in[i], &rng, is_positive(o, i));
        k->accumulate[i] = accumulate;
        if (accumulate) fill(&k->d_in[i], &s->b[D_IN][i], r->d_in[i], &rng, false);
    }
    if (o->ids) make_ids(s, id_at, &rng);
    make_params(s, policy, &rng);
    const lnt_shape shape = {.tokens = T, .n_seq = k->n_seq, .cu = s->cu, .training = true, .dtype = policy, .threads = 1, .device = c->device};
    size_t need[2] = {0, 0};
    for (int b = 0; b < 2; b++)
        for (const lnt_node *n = s->node; n; n = n == s->first ? NULL : s->first) {
            const size_t bytes = n->op->workspace ? n->op->workspace(n, &shape, b) : 0;
            if (bytes > need[b]) need[b] = bytes;
        }
    s->work = make_buffer(c, need[0] > need[1] ? need[0] : need[1]);
    k->work = s->work.device, k->work_size = s->work.bytes;
    if (s->first) make_middle(s, T, policy, &rng);
    return true;
}

static buffer *all_buffers(setting *s, int i)
{
    return i < 3 * KINDS ? &s->b[i / 3][i % 3] : i == 3 * KINDS ? &s->ids : i == 3 * KINDS + 1 ? &s->cuts : i == 3 * KINDS + 2 ? &s->work : NULL;
}

static void drop(setting *s)
{
    buffer *b;
    for (int i = 0; (b = all_buffers(s, i)); i++) free_buffer(s->c, b);
    lnt_free(s->r.out);
    lnt_free(s->r.d_out);
    lnt_free(s->r.middle);
    lnt_free(s->r.d_middle);
    lnt_free(s->r.d_middle_all);
    lnt_free(s->id);
    for (int i = 0; i < 3; i++) lnt_free(s->r.in[i]), lnt_free(s->r.d_in[i]);
    for (int i = 0; i < 2; i++) {
        lnt_free(s->r.param[i]);
        lnt_free(s->r.d_param[i]);
    }
    lnt_program_destroy(s->p);
}

static void run_pair(setting *s)
{
    const lnt_pair *pair = s->node->op->pair;
    lnt_call a, b;
    split_pair(&s->k, s->first, s->node, s->middle, s->d_middle, s->there, &a, &b);
    if (s->together) {
        OK(s->c, pair->forward(&a, &b));
        OK(s->c, pair->backward(&a, &b));
        return;
    }
    OK(s->c, a.node->op->forward(&a));
    OK(s->c, b.node->op->forward(&b));
    OK(s->c, b.node->op->backward(&b));
    OK(s->c, a.node->op->backward(&a));
}

static void run(setting *s)
{
    buffer *b;
    for (int i = 0; (b = all_buffers(s, i)); i++)
        if (b->begin) send(s->c, b);
    if (s->first)
        run_pair(s);
    else {
        if (!s->node->op->backward_is_forward) OK(s->c, s->node->op->forward(&s->k));
        OK(s->c, s->node->op->backward(&s->k));
    }
    for (int i = 0; (b = all_buffers(s, i)); i++)
        if (b->begin) receive(s->c, b, s->who);
    const linnet_status status = lnt_device_check(s->c);
    if (status != LINNET_OK) fail_msg("%s: %s", s->who, linnet_error_message(s->c));
}

static double compare(const setting *s, const char *what, const void *got, lnt_dtype t, const double *want, int64_t n)
{
    const double limit = s->policy == LINNET_F32 ? 1e-5 : 5e-3;
    double error = 0, square = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = lnt_load_element(got, t, i) - want[i];
        if (isnan(d)) fail_msg("%s: %s is NaN at %lld of %lld", s->who, what, (long long)i, (long long)n);
        error += d * d, square += want[i] * want[i], largest = fabs(d) > largest ? fabs(d) : largest;
    }
    if (largest <= 1e-7) return 0;
    if (!(sqrt(error) <= limit * sqrt(square)))
        fail_msg("%s: %s has a relative error of %.2e, expected at most %.0e", s->who, what, sqrt(error / square), limit);
    return sqrt(error / square);
}

static double most_error[2];

static void compare_all(const setting *s)
{
    static const char *const names[2][3] = {{"d_in 0", "d_in 1", "d_in 2"}, {"d_param 0", "d_param 1"}};
    const lnt_call *k = &s->k;
    double most = compare(s, "output", s->b[OUT][0].now, k->out[0].dtype, s->r.out, k->out[0].rows * s->r.out_cols);
    for (int i = 0; i < s->o->n_in; i++)
        if (k->d_in[i].data)
            most = fmax(most, compare(s, names[0][i], s->b[D_IN][i].now, k->d_in[i].dtype, s->r.d_in[i], k->d_in[i].rows * s->o->cols[i]));
    if (s->middle.data) most = fmax(most, compare(s, "middle", s->b[MIDDLE][0].now, s->middle.dtype, s->r.middle, k->tokens * s->middle.cols));
    if (s->middle.data)
        most = fmax(most, compare(s, "d_middle", s->b[MIDDLE][1].now, s->d_middle.dtype, s->r.d_middle_all, k->tokens * s->middle.cols));
    for (int i = 0; i < params_of(s); i++)
        if (k->param[i].grad) most = fmax(most, compare(s, names[1][i], s->b[GRAD][i].now, LINNET_F32, s->r.d_param[i], k->param[i].count));
    double *seen = &most_error[s->policy != LINNET_F32];
    *seen = fmax(*seen, most);
}

static void same_bits(setting *s)
{
    buffer before[KINDS][3];
    memcpy(before, s->b, sizeof before);
    for (int i = 0; i < KINDS; i++)
        for (int j = 0; j < 3; j++)
            if (s->b[i][j].begin) s->b[i][j].now = lnt_alloc(s->b[i][j].bytes + GUARD);
    run(s);
    for (int i = 0; i < KINDS; i++)
        for (int j = 0; j < 3; j++) {
            if (!s->b[i][j].begin) continue;
            if (memcmp(before[i][j].now, s->b[i][j].now, s->b[i][j].bytes)) fail_msg("%s: other bits the second time", s->who);
            lnt_free(before[i][j].now);
        }
}

static void check(linnet_context *c, const op_case *o, int64_t T, lnt_dtype policy, int mix, bool accumulate)
{
    setting s;
    if (!make(&s, c, o, T, policy, mix, accumulate)) return;
    run(&s);
    o->forward(&s.r);
    o->backward(&s.r);
    compare_all(&s);
    same_bits(&s);
    drop(&s);
}

/* ---- tests ------------------------------------------------------------------------------------------------------------------------------------- */

static void kernels(void **state)
{
    (void)state;
    static const int64_t lengths[] = {0, 1, 5, 64, 101};
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    for (int i = 0; i < ALL; i++) {
        const op_case *o = case_at(i);
        if (!wanted(o->name)) continue;
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                check(c, o, lengths[l], LINNET_F32, 0, accumulate);
                for (int mix = 0; mix < 1 << o->n_in; mix++) check(c, o, lengths[l], LINNET_BF16, mix, accumulate);
            }
        /* Many blocks of rows, so that sums over tokens really have parts. */
        if (o->a.vocab < 1000 && o->cols[0] < 1000) {
            check(c, o, 2100, LINNET_F32, 0, false);
            check(c, o, 1300, LINNET_BF16, 0, true);
            if (o->pair && o->n_in > 1) check(c, o, 1300, LINNET_BF16, 1, false); /* a float32 stream and what is added to it */
        }
    }
    print_message("largest relative errors: float32 %.2g, bf16 %.2g\n", most_error[0], most_error[1]);
    linnet_context_destroy(c);
}

/* A tensor of the call as columns LEFT .. of wider rows, the others 0xff; and what has come out of it to the front again. */
enum { LEFT = 8, RIGHT = 16 };
static void widen(setting *s, buffer *b, lnt_tensor *t)
{
    const size_t size = lnt_dtype_size(t->dtype), row = (size_t)t->cols * size, pitch = row + (LEFT + RIGHT) * size;
    buffer wide = make_buffer(s->c, (size_t)t->rows * pitch);
    for (int64_t r = 0; r < t->rows; r++) memcpy(wide.begin + (size_t)r * pitch + LEFT * size, b->begin + (size_t)r * row, row);
    free_buffer(s->c, b);
    *b = wide, t->data = (char *)wide.device + LEFT * size, t->ld = t->cols + LEFT + RIGHT;
}
static void narrow(const setting *s, buffer *b, const lnt_tensor *t)
{
    const size_t size = lnt_dtype_size(t->dtype), row = (size_t)t->cols * size, pitch = (size_t)t->ld * size;
    for (int64_t r = 0; r < t->rows; r++)
        for (size_t i = 0; i < pitch; i++)
            if ((i < LEFT * size || i >= LEFT * size + row) && b->now[(size_t)r * pitch + i] != 0xff)
                fail_msg("%s: row %lld was written beside the slice", s->who, (long long)r);
    for (int64_t r = 0; r < t->rows; r++) memmove(b->now + (size_t)r * row, b->now + (size_t)r * pitch + LEFT * size, row);
}

/* A first input that may be a slice: read, and its gradient written, between columns of others. */
static void slices(void **state)
{
    (void)state;
    int read = 0;
    linnet_context *c = wanted("slices") ? make_cuda_context() : NULL;
    if (!c) skip();
    for (int i = 0; i < ALL; i++)
        for (int variant = 0; variant < 8; variant++) {
            setting s;
            const op_case *o = case_at(i);
            if (o->pair || o->n_in < 1 || !make(&s, c, o, variant & 1 ? 300 : 37, variant & 2 ? LINNET_BF16 : LINNET_F32, 0, variant & 4)) continue;
            if ((s.node->op->strided & LNT_NEEDS_IN0) && s.k.in[0].data && (o->heads == 1 || !s.node->n_param)) {
                widen(&s, &s.b[IN][0], &s.k.in[0]);
                widen(&s, &s.b[D_IN][0], &s.k.d_in[0]);
                run(&s);
                narrow(&s, &s.b[D_IN][0], &s.k.d_in[0]);
                o->forward(&s.r);
                o->backward(&s.r);
                compare_all(&s);
                read++;
            }
            drop(&s);
        }
    assert_true(read >= 40);
    linnet_context_destroy(c);
}

static const op_case *find(const char *name)
{
    for (int i = 0; i < ALL; i++)
        if (!strcmp(case_at(i)->name, name)) return case_at(i);
    fail_msg("no case %s", name);
    return NULL;
}

/* An absent gradient changes nothing in the others; an absent d_out makes zeros. */
static void absent(void **state)
{
    (void)state;
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    for (int i = 0; i < ALL; i++) {
        const op_case *o = case_at(i);
        if (!wanted(o->name) || o->a.vocab >= 1000) continue;
        setting s;
        assert_true(make(&s, c, o, 64, LINNET_BF16, 0, false));
        o->forward(&s.r);
        o->backward(&s.r);
        for (int skip = 0; skip < o->n_in + params_of(&s); skip++) {
            const int q = skip - o->n_in; /* a parameter */
            if (q < 0 && !s.k.d_in[skip].data) continue;
            void **gone = q < 0 ? &s.k.d_in[skip].data : (void **)&s.k.param[q].grad, *kept = *gone;
            *gone = NULL;
            run(&s);
            compare_all(&s);
            const buffer *b = q < 0 ? &s.b[D_IN][skip] : &s.b[GRAD][q];
            assert_memory_equal(b->begin, b->now, b->bytes);
            *gone = kept;
        }
        if (!s.node->op->backward_is_forward && (!s.first || s.together)) {
            s.k.d_out[0].data = NULL;
            run(&s);
            for (int j = 0; j < o->n_in; j++)
                for (size_t e = 0; e < s.b[D_IN][j].bytes; e++) assert_int_equal(s.b[D_IN][j].now[e], 0);
            for (int j = 0; j < params_of(&s); j++) assert_memory_equal(s.b[GRAD][j].begin, s.b[GRAD][j].now, s.b[GRAD][j].bytes);
        }
        drop(&s);
    }
    linnet_context_destroy(c);
}

static linnet_status forward_of(const setting *s, const lnt_call *k)
{
    if (!s->first) return s->node->op->forward(k);
    lnt_call a, b;
    split_pair(k, s->first, s->node, s->middle, s->d_middle, s->there, &a, &b);
    return s->node->op->pair->forward(&a, &b);
}

/* A sequence fed in pieces through the state gives the bits of one run; sequence 0 of two has its own rows or none. */
static void conv_pieces(linnet_context *c, const char *name, lnt_dtype policy)
{
    static const int64_t parts[] = {1, 2, 1, 5, 0, 40, 15};
    enum { ROWS = 64 };
    setting s;
    assert_true(make(&s, c, find(name), ROWS, policy, 0, false));
    const int64_t cols = s.o->cols[0], keep = s.r.size ? s.r.size - 1 : 1; /* a shift keeps one row */
    const size_t row = (size_t)cols * lnt_dtype_size(policy), bytes = (size_t)(keep * cols) * 4;
    s.cu[0] = 0, s.cu[1] = ROWS, s.k.n_seq = 1;
    memcpy(s.cuts.begin, s.cu, sizeof s.cu);
    run(&s);
    char *whole = lnt_alloc(ROWS * row);
    memcpy(whole, s.b[OUT][0].now, ROWS * row);
    buffer memory = make_buffer(c, 2 * bytes);
    memset(memory.begin, 0, 2 * bytes);
    send(c, &memory);
    send(c, &s.b[OUT][0]);
    lnt_call k = s.k;
    int64_t at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const int64_t piece[3] = {0, 0, parts[i]};
        lnt_to_device(c, s.cuts.device, piece, sizeof piece);
        k.tokens = parts[i], k.n_seq = 2, k.cu = piece, k.state = memory.device, k.state_stride = (int64_t)bytes, k.training = false;
        k.in[0].data = (char *)s.k.in[0].data + (size_t)at * row, k.in[0].rows = parts[i];
        k.out[0].data = (char *)s.k.out[0].data + (size_t)at * row, k.out[0].rows = parts[i];
        OK(c, forward_of(&s, &k));
        at += parts[i];
    }
    assert_int_equal(at, ROWS);
    receive(c, &s.b[OUT][0], s.who);
    receive(c, &memory, s.who);
    assert_memory_equal(whole, s.b[OUT][0].now, ROWS * row);
    for (size_t i = 0; i < bytes; i++) assert_int_equal(memory.now[i], 0);
    for (int64_t j = 0; j < keep; j++)
        for (int64_t e = 0; e < cols; e++)
            assert_true(((float *)(memory.now + bytes))[j * cols + e] ==
                        (float)lnt_load_element(s.b[IN][0].begin, policy, (ROWS - keep + j) * cols + e));
    free_buffer(c, &memory);
    lnt_free(whole);
    drop(&s);
}

/* So many rows that a thread has more than a few of them, and walks down those far from ends: 13 forward and more than 100 back, of one sequence, or
 * of three. */
static void conv_runs(void **state)
{
    (void)state;
    static const char *const names[] = {"conv of 8 columns", "conv bias of 8 columns", "conv of 2 taps", "conv and l2norm of 1 x 128",
                                        "conv and l2norm of 32 x 4"};
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (int64_t T = 13002; wanted(names[n]) && T <= 13003; T++) {
            check(c, find(names[n]), T, LINNET_F32, 0, T % 2);
            for (int accumulate = 0; accumulate < 2; accumulate++) check(c, find(names[n]), T, LINNET_BF16, 0, accumulate);
        }
    linnet_context_destroy(c);
}

static void conv_state(void **state)
{
    (void)state;
    static const char *const names[] = {"conv bias silu",       "conv bias",          "conv silu",
                                        "conv",                 "conv of one",        "conv of 32",
                                        "conv of 2056 columns", "conv of 68 columns", "conv of 2 taps",
                                        "token shift",          "token shift of 2056", "conv and l2norm of 5 x 128",
                                        "conv and l2norm of 4 x 64"};
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (int bf16 = 0; wanted(names[n]) && bf16 < 2; bf16++) conv_pieces(c, names[n], bf16 ? LINNET_BF16 : LINNET_F32);
    linnet_context_destroy(c);
}

/* A gradient that is stored instead of added: what was there means nothing. */
static void stored(void **state)
{
    (void)state;
    linnet_context *c = wanted("stored") ? make_cuda_context() : NULL;
    if (!c) skip();
    int stores = 0;
    for (int i = 0; i < ALL; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            setting s;
            assert_true(make(&s, c, case_at(i), 101, bf16 ? LINNET_BF16 : LINNET_F32, 0, false));
            if (s.node->op->stores_first) {
                memset(s.b[GRAD][0].begin, 0xff, s.b[GRAD][0].bytes);
                memset(s.r.d_param[0], 0, (size_t)s.k.param[0].count * sizeof(double));
                s.k.param[0].set = true;
                run(&s);
                s.o->forward(&s.r);
                s.o->backward(&s.r);
                compare_all(&s);
                stores++;
            }
            drop(&s);
        }
    assert_true(stores >= 20);
    linnet_context_destroy(c);
}

/* Positions go on where each sequence left off, and stay exact far out. */
static void rotary_positions(void **state)
{
    (void)state;
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    for (int i = 0; i < 2; i++) {
        const int64_t cu[4] = {0, 30, 30, 100}, position[3] = {7, 3, 1000000};
        setting s;
        assert_true(make(&s, c, find(i ? "rotary of 128" : "rotary"), 100, LINNET_F32, 0, false));
        buffer at = make_buffer(c, sizeof position);
        memcpy(at.begin, position, sizeof position);
        send(c, &at);
        memcpy(s.cu, cu, sizeof cu);
        memcpy(s.cuts.begin, cu, sizeof cu);
        s.k.n_seq = s.r.n_seq = 3, s.k.position = s.r.position = position, s.k.position_device = at.device;
        run(&s);
        s.o->forward(&s.r);
        s.o->backward(&s.r);
        compare_all(&s);
        free_buffer(c, &at);
        drop(&s);
    }
    linnet_context_destroy(c);
}

/* Frequent ids whose tokens fill many chunks, rare ones between them, and ids that do not exist: those give zeros and no gradient. */
static void embedding_ids(void **state)
{
    (void)state;
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    const op_case o = {.name = "frequent ids", .build = build_embedding,
                       BOTH(embedding),
                       .ids = true, .first_id = true, .heads = 1, .a = {.size = 36, .vocab = 300, .scale = 2}};
    for (int kind = 0; kind < 3; kind++) {
        enum { ROWS = 5000 };
        setting s;
        assert_true(make(&s, c, &o, ROWS, LINNET_F32, 0, false));
        lnt_rng rng = lnt_rng_make(3, (uint64_t)kind);
        for (int64_t t = 0; t < ROWS; t++)
            s.id[t] = kind == 0 ? 299 : (int32_t)(lnt_rng_below(&rng, 3) ? 17 + 128 * (lnt_rng_below(&rng, 2) & 1) : lnt_rng_below(&rng, 300));
        memcpy(s.ids.begin, s.id, ROWS * 4);
        if (kind == 2)
            for (int64_t t = 0; t < ROWS; t += 7) ((int32_t *)s.ids.begin)[t] = t % 2 ? -5 : 300 + (int32_t)t;
        run(&s);
        o.forward(&s.r);
        for (int64_t t = 0; t < ROWS && kind == 2; t += 7)
            for (int64_t i = 0; i < 36; i++) s.r.out[t * 36 + i] = s.r.d_out[t * 36 + i] = 0;
        o.backward(&s.r);
        compare_all(&s);
        same_bits(&s);
        drop(&s);
    }
    linnet_context_destroy(c);
}

/* Logits of a vocabulary in several blocks. */
static void loss_blocks(void **state)
{
    (void)state;
    linnet_context *c = wanted("loss blocks") ? make_cuda_context() : NULL;
    if (!c) skip();
    const op_case large = {
        .name = "large vocabulary", .build = build_loss, BOTH(loss), .n_in = 1, .cols = {4}, .heads = 1, .ids = true, .a = {.vocab = 400003}};
    for (int bf16 = 0; bf16 < 2; bf16++) {
        setting s;
        assert_true(make(&s, c, &large, 800, bf16 ? LINNET_BF16 : LINNET_F32, 0, true));
        assert_true(s.work.bytes < (size_t)800 * 400003 * (bf16 ? 6 : 4));
        run(&s);
        large.forward(&s.r);
        large.backward(&s.r);
        compare_all(&s);
        same_bits(&s);
        drop(&s);
    }
    linnet_context_destroy(c);
}

/* ---- products ------------------------------------------------------------------------------------------------------------------ */

typedef struct {
    int64_t M, N, K;
} product;

static void check_product(linnet_context *c, product q, int trans, lnt_dtype ab, lnt_dtype out, bool add, int64_t pad)
{
    const bool trans_a = trans & 1, trans_b = trans & 2;
    lnt_gemm_args g = {.trans_a = trans_a, .trans_b = trans_b, .M = q.M, .N = q.N, .K = q.K, .alpha = 1, .beta = add, .ab = ab, .c = out,
                       .lda = (trans_a ? q.M : q.K) + pad, .ldb = (trans_b ? q.K : q.N) + pad, .ldc = q.N + pad};
    const int64_t rows_a = trans_a ? q.K : q.M, rows_b = trans_b ? q.N : q.K;
    buffer a = make_buffer(c, (size_t)(rows_a * g.lda) * lnt_dtype_size(ab)), b = make_buffer(c, (size_t)(rows_b * g.ldb) * lnt_dtype_size(ab)),
           y = make_buffer(c, (size_t)(q.M * g.ldc) * lnt_dtype_size(out));
    lnt_rng r = lnt_rng_make(11, (uint64_t)(q.M * 1000 + q.N));
    for (int64_t i = 0; i < rows_a * g.lda; i++) lnt_store_element(a.begin, ab, i, lnt_rng_normal(&r));
    for (int64_t i = 0; i < rows_b * g.ldb; i++) lnt_store_element(b.begin, ab, i, lnt_rng_normal(&r));
    for (int64_t i = 0; i < q.M * g.ldc; i++)
        if (add || i % g.ldc >= q.N) lnt_store_element(y.begin, out, i, lnt_rng_normal(&r));
    char who[160];
    snprintf(who, sizeof who, "product %lld x %lld x %lld, trans %d, %s to %s%s, pad %lld", (long long)q.M, (long long)q.N, (long long)q.K, trans,
             lnt_dtype_name(ab), lnt_dtype_name(out), add ? ", added" : "", (long long)pad);
    unsigned char *first = lnt_alloc(y.bytes);
    for (int time = 0; time < 2; time++) {
        send(c, &a), send(c, &b), send(c, &y);
        g.a = a.device, g.b = b.device, g.C = y.device;
        if (lnt_gemm(c, &g) != LINNET_OK) fail_msg("%s: %s", who, linnet_error_message(c));
        receive(c, &y, who);
        if (!time) memcpy(first, y.now, y.bytes);
    }
    if (memcmp(first, y.now, y.bytes)) fail_msg("%s: other bits the second time", who);
    double error = 0, square = 0;
    for (int64_t i = 0; i < q.M; i++)
        for (int64_t j = 0; j < g.ldc; j++) {
            const int64_t at = i * g.ldc + j;
            if (j >= q.N) {
                if (lnt_load_element(y.now, out, at) != lnt_load_element(y.begin, out, at)) fail_msg("%s: written between rows", who);
                continue;
            }
            double s = add ? lnt_load_element(y.begin, out, at) : 0;
            for (int64_t k = 0; k < q.K; k++)
                s += lnt_load_element(a.begin, ab, trans_a ? k * g.lda + i : i * g.lda + k) *
                     lnt_load_element(b.begin, ab, trans_b ? j * g.ldb + k : k * g.ldb + j);
            const double d = lnt_load_element(y.now, out, at) - s;
            error += d * d, square += s * s;
        }
    const double limit = out == LINNET_F32 ? 2e-6 : 4e-3;
    if (!(sqrt(error) <= limit * sqrt(square))) fail_msg("%s: relative error %.2e, expected at most %.0e", who, sqrt(error / square), limit);
    lnt_free(first);
    free_buffer(c, &a);
    free_buffer(c, &b);
    free_buffer(c, &y);
}

static void products(void **state)
{
    (void)state;
    static const product all[] = {{1, 1, 1},     {1, 64, 128}, {1, 37, 129}, {3, 40, 64},  {8, 70, 256},  {7, 33, 31},   {12, 96, 640},
                                  {16, 50, 72},  {17, 19, 23}, {64, 64, 64}, {100, 8, 96}, {200, 3, 100}, {130, 16, 64}, {40, 48, 0},
                                  {129, 65, 33}, {5, 7, 0},    {33, 1, 5},   {2, 300, 1032}, {256, 128, 512}};
    linnet_context *c = wanted("products") ? make_cuda_context() : NULL;
    if (!c) skip();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int trans = 0; trans < 4; trans++)
            for (int types = 0; types < 3; types++)
                for (int add = 0; add < 2; add++)
                    for (int64_t pad = 0; pad <= 8; pad += pad ? 5 : 3)
                        check_product(c, all[i], trans, types ? LINNET_BF16 : LINNET_F32, types == 2 ? LINNET_BF16 : LINNET_F32, add, pad);
    linnet_context_destroy(c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels),          cmocka_unit_test(absent),        cmocka_unit_test(conv_runs),   cmocka_unit_test(conv_state),
        cmocka_unit_test(rotary_positions), cmocka_unit_test(embedding_ids), cmocka_unit_test(loss_blocks), cmocka_unit_test(products),
        cmocka_unit_test(stored),           cmocka_unit_test(slices),
    };
    if (argc > 1) only = argv[1];
    return exit_status(cmocka_run_group_tests(tests, NULL, NULL));
}

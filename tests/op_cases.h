/* The operators of ops/ and small settings of them, as a mixer would build them: what test_ops.c and test_ops_cuda.c run. */
#ifndef TESTS_OP_CASES_H
#define TESTS_OP_CASES_H

#include "reference_ops.h"

typedef struct {
    const char *name;
    lnt_buf (*build)(lnt_program *p, const lnt_buf *in, const ref *a);
    ref_function *forward, *backward;
    int n_in;                  /* buffers of floats; with `ids`, one more of int32 comes last (first for the embedding) */
    int64_t cols[3];
    int32_t heads;
    bool ids, first_id;
    bool positive;             /* inputs in (0, 1) */
    bool f32_in;               /* inputs that are float32 under every policy */
    bool pair;                 /* two nodes, in one call where that fits */
    bool row;                  /* the last input is one fixed row, float32 */
    bool alone;                /* all inputs are (there is one) */
    int absent;                /* input absent - 1 is; 0: none */
    ref a;                     /* attributes */
} op_case;

/* Input i is one fixed row, and the rows it has. */
static inline bool is_row(const op_case *o, int i) { return o->alone || (o->row && i == o->n_in - 1); }
static inline int64_t rows_in(const op_case *o, int i, int64_t tokens) { return is_row(o, i) ? 1 : tokens; }
static inline bool is_positive(const op_case *o, int i) { return o->positive && (!o->row || is_row(o, i)); }

/* ---- the operators, as a mixer would build them --------------------------------------------------------------------------------------- */

static const lnt_init normal = {LNT_INIT_NORMAL, 1, 0};
static lnt_buf build_linear(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_linear(p, in[0], "w", a->size); }
static lnt_buf build_linear_bias(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_linear_bias(p, in[0], "w", a->size); }
static lnt_buf build_head_linear(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_head_linear(p, in[0], "w", a->size, true, normal); }
static lnt_buf build_embedding(lnt_program *p, const lnt_buf *in, const ref *a)
{
    return lnt_embedding(p, in[0], "e", a->vocab, a->size, a->scale, normal, false);
}
static lnt_buf build_rmsnorm(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_rmsnorm(p, in[0], "n", a->eps); }
static lnt_buf build_centred(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_centred_rmsnorm(p, in[0], "n", a->eps); }
static lnt_buf build_centred_sum(lnt_program *p, const lnt_buf *in, const ref *a)
{
    return lnt_centred_rmsnorm(p, lnt_add_buf(p, in[0], in[1]), "n", a->eps);
}
static lnt_buf build_gated(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_gated_rmsnorm(p, in[0], in[1], "n", a->eps, a->act); }
static lnt_buf build_l2norm(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_l2norm(p, in[0], a->eps); }
static lnt_buf build_sumnorm(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_sumnorm(p, in[0], a->eps); }
static lnt_buf build_conv(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_short_conv(p, in[0], "c", (int)a->size, a->act); }
static lnt_buf build_conv_bias(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_short_conv_bias(p, in[0], "c", (int)a->size, a->act); }
static lnt_buf build_activation(lnt_program *p, const lnt_buf *in, const ref *a)
{
    return lnt_affine(p, in[0], a->act, a->scale, a->offset, a->act == LNT_SIGMOID);
}
static lnt_buf build_decay_gate(lnt_program *p, const lnt_buf *in, const ref *a) { return (void)a, lnt_decay_gate(p, in[0]); }
static lnt_buf build_gamma_cap(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_gamma_cap(p, in[0], in[1], a->cap); }
static lnt_buf build_rotary(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_rotary_within(p, in[0], a->base, a->size); }
static lnt_buf build_add(lnt_program *p, const lnt_buf *in, const ref *a) { return (void)a, lnt_add_buf(p, in[0], in[1]); }
static lnt_buf build_mul(lnt_program *p, const lnt_buf *in, const ref *a) { return (void)a, lnt_mul_buf(p, in[0], in[1]); }
static lnt_buf build_glu(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_glu(p, in[0], in[1], a->act); }
static lnt_buf build_clamp(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_clamp(p, in[0], a->low, a->high); }
static lnt_buf build_head_dot(lnt_program *p, const lnt_buf *in, const ref *a) { return (void)a, lnt_head_dot(p, in[0], in[1]); }
static lnt_buf build_softmax(lnt_program *p, const lnt_buf *in, const ref *a) { return (void)a, lnt_softmax(p, in[0]); }
static lnt_buf build_layernorm(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_layernorm(p, in[0], "n", a->eps, true, true); }
static lnt_buf build_weighted_layernorm(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_layernorm(p, in[0], "n", a->eps, true, false); }
static lnt_buf build_plain_layernorm(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_layernorm(p, in[0], "n", a->eps, false, false); }
static lnt_buf build_shift(lnt_program *p, const lnt_buf *in, const ref *a) { return (void)a, lnt_token_shift(p, in[0]); }
static lnt_buf build_last(lnt_program *p, const lnt_buf *in, const ref *a) { return (void)a, lnt_from_last(p, in[0]); }
static lnt_buf build_lerp(lnt_program *p, const lnt_buf *in, const ref *a) { return (void)a, lnt_lerp(p, in[0], in[1], in[2]); }
static lnt_buf build_scale(lnt_program *p, const lnt_buf *in, const ref *a) { return (void)a, lnt_scale_columns(p, in[1], "s", normal); }
static lnt_buf build_add_columns(lnt_program *p, const lnt_buf *in, const ref *a) { return (void)a, lnt_add_columns(p, in[0], "s", normal); }
static lnt_buf build_group_linear(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_group_linear(p, in[0], "w", "b", a->size); }
static lnt_buf build_vector_gate(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_vector_decay_gate(p, in[0], a->low); }
static lnt_buf build_bounded(lnt_program *p, const lnt_buf *in, const ref *a) { return (void)a, lnt_bounded_decay(p, in[0], in[1]); }
static lnt_buf build_bounds(lnt_program *p, const lnt_buf *in, const ref *a)
{
    return (void)in, lnt_decay_bounds(p, "bounds", (int)a->size, a->nu);
}
static lnt_buf build_hedgehog(lnt_program *p, const lnt_buf *in, const ref *a) { return (void)a, lnt_hedgehog(p, in[0]); }
static lnt_buf build_dpfp(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_dpfp(p, in[0], (int)a->nu); }
static lnt_buf build_circular(lnt_program *p, const lnt_buf *in, const ref *a) { return (void)a, lnt_circular(p, in[0]); }
static lnt_buf build_quadratic(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_quadratic(p, in[0], a->eps, a->scale, a->cap); }
static lnt_buf build_loss(lnt_program *p, const lnt_buf *in, const ref *a)
{
    return lnt_lm_loss(p, in[0], in[1], "e.weight", a->vocab, a->cap, normal);
}
static lnt_buf build_logits(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_lm_logits(p, in[0], "e.weight", a->vocab, a->cap, normal); }

static lnt_buf build_rotary_part(lnt_program *p, const lnt_buf *in, const ref *a)
{
    double theta[64];
    const int64_t d = lnt_cols(p, in[0]) / lnt_heads(p, in[0]) - a->rest;
    for (int64_t i = 0; i < d / 2; i++) theta[i] = pow(a->base, -2.0 * (double)i / (double)d) / (double)(1 + i);
    return lnt_rotary_by(p, in[0], d / 2, theta, a->scale);
}
static lnt_buf build_sum_norm(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_rmsnorm(p, lnt_add_buf(p, in[0], in[1]), "n", a->eps); }
static lnt_buf build_conv_norm(lnt_program *p, const lnt_buf *in, const ref *a) { return lnt_l2norm(p, build_conv(p, in, a), a->eps); }

/* The calls of a pair from one of both: inputs are the first's, outputs the second's, parameters the first's before the second's. `middle` and its
 * gradient, which `there` says is added to. */
static inline void split_pair(const lnt_call *k, const lnt_node *first, const lnt_node *second, lnt_tensor middle, lnt_tensor d_middle, bool there,
                              lnt_call *a, lnt_call *b)
{
    *a = *b = *k;
    a->node = first, a->attr = first->attr, b->node = second, b->attr = second->attr;
    a->out[0] = b->in[0] = middle, a->d_out[0] = b->d_in[0] = d_middle, b->accumulate[0] = there;
    b->in[1].data = b->d_in[1].data = NULL;
    for (int i = 0; i < second->n_param; i++) b->param[i] = k->param[first->n_param + i];
}

#define BOTH(f) ref_##f##_forward, ref_##f##_backward
static const op_case cases[] = {
    {.name = "linear", .build = build_linear, BOTH(linear), .n_in = 1, .cols = {50}, .heads = 1, .a = {.size = 33}},
    {.name = "linear to one", .build = build_linear, BOTH(linear), .n_in = 1, .cols = {37}, .heads = 1, .a = {.size = 1}},
    {.name = "linear bias", .build = build_linear_bias, BOTH(linear), .n_in = 1, .cols = {35}, .heads = 1, .a = {.size = 70}},
    {.name = "head linear", .build = build_head_linear, BOTH(head_linear), .n_in = 1, .cols = {39}, .heads = 3, .a = {.size = 10}},
    {.name = "embedding", .build = build_embedding,
     BOTH(embedding),
     .ids = true, .first_id = true, .heads = 1, .a = {.size = 37, .vocab = 11, .scale = 6}},
    {.name = "rmsnorm", .build = build_rmsnorm, BOTH(rmsnorm), .n_in = 1, .cols = {75}, .heads = 1, .a = {.eps = 1e-6}},
    {.name = "rmsnorm per head", .build = build_rmsnorm, BOTH(rmsnorm), .n_in = 1, .cols = {99}, .heads = 3, .a = {.eps = 1e-2}},
    {.name = "centred rmsnorm", .build = build_centred, BOTH(rmsnorm), .n_in = 1, .cols = {99}, .heads = 3, .a = {.eps = 1e-2, .offset = 1}},
    {.name = "gated rmsnorm", .build = build_gated, BOTH(rmsnorm), .n_in = 2, .cols = {60, 60}, .heads = 2, .a = {.eps = 1e-5, .act = LNT_SILU}},
    {.name = "sigmoid rmsnorm", .build = build_gated, BOTH(rmsnorm), .n_in = 2, .cols = {21, 21}, .heads = 1, .a = {.eps = 1e-5, .act = LNT_SIGMOID}},
    {.name = "l2norm", .build = build_l2norm, BOTH(l2norm), .n_in = 1, .cols = {100}, .heads = 2, .a = {.eps = 1e-6}},
    {.name = "l2norm large eps", .build = build_l2norm, BOTH(l2norm), .n_in = 1, .cols = {17}, .heads = 1, .a = {.eps = 3}},
    {.name = "sumnorm", .build = build_sumnorm, BOTH(sumnorm), .n_in = 1, .cols = {66}, .heads = 2, .positive = true, .a = {.eps = 1e-4}},
    {.name = "conv silu", .build = build_conv, BOTH(conv), .n_in = 1, .cols = {133}, .heads = 1, .a = {.size = 4, .act = LNT_SILU}},
    {.name = "conv bias silu", .build = build_conv_bias, BOTH(conv), .n_in = 1, .cols = {136}, .heads = 1, .a = {.size = 4, .act = LNT_SILU}},
    {.name = "conv bias", .build = build_conv_bias, BOTH(conv), .n_in = 1, .cols = {20}, .heads = 1, .a = {.size = 3, .act = LNT_IDENTITY}},
    {.name = "conv bias of 32", .build = build_conv_bias, BOTH(conv), .n_in = 1, .cols = {9}, .heads = 1, .a = {.size = 32, .act = LNT_TANH}},
    {.name = "conv", .build = build_conv, BOTH(conv), .n_in = 1, .cols = {16}, .heads = 1, .a = {.size = 3, .act = LNT_IDENTITY}},
    {.name = "conv of one", .build = build_conv, BOTH(conv), .n_in = 1, .cols = {5}, .heads = 1, .a = {.size = 1, .act = LNT_SILU}},
    {.name = "conv of 32", .build = build_conv, BOTH(conv), .n_in = 1, .cols = {9}, .heads = 1, .a = {.size = 32, .act = LNT_TANH}},
    {.name = "identity", .build = build_activation, BOTH(activation), .n_in = 1, .cols = {37}, .heads = 1, .a = {.act = LNT_IDENTITY, .scale = 2}},
    {.name = "silu", .build = build_activation, BOTH(activation), .n_in = 1, .cols = {37}, .heads = 1, .a = {.act = LNT_SILU, .scale = 1}},
    {.name = "sigmoid", .build = build_activation, BOTH(activation), .n_in = 1, .cols = {5}, .heads = 5, .a = {.act = LNT_SIGMOID, .scale = 2}},
    {.name = "relu", .build = build_activation, BOTH(activation), .n_in = 1, .cols = {37}, .heads = 1, .a = {.act = LNT_RELU, .scale = 1}},
    {.name = "elu + 1", .build = build_activation, BOTH(activation), .n_in = 1, .cols = {37}, .heads = 1, .a = {.act = LNT_ELU1, .scale = 1}},
    {.name = "log sigmoid", .build = build_activation,
     BOTH(activation),
     .n_in = 1, .cols = {37}, .heads = 1, .a = {.act = LNT_LOG_SIGMOID, .scale = 0.0625}},
    {.name = "tanh", .build = build_activation, BOTH(activation), .n_in = 1, .cols = {37}, .heads = 1, .a = {.act = LNT_TANH, .scale = 1}},
    {.name = "gelu", .build = build_activation, BOTH(activation), .n_in = 1, .cols = {37}, .heads = 1, .a = {.act = LNT_GELU, .scale = 1}},
    {.name = "gelu tanh", .build = build_activation, BOTH(activation), .n_in = 1, .cols = {37}, .heads = 1, .a = {.act = LNT_GELU_TANH, .scale = 1}},
    {.name = "squared relu", .build = build_activation,
     BOTH(activation),
     .n_in = 1, .cols = {37}, .heads = 1, .a = {.act = LNT_SQUARED_RELU, .scale = 1}},
    {.name = "exp", .build = build_activation, BOTH(activation), .n_in = 1, .cols = {37}, .heads = 1, .a = {.act = LNT_EXP, .scale = -1}},
    {.name = "softplus", .build = build_activation, BOTH(activation), .n_in = 1, .cols = {37}, .heads = 1, .a = {.act = LNT_SOFTPLUS, .scale = 1}},
    {.name = "1 - exp", .build = build_activation,
     BOTH(activation),
     .n_in = 1, .cols = {37}, .heads = 1, .a = {.act = LNT_ONE_MINUS_EXP, .scale = 1}},
    {.name = "sqrt", .build = build_activation, BOTH(activation),
     .n_in = 1, .cols = {37}, .heads = 1, .positive = true, .a = {.act = LNT_SQRT, .scale = 1}},
    {.name = "reciprocal", .build = build_activation,
     BOTH(activation),
     .n_in = 1, .cols = {37}, .heads = 1, .positive = true, .a = {.act = LNT_RECIPROCAL, .scale = 1}},
    {.name = "affine", .build = build_activation,
     BOTH(activation),
     .n_in = 1, .cols = {37}, .heads = 1, .a = {.act = LNT_SOFTPLUS, .scale = -2, .offset = 0.25}},
    {.name = "decay gate", .build = build_decay_gate, BOTH(decay_gate), .n_in = 1, .cols = {7}, .heads = 1},
    {.name = "gamma cap", .build = build_gamma_cap,
     BOTH(gamma_cap),
     .n_in = 2, .cols = {7, 7}, .heads = 1, .positive = true, .f32_in = true, .a = {.cap = 0.75}},
    {.name = "rotary", .build = build_rotary, BOTH(rotary), .n_in = 1, .cols = {84}, .heads = 3, .a = {.base = 10000}},
    {.name = "rotary within 7", .build = build_rotary, BOTH(rotary), .n_in = 1, .cols = {84}, .heads = 3, .a = {.base = 10000, .size = 7}},
    {.name = "add", .build = build_add, BOTH(add), .n_in = 2, .cols = {31, 31}, .heads = 1},
    {.name = "rotary of a part", .build = build_rotary_part, BOTH(rotary), .n_in = 1, .cols = {99}, .heads = 3,
     .a = {.base = 10000, .rest = 7, .scale = 1.25}},
    {.name = "sum and rmsnorm", .build = build_sum_norm, BOTH(sum_norm), .n_in = 2, .cols = {75, 75}, .heads = 1, .pair = true, .a = {.eps = 1e-5}},
    {.name = "sum and centred rmsnorm", .build = build_centred_sum, BOTH(sum_norm), .n_in = 2, .cols = {75, 75}, .heads = 1, .pair = true,
     .a = {.eps = 1e-5, .offset = 1}},
    {.name = "sum and rmsnorm of 3", .build = build_sum_norm,
     BOTH(sum_norm),
     .n_in = 2, .cols = {48, 48}, .heads = 3, .pair = true, .a = {.eps = 1e-2}},
    {.name = "conv and l2norm", .build = build_conv_norm,
     BOTH(conv_norm),
     .n_in = 1, .cols = {24}, .heads = 3, .pair = true, .a = {.size = 4, .act = LNT_SILU, .eps = 1e-6}},
    {.name = "mul", .build = build_mul, BOTH(mul), .n_in = 2, .cols = {31, 31}, .heads = 1},
    {.name = "mul per head", .build = build_mul, BOTH(mul), .n_in = 2, .cols = {54, 3}, .heads = 3},
    {.name = "swiglu", .build = build_glu, BOTH(glu), .n_in = 2, .cols = {45, 45}, .heads = 1, .a = {.act = LNT_SILU}},
    {.name = "geglu", .build = build_glu, BOTH(glu), .n_in = 2, .cols = {45, 45}, .heads = 1, .a = {.act = LNT_GELU}},
    {.name = "clamp", .build = build_clamp, BOTH(clamp), .n_in = 1, .cols = {37}, .heads = 1, .a = {.low = -0.5, .high = 1}},
    {.name = "head dot", .build = build_head_dot, BOTH(head_dot), .n_in = 2, .cols = {57, 57}, .heads = 3},
    {.name = "softmax", .build = build_softmax, BOTH(softmax), .n_in = 1, .cols = {70}, .heads = 2},
    {.name = "layernorm", .build = build_layernorm, BOTH(layernorm), .n_in = 1, .cols = {75}, .heads = 1, .a = {.eps = 1e-5}},
    {.name = "groupnorm", .build = build_layernorm, BOTH(layernorm), .n_in = 1, .cols = {99}, .heads = 3, .a = {.eps = 1e-2}},
    {.name = "weighted groupnorm", .build = build_weighted_layernorm, BOTH(layernorm), .n_in = 1, .cols = {66}, .heads = 2, .a = {.eps = 1e-6}},
    {.name = "plain layernorm", .build = build_plain_layernorm, BOTH(layernorm), .n_in = 1, .cols = {33}, .heads = 1, .a = {.eps = 1e-6}},
    {.name = "token shift", .build = build_shift, BOTH(shift), .n_in = 1, .cols = {37}, .heads = 1},
    {.name = "from last", .build = build_last, BOTH(last), .n_in = 1, .cols = {37}, .heads = 1},
    {.name = "from last of 64", .build = build_last, BOTH(last), .n_in = 1, .cols = {64}, .heads = 1},
    {.name = "from last of 3", .build = build_last, BOTH(last), .n_in = 1, .cols = {3}, .heads = 1},
    {.name = "from last of one", .build = build_last, BOTH(last), .n_in = 1, .cols = {1}, .heads = 1},
    {.name = "lerp", .build = build_lerp, BOTH(lerp), .n_in = 3, .cols = {37, 37, 37}, .heads = 1},
    {.name = "lerp by a row", .build = build_lerp, BOTH(lerp), .n_in = 3, .cols = {37, 37, 37}, .heads = 1, .row = true, .a = {.row = true}},
    {.name = "three lerps", .build = build_lerp, BOTH(lerp), .n_in = 3, .cols = {37, 37, 111}, .heads = 1},
    {.name = "two lerps by a row", .build = build_lerp, BOTH(lerp), .n_in = 3, .cols = {37, 37, 74}, .heads = 1, .row = true, .a = {.row = true}},
    {.name = "scaled columns", .build = build_scale,
     BOTH(lerp),
     .n_in = 3, .cols = {37, 37, 37}, .heads = 1, .row = true, .absent = 1, .a = {.row = true}},
    {.name = "added columns", .build = build_add_columns,
     BOTH(added),
     .n_in = 3, .cols = {37, 37, 37}, .heads = 1, .row = true, .absent = 2, .a = {.row = true}},
    {.name = "group linear", .build = build_group_linear, BOTH(group_linear), .n_in = 1, .cols = {48}, .heads = 3, .a = {.size = 10}},
    {.name = "vector decay gate", .build = build_vector_gate, BOTH(vector_gate), .n_in = 1, .cols = {60}, .heads = 3, .a = {.size = 20}},
    {.name = "bounded vector gate", .build = build_vector_gate,
     BOTH(vector_gate),
     .n_in = 1, .cols = {38}, .heads = 2, .a = {.size = 19, .low = -5}},
    {.name = "bounded decay", .build = build_bounded, BOTH(bounded), .n_in = 2, .cols = {37, 37}, .heads = 1, .positive = true, .row = true},
    {.name = "decay bounds", .build = build_bounds, BOTH(bounds), .n_in = 1, .cols = {4 * 37}, .heads = 4, .alone = true, .a = {.size = 4, .nu = 37}},
    {.name = "hedgehog", .build = build_hedgehog, BOTH(hedgehog), .n_in = 1, .cols = {38}, .heads = 2},
    {.name = "circular", .build = build_circular, BOTH(circular), .n_in = 1, .cols = {38}, .heads = 2},
    {.name = "quadratic", .build = build_quadratic,
     BOTH(quadratic),
     .n_in = 1, .cols = {34}, .heads = 2, .a = {.eps = 1, .scale = 0.5, .cap = 0.17}},
    {.name = "quadratic without lower degrees", .build = build_quadratic, BOTH(quadratic), .n_in = 1, .cols = {48}, .heads = 3, .a = {.cap = 0.25}},
    {.name = "quadratic of one column", .build = build_quadratic,
     BOTH(quadratic),
     .n_in = 1, .cols = {2}, .heads = 2, .a = {.scale = 1, .cap = 0.5}},
    {.name = "dpfp", .build = build_dpfp, BOTH(dpfp), .n_in = 1, .cols = {42}, .heads = 2, .a = {.nu = 4}},
    {.name = "dpfp of two columns", .build = build_dpfp, BOTH(dpfp), .n_in = 1, .cols = {2}, .heads = 2, .a = {.nu = 5}},
    {.name = "lm loss", .build = build_loss, BOTH(loss), .n_in = 1, .cols = {20}, .heads = 1, .ids = true, .a = {.vocab = 101}},
    {.name = "lm loss softcap", .build = build_loss, BOTH(loss), .n_in = 1, .cols = {20}, .heads = 1, .ids = true, .a = {.vocab = 37, .cap = 5}},
    {.name = "lm logits", .build = build_logits, BOTH(logits), .n_in = 1, .cols = {20}, .heads = 1, .a = {.vocab = 37}},
    {.name = "lm logits softcap", .build = build_logits, BOTH(logits), .n_in = 1, .cols = {20}, .heads = 1, .a = {.vocab = 37, .cap = 5}},
};
enum { CASES = sizeof cases / sizeof *cases };

#endif

/* Building with the plain operators. Each takes buffers of a program and returns a buffer; parameters get the name given, under the current scope,
 * with ".weight" (and ".bias") appended. <op>.c has description and checks, <op>_cpu.c the kernels for every variant, forward beside backward. */
#ifndef LNT_OPS_H
#define LNT_OPS_H

#include "program/program.h"

typedef enum {
    LNT_IDENTITY = 0,
    LNT_SILU,
    LNT_SIGMOID,
    LNT_RELU,
    LNT_ELU1,            /* elu(x) + 1 */
    LNT_LOG_SIGMOID,
    LNT_TANH,
    LNT_GELU,            /* x Phi(x) */
    LNT_GELU_TANH,       /* x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    LNT_SQUARED_RELU,
    LNT_EXP,
    LNT_SOFTPLUS,
    LNT_ONE_MINUS_EXP,   /* 1 - e^x: what a decay of e^x leaves for the input */
    LNT_SQRT,            /* of what is above 0 */
    LNT_RECIPROCAL,      /* 1 / x */
} lnt_act;

/* y = x W^T (+ b): W [out, in] named name.weight. With heads > 1 of `x` and per_head, one [out, cols/heads] map serves every head. */
lnt_buf lnt_linear(lnt_program *p, lnt_buf x, const char *name, int64_t out);
lnt_buf lnt_linear_bias(lnt_program *p, lnt_buf x, const char *name, int64_t out);
lnt_buf lnt_head_linear(lnt_program *p, lnt_buf x, const char *name, int64_t out_per_head, bool bias, lnt_init init);
/* A map for each head: y[h] = x[h] W[:, h]^T + b[h], W [out, cols of x] named name.weight, b [heads, out] named `bias` (NULL: none). RWKV-6. */
lnt_buf lnt_group_linear(lnt_program *p, lnt_buf x, const char *name, const char *bias, int64_t out);

/* The same of fixed rows that are float32 under every policy, which the result is too; W and b begin uniform within in^-1/2. */
lnt_buf lnt_linear_f32(lnt_program *p, lnt_buf x, const char *name, int64_t out, bool bias);

/* ids int32 [tokens] -> [tokens, width], times scale. Ids outside [0, vocab) are refused by the caller before a run. */
lnt_buf lnt_embedding(lnt_program *p, lnt_buf ids, const char *name, int64_t vocab, int64_t width, double scale, lnt_init init, bool decay);

/* x / sqrt(mean(x^2) + eps) * w, over each head's columns (x's heads; 1: the whole row); w is shared by the heads. */
lnt_buf lnt_rmsnorm(lnt_program *p, lnt_buf x, const char *name, double eps);
/* The same with a weight of 1 + w. */
lnt_buf lnt_centred_rmsnorm(lnt_program *p, lnt_buf x, const char *name, double eps);
/* The same without a weight. */
lnt_buf lnt_plain_rmsnorm(lnt_program *p, lnt_buf x, double eps);
/* rmsnorm(x) * act(gate): the norm first, the gate after. Activations up to LNT_TANH. */
lnt_buf lnt_gated_rmsnorm(lnt_program *p, lnt_buf x, lnt_buf gate, const char *name, double eps, lnt_act act);
/* (x - mean(x)) / sqrt(var(x) + eps) w + b over each head's columns: one head is LayerNorm, several are GroupNorm. w and b (name.weight, name.bias,
 * either may be left out) have an element for every column of x. */
lnt_buf lnt_layernorm(lnt_program *p, lnt_buf x, const char *name, double eps, bool weight, bool bias);
/* x / sqrt(sum(x^2) + eps) over each head. */
lnt_buf lnt_l2norm(lnt_program *p, lnt_buf x, double eps);
/* x / (sum(x) + eps) over each head. */
lnt_buf lnt_sumnorm(lnt_program *p, lnt_buf x, double eps);
/* Depthwise causal convolution over time, w [cols,1,size] (the last tap is the current token), then act (up to LNT_TANH). State: the last
 * size-1 inputs of each sequence. */
lnt_buf lnt_short_conv(lnt_program *p, lnt_buf x, const char *name, int size, lnt_act act);
lnt_buf lnt_short_conv_bias(lnt_program *p, lnt_buf x, const char *name, int size, lnt_act act); /* and name.bias [cols], added before act */
/* The row before: y_t = x_{t-1} inside each sequence, zero (or the state: one row a sequence) for its first. */
lnt_buf lnt_token_shift(lnt_program *p, lnt_buf x);
/* Every row of a sequence from its last: y_t = x_last + sines of the place t. For models that are asked for a whole sequence at once: no state. */
lnt_buf lnt_from_last(lnt_program *p, lnt_buf x);
/* a + (b - a) m: m has a row for each of theirs, or one fixed row (lnt_row_param, or what is made of one) for all. m of n times the columns: n of
 * them side by side. lnt_lerps: side by side by `count` fixed rows. At most six. */
lnt_buf lnt_lerp(lnt_program *p, lnt_buf a, lnt_buf b, lnt_buf m);
lnt_buf lnt_lerps(lnt_program *p, lnt_buf a, lnt_buf b, int count, const lnt_buf *m);
/* x m, m alike. */
lnt_buf lnt_scale_by(lnt_program *p, lnt_buf x, lnt_buf m);
/* The same with one fixed row of parameters [cols] named `name`, and x times such a row. */
lnt_buf lnt_lerp_param(lnt_program *p, lnt_buf a, lnt_buf b, const char *name, lnt_init init);
lnt_buf lnt_scale_columns(lnt_program *p, lnt_buf x, const char *name, lnt_init init);
lnt_buf lnt_scale_rows(lnt_program *p, lnt_buf x, lnt_buf m); /* x times m: rows as x has, or one fixed row for all */
lnt_buf lnt_add_rows(lnt_program *p, lnt_buf x, lnt_buf m);   /* x plus m, alike */
lnt_buf lnt_add_columns(lnt_program *p, lnt_buf x, const char *name, lnt_init init); /* x plus a row of parameters [cols] named `name` */
/* A parameter of `rows` x `cols` as one fixed row of `rows` heads: what operators read besides activations. */
lnt_buf lnt_row_param(lnt_program *p, const char *name, int64_t rows, int64_t cols, lnt_init init);
/* act(x) * scale; f32_out keeps the result in float32 under every policy (gates). */
lnt_buf lnt_activation(lnt_program *p, lnt_buf x, lnt_act act, double scale, bool f32_out);
/* act(x) * scale + offset. */
lnt_buf lnt_affine(lnt_program *p, lnt_buf x, lnt_act act, double scale, double offset, bool f32_out);
/* Natural-log decay -exp(A_log) softplus(x + dt_bias), float32; A_log, dt_bias [cols]; x [tokens, heads]. Mamba-2, Gated DeltaNet. */
lnt_buf lnt_decay_gate(lnt_program *p, lnt_buf x);
/* The same for every column of x's heads, A_log [heads], dt_bias [cols]; with lower < 0 lower * sigmoid(exp(A_log) (x + dt_bias)) instead. KDA. */
lnt_buf lnt_vector_decay_gate(lnt_program *p, lnt_buf x, double lower);
/* log(bound + (1 - bound) sigmoid(x)), float32: a decay of at least `bound` (one fixed row, in [0, 1)). HGRN, HGRN2. */
lnt_buf lnt_bounded_decay(lnt_program *p, lnt_buf x, lnt_buf bound);
/* Lower bounds of all layers' decays, one fixed row of `layers` heads, from parameters [layers, cols]: with a softmax over the layers, layer l has
 * the sum of its weights 1 .. l (layer 0: none). A layer takes its slice. */
lnt_buf lnt_decay_bounds(lnt_program *p, const char *name, int layers, int64_t cols);
/* log gamma with the MesaNet cap: g + log(1 - (1-cap) beta^2) (spec of the paper, section 7.2). */
lnt_buf lnt_gamma_cap(lnt_program *p, lnt_buf g, lnt_buf beta, double cap);
/* Rotary position embedding over each head's columns, pairs (i, i + d/2), angle position * base^(-2i/d); positions restart with each sequence. */
lnt_buf lnt_rotary(lnt_program *p, lnt_buf x, double base);
lnt_buf lnt_rotary_within(lnt_program *p, lnt_buf x, double base, int64_t period); /* positions modulo period; 0: as they are */
/* lnt_rotary over the first 2 half columns of each head, with angles theta [half] of one position (copied) and both results times `scale`. */
lnt_buf lnt_rotary_by(lnt_program *p, lnt_buf x, int64_t half, const double *theta, double scale);
/* x within [low, high]. */
lnt_buf lnt_clamp(lnt_program *p, lnt_buf x, double low, double high);
lnt_buf lnt_add_buf(lnt_program *p, lnt_buf a, lnt_buf b);
lnt_buf lnt_mul_buf(lnt_program *p, lnt_buf a, lnt_buf b); /* b may have one column per head of a (a gate per head): broadcast */
/* Each head of x `group` times, copies side by side. */
lnt_buf lnt_repeat_heads(lnt_program *p, lnt_buf x, int group);
/* sum over each head's columns of a b, float32 [tokens, heads]. */
lnt_buf lnt_head_dot(lnt_program *p, lnt_buf a, lnt_buf b);
/* act(gate) * up; with SiLU: */
lnt_buf lnt_glu(lnt_program *p, lnt_buf gate, lnt_buf up, lnt_act act);
lnt_buf lnt_swiglu(lnt_program *p, lnt_buf gate, lnt_buf up);
/* Weights float32 [tokens, experts] of the k experts that each token takes, 0 of others: scores are a softmax of the logits, or sigmoids;
 * renormalised: the k sum to 1; times scale. balance: factor of the gradient that evens loads out (experts.c). */
lnt_buf lnt_route(lnt_program *p, lnt_buf logits, int64_t k, bool sigmoid, bool renormalise, double scale, double balance);
/* The sum of a token's experts' results with those weights: down(act(gate x) up x), or down(act(up x)), of `inner` columns; at most k of a token. */
lnt_buf lnt_experts(lnt_program *p, lnt_buf x, lnt_buf weights, const char *name, int64_t k, int64_t inner, lnt_act act, bool gated);
/* x itself, or a copy when it is a slice: for operators that read no slices. lnt_add_op does this by itself. */
lnt_buf lnt_dense(lnt_program *p, lnt_buf x);
/* Feature maps over each head: softmax([y, -y]) (hedgehog, columns double), and dpfp (nu: columns times 2 nu). */
lnt_buf lnt_softmax(lnt_program *p, lnt_buf x); /* over each head's columns */
lnt_buf lnt_hedgehog(lnt_program *p, lnt_buf y);
lnt_buf lnt_dpfp(lnt_program *p, lnt_buf x, int nu);
/* [sin(x), cos(x)], columns double; and the map of degree 2 whose phi(x).phi(y) is one^2 + linear^2 x.y + square^2 (x.y)^2, with no column of a
 * factor that is 0. */
lnt_buf lnt_circular(lnt_program *p, lnt_buf x);
lnt_buf lnt_quadratic(lnt_program *p, lnt_buf x, double one, double linear, double square);

/* Features of the places 0 .. rows-1, one fixed row each, float32 (implicit_filter.c): the place from 0 to 1, and (cols - 1) / 2 waves. */
lnt_buf lnt_place_features(lnt_program *p, int64_t rows, int64_t cols);
/* Column c of row i times e^{-d_c i / (rows - 1)} + shift, the rates d from `slow` for the first column to `fast` for the last. */
lnt_buf lnt_decay_window(lnt_program *p, lnt_buf x, double slow, double fast, double shift);

/* Mean next-token cross entropy, fused with the output projection `weight` [vocab, width] (a parameter's full name, so that it may be tied): logits
 * are made for a few rows at a time and never all exist. targets int32 [tokens], < 0: no loss there. softcap > 0: logits cap*tanh(z/cap).
 * Out 0: float32 [tokens, 1] loss of every token (0 where ignored). The gradient is that of sum(loss) * loss_scale, loss_scale given at run time. */
lnt_buf lnt_lm_loss(lnt_program *p, lnt_buf x, lnt_buf targets, const char *weight, int64_t vocab, double softcap, lnt_init init);
/* float32 [tokens, vocab]. */
lnt_buf lnt_lm_logits(lnt_program *p, lnt_buf x, const char *weight, int64_t vocab, double softcap, lnt_init init);

#endif

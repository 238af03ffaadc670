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
} lnt_act;

/* y = x W^T (+ b): W [out, in] named name.weight. With heads > 1 of `x` and per_head, one [out, cols/heads] map serves every head. */
lnt_buf lnt_linear(lnt_program *p, lnt_buf x, const char *name, int64_t out);
lnt_buf lnt_linear_bias(lnt_program *p, lnt_buf x, const char *name, int64_t out);
lnt_buf lnt_head_linear(lnt_program *p, lnt_buf x, const char *name, int64_t out_per_head, bool bias, lnt_init init);

/* ids int32 [tokens] -> [tokens, width], times scale. Ids outside [0, vocab) are refused by the caller before a run. */
lnt_buf lnt_embedding(lnt_program *p, lnt_buf ids, const char *name, int64_t vocab, int64_t width, double scale, lnt_init init, bool decay);

/* x / sqrt(mean(x^2) + eps) * w, over each head's columns (x's heads; 1: the whole row); w is shared by the heads. */
lnt_buf lnt_rmsnorm(lnt_program *p, lnt_buf x, const char *name, double eps);
/* rmsnorm(x) * act(gate): the norm first, the gate after. */
lnt_buf lnt_gated_rmsnorm(lnt_program *p, lnt_buf x, lnt_buf gate, const char *name, double eps, lnt_act act);
/* x / sqrt(sum(x^2) + eps) over each head. */
lnt_buf lnt_l2norm(lnt_program *p, lnt_buf x, double eps);
/* x / (sum(x) + eps) over each head. */
lnt_buf lnt_sumnorm(lnt_program *p, lnt_buf x, double eps);
/* Depthwise causal convolution over time, w [cols,1,size] (the last tap is the current token), then act. State: the last size-1 inputs of each
 * sequence. */
lnt_buf lnt_short_conv(lnt_program *p, lnt_buf x, const char *name, int size, lnt_act act);
/* act(x) * scale; f32_out keeps the result in float32 under every policy (gates). */
lnt_buf lnt_activation(lnt_program *p, lnt_buf x, lnt_act act, double scale, bool f32_out);
/* Natural-log decay -exp(A_log) softplus(x + dt_bias), float32; A_log, dt_bias [cols]; x [tokens, heads]. Mamba-2, Gated DeltaNet. */
lnt_buf lnt_decay_gate(lnt_program *p, lnt_buf x);
/* log gamma with the MesaNet cap: g + log(1 - (1-cap) beta^2) (spec of the paper, section 7.2). */
lnt_buf lnt_gamma_cap(lnt_program *p, lnt_buf g, lnt_buf beta, double cap);
/* Rotary position embedding over each head's columns, pairs (i, i + d/2), angle position * base^(-2i/d); positions restart with each sequence. */
lnt_buf lnt_rotary(lnt_program *p, lnt_buf x, double base);
lnt_buf lnt_add_buf(lnt_program *p, lnt_buf a, lnt_buf b);
lnt_buf lnt_mul_buf(lnt_program *p, lnt_buf a, lnt_buf b); /* b may have one column per head of a (a gate per head): broadcast */
/* Each head of x `group` times, copies side by side. */
lnt_buf lnt_repeat_heads(lnt_program *p, lnt_buf x, int group);
/* silu(gate) * up. */
lnt_buf lnt_swiglu(lnt_program *p, lnt_buf gate, lnt_buf up);
/* Feature maps over each head: softmax([y, -y]) (hedgehog, columns double), and dpfp (nu: columns times 2 nu). */
lnt_buf lnt_hedgehog(lnt_program *p, lnt_buf y);
lnt_buf lnt_dpfp(lnt_program *p, lnt_buf x, int nu);

/* Mean next-token cross entropy, fused with the output projection `weight` [vocab, width] (a parameter's full name, so that it may be tied): logits
 * are made for a few rows at a time and never all exist. targets int32 [tokens], < 0: no loss there. softcap > 0: logits cap*tanh(z/cap).
 * Out 0: float32 [tokens, 1] loss of every token (0 where ignored). The gradient is that of sum(loss) * loss_scale, loss_scale given at run time. */
lnt_buf lnt_lm_loss(lnt_program *p, lnt_buf x, lnt_buf targets, const char *weight, int64_t vocab, double softcap, lnt_init init);
/* float32 [tokens, vocab]. */
lnt_buf lnt_lm_logits(lnt_program *p, lnt_buf x, const char *weight, int64_t vocab, double softcap, lnt_init init);

#endif

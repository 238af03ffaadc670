/* A mixture of experts (arXiv 1701.06538): SwiGLUs of which each token takes num_experts_per_tok, by a router; beside them one that all tokens take
 * (arXiv 2401.06066), gated or not. Layers without experts have one SwiGLU of intermediate_size. */
#include "model/kinds.h"

typedef struct {
    lnt_mlp_options size; /* first */
    int64_t num_experts, num_experts_per_tok, expert_size, shared_expert_size, expert_period, expert_offset;
    bool norm_topk_prob, shared_expert_gate;
    int router;
    double routed_scaling_factor, router_aux_loss_coef;
} options;

static const lnt_option keys[] = {
    LNT_MLP_KEYS(4, "2/3 hidden_ratio hidden_size, rounded up"),
    LNT_INT(options, num_experts, 1, 4096, 8, "experts of a layer"),
    LNT_INT(options, num_experts_per_tok, 1, 64, 2, "experts of a token"),
    LNT_MAYBE_INT(options, expert_size, 1, 16 * LNT_MOST_WIDTH, 0, 0, "columns inside an expert; null: as of a layer without"),
    LNT_WORD(options, router, "softmax sigmoid", 0, "scores: a softmax over all experts, or a sigmoid of each"),
    LNT_SWITCH(options, norm_topk_prob, true, "the weights of a token's experts sum to 1"),
    LNT_REAL(options, routed_scaling_factor, 1e-6, 1e6, 1, "factor of those weights"),
    LNT_MAYBE_INT(options, shared_expert_size, 1, 16 * LNT_MOST_WIDTH, 0, 0, "columns of an expert that all tokens take; null: there is none"),
    LNT_SWITCH(options, shared_expert_gate, false, "what that expert makes times sigmoid of one product"),
    LNT_INT(options, expert_period, 1, 1 << 20, 1, "one layer of so many has experts"),
    LNT_INT(options, expert_offset, 0, 1 << 20, 0, "which of them, from 0"),
    LNT_REAL(options, router_aux_loss_coef, 0, 1e3, 0, "weight in training of what evens the experts' loads out; the loss that is shown is without"),
};

static linnet_status check(lnt_ctx *c, const lnt_layer *l)
{
    const options *o = l->options;
    if (o->num_experts_per_tok > o->num_experts)
        return lnt_fail(c, LINNET_EINVAL, "%snum_experts_per_tok is %lld, expected at most num_experts = %lld", l->where,
                        (long long)o->num_experts_per_tok, (long long)o->num_experts);
    if (o->expert_offset >= o->expert_period)
        return lnt_fail(c, LINNET_EINVAL, "%sexpert_offset is %lld, expected less than expert_period = %lld", l->where, (long long)o->expert_offset,
                        (long long)o->expert_period);
    return LINNET_OK;
}

static lnt_buf swiglu(lnt_program *p, const lnt_layer *l, lnt_buf x, int64_t inner)
{
    const lnt_buf gate = lnt_linear(p, x, "gate_proj", inner), up = lnt_linear(p, x, "up_proj", inner); /* in this order, whatever the compiler */
    return lnt_back_linear(p, l, lnt_swiglu(p, gate, up), "down_proj");
}

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x)
{
    const options *o = l->options;
    const int64_t dense = lnt_mlp_width(l, 4, 2, 3), layers = (l->layers + o->expert_period - 1 - o->expert_offset) / o->expert_period;
    if (l->index % o->expert_period != o->expert_offset) return swiglu(p, l, x, dense);
    lnt_buf w = lnt_route(p, lnt_linear(p, x, "gate", o->num_experts), o->num_experts_per_tok, o->router == 1, o->norm_topk_prob,
                          o->routed_scaling_factor, o->router_aux_loss_coef / (double)(layers > 0 ? layers : 1));
    lnt_buf y = lnt_experts(p, x, w, "experts", o->num_experts_per_tok, o->expert_size ? o->expert_size : dense, LNT_SILU, true);
    if (!o->shared_expert_size) return y;
    lnt_push_scope(p, "shared_expert");
    lnt_buf shared = swiglu(p, l, x, o->shared_expert_size);
    lnt_pop_scope(p);
    if (o->shared_expert_gate) shared = lnt_mul_buf(p, shared, lnt_activation(p, lnt_linear(p, x, "shared_expert_gate", 1), LNT_SIGMOID, 1, true));
    return lnt_add_buf(p, y, shared);
}

const lnt_mlp lnt_mlp_moe = {.kind = {{"moe", "a mixture of experts: each token takes some of many SwiGLUs", "Shazeer et al. 2017, arXiv 1701.06538",
                                       NULL},
                                      LNT_OPTIONS(options, keys), check},
                             .build = build};

/* What a training run will need, from its plan alone. */
#include "model/model.h"

linnet_status linnet_model_training_memory(linnet_context *c, const linnet_model *m, int64_t batch, int64_t length, int recompute,
                                           linnet_dtype weights, linnet_dtype moments, linnet_training_memory *out)
{
    int64_t tokens;
    if (batch < 1 || length < 1 || !lnt_mul(batch, length, &tokens) || tokens > INT32_MAX)
        return lnt_fail(c, LINNET_EINVAL, "a batch of %lld sequences of %lld tokens, expected at least 1 of 1 and fewer than 2^31 tokens",
                        (long long)batch, (long long)length);
    if (recompute < LINNET_RECOMPUTE_NONE || recompute > LINNET_RECOMPUTE_CHEAP)
        return lnt_fail(c, LINNET_EINVAL, "recompute is %d, expected 0 to %d", recompute, LINNET_RECOMPUTE_CHEAP);
    if (weights != LINNET_F32 && (weights != LINNET_BF16 || m->dtype != LINNET_BF16))
        return lnt_fail(c, LINNET_EINVAL, "weights are %s, expected f32, or bf16 under that dtype", lnt_dtype_name(weights));
    if (moments != LINNET_F32 && moments != LINNET_BF16)
        return lnt_fail(c, LINNET_EINVAL, "moments are %s, expected f32 or bf16", lnt_dtype_name(moments));
    const lnt_plan_options o = {.tokens = tokens, .n_seq = batch, .dtype = m->dtype, .training = true, .recompute = (lnt_recompute)recompute,
                                .n_outputs = 1, .outputs = {m->loss}};
    size_t plan;
    LNT_TRY(lnt_plan_measure(c, m->p, &o, &plan));
    const int64_t all = lnt_param_elements(m->p), copied = m->dtype == LINNET_BF16 ? all - lnt_param_work_begin(m->p) : 0;
    const int64_t masters = weights == LINNET_BF16 ? lnt_param_plain_end(m->p) : all;
    linnet_training_memory r = {.size = out->size, .weights = 4 * masters + 2 * copied, .gradients = 4 * all,
                                .moments = 2 * (int64_t)lnt_dtype_size(moments) * all, .activations = (int64_t)plan};
    r.total = r.weights + r.gradients + r.moments + r.activations;
    *out = r;
    return LINNET_OK;
}

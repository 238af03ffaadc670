/* x / sqrt(mean(x^2) + norm_eps) * (1 + w): RMSNorm whose weights begin at 0, which weight decay pulls to 1 (Gemma, Qwen3-Next). */
#include "model/kinds.h"

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x, const char *name) { return lnt_centred_rmsnorm(p, x, name, l->norm_eps); }

const lnt_norm lnt_norm_centred_rmsnorm = {.kind.about = {"centred_rmsnorm", "root of the mean square, a weight of 1 + w a column",
                                                         "Gemma Team 2024, arXiv 2403.08295", NULL},
                                           .build = build};

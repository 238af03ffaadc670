/* x / sqrt(mean(x^2) + norm_eps) * w (arXiv 1910.07467). */
#include "model/kinds.h"

static lnt_buf build(lnt_program *p, const lnt_layer *l, lnt_buf x, const char *name) { return lnt_rmsnorm(p, x, name, l->norm_eps); }

const lnt_norm lnt_norm_rmsnorm = {.kind.about = {"rmsnorm", "root of the mean square, a weight a column",
                                                 "Zhang and Sennrich 2019, arXiv 1910.07467", NULL},
                                   .build = build};

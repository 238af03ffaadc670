/* A model's parameters by name. */
#include <math.h>
#include <string.h>

#include "core/border.h"
#include "linnet/train.h"
#include "model/model.h"

int64_t linnet_parameter_count(const linnet_model *m) { return m ? lnt_param_count(m->p) : 0; }

static linnet_status tell(const linnet_model *m, const lnt_param *q, linnet_parameter_info *out)
{
    linnet_parameter_info i = {.name = q->name, .elements = q->count, .rank = q->ndim, .weight_decay = q->decay};
    i.kept = !m->w || q->offset < m->w->masters ? LINNET_F32 : m->w->small ? LINNET_I8 : m->w->dtype;
    memcpy(i.shape, q->dim, (size_t)q->ndim * sizeof *q->dim);
    LNT_GIVE(out, i);
    return LINNET_OK;
}

linnet_status linnet_parameter_at(linnet_context *c, const linnet_model *m, int64_t i, linnet_parameter_info *out)
{
    LNT_TRY(lnt_model_check(c, m));
    LNT_TRY(lnt_result_check(c, out));
    const int n = lnt_param_count(m->p);
    if (i < 0 || i >= n) return lnt_fail(c, LINNET_EINVAL, "parameter %lld, expected 0 to %d", (long long)i, n - 1);
    return tell(m, lnt_param_at(m->p, (int)i), out);
}

linnet_status lnt_parameter_part(lnt_ctx *c, const linnet_model *m, const char *name, int64_t first, int64_t n, const void *values,
                                 const lnt_param **out)
{
    LNT_TRY(lnt_model_check(c, m));
    LNT_NEED(c, name);
    const lnt_param *q = *out = lnt_param_find(m->p, name);
    if (!q) {
        lnt_fail(c, LINNET_EINVAL, "the model has no parameter \"%s\"", name);
        return lnt_hint(c, "linnet_parameter_at goes through the %d it has.", lnt_param_count(m->p));
    }
    if (first < 0 || n < 0 || first > q->count - n)
        return lnt_fail(c, LINNET_EINVAL, "%lld elements from %lld on of \"%s\", which has %lld", (long long)n, (long long)first, name,
                        (long long)q->count);
    return n ? lnt_need(c, values, "the array of values") : LINNET_OK;
}

linnet_status linnet_parameter_find(linnet_context *c, const linnet_model *m, const char *name, linnet_parameter_info *out)
{
    const lnt_param *q;
    LNT_TRY(lnt_parameter_part(c, m, name, 0, 0, NULL, &q));
    LNT_TRY(lnt_result_check(c, out));
    return tell(m, q, out);
}

linnet_status linnet_parameter_read(linnet_context *c, const linnet_model *m, const char *name, int64_t first, int64_t n, float *values)
{
    const lnt_param *q;
    LNT_TRY(lnt_parameter_part(c, m, name, first, n, values, &q));
    if (!m->w) return lnt_fail(c, LINNET_EINVAL, "the model is an outline, which has no weights");
    LNT_TRY(lnt_weights_take(m->w, q, first, values, n));
    return lnt_device_check(c);
}

linnet_status linnet_parameter_write(linnet_context *c, linnet_model *m, const char *name, int64_t first, int64_t n, const float *values)
{
    const lnt_param *q;
    LNT_TRY(lnt_parameter_part(c, m, name, first, n, values, &q));
    LNT_TRY(lnt_model_check_own(c, m));
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return lnt_fail(c, LINNET_EINVAL, "element %lld for \"%s\" is %g, expected a finite number", (long long)(first + i), name,
                            (double)values[i]);
    LNT_TRY(lnt_weights_put(m->w, q, first, values, n));
    return lnt_device_check(c);
}

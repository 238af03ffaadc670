/* Where the first value came from that is no number: looked at call by call, on request (lnt_plan_options.finite). */
#include <math.h>
#include <stdio.h>

#include "device/device.h"
#include "program/program_internal.h"
#include "program/schedule.h"

/* The first of n elements that is NaN or infinite; -1: none, -2: no memory. Of gates -infinity is a value: it forgets everything. */
static int64_t first_bad(lnt_ctx *c, const void *data, lnt_dtype dtype, int64_t n, bool gate, double *value)
{
    const size_t bytes = lnt_bytes((size_t)n, lnt_dtype_size(dtype));
    if (!data || dtype == LINNET_I32 || !n) return -1;
    void *host = lnt_alloc(bytes);
    if (!host) return -2;
    lnt_to_host(c, host, data, bytes);
    int64_t at = -1;
    for (int64_t i = 0; at < 0 && i < n; i++) {
        *value = lnt_load_element(host, dtype, i);
        if (!isfinite(*value) && !(gate && *value == -INFINITY)) at = i;
    }
    lnt_free(host);
    return at;
}

/* What the call was given: the first parameter that is to blame, or that none is. */
static linnet_status blame(lnt_ctx *c, const lnt_program *p, const lnt_call *k)
{
    double value;
    for (int i = 0; i < k->node->n_param; i++) {
        const lnt_param_view *v = &k->param[i];
        const int64_t at = first_bad(c, v->master ? v->master : v->work, v->master ? LINNET_F32 : v->work_dtype, v->count, false, &value);
        if (at == -2) return lnt_fail_memory(c, lnt_bytes((size_t)v->count, 4));
        const char *name = p->params[k->node->param[i]].name;
        if (at >= 0) return lnt_detail(c, "Its parameter \"%s\" holds %g at element %lld.", name, value, (long long)at);
    }
    return lnt_detail(c, "Its inputs and parameters are all finite.");
}

linnet_status lnt_check_finite(lnt_ctx *c, const lnt_program *p, const lnt_step *t, const lnt_call *k)
{
    const lnt_node *n = t->node;
    const bool backward = t->kind == LNT_STEP_BACKWARD;
    for (int i = 0; i < (backward ? n->n_in : n->n_out); i++) {
        const lnt_tensor x = backward ? k->d_in[i] : k->out[i];
        double value;
        const bool gate = !backward && lnt_program_value(p, n->out[i])->f32;
        const int64_t at = first_bad(c, x.data, x.dtype, x.rows * x.cols, gate, &value);
        if (at == -2) return lnt_fail_memory(c, lnt_bytes((size_t)(x.rows * x.cols), lnt_dtype_size(x.dtype)));
        if (at < 0) continue;
        char where[32] = "outside the layers";
        if (n->block >= 0) snprintf(where, sizeof where, "in layer %d", n->block);
        lnt_fail(c, LINNET_EINVAL, "the first %s that is no finite number is %g, left %s by the operator %s at row %lld of %lld, column %lld of %lld",
                 backward ? "gradient" : "value", value, where, n->op->name, (long long)(at / x.cols), (long long)x.rows, (long long)(at % x.cols),
                 (long long)x.cols);
        return blame(c, p, k);
    }
    return LINNET_OK;
}

#include "recurrence/tensors.h"

#include <string.h>

#define AT(F) offsetof(linnet_recurrence, F)
const lnt_recur_tensor lnt_recur_tensors[LNT_RECUR_TENSORS] = {
    { "q", AT(q), LNT_T_INPUT, true, "BTqK", "BThK" },
    { "k", AT(k), LNT_T_INPUT, true, "BTqK", "BTqK" },
    { "v", AT(v), LNT_T_INPUT, true, "BThV", "BTqV" },
    { "g", AT(g), LNT_T_INPUT, false, "BTh", NULL },
    { "g_head", AT(g_head), LNT_T_INPUT, false, "h", NULL },
    { "beta", AT(beta), LNT_T_INPUT, false, "BTh", NULL },
    { "s0", AT(s0), LNT_T_STATE, false, "NhKV", NULL },
    { "z0", AT(z0), LNT_T_STATE, false, "NhK", NULL },
    { "do", AT(do_), LNT_T_COTANGENT, true, "BThV", "BThV" },
    { "dsT", AT(dsT), LNT_T_COTANGENT, false, "NhKV", NULL },
    { "dzT", AT(dzT), LNT_T_COTANGENT, false, "NhK", NULL },
    { "o", AT(o), LNT_T_OUTPUT, true, "BThV", "BThV" },
    { "sT", AT(sT), LNT_T_OUTPUT, false, "NhKV", NULL },
    { "zT", AT(zT), LNT_T_OUTPUT, false, "NhK", NULL },
    { "lse", AT(lse), LNT_T_SAVED, false, NULL, "BTh" },
    { "dq", AT(dq), LNT_T_GRADIENT, true, "BTqK", "BThK" },
    { "dk", AT(dk), LNT_T_GRADIENT, true, "BTqK", "BTqK" },
    { "dv", AT(dv), LNT_T_GRADIENT, true, "BThV", "BTqV" },
    { "dg", AT(dg), LNT_T_GRADIENT, false, "BTh", NULL },
    { "dg_head", AT(dg_head), LNT_T_GRADIENT, false, "h", NULL },
    { "dbeta", AT(dbeta), LNT_T_GRADIENT, false, "BTh", NULL },
    { "ds0", AT(ds0), LNT_T_GRADIENT, false, "NhKV", NULL },
    { "dz0", AT(dz0), LNT_T_GRADIENT, false, "NhK", NULL },
    /* mesa; its states are two, H (kk) and G (kv) */
    { "lambda", AT(lambda), LNT_T_INPUT, false, "hK", NULL },
    { "s0_kk", AT(h0), LNT_T_STATE, false, "NhKK", NULL },
    { "s0_kv", AT(s0), LNT_T_STATE, false, "NhKV", NULL },
    { "dsT_kk", AT(dhT), LNT_T_COTANGENT, false, "NhKK", NULL },
    { "dsT_kv", AT(dsT), LNT_T_COTANGENT, false, "NhKV", NULL },
    { "sT_kk", AT(hT), LNT_T_OUTPUT, false, "NhKK", NULL },
    { "sT_kv", AT(sT), LNT_T_OUTPUT, false, "NhKV", NULL },
    { "x", AT(x), LNT_T_SAVED, false, "BThK", NULL },
    { "dlambda", AT(dlambda), LNT_T_GRADIENT, false, "hK", NULL },
    { "ds0_kk", AT(dh0), LNT_T_GRADIENT, false, "NhKK", NULL },
    { "ds0_kv", AT(ds0), LNT_T_GRADIENT, false, "NhKV", NULL },
    { "steps", AT(steps), LNT_T_REPORT, false, "BTh", NULL },
    { "residual", AT(residual), LNT_T_REPORT, false, "BTh", NULL },
};

int lnt_recur_tensor_find(const char *name)
{
    for (int i = 0; i < LNT_RECUR_TENSORS; i++)
        if (!strcmp(lnt_recur_tensors[i].name, name)) return i;
    return -1;
}

static bool is_any(const char *name, const char *a, const char *b, const char *c, const char *d)
{
    return !strcmp(name, a) || !strcmp(name, b) || !strcmp(name, c) || !strcmp(name, d);
}

bool lnt_recur_tensor_taken(const lnt_recur_op *op, const linnet_recurrence *r, int i)
{
    const char *name = lnt_recur_tensors[i].name;
    if (!(op->cache ? lnt_recur_tensors[i].attention : lnt_recur_tensors[i].state)) return false;
    if (is_any(name, "g", "dg", "g", "g")) return op->gate == LNT_GATE_SCALAR;
    if (is_any(name, "g_head", "dg_head", "g_head", "g_head")) return op->gate == LNT_GATE_HEAD;
    if (is_any(name, "beta", "dbeta", "beta", "beta")) return op->beta;
    if (is_any(name, "z0", "zT", "dzT", "dz0")) return r->normalize != 0;
    if (is_any(name, "s0", "sT", "dsT", "ds0")) return !op->solve;
    if (is_any(name, "lambda", "dlambda", "x", "steps") || !strcmp(name, "residual") || strstr(name, "_k")) return op->solve;
    return true;
}

lnt_dtype lnt_recur_tensor_type(const linnet_recurrence *r, int i)
{
    return lnt_recur_tensors[i].wide || r->dtype == LINNET_F64 ? r->dtype : LINNET_F32;
}

bool lnt_recur_tensor_aligned(const lnt_recur_op *op, const linnet_recurrence *r, int i)
{
    const char *shape = op->cache ? lnt_recur_tensors[i].attention : lnt_recur_tensors[i].state;
    const int64_t size = (int64_t)lnt_dtype_size(lnt_recur_tensor_type(r, i));
    if (!shape || !strpbrk(shape, "KV")) return false;
    return (!strchr(shape, 'K') || r->K * size % 16 == 0) && (!strchr(shape, 'V') || r->V * size % 16 == 0);
}

int64_t lnt_recur_tensor_count(const lnt_recur_op *op, const linnet_recurrence *r, int i)
{
    const char *name = lnt_recur_tensors[i].name;
    bool keys = op->cache && is_any(name, "k", "v", "dk", "dv");
    int64_t n = 1;
    for (const char *s = op->cache ? lnt_recur_tensors[i].attention : lnt_recur_tensors[i].state; *s; s++) switch (*s) {
        case 'B': break;
        case 'T': n *= r->tokens + (keys ? r->offset : 0); break;
        case 'N': n *= r->sequences; break;
        case 'q': n *= r->Hq; break;
        case 'h': n *= r->Hv; break;
        case 'K': n *= r->K; break;
        default: n *= r->V; break;
        }
    return n;
}

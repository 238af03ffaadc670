/* A map that joins the residual stream, that sum, its rmsnorm, and the maps that read it: two kernels, between which no norm is one (lnt_few_sum). */
#include "ops/linear.h"

#ifdef LINNET_CUDA
#include "ops/norms.h"
#include "ops/pointwise.h"

/* Whether n adds the result of the map to the residual stream, of which the node behind it is the norm: the two are a pair. */
bool lnt_adds_to_stream(const lnt_node *map, const lnt_node *n)
{
    const lnt_program *p = n->program;
    const int at = lnt_program_value(p, n->out[0])->producer;
    const lnt_node *norm = at + 1 < lnt_node_count(p) ? lnt_node_at(p, at + 1) : NULL;
    return n->op == &lnt_sum_op && lnt_same_data(p, map->out[0], n->in[1]) && norm && norm->op == &lnt_rmsnorm_op &&
           lnt_same_data(p, norm->in[0], n->out[0]) && lnt_heads(p, norm->in[0]) == 1;
}

static bool reaches(const void *p, int64_t ld) { return (uintptr_t)p % 16 == 0 && ld % 4 == 0; }

/* The map calls[0], the sum calls[1], its norm calls[2], whose result nobody but the maps behind it reads. False: something does not fit, and all is
 * still to do. */
static bool as_two(const lnt_call *calls, int count)
{
    const lnt_call *sum = &calls[1], *norm = &calls[2];
    const lnt_norm_attr *a = norm->attr;
    const lnt_tensor *x = &sum->in[0], *z = &sum->out[0], *zw = &norm->out[0];
    lnt_few_rows first, second;
    lnt_few_sum s = {.x = x->data, .z = z->data, .w = norm->param[0].master, .zw = zw->data, .squares = calls->work, .ldx = x->ld, .ldz = z->ld,
                     .ldzw = zw->ld};
    if (count == 3 || !norm->inner || !calls->inner) return false;
    if (!lnt_maps_as_one(calls, 1, NULL, &first) || !lnt_maps_as_one(calls + 3, count - 3, NULL, &second)) return false;
    if (x->dtype != LINNET_F32 || z->dtype != LINNET_F32 || zw->dtype != LINNET_BF16 || !norm->node->n_param || !s.w) return false;
    const int64_t tiles = (z->cols + LNT_FEW_LEAST_TILE - 1) / LNT_FEW_LEAST_TILE;
    if (x->rows != first.R || second.R != first.R || z->cols % 4 || tiles > LNT_FEW_TILES) return false;
    if (!reaches(s.x, s.ldx) || !reaches(s.z, s.ldz) || !reaches(s.w, 0) || !reaches(s.zw, s.ldzw) || second.x != s.zw) return false;
    if (calls->work_size < (size_t)first.R * (size_t)tiles * sizeof *s.squares) return false;
    first.sum = &s, second.norm = &s;
    second.mean = (float)(1.0 / (double)z->cols), second.eps = (float)a->eps;
    return lnt_few_rows_can(calls->c, &first) && lnt_few_rows_can(calls->c, &second) && lnt_few_rows_cuda(calls->c, &first) &&
           lnt_few_rows_cuda(calls->c, &second);
}

linnet_status lnt_map_fold_run(const lnt_call *calls, int count)
{
    if (as_two(calls, count)) return LINNET_OK;
    LNT_TRY(lnt_maps_run(calls, 1));
    LNT_TRY(calls[2].node->op->pair->forward(&calls[1], &calls[2]));
    return count > 3 ? lnt_maps_run(calls + 3, count - 3) : LINNET_OK;
}

#endif

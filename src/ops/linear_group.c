/* A step of few rows on a GPU: maps that are one product, with what is made of their results element by element. Of what else stands in one call with
 * them, linear_chain.c and linear_fold.c have the rest. */
#include "ops/linear.h"

#ifdef LINNET_CUDA
#include "core/threads.h"
#include "device/device.h"
#include "ops/pointwise.h"

int lnt_map_of_input(const lnt_node *const *group, int count, const lnt_node *n, int i)
{
    for (int m = 0; m < count; m++)
        if (group[m]->op == &lnt_linear_op && lnt_same_data(n->program, group[m]->out[0], n->in[i])) return m;
    return -1;
}

static bool is_swiglu(const lnt_node *n) { return ((const lnt_glu_attr *)n->attr)->act == LNT_SILU; }

/* Maps of one input, of inputs of equal size, or of small ones. */
static bool go_together(const lnt_node *a, const lnt_node *b)
{
    const int64_t one = lnt_in_cols(a, 0), other = lnt_in_cols(b, 0);
    return lnt_same_data(a->program, a->in[0], b->in[0]) ||
           (lnt_same_rows(a->program, a->in[0], b->in[0]) && (one == other || (one <= LNT_FEW_NARROW && other <= LNT_FEW_NARROW)));
}

bool lnt_linear_follows(const lnt_node *const *group, int count, const lnt_node *n)
{
    if (!lnt_is_map(group[0])) return false;
    const bool folds = count > 1 && group[1]->op == &lnt_sum_op, leads_chain = !folds && lnt_leads_chain(group[0]);
    if (n->op == &lnt_sum_op && count == 1) return lnt_adds_to_stream(group[0], n);
    if (leads_chain && lnt_map_chain_has(group, count, n)) return lnt_map_chain_follows(group, count, n);
    if (n->op == &lnt_sum_op) return false;
    const int behind = folds && count > 2 ? 3 : 0; /* the norm of a sum, which what follows reads */
    const lnt_node *norm = behind ? group[behind - 1] : NULL;
    group += behind, count -= behind;
    if (norm && lnt_is_map(n) && !lnt_same_data(n->program, norm->out[0], n->in[0])) return false;
    if (!count) return lnt_is_map(n);
    int maps = 0;
    bool reads = false; /* what a member makes */
    for (int i = 0; i < count; i++) {
        maps += group[i]->op == &lnt_linear_op;
        reads |= lnt_shares_data(n->program, group[i]->out[0], n->in[0]);
    }
    if (n->op == &lnt_glu_op)
        return is_swiglu(n) && count == 2 && lnt_map_of_input(group, count, n, 0) == 0 && lnt_map_of_input(group, count, n, 1) == 1 &&
               !lnt_has_bias(group[0]) && !lnt_has_bias(group[1]) && lnt_same_data(n->program, group[0]->in[0], group[1]->in[0]);
    if (n->op == &lnt_activation_op) return lnt_map_of_input(group, count, n, 0) >= 0;
    if (leads_chain && lnt_is_map(n) && !lnt_is_low_rank(n)) return false;
    return lnt_is_map(n) && !reads && group[count - 1]->op != &lnt_glu_op && maps < LNT_FEW_PARTS && go_together(group[0], n);
}

/* The input of the map that call i is, or whose result it reads. */
static const void *input_of(const lnt_call *calls, int i)
{
    for (int m = 0; m < i; m++)
        if (calls[m].node->op == &lnt_linear_op && calls[m].out[0].data == calls[i].in[0].data) return calls[m].in[0].data;
    return calls[i].in[0].data;
}

bool lnt_is_of_map(const lnt_call *calls, int i)
{
    const lnt_op *op = calls[i].node->op;
    return op == &lnt_linear_op || ((op == &lnt_activation_op || op == &lnt_glu_op) && input_of(calls, i) != calls[i].in[0].data);
}

/* The part whose result the call reads, if nobody else does; `only`: as for lnt_maps_as_one. */
static lnt_few_part *read_part(lnt_few_rows *f, const lnt_call *calls, int i, const void *only)
{
    for (int m = 0, part = 0; m < i; m++) {
        if (calls[m].node->op != &lnt_linear_op || (only && calls[m].in[0].data != only)) continue;
        if (calls[m].out[0].data == calls[i].in[0].data) return calls[m].inner && !f->part[part].act ? &f->part[part] : NULL;
        part++;
    }
    return NULL;
}

bool lnt_maps_as_one(const lnt_call *calls, int count, const void *only, lnt_few_rows *f)
{
    const int64_t most = lnt_rows_are_alone(calls->c) ? INT32_MAX : LNT_FEW_ROWS;
    *f = (lnt_few_rows){.weights = true};
    if (calls->in[0].dtype != LINNET_BF16 || calls->in[0].rows > most) return false;
    for (int i = 0; i < count; i++) {
        const lnt_call *k = &calls[i];
        const lnt_tensor *x = &k->in[0], *y = &k->out[0];
        if (only && input_of(calls, i) != only) continue;
        if (k->node->op == &lnt_linear_op) {
            if (!f->x) f->R = (int)x->rows, f->K = x->cols, f->x = x->data, f->ldx = x->ld;
            if (x->rows != f->R) return false;
            const bool own = x->data != f->x || x->cols != f->K || x->ld != f->ldx;
            f->part[f->parts++] = (lnt_few_part){.w = k->param[0].work, .bias = lnt_has_bias(k->node) ? k->param[1].master : NULL, .N = y->cols,
                                                 .ldw = x->cols, .y = y->data, .ldy = y->cols, .step = 1, .type = y->dtype, .alpha = 1,
                                                 .scale = 1, .x = own ? x->data : NULL, .ldx = x->ld, .K = x->cols};
        } else if (k->node->op == &lnt_glu_op) {
            if (f->parts != 2 || f->part[1].x || !calls[0].inner || !calls[1].inner || y->dtype != LINNET_BF16) return false;
            f->swiglu = true;
            f->part[0].y = y->data;
        } else {
            const lnt_activation_attr *a = k->attr;
            lnt_few_part *part = read_part(f, calls, i, only);
            if (!part || a->act == LNT_IDENTITY || a->offset != 0) return false;
            part->y = y->data, part->type = y->dtype, part->act = a->act, part->scale = (float)a->scale;
        }
    }
    return true;
}

bool lnt_map_with_bias(const lnt_call *k)
{
    lnt_few_rows f;
    return lnt_on_cuda(k->c) && k->in[0].rows > 0 && lnt_is_map(k->node) && lnt_maps_as_one(k, 1, NULL, &f) && lnt_few_rows_cuda(k->c, &f);
}

linnet_status lnt_maps_run(const lnt_call *calls, int count)
{
    lnt_few_rows f;
    if (lnt_maps_as_one(calls, count, NULL, &f) && lnt_few_rows_cuda(calls->c, &f)) return LINNET_OK;
    for (int i = 0; i < count; i++) { /* input by input, each where its first map stands */
        const void *x = calls[i].in[0].data;
        bool first = calls[i].node->op == &lnt_linear_op;
        for (int m = 0; m < i; m++) first &= calls[m].node->op != &lnt_linear_op || calls[m].in[0].data != x;
        if (!first || (lnt_maps_as_one(calls, count, x, &f) && lnt_few_rows_cuda(calls->c, &f))) continue;
        for (int m = i; m < count; m++)
            if (input_of(calls, m) == x) LNT_TRY(calls[m].node->op->forward(&calls[m]));
    }
    return LINNET_OK;
}

linnet_status lnt_linear_group(const lnt_call *calls, int count)
{
    if (calls[1].node->op == &lnt_sum_op) return lnt_map_fold_run(calls, count);
    for (int i = 0; i < count; i++)
        if (!lnt_is_of_map(calls, i)) return lnt_map_chain_run(calls, count);
    return lnt_maps_run(calls, count);
}

#endif

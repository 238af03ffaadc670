/* The step of a delta layer on a GPU as one group of nodes: convolutions of q, k, v with their norms, the recurrence, the norm of its heads. */
#include "recurrence/delta/delta_node.h"

#ifdef LINNET_CUDA
#include "device/device.h"
#include "ops/norms.h"
#include "ops/short_conv.h"
#include "recurrence/delta/delta_gpu.h"
#include "recurrence/recur_node.h"

static const lnt_node *maker(const lnt_node *n, int i)
{
    const int32_t at = lnt_program_value(n->program, n->in[i])->producer;
    return at < 0 ? NULL : lnt_node_at(n->program, at);
}

bool lnt_delta_layer_makes_input(const lnt_node *n, int i, const lnt_shape *s)
{
    const lnt_recur_args *x = lnt_recur_args_of(n);
    if (i > 2 || !s->has_state || s->tokens != s->n_seq || s->device->capability / 10 != 9) return false;
    if (!lnt_delta_layer_fits(x->K, x->V)) return false;
    for (int j = 0; j < 3; j++) {
        const lnt_node *m = maker(n, j);
        if (j < 2 && (!m || m->op != &lnt_l2norm_op || lnt_heads(n->program, m->in[0]) != x->Hq)) return false;
        if (j < 2) m = maker(m, 0);
        const lnt_conv_attr *conv = m && m->op == &lnt_conv_op ? m->attr : NULL;
        if (!conv || conv->size != 4 || conv->act != LNT_SILU || conv->bias || lnt_is_slice(n->program, m->in[0])) return false;
    }
    return true;
}

bool lnt_delta_layer_follows(const lnt_node *const *group, int count, const lnt_node *n)
{
    const lnt_node *last = group[count - 1];
    if (count == 1 || last->op->run_group != lnt_delta_layer_run || (n->op != &lnt_rmsnorm_op && n->op != &lnt_gated_rmsnorm_op)) return false;
    const lnt_recur_args *x = lnt_recur_args_of(last);
    return lnt_same_data(n->program, n->in[0], last->out[0]) && lnt_heads(n->program, n->in[0]) == x->Hv;
}

/* The calls ahead of `head`, a pair's first has no result. False: some convolution is not among them. */
static bool find_convolutions(const lnt_call *calls, int head, lnt_delta_layer *layer)
{
    for (int j = 0; j < 3; j++) {
        int i = 0;
        while (i < head && calls[i].out[0].data != calls[head].in[j].data) i++;
        if (i == head || (j < 2 && (i == 0 || calls[i - 1].out[0].data))) return false;
        if (j < 2) layer->l2norm[j] = &calls[i];
        layer->conv[j] = j < 2 ? &calls[i - 1] : &calls[i];
    }
    return true;
}

linnet_status lnt_delta_layer_run(const lnt_call *calls, int count)
{
    int head = 0;
    while (calls[head].node->op->run_group != lnt_delta_layer_run) head++;
    const lnt_call *k = &calls[head];
    lnt_delta_layer layer = { .rmsnorm = head + 1 < count ? k + 1 : NULL, .keeps_o = !k->inner };
    if (k->state && lnt_one_token_each(k) && find_convolutions(calls, head, &layer)) {
        lnt_recur_call call;
        lnt_recur_bind(k, &call);
        lnt_recur_args *a = (void *)&call;
        a->s0 = a->sT = k->state;
        lnt_state_fill(a);
        if (lnt_delta_layer_sm90(&layer, a, lnt_device_of(k->c))) return lnt_device_check(k->c);
    }
    for (int i = 0; i < count; i++) {
        const bool pair = !calls[i].out[0].data;
        LNT_TRY(pair ? calls[i + 1].node->op->pair->forward(&calls[i], &calls[i + 1]) : calls[i].node->op->forward(&calls[i]));
        i += pair;
    }
    return LINNET_OK;
}
#endif

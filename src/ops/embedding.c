/* y_t = scale E[id_t],  dE[id] += scale sum over the tokens t of that id of dy_t (in token order);  E [vocab, width]. */
#include "ops/embedding.h"
#include "ops/builder.h"

static size_t embedding_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const lnt_embedding_attr *a = n->attr;
    if (!backward) return 0;
    if (!s->device || s->device->kind == LNT_DEVICE_CPU) return (size_t)(2 * (a->vocab + 1) + s->tokens) * sizeof(int32_t);
    /* float32 [chunks][2][width]; int32 keys and tokens, twice each; counts of 256 digits in tiles of 2048 tokens */
    const int64_t chunks = (s->tokens + LNT_EMBED_CHUNK - 1) / LNT_EMBED_CHUNK, tiles = (s->tokens + 2047) / 2048;
    return (size_t)(chunks * 2 * lnt_cols(n->program, n->out[0]) + 4 * s->tokens + 256 * tiles) * 4;
}

static linnet_status check_ids(const lnt_call *k)
{
    const int32_t *id = k->in[0].data;
    const lnt_embedding_attr *a = k->attr;
    for (int64_t t = 0; t < k->tokens; t++)
        if (id[t] < 0 || id[t] >= a->vocab)
            return lnt_fail(k->c, LINNET_EINVAL, "token %lld has id %d, expected 0 .. %lld", (long long)t, id[t], (long long)a->vocab - 1);
    return LINNET_OK;
}

static linnet_status embedding_forward(const lnt_call *k)
{
    if (!lnt_on_cuda(k->c)) LNT_TRY(check_ids(k)); /* on a GPU the kernel leaves such rows zero */
    return LNT_KERNEL(k->c, lnt_embedding_forward)(k);
}

static linnet_status embedding_backward(const lnt_call *k)
{
    return k->d_out[0].data && k->param[0].grad ? LNT_KERNEL(k->c, lnt_embedding_backward)(k) : LINNET_OK;
}

static const lnt_op embedding_op = {.name = "embedding", .backward_needs = LNT_NEEDS_IN0, .workspace = embedding_workspace,
                                    .forward = embedding_forward, .backward = embedding_backward};

lnt_buf lnt_embedding(lnt_program *p, lnt_buf ids, const char *name, int64_t vocab, int64_t width, double scale, lnt_init init, bool decay)
{
    if (!lnt_ready(p, "embedding", 1, &ids)) return LNT_NO_BUF;
    if (vocab < 1 || vocab > INT32_MAX) return lnt_program_fail(p, "embedding %s: vocabulary of %lld", name, (long long)vocab);
    const lnt_embedding_attr a = {vocab, scale};
    const int param = lnt_named_param(p, name, "weight", vocab, width, init, decay, false); /* an output projection may be tied to it */
    return lnt_add_op(p, &embedding_op, lnt_attr(p, &a, sizeof a), 1, &ids, 1, &param, (lnt_out_spec){width, 1, true});
}

/* linnet_mixer_measure: what a layer of a mixer takes, from its program. It is the second of two, so that what the first alone has is not counted. */
#include <string.h>

#include "model/model.h"

/* Both layers, in recompute groups 0 and 1; parameters of the second are named 1. */
static linnet_status build(lnt_ctx *c, const lnt_mixer *m, int64_t width, const void *options, lnt_program **out)
{
    lnt_program *p;
    lnt_layer l = {.width = width, .layers = 2, .norm_eps = 1e-6, .where = "", .options = options};
    if (m->kind.check) LNT_TRY(m->kind.check(c, &l));
    LNT_TRY(lnt_program_create(c, &p));
    lnt_buf x = lnt_embedding(p, lnt_external(p, "input_ids"), "embeddings", 1, width, 1, (lnt_init){LNT_INIT_CONST, 0, 0}, false);
    for (; l.index < l.layers; l.index++) {
        lnt_set_block(p, -1);
        x = lnt_rmsnorm(p, x, l.index ? "second" : "first", l.norm_eps);
        lnt_set_block(p, l.index);
        lnt_push_scope(p, "%d", l.index);
        x = m->build(p, &l, x);
        lnt_pop_scope(p);
    }
    linnet_status s = lnt_program_finish(p);
    if (s == LINNET_OK) *out = p;
    else lnt_program_destroy(p);
    return s;
}

static void count(const lnt_program *p, int64_t tokens, linnet_mixer_cost *out)
{
    const int64_t cu[2] = {0, tokens};
    const lnt_shape shape = {.tokens = tokens, .n_seq = 1, .cu = cu, .dtype = LINNET_F32, .threads = 1, .device = lnt_device_cpu()};
    for (int i = 0; i < lnt_param_count(p); i++)
        if (!strncmp(lnt_param_at(p, i)->name, "1.", 2)) out->parameters += lnt_param_at(p, i)->count;
    for (int i = 0; i < lnt_node_count(p); i++) {
        const lnt_node *n = lnt_node_at(p, i);
        if (n->block != 1) continue;
        if (n->op->flops) out->flops_a_token += n->op->flops(n, &shape, false) / (double)tokens;
        if (n->op->most_flops) out->flops_in_solves += n->op->most_flops(n, &shape) / (double)tokens;
        if (!n->op->state_size) continue;
        const int64_t bytes = n->op->state_size(n, tokens, LINNET_F32);
        out->state_bytes += bytes;
        /* on the way there, or beyond */
        out->grows |= n->op->state_size(n, tokens / 2, LINNET_F32) < bytes || n->op->state_size(n, 2 * tokens, LINNET_F32) > bytes;
    }
}

linnet_status linnet_mixer_measure(linnet_context *c, const char *mixer, int64_t width, int64_t tokens, linnet_mixer_cost *out)
{
    LNT_NEED(c, mixer);
    LNT_TRY(lnt_result_check(c, out));
    const lnt_mixer *m = lnt_mixer_find(mixer);
    const int64_t head = 128;
    if (!m) return lnt_no_mixer(c, mixer, "");
    if (width < head || width > LNT_MOST_WIDTH || width % head)
        return lnt_fail(c, LINNET_EINVAL, "width is %lld, expected a multiple of %lld up to %d", (long long)width, (long long)head, LNT_MOST_WIDTH);
    if (tokens < 1 || tokens > 1 << 24) return lnt_fail(c, LINNET_EINVAL, "tokens is %lld, expected 1 to %d", (long long)tokens, 1 << 24);
    void *options = lnt_calloc(m->kind.options.size + 1);
    if (!options) return lnt_fail_memory(c, m->kind.options.size + 1);
    lnt_program *p;
    lnt_options_default(&m->kind.options, options);
    lnt_mixer_size(m, options, width / head, head);
    linnet_status s = build(c, m, width, options, &p);
    if (s == LINNET_OK) {
        linnet_mixer_cost r = {.size = sizeof r};
        count(p, tokens, &r);
        r.flops_a_token += r.flops_in_solves;
        lnt_program_destroy(p);
        LNT_GIVE(out, r);
    }
    lnt_free(options);
    return s;
}

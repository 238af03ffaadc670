#include <stdio.h>
#include <string.h>

#include "device/device.h"
#include "program/plan.h"
#include "program/program_internal.h"

/* Bytes a sequence that a node keeps: some, and some for each token of the capacity until a window is full. The operator multiplies without looking,
 * so it is asked for no more than surely fits in 63 bits; what still grows there is too large. */
static bool state_size(const lnt_node *n, int64_t capacity, lnt_dtype dtype, int64_t *bytes)
{
    *bytes = 0;
    if (!n->op->state_size) return true;
    const int64_t none = n->op->state_size(n, 0, dtype), each = n->op->state_size(n, 1, dtype) - none;
    const int64_t fits = each > 0 ? (((int64_t)1 << 62) - none) / each : capacity;
    *bytes = n->op->state_size(n, capacity < fits ? capacity : fits, dtype);
    return capacity <= fits || *bytes == n->op->state_size(n, fits / 2, dtype);
}

size_t lnt_state_bytes(const lnt_program *p, lnt_dtype dtype, int64_t capacity)
{
    size_t bytes = 0;
    for (int i = 0; i < lnt_node_count(p); i++) {
        int64_t one;
        bytes = lnt_bytes_plus(bytes, state_size(lnt_node_at(p, i), capacity, dtype, &one) ? (size_t)one : SIZE_MAX);
    }
    return bytes;
}

linnet_status lnt_state_create(lnt_ctx *c, const lnt_program *p, lnt_dtype dtype, int64_t n_seq, int64_t capacity, lnt_state **out)
{
    *out = NULL;
    if (n_seq < 0 || capacity < 0)
        return lnt_fail(c, LINNET_EINVAL, "a state of %lld sequences of %lld tokens", (long long)n_seq, (long long)capacity);
    int nodes = lnt_node_count(p);
    lnt_state *s = lnt_calloc(sizeof *s);
    if (!s) return lnt_fail_memory(c, sizeof *s);
    s->c = c;
    s->program = p;
    s->dtype = dtype;
    s->n_seq = n_seq;
    s->capacity = capacity;
    s->offset = lnt_calloc(lnt_bytes((size_t)nodes, sizeof *s->offset));
    s->stride = lnt_calloc(lnt_bytes((size_t)nodes, sizeof *s->stride));
    s->position = lnt_calloc(lnt_bytes((size_t)n_seq, sizeof *s->position));
    linnet_status status = LINNET_OK;
    if (!s->offset || !s->stride || !s->position) {
        status = lnt_fail_memory(c, lnt_bytes((size_t)nodes, sizeof *s->offset));
        goto fail;
    }
    int64_t total = 0;
    for (int i = 0; i < nodes; i++) {
        int64_t stride, bytes;
        if (!state_size(lnt_node_at(p, i), capacity, dtype, &stride)) {
            status = lnt_fail(c, LINNET_EINVAL, "the state of a sequence of %lld tokens is too large", (long long)capacity);
            goto fail;
        }
        s->offset[i] = stride ? total : -1;
        s->stride[i] = stride;
        if (!lnt_mul(stride, n_seq, &bytes) || !lnt_add(bytes, LNT_ALIGN - 1, &bytes) || !lnt_add(total, bytes / LNT_ALIGN * LNT_ALIGN, &total)) {
            status = lnt_fail(c, LINNET_EINVAL, "the state of %lld sequences is too large", (long long)n_seq);
            goto fail;
        }
    }
    s->bytes = (size_t)total;
    LNT_TRY_GOTO(status, lnt_device_alloc(c, s->bytes, (void **)&s->data), fail);
    LNT_TRY_GOTO(status, lnt_device_alloc(c, lnt_bytes((size_t)n_seq, sizeof *s->position_device), (void **)&s->position_device), fail);
    lnt_state_reset(s);
    *out = s;
    return LINNET_OK;
fail:
    lnt_state_destroy(s);
    return status;
}

void lnt_state_reset(lnt_state *s)
{
    lnt_device_zero(s->c, s->data, s->bytes);
    memset(s->position, 0, (size_t)s->n_seq * sizeof *s->position);
}

void lnt_state_destroy(lnt_state *s)
{
    if (!s) return;
    lnt_device_free(s->c, s->data);
    lnt_device_free(s->c, s->position_device);
    lnt_state_destroy(s->staging);
    lnt_free(s->offset);
    lnt_free(s->stride);
    lnt_free(s->position);
    lnt_free(s);
}

/* ---- what a node's state holds ------------------------------------------------------------------------------------------------------- */

int lnt_state_tensors(const lnt_state *s, int node, int64_t tokens, lnt_state_tensor *t)
{
    const lnt_node *n = lnt_node_at(s->program, node);
    if (s->offset[node] < 0) return 0;
    if (n->op->state_tensors) return n->op->state_tensors(n, s->capacity, s->dtype, tokens, t);
    const bool floats = s->stride[node] % 4 == 0;
    t[0] = (lnt_state_tensor){.name = "state", .dtype = floats ? LINNET_F32 : LINNET_U8, .ndim = 1, .dim = {s->stride[node] / (floats ? 4 : 1)}};
    return 1;
}

/* "model.layers.0.attn.q_conv1d" of a node with a weight of that name, otherwise scope and operator. */
static void name_of(const lnt_program *p, const lnt_node *n, char *text, size_t size)
{
    const char *weight = n->n_param ? lnt_param_at(p, n->param[0])->name : "", *end = strstr(weight, ".weight");
    if (end && !end[7])
        snprintf(text, size, "%.*s", (int)(end - weight), weight);
    else
        snprintf(text, size, "%s%s%s", n->scope, n->scope[0] ? "." : "", n->op->name);
}

void lnt_state_name(const lnt_program *p, int node, const lnt_state_tensor *t, char *text, size_t size)
{
    char mine[640], other[640];
    int before = 0;
    name_of(p, lnt_node_at(p, node), mine, sizeof mine);
    for (int i = 0; i < node; i++) {
        if (!lnt_node_at(p, i)->scope) continue;
        name_of(p, lnt_node_at(p, i), other, sizeof other);
        before += !strcmp(mine, other);
    }
    if (before)
        snprintf(text, size, "%s.%d.%s", mine, before, t->name);
    else
        snprintf(text, size, "%s.%s", mine, t->name);
}

static int64_t row_bytes(const lnt_state_tensor *t)
{
    int64_t n = (int64_t)lnt_dtype_size(t->dtype);
    for (int i = 1; i < t->ndim; i++) n *= t->dim[i];
    return n;
}

bool lnt_state_limited(const lnt_state *s)
{
    lnt_state_tensor t[LNT_STATE_TENSORS];
    for (int i = 0; i < lnt_node_count(s->program); i++)
        for (int k = lnt_state_tensors(s, i, 0, t) - 1; k >= 0; k--)
            if (t[k].appended) return true;
    return false;
}

/* ---- slots --------------------------------------------------------------------------------------------------------------------------- */

void lnt_state_reset_slot(lnt_state *s, int64_t slot)
{
    for (int i = 0; i < lnt_node_count(s->program); i++)
        if (s->offset[i] >= 0) lnt_device_zero(s->c, lnt_state_at(s, i, slot), (size_t)s->stride[i]);
    s->position[slot] = 0;
}

/* What slot `from` of a holds, into slot `to` of b. Rows that are written once, and were copied when there were `known` of them, are the same. */
static void copy_slot(const lnt_state *a, int64_t from, lnt_state *b, int64_t to, int64_t known)
{
    lnt_state_tensor t[LNT_STATE_TENSORS];
    for (int i = 0; i < lnt_node_count(a->program); i++)
        for (int k = lnt_state_tensors(a, i, a->position[from], t) - 1; k >= 0; k--) {
            const int64_t row = row_bytes(&t[k]), skip = t[k].appended ? known : 0, at = t[k].offset + skip * row;
            lnt_device_copy(a->c, lnt_state_at(b, i, to) + at, lnt_state_at(a, i, from) + at, (size_t)((t[k].dim[0] - skip) * row));
        }
    b->position[to] = a->position[from];
}

void lnt_state_copy_slot(const lnt_state *a, int64_t from, lnt_state *b, int64_t to) { copy_slot(a, from, b, to, 0); }

/* Tensors one behind the other, each at a multiple of LNT_ALIGN. */
static int64_t packed(const lnt_state_tensor *t) { return (t->dim[0] * row_bytes(t) + LNT_ALIGN - 1) / LNT_ALIGN * LNT_ALIGN; }

size_t lnt_state_snapshot_bytes(const lnt_state *s)
{
    lnt_state_tensor t[LNT_STATE_TENSORS];
    int64_t bytes = 0;
    for (int i = 0; i < lnt_node_count(s->program); i++)
        for (int n = lnt_state_tensors(s, i, s->capacity, t), k = 0; k < n; k++) bytes += t[k].appended ? 0 : packed(&t[k]);
    return (size_t)bytes;
}

void lnt_state_snapshot(const lnt_state *s, int64_t slot, void *to)
{
    lnt_state_tensor t[LNT_STATE_TENSORS];
    char *at = to;
    for (int i = 0; i < lnt_node_count(s->program); i++)
        for (int n = lnt_state_tensors(s, i, s->position[slot], t), k = 0; k < n; k++) {
            if (t[k].appended) continue;
            lnt_device_copy(s->c, at, lnt_state_at(s, i, slot) + t[k].offset, (size_t)(t[k].dim[0] * row_bytes(&t[k])));
            at += packed(&t[k]);
        }
}

void lnt_state_restore(lnt_state *s, int64_t slot, const void *from, int64_t position)
{
    lnt_state_tensor t[LNT_STATE_TENSORS];
    const char *at = from;
    for (int i = 0; i < lnt_node_count(s->program); i++)
        for (int n = lnt_state_tensors(s, i, position, t), k = 0; k < n; k++) {
            if (t[k].appended) continue;
            lnt_device_copy(s->c, lnt_state_at(s, i, slot) + t[k].offset, at, (size_t)(t[k].dim[0] * row_bytes(&t[k])));
            at += packed(&t[k]);
        }
    s->position[slot] = position;
}

/* ---- the slots of a run -------------------------------------------------------------------------------------------------------------- */

/* A staging state for n sequences. It grows by doubling, so that runs of as many sequences as before find it. */
static linnet_status staging_for(lnt_state *s, int64_t n)
{
    int64_t room = 1;
    if (s->staging && s->staging->n_seq >= n) return LINNET_OK;
    while (room < n) room *= 2;
    lnt_state_destroy(s->staging);
    return lnt_state_create(s->c, s->program, s->dtype, room < s->n_seq ? room : s->n_seq, s->capacity, &s->staging);
}

linnet_status lnt_state_bring(const lnt_batch *b, lnt_state **at, int64_t *first)
{
    lnt_state *s = b->state;
    *at = s;
    *first = b->first;
    if (!b->slots) {
        if (b->first >= 0 && b->first <= s->n_seq - b->n_seq) return LINNET_OK;
        return lnt_fail(s->c, LINNET_EINTERNAL, "a state of %lld sequences for a run of %lld from %lld on", (long long)s->n_seq, (long long)b->n_seq,
                        (long long)b->first);
    }
    bool side_by_side = true;
    for (int64_t n = 0; n < b->n_seq; n++) {
        if (b->slots[n] < 0 || b->slots[n] >= s->n_seq)
            return lnt_fail(s->c, LINNET_EINTERNAL, "slot %lld of a state of %lld sequences", (long long)b->slots[n], (long long)s->n_seq);
        side_by_side &= b->slots[n] == b->slots[0] + n;
    }
    *first = side_by_side && b->n_seq ? b->slots[0] : 0;
    if (side_by_side) return LINNET_OK;
    LNT_TRY(staging_for(s, b->n_seq));
    for (int64_t n = 0; n < b->n_seq; n++) lnt_state_copy_slot(s, b->slots[n], s->staging, n);
    *at = s->staging;
    return LINNET_OK;
}

void lnt_state_back(const lnt_batch *b, const lnt_state *at)
{
    for (int64_t n = 0; at != b->state && n < b->n_seq; n++) copy_slot(at, n, b->state, b->slots[n], b->state->position[b->slots[n]]);
}

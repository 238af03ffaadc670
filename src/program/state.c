#include <string.h>

#include "device/device.h"
#include "program/plan.h"

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
    lnt_free(s->offset);
    lnt_free(s->stride);
    lnt_free(s->position);
    lnt_free(s);
}

/* The nodes of the long convolutions. Their states are the inputs that a later token sees: a row a token as far as L - 1 rows reach, in a ring of
 * those where a sequence may be longer (a row's place is its token's number modulo the ring). Rows are of the policy's dtype, as they came. */
#include <string.h>

#include "core/threads.h"
#include "device/device.h"
#include "recurrence/longconv/longconv.h"
#include "recurrence/recur_node.h"

/* Which input a state has rows of. */
enum { MOST = 2 };
typedef struct {
    int state, input; /* rows of the description */
} history;

static int histories(const lnt_recur_op *op, history *h)
{
    static const char *const of[][2] = { { "s0", "u" }, { "s0_k", "k" }, { "s0_v", "v" } };
    int n = 0;
    for (size_t i = 0; i < sizeof of / sizeof *of && n < MOST; i++) {
        const int row = lnt_recur_tensor_find(op, of[i][0]);
        if (row >= 0) h[n++] = (history){ row, lnt_recur_tensor_find(op, of[i][1]) };
    }
    return n;
}

static int64_t size_of(const void *call, const char *letter)
{
    return lnt_recur_letter(((const lnt_recur_head *)call)->op, call, letter, 1);
}
static void set_past(lnt_recur_call *a, int64_t rows)
{
    lnt_recur_size_set(lnt_recur_size_find(a->head.op, "R", 1), a, rows > 0 ? rows : 1);
}

/* Elements of a row of a state. */
static int64_t row_elements(const void *call, int state)
{
    lnt_recur_call one;
    memcpy(&one, call, sizeof one);
    one.head.sequences = 1;
    set_past(&one, 1);
    return lnt_recur_elements(&one, state);
}
static int64_t row_bytes(const void *call, int state, lnt_dtype dtype) { return row_elements(call, state) * (int64_t)lnt_dtype_size(dtype); }

/* Rows that are kept, and whether the capacity is the end, rather than a ring that goes on. */
static int64_t kept_rows(const void *call, int64_t capacity)
{
    const int64_t seen = size_of(call, "L") - 1;
    return seen < capacity ? (seen > 0 ? seen : 1) : capacity;
}
static bool limited(const void *call, int64_t capacity) { return size_of(call, "L") - 1 > capacity; }

static int64_t state_size(const lnt_node *n, int64_t capacity, lnt_dtype dtype)
{
    const void *call = lnt_recur_args_of(n);
    history h[MOST];
    int64_t bytes = 0;
    for (int i = 0, count = histories(((const lnt_recur_attr *)n->attr)->op, h); i < count; i++)
        bytes += kept_rows(call, capacity) * row_bytes(call, h[i].state, dtype);
    return bytes;
}

static int state_tensors(const lnt_node *n, int64_t capacity, lnt_dtype dtype, int64_t tokens, lnt_state_tensor *t)
{
    const lnt_recur_op *op = ((const lnt_recur_attr *)n->attr)->op;
    const void *call = lnt_recur_args_of(n);
    const int64_t R = kept_rows(call, capacity);
    history h[MOST];
    const int count = histories(op, h);
    for (int i = 0; i < count; i++) {
        t[i] = (lnt_state_tensor){ .name = op->tensors[h[i].input].name, .dtype = dtype, .ndim = 2, .appended = limited(call, capacity),
                                   .dim = { tokens < R ? tokens : R, row_elements(call, h[i].state) } };
        if (i) t[i].offset = t[i - 1].offset + R * row_bytes(call, h[i - 1].state, dtype);
    }
    return count;
}

/* Rows of a ring in order, of all states. */
static size_t joined_bytes(const lnt_recur_call *a, int64_t rows)
{
    history h[MOST];
    size_t bytes = 0;
    for (int i = 0, count = histories(a->head.op, h); i < count; i++)
        bytes += lnt_recur_padded((size_t)(rows * row_bytes(a, h[i].state, a->head.dtype)));
    return bytes;
}

static size_t workspace_for(const lnt_node *n, const lnt_shape *s, const int64_t *cu, bool backward)
{
    size_t bytes = lnt_recur_workspace_for(n, s, cu, backward);
    if (backward || !s->has_state) return bytes;
    lnt_recur_call a;
    lnt_recur_shape(n, s, cu, &a);
    const int64_t longest = lnt_recur_longest(&a), rows = kept_rows(&a, s->state_capacity);
    const size_t joined = joined_bytes(&a, rows);
    set_past(&a, rows);
    for (int step = 0; step < 2; step++) { /* sequence by sequence; short tails of a long batch may take the token form */
        int64_t one[2] = { 0, step ? longest > 0 : longest };
        a.head.tokens = one[1];
        a.head.sequences = 1;
        a.head.cu_seqlens = one;
        const size_t need = lnt_recur_workspace_quiet(&a, false, s->threads, s->device);
        bytes = need > bytes ? need : bytes;
    }
    return lnt_recur_padded(bytes) + joined;
}

static size_t workspace(const lnt_node *n, const lnt_shape *s, bool backward) { return lnt_recur_with_offsets(n, s, backward, workspace_for); }

/* `len` rows of sequence n from row `first` on, with `position` tokens before them. */
static linnet_status take_tokens(const lnt_call *k, const lnt_recur_call *all, int64_t n, int64_t first, int64_t len, int64_t position)
{
    const lnt_recur_op *op = all->head.op;
    const int64_t R = kept_rows(all, k->state_capacity), seen = size_of(all, "L") - 1;
    if (limited(all, k->state_capacity) && position + len > R)
        return lnt_fail(k->c, LINNET_EINVAL, "%lld tokens do not fit a history of %lld", (long long)(position + len), (long long)R);
    int64_t cu[2], past = position < R ? position : R;
    past = past < seen ? past : seen;
    history h[MOST];
    const int count = histories(op, h);
    lnt_recur_call a = *all;
    char *rings[MOST];
    lnt_recur_slice(&a, first, len, cu);
    set_past(&a, past);
    char *ring = (char *)k->state + n * k->state_stride, *joined = a.head.workspace;
    if (position > R) {
        if (joined_bytes(all, R) > a.head.workspace_size) return lnt_fail(k->c, LINNET_EINTERNAL, "no workspace for a history of %lld", (long long)R);
        lnt_recur_take(&a, joined_bytes(all, R));
    }
    for (int i = 0; i < count; i++) {
        const size_t row = (size_t)row_bytes(all, h[i].state, all->head.dtype);
        rings[i] = ring;
        if (past && position <= R)
            lnt_recur_set(&a, &op->tensors[h[i].state], ring + (size_t)(position - past) * row);
        else if (past) {
            lnt_ring_get(k->c, joined, ring, R, position, past, row);
            lnt_recur_set(&a, &op->tensors[h[i].state], joined);
            joined += lnt_recur_padded((size_t)R * row);
        }
        ring += (size_t)R * row;
    }
    LNT_TRY(lnt_recur_run(k->c, &a, false));
    for (int i = 0; i < count; i++)
        lnt_ring_put(k->c, rings[i], R, position, lnt_recur_get(&a, &op->tensors[h[i].input]), len,
                     (size_t)row_bytes(all, h[i].state, all->head.dtype));
    return LINNET_OK;
}

static linnet_status forward(const lnt_call *k)
{
    lnt_recur_call a;
    lnt_recur_bind(k, &a);
    if (!k->state) return lnt_recur_run(k->c, &a, false);
    for (int64_t n = 0; n < k->n_seq; n++) {
        const int64_t first = k->cu[n], len = k->cu[n + 1] - first, each = lnt_rows_are_alone(k->c) ? 1 : len;
        for (int64_t t = 0; t < len; t += each) LNT_TRY(take_tokens(k, &a, n, first + t, each, k->position[n] + t));
    }
    return LINNET_OK;
}

#define NODE(NAME)                                                                                                                 \
    { .name = NAME, .backward_needs = LNT_NEEDS_ALL_IN, .save_size = lnt_recur_save_size, .state_size = state_size,                \
      .state_tensors = state_tensors, .workspace = workspace, .flops = lnt_recur_node_flops, .position = true, .host_position = true, \
      .forward = forward, .backward = lnt_recur_node_backward, .describe = lnt_recur_describe }

const lnt_op lnt_longconv_node = NODE("long_conv");
const lnt_op lnt_heads_conv_node = NODE("multihead_long_conv");

/* Attention's node: its state is a cache of k rows [R,Hk,K], then v rows [R,Hk,V], in the policy's dtype; R is the capacity, or the window w of a
 * ring in which token p sits in row p mod w (softmax does not care in which order rows come, and rotary positions were applied before). */
#include "recurrence/attention/attention_node.h"

#include "core/threads.h"
#include "device/device.h"
#include "recurrence/attention/attention_gpu.h"
#include "recurrence/recur_args.h"
#include "recurrence/recur_node.h"

static lnt_recur_args *args_of(lnt_recur_call *a) { return (void *)a; }
static char *at_row(const void *p, int64_t row, int64_t cols, lnt_dtype t) { return (char *)p + (size_t)(row * cols) * lnt_dtype_size(t); }

static int64_t cache_rows(const lnt_recur_args *a, int64_t capacity) { return a->window > 0 && a->window < capacity ? a->window : capacity; }

static int64_t state_size(const lnt_node *n, int64_t capacity, lnt_dtype dtype)
{
    const lnt_recur_args *x = lnt_recur_args_of(n);
    return cache_rows(x, capacity) * x->Hk * ((int64_t)x->K + x->V) * (int64_t)lnt_dtype_size(dtype);
}

/* Whether the capacity is the end, rather than a ring that never fills. */
static bool limited(const lnt_recur_args *a, int64_t capacity) { return a->window == 0 || a->window > capacity; }

static int state_tensors(const lnt_node *n, int64_t capacity, lnt_dtype dtype, int64_t tokens, lnt_state_tensor *t)
{
    const lnt_recur_args *x = lnt_recur_args_of(n);
    const int64_t R = cache_rows(x, capacity), rows = tokens < R ? tokens : R;
    t[0] = (lnt_state_tensor){ .name = "k", .dtype = dtype, .ndim = 3, .dim = { rows, x->Hk, x->K }, .appended = limited(x, capacity) };
    t[1] = t[0];
    t[1].name = "v";
    t[1].dim[2] = x->V;
    t[1].offset = R * x->Hk * (int64_t)x->K * (int64_t)lnt_dtype_size(dtype);
    return 2;
}

/* Rows of a windowed cache of R rows and of new tokens, side by side: k, then v. */
static size_t joined_bytes(const lnt_recur_args *a, int64_t R, int64_t tokens)
{
    return a->window > 0 ? lnt_recur_padded((size_t)((R + tokens) * a->Hk * ((int64_t)a->K + a->V)) * lnt_dtype_size(a->dtype)) : 0;
}

static size_t workspace_for(const lnt_node *n, const lnt_shape *s, const int64_t *cu, bool backward)
{
    lnt_recur_call call;
    lnt_recur_args *a = args_of(&call);
    size_t bytes = lnt_recur_workspace_for(n, s, cu, backward);
    if (backward || !s->has_state) return bytes;
    lnt_recur_shape(n, s, cu, &call);
    const int64_t longest = lnt_recur_longest(a), rows = cache_rows(a, s->state_capacity);
    const size_t joined = joined_bytes(a, rows, longest);
    for (int step = 0; step < 2; step++) { /* sequence by sequence; short tails of a long batch may take the token form */
        int64_t one[2] = { 0, step ? longest > 0 : longest };
        a->tokens = one[1];
        a->sequences = 1;
        a->cu_seqlens = one;
        a->Tk = one[1] + rows;
        const size_t need = lnt_recur_workspace_quiet(a, false, s->threads, s->device);
        bytes = need > bytes ? need : bytes;
    }
#ifdef LINNET_CUDA
    if (s->device->kind == LNT_DEVICE_CUDA) {
        const size_t step = lnt_attention_step_bytes(s->n_seq, a->Hq, a->V, rows);
        bytes = bytes > step ? bytes : step;
    }
#endif
    return lnt_recur_padded(bytes) + joined;
}

static size_t workspace(const lnt_node *n, const lnt_shape *s, bool backward) { return lnt_recur_with_offsets(n, s, backward, workspace_for); }

/* `len` rows of sequence n from row `first` on, with `position` tokens before them. They go into the cache first, unless they would overwrite rows
 * that the first of them still sees. */
static linnet_status attend_tokens(const lnt_call *k, const lnt_recur_args *all, int64_t n, int64_t first, int64_t len, int64_t position)
{
    int64_t R = cache_rows(all, k->state_capacity), cu[2] = { 0, len };
    if (limited(all, k->state_capacity) && position + len > R)
        return lnt_fail(k->c, LINNET_EINVAL, "%lld tokens do not fit a key-value cache of %lld", (long long)(position + len), (long long)R);
    size_t size = lnt_dtype_size(all->dtype), k_row = (size_t)(all->Hk * all->K) * size, v_row = (size_t)(all->Hk * all->V) * size;
    char *keys = (char *)k->state + n * k->state_stride, *values = keys + (size_t)R * k_row;
    lnt_recur_args a = *all;
    a.tokens = a.Tk = len;
    a.sequences = 1;
    a.cu_seqlens = cu;
    a.cu_seqlens_device = NULL;
    a.q = at_row(all->q, first, (int64_t)all->Hq * all->K, all->dtype);
    a.k = at_row(all->k, first, (int64_t)all->Hk * all->K, all->dtype);
    a.v = at_row(all->v, first, (int64_t)all->Hk * all->V, all->dtype);
    a.o = at_row(all->o, first, (int64_t)all->Hq * all->V, all->dtype);
    const char *new_k = a.k, *new_v = a.v;
    bool straight = position + len <= R; /* nothing in the ring is overwritten: rows are in order */
    if (straight || len == 1) {
        lnt_ring_put(k->c, keys, R, position, new_k, len, k_row);
        lnt_ring_put(k->c, values, R, position, new_v, len, v_row);
        a.k = keys;
        a.v = values;
        a.Tk = len + (straight ? position : R - 1);
        if (!straight) a.window = 0; /* the ring is the window */
        return lnt_recur_run(k->c, &a, false);
    }
    int64_t past = position < R - 1 ? position : R - 1;
    if (past) {
        size_t joined = joined_bytes(all, R, len);
        char *jk = a.workspace, *jv = jk + (size_t)(past + len) * k_row;
        if (joined > a.workspace_size)
            return lnt_fail(k->c, LINNET_EINTERNAL, "attention workspace of %zu bytes; needs %zu", a.workspace_size, joined);
        lnt_ring_get(k->c, jk, keys, R, position, past, k_row);
        lnt_ring_get(k->c, jv, values, R, position, past, v_row);
        lnt_device_copy(k->c, jk + (size_t)past * k_row, new_k, (size_t)len * k_row);
        lnt_device_copy(k->c, jv + (size_t)past * v_row, new_v, (size_t)len * v_row);
        a.k = jk;
        a.v = jv;
        a.Tk = len + past;
        a.workspace = (char *)a.workspace + joined;
        a.workspace_size -= joined;
    }
    LNT_TRY(lnt_recur_run(k->c, &a, false));
    lnt_ring_put(k->c, keys, R, position, new_k, len, k_row);
    lnt_ring_put(k->c, values, R, position, new_v, len, v_row);
    return LINNET_OK;
}

#ifdef LINNET_CUDA
/* The decoding step of all sequences, which a graph may record: where they stand is read on the device. */
static linnet_status attend_step(const lnt_call *k, const lnt_recur_args *a)
{
    const int64_t R = cache_rows(a, k->state_capacity);
    for (int64_t n = 0; n < k->n_seq; n++)
        if (limited(a, k->state_capacity) && k->position[n] >= R)
            return lnt_fail(k->c, LINNET_EINVAL, "%lld tokens do not fit a key-value cache of %lld", (long long)k->position[n] + 1, (long long)R);
    const lnt_attention_step step = { .sequences = k->n_seq, .Hk = a->Hk, .Hq = a->Hq, .K = a->K, .V = a->V, .dtype = a->dtype,
                                      .scale = a->scale, .rows = R, .q = a->q, .k = a->k, .v = a->v,
                                      .o = a->o, .cache = k->state, .stride = k->state_stride, .position = k->position_device,
                                      .workspace = a->workspace, .stream = lnt_device_of(k->c)->stream };
    if (lnt_attention_step_bytes(k->n_seq, a->Hq, a->V, R) > a->workspace_size)
        return lnt_fail(k->c, LINNET_EINTERNAL, "attention workspace of %zu bytes is too small for a step", a->workspace_size);
    lnt_attention_step_put(&step);
    return lnt_device_check(k->c);
}
#endif

static linnet_status forward(const lnt_call *k)
{
    lnt_recur_call call;
    lnt_recur_bind(k, &call);
    lnt_recur_args *a = args_of(&call);
    if (!k->state) return lnt_recur_run(k->c, a, false);
    lnt_state_fill(a);
#ifdef LINNET_CUDA
    if (lnt_on_cuda(k->c) && lnt_one_token_each(k)) return attend_step(k, a);
#endif
    for (int64_t n = 0; n < k->n_seq; n++) {
        const int64_t first = k->cu[n], len = k->cu[n + 1] - first, each = lnt_rows_are_alone(k->c) ? 1 : len;
        for (int64_t t = 0; t < len; t += each) LNT_TRY(attend_tokens(k, a, n, first + t, each, k->position[n] + t));
    }
    return LINNET_OK;
}

const lnt_op lnt_attention_node = {
    .name = "attention",
    .backward_needs = LNT_NEEDS_ALL_IN | LNT_NEEDS_OUT0,
    .save_size = lnt_recur_save_size,
    .state_size = state_size,
    .state_tensors = state_tensors,
    .workspace = workspace,
    .flops = lnt_recur_node_flops,
    .position = true,
    .host_position = true,
    .forward = forward,
    .backward = lnt_recur_node_backward,
    .describe = lnt_recur_describe,
};

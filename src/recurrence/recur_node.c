/* The recurrences as nodes of a program: everything follows from the operator's description. The state of a sequence is the description's initial
 * states one behind the other, float32. */
#include "recurrence/recur_node.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "core/threads.h"
#include "device/device.h"
#include "ops/ops.h"

/* ---- shapes and bytes -------------------------------------------------------------------------------------------------------------- */

static bool is_state(const lnt_recur_attr *x, int row) { return x->op->tensors[row].role == LNT_T_STATE && lnt_recur_has(&x->call, row); }

static int state_rows(const lnt_recur_attr *x)
{
    int n = 0;
    for (int i = 0; x->op->tensors[i].name; i++) n += is_state(x, i);
    return n;
}

/* Bytes of one sequence's state in row `row`. Of several, each begins at a multiple of 16, as kernels on a GPU want it; where there is one tensor,
 * those of all sequences are one too, without gaps. */
static int64_t state_bytes(const lnt_recur_attr *x, int row)
{
    lnt_recur_call one = x->call;
    one.head.sequences = 1;
    const int64_t bytes = lnt_recur_elements(&one, row) * 4;
    return state_rows(x) == 1 ? bytes : (bytes + 15) / 16 * 16;
}

int64_t lnt_recur_state_size(const lnt_node *n, int64_t capacity, lnt_dtype dtype)
{
    const lnt_recur_attr *x = n->attr;
    int64_t bytes = 0;
    (void)capacity;
    (void)dtype;
    for (int i = 0; x->op->tensors[i].name; i++)
        if (is_state(x, i)) bytes += state_bytes(x, i);
    return bytes;
}

/* Named as the initial state without its "0". */
int lnt_recur_state_tensors(const lnt_node *n, int64_t capacity, lnt_dtype dtype, int64_t tokens, lnt_state_tensor *out)
{
    const lnt_recur_attr *x = n->attr;
    int64_t at = 0;
    int count = 0;
    (void)capacity, (void)dtype, (void)tokens;
    for (int i = 0; x->op->tensors[i].name && count < LNT_STATE_TENSORS; i++) {
        if (!is_state(x, i)) continue;
        lnt_state_tensor *t = &out[count++];
        *t = (lnt_state_tensor){ .name = x->op->tensors[i].carried, .dtype = LINNET_F32, .offset = at };
        const char *shape = x->op->tensors[i].shape, *letter;
        size_t length;
        while ((letter = lnt_recur_next_letter(&shape, &length)) && t->ndim < LNT_STATE_DIMS)
            if (letter[0] != 'N') t->dim[t->ndim++] = lnt_recur_letter(x->op, &x->call, letter, length);
        at += state_bytes(x, i);
    }
    return count;
}

int64_t lnt_recur_save_size(const lnt_node *n, const lnt_shape *s)
{
    const lnt_recur_attr *x = n->attr;
    lnt_recur_call a;
    lnt_recur_shape(n, s, NULL, &a);
    int64_t bytes = 0;
    for (int i = 0; x->op->tensors[i].name; i++)
        if (x->op->tensors[i].role == LNT_T_SAVED) bytes += (int64_t)lnt_recur_padded((size_t)lnt_recur_elements(&a, i) * 4);
    return bytes;
}

void lnt_recur_shape(const lnt_node *n, const lnt_shape *s, const int64_t *cu, lnt_recur_call *a)
{
    const lnt_recur_attr *x = n->attr;
    *a = x->call;
    a->head.dtype = s->dtype;
    a->head.tokens = s->tokens;
    a->head.sequences = s->n_seq;
    a->head.cu_seqlens = cu;
    for (const lnt_recur_size *z = x->op->sizes; z->letter; z++)
        if (z->letter[0] == 'T') lnt_recur_size_set(z, a, s->tokens);
}

/* Input i of this node feeds something else too (or twice), or is a parameter, so that its gradient may have to be added to what is there. */
static bool shared_input(const lnt_node *n, int i)
{
    if (lnt_program_value(n->program, n->in[i])->param >= 0) return true;
    int32_t producer = lnt_program_value(n->program, n->in[i])->producer, uses = 0;
    for (int m = 0; m < lnt_node_count(n->program); m++) {
        const lnt_node *other = lnt_node_at(n->program, m);
        for (int k = 0; k < other->n_in; k++) uses += other->in[k].id && lnt_program_value(n->program, other->in[k])->producer == producer;
    }
    return uses > 1;
}

static size_t gradient_bytes(const lnt_node *n, int i, int64_t tokens, lnt_dtype dtype)
{
    const lnt_value *v = lnt_program_value(n->program, n->in[i]);
    return lnt_recur_padded((size_t)(lnt_rows(n->program, n->in[i], tokens) * v->cols) * (v->f32 ? 4 : lnt_dtype_size(dtype)));
}

/* On a GPU a constant input stands at the head of the workspace. */
static size_t constant_bytes(const lnt_recur_attr *x, const lnt_device *d)
{
    return x->constant >= 0 && d->kind == LNT_DEVICE_CUDA ? lnt_recur_padded((size_t)lnt_recur_elements(&x->call, x->constant) * 4) : 0;
}

size_t lnt_recur_workspace_for(const lnt_node *n, const lnt_shape *s, const int64_t *cu, bool backward)
{
    const lnt_recur_attr *x = n->attr;
    lnt_recur_call a;
    lnt_recur_shape(n, s, cu, &a);
    size_t bytes = lnt_recur_workspace_quiet(&a, backward, s->threads, s->device);
    if (backward) {
        for (int i = 0; i < n->n_in; i++)
            if (shared_input(n, i)) bytes = lnt_recur_padded(bytes) + gradient_bytes(n, i, s->tokens, s->dtype);
    } else if (s->has_state && state_rows(x) > 1) { /* sequence by sequence; short ones of a long batch may take the token form */
        const int64_t longest = lnt_recur_longest(&a);
        for (int step = 0; step < 2; step++) {
            int64_t one[2] = { 0, step ? longest > 0 : longest };
            const lnt_shape alone = { .tokens = one[1], .n_seq = 1, .dtype = s->dtype };
            lnt_recur_shape(n, &alone, one, &a);
            const size_t need = lnt_recur_workspace_quiet(&a, false, s->threads, s->device);
            bytes = need > bytes ? need : bytes;
        }
    }
    return lnt_recur_padded(bytes) + constant_bytes(x, s->device);
}

size_t lnt_recur_with_offsets(const lnt_node *n, const lnt_shape *s, bool backward,
                              size_t (*f)(const lnt_node *n, const lnt_shape *s, const int64_t *cu, bool backward))
{
    if (s->cu) return f(n, s, s->cu, backward);
    int64_t *cu = lnt_alloc(lnt_bytes((size_t)s->n_seq + 1, sizeof *cu));
    if (!cu) return 0;
    for (int64_t i = 0; i <= s->n_seq; i++) cu[i] = s->n_seq ? s->tokens / s->n_seq * i : 0;
    cu[s->n_seq] = s->tokens;
    size_t bytes = f(n, s, cu, backward);
    lnt_free(cu);
    return bytes;
}

size_t lnt_recur_node_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    return lnt_recur_with_offsets(n, s, backward, lnt_recur_workspace_for);
}

/* Counted at C = 16, the cheapest chunk that is all useful work (operators.md#flops). */
double lnt_recur_node_flops(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const lnt_recur_attr *x = n->attr;
    int64_t equal[2] = { 0, s->n_seq ? s->tokens / s->n_seq : 0 };
    lnt_recur_call a;
    lnt_recur_shape(n, s, s->cu, &a);
    if (s->cu) return x->op->flops(&a, 16, backward);
    const lnt_shape one = { .tokens = equal[1], .n_seq = 1, .dtype = s->dtype };
    lnt_recur_shape(n, &one, equal, &a);
    return x->op->flops(&a, 16, backward) * (double)s->n_seq;
}

/* Sizes, and options that are not at their standard. */
void lnt_recur_describe(const lnt_node *n, char *text, size_t size)
{
    const lnt_recur_attr *x = n->attr;
    size_t at = 0;
    *text = 0;
    for (const lnt_recur_size *z = x->op->sizes; z->letter && at < size; z++)
        if (z->letter[0] != 'T')
            at += (size_t)snprintf(text + at, size - at, "%s%s=%lld", at ? " " : "", z->letter, (long long)lnt_recur_size_get(z, &x->call));
    for (const lnt_recur_option *o = x->op->options; o->key && at < size; o++) {
        const double value = lnt_recur_option_get(o, &x->call);
        if (!isnan(value) && value != o->standard) at += (size_t)lnt_format(text + at, size - at, " %s=%g", o->key, value);
    }
}

/* ---- running ----------------------------------------------------------------------------------------------------------------------- */

void *lnt_recur_take(lnt_recur_call *a, size_t bytes)
{
    void *p = a->head.workspace;
    bytes = bytes < a->head.workspace_size ? bytes : a->head.workspace_size; /* too little for the kernel then, which says so */
    a->head.workspace = (char *)p + bytes;
    a->head.workspace_size -= bytes;
    return p;
}

void lnt_recur_bind(const lnt_call *k, lnt_recur_call *a)
{
    const lnt_recur_attr *x = k->attr;
    const lnt_shape s = { .tokens = k->tokens, .n_seq = k->n_seq, .dtype = k->out[0].dtype }; /* an input may be a gate */
    lnt_recur_shape(k->node, &s, k->cu, a);
    a->head.cu_seqlens_device = k->cu_device;
    for (int i = 0; i < k->node->n_in; i++) lnt_recur_set(a, &x->op->tensors[x->input[i]], k->in[i].data);
    lnt_recur_set(a, &x->op->tensors[x->output], k->out[0].data);
    char *save = k->save;
    for (int i = 0; save && x->op->tensors[i].name; i++) {
        if (x->op->tensors[i].role != LNT_T_SAVED) continue;
        lnt_recur_set(a, &x->op->tensors[i], save);
        save += lnt_recur_padded((size_t)lnt_recur_elements(a, i) * 4);
    }
    a->head.workspace = k->work;
    a->head.workspace_size = k->work_size;
    const size_t bytes = constant_bytes(x, lnt_device_of(k->c));
    const void *constant = x->constant_value;
    if (bytes && bytes <= k->work_size) {
        constant = lnt_recur_take(a, bytes);
        lnt_device_put(k->c, (void *)constant, x->constant_value, (size_t)lnt_recur_elements(a, x->constant) * 4);
    }
    if (x->constant >= 0) lnt_recur_set(a, &x->op->tensors[x->constant], constant);
}

void lnt_recur_slice(lnt_recur_call *a, int64_t first, int64_t length, int64_t *cu)
{
    const lnt_recur_op *op = a->head.op;
    const int64_t tokens = a->head.tokens;
    for (int i = 0; op->tensors[i].name; i++) {
        char *data = lnt_recur_get(a, &op->tensors[i]);
        if (!data || op->tensors[i].shape[0] != 'T') continue;
        const size_t row = tokens ? (size_t)(lnt_recur_elements(a, i) / tokens) * lnt_dtype_size(lnt_recur_type(a, i)) : 0;
        lnt_recur_set(a, &op->tensors[i], data + (size_t)first * row);
    }
    for (const lnt_recur_size *z = op->sizes; z->letter; z++)
        if (z->letter[0] == 'T') lnt_recur_size_set(z, a, length);
    cu[0] = 0;
    cu[1] = length;
    a->head.tokens = length;
    a->head.sequences = 1;
    a->head.cu_seqlens = cu;
    a->head.cu_seqlens_device = NULL;
}

void lnt_ring_put(lnt_ctx *c, char *ring, int64_t R, int64_t position, const char *rows, int64_t count, size_t row_bytes)
{
    int64_t skip = count > R ? count - R : 0;
    for (int64_t i = skip; i < count;) {
        int64_t slot = (position + i) % R, run = R - slot < count - i ? R - slot : count - i;
        lnt_device_copy(c, ring + (size_t)slot * row_bytes, rows + (size_t)i * row_bytes, (size_t)run * row_bytes);
        i += run;
    }
}

void lnt_ring_get(lnt_ctx *c, char *dst, const char *ring, int64_t R, int64_t position, int64_t count, size_t row_bytes)
{
    for (int64_t i = 0; i < count;) {
        int64_t slot = (position - count + i) % R, run = R - slot < count - i ? R - slot : count - i;
        lnt_device_copy(c, dst + (size_t)i * row_bytes, ring + (size_t)slot * row_bytes, (size_t)run * row_bytes);
        i += run;
    }
}

/* The states of a sequence (or of all, where a state is one tensor) at `state`, in and out. An initial state's row is followed by its gradient's
 * and the final state's. */
static void set_states(const lnt_recur_attr *x, lnt_recur_call *a, char *state)
{
    for (int i = 0; x->op->tensors[i].name; i++) {
        if (!is_state(x, i)) continue;
        lnt_recur_set(a, &x->op->tensors[i], state);
        lnt_recur_set(a, &x->op->tensors[i + 2], state);
        state += state_bytes(x, i);
    }
}

linnet_status lnt_recur_forward(const lnt_call *k, const lnt_recur_call *all)
{
    const lnt_recur_attr *x = k->attr;
    lnt_recur_call a = *all;
    if (!k->state) return lnt_recur_run(k->c, &a, false);
    a.head.states_early = true;
    if (state_rows(x) == 1) { /* states lie one after the other */
        set_states(x, &a, k->state);
        return lnt_recur_run(k->c, &a, false);
    }
    for (int64_t n = 0; n < k->n_seq; n++) {
        int64_t cu[2];
        a = *all;
        a.head.states_early = true;
        lnt_recur_slice(&a, k->cu[n], k->cu[n + 1] - k->cu[n], cu);
        set_states(x, &a, (char *)k->state + n * k->state_stride);
        LNT_TRY(lnt_recur_run(k->c, &a, false));
    }
    return LINNET_OK;
}

linnet_status lnt_recur_node_forward(const lnt_call *k)
{
    lnt_recur_call a;
    lnt_recur_bind(k, &a);
    return lnt_recur_forward(k, &a);
}

/* sum += part */
static void add_gradient(lnt_ctx *c, const lnt_tensor *sum, const void *part)
{
    int64_t count = sum->rows * sum->cols;
#ifdef LINNET_CUDA
    if (lnt_on_cuda(c)) {
        lnt_gradient_add_cuda(c, sum->data, part, sum->dtype, count);
        return;
    }
#endif
#pragma omp parallel for num_threads(lnt_threads(c))
    for (int64_t j = 0; j < count; j++)
        lnt_store_element(sum->data, sum->dtype, j, lnt_load_element(sum->data, sum->dtype, j) + lnt_load_element(part, sum->dtype, j));
}

linnet_status lnt_recur_backward(const lnt_call *k, lnt_recur_call *a)
{
    const lnt_recur_attr *x = k->attr;
    const lnt_recur_tensor *rows = x->op->tensors;
    void *part[LNT_MAX_IN] = { 0 };
    lnt_recur_set(a, &rows[x->output + 1], k->d_out[0].data);
    if (!rows[x->output].read_back) lnt_recur_set(a, &rows[x->output], NULL);
    for (int i = 0; i < k->node->n_in; i++) { /* gradients to be added to others come first in the workspace */
        const lnt_tensor d = k->d_in[i];
        if (d.data) part[i] = k->accumulate[i] ? lnt_recur_take(a, lnt_recur_padded((size_t)(d.rows * d.cols) * lnt_dtype_size(d.dtype))) : d.data;
        lnt_recur_set(a, &rows[x->input[i] + 1], part[i]);
    }
    LNT_TRY(lnt_recur_run(k->c, a, true));
    for (int i = 0; i < k->node->n_in; i++)
        if (k->d_in[i].data && k->accumulate[i]) add_gradient(k->c, &k->d_in[i], part[i]);
    return lnt_device_check(k->c);
}

linnet_status lnt_recur_node_backward(const lnt_call *k)
{
    lnt_recur_call a;
    lnt_recur_bind(k, &a);
    return lnt_recur_backward(k, &a);
}

/* ---- building ------------------------------------------------------------------------------------------------------------------------ */

/* Letter := value, which must be what another input said. */
static bool learn(lnt_program *p, const lnt_recur_op *op, const char *name, const char *letter, size_t length, int64_t value, lnt_recur_call *a)
{
    const lnt_recur_size *s = lnt_recur_size_find(op, letter, length);
    const int64_t known = s ? lnt_recur_size_get(s, a) : 0;
    if (!s && lnt_recur_letter(op, a, letter, length) >= 0) return true; /* an option, which check_rows holds it to */
    if (!s || value < s->least || value > s->most)
        return lnt_program_fail(p, "%s: %s gives %.*s = %lld", op->name, name, (int)length, letter, (long long)value), false;
    if (known && known != value)
        return lnt_program_fail(p, "%s: %s gives %s = %lld, another input %lld", op->name, name, s->letter, (long long)value, (long long)known),
            false;
    lnt_recur_size_set(s, a, value);
    return true;
}

/* The option of "T*key ..." from the rows a token that a buffer has. */
static bool learn_rows(lnt_program *p, const lnt_recur_op *op, const lnt_recur_tensor *t, int64_t each, lnt_recur_call *a)
{
    linnet_context quiet = { .device = lnt_device_cpu() };
    const size_t length = strcspn(t->shape, " ");
    const char *times = memchr(t->shape, '*', length);
    char key[32];
    if (!times) return true;
    snprintf(key, sizeof key, "%.*s", (int)(length - (size_t)(times + 1 - t->shape)), times + 1);
    if (lnt_recur_option_set(&quiet, op, a, key, (double)each, NULL) == LINNET_OK) return true;
    return lnt_program_fail(p, "%s: %s: %s", op->name, t->name, quiet.message), false;
}

/* Whether every input has as many rows a token, and as many elements, as its shape says. */
static bool check_rows(lnt_program *p, const lnt_recur_op *op, const lnt_recur_attr *x, const lnt_buf *inputs, int n)
{
    lnt_recur_call one = x->call;
    one.head.tokens = 1;
    for (int i = 0; i < n; i++) {
        const lnt_recur_tensor *t = &op->tensors[x->input[i]];
        const size_t length = strcspn(t->shape, " ");
        const int64_t each = lnt_program_value(p, inputs[i])->each, want = lnt_recur_letter(op, &one, t->shape, length);
        if (t->shape[0] == 'T' && !lnt_recur_size_find(op, t->shape, length) && each != want)
            return lnt_program_fail(p, "%s: %s has %lld rows a token, expected %lld", op->name, t->name, (long long)each, (long long)want), false;
        if (t->shape[0] == 'T' && lnt_recur_size_find(op, t->shape, length)) continue;
        const int64_t rows = lnt_program_value(p, inputs[i])->rows, count = (rows ? rows : each) * lnt_cols(p, inputs[i]);
        const int64_t expected = lnt_recur_elements(&one, x->input[i]);
        if (count != expected)
            return lnt_program_fail(p, "%s: %s has %lld elements, expected %lld [%s]", op->name, t->name, (long long)count, (long long)expected,
                                    t->shape), false;
    }
    return true;
}

/* The letters of "T Hk K" or "T Hv" from a buffer's heads and columns; those of "Hk K" and "H D E", of fixed rows, from its rows and columns. */
static bool learn_sizes(lnt_program *p, const lnt_recur_op *op, const lnt_recur_tensor *t, lnt_buf b, lnt_recur_call *a)
{
    const char *shape = t->shape, *letter[3];
    size_t length[3];
    int n = 0;
    while (n < 3 && (letter[n] = lnt_recur_next_letter(&shape, &length[n]))) n++;
    const int64_t cols = lnt_cols(p, b), heads = lnt_heads(p, b), rows = lnt_program_value(p, b)->rows;
    if ((t->shape[0] == 'T') != (rows == 0) || n < 2 - (rows != 0))
        return lnt_program_fail(p, "%s: %s [%s] has other rows", op->name, t->name, t->shape), false;
    if (!t->wide && !lnt_program_value(p, b)->f32)
        return lnt_program_fail(p, "%s: %s must be float32 under every policy", op->name, t->name), false;
    if (rows) {
        if (n == 1) return learn(p, op, t->name, letter[0], length[0], rows * cols, a);
        if (!learn(p, op, t->name, letter[n - 1], length[n - 1], cols, a)) return false;
        const int64_t between = n == 3 ? lnt_recur_letter(op, a, letter[1], length[1]) : 1; /* a letter that is known by now */
        return learn(p, op, t->name, letter[0], length[0], between > 0 && rows % between == 0 ? rows / between : 0, a);
    }
    if (t->shape[0] == 'T' && !learn_rows(p, op, t, lnt_program_value(p, b)->each, a)) return false;
    if (n == 2) return learn(p, op, t->name, letter[1], length[1], cols, a);
    return learn(p, op, t->name, letter[1], length[1], heads, a) && learn(p, op, t->name, letter[2], length[2], cols / heads, a);
}

static bool copy_constant(lnt_program *p, const lnt_recur_in *in, lnt_recur_attr *x)
{
    x->constant = -1;
    if (!in->constant.name) return true;
    const int row = lnt_recur_tensor_find(x->op, in->constant.name);
    if (row < 0 || x->op->tensors[row].role != LNT_T_INPUT)
        return lnt_program_fail(p, "%s takes no %s", x->op->name, in->constant.name), false;
    const int64_t count = lnt_recur_elements(&x->call, row);
    float *value = lnt_program_alloc(p, lnt_bytes((size_t)count, sizeof *value));
    if (!value) return false;
    for (int64_t i = 0; i < count; i++) value[i] = (float)in->constant.value[i];
    x->constant = (int8_t)row;
    x->constant_value = value;
    return true;
}

/* Options, what sizes that no input told are, and the core's own checks. */
static bool settle(lnt_program *p, const lnt_recur_in *in, lnt_recur_attr *x)
{
    static const int64_t none[1] = { 0 };
    linnet_context quiet = { .device = lnt_device_cpu() };
    const lnt_recur_op *op = x->op;
    for (int i = 0; i < (int)(sizeof in->option / sizeof *in->option) && in->option[i].key; i++)
        if (lnt_recur_option_set(&quiet, op, &x->call, in->option[i].key, in->option[i].value, NULL) != LINNET_OK)
            return lnt_program_fail(p, "%s: %s", op->name, quiet.message), false;
    for (const lnt_recur_size *s = op->sizes; s->letter; s++)
        if (s->same_as && !lnt_recur_size_get(s, &x->call))
            lnt_recur_size_set(s, &x->call, lnt_recur_letter(op, &x->call, s->same_as, strlen(s->same_as)));
    lnt_recur_call call = x->call;
    call.head.cu_seqlens = none;
    if (op->fill) op->fill(&call);
    if (op->check && op->check(&quiet, &call, false) != LINNET_OK) return lnt_program_fail(p, "%s: %s", op->name, quiet.message), false;
    return true;
}

lnt_node *lnt_recur_add(lnt_program *p, const lnt_recur_op *op, const lnt_op *type, const lnt_recur_in *in, lnt_recur_attr *x, int n_param,
                        const int *param)
{
    enum { TENSORS = sizeof in->tensor / sizeof *in->tensor };
    bool given[LNT_RECUR_TENSORS] = { false };
    lnt_buf inputs[LNT_MAX_IN];
    int n = 0;
    x->op = op;
    lnt_recur_init(op, &x->call);
    for (int i = 0; i < TENSORS && in->tensor[i].name; i++) {
        if (!in->tensor[i].value.id) continue; /* absent */
        const int row = lnt_recur_tensor_find(op, in->tensor[i].name);
        if (row < 0 || op->tensors[row].role != LNT_T_INPUT || n == LNT_MAX_IN)
            return lnt_program_fail(p, "%s takes no %s", op->name, in->tensor[i].name), NULL;
        if (!learn_sizes(p, op, &op->tensors[row], in->tensor[i].value, &x->call)) return NULL;
        given[row] = true;
        const lnt_buf value = lnt_dense(p, in->tensor[i].value);
        int at = n++; /* in the description's order, whatever the caller's is */
        for (; at > 0 && x->input[at - 1] > row; at--) x->input[at] = x->input[at - 1], inputs[at] = inputs[at - 1];
        x->input[at] = (int8_t)row;
        inputs[at] = value;
    }
    if (!settle(p, in, x) || !check_rows(p, op, x, inputs, n) || !copy_constant(p, in, x)) return NULL;
    int64_t cols = 1, heads = 0;
    for (int i = 0; op->tensors[i].name; i++) {
        const lnt_recur_tensor *t = &op->tensors[i];
        const bool brought = n_param && t->shape[0] != 'T'; /* by the core's own node, from its parameters */
        if (t->role == LNT_T_INPUT && lnt_recur_has(&x->call, i) && !t->absent && !given[i] && x->constant != i && !brought)
            return lnt_program_fail(p, "%s needs %s", op->name, t->name), NULL;
        if (t->role != LNT_T_OUTPUT || t->shape[0] != 'T' || heads) continue;
        const char *shape = t->shape, *letter;
        size_t length;
        lnt_recur_next_letter(&shape, &length);
        while ((letter = lnt_recur_next_letter(&shape, &length))) {
            const int64_t value = lnt_recur_letter(op, &x->call, letter, length);
            heads = heads ? heads : letter[0] == 'H' ? value : 1;
            cols *= value;
        }
        x->output = (int8_t)i;
    }
    return lnt_add_node(p, type, x, n, inputs, n_param, param, 1, &(lnt_out_spec){ .cols = cols, .heads = (int32_t)heads });
}

lnt_buf lnt_recur(lnt_program *p, const char *name, lnt_recur_in in)
{
    if (lnt_program_failed(p)) return LNT_NO_BUF;
    const lnt_recur_op *op = lnt_recur_find(name);
    if (!op || !op->node) return lnt_program_fail(p, "unknown operator \"%s\"", name);
    lnt_recur_attr *x = lnt_program_alloc(p, sizeof *x);
    if (!x) return LNT_NO_BUF;
    lnt_node *node = lnt_recur_add(p, op, op->node, &in, x, 0, NULL);
    return node ? node->out[0] : LNT_NO_BUF;
}

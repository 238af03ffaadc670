#include "ops/builder.h"

bool lnt_ready(lnt_program *p, const char *op, int n, const lnt_buf *in)
{
    if (lnt_program_failed(p)) return false;
    for (int i = 0; i < n; i++)
        if (in[i].id <= 0) {
            lnt_program_fail(p, "%s: input %d is missing", op, i);
            return false;
        }
    return true;
}

bool lnt_row_a_token(lnt_program *p, const char *op, lnt_buf x)
{
    const lnt_value *v = lnt_program_value(p, x);
    if (!v->rows && v->each == 1) return true;
    lnt_program_fail(p, "%s: its input has %s, expected one row a token", op, v->rows ? "a fixed number of rows" : "several rows a token");
    return false;
}

void *lnt_attr(lnt_program *p, const void *attr, size_t bytes)
{
    void *copy = lnt_program_alloc(p, bytes);
    if (copy) memcpy(copy, attr, bytes);
    return copy;
}

int lnt_named_param(lnt_program *p, const char *name, const char *kind, int64_t rows, int64_t cols, lnt_init init, bool decay, bool product)
{
    char full[256];
    if (snprintf(full, sizeof full, "%s.%s", name, kind) >= (int)sizeof full) {
        lnt_program_fail(p, "parameter name \"%.60s...\" is too long", name);
        return -1;
    }
    const int64_t dim[2] = {rows, cols};
    return lnt_add_param(p, full, cols ? 2 : 1, dim, init, decay, product);
}

lnt_buf lnt_add_op(lnt_program *p, const lnt_op *op, const void *attr, int n_in, const lnt_buf *in, int n_param, const int *param, lnt_out_spec out)
{
    lnt_buf dense[LNT_MAX_IN];
    for (int i = 0; i < n_in; i++) dense[i] = op->strided >> i & 1 ? in[i] : lnt_dense(p, in[i]);
    const lnt_node *n = lnt_add_node(p, op, attr, n_in, dense, n_param, param, 1, &out);
    return n ? n->out[0] : LNT_NO_BUF;
}

const char *lnt_act_name(lnt_act a)
{
    static const char *const names[] = {"identity", "silu", "sigmoid", "relu", "elu+1", "log_sigmoid", "tanh",
                                        "gelu", "gelu_tanh", "squared_relu", "exp", "softplus", "1 - exp", "sqrt", "reciprocal"};
    return names[a];
}

linnet_status lnt_zero_gradients(const lnt_call *k)
{
    for (int i = 0; i < k->node->n_in; i++) {
        const lnt_tensor *d = &k->d_in[i];
        if (!d->data || k->accumulate[i]) continue;
        const int64_t size = d->dtype == LINNET_F32 ? 4 : 2, runs = d->ld == d->cols ? 1 : d->rows; /* rows of a slice one by one */
        for (int64_t r = 0; r < runs; r++) lnt_device_zero(k->c, (char *)d->data + r * d->ld * size, (size_t)(d->rows / runs * d->cols * size));
    }
    for (int i = 0; i < k->node->n_param; i++)
        if (k->param[i].set && k->param[i].grad) lnt_device_zero(k->c, k->param[i].grad, (size_t)k->param[i].count * 4);
    return LINNET_OK;
}

int64_t lnt_sum_block_rows(int64_t rows) { return rows <= 32 * 64 ? 32 : (rows + 63) / 64; }
int64_t lnt_sum_blocks(int64_t rows)
{
    int64_t size = lnt_sum_block_rows(rows);
    return (rows + size - 1) / size;
}
int64_t lnt_cuda_sum_blocks(int64_t rows) { return rows < 8 * LNT_CUDA_SUM_BLOCKS ? (rows + 7) / 8 : LNT_CUDA_SUM_BLOCKS; }

/* Never less for fewer rows, so that a plan for many serves fewer. */
size_t lnt_sum_bytes(const lnt_shape *s, int64_t rows, int64_t columns)
{
    const bool cuda = s->device && s->device->kind == LNT_DEVICE_CUDA;
    const int64_t blocks = cuda ? lnt_cuda_sum_blocks(rows) : rows < 32 * 64 ? (rows + 31) / 32 : 64;
    return (size_t)(blocks * columns) * sizeof(float);
}

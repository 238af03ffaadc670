/* The output projection E [vocab, width] (often the embedding itself), with the logits' soft cap:
 *
 *   z = x E^T,  z' = cap tanh(z/cap),  loss_t = log sum_v exp(z'_tv) - z'_{t,target_t}   (0 where target_t < 0)
 *   dz = loss_scale (softmax(z') - onehot(target)) (1 - (z'/cap)^2),  dx = dz E,  dE += dz^T x
 *
 * Logits exist for one block of rows at a time. In training the loss node does everything in its backward call. */
#include "ops/builder.h"

typedef struct {
    int64_t vocab, width;
    double softcap;
} head_attr;

/* float32 logits of a block. Every block reads E twice and dE is read and written once a block, so that blocks are large: 128 MiB (640 rows of a
 * vocabulary of 50257), but no more than a quarter of the tokens, so that a batch's logits never exist at once, unless they are small: 32 MiB. */
enum { BLOCK_BYTES = 128 << 20, SMALL_BYTES = 32 << 20, BLOCK_STEP = 32 };
/* On a GPU logits and their gradient (6 bytes an element) have 1.5 GiB together: two blocks of 8192 for 16384 tokens of a vocabulary of 32000, whose
 * dx of 2048 columns is 512 tiles of 128 x 256, 3.9 turns of 132 multiprocessors (three blocks: 344, 2.6 turns); each adds to dE, 4 bytes an element
 * read and written. Blocks of a batch have the same size but for the last. */
enum { CUDA_BYTES = 3 << 29, CUDA_STEP = 128 };

static int64_t rows_within(int64_t bytes, int64_t vocab)
{
    int64_t rows = bytes / 4 / vocab / BLOCK_STEP * BLOCK_STEP;
    return rows < BLOCK_STEP ? BLOCK_STEP : rows;
}

static int64_t block_rows(const lnt_device *device, int64_t vocab, int64_t tokens)
{
    if (device && device->kind == LNT_DEVICE_CUDA) {
        const int64_t fit = CUDA_BYTES / 6 / (vocab + BLOCK_STEP) / CUDA_STEP * CUDA_STEP, some = fit < CUDA_STEP ? CUDA_STEP : fit;
        if (some >= tokens) return tokens;
        const int64_t blocks = (tokens + some - 1) / some;
        return ((tokens + blocks - 1) / blocks + CUDA_STEP - 1) / CUDA_STEP * CUDA_STEP;
    }
    const int64_t most = rows_within(BLOCK_BYTES, vocab), least = rows_within(SMALL_BYTES, vocab), quarter = tokens / 4 / BLOCK_STEP * BLOCK_STEP;
    const int64_t rows = quarter < least ? least : quarter < most ? quarter : most;
    return rows < tokens ? rows : tokens;
}

/* Elements from a row of logits to the next: an odd number of 64-byte lines of bf16, so that every row begins a line (on AMX
 * z = x E^T takes half the time for a vocabulary of 50257, dE a tenth more) and neighbouring rows fall into different sets of the cache. */
static int64_t row_stride(int64_t vocab) { return ((vocab + 31) / 32 | 1) * 32; }

/* Where a block of logits lies, and its gradient: in place under float32, behind it under bf16. */
static size_t loss_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const head_attr *a = n->attr;
    return (size_t)(block_rows(s->device, a->vocab, s->tokens) * row_stride(a->vocab)) * (backward && s->dtype != LINNET_F32 ? 6 : 4);
}

static double loss_flops(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const head_attr *a = n->attr;
    return (backward ? 6.0 : 2.0) * (double)s->tokens * (double)a->vocab * (double)a->width;
}

static void *row_of(const lnt_tensor *x, int64_t r) { return (char *)x->data + r * x->cols * (x->dtype == LINNET_F32 ? 4 : 2); }

/* z[rows, vocab] = x E^T for the rows from r on; ld elements from row to row. */
static linnet_status logits_of(const lnt_call *k, int64_t r, int64_t rows, float *z, int64_t ld)
{
    const head_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0];
    return lnt_gemm(k->c, &(lnt_gemm_args){.trans_b = true, .weights = true, .M = rows, .N = a->vocab, .K = a->width, .alpha = 1,
                                           .ab = x->dtype, .c = LINNET_F32, .a = row_of(x, r), .lda = a->width, .b = k->param[0].work,
                                           .ldb = a->width, .b_scale = k->param[0].scale, .C = z, .ldc = ld});
}

/* dx and dE of the rows from r on, from dz[rows, vocab] of x's type, ld elements from row to row. */
static linnet_status gradients_of(const lnt_call *k, int64_t r, int64_t rows, const void *dz, int64_t ld)
{
    const head_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0], *dx = &k->d_in[0];
    if (dx->data)
        LNT_TRY(lnt_gemm(k->c, &(lnt_gemm_args){.M = rows, .N = a->width, .K = a->vocab, .alpha = 1, .beta = k->accumulate[0], .ab = x->dtype,
                                                .c = dx->dtype, .a = dz, .lda = ld, .b = k->param[0].work, .ldb = a->width, .C = row_of(dx, r),
                                                .ldc = a->width}));
    if (!k->param[0].grad) return LINNET_OK;
    return lnt_gemm(k->c, &(lnt_gemm_args){.trans_a = true, .M = a->vocab, .N = a->width, .K = rows, .alpha = 1,
                                           .beta = r > 0 || !k->param[0].set, .ab = x->dtype, .c = LINNET_F32, .a = dz, .lda = ld,
                                           .b = row_of(x, r), .ldb = a->width, .C = k->param[0].grad, .ldc = a->width});
}

static linnet_status check_targets(const lnt_call *k)
{
    const int32_t *target = k->in[1].data;
    const head_attr *a = k->attr;
    for (int64_t t = 0; t < k->tokens; t++)
        if (target[t] >= a->vocab)
            return lnt_fail(k->c, LINNET_EINVAL, "target %lld is %d, expected below %lld", (long long)t, target[t], (long long)a->vocab);
    return LINNET_OK;
}

static linnet_status loss_run(const lnt_call *k, bool gradients)
{
    const head_attr *a = k->attr;
    const int64_t size = block_rows(lnt_device_of(k->c), a->vocab, k->tokens), ld = row_stride(a->vocab);
    const lnt_dtype type = k->in[0].dtype;
    float *z = k->work;
    if (!lnt_on_cuda(k->c)) LNT_TRY(check_targets(k)); /* on a GPU the kernel leaves such rows out */
    for (int64_t r = 0; r < k->tokens; r += size) {
        const int64_t rows = k->tokens - r < size ? k->tokens - r : size;
        LNT_TRY(logits_of(k, r, rows, z, ld));
        lnt_xent_args e = {.z = z, .rows = rows, .vocab = a->vocab, .ld = ld, .target = (const int32_t *)k->in[1].data + r, .softcap = a->softcap,
                           .scale = (float)k->loss_scale, .loss = (float *)k->out[0].data + r, .dz_type = type};
        if (gradients) e.dz = type == LINNET_F32 ? (void *)z : (void *)(z + size * ld);
        LNT_KERNEL(k->c, lnt_xent)(k->c, &e);
        if (gradients) LNT_TRY(gradients_of(k, r, rows, e.dz, ld));
    }
    return LINNET_OK;
}

static linnet_status loss_forward(const lnt_call *k) { return loss_run(k, false); }
static linnet_status loss_backward(const lnt_call *k) { return loss_run(k, true); }

static linnet_status logits_forward(const lnt_call *k)
{
    const head_attr *a = k->attr;
    LNT_TRY(logits_of(k, 0, k->tokens, k->out[0].data, a->vocab));
    if (a->softcap > 0) LNT_KERNEL(k->c, lnt_softcap)(k->c, k->out[0].data, k->tokens * a->vocab, a->softcap);
    return LINNET_OK;
}

static linnet_status logits_backward(const lnt_call *k)
{
    const head_attr *a = k->attr;
    const int64_t size = block_rows(lnt_device_of(k->c), a->vocab, k->tokens);
    if (!k->d_out[0].data) return lnt_zero_gradients(k);
    for (int64_t r = 0; r < k->tokens; r += size) {
        const int64_t rows = k->tokens - r < size ? k->tokens - r : size;
        LNT_KERNEL(k->c, lnt_softcap_back)(k->c, k->work, k->in[0].dtype, (const float *)k->d_out[0].data + r * a->vocab,
                                           (const float *)k->out[0].data + r * a->vocab, rows * a->vocab, a->softcap);
        LNT_TRY(gradients_of(k, r, rows, k->work, a->vocab));
    }
    return LINNET_OK;
}

static size_t logits_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const head_attr *a = n->attr;
    return backward ? (size_t)(block_rows(s->device, a->vocab, s->tokens) * a->vocab) * 4 : 0;
}

static double logits_flops(const lnt_node *n, const lnt_shape *s, bool backward) { return loss_flops(n, s, false) * (backward ? 2 : 1); }

static void head_describe(const lnt_node *n, char *text, size_t size)
{
    const head_attr *a = n->attr;
    if (a->softcap > 0)
        lnt_format(text, size, "vocabulary %lld, soft cap %g", (long long)a->vocab, a->softcap);
    else
        snprintf(text, size, "vocabulary %lld", (long long)a->vocab);
}

static const lnt_op loss_op = {.name = "lm_loss", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_IN1, .stores_first = true,
                               .backward_is_forward = true, .workspace = loss_workspace, .flops = loss_flops, .forward = loss_forward,
                               .backward = loss_backward, .describe = head_describe};
static const lnt_op logits_op = {.name = "lm_logits", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_OUT0, .stores_first = true,
                                 .workspace = logits_workspace, .flops = logits_flops, .forward = logits_forward,
                                 .backward = logits_backward, .describe = head_describe};

static lnt_buf head(lnt_program *p, const lnt_op *op, int n_in, const lnt_buf *in, const char *weight, head_attr a, lnt_init init)
{
    if (!lnt_ready(p, op->name, n_in, in)) return LNT_NO_BUF;
    a.width = lnt_cols(p, in[0]);
    if (lnt_program_value(p, in[0])->f32) return lnt_program_fail(p, "%s: its input is float32 under every policy, expected an activation", op->name);
    if (a.vocab < 1 || a.vocab > INT32_MAX) return lnt_program_fail(p, "%s: vocabulary of %lld", op->name, (long long)a.vocab);
    const int param = lnt_add_param(p, weight, 2, (const int64_t[]){a.vocab, a.width}, init, true, true);
    return lnt_add_op(p, op, lnt_attr(p, &a, sizeof a), n_in, in, 1, &param, (lnt_out_spec){n_in > 1 ? 1 : a.vocab, 1, true});
}

lnt_buf lnt_lm_loss(lnt_program *p, lnt_buf x, lnt_buf targets, const char *weight, int64_t vocab, double softcap, lnt_init init)
{
    return head(p, &loss_op, 2, (const lnt_buf[]){x, targets}, weight, (head_attr){vocab, 0, softcap}, init);
}

lnt_buf lnt_lm_logits(lnt_program *p, lnt_buf x, const char *weight, int64_t vocab, double softcap, lnt_init init)
{
    return head(p, &logits_op, 1, &x, weight, (head_attr){vocab, 0, softcap}, init);
}

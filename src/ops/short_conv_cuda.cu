/* The launches of the convolution (short_conv_blocks.cuh): alone, with the norm of its heads, steps of several at once, and in training q, k and v
 * side by side. */
#include "ops/short_conv_blocks.cuh"

extern "C" {
#include "ops/norms.h"
#include "ops/short_conv.h"
}

enum { CONV_FORWARD_ROWS = 64, CONV_FORWARD_BLOCKS = 1024, CONV_BACKWARD_BLOCKS = 128, CONV_BACKWARD_ROWS = 16 };
/* Blocks of bf16 that an H200 has at once. 4352 columns make 2304 forward and 1152 back, whose last few hundred have the GPU to themselves. */
enum { CONV_FORWARD_TURN = 1056, CONV_BACKWARD_TURN = 528 };

/* Rows of a block, near `rows`, with which the blocks of `parts` columns go in whole turns. */
static int even_rows(int64_t tokens, int64_t parts, int64_t rows, int64_t turn)
{
    const int64_t turns = (lnt_div_up(tokens, rows) * parts + turn / 2) / turn;
    return (int)(turns < 1 || parts > turn ? rows : lnt_div_up(tokens, turns * turn / parts));
}

/* ---- forward ------------------------------------------------------------------------------------------------------------------------------ */

template <class P, int SIZE, int AHEAD, bool SILU, bool STEP, int NORM = BIASED>
__global__ void __launch_bounds__(CONV_THREADS, P::HALF ? 8 : 1) conv_forward(const __grid_constant__ conv_args a)
{
    forward_block<P, SIZE, AHEAD, SILU, STEP, NORM>(a, blockIdx.x);
}

/* Steps of several convolutions at once: up to 4 taps, SiLU, with the norm of their heads (lanes above 0) or without. */
struct conv_group {
    conv_args a[LNT_CONV_GROUP];
    unsigned first[LNT_CONV_GROUP]; /* of its blocks */
    int count;
};

static __global__ void __launch_bounds__(CONV_THREADS) conv_steps(const __grid_constant__ conv_group g)
{
    int i = 0;
    while (i + 1 < g.count && blockIdx.x >= g.first[i + 1]) i++;
    const conv_args &a = g.a[i];
    const int64_t block = blockIdx.x - g.first[i];
    if (a.lanes)
        forward_block<any4, 4, 1, true, true, ANY_LANES>(a, block);
    else
        forward_block<any4, 4, 1, true, true, BIASED>(a, block);
}

/* Each sequence's last inputs shift into its state, a thread each column. */
static __global__ void __launch_bounds__(256) advance_kernel(const __grid_constant__ conv_args a, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const int64_t seq = i / a.cols, c = i % a.cols, begin = a.cut.cu[seq], length = a.cut.cu[seq + 1] - begin;
    float *state = (float *)(a.state + seq * a.stride) + c;
    for (int64_t j = 0; j < a.size - 1 && length; j++) {
        const int64_t from = length - (a.size - 1) + j; /* row of the sequence, < 0: of the old state */
        float x[1];
        if (from < 0)
            x[0] = state[(j + length) * a.cols];
        else
            get<any1>(x, a.x, (begin + from) * a.ld_x + c);
        state[j * a.cols] = x[0];
    }
}

/* The grid of one of `members` alike; blocks side by side and rows of a block go into a. */
template <class P> static unsigned forward_blocks(conv_args &a, bool step, int members = 1)
{
    a.parts = (int)lnt_div_up(a.cols / P::U, CONV_THREADS);
    const int64_t all = a.parts * members, rows = lnt_div_up(a.cut.tokens * all, CONV_FORWARD_BLOCKS);
    a.rows = even_rows(a.cut.tokens, all, rows < CONV_FORWARD_ROWS ? rows : (int64_t)CONV_FORWARD_ROWS, CONV_FORWARD_TURN);
    return (unsigned)(a.parts * (step ? a.cut.n_seq : lnt_div_up(a.cut.tokens, a.rows)));
}

template <class P, int SIZE>
static void forward_run(lnt_ctx *c, conv_args a, bool step)
{
    constexpr int AHEAD = SIZE == 4 ? 4 : 1;
    const bool silu = SIZE == 4 && a.act == LNT_SILU;
    const unsigned blocks = forward_blocks<P>(a, step);
    const lnt_cuda *d = lnt_cuda_of(c);
    if constexpr (!P::HALF) {
        if (step && silu) return lnt_launch(d, conv_forward<P, SIZE, 1, SIZE == 4, true>, blocks, (int)CONV_THREADS, a);
        if (step) return lnt_launch(d, conv_forward<P, SIZE, 1, false, true>, blocks, (int)CONV_THREADS, a);
    }
    if (silu && !a.bias)
        lnt_launch(d, conv_forward<P, SIZE, AHEAD, SIZE == 4, false, SIZE == 4 ? NO_NORM : BIASED>, blocks, (int)CONV_THREADS, a);
    else if (silu)
        lnt_launch(d, conv_forward<P, SIZE, AHEAD, SIZE == 4, false>, blocks, (int)CONV_THREADS, a);
    else
        lnt_launch(d, conv_forward<P, SIZE, AHEAD, false, false>, blocks, (int)CONV_THREADS, a);
}

static conv_args args_of(const lnt_call *k)
{
    const lnt_conv_attr *attr = (const lnt_conv_attr *)k->attr;
    conv_args a = {};
    a.x = view_of(&k->in[0]), a.y = view_of(&k->out[0]), a.dy = view_of(&k->d_out[0]), a.dx = view_of(&k->d_in[0]);
    a.w = k->param[0].master;
    a.bias = attr->bias ? k->param[1].master : NULL;
    a.state = (const char *)k->state, a.stride = k->state_stride;
    a.cut = cut_of(k);
    a.cols = k->in[0].cols, a.ld_x = k->in[0].ld, a.ld_dx = k->d_in[0].data ? k->d_in[0].ld : a.cols;
    a.size = attr->size, a.act = attr->act, a.add = k->accumulate[0];
    a.step_x = a.ld_x * (int64_t)lnt_dtype_size(k->in[0].dtype), a.step_dx = a.ld_dx * (int64_t)lnt_dtype_size(k->d_in[0].dtype);
    a.step_y = a.cols * (int64_t)lnt_dtype_size(k->out[0].dtype);
    return a;
}

/* The unit, given where taps and state lie too. */
static int conv_unit(const conv_args &a, const lnt_tensor *const *tensors, int n)
{
    const bool aligned = ((uintptr_t)a.w | (uintptr_t)a.bias | (uintptr_t)a.state | (uintptr_t)a.stride) % 16 == 0;
    const int64_t sizes = (a.cols | a.ld_x | a.ld_dx) & 7; /* a multiple of a unit if all of them are */
    return aligned && a.size <= 4 ? unit_of(sizes ? sizes : 8, tensors, n) : 1;
}

/* Few tokens a sequence; any of them may still be long. */
static bool is_step(const lnt_call *k) { return k->state && k->tokens <= 4 * k->n_seq; }

/* Each sequence's last inputs into its state, where the kernel before did not. */
static void advance(const lnt_call *k, const conv_args &a)
{
    const int64_t n = k->n_seq * a.cols;
    if (k->state && !is_step(k) && a.size > 1) advance_kernel<<<(unsigned)lnt_div_up(n, 256), 256, 0, lnt_stream(k->c)>>>(a, n);
}

extern "C" linnet_status lnt_short_conv_forward_cuda(const lnt_call *k)
{
    if (k->tokens <= 0) return LINNET_OK;
    const conv_args a = args_of(k);
    const lnt_tensor *const both[2] = {&k->in[0], &k->out[0]};
    const bool step = is_step(k);
    const int unit = conv_unit(a, both, 2);
    if (a.size > 4)
        forward_run<any1, LNT_CONV_MAX>(k->c, a, step);
    else if (unit == 8 && !step)
        forward_run<half4, 4>(k->c, a, false);
    else if (unit >= 4)
        forward_run<any4, 4>(k->c, a, step);
    else
        forward_run<any1, 4>(k->c, a, step);
    advance(k, a);
    return LINNET_OK;
}

/* A pair of a convolution and the L2 norm of its heads, as lnt_conv_norm's `fits` has let through: at most 4 taps, SiLU. */
static linnet_status pair_args(const lnt_call *conv, const lnt_call *norm, conv_args *a, int *unit)
{
    const lnt_tensor *const tensors[4] = {&conv->in[0], &norm->out[0], &norm->d_out[0], &conv->d_in[0]};
    *a = args_of(conv);
    a->y = view_of(&norm->out[0]), a->dy = view_of(&norm->d_out[0]);
    a->step_y = a->cols * (int64_t)lnt_dtype_size(norm->out[0].dtype);
    a->eps = (float)((const lnt_norm_attr *)norm->attr)->eps;
    a->lanes = (int)(norm->in[0].cols / norm->in[0].heads / 4);
    *unit = conv_unit(*a, tensors, 4);
    return *unit >= 4 ? LINNET_OK : lnt_fail(conv->c, LINNET_EINTERNAL, "a convolution with its norm: memory is not aligned");
}

template <class P, bool STEP> static void forward_pair(lnt_ctx *c, conv_args a)
{
    const unsigned blocks = forward_blocks<P>(a, STEP);
    const lnt_cuda *d = lnt_cuda_of(c);
    if (a.lanes == ALL_LANES)
        lnt_launch(d, conv_forward<P, 4, STEP ? 1 : 4, true, STEP, ALL_LANES>, blocks, (int)CONV_THREADS, a);
    else
        lnt_launch(d, conv_forward<P, 4, STEP ? 1 : 4, true, STEP, ANY_LANES>, blocks, (int)CONV_THREADS, a);
}

extern "C" linnet_status lnt_conv_l2norm_forward_cuda(const lnt_call *conv, const lnt_call *norm)
{
    conv_args a;
    int unit;
    if (conv->tokens <= 0) return LINNET_OK;
    LNT_TRY(pair_args(conv, norm, &a, &unit));
    if (is_step(conv))
        forward_pair<any4, true>(conv->c, a);
    else if (unit == 8)
        forward_pair<half4, false>(conv->c, a);
    else
        forward_pair<any4, false>(conv->c, a);
    advance(conv, a);
    return LINNET_OK;
}

/* Whether conv_steps knows the convolution, or the pair, that the first of the calls begins. */
static bool group_member(const lnt_call *k, bool pair, conv_args *a)
{
    int unit;
    const lnt_tensor *const both[2] = {&k->in[0], &k->out[0]};
    if (pair) return pair_args(k, k + 1, a, &unit) == LINNET_OK;
    *a = args_of(k);
    return a->size <= 4 && a->act == LNT_SILU && conv_unit(*a, both, 2) >= 4;
}

extern "C" linnet_status lnt_conv_group_cuda(const lnt_call *calls, int count)
{
    conv_group g = {};
    unsigned blocks = 0;
    bool fits = is_step(calls) && calls->tokens > 0;
    for (int i = 0; i < count && fits; i++) {
        const bool pair = i + 1 < count && calls[i + 1].node->op != calls->node->op;
        conv_args *a = &g.a[g.count];
        fits = group_member(&calls[i], pair, a);
        g.first[g.count++] = blocks;
        if (fits) blocks += forward_blocks<any4>(*a, true); /* fewer than four columns make none */
        i += pair;
    }
    if (fits) {
        lnt_launch(lnt_cuda_of(calls->c), conv_steps, blocks, (int)CONV_THREADS, g);
        return LINNET_OK;
    }
    if (lnt_conv_side_cuda(calls, count, false)) return LINNET_OK;
    for (int i = 0; i < count; i++) {
        const bool pair = i + 1 < count && calls[i + 1].node->op != calls->node->op;
        LNT_TRY(pair ? lnt_conv_l2norm_forward_cuda(&calls[i], &calls[i + 1]) : lnt_short_conv_forward_cuda(&calls[i]));
        i += pair;
    }
    return LINNET_OK;
}

/* ---- backward ----------------------------------------------------------------------------------------------------------------------------- */

template <class P, int SIZE, int AHEAD, silu S, int NORM>
__global__ void __launch_bounds__(CONV_THREADS, P::HALF ? 4 : 1) conv_backward(const __grid_constant__ conv_args a)
{
    backward_block<P, SIZE, AHEAD, S, NORM>(a, blockIdx.x);
}

template <class P, int SIZE> static constexpr silu SILU_BACK = SIZE != 4 ? NO_SILU : P::HALF ? TANH_SILU : SILU;

template <class P, int SIZE, int AHEAD> static void backward_run(lnt_ctx *c, conv_args a, int64_t blocks)
{
    a.parts = (int)lnt_div_up(a.cols / P::U, CONV_THREADS);
    const unsigned grid = (unsigned)(blocks * a.parts);
    if (SIZE == 4 && a.act == LNT_SILU && !a.bias)
        lnt_launch(lnt_cuda_of(c), conv_backward<P, SIZE, AHEAD, SILU_BACK<P, SIZE>, SIZE == 4 ? NO_NORM : BIASED>, grid, (int)CONV_THREADS, a);
    else if (SIZE == 4 && a.act == LNT_SILU)
        lnt_launch(lnt_cuda_of(c), conv_backward<P, SIZE, AHEAD, SILU_BACK<P, SIZE>, BIASED>, grid, (int)CONV_THREADS, a);
    else
        lnt_launch(lnt_cuda_of(c), conv_backward<P, SIZE, AHEAD, NO_SILU, BIASED>, grid, (int)CONV_THREADS, a);
}

/* Blocks of rows of one of `members` alike, and where their sums of dw go. */
static int64_t backward_blocks(const lnt_call *k, conv_args &a, int members = 1)
{
    a.rows = (int)lnt_div_up(k->tokens, CONV_BACKWARD_BLOCKS);
    if (a.rows < CONV_BACKWARD_ROWS) a.rows = CONV_BACKWARD_ROWS;
    a.rows = even_rows(k->tokens, lnt_div_up(a.cols, 4 * CONV_THREADS) * members, a.rows, CONV_BACKWARD_TURN);
    const int64_t blocks = lnt_div_up(k->tokens, a.rows);
    a.part = k->param[0].grad ? (float *)k->work : NULL;
    a.part_bias = a.bias && k->param[1].grad ? (float *)k->work + blocks * a.size * a.cols : NULL;
    return blocks;
}

static void add_taps(const lnt_call *k, const conv_args &a, int64_t blocks)
{
    if (a.part) add_blocks(k->c, k->param[0].grad, a.part, blocks, a.size * a.cols, a.cols, a.size);
    if (a.part_bias) add_blocks(k->c, k->param[1].grad, a.part_bias, blocks, a.cols, a.cols, 1);
}

extern "C" linnet_status lnt_short_conv_backward_cuda(const lnt_call *k)
{
    if (k->tokens <= 0) return LINNET_OK;
    conv_args a = args_of(k);
    const lnt_tensor *const tensors[3] = {&k->in[0], &k->d_out[0], &k->d_in[0]};
    const int unit = conv_unit(a, tensors, 3);
    const int64_t blocks = backward_blocks(k, a);
    if (a.size > 4)
        backward_run<any1, LNT_CONV_MAX, 1>(k->c, a, blocks);
    else if (unit == 8)
        backward_run<half4, 4, 4>(k->c, a, blocks);
    else if (unit == 4)
        backward_run<any4, 4, 4>(k->c, a, blocks);
    else
        backward_run<any1, 4, 4>(k->c, a, blocks);
    add_taps(k, a, blocks);
    return LINNET_OK;
}

template <class P> static void backward_pair(lnt_ctx *c, conv_args a, int64_t blocks)
{
    a.parts = (int)lnt_div_up(a.cols / P::U, CONV_THREADS);
    const unsigned grid = (unsigned)(blocks * a.parts);
    if (a.lanes == ALL_LANES)
        lnt_launch(lnt_cuda_of(c), conv_backward<P, 4, 4, SILU_BACK<P, 4>, ALL_LANES>, grid, (int)CONV_THREADS, a);
    else
        lnt_launch(lnt_cuda_of(c), conv_backward<P, 4, 4, SILU_BACK<P, 4>, ANY_LANES>, grid, (int)CONV_THREADS, a);
}

extern "C" linnet_status lnt_conv_l2norm_backward_cuda(const lnt_call *conv, const lnt_call *norm)
{
    conv_args a;
    int unit;
    if (conv->tokens <= 0) return LINNET_OK;
    LNT_TRY(pair_args(conv, norm, &a, &unit));
    const int64_t blocks = backward_blocks(conv, a);
    if (unit == 8)
        backward_pair<half4>(conv->c, a, blocks);
    else
        backward_pair<any4>(conv->c, a, blocks);
    add_taps(conv, a, blocks);
    return LINNET_OK;
}

/* ---- side by side, in training ------------------------------------------------------------------------------------------------------------- */

/* Convolutions alike in bf16, without a bias, some with the norm of their heads, as one kernel each way: those with a norm, which have more to do,
 * have the first blocks, and others begin where those end. a: what all have in common. */
struct conv_member {
    char *x, *y, *dy, *dx;
    const float *w;
    float *part, *grad;
    bool norm;
};
struct conv_side {
    conv_args a;
    conv_member m[LNT_CONV_GROUP];
    unsigned blocks; /* of each */
};

__device__ __forceinline__ conv_args args_of(const conv_side &g, unsigned i)
{
    conv_args a = g.a;
    a.x.p = g.m[i].x, a.y.p = g.m[i].y, a.dy.p = g.m[i].dy, a.dx.p = g.m[i].dx, a.w = g.m[i].w, a.part = g.m[i].part;
    return a;
}

template <int LANES> static __global__ void __launch_bounds__(CONV_THREADS, 8) conv_side_forward(const __grid_constant__ conv_side g)
{
    const unsigned i = blockIdx.x / g.blocks, block = blockIdx.x - i * g.blocks;
    const conv_args a = args_of(g, i);
    if (g.m[i].norm)
        forward_block<half4, 4, 4, true, false, LANES>(a, block);
    else
        forward_block<half4, 4, 4, true, false, NO_NORM>(a, block);
}

template <int LANES> static __global__ void __launch_bounds__(CONV_THREADS, 4) conv_side_backward(const __grid_constant__ conv_side g)
{
    const unsigned i = blockIdx.x / g.blocks, block = blockIdx.x - i * g.blocks;
    const conv_args a = args_of(g, i);
    if (g.m[i].norm)
        backward_block<half4, 4, 4, TANH_SILU, LANES>(a, block);
    else
        backward_block<half4, 4, 4, TANH_SILU, NO_NORM>(a, block);
}

static __global__ void __launch_bounds__(32 * LNT_SUM_WARPS) add_side_kernel(const __grid_constant__ conv_side g, int blocks)
{
    const conv_member &m = g.m[blockIdx.y];
    if (m.part)
        add_blocks_of(m.grad, m.part, blocks, g.a.size * g.a.cols, g.a.cols, g.a.size);
    else
        await_last(); /* as every block does: cuda.cuh */
}

/* The convolution of a call of the group, or of the two of a pair, as a member; false: it is not like those before it. */
static bool join_side(const lnt_call *conv, const lnt_call *norm, bool backward, conv_side *g, int members)
{
    conv_args a;
    int unit;
    const lnt_tensor *const tensors[4] = {&conv->in[0], &conv->out[0], &conv->d_out[0], &conv->d_in[0]};
    if (norm && pair_args(conv, norm, &a, &unit) != LINNET_OK) return false;
    if (!norm) a = args_of(conv), unit = conv_unit(a, tensors, 4);
    if (unit != 8 || a.act != LNT_SILU || a.bias || a.add || a.state || (backward && !(a.dy.p && a.dx.p))) return false;
    if (!members) {
        g->a = a;
    } else {
        conv_args &b = g->a;
        if (a.cols != b.cols || a.ld_x != b.ld_x || a.ld_dx != b.ld_dx || a.size != b.size) return false;
        if (a.lanes && !b.lanes) b.lanes = a.lanes, b.eps = a.eps;
        if (a.lanes && (a.lanes != b.lanes || a.eps != b.eps)) return false;
    }
    g->m[members] = {a.x.p, a.y.p, a.dy.p, a.dx.p, a.w, NULL, conv->param[0].grad, norm != NULL};
    return true;
}

extern "C" bool lnt_conv_side_cuda(const lnt_call *calls, int count, bool backward)
{
    conv_side g = {};
    int members = 0;
    for (int norms = 1; norms >= 0; norms--)
        for (int i = 0; i < count; i++) {
            const lnt_call *first = &calls[i], *second = i + 1 < count ? first + 1 : NULL;
            const bool pair = backward ? first->node->op != &lnt_conv_op : second && second->node->op != &lnt_conv_op;
            if (pair) i++;
            if (pair != norms) continue;
            if (members == LNT_CONV_GROUP) return false;
            if (!join_side(pair && backward ? second : first, !pair ? NULL : backward ? first : second, backward, &g, members++)) return false;
        }
    if (calls->tokens <= 0 || members < 2) return false;
    const lnt_cuda *d = lnt_cuda_of(calls->c);
    if (!backward) {
        g.blocks = forward_blocks<half4>(g.a, false, members);
        lnt_launch(d, g.a.lanes == ALL_LANES ? conv_side_forward<ALL_LANES> : conv_side_forward<ANY_LANES>, g.blocks * members, (int)CONV_THREADS, g);
        return true;
    }
    const int64_t blocks = backward_blocks(calls, g.a, members), n = g.a.size * g.a.cols;
    for (int i = 0; i < members; i++) g.m[i].part = g.m[i].grad ? (float *)calls->work + i * blocks * n : NULL;
    g.a.parts = (int)lnt_div_up(g.a.cols / half4::U, CONV_THREADS);
    g.blocks = (unsigned)blocks * g.a.parts;
    lnt_launch(d, g.a.lanes == ALL_LANES ? conv_side_backward<ALL_LANES> : conv_side_backward<ANY_LANES>, g.blocks * members, (int)CONV_THREADS, g);
    lnt_launch(d, add_side_kernel, dim3((unsigned)lnt_div_up(n, 32), members), 32 * (int)LNT_SUM_WARPS, g, (int)blocks);
    return true;
}

/* y = x W^T + b,  dx = dy W,  dW += dy^T x,  db += column sums of dy;  W [out, in]. Per head, x [tokens, heads, in] is read as [tokens*heads, in]:
 * one map serves every head. In groups, x [tokens, groups, in] has a map each, side by side in W [out, groups*in], b [groups, out]. */
#include <math.h>

#include "core/threads.h"
#include "ops/builder.h"
#include "device/device.h"
#include "ops/few_rows.h"
#include "ops/norms.h"
#include "ops/pointwise.h"
#include "ops/row_chain.h"

typedef struct {
    int64_t in, out; /* of a map */
    int groups;
    bool bias;
} linear_attr;

/* Columns that a map makes; of maps that are one call, all of theirs. */
static int64_t out_of(const lnt_call *k, const lnt_tensor *y) { return y->cols / (k->in[0].cols / ((const linear_attr *)k->attr)->in); }

/* Rows the map is applied to. */
static int64_t rows_of(const lnt_call *k)
{
    const linear_attr *a = k->attr;
    return k->in[0].rows * (k->in[0].cols / (a->groups * a->in));
}

static size_t linear_workspace(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const linear_attr *a = n->attr;
    if (!backward) /* lnt_few_sum.squares */
        return s->has_state && s->tokens <= LNT_FEW_ROWS && s->device && s->device->kind == LNT_DEVICE_CUDA
                   ? (size_t)s->tokens * ((size_t)a->out / LNT_FEW_LEAST_TILE + 1) * sizeof(float) : 0;
    return a->bias ? lnt_sum_bytes(s, lnt_in_rows(n, 0, s) * (lnt_in_cols(n, 0) / a->in / a->groups), a->groups * a->out) : 0;
}

static double linear_flops(const lnt_node *n, const lnt_shape *s, bool backward)
{
    const linear_attr *a = n->attr;
    return (backward ? 4.0 : 2.0) * (double)lnt_in_rows(n, 0, s) * (double)(lnt_in_cols(n, 0) / a->in) * (double)a->in * (double)a->out;
}

static const lnt_op linear_op;

/* A map of whole rows. */
static bool plain(const lnt_node *n)
{
    return n->op == &linear_op && lnt_in_cols(n, 0) == ((const linear_attr *)n->attr)->in;
}
static bool has_bias(const lnt_node *n) { return ((const linear_attr *)n->attr)->bias; }

/* Elements from a row of x (or of its gradient) to the next: heads are rows of their own. */
static int64_t ld_of(const lnt_call *k, const lnt_tensor *x)
{
    const linear_attr *a = k->attr;
    return x->cols == a->groups * a->in ? x->ld : a->in;
}

/* The same of its result y, or of that one's gradient, with `out` columns a map of whole rows. */
static int64_t ld_of_result(const lnt_call *k, const lnt_tensor *y, int64_t out)
{
    const linear_attr *a = k->attr;
    return k->in[0].cols == a->groups * a->in ? y->ld : out;
}

static void *column(const void *p, lnt_dtype t, int64_t at) { return (char *)(uintptr_t)p + at * (int64_t)lnt_dtype_size(t); }

#ifdef LINNET_CUDA
static bool as_one(const lnt_call *calls, int count, const void *only, lnt_few_rows *f);

/* A map of few rows with its bias in one kernel. */
static bool with_bias(const lnt_call *k)
{
    lnt_few_rows f;
    return lnt_on_cuda(k->c) && k->in[0].rows > 0 && plain(k->node) && as_one(k, 1, NULL, &f) && lnt_few_rows_cuda(k->c, &f);
}
#else
#define with_bias(k) false
#endif

static linnet_status linear_forward(const lnt_call *k)
{
    const linear_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0], *y = &k->out[0];
    const int64_t in = a->groups * a->in, each = out_of(k, y), out = a->groups * each;
    if (a->bias && with_bias(k)) return LINNET_OK;
    for (int g = 0; g < a->groups; g++)
        LNT_TRY(lnt_gemm(k->c, &(lnt_gemm_args){.trans_b = true, .weights = true, .M = rows_of(k), .N = each, .K = a->in, .alpha = 1,
                                                .ab = x->dtype, .c = y->dtype, .a = column(x->data, x->dtype, g * a->in), .lda = ld_of(k, x),
                                                .b = column(k->param[0].work, k->param[0].work_dtype, g * a->in), .ldb = in,
                                                .b_scale = k->param[0].scale, .C = column(y->data, y->dtype, g * each),
                                                .ldc = ld_of_result(k, y, out)}));
    if (a->bias) {
        lnt_tensor rows = *y;
        rows.rows = rows_of(k), rows.cols = rows.ld = out;
        LNT_KERNEL(k->c, lnt_bias_add)(k->c, &rows, k->param[1].master);
    }
    return LINNET_OK;
}

static linnet_status linear_backward(const lnt_call *k)
{
    const linear_attr *a = k->attr;
    const lnt_tensor *x = &k->in[0], *dx = &k->d_in[0], *dy = &k->d_out[0];
    const int64_t rows = rows_of(k), in = a->groups * a->in, each = out_of(k, dy), out = a->groups * each, ld = ld_of_result(k, dy, out);
    if (!dy->data) return lnt_zero_gradients(k);
    for (int g = 0; g < a->groups; g++) {
        const void *d = column(dy->data, dy->dtype, g * each);
        if (dx->data)
            LNT_TRY(lnt_gemm(k->c, &(lnt_gemm_args){.M = rows, .N = a->in, .K = each, .alpha = 1, .beta = k->accumulate[0], .ab = dy->dtype,
                                                    .c = dx->dtype, .a = d, .lda = ld, .b = column(k->param[0].work, dy->dtype, g * a->in),
                                                    .ldb = in, .C = column(dx->data, dx->dtype, g * a->in), .ldc = ld_of(k, dx)}));
        if (k->param[0].grad)
            LNT_TRY(lnt_gemm(k->c, &(lnt_gemm_args){.trans_a = true, .M = each, .N = a->in, .K = rows, .alpha = 1, .beta = !k->param[0].set,
                                                    .ab = dy->dtype, .c = LINNET_F32, .a = d, .lda = ld,
                                                    .b = column(x->data, x->dtype, g * a->in), .ldb = ld_of(k, x),
                                                    .C = k->param[0].grad + g * a->in, .ldc = in}));
    }
    if (a->bias && k->param[1].grad) {
        lnt_tensor d = *dy;
        d.rows = rows, d.cols = d.ld = out;
        LNT_KERNEL(k->c, lnt_column_sums)(k->c, &d, k->param[1].grad, k->work);
    }
    return LINNET_OK;
}

/* Wide maps begin at whole tiles of the product and whole lines of memory; behind them may come narrow ones. A plan's rows of such results are whole
 * lines: with 16 columns of beta behind q, k and v in rows of 12,320 bytes a DeltaNet step took 3% longer (training_speed.md). */
enum { JOINED_COLUMNS = 128, JOINED_NARROW = 8 };
static bool lie_well(int64_t before, int64_t behind)
{
    return (before | behind) % JOINED_NARROW == 0 && (behind < JOINED_COLUMNS || (before | behind) % JOINED_COLUMNS == 0);
}

static bool linear_continues(const lnt_node *a, const lnt_node *b)
{
    const lnt_param *x = lnt_param_at(a->program, a->param[0]), *y = lnt_param_at(b->program, b->param[0]);
    const int64_t out[2] = {((const linear_attr *)a->attr)->out, ((const linear_attr *)b->attr)->out};
    return plain(a) && plain(b) && !has_bias(a) && !has_bias(b) && lnt_same_data(a->program, a->in[0], b->in[0]) && !x->plain && !y->plain &&
           x->offset + x->count == y->offset && lie_well(out[0], out[1]);
}

static void linear_describe(const lnt_node *n, char *text, size_t size)
{
    const linear_attr *a = n->attr;
    const int at = a->groups > 1 ? snprintf(text, size, "%d x ", a->groups) : 0;
    snprintf(text + at, size - (size_t)at, "%lld -> %lld%s", (long long)a->in, (long long)a->out, a->bias ? ", bias" : "");
}

/* ---- a group: maps, then what is made of their results element by element. Or a map, the sum that it joins, its rmsnorm, and such a group ---- */

/* The member whose result is n's input `i`, -1: none. */
static int maker_of(const lnt_node *const *group, int count, const lnt_node *n, int i)
{
    for (int m = 0; m < count; m++)
        if (group[m]->op == &linear_op && lnt_same_data(n->program, group[m]->out[0], n->in[i])) return m;
    return -1;
}

static bool is_swiglu(const lnt_node *n) { return ((const lnt_glu_attr *)n->attr)->act == LNT_SILU; }

/* Maps of one input, of inputs of equal size, or of small ones. */
static bool go_together(const lnt_node *a, const lnt_node *b)
{
    const int64_t one = lnt_in_cols(a, 0), other = lnt_in_cols(b, 0);
    return lnt_same_data(a->program, a->in[0], b->in[0]) ||
           (lnt_same_rows(a->program, a->in[0], b->in[0]) && (one == other || (one <= LNT_FEW_NARROW && other <= LNT_FEW_NARROW)));
}

/* Whether n adds the result of the map to the residual stream, of which the node behind it is the norm: the two are a pair. */
static bool adds_to_stream(const lnt_node *map, const lnt_node *n)
{
    const lnt_program *p = n->program;
    const int at = lnt_program_value(p, n->out[0])->producer;
    const lnt_node *norm = at + 1 < lnt_node_count(p) ? lnt_node_at(p, at + 1) : NULL;
    return n->op == &lnt_sum_op && lnt_same_data(p, map->out[0], n->in[1]) && norm && norm->op == &lnt_rmsnorm_op &&
           lnt_same_data(p, norm->in[0], n->out[0]) && lnt_heads(p, norm->in[0]) == 1;
}

/* Members up to the norm of a sum, which what follows reads; 0: there is none. */
static int behind_sum(const lnt_node *const *group, int count)
{
    return count > 2 && group[1]->op == &lnt_sum_op ? 3 : 0;
}

/* Of the first of such maps; a smaller one alone is part of the chain's neighbour. */
enum { LEADING_RANK = 64 };

/* A map of so few columns that the blocks of a rule behind it, one a head, can have their heads' rows of its weights (row_chain.h). */
static bool is_low_rank(const lnt_node *n)
{
    const int64_t rank = lnt_in_cols(n, 0);
    int32_t maker = lnt_program_value(n->program, n->in[0])->producer;
    if (maker >= 0 && lnt_node_at(n->program, maker)->op == &lnt_activation_op)
        maker = lnt_program_value(n->program, lnt_node_at(n->program, maker)->in[0])->producer;
    if (!plain(n) || maker < 0 || lnt_node_at(n->program, maker)->op != &linear_op) return false;
    return rank <= 128 && lnt_cols(n->program, n->out[0]) > rank;
}

/* Members of a group of such maps that are no maps, nor what these do with their results: a chain. */
enum { CHAIN_MOST = 24 };
static bool in_chain(const lnt_node *const *group, int count, const lnt_node *n)
{
    const bool of_maps = n->op == &lnt_activation_op || n->op == &lnt_glu_op;
    return n->op->row && n->op != &linear_op && (!of_maps || maker_of(group, count, n, 0) < 0);
}
static int chain_of(const lnt_node *const *group, int count, const lnt_node **chain)
{
    int n = 0;
    for (int i = 0; i < count && n < CHAIN_MOST; i++)
        if (in_chain(group, i, group[i])) chain[n++] = group[i];
    return n;
}

static bool linear_follows(const lnt_node *const *group, int count, const lnt_node *n)
{
    const lnt_node *chain[CHAIN_MOST];
    if (!plain(group[0])) return false;
    const bool low_rank = is_low_rank(group[0]) && lnt_in_cols(group[0], 0) >= LEADING_RANK && !(count > 1 && group[1]->op == &lnt_sum_op);
    if (n->op == &lnt_sum_op && count == 1) return adds_to_stream(group[0], n);
    if (low_rank && in_chain(group, count, n)) return lnt_row_chain_follows(chain, chain_of(group, count, chain), n);
    if (n->op == &lnt_sum_op) return false;
    const int behind = behind_sum(group, count);
    const lnt_node *norm = behind ? group[behind - 1] : NULL;
    group += behind, count -= behind;
    if (norm && plain(n) && !lnt_same_data(n->program, norm->out[0], n->in[0])) return false;
    if (!count) return plain(n);
    int maps = 0;
    bool reads = false; /* what a member makes */
    for (int i = 0; i < count; i++) {
        maps += group[i]->op == &linear_op;
        reads |= lnt_shares_data(n->program, group[i]->out[0], n->in[0]);
    }
    if (n->op == &lnt_glu_op)
        return is_swiglu(n) && count == 2 && maker_of(group, count, n, 0) == 0 && maker_of(group, count, n, 1) == 1 && !has_bias(group[0]) &&
               !has_bias(group[1]) && lnt_same_data(n->program, group[0]->in[0], group[1]->in[0]);
    if (n->op == &lnt_activation_op) return maker_of(group, count, n, 0) >= 0;
    if (low_rank && plain(n) && !is_low_rank(n)) return false;
    return plain(n) && !reads && group[count - 1]->op != &lnt_glu_op && maps < LNT_FEW_PARTS && go_together(group[0], n);
}

#ifdef LINNET_CUDA
/* The input of the map that call i is, or whose result it reads. */
static const void *input_of(const lnt_call *calls, int i)
{
    for (int m = 0; m < i; m++)
        if (calls[m].node->op == &linear_op && calls[m].out[0].data == calls[i].in[0].data) return calls[m].in[0].data;
    return calls[i].in[0].data;
}

/* The part whose result the call reads, if nobody else does; `only`: as below. */
static lnt_few_part *read_part(lnt_few_rows *f, const lnt_call *calls, int i, const void *only)
{
    for (int m = 0, part = 0; m < i; m++) {
        if (calls[m].node->op != &linear_op || (only && calls[m].in[0].data != only)) continue;
        if (calls[m].out[0].data == calls[i].in[0].data) return calls[m].inner && !f->part[part].act ? &f->part[part] : NULL;
        part++;
    }
    return NULL;
}

/* All calls as one product, or those of the input `only`. False: something does not fit. */
static bool as_one(const lnt_call *calls, int count, const void *only, lnt_few_rows *f)
{
    const int64_t most = lnt_rows_are_alone(calls->c) ? INT32_MAX : LNT_FEW_ROWS;
    *f = (lnt_few_rows){.weights = true};
    if (calls->in[0].dtype != LINNET_BF16 || calls->in[0].rows > most) return false;
    for (int i = 0; i < count; i++) {
        const lnt_call *k = &calls[i];
        const lnt_tensor *x = &k->in[0], *y = &k->out[0];
        if (only && input_of(calls, i) != only) continue;
        if (k->node->op == &linear_op) {
            if (!f->x) f->R = (int)x->rows, f->K = x->cols, f->x = x->data, f->ldx = x->ld;
            if (x->rows != f->R) return false;
            const bool own = x->data != f->x || x->cols != f->K || x->ld != f->ldx;
            f->part[f->parts++] = (lnt_few_part){.w = k->param[0].work, .bias = has_bias(k->node) ? k->param[1].master : NULL, .N = y->cols,
                                                 .ldw = x->cols, .y = y->data, .ldy = y->cols, .step = 1, .type = y->dtype, .alpha = 1,
                                                 .scale = 1, .x = own ? x->data : NULL, .ldx = x->ld, .K = x->cols};
        } else if (k->node->op == &lnt_glu_op) {
            if (f->parts != 2 || f->part[1].x || !calls[0].inner || !calls[1].inner || y->dtype != LINNET_BF16) return false;
            f->swiglu = true;
            f->part[0].y = y->data;
        } else {
            const lnt_activation_attr *a = k->attr;
            lnt_few_part *part = read_part(f, calls, i, only);
            if (!part || a->act == LNT_IDENTITY || a->offset != 0) return false;
            part->y = y->data, part->type = y->dtype, part->act = a->act, part->scale = (float)a->scale;
        }
    }
    return true;
}

static linnet_status maps_group(const lnt_call *calls, int count)
{
    lnt_few_rows f;
    if (as_one(calls, count, NULL, &f) && lnt_few_rows_cuda(calls->c, &f)) return LINNET_OK;
    for (int i = 0; i < count; i++) { /* input by input, each where its first map stands */
        const void *x = calls[i].in[0].data;
        bool first = calls[i].node->op == &linear_op;
        for (int m = 0; m < i; m++) first &= calls[m].node->op != &linear_op || calls[m].in[0].data != x;
        if (!first || (as_one(calls, count, x, &f) && lnt_few_rows_cuda(calls->c, &f))) continue;
        for (int m = i; m < count; m++)
            if (input_of(calls, m) == x) LNT_TRY(calls[m].node->op->forward(&calls[m]));
    }
    return LINNET_OK;
}

static bool is_of_map(const lnt_call *calls, int i)
{
    const lnt_op *op = calls[i].node->op;
    return op == &linear_op || ((op == &lnt_activation_op || op == &lnt_glu_op) && input_of(calls, i) != calls[i].in[0].data);
}

/* Maps of low rank, and a chain that reads what they make. */
static linnet_status maps_and_chain(const lnt_call *calls, int count)
{
    lnt_call part[2][CHAIN_MOST];
    int n[2] = {0};
    bool inner = true;
    lnt_few_rows f;
    for (int i = 0; i < count; i++) {
        const bool map = is_of_map(calls, i);
        inner &= !map || calls[i].inner;
        part[!map][n[!map]++] = calls[i];
    }
    if (inner && as_one(part[0], n[0], NULL, &f) && lnt_row_chain_with_maps(part[1], n[1], &f)) return LINNET_OK;
    LNT_TRY(maps_group(part[0], n[0]));
    const lnt_op *first = part[1][0].node->op;
    if (n[1] == 1) return first->forward(part[1]);
    return (first->run_group ? first->run_group : lnt_row_chain_run)(part[1], n[1]);
}

static bool has_chain(const lnt_call *calls, int count)
{
    for (int i = 0; i < count; i++)
        if (!is_of_map(calls, i)) return true;
    return false;
}

static bool reaches(const void *p, int64_t ld) { return (uintptr_t)p % 16 == 0 && ld % 4 == 0; }

/* The map calls[0], the sum calls[1], its norm calls[2], whose result nobody but the maps behind it reads: two kernels without a norm between them
 * (lnt_few_sum). False: something does not fit; all is still to do. */
static bool as_two(const lnt_call *calls, int count)
{
    const lnt_call *sum = &calls[1], *norm = &calls[2];
    const lnt_norm_attr *a = norm->attr;
    const lnt_tensor *x = &sum->in[0], *z = &sum->out[0], *zw = &norm->out[0];
    lnt_few_rows first, second;
    lnt_few_sum s = {.x = x->data, .z = z->data, .w = norm->param[0].master, .zw = zw->data, .squares = calls->work, .ldx = x->ld, .ldz = z->ld,
                     .ldzw = zw->ld};
    if (count == 3 || !norm->inner || !calls->inner || !as_one(calls, 1, NULL, &first) || !as_one(calls + 3, count - 3, NULL, &second)) return false;
    if (x->dtype != LINNET_F32 || z->dtype != LINNET_F32 || zw->dtype != LINNET_BF16 || !norm->node->n_param || !s.w) return false;
    const int64_t tiles = (z->cols + LNT_FEW_LEAST_TILE - 1) / LNT_FEW_LEAST_TILE;
    if (x->rows != first.R || second.R != first.R || z->cols % 4 || tiles > LNT_FEW_TILES) return false;
    if (!reaches(s.x, s.ldx) || !reaches(s.z, s.ldz) || !reaches(s.w, 0) || !reaches(s.zw, s.ldzw) || second.x != s.zw) return false;
    if (calls->work_size < (size_t)first.R * (size_t)tiles * sizeof *s.squares) return false;
    first.sum = &s, second.norm = &s;
    second.mean = (float)(1.0 / (double)z->cols), second.eps = (float)a->eps;
    return lnt_few_rows_can(calls->c, &first) && lnt_few_rows_can(calls->c, &second) && lnt_few_rows_cuda(calls->c, &first) &&
           lnt_few_rows_cuda(calls->c, &second);
}

static linnet_status linear_group(const lnt_call *calls, int count)
{
    if (calls[1].node->op != &lnt_sum_op) return has_chain(calls, count) ? maps_and_chain(calls, count) : maps_group(calls, count);
    if (as_two(calls, count)) return LINNET_OK;
    LNT_TRY(maps_group(calls, 1));
    LNT_TRY(calls[2].node->op->pair->forward(&calls[1], &calls[2]));
    return count > 3 ? maps_group(calls + 3, count - 3) : LINNET_OK;
}
#else
#define linear_group NULL
#endif

static const lnt_op linear_op = {.name = "linear", .backward_needs = LNT_NEEDS_IN0, .strided = LNT_NEEDS_IN0, .stores_first = true,
                                 .workspace = linear_workspace, .flops = linear_flops, .forward = linear_forward,
                                 .backward = linear_backward, .describe = linear_describe, .continues = linear_continues, .follows = linear_follows,
                                 .run_group = linear_group};

/* One map for every head: heads are rows, which lie one behind the other and are no columns among others. */
static const lnt_op linear_heads_op = {.name = "linear", .backward_needs = LNT_NEEDS_IN0, .stores_first = true, .workspace = linear_workspace,
                                       .flops = linear_flops, .forward = linear_forward, .backward = linear_backward, .describe = linear_describe};

/* The same in float32 under every policy, of fixed rows and parameters that no other product reads. The rows of every call are the same, and so are
 * their bits without being taken one by one. */
static linnet_status linear_f32_forward(const lnt_call *k)
{
    const bool alone = lnt_rows_are_alone(k->c);
    lnt_rows_alone(k->c, false);
    const linnet_status s = linear_forward(k);
    lnt_rows_alone(k->c, alone);
    return s;
}

static const lnt_op linear_f32_op = {.name = "linear_f32", .backward_needs = LNT_NEEDS_IN0, .strided = LNT_NEEDS_IN0, .workspace = linear_workspace,
                                     .flops = linear_flops, .forward = linear_f32_forward, .backward = linear_backward, .describe = linear_describe};

/* The operands of a product share the policy's type. */
static bool takes_input(lnt_program *p, lnt_buf x, const char *name)
{
    if (lnt_program_value(p, x)->f32) lnt_program_fail(p, "linear %s: its input is float32 under every policy, expected an activation", name);
    return !lnt_program_value(p, x)->f32;
}

static lnt_buf linear(lnt_program *p, lnt_buf x, const char *name, linear_attr a, int32_t heads, lnt_init init)
{
    if (!takes_input(p, x, name)) return LNT_NO_BUF;
    if (a.out < 1 || a.out > INT64_MAX / heads) return lnt_program_fail(p, "linear %s: %lld outputs", name, (long long)a.out);
    const int param[2] = {lnt_named_param(p, name, "weight", a.out, a.in, init, true, true),
                          a.bias ? lnt_named_param(p, name, "bias", a.out, 0, (lnt_init){LNT_INIT_CONST, 0, 0}, false, false) : 0};
    return lnt_add_op(p, heads > 1 ? &linear_heads_op : &linear_op, lnt_attr(p, &a, sizeof a), 1, &x, a.bias ? 2 : 1, param,
                      (lnt_out_spec){a.out * heads, heads, false});
}

static lnt_buf whole_row(lnt_program *p, lnt_buf x, const char *name, int64_t out, bool bias)
{
    if (!lnt_ready(p, "linear", 1, &x)) return LNT_NO_BUF;
    linear_attr a = {lnt_cols(p, x), out, 1, bias};
    return linear(p, x, name, a, 1, (lnt_init){LNT_INIT_NORMAL, lnt_init_std(p, a.in), 0});
}

lnt_buf lnt_linear(lnt_program *p, lnt_buf x, const char *name, int64_t out) { return whole_row(p, x, name, out, false); }
lnt_buf lnt_linear_bias(lnt_program *p, lnt_buf x, const char *name, int64_t out) { return whole_row(p, x, name, out, true); }

lnt_buf lnt_head_linear(lnt_program *p, lnt_buf x, const char *name, int64_t out_per_head, bool bias, lnt_init init)
{
    if (!lnt_ready(p, "linear", 1, &x)) return LNT_NO_BUF;
    const int32_t heads = lnt_heads(p, x);
    linear_attr a = {lnt_cols(p, x) / heads, out_per_head, 1, bias};
    return linear(p, x, name, a, heads, init);
}

lnt_buf lnt_group_linear(lnt_program *p, lnt_buf x, const char *name, const char *bias, int64_t out)
{
    if (!lnt_ready(p, "linear", 1, &x) || !takes_input(p, x, name)) return LNT_NO_BUF;
    const int32_t groups = lnt_heads(p, x);
    const int64_t cols = lnt_cols(p, x), dim[2] = {groups, out};
    if (out < 1 || out > INT64_MAX / groups) return lnt_program_fail(p, "linear %s: %lld outputs", name, (long long)out);
    linear_attr a = {cols / groups, out, groups, bias != NULL};
    const lnt_init init = {LNT_INIT_NORMAL, lnt_init_std(p, a.in), 0};
    const int param[2] = {lnt_named_param(p, name, "weight", out, cols, init, true, true),
                          bias ? lnt_add_param(p, bias, 2, dim, (lnt_init){LNT_INIT_CONST, 0, 0}, false, false) : 0};
    return lnt_add_op(p, &linear_op, lnt_attr(p, &a, sizeof a), 1, &x, bias ? 2 : 1, param, (lnt_out_spec){out * groups, groups, false});
}

lnt_buf lnt_linear_f32(lnt_program *p, lnt_buf x, const char *name, int64_t out, bool bias)
{
    if (!lnt_ready(p, "linear", 1, &x)) return LNT_NO_BUF;
    if (!lnt_program_value(p, x)->f32 || !lnt_program_value(p, x)->rows)
        return lnt_program_fail(p, "linear %s: its input is an activation, expected fixed rows that are float32 under every policy", name);
    const linear_attr a = {lnt_cols(p, x), out, 1, bias};
    const double most = 1 / sqrt((double)a.in);
    const lnt_init init = {LNT_INIT_UNIFORM, -most, most};
    const int param[2] = {lnt_named_param(p, name, "weight", out, a.in, init, true, false),
                          bias ? lnt_named_param(p, name, "bias", out, 0, init, false, false) : 0};
    return lnt_add_op(p, &linear_f32_op, lnt_attr(p, &a, sizeof a), 1, &x, bias ? 2 : 1, param, (lnt_out_spec){out, 1, true});
}

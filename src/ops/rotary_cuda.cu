/* Rotary positions. A block takes a few rows: cosines and sines of all its (row, pair) first, angles in double and reduced to turns before they
 * become float32, then every head of those rows. Floor: x read once, y written once. */
#include "ops/rows.cuh"

extern "C" {
#include "ops/rotary.h"
}

enum { ROTARY_THREADS = 256, ROTARY_ANGLES = 2048 }; /* angles of a block: 16 KiB of shared memory */
enum { ROTARY_TABLE = 128 };                         /* angles that are no powers travel as kernel parameters */

struct rotary_args {
    lnt_view x, y;
    bool add;
    lnt_cut cut;
    const int64_t *position; /* [n_seq], NULL: 0 */
    int64_t period;          /* 0: positions are absolute */
    double step;             /* log2 theta_1: theta_i = 2^(i step) */
    float sign, scale;
    int half, rest, heads, rows; /* pairs of a head, and columns behind them; rows of a block */
    bool even;               /* theta by the step; else by the table */
    double theta[ROTARY_TABLE];
};

template <class P> __global__ void __launch_bounds__(ROTARY_THREADS) rotary_kernel(const __grid_constant__ rotary_args a)
{
    __shared__ __align__(16) float co[ROTARY_ANGLES], si[ROTARY_ANGLES]; /* [rows, half] */
    let_next();
    await_last();
    const int64_t r0 = (int64_t)blockIdx.x * a.rows;
    const int rows = (int)min((int64_t)a.rows, a.cut.tokens - r0), angles = rows * a.half;
    for (int i = (int)threadIdx.x; i < angles; i += ROTARY_THREADS) {
        const int64_t r = r0 + i / a.half, seq = sequence_at(a.cut, r);
        int64_t position = r - a.cut.cu[seq] + (a.position ? a.position[seq] : 0);
        if (a.period) position %= a.period;
        const double theta = a.even ? exp2(i % a.half * a.step) : a.theta[i % a.half];
        const double turns = (double)position * theta * 0.15915494309189535; /* 1 / (2 pi) */
        float s, c;
        sincospif(2.0f * (float)(turns - rint(turns)), &s, &c);
        co[i] = a.scale * c, si[i] = a.scale * a.sign * s;
    }
    __syncthreads();
    const int side = a.half / P::U, units = rows * a.heads * side;
    for (int i = (int)threadIdx.x; i < units; i += ROTARY_THREADS) {
        const int row = i / (a.heads * side), head = i / side % a.heads, at = i % side * P::U;
        const int64_t first = ((r0 + row) * a.heads + head) * (2 * a.half + a.rest) + at;
        float x1[P::U], x2[P::U], c[P::U], s[P::U], y1[P::U], y2[P::U];
        get<P>(x1, a.x, first);
        get<P>(x2, a.x, first + a.half);
        get_weights(c, co + row * a.half + at);
        get_weights(s, si + row * a.half + at);
#pragma unroll
        for (int u = 0; u < P::U; u++) {
            y1[u] = x1[u] * c[u] - x2[u] * s[u];
            y2[u] = x1[u] * s[u] + x2[u] * c[u];
        }
        put_sum<P>(a.y, first, y1, a.add);
        put_sum<P>(a.y, first + a.half, y2, a.add);
    }
    const int tail = a.rest / P::U, others = rows * a.heads * tail;
    for (int i = (int)threadIdx.x; i < others; i += ROTARY_THREADS) {
        const int row = i / (a.heads * tail), head = i / tail % a.heads, at = i % tail * P::U;
        const int64_t first = ((r0 + row) * a.heads + head) * (2 * a.half + a.rest) + 2 * a.half + at;
        float x[P::U];
        get<P>(x, a.x, first);
        put_sum<P>(a.y, first, x, a.add);
    }
}

static int common_divisor(int a, int b) { return b ? common_divisor(b, a % b) : a; }

static linnet_status turn(const lnt_call *k, const lnt_tensor *x, const lnt_tensor *y, float sign, bool add)
{
    const lnt_rotary_attr *attr = (const lnt_rotary_attr *)k->attr;
    if (k->tokens <= 0 || !y->data) return LINNET_OK;
    const int half = (int)attr->half, most = ROTARY_ANGLES / half;
    /* Up to 16 rows a block, fewer where that leaves multiprocessors without one. */
    int64_t rows = lnt_div_up(k->tokens, 4 * LNT_CUDA_SUM_BLOCKS);
    if (rows > most) rows = most;
    if (rows > 16) rows = 16;
    if (!attr->even && half > ROTARY_TABLE)
        return lnt_fail(k->c, LINNET_EUNSUPPORTED, "a rotation of %d scaled angles has no implementation for a GPU, expected at most %d", half,
                        ROTARY_TABLE);
    const double step = half > 1 ? log2(attr->theta[1]) : 0.0;
    rotary_args a = {view_of(x), view_of(y), add, cut_of(k), k->position_device, attr->period, step, sign, (float)attr->scale, half, (int)attr->rest,
                     x->heads, (int)rows, attr->even, {0}};
    for (int i = 0; i < half && !attr->even; i++) a.theta[i] = attr->theta[i];
    const lnt_tensor *const both[2] = {x, y};
    LNT_BY_UNIT(unit_of(common_divisor(half, (int)attr->rest), both, 2), P,
                (lnt_launch(lnt_cuda_of(k->c), rotary_kernel<P>, (unsigned)lnt_div_up(k->tokens, rows), ROTARY_THREADS, a)));
    return LINNET_OK;
}

extern "C" linnet_status lnt_rotary_forward_cuda(const lnt_call *k) { return turn(k, &k->in[0], &k->out[0], 1.0f, false); }
extern "C" linnet_status lnt_rotary_backward_cuda(const lnt_call *k) { return turn(k, &k->d_out[0], &k->d_in[0], -1.0f, k->accumulate[0]); }

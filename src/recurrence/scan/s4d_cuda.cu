/* S4D on a GPU (README.md, states.cuh), token by token.
 *
 * Every token turns a state by the same Abar, so that what one float lacks of it would be lacked T times: ROUND tokens go by the one float, and then
 * what ROUND of them lack is added at once (GAP); a round that is not whole goes by two floats (LOW). The way back does the same, keeps the states
 * at the start of every round and makes the others again. Sums over tokens stay in registers, and those over sequences are added in order. */
#include "recurrence/scan/s4d_gradients.cuh"
#include "recurrence/scan/states.cuh"

namespace {

/* Of each number of a state, [D,M]. GAP: Abar^ROUND less its high part's; K is twice C Bbar. */
enum { A_RE, A_IM, LOW_RE, LOW_IM, GAP_RE, GAP_IM, K_RE, K_IM, PARAMETERS };

struct s4d_args {
    const void *u, *dout; /* dout NULL: zeros */
    const float *dt, *A_re, *A_im, *C_re, *C_im, *skip, *s0, *dsT;
    void *o, *du;         /* o NULL: not wanted */
    float *sT, *ds0;
    float *parameters;    /* [PARAMETERS,D,M] */
    float *kept;          /* real parts [T / ROUND + N,D,MP], then the imaginary ones; NULL: not wanted */
    float *sums, *dskips; /* [N,SUMS_OF_NUMBER,D,M], [N,D] */
    const int64_t *cu;
    int64_t sequences, plane; /* plane: of kept */
    int D, M, strips, bilinear;
};

/* ---- parameters, in double ---------------------------------------------------------------------------------------------------------------- */

__device__ s4d_step step_of(const s4d_args &p, int64_t i) { return discretize(p.bilinear, p.dt[i / p.M], { p.A_re[i], p.A_im[i] }); }

/* A number of a state a thread. */
__global__ __launch_bounds__(SMALL_THREADS) void parameters_kernel(const __grid_constant__ s4d_args p, int round)
{
    await_last();
    let_next();
    const int64_t i = (int64_t)blockIdx.x * SMALL_THREADS + threadIdx.x, all = (int64_t)p.D * p.M;
    if (i >= all) return;
    const s4d_step s = step_of(p, i);
    const complex64 K = 2. * (complex64{ p.C_re[i], p.C_im[i] } * s.B), high = { (float)s.A.re, (float)s.A.im };
    complex64 whole = s.A, by_high = high;
    for (int n = 1; n < round; n *= 2) whole = whole * whole, by_high = by_high * by_high;
    const complex64 low = s.A - high, gap = whole - by_high;
    const double value[PARAMETERS] = { high.re, high.im, low.re, low.im, gap.re, gap.im, K.re, K.im };
#pragma unroll
    for (int k = 0; k < PARAMETERS; k++) p.parameters[k * all + i] = (float)value[k];
}

/* ---- what a lane has of its channel ------------------------------------------------------------------------------------------------------- */

template <typename S> struct numbers {
    float re[S::EACH], im[S::EACH];

    __device__ __forceinline__ void read(const place<S> &at, const s4d_args &p, const float *x, int64_t first, int64_t second)
    {
        at.read(p, re, x, first);
        at.read(p, im, x, second);
    }
    __device__ __forceinline__ void parameter(const place<S> &at, const s4d_args &p, int which) { read(at, p, p.parameters, which, which + 1); }
    __device__ __forceinline__ void state(const place<S> &at, const s4d_args &p, const float *x) { read(at, p, x, 2 * at.n, 2 * at.n + 1); }
    __device__ __forceinline__ void write(const place<S> &at, const s4d_args &p, float *x, int64_t first) const
    {
        at.write(p, x, re, first);
        at.write(p, x, im, first + 1);
    }
    /* number i <- a number i + (x, y); with a negative `turn` by the conjugate of a */
    __device__ __forceinline__ void turned(int i, const numbers &a, float turn, float x, float y)
    {
        const float z = re[i], d = turn * a.im[i];
        re[i] = fmaf(a.re[i], z, fmaf(-d, im[i], x)), im[i] = fmaf(a.re[i], im[i], fmaf(d, z, y));
    }
    /* + a z */
    __device__ __forceinline__ void add(const numbers &a, float turn, const numbers &z)
    {
#pragma unroll
        for (int i = 0; i < S::EACH; i++) {
            const float d = turn * a.im[i];
            re[i] = fmaf(a.re[i], z.re[i], fmaf(-d, z.im[i], re[i])), im[i] = fmaf(a.re[i], z.im[i], fmaf(d, z.re[i], im[i]));
        }
    }
};

template <typename S> struct dynamics {
    numbers<S> A, gap, K;

    __device__ __forceinline__ void read(const place<S> &at, const s4d_args &p)
    {
        A.parameter(at, p, A_RE);
        gap.parameter(at, p, GAP_RE);
        K.parameter(at, p, K_RE);
    }
};

/* ---- forward ----------------------------------------------------------------------------------------------------------------------------- */

template <typename S> struct fore_shared {
    float u[2][S::CH][PITCH], out[2][S::CH][PITCH];
};

/* h over a round of tokens, whose outputs are o but for D u. */
template <typename S> __device__ __forceinline__ void fore_round(const dynamics<S> &w, numbers<S> &h, const float *u_row, float (&o)[S::ROUND])
{
    const numbers<S> start = h;
#pragma unroll
    for (int j0 = 0; j0 < S::ROUND; j0 += 4) {
        float u[4];
        four(u, u_row + j0);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            o[j0 + j] = 0.f;
#pragma unroll
            for (int i = 0; i < S::EACH; i++) {
                h.turned(i, w.A, 1.f, u[j], 0.f);
                o[j0 + j] = fmaf(w.K.re[i], h.re[i], fmaf(-w.K.im[i], h.im[i], o[j0 + j]));
            }
        }
    }
    h.add(w.gap, 1.f, start);
}
/* The first `count` tokens of a round. */
template <typename S>
__device__ __forceinline__ void fore_tokens(const place<S> &at, const s4d_args &p, const dynamics<S> &w, numbers<S> &h, const float *u, int count,
                                            float (&o)[S::ROUND])
{
    numbers<S> low;
    low.parameter(at, p, LOW_RE);
#pragma unroll
    for (int j = 0; j < S::ROUND; j++) {
        o[j] = 0.f;
        if (j >= count) continue;
        const numbers<S> before = h;
#pragma unroll
        for (int i = 0; i < S::EACH; i++) h.turned(i, w.A, 1.f, u[j], 0.f);
        h.add(low, 1.f, before);
#pragma unroll
        for (int i = 0; i < S::EACH; i++) o[j] = fmaf(w.K.re[i], h.re[i], fmaf(-w.K.im[i], h.im[i], o[j]));
    }
}

/* KEEP: for the way back, states and no outputs. */
template <typename T, typename S, bool KEEP> __global__ __launch_bounds__(S::THREADS, 1) void forward_kernel(const __grid_constant__ s4d_args p)
{
    using sums = of_channel<S>;
    using u_rows = rows<T, S::CH, S::WARPS, 0>;
    constexpr int ROUND = S::ROUND;
    extern __shared__ __align__(16) unsigned char memory[];
    fore_shared<S> &w = *(fore_shared<S> *)memory;
    await_last();
    let_next();
    const place<S> at(p);
    dynamics<S> s;
    numbers<S> h;
    s.read(at, p);
    h.state(at, p, p.s0);
    const float skip = at.real && p.skip ? p.skip[at.channel] : 0.f;
    u_rows next;
    if (at.tiles) next.fetch(p.u, at.begin, at.end, p.D, at.first);
    for (int64_t k = 0; k < at.tiles; k++) {
        const int64_t t = at.begin + k * TB;
        next.put(w.u[k % 2]);
        if (k + 1 < at.tiles) next.fetch(p.u, t + TB, at.end, p.D, at.first);
        __syncthreads(); /* one a tile: what a tile wrote is read, and its place used again, behind the next tile's */
        if (k && !KEEP) u_rows::store(p.o, w.out[(k - 1) % 2], t - TB, TB, p.D, at.first);
        for (int r = 0; r < S::ROUNDS && t + r * ROUND < at.end; r++) {
            const float *u = &w.u[k % 2][at.of_cta][r * ROUND];
            float o[ROUND];
            if (KEEP && at.real) {
                float *kept = at.kept(p, k * S::ROUNDS + r);
#pragma unroll
                for (int i = 0; i < S::EACH; i++) kept[at.number(i)] = h.re[i], kept[p.plane + at.number(i)] = h.im[i];
            }
            if (t + (r + 1) * ROUND <= at.end)
                fore_round(s, h, u, o);
            else
                fore_tokens(at, p, s, h, u, (int)(at.end - t - r * ROUND), o);
            if (KEEP) continue;
            sums::sum(o);
            const int j = sums::token(at.m);
            if (sums::mine(at.m)) w.out[k % 2][at.of_cta][r * ROUND + j] = fmaf(skip, u[j], o[0]);
        }
    }
    if (KEEP) return;
    __syncthreads();
    if (at.tiles) {
        const int64_t k = at.tiles - 1, t = at.begin + k * TB;
        u_rows::store(p.o, w.out[k % 2], t, (int)(at.end - t), p.D, at.first);
    }
    h.write(at, p, p.sT, 2 * at.n);
}

/* ---- in reverse -------------------------------------------------------------------------------------------------------------------------- */

template <typename S> struct back_shared {
    float u[2][S::CH][PITCH], dy[2][S::CH][PITCH], du[2][S::CH][PITCH];
};

/* What a thread carries over its channel's tokens. */
template <typename S> struct carried {
    numbers<S> lam, dA, dK;
    float skip, dskip;
};

/* Back over the first `count` tokens of a round, from the states in front of it; through: what goes to du but for D dy, of a lane's numbers. */
template <typename S, bool WHOLE>
__device__ __forceinline__ void back_round(const dynamics<S> &w, carried<S> &s, numbers<S> h, const float *u_row, const float *dy_row, int count,
                                           float (&through)[S::ROUND])
{
    constexpr int EACH = S::EACH, ROUND = S::ROUND;
    float re[ROUND + 1][EACH], im[ROUND + 1][EACH];
    const numbers<S> end = s.lam;
#pragma unroll
    for (int i = 0; i < EACH; i++) re[0][i] = h.re[i], im[0][i] = h.im[i];
#pragma unroll
    for (int j0 = 0; j0 < ROUND; j0 += 4) {
        float u[4];
        four(u, u_row + j0);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                h.turned(i, w.A, 1.f, u[j], 0.f);
                re[j0 + j + 1][i] = h.re[i], im[j0 + j + 1][i] = h.im[i];
            }
    }
#pragma unroll
    for (int j0 = ROUND - 4; j0 >= 0; j0 -= 4) {
        float dy[4];
        four(dy, dy_row + j0);
#pragma unroll
        for (int j = 3; j >= 0; j--) {
            const int k = j0 + j;
            through[k] = 0.f;
            if (!WHOLE && k >= count) continue;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const float x = fmaf(w.K.re[i], dy[j], s.lam.re[i]), y = fmaf(-w.K.im[i], dy[j], s.lam.im[i]);
                through[k] += x;
                s.lam.re[i] = x, s.lam.im[i] = y;
                s.lam.turned(i, w.A, -1.f, 0.f, 0.f);
                s.dA.re[i] = fmaf(x, re[k][i], fmaf(y, im[k][i], s.dA.re[i]));
                s.dA.im[i] = fmaf(y, re[k][i], fmaf(-x, im[k][i], s.dA.im[i]));
                s.dK.re[i] = fmaf(dy[j], re[k + 1][i], s.dK.re[i]);
                s.dK.im[i] = fmaf(-dy[j], im[k + 1][i], s.dK.im[i]);
            }
        }
    }
    if (WHOLE) s.lam.add(w.gap, -1.f, end);
}

template <typename T, typename S> __global__ __launch_bounds__(S::THREADS, 1) void backward_kernel(const __grid_constant__ s4d_args p)
{
    using sums = of_channel<S>;
    using some_rows = rows<T, S::CH, S::WARPS, 0>;
    constexpr int EACH = S::EACH, ROUND = S::ROUND;
    extern __shared__ __align__(16) unsigned char memory[];
    back_shared<S> &w = *(back_shared<S> *)memory;
    await_last();
    let_next();
    const place<S> at(p);
    dynamics<S> a;
    carried<S> s = {};
    some_rows u, dy;
    a.read(at, p);
    s.lam.state(at, p, p.dsT);
    s.skip = at.real && p.skip ? p.skip[at.channel] : 0.f;
    const auto fetch = [&](int64_t k) {
        u.fetch(p.u, at.begin + k * TB, at.end, p.D, at.first);
        dy.fetch(p.dout, at.begin + k * TB, at.end, p.D, at.first);
    };
    const auto store = [&](int64_t k) {
        const int64_t t = at.begin + k * TB;
        some_rows::store(p.du, w.du[k % 2], t, (int)(at.end - t < TB ? at.end - t : TB), p.D, at.first);
    };
    numbers<S> ahead; /* the state in front of the next round */
    const auto fetch_state = [&](int64_t round) {
        const float *kept = at.kept(p, round);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            ahead.re[i] = at.real && round >= 0 ? kept[at.number(i)] : 0.f;
            ahead.im[i] = at.real && round >= 0 ? kept[p.plane + at.number(i)] : 0.f;
        }
    };
    fetch_state((at.end - at.begin + ROUND - 1) / ROUND - 1);
    if (at.tiles) fetch(at.tiles - 1);
    for (int64_t k = at.tiles - 1; k >= 0; k--) {
        const int64_t t = at.begin + k * TB;
        u.put(w.u[k % 2]);
        dy.put(w.dy[k % 2]);
        if (k) fetch(k - 1);
        __syncthreads();
        if (k + 1 < at.tiles) store(k + 1);
        for (int r = (int)((at.end - t < TB ? at.end - t : TB) + ROUND - 1) / ROUND - 1; r >= 0; r--) {
            const float *u_row = &w.u[k % 2][at.of_cta][r * ROUND], *dy_row = &w.dy[k % 2][at.of_cta][r * ROUND];
            float through[ROUND];
            const numbers<S> h = ahead;
            fetch_state(k * S::ROUNDS + r - 1);
            if (t + (r + 1) * ROUND <= at.end)
                back_round<S, true>(a, s, h, u_row, dy_row, ROUND, through);
            else
                back_round<S, false>(a, s, h, u_row, dy_row, (int)(at.end - t - r * ROUND), through);
            sums::sum(through);
            const int j = sums::token(at.m);
            if (!sums::mine(at.m)) continue;
            w.du[k % 2][at.of_cta][r * ROUND + j] = fmaf(s.skip, dy_row[j], through[0]);
            s.dskip = fmaf(dy_row[j], u_row[j], s.dskip);
        }
    }
    __syncthreads();
    if (at.tiles) store(0);
    s.lam.write(at, p, p.ds0, 2 * at.n);
    s.dA.write(at, p, p.sums, at.n * SUMS_OF_NUMBER + SUM_A_RE);
    s.dK.write(at, p, p.sums, at.n * SUMS_OF_NUMBER + SUM_K_RE);
    s.dskip = sums::of_all(s.dskip);
    if (at.real && at.m == 0) p.dskips[at.n * p.D + at.channel] = s.dskip;
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------------------- */

/* M up to 16, 32, 64, 128. */
int size_of(const lnt_s4d_args *a) { return a->M <= 16 ? 16 : a->M <= 32 ? 32 : a->M <= 64 ? 64 : 128; }
template <int SIZE> using shape_of = shape<SIZE <= 32 ? 16 : 32, SIZE == 16 ? 1 : SIZE <= 64 ? 2 : 4>;
int64_t strips_of(const lnt_s4d_args *a)
{
    const int size = size_of(a);
    return lnt_div_up(a->D, size == 16 ? shape_of<16>::CH : size == 32 ? shape_of<32>::CH : size == 64 ? shape_of<64>::CH : shape_of<128>::CH);
}
int round_of(const lnt_s4d_args *a) { return size_of(a) == 16 ? shape_of<16>::ROUND : shape_of<32>::ROUND; }

/* In the workspace. */
size_t carve(const lnt_s4d_args *a, bool back, s4d_args *p)
{
    vector_arena m = { (char *)a->workspace, 0 };
    const int64_t numbers_ = (int64_t)a->D * a->M;
    p->parameters = m.take<float>(PARAMETERS * numbers_);
    if (!back) return m.used;
    p->plane = (a->tokens / round_of(a) + a->sequences) * a->D * size_of(a);
    p->kept = m.take<float>(2 * p->plane);
    p->sums = m.take<float>(a->sequences * SUMS_OF_NUMBER * numbers_);
    p->dskips = m.take<float>(a->sequences * a->D);
    return m.used;
}

s4d_args args_of(const lnt_s4d_args *a)
{
    s4d_args p = {};
    p.u = a->u, p.dt = (const float *)a->dt, p.skip = (const float *)a->skip, p.s0 = (const float *)a->s0;
    p.A_re = (const float *)a->A_re, p.A_im = (const float *)a->A_im, p.C_re = (const float *)a->C_re, p.C_im = (const float *)a->C_im;
    p.cu = a->cu_seqlens_device, p.sequences = a->sequences, p.D = a->D, p.M = a->M, p.strips = (int)strips_of(a);
    p.bilinear = a->discretization == LNT_S4D_BILINEAR;
    return p;
}

enum pass { FORWARD, KEEPING, IN_REVERSE };
template <typename T, int SIZE> void put(const s4d_args &p, pass which, const lnt_cuda *d)
{
    using S = shape_of<SIZE>;
    const unsigned ctas = (unsigned)(p.sequences * p.strips);
    if (!ctas) return;
    if (which == IN_REVERSE)
        lnt_launch_with(d, backward_kernel<T, S>, ctas, S::THREADS, sizeof(back_shared<S>), 1, p);
    else if (which == KEEPING)
        lnt_launch_with(d, forward_kernel<T, S, true>, ctas, S::THREADS, sizeof(fore_shared<S>), 1, p);
    else
        lnt_launch_with(d, forward_kernel<T, S, false>, ctas, S::THREADS, sizeof(fore_shared<S>), 1, p);
}
void put_kernel(const lnt_s4d_args *a, const s4d_args &p, pass which, const lnt_cuda *d)
{
    const int size = size_of(a);
    LNT_BY_TYPE(a->dtype, T, (size == 16 ? put<T, 16> : size == 32 ? put<T, 32> : size == 64 ? put<T, 64> : put<T, 128>)(p, which, d));
}
void put_parameters(const lnt_s4d_args *a, const s4d_args &p, const lnt_cuda *d)
{
    lnt_launch(d, parameters_kernel, (unsigned)lnt_div_up((int64_t)a->D * a->M, SMALL_THREADS), SMALL_THREADS, p, round_of(a));
}

void forward(const void *args, const lnt_device *device)
{
    const lnt_s4d_args *a = (const lnt_s4d_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    s4d_args p = args_of(a);
    carve(a, false, &p);
    p.o = a->o, p.sT = (float *)a->sT;
    put_parameters(a, p, d);
    put_kernel(a, p, FORWARD, d);
}

void backward(const void *args, const lnt_device *device)
{
    const lnt_s4d_args *a = (const lnt_s4d_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    s4d_args p = args_of(a);
    carve(a, true, &p);
    put_parameters(a, p, d);
    put_kernel(a, p, KEEPING, d);
    p.dout = a->dout, p.dsT = (const float *)a->dsT, p.du = a->du, p.ds0 = (float *)a->ds0;
    put_kernel(a, p, IN_REVERSE, d);
    put_gradients(a, p.sums, p.dskips, d);
}

size_t workspace(const void *args, bool back, int)
{
    lnt_s4d_args a = *(const lnt_s4d_args *)args;
    s4d_args p;
    a.workspace = NULL;
    return carve(&a, back, &p);
}
size_t fore_workspace(const void *args, bool, int) { return workspace(args, false, 1); }

const char *declines(const void *args, bool)
{
    const lnt_s4d_args *a = (const lnt_s4d_args *)args;
    if (a->M > 128) return "at most 128 numbers of a channel's state are offered";
    return a->sequences >= ((int64_t)1 << 31) / strips_of(a) ? "too many sequences" : NULL;
}

} // namespace

LNT_CUDA_FORMS(lnt_s4d, chunk, declines, workspace, forward, backward, fore_workspace, forward)

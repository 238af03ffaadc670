/* The four norms: y = x r w act(g), where w and the gate may be missing (equations: norms_cpu.c).
 *
 * A row of d columns belongs to a team of threads that holds it in registers, so that x, the gate and dy are read once: up to 32 lanes of a warp for
 * a short row (a head), a whole block for a long one. Backward runs at most LNT_CUDA_SUM_BLOCKS blocks over all rows; every thread keeps the sums of
 * dw for its columns, and loads its next row before it works on the one it has.
 *
 * Together with the sum that makes x, each number of both is read and written once. Floor at float32 a, x and bf16 b, y: forward 12 bytes an element,
 * backward 20 with the sum's own gradient there. Together with the gate that makes x = silu(g) u, x is not stored: it is made, and rounded, again in
 * backward, which has dx = r w dy - r^3 mean(w dy x) x in registers, and from it dg = dx u silu'(g), du = dx silu(g). Floor in bf16: 6, 10 bytes. */
#include "ops/rows.cuh"

extern "C" {
#include "core/threads.h"
#include "ops/norms.h"
}

enum norm_kind { RMS, L2, SUM };
/* SUMMED: x = a + b is made here, and its gradient handed on; GATE_FIRST: x = silu(gate) u is, and x, dx are u and its gradient */
enum norm_form { ALONE, GATED, SUMMED, GATE_FIRST };

struct norm_args {
    lnt_view x, gate, y, dy, dx, dg;
    lnt_view a, b, da, db; /* SUMMED */
    const float *w;  /* [d], NULL: none */
    float centre;    /* what is added to it */
    float *part;     /* [blocks, d], NULL: dw is not wanted */
    int64_t rows;
    int64_t ld_gate, ld_dg, ld_u, ld_du; /* from a row to the next, of the gate, and GATE_FIRST of x and dx */
    int d, units;    /* columns, and units of columns, of a row */
    int lanes;       /* of a team */
    int kind, act;
    float eps, mean; /* mean: 1/d for RMS, 1 for L2 */
    bool weighted;   /* w is there */
    bool add_x, add_g, add_a, add_b;
};

template <class P> __device__ __forceinline__ void get_centred(float (&w)[P::U], const norm_args &a, int c)
{
    get_weights(w, a.w + c);
#pragma unroll
    for (int j = 0; j < P::U; j++) w[j] += a.centre;
}

/* x = silu(g) u of one unit, from u in x, rounded as it would be stored; sigmoid: of g. */
template <class P> __device__ __forceinline__ void gate_first(const norm_args &a, float (&x)[P::U], const float (&g)[P::U], const float *sigmoid)
{
#pragma unroll
    for (int u = 0; u < P::U; u++) x[u] *= g[u] * sigmoid[u];
    const lnt_raw<P> stored = unit_from<P>(x, a.x.f32);
    widen<P>(x, stored, a.x.f32);
}

/* The sums of two numbers over a team, the same bits in all its threads. A block's shared memory takes turns: one barrier a call is enough. */
template <bool WIDE> __device__ __forceinline__ void team_sums(float &a, float &b, int lanes, int turn)
{
    for (int o = WIDE ? 16 : lanes / 2; o; o >>= 1) {
        a += __shfl_xor_sync(0xffffffffu, a, o);
        b += __shfl_xor_sync(0xffffffffu, b, o);
    }
    if constexpr (WIDE) {
        __shared__ float2 part[2][32];
        const int warps = (int)blockDim.x / 32;
        if (threadIdx.x % 32 == 0) part[turn & 1][threadIdx.x / 32] = make_float2(a, b);
        __syncthreads();
        a = b = 0.0f;
        for (int w = 0; w < warps; w++) a += part[turn & 1][w].x, b += part[turn & 1][w].y; /* sixteen read at once: no faster in a step */
    }
}

/* r, from s = sum x^2 (or sum x). */
__device__ __forceinline__ float inverse_of(const norm_args &a, float s)
{
    return a.kind == SUM ? 1.0f / (s + a.eps) : 1.0f / sqrtf(s * a.mean + a.eps);
}

/* What is known when a kernel is compiled, which is half the instructions of a row. HEADS_OF_128: an rmsnorm's way back in bf16, with nothing there
 * to add to. */
enum norm_known { NOTHING, HEADS_OF_128 };

template <norm_known KNOWN> __device__ __forceinline__ decltype(auto) typed(const norm_args &given)
{
    if constexpr (KNOWN == NOTHING) {
        return (given); /* where it lies */
    } else {
        norm_args a = given;
        a.kind = RMS;
        a.weighted = true, a.add_x = false;
        a.d = 128, a.units = a.lanes = 16;
        return a;
    }
}
template <class P, int N, bool WIDE, norm_form FORM, norm_known KNOWN = NOTHING>
__global__ void __launch_bounds__(WIDE ? (P::U == 1 ? 1024 : 512) : 256) norm_forward(const __grid_constant__ norm_args given)
{
    const norm_args &a = typed<KNOWN>(given);
    const int lanes = WIDE ? (int)blockDim.x : a.lanes, lane = WIDE ? (int)threadIdx.x : (int)threadIdx.x & (lanes - 1);
    const int64_t row = WIDE ? blockIdx.x : ((int64_t)blockIdx.x * 256 + threadIdx.x) / lanes, at = row * a.d;
    const int units = row < a.rows ? a.units : 0;
    float w[N][P::U];
    let_next();
#pragma unroll
    for (int i = 0; i < N; i++)
        if (a.weighted && lane + i * lanes < units) get_centred<P>(w[i], a, (lane + i * lanes) * P::U);
    await_last();
    lnt_raw<P> x[N], g[FORM == ALONE ? 1 : N];
    float v[P::U], s = 0.0f, none = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + i * lanes < units) {
            x[i] = fetch<P>(FORM == SUMMED ? a.a : a.x, (FORM == GATE_FIRST ? row * a.ld_u : at) + (lane + i * lanes) * P::U);
            if constexpr (FORM == SUMMED) g[i] = fetch<P>(a.b, at + (lane + i * lanes) * P::U);
            if constexpr (FORM == GATED || FORM == GATE_FIRST) g[i] = fetch<P>(a.gate, row * a.ld_gate + (lane + i * lanes) * P::U);
        }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + i * lanes < units) {
            if constexpr (FORM == SUMMED) {
                float b[P::U];
                widen<P>(v, x[i], a.a.f32);
                widen<P>(b, g[i], a.b.f32);
#pragma unroll
                for (int u = 0; u < P::U; u++) v[u] += b[u];
                x[i] = unit_from<P>(v, a.x.f32);
                put_raw<P>(a.x, at + (lane + i * lanes) * P::U, x[i]);
            }
            widen<P>(v, x[i], a.x.f32);
            if constexpr (FORM == GATE_FIRST) {
                float gate[P::U], sigmoid[P::U];
                widen<P>(gate, g[i], a.gate.f32);
#pragma unroll
                for (int u = 0; u < P::U; u++) sigmoid[u] = sigmoid_of(gate[u]);
                gate_first<P>(a, v, gate, sigmoid);
                x[i] = unit_from<P>(v, a.x.f32);
            }
#pragma unroll
            for (int u = 0; u < P::U; u++) s += a.kind == SUM ? v[u] : v[u] * v[u];
        }
    team_sums<WIDE>(s, none, lanes, 0);
    const float r = inverse_of(a, s);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + i * lanes < units) {
            const int c = (lane + i * lanes) * P::U;
            widen<P>(v, x[i], a.x.f32);
#pragma unroll
            for (int u = 0; u < P::U; u++) v[u] *= a.weighted ? r * w[i][u] : r;
            if constexpr (FORM == GATED) {
                float gate[P::U];
                widen<P>(gate, g[i], a.gate.f32);
                gate_all(gate, a.act);
#pragma unroll
                for (int u = 0; u < P::U; u++) v[u] *= gate[u];
            }
            put<P>(a.y, at + c, v);
        }
}

/* What a thread holds of a row. */
template <class P, int N, norm_form FORM> struct norm_row {
    lnt_raw<P> x[N], dy[N], g[FORM == ALONE ? 1 : N]; /* SUMMED: g is the gradient of x that is there */
    __device__ __forceinline__ void load(const norm_args &a, int64_t row, int lane, int lanes)
    {
        const int units = row < a.rows ? a.units : 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane + i * lanes < units) {
                const int64_t at = row * a.d + (lane + i * lanes) * P::U;
                x[i] = fetch<P>(a.x, FORM == GATE_FIRST ? row * a.ld_u + (lane + i * lanes) * P::U : at);
                dy[i] = fetch<P>(a.dy, at);
                if constexpr (FORM == GATED || FORM == GATE_FIRST) g[i] = fetch<P>(a.gate, row * a.ld_gate + (lane + i * lanes) * P::U);
                if constexpr (FORM == SUMMED) g[i] = a.add_x ? fetch<P>(a.dx, at) : no_unit<P>();
            }
    }
};

/* GATE_FIRST: sigmoids of a unit's gates, which both passes over a row take. */
template <class P, norm_form FORM> struct unit_sigmoids {
    float s[FORM == GATE_FIRST ? P::U : 1];
};

/* The weights of a thread's columns, where there are registers for them; otherwise a row fetches them twice. */
template <class P, int N, bool HELD> struct norm_weights {
    float w[HELD ? N : 1][P::U];
    __device__ __forceinline__ void load(const norm_args &a, int lane, int lanes)
    {
#pragma unroll
        for (int i = 0; HELD && i < N; i++)
            if (a.weighted && lane + i * lanes < a.units) get_centred<P>(w[i], a, (lane + i * lanes) * P::U);
    }
    __device__ __forceinline__ void get(float (&out)[P::U], const norm_args &a, int i, int c) const
    {
        if constexpr (HELD)
#pragma unroll
            for (int j = 0; j < P::U; j++) out[j] = w[i][j];
        else
            get_centred<P>(out, a, c);
    }
};

/* u = dy w act(g) (GATE_FIRST: dy w), the gradient of x r, of one unit. */
template <class P, int N, norm_form FORM, bool HELD>
__device__ __forceinline__ void unit_gradient(const norm_args &a, const norm_weights<P, N, HELD> &weights, const norm_row<P, N, FORM> &now, int i,
                                              int c, float (&x)[P::U], float (&u)[P::U], unit_sigmoids<P, FORM> &gate)
{
    widen<P>(x, now.x[i], a.x.f32);
    widen<P>(u, now.dy[i], a.dy.f32);
    float w[P::U];
    if (a.weighted) {
        weights.get(w, a, i, c);
#pragma unroll
        for (int j = 0; j < P::U; j++) u[j] *= w[j];
    }
    if constexpr (FORM == GATED) {
        widen<P>(w, now.g[i], a.gate.f32);
        gate_all(w, a.act);
#pragma unroll
        for (int j = 0; j < P::U; j++) u[j] *= w[j];
    }
    if constexpr (FORM == GATE_FIRST) {
        widen<P>(w, now.g[i], a.gate.f32);
#pragma unroll
        for (int j = 0; j < P::U; j++) gate.s[j] = sigmoid_of(w[j]);
        gate_first<P>(a, x, w, gate.s);
    }
}

/* Gradients of one unit of row `at`, and its share of dw. */
template <class P, int N, norm_form FORM, bool HELD>
__device__ __forceinline__ void unit_back(const norm_args &a, const norm_weights<P, N, HELD> &weights, const norm_row<P, N, FORM> &now, int i, int c,
                                          int64_t row, float r, float back, float (&dw)[P::U], const unit_sigmoids<P, FORM> &gate)
{
    const int64_t at = row * a.d;
    float x[P::U], u[P::U], w[P::U], dx[P::U];
    widen<P>(x, now.x[i], a.x.f32);
    if constexpr (FORM == GATE_FIRST) {
        widen<P>(w, now.g[i], a.gate.f32);
        gate_first<P>(a, x, w, gate.s);
    }
    widen<P>(u, now.dy[i], a.dy.f32);
    if (a.weighted) {
        weights.get(w, a, i, c);
    } else {
#pragma unroll
        for (int j = 0; j < P::U; j++) w[j] = 1.0f;
    }
    if constexpr (FORM == GATED) {
        float act[P::U], slope[P::U];
        widen<P>(act, now.g[i], a.gate.f32);
        gate_slopes(act, slope, a.act);
#pragma unroll
        for (int j = 0; j < P::U; j++) slope[j] *= u[j] * x[j] * r * w[j], u[j] *= act[j];
        if (a.dg.p) put_sum<P>(a.dg, row * a.ld_dg + c, slope, a.add_g);
    }
#pragma unroll
    for (int j = 0; j < P::U; j++) {
        dw[j] += u[j] * x[j] * r;
        dx[j] = u[j] * w[j] * r - (a.kind == SUM ? back : x[j] * back);
    }
    if constexpr (FORM == GATE_FIRST) {
        widen<P>(u, now.x[i], a.x.f32);
        widen<P>(w, now.g[i], a.gate.f32);
#pragma unroll
        for (int j = 0; j < P::U; j++) {
            const float silu = w[j] * gate.s[j], slope = gate.s[j] + silu * (1.0f - gate.s[j]);
            u[j] *= dx[j] * slope, dx[j] *= silu;
        }
        if (a.dg.p) put_sum<P>(a.dg, row * a.ld_dg + c, u, a.add_g);
    }
    if constexpr (FORM == SUMMED) {
        widen<P>(u, now.g[i], a.dx.f32);
#pragma unroll
        for (int j = 0; j < P::U; j++) dx[j] += u[j];
        const lnt_raw<P> sum = unit_from<P>(dx, a.dx.f32);
        put_raw<P>(a.dx, at + c, sum);
        widen<P>(dx, sum, a.dx.f32);
        if (a.da.p) put_sum<P>(a.da, at + c, dx, a.add_a);
        if (a.db.p) put_sum<P>(a.db, at + c, dx, a.add_b);
    } else {
        if (a.dx.p) put_sum<P>(a.dx, (FORM == GATE_FIRST ? row * a.ld_du : at) + c, dx, a.add_x);
    }
}

/* dw of a block: lanes of other teams by shuffles, warps through shared memory in order; a whole block's columns are all its own. */
template <class P, int N, bool WIDE> __device__ __forceinline__ void block_weights(const norm_args &a, float (&dw)[N][P::U], int lane, int lanes)
{
    float *part = a.part + (int64_t)blockIdx.x * a.d;
    if constexpr (WIDE) {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < P::U; j++)
                if (lane + i * lanes < a.units) part[(lane + i * lanes) * P::U + j] = dw[i][j];
    } else {
        __shared__ float share[8][32 * N * P::U]; /* [warps][d] */
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < P::U; j++) {
                for (int o = lanes; o < 32; o <<= 1) dw[i][j] += __shfl_xor_sync(0xffffffffu, dw[i][j], o);
                if ((int)threadIdx.x % 32 < lanes && lane + i * lanes < a.units) share[threadIdx.x / 32][(lane + i * lanes) * P::U + j] = dw[i][j];
            }
        __syncthreads();
        for (int c = (int)threadIdx.x; c < a.d; c += 256) {
            float s = 0.0f;
#pragma unroll
            for (int w = 0; w < 8; w++) s += share[w][c];
            part[c] = s;
        }
    }
}

template <class P, int N, bool WIDE, norm_form FORM, norm_known KNOWN = NOTHING>
__global__ void __launch_bounds__(WIDE ? (P::U == 1 ? 1024 : 512) : 256, P::U == 1 ? 1 : !WIDE ? (FORM == SUMMED ? 2 : 4) : FORM == ALONE ? 2 : 1)
    norm_backward(const __grid_constant__ norm_args given)
{
    const norm_args &a = typed<KNOWN>(given);
    let_next();
    await_last();
    const int lanes = WIDE ? (int)blockDim.x : a.lanes, lane = WIDE ? (int)threadIdx.x : (int)threadIdx.x & (lanes - 1);
    const int teams = WIDE ? 1 : 256 / lanes, team = WIDE ? 0 : (int)threadIdx.x / lanes;
    const int64_t stride = (int64_t)gridDim.x * teams;
    float dw[N][P::U] = {};
    norm_weights<P, N, KNOWN != NOTHING> weights;
    weights.load(a, lane, lanes);
    norm_row<P, N, FORM> now, next;
    int turn = 0;
    next.load(a, (int64_t)blockIdx.x * teams + team, lane, lanes);
    for (int64_t base = (int64_t)blockIdx.x * teams; base < a.rows; base += stride, turn++) { /* the same steps for all threads of a block */
        const int64_t row = base + team;
        const int units = row < a.rows ? a.units : 0;
        now = next;
        next.load(a, row + stride, lane, lanes);
        float s = 0.0f, ux = 0.0f;
        unit_sigmoids<P, FORM> gate[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane + i * lanes < units) {
                float x[P::U], u[P::U];
                unit_gradient(a, weights, now, i, (lane + i * lanes) * P::U, x, u, gate[i]);
#pragma unroll
                for (int j = 0; j < P::U; j++) {
                    s += a.kind == SUM ? x[j] : x[j] * x[j];
                    ux += u[j] * x[j];
                }
            }
        team_sums<WIDE>(s, ux, lanes, turn);
        const float r = KNOWN == NOTHING ? inverse_of(a, s) : rsqrtf(s * a.mean + a.eps), back = (a.kind == SUM ? r * r : r * r * r * a.mean) * ux;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane + i * lanes < units) unit_back(a, weights, now, i, (lane + i * lanes) * P::U, row, r, back, dw[i], gate[i]);
    }
    if (a.part) block_weights<P, N, WIDE>(a, dw, lane, lanes);
}

/* ---- launches ------------------------------------------------------------------------------------------------------------------------- */

/* Units of a wide team at two a thread; columns of any1 at 16. A thread of a narrow team has two, but one in the backward of a gated norm: with
 * more it would need over 64 registers, and 512 blocks would not be resident. Of up to FEW rows, a decoding step, a thread of a wide team has one
 * where there are threads enough: the GPU is empty (not timed by itself; with a faster search for the largest logit 0.2% of a step). */
enum { WIDE_UNITS = 1024, LONGEST = 16384, FEW = 64 };
/* Of pairs two for each multiprocessor of an H200, which all of them are resident on: a thread has three numbers of two rows for each column. */
static constexpr int64_t PAIR_BLOCKS = 256;

/* How rows are given to threads; `few`: as those of a decoding step. */
struct norm_plan {
    int unit, lanes;
    bool wide;
    unsigned threads;
    int64_t blocks; /* one row for each team */
};

static norm_plan plan_of(const norm_args &a, const lnt_tensor *const *tensors, int n, int narrow, bool few)
{
    norm_plan p = {unit_of(a.d | a.ld_gate | a.ld_dg | a.ld_u | a.ld_du, tensors, n), 1, false, 256, 0};
    if (a.d / p.unit > WIDE_UNITS || (uintptr_t)a.w % 16) p.unit = 1;
    const int units = a.d / p.unit, each = p.unit == 1 ? 16 : units <= (few ? 512 : 128) ? 1 : 2;
    p.wide = p.unit == 1 || units > 32 * narrow;
    if (p.wide)
        p.lanes = (int)lnt_div_up(units, 32 * each) * 32, p.threads = (unsigned)p.lanes;
    else
        while (narrow * p.lanes < units) p.lanes *= 2;
    p.blocks = p.wide ? a.rows : lnt_div_up(a.rows, 256 / p.lanes);
    return p;
}

/* first: the call that makes x, of SUMMED and GATE_FIRST. */
static linnet_status args_of(const lnt_call *k, const lnt_call *first, norm_form form, norm_kind kind, bool weighted, norm_args *a)
{
    const lnt_norm_attr *attr = (const lnt_norm_attr *)k->attr;
    const lnt_tensor *x = &k->in[0];
    const int64_t d = x->cols / x->heads;
    *a = {};
    if (d > LONGEST && (d % 4 || d > 4 * WIDE_UNITS))
        return lnt_fail(k->c, LINNET_EUNSUPPORTED, "a norm over %lld columns on a GPU, expected at most %d", (long long)d, LONGEST);
    a->x = view_of(x), a->y = view_of(&k->out[0]), a->dy = view_of(&k->d_out[0]), a->dx = view_of(&k->d_in[0]);
    a->add_x = k->accumulate[0], a->ld_gate = a->ld_dg = a->ld_u = a->ld_du = d;
    a->act = attr->act;
    if (form == GATED) a->gate = view_of(&k->in[1]), a->dg = view_of(&k->d_in[1]), a->add_g = k->accumulate[1];
    if (form == SUMMED) {
        a->a = view_of(&first->in[0]), a->b = view_of(&first->in[1]), a->da = view_of(&first->d_in[0]), a->db = view_of(&first->d_in[1]);
        a->add_a = first->accumulate[0], a->add_b = first->accumulate[1];
    }
    if (form == GATE_FIRST) {
        a->x = view_of(&first->in[1]), a->dx = view_of(&first->d_in[1]), a->add_x = first->accumulate[1];
        a->gate = view_of(&first->in[0]), a->dg = view_of(&first->d_in[0]), a->add_g = first->accumulate[0];
        a->ld_gate = first->in[0].ld, a->ld_dg = first->d_in[0].ld, a->ld_u = first->in[1].ld, a->ld_du = first->d_in[1].ld;
    }
    a->weighted = weighted, a->w = weighted ? k->param[0].master : NULL, a->centre = attr->centre;
    a->rows = k->in[0].rows * x->heads, a->d = (int)d;
    a->kind = kind, a->eps = (float)attr->eps, a->mean = kind == RMS ? 1.0f / (float)d : 1.0f;
    return LINNET_OK;
}

#define NORM_LAUNCH(kernel, narrow, blocks, form)                                                                                         \
    do {                                                                                                                           \
        const unsigned grid = (unsigned)(blocks);                                                                                  \
        const lnt_cuda *device = lnt_cuda_of(k->c);                                                                                \
        if (p.unit == 8 && !p.wide)                                                                                                \
            lnt_launch(device, kernel<half8, narrow, false, form>, grid, (int)p.threads, a);                                               \
        else if (p.unit == 8)                                                                                                      \
            lnt_launch(device, kernel<half8, 2, true, form>, grid, (int)p.threads, a);                                                \
        else if (p.unit == 4 && !p.wide)                                                                                           \
            lnt_launch(device, kernel<any4, narrow, false, form>, grid, (int)p.threads, a);                                                \
        else if (p.unit == 4)                                                                                                      \
            lnt_launch(device, kernel<any4, 2, true, form>, grid, (int)p.threads, a);                                                 \
        else                                                                                                                       \
            lnt_launch(device, kernel<any1, 16, true, form>, grid, (int)p.threads, a);                                                \
    } while (0)

static linnet_status forward(const lnt_call *k, const lnt_call *first, norm_form form, norm_kind kind, bool weighted)
{
    norm_args a;
    if (k->in[0].rows <= 0) return LINNET_OK;
    LNT_TRY(args_of(k, first, form, kind, weighted, &a));
    const lnt_tensor *const of_norm[3] = {&k->in[0], &k->out[0], &k->in[1]};
    const lnt_tensor *const of_sum[4] = {&k->in[0], &k->out[0], first ? &first->in[0] : NULL, first ? &first->in[1] : NULL};
    const lnt_tensor *const of_gate[3] = {of_sum[3], &k->out[0], of_sum[2]};
    const norm_plan p = plan_of(a, form == SUMMED ? of_sum : form == GATE_FIRST ? of_gate : of_norm, form == SUMMED ? 4 : form == ALONE ? 2 : 3, 2,
                                a.rows <= FEW || lnt_rows_are_alone(k->c));
    a.units = a.d / p.unit, a.lanes = p.lanes;
    if (form == GATED)
        NORM_LAUNCH(norm_forward, 2, p.blocks, GATED);
    else if (form == SUMMED)
        NORM_LAUNCH(norm_forward, 2, p.blocks, SUMMED);
    else if (form == GATE_FIRST)
        NORM_LAUNCH(norm_forward, 2, p.blocks, GATE_FIRST);
    else
        NORM_LAUNCH(norm_forward, 2, p.blocks, ALONE);
    return LINNET_OK;
}

static linnet_status backward(const lnt_call *k, const lnt_call *first, norm_form form, norm_kind kind, bool weighted)
{
    norm_args a;
    float *grad = weighted ? k->param[0].grad : NULL;
    if (k->in[0].rows <= 0) return LINNET_OK;
    LNT_TRY(args_of(k, first, form, kind, weighted, &a));
    const bool gates = form == GATED || form == GATE_FIRST;
    const lnt_tensor *const of_norm[5] = {&k->in[0], &k->d_out[0], &k->d_in[0], &k->in[1], &k->d_in[1]};
    const lnt_tensor *const of_sum[5] = {&k->in[0], &k->d_out[0], &k->d_in[0], first ? &first->d_in[0] : NULL, first ? &first->d_in[1] : NULL};
    const lnt_tensor *const of_gate[5] = {first ? &first->in[1] : NULL, &k->d_out[0], of_sum[4], first ? &first->in[0] : NULL, of_sum[3]};
    const lnt_tensor *const *tensors = form == SUMMED ? of_sum : form == GATE_FIRST ? of_gate : of_norm;
    norm_plan p = plan_of(a, tensors, form == ALONE ? 3 : 5, gates ? 1 : 2, a.rows <= FEW);
    const bool of_128 = form == ALONE && kind == RMS && weighted && !a.add_x && a.d == 128 && p.unit == 8;
    if (of_128) p.lanes = 16, p.blocks = lnt_div_up(a.rows, 256 / 16); /* a unit a thread */
    const int64_t room = lnt_cuda_sum_blocks(k->in[0].rows), most = first && room > PAIR_BLOCKS ? PAIR_BLOCKS : room,
                  blocks = p.blocks < most ? p.blocks : most;
    a.units = a.d / p.unit, a.lanes = p.lanes;
    a.part = grad ? (float *)k->work : NULL;
    if (form == GATED)
        NORM_LAUNCH(norm_backward, 1, blocks, GATED);
    else if (of_128)
        lnt_launch(lnt_cuda_of(k->c), norm_backward<half8, 1, false, ALONE, HEADS_OF_128>, (unsigned)blocks, (int)p.threads, a);
    else if (form == SUMMED)
        NORM_LAUNCH(norm_backward, 2, blocks, SUMMED);
    else if (form == GATE_FIRST)
        NORM_LAUNCH(norm_backward, 1, blocks, GATE_FIRST);
    else
        NORM_LAUNCH(norm_backward, 2, blocks, ALONE);
    if (grad) add_blocks(k->c, grad, a.part, blocks, a.d, a.d, 1);
    return LINNET_OK;
}

#define NORM(op, ...)                                                                                                              \
    extern "C" linnet_status lnt_##op##_forward_cuda(const lnt_call *k) { return forward(k, NULL, __VA_ARGS__); }                  \
    extern "C" linnet_status lnt_##op##_backward_cuda(const lnt_call *k) { return backward(k, NULL, __VA_ARGS__); }

NORM(rmsnorm, ALONE, RMS, true)
NORM(gated_rmsnorm, GATED, RMS, true)
NORM(l2norm, ALONE, L2, false)
NORM(sumnorm, ALONE, SUM, false)

extern "C" linnet_status lnt_sum_rmsnorm_forward_cuda(const lnt_call *sum, const lnt_call *norm)
{
    return lnt_stream_norm_forward(sum, norm) ? LINNET_OK : forward(norm, sum, SUMMED, RMS, true);
}
extern "C" linnet_status lnt_sum_rmsnorm_backward_cuda(const lnt_call *sum, const lnt_call *norm)
{
    return lnt_stream_norm_backward(sum, norm) ? LINNET_OK : backward(norm, sum, SUMMED, RMS, true);
}
extern "C" linnet_status lnt_glu_rmsnorm_forward_cuda(const lnt_call *glu, const lnt_call *norm)
{
    return forward(norm, glu, GATE_FIRST, RMS, true);
}
extern "C" linnet_status lnt_glu_rmsnorm_backward_cuda(const lnt_call *glu, const lnt_call *norm)
{
    return backward(norm, glu, GATE_FIRST, RMS, true);
}

/* The Mesa core token by token on a GPU: heads of up to 128 columns (mesa_step.cuh), and wider states. */
#include "recurrence/mesa/mesa_step.cuh"

namespace {

using namespace mesa_held;

/* ---- wider states -------------------------------------------------------------------------------------------------------------------------- */

constexpr int WIDE = 256, PARTS = 2;

struct wide_shared {
    float p[WIDE], k[WIDE], diagonal[WIDE], sums[3][2][WIDE / 32];
    float columns[PARTS][WIDE];
};

/* Sums (N = 1: the smallest if `least`) over the columns, the same bits in all threads. `round` tells apart calls that no barrier parts. */
template <int N> __device__ __forceinline__ void over_columns(wide_shared &s, int round, float (&x)[N], bool least = false)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (least)
            for (int o = 16; o; o >>= 1) x[n] = lnt_mesa_least(x[n], __shfl_xor_sync(0xffffffffu, x[n], o));
        else x[n] = warp_sum(x[n]);
        if (lane == 0 && warp < WIDE / 32) s.sums[round][n][warp] = x[n];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; n++) {
        x[n] = s.sums[round][n][0];
        for (int w = 1; w < WIDE / 32; w++) x[n] = least ? lnt_mesa_least(x[n], s.sums[round][n][w]) : x[n] + s.sums[round][n][w];
    }
}

/* sum_i rows_i S[i][column], rows from s.p; begins (rows are there) and ends with barriers inside. */
template <typename F> __device__ __forceinline__ float times(wide_shared &s, int part, int column, int rows, bool half, F S)
{
    constexpr int ROWS = WIDE / PARTS;
    __syncthreads();
    float sum[4] = {};
#pragma unroll 2
    for (int i = 0; i < ROWS; i += 4) {
        if (part * ROWS + i >= rows) break;
        float p[4];
        load_pack<4>(p, &s.p[part * ROWS + i]);
        if (half)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j] += p[j] * lnt_to_half(S(i + j));
        else
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j] += p[j] * S(i + j);
    }
    s.columns[part][column] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    __syncthreads();
    float all = s.columns[0][column];
#pragma unroll
    for (int i = 1; i < PARTS; i++) all += s.columns[i][column];
    return all;
}

/* All tokens of a value head. Long: a step's numbers are in registers from its beginning to its end. */
template <typename T> __global__ __launch_bounds__(WIDE *PARTS) void mesa_step_wide(const __grid_constant__ step_args<T> a)
{
    constexpr int ROWS = WIDE / PARTS;
    __shared__ __align__(16) wide_shared s;
    const int column = (int)threadIdx.x % WIDE, part = (int)threadIdx.x / WIDE, first = part * ROWS, K = a.K, V = a.V;
    const int h = (int)(blockIdx.x % a.Hv), hq = (int)((int64_t)h * a.Hq / a.Hv);
    const int64_t n = blockIdx.x / a.Hv;
    const int64_t H0 = n * a.H_stride + ((int64_t)h * K + first) * K + column, G0 = n * a.G_stride + ((int64_t)h * K + first) * V + column;
    const bool in_H = column < K, in_G = column < V;
    const int rows = K - first < ROWS ? K - first : ROWS; /* its own; may be negative */
    let_next();
    await_last();
    for (int i = 0; i < rows; i++) {
        if (in_H) a.hT[H0 + (int64_t)i * K] = a.h0 ? a.h0[H0 + (int64_t)i * K] : 0.0f;
        if (in_G) a.sT[G0 + (int64_t)i * V] = a.s0 ? a.s0[G0 + (int64_t)i * V] : 0.0f;
    }
    auto at_H = [&](int i) -> float { return in_H && i < rows ? a.hT[H0 + (int64_t)i * K] : 0.0f; };
    auto at_G = [&](int i) -> float { return in_G && i < rows ? a.sT[G0 + (int64_t)i * V] : 0.0f; };
    const lnt_mesa_course course = lnt_mesa_course_now(a);
    const float lambda = in_H ? lambda_at(a, (int64_t)h * K + column) : 1.0f;

    for (int64_t t = a.cu[n]; t < a.cu[n + 1]; t++) {
        const int64_t token = t * a.Hv + h;
        const float gate = a.g[token], beta = a.beta[token], less = expm1f(lnt_gate(gate));
        float q = in_H ? to_float(a.q[(t * a.Hq + hq) * K + column]) : 0.0f, k = in_H ? to_float(a.k[(t * a.Hq + hq) * K + column]) : 0.0f;
        if (a.half) {
            q = lnt_to_half(q);
            k = lnt_to_half(k);
        }
        const float v = in_G ? to_float(a.v[token * V + column]) : 0.0f;
        __syncthreads(); /* the token before is done with shared memory */
        if (part == 0) s.k[column] = beta * k;
        __syncthreads();
#pragma unroll 8
        for (int i = 0; i < ROWS; i++) {
            if (i >= rows) break;
            const float kb = s.k[first + i], y = fmaf(kb, k, fmaf(less, at_H(i), at_H(i))), z = fmaf(kb, v, fmaf(less, at_G(i), at_G(i)));
            if (first + i == column) s.diagonal[column] = y;
            if (in_H) a.hT[H0 + (int64_t)i * K] = y;
            if (in_G) a.sT[G0 + (int64_t)i * V] = z;
        }
        __syncthreads();
        const float diagonal = in_H ? s.diagonal[column] : FLT_MAX;
        float one[1] = { diagonal }, m = diagonal;
        if (course.solver == LNT_CG_LEVEL) {
            over_columns(s, 0, one, true);
            m = one[0];
        }
        m = 1.0f / (m + lambda);

        float x = course.from_guess ? m * q : 0.0f, r = q, start[2] = { q * q, 0.0f };
        if (course.from_guess) {
            if (part == 0) s.p[column] = a.half ? lnt_to_half(x) : x;
            r -= times(s, part, column, K, a.half, at_H) + lambda * x;
        }
        if (course.solver > LNT_CG_JACOBI) m = 1.0f;
        float p = m * r;
        start[1] = p * r;
        over_columns(s, 1, start);
        const float size = start[0];
        float delta = start[1];
        int taken = 0;
        while (taken < course.most) {
            if (part == 0) s.p[column] = a.half ? lnt_to_half(p) : p;
            const float w = times(s, part, column, K, a.half, at_H) + lambda * p;
            one[0] = p * w;
            over_columns(s, 0, one);
            const bool useful = delta > 0 && one[0] > 0 && one[0] < INFINITY;
            if (!useful && !(a.absolute > 0 && lnt_mesa_lost(delta, one[0]) == 0)) {
                const float lost = lnt_mesa_lost(delta, one[0]); /* 0 but for what is no number */
                x += lost;
                r += lost;
                break;
            }
            const float alpha = delta / (one[0] + a.absolute);
            x += alpha * p;
            r -= alpha * w;
            taken++;
            float next[2] = { r * (m * r), r * r };
            over_columns(s, 1, next);
            if (next[1] <= a.tolerance2 * size) break;
            p = m * r + next[0] / (delta + a.absolute) * p;
            delta = next[0];
        }
        if (a.residual) {
            one[0] = r * r;
            over_columns(s, 2, one);
        }
        if (threadIdx.x == 0 && a.taken) a.taken[token] = (float)(taken > course.free_steps ? taken - course.free_steps : 0);
        if (threadIdx.x == 0 && a.residual) a.residual[token] = lnt_mesa_left(one[0], size);
        if (a.half) x = lnt_to_half(x);
        if (part == 0 && in_H && a.x) a.x[token * K + column] = x;
        if (part == 0) s.p[column] = x;
        const float o = times(s, part, column, K, false, at_G);
        if (part == 0 && in_G) a.o[token * V + column] = from_float<T>(o);
    }
}

bool wide(const lnt_mesa_args *a) { return a->K > LNT_MESA_HELD || a->V > LNT_MESA_HELD; }

template <typename T, int W, bool PACKED, bool HALF> __global__ __launch_bounds__(2 * W) void mesa_step_kernel(const __grid_constant__ step_args<T> a)
{
    __shared__ step_shared<W> shared;
    mesa_step<T, W, PACKED, HALF>(a, (int)blockIdx.x, shared, lnt_alone());
}

/* Few sequences: of many, more blocks share a multiprocessor than a kernel that stays has. */
enum { PIECE_BLOCKS = 1024 };
void launch_piece(const lnt_cuda *d, const lnt_piece *p, const CUtensorMap *)
{
    mesa_piece piece;
    memcpy(&piece, p->args, sizeof piece);
    lnt_launch(d, mesa_step_kernel<bf16, 128, true, false>, (unsigned)p->blocks, 256, piece.args);
}
bool offer(const lnt_cuda *d, const step_args<bf16> &a, int64_t heads)
{
    const mesa_piece piece = {a};
    return heads <= PIECE_BLOCKS &&
           lnt_persistent_offer(d, LNT_PIECE_MESA, &piece, sizeof piece, (int)heads, sizeof(step_shared<128>), NULL, launch_piece);
}
bool offer(const lnt_cuda *, const step_args<float> &, int64_t) { return false; }

template <typename T, int W> void put_held(const step_args<T> &a, bool packed, int64_t heads, lnt_cuda *d)
{
    const auto whole = packed ? mesa_step_kernel<T, W, true, false> : mesa_step_kernel<T, W, false, false>;
    const auto kernel = a.half ? mesa_step_kernel<T, W, false, true> : whole;
    if (W == 128 && packed && !a.half && offer(d, a, heads)) return;
    lnt_launch(d, kernel, (unsigned)heads, 2 * W, a);
}

template <typename T>
void put(const lnt_mesa_args *r, const lnt_mesa_lambda &made, const lnt_mesa_around &around, int64_t stride, const lnt_mesa_solve<T, T> &solve,
         lnt_cuda *d)
{
    float *states = (float *)r->workspace;
    const int64_t heads = r->sequences * r->Hv;
    step_args<T> a = {};
    a.cu = r->cu_seqlens_device;
    a.q = (const T *)r->q;
    a.k = (const T *)r->k;
    a.v = (const T *)r->v;
    a.g = (const float *)r->g;
    a.beta = (const float *)r->beta;
    a.lambda = (const float *)r->lambda;
    a.made = made, a.conv[0] = around.conv[0], a.conv[1] = around.conv[1], a.norm = around.norm;
    a.h0 = (const float *)r->h0;
    a.s0 = (const float *)r->s0;
    a.hT = (float *)r->hT;
    a.sT = (float *)r->sT;
    if (wide(r) && !a.hT) a.hT = states;
    if (wide(r) && !a.sT) a.sT = states + heads * r->K * r->K;
    a.x = (float *)r->x;
    a.taken = (float *)r->steps;
    a.residual = (float *)r->residual;
    a.o = (T *)r->o;
    a.H_stride = stride ? stride : (int64_t)r->Hv * r->K * r->K;
    a.G_stride = stride ? stride : (int64_t)r->Hv * r->K * r->V;
    a.Hq = r->Hq;
    a.Hv = r->Hv;
    a.K = r->K;
    a.V = r->V;
    a.steps = solve.steps;
    const uintptr_t places = (uintptr_t)a.q | (uintptr_t)a.k | (uintptr_t)a.v | (uintptr_t)a.h0 | (uintptr_t)a.s0 | (uintptr_t)a.hT | (uintptr_t)a.sT;
    const bool packed = r->K % 4 == 0 && r->V % 4 == 0 && stride % 4 == 0 && places % 16 == 0;
    a.drawn = solve.drawn;
    a.tolerance2 = solve.tolerance2;
    a.absolute = solve.absolute;
    a.solver = solve.solver;
    a.diagonal = solve.diagonal;
    a.half = solve.half;
    a.early = r->states_early;
    if (!heads) return;
    if (wide(r))
        lnt_launch(d, mesa_step_wide<T>, (unsigned)heads, WIDE * PARTS, a);
    else if (r->K > 64 || r->V > 64)
        put_held<T, 128>(a, packed, heads, d);
    else
        put_held<T, 64>(a, packed, heads, d);
}

} // namespace

size_t lnt_mesa_step_bytes(const lnt_mesa_args *a)
{
    return wide(a) ? (size_t)a->sequences * (size_t)a->Hv * (size_t)a->K * (size_t)(a->K + a->V) * sizeof(float) : 0;
}

void lnt_mesa_step_put(const lnt_mesa_args *a, lnt_cuda *d) { LNT_BY_TYPE(a->dtype, T, put<T>(a, {}, {}, 0, lnt_mesa_options_of<T, T>(a), d)); }

extern "C" void lnt_mesa_step_states(const lnt_mesa_args *a, lnt_mesa_lambda made, const lnt_mesa_around *around, int64_t stride, lnt_device *d)
{
    LNT_BY_TYPE(a->dtype, T, put<T>(a, made, *around, stride, lnt_mesa_options_of<T, T>(a), (lnt_cuda *)d));
}

/* The decay core on a GPU, token by token. Equations: README.md. */
#include "recurrence/decay/decay_stable.cuh"
#include "recurrence/decay/decay_step.cuh"
#include "recurrence/recur_cuda.cuh"

template <typename T, bool QUADS, int ROWS, bool VECTOR>
__global__ __launch_bounds__(STEP_THREADS, ROWS <= 4 ? 5 : ROWS <= 8 ? 3 : 2) void decay_step_kernel(const __grid_constant__ decay_step_args a)
{
    __shared__ decay_step_share share;
    decay_step<T, QUADS, ROWS, VECTOR>(a, (int)blockIdx.x, share, lnt_alone());
}

/* den = s z . q + eps and the end of z, a warp a value head. */
template <typename T, int ROWS>
__global__ __launch_bounds__(32) void decay_step_den(const __grid_constant__ decay_cut x, const T *q, const T *k, const float *z0, float *zT,
                                                     float *den, float eps, int Hq, int K)
{
    const int64_t head = blockIdx.x, n = head / x.Hv;
    const int h = (int)(head % x.Hv), lane = (int)threadIdx.x, hq = (int)((int64_t)h * Hq / x.Hv);
    float z[ROWS];
    let_next();
    await_last();
    for (int r = 0; r < ROWS; r++) z[r] = z0 && lane + 32 * r < K ? z0[head * K + lane + 32 * r] : 0.0f;
    for (int64_t t = x.cu[n]; t < x.cu[n + 1]; t++) {
        const float less = expm1f(decay_gate(x, t, h));
        float sum = 0;
        for (int r = 0; r < ROWS; r++) {
            const int d = lane + 32 * r;
            if (d >= K) continue;
            z[r] = fmaf(less, z[r], z[r]) + to_float(k[(t * Hq + hq) * K + d]);
            sum += z[r] * to_float(q[(t * Hq + hq) * K + d]);
        }
        sum = warp_sum(sum);
        if (lane == 0) den[t * x.Hv + h] = x.scale * sum + eps;
    }
    for (int r = 0; r < ROWS; r++)
        if (zT && lane + 32 * r < K) zT[head * K + lane + 32 * r] = z[r];
}

/* mLSTM: m and n, a warp a value head, and what a token's step takes of them: D_t, the gate of the kept states, the strength of its write. */
struct step_stable {
    const float *f, *i, *m0, *n0;
    float *mT, *nT, *den, *g, *write;
    float eps;
};
template <typename T, int ROWS>
__global__ __launch_bounds__(32) void decay_step_stable(const __grid_constant__ decay_cut x, const T *q, const T *k,
                                                        const __grid_constant__ step_stable a,
                                                        int Hq, int K)
{
    const int64_t head = blockIdx.x, n = head / x.Hv;
    const int h = (int)(head % x.Hv), hq = (int)((int64_t)h * Hq / x.Hv);
    let_next();
    await_last();
    float m = a.m0 ? a.m0[head] : 0.0f;
    stable_row<1, ROWS> z = {}, row;
    if (a.n0) z.get(a.n0 + head * K, K);
    for (int64_t t = x.cu[n]; t < x.cu[n + 1]; t++) {
        const float before = m, i = a.i[t * x.Hv + h], through = a.f[t * x.Hv + h] + before;
        m = through > i ? through : i;
        if (m == -INFINITY) m = 0.0f; /* no write to no state */
        const float g = (float)((double)a.f[t * x.Hv + h] + before - m);
        const stable_factors f = { expm1f(lnt_gate(g)), expf(i - m) };
        row.get(k + (t * Hq + hq) * K, K);
        z.step(f, row);
        row.get(q + (t * Hq + hq) * K, K);
        const float den = x.scale * warp_sum(z.dot(row));
        if (threadIdx.x) continue;
        a.den[t * x.Hv + h] = stable_denominator(den, m, a.eps);
        a.g[t * x.Hv + h] = g;
        a.write[t * x.Hv + h] = f.write;
    }
    if (a.nT) z.put(a.nT + head * K, K);
    if (a.mT && threadIdx.x == 0) a.mT[head] = m;
}

static bool is_stable(const lnt_recur_args *a) { return a->op->kind == LNT_DECAY_STABLE; }

static size_t step_workspace(const void *args, bool backward, int threads)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    const size_t rows = (size_t)a->tokens * (size_t)a->Hv * sizeof(float);
    if (is_stable(a)) return 3 * rows;
    return a->normalize ? rows : 0;
}

/* A piece is of few sequences: of many, more blocks share a multiprocessor than a kernel that stays has. */
enum { STEP_PIECE_BLOCKS = 1024 };
template <bool VECTOR> static void launch_piece(const lnt_cuda *d, const lnt_piece *p, const CUtensorMap *)
{
    decay_piece piece;
    memcpy(&piece, p->args, sizeof piece);
    lnt_launch(d, decay_step_kernel<bf16, true, 4, VECTOR>, (unsigned)p->blocks, STEP_THREADS, piece.args);
}

template <typename T, bool VECTOR> static void step(const lnt_recur_args *a, const lnt_cuda *d)
{
    decay_cut x = { a->cu_seqlens_device, a->sequences, a->tokens, 1, 1, a->Hv, (const float *)a->g, (const float *)a->g_head, (float)a->scale };
    float *den = a->normalize ? (float *)a->workspace : NULL, *sT = (float *)a->sT, *zT = (float *)a->zT, eps = (float)a->eps;
    const float *s0 = (const float *)a->s0, *z0 = (const float *)a->z0;
    int Hq = a->Hq, K = a->K, V = a->V, blocks = (V + 31) / 32;
    const int64_t heads = a->sequences * a->Hv;
    if (heads == 0) return;
    float *write = NULL;
    if (!VECTOR && is_stable(a)) {
        const int64_t rows = a->tokens * a->Hv;
        float *g = (float *)a->workspace + rows;
        den = (float *)a->workspace, write = g + rows;
        const step_stable stable = { (const float *)a->g, (const float *)a->i, (const float *)a->m0, z0, (float *)a->mT, zT, den, g, write, eps };
        const auto kernel = K <= DECAY_WIDEST ? decay_step_stable<T, STEP_ROWS> : decay_step_stable<T, STEP_MOST_ROWS>;
        lnt_launch(d, kernel, (unsigned)heads, 32, x, (const T *)a->q, (const T *)a->k, stable, Hq, K);
        x.g = g;
    } else if (den) {
        const auto kernel = K <= DECAY_WIDEST ? decay_step_den<T, STEP_ROWS> : decay_step_den<T, STEP_MOST_ROWS>;
        lnt_launch(d, kernel, (unsigned)heads, 32, x, (const T *)a->q, (const T *)a->k, z0, zT, den, eps, Hq, K);
    }
    const bool quads = V % 4 == 0 && ((uintptr_t)s0 | (uintptr_t)sT) % 16 == 0;
    const decay_piece piece = {{x, a->q, a->k, a->v, s0, sT, a->o, den, Hq, K, V, blocks,
                                {(const float *)a->gk, (const float *)a->gv, (const float *)a->bonus}, write, a->states_early}, VECTOR};
    if (quads && K <= 128 && a->tokens == a->sequences && a->dtype == LINNET_BF16 && heads * blocks <= STEP_PIECE_BLOCKS &&
        lnt_persistent_offer(d, LNT_PIECE_DECAY, &piece, sizeof piece, (int)(heads * blocks), sizeof(decay_step_share), NULL, launch_piece<VECTOR>))
        return;
    auto *narrow = quads ? decay_step_kernel<T, true, 4, VECTOR> : decay_step_kernel<T, false, 4, VECTOR>;
    auto *wide = quads ? decay_step_kernel<T, true, STEP_ROWS, VECTOR> : decay_step_kernel<T, false, STEP_ROWS, VECTOR>;
    auto *widest = quads ? decay_step_kernel<T, true, STEP_MOST_ROWS, VECTOR> : decay_step_kernel<T, false, STEP_MOST_ROWS, VECTOR>;
    lnt_launch(d, K <= 128 ? narrow : K <= DECAY_WIDEST ? wide : widest, (unsigned)(heads * blocks), STEP_THREADS, piece.args);
}
template <bool VECTOR> static void step_forward(const void *args, const lnt_device *d)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    LNT_BY_TYPE(a->dtype, T, step<T, VECTOR>(a, (const lnt_cuda *)d));
}

static const char *step_too_wide(const void *args, bool backward)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    return a->K > STEP_WIDEST || a->V > DECAY_WIDEST_V ? "K of at most 512 and V of at most 1024 are offered" : NULL;
}

LNT_CUDA_FORM(lnt_decay_recurrent_cuda, "recurrent-cuda", RECURRENT, 80, step_too_wide, step_workspace, step_forward<false>, NULL)
LNT_CUDA_FORM(lnt_vector_recurrent_cuda, "recurrent-cuda", RECURRENT, 80, step_too_wide, step_workspace, step_forward<true>, NULL)

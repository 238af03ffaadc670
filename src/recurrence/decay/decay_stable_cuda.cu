/* mLSTM around the passes of the decay core (operators.md#mlstm): what makes gates and factors of tokens in front of them, and what their results
 * lack behind them. The passes see V columns of the kept states, a reader's factor 1 / D_t and a writer's w_t; the column of ones is n, which is
 * walked here token by token, a warp a chunk of a head, from chunk starts that a scan leaves.
 *
 *   forward   m, g, w      n in front of every chunk      s n_t.q_t and D_t      the passes
 *   backward  the same     the passes: dq, dk of the V columns, in which q_t.dq_t = do_t.o_t, and dv
 *             queries: dq_t += c_t n_t, c_t the gradient of n_t.q_t      dn behind every chunk      keys: dk_t += w_t dn_t, k_t.dk_t, <e^g n, dn>
 *             gates: what m gets, and who passes it on */
#include "recurrence/decay/decay_stable.cuh"

static constexpr int C = LNT_STABLE_C, SCAN_THREADS = 256;

/* ---- m ------------------------------------------------------------------------------------------------------------------------------- */

/* m -> max(f + m, i); one behind the other is such a map again. Where nothing was written and nothing is, m is 0. */
struct stable_map {
    double f, i;
};
__device__ __forceinline__ double larger(double through, double i) { return through > i ? through : i; }
__device__ __forceinline__ stable_map then(stable_map first, stable_map second)
{
    return { first.f + second.f, larger(second.f + first.i, second.i) };
}
__device__ __forceinline__ bool writes_nothing(float f, float i) { return f == -INFINITY && i == -INFINITY; }
__device__ __forceinline__ stable_map map_of(float f, float i) { return { f, writes_nothing(f, i) ? 0.0 : (double)i }; }

/* Whether m_t is i_t there; the float of m says it, as i is one. */
__device__ __forceinline__ bool taken_at(float f, float i, float m) { return m == i || writes_nothing(f, i); }

/* A CTA a head: threads have runs of neighbouring tokens, whose maps they compose. */
__global__ __launch_bounds__(SCAN_THREADS) void stable_gates(const __grid_constant__ decay_cut x, const float *f, const float *i, const float *m0,
                                                             float *mT, const __grid_constant__ decay_stable w)
{
    __shared__ stable_map warps[SCAN_THREADS / 32];
    const int64_t n = blockIdx.x / x.Hv, first = x.cu[n], len = x.cu[n + 1] - first;
    const int h = (int)(blockIdx.x % x.Hv), id = (int)threadIdx.x, lane = id % 32, warp = id / 32;
    const int64_t run = (len + SCAN_THREADS - 1) / SCAN_THREADS, begin = min(len, id * run), end = min(len, begin + run);
    const float start = m0 ? m0[blockIdx.x] : 0.0f;
    stable_map mine = { 0.0, -INFINITY };
    for (int64_t t = first + begin; t < first + end; t++) mine = then(mine, map_of(f[t * x.Hv + h], i[t * x.Hv + h]));
    for (int o = 1; o < 32; o <<= 1) {
        const stable_map left = { __shfl_up_sync(~0u, mine.f, o), __shfl_up_sync(~0u, mine.i, o) };
        if (lane >= o) mine = then(left, mine);
    }
    if (lane == 31) warps[warp] = mine;
    __syncthreads();
    stable_map before = { 0.0, -INFINITY };
    for (int k = 0; k < warp; k++) before = then(before, warps[k]);
    const stable_map left = { __shfl_up_sync(~0u, mine.f, 1), __shfl_up_sync(~0u, mine.i, 1) };
    if (lane) before = then(before, left);
    double m = larger(before.f + start, before.i);
    for (int64_t t = first + begin; t < first + end; t++) {
        const stable_map at = map_of(f[t * x.Hv + h], i[t * x.Hv + h]);
        m = larger(at.f + m, at.i);
        w.m[t * x.Hv + h] = (float)m;
    }
    __syncthreads();
    for (int64_t t = first + id; t < first + len; t += SCAN_THREADS) { /* of the floats that m became, whichever thread made them */
        const int64_t row = t * x.Hv + h;
        const double was = t > first ? w.m[row - x.Hv] : start, is = w.m[row];
        w.g[row] = (float)(f[row] + was - is);
        w.writes[row] = (float)(i[row] - is);
    }
    if (mT && id == 0) mT[blockIdx.x] = len ? w.m[(first + len - 1) * x.Hv + h] : start;
}

/* ---- n -------------------------------------------------------------------------------------------------------------------------------- */

/* A chunk of a head; false: the sequence has no such chunk. */
__device__ __forceinline__ bool stable_place(const decay_cut &x, decay_place *at, int *h, int64_t *slot)
{
    *h = (int)(blockIdx.x % x.Hv);
    const int64_t piece = blockIdx.x / x.Hv;
    if (!decay_find(x, piece / x.P, (int)(piece % x.P), at)) return false;
    *slot = at->slot * x.Hv + *h;
    return true;
}

/* What a chunk adds to n, and its decay. */
template <typename T, int L>
__global__ __launch_bounds__(32) void stable_sums(const __grid_constant__ decay_cut x, const __grid_constant__ stable_rows a,
                                                  const __grid_constant__ decay_stable w)
{
    decay_place at;
    int h;
    int64_t slot;
    if (!stable_place(x, &at, &h, &slot)) return;
    stable_row<L> n = {};
    float sum = 0;
#pragma unroll 4
    for (int64_t t = at.first; t < at.last; t++) {
        sum += decay_gate(x, t, h);
        n.step(stable_token(x, t, h), a.template row<T, L>(a.k, x, t, h));
    }
    n.put(w.n + slot * a.K, a.K);
    if (threadIdx.x == 0) w.fade[slot] = exp2f(sum * (float)DECAY_LOG2E);
}

/* s n_t.q_t, D_t, and the n behind a sequence. */
template <typename T, int L>
__global__ __launch_bounds__(32) void stable_denominators(const __grid_constant__ decay_cut x, const __grid_constant__ stable_rows a,
                                                          const __grid_constant__ decay_stable w, float eps, float *nT)
{
    decay_place at;
    int h;
    int64_t slot;
    if (!stable_place(x, &at, &h, &slot)) return;
    stable_row<L> n;
    n.get(w.n + slot * a.K, a.K);
#pragma unroll 4
    for (int64_t t = at.first; t < at.last; t++) {
        const int64_t row = t * x.Hv + h;
        n.step(stable_token(x, t, h), a.template row<T, L>(a.k, x, t, h));
        const float den = x.scale * warp_sum(n.dot(a.template row<T, L>(a.q, x, t, h)));
        if (threadIdx.x) continue;
        w.den[row] = den;
        w.reads[row] = 1.0f / stable_denominator(den, w.m[row], eps);
    }
    if (nT && at.ends) n.put(nT + (at.n * x.Hv + h) * a.K, a.K);
}

/* The gradient of n_t.q_t from that of D_t, which is -do_t.o_t / D_t, and what of it reaches dq. dq [T,Hv,K] float32 has do_t.o_t = q_t.dq_t; it
 * goes to `out`, which may be the same. dn: what a chunk adds to the gradient of n in front of it. */
template <typename T, typename TO, int L>
__global__ __launch_bounds__(32) void stable_queries(const __grid_constant__ decay_cut x, const __grid_constant__ stable_rows a,
                                                     const __grid_constant__ decay_stable w, float eps, const float *dq, TO *out)
{
    decay_place at;
    int h;
    int64_t slot;
    if (!stable_place(x, &at, &h, &slot)) return;
    stable_row<L> n, dn = {};
    n.get(w.n + slot * a.K, a.K);
    float sum = 0;
#pragma unroll 2
    for (int64_t t = at.first; t < at.last; t++) {
        const int64_t row = t * x.Hv + h;
        const stable_row<L> q = a.template row<T, L>(a.q, x, t, h);
        stable_row<L> d;
        d.get(dq + row * a.K, a.K);
        n.step(stable_token(x, t, h), a.template row<T, L>(a.k, x, t, h));
        sum += decay_gate(x, t, h);
        const float den = w.den[row], dD = -warp_sum(d.dot(q)) * w.reads[row];
        const float along = fabsf(den) <= stable_floor(w.m[row]) ? 0.0f : copysignf(x.scale, den) * dD;
        d.add(along, n);
        dn.add(along * exp2f(sum * (float)DECAY_LOG2E), q);
        if (out) d.put(out + row * a.K, a.K);
        if (threadIdx.x) continue;
        w.along[row] = along;
        w.pull[row] = eps * dD;
    }
    dn.put(w.dn + slot * a.K, a.K);
    if (at.ends) n.put(w.nT + (at.n * x.Hv + h) * a.K, a.K);
}

/* Back through a chunk: dk_t += w_t dn_t, k_t.dk_t, and n's part of the gates' gradient. The n that each token finds wait in shared memory [C][K]. */
template <typename T, typename TO, int L>
__global__ __launch_bounds__(32) void stable_keys(const __grid_constant__ decay_cut x, const __grid_constant__ stable_rows a,
                                                  const __grid_constant__ decay_stable w, const float *dk, TO *out, float *dn0)
{
    extern __shared__ __align__(16) float kept[];
    decay_place at;
    int h;
    int64_t slot;
    if (!stable_place(x, &at, &h, &slot)) return;
    stable_row<L> n, dn;
    n.get(w.n + slot * a.K, a.K);
    dn.get(w.dn + slot * a.K, a.K);
#pragma unroll 4
    for (int64_t t = at.first; t < at.last; t++) {
        n.put(kept + (t - at.first) * a.K, a.K); /* every lane reads what it wrote itself */
        n.step(stable_token(x, t, h), a.template row<T, L>(a.k, x, t, h));
    }
#pragma unroll 2
    for (int64_t t = at.last - 1; t >= at.first; t--) {
        const int64_t row = t * x.Hv + h;
        const stable_factors f = stable_token(x, t, h);
        const stable_row<L> k = a.template row<T, L>(a.k, x, t, h);
        stable_row<L> d;
        d.get(dk + row * a.K, a.K);
        dn.add(w.along[row], a.template row<T, L>(a.q, x, t, h));
        d.add(f.write, dn);
        n.get(kept + (t - at.first) * a.K, a.K);
        dn.fade(f.less);
        const float di = warp_sum(d.dot(k)), dg = warp_sum(n.dot(dn));
        if (out) d.put(out + row * a.K, a.K);
        if (threadIdx.x) continue;
        w.di[row] = di;
        w.dg_n[row] = dg;
    }
    if (dn0 && at.begins) dn.put(dn0 + (at.n * x.Hv + h) * a.K, a.K);
}

/* ---- what m gets ------------------------------------------------------------------------------------------------------------------------ */

struct stable_ends {
    const float *f, *i;
    const float *s0, *n0, *dsT, *dnT, *dmT; /* NULL: zeros */
    float *df, *di, *dm0;                   /* NULL: not wanted */
    int K, V;
};

__device__ static double stable_sum(const float *x, const float *y, int64_t n, double *shared)
{
    double sum = 0;
    if (x && y)
        for (int64_t k = threadIdx.x; k < n; k += SCAN_THREADS) sum += (double)x[k] * y[k];
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int k = 0; k < SCAN_THREADS / 32; k++) sum += shared[k];
    return sum;
}

/* c, the gradient of m when the states times e^m are not to move, goes backwards: a token adds its pull, and where m is i it ends in di, else it is
 * df's too. A CTA a head; a thread's run of tokens maps c to keep c + pull. */
__global__ __launch_bounds__(SCAN_THREADS) void stable_ends_gradient(const __grid_constant__ decay_cut x, const __grid_constant__ stable_ends a,
                                                                     const __grid_constant__ decay_stable w)
{
    __shared__ double shared[SCAN_THREADS / 32], keeps[SCAN_THREADS], pulls[SCAN_THREADS];
    const int64_t n = blockIdx.x / x.Hv, head = blockIdx.x, first = x.cu[n], len = x.cu[n + 1] - first, state = (int64_t)a.K * a.V;
    const int h = (int)(blockIdx.x % x.Hv), id = (int)threadIdx.x;
    double last = a.dmT ? (double)a.dmT[head] : 0.0;
    if (a.dsT) last -= stable_sum(w.sT + head * state, a.dsT + head * state, state, shared);
    if (a.dnT) last -= stable_sum(w.nT + head * a.K, a.dnT + head * a.K, a.K, shared);
    const int64_t run = (len + SCAN_THREADS - 1) / SCAN_THREADS, begin = min(len, id * run), end = min(len, begin + run);
    double keep = 1, pull = 0;
    for (int64_t t = first + end - 1; t >= first + begin; t--) {
        const int64_t row = t * x.Hv + h;
        const bool taken = taken_at(a.f[row], a.i[row], w.m[row]);
        keep = taken ? 0 : keep;
        pull = taken ? 0 : pull + w.pull[row];
    }
    keeps[id] = keep;
    pulls[id] = pull;
    __syncthreads();
    if (id == 0)
        for (int k = SCAN_THREADS - 1; k >= 0; k--) { /* to what comes to a run from behind it */
            const double here = last;
            last = keeps[k] * last + pulls[k];
            pulls[k] = here;
        }
    __syncthreads();
    double c = pulls[id];
    for (int64_t t = first + end - 1; t >= first + begin; t--) {
        const int64_t row = t * x.Hv + h;
        const bool taken = taken_at(a.f[row], a.i[row], w.m[row]);
        c += w.pull[row];
        if (a.di) a.di[row] = (float)(w.di[row] + (taken ? c : 0.0));
        if (a.df) a.df[row] = (float)((double)w.dgates[row] + w.dg_n[row] + (taken ? 0.0 : c));
        c = taken ? 0 : c;
    }
    if (!a.dm0) return;
    double start = 0;
    if (a.s0) start += stable_sum(a.s0 + head * state, w.ds + head * state, state, shared);
    if (a.n0) start += stable_sum(a.n0 + head * a.K, w.dn0 + head * a.K, a.K, shared);
    if (id == 0) a.dm0[head] = (float)(last + start);
}

/* ---- calls -------------------------------------------------------------------------------------------------------------------------------- */

struct stable_call {
    const lnt_recur_args *a;
    const lnt_cuda *d;
    decay_cut x; /* chunks */
    stable_rows rows;
    decay_stable w;
    unsigned heads, pieces;
};

static stable_call call_of(const lnt_recur_args *a, const decay_stable &w, const lnt_cuda *d)
{
    const decay_cut x = { a->cu_seqlens_device, a->sequences, a->tokens, C, decay_segments(a, C), a->Hv, w.g, NULL, (float)a->scale, w.reads,
                          w.writes };
    return { a, d, x, { a->q, a->k, a->Hq, a->K }, w, (unsigned)(x.N * x.Hv), (unsigned)decay_pieces(x) };
}

/* The statement with T and L for the type of rows and a lane's neighbours. */
#define BY_ROWS(a, ...)                                                                                                            \
    LNT_BY_TYPE((a)->dtype, T, {                                                                                                   \
        if ((a)->K % 128 == 0) {                                                                                                   \
            constexpr int L = 4;                                                                                                   \
            __VA_ARGS__;                                                                                                           \
        } else if ((a)->K % 64 == 0) {                                                                                             \
            constexpr int L = 2;                                                                                                   \
            __VA_ARGS__;                                                                                                           \
        } else {                                                                                                                   \
            constexpr int L = 1;                                                                                                   \
            __VA_ARGS__;                                                                                                           \
        }                                                                                                                          \
    })

template <typename T, int L> static void put_denominators(const stable_call &y, bool ends)
{
    const lnt_recur_args *a = y.a;
    stable_sums<T, L><<<y.pieces, 32, 0, y.d->stream>>>(y.x, y.rows, y.w);
    lnt_decay_scan(y.x, y.w.n, y.w.fade, (const float *)a->z0, NULL, a->K, 1, 1, false, y.d);
    stable_denominators<T, L><<<y.pieces, 32, 0, y.d->stream>>>(y.x, y.rows, y.w, (float)a->eps, ends ? (float *)a->zT : NULL);
}

void lnt_stable_prepare(const lnt_recur_args *a, const decay_stable &w, const lnt_cuda *d, bool ends)
{
    const stable_call y = call_of(a, w, d);
    if (!y.heads) return;
    stable_gates<<<y.heads, SCAN_THREADS, 0, d->stream>>>(y.x, (const float *)a->g, (const float *)a->i, (const float *)a->m0,
                                                          ends ? (float *)a->mT : NULL, w);
    BY_ROWS(a, put_denominators<T, L>(y, ends));
}

template <typename T, typename TO, int L> static void put_rows(const stable_call &y, const float *dq, const float *dk, TO *to_q, TO *to_k)
{
    const lnt_recur_args *a = y.a;
    const size_t shared = (size_t)C * a->K * sizeof(float);
    stable_queries<T, TO, L><<<y.pieces, 32, 0, y.d->stream>>>(y.x, y.rows, y.w, (float)a->eps, dq, to_q);
    lnt_decay_scan(y.x, y.w.dn, y.w.fade, (const float *)a->dzT, NULL, a->K, 1, 1, true, y.d);
    if (shared > 48 << 10)
        lnt_cuda_note((lnt_cuda *)y.d, cudaFuncSetAttribute(stable_keys<T, TO, L>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    stable_keys<T, TO, L><<<y.pieces, 32, shared, y.d->stream>>>(y.x, y.rows, y.w, dk, to_k, y.w.dn0);
}

void lnt_stable_finish(const lnt_recur_args *a, decay_stable w, const lnt_cuda *d, float *dq, float *dk)
{
    if (a->ds0) w.ds = (float *)a->ds0;
    if (a->dz0) w.dn0 = (float *)a->dz0;
    const stable_call y = call_of(a, w, d);
    if (!y.heads) return;
    if (a->Hq < a->Hv)
        BY_ROWS(a, put_rows<T, float, L>(y, dq, dk, dq, dk)); /* parts of the value heads, to be added */
    else
        BY_ROWS(a, put_rows<T, T, L>(y, dq, dk, (T *)a->dq, (T *)a->dk));
    const stable_ends ends = { (const float *)a->g, (const float *)a->i, (const float *)a->s0, (const float *)a->z0, (const float *)a->dsT,
                               (const float *)a->dzT, (const float *)a->dmT, (float *)a->dg, (float *)a->di, (float *)a->dm0, a->K, a->V };
    if (a->dg || a->di || a->dm0) stable_ends_gradient<<<y.heads, SCAN_THREADS, 0, d->stream>>>(y.x, ends, w);
}

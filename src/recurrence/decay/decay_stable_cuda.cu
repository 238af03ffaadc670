/* mLSTM around the passes of the decay core (operators.md#mlstm): what makes gates and factors of tokens in front of them, and what their results
 * lack behind them. The passes see V columns of the kept states, a reader's factor 1 / D_t and a writer's w_t; the column of ones is n, which is
 * walked here token by token, a warp a chunk of a head, from chunk starts that a scan leaves. Sums of keys that outputs are divided by (`normalize`)
 * are n with nothing kept smaller: m is NULL, D_t = s n_t.q_t + eps, and nothing follows the gates' gradient of n.
 *
 *   forward   m, g, w      n in front of every chunk      s n_t.q_t and D_t      the passes
 *   backward  the same     the passes: dq, dk of the V columns, in which q_t.dq_t = do_t.o_t, and dv
 *             queries: dq_t += c_t n_t, c_t the gradient of n_t.q_t      dn behind every chunk      keys: dk_t += w_t dn_t, k_t.dk_t, <e^g n, dn>
 *             gates: what m gets, and who passes it on */
#include "recurrence/decay/decay_stable.cuh"

static constexpr int C = LNT_STABLE_C, SCAN_THREADS = 320, HEAD_THREADS = 1024;
static constexpr int RUNS = 32, HEADS = 8; /* of a piece; of a CTA, whose floats fill a sector */

/* ---- m ------------------------------------------------------------------------------------------------------------------------------- */

/* m -> max(f + m, i); one behind the other is such a map again. Where nothing was written and nothing is, m is 0. */
__device__ __forceinline__ double larger(double through, double i) { return through > i ? through : i; }
__device__ __forceinline__ stable_map then(stable_map first, stable_map second)
{
    return { first.f + second.f, larger(second.f + first.i, second.i) };
}
__device__ __forceinline__ double through(stable_map map, double m) { return larger(map.f + m, map.i); }
__device__ __forceinline__ bool writes_nothing(float f, float i) { return f == -INFINITY && i == -INFINITY; }
__device__ __forceinline__ stable_map map_of(float f, float i) { return { f, writes_nothing(f, i) ? 0.0 : (double)i }; }

/* Whether m_t is i_t there; the float of m says it, as i is one. */
__device__ __forceinline__ bool taken_at(float f, float i, float m) { return m == i || writes_nothing(f, i); }

/* A piece of a sequence, for HEADS neighbouring heads, whose numbers lie side by side: a thread has a run of its tokens for one of them. */
struct stable_run {
    decay_place at;
    int64_t begin, end; /* tokens */
    int h, head, run, p;
    bool real;          /* there is such a head */
    __device__ __forceinline__ bool find(const decay_cut &x)
    {
        const int groups = (x.Hv + HEADS - 1) / HEADS;
        const int64_t piece = blockIdx.x / groups;
        head = (int)threadIdx.x % HEADS, run = (int)threadIdx.x / HEADS, h = (int)(blockIdx.x % groups) * HEADS + head, p = (int)(piece % x.P);
        real = h < x.Hv;
        if (!decay_find(x, piece / x.P, p, &at)) return false;
        const int64_t each = x.segment / RUNS;
        begin = min(at.last, at.first + run * each), end = real ? min(at.last, begin + each) : begin;
        return true;
    }
};
static constexpr int BATCH = 8; /* tokens of a run that are under way at once */

/* The map of a run. */
__device__ static stable_map map_of_run(const decay_cut &x, const stable_run &r, const float *f, const float *i)
{
    stable_map mine = { 0.0, -INFINITY };
    for (int64_t t = r.begin; t < r.end; t += BATCH) {
        float fs[BATCH], is[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (t + b < r.end) fs[b] = f[(t + b) * x.Hv + r.h], is[b] = i[(t + b) * x.Hv + r.h];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (t + b < r.end) mine = then(mine, map_of(fs[b], is[b]));
    }
    return mine;
}

/* The map of each piece. */
__global__ __launch_bounds__(RUNS *HEADS) void stable_maps(const __grid_constant__ decay_cut x, const float *f, const float *i,
                                                           const __grid_constant__ decay_stable w)
{
    await_last();
    let_next();
    __shared__ stable_map runs[RUNS][HEADS];
    stable_run r;
    if (!r.find(x)) return;
    runs[r.run][r.head] = map_of_run(x, r, f, i);
    __syncthreads();
    if (r.run || !r.real) return;
    stable_map all = runs[0][r.head];
    for (int k = 1; k < RUNS; k++) all = then(all, runs[k][r.head]);
    w.maps[r.at.slot * x.Hv + r.h] = all;
}

/* m, and from its floats g and the write strengths. What m is between pieces and between runs everybody makes alike, from the left, so that who
 * leaves a token and who comes to the next one have the same float. */
__global__ __launch_bounds__(RUNS *HEADS) void stable_gates(const __grid_constant__ decay_cut x, const float *f, const float *i, const float *m0,
                                                            float *mT, const __grid_constant__ decay_stable w)
{
    await_last();
    let_next();
    __shared__ stable_map runs[RUNS][HEADS];
    __shared__ double start[HEADS], behind[HEADS];
    stable_run r;
    if (!r.find(x)) return;
    const int64_t state = r.at.n * x.Hv + r.h;
    runs[r.run][r.head] = map_of_run(x, r, f, i);
    if (r.run == 0 && r.real) {
        double m = m0 ? m0[state] : 0.0f;
        const stable_map *maps = w.maps + (r.at.slot - r.p) * x.Hv + r.h;
#pragma unroll 8
        for (int p = 0; p < r.p; p++) m = through(maps[(int64_t)p * x.Hv], m);
        start[r.head] = m;
        behind[r.head] = m = through(maps[(int64_t)r.p * x.Hv], m);
        if (mT && r.at.ends) mT[state] = (float)m;
    }
    __syncthreads();
    if (r.begin == r.end) return;
    double m = start[r.head];
    for (int k = 0; k < r.run; k++) m = through(runs[k][r.head], m);
    const double last = r.end == r.at.last ? behind[r.head] : through(runs[r.run][r.head], m);
    for (int64_t t = r.begin; t < r.end; t += BATCH) {
        float fs[BATCH], is[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (t + b < r.end) fs[b] = f[(t + b) * x.Hv + r.h], is[b] = i[(t + b) * x.Hv + r.h];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (t + b >= r.end) continue;
            const int64_t row = (t + b) * x.Hv + r.h;
            const double was = (float)m;
            m = t + b + 1 == r.end ? last : through(map_of(fs[b], is[b]), m);
            const float now = (float)m;
            w.m[row] = now;
            w.g[row] = (float)(fs[b] + was - now);
            w.writes[row] = (float)(is[b] - (double)now);
        }
    }
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

/* Of 32 tokens from t on, one a lane; those from `last` on fade and write nothing. */
__device__ __forceinline__ stable_factors factors_of(const decay_cut &x, int64_t t, int64_t last, int h)
{
    const int64_t mine = t + threadIdx.x;
    return mine < last ? stable_token(x, mine, h) : stable_factors{ 0.0f, 0.0f };
}
__device__ __forceinline__ stable_factors of_lane(stable_factors f, int lane)
{
    return { __shfl_sync(~0u, f.less, lane), __shfl_sync(~0u, f.write, lane) };
}
/* Rows of B tokens from t on, all under way before the first is used; zeros from `last` on. */
template <typename T, int L, int G, int B>
__device__ __forceinline__ void fetch_rows(stable_row<L, G> (&y)[B], const T *p, int64_t pitch, int64_t t, int64_t last, int K)
{
#pragma unroll
    for (int b = 0; b < B; b++) y[b].get(p + (t + b) * pitch, t + b < last ? K : 0);
}

/* What a chunk adds to n, and its decay. */
template <typename T, int L, int G>
__global__ __launch_bounds__(32) void stable_sums(const __grid_constant__ decay_cut x, const __grid_constant__ stable_rows a,
                                                  const __grid_constant__ decay_stable w)
{
    await_last();
    let_next();
    constexpr int B = 8;
    decay_place at;
    int h;
    int64_t slot;
    if (!stable_place(x, &at, &h, &slot)) return;
    const T *keys = a.head<T>(a.k, x, h);
    stable_row<L, G> n = {}, k[B];
    float sum = 0;
    for (int64_t t = at.first; t < at.last; t += 32) {
        const stable_factors f = factors_of(x, t, at.last, h);
        if (t + threadIdx.x < at.last) sum += decay_gate(x, t + threadIdx.x, h);
        for (int j = 0; j < 32; j += B) {
            fetch_rows<T, L, G, B>(k, keys, a.pitch(), t + j, at.last, a.K);
#pragma unroll
            for (int b = 0; b < B; b++) n.step(of_lane(f, j + b), k[b]);
        }
    }
    n.put(w.n + slot * a.K, a.K);
    sum = warp_sum(sum);
    if (threadIdx.x == 0) w.fade[slot] = exp2f(sum * (float)LNT_LOG2E);
}

/* s n_t.q_t and D_t. */
template <typename T, int L, int G>
__global__ __launch_bounds__(32) void stable_denominators(const __grid_constant__ decay_cut x, const __grid_constant__ stable_rows a,
                                                          const __grid_constant__ decay_stable w, float eps)
{
    await_last();
    let_next();
    constexpr int B = G > 1 ? 4 : 8;
    decay_place at;
    int h;
    int64_t slot;
    if (!stable_place(x, &at, &h, &slot)) return;
    const T *keys = a.head<T>(a.k, x, h), *queries = a.head<T>(a.q, x, h);
    stable_row<L, G> n, k[B], q[B];
    n.get(w.n + slot * a.K, a.K);
    for (int64_t t = at.first; t < at.last; t += 32) {
        const stable_factors f = factors_of(x, t, at.last, h);
        const int64_t mine = t + threadIdx.x;
        float dot = 0;
        for (int j = 0; j < 32; j += B) {
            fetch_rows<T, L, G, B>(k, keys, a.pitch(), t + j, at.last, a.K);
            fetch_rows<T, L, G, B>(q, queries, a.pitch(), t + j, at.last, a.K);
#pragma unroll
            for (int b = 0; b < B; b++) {
                n.step(of_lane(f, j + b), k[b]);
                const float y = warp_sum(n.dot(q[b]));
                dot = (int)threadIdx.x == j + b ? y : dot;
            }
        }
        if (mine >= at.last) continue;
        const int64_t row = mine * x.Hv + h;
        w.den[row] = x.scale * dot;
        w.reads[row] = 1.0f / (w.m ? stable_denominator(x.scale * dot, w.m[row], eps) : x.scale * dot + eps);
    }
}

/* n in front of every chunk from what each adds, or its gradient behind every chunk in reverse: a thread a number of a head. B chunks are under way
 * while the B before are added up. */
__global__ __launch_bounds__(SCAN_THREADS) void stable_scan(const __grid_constant__ decay_cut x, float *n, const float *fade, const float *start,
                                                            float *end, int K, bool reverse)
{
    await_last();
    let_next();
    constexpr int B = 32;
    const int64_t head = blockIdx.x, sequence = head / x.Hv, len = x.cu[sequence + 1] - x.cu[sequence];
    const int k = (int)threadIdx.x, P = len ? (int)((len + x.segment - 1) / x.segment) : 1;
    if (k >= K) return;
    const int64_t at = (x.cu[sequence] / x.segment + sequence + (reverse ? P - 1 : 0)) * x.Hv + head % x.Hv, step = reverse ? -x.Hv : x.Hv;
    float *row = n + at * K + k, y = start ? start[head * K + k] : 0.0f, more[B], by[B];
    fade += at;
    const auto fetch = [&](float (&to)[B], float (&factor)[B], int p) {
#pragma unroll
        for (int b = 0; b < B; b++)
            if (p + b < P) to[b] = row[(p + b) * step * K], factor[b] = fade[(p + b) * step];
    };
    fetch(more, by, 0);
    for (int p = 0; p < P; p += B) {
        float more_next[B], by_next[B];
        fetch(more_next, by_next, p + B);
#pragma unroll
        for (int b = 0; b < B; b++)
            if (p + b < P) {
                row[(p + b) * step * K] = y;
                y = by[b] * y + more[b];
            }
#pragma unroll
        for (int b = 0; b < B; b++) more[b] = more_next[b], by[b] = by_next[b];
    }
    if (end) end[head * K + k] = y;
}

/* CTAs of a multiprocessor for rows of up to 128 in the two kernels below: left alone, the compiler takes 156 registers to fetch far ahead, so
 * that 12 CTAs fit, and 4096 chunks go over 132 multiprocessors in 2.6 rounds; in 1.94 by 16. */
static constexpr int ROWS_CTAS = 16;

/* The gradient of n_t.q_t from that of D_t, which is -do_t.o_t / D_t, and what of it reaches dq. dq [T,Hv,K] has do_t.o_t = q_t.dq_t, unless w.inter
 * and w.rows have it less rounded; it goes to `out`, which may be the same. dn: what a chunk adds to the gradient of n in front of it. `gates_ahead`:
 * the kernel ahead, that of the gates' gradient, makes nothing that is read here, nor reads what is made: it is awaited last. */
template <typename T, typename TD, typename TO, int L, int G>
__global__ __launch_bounds__(32, L *G > 4 ? 1 : ROWS_CTAS) void stable_queries(const __grid_constant__ decay_cut x,
                                                                              const __grid_constant__ stable_rows a,
                                                                              const __grid_constant__ decay_stable w, float eps, const TD *dq,
                                                                              TO *out, bool gates_ahead)
{
    constexpr int B = 4;
    decay_place at;
    int h;
    int64_t slot;
    if (!gates_ahead) await_last();
    let_next();
    if (!stable_place(x, &at, &h, &slot)) return await_last();
    const T *keys = a.head<T>(a.k, x, h), *queries = a.head<T>(a.q, x, h);
    const int64_t pitch = (int64_t)x.Hv * a.K;
    const int lane = (int)threadIdx.x;
    stable_row<L, G> n, dn = {}, k[B], q[B], d[B];
    n.get(w.n + slot * a.K, a.K);
    float sum = 0; /* of the gates of a chunk up to its lane's token */
    for (int64_t t = at.first; t < at.last; t += 32) {
        const stable_factors f = factors_of(x, t, at.last, h);
        const int64_t mine = t + lane, row = mine * x.Hv + h;
        float g = 0, by = 0, reads = 0, dots = 0;
        if (mine < at.last) {
            const float den = w.den[row];
            g = decay_gate(x, mine, h);
            reads = -w.reads[row];
            if (w.inter) dots = w.inter[h * x.T + mine] + w.rows[h * x.T + mine];
            by = !w.m ? x.scale * reads : fabsf(den) <= stable_floor(w.m[row]) ? 0.0f : copysignf(x.scale, den) * reads;
        }
        for (int o = 1; o < 32; o <<= 1) {
            const float left = __shfl_up_sync(~0u, g, o);
            if (lane >= o) g += left;
        }
        const float upto = exp2f((sum + g) * (float)LNT_LOG2E);
        sum += __shfl_sync(~0u, g, 31);
        for (int j = 0; j < 32; j += B) {
            fetch_rows<T, L, G, B>(k, keys, a.pitch(), t + j, at.last, a.K);
            fetch_rows<T, L, G, B>(q, queries, a.pitch(), t + j, at.last, a.K);
            fetch_rows<TD, L, G, B>(d, dq + h * a.K, pitch, t + j, at.last, a.K);
#pragma unroll
            for (int b = 0; b < B; b++) {
                n.step(of_lane(f, j + b), k[b]);
                const float given = __shfl_sync(~0u, dots, j + b), own = warp_sum(d[b].dot(q[b])); /* both: a branch would part the tokens */
                const float dot = w.inter ? given : own, along = dot * __shfl_sync(~0u, by, j + b);
                d[b].add(along, n);
                dn.add(along * __shfl_sync(~0u, upto, j + b), q[b]);
                dots = lane == j + b ? dot : dots;
                if (out && t + j + b < at.last) d[b].put(out + (t + j + b) * pitch + h * a.K, a.K);
            }
        }
        if (mine >= at.last) continue;
        w.along[row] = by * dots;
        if (w.m) w.pull[row] = eps * reads * dots;
    }
    await_last();
    dn.put(w.dn + slot * a.K, a.K);
    if (at.ends) n.put(w.nT + (at.n * x.Hv + h) * a.K, a.K);
}

/* Back through a chunk: dk_t += w_t dn_t, k_t.dk_t, and n's part of the gates' gradient. The n in front of every B tokens wait in shared memory
 * [C / B][K]; from there the B tokens' are made again. */
static constexpr int KEYS_B = 4;
template <typename T, typename TD, typename TO, int L, int G>
__global__ __launch_bounds__(32, L *G > 4 ? 1 : ROWS_CTAS) void stable_keys(const __grid_constant__ decay_cut x,
                                                                           const __grid_constant__ stable_rows a,
                                                                           const __grid_constant__ decay_stable w, const TD *dk, TO *out, float *dn0)
{
    await_last();
    let_next();
    extern __shared__ __align__(16) float kept[];
    constexpr int B = KEYS_B;
    decay_place at;
    int h;
    int64_t slot;
    if (!stable_place(x, &at, &h, &slot)) return;
    const T *keys = a.head<T>(a.k, x, h), *queries = a.head<T>(a.q, x, h);
    const int64_t pitch = (int64_t)x.Hv * a.K;
    const int lane = (int)threadIdx.x;
    stable_row<L, G> n, dn, found[B], k[B], q[B], d[B];
    n.get(w.n + slot * a.K, a.K);
    dn.get(w.dn + slot * a.K, a.K);
    for (int64_t t = at.first; t < at.last; t += 32) {
        const stable_factors f = factors_of(x, t, at.last, h);
        for (int j = 0; j < 32; j += B) {
            fetch_rows<T, L, G, B>(k, keys, a.pitch(), t + j, at.last, a.K);
            n.put(kept + (t + j - at.first) / B * a.K, a.K); /* every lane reads what it wrote itself */
#pragma unroll
            for (int b = 0; b < B; b++) n.step(of_lane(f, j + b), k[b]);
        }
    }
    for (int64_t t = at.first + (at.last - at.first - 1) / 32 * 32; at.last > at.first && t >= at.first; t -= 32) {
        const stable_factors f = factors_of(x, t, at.last, h);
        const int64_t mine = t + lane, row = mine * x.Hv + h;
        const float along = mine < at.last ? w.along[row] : 0.0f;
        float di = 0, dg = 0;
        for (int j = 32 - B; j >= 0; j -= B) {
            fetch_rows<T, L, G, B>(k, keys, a.pitch(), t + j, at.last, a.K);
            fetch_rows<T, L, G, B>(q, queries, a.pitch(), t + j, at.last, a.K);
            fetch_rows<TD, L, G, B>(d, dk + h * a.K, pitch, t + j, at.last, a.K);
            n.get(kept + (t + j - at.first) / B * a.K, a.K);
#pragma unroll
            for (int b = 0; b < B; b++) {
                found[b] = n;
                n.step(of_lane(f, j + b), k[b]);
            }
#pragma unroll
            for (int b = B - 1; b >= 0; b--) {
                const stable_factors here = of_lane(f, j + b);
                dn.add(__shfl_sync(~0u, along, j + b), q[b]);
                d[b].add(here.write, dn);
                dn.fade(here.less);
                const float to_i = warp_sum(d[b].dot(k[b])), to_g = warp_sum(found[b].dot(dn));
                di = lane == j + b ? to_i : di;
                dg = lane == j + b ? to_g : dg;
                if (out && t + j + b < at.last) d[b].put(out + (t + j + b) * pitch + h * a.K, a.K);
            }
        }
        if (mine >= at.last) continue;
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

__device__ static double stable_total(double sum, double *shared)
{
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int k = 0; k < HEAD_THREADS / 32; k++) sum += shared[k];
    return sum;
}
__device__ static double stable_sum(const float *x, const float *y, int64_t n, double *shared)
{
    double sum = 0;
    if (x && y)
        for (int64_t k = threadIdx.x; k < n; k += HEAD_THREADS) sum += (double)x[k] * y[k];
    return stable_total(sum, shared);
}

/* <S_0, dS_0> of tensor cores: e^{b_T} <S_0, dsT> and, of every token, s e^{b_t} / D_t q_t.(S_0 do_t). The sum may come to a hundredth of what its
 * terms come to, and dS_0 has each of them to 1/500, rounded to bf16 as it was: so here it is added up from the rows themselves. A CTA a chunk, a
 * thread a row of S_0; chunks that it reaches with less than STARTS_LEAST add nothing. */
static constexpr float STARTS_LEAST = 0x1p-16f;
template <int V>
__global__ __launch_bounds__(128) void stable_starts(const __grid_constant__ decay_cut x, const __grid_constant__ stable_rows a, const bf16 *d_o,
                                                     const float *s0, const float *dsT, const __grid_constant__ decay_stable w)
{
    await_last();
    let_next();
    __shared__ __align__(16) float rows[C][V];
    __shared__ float by[C], partial[4], behind;
    decay_place at;
    int h;
    int64_t slot;
    if (!stable_place(x, &at, &h, &slot)) return;
    const int k = (int)threadIdx.x, lane = k % 32, len = (int)(at.last - at.first);
    const int64_t p = (at.first - x.cu[at.n]) / C;
    float before = 1; /* what S_0 has faded by in front of the chunk */
    for (int64_t c = lane; c < p; c += 32) before *= w.fade[slot - (p - c) * x.Hv];
    for (int o = 16; o; o >>= 1) before *= __shfl_xor_sync(~0u, before, o);
    if (k == 0) w.starts[slot] = 0;
    if (before < STARTS_LEAST) return;
    if (k < 32) {
        float sum = 0;
        for (int i = lane; i < C; i += 32) {
            float g = i < len ? decay_gate(x, at.first + i, h) : 0.0f;
            for (int o = 1; o < 32; o <<= 1) {
                const float left = __shfl_up_sync(~0u, g, o);
                if (lane >= o) g += left;
            }
            by[i] = i < len ? x.scale * w.reads[(at.first + i) * x.Hv + h] * before * exp2f((sum + g) * (float)LNT_LOG2E) : 0.0f;
            sum += __shfl_sync(~0u, g, 31);
        }
        if (k == 0) behind = before * exp2f(sum * (float)LNT_LOG2E);
    }
    for (int i = k * 4; i < len * V; i += (int)blockDim.x * 4)
        load_pack<4>(*(float (*)[4])&rows[i / V][i % V], d_o + ((at.first + i / V) * x.Hv + h) * V + i % V);
    const int64_t row = ((at.n * x.Hv + h) * a.K + k) * V;
    float S[V], sum = 0;
#pragma unroll
    for (int e = 0; e < V; e++) S[e] = s0[row + e];
    if (at.ends && dsT)
#pragma unroll
        for (int e = 0; e < V; e++) sum += S[e] * dsT[row + e];
    __syncthreads();
    sum *= behind;
    const bf16 *q = a.head<bf16>(a.q, x, h) + at.first * a.pitch() + k;
    for (int i = 0; i < len; i++, q += a.pitch()) {
        float y[4] = {};
#pragma unroll
        for (int e = 0; e < V; e += 4) {
            const float4 d = *(const float4 *)&rows[i][e];
            y[0] += S[e] * d.x, y[1] += S[e + 1] * d.y, y[2] += S[e + 2] * d.z, y[3] += S[e + 3] * d.w;
        }
        sum += by[i] * to_float(*q) * ((y[0] + y[1]) + (y[2] + y[3]));
    }
    sum = warp_sum(sum);
    if (lane == 0) partial[k / 32] = sum;
    __syncthreads();
    if (k) return;
    for (int i = 1; i < (int)blockDim.x / 32; i++) sum += partial[i];
    w.starts[slot] = sum;
}

/* What comes to a head's c from the ends of the states, and what its dm0 gets from their starts. A CTA a head. */
__global__ __launch_bounds__(HEAD_THREADS) void stable_state_dots(const __grid_constant__ decay_cut x, const __grid_constant__ stable_ends a,
                                                                  const __grid_constant__ decay_stable w)
{
    await_last();
    let_next();
    __shared__ double shared[HEAD_THREADS / 32];
    const int64_t head = blockIdx.x, state = (int64_t)a.K * a.V;
    double last = a.dmT ? (double)a.dmT[head] : 0.0, start = 0;
    if (a.dsT) last -= stable_sum(w.sT + head * state, a.dsT + head * state, state, shared);
    if (a.dnT) last -= stable_sum(w.nT + head * a.K, a.dnT + head * a.K, a.K, shared);
    if (a.dm0 && a.s0 && !w.starts) start += stable_sum(a.s0 + head * state, w.ds + head * state, state, shared);
    if (w.starts) {
        decay_place at;
        double mine = 0;
        for (int p = (int)threadIdx.x; p < x.P && decay_find(x, head / x.Hv, p, &at); p += HEAD_THREADS)
            mine += w.starts[at.slot * x.Hv + head % x.Hv];
        start += stable_total(mine, shared);
    }
    if (a.dm0 && a.n0) start += stable_sum(a.n0 + head * a.K, w.dn0 + head * a.K, a.K, shared);
    if (threadIdx.x == 0) w.dots[2 * head] = last, w.dots[2 * head + 1] = start;
}

/* c, the gradient of m when the states times e^m are not to move, goes backwards: a token adds its pull, and where m is i it ends in di, else it is
 * df's too. Tokens map c to f c + i: f is 1, or 0 where it ends. The map of a run. */
__device__ static stable_map pull_of_run(const decay_cut &x, const stable_run &r, const stable_ends &a, const decay_stable &w)
{
    stable_map mine = { 1.0, 0.0 };
    for (int64_t t = r.end - 1; t >= r.begin; t -= BATCH) {
        float pull[BATCH];
        bool taken[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (t - b >= r.begin) {
                const int64_t row = (t - b) * x.Hv + r.h;
                taken[b] = taken_at(a.f[row], a.i[row], w.m[row]), pull[b] = w.pull[row];
            }
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (t - b >= r.begin) mine = { taken[b] ? 0.0 : mine.f, taken[b] ? 0.0 : mine.i + pull[b] };
    }
    return mine;
}
__device__ __forceinline__ double pulled(stable_map map, double c) { return map.f * c + map.i; }

__global__ __launch_bounds__(RUNS *HEADS) void stable_pulls(const __grid_constant__ decay_cut x, const __grid_constant__ stable_ends a,
                                                            const __grid_constant__ decay_stable w)
{
    await_last();
    let_next();
    __shared__ stable_map runs[RUNS][HEADS];
    stable_run r;
    if (!r.find(x)) return;
    runs[r.run][r.head] = pull_of_run(x, r, a, w);
    __syncthreads();
    if (r.run || !r.real) return;
    stable_map all = { 1.0, 0.0 };
    for (int k = RUNS - 1; k >= 0; k--) all = { all.f * runs[k][r.head].f, pulled(runs[k][r.head], all.i) };
    w.maps[r.at.slot * x.Hv + r.h] = all;
}

__global__ __launch_bounds__(RUNS *HEADS) void stable_ends_gradient(const __grid_constant__ decay_cut x, const __grid_constant__ stable_ends a,
                                                                    const __grid_constant__ decay_stable w)
{
    await_last();
    let_next();
    __shared__ stable_map runs[RUNS][HEADS];
    __shared__ double behind[HEADS];
    stable_run r;
    if (!r.find(x)) return;
    const int64_t head = r.at.n * x.Hv + r.h;
    runs[r.run][r.head] = pull_of_run(x, r, a, w);
    if (r.run == 0 && r.real) {
        const int64_t len = x.cu[r.at.n + 1] - x.cu[r.at.n];
        const int P = len ? (int)((len + x.segment - 1) / x.segment) : 1;
        const stable_map *maps = w.maps + (r.at.slot - r.p) * x.Hv + r.h;
        double c = w.dots[2 * head];
#pragma unroll 8
        for (int p = P - 1; p > r.p; p--) c = pulled(maps[(int64_t)p * x.Hv], c);
        behind[r.head] = c;
        if (a.dm0 && r.p == 0) a.dm0[head] = (float)(pulled(maps[0], c) + w.dots[2 * head + 1]);
    }
    __syncthreads();
    double c = behind[r.head];
    for (int k = RUNS - 1; k > r.run; k--) c = pulled(runs[k][r.head], c);
    for (int64_t t = r.end - 1; t >= r.begin; t -= BATCH) {
        float pull[BATCH], di[BATCH];
        double df[BATCH];
        bool taken[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (t - b >= r.begin) {
                const int64_t row = (t - b) * x.Hv + r.h;
                taken[b] = taken_at(a.f[row], a.i[row], w.m[row]), pull[b] = w.pull[row];
                if (a.di) di[b] = w.di[row];
                if (a.df) df[b] = (double)w.dgates[row] + w.dg_n[row];
            }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (t - b < r.begin) continue;
            const int64_t row = (t - b) * x.Hv + r.h;
            c += pull[b];
            if (a.di) a.di[row] = (float)(di[b] + (taken[b] ? c : 0.0));
            if (a.df) a.df[row] = (float)(df[b] + (taken[b] ? 0.0 : c));
            c = taken[b] ? 0 : c;
        }
    }
}

/* ---- calls -------------------------------------------------------------------------------------------------------------------------------- */

struct stable_call {
    const lnt_recur_args *a;
    const lnt_cuda *d;
    decay_cut x, pieces_x; /* chunks; pieces of many runs of tokens */
    stable_rows rows;
    decay_stable w;
    unsigned heads, pieces, groups; /* CTAs: a head, a chunk of one, a piece of HEADS */
    bool gates_ahead;
};

/* Launches overlap: each kernel here says await_last and let_next. */
template <typename... P, typename... A>
static void put(const stable_call &y, void (*kernel)(P...), unsigned blocks, int threads, size_t shared, const A &...args)
{
    lnt_launch_with(y.d, kernel, dim3(blocks), threads, shared, 1, args...);
}

static stable_call call_of(const lnt_recur_args *a, const decay_stable &w, const lnt_cuda *d)
{
    const float *g = w.m ? w.g : (const float *)a->g, *g_head = (const float *)a->g_head;
    const decay_cut x = { a->cu_seqlens_device, a->sequences, a->tokens, C, decay_segments(a, C), a->Hv, g, g_head, (float)a->scale, w.reads,
                          w.writes };
    decay_cut runs = x;
    runs.segment = lnt_stable_piece(a->longest), runs.P = decay_segments(a, runs.segment);
    return { a, d, x, runs, { a->q, a->k, a->Hq, a->K }, w, (unsigned)(x.N * x.Hv), (unsigned)decay_pieces(x),
             (unsigned)(x.N * runs.P * ((x.Hv + HEADS - 1) / HEADS)), false };
}

/* The statement with T for the type of rows, L for a lane's neighbours, G for groups of 32 L. */
#define BY_WIDTH(L_, G_, ...)                                                                                                      \
    {                                                                                                                              \
        constexpr int L = L_, G = G_;                                                                                              \
        __VA_ARGS__;                                                                                                               \
    }
#define BY_ROWS(a, ...)                                                                                                            \
    LNT_BY_TYPE((a)->dtype, T, {                                                                                                   \
        if ((a)->K % 8 == 0 && (a)->K > 64 && (a)->K <= 128)                                                                       \
            BY_WIDTH(4, 1, __VA_ARGS__)                                                                                            \
        else if ((a)->K == 256)                                                                                                    \
            BY_WIDTH(4, 2, __VA_ARGS__)                                                                                            \
        else if ((a)->K == 192)                                                                                                    \
            BY_WIDTH(2, 3, __VA_ARGS__)                                                                                            \
        else if ((a)->K == 320)                                                                                                    \
            BY_WIDTH(2, 5, __VA_ARGS__)                                                                                            \
        else if ((a)->K == 64)                                                                                                     \
            BY_WIDTH(2, 1, __VA_ARGS__)                                                                                            \
        else                                                                                                                       \
            BY_WIDTH(1, 8, __VA_ARGS__)                                                                                            \
    })

static int scan_threads(const lnt_recur_args *a) { return a->K > 256 ? SCAN_THREADS : 256; }
template <typename T, int L, int G> static void put_denominators(const stable_call &y, bool ends, bool denominators)
{
    const lnt_recur_args *a = y.a;
    put(y, stable_sums<T, L, G>, y.pieces, 32, 0, y.x, y.rows, y.w);
    put(y, stable_scan, y.heads, scan_threads(a), 0, y.x, y.w.n, y.w.fade, (const float *)a->z0, ends ? (float *)a->zT : NULL, a->K, false);
    if (denominators) put(y, stable_denominators<T, L, G>, y.pieces, 32, 0, y.x, y.rows, y.w, (float)a->eps);
}

void lnt_stable_prepare(const lnt_recur_args *a, const decay_stable &w, const lnt_cuda *d, bool ends, bool denominators)
{
    const stable_call y = call_of(a, w, d);
    if (!y.heads) return;
    if (w.m) put(y, stable_maps, y.groups, RUNS * HEADS, 0, y.pieces_x, (const float *)a->g, (const float *)a->i, w);
    if (w.m)
        put(y, stable_gates, y.groups, RUNS * HEADS, 0, y.pieces_x, (const float *)a->g, (const float *)a->i, (const float *)a->m0,
            ends ? (float *)a->mT : NULL, w);
    BY_ROWS(a, put_denominators<T, L, G>(y, ends, denominators));
}

template <typename T, typename TD, typename TO, int L, int G>
static void put_rows(const stable_call &y, const TD *dq, const TD *dk, TO *to_q, TO *to_k)
{
    const lnt_recur_args *a = y.a;
    const size_t shared = (size_t)(C / KEYS_B) * a->K * sizeof(float);
    put(y, stable_queries<T, TD, TO, L, G>, y.pieces, 32, 0, y.x, y.rows, y.w, (float)a->eps, dq, to_q, y.gates_ahead);
    float *const no_end = NULL;
    put(y, stable_scan, y.heads, scan_threads(a), 0, y.x, y.w.dn, y.w.fade, (const float *)a->dzT, no_end, a->K, true);
    put(y, stable_keys<T, TD, TO, L, G>, y.pieces, 32, shared, y.x, y.rows, y.w, dk, to_k, y.w.dn0);
}

void lnt_stable_finish(const lnt_recur_args *a, decay_stable w, const lnt_cuda *d, void *dq, void *dk, bool in_type, bool gates_ahead)
{
    if (a->ds0) w.ds = (float *)a->ds0;
    if (a->dz0) w.dn0 = (float *)a->dz0;
    stable_call y = call_of(a, w, d);
    y.gates_ahead = gates_ahead;
    if (!y.heads) return;
    if (a->Hq < a->Hv)
        BY_ROWS(a, put_rows<T, float, float, L, G>(y, (float *)dq, (float *)dk, (float *)dq, (float *)dk)); /* parts of heads, to be added */
    else if (in_type)
        BY_ROWS(a, put_rows<T, T, T, L, G>(y, (T *)dq, (T *)dk, (T *)a->dq, (T *)a->dk));
    else
        BY_ROWS(a, put_rows<T, float, T, L, G>(y, (float *)dq, (float *)dk, (T *)a->dq, (T *)a->dk));
    const stable_ends ends = { (const float *)a->g, (const float *)a->i, (const float *)a->s0, (const float *)a->z0, (const float *)a->dsT,
                               (const float *)a->dzT, (const float *)a->dmT, (float *)a->dg, (float *)a->di, (float *)a->dm0, a->K, a->V };
    if (!w.m || (!a->dg && !a->di && !a->dm0)) return;
    if (w.starts) {
        const auto kernel = a->V == 64 ? stable_starts<64> : stable_starts<128>;
        put(y, kernel, y.pieces, a->K, 0, y.x, y.rows, (const bf16 *)a->do_, (const float *)a->s0, (const float *)a->dsT, w);
    }
    put(y, stable_state_dots, y.heads, HEAD_THREADS, 0, y.x, ends, w);
    put(y, stable_pulls, y.groups, RUNS * HEADS, 0, y.pieces_x, ends, w);
    put(y, stable_ends_gradient, y.groups, RUNS * HEADS, 0, y.pieces_x, ends, w);
}

/* The decay core on a GPU: the order of the kernels, and the small ones that both sets share. Equations, roles and the cut into segments are in
 * README.md.
 * Long: the order of all kernels of the core's scalar gates, beside which the three that both sets share are short. */
#include "recurrence/decay/decay_cuda.cuh"

/* One behind the other, so that launches overlap: each kernel here says await_last and let_next, the latter not before the former. */
template <typename... P, typename... A> static void put(const lnt_cuda *d, void (*kernel)(P...), int64_t grid, int threads, const A &...args)
{
    if (grid > 0) lnt_launch(d, kernel, dim3((unsigned)grid), threads, args...);
}

/* ---- kernels of both sets ----------------------------------------------------------------------------------------------------------- */

/* Slots of a sequence, from end states out of zero to start states: in order of time (against it when `reverse`), start <- decay start + X; nothing
 * follows the last. A thread has L neighbours of [K][W] (4 where W = V); the segments' values are fetched SCAN at a time. */
static constexpr int SCAN = 8, SCAN_THREADS = 128;
struct scan_side {
    float *X;
    const float *s, *z;
    bool reverse;
};
template <int L>
__global__ __launch_bounds__(SCAN_THREADS) void decay_scan(const __grid_constant__ decay_cut x, const scan_side forwards, const scan_side backwards,
                                                           const float *decay, int K, int V, int W, int blocks)
{
    await_last();
    let_next();
    const scan_side &side = blockIdx.y ? backwards : forwards;
    float *const X = side.X;
    const float *const s = side.s, *const z = side.z;
    const bool reverse = side.reverse;
    const int64_t head = blockIdx.x / blocks, n = head / x.Hv, h = head % x.Hv, len = x.cu[n + 1] - x.cu[n];
    const int state = K * W, i = ((int)(blockIdx.x % blocks) * SCAN_THREADS + (int)threadIdx.x) * L;
    if (i >= state) return;
    const int P = len ? (int)((len + x.segment - 1) / x.segment) : 1, k = i / W, w = i % W;
    const int64_t slot = x.cu[n] / x.segment + n;
    float start[L] = {};
    if (w < V) {
        if (s) load_pack<L>(start, s + (head * K + k) * V + w);
    } else if (z)
        start[0] = z[head * K + k];
    for (int p0 = 0; p0 < P; p0 += SCAN) {
        float next[SCAN][L], fade[SCAN];
#pragma unroll
        for (int r = 0; r < SCAN; r++)
            if (p0 + r < P - 1) {
                const int64_t at = (slot + (reverse ? P - 1 - p0 - r : p0 + r)) * x.Hv + h;
                load_pack<L>(next[r], X + at * state + i);
                fade[r] = decay[at];
            }
#pragma unroll
        for (int r = 0; r < SCAN; r++)
            if (p0 + r < P) {
                store_pack<L>(X + ((slot + (reverse ? P - 1 - p0 - r : p0 + r)) * x.Hv + h) * state + i, start);
                if (p0 + r < P - 1)
#pragma unroll
                    for (int j = 0; j < L; j++) start[j] = fade[r] * start[j] + next[r][j];
            }
    }
}

/* dnum = do / den over o, in place; dden = -(do . o) / den. A warp a row of [T*Hv][V]. */
__global__ __launch_bounds__(256) void decay_divide(float *o, float *dden, const float *den, const void *d_o, int type_bf16, int64_t rows, int V)
{
    await_last();
    let_next();
    const int64_t row = blockIdx.x * 8ll + threadIdx.x / 32;
    if (row >= rows) return;
    const float by = 1.0f / den[row];
    float dot = 0;
    for (int e = (int)threadIdx.x % 32; e < V; e += 32) {
        const int64_t i = row * V + e;
        const float y = !d_o ? 0.0f : type_bf16 ? to_float(((const bf16 *)d_o)[i]) : ((const float *)d_o)[i];
        dot += y * o[i];
        o[i] = y * by;
    }
    dot = warp_sum(dot);
    if (threadIdx.x % 32 == 0) dden[row] = -dot * by;
}

/* The gates' gradient of a segment. Token i of a chunk with start state S and outer gradient dS' stands between the writers before it and the readers
 * from it on; rule 0.6 with what would cancel left out:
 *   dg_i = e^{b_n} <S,dS'> + sum_{l<i} writes_l + sum_{j>=i} reads_j + intra_i,    reads = q . dq through S, writes = k . dk through dS'
 * and <S,dS> = e^{b_n} <S,dS'> + sum reads, <S',dS'> = e^{b_n} <S,dS'> + sum writes lead from chunk to chunk, from the segment's own <S,dS> on.
 * Rounded operands make each dot a little wrong, and what is wrong stays, where the true <S,dS'> would fade: over 8192 tokens their sum was off by a
 * tenth, and with fast gates dg_head of a single head by as much as itself. So gates_settle weighs the dots against what a chunk lets through. */
struct decay_gates {
    const float *S, *dS;           /* slots [slots,Hv,K,W]; NULL: one segment a sequence */
    const float *s, *z, *ds, *dz;  /* start of the sequences and its gradient; NULL: zeros */
    const float *sT, *dsT;         /* the same of their ends */
    const float *reads, *writes;   /* [parts,Hv,T] */
    const float *intra;            /* [Hv,T]; NULL: zeros */
    const float *more;             /* [T,Hv / slices] of dg that is not of the passes, for the first slice; NULL: zeros */
    int parts, chunk, K, V, W;
    bool end_known;                /* these are there, or the last state has no gradient */
    float off;                     /* of a dot, by its operands' sizes: decay_kernels */
    float *dg;                     /* [T,Hv] or NULL */
    const float *less_from;        /* [T,Hv]: dg is that less this; NULL: not */
    float *sums;                   /* [slots,Hv] or NULL: sum over the segment */
};
static constexpr int GATES_THREADS = 256, GATES_CHUNKS = LNT_DECAY_CHUNKS;

__device__ static float gates_block_sum(float x, float *shared)
{
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < GATES_THREADS / 32; i++) x += shared[i];
    return x;
}
__device__ static float gates_dot(const float *x, const float *y, int64_t n)
{
    float sum = 0;
    if (!x || !y) return sum;
    if (n % 4 || ((uintptr_t)x | (uintptr_t)y) % 16) {
#pragma unroll 16
        for (int64_t i = threadIdx.x; i < n; i += GATES_THREADS) sum += x[i] * y[i];
        return sum;
    }
#pragma unroll 8
    for (int i = (int)threadIdx.x * 4; i < (int)n; i += GATES_THREADS * 4) {
        const float4 u = *(const float4 *)(x + i), v = *(const float4 *)(y + i);
        sum += u.x * v.x + u.y * v.y + u.z * v.z + u.w * v.w;
    }
    return sum;
}

/* Of the chunks of a segment: sums of the dots, e^{b_n}, and e^{b_n} <S,dS'> as it is found. */
struct gates_chunks {
    float reads[GATES_CHUNKS], writes[GATES_CHUNKS], fade[GATES_CHUNKS], base[GATES_CHUNKS];
    float before[GATES_CHUNKS], behind[GATES_CHUNKS], less[GATES_CHUNKS];
};

/* base = e^{b_n} <S,dS'> of every chunk from the dots, and from <S,dS> where the segment starts and, if that is known, where it ends: the least sum
 * of squares of what is wrong with each dot, in units of `off`, and of base itself in units of e^{b_n}, as <S,dS'> is of the dots' size. A walk from
 * the left, where `wrong` is the square to be expected of what is wrong with `through`, and one back, which gives each base its share of what turned
 * out behind it. Where nothing fades that is what is missing at the end, in equal parts for all dots; what passes less than `off` counts as nothing,
 * and a chunk with a reset has 0 exactly, whatever (NaN too) is around it. By one thread. */
__device__ static void gates_settle(gates_chunks *a, int chunks, float off, float start, float end, bool known)
{
    const float sizes = 1.0f / off;
    float through = start, wrong = 0;
#pragma unroll 2
    for (int c = 0; c < chunks; c++) {
        const float size = sizes * a->fade[c], y = through - a->reads[c], both = wrong + 1;
        const bool shut = a->fade[c] == 0.0f;
        const float trust = __fdividef(size * size, size * size + both);
        a->base[c] = shut ? 0.0f : trust * y;
        a->less[c] = y - a->base[c];
        a->before[c] = __fdividef(wrong, both);
        wrong = trust * both;
        a->behind[c] = __fdividef(wrong, wrong + 1);
        wrong += 1;
        through = a->base[c] + a->writes[c];
    }
    float more = known ? end - through : 0.0f;
#pragma unroll 2
    for (int c = chunks - 1; c >= 0; c--) {
        const float mine = a->fade[c] == 0.0f ? 0.0f : a->behind[c] * more;
        a->base[c] += mine;
        more = a->before[c] * (mine - a->less[c]);
    }
}

__global__ __launch_bounds__(GATES_THREADS) void decay_gates_gradient(const __grid_constant__ decay_cut x, const __grid_constant__ decay_gates a)
{
    __shared__ float partial[GATES_THREADS / 32];
    __shared__ gates_chunks all;
    const int64_t n = blockIdx.x / x.Hv / x.P;
    const int h = (int)(blockIdx.x % x.Hv), p = (int)(blockIdx.x / x.Hv % x.P), lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    decay_place at;
    if (!decay_find(x, n, p, &at)) return await_last();
    const int64_t state = (int64_t)a.K * a.W;
    float first = 0, behind = 0;
    if (p) first = gates_dot(a.S + (at.slot * x.Hv + h) * state, a.dS + ((at.slot - 1) * x.Hv + h) * state, state);
    if (!at.ends) behind = gates_dot(a.S + ((at.slot + 1) * x.Hv + h) * state, a.dS + (at.slot * x.Hv + h) * state, state);
    await_last(); /* the slots above were made before the passes; those, and the pairs, may still be running */
    let_next();
    if (!p) {
        const int64_t i = (n * x.Hv + h) * a.K;
        if (a.s) first = gates_dot(a.s + i * a.V, a.ds + i * a.V, (int64_t)a.K * a.V);
        if (a.z) first += gates_dot(a.z + i, a.dz + i, a.K);
    }
    if (at.ends && a.sT) {
        const int64_t i = (n * x.Hv + h) * a.K * a.V;
        behind = gates_dot(a.sT + i, a.dsT + i, (int64_t)a.K * a.V);
    }
    const float anchor = gates_block_sum(first, partial), end = gates_block_sum(behind, partial);
    const int chunks = (int)((at.last - at.first + a.chunk - 1) / a.chunk);
    /* A warp has every eighth chunk, a lane rows 2 lane and 2 lane + 1 of it: all under way at once. Chunks are even and no longer than 64. */
    constexpr int WARPS = GATES_THREADS / 32, EACH = GATES_CHUNKS / WARPS;
    float r[EACH][2], w[EACH][2], g[EACH][2], pairs[EACH][2];
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int64_t t = at.first + (warp + i * WARPS) * a.chunk + 2 * lane + j;
            r[i][j] = w[i][j] = g[i][j] = pairs[i][j] = 0;
            if (2 * lane >= a.chunk || t >= at.last) continue;
            for (int q = 0; q < a.parts; q++) {
                r[i][j] += a.reads[((int64_t)q * x.Hv + h) * x.T + t];
                w[i][j] += a.writes[((int64_t)q * x.Hv + h) * x.T + t];
            }
            g[i][j] = decay_gate(x, t, h);
            if (a.intra) pairs[i][j] = a.intra[(int64_t)h * x.T + t];
        }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int c = warp + i * WARPS;
        if (c >= chunks) break;
        const float reads = warp_sum(r[i][0] + r[i][1]), writes = warp_sum(w[i][0] + w[i][1]), fade = warp_sum(g[i][0] + g[i][1]);
        if (lane == 0) {
            all.reads[c] = reads;
            all.writes[c] = writes;
            all.fade[c] = exp2f(fade * (float)LNT_LOG2E);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) gates_settle(&all, chunks, a.off, anchor, end, !at.ends || a.end_known);
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int c = warp + i * WARPS;
        if (c >= chunks) break;
        float before = w[i][0] + w[i][1], after = r[i][0] + r[i][1]; /* inclusive sums over lanes, from the left and from the right */
        for (int o = 1; o < 32; o <<= 1) {
            const float l = __shfl_up_sync(~0u, before, o), u = __shfl_down_sync(~0u, after, o);
            if (lane >= o) before += l;
            if (lane + o < 32) after += u;
        }
        const float left = __shfl_up_sync(~0u, before, 1), right = __shfl_down_sync(~0u, after, 1);
        const float writes_before[2] = { lane ? left : 0.0f, (lane ? left : 0.0f) + w[i][0] };
        const float reads_after[2] = { after, (lane < 31 ? right : 0.0f) + r[i][1] };
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int64_t t = at.first + c * a.chunk + 2 * lane + j;
            if (2 * lane >= a.chunk || t >= at.last) continue;
            const float more = a.more && h % x.slices == 0 ? a.more[decay_token(x, t, h)] : 0.0f;
            const float dg = lnt_gate_shut(g[i][j]) ? 0.0f : all.base[c] + writes_before[j] + reads_after[j] + pairs[i][j] + more;
            if (a.dg) a.dg[t * x.Hv + h] = a.less_from ? a.less_from[t * x.Hv + h] - dg : dg;
            total += dg;
        }
    }
    total = gates_block_sum(total, partial);
    if (a.sums && threadIdx.x == 0) a.sums[at.slot * x.Hv + h] = total;
}

/* dg_head [Hv]: sums of all segments, a warp a head. */
__global__ __launch_bounds__(32) void decay_head_gates(const __grid_constant__ decay_cut x, const float *sums, float *dg_head)
{
    await_last();
    let_next();
    const int h = (int)blockIdx.x;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < x.N * x.P; i += 32) {
        decay_place at;
        if (decay_find(x, i / x.P, (int)(i % x.P), &at)) sum += sums[at.slot * x.Hv + h];
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0) dg_head[h] = sum;
}

/* ---- forward and backward ----------------------------------------------------------------------------------------------------------- */

struct decay_work {
    float *S, *dS;               /* slots [slots,Hv,K,W], when a sequence has several segments */
    float *decay;                /* [slots,Hv] */
    float *den, *dnum, *dden;    /* normalize: [T,Hv], [T,Hv,V], [T,Hv] */
    float *reads, *writes, *intra, *sums, *ds, *sT, *dz; /* gates: [parts,Hv,T] twice, [Hv,T], [slots,Hv], [N,Hv,K,V] twice, [N,Hv,K] */
    float *dq, *dk;              /* shared heads, mLSTM: [T,Hv,K] */
    decay_stable stable;         /* mLSTM */
    /* slices */
    float *s0, *dsT;             /* [N,Hv,K,V]; of the gradient of s0 and of sT above */
    float *dq_parts, *dk_parts;  /* [T,Hv,K]: several slices of V */
    float *dg, *dg_head;         /* [T,Hv], [Hv] */
    void *parts;                 /* [T,Hv,V] in the call's type, of o or dv: several slices of K, or o before it is divided */
    void *d_o;                   /* [T,Hv,V] in the call's type: do / D */
    bf16 *starts, *ends;         /* backward by chunks, [slots of chunks,Hv,V,K]: S in front of each, dS behind it */
};

struct decay_arena {
    char *base;
    size_t used;
    float *floats(int64_t n)
    {
        float *p = base ? (float *)(base + used) : NULL;
        used += ((size_t)n * sizeof(float) + 255) / 256 * 256;
        return p;
    }
};

static bool is_stable(const lnt_recur_args *a) { return a->op->kind == LNT_DECAY_STABLE; }

static decay_slices slices_of(const lnt_recur_args *a, const decay_kernels &k)
{
    const int K = k.sliced ? lnt_decay_slice(a->K) : a->K, V = k.sliced ? lnt_decay_slice(a->V) : a->V;
    return { K, V, a->K / K, a->V / V };
}

/* Outputs are divided by sums of keys behind the passes, which have V columns then: n, as mLSTM's, without m. */
static bool has_sums(const lnt_recur_args *a, const decay_kernels &k) { return a->normalize && k.sliced; }

/* A CTA a chunk (decay_back), where heads are narrow, and gated or shared: else the passes have as few products, and keep no state. */
static bool by_chunks(const lnt_recur_args *a, const decay_kernels &k)
{
    const bool plain = !is_stable(a) && !a->normalize && a->K <= 128 && a->V <= 128;
    return k.takes && plain && (a->Hq < a->Hv || (a->op->kind != LNT_DECAY_NONE && !k.both)) && k.takes(a->K, a->V);
}
/* Runs of the heads of a group that CTAs take: as few as leave 200 of them. */
static int back_parts(const lnt_recur_args *a, const decay_kernels &k)
{
    const int64_t ctas = (a->tokens / k.chunk + a->sequences) * a->Hq;
    int parts = 1;
    while (ctas * parts < 200 && a->Hv / a->Hq % (2 * parts) == 0) parts *= 2;
    return parts;
}

/* A CTA of `both` has a multiprocessor of its own where it has two groups of warps, which is as much work as two CTAs of the others. */
static int64_t segment_of(const lnt_recur_args *a, const decay_kernels &k, const decay_slices &by, bool backward)
{
    return lnt_decay_segment(a, backward, k.chunk, by.k * by.v * (k.both && (backward || by.V == 128) ? 2 : 1));
}

static void carve_stable(const lnt_recur_args *a, bool backward, bool sliced, decay_arena *m, decay_work *w)
{
    const int64_t rows = a->tokens * a->Hv, slots = (a->tokens / LNT_STABLE_C + a->sequences) * a->Hv, heads = a->sequences * a->Hv;
    decay_stable *s = &w->stable;
    float **const each[] = { &s->m, &s->g, &s->reads, &s->writes, &s->den, &s->along, &s->pull, &s->dgates, &s->dg_n, &s->di };
    for (int i = 0; i < (backward ? 10 : 5); i++) *each[i] = m->floats(rows);
    s->n = m->floats(slots * a->K);
    s->fade = m->floats(slots);
    s->maps = (stable_map *)m->floats((a->tokens / lnt_stable_piece(a->longest) + a->sequences) * a->Hv * 4);
    if (!backward) return;
    s->rows = m->floats(rows);
    s->starts = m->floats(slots);
    s->dots = (double *)m->floats(heads * 4);
    s->dn = m->floats(slots * a->K);
    s->sT = sliced ? m->floats(heads * a->K * a->V) : w->sT;
    s->nT = m->floats(heads * a->K);
    s->ds = sliced ? m->floats(heads * a->K * a->V) : w->ds;
    s->dn0 = w->dz;
}

static void carve_sums(const lnt_recur_args *a, bool backward, decay_arena *m, decay_work *w)
{
    const int64_t rows = a->tokens * a->Hv, slots = (a->tokens / LNT_STABLE_C + a->sequences) * a->Hv, heads = a->sequences * a->Hv;
    decay_stable *s = &w->stable;
    s->reads = m->floats(rows);
    s->den = m->floats(rows);
    s->n = m->floats(slots * a->K);
    s->fade = m->floats(slots);
    if (!backward) return;
    w->d_o = m->floats((rows * a->V + 1) / 2);
    s->along = m->floats(rows);
    s->dg_n = m->floats(rows);
    s->di = m->floats(rows);
    s->dn = m->floats(slots * a->K);
    s->nT = m->floats(heads * a->K);
    s->dn0 = m->floats(heads * a->K);
}

/* What slices have beside: states as theirs, and parts to be added up. `heads` counts slices. */
static void carve_slices(const lnt_recur_args *a, bool backward, const decay_slices &by, int64_t heads, decay_arena *m, decay_work *w)
{
    const int64_t states = a->sequences * a->Hv * a->K * a->V;
    w->s0 = m->floats(states);
    w->sT = m->floats(states);
    if (!backward) return;
    w->dsT = m->floats(states);
    w->ds = m->floats(states);
    if (by.v > 1) w->dq_parts = m->floats(a->tokens * heads * by.K);
    if (by.v > 1) w->dk_parts = m->floats(a->tokens * heads * by.K);
    w->dg = m->floats(a->tokens * heads);
    w->dg_head = m->floats(heads);
}

static size_t carve(const lnt_recur_args *a, bool backward, const decay_kernels &k, void *base, decay_work *w)
{
    const decay_slices by = slices_of(a, k);
    const int64_t segment = segment_of(a, k, by, backward), slots = a->tokens / segment + a->sequences;
    const bool sums = has_sums(a, k), ones = a->normalize && !sums;
    const int64_t heads = (int64_t)a->Hv * by.k * by.v, T = a->tokens, state = (int64_t)by.K * (by.V + ones);
    const bool several = decay_segments(a, segment) > 1, gated = a->op->kind != LNT_DECAY_NONE, sliced = by.k * by.v > 1;
    decay_arena m = { (char *)base, 0 };
    *w = {};
    if (several) {
        w->S = m.floats(slots * heads * state);
        w->decay = m.floats(slots * heads);
        if (backward) w->dS = m.floats(slots * heads * state);
    }
    if (ones) w->den = m.floats(T * heads);
    if (sliced) carve_slices(a, backward, by, heads, &m, w);
    if (by.k > 1 || (sums && !backward)) w->parts = m.floats((T * heads * by.V * (int64_t)lnt_dtype_size(a->dtype) + 3) / 4);
    if (sums) carve_sums(a, backward, &m, w);
    if (!backward) {
        if (is_stable(a)) carve_stable(a, false, sliced, &m, w);
        return m.used;
    }
    if (ones) {
        w->dnum = m.floats(T * heads * a->V);
        w->dden = m.floats(T * heads);
    }
    if (gated) {
        const int64_t parts = k.parts ? k.parts : (a->K + DECAY_BLOCK - 1) / DECAY_BLOCK;
        w->reads = m.floats(parts * heads * T);
        w->writes = m.floats(parts * heads * T);
        w->intra = m.floats(heads * T);
        w->sums = m.floats(slots * heads);
        if (!sliced) w->ds = m.floats(a->sequences * heads * a->K * a->V);
        if (!sliced) w->sT = m.floats(a->sequences * heads * a->K * a->V);
        w->dz = m.floats(a->sequences * a->Hv * a->K);
    }
    const bool chunks = by_chunks(a, k);
    if (chunks) {
        const int64_t states = (T / k.chunk + a->sequences) * a->Hv * a->K * a->V;
        w->starts = (bf16 *)m.floats((states + 1) / 2);
        w->ends = (bf16 *)m.floats((states + 1) / 2);
    }
    const int64_t copies = chunks ? a->Hq * (int64_t)back_parts(a, k) : a->Hv;
    if (chunks ? copies > a->Hq : a->Hq < a->Hv || is_stable(a) || sums) {
        w->dq = m.floats(T * copies * a->K);
        w->dk = m.floats(T * copies * a->K);
    }
    if (is_stable(a)) carve_stable(a, true, sliced, &m, w);
    return m.used;
}

size_t lnt_decay_cuda_bytes(const lnt_recur_args *a, bool backward, const decay_kernels &k)
{
    decay_work w;
    return carve(a, backward, k, NULL, &w);
}

/* A call as both directions see it. */
struct decay_call {
    const lnt_recur_args *a;
    const lnt_cuda *d;
    const decay_kernels *k;
    decay_cut cut;
    decay_work w;
    decay_rows q, key, v, d_o;
    decay_slices by;
    int W;                 /* of a slice's state */
    const float *s0, *dsT; /* of slices */
    bool bf16, divides, sliced, sums, ones; /* ones: a column of them beside V */
};

/* A state of the call as its slices have it: a copy. And where they leave one that is wanted at `state`, from where put_whole brings it there. */
static const float *state_in(const decay_call &x, const void *state, float *copy)
{
    if (!state || !x.sliced) return (const float *)state;
    lnt_decay_slice_states(copy, (const float *)state, false, x.a->sequences * x.a->Hv, x.by, x.d);
    return copy;
}
static float *state_out(const decay_call &x, void *state, float *of_slices) { return state && x.sliced ? of_slices : (float *)state; }
static void put_whole(const decay_call &x, void *state, const float *of_slices)
{
    if (state && x.sliced && state != of_slices) lnt_decay_slice_states((float *)state, of_slices, true, x.a->sequences * x.a->Hv, x.by, x.d);
}

static decay_call describe(const lnt_recur_args *a, const lnt_device *d, const decay_kernels &k, bool backward)
{
    decay_call x = {};
    x.a = a;
    x.d = (const lnt_cuda *)d;
    x.k = &k;
    const decay_slices by = x.by = slices_of(a, k);
    const int slices = by.k * by.v;
    const int64_t segment = segment_of(a, k, by, backward);
    x.cut = { a->cu_seqlens_device, a->sequences, a->tokens, segment, decay_segments(a, segment), a->Hv * slices,
              (const float *)a->g, (const float *)a->g_head, (float)a->scale };
    x.cut.slices = slices;
    x.cut.strengths = (const float *)a->beta;
    x.sliced = slices > 1;
    x.sums = has_sums(a, k);
    x.ones = a->normalize && !x.sums;
    x.divides = k.divides && !x.sliced; /* by sums over all of K */
    carve(a, backward, k, a->workspace, &x.w);
    if (is_stable(a)) x.cut.g = x.w.stable.g, x.cut.writes = x.w.stable.writes;
    if (is_stable(a) && (backward || !x.divides)) x.cut.reads = x.w.stable.reads;
    x.bf16 = a->dtype == LINNET_BF16;
    x.q = { a->q, NULL, x.bf16, a->Hq * by.k, by.K, by.k };
    x.key = { a->k, NULL, x.bf16, a->Hq * by.k, by.K, by.k };
    x.v = { a->v, NULL, x.bf16, a->Hv * by.v, by.V };
    x.d_o = { a->do_, NULL, x.bf16, a->Hv * by.v, by.V };
    if (x.sums && a->do_) x.d_o.p = x.w.d_o;
    if (x.ones) x.d_o = { x.w.dnum, x.w.dden, 0, a->Hv, a->V };
    x.W = by.V + x.ones;
    x.s0 = state_in(x, a->s0, x.w.s0);
    x.dsT = backward ? state_in(x, a->dsT, x.w.dsT) : NULL;
    return x;
}

static void put_scan(const decay_cut &x, const scan_side *side, int n, const float *decay, int K, int V, int W, const lnt_cuda *d)
{
    const bool quads = W % 4 == 0 && W == V && ((uintptr_t)side[0].s | (uintptr_t)side[n - 1].s) % 16 == 0;
    const int each = SCAN_THREADS * (quads ? 4 : 1), blocks = (K * W + each - 1) / each;
    const int64_t grid = x.N * x.Hv * blocks;
    if (grid <= 0) return;
    lnt_launch(d, quads ? decay_scan<4> : decay_scan<1>, dim3((unsigned)grid, (unsigned)n), SCAN_THREADS, x, side[0], side[n - 1], decay, K, V, W,
               blocks);
}
void lnt_decay_scan(const decay_cut &x, float *S, const float *decay, const float *s0, const float *z0, int K, int V, int W, bool reverse,
                    const lnt_cuda *d)
{
    const scan_side side = { S, s0, z0, reverse };
    put_scan(x, &side, 1, decay, K, V, W, d);
}

static void put_starts(const decay_call &x, bool reverse)
{
    if (x.cut.P == 1) return;
    const lnt_recur_args *a = x.a;
    float *X = reverse ? x.w.dS : x.w.S;
    const float *z = (const float *)(reverse ? a->dzT : a->z0);
    x.k->states(x.cut, { reverse ? x.q : x.key, reverse ? x.d_o : x.v, x.by.K, x.W, reverse, X, x.w.decay }, x.d);
    lnt_decay_scan(x.cut, X, x.w.decay, reverse ? x.dsT : x.s0, z, x.by.K, x.by.V, x.W, reverse, x.d);
}

void lnt_decay_tiles_two(const lnt_recur_args *a, const lnt_recur_args *b, const lnt_device *d)
{
    const decay_call x = describe(a, d, lnt_decay_tiles, false), y = describe(b, d, lnt_decay_tiles, false);
    if (x.cut.P == 1) return;
    const decay_states ends[2] = { { x.key, x.v, x.by.K, x.W, false, x.w.S, x.w.decay }, { y.key, y.v, y.by.K, y.W, false, y.w.S, x.w.decay } };
    const scan_side starts[2] = { { x.w.S, x.s0, NULL, false }, { y.w.S, y.s0, NULL, false } };
    lnt_decay_hopper_states(x.cut, ends, x.d);
    put_scan(x.cut, starts, 2, x.w.decay, x.by.K, x.by.V, x.W, x.d);
}

/* S and dS of the segments, in one launch each, where the kernels have one. */
static void put_both_starts(const decay_call &x)
{
    if (x.cut.P == 1) return;
    const lnt_recur_args *a = x.a;
    const decay_states ends[2] = { { x.key, x.v, x.by.K, x.W, false, x.w.S, x.w.decay }, { x.q, x.d_o, x.by.K, x.W, true, x.w.dS, x.w.decay } };
    const scan_side starts[2] = { { x.w.S, x.s0, (const float *)a->z0, false }, { x.w.dS, x.dsT, (const float *)a->dzT, true } };
    x.k->both_states(x.cut, ends, x.d);
    put_scan(x.cut, starts, 2, x.w.decay, x.by.K, x.by.V, x.W, x.d);
}

static decay_pass pass_of(const decay_call &x, decay_rows query, decay_rows key, decay_rows value, bool reverse, bool transposed, int end)
{
    const lnt_recur_args *a = x.a;
    decay_pass p = {};
    p.query = query;
    p.key = key;
    p.value = value;
    p.D = transposed ? x.W : x.by.K;
    p.E = transposed ? x.by.K : x.W;
    p.end = end;
    p.reverse = reverse;
    p.transposed = transposed;
    p.slots = x.cut.P == 1 ? NULL : reverse ? x.w.dS : x.w.S;
    p.s = reverse ? x.dsT : x.s0;
    p.z = (const float *)(reverse ? a->dzT : a->z0);
    p.K = x.by.K;
    p.V = x.by.V;
    p.W = x.W;
    p.out_bf16 = x.bf16;
    return p;
}

/* o, or float32 o into dnum's place; the denominators before. */
static void put_read(const decay_call &x, void *o, int o_bf16, bool ends, bool late = false)
{
    const lnt_recur_args *a = x.a;
    if (x.ones) {
        decay_pass den = pass_of(x, x.q, x.key, x.v, false, false, a->V + 1);
        den.begin = a->V;
        den.out = x.w.den;
        den.out_bf16 = 0;
        den.add = (float)a->eps;
        den.z_end = ends ? (float *)a->zT : NULL;
        x.k->read(x.cut, &den, 1, x.d);
    }
    decay_pass p = pass_of(x, x.q, x.key, x.v, false, false, x.by.V);
    p.out = x.w.parts ? x.w.parts : o;
    p.out_bf16 = o_bf16;
    p.den = x.w.den;
    p.late = late;
    p.s_end = ends ? state_out(x, a->sT, x.w.sT) : NULL;
    if (is_stable(a) && x.divides) p.n_starts = x.w.stable.n, p.m = x.w.stable.m, p.eps = (float)a->eps;
    x.k->read(x.cut, &p, 1, x.d);
    if (x.w.parts)
        lnt_decay_sum(o, o_bf16, x.w.parts, o_bf16, a->tokens * a->Hv * x.by.v, x.by.k, x.by.V, x.d, x.sums ? x.w.stable.reads : NULL, x.by.v);
    if (ends) put_whole(x, a->sT, x.w.sT);
}

void lnt_decay_cuda_forward(const lnt_recur_args *a, const lnt_device *d, const decay_kernels &k, bool has_starts)
{
    const decay_call x = describe(a, d, k, false);
    if (is_stable(a) || x.sums) lnt_stable_prepare(a, x.w.stable, x.d, true, x.sums || !x.divides);
    if (!has_starts) put_starts(x, false);
    put_read(x, a->o, x.bf16, true, has_starts);
}

static void put_gates(const decay_call &x, const decay_pass &dk, const decay_shared &with, bool pairs)
{
    const lnt_recur_args *a = x.a;
    const int chunk = x.k->chunk;
    decay_rows less_v = x.v, less_do = x.d_o;
    less_v.p = with.less_v;
    less_do.p = with.less_do;
    float *const rows = is_stable(a) && x.k->rounds && !x.sliced ? x.w.stable.rows : NULL;
    if (pairs && !with.no_pairs) x.k->pairs(x.cut, { x.q, x.key, x.v, x.d_o, less_v, less_do, x.by.K, x.W, x.w.intra, rows }, x.d);
    decay_gates g = {};
    g.S = x.w.S;
    g.dS = x.w.dS;
    g.s = x.s0;
    g.z = x.ones ? (const float *)a->z0 : NULL;
    g.ds = dk.s_end;
    g.sT = a->dsT && !a->normalize ? x.w.sT : NULL;
    g.dsT = x.dsT;
    g.end_known = g.sT || (!a->dsT && (!x.ones || !a->dzT));
    g.dz = dk.z_end;
    g.reads = x.w.reads;
    g.writes = x.w.writes;
    g.intra = with.no_pairs ? NULL : x.w.intra;
    g.more = x.sums ? x.w.stable.dg_n : NULL;
    g.parts = x.k->parts ? x.k->parts : (a->K + DECAY_BLOCK - 1) / DECAY_BLOCK;
    g.chunk = chunk;
    g.off = x.k->off;
    g.K = x.by.K;
    g.V = x.by.V;
    g.W = x.W;
    float *dg = is_stable(a) ? x.w.stable.dgates : (float *)a->dg, *dg_head = (float *)a->dg_head;
    g.dg = dg && x.sliced ? x.w.dg : dg;
    g.less_from = with.joined.dg;
    g.sums = x.w.sums;
    put(x.d, decay_gates_gradient, decay_pieces(x.cut), GATES_THREADS, x.cut, g);
    if (dg_head) put(x.d, decay_head_gates, x.cut.Hv, 32, x.cut, (const float *)x.w.sums, x.sliced ? x.w.dg_head : dg_head);
    if (!x.sliced) return;
    lnt_decay_sum(dg, 0, x.w.dg, 0, a->tokens * a->Hv, x.cut.slices, 1, x.d);
    lnt_decay_sum(dg_head, 0, x.w.dg_head, 0, a->Hv, x.cut.slices, 1, x.d);
}

/* Passes of slices leave parts, dq and dk in float32; their sums go where the passes of whole heads would leave them. */
static void take_parts(decay_pass *p, void *parts, bool wide)
{
    if (!p->out || !parts) return;
    p->out = parts;
    if (wide) p->out_bf16 = 0;
}
static void put_sums(const decay_call &x, const decay_pass &dq, const decay_pass &dk, const decay_pass &dv)
{
    const int64_t rows = x.a->tokens * x.a->Hv;
    if (x.w.dq_parts) lnt_decay_sum(dq.out, dq.out_bf16, x.w.dq_parts, 0, rows, x.by.v, x.a->K, x.d);
    if (x.w.dk_parts) lnt_decay_sum(dk.out, dk.out_bf16, x.w.dk_parts, 0, rows, x.by.v, x.a->K, x.d);
    if (x.w.parts) lnt_decay_sum(dv.out, dv.out_bf16, x.w.parts, dv.out_bf16, rows * x.by.v, x.by.k, x.by.V, x.d);
}

/* All but the gates' gradient, for which `dq`, `dk` say where dots and ends of states go, out of the chunks' states. */
static void put_chunks(const decay_call &x, const decay_pass &dq, const decay_pass &dk)
{
    const lnt_recur_args *a = x.a;
    const bool several = x.cut.P > 1;
    x.k->starts(x.cut, { x.key, x.v, x.by.K, x.W, false, NULL, NULL }, { several ? x.w.S : NULL, x.s0, dq.s_end, x.w.starts }, x.d);
    x.k->starts(x.cut, { x.q, x.d_o, x.by.K, x.W, true, NULL, NULL }, { several ? x.w.dS : NULL, x.dsT, dk.s_end, x.w.ends }, x.d);
    decay_back back = { x.q, x.key, x.v, x.d_o, x.w.starts, x.w.ends, x.by.K, x.by.V, back_parts(a, *x.k), a->dq, a->dk, (bf16 *)a->dv,
                        dq.inter, dk.inter, dq.inter ? x.w.intra : NULL };
    const bool parts = back.parts > 1;
    if (parts && a->dq) back.dq = x.w.dq;
    if (parts && a->dk) back.dk = x.w.dk;
    x.k->back(x.cut, back, x.d);
    if (!parts) return;
    lnt_decay_sum(a->dq, x.bf16, x.w.dq, 0, a->tokens * a->Hq, back.parts, a->K, x.d);
    lnt_decay_sum(a->dk, x.bf16, x.w.dk, 0, a->tokens * a->Hq, back.parts, a->K, x.d);
}

void lnt_decay_cuda_backward(const lnt_recur_args *a, const lnt_device *d, const decay_kernels &k, const decay_shared &with)
{
    const decay_call x = describe(a, d, k, true);
    const bool gates = (a->dg || a->dg_head) && a->sequences, shared = a->Hq < a->Hv, stable = is_stable(a), n_beside = stable || x.sums;
    if (n_beside) lnt_stable_prepare(a, x.w.stable, x.d, false, true);
    if (x.sums && a->do_) lnt_decay_sum(x.w.d_o, x.bf16, a->do_, x.bf16, a->tokens * a->Hv, 1, a->V, x.d, x.w.stable.reads);
    if (k.both)
        put_both_starts(x);
    else if (!with.has_starts)
        put_starts(x, false);
    if (x.ones) {
        put_read(x, x.w.dnum, 0, false);
        const int64_t rows = a->tokens * a->Hv;
        put(x.d, decay_divide, lnt_div_up(rows, 8), 256, x.w.dnum, x.w.dden, (const float *)x.w.den, (const void *)a->do_, (int)x.bf16, rows, a->V);
    }
    if (!k.both) put_starts(x, true);
    decay_pass dq = pass_of(x, x.d_o, x.v, x.key, false, true, x.by.K), dv = pass_of(x, x.key, x.q, x.d_o, true, false, x.by.V),
               dk = pass_of(x, x.v, x.d_o, x.q, true, true, x.by.K), passes[3];
    const bool chunks = by_chunks(a, k);
    const bool parts = shared || x.sums || (stable && !k.rounds); /* n's part of normalised dq takes most of it away again: float32 until then */
    dq.out = parts && (n_beside || a->dq) ? x.w.dq : a->dq;
    dk.out = parts && (n_beside || a->dk) ? x.w.dk : a->dk;
    if (n_beside && !dq.out) dq.out = x.w.dq;
    if (n_beside && !dk.out) dk.out = x.w.dk;
    if (parts) dq.out_bf16 = dk.out_bf16 = 0;
    dv.out = a->dv;
    float *const ds = !a->ds0 && (gates || (stable && a->dm0)) && a->s0 ? stable ? x.w.stable.ds : x.w.ds : (float *)a->ds0;
    dk.s_end = state_out(x, ds, x.w.ds);
    float *const sT = stable && a->dsT ? x.w.stable.sT : NULL;
    if ((stable || gates) && a->dsT && !a->normalize) dq.s_end = x.w.sT;
    dk.z_end = a->dz0 || !gates || !a->z0 ? (float *)a->dz0 : x.w.dz;
    if (k.both) dk.dots = x.key;
    if (gates) {
        dq.dots = x.q;
        dq.inter = x.w.reads;
        dk.dots = x.key;
        dk.inter = x.w.writes;
        dq.joined = dk.joined = with.joined;
        if (k.both && !with.no_pairs) dk.intra = x.w.intra, dk.rows = stable && !x.sliced ? x.w.stable.rows : NULL;
    }
    decay_pass each[] = { dk, dv, dq };
    take_parts(&each[0], x.w.dk_parts, true);
    take_parts(&each[1], x.w.parts, false);
    take_parts(&each[2], x.w.dq_parts, true);
    int n = 0;
    if (dk.out || dk.s_end || dk.z_end || gates || (k.both && dv.out)) passes[n++] = each[0];
    if (dv.out) passes[n++] = each[1];
    if (dq.out || gates) passes[n++] = each[2];
    if (chunks)
        put_chunks(x, dq, dk);
    else if (n)
        x.k->read(x.cut, passes, n, x.d);
    if (gates && !x.sums) put_gates(x, dk, with, !chunks && !k.both);
    put_sums(x, dq, dk, dv);
    put_whole(x, ds, x.w.ds);
    put_whole(x, sT, x.w.sT);
    if (n_beside) {
        const bool tiles = stable && k.rounds && !x.sliced;
        decay_stable w = x.w.stable;
        w.inter = gates && tiles ? x.w.reads : NULL;
        if (!tiles || !a->s0 || !a->dm0) w.starts = NULL;
        lnt_stable_finish(a, w, x.d, dq.out, dk.out, !parts, gates && stable && !x.sliced);
    }
    if (gates && x.sums) put_gates(x, dk, with, !k.both);
    if (shared && !chunks) {
        lnt_decay_sum(a->dq, x.bf16, x.w.dq, 0, a->tokens * a->Hq, a->Hv / a->Hq, a->K, x.d);
        lnt_decay_sum(a->dk, x.bf16, x.w.dk, 0, a->tokens * a->Hq, a->Hv / a->Hq, a->K, x.d);
    }
    if (a->dg_head && !gates) lnt_cuda_note((lnt_cuda *)x.d, cudaMemsetAsync(a->dg_head, 0, (size_t)a->Hv * sizeof(float), x.d->stream));
}

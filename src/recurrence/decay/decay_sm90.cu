/* The decay core on Hopper's tensor cores (wgmma): bf16 rows, K and V of 64 or 128, or slices of that size. The passes of decay_cuda.cu in chunks of
 * 64 tokens, as decay_sm80.cu has them, in two kernels and not four: forwards o or dq, in reverse dk and dv together, which share the state and on
 * the way have both products of every pair, and so the gates' gradient inside chunks. README.md has the roles; o of 128 columns has a kernel of its
 * own (decay_outputs_sm90.cu).
 *
 * A warpgroup has 64 rows of the state in its accumulators. In front of each chunk it leaves them in shared memory as bf16, where products of tokens
 * find them on the right: so every product of tokens has tokens on the left, and pairs go from accumulators to the left side of the next one without
 * shared memory.
 *
 * Long: four kernels of one path, which share tiles, factors and the layout of the state. */
#include "recurrence/decay/decay_sm90.cuh"
#include "recurrence/recur_cuda.cuh"

/* ---- states of segments ------------------------------------------------------------------------------------------------------------- */

/* As decay_tiles_states, D columns of K and 64 of V a CTA; rows come to L2 once, and are a tile once where values are the same rows (the Mesa core's
 * H). In both directions at once the first leaves the decays but for the last segment's. */
struct states_sides {
    decay_states side[2];
    int n, K, V;
    unsigned same; /* a bit a side: its values are its keys */
};
template <int D> static constexpr int ends_stage = (D / 64 + 1) * PANEL;
static bool same_rows(const decay_rows &a, const decay_rows &b) { return a.p == b.p && a.heads == b.heads && a.width == b.width; }

template <int D, bool GATED, int STAGES>
__global__ __launch_bounds__(GROUP, 3) void decay_hopper_states(const __grid_constant__ decay_cut x, const __grid_constant__ states_sides sides)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ end_factors factors[GATED ? FACTORS : 1];
    const unsigned which = blockIdx.x % (unsigned)sides.n, item = blockIdx.x / (unsigned)sides.n;
    const decay_states &a = sides.side[which];
    const int K = sides.K, V = sides.V, blocks = V / 64, warp = (int)threadIdx.x / 32;
    const unsigned tiles = (unsigned)(K / D * blocks), tile = item % tiles;
    const int d0 = (int)tile / blocks * D, e0 = (int)tile % blocks * 64;
    const int64_t piece = item / tiles;
    const int h = (int)(piece % x.Hv), p = (int)(piece / x.Hv % x.P);
    decay_place at;
    await_last();
    let_next();
    if (!decay_find(x, piece / x.Hv / x.P, p, &at) || (a.reverse ? at.begins : at.ends)) return;
    const int chunks = (int)((at.last - at.first + C - 1) / C);
    const uint32_t base = (shared_address(memory) + 1023) & ~1023u;
    const bool one_tile = (sides.same >> which & 1) && e0 >= d0 && e0 < d0 + D;
    const uint32_t value_panel = (uint32_t)((one_tile ? (e0 - d0) / 64 : D / 64) * PANEL);
    auto first = [&](const decay_rows &of, int W) { return of.p ? (const bf16 *)of.p + (at.first * of.heads + head_of(of, x, h)) * W : NULL; };
    const bf16 *const key = first(a.key, K), *const value = first(a.value, V);
    const panel_rows<D, GROUP> keys(key ? key + d0 : NULL, a.key.heads * K);
    const panel_rows<64, GROUP> values(value ? value + e0 : NULL, a.value.heads * V);
    auto start = [&](int c) { return at.first + (int64_t)(a.reverse ? chunks - 1 - c : c) * C; };
    auto fetch = [&](int c) {
        const uint32_t stage = base + (uint32_t)(c % STAGES * ends_stage<D>);
        if (c < chunks) {
            keys.load(stage, start(c) - at.first, at.last - start(c));
            if (!one_tile) values.load(stage + value_panel, start(c) - at.first, at.last - start(c));
        }
        cp_async_commit();
    };
    for (int c = 0; c < STAGES - 1; c++) fetch(c);
    float S[D / 2] = {};
    float fade = 1.0f; /* as it fades the state, chunk by chunk */
    end_factors_ahead ahead(x, h, a.reverse);
    if (GATED && warp < chunks) {
        ahead.ask(start(warp), at.last, a.reverse);
        ahead.make(x, &factors[warp], a.reverse);
    }
    if (GATED && warp + 4 < chunks) ahead.ask(start(warp + 4), at.last, a.reverse);
#pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        cp_async_wait<STAGES - 2>();
        fence_async();
        __syncthreads();
        fetch(c + STAGES - 1);
        const uint32_t stage = base + (uint32_t)(c % STAGES * ends_stage<D>);
        const end_factors &f = factors[GATED ? c % FACTORS : 0];
        const float total = GATED ? f.total : 1.0f;
        fade *= total;
        next_state<GATED, GATED>(S, lane_columns(stage + value_panel, warp), stage, f.write, total, 1.0f);
        const int mine = c + 4 + warp;
        if (GATED && (c & 3) == 0 && mine < chunks) { /* while products run */
            ahead.make(x, &factors[mine % FACTORS], a.reverse);
            if (mine + 4 < chunks) ahead.ask(start(mine + 4), at.last, a.reverse);
        }
        wgmma_wait<0>();
        wgmma_hold(S);
    }
    const int64_t slot = at.slot * x.Hv + h;
    if (tile == 0 && threadIdx.x == 0 && (which == 0 || at.ends)) a.decay[slot] = fade;
    const float factor = !GATED && a.reverse ? x.scale : 1.0f;
    float *to = a.X + (slot * K + d0) * V + e0;
    each_number(S, [&](float &s, int e, int d) { to[d * V + e] = factor * s; });
}

/* ---- states at the starts of chunks ----------------------------------------------------------------------------------------------------- */

/* As decay_tiles_states with STARTS, forwards, of values that are the keys (the Mesa core's H), whose tile is there once: 64 columns a CTA. */
template <int K> struct starts_places {
    static constexpr int stages = 2, stage = K / 64 * PANEL, staging = stages * stage, bytes = staging + 4 * 2048 + 1024;
};

template <int K>
__global__ __launch_bounds__(GROUP, 4) void decay_hopper_starts(const __grid_constant__ decay_cut x, const __grid_constant__ decay_states a,
                                                                const __grid_constant__ chunk_starts b)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    using place = starts_places<K>;
    __shared__ tile_factors factors[FACTORS];
    constexpr int BLOCKS = K / 64;
    const int block = (int)(blockIdx.x % BLOCKS), warp = (int)threadIdx.x / 32;
    const int64_t piece = blockIdx.x / BLOCKS;
    const int h = (int)(piece % x.Hv), p = (int)(piece / x.Hv % x.P);
    decay_place at;
    await_last();
    let_next();
    if (!decay_find(x, piece / x.Hv / x.P, p, &at)) return;
    const int chunks = (int)((at.last - at.first + C - 1) / C);
    const uint32_t base = (shared_address(memory) + 1023) & ~1023u, staging = base + place::staging + (uint32_t)(warp * 2048);
    const panel_rows<K, GROUP> keys(a.key, x, at.first, h);
    auto start = [&](int c) { return at.first + (int64_t)c * C; };
    auto fetch = [&](int c) {
        if (c < chunks) keys.load(base + (uint32_t)(c % place::stages * place::stage), start(c) - at.first, at.last - start(c));
        cp_async_commit();
    };
    for (int c = 0; c < place::stages - 1; c++) fetch(c);
    float S[K / 2] = {};
    factors_ahead ahead;
    ahead.begin(x, factors, start, chunks, at.last, h, false);
    const float *from = b.slots ? b.slots + (at.slot * x.Hv + h) * K * K : b.s ? b.s + (at.n * x.Hv + h) * K * K : NULL;
    if (from) each_number(S, [&](float &s, int e, int d) { s = from[d * K + block * 64 + e]; });
    bf16 *to_start = b.S + ((x.cu[at.n] / C + at.n + p * (x.segment / C)) * x.Hv + h) * K * K + (block * 64 + warp * 16) * K;
#pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        cp_async_wait<place::stages - 2>();
        fence_async();
        __syncthreads();
        fetch(c + place::stages - 1);
        ahead.more(x, factors, start, c, chunks, at.last, h, false);
#pragma unroll
        for (int first = 0; first < K; first += 64) put_columns(S, first / 2, staging, to_start + first, K, 16);
        to_start += (int64_t)x.Hv * K * K;
        const uint32_t stage = base + (uint32_t)(c % place::stages * place::stage);
        const tile_factors &f = factors[c % FACTORS];
        next_state<true, true>(S, lane_columns(stage + (uint32_t)(block * PANEL), warp), stage, f.write, f.total, 1.0f);
        wgmma_wait<0>();
        wgmma_hold(S);
    }
    if (!b.s_end || !at.ends) return;
    float *to = b.s_end + (at.n * x.Hv + h) * K * K + block * 64;
    each_number(S, [&](float &s, int e, int d) { to[d * K + e] = s; });
}

/* ---- o, or dq ------------------------------------------------------------------------------------------------------------------------- */

/* PLAIN is o; SIDED dq, whose rows of q are a tile, too, for the gates' dots; DOTS these alone, without pairs, and decay_joined's products; DIVIDED
 * mLSTM's o, by D_t: n in front of the chunk is in the stage. */
enum fore_kind { PLAIN, SIDED, DOTS, DIVIDED };
template <int D, int E, fore_kind KIND> struct fore_places {
    static constexpr int groups = E / 64, key = D / 64 * PANEL, value = 2 * key, dots = value + groups * PANEL;
    static constexpr bool sided = KIND == SIDED || KIND == DOTS;
    static constexpr int used = dots + (sided ? groups * PANEL : 0), stages = used <= 24 << 10 ? 4 : used <= 48 << 10 && groups == 2 ? 3 : 2;
    static constexpr int n = used, stage = used + (KIND == DIVIDED ? 1024 : 0), state = stages * stage, end = state + groups * D / 64 * PANEL,
                         bytes = end + 1024;
};

/* Of two tiles of W columns, element by element, sums over rows: a thread of N has two columns and a share of the rows. */
template <int W, int N> __device__ __forceinline__ void add_products(float (&sum)[2], uint32_t x, uint32_t y)
{
    constexpr int ROWS = C * (W / 2) / N;
    const int tid = anew((int)threadIdx.x), pair = tid % (W / 2), first = tid / (W / 2) * ROWS;
    const uint32_t at = (uint32_t)(pair / 32 * PANEL + first * 128 + pair % 4 * 4), unit = (uint32_t)(pair % 32 / 4);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const uint32_t place = at + (uint32_t)(i * 128) + ((unit ^ (uint32_t)((first + i) & 7)) << 4);
        uint32_t u, v;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(u) : "r"(x + place) : "memory");
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(y + place) : "memory");
        sum[0] += low_bf16(u) * low_bf16(v);
        sum[1] += high_bf16(u) * high_bf16(v);
    }
}

/* A CTA has a segment of a head, a group of warps 64 columns of it.
 * Long: one chain of products, whose sums stay in registers. */
template <int D, int E, bool GATED, fore_kind KIND>
__global__ __launch_bounds__(E * 2, E == 64 ? 2 : 1) void decay_hopper_fore(const __grid_constant__ decay_cut x, const __grid_constant__ decay_pass a)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    using place = fore_places<D, E, KIND>;
    constexpr int N = E * 2, STAGES = place::stages, SIDES = place::sided ? 2 : 1;
    __shared__ tile_factors factors[GATED ? FACTORS : 1];
    __shared__ float dots[SIDES][place::groups][C];
    const int h = (int)(blockIdx.x % x.Hv), tid = (int)threadIdx.x, group = tid / GROUP, warp = tid / 32 % 4, lane = tid % 32;
    decay_place at;
    if (!a.slots || a.late) await_last();
    if (!decay_find(x, blockIdx.x / x.Hv / x.P, (int)(blockIdx.x / x.Hv % x.P), &at)) return await_last();
    const int chunks = (int)((at.last - at.first + C - 1) / C), r = lane >> 2, c2 = 2 * (lane & 3), row = warp * 16 + r;
    const uint32_t base = (shared_address(memory) + 1023) & ~1023u, state = base + place::state + (uint32_t)(group * (D / 64 * PANEL));
    const bool dotted = place::sided && GATED && a.inter;
    const float *n_start = KIND == DIVIDED ? a.n_starts + ((x.cu[at.n] / C + at.n + (at.first - x.cu[at.n]) / C) * x.Hv + h) * D : NULL;
    const panel_rows<D, N> queries(a.query, x, at.first, h), keys(a.key, x, at.first, h);
    const panel_rows<E, N> values(a.value, x, at.first, h), rows(place::sided ? a.dots : a.value, x, at.first, h);
    auto start = [&](int c) { return at.first + (int64_t)c * C; };
    auto fetch = [&](int c) {
        const uint32_t stage = base + (uint32_t)(c % STAGES * place::stage);
        if (c < chunks) {
            queries.load(stage, c * (int64_t)C, at.last - start(c));
            keys.load(stage + place::key, c * (int64_t)C, at.last - start(c));
            values.load(stage + place::value, c * (int64_t)C, at.last - start(c));
            if (dotted) rows.load(stage + place::dots, c * (int64_t)C, at.last - start(c));
            if (KIND == DIVIDED && tid < D / 4) cp_async_16(stage + place::n + (uint32_t)(tid * 16), n_start + (int64_t)c * x.Hv * D + tid * 4);
        }
        cp_async_commit();
    };
    auto put_inter = [&](int c) { /* of chunk c, behind a barrier */
        const float *of = &dots[c % SIDES][0][0];
        if (tid < C && start(c) + tid < at.last) a.inter[(int64_t)h * x.T + start(c) + tid] = place::groups == 1 ? of[tid] : of[tid] + of[C + tid];
    };
    for (int c = 0; c < STAGES - 1; c++) fetch(c);
    factors_ahead ahead;
    if (GATED) ahead.begin(x, factors, start, chunks, at.last, h, false);
    await_last();
    let_next();
    float S[D / 2], products[2] = {};
    const int sd = a.transposed ? 1 : a.V, se = a.transposed ? a.V : 1;
    {
        const int64_t whole = (int64_t)a.K * a.V;
        const float *from = a.slots ? a.slots + (at.slot * x.Hv + h) * whole : a.s ? a.s + (at.n * x.Hv + h) * whole : NULL;
        each_number(S, [&](float &s, int e, int d) { s = from ? from[d * sd + (group * 64 + e) * se] : 0.0f; });
    }
#pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        cp_async_wait<STAGES - 2>();
        fence_async();
        __syncthreads();
        fetch(c + STAGES - 1);
        const uint32_t query = base + (uint32_t)(c % STAGES * place::stage), key = query + place::key,
                       value = query + place::value + (uint32_t)(group * PANEL);
        const tile_factors &f = factors[GATED ? c % FACTORS : 0];
        if (dotted && c) put_inter(c - 1);

        float P[32], O[32];
        leave_state(S, lane_rows(state, warp * 16), PANEL);
        fence_async();
        if constexpr (KIND != DOTS) {
            wgmma_fence();
            times_rows<D>(P, query, key);
            wgmma_commit();
        }
        named_sync(1 + group, GROUP);
        wgmma_fence();
        times_rows<D>(O, query, state);
        wgmma_commit();
        if (GATED) ahead.more(x, factors, start, c, chunks, at.last, h, false); /* while products run */
        if constexpr (KIND == DOTS && D == E)
            if (a.joined.products) add_products<D, N>(products, query, query + place::dots);

        float den[2] = {}, m[2] = {};
        if (KIND == DIVIDED) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int64_t mine = start(c) + row + half * 8;
                if (mine < at.last) m[half] = a.m[mine * x.Hv + h];
            }
            row_sums<D>(den, query, (const float *)(memory + (query - shared_address(memory)) + place::n));
            den[0] *= f.read[row], den[1] *= f.read[row + 8];
        }
        uint32_t pairs[4][4];
        if constexpr (KIND != DOTS) {
            wgmma_wait<1>();
            wgmma_hold(P);
            float in_row[2];
            weigh_reads<GATED>(pairs, in_row, P, f, x.scale);
            if (KIND == DIVIDED) row_divisors(den, in_row, den, m, a.eps);
        }
        wgmma_wait<0>();
        wgmma_hold(O);
        {
            const float up = GATED ? f.read[row] : x.scale, down = GATED ? f.read[row + 8] : x.scale;
#pragma unroll
            for (int i = 0; i < 32; i++) O[i] *= i & 2 ? down : up;
        }
        if (dotted) {
            float dot[2];
            row_dots<64>(dot, O, query + place::dots + (uint32_t)(group * PANEL));
            if (c2 == 0) dots[c % SIDES][group][row] = dot[0], dots[c % SIDES][group][row + 8] = dot[1];
        }
        if constexpr (KIND == DOTS) {
            next_state<GATED, GATED>(S, lane_columns(value, warp), key, f.write, f.total, 1.0f);
            wgmma_wait<0>();
            wgmma_hold(S);
            continue;
        }
        wgmma_fence();
#pragma unroll
        for (int ks = 0; ks < C / 16; ks++) wgmma<1>(O, pairs[ks], wgmma_mn_major(value + ks * 2048, PANEL), true);
        wgmma_commit();
        next_state<GATED, GATED>(S, lane_columns(value, warp), key, f.write, f.total, 1.0f);
        wgmma_wait<1>();
        wgmma_hold(O);
        if (KIND == DIVIDED)
#pragma unroll
            for (int i = 0; i < 32; i++) O[i] *= den[i >> 1 & 1];
        named_sync(1 + group, GROUP); /* all warps have read the state: its place is theirs for O */
        if (a.out) {
            const int pitch = anew(x.Hv * E), len = (int)(at.last - start(c) < C ? at.last - start(c) : C) - warp * 16;
            const int64_t to = ((start(c) + warp * 16) * x.Hv + h) * E + group * 64;
            if (KIND == SIDED && !a.out_bf16)
                put_columns(O, 0, (float *)a.out + to, pitch, len);
            else
                put_columns(O, 0, state + (uint32_t)(warp * 2048), (bf16 *)a.out + to, pitch, len);
        }
        wgmma_wait<0>();
        wgmma_hold(S);
    }
    if (dotted && chunks) {
        __syncthreads();
        put_inter(chunks - 1);
    }
    if (a.s_end && at.ends) {
        float *to = a.s_end + (at.n * x.Hv + h) * ((int64_t)a.K * a.V);
        each_number(S, [&](float &s, int e, int d) { to[d * sd + (group * 64 + e) * se] = s; });
    }
    if constexpr (KIND == DOTS && D == E)
        if (a.joined.products) {
            float *parts = (float *)(memory + (base - shared_address(memory)) + place::state);
            __syncthreads();
            parts[2 * tid] = products[0], parts[2 * tid + 1] = products[1];
            __syncthreads();
            float sum = 0;
            for (int i = tid; i < 2 * N; i += D) sum += parts[i];
            if (tid < D) a.joined.products[(at.slot * x.Hv + h) * D + tid] = sum;
        }
}

/* ---- dk and dv ------------------------------------------------------------------------------------------------------------------------ */

struct hopper_back {
    decay_rows q, k, v, d_o;
    const float *slots, *s; /* dS behind segments [slots,Hv,K,V]; NULL: s [N,Hv,K,V]; NULL: zeros */
    float *s_end;           /* dS in front of sequences, or NULL */
    void *dk;               /* [T,Hv,K] */
    bf16 *dv;               /* [T,Hv,V]; each NULL: not wanted */
    int dk_bf16;
    decay_joined joined;
    float *writes, *intra, *rows; /* [Hv,T] or NULL: k . dk through dS; of the pairs intra, and sums of M's rows with the diagonal */
};

/* X: dS in bf16, [K] rows of V columns. A group of warps has 64 of its rows, or, with 64 of them, half of the columns; with 64 x 64 one has all. */
template <int K, int V> struct back_state {
    static constexpr int columns = K == 128 || V == 64 ? V : V / 2;
    static constexpr int panel = K * 128;
};
template <int K, int V, bool JOINED> struct back_tiles {
    static constexpr int q = 0, k = K / 64 * PANEL, v = 2 * k, d_o = v + V / 64 * PANEL, stage = d_o + V / 64 * PANEL;
    static constexpr int X = 2 * stage, B = X + V / 64 * back_state<K, V>::panel, out = B + 8 * GROUP * 16, first = out + 8 * 2048,
                         end = first + (JOINED ? K / 64 * PANEL : 0), bytes = end + 1024; /* first: the first pass's dk */
};

/* Of one chunk and of the one before, whose sums are put together behind the next barrier. */
struct back_sums {
    float reader[2][4][C], writer[2][C], diagonal[2][C], dots[2][C];
};

/* One warp: intra_i = sum over rows i .. of the chunk of (row less column of M), M_ji = s D_ji (q_j . k_i)(do_j . v_i) below the diagonal. */
__device__ __forceinline__ void put_pairs_of(const back_sums &sums, int which, float *intra, float *rows, int len)
{
    const int lane = (int)threadIdx.x % 32;
    float d[2], row[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = 2 * lane + e;
        row[e] = (sums.reader[which][0][i] + sums.reader[which][1][i]) + (sums.reader[which][2][i] + sums.reader[which][3][i]);
        d[e] = row[e] - sums.writer[which][i];
    }
    float after = d[0] + d[1];
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const float right = __shfl_down_sync(~0u, after, o);
        if (lane + o < 32) after += right;
    }
    const float right = __shfl_down_sync(~0u, after, 1);
    if (2 * lane < len) intra[2 * lane] = after;
    if (2 * lane + 1 < len) intra[2 * lane + 1] = (lane < 31 ? right : 0.0f) + d[1];
    if (!rows) return;
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (2 * lane + e < len) rows[2 * lane + e] = row[e] + sums.diagonal[which][2 * lane + e];
}

/* Barriers of both groups: the state's copy is whole; B is there; dv is, in its place, for the sum with dk. And one of each warp alone. */
enum { STATE_THERE = 1, B_THERE, DV_THERE, ALONE };

/* A group tells the other one, and does not wait. Its warps pass barriers of their own meanwhile: racecheck counts how many a warp has passed, and
 * reports races across __syncthreads once groups have passed different numbers of them. */
__device__ __forceinline__ void tell(int barrier)
{
    named_arrive(barrier, 2 * GROUP);
    named_sync(ALONE + (int)threadIdx.x / 32, 32);
}

/* dk of both passes: O, that of this one, becomes first - O, of which `dot` is that with k, less the other group's dv, in bf16 at the thread's own
 * places of `B`. */
template <int W> __device__ __forceinline__ void join(float (&O)[W / 2], float (&dot)[2], uint32_t first, uint32_t k, const float4 *B)
{
    const int tid = anew((int)threadIdx.x), r = tid % 32 >> 2, c = tid & 3;
    const uint32_t from = anew(first + (uint32_t)((tid / 32 % 4 * 16 + r) * 128 + (r << 4) + 4 * c));
#pragma unroll
    for (int n = 0; n < W / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t y;
            const uint32_t at = (from ^ (uint32_t)(n % 8 << 4)) + n / 8 * PANEL + half * 1024;
            asm volatile("ld.shared.b32 %0, [%1];" : "=r"(y) : "r"(at) : "memory");
            O[4 * n + 2 * half] = low_bf16(y) - O[4 * n + 2 * half], O[4 * n + 2 * half + 1] = high_bf16(y) - O[4 * n + 2 * half + 1];
        }
    row_dots<W>(dot, O, k);
#pragma unroll
    for (int n = 0; n < W / 16; n++) {
        const float4 b = B[n * GROUP + tid % GROUP];
        const float y[4] = { b.x, b.y, b.z, b.w };
#pragma unroll
        for (int i = 0; i < 4; i++) {
            O[8 * n + 2 * i] -= low_bf16(__float_as_uint(y[i])), O[8 * n + 2 * i + 1] -= high_bf16(__float_as_uint(y[i]));
        }
    }
}
template <int W> __device__ __forceinline__ void leave_dv(const float (&O)[W / 2], float4 *B)
{
#pragma unroll
    for (int n = 0; n < W / 16; n++) {
        uint32_t y[4];
        wgmma_operand(y, O, n);
        B[n * GROUP + (int)threadIdx.x % GROUP] =
            make_float4(__uint_as_float(y[0]), __uint_as_float(y[1]), __uint_as_float(y[2]), __uint_as_float(y[3]));
    }
}

/* The pairs of a chunk: rows i that write, columns j that read, j >= i; P becomes s D_ji times what it was, and the left side of the next product.
 * Of M, where B has the other product: its sums. */
template <bool GATED>
__device__ __forceinline__ void weigh_pairs(uint32_t (&pairs)[4][4], const float (&P)[32], const tile_factors &f, float scale, const float4 *B,
                                            back_sums *sums, int which)
{
    const int tid = anew((int)threadIdx.x), lane = tid % 32, warp = tid / 32 % 4, r = lane >> 2, c2 = 2 * (lane & 3), row = warp * 16 + r;
    const float hi[2] = { GATED ? f.writer_hi[row] : 0, GATED ? f.writer_hi[row + 8] : 0 };
    const float lo[2] = { GATED ? f.writer_lo[row] : 0, GATED ? f.writer_lo[row + 8] : 0 };
    float in_row[2] = {};
#pragma unroll
    for (int half_of = 0; half_of < 2; half_of++) {
        float in_column[8] = {};
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const int n = 4 * half_of + m, j = n * 8 + c2;
            if (n < 2 * warp) { /* in front of all of the warp's rows */
                pairs[n / 2][n % 2 * 2] = pairs[n / 2][n % 2 * 2 + 1] = 0;
                continue;
            }
            const float2 reader_hi = GATED ? *(const float2 *)(f.hi + j) : make_float2(0, 0);
            const float2 reader_lo = GATED ? *(const float2 *)(f.lo + j) : make_float2(0, 0);
            const float4 b4 = B ? B[n * GROUP + tid % GROUP] : make_float4(0, 0, 0, 0);
            const float b[4] = { b4.x, b4.y, b4.z, b4.w };
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = row + half * 8;
                float y[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    y[e] = scale * P[4 * n + 2 * half + e];
                    if (GATED) y[e] *= tile_between(e ? reader_hi.y : reader_hi.x, e ? reader_lo.y : reader_lo.x, hi[half], lo[half]);
                    if (j + e < i) y[e] = 0.0f;
                    if (!B) continue;
                    const float M = y[e] * b[2 * half + e];
                    if (j + e == i) sums->diagonal[which][i] = M;
                    const float below = j + e == i ? 0.0f : M;
                    in_row[half] += below;
                    in_column[2 * m + e] += below;
                }
                pairs[n / 2][n % 2 * 2 + half] = pack_bf16(y[0], y[1]);
            }
        }
        if (!B) continue;
        /* eight sums over eight lanes, in each step half of them by either of two: lane r ends with the r-th */
#pragma unroll
        for (int o = 4; o; o >>= 1)
#pragma unroll
            for (int i = 0; i < o; i++) {
                const bool upper = r & o;
                const float mine = upper ? in_column[i + o] : in_column[i], other = upper ? in_column[i] : in_column[i + o];
                in_column[i] = mine + __shfl_xor_sync(~0u, other, 4 * o);
            }
        sums->reader[which][warp][half_of * 32 + r / 2 * 8 + c2 + r % 2] = in_column[0];
    }
    if (!B) return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        in_row[half] += __shfl_xor_sync(~0u, in_row[half], 1);
        in_row[half] += __shfl_xor_sync(~0u, in_row[half], 2);
        if (c2 == 0) sums->writer[which][row + half * 8] = in_row[half];
    }
}

/* A group's chunks, from the last one on. KEYS: dk, by v, do and q on the left, in pairs and on the right; else dv, by k, q and do.
 * Long: one chain of products, whose sums stay in registers. */
template <int K, int V, bool GATED, bool JOINED, bool KEYS>
__device__ __forceinline__ void run_back(const decay_cut &x, const hopper_back &a, const decay_place &at, int h, unsigned char *memory,
                                         tile_factors *factors, back_sums *sums)
{
    using place = back_tiles<K, V, JOINED>;
    using shape = back_state<K, V>;
    constexpr int W = KEYS ? K : V, D = KEYS ? V : K, COLUMNS = shape::columns, N = 2 * GROUP;
    constexpr int GROUP_ROW = K == 128 && KEYS ? 64 : 0, GROUP_COLUMN = K == 64 && V == 128 && KEYS ? 64 : 0;
    constexpr bool HAS = !(KEYS && K == 64 && V == 64);
    const int tid = (int)threadIdx.x, warp = tid / 32 % 4, lane = tid % 32, c2 = 2 * (lane & 3), row = warp * 16 + (lane >> 2);
    const int chunks = (int)((at.last - at.first + C - 1) / C);
    const uint32_t base = (shared_address(memory) + 1023) & ~1023u, X = base + place::X;
    float4 *B = (float4 *)(memory + (base - shared_address(memory)) + place::B);
    const uint32_t staging = base + place::out + (uint32_t)(tid / 32 * 2048);
    const panel_rows<K, N> q_rows(a.q, x, at.first, h), k_rows(a.k, x, at.first, h);
    const panel_rows<V, N> v_rows(a.v, x, at.first, h), d_o_rows(a.d_o, x, at.first, h);
    const panel_rows<K, N> first_rows(JOINED ? a.joined.dk + (at.first * x.Hv + h) * K : NULL, x.Hv * K);
    auto start = [&](int c) { return at.first + (int64_t)(chunks - 1 - c) * C; };
    auto left_of = [&](int c) { return (int)(at.last - start(c) < C ? at.last - start(c) : C); };
    auto fetch = [&](int c) {
        const uint32_t stage = base + (uint32_t)((c & 1) * place::stage);
        if (c < chunks) {
            q_rows.load(stage + place::q, start(c) - at.first, at.last - start(c));
            k_rows.load(stage + place::k, start(c) - at.first, at.last - start(c));
            v_rows.load(stage + place::v, start(c) - at.first, at.last - start(c));
            d_o_rows.load(stage + place::d_o, start(c) - at.first, at.last - start(c));
        }
        cp_async_commit();
    };
    auto put_sums = [&](int c) { /* of chunk c, behind a barrier */
        const int64_t to = (int64_t)h * x.T + start(c);
        if (KEYS && a.intra && warp == 3) put_pairs_of(*sums, c & 1, a.intra + to, a.rows ? a.rows + to : NULL, left_of(c));
        if (!KEYS && a.writes && tid < left_of(c)) a.writes[to + tid] = sums->dots[c & 1][tid];
    };
    fetch(0);
    factors_ahead ahead;
    if (GATED) ahead.begin(x, factors, start, chunks, at.last, h, true);
    await_last();
    let_next();
    float S[COLUMNS / 2];
    {
        const float *from = a.slots ? a.slots + (at.slot * x.Hv + h) * (K * V) : a.s ? a.s + (at.n * x.Hv + h) * (K * V) : NULL;
        each_number(S, [&](float &s, int k, int v) { s = HAS && from ? from[(GROUP_ROW + k) * V + GROUP_COLUMN + v] : 0.0f; });
    }
#pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        cp_async_wait<0>();
        fence_async();
        __syncthreads();
        float strength[2] = { 1, 1 };
        if (JOINED) {
            first_rows.load(base + place::first, start(c) - at.first, at.last - start(c));
            cp_async_commit();
            if (KEYS)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (row + half * 8 < left_of(c)) strength[half] = x.strengths[(start(c) + row + half * 8) * x.Hv + h];
        }
        fetch(c + 1);
        const uint32_t stage = base + (uint32_t)((c & 1) * place::stage), own = stage + (KEYS ? place::v : place::k),
                       other = stage + (KEYS ? place::d_o : place::q), mixed = stage + (KEYS ? place::q : place::d_o);
        const tile_factors &f = factors[GATED ? c % FACTORS : 0];
        if (c) put_sums(c - 1);
        if (GATED) ahead.more(x, factors, start, c, chunks, at.last, h, true);

        float P[32], O[W / 2];
        if (HAS) leave_state(S, lane_rows(X + GROUP_COLUMN / 64 * shape::panel, GROUP_ROW + warp * 16), shape::panel);
        fence_async();
        wgmma_fence();
        times_rows<D>(P, own, other);
        wgmma_commit();
        named_sync(STATE_THERE, N);
        wgmma_fence();
        if (KEYS)
            times_rows<D>(O, own, X, shape::panel);
        else
#pragma unroll
            for (int ks = 0; ks < D / 16; ks++)
                wgmma<0, 1>(O, wgmma_k_major(own + ks / 4 * PANEL + ks % 4 * 32), wgmma_mn_major(X + ks * 2048, shape::panel), ks > 0);
        wgmma_commit();

        wgmma_wait<1>();
        wgmma_hold(P);
        uint32_t pairs[4][4];
        if (KEYS && a.intra) {
#pragma unroll
            for (int n = 0; n < 8; n++)
                if (n >= 2 * warp) B[n * GROUP + tid % GROUP] = make_float4(P[4 * n], P[4 * n + 1], P[4 * n + 2], P[4 * n + 3]);
            tell(B_THERE);
        }
        if (!KEYS && a.intra) named_sync(B_THERE, N);
        weigh_pairs<GATED>(pairs, P, f, x.scale, !KEYS && a.intra ? B : NULL, sums, c & 1);
        wgmma_wait<0>();
        wgmma_hold(O);
        if (GATED) {
            const float up = f.read[row], down = f.read[row + 8];
#pragma unroll
            for (int i = 0; i < W / 2; i++) O[i] *= i & 2 ? down : up;
        }
        if (KEYS && a.writes) {
            float dot[2];
            row_dots<W>(dot, O, stage + place::k);
            if (c2 == 0) sums->dots[c & 1][row] = dot[0], sums->dots[c & 1][row + 8] = dot[1];
        }
        wgmma_fence();
#pragma unroll
        for (int ks = 0; ks < C / 16; ks++) wgmma<1>(O, pairs[ks], wgmma_mn_major(mixed + ks * 2048, PANEL), true);
        wgmma_commit();
        if (HAS)
            next_state<GATED, true>(S, lane_columns(stage + place::q + GROUP_ROW / 64 * PANEL, warp),
                                    stage + place::d_o + GROUP_COLUMN / 64 * PANEL, f.write, f.total, x.scale);
        else
            wgmma_commit();
        wgmma_wait<1>();
        wgmma_hold(O);
        if constexpr (JOINED) {
            cp_async_wait<1>(); /* the first pass's dk */
            if (KEYS) {
                named_sync(DV_THERE, N);
                float dot[2];
                join<W>(O, dot, base + place::first, stage + place::k, B);
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (c2 == 0 && a.joined.dbeta && row + half * 8 < left_of(c))
                        a.joined.dbeta[(start(c) + row + half * 8) * x.Hv + h] = dot[half] / decay_strength(strength[half]);
            } else {
                leave_dv<W>(O, B);
                tell(DV_THERE);
            }
        }
        const int pitch = anew(x.Hv * W), len = left_of(c) - warp * 16;
        const int64_t to = ((start(c) + warp * 16) * x.Hv + h) * W;
#pragma unroll
        for (int first = 0; first < W; first += 64) {
            if (KEYS && a.dk && !a.dk_bf16) put_columns(O, first / 2, (float *)a.dk + to + first, pitch, len);
            if (KEYS && a.dk && a.dk_bf16) put_columns(O, first / 2, staging, (bf16 *)a.dk + to + first, pitch, len);
            if (!KEYS && a.dv) put_columns(O, first / 2, staging, a.dv + to + first, pitch, len);
        }
        wgmma_wait<0>();
        wgmma_hold(S);
    }
    __syncthreads();
    if (chunks) put_sums(chunks - 1);
    if (HAS && a.s_end && at.begins) {
        float *to = a.s_end + (at.n * x.Hv + h) * ((int64_t)K * V);
        each_number(S, [&](float &s, int k, int v) { to[(GROUP_ROW + k) * V + GROUP_COLUMN + v] = s; });
    }
}

template <int K, int V, bool GATED, bool JOINED>
__global__ __launch_bounds__(2 * GROUP, 1) void decay_hopper_back(const __grid_constant__ decay_cut x, const __grid_constant__ hopper_back a)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ tile_factors factors[GATED ? FACTORS : 1];
    __shared__ back_sums sums;
    decay_place at;
    const int h = (int)(blockIdx.x % x.Hv);
    if (!a.slots) await_last();
    if (!decay_find(x, blockIdx.x / x.Hv / x.P, (int)(blockIdx.x / x.Hv % x.P), &at)) return await_last();
    if (threadIdx.x < GROUP)
        run_back<K, V, GATED, JOINED, false>(x, a, at, h, memory, factors, &sums);
    else
        run_back<K, V, GATED, JOINED, true>(x, a, at, h, memory, factors, &sums);
}

/* ---- launches ----------------------------------------------------------------------------------------------------------------------- */

template <typename... P, typename... A>
static void put(const lnt_cuda *d, void (*kernel)(P...), int64_t grid, int threads, int shared, const A &...args)
{
    if (grid > 0) lnt_launch_with(d, kernel, dim3((unsigned)grid), threads, (size_t)shared, 1, args...);
}

/* 1x8192, 32 heads of 128 x 128: 384 CTAs that have something to do, three a multiprocessor, of 64 columns of keys in one direction and of 128 in
 * both. */
template <int D, bool GATED, int STAGES> static void put_states(const decay_cut &x, const states_sides &a, const lnt_cuda *d)
{
    put(d, decay_hopper_states<D, GATED, STAGES>, decay_pieces(x) * (a.K / D) * (a.V / 64) * a.n, GROUP, STAGES * ends_stage<D> + 1024, x, a);
}
static void put_states(const decay_cut &x, const states_sides &a, const lnt_cuda *d)
{
    const bool gated = decay_gated(x);
    if (a.n == 1)
        gated ? put_states<64, true, 4>(x, a, d) : put_states<64, false, 4>(x, a, d);
    else if (a.K == 64)
        gated ? put_states<64, true, 3>(x, a, d) : put_states<64, false, 3>(x, a, d);
    else
        gated ? put_states<128, true, 2>(x, a, d) : put_states<128, false, 2>(x, a, d);
}
static unsigned same_sides(const decay_states *side, int n)
{
    unsigned same = 0;
    for (int i = 0; i < n; i++) same |= (unsigned)same_rows(side[i].key, side[i].value) << i;
    return same;
}
static void hopper_states(const decay_cut &x, const decay_states &a, const lnt_cuda *d)
{
    put_states(x, { { a }, 1, a.K, a.W, same_sides(&a, 1) }, d);
}
void lnt_decay_hopper_states(const decay_cut &x, const decay_states *two, const lnt_cuda *d)
{
    put_states(x, { { two[0], two[1] }, 2, two->K, two->W, same_sides(two, 2) }, d);
}
/* 512 CTAs of 1x8192, 32 heads go four a multiprocessor. */
bool lnt_decay_hopper_starts(const decay_cut &x, const decay_states &a, const chunk_starts &b, const lnt_cuda *d)
{
    if (d->base.capability < 90 || a.reverse || !same_rows(a.key, a.value)) return false;
    if (a.K == 128)
        put(d, decay_hopper_starts<128>, decay_pieces(x) * 2, GROUP, starts_places<128>::bytes, x, a, b);
    else
        put(d, decay_hopper_starts<64>, decay_pieces(x), GROUP, starts_places<64>::bytes, x, a, b);
    return true;
}

template <int D, int E, bool GATED, fore_kind KIND> static void put_fore(const decay_cut &x, const decay_pass &a, const lnt_cuda *d)
{
    put(d, decay_hopper_fore<D, E, GATED, KIND>, decay_pieces(x), E * 2, fore_places<D, E, KIND>::bytes, x, a);
}
template <int D, int E, bool GATED> static void put_fore(const decay_cut &x, const decay_pass &a, const lnt_cuda *d)
{
    if (a.transposed)
        !a.out ? put_fore<D, E, true, DOTS>(x, a, d) : put_fore<D, E, GATED, SIDED>(x, a, d);
    else if constexpr (E == 128)
        lnt_decay_outputs(x, a, d);
    else
        a.n_starts ? put_fore<D, E, true, DIVIDED>(x, a, d) : put_fore<D, E, GATED, PLAIN>(x, a, d);
}
template <int K, int V, bool GATED> static void put_back(const decay_cut &x, const hopper_back &a, const lnt_cuda *d)
{
    if constexpr (K == V && GATED)
        if (a.joined.dk) return put(d, decay_hopper_back<K, V, GATED, true>, decay_pieces(x), 2 * GROUP, back_tiles<K, V, true>::bytes, x, a);
    put(d, decay_hopper_back<K, V, GATED, false>, decay_pieces(x), 2 * GROUP, back_tiles<K, V, false>::bytes, x, a);
}

static void hopper_read(const decay_cut &x, const decay_pass *passes, int n, const lnt_cuda *d)
{
    const decay_pass *dk = NULL, *dv = NULL;
    for (int i = 0; i < n; i++) {
        const decay_pass &a = passes[i];
        if (a.reverse) {
            *(a.transposed ? &dk : &dv) = &a;
            continue;
        }
#define F(D, E, G) put_fore<D, E, G>(x, a, d)
        DECAY_BY_SHAPE(a.D, a.E, decay_gated(x), F);
#undef F
    }
    if (!dk) return;
    const hopper_back back = { dk->value, dk->dots, dk->query, dk->key, dk->slots, dk->s, dk->s_end, dk->out, dv ? (bf16 *)dv->out : NULL,
                               dk->out_bf16, dk->joined, dk->inter, dk->intra, dk->rows };
#define F(K, V, G) put_back<K, V, G>(x, back, d)
    DECAY_BY_SHAPE(dk->K, dk->V, decay_gated(x), F);
#undef F
}

decay_kernels lnt_decay_hopper(void)
{
    decay_kernels k = lnt_decay_tiles;
    k.states = hopper_states, k.both_states = lnt_decay_hopper_states, k.read = hopper_read, k.both = true;
    return k;
}
static size_t workspace(const void *args, bool backward, int threads)
{
    return lnt_decay_padded_bytes((const lnt_recur_args *)args, backward, lnt_decay_hopper());
}
static void forward(const void *args, const lnt_device *d) { lnt_decay_padded_forward((const lnt_recur_args *)args, d, lnt_decay_hopper()); }
static void backward(const void *args, const lnt_device *d) { lnt_decay_padded_backward((const lnt_recur_args *)args, d, lnt_decay_hopper()); }

LNT_CUDA_FORM(lnt_decay_chunk_sm90, "chunk-sm90", CHUNK, 90, lnt_decay_tiles_declines, workspace, forward, backward)

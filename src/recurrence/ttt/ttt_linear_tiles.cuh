/* TTT-linear's whole mini-batches of 16 tokens on tensor cores, with the weights (going back, their gradients) in registers: ttt_tiles.cuh, and in
 * segments: ttt_segments.cuh. The walk over a head's mini-batches (ttt_head.cuh) hands over runs of them; what is open or ragged stays with it. A
 * chain goes over the keys alone: ahead they are what the weights learn from, and of what comes back through the queries it takes the sum that
 * segments have put by. */
#ifndef LNT_TTT_LINEAR_TILES_CUH
#define LNT_TTT_LINEAR_TILES_CUH

#include "recurrence/ttt/ttt_segments.cuh"

/* Three places for rows: those in use, the next ones, and, from a mini-batch's barrier on, those that come then. */
template <int D> struct alignas(16) ttt_ahead_room {
    bf16 rows[3][2 * ttt_place<D>::ROWS]; /* k v */
    float eta[3][TILE_TOKENS * TILE_ETA], rate[3][TILE_TOKENS], sums[2][tile_sums(5)];
    float mean[D + 1]; /* of the columns of the weights' rows, of b */
};
template <int D> struct alignas(16) ttt_query_room {
    bf16 rows[3][3 * ttt_place<D>::ROWS], out[2][ttt_place<D>::ROWS]; /* k q, going back dout */
    float eta[3][TILE_TOKENS * TILE_ETA], rate[3][TILE_TOKENS], position[TILE_TOKENS], sums[2][tile_sums(3)];
};
/* Of a mini-batch: u and hat as slices, the loss's means; going back besides dz of the queries, what du gets from them, later dg of the norm in its
 * place, dz, the upper halves of the weights as operands, and of tokens R.u. */
template <int D> struct ttt_record {
    static constexpr int U = 0, HAT = U + 16 * D, MEANS = HAT + 16 * D, DZQ = MEANS + LOSS_MEANS * TILE_TOKENS, PRE = DZQ + 16 * D, DG = PRE;
    static constexpr int CHAIN = PRE + 16 * D; /* so many going back begins with */
    static constexpr int DZ = CHAIN, RU = DZ + 16 * D, W = RU + TILE_TOKENS, AHEAD = HAT, FLOATS = W + D * D / 2;
    static constexpr int STATE = D * D + 4 * D, SUMS = 2 * D + TILE_TOKENS;
};
template <int D> struct alignas(16) ttt_chain_room {
    float record[3][ttt_record<D>::CHAIN];
    bf16 rows[3][2 * ttt_place<D>::ROWS]; /* k q */
    float eta[3][TILE_TOKENS * TILE_ETA], rate[3][TILE_TOKENS], sums[2][tile_sums(6)];
};
template <int D> struct alignas(16) ttt_back_room {
    bf16 rows[2][4 * ttt_place<D>::ROWS]; /* k q v dout */
    bf16 W[D * ttt_place<D>::LD], dW[D * ttt_place<D>::LD], dzq[ttt_place<D>::ROWS], dz[ttt_place<D>::ROWS], u[ttt_place<D>::ROWS];
    bf16 dW_low[D * ttt_place<D>::LD], u_low[ttt_place<D>::ROWS], dzq_low[ttt_place<D>::ROWS];
    float de[TILE_TOKENS * (D + 4)];
    float eta[2][TILE_TOKENS * TILE_ETA], rate[2][TILE_TOKENS], position[TILE_TOKENS];
};

/* Step sizes of a mini-batch: F of ttt_work from what is in shared memory. */
struct ttt_tile_steps {
    const float *eta, *rate;
    float position[2], last; /* of a thread's rows r and r + 8; of the last row */
    bool given;
    __device__ __forceinline__ float own(int i, int j) const { return given ? eta[i * TILE_ETA + j] : 1.0f; }
    /* E without rate, i one of the thread's rows: the half-th. */
    __device__ __forceinline__ float of(int half, int i, int j) const { return j > i ? 0.0f : position[half] * own(i, j); }
    __device__ __forceinline__ float of_last(int j) const { return last * own(TILE_TOKENS - 1, j); }
};
template <typename HEAD> __device__ __forceinline__ float fetch_steps(const HEAD &x, float *eta, int64_t t)
{
    const int id = (int)threadIdx.x, row = id / 4, column = id % 4 * 4;
    if (x.a.eta && id < 64)
        cp_async_16(shared_address(eta + row * TILE_ETA + column), (const float *)x.a.eta + ((t + row) * x.a.H + x.h) * TILE_TOKENS + column);
    return x.a.rate && id < TILE_TOKENS ? ((const float *)x.a.rate)[(t + id) * x.a.H + x.h] : 1.0f;
}

/* Factors of the rows' step sizes, for a segment. */
__device__ __forceinline__ void tile_positions(const lnt_ttt_args &a, float *position)
{
    const int i = (int)threadIdx.x;
    if (i >= TILE_TOKENS) return;
    const float p = a.token_idx ? 1.0f / (float)(i + 1) + ((const float *)a.token_idx)[i] : 1.0f;
    position[i] = p < 0 ? 0.0f : p; /* NaN stays */
}

/* A run's mini-batches from token t on, keys alone. BACK: what going back wants of them too. A norm does not see the mean of its columns, and u has
 * none, so that those of W and b stay what they are: they are taken off first and given back last, and z has none between (nor have gradients of z,
 * for which segments read W). Long: what a mini-batch makes lives in registers from one step of it to the next. */
template <int D, bool BACK, typename HEAD> __device__ __noinline__ void ttt_chain_ahead(HEAD &x, int64_t t, int64_t count)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[]; /* not by a pointer: loads and stores know that they are of shared memory */
    ttt_ahead_room<D> &room = *(ttt_ahead_room<D> *)memory;
    const ttt_place<D> y;
    constexpr int ROWS = ttt_place<D>::ROWS;
    const ttt_segments &s = *x.segments;
    const int64_t slot = ttt_slot(x.n, t);
    float *record = s.record_of(x.n, t, g.h), *state = s.state_of(false, slot, g.h), W[D / 8][4], b[2];
    const int64_t record_step = s.H * s.record, state_step = s.H * s.state;
    unsigned *const flag = s.flag(false, slot, g.h);
    const int flag_step = s.H;
    ttt_tile_norm norm;
    const float last = x.w.position[TILE_TOKENS - 1];
    for (int row = y.id; row <= D; row += TTT_THREADS) {
        const float *from = row < D ? x.w.W[0].row(row) : x.w.b[0];
        float sum = 0;
#pragma unroll 8
        for (int c = 0; c < D; c++) sum += from[c];
        room.mean[row] = sum / D;
    }
    take_state<D>(y, W, x.w.W[0]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++)
        b[i] = x.w.b[0][y.first + 8 * i] - room.mean[D], norm.w[i] = x.norm.w[y.first + 8 * i], norm.b[i] = x.norm.b[y.first + 8 * i];
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) W[j][q] -= room.mean[8 * j + 2 * y.c + q % 2];
    fetch_rows<D, 2>(room.rows[0], { g.a.k, g.a.v }, t, g.a.H, g.h);
    float rate = fetch_steps(g, room.eta[0], t);
    cp_async_commit();
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    cp_async_wait<0>();
    __syncthreads();
    if (count > 1) {
        fetch_rows<D, 2>(room.rows[1], { g.a.k, g.a.v }, t + TILE_TOKENS, g.a.H, g.h);
        rate = fetch_steps(g, room.eta[1], t + TILE_TOKENS);
        cp_async_commit();
    }
    for (int64_t i = 0, now = 0; i < count; i++, t += TILE_TOKENS, record += record_step) {
        const int64_t next = now == 2 ? 0 : now + 1, then = next == 2 ? 0 : next + 1;
        const bf16 *const K = room.rows[now], *const V = K + ROWS;
        const float *const eta = room.eta[now] + (TILE_TOKENS - 1) * TILE_ETA;
        if (i % SEGMENT == 0) {
            keep_state<D>(y, state, W);
            if (y.mine) ((float2 *)(state + D * D))[y.id] = make_float2(b[0], b[1]);
            state += state_step;
        }
        float z[2][4], bt[2][4], u[2][4], means[LOSS_MEANS][4];
        TTT_SLICE(n, q) z[n][q] = b[q / 2];
        add_read<D>(y, z, W, K);
        TTT_SLICE(n, q)
        {
            const int at = y.at(n, q);
            bt[n][q] = norm.b[q / 2] - (to_float(V[at]) - to_float(K[at]));
        }
        cp_async_wait<0>(); /* the next rows: behind the barrier they are there for everybody */
        if (i + 1 < count && y.id < TILE_TOKENS) room.rate[next][y.id] = rate;
        tile_loss<D>(y, norm, z, bt, room.sums[i & 1], means, u);
        if (y.id == 0 && i && i % SEGMENT == 0) ttt_publish(flag + (i / SEGMENT - 1) * flag_step);
        if (i + 2 < count) {
            fetch_rows<D, 2>(room.rows[then], { g.a.k, g.a.v }, t + 2 * TILE_TOKENS, g.a.H, g.h);
            rate = fetch_steps(g, room.eta[then], t + 2 * TILE_TOKENS);
            cp_async_commit();
        }
        float down[2] = {}, step[2][4], by[4];
#pragma unroll
        for (int e = 0; e < 4; e++) by[e] = -last * (g.a.eta ? eta[y.token(e)] : 1.0f) * room.rate[now][y.token(e)];
        TTT_SLICE(n, q) down[q / 2] += step[n][q] = u[n][q] * by[2 * n + q % 2];
        add_outer<D>(y, W, K, halves_of(step[0], step[1]));
        if (g.a.bias) b[0] += sum_tokens(down[0]), b[1] += sum_tokens(down[1]);
        record_slice<D>(y, record + ttt_record<D>::U, u);
        if (BACK) {
            record_slice<D>(y, record + ttt_record<D>::HAT, z);
            record_means<D>(y, record + ttt_record<D>::MEANS, means);
        }
        now = next;
    }
    __syncthreads();
    if (y.id == 0) ttt_publish(flag + (count - 1) / SEGMENT * flag_step);
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) W[j][q] += room.mean[8 * j + 2 * y.c + q % 2];
    give_state<D>(y, x.w.W[0], W);
    if (g.a.bias && y.mine && y.c == 0) x.w.b[0][y.first] = b[0] + room.mean[D], x.w.b[0][y.first + 8] = b[1] + room.mean[D];
    __syncthreads();
}

/* A segment's queries: its outputs or, BACK, what comes back of them. Long: as the chain. */
template <int D, bool BACK> __device__ __noinline__ void ttt_tiles_queries(const ttt_segments &s, const ttt_segment &x)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[];
    ttt_query_room<D> &room = *(ttt_query_room<D> *)memory;
    const ttt_place<D> y;
    constexpr int ROWS = ttt_place<D>::ROWS;
    const int count = x.count;
    int64_t t = x.t;
    float *record = s.record_of(x.n, t, g.h), W[D / 8][4], b[2], dnw[2] = {}, dnb[2] = {};
    const float *const state = s.state_of(false, x.slot, g.h);
    const int64_t record_step = s.H * s.record;
    ttt_tile_norm norm;
    tile_positions(x.a, room.position);
    kept_state<D>(y, W, state);
    const float2 offset = ((const float2 *)(state + D * D))[y.id % (2 * D)];
    b[0] = offset.x, b[1] = offset.y;
#pragma unroll
    for (int i = 0; i < 2; i++)
        norm.w[i] = weights_of(x.a.ln_w, g.h, D)[y.first + 8 * i], norm.b[i] = weights_of(x.a.ln_b, g.h, D)[y.first + 8 * i];
    const auto fetch = [&](int to, int64_t from) {
        if constexpr (BACK)
            fetch_rows<D, 3>(room.rows[to], { g.a.k, g.a.q, g.a.dout }, from, g.a.H, g.h);
        else
            fetch_rows<D, 2>(room.rows[to], { g.a.k, g.a.q }, from, g.a.H, g.h);
        const float rate = fetch_steps(g, room.eta[to], from);
        cp_async_commit();
        return rate;
    };
    float rate = fetch(0, t);
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    cp_async_wait<0>();
    __syncthreads();
    if (count > 1) rate = fetch(1, t + TILE_TOKENS);
    ttt_tile_steps steps = { NULL, NULL, { room.position[y.r], room.position[y.r + 8] }, room.position[TILE_TOKENS - 1], g.a.eta != NULL };
    for (int i = 0, now = 0; i < count; i++, t += TILE_TOKENS, record += record_step) {
        const int next = now == 2 ? 0 : now + 1, then = next == 2 ? 0 : next + 1;
        bf16 *const K = room.rows[now], *const Q = K + ROWS, *const dO = Q + ROWS;
        const uint32_t keys = shared_address(K) + y.plain(), queries = shared_address(Q) + y.plain();
        steps.eta = room.eta[now], steps.rate = room.rate[now];
        float u[2][4], zq[2][4], zql[2][4] = {}, S[2][4] = {}, St[2][4] = {}, sums[BACK ? 3 : 1][4] = {};
        recorded_slice<D>(y, u, record + ttt_record<D>::U);
        TTT_SLICE(n, q) zq[n][q] = b[q / 2];
#pragma unroll
        for (int p = 0; p < D / 16; p++) {
            uint32_t k[4], q[4], ka[4], qa[4];
            ldmatrix_x4(k, keys + p * 32);
            ldmatrix_x4(q, queries + p * 32);
            as_rows(ka, k);
            as_rows(qa, q);
            const ttt_halves w = halves_of(W[2 * p], W[2 * p + 1]);
            if (BACK) record_plane<D>(y, record + ttt_record<D>::W, p, w.high);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                mma_bf16(zq[n], w.high, q[2 * n], q[2 * n + 1]);
                mma_bf16(zql[n], w.low, q[2 * n], q[2 * n + 1]);
                mma_bf16(S[n], qa, k[2 * n], k[2 * n + 1]);
                if (BACK) mma_bf16(St[n], ka, q[2 * n], q[2 * n + 1]);
            }
        }
        TTT_SLICE(n, q)
        {
            const int row = y.r + q / 2 * 8, j = y.token(n, q);
            zq[n][q] += zql[n][q];
            S[n][q] = -(S[n][q] + g.a.bias) * steps.of(q / 2, row, j) * steps.rate[j]; /* row i, column j of -A */
            if (BACK) St[n][q] = row > j ? 0.0f : -(St[n][q] + g.a.bias) * room.position[j] * steps.own(j, row);
        }
        mma_square(zq, halves_of(u[0], u[1]), S);
        TTT_SLICE(n, q)
        {
            const int e = 2 * n + q % 2;
            sums[0][e] += zq[n][q] * zq[n][q];
            if constexpr (BACK) {
                const float d = to_float(dO[y.at(n, q)]) * norm.w[q / 2];
                sums[1][e] += d, sums[2][e] += d * zq[n][q];
            }
        }
        cp_async_wait<0>();
        if (i + 1 < count && y.id < TILE_TOKENS) room.rate[next][y.id] = rate;
        sum_columns<D>(y, sums, room.sums[i & 1]); /* its barrier: the next rows are there for everybody */
        if (!BACK && i) put_rows<D>(g.a.o, room.out[~i & 1], t - TILE_TOKENS, g.a.H, g.h);
        if (i + 2 < count) rate = fetch(then, t + 2 * TILE_TOKENS);
        float inverse[4];
#pragma unroll
        for (int e = 0; e < 4; e++) inverse[e] = rsqrtf(sums[0][e] / D + 1e-6f);
        if constexpr (BACK) {
            float dzq[2][4], pre[2][4] = {};
            TTT_SLICE(n, q)
            {
                const int e = 2 * n + q % 2;
                const float d = to_float(dO[y.at(n, q)]), hat = zq[n][q] * inverse[e];
                dnw[q / 2] += d * hat, dnb[q / 2] += d;
                dzq[n][q] = (d * norm.w[q / 2] - sums[1][e] / D - sums[2][e] * inverse[e] / D * hat) * inverse[e];
            }
            record_slice<D>(y, record + ttt_record<D>::DZQ, dzq);
            mma_square(pre, halves_of(dzq[0], dzq[1]), St);
            record_slice<D>(y, record + ttt_record<D>::PRE, pre);
        } else {
            TTT_SLICE(n, q) zq[n][q] = zq[n][q] * inverse[2 * n + q % 2] * norm.w[q / 2] + norm.b[q / 2] + to_float(Q[y.at(n, q)]);
            put_slice<D>(y, room.out[i & 1], zq);
        }
        float down[2] = {};
        TTT_SLICE(n, q)
        {
            const int j = y.token(n, q);
            u[n][q] *= -steps.of_last(j) * steps.rate[j];
            down[q / 2] += u[n][q];
        }
        if (g.a.bias) b[0] += sum_tokens(down[0]), b[1] += sum_tokens(down[1]);
        add_outer<D>(y, W, K, halves_of(u[0], u[1]));
        now = next;
    }
    __syncthreads();
    if (BACK)
        put_norm_sums<D>(y, s.sums_of(false, x.slot, g.h), dnw, dnb);
    else
        put_rows<D>(g.a.o, room.out[~count & 1], t - TILE_TOKENS, g.a.H, g.h);
}

/* A run's mini-batches back from the one that begins with token t, keys alone: x.w's dW and db from behind them become those in front. Long: as the
 * one ahead. */
template <int D, typename HEAD> __device__ __noinline__ void ttt_chain_back(HEAD &x, int64_t t, int64_t count)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[];
    ttt_chain_room<D> &room = *(ttt_chain_room<D> *)memory;
    const ttt_place<D> y;
    constexpr int ROWS = ttt_place<D>::ROWS;
    using is = ttt_record<D>;
    const ttt_segments &s = *x.segments;
    const int64_t first = t - (count - 1) * TILE_TOKENS, slot = ttt_slot(x.n, first);
    float *record = s.record_of(x.n, t, g.h), *state = s.state_of(true, slot, g.h), dW[D / 8][4], db[2], square = 0;
    const int64_t record_step = s.H * s.record, state_step = s.H * s.state;
    unsigned *const flag = s.flag(true, slot, g.h);
    const int flag_step = s.H;
    ttt_tile_norm norm;
    const float last = x.w.position[TILE_TOKENS - 1];
    for (int c = 0; c < D; c++) square += x.norm.w[c] * x.norm.w[c];
    square /= D;
    take_state<D>(y, dW, x.w.dW[0]);
#pragma unroll
    for (int i = 0; i < 2; i++) db[i] = x.w.db[0][y.first + 8 * i], norm.w[i] = x.norm.w[y.first + 8 * i];
    __syncthreads();
    const auto fetch = [&](int64_t to, int64_t back) { /* so many mini-batches in front of this one */
        const float *from = record - back * record_step;
        for (int j = y.id; j < is::CHAIN / 4; j += TTT_THREADS) cp_async_16(shared_address(room.record[to] + 4 * j), from + 4 * j);
        fetch_rows<D, 2>(room.rows[to], { g.a.k, g.a.q }, t - back * TILE_TOKENS, g.a.H, g.h);
        const float rate = fetch_steps(g, room.eta[to], t - back * TILE_TOKENS);
        cp_async_commit();
        return rate;
    };
    float rate = fetch(0, 0);
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    cp_async_wait<0>();
    __syncthreads();
    if (count > 1) rate = fetch(1, 1);
    for (int64_t i = count - 1, now = 0; i >= 0; i--) { /* from the run's first mini-batch on */
        const int64_t next = now == 2 ? 0 : now + 1, then = next == 2 ? 0 : next + 1;
        const bf16 *const K = room.rows[now], *const Q = K + ROWS;
        const float *const eta = room.eta[now] + (TILE_TOKENS - 1) * TILE_ETA, *const from = room.record[now];
        if (i + 1 == count || i % SEGMENT == SEGMENT - 1) keep_state<D>(y, state + i / SEGMENT * state_step, dW);
        float R[2][4], u[2][4], hat[2][4], du[2][4], dg[2][4], sums[BACK_SUMS + 1][4] = {}, means[LOSS_MEANS][4];
        TTT_SLICE(n, q) R[n][q] = db[q / 2];
        add_read<D>(y, R, dW, K);
        recorded_slice<D>(y, u, from + is::U);
        recorded_slice<D>(y, hat, from + is::HAT);
        recorded_slice<D>(y, du, from + is::PRE);
#pragma unroll
        for (int k = 0; k < LOSS_MEANS; k++)
#pragma unroll
            for (int e = 0; e < 4; e++) means[k][e] = from[is::MEANS + k * TILE_TOKENS + y.token(e)];
        float by[4], rates[4];
#pragma unroll
        for (int e = 0; e < 4; e++) by[e] = last * (g.a.eta ? eta[y.token(e)] : 1.0f), rates[e] = room.rate[now][y.token(e)];
        TTT_SLICE(n, q)
        {
            const int e = 2 * n + q % 2;
            const float w2 = norm.of(q) * norm.of(q);
            du[n][q] -= by[e] * R[n][q];
            sums[BACK_U][e] += du[n][q] * u[n][q], sums[BACK_SUMS][e] += R[n][q] * u[n][q];
            const float d = du[n][q] *= rates[e];
            sums[BACK_DU][e] += d, sums[BACK_HAT][e] += hat[n][q] * d;
            sums[BACK_FIRST][e] += w2 * d, sums[BACK_SQUARE][e] += w2 * hat[n][q] * d;
        }
        cp_async_wait<0>(); /* the next rows: behind the barrier they are there for everybody */
        if (i && y.id < TILE_TOKENS) room.rate[next][y.id] = rate;
        sum_columns<D>(y, sums, room.sums[i & 1]);
        if (y.id == 0 && i + 1 < count && i % SEGMENT == SEGMENT - 1) ttt_publish(flag + (i / SEGMENT + 1) * flag_step);
        if (i > 1) rate = fetch(then, 2);
        if (y.id < 32 && y.r == 0)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                record[is::RU + y.token(e)] = sums[BACK_SUMS][e];
                if (g.a.drate) ((float *)g.a.drate)[(t + y.token(e)) * g.a.H + g.h] = sums[BACK_U][e];
            }
#pragma unroll
        for (int e = 0; e < 4; e++) sums[BACK_U][e] *= rates[e];
        tile_loss_back<D>(norm, hat, u, means, square, sums, du, dg);
        float dzq[2][4];
        recorded_slice<D>(y, dzq, from + is::DZQ);
        add_outer<D>(y, dW, Q, halves_of(dzq[0], dzq[1]));
        add_outer<D>(y, dW, K, halves_of(du[0], du[1]));
        if (g.a.bias != 0) {
            const float both[2] = { du[0][0] + du[0][1] + du[1][0] + du[1][1] + dzq[0][0] + dzq[0][1] + dzq[1][0] + dzq[1][1],
                                    du[0][2] + du[0][3] + du[1][2] + du[1][3] + dzq[0][2] + dzq[0][3] + dzq[1][2] + dzq[1][3] };
            db[0] += sum_tokens(both[0]), db[1] += sum_tokens(both[1]);
        }
        record_slice<D>(y, record + is::DG, dg);
        record_slice<D>(y, record + is::DZ, du);
        record -= record_step, t -= TILE_TOKENS, now = next;
    }
    __syncthreads();
    if (y.id == 0) ttt_publish(flag);
    give_state<D>(y, x.w.dW[0], dW);
    if (y.mine && y.c == 0) x.w.db[0][y.first] = db[0], x.w.db[0][y.first + 8] = db[1];
    __syncthreads();
}

/* What the rows of a mini-batch get from what lies in shared memory: a warp 16 columns of the gradients of q, k and v, the first one those of the
 * step sizes. S = Q K^T + bias and F [i][j], Ft [j][i] as tiles; Ru: of tokens, R.u. */
template <int D, typename HEAD>
__device__ __forceinline__ void ttt_tiles_rows_back(const HEAD &x, const ttt_place<D> &y, ttt_back_room<D> &room, int which, int64_t t,
                                                    const ttt_tile_steps &steps, const float (&S)[2][4], const float (&F)[2][4],
                                                    const float (&Ft)[2][4], const float (&Ru)[4], float (&dposition)[2])
{
    constexpr int LD = ttt_place<D>::LD, ROWS = ttt_place<D>::ROWS;
    const bf16 *const K = room.rows[which], *const Q = K + ROWS, *const dO = Q + 2 * ROWS;
    const float *const rates = steps.rate;
    const uint32_t dzq = shared_address(room.dzq) + y.turned(), dz = shared_address(room.dz) + y.turned(), u = shared_address(room.u) + y.turned();
    const uint32_t W = shared_address(room.W + 16 * y.warp) + y.turned(), dW = shared_address(room.dW + 16 * y.warp) + y.turned();
    const uint32_t u_low = shared_address(room.u_low) + y.turned(), dzq_low = shared_address(room.dzq_low) + y.turned();
    const uint32_t dW_low = shared_address(room.dW_low + 16 * y.warp) + y.turned();
    float dq[2][4] = {}, dk[2][4] = {}, from_dW[2][4] = {}, dA[2][4] = {}, dAt[2][4] = {};
#pragma unroll 4
    for (int p = 0; p < D / 16; p++) {
        uint32_t a[4], b[4], g[4], w[4], d[4], gl[4], dl[4], al[4];
        ldmatrix_x4(a, dzq + p * 32);
        ldmatrix_x4(b, dz + p * 32);
        ldmatrix_x4(g, u + p * 32);
        ldmatrix_x4_trans(w, W + p * 16 * LD * 2);
        ldmatrix_x4_trans(d, dW + p * 16 * LD * 2);
        ldmatrix_x4(gl, u_low + p * 32);
        ldmatrix_x4(al, dzq_low + p * 32);
        ldmatrix_x4_trans(dl, dW_low + p * 16 * LD * 2);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma_bf16(dq[n], a, w[2 * n], w[2 * n + 1]);
            mma_bf16(dk[n], b, w[2 * n], w[2 * n + 1]);
            mma_bf16(from_dW[n], gl, d[2 * n], d[2 * n + 1]);
            mma_bf16(from_dW[n], g, dl[2 * n], dl[2 * n + 1]);
            mma_bf16(from_dW[n], g, d[2 * n], d[2 * n + 1]);
            mma_bf16(dA[n], al, g[n], g[n + 2]); /* of step sizes too, whose sums cancel */
            mma_bf16(dA[n], a, gl[n], gl[n + 2]);
            mma_bf16(dA[n], a, g[n], g[n + 2]);
            mma_bf16(dAt[n], g, a[n], a[n + 2]);
        }
    }
    const float rate[2] = { rates[y.r], rates[y.r + 8] };
    float dF[2][4];
    TTT_SLICE(n, q) /* dA of rows i, columns j, and turned: both times rate_j */
    {
        const int row = y.r + q / 2 * 8, j = y.token(n, q);
        const float d = j > row ? 0.0f : -dA[n][q] * rates[j];
        dF[n][q] = d * S[n][q] - (row == TILE_TOKENS - 1 ? rates[j] * Ru[2 * n + q % 2] : 0.0f);
        dA[n][q] = d * F[n][q];
        dAt[n][q] = -dAt[n][q] * rate[q / 2] * Ft[n][q];
    }
    uint32_t k[4], q[4];
    ldmatrix_x4_trans(k, shared_address(K + 16 * y.warp) + y.turned());
    ldmatrix_x4_trans(q, shared_address(Q + 16 * y.warp) + y.turned());
    const ttt_halves to_q = halves_of(dA[0], dA[1]), to_k = halves_of(dAt[0], dAt[1]);
    const float last[2] = { rate[0] * steps.of_last(y.r), rate[1] * steps.of_last(y.r + 8) };
#pragma unroll
    for (int n = 0; n < 2; n++) {
        mma_halves(dq[n], to_q, k[2 * n], k[2 * n + 1]);
        mma_halves(dk[n], to_k, q[2 * n], q[2 * n + 1]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = y.r + 8 * half, column = 16 * y.warp + 8 * n + 2 * y.c;
            const int64_t at = ((t + row) * x.a.H + x.h) * D + column;
            const float2 de = *(const float2 *)(room.de + row * (D + 4) + column);
            const uint32_t dout = *(const uint32_t *)(dO + row * LD + column);
            if (!y.mine) continue;
            const int q0 = 2 * half;
            if (x.a.dq) *(uint32_t *)((bf16 *)x.a.dq + at) = pack_bf16(dq[n][q0] + low_bf16(dout), dq[n][q0 + 1] + high_bf16(dout));
            if (x.a.dk)
                *(uint32_t *)((bf16 *)x.a.dk + at) =
                    pack_bf16(dk[n][q0] + de.x - last[half] * from_dW[n][q0], dk[n][q0 + 1] + de.y - last[half] * from_dW[n][q0 + 1]);
            if (x.a.dv) *(uint32_t *)((bf16 *)x.a.dv + at) = pack_bf16(-de.x, -de.y);
        }
    }
    if (y.id >= 32) return;
    TTT_SLICE(n, q)
    {
        const int row = y.r + q / 2 * 8, j = y.token(n, q);
        const float d = j > row ? 0.0f : dF[n][q];
        if (x.a.deta) ((float *)x.a.deta)[((t + row) * x.a.H + x.h) * TILE_TOKENS + j] = d * steps.position[q / 2];
        dposition[q / 2] += d * steps.own(row, j);
    }
}

/* A segment back: the gradients of its rows and step sizes, from what the chain has left. Long: as the chain. */
template <int D> __device__ __noinline__ void ttt_tiles_back(const ttt_segments &s, const ttt_segment &x)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[];
    ttt_back_room<D> &room = *(ttt_back_room<D> *)memory;
    const ttt_place<D> y;
    constexpr int ROWS = ttt_place<D>::ROWS;
    using is = ttt_record<D>;
    int64_t t = x.t + (x.count - 1) * TILE_TOKENS;
    const float *record = s.record_of(x.n, t, g.h);
    const int64_t record_step = s.H * s.record;
    float dW[D / 8][4], dnw[2] = {}, dnb[2] = {}, dposition[2] = {};
    ttt_tile_norm norm;
    tile_positions(x.a, room.position);
    kept_state<D>(y, dW, s.state_of(true, x.slot, g.h));
#pragma unroll
    for (int i = 0; i < 2; i++)
        norm.w[i] = weights_of(x.a.ln_w, g.h, D)[y.first + 8 * i], norm.b[i] = weights_of(x.a.ln_b, g.h, D)[y.first + 8 * i];
    const auto fetch = [&](int to, int64_t from) {
        fetch_rows<D, 4>(room.rows[to], { g.a.k, g.a.q, g.a.v, g.a.dout }, from, g.a.H, g.h);
        const float rate = fetch_steps(g, room.eta[to], from);
        cp_async_commit();
        return rate;
    };
    float rate = fetch(0, t);
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    cp_async_wait<0>();
    __syncthreads();
    ttt_tile_steps steps = { NULL, NULL, { room.position[y.r], room.position[y.r + 8] }, room.position[TILE_TOKENS - 1], g.a.eta != NULL };
    for (int i = 0; i < x.count; i++, t -= TILE_TOKENS, record -= record_step) {
        const bf16 *const K = room.rows[i & 1], *const Q = K + ROWS, *const V = Q + ROWS;
        const uint32_t keys = shared_address(K) + y.plain(), queries = shared_address(Q) + y.plain();
        steps.eta = room.eta[i & 1], steps.rate = room.rate[i & 1];
        float u[2][4], hat[2][4], dzq[2][4], dg[2][4], dz[2][4], S[2][4] = {}, F[2][4], Ft[2][4], Ru[4];
        recorded_slice<D>(y, u, record + is::U);
        recorded_slice<D>(y, hat, record + is::HAT);
        recorded_slice<D>(y, dzq, record + is::DZQ);
        recorded_slice<D>(y, dg, record + is::DG);
        recorded_slice<D>(y, dz, record + is::DZ);
#pragma unroll
        for (int e = 0; e < 4; e++) Ru[e] = record[is::RU + y.token(e)];
        if (i + 1 < x.count) {
            rate = fetch(~i & 1, t - TILE_TOKENS);
            const char *next = (const char *)(record - record_step);
            for (int j = y.id; j < (int)(is::FLOATS * sizeof(float) / 128); j += TTT_THREADS) ahead_l2(next + j * 128);
        }
        /* S of rows i, columns j; the states as rows of numbers of bf16 */
#pragma unroll
        for (int p = 0; p < D / 16; p++) {
            uint32_t k[4], q[4], qa[4], w[4];
            recorded_plane<D>(y, w, record + is::W, p);
            ldmatrix_x4(k, keys + p * 32);
            ldmatrix_x4(q, queries + p * 32);
            as_rows(qa, q);
            const ttt_halves d = halves_of(dW[2 * p], dW[2 * p + 1]);
            put_plane<D>(y, room.dW, p, d.high);
            put_plane<D>(y, room.dW_low, p, d.low);
            put_plane<D>(y, room.W, p, w);
#pragma unroll
            for (int n = 0; n < 2; n++) mma_bf16(S[n], qa, k[2 * n], k[2 * n + 1]);
        }
        TTT_SLICE(n, q)
        {
            const int row = y.r + q / 2 * 8, token = y.token(n, q), at = y.at(n, q);
            F[n][q] = steps.of(q / 2, row, token);
            Ft[n][q] = row > token ? 0.0f : room.position[token] * steps.own(token, row);
            S[n][q] += g.a.bias;
            const float w = norm.w[q / 2], de = w * dg[n][q], e = w * hat[n][q] + norm.b[q / 2] - (to_float(V[at]) - to_float(K[at]));
            dnw[q / 2] += e * dg[n][q] + hat[n][q] * de, dnb[q / 2] += de;
            if (y.mine) room.de[token * (D + 4) + y.column(q)] = de;
        }
        put_slices<D>(y, room.dzq, room.dzq_low, dzq);
        put_slices<D>(y, room.u, room.u_low, u);
        put_slice<D>(y, room.dz, dz);
        add_outer<D>(y, dW, Q, halves_of(dzq[0], dzq[1]));
        add_outer<D>(y, dW, K, halves_of(dz[0], dz[1]));
        cp_async_wait<0>();
        if (i + 1 < x.count && y.id < TILE_TOKENS) room.rate[~i & 1][y.id] = rate;
        __syncthreads();
        ttt_tiles_rows_back<D>(g, y, room, i & 1, t, steps, S, F, Ft, Ru, dposition);
        __syncthreads();
    }
    float *const sums = s.sums_of(true, x.slot, g.h);
    put_norm_sums<D>(y, sums, dnw, dnb);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float p = sum_tokens(dposition[i]);
        if (y.id < 32 && y.c == 0) sums[2 * D + y.r + 8 * i] = steps.position[i] > 0 ? p : 0.0f;
    }
}

#endif

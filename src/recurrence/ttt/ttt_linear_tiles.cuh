/* TTT-linear's whole mini-batches of 16 tokens on tensor cores, with the weights (going back, their gradients) in registers: ttt_tiles.cuh. The walk
 * over a head's mini-batches (ttt_head.cuh) hands over runs of them; what is open or ragged stays with it. Going back, shared memory is what the walk
 * has there too and does not need meanwhile: dW and db are taken from there first and given back last. */
#ifndef LNT_TTT_LINEAR_TILES_CUH
#define LNT_TTT_LINEAR_TILES_CUH

#include "recurrence/ttt/ttt_tiles.cuh"

template <int D> struct alignas(16) ttt_ahead_room {
    bf16 rows[2][3 * ttt_place<D>::ROWS], out[ttt_place<D>::ROWS]; /* k q v, of this mini-batch and the next */
    float eta[2][TILE_TOKENS * TILE_ETA], rate[2][TILE_TOKENS], sums[tile_sums(5) + tile_sums(1)];
    float mean[D + 1]; /* of the columns of the weights' rows, of b */
};
template <int D> struct alignas(16) ttt_back_room {
    bf16 rows[2][4 * ttt_place<D>::ROWS]; /* k q v dout */
    bf16 W[D * ttt_place<D>::LD], dW[D * ttt_place<D>::LD], dzq[ttt_place<D>::ROWS], dz[ttt_place<D>::ROWS], u[ttt_place<D>::ROWS];
    bf16 dW_low[D * ttt_place<D>::LD], u_low[ttt_place<D>::ROWS], dzq_low[ttt_place<D>::ROWS];
    float de[TILE_TOKENS * (D + 4)];
    float eta[2][TILE_TOKENS * TILE_ETA], rate[2][TILE_TOKENS], sums[tile_sums(3) + tile_sums(5) + tile_sums(2)];
};

/* What going back wants of a mini-batch: the upper halves of its weights as operands, u, hat and hat of the queries as slices, inverses of sigma. */
template <int D> struct ttt_record {
    static constexpr int U = D * D / 2, HAT = U + 16 * D, QUERY = HAT + 16 * D, INVERSE = QUERY + 16 * D, FLOATS = INVERSE + 2 * TILE_TOKENS;
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

/* Mini-batches from token t on. RECORD: what going back wants, at `record`, in place of outputs. A norm does not see the mean of its columns, and u
 * has none, so that those of W and b stay what they are: they are taken off first and given back last, and z has none between (nor have gradients of
 * z, for which records of W are read). Long: what a mini-batch makes lives in registers from one step of it to the next. */
template <int D, bool RECORD, typename HEAD> __device__ __noinline__ void ttt_tiles_ahead(HEAD &x, int64_t t, int64_t count, float *record)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[]; /* not by a pointer: loads and stores know that they are of shared memory */
    ttt_ahead_room<D> &room = *(ttt_ahead_room<D> *)memory;
    const ttt_place<D> y;
    constexpr int ROWS = ttt_place<D>::ROWS;
    float W[D / 8][4], b[2];
    ttt_tile_norm norm;
    ttt_tile_steps steps = { NULL, NULL, { x.w.position[y.r], x.w.position[y.r + 8] }, x.w.position[TILE_TOKENS - 1], g.a.eta != NULL };
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
    fetch_rows<D, 3>(room.rows[0], { g.a.k, g.a.q, g.a.v }, t, g.a.H, g.h);
    float rate = fetch_steps(g, room.eta[0], t);
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for (int64_t i = 0; i < count; i++, t += TILE_TOKENS) {
        bf16 *const K = room.rows[i & 1], *const Q = K + ROWS, *const V = Q + ROWS;
        const uint32_t keys = shared_address(K) + y.plain(), queries = shared_address(Q) + y.plain();
        steps.eta = room.eta[i & 1], steps.rate = room.rate[i & 1];
        float z[2][4] = {}, zl[2][4] = {}, zq[2][4] = {}, zql[2][4] = {}, S[2][4] = {}, bt[2][4], u[2][4], inverse[4];
#pragma unroll
        for (int p = 0; p < D / 16; p++) {
            uint32_t k[4], q[4], qa[4];
            ldmatrix_x4(k, keys + p * 32);
            ldmatrix_x4(q, queries + p * 32);
            as_rows(qa, q);
            const ttt_halves w = halves_of(W[2 * p], W[2 * p + 1]);
            if (RECORD && y.mine) ((uint4 *)record)[p * 2 * D + y.id] = make_uint4(w.high[0], w.high[1], w.high[2], w.high[3]);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                mma_bf16(z[n], w.high, k[2 * n], k[2 * n + 1]);
                mma_bf16(zl[n], w.low, k[2 * n], k[2 * n + 1]);
                mma_bf16(zq[n], w.high, q[2 * n], q[2 * n + 1]);
                mma_bf16(zql[n], w.low, q[2 * n], q[2 * n + 1]);
                mma_bf16(S[n], qa, k[2 * n], k[2 * n + 1]);
            }
        }
        TTT_SLICE(n, q)
        {
            const int at = y.at(n, q), row = y.r + q / 2 * 8, j = y.token(n, q);
            z[n][q] += zl[n][q] + b[q / 2];
            zq[n][q] += zql[n][q] + b[q / 2];
            bt[n][q] = norm.b[q / 2] - (to_float(V[at]) - to_float(K[at]));
            S[n][q] = -(S[n][q] + g.a.bias) * steps.of(q / 2, row, j) * steps.rate[j]; /* row i, column j of -A */
        }
        tile_loss_centred<D>(y, norm, z, bt, room.sums, inverse, u);
        /* what the last ones left there: the loss's barrier is behind it, that of the next sums in front of what comes */
        if (!RECORD && i) put_rows<D>(g.a.o, room.out, t - TILE_TOKENS, g.a.H, g.h);
        if (i + 1 < count) { /* nobody reads the other rows any more */
            fetch_rows<D, 3>(room.rows[~i & 1], { g.a.k, g.a.q, g.a.v }, t + TILE_TOKENS, g.a.H, g.h);
            rate = fetch_steps(g, room.eta[~i & 1], t + TILE_TOKENS);
            cp_async_commit();
        }
        mma_square(zq, halves_of(u[0], u[1]), S);
        float two[1][4] = {}, down[2] = {}, step[2][4];
        TTT_SLICE(n, q)
        {
            const int j = y.token(n, q);
            step[n][q] = -u[n][q] * steps.of_last(j) * steps.rate[j];
            down[q / 2] += step[n][q];
        }
        if (g.a.bias) b[0] += sum_tokens(down[0]), b[1] += sum_tokens(down[1]);
        add_outer<D>(y, W, K, halves_of(step[0], step[1]));
        TTT_SLICE(n, q) two[0][2 * n + q % 2] += zq[n][q] * zq[n][q];
        cp_async_wait<0>();
        if (i + 1 < count && y.id < TILE_TOKENS) room.rate[~i & 1][y.id] = rate;
        sum_columns<D, 1>(y, two, room.sums + tile_sums(5)); /* its barrier: the next rows are there for everybody */
#pragma unroll
        for (int e = 0; e < 4; e++) two[0][e] = rsqrtf(two[0][e] / D + 1e-6f);
        TTT_SLICE(n, q) zq[n][q] *= two[0][2 * n + q % 2];
        if (RECORD) {
            record_slice<D>(y, record + ttt_record<D>::U, u);
            record_slice<D>(y, record + ttt_record<D>::HAT, z);
            record_slice<D>(y, record + ttt_record<D>::QUERY, zq);
            if (y.mine && y.warp == 0 && y.r == 0)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    record[ttt_record<D>::INVERSE + y.token(e)] = inverse[e],
                    record[ttt_record<D>::INVERSE + TILE_TOKENS + y.token(e)] = two[0][e];
            record += ttt_record<D>::FLOATS;
        } else {
            TTT_SLICE(n, q) zq[n][q] = zq[n][q] * norm.w[q / 2] + norm.b[q / 2] + to_float(Q[y.at(n, q)]);
            put_slice<D>(y, room.out, zq);
        }
    }
    __syncthreads();
    if (!RECORD) put_rows<D>(g.a.o, room.out, t - TILE_TOKENS, g.a.H, g.h);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) W[j][q] += room.mean[8 * j + 2 * y.c + q % 2];
    give_state<D>(y, x.w.W[0], W);
    if (y.mine && y.c == 0) x.w.b[0][y.first] = b[0] + room.mean[D], x.w.b[0][y.first + 8] = b[1] + room.mean[D];
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

/* Mini-batches back from the one that begins with token t, whose record is `record`: x.w's dW and db from behind them become those in front. Long: as
 * the one ahead. */
template <int D, typename HEAD> __device__ __noinline__ void ttt_tiles_back(HEAD &x, int64_t t, int64_t count, const float *record)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[]; /* not by a pointer: loads and stores know that they are of shared memory */
    ttt_back_room<D> &room = *(ttt_back_room<D> *)memory;
    const ttt_place<D> y;
    constexpr int ROWS = ttt_place<D>::ROWS;
    float dW[D / 8][4], db[2], dnw[2] = {}, dnb[2] = {}, dposition[2] = {};
    ttt_tile_norm norm;
    ttt_tile_steps steps = { NULL, NULL, { x.w.position[y.r], x.w.position[y.r + 8] }, x.w.position[TILE_TOKENS - 1], g.a.eta != NULL };
    float position[4]; /* of the tokens of a slice */
#pragma unroll
    for (int e = 0; e < 4; e++) position[e] = x.w.position[y.token(e)];
    take_state<D>(y, dW, x.w.dW[0]);
#pragma unroll
    for (int i = 0; i < 2; i++) db[i] = x.w.db[0][y.first + 8 * i], norm.w[i] = x.norm.w[y.first + 8 * i], norm.b[i] = x.norm.b[y.first + 8 * i];
    __syncthreads();
    fetch_rows<D, 4>(room.rows[0], { g.a.k, g.a.q, g.a.v, g.a.dout }, t, g.a.H, g.h);
    float rate = fetch_steps(g, room.eta[0], t);
    if (y.id < TILE_TOKENS) room.rate[0][y.id] = rate;
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for (int64_t i = 0; i < count; i++, t -= TILE_TOKENS, record -= ttt_record<D>::FLOATS) {
        bf16 *const K = room.rows[i & 1], *const Q = K + ROWS, *const V = Q + ROWS, *const dO = V + ROWS;
        const uint32_t keys = shared_address(K) + y.plain(), queries = shared_address(Q) + y.plain();
        steps.eta = room.eta[i & 1], steps.rate = room.rate[i & 1];
        float u[2][4], hat[2][4], dzq[2][4], bt[2][4], inverse[4], query_inverse[4], sums[3][4] = {};
        recorded_slice<D>(y, u, record + ttt_record<D>::U);
        recorded_slice<D>(y, hat, record + ttt_record<D>::HAT);
        recorded_slice<D>(y, bt, record + ttt_record<D>::QUERY); /* for now: the queries' hat */
#pragma unroll
        for (int e = 0; e < 4; e++) {
            inverse[e] = record[ttt_record<D>::INVERSE + y.token(e)];
            query_inverse[e] = record[ttt_record<D>::INVERSE + TILE_TOKENS + y.token(e)];
        }
        /* the queries' norm */
        TTT_SLICE(n, q)
        {
            const int e = 2 * n + q % 2, at = y.at(n, q);
            const float d = to_float(dO[at]), by = bt[n][q], offset = norm.b[q / 2] - (to_float(V[at]) - to_float(K[at]));
            dnw[q / 2] += d * by, dnb[q / 2] += d;
            dzq[n][q] = d * norm.w[q / 2];
            sums[0][e] += dzq[n][q], sums[1][e] += dzq[n][q] * by;
            sums[2][e] += hat[n][q] * norm.w[q / 2] * (norm.w[q / 2] * hat[n][q] + offset);
        }
        sum_columns<D, 3>(y, sums, room.sums);
        float along[4];
#pragma unroll
        for (int e = 0; e < 4; e++) along[e] = sums[2][e] / D;
        TTT_SLICE(n, q)
        {
            const int e = 2 * n + q % 2, at = y.at(n, q);
            dzq[n][q] = (dzq[n][q] - sums[0][e] / D - sums[1][e] / D * bt[n][q]) * query_inverse[e];
            bt[n][q] = norm.b[q / 2] - (to_float(V[at]) - to_float(K[at]));
        }
        if (i + 1 < count) { /* the barrier is behind whoever read the other rows */
            fetch_rows<D, 4>(room.rows[~i & 1], { g.a.k, g.a.q, g.a.v, g.a.dout }, t - TILE_TOKENS, g.a.H, g.h);
            rate = fetch_steps(g, room.eta[~i & 1], t - TILE_TOKENS);
            cp_async_commit();
            const char *next = (const char *)(record - ttt_record<D>::FLOATS);
            for (int j = y.id; j < (int)(ttt_record<D>::FLOATS * sizeof(float) / 128); j += TTT_THREADS) ahead_l2(next + j * 128);
        }
        put_slices<D>(y, room.dzq, room.dzq_low, dzq);
        put_slices<D>(y, room.u, room.u_low, u);
        /* R = K dW + db; S of rows j, columns i, less, with the step sizes */
        float R[2][4], Rl[2][4] = {}, S[2][4] = {}, St[2][4] = {}, du[2][4];
        uint4 weights[D / 16]; /* all on their way before the first is put */
#pragma unroll
        for (int p = 0; p < D / 16; p++) weights[p] = ((const uint4 *)record)[p * 2 * D + y.id % (2 * D)];
        TTT_SLICE(n, q) R[n][q] = db[q / 2];
#pragma unroll
        for (int p = 0; p < D / 16; p++) {
            uint32_t k[4], q[4], ka[4], qa[4];
            ldmatrix_x4(k, keys + p * 32);
            ldmatrix_x4(q, queries + p * 32);
            as_rows(ka, k);
            as_rows(qa, q);
            const ttt_halves d = halves_of(dW[2 * p], dW[2 * p + 1]);
            put_plane<D>(y, room.dW, p, d.high);
            put_plane<D>(y, room.dW_low, p, d.low);
            put_plane<D>(y, room.W, p, { weights[p].x, weights[p].y, weights[p].z, weights[p].w });
#pragma unroll
            for (int n = 0; n < 2; n++) {
                mma_bf16(R[n], d.high, k[2 * n], k[2 * n + 1]);
                mma_bf16(Rl[n], d.low, k[2 * n], k[2 * n + 1]);
                mma_bf16(S[n], qa, k[2 * n], k[2 * n + 1]);
                mma_bf16(St[n], ka, q[2 * n], q[2 * n + 1]);
            }
        }
        const float bias = g.a.bias;
        float F[2][4], Ft[2][4], lasts[4]; /* of rows i, columns j; of rows j, columns i; of the last i and the tokens of a slice */
        TTT_SLICE(n, q)
        {
            const int row = y.r + q / 2 * 8, token = y.token(n, q);
            F[n][q] = steps.of(q / 2, row, token);
            Ft[n][q] = row > token ? 0.0f : position[2 * n + q % 2] * steps.own(token, row);
            S[n][q] += bias;
            St[n][q] = -(St[n][q] + bias) * Ft[n][q];
        }
#pragma unroll
        for (int e = 0; e < 4; e++) lasts[e] = steps.of_last(y.token(e));
        TTT_SLICE(n, q)
        {
            R[n][q] += Rl[n][q];
            du[n][q] = -lasts[2 * n + q % 2] * R[n][q];
        }
        const ttt_halves dzqs = halves_of(dzq[0], dzq[1]);
        mma_square(du, dzqs, St);
        float more[2][4] = {}; /* R u, du u */
        TTT_SLICE(n, q)
        {
            const int e = 2 * n + q % 2;
            more[0][e] += R[n][q] * u[n][q], more[1][e] += du[n][q] * u[n][q];
            du[n][q] *= steps.rate[y.token(e)];
        }
        float de[2][4], dw[2][4];
        tile_loss_back<D, 2>(y, norm, hat, bt, u, inverse, along, du, more, room.sums + tile_sums(3), de, dw);
        put_loss_back<D>(y, room.dz, room.de, du, de, dw, dnw, dnb);
        const float both[2] = { du[0][0] + du[0][1] + du[1][0] + du[1][1] + dzq[0][0] + dzq[0][1] + dzq[1][0] + dzq[1][1],
                                du[0][2] + du[0][3] + du[1][2] + du[1][3] + dzq[0][2] + dzq[0][3] + dzq[1][2] + dzq[1][3] };
        if (bias != 0) db[0] += sum_tokens(both[0]), db[1] += sum_tokens(both[1]);
        add_outer<D>(y, dW, Q, dzqs);
        add_outer<D>(y, dW, K, halves_of(du[0], du[1]));
        cp_async_wait<0>();
        if (i + 1 < count && y.id < TILE_TOKENS) room.rate[~i & 1][y.id] = rate;
        if (g.a.drate && y.mine && y.warp == 0 && y.r == 0)
#pragma unroll
            for (int e = 0; e < 4; e++) ((float *)g.a.drate)[(t + y.token(e)) * g.a.H + g.h] = more[1][e];
        __syncthreads();
        ttt_tiles_rows_back<D>(g, y, room, i & 1, t, steps, S, F, Ft, more[0], dposition);
    }
    __syncthreads();
    give_state<D>(y, x.w.dW[0], dW);
    if (y.mine && y.c == 0) x.w.db[0][y.first] = db[0], x.w.db[0][y.first + 8] = db[1];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float w = sum_tokens(dnw[i]), b = sum_tokens(dnb[i]), p = sum_tokens(dposition[i]);
        if (y.mine && y.c == 0) x.norm.dw[y.first + 8 * i] += w, x.norm.db[y.first + 8 * i] += b;
        if (y.id < 32 && y.c == 0) x.dposition[y.r + 8 * i] += steps.position[i] > 0 ? p : 0.0f;
    }
    x.positions();
}

#endif

/* Titans' whole mini-batches of 16 tokens on tensor cores, with memory and momentum (going back, their gradients) in registers: ttt_tiles.cuh. The
 * walk over a head's mini-batches (titans_head.cuh) hands over runs of them. Going back, shared memory is what the walk has there too and does not
 * need meanwhile: dM and dS are taken from there first and given back last. */
#ifndef LNT_TITANS_TILES_CUH
#define LNT_TITANS_TILES_CUH

#include "recurrence/ttt/ttt_tiles.cuh"

/* Gates of a mini-batch, and the coefficients of titans_work. */
struct alignas(16) titans_tile_steps {
    float M[TILE_TOKENS * TILE_ETA], S[TILE_TOKENS * TILE_ETA];
    float theta[TILE_TOKENS], keep[TILE_TOKENS], eta[TILE_TOKENS], kept[TILE_TOKENS], lent[TILE_TOKENS], left[TILE_TOKENS];
};
template <int D> struct alignas(16) titans_ahead_room {
    bf16 rows[2][3 * ttt_place<D>::ROWS], out[2][ttt_place<D>::ROWS]; /* k q v, of this mini-batch and the next */
    titans_tile_steps steps[2];
    float sums[tile_sums(2) + tile_sums(4)];
};
template <int D> struct alignas(16) titans_back_room {
    bf16 rows[2][4 * ttt_place<D>::ROWS]; /* k q v dout */
    bf16 M[D * ttt_place<D>::LD], S[D * ttt_place<D>::LD], dM[D * ttt_place<D>::LD], dS[D * ttt_place<D>::LD];
    bf16 dz[ttt_place<D>::ROWS], u[ttt_place<D>::ROWS];
    float de[TILE_TOKENS * (D + 4)];
    titans_tile_steps steps[2];
    float sums[tile_sums(3) + tile_sums(6) + tile_sums(2)];
    float dM_part[TILE_TOKENS * TILE_ETA], to_keep[TILE_TOKENS * TILE_ETA], to_eta[TILE_TOKENS * TILE_ETA];
    float KMu[TILE_TOKENS], KSu[TILE_TOKENS], dkept[TILE_TOKENS], dlent[TILE_TOKENS];
};
/* What going back wants of a mini-batch: upper halves of M and S as operands; u, hat, Q M and Q S as slices; inverses of sigma. */
template <int D> struct titans_record {
    static constexpr int S = D * D / 2, U = 2 * S, HAT = U + 16 * D, QM = HAT + 16 * D, QS = QM + 16 * D, INVERSE = QS + 16 * D,
                         FLOATS = INVERSE + TILE_TOKENS;
};

/* The warp that makes coefficients while the others go on. */
static constexpr int TITANS_STEPS_WARP = TTT_WARPS - 1;
template <typename HEAD> __device__ __forceinline__ void fetch_gates(const HEAD &x, int64_t t, float (&gates)[3])
{
    const int lane = (int)threadIdx.x % 32;
    if ((int)threadIdx.x / 32 != TITANS_STEPS_WARP || lane >= TILE_TOKENS) return;
    const int64_t row = (t + lane) * x.a.H + x.h;
    gates[0] = ((const float *)x.a.theta)[row], gates[1] = 1.0f - ((const float *)x.a.alpha)[row], gates[2] = ((const float *)x.a.eta)[row];
}
/* A column of the triangles a lane; the next one has the rows' own. */
__device__ __forceinline__ void tile_coefficients(titans_tile_steps &y, const float (&gates)[3])
{
    const int j = (int)threadIdx.x % 32;
    if ((int)threadIdx.x / 32 != TITANS_STEPS_WARP) return;
    if (j < TILE_TOKENS) y.theta[j] = gates[0], y.keep[j] = gates[1], y.eta[j] = gates[2];
    __syncwarp();
    float M = 0, S = 0, kept = 1, lent = 0, left = 1;
#pragma unroll
    for (int i = 0; i < TILE_TOKENS; i++) {
        const float keep = y.keep[i], eta = y.eta[i];
        S = i < j ? 0.0f : i == j ? y.theta[i] : eta * S;
        M = (i > j ? keep * M : 0.0f) + S;
        kept = keep * kept, left = eta * left, lent = keep * lent + left;
        if (j < TILE_TOKENS) y.M[i * TILE_ETA + j] = M, y.S[i * TILE_ETA + j] = S;
        if (j == TILE_TOKENS) y.kept[i] = kept, y.lent[i] = lent, y.left[i] = left;
    }
}

/* Mini-batches from token t on. RECORD: what going back wants, at `record`, in place of outputs. */
template <int D, bool RECORD, typename HEAD> __device__ __noinline__ void titans_tiles_ahead(HEAD &x, int64_t t, int64_t count, float *record)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[]; /* not by a pointer: loads and stores know that they are of shared memory */
    titans_ahead_room<D> &room = *(titans_ahead_room<D> *)memory;
    const ttt_place<D> y;
    constexpr int ROWS = ttt_place<D>::ROWS, LAST = TILE_TOKENS - 1;
    float M[D / 8][4], S[D / 8][4], gates[3] = {};
    ttt_tile_norm norm;
    take_state<D>(y, M, x.w.M);
    take_state<D>(y, S, x.w.S);
#pragma unroll
    for (int i = 0; i < 2; i++) norm.w[i] = x.norm.w[y.first + 8 * i], norm.b[i] = x.norm.b[y.first + 8 * i];
    fetch_rows<D, 3>(room.rows[0], { g.a.k, g.a.q, g.a.v }, t, g.a.H, g.h);
    cp_async_commit();
    fetch_gates(g, t, gates);
    tile_coefficients(room.steps[0], gates);
    cp_async_wait<0>();
    __syncthreads();
    for (int64_t i = 0; i < count; i++, t += TILE_TOKENS) {
        bf16 *const K = room.rows[i & 1], *const Q = K + ROWS, *const V = Q + ROWS;
        const uint32_t keys = shared_address(K) + y.plain(), queries = shared_address(Q) + y.plain();
        const titans_tile_steps &steps = room.steps[i & 1];
        float z[2][4] = {}, QM[2][4] = {}, QS[2][4] = {}, A[2][4] = {}, bt[2][4], u[2][4], inverse[4];
#pragma unroll
        for (int p = 0; p < D / 16; p++) {
            uint32_t k[4], q[4], qa[4];
            ldmatrix_x4(k, keys + p * 32);
            ldmatrix_x4(q, queries + p * 32);
            as_rows(qa, q);
            const ttt_halves m = halves_of(M[2 * p], M[2 * p + 1]), s = halves_of(S[2 * p], S[2 * p + 1]);
            if (RECORD && y.mine) {
                ((uint4 *)record)[p * 2 * D + y.id] = make_uint4(m.high[0], m.high[1], m.high[2], m.high[3]);
                ((uint4 *)(record + titans_record<D>::S))[p * 2 * D + y.id] = make_uint4(s.high[0], s.high[1], s.high[2], s.high[3]);
            }
#pragma unroll
            for (int n = 0; n < 2; n++) {
                mma_halves(z[n], m, k[2 * n], k[2 * n + 1]);
                mma_halves(QM[n], m, q[2 * n], q[2 * n + 1]);
                mma_halves(QS[n], s, q[2 * n], q[2 * n + 1]);
                mma_bf16(A[n], qa, k[2 * n], k[2 * n + 1]);
            }
        }
        TTT_SLICE(n, q)
        {
            const int at = y.at(n, q), row = y.r + q / 2 * 8, j = y.token(n, q);
            bt[n][q] = norm.b[q / 2] - (to_float(V[at]) - to_float(K[at]));
            A[n][q] = j > row ? 0.0f : -A[n][q] * steps.M[row * TILE_ETA + j];
        }
        tile_loss<D>(y, norm, z, bt, room.sums, inverse, u);
        if (!RECORD && i) put_rows<D>(g.a.o, room.out[~i & 1], t - TILE_TOKENS, g.a.H, g.h);
        if (i + 1 < count) { /* nobody reads the other rows any more */
            fetch_rows<D, 3>(room.rows[~i & 1], { g.a.k, g.a.q, g.a.v }, t + TILE_TOKENS, g.a.H, g.h);
            cp_async_commit();
            fetch_gates(g, t + TILE_TOKENS, gates);
        }
        if (RECORD) {
            record_slice<D>(y, record + titans_record<D>::U, u);
            record_slice<D>(y, record + titans_record<D>::HAT, z);
            record_slice<D>(y, record + titans_record<D>::QM, QM);
            record_slice<D>(y, record + titans_record<D>::QS, QS);
            if (y.mine && y.warp == 0 && y.r == 0)
#pragma unroll
                for (int e = 0; e < 4; e++) record[titans_record<D>::INVERSE + y.token(e)] = inverse[e];
            record += titans_record<D>::FLOATS;
        } else {
            TTT_SLICE(n, q) QM[n][q] = steps.kept[y.token(n, q)] * QM[n][q] + steps.lent[y.token(n, q)] * QS[n][q];
            mma_square(QM, halves_of(u[0], u[1]), A);
            put_slice<D>(y, room.out[i & 1], QM);
        }
        float to_M[2][4], to_S[2][4];
        TTT_SLICE(n, q)
        {
            to_M[n][q] = -u[n][q] * steps.M[LAST * TILE_ETA + y.token(n, q)];
            to_S[n][q] = -u[n][q] * steps.S[LAST * TILE_ETA + y.token(n, q)];
        }
        const float kept = steps.kept[LAST], lent = steps.lent[LAST], left = steps.left[LAST];
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) M[j][q] = kept * M[j][q] + lent * S[j][q], S[j][q] *= left;
        add_outer<D>(y, M, K, halves_of(to_M[0], to_M[1]));
        add_outer<D>(y, S, K, halves_of(to_S[0], to_S[1]));
        if (i + 1 < count) tile_coefficients(room.steps[~i & 1], gates);
        cp_async_wait<0>();
        __syncthreads();
    }
    if (!RECORD) put_rows<D>(g.a.o, room.out[~count & 1], t - TILE_TOKENS, g.a.H, g.h);
    give_state<D>(y, x.w.M, M);
    give_state<D>(y, x.w.S, S);
    __syncthreads();
}

/* The recurrences of the coefficients in reverse: a warp, a column of the triangles a lane, the next lane the rows' own. dleft: of the momentum's
 * last; dkept, dlent and dM_part are whole in shared memory, of the momentum's part only the last row is not 0: less KSu. */
template <int D, typename HEAD>
__device__ __forceinline__ void titans_tiles_coefficients_back(const HEAD &x, titans_back_room<D> &room, const titans_tile_steps &y, int64_t t,
                                                               float dleft)
{
    const int j = (int)threadIdx.x % 32;
    float M = 0, S = 0, dtheta = 0, kept = 0, lent = 0, left = 0;
    if (j < TILE_TOKENS) {
        for (int i = TILE_TOKENS - 1; i >= j; i--) {
            const float gM = room.dM_part[i * TILE_ETA + j] + M, gS = (i == TILE_TOKENS - 1 ? -room.KSu[j] : 0.0f) + S + gM;
            if (i == j)
                dtheta = gS;
            else {
                room.to_keep[i * TILE_ETA + j] = gM * y.M[(i - 1) * TILE_ETA + j];
                room.to_eta[i * TILE_ETA + j] = gS * y.S[(i - 1) * TILE_ETA + j];
            }
            M = y.keep[i] * gM;
            S = y.eta[i] * gS;
        }
    } else if (j == TILE_TOKENS) { /* column i of row i of the triangles is not used by them */
        for (int i = TILE_TOKENS - 1; i >= 0; i--) {
            const float gl = room.dlent[i] + lent, gm = (i == TILE_TOKENS - 1 ? dleft : 0.0f) + left + gl, gk = room.dkept[i] + kept;
            room.to_keep[i * TILE_ETA + i] = i ? gl * y.lent[i - 1] + gk * y.kept[i - 1] : gk;
            room.to_eta[i * TILE_ETA + i] = i ? gm * y.left[i - 1] : gm;
            lent = y.keep[i] * gl, left = y.eta[i] * gm, kept = y.keep[i] * gk;
        }
    }
    __syncwarp();
    if (j >= TILE_TOKENS) return;
    float dkeep = 0, deta = 0;
    for (int i = 0; i <= j; i++) dkeep += room.to_keep[j * TILE_ETA + i], deta += room.to_eta[j * TILE_ETA + i];
    const int64_t row = (t + j) * x.a.H + x.h;
    if (x.a.dtheta) ((float *)x.a.dtheta)[row] = dtheta;
    if (x.a.dalpha) ((float *)x.a.dalpha)[row] = -dkeep;
    if (x.a.deta) ((float *)x.a.deta)[row] = deta;
}

/* What the rows of a mini-batch get from what lies in shared memory: a warp 16 columns of the gradients of q, k and v; one of them those of the gates
 * besides. QK [i][j] and its transpose as tiles. */
template <int D, typename HEAD>
__device__ __forceinline__ void titans_tiles_rows_back(const HEAD &x, const ttt_place<D> &y, titans_back_room<D> &room, int which, int64_t t,
                                                       const float (&QK)[2][4], float dleft)
{
    constexpr int LD = ttt_place<D>::LD, ROWS = ttt_place<D>::ROWS, LAST = TILE_TOKENS - 1;
    const bf16 *const K = room.rows[which], *const Q = K + ROWS, *const dO = Q + 2 * ROWS;
    const titans_tile_steps &steps = room.steps[which];
    const uint32_t dout = shared_address(dO) + y.turned();
    const uint32_t dz = shared_address(room.dz) + y.turned(), u = shared_address(room.u) + y.turned();
    const uint32_t at = y.turned() + 32 * y.warp;
    const uint32_t M = shared_address(room.M) + at, S = shared_address(room.S) + at;
    const uint32_t dM = shared_address(room.dM) + at, dS = shared_address(room.dS) + at;
    float q_M[2][4] = {}, q_S[2][4] = {}, dk[2][4] = {}, k_dM[2][4] = {}, k_dS[2][4] = {}, Y[2][4] = {}, Yt[2][4] = {};
#pragma unroll 2
    for (int p = 0; p < D / 16; p++) {
        uint32_t a[4], b[4], g[4], w[4];
        ldmatrix_x4(a, dout + p * 32);
        ldmatrix_x4(b, dz + p * 32);
        ldmatrix_x4(g, u + p * 32);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma_bf16(Y[n], a, g[n], g[n + 2]);
            mma_bf16(Yt[n], g, a[n], a[n + 2]);
        }
        ldmatrix_x4_trans(w, M + p * 16 * LD * 2);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma_bf16(q_M[n], a, w[2 * n], w[2 * n + 1]);
            mma_bf16(dk[n], b, w[2 * n], w[2 * n + 1]);
        }
        ldmatrix_x4_trans(w, S + p * 16 * LD * 2);
#pragma unroll
        for (int n = 0; n < 2; n++) mma_bf16(q_S[n], a, w[2 * n], w[2 * n + 1]);
        ldmatrix_x4_trans(w, dM + p * 16 * LD * 2);
#pragma unroll
        for (int n = 0; n < 2; n++) mma_bf16(k_dM[n], g, w[2 * n], w[2 * n + 1]);
        ldmatrix_x4_trans(w, dS + p * 16 * LD * 2);
#pragma unroll
        for (int n = 0; n < 2; n++) mma_bf16(k_dS[n], g, w[2 * n], w[2 * n + 1]);
    }
    const bool steps_too = (int)threadIdx.x / 32 == TITANS_STEPS_WARP;
    TTT_SLICE(n, q)
    {
        const int row = y.r + q / 2 * 8, j = y.token(n, q); /* row i, column j; turned: row j, column i */
        const float d = j > row ? 0.0f : -Y[n][q];
        if (steps_too) room.dM_part[row * TILE_ETA + j] = d * QK[n][q] - (row == LAST ? room.KMu[j] : 0.0f);
        Y[n][q] = d * steps.M[row * TILE_ETA + j];
        Yt[n][q] = row > j ? 0.0f : -Yt[n][q] * steps.M[j * TILE_ETA + row];
    }
    uint32_t k[4], q[4];
    ldmatrix_x4_trans(k, shared_address(K) + at);
    ldmatrix_x4_trans(q, shared_address(Q) + at);
    const ttt_halves to_q = halves_of(Y[0], Y[1]), to_k = halves_of(Yt[0], Yt[1]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = y.r + 8 * half;
        const float kept = steps.kept[row], lent = steps.lent[row], to_M = steps.M[LAST * TILE_ETA + row], to_S = steps.S[LAST * TILE_ETA + row];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                q_M[n][e] = kept * q_M[n][e] + lent * q_S[n][e];
                dk[n][e] -= to_M * k_dM[n][e] + to_S * k_dS[n][e];
            }
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        mma_halves(q_M[n], to_q, k[2 * n], k[2 * n + 1]);
        mma_halves(dk[n], to_k, q[2 * n], q[2 * n + 1]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = y.r + 8 * half, column = 16 * y.warp + 8 * n + 2 * y.c, e = 2 * half;
            const int64_t to = ((t + row) * x.a.H + x.h) * D + column;
            const float2 de = *(const float2 *)(room.de + row * (D + 4) + column);
            if (!y.mine) continue;
            if (x.a.dq) *(uint32_t *)((bf16 *)x.a.dq + to) = pack_bf16(q_M[n][e], q_M[n][e + 1]);
            if (x.a.dk) *(uint32_t *)((bf16 *)x.a.dk + to) = pack_bf16(dk[n][e] + de.x, dk[n][e + 1] + de.y);
            if (x.a.dv) *(uint32_t *)((bf16 *)x.a.dv + to) = pack_bf16(-de.x, -de.y);
        }
    }
    if (!steps_too) return;
    __syncwarp();
    titans_tiles_coefficients_back<D>(x, room, steps, t, dleft);
}

/* Mini-batches back from the one that begins with token t, whose record is `record`: x.w's dM and dS from behind them become those in front.
 * Long: what a mini-batch makes lives in registers from one step of it to the next. */
template <int D, typename HEAD> __device__ __noinline__ void titans_tiles_back(HEAD &x, int64_t t, int64_t count, const float *record)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[]; /* not by a pointer: loads and stores know that they are of shared memory */
    titans_back_room<D> &room = *(titans_back_room<D> *)memory;
    const ttt_place<D> y;
    constexpr int ROWS = ttt_place<D>::ROWS, LAST = TILE_TOKENS - 1;
    float dM[D / 8][4], dS[D / 8][4], dnw[2] = {}, dnb[2] = {}, gates[3] = {};
    ttt_tile_norm norm;
    take_state<D>(y, dM, x.w.dM);
    take_state<D>(y, dS, x.w.dS);
#pragma unroll
    for (int i = 0; i < 2; i++) norm.w[i] = x.norm.w[y.first + 8 * i], norm.b[i] = x.norm.b[y.first + 8 * i];
    __syncthreads();
    fetch_rows<D, 4>(room.rows[0], { g.a.k, g.a.q, g.a.v, g.a.dout }, t, g.a.H, g.h);
    cp_async_commit();
    fetch_gates(g, t, gates);
    tile_coefficients(room.steps[0], gates);
    cp_async_wait<0>();
    __syncthreads();
    for (int64_t i = 0; i < count; i++, t -= TILE_TOKENS, record -= titans_record<D>::FLOATS) {
        bf16 *const K = room.rows[i & 1], *const Q = K + ROWS, *const V = Q + ROWS, *const dO = V + ROWS;
        const uint32_t keys = shared_address(K) + y.plain(), queries = shared_address(Q) + y.plain();
        const titans_tile_steps &steps = room.steps[i & 1];
        float u[2][4], hat[2][4], dout[2][4], bt[2][4], inverse[4], sums[3][4] = {};
        recorded_slice<D>(y, u, record + titans_record<D>::U);
        recorded_slice<D>(y, hat, record + titans_record<D>::HAT);
        recorded_slice<D>(y, bt, record + titans_record<D>::QM); /* for now, and QS */
        recorded_slice<D>(y, dout, record + titans_record<D>::QS);
#pragma unroll
        for (int e = 0; e < 4; e++) inverse[e] = record[titans_record<D>::INVERSE + y.token(e)];
        TTT_SLICE(n, q)
        {
            const int e = 2 * n + q % 2, at = y.at(n, q);
            const float d = to_float(dO[at]), offset = norm.b[q / 2] - (to_float(V[at]) - to_float(K[at]));
            sums[0][e] += d * bt[n][q], sums[1][e] += d * dout[n][q];
            sums[2][e] += hat[n][q] * norm.w[q / 2] * (norm.w[q / 2] * hat[n][q] + offset);
            bt[n][q] = offset, dout[n][q] = d;
        }
        sum_columns<D, 3>(y, sums, room.sums);
        float along[4];
#pragma unroll
        for (int e = 0; e < 4; e++) along[e] = sums[2][e] / D;
        if (i + 1 < count) { /* the barrier is behind whoever read the other rows */
            fetch_rows<D, 4>(room.rows[~i & 1], { g.a.k, g.a.q, g.a.v, g.a.dout }, t - TILE_TOKENS, g.a.H, g.h);
            cp_async_commit();
            fetch_gates(g, t - TILE_TOKENS, gates);
            const char *next = (const char *)(record - titans_record<D>::FLOATS);
            for (int j = y.id; j < (int)(titans_record<D>::FLOATS * sizeof(float) / 128); j += TTT_THREADS) ahead_l2(next + j * 128);
        }
        put_slice<D>(y, room.u, u);
        /* K dM and K dS; what M and S have with dM and dS in common; Q K^T of rows i, columns j, and turned */
        float KM[2][4] = {}, KS[2][4] = {}, QK[2][4] = {}, KQ[2][4] = {}, du[2][4], M_dM = 0, S_dM = 0, S_dS = 0;
        constexpr int AT_ONCE = 4; /* loads on their way together */
        uint4 states[2][AT_ONCE];
#pragma unroll
        for (int p = 0; p < D / 16; p++) {
            uint32_t k[4], q[4], ka[4], qa[4];
            if (p % AT_ONCE == 0)
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++) {
                    states[0][j] = ((const uint4 *)record)[(p + j) * 2 * D + y.id % (2 * D)];
                    states[1][j] = ((const uint4 *)(record + titans_record<D>::S))[(p + j) * 2 * D + y.id % (2 * D)];
                }
            const uint4 m = states[0][p % AT_ONCE], s = states[1][p % AT_ONCE];
            const uint32_t ms[4] = { m.x, m.y, m.z, m.w }, ss[4] = { s.x, s.y, s.z, s.w };
            ldmatrix_x4(k, keys + p * 32);
            ldmatrix_x4(q, queries + p * 32);
            as_rows(ka, k);
            as_rows(qa, q);
            put_plane<D>(y, room.M, p, ms);
            put_plane<D>(y, room.S, p, ss);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 d = make_float2(dM[2 * p + j / 2][j % 2 * 2], dM[2 * p + j / 2][j % 2 * 2 + 1]);
                const float2 f = make_float2(dS[2 * p + j / 2][j % 2 * 2], dS[2 * p + j / 2][j % 2 * 2 + 1]);
                M_dM += low_bf16(ms[j]) * d.x + high_bf16(ms[j]) * d.y;
                S_dM += low_bf16(ss[j]) * d.x + high_bf16(ss[j]) * d.y;
                S_dS += low_bf16(ss[j]) * f.x + high_bf16(ss[j]) * f.y;
            }
            const ttt_halves d = halves_of(dM[2 * p], dM[2 * p + 1]), f = halves_of(dS[2 * p], dS[2 * p + 1]);
            put_plane<D>(y, room.dM, p, d.high);
            put_plane<D>(y, room.dS, p, f.high);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                mma_halves(KM[n], d, k[2 * n], k[2 * n + 1]);
                mma_halves(KS[n], f, k[2 * n], k[2 * n + 1]);
                mma_bf16(QK[n], qa, k[2 * n], k[2 * n + 1]);
                mma_bf16(KQ[n], ka, q[2 * n], q[2 * n + 1]);
            }
        }
        float more[3][4] = {}; /* KM u, KS u, and the three sums over the states as if of a token each */
        TTT_SLICE(n, q)
        {
            const int e = 2 * n + q % 2, row = y.r + q / 2 * 8, token = y.token(n, q);
            more[0][e] += KM[n][q] * u[n][q], more[1][e] += KS[n][q] * u[n][q];
            du[n][q] = -(steps.M[LAST * TILE_ETA + token] * KM[n][q] + steps.S[LAST * TILE_ETA + token] * KS[n][q]);
            KQ[n][q] = row > token ? 0.0f : -KQ[n][q] * steps.M[token * TILE_ETA + row];
        }
        more[2][0] = M_dM, more[2][1] = S_dM, more[2][2] = S_dS;
        mma_square(du, halves_of(dout[0], dout[1]), KQ);
        float de[2][4], dw[2][4];
        tile_loss_back<D, 3>(y, norm, hat, bt, u, inverse, along, du, more, room.sums + tile_sums(3), de, dw);
        put_loss_back<D>(y, room.dz, room.de, du, de, dw, dnw, dnb);
        const float dkept = sum_tokens(more[2][0]), dlent = sum_tokens(more[2][1]), dleft = sum_tokens(more[2][2]);
        if ((int)threadIdx.x / 32 == TITANS_STEPS_WARP && y.r == 0)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int token = y.token(e);
                room.KMu[token] = more[0][e], room.KSu[token] = more[1][e];
                room.dkept[token] = sums[0][e] + (token == LAST ? dkept : 0.0f), room.dlent[token] = sums[1][e] + (token == LAST ? dlent : 0.0f);
            }
        const float kept = steps.kept[LAST], lent = steps.lent[LAST], left = steps.left[LAST];
        float to_M[2][4], to_S[2][4];
        TTT_SLICE(n, q) to_M[n][q] = steps.kept[y.token(n, q)] * dout[n][q], to_S[n][q] = steps.lent[y.token(n, q)] * dout[n][q];
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) dS[j][q] = lent * dM[j][q] + left * dS[j][q], dM[j][q] *= kept;
        add_outer<D>(y, dM, Q, halves_of(to_M[0], to_M[1]));
        add_outer<D>(y, dS, Q, halves_of(to_S[0], to_S[1]));
        add_outer<D>(y, dM, K, halves_of(du[0], du[1]));
        if (i + 1 < count) tile_coefficients(room.steps[~i & 1], gates);
        cp_async_wait<0>();
        __syncthreads();
        titans_tiles_rows_back<D>(g, y, room, i & 1, t, QK, dleft);
    }
    __syncthreads();
    give_state<D>(y, x.w.dM, dM);
    give_state<D>(y, x.w.dS, dS);
    TTT_EACH(i, c, D, D) x.w.dstart.row(i)[c] = 0.0f; /* as it was */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float w = sum_tokens(dnw[i]), b = sum_tokens(dnb[i]);
        if (y.mine && y.c == 0) x.norm.dw[y.first + 8 * i] += w, x.norm.db[y.first + 8 * i] += b;
    }
    __syncthreads();
}

#endif

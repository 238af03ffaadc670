/* Titans' whole mini-batches of 16 tokens on tensor cores, with memory and momentum (going back, their gradients) in registers: ttt_tiles.cuh, and in
 * segments: ttt_segments.cuh. The walk over a head's mini-batches (titans_head.cuh) hands over runs of them. A chain goes over the keys alone. */
#ifndef LNT_TITANS_TILES_CUH
#define LNT_TITANS_TILES_CUH

#include "recurrence/ttt/ttt_segments.cuh"

/* Gates of a mini-batch, and the coefficients of titans_work. */
struct alignas(16) titans_tile_steps {
    float M[TILE_TOKENS * TILE_ETA], S[TILE_TOKENS * TILE_ETA];
    float theta[TILE_TOKENS], keep[TILE_TOKENS], eta[TILE_TOKENS], kept[TILE_TOKENS], lent[TILE_TOKENS], left[TILE_TOKENS];
};
/* What chains want of a mini-batch's coefficients, which a kernel ahead of them makes: the triangles' last rows, the rows' own. */
enum { STEPS_M, STEPS_S = TILE_TOKENS, STEPS_KEPT = 2 * TILE_TOKENS, STEPS_LENT = 3 * TILE_TOKENS, STEPS_LEFT = 4 * TILE_TOKENS,
       STEPS_SIZE = 5 * TILE_TOKENS };

/* Three places for what comes with tokens, as in ttt_linear_tiles.cuh. */
template <int D> struct alignas(16) titans_ahead_room {
    bf16 rows[3][2 * ttt_place<D>::ROWS]; /* k v */
    float steps[3][STEPS_SIZE], sums[2][tile_sums(5)], mean[2][D]; /* of the columns of the rows of M and S */
};
template <int D> struct alignas(16) titans_query_room {
    bf16 rows[3][3 * ttt_place<D>::ROWS], out[2][ttt_place<D>::ROWS]; /* k q, going back dout */
    titans_tile_steps steps[3];
    float sums[2][tile_sums(2)];
};
/* Of a mini-batch: u as a slice, coefficients, hat as a slice, the loss's means; going back besides what du gets from the queries, later dg of the
 * norm in its place, dz, of tokens (K dM).u, (K dS).u, dO.(Q M) and dO.(Q S), and the upper halves of M and S as operands. */
template <int D> struct titans_record {
    static constexpr int U = 0, STEPS = U + 16 * D, HAT = STEPS + STEPS_SIZE, MEANS = HAT + 16 * D, PRE = MEANS + LOSS_MEANS * TILE_TOKENS;
    static constexpr int DG = PRE, CHAIN = PRE + 16 * D;
    static constexpr int DZ = CHAIN, KMU = DZ + 16 * D, KSU = KMU + TILE_TOKENS, KEPT = KSU + TILE_TOKENS, LENT = KEPT + TILE_TOKENS;
    static constexpr int M = LENT + TILE_TOKENS, S = M + D * D / 2, AHEAD = HAT, FLOATS = S + D * D / 2, STATE = 2 * D * D + 2 * D,
                         SUMS = 2 * D;
};
template <int D> struct alignas(16) titans_chain_room {
    float record[3][titans_record<D>::CHAIN];
    bf16 rows[3][3 * ttt_place<D>::ROWS]; /* k q dout */
    float sums[2][tile_sums(7)];
};
template <int D> struct alignas(16) titans_back_room {
    bf16 rows[2][4 * ttt_place<D>::ROWS]; /* k q v dout */
    bf16 M[D * ttt_place<D>::LD], S[D * ttt_place<D>::LD], dM[D * ttt_place<D>::LD], dS[D * ttt_place<D>::LD];
    bf16 dz[ttt_place<D>::ROWS], u[ttt_place<D>::ROWS];
    float de[TILE_TOKENS * (D + 4)];
    titans_tile_steps steps[2];
    float dM_part[TILE_TOKENS * TILE_ETA], to_keep[TILE_TOKENS * TILE_ETA], to_eta[TILE_TOKENS * TILE_ETA];
    float KMu[TILE_TOKENS], KSu[TILE_TOKENS], dkept[TILE_TOKENS], dlent[TILE_TOKENS], dots[TTT_WARPS][4];
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
/* Those of the first two mini-batches in three places, and the third's gates. */
template <typename HEAD>
__device__ __forceinline__ void first_coefficients(const HEAD &x, titans_tile_steps (&steps)[3], int64_t t, int64_t count,
                                                   float (&gates)[3])
{
    fetch_gates(x, t, gates);
    tile_coefficients(steps[0], gates);
    if (count < 2) return;
    fetch_gates(x, t + TILE_TOKENS, gates);
    tile_coefficients(steps[1], gates);
    if (count > 2) fetch_gates(x, t + 2 * TILE_TOKENS, gates);
}

/* Coefficients that chains want: a CTA a segment of a head, a warp a mini-batch. */
template <int D> static __global__ __launch_bounds__(TTT_THREADS) void titans_steps(const __grid_constant__ lnt_ttt_args a,
                                                                                    const __grid_constant__ ttt_segments s)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, row = lane % TILE_TOKENS;
    const ttt_segment x = segment_at(a, blockIdx.x / s.H, s.h0 + (int)(blockIdx.x % s.H));
    static_assert(SEGMENT <= TTT_WARPS);
    if (warp >= x.count) return;
    const int64_t t = x.t + warp * TILE_TOKENS, at = (t + row) * a.H + x.h;
    float *const to = s.record_of(x.n, t, x.h) + titans_record<D>::STEPS;
    const float theta = ((const float *)a.theta)[at], keeps = 1.0f - ((const float *)a.alpha)[at], etas = ((const float *)a.eta)[at];
    float M = 0, S = 0, kept = 1, lent = 0, left = 1, own_kept = 0, own_lent = 0;
#pragma unroll
    for (int i = 0; i < TILE_TOKENS; i++) {
        const float keep = __shfl_sync(~0u, keeps, i), eta = __shfl_sync(~0u, etas, i);
        S = i < row ? 0.0f : i == row ? theta : eta * S;
        M = (i > row ? keep * M : 0.0f) + S;
        kept = keep * kept, left = eta * left, lent = keep * lent + left;
        if (i == row) own_kept = kept, own_lent = lent;
    }
    if (lane >= TILE_TOKENS) return;
    to[STEPS_M + row] = M, to[STEPS_S + row] = S, to[STEPS_KEPT + row] = own_kept, to[STEPS_LENT + row] = own_lent, to[STEPS_LEFT + row] = left;
}

/* A run's mini-batches from token t on, keys alone. BACK: what going back wants of them too. A norm does not see the mean of its columns, and u has
 * none: those of M and S are taken off at first, and follow M's and S's recurrence, a factor of each other's. Long: what a mini-batch makes lives in
 * registers from one step of it to the next. */
template <int D, bool BACK, typename HEAD> __device__ __noinline__ void titans_chain_ahead(HEAD &x, int64_t t, int64_t count)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[]; /* not by a pointer: loads and stores know that they are of shared memory */
    titans_ahead_room<D> &room = *(titans_ahead_room<D> *)memory;
    const ttt_place<D> y;
    constexpr int ROWS = ttt_place<D>::ROWS, LAST = TILE_TOKENS - 1;
    const ttt_segments &s = *x.segments;
    const int64_t slot = ttt_slot(x.n, t);
    float *record = s.record_of(x.n, t, g.h), *state = s.state_of(false, slot, g.h);
    const int64_t record_step = s.H * s.record, state_step = s.H * s.state;
    unsigned *const flag = s.flag(false, slot, g.h);
    const int flag_step = s.H;
    float M[D / 8][4], S[D / 8][4], M_of_M = 1, M_of_S = 0, S_of_S = 1; /* what the means have become */
    ttt_tile_norm norm;
    for (int i = y.id; i < 2 * D; i += TTT_THREADS) {
        const float *from = i < D ? x.w.M.row(i) : x.w.S.row(i - D);
        float sum = 0;
#pragma unroll 8
        for (int c = 0; c < D; c++) sum += from[c];
        room.mean[i / D][i % D] = sum / D;
    }
    take_state<D>(y, M, x.w.M);
    take_state<D>(y, S, x.w.S);
    __syncthreads();
    const auto add_means = [&](float by, float M_by, float S_by) {
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int row = 8 * j + 2 * y.c + q % 2;
                M[j][q] += by * room.mean[0][row] + M_by * room.mean[1][row], S[j][q] += S_by * room.mean[1][row];
            }
    };
    add_means(-1, 0, -1);
#pragma unroll
    for (int i = 0; i < 2; i++) norm.w[i] = x.norm.w[y.first + 8 * i], norm.b[i] = x.norm.b[y.first + 8 * i];
    const auto fetch = [&](int64_t to, int64_t ahead) {
        const float *from = record + ahead * record_step + titans_record<D>::STEPS;
        if (y.id < STEPS_SIZE / 4) cp_async_16(shared_address(room.steps[to] + 4 * y.id), from + 4 * y.id);
        fetch_rows<D, 2>(room.rows[to], { g.a.k, g.a.v }, t + ahead * TILE_TOKENS, g.a.H, g.h);
        cp_async_commit();
    };
    fetch(0, 0);
    cp_async_wait<0>();
    __syncthreads();
    if (count > 1) fetch(1, 1);
    for (int64_t i = 0, now = 0; i < count; i++, t += TILE_TOKENS, record += record_step) {
        const int64_t next = now == 2 ? 0 : now + 1, then = next == 2 ? 0 : next + 1;
        const bf16 *const K = room.rows[now], *const V = K + ROWS;
        const float *const steps = room.steps[now];
        if (i % SEGMENT == 0) { /* and their means */
            keep_state<D>(y, state, M);
            keep_state<D>(y, state + D * D, S);
            if (y.id < D)
                state[2 * D * D + y.id] = M_of_M * room.mean[0][y.id] + M_of_S * room.mean[1][y.id];
            else if (y.id < 2 * D)
                state[2 * D * D + y.id] = S_of_S * room.mean[1][y.id - D];
            state += state_step;
        }
        float z[2][4] = {}, bt[2][4], u[2][4], means[LOSS_MEANS][4];
        add_read<D>(y, z, M, K);
        TTT_SLICE(n, q)
        {
            const int at = y.at(n, q);
            bt[n][q] = norm.b[q / 2] - (to_float(V[at]) - to_float(K[at]));
        }
        cp_async_wait<0>(); /* the next rows: behind the barrier they are there for everybody */
        tile_loss<D>(y, norm, z, bt, room.sums[i & 1], means, u);
        if (y.id == 0 && i && i % SEGMENT == 0) ttt_publish(flag + (i / SEGMENT - 1) * flag_step);
        if (i + 2 < count) fetch(then, 2);
        const float kept = steps[STEPS_KEPT + LAST], lent = steps[STEPS_LENT + LAST], left = steps[STEPS_LEFT + LAST];
        float to_M[2][4], to_S[2][4];
        TTT_SLICE(n, q)
        {
            to_M[n][q] = -u[n][q] * steps[STEPS_M + y.token(n, q)];
            to_S[n][q] = -u[n][q] * steps[STEPS_S + y.token(n, q)];
        }
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) M[j][q] = kept * M[j][q] + lent * S[j][q], S[j][q] *= left;
        M_of_M *= kept, M_of_S = kept * M_of_S + lent * S_of_S, S_of_S *= left;
        add_outer<D>(y, M, K, halves_of(to_M[0], to_M[1]));
        add_outer<D>(y, S, K, halves_of(to_S[0], to_S[1]));
        record_slice<D>(y, record + titans_record<D>::U, u);
        if (BACK) {
            record_slice<D>(y, record + titans_record<D>::HAT, z);
            record_means<D>(y, record + titans_record<D>::MEANS, means);
        }
        now = next;
    }
    __syncthreads();
    if (y.id == 0) ttt_publish(flag + (count - 1) / SEGMENT * flag_step);
    add_means(M_of_M, M_of_S, S_of_S);
    give_state<D>(y, x.w.M, M);
    give_state<D>(y, x.w.S, S);
    __syncthreads();
}

/* A segment's queries: its outputs or, BACK, what comes back of them. Long: as the chain. */
template <int D, bool BACK> __device__ __noinline__ void titans_tiles_queries(const ttt_segments &s, const ttt_segment &x)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[];
    titans_query_room<D> &room = *(titans_query_room<D> *)memory;
    const ttt_place<D> y;
    constexpr int ROWS = ttt_place<D>::ROWS, LAST = TILE_TOKENS - 1;
    using is = titans_record<D>;
    const int count = x.count;
    int64_t t = x.t;
    float *record = s.record_of(x.n, t, g.h), M[D / 8][4], S[D / 8][4], gates[3] = {};
    const float *const state = s.state_of(false, x.slot, g.h);
    const int64_t record_step = s.H * s.record;
    kept_state<D>(y, M, state);
    kept_state<D>(y, S, state + D * D);
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const float *mean = state + 2 * D * D + 8 * j + 2 * y.c + q % 2;
            M[j][q] += mean[0], S[j][q] += mean[D];
        }
    const auto fetch = [&](int to, int64_t from) {
        if constexpr (BACK)
            fetch_rows<D, 3>(room.rows[to], { g.a.k, g.a.q, g.a.dout }, from, g.a.H, g.h);
        else
            fetch_rows<D, 2>(room.rows[to], { g.a.k, g.a.q }, from, g.a.H, g.h);
        cp_async_commit();
    };
    fetch(0, t);
    first_coefficients(g, room.steps, t, count, gates);
    cp_async_wait<0>();
    __syncthreads();
    if (count > 1) fetch(1, t + TILE_TOKENS);
    for (int i = 0, now = 0; i < count; i++, t += TILE_TOKENS, record += record_step) {
        const int next = now == 2 ? 0 : now + 1, then = next == 2 ? 0 : next + 1;
        bf16 *const K = room.rows[now], *const Q = K + ROWS, *const dO = Q + ROWS;
        const uint32_t keys = shared_address(K) + y.plain(), queries = shared_address(Q) + y.plain();
        const titans_tile_steps &steps = room.steps[now];
        float u[2][4], QM[2][4] = {}, QS[2][4] = {}, A[2][4] = {}, At[2][4] = {};
        recorded_slice<D>(y, u, record + is::U);
#pragma unroll
        for (int p = 0; p < D / 16; p++) {
            uint32_t k[4], q[4], ka[4], qa[4];
            ldmatrix_x4(k, keys + p * 32);
            ldmatrix_x4(q, queries + p * 32);
            as_rows(ka, k);
            as_rows(qa, q);
            const ttt_halves m = halves_of(M[2 * p], M[2 * p + 1]), f = halves_of(S[2 * p], S[2 * p + 1]);
            if (BACK) record_plane<D>(y, record + is::M, p, m.high), record_plane<D>(y, record + is::S, p, f.high);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                mma_halves(QM[n], m, q[2 * n], q[2 * n + 1]);
                mma_halves(QS[n], f, q[2 * n], q[2 * n + 1]);
                if (BACK)
                    mma_bf16(At[n], ka, q[2 * n], q[2 * n + 1]);
                else
                    mma_bf16(A[n], qa, k[2 * n], k[2 * n + 1]);
            }
        }
        if constexpr (BACK) {
            float dout[2][4], pre[2][4] = {}, sums[2][4] = {};
            TTT_SLICE(n, q)
            {
                const int e = 2 * n + q % 2, row = y.r + q / 2 * 8, j = y.token(n, q);
                const float d = dout[n][q] = to_float(dO[y.at(n, q)]);
                sums[0][e] += d * QM[n][q], sums[1][e] += d * QS[n][q];
                At[n][q] = row > j ? 0.0f : -At[n][q] * steps.M[j * TILE_ETA + row];
            }
            mma_square(pre, halves_of(dout[0], dout[1]), At);
            record_slice<D>(y, record + is::PRE, pre);
            cp_async_wait<0>();
            sum_columns<D>(y, sums, room.sums[i & 1]); /* its barrier: the next rows are there for everybody */
            if (y.id < 32 && y.r == 0)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    record[is::KEPT + y.token(e)] = sums[0][e], record[is::LENT + y.token(e)] = sums[1][e];
        } else {
            TTT_SLICE(n, q)
            {
                const int row = y.r + q / 2 * 8, j = y.token(n, q);
                A[n][q] = j > row ? 0.0f : -A[n][q] * steps.M[row * TILE_ETA + j];
                QM[n][q] = steps.kept[j] * QM[n][q] + steps.lent[j] * QS[n][q];
            }
            mma_square(QM, halves_of(u[0], u[1]), A);
            put_slice<D>(y, room.out[i & 1], QM);
            cp_async_wait<0>();
            __syncthreads();
            put_rows<D>(g.a.o, room.out[i & 1], t, g.a.H, g.h);
        }
        if (i + 2 < count) fetch(then, t + 2 * TILE_TOKENS);
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
        if (i + 2 < count) tile_coefficients(room.steps[then], gates);
        if (i + 3 < count) fetch_gates(g, t + 3 * TILE_TOKENS, gates);
        now = next;
    }
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

/* A run's mini-batches back from the one that begins with token t, keys alone but for what queries add to the states: x.w's dM and dS from behind
 * them become those in front. Long: as the one ahead. */
template <int D, typename HEAD> __device__ __noinline__ void titans_chain_back(HEAD &x, int64_t t, int64_t count)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[];
    titans_chain_room<D> &room = *(titans_chain_room<D> *)memory;
    const ttt_place<D> y;
    constexpr int ROWS = ttt_place<D>::ROWS, LAST = TILE_TOKENS - 1, KMU = BACK_SUMS, KSU = BACK_SUMS + 1;
    using is = titans_record<D>;
    const ttt_segments &s = *x.segments;
    const int64_t slot = ttt_slot(x.n, t - (count - 1) * TILE_TOKENS);
    float *record = s.record_of(x.n, t, g.h), *state = s.state_of(true, slot, g.h), dM[D / 8][4], dS[D / 8][4], square = 0;
    const int64_t record_step = s.H * s.record, state_step = s.H * s.state;
    unsigned *const flag = s.flag(true, slot, g.h);
    const int flag_step = s.H;
    ttt_tile_norm norm;
    for (int c = 0; c < D; c++) square += x.norm.w[c] * x.norm.w[c];
    square /= D;
    take_state<D>(y, dM, x.w.dM);
    take_state<D>(y, dS, x.w.dS);
#pragma unroll
    for (int i = 0; i < 2; i++) norm.w[i] = x.norm.w[y.first + 8 * i];
    __syncthreads();
    const auto fetch = [&](int64_t to, int64_t back) { /* so many mini-batches in front of this one */
        const float *from = record - back * record_step;
        for (int j = y.id; j < is::CHAIN / 4; j += TTT_THREADS) cp_async_16(shared_address(room.record[to] + 4 * j), from + 4 * j);
        fetch_rows<D, 3>(room.rows[to], { g.a.k, g.a.q, g.a.dout }, t - back * TILE_TOKENS, g.a.H, g.h);
        cp_async_commit();
    };
    fetch(0, 0);
    cp_async_wait<0>();
    __syncthreads();
    if (count > 1) fetch(1, 1);
    for (int64_t i = count - 1, now = 0; i >= 0; i--) { /* from the run's first mini-batch on */
        const int64_t next = now == 2 ? 0 : now + 1, then = next == 2 ? 0 : next + 1;
        const bf16 *const K = room.rows[now], *const Q = K + ROWS, *const dO = Q + ROWS;
        const uint32_t keys = shared_address(K) + y.plain();
        const float *const from = room.record[now], *const steps = from + is::STEPS;
        if (i + 1 == count || i % SEGMENT == SEGMENT - 1) {
            keep_state<D>(y, state + i / SEGMENT * state_step, dM);
            keep_state<D>(y, state + i / SEGMENT * state_step + D * D, dS);
        }
        float KM[2][4] = {}, KS[2][4] = {}, u[2][4], hat[2][4], du[2][4], dg[2][4], sums[BACK_SUMS + 2][4] = {}, means[LOSS_MEANS][4];
#pragma unroll
        for (int p = 0; p < D / 16; p++) {
            uint32_t k[4];
            ldmatrix_x4(k, keys + p * 32);
            const ttt_halves d = halves_of(dM[2 * p], dM[2 * p + 1]), f = halves_of(dS[2 * p], dS[2 * p + 1]);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                mma_halves(KM[n], d, k[2 * n], k[2 * n + 1]);
                mma_halves(KS[n], f, k[2 * n], k[2 * n + 1]);
            }
        }
        recorded_slice<D>(y, u, from + is::U);
        recorded_slice<D>(y, hat, from + is::HAT);
        recorded_slice<D>(y, du, from + is::PRE);
        TTT_SLICE(n, q)
        {
            const int e = 2 * n + q % 2, j = y.token(e);
            const float w2 = norm.of(q) * norm.of(q);
            const float d = du[n][q] -= steps[STEPS_M + j] * KM[n][q] + steps[STEPS_S + j] * KS[n][q];
            sums[BACK_U][e] += d * u[n][q], sums[KMU][e] += KM[n][q] * u[n][q], sums[KSU][e] += KS[n][q] * u[n][q];
            sums[BACK_DU][e] += d, sums[BACK_HAT][e] += hat[n][q] * d;
            sums[BACK_FIRST][e] += w2 * d, sums[BACK_SQUARE][e] += w2 * hat[n][q] * d;
        }
        cp_async_wait<0>(); /* the next rows: behind the barrier they are there for everybody */
        sum_columns<D>(y, sums, room.sums[i & 1]);
        if (y.id == 0 && i + 1 < count && i % SEGMENT == SEGMENT - 1) ttt_publish(flag + (i / SEGMENT + 1) * flag_step);
        if (i > 1) fetch(then, 2);
        if (y.id < 32 && y.r == 0)
#pragma unroll
            for (int e = 0; e < 4; e++) record[is::KMU + y.token(e)] = sums[KMU][e], record[is::KSU + y.token(e)] = sums[KSU][e];
#pragma unroll
        for (int k = 0; k < LOSS_MEANS; k++)
#pragma unroll
            for (int e = 0; e < 4; e++) means[k][e] = from[is::MEANS + k * TILE_TOKENS + y.token(e)];
        tile_loss_back<D>(norm, hat, u, means, square, sums, du, dg);
        record_slice<D>(y, record + is::DG, dg);
        record_slice<D>(y, record + is::DZ, du);
        const float kept = steps[STEPS_KEPT + LAST], lent = steps[STEPS_LENT + LAST], left = steps[STEPS_LEFT + LAST];
        float to_M[2][4], to_S[2][4];
        TTT_SLICE(n, q)
        {
            const float d = to_float(dO[y.at(n, q)]);
            to_M[n][q] = steps[STEPS_KEPT + y.token(n, q)] * d, to_S[n][q] = steps[STEPS_LENT + y.token(n, q)] * d;
        }
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) dS[j][q] = lent * dM[j][q] + left * dS[j][q], dM[j][q] *= kept;
        add_outer<D>(y, dM, Q, halves_of(to_M[0], to_M[1]));
        add_outer<D>(y, dS, Q, halves_of(to_S[0], to_S[1]));
        add_outer<D>(y, dM, K, halves_of(du[0], du[1]));
        record -= record_step, t -= TILE_TOKENS, now = next;
    }
    __syncthreads();
    if (y.id == 0) ttt_publish(flag);
    give_state<D>(y, x.w.dM, dM);
    give_state<D>(y, x.w.dS, dS);
    __syncthreads();
}

/* A segment back: the gradients of its rows and gates, from what the chain has left. Long: as the chain. */
template <int D> __device__ __noinline__ void titans_tiles_back(const ttt_segments &s, const ttt_segment &x)
{
    const ttt_tile_call g(x);
    extern __shared__ __align__(16) float memory[];
    titans_back_room<D> &room = *(titans_back_room<D> *)memory;
    const ttt_place<D> y;
    constexpr int ROWS = ttt_place<D>::ROWS, LAST = TILE_TOKENS - 1;
    using is = titans_record<D>;
    int64_t t = x.t + (x.count - 1) * TILE_TOKENS;
    const float *record = s.record_of(x.n, t, g.h), *const state = s.state_of(true, x.slot, g.h);
    const int64_t record_step = s.H * s.record;
    float dM[D / 8][4], dS[D / 8][4], dnw[2] = {}, dnb[2] = {}, gates[3] = {};
    ttt_tile_norm norm;
    kept_state<D>(y, dM, state);
    kept_state<D>(y, dS, state + D * D);
#pragma unroll
    for (int i = 0; i < 2; i++)
        norm.w[i] = weights_of(x.a.ln_w, g.h, D)[y.first + 8 * i], norm.b[i] = weights_of(x.a.ln_b, g.h, D)[y.first + 8 * i];
    fetch_rows<D, 4>(room.rows[0], { g.a.k, g.a.q, g.a.v, g.a.dout }, t, g.a.H, g.h);
    cp_async_commit();
    fetch_gates(g, t, gates);
    tile_coefficients(room.steps[0], gates);
    cp_async_wait<0>();
    __syncthreads();
    for (int i = 0; i < x.count; i++, t -= TILE_TOKENS, record -= record_step) {
        const bf16 *const K = room.rows[i & 1], *const Q = K + ROWS, *const V = Q + ROWS, *const dO = V + ROWS;
        const uint32_t keys = shared_address(K) + y.plain(), queries = shared_address(Q) + y.plain();
        const titans_tile_steps &steps = room.steps[i & 1];
        if (i + 1 < x.count) {
            fetch_rows<D, 4>(room.rows[~i & 1], { g.a.k, g.a.q, g.a.v, g.a.dout }, t - TILE_TOKENS, g.a.H, g.h);
            cp_async_commit();
            fetch_gates(g, t - TILE_TOKENS, gates);
            const char *next = (const char *)(record - record_step);
            for (int j = y.id; j < (int)(is::FLOATS * sizeof(float) / 128); j += TTT_THREADS) ahead_l2(next + j * 128);
        }
        /* The states as rows of numbers of bf16, what M and S have with dM and dS in common; Q K^T of rows i, columns j */
        float QK[2][4] = {}, M_dM = 0, S_dM = 0, S_dS = 0;
        constexpr int AT_ONCE = 4; /* loads on their way together */
        uint32_t ms[AT_ONCE][4], ss[AT_ONCE][4];
#pragma unroll
        for (int p = 0; p < D / 16; p++) {
            uint32_t k[4], q[4], qa[4];
            if (p % AT_ONCE == 0)
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++) {
                    recorded_plane<D>(y, ms[j], record + is::M, p + j);
                    recorded_plane<D>(y, ss[j], record + is::S, p + j);
                }
            const uint32_t(&m)[4] = ms[p % AT_ONCE], (&f)[4] = ss[p % AT_ONCE];
            ldmatrix_x4(k, keys + p * 32);
            ldmatrix_x4(q, queries + p * 32);
            as_rows(qa, q);
            put_plane<D>(y, room.M, p, m);
            put_plane<D>(y, room.S, p, f);
            uint32_t d[4], e[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float d0 = dM[2 * p + j / 2][j % 2 * 2], d1 = dM[2 * p + j / 2][j % 2 * 2 + 1];
                const float e0 = dS[2 * p + j / 2][j % 2 * 2], e1 = dS[2 * p + j / 2][j % 2 * 2 + 1];
                M_dM += low_bf16(m[j]) * d0 + high_bf16(m[j]) * d1;
                S_dM += low_bf16(f[j]) * d0 + high_bf16(f[j]) * d1;
                S_dS += low_bf16(f[j]) * e0 + high_bf16(f[j]) * e1;
                d[j] = pack_bf16(d0, d1), e[j] = pack_bf16(e0, e1);
            }
            put_plane<D>(y, room.dM, p, d);
            put_plane<D>(y, room.dS, p, e);
#pragma unroll
            for (int n = 0; n < 2; n++) mma_bf16(QK[n], qa, k[2 * n], k[2 * n + 1]);
        }
        M_dM = warp_sum(M_dM), S_dM = warp_sum(S_dM), S_dS = warp_sum(S_dS);
        if (y.mine && y.lane == 0) room.dots[y.warp][0] = M_dM, room.dots[y.warp][1] = S_dM, room.dots[y.warp][2] = S_dS;
        float u[2][4], hat[2][4], dg[2][4], dz[2][4], to_M[2][4], to_S[2][4];
        recorded_slice<D>(y, u, record + is::U);
        recorded_slice<D>(y, hat, record + is::HAT);
        recorded_slice<D>(y, dg, record + is::DG);
        recorded_slice<D>(y, dz, record + is::DZ);
        TTT_SLICE(n, q)
        {
            const int token = y.token(n, q), at = y.at(n, q);
            const float w = norm.w[q / 2], de = w * dg[n][q], e = w * hat[n][q] + norm.b[q / 2] - (to_float(V[at]) - to_float(K[at]));
            dnw[q / 2] += e * dg[n][q] + hat[n][q] * de, dnb[q / 2] += de;
            if (y.mine) room.de[token * (D + 4) + y.column(q)] = de;
            const float d = to_float(dO[at]);
            to_M[n][q] = steps.kept[token] * d, to_S[n][q] = steps.lent[token] * d;
        }
        put_slice<D>(y, room.u, u);
        put_slice<D>(y, room.dz, dz);
        const float kept = steps.kept[LAST], lent = steps.lent[LAST], left = steps.left[LAST];
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) dS[j][q] = lent * dM[j][q] + left * dS[j][q], dM[j][q] *= kept;
        add_outer<D>(y, dM, Q, halves_of(to_M[0], to_M[1]));
        add_outer<D>(y, dS, Q, halves_of(to_S[0], to_S[1]));
        add_outer<D>(y, dM, K, halves_of(dz[0], dz[1]));
        if (i + 1 < x.count) tile_coefficients(room.steps[~i & 1], gates);
        cp_async_wait<0>();
        __syncthreads();
        float dots[3] = {};
        if (y.id / 32 == TITANS_STEPS_WARP) {
#pragma unroll
            for (int w = 0; w < ttt_place<D>::WARPS; w++)
#pragma unroll
                for (int k = 0; k < 3; k++) dots[k] += room.dots[w][k];
            if (y.lane < TILE_TOKENS) {
                room.KMu[y.lane] = record[is::KMU + y.lane], room.KSu[y.lane] = record[is::KSU + y.lane];
                room.dkept[y.lane] = record[is::KEPT + y.lane] + (y.lane == LAST ? dots[0] : 0.0f);
                room.dlent[y.lane] = record[is::LENT + y.lane] + (y.lane == LAST ? dots[1] : 0.0f);
            }
            __syncwarp();
        }
        titans_tiles_rows_back<D>(g, y, room, i & 1, t, QK, dots[2]);
        __syncthreads();
    }
    put_norm_sums<D>(y, s.sums_of(true, x.slot, g.h), dnw, dnb);
}

#endif

/* The decay core's backward pass on tensor cores, chunk by chunk: the states in front of every chunk and the gradients of those behind it are there
 * (decay_tiles_states), so chunks wait for nothing, and a CTA goes through the value heads of its chunk that read the same q and k. Of a head h, with
 * D_ij = e^{b_i-b_j} for j <= i, S in front of the chunk, dS behind it, read_i = s e^{b_i}, write_j = e^{b_n-b_j}:
 *
 *   A = s q k^T, B_h = do_h v_h^T          dv_h = write . (k dS_h) + (D_h A)^T do_h
 *   dq = sum_h (read . do_h) S_h^T + G k   dk = sum_h (write . v_h) dS_h^T + G^T q,          G = s sum_h D_h B_h
 *
 * A is made once; G and what dq and dk read from states are sums in registers, which take two products of a chunk, not of a head. What the gates'
 * gradient needs of a head is on the way: rows of M = D A B less its columns, the dots (read . q S) . do and (write . k dS) . v.
 * A warp has 16 rows, and half of the columns, of whatever is made. */
#include "recurrence/decay/decay_tiles.cuh"
#include "recurrence/recur_cuda.cuh"

static constexpr int WARPS = 8, BACK_THREADS = 32 * WARPS;

/* Dynamic shared memory, in bytes from its beginning. */
template <int K, int V> struct back_places {
    static constexpr int q = 0, k = q + C * 2 * K, v = k + C * 2 * K, d_o = v + C * 2 * V, S = d_o + C * 2 * V, dS = S + V * 2 * K,
                         pairs = dS + V * 2 * K, A = pairs + C * 2 * C, end = A + C * 4 * C;
};
struct back_small {
    tile_factors factors[2];                           /* of this head and the next */
    float rows[2][C], columns[4][C], dots[2][2][C];    /* of M, by halves of columns, by 16 rows; reads and writes, by halves of columns */
};

/* acc += X Y^T, 16 rows of X and 8 N of Y, both with W columns in shared memory. */
template <int W, int N> __device__ __forceinline__ void times_rows(float (&acc)[N][4], uint32_t left, uint32_t right)
{
#pragma unroll
    for (int ks = 0; ks < W / 16; ks++) {
        uint32_t X[4];
        ldmatrix_x4(X, left ^ (uint32_t)(ks << 5));
#pragma unroll
        for (int n = 0; n < N / 2; n++) {
            uint32_t Y[4];
            ldmatrix_x4(Y, (right ^ (uint32_t)(ks << 5)) + n * 16 * W * 2);
            mma_bf16(acc[2 * n], X, Y[0], Y[1]);
            mma_bf16(acc[2 * n + 1], X, Y[2], Y[3]);
        }
    }
}
/* acc += X Y, 16 rows of Y from `right` on. */
template <int N> __device__ __forceinline__ void times_columns(float (&acc)[N][4], const uint32_t (&X)[4], uint32_t right)
{
#pragma unroll
    for (int n = 0; n < N / 2; n++) {
        uint32_t Y[4];
        ldmatrix_x4_trans(Y, right ^ (uint32_t)(n << 5));
        mma_bf16(acc[2 * n], X, Y[0], Y[1]);
        mma_bf16(acc[2 * n + 1], X, Y[2], Y[3]);
    }
}
/* acc += (factor . X) S^T: rows of X, which has V columns, and the warp's half of the K rows of S, which lies transposed. */
template <int K, int V> __device__ __forceinline__ void times_state(float (&acc)[K / 16][4], uint32_t X, uint32_t S, const float *factor)
{
    const int tid = anew((int)threadIdx.x), row = tid / 32 % 4 * 16, r = tid % 32 >> 2;
    const float up = factor[row + r], down = factor[row + r + 8];
    const uint32_t left = rows_first<V>(X + (uint32_t)(row * V * 2)), right = anew(rows_first<K>(S) ^ (uint32_t)(tid / 128 * K));
#pragma unroll
    for (int ks = 0; ks < V / 16; ks++) {
        uint32_t x[4];
        ldmatrix_x4(x, left ^ (uint32_t)(ks << 5));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float by = i & 1 ? down : up;
            x[i] = pack_bf16(by * low_bf16(x[i]), by * high_bf16(x[i]));
        }
        times_columns<K / 16>(acc, x, right + ks * 16 * K * 2);
    }
}

/* to[rows of the warp] = dots of those of acc with those of the tile y [64][W], in the warp's half of the columns. */
template <int W> __device__ __forceinline__ void put_dots(const float (&acc)[W / 16][4], uint32_t y, float *to)
{
    const int tid = anew((int)threadIdx.x), row = tid / 32 % 4 * 16, r = tid % 32 >> 2, c = tid & 3, first = tid / 128 * (W / 16);
    const uint32_t from = anew(y + (uint32_t)((row + r) * W * 2 + (r << 4) + 4 * c));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float dot = 0;
#pragma unroll
        for (int n = 0; n < W / 16; n++) {
            uint32_t two;
            asm volatile("ld.shared.b32 %0, [%1];" : "=r"(two) : "r"((from ^ (uint32_t)((first + n) << 4)) + half * 8 * W * 2) : "memory");
            dot += low_bf16(two) * acc[n][2 * half] + high_bf16(two) * acc[n][2 * half + 1];
        }
        dot += __shfl_xor_sync(~0u, dot, 1);
        dot += __shfl_xor_sync(~0u, dot, 2);
        if (c == 0) to[row + half * 8 + r] = dot;
    }
}

/* The warp's rows and half of W columns to where row 0 of the chunk lies, rows `pitch` elements apart, of which there are `len`. */
template <int W> __device__ __forceinline__ void put_rows(const float (&acc)[W / 16][4], void *out, int wide, int64_t at, int pitch, int len)
{
    const int tid = anew((int)threadIdx.x), row = tid / 32 % 4 * 16 + (tid % 32 >> 2), c = tid & 3, first = tid / 128 * (W / 2);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row + half * 8;
        if (wide) {
            float *to = (float *)out + at + (int64_t)i * pitch + first + 2 * c;
            if (i < len)
#pragma unroll
                for (int n = 0; n < W / 16; n++) *(float2 *)(to + n * 8) = make_float2(acc[n][2 * half], acc[n][2 * half + 1]);
            continue;
        }
        bf16 *to = (bf16 *)out + at + (int64_t)i * pitch + first + 8 * c;
#pragma unroll
        for (int n = 0; n < W / 16; n += 4) {
            uint32_t mine[4];
#pragma unroll
            for (int j = 0; j < 4; j++) mine[j] = pack_bf16(acc[n + j][2 * half], acc[n + j][2 * half + 1]);
            const uint4 y = hand_round(mine);
            if (i < len) *(uint4 *)(to + n * 8) = y;
        }
    }
}

/* A head's pairs: D A to shared memory as bf16, D B added to G, sums of M's rows and columns. The warp's 16 rows and 32 columns have some on or below
 * the diagonal. */
template <int V>
__device__ __forceinline__ void head_pairs(float (&G)[4][4], uint32_t d_o, uint32_t v, uint32_t pairs, const float *A, const tile_factors &f,
                                           back_small *small, bool sums)
{
    const int tid = anew((int)threadIdx.x), warp = tid / 32, lane = tid % 32, r = lane >> 2, c2 = 2 * (lane & 3);
    const int row = warp % 4 * 16, half = warp / 4;
    float B[4][4] = {}, in_row[2] = {}, in_column[8] = {};
    times_rows<V>(B, rows_first<V>(d_o + (uint32_t)(row * V * 2)), units_first<V>(v + (uint32_t)(half * 32 * V * 2)));
    const float hi[2] = { f.hi[row + r], f.hi[row + r + 8] }, lo[2] = { f.lo[row + r], f.lo[row + r + 8] };
    const uint32_t to = anew(pairs + (uint32_t)((row + r) * C * 2 + (r << 4) + 2 * c2));
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int j = half * 32 + n * 8 + c2;
        const float2 writer_hi = *(const float2 *)(f.writer_hi + j), writer_lo = *(const float2 *)(f.writer_lo + j);
        const float4 a4 = *(const float4 *)(A + (n * BACK_THREADS + tid) * 4);
        const float a[4] = { a4.x, a4.y, a4.z, a4.w };
#pragma unroll
        for (int m = 0; m < 2; m++) {
            float P[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int i = row + m * 8 + r;
                const float to_here = tile_between(hi[m], lo[m], e ? writer_hi.y : writer_hi.x, e ? writer_lo.y : writer_lo.x);
                const float D = j + e <= i ? to_here : 0.0f, b = B[n][2 * m + e];
                P[e] = D * a[2 * m + e];
                G[n][2 * m + e] += D * b;
                const float M = j + e < i ? P[e] * b : 0.0f;
                in_row[m] += M;
                in_column[2 * n + e] += M;
            }
            store_shared((to ^ (uint32_t)((half * 4 + n) << 4)) + m * 8 * C * 2, pack_bf16(P[0], P[1]));
        }
    }
    if (!sums) return;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        in_row[m] += __shfl_xor_sync(~0u, in_row[m], 1);
        in_row[m] += __shfl_xor_sync(~0u, in_row[m], 2);
        if (c2 == 0) small->rows[half][row + m * 8 + r] = in_row[m];
    }
    /* eight sums over eight lanes, in each step half of them by either of two: lane r ends with the r-th */
#pragma unroll
    for (int o = 4; o; o >>= 1)
#pragma unroll
        for (int i = 0; i < o; i++) {
            const bool upper = r & o;
            const float mine = upper ? in_column[i + o] : in_column[i], other = upper ? in_column[i] : in_column[i + o];
            in_column[i] = mine + __shfl_xor_sync(~0u, other, 4 * o);
        }
    small->columns[warp % 4][half * 32 + r / 2 * 8 + c2 + r % 2] = in_column[0];
}

/* By one warp: intra_i = the sum over rows i .. of the chunk of (row less column of M). */
__device__ __forceinline__ void put_intra(const back_small *small, float *to, int len)
{
    const int lane = (int)threadIdx.x % 32;
    float d[2];
    for (int j = 0; j < 2; j++) {
        const int i = 2 * lane + j;
        const bool low = i < 32; /* rows that have no right half, columns that all rows have */
        const float row = low ? small->rows[0][i] : small->rows[0][i] + small->rows[1][i];
        const float above = low ? small->columns[0][i] + small->columns[1][i] : 0.0f;
        d[j] = row - (above + (small->columns[2][i] + small->columns[3][i]));
    }
    float after = d[0] + d[1];
    for (int o = 1; o < 32; o <<= 1) {
        const float right = __shfl_down_sync(~0u, after, o);
        if (lane + o < 32) after += right;
    }
    const float right = __shfl_down_sync(~0u, after, 1);
    if (2 * lane < len) to[2 * lane] = after;
    if (2 * lane + 1 < len) to[2 * lane + 1] = (lane < 31 ? right : 0.0f) + d[1];
}

/* A state [V][K] as a tile. */
template <int K, int V> __device__ __forceinline__ void load_state(uint32_t tile, const bf16 *from)
{
    constexpr int UNITS = K / 8, ROWS = BACK_THREADS / UNITS;
    const int tid = anew((int)threadIdx.x), unit = tid % UNITS, row = tid / UNITS;
    const uint32_t to = tile + (uint32_t)(row * K * 2 + ((unit ^ (row & 7)) << 4));
    from += tid * 8;
#pragma unroll
    for (int i = 0; i < V / ROWS; i++) cp_async_16(to + i * ROWS * K * 2, from + i * BACK_THREADS * 8);
}

/* Long: the sums of all heads stay in registers, and the stages of a head share its tiles. */
template <int K, int V>
__global__ __launch_bounds__(BACK_THREADS, K + V == 256 ? 1 : 2) void decay_tiles_back(const __grid_constant__ decay_cut x,
                                                                                      const __grid_constant__ decay_back a, int chunks)
{
    extern __shared__ __align__(256) unsigned char memory[];
    __shared__ back_small small;
    using place = back_places<K, V>;
    const int tid = (int)threadIdx.x, warp = tid / 32, row = warp % 4 * 16, half = warp / 4;
    const unsigned Hq = (unsigned)a.q.heads, parts = (unsigned)a.parts, part = blockIdx.x % parts, hq = blockIdx.x / parts % Hq;
    const unsigned i0 = blockIdx.x / parts / Hq, n = i0 / (unsigned)chunks, c = i0 % (unsigned)chunks;
    const int64_t t = x.cu[n] + (int64_t)c * C, end = x.cu[n + 1];
    if (t >= end) {
        await_last();
        return let_next();
    }
    const int len = (int)(end - t < C ? end - t : C), heads = x.Hv / (int)(Hq * parts), first = (int)(hq * parts + part) * heads;
    const int64_t last = t + len;
    const uint32_t base = shared_address(memory), pairs = base + place::pairs;
    float *A = (float *)(memory + place::A);
    const bool on = half == 0 || row >= 32; /* has pairs */
    const unsigned slot = (unsigned)(x.cu[n] / C) + n + c;
    auto state = [&](int h) { return ((int64_t)slot * x.Hv + h) * (K * V); };
    auto fetch = [&](int h) {
        load_tile<V, BACK_THREADS>(base + place::v, a.v, x, t, last, h);
        load_tile<V, BACK_THREADS>(base + place::d_o, a.d_o, x, t, last, h);
        load_state<K, V>(base + place::S, a.S + state(h));
        load_state<K, V>(base + place::dS, a.dS + state(h));
        cp_async_commit();
    };
    load_tile<K, BACK_THREADS>(base + place::q, a.q, x, t, last, first);
    load_tile<K, BACK_THREADS>(base + place::k, a.k, x, t, last, first);
    cp_async_commit();
    float g[2], dq[K / 16][4] = {}, dk[K / 16][4] = {}, G[4][4] = {};
    if (warp == 4) tile_gates(x, t, last, first, g);
    await_last();
    let_next();
    fetch(first);
    cp_async_wait<1>();
    __syncthreads();
    if (on) {
        float scores[4][4] = {};
        times_rows<K>(scores, rows_first<K>(base + place::q + row * K * 2), units_first<K>(base + place::k + half * 32 * K * 2));
#pragma unroll
        for (int j = 0; j < 4; j++)
            *(float4 *)(A + (j * BACK_THREADS + tid) * 4) =
                make_float4(x.scale * scores[j][0], x.scale * scores[j][1], x.scale * scores[j][2], x.scale * scores[j][3]);
    }
    if (warp == 4) { /* makes the factors, one head ahead: it has no pairs */
        put_factors(x, &small.factors[0], g, t, last, first, false);
        if (heads > 1) tile_gates(x, t, last, first + 1, g);
    }
#pragma unroll 1
    for (int i = 0; i < heads; i++) {
        const int h = first + i, tid = anew((int)threadIdx.x), warp = tid / 32, row = warp % 4 * 16, half = warp / 4;
        const tile_factors &f = small.factors[i & 1];
        cp_async_wait<0>();
        __syncthreads();
        if (i + 1 < heads) {
            ahead_rows<V>(a.v, x, t, last, h + 1);
            ahead_rows<V>(a.d_o, x, t, last, h + 1);
            if (tid < K * V / 64) ahead_l2(a.S + state(h + 1) + tid * 64), ahead_l2(a.dS + state(h + 1) + tid * 64);
        }
        if (half == 0 || row >= 32) head_pairs<V>(G, base + place::d_o, base + place::v, pairs, A, f, &small, a.intra);
        if (warp == 4 && i + 1 < heads) {
            put_factors(x, &small.factors[(i + 1) & 1], g, t, last, h + 1, false);
            if (i + 2 < heads) tile_gates(x, t, last, h + 2, g);
        }
        if (a.reads) {
            float from_state[V / 16][4] = {};
            times_rows<K>(from_state, rows_first<K>(base + place::q + row * K * 2), units_first<K>(base + place::S + half * V * K));
            put_dots<V>(from_state, base + place::d_o, small.dots[0][half]);
        }
        float dv[V / 16][4] = {};
        times_rows<K>(dv, rows_first<K>(base + place::k + row * K * 2), units_first<K>(base + place::dS + half * V * K));
        if (a.writes) put_dots<V>(dv, base + place::v, small.dots[1][half]);
        {
            const int r = tid % 32 >> 2;
            const float up = f.write[row + r], down = f.write[row + r + 8];
#pragma unroll
            for (int j = 0; j < V / 16; j++) dv[j][0] *= up, dv[j][1] *= up, dv[j][2] *= down, dv[j][3] *= down;
        }
        __syncthreads();

        const uint32_t left = anew(units_first<C>(pairs) ^ (uint32_t)(row * 2));
        const uint32_t right = anew(rows_first<V>(base + place::d_o) ^ (uint32_t)(half * V));
#pragma unroll
        for (int ks = 0; ks < C / 16; ks++) { /* of the rows not ahead of these columns */
            if (16 * ks < row) continue;
            uint32_t P[4];
            ldmatrix_x4_trans(P, left + ks * 16 * C * 2);
            times_columns<V / 16>(dv, P, right + ks * 16 * V * 2);
        }
        if (a.dv) put_rows<V>(dv, a.dv, false, (t * x.Hv + h) * V, x.Hv * V, len);
        times_state<K, V>(dq, base + place::d_o, base + place::S, f.read);
        times_state<K, V>(dk, base + place::v, base + place::dS, f.write);
        if (a.intra && warp == 3) put_intra(&small, a.intra + (int64_t)h * x.T + t, len);
        if (a.reads && warp == 7)
            for (int j = tid % 32; j < len; j += 32) {
                const int64_t at = (int64_t)h * x.T + t + j;
                a.reads[at] = f.read[j] * (small.dots[0][0][j] + small.dots[0][1][j]);
                a.writes[at] = f.write[j] * (small.dots[1][0][j] + small.dots[1][1][j]);
            }
        __syncthreads();
        if (i + 1 < heads) fetch(h + 1);
    }
    if (on) {
        const int r = tid % 32 >> 2, c2 = 2 * (tid & 3);
        const uint32_t to = pairs + (uint32_t)((row + r) * C * 2 + (r << 4) + 2 * c2);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int m = 0; m < 2; m++)
                store_shared((to ^ (uint32_t)((half * 4 + j) << 4)) + m * 8 * C * 2,
                             pack_bf16(x.scale * G[j][2 * m], x.scale * G[j][2 * m + 1]));
    }
    __syncthreads();
#pragma unroll
    for (int ks = 0; ks < C / 16; ks++) {
        uint32_t P[4];
        if (16 * ks <= row) {
            ldmatrix_x4(P, rows_first<C>(pairs + row * C * 2) ^ (uint32_t)(ks << 5));
            times_columns<K / 16>(dq, P, (rows_first<K>(base + place::k) ^ (uint32_t)(half * K)) + ks * 16 * K * 2);
        }
        if (16 * ks >= row) {
            ldmatrix_x4_trans(P, (units_first<C>(pairs) ^ (uint32_t)(row * 2)) + ks * 16 * C * 2);
            times_columns<K / 16>(dk, P, (rows_first<K>(base + place::q) ^ (uint32_t)(half * K)) + ks * 16 * K * 2);
        }
    }
    const int pitch = (int)(Hq * parts) * K;
    const int64_t at = (t * (int64_t)(Hq * parts) + hq * parts + part) * K;
    if (a.dq) put_rows<K>(dq, a.dq, parts > 1, at, pitch, len);
    if (a.dk) put_rows<K>(dk, a.dk, parts > 1, at, pitch, len);
}

template <int K, int V> static void put_back(const decay_cut &x, const decay_back &a, const lnt_cuda *d)
{
    const int chunks = (int)(x.segment / C * x.P); /* of the longest sequence, or more */
    const int64_t grid = x.N * chunks * a.q.heads * a.parts;
    const size_t shared = back_places<K, V>::end;
    if (grid > 0) lnt_launch_with(d, decay_tiles_back<K, V>, dim3((unsigned)grid), BACK_THREADS, shared, 1, x, a, chunks);
}
template <int K, int V> static int room() { return back_places<K, V>::end + (int)sizeof(back_small); }

/* One of the four shapes. */
#define BY_SHAPE(K, V, F) ((K) == 64 ? (V) == 64 ? F(64, 64) : F(64, 128) : (V) == 64 ? F(128, 64) : F(128, 128))

bool lnt_decay_back_takes(int K, int V)
{
#define F(K, V) room<K, V>()
    return (K == 64 || K == 128) && (V == 64 || V == 128) && BY_SHAPE(K, V, F) <= lnt_block_room();
#undef F
}

void lnt_decay_back(const decay_cut &x, const decay_back &a, const lnt_cuda *d)
{
#define F(K, V) put_back<K, V>(x, a, d)
    BY_SHAPE(a.K, a.V, F);
#undef F
}

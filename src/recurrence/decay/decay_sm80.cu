/* The decay core on tensor cores, bf16 rows, K and V of 64 or 128, or slices of that size (decay_slices): the same passes as decay_cuda.cu, in
 * chunks of 64. README.md has the roles.
 *
 * A CTA of 4 warps has one segment of one value head. The state stays in registers as S^T [E][D], a warp a quarter of the E columns: what a product
 * leaves there (rows e, neighbouring d in a register) is, packed to bf16, the B operand of the read-out that follows: no shared memory in between.
 *
 * Long: the kernels of one path, which share tiles, factors of gates and the layout of the state in registers. */
#include "recurrence/decay/decay_stable.cuh"
#include "recurrence/decay/decay_tiles.cuh"
#include "recurrence/recur_cuda.cuh"

/* S^T += (write . value)^T key: a warp's E/4 rows from column `first` of the value tile. */
template <int D, int E, bool SCALED>
__device__ __forceinline__ void write_state(float (&S)[E / 64][D / 8][4], uint32_t key, uint32_t value, const float *write, float same, int first)
{
    const int lane = anew((int)threadIdx.x) % 32;
    const uint32_t left = anew(units_first<E>(value) ^ (uint32_t)(first * 2)), right = rows_first<D>(key);
#pragma unroll
    for (int ks = 0; ks < C / 16; ks++) {
        uint32_t a[E / 64][4];
#pragma unroll
        for (int m = 0; m < E / 64; m++) ldmatrix_x4_trans(a[m], (left ^ (uint32_t)(m << 5)) + ks * 16 * E * 2);
        if (SCALED) {
            const int t = ks * 16 + 2 * (lane & 3);
            const float2 low = write ? *(const float2 *)(write + t) : make_float2(same, same);
            const float2 high = write ? *(const float2 *)(write + t + 8) : make_float2(same, same);
#pragma unroll
            for (int m = 0; m < E / 64; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float2 w = i < 2 ? low : high;
                    a[m][i] = pack_bf16(w.x * low_bf16(a[m][i]), w.y * high_bf16(a[m][i]));
                }
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, (right ^ (uint32_t)(n << 5)) + ks * 16 * D * 2);
#pragma unroll
            for (int m = 0; m < E / 64; m++) {
                mma_bf16(S[m][2 * n], a[m], b[0], b[1]);
                mma_bf16(S[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Visit a warp's share of the state: f(element, d, e). */
template <int D, int E, typename F> __device__ __forceinline__ void each_element(float (&S)[E / 64][D / 8][4], F f)
{
    const int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32 * (E / 4);
#pragma unroll
    for (int m = 0; m < E / 64; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) f(S[m][n][i], n * 8 + 2 * (lane & 3) + (i & 1), first + m * 16 + (lane >> 2) + (i >> 1) * 8);
}

/* ---- states of segments ------------------------------------------------------------------------------------------------------------- */

template <int D, int E> static constexpr int states_stage = C * 2 * (D + E);
static constexpr int STATES_STAGES = 3;

/* A warp's share of the state as rows [E][D] in bf16: lanes of a row hand their pairs of four tiles round, so that each writes 16 bytes. */
template <int D, int E> __device__ __forceinline__ void put_start(const float (&S)[E / 64][D / 8][4], bf16 *to)
{
    const int lane = (int)threadIdx.x % 32, c = lane & 3, first = (int)threadIdx.x / 32 * (E / 4) + (lane >> 2);
#pragma unroll
    for (int m = 0; m < E / 64; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int n = 0; n < D / 8; n += 4) {
                uint32_t mine[4];
#pragma unroll
                for (int i = 0; i < 4; i++) mine[i] = pack_bf16(S[m][n + i][2 * half], S[m][n + i][2 * half + 1]);
                *(uint4 *)(to + (first + m * 16 + half * 8) * D + (n + c) * 8) = hand_round(mine);
            }
}

template <int K, int V, bool GATED, bool STARTS>
__global__ __launch_bounds__(THREADS, 2) void decay_tiles_states(const __grid_constant__ decay_cut x, const __grid_constant__ decay_states a,
                                                                 const __grid_constant__ chunk_starts b)
{
    extern __shared__ __align__(256) unsigned char memory[];
    __shared__ end_factors factors[GATED ? 4 : 1];
    const int h = (int)(blockIdx.x % x.Hv), p = (int)(blockIdx.x / x.Hv % x.P), warp = (int)threadIdx.x / 32;
    decay_place at;
    await_last();
    let_next();
    if (!decay_find(x, blockIdx.x / x.Hv / x.P, p, &at) || (!STARTS && (a.reverse ? at.begins : at.ends))) return;
    const int chunks = (int)((at.last - at.first + C - 1) / C);
    const uint32_t base = shared_address(memory);
    auto start = [&](int c) { return at.first + (int64_t)(a.reverse ? chunks - 1 - c : c) * C; };
    auto fetch = [&](int c) {
        const uint32_t stage = base + (uint32_t)(c % STATES_STAGES * states_stage<K, V>);
        if (c < chunks) {
            load_tile<K>(stage, a.key, x, start(c), at.last, h);
            load_tile<V>(stage + C * 2 * K, a.value, x, start(c), at.last, h);
        }
        cp_async_commit();
    };
    float S[V / 64][K / 8][4] = {}, fade = 1.0f; /* of the segment, as it fades the state, chunk by chunk */
    end_factors_ahead ahead(x, h, a.reverse);
    bf16 *to_start = NULL;
    if (STARTS) {
        const float *from = b.slots ? b.slots + (at.slot * x.Hv + h) * K * V : b.s ? b.s + (at.n * x.Hv + h) * K * V : NULL;
        if (from) each_element<K, V>(S, [&](float &s, int d, int e) { s = from[d * V + e]; });
        to_start = b.S + ((x.cu[at.n] / C + at.n + p * (x.segment / C) + (a.reverse ? chunks - 1 : 0)) * x.Hv + h) * K * V;
    }
    for (int c = 0; c < STATES_STAGES - 1; c++) fetch(c);
    if (GATED && warp < chunks) ahead.ask(start(warp), at.last, a.reverse);
    for (int c = 0; c < chunks; c++) {
        cp_async_wait<STATES_STAGES - 2>();
        __syncthreads();
        fetch(c + STATES_STAGES - 1);
        if (GATED && (c & 3) == 0) {
            if (c + warp < chunks) ahead.make(x, &factors[warp], a.reverse);
            if (c + 4 + warp < chunks) ahead.ask(start(c + 4 + warp), at.last, a.reverse);
            __syncthreads();
        }
        const uint32_t stage = base + (uint32_t)(c % STATES_STAGES * states_stage<K, V>);
        if (STARTS) {
            put_start<K, V>(S, to_start);
            to_start += (a.reverse ? -1 : 1) * (int64_t)x.Hv * K * V;
        }
        const end_factors &f = factors[GATED ? c & 3 : 0];
        if (GATED) {
            each_element<K, V>(S, [&](float &s, int, int) { s *= f.total; });
            fade *= f.total;
        }
        write_state<K, V, GATED>(S, stage, stage + C * 2 * K, GATED ? f.write : NULL, 1.0f, warp * (V / 4));
    }
    if (STARTS) {
        if (!b.s_end || !(a.reverse ? at.begins : at.ends)) return;
        float *to = b.s_end + (at.n * x.Hv + h) * K * V;
        each_element<K, V>(S, [&](float &s, int d, int e) { to[d * V + e] = s; });
        return;
    }
    const int64_t slot = at.slot * x.Hv + h;
    if (threadIdx.x == 0) a.decay[slot] = fade;
    const float factor = !GATED && a.reverse ? x.scale : 1.0f;
    float *to = a.X + slot * K * V;
    each_element<K, V>(S, [&](float &s, int d, int e) { to[d * V + e] = factor * s; });
}

/* ---- the pass ----------------------------------------------------------------------------------------------------------------------- */

/* Declared by the kernel: declared in run_pass, each of backward's three would have its own, and two CTAs no room. */
struct pass_small {
    tile_factors factors[4]; /* of chunks 4i .. 4i+3: each warp makes those of one */
    float dots[4][C];
};
/* What a pass that divides by D_t has of its denominators: of two chunks, one of them on its way, n in front of it and m. Sums of the rows of P's
 * left and right half and n.q of rows are where the other passes have dots: with more, two CTAs would have no room. */
struct pass_divisor {
    float n[2][128], m[2][C];
};

/* Rows' n.q, for a whole chunk, by the warp that has no quarter of P: n, as the sum of two bf16, stands in the first two columns of a B. */
template <int D> __device__ __forceinline__ void inter_dots(uint32_t query, const float *n, float *to)
{
    const int lane = anew((int)threadIdx.x) % 32, r = lane >> 2, c = lane & 3;
    const uint32_t rows = rows_first<D>(query);
    float acc[4][4] = {};
#pragma unroll
    for (int ks = 0; ks < D / 16; ks++) {
        uint32_t b[2];
        column_as_two(b, n + ks * 16, r, c);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            uint32_t A[4];
            ldmatrix_x4(A, (rows ^ (uint32_t)(ks << 5)) + m * 16 * D * 2);
            mma_bf16(acc[m], A, b[0], b[1]);
        }
    }
    if (c == 0)
#pragma unroll
        for (int m = 0; m < 4; m++) to[m * 16 + r] = acc[m][0] + acc[m][1], to[m * 16 + 8 + r] = acc[m][2] + acc[m][3];
}

template <int D, int E> struct pass_shared {
    static constexpr int stage = C * 2 * (2 * D + E), P = C * C * 2, out = D < E ? C / 2 * E * 2 : 0; /* out: the query's rows 0-31 where it fits */
    static constexpr int fixed = P + out;
};

/* What a kernel's pass is: PLAIN has no `inter`, and leaves bf16; SIDED is dq or dk, which may have `inter` or leave float32 (asked at run time: the
 * others have neither the code nor its registers); DOTS leaves `inter` and nothing else; DIVIDED is PLAIN, o by D_t. */
enum pass_kind { PLAIN, SIDED, DOTS, DIVIDED };
template <bool GATED, pass_kind KIND> __device__ __forceinline__ bool has_inter(const decay_pass &a)
{
    return GATED && (KIND == DOTS || (KIND == SIDED && a.inter));
}

/* Rows 32 half .. of a chunk: O = read . (query S) + P value, a warp its E/4 columns, and out. The first half waits for P in between.
 * Long: one chain of products, whose sums stay in registers until they leave. */
template <int D, int E, bool REVERSE, bool GATED, pass_kind KIND>
__device__ __forceinline__ void read_half(const decay_cut &x, const decay_pass &a, const float (&S)[E / 64][D / 8][4], const tile_factors &f,
                                          uint32_t query, uint32_t value, uint32_t P, uint32_t staging, int64_t t, int len, int h, int half,
                                          float (*dots)[C], const float *of_m)
{
    constexpr int WE = E / 4, NT = WE / 8; /* a warp's columns, and tiles of 8 of them */
    const int tid = anew((int)threadIdx.x), lane = tid % 32, warp = tid / 32, r = lane >> 2, c2 = 2 * (lane & 3), first = warp * WE;
    uint32_t with[2][2][NT];
    const bool dotted = has_inter<GATED, KIND>(a);
    if (dotted) {
        const int pitch = anew(a.dots.heads * E);
        const bf16 *from = (const bf16 *)a.dots.p + (t * a.dots.heads + head_of(a.dots, x, h)) * E + ((half * 32 + r) * pitch + first + c2);
#pragma unroll
        for (int m = 0; m < 4; m++) {
#pragma unroll
            for (int n = 0; n < NT; n++) with[m / 2][m % 2][n] = half * 32 + m * 8 + r < len ? *(const uint32_t *)(from + n * 8) : 0;
            from += 8 * pitch;
        }
    }
    float O[2][NT][4] = {};
    const uint32_t rows = rows_first<D>(query + half * 32 * D * 2);
#pragma unroll
    for (int ks = 0; ks < D / 16; ks++) {
        uint32_t A[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++) ldmatrix_x4(A[m], (rows ^ (uint32_t)(ks << 5)) + m * 16 * D * 2);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const float *left = &S[n / 2][2 * ks][n % 2 * 2], *right = &S[n / 2][2 * ks + 1][n % 2 * 2];
            uint32_t b0, b1; /* volatile: packed anew in each half, or the packed state would be kept in 64 registers between them */
            asm volatile("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(b0) : "f"(left[0]), "f"(left[1]));
            asm volatile("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(b1) : "f"(right[0]), "f"(right[1]));
#pragma unroll
            for (int m = 0; m < 2; m++) mma_bf16(O[m][n], A[m], b0, b1);
        }
    }
    if (GATED || !REVERSE)
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const int i = half * 32 + m * 16 + r;
            const float up = GATED ? f.read[i] : x.scale, down = GATED ? f.read[i + 8] : x.scale;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int k = 0; k < 4; k++) O[m][n][k] *= k < 2 ? up : down;
        }
    if (dotted)
#pragma unroll
        for (int m = 0; m < 4; m++) {
            float dot = 0;
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const uint32_t y = with[m / 2][m % 2][n];
                dot += low_bf16(y) * O[m / 2][n][m % 2 * 2] + high_bf16(y) * O[m / 2][n][m % 2 * 2 + 1];
            }
            dot += __shfl_xor_sync(~0u, dot, 1);
            dot += __shfl_xor_sync(~0u, dot, 2);
            if (c2 == 0) dots[warp][half * 32 + m * 8 + r] = dot;
        }
    if (half == 0) __syncthreads();
    if (KIND == DOTS) return;

    const uint32_t right = anew(rows_first<E>(value) ^ (uint32_t)(first * 2)), left = rows_first<C>(P + half * 32 * C * 2);
#pragma unroll
    for (int ks = 0; ks < C / 16; ks++) { /* the half of P that is not zero */
        if (REVERSE ? ks < 2 * half : ks > 2 * half + 1) continue;
        uint32_t B[NT / 2][4];
#pragma unroll
        for (int n = 0; n < NT / 2; n++) ldmatrix_x4_trans(B[n], (right ^ (uint32_t)(n << 5)) + ks * 16 * E * 2);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            if (REVERSE ? ks < 2 * half + m : ks > 2 * half + m) continue;
            uint32_t A[4];
            ldmatrix_x4(A, (left ^ (uint32_t)(ks << 5)) + m * 16 * C * 2);
#pragma unroll
            for (int n = 0; n < NT; n++) mma_bf16(O[m][n], A, B[n / 2][n % 2 * 2], B[n / 2][n % 2 * 2 + 1]);
        }
    }
    if constexpr (KIND == DIVIDED)
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const int i = half * 32 + m * 8 + r;
            const float den = (half ? dots[0][i] + dots[1][i] : dots[0][i]) + f.read[i] * dots[2][i];
            const float inverse = 1.0f / stable_denominator(den, of_m[i], a.eps);
#pragma unroll
            for (int n = 0; n < NT; n++) O[m / 2][n][m % 2 * 2] *= inverse, O[m / 2][n][m % 2 * 2 + 1] *= inverse;
        }
    if (!a.out) return;
    const int pitch = anew(x.Hv * E); /* 64 rows are far below 2^31 elements: declines() */
    const int64_t at = (t * x.Hv + h) * E + first;
    if (KIND == SIDED && !a.out_bf16) {
        float *to = (float *)a.out + at + ((half * 32 + r) * pitch + c2);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            if (half * 32 + m * 8 + r < len)
#pragma unroll
                for (int n = 0; n < NT; n++) *(float2 *)(to + n * 8) = make_float2(O[m / 2][n][m % 2 * 2], O[m / 2][n][m % 2 * 2 + 1]);
            to += 8 * pitch;
        }
        return;
    }
    /* through shared memory, so that a lane writes 16 bytes: the warp's [32][WE], unit u of row i at u ^ (i / (8 / UNITS) % UNITS) */
    constexpr int UNITS = WE / 8, SHIFT = UNITS == 4 ? 1 : 2;
    const uint32_t mine = staging + (uint32_t)(warp * 32 * WE * 2);
    const uint32_t put = anew(mine + (uint32_t)(r * WE * 2 + (((r >> SHIFT) & (UNITS - 1)) << 4) + 2 * c2));
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
            store_shared((put ^ (uint32_t)(n << 4)) + m * 8 * WE * 2, pack_bf16(O[m / 2][n][m % 2 * 2], O[m / 2][n][m % 2 * 2 + 1]));
    __syncwarp();
    const int i0 = lane / UNITS, u = lane % UNITS;
    const uint32_t get = mine + (uint32_t)(i0 * WE * 2 + ((u ^ ((i0 >> SHIFT) & (UNITS - 1))) << 4));
    bf16 *to = (bf16 *)a.out + at + ((half * 32 + i0) * pitch + u * 8);
#pragma unroll
    for (int i = 0; i < 32; i += 32 / UNITS) {
        uint32_t y[4];
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3]) : "r"(get + i * WE * 2) : "memory");
        if (half * 32 + i0 + i < len)
            asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]) : "memory");
        to += 32 / UNITS * pitch;
    }
    __syncwarp();
}

/* P_ij = s D_ij query_i . key_j, in blocks of 16 by 16 on the diagonal and on that side of it where pairs are: ten, of which no warp has more than
 * three. Warps 0 and 3 have 32 rows and columns on the diagonal: the 16 rows that meet all 32 columns, and one block more. Warps 1 and 2 have 16 rows
 * each of the 32 by 32 beside it. */
template <int D, bool REVERSE, bool GATED, pass_kind KIND>
__device__ __forceinline__ void put_pairs(uint32_t query, uint32_t key, uint32_t P, const tile_factors &f, float scale, float (*dots)[C])
{
    const int tid = anew((int)threadIdx.x), lane = tid % 32, warp = tid / 32, r = lane >> 2, c2 = 2 * (lane & 3);
    const bool diagonal = warp == 0 || warp == 3;
    const int col = diagonal ? warp & 1 : REVERSE, row = diagonal ? 32 * col + (REVERSE ? 0 : 16) : (REVERSE ? 0 : 32) + 16 * (warp - 1);
    constexpr int MORE = REVERSE ? 16 : -16, SIDE = REVERSE ? 1 : 0; /* rows and columns of the block more: row + MORE, 32 col + 16 SIDE */
    float acc[4][4] = {}, more[2][4] = {};
    const uint32_t left = rows_first<D>(query + row * D * 2), right = units_first<D>(key + col * 32 * D * 2);
#pragma unroll
    for (int ks = 0; ks < D / 16; ks++) {
        uint32_t A[4], B[2][4];
        ldmatrix_x4(A, left ^ (uint32_t)(ks << 5));
#pragma unroll
        for (int m = 0; m < 2; m++) ldmatrix_x4(B[m], (right ^ (uint32_t)(ks << 5)) + m * 16 * D * 2);
#pragma unroll
        for (int n = 0; n < 4; n++) mma_bf16(acc[n], A, B[n / 2][n % 2 * 2], B[n / 2][n % 2 * 2 + 1]);
        if (diagonal) {
            ldmatrix_x4(A, (left ^ (uint32_t)(ks << 5)) + (uint32_t)(MORE * D * 2));
            mma_bf16(more[0], A, B[SIDE][0], B[SIDE][1]);
            mma_bf16(more[1], A, B[SIDE][2], B[SIDE][3]);
        }
    }
    const uint32_t to = anew(P + (uint32_t)((row + r) * C * 2 + (r << 4) + 2 * c2)); /* unit n of row i = .. + r at ^ n << 4 */
    auto rows = [&]<int N>(const float (&sums)[N][4], int first, int offset) { /* 16 from row + offset on, tiles of 8 columns from `first` on */
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = row + offset + half * 8 + r;
            const float hi = !GATED ? 0.0f : REVERSE ? f.writer_hi[i] : f.hi[i], lo = !GATED ? 0.0f : REVERSE ? f.writer_lo[i] : f.lo[i];
            float sum = 0;
#pragma unroll
            for (int n = 0; n < N; n++) {
                const int j = col * 32 + (first + n) * 8 + c2;
                float y[2];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    y[k] = scale * sums[n][half * 2 + k];
                    if (GATED) {
                        y[k] *= REVERSE ? tile_between(f.hi[j + k], f.lo[j + k], hi, lo)
                                        : tile_between(hi, lo, f.writer_hi[j + k], f.writer_lo[j + k]);
                    }
                    if (REVERSE ? j + k < i : j + k > i) y[k] = 0.0f;
                }
                store_shared((to ^ (uint32_t)((col * 4 + first + n) << 4)) + (offset + half * 8) * C * 2, pack_bf16(y[0], y[1]));
                sum += y[0] + y[1];
            }
            if (KIND == DIVIDED) {
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                if (c2 == 0) dots[col][i] = sum;
            }
        }
    };
    rows(acc, 0, 0);
    if (diagonal) rows(more, 2 * SIDE, MORE);
}

/* Where a pass has starts of segments, the kernel ahead is the scan that makes them and nothing else (or another pass behind it, which makes nothing
 * that is read here): the first tiles are under way before it is awaited. Elsewhere, and ahead of a `late` pass, the kernel may be any. */
__device__ __forceinline__ bool find_pass(const decay_cut &x, const decay_pass &a, int64_t n, int p, decay_place *at)
{
    if (!a.slots || a.late) await_last();
    const bool found = decay_find(x, n, p, at);
    if (!found) await_last();
    return found;
}

/* Long: the stages of a chunk share the state's registers and the tiles under way. */
template <int D, int E, bool REVERSE, bool GATED, pass_kind KIND>
__device__ __forceinline__ void run_pass(const decay_cut &x, const decay_pass &a, const decay_place &at, int h, int stages, unsigned char *memory,
                                         pass_small *small, pass_divisor *by = NULL)
{
    using shared = pass_shared<D, E>;
    tile_factors *factors = small->factors;
    float (*dots)[C] = small->dots;
    const int tid = (int)threadIdx.x, warp = tid / 32, first = warp * (E / 4);
    const int chunks = (int)((at.last - at.first + C - 1) / C);
    const uint32_t P = shared_address(memory), stage0 = P + shared::fixed;
    const float scale = x.scale;

    auto start = [&](int c) { return at.first + (int64_t)(REVERSE ? chunks - 1 - c : c) * C; };
    auto fetch = [&](int c) {
        const uint32_t stage = stage0 + (uint32_t)((c & (stages - 1)) * shared::stage);
        if (c < chunks) {
            load_tile<D>(stage, a.query, x, start(c), at.last, h);
            load_tile<D>(stage + C * 2 * D, a.key, x, start(c), at.last, h);
            load_tile<E>(stage + C * 4 * D, a.value, x, start(c), at.last, h);
            if (has_inter<GATED, KIND>(a)) ahead_rows<E>(a.dots, x, start(c), at.last, h);
        }
        cp_async_commit();
    };

    for (int c = 0; c < stages - 1; c++) fetch(c);
    float S[E / 64][D / 8][4], g[2];
    if (GATED && warp < chunks) tile_gates(x, start(warp), at.last, h, g);
    await_last();
    let_next();
    const int sd = a.transposed ? 1 : a.V, se = a.transposed ? a.V : 1;
    {
        const int64_t state = (int64_t)a.K * a.V;
        const float *from = a.slots ? a.slots + (at.slot * x.Hv + h) * state : a.s ? a.s + (at.n * x.Hv + h) * state : NULL;
        each_element<D, E>(S, [&](float &s, int d, int e) { s = from ? from[d * sd + e * se] : 0.0f; });
    }
    /* n in front of a chunk, and m of its tokens, to where the chunk will look for them. */
    const int64_t n_slot = KIND == DIVIDED ? x.cu[at.n] / C + at.n + (at.first - x.cu[at.n]) / C : 0;
    auto next_divisor = [&](int c) {
        if (KIND != DIVIDED || c >= chunks) return;
        if (tid < D) by->n[c & 1][tid] = a.n_starts[((n_slot + c) * x.Hv + h) * D + tid];
        if (tid < C) by->m[c & 1][tid] = start(c) + tid < at.last ? a.m[(start(c) + tid) * x.Hv + h] : 0.0f;
    };
    next_divisor(0);

    for (int c = 0; c < chunks; c++) {
        cp_async_wait<0>();
        __syncthreads();
        fetch(c + stages - 1);
        if (stages == 1) {
            cp_async_wait<0>();
            __syncthreads();
        }
        const int64_t t = start(c);
        const int len = (int)(at.last - t < C ? at.last - t : C);
        const uint32_t query = stage0 + (uint32_t)((c & (stages - 1)) * shared::stage), key = query + C * 2 * D, value = key + C * 2 * D,
                       staging = shared::out ? P + shared::P : query;
        const tile_factors &f = factors[c & 3];
        if (GATED && (c & 3) == 0) {
            if (c + warp < chunks) put_factors(x, &factors[warp], g, start(c + warp), at.last, h, REVERSE);
            if (c + 4 + warp < chunks) tile_gates(x, start(c + 4 + warp), at.last, h, g);
            __syncthreads();
        }

        next_divisor(c + 1);

        if (KIND == DIVIDED && warp == 1) inter_dots<D>(query, by->n[c & 1], dots[2]);
        if (KIND != DOTS) put_pairs<D, REVERSE, GATED, KIND>(query, key, P, f, scale, dots);

        /* Rows in two halves: 64 sums beside the state's 128 would not fit in the registers. */
#pragma unroll
        for (int half = 0; half < 2; half++)
            read_half<D, E, REVERSE, GATED, KIND>(x, a, S, f, query, value, P, staging, t, len, h, half, dots,
                                                  KIND == DIVIDED ? by->m[c & 1] : NULL);
        if (has_inter<GATED, KIND>(a)) {
            __syncthreads();
            if (tid < len) a.inter[(int64_t)h * x.T + t + tid] = (dots[0][tid] + dots[1][tid]) + (dots[2][tid] + dots[3][tid]);
        }

        if (GATED) each_element<D, E>(S, [&](float &s, int, int) { s *= f.total; });
        write_state<D, E, GATED || REVERSE>(S, key, value, GATED ? f.write : NULL, scale, first);
    }
    if (a.s_end && (REVERSE ? at.begins : at.ends)) {
        float *to = a.s_end + (at.n * x.Hv + h) * ((int64_t)a.K * a.V);
        each_element<D, E>(S, [&](float &s, int d, int e) { to[d * sd + e * se] = s; });
    }
}

template <int K, int V, bool GATED>
__global__ __launch_bounds__(THREADS, 2) void decay_tiles_forward(const __grid_constant__ decay_cut x, const __grid_constant__ decay_pass a,
                                                                  int stages)
{
    extern __shared__ __align__(256) unsigned char memory[];
    __shared__ pass_small small;
    decay_place at;
    if (!find_pass(x, a, blockIdx.x / x.Hv / x.P, (int)(blockIdx.x / x.Hv % x.P), &at)) return;
    run_pass<K, V, false, GATED, PLAIN>(x, a, at, (int)(blockIdx.x % x.Hv), stages, memory, &small);
}
/* mLSTM's o. */
template <int K, int V>
__global__ __launch_bounds__(THREADS, 2) void decay_tiles_divided(const __grid_constant__ decay_cut x, const __grid_constant__ decay_pass a,
                                                                  int stages)
{
    extern __shared__ __align__(256) unsigned char memory[];
    __shared__ pass_small small;
    __shared__ pass_divisor by;
    decay_place at;
    if (!find_pass(x, a, blockIdx.x / x.Hv / x.P, (int)(blockIdx.x / x.Hv % x.P), &at)) return;
    run_pass<K, V, false, true, DIVIDED>(x, a, at, (int)(blockIdx.x % x.Hv), stages, memory, &small, &by);
}

/* dk, dv, dq in one launch: dk and dv of a segment walk over the same tiles at the same time. Each is named at a fixed place (a pass found by a
 * run-time index would be held in registers, that is in local memory). */
struct pass_list {
    decay_pass dk, dv, dq;
    int n, role[3];
};
template <int K, int V, bool GATED>
__global__ __launch_bounds__(THREADS, 2) void decay_tiles_backward(const __grid_constant__ decay_cut x, const __grid_constant__ pass_list list,
                                                                   int stages)
{
    extern __shared__ __align__(256) unsigned char memory[];
    __shared__ pass_small small;
    const int64_t i = blockIdx.x / list.n;
    decay_place at;
    const int h = (int)(i % x.Hv), role = list.role[blockIdx.x % list.n];
    if (!find_pass(x, role == 0 ? list.dk : role == 1 ? list.dv : list.dq, i / x.Hv / x.P, (int)(i / x.Hv % x.P), &at)) return;
    if (role == 0)
        run_pass<V, K, true, GATED, SIDED>(x, list.dk, at, h, stages, memory, &small);
    else if (role == 1)
        run_pass<K, V, true, GATED, PLAIN>(x, list.dv, at, h, stages, memory, &small);
    else
        run_pass<V, K, false, GATED, SIDED>(x, list.dq, at, h, stages, memory, &small);
}

/* Of dq only what the gates' gradient needs: no product with the pairs. (As a role of the kernel above it cost the others registers.) */
template <int K, int V>
__global__ __launch_bounds__(THREADS, 2) void decay_tiles_dots(const __grid_constant__ decay_cut x, const __grid_constant__ decay_pass a, int stages)
{
    extern __shared__ __align__(256) unsigned char memory[];
    __shared__ pass_small small;
    decay_place at;
    if (!find_pass(x, a, blockIdx.x / x.Hv / x.P, (int)(blockIdx.x / x.Hv % x.P), &at)) return;
    run_pass<V, K, false, true, DOTS>(x, a, at, (int)(blockIdx.x % x.Hv), stages, memory, &small);
}

/* ---- pairs inside a chunk, for the gates' gradient ---------------------------------------------------------------------------------- */

/* M_ij = s D_ij (q_i . k_j)(do_i . v_j - less_do_i . less_v_j) below the diagonal; intra_i = sum_{j >= i} (row j - column j of M): what lies inside
 * cancels in float32. `rows` have the diagonal, too. The kernel ahead, a pass, makes nothing that is read here, nor reads what is made: it is awaited
 * last.
 * Long: three products over the same tiles, masked and summed where the tensor cores leave them. */
template <int K, int V>
__global__ __launch_bounds__(THREADS) void decay_tiles_pairs(const __grid_constant__ decay_cut x, const __grid_constant__ decay_pairs a, int chunks)
{
    extern __shared__ __align__(256) unsigned char memory[];
    __shared__ tile_factors f;
    __shared__ float sums[2][2][C], diagonal[C]; /* rows, columns; the two tiles beside each other */
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32, r = lane >> 2, c2 = 2 * (lane & 3);
    const int h = (int)(blockIdx.x % x.Hv);
    const unsigned i0 = blockIdx.x / (unsigned)x.Hv, n = i0 / (unsigned)chunks; /* of 32 bits: a CTA has one chunk, and divides before it loads */
    const int64_t t = x.cu[n] + (int64_t)(i0 % (unsigned)chunks) * C, last = x.cu[n + 1];
    let_next();
    if (t >= last) return await_last();
    const uint32_t q = shared_address(memory), k = q + C * 2 * K, v = k + C * 2 * K, d_o = v + C * 2 * V;
    load_tile<K>(q, a.q, x, t, last, h);
    load_tile<K>(k, a.k, x, t, last, h);
    cp_async_commit();
    load_tile<V>(v, a.v, x, t, last, h);
    load_tile<V>(d_o, a.d_o, x, t, last, h);
    if (a.less_v.p) {
        load_tile<V>(d_o + C * 2 * V, a.less_v, x, t, last, h);
        load_tile<V>(d_o + C * 4 * V, a.less_do, x, t, last, h);
    }
    cp_async_commit();
    const int row = warp >> 1, col = warp & 1;
    float g[2], A[2][4][4] = {}, B[2][4][4] = {};
    auto product = [&](float (&acc)[2][4][4], uint32_t left, uint32_t right, int W, uint32_t sign) {
#pragma unroll
        for (int ks = 0; ks < W / 16; ks++) {
            uint32_t L[2][4], R[2][4];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                ldmatrix_x4(L[m], (left ^ (uint32_t)(ks << 5)) + m * 16 * W * 2);
                ldmatrix_x4(R[m], (right ^ (uint32_t)(ks << 5)) + m * 16 * W * 2);
#pragma unroll
                for (int i = 0; i < 4; i++) L[m][i] ^= sign;
            }
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int j = 0; j < 4; j++) mma_bf16(acc[m][j], L[m], R[j / 2][j % 2 * 2], R[j / 2][j % 2 * 2 + 1]);
        }
    };
    if (row < col) tile_gates(x, t, last, h, g);
    for (int i = tid; i < 4 * C; i += THREADS) (&sums[0][0][0])[i] = 0.0f;
    cp_async_wait<1>(); /* q and k: their product, and by the warp that has no pairs the factors, while v and do are on their way */
    __syncthreads();
    if (row >= col)
        product(A, rows_first<K>(q + row * 64 * K), units_first<K>(k + col * 64 * K), K, 0);
    else
        put_factors(x, &f, g, t, last, h, false);
    cp_async_wait<0>();
    __syncthreads();
    if (row >= col) {
        product(B, rows_first<V>(d_o + row * 64 * V), units_first<V>(v + col * 64 * V), V, 0);
        if (a.less_v.p) /* both signs of a pair of bf16 turned */
            product(B, rows_first<V>(d_o + C * 4 * V + row * 64 * V), units_first<V>(d_o + C * 2 * V + col * 64 * V), V, 0x80008000u);
        float columns[4][2] = {};
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = row * 32 + m * 16 + half * 8 + r;
                float sum = 0;
#pragma unroll
                for (int n8 = 0; n8 < 4; n8++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const int j = col * 32 + n8 * 8 + c2 + e;
                        const float D = tile_between(f.hi[i], f.lo[i], f.writer_hi[j], f.writer_lo[j]);
                        const float y = x.scale * D * A[m][n8][half * 2 + e] * B[m][n8][half * 2 + e], M = j < i ? y : 0.0f;
                        if (n8 == 2 * m + half && j == i) diagonal[i] = y;
                        sum += M;
                        columns[n8][e] += M;
                    }
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                if (c2 == 0) sums[0][col][i] = sum;
            }
#pragma unroll
        for (int n8 = 0; n8 < 4; n8++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float sum = columns[n8][e];
                sum += __shfl_xor_sync(~0u, sum, 4);
                sum += __shfl_xor_sync(~0u, sum, 8);
                sum += __shfl_xor_sync(~0u, sum, 16);
                if (r == 0) sums[1][row][col * 32 + n8 * 8 + c2 + e] = sum;
            }
    }
    await_last();
    __syncthreads();
    if (warp) return;
    float d[2], after;
    for (int j = 0; j < 2; j++) {
        const int i = 2 * lane + j;
        d[j] = (sums[0][0][i] + sums[0][1][i]) - (sums[1][0][i] + sums[1][1][i]);
    }
    after = d[0] + d[1];
    for (int o = 1; o < 32; o <<= 1) {
        const float right = __shfl_down_sync(~0u, after, o);
        if (lane + o < 32) after += right;
    }
    const float right = __shfl_down_sync(~0u, after, 1);
    float *to = a.intra + (int64_t)h * x.T + t;
    if (t + 2 * lane < last) to[2 * lane] = after;
    if (t + 2 * lane + 1 < last) to[2 * lane + 1] = (lane < 31 ? right : 0.0f) + d[1];
    if (!a.rows) return;
    to = a.rows + (int64_t)h * x.T + t;
    for (int i = 2 * lane; i < 2 * lane + 2 && t + i < last; i++) to[i] = (sums[0][0][i] + sums[0][1][i]) + diagonal[i];
}

/* ---- launches ----------------------------------------------------------------------------------------------------------------------- */

template <typename... P, typename... A> static void put(const lnt_cuda *d, void (*kernel)(P...), int64_t grid, int shared, const A &...args)
{
    if (grid > 0) lnt_launch_with(d, kernel, dim3((unsigned)grid), THREADS, (size_t)shared, 1, args...);
}

/* Two stages where the GPU has the shared memory (not sm_86, sm_89). */
static int stages_of(const lnt_cuda *d, int fixed, int stage)
{
    return fixed + 2 * stage + (int)sizeof(pass_small) <= (int)d->base.block_shared ? 2 : 1;
}

template <int K, int V, bool GATED> static void put_states(const decay_cut &x, const decay_states &a, const lnt_cuda *d)
{
    put(d, decay_tiles_states<K, V, GATED, false>, decay_pieces(x), STATES_STAGES * states_stage<K, V>, x, a, chunk_starts{});
}
static void tiles_states(const decay_cut &x, const decay_states &a, const lnt_cuda *d)
{
#define F(K, V, G) put_states<K, V, G>(x, a, d)
    DECAY_BY_SHAPE(a.K, a.W, decay_gated(x), F);
#undef F
}

template <int K, int V, bool GATED> static void put_passes(const decay_cut &x, const decay_pass *passes, int n, const lnt_cuda *d)
{
    using wide = pass_shared<K, V>;
    using tall = pass_shared<V, K>;
    if (n == 1 && !passes->reverse && !passes->transposed) {
        const int stages = stages_of(d, wide::fixed + (passes->n_starts ? (int)sizeof(pass_divisor) : 0), wide::stage);
        const auto kernel = passes->n_starts ? decay_tiles_divided<K, V> : decay_tiles_forward<K, V, GATED>;
        put(d, kernel, decay_pieces(x), wide::fixed + stages * wide::stage, x, *passes, stages);
        return;
    }
    constexpr int fixed = wide::fixed > tall::fixed ? wide::fixed : tall::fixed, stage = wide::stage > tall::stage ? wide::stage : tall::stage;
    const int stages = stages_of(d, fixed, stage);
    pass_list list = {};
    for (int i = 0; i < n; i++) {
        if (GATED && !passes[i].reverse && !passes[i].out) {
            put(d, decay_tiles_dots<K, V>, decay_pieces(x), fixed + stages * stage, x, passes[i], stages);
            continue;
        }
        const int role = list.role[list.n++] = !passes[i].reverse ? 2 : passes[i].transposed ? 0 : 1;
        *(role == 0 ? &list.dk : role == 1 ? &list.dv : &list.dq) = passes[i];
    }
    put(d, decay_tiles_backward<K, V, GATED>, decay_pieces(x) * list.n, fixed + stages * stage, x, list, stages);
}
static void tiles_read(const decay_cut &x, const decay_pass *passes, int n, const lnt_cuda *d)
{
#define F(K, V, G) put_passes<K, V, G>(x, passes, n, d)
    DECAY_BY_SHAPE(passes->K, passes->V, decay_gated(x), F);
#undef F
}

template <int K, int V> static void put_pairs(const decay_cut &x, const decay_pairs &a, const lnt_cuda *d)
{
    const int chunks = (int)(x.segment / C * x.P); /* of the longest sequence, or more */
    put(d, decay_tiles_pairs<K, V>, x.N * chunks * x.Hv, C * 4 * (K + V + (a.less_v.p ? V : 0)), x, a, chunks);
}
static void tiles_pairs(const decay_cut &x, const decay_pairs &a, const lnt_cuda *d)
{
#define F(K, V, G) put_pairs<K, V>(x, a, d)
    DECAY_BY_SHAPE(a.K, a.W, true, F);
#undef F
}

/* The starts of segments as the forward or backward pass makes them, where it has them in its workspace; then every chunk's. */
static decay_cut starts_cut(const lnt_recur_args *a, bool backward)
{
    const int64_t segment = lnt_decay_segment(a, backward, C, 1), longest = a->longest;
    const int P = longest ? (int)((longest + segment - 1) / segment) : 1;
    decay_cut x = { a->cu_seqlens_device, a->sequences, a->tokens, segment, P, a->Hv, (const float *)a->g, NULL, (float)a->scale };
    x.strengths = (const float *)a->beta;
    return x;
}
static int64_t starts_slots(const decay_cut &x) { return (x.T / x.segment + x.N) * x.Hv; }
size_t lnt_decay_tiles_starts_bytes(const lnt_recur_args *a, bool backward)
{
    return (size_t)starts_slots(starts_cut(a, backward)) * ((size_t)a->K * (size_t)a->V + 64) * sizeof(float);
}
template <int K, int V> static void put_chunk_starts(const decay_cut &x, const decay_states &a, const chunk_starts &b, const lnt_cuda *d)
{
    put(d, decay_tiles_states<K, V, true, true>, decay_pieces(x), STATES_STAGES * states_stage<K, V>, x, a, b);
}
static void tiles_chunk_starts(const decay_cut &x, const decay_states &a, const chunk_starts &b, const lnt_cuda *d)
{
#define F(K, V, G) put_chunk_starts<K, V>(x, a, b, d)
    DECAY_BY_SHAPE(a.K, a.W, true, F);
#undef F
}
void lnt_decay_tiles_starts(const lnt_recur_args *a, const lnt_device *d, bool backward, bool has_starts, bf16 *S)
{
    const decay_cut cut = starts_cut(a, backward);
    const lnt_cuda *on = (const lnt_cuda *)d;
    float *segments = (float *)a->workspace, *decay = segments + starts_slots(cut) * a->K * a->V;
    const decay_states keys = { { a->k, NULL, 1, a->Hq, a->K }, { a->v, NULL, 1, a->Hv, a->V }, a->K, a->V, false, segments, decay };
    if (cut.P > 1 && !has_starts) {
        tiles_states(cut, keys, on);
        lnt_decay_scan(cut, segments, decay, (const float *)a->s0, NULL, a->K, a->V, a->V, false, on);
    }
    const chunk_starts starts = { cut.P > 1 ? segments : NULL, (const float *)a->s0, (float *)a->sT, S };
    if (!lnt_decay_hopper_starts(cut, keys, starts, on)) tiles_chunk_starts(cut, keys, starts, on);
}

static const decay_kernels passes = { C, 1, true, true, true, tiles_states, tiles_read, tiles_pairs, 0x1p-9f };
const decay_kernels lnt_decay_tiles = { C, 1, true, true, true, tiles_states, tiles_read, tiles_pairs, 0x1p-9f,
                                        lnt_decay_back_takes, tiles_chunk_starts, lnt_decay_back };
void lnt_decay_tiles_forward(const lnt_recur_args *a, const lnt_device *d, bool has_starts) { lnt_decay_cuda_forward(a, d, passes, has_starts); }
size_t lnt_decay_tiles_backward_bytes(const lnt_recur_args *a) { return lnt_decay_cuda_bytes(a, true, passes); }
void lnt_decay_tiles_backward(const lnt_recur_args *a, const lnt_device *d, const decay_shared &with)
{
    lnt_decay_cuda_backward(a, d, passes, with);
}

const char *lnt_decay_tiles_declines(const void *args, bool back)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    if (a->dtype != LINNET_BF16) return "it takes bf16 tensors";
    if (a->V % 64) return "V in multiples of 64 is offered";
    if (a->op->kind == LNT_DECAY_STABLE && a->K > DECAY_WIDEST) return "K of at most 256 is offered";
    if (a->normalize && a->K > 320) return "K of at most 320 is offered where outputs are divided by sums of keys";
    if ((int64_t)a->Hv * ((a->K + 63) / 64) * (a->V / 64) > 1 << 17) return "at most 131072 heads of 64 columns are offered";
    return NULL;
}

static size_t workspace(const void *args, bool backward, int threads)
{
    return lnt_decay_padded_bytes((const lnt_recur_args *)args, backward, lnt_decay_tiles);
}
static void forward(const void *args, const lnt_device *d) { lnt_decay_padded_forward((const lnt_recur_args *)args, d, lnt_decay_tiles); }
static void backward(const void *args, const lnt_device *d) { lnt_decay_padded_backward((const lnt_recur_args *)args, d, lnt_decay_tiles); }

LNT_CUDA_FORM(lnt_decay_chunk_sm80, "chunk-sm80", CHUNK, 80, lnt_decay_tiles_declines, workspace, forward, backward)

/* The chain of chunk states under a gate for each channel, forwards and in reverse: what is serial. Columns of V are independent of each other, so a
 * CTA has 64 of them and the state transposed, [64 columns of V][K], in the float32 accumulators of one warpgroup (delta_parts.cuh: every product has
 * rows of V on the left, from registers, and a tile of tokens in shared memory on the right). That warpgroup does nothing but go from state to state;
 * a second one gets each state's fragments through shared memory and reads it out beside it; one more warp loads, `stages` chunks ahead.
 *
 *                 reader             writer                value   out
 *   forwards      s q e^G            k e^{G_n - G}         v       o        out^T = S^T reader^T + value^T P^T    S^T <- S^T e^{G_n} + value^T writer
 *   in reverse    k e^{G_n - G}      s q e^G               do      dv       the same with dS and P                the same with dS
 *
 * Readers, writers and P are made by the kernels of decay_vector_chunk_cuda.cu as images of tiles: on Hopper the copy engine brings them as they are.
 * Written once for wgmma (HOPPER) and mma.sync, as delta_parts.cuh is. */
#ifndef LNT_DECAY_VECTOR_CHAIN_CUH
#define LNT_DECAY_VECTOR_CHAIN_CUH

#include "recurrence/delta/delta_parts.cuh"

struct vector_side {
    const bf16 *reader, *writer; /* [slots,Hv] images [64,K] */
    const bf16 *value;           /* [T,Hv / slices,V]; NULL: zeros */
    bf16 *out;                   /* [T,Hv,V]; NULL: not wanted */
    bf16 *images;                /* [slots,Hv] images [K,V] of the state that a chunk meets; NULL: not wanted */
    const float *start;          /* [N,Hv,K,V], or as row_step and column_step say, slices side by side; NULL: zeros */
    float *end;                  /* the same; NULL: not wanted */
    float *X, *D;                /* [N,segments,Hv,K,V] of a segment that begins with zeros; [N,segments,Hv,K] its decay */
};

/* Chunk i of sequence n has slot cu[n] / 64 + n + i: no two meet. */
struct vector_chains {
    vector_side side[2]; /* forwards, in reverse */
    const bf16 *P;       /* [slots,Hv] images [64,64] */
    const float *E;      /* [slots,Hv,K] e^{G_n} */
    const int64_t *cu;
    int64_t sequences;
    int Hv, K, V, segments, segment_chunks, stages;
    int slices;                /* Hv counts slices of keys, so many of a head, which read the same values and leave parts of outputs */
    int row_step, column_step; /* between the floats of `start` and `end` */
    bool back, reads;          /* in reverse too, half of the CTAs; the state is read out forwards (in reverse it is always) */
};

/* One launch, behind another for the ends of segments where there are some. */
void lnt_vector_chains_sm80(const vector_chains &c, const lnt_cuda *d);
void lnt_vector_chains_sm90(const vector_chains &c, const lnt_cuda *d);

namespace {

template <int K, bool READ> struct vector_stage {
    static constexpr uint32_t rows = K / 64 * TILE; /* of a reader or writer */
    static constexpr uint32_t writer = 0, value = rows, E = value + TILE, reader = E + 1024, P = reader + (READ ? rows : 0),
                              bytes = P + (READ ? TILE : 0), copied = bytes - TILE - 1024 + K * 4;
};

struct vector_work {
    int64_t n, item, slot, token, end; /* the sequence; its segment; of the first chunk */
    int chunks, segment, h, column;
    bool last; /* the segment that ends in the sequence's end (in reverse: its begin) */
};
template <bool REVERSE> __device__ __forceinline__ vector_work vector_place(const vector_chains &p, int64_t x)
{
    vector_work w;
    const int blocks = p.V / 64;
    w.column = (int)(x % blocks) * 64;
    x /= blocks;
    w.h = (int)(x % p.Hv);
    x /= p.Hv;
    w.segment = (int)(x % p.segments);
    w.n = x / p.segments;
    w.item = x;
    const int64_t begin = p.cu[w.n], chunks = (p.cu[w.n + 1] - begin + C - 1) / C;
    const int64_t from = min((int64_t)w.segment * p.segment_chunks, chunks), to = min(from + p.segment_chunks, chunks);
    w.chunks = (int)(to - from);
    w.slot = begin / C + w.n + from;
    w.token = begin + from * C;
    w.end = p.cu[w.n + 1];
    w.last = REVERSE ? w.segment == 0 : w.segment == p.segments - 1;
    return w;
}

/* By one warp. An arrival of each lane, behind its copies, and on Hopper one for the copy engine's. */
template <bool HOPPER> constexpr int VECTOR_LOADS = HOPPER ? 33 : 32;
template <int BYTES> __device__ __forceinline__ void image_by_lanes(uint32_t to, const void *from)
{
    const int at = (threadIdx.x & 31) * 16;
#pragma unroll 8
    for (int i = at; i < BYTES; i += 512) cp_async_16(to + i, (const char *)from + i);
}
template <bool HOPPER, int K, bool READ, bool REVERSE>
__device__ void vector_load(const vector_chains &p, const vector_work &w, const ring_of &ring)
{
    using L = vector_stage<K, READ>;
    const vector_side &side = p.side[REVERSE];
    const int lane = threadIdx.x & 31, row = lane / 8, piece = lane % 8, head = w.h / p.slices;
    const int64_t stride = (int64_t)(p.Hv / p.slices) * p.V;
    int s = 0;
    uint32_t parity = 1;
    for (int j = 0; j < w.chunks; j++) {
        const int i = REVERSE ? w.chunks - 1 - j : j;
        const uint32_t at = ring.stages + s * L::bytes, full = ring.full + 8 * s;
        const int64_t tile = (w.slot + i) * p.Hv + w.h, token = w.token + (int64_t)i * C;
        barrier_wait<HOPPER>(ring.empty + 8 * s, parity);
        if constexpr (!HOPPER) {
            image_by_lanes<L::rows>(at + L::writer, side.writer + tile * (C * K));
            image_by_lanes<K * 4>(at + L::E, p.E + tile * K);
            if constexpr (READ) {
                image_by_lanes<L::rows>(at + L::reader, side.reader + tile * (C * K));
                image_by_lanes<TILE>(at + L::P, p.P + tile * (C * C));
            }
        } else if (lane == 0) {
            barrier_expect(full, L::copied);
            image_in(at + L::writer, side.writer + tile * (C * K), L::rows, full);
            image_in(at + L::E, p.E + tile * K, K * 4, full);
            if constexpr (READ) {
                image_in(at + L::reader, side.reader + tile * (C * K), L::rows, full);
                image_in(at + L::P, p.P + tile * (C * C), TILE, full);
            }
        }
        const int left = side.value ? (int)min((int64_t)C, w.end - token) : 0;
        const bf16 *from = side.value + token * stride + head * p.V + w.column + piece * 8;
#pragma unroll 4
        for (int r = row; r < C; r += 4)
            cp_async_16(at + L::value + r * 128 + ((piece ^ (r & 7)) << 4), r < left ? (const void *)(from + r * stride) : p.E, r < left);
        barrier_arrive_behind_copies(full);
        if (++s == ring.count) {
            s = 0;
            parity ^= 1;
        }
    }
    cp_async_commit();
    cp_async_wait<0>();
}

/* Elements of S^T in a thread's accumulators: S[h][4 n + j] is of channel 64 h + 8 n + 2 (lane % 4) + (j & 1). f(element, factor of its channel). */
template <int K, typename F> __device__ __forceinline__ void each_channel(float (&S)[K / 64][32], uint32_t factors, F f)
{
#pragma unroll
    for (int h = 0; h < K / 64; h++)
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 e = load_shared_pair(factors + (64 * h + 8 * n + 2 * (threadIdx.x & 3)) * 4);
#pragma unroll
            for (int j = 0; j < 4; j++) f(S[h][4 * n + j], j & 1 ? e.y : e.x);
        }
}

/* From the warpgroup that has the state to the one that reads it out: two states' fragments, as the warps have them, and what becomes of them on the
 * way out. ready, taken: barriers, two each. */
struct vector_hand {
    uint32_t ready, taken, fragments, out;
};

template <bool HOPPER, int K, bool READ, bool REVERSE> struct vector_walk {
    using L = vector_stage<K, READ>;
    const vector_chains &p;
    const vector_work &w;
    const ring_of &ring;
    const vector_hand &hand;
    const vector_side &side;
    const int lane, warp, column;
    const uint32_t stash, mine, fragments; /* the warp's image; its columns in a tile of values; its place for fragments */
    uint32_t left[K / 16][4], z[4][4], parity = 0;
    int s = 0;

    __device__ vector_walk(const vector_chains &p_, const vector_work &w_, const ring_of &ring_, const vector_hand &hand_)
        : p(p_), w(w_), ring(ring_), hand(hand_), side(p_.side[REVERSE]), lane(threadIdx.x & 31), warp(threadIdx.x / 32 % 4),
          column(w_.column + 16 * warp), stash(ring_.stash + warp * K * 32), mine(lane_transposed(warp)),
          fragments(hand_.fragments + warp * K * 32 + lane * 16)
    {
    }
    __device__ __forceinline__ int chunk(int c) const { return REVERSE ? w.chunks - 1 - c : c; }
    __device__ __forceinline__ uint32_t arrived()
    {
        barrier_wait<HOPPER>(ring.full + 8 * s, parity);
        return ring.stages + s * L::bytes;
    }
    __device__ __forceinline__ void done()
    {
        barrier_arrive(ring.empty + 8 * s);
        if (++s == ring.count) {
            s = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ void load_values(uint32_t at)
    {
#pragma unroll
        for (int j = 0; j < 4; j++) ldmatrix_x4_trans(z[j], at + L::value + mine + j * 2048);
    }
    __device__ __forceinline__ void state_out(int c)
    {
        if (!side.images) return;
        image_wait<HOPPER, 0>();
        image_put<HOPPER, K / 16>(stash, left);
        image_out<HOPPER, K * 32>(side.images + (((w.slot + chunk(c)) * p.Hv + w.h) * p.V + column) * K, stash);
    }

    /* ENDS: from zero, for X and D alone (READ is false then). */
    template <bool ENDS> __device__ __forceinline__ void states()
    {
        const int64_t state = (w.n * p.Hv + w.h - w.h % p.slices) * K * p.V + (int64_t)(w.h % p.slices) * K * p.row_step +
                              (int64_t)column * p.column_step;
        float S[K / 64][32] = {}, D[ENDS ? K / 64 : 1][32];
        if (ENDS)
#pragma unroll
            for (int h = 0; h < (ENDS ? K / 64 : 1); h++)
#pragma unroll
                for (int j = 0; j < 32; j++) D[h][j] = 1.f;
        if (!ENDS) {
            if (side.start) state_read<K>(S, side.start + state, p.row_step, p.column_step);
            for (int n = 0; n < (REVERSE ? p.segments - 1 - w.segment : w.segment); n++) { /* S <- D S + X over the segments on the way here */
                const int64_t item = (w.n * p.segments + (REVERSE ? p.segments - 1 - n : n)) * p.Hv + w.h;
                float X[K / 64][32];
                const float *of = side.D + item * K;
                state_read<K>(X, side.X + item * K * p.V + column, p.V);
#pragma unroll
                for (int h = 0; h < K / 64; h++)
#pragma unroll
                    for (int j = 0; j < 32; j++) S[h][j] = of[64 * h + 8 * (j / 4) + 2 * (lane % 4) + (j & 1)] * S[h][j] + X[h][j];
            }
        }
        for (int c = 0; c < w.chunks; c++) {
            if (READ || side.images) state_left<K>(left, S);
            if constexpr (READ) {
                barrier_wait<HOPPER>(hand.taken + 8 * (c & 1), (c >> 1 & 1) ^ 1);
#pragma unroll
                for (int kk = 0; kk < K / 16; kk++)
                    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(fragments + (c & 1) * (K * 128) + kk * 512), "r"(left[kk][0]),
                                 "r"(left[kk][1]), "r"(left[kk][2]), "r"(left[kk][3])
                                 : "memory");
                barrier_arrive(hand.ready + 8 * (c & 1));
            }
            const uint32_t at = arrived();
            each_channel<K>(S, at + L::E, [](float &x, float e) { x *= e; });
            if constexpr (ENDS) each_channel<K>(D, at + L::E, [](float &x, float e) { x *= e; });
            load_values(at);
#pragma unroll
            for (int h = 0; h < K / 64; h++) pin(S[h]);
            products_begin<HOPPER>();
#pragma unroll
            for (int kk = 0; kk < 4; kk++)
#pragma unroll
                for (int h = 0; h < K / 64; h++) times_columns<HOPPER>(S[h], z[kk], at, L::writer + h * TILE, kk, true);
            products_commit<HOPPER>();
            if constexpr (!READ) state_out(c);
            products_wait<HOPPER, 0>();
#pragma unroll
            for (int h = 0; h < K / 64; h++) pin(S[h]);
            done();
        }
        if constexpr (ENDS) {
            const int64_t item = w.item * p.Hv + w.h;
            state_write<K>(S, side.X + item * K * p.V + column, p.V);
            if (column == 0 && lane < 4)
#pragma unroll
                for (int h = 0; h < K / 64; h++)
#pragma unroll
                    for (int j = 0; j < 32; j++)
                        if (!(j & 2)) side.D[item * K + 64 * h + 8 * (j / 4) + 2 * lane + (j & 1)] = D[h][j];
        } else if (side.end && w.last)
            state_write<K>(S, side.end + state, p.row_step, p.column_step);
        image_wait<HOPPER, 0>();
    }

    __device__ __forceinline__ void reads()
    {
        const int64_t stride = (int64_t)p.Hv * p.V;
        float O[32];
        for (int c = 0; c < w.chunks; c++) {
            barrier_wait<HOPPER>(hand.ready + 8 * (c & 1), c >> 1 & 1);
#pragma unroll
            for (int kk = 0; kk < K / 16; kk++) {
                const uint4 x = load_shared_16(fragments + (c & 1) * (K * 128) + kk * 512);
                left[kk][0] = x.x, left[kk][1] = x.y, left[kk][2] = x.z, left[kk][3] = x.w;
            }
            barrier_arrive(hand.taken + 8 * (c & 1));
            const uint32_t at = arrived();
            load_values(at);
            products_begin<HOPPER>();
#pragma unroll
            for (int kk = 0; kk < K / 16; kk++) times_rows<HOPPER, false>(O, left[kk], at, L::reader + kk / 4 * TILE, kk % 4, kk > 0);
#pragma unroll
            for (int kk = 0; kk < 4; kk++)
                if constexpr (REVERSE)
                    times_columns<HOPPER>(O, z[kk], at, L::P, kk, true);
                else
                    times_rows<HOPPER, true>(O, z[kk], at, L::P, kk, true);
            products_commit<HOPPER>();
            state_out(c);
            products_wait<HOPPER, 0>();
            pin(O);
            done();
            if (!side.out) continue;
            __syncwarp();
#pragma unroll
            for (int j = 0; j < 4; j++)
                store_matrices_trans<HOPPER>(hand.out + mine + j * 2048, pack_bf16(O[8 * j], O[8 * j + 1]), pack_bf16(O[8 * j + 2], O[8 * j + 3]),
                                           pack_bf16(O[8 * j + 4], O[8 * j + 5]), pack_bf16(O[8 * j + 6], O[8 * j + 7]));
            const int64_t token = w.token + (int64_t)chunk(c) * C;
            rows_out(side.out + token * stride + w.h * p.V + w.column + lane_in_rows(stride, warp), stride, hand.out + lane_in_tile(warp),
                     (int)min((int64_t)C, w.end - token));
        }
        image_wait<HOPPER, 0>();
    }
};

constexpr int CHAIN_THREADS = 2 * GROUP + 32;

template <bool HOPPER, int K, bool READ, bool REVERSE, bool ENDS>
__device__ void vector_chain(const vector_chains &p, int64_t x, uint8_t *shared)
{
    using L = vector_stage<K, READ>;
    const vector_work w = vector_place<REVERSE>(p, x);
    if (ENDS && w.last) return; /* that end leads nowhere */
    ring_of ring;
    ring.count = p.stages;
    ring.stages = (shared_address(shared) + 1023) & ~1023u;
    ring.full = ring.stages + ring.count * L::bytes;
    ring.empty = ring.full + 8 * ring.count;
    vector_hand hand;
    hand.ready = ring.empty + 8 * ring.count;
    hand.taken = hand.ready + 16;
    hand.out = (hand.taken + 16 + 1023) & ~1023u;
    ring.stash = hand.out + TILE;
    hand.fragments = ring.stash + K * 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < ring.count; s++) {
            barrier_init(ring.full + 8 * s, VECTOR_LOADS<HOPPER>);
            barrier_init(ring.empty + 8 * s, READ ? 2 * GROUP : GROUP);
        }
        for (int b = 0; b < 4; b++) barrier_init(hand.ready + 8 * b, GROUP);
        if constexpr (HOPPER) async_proxy_fence();
    }
    __syncthreads();
    vector_walk<HOPPER, K, READ, REVERSE> walk(p, w, ring, hand);
    if (threadIdx.x >= 2 * GROUP)
        vector_load<HOPPER, K, READ, REVERSE>(p, w, ring);
    else if (threadIdx.x < GROUP)
        walk.template states<ENDS>();
    else if constexpr (READ)
        walk.reads();
}
template <int K, bool READ> constexpr int vector_ring_bytes(int stages)
{
    return 3 * 1024 + (int)TILE + K * 128 * (READ ? 3 : 1) + stages * (int)vector_stage<K, READ>::bytes;
}

/* BACK: half of the CTAs walk forwards, half in reverse; neither half waits for the other. READS: those forwards read out. */
template <bool HOPPER, int K, bool READS, bool BACK, bool ENDS>
__global__ __launch_bounds__(CHAIN_THREADS, 1) void vector_chain_kernel(const __grid_constant__ vector_chains p)
{
    extern __shared__ uint8_t shared[];
    await_last();
    let_next();
    if constexpr (!BACK)
        vector_chain<HOPPER, K, READS, false, ENDS>(p, blockIdx.x, shared);
    else if (blockIdx.x % 2 == 0)
        vector_chain<HOPPER, K, !ENDS, true, ENDS>(p, blockIdx.x / 2, shared);
    else
        vector_chain<HOPPER, K, READS, false, ENDS>(p, blockIdx.x / 2, shared);
}

template <bool HOPPER, int K, bool READS, bool BACK, bool ENDS> void put_chain(vector_chains c, const lnt_cuda *d)
{
    constexpr bool READ = READS || (BACK && !ENDS);
    c.stages = 4;
    while (c.stages > 1 && vector_ring_bytes<K, READ>(c.stages) > (int)d->base.block_shared) c.stages--;
    const int64_t ctas = c.sequences * c.segments * c.Hv * (c.V / 64) * (BACK ? 2 : 1);
    const auto kernel = vector_chain_kernel<HOPPER, K, READS, BACK, ENDS>;
    lnt_launch_with(d, kernel, dim3((unsigned)ctas), CHAIN_THREADS, vector_ring_bytes<K, READ>(c.stages), 1, c);
}
template <bool HOPPER, int K, bool BACK> void put_chains(const vector_chains &c, const lnt_cuda *d)
{
    if (c.segments > 1) put_chain<HOPPER, K, false, BACK, true>(c, d);
    c.reads ? put_chain<HOPPER, K, true, BACK, false>(c, d) : put_chain<HOPPER, K, false, BACK, false>(c, d);
}
template <bool HOPPER> void put_chains(const vector_chains &c, const lnt_cuda *d)
{
    if (c.K == 64)
        c.back ? put_chains<HOPPER, 64, true>(c, d) : put_chains<HOPPER, 64, false>(c, d);
    else
        c.back ? put_chains<HOPPER, 128, true>(c, d) : put_chains<HOPPER, 128, false>(c, d);
}

} // namespace

#endif

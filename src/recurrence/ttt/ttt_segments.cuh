/* Runs of whole mini-batches in segments (README.md): a CTA for a head, the chain, makes what mini-batches have to do one after the other, and leaves
 * the state at the start of every segment and what else the rest is made of; the rest of a segment is then a task of any CTA's, while the chain goes
 * on. What a segment leaves has a slot, its mini-batches a record each: t / SEGMENT_TOKENS + n and t / TILE_TOKENS + n for those of sequence n that
 * begin with token t are all different. */
#ifndef LNT_TTT_SEGMENTS_CUH
#define LNT_TTT_SEGMENTS_CUH

#include "recurrence/ttt/ttt_tiles.cuh"

static constexpr int SEGMENT = 8, SEGMENT_TOKENS = SEGMENT * TILE_TOKENS;

/* Launches by segments: outputs; the sweep ahead of the way back; the way back. */
enum { STEP_FORWARD, STEP_AHEAD, STEP_BACK };

struct ttt_segments {
    int64_t slots, records;                     /* how many there are of a head */
    int64_t state, record, sums, start;         /* floats of a state, a record, a segment's sums, the state in front of a ragged mini-batch */
    int h0, H;                                  /* heads of a launch */
    float *kept[2], *recorded, *summed, *starts; /* states and, going back, their gradients; [2] of sums: of the sweep ahead and of the way back */
    unsigned *flags; /* [2]: CTAs that began, tasks that were taken, [slots,H] segments that are ready; back, those of the order by both ends */
    bool both_ends;                             /* the way back begins while segments ahead are left (each_of_both_ends) */
    __host__ __device__ int64_t flag_count() const { return (slots * H + 2 + 3) / 4 * 4; }
    __host__ __device__ int64_t order_count() const { return (slots * H + 3 * H + 3) / 4 * 4; }
    __device__ unsigned *counters(bool back) const { return flags + back * flag_count(); }
    __device__ unsigned *flag(bool back, int64_t slot, int h) const { return counters(back) + 2 + slot * H + h - h0; }
    /* Of head h: segments taken from its first on and, in the upper half, from its last on; whether its chain ahead has ended; and whether a segment
     * ahead is done. */
    __device__ unsigned long long *taken(int h) const { return (unsigned long long *)(flags + 2 * flag_count()) + h - h0; }
    __device__ unsigned *ended(int h) const { return flags + 2 * flag_count() + 2 * H + h - h0; }
    __device__ unsigned *done(int64_t slot, int h) const { return flags + 2 * flag_count() + 3 * H + slot * H + h - h0; }
    __device__ float *state_of(bool back, int64_t slot, int h) const { return kept[back] + (slot * H + h - h0) * state; }
    __device__ float *sums_of(bool back, int64_t slot, int h) const { return summed + ((back * slots + slot) * H + h - h0) * sums; }
    __device__ float *record_of(int64_t n, int64_t t, int h) const { return recorded + ((t / TILE_TOKENS + n) * H + h - h0) * record; }
    __device__ float *start_of(int64_t n, int h) const { return starts + (n * H + h - h0) * start; }
};
__host__ __device__ static inline int64_t ttt_slot(int64_t n, int64_t t) { return t / SEGMENT_TOKENS + n; }

/* Sizes for as many heads at once as so many GB have room for; returns the floats. */
static inline int64_t ttt_segments_of(const lnt_ttt_args *a, bool back, int64_t state, int64_t record, int64_t sums, int64_t start, ttt_segments *s,
                                      int gigabytes = 4)
{
    *s = {};
    s->slots = ttt_slot(a->sequences, a->tokens) + 1, s->records = a->tokens / TILE_TOKENS + a->sequences + 1;
    s->state = state, s->record = record, s->sums = sums, s->start = start;
    const auto floats = [&](int64_t H) {
        s->H = (int)H;
        const int64_t once = s->slots * H * state + s->records * H * record + s->flag_count();
        return back ? once + s->slots * H * (state + 2 * sums) + a->sequences * H * start + s->flag_count() + s->order_count() : once;
    };
    int64_t H = a->H;
    while (H > 1 && floats(H) > (int64_t)gigabytes << 28) H = (H + 1) / 2;
    return floats(H);
}
/* Where they are; the flags and sums are one piece of memory, to be cleared: its bytes are returned. */
static inline size_t ttt_segments_at(float *p, bool back, int64_t sequences, ttt_segments *s)
{
    const int64_t states = s->slots * s->H * s->state, sums = back ? 2 * s->slots * s->H * s->sums : 0;
    s->kept[0] = p, p += states;
    if (back) s->kept[1] = p, p += states;
    s->recorded = p, p += s->records * s->H * s->record;
    if (back) s->starts = p, p += sequences * s->H * s->start;
    s->summed = p;
    s->flags = (unsigned *)(p + sums);
    return (size_t)(sums + (back ? 2 * s->flag_count() + s->order_count() : s->flag_count())) * sizeof(float);
}

/* ---- order ------------------------------------------------------------------------------------------------------------------------------------ */

/* The next number, the same for the CTA: CTAs have theirs in the order in which they begin, so that whoever is waited for is running (a launch has as
 * many as run at once: a CTA that waits must not keep from beginning the one whose chain it waits for). */
__device__ __forceinline__ int64_t ttt_next(unsigned *counter)
{
    __shared__ unsigned mine;
    __syncthreads();
    if (threadIdx.x == 0) mine = atomicAdd(counter, 1u);
    __syncthreads();
    return mine;
}
/* What the CTA wrote in front of its last barrier is there for whoever waits. One thread. */
__device__ __forceinline__ void ttt_publish(unsigned *flag)
{
    __threadfence();
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1u) : "memory");
}
__device__ __forceinline__ bool ttt_ready(const unsigned *flag)
{
    unsigned ready;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(ready) : "l"(flag) : "memory");
    return ready != 0;
}
__device__ __forceinline__ void ttt_await(const unsigned *flag)
{
    if (threadIdx.x == 0) {
        while (!ttt_ready(flag)) __nanosleep(256);
        __threadfence();
    }
    __syncthreads();
}
/* A warp, for the CTA behind its next barrier: waits for flag `last` of those `step` apart, and returns the first one of a row of up to 32 ready ones
 * that ends there (or one below 0): they need no asking any more. */
__device__ __forceinline__ int ttt_await_row(const unsigned *flags, int64_t step, int last)
{
    const int at = last - (int)threadIdx.x % 32;
    unsigned ready;
    do ready = __ballot_sync(~0u, at < 0 || ttt_ready(flags + at * step));
    while (!(ready & 1));
    __threadfence();
    __syncwarp();
    return last + 1 - (~ready ? __ffs((int)~ready) - 1 : 32);
}

struct ttt_segment {
    const lnt_ttt_args &a;
    int64_t slot, n, t; /* its sequence and first token */
    int h, count;       /* its head and mini-batches, 0: there is none */
};
__device__ __forceinline__ ttt_segment segment_at(const lnt_ttt_args &a, int64_t slot, int h)
{
    const auto begin = [&](int64_t n) {
        const int open = open_rows(a, n, h);
        return a.cu_seqlens_device[n] + (open ? TILE_TOKENS - open : 0);
    };
    int64_t n = 0;
    for (int64_t end = a.sequences; n + 1 < end;) { /* the last one whose first slot is not behind this one */
        const int64_t middle = (n + end) / 2;
        if (ttt_slot(middle, begin(middle)) <= slot)
            n = middle;
        else
            end = middle;
    }
    const int64_t first = begin(n), t = first + (slot - ttt_slot(n, first)) * SEGMENT_TOKENS, left = (a.cu_seqlens_device[n + 1] - t) / TILE_TOKENS;
    return { a, slot, n, t, h, t < first || left < 0 ? 0 : left < SEGMENT ? (int)left : SEGMENT };
}

/* Tasks one after the other, in the order in which chains leave them. */
template <bool BACK, typename F> __device__ __forceinline__ void each_segment(const lnt_ttt_args &a, const ttt_segments &s, F f)
{
    for (;;) {
        const int64_t task = ttt_next(s.counters(BACK) + 1);
        if (task >= s.slots * s.H) return;
        const int64_t slot = BACK ? s.slots - 1 - task / s.H : task / s.H;
        const ttt_segment at = segment_at(a, slot, s.h0 + (int)(task % s.H));
        if (!at.count) continue;
        ttt_await(s.flag(BACK, slot, at.h));
        f(at);
    }
}

/* Ahead of a way back that begins as soon as a chain has ended: a head's segments from its first on while its chain runs, then from its last on, as
 * the way back wants them. own: the head whose chain the CTA has ended, of which it takes one and no more, or -1. f ends with a barrier. */
template <typename F> __device__ __forceinline__ void each_of_both_ends(const lnt_ttt_args &a, const ttt_segments &s, int own, F f)
{
    __shared__ int64_t mine, from;
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            const int64_t task = own < 0 ? atomicAdd(s.counters(false) + 1, 1u) : own;
            mine = task, from = -1;
            if (task < s.slots * s.H) {
                const int h = s.h0 + (int)(task % s.H);
                const bool ended = ttt_ready(s.ended(h));
                const unsigned long long taken = atomicAdd(s.taken(h), ended ? 1ull << 32 : 1ull);
                const int64_t first = (int64_t)(taken & 0xffffffffu), last = (int64_t)(taken >> 32);
                if (first + last < s.slots) from = ended ? s.slots - 1 - last : first;
            }
        }
        __syncthreads();
        const int64_t task = mine, slot = from;
        if (task >= s.slots * s.H || (own >= 0 && slot < 0)) return;
        if (slot < 0) continue;
        const ttt_segment at = segment_at(a, slot, s.h0 + (int)(task % s.H));
        if (!at.count) continue;
        ttt_await(s.flag(false, slot, at.h));
        f(at);
        if (threadIdx.x == 0) ttt_publish(s.done(slot, at.h));
        if (own >= 0) return;
    }
}

/* ---- what is left ------------------------------------------------------------------------------------------------------------------------------ */

/* A warp's columns of a state as they are in its registers. */
template <int D> __device__ __forceinline__ void keep_state(const ttt_place<D> &y, float *to, const float (&W)[D / 8][4])
{
    if (y.mine)
#pragma unroll
        for (int j = 0; j < D / 8; j++) ((float4 *)to)[j * 2 * D + y.id] = make_float4(W[j][0], W[j][1], W[j][2], W[j][3]);
}
template <int D> __device__ __forceinline__ void kept_state(const ttt_place<D> &y, float (&W)[D / 8][4], const float *from)
{
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
        const float4 v = ((const float4 *)from)[j * 2 * D + y.id % (2 * D)];
        W[j][0] = v.x, W[j][1] = v.y, W[j][2] = v.z, W[j][3] = v.w;
    }
}
/* The upper halves of a state as operands. */
template <int D> __device__ __forceinline__ void record_plane(const ttt_place<D> &y, float *to, int p, const uint32_t (&high)[4])
{
    if (y.mine) ((uint4 *)to)[p * 2 * D + y.id] = make_uint4(high[0], high[1], high[2], high[3]);
}
template <int D> __device__ __forceinline__ void recorded_plane(const ttt_place<D> &y, uint32_t (&high)[4], const float *from, int p)
{
    const uint4 v = ((const uint4 *)from)[p * 2 * D + y.id % (2 * D)];
    high[0] = v.x, high[1] = v.y, high[2] = v.z, high[3] = v.w;
}

/* What a loss leaves of its tokens: the inverse of sigma; means over the columns of g, g hat, w^2 hat, w^2 hat^2. */
enum { LOSS_INVERSE, LOSS_MEAN, LOSS_ALONG, LOSS_FIRST, LOSS_SQUARE, LOSS_MEANS };
template <int D> __device__ __forceinline__ void record_means(const ttt_place<D> &y, float *to, const float (&x)[LOSS_MEANS][4])
{
#pragma unroll
    for (int k = 0; k < LOSS_MEANS; k++)
        if (y.id / 32 == k && y.r == 0)
#pragma unroll
            for (int e = 0; e < 4; e++) to[k * TILE_TOKENS + y.token(e)] = x[k][e];
}

/* The norm and the loss of a slice whose sums over the columns are zeros: from z to hat and u. bt: the norm's offset less the target. One barrier. */
template <int D>
__device__ __forceinline__ void tile_loss(const ttt_place<D> &y, const ttt_tile_norm &norm, float (&z)[2][4], const float (&bt)[2][4], float *sums,
                                          float (&means)[LOSS_MEANS][4], float (&u)[2][4])
{
    float all[5][4] = {};
    TTT_SLICE(t, q)
    {
        const int e = 2 * t + q % 2;
        const float d = z[t][q], w = norm.of(q), w2d = w * w * d, wb = w * bt[t][q];
        all[0][e] += d * d, all[1][e] += w2d, all[2][e] += w2d * d, all[3][e] += wb * d, all[4][e] += wb;
    }
    sum_columns<D>(y, all, sums);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float by = means[LOSS_INVERSE][e] = rsqrtf(all[0][e] / D + 1e-6f);
        means[LOSS_FIRST][e] = all[1][e] * by / D;
        means[LOSS_SQUARE][e] = all[2][e] * by * by / D;
        means[LOSS_MEAN][e] = means[LOSS_FIRST][e] + all[4][e] / D;
        means[LOSS_ALONG][e] = means[LOSS_SQUARE][e] + all[3][e] * by / D;
    }
    TTT_SLICE(t, q)
    {
        const int e = 2 * t + q % 2;
        const float by = means[LOSS_INVERSE][e], hat = z[t][q] *= by, g = norm.of(q) * (norm.of(q) * hat + bt[t][q]);
        u[t][q] = (g - means[LOSS_MEAN][e] - means[LOSS_ALONG][e] * hat) * by;
    }
}

/* And back: from du to dz, and dg, of which de is w dg. sums: over the columns, of du, hat du, w^2 du, w^2 hat du and u du; square: the mean of w^2.
 * The sums of dz^ (operators.md#ttt) are put together of those: no second round of sums. */
enum { BACK_DU, BACK_HAT, BACK_FIRST, BACK_SQUARE, BACK_U, BACK_SUMS };
template <int D, int N>
__device__ __forceinline__ void tile_loss_back(const ttt_tile_norm &norm, const float (&hat)[2][4], const float (&u)[2][4],
                                               const float (&means)[LOSS_MEANS][4], float square, const float (&sums)[N][4], float (&du)[2][4],
                                               float (&dg)[2][4])
{
    float mean[4], part[4], dhat_mean[4], dhat_part[4], sigma[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float by = means[LOSS_INVERSE][e], m = mean[e] = sums[BACK_DU][e] / D, p = part[e] = sums[BACK_HAT][e] / D;
        const float first = means[LOSS_FIRST][e], along = means[LOSS_ALONG][e];
        sigma[e] = __frcp_rn(by);
        dhat_mean[e] = by * (sums[BACK_FIRST][e] / D - m * (square + along) - p * (first + means[LOSS_MEAN][e]));
        dhat_part[e] = by * (sums[BACK_SQUARE][e] / D - m * first - p * (means[LOSS_SQUARE][e] + 2 * along)) + sums[BACK_U][e] / D;
    }
    TTT_SLICE(t, q)
    {
        const int e = 2 * t + q % 2;
        const float by = means[LOSS_INVERSE][e], along = means[LOSS_ALONG][e], w = norm.of(q);
        const float g = u[t][q] * sigma[e] + means[LOSS_MEAN][e] + along * hat[t][q];
        dg[t][q] = (du[t][q] - mean[e] - part[e] * hat[t][q]) * by;
        du[t][q] = (w * w * dg[t][q] - (along * du[t][q] + part[e] * g) * by - dhat_mean[e] - dhat_part[e] * hat[t][q]) * by;
    }
}

/* Sums of a segment, of columns: the norm's gradients. */
template <int D> __device__ __forceinline__ void put_norm_sums(const ttt_place<D> &y, float *to, const float (&dw)[2], const float (&db)[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float w = sum_tokens(dw[i]), b = sum_tokens(db[i]);
        if (y.mine && y.c == 0) to[y.first + 8 * i] = w, to[D + y.first + 8 * i] = b;
    }
}
/* Those of all segments to the sums of the first part [H,all] from `at` on. */
static __global__ void ttt_add_segments(float *to, int64_t all, int64_t at, const __grid_constant__ ttt_segments s)
{
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, each = s.sums;
    if (i >= s.H * each) return;
    float sum = 0;
#pragma unroll 8
    for (int64_t k = 0; k < 2 * s.slots; k++) sum += s.summed[k * s.H * each + i];
    to[(s.h0 + i / each) * all + at + i % each] += sum;
}

#endif

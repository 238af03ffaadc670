/* Up to 8 rows of x against large weights, bf16, on Hopper: what a kernel of one product (few_stream_sm90.cu) and a kernel of a whole step
 * (recurrence/persistent_sm90.cu) do alike. Floor: the weights read once.
 *
 * A tile is 16 rows of w, or 8 of each of two that are combined, and all of K. A block goes through tiles grid apart; one thread brings them to
 * shared memory, SPAN columns of K a stage, without a pause from tile to tile; eight warps have 64 columns of each stage and keep their x in
 * registers for its tiles, or, when K is longer than KEPT stages, load it as they go. What lane has what is as in few_rows_cuda.cu; warps' sums are
 * added in order. */
#ifndef LNT_OPS_FEW_STREAM_CUH
#define LNT_OPS_FEW_STREAM_CUH

#include "device/wgmma.cuh"
#include "ops/few_rows.cuh"

namespace few_stream {

constexpr int ROWS = 16, HALF = ROWS / 2, WARPS = 8, SPAN = 64 * WARPS;
constexpr int KEPT = 4; /* stages whose x a lane has in registers: all, or the next */
constexpr int CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 32;
constexpr int PANEL = HALF * 128, BOX = WARPS * PANEL, STAGE = 2 * BOX; /* bytes; a panel is 8 rows of 64 columns, a box has the 8 warps' */

/* A map of w [N, K], K a multiple of 64, read in boxes of HALF rows by SPAN columns, panel behind panel: a tensor [K/64][N][64]. */
static inline bool panels_map(CUtensorMap *map, const lnt_few_part *p, int64_t K)
{
    const uint64_t size[3] = {64, (uint64_t)p->N, (uint64_t)K / 64}, stride[2] = {(uint64_t)p->ldw * 2, 128};
    const uint32_t box[3] = {64, HALF, WARPS};
    return lnt_tensor_map(map, p->w, 3, size, stride, box);
}

/* Where weights lie until they are used: whole stages, filled and emptied in turn by a thread and by the warps. */
struct ring {
    char *memory; /* aligned to 1024 */
    uint64_t *full, *empty;
    int stages;
};
struct ring_place {
    int stage, turn;
    __device__ __forceinline__ void next(int stages)
    {
        if (++stage == stages) stage = 0, turn++;
    }
};
__device__ __forceinline__ void ring_init(const ring &r)
{
    for (int i = 0; i < r.stages; i++) mbarrier_init(&r.full[i], 1), mbarrier_init(&r.empty[i], WARPS);
}

struct product {
    few_parts parts;
    int K;
};

/* A tile of w. */
struct tile_rows {
    int part, n0;
    __device__ __forceinline__ tile_rows(const few_parts &a, int tile)
    {
        part = few_part_at(a, tile);
        n0 = (tile - a.p[part].first) * (a.swiglu ? HALF : ROWS);
    }
};

/* One thread: tiles first, first + step .. to the ring. UNDER_WAY: stages asked for before the first of them is there; wrapped(): the ring has been
 * filled once. */
template <int UNDER_WAY, class F>
__device__ __forceinline__ void bring(const product &p, const CUtensorMap *w, int first, int step, const ring &r, ring_place &at, const F &wrapped)
{
    const uint64_t once = read_once();
    const few_parts &to = p.parts;
    for (int tile = first; tile < to.tiles; tile += step) {
        const tile_rows rows(to, tile);
        const CUtensorMap *top = &w[rows.part], *low = to.swiglu ? &w[1] : top;
        const int second = to.swiglu ? rows.n0 : rows.n0 + HALF;
        for (int k = 0; k < p.K; k += SPAN) {
            char *into = r.memory + at.stage * STAGE;
            if (at.turn) {
                wrapped();
                mbarrier_wait(&r.empty[at.stage], (uint32_t)(at.turn - 1) & 1);
            }
            const bool same = at.stage >= UNDER_WAY;
            const int before = same ? at.stage - UNDER_WAY : at.stage + r.stages - UNDER_WAY;
            if (same || at.turn) mbarrier_wait(&r.full[before], (uint32_t)(same ? at.turn : at.turn - 1) & 1);
            mbarrier_expect(&r.full[at.stage], STAGE);
            tensor_load(into, top, &r.full[at.stage], 0, rows.n0, k / 64, once);
            tensor_load(into + BOX, low, &r.full[at.stage], 0, second, k / 64, once);
            at.next(r.stages);
        }
    }
}

__device__ __forceinline__ uint4 read_shared(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}

/* A lane's eight numbers of x, and the eight 32 columns on, of the stage whose columns begin at k; `left` columns are there from its first on. */
__device__ __forceinline__ void load_x(uint4 (&x)[2], const bf16 *row, int k, int left)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        x[h] = make_uint4(0, 0, 0, 0);
        if (row && k + h * 32 < left) x[h] = *(const uint4 *)(row + k + h * 32);
    }
}

struct share {
    float sum[2][WARPS][8][ROWS]; /* [turn][warp][row of x][row of w] */
    float roots[8];               /* of x's rows, behind a sum */
};

/* The CONSUMERS: tiles first, first + step .. from the ring, behind all that x needs. */
__device__ __forceinline__ void take(const product &product, int first, int step, const ring &ring, ring_place &place, share &s)
{
    const int warp = (int)threadIdx.x / 32, group = (int)threadIdx.x % 32 / 4, lane = (int)threadIdx.x % 4;
    const few_parts &to = product.parts;
    const int K = product.K, chunks = (K + SPAN - 1) / SPAN, mine = warp * 64 + 8 * lane;
    uint4 x[KEPT][2];
    const bf16 *row = NULL;
    few_root root;
    if (to.norm.squares) root.load(to.norm, min(warp, to.R - 1));
    int turn = 0, of = -1; /* of: the part whose x it has */
    for (int tile = first; tile < to.tiles; tile += step, turn ^= 1) {
        const tile_rows at(to, tile);
        const few_part &p = to.p[at.part];
        if (of < 0 || to.p[of].x != p.x) {
            row = group < to.R ? p.x + group * p.ldx + mine : NULL;
#pragma unroll
            for (int c = 0; c < KEPT; c++) load_x(x[c], row, c * SPAN, K - mine);
        }
        of = at.part;
        const int r = (int)threadIdx.x / ROWS, n = (int)threadIdx.x % ROWS;
        const bool there = r < to.R && at.n0 + n < p.N && !(to.swiglu && n >= HALF);
        few_addend<1> other;
        if (to.sum.x && there) other.load(to.sum, r, at.n0 + n);
        float d[4] = {};
        for (int begin = 0; begin < chunks; begin += KEPT)
#pragma unroll
            for (int c = 0; c < KEPT; c++) {
                if (begin + c >= chunks) break;
                const uint32_t top = shared_address(ring.memory + place.stage * STAGE + warp * PANEL + group * 128);
                uint4 u[2], v[2];
                mbarrier_wait(&ring.full[place.stage], (uint32_t)place.turn & 1);
#pragma unroll
                for (int h = 0; h < 2; h++) { /* odd rows take their halves the other way round: eight lanes, of two rows, fall into 32 banks */
                    const uint32_t at = (uint32_t)((((h ^ group) & 1) * 4 + lane) ^ group) * 16;
                    u[h] = read_shared(top + at), v[h] = read_shared(top + BOX + at);
                }
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const uint4 b = x[c][h], p = group & 1 ? u[h ^ 1] : u[h], q = group & 1 ? v[h ^ 1] : v[h];
                    few_mma(d, p.x, q.x, p.y, q.y, b.x, b.y);
                    few_mma(d, p.z, q.z, p.w, q.w, b.z, b.w);
                }
                __syncwarp();
                if (threadIdx.x % 32 == 0) mbarrier_arrive(&ring.empty[place.stage]);
                place.next(ring.stages);
                if (chunks > KEPT) load_x(x[c], row, (begin + c + KEPT < chunks ? begin + c + KEPT : c) * SPAN, K - mine);
            }
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (2 * lane + (e & 1) < to.R) s.sum[turn][warp][2 * lane + (e & 1)][group + 8 * (e >> 1)] = d[e];
        if (to.norm.squares && tile == first) {
            const float one = root.get(to.norm);
            if (threadIdx.x % 32 == 0) s.roots[warp] = one;
        }
        named_sync(1, CONSUMERS);
        if (r >= to.R || (!there && !to.sum.x)) continue;
        float y[1] = {}, g[1] = {};
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            y[0] += s.sum[turn][w][r][n];
            if (to.swiglu) g[0] += s.sum[turn][w][r][n + HALF];
        }
        if (to.sum.x) {
            few_squares(to.sum, r, tile, there ? other.put(to.sum, p, r, at.n0 + n, y) : 0.0f);
            continue;
        }
        if (to.norm.squares) y[0] *= s.roots[r], g[0] *= s.roots[r];
        few_result(p, to.swiglu, at.n0 + n, y, g);
        put_sum<any1>({p.y, p.f32}, r * p.ldy + (at.n0 + n) * p.step, y, p.add);
    }
}

} // namespace few_stream

#endif

/* What attention's forward and backward passes on Hopper share: blocks of rows over packed sequences, the order of work, loads and stores of rows. */
#ifndef LNT_ATTENTION_SM90_CUH
#define LNT_ATTENTION_SM90_CUH

#include "device/functions.cuh"
#include "device/wgmma.cuh"

extern "C" {
#include "recurrence/recur_args.h"

/* bf16, K = V = 64 or 128. False: nothing was put; the copy engine takes no such shape, or there is nothing to do. */
bool lnt_attention_sm90_forward(const lnt_recur_args *a, const lnt_device *d);
bool lnt_attention_sm90_backward(const lnt_recur_args *a, const lnt_device *d);
size_t lnt_attention_sm90_backward_bytes(const lnt_recur_args *a);
}

namespace {

constexpr int B = 64; /* rows of a warpgroup's product, and of a box */

/* 8 heads' rows of two tensors at 8192 rows of 128 columns are 32 MB, and stay in the 50 MB L2. */
constexpr int SECTION = 8;

inline int64_t blocks_of(int64_t rows, int64_t sequences, int size) { return rows / size + sequences; }

/* Maps of q, k and v, a box of 64 rows. */
inline bool map_inputs(const lnt_recur_args *a, CUtensorMap *m)
{
    const int64_t rows = a->tokens, keys = rows + a->offset, wide = (int64_t)a->Hq * a->K, few = (int64_t)a->Hk * a->K;
    return lnt_matrix_map(&m[0], a->q, rows, wide, wide, B) && lnt_matrix_map(&m[1], a->k, keys, few, few, B) &&
           lnt_matrix_map(&m[2], a->v, keys, few, few, B);
}

/* Blocks of `size` rows of all sequences, numbered without a table: sequence n begins with block cu[n] / size + n. Some blocks have no row. Rows fit
 * 32 bits, and registers are few. */
struct block_of {
    int n, first, length, at;
    __device__ block_of(const int64_t *cu, int64_t sequences, int64_t block, int size)
    {
        int64_t low = 0, high = sequences - 1;
        while (low < high) {
            const int64_t mid = (low + high + 1) / 2;
            if (cu[mid] / size + mid <= block)
                low = mid;
            else
                high = mid - 1;
        }
        n = (int)low;
        first = (int)cu[n];
        length = (int)cu[n + 1] - first;
        at = (int)(block - first / size - n) * size;
    }
};

/* Blocks of `size` keys that some of the `own` rows from b.at on see. */
struct key_blocks {
    int64_t from, count;
    __device__ key_blocks(const block_of &b, int64_t offset, int64_t window, int own, int size)
    {
        const int64_t keys = b.length + offset, low = b.at + offset - window + 1, high = b.at + own + offset;
        from = window > 0 && low > 0 ? low / B * B : 0;
        count = ((high < keys ? high : keys) - from + size - 1) / size;
    }
};

/* Head and tile of the i-th CTA. Heads go in sections whose rows stay in L2 together; in a section the tiles go by in order, for all heads side by
 * side. */
__device__ __forceinline__ void take_work(int64_t i, int section, int heads, int64_t tiles, int *head, int64_t *tile)
{
    const int64_t s = i / (tiles * section), rest = i - s * tiles * section;
    const int64_t wide = heads - s * section < section ? heads - s * section : section;
    *head = (int)(s * section + rest % wide);
    *tile = rest / wide;
}

/* What all lanes have alike, in a register of the warp: descriptions of operands made of it cost few instructions. */
__device__ __forceinline__ int of_warp(int x) { return __shfl_sync(0xffffffffu, x, 0); }

/* `count` blocks of 64 rows from `row`, head h. */
template <int D> __device__ __forceinline__ void load_rows(bf16 *dst, const CUtensorMap *m, uint64_t *b, int h, int64_t row, int count)
{
#pragma unroll
    for (int c = 0; c < D / 64; c++)
        for (int i = 0; i < count; i++) tensor_load(dst + (c * count + i) * B * 64, m, b, h * D + 64 * c, (int)(row + i * B));
}

/* What a thread that loads has in shared memory for blocks that a sequence's end crosses. */
struct crossing {
    uint64_t landed;
    uint32_t turn;
};
__device__ __forceinline__ void crossing_init(crossing &x)
{
    mbarrier_init(&x.landed, 1);
    x.turn = 0;
}
__device__ uint4 zero_rows[2 * B * 8]; /* of 64 columns, and nobody writes them */

/* The same, and `more` bytes to come at b. Of the rows the first `own` are the sequence's: behind them lies another's, and 0 times its NaN would be
 * NaN. So such blocks land first, and b waits for zeros over those rows. */
template <int D>
__device__ __forceinline__ void load_own_rows(bf16 *dst, const CUtensorMap *m, uint64_t *b, int h, int row, int count, int own, uint32_t more,
                                              crossing &x)
{
    const uint32_t bytes = (uint32_t)(count * B * D * 2);
    if (own >= count * B) {
        mbarrier_expect(b, bytes + more);
        load_rows<D>(dst, m, b, h, row, count);
        return;
    }
    mbarrier_expect(&x.landed, bytes);
    load_rows<D>(dst, m, &x.landed, h, row, count);
    mbarrier_wait(&x.landed, x.turn);
    x.turn ^= 1;
    const uint32_t behind = (uint32_t)(count * B - own) * 128;
    mbarrier_expect(b, D / 64 * behind + more);
    for (int c = 0; c < D / 64; c++) bulk_load(dst + (c * count * B + own) * 64, zero_rows, behind, b);
}

/* A warpgroup's accumulators into the `rows` rows at `to` that are `ld` apart, whole lines at a time, by way of 64 rows of shared memory at `own`:
 * panels of rows of 64 columns, `panel` bytes apart. No product may still read there. */
template <int D>
__device__ __forceinline__ void store_rows(bf16 *to, int64_t ld, int64_t rows, const float (&d)[D / 2], float scale, char *own, int panel)
{
    const int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x % 128 / 32 * 16; /* a warp has 16 rows, there as here */
    const uint32_t place = shared_address(own) + (first + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = pack_bf16(d[8 * j + 2 * i] * scale, d[8 * j + 2 * i + 1] * scale);
        store_matrices((place + j / 4 * panel) ^ (j % 4 << 5), a);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const int r = first + (32 * i + lane) / (D / 8), c = (32 * i + lane) % (D / 8);
        const uint4 x = *(const uint4 *)(own + c / 8 * panel + r * 128 + ((c ^ r) % 8 << 4));
        if (r < rows) *(uint4 *)(to + r * ld + 8 * c) = x;
    }
}

/* A key is seen `ahead` rows later. */
__device__ __forceinline__ bool sees(int64_t window, int64_t ahead) { return ahead >= 0 && (window <= 0 || ahead < window); }

} // namespace

#endif

/* When the blocks of a decoding step's kernels begin, go on behind await_last, pass up to three marks and end: what bench/decode_blocks.py prints.
 * In a build with LINNET_BLOCK_CLOCK each block keeps a line of them, which go to the file that the environment's LINNET_BLOCK_CLOCK names; in any
 * other nothing here makes code. */
#ifndef LNT_DEVICE_BLOCK_CLOCK_CUH
#define LNT_DEVICE_BLOCK_CLOCK_CUH

#include <stdint.h>

/* The kernels, as bench/decode_blocks.py names them. */
enum block_kind { CLOCK_PRODUCT, CLOCK_PRODUCT_64, CLOCK_CHAIN, CLOCK_RULE, CLOCK_DECAY, CLOCK_DECAY_NORM, CLOCK_MESA, CLOCK_DELTA };

#ifdef LINNET_BLOCK_CLOCK

/* Times in ns, their low 32 bits. */
struct block_times {
    uint32_t begin, on, end, kind, blocks, sm, mark[3]; /* mark: 0 where there is none */
};
struct block_record {
    uint32_t count, unused;
    block_times line[1 << 20]; /* the newest */
};

/* Each file that has kernels has its own; host: what gives all of them the place of the record. */
static __device__ block_record *block_clock_record;
void lnt_block_clock_add(void (*set)(block_record *));
void lnt_block_clock_begin(); /* of a device */
static void block_clock_set(block_record *r) { cudaMemcpyToSymbol(block_clock_record, &r, sizeof r); }
[[maybe_unused]] static const bool block_clock_is_known = (lnt_block_clock_add(block_clock_set), true);

/* Thread `who` of a block keeps its times, to the end of the clock's life. */
struct block_clock {
    block_kind kind;
    uint32_t who, begin, on, mark[3] = {};
    static __device__ __forceinline__ uint32_t now()
    {
        uint64_t t;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
        return (uint32_t)t;
    }
    __device__ __forceinline__ block_clock(block_kind kind, uint32_t who = 0) : kind(kind), who(who), begin(now()), on(begin) {}
    __device__ __forceinline__ void goes_on() { on = now(); }
    __device__ __forceinline__ void passes(int i) { mark[i] = now(); }
    __device__ __forceinline__ ~block_clock()
    {
        block_record *r = block_clock_record;
        uint32_t sm;
        if (threadIdx.x != who || !r) return;
        asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
        const block_times line = {begin, on, now(), (uint32_t)kind, gridDim.x * gridDim.y, sm, {mark[0], mark[1], mark[2]}};
        r->line[atomicAdd(&r->count, 1u) % (sizeof r->line / sizeof *r->line)] = line;
    }
};

#else

struct block_clock {
    __device__ __forceinline__ block_clock(block_kind, uint32_t = 0) {}
    __device__ __forceinline__ void goes_on() {}
    __device__ __forceinline__ void passes(int) {}
};

#endif
#endif

/* Recorded steps as kernels that stay: on Hopper, kernels of a few rows that are put one after the other while a graph is recorded become pieces of
 * one (recurrence/persistent_sm90.cu). Between two kernels memory has a pause, as blocks of the second find no place before those of the first end;
 * a block that stays brings the next products' weights while it waits for the piece before.
 *
 * Who would put a kernel that has a body there offers a piece first; whoever asks for the stream (lnt_stream, lnt_launch) has the pieces so far put,
 * so that order is kept. Few pieces are put as kernels of their own. A piece's results, and their bits, are the kernel's. */
#ifndef LNT_DEVICE_PERSISTENT_CUH
#define LNT_DEVICE_PERSISTENT_CUH

#include <cuda.h>

#include "device/cuda.cuh"

typedef enum {
    LNT_PIECE_PRODUCT,     /* ops/few_stream.cuh */
    LNT_PIECE_TILES,       /* ops/few_tile.cuh */
    LNT_PIECE_CHAIN,       /* ops/row_chain.cuh */
    LNT_PIECE_CONV,        /* ops/conv_blocks.cuh */
    LNT_PIECE_MESA,        /* recurrence/mesa/mesa_step.cuh */
    LNT_PIECE_DECAY,       /* recurrence/decay/decay_step.cuh */
    LNT_PIECE_NORM,        /* ops/norms.cuh */
    LNT_PIECE_DELTA_LAYER, /* recurrence/delta/delta_layer.cuh */
} lnt_piece_kind;

enum { LNT_PIECE_BYTES = 3200, LNT_PIECE_ARGS = LNT_PIECE_BYTES - 32, LNT_PIECE_MAPS = 8 };

struct alignas(16) lnt_piece {
    int32_t kind;            /* lnt_piece_kind */
    int32_t blocks;          /* tiles, or blocks of the kernel that it was */
    int32_t first;           /* the block that has number 0 */
    int32_t before;          /* blocks that leave the piece before; 0: there is none */
    int32_t work;            /* bytes of shared memory it needs beside the ring */
    int32_t unused;
    const CUtensorMap *maps; /* device; of a product's weights */
    unsigned char args[LNT_PIECE_ARGS];
};
static_assert(sizeof(lnt_piece) == LNT_PIECE_BYTES, "a piece is copied whole");

/* The kernel that a piece is otherwise; maps: the host's. */
typedef void lnt_piece_plain(const lnt_cuda *d, const lnt_piece *piece, const CUtensorMap *maps);

extern "C" {
/* Ahead of a recording, and behind it: what the graph reads, which is to be freed with it; NULL: nothing. */
void lnt_persistent_begin(lnt_cuda *d);
void *lnt_persistent_end(lnt_cuda *d);
/* maps: LNT_PIECE_MAPS of them, or NULL. False: nothing is being recorded, or there is no room; the caller puts its kernel. */
bool lnt_persistent_offer(const lnt_cuda *d, lnt_piece_kind kind, const void *args, size_t bytes, int blocks, size_t work, const CUtensorMap *maps,
                          lnt_piece_plain *plain);
}

/* ---- what a body says to its kernel ------------------------------------------------------------------------------------------------------- */

#ifdef __CUDACC__
/* A body's kernel of its own; all its threads call. */
struct lnt_alone {
    /* The next one may begin. */
    __device__ __forceinline__ void begin() const { let_next(); }
    /* From here on what kernels ahead wrote is there. */
    __device__ __forceinline__ void wait() const { await_last(); }
    __device__ __forceinline__ void sync() const { __syncthreads(); }
    /* What others read has been stored by this thread. */
    __device__ __forceinline__ void leave() const {}
};
/* Of what has waited already. */
struct lnt_waited {
    __device__ __forceinline__ void begin() const {}
    __device__ __forceinline__ void wait() const {}
};
#endif

#endif

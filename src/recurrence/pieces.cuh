/* Steps of cores that are pieces of a recorded step (device/persistent.cuh): a core that has one names it here, and nowhere else. */
#ifndef LNT_RECURRENCE_PIECES_CUH
#define LNT_RECURRENCE_PIECES_CUH

#include "recurrence/decay/decay_step.cuh"
#include "recurrence/delta/delta_layer.cuh"
#include "recurrence/mesa/mesa_step.cuh"

enum { CORE_THREADS = 256 };
static_assert((int)CORE_THREADS == 32 * delta_layer::WARPS && (int)CORE_THREADS == STEP_THREADS, "bodies have as many threads");

/* What they keep in shared memory from one piece to the next. */
struct core_share {
    delta_layer::layer_small layer;
    int states; /* that came to the layer's memory */
};
/* One thread, ahead of a barrier. */
__device__ __forceinline__ void core_init(core_share &s)
{
    delta_layer::layer_init(s.layer);
    s.states = 0;
}

/* So many registers that a kernel without them does better. */
static inline bool takes_many(int kind) { return kind == LNT_PIECE_MESA; }

template <class Work> static __device__ __noinline__ void decay_core(const lnt_piece &p, int b, char *work, const Work &at)
{
    ((const decay_piece *)p.args)->step(b, *(decay_step_share *)work, at);
}
template <class Work> static __device__ __noinline__ void delta_core(const lnt_piece &p, int b, char *work, core_share &s, const Work &at)
{
    const delta_layer::layer_piece &layer = *(const delta_layer::layer_piece *)p.args;
    const int states = s.states;
    fence_async(); /* what lay in `work` was read and written by threads */
    at.sync();
    if (threadIdx.x == 0) s.states = states + layer.args.group;
    layer.step((float *)work, b, s.layer, at, states);
}
template <class Work> static __device__ __noinline__ void mesa_core(const lnt_piece &p, int b, char *work, const Work &at)
{
    mesa_held::mesa_step<bf16, 128, true, false>(((const mesa_held::mesa_piece *)p.args)->args, b, *(mesa_held::step_shared<128> *)work, at);
}

/* Block b of a piece, by CORE_THREADS threads in `work`; false: it is none of a core's. MANY: those that take many registers, too. */
template <bool MANY, class Work> __device__ __forceinline__ bool core_piece(const lnt_piece &p, int b, char *work, core_share &s, const Work &at)
{
    if (p.kind == LNT_PIECE_DECAY)
        decay_core(p, b, work, at);
    else if (p.kind == LNT_PIECE_DELTA_LAYER)
        delta_core(p, b, work, s, at);
    else if (MANY && p.kind == LNT_PIECE_MESA)
        mesa_core(p, b, work, at);
    else
        return false;
    return true;
}

#endif

/* What the cores' CUDA files end with: a block's room, and the records of a form over chunks, or rows, of tokens and of one token by token. */
#ifndef LNT_RECUR_CUDA_CUH
#define LNT_RECUR_CUDA_CUH

#include "device/cuda.cuh"

/* Bytes of shared memory that a block has on this thread's GPU; 0: it does not tell. For implementations' `declines`, which have no device. */
static inline int lnt_block_room()
{
    int device = 0, most = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return 0;
    return cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess ? most : 0;
}

/* const lnt_recur_impl NAME: TEXT for a GPU of compute capability NEEDS / 10. Device pointers alone; NULL: it has no such thing. */
#define LNT_CUDA_FORM(NAME, TEXT, FORM, NEEDS, DECLINES, WORKSPACE, FORWARD, BACKWARD)                                             \
    extern "C" {                                                                                                                   \
    extern const lnt_recur_impl NAME;                                                                                              \
    const lnt_recur_impl NAME = {                                                                                                  \
        .name = TEXT, .form = LINNET_FORM_##FORM, .device = LNT_DEVICE_CUDA, .needs = NEEDS, .declines = DECLINES,                 \
        .workspace = WORKSPACE, .forward = NULL, .backward = NULL, .put_forward = FORWARD, .put_backward = BACKWARD,               \
    };                                                                                                                             \
    }

/* NAME_<WAY>_cuda "WAY-cuda" and NAME_recurrent_cuda, which serves forward alone. */
#define LNT_CUDA_FORMS(NAME, WAY, DECLINES, WORKSPACE, FORWARD, BACKWARD, STEP_WORKSPACE, STEP)                                    \
    LNT_CUDA_FORM(NAME##_##WAY##_cuda, #WAY "-cuda", CHUNK, 80, DECLINES, WORKSPACE, FORWARD, BACKWARD)                            \
    LNT_CUDA_FORM(NAME##_recurrent_cuda, "recurrent-cuda", RECURRENT, 80, DECLINES, STEP_WORKSPACE, STEP, NULL)

#endif

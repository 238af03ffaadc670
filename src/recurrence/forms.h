/* The list of an operator's implementations where it has the usual ones. */
#ifndef LNT_RECURRENCE_FORMS_H
#define LNT_RECURRENCE_FORMS_H

#include "recurrence/recurrence.h"
#include "simd/variant.h"

#ifdef LINNET_CUDA
#define LNT_GPU_FORMS(CORE) &CORE##_chunk_cuda, &CORE##_recurrent_cuda,
#define LNT_GPU_TILES(CORE) &CORE##_chunk_tiles,
#else
#define LNT_GPU_FORMS(CORE)
#define LNT_GPU_TILES(CORE)
#endif
#define LNT_DECLARE_FORMS(CORE)                                                                                                    \
    extern const lnt_recur_impl CORE##_chunk_tiles, CORE##_chunk_cuda, CORE##_recurrent_cuda, CORE##_reference;                    \
    LNT_DECLARE_VARIANTS(const lnt_recur_impl, CORE##_chunk);                                                                      \
    LNT_DECLARE_VARIANTS(const lnt_recur_impl, CORE##_recurrent)
#define LNT_HOST_FORMS(CORE) LNT_VARIANTS(CORE##_chunk), LNT_VARIANTS(CORE##_recurrent), &CORE##_reference, NULL

/* LIST (static const lnt_recur_impl *const impls[], say): CORE_chunk and CORE_recurrent of a GPU and of every CPU variant, and CORE_reference; with
 * CORE_chunk_tiles in front. */
#define LNT_USUAL_FORMS(LIST, CORE)                                                                                                \
    LNT_DECLARE_FORMS(CORE);                                                                                                       \
    LIST = { LNT_GPU_FORMS(CORE) LNT_HOST_FORMS(CORE) }
#define LNT_TILED_FORMS(LIST, CORE)                                                                                                \
    LNT_DECLARE_FORMS(CORE);                                                                                                       \
    LIST = { LNT_GPU_TILES(CORE) LNT_GPU_FORMS(CORE) LNT_HOST_FORMS(CORE) }

#endif

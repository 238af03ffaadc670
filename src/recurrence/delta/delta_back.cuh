/* The backward pass of the delta core's fast path on CUDA: the forward sweep again (delta_sweep.cu), the chain of the states' gradients
 * (delta_back_chain.cuh), then what is parallel over chunks (delta_back.cu). */
#ifndef LNT_DELTA_BACK_CUH
#define LNT_DELTA_BACK_CUH

#include "recurrence/delta/delta_cuda.cuh"

/* dbeta is the diagonal of dZ U^T over beta^2. Rows written with less than this have dR in dv's place until the last kernel has seen them: their
 * dbeta is worked out from the inputs. */
constexpr float LNT_DELTA_WEAK = 1e-12f;

#endif

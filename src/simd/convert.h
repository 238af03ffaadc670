/* Conversion of long arrays on the CPU device, for every variant. */
#ifndef LNT_SIMD_CONVERT_H
#define LNT_SIMD_CONVERT_H

#include "core/dtype.h"
#include "core/status.h"

void lnt_f32_to_bf16_many(lnt_ctx *c, lnt_bf16 *dst, const float *src, int64_t n);

#endif

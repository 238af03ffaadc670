/* Element types and the 16-bit floats. Conversions to bf16 and f16 round to nearest, ties to even; NaN stays NaN. */
#ifndef LNT_CORE_DTYPE_H
#define LNT_CORE_DTYPE_H

#include <stdint.h>
#include <string.h>

#include "linnet/linnet.h"

typedef linnet_dtype lnt_dtype;
typedef uint16_t lnt_bf16;
typedef uint16_t lnt_f16;

size_t lnt_dtype_size(lnt_dtype t);
const char *lnt_dtype_name(lnt_dtype t); /* "f32", "bf16" ... */

static inline float lnt_bf16_to_f32(lnt_bf16 h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* What rounding to bf16 works with, for kernels: the last bit that stays; a little less than half of it, and half; what keeps a NaN one. */
extern const int32_t lnt_bf16_rounding[4];

static inline lnt_bf16 lnt_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (lnt_bf16)((u >> 16) | 0x40u);
    return (lnt_bf16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float lnt_f16_to_f32(lnt_f16 h);
lnt_f16 lnt_f32_to_f16(float f);

/* Element i of an array of floating type t, and n elements at once. */
double lnt_load_element(const void *p, lnt_dtype t, int64_t i);
void lnt_store_element(void *p, lnt_dtype t, int64_t i, double v);
void lnt_convert(void *dst, lnt_dtype dst_type, const void *src, lnt_dtype src_type, int64_t n);

#endif

#include "simd/convert.h"

#include "core/cpu.h"
#include "core/threads.h"
#include "simd/variant.h"

typedef void convert_block(lnt_bf16 *dst, const float *src, int64_t n);
LNT_DECLARE_VARIANTS(convert_block, lnt_f32_to_bf16_block);

void lnt_f32_to_bf16_many(lnt_ctx *c, lnt_bf16 *dst, const float *src, int64_t n)
{
    enum { BLOCK = 16384 };
    convert_block *f = LNT_PICK(lnt_f32_to_bf16_block);
#pragma omp parallel for num_threads(lnt_threads(c)) schedule(static)
    for (int64_t i = 0; i < n; i += BLOCK) f(dst + i, src + i, n - i < BLOCK ? n - i : BLOCK);
}

#include "simd/simd.h"

void LNT_V(lnt_f32_to_bf16_block)(lnt_bf16 *dst, const float *src, int64_t n);
void LNT_V(lnt_f32_to_bf16_block)(lnt_bf16 *dst, const float *src, int64_t n) { v_put_row(dst, LINNET_BF16, src, n, 0); }

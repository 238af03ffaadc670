#include "core/dtype.h"

#include "core/status.h"

static const struct {
    const char *name, *alias;
    size_t size;
} types[] = {
    [LINNET_F32] = {"f32", "float32", 4}, [LINNET_BF16] = {"bf16", "bfloat16", 2}, [LINNET_F64] = {"f64", "float64", 8},
    [LINNET_F16] = {"f16", "float16", 2}, [LINNET_I64] = {"i64", "int64", 8},      [LINNET_I32] = {"i32", "int32", 4},
    [LINNET_U8] = {"u8", "uint8", 1},      [LINNET_I8] = {"i8", "int8", 1},
};

const int32_t lnt_bf16_rounding[4] = {0x10000, 0x7fff, 0x8000, 0x400000};

static bool known(int64_t t) { return t >= 0 && t <= LINNET_I8; }
size_t lnt_dtype_size(lnt_dtype t) { return types[t].size; }
const char *lnt_dtype_name(lnt_dtype t) { return known((int)t) ? types[t].name : "?"; }
const char *linnet_dtype_name(linnet_dtype t) { return lnt_dtype_name(t); }

linnet_status linnet_dtype_parse(linnet_context *c, const char *text, linnet_dtype *out)
{
    if (!text || !out) return lnt_fail(c, LINNET_EINVAL, "the name of a dtype is NULL, or the place for it");
    for (int i = 0; i <= LINNET_I8; i++)
        if (lnt_same_word(text, types[i].name) || lnt_same_word(text, types[i].alias)) {
            *out = (linnet_dtype)i;
            return LINNET_OK;
        }
    return lnt_fail(c, LINNET_EINVAL, "unknown dtype \"%s\", expected float32, bf16 or float64", text);
}

float lnt_f16_to_f32(lnt_f16 h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu, u;
    if (e == 31)
        u = sign | 0x7f800000u | m << 13;
    else if (e)
        u = sign | (e + 112) << 23 | m << 13;
    else { /* zero and subnormals: m * 2^-24 is exact in float32 */
        float f = (float)m * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, 4);
    return f;
}

lnt_f16 lnt_f32_to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (lnt_f16)(sign | 0x7e00u);
    if (a >= 0x477ff000u) return (lnt_f16)(sign | 0x7c00u); /* rounds to 65536 or more */
    if (a < 0x38800000u) {                                   /* subnormal: add 0.5, whose ulp is 2^-24, so the adder rounds for us */
        float x;
        memcpy(&x, &a, 4);
        x += 0.5f;
        memcpy(&a, &x, 4);
        return (lnt_f16)(sign | (a - 0x3f000000u));
    }
    a += 0xfffu + ((a >> 13) & 1u);
    return (lnt_f16)(sign | ((a - 0x38000000u) >> 13));
}

double lnt_load_element(const void *p, lnt_dtype t, int64_t i)
{
    switch (t) {
    case LINNET_F32: return ((const float *)p)[i];
    case LINNET_BF16: return lnt_bf16_to_f32(((const lnt_bf16 *)p)[i]);
    case LINNET_F64: return ((const double *)p)[i];
    case LINNET_F16: return lnt_f16_to_f32(((const lnt_f16 *)p)[i]);
    case LINNET_I64: return (double)((const int64_t *)p)[i];
    case LINNET_I32: return ((const int32_t *)p)[i];
    case LINNET_U8: return ((const uint8_t *)p)[i];
    case LINNET_I8: return ((const int8_t *)p)[i];
    }
    return 0;
}

void lnt_store_element(void *p, lnt_dtype t, int64_t i, double v)
{
    switch (t) {
    case LINNET_F32: ((float *)p)[i] = (float)v; break;
    case LINNET_BF16: ((lnt_bf16 *)p)[i] = lnt_f32_to_bf16((float)v); break;
    case LINNET_F64: ((double *)p)[i] = v; break;
    case LINNET_F16: ((lnt_f16 *)p)[i] = lnt_f32_to_f16((float)v); break;
    case LINNET_I64: ((int64_t *)p)[i] = (int64_t)v; break;
    case LINNET_I32: ((int32_t *)p)[i] = (int32_t)v; break;
    case LINNET_U8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    case LINNET_I8: ((int8_t *)p)[i] = (int8_t)v; break;
    }
}

void lnt_convert(void *dst, lnt_dtype dst_type, const void *src, lnt_dtype src_type, int64_t n)
{
    if (dst_type == src_type)
        memmove(dst, src, (size_t)n * types[dst_type].size);
    else
        for (int64_t i = 0; i < n; i++) lnt_store_element(dst, dst_type, i, lnt_load_element(src, src_type, i));
}

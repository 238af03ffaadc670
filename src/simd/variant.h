/* Names of the CPU variants. The build compiles each *_cpu.c once for each variant of the architecture (cmake/Variants.cmake), with
 * -DLNT_VARIANT=base|avx2|avx512|amx on x86-64, base|neon on AArch64, base elsewhere and with LNT_BASE_ALONE. This is the only file that has
 * symbols' names of them. */
#ifndef LNT_SIMD_VARIANT_H
#define LNT_SIMD_VARIANT_H

#define LNT_GLUE2(a, b) a##_##b
#define LNT_GLUE(a, b) LNT_GLUE2(a, b)
#ifdef LNT_VARIANT
#define LNT_V(name) LNT_GLUE(name, LNT_VARIANT)
#define LNT_TEXT2(x) #x
#define LNT_TEXT(x) LNT_TEXT2(x)
/* LNT_V_NAME("chunk") is "chunk-avx512", say; LNT_V_LEVEL the lnt_cpu_level it needs. */
#define LNT_V_NAME(form) form "-" LNT_TEXT(LNT_VARIANT)
#if defined(LNT_VARIANT_amx)
#define LNT_V_LEVEL LNT_CPU_AMX
#elif defined(LNT_VARIANT_avx512)
#define LNT_V_LEVEL LNT_CPU_AVX512
#elif defined(LNT_VARIANT_avx2)
#define LNT_V_LEVEL LNT_CPU_AVX2
#elif defined(LNT_VARIANT_neon)
#define LNT_V_LEVEL LNT_CPU_NEON
#else
#define LNT_V_LEVEL LNT_CPU_BASE
#endif
#endif

/* Declare one symbol for every variant; list their addresses, best first; pick the one for this process: LNT_PICK(lnt_mm) is lnt_mm_avx512, say.
 * Kernels in float32 alone leave out the variants that have nothing but bf16 products to add: LNT_DECLARE_FLOAT_VARIANTS, LNT_FLOAT_VARIANTS. */
#if defined(__x86_64__) && !defined(LNT_BASE_ALONE)
#define LNT_DECLARE_FLOAT_VARIANTS(type, name) extern type name##_base, name##_avx2, name##_avx512
#define LNT_DECLARE_VARIANTS(type, name) extern type name##_base, name##_avx2, name##_avx512, name##_amx
#define LNT_FLOAT_VARIANTS(name) &name##_avx512, &name##_avx2, &name##_base
#define LNT_VARIANTS(name) &name##_amx, &name##_avx512, &name##_avx2, &name##_base
#define LNT_PICK(name)                                                                                                             \
    (lnt_cpu() == LNT_CPU_AMX      ? &name##_amx                                                                                   \
     : lnt_cpu() == LNT_CPU_AVX512 ? &name##_avx512                                                                                \
     : lnt_cpu() == LNT_CPU_AVX2   ? &name##_avx2                                                                                  \
                                   : &name##_base)
#elif defined(__aarch64__) && !defined(LNT_BASE_ALONE)
#define LNT_DECLARE_FLOAT_VARIANTS(type, name) extern type name##_base, name##_neon
#define LNT_DECLARE_VARIANTS(type, name) LNT_DECLARE_FLOAT_VARIANTS(type, name)
#define LNT_FLOAT_VARIANTS(name) &name##_neon, &name##_base
#define LNT_VARIANTS(name) LNT_FLOAT_VARIANTS(name)
#define LNT_PICK(name) (lnt_cpu() == LNT_CPU_NEON ? &name##_neon : &name##_base)
#else
#define LNT_DECLARE_FLOAT_VARIANTS(type, name) extern type name##_base
#define LNT_DECLARE_VARIANTS(type, name) LNT_DECLARE_FLOAT_VARIANTS(type, name)
#define LNT_FLOAT_VARIANTS(name) &name##_base
#define LNT_VARIANTS(name) LNT_FLOAT_VARIANTS(name)
#define LNT_PICK(name) (&name##_base)
#endif

#endif

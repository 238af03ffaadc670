#include "core/cpu.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static lnt_cpu_level machine = LNT_CPU_BASE, level = LNT_CPU_BASE;
static char problem[160];
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
static const char *const names[LNT_CPU_VARIANTS] = {"base", "avx2", "avx512", "amx"};
#define NAMES "base, avx2, avx512 or amx"
#elif defined(__aarch64__)
static const char *const names[LNT_CPU_VARIANTS] = {"base", "neon"};
#define NAMES "base or neon"
#else
static const char *const names[LNT_CPU_VARIANTS] = {"base"};
#define NAMES "base"
#endif

const char *lnt_cpu_name(lnt_cpu_level l) { return names[l]; }

bool lnt_cpu_parse(const char *name, lnt_cpu_level *out)
{
    for (int i = 0; i < LNT_CPU_VARIANTS; i++)
        if (!strcmp(name, names[i])) {
            *out = (lnt_cpu_level)i;
            return true;
        }
    return false;
}

#if defined(LNT_BASE_ALONE)
static lnt_cpu_level detect(void) { return LNT_CPU_BASE; } /* whatever the machine has: the build holds nothing else */
#elif defined(__x86_64__)
static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* The kernel hands out AMX tile data per process on request (arch_prctl ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA). */
static bool amx_permitted(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static lnt_cpu_level detect(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return LNT_CPU_BASE;
    bool osxsave = c & bit_OSXSAVE, fma = c & bit_FMA, f16c = c & bit_F16C;
    if (!osxsave || !fma || !f16c || (xcr0() & 6) != 6) return LNT_CPU_BASE;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return LNT_CPU_BASE;
    if (!(b & bit_AVX2)) return LNT_CPU_BASE;
    const unsigned f512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((b & f512) != f512 || (xcr0() & 0xe6) != 0xe6) return LNT_CPU_AVX2;
    unsigned amx = (d >> 24 & 1) && (d >> 22 & 1); /* AMX-TILE, AMX-BF16 */
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d)) return LNT_CPU_AVX512;
    bool bf16 = a >> 5 & 1;
#ifdef LNT_AMX_EMULATED
    return bf16 ? LNT_CPU_AMX : LNT_CPU_AVX512;
#endif
    if (amx && bf16 && (xcr0() >> 17 & 3) == 3 && amx_permitted()) return LNT_CPU_AMX;
    return LNT_CPU_AVX512;
}
#else
static lnt_cpu_level detect(void) { return LNT_CPU_VARIANTS - 1; } /* NEON is part of every AArch64: there is nothing to ask */
#endif

static void init(void)
{
    machine = level = detect();
    const char *mask = getenv("LINNET_CPU");
    if (!mask || !*mask) return;
    lnt_cpu_level want;
    if (!lnt_cpu_parse(mask, &want))
        snprintf(problem, sizeof problem, "LINNET_CPU is \"%.40s\", expected " NAMES, mask);
    else if (want > machine)
        snprintf(problem, sizeof problem, "LINNET_CPU asks for %s, but this processor offers %s", names[want], names[machine]);
    else
        level = want;
}

lnt_cpu_level lnt_cpu(void)
{
    pthread_once(&once, init);
    return level;
}

lnt_cpu_level lnt_cpu_machine(void)
{
    pthread_once(&once, init);
    return machine;
}

const char *lnt_cpu_problem(void)
{
    pthread_once(&once, init);
    return problem[0] ? problem : NULL;
}

void lnt_cpu_force(lnt_cpu_level l)
{
    pthread_once(&once, init);
    level = l <= machine ? l : machine;
}

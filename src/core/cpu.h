/* What this processor can do, after the LINNET_CPU mask. */
#ifndef LNT_CORE_CPU_H
#define LNT_CORE_CPU_H

#include <stdbool.h>

/* The variants every CPU kernel is compiled for on this architecture, each with what the one before it has. AMX adds tile products to AVX-512; every
 * AArch64 has NEON, and base there is what a compiler makes of plain C. */
#if defined(__x86_64__)
typedef enum { LNT_CPU_BASE, LNT_CPU_AVX2, LNT_CPU_AVX512, LNT_CPU_AMX, LNT_CPU_VARIANTS } lnt_cpu_level;
#elif defined(__aarch64__)
typedef enum { LNT_CPU_BASE, LNT_CPU_NEON, LNT_CPU_VARIANTS } lnt_cpu_level;
#else
typedef enum { LNT_CPU_BASE, LNT_CPU_VARIANTS } lnt_cpu_level;
#endif

/* The best level this process may use: the machine's (XCR0 and, for AMX, the kernel's permission included), lowered by LINNET_CPU.
 * Decided once. */
lnt_cpu_level lnt_cpu(void);
/* The machine's own level, whatever LINNET_CPU says. */
lnt_cpu_level lnt_cpu_machine(void);
const char *lnt_cpu_name(lnt_cpu_level l); /* "base", "avx512" ... */
bool lnt_cpu_parse(const char *name, lnt_cpu_level *out);
/* NULL, or what is wrong with LINNET_CPU (unknown name, level this machine lacks); static storage. */
const char *lnt_cpu_problem(void);
/* Tests only: run the following calls at `l` (<= lnt_cpu_machine()). */
void lnt_cpu_force(lnt_cpu_level l);

#endif

/* What this processor can do, after the LINNET_CPU mask. */
#ifndef LNT_CORE_CPU_H
#define LNT_CORE_CPU_H

#include <stdbool.h>

/* The variants every CPU kernel is compiled for, in order of preference. AMX adds tile products to AVX-512. */
typedef enum { LNT_CPU_BASE = 0, LNT_CPU_AVX2 = 1, LNT_CPU_AVX512 = 2, LNT_CPU_AMX = 3, LNT_CPU_VARIANTS = 4 } lnt_cpu_level;

/* The best level this process may use: the machine's (XCR0 and, for AMX, the kernel's permission included), lowered by LINNET_CPU.
 * Decided once. */
lnt_cpu_level lnt_cpu(void);
/* The machine's own level, whatever LINNET_CPU says. */
lnt_cpu_level lnt_cpu_machine(void);
const char *lnt_cpu_name(lnt_cpu_level l); /* "base", "avx2", "avx512", "amx" */
bool lnt_cpu_parse(const char *name, lnt_cpu_level *out);
/* NULL, or what is wrong with LINNET_CPU (unknown name, level this machine lacks); static storage. */
const char *lnt_cpu_problem(void);
/* Tests only: run the following calls at `l` (<= lnt_cpu_machine()). */
void lnt_cpu_force(lnt_cpu_level l);

#endif

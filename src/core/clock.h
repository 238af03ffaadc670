/* Monotonic seconds. */
#ifndef LNT_CORE_CLOCK_H
#define LNT_CORE_CLOCK_H
double lnt_now(void);
#endif

#ifndef LNT_CORE_CLOCK_H
#define LNT_CORE_CLOCK_H
double lnt_now(void);      /* monotonic seconds */
double lnt_cpu_time(void); /* seconds that all threads of the process have worked */
#endif

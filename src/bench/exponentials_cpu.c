/* What a processor's own vector exponential makes, from and to the first-level cache: a ceiling for recurrences that take one for every number of
 * their state. */
#include "simd/simd.h"

#include "simd/variant.h"

void LNT_V(lnt_exponentials)(const float *x, float *y, int64_t n, int64_t rounds);

/* y_i = e^{x_i} or e^{x_i - 1}, by turns; n is a multiple of 64. */
void LNT_V(lnt_exponentials)(const float *x, float *y, int64_t n, int64_t rounds)
{
    for (int64_t r = 0; r < rounds; r++)
        for (int64_t i = 0; i < n; i += 4 * LNT_VL)
            for (int64_t j = i; j < i + 4 * LNT_VL; j += LNT_VL) v_store(y + j, v_exp(v_load(x + j) - v_set((float)(r % 2))));
}

/* The ends of the spectrum of a symmetric matrix, in float64. */
#ifndef LNT_TASKS_SPECTRUM_H
#define LNT_TASKS_SPECTRUM_H

#include <stdint.h>

/* Smallest and largest eigenvalue of a [n,n], n >= 1, of which both triangles are read and overwritten. work [3n]. */
void lnt_extreme_eigenvalues(int64_t n, double *a, double *work, double *low, double *high);

#endif

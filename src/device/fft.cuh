/* Transforms of real rows by cuFFT. A context keeps the plans that it has made. */
#ifndef LNT_DEVICE_FFT_CUH
#define LNT_DEVICE_FFT_CUH

#include "device/cuda.cuh"

/* `rows` rows of n float32 numbers, n a power of two, to n/2+1 complex numbers each; inverse: back, n times as large, `from` is overwritten. Rows
 * are dense. `work` has lnt_fft_work bytes. The first call of a shape makes its plan, which may allocate: it does not come inside a recording, since
 * a step is recorded when it comes again. */
size_t lnt_fft_work(int64_t n, int64_t rows);
void lnt_fft_forward(const lnt_cuda *d, int64_t n, int64_t rows, float *from, float2 *to, void *work);
void lnt_fft_inverse(const lnt_cuda *d, int64_t n, int64_t rows, float2 *from, float *to, void *work);
/* The context's plans, when it ends. */
void lnt_fft_free(lnt_cuda *d);

#endif

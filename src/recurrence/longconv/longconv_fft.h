/* Transforms of real rows, by KISS FFT; a build without it has none. */
#ifndef LNT_LONGCONV_FFT_H
#define LNT_LONGCONV_FFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool lnt_longconv_has_fft(void);
/* Plans for n real numbers (even), in memory of the caller's that begins at a multiple of 64. */
typedef struct {
    void *forward, *inverse;
} lnt_longconv_fft;
size_t lnt_longconv_fft_bytes(int64_t n);
lnt_longconv_fft lnt_longconv_fft_make(int64_t n, void *memory);
/* x [n] to the first n/2+1 complex numbers; and back, n times as large. */
void lnt_longconv_fft_forward(const lnt_longconv_fft *f, const float *x, float *complex_x);
void lnt_longconv_fft_inverse(const lnt_longconv_fft *f, const float *complex_x, float *x);

#endif

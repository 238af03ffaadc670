#include "recurrence/longconv/longconv_fft.h"

#ifdef LINNET_KISSFFT
#include <kissfft/kiss_fftr.h>

bool lnt_longconv_has_fft(void) { return true; }

/* Of one plan. */
static size_t plan_bytes(int64_t n)
{
    size_t bytes = 0;
    kiss_fftr_alloc((int)n, 0, NULL, &bytes);
    return (bytes + 63) / 64 * 64;
}

size_t lnt_longconv_fft_bytes(int64_t n) { return 2 * plan_bytes(n); }

lnt_longconv_fft lnt_longconv_fft_make(int64_t n, void *memory)
{
    const size_t each = plan_bytes(n);
    size_t bytes[2] = { each, each };
    return (lnt_longconv_fft){ kiss_fftr_alloc((int)n, 0, memory, &bytes[0]), kiss_fftr_alloc((int)n, 1, (char *)memory + each, &bytes[1]) };
}

void lnt_longconv_fft_forward(const lnt_longconv_fft *f, const float *x, float *complex_x) { kiss_fftr(f->forward, x, (kiss_fft_cpx *)complex_x); }
void lnt_longconv_fft_inverse(const lnt_longconv_fft *f, const float *complex_x, float *x)
{
    kiss_fftri(f->inverse, (const kiss_fft_cpx *)complex_x, x);
}
#else
bool lnt_longconv_has_fft(void) { return false; }
size_t lnt_longconv_fft_bytes(int64_t n) { return (void)n, (size_t)0; }
lnt_longconv_fft lnt_longconv_fft_make(int64_t n, void *memory) { return (void)n, (void)memory, (lnt_longconv_fft){ 0 }; }
void lnt_longconv_fft_forward(const lnt_longconv_fft *f, const float *x, float *complex_x) { (void)f, (void)x, (void)complex_x; }
void lnt_longconv_fft_inverse(const lnt_longconv_fft *f, const float *complex_x, float *x) { (void)f, (void)complex_x, (void)x; }
#endif

/* Transforms by cuFFT: plans by length, rows and direction, in a list that grows. */
#include "device/fft.cuh"

#include <cufft.h>

namespace {

struct fft_plan {
    fft_plan *next;
    cufftHandle handle;
    cufftType type;
    int64_t n, rows;
    void *own; /* its scratch, where lnt_fft_work is not enough */
};

void note(lnt_cuda *d, cufftResult r)
{
    if (r != CUFFT_SUCCESS) lnt_cuda_note(d, r == CUFFT_ALLOC_FAILED ? cudaErrorMemoryAllocation : cudaErrorUnknown);
}

fft_plan *make(lnt_cuda *d, cufftType type, int64_t n, int64_t rows)
{
    fft_plan *p = (fft_plan *)lnt_calloc(sizeof *p);
    if (!p) {
        lnt_cuda_note(d, cudaErrorMemoryAllocation);
        return NULL;
    }
    cufftResult r = cufftCreate(&p->handle);
    if (r != CUFFT_SUCCESS) {
        note(d, r);
        lnt_free(p);
        return NULL;
    }
    long long length = n;
    size_t bytes = 0;
    p->type = type, p->n = n, p->rows = rows;
    r = cufftSetAutoAllocation(p->handle, 0);
    if (r == CUFFT_SUCCESS) r = cufftMakePlanMany64(p->handle, 1, &length, NULL, 1, 0, NULL, 1, 0, type, rows, &bytes);
    if (r == CUFFT_SUCCESS) r = cufftSetStream(p->handle, d->stream);
    note(d, r);
    if (r == CUFFT_SUCCESS && bytes > lnt_fft_work(n, rows)) lnt_cuda_note(d, cudaMalloc(&p->own, bytes));
    /* What a plan brings to the GPU goes by the default stream, which ours does not wait for: its first transform would now and then read what is not
     * there yet, an illegal access. */
    lnt_cuda_note(d, cudaDeviceSynchronize());
    p->next = (fft_plan *)d->fft_plans;
    d->fft_plans = p;
    return p;
}

fft_plan *find(const lnt_cuda *d, cufftType type, int64_t n, int64_t rows, void *work)
{
    fft_plan *p = (fft_plan *)d->fft_plans;
    while (p && (p->type != type || p->n != n || p->rows != rows)) p = p->next;
    if (!p) p = make((lnt_cuda *)d, type, n, rows);
    if (p) note((lnt_cuda *)d, cufftSetWorkArea(p->handle, p->own ? p->own : work));
    return p;
}

} // namespace

/* A complex number for each real one: the least that cuFFT's manual speaks of, and what lengths of powers of two take. */
size_t lnt_fft_work(int64_t n, int64_t rows) { return (size_t)n * (size_t)rows * sizeof(float2); }

void lnt_fft_forward(const lnt_cuda *d, int64_t n, int64_t rows, float *from, float2 *to, void *work)
{
    const fft_plan *p = find(d, CUFFT_R2C, n, rows, work);
    if (p) note((lnt_cuda *)d, cufftExecR2C(p->handle, from, to));
}

void lnt_fft_inverse(const lnt_cuda *d, int64_t n, int64_t rows, float2 *from, float *to, void *work)
{
    const fft_plan *p = find(d, CUFFT_C2R, n, rows, work);
    if (p) note((lnt_cuda *)d, cufftExecC2R(p->handle, from, to));
}

void lnt_fft_free(lnt_cuda *d)
{
    for (fft_plan *p = (fft_plan *)d->fft_plans, *next; p; p = next) {
        next = p->next;
        cufftDestroy(p->handle);
        if (p->own) cudaFree(p->own);
        lnt_free(p);
    }
    d->fft_plans = NULL;
}

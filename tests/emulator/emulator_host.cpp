/* The runtime, cuBLASLt and the driver as far as the library calls them: device memory is the host's, and what is put has happened. */
#include "emulator.h"

#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

namespace emu {
typedef std::vector<std::function<void()>> graph;
void record(bool begin, graph **out);
struct tensor_map {
    char *base;
    uint32_t rank, box[5];
    uint64_t size[3], stride[2];
    uint32_t swizzle; /* bytes of a row; 0: none */
};
} // namespace emu

namespace emu { /* emulator.cpp */
int gpu();
size_t block_room();
cudaError_t last_error();
}
#define API extern "C" cudaError_t CUDARTAPI

API cudaGetDeviceCount(int *n) { return *n = 1, cudaSuccess; }
API cudaSetDevice(int) { return cudaSuccess; }
API cudaGetDevice(int *d) { return *d = 0, cudaSuccess; }
API cudaDriverGetVersion(int *v) { return *v = 13000, cudaSuccess; }
API cudaGetLastError() { return emu::last_error(); }
extern "C" const char *CUDARTAPI cudaGetErrorString(cudaError_t e)
{
    static thread_local char text[64];
    snprintf(text, sizeof text, "error %d of the emulator", (int)e);
    return text;
}
API cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated sm_%d", emu::gpu());
    p->major = emu::gpu() / 10, p->minor = emu::gpu() % 10;
    p->multiProcessorCount = 4;
    p->totalGlobalMem = (size_t)8 << 30;
    p->sharedMemPerBlockOptin = emu::block_room();
    p->sharedMemPerMultiprocessor = emu::block_room() + 1024;
    return cudaSuccess;
}
API cudaDeviceGetAttribute(int *value, cudaDeviceAttr a, int)
{
    switch (a) {
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)emu::block_room(); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)emu::block_room() + 1024; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    case cudaDevAttrComputeCapabilityMajor: *value = emu::gpu() / 10; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    default: *value = 0;
    }
    return cudaSuccess;
}
API cudaMemGetInfo(size_t *free, size_t *total) { return *free = *total = (size_t)8 << 30, cudaSuccess; }
/* As much alignment as CUDA promises, and no more */
enum { ALIGNMENT = 256 };
API cudaMalloc(void **p, size_t n)
{
    if (posix_memalign(p, 2 * ALIGNMENT, n + ALIGNMENT)) return cudaErrorMemoryAllocation;
    return *p = (char *)*p + ALIGNMENT, cudaSuccess;
}
API cudaFree(void *p) { return free(p ? (char *)p - ALIGNMENT : NULL), cudaSuccess; }
API cudaMallocHost(void **p, size_t n) { return cudaMalloc(p, n); }
API cudaFreeHost(void *p) { return cudaFree(p); }
API cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind, cudaStream_t)
{
    if (n) emu::later([=] { memmove(to, from, n); });
    return cudaSuccess;
}
API cudaMemsetAsync(void *to, int x, size_t n, cudaStream_t)
{
    if (n) emu::later([=] { memset(to, x, n); });
    return cudaSuccess;
}
API cudaMemset2DAsync(void *to, size_t pitch, int x, size_t width, size_t height, cudaStream_t)
{
    emu::later([=] {
        for (size_t i = 0; i < height; i++) memset((char *)to + i * pitch, x, width);
    });
    return cudaSuccess;
}
API cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) { return *s = (cudaStream_t)malloc(1), cudaSuccess; }
API cudaStreamDestroy(cudaStream_t s) { return free(s), cudaSuccess; }
API cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
API cudaDeviceSynchronize(void) { return cudaSuccess; }
API cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return emu::record(true, NULL), cudaSuccess; }
API cudaStreamEndCapture(cudaStream_t, cudaGraph_t *g) { return emu::record(false, (emu::graph **)g), cudaSuccess; }
API cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long)
{
    *e = (cudaGraphExec_t) new emu::graph(*(emu::graph *)g);
    return cudaSuccess;
}
API cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *, size_t *n) { return *n = ((emu::graph *)g)->size(), cudaSuccess; }
API cudaGraphDestroy(cudaGraph_t g) { return delete (emu::graph *)g, cudaSuccess; }
API cudaGraphExecDestroy(cudaGraphExec_t g) { return delete (emu::graph *)g, cudaSuccess; }
API cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t)
{
    for (auto &what : *(emu::graph *)g) what();
    return cudaSuccess;
}
API cudaEventCreate(cudaEvent_t *e) { return *e = (cudaEvent_t)calloc(1, sizeof(double)), cudaSuccess; }
API cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { return cudaEventCreate(e); }
API cudaEventDestroy(cudaEvent_t e) { return free(e), cudaSuccess; }
API cudaEventRecord(cudaEvent_t e, cudaStream_t)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *(double *)e = (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
    return cudaSuccess;
}
API cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
API cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) { return *ms = (float)(*(double *)b - *(double *)a), cudaSuccess; }

/* ---- the driver --------------------------------------------------------------------------------------------------------------------------- */

static CUresult encode(CUtensorMap *map, CUtensorMapDataType, cuuint32_t rank, void *base, const cuuint64_t *size, const cuuint64_t *stride,
                       const cuuint32_t *box, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    emu::tensor_map m = {};
    if (rank > 3 || (uintptr_t)base % 16) return CUDA_ERROR_INVALID_VALUE;
    m.base = (char *)base;
    m.rank = rank;
    for (cuuint32_t i = 0; i < rank; i++) m.size[i] = size[i], m.box[i] = box[i];
    for (cuuint32_t i = 0; i + 1 < rank; i++) {
        if (stride[i] % 16) return CUDA_ERROR_INVALID_VALUE;
        m.stride[i] = stride[i];
    }
    m.swizzle = swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 128 : swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 32 : 0;
    memset(map, 0, sizeof *map);
    memcpy(map, &m, sizeof m);
    return CUDA_SUCCESS;
}
API cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned, unsigned long long, cudaDriverEntryPointQueryResult *)
{
    *f = !strcmp(name, "cuTensorMapEncodeTiled") ? (void *)encode : NULL;
    return cudaSuccess;
}

/* ---- cuBLASLt: column-major products --------------------------------------------------------------------------------------------------------- */

struct matrix {
    uint64_t type, rows, cols;
    int64_t ld;
};
struct product {
    int32_t turn_a, turn_b;
};
#define BLAS extern "C" cublasStatus_t CUBLASWINAPI

BLAS cublasLtCreate(cublasLtHandle_t *h) { return *h = (cublasLtHandle_t)malloc(1), CUBLAS_STATUS_SUCCESS; }
BLAS cublasLtDestroy(cublasLtHandle_t h) { return free(h), CUBLAS_STATUS_SUCCESS; }
extern "C" const char *CUBLASWINAPI cublasLtGetStatusString(cublasStatus_t) { return "an error of the emulator"; }
BLAS cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t m, size_t, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld)
{
    const matrix x = { (uint64_t)type, rows, cols, ld };
    return memcpy(m, &x, sizeof x), CUBLAS_STATUS_SUCCESS;
}
BLAS cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t d, size_t size, cublasComputeType_t, cudaDataType_t)
{
    return memset(d, 0, size), CUBLAS_STATUS_SUCCESS;
}
BLAS cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what, const void *x, size_t)
{
    product *p = (product *)d;
    const int32_t turned = *(const cublasOperation_t *)x != CUBLAS_OP_N;
    if (what == CUBLASLT_MATMUL_DESC_TRANSA) p->turn_a = turned;
    else if (what == CUBLASLT_MATMUL_DESC_TRANSB) p->turn_b = turned;
    else return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}
BLAS cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t, size_t) { return CUBLAS_STATUS_SUCCESS; }
BLAS cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t) { return CUBLAS_STATUS_SUCCESS; }
BLAS cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                    cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *found, int *n)
{
    memset(found, 0, sizeof *found);
    return *n = 1, CUBLAS_STATUS_SUCCESS;
}
static float element(const void *p, uint64_t type, int64_t i) { return type == CUDA_R_32F ? ((const float *)p)[i] : __bfloat162float(((const __nv_bfloat16 *)p)[i]); }
BLAS cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha, const void *A, cublasLtMatrixLayout_t la, const void *B, cublasLtMatrixLayout_t lb,
                    const void *beta, const void *C, cublasLtMatrixLayout_t lc, void *D, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t,
                    cudaStream_t)
{
    const product p = *(const product *)d;
    const matrix a = *(const matrix *)la, b = *(const matrix *)lb, c = *(const matrix *)lc;
    const float by = *(const float *)alpha, old = *(const float *)beta;
    emu::later([=] {
        const int64_t K = (int64_t)(p.turn_a ? a.rows : a.cols);
        for (int64_t j = 0; j < (int64_t)c.cols; j++)
            for (int64_t i = 0; i < (int64_t)c.rows; i++) {
                float sum = 0;
                for (int64_t k = 0; k < K; k++)
                    sum += element(A, a.type, p.turn_a ? k + i * a.ld : i + k * a.ld) * element(B, b.type, p.turn_b ? j + k * b.ld : k + j * b.ld);
                const int64_t at = i + j * c.ld;
                sum = by * sum + (old != 0 ? old * element(C, c.type, at) : 0);
                if (c.type == CUDA_R_32F) ((float *)D)[at] = sum;
                else ((__nv_bfloat16 *)D)[at] = __float2bfloat16_rn(sum);
            }
    });
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- cuFFT: rows of real numbers, as the sums are written ------------------------------------------------------------------------------------- */

struct transform {
    int64_t n, rows;
};
static std::vector<transform> transforms;
#define FFT extern "C" cufftResult CUFFTAPI

FFT cufftCreate(cufftHandle *h) { return *h = (cufftHandle)transforms.size(), transforms.push_back({}), CUFFT_SUCCESS; }
FFT cufftDestroy(cufftHandle) { return CUFFT_SUCCESS; }
FFT cufftSetAutoAllocation(cufftHandle, int) { return CUFFT_SUCCESS; }
FFT cufftSetStream(cufftHandle, cudaStream_t) { return CUFFT_SUCCESS; }
FFT cufftSetWorkArea(cufftHandle, void *) { return CUFFT_SUCCESS; }
FFT cufftMakePlanMany64(cufftHandle h, int, long long int *n, long long int *, long long int, long long int, long long int *, long long int, long long int,
                        cufftType, long long int rows, size_t *bytes)
{
    transforms[(size_t)h] = { *n, rows };
    return *bytes = 0, CUFFT_SUCCESS;
}
static std::vector<double> circle(int64_t n) /* cosines and sines of its n-th parts */
{
    std::vector<double> w(2 * (size_t)n);
    for (int64_t i = 0; i < n; i++) w[2 * (size_t)i] = cos(2 * M_PI * (double)i / (double)n), w[2 * (size_t)i + 1] = sin(2 * M_PI * (double)i / (double)n);
    return w;
}
FFT cufftExecR2C(cufftHandle h, cufftReal *from, cufftComplex *to)
{
    const transform x = transforms[(size_t)h];
    emu::later([=] {
        const std::vector<double> w = circle(x.n);
        const int64_t half = x.n / 2 + 1;
#pragma omp parallel for
        for (int64_t i = 0; i < x.rows * half; i++) {
            double re = 0, im = 0;
            for (int64_t t = 0, at = 0; t < x.n; t++, at = (at + i % half) % x.n) {
                const double v = from[i / half * x.n + t];
                re += v * w[2 * (size_t)at], im -= v * w[2 * (size_t)at + 1];
            }
            to[i] = { (float)re, (float)im };
        }
    });
    return CUFFT_SUCCESS;
}
FFT cufftExecC2R(cufftHandle h, cufftComplex *from, cufftReal *to)
{
    const transform x = transforms[(size_t)h];
    emu::later([=] {
        const std::vector<double> w = circle(x.n);
        const int64_t half = x.n / 2 + 1;
#pragma omp parallel for
        for (int64_t i = 0; i < x.rows * x.n; i++) {
            const cufftComplex *f = from + i / x.n * half;
            double sum = 0;
            for (int64_t k = 0, at = 0; k < half; k++, at = (at + i % x.n) % x.n)
                sum += (k && 2 * k != x.n ? 2 : 1) * ((double)f[k].x * w[2 * (size_t)at] - (double)f[k].y * w[2 * (size_t)at + 1]);
            to[i] = (float)sum;
        }
    });
    return CUFFT_SUCCESS;
}

/* ---- launches by address ---------------------------------------------------------------------------------------------------------------------- */

emu::by_address &emu::known(const void *kernel)
{
    static std::map<const void *, emu::by_address> all;
    return all[kernel];
}
API cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }
API cudaLaunchKernel(const void *kernel, dim3 blocks, dim3 threads, void **arguments, size_t shared, cudaStream_t stream)
{
    const emu::by_address &k = emu::known(kernel);
    return k ? emu::put(emu::config(blocks, threads, shared, stream), k(arguments)) : cudaErrorInvalidDeviceFunction;
}

/* The CUDA device: one GPU, one stream. Plain allocations; nothing is allocated in a step after the first, so there is no pool. */
#include "device/block_clock.cuh"
#include "device/fft.cuh"

static lnt_cuda *self(lnt_device *d) { return (lnt_cuda *)d; }

static void *cuda_alloc(lnt_device *d, size_t bytes)
{
    void *p = NULL;
    cudaSetDevice(self(d)->index);
    if (cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError(); /* not sticky: the caller reports it */
        return NULL;
    }
    size_t free = 0, total = 0;
    lnt_cuda_note(self(d), cudaMemGetInfo(&free, &total));
    if (total - free > d->peak) d->peak = total - free;
    return p;
}

/* Waits, so that work put before may still use the block. */
static void cuda_free(lnt_device *d, void *p)
{
    lnt_cuda_note(self(d), cudaStreamSynchronize(self(d)->stream));
    lnt_cuda_note(self(d), cudaFree(p));
}

static void cuda_to_device(lnt_device *d, void *dst, const void *host, size_t n)
{
    lnt_cuda_note(self(d), cudaMemcpyAsync(dst, host, n, cudaMemcpyHostToDevice, self(d)->stream)); /* pageable: staged before it returns */
}

/* To pageable memory the driver copies by way of its own, and waits twice. */
static void cuda_to_host(lnt_device *d, void *host, const void *src, size_t n)
{
    void *to = n <= LNT_BOUNCE ? self(d)->bounce : host;
    lnt_cuda_note(self(d), cudaMemcpyAsync(to, src, n, cudaMemcpyDeviceToHost, self(d)->stream));
    lnt_cuda_note(self(d), cudaStreamSynchronize(self(d)->stream));
    if (to != host) memcpy(host, to, n);
}

static void cuda_copy(lnt_device *d, void *dst, const void *src, size_t n)
{
    lnt_cuda_note(self(d), cudaMemcpyAsync(dst, src, n, cudaMemcpyDeviceToDevice, self(d)->stream));
}

static void cuda_zero(lnt_device *d, void *dst, size_t n) { lnt_cuda_note(self(d), cudaMemsetAsync(dst, 0, n, self(d)->stream)); }
static void cuda_wait(lnt_device *d) { lnt_cuda_note(self(d), cudaStreamSynchronize(self(d)->stream)); }
static void cuda_mark(lnt_device *d, int which) { lnt_cuda_note(self(d), cudaEventRecord(self(d)->marks[which], self(d)->stream)); }

static void *cuda_alloc_shared(lnt_device *d, size_t bytes)
{
    void *p = NULL;
    if (cudaMallocHost(&p, bytes) == cudaSuccess) return p;
    (void)cudaGetLastError();
    return NULL;
}
static void cuda_free_shared(lnt_device *d, void *p) { lnt_cuda_note(self(d), cudaFreeHost(p)); }
static void cuda_set_flag(lnt_device *d, int which) { lnt_cuda_note(self(d), cudaEventRecord(self(d)->flags[which], self(d)->stream)); }
static void cuda_await_flag(lnt_device *d, int which) { lnt_cuda_note(self(d), cudaEventSynchronize(self(d)->flags[which])); }

static double cuda_elapsed(lnt_device *d)
{
    float ms = 0;
    lnt_cuda_note(self(d), cudaEventSynchronize(self(d)->marks[1]));
    lnt_cuda_note(self(d), cudaEventElapsedTime(&ms, self(d)->marks[0], self(d)->marks[1]));
    return 1e-3 * (double)ms;
}

/* ---- put: the bytes travel as a kernel's parameters -------------------------------------------------------------------------------- */

static constexpr size_t PUT_BYTES = 2048;
struct put_bytes {
    unsigned char x[PUT_BYTES];
};

__global__ void put_kernel(unsigned char *dst, const __grid_constant__ put_bytes p, int n)
{
    let_next();
    await_last();
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) dst[i] = p.x[i];
}

static void cuda_put(lnt_device *d, void *dst, const void *host, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += PUT_BYTES) {
        put_bytes p;
        const int n = (int)(bytes - at < PUT_BYTES ? bytes - at : PUT_BYTES);
        memcpy(p.x, (const char *)host + at, (size_t)n);
        lnt_launch(self(d), put_kernel, 1, 256, (unsigned char *)dst + at, p, n);
    }
}

/* ---- graphs ----------------------------------------------------------------------------------------------------------------------------- */

static void cuda_graph_begin(lnt_device *d)
{
    lnt_cuda_note(self(d), cudaStreamBeginCapture(self(d)->stream, cudaStreamCaptureModeThreadLocal));
}

static void *cuda_graph_end(lnt_device *d)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    lnt_cuda_note(self(d), cudaStreamEndCapture(self(d)->stream, &graph));
    if (graph) {
        lnt_cuda_note(self(d), cudaGraphGetNodes(graph, NULL, &d->graph_nodes));
        lnt_cuda_note(self(d), cudaGraphInstantiate(&ready, graph, 0));
        cudaGraphDestroy(graph);
    }
    return ready;
}

static void cuda_graph_launch(lnt_device *d, void *graph) { lnt_cuda_note(self(d), cudaGraphLaunch((cudaGraphExec_t)graph, self(d)->stream)); }

static void cuda_graph_free(lnt_device *d, void *graph)
{
    lnt_cuda_note(self(d), cudaStreamSynchronize(self(d)->stream));
    lnt_cuda_note(self(d), cudaGraphExecDestroy((cudaGraphExec_t)graph));
}

static const char *cuda_problem(lnt_device *d)
{
    lnt_cuda_note(self(d), cudaGetLastError());
    cudaError_t e = self(d)->failed;
    self(d)->failed = cudaSuccess;
    return e == cudaSuccess ? NULL : cudaGetErrorString(e);
}

static void cuda_destroy(lnt_device *d)
{
    lnt_cuda *s = self(d);
    cudaStreamSynchronize(s->stream);
    for (cudaEvent_t mark : s->marks)
        if (mark) cudaEventDestroy(mark);
    for (cudaEvent_t flag : s->flags)
        if (flag) cudaEventDestroy(flag);
    lnt_fft_free(s);
    if (s->lt) cublasLtDestroy(s->lt);
    if (s->lt_work) cudaFree(s->lt_work);
    if (s->bounce) cudaFreeHost(s->bounce);
    lnt_free(s->gemm_picks);
    if (s->owns_stream && s->stream) cudaStreamDestroy(s->stream);
    lnt_free(s);
}

static const lnt_device calls = {
    .kind = LNT_DEVICE_CUDA,
    .name = NULL,
    .number = 0,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .to_device = cuda_to_device,
    .to_host = cuda_to_host,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .wait = cuda_wait,
    .alloc_shared = cuda_alloc_shared,
    .free_shared = cuda_free_shared,
    .set_flag = cuda_set_flag,
    .await_flag = cuda_await_flag,
    .mark = cuda_mark,
    .elapsed = cuda_elapsed,
    .destroy = cuda_destroy,
    .capability = 0,
    .multiprocessors = 0,
    .block_shared = 0,
    .peak = 0,
    .stream = NULL,
    .put = cuda_put,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
    .graph_nodes = 0,
    .problem = cuda_problem,
};

static linnet_status refuse(lnt_ctx *c, cudaError_t e)
{
    int driver = 0;
    if (e == cudaErrorNoDevice || cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        lnt_fail(c, LINNET_EUNSUPPORTED, "no NVIDIA GPU (or no driver for one) was found: --device cuda needs one");
    else if (e == cudaErrorInsufficientDriver)
        lnt_fail(c, LINNET_EUNSUPPORTED, "the NVIDIA driver offers CUDA %d.%d; this build needs %d.%d", driver / 1000, driver % 1000 / 10,
                 CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    else
        lnt_fail(c, LINNET_EUNSUPPORTED, "the GPU could not be opened: %s", cudaGetErrorString(e));
    return lnt_hint(c, "Use --device cpu.");
}

extern "C" linnet_status lnt_cuda_open(lnt_ctx *c, int index, void *stream, lnt_device **out)
{
    int count = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess || count == 0) return refuse(c, e == cudaSuccess ? cudaErrorNoDevice : e);
    if (index >= count) return lnt_fail(c, LINNET_EINVAL, "device cuda:%d does not exist: this machine has %d", index, count);
    lnt_cuda *d = (lnt_cuda *)lnt_calloc(sizeof *d);
    if (!d) return lnt_fail_memory(c, sizeof *d);
    d->base = calls;
    d->index = index;
    cudaDeviceProp p;
    if ((e = cudaSetDevice(index)) == cudaSuccess) e = cudaGetDeviceProperties(&p, index);
    if (e == cudaSuccess && p.major < 8) {
        lnt_free(d);
        lnt_fail(c, LINNET_EUNSUPPORTED, "%s has compute capability %d.%d; linnet needs 8.0 or more", p.name, p.major, p.minor);
        return lnt_hint(c, "Use --device cpu.");
    }
#ifdef LINNET_BLOCK_CLOCK
    if (e == cudaSuccess) lnt_block_clock_begin();
#endif
    if (e == cudaSuccess && !stream) {
        e = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking);
        d->owns_stream = e == cudaSuccess;
    } else if (stream) {
        d->stream = (cudaStream_t)stream;
    }
    for (int i = 0; i < 2 && e == cudaSuccess; i++) e = cudaEventCreate(&d->marks[i]);
    for (int i = 0; i < 2 && e == cudaSuccess; i++) e = cudaEventCreateWithFlags(&d->flags[i], cudaEventDisableTiming);
    if (e == cudaSuccess) e = cudaMalloc(&d->lt_work, LNT_LT_WORK);
    if (e == cudaSuccess) e = cudaMallocHost(&d->bounce, LNT_BOUNCE);
    if (e == cudaSuccess && cublasLtCreate(&d->lt) != CUBLAS_STATUS_SUCCESS) e = cudaErrorInitializationError;
    if (e != cudaSuccess) {
        cuda_destroy(&d->base);
        return refuse(c, e);
    }
    d->base.number = index;
    d->base.capability = p.major > 9 ? 89 : p.major * 10 + p.minor; /* what is compiled for 9.0 runs there alone; newer ones run what 8.0 does */
    d->base.multiprocessors = p.multiProcessorCount;
    d->base.block_shared = p.sharedMemPerBlockOptin;
    d->base.stream = d->stream;
    snprintf(d->name, sizeof d->name, "cuda: %.200s", p.name);
    d->base.name = d->name;
    *out = &d->base;
    return LINNET_OK;
}

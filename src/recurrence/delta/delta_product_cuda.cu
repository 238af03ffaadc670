/* Several writes a token on a GPU: the delta core's kernels with n rows a token, of which the first has the token's gate and the last its query; the
 * others' are 0, and what is read there is nobody's. So rows of q, g and do are spread over n times as many, and those of o, dq and dg are picked out
 * again. The step takes tokens as they are (delta_step_cuda.cu). */
#include "recurrence/delta/delta_cuda.cuh"

namespace {

constexpr int THREADS = 256, MOST = 3; /* tensors of one launch */

/* to [tokens n,bytes] from [tokens,bytes], zeros but in row `place` of a token's n; `pick`: to [tokens,bytes] from that row of [tokens n,bytes]. */
struct tensor {
    void *to; /* NULL: none */
    const void *from;
    int64_t bytes; /* of a row */
    int place;
    bool pick;
};
struct spread_args {
    tensor x[MOST];
    int64_t rows, sequences;
    int n;
    const int64_t *cu;
    int64_t *cu_rows; /* [N+1], n times cu; NULL: not wanted */
};

template <typename W> __device__ __forceinline__ void move(const tensor &x, int64_t row, int64_t token, bool is_place)
{
    const int64_t words = x.bytes / (int64_t)sizeof(W);
    if (x.pick && !is_place) return;
    W *to = (W *)x.to + (x.pick ? token : row) * words;
    const W *from = (const W *)x.from + (x.pick ? row : token) * words;
    for (int64_t i = threadIdx.x; i < words; i += THREADS) to[i] = is_place ? from[i] : W{};
}

__global__ __launch_bounds__(THREADS) void spread_kernel(const __grid_constant__ spread_args p)
{
    await_last();
    let_next();
    for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x)
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            const tensor &x = p.x[i];
            if (!x.to) continue;
            const int64_t token = row / p.n;
            const bool is_place = row - token * p.n == x.place;
            const uint64_t bits = (uint64_t)x.to | (uint64_t)x.from | (uint64_t)x.bytes;
            if (bits % 16 == 0)
                move<uint4>(x, row, token, is_place);
            else if (bits % 4 == 0)
                move<uint32_t>(x, row, token, is_place);
            else
                move<uint16_t>(x, row, token, is_place);
        }
    if (blockIdx.x == 0 && p.cu_rows)
        for (int64_t i = threadIdx.x; i <= p.sequences; i += THREADS) p.cu_rows[i] = p.cu[i] * p.n;
}

/* One launch of these; a row at least, for cu_rows. */
void put(spread_args p, const lnt_recur_args *a, const lnt_device *device)
{
    p.n = lnt_recur_writes(a);
    p.rows = a->tokens * p.n, p.sequences = a->sequences;
    const int64_t most = 1 << 20, blocks = p.rows < 1 ? 1 : p.rows < most ? p.rows : most;
    lnt_launch((const lnt_cuda *)device, spread_kernel, (unsigned)blocks, THREADS, p);
}

/* What stands in front of the kernels' own workspace: rows, as many as there are writes. */
struct written {
    int64_t *cu;
    void *q, *o, *d_o, *dq;
    float *g, *dg;
    size_t bytes;
};
written carve(const lnt_recur_args *a, void *at, bool backward)
{
    written w = {};
    const int64_t rows = a->tokens * lnt_recur_writes(a), size = a->dtype == LINNET_BF16 ? 2 : 4;
    auto take = [&](int64_t bytes) {
        void *p = (char *)at + w.bytes;
        w.bytes += ((size_t)bytes + 255) / 256 * 256;
        return p;
    };
    w.cu = (int64_t *)take((a->sequences + 1) * 8);
    w.q = take(rows * a->Hq * a->K * size);
    w.g = (float *)take(rows * a->Hv * 4);
    if (!backward) {
        w.o = take(rows * a->Hv * a->V * size);
        return w;
    }
    w.d_o = take(rows * a->Hv * a->V * size);
    w.dq = take(rows * a->Hq * a->K * size);
    w.dg = (float *)take(rows * a->Hv * 4);
    return w;
}

/* The call by rows; its cu_seqlens on the host stay those of tokens (lnt_delta_chunks). */
lnt_recur_args by_rows(const lnt_recur_args *a)
{
    lnt_recur_args x = *a;
    x.tokens *= lnt_recur_writes(a), x.longest *= lnt_recur_writes(a);
    return x;
}

/* The kernels of the delta rule that these go to. */
struct kernels {
    const char *(*declines)(const void *args, bool backward);
    size_t (*workspace)(const void *args, bool backward, int threads);
    void (*forward)(const void *args, const lnt_device *d), (*backward)(const void *args, const lnt_device *d);
};
constexpr kernels sm90 = { lnt_delta_fast_declines, lnt_delta_fast_workspace, lnt_delta_sm90_forward, lnt_delta_sm90_backward };
constexpr kernels sm80 = { lnt_delta_fast_declines, lnt_delta_fast_workspace, lnt_delta_sm80_forward, lnt_delta_sm80_backward };
constexpr kernels general = { lnt_delta_cuda_declines, lnt_delta_chunk_cuda_workspace, lnt_delta_chunk_cuda_forward, lnt_delta_chunk_cuda_backward };

template <const kernels &OF> const char *declines(const void *args, bool backward)
{
    const lnt_recur_args x = by_rows((const lnt_recur_args *)args);
    return OF.declines(&x, backward);
}

template <const kernels &OF> size_t workspace(const void *args, bool backward, int threads)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args, x = by_rows(a);
    return (lnt_recur_writes(a) > 1 ? carve(a, NULL, backward).bytes : 0) + OF.workspace(&x, backward, threads);
}

template <const kernels &OF> void run(const void *args, const lnt_device *d, bool backward)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    const int last = lnt_recur_writes(a) - 1;
    if (!last) {
        (backward ? OF.backward : OF.forward)(a, d);
        return;
    }
    const int64_t size = a->dtype == LINNET_BF16 ? 2 : 4, keys = size * a->Hq * a->K, values = size * a->Hv * a->V, gates = (int64_t)4 * a->Hv;
    const written w = carve(a, a->workspace, backward);
    lnt_recur_args x = by_rows(a);
    x.workspace = (char *)a->workspace + w.bytes, x.workspace_size = a->workspace_size - w.bytes;
    x.cu_seqlens_device = w.cu;
    x.q = w.q, x.g = a->g ? w.g : NULL;
    spread_args in = {}, out = {};
    in.cu = a->cu_seqlens_device, in.cu_rows = w.cu;
    in.x[0] = { w.q, a->q, keys, last, false };
    if (a->g) in.x[1] = { w.g, a->g, gates, 0, false };
    if (backward) {
        x.do_ = a->do_ ? w.d_o : NULL;
        x.dq = a->dq ? w.dq : NULL, x.dg = a->dg ? w.dg : NULL;
        if (a->do_) in.x[2] = { w.d_o, a->do_, values, last, false };
        out.x[0] = { a->dq, w.dq, keys, last, true };
        out.x[1] = { a->dg, w.dg, gates, 0, true };
    } else {
        x.o = w.o;
        out.x[0] = { a->o, w.o, values, last, true };
    }
    put(in, a, d);
    (backward ? OF.backward : OF.forward)(&x, d);
    put(out, a, d);
}
template <const kernels &OF> void forward(const void *args, const lnt_device *d) { run<OF>(args, d, false); }
template <const kernels &OF> void backward(const void *args, const lnt_device *d) { run<OF>(args, d, true); }

} // namespace

#define IMPLEMENTATION(NAME, TEXT, NEEDS)                                                                                          \
    extern const lnt_recur_impl NAME;                                                                                              \
    const lnt_recur_impl NAME = {                                                                                                  \
        .name = TEXT,                                                                                                              \
        .form = LINNET_FORM_CHUNK,                                                                                                 \
        .device = LNT_DEVICE_CUDA,                                                                                                 \
        .needs = NEEDS,                                                                                                            \
        .declines = declines<OF>,                                                                                                  \
        .workspace = workspace<OF>,                                                                                                \
        .forward = NULL,                                                                                                           \
        .backward = NULL,                                                                                                          \
        .put_forward = forward<OF>,                                                                                                \
        .put_backward = backward<OF>,                                                                                              \
    }
extern "C" {
#define OF sm90
IMPLEMENTATION(lnt_delta_product_sm90, "chunk-sm90", 90);
#undef OF
#define OF sm80
IMPLEMENTATION(lnt_delta_product_sm80, "chunk-sm80", 80);
#undef OF
#define OF general
IMPLEMENTATION(lnt_delta_product_cuda, "chunk-cuda", 80);
#undef OF
}

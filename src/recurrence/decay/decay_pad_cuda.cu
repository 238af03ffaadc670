/* Keys of any width on tensor cores: a call with zeros behind them, to a multiple of 64, has the same outputs and gradients, and states whose rows
 * there are zeros. */
#include "recurrence/decay/decay_cuda.cuh"

typedef lnt_recur_args args;
static constexpr int THREADS = 256, MOST_BLOCKS = 1 << 16;

/* [T,Hq,K] in the call's type; [N,Hv,K,V], [N,Hv,K] in float32 */
enum pad_shape { KEYS, STATE, SUM };
struct pad_of {
    size_t at; /* of the pointer */
    pad_shape shape;
};
#define PAD(NAME, SHAPE) { offsetof(args, NAME), SHAPE }
static constexpr pad_of fore_in[] = { PAD(q, KEYS), PAD(k, KEYS), PAD(s0, STATE), PAD(z0, SUM) }, fore_out[] = { PAD(sT, STATE), PAD(zT, SUM) };
static constexpr pad_of back_in[] = { PAD(q, KEYS), PAD(k, KEYS), PAD(s0, STATE), PAD(z0, SUM), PAD(dsT, STATE), PAD(dzT, SUM) };
static constexpr pad_of back_out[] = { PAD(dq, KEYS), PAD(dk, KEYS), PAD(ds0, STATE), PAD(dz0, SUM) };

/* f(pad) for each of what goes in, or comes out. */
template <size_t N, typename F> static void each(const pad_of (&list)[N], F f)
{
    for (const pad_of &p : list) f(p);
}
template <typename F> static void each_in(bool backward, F f) { backward ? each(back_in, f) : each(fore_in, f); }
template <typename F> static void each_out(bool backward, F f) { backward ? each(back_out, f) : each(fore_out, f); }
static void *&pointer(args *a, const pad_of &p) { return *(void **)((char *)a + p.at); }
static void *pointer(const args *a, const pad_of &p) { return *(void *const *)((const char *)a + p.at); }

static int64_t rows_of(const args *a, pad_shape s) { return s == KEYS ? a->tokens * a->Hq : a->sequences * a->Hv; }
static int width_of(const args *a, pad_shape s) { return s == STATE ? a->K * a->V : a->K; }

size_t lnt_decay_pad(const args *a, bool backward, args *wide)
{
    *wide = *a;
    wide->K = (a->K + 63) / 64 * 64;
    if (wide->K == a->K) return 0;
    size_t used = 0;
    const auto take = [&](const pad_of &p) {
        if (pointer(a, p)) pointer(wide, p) = (char *)a->workspace + used;
        const size_t size = p.shape == KEYS ? lnt_dtype_size(a->dtype) : sizeof(float);
        used += ((size_t)rows_of(wide, p.shape) * (size_t)width_of(wide, p.shape) * size + 255) / 256 * 256;
    };
    each_in(backward, take);
    each_out(backward, take);
    if (a->workspace) wide->workspace = (char *)a->workspace + used;
    return used;
}

/* Rows of `from` numbers to rows of `to`, which have zeros behind them or the first ones alone. */
template <typename T> __global__ __launch_bounds__(THREADS) void decay_pad(T *out, const T *in, int64_t n, int to, int from)
{
    await_last();
    let_next();
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n; i += gridDim.x * (int64_t)THREADS) {
        const int64_t row = n >> 32 ? i / to : (int64_t)((unsigned)i / (unsigned)to);
        const int at = (int)(i - row * to);
        out[i] = at < from ? in[row * from + at] : from_float<T>(0.0f);
    }
}
static void put(const args *to, const args *from, const pad_of &p, const lnt_cuda *d)
{
    void *out = pointer(to, p), *in = pointer(from, p);
    const int64_t n = rows_of(to, p.shape) * width_of(to, p.shape), blocks = lnt_div_up(n, THREADS);
    const dim3 grid((unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS));
    if (!in || !out || !n) return;
    if (p.shape == KEYS && to->dtype == LINNET_BF16)
        lnt_launch(d, decay_pad<bf16>, grid, THREADS, (bf16 *)out, (const bf16 *)in, n, width_of(to, p.shape), width_of(from, p.shape));
    else
        lnt_launch(d, decay_pad<float>, grid, THREADS, (float *)out, (const float *)in, n, width_of(to, p.shape), width_of(from, p.shape));
}
void lnt_decay_pad_in(const args *a, const args *wide, bool backward, const lnt_cuda *d)
{
    if (wide->K != a->K) each_in(backward, [&](const pad_of &p) { put(wide, a, p, d); });
}
void lnt_decay_pad_out(const args *a, const args *wide, bool backward, const lnt_cuda *d)
{
    if (wide->K != a->K) each_out(backward, [&](const pad_of &p) { put(a, wide, p, d); });
}

size_t lnt_decay_padded_bytes(const args *a, bool backward, const decay_kernels &k)
{
    args wide;
    const size_t bytes = lnt_decay_pad(a, backward, &wide);
    return bytes + lnt_decay_cuda_bytes(&wide, backward, k);
}
void lnt_decay_padded_forward(const args *a, const lnt_device *d, const decay_kernels &k)
{
    args wide;
    lnt_decay_pad(a, false, &wide);
    lnt_decay_pad_in(a, &wide, false, (const lnt_cuda *)d);
    lnt_decay_cuda_forward(&wide, d, k);
    lnt_decay_pad_out(a, &wide, false, (const lnt_cuda *)d);
}
void lnt_decay_padded_backward(const args *a, const lnt_device *d, const decay_kernels &k)
{
    args wide;
    lnt_decay_pad(a, true, &wide);
    lnt_decay_pad_in(a, &wide, true, (const lnt_cuda *)d);
    lnt_decay_cuda_backward(&wide, d, k, {});
    lnt_decay_pad_out(a, &wide, true, (const lnt_cuda *)d);
}

/* Softmax attention on Hopper, forward: bf16, K = V = 64 or 128: operators.md#attention by blocks of 128 keys, powers of two.
 *
 * A CTA has 128 rows of a head: two warpgroups of 64 rows, and a warp that keeps the copies of keys and values two blocks ahead. Scores of block t+1
 * are put before the sum over values of block t, whose product runs while block t+1's exponentials are made.
 *
 *   floor: B1 T8192 H32 K=V=128 causal, 550 GFLOP: 0.70 ms at 790 TFLOP/s */
#include "recurrence/attention/attention_sm90.cuh"

namespace {

constexpr int GROUPS = 2, OWN = GROUPS * B, KEYS = 128, THREADS = 128 * (GROUPS + 1), STAGES = 2;

struct problem {
    bf16 *o;
    float *lse;
    const int64_t *cu;
    int64_t sequences, offset, window, tiles;
    int Hk, Hq;
    float scale2; /* s log2 e, above 0 */
};

template <int D> struct shared_of {
    bf16 q[D / 64][OWN][64], k[STAGES][D / 64][KEYS][64], v[STAGES][D / 64][KEYS][64];
    uint64_t own, k_full[STAGES], v_full[STAGES], k_empty[STAGES], v_empty[STAGES];
    crossing end;
};
template <int D> constexpr size_t shared_bytes = sizeof(shared_of<D>) + 1024;

/* The largest (sum) over the four threads of a row. */
__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* o and L of 128 rows of a head. Long: the warp that loads and the warpgroups that multiply meet at the same barriers, and scores, sums and O stay in
 * registers while products are under way. */
template <int D>
__global__ void __launch_bounds__(THREADS, 1) forward_kernel(const __grid_constant__ problem a, const __grid_constant__ CUtensorMap q,
                                                             const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v)
{
    extern __shared__ char raw[];
    shared_of<D> &s = *(shared_of<D> *)(raw + (1024 - shared_address(raw) % 1024) % 1024);
    if (threadIdx.x == 0) {
        mbarrier_init(&s.own, 1);
        crossing_init(s.end);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&s.k_full[i], 1), mbarrier_init(&s.v_full[i], 1);
            mbarrier_init(&s.k_empty[i], 4 * GROUPS), mbarrier_init(&s.v_empty[i], 4 * GROUPS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    int h;
    int64_t tile;
    take_work(blockIdx.x, SECTION, a.Hq, a.tiles, &h, &tile);
    const block_of b(a.cu, a.sequences, a.tiles - 1 - tile, OWN); /* late rows see most keys: first */
    if (b.at >= b.length) return;
    const int hk = h / (a.Hq / a.Hk), warpgroup = of_warp((int)threadIdx.x / 128);
    const key_blocks seen(b, a.offset, a.window, OWN, KEYS);
    const int64_t from = seen.from, steps = seen.count;

    if (warpgroup == GROUPS) {
        registers_lower<24>();
        if (threadIdx.x != GROUPS * 128) return;
        mbarrier_expect(&s.own, OWN * D * 2);
        load_rows<D>(&s.q[0][0][0], &q, &s.own, h, b.first + b.at, GROUPS);
        for (int64_t t = 0; t < steps; t++) {
            const int stage = (int)(t % STAGES);
            const uint32_t parity = (uint32_t)(t / STAGES + 1) & 1;
            mbarrier_wait(&s.k_empty[stage], parity);
            mbarrier_expect(&s.k_full[stage], KEYS * D * 2);
            load_rows<D>(&s.k[stage][0][0][0], &k, &s.k_full[stage], hk, b.first + from + t * KEYS, KEYS / B);
            mbarrier_wait(&s.v_empty[stage], parity);
            load_own_rows<D>(&s.v[stage][0][0][0], &v, &s.v_full[stage], hk, (int)(b.first + from + t * KEYS), KEYS / B,
                             (int)(b.length + a.offset - from - t * KEYS), 0, s.end);
        }
        return;
    }

    registers_raise<240>();
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x % 128 / 32 * 16 + lane / 4, two = lane % 4 * 2;
    const uint32_t own = shared_address(s.q) + warpgroup * B * 128;
    const int64_t i0 = b.at + warpgroup * B;
    float o[D / 2], x[KEYS / 2], most[2] = { -INFINITY, -INFINITY }, sum[2] = { 0.f, 0.f }, fade[2];
    uint32_t p[KEYS / 16][4];
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0.f;

    auto multiply = [&](int64_t t) { /* x: scores of block t */
        const int stage = (int)(t % STAGES);
        const uint32_t at = shared_address(s.k[stage]);
        mbarrier_wait(&s.k_full[stage], (uint32_t)(t / STAGES) & 1);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            wgmma<0, 0>(x, wgmma_on(wgmma_k_major(own), i / 4 * OWN * 128 + i % 4 * 32),
                        wgmma_on(wgmma_k_major(at), i / 4 * KEYS * 128 + i % 4 * 32), i > 0);
        wgmma_commit();
    };
    auto weigh = [&](int64_t t) { /* x becomes P; most, sum and what fades the output follow */
        const int64_t j0 = from + t * KEYS;
        wgmma_hold(x);
        if (lane == 0) mbarrier_arrive(&s.k_empty[t % STAGES]);
        if (j0 + KEYS - 1 > i0 + a.offset || (a.window > 0 && i0 + B - 1 + a.offset - j0 >= a.window)) {
            const int64_t ahead = i0 + row + a.offset - (j0 + two);
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++)
                if (!sees(a.window, ahead + i / 2 % 2 * 8 - i / 4 * 8 - i % 2)) x[i] = -INFINITY;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = most[r], part = 0.f;
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++) top = fmaxf(top, fmaxf(x[4 * i + 2 * r], x[4 * i + 2 * r + 1]));
            top = quad_max(top);
            const float shift = top == -INFINITY ? 0.f : top * a.scale2; /* nothing seen yet */
            fade[r] = fast_exp2(most[r] * a.scale2 - shift);
            most[r] = top;
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++) {
                x[4 * i + 2 * r] = fast_exp2(x[4 * i + 2 * r] * a.scale2 - shift);
                x[4 * i + 2 * r + 1] = fast_exp2(x[4 * i + 2 * r + 1] * a.scale2 - shift);
                part += x[4 * i + 2 * r] + x[4 * i + 2 * r + 1];
            }
            sum[r] = sum[r] * fade[r] + part;
        }
    };
    auto round_it = [&] {
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) wgmma_operand(p[i], x, i);
    };
    auto gather = [&](int64_t t) {
        const int stage = (int)(t % STAGES);
        const uint32_t at = shared_address(s.v[stage]);
        mbarrier_wait(&s.v_full[stage], (uint32_t)(t / STAGES) & 1);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) wgmma<1>(o, p[i], wgmma_on(wgmma_mn_major(at, KEYS * 128), i * 2048), true);
        wgmma_commit();
    };
    mbarrier_wait(&s.own, 0);
    multiply(0);
    wgmma_wait<0>();
    weigh(0);
    round_it();
    for (int64_t t = 1; t < steps; t++) {
        multiply(t);
        gather(t - 1);
        wgmma_wait<1>();
        weigh(t);
        wgmma_wait<0>();
        wgmma_hold(o);
        if (lane == 0) mbarrier_arrive(&s.v_empty[(t - 1) % STAGES]);
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] *= fade[i / 2 % 2];
        round_it();
    }
    gather(steps - 1);
    wgmma_wait<0>();
    wgmma_hold(o);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float all = quad_sum(sum[r]), inverse = 1.f / all;
        const int64_t i = i0 + row + 8 * r;
#pragma unroll
        for (int j = 0; j < D / 8; j++) o[4 * j + 2 * r] *= inverse, o[4 * j + 2 * r + 1] *= inverse;
        if (a.lse && lane % 4 == 0 && i < b.length) a.lse[(b.first + i) * a.Hq + h] = (most[r] * a.scale2 + log2f(all)) * 0.693147180559945309f;
    }
    named_sync(1 + warpgroup, 128);
    store_rows<D>(a.o + ((b.first + i0) * a.Hq + h) * D, (int64_t)a.Hq * D, b.length - i0, o, 1.f, (char *)s.q + warpgroup * B * 128, OWN * 128);
}

template <int D> void launch(const lnt_recur_args *r, const CUtensorMap (&m)[3], cudaStream_t stream)
{
    const problem a = { .o = (bf16 *)r->o, .lse = (float *)r->lse, .cu = r->cu_seqlens_device, .sequences = r->sequences, .offset = r->offset,
                        .window = r->window, .tiles = blocks_of(r->tokens, r->sequences, OWN), .Hk = r->Hk, .Hq = r->Hq,
                        .scale2 = (float)(r->scale * LNT_LOG2E) };
    cudaFuncSetAttribute(forward_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes<D>);
    forward_kernel<D><<<(unsigned)(a.tiles * a.Hq), THREADS, shared_bytes<D>, stream>>>(a, m[0], m[1], m[2]);
}

} // namespace

bool lnt_attention_sm90_forward(const lnt_recur_args *a, const lnt_device *d)
{
    CUtensorMap m[3];
    if (a->tokens == 0 || !map_inputs(a, m)) return false;
    if (a->K == 128)
        launch<128>(a, m, (cudaStream_t)d->stream);
    else
        launch<64>(a, m, (cudaStream_t)d->stream);
    return true;
}

/* ---- the implementation --------------------------------------------------------------------------------------------------------- */

extern "C" {
extern const lnt_recur_impl lnt_attention_block_cuda, lnt_attention_block_sm90;
}

namespace {

const char *declines(const void *args, bool backward)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    (void)backward;
    if (a->dtype != LINNET_BF16) return "it takes bf16 tensors";
    if (a->K != a->V || (a->K != 64 && a->K != 128)) return "it takes heads of 64 or 128 columns, values as wide as keys";
    if (!(a->scale > 0)) return "scale is not above 0";
    if (a->tokens + a->offset > 1 << 30) return "more than 2^30 rows";
    return lnt_tensor_map_encoder() ? lnt_attention_block_cuda.declines(a, backward) : "the driver makes no tensor maps";
}

/* Enough for the general path too, which takes tensors that the copy engine does not. */
size_t workspace(const void *args, bool backward, int threads)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    const size_t own = backward ? lnt_attention_sm90_backward_bytes(a) : 0, general = lnt_attention_block_cuda.workspace(a, backward, threads);
    return own > general ? own : general;
}

void put_forward(const void *args, const lnt_device *d)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    if (!lnt_attention_sm90_forward(a, d)) lnt_attention_block_cuda.put_forward(a, d);
}

void put_backward(const void *args, const lnt_device *d)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    if (!lnt_attention_sm90_backward(a, d)) lnt_attention_block_cuda.put_backward(a, d);
}

} // namespace

extern "C" const lnt_recur_impl lnt_attention_block_sm90 = { .name = "block-sm90", .form = LINNET_FORM_CHUNK, .device = LNT_DEVICE_CUDA, .needs = 90,
                                                             .declines = declines, .workspace = workspace, .forward = nullptr, .backward = nullptr,
                                                             .put_forward = put_forward, .put_backward = put_backward };

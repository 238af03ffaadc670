/* S4D on tensor cores, bf16: the calls, and what each begins with. What they put stands in s4d_tiles_walk.cuh and s4d_tiles_sums.cuh. */
#include "recurrence/recur_cuda.cuh"
#include "recurrence/scan/s4d_tiles_sums.cuh"
#include "recurrence/scan/s4d_tiles_walk.cuh"

namespace {

__global__ __launch_bounds__(SMALL_THREADS) void tile_parameters(const __grid_constant__ tiles_args p)
{
    await_last();
    let_next();
    const int64_t i = (int64_t)blockIdx.x * SMALL_THREADS + threadIdx.x, all = (int64_t)p.D * p.M;
    if (i >= all) return;
    const channel_parameters x(p, i);
    const float value[PARAMETERS] = { x.A.re, x.A.im, x.K.re, x.K.im, x.far.re, x.far.im };
#pragma unroll
    for (int k = 0; k < PARAMETERS; k++) p.parameters[k * all + i] = value[k];
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------------------- */

size_t carve(const lnt_s4d_args *a, bool back, tiles_args *p)
{
    vector_arena m = { (char *)a->workspace, 0 };
    const int64_t numbers = (int64_t)a->D * a->M;
    if (!back) return 0; /* one kernel, which makes its parameters itself */
    p->parameters = m.take<float>(PARAMETERS * numbers);
    p->sums = m.take<float>(a->sequences * SUMS_OF_NUMBER * numbers);
    p->dskips = m.take<float>(a->sequences * a->D);
    return m.used;
}

tiles_args args_of(const lnt_s4d_args *a, bool back)
{
    tiles_args p = {};
    p.u = (const bf16 *)a->u, p.dt = (const float *)a->dt, p.skip = (const float *)a->skip, p.s0 = (const float *)a->s0;
    p.A_re = (const float *)a->A_re, p.A_im = (const float *)a->A_im, p.C_re = (const float *)a->C_re, p.C_im = (const float *)a->C_im;
    p.cu = a->cu_seqlens_device, p.D = a->D, p.M = a->M, p.strips = (int)lnt_div_up(a->D, WARPS);
    p.bilinear = a->discretization == LNT_S4D_BILINEAR;
    carve(a, back, &p);
    return p;
}

void put_parameters(const tiles_args &p, const lnt_cuda *d)
{
    lnt_launch(d, tile_parameters, (unsigned)lnt_div_up((int64_t)p.D * p.M, SMALL_THREADS), SMALL_THREADS, p);
}

template <bool BACK> void put_walk(const tiles_args &p, int64_t rows, unsigned ctas, const lnt_cuda *d)
{
    if (d->base.capability >= 90 && lnt_s4d_walk_sm90(p, rows, ctas, BACK, d)) return;
    using rows_of = rows_by_lanes<BACK>;
    lnt_launch_with(d, tiles_walk<BACK, rows_of>, ctas, THREADS, sizeof(walk_shared), 1, p, typename rows_of::maps{});
}

void forward(const void *args, const lnt_device *device)
{
    const lnt_s4d_args *a = (const lnt_s4d_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    tiles_args p = args_of(a, false);
    p.o = (bf16 *)a->o, p.sT = (float *)a->sT;
    const unsigned ctas = (unsigned)(a->sequences * p.strips);
    if (!ctas) return;
    put_walk<false>(p, a->tokens, ctas, d);
}

void backward(const void *args, const lnt_device *device)
{
    const lnt_s4d_args *a = (const lnt_s4d_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    tiles_args p = args_of(a, true);
    p.dout = (const bf16 *)a->dout, p.dsT = (const float *)a->dsT, p.du = (bf16 *)a->du, p.ds0 = (float *)a->ds0;
    const unsigned ctas = (unsigned)(a->sequences * p.strips);
    if (ctas) {
        put_parameters(p, d);
        p.behind_walk = p.du || p.ds0;
        if (p.behind_walk) put_walk<true>(p, a->tokens, ctas, d);
        if (d->base.capability < 90 || !lnt_s4d_sums_sm90(p, a->tokens, ctas, d))
            lnt_launch_with(d, tiles_sums<pairs_by_lanes>, ctas, THREADS, sizeof(sums_shared), 1, p, pairs_by_lanes::maps{});
    }
    put_gradients(a, p.sums, p.dskips, d);
}

size_t workspace(const void *args, bool back, int)
{
    lnt_s4d_args a = *(const lnt_s4d_args *)args;
    tiles_args p = {};
    a.workspace = NULL;
    return carve(&a, back, &p);
}

const char *declines(const void *args, bool back)
{
    const lnt_s4d_args *a = (const lnt_s4d_args *)args;
    if (a->dtype != LINNET_BF16) return "products of tiles are offered for bf16";
    if (a->M > MODES || a->D % 8) return "products of tiles take up to 32 numbers of a state and a multiple of 8 channels";
    const size_t shared = back && sizeof(sums_shared) > sizeof(walk_shared) ? sizeof(sums_shared) : sizeof(walk_shared);
    if (lnt_block_room() < (int)shared) return "the GPU has too little shared memory"; /* 163 KB on sm_80 */
    return a->sequences >= ((int64_t)1 << 31) / (a->D / 8) ? "too many sequences" : NULL;
}

} // namespace

LNT_CUDA_FORM(lnt_s4d_chunk_tiles, "chunk-tiles", CHUNK, 80, declines, workspace, forward, backward)

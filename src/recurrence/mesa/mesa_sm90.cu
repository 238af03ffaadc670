/* Conjugate gradients on Hopper over all tokens: bf16, K = 64 or 128, level and plain steps. */
#include "recurrence/mesa/mesa_alike_sm90.cuh"

namespace {

/* P = X = rhs / (diag(H_t) + lambda), R = rhs - Op(X). The diagonals are a product with the squared keys, which use the tile of the next chunk. */
template <int K, bool SLOW> __device__ __forceinline__ void guess(rows_of<K, WHOLE> &t, shared_of<K, false> &s, int buf, int group)
{
    const int tid = thread(), c = tid % 4;
    for (int i = tid; i < K / 64 * C * 32; i += GROUP) {
        const float2 k = __bfloat1622float2(((const __nv_bfloat162 *)s.Kc[buf])[i]);
        ((__nv_bfloat162 *)s.Kc[buf ^ 1])[i] = __floats2bfloat162_rn(k.x * k.x, k.y * k.y);
    }
    fence_async();
    group_sync(group);
    uint32_t a[C / 4];
    const float none[C / 2] = {}, e[2] = { s.row[t.row].x, s.row[t.row + 8].x };
    decayed<K, SLOW, true>(a, none, t, s);
    wgmma_fence();
    times_rows<K>(t, a, s.Kc[buf ^ 1], false);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(t.w);
#pragma unroll
    for (int j = 0; j < K / 8; j++) {
        float x[4];
        for (int n = 0; n < 4; n++) {
            const int column = 8 * j + 2 * c + n % 2;
            const float h = __bfloat162float(*(&s.H[buf][column / 64][0][0] + swizzled(column, column % 64))), w = t.w[4 * j + n];
            x[n] = __fdividef(t.r[4 * j + n], (SLOW ? e[n / 2] * (h + w) : e[n / 2] * h + w) + s.lambda[spot(column)]);
        }
        for (int i = 0; i < 2; i++) {
            t.p[2 * j + i] = pack_bf16(x[2 * i], x[2 * i + 1]);
            x[2 * i] = low_bf16(t.p[2 * j + i]), x[2 * i + 1] = high_bf16(t.p[2 * j + i]);
        }
        if (j < HELD<K, false>)
            for (int n = 0; n < 4; n++) t.x[4 * j + n] = x[n];
        else
            s.X[j - HELD<K, false>][tid] = *(float4 *)x;
    }
    float pw[2], rz[2];
    const float one[2] = { 1.f, 1.f };
    apply<K, SLOW>(t, s, buf, pw);
    precondition<K>(t, s, one, rz);
    group_sync(group);
}

/* A warp's part of a tile of H that is not in use: room for its right sides, or for some columns of its x. */
template <int K> __device__ __forceinline__ float4 *warps_part(shared_of<K, false> &s, int buf)
{
    return (float4 *)&s.H[buf][0][0][0] + thread() / 32 * (K * K / 32);
}

/* The place of the tiles that are next, and its gates. */
template <int K> __device__ __forceinline__ void put_next(shared_of<K, false> &s, const place &p, float gate, int buf)
{
    put_gate(s, gate);
    if (thread() == 0) s.at[buf ^ 1] = p;
}

/* Right sides of the warp's rows, on their way to its part of the other tile. */
template <int K> __device__ __forceinline__ void fetch_rhs(const lnt_mesa_cg &a, shared_of<K, false> &s, int buf)
{
    const place p = s.at[buf];
    const int lane = thread() % 32, part = lane % (K / 8), first = thread() / 32 * 16;
    const uint32_t to = shared_address(warps_part<K>(s, buf ^ 1));
    const bf16 *from = a.rhs + ((p.first + first) * a.Hr + p.h / (a.Hv / a.Hr)) * K + part * 8;
    __syncwarp();
#pragma unroll
    for (int row = lane / (K / 8); row < 16; row += 256 / K)
        cp_async_16(to + (row * K / 8 + (part ^ (row & 7))) * 16, from + (int64_t)row * a.Hr * K, first + row < p.rows);
    cp_async_commit();
}
/* They into t.r, once they are there. */
template <int K> __device__ __forceinline__ void take_rhs(rows_of<K, WHOLE> &t, shared_of<K, false> &s, int buf)
{
    const int lane = thread() % 32, row = lane % 16;
    const uint32_t from = shared_address(warps_part<K>(s, buf ^ 1)) + row * K * 2;
#pragma unroll
    for (int j = 0; j < K / 16; j++) {
        uint32_t v[4];
        ldmatrix_x4(v, from + ((2 * j + lane / 16) ^ (row & 7)) * 16);
        for (int i = 0; i < 4; i++) t.r[8 * j + 2 * i] = low_bf16(v[i]), t.r[8 * j + 2 * i + 1] = high_bf16(v[i]);
    }
}

/* x of the place's rows, through the tile of H, which is done with, so that neighbours write neighbours. */
template <int K>
__device__ __forceinline__ void leave(const lnt_mesa_cg &a, shared_of<K, false> &s, rows_of<K, WHOLE> &t, int buf, int group, int taken)
{
    constexpr int WIDTH = K * K / 128, CHUNKS = WIDTH / 4; /* columns that the warp's part has room for; four of them at a time */
    const place p = s.at[buf];
    const int tid = thread(), c = tid % 4, r = tid % 32 / 4, lane = tid % 32, first = tid / 32 * 16;
    float4 *part = warps_part<K>(s, buf);
    group_sync(group);
#pragma unroll
    for (int pass = 0; pass < K / WIDTH; pass++) {
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++) {
            float x[4];
            solution<K>(tid, x, t, s, pass * (WIDTH / 8) + j);
            for (int i = 0; i < 2; i++) {
                /* one by one: a pair would have to lie in two neighbouring registers, and X in the loop is spilled for that */
                volatile float *to = (volatile float *)&part[(r + 8 * i) * CHUNKS + ((2 * j + c / 2) ^ r)] + c % 2 * 2;
                to[0] = x[2 * i], to[1] = x[2 * i + 1];
            }
        }
        __syncwarp();
#pragma unroll
        for (int row = lane / CHUNKS; row < 16; row += 32 / CHUNKS) {
            const float4 x = part[row * CHUNKS + (lane % CHUNKS ^ (row & 7))];
            const int64_t to = ((p.first + first + row) * a.Hv + p.h) * K + pass * WIDTH + lane % CHUNKS * 4;
            if (first + row >= p.rows) continue;
            *(uint2 *)(a.x + to) = make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
            if (a.x_float) *(float4 *)(a.x_float + to) = x;
        }
        __syncwarp();
    }
    report<K>(tid, a, p, s, t, taken);
}

/* The chunk of s.at[buf] from its first right side to its last x; tiles and right sides are on their way. Where there is a `next` one, at p and with
 * gate_of(p), its tiles go to the others. */
template <int K, bool SLOW, bool GUESS, bool ALIKE = false>
__device__ __forceinline__ void work(const lnt_mesa_cg &a, shared_of<K, false> &s, const lambda_of<K> &lambda, bool next, const place &p, float gate,
                                     int buf, int group)
{
    rows_of<K, WHOLE> t;
    cp_async_wait<0>();
    fence_async();
    group_sync(group);
    take_rhs<K>(t, s, buf);
    begin<K, ALIKE>(a, lambda, s, t, buf);
    put_next<K>(s, p, gate, buf);
    group_sync(group);
    if constexpr (ALIKE)
        if (s.bounds.x > 0.f) {
            scale<K>(t, s, buf);
            fence_async();
            group_sync(group);
        }
    if constexpr (GUESS) guess<K, SLOW>(t, s, buf, group);
    if (next) fetch<K>(a, s.at[buf ^ 1], s.H[buf ^ 1], s.Kc[buf ^ 1]);
    int taken = 0;
    if constexpr (ALIKE) {
        const int most = lnt_mesa_course_now(a).most;
        if (s.at[buf].empty)
            solve_alike<K, SLOW, true>(s, t, buf, most, a.residual != NULL, taken);
        else
            solve_alike<K, SLOW, false>(s, t, buf, most, a.residual != NULL, taken);
        if (s.bounds.x > 0.f) unscale<K>(t, s);
    } else {
        solve<K, SLOW>(a, s, t, buf, group, taken);
    }
    leave<K>(a, s, t, buf, group, taken);
}

/* Level steps of which none is drawn are the general solve's. */
__device__ __forceinline__ bool left_to_the_other(const lnt_mesa_cg &a) { return a.drawn && a.solver == LNT_CG_LEVEL && *a.drawn == 0; }

/* Of the last turn a few blocks can have a chunk for both groups where others have one (32 heads of 8192 tokens on 132 multiprocessors: four have 32
 * chunks, all others 31, the last one alone). ALIKE: the first chunks of the first sequence, whose H is 0 and which take three quarters of the
 * time, are the first 4 turns of so many blocks, which pays for that. */
template <int K, bool ALIKE> __device__ __forceinline__ int dealt_of(const lnt_mesa_cg &a, int group, int turn)
{
    constexpr int HEAP = 4 * GROUPS<K>;
    const int at = dealt(group, GROUPS<K>, turn), blocks = (int)gridDim.x, block = at % blocks, round = at / blocks, few = a.Hv / HEAP;
    if (!ALIKE || !a.empty || few * HEAP > blocks || HEAP * blocks > (int)a.chunks * a.Hv) return at;
    if (block < few && round < HEAP) return round * few + block;
    return at < few * HEAP ? at / few * blocks + at % few : at;
}
/* The first item with rows of the warpgroup's, from its `turn` on; the end when there is none. */
template <int K, bool ALIKE> __device__ __forceinline__ int find(const lnt_mesa_cg &a, int group, int &turn)
{
    int item = dealt_of<K, ALIKE>(a, group, turn);
    while (item < (int)a.chunks * a.Hv && !has_rows(a, item)) item = dealt_of<K, ALIKE>(a, group, ++turn);
    return item;
}

/* Every chunk with slow gates. What a chunk needs of memory is asked for before it is waited for: its tiles and gates a chunk ahead, in L2 its right
 * sides too. */
template <int K, bool GUESS, bool ALIKE>
__global__ void __launch_bounds__(GROUP * GROUPS<K>, 1) slow_kernel(const __grid_constant__ lnt_mesa_cg a)
{
    await_last();
    let_next();
    if (left_to_the_other(a)) return;
    extern __shared__ __align__(1024) char raw[];
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0), items = (int)a.chunks * a.Hv;
    shared_of<K, false> &s = ((shared_of<K, false> *)raw)[group];
    int turn = 0, item = find<K, ALIKE>(a, group, turn), buf = 0;
    if (item < items) {
        const place p = place_of(a, item);
        put_next<K>(s, p, gate_of(a, p), 1);
        fetch<K>(a, p, s.H[0], s.Kc[0]);
    }
    group_sync(group);
    while (item < items) {
        fetch_rhs<K>(a, s, buf);
        const int next = find<K, ALIKE>(a, group, ++turn);
        const lambda_of<K> lambda(a, s.at[buf].h);
        const bool slow = scan_gates(s, group);
        place p = {};
        float gate = 0.f;
        if (next < items) p = place_of(a, next), gate = gate_of(a, p);
        if (slow) {
            work<K, true, GUESS, ALIKE>(a, s, lambda, next < items, p, gate, buf, group);
        } else {
            put_next<K>(s, p, gate, buf);
            cp_async_wait<0>();
            group_sync(group);
            if (next < items) fetch<K>(a, p, s.H[buf ^ 1], s.Kc[buf ^ 1]);
        }
        item = next, buf ^= 1;
    }
}

/* The others, 16 looked at at once: mostly there are none. A kernel of their own: as a branch of the loop above they cost it 20 registers. Its blocks
 * find places as those of that loop end. */
template <int K, bool GUESS> __global__ void __launch_bounds__(GROUP * GROUPS<K>, 1) fast_kernel(const __grid_constant__ lnt_mesa_cg a)
{
    await_last();
    let_next();
    if (left_to_the_other(a)) return;
    extern __shared__ __align__(1024) char raw[];
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0), step = (int)gridDim.x * GROUPS<K>, items = (int)a.chunks * a.Hv;
    shared_of<K, false> &s = ((shared_of<K, false> *)raw)[group];
    for (int64_t first = (int)blockIdx.x * GROUPS<K> + group; first < items; first += 16 * step) {
        uint32_t found = with_fast_gates(a, first, step, group, s.since);
        for (; found; found &= found - 1) {
            const place p = place_of(a, (int)first + (__ffs((int)found) - 1) * step);
            group_sync(group);
            put_next<K>(s, p, gate_of(a, p), 1);
            group_sync(group);
            if (scan_gates(s, group)) continue;
            fetch<K>(a, p, s.H[0], s.Kc[0]);
            fetch_rhs<K>(a, s, 0);
            work<K, false, GUESS>(a, s, lambda_of<K>(a, p.h), false, p, 0.f, 0, group);
        }
    }
}

template <int K, bool GUESS, bool ALIKE> void launch(const lnt_mesa_cg &a, const lnt_cuda *d)
{
    constexpr size_t bytes = sizeof(shared_of<K, false>) * GROUPS<K>;
    const int64_t wanted = lnt_div_up(a.chunks * a.Hv, GROUPS<K>);
    const dim3 ctas((unsigned)(wanted < d->base.multiprocessors ? wanted : d->base.multiprocessors));
    lnt_launch_with(d, slow_kernel<K, GUESS, ALIKE>, ctas, GROUP * GROUPS<K>, bytes, 1, a);
    if (a.g) lnt_launch_with(d, fast_kernel<K, GUESS>, ctas, GROUP * GROUPS<K>, bytes, 1, a);
}
/* Steps from which a number for all rows is more than they need (docs/performance/mesa.md, "GPU: the solve on Hopper"). Then none of them is free for
 * want of a guess: they are that many applications of Op. */
constexpr int MANY = 17;

template <int K> void launch(const lnt_mesa_cg &a, const lnt_cuda *d)
{
    if (a.diagonal && a.solver == LNT_CG_PLAIN) {
        launch<K, true, false>(a, d);
    } else if (a.tolerance2 == 0.f && !a.drawn && a.steps >= MANY) {
        lnt_mesa_cg many = a;
        many.diagonal = false;
        launch<K, false, true>(many, d);
    } else {
        launch<K, false, false>(a, d);
    }
}

} // namespace

void lnt_mesa_cg_sm90(const lnt_mesa_cg &a, const lnt_cuda *d)
{
    if (a.chunks == 0) return;
    a.K == 128 ? launch<128>(a, d) : launch<64>(a, d);
}

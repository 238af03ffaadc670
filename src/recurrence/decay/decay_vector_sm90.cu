/* Vector decay on Hopper's tensor cores: what is made of a chunk before the chain of states, and the calls. README.md, "A gate for each
 * channel"; the tiles: decay_vector_tiles.cuh. */
#include "recurrence/decay/decay_vector_chain.cuh"
#include "recurrence/decay/decay_vector_tiles.cuh"

namespace {

/* ---- before the chain ------------------------------------------------------------------------------------------------------------------- */

constexpr int PAIRS8 = 36; /* pairs j <= i of 8 rows, pair i (i + 1) / 2 + j */

template <int K> struct prepare_shared {
    static constexpr int levels = 0, P = 3 * K * 128, products = P + (int)TILE, direct = products + 8 * K * 4,
                         bytes = direct + K / 64 * 8 * PAIRS8 * 4 + 1024;
};

template <int K, bool BEFORE> __global__ __launch_bounds__(2 * K, 256 / K) void vector_prepare(const __grid_constant__ vector_tiles p)
{
    using L = prepare_shared<K>;
    extern __shared__ uint8_t raw[];
    await_last();
    let_next();
    uint8_t *shared = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
    const uint32_t base = shared_address(shared);
    float *products = (float *)(shared + L::products), *direct = (float *)(shared + L::direct);
    const int h = (int)(blockIdx.x % p.Hv), tid = (int)threadIdx.x, lane = tid & 31, warp = tid / 32;
    const int64_t slot = blockIdx.x / p.Hv, item = slot * p.Hv + h;
    int64_t token;
    int rows;
    if (!chunk_of(p, slot, &token, &rows)) return;

    vector_part<K> x;
    vector_group<K, BEFORE> of[2];
#pragma unroll
    for (int g = 0; g < 2; g++) of[g].load(p, token, x.row(g), rows, h, x.pair);
    for (int i = tid; i < (int)TILE / 16; i += 2 * K) *(uint4 *)(shared + L::P + i * 16) = make_uint4(0, 0, 0, 0);
    of[0].raise();
    of[1].raise();
    x.put_products(products, of);

    float last[8];
    float2 u = make_float2(1.f, 1.f);
    if (BEFORE) u = *(const float2 *)(p.bonus + h * K + 2 * x.pair);
#pragma unroll
    for (int g = 0; g < 2; g++) {
        float sums[PAIRS8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float w0 = low_bf16(of[g].k[j]), w1 = high_bf16(of[g].k[j]);
            sums[j * (j + 1) / 2 + j] = low_bf16(of[g].q[j]) * (BEFORE ? u.x * w0 : w0) + high_bf16(of[g].q[j]) * (BEFORE ? u.y * w1 : w1);
#pragma unroll
            for (int i = j + 1; i < 8; i++) {
                if (!BEFORE) w0 *= of[g].a[i][0], w1 *= of[g].a[i][1];
                sums[i * (i + 1) / 2 + j] = low_bf16(of[g].q[i]) * w0 + high_bf16(of[g].q[i]) * w1;
                if (BEFORE) w0 *= of[g].a[i][0], w1 *= of[g].a[i][1];
            }
        }
        float most[32];
#pragma unroll
        for (int i = 0; i < 32; i++) most[i] = sums[i];
#pragma unroll
        for (int i = 0; i < 4; i++) last[4 * g + i] = sums[32 + i];
        direct[((x.pair / 32) * 8 + 2 * x.part + g) * PAIRS8 + lane] = sum_each(most);
    }
    const float rest = sum_each(last);
    if (lane % 4 == 0) direct[((x.pair / 32) * 8 + 2 * x.part + lane / 16) * PAIRS8 + 32 + lane / 4 % 4] = rest;
    __syncthreads();

    x.get_products(products);
    char *reader = (char *)(p.reader + item * (C * K)), *writer = (char *)(p.writer + item * (C * K));
    x.put_levels(base + L::levels, of, [&](int row, const float(&qf)[2], const float(&kf)[2], const float(&whole_q)[2], const float(&whole_k)[2]) {
        const uint32_t at = x.in_tile(row);
        *(uint32_t *)(reader + at) = pack_bf16(p.scale * qf[0] * whole_q[0], p.scale * qf[1] * whole_q[1]);
        *(uint32_t *)(writer + at) = pack_bf16(kf[0] * whole_k[0], kf[1] * whole_k[1]);
    });
    if (x.part == 0) *(float2 *)(p.E + item * K + 2 * x.pair) = make_float2(x.G[0][0] * x.G[1][0] * x.behind[0], x.G[0][1] * x.G[1][1] * x.behind[1]);
    __syncthreads();

    /* Blocks of 16 rows and 8 columns: eight of level 32, four of 16, four of 8, whose first 8 rows are not wanted. */
    for (int job = warp; job < 16; job += K / 16) {
        const int level = job < 8 ? 2 : job < 12 ? 1 : 0;
        const int row = level == 2 ? 32 + job / 4 * 16 : level == 1 ? 16 + (job - 8) / 2 * 32 : (job - 12) * 16;
        const int column = level == 2 ? job % 4 * 8 : level == 1 ? row - 16 + (job & 1) * 8 : row;
        const uint32_t tile = base + L::levels + level * (K * 128);
        float acc[4] = {};
#pragma unroll
        for (int kk = 0; kk < K / 16; kk++) {
            uint32_t A[4], B[2];
            load_A(A, tile, row, 2 * kk);
            ldmatrix_x2(B, tile + tile_at(column + (lane & 7), 2 * kk + (lane >> 3 & 1)));
            mma_bf16(acc, A, B[0], B[1]);
        }
        const uint32_t to = base + L::P + tile_at(row + lane / 4, column / 8) + 4 * (lane & 3);
        if (level) store_pair(to, pack_bf16(p.scale * acc[0], p.scale * acc[1]));
        store_pair(to + 1024, pack_bf16(p.scale * acc[2], p.scale * acc[3])); /* 8 rows on: the same place in its row */
    }
    for (int i = tid; i < 8 * PAIRS8; i += 2 * K) {
        const int group = i / PAIRS8, n = i % PAIRS8;
        const int r = (n >= 1) + (n >= 3) + (n >= 6) + (n >= 10) + (n >= 15) + (n >= 21) + (n >= 28), c = n - r * (r + 1) / 2;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < K / 64; j++) sum += direct[j * 8 * PAIRS8 + i];
        *(bf16 *)(shared + L::P + tile_at(8 * group + r, group) + 2 * c) = from_float<bf16>(p.scale * sum);
    }
    __syncthreads();
    for (int i = tid; i < (int)TILE / 16; i += 2 * K) *(uint4 *)((char *)(p.P + item * (C * C)) + i * 16) = *(const uint4 *)(shared + L::P + i * 16);
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------------------ */

struct tiles_work {
    bf16 *reader, *writer, *P, *S, *dS;
    float *E, *du, *X[2], *D[2];
    float *start; /* s0, where segments read it beside one that may write sT over it */
    int segments;
    size_t bytes;
};

/* Cut where few CTAs meet many chunks: P segments cost two walks of 1 / P each, so that two of them are no gain. */
int segments_of(const vector_call *a, bool backward)
{
    const int64_t MULTIPROCESSORS = 132, ctas = a->sequences * a->Hv * (a->V / 64) * (backward ? 2 : 1), chunks = lnt_div_up(a->longest, C);
    int P = 1;
    while (ctas * P * 2 <= MULTIPROCESSORS && chunks / (2 * P) >= 4 && P < 16) P *= 2;
    return P < 4 ? 1 : P;
}

tiles_work carve(const vector_call *a, bool backward)
{
    tiles_work w = {};
    vector_arena m = { (char *)a->workspace, 0 };
    const int64_t items = (a->tokens / C + a->sequences) * a->Hv;
    w.segments = segments_of(a, backward);
    w.reader = m.take<bf16>(items * C * a->K);
    w.writer = m.take<bf16>(items * C * a->K);
    w.P = m.take<bf16>(items * C * C);
    w.E = m.take<float>(items * a->K);
    if (backward) {
        w.S = m.take<bf16>(items * a->K * a->V);
        w.dS = m.take<bf16>(items * a->K * a->V);
        if (a->before) w.du = m.take<float>(items * a->K);
    }
    for (int i = 0; i < 1 + backward && w.segments > 1; i++) {
        const int64_t of = a->sequences * w.segments * a->Hv * a->K;
        w.X[i] = m.take<float>(of * a->V);
        w.D[i] = m.take<float>(of);
    }
    if (!backward && w.segments > 1) w.start = m.take<float>(a->sequences * a->Hv * a->K * a->V);
    w.bytes = m.used;
    return w;
}

vector_tiles tiles_of(const vector_call *a, const tiles_work &w)
{
    vector_tiles p = {};
    p.q = (const bf16 *)a->q, p.k = (const bf16 *)a->k, p.v = (const bf16 *)a->v, p.d_o = (const bf16 *)a->d_o;
    p.gk = a->gk, p.bonus = a->bonus, p.cu = a->cu, p.N = a->sequences, p.Hv = a->Hv, p.scale = a->scale;
    p.reader = w.reader, p.writer = w.writer, p.P = w.P, p.E = w.E, p.S = w.S, p.dS = w.dS;
    p.dq = (bf16 *)a->dq, p.dk = (bf16 *)a->dk, p.dgk = a->dgk, p.du = a->dbonus ? w.du : NULL;
    return p;
}

vector_chains chains_of(const vector_call *a, const tiles_work &w)
{
    vector_chains c = {};
    c.P = w.P, c.E = w.E, c.cu = a->cu, c.Hv = a->Hv, c.V = a->V, c.segments = w.segments;
    c.segment_chunks = (int)lnt_div_up(lnt_div_up(a->longest, C), w.segments);
    c.side[0].reader = c.side[1].writer = w.reader;
    c.side[0].writer = c.side[1].reader = w.writer;
    c.side[0].value = (const bf16 *)a->v, c.side[1].value = (const bf16 *)a->d_o;
    for (int i = 0; i < 2; i++) c.side[i].X = w.X[i], c.side[i].D = w.D[i];
    c.side[0].start = a->s0, c.side[1].start = a->dsT;
    return c;
}

int shared_limit(const lnt_cuda *d)
{
    int most = 0;
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->index);
    return most;
}

template <int K, bool BACK, bool ENDS> void put_chain(vector_chains c, const vector_call *a, const lnt_cuda *d)
{
    constexpr bool READ = !ENDS;
    c.stages = 4;
    while (c.stages > 2 && vector_ring_bytes<K, READ>(c.stages) > shared_limit(d)) c.stages--;
    const int64_t ctas = a->sequences * c.segments * a->Hv * (a->V / 64) * (BACK ? 2 : 1);
    lnt_launch_with(d, vector_chain_kernel<K, BACK, ENDS>, dim3((unsigned)ctas), CHAIN_THREADS, vector_ring_bytes<K, READ>(c.stages), 1, c);
}
template <int K, bool BACK> void put_chains(const vector_chains &c, const vector_call *a, const lnt_cuda *d)
{
    if (c.segments > 1) put_chain<K, BACK, true>(c, a, d);
    put_chain<K, BACK, false>(c, a, d);
}

template <int K> void put_prepare(const vector_call *a, const vector_tiles &p, const lnt_cuda *d)
{
    const dim3 grid((unsigned)((a->tokens / C + a->sequences) * a->Hv));
    lnt_launch_with(d, a->before ? vector_prepare<K, true> : vector_prepare<K, false>, grid, 2 * K, prepare_shared<K>::bytes, 1, p);
}
template <int K> void forward(const vector_call *a, const lnt_cuda *d)
{
    const tiles_work w = carve(a, false);
    vector_chains c = chains_of(a, w);
    c.side[0].out = (bf16 *)a->o, c.side[0].end = a->sT;
    if (w.start && a->s0) {
        const size_t bytes = (size_t)(a->sequences * a->Hv * a->K * a->V) * sizeof(float);
        lnt_cuda_note((lnt_cuda *)d, cudaMemcpyAsync(w.start, a->s0, bytes, cudaMemcpyDeviceToDevice, d->stream));
        c.side[0].start = w.start;
    }
    put_prepare<K>(a, tiles_of(a, w), d);
    put_chains<K, false>(c, a, d);
}
template <int K> void backward(const vector_call *a, const lnt_cuda *d)
{
    const tiles_work w = carve(a, true);
    const vector_tiles p = tiles_of(a, w);
    vector_chains c = chains_of(a, w);
    c.side[0].images = w.S, c.side[1].images = w.dS;
    c.side[1].out = (bf16 *)a->dv, c.side[1].end = a->ds0;
    put_prepare<K>(a, p, d);
    put_chains<K, true>(c, a, d);
    if (p.du) lnt_cuda_note((lnt_cuda *)d, cudaMemsetAsync(w.du, 0, (size_t)((a->tokens / C + a->sequences) * a->Hv * K) * sizeof(float), d->stream));
    lnt_vector_back(a, p, d);
    if (p.du) lnt_vector_sum_heads(a->dbonus, 0, w.du, a->tokens / C + a->sequences, 1, a->Hv, a->Hv, K, d);
}

} // namespace

const char *lnt_vector_tiles_declines(const vector_call *a)
{
    if (!a->bf16) return "it takes bf16 tensors";
    if (a->delta) return "it has no delta rule";
    if (a->columns) return "it has no gate for each value channel";
    if ((a->K != 64 && a->K != 128) || (a->V != 64 && a->V != 128)) return "K and V of 64 or 128 are offered";
    if (a->Hq != a->Hv) return "as many key heads as value heads are offered";
    if ((a->tokens / C + a->sequences) * a->Hv >= (int64_t)1 << 31) return "too many tokens";
    return NULL;
}
size_t lnt_vector_tiles_bytes(const vector_call *a, bool backward) { return carve(a, backward).bytes; }
void lnt_vector_tiles_forward(const vector_call *a, const lnt_device *device)
{
    const lnt_cuda *d = (const lnt_cuda *)device;
    if (!a->sequences) return;
    a->K == 64 ? forward<64>(a, d) : forward<128>(a, d);
}
void lnt_vector_tiles_backward(const vector_call *a, const lnt_device *device)
{
    const lnt_cuda *d = (const lnt_cuda *)device;
    if (!a->sequences) return lnt_vector_general_backward(a, device); /* zeros */
    a->K == 64 ? backward<64>(a, d) : backward<128>(a, d);
}

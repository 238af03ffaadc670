/* Vector decay on tensor cores: what is made of a chunk before the chain of states, and the calls. README.md, "A gate for each channel"; the tiles:
 * decay_vector_tiles.cuh.
 *
 * Gates of V's columns: the state transposed, S^T = diag(e^{gv}) S^T + v k^T, is that of a call with gates of rows whose keys are v and whose values
 * are k. With do in the place of q and q in the place of do, everything of the one call is something of the other (`turned`):
 *
 *   q  k  v  do  gk  S    o   dq  dk  dv  dgk  dS         of the call with gates of rows
 *   do v  k  q   gv  S^T  dq  o   dv  dk  dgv  dS^T       of the one with gates of columns
 *
 * so o is read as gradients of q are, and dq is read in the chain. */
#include "recurrence/decay/decay_vector_chain.cuh"
#include "recurrence/decay/decay_vector_tiles.cuh"
#include "recurrence/recur_cuda.cuh"

namespace {

/* ---- before the chain ------------------------------------------------------------------------------------------------------------------- */

constexpr int PAIRS8 = 36; /* pairs j <= i of 8 rows, pair i (i + 1) / 2 + j */

template <int K, bool PAIRS> struct prepare_shared {
    static constexpr int levels = 0, P = 3 * K * 128, products = PAIRS ? P + (int)TILE : 0, direct = products + 8 * K * 4,
                         bytes = direct + (PAIRS ? K / 64 * 8 * PAIRS8 * 4 : 0) + 1024;
};

/* Sums over channels of the pairs inside 8 rows, a warp's of 64 channels each. */
template <int K, bool BEFORE>
__device__ __forceinline__ void direct_pairs(const vector_tiles &p, const vector_part<K> &x, const vector_group<K, BEFORE> (&of)[2], int h,
                                             float *direct)
{
    const int lane = threadIdx.x & 31;
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
}

/* PAIRS: readers and P, too. */
template <int K, bool BEFORE, bool PAIRS> __global__ __launch_bounds__(2 * K, 256 / K) void vector_prepare(const __grid_constant__ vector_tiles p)
{
    using L = prepare_shared<K, PAIRS>;
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
    for (int i = tid; i < (int)TILE / 16 && PAIRS; i += 2 * K) *(uint4 *)(shared + L::P + i * 16) = make_uint4(0, 0, 0, 0);
    of[0].raise();
    of[1].raise();
    x.put_products(products, of);

    if constexpr (PAIRS) direct_pairs(p, x, of, h, direct);
    __syncthreads();

    x.get_products(products);
    char *reader = (char *)(p.reader + item * (C * K)), *writer = (char *)(p.writer + item * (C * K));
    const auto whole = [&](int row, const float(&qf)[2], const float(&kf)[2], const float(&whole_q)[2], const float(&whole_k)[2]) {
        const uint32_t at = x.in_tile(row);
        if (PAIRS) *(uint32_t *)(reader + at) = pack_bf16(p.scale * qf[0] * whole_q[0], p.scale * qf[1] * whole_q[1]);
        *(uint32_t *)(writer + at) = pack_bf16(kf[0] * whole_k[0], kf[1] * whole_k[1]);
    };
    x.template put_levels<BEFORE, PAIRS>(base + L::levels, of, whole);
    if (x.part == 0) *(float2 *)(p.E + item * K + 2 * x.pair) = make_float2(x.G[0][0] * x.G[1][0] * x.behind[0], x.G[0][1] * x.G[1][1] * x.behind[1]);
    if constexpr (!PAIRS) return;
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

/* A call with gates of rows, as all here is, and which call it stands for. Its heads are slices of the call's keys, side by side in q, k, gk, bonus
 * and states as heads are: K is a slice's, V all of a head's, whose blocks of columns the kernels go through. */
struct tiles_call {
    vector_call x;
    bool turned, backward;
    int slices;
    /* Readers and P are wanted; states of all chunks. */
    bool pairs() const { return backward || !turned; }
    bool states() const { return backward || turned; }
    bool reads() const { return backward == turned; } /* the chain that goes forwards */
};
tiles_call call_of(const vector_call *a, bool backward)
{
    const int K = a->columns ? a->V : a->K, slices = K / lnt_decay_slice(K);
    tiles_call c = { *a, a->columns, backward, slices };
    vector_call &x = c.x;
    if (c.turned) {
        x.V = a->K;
        x.q = backward ? a->d_o : NULL, x.k = a->v, x.v = a->k, x.d_o = a->q;
        x.gk = a->gv, x.gv = NULL, x.columns = false;
        x.o = a->dq, x.dq = backward ? NULL : a->o, x.dk = a->dv, x.dv = a->dk, x.dgk = a->dgv;
    }
    x.K = K / slices;
    x.Hq = x.Hv = a->Hv * slices;
    return c;
}

struct tiles_work {
    bf16 *reader, *writer, *P, *S, *dS;
    float *E, *du, *X[2], *D[2];
    float *start; /* s0, where segments read it beside one that may write sT over it */
    bf16 *out[2]; /* [T,Hv,V] parts of o and dv, where there are several slices of a head */
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

tiles_work carve(const tiles_call &c)
{
    const vector_call *a = &c.x;
    tiles_work w = {};
    vector_arena m = { (char *)a->workspace, 0 };
    const int64_t items = (a->tokens / C + a->sequences) * a->Hv;
    w.segments = segments_of(a, c.backward);
    if (c.pairs()) w.reader = m.take<bf16>(items * C * a->K), w.P = m.take<bf16>(items * C * C);
    w.writer = m.take<bf16>(items * C * a->K);
    w.E = m.take<float>(items * a->K);
    if (c.states()) w.S = m.take<bf16>(items * a->K * a->V);
    if (c.backward) {
        w.dS = m.take<bf16>(items * a->K * a->V);
        if (a->before) w.du = m.take<float>(items * a->K);
    }
    for (int i = 0; i < 1 + c.backward && w.segments > 1; i++) {
        const int64_t of = a->sequences * w.segments * a->Hv * a->K;
        w.X[i] = m.take<float>(of * a->V);
        w.D[i] = m.take<float>(of);
    }
    if (!c.backward && w.segments > 1) w.start = m.take<float>(a->sequences * a->Hv * a->K * a->V);
    if (c.slices > 1 && c.reads()) w.out[0] = m.take<bf16>(a->tokens * a->Hv * a->V);
    if (c.slices > 1 && c.backward) w.out[1] = m.take<bf16>(a->tokens * a->Hv * a->V);
    w.bytes = m.used;
    return w;
}

vector_tiles tiles_of(const tiles_call &c, const tiles_work &w)
{
    const vector_call *a = &c.x;
    vector_tiles p = {};
    p.q = (const bf16 *)a->q, p.k = (const bf16 *)a->k, p.v = (const bf16 *)a->v, p.d_o = (const bf16 *)a->d_o;
    p.gk = a->gk, p.bonus = a->bonus, p.cu = a->cu, p.N = a->sequences, p.Hv = a->Hv, p.scale = a->scale;
    p.reader = w.reader, p.writer = w.writer, p.P = w.P, p.E = w.E, p.S = w.S, p.dS = w.dS;
    p.dq = (bf16 *)a->dq, p.dk = (bf16 *)a->dk, p.dgk = a->dgk, p.du = a->dbonus ? w.du : NULL;
    p.key_slices = c.slices, p.value_slices = a->V / lnt_decay_slice(a->V);
    return p;
}

vector_chains chains_of(const tiles_call &call, const tiles_work &w)
{
    const vector_call *a = &call.x;
    vector_chains c = {};
    c.P = w.P, c.E = w.E, c.cu = a->cu, c.sequences = a->sequences, c.Hv = a->Hv, c.K = a->K, c.V = a->V, c.segments = w.segments;
    c.segment_chunks = (int)lnt_div_up(lnt_div_up(a->longest, C), w.segments);
    c.slices = call.slices;
    c.row_step = call.turned ? 1 : a->V, c.column_step = call.turned ? a->K * call.slices : 1;
    c.back = call.backward, c.reads = call.reads();
    c.side[0].reader = c.side[1].writer = w.reader;
    c.side[0].writer = c.side[1].reader = w.writer;
    c.side[0].value = (const bf16 *)a->v, c.side[1].value = (const bf16 *)a->d_o;
    void *const out[2] = { c.reads ? a->o : NULL, a->dv };
    for (int i = 0; i < 2; i++) c.side[i].out = out[i] && call.slices > 1 ? w.out[i] : (bf16 *)out[i];
    c.side[0].images = w.S, c.side[1].images = w.dS;
    for (int i = 0; i < 2; i++) c.side[i].X = w.X[i], c.side[i].D = w.D[i];
    c.side[0].start = a->s0, c.side[1].start = a->dsT;
    c.side[0].end = call.backward ? NULL : a->sT, c.side[1].end = a->ds0;
    return c;
}

template <int K> void put_prepare(const tiles_call &c, const vector_tiles &p, const lnt_cuda *d)
{
    const vector_call *a = &c.x;
    const dim3 grid((unsigned)((a->tokens / C + a->sequences) * a->Hv));
    const auto kernel = a->before ? vector_prepare<K, true, true> : c.pairs() ? vector_prepare<K, false, true> : vector_prepare<K, false, false>;
    lnt_launch_with(d, kernel, grid, 2 * K, c.pairs() ? prepare_shared<K, true>::bytes : prepare_shared<K, false>::bytes, 1, p);
}
void put(const tiles_call &call, bool hopper, const lnt_cuda *d)
{
    const vector_call *a = &call.x;
    const int64_t slots = a->tokens / C + a->sequences;
    const tiles_work w = carve(call);
    const vector_tiles p = tiles_of(call, w);
    vector_chains c = chains_of(call, w);
    if (w.start && a->s0) {
        const size_t bytes = (size_t)(a->sequences * a->Hv * a->K * a->V) * sizeof(float);
        lnt_cuda_note((lnt_cuda *)d, cudaMemcpyAsync(w.start, a->s0, bytes, cudaMemcpyDeviceToDevice, d->stream));
        c.side[0].start = w.start;
    }
    a->K == 64 ? put_prepare<64>(call, p, d) : put_prepare<128>(call, p, d);
    (hopper ? lnt_vector_chains_sm90 : lnt_vector_chains_sm80)(c, d);
    for (int i = 0; i < 2; i++)
        if (w.out[i] && c.side[i].out) lnt_decay_sum(i ? a->dv : a->o, 1, w.out[i], 1, a->tokens * (a->Hv / call.slices), call.slices, a->V, d);
    if (!call.states()) return;
    if (p.du) lnt_cuda_note((lnt_cuda *)d, cudaMemsetAsync(w.du, 0, (size_t)(slots * a->Hv * a->K) * sizeof(float), d->stream));
    lnt_vector_back(a, p, !call.backward, d);
    if (p.du) lnt_vector_sum_heads(a->dbonus, 0, w.du, slots, 1, a->Hv, a->Hv, a->K, d);
}

/* The least shared memory that the blocks need. */
template <int K> int block_memory(const tiles_call &c)
{
    const int chain = c.backward || !c.turned ? vector_ring_bytes<K, true>(1) : vector_ring_bytes<K, false>(1);
    const int back = c.states() ? lnt_vector_back_bytes(&c.x, !c.backward) : 0, prepare = prepare_shared<K, true>::bytes;
    return chain > back ? chain > prepare ? chain : prepare : back > prepare ? back : prepare;
}

} // namespace

const char *lnt_vector_tiles_declines(const vector_call *a, bool backward)
{
    if (!a->bf16) return "it takes bf16 tensors";
    if (a->delta) return "it has no delta rule";
    if (a->rows && a->columns) return "it has no gates of keys and values at once";
    if (a->K % 64 || a->V % 64) return "K and V in multiples of 64 are offered";
    if (a->Hq != a->Hv) return "as many key heads as value heads are offered";
    const tiles_call c = call_of(a, backward);
    if ((a->tokens / C + a->sequences) * c.x.Hv >= (int64_t)1 << 31) return "too many tokens";
    if ((c.x.K == 64 ? block_memory<64>(c) : block_memory<128>(c)) > lnt_block_room()) return "the GPU has too little shared memory";
    return NULL;
}
size_t lnt_vector_tiles_bytes(const vector_call *a, bool backward) { return carve(call_of(a, backward)).bytes; }
void lnt_vector_tiles_forward(const vector_call *a, bool hopper, const lnt_device *device)
{
    if (a->sequences) put(call_of(a, false), hopper, (const lnt_cuda *)device);
}
void lnt_vector_tiles_backward(const vector_call *a, bool hopper, const lnt_device *device)
{
    if (!a->sequences) return lnt_vector_general_backward(a, device); /* zeros */
    put(call_of(a, true), hopper, (const lnt_cuda *)device);
}

/* The delta core in chunk form for any GPU, type and size: plain float32 arithmetic, one CTA per (sequence, value head, 32 columns of V).
 *
 * Letters as in operators.md#delta: C = 16 rows of a chunk, E the prediction errors, D the decay mask, e_i = e^{G_i}, l_i = e^{G_n - G_i}.
 *   (I + tril(K K^T . D diag(beta), -1)) E = V - e.(K S)      O = s e.(Q S) + s (Q K^T . D) diag(beta) E      S' = e_n S + K^T (beta l . E)
 * A lane is a column; the warps share the rows. The state's columns stay in shared memory from the first chunk to the last. */
#include "recurrence/delta/delta_cuda.cuh"
#include "recurrence/recur_cuda.cuh"

namespace {

constexpr int C = 16, THREADS = 256, WARPS = THREADS / 32, COLUMNS = 32, MOST_K = 256, MOST_V = 1024;
constexpr int PAD = 4; /* floats between rows of k, so that rows start at different banks */

struct chunk_args {
    const void *q, *k, *v;
    const float *g, *beta, *s0;
    float *sT;
    void *o;
    const int64_t *cu;
    int Hq, Hv, K, V, blocks;
    float scale;
};

/* Shared memory: [KP][32] S, [2C][KP+PAD] k over q, [C][32] v, then E, [2C][C] masked products, gates. KP = K in fours. */
__device__ __host__ constexpr int padded(int K) { return (K + 3) / 4 * 4; }
size_t chunk_bytes(int K)
{
    const size_t KP = (size_t)padded(K);
    return sizeof(float) * (KP * COLUMNS + 2 * C * (KP + PAD) + C * COLUMNS + 2 * C * C + 5 * C);
}

/* Chunk after chunk, from the gates to the state. Long: a chunk's stages share the places in shared memory and the barriers between them. */
template <typename T> __global__ __launch_bounds__(THREADS) void chunk_kernel(const __grid_constant__ chunk_args p)
{
    extern __shared__ __align__(16) float shared[];
    const int KP = padded(p.K), LD = KP + PAD, tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32;
    float *S = shared, *kq = S + KP * COLUMNS, *E = kq + 2 * C * LD, *w = E + C * COLUMNS, *beta = w + 2 * C * C, *e = beta + C, *l = e + C;
    lnt_gate_sum *G = (lnt_gate_sum *)(l + C);
    const int first = (int)(blockIdx.x % p.blocks) * COLUMNS, h = (int)(blockIdx.x / p.blocks % p.Hv), hq = h / (p.Hv / p.Hq);
    const int64_t n = blockIdx.x / p.blocks / p.Hv, state = (n * p.Hv + h) * p.K * p.V + first + lane, end = p.cu[n + 1];
    const bool real = first + lane < p.V;
    for (int k = warp; k < KP; k += WARPS) S[k * COLUMNS + lane] = p.s0 && real && k < p.K ? p.s0[state + (int64_t)k * p.V] : 0.f;

    for (int64_t t = p.cu[n]; t < end; t += C) {
        const int rows = (int)min((int64_t)C, end - t);
        __syncthreads();
        for (int i = tid; i < 2 * C * KP; i += THREADS) {
            const int r = i / KP, k = i % KP;
            const T *from = (const T *)(r < C ? p.k : p.q);
            kq[r * LD + k] = r % C < rows && k < p.K ? to_float(from[((t + r % C) * p.Hq + hq) * p.K + k]) : 0.f;
        }
        for (int r = warp; r < C; r += WARPS)
            E[r * COLUMNS + lane] = r < rows && real ? to_float(((const T *)p.v)[((t + r) * p.Hv + h) * p.V + first + lane]) : 0.f;
        if (warp == 0) { /* gates: a row a lane; rows past the end change nothing */
            const lnt_gate_sum upto = lnt_gate_scan<C>(lane < rows && p.g ? p.g[(t + lane) * p.Hv + h] : 0.f);
            const lnt_gate_sum last = { __shfl_sync(~0u, upto.hi, C - 1), __shfl_sync(~0u, upto.lo, C - 1) };
            if (lane < C) {
                beta[lane] = lane < rows ? p.beta[(t + lane) * p.Hv + h] : 0.f;
                G[lane] = upto;
                e[lane] = lnt_gate_from_start(upto);
                l[lane] = lnt_gate_between(last, upto);
            }
        }
        __syncthreads();
        /* w: K K^T . D over s Q K^T . D, times beta of the column */
        for (int x = tid; x < 2 * C * C; x += THREADS) {
            const int i = x / C % C, j = x % C;
            float sum = 0.f;
            if (j <= i) {
                const float4 *a = (const float4 *)(kq + x / C * LD), *b = (const float4 *)(kq + j * LD);
                float4 y = make_float4(0.f, 0.f, 0.f, 0.f);
                for (int k = 0; k < KP / 4; k++) {
                    y.x += a[k].x * b[k].x;
                    y.y += a[k].y * b[k].y;
                    y.z += a[k].z * b[k].z;
                    y.w += a[k].w * b[k].w;
                }
                sum = (y.x + y.y + (y.z + y.w)) * lnt_gate_between(G[i], G[j]) * beta[j] * (x < C * C ? 1.f : p.scale);
            }
            w[x] = sum;
        }
        /* two rows of K S and of Q S a warp */
        float z[4] = {};
        for (int k = 0; k < KP; k += 4) {
            float s[4];
#pragma unroll
            for (int j = 0; j < 4; j++) s[j] = S[(k + j) * COLUMNS + lane];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const float4 x = *(const float4 *)(kq + ((r < 2 ? 2 * warp + r : C + 2 * warp + r - 2)) * LD + k);
                z[r] += x.x * s[0] + x.y * s[1] + (x.z * s[2] + x.w * s[3]);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) E[(2 * warp + r) * COLUMNS + lane] -= e[2 * warp + r] * z[r];
        __syncthreads();
        if (warp == 0) { /* substitution, a column a lane */
            float x[C];
#pragma unroll
            for (int i = 0; i < C; i++) {
                float sum = E[i * COLUMNS + lane];
#pragma unroll
                for (int j = 0; j < i; j++) sum -= w[i * C + j] * x[j];
                x[i] = sum;
                E[i * COLUMNS + lane] = sum;
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = 2 * warp + r;
            float o = p.scale * e[i] * z[2 + r];
#pragma unroll
            for (int j = 0; j < C; j++) o += w[(C + i) * C + j] * E[j * COLUMNS + lane];
            if (i < rows && real) ((T *)p.o)[((t + i) * p.Hv + h) * p.V + first + lane] = from_float<T>(o);
        }
        float writes[C];
#pragma unroll
        for (int i = 0; i < C; i++) writes[i] = beta[i] * l[i] * E[i * COLUMNS + lane];
        for (int k = warp; k < KP; k += WARPS) {
            float sum = e[C - 1] * S[k * COLUMNS + lane];
#pragma unroll
            for (int i = 0; i < C; i++) sum += kq[i * LD + k] * writes[i];
            S[k * COLUMNS + lane] = sum;
        }
    }
    __syncthreads();
    if (p.sT && real)
        for (int k = warp; k < p.K; k += WARPS) p.sT[state + (int64_t)k * p.V] = S[k * COLUMNS + lane];
}

template <typename T> void launch(const chunk_args &p, int64_t ctas, cudaStream_t stream)
{
    const size_t bytes = chunk_bytes(p.K);
    cudaFuncSetAttribute(chunk_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    chunk_kernel<T><<<(unsigned)ctas, THREADS, bytes, stream>>>(p);
}

} // namespace

extern "C" const char *lnt_delta_cuda_declines(const void *args, bool backward)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    if (a->K > MOST_K || a->V > MOST_V) return "keys of more than 256 columns or values of more than 1024";
    if (a->sequences * a->Hv * lnt_div_up(a->V, COLUMNS) >= (int64_t)1 << 31) return "too many sequences";
    const size_t room = (size_t)lnt_block_room();
    if ((backward ? lnt_delta_general_block_memory(a, room) : chunk_bytes(a->K)) > room) return "the GPU has too little shared memory";
    return NULL;
}

extern "C" void lnt_delta_chunk_cuda_forward(const void *args, const lnt_device *d)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    const chunk_args p = { a->q, a->k, a->v, (const float *)a->g, (const float *)a->beta, (const float *)a->s0, (float *)a->sT, a->o,
                           a->cu_seqlens_device, a->Hq, a->Hv, a->K, a->V, (int)lnt_div_up(a->V, COLUMNS), (float)a->scale };
    const int64_t ctas = a->sequences * a->Hv * p.blocks;
    if (ctas) LNT_BY_TYPE(a->dtype, T, launch<T>(p, ctas, ((const lnt_cuda *)d)->stream));
}

/* Scans with several numbers of a state for each channel, on a GPU: what their kernels share. A channel's numbers lie in G lanes, EACH in each, so
 * that a multiprocessor has warps enough to fill each other's waits. TB tokens at a time come through shared memory, turned so that a lane reads
 * four tokens at once. Two channels lie in a warp's even and odd lanes: 16 bytes a lane take half as long where lanes i and i ^ 1, or i and i ^ 2,
 * read the same, and so rows of numbers do, and rows of channels. */
#ifndef LNT_SCAN_STATES_CUH
#define LNT_SCAN_STATES_CUH

#include "recurrence/decay/decay_vector.cuh"
#include "recurrence/recur_cuda.cuh"
#include "recurrence/scan/fold.cuh"

extern "C" {
#include "recurrence/scan/scan.h"
}

namespace {

constexpr int TB = 32; /* tokens of a tile, a lane each while it is loaded */
constexpr int PITCH = TB + 4; /* of its rows in shared memory: 16 bytes of 8 lanes lie in 32 banks */

template <int LANES, int NUMBERS, int OF_CTA = NUMBERS == 4 ? 4 : 16, int TOKENS = NUMBERS == 1 ? 16 : 8> struct shape {
    static constexpr int G = LANES, EACH = NUMBERS, MP = G * EACH, WARPS = OF_CTA, THREADS = 32 * WARPS;
    static constexpr int OF_WARP = 32 / G, CH = WARPS * OF_WARP, ROUND = TOKENS, ROUNDS = TB / ROUND;
    static constexpr int NEXT = G < 32 ? 2 : 1; /* lanes from one of a channel's numbers to the next */
    /* Lanes from 16 on have their two numbers in the other order, so that in a sum over channels what such a lane keeps and what it sends away are
     * the same registers as everyone's. */
    static constexpr bool TURNED = OF_WARP == 4 && EACH == 2;
};

/* Where a thread stands: number i of its channel's state is number(i). */
template <typename S> struct place {
    int lane, warp, m, of_cta, first, channel, strip;
    int64_t n, begin, end, tiles;
    bool real;

    template <typename A> __device__ __forceinline__ explicit place(const A &p)
    {
        lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, m = lane / S::NEXT % S::G;
        of_cta = warp * S::OF_WARP + lane / (S::NEXT * S::G) * S::NEXT + lane % S::NEXT;
        strip = (int)(blockIdx.x % p.strips), first = strip * S::CH, channel = first + of_cta;
        n = blockIdx.x / p.strips, begin = p.cu[n], end = p.cu[n + 1], tiles = (end - begin + TB - 1) / TB;
        real = channel < p.D;
    }
    __device__ __forceinline__ int number(int i) const { return m + (S::TURNED ? i ^ lane / 16 : i) * S::G; }
    /* x [N,D,M] or, of all sequences, [D,M] */
    template <typename A> __device__ __forceinline__ void read(const A &p, float (&to)[S::EACH], const float *x, int64_t sequence) const
    {
#pragma unroll
        for (int i = 0; i < S::EACH; i++) to[i] = x && real && number(i) < p.M ? x[(sequence * p.D + channel) * p.M + number(i)] : 0.f;
    }
    template <typename A> __device__ __forceinline__ void write(const A &p, float *x, const float (&from)[S::EACH], int64_t sequence) const
    {
#pragma unroll
        for (int i = 0; i < S::EACH; i++)
            if (x && real && number(i) < p.M) x[(sequence * p.D + channel) * p.M + number(i)] = from[i];
    }
    /* of the round's start, of the channel */
    template <typename A> __device__ __forceinline__ float *kept(const A &p, int64_t round) const
    {
        return p.kept + ((begin / S::ROUND + n + round) * p.D + channel) * S::MP;
    }
};

/* ---- tiles of rows ----------------------------------------------------------------------------------------------------------------------- */

/* TB rows of WIDTH columns, from memory to registers and on, 16 bytes of a row a lane; the first of WARPS warps to have some is START. They stay
 * words as they came until they go on: whoever takes elements out of them at once waits for memory there. */
template <typename T, int WIDTH, int WARPS, int START> struct rows {
    static constexpr int PER = 16 / (int)sizeof(T) < WIDTH ? 16 / (int)sizeof(T) : WIDTH, PARTS = WIDTH / PER, EACH = (PARTS + WARPS - 1) / WARPS;
    static constexpr int WORDS = PER * (int)sizeof(T) / 4;
    uint32_t x[EACH][WORDS];

    static constexpr int next() { return (START + PARTS) % WARPS; }

    static __device__ __forceinline__ int part(int k) { return ((int)threadIdx.x / 32 + WARPS - START % WARPS) % WARPS + k * WARPS; }
    __device__ __forceinline__ float element(int k, int i) const
    {
        if constexpr (sizeof(T) == 4) return __uint_as_float(x[k][i]);
        return __uint_as_float(i % 2 ? x[k][i / 2] & 0xffff0000u : x[k][i / 2] << 16);
    }
    /* Rows t .. of x [.,columns] from column `first` on; what is not there is zero. */
    __device__ __forceinline__ void fetch(const void *from, int64_t t, int64_t end, int columns, int first)
    {
        const int64_t row = t + (int)threadIdx.x % 32;
        const bool whole = columns % 8 == 0, there = from && row < end;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int at = first + part(k) * PER;
            if (part(k) >= PARTS) continue; /* the whole warp */
            const T *p = (const T *)from + row * columns + at;
            lnt_pack<uint32_t, WORDS> words = {};
            if (whole) {
                if (there && at < columns) words = *(const lnt_pack<uint32_t, WORDS> *)p;
            } else {
                lnt_pack<T, PER> v;
#pragma unroll
                for (int i = 0; i < PER; i++) v.x[i] = there && at + i < columns ? p[i] : from_float<T>(0.f);
                memcpy(&words, &v, sizeof words);
            }
#pragma unroll
            for (int i = 0; i < WORDS; i++) x[k][i] = words.x[i];
        }
    }
    __device__ __forceinline__ void put(float (*to)[PITCH]) const
    {
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (part(k) < PARTS)
#pragma unroll
                for (int i = 0; i < PER; i++) to[part(k) * PER + i][threadIdx.x % 32] = element(k, i);
    }
    /* The other way: `count` rows, to memory. */
    static __device__ __forceinline__ void store(void *to, const float (*from)[PITCH], int64_t t, int count, int columns, int first)
    {
        const int j = (int)threadIdx.x % 32;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int at = first + part(k) * PER;
            if (part(k) >= PARTS || !to || j >= count) continue;
            T *p = (T *)to + (t + j) * columns + at;
            if (columns % 8 == 0) {
                float v[PER];
#pragma unroll
                for (int i = 0; i < PER; i++) v[i] = from[part(k) * PER + i][j];
                if (at < columns) store_pack(p, v);
            } else {
#pragma unroll
                for (int i = 0; i < PER; i++)
                    if (at + i < columns) p[i] = from_float<T>(from[part(k) * PER + i][j]);
            }
        }
    }
};

/* ---- sums -------------------------------------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void four(float (&to)[4], const float *from)
{
    const float4 x = *(const float4 *)from;
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

/* Sums over a channel's lanes of ROUND tokens: a lane is left with EACH tokens', from token(m) on, and where there are more lanes than tokens, some
 * have the same. */
template <typename S> struct of_channel {
    static constexpr int EACH = S::G < S::ROUND ? S::ROUND / S::G : 1, SAME = S::G < S::ROUND ? 1 : S::G / S::ROUND;
    static __device__ __forceinline__ int token(int m) { return m / SAME * EACH; }
    static __device__ __forceinline__ bool mine(int m) { return m % SAME == 0; } /* nobody else's too */
    static __device__ __forceinline__ void sum(float (&v)[S::ROUND]) { fold<S::ROUND, S::G * S::NEXT / 2, S::NEXT>(v); }
    static __device__ __forceinline__ float of_all(float x)
    {
#pragma unroll
        for (int o = S::G * S::NEXT / 2; o >= S::NEXT; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
        return x;
    }
};

} // namespace

#endif

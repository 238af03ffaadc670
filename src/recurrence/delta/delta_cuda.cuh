/* The delta core on CUDA: what its kernels share. Equations: operators.md#delta.
 *
 * The fast path cuts every sequence from its own start into chunks of 64 tokens; the chunk list is the sequences in order. Its forward sweep leaves
 * in the workspace what the read-out and the backward pass need of each chunk, so both are parallel over chunks where the chain of states allows.
 * In terms of the writes U (in delta_cpu.c: U = beta.E):
 *
 *   A = tril(diag(beta) (K K^T . D), -1)     T = (I + A)^{-1}     P = s tril(Q K^T . D)
 *   U = T beta.(V - e.(K S))                 O = s e.(Q S) + P U  S' = e^{G_n} S + (l.K)^T U                       (operators.md#delta)
 *
 * Gates are counted (chunk/gates.cuh): e_i = [R_i = 0] e^{G_i}, l_i = [R_i = R_n] e^{G_n - G_i}, and the state's own factor is [R_n = 0] e^{G_n}.
 * Rows past the end of a chunk repeat the last row's G and R; T is the identity there, P zero. */
#ifndef LNT_DELTA_CUDA_CUH
#define LNT_DELTA_CUDA_CUH

#include "recurrence/chunk/gates.cuh"

extern "C" {
#include "recurrence/delta/delta_impls.h"
#include "recurrence/recur_args.h"
}

enum { LNT_DELTA_C = 64 };
/* A [64][64] with zeros right of its diagonal, packed: of rows 16 i .. 16 i + 15 columns 0 .. 16 i + 15, 8 columns at a time [16][8], strip i from
 * 128 i (i + 1) on. The first 8 rows of a strip's last 8 columns, zeros, are neither written nor read. */
enum { LNT_DELTA_PACKED = 10 * 16 * 16 };

/* Views of the workspace, all aligned to 256 bytes. NC = chunks. */
typedef struct {
    int64_t chunks;
    int4 *table;       /* [NC] {sequence, first token, rows, chunk of its sequence}; NULL of one sequence (lnt_delta_entry) */
    int *first_chunk;  /* [N+1]; NULL of one sequence */
    float *G;          /* [NC,Hv,64] */
    int *R;            /* [NC,Hv,64] */
    bf16 *T;           /* [NC,Hv,64,64] row major; 8 columns of a row that stand right of the diagonal are not written; or [NC,Hv,LNT_DELTA_PACKED] */
    bf16 *P;           /* [NC,Hv,64,64] the same */
    bool packed;       /* T and P are: forward, of several sequences, whose chains take all that memory gives */
    bf16 *U;           /* [NC,Hv] images [64,V] (delta_parts.cuh), zeros past the end of a chunk; kept only, else NULL */
    bf16 *S;           /* [NC,Hv] images [K,V] of the state at the chunk's start; kept only, else NULL */
    float *F;          /* [NC,Hv,4,64] beta, e, l, beta e as the chain reads them; beta is 0 past the end */
    int segments;      /* pieces that a sequence's chain is cut into; 1: none */
    int segment_chunks;
    float *X;          /* [N,segments,Hv,K,V] end state of a segment begun with zeros; NULL without segments */
    float *dX;         /* [N,segments,Hv,K,V] in reverse: what zeros at a segment's end become, of the last one dsT; kept only */
    bf16 *M;           /* [N,segments,Hv] images [K,K]: what carries a segment's start to its end */
    float *start;      /* [N,Hv,K,V] s0, for a call that writes sT over it, of segments; of a sequence in parts the state between two of them */
    size_t bytes;      /* of all this */
} lnt_delta_sweep;

/* sum of ceil(length / 64), from the host's cu_seqlens, which are of tokens where tokens have several writes (delta_product_cuda.cu). */
int64_t lnt_delta_chunks(const lnt_recur_args *a);

/* The views from `at` on (NULL: only `bytes` is of use). keep: for the backward pass. */
lnt_delta_sweep lnt_delta_sweep_at(const lnt_recur_args *a, void *at, bool keep);

/* Of the backward pass, the sweep's views included (delta_back.cu). */
size_t lnt_delta_fast_backward_workspace(const lnt_recur_args *a);
/* Bytes of shared memory that a block has at least (delta_back.cu). */
int lnt_delta_fast_block_memory(const lnt_recur_args *a, bool backward);
/* Of the general path's backward pass, for a GPU with `room` for a block (delta_back_cuda.cu). */
size_t lnt_delta_general_block_memory(const lnt_recur_args *a, size_t room);

/* The chains, from T, P and F: the states' (delta_chain.cuh) and their gradients' in reverse (delta_back_chain.cuh). */
typedef struct {
    const bf16 *q, *k, *T, *P;
    const float *F;
    const int64_t *cu;
    const int *first_chunk; /* NULL: of one sequence */
    bf16 *M;
    int64_t sequences;
    int Hq, Hv, K, V;
    float scale;
    bool packed;         /* T and P are */
    int segments, segment_chunks;
    int from, until;     /* without segments: a sequence's chunks that are gone through; until may be past its end */
    bool behind;         /* in reverse: waits for the kernel ahead, which goes through the chunks from `until` on */
    bool ends;           /* of the segments, X, M and dX, in place of all else */
    bool wide;           /* 128 columns of V a CTA in place of 64 (Hopper) */
    bool gated;          /* not all of F's e and l are 1 */
    const bf16 *v;       /* forwards */
    const float *s0;
    bf16 *o, *U, *S;     /* U, S NULL: not wanted */
    float *sT, *X;       /* sT NULL: not wanted */
    const bf16 *d_o;     /* in reverse; NULL: zeros */
    const float *dsT;
    bf16 *dv, *dS;       /* dv NULL: not wanted; [NC,Hv] images [K,V], the gradient at the chunk's end */
    float *ds0, *dX;     /* ds0 NULL: not wanted */
    int stages, stash; /* the launcher's */
} lnt_delta_chain;

/* Put what the chains begin with on the stream: G, R, F, T, P of the chunks from..until of the list, in front of the first the list itself, which
 * one sequence does not need. Needs lnt_delta_fast_declines(a) == NULL. Of chunks behind the first it runs beside the kernel ahead, which calls
 * let_next_begin when all before it has ended, and ends after it. */
void lnt_delta_chunks_put(const lnt_recur_args *a, const lnt_device *d, const lnt_delta_sweep *w, int64_t from, int64_t until);
/* What both chains take from the call and from the sweep's views. */
lnt_delta_chain lnt_delta_chain_of(const lnt_recur_args *a, const lnt_delta_sweep *w);

/* The states' chain: o and sT, or with o NULL U and S; ends: X and M. */
void lnt_delta_chain_sm80(const lnt_delta_chain *p, const lnt_cuda *d);
void lnt_delta_chain_sm90(const lnt_delta_chain *p, const lnt_cuda *d);
/* Their gradients' chain in reverse: dv, dS, ds0; ends: dX. Put behind the states' chain with o NULL: on Hopper both run at once. */
void lnt_delta_back_sm80(const lnt_delta_chain *p, const lnt_cuda *d);
void lnt_delta_back_sm90(const lnt_delta_chain *p, const lnt_cuda *d);

/* Kernels one behind the other, on Hopper: a kernel put `early` begins when all CTAs of the one ahead have said let_next_begin (or ended), and its
 * wait_for_prior returns when that one has ended, all of it to be seen. Elsewhere neither does anything, and nothing is put early. */
__device__ __forceinline__ void let_next_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_prior()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* What the chunk list says of chunk c; table NULL: of one sequence. */
__device__ __forceinline__ int4 lnt_delta_entry(const int4 *table, const int64_t *cu, int c)
{
    if (table) return table[c];
    const int64_t token = cu[0] + (int64_t)c * LNT_DELTA_C, left = cu[1] - token;
    return make_int4(0, (int)token, (int)(left < LNT_DELTA_C ? left : LNT_DELTA_C), c);
}

/* A call of one sequence goes through it in parts where its chains leave half of the multiprocessors free (`chains`, one CTA for 64 columns of V), so
 * that what is parallel over chunks runs beside them: forward what comes before the next part's chain; backward, where both chains together fill the
 * multiprocessors and that of the states is done long before the other, the gradients of the chunks that the chain in reverse has left behind. A part
 * costs about 5 us of waiting, so there are none below twelve (chunk, head)s a multiprocessor. */
static inline bool lnt_delta_in_parts(const lnt_recur_args *a, const lnt_cuda *d)
{
    const int64_t all = d->base.multiprocessors, chains = (int64_t)a->Hv * ((a->V + 63) / 64);
    return d->base.capability / 10 == 9 && a->sequences == 1 && 2 * chains <= all && a->tokens / LNT_DELTA_C * a->Hv >= 12 * all;
}

template <typename Args>
static inline cudaError_t lnt_delta_put(void (*kernel)(Args), const Args &p, int64_t ctas, int threads, int shared, int cluster, bool early,
                                        const lnt_cuda *d)
{
    const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (e != cudaSuccess || ctas <= 0) return e;
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)ctas);
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = (size_t)shared;
    config.stream = d->stream;
    config.attrs = attributes;
    if (cluster > 1) {
        attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attributes[config.numAttrs++].val.clusterDim = { (unsigned)cluster, 1, 1 };
    }
    if (early) {
        attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    return cudaLaunchKernelEx(&config, kernel, p);
}

#endif

/* What the decay core's CUDA files share: the shape of a pass, the cut into segments, the factors of a chunk. Equations in README.md. */
#ifndef LNT_DECAY_CUDA_CUH
#define LNT_DECAY_CUDA_CUH

#include "recurrence/chunk/gates.cuh"
#include "recurrence/decay/decay_wide.cuh"

extern "C" {
#include "recurrence/decay/decay.h"
}

/* Rows of a tensor [T,heads,width], read as those of Hv value heads. Column `width`, where a caller reaches it, is extra[t,h], or 1 without. */
struct decay_rows {
    const void *p; /* NULL: zeros */
    const float *extra;
    int bf16, heads, width;
    int inner = 1; /* neighbours of `heads` that value heads read by turns: the slices of a key (decay_slices) */
};


/* The sequences, cut into segments of `segment` tokens (a multiple of the chunk). Segment p of sequence n is a piece of work, and has slot
 * cu[n] / segment + n + p: no two segments meet there, and there are at most T / segment + N slots. */
struct decay_cut {
    const int64_t *cu; /* device, [N+1] */
    int64_t N, T, segment;
    int P;  /* the longest sequence's segments, at least 1 */
    int Hv;                  /* slices count */
    const float *g, *g_head; /* [T,Hv / slices], [Hv / slices]; both NULL: no decay */
    float scale;
    const float *reads = NULL, *writes = NULL; /* mLSTM: as g, factors of what a token reads, natural logs of those of what it writes */
    int slices = 1;                            /* of a head */
    const float *strengths = NULL;             /* as g, factors of what a token writes, above 0 (Mesa, bf16) */
};

struct decay_place {
    int64_t n, first, last, slot; /* tokens [first,last) */
    bool begins, ends;            /* of its sequence */
};
/* False: sequence n has no segment p. An empty sequence has one, empty. */
__device__ __forceinline__ bool decay_find(const decay_cut &x, int64_t n, int p, decay_place *at)
{
    const int64_t from = x.cu[n], to = x.cu[n + 1], first = from + p * x.segment;
    if (p && first >= to) return false;
    *at = { n, first, first + x.segment < to ? first + x.segment : to, from / x.segment + n + p, p == 0, first + x.segment >= to };
    return true;
}

/* The second of two backward passes with the same queries, keys and gates, in which the keys are the values, too, and whose results count negatively
 * (the Mesa core's, by decay_kernels.both, K = V): in the places of dk and dg is what the first left less this one's, dk less dv, too; no dq. */
struct decay_joined {
    const bf16 *dk;  /* [T,Hv,K] the first one's; NULL: the pass is none of these */
    const float *dg; /* [T,Hv] */
    float *dbeta;    /* [T,Hv] k . (the first's dk less this one's) over the strength; NULL: not wanted */
    float *products; /* [slots,Hv,K] sums over a segment of q.do, element by element; NULL: not wanted */
};

/* One read-out of a decayed state, which serves forward and all of backward by the choice of roles. In chunk order (backwards when `reverse`):
 *
 *   out_i = read_i S^T query_i + sum_j s D_ij (query_i . key_j) value_j        S <- e^{b_n} S + sum_j write_j key_j value_j^T
 *
 *             query  key  value   read_i         write_j        D_ij
 *   o           q     k     v     s e^{b_i}      e^{b_n-b_j}    e^{b_i-b_j}, j <= i
 *   dq          do    v     k     the same (S transposed)
 *   dv          k     q     do    e^{b_n-b_i}    s e^{b_j}      e^{b_j-b_i}, j >= i      (S is dS here)
 *   dk          v     do    q     the same (dS transposed)                                                                   */
struct decay_pass {
    decay_rows query, key, value; /* [D], [D], [E] */
    decay_rows dots;              /* not NULL: also inter[h,t] += dots_t . (read_t S^T query_t), for the gates' gradient */
    int D, E;
    int begin, end;               /* columns of `value` to compute, those of out too; end - begin columns a row of out */
    bool reverse;
    bool transposed;              /* S[d][e] lies at e * W + d of a slot, not d * W + e */
    const float *slots;           /* start states [slots,Hv,K,W]; NULL: s, z */
    bool late;                    /* the kernel ahead may have made more than these */
    const float *s, *z;           /* start states [N,Hv,K,V], [N,Hv,K]; NULL: zeros */
    float *s_end, *z_end;         /* where those of the sequences' ends go, or NULL */
    int K, V, W;                  /* of the state: W = V or V+1 */
    void *out;                    /* [T,Hv,end-begin], NULL: not wanted */
    int out_bf16;
    const float *den;             /* [T,Hv]: out is divided by it; NULL: not */
    float add;                    /* to out */
    float *inter;                 /* [parts,Hv,T], part = block of columns */
    float *intra, *rows;          /* dk: decay_pairs', where kernels have them on the way (decay_kernels.both); NULL: not wanted */
    decay_joined joined;          /* dk and dq; without dk: not */
    const float *n_starts, *m;    /* mLSTM, where the kernels divide: decay_stable's n, m; NULL: not */
    float eps;
};

/* End states of segments that start from zero (start states that end in zero when `reverse`): X [slots,Hv,K,W]; decay [slots,Hv] = e^{b} over each.
 * The last one's (the first one's) are not needed and not made. */
struct decay_states {
    decay_rows key, value; /* k v; q do when `reverse` */
    int K, W;
    bool reverse;
    float *X, *decay;
};

/* intra[h,t] = sum over pairs j >= t > l of the chunk of s D_jl (q_j . k_l)(do_j . v_l - less_do_j . less_v_l). */
struct decay_pairs {
    decay_rows q, k, v, d_o;
    decay_rows less_v, less_do; /* tensor cores alone, as wide as v; less_v.p NULL: none */
    int K, W;
    float *intra;
    float *rows; /* tensor cores alone, [Hv,T], or NULL: with dq's `inter` do_t.o_t (mLSTM's, over D_t) */
};

/* What a second walk leaves, from the segments' true starts: the states in front of all chunks of 64 tokens (when `reverse`, the gradients of those
 * behind them), transposed. Tensor cores alone. */
struct chunk_starts {
    const float *slots, *s; /* [slots,Hv,K,V] of the segments; NULL: s [N,Hv,K,V], one segment a sequence; NULL: zeros */
    float *s_end;           /* [N,Hv,K,V] or NULL */
    bf16 *S;                /* [slots of segments of 64,Hv,V,K] */
};

/* All of backward from these, chunks independent of each other: a CTA has one and goes through the value heads that read the same queries and keys,
 * or through one of `parts` runs of them. */
struct decay_back {
    decay_rows q, k, v, d_o;
    const bf16 *S, *dS;
    int K, V, parts;
    void *dq, *dk;                 /* [T,Hq,K] in bf16; of several parts, [T,Hq,parts,K] in float32; NULL: not wanted */
    bf16 *dv;                      /* [T,Hv,V] or NULL */
    float *reads, *writes, *intra; /* [Hv,T] of decay_gates, or NULL */
};
bool lnt_decay_back_takes(int K, int V); /* by the shared memory of the current device */
void lnt_decay_back(const decay_cut &x, const decay_back &a, const lnt_cuda *d);

/* The two sets of kernels. `passes` go in one launch where that pays. */
struct decay_kernels {
    int chunk, parts; /* parts of `inter`; 0: one for every 32 columns */
    bool divides;     /* mLSTM's o by D_t, from n in front of every chunk, in the pass itself */
    bool rounds;      /* mLSTM's dq and dk are of the call's type before n's part is added */
    bool sliced;      /* heads wider than 128 go in slices of 128 or 64 columns */
    void (*states)(const decay_cut &, const decay_states &, const lnt_cuda *);
    void (*read)(const decay_cut &, const decay_pass *passes, int n, const lnt_cuda *);
    void (*pairs)(const decay_cut &, const decay_pairs &, const lnt_cuda *);
    float off = 0x1p-20f; /* what is wrong with a dot of `inter`, by the size that such dots have */
    /* Backward by chunks, where the first says so; NULL: never. */
    bool (*takes)(int K, int V) = NULL;
    void (*starts)(const decay_cut &, const decay_states &, const chunk_starts &, const lnt_cuda *) = NULL;
    void (*back)(const decay_cut &, const decay_back &, const lnt_cuda *) = NULL;
    bool both = false; /* `read` makes dk and dv in one, and the pairs with them: where gates matter alone there are no chunks' CTAs */
    void (*both_states)(const decay_cut &, const decay_states *forwards_and_reverse, const lnt_cuda *) = NULL; /* of `both` */
};
extern const decay_kernels lnt_decay_tiles; /* mma.sync's */
decay_kernels lnt_decay_hopper(void);       /* wgmma's */
void lnt_decay_hopper_states(const decay_cut &x, const decay_states *two, const lnt_cuda *d); /* by wgmma */
/* As decay_kernels.starts, forwards and of values that are the keys; false: not done, the direction, the values or the GPU are others. */
bool lnt_decay_hopper_starts(const decay_cut &x, const decay_states &a, const chunk_starts &b, const lnt_cuda *d);
size_t lnt_decay_cuda_bytes(const lnt_recur_args *a, bool backward, const decay_kernels &k);

/* mLSTM is the passes on the V columns of the kept states, with gates and factors of tokens that are made before them; the column of ones and m
 * are walked in chunks of LNT_STABLE_C tokens by kernels of their own, in front of the passes and behind them (decay_stable_cuda.cu). */
enum { LNT_STABLE_C = 64 };
/* m goes by pieces of tokens, a multiple of 256 and at most 64 of a sequence: what maps m across a piece, or the gradient of m in reverse. */
static inline int64_t lnt_stable_piece(int64_t longest) { return longest > 0 ? (longest + 16383) / 16384 * 256 : 256; }
struct stable_map {
    double f, i;
};
struct decay_stable {
    float *m, *g, *reads, *writes, *den; /* [T,Hv]: m_t, gates of the kept states, 1 / D_t, log w_t, s n_t.q_t */
    float *n, *fade;                     /* [slots of chunks,Hv,K] n in front of every chunk; [slots of chunks,Hv] a chunk's decay */
    /* backward */
    float *dn;                           /* as n: its gradient behind every chunk */
    float *along, *pull, *dgates, *dg_n, *di; /* [T,Hv]: gradient of n_t.q_t; what the outputs give m through eps; dg of the V columns, of n; k.dk */
    const float *inter;                  /* [Hv,T] with rows do_t.o_t of tensor cores; NULL: q_t.dq_t */
    float *rows;
    float *starts;                       /* [slots of chunks,Hv] of tensor cores, <S_0, what a chunk adds to dS_0>; NULL: from ds */
    float *sT, *nT, *ds, *dn0;           /* [N,Hv,K,V], [N,Hv,K]: ends of the states, and the gradients of their starts */
    double *dots;                        /* [N,Hv,2] <end, its gradient>, <start, its gradient> of the states */
    stable_map *maps;                    /* [slots of pieces,Hv]; both directions */
};
/* has_starts: the start states of the segments are in the workspace, of V not sliced; the kernel ahead is then any. */
void lnt_decay_cuda_forward(const lnt_recur_args *a, const lnt_device *d, const decay_kernels &k, bool has_starts = false);
/* m, gates, factors (of readers with `denominators`), n in front of every chunk, and where `ends` the final n and m; behind the passes, from the dq
 * and dk [T,Hv,K] that they left, the rest of dq, dk (to a->dq, a->dk, or in place where heads are shared), dn0, df, di, dm0. These are
 * float32, or, `in_type`, of the call's type, and may be where they go. `gates_ahead`: the kernel ahead is that of the gates' gradient, which the
 * first one here need not wait for. */
void lnt_stable_prepare(const lnt_recur_args *a, const decay_stable &w, const lnt_cuda *d, bool ends, bool denominators);
void lnt_stable_finish(const lnt_recur_args *a, decay_stable w, const lnt_cuda *d, void *dq, void *dk, bool in_type, bool gates_ahead);
/* A backward pass that is one of two over the same queries and keys. */
struct decay_shared {
    bool has_starts = false; /* the start states of the segments are in the workspace */
    bool no_pairs = false;   /* dg is without the pairs inside a chunk */
    const void *less_v = NULL, *less_do = NULL; /* [T,Hv,V]: dg is less the pairs of these */
    decay_joined joined = {};
};
void lnt_decay_cuda_backward(const lnt_recur_args *a, const lnt_device *d, const decay_kernels &k, const decay_shared &with);

/* For the mesa core: the states S at the start of every chunk of 64 tokens, [slots of segments of 64,Hv,K,V], of the keys, values, gates and s0
 * of `a` (`bytes` of whose workspace are used), and its end states sT. In float32 by the general kernels; in bf16, and transposed, by the tensor
 * cores, from states that are float32: K = V = 64 or 128. `backward`: the workspace has then the start states of
 * the segments of lnt_decay_tiles_backward, the core's backward pass on the same keys, values, gates and s0. lnt_decay_tiles_two leaves the start
 * states of two forward calls with the same keys and gates in the workspaces of both, in one launch and one scan: Hopper, K = V. `has_starts` is for
 * these. */
enum { LNT_DECAY_STARTS = 64 };
size_t lnt_decay_starts_bytes(const lnt_recur_args *a);
void lnt_decay_starts(const lnt_recur_args *a, const lnt_device *d, float *S);
size_t lnt_decay_tiles_starts_bytes(const lnt_recur_args *a, bool backward);
void lnt_decay_tiles_starts(const lnt_recur_args *a, const lnt_device *d, bool backward, bool has_starts, bf16 *S);
void lnt_decay_tiles_two(const lnt_recur_args *a, const lnt_recur_args *b, const lnt_device *d);
void lnt_decay_tiles_forward(const lnt_recur_args *a, const lnt_device *d, bool has_starts);
size_t lnt_decay_tiles_backward_bytes(const lnt_recur_args *a);
void lnt_decay_tiles_backward(const lnt_recur_args *a, const lnt_device *d, const decay_shared &with);

/* Slots from end states out of zero to start states. */
void lnt_decay_scan(const decay_cut &x, float *S, const float *decay, const float *s0, const float *z0, int K, int V, int W, bool reverse,
                    const lnt_cuda *d);

/* The call with zeros behind its keys, to a multiple of 64, in front of the workspace: so many bytes; and those keys and states, there and back. */
size_t lnt_decay_pad(const lnt_recur_args *a, bool backward, lnt_recur_args *wide);
void lnt_decay_pad_in(const lnt_recur_args *a, const lnt_recur_args *wide, bool backward, const lnt_cuda *d);
void lnt_decay_pad_out(const lnt_recur_args *a, const lnt_recur_args *wide, bool backward, const lnt_cuda *d);
/* Calls of tensor cores, keys of any width among them. */
size_t lnt_decay_padded_bytes(const lnt_recur_args *a, bool backward, const decay_kernels &k);
void lnt_decay_padded_forward(const lnt_recur_args *a, const lnt_device *d, const decay_kernels &k);
void lnt_decay_padded_backward(const lnt_recur_args *a, const lnt_device *d, const decay_kernels &k);
const char *lnt_decay_tiles_declines(const void *args, bool backward);

/* ---- calls ---------------------------------------------------------------------------------------------------------------------------- */

static inline void decay_launch(const lnt_cuda *d, const void *kernel, int64_t grid, int threads, size_t shared, void **args)
{
    lnt_cuda *noted = const_cast<lnt_cuda *>(d);
    if (grid <= 0) return;
    if (shared > 48 << 10) lnt_cuda_note(noted, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    lnt_cuda_note(noted, cudaLaunchKernel(kernel, dim3((unsigned)grid), dim3((unsigned)threads), args, shared, d->stream));
}

static inline int64_t decay_pieces(const decay_cut &x) { return x.N * x.P * x.Hv; }
static inline bool decay_gated(const decay_cut &x) { return x.g || x.g_head; }

/* F<K,V,GATED>() for a shape of tensor cores' tiles. */
#define DECAY_BY_SHAPE(K_, V_, gated, F)                                                                                           \
    do {                                                                                                                           \
        if ((K_) == 64 && (V_) == 64) (gated) ? F(64, 64, true) : F(64, 64, false);                                                \
        if ((K_) == 64 && (V_) == 128) (gated) ? F(64, 128, true) : F(64, 128, false);                                             \
        if ((K_) == 128 && (V_) == 64) (gated) ? F(128, 64, true) : F(128, 64, false);                                             \
        if ((K_) == 128 && (V_) == 128) (gated) ? F(128, 128, true) : F(128, 128, false);                                          \
    } while (0)

static inline int decay_segments(const lnt_recur_args *a, int64_t segment)
{
    const int64_t longest = a->longest;
    return longest ? (int)((longest + segment - 1) / segment) : 1;
}

static constexpr int DECAY_WIDEST = 256, DECAY_WIDEST_V = 1024; /* columns of K and of V */
static constexpr int DECAY_BLOCK = 32; /* columns of the state in a CTA of the general kernels: a lane each */

/* ---- factors of a chunk ------------------------------------------------------------------------------------------------------------- */

/* Of a slice: its head, and that head's place in a tensor [T,Hv / slices]. */
__device__ __forceinline__ int decay_head(const decay_cut &x, int h) { return x.slices == 1 ? h : h / x.slices; }
__device__ __forceinline__ int64_t decay_token(const decay_cut &x, int64_t t, int h)
{
    return x.slices == 1 ? t * x.Hv + h : t * (x.Hv / x.slices) + h / x.slices;
}
__device__ __forceinline__ float decay_gate(const decay_cut &x, int64_t t, int h)
{
    return lnt_gate(x.g ? x.g[decay_token(x, t, h)] : x.g_head ? x.g_head[decay_head(x, h)] : 0.0f);
}

/* A strength, as passes have it: what was multiplied by it can be divided by it. */
__device__ __forceinline__ float decay_strength(float x) { return x < 0x1p-64f ? 0x1p-64f : x; }

/* The logarithms to base 2 of a token's factors, where a pass has any. A factor of 2^-1000 is 0, and no sum with it is no number.
 * EXACT: to a double's accuracy, which float32 rows need and bf16 ones do not. */
static constexpr double DECAY_NOTHING = -1000;
template <bool EXACT> __device__ __forceinline__ double decay_reads(const decay_cut &x, int64_t t, int h)
{
    const int64_t at = decay_token(x, t, h);
    const double y = x.reads ? (double)(EXACT ? log2((double)x.reads[at]) : log2f(x.reads[at])) : 0.0;
    return y < DECAY_NOTHING ? DECAY_NOTHING : y;
}
__device__ __forceinline__ double decay_writes(const decay_cut &x, int64_t t, int h)
{
    if (x.strengths) return log2f(decay_strength(x.strengths[decay_token(x, t, h)]));
    const double y = x.writes ? x.writes[decay_token(x, t, h)] * LNT_LOG2E : 0.0;
    return y < DECAY_NOTHING ? DECAY_NOTHING : y;
}

#endif

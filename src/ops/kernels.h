/* The kernels of ops/: each CPU kernel is compiled once for every CPU variant, and has a twin <name>_cuda in a build with CUDA; the operator picks
 * one at the call. */
#ifndef LNT_OPS_KERNELS_H
#define LNT_OPS_KERNELS_H

#include "core/cpu.h"
#include "core/rng.h"
#include "device/device.h"
#include "ops/gemm.h"
#include "program/program.h"
#include "simd/variant.h"

/* LNT_KERNEL(c, name) is the kernel of the context's device; LNT_DECLARE_KERNEL declares all of them. */
#ifdef LINNET_CUDA
#define LNT_DECLARE_KERNEL(type, name)                                                                                             \
    LNT_DECLARE_VARIANTS(type, name);                                                                                              \
    extern type name##_cuda
#define LNT_KERNEL(c, name) (lnt_on_cuda(c) ? &name##_cuda : LNT_PICK(name))
#else
#define LNT_DECLARE_KERNEL(type, name) LNT_DECLARE_VARIANTS(type, name)
#define LNT_KERNEL(c, name) LNT_PICK(name)
#endif

/* Kernels of an operator take the whole call. */
typedef linnet_status lnt_kernel(const lnt_call *k);
#define LNT_DECLARE_OP(op)                                                                                                         \
    LNT_DECLARE_KERNEL(lnt_kernel, lnt_##op##_forward);                                                                            \
    LNT_DECLARE_KERNEL(lnt_kernel, lnt_##op##_backward)
/* static forward and backward of an operator's file, which run the kernel of this process's variant. */
#define LNT_DEFINE_OP(op)                                                                                                          \
    static linnet_status op##_forward(const lnt_call *k) { return LNT_KERNEL(k->c, lnt_##op##_forward)(k); }                       \
    static linnet_status op##_backward(const lnt_call *k)                                                                          \
    {                                                                                                                              \
        return k->d_out[0].data ? LNT_KERNEL(k->c, lnt_##op##_backward)(k) : lnt_zero_gradients(k);                                \
    }

/* Kernels of a pair take both calls. */
typedef linnet_status lnt_pair_kernel(const lnt_call *first, const lnt_call *second);
#define LNT_DECLARE_PAIR(pair)                                                                                                     \
    LNT_DECLARE_KERNEL(lnt_pair_kernel, lnt_##pair##_forward);                                                                     \
    LNT_DECLARE_KERNEL(lnt_pair_kernel, lnt_##pair##_backward)

LNT_DECLARE_OP(activation);
LNT_DECLARE_OP(add);
LNT_DECLARE_OP(bounded_decay);
LNT_DECLARE_OP(circular);
LNT_DECLARE_OP(clamp);
LNT_DECLARE_OP(columns);
LNT_DECLARE_OP(decay_bounds);
LNT_DECLARE_OP(decay_gate);
LNT_DECLARE_OP(decay_window);
LNT_DECLARE_OP(dpfp);
LNT_DECLARE_OP(embedding);
LNT_DECLARE_OP(from_last);
LNT_DECLARE_OP(gamma_cap);
LNT_DECLARE_OP(gated_rmsnorm);
LNT_DECLARE_OP(glu);
LNT_DECLARE_OP(head_dot);
LNT_DECLARE_OP(hedgehog);
LNT_DECLARE_OP(l2norm);
LNT_DECLARE_OP(layernorm);
LNT_DECLARE_OP(lerp);
LNT_DECLARE_OP(mul);
LNT_DECLARE_OP(place_features);
LNT_DECLARE_OP(quadratic);
LNT_DECLARE_OP(repeat_heads);
LNT_DECLARE_OP(rmsnorm);
LNT_DECLARE_OP(rotary);
LNT_DECLARE_OP(short_conv);
LNT_DECLARE_OP(softmax);
LNT_DECLARE_OP(sumnorm);
LNT_DECLARE_OP(token_shift);
LNT_DECLARE_PAIR(sum_rmsnorm);

/* Nothing came in: input gradients that are not accumulated become zero. */
linnet_status lnt_zero_gradients(const lnt_call *k);

/* Sums over tokens (gradients of norms, biases, gates) run over at most 64 fixed blocks of rows, each into its own row of the workspace, and
 * the blocks are added in order: the same bits for any number of threads. */
int64_t lnt_sum_block_rows(int64_t rows);
int64_t lnt_sum_blocks(int64_t rows);
/* On a GPU: at most LNT_CUDA_SUM_BLOCKS (four for each multiprocessor of an H200, which all of them are resident on), no fewer than 8 rows each. */
enum { LNT_CUDA_SUM_BLOCKS = 512 };
int64_t lnt_cuda_sum_blocks(int64_t rows);
/* Bytes of workspace for `columns` sums over `rows` rows on the shape's device. */
size_t lnt_sum_bytes(const lnt_shape *s, int64_t rows, int64_t columns);

/* ---- pieces of products ------------------------------------------------------------------------------------------------------- */

/* y[r,n] = sum_k x[r,k] w[n,k] (+ y when add): R <= 8 rows of x against a streamed w. y(r,n) is y[r*y_rs + n*y_cs]. x is float32 [R,K] packed. */
typedef struct {
    int R;
    int64_t N, K;
    const float *x;
    const void *w;
    int64_t ldw;
    lnt_dtype w_type, y_type; /* w may be int8, */
    const float *w_scale;     /* [N] times what it says; NULL: as it is */
    void *y;
    int64_t y_rs, y_cs;
    float alpha;
    bool add;
} lnt_gemv_args;
typedef void lnt_gemv_kernel(const lnt_gemv_args *g, int64_t n0, int64_t n1);
LNT_DECLARE_VARIANTS(lnt_gemv_kernel, lnt_gemv);

/* dst[rows, cols] float32 from src[rows, ld] of type t, row r times scale[r] (NULL: as it is). */
typedef void lnt_widen_kernel(float *dst, const void *src, lnt_dtype t, int64_t rows, int64_t cols, int64_t ld, const float *scale);
LNT_DECLARE_VARIANTS(lnt_widen_kernel, lnt_widen);
/* dst[rows, ldd] of type t = (or +=) src[rows, cols]. */
typedef void lnt_narrow_kernel(void *dst, lnt_dtype t, int64_t ldd, const float *src, int64_t rows, int64_t cols, bool add);
LNT_DECLARE_VARIANTS(lnt_narrow_kernel, lnt_narrow);

/* x[rows, cols] += bias, and bias_grad += column sums of dy, in fixed blocks (work: lnt_sum_bytes). */
typedef void lnt_bias_add_kernel(lnt_ctx *c, const lnt_tensor *x, const float *bias);
LNT_DECLARE_KERNEL(lnt_bias_add_kernel, lnt_bias_add);
typedef void lnt_column_sums_kernel(lnt_ctx *c, const lnt_tensor *dy, float *sums, float *work);
LNT_DECLARE_KERNEL(lnt_column_sums_kernel, lnt_column_sums);

/* One block of logits [rows, vocab] to losses and, when dz != NULL, to the gradient of scale * sum(loss) in dz's type (dz may be z itself). */
typedef struct {
    float *z;              /* [rows, vocab] */
    int64_t rows, vocab, ld; /* ld: elements from a row of z or dz to the next */
    const int32_t *target; /* [rows] */
    double softcap;
    float scale;
    float *loss;           /* [rows] */
    void *dz;              /* [rows, vocab], NULL: none */
    lnt_dtype dz_type;
} lnt_xent_args;
typedef void lnt_xent_kernel(lnt_ctx *c, const lnt_xent_args *a);
LNT_DECLARE_KERNEL(lnt_xent_kernel, lnt_xent);
/* z = cap tanh(z / cap); and dz = dy (1 - (y / cap)^2) in dz's type. */
typedef void lnt_softcap_kernel(lnt_ctx *c, float *z, int64_t n, double cap);
LNT_DECLARE_KERNEL(lnt_softcap_kernel, lnt_softcap);
typedef void lnt_softcap_back_kernel(lnt_ctx *c, void *dz, lnt_dtype t, const float *dy, const float *y, int64_t n, double cap);
LNT_DECLARE_KERNEL(lnt_softcap_back_kernel, lnt_softcap_back);

/* ---- optimizer (ops/optimizer.h has the equations) ------------------------------------------------------------------------------- */

/* One piece of a parameter: a float32 master w, with its working copy or without; or no master, and the weights themselves in `work`, rounded by the
 * word of element first + i of the stream. Moments in bf16 are rounded by such a word of theirs, m by its lower half and v by the upper. */
typedef struct {
    int64_t n, first;
    float *w, *g;
    void *m, *v;
    lnt_dtype kept;                /* type of m and v */
    lnt_bf16 *work;
    float scale, b1, b2, one_b1, one_b2;
    float rate, root, epsilon;     /* lr / (1-b1^t), (1-b2^t)^-1/2 */
    float shrink;                  /* lr weight_decay, or 0 */
    bool zero;                     /* g becomes zero */
    uint64_t seed, stream, moment_stream;
} lnt_adamw_args;
typedef void lnt_adamw_kernel(const lnt_adamw_args *a);
LNT_DECLARE_VARIANTS(lnt_adamw_kernel, lnt_adamw);
typedef double lnt_square_sum_kernel(const float *x, int64_t n);
LNT_DECLARE_VARIANTS(lnt_square_sum_kernel, lnt_square_sum);

/* bf16 from float32 by 16 random bits: the bits below are cut off after the addition. Numbers that are not finite keep their kind. */
LNT_HOST_DEVICE static inline lnt_bf16 lnt_round_bits(uint32_t x, uint32_t word)
{
    if ((x & 0x7f800000u) == 0x7f800000u) return (lnt_bf16)(x >> 16 | (x & 0xffffu ? 0x40u : 0u));
    return (lnt_bf16)((x + (word >> 16)) >> 16);
}

#ifdef LINNET_CUDA
struct lnt_optimizer;
void lnt_optimizer_add_losses_cuda(struct lnt_optimizer *o, const float *loss, int64_t n);
void lnt_optimizer_norm_cuda(struct lnt_optimizer *o, double clip);
void lnt_optimizer_update_cuda(struct lnt_optimizer *o, const lnt_adamw_args *common);
#endif

#endif

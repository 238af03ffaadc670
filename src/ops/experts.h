#ifndef LNT_OPS_EXPERTS_H
#define LNT_OPS_EXPERTS_H

#include "ops/kernels.h"

/* Which experts a token goes to (lnt_route). */
typedef struct {
    int64_t k;         /* experts of a token */
    bool sigmoid;      /* scores by a sigmoid each, not by a softmax over all */
    bool renormalise;  /* the chosen scores sum to 1 */
    double scale;      /* of the weights */
    double balance;    /* of the gradient that evens the experts' loads out */
} lnt_route_attr;

enum { LNT_EXPERTS_MOST = 4096, LNT_EXPERTS_TOKEN_MOST = 64 };

/* Rows of a call, expert by expert: entry i is token[i]'s row of work; those of expert e are first[e] .. first[e+1]-1. slot [T, k]: a token's
 * entries in the order of the experts, -1 behind the last. */
typedef struct {
    int64_t tokens, experts, k, entries;
    int32_t *first, *token, *slot;
    float *weight; /* of an entry */
    int32_t *tile; /* on a GPU, of every tile of LNT_EXPERT_TILE rows of an expert: that expert (-1: no such tile), its first entry */
} lnt_expert_rows;
enum { LNT_EXPERT_TILE = 64 };
/* Tiles that there are at most. */
static inline int64_t lnt_expert_tiles(const lnt_expert_rows *r)
{
    return r->tokens * r->k / LNT_EXPERT_TILE + (r->experts < r->tokens * r->k ? r->experts : r->tokens * r->k);
}

/* dst[i] = src[token[i]], rows of `cols` elements; dst of the type of src. */
typedef void lnt_expert_gather_kernel(lnt_ctx *c, const lnt_expert_rows *r, const lnt_tensor *src, void *dst);
LNT_DECLARE_KERNEL(lnt_expert_gather_kernel, lnt_expert_gather);
/* dst[t] = (or +=) sum over the token's entries i, in order, of weight[i] src[i] (weighted: else of src[i]); src float32. */
typedef void lnt_expert_combine_kernel(lnt_ctx *c, const lnt_expert_rows *r, const float *src, const lnt_tensor *dst, bool weighted, bool add);
LNT_DECLARE_KERNEL(lnt_expert_combine_kernel, lnt_expert_combine);
/* dot[i] = a[i].b[i], then a[i] and b[i] times weight[i]; rows of `cols` elements of one type. */
typedef void lnt_expert_weigh_kernel(lnt_ctx *c, const lnt_expert_rows *r, void *a, void *b, lnt_dtype type, int64_t cols, float *dot);
LNT_DECLARE_KERNEL(lnt_expert_weigh_kernel, lnt_expert_weigh);

/* A product of every expert's entries with its own matrix W_e [out, in], or into its gradient; x [entries, in], dy [entries, out]:
 *   through   to [entries, out] = x W_e^T        back   to [entries, in] = (or +=) dy W_e        weights   to_e [out, in] += dy^T x, float32 */
enum { LNT_EXPERT_THROUGH, LNT_EXPERT_BACK, LNT_EXPERT_WEIGHTS };
typedef struct {
    int kind;
    int64_t in, out;
    const void *x, *dy, *w;
    void *to;
    lnt_dtype ab, type; /* of x, dy, w; of to */
    bool add;
} lnt_expert_product;

#ifdef LINNET_CUDA
/* On a GPU `entries` is the most that there may be; those behind first[E] are nobody's. */
linnet_status lnt_route_forward_cuda(const lnt_call *k);
linnet_status lnt_route_backward_cuda(const lnt_call *k);
void lnt_expert_sort_cuda(lnt_ctx *c, const float *w, lnt_expert_rows *r);
void lnt_expert_product_cuda(lnt_ctx *c, const lnt_expert_rows *r, const lnt_expert_product *p);
/* d[token, e] += dot of that entry. */
void lnt_expert_dots_cuda(lnt_ctx *c, const lnt_expert_rows *r, const float *dot, float *d);
#endif

#endif

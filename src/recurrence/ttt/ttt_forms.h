/* The products of ttt_cpu.c on AMX tiles: what a layer's matrices are in bf16 (simd/mm.h), each packed once for all the products that read it.
 * Weights and their gradients are packed by the updates that change them. Only ttt_work.h includes this. */
#ifndef LNT_TTT_FORMS_H
#define LNT_TTT_FORMS_H

#include "recurrence/chunk/chunk.h"
#include "recurrence/ttt/ttt.h"

#if defined(__AMX_BF16__)
#define ENGINE (&LNT_V(lnt_mm_bf16_tiles))

/* Bf16 calls whose products are whole tiles, or nearly. */
static inline bool ttt_is_tiled(const lnt_ttt_args *a)
{
    return a->dtype == LINNET_BF16 && a->mini_batch >= 8 && a->D % 64 == 0 && (lnt_ttt_layers(a) == 1 || a->F % 64 == 0);
}

/* Rows of a span: as many whole mini-batches as share the weights' forms. These forms cost most of an update, and a product over 16 rows as much as
 * one over 32; what a mini-batch has to take of those before it grows with the span (docs/performance/ttt.md). */
static inline int64_t ttt_span(const lnt_ttt_args *a)
{
    const int64_t m = a->mini_batch, rows = lnt_ttt_layers(a) == 1 ? 32 : 64;
    return m % 16 || m > rows ? m : rows;
}

/* Rows of a span: inputs of keys and of queries, u, gradients of the upper layer's outputs, u times step sizes, A, its gradient, gradients of z of
 * queries and of keys, what u of the layer below is made of; others, for one product. */
enum { TTT_X, TTT_Y, TTT_U, TTT_RAW, TTT_LU, TTT_A, TTT_DA, TTT_DZ, TTT_DZ_KEYS, TTT_BELOW, TTT_OTHER, TTT_ROOMS };
/* What a layer's weights get: of queries, of keys, of u of the layer below. */
enum { TTT_WRITES = 3 };
enum { TTT_ALL = LNT_LEFT | LNT_LEFT_T | LNT_RIGHT | LNT_RIGHT_T };

typedef struct {
    lnt_operand W, dW, x, y, u, A, from[TTT_WRITES], by[TTT_WRITES]; /* dW += from^T by */
    void *W_left, *W_right, *W_turned, *dW_left, *dW_right, *dW_turned, *room[TTT_ROOMS];
} ttt_forms;

static inline void ttt_forms_carve(lnt_carve *c, int64_t span, int64_t in, int64_t out, bool back, ttt_forms *f)
{
    const int rows = (int)span, widest = (int)(in > out ? in > span ? in : span : out > span ? out : span);
    void **const of_state[] = { &f->W_left, &f->W_right, &f->W_turned, &f->dW_left, &f->dW_right, &f->dW_turned };
    static const int form[] = { LNT_LEFT, LNT_RIGHT, LNT_RIGHT_T };
    for (int i = 0; i < (back ? 6 : 3); i++) *of_state[i] = lnt_carve_bytes(c, ENGINE->bytes((int)in, (int)out, form[i % 3]));
    for (int i = 0; i < TTT_ROOMS; i++) f->room[i] = lnt_carve_bytes(c, ENGINE->bytes(rows, widest, TTT_ALL));
}

/* Floats that the left form of weights takes. */
static inline int64_t ttt_kept(int64_t in, int64_t out) { return (int64_t)(ENGINE->bytes((int)in, (int)out, LNT_LEFT) / sizeof(float)); }

/* Rows in the forms asked for, in a room. */
static inline lnt_operand ttt_rows(const ttt_forms *f, int room, int forms, int64_t rows, int64_t cols, const float *x, int64_t ld)
{
    return ENGINE->prepare(forms, (int)rows, (int)cols, x, ld, f->room[room]);
}

/* A state at hand that stands for `sum`, dense as itself. */
static inline lnt_operand ttt_state_forms(int64_t in, int64_t out, const float *s, const float *sum, void *left, void *right)
{
    lnt_operand m = { .x = sum, .ld = out, .rows = (int)in, .cols = (int)out };
    ENGINE->extend(&m, LNT_LEFT, left);
    ENGINE->extend(&m, LNT_RIGHT, right);
    m.x = s;
    return m;
}

/* Weights that were put by as their left form. */
static inline lnt_operand ttt_kept_forms(const ttt_forms *f, int64_t in, int64_t out, const float *kept)
{
    lnt_operand m = { .rows = (int)in, .cols = (int)out, .left = { kept, (out + 31) / 32 * 32 } };
    ENGINE->extend(&m, LNT_RIGHT, f->W_right);
    ENGINE->extend(&m, LNT_RIGHT_T, f->W_turned);
    return m;
}

/* The transpose of what has been prepared. */
static inline lnt_operand ttt_turned(const lnt_operand *m)
{
    lnt_operand t = { .rows = m->cols, .cols = m->rows };
    t.left = m->left_t, t.left_t = m->left, t.right = m->right_t, t.right_t = m->right;
    return t;
}

/* C += A B of operands, either of them transposed; set: C = A B. */
static inline void ttt_add_product(const lnt_operand *a, bool a_t, const lnt_operand *b, bool b_t, float *c, int64_t ldc)
{
    ENGINE->multiply(LNT_MM_ADD, NULL, a, a_t, b, b_t, c, ldc);
}
static inline void ttt_set_product(const lnt_operand *a, const lnt_operand *b, bool b_t, float *c, int64_t ldc)
{
    ENGINE->multiply(LNT_MM_SET, NULL, a, false, b, b_t, c, ldc);
}
#endif

#endif

/* What a head of the decay core works with: engine, scratch of a thread, its rows as operands. Only decay_cpu.c and decay_tiles.h include this. */
#ifndef LNT_DECAY_WORK_H
#define LNT_DECAY_WORK_H

#include "recurrence/chunk/chunk_signed.h"
#include "recurrence/chunk/chunk_triangle.h"
#include "recurrence/chunk/chunk_vector.h"
#include "recurrence/chunk/chunk_walk.h"
#include "recurrence/decay/decay.h"
#include "recurrence/decay/decay_gates.h"
#include "recurrence/decay/decay_stable.h"

/* float32 serves every variant up to avx512; the amx variant has tiles, for bf16 tensors. */
#if defined(__AMX_BF16__)
#define ENGINE (&LNT_V(lnt_mm_bf16_tiles))
#define BLOCKS ((lnt_blocks){ ENGINE, 32 })
#else
#define ENGINE (&LNT_V(lnt_mm_f32))
#define BLOCKS ((lnt_blocks){ ENGINE, 16 })
#endif

/* Scratch of a thread. [C,K]: q k x dk; [C,V]: v o; [C,C]: P D; [C]: in = e^b, out = e^{b_n-b}, read = s e^b; with vector gates in and out are ones
 * and read is s. q pair_q P Y have one row more: a read-out before the write shifts them by one, and a block that is whole goes twice as fast. */
typedef struct {
    int C;
    bool rows, columns, early; /* gates of S's rows, of its columns; read-out before the write */
    bool stable, normalize;    /* mLSTM; a state z and a denominator */
    float *S, *z, *q, *k, *v, *o, *P, *D, *in, *out, *read;
    float end;   /* e^{b_n} */
    int64_t gated; /* rows that in, out, read, D and end were made for, when the gates are the same in every chunk; 0: none yet */
    void *q_forms, *k_forms, *v_forms, *P_forms, *S_forms;
    /* backward: dS [V,K]; states [chunks,V,K], zs [chunks,K]; dvt [V,C]; Y [C,C]; dden [C]; dq_sum dk_sum [len,K] when heads share q and k */
    float *dS, *dz, *states, *zs, *x, *dk, *dvt, *Y, *dden, *dq_sum, *dk_sum;
    lnt_gates gates;
    void *do_forms, *read_forms, *dS_forms, *Y_forms;
    lnt_operand state; /* S with its right form, renewed by every write (forward) */
    /* vector gates; otherwise qs ks vs dos are q k v o themselves */
    lnt_vector gk, gv;
    float *qs, *ks;            /* [C,K] s e^G.q, e^{G_n-G}.k */
    float *vs, *dos;           /* [C,V] the same with the columns' gates */
    float *pair_q, *pair_k, *pair_v; /* [C+1,K] [C,K] [C,V] what pairs add to dQ, dK, dV */
    float *last_k, *last_v;    /* [K] [V] rows and columns of <S',dS'> */
    float *grad_end;           /* [V,K] dS' times a chunk's mild decay, transposed */
    float *inside, *pair_o;    /* [C,max(K,V)] room; [C,V] what pairs add to o */
    void *ks_forms, *qs_forms, *vs_forms, *dos_forms, *S_turned;
    lnt_stable m; /* mLSTM */
    signed_sums turns; /* decays with a sign */
    /* gates of rows on tiles: [C rounded up to 16 and one,K] what reads and what writes states, in bf16, and forms of their own */
    bool tiled;
    /* gates of columns on tiles: [C rounded up to 16,V] the same of values and dO; S and dS are not transposed */
    bool lifted;
    lnt_bf16 *value_reads, *value_writes;
    bool direct; /* without gates of rows or columns: operands of the tensors' bf16, and states kept as right operands */
    lnt_bf16 *reads16, *writes16;
    float *sums, *shares; /* direct, where reads16 is [C,K]: [C,max(K,V)] a product that is added to another's rows, [2,C] factors of both */
    char *kept;        /* [chunks] right forms of states, transposed */
    void *dS_turned;
    float *strips[2]; /* [C+1,32] twice */
} scratch;

/* With tiles a chunk of 64: its two passes over the state cost more than the larger squares (T=2048, K=V=128, two threads: 4.6 ms forward against 5.2
 * to 7.9 at 32 and 5.6 at 128). Delta keeps the engine's 32: the solve grows with the square. */
static inline int default_chunk(const lnt_recur_args *a, bool backward)
{
    if (ENGINE->bf16) return 64;
    /* forward with gates of rows and a state that stays in L1, one block of pairs: no level between blocks (decay.md) */
    const bool block = !backward && LNT_VECTOR_ROWS == 16 && a->op->kind >= LNT_DECAY_ROWS && (int64_t)a->K * a->V <= 64 * 64;
    return block ? LNT_VECTOR_ROWS : ENGINE->chunk;
}

static inline void carve_vector(lnt_carve *c, const lnt_recur_args *a, bool backward, scratch *w)
{
    const lnt_mm_engine *e = ENGINE;
    int64_t K = a->K, V = a->V, C = w->C;
    if (w->rows) {
        w->gk = LNT_V(lnt_vector_carve)(c, e, w->C, a->K);
        w->qs = lnt_carve_floats(c, C * K);
        w->ks = lnt_carve_floats(c, C * K);
        w->qs_forms = lnt_carve_bytes(c, e->bytes(w->C, a->K, LNT_LEFT | LNT_RIGHT));
        w->ks_forms = lnt_carve_bytes(c, e->bytes(w->C, a->K, LNT_LEFT_T | LNT_RIGHT | LNT_RIGHT_T));
#if defined(__AMX_BF16__)
        w->tiled = !w->columns && lnt_vector_is_tiled(w->C, a->K);
        if (lnt_vector_is_tiled(w->C, a->K)) {
            w->reads16 = lnt_carve_bytes(c, (size_t)(w->C + 16) * (size_t)a->K * sizeof *w->reads16);
            w->writes16 = lnt_carve_bytes(c, (size_t)(w->C + 16) * (size_t)a->K * sizeof *w->writes16);
        }
#endif
    }
    if (w->columns) {
        w->gv = LNT_V(lnt_vector_carve)(c, e, w->C, a->V);
        w->vs = lnt_carve_floats(c, C * V);
        w->dos = lnt_carve_floats(c, C * V);
        w->vs_forms = lnt_carve_bytes(c, e->bytes(w->C, a->V, LNT_LEFT | LNT_LEFT_T | LNT_RIGHT));
        w->dos_forms = lnt_carve_bytes(c, e->bytes(w->C, a->V, LNT_LEFT | LNT_LEFT_T));
        w->pair_v = lnt_carve_floats(c, C * V);
        w->last_v = lnt_carve_floats(c, V);
        w->S_turned = lnt_carve_bytes(c, e->bytes(a->V, a->K, LNT_RIGHT_T | LNT_LEFT_T));
#if defined(__AMX_BF16__)
        w->lifted = lnt_vector_is_tiled(w->C, a->V) && (!w->rows || lnt_vector_is_tiled(w->C, a->K));
        if (w->lifted) {
            w->value_reads = lnt_carve_bytes(c, (size_t)(w->C + 16) * (size_t)a->V * sizeof *w->value_reads);
            w->value_writes = lnt_carve_bytes(c, (size_t)(w->C + 16) * (size_t)a->V * sizeof *w->value_writes);
        }
        if (w->lifted && !backward) w->strips[0] = lnt_carve_floats(c, w->C * 32);
#endif
    }
    if (!backward) return;
    w->pair_q = lnt_carve_floats(c, (C + 1) * K);
    w->pair_k = lnt_carve_floats(c, C * K);
    w->last_k = lnt_carve_floats(c, K);
    if (w->rows && !w->columns && !w->tiled) w->grad_end = lnt_carve_floats(c, K * V);
    w->inside = lnt_carve_floats(c, C * (K > V ? K : V));
    if (w->columns) w->pair_o = lnt_carve_floats(c, C * V);
}

/* A thread's scratch at base (NULL: only measure); returns its bytes. */
static inline size_t carve(const lnt_recur_args *a, bool backward, char *base, scratch *w)
{
    lnt_carve c = { base, 0 };
    const lnt_mm_engine *e = ENGINE;
    int64_t K = a->K, V = a->V, C = chunk_length(a, a->chunk ? a->chunk : default_chunk(a, backward)), longest = a->longest;
    int64_t states = longest > C ? (longest + C - 1) / C : 1;
    int n = (int)C, left = LNT_LEFT, left_t = LNT_LEFT_T, right = LNT_RIGHT, right_t = LNT_RIGHT_T;
    *w = (scratch){ .C = n,
                    .q = lnt_carve_floats(&c, (C + 1) * K),
                    .k = lnt_carve_floats(&c, C * K),
                    .v = lnt_carve_floats(&c, C * V),
                    .o = lnt_carve_floats(&c, C * V),
                    .P = lnt_carve_floats(&c, (C + 1) * C),
                    .D = lnt_carve_floats(&c, C * C),
                    .in = lnt_carve_floats(&c, C),
                    .out = lnt_carve_floats(&c, C),
                    .read = lnt_carve_floats(&c, C) };
    w->rows = a->op->kind >= LNT_DECAY_ROWS;
    w->columns = a->op->kind == LNT_DECAY_BOTH || a->op->kind == LNT_DECAY_COLUMNS;
    w->early = a->op->kind == LNT_DECAY_EARLY;
    w->stable = a->op->kind == LNT_DECAY_STABLE;
    w->normalize = a->normalize || w->stable;
    w->qs = w->q;
    w->ks = w->k;
    w->vs = w->v;
    w->dos = w->o;
    if (w->rows || w->columns) carve_vector(&c, a, backward, w);
    w->direct = e->prepare16 && !w->rows && !w->columns;
    if (w->direct) {
        w->reads16 = lnt_carve_bytes(&c, (size_t)(C * K) * sizeof *w->reads16);
        w->sums = lnt_carve_floats(&c, C * (K > V ? K : V));
        w->shares = lnt_carve_floats(&c, 2 * C);
    }
    if (w->stable) stable_carve(&c, C, K, states, backward, &w->m);
    if (a->has_sign) signed_carve(&c, C, backward, &w->turns);
    w->q_forms = lnt_carve_bytes(&c, e->bytes(n, a->K, left | right | (w->lifted ? left_t : 0)));
    w->k_forms = lnt_carve_bytes(&c, e->bytes(n, a->K, right_t | right | left_t));
    w->v_forms = lnt_carve_bytes(&c, e->bytes(n, a->V, left | left_t | right | right_t));
    w->P_forms = lnt_carve_bytes(&c, e->bytes(n, n, left | left_t));
    w->S_forms = lnt_carve_bytes(&c, backward ? e->bytes(a->V, a->K, right) : e->bytes(a->K, a->V, right));
    if (!backward) {
        w->S = lnt_carve_floats(&c, K * V);
        w->z = lnt_carve_floats(&c, K);
        return c.used;
    }
    w->dS = lnt_carve_floats(&c, K * V);
    w->dz = lnt_carve_floats(&c, K);
    w->x = lnt_carve_floats(&c, C * K);
    w->dk = lnt_carve_floats(&c, C * K);
    w->dvt = lnt_carve_floats(&c, V * C);
    w->Y = lnt_carve_floats(&c, (C + 1) * C);
    w->dden = lnt_carve_floats(&c, C);
    gates_carve(&c, C, &w->gates);
    const bool kept = w->tiled || w->lifted || w->direct;
    const int rows = w->lifted ? a->K : a->V, cols = w->lifted ? a->V : a->K; /* of a state */
    w->states = lnt_carve_floats(&c, (kept ? 1 : states) * K * V);
    if (kept) w->kept = lnt_carve_bytes(&c, (size_t)states * e->bytes(rows, cols, right));
    if (w->tiled || w->lifted) {
        w->dS_turned = lnt_carve_bytes(&c, e->bytes(rows, cols, right_t));
        for (int i = 0; i < 2; i++) w->strips[i] = lnt_carve_floats(&c, (C + 1) * 32);
    }
    w->zs = lnt_carve_floats(&c, states * K);
    w->do_forms = lnt_carve_bytes(&c, e->bytes(n, a->V, left | right | left_t));
    w->read_forms = lnt_carve_bytes(&c, e->bytes(n, a->K, right));
    w->dS_forms = lnt_carve_bytes(&c, e->bytes(rows, cols, left | right));
    w->Y_forms = lnt_carve_bytes(&c, e->bytes(n, n, left | left_t));
    if (a->Hq < a->Hv) {
        w->dq_sum = lnt_carve_floats(&c, longest * K);
        w->dk_sum = lnt_carve_floats(&c, longest * K);
    }
    return c.used;
}

/* Rows of q or k, of v or do, as operands, where the engine takes bf16. */
static inline lnt_operand of_keys(const lnt_head *x, lnt_rows c, const void *p, int forms, void *room)
{
    const int64_t stride = (int64_t)x->a->Hq * x->a->K;
    return ENGINE->prepare16(forms, c.n, x->a->K, (const lnt_bf16 *)p + c.first * stride + (int64_t)x->hq * x->a->K, stride, room);
}
static inline lnt_operand of_values(const lnt_head *x, lnt_rows c, const void *p, int forms, void *room)
{
    const int64_t stride = (int64_t)x->a->Hv * x->a->V;
    return ENGINE->prepare16(forms, c.n, x->a->V, (const lnt_bf16 *)p + c.first * stride + (int64_t)x->h * x->a->V, stride, room);
}

/* The same of rows of q or k times factors, rounded again. */
static inline lnt_operand of_scaled_keys(const lnt_head *x, lnt_rows c, const void *p, const float *f, lnt_bf16 *rows, int forms, void *room)
{
    const int64_t K = x->a->K, stride = (int64_t)x->a->Hq * K;
    const lnt_bf16 *from = (const lnt_bf16 *)p + c.first * stride + (int64_t)x->hq * K;
    for (int64_t i = 0; i < c.n; i++, from += stride) {
        lnt_bf16 *to = rows + i * K;
        int64_t j = 0;
        rows_awake(i);
        for (; j + LNT_VL <= K; j += LNT_VL) v_store_bf16(to + j, v_set(f[i]) * v_load_bf16(from + j));
        for (; j < K; j++) to[j] = lnt_f32_to_bf16(f[i] * lnt_bf16_to_f32(from[j]));
    }
    return ENGINE->prepare16(forms, c.n, x->a->K, rows, K, room);
}

/* Rows of q or k in the tensor, where that is in bf16. */
static inline const lnt_bf16 *key_rows(const lnt_head *x, lnt_rows c, const void *p)
{
    return (const lnt_bf16 *)p + (c.first * x->a->Hq + x->hq) * x->a->K;
}

static inline const float *bonus_of(const lnt_head *x) { return (const float *)x->a->bonus + (int64_t)x->h * x->a->K; }

/* The bonus: du += c_i q_i.k_i, c_i = s do_i.v_i on the diagonal of dA. */
static inline void bonus_gradient(const lnt_head *x, int64_t n, const scratch *w)
{
    const int64_t K = x->a->K;
    double *restrict du = (double *)x->a->workspace + x->index * K;
    for (int64_t i = 0; i < n; i++) {
        const float d = w->Y[i * (w->C + 1)], *restrict q = w->q + i * K, *restrict k = w->k + i * K;
        for (int64_t j = 0; j < K; j++) du[j] += d * q[j] * k[j];
    }
}

/* A state [K,V], or zeros, transposed. */
static inline void get_turned(const lnt_head *x, float *dst, const float *src)
{
    const lnt_recur_args *a = x->a;
    if (src)
        LNT_V(lnt_transpose)(a->K, a->V, src + x->index * a->K * a->V, a->V, dst, a->K);
    else
        get_state(x, dst, NULL, (int64_t)a->K * a->V);
}

#endif

/* The products of titans_cpu.c on AMX tiles.
 *
 * A span of whole mini-batches has the forms of the memory M and the momentum S that it begins with, and coefficients over all of its rows. Keys are
 * read as queries are, by the coefficients of the last row p before their mini-batch:
 *
 *   o_i = c_i q_i M + f_i q_i S + A u,  A = -G.(q_i K^T)        z_i = c_p k_i M + f_p k_i S + A_k u,  A_k = -G_p.(k_i K^T), rows to p
 *
 * so that states are updated, and packed, once a span. Going back both are alike, too, but for what u gets of z, which the mini-batches behind have
 * to make first.
 *
 * What keys read and write is what the chain of mini-batches goes on with, and going back dM, which du reads by the keys: keys are bf16 as they are
 * and never scaled (u and dz are), and M, dM and A_k are two numbers each, the second what the first loses, in those products. Scaled keys, M or dM,
 * rounded once, cost dk 1e-2 and more (docs/performance/ttt.md). Only titans_cpu.c includes this. */
#ifndef LNT_TITANS_TILED_H
#define LNT_TITANS_TILED_H

#include "recurrence/ttt/titans_work.h"

#if !defined(__AMX_BF16__)
#define TILES(CALL)
#else
#define TILES(CALL) CALL;

enum { TITANS_KEYS = LNT_LEFT | LNT_LEFT_T | LNT_RIGHT_T };

static inline const lnt_bf16 *tokens_of(const head *x, const void *p, int64_t t) { return (const lnt_bf16 *)p + (t * x->a->H + x->h) * x->D; }

/* Rows of a tensor from token t on, in a room. */
static inline lnt_operand tiled_rows(const head *x, int room, int forms, const void *p, int64_t t, int64_t n)
{
    return ENGINE->prepare16(forms, (int)n, (int)x->D, tokens_of(x, p, t), x->a->H * x->D, x->forms->room[room]);
}

/* Rows by factors, in room `room` of states 0 or 1. */
static inline lnt_operand tiled_scaled(const head *x, int state, int room, int form, float f, const float *scale, int64_t n, const float *rows)
{
    return ENGINE->prepare_scaled(form, f, scale, (int)n, (int)x->D, rows, x->D, x->forms[state].room[room]);
}

/* Forms of M and S as they are, and M's rest: left ones and that at `kept`, where they are put by, unless it is NULL. */
static inline void tiled_states(const head *x, float *kept)
{
    float *const states[] = { x->M, x->S };
    const int64_t one = ttt_kept(x->D, x->D);
    for (int i = 0; i < 2; i++)
        x->forms[i].W = ttt_state_forms(x->D, x->D, states[i], states[i], kept ? kept + i * one : x->forms[i].W_left, x->forms[i].W_right);
    for (int i = 0; i < 2 && !kept; i++) x->forms[i].W.left.p = NULL; /* nobody wants it */
    *x->rest = ENGINE->prepare_rest((int)x->D, (int)x->D, x->M, x->D, kept ? (void *)(kept + 2 * one) : x->rest_room);
}

static inline void tiled_gradients(const head *x)
{
    float *const states[] = { x->dM, x->dS };
    for (int i = 0; i < 2; i++) {
        ttt_forms *f = &x->forms[i];
        f->dW = ttt_state_forms(x->D, x->D, states[i], states[i], f->dW_left, f->dW_right);
        ENGINE->extend(&f->dW, LNT_RIGHT_T, f->dW_turned);
    }
    x->rest[1] = ENGINE->prepare_rest((int)x->D, (int)x->D, x->dM, x->D, x->rest_room);
}

/* Where the states behind the span will be put by, and those that were. */
static inline void tiled_leave_at(const head *x, float *p)
{
    for (int i = 0; i < 2; i++) x->forms[i].W.left.p = p + i * ttt_kept(x->D, x->D);
    x->rest->right.p = p + 2 * ttt_kept(x->D, x->D);
}
static inline void tiled_take_back(const head *x, const float *p)
{
    for (int i = 0; i < 2; i++) x->forms[i].W = ttt_kept_forms(&x->forms[i], x->D, x->D, p + i * ttt_kept(x->D, x->D));
    x->rest->right.p = p + 2 * ttt_kept(x->D, x->D);
}

/* z or du of keys by M or dM, two numbers. */
static inline void tiled_keys_by(const head *x, const lnt_operand *state, const lnt_operand *rest, float *out)
{
    const lnt_operand *k = &x->forms->x;
    ENGINE->multiply_row(NULL, 2, (lnt_operand[]){ *k, *k }, (lnt_operand[]){ *state, *rest }, out, x->D);
}

INLINE void tiled_losses(int64_t D, const head *x, int64_t t, int64_t i, int64_t end)
{
    for (int64_t n; i < end; i += n) {
        row_awake(i);
        n = ttt_losses(D, &x->norm, end - i, x->z + i * D, x->k + i * D, tokens_of(x, x->a->v, t + i), LINNET_BF16, x->a->H * D, x->hat + i * D,
                       x->inverse + i, x->u + i * D);
        for (int64_t r = i; r < i + n; r++) rows_of_next(&x->place, x->a->k, x->a->v, t + r);
    }
}

/* Keys in these forms. z = c z + f k S, of keys that have mini-batches before them; A_k u is added later. */
static inline void tiled_learn(const head *x, int64_t t, int64_t n, int forms)
{
    const lnt_ttt_args *a = x->a;
    const int64_t D = x->D, m = x->m, R = x->span;
    ttt_forms *f = x->forms;
    lnt_operand A_k[2] = { 0 };
    coefficients(x, t, n);
    rows_in(x->k, a->k, a->dtype, t, n, a->H, x->h, D);
    f->x = tiled_rows(x, TTT_X, forms, a->k, t, n);
    f->u = ENGINE->lay_out(LNT_RIGHT, (int)R, (int)D, x->u, D, f->room[TTT_U]);
    tiled_keys_by(x, &f->W, x->rest, x->z);
    if (n > m) {
        const lnt_operand later = ENGINE->view(&f->x, (int)m, (int)(n - m));
        ttt_set_product(&later, &f[1].W, false, x->QS + m * D, D);
        ttt_set_product(&f->x, &f->x, true, x->KK, R);
        parts_of_pairs(x, true, n, x->KK, x->A_k);
        A_k[0] = ttt_rows(f, TTT_OTHER, LNT_LEFT, n, n, x->A_k, R);
        for (int64_t i = 0; i < n; i++)
            V_EACH(j, c, n)
            {
                lnt_bf16 rounded[LNT_VL];
                v_store_bf16(rounded, ttt_get(x->A_k + i * R, j, c));
                ttt_put(x->A_k_rest + i * R, j, c, ttt_get(x->A_k + i * R, j, c) - v_load_bf16(rounded));
            }
        A_k[1] = ttt_rows(f, TTT_BELOW, LNT_LEFT, n, n, x->A_k_rest, R);
    }
    for (int64_t i = 0; i < n; i += m) {
        if (i) {
            lnt_operand A[2];
            for (int l = 0; l < 2; l++) A[l] = ENGINE->view(&A_k[l], (int)i, (int)m), A[l].cols = (int)i;
            ENGINE->multiply_row(NULL, 2, A, (lnt_operand[]){ f->u, f->u }, x->wide, D);
            for (int64_t r = 0; r < m; r++) {
                float *z = x->z + (i + r) * D;
                const float *KS = x->QS + (i + r) * D, *pairs = x->wide + r * D, kept = x->key_kept[i], lent = x->key_lent[i];
                light_row_awake(r);
                V_EACH(c, k, D) ttt_put(z, c, k, kept * ttt_get(z, c, k) + lent * ttt_get(KS, c, k) + ttt_get(pairs, c, k));
            }
        }
        TTT_OF_WIDTH(D, tiled_losses, x, t, i, i + m);
        ENGINE->append(&f->u, (int)(i + m));
    }
}

static inline void tiled_update(const head *x, int64_t n)
{
    ttt_forms *f = x->forms;
    const int64_t last = n - 1;
    const lnt_operand to_M = tiled_scaled(x, 0, TTT_LU, LNT_RIGHT, -1, x->M_part + last * x->span, n, x->u);
    const lnt_operand to_S = tiled_scaled(x, 1, TTT_LU, LNT_RIGHT, -1, x->S_part + last * x->span, n, x->u);
    ENGINE->update_mixed(x->kept[last], x->lent[last], x->S, 1, &f->x, &to_M, &f[0].W, x->rest);
    ENGINE->update_mixed(x->left[last], 0, NULL, 1, &f->x, &to_S, &f[1].W, NULL);
}

/* A, from queries in these forms. */
static inline void tiled_pairs(const head *x, int64_t t, int64_t n, int forms)
{
    ttt_forms *f = x->forms;
    f->y = tiled_rows(x, TTT_Y, forms, x->a->q, t, n);
    ttt_set_product(&f->y, &f->x, true, x->QK, x->span);
    parts_of_pairs(x, false, n, x->QK, x->A);
}

static inline void tiled_read(const head *x, int64_t t, int64_t n)
{
    const lnt_ttt_args *a = x->a;
    const int64_t D = x->D;
    ttt_forms *f = x->forms;
    const bool past = rows_past(a->o, LINNET_BF16, D);
    tiled_pairs(x, t, n, LNT_LEFT);
    const lnt_operand A = ttt_rows(f, TTT_A, LNT_LEFT, n, n, x->A, x->span);
    ttt_set_product(&f->y, &f[0].W, false, x->QM, D);
    ttt_set_product(&f->y, &f[1].W, false, x->QS, D);
    ttt_set_product(&A, &f->u, false, x->o, D);
    for (int64_t i = 0; i < n; i++) {
        const float *M = x->QM + i * D, *S = x->QS + i * D, *pairs = x->o + i * D, kept = x->kept[i], lent = x->lent[i];
        lnt_bf16 *o = (lnt_bf16 *)tokens_of(x, a->o, t + i);
        light_row_awake(i);
        rows_of_next(&x->place, a->q, NULL, t + i);
        for (int64_t c = 0; c < D; c += 32)
            ttt_put_line(o + c, past, kept * v_load(M + c) + lent * v_load(S + c) + v_load(pairs + c),
                         kept * v_load(M + c + 16) + lent * v_load(S + c + 16) + v_load(pairs + c + 16));
    }
}

static inline void tiled_forward(const head *x, int64_t t, int64_t n)
{
    tiled_learn(x, t, n, TITANS_KEYS);
    tiled_read(x, t, n);
    tiled_update(x, n);
}

/* ---- backward ---------------------------------------------------------------------------------------------------------------------------------- */

/* <M, dM>, <S, dM>, <S, dS> by the left forms of M and S. */
static inline void tiled_inner(const head *x, float sums[3])
{
    const lnt_bf16 *M = x->forms[0].W.left.p, *S = x->forms[1].W.left.p;
    vf sum[3] = { v_zero(), v_zero(), v_zero() };
    for (int64_t i = 0; i < square(x->a); i += LNT_VL) {
        const vf dM = v_load(x->dM + i), s = v_load_bf16(S + i);
        if (i % 1024 == 0) lnt_tiles_awake();
        sum[0] += v_load_bf16(M + i) * dM;
        sum[1] += s * dM;
        sum[2] += s * v_load(x->dS + i);
    }
    for (int i = 0; i < 3; i++) sums[i] = v_sum(sum[i]);
}

/* What u gets of the update, added to du, and the update's last coefficients of u. */
static inline void tiled_update_back(const head *x, int64_t n, float *dM_last, float *dS_last)
{
    const int64_t D = x->D, last = (n - 1) * x->span;
    ttt_forms *f = x->forms;
    tiled_keys_by(x, &f[0].dW, x->rest + 1, x->KM);
    ttt_set_product(&f->x, &f[1].dW, false, x->KS, D);
    for (int64_t i = 0; i < n; i++) {
        const float *M = x->KM + i * D, *S = x->KS + i * D, *u = x->u + i * D, of_M = x->M_part[last + i], of_S = x->S_part[last + i];
        float *du = x->du + i * D;
        vf dM = v_zero(), dS = v_zero();
        light_row_awake(i);
        V_EACH(c, k, D)
        {
            const vf by_M = ttt_get(M, c, k), by_S = ttt_get(S, c, k), by = ttt_get(u, c, k);
            dM += by_M * by;
            dS += by_S * by;
            ttt_put(du, c, k, ttt_get(du, c, k) - of_M * by_M - of_S * by_S);
        }
        dM_last[i] = -v_sum(dM), dS_last[i] = -v_sum(dS);
    }
}

INLINE void tiled_losses_back(int64_t D, const head *x, int64_t t, int64_t i, int64_t end)
{
    for (; i < end; i++) {
        row_awake(i);
        rows_of_next(&x->place, x->a->q, x->a->dout, t + i);
        ttt_loss_back(D, &x->norm, x->hat + i * D, x->inverse[i], x->k + i * D, tokens_of(x, x->a->v, t + i), LINNET_BF16, x->u + i * D,
                      x->du + i * D, x->work, x->dz + i * D, x->dk + i * D, x->dv + i * D);
    }
}

/* Through the losses, mini-batch by mini-batch, of which earlier ones have u in the z of later ones. */
static inline void tiled_learn_back(const head *x, int64_t t, int64_t n)
{
    const int64_t D = x->D, m = x->m;
    ttt_forms *f = x->forms;
    for (int64_t i = (n - 1) / m * m; i >= 0; i -= m) {
        TTT_OF_WIDTH(D, tiled_losses_back, x, t, i, i + m);
        if (!i) break;
        const lnt_operand A = ttt_rows(f, TTT_OTHER, LNT_LEFT_T, m, i, x->A_k + i * x->span, x->span);
        const lnt_operand d = ttt_rows(&f[1], TTT_DZ, LNT_RIGHT, m, D, x->dz + i * D, D);
        ttt_add_product(&A, true, &d, false, x->du, D);
    }
}

/* Rows i .. end-1 that have read M and S by kept and lent: from their cotangents times M^T and S^T to their own gradients, with what else these are
 * the sum of (y NULL: zeros), and to those of kept and lent. */
INLINE void tiled_rows_back(int64_t D, const head *x, int64_t i, int64_t end, const float *kept, const float *lent, const float *rows, const float *M,
                                const float *S, const float *x1, const float *x2, lnt_bf16 *to, float *dkept, float *dlent)
{
    const bool past = to && rows_past(to, LINNET_BF16, D);
    for (; i < end; i++) {
        const int64_t at = i * D;
        vf of_kept = v_zero(), of_lent = v_zero();
        light_row_awake(i);
        for (int64_t c = at; c < at + D; c += 32) {
            vf sum[2];
            for (int l = 0; l < 2; l++) {
                const int64_t o = c + l * LNT_VL;
                const vf by_M = v_load(M + o), by_S = v_load(S + o), row = v_load(rows + o);
                of_kept += by_M * row;
                of_lent += by_S * row;
                sum[l] = kept[i] * by_M + lent[i] * by_S;
                if (x1) sum[l] += v_load(x1 + o);
                if (x2) sum[l] += v_load(x2 + o);
            }
            if (to) ttt_put_line(to + i * x->a->H * D + c - at, past, sum[0], sum[1]);
        }
        dkept[i] = v_sum(of_kept), dlent[i] = v_sum(of_lent);
    }
}

/* The states take what queries and keys have for them, S first, which takes of M's. */
static inline void tiled_states_back(const head *x, int64_t n, const lnt_operand *dO)
{
    ttt_forms *f = x->forms;
    const int64_t last = n - 1;
    const lnt_operand to_S[] = { tiled_scaled(x, 1, TTT_OTHER, LNT_LEFT_T, 1, x->lent, n, x->q), f->x };
    const lnt_operand S_by[] = { *dO, tiled_scaled(x, 1, TTT_BELOW, LNT_RIGHT, 1, x->key_lent, n, x->dz) };
    ENGINE->update_mixed(x->left[last], x->lent[last], x->dM, n > x->m ? 2 : 1, to_S, S_by, &f[1].dW, NULL);
    const lnt_operand to_M[] = { tiled_scaled(x, 0, TTT_OTHER, LNT_LEFT_T, 1, x->kept, n, x->q), f->x };
    const lnt_operand M_by[] = { *dO, tiled_scaled(x, 0, TTT_BELOW, LNT_RIGHT, 1, x->key_kept, n, x->dz) };
    ENGINE->update_mixed(x->kept[last], 0, NULL, 2, to_M, M_by, &f[0].dW, x->rest + 1);
    for (int i = 0; i < 2; i++) ENGINE->extend(&f[i].dW, LNT_RIGHT_T, f[i].dW_turned);
}

/* dM, dS from behind a span become those in front of it. */
static inline void tiled_back(const head *x, int64_t t, int64_t n)
{
    const lnt_ttt_args *a = x->a;
    const int64_t D = x->D, m = x->m, R = x->span, last = (n - 1) * R;
    ttt_forms *f = x->forms;
    float dkept[LNT_TTT_LONGEST], dlent[LNT_TTT_LONGEST], of_keys[2][LNT_TTT_LONGEST], dM_last[LNT_TTT_LONGEST], dS_last[LNT_TTT_LONGEST], inner[3];
    tiled_learn(x, t, n, TTT_ALL);
    tiled_pairs(x, t, n, LNT_LEFT | LNT_RIGHT);
    rows_in(x->q, a->q, a->dtype, t, n, a->H, x->h, D);
    ENGINE->extend(&f->u, LNT_RIGHT_T, (char *)f->room[TTT_U] + ENGINE->bytes((int)R, (int)D, LNT_RIGHT));
    const lnt_operand dO = tiled_rows(x, TTT_RAW, LNT_LEFT | LNT_RIGHT, a->dout, t, n), A = ttt_rows(f, TTT_A, LNT_LEFT_T, n, n, x->A, R);
    ENGINE->multiply(LNT_MM_SET, NULL, &A, true, &dO, false, x->du, D);
    tiled_update_back(x, n, dM_last, dS_last);

    memset(x->dM_part, 0, (size_t)(n * R) * sizeof(float));
    ttt_set_product(&dO, &f->u, true, x->Y, R);
    parts_of_pairs_back(x, false, n, x->QK, x->Y);
    const lnt_operand Y = ttt_rows(f, TTT_DA, LNT_LEFT | LNT_LEFT_T, n, n, x->Y, R);
    const lnt_operand of_keys_by[] = { ttt_turned(&Y), tiled_scaled(x, 0, TTT_LU, LNT_LEFT, -1, x->M_part + last, n, x->u),
                                       tiled_scaled(x, 1, TTT_LU, LNT_LEFT, -1, x->S_part + last, n, x->u) };
    ENGINE->multiply_row(NULL, 3, of_keys_by, (lnt_operand[]){ f->y, ttt_turned(&f[0].dW), ttt_turned(&f[1].dW) }, x->dk, D);
    ttt_set_product(&dO, &f[0].W, true, x->QM, D);
    ttt_set_product(&dO, &f[1].W, true, x->QS, D);
    ttt_set_product(&Y, &f->x, false, x->dq, D);
    lnt_bf16 *dq = a->dq ? (lnt_bf16 *)tokens_of(x, a->dq, t) : NULL, *dk = a->dk ? (lnt_bf16 *)tokens_of(x, a->dk, t) : NULL;
    TTT_OF_WIDTH(D, tiled_rows_back, x, 0, n, x->kept, x->lent, x->q, x->QM, x->QS, x->dq, NULL, dq, dkept, dlent);

    tiled_learn_back(x, t, n);
    const lnt_operand dz = ttt_rows(f, TTT_DZ_KEYS, LNT_LEFT, n, D, x->dz, D);
    const bool before = n > m;
    ttt_set_product(&dz, &f[0].W, true, x->KM, D);
    if (before) {
        const lnt_operand later = ENGINE->view(&dz, (int)m, (int)(n - m));
        ttt_set_product(&later, &f[1].W, true, x->KS + m * D, D);
        ttt_set_product(&dz, &f->u, true, x->Y_k, R);
        parts_of_pairs_back(x, true, n, x->KK, x->Y_k);
        const lnt_operand Y_k = ttt_rows(&f[1], TTT_DA, LNT_LEFT | LNT_LEFT_T, n, n, x->Y_k, R);
        ENGINE->multiply_row(NULL, 2, (lnt_operand[]){ Y_k, ttt_turned(&Y_k) }, (lnt_operand[]){ f->x, f->x }, x->wide, D);
        TTT_OF_WIDTH(D, tiled_rows_back, x, m, n, x->key_kept, x->key_lent, x->k, x->KM, x->KS, x->dk, x->wide, dk, of_keys[0], of_keys[1]);
        for (int64_t i = m; i < n; i++) dkept[batch_of(&x->place, i) - 1] += of_keys[0][i], dlent[batch_of(&x->place, i) - 1] += of_keys[1][i];
    }
    TTT_OF_WIDTH(D, tiled_rows_back, x, 0, m, x->key_kept, x->key_lent, x->k, x->KM, x->KM, x->dk, before ? x->wide : NULL, dk, of_keys[0],
                 of_keys[1]);
    rows_out(a->dv, a->dtype, t, n, a->H, x->h, D, x->dv);
    tiled_inner(x, inner);
    dkept[n - 1] += inner[0], dlent[n - 1] += inner[1];
    tiled_states_back(x, n, &dO);
    coefficients_back(x, t, n, dkept, dlent, inner[2], dM_last, dS_last);
}
#endif

#endif

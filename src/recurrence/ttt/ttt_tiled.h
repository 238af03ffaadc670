/* The products of ttt_cpu.c on AMX tiles.
 *
 * A span of whole mini-batches has the weights' forms that it begins with. What its earlier mini-batches have written is a product of few rows: with
 * x, u the keys and gradients of rows before row i's mini-batch, and their step sizes in F,
 *
 *   z_i = x_i W + b + A_k u,  A_k = -F.(x_i x^T + 1)        h_i = u_i W^T + A_h x,  A_h = -F.(u_i u^T)
 *
 * and queries, which see their own mini-batch too, take all rows of the span by one A. So weights are updated, and packed, once a span.
 * Only ttt_cpu.c includes this. */
#ifndef LNT_TTT_TILED_H
#define LNT_TTT_TILED_H

#include "recurrence/ttt/ttt_work.h"

#if !defined(__AMX_BF16__)
#define TILES_INSTEAD(X, CALL)
#else
/* In a function: the call in place of what follows, where products go through tiles. */
#define TILES_INSTEAD(X, CALL) \
    if ((X)->tiled) {          \
        CALL;                  \
        return;                \
    }

/* Forms of x that keys want as they come. */
static inline int tiled_x_forms(const head *x, int l) { return LNT_LEFT | (x->span > x->m ? LNT_RIGHT_T | (l ? LNT_RIGHT : 0) : 0); }

/* Keys i .. end-1, all that the span has of their mini-batch: z = x W + b by that one's weights. */
static inline void tiled_keys(const head *x, int l, int64_t i, int64_t end)
{
    ttt_forms *f = &x->forms[l];
    const int64_t first = batch_of(&x->place, i), n = end - first, in = x->in[l], at = first * x->span;
    if (!first) f->x = ENGINE->lay_out(tiled_x_forms(x, l), (int)x->span, (int)in, x->x[l], in, f->room[TTT_X]);
    ENGINE->append(&f->x, (int)end);
    lnt_operand a[2] = { ENGINE->view(&f->x, (int)first, (int)n) }, b[2] = { f->W, f->u };
    if (first) {
        const lnt_operand before = ENGINE->view(&f->x, 0, (int)first);
        ttt_set_product(&a[0], &before, true, x->S_k[l] + at, x->span);
        steps_of_pairs(x, first, n, first, (float)x->a->bias, x->S_k[l] + at, x->A_k[l] + at);
        a[1] = ttt_rows(f, TTT_OTHER, LNT_LEFT, n, first, x->A_k[l] + at, x->span);
    }
    ENGINE->multiply_row(x->b[l], first ? 2 : 1, a, b, x->z[l] + first * x->out[l], x->out[l]);
}

/* h = u W^T of the upper layer's gradients. */
static inline void tiled_slopes(const head *x, int64_t i, int64_t end)
{
    ttt_forms *f = &x->forms[1];
    const int64_t first = batch_of(&x->place, i), n = end - first, D = x->D, F = x->in[1], at = first * x->span;
    lnt_operand a[2] = { ttt_rows(f, TTT_RAW, LNT_LEFT, n, D, x->raw[1] + first * D, D) }, b[2] = { ttt_turned(&f->W), f->x };
    if (first) {
        ttt_set_product(&a[0], &f->u, true, x->S_h + at, x->span);
        steps_of_pairs(x, first, n, first, 0, x->S_h + at, x->A_h + at);
        a[1] = ttt_rows(f, TTT_OTHER, LNT_LEFT, n, first, x->A_h + at, x->span);
    }
    ENGINE->multiply_row(NULL, first ? 2 : 1, a, b, x->h1 + first * F, F);
}

/* u has rows i .. end-1. */
static inline void tiled_u(const head *x, int l, int64_t i, int64_t end)
{
    ttt_forms *f = &x->forms[l];
    const int forms = LNT_RIGHT | (l && x->span > x->m ? LNT_RIGHT_T : 0);
    if (!batch_of(&x->place, i)) f->u = ENGINE->lay_out(forms, (int)x->span, (int)x->out[l], x->u[l], x->out[l], f->room[TTT_U]);
    ENGINE->append(&f->u, (int)end);
}

/* The state takes all rows by the last ones' step sizes, as factors of the narrower side. */
static inline void tiled_update(const head *x, int l, int64_t rows)
{
    ttt_forms *f = &x->forms[l];
    const int64_t in = x->in[l], out = x->out[l];
    lnt_operand from = f->x, by = f->u;
    if (in <= out) {
        from = ENGINE->prepare_scaled(LNT_LEFT_T, -1, x->last, (int)rows, (int)in, x->x[l], in, f->room[TTT_OTHER]);
    } else {
        last_steps(x, l, rows);
        by = ttt_rows(f, TTT_LU, LNT_RIGHT, rows, out, x->wide, out);
        ENGINE->extend(&from, LNT_LEFT_T, f->room[TTT_OTHER]);
    }
    ENGINE->update_sum(weights_of(x, x->a->layer[l].w, l), 1, &from, &by, &f->W);
    if (!x->a->bias) return;
    V_EACH(i, n, out)
    {
        vf sum = ttt_get(x->S_b[l], i, n);
        for (int64_t j = 0; j < rows; j++) sum -= x->last[j] * ttt_get(x->u[l] + j * out, i, n);
        ttt_put(x->S_b[l], i, n, sum);
    }
}

/* Forms of the weights as they are. */
static inline void tiled_weights(const head *x, int l)
{
    ttt_forms *f = &x->forms[l];
    f->W = ttt_state_forms(x->in[l], x->out[l], x->S_w[l], x->W[l], f->W_left, f->W_right);
    if (l) ENGINE->extend(&f->W, LNT_RIGHT_T, f->W_turned);
    if (!l && !x->back) f->W.left.p = NULL; /* nobody wants it */
}

static inline void tiled_gradients(const head *x, int l)
{
    ttt_forms *f = &x->forms[l];
    f->dW = ttt_state_forms(x->in[l], x->out[l], x->dW[l], x->dW[l], f->dW_left, f->dW_right);
    ENGINE->extend(&f->dW, LNT_RIGHT_T, f->dW_turned);
}

/* zq = y W + b + A u, y of the first layer the queries themselves, tokens from t on. */
static inline void tiled_read(const head *x, int l, int64_t t, int64_t p, int64_t rows)
{
    ttt_forms *f = &x->forms[l];
    const int64_t n = rows - p, in = x->in[l], out = x->out[l], R = x->span;
    float *S = x->S[l] + p * R, *A = x->A[l] + p * R;
    const int forms = x->back ? LNT_LEFT | LNT_RIGHT | LNT_LEFT_T : LNT_LEFT;
    f->y = l ? ttt_rows(f, TTT_Y, forms, n, in, x->y[l] + p * in, in)
             : ENGINE->prepare16(forms, (int)n, (int)in, (const lnt_bf16 *)x->a->q + (t * x->a->H + x->h) * in, x->a->H * in, f->room[TTT_Y]);
    ENGINE->extend(&f->x, x->back ? TTT_ALL : LNT_RIGHT_T, (char *)f->room[TTT_X] + ENGINE->bytes((int)R, (int)in, tiled_x_forms(x, l)));
    ttt_set_product(&f->y, &f->x, true, S, R);
    steps_of_pairs(x, p, n, rows, (float)x->a->bias, S, A);
    f->A = ttt_rows(f, TTT_A, x->back ? LNT_LEFT | LNT_LEFT_T : LNT_LEFT, n, rows, A, R);
    ENGINE->multiply_row(x->b[l], 2, (lnt_operand[]){ f->y, f->A }, (lnt_operand[]){ f->W, f->u }, x->zq[l] + p * out, out);
}

/* ---- backward ---------------------------------------------------------------------------------------------------------------------------------- */

/* Queries, from dz of zq. */
static inline void tiled_read_back(const head *x, int l, int64_t p, int64_t rows)
{
    ttt_forms *f = &x->forms[l];
    const int64_t n = rows - p, in = x->in[l], out = x->out[l], R = x->span;
    const float *dz = x->dz;
    ENGINE->multiply_row(x->db[l], 1, &f->x, &f->dW, x->wide, out); /* x dW + db, of the update */
    if (x->a->bias) ttt_add_rows(x->db[l], n, out, dz);
    last_steps_back(x, l, rows);
    const lnt_operand d = ttt_rows(f, TTT_DZ, LNT_LEFT | LNT_RIGHT, n, out, dz, out);
    ENGINE->extend(&f->u, LNT_RIGHT_T, (char *)f->room[TTT_U] + ENGINE->bytes((int)R, (int)out, LNT_RIGHT));
    ttt_add_product(&f->A, true, &d, false, x->du[l], out);
    ttt_set_product(&d, &f->u, true, x->dA, R);
    steps_of_pairs_back(x, false, p, n, rows, x->S[l] + p * R);
    const lnt_operand dA = ttt_rows(f, TTT_DA, LNT_LEFT | LNT_LEFT_T, n, rows, x->dA, R);
    ttt_set_product(&d, &f->W, true, x->dy, in);
    ttt_add_product(&dA, false, &f->x, false, x->dy, in);
    ttt_add_product(&dA, true, &f->y, false, x->dx[l], in);
    const lnt_operand steps = ENGINE->prepare_scaled(LNT_LEFT, -1, x->last, (int)rows, (int)out, x->u[l], out, f->room[TTT_LU]);
    ttt_add_product(&steps, false, &f->dW, true, x->dx[l], in);
    f->from[0] = f->y, f->by[0] = d;
}

/* Through h of keys i .. end-1, from the gradient of h in du of the lower layer: to du of the upper, of the mini-batches before too, and their dx. */
static inline void tiled_slopes_back(const head *x, int64_t i, int64_t end)
{
    ttt_forms *f = &x->forms[1];
    const int64_t before = batch_of(&x->place, i), n = end - i, D = x->D, F = x->in[1], R = x->span;
    const lnt_operand d = ttt_rows(f, TTT_BELOW, before ? LNT_LEFT | LNT_RIGHT : LNT_LEFT, n, F, x->du[0] + i * F, F);
    ttt_add_product(&d, false, &f->W, false, x->du[1] + i * D, D);
    if (!before) return;
    const lnt_operand keys = ENGINE->view(&f->x, 0, (int)before), u = ENGINE->view(&f->u, 0, (int)before);
    ttt_set_product(&d, &keys, true, x->dA, R);
    steps_of_pairs_back(x, true, i, n, before, x->S_h + i * R);
    const lnt_operand dA = ttt_rows(f, TTT_DA, LNT_LEFT | LNT_LEFT_T, n, before, x->dA, R);
    ttt_add_product(&dA, false, &u, false, x->du[1] + i * D, D);
    const lnt_operand raw = ttt_rows(f, TTT_RAW, LNT_RIGHT, n, D, x->raw[1] + i * D, D);
    ttt_add_product(&dA, true, &raw, false, x->du[1], D);
    const lnt_operand A = ttt_rows(f, TTT_OTHER, LNT_LEFT_T, n, before, x->A_h + i * R, R);
    ttt_add_product(&A, true, &d, false, x->dx[1], F);
}

/* Keys i .. end-1, from the gradient of z, which lies in its place: to dx, and to du and dx of the mini-batches before. */
static inline void tiled_keys_back(const head *x, int l, int64_t i, int64_t end)
{
    ttt_forms *f = &x->forms[l];
    const int64_t before = batch_of(&x->place, i), n = end - i, in = x->in[l], out = x->out[l], R = x->span;
    const lnt_operand d = ttt_rows(f, TTT_DZ_KEYS, before ? LNT_LEFT | LNT_RIGHT : LNT_LEFT, n, out, x->z[l] + i * out, out);
    ttt_add_product(&d, false, &f->W, true, x->dx[l] + i * in, in);
    if (!before) return;
    const lnt_operand keys = ENGINE->view(&f->x, 0, (int)before), u = ENGINE->view(&f->u, 0, (int)before);
    const lnt_operand A = ttt_rows(f, TTT_OTHER, LNT_LEFT_T, n, before, x->A_k[l] + i * R, R);
    ttt_add_product(&A, true, &d, false, x->du[l], out);
    ttt_set_product(&d, &u, true, x->dA, R);
    steps_of_pairs_back(x, true, i, n, before, x->S_k[l] + i * R);
    const lnt_operand dA = ttt_rows(f, TTT_DA, LNT_LEFT | LNT_LEFT_T, n, before, x->dA, R);
    ttt_add_product(&dA, false, &keys, false, x->dx[l] + i * in, in);
    const lnt_operand own = ttt_rows(f, TTT_OTHER, LNT_RIGHT, n, in, x->x[l] + i * in, in);
    ttt_add_product(&dA, true, &own, false, x->dx[l], in);
}

/* dW takes what queries, keys and u of the layer below have for it. */
static inline void tiled_writes(const head *x, int l, int64_t p, int64_t rows)
{
    ttt_forms *f = &x->forms[l];
    const int64_t n = rows - p, in = x->in[l], out = x->out[l];
    f->from[1] = p ? ttt_rows(f, TTT_OTHER, LNT_LEFT_T, n, in, x->x[l] + p * in, in) : f->x;
    f->by[1] = ttt_rows(f, TTT_DZ_KEYS, LNT_RIGHT, n, out, x->z[l] + p * out, out);
    if (l) {
        f->from[2] = ttt_rows(f, TTT_BELOW, LNT_LEFT_T, n, in, x->du[0] + p * in, in);
        f->by[2] = ttt_rows(f, TTT_RAW, LNT_RIGHT, n, out, x->raw[1] + p * out, out);
    }
    ENGINE->update_sum(NULL, l ? 3 : 2, f->from, f->by, &f->dW);
    ENGINE->extend(&f->dW, LNT_RIGHT_T, f->dW_turned);
}

/* The weights that a span begins with, in the engine's own precision and with their biases, at p: put by, where the ones behind them will be, taken
 * back. */
static inline int64_t tiled_kept(const head *x, int l) { return ttt_kept(x->in[l], x->out[l]); }
static inline int64_t tiled_both(const head *x, int l) { return tiled_kept(x, l) + (x->out[l] + 15) / 16 * 16; }

static inline void tiled_put_by(const head *x, float *p, bool there)
{
    for (int l = 0; l < x->layers; p += tiled_both(x, l++)) {
        if (!there) memcpy(p, x->forms[l].W_left, (size_t)tiled_kept(x, l) * sizeof *p);
        memcpy(p + tiled_kept(x, l), x->b[l], (size_t)x->out[l] * sizeof *p);
    }
}

static inline void tiled_leave_at(const head *x, float *p)
{
    for (int l = 0; l < x->layers; p += tiled_both(x, l++)) x->forms[l].W.left.p = p;
}

static inline void tiled_take_back(const head *x, const float *p)
{
    for (int l = 0; l < x->layers; p += tiled_both(x, l++)) {
        x->forms[l].W = ttt_kept_forms(&x->forms[l], x->in[l], x->out[l], p);
        memcpy(x->b[l], p + tiled_kept(x, l), (size_t)x->out[l] * sizeof *p);
    }
}
#endif

#endif

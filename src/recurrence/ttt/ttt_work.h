/* A head of ttt_cpu.c at work: what it holds, in which spans its rows go, and what both float32 and tiles (ttt_tiled.h) do to rows of step sizes. */
#ifndef LNT_TTT_WORK_H
#define LNT_TTT_WORK_H

#define LNT_ROWS_BETWEEN_TILES
#include "recurrence/ttt/ttt_forms.h"
#include "recurrence/ttt/ttt_rows.h"
#include "recurrence/ttt/ttt_spans.h"

enum { LAYERS = LNT_TTT_LAYERS };

/* A head at work. Rows of the span [span,..]: first those that the state had open. W, b: the weights that it begins with, the sums of those given
 * and of the state's S_w, S_b, which alone goes on from span to span: where spans are mini-batches, bits do not depend on where calls begin. */
typedef struct {
    TTT_HAS_PLACE;
    ttt_norm norm;
    int64_t in[LAYERS], out[LAYERS], weights;
    int layers;
    float *W[LAYERS], *b[LAYERS], *S_w[LAYERS], *S_b[LAYERS];
    float *x[LAYERS], *z[LAYERS], *u[LAYERS], *raw[LAYERS], *y[LAYERS], *zq[LAYERS], *S[LAYERS], *A[LAYERS];
    float *S_k[LAYERS], *A_k[LAYERS], *S_h, *A_h;                                  /* of keys with those of mini-batches before (ttt_tiled.h) */
    float *v, *F, *rate, *position, *last, *hat, *inverse, *h1, *slope, *slope_q; /* slope: gelu' of z_0, of keys and queries */
    float *wide, *turned;                                                          /* wide [span,widest], turned [3,span,widest] */
    float *dW[LAYERS], *db[LAYERS], *dx[LAYERS], *du[LAYERS], *dy, *dz, *bend, *dF, *dA, *dv, *dout, *work;
    float *dposition, *sum_w[LAYERS], *sum_b[LAYERS]; /* this piece's sums; norm has two more */
    float *starts, *inside;                          /* weights before each group of spans, and before each one of a group */
    int64_t group, kept;                             /* spans of a group; numbers of one in `inside` */
    bool back;
#if defined(__AMX_BF16__)
    ttt_forms *forms; /* [LAYERS] */
#endif
} head;

static inline int64_t numbers(const lnt_ttt_args *a)
{
    int64_t sum = 0;
    for (int l = 0; l < lnt_ttt_layers(a); l++) sum += (lnt_ttt_in(a, l) + 1) * lnt_ttt_out(a, l);
    return sum;
}

static inline int64_t carve(const lnt_ttt_args *a, bool back, float *p, head *x)
{
    const int64_t m = a->mini_batch, D = a->D, widest = a->F > D ? a->F : D;
    int64_t used = 0, R = m;
    *x = (head){ .a = a, .D = D, .m = m, .layers = lnt_ttt_layers(a), .weights = numbers(a), .kept = numbers(a), .back = back };
#if defined(__AMX_BF16__)
    x->tiled = ttt_is_tiled(a);
    if (x->tiled) R = ttt_span(a);
    for (int l = 0; l < x->layers && x->tiled; l++)
        x->kept = (l ? x->kept : 0) + ttt_kept(lnt_ttt_in(a, l), lnt_ttt_out(a, l)) + (lnt_ttt_out(a, l) + 15) / 16 * 16;
#endif
    x->span = R;
    const int64_t spans = R == m ? ttt_most(a) : a->longest / R + 3;
    x->group = ttt_group(spans, x->kept);
#define TAKE(FIELD, COUNT) ((FIELD) = p ? p + used : NULL, used += ((COUNT) + 15) / 16 * 16)
    for (int l = 0; l < x->layers; l++) {
        const int64_t in = x->in[l] = lnt_ttt_in(a, l), out = x->out[l] = lnt_ttt_out(a, l);
        TAKE(x->W[l], in * out), TAKE(x->b[l], out);
        int64_t off = 0; /* S_w begins elsewhere in its page than the weights that it is added to, or each load waits for a store (ttt.md) */
        if (p && (uintptr_t)a->layer[l].w % 64 == 0 && (uintptr_t)p % 64 == 0)
            off = (int64_t)(((uintptr_t)a->layer[l].w + 128 - (uintptr_t)(p + used)) % 4096 / sizeof *p);
        used += off, TAKE(x->S_w[l], in * out), used += 1024 - off, TAKE(x->S_b[l], out);
        TAKE(x->x[l], R * in), TAKE(x->y[l], R * in), TAKE(x->S[l], R * R), TAKE(x->A[l], R * R);
        TAKE(x->z[l], R * out), TAKE(x->u[l], R * out), TAKE(x->zq[l], R * out);
        if (l == x->layers - 1) TAKE(x->raw[l], R * out); /* u without its rates, of the last layer alone */
        if (R > m) TAKE(x->S_k[l], R * R), TAKE(x->A_k[l], R * R);
        if (back) TAKE(x->dW[l], in * out), TAKE(x->db[l], out), TAKE(x->dx[l], R * in), TAKE(x->du[l], R * out);
    }
    TAKE(x->v, R * D), TAKE(x->F, R * R), TAKE(x->rate, R), TAKE(x->position, m), TAKE(x->last, R), TAKE(x->hat, R * D), TAKE(x->inverse, R);
    TAKE(x->h1, R * a->F), TAKE(x->slope, R * a->F), TAKE(x->slope_q, R * a->F);
    TAKE(x->wide, R * widest), TAKE(x->turned, 3 * R * widest), TAKE(x->work, 2 * D);
    if (R > m && x->layers > 1) TAKE(x->S_h, R * R), TAKE(x->A_h, R * R);
    if (back) {
        TAKE(x->dy, R * widest), TAKE(x->dz, R * widest), TAKE(x->bend, R * a->F), TAKE(x->dF, R * R), TAKE(x->dA, R * R);
        TAKE(x->dv, R * D), TAKE(x->dout, R * D);
        TAKE(x->inside, x->group * x->kept), TAKE(x->starts, (spans / x->group + 1) * x->weights);
    }
#if defined(__AMX_BF16__)
    if (x->tiled) {
        ttt_forms none[LAYERS], *forms = none;
        lnt_carve c = { (char *)p, (size_t)used * sizeof *p };
        x->forms = lnt_carve_bytes(&c, sizeof none);
        if (p) forms = x->forms;
        for (int l = 0; l < x->layers; l++) ttt_forms_carve(&c, R, x->in[l], x->out[l], back, &forms[l]);
        used = (int64_t)(c.used / sizeof *p);
    }
#endif
#undef TAKE
    return used;
}

/* ---- weights and states of this head --------------------------------------------------------------------------------------------------------- */

static inline float *weights_of(const head *x, const void *p, int l) { return p ? (float *)(uintptr_t)p + x->h * x->in[l] * x->out[l] : NULL; }
static inline float *biases_of(const head *x, const void *p, int l) { return p ? (float *)(uintptr_t)p + x->h * x->out[l] : NULL; }
static inline float *state_at(const head *x, const void *p, int64_t count) { return ttt_state(x->a, p, x->n, x->h, count); }

/* ---- step sizes: F [rows,rows] has those of row j's gradient in what row i is read with, which is the last row's of j's mini-batch for all that
 * come behind it; `last` has these alone ------------------------------------------------------------------------------------------------------ */

/* wide = u times the last row's step sizes, with the sign of an update. */
static inline void last_steps(const head *x, int l, int64_t rows)
{
    const int64_t out = x->out[l];
    for (int64_t j = 0; j < rows; j++) V_EACH(i, n, out) ttt_put(x->wide + j * out, i, n, -x->last[j] * ttt_get(x->u[l] + j * out, i, n));
}

/* What the update by x gives: from x dW + db in `wide` to du and the last row's dF. */
static inline void last_steps_back(const head *x, int l, int64_t rows)
{
    const int64_t out = x->out[l];
    for (int64_t j = 0; j < rows; j++) {
        row_awake(j);
        x->dF[last_of(&x->place, j, rows) * x->span + j] -= ttt_dot(out, x->wide + j * out, x->u[l] + j * out);
        ttt_add(out, -x->last[j], x->wide + j * out, x->du[l] + j * out);
    }
}

/* A = -F.S, with `one` added to S, n rows from p on and columns to `cols`. */
static inline void steps_of_pairs(const head *x, int64_t p, int64_t n, int64_t cols, float one, float *S, float *A)
{
    for (int64_t i = 0; i < n; i++)
        V_EACH(j, k, cols)
        {
            const vf s = ttt_get(S + i * x->span, j, k) + one;
            ttt_put(S + i * x->span, j, k, s);
            ttt_put(A + i * x->span, j, k, -s * ttt_get(x->F + (p + i) * x->span, j, k));
        }
}

/* From dA of the same to dF and the gradient of S, in dA. Of keys: rows of the mini-batches before a row's own alone. */
static inline void steps_of_pairs_back(const head *x, bool keys, int64_t p, int64_t n, int64_t cols, const float *S)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = i * x->span, at = (p + i) * x->span, lower = keys ? batch_of(&x->place, p + i) : p + i + 1;
        row_awake(i);
        V_EACH(j, c, lower)
        {
            const vf d = -ttt_get(x->dA + row, j, c);
            ttt_put(x->dF + at, j, c, ttt_get(x->dF + at, j, c) + d * ttt_get(S + row, j, c));
            ttt_put(x->dA + row, j, c, d * ttt_get(x->F + at, j, c));
        }
        if (lower < cols) memset(x->dA + row + lower, 0, (size_t)(cols - lower) * sizeof(float));
    }
}

#endif

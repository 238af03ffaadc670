/* A head of titans_cpu.c at work: what it holds, and what both float32 and tiles (titans_tiled.h) do to its coefficients. */
#ifndef LNT_TITANS_WORK_H
#define LNT_TITANS_WORK_H

#define LNT_ROWS_BETWEEN_TILES
#include "recurrence/ttt/ttt_forms.h"
#include "recurrence/ttt/ttt_rows.h"
#include "recurrence/ttt/ttt_spans.h"

/* A head at work. Of the rows of a span from one on, which it calls 0: kept[i] of M at their start is left behind row i, lent[i] of S comes to M,
 * left[i] of S is left; row j's gradient is in S behind row i with S_part[i,j] and in M with M_part[i,j]. */
typedef struct {
    TTT_HAS_PLACE;
    ttt_norm norm;
    float *M, *S, *start; /* [D,D]; start: the memory that gradients are taken at, of spans that are mini-batches */
    float *q, *k, *v, *z, *u, *hat, *inverse, *o, *QM, *QS, *QK, *A, *turned, *wide, *work; /* rows */
    float *theta, *keep, *eta, *kept, *lent, *left, *M_part, *S_part;
    float *key_kept, *key_lent, *KK, *A_k, *A_k_rest; /* of keys with those of mini-batches before (titans_tiled.h) */
    float *dM, *dS, *dstart, *KM, *KS, *du, *dq, *dk, *dv, *dz, *dM_part, *Y, *Y_k;
    float *sum, *starts, *inside; /* states before each group of spans, and before each one of a group */
    int64_t group, kept_numbers;  /* spans of a group; numbers of one in `inside` */
#if defined(__AMX_BF16__)
    ttt_forms *forms;  /* [2]: of M, whose rooms for rows come first, and of S */
    lnt_operand *rest; /* [2]: what M and dM lose when they are rounded */
    void *rest_room;
#endif
} head;

static inline int64_t square(const lnt_ttt_args *a) { return (int64_t)a->D * a->D; }

static inline int64_t carve(const lnt_ttt_args *a, bool back, float *p, head *x)
{
    const int64_t m = a->mini_batch, D = a->D, d2 = square(a);
    int64_t used = 0, R = m;
    *x = (head){ .a = a, .D = D, .m = m, .kept_numbers = 2 * d2 };
#if defined(__AMX_BF16__)
    x->tiled = ttt_is_tiled(a);
    if (x->tiled) R = ttt_span(a), x->kept_numbers = 3 * ttt_kept(D, D);
#endif
    x->span = R;
    const int64_t spans = R == m ? ttt_most(a) : a->longest / R + 3, before = R > m ? R * R : 0;
    x->group = ttt_group(spans, x->kept_numbers);
    const struct {
        float **at;
        int64_t count;
    } parts[] = {
        { &x->M, d2 }, { &x->inverse, R }, { &x->S, d2 }, { &x->start, d2 }, { &x->q, R * D }, { &x->k, R * D }, { &x->v, R * D },
        { &x->z, R * D }, { &x->u, R * D }, { &x->hat, R * D }, { &x->o, R * D }, { &x->QM, R * D }, { &x->QS, R * D }, { &x->QK, R * R },
        { &x->A, R * R }, { &x->wide, R * D }, { &x->work, 2 * D }, { &x->theta, R }, { &x->keep, R }, { &x->eta, R }, { &x->kept, R },
        { &x->lent, R }, { &x->left, R }, { &x->M_part, R * R }, { &x->S_part, R * R }, { &x->key_kept, R }, { &x->key_lent, R },
        { &x->KK, before }, { &x->A_k, before }, { &x->A_k_rest, before }, { &x->turned, 3 * R * D },
    };
    const struct {
        float **at;
        int64_t count;
    } more[] = {
        { &x->dM, d2 }, { &x->Y, R * R }, { &x->dS, d2 }, { &x->dstart, d2 }, { &x->KM, R * D }, { &x->KS, R * D }, { &x->du, R * D },
        { &x->dq, R * D }, { &x->dk, R * D }, { &x->dv, R * D }, { &x->dz, R * D }, { &x->dM_part, R * R }, { &x->Y_k, before },
        { &x->inside, x->group * x->kept_numbers }, { &x->starts, (spans / x->group + 1) * 2 * d2 },
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].at = p ? p + used : NULL;
        used += (parts[i].count + 15) / 16 * 16;
    }
    for (size_t i = 0; back && i < sizeof more / sizeof *more; i++) {
        *more[i].at = p ? p + used : NULL;
        used += (more[i].count + 15) / 16 * 16;
    }
#if defined(__AMX_BF16__)
    if (x->tiled) {
        ttt_forms none[2], *forms = none;
        lnt_carve c = { (char *)p, (size_t)used * sizeof *p };
        x->forms = lnt_carve_bytes(&c, sizeof none);
        x->rest = lnt_carve_bytes(&c, 2 * sizeof *x->rest);
        x->rest_room = lnt_carve_bytes(&c, ENGINE->bytes((int)D, (int)D, LNT_RIGHT));
        if (p) forms = x->forms;
        for (int i = 0; i < 2; i++) ttt_forms_carve(&c, R, D, D, back, &forms[i]);
        used = (int64_t)(c.used / sizeof *p);
    }
#endif
    return used;
}

/* ---- coefficients ------------------------------------------------------------------------------------------------------------------------------ */

/* Of n rows, tokens t on; keys are read with those of the last row of the mini-batch before theirs. */
static inline void coefficients(const head *x, int64_t t, int64_t n)
{
    const lnt_ttt_args *a = x->a;
    vi lane;
    for (int l = 0; l < LNT_VL; l++) lane[l] = l;
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = (t + i) * a->H + x->h, before = batch_of(&x->place, i);
        const float theta = x->theta[i] = ((const float *)a->theta)[row], keep = x->keep[i] = 1 - ((const float *)a->alpha)[row];
        const float eta = x->eta[i] = ((const float *)a->eta)[row];
        light_row_awake(i);
        x->key_kept[i] = before ? x->kept[before - 1] : 1;
        x->key_lent[i] = before ? x->lent[before - 1] : 0;
        x->kept[i] = keep * (i ? x->kept[i - 1] : 1);
        x->left[i] = eta * (i ? x->left[i - 1] : 1);
        x->lent[i] = keep * (i ? x->lent[i - 1] : 0) + x->left[i];
        float *S = x->S_part + i * x->span, *M = x->M_part + i * x->span;
        V_EACH(j, c, n)
        {
            const vf s = v_select(lane == (int32_t)(i - j), v_set(theta), i ? eta * ttt_get(S - x->span, j, c) : v_zero());
            ttt_put(S, j, c, s);
            ttt_put(M, j, c, (i ? keep * ttt_get(M - x->span, j, c) : v_zero()) + s);
        }
    }
}

/* Gradients of the coefficients, the recurrences that made them in reverse. kept, lent, left: of the rows' own; M_back, S_back [n]: of the last row's
 * M_part and S_part by the update, and spent. */
static inline void coefficients_back(const head *x, int64_t t, int64_t n, const float *dkept, const float *dlent, float dleft_last, float *M_back,
                                     float *S_back)
{
    const lnt_ttt_args *a = x->a;
    float kept = 0, lent = 0, left = 0, now[LNT_TTT_LONGEST]; /* what comes from the row behind */
    for (int64_t i = n - 1; i >= 0; i--) {
        const int64_t row = (t + i) * a->H + x->h;
        const float keep = x->keep[i], eta = x->eta[i];
        const float gl = dlent[i] + lent, gm = (i == n - 1 ? dleft_last : 0) + left + gl, gk = dkept[i] + kept;
        const float *M = x->M_part + (i - 1) * x->span, *S = x->S_part + (i - 1) * x->span, *dM = x->dM_part + i * x->span;
        vf of_keep = v_zero(), of_eta = v_zero();
        light_row_awake(i);
        V_EACH(j, c, i + 1)
        {
            const vf gM = ttt_get(dM, j, c) + ttt_get(M_back, j, c), gS = ttt_get(S_back, j, c) + gM;
            ttt_put(now, j, c, gS);
            ttt_put(M_back, j, c, keep * gM);
            ttt_put(S_back, j, c, eta * gS);
            if (!i) continue; /* no row before; beyond the diagonal that has zeros */
            of_keep += gM * ttt_get(M, j, c);
            of_eta += gS * ttt_get(S, j, c);
        }
        const float dkeep = v_sum(of_keep) + (i ? gl * x->lent[i - 1] + gk * x->kept[i - 1] : gk);
        const float deta = v_sum(of_eta) + (i ? gm * x->left[i - 1] : gm);
        lent = keep * gl, left = eta * gm, kept = keep * gk;
        if (a->dtheta) ((float *)a->dtheta)[row] = now[i];
        if (a->dalpha) ((float *)a->dalpha)[row] = -dkeep;
        if (a->deta) ((float *)a->deta)[row] = deta;
    }
}

/* ---- pairs of a row that reads and one that has written: of queries the rows up to their own, of keys those of the mini-batches before --------- */

static inline int64_t pairs_of(const head *x, bool keys, int64_t i) { return keys ? batch_of(&x->place, i) : i + 1; }
static inline int64_t parts_of(const head *x, bool keys, int64_t i) { return (keys ? batch_of(&x->place, i) - 1 : i) * x->span; }

/* A = -M_part.S, n rows. */
static inline void parts_of_pairs(const head *x, bool keys, int64_t n, const float *S, float *A)
{
    for (int64_t i = 0; i < n; i++, S += x->span, A += x->span) {
        const int64_t lower = pairs_of(x, keys, i);
        light_row_awake(i);
        V_EACH(j, c, lower) ttt_put(A, j, c, -ttt_get(x->M_part + parts_of(x, keys, i), j, c) * ttt_get(S, j, c));
        memset(A + lower, 0, (size_t)(n - lower) * sizeof *A);
    }
}

/* From dA to the gradient of S in its place; dM_part is added to. */
static inline void parts_of_pairs_back(const head *x, bool keys, int64_t n, const float *S, float *dA)
{
    for (int64_t i = 0; i < n; i++, S += x->span, dA += x->span) {
        const int64_t lower = pairs_of(x, keys, i);
        float *dM = x->dM_part + parts_of(x, keys, i);
        light_row_awake(i);
        V_EACH(j, c, lower)
        {
            const vf d = -ttt_get(dA, j, c);
            ttt_put(dM, j, c, ttt_get(dM, j, c) + d * ttt_get(S, j, c));
            ttt_put(dA, j, c, d * ttt_get(x->M_part + parts_of(x, keys, i), j, c));
        }
        memset(dA + lower, 0, (size_t)(n - lower) * sizeof *dA);
    }
}

#endif

/* The slstm core on the CPU. A token's product y R is all the work there is, and no token can begin before the one ahead of it has ended: so
 * sequences go side by side, GROUP of them, and a row of R that has been fetched serves them all. R is packed once a call into panels of
 * columns as wide as the registers hold; a call of few tokens, for which that would cost more than it brings, reads R as it lies. Both add y_k
 * R_kj in the order of k, with one rounding each, so that a row's bits depend neither on the way nor on the rows beside it.
 *
 * Backward is the same walk the other way with R transposed. What sequences add to dR is kept for BUFFER tokens and then added as one product. */
#include <omp.h>

#include "ops/rows.h"
#include "recurrence/chunk/chunk.h"
#include "recurrence/slstm/slstm.h"
#include "simd/mm.h"

enum {
    GROUP = 8,   /* sequences that walk together */
    ROWS = LNT_REGISTERS == 32 ? 8 : 4, /* of a product at once: two vectors of sums each, which with two of R fit the registers */
    PANEL = 2 * LNT_VL,
    PACKED = 4,  /* tokens of a call from which R is packed */
    BUFFER = 64, /* tokens whose part of dR waits */
    PARTS = 8,   /* dR's of a head that are made side by side and added in order */
    SMALL = 1 << 16, /* multiply-adds below which threads cost more than they bring */
};

static int64_t padded(int64_t columns) { return pieces(columns, PANEL) * PANEL; }
static int64_t groups_of(const lnt_slstm_args *a) { return pieces(a->sequences, GROUP); }
static bool packs(const lnt_slstm_args *a, bool back) { return back || a->tokens >= PACKED; }
static bool worth_threads(const lnt_slstm_args *a) { return (double)a->tokens * a->H * a->D * a->E > SMALL; }

/* ---- products with R -------------------------------------------------------------------------------------------------------------------- */

/* out_r = y_r R of `panels` panels [K,PANEL]. */
INLINE void panel_rows(int rows, int panels, int64_t K, const float *R, const float *const *y, float *const *out, int64_t at)
{
    vf sum[ROWS][8];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2 * panels; v++) sum[r][v] = v_zero();
    for (int64_t k = 0; k < K; k++, R += PANEL)
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2 * panels; v++)
                sum[r][v] = v_fma(v_set(y[r][k]), v_load(R + v / 2 * K * PANEL + v % 2 * LNT_VL), sum[r][v]);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2 * panels; v++) v_store(out[r] + at + v * LNT_VL, sum[r][v]);
}

/* out_r = y_r R, R [K,columns] in panels one behind the other; rows of out are padded. Few rows take several panels at once: sums wait for each
 * other otherwise. */
static void product(int rows, int64_t K, int64_t columns, const float *R, const float *const *y, float *const *out)
{
    const int64_t panels = pieces(columns, PANEL);
    int64_t p = 0;
    for (int64_t many = rows == 1 ? 4 : 2; rows < 4 && p + many <= panels; p += many)
        switch (rows) {
        case 1: panel_rows(1, 4, K, R + p * K * PANEL, y, out, p * PANEL); break;
        case 2: panel_rows(2, 2, K, R + p * K * PANEL, y, out, p * PANEL); break;
        default: panel_rows(3, 2, K, R + p * K * PANEL, y, out, p * PANEL);
        }
    for (; p < panels; p++)
        for (int r = 0, n; r < rows; r += n) {
            const float *panel = R + p * K * PANEL;
            n = rows - r >= ROWS ? ROWS : rows - r >= 4 ? 4 : rows - r;
            switch (n) {
            case 1: panel_rows(1, 1, K, panel, y + r, out + r, p * PANEL); break;
            case 2: panel_rows(2, 1, K, panel, y + r, out + r, p * PANEL); break;
            case 3: panel_rows(3, 1, K, panel, y + r, out + r, p * PANEL); break;
            case 4: panel_rows(4, 1, K, panel, y + r, out + r, p * PANEL); break;
            default: panel_rows(ROWS, 1, K, panel, y + r, out + r, p * PANEL);
            }
        }
}

/* The same of one row, R as it lies: four rows of it at a time. */
static void product_unpacked(int64_t K, int64_t columns, const float *R, const float *y, float *out)
{
    memset(out, 0, (size_t)columns * sizeof *out);
    for (int64_t k = 0; k < K; k += 4, R += 4 * columns) {
        const int64_t n = K - k < 4 ? K - k : 4;
        V_EACH(j, lanes, columns)
        {
            vf x = v_get(out, LINNET_F32, j, lanes);
            for (int64_t i = 0; i < n; i++) x = v_fma(v_set(y[k + i]), v_get(R + i * columns, LINNET_F32, j, lanes), x);
            v_put(out, LINNET_F32, j, lanes, x);
        }
    }
}

/* R [K,columns] of every head, or its transpose, into panels [H, columns / PANEL, K, PANEL]. */
static void pack(const lnt_slstm_args *a, bool transposed, int threads, float *out)
{
    const int64_t K = transposed ? a->E : a->D, columns = transposed ? a->D : a->E, panels = pieces(columns, PANEL);
#pragma omp parallel for num_threads(threads) schedule(static) if (worth_threads(a))
    for (int64_t p = 0; p < a->H * panels; p++) {
        const float *R = (const float *)a->R + p / panels * a->D * a->E;
        const int64_t at = p % panels * PANEL, n = columns - at < PANEL ? columns - at : PANEL;
        float *to = out + p * K * PANEL;
        if (n < PANEL) memset(to, 0, (size_t)(K * PANEL) * sizeof *to);
        if (transposed)
            LNT_V(lnt_transpose)((int)n, (int)K, R + at * K, K, to, PANEL);
        else
            for (int64_t k = 0; k < K; k++) memcpy(to + k * PANEL, R + k * columns + at, (size_t)n * sizeof *to);
    }
}

static int64_t packed_floats(const lnt_slstm_args *a, bool back) { return back ? a->H * a->E * padded(a->D) : a->H * a->D * padded(a->E); }

/* ---- a group of sequences --------------------------------------------------------------------------------------------------------------- */

typedef struct {
    const lnt_slstm_args *a;
    int64_t h, first, n, longest; /* head, first sequence, how many, tokens of the longest */
    const float *R;               /* packed, of the head; NULL: it was not */
    int rows;                     /* of sequences that have a token at hand: */
    int64_t sequence[GROUP], token[GROUP];
    float *in[GROUP], *out[GROUP]; /* rows of the product */
} group;

static group group_of(const lnt_slstm_args *a, int64_t h, int64_t g, const float *packed, int64_t head)
{
    group x = { .a = a, .h = h, .first = g * GROUP, .R = packed ? packed + h * head : NULL };
    x.n = a->sequences - x.first < GROUP ? a->sequences - x.first : GROUP;
    for (int64_t i = x.first; i < x.first + x.n; i++) {
        const int64_t length = a->cu_seqlens[i + 1] - a->cu_seqlens[i];
        x.longest = length > x.longest ? length : x.longest;
    }
    return x;
}

/* The sequences that have a token t. */
static void gather(group *x, int64_t t)
{
    x->rows = 0;
    for (int64_t i = x->first; i < x->first + x->n; i++)
        if (t < x->a->cu_seqlens[i + 1] - x->a->cu_seqlens[i]) {
            x->sequence[x->rows] = i;
            x->token[x->rows++] = x->a->cu_seqlens[i] + t;
        }
}

static int64_t state_at(const group *x, int64_t sequence) { return (sequence * x->a->H + x->h) * x->a->D; }
static int64_t row_at_token(const group *x, int64_t token) { return (token * x->a->H + x->h) * x->a->D; }

static void get_state(float *to, const void *from, int64_t at, int64_t n)
{
    if (from)
        memcpy(to, (const float *)from + at, (size_t)n * sizeof *to);
    else
        memset(to, 0, (size_t)n * sizeof *to);
}
static void put_state(void *to, int64_t at, int64_t n, const float *from)
{
    if (to) memcpy((float *)to + at, from, (size_t)n * sizeof *from);
}

/* ---- forward ---------------------------------------------------------------------------------------------------------------------------- */

/* [4 rows of GROUP][D] y c n m, [GROUP][padded E]. */
static int64_t forward_floats(const lnt_slstm_args *a) { return GROUP * (4 * (int64_t)a->D + padded(a->E)); }

/* Up to LNT_VL units from j on of one token; y c n m [D], pre [E] what y brought. One of decay and write is e^0; of the decay, what rounding m left
 * of it (1 + through), so that both belong to the m that is kept. */
INLINE void forward_units(const lnt_slstm_args *a, int64_t at, int64_t j, int64_t lanes, float *y, float *c, float *n, float *m, const float *pre)
{
    const int64_t D = a->D;
    const vf i = v_get(pre, LINNET_F32, j, lanes) + v_get(a->wi, LINNET_F32, at + j, lanes);
    const vf f = v_get(pre, LINNET_F32, D + j, lanes) + v_get(a->wf, LINNET_F32, at + j, lanes);
    const vf z = v_tanh(v_get(pre, LINNET_F32, 2 * D + j, lanes) + v_get(a->wz, a->dtype, at + j, lanes));
    const vf o = v_sigmoid(v_get(pre, LINNET_F32, 3 * D + j, lanes) + v_get(a->wo, a->dtype, at + j, lanes));
    const vf before = v_get(m, LINNET_F32, j, lanes), norm = v_get(n, LINNET_F32, j, lanes);
    const vf e = v_exp(-v_abs(f)), forget = v_min(f, v_zero()) - v_log1p_unit(e);
    const vi fresh = norm == v_zero(), taken = fresh | ~(forget + before > i); /* fresh: nothing was written yet */
    const vf next = v_select(taken, i, forget + before), through = forget + (before - next);
    const vf factor = v_exp(v_select(taken, through, i - next));
    const vf decay = v_select(fresh, v_zero(), v_select(taken, factor, 1.0f + through)), write = v_select(taken, v_set(1.0f), factor);
    const vf cell = decay * v_get(c, LINNET_F32, j, lanes) + write * z, sum = decay * norm + write, out = o * cell / sum;
    v_put(c, LINNET_F32, j, lanes, cell);
    v_put(n, LINNET_F32, j, lanes, sum);
    v_put(m, LINNET_F32, j, lanes, next);
    v_put(y, LINNET_F32, j, lanes, out);
    v_put(a->o, a->dtype, at + j, lanes, out);
    if (a->gates) {
        const vf kept[4] = { decay, write, z, o };
        for (int g = 0; g < 4; g++) v_put(a->gates, LINNET_F32, 4 * at + g * D + j, lanes, kept[g]);
    }
    if (a->cells) {
        const vf kept[4] = { v_select(f > v_zero(), e, v_set(1.0f)) / (1.0f + e), cell, sum, out };
        for (int g = 0; g < 4; g++) v_put(a->cells, LINNET_F32, 4 * at + g * D + j, lanes, kept[g]);
    }
}

static void forward_token(const group *x, int64_t token, float *y, float *c, float *n, float *m, const float *pre)
{
    const lnt_slstm_args *a = x->a;
    const int64_t at = row_at_token(x, token);
    int64_t j = 0;
    for (; j + LNT_VL <= a->D; j += LNT_VL) forward_units(a, at, j, LNT_VL, y, c, n, m, pre);
    if (j < a->D) forward_units(a, at, j, a->D - j, y, c, n, m, pre);
}

static void forward_group(group *x, float *scratch)
{
    const lnt_slstm_args *a = x->a;
    const int64_t D = a->D, E = a->E;
    float *y = scratch, *c = y + GROUP * D, *n = c + GROUP * D, *m = n + GROUP * D, *pre = m + GROUP * D;
    for (int64_t i = 0; i < x->n; i++) {
        const int64_t at = state_at(x, x->first + i);
        get_state(y + i * D, a->y0, at, D);
        get_state(c + i * D, a->c0, at, D);
        get_state(n + i * D, a->n0, at, D);
        get_state(m + i * D, a->m0, at, D);
    }
    for (int64_t t = 0; t < x->longest; t++) {
        gather(x, t);
        for (int r = 0; r < x->rows; r++) {
            x->in[r] = y + (x->sequence[r] - x->first) * D;
            x->out[r] = pre + r * padded(E);
        }
        if (x->R)
            product(x->rows, D, E, x->R, (const float *const *)x->in, x->out);
        else
            for (int r = 0; r < x->rows; r++) product_unpacked(D, E, (const float *)a->R + x->h * D * E, x->in[r], x->out[r]);
        for (int r = 0; r < x->rows; r++) {
            const int64_t i = (x->sequence[r] - x->first) * D;
            forward_token(x, x->token[r], y + i, c + i, n + i, m + i, x->out[r]);
        }
    }
    for (int64_t i = 0; i < x->n; i++) {
        const int64_t at = state_at(x, x->first + i);
        put_state(a->yT, at, D, y + i * D);
        put_state(a->cT, at, D, c + i * D);
        put_state(a->nT, at, D, n + i * D);
        put_state(a->mT, at, D, m + i * D);
    }
}

static void forward(const void *args, int threads)
{
    const lnt_slstm_args *a = args;
    float *packed = packs(a, false) ? a->workspace : NULL, *scratch = (float *)a->workspace + (packed ? packed_floats(a, false) : 0);
    if (packed) pack(a, false, threads, packed);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (worth_threads(a))
    for (int64_t p = 0; p < groups_of(a) * a->H; p++) {
        group x = group_of(a, p % a->H, p / a->H, packed, a->D * padded(a->E));
        forward_group(&x, scratch + omp_get_thread_num() * forward_floats(a));
    }
}

/* ---- backward --------------------------------------------------------------------------------------------------------------------------- */

static int64_t parts_of(const lnt_slstm_args *a) { return groups_of(a) < PARTS ? groups_of(a) : PARTS; }

/* [GROUP][D] dc dn dm, [GROUP][padded D] dy, [BUFFER][D] y, [BUFFER][E] gates. */
static int64_t backward_floats(const lnt_slstm_args *a)
{
    return GROUP * (3 * (int64_t)a->D + padded(a->D)) + BUFFER * ((int64_t)a->D + a->E);
}

typedef struct {
    float *dy, *dc, *dn, *dm, *y, *pre, *dR; /* dR NULL: not wanted */
    int64_t held;                            /* tokens in y and pre */
} reverse;

/* What stands before a token: c, n or y (row 1, 2 or 3 of its cells), of the token before or of the state; NULL: zeros. */
static const float *before(const group *x, int r, int row)
{
    const lnt_slstm_args *a = x->a;
    const void *const state[4] = { NULL, a->c0, a->n0, a->y0 };
    if (x->token[r] > a->cu_seqlens[x->sequence[r]]) return (const float *)a->cells + 4 * row_at_token(x, x->token[r] - 1) + row * (int64_t)a->D;
    return state[row] ? (const float *)state[row] + state_at(x, x->sequence[r]) : NULL;
}

static vf or_zero(const float *p, int64_t j, int64_t lanes) { return p ? v_get(p, LINNET_F32, j, lanes) : v_zero(); }

/* Up to LNT_VL units from j on of one token: the gradients of the gates into pre [E]; dc dn dm [D] become those before it. m's is kept as if the
 * states times e^m stood still, and goes where m came from. */
INLINE void backward_units(const lnt_slstm_args *a, int64_t at, int64_t j, int64_t lanes, const float *c0,
                           const float *n0, const float *dy, float *dc, float *dn, float *dm, float *pre)
{
    const int64_t D = a->D;
    const float *gates = (const float *)a->gates + 4 * at, *cells = (const float *)a->cells + 4 * at;
    const vf decay = v_get(gates, LINNET_F32, j, lanes), write = v_get(gates, LINNET_F32, D + j, lanes);
    const vf z = v_get(gates, LINNET_F32, 2 * D + j, lanes), o = v_get(gates, LINNET_F32, 3 * D + j, lanes);
    const vf c = v_get(cells, LINNET_F32, D + j, lanes), n = v_get(cells, LINNET_F32, 2 * D + j, lanes);
    const vf d = v_get(dy, LINNET_F32, j, lanes) + (a->dout ? v_get(a->dout, a->dtype, at + j, lanes) : v_zero());
    const vf ratio = c / n, share = d * o / n;
    const vf to_c = v_get(dc, LINNET_F32, j, lanes) + share, to_n = v_get(dn, LINNET_F32, j, lanes) - share * ratio;
    const vf to_m = v_get(dm, LINNET_F32, j, lanes);
    const vi taken = write == v_set(1.0f);
    const vf to_i = write * (to_c * z + to_n) + v_select(taken, to_m, v_zero());
    const vf to_f = decay * (to_c * or_zero(c0, j, lanes) + to_n * or_zero(n0, j, lanes)) + v_select(taken, v_zero(), to_m);
    v_put(dc, LINNET_F32, j, lanes, decay * to_c);
    v_put(dn, LINNET_F32, j, lanes, decay * to_n);
    v_put(dm, LINNET_F32, j, lanes, v_select(taken, v_zero(), to_m));
    const vf d_gate[4] = { to_i, to_f * v_get(cells, LINNET_F32, j, lanes), to_c * write * (1.0f - z * z), d * ratio * o * (1.0f - o) };
    for (int g = 0; g < 4; g++) v_put(pre, LINNET_F32, g * D + j, lanes, d_gate[g]);
    if (a->dwi) v_put(a->dwi, LINNET_F32, at + j, lanes, d_gate[0]);
    if (a->dwf) v_put(a->dwf, LINNET_F32, at + j, lanes, d_gate[1]);
    if (a->dwz) v_put(a->dwz, a->dtype, at + j, lanes, d_gate[2]);
    if (a->dwo) v_put(a->dwo, a->dtype, at + j, lanes, d_gate[3]);
}

static void backward_token(const group *x, int r, const float *dy, float *dc, float *dn, float *dm, float *pre)
{
    const lnt_slstm_args *a = x->a;
    const int64_t at = row_at_token(x, x->token[r]);
    const float *c0 = before(x, r, 1), *n0 = before(x, r, 2);
    int64_t j = 0;
    for (; j + LNT_VL <= a->D; j += LNT_VL) backward_units(a, at, j, LNT_VL, c0, n0, dy, dc, dn, dm, pre);
    if (j < a->D) backward_units(a, at, j, a->D - j, c0, n0, dy, dc, dn, dm, pre);
}

/* dR += y^T pre of the tokens held. */
static void flush(const lnt_slstm_args *a, reverse *w)
{
    const int D = a->D, E = a->E;
    if (w->dR && w->held) LNT_V(lnt_mm)(LNT_MM_ADD, D, E, (int)w->held, w->y, 1, D, w->pre, E, w->dR, E);
    w->held = 0;
}

/* Sign 1: the gradient of m behind the last token, from that of m itself: where it rises, states that stay what they are fall. -1: the other way,
 * at the first. */
static void move_m(const group *x, float sign, float *dm, const float *c, const float *dc, const float *n, const float *dn)
{
    V_EACH(j, lanes, x->a->D)
    {
        const vf moved = or_zero(c, j, lanes) * v_get(dc, LINNET_F32, j, lanes) + or_zero(n, j, lanes) * v_get(dn, LINNET_F32, j, lanes);
        v_put(dm, LINNET_F32, j, lanes, v_get(dm, LINNET_F32, j, lanes) - sign * moved);
    }
}

static void begin_row(const group *x, int64_t i, reverse *w)
{
    const lnt_slstm_args *a = x->a;
    const int64_t D = a->D, sequence = x->first + i, at = state_at(x, sequence), end = a->cu_seqlens[sequence + 1];
    const bool empty = end == a->cu_seqlens[sequence];
    const float *last = empty ? NULL : (const float *)a->cells + 4 * row_at_token(x, end - 1);
    get_state(w->dy + i * padded(D), a->dyT, at, D);
    get_state(w->dc + i * D, a->dcT, at, D);
    get_state(w->dn + i * D, a->dnT, at, D);
    get_state(w->dm + i * D, a->dmT, at, D);
    const float *c = last ? last + D : a->c0 ? (const float *)a->c0 + at : NULL, *n = last ? last + 2 * D : a->n0 ? (const float *)a->n0 + at : NULL;
    move_m(x, 1, w->dm + i * D, c, w->dc + i * D, n, w->dn + i * D);
}

static void end_row(const group *x, int64_t i, reverse *w)
{
    const lnt_slstm_args *a = x->a;
    const int64_t D = a->D, at = state_at(x, x->first + i);
    move_m(x, -1, w->dm + i * D, a->c0 ? (const float *)a->c0 + at : NULL, w->dc + i * D, a->n0 ? (const float *)a->n0 + at : NULL, w->dn + i * D);
    put_state(a->dy0, at, D, w->dy + i * padded(D));
    put_state(a->dc0, at, D, w->dc + i * D);
    put_state(a->dn0, at, D, w->dn + i * D);
    put_state(a->dm0, at, D, w->dm + i * D);
}

static void backward_group(group *x, reverse *w)
{
    const lnt_slstm_args *a = x->a;
    const int64_t D = a->D, E = a->E;
    for (int64_t i = 0; i < x->n; i++) begin_row(x, i, w);
    for (int64_t t = x->longest - 1; t >= 0; t--) {
        gather(x, t);
        if (w->held + x->rows > BUFFER) flush(a, w);
        for (int r = 0; r < x->rows; r++) {
            const int64_t i = x->sequence[r] - x->first;
            x->in[r] = w->pre + (w->held + r) * E;
            x->out[r] = w->dy + i * padded(D);
            backward_token(x, r, x->out[r], w->dc + i * D, w->dn + i * D, w->dm + i * D, x->in[r]);
            const float *y = before(x, r, 3);
            get_state(w->y + (w->held + r) * D, y, 0, D);
        }
        product(x->rows, E, D, x->R, (const float *const *)x->in, x->out);
        w->held += x->rows;
    }
    for (int64_t i = 0; i < x->n; i++) end_row(x, i, w);
}

static void backward_part(const lnt_slstm_args *a, int64_t h, int64_t part, const float *packed, float *scratch, float *dR)
{
    const int64_t D = a->D, groups = groups_of(a), parts = parts_of(a);
    reverse w = { .dy = scratch, .dR = dR };
    w.dc = w.dy + GROUP * padded(D);
    w.dn = w.dc + GROUP * D;
    w.dm = w.dn + GROUP * D;
    w.y = w.dm + GROUP * D;
    w.pre = w.y + BUFFER * D;
    if (dR) memset(dR, 0, (size_t)(D * a->E) * sizeof *dR);
    for (int64_t g = groups * part / parts; g < groups * (part + 1) / parts; g++) {
        group x = group_of(a, h, g, packed, a->E * padded(D));
        backward_group(&x, &w);
    }
    flush(a, &w);
}

/* dR of the parts behind the first. */
static int64_t waiting_floats(const lnt_slstm_args *a) { return parts_of(a) > 1 ? (parts_of(a) - 1) * a->H * a->D * a->E : 0; }

static void backward(const void *args, int threads)
{
    const lnt_slstm_args *a = args;
    const int64_t square = (int64_t)a->D * a->E, parts = parts_of(a);
    float *packed = a->workspace, *sums = packed + packed_floats(a, true), *scratch = sums + waiting_floats(a);
    pack(a, true, threads, packed);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (worth_threads(a))
    for (int64_t p = 0; p < parts * a->H; p++) {
        const int64_t h = p % a->H, part = p / a->H;
        float *dR = !a->dR ? NULL : part ? sums + (p - a->H) * square : (float *)a->dR + h * square; /* the first part's is the sum's place */
        backward_part(a, h, part, packed, scratch + omp_get_thread_num() * backward_floats(a), dR);
    }
    if (!a->dR) return;
#pragma omp parallel for num_threads(threads) schedule(static) if (worth_threads(a))
    for (int64_t h = 0; h < a->H; h++) {
        if (!parts) memset((float *)a->dR + h * square, 0, (size_t)square * sizeof(float));
        for (int64_t part = 1; part < parts; part++) {
            float *sum = (float *)a->dR + h * square;
            const float *more = sums + ((part - 1) * a->H + h) * square;
            V_EACH(j, lanes, square) v_out(sum, LINNET_F32, j, lanes, v_get(more, LINNET_F32, j, lanes), true);
        }
    }
}

/* ---- the implementations ---------------------------------------------------------------------------------------------------------------- */

static size_t workspace(const void *args, bool back, int threads)
{
    const lnt_slstm_args *a = args;
    const int64_t floats = (packs(a, back) ? packed_floats(a, back) : 0) + (back ? waiting_floats(a) : 0) +
                           threads * (back ? backward_floats(a) : forward_floats(a));
    return (size_t)floats * sizeof(float);
}

extern const lnt_recur_impl LNT_V(lnt_slstm_chunk), LNT_V(lnt_slstm_recurrent);
const lnt_recur_impl LNT_V(lnt_slstm_chunk) = { .name = LNT_V_NAME("chunk"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL,
                                               .workspace = workspace, .forward = forward, .backward = backward };
const lnt_recur_impl LNT_V(lnt_slstm_recurrent) = { .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,
                                                   .workspace = workspace, .forward = forward, .backward = backward };

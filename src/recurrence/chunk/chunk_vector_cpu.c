/* Vector gates in a chunk (chunk_vector.h). Two scales: inside a block of LNT_VECTOR_ROWS rows each pair's factor is made by one multiplication from
 * the pair of the row above (or below), in registers; between two neighbouring blocks of r, 2r, 4r ... rows the factor splits at their border,
 *
 *   F_ij = (F from the border through i) (F from behind j to the border)          i in the second, j in the first
 *
 * and pairs are products of rows scaled by either half, none of which exceeds 1 (operators.md#gates, whose sub-chunks are two levels of this). */
#include "recurrence/chunk/chunk_vector.h"
#define LNT_ROWS_BETWEEN_TILES
#include "recurrence/chunk/chunk_rows.h"

enum { ROWS = LNT_VECTOR_ROWS, GROUP = ROWS / 2 }; /* GROUP: rows whose sums are in registers at a time, for two readers */

static int levels_of(int C)
{
    int levels = 0;
    for (int h = ROWS; h < C; h *= 2) levels++;
    return levels;
}

lnt_vector LNT_V(lnt_vector_carve)(lnt_carve *c, const lnt_mm_engine *e, int C, int width)
{
    int64_t size = (int64_t)C * width;
    lnt_vector v = { .e = e, .C = C, .width = width };
    v.alpha = lnt_carve_floats(c, size);
    v.from_start = lnt_carve_floats(c, size);
    v.to_end = lnt_carve_floats(c, size);
    v.end = lnt_carve_floats(c, width);
    v.levels = lnt_carve_floats(c, levels_of(C) * size);
    v.x = lnt_carve_floats(c, size);
    v.y = lnt_carve_floats(c, size);
    v.turned = lnt_carve_floats(c, (int64_t)width * ROWS);
    v.left = lnt_carve_bytes(c, e->bytes(C, width > C ? width : C, LNT_LEFT | LNT_LEFT_T));
    v.right = lnt_carve_bytes(c, e->bytes(C, width, LNT_RIGHT | LNT_RIGHT_T));
#if defined(__AMX_BF16__)
    if (lnt_vector_is_tiled(C, width)) v.tiled = lnt_carve_bytes(c, LNT_V(lnt_vector_tiled_bytes)(width));
#endif
    return v;
}

/* ---- factors ------------------------------------------------------------------------------------------------------------------------- */

/* 0 below the normal numbers: subnormal factors would slow every product they meet. NaN stays. */
INLINE vf normal(vf x)
{
#if LNT_VL == 16
    __m512 y = (__m512)x;
    return (vf)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, _mm512_set1_ps(1.17549435e-38f), _CMP_NLT_UQ), y);
#else
    return v_select(x < v_set(1.17549435e-38f), v_zero(), x);
#endif
}

INLINE vf load(bool part, const float *p, int lanes) { return part ? v_load_n(p, lanes) : v_load(p); }
INLINE void store(bool part, float *p, vf x, int lanes)
{
    if (part)
        v_store_n(p, x, lanes);
    else
        v_store(p, x);
}

/* Columns whose chains of products run side by side: a step waits for the one before it, about 10 cycles. */
enum { CHAINS = 4 };

/* Rows first .. end-1 of `chains` vectors of columns: F from the row `first` through i. */
INLINE void products_down(int chains, bool part, int lanes, int first, int end, int64_t W, const float *alpha, float *y)
{
    vf x[CHAINS];
    UNROLL for (int k = 0; k < chains; k++) x[k] = v_set(1.0f);
    for (int64_t i = first; i < end; i++) {
        UNROLL for (int k = 0; k < chains; k++) {
            x[k] = normal(x[k] * load(part, alpha + i * W + k * LNT_VL, lanes));
            store(part, y + i * W + k * LNT_VL, x[k], lanes);
        }
    }
}

/* F from behind i through the row end-1. */
INLINE void products_up(int chains, bool part, int lanes, int first, int end, int64_t W, const float *alpha, float *y)
{
    vf x[CHAINS];
    UNROLL for (int k = 0; k < chains; k++) x[k] = v_set(1.0f);
    for (int64_t i = end - 1; i >= first; i--) {
        UNROLL for (int k = 0; k < chains; k++) {
            store(part, y + i * W + k * LNT_VL, x[k], lanes);
            x[k] = normal(x[k] * load(part, alpha + i * W + k * LNT_VL, lanes));
        }
    }
}

INLINE void load_columns(int chains, bool part, int lanes, const lnt_vector *v, int c, bool writers)
{
    int n = v->n;
    int64_t W = v->width;
    float *alpha = v->alpha + c, *level = v->levels + c;
    lnt_tiles_awake();
    products_up(chains, part, lanes, 0, n, W, alpha, v->to_end + c);
    if (writers) return;
    products_down(chains, part, lanes, 0, n, W, alpha, v->from_start + c);
    for (int h = ROWS; h < n; h *= 2, level += v->C * W)
        for (int r = 0; r + h < n; r += 2 * h) {
            products_up(chains, part, lanes, r, r + h, W, alpha, level);
            products_down(chains, part, lanes, r + h, r + 2 * h < n ? r + 2 * h : n, W, alpha, level);
        }
}

/* end += g, alpha = e^g in place of g. */
INLINE void load_row(int W, float *alpha, float *end)
{
    int c = 0;
    for (; c + LNT_VL <= W; c += LNT_VL) {
        vf x = v_load(alpha + c);
        v_store(alpha + c, v_exp(x));
        v_store(end + c, v_load(end + c) + x);
    }
    if (c == W) return;
    vf x = v_load_n(alpha + c, W - c);
    v_store_n(alpha + c, v_exp(x), W - c);
    v_store_n(end + c, v_load_n(end + c, W - c) + x, W - c);
}

void LNT_V(lnt_vector_load)(lnt_vector *v, int n, const float *g, int64_t stride, bool writers)
{
    int W = v->width, c = 0;
    v->n = n;
    memset(v->end, 0, (size_t)W * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        rows_awake(i);
        memcpy(v->alpha + i * W, g + i * stride, (size_t)W * sizeof *g);
    }
    for (int64_t i = 0; i < n; i++) {
        rows_awake(i);
        load_row(W, v->alpha + i * W, v->end);
    }
    for (; c + LNT_VL <= W; c += LNT_VL) v_store(v->end + c, normal(v_exp(v_load(v->end + c))));
    if (c < W) v_store_n(v->end + c, normal(v_exp(v_load_n(v->end + c, W - c))), W - c);
    for (c = 0; c + CHAINS * LNT_VL <= W; c += CHAINS * LNT_VL) load_columns(CHAINS, false, LNT_VL, v, c, writers);
    for (; c + LNT_VL <= W; c += LNT_VL) load_columns(1, false, LNT_VL, v, c, writers);
    if (c < W) load_columns(1, true, W - c, v, c, writers);
}

/* ---- inside a block --------------------------------------------------------------------------------------------------------------------- */

INLINE vi lane_numbers(void)
{
    vi lane;
    for (int l = 0; l < LNT_VL; l++) lane[l] = l;
    return lane;
}

/* The first `lanes` lanes of s times a. */
INLINE vf decay_first(vf s, int lanes, float a)
{
    if (lanes >= LNT_VL) return s * a;
#if LNT_VL == 16
    return (vf)_mm512_mask_mul_ps((__m512)s, (__mmask16)((1u << lanes) - 1u), (__m512)s, _mm512_set1_ps(a));
#else
    return v_select(lane_numbers() < lanes, s * a, s);
#endif
}

/* `rows` rows of A from row `first` of the vector of columns at hand, whose rows y lie transposed in t [width,ROWS]: t_c becomes F_ij y_jc, lane j,
 * of the row i last done. Lanes that are not written yet (j >= i) wait undecayed. */
INLINE void pair_rows(int readers, int first, int rows, int width, const float *alpha, const float *const x[], float *t, float f, float *const A[],
                      int64_t ld, int lanes)
{
    vf sum[2][GROUP];
    for (int r = 0; r < readers; r++)
        UNROLL for (int i = 0; i < GROUP; i++) sum[r][i] = v_zero();
    for (int c = 0; c < width; c++, t += ROWS) {
        vf s = v_load(t);
        UNROLL for (int i = 0; i < GROUP; i++) {
            if (i >= rows) break;
            if (first + i) s = decay_first(s, first + i, alpha[(int64_t)i * width + c]);
            for (int r = 0; r < readers; r++) sum[r][i] += x[r][(int64_t)i * width + c] * s;
        }
        v_store(t, s);
    }
    for (int r = 0; r < readers; r++)
        UNROLL for (int i = 0; i < GROUP; i++) {
            if (i >= rows) break;
            v_store_n(A[r] + i * ld, v_select(lane_numbers() <= first + i, f * sum[r][i], v_zero()), lanes);
        }
}

/* The triangle of a block of m <= ROWS rows. */
INLINE void pair_block(int readers, const lnt_vector *v, int m, const float *alpha, const float *const x[], const float *y, float f, float *const A[],
                       int64_t ld)
{
    int64_t W = v->width;
    if (m < ROWS) memset(v->turned, 0, (size_t)(W * ROWS) * sizeof(float));
    LNT_V(lnt_transpose)(m, v->width, y, W, v->turned, ROWS);
    for (int j = 0; j < m; j += LNT_VL) {
        for (int r = 0; r < readers; r++)
            for (int i = 0; i < j; i++) v_store_n(A[r] + i * ld + j, v_zero(), m - j < LNT_VL ? m - j : LNT_VL);
        for (int i = j; i < m; i += GROUP) {
            int rows = m - i < GROUP ? m - i : GROUP, lanes = m - j < LNT_VL ? m - j : LNT_VL;
            const float *const xs[2] = { x[0] + i * W, readers > 1 ? x[1] + i * W : NULL };
            float *const As[2] = { A[0] + i * ld + j, readers > 1 ? A[1] + i * ld + j : NULL };
            if (rows < GROUP)
                pair_rows(readers, i - j, rows, (int)W, alpha + i * W, xs, v->turned + j, f, As, ld, lanes);
            else if (i == j)
                pair_rows(readers, 0, GROUP, (int)W, alpha + i * W, xs, v->turned + j, f, As, ld, lanes);
            else
                pair_rows(readers, GROUP, GROUP, (int)W, alpha + i * W, xs, v->turned + j, f, As, ld, lanes);
        }
    }
}

/* out_i += sum_{j<i} A_ij F_ij . y_j for a vector of columns; what y_j has become by row i stays in registers. */
INLINE void read_columns(int readers, bool whole, int m, bool part, int lanes, int64_t W, const float *alpha, const float *const A[], int64_t ld,
                         const float *y, float *const out[])
{
    vf s[ROWS] = { v_zero() };
    UNROLL for (int i = 0; i < ROWS; i++) {
        if (!whole && i >= m) break;
        vf a = load(part, alpha + i * W, lanes), sum[2][2] = { { v_zero(), v_zero() }, { v_zero(), v_zero() } };
        UNROLL for (int j = 0; j < ROWS; j++) {
            if (j >= i) break;
            s[j] *= a;
            for (int r = 0; r < readers; r++) sum[r][j % 2] += A[r][i * ld + j] * s[j];
        }
        for (int r = 0; r < readers && i; r++) store(part, out[r] + i * W, load(part, out[r] + i * W, lanes) + (sum[r][0] + sum[r][1]), lanes);
        s[i] = load(part, y + i * W, lanes);
    }
}

/* out_j += sum_{i>j} A_ij F_ij . x_i, last row first. */
INLINE void write_columns(bool whole, int m, bool part, int lanes, int64_t W, const float *alpha, const float *A, int64_t ld, const float *x,
                          float *out)
{
    vf s[ROWS] = { v_zero() };
    UNROLL for (int back = 0; back < ROWS; back++) {
        int j = ROWS - 1 - back;
        if (!whole && j >= m) continue;
        vf a = j + 1 < m ? load(part, alpha + (j + 1) * W, lanes) : v_zero(), sum[2] = { v_zero(), v_zero() };
        UNROLL for (int i = ROWS - 1; i >= 0; i--) {
            if (i <= j) break;
            if (!whole && i >= m) continue;
            s[i] *= a;
            sum[i % 2] += A[i * ld + j] * s[i];
        }
        if (j + 1 < m) store(part, out + j * W, load(part, out + j * W, lanes) + (sum[0] + sum[1]), lanes);
        s[j] = load(part, x + j * W, lanes);
    }
}

static void read_block(int readers, int m, int width, const float *alpha, const float *const A[], int64_t ld, const float *y, float *const out[])
{
    for (int c = 0; c < width; c += LNT_VL) {
        float *const at[2] = { out[0] + c, readers > 1 ? out[1] + c : NULL };
        int lanes = width - c < LNT_VL ? width - c : LNT_VL;
        if (m < ROWS || lanes < LNT_VL) {
            if (readers > 1)
                read_columns(2, false, m, true, lanes, width, alpha + c, A, ld, y + c, at);
            else
                read_columns(1, false, m, true, lanes, width, alpha + c, A, ld, y + c, at);
        } else if (readers > 1) {
            read_columns(2, true, ROWS, false, LNT_VL, width, alpha + c, A, ld, y + c, at);
        } else {
            read_columns(1, true, ROWS, false, LNT_VL, width, alpha + c, A, ld, y + c, at);
        }
    }
}

static void write_block(int m, int width, const float *alpha, const float *A, int64_t ld, const float *x, float *out)
{
    for (int c = 0; c < width; c += LNT_VL) {
        int lanes = width - c < LNT_VL ? width - c : LNT_VL;
        if (m < ROWS || lanes < LNT_VL)
            write_columns(false, m, true, lanes, width, alpha + c, A, ld, x + c, out + c);
        else
            write_columns(true, ROWS, false, LNT_VL, width, alpha + c, A, ld, x + c, out + c);
    }
}

/* ---- between blocks, and all together ------------------------------------------------------------------------------------------------------ */

/* Two neighbours: rows u .. u+h-1 and the `low` rows from l = u+h, with their factors. */
typedef struct {
    int u, h, l, low;
    const float *level;
} neighbours;

/* The pair of blocks after p (p->h == 0: the first); false when there is none. */
static bool next_pair(const lnt_vector *v, int n, neighbours *p)
{
    if (!p->h) {
        *p = (neighbours){ .h = ROWS, .level = v->levels, .u = -2 * ROWS };
    }
    p->u += 2 * p->h;
    if (p->u + p->h >= n) {
        p->u = 0;
        p->h *= 2;
        p->level += (int64_t)v->C * v->width;
        if (p->h >= n) return false;
    }
    p->l = p->u + p->h;
    p->low = n - p->l < p->h ? n - p->l : p->h;
    return true;
}

void LNT_V(lnt_vector_pairs)(const lnt_vector *v, int n, float f, int readers, const float *const x[], const float *y, float *const A[], int64_t ld)
{
    int64_t W = v->width;
    for (int i = 0; i < n; i += ROWS) {
        int m = n - i < ROWS ? n - i : ROWS;
        const float *const xs[2] = { x[0] + i * W, readers > 1 ? x[1] + i * W : NULL };
        float *const As[2] = { A[0] + i * ld + i, readers > 1 ? A[1] + i * ld + i : NULL };
        lnt_tiles_awake();
        if (readers > 1)
            pair_block(2, v, m, v->alpha + i * W, xs, y + i * W, f, As, ld);
        else
            pair_block(1, v, m, v->alpha + i * W, xs, y + i * W, f, As, ld);
        for (int r = 0; r < readers; r++)
            for (int k = i; k < i + m && i + m < n; k++) memset(A[r] + k * ld + i + m, 0, (size_t)(n - i - m) * sizeof(float));
    }
    for (neighbours p = { 0 }; next_pair(v, n, &p);) {
        row_times(p.h * W, f, p.level + p.u * W, y + p.u * W, v->y);
        lnt_operand right = v->e->prepare(LNT_RIGHT_T, p.h, v->width, v->y, W, v->right);
        for (int r = 0; r < readers; r++) {
            row_times(p.low * W, 1.0f, p.level + p.l * W, x[r] + p.l * W, v->x);
            lnt_operand left = v->e->prepare(LNT_LEFT, p.low, v->width, v->x, W, v->left);
            v->e->multiply(LNT_MM_SET, NULL, &left, false, &right, true, A[r] + p.l * ld + p.u, ld);
        }
    }
}

void LNT_V(lnt_vector_readers)(const lnt_vector *v, int n, int readers, const float *const A[], int64_t ld, const float *y, float *const out[])
{
    int64_t W = v->width;
    for (int i = 0; i < n; i += ROWS) {
        const float *const As[2] = { A[0] + i * ld + i, readers > 1 ? A[1] + i * ld + i : NULL };
        float *const outs[2] = { out[0] + i * W, readers > 1 ? out[1] + i * W : NULL };
        lnt_tiles_awake();
        read_block(readers, n - i < ROWS ? n - i : ROWS, v->width, v->alpha + i * W, As, ld, y + i * W, outs);
    }
    for (neighbours p = { 0 }; next_pair(v, n, &p);) {
        row_times(p.h * W, 1.0f, p.level + p.u * W, y + p.u * W, v->y);
        lnt_operand right = v->e->prepare(LNT_RIGHT, p.h, v->width, v->y, W, v->right);
        for (int r = 0; r < readers; r++) {
            lnt_operand left = v->e->prepare(LNT_LEFT, p.low, p.h, A[r] + p.l * ld + p.u, ld, v->left);
            v->e->multiply(LNT_MM_SET, NULL, &left, false, &right, false, v->x, W);
            row_add_times(p.low * W, 1.0f, p.level + p.l * W, v->x, out[r] + p.l * W);
        }
    }
}

void LNT_V(lnt_vector_writers)(const lnt_vector *v, int n, const float *A, int64_t ld, const float *x, float *out)
{
    int64_t W = v->width;
    for (int i = 0; i < n; i += ROWS) {
        lnt_tiles_awake();
        write_block(n - i < ROWS ? n - i : ROWS, v->width, v->alpha + i * W, A + i * ld + i, ld, x + i * W, out + i * W);
    }
    for (neighbours p = { 0 }; next_pair(v, n, &p);) {
        row_times(p.low * W, 1.0f, p.level + p.l * W, x + p.l * W, v->x);
        lnt_operand right = v->e->prepare(LNT_RIGHT, p.low, v->width, v->x, W, v->right);
        lnt_operand left = v->e->prepare(LNT_LEFT_T, p.low, p.h, A + p.l * ld + p.u, ld, v->left);
        v->e->multiply(LNT_MM_SET, NULL, &left, true, &right, false, v->y, W);
        row_add_times(p.h * W, 1.0f, p.level + p.u * W, v->y, out + p.u * W);
    }
}

/* dg = last + inside, 0 where alpha is: nothing passes a reset; then last += through. */
INLINE void gate_row(bool past, int W, const float *alpha, const float *through, const float *inside, float *last, float *dg)
{
    int c = 0;
    for (; c + LNT_VL <= W; c += LNT_VL) {
        vf sum = v_load(last + c), x = sum + v_load(inside + c);
        vf d = v_select(v_load(alpha + c) == v_zero(), v_zero(), x);
        if (past)
            v_stream(dg + c, d);
        else
            v_store(dg + c, d);
        v_store(last + c, sum + v_load(through + c));
    }
    for (; c < W; c++) {
        dg[c] = alpha[c] == 0.0f ? 0.0f : last[c] + inside[c];
        last[c] += through[c];
    }
}

void LNT_V(lnt_vector_gate_grad)(const lnt_vector *v, float *last, const float *through, float *inside, float *dg, int64_t stride)
{
    int64_t W = v->width;
    const bool past = rows_past(dg, LINNET_F32, W);
    for (int64_t i = v->n - 1; i-- > 0;) row_add(inside + i * W, 1.0f, inside + (i + 1) * W, W);
    for (int64_t i = 0; i < v->n; i++) {
        rows_awake(i);
        gate_row(past, (int)W, v->alpha + i * W, through + i * W, inside + i * W, last, dg + i * stride);
    }
}

/* ---- gradients of rows and gates, a few vectors of columns from the last row to the first and back ---------------------------------------- */

/* dread, and inside_i = the sum over rows from i on of read.dread - write.(what pairs give dwrite). */
INLINE void gradients_up(bool early, int chains, bool part, int lanes, const lnt_vector *v, const lnt_vector_sides *s, int c)
{
    const int64_t W = v->width;
    vf run[CHAINS], before[CHAINS], bonus[CHAINS];
    UNROLL for (int k = 0; k < chains; k++) {
        run[k] = before[k] = v_zero();
        bonus[k] = early ? load(part, s->bonus + c + k * LNT_VL, lanes) : v_zero();
    }
    for (int64_t i = v->n - 1; i >= 0; i--) {
        const float own = s->A[i * (s->ld + 1)], above = early && i ? s->A[i * (s->ld + 1) - 1] : 0.0f;
        rows_awake(i);
        UNROLL for (int k = 0; k < chains; k++) {
            const int64_t at = i * W + c + k * LNT_VL;
            vf x = s->f * load(part, s->dread + at, lanes), key = load(part, s->write + at, lanes);
            if (!early || i) x *= load(part, v->from_start + at - early * W, lanes);
            x += load(part, s->pair_read + at, lanes);
            const vf reads = x * load(part, s->read + at, lanes);
            run[k] += (early ? before[k] : reads) - key * load(part, s->pair_write + at, lanes);
            before[k] = reads;
            store(part, s->inside + at, run[k], lanes);
            x += own * (early ? key * bonus[k] : key);
            if (early && i) x += above * load(part, s->write + at - W, lanes);
            store(part, s->dread + at, x, lanes);
        }
    }
}

/* dwrite and dg. */
INLINE void gradients_down(bool early, bool past, int chains, bool part, int lanes, const lnt_vector *v, const lnt_vector_sides *s, int c)
{
    const int64_t W = v->width, n = v->n;
    vf last[CHAINS], bonus[CHAINS];
    UNROLL for (int k = 0; k < chains; k++) {
        last[k] = load(part, s->last + c + k * LNT_VL, lanes);
        bonus[k] = early ? load(part, s->bonus + c + k * LNT_VL, lanes) : v_zero();
    }
    for (int64_t i = 0; i < n; i++) {
        const float own = s->A[i * (s->ld + 1)], below = early && i + 1 < n ? s->A[(i + 1) * s->ld + i] : 0.0f;
        rows_awake(i);
        UNROLL for (int k = 0; k < chains; k++) {
            const int64_t j = c + k * LNT_VL, at = i * W + j;
            vf x = load(part, s->dwrite + at, lanes) * load(part, v->to_end + at, lanes), read = load(part, s->read + at, lanes);
            if (s->dg) { /* nothing passes a reset */
                const vf d = v_select(load(part, v->alpha + at, lanes) == v_zero(), v_zero(), last[k] + load(part, s->inside + at, lanes));
                if (past)
                    v_stream(s->dg + i * s->stride + j, d);
                else
                    store(part, s->dg + i * s->stride + j, d, lanes);
            }
            last[k] += x * load(part, s->write + at, lanes);
            x += load(part, s->pair_write + at, lanes) + own * (early ? read * bonus[k] : read);
            if (early) x += below * load(part, s->read + at + W, lanes);
            store(part, s->dwrite + at, x, lanes);
        }
    }
}

INLINE void gradients(bool early, bool past, int chains, bool part, int lanes, const lnt_vector *v, const lnt_vector_sides *s, int c)
{
    if (s->dread) gradients_up(early, chains, part, lanes, v, s, c);
    gradients_down(early, past, chains, part, lanes, v, s, c);
}

INLINE void all_gradients(bool early, bool past, const lnt_vector *v, const lnt_vector_sides *s)
{
    int c = 0;
    for (; c + CHAINS * LNT_VL <= v->width; c += CHAINS * LNT_VL) gradients(early, past, CHAINS, false, LNT_VL, v, s, c);
    for (; c + LNT_VL <= v->width; c += LNT_VL) gradients(early, past, 1, false, LNT_VL, v, s, c);
    if (c < v->width) gradients(early, false, 1, true, v->width - c, v, s, c);
}

void LNT_V(lnt_vector_gradients)(const lnt_vector *v, const lnt_vector_sides *s)
{
    const bool past = s->dg && rows_past(s->dg, LINNET_F32, v->width);
    if (s->early && past)
        all_gradients(true, true, v, s);
    else if (s->early)
        all_gradients(true, false, v, s);
    else if (past)
        all_gradients(false, true, v, s);
    else
        all_gradients(false, false, v, s);
}

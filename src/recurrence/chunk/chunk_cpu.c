/* The algebra that chunked cores share (chunk.h). */
#include "recurrence/chunk/chunk.h"

/* e^x, and 0 below the normal numbers: subnormal factors would slow every product they meet. */
#define LOWEST (-87.0f)
static vf decay_of(vf x) { return v_exp(v_select(x < v_set(LOWEST), v_set(-INFINITY), x)); }

#if defined(__AMX_BF16__)
/* Whether the factors were made as products e^{G_i} e^{-G_j}, where no sum is beyond 40: off by what that sum is, some
 * 2^-17 where it is that far, which tiles round to 2^-9. A row of exponentials in place of a triangle. */
static bool mild_decay(int n, const float *g, int64_t stride, float *mask, int64_t ld, float *from_start, float *to_end)
{
    float sum = 0.0f, far = 0.0f;
    for (int i = 0; i < n; i++) {
        from_start[i] = sum += g[i * stride];
        far = fmaxf(far, fabsf(sum));
    }
    if (!(far <= 40.0f) || isnan(sum)) return false; /* fmaxf passes NaN over */
    for (int j = 0; j < n; j += LNT_VL) {
        const int lanes = n - j < LNT_VL ? n - j : LNT_VL;
        const vf sums = v_load_n(from_start + j, lanes);
        v_store_n(from_start + j, v_exp(sums), lanes);
        v_store_n(to_end + j, v_exp(-sums), lanes);
    }
    vi lane;
    for (int l = 0; l < LNT_VL; l++) lane[l] = l;
    for (int i = 0; i < n; i++) {
        const vf own = v_set(from_start[i]);
        if (i % 16 == 0) lnt_tiles_awake();
        for (int j = 0; j < n; j += LNT_VL) {
            const int lanes = n - j < LNT_VL ? n - j : LNT_VL;
            v_store_n(mask + i * ld + j, v_select(lane + j > i, v_zero(), own * v_load_n(to_end + j, lanes)), lanes);
        }
        mask[i * (ld + 1)] = 1.0f;
    }
    memcpy(to_end, mask + (n - 1) * ld, (size_t)n * sizeof *to_end);
    return true;
}
#endif

void LNT_V(lnt_chunk_decay)(int n, const float *g, int64_t stride, float *mask, int64_t ld, float *from_start, float *to_end)
{
    if (!g) {
        for (int i = 0; i < n; i++) {
            for (int j = 0; j < n; j++) mask[i * ld + j] = j <= i ? 1.0f : 0.0f;
            from_start[i] = to_end[i] = 1.0f;
        }
        return;
    }
#if defined(__AMX_BF16__)
    if (mild_decay(n, g, stride, mask, ld, from_start, to_end)) return;
#endif
    vi lane;
    for (int l = 0; l < LNT_VL; l++) lane[l] = l;
    for (int j = 0; j < n;
         j += LNT_VL) { /* down a vector of columns: each row's exponents are the row's above plus g_i, 0 on the diagonal, -inf above it */
        int lanes = n - j < LNT_VL ? n - j : LNT_VL;
        vf x = v_set(-INFINITY);
        for (int i = 0; i < n; i++) {
            if (i % 16 == 0) lnt_tiles_awake();
            if (i >= j) x = v_select(lane + j == i, v_zero(), x + g[i * stride]);
            v_store_n(mask + i * ld + j, i >= j ? decay_of(x) : v_zero(), lanes);
        }
    }
    float sum = 0.0f;
    for (int i = 0; i < n; i++) from_start[i] = sum += g[i * stride];
    for (int i = 0; i < n; i += LNT_VL) {
        int lanes = n - i < LNT_VL ? n - i : LNT_VL;
        v_store_n(from_start + i, decay_of(v_load_n(from_start + i, lanes)), lanes);
    }
    memcpy(to_end, mask + (n - 1) * ld, (size_t)n * sizeof *to_end);
}

/* ---- the unit-triangular solve --------------------------------------------------------------------------------------------------- */

enum { BLOCK = LNT_REGISTERS == 32 ? 16 : 8 };

/* One whole block by one vector of columns: row j is final once the rows before it are subtracted; it then leaves all later rows at once, so that the
 * chain is BLOCK multiply-adds long and the rest fills it. */
INLINE void substitute(bool transposed, bool part, int lanes, const float *a, int64_t lda, float *b, int64_t ldb)
{
    vf x[BLOCK];
    UNROLL for (int i = 0; i < BLOCK; i++) x[i] = part ? v_load_n(b + i * ldb, lanes) : v_load(b + i * ldb);
    if (transposed) {
        UNROLL for (int s = 0; s < BLOCK; s++) {
            int j = BLOCK - 1 - s;
            UNROLL for (int i = 0; i < BLOCK; i++)
                if (i < j) x[i] -= v_set(a[j * lda + i]) * x[j];
        }
    } else {
        UNROLL for (int j = 0; j < BLOCK; j++)
            UNROLL for (int i = 0; i < BLOCK; i++)
                if (i > j) x[i] -= v_set(a[i * lda + j]) * x[j];
    }
    UNROLL for (int i = 0; i < BLOCK; i++) {
        if (part)
            v_store_n(b + i * ldb, x[i], lanes);
        else
            v_store(b + i * ldb, x[i]);
    }
}

static void substitute_short(bool transposed, int n, int cols, const float *a, int64_t lda, float *b, int64_t ldb)
{
    for (int s = 1; s < n; s++) {
        int i = transposed ? n - 1 - s : s;
        for (int j = transposed ? i + 1 : 0; j < (transposed ? n : i); j++) {
            float f = transposed ? a[j * lda + i] : a[i * lda + j];
            for (int c = 0; c < cols; c++) b[i * ldb + c] -= f * b[j * ldb + c];
        }
    }
}

static void solve_block(bool transposed, int n, int cols, const float *a, int64_t lda, float *b, int64_t ldb)
{
    int c = 0;
    lnt_tiles_awake();
    if (n < BLOCK) {
        substitute_short(transposed, n, cols, a, lda, b, ldb);
        return;
    }
    if (transposed) {
        for (; c + LNT_VL <= cols; c += LNT_VL) substitute(true, false, LNT_VL, a, lda, b + c, ldb);
        if (c < cols) substitute(true, true, cols - c, a, lda, b + c, ldb);
    } else {
        for (; c + LNT_VL <= cols; c += LNT_VL) substitute(false, false, LNT_VL, a, lda, b + c, ldb);
        if (c < cols) substitute(false, true, cols - c, a, lda, b + c, ldb);
    }
}

void LNT_V(lnt_chunk_solve)(bool transposed, int n, int cols, const float *a, int64_t lda, float *b, int64_t ldb)
{
    int blocks = (n + BLOCK - 1) / BLOCK;
    for (int s = 0; s < blocks; s++) {
        int i = (transposed ? blocks - 1 - s : s) * BLOCK, rows = n - i < BLOCK ? n - i : BLOCK, after = i + rows;
        if (!transposed && i) LNT_V(lnt_mm)(LNT_MM_SUB, rows, cols, i, a + i * lda, lda, 1, b, ldb, b + i * ldb, ldb);
        if (transposed && after < n)
            LNT_V(lnt_mm)(LNT_MM_SUB, rows, cols, n - after, a + after * lda + i, 1, lda, b + after * ldb, ldb, b + i * ldb, ldb);
        solve_block(transposed, rows, cols, a + i * lda + i, lda, b + i * ldb, ldb);
    }
}

double LNT_V(lnt_chunk_gate_grad)(int n, double last, const float *dG, const float *pairs, const float *g, float *dg, int64_t stride)
{
    double sum = 0;
    for (int64_t i = n - 1; i >= 0; i--) {
        last += dG[i];
        double d = g && g[i * stride] < LOWEST ? 0.0 : last + (pairs ? pairs[i] : 0.0f); /* nothing passes a reset */
        if (dg) dg[i * stride] = (float)d;
        sum += d;
    }
    return sum;
}

#include "ops/lerp.h"
#include "ops/rows.h"

linnet_status LNT_V(lnt_lerp_forward)(const lnt_call *k)
{
    const lnt_lerp_attr *x = k->attr;
    const lnt_tensor *a = &k->in[0], *b = &k->in[1], *y = &k->out[0];
    const int64_t size = rows_a_piece(y->cols), step = !x->row, cols = y->cols / x->count;
    lnt_tensor m[LNT_LERP_MOST];
    for (int j = 0; j < x->count; j++) m[j] = lnt_lerp_at(k, k->in, j);
    PARALLEL_PIECES(k->c, p, pieces(y->rows, size))
        for (int64_t r = p * size; r < at_most(y->rows, (p + 1) * size); r++) {
            const void *ar = a->data ? row_at(a, r) : NULL, *br = b->data ? row_at(b, r) : NULL;
            V_EACH(i, n, cols)
            {
                const vf from = ar ? v_get(ar, a->dtype, i, n) : v_zero(), way = br ? v_get(br, b->dtype, i, n) - from : v_set(1.0f);
                for (int j = 0; j < x->count; j++) {
                    const vf by = v_get(row_at(&m[j], r * step), m[j].dtype, i, n);
                    v_put(part_at(y, r, j * cols), y->dtype, i, n, br ? from + way * by : from + by);
                }
            }
        }
    return LINNET_OK;
}

typedef struct {
    const lnt_call *k;
    lnt_tensor m[LNT_LERP_MOST], dm[LNT_LERP_MOST];
    int64_t cols;
} lerp_back;

/* Row r; the sums of dm_j go into sum + j next when that is not NULL. */
static void lerp_row_back(const lerp_back *g, int64_t r, float *sum, int64_t next)
{
    const lnt_call *k = g->k;
    const lnt_tensor *a = &k->in[0], *b = &k->in[1], *dy = &k->d_out[0], *da = &k->d_in[0], *db = &k->d_in[1];
    const lnt_lerp_attr *x = k->attr;
    V_EACH(i, n, g->cols)
    {
        vf to_a = v_zero(), to_b = v_zero(), way = v_set(1.0f);
        if (!x->sum) {
            way = v_get(row_at(b, r), b->dtype, i, n);
            if (a->data) way -= v_get(row_at(a, r), a->dtype, i, n);
        }
        for (int j = 0; j < x->count; j++) {
            const vf d = v_get(part_at(dy, r, j * g->cols), dy->dtype, i, n);
            const vf by = x->sum ? v_zero() : v_get(row_at(&g->m[j], x->row ? 0 : r), g->m[j].dtype, i, n);
            to_a += d - d * by, to_b += d * by;
            if (sum)
                v_out(sum + j * next, LINNET_F32, i, n, d * way, true);
            else if (g->dm[j].data)
                v_out(row_at(&g->dm[j], r), g->dm[j].dtype, i, n, d * way, lnt_lerp_adds(k, j));
        }
        if (da->data) v_out(row_at(da, r), da->dtype, i, n, to_a, k->accumulate[0]);
        if (db->data) v_out(row_at(db, r), db->dtype, i, n, to_b, k->accumulate[1]);
    }
}

linnet_status LNT_V(lnt_lerp_backward)(const lnt_call *k)
{
    const lnt_lerp_attr *x = k->attr;
    const int64_t rows = k->d_out[0].rows, size = lnt_sum_block_rows(rows), blocks = lnt_sum_blocks(rows);
    lerp_back g = {.k = k, .cols = k->d_out[0].cols / x->count};
    bool sums = false;
    for (int j = 0; j < x->count; j++) {
        g.m[j] = lnt_lerp_at(k, k->in, j), g.dm[j] = lnt_lerp_at(k, k->d_in, j);
        sums = sums || (x->row && g.dm[j].data);
    }
    PARALLEL_PIECES(k->c, p, blocks)
    {
        float *sum = sums ? (float *)k->work + p * g.cols : NULL; /* [count][blocks][cols] */
        for (int j = 0; sum && j < x->count; j++) memset(sum + j * blocks * g.cols, 0, (size_t)g.cols * sizeof *sum);
        for (int64_t r = p * size; r < at_most(rows, (p + 1) * size); r++) lerp_row_back(&g, r, sum, blocks * g.cols);
    }
    for (int j = 0; sums && j < x->count; j++) {
        if (!g.dm[j].data) continue;
        if (!lnt_lerp_adds(k, j)) memset(g.dm[j].data, 0, (size_t)g.cols * sizeof(float));
        add_blocks(k->c, g.dm[j].data, (float *)k->work + j * blocks * g.cols, blocks, g.cols);
    }
    return LINNET_OK;
}

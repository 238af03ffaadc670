/* Rows on their way to the experts and back. Every row is one piece of work's, and a token's entries are added in the experts' order. */
#include "ops/experts.h"
#include "ops/rows.h"

void LNT_V(lnt_expert_gather)(lnt_ctx *c, const lnt_expert_rows *r, const lnt_tensor *src, void *dst)
{
    const int64_t size = rows_a_piece(src->cols), bytes = src->cols * (src->dtype == LINNET_F32 ? 4 : 2);
    PARALLEL_PIECES(c, p, pieces(r->entries, size))
        for (int64_t i = p * size; i < at_most(r->entries, (p + 1) * size); i++)
            memcpy((char *)dst + i * bytes, row_at(src, r->token[i]), (size_t)bytes);
}

void LNT_V(lnt_expert_combine)(lnt_ctx *c, const lnt_expert_rows *r, const float *src, const lnt_tensor *dst, bool weighted, bool add)
{
    const int64_t size = rows_a_piece(dst->cols * r->k), cols = dst->cols;
    PARALLEL_PIECES(c, p, pieces(r->tokens, size))
        for (int64_t t = p * size; t < at_most(r->tokens, (p + 1) * size); t++) {
            const int32_t *slot = r->slot + t * r->k;
            V_EACH(j, n, cols)
            {
                vf s = v_zero();
                for (int64_t q = 0; q < r->k && slot[q] >= 0; q++) {
                    vf x = v_get(src + slot[q] * cols, LINNET_F32, j, n);
                    s += weighted ? x * r->weight[slot[q]] : x;
                }
                v_out(row_at(dst, t), dst->dtype, j, n, s, add);
            }
        }
}

void LNT_V(lnt_expert_weigh)(lnt_ctx *c, const lnt_expert_rows *r, void *a, void *b, lnt_dtype type, int64_t cols, float *dot)
{
    const int64_t size = rows_a_piece(cols), bytes = cols * (type == LINNET_F32 ? 4 : 2);
    PARALLEL_PIECES(c, p, pieces(r->entries, size))
        for (int64_t i = p * size; i < at_most(r->entries, (p + 1) * size); i++) {
            void *x = (char *)a + i * bytes, *y = (char *)b + i * bytes;
            vf s = v_zero();
            V_EACH(j, n, cols)
            {
                vf u = v_get(x, type, j, n), v = v_get(y, type, j, n);
                s += u * v;
                v_put(x, type, j, n, u * r->weight[i]);
                v_put(y, type, j, n, v * r->weight[i]);
            }
            dot[i] = v_sum(s);
        }
}

/* The recursive solution by Sherman and Morrison, token by token (operators.md#mesa, "The recursive solution"):
 *
 *   P_t = (e^g P_{t-1}^{-1} + beta k k^T)^{-1} = (P - c u u^T) / e^g,  u = P k, c = beta / (e^g + beta k.u)          x = P_t b
 *
 * Lambda is in the state, and decays with it. A forgotten direction grows by 1 / e^g a token, and its rounding error with it: a row of which P_ii
 * lambda_i, 1 at most where nothing is forgotten, has passed LNT_MESA_GROWTH has no solution. */
#if !defined(LNT_VARIANT_amx) /* float32 alone, as the solver */
#include "core/memory.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/mesa/mesa_solver.h"
#include "simd/mm.h"

/* P = f (P - c u u^T) */
static void update(int K, float f, float c, const float *u, float *P)
{
    for (int64_t i = 0; i < K; i++) {
        float *p = P + i * K;
        const float by = c * f * u[i];
        int64_t j = 0;
        for (; j + LNT_VL <= K; j += LNT_VL) v_store(p + j, f * v_load(p + j) - by * v_load(u + j));
        for (; j < K; j++) p[j] = f * p[j] - by * u[j];
    }
}

static bool has_grown(int K, const float *P, const float *lambda)
{
    for (int64_t i = 0; i < K; i++)
        if (P[i * K + i] * lambda[i] > LNT_MESA_GROWTH) return true;
    return false;
}

void LNT_V(lnt_mesa_recursion)(const lnt_mesa_args *a, const lnt_mesa_recursive *r, int64_t t, int64_t len, const float *b, float *x)
{
    const int K = a->K;
    float *taken = a->steps, *residual = a->residual, *u = r->u;
    for (int64_t i = 0; i < len; i++) {
        const float gamma = expf(r->g[i]), *k = r->k + i * K, *y = b ? b + i * K : NULL;
        float *to = x + i * K;
        LNT_V(lnt_mm)(LNT_MM_SET, 1, K, K, k, K, 1, r->P, K, u, K);
        if (b) LNT_V(lnt_mm)(LNT_MM_SET, 1, K, K, y, K, 1, r->P, K, to, K);
        const float c = r->beta[i] / (gamma + r->beta[i] * row_dot(k, u, K)), f = 1.0f / gamma;
        update(K, f, c, u, r->P);
        if (!b) continue;
        row_add(to, -c * row_dot(u, y, K), u, K);
        row_scale(to, f, K);
        if (has_grown(K, r->P, r->lambda))
            for (int j = 0; j < K; j++) to[j] = NAN;
        if (taken) taken[(t + i) * a->Hv + r->h] = 0;
        if (residual) residual[(t + i) * a->Hv + r->h] = 0;
    }
}

void LNT_V(lnt_mesa_invert)(int K, const float *A, double *room, float *out)
{
    for (int64_t i = 0; i < K; i++) /* A = L D L^T: L below the diagonal, D on it */
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0.5 * ((double)A[i * K + j] + A[j * K + i]);
            for (int64_t m = 0; m < j; m++) sum -= room[i * K + m] * room[j * K + m] * room[m * K + m];
            room[i * K + j] = i == j ? sum : sum / room[j * K + j];
        }
    double *x = room + (int64_t)K * K;
    for (int64_t column = 0; column < K; column++) {
        for (int64_t i = 0; i < K; i++) {
            x[i] = i == column;
            for (int64_t j = 0; j < i; j++) x[i] -= room[i * K + j] * x[j];
        }
        for (int64_t i = 0; i < K; i++) x[i] /= room[i * K + i];
        for (int64_t i = K - 1; i >= 0; i--)
            for (int64_t j = i + 1; j < K; j++) x[i] -= room[j * K + i] * x[j];
        for (int64_t i = 0; i < K; i++) out[i * K + column] = (float)x[i];
    }
}

void LNT_V(lnt_mesa_between)(int K, const float *A, const float *D, float *room, float *out)
{
    LNT_V(lnt_mm)(LNT_MM_SET, K, K, K, A, K, 1, D, K, room, K);
    LNT_V(lnt_mm)(LNT_MM_SET, K, K, K, room, K, 1, A, K, out, K);
    row_scale(out, -1.0f, (int64_t)K * K);
}
#endif

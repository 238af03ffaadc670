/* What this machine could do at most: matrix products and a copy, on random numbers, and exponentials. */
#include <math.h>
#include <string.h>

#include "bench/measure.h"
#include "simd/variant.h"
#include "core/cpu.h"
#include "core/border.h"
#include "core/memory.h"
#include "core/threads.h"
#include "ops/gemm.h"

enum { ROUNDS = 5 };

/* Large enough to fill the device: 2048^3 on two cores is 40 ms in float32; on a GPU 8192^3 in bf16 and 4096^3 in float32 are 1 to 3 ms. */
static int64_t product_size(const lnt_ctx *c, lnt_dtype dtype) { return !lnt_on_cuda(c) ? 2048 : dtype == LINNET_F32 ? 4096 : 8192; }

/* The best of some rounds: a ceiling is what was reached once. */
static linnet_status product_rate(lnt_ctx *c, lnt_dtype dtype, double *rate)
{
    int64_t n = product_size(c, dtype);
    lnt_dtype type[3] = { dtype, dtype, lnt_on_cuda(c) ? dtype : LINNET_F32 };
    void *m[3] = { 0 };
    linnet_status s = LINNET_OK;
    double best = INFINITY;
    for (int i = 0; i < 3; i++) LNT_TRY_GOTO(s, lnt_device_alloc(c, lnt_bytes(lnt_bytes((size_t)n, (size_t)n), lnt_dtype_size(type[i])), &m[i]), out);
    for (int i = 0; i < 3; i++) LNT_TRY_GOTO(s, lnt_random_fill(c, m[i], type[i], n * n), out);
    lnt_gemm_args g = { .M = n, .N = n, .K = n, .alpha = 1, .ab = dtype, .c = type[2], .lda = n, .ldb = n, .ldc = n };
    g.a = m[0], g.b = m[1], g.C = m[2];
    for (int i = 0; i <= ROUNDS; i++) { /* the first builds the primitive */
        lnt_watch_begin(c);
        LNT_TRY_GOTO(s, lnt_gemm(c, &g), out);
        double t = lnt_watch_end(c);
        if (i && t < best) best = t;
    }
    s = lnt_device_check(c);
    *rate = 2.0 * (double)n * (double)n * (double)n / best;
out:
    for (int i = 0; i < 3; i++) lnt_device_free(c, m[i]);
    return s;
}

/* By every thread: what one memcpy moves is less. 2^28 bytes are far beyond a cache that one process gets. */
static linnet_status copy_rate_cpu(lnt_ctx *c, double *rate)
{
    enum { BYTES = 1 << 28, PIECE = 1 << 20 };
    char *x = lnt_alloc(BYTES), *y = lnt_alloc(BYTES);
    linnet_status s = x && y ? LINNET_OK : lnt_fail_memory(c, 2 * (size_t)BYTES);
    double best = INFINITY;
    for (int i = 0; s == LINNET_OK && i <= ROUNDS; i++) {
        lnt_watch_begin(c);
#pragma omp parallel for num_threads(lnt_threads(c)) schedule(static)
        for (int p = 0; p < BYTES / PIECE; p++) {
            if (i == 0)
                memset(x + (size_t)p * PIECE, 1, PIECE);
            else
                memcpy(y + (size_t)p * PIECE, x + (size_t)p * PIECE, PIECE);
        }
        double t = lnt_watch_end(c);
        if (i > 1 && t < best) best = t; /* round 1 touches y for the first time */
    }
    lnt_free(x);
    lnt_free(y);
    *rate = 2.0 * BYTES / best;
    return s;
}

/* Each thread's from and to its own first-level cache. */
typedef void exponentials(const float *x, float *y, int64_t n, int64_t rounds);
LNT_DECLARE_VARIANTS(exponentials, lnt_exponentials);
static linnet_status exponential_rate(lnt_ctx *c, double *rate)
{
    enum { N = 1024, TIMES = 4096 };
    const size_t bytes = lnt_bytes(lnt_bytes((size_t)lnt_threads(c), 2 * sizeof(float)), N);
    float *room = lnt_alloc(bytes);
    double best = INFINITY;
    if (!room) return lnt_fail_memory(c, bytes);
    for (int64_t i = 0; i < (int64_t)lnt_threads(c) * 2 * N; i++) room[i] = -(float)(i % N) / N;
    for (int i = 0; i <= ROUNDS; i++) {
        lnt_watch_begin(c);
#pragma omp parallel for num_threads(lnt_threads(c)) schedule(static)
        for (int t = 0; t < lnt_threads(c); t++) LNT_PICK(lnt_exponentials)(room + (int64_t)t * 2 * N, room + ((int64_t)t * 2 + 1) * N, N, TIMES);
        const double t = lnt_watch_end(c);
        if (i && t < best) best = t;
    }
    lnt_free(room);
    *rate = (double)lnt_threads(c) * N * TIMES / best;
    return LINNET_OK;
}

static linnet_status copy_rate_cuda(lnt_ctx *c, double *rate)
{
    const size_t bytes = (size_t)2 << 30; /* the second level cache holds 60 MB */
    void *x = NULL, *y = NULL;
    linnet_status s;
    double best = INFINITY;
    LNT_TRY_GOTO(s, lnt_device_alloc(c, bytes, &x), out);
    LNT_TRY_GOTO(s, lnt_device_alloc(c, bytes, &y), out);
    LNT_TRY_GOTO(s, lnt_random_fill(c, x, LINNET_F32, (int64_t)(bytes / 4)), out);
    for (int i = 0; i <= ROUNDS; i++) {
        lnt_watch_begin(c);
        lnt_device_copy(c, y, x, bytes);
        double t = lnt_watch_end(c);
        if (i && t < best) best = t;
    }
    s = lnt_device_check(c);
    *rate = 2.0 * (double)bytes / best;
out:
    lnt_device_free(c, x);
    lnt_device_free(c, y);
    return s;
}

linnet_status linnet_bench_machine(linnet_context *c, linnet_machine_rates *out)
{
    LNT_TRY(lnt_result_check(c, out));
    linnet_machine_rates r = { .size = sizeof r, .f32_size = product_size(c, LINNET_F32), .bf16_size = product_size(c, LINNET_BF16) };
    LNT_TRY(product_rate(c, LINNET_F32, &r.f32_flops));
    LNT_TRY(product_rate(c, LINNET_BF16, &r.bf16_flops));
    LNT_TRY((lnt_on_cuda(c) ? copy_rate_cuda : copy_rate_cpu)(c, &r.copy_bytes));
    if (!lnt_on_cuda(c)) LNT_TRY(exponential_rate(c, &r.exponentials));
    LNT_GIVE(out, r);
    return LINNET_OK;
}

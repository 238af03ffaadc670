#include "ops/gemm.h"

#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>

#include "core/memory.h"
#include "core/threads.h"
#include "ops/kernels.h"
#include "ops/tiles.h"

/* C is cut into tiles of about 256 x 512 (flat optimum between 256 and 1024 on each side), halved while there are fewer than 16 so that a
 * small C with a deep K still feeds several cores. */
enum { TILE_M = 256, TILE_N = 512, TILE_MIN = 128, FEW_TILES = 16 };
/* Mixed products convert blocks of this depth. */
enum { BLOCK_K = 1024 };
/* Up to this many rows the weights are streamed once by a kernel of our own, in which a row's sums do not depend on the rows beside it. */
enum { GEMV_ROWS = 8, GEMV_PIECE = 64 };

static int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static size_t bytes_of(lnt_dtype t) { return t == LINNET_F32 ? 4 : t == LINNET_I8 ? 1 : 2; }
static lnt_dtype b_type(const lnt_gemm_args *g) { return g->b_scale ? LINNET_I8 : g->ab; }
/* Element (row, col) of a matrix. */
static const void *at(const void *p, lnt_dtype t, int64_t offset) { return (const char *)p + offset * (int64_t)bytes_of(t); }

typedef struct {
    int64_t m, n;         /* size of a tile */
    int64_t parts_m, parts_n;
} tiling;

static tiling cut(int64_t M, int64_t N)
{
    tiling t = {TILE_M, TILE_N, 0, 0};
    for (;;) {
        t.parts_m = parts_of(M, t.m), t.parts_n = parts_of(N, t.n);
        if (t.parts_m * t.parts_n >= FEW_TILES) break;
        if (t.n >= t.m && t.n > TILE_MIN && N > TILE_MIN)
            t.n /= 2;
        else if (t.m > TILE_MIN && M > TILE_MIN)
            t.m /= 2;
        else
            break;
    }
    /* Equal parts, in steps of a vector. */
    t.m = parts_of(parts_of(M, t.parts_m), 16) * 16, t.parts_m = parts_of(M, t.m);
    t.n = parts_of(parts_of(N, t.parts_n), 16) * 16, t.parts_n = parts_of(N, t.n);
    return t;
}

/* ---- a buffer for each thread that grows to the largest need, and goes with its thread -------------------------------------------- */

typedef enum { OPERANDS, SUMS, SLOTS } slot;
static _Thread_local struct buffers {
    void *data[SLOTS];
    size_t size[SLOTS];
} buffers;
static pthread_key_t buffers_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void free_buffers(void *p)
{
    for (int i = 0; i < SLOTS; i++) lnt_free(((struct buffers *)p)->data[i]);
}

static void start(void)
{
    pthread_key_create(&buffers_key, free_buffers);
#if defined(__x86_64__) /* there are no such levels elsewhere */
    static const dnnl_cpu_isa_t isa[LNT_CPU_VARIANTS] = {dnnl_cpu_isa_sse41, dnnl_cpu_isa_avx2, dnnl_cpu_isa_avx512_core_bf16, dnnl_cpu_isa_all};
    /* Refused once oneDNN has compiled something: then its choice stands, which is never wrong, only not what LINNET_CPU asked for. */
    (void)dnnl_set_max_cpu_isa(isa[lnt_cpu()]);
#endif
}

static void *buffer_of(slot s, size_t bytes)
{
    if (bytes > buffers.size[s]) {
        lnt_free(buffers.data[s]);
        buffers.data[s] = lnt_alloc(bytes);
        buffers.size[s] = buffers.data[s] ? bytes : 0;
        pthread_setspecific(buffers_key, &buffers);
    }
    return buffers.data[s];
}

/* ---- products ---------------------------------------------------------------------------------------------------------------------- */

typedef enum { DONE, REFUSED, NO_MEMORY } outcome;

static outcome sgemm(const lnt_gemm_args *g, int64_t M, int64_t N, int64_t K, const float *a, const float *b, float beta, float *c,
                     int64_t ldc)
{
    dnnl_status_t s = dnnl_sgemm(g->trans_a ? 'T' : 'N', g->trans_b ? 'T' : 'N', M, N, K, g->alpha, a, g->lda, b, g->ldb, beta, c, ldc);
    return s == dnnl_success ? DONE : REFUSED;
}

/* oneDNN's kernels for x86-64 begin a new sum every few hundred elements of K. Its portable one goes on from what C holds, in one chain of K
 * additions where the tile is narrow, whose error grows with the root of K: there every part of K is a product by itself, and then added. */
enum { PART_K = 512 };

static bool adds_parts(const lnt_gemm_args *g)
{
#if defined(__x86_64__)
    return (void)g, false;
#else
    return g->K > PART_K || g->beta != 0;
#endif
}

static outcome deep_sgemm(const lnt_gemm_args *g, int64_t M, int64_t N, int64_t K, const float *a, const float *b, float beta, float *c)
{
    if (!adds_parts(g)) return sgemm(g, M, N, K, a, b, beta, c, g->ldc);
    for (int64_t k = 0; k < K; k += PART_K) {
        const int64_t part = smaller(PART_K, K - k);
        const float *pa = a + (g->trans_a ? k * g->lda : k), *pb = b + (g->trans_b ? k : k * g->ldb);
        const bool first = k == 0 && beta == 0;
        float *sums = first ? c : buffer_of(SUMS, lnt_bytes(lnt_bytes((size_t)M, (size_t)N), sizeof *sums)); /* [M,N] */
        if (!sums) return NO_MEMORY;
        const outcome o = sgemm(g, M, N, part, pa, pb, 0.0f, sums, first ? g->ldc : N);
        if (o != DONE) return o;
        if (!first) LNT_PICK(lnt_narrow)(c, LINNET_F32, g->ldc, sums, M, N, true);
    }
    return DONE;
}

static bool is_mixed(const lnt_gemm_args *g) { return g->ab != LINNET_F32 || g->c != LINNET_F32 || g->b_scale; }

static size_t mixed_bytes(int64_t M, int64_t N, int64_t K)
{
    const int64_t depth = smaller(K, BLOCK_K);
    return (size_t)(M * depth + N * depth + M * N) * sizeof(float);
}

/* int8 in B; or operands or result in bf16 on a machine without fast bf16 products: blocks are converted, and the product is a float32 one. */
static outcome mixed_tile(const lnt_gemm_args *g, int64_t i, int64_t j, int64_t M, int64_t N)
{
    const int64_t depth = smaller(g->K, BLOCK_K);
    float *a = buffer_of(OPERANDS, mixed_bytes(M, N, g->K));
    if (!a) return NO_MEMORY;
    float *b = a + M * depth, *c = b + N * depth; /* a [M,k] or [k,M], b [k,N] or [N,k], c [M,N] */
    lnt_gemm_args block = *g;
    block.ldc = N;
    for (int64_t k = 0; k < g->K; k += depth) {
        int64_t K = smaller(depth, g->K - k);
        int64_t a_rows = g->trans_a ? K : M, a_cols = g->trans_a ? M : K, b_rows = g->trans_b ? N : K, b_cols = g->trans_b ? K : N;
        LNT_PICK(lnt_widen)(a, at(g->a, g->ab, g->trans_a ? k * g->lda + i : i * g->lda + k), g->ab, a_rows, a_cols, g->lda, NULL);
        LNT_PICK(lnt_widen)(b, at(g->b, b_type(g), g->trans_b ? j * g->ldb + k : k * g->ldb + j), b_type(g), b_rows, b_cols, g->ldb,
                            g->b_scale ? g->b_scale + j : NULL);
        block.lda = a_cols, block.ldb = b_cols;
        outcome o = deep_sgemm(&block, M, N, K, a, b, k ? 1.0f : 0.0f, c);
        if (o != DONE) return o;
    }
    LNT_PICK(lnt_narrow)((char *)g->C + (i * g->ldc + j) * (int64_t)bytes_of(g->c), g->c, g->ldc, c, M, N, g->beta != 0);
    return DONE;
}

static outcome tile(const lnt_gemm_args *g, int64_t i, int64_t j, int64_t M, int64_t N)
{
    if (is_mixed(g)) return mixed_tile(g, i, j, M, N);
    const float *a = (const float *)g->a + (g->trans_a ? i : i * g->lda), *b = (const float *)g->b + (g->trans_b ? j * g->ldb : j);
    return deep_sgemm(g, M, N, g->K, a, b, g->beta, (float *)g->C + i * g->ldc + j);
}

/* oneDNN's float32 kernels compute with the stack pointer inside a buffer on the heap. A signal that arrived then would have its frame written over
 * whatever lies below that buffer, so a thread's signals wait while it multiplies; those of its own faults do not. */
static sigset_t hold_signals(void)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t held, before;
    sigfillset(&held);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&held, faults[i]);
    pthread_sigmask(SIG_BLOCK, &held, &before);
    return before;
}

static void release_signals(sigset_t before) { pthread_sigmask(SIG_SETMASK, &before, NULL); }

static outcome tiles(lnt_ctx *c, const lnt_gemm_args *g)
{
    const tiling t = cut(g->M, g->N);
    int worst = DONE;
    /* oneDNN looks at the thread count too when a team has one thread, and is then not in a parallel region. */
    const int saved = omp_get_max_threads();
    omp_set_num_threads(1);
#pragma omp parallel num_threads(lnt_threads(c)) reduction(max : worst)
    {
        const sigset_t before = hold_signals();
        /* whether it gets a tile this time or not: the same shape asks for no memory again, however the tiles fall */
        if (is_mixed(g) && !buffer_of(OPERANDS, mixed_bytes(t.m, t.n, g->K))) worst = NO_MEMORY;
        if (adds_parts(g) && !buffer_of(SUMS, lnt_bytes(lnt_bytes((size_t)t.m, (size_t)t.n), sizeof(float)))) worst = NO_MEMORY;
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t p = 0; p < t.parts_m * t.parts_n; p++) {
            int64_t i = p / t.parts_n * t.m, j = p % t.parts_n * t.n;
            outcome o = tile(g, i, j, smaller(t.m, g->M - i), smaller(t.n, g->N - j));
            if ((int)o > worst) worst = o;
        }
        release_signals(before);
    }
    omp_set_num_threads(saved);
    return worst;
}

/* bf16 on a matrix unit: parts of K, each packed into the unit's order once (by all threads) and then multiplied tile by tile. A whole strip of an A
 * that is not transposed is read in place. oneDNN 2.6's matmul, one thread each, is level where it has its best kernel (C a whole matrix, A plain, K
 * <= 512), 1.2 to 1.4 times slower for a transposed A or a deep K, and twice as slow for a tile of a larger C. */
enum { PACK_K = 1024 }; /* of a product into float32; a part of K then leaves its packed operands in the cores' caches */

static int64_t aligned_elements(int64_t n) { return (n + 31) / 32 * 32; }

static outcome tile_part(lnt_ctx *c, const lnt_gemm_args *g, const lnt_tile_kernels *kernels, int64_t k0, int64_t k1)
{
    const int64_t steps = parts_of(k1 - k0, LNT_TILE_K), panels = parts_of(g->N, LNT_TILE_BLOCK), strips = parts_of(g->M, LNT_TILE_BLOCK) * 2;
    const int64_t first_packed = !g->trans_a && (k1 - k0) % LNT_TILE_K == 0 ? g->M / LNT_TILE_BLOCK * 2 : 0;
    const size_t of_panels = lnt_bytes((size_t)panels, LNT_PANEL_STEP), of_strips = lnt_bytes((size_t)(strips - first_packed), LNT_STRIP_STEP);
    const size_t a_step = lnt_bytes_plus(of_panels, of_strips);
    lnt_bf16 *panel = buffer_of(OPERANDS, lnt_bytes(lnt_bytes((size_t)steps, a_step), sizeof *panel));
    if (!panel) return NO_MEMORY;
    lnt_bf16 *strip = panel + panels * steps * LNT_PANEL_STEP;
    tiling t = cut(g->M, g->N);
    t.m = aligned_elements(t.m), t.parts_m = parts_of(g->M, t.m);
    t.n = aligned_elements(t.n), t.parts_n = parts_of(g->N, t.n);
    const bool sums = g->c != LINNET_F32;
    int worst = DONE;
#pragma omp parallel for schedule(static) num_threads(lnt_threads(c))
    for (int64_t p = 0; p < panels + strips - first_packed; p++)
        if (p < panels)
            kernels->pack_panel(g, p, k0, k1, panel + p * steps * LNT_PANEL_STEP);
        else
            kernels->pack_strip(g, first_packed + p - panels, k0, k1, strip + (p - panels) * steps * LNT_STRIP_STEP);
#pragma omp parallel num_threads(lnt_threads(c)) reduction(max : worst)
    {
        /* a tile or not: the same shape asks for no memory again */
        float *sum = sums ? buffer_of(SUMS, lnt_bytes(lnt_bytes((size_t)t.m, (size_t)t.n), sizeof *sum)) : NULL;
        if (sums && !sum) worst = NO_MEMORY;
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t p = 0; p < t.parts_m * t.parts_n; p++) {
            const int64_t m = p / t.parts_n * t.m, n = p % t.parts_n * t.n;
            lnt_tile_job j = {.g = g, .k0 = k0, .steps = steps, .strips = strip, .first_packed = first_packed, .panels = panel, .m0 = m,
                              .m1 = smaller(g->M, m + t.m), .n0 = n, .n1 = smaller(g->N, n + t.n), .add = g->beta != 0 || k0 > 0};
            j.sums = sum;
            if (!sums || sum) kernels->multiply(&j);
        }
    }
    return worst;
}

static outcome tile_parts(lnt_ctx *c, const lnt_gemm_args *g, const lnt_tile_kernels *kernels, int64_t depth)
{
    outcome o = DONE;
    for (int64_t k = 0; k < g->K && o == DONE; k += depth) o = tile_part(c, g, kernels, k, smaller(g->K, k + depth));
    return o;
}

/* A bf16 C is summed in float32 over all of K: tile by tile, or as a whole where K is so deep (the gradient of an output head's input) that its
 * packed operands would leave the caches. */
enum { DEEP_K = 4 * PACK_K, DEEP_SUMS = 1 << 20, NARROW_ROWS = 16 };

static outcome tile_product(lnt_ctx *c, const lnt_gemm_args *g, const lnt_tile_kernels *kernels)
{
    if (g->c == LINNET_F32) return tile_parts(c, g, kernels, PACK_K);
    if (g->K < DEEP_K || g->M > DEEP_SUMS / g->N) return tile_parts(c, g, kernels, g->K);
    float *sums = buffer_of(SUMS, lnt_bytes(lnt_bytes((size_t)g->M, (size_t)g->N), sizeof *sums)); /* [M,N] */
    if (!sums) return NO_MEMORY;
    lnt_gemm_args whole = *g;
    whole.c = LINNET_F32, whole.C = sums, whole.ldc = g->N, whole.beta = 0;
    const outcome o = tile_parts(c, &whole, kernels, PACK_K);
    if (o != DONE) return o;
    const int64_t pieces = parts_of(g->M, NARROW_ROWS);
#pragma omp parallel for schedule(static) num_threads(lnt_threads(c)) if (pieces > 1)
    for (int64_t p = 0; p < pieces; p++) {
        const int64_t m = p * NARROW_ROWS;
        LNT_PICK(lnt_narrow)((lnt_bf16 *)g->C + m * g->ldc, g->c, g->ldc, sums + m * g->N, smaller(NARROW_ROWS, g->M - m), g->N, g->beta != 0);
    }
    return DONE;
}

/* `few` rows (a side of C no longer than GEMV_ROWS, or groups of so many) against the other operand, both with K contiguous. A piece of the other
 * operand meets all groups while it is in the cache. */
static outcome few_rows(lnt_ctx *c, const lnt_gemm_args *g, bool few_is_a)
{
    const int64_t R = few_is_a ? g->M : g->N, N = few_is_a ? g->N : g->M;
    const void *few = few_is_a ? g->a : g->b;
    const int64_t ld = few_is_a ? g->lda : g->ldb;
    float *x = buffer_of(OPERANDS, lnt_bytes(lnt_bytes((size_t)R, (size_t)g->K), sizeof(float)));
    if (!x) return NO_MEMORY;
    LNT_PICK(lnt_widen)(x, few, few_is_a ? g->ab : b_type(g), R, g->K, ld, few_is_a ? NULL : g->b_scale);
    const lnt_gemv_args all = {.N = N, .K = g->K, .x = x, .w = few_is_a ? g->b : g->a, .ldw = few_is_a ? g->ldb : g->lda,
                               .w_type = few_is_a ? b_type(g) : g->ab, .w_scale = few_is_a ? g->b_scale : NULL,
                               .y_type = g->c, .y = g->C, .y_rs = few_is_a ? g->ldc : 1, .y_cs = few_is_a ? 1 : g->ldc,
                               .alpha = g->alpha, .add = g->beta != 0};
    lnt_gemv_kernel *kernel = LNT_PICK(lnt_gemv);
    const int64_t parts = parts_of(N, GEMV_PIECE);
#pragma omp parallel for schedule(static) num_threads(lnt_threads(c)) if (parts > 1)
    for (int64_t p = 0; p < parts; p++)
        for (int64_t r = 0; r < R; r += GEMV_ROWS) {
            lnt_gemv_args v = all;
            v.R = (int)smaller(GEMV_ROWS, R - r);
            v.x = x + r * g->K;
            v.y = (char *)g->C + (size_t)(r * all.y_rs) * bytes_of(g->c);
            kernel(&v, p * GEMV_PIECE, smaller(N, (p + 1) * GEMV_PIECE));
        }
    return DONE;
}

/* K == 0: the product is zero. */
static void no_product(const lnt_gemm_args *g)
{
    if (g->beta != 0) return;
    for (int64_t i = 0; i < g->M; i++) memset((char *)g->C + (size_t)(i * g->ldc) * bytes_of(g->c), 0, (size_t)g->N * bytes_of(g->c));
}

linnet_status lnt_gemm(lnt_ctx *c, const lnt_gemm_args *g)
{
#ifdef LINNET_CUDA
    if (lnt_on_cuda(c)) return lnt_gemm_cuda(c, g);
#endif
    pthread_once(&once, start);
    if (g->M <= 0 || g->N <= 0) return LINNET_OK;
    if (g->K <= 0) return no_product(g), LINNET_OK;
    outcome o;
    const bool alone = lnt_rows_are_alone(c);
    if (g->b_scale && (g->trans_a || !g->trans_b)) return lnt_fail(c, LINNET_EINTERNAL, "a product of int8 weights other than with their rows");
    if (alone && (g->trans_a || !g->trans_b))
        return lnt_fail(c, LINNET_EINTERNAL, "a product of transposed operands where every row is to be as if alone");
    if (!g->trans_a && g->trans_b && (alone || g->M <= GEMV_ROWS || g->N <= GEMV_ROWS))
        o = few_rows(c, g, alone || (g->M <= GEMV_ROWS && (g->M <= g->N || g->N > GEMV_ROWS)));
    else if (g->ab == LINNET_BF16 && !g->b_scale && g->alpha == 1.0f && LNT_PICK(lnt_tiles)())
        o = tile_product(c, g, LNT_PICK(lnt_tiles)());
    else
        o = tiles(c, g);
    if (o == NO_MEMORY) return lnt_fail_memory(c, (size_t)(TILE_M * BLOCK_K + TILE_N * BLOCK_K + TILE_M * TILE_N) * sizeof(float));
    if (o == REFUSED)
        return lnt_fail(c, LINNET_EINTERNAL, "oneDNN refused a product of [%lld,%lld] and [%lld,%lld]", (long long)g->M, (long long)g->K,
                        (long long)g->K, (long long)g->N);
    return LINNET_OK;
}

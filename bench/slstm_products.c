/* sLSTM on one thread of a CPU beside its products alone: the same packed panels, rows, steps and buffers, and nothing else of it. What is printed
 * are medians of calls by turns, in CPU time, which others on the machine disturb less, and the median of the turns' ratios (the must is 1.5).
 *
 *     cc -std=gnu11 -O3 -march=native -ffp-contract=fast -fno-math-errno -fopenmp -Isrc -Iinclude -o slstm_products bench/slstm_products.c -lm
 *     ./slstm_products [B T H D [TURNS]]        1 2048 4 256 15 where nothing is said
 *
 * The operator's own file is compiled in, as the vector layer takes the processor that the compiler is told of. */
#define LNT_VARIANT native
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define product mm_product /* both files have one */
#include "simd/mm_cpu.c"
#undef product
#include "recurrence/slstm/slstm_cpu.c"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *numbers(int64_t n, float size)
{
    static uint64_t seed = 88172645463325252u;
    float *p = aligned_alloc(64, (size_t)(n + 16) / 16 * 64);
    if (!p) exit(1);
    for (int64_t i = 0; i < n; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        p[i] = size * ((float)(seed >> 40) * 0x1p-23f - 1);
    }
    return p;
}

/* What forward, or backward, makes of products. y and gates come from where it leaves them. */
static void products(const lnt_slstm_args *a, bool back)
{
    const int64_t D = a->D, E = a->E;
    float *packed = a->workspace, *y = packed + packed_floats(a, back), *pre = y + BUFFER * D, *out = pre + BUFFER * E;
    pack(a, back, 1, packed);
    for (int64_t p = 0; p < groups_of(a) * a->H; p++) {
        group x = group_of(a, p % a->H, p / a->H, packed, back ? E * padded(D) : D * padded(E));
        int64_t held = 0;
        for (int64_t t = 0; t < x.longest; t++) {
            gather(&x, t);
            if (back && held + x.rows > BUFFER) {
                LNT_V(lnt_mm)(LNT_MM_ADD, (int)D, (int)E, (int)held, y, 1, D, pre, E, (float *)a->dR + x.h * D * E, E);
                held = 0;
            }
            for (int r = 0; r < x.rows; r++) {
                x.in[r] = back ? pre + (held + r) * E : y + r * D;
                x.out[r] = out + r * padded(E);
            }
            product(x.rows, back ? E : D, back ? D : E, x.R, (const float *const *)x.in, x.out);
            held += x.rows;
        }
    }
}

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }
static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return x[n / 2];
}

int main(int argc, char **argv)
{
    const int64_t B = argc > 4 ? atoi(argv[1]) : 1, T = argc > 4 ? atoi(argv[2]) : 2048;
    const int H = argc > 4 ? atoi(argv[3]) : 4, D = argc > 4 ? atoi(argv[4]) : 256, turns = argc > 5 ? atoi(argv[5]) : 15;
    if (B < 1 || T < 1 || H < 1 || D < 1 || turns < 1 || turns > 1000) return 1;
    const int64_t n = B * T * H * D;
    int64_t *cu = calloc((size_t)B + 1, sizeof *cu);
    if (!cu) return 1;
    for (int64_t i = 0; i <= B; i++) cu[i] = i * T;
    lnt_slstm_args a = { .H = H, .D = D, .E = 4 * D };
    a.dtype = LINNET_F32, a.tokens = B * T, a.sequences = B, a.longest = T, a.cu_seqlens = cu;
    a.wi = numbers(n, 1), a.wf = numbers(n, 1), a.wz = numbers(n, 1), a.wo = numbers(n, 1), a.R = numbers((int64_t)H * D * 4 * D, 0.05f);
    a.dout = numbers(n, 1), a.o = numbers(n, 1), a.gates = numbers(4 * n, 1), a.cells = numbers(4 * n, 1);
    a.dwi = numbers(n, 1), a.dwf = numbers(n, 1), a.dwz = numbers(n, 1), a.dwo = numbers(n, 1), a.dR = numbers((int64_t)H * D * 4 * D, 0);
    const size_t most = workspace(&a, true, 1) > workspace(&a, false, 1) ? workspace(&a, true, 1) : workspace(&a, false, 1);
    a.workspace = numbers((int64_t)(most / 4) + GROUP * (padded(4 * D) + D) + BUFFER * 5 * D, 1);
    static double whole[1000], part[1000], ratio[1000];
    printf("sLSTM, B=%lld T=%lld, %d heads of %d units, float32, vectors of %d, one thread\n", (long long)B, (long long)T, H, D, LNT_VL);
    for (int back = 0; back < 2; back++) {
        for (int i = -1; i < turns; i++) { /* the first warms up */
            double seconds[2];
            for (int k = 0; k < 2; k++) {
                const int which = (k + i) & 1;
                const double begin = now();
                if (which)
                    products(&a, back);
                else
                    back ? backward(&a, 1) : forward(&a, 1);
                seconds[which] = now() - begin;
            }
            if (i >= 0) whole[i] = seconds[0], part[i] = seconds[1], ratio[i] = seconds[0] / seconds[1];
        }
        const double flops = (back ? 4.0 : 2.0) * (double)n * 4 * D;
        const double p = median(part, turns);
        printf("%-8s %8.3f ms, products alone %8.3f ms (%.1f GFLOP/s), ratio %.2f\n", back ? "backward" : "forward", 1e3 * median(whole, turns),
               1e3 * p, 1e-9 * flops / p, median(ratio, turns));
    }
    return 0;
}

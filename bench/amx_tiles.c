/* What stands around AMX tiles on a Xeon, in ticks of its counter, medians: products, loads, stores, a configuration, stores that loads wait for, a unit
 * left alone, and rows of a tensor on their way in and out. docs/performance/decay.md and ttt.md quote it. One thread, best pinned to a processor.
 *
 *     cc -std=gnu11 -O2 -march=sapphirerapids -o amx_tiles bench/amx_tiles.c && taskset -c 16 ./amx_tiles */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As simd/mm_amx_cpu.c has it. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_per_row[16];
    uint8_t rows[16];
} whole_tiles = {.palette = 1, .bytes_per_row = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

enum { TURNS = 101, T = 2048, H = 8, ROWS = 64, ROW = 256 };
static _Alignas(4096) char room[1 << 20], block[ROWS * ROW * 2];

static uint64_t now(void)
{
    _mm_lfence();
    const uint64_t t = __builtin_ia32_rdtsc();
    _mm_lfence();
    return t;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over TURNS of a turn of N of BODY, less what reading the counter takes. */
#define TICKS(OUT, N, BODY)                                             \
    do {                                                                \
        double t_[TURNS];                                               \
        for (int turn_ = 0; turn_ < TURNS; turn_++) {                   \
            const uint64_t begin_ = now();                              \
            for (int n_ = 0; n_ < (N); n_++) { BODY; }                  \
            t_[turn_] = ((double)(now() - begin_) - empty) / (N);       \
        }                                                               \
        qsort(t_, TURNS, sizeof *t_, by_size);                          \
        (OUT) = t_[TURNS / 2];                                          \
    } while (0)
static double empty;

static void spin(int n) { __asm__ volatile("1: dec %0\n jnz 1b" : "+r"(n)::"cc"); } /* n cycles of the core */

static void tiles(void)
{
    double a, b, c, d;
    char *x = room;
    TICKS(a, 64, _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7));
    TICKS(b, 64, _tile_dpbf16ps(0, 4, 6));
    printf("product: four side by side %.1f, in a chain %.1f\n", a / 4, b);
    TICKS(a, 64, _tile_loadd(4, x, 64); _tile_loadd(5, x + 1024, 64); _tile_loadd(6, x + 2048, 64); _tile_loadd(7, x + 3072, 64));
    TICKS(b, 16, for (int i = 0; i < 128; i++) _tile_loadd(4, x + 65536 + i * 1024, 64));
    TICKS(c, 64, _tile_stored(0, x, 64); _tile_stored(1, x + 9216, 64));
    TICKS(d, 16, _tile_release(); _tile_loadconfig(&whole_tiles));
    printf("load: L1 %.1f, L2 %.1f; store %.1f; release and configuration %.0f\n", a / 4, b / 128, c / 2, d);
    TICKS(a, 16, for (char *p = x; p < x + 4 * 4096; p += 4096) {
        _tile_loadd(4, p, 64);
        _tile_loadd(6, p + 1024, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, p + 2048, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, p + 3072, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    });
    printf("32 x 32 x 128, 16 products and 16 loads: %.0f\n", a);
}

/* 16 lines stored, then a tile of them loaded, or of others; a product stored, then its lines loaded, or others. */
static void waiting(void)
{
    double a, b, c, d;
    char *x = room, *other = room + 65536 + 3072;
    const __m512i v = _mm512_set1_epi32(0x3f803f80);
    __m512i sum = v;
#define STORES for (int i = 0; i < 16; i++) _mm512_store_si512(x + i * 64, v)
#define LOADS(P) for (int i = 0; i < 16; i++) sum = _mm512_xor_si512(sum, _mm512_load_si512((P) + i * 64))
    TICKS(a, 32, STORES; __asm__ volatile("" ::: "memory"); _tile_loadd(4, x, 64); _tile_dpbf16ps(0, 4, 6));
    TICKS(b, 32, STORES; __asm__ volatile("" ::: "memory"); _tile_loadd(4, other, 64); _tile_dpbf16ps(0, 4, 6));
    TICKS(c, 32, _tile_dpbf16ps(0, 4, 6); _tile_stored(0, x, 64); __asm__ volatile("" ::: "memory"); LOADS(x));
    TICKS(d, 32, _tile_dpbf16ps(0, 4, 6); _tile_stored(0, x, 64); __asm__ volatile("" ::: "memory"); LOADS(other));
    _mm512_store_si512(block, sum);
    printf("16 vectors stored, tile loaded, product: the same lines %.0f, others %.0f; product, tile stored, 16 vectors loaded: %.0f, %.0f\n", a, b, c, d);
    printf("a product behind so many cycles without one takes, more than those:");
    for (int cycles = 500; cycles <= 8000; cycles *= 2) {
        TICKS(a, 8, spin(cycles); _tile_dpbf16ps(0, 4, 6); _tile_stored(0, x, 64));
        TICKS(b, 8, spin(cycles));
        printf(" %d: %.0f", cycles, a - b);
    }
    printf("\n");
}

static void prefetch(const char *p, int hint)
{
    __asm__ volatile("" : "+r"(p));
    if (hint == 1) __builtin_prefetch(p, 0, 2);
    if (hint == 2) __builtin_prefetch(p, 0, 3);
}

/* 64 rows of a head of a [T,H,128] tensor in bf16, from and to float32. `past`: past the caches; fetched before with work between, or not. */
static double rows(char *tensor, bool out, bool past, int hint, double *ahead)
{
    enum { COUNT = 2 * H * (T / ROWS - 1) };
    static double fetched[COUNT], moved[COUNT];
    int n = 0;
    for (int turn = 0; turn < 2; turn++)
        for (int h = 0; h < H; h++)
            for (int t = 0; t + 2 * ROWS <= T; t += ROWS) {
                char *row = tensor + ((int64_t)t * H + h) * ROW;
                uint64_t at = now();
                for (int i = 0; i < ROWS * ROW / 64 && hint; i++) prefetch(row + i / 4 * H * ROW + i % 4 * 64, hint);
                fetched[n] = (double)(now() - at) - empty;
                spin(5000);
                at = now();
                for (int i = 0; i < ROWS * ROW / 64; i++) {
                    __m512i *line = (__m512i *)(row + i / 4 * H * ROW + i % 4 * 64);
                    __m512 *low = (__m512 *)(block + i * 128);
                    if (!out) {
                        const __m512i x = _mm512_load_si512(line);
                        low[0] = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(x)), 16);
                        low[1] = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1)), 16);
                    } else if (past) {
                        _mm512_stream_si512(line, (__m512i)_mm512_cvtne2ps_pbh(low[1], low[0]));
                    } else {
                        _mm512_store_si512(line, (__m512i)_mm512_cvtne2ps_pbh(low[1], low[0]));
                    }
                }
                moved[n++] = (double)(now() - at) - empty;
            }
    qsort(fetched, (size_t)n, sizeof *fetched, by_size);
    qsort(moved, (size_t)n, sizeof *moved, by_size);
    *ahead = fetched[n / 2];
    return moved[n / 2];
}

int main(void)
{
    if (syscall(SYS_arch_prctl, 0x1023, 18)) {
        fprintf(stderr, "no AMX here\n");
        return 1;
    }
    char *tensor = aligned_alloc(4096, (size_t)T * H * ROW);
    if (!tensor) return 1;
    memset(tensor, 0, (size_t)T * H * ROW);
    memset(room, 0, sizeof room);
    TICKS(empty, 1, (void)0);
    _tile_loadconfig(&whole_tiles);
    for (int i = 0; i < 1 << 20; i++) _tile_dpbf16ps(0, 4, 6); /* slower in the first milliseconds */
    tiles();
    waiting();
    _tile_release();
    static const char *const names[] = {"not fetched", "fetched to L2", "fetched to L1"};
    for (int hint = 0; hint < 3; hint++) {
        double ahead[3], in = rows(tensor, false, false, hint, ahead), kept = rows(tensor, true, false, hint, ahead + 1);
        const double past = rows(tensor, true, true, hint, ahead + 2);
        printf("64 rows of 256 bytes, %s: in %.0f + %.0f, out %.0f + %.0f, past the caches %.0f + %.0f\n", names[hint], ahead[0], in, ahead[1], kept,
               ahead[2], past);
    }
    free(tensor);
    return 0;
}

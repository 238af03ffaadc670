/* AMX tiles on a processor that has AVX-512 and its bf16 instructions: included ahead of every file of the variant `amx` in a build with
 * -DLINNET_AMX=EMULATED, which then runs that variant's kernels, and its tests, anywhere. Palette 1 with whole tiles of 16 rows of 64 bytes
 * is all there is, since nothing else is used here (simd/mm_amx_cpu.c, ops/tiles_cpu.c); a tile that is used before a configuration, or
 * behind its release, ends the program as the processor does. The last bits of a product may be others: the order of its sums is not
 * written down. */
#ifndef LNT_EMULATOR_AMX_H
#define LNT_EMULATOR_AMX_H

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __AMX_TILE__ 1
#define __AMX_BF16__ 1

typedef struct {
    _Alignas(64) __m512 row[8][16];
    int configured;
} emulated_tiles;
__attribute__((weak, visibility("hidden"))) _Thread_local emulated_tiles lnt_emulated_tiles; /* weak: one set for all files, as a thread has */

static inline void emulated_configured(void)
{
    if (!lnt_emulated_tiles.configured) abort();
}

static inline void emulated_configure(const void *from)
{
    const uint8_t *c = (const uint8_t *)from;
    for (int t = 0; t < 8; t++)
        if (c[0] != 1 || c[16 + 2 * t] != 64 || c[17 + 2 * t] != 0 || c[48 + t] != 16) abort();
    memset(&lnt_emulated_tiles, 0, sizeof lnt_emulated_tiles);
    lnt_emulated_tiles.configured = 1;
}

static inline void emulated_load(int tile, const void *from, int64_t stride)
{
    emulated_configured();
    for (int i = 0; i < 16; i++) lnt_emulated_tiles.row[tile][i] = _mm512_loadu_ps((const char *)from + i * stride);
}

static inline void emulated_store(int tile, void *to, int64_t stride)
{
    emulated_configured();
    for (int i = 0; i < 16; i++) _mm512_storeu_ps((char *)to + i * stride, lnt_emulated_tiles.row[tile][i]);
}

/* c[i][n] += a[i][2k] b[k][2n] + a[i][2k+1] b[k][2n+1] */
static inline void emulated_product(int c, int a, int b)
{
    emulated_configured();
    for (int i = 0; i < 16; i++) {
        _Alignas(64) uint32_t pairs[16];
        _mm512_store_si512(pairs, _mm512_castps_si512(lnt_emulated_tiles.row[a][i]));
        __m512 sum = lnt_emulated_tiles.row[c][i];
        for (int k = 0; k < 16; k++)
            sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32((int)pairs[k]), (__m512bh)lnt_emulated_tiles.row[b][k]);
        lnt_emulated_tiles.row[c][i] = sum;
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(c) emulated_configure(c)
#define _tile_release() ((void)(lnt_emulated_tiles.configured = 0))
#define _tile_zero(t) ((void)(emulated_configured(), memset(lnt_emulated_tiles.row[t], 0, 1024)))
#define _tile_loadd(t, from, stride) emulated_load(t, from, stride)
#define _tile_stored(t, to, stride) emulated_store(t, to, stride)
#define _tile_dpbf16ps(c, a, b) emulated_product(c, a, b)

#endif

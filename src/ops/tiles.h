/* bf16 products on a matrix unit (AMX): what gemm.c needs to know. K is walked in steps of 32 and C in blocks of 32 x 32.
 *
 *   A strips   16 rows of A:   [steps][16 rows][32 k]
 *   B panels   32 columns of B: [steps][2][16 pairs of k][16 columns][2]     (pairs of k side by side: the unit's order) */
#ifndef LNT_OPS_TILES_H
#define LNT_OPS_TILES_H

#include "ops/gemm.h"
#include "simd/variant.h"

enum { LNT_TILE_ROWS = 16, LNT_TILE_K = 32, LNT_TILE_BLOCK = 32, LNT_STRIP_STEP = 512, LNT_PANEL_STEP = 1024 };

typedef struct {
    const lnt_gemm_args *g;
    int64_t k0, steps;          /* this part of K */
    const lnt_bf16 *strips;     /* packed strips from strip `first_packed` on; the ones before are read in place */
    int64_t first_packed;
    const lnt_bf16 *panels;     /* every panel of B */
    int64_t m0, m1, n0, n1;     /* the tile of C; m0 and n0 are multiples of 32 */
    bool add;                   /* to what C holds */
    float *sums;                /* C in bf16: float32 for the tile, [m1-m0 rounded up to 32][n1-n0 rounded up to 32] */
} lnt_tile_job;

typedef struct {
    void (*pack_strip)(const lnt_gemm_args *g, int64_t strip, int64_t k0, int64_t k1, lnt_bf16 *out);
    void (*pack_panel)(const lnt_gemm_args *g, int64_t panel, int64_t k0, int64_t k1, lnt_bf16 *out);
    void (*multiply)(const lnt_tile_job *j);
} lnt_tile_kernels;

/* NULL: this variant has no matrix unit. */
typedef const lnt_tile_kernels *lnt_tile_kernels_of(void);
LNT_DECLARE_VARIANTS(lnt_tile_kernels_of, lnt_tiles);

#endif

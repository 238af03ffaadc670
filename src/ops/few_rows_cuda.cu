/* Up to 16 rows of x against large weights, bf16 on the matrix unit (few_tile.cuh). Floor: the weights read once. */
#include "device/persistent.cuh"
#include "ops/few_tile.cuh"

extern "C" {
#include "core/threads.h"
bool lnt_few_rows_sm90(const lnt_cuda *d, const lnt_few_rows *f);
bool lnt_few_stream_sm90(const lnt_cuda *d, const lnt_few_rows *f);
}

namespace {

using namespace few_tile;

constexpr int FEW_MOST = 16;
/* Where tiles fill most multiprocessors, or a K is so long that its loads do not fit into registers at once, blocks that stay and bring weights into
 * shared memory win (few_stream_sm90.cu): alone not always, but beside the registers of these no block of such a product that follows finds a place,
 * and its weights come only when these have ended (45 of 935 us of a step whose [2048, 2048] was done here). */
constexpr double MANY = 0.75;
constexpr int LONG = 4096;

template <int TILES, int WARPS, int AHEAD, int BLOCKS>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS) few_rows_kernel(const __grid_constant__ product a)
{
    __shared__ share<TILES, WARPS> s;
    tile<TILES, WARPS, AHEAD>(a.parts, a.weights, (int)blockIdx.x, s, lnt_alone());
}

/* K of some thousands: twice the warps, so that few blocks bring enough at once. Narrow ones: a turn for each warp, so small that all blocks of many
 * thousand rows are there at once. */
template <int TILES> void launch(const lnt_cuda *d, const product &a, int64_t K)
{
    if (K <= LNT_FEW_NARROW)
        lnt_launch(d, few_rows_kernel<TILES, LNT_FEW_NARROW / STEP, 1, 8>, (unsigned)a.parts.tiles, LNT_FEW_NARROW / STEP * 32, a);
    else if (K <= LONG)
        lnt_launch(d, few_rows_kernel<TILES, 8, 4, 2>, (unsigned)a.parts.tiles, 256, a);
    else
        lnt_launch(d, few_rows_kernel<TILES, 16, TILES == 1 ? 3 : 2, 1>, (unsigned)a.parts.tiles, 512, a);
}

void launch_piece(const lnt_cuda *d, const lnt_piece *piece, const CUtensorMap *)
{
    product a;
    memcpy(&a, piece->args, sizeof a);
    launch<1>(d, a, a.narrow ? LNT_FEW_NARROW : LONG);
}

bool reaches(const void *p, int64_t ld) { return (uintptr_t)p % 16 == 0 && ld % 8 == 0; }

} // namespace

/* Whether tensors lie as these kernels read them; *rows: of all weights. */
static bool fits(const lnt_few_rows *f, int64_t *rows)
{
    if (f->K < 8 || f->K % 8 || f->K > INT32_MAX / 2 || !reaches(f->x, f->ldx)) return false;
    *rows = 0;
    for (int i = 0; i < f->parts; i++) {
        const lnt_few_part *q = &f->part[i];
        if (q->x && (q->K < 8 || q->K % 8 || (q->K != f->K && (q->K > LNT_FEW_NARROW || f->K > LNT_FEW_NARROW)) || !reaches(q->x, q->ldx)))
            return false;
        if (!reaches(f->part[i].w, f->part[i].ldw) || f->part[i].N < 1 || (f->swiglu && f->part[i].N != f->part[0].N)) return false;
        *rows += f->part[i].N;
    }
    return *rows <= INT32_MAX / 2;
}

/* All parts have the same number of columns. */
static bool even(const lnt_few_rows *f)
{
    for (int i = 0; i < f->parts; i++)
        if (f->part[i].x && f->part[i].K != f->K) return false;
    return true;
}

static bool hopper(const lnt_cuda *d, const lnt_few_rows *f) { return f->weights && d->base.capability / 10 == 9; }

static bool can(const lnt_cuda *d, const lnt_few_rows *f, int64_t *rows)
{
    if (f->R < 1 || f->R > LNT_FEW_ROWS || !fits(f, rows)) return false;
    return f->R <= FEW_MOST || (hopper(d, f) && even(f) && f->K >= STEP);
}

static bool put(const lnt_cuda *d, const lnt_few_rows *f)
{
    int64_t rows;
    if (!can(d, f, &rows)) return false;
    if (f->R > FEW_MOST) return lnt_few_rows_sm90(d, f);
    const bool many = (double)(rows / ROWS) >= MANY * d->base.multiprocessors;
    if (hopper(d, f) && even(f) && f->K > LNT_FEW_NARROW && (many || f->K > LONG) && lnt_few_stream_sm90(d, f)) return true;
    const product a = {few_parts_of(f, ROWS), f->weights, f->K <= LNT_FEW_NARROW};
    if (f->R <= 8 && f->K <= LONG && lnt_persistent_offer(d, LNT_PIECE_TILES, &a, sizeof a, a.parts.tiles, sizeof(share<1, 8>), NULL, launch_piece))
        return true;
    if (f->R <= 8)
        launch<1>(d, a, f->K);
    else
        launch<2>(d, a, f->K);
    return true;
}

extern "C" bool lnt_few_rows_can(lnt_ctx *c, const lnt_few_rows *f)
{
    int64_t rows;
    return !lnt_rows_are_alone(c) && can(lnt_cuda_of(c), f, &rows);
}

/* Rows begin .. of a call. */
static lnt_few_rows some_of(const lnt_few_rows *f, int begin, int most)
{
    lnt_few_rows some = *f;
    some.R = f->R - begin < most ? f->R - begin : most;
    some.x = (const bf16 *)f->x + begin * f->ldx;
    for (int i = 0; i < f->parts; i++) {
        if (f->part[i].x) some.part[i].x = (const bf16 *)f->part[i].x + begin * f->part[i].ldx;
        if (f->part[i].y) some.part[i].y = (char *)f->part[i].y + begin * f->part[i].ldy * (f->part[i].type == LINNET_F32 ? 4 : 2);
    }
    return some;
}

/* Every row as if alone: what is chosen depends on the weights, and on where x lies, alone. On Hopper the kernel of up to 64 rows takes one as
 * well: a row's sums are in one order however many stand beside it, and the weights of a step of many sequences are read once. */
static bool put_alone(const lnt_cuda *d, const lnt_few_rows *f)
{
    int64_t rows;
    if (!fits(f, &rows) || !even(f)) return false;
    const bool wide = hopper(d, f) && f->K >= 64;
    const int most = wide ? LNT_FEW_ROWS : 8;
    for (int r = 0; r < f->R; r += most) {
        const lnt_few_rows some = some_of(f, r, most);
        if (!(wide ? lnt_few_rows_sm90(d, &some) : put(d, &some))) return false;
    }
    return true;
}

extern "C" bool lnt_few_rows_cuda(lnt_ctx *c, const lnt_few_rows *f)
{
    return lnt_rows_are_alone(c) ? put_alone(lnt_cuda_of(c), f) : put(lnt_cuda_of(c), f);
}

/* What is recorded as pieces (persistent.cuh). */
#include "device/persistent.cuh"

enum { MOST_PIECES = 1024, MOST_MAPS = MOST_PIECES * LNT_PIECE_MAPS, MOST_RUNS = 64, LEAST = 8 }; /* LEAST: fewer are kernels of their own */

/* What is being recorded. */
struct lnt_persistent {
    lnt_piece *piece;        /* [MOST_PIECES] */
    lnt_piece_plain **plain; /* of each */
    CUtensorMap *map;        /* LNT_PIECE_MAPS of each */
    int n, put, runs, first; /* put: those before are done with; first: the block that has the next piece's first share */
    char *memory;            /* the device's: maps, pieces, counters, states of runs */
};

static constexpr size_t AT_PIECES = (size_t)MOST_MAPS * sizeof(CUtensorMap), AT_LEFT = AT_PIECES + (size_t)MOST_PIECES * sizeof(lnt_piece),
                        AT_STATE = AT_LEFT + MOST_PIECES * 4, ALL = AT_STATE + MOST_RUNS * sizeof(lnt_piece_runs);

static void forget(lnt_persistent *p)
{
    lnt_free(p->piece);
    lnt_free(p->plain);
    lnt_free(p->map);
    lnt_free(p);
}

extern "C" void lnt_persistent_begin(lnt_cuda *d)
{
    if (!d->persistent_launch || d->persistent) return;
    lnt_persistent *p = (lnt_persistent *)lnt_calloc(sizeof *p);
    if (!p) return;
    p->piece = (lnt_piece *)lnt_calloc(MOST_PIECES * sizeof *p->piece);
    p->plain = (lnt_piece_plain **)lnt_calloc(MOST_PIECES * sizeof *p->plain);
    p->map = (CUtensorMap *)lnt_calloc(MOST_MAPS * sizeof *p->map);
    if (p->piece && p->plain && p->map && cudaMalloc(&p->memory, ALL) == cudaSuccess) {
        d->persistent = p;
        return;
    }
    cudaGetLastError();
    forget(p);
}

extern "C" bool lnt_persistent_offer(const lnt_cuda *d, lnt_piece_kind kind, const void *args, size_t bytes, int blocks, size_t work,
                                     const CUtensorMap *maps, lnt_piece_plain *plain)
{
    lnt_persistent *p = d->persistent;
    if (!p || p->n == MOST_PIECES || p->runs == MOST_RUNS || bytes > LNT_PIECE_ARGS || blocks < 1) return false;
    const int G = d->base.multiprocessors;
    lnt_piece *piece = &p->piece[p->n];
    piece->kind = kind, piece->blocks = blocks, piece->first = p->first, piece->work = (int32_t)work;
    if (maps) {
        memcpy(p->map + p->n * LNT_PIECE_MAPS, maps, LNT_PIECE_MAPS * sizeof *maps);
        piece->maps = (const CUtensorMap *)p->memory + p->n * LNT_PIECE_MAPS;
    }
    memcpy(piece->args, args, bytes);
    p->plain[p->n++] = plain;
    p->first = (p->first + blocks) % G;
    return true;
}

/* Pieces begin .. end - 1 as one kernel. */
static void put_run(lnt_cuda *d, lnt_persistent *p, int begin, int end)
{
    const int all = d->base.multiprocessors;
    for (int i = begin; i < end; i++) p->piece[i].before = i == begin ? 0 : p->piece[i - 1].blocks < all ? p->piece[i - 1].blocks : all;
    const lnt_piece_run run = {p->piece + begin, (const lnt_piece *)(p->memory + AT_PIECES) + begin, (uint32_t *)(p->memory + AT_LEFT) + begin,
                               (lnt_piece_runs *)(p->memory + AT_STATE) + p->runs++, end - begin};
    d->persistent_launch(d, &run);
}

extern "C" void lnt_persistent_put(lnt_cuda *d)
{
    lnt_persistent *p = d->persistent;
    if (!p || p->put == p->n) return;
    const int begin = p->put, end = p->n;
    p->put = end;
    if (end - begin >= LEAST && p->runs < MOST_RUNS) return put_run(d, p, begin, end);
    d->persistent = NULL;
    for (int i = begin; i < end; i++) p->plain[i](d, &p->piece[i], p->map + i * LNT_PIECE_MAPS);
    d->persistent = p;
}

extern "C" void *lnt_persistent_end(lnt_cuda *d)
{
    lnt_persistent *p = d->persistent;
    if (!p) return NULL;
    d->persistent = NULL;
    void *memory = p->memory;
    if (p->runs) {
        lnt_cuda_note(d, cudaMemsetAsync(p->memory + AT_LEFT, 0, ALL - AT_LEFT, d->stream));
        lnt_cuda_note(d, cudaMemcpyAsync(p->memory, p->map, (size_t)p->n * LNT_PIECE_MAPS * sizeof *p->map, cudaMemcpyHostToDevice, d->stream));
        lnt_cuda_note(d, cudaMemcpyAsync(p->memory + AT_PIECES, p->piece, (size_t)p->n * sizeof *p->piece, cudaMemcpyHostToDevice, d->stream));
        lnt_cuda_note(d, cudaStreamSynchronize(d->stream));
    } else {
        lnt_cuda_note(d, cudaFree(memory));
        memory = NULL;
    }
    forget(p);
    return memory;
}

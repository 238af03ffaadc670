/* In which spans the rows of a head's sequence go, and what rows on tiles do for those to come. Only ttt_work.h and titans_work.h include this. */
#ifndef LNT_TTT_SPANS_H
#define LNT_TTT_SPANS_H

#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/ttt/ttt.h"

/* Sequence n and head h of a call, mini-batches of m rows of D, spans of `span`; `away` tokens from a row to that of the next span. A head at work
 * has them as its own and as what is asked for here. */
#define TTT_PLACE                   \
    const lnt_ttt_args *a;          \
    int64_t n, h, D, m, span, away; \
    bool tiled
typedef struct {
    TTT_PLACE;
} ttt_place;
#define TTT_HAS_PLACE     \
    union {               \
        ttt_place place;  \
        struct {          \
            TTT_PLACE;    \
        };                \
    }

/* Rows of a loop take some hundred cycles, or `light` ones some tens (simd/mm.h). More products than that hold up what comes behind them. */
static inline void row_awake(int64_t i)
{
    if (i % 4 == 0) lnt_tiles_awake();
}
static inline void light_row_awake(int64_t i)
{
    if (i % 16 == 0) lnt_tiles_awake();
}

static inline int64_t len_of(const ttt_place *x) { return x->a->cu_seqlens[x->n + 1] - x->a->cu_seqlens[x->n]; }

/* ---- spans: whole mini-batches of a sequence of len tokens, taken together. One that the state has open, of `open` rows, and one that is left open
 * are spans of their own. ------------------------------------------------------------------------------------------------------------------- */

/* Rows of the first mini-batch where it is open, and of all spans of whole ones behind it. */
static inline int64_t open_rows(const ttt_place *x, int64_t open, int64_t len) { return !open ? 0 : open + len < x->m ? open + len : x->m; }
static inline int64_t whole_rows(const ttt_place *x, int64_t open, int64_t len)
{
    return (open + len - open_rows(x, open, len)) / x->m * x->m;
}

static inline int64_t spans_of(const ttt_place *x, int64_t open, int64_t len)
{
    const int64_t first = open_rows(x, open, len), whole = whole_rows(x, open, len);
    return (first > 0) + (whole + x->span - 1) / x->span + (first + whole < open + len);
}

static inline lnt_ttt_batch span_at(const ttt_place *x, int64_t open, int64_t len, int64_t c)
{
    const int64_t first = open_rows(x, open, len), whole = whole_rows(x, open, len);
    if (first && !c) return (lnt_ttt_batch){ 0, open, first };
    const int64_t begin = (c - (first > 0)) * x->span;
    const int64_t end = begin + x->span < whole ? begin + x->span : whole;
    const int64_t from = first + (begin < whole ? begin : whole), to = begin < whole ? first + end : open + len;
    return (lnt_ttt_batch){ from - open, 0, to - from };
}

/* Where the mini-batch of row i of a span begins. */
static inline int64_t batch_of(const ttt_place *x, int64_t i) { return i - i % x->m; }
/* The last row of that, of `rows` in all. */
static inline int64_t last_of(const ttt_place *x, int64_t i, int64_t rows)
{
    const int64_t end = batch_of(x, i) + x->m;
    return (end < rows ? end : rows) - 1;
}

/* On tiles, whose products fetch nothing (chunk_rows.h), the row of the next span that lies where token t does in this one is asked for between rows
 * of norms and losses: all rows of a span at once fill the core's buffers, and what comes behind waits (docs/performance/ttt.md). */
static inline void row_of_next(const ttt_place *x, const void *p, lnt_dtype type, int64_t t, int64_t width)
{
    t += x->away;
    if (x->tiled && t >= x->a->cu_seqlens[x->n]) row_ahead(p, type, t, x->a->cu_seqlens[x->n + 1], x->a->H, x->h, width);
}
/* Of two tensors of rows of D. */
static inline void rows_of_next(const ttt_place *x, const void *p, const void *q, int64_t t)
{
    row_of_next(x, p, x->a->dtype, t, x->D);
    row_of_next(x, q, x->a->dtype, t, x->D);
}

#endif

/* The walk that chunk forms share: heads side by side, a head's chunks one after another, the next chunk's rows fetched meanwhile, states in and out,
 * sums over the value heads that share keys. A core brings what happens in a chunk. Only *_cpu.c files include this, after chunk_rows.h. */
#ifndef LNT_CHUNK_WALK_H
#define LNT_CHUNK_WALK_H

#include <omp.h>

#include "core/memory.h"
#include "recurrence/chunk/chunk.h"
#include "recurrence/chunk/chunk_rows.h"
#include "recurrence/recur_args.h"

/* A value head of a sequence. */
typedef struct {
    const lnt_recur_args *a;
    int64_t n, first, len, index; /* sequence, its first token and its tokens, its place among the states [N,Hv] */
    int h, hq;
} lnt_head;

/* Rows of a head that are worked on together. */
typedef struct {
    int64_t first, row;   /* token of the first row; the same counted from the sequence's start */
    int n;
    int64_t next, next_n; /* first token and rows of the chunk after this one; 0 rows: it is the last */
} lnt_rows;

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The chunk length where C is wished for: no longer than the longest sequence. */
static inline int chunk_length(const lnt_recur_args *a, int64_t C)
{
    int64_t longest = a->longest;
    return (int)(C < longest ? C : longest > 0 ? longest : 1);
}

static inline int64_t chunk_count(const lnt_head *x, int C) { return (x->len + C - 1) / C; }

/* Chunk i; chunk i + step comes after it. */
static inline lnt_rows chunk_at(const lnt_head *x, int C, int64_t i, int step)
{
    int64_t row = i * C, next = row + step * C;
    return (lnt_rows){ .first = x->first + row,
                       .row = row,
                       .n = (int)least(x->len - row, C),
                       .next = x->first + next,
                       .next_n = next < 0 || next >= x->len ? 0 : least(x->len - next, C) };
}

/* Fetch the next chunk's rows of a tensor. */
static inline void key_ahead(const lnt_head *x, lnt_rows c, const void *rows)
{
    rows_ahead(rows, x->a->dtype, c.next, c.next_n, x->a->Hq, x->hq, x->a->K);
}
static inline void value_ahead(const lnt_head *x, lnt_rows c, const void *rows)
{
    rows_ahead(rows, x->a->dtype, c.next, c.next_n, x->a->Hv, x->h, x->a->V);
}
static inline void float_ahead(const lnt_head *x, lnt_rows c, const void *rows, int64_t width)
{
    rows_ahead(rows, LINNET_F32, c.next, c.next_n, x->a->Hv, x->h, width);
}

/* The head's part of a tensor [N,Hv,size]. */
static inline void get_state(const lnt_head *x, float *dst, const void *src, int64_t size)
{
    if (src)
        memcpy(dst, (const float *)src + x->index * size, (size_t)size * 4);
    else
        memset(dst, 0, (size_t)size * 4);
}

static inline void put_state(const lnt_head *x, void *dst, int64_t size, const float *src)
{
    if (dst && size) memcpy((float *)dst + x->index * size, src, (size_t)size * 4);
}

/* Rows of a gradient [T,Hq,K]: into the tensor, or added up over the value heads of a group first, in sum [len,K] (NULL: a group is one head). */
static inline void put_shared(const lnt_head *x, lnt_rows c, const float *rows, void *out, float *sum)
{
    const lnt_recur_args *a = x->a;
    int64_t size = (int64_t)c.n * a->K;
    int group = a->Hv / a->Hq;
    if (!out) return;
    if (sum) {
        float *restrict s = sum + c.row * a->K;
        bool begin = x->h % group == 0;
        for (int64_t i = 0; i < size; i++) s[i] = begin ? rows[i] : s[i] + rows[i];
        if ((x->h + 1) % group) return;
        rows = s;
    }
    rows_out(out, a->dtype, c.first, c.n, a->Hq, x->hq, a->K, rows);
}

#if defined(__AMX_BF16__)
/* 32 columns, from `at` on, of rows of a result in bf16 [T,heads,width]; with `all` [n,width] they go there, to be added up over heads. */
static inline void columns_out(lnt_rows c, int64_t heads, int64_t h, int64_t width, int64_t at, const float *columns, void *out, float *all)
{
    lnt_bf16 *row = out ? (lnt_bf16 *)out + (c.first * heads + h) * width + at : NULL;
    const bool past = !all && rows_past(out, LINNET_BF16, width);
    for (int64_t i = 0; past && out && i < c.n; i++, columns += 32, row += heads * width) line_past(row, v_load(columns), v_load(columns + 16));
    for (int64_t i = 0; !past && out && i < c.n; i++, columns += 32, row += heads * width)
        for (int64_t j = 0; j < 32; j += LNT_VL) {
            if (all)
                v_store(all + i * width + at + j, v_load(columns + j));
            else
                v_store_bf16(row + j, v_load(columns + j));
        }
}
#endif

/* body(head, scratch) for every value head; with `grouped` a piece of work is a query-key head, whose value heads follow one another. Pieces do not
 * depend on the number of threads. A thread's scratch is `each` bytes behind `base`. */
static inline void walk_heads(const lnt_recur_args *a, int threads, bool grouped, const lnt_mm_engine *e, char *base, size_t each,
                              void (*body)(const lnt_head *x, char *scratch))
{
    int64_t heads = grouped ? a->Hq : a->Hv, group = a->Hv / heads, pieces = a->sequences * heads;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (pieces > 1)
    for (int64_t i = 0; i < pieces; i++) {
        lnt_ahead *ahead = &LNT_V(lnt_mm_ahead);
        int64_t n = i / heads, first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first;
        const bool outer_once = ahead->at_once, outer_past = ahead->past; /* a core may call another */
        e->begin();
        ahead->at_once = grouped && (int64_t)a->K * a->V > 64 * 96; /* backward, with states and rows that fill the L2 cache (decay.md) */
        rows_past_begin(a->tokens * a->Hv * a->V);
        for (int64_t h = i % heads * group; h < (i % heads + 1) * group; h++) {
            lnt_head x = { .a = a, .n = n, .first = first, .len = len, .index = n * a->Hv + h, .h = (int)h, .hq = (int)(h / (a->Hv / a->Hq)) };
            body(&x, base + (size_t)omp_get_thread_num() * each);
        }
        rows_past_end();
        ahead->at_once = outer_once, ahead->past = outer_past;
        e->end();
    }
}

/* Longest chunk taken by the forms below, in writes: its square matrices are 64 to 256 MB each. */
enum { CHUNK_LONGEST = 4096 };

/* Why a form that runs on `e` and keeps the states at all chunks' starts does not take a call; NULL: it does. */
static inline const char *chunk_declines(const lnt_recur_args *a, const lnt_mm_engine *e, bool backward)
{
    int64_t states;
    if (e->bf16 && a->dtype != LINNET_BF16) return "its products round to bf16; the tensors are float32";
    if (a->chunk > CHUNK_LONGEST / lnt_recur_writes(a)) return "the chunk is longer than 4096";
    if (backward && (!lnt_mul(a->longest, (int64_t)a->K * a->V, &states) || states > (int64_t)1 << 50))
        return "the states of all chunks are too large";
    return NULL;
}

/* The implementation LNT_V(NAME) of a file that has each_bytes(args, backward), forward_head and backward_head. */
#define LNT_CHUNK_FORM(NAME, ENGINE)                                                                                               \
    static const char *declines(const void *args, bool back) { return chunk_declines(args, &ENGINE, back); }                       \
    static size_t workspace(const void *args, bool back, int threads) { return (size_t)threads * each_bytes(args, back); }         \
    static void forward(const void *args, int threads)                                                                             \
    {                                                                                                                              \
        const lnt_recur_args *a = args;                                                                                            \
        walk_heads(a, threads, false, &ENGINE, a->workspace, each_bytes(a, false), forward_head);                                  \
    }                                                                                                                              \
    static void backward(const void *args, int threads)                                                                            \
    {                                                                                                                              \
        const lnt_recur_args *a = args;                                                                                            \
        walk_heads(a, threads, true, &ENGINE, a->workspace, each_bytes(a, true), backward_head);                                   \
    }                                                                                                                              \
    extern const lnt_recur_impl LNT_V(NAME);                                                                                       \
    const lnt_recur_impl LNT_V(NAME) = { .name = LNT_V_NAME("chunk"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL,             \
                                         .declines = declines, .workspace = workspace, .forward = forward, .backward = backward };

#endif

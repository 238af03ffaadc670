/* The walk over heads and sequences that the models of the ttt core share. Only its *_cpu.c files include this. */
#ifndef LNT_TTT_WALK_H
#define LNT_TTT_WALK_H

#include <omp.h>

#include "recurrence/ttt/ttt_rows.h"

/* A model: what it does to head h of sequence n in a thread's scratch, and what it sums over all sequences. */
typedef struct {
    int64_t (*scratch)(const lnt_ttt_args *a, bool back); /* floats of a thread */
    int64_t (*sums)(const lnt_ttt_args *a);               /* of a head */
    void (*forward)(const lnt_ttt_args *a, float *scratch, int64_t n, int64_t h, bool one_by_one);
    void (*backward)(const lnt_ttt_args *a, float *scratch, int64_t n, int64_t h, float *sums); /* adds to these */
    void (*add)(const lnt_ttt_args *a, int64_t h, const float *sums, int64_t parts, int64_t away); /* of parts `away` apart, to the results */
} ttt_model;

/* A head of a sequence is a piece of work. */
static inline void ttt_forward(const ttt_model *m, const lnt_ttt_args *a, int threads, bool one_by_one)
{
    const int64_t count = a->sequences * a->H, each = m->scratch(a, false);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (count > 1)
    for (int64_t i = 0; i < count; i++) {
        rows_past_begin(a->tokens * a->H * a->D);
        m->forward(a, (float *)a->workspace + omp_get_thread_num() * each, i / a->H, i % a->H, one_by_one);
        rows_past_end();
    }
}

/* A head of a part of the sequences is. Their sums lie behind the threads' scratch, by part and head. */
static inline void ttt_backward(const ttt_model *m, const lnt_ttt_args *a, int threads)
{
    const int64_t parts = ttt_parts(a), each = m->scratch(a, true), sums = m->sums(a), count = parts * a->H;
    float *all = (float *)a->workspace + threads * each;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (count > 1)
    for (int64_t i = 0; i < count; i++) {
        memset(all + i * sums, 0, (size_t)sums * sizeof(float));
        rows_past_begin(a->tokens * a->H * a->D);
        for (int64_t n = ttt_part(a, i / a->H); n < ttt_part(a, i / a->H + 1); n++)
            m->backward(a, (float *)a->workspace + omp_get_thread_num() * each, n, i % a->H, all + i * sums);
        rows_past_end();
    }
    for (int64_t h = 0; h < a->H; h++) m->add(a, h, all + h * sums, parts, a->H * sums);
}

static inline size_t ttt_workspace(const ttt_model *m, const lnt_ttt_args *a, bool back, int threads)
{
    return (size_t)(threads * m->scratch(a, back) + (back ? ttt_parts(a) * a->H * m->sums(a) : 0)) * sizeof(float);
}

/* With tiles a variant is for what has them: the same code for float32 takes 1.1 to 1.2 times as long there as with AVX-512 alone. */
static const char *ttt_declines(const void *args, bool back)
{
    (void)back;
#if defined(__AMX_BF16__)
    if (((const lnt_ttt_args *)args)->dtype == LINNET_F32) return "float32 goes faster by AVX-512 alone";
#else
    (void)args;
#endif
    return NULL;
}

/* NAME_chunk and NAME_recurrent of a model. Its file has a structure `head` for one at work, and
 *   carve          a head's pointers into its scratch p (NULL: none yet), and the floats of that
 *   set_head       which head of which sequence it is
 *   bind_sums      where its sums go, of which there are `sums`; add_sums: from there to the results
 *   forward_head, backward_head
 * Backward goes by mini-batches in both forms. */
#define LNT_TTT_FORMS(NAME)                                                                                                        \
    static int64_t scratch(const lnt_ttt_args *a, bool back)                                                                       \
    {                                                                                                                              \
        head x;                                                                                                                    \
        return carve(a, back, NULL, &x);                                                                                           \
    }                                                                                                                              \
    static void forward_one(const lnt_ttt_args *a, float *p, int64_t n, int64_t h, bool one_by_one)                                \
    {                                                                                                                              \
        head x;                                                                                                                    \
        carve(a, false, p, &x);                                                                                                    \
        set_head(&x, n, h);                                                                                                        \
        forward_head(&x, one_by_one);                                                                                              \
    }                                                                                                                              \
    static void backward_one(const lnt_ttt_args *a, float *p, int64_t n, int64_t h, float *sum)                                    \
    {                                                                                                                              \
        head x;                                                                                                                    \
        carve(a, true, p, &x);                                                                                                     \
        set_head(&x, n, h);                                                                                                        \
        bind_sums(&x, sum);                                                                                                        \
        backward_head(&x);                                                                                                         \
    }                                                                                                                              \
    static const ttt_model model = { scratch, sums, forward_one, backward_one, add_sums };                                         \
    static size_t workspace(const void *args, bool back, int threads) { return ttt_workspace(&model, args, back, threads); }       \
    static void forward(const void *args, int threads) { ttt_forward(&model, args, threads, false); }                              \
    static void forward_tokens(const void *args, int threads) { ttt_forward(&model, args, threads, true); }                        \
    static void backward(const void *args, int threads) { ttt_backward(&model, args, threads); }                                   \
    extern const lnt_recur_impl LNT_V(NAME##_chunk), LNT_V(NAME##_recurrent);                                                      \
    const lnt_recur_impl LNT_V(NAME##_chunk) = { .name = LNT_V_NAME("chunk"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL,     \
                                                 .declines = ttt_declines, .workspace = workspace, .forward = forward,             \
                                                 .backward = backward };                                                           \
    const lnt_recur_impl LNT_V(NAME##_recurrent) = { .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL, \
                                                     .workspace = workspace, .forward = forward_tokens, .backward = backward }

#endif

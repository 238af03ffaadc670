/* The token form's way back over a sequence: its last step first, each with the state in front of it. States are made again from those that are
 * kept in front of every so many steps, and these, where a sequence is long, from others that lie further apart: TOKEN_STATES of each kind at most,
 * however many steps there are. The kinds are a level each, and a level takes each step once more.
 *
 * A core brings the step itself, forwards and back. Only *_cpu.c files include this. */
#ifndef LNT_TOKEN_WALK_H
#define LNT_TOKEN_WALK_H

#include "recurrence/chunk/chunk_walk.h"

enum { TOKEN_STATES = 16 };

typedef struct {
    void *work;   /* the core's own, handed to both */
    void (*advance)(void *work, int64_t step, const float *before, float *after); /* after == before is fine */
    void (*back)(void *work, int64_t step, const float *before);
    int64_t size; /* floats of a state */
    float *kept;  /* [token_states(longest), size] */
} lnt_token_walk;

/* The states that a sequence of so many steps keeps. The first of a level is the one that it is given. */
static inline int64_t token_states(int64_t steps)
{
    int64_t states = 0;
    for (int64_t span = 1; span < steps; span *= TOKEN_STATES) states += TOKEN_STATES - 1;
    return states;
}

/* Steps from .. to - 1, in front of which the state is `start`; states are kept `span` steps apart. */
static inline void token_walk_level(const lnt_token_walk *w, int64_t from, int64_t to, int64_t span, const float *start, float *kept)
{
    int64_t n = 0;
    const float *S = start;
    for (; from + (n + 1) * span < to; n++) {
        float *next = kept + n * w->size;
        for (int64_t i = 0; i < span; i++) w->advance(w->work, from + n * span + i, i ? next : S, next);
        S = next;
    }
    for (; n >= 0; n--) {
        const int64_t first = from + n * span;
        S = n ? kept + (n - 1) * w->size : start;
        if (span == 1)
            w->back(w->work, first, S);
        else
            token_walk_level(w, first, least(to, first + span), span / TOKEN_STATES, S, kept + (TOKEN_STATES - 1) * w->size);
    }
}

static inline void token_walk_back(const lnt_token_walk *w, int64_t steps, const float *start)
{
    int64_t span = 1;
    while (span * TOKEN_STATES < steps) span *= TOKEN_STATES;
    if (steps) token_walk_level(w, 0, steps, span, start, w->kept);
}

/* The implementation LNT_V(NAME) of a file that has carve(args, backward, base, work *), forward_head and backward_head. */
#define LNT_TOKEN_FORM(NAME)                                                                                                       \
    static size_t each_bytes(const lnt_recur_args *a, bool back)                                                                   \
    {                                                                                                                              \
        work w;                                                                                                                    \
        return carve(a, back, NULL, &w);                                                                                           \
    }                                                                                                                              \
    static size_t workspace(const void *args, bool back, int threads) { return (size_t)threads * each_bytes(args, back); }         \
    static void forward(const void *args, int threads)                                                                             \
    {                                                                                                                              \
        const lnt_recur_args *a = args;                                                                                            \
        walk_heads(a, threads, false, &LNT_V(lnt_mm_f32), a->workspace, each_bytes(a, false), forward_head);                       \
    }                                                                                                                              \
    static void backward(const void *args, int threads)                                                                            \
    {                                                                                                                              \
        const lnt_recur_args *a = args;                                                                                            \
        walk_heads(a, threads, true, &LNT_V(lnt_mm_f32), a->workspace, each_bytes(a, true), backward_head);                        \
    }                                                                                                                              \
    extern const lnt_recur_impl LNT_V(NAME);                                                                                       \
    const lnt_recur_impl LNT_V(NAME) = { .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,     \
                                         .workspace = workspace, .forward = forward, .backward = backward };

#endif

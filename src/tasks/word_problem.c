/* Word problems of groups: after every element, the product of all so far (Merrill et al., arXiv 2404.08819; DeltaProduct, arXiv 2502.10297). */
#include <string.h>

#include "tasks/study.h"

enum { S3, S4, A5, S5, MOST_POINTS = 5, MOST_ELEMENTS = 120 };
enum { ALL, SWAPS, HARD };

typedef struct {
    int group, variant;
    int64_t limit, length, test_length;
    lnt_study study;
} options;

static const lnt_option keys[] = {
    LNT_WORD(options, group, "S3 S4 A5 S5", S3, "permutations of 3, 4 or 5 points; A5: the even ones"),
    LNT_WORD(options, variant, "all swaps hard", ALL, "swaps: products of transpositions alone; hard: three of four elements are the identity"),
    LNT_INT(options, limit, 0, MOST_POINTS, 0, "elements that move at most so many points, from 2; 0: all"),
    LNT_INT(options, length, 1, 1 << 16, 32, "elements of an example to learn from"),
    LNT_INT(options, test_length, 1, 1 << 16, 128, "elements of an example of the test"),
    LNT_STUDY_ROWS(options, 2000, 128, 256, 1e-6),
};
static const lnt_task_text texts[] = {LNT_STUDY_TEXT(options, "1e-3")};
static const char *const paper[] = {"length=128", "test_length=512", "examples=100000", "epochs=100", "steps=4883", "batch=2048",
                                    "test_examples=1000", "warmup=0", NULL};
static const char *const size[] = {"num_hidden_layers=1", "hidden_size=128", "num_heads=8", "head_dim=32", NULL};
static const char *const paper_size[] = {"num_heads=12", NULL};

typedef struct {
    const options *o;
    int order, points;
    uint8_t element[MOST_ELEMENTS][MOST_POINTS];    /* in lexicographic order: 0 is the identity */
    uint8_t product[MOST_ELEMENTS][MOST_ELEMENTS];  /* [a][b]: first a, then b */
    int n_drawn;
    uint8_t drawn[MOST_ELEMENTS];                   /* the elements that words are made of */
} group;

static bool next_permutation(uint8_t *p, int n)
{
    int i = n - 2, j = n - 1;
    while (i >= 0 && p[i] > p[i + 1]) i--;
    if (i < 0) return false;
    while (p[j] < p[i]) j--;
    uint8_t t = p[i];
    p[i] = p[j];
    p[j] = t;
    for (int a = i + 1, b = n - 1; a < b; a++, b--) {
        t = p[a];
        p[a] = p[b];
        p[b] = t;
    }
    return true;
}

static bool is_even(const uint8_t *p, int n)
{
    int inversions = 0;
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++) inversions += p[i] > p[j];
    return inversions % 2 == 0;
}

static int find(const group *g, const uint8_t *p)
{
    int i = 0;
    while (memcmp(g->element[i], p, (size_t)g->points) != 0) i++;
    return i;
}

static void make_group(group *g, const options *o)
{
    uint8_t p[MOST_POINTS] = {0, 1, 2, 3, 4};
    g->o = o;
    g->points = o->group == S3 ? 3 : o->group == S4 ? 4 : 5;
    do {
        if (o->group == A5 && !is_even(p, g->points)) continue;
        memcpy(g->element[g->order++], p, (size_t)g->points);
    } while (next_permutation(p, g->points));
    for (int a = 0; a < g->order; a++) {
        int moved = 0;
        for (int i = 0; i < g->points; i++) moved += g->element[a][i] != i;
        if ((!o->limit || moved <= o->limit) && (o->variant != SWAPS || moved == 2)) g->drawn[g->n_drawn++] = (uint8_t)a;
        for (int b = 0; b < g->order; b++) {
            for (int i = 0; i < g->points; i++) p[i] = g->element[b][g->element[a][i]];
            g->product[a][b] = (uint8_t)find(g, p);
        }
    }
}

static uint8_t draw(lnt_rng *r, const group *g) { return g->drawn[lnt_rng_below(r, (uint64_t)g->n_drawn)]; }

/* A beginning-of-word token, which is its own label, then the word; two words are the same with a chance of order^-length only. */
static int64_t example(const lnt_source *s, int set, uint64_t index, int32_t *ids, int32_t *targets)
{
    const group *g = s->own;
    lnt_rng r = lnt_task_rng(s->name, s->seed, set, index);
    const int64_t n = s->set[set].longest;
    uint8_t so_far = 0;
    ids[0] = targets[0] = g->order;
    for (int64_t i = 1; i < n; i++) {
        uint8_t x = 0;
        if (g->o->variant != HARD) x = draw(&r, g);
        for (int k = 0; g->o->variant == HARD && i % 4 == 0 && k < 4; k++) x = g->product[x][draw(&r, g)];
        so_far = g->product[so_far][x];
        ids[i] = x;
        targets[i] = so_far;
    }
    return n;
}

static linnet_status source(lnt_ctx *c, const void *values, lnt_arena *arena, lnt_source *s)
{
    const options *o = values;
    group *g = lnt_arena_alloc(arena, sizeof *g);
    if (!g) return lnt_fail_memory(c, sizeof *g);
    make_group(g, o);
    if (o->limit == 1) return lnt_fail_option(c, "limit", "is 1, expected 0 or at least 2: nothing but the identity moves one point alone");
    if (o->variant == HARD && (o->length < 4 || o->test_length < 4))
        return lnt_fail_option(c, o->length < 4 ? "length" : "test_length", "is %lld, expected at least 4: of the hard variant fourth elements "
                               "alone are no identity", (long long)(o->length < 4 ? o->length : o->test_length));
    if (!g->n_drawn) return lnt_fail_option(c, "variant", "is swaps, expected another: no element of the group is a swap");
    s->vocabulary = g->order + 1;
    s->n_sets = 3;
    s->set[0].longest = s->set[1].longest = o->length + 1;
    s->set[1].name = "length learnt";
    s->set[2].longest = o->test_length + 1;
    s->set[2].name = "longer";
    s->example = example;
    s->own = g;
    return LINNET_OK;
}

static linnet_status run(lnt_run *r) { return lnt_study_task(r, &((const options *)r->values)->study); }

const lnt_task lnt_task_word_problem = {
    .info = {"word-problem", "after every element of a group, the product of all elements so far",
             "exact is the share of words with every product right (sequence accuracy at full length; over the length: \"all up to here\" on the "
             "page), micro_accuracy the share of products.\nS3 with one layer needs two reflections a token: --mixer gated_deltaproduct.\nThe "
             "paper's figures have 12 heads, its repository 8, and one layer or more. Layers that share the width among their heads cannot have 12: "
             "--heads 8.",
             "Merrill et al. 2024, arXiv 2404.08819; Siems et al. 2025, arXiv 2502.10297",
             "linnet task word-problem --group S3 --mixer delta_net --set allow_neg_eigval=true", LINNET_TASK_TRAINS, 0, 0, "", size, paper_size,
             "Words are drawn independently, the paper's are distinct. A look may end a training between updates, theirs behind an epoch."},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 1,
    .paper = paper,
    .run = run,
    .source = source,
};

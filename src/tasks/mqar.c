/* Multi-query associative recall (Arora et al., Zoology, arXiv 2312.04927): an example shows keys with their values, then asks for the value of each
 * key. Zoology's settings by name, and those of its later, mixed set-up (Arora et al., Based, arXiv 2402.18668). */
#include <math.h>

#include "tasks/study.h"

typedef struct {
    int64_t vocabulary, length, pairs;
    int64_t rounds; /* times the keys are shown, each time in another order and with fresh values; the last value counts. 1: the benchmark */
    bool random_non_queries;
    int setting;
    lnt_study study;
} options;

enum { OWN, MIXED = 5 };

static const lnt_option keys[] = {
    LNT_WORD(options, setting, "own 64x4 128x8 256x16 512x64 mixed", OWN,
             "length and pairs of Zoology's figure 2, or mixed: learnt on five, tested on seven; own: as length and pairs say"),
    LNT_INT(options, vocabulary, 4, 1 << 24, 256, "token ids, half of them keys, half values"),
    LNT_INT(options, length, 4, 1 << 20, 64, "tokens of an example"),
    LNT_INT(options, pairs, 1, 1 << 20, 8, "keys with their values to remember"),
    LNT_INT(options, rounds, 1, 1 << 20, 1, "times the keys are shown, each time with new values; the last ones are asked for"),
    LNT_SWITCH(options, random_non_queries, true, "what is neither pair nor query is filled with random ids"),
    LNT_STUDY_ROWS(options, 1000, 64, 1000, 0.1),
};
static const lnt_task_text texts[] = {LNT_STUDY_TEXT(options, "3e-3")};
/* What Zoology's figure 2 has in every row; a longer row has a smaller batch, and so more updates in its 64 epochs. */
#define FIGURE(setting_, batch_, steps_) \
    {"setting=" setting_, "batch=" batch_, "steps=" steps_, "vocabulary=8192", "random_non_queries=false", "examples=100000", "epochs=64", \
     "test_examples=3000", "warmup=0", "seed=123", "learning_rate=1e-4,4.64e-4,2.15e-3,1e-2", NULL}
static const char *const paper[][12] = {
    [OWN] = FIGURE("256x16", "256", "25000"), /* nothing of the paper's chosen: its longest row */
    FIGURE("64x4", "512", "12500"), FIGURE("128x8", "512", "12500"), FIGURE("256x16", "256", "25000"), FIGURE("512x64", "128", "50000"),
    [MIXED] = {"setting=mixed", "batch=256", "steps=22500", "vocabulary=8192", "random_non_queries=true", "examples=180000", "epochs=32",
               "test_examples=1000", "warmup=0", "seed=123", "learning_rate=1e-3,3.16e-3,1e-2,3.16e-2", NULL},
};
static const char *const size[] = {"num_hidden_layers=2", "hidden_size=64", "num_heads=2", NULL};
static const char *const paper_size[] = {"mlp=none", "norm=layernorm", "use_short_conv=false", NULL};

/* ---- examples ---- */

typedef struct {
    int64_t length, pairs, share; /* share: of 180 examples to learn from */
} shape;

typedef struct {
    const options *o;
    shape learn[5], test[7];
    int n_learn, n_test;
    double *weight; /* [length / 2] */
    int32_t *pool, *key, *value;
} recall;

/* n distinct numbers of [low, high), by the first n steps of Fisher-Yates over `pool`. */
static void draw_distinct(lnt_rng *r, int64_t low, int64_t high, int64_t n, int32_t *pool, int32_t *out)
{
    int64_t count = high - low;
    for (int64_t i = 0; i < count; i++) pool[i] = (int32_t)(low + i);
    for (int64_t i = 0; i < n; i++) {
        int64_t k = i + (int64_t)lnt_rng_below(r, (uint64_t)(count - i));
        out[i] = pool[k];
        pool[k] = pool[i];
    }
}

/* One of the slots left, slot j with weight (j+1)^(a-1), a = 0.01: most queries come soon after the pairs, some late. */
static int64_t draw_slot(lnt_rng *r, double *weight, int64_t slots)
{
    double sum = 0;
    int64_t last = 0;
    for (int64_t j = 0; j < slots; j++) sum += weight[j];
    double u = lnt_rng_uniform(r) * sum;
    for (int64_t j = 0; j < slots; j++) {
        if (weight[j] == 0) continue;
        last = j;
        u -= weight[j];
        if (u < 0) break;
    }
    weight[last] = 0;
    return last;
}

static void shuffle(lnt_rng *r, int64_t n, int32_t *x)
{
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = (int64_t)lnt_rng_below(r, (uint64_t)i + 1);
        int32_t t = x[i];
        x[i] = x[k];
        x[k] = t;
    }
}

/* Which shape example `index` of a set has: of those to learn from, each its share of every 180. */
static const shape *shape_of(const recall *k, int set, uint64_t index)
{
    if (set) return &k->test[set - 1];
    int64_t at = (int64_t)(index % 180);
    int i = 0;
    while (i + 1 < k->n_learn && at >= k->learn[i].share) at -= k->learn[i++].share;
    return &k->learn[i];
}

static int64_t example(const lnt_source *s, int set, uint64_t index, int32_t *ids, int32_t *targets)
{
    const recall *k = s->own;
    const shape *q = shape_of(k, set, index);
    const int64_t V = s->vocabulary, n = q->pairs, rounds = k->o->rounds, prefix = 2 * n * rounds, slots = (q->length - prefix) / 2;
    lnt_rng r = lnt_task_rng(s->name, s->seed, set, index);
    draw_distinct(&r, 1, V / 2, n, k->pool, k->key);
    for (int64_t i = 0; i < q->length; i++) {
        ids[i] = k->o->random_non_queries ? (int32_t)lnt_rng_below(&r, (uint64_t)V) : 0;
        targets[i] = -1;
    }
    for (int64_t round = 0; round < rounds; round++) {
        if (round) shuffle(&r, n, k->key);
        draw_distinct(&r, V / 2, V, n, k->pool, k->value);
        for (int64_t i = 0; i < n; i++) {
            ids[2 * (round * n + i)] = k->key[i];
            ids[2 * (round * n + i) + 1] = k->value[i];
        }
    }
    for (int64_t j = 0; j < slots; j++) k->weight[j] = pow((double)j + 1, 0.01 - 1);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = prefix + 2 * draw_slot(&r, k->weight, slots);
        ids[at] = k->key[i];
        targets[at] = k->value[i];
    }
    return q->length;
}

/* ---- the task ---- */

static void set_shapes(recall *k, const options *o)
{
    static const shape zoology[] = {{64, 4, 180}, {128, 8, 180}, {256, 16, 180}, {512, 64, 180}};
    static const shape mixed[] = {{64, 4, 100}, {128, 8, 20}, {256, 16, 20}, {256, 32, 20}, {256, 64, 20}};
    static const shape mixed_tests[] = {{64, 4, 0}, {64, 8, 0}, {64, 16, 0}, {128, 32, 0}, {256, 64, 0}, {512, 128, 0}, {1024, 256, 0}};
    k->n_learn = k->n_test = 1;
    k->learn[0] = o->setting == OWN || o->setting == MIXED ? (shape){o->length, o->pairs, 180} : zoology[o->setting - 1];
    k->test[0] = k->learn[0];
    if (o->setting != MIXED) return;
    for (k->n_learn = 0; k->n_learn < 5; k->n_learn++) k->learn[k->n_learn] = mixed[k->n_learn];
    for (k->n_test = 0; k->n_test < 7; k->n_test++) k->test[k->n_test] = mixed_tests[k->n_test];
}

static linnet_status check(lnt_ctx *c, const options *o, const shape *q)
{
    if (q->length % 2) return lnt_fail_option(c, "length", "is %lld, expected an even number of at least 4", (long long)q->length);
    const int64_t most = q->length / 2 / (o->rounds + 1);
    if (q->pairs > most)
        return lnt_fail_option(c, "pairs", "is %lld, but %lld rounds and their queries leave room for %lld in length %lld", (long long)q->pairs,
                               (long long)o->rounds, (long long)most, (long long)q->length);
    if (q->pairs > o->vocabulary / 2 - 1)
        return lnt_fail_option(c, "vocabulary", "is %lld, expected at least %lld for %lld keys", (long long)o->vocabulary,
                               (long long)(2 * q->pairs + 2), (long long)q->pairs);
    return LINNET_OK;
}

static linnet_status source(lnt_ctx *c, const void *values, lnt_arena *arena, lnt_source *s)
{
    const options *o = values;
    recall *k = lnt_arena_alloc(arena, sizeof *k);
    int64_t longest = 0;
    if (!k) return lnt_fail_memory(c, sizeof *k);
    k->o = o;
    set_shapes(k, o);
    s->vocabulary = o->vocabulary;
    s->n_sets = k->n_test + 1;
    s->looks = k->n_test;
    for (int i = 0; i < k->n_learn; i++) {
        LNT_TRY(check(c, o, &k->learn[i]));
        if (k->learn[i].length > s->set[0].longest) s->set[0].longest = k->learn[i].length;
    }
    for (int i = 0; i < k->n_test; i++) {
        LNT_TRY(check(c, o, &k->test[i]));
        s->set[i + 1].longest = k->test[i].length;
        if (k->n_test > 1)
            s->set[i + 1].name = lnt_arena_printf(arena, "%lldx%lld", (long long)k->test[i].length, (long long)k->test[i].pairs);
        if (k->test[i].length > longest) longest = k->test[i].length;
    }
    if (s->set[0].longest > longest) longest = s->set[0].longest;
    k->weight = lnt_arena_alloc(arena, lnt_bytes((size_t)longest, sizeof *k->weight));
    k->pool = lnt_arena_alloc(arena, lnt_bytes((size_t)o->vocabulary, sizeof *k->pool));
    k->key = lnt_arena_alloc(arena, lnt_bytes((size_t)longest, sizeof *k->key));
    k->value = lnt_arena_alloc(arena, lnt_bytes((size_t)longest, sizeof *k->value));
    if (!k->weight || !k->pool || !k->key || !k->value) return lnt_fail_memory(c, lnt_bytes((size_t)longest, 8));
    s->example = example;
    s->own = k;
    return LINNET_OK;
}

static linnet_status run(lnt_run *r)
{
    const options *o = r->values;
    if (o->setting != OWN) {
        LNT_TRY(lnt_run_unread(r, "length", "the setting has its own; the one called own reads it"));
        LNT_TRY(lnt_run_unread(r, "pairs", "the setting has its own; the one called own reads it"));
    }
    return lnt_study_task(r, &o->study);
}

static const char *const *paper_for(const void *values) { return paper[((const options *)values)->setting]; }

static const char *const *also(const void *values)
{
    static const char *const widths[] = {"hidden_size=512", "hidden_size=256", "hidden_size=128", NULL};
    return ((const options *)values)->setting == MIXED ? widths + 2 : widths;
}

const lnt_task lnt_task_mqar = {
    .info = {"mqar", "multi-query associative recall: key-value pairs, then each key asks for its value",
             "An example shows keys with their values, then asks for the value of each key, at places drawn by a power law. Accuracy is the mean "
             "over examples of the share of queries answered right.\nThe paper's models have two layers behind LayerNorms, no MLPs, and widths of "
             "64, 128, 256 and 512 (mixed 64 and 128), of which --protocol paper takes the first: --width has the others. Batch, epochs, examples "
             "and rates go by --setting there; one called own takes those of 256x16. Looks of mixed are at all of its tests.",
             "Arora et al. 2023, Zoology, arXiv 2312.04927", "linnet task mqar --mixer delta_net --pairs 8 --length 64",
             LINNET_TASK_TRAINS, 0, 0, "", size, paper_size,
             "The learning rate falls, and a look may end a training, between updates, where Zoology has both behind an epoch. Softmax attention has "
             "rotary positions, not learnt ones. Mixed has no convolution of three tokens in front of each layer."},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 1,
    .paper_for = paper_for,
    .also = also,
    .run = run,
    .source = source,
};

/* RegBench, in-context language learning (Akyürek et al., arXiv 2401.12973): strings of a random automaton, a new one in every example. Predictions
 * count against the symbol drawn (exact match), against what the automaton allows (validity), and as a law (total variation). */
#include <math.h>
#include <string.h>

#include "tasks/study.h"

enum { NODES = 12, EDGES = 3, LETTERS = 18, SEPARATOR = LETTERS + 1, VOCABULARY = LETTERS + 2 /* 0: pad, 1 .. 18: letters */,
       MOST_LETTERS = 49, LEAST_STRINGS = 10, MOST_STRINGS = 19, LONGEST = MOST_STRINGS * (MOST_LETTERS + 1) };

typedef struct {
    int64_t automata, test_automata;
    lnt_study study;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, automata, 1, 1 << 20, 1000, "automata to learn from, one example each"),
    LNT_INT(options, test_automata, 2, 1 << 20, 200, "further automata: half of them for validation, half for the test"),
    LNT_STUDY_UPDATE_ROWS(options, 1000, 32),
    LNT_STUDY_TRAINING_ROWS(options, 0.1),
};
static const lnt_task_text texts[] = {LNT_STUDY_TEXT(options, "5e-4")};
static const char *const paper[] = {"automata=5000", "test_automata=500", "epochs=200", "steps=31250", "warmup=0.1", "floor=0.1", "enough=2",
                                    "learning_rate=1e-4,2.5e-4,5e-4,1e-3", NULL};
static const char *const size[] = {"num_hidden_layers=2", "hidden_size=128", "num_heads=2", NULL};
static const char *const paper_size[] = {"num_hidden_layers=8", "hidden_size=256", NULL};

/* All nodes accept; edges in the order of their letters. */
typedef struct {
    uint8_t nodes, edges[NODES], letter[NODES][EDGES], next[NODES][EDGES];
} automaton;

typedef struct {
    automaton *all; /* those to learn from, then validation, then test */
    int64_t n, first[3];
    /* of a test */
    uint64_t example;
    int64_t position, asked;
    int node;
    double valid, variation;
} languages;

/* ---- automata ---- */

static int draw_distinct(lnt_rng *r, int n, int of, int except, uint8_t *out)
{
    int k = 0;
    while (k < n) {
        const uint8_t x = (uint8_t)lnt_rng_below(r, (uint64_t)of);
        if (x != except && !memchr(out, x, (size_t)k)) out[k++] = x;
    }
    return k;
}

static void sort_edges(automaton *a, int node)
{
    for (int i = 1; i < a->edges[node]; i++)
        for (int j = i; j > 0 && a->letter[node][j] < a->letter[node][j - 1]; j--) {
            uint8_t t = a->letter[node][j];
            a->letter[node][j] = a->letter[node][j - 1];
            a->letter[node][j - 1] = t;
            t = a->next[node][j];
            a->next[node][j] = a->next[node][j - 1];
            a->next[node][j - 1] = t;
        }
}

static void draw_automaton(lnt_rng *r, automaton *a)
{
    uint8_t alphabet[LETTERS], pick[EDGES];
    *a = (automaton){.nodes = (uint8_t)(4 + lnt_rng_below(r, NODES - 3))};
    const int letters = draw_distinct(r, 4 + (int)lnt_rng_below(r, LETTERS - 3), LETTERS, -1, alphabet);
    for (int i = 0; i < a->nodes; i++) {
        a->edges[i] = (uint8_t)draw_distinct(r, 1 + (int)lnt_rng_below(r, EDGES), letters, -1, pick);
        for (int k = 0; k < a->edges[i]; k++) a->letter[i][k] = alphabet[pick[k]];
        draw_distinct(r, a->edges[i], a->nodes, i, a->next[i]);
        sort_edges(a, i);
    }
}

/* Nodes with the same language become one (Moore's refinement; a missing edge is the only difference to begin with), what the start does not reach
 * goes, and nodes are numbered as a walk in breadth meets them: two automata of one language become the same bytes. */
static void minimise(automaton *a)
{
    uint8_t class[NODES] = {0}, finer[NODES] = {0}, number[NODES], queue[NODES];
    int classes = 1, before;
    do {
        before = classes;
        classes = 0;
        for (int i = 0; i < a->nodes; i++) {
            int j = 0;
            for (; j < i; j++) {
                bool same = class[i] == class[j] && a->edges[i] == a->edges[j];
                for (int k = 0; same && k < a->edges[i]; k++)
                    same = a->letter[i][k] == a->letter[j][k] && class[a->next[i][k]] == class[a->next[j][k]];
                if (same) break;
            }
            finer[i] = j < i ? finer[j] : (uint8_t)classes++;
        }
        memcpy(class, finer, sizeof class);
    } while (classes > before);
    automaton small = {0};
    memset(number, 255, sizeof number);
    number[class[0]] = 0;
    queue[0] = 0; /* a node of the class */
    small.nodes = 1;
    for (int at = 0; at < small.nodes; at++) {
        const int i = queue[at];
        small.edges[at] = a->edges[i];
        for (int k = 0; k < a->edges[i]; k++) {
            const uint8_t to = a->next[i][k];
            if (number[class[to]] == 255) {
                queue[small.nodes] = to;
                number[class[to]] = small.nodes++;
            }
            small.letter[at][k] = a->letter[i][k];
            small.next[at][k] = number[class[to]];
        }
    }
    *a = small;
}

static uint64_t hash_of(const automaton *a)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < sizeof *a; i++) h = (h ^ ((const uint8_t *)a)[i]) * 1099511628211u;
    return h;
}

/* n distinct ones, by a table of their hashes that is at most half full. */
static linnet_status draw_automata(lnt_ctx *c, uint64_t seed, int64_t n, automaton *all)
{
    uint64_t room = 4;
    while (room < 2 * (uint64_t)n) room *= 2;
    int64_t *place = lnt_calloc(lnt_bytes(room, sizeof *place)); /* 1 + the automaton's number */
    lnt_rng r = lnt_rng_make(seed, lnt_stream_of("regbench automata"));
    if (!place) return lnt_fail_memory(c, lnt_bytes(room, sizeof *place));
    for (int64_t i = 0; i < n;) {
        draw_automaton(&r, &all[i]);
        minimise(&all[i]);
        uint64_t at = hash_of(&all[i]) & (room - 1);
        while (place[at] && memcmp(&all[place[at] - 1], &all[i], sizeof *all) != 0) at = (at + 1) & (room - 1);
        if (place[at]) continue;
        place[at] = ++i;
    }
    lnt_free(place);
    return LINNET_OK;
}

/* ---- examples ---- */

/* Strings of 1 to 49 letters, 10 to 19 of them, a separator between two. At most 949 symbols, which the benchmark's cut at 2048 never meets. */
static int64_t example(const lnt_source *s, int set, uint64_t index, int32_t *ids, int32_t *targets)
{
    const languages *k = s->own;
    const automaton *a = &k->all[k->first[set] + (int64_t)index];
    lnt_rng r = lnt_task_rng(s->name, s->seed, set, index);
    const int strings = LEAST_STRINGS + (int)lnt_rng_below(&r, MOST_STRINGS - LEAST_STRINGS + 1);
    int64_t n = 0;
    for (int i = 0; i < strings; i++) {
        const int length = 1 + (int)lnt_rng_below(&r, MOST_LETTERS);
        int node = 0;
        if (i) ids[n++] = SEPARATOR;
        for (int j = 0; j < length; j++) {
            const int edge = (int)lnt_rng_below(&r, a->edges[node]);
            ids[n++] = 1 + a->letter[node][edge];
            node = a->next[node][edge];
        }
    }
    n--; /* the last symbol is wanted alone */
    for (int64_t i = 0; i < n; i++) targets[i] = ids[i + 1] == SEPARATOR ? -1 : ids[i + 1];
    return n;
}

/* ---- measures ---- */

static void begin(lnt_source *s, int set)
{
    languages *k = s->own;
    (void)set;
    k->example = UINT64_MAX;
    k->asked = 0;
    k->valid = k->variation = 0;
}

static void answer(lnt_source *s, const lnt_answer *x)
{
    languages *k = s->own;
    const automaton *a = &k->all[k->first[x->set] + (int64_t)x->example];
    if (k->example != x->example) {
        k->example = x->example;
        k->position = -1;
        k->node = 0;
    }
    while (k->position < x->position) {
        const int32_t id = x->ids[++k->position];
        int edge = 0;
        while (id != SEPARATOR && a->letter[k->node][edge] != id - 1) edge++;
        k->node = id == SEPARATOR ? 0 : a->next[k->node][edge];
    }
    double sum = 0, variation = 0;
    for (int i = 0; i < VOCABULARY; i++) sum += exp((double)x->logits[i] - x->logits[x->best]);
    for (int i = 0; i < VOCABULARY; i++) {
        const bool allowed = i > 0 && i <= LETTERS && memchr(a->letter[k->node], i - 1, a->edges[k->node]);
        variation += fabs(exp((double)x->logits[i] - x->logits[x->best]) / sum - (allowed ? 1.0 / a->edges[k->node] : 0));
        k->valid += allowed && i == x->best;
    }
    k->variation += variation / 2;
    k->asked++;
}

static void end(lnt_source *s, double *extra)
{
    const languages *k = s->own;
    extra[0] = k->valid / (double)k->asked;
    extra[1] = k->variation / (double)k->asked;
}

/* ---- the task ---- */

static linnet_status source(lnt_ctx *c, const void *values, lnt_arena *arena, lnt_source *s)
{
    const options *o = values;
    languages *k = lnt_arena_alloc(arena, sizeof *k);
    if (!k) return lnt_fail_memory(c, sizeof *k);
    k->n = o->automata + o->test_automata;
    k->first[1] = o->automata;
    k->first[2] = o->automata + o->test_automata / 2;
    k->all = lnt_arena_alloc(arena, lnt_bytes((size_t)k->n, sizeof *k->all));
    if (!k->all) return lnt_fail_memory(c, lnt_bytes((size_t)k->n, sizeof *k->all));
    LNT_TRY(draw_automata(c, s->seed, k->n, k->all));
    s->vocabulary = VOCABULARY;
    s->n_sets = 3;
    for (int i = 0; i < 3; i++) s->set[i].longest = LONGEST;
    s->set[1].name = "validation";
    s->set[2].name = "test";
    s->extra[0] = "validity";
    s->extra[1] = "total_variation";
    s->score = 1;
    s->example = example;
    s->begin = begin;
    s->answer = answer;
    s->end = end;
    s->own = k;
    return LINNET_OK;
}

static linnet_status run(lnt_run *r)
{
    const options *o = r->values;
    lnt_study study = o->study;
    study.examples = o->automata;
    study.test_examples = o->test_automata / 2;
    return lnt_study_task(r, &study);
}

static const char *const *also(const void *values)
{
    static const char *const sizes[] = {"num_hidden_layers=12", "hidden_size=512", "hidden_size=1024", NULL};
    (void)values;
    return sizes;
}

const lnt_task lnt_task_regbench = {
    .info = {"regbench", "strings of a random automaton, a new one in every example",
             "micro_accuracy counts the symbol that was drawn (its ceiling is far below 1), validity what the automaton allows at that point, "
             "total_variation the distance to the uniform law over that. Automata of the tests are in no example learnt from."
             "\nThe paper's models have 8 and 12 layers, widths of 256, 512 and 1024 and 2 heads; --protocol paper takes the smallest.",
             "Akyürek et al. 2024, arXiv 2401.12973", "linnet task regbench --mixer gated_deltanet --automata 1000", LINNET_TASK_TRAINS, 0, 0, "",
             size, paper_size,
             "The learning rate rises from 0, the repository's from 1e-6. Models have linnet's blocks and RMSNorms."},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 1,
    .paper = paper,
    .also = also,
    .run = run,
    .source = source,
};

/* MAD, mechanistic architecture design (Poli et al., arXiv 2403.17844): six small tasks, each at a baseline and with one key made harder at a time. A
 * task's score is the mean over its settings of the best macro accuracy, the MAD score the mean over tasks. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tasks/study.h"

enum { IN_CONTEXT, FUZZY, NOISY, MEMORISATION, COMPRESSION, COPYING, KINDS, MOST_MOTIF = 3, NONE = -1, TEST_BATCH = 128, MOST_SETTINGS = 32 };
static const char kind_names[] = "in-context fuzzy noisy memorisation compression copying";

typedef struct {
    int kind, settings;
    int64_t vocabulary, length, copy, noise_vocabulary, train;
    double noise;
    const char *decays;
    lnt_study study;
} options;

static const lnt_option keys[] = {
    LNT_WORD(options, kind, "in-context fuzzy noisy memorisation compression copying all", KINDS, "which of the six"),
    LNT_WORD(options, settings, "own baseline all", 1, "baseline, or all of the benchmark: one key changed at a time; own: as the keys below say"),
    LNT_INT(options, vocabulary, 6, 1 << 20, 16, "own setting: token ids"),
    LNT_INT(options, length, 8, 1 << 16, 128, "own setting: tokens of an example"),
    LNT_INT(options, copy, 1, 1 << 14, 16, "own setting, copying: tokens to copy"),
    LNT_INT(options, noise_vocabulary, 0, 1 << 20, 0, "own setting, noisy: of the ids, those that are noise"),
    LNT_REAL(options, noise, 0, 1, 0, "own setting, noisy: share of steps that are noise"),
    LNT_INT(options, train, 1, 1 << 24, 12800, "own setting: examples to learn from"),
    LNT_STUDY_ROWS(options, 1000, 128, 1280, 0),
};
static const lnt_task_text texts[] = {
    LNT_STUDY_TEXT(options, "1e-3"),
    LNT_TEXT(options, decays, "X,X...", "0.1", "weight decays; of several, each is tried and the best counts (weight_decay is not read)"),
};
static const char *const paper[] = {"settings=all", "epochs=200", "warmup=0", "enough=2", "learning_rate=1e-4,5e-4,1e-3", "decays=0,0.1", NULL};
static const char *const size[] = {"num_hidden_layers=2", "hidden_size=128", "num_heads=8", "head_dim=16", NULL};
static const char *const paper_size[] = {NULL}; /* the same */

/* ---- settings ---- */

typedef struct {
    int kind;
    int64_t vocabulary, length, train, copy, noise_vocabulary;
    double noise;
    char name[64];
} setting;

static const setting baselines[KINDS] = {
    {IN_CONTEXT, 16, 128, 12800, 0, 0, 0, "baseline"},
    {FUZZY, 16, 128, 12800, 0, 0, 0, "baseline"},
    {NOISY, 32, 128, 12800, 0, 16, 0.2, "baseline"},
    {MEMORISATION, 256, 32, 256, 0, 0, 0, "baseline"},
    {COMPRESSION, 16, 32, 12800, 0, 0, 0, "baseline"},
    {COPYING, 16, 256, 12800, 16, 0, 0, "baseline"},
};

/* Values that a key takes, one at a time; 0 ends a list. */
static const struct {
    int64_t vocabulary[6], length[4], train[5], copy[4], noise[4]; /* noise in tenths */
} changes[KINDS] = {
    {{32, 64, 128}, {256, 512, 1024}, {6400, 3200, 1600, 800}, {0}, {0}},
    {{32, 64, 128}, {256, 512, 1024}, {6400, 3200, 1600, 800}, {0}, {0}},
    {{48, 80, 144}, {256, 512, 1024}, {6400, 3200, 1600, 800}, {0}, {4, 6, 8}},
    {{512, 1024, 2048, 4096, 8192}, {0}, {0}, {0}, {0}},
    {{32, 64, 128}, {64, 128, 256}, {6400, 3200, 1600, 800}, {0}, {0}},
    {{32, 64, 128}, {512, 1024}, {6400, 3200, 1600, 800}, {32, 64, 96}, {0}},
};

static int settings_of(const options *o, int kind, setting out[MOST_SETTINGS])
{
    setting s = baselines[kind];
    int n = 0;
    if (o->settings == 0) {
        out[0] = (setting){kind, o->vocabulary, o->length, o->train, o->copy, o->noise_vocabulary, o->noise, "own"};
        return 1;
    }
    out[n++] = s;
    if (o->settings == 1) return n;
#define EACH(list, field, word, unit)                                                                                                              \
    for (int i = 0; changes[kind].list[i]; i++) {                                                                                                  \
        out[n] = s;                                                                                                                                \
        out[n].field = changes[kind].list[i] * unit;                                                                                               \
        lnt_format(out[n].name, sizeof out[n].name, word " %g", (double)out[n].field);                                                             \
        n++;                                                                                                                                       \
    }
    EACH(vocabulary, vocabulary, "vocabulary", 1)
    EACH(length, length, "length", 1)
    EACH(train, train, "examples", 1)
    EACH(copy, copy, "copy", 1)
    EACH(noise, noise, "noise", 0.1)
#undef EACH
    return n;
}

/* ---- examples ---- */

typedef struct {
    int32_t key[MOST_MOTIF], value[MOST_MOTIF];
    int keys, values;
    bool seen;
} motif;

typedef struct {
    setting q;
    int32_t *values, *map; /* [vocabulary]; the value of each key in this example, NONE: not drawn; memorisation's map, of the whole task */
    int64_t *count;        /* [copy] */
    motif *motifs;         /* [length] */
    /* macro accuracy: of the test's batches, by class */
    int64_t *target, *hit, *guess; /* [vocabulary] in this batch */
    uint64_t in_batch, last;
    double sum, weight;
} mad;

static int32_t below(lnt_rng *r, int64_t n) { return (int32_t)lnt_rng_below(r, (uint64_t)n); }

/* Pairs of a key and its value, noise between them; behind a key that was there before, its value is asked for. The last pair was always there. */
static int64_t recall(const mad *k, lnt_rng *r, int set, int32_t *ids, int32_t *targets)
{
    const int64_t n = (k->q.vocabulary - k->q.noise_vocabulary) / 2, steps = k->q.length / 2 - 1, sure = below(r, steps);
    int64_t at = 0, seen = 0;
    for (int64_t i = 0; i < n; i++) k->values[i] = NONE;
    for (int64_t i = 0; i <= steps; i++) {
        targets[at] = targets[at + 1] = -1;
        if (i < steps && i != sure && lnt_rng_uniform(r) < k->q.noise) {
            ids[at++] = (int32_t)(2 * n) + below(r, k->q.noise_vocabulary);
            ids[at++] = (int32_t)(2 * n) + below(r, k->q.noise_vocabulary);
            continue;
        }
        int32_t key = 0;
        if (i < steps) key = below(r, n);
        else
            for (int64_t left = below(r, seen); k->values[key] == NONE || left-- > 0; key++) {} /* one of those seen */
        if (k->values[key] == NONE) {
            k->values[key] = (int32_t)n + below(r, n);
            seen++;
        } else
            targets[at] = k->values[key];
        ids[at++] = key;
        ids[at++] = k->values[key];
    }
    at--; /* the last is no input */
    for (int64_t i = 0; set == 0 && i < at; i++) targets[i] = ids[i + 1];
    return at;
}

static int draw_motif(lnt_rng *r, int least, int64_t first, int64_t n, int32_t *out)
{
    const int count = least + (int)lnt_rng_below(r, (uint64_t)(MOST_MOTIF - least + 1));
    for (int i = 0; i < count; i++)
        for (bool again = true; again;) {
            out[i] = (int32_t)first + below(r, n);
            again = false;
            for (int j = 0; j < i; j++) again = again || out[j] == out[i];
        }
    return count;
}

static motif draw_pair(const mad *k, lnt_rng *r, int set)
{
    const int64_t n = (k->q.vocabulary - 1) / 2;
    motif m = {.seen = false};
    m.keys = draw_motif(r, set ? MOST_MOTIF : 1, 0, n, m.key);
    m.values = draw_motif(r, 1, n, k->q.vocabulary - 1 - n, m.value);
    return m;
}

/* The pair of this key if there was one; else the pair itself, from now on. */
static motif *first_of(const mad *k, int *n, const motif *m)
{
    for (int i = 0; i < *n; i++)
        if (k->motifs[i].keys == m->keys && !memcmp(k->motifs[i].key, m->key, (size_t)m->keys * sizeof m->key[0])) return &k->motifs[i];
    k->motifs[*n] = *m;
    return &k->motifs[(*n)++];
}

static int64_t put_pair(motif *m, int64_t at, int32_t *ids, int32_t *targets)
{
    for (int i = 0; i < m->keys + m->values; i++) {
        ids[at + i] = i < m->keys ? m->key[i] : m->value[i - m->keys];
        targets[at + i] = -1;
        if (m->seen && i >= m->keys) targets[at + i - 1] = ids[at + i];
    }
    m->seen = true;
    return at + m->keys + m->values;
}

/* Keys and values of one to three tokens (a test's keys of three). A pair chosen beforehand stands somewhere and at the end; padded on the left. */
static int64_t fuzzy(const mad *k, lnt_rng *r, int set, int32_t *ids, int32_t *targets)
{
    const int64_t L = k->q.length, pad = k->q.vocabulary - 1;
    int n = 0;
    const motif chosen = draw_pair(k, r, set);
    motif *probe = first_of(k, &n, &chosen);
    const int64_t probe_length = probe->keys + probe->values, place = below(r, L - 2 * probe_length);
    int64_t at = 0, before = 0;
    while (at < L - probe_length - 2 * MOST_MOTIF) {
        before = at;
        if (!probe->seen && at >= place) {
            at = put_pair(probe, at, ids, targets);
            continue;
        }
        const motif m = draw_pair(k, r, set);
        at = put_pair(first_of(k, &n, &m), at, ids, targets);
    }
    if (!probe->seen) at = put_pair(probe, before, ids, targets); /* its place fell behind the last start: there */
    at = put_pair(probe, at, ids, targets);
    const int64_t left = L + 1 - at;
    memmove(ids + left, ids, (size_t)at * sizeof *ids);
    memmove(targets + left, targets, (size_t)at * sizeof *targets);
    for (int64_t i = 0; i < left; i++) {
        ids[i] = (int32_t)pad;
        targets[i] = -1;
    }
    for (int64_t i = 0; set == 0 && i < L; i++) targets[i] = ids[i + 1];
    return L;
}

static int64_t memorise(const mad *k, lnt_rng *r, int32_t *ids, int32_t *targets)
{
    const int64_t V = k->q.vocabulary, n = (V - 1) / 2;
    for (int64_t i = 0; i < k->q.length / 2; i++) {
        ids[2 * i] = below(r, n);
        ids[2 * i + 1] = (int32_t)V - 1;
        targets[2 * i] = -1;
        targets[2 * i + 1] = k->map[ids[2 * i]];
    }
    return k->q.length / 2 * 2;
}

/* A string that ends in the compression token. All of it is asked for, of what the model makes of that last token. */
static int64_t compress(const mad *k, lnt_rng *r, int32_t *ids, int32_t *targets)
{
    const int64_t L = k->q.length, V = k->q.vocabulary;
    for (int64_t i = 0; i < L; i++) ids[i] = targets[i] = i + 1 < L ? below(r, V - 1) : (int32_t)V - 1;
    return L;
}

/* Tokens among blanks, then a sign, then a blank for each token, where it is asked for. */
static int64_t selective_copy(const mad *k, lnt_rng *r, int32_t *ids, int32_t *targets)
{
    const int64_t V = k->q.vocabulary, m = k->q.copy, blanks = k->q.length - 2 * m - 1;
    int64_t at = 0;
    for (int64_t i = 0; i < m; i++) k->count[i] = 0;
    for (int64_t i = 0; i < blanks; i++) k->count[below(r, m)]++; /* before which token */
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < k->count[i]; j++, at++) {
            ids[at] = (int32_t)V - 2;
            targets[at] = -1;
        }
        ids[at] = below(r, V - 2);
        targets[k->q.length - m + i] = ids[at];
        targets[at++] = -1;
    }
    ids[at] = (int32_t)V - 1;
    targets[at++] = -1;
    while (at < k->q.length) ids[at++] = (int32_t)V - 2;
    return at;
}

static int64_t example(const lnt_source *s, int set, uint64_t index, int32_t *ids, int32_t *targets)
{
    const mad *k = s->own;
    lnt_rng r = lnt_task_rng(s->name, s->seed, set, index);
    switch (k->q.kind) {
    case FUZZY: return fuzzy(k, &r, set, ids, targets);
    case MEMORISATION: return memorise(k, &r, ids, targets);
    case COMPRESSION: return compress(k, &r, ids, targets);
    case COPYING: return selective_copy(k, &r, ids, targets);
    default: return recall(k, &r, set, ids, targets);
    }
}

/* ---- macro accuracy: of each batch of a test, the mean recall over classes that are targets or guesses there ---- */

static void flush(mad *k, int64_t V)
{
    double sum = 0;
    int classes = 0;
    for (int64_t i = 0; i < V; i++) {
        classes += k->target[i] || k->guess[i];
        if (k->target[i]) sum += (double)k->hit[i] / (double)k->target[i];
        k->target[i] = k->hit[i] = k->guess[i] = 0;
    }
    if (classes) k->sum += (double)k->in_batch * sum / classes;
    k->weight += classes ? (double)k->in_batch : 0;
    k->in_batch = 0;
}

static void begin(lnt_source *s, int set)
{
    mad *k = s->own;
    (void)set;
    k->in_batch = 0;
    flush(k, s->vocabulary);
    k->sum = k->weight = 0;
    k->last = UINT64_MAX;
}

static void answer(lnt_source *s, const lnt_answer *a)
{
    mad *k = s->own;
    if (a->example != k->last) {
        if (k->in_batch == TEST_BATCH) flush(k, s->vocabulary);
        k->in_batch++;
        k->last = a->example;
    }
    k->target[a->target]++;
    k->guess[a->best]++;
    k->hit[a->target] += a->best == a->target;
}

static void end(lnt_source *s, double *extra)
{
    mad *k = s->own;
    flush(k, s->vocabulary);
    extra[0] = k->weight > 0 ? k->sum / k->weight : 0;
}

/* ---- the task ---- */

static linnet_status check(lnt_ctx *c, const setting *q)
{
    const bool recalls = q->kind == IN_CONTEXT || q->kind == NOISY;
    if (recalls && (q->vocabulary - q->noise_vocabulary < 4 || (q->noise > 0 && q->noise_vocabulary < 1)))
        return lnt_fail_option(c, "noise_vocabulary", "is %lld, expected at most %lld, 4 fewer than the vocabulary, and from 1 where there is noise",
                               (long long)q->noise_vocabulary, (long long)q->vocabulary - 4);
    if (q->kind == FUZZY && q->vocabulary < 2 * MOST_MOTIF + 1)
        return lnt_fail_option(c, "vocabulary", "is %lld, expected at least %d", (long long)q->vocabulary, 2 * MOST_MOTIF + 1);
    if (q->kind == FUZZY && q->length < 6 * MOST_MOTIF + 1)
        return lnt_fail_option(c, "length", "is %lld, expected at least %d", (long long)q->length, 6 * MOST_MOTIF + 1);
    if (q->kind == COPYING && q->length < 2 * q->copy + 1)
        return lnt_fail_option(c, "length", "is %lld, expected at least %lld for %lld tokens to copy", (long long)q->length,
                               (long long)(2 * q->copy + 1), (long long)q->copy);
    return LINNET_OK;
}

/* One to one: keys are the first half of the ids but the last, values the second half in an order that is drawn. */
static void draw_map(mad *k, uint64_t seed)
{
    const int64_t n = (k->q.vocabulary - 1) / 2, values = k->q.vocabulary - 1 - n;
    lnt_rng r = lnt_rng_make(seed, lnt_stream_of("mad memorisation"));
    for (int64_t i = 0; i < values; i++) k->map[i] = (int32_t)(n + i);
    for (int64_t i = values - 1; i > 0; i--) {
        const int64_t j = below(&r, i + 1);
        const int32_t t = k->map[i];
        k->map[i] = k->map[j];
        k->map[j] = t;
    }
}

static linnet_status open_setting(lnt_ctx *c, const setting *q, lnt_arena *arena, lnt_source *s)
{
    mad *k = lnt_arena_alloc(arena, sizeof *k);
    LNT_TRY(check(c, q));
    if (!k) return lnt_fail_memory(c, sizeof *k);
    const size_t V = (size_t)q->vocabulary;
    k->q = *q;
    k->values = lnt_arena_alloc(arena, lnt_bytes(V, sizeof *k->values));
    k->map = lnt_arena_alloc(arena, lnt_bytes(V, sizeof *k->map));
    k->count = lnt_arena_alloc(arena, lnt_bytes(lnt_bytes_plus((size_t)q->copy, 1), sizeof *k->count));
    k->motifs = lnt_arena_alloc(arena, lnt_bytes((size_t)q->length, sizeof *k->motifs));
    k->target = lnt_arena_alloc(arena, lnt_bytes(V, sizeof *k->target));
    k->hit = lnt_arena_alloc(arena, lnt_bytes(V, sizeof *k->hit));
    k->guess = lnt_arena_alloc(arena, lnt_bytes(V, sizeof *k->guess));
    if (!k->values || !k->map || !k->count || !k->motifs || !k->target || !k->hit || !k->guess) return lnt_fail_memory(c, lnt_bytes(V, 8));
    draw_map(k, s->seed);
    s->vocabulary = q->vocabulary;
    s->n_sets = 2;
    s->set[0].longest = s->set[1].longest = q->length + 1;
    s->whole = q->kind == COMPRESSION;
    s->extra[0] = "macro_accuracy";
    s->score = 1;
    s->example = example;
    s->begin = begin;
    s->answer = answer;
    s->end = end;
    s->own = k;
    return LINNET_OK;
}

static linnet_status source(lnt_ctx *c, const void *values, lnt_arena *arena, lnt_source *s)
{
    const options *o = values;
    setting q[MOST_SETTINGS];
    settings_of(o, o->kind == KINDS ? 0 : o->kind, q);
    return open_setting(c, &q[0], arena, s);
}

/* Keys that this choice of tasks and settings leaves alone. */
static linnet_status check_given(const lnt_run *r)
{
    const options *o = r->values;
    static const char *const of_setting[] = {"vocabulary", "length", "copy", "noise_vocabulary", "noise", "train"};
    for (size_t i = 0; i < sizeof of_setting / sizeof *of_setting && o->settings != 0; i++)
        LNT_TRY(lnt_run_unread(r, of_setting[i], "the benchmark's settings have their own; those called own read it"));
    if (o->kind != KINDS && o->kind != COPYING) LNT_TRY(lnt_run_unread(r, "copy", "copying alone has it"));
    if (o->kind != KINDS && o->kind != IN_CONTEXT && o->kind != NOISY) {
        LNT_TRY(lnt_run_unread(r, "noise_vocabulary", "in-context and noisy alone have it"));
        LNT_TRY(lnt_run_unread(r, "noise", "in-context and noisy alone have it"));
    }
    LNT_TRY(lnt_run_unread(r, "examples", "train says how many there are to learn from"));
    return lnt_run_unread(r, "weight_decay", "decays has it");
}

/* The best macro accuracy under any weight decay; `at` counts the pieces of the run that are done. *begun: some training was. */
static linnet_status run_setting(lnt_run *r, const setting *q, const double *decay, int n_decays, int *at, int parts, double *macro, double *micro,
                                 bool *begun)
{
    const options *o = r->values;
    char name[96], word[24];
    *macro = *micro = 0;
    *begun = false;
    for (int i = 0; i < n_decays; i++) {
        lnt_source s = {.name = r->task->info.name, .seed = (uint64_t)o->study.data_seed};
        lnt_study study = o->study;
        lnt_trial best;
        study.weight_decay = decay[i];
        study.examples = q->train;
        LNT_TRY(open_setting(r->c, q, r->arena, &s));
        snprintf(name, sizeof name, "%s, %s", lnt_word_at(kind_names, q->kind, word, sizeof word), q->name);
        if (n_decays > 1) lnt_format(name + strlen(name), sizeof name - strlen(name), ", decay %g", decay[i]);
        LNT_TRY(lnt_study_run(r, &study, &s, name, (*at)++, parts, &best));
        const lnt_test *t = &best.test[1];
        if (!t->examples) continue;
        *begun = true;
        if (t->extra[0] > *macro) *macro = t->extra[0];
        if ((double)t->right / (double)t->asked > *micro) *micro = (double)t->right / (double)t->asked;
    }
    return LINNET_OK;
}

/* The means over `settings`, of those wanted. */
static void put_score(lnt_run *r, const char *name, int settings, int wanted, double macro, double micro)
{
    lnt_report *p = &r->report;
    lnt_row_begin(p, "score");
    lnt_row_text(p, "mad", name);
    lnt_row_int(p, "settings", settings);
    if (r->deadline) lnt_row_int(p, "settings_wanted", wanted);
    lnt_row_real(p, "macro_accuracy", macro / settings);
    lnt_row_real(p, "micro_accuracy", micro / settings);
    lnt_row_end(p);
}

enum { CHANGES = 5 };

/* What the benchmark makes harder, one at a time. */
static double change_of(const setting *s, int which)
{
    const double all[CHANGES] = {(double)s->vocabulary, (double)s->length, (double)s->train, (double)s->copy, s->noise};
    return all[which];
}

/* Macro accuracy over each of them, a line for each task, the baseline among its points. */
static void plot_changes(lnt_report *p, setting q[KINDS][MOST_SETTINGS], const int n[KINDS], double macro[KINDS][MOST_SETTINGS])
{
    static const char *const names[CHANGES] = {"vocabulary", "length", "examples to learn from", "tokens to copy", "noise"};
    char title[64], word[24];
    double x[MOST_SETTINGS], y[MOST_SETTINGS];
    for (int c = 0; c < CHANGES; c++)
        for (int i = 0; i < KINDS; i++) {
            int points = 0;
            for (int j = 0; j < n[i]; j++) { /* rising: examples become fewer */
                const double v = change_of(&q[i][j], c);
                int to = points;
                if (isnan(macro[i][j]) || (j && v == change_of(&q[i][0], c))) continue; /* not begun; as the baseline */
                for (; to > 0 && x[to - 1] > v; to--) x[to] = x[to - 1], y[to] = y[to - 1];
                x[to] = v;
                y[to] = macro[i][j];
                points++;
            }
            if (points < 2) continue;
            snprintf(title, sizeof title, "Macro accuracy over the %s", names[c]);
            lnt_report_plot_join(p, &(lnt_plot){.title = title, .x_label = names[c], .y_label = "macro accuracy", .y_high = 1,
                                                .log_x = c + 1 < CHANGES, .n_lines = 1,
                                                .lines = &(lnt_plot_line){.name = lnt_word_at(kind_names, i, word, sizeof word), .x = x, .y = y,
                                                                          .n = points}});
        }
}

static linnet_status run(lnt_run *r)
{
    const options *o = r->values;
    setting q[KINDS][MOST_SETTINGS];
    double decay[LNT_RATES], found[KINDS][MOST_SETTINGS], score[KINDS], macro_sum = 0, micro_sum = 0;
    int n[KINDS] = {0}, n_decays, parts = 0, at = 0, kinds = 0, whole = 0; /* kinds with a score, and those with all of their settings */
    char word[KINDS][24];
    const char *names[KINDS];
    LNT_TRY(check_given(r));
    LNT_TRY(lnt_task_numbers(r->c, "decays", o->decays ? o->decays : "", 0, 1e3, LNT_RATES, decay, &n_decays));
    for (int i = 0; i < KINDS; i++)
        if (o->kind == i || o->kind == KINDS) parts += n_decays * (n[i] = settings_of(o, i, q[i]));
    for (int i = 0; i < KINDS; i++) {
        double macro = 0, micro = 0, b;
        int settings = 0;
        for (int j = 0; j < n[i]; j++) {
            bool begun;
            LNT_TRY(run_setting(r, &q[i][j], decay, n_decays, &at, parts, &found[i][j], &b, &begun));
            macro += found[i][j];
            micro += b;
            settings += begun;
            if (!begun) found[i][j] = NAN;
        }
        if (!settings) continue;
        names[kinds] = lnt_word_at(kind_names, i, word[i], sizeof word[i]);
        put_score(r, names[kinds], settings, n[i], macro, micro);
        macro_sum += macro / settings;
        micro_sum += micro / settings;
        score[kinds++] = macro / settings;
        whole += settings == n[i];
    }
    if (kinds > 1) lnt_report_bars(&r->report, "Macro accuracy of each task", "macro accuracy", 1, kinds, names, score);
    plot_changes(&r->report, q, n, found);
    if (whole == KINDS) put_score(r, "score", KINDS, KINDS, macro_sum, micro_sum);
    return r->report.s;
}

const lnt_task lnt_task_mad = {
    .info = {"mad", "six small tasks of recalling, memorising, compressing and copying",
             "macro_accuracy is what the benchmark reports: by batches of 128, the mean recall over classes that are targets or guesses. A task's "
             "score is the mean over its settings, the MAD score the mean over tasks.\nCompression is read out by a decoder behind the last token's "
             "vector, readout=last in a configuration.\nThe size is the benchmark's, with the heads that MesaNet's paper has in it.",
             "Poli et al. 2024, arXiv 2403.17844", "linnet task mad --kind in-context --mixer delta_net",
             LINNET_TASK_TRAINS, 0, 0, "", size, paper_size,
             "The learning rate falls with every update, to 0, where the benchmark's falls with every epoch, to 1e-6."},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 2,
    .paper = paper,
    .run = run,
    .source = source,
};

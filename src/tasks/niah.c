/* Single needles in a haystack: RULER's niah_single_1 to 3 (Hsieh et al., arXiv 2404.06654), over lengths and depths. Sentences of essays are found
 * by a rule of linnet's own. */
#include "tasks/niah.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tasks/reader.h"

enum { MOST_LENGTHS = 8, DEPTH_BINS = 10 };

typedef struct {
    int kind;
    int64_t samples, seed, tokens;
    const char *lengths, *words, *essays;
} options;

static const lnt_option keys[] = {
    LNT_WORD(options, kind, "1 2 3", 0, "S-NIAH-1: numbers in noise; 2: numbers in essays; 3: uuids in essays"),
    LNT_INT(options, samples, 1, 1 << 20, 20, "samples of each length"),
    LNT_INT(options, tokens, 1, 1 << 16, 128, "tokens to answer in, counted to the length"),
    LNT_INT(options, seed, 0, 1e15, 42, "of needles and places"),
};
static const lnt_task_text texts[] = {
    LNT_TEXT(options, lengths, "N,N...", "1024,2048", "tokens of prompt and answer at most"),
    LNT_TEXT(options, words, "DIR", NULL, "folder with adjectivelist.txt and nounlist.txt (wonderwords), of which keys are made (required)"),
    LNT_TEXT(options, essays, "DIR", NULL, "folder of essays for 2 and 3, text files read in the order of their names"),
};
static const char *const paper[] = {"samples=500", "lengths=1024,2048,4096,8192", NULL};

/* What was found of one length. */
typedef struct {
    double length, asked, right, asked_at[DEPTH_BINS], right_at[DEPTH_BINS];
} finding;

typedef struct {
    lnt_run *r;
    lnt_reader k;
    lnt_niah_texts t;
    int kind;
    int64_t length;
} hay;

static linnet_status prompt_ids(hay *h, uint64_t index, int64_t m, lnt_arena *arena, lnt_needle *z, int32_t **ids, int64_t *n)
{
    const options *o = h->r->values;
    *z = lnt_niah_draw(&h->t, h->kind, (uint64_t)o->seed, index);
    char *text = lnt_niah_prompt(&h->t, h->kind, z, m, arena);
    return text ? lnt_reader_ids(&h->k, text, strlen(text), arena, ids, n) : lnt_fail_memory(h->r->c, (size_t)m);
}

static linnet_status fits(hay *h, uint64_t index, int64_t m, bool *yes)
{
    const options *o = h->r->values;
    lnt_arena arena = {0};
    lnt_needle z;
    int32_t *ids;
    int64_t n = 0;
    const linnet_status s = prompt_ids(h, index, m, &arena, &z, &ids, &n);
    lnt_arena_free(&arena);
    *yes = n + o->tokens <= h->length;
    return s;
}

/* How much hay: the most that fits around the first needle. */
static linnet_status find_hay(hay *h, int64_t step, int64_t *m)
{
    int64_t low = 0, high = step;
    bool yes;
    LNT_TRY(fits(h, 0, 0, &yes));
    if (!yes) return lnt_fail_option(h->r->c, "lengths", "has %lld, which the question alone exceeds", (long long)h->length);
    LNT_TRY(fits(h, 0, high, &yes));
    while (yes) {
        low = high;
        high *= 2;
        LNT_TRY(fits(h, 0, high, &yes));
    }
    while (high - low > 1) { /* low fits, high does not */
        const int64_t middle = low + (high - low) / 2;
        LNT_TRY(fits(h, 0, middle, &yes));
        *(yes ? &low : &high) = middle;
    }
    *m = low;
    return LINNET_OK;
}

static bool found(void *user, const char *text) { return lnt_text_contains(text, user); }

static linnet_status sample(hay *h, uint64_t index, int64_t m, int64_t step, bool *right, double *depth)
{
    const options *o = h->r->values;
    lnt_arena arena = {0};
    int32_t *ids;
    int64_t n;
    char *out = NULL;
    lnt_needle z;
    linnet_status s = prompt_ids(h, index, m, &arena, &z, &ids, &n);
    while (s == LINNET_OK && n + o->tokens > h->length && m > 0) {
        m = m > step ? m - step : 0;
        s = prompt_ids(h, index, m, &arena, &z, &ids, &n);
    }
    if (s == LINNET_OK) s = lnt_reader_go_on(&h->k, ids, n, o->tokens, found, z.value, &arena, &out);
    *right = s == LINNET_OK && lnt_text_contains(out, z.value);
    *depth = s == LINNET_OK ? lnt_niah_depth(h->kind, &z, m) : 0;
    lnt_arena_free(&arena);
    return s;
}

static linnet_status one_length(hay *h, double share, double all, finding *f)
{
    const options *o = h->r->values;
    const int64_t step = h->kind != LNT_NIAH_NOISE ? 500 : h->length < 4096 ? 5 : 25;
    int64_t m = 0, right = 0, asked = 0;
    char name[48];
    LNT_TRY(find_hay(h, step, &m));
    for (int64_t i = 0; i < o->samples && !(i && lnt_run_late(h->r)); i++, asked++) {
        bool fine;
        double depth;
        LNT_TRY(sample(h, (uint64_t)i, m, step, &fine, &depth));
        const int bin = depth < 100 ? (int)(depth * DEPTH_BINS / 100) : DEPTH_BINS - 1;
        right += fine;
        f->asked_at[bin]++;
        f->right_at[bin] += fine;
        LNT_TRY(lnt_run_progress(h->r, share + (double)(i + 1) / (double)o->samples / all, "length %lld  %lld/%lld  %lld found",
                                 (long long)h->length, (long long)i + 1, (long long)o->samples, (long long)right));
    }
    f->length = (double)h->length;
    f->asked = (double)asked;
    f->right = (double)right;
    lnt_row_begin(&h->r->report, "result");
    snprintf(name, sizeof name, "S-NIAH-%d", h->kind + 1);
    lnt_row_text(&h->r->report, "needle", name);
    lnt_row_int(&h->r->report, "length", h->length);
    lnt_row_int(&h->r->report, "hay", m);
    lnt_row_int(&h->r->report, "samples", asked);
    lnt_row_real(&h->r->report, "found", (double)right / (double)asked);
    lnt_row_end(&h->r->report);
    return h->r->report.s;
}

/* Found over the length, and of each length over the depth; depth.csv has the middle of each tenth of the hay, and what stood there. */
static void report_depths(lnt_report *p, const finding *f, int n)
{
    static const char *const columns[] = {"length", "depth", "samples", "found"};
    enum { ROWS = MOST_LENGTHS * DEPTH_BINS };
    double length[ROWS], depth[ROWS], samples[ROWS], found_at[ROWS], x[MOST_LENGTHS], y[MOST_LENGTHS];
    int rows = 0;
    char name[48];
    for (int i = 0; i < n; i++) {
        x[i] = f[i].length;
        y[i] = f[i].right / f[i].asked;
    }
    lnt_report_plot_add(p, &(lnt_plot){.title = "Found over the length", .x_label = "tokens", .y_label = "share", .log_x = n > 1, .y_high = 1,
                                       .n_lines = 1, .lines = &(lnt_plot_line){.x = x, .y = y, .n = n}});
    for (int i = 0; i < n; i++) {
        const int first = rows;
        for (int b = 0; b < DEPTH_BINS; b++) {
            if (f[i].asked_at[b] == 0) continue;
            length[rows] = f[i].length;
            depth[rows] = (b + 0.5) * 100 / DEPTH_BINS;
            samples[rows] = f[i].asked_at[b];
            found_at[rows++] = f[i].right_at[b] / f[i].asked_at[b];
        }
        lnt_format(name, sizeof name, "%.0f tokens", f[i].length);
        const lnt_plot_line line = {.name = name, .x = depth + first, .y = found_at + first, .n = rows - first};
        lnt_report_plot_join(p, &(lnt_plot){.title = "Found over the depth", .x_label = "depth (per cent)", .y_label = "share", .y_high = 1,
                                            .n_lines = 1, .lines = &line});
    }
    lnt_report_series(p, "depth", 4, columns, (const double *[]){length, depth, samples, found_at}, rows);
}

static linnet_status run(lnt_run *r)
{
    const options *o = r->values;
    hay h = {.r = r, .kind = o->kind};
    double lengths[MOST_LENGTHS], tokens = 0;
    finding findings[MOST_LENGTHS] = {{0}};
    int n, done = 0;
    linnet_model_info info = {.size = sizeof info};
    LNT_TRY(lnt_task_numbers(r->c, "lengths", o->lengths, 16, 1 << 24, MOST_LENGTHS, lengths, &n));
    if (!o->words) return lnt_fail_option(r->c, "words", "is missing: a folder with adjectivelist.txt and nounlist.txt");
    if (h.kind != LNT_NIAH_NOISE && !o->essays) return lnt_fail_option(r->c, "essays", "is missing: a folder of texts");
    LNT_TRY(lnt_niah_load(r->c, o->words, h.kind != LNT_NIAH_NOISE ? o->essays : NULL, r->arena, &h.t));
    LNT_TRY(lnt_reader_open(r, false, &h.k));
    for (int i = 0; i < n; i++) tokens += lengths[i] * (double)o->samples;
    linnet_model_get_info(r->o->model, &info);
    linnet_status s = lnt_run_cost(r, 0, 0, (int64_t)tokens, 2 * (double)info.parameters * tokens, NAN);
    for (int i = 0; s == LINNET_OK && i < n && !(i && lnt_run_late(r)); i++) {
        h.length = (int64_t)lengths[i];
        s = one_length(&h, (double)i / n, n, &findings[i]);
        done += s == LINNET_OK;
    }
    if (s == LINNET_OK) report_depths(&r->report, findings, done);
    lnt_reader_close(&h.k);
    return s;
}

const lnt_task lnt_task_niah = {
    .info = {"niah", "a needle in a haystack: S-NIAH-1, -2 and -3 over lengths and depths",
             "A sentence with a number or a uuid stands in noise or in essays; found is the share of samples whose value occurs in what the model "
             "answers, greedily.",
             "Hsieh et al. 2024, RULER, arXiv 2404.06654", "linnet task niah model/ --kind 2 --words wonderwords --essays essays",
             LINNET_TASK_READS, 0, 0, "", NULL, NULL,
             "Sentences of essays are found by a simple rule, where the benchmark has a trained one."},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 3,
    .paper = paper,
    .run = run,
};

/* Translation by examples (Brown et al., GPT-3, arXiv 2005.14165): sentences of files, sacreBLEU of what the model goes on with up to the line's
 * end. */
#include <math.h>
#include <string.h>

#include "tasks/nearness.h"
#include "tasks/reader.h"

enum { MOST_SHOTS = 16, MOST_COUNT = 1024 };

typedef struct {
    int64_t examples, tokens, seed, length;
    const char *shots, *source, *target, *language;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, examples, 0, 1e9, 100, "sentences; 0: all"),
    LNT_INT(options, tokens, 1, 1 << 16, 128, "tokens of a translation at most; a line's end ends it before"),
    LNT_INT(options, seed, 0, 1e15, 1, "of the draws of examples"),
    LNT_INT(options, length, 0, 1 << 24, 0, "tokens of a prompt at most, the last ones; 0: all"),
};
static const lnt_task_text texts[] = {
    LNT_TEXT(options, shots, "N,N...", "0,1,5", "examples before a sentence"),
    LNT_TEXT(options, source, "KEY", "source", "the sentence's key in a line, or in the object \"translation\" of it"),
    LNT_TEXT(options, target, "KEY", "target", "the translation's key"),
    LNT_TEXT(options, language, "NAME", "English", "the translation's language, as the prompt without examples names it"),
};
static const char *const paper[] = {"examples=0", "shots=0,1,5,10,50", NULL};

typedef struct {
    const char *source, *target;
} pair;

typedef struct {
    pair *pair;
    int64_t n;
} pairs;

static linnet_status read_pairs(lnt_run *r, const char *path, pairs *z)
{
    const options *o = r->values;
    lnt_lines l;
    int64_t lines = 1;
    void *memory;
    LNT_TRY(lnt_lines_open(r->c, path, &l));
    for (const char *p = l.data; *p; p++) lines += *p == '\n';
    linnet_status s = lnt_run_memory(r, lnt_bytes((size_t)lines, sizeof *z->pair), &memory);
    json_t *line = NULL;
    z->pair = memory;
    z->n = 0;
    while (s == LINNET_OK && (s = lnt_lines_next(&l, &line)) == LINNET_OK && line) {
        const json_t *inner = json_object_get(line, "translation"), *from = json_is_object(inner) ? inner : line;
        const char *source, *target;
        s = lnt_lines_text(&l, from, o->source, &source);
        if (s == LINNET_OK) s = lnt_lines_text(&l, from, o->target, &target);
        if (s == LINNET_OK) {
            pair *p = &z->pair[z->n++];
            *p = (pair){lnt_arena_strdup(r->arena, source), lnt_arena_strdup(r->arena, target)};
            if (!p->source || !p->target) s = lnt_fail_memory(r->c, strlen(source));
        }
        json_decref(line);
    }
    lnt_lines_close(&l);
    return s == LINNET_OK && !z->n ? lnt_fail(r->c, LINNET_EINVAL, "%s holds no sentence", path) : s;
}

/* Without examples a question; else "source = target" a line, and the sentence with its sign. `own`: the place of the sentence among the examples. */
static void prompt(lnt_run *r, const pairs *examples, const char *sentence, int64_t index, int64_t own, int64_t shots, lnt_text *out)
{
    const options *o = r->values;
    int64_t taken[MOST_COUNT];
    lnt_rng rng = lnt_task_rng("translate", (uint64_t)o->seed, (int)shots, (uint64_t)index);
    lnt_text_put(out, shots ? "" : "Q: What is the ");
    if (!shots) {
        lnt_text_put(out, o->language);
        lnt_text_put(out, " translation of ");
        lnt_text_put(out, sentence);
        lnt_text_put(out, " A:");
        return;
    }
    for (int64_t i = 0; i < shots; i++) {
        for (bool free = false; !free;) {
            taken[i] = (int64_t)lnt_rng_below(&rng, (uint64_t)examples->n);
            free = taken[i] != own;
            for (int64_t j = 0; j < i && free; j++) free = taken[j] != taken[i];
        }
        lnt_text_put(out, examples->pair[taken[i]].source);
        lnt_text_put(out, " = ");
        lnt_text_put(out, examples->pair[taken[i]].target);
        lnt_text_put(out, "\n");
    }
    lnt_text_put(out, sentence);
    lnt_text_put(out, " =");
}

static bool at_line_end(void *user, const char *text)
{
    (void)user;
    return strchr(text, '\n') != NULL;
}

static linnet_status one(lnt_run *r, lnt_reader *k, const pairs *all, const pairs *examples, int64_t i, int64_t shots, lnt_bleu *b)
{
    const options *o = r->values;
    lnt_arena arena = {0};
    lnt_text text = {.arena = &arena};
    int32_t *ids;
    int64_t n;
    char *out = NULL;
    prompt(r, examples, all->pair[i].source, i, examples == all ? i : -1, shots, &text);
    linnet_status s = text.text ? lnt_reader_ids(k, text.text, text.n, &arena, &ids, &n) : lnt_fail_memory(r->c, text.room);
    if (s == LINNET_OK) {
        const int64_t drop = o->length && n > o->length ? n - o->length : 0;
        s = lnt_reader_go_on(k, ids + drop, n - drop, o->tokens, at_line_end, NULL, &arena, &out);
    }
    if (s == LINNET_OK) {
        out[strcspn(out, "\n")] = 0;
        const char *begin = out;
        while (lnt_space_at(begin)) begin += lnt_space_at(begin);
        s = lnt_bleu_add(r->c, b, begin, all->pair[i].target);
    }
    lnt_arena_free(&arena);
    return s;
}

static linnet_status run(lnt_run *r)
{
    const options *o = r->values;
    lnt_reader k = {0};
    pairs all, others;
    const pairs *examples = &all;
    double counts[MOST_SHOTS], bleu[MOST_SHOTS], most = 1, tokens = 0;
    int n_counts, measured = 0;
    linnet_model_info info = {.size = sizeof info};
    LNT_TRY(lnt_task_numbers(r->c, "shots", o->shots, 0, MOST_COUNT, MOST_SHOTS, counts, &n_counts));
    LNT_TRY(read_pairs(r, r->o->files[0], &all));
    if (r->o->n_files > 1) {
        LNT_TRY(read_pairs(r, r->o->files[1], &others));
        examples = &others;
    }
    const int64_t n = o->examples && o->examples < all.n ? o->examples : all.n;
    for (int i = 0; i < n_counts; i++) {
        if ((int64_t)counts[i] >= examples->n + (examples != &all))
            return lnt_fail_option(r->c, "shots", "is %.0f, but there are %lld examples", counts[i],
                                   (long long)examples->n - (examples == &all));
        tokens += (double)n * 64 * (counts[i] + 1); /* a pair is about that long */
    }
    linnet_model_get_info(r->o->model, &info);
    LNT_TRY(lnt_reader_open(r, false, &k));
    linnet_status s = lnt_run_cost(r, 0, 0, (int64_t)tokens, 2 * (double)info.parameters * tokens, NAN);
    for (int i = 0; i < n_counts && s == LINNET_OK && !(i && lnt_run_late(r)); i++) {
        lnt_bleu b = {0};
        int64_t done = 0;
        for (int64_t j = 0; j < n && s == LINNET_OK && !(j && lnt_run_late(r)); j++, done++) {
            s = one(r, &k, &all, examples, j, (int64_t)counts[i], &b);
            if (s == LINNET_OK)
                s = lnt_run_progress(r, (i + (double)(j + 1) / (double)n) / n_counts, "%.0f shots  %lld/%lld  BLEU %.2f", counts[i], (long long)j + 1,
                                     (long long)n, lnt_bleu_score(&b));
        }
        if (s != LINNET_OK) break;
        lnt_row_begin(&r->report, "result");
        lnt_row_int(&r->report, "shots", (int64_t)counts[i]);
        lnt_row_int(&r->report, "examples", done);
        bleu[measured++] = lnt_bleu_score(&b);
        most = fmax(most, bleu[measured - 1]);
        lnt_row_real(&r->report, "bleu", bleu[measured - 1]);
        lnt_row_real(&r->report, "length_ratio", b.length / b.reference);
        lnt_row_end(&r->report);
    }
    lnt_reader_close(&k);
    const lnt_plot_line line = {.x = counts, .y = bleu, .n = measured};
    if (s == LINNET_OK)
        lnt_report_plot_add(&r->report, &(lnt_plot){.title = "BLEU over the examples shown", .x_label = "examples before the sentence",
                                                    .y_label = "BLEU", .y_high = most, .n_lines = 1, .lines = &line});
    return s == LINNET_OK ? r->report.s : s;
}

const lnt_task lnt_task_translate = {
    .info = {"translate", "translation after 0 to 50 examples, by sacreBLEU",
             "FILE has JSON lines {\"source\": ..., \"target\": ...}, or with {\"translation\": {\"fr\": ..., \"en\": ...}} and --source fr --target "
             "en; examples come from the second file, or from the others of the first. bleu is of the corpus: 13a's tokens, four words, exponential "
             "smoothing.",
             "Brown et al. 2020, arXiv 2005.14165; Post 2018, arXiv 1804.08771; von Oswald et al. 2025, arXiv 2506.05233",
             "linnet task translate model/ newstest2014.fr-en.jsonl --source fr --target en",
             LINNET_TASK_READS, 1, 2, "FILE [EXAMPLES]", NULL, NULL, NULL},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 4,
    .paper = paper,
    .run = run,
};

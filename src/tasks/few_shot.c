/* Few-shot by greedy matching: k examples, then a question, all in one text; an answer is right when each of its tokens is the model's own choice.
 * Word scrambling (Brown et al., GPT-3, arXiv 2005.14165) over several draws of the examples. */
#include <math.h>
#include <string.h>

#include "tasks/reader.h"
#include "tasks/texts.h"

enum { BATCH = 64, MOST_SHOTS = 16, MOST_COUNT = 1024 };

typedef struct {
    int64_t examples, draws, seed, length;
    const char *shots;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, examples, 0, 1e9, 100, "questions of each file; 0: all"),
    LNT_INT(options, draws, 1, 1000, 3, "draws of the examples; with none before the question there is one"),
    LNT_INT(options, seed, 0, 1e15, 1, "of the draws"),
    LNT_INT(options, length, 0, 1 << 24, 0, "tokens of a text at most, the last ones; 0: all"),
};
static const lnt_task_text texts[] = {LNT_TEXT(options, shots, "N,N...", "0,1,10", "examples before a question")};
static const char *const paper[] = {"examples=0", "draws=10", "shots=0,1,10,100", NULL};

typedef struct {
    const char *context, *completion;
} item;

typedef struct {
    lnt_arena arena;
    item *item;
    int64_t n;
} items;

/* Every line {"context": ..., "completion": ...}. */
static linnet_status read_items(lnt_ctx *c, const char *path, items *z)
{
    lnt_lines l;
    int64_t room = 0;
    LNT_TRY(lnt_lines_open(c, path, &l));
    linnet_status s = LINNET_OK;
    for (json_t *line; (s = lnt_lines_next(&l, &line)) == LINNET_OK && line; json_decref(line)) {
        const char *context, *completion;
        if ((s = lnt_lines_text(&l, line, "context", &context)) != LINNET_OK ||
            (s = lnt_lines_text(&l, line, "completion", &completion)) != LINNET_OK) {
            json_decref(line);
            break;
        }
        if (z->n == room) {
            const int64_t more = room ? 2 * room : 256;
            item *grown = lnt_realloc(z->item, lnt_bytes((size_t)z->n, sizeof *grown), lnt_bytes((size_t)more, sizeof *grown));
            if (!grown) s = lnt_fail_memory(c, lnt_bytes((size_t)more, sizeof *grown));
            else z->item = grown, room = more;
        }
        if (s == LINNET_OK) z->item[z->n++] = (item){lnt_arena_strdup(&z->arena, context), lnt_arena_strdup(&z->arena, completion)};
        if (s == LINNET_OK && (!z->item[z->n - 1].context || !z->item[z->n - 1].completion)) s = lnt_fail_memory(c, strlen(context));
        if (s != LINNET_OK) {
            json_decref(line);
            break;
        }
    }
    lnt_lines_close(&l);
    if (s == LINNET_OK && !z->n) s = lnt_fail(c, LINNET_EINVAL, "%s holds no question", path);
    return s;
}

/* k examples before question `at`, of the same file but not the question itself, and none twice: a function of seed, file, draw, question and k. */
static linnet_status prompt(lnt_run *r, const items *z, int64_t at, int64_t draw, int64_t k, lnt_text *out)
{
    const options *o = r->values;
    int64_t taken[MOST_COUNT];
    lnt_rng rng = lnt_task_rng("few-shot", (uint64_t)o->seed + ((uint64_t)k << 32), (int)draw, (uint64_t)at);
    lnt_text_put(out, "");
    for (int64_t i = 0; i < k; i++) {
        int64_t pick = -1;
        while (pick < 0) {
            pick = (int64_t)lnt_rng_below(&rng, (uint64_t)z->n);
            bool free = pick != at;
            for (int64_t j = 0; j < i && free; j++) free = taken[j] != pick;
            if (!free) pick = -1;
        }
        taken[i] = pick;
        lnt_text_put(out, z->item[pick].context);
        lnt_text_put(out, z->item[pick].completion);
    }
    lnt_text_put(out, z->item[at].context);
    return out->text ? LINNET_OK : lnt_fail_memory(r->c, out->room);
}

static linnet_status one_draw(lnt_run *r, lnt_reader *k, const items *z, int64_t n, int64_t draw, int64_t shots, double *share)
{
    const options *o = r->values;
    lnt_asked a[BATCH];
    int64_t right = 0;
    linnet_status s = LINNET_OK;
    for (int64_t first = 0; first < n && s == LINNET_OK; first += BATCH) {
        lnt_arena arena = {0};
        const int64_t count = n - first < BATCH ? n - first : BATCH;
        for (int64_t i = 0; i < count && s == LINNET_OK; i++) {
            lnt_text text = {.arena = &arena};
            s = prompt(r, z, first + i, draw, shots, &text);
            if (s == LINNET_OK) s = lnt_reader_pair(k, text.text, z->item[first + i].completion, o->length, &arena, &a[i]);
        }
        if (s == LINNET_OK) s = lnt_reader_ask(k, a, count);
        for (int64_t i = 0; i < count && s == LINNET_OK; i++) right += a[i].greedy;
        lnt_arena_free(&arena);
    }
    *share = (double)right / (double)n;
    return s;
}

static linnet_status one_file(lnt_run *r, lnt_reader *k, const char *path, const items *z, double done, double part)
{
    const options *o = r->values;
    double counts[MOST_SHOTS], acc[MOST_SHOTS];
    int n_counts, measured = 0;
    const char *name = strrchr(path, '/');
    LNT_TRY(lnt_task_numbers(r->c, "shots", o->shots, 0, MOST_COUNT, MOST_SHOTS, counts, &n_counts));
    const int64_t n = o->examples && o->examples < z->n ? o->examples : z->n;
    for (int i = 0; i < n_counts && !(i && lnt_run_late(r)); i++) {
        const int64_t shots = (int64_t)counts[i];
        int64_t draws = shots ? o->draws : 1;
        double sum = 0, squares = 0, share = 0;
        if (shots >= z->n)
            return lnt_fail_option(r->c, "shots", "is %lld, but %s has %lld examples beside a question", (long long)shots, path,
                                   (long long)z->n - 1);
        for (int64_t d = 0; d < draws; d++) {
            if (d && lnt_run_late(r)) {
                draws = d;
                break;
            }
            LNT_TRY(one_draw(r, k, z, n, d, shots, &share));
            sum += share;
            squares += share * share;
            LNT_TRY(lnt_run_progress(r, done + part * (i + (double)(d + 1) / (double)draws) / n_counts, "%s  %lld shots  draw %lld  %.1f%%",
                                     name ? name + 1 : path, (long long)shots, (long long)d + 1, 100 * share));
        }
        const double mean = sum / (double)draws, spread = squares - sum * mean;
        lnt_row_begin(&r->report, "result");
        lnt_row_text(&r->report, "file", name ? name + 1 : path);
        lnt_row_int(&r->report, "shots", shots);
        lnt_row_int(&r->report, "examples", n);
        lnt_row_int(&r->report, "draws", draws);
        lnt_row_real(&r->report, "acc", mean);
        lnt_row_real(&r->report, "acc_deviation", draws > 1 ? sqrt(spread > 0 ? spread / (double)(draws - 1) : 0) : NAN);
        lnt_row_end(&r->report);
        acc[measured++] = mean;
    }
    lnt_report_plot_join(&r->report, &(lnt_plot){.title = "Right answers over the examples shown", .x_label = "examples before the question",
                                                 .y_label = "acc", .y_high = 1, .n_lines = 1,
                                                 .lines = &(lnt_plot_line){.name = name ? name + 1 : path, .x = counts, .y = acc, .n = measured}});
    return r->report.s;
}

static linnet_status run(lnt_run *r)
{
    const options *o = r->values;
    lnt_reader k = {0};
    items *z;
    double counts[MOST_SHOTS], tokens = 0;
    int n_counts;
    const int files = r->o->n_files;
    linnet_model_info info = {.size = sizeof info};
    void *memory;
    LNT_TRY(lnt_task_numbers(r->c, "shots", o->shots, 0, MOST_COUNT, MOST_SHOTS, counts, &n_counts));
    LNT_TRY(lnt_run_memory(r, lnt_bytes((size_t)files, sizeof *z), &memory));
    z = memory;
    linnet_status s = LINNET_OK;
    for (int f = 0; f < files && s == LINNET_OK; f++) {
        s = read_items(r->c, r->o->files[f], &z[f]);
        if (s != LINNET_OK) break;
        const double n = o->examples && o->examples < z[f].n ? (double)o->examples : (double)z[f].n;
        for (int i = 0; i < n_counts; i++) /* a context with its answer is about eight tokens */
            tokens += n * (counts[i] > 0 ? (double)o->draws : 1) * 8 * (counts[i] + 1);
    }
    linnet_model_get_info(r->o->model, &info);
    if (s == LINNET_OK) s = lnt_reader_open(r, true, &k);
    if (s == LINNET_OK) s = lnt_run_cost(r, 0, 0, (int64_t)tokens, 2 * (double)info.parameters * tokens, NAN);
    for (int f = 0; f < files && s == LINNET_OK && !(f && lnt_run_late(r)); f++)
        s = one_file(r, &k, r->o->files[f], &z[f], (double)f / files, 1.0 / files);
    lnt_reader_close(&k);
    for (int f = 0; f < files; f++) {
        lnt_free(z[f].item);
        lnt_arena_free(&z[f].arena);
    }
    return s;
}

const lnt_task lnt_task_few_shot = {
    .info = {"few-shot", "answers after 0 to 100 examples: word scrambling",
             "FILE has JSON lines {\"context\": ..., \"completion\": ...}. Examples of the same file, drawn anew for every question and draw, stand "
             "before the question as they are; acc is the share of answers whose every token is the model's own choice, the mean over the draws, "
             "with their deviation.",
             "Brown et al. 2020, arXiv 2005.14165; von Oswald et al. 2025, arXiv 2506.05233",
             "linnet task few-shot model/ cycle_letters_in_word.jsonl", LINNET_TASK_READS, 1, -1, "FILE...", NULL, NULL, NULL},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 1,
    .paper = paper,
    .run = run,
};

/* Perplexity: over windows of several lengths and over the position in them, against another model, and of documents as word_perplexity and
 * bits_per_byte of the usual harness. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/file.h"
#include "eval/scorer.h"
#include "hub/corpus.h"
#include "tasks/reader.h"
#include "tasks/texts.h"

enum { MOST_LENGTHS = 8, TOKENS_A_RUN = 8192 };
enum { NO, FILES, WIKITEXT };
#define DOCUMENTS "no files wikitext"

typedef struct {
    int64_t tokens, rolling;
    int documents;
    const char *lengths, *reference;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, tokens, 0, 1e15, 262144, "how much of the text to read; 0: all"),
    LNT_WORD(options, documents, DOCUMENTS, 0,
             "word and byte perplexity of documents: each file one, or pages of WikiText, cut at their titles and detokenised"),
    LNT_INT(options, rolling, 1, 1 << 24, 2048, "tokens of a window within a document, each of which is predicted once"),
};
static const lnt_task_text texts[] = {
    LNT_TEXT(options, lengths, "N,N...", "512,2048", "lengths of the windows; every window begins with a fresh state"),
    LNT_TEXT(options, reference, "MODEL", NULL, "folder of a model of the same tokenizer, to which differences are shown"),
};
static const char *const paper[] = {"lengths=2048,4096,32768", "tokens=0", NULL};

/* ---- windows ---- */

typedef struct {
    double *nats, *count, *so_far; /* [length] by position */
    double mean, seconds;
    int64_t tokens;
} curve;

static linnet_status measure(lnt_run *r, linnet_model *m, const int32_t *ids, int64_t n, int64_t length, curve *v)
{
    lnt_scorer *scorer = NULL;
    void *memory;
    lnt_score score = {.finite = true};
    LNT_TRY(lnt_run_memory(r, lnt_bytes((size_t)length, 4 * sizeof(double)), &memory));
    score.position_nats = v->nats = memory;
    v->count = v->nats + length;
    v->so_far = v->count + length;
    score.position_count = (int64_t *)(v->so_far + length);
    LNT_TRY(lnt_scorer_create(r->c, m, length, length >= TOKENS_A_RUN ? 1 : TOKENS_A_RUN / length, &scorer));
    const linnet_status s = lnt_scorer_run(scorer, ids, n, NULL, NULL, &score);
    lnt_scorer_destroy(scorer);
    LNT_TRY(s);
    double nats = 0, count = 0;
    for (int64_t i = 0; i < length; i++) {
        v->count[i] = (double)score.position_count[i];
        nats += v->nats[i];
        count += v->count[i];
        v->nats[i] = v->count[i] > 0 ? v->nats[i] / v->count[i] : NAN;
        v->so_far[i] = count > 0 ? nats / count : NAN;
    }
    v->tokens = score.tokens;
    v->mean = score.nats / (double)score.tokens;
    return LINNET_OK;
}

/* Means over positions 1, 2, 3-4, 5-8 ... halved from 8 on: their geometric middles, and their number. */
static int binned(const double *y, const double *count, int64_t length, double *x, double *out)
{
    int n = 0;
    for (int64_t first = 0, end; first < length && n < 96; first = end) {
        double sum = 0, weight = 0;
        end = first < 2 ? first + 1 : first + 1 + first / 4;
        if (end > length) end = length;
        for (int64_t i = first; i < end; i++)
            if (count[i] > 0) {
                sum += y[i] * count[i];
                weight += count[i];
            }
        if (weight == 0) continue;
        x[n] = sqrt((double)(first + 1) * (double)end);
        out[n++] = sum / weight;
    }
    return n;
}

static linnet_status report_length(lnt_run *r, int64_t length, int64_t bytes, const curve *v, const curve *ref)
{
    lnt_report *p = &r->report;
    void *memory;
    char name[64];
    LNT_TRY(lnt_run_memory(r, lnt_bytes((size_t)length, 2 * sizeof(double)), &memory));
    double *position = memory, *difference = position + length, x[96], y[3][96];
    for (int64_t i = 0; i < length; i++) {
        position[i] = (double)i + 1;
        difference[i] = ref ? v->nats[i] - ref->nats[i] : NAN;
    }
    lnt_row_begin(p, "result");
    lnt_row_int(p, "length", length);
    lnt_row_int(p, "tokens", v->tokens);
    lnt_row_real(p, "nats_per_token", v->mean);
    lnt_row_real(p, "perplexity", exp(v->mean));
    lnt_row_real(p, "bits_per_byte", bytes ? v->mean / M_LN2 * (double)v->tokens / (double)bytes : NAN);
    if (ref) {
        lnt_row_real(p, "reference", ref->mean);
        lnt_row_real(p, "difference", v->mean - ref->mean);
    }
    lnt_row_end(p);
    const char *const names[] = {"position", "windows", "loss", "mean_so_far", "difference"};
    snprintf(name, sizeof name, "position-%lld", (long long)length);
    lnt_report_series(p, name, ref ? 5 : 4, names, (const double *[]){position, v->count, v->nats, v->so_far, difference}, length);
    const int n = binned(v->nats, v->count, length, x, y[0]);
    binned(v->so_far, v->count, length, x, y[1]);
    const lnt_plot_line line[2] = {{.name = "this position", .x = x, .y = y[0], .n = n}, {.name = "mean so far", .x = x, .y = y[1], .n = n}};
    snprintf(name, sizeof name, "Loss over position, windows of %lld", (long long)length);
    lnt_report_plot_add(p, &(lnt_plot){.title = name, .x_label = "position (tokens)", .y_label = "nats per token", .log_x = true, .n_lines = 2,
                                       .lines = line});
    if (!ref) return p->s;
    const lnt_plot_line less = {.x = x, .y = y[2], .n = binned(difference, v->count, length, x, y[2])};
    lnt_report_plot_add(p, &(lnt_plot){.title = "Difference to the reference: below 0 is better", .x_label = "position (tokens)",
                                       .y_label = "nats per token", .log_x = true, .n_lines = 1, .lines = &less});
    return p->s;
}

/* Of n ids, what there is time for with `passes` of them to go; one window at least. */
static int64_t in_time(const lnt_run *r, int64_t n, int64_t length, int passes)
{
    if (!r->deadline || !(r->token_seconds > 0)) return n;
    const double fit = fmax((r->deadline - lnt_now()) / (passes * r->token_seconds), (double)length) + 1;
    return fit < (double)n ? (int64_t)fit : n;
}

static linnet_status windows(lnt_run *r, const lnt_corpus *text, const double *lengths, int n_lengths, linnet_model *reference)
{
    const options *o = r->values;
    const int64_t n = o->tokens > 0 && o->tokens < text->n - 1 ? o->tokens + 1 : text->n;
    bool less = false;
    for (int i = 0; i < n_lengths && !(i && lnt_run_late(r)); i++) {
        const int64_t length = (int64_t)lengths[i];
        const int64_t m = in_time(r, n, length, (n_lengths - i) * (reference ? 2 : 1) + (o->documents != NO));
        less = less || m < n;
        curve mine = {0}, other = {0};
        LNT_TRY(lnt_run_progress(r, (double)i / n_lengths, "windows of %lld", (long long)length));
        LNT_TRY(measure(r, r->o->model, text->ids, m, length, &mine));
        if (reference) LNT_TRY(measure(r, reference, text->ids, m, length, &other));
        LNT_TRY(report_length(r, length, lnt_corpus_bytes(text, text->ids + 1, m - 1), &mine, reference ? &other : NULL));
    }
    r->late = r->late || less;
    return LINNET_OK;
}

/* ---- documents ---- */

typedef struct {
    double nats;
    int64_t documents, words, bytes, tokens;
} pages;

/* Each token once: the first window begins with the prefix, the others with what stands before them. */
static linnet_status roll(lnt_reader *k, const int32_t *ids, int64_t n, int64_t most, lnt_arena *arena, double *nats)
{
    const int64_t count = (n + most - 1) / most, first = n < most ? n : most;
    lnt_asked *a = lnt_arena_alloc(arena, lnt_bytes((size_t)count, sizeof *a));
    int32_t *begin = lnt_arena_alloc(arena, lnt_bytes(lnt_bytes_plus((size_t)first, 1), sizeof *begin));
    if (!a || !begin) return lnt_fail_memory(k->r->c, lnt_bytes((size_t)n, sizeof *a));
    begin[0] = k->prefix;
    memcpy(begin + 1, ids, (size_t)first * sizeof *begin);
    a[0] = (lnt_asked){.ids = begin, .n = first + 1, .from = 1};
    for (int64_t i = 1; i < count; i++) { /* the last is as long as the others, whatever of it is new */
        const int64_t from = i * most, end = from + most < n ? from + most : n, start = end - most - 1;
        a[i] = (lnt_asked){.ids = ids + start, .n = end - start, .from = from - start};
    }
    LNT_TRY(lnt_reader_ask(k, a, count));
    for (int64_t i = 0; i < count; i++) *nats += a[i].nats;
    return LINNET_OK;
}

static linnet_status read_page(lnt_reader *k, const char *page, bool wikitext, int64_t most, pages *z)
{
    lnt_arena arena = {0};
    int32_t *ids;
    int64_t n = 0;
    const char *text = wikitext ? lnt_detokenise(&arena, page) : page;
    linnet_status s = text ? lnt_reader_ids(k, text, strlen(text), &arena, &ids, &n) : lnt_fail_memory(k->r->c, strlen(page));
    if (s == LINNET_OK && n) s = roll(k, ids, n, most, &arena, &z->nats);
    lnt_arena_free(&arena);
    z->documents++;
    z->words += lnt_count_words(page);
    z->bytes += (int64_t)strlen(page);
    z->tokens += n;
    return s;
}

/* A line " = Title = " that begins a page; " = = Section = = " does not. */
static bool is_title(const char *line)
{
    const size_t n = strcspn(line, "\n");
    size_t end = n;
    if (n < 5 || strncmp(line, " = ", 3) != 0 || line[3] == '=') return false;
    while (end && line[end - 1] == ' ') end--;
    return end > 4 && line[end - 1] == '=' && line[end - 2] == ' ' && line[end - 3] != '=';
}

static linnet_status read_file(lnt_run *r, lnt_reader *k, const char *path, pages *z)
{
    const options *o = r->values;
    char *data;
    size_t n;
    linnet_status s = LINNET_OK;
    LNT_TRY(lnt_file_read(r->c, path, (size_t)1 << 31, &data, &n));
    if (memchr(data, 0, n)) s = lnt_fail(r->c, LINNET_EFORMAT, "%s is no text: there is a byte 0", path);
    for (char *page = data; s == LINNET_OK && *page && (!o->tokens || z->tokens < o->tokens) && !(z->documents && lnt_run_late(r));) {
        char *end = page + strlen(page);
        for (char *line = strchr(page, '\n'); o->documents == WIKITEXT && line; line = strchr(line + 1, '\n'))
            if (is_title(line + 1)) {
                end = line + 1;
                break;
            }
        const char kept = *end;
        *end = 0;
        if (page[strspn(page, " \n")]) s = read_page(k, page, o->documents == WIKITEXT, o->rolling, z);
        *end = kept;
        page = end;
        if (s == LINNET_OK) s = lnt_run_progress(r, (double)(page - data) / (double)n, "%lld documents", (long long)z->documents);
    }
    lnt_free(data);
    return s;
}

static linnet_status documents(lnt_run *r)
{
    lnt_reader k;
    pages z = {0};
    char word[24];
    LNT_TRY(lnt_reader_open(r, false, &k));
    linnet_status s = LINNET_OK;
    for (int i = 0; s == LINNET_OK && i < r->o->n_files; i++) s = read_file(r, &k, r->o->files[i], &z);
    lnt_reader_close(&k);
    LNT_TRY(s);
    if (!z.tokens) return lnt_fail(r->c, LINNET_EINVAL, "there is no document to read");
    lnt_row_begin(&r->report, "documents");
    lnt_row_text(&r->report, "format", lnt_word_at(DOCUMENTS, ((const options *)r->values)->documents, word, sizeof word));
    lnt_row_int(&r->report, "documents", z.documents);
    lnt_row_int(&r->report, "words", z.words);
    lnt_row_int(&r->report, "bytes", z.bytes);
    lnt_row_int(&r->report, "tokens", z.tokens);
    lnt_row_real(&r->report, "word_perplexity", exp(z.nats / (double)z.words));
    lnt_row_real(&r->report, "byte_perplexity", exp(z.nats / (double)z.bytes));
    lnt_row_real(&r->report, "bits_per_byte", z.nats / (double)z.bytes / M_LN2);
    lnt_row_end(&r->report);
    return r->report.s;
}

/* ---- the task ---- */

static linnet_status run(lnt_run *r)
{
    const options *o = r->values;
    double lengths[MOST_LENGTHS];
    int n_lengths;
    lnt_corpus *text = NULL;
    linnet_model *reference = NULL;
    linnet_model_info info = {.size = sizeof info};
    linnet_status s;
    LNT_TRY(lnt_task_numbers(r->c, "lengths", o->lengths, 1, 1 << 24, MOST_LENGTHS, lengths, &n_lengths));
    for (int i = 0; i < n_lengths; i++)
        if (lengths[i] != floor(lengths[i])) return lnt_fail_option(r->c, "lengths", "is \"%.40s\", expected whole numbers", o->lengths);
    LNT_TRY_GOTO(s, lnt_corpus_load(r->c, &(lnt_texts){.paths = r->o->files, .n_paths = r->o->n_files}, r->o->tokenizer, &text), done);
    if (text->n < 2) {
        s = lnt_fail(r->c, LINNET_EINVAL, "the text gives %lld token%s, expected at least 2", (long long)text->n, text->n == 1 ? "" : "s");
        goto done;
    }
    const int64_t read = o->tokens > 0 && o->tokens < text->n - 1 ? o->tokens : text->n - 1;
    for (int i = 0; i < n_lengths; i++) {
        if (lengths[i] <= (double)read) continue;
        if (lnt_run_given(r, "lengths")) {
            s = lnt_fail_option(r->c, "lengths", "has %.0f, but what is read of the text gives %lld tokens to predict: no window is so long",
                                lengths[i], (long long)read);
            goto done;
        }
        lengths[i] = (double)read; /* nobody's wish: all of the text, once */
        n_lengths = i && lengths[i - 1] == lengths[i] ? i : i + 1;
    }
    if (o->reference) LNT_TRY_GOTO(s, linnet_model_load(r->c, o->reference, (linnet_dtype)r->o->model->dtype, &reference), done);
    if (reference) LNT_TRY_GOTO(s, lnt_model_check_next(r->c, reference), done);
    if (reference && reference->config->vocab_size != r->o->model->config->vocab_size) {
        s = lnt_fail(r->c, LINNET_EINVAL, "the reference knows %lld ids, the model %lld", (long long)reference->config->vocab_size,
                     (long long)r->o->model->config->vocab_size);
        goto done;
    }
    linnet_model_get_info(r->o->model, &info);
    const double tokens = (double)(read + 1) * (n_lengths + (o->documents != NO));
    LNT_TRY_GOTO(s, lnt_run_cost(r, 0, 0, (int64_t)tokens, 2 * (double)info.parameters * tokens, NAN), done);
    LNT_TRY_GOTO(s, windows(r, text, lengths, n_lengths, reference), done);
    if (o->documents != NO) s = documents(r);
done:
    linnet_model_destroy(reference);
    lnt_corpus_free(text);
    return s;
}

const lnt_task lnt_task_ppl = {
    .info = {"ppl", "perplexity over lengths and positions, against another model, and of documents",
             "Windows of each length begin with a fresh state; perplexity is over all their tokens, the curves over the position in them, and over "
             "all positions so far.\n--documents gives word_perplexity, byte_perplexity and bits_per_byte over whole documents in rolling windows; "
             "words and bytes are those of the file as it is.",
             "von Oswald et al. 2025, arXiv 2506.05233; Gao et al., lm-evaluation-harness",
             "linnet task ppl model/ wikitext/test.txt --lengths 512,2048 --documents wikitext",
             LINNET_TASK_READS, 1, -1, "TEXT...", NULL, NULL, NULL},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 2,
    .paper = paper,
    .run = run,
};

/* LongBench's fourteen English tasks and code (Bai et al., arXiv 2308.14508): greedy answers to long prompts, by F1, ROUGE-L, accuracy and edit
 * similarity. A prompt that is too long loses its middle. */
#include <math.h>
#include <string.h>

#include "hub/json.h"
#include "tasks/nearness.h"
#include "tasks/reader.h"

typedef enum { F1, ROUGE, CLASSES, CODE } measure;

static const struct {
    const char *name;
    measure by;
    int tokens;      /* of an answer */
    bool first_line; /* what follows it is not looked at */
    const char *prompt;
} sets[] = {
    {"narrativeqa", F1, 128, false, "{context}\n\nQuestion: {input}\nAnswer:"},
    {"qasper", F1, 128, false, "{context}\n\nQuestion: {input}\nAnswer:"},
    {"multifieldqa_en", F1, 64, false, "{context}\n\nQuestion: {input}\nAnswer:"},
    {"hotpotqa", F1, 32, false, "{context}\n\nQuestion: {input}\nAnswer:"},
    {"2wikimqa", F1, 32, false, "{context}\n\nQuestion: {input}\nAnswer:"},
    {"musique", F1, 32, false, "{context}\n\nQuestion: {input}\nAnswer:"},
    {"gov_report", ROUGE, 512, false, "{context}\n\nSummary:"},
    {"qmsum", ROUGE, 512, false, "{context}\n\nQuestion: {input}\nAnswer:"},
    {"multi_news", ROUGE, 512, false, "{context}\n\nSummary:"},
    {"trec", CLASSES, 64, true, "{context}\n{input}"},
    {"triviaqa", F1, 32, true, "{context}\n\n{input}"},
    {"samsum", ROUGE, 128, true, "{context}\n\n{input}"},
    {"lcc", CODE, 64, false, "{context}"},
    {"repobench-p", CODE, 64, false, "{context}{input}"},
};
enum { SETS = sizeof sets / sizeof *sets };

typedef struct {
    int64_t examples, length;
    const char *prompts;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, examples, 0, 1e9, 20, "of each file; 0: all"),
    LNT_INT(options, length, 0, 1 << 24, 2048, "tokens of a prompt at most, from its two ends; 0: all"),
};
static const lnt_task_text texts[] = {
    LNT_TEXT(options, prompts, "FILE", NULL, "the benchmark's dataset2prompt.json; without it prompts are context, question, a word that asks"),
};
static const char *const paper[] = {"examples=0", "length=16384", NULL};

typedef struct {
    lnt_run *r;
    lnt_reader k;
    json_t *prompts; /* NULL: the built-in ones */
    double sum[SETS];
    int64_t n[SETS];
} bench;

static int set_of(const char *name)
{
    int i = 0;
    while (i < SETS && (!name || strcmp(name, sets[i].name) != 0)) i++;
    return i;
}

/* A template with {context} and {input} filled in. */
static linnet_status fill(lnt_ctx *c, const char *template, const char *context, const char *input, lnt_text *out)
{
    lnt_text_put(out, "");
    for (const char *p = template; *p;) {
        const bool is_context = !strncmp(p, "{context}", 9), is_input = !strncmp(p, "{input}", 7);
        if (is_context) lnt_text_put(out, context);
        else if (is_input) lnt_text_put(out, input);
        else lnt_text_add(out, p, 1);
        p += is_context ? 9 : is_input ? 7 : 1;
    }
    return out->text ? LINNET_OK : lnt_fail_memory(c, out->room);
}

/* The first line behind empty ones; cut in place. */
static char *first_line(char *text)
{
    text += strspn(text, "\n");
    text[strcspn(text, "\n")] = 0;
    return text;
}

static bool line_is_there(void *user, const char *text)
{
    text += strspn(text, "\n");
    return *(const bool *)user && strchr(text, '\n') != NULL;
}

/* The first line that is no comment and no fence. */
static char *code_line(char *text)
{
    for (text += strspn(text, "\n"); *text;) {
        const size_t n = strcspn(text, "\n");
        const bool more = text[n] != 0;
        text[n] = 0;
        if (!strchr(text, '`') && !strchr(text, '#') && !strstr(text, "//")) return text;
        text += n + more;
    }
    return text;
}

/* 1 over the number of classes that the answer names, when the right one is among them; a name within the right one's is none. */
static double class_score(const char *text, const char *answer, const json_t *classes)
{
    int named = 0;
    bool right = false;
    for (size_t i = 0; i < json_array_size(classes); i++) {
        const char *name = json_string_value(json_array_get(classes, i));
        if (!name || !strstr(text, name) || (strstr(answer, name) && strcmp(name, answer) != 0)) continue;
        named++;
        right = right || strcmp(name, answer) == 0;
    }
    return right ? 1.0 / named : 0;
}

static linnet_status score(lnt_ctx *c, int which, char *text, const json_t *line, double *best)
{
    const json_t *answers = json_object_get(line, "answers");
    char *shown = sets[which].by == CODE ? code_line(text) : sets[which].first_line ? first_line(text) : text;
    *best = 0;
    for (size_t i = 0; i < json_array_size(answers); i++) {
        const char *answer = json_string_value(json_array_get(answers, i));
        double x = 0;
        if (!answer) continue;
        switch (sets[which].by) {
        case F1: LNT_TRY(lnt_word_f1(c, shown, answer, &x)); break;
        case ROUGE: LNT_TRY(lnt_rouge_l(c, shown, answer, &x)); break;
        case CODE: LNT_TRY(lnt_edit_similarity(c, shown, answer, &x)); break;
        case CLASSES: x = class_score(shown, answer, json_object_get(line, "all_classes"));
        }
        if (x > *best) *best = x;
    }
    return LINNET_OK;
}

static linnet_status one(bench *b, const lnt_lines *l, const json_t *line)
{
    const options *o = b->r->values;
    const char *context, *input, *name;
    lnt_arena arena = {0};
    lnt_text text = {.arena = &arena};
    int32_t *ids;
    int64_t n;
    char *out = NULL;
    double x = 0;
    LNT_TRY(lnt_lines_text(l, line, "dataset", &name));
    LNT_TRY(lnt_lines_text(l, line, "context", &context));
    LNT_TRY(lnt_lines_text(l, line, "input", &input));
    const int which = set_of(name);
    if (which == SETS) return lnt_lines_bad(l, "\"dataset\" is \"%.60s\", none of the fourteen", name);
    if (!json_array_size(json_object_get(line, "answers"))) return lnt_lines_bad(l, "\"answers\" is no list of texts");
    const char *template = b->prompts ? json_string_value(json_object_get(b->prompts, name)) : sets[which].prompt;
    if (!template) return lnt_fail(b->r->c, LINNET_EINVAL, "%s has no prompt for \"%s\"", o->prompts, name);
    linnet_status s = fill(b->r->c, template, context, input, &text);
    if (s == LINNET_OK) s = lnt_reader_ids(&b->k, text.text, text.n, &arena, &ids, &n);
    if (s == LINNET_OK && o->length && n > o->length) { /* the middle goes */
        const int64_t half = o->length / 2 ? o->length / 2 : 1;
        memmove(ids + half, ids + n - half, (size_t)half * sizeof *ids);
        n = 2 * half;
    }
    bool stops = sets[which].first_line;
    if (s == LINNET_OK) s = lnt_reader_go_on(&b->k, ids, n, sets[which].tokens, line_is_there, &stops, &arena, &out);
    if (s == LINNET_OK) s = score(b->r->c, which, out, line, &x);
    lnt_arena_free(&arena);
    b->sum[which] += x;
    b->n[which]++;
    return s;
}

static linnet_status one_file(bench *b, int f)
{
    const options *o = b->r->values;
    const double files = b->r->o->n_files;
    lnt_lines l;
    int64_t n = 0;
    LNT_TRY(lnt_lines_open(b->r->c, b->r->o->files[f], &l));
    linnet_status s = LINNET_OK;
    while (s == LINNET_OK && (!o->examples || n < o->examples) && !(n && lnt_run_late(b->r))) {
        json_t *line;
        if ((s = lnt_lines_next(&l, &line)) != LINNET_OK || !line) break;
        s = one(b, &l, line);
        json_decref(line);
        n++;
        if (s == LINNET_OK)
            s = lnt_run_progress(b->r, (f + (o->examples ? (double)n / (double)o->examples : 0.5)) / files, "file %d/%.0f  example %lld", f + 1,
                                 files, (long long)n);
    }
    lnt_lines_close(&l);
    return s == LINNET_OK && !n ? lnt_fail(b->r->c, LINNET_EINVAL, "%s holds no example", b->r->o->files[f]) : s;
}

static linnet_status run(lnt_run *r)
{
    const options *o = r->values;
    static const char *const by[] = {"f1", "rouge_l", "accuracy", "edit_similarity"};
    bench b = {.r = r};
    const char *names[SETS];
    double sum = 0, scores[SETS];
    int met = 0;
    linnet_model_info info = {.size = sizeof info};
    if (o->prompts) LNT_TRY(lnt_json_load(r->c, o->prompts, 1 << 20, &b.prompts));
    const double each = (double)(o->length ? o->length : 10000), tokens = r->o->n_files * (double)(o->examples ? o->examples : 200) * each;
    linnet_model_get_info(r->o->model, &info);
    linnet_status s = lnt_reader_open(r, false, &b.k);
    if (s == LINNET_OK) s = lnt_run_cost(r, 0, 0, (int64_t)tokens, 2 * (double)info.parameters * tokens, NAN);
    for (int f = 0; f < r->o->n_files && s == LINNET_OK && !(f && lnt_run_late(r)); f++) s = one_file(&b, f);
    for (int i = 0; i < SETS && s == LINNET_OK; i++) {
        if (!b.n[i]) continue;
        lnt_row_begin(&r->report, "result");
        lnt_row_text(&r->report, "dataset", sets[i].name);
        lnt_row_text(&r->report, "measure", by[sets[i].by]);
        lnt_row_int(&r->report, "examples", b.n[i]);
        names[met] = sets[i].name;
        scores[met] = 100 * b.sum[i] / (double)b.n[i];
        lnt_row_real(&r->report, "score", scores[met]);
        lnt_row_end(&r->report);
        sum += scores[met++];
    }
    if (s == LINNET_OK) {
        lnt_row_begin(&r->report, "average");
        lnt_row_int(&r->report, "datasets", met);
        lnt_row_real(&r->report, "score", sum / met);
        lnt_row_end(&r->report);
        lnt_report_bars(&r->report, "Score of each data set", "score", 100, met, names, scores);
    }
    lnt_reader_close(&b.k);
    json_decref(b.prompts);
    return s == LINNET_OK ? r->report.s : s;
}

const lnt_task lnt_task_longbench = {
    .info = {"longbench", "LongBench: answers to long prompts in fourteen data sets",
             "FILE is the benchmark's own, JSON lines with dataset, context, input, answers and all_classes. score is the mean over examples of the "
             "best over answers, times 100: F1 of words, ROUGE-L, the share of the right class, edit similarity.",
             "Bai et al. 2023, LongBench, arXiv 2308.14508",
             "linnet task longbench model/ qasper.jsonl trec.jsonl --prompts dataset2prompt.json", LINNET_TASK_READS, 1, -1, "FILE...", NULL, NULL,
             "ROUGE-L is rouge-score's, edit similarity is by insertions and deletions, and without --prompts the prompts are linnet's own."},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 1,
    .paper = paper,
    .run = run,
};

/* Multiple choice by likelihood, with the prompts and the measures of the usual harness. */
#include "tasks/choice.h"

#include <math.h>
#include <string.h>

#include "core/file.h"
#include "tasks/reader.h"

typedef struct {
    int format;
    int64_t examples, length;
    bool likelihoods;
} options;

static const lnt_option keys[] = {
    LNT_WORD(options, format, LNT_CHOICE_FORMATS, 0,
             "the benchmark, by which results are called; plain: {\"prompt\", \"choices\": [...], \"answer\": 0}"),
    LNT_INT(options, examples, 0, 1e9, 500, "questions; 0: all"),
    LNT_INT(options, length, 0, 1 << 24, 0, "tokens of a prompt with its choice at most, the last ones; 0: all"),
    LNT_SWITCH(options, likelihoods, false, "a row for every choice, too: what was asked, and its likelihood"),
};
static const char *const paper[] = {"examples=0", NULL};

typedef struct {
    int64_t n, right, by_character, by_token;
    bool whole; /* however long it takes */
} score;

static linnet_status answer(lnt_reader *k, const lnt_question *q, const options *o, lnt_arena *arena, score *z)
{
    lnt_asked a[LNT_CANDIDATES];
    int best[3] = {0};
    double most[3] = {-INFINITY, -INFINITY, -INFINITY};
    for (int i = 0; i < q->n; i++) {
        char *choice = lnt_arena_printf(arena, " %s", q->choice[i]);
        if (!choice) return lnt_fail_memory(k->r->c, strlen(q->choice[i]));
        LNT_TRY(lnt_reader_pair(k, q->context[i], choice, o->length, arena, &a[i]));
    }
    LNT_TRY(lnt_reader_ask(k, a, q->n));
    for (int i = 0; i < q->n; i++) {
        if (o->likelihoods) lnt_reader_row(k, z->n, i, q->context[i], q->choice[i], &a[i]);
        const double by[3] = {-a[i].nats, -a[i].nats / (double)lnt_count_characters(q->choice[i]), -a[i].nats / (double)(a[i].n - a[i].from)};
        for (int j = 0; j < 3; j++)
            if (by[j] > most[j]) {
                most[j] = by[j];
                best[j] = i;
            }
    }
    z->n++;
    z->right += best[0] == q->answer;
    z->by_character += best[1] == q->answer;
    z->by_token += best[2] == q->answer;
    return LINNET_OK;
}

/* labels->at NULL: the answers stand in the lines. */
static linnet_status read_all(lnt_reader *k, lnt_lines *l, lnt_labels *labels, const options *o, score *z)
{
    lnt_run *r = k->r;
    linnet_status s = LINNET_OK;
    while (s == LINNET_OK && (!o->examples || z->n < o->examples) && (z->whole || !z->n || !lnt_run_late(r))) {
        lnt_arena arena = {0};
        lnt_question q;
        json_t *line;
        if ((s = lnt_lines_next(l, &line)) != LINNET_OK || !line) break;
        s = lnt_choice_read(l, line, o->format, labels->at ? labels : NULL, &arena, &q);
        if (s == LINNET_OK) s = answer(k, &q, o, &arena, z);
        if (s == LINNET_OK)
            s = lnt_run_progress(r, o->examples ? (double)z->n / (double)o->examples : 0.5, "%lld questions  acc %.1f%%", (long long)z->n,
                                 100 * (double)z->right / (double)z->n);
        json_decref(line);
        lnt_arena_free(&arena);
    }
    return s;
}

linnet_status lnt_choice_score(lnt_reader *k, const char *path, const char *labels, int format, int64_t examples, double share[3])
{
    const options o = {.format = format, .examples = examples};
    lnt_ctx *c = k->r->c;
    lnt_lines l;
    score z = {.whole = true};
    char *answers = NULL;
    size_t bytes;
    LNT_TRY(lnt_lines_open(c, path, &l));
    linnet_status s = labels ? lnt_file_read(c, labels, 1 << 28, &answers, &bytes) : LINNET_OK;
    if (s == LINNET_OK) s = read_all(k, &l, &(lnt_labels){labels, answers}, &o, &z);
    if (s == LINNET_OK && !z.n) s = lnt_fail(c, LINNET_EINVAL, "%s holds no question", path);
    const int64_t right[3] = {z.right, z.by_character, z.by_token};
    for (int i = 0; i < 3 && s == LINNET_OK; i++) share[i] = (double)right[i] / (double)z.n;
    lnt_lines_close(&l);
    lnt_free(answers);
    return s;
}

static double put_share(lnt_report *p, const char *name, int64_t right, int64_t n)
{
    char text[32] = "";
    const double x = (double)right / (double)n;
    lnt_row_real(p, name, x);
    strcat(strcpy(text, name), "_stderr");
    lnt_row_real(p, text, n > 1 ? sqrt(x * (1 - x) / (double)(n - 1)) : NAN);
    return x;
}

static linnet_status run(lnt_run *r)
{
    const options *o = r->values;
    lnt_reader k = {0};
    lnt_lines l = {0};
    score z = {0};
    char word[24], *labels = NULL;
    size_t bytes;
    linnet_status s;
    LNT_TRY(lnt_lines_open(r->c, r->o->files[0], &l));
    if (r->o->n_files > 1) LNT_TRY_GOTO(s, lnt_file_read(r->c, r->o->files[1], 1 << 28, &labels, &bytes), done);
    LNT_TRY_GOTO(s, lnt_reader_open(r, false, &k), done);
    LNT_TRY_GOTO(s, lnt_reader_cost(&k, &l, o->examples, 2, 0, 0), done); /* a prompt is read again with each choice */
    LNT_TRY_GOTO(s, read_all(&k, &l, &(lnt_labels){labels ? r->o->files[1] : NULL, labels}, o, &z), done);
    if (!z.n) {
        s = lnt_fail(r->c, LINNET_EINVAL, "%s holds no question", r->o->files[0]);
        goto done;
    }
    lnt_row_begin(&r->report, "result");
    lnt_row_text(&r->report, "format", lnt_word_at(LNT_CHOICE_FORMATS, o->format, word, sizeof word));
    lnt_row_int(&r->report, "examples", z.n);
    static const char *const names[] = {"acc", "acc_norm", "acc_per_token"};
    const int64_t right[] = {z.right, z.by_character, z.by_token};
    double share[3];
    for (int i = 0; i < 3; i++) share[i] = put_share(&r->report, names[i], right[i], z.n);
    lnt_row_end(&r->report);
    lnt_report_bars(&r->report, "Share of right answers", NULL, 1, 3, names, share);
done:
    lnt_reader_close(&k);
    lnt_lines_close(&l);
    lnt_free(labels);
    return s == LINNET_OK ? r->report.s : s;
}

const lnt_task lnt_task_choice = {
    .info = {"choice", "multiple choice by likelihood, with the prompts of ten benchmarks' files",
             "FILE is the benchmark's own, JSON lines; LABELS has its answers where they stand beside it. acc takes the choice with the largest "
             "likelihood behind the prompt, acc_norm per character of the choice, acc_per_token per token.",
             "Gao et al., lm-evaluation-harness; von Oswald et al. 2025, arXiv 2506.05233",
             "linnet task choice model/ valid.jsonl valid-labels.lst --format piqa", LINNET_TASK_READS, 1, 2, "FILE [LABELS]", NULL, NULL, NULL},
    .options = LNT_OPTIONS(options, keys),
    .paper = paper,
    .run = run,
};

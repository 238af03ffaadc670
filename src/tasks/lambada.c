/* LAMBADA (Paperno et al., arXiv 1606.06031) as lambada_openai: the last word of a passage, by its likelihood and by greedy decoding. */
#include <math.h>
#include <string.h>

#include "tasks/reader.h"
#include "tasks/texts.h"

typedef struct {
    int format;
    int64_t examples, length;
    bool likelihoods;
} options;

/* EleutherAI's names; the prompts are the same. */
#define FORMATS "lambada_openai lambada_standard"
static const lnt_option keys[] = {
    LNT_WORD(options, format, FORMATS, 0, "which of the two versions of the passages FILE is: the name in the results"),
    LNT_INT(options, examples, 0, 1e9, 500, "passages to read; 0: all"),
    LNT_INT(options, length, 0, 1 << 24, 0, "tokens of a passage at most, the last ones; 0: all"),
    LNT_SWITCH(options, likelihoods, false, "a row for every passage, too: what was asked, and its likelihood"),
};
static const char *const paper[] = {"examples=0", NULL};

enum { BATCH = 64 };

typedef struct {
    int64_t n, right;
    double nats;
    int64_t tokens;
} score;

static linnet_status ask(lnt_reader *k, lnt_asked *a, const char *const (*text)[2], int n, score *z)
{
    const bool rows = ((const options *)k->r->values)->likelihoods;
    LNT_TRY(lnt_reader_ask(k, a, n));
    for (int i = 0; i < n; i++) {
        if (rows) lnt_reader_row(k, z->n, 0, text[i][0], text[i][1], &a[i]);
        z->n++;
        z->right += a[i].greedy;
        z->nats += a[i].nats;
        z->tokens += a[i].n - a[i].from;
    }
    return LINNET_OK;
}

/* Every passage of the file, split at its last blank. */
static linnet_status read_all(lnt_run *r, lnt_reader *k, lnt_lines *l, score *z)
{
    const options *o = r->values;
    lnt_arena arena = {0};
    lnt_asked a[BATCH];
    const char *text[BATCH][2];
    int n = 0;
    linnet_status s = LINNET_OK;
    for (int64_t i = 0; s == LINNET_OK && (!o->examples || i < o->examples) && !(z->n && lnt_run_late(r)); i++) {
        json_t *line;
        const char *passage;
        if ((s = lnt_lines_next(l, &line)) != LINNET_OK || !line) break;
        s = lnt_lines_text(l, line, "text", &passage);
        const char *last = s == LINNET_OK ? strrchr(passage, ' ') : NULL;
        char *context = last ? lnt_arena_printf(&arena, "%.*s", (int)(last - passage), passage) : NULL;
        char *word = last ? lnt_arena_strdup(&arena, last + 1) : NULL;
        if (s == LINNET_OK && !last) s = lnt_lines_bad(l, "a passage of one word");
        else if (s == LINNET_OK && (!context || !word)) s = lnt_fail_memory(r->c, strlen(passage));
        if (s == LINNET_OK) {
            text[n][0] = context;
            text[n][1] = word;
            s = lnt_reader_pair(k, context, last, o->length, &arena, &a[n++]);
        }
        json_decref(line);
        if (s != LINNET_OK || n < BATCH) continue;
        if ((s = ask(k, a, text, n, z)) == LINNET_OK)
            s = lnt_run_progress(r, o->examples ? (double)z->n / (double)o->examples : 0.5, "%lld passages", (long long)z->n);
        lnt_arena_free(&arena);
        arena = (lnt_arena){0};
        n = 0;
    }
    if (s == LINNET_OK && n) s = ask(k, a, text, n, z);
    lnt_arena_free(&arena);
    return s;
}

static linnet_status run(lnt_run *r)
{
    const options *o = r->values;
    lnt_reader k = {0};
    lnt_lines l = {0};
    score z = {0};
    linnet_status s;
    LNT_TRY(lnt_lines_open(r->c, r->o->files[0], &l));
    LNT_TRY_GOTO(s, lnt_reader_open(r, true, &k), done);
    LNT_TRY_GOTO(s, lnt_reader_cost(&k, &l, o->examples, 1, o->length, 0), done);
    LNT_TRY_GOTO(s, read_all(r, &k, &l, &z), done);
    if (!z.n) {
        s = lnt_fail(r->c, LINNET_EINVAL, "%s holds no passage", r->o->files[0]);
        goto done;
    }
    const double acc = (double)z.right / (double)z.n;
    char word[24];
    lnt_row_begin(&r->report, "result");
    lnt_row_text(&r->report, "format", lnt_word_at(FORMATS, o->format, word, sizeof word));
    lnt_row_int(&r->report, "examples", z.n);
    lnt_row_real(&r->report, "acc", acc);
    lnt_row_real(&r->report, "acc_stderr", z.n > 1 ? sqrt(acc * (1 - acc) / (double)(z.n - 1)) : NAN);
    lnt_row_real(&r->report, "perplexity", exp(z.nats / (double)z.n));
    lnt_row_real(&r->report, "nats_per_token", z.nats / (double)z.tokens);
    lnt_row_end(&r->report);
    lnt_report_bars(&r->report, "Share of right words", NULL, 1, 1, (const char *const[]){"acc"}, &acc);
done:
    lnt_reader_close(&k);
    lnt_lines_close(&l);
    return s == LINNET_OK ? r->report.s : s;
}

const lnt_task lnt_task_lambada = {
    .info = {"lambada", "the last word of a passage",
             "FILE has a passage a line, {\"text\": ...}. acc: all tokens of the last word are the model's own choice; perplexity: of the whole "
             "word.",
             "Paperno et al. 2016, arXiv 1606.06031", "linnet task lambada model/ lambada_test.jsonl",
             LINNET_TASK_READS, 1, 1, "FILE", NULL, NULL, NULL},
    .options = LNT_OPTIONS(options, keys),
    .paper = paper,
    .run = run,
};

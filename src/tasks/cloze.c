/* Recall as a cloze (Arora et al., Based, arXiv 2402.18668): a text whose end asks for what stands in it; the answer must occur in what the model
 * goes on with. */
#include <string.h>

#include "tasks/reader.h"
#include "tasks/texts.h"

typedef struct {
    int64_t examples, tokens, length;
    bool twice;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, examples, 0, 1e9, 100, "texts; 0: all"),
    LNT_INT(options, tokens, 1, 1 << 16, 48, "tokens to go on for at most; a line's end ends it before"),
    LNT_INT(options, length, 0, 1 << 24, 2000, "tokens of a text at most, the last ones; 0: all"),
    LNT_SWITCH(options, twice, false, "the text is read twice (Arora et al., arXiv 2407.05483)"),
};
static const char *const paper[] = {"examples=0", NULL};

static bool at_line_end(void *user, const char *text)
{
    (void)user;
    return strchr(text, '\n') != NULL;
}

static linnet_status one(lnt_run *r, lnt_reader *k, const lnt_lines *l, const json_t *line, bool *right)
{
    const options *o = r->values;
    const char *text, *value;
    lnt_arena arena = {0};
    lnt_text prompt = {.arena = &arena};
    int32_t *ids;
    int64_t n;
    char *out = NULL;
    linnet_status s;
    LNT_TRY(lnt_lines_text(l, line, "text", &text));
    LNT_TRY(lnt_lines_text(l, line, "value", &value));
    if (!*value) return lnt_lines_bad(l, "\"value\" is empty");
    lnt_text_put(&prompt, text);
    if (o->twice) {
        lnt_text_put(&prompt, "\n");
        lnt_text_put(&prompt, text);
    }
    s = prompt.text ? lnt_reader_ids(k, prompt.text, prompt.n, &arena, &ids, &n) : lnt_fail_memory(r->c, strlen(text));
    if (s == LINNET_OK) {
        const int64_t drop = o->length && n > o->length ? n - o->length : 0;
        s = lnt_reader_go_on(k, ids + drop, n - drop, o->tokens, at_line_end, NULL, &arena, &out);
    }
    if (s == LINNET_OK) {
        out[strcspn(out, "\n")] = 0;
        *right = lnt_text_contains(out, value);
    }
    lnt_arena_free(&arena);
    return s;
}

static linnet_status run(lnt_run *r)
{
    const options *o = r->values;
    lnt_reader k = {0};
    lnt_lines l = {0};
    int64_t n = 0, right = 0;
    linnet_status s;
    LNT_TRY(lnt_lines_open(r->c, r->o->files[0], &l));
    LNT_TRY_GOTO(s, lnt_reader_open(r, false, &k), done);
    LNT_TRY_GOTO(s, lnt_reader_cost(&k, &l, o->examples, o->twice ? 2 : 1, o->length, o->tokens), done);
    while ((!o->examples || n < o->examples) && !(n && lnt_run_late(r))) {
        json_t *line;
        bool fine = false;
        LNT_TRY_GOTO(s, lnt_lines_next(&l, &line), done);
        if (!line) break;
        s = one(r, &k, &l, line, &fine);
        json_decref(line);
        if (s != LINNET_OK) goto done;
        n++;
        right += fine;
        LNT_TRY_GOTO(s, lnt_run_progress(r, o->examples ? (double)n / (double)o->examples : 0.5, "%lld texts  %lld right", (long long)n,
                                         (long long)right), done);
    }
    if (!n) {
        s = lnt_fail(r->c, LINNET_EINVAL, "%s holds no text", r->o->files[0]);
        goto done;
    }
    lnt_row_begin(&r->report, "result");
    lnt_row_int(&r->report, "examples", n);
    const double share = (double)right / (double)n;
    lnt_row_real(&r->report, "contains", share);
    lnt_row_end(&r->report);
    lnt_report_bars(&r->report, "Share of texts whose value is found", NULL, 1, 1, (const char *const[]){"contains"}, &share);
done:
    lnt_reader_close(&k);
    lnt_lines_close(&l);
    return s == LINNET_OK ? r->report.s : s;
}

const lnt_task lnt_task_cloze = {
    .info = {"cloze", "recall from a text: FDA, SWDE, SQuAD and their like",
             "FILE has JSON lines {\"text\": ..., \"value\": ...}: the model goes on behind the text, greedily, and contains is the share of texts "
             "whose value occurs there (A to Z as a to z).",
             "Arora et al. 2024, arXiv 2402.18668", "linnet task cloze model/ fda.jsonl", LINNET_TASK_READS, 1, 1, "FILE", NULL, NULL, NULL},
    .options = LNT_OPTIONS(options, keys),
    .paper = paper,
    .run = run,
};

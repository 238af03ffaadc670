/* Multiple choice: a question as a prompt and candidates, from the files of several benchmarks. */
#ifndef LNT_TASKS_CHOICE_H
#define LNT_TASKS_CHOICE_H

#include "tasks/reader.h"
#include "tasks/texts.h"

enum { LNT_CANDIDATES = 16 };

typedef struct {
    int n, answer;
    const char *context[LNT_CANDIDATES]; /* the same for all, but where the choice stands in it */
    const char *choice[LNT_CANDIDATES];  /* behind a blank */
} lnt_question;

/* The forms of `format`, by their place among these: EleutherAI's names of the benchmarks, by which their results are called. ARC's two sets are told
 * apart by whoever names the file: nothing in a line does, identifiers such as Mercury_... are in both. */
#define LNT_CHOICE_FORMATS "plain piqa hellaswag winogrande arc_easy arc_challenge openbookqa social_iqa boolq race storycloze mmlu"
/* Answers beside the file, one a line. */
typedef struct {
    const char *path, *at; /* at: the next one */
} lnt_labels;
/* A line as a question; `labels` (NULL: none) has its answer next. Texts are the arena's. */
linnet_status lnt_choice_read(const lnt_lines *l, const json_t *line, int format, lnt_labels *labels, lnt_arena *arena, lnt_question *q);
/* Shares of right answers in a file: by likelihood, per character, per token. `labels`: a file of answers, NULL: none; `examples` 0: all. */
linnet_status lnt_choice_score(lnt_reader *k, const char *path, const char *labels, int format, int64_t examples, double share[3]);

#endif

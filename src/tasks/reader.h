/* Reading with a model: likelihoods of continuations, and what it goes on with. What tasks for language models share. */
#ifndef LNT_TASKS_READER_H
#define LNT_TASKS_READER_H

#include "tasks/task.h"
#include "tasks/texts.h"

/* How likely is ids[from..n) behind ids[0..from)? from >= 1. */
typedef struct {
    const int32_t *ids;
    int64_t n, from;
    double nats;      /* of all of it */
    bool greedy;      /* each of them has the largest logit; where the reader looks at that */
} lnt_asked;

typedef struct {
    lnt_run *r;
    linnet_model *m;
    const linnet_tokenizer *t;
    bool logits;      /* look for the largest */
    int32_t prefix;   /* stands in front of a text without context: the separator, or a newline */
    int64_t room;     /* tokens of a run */
    lnt_plan *plan;
    int32_t *ids, *targets;
    int64_t *cu;
    float *row;       /* [room] losses, or [vocabulary] logits */
    /* of what it goes on with */
    int64_t capacity;
    lnt_state *state;
    lnt_plan *prefill, *step;
} lnt_reader;

linnet_status lnt_reader_open(lnt_run *r, bool logits, lnt_reader *k);
void lnt_reader_close(lnt_reader *k);

/* Tell the run's cost (lnt_run_cost): the next `examples` lines, each read so many times, at most `most` tokens of one (0: all) and `more` behind it.
 * Tokens are counted on a first piece of the file. */
linnet_status lnt_reader_cost(lnt_reader *k, const lnt_lines *l, int64_t examples, double times, int64_t most, int64_t more);
/* Ids of a text, the arena's. */
linnet_status lnt_reader_ids(lnt_reader *k, const char *text, size_t bytes, lnt_arena *arena, int32_t **ids, int64_t *n);
/* A continuation behind a context: tokenised together, blanks at the context's end counted to the continuation; the last `most` + 1 ids of both
 * (0: all). */
linnet_status lnt_reader_pair(lnt_reader *k, const char *context, const char *continuation, int64_t most, lnt_arena *arena, lnt_asked *out);
/* Answer all, each from a state of zeros, several in a run. */
linnet_status lnt_reader_ask(lnt_reader *k, lnt_asked *asked, int64_t n);
/* A row of the report about a continuation, which stands behind a blank, and its answer. */
void lnt_reader_row(lnt_reader *k, int64_t question, int choice, const char *context, const char *continuation, const lnt_asked *a);

/* Greedy: at most `most` tokens behind ids[n]; `stop` is told the text so far and says when it is enough. The text is the arena's. */
linnet_status lnt_reader_go_on(lnt_reader *k, const int32_t *ids, int64_t n, int64_t most, bool (*stop)(void *user, const char *text), void *user,
                               lnt_arena *arena, char **text);

#endif

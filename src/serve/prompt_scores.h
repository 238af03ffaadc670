/* How probable the tokens of a prompt are, piece by piece (`echo` with `logprobs`). */
#ifndef LNT_SERVE_PROMPT_SCORES_H
#define LNT_SERVE_PROMPT_SCORES_H

#include "serve/request.h"

/* Zero: nothing was wanted yet. */
typedef struct {
    float *logits;   /* host, [rows, V]; made when first wanted, as the others */
    double *logprob; /* [rows] */
    int32_t *top;    /* [rows, alternatives] */
    double *top_logprob;
    int64_t alternatives;
} lnt_prompt_scores;

/* Room for the logits of a piece of up to `rows` tokens. */
linnet_status lnt_prompt_scores_room(lnt_ctx *c, lnt_prompt_scores *s, int64_t rows, int64_t V, int64_t alternatives);
/* Those of ids at .. at+n-1 of a prompt say how probable the id behind each is, to all texts of the prompt. top, top_logprob: room for a row. */
linnet_status lnt_prompt_scores_tell(lnt_ctx *c, lnt_prompt_scores *s, int64_t V, lnt_request *r, int prompt, int64_t at, int64_t n, int32_t *top,
                                     double *top_logprob);
void lnt_prompt_scores_free(lnt_prompt_scores *s);

#endif

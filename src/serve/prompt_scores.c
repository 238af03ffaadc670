#include "serve/prompt_scores.h"

#include <math.h>

#include "core/threads.h"
#include "generate/sample.h"

linnet_status lnt_prompt_scores_room(lnt_ctx *c, lnt_prompt_scores *s, int64_t rows, int64_t V, int64_t alternatives)
{
    const size_t n = (size_t)rows, top = lnt_bytes(n, (size_t)alternatives), logits = lnt_bytes(lnt_bytes(n, (size_t)V), sizeof *s->logits);
    if (!s->logits) s->logits = lnt_alloc(logits);
    if (!s->logprob) s->logprob = lnt_alloc(lnt_bytes(n, sizeof *s->logprob));
    if (!s->top || alternatives > s->alternatives) {
        lnt_free(s->top);
        lnt_free(s->top_logprob);
        s->top = lnt_alloc(lnt_bytes(top, sizeof *s->top));
        s->top_logprob = lnt_alloc(lnt_bytes(top, sizeof *s->top_logprob));
        s->alternatives = alternatives;
    }
    return s->logits && s->logprob && s->top && s->top_logprob ? LINNET_OK : lnt_fail_memory(c, logits);
}

linnet_status lnt_prompt_scores_tell(lnt_ctx *c, lnt_prompt_scores *s, int64_t V, lnt_request *r, int prompt, int64_t at, int64_t n, int32_t *top,
                                     double *top_logprob)
{
    const lnt_prompt *p = &r->prompts[prompt];
    const int alternatives = r->o.alternatives;
    const int64_t count = at + n < p->n ? n : n - 1;
    bool good = true, finite = true;
    lnt_threads_for(c, 40.0 * (double)count * (double)V, 0);
#pragma omp parallel for num_threads(lnt_threads(c)) reduction(&& : finite)
    for (int64_t i = 0; i < count; i++) {
        const float *row = s->logits + i * V;
        s->logprob[i] = lnt_log_probability(row, V, p->ids[at + i + 1]);
        lnt_most_probable(row, V, alternatives, s->top + i * alternatives, s->top_logprob + i * alternatives);
        finite = finite && !isnan(s->logprob[i]);
    }
    if (!finite) return lnt_fail(c, LINNET_EINVAL, "the logits behind the prompt's tokens are not finite numbers");
    pthread_mutex_lock(&r->lock);
    for (int k = 0; k < r->n && good; k++) {
        lnt_written *w = &r->written[prompt * r->n + k];
        if (!at) {
            for (int j = 0; j < alternatives; j++) top[j] = -1;
            good = lnt_written_said(w, p->ids[0], NAN, alternatives, top, top_logprob);
        }
        for (int64_t i = 0; i < count && good; i++)
            good = lnt_written_said(w, p->ids[at + i + 1], s->logprob[i], alternatives, s->top + i * alternatives, s->top_logprob + i * alternatives);
    }
    lnt_request_tell(r);
    pthread_mutex_unlock(&r->lock);
    return good ? LINNET_OK : lnt_fail_memory(c, lnt_bytes((size_t)n, sizeof(lnt_said)));
}

void lnt_prompt_scores_free(lnt_prompt_scores *s)
{
    lnt_free(s->logits);
    lnt_free(s->logprob);
    lnt_free(s->top);
    lnt_free(s->top_logprob);
}

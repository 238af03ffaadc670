/* Loss on held-out ids: windows of `length`, each from a fresh state, window w predicting ids[w*stride+1 .. w*stride+length]. Training evaluates with
 * it too. */
#ifndef LNT_EVAL_SCORER_H
#define LNT_EVAL_SCORER_H

#include "model/model.h"

typedef struct {
    int64_t length, windows;     /* of one run */
    int64_t stride;              /* from a window's start to the next one's, at most length (which it is until set otherwise) */
    int32_t unasked;             /* an id that nothing is asked to predict; -1, which it is until set otherwise: none */
    lnt_plan *plan;
    linnet_model *m;
    int32_t *ids, *targets;      /* host, [windows*length] */
    float *loss;                 /* host, [windows*length] */
} lnt_scorer;

typedef struct {
    bool finite;                 /* a loss that is no finite number is an error */
    int64_t tokens;
    int64_t reached;             /* predictions of the text that some window has made: `tokens` counts those of overlapping windows apart */
    double nats;                 /* summed */
    double *position_nats;       /* [length], added to, or NULL */
    int64_t *position_count;     /* [length], added to, or NULL */
} lnt_score;

linnet_status lnt_scorer_create(lnt_ctx *c, linnet_model *m, int64_t length, int64_t windows, lnt_scorer **out);
/* The same over a plan that says where a value came from that is no finite number (lnt_plan_options.finite). */
linnet_status lnt_scorer_create_looking(lnt_ctx *c, linnet_model *m, int64_t length, int64_t windows, bool looking, lnt_scorer **out);
void lnt_scorer_destroy(lnt_scorer *s);
/* Score ids[0..n): n-1 predictions less those of `unasked`, more where windows overlap; the last window is the first that reaches the end, and may be
 * short. `progress` (may be NULL) is told tokens done; non-zero stops with LINNET_EINTERRUPTED. */
linnet_status lnt_scorer_run(lnt_scorer *s, const int32_t *ids, int64_t n, int (*progress)(void *user, int64_t done, int64_t total), void *user,
                             lnt_score *score);

#endif

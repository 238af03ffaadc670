/* A request: prompts, what is to be written behind each, and what has been written so far. It is made by the thread that hears a client, run by the
 * one that has the model, and read by both. */
#ifndef LNT_SERVE_REQUEST_H
#define LNT_SERVE_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/memory.h"

/* A token of a text, of the prompt or drawn. */
typedef struct {
    int32_t id;
    double logprob; /* NaN: of the first token, which nothing stands before */
} lnt_said;

/* What was seen of a text's state (state_view.h): of each token, and of a key. */
enum { LNT_RECALLED = 3 };
typedef struct {
    int32_t *ids;         /* [n] */
    float *norm, *memory; /* [n][heads] */
    int64_t n, room, heads;
    float *cosine;        /* [heads] of what the key recalls to its own token's value; NULL: none was asked */
    int32_t *nearest;     /* [heads][LNT_RECALLED] tokens whose values are nearest to it, -1: there are no more */
    float *nearness;      /* the same: their cosines */
} lnt_viewed;

/* One text. */
typedef struct {
    char *text;           /* [n_text] bytes that no stop string takes back; of drawn tokens alone */
    size_t n_text, room_text;
    lnt_said *said;       /* [n_said], where log-probabilities are wanted */
    int32_t *top;         /* [n_said][alternatives] */
    double *top_logprob;
    int64_t n_said, room_said;
    int64_t drawn;        /* tokens */
    int32_t ended;        /* LINNET_ENDED_..., LNT_GOES_ON */
    lnt_viewed viewed;    /* where a look into the state is wanted */
} lnt_written;

enum { LNT_GOES_ON = -1, LNT_END_IDS = 8, LNT_ERROR_TEXT = 1536 };

typedef struct {
    int32_t *ids;
    int64_t n;
    int64_t cached; /* of them, those whose state was there already */
} lnt_prompt;

typedef struct lnt_request {
    /* What is asked; set before the scheduler gets it, and not changed from then on. */
    linnet_generate_options o; /* max_tokens, the sampling, stop, alternatives; choice i draws from seed + i */
    int n_prompts, n;          /* n choices for each prompt */
    lnt_prompt *prompts;
    bool scored;               /* log-probabilities of what is drawn, */
    bool score_prompt;         /* and of the prompts */
    bool viewed;               /* a look into the state; of one text */
    int64_t recall;            /* the token whose key is asked what it recalls, -1: none */
    int32_t end_ids[LNT_END_IDS]; /* tokens that end a text, n_end_ids of them */
    int n_end_ids;
    double until;              /* lnt_now() when it is given up; 0: never */
    bool each;                 /* `wake` is wanted for every token, not for the end alone */
    lnt_arena arena;           /* of what the above points to */

    /* What has come of it, under the lock. */
    pthread_mutex_t lock;
    lnt_written *written;      /* [n_prompts][n] */
    int64_t ended;             /* texts of them */
    linnet_status status;      /* of the whole; not LINNET_OK: failed, and over */
    char error[LNT_ERROR_TEXT];
    void (*wake)(void *user);  /* something is new; called under the lock. NULL: nobody listens */
    void *user;

    atomic_bool dropped;       /* nobody waits for it any more */
    atomic_int holders;
} lnt_request;

/* Held once. */
linnet_status lnt_request_create(lnt_ctx *c, lnt_request **out);
/* Room for the texts; when n_prompts and n are set. */
linnet_status lnt_request_ready(lnt_ctx *c, lnt_request *r);
void lnt_request_hold(lnt_request *r);
/* The last one frees it. */
void lnt_request_release(lnt_request *r);

/* With the lock held: all texts are there, or it failed. */
static inline bool lnt_request_over(const lnt_request *r) { return r->status != LINNET_OK || r->ended == (int64_t)r->n_prompts * r->n; }
/* It ends here with the error of a context; where it is over already, it stays as it was. */
void lnt_request_fail(lnt_request *r, const lnt_ctx *c, linnet_status s);

/* Somebody waits for it, it is not over, and it has time. When that is out, it fails. */
bool lnt_request_wanted(lnt_request *r, lnt_ctx *c);

/* Additions to a text, under the lock, which is not told of them until lnt_request_tell. false: no memory. */
bool lnt_written_bytes(lnt_written *w, const char *bytes, size_t n);
bool lnt_written_said(lnt_written *w, int32_t id, double logprob, int alternatives, const int32_t *top, const double *top_logprob);
void lnt_request_tell(lnt_request *r);

#endif

/* Strings that end a text: what a token brings is held back while it could begin one of them. */
#ifndef LNT_GENERATE_STOP_H
#define LNT_GENERATE_STOP_H

#include "core/status.h"

typedef struct {
    const char *const *stop; /* [n], the caller's, none of them empty */
    int n;
    char *held;    /* [used] bytes not given out yet */
    size_t used, room;
    size_t given;  /* of `held`, by the last call: they leave at the next */
} lnt_stopper;

/* Put a token's bytes. *out [*out_bytes]: what may be given out now, until the next call. *found: a string is whole; what stands before it is out. */
linnet_status lnt_stopper_put(lnt_ctx *c, lnt_stopper *s, const char *bytes, size_t n, const char **out, size_t *out_bytes, bool *found);
/* What is held back still. */
const char *lnt_stopper_rest(lnt_stopper *s, size_t *bytes);
void lnt_stopper_close(lnt_stopper *s);

#endif

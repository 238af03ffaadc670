/* States behind beginnings of prompts, at multiples of the session's chunk: what another prompt that begins so starts from. A state there was reached
 * by whole pieces alone, so it has the bits that the new prompt's own reading would leave. */
#ifndef LNT_SERVE_PREFIX_CACHE_H
#define LNT_SERVE_PREFIX_CACHE_H

#include "core/memory.h"
#include "linnet/state.h"

typedef struct lnt_prefix_cache lnt_prefix_cache;

/* Of `most` states at once, in slots of the session that nobody else takes. */
linnet_status lnt_prefix_cache_create(lnt_ctx *c, linnet_session *s, int64_t most, int64_t chunk, lnt_prefix_cache **out);
void lnt_prefix_cache_destroy(lnt_prefix_cache *p);
/* The longest beginning of ids[0..n) that is known and leaves at least one id to be read, onto a state; *tokens of them, 0: none, the state as it
 * was. */
linnet_status lnt_prefix_cache_find(lnt_prefix_cache *p, const int32_t *ids, int64_t n, linnet_state *onto, int64_t *tokens);
/* Keep a state that has read ids[0..n), n a multiple of the chunk. Where there is no room, a state goes that was never asked for and that a longer
 * one goes on from; if there is none such, the one that was asked for longest ago. */
linnet_status lnt_prefix_cache_put(lnt_prefix_cache *p, const int32_t *ids, int64_t n, const linnet_state *state);
int64_t lnt_prefix_cache_states(const lnt_prefix_cache *p);

#endif

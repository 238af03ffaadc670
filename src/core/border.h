/* The border: nothing that a caller hands in is believed. Pointers may be NULL, structures older or newer than this library, numbers out of range.
 *
 * A public function begins with LNT_NEED for each pointer it cannot do without, copies its options by lnt_options_take into a structure that
 * holds the defaults, and gives its result by LNT_GIVE. The ranges of all options stand in border.c, once: commands ask linnet_option_range. */
#ifndef LNT_CORE_BORDER_H
#define LNT_CORE_BORDER_H

#include "core/status.h"

/* LINNET_EINVAL naming what is missing. Without a context the status is all that can be said. */
#define LNT_NEED(c, p) LNT_TRY(lnt_need(c, p, #p))
linnet_status lnt_need(lnt_ctx *c, const void *p, const char *name);

/* Copy the options `kind` ("train") from the caller's structure over `mine`, which holds the defaults: as many bytes as both have. Bytes behind what
 * this library knows must be zero. Then every number must lie in its range. */
linnet_status lnt_options_take(lnt_ctx *c, const char *kind, const void *given, void *mine);
/* The last of these alone: for options that came from a file. */
linnet_status lnt_options_check(lnt_ctx *c, const char *kind, const void *options);

/* Whether a caller's result structure says how large it is; before the work. */
linnet_status lnt_result_check(lnt_ctx *c, const void *out);
/* Copy a result to the caller's structure, as many bytes as both have; its size is then how many bytes were given. */
#define LNT_GIVE(out, result) lnt_give(out, &(result), sizeof(result))
void lnt_give(void *out, const void *result, size_t known);

/* A dtype that a model may have: LINNET_F32 or LINNET_BF16. `what` it is of, in an error. */
linnet_status lnt_model_dtype_check(lnt_ctx *c, const char *what, int64_t dtype);
linnet_status lnt_weights_dtype_check(lnt_ctx *c, int64_t dtype);

#endif

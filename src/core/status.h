/* Errors as values: a status, and its text on the context.
 *
 * Message grammar: one short primary sentence in lower case without a final period, with the offending value and the expected one;
 * then a detail (where it came from) and a hint (what to do), each a full sentence. NULL for what there is nothing to say of. */
#ifndef LNT_CORE_STATUS_H
#define LNT_CORE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/number.h"
#include "linnet/linnet.h"

typedef linnet_context lnt_ctx;

/* Record an error and return its status, so that `return lnt_fail(...)` reads as one step. */
linnet_status lnt_fail(lnt_ctx *c, linnet_status s, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Add to the error just recorded; both return the status recorded last. */
linnet_status lnt_detail(lnt_ctx *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
linnet_status lnt_hint(lnt_ctx *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* LINNET_ENOMEM with the size that could not be had. */
linnet_status lnt_fail_memory(lnt_ctx *c, size_t bytes);

/* Diagnostics for LINNET_VERBOSE=dispatch and the like; nothing when the context has no log. */
void lnt_log(lnt_ctx *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Leave the function with the status of a failing call. */
#define LNT_TRY(call)                                                                                                              \
    do {                                                                                                                           \
        linnet_status lnt_try_status = (call);                                                                                     \
        if (lnt_try_status != LINNET_OK) return lnt_try_status;                                                                    \
    } while (0)

/* Go to `label` with the status of a failing call in `var`. */
#define LNT_TRY_GOTO(var, call, label)                                                                                             \
    do {                                                                                                                           \
        (var) = (call);                                                                                                            \
        if ((var) != LINNET_OK) goto label;                                                                                        \
    } while (0)

#endif

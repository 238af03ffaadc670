/* What the tests of a GPU begin with. */
#ifndef GPU_CONTEXT_H
#define GPU_CONTEXT_H

#include "linnet/linnet.h"

/* NULL, with the reason printed, where there is no GPU. */
static inline linnet_context *make_cuda_context(void)
{
    linnet_context *c;
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.device = "cuda";
    if (linnet_context_create(&o, &c) == LINNET_OK) return c;
    print_message("skipped: %s\n", linnet_error_message(c));
    linnet_context_destroy(c);
    return NULL;
}

#endif

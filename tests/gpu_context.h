/* What the tests of a GPU begin with. */
#ifndef GPU_CONTEXT_H
#define GPU_CONTEXT_H

#include <stdbool.h>
#include <string.h>

#include "linnet/linnet.h"

/* "PROGRAM NAME": only what contains NAME. Where there is a GPU, a NAME that nothing contains is a failure. */
static const char *only = "";
static bool no_gpu, found;

static inline bool wanted(const char *name)
{
    const bool yes = strstr(name, only) != NULL;
    found |= yes;
    return yes;
}
static inline int exit_status(int failed)
{
    if (failed || no_gpu || found || !*only) return failed;
    print_error("nothing here is called \"%s\"\n", only);
    return 1;
}

/* NULL, with the reason printed, where there is no GPU. */
static inline linnet_context *make_cuda_context(void)
{
    linnet_context *c;
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.device = "cuda";
    if (linnet_context_create(&o, &c) == LINNET_OK) return c;
    print_message("skipped: %s\n", linnet_error_message(c));
    linnet_context_destroy(c);
    no_gpu = true;
    return NULL;
}

#endif

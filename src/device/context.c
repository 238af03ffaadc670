/* The life of a context. It lives here and not in core/ because a context owns its device. */
#include "core/context.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/border.h"
#include "core/cpu.h"
#include "core/memory.h"
#include "device/device.h"

#define TEXT_OF(x) #x
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)
const char *linnet_version(void) { return VERSION_TEXT(LINNET_VERSION_MAJOR, LINNET_VERSION_MINOR, LINNET_VERSION_PATCH); }

static linnet_status setup(linnet_context *c, const linnet_context_options *o)
{
    c->log = o->log;
    c->log_user = o->log_user;
    const char *verbose = getenv("LINNET_VERBOSE");
    c->verbose_dispatch = verbose && strstr(verbose, "dispatch");
    c->threads = o->threads ? o->threads : omp_get_max_threads();
    if (o->parallel && !lnt_pool_possible()) {
        lnt_fail(c, LINNET_EUNSUPPORTED, "this build of linnet cannot work in the caller's threads: it was not compiled by GCC");
        return lnt_hint(c, "Leave `parallel` NULL; a context of one thread in each of the caller's does without it.");
    }
    c->pool = (lnt_pool){o->parallel, o->parallel_user};
    if (lnt_cpu_problem()) {
        lnt_fail(c, LINNET_EINVAL, "%s", lnt_cpu_problem());
        return lnt_hint(c, "Unset LINNET_CPU to use the best this processor has.");
    }
    LNT_TRY(lnt_device_open(c, o->device ? o->device : "cpu", o->stream, &c->device));
    const char *what = lnt_on_cuda(c) ? "" : lnt_cpu_name(lnt_cpu());
    snprintf(c->machine, sizeof c->machine, "%s%s%s, %d thread%s", c->device->name, *what ? ": " : "", what, c->threads, c->threads == 1 ? "" : "s");
    return LINNET_OK;
}

linnet_status linnet_context_create(const linnet_context_options *options, linnet_context **out)
{
    if (!out) return LINNET_EINVAL;
    *out = NULL;
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    linnet_context *c = lnt_calloc(sizeof *c);
    if (!c) return LINNET_ENOMEM;
    *out = c;
    if (options) LNT_TRY(lnt_options_take(c, "context", options, &o));
    return setup(c, &o);
}

void linnet_context_destroy(linnet_context *c)
{
    if (!c) return;
    if (c->device) c->device->destroy(c->device);
    lnt_pool_gone(&c->pool);
    lnt_free(c);
}

const char *linnet_machine(const linnet_context *c) { return c ? c->machine : ""; }

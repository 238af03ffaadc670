/* The life of a context. It lives here and not in core/ because a context owns its device. */
#include "core/context.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cpu.h"
#include "core/memory.h"
#include "device/device.h"

enum { MAX_THREADS = 4096 };

const char *linnet_version(void) { return "0.1.0"; }

static linnet_status setup(linnet_context *c, const linnet_context_options *o)
{
    c->log = o->log;
    c->log_user = o->log_user;
    const char *verbose = getenv("LINNET_VERBOSE");
    c->verbose_dispatch = verbose && strstr(verbose, "dispatch");
    if (o->threads < 0 || o->threads > MAX_THREADS)
        return lnt_fail(c, LINNET_EINVAL, "threads is %d, expected 1 to %d", o->threads, MAX_THREADS);
    c->threads = o->threads ? o->threads : omp_get_max_threads();
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
    *out = NULL;
    linnet_context_options defaults = LINNET_CONTEXT_OPTIONS_INIT;
    linnet_context *c = lnt_calloc(sizeof *c);
    if (!c) return LINNET_ENOMEM;
    *out = c;
    if (options) memcpy(&defaults, options, options->size < sizeof defaults ? options->size : sizeof defaults);
    return setup(c, &defaults);
}

void linnet_context_destroy(linnet_context *c)
{
    if (!c) return;
    if (c->device) c->device->destroy(c->device);
    lnt_free(c);
}

const char *linnet_machine(const linnet_context *c) { return c->machine; }

#include "core/status.h"

#include <stdio.h>

#include "core/context.h"

const char *linnet_status_name(linnet_status s)
{
    switch (s) {
    case LINNET_OK: return "ok";
    case LINNET_EINVAL: return "invalid argument";
    case LINNET_ENOMEM: return "out of memory";
    case LINNET_EIO: return "input/output error";
    case LINNET_EFORMAT: return "malformed file";
    case LINNET_EUNSUPPORTED: return "unsupported";
    case LINNET_EINTERRUPTED: return "interrupted";
    case LINNET_EINTERNAL: return "internal error";
    }
    return "unknown status";
}

/* Names come from files nobody vouches for: what could move a terminal's cursor is shown as '?'. UTF-8 passes. */
static void write_text(char *text, size_t size, const char *format, va_list ap)
{
    lnt_format_list(text, size, format, ap);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
}

linnet_status lnt_fail(lnt_ctx *c, linnet_status s, const char *format, ...)
{
    if (c) {
        va_list ap;
        va_start(ap, format);
        write_text(c->message, sizeof c->message, format, ap);
        va_end(ap);
        c->detail[0] = c->hint[0] = c->option[0] = 0;
        c->status = s;
    }
    return s;
}

linnet_status lnt_detail(lnt_ctx *c, const char *format, ...)
{
    if (!c) return LINNET_EINTERNAL;
    va_list ap;
    va_start(ap, format);
    write_text(c->detail, sizeof c->detail, format, ap);
    va_end(ap);
    return c->status;
}

linnet_status lnt_hint(lnt_ctx *c, const char *format, ...)
{
    if (!c) return LINNET_EINTERNAL;
    va_list ap;
    va_start(ap, format);
    write_text(c->hint, sizeof c->hint, format, ap);
    va_end(ap);
    return c->status;
}

linnet_status lnt_fail_memory(lnt_ctx *c, size_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double n = (double)bytes;
    int u = 0;
    while (n >= 1023.5 && u < 4) n /= 1024, u++; /* four digits, never 1024 of a unit */
    return lnt_fail(c, LINNET_ENOMEM, "out of memory: %.4g %s could not be had", n, units[u]);
}

void lnt_log(lnt_ctx *c, const char *format, ...)
{
    if (!c || !c->log) return;
    char line[512];
    va_list ap;
    va_start(ap, format);
    lnt_format_list(line, sizeof line, format, ap);
    va_end(ap);
    c->log(c->log_user, line);
}

const char *linnet_error_message(const linnet_context *c) { return c ? c->message : ""; }
const char *linnet_error_detail(const linnet_context *c) { return c ? c->detail : ""; }
const char *linnet_error_hint(const linnet_context *c) { return c ? c->hint : ""; }
const char *linnet_error_option(const linnet_context *c) { return c ? c->option : ""; }

#include "serve/metrics.h"

#include <inttypes.h>
#include <stdio.h>

enum { LINE = 512 };

char *lnt_metrics_text(lnt_metrics *m)
{
    size_t lines = 0, used = 0;
#define X(field, name, kind, help) lines++;
    LNT_METRICS(X)
#undef X
    char *text = lnt_alloc(lnt_bytes(lines, LINE));
    if (!text) return NULL;
#define X(field, name, kind, help)                                                                                                  \
    used += (size_t)snprintf(text + used, LINE, "# HELP linnet_" name " " help "\n# TYPE linnet_" name " " kind "\nlinnet_" name " %" PRIdLEAST64  \
                             "\n", atomic_load_explicit(&m->field, memory_order_relaxed));
    LNT_METRICS(X)
#undef X
    return text;
}

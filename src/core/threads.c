#include "core/threads.h"

#include <omp.h>

#include "core/context.h"

int lnt_threads(const lnt_ctx *c) { return c->threads; }
int lnt_thread_index(void) { return omp_get_thread_num(); }
int linnet_threads(const linnet_context *c) { return c->threads; }

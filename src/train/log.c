#include "train/log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"

/* The bytes of the lines of steps up to `step`: what follows them goes, a torn last line (a kill while writing) too. */
static size_t lines_up_to(const char *text, size_t size, int64_t step)
{
    static const char head[] = "{\"step\":";
    const char *line = text, *end;
    while ((end = memchr(line, '\n', size - (size_t)(line - text)))) {
        if (strncmp(line, head, sizeof head - 1) != 0 || strtoll(line + sizeof head - 1, NULL, 10) > step) break;
        line = end + 1;
    }
    return (size_t)(line - text);
}

static linnet_status drop_later(lnt_ctx *c, const char *path, int64_t step)
{
    char *text;
    size_t size;
    LNT_TRY(lnt_file_read(c, path, (size_t)1 << 40, &text, &size));
    const size_t keep = lines_up_to(text, size, step);
    linnet_status s = LINNET_OK;
    if (keep < size) {
        lnt_file_writer w;
        s = lnt_file_begin(c, path, &w);
        if (s == LINNET_OK) s = lnt_file_write(c, &w, text, keep);
        if (s == LINNET_OK) s = lnt_file_commit(c, &w);
        lnt_file_abandon(&w);
    }
    lnt_free(text);
    return s;
}

linnet_status lnt_train_log_open(lnt_ctx *c, const char *folder, int64_t step, lnt_train_log *log)
{
    const size_t n = strlen(folder) + sizeof "/log.jsonl";
    *log = (lnt_train_log){.path = lnt_alloc(n)};
    if (!log->path) return lnt_fail_memory(c, n);
    snprintf(log->path, n, "%s/log.jsonl", folder);
    if (lnt_file_exists(log->path)) LNT_TRY(drop_later(c, log->path, step));
    return lnt_file_append(c, log->path, &log->stream);
}

static void real(FILE *f, const char *key, int digits, double value)
{
    char text[40] = "null";
    if (isfinite(value)) lnt_format(text, sizeof text, "%.*g", digits, value);
    fprintf(f, ",\"%s\":%s", key, text);
}

linnet_status lnt_train_log_step(lnt_ctx *c, lnt_train_log *log, const linnet_train_progress *p)
{
    FILE *f = log->stream;
    fprintf(f, "{\"step\":%" PRId64, p->step);
    real(f, "loss", 17, p->loss);
    real(f, "learning_rate", 9, p->learning_rate);
    real(f, "gradient_norm", 17, p->gradient_norm);
    fprintf(f, ",\"tokens\":%" PRId64, p->tokens);
    real(f, "seconds", 9, p->seconds);
    real(f, "tokens_per_second", 6, p->tokens_per_second);
    if (p->evaluated) {
        real(f, "eval_loss", 17, p->eval_loss);
        real(f, "eval_bits_per_byte", 17, p->eval_bits_per_byte);
    }
    fputs("}\n", f);
    return fflush(f) == 0 && !ferror(f) ? LINNET_OK : lnt_fail(c, LINNET_EIO, "cannot write \"%s\": %s", log->path, strerror(errno));
}

linnet_status lnt_train_log_sync(lnt_ctx *c, lnt_train_log *log) { return lnt_file_flush(c, log->path, log->stream); }

void lnt_train_log_close(lnt_train_log *log)
{
    if (log->stream) fclose(log->stream);
    lnt_free(log->path);
    *log = (lnt_train_log){0};
}

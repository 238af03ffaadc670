#include "train/log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"

/* Keep the lines of steps up to `step`, rewriting the file whole. A torn last line (a kill while writing) goes too. */
static linnet_status drop_later(lnt_ctx *c, const char *path, int64_t step)
{
    char *text;
    size_t size, keep = 0;
    LNT_TRY(lnt_file_read(c, path, (size_t)1 << 40, &text, &size));
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n');
        long long at;
        if (!end || sscanf(line, "{\"step\":%lld", &at) != 1 || at > step) break;
        line = end + 1;
        keep = (size_t)(line - text);
    }
    linnet_status s = LINNET_OK;
    if (keep < size) {
        lnt_file_writer w;
        s = lnt_file_begin(c, path, &w);
        if (s == LINNET_OK) s = lnt_file_write(c, &w, text, keep);
        if (s == LINNET_OK) s = lnt_file_commit(c, &w);
        if (s != LINNET_OK) lnt_file_abandon(&w);
    }
    lnt_free(text);
    return s;
}

linnet_status lnt_train_log_open(lnt_ctx *c, const char *folder, int64_t step, lnt_train_log *log)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/log.jsonl", folder);
    if (lnt_file_exists(path)) LNT_TRY(drop_later(c, path, step));
    log->stream = fopen(path, "abe");
    return log->stream ? LINNET_OK : lnt_fail(c, LINNET_EIO, "cannot write \"%s\": %s", path, strerror(errno));
}

linnet_status lnt_train_log_step(lnt_ctx *c, lnt_train_log *log, const linnet_train_progress *p)
{
    FILE *f = log->stream;
    fprintf(
        f, "{\"step\":%lld,\"loss\":%.17g,\"learning_rate\":%.9g,\"gradient_norm\":%.17g,\"tokens\":%lld,\"seconds\":%.3f,\"tokens_per_second\":%.1f",
        (long long)p->step, p->loss, p->learning_rate, p->gradient_norm, (long long)p->tokens, p->seconds, p->tokens_per_second);
    if (p->evaluated) {
        fprintf(f, ",\"eval_loss\":%.17g", p->eval_loss);
        if (isfinite(p->eval_bits_per_byte)) fprintf(f, ",\"eval_bits_per_byte\":%.17g", p->eval_bits_per_byte);
    }
    fputs("}\n", f);
    if (fflush(f) != 0) {
        lnt_fail(c, LINNET_EIO, "cannot write log.jsonl: %s", strerror(errno));
        return lnt_hint(c, "The last checkpoint is untouched.");
    }
    return LINNET_OK;
}

void lnt_train_log_close(lnt_train_log *log)
{
    if (log->stream) fclose(log->stream);
    log->stream = NULL;
}

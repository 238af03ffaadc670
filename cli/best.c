/* best/ holds names of the same files: a checkpoint is replaced by new files under the old names, so what has two names stays, and no byte is
 * copied. */
#include "best.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "say.h"

enum { PATH = 4300 };

void best_open(best_kept *b, const char *folder)
{
    char path[PATH], text[200] = "";
    *b = (best_kept){ .folder = folder, .loss = INFINITY };
    if (!folder) return;
    snprintf(path, sizeof path, "%s/best", folder);
    mkdir(path, 0777); /* at once: who resumes sees by it that the best is to be kept */
    snprintf(path, sizeof path, "%s/best/best.json", folder);
    FILE *f = fopen(path, "r");
    if (!f) return;
    const size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    const char *at = strstr(text, "\"eval_loss\": ");
    if (at) b->loss = strtod(at + 13, NULL);
    fclose(f);
}

static void complain(best_kept *b, const char *path)
{
    if (!b->failed) fprintf(stderr, "note: the best checkpoint is not kept: %s: %s\n", path, strerror(errno));
    b->failed = 1;
}

/* What a checkpoint is for those who read it: not what resuming needs besides, and not the logs. */
static bool belongs(const char *name)
{
    static const char *const beginnings[] = { "config.json", "generation_config.json", "tokenizer", "rwkv_vocab", "model" };
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (strncmp(name, beginnings[i], strlen(beginnings[i])) == 0) return strstr(name, ".writing-") == NULL;
    return false;
}

static bool link_over(best_kept *b, const char *name)
{
    char from[PATH], aside[PATH], to[PATH];
    snprintf(from, sizeof from, "%s/%s", b->folder, name);
    snprintf(aside, sizeof aside, "%s/best/.%.200s.new", b->folder, name);
    snprintf(to, sizeof to, "%s/best/%.200s", b->folder, name);
    unlink(aside);
    if (link(from, aside) == 0 && rename(aside, to) == 0) {
        unlink(aside); /* rename leaves it where both were one file already */
        return true;
    }
    complain(b, to);
    return false;
}

static bool write_note(best_kept *b, int64_t step, double loss)
{
    char path[PATH], to[PATH];
    json_line j;
    snprintf(path, sizeof path, "%s/best/.best.json.new", b->folder);
    snprintf(to, sizeof to, "%s/best/best.json", b->folder);
    FILE *f = fopen(path, "w");
    if (f) {
        line_open(&j, f);
        line_int(&j, "step", step);
        line_real(&j, "eval_loss", loss);
        line_close(&j);
    }
    if (f && fclose(f) == 0 && rename(path, to) == 0) return true;
    complain(b, to);
    return false;
}

void best_saved(best_kept *b, int64_t step, double loss)
{
    char path[PATH];
    if (!b->folder || !(loss < b->loss)) return;
    snprintf(path, sizeof path, "%s/best", b->folder);
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        complain(b, path);
        return;
    }
    DIR *d = opendir(b->folder);
    bool good = d != NULL;
    if (!d) complain(b, b->folder);
    for (const struct dirent *e; good && (e = readdir(d)) != NULL;)
        if (belongs(e->d_name)) good = link_over(b, e->d_name);
    if (d) closedir(d);
    if (good && write_note(b, step, loss)) b->loss = loss;
}

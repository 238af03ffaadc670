#include "tasks/results.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/options.h"
#include "tasks/texts.h"

static bool holds(const char *folder, const char *name)
{
    char path[4096];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && lnt_file_exists(path);
}

static linnet_status take_files(lnt_ctx *c, const json_t *list, lnt_arena *arena, lnt_results *out)
{
    const size_t n = json_array_size(list);
    out->file = lnt_arena_alloc(arena, lnt_bytes(n + 1, sizeof *out->file));
    if (!out->file) return lnt_fail_memory(c, lnt_bytes(n, sizeof *out->file));
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && !(out->file[out->n_files++] = lnt_arena_strdup(arena, name))) return lnt_fail_memory(c, strlen(name));
    }
    return LINNET_OK;
}

/* Lines of `linnet compare` without a first one of settings have the tasks' names, and runs. */
static linnet_status take_line(lnt_ctx *c, const json_t *line, lnt_arena *arena, lnt_results *out)
{
    const char *task = json_string_value(json_object_get(line, "task")), *row = json_string_value(json_object_get(line, "row"));
    const bool settings = row && !strcmp(row, LNT_RESULTS_ROW);
    if (!settings && json_object_get(line, "run")) task = "compare";
    out->task = lnt_arena_strdup(arena, task ? task : "");
    if (!out->task) return lnt_fail_memory(c, 64);
    out->whole = !settings || !json_is_false(json_object_get(line, LNT_RESULTS_WHOLE));
    return settings ? take_files(c, json_object_get(line, LNT_RESULTS_FILES), arena, out) : LINNET_OK;
}

linnet_status lnt_results_read(lnt_ctx *c, const char *folder, lnt_arena *arena, lnt_results *out)
{
    char path[4096];
    lnt_lines l;
    json_t *line = NULL;
    *out = (lnt_results){.training = holds(folder, "log.jsonl")};
    if (!holds(folder, "results.jsonl")) return LINNET_OK;
    snprintf(path, sizeof path, "%s/results.jsonl", folder);
    LNT_TRY(lnt_lines_open(c, path, &l));
    linnet_status s = lnt_lines_next(&l, &line);
    if (s == LINNET_EFORMAT) s = LINNET_OK; /* no JSON: whoever wrote it, no task */
    if (s == LINNET_OK) s = take_line(c, line, arena, out);
    json_decref(line);
    lnt_lines_close(&l);
    return s;
}

linnet_status lnt_results_check(lnt_ctx *c, const char *folder, const char *task, bool *whole)
{
    lnt_arena arena = {0};
    lnt_results r;
    char held[128] = "";
    if (lnt_file_exists(folder) && !lnt_is_folder(folder)) return lnt_fail_option(c, "out", "is %s, which is there and is not a folder", folder);
    linnet_status s = lnt_results_read(c, folder, &arena, &r);
    if (s == LINNET_OK) {
        if (r.task && strcmp(r.task, task) != 0) {
            if (!*r.task) snprintf(held, sizeof held, "a results.jsonl that no task wrote");
            else if (!strcmp(r.task, "compare")) snprintf(held, sizeof held, "a comparison of runs");
            else snprintf(held, sizeof held, "results of the task %.60s", r.task);
        } else if (r.training && !r.task)
            snprintf(held, sizeof held, "a training (log.jsonl)");
        if (whole) *whole = r.task && r.whole;
    }
    lnt_arena_free(&arena);
    if (s != LINNET_OK || !*held) return s;
    lnt_fail_option(c, "out", "is %s, which holds %s", folder, held);
    return lnt_hint(c, "Another folder keeps both.");
}

void lnt_results_remove(const char *folder, const char *name)
{
    char path[4096];
    const char *end = strrchr(name, '.');
    if (strchr(name, '/') || !end || (strcmp(end, ".csv") != 0 && strcmp(end, ".svg") != 0)) return;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path) unlink(path);
}

#include "train/run_folder.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *file_in(const lnt_run_folder *f, const char *name, char path[4096])
{
    snprintf(path, 4096, "%s/%s", f->path, name);
    return path;
}

static bool has(const lnt_run_folder *f, const char *name)
{
    char path[4096];
    return lnt_file_exists(file_in(f, name, path));
}

static void remove_file(const lnt_run_folder *f, const char *name)
{
    char path[4096];
    unlink(file_in(f, name, path));
}

static const char INDEX[] = "model.safetensors.index.json";

static bool has_model(const lnt_run_folder *f) { return has(f, "model.safetensors") || has(f, INDEX); }

static linnet_status take_lock(lnt_run_folder *f)
{
    char path[4096];
    return f->lock.path ? LINNET_OK : lnt_lock_take(f->c, file_in(f, "train.lock", path), f->path, &f->lock);
}

static linnet_status check_free(const lnt_run_folder *f)
{
    if (has(f, "train_state.safetensors")) {
        lnt_fail(f->c, LINNET_EINVAL, "\"%s\" already holds a checkpoint", f->path);
        return lnt_hint(f->c, "Add --resume to go on with it, or name another folder.");
    }
    if (has(f, "results.jsonl")) {
        lnt_fail(f->c, LINNET_EINVAL, "\"%s\" already holds results of a task or of a comparison", f->path);
        return lnt_hint(f->c, "Name another folder.");
    }
    if (!has_model(f) || has(f, "train.begun")) return LINNET_OK;
    lnt_fail(f->c, LINNET_EINVAL, "\"%s\" already holds a model, and no training run", f->path);
    return lnt_hint(f->c, "Name another folder.");
}

static linnet_status check_resumable(const lnt_run_folder *f)
{
    if (has(f, "train_state.safetensors")) return LINNET_OK;
    if (has(f, "train.begun")) {
        lnt_fail(f->c, LINNET_EINVAL, "there is nothing to resume in \"%s\": the run that began there ended before its first checkpoint", f->path);
        return lnt_hint(f->c, "Start it again without --resume.");
    }
    lnt_fail(f->c, LINNET_EINVAL, "there is nothing to resume in \"%s\": train_state.safetensors is not there", f->path);
    return lnt_hint(f->c, has_model(f) ? "Start a run without --resume, in another folder." : "Start the run without --resume.");
}

linnet_status lnt_run_folder_open(lnt_ctx *c, const char *path, bool resume, lnt_run_folder *f)
{
    *f = (lnt_run_folder){.c = c, .path = path};
    LNT_TRY(lnt_folder_path_check(c, path));
    if (has(f, "train.lock")) LNT_TRY(take_lock(f));
    LNT_TRY(resume ? check_resumable(f) : check_free(f));
    if (!resume) return LINNET_OK;
    LNT_TRY(take_lock(f));
    lnt_file_sweep(path);
    return LINNET_OK;
}

linnet_status lnt_run_folder_begin(lnt_run_folder *f)
{
    char path[4096];
    lnt_file_writer w;
    static const char text[] = "A training run began here and has not written its first checkpoint.\n";
    LNT_TRY(lnt_make_folder(f->c, f->path));
    LNT_TRY(take_lock(f));
    LNT_TRY(check_free(f)); /* again: another run may have come and gone before we had the lock */
    LNT_TRY(lnt_file_begin(f->c, file_in(f, "train.begun", path), &w));
    linnet_status s = lnt_file_write(f->c, &w, text, sizeof text - 1);
    if (s == LINNET_OK) s = lnt_file_commit(f->c, &w);
    lnt_file_abandon(&w);
    if (s != LINNET_OK) return s;
    remove_file(f, "model.safetensors"); /* of a run that ended between the files of its first checkpoint */
    lnt_file_sweep(f->path);
    return LINNET_OK;
}

bool lnt_run_folder_resumable(const lnt_run_folder *f) { return has(f, "train_state.safetensors"); }

bool lnt_run_folder_whole(const lnt_run_folder *f) { return has(f, "model.safetensors"); }

void lnt_run_folder_saved(lnt_run_folder *f)
{
    remove_file(f, "train.begun");
    remove_file(f, INDEX); /* of a run that had come to its end and goes on */
}

void lnt_run_folder_close(lnt_run_folder *f) { lnt_lock_drop(&f->lock, true); }

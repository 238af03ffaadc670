#include "train/resume.h"

#include <stdio.h>

#include "train/trainer_file.h"

static void state_path(char *path, size_t size, const char *folder) { snprintf(path, size, "%s/train_state.safetensors", folder); }

linnet_status lnt_resume_stage(lnt_ctx *c, const lnt_trainer *t, const lnt_run_settings *r, lnt_file_writer *w)
{
    char path[4096];
    lnt_arena scratch = {0};
    const char *metadata[2 * LNT_SETTINGS];
    const int n = lnt_settings_list(r, &scratch, metadata);
    *w = (lnt_file_writer){0};
    state_path(path, sizeof path, r->o.out);
    linnet_status s = n ? lnt_trainer_stage(c, t, path, n, metadata, w) : lnt_fail_memory(c, 0);
    lnt_arena_free(&scratch);
    return s;
}

static linnet_status open_state(lnt_ctx *c, const char *folder, lnt_safetensors **out)
{
    char path[4096];
    state_path(path, sizeof path, folder);
    return lnt_safetensors_open(c, path, out);
}

static const char *metadata_of(const void *file, const char *key) { return lnt_safetensors_metadata(file, key); }

linnet_status lnt_resume_read_settings(lnt_ctx *c, lnt_run_settings *r)
{
    lnt_safetensors *s;
    LNT_TRY(open_state(c, r->o.out, &s));
    linnet_status status = lnt_settings_read(c, s->path, metadata_of, s, r);
    lnt_safetensors_close(s);
    return status;
}

linnet_status lnt_resume_check(lnt_ctx *c, const char *folder, const lnt_config *k, lnt_dtype dtype)
{
    linnet_model *m;
    lnt_safetensors *s = NULL;
    LNT_TRY(lnt_model_outline(c, k, dtype, &m));
    linnet_status status = open_state(c, folder, &s);
    if (status == LINNET_OK) status = lnt_trainer_fits(c, s, m->p);
    lnt_safetensors_close(s);
    linnet_model_destroy(m);
    return status;
}

linnet_status lnt_resume_read_weights(lnt_ctx *c, const char *folder, lnt_trainer *t)
{
    lnt_safetensors *s;
    LNT_TRY(open_state(c, folder, &s));
    linnet_status status = lnt_trainer_read(c, s, t);
    lnt_safetensors_close(s);
    return status;
}

/* linnet_convert: a folder under another model type, in another dtype, in other files. Each tensor is read when it is written. */
#include <stdio.h>
#include <string.h>

#include "core/border.h"
#include "core/folder.h"
#include "hub/checkpoint.h"

typedef struct {
    lnt_ctx *c;
    const char *in;
    linnet_convert_options o;
    lnt_config *theirs, *ours;   /* as the folder has it, and as it is written */
    lnt_naming from, to;
    lnt_safetensors *file;
    linnet_model *m;             /* without weights */
    lnt_folder_writer out;
    linnet_convert_result did;
} conversion;

/* ---- tensors ---- */

static linnet_status read_param(lnt_ctx *c, void *user, const lnt_param *q, float *values)
{
    const conversion *v = user;
    return lnt_checkpoint_read_param(c, v->file, &v->from, v->m->p, q, values);
}

/* Of several that are not of one dtype, float32. */
static linnet_status see_dtype(lnt_ctx *c, const lnt_safetensors *s, const char *name, const lnt_st_tensor *t, const lnt_param *q,
                               const lnt_arch_place *x, int64_t piece, void *user)
{
    int *seen = user;
    (void)c, (void)s, (void)name, (void)q, (void)x, (void)piece;
    *seen = *seen < 0 || *seen == (int)t->dtype ? (int)t->dtype : LINNET_F32;
    return LINNET_OK;
}

static lnt_dtype dtype_of(void *user, const lnt_param *q)
{
    const conversion *v = user;
    int seen = -1;
    if (v->o.dtype != LINNET_CONVERT_KEEP) return (lnt_dtype)v->o.dtype;
    lnt_checkpoint_each(v->c, v->file, &v->from, v->m->p, q, see_dtype, &seen); /* they are all there */
    return seen == LINNET_BF16 || seen == LINNET_F16 ? (lnt_dtype)seen : LINNET_F32;
}

/* ---- files ---- */

static linnet_status put_text(conversion *v, const char *name, const char *text)
{
    char path[4352];
    lnt_file_writer w;
    if (!text) return lnt_fail_memory(v->c, 4096);
    snprintf(path, sizeof path, "%s/%s", v->out.aside, name);
    linnet_status s = lnt_stage_text(v->c, path, text, &w);
    if (s == LINNET_OK) s = lnt_file_commit(v->c, &w);
    lnt_file_abandon(&w);
    v->did.files++;
    return s;
}

static linnet_status put_weights(conversion *v)
{
    char path[4352], name[64];
    lnt_weight_files f;
    linnet_status s = lnt_weight_files_open(v->c, v->m->p, &v->to, (lnt_weight_source){read_param, dtype_of, v}, v->o.shard_bytes, &f);
    for (int i = 0; i < f.files && s == LINNET_OK; i++) {
        lnt_file_writer w;
        snprintf(path, sizeof path, "%s/%s", v->out.aside, lnt_weight_file_name(&f, i, name));
        s = lnt_weight_file_stage(&f, i, path, &w);
        if (s == LINNET_OK) s = lnt_file_commit(v->c, &w);
        v->did.files++;
    }
    if (s == LINNET_OK && f.files > 1) {
        char *text = lnt_weight_files_index(&f);
        s = put_text(v, "model.safetensors.index.json", text);
        lnt_free(text);
    }
    v->did.bytes = f.bytes;
    v->did.weight_files = f.files;
    lnt_weight_files_close(&f);
    return s;
}

/* What stands beside the weights and says nothing about them. */
static linnet_status copy_rest(conversion *v)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
                                        "merges.txt", "encoder.json", "vocab.bpe", "tokenizer.model", "chat_template.jinja",
                                        "generation_config.json"};
    char path[4352];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        lnt_file_view view;
        lnt_file_writer w;
        snprintf(path, sizeof path, "%s/%s", v->in, names[i]);
        if (!lnt_file_exists(path)) continue;
        LNT_TRY(lnt_file_map(v->c, path, &view));
        snprintf(path, sizeof path, "%s/%s", v->out.aside, names[i]);
        linnet_status s = lnt_file_begin(v->c, path, &w);
        if (s == LINNET_OK) s = lnt_file_write(v->c, &w, view.data, view.size);
        if (s == LINNET_OK) s = lnt_file_commit(v->c, &w);
        lnt_file_abandon(&w);
        lnt_file_unmap(&view);
        LNT_TRY(s);
        v->did.files++;
    }
    return LINNET_OK;
}

/* The dtype that a file of theirs names is the weights'. */
static linnet_status name_dtype(conversion *v)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    const char *name = v->o.dtype == LINNET_BF16 ? "bfloat16" : v->o.dtype == LINNET_F16 ? "float16" : "float32";
    json_t *kept = v->ours->kept_json ? json_loads(v->ours->kept_json, 0, NULL) : NULL;
    if (v->o.dtype == LINNET_CONVERT_KEEP || !kept) return json_decref(kept), LINNET_OK;
    for (int i = 0; i < 2; i++)
        if (json_object_get(kept, keys[i])) json_object_set_new(kept, keys[i], json_string(name));
    lnt_free(v->ours->kept_json);
    v->ours->kept_json = lnt_json_text(kept, JSON_SORT_KEYS);
    json_decref(kept);
    lnt_config_touch(v->ours);
    return v->ours->kept_json ? LINNET_OK : lnt_fail_memory(v->c, 4096);
}

static linnet_status open_in(conversion *v)
{
    lnt_ctx *c = v->c;
    if (!lnt_is_folder(v->in)) return lnt_fail(c, LINNET_EIO, "\"%s\" is not a folder", v->in);
    LNT_TRY(linnet_config_load(c, v->in, &v->theirs));
    LNT_TRY(lnt_config_retype(c, v->theirs, v->o.to, &v->ours));
    LNT_TRY(name_dtype(v));
    v->from = (lnt_naming){.a = lnt_arch_find(v->theirs->model_type), .k = v->theirs, .prefix = "", .strict = true};
    v->to = (lnt_naming){.a = lnt_arch_of(v->ours), .k = v->ours, .prefix = ""};
    LNT_TRY(lnt_model_outline(c, v->theirs, LINNET_F32, &v->m));
    LNT_TRY(lnt_safetensors_open_folder(c, v->in, &v->file));
    LNT_TRY(lnt_checkpoint_recut(c, v->file, &v->from, v->m->p));
    return lnt_checkpoint_check(c, v->file, &v->from, v->m->p);
}

static linnet_status write_out(conversion *v, const char *out)
{
    LNT_TRY(lnt_folder_begin(v->c, out, &v->out));
    LNT_TRY(put_weights(v));
    LNT_TRY(copy_rest(v));
    LNT_TRY(put_text(v, "config.json", linnet_config_json(v->ours)));
    return lnt_folder_commit(v->c, &v->out);
}

linnet_status linnet_convert(linnet_context *c, const char *in, const char *out, const linnet_convert_options *options, linnet_convert_result *result)
{
    conversion v = {.c = c, .in = in, .o = LINNET_CONVERT_OPTIONS_INIT, .did = {.size = sizeof v.did}};
    LNT_NEED(c, in);
    LNT_NEED(c, out);
    LNT_TRY(lnt_options_take(c, "convert", options, &v.o));
    if (result) LNT_TRY(lnt_result_check(c, result));
    LNT_TRY(lnt_need(c, v.o.to, "what the folder is converted to"));
    const int32_t t = v.o.dtype;
    if (t != LINNET_CONVERT_KEEP && t != LINNET_F32 && t != LINNET_BF16 && t != LINNET_F16)
        return lnt_fail(c, LINNET_EINVAL, "dtype is %s, expected f32, bf16 or f16", lnt_dtype_name((lnt_dtype)t));
    linnet_status s = open_in(&v);
    if (s == LINNET_OK) s = write_out(&v, out);
    if (s == LINNET_OK && result) {
        snprintf(v.did.model_type, sizeof v.did.model_type, "%s", v.to.a->model_type);
        snprintf(v.did.class_name, sizeof v.did.class_name, "%s", v.to.a->class_name ? v.to.a->class_name : "");
        linnet_model_info info = {.size = sizeof info};
        linnet_model_get_info(v.m, &info);
        v.did.parameters = info.parameters;
        LNT_GIVE(result, v.did);
    }
    lnt_folder_abandon(&v.out);
    lnt_safetensors_close(v.file);
    linnet_model_destroy(v.m);
    linnet_config_destroy(v.theirs);
    linnet_config_destroy(v.ours);
    return s;
}

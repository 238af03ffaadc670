#include "train/trainer_file.h"

#include <inttypes.h>
#include <string.h>

#include "device/device.h"
#include "hub/checkpoint.h"

enum { WEIGHT, MOMENT1, MOMENT2, PARTS };
static const char *const prefix[PARTS] = {"weight.", "moment1.", "moment2."};

static bool all_finite(const float *x, int64_t n)
{
    const uint32_t exponent = 0x7f800000;
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bad |= (bits & exponent) == exponent;
    }
    return !bad;
}

static linnet_status check_finite(lnt_ctx *c, const lnt_st_tensor *tensors, int n, int64_t step)
{
    for (int i = 0; i < n; i++)
        if (!all_finite(tensors[i].data, tensors[i].count)) {
            lnt_fail(c, LINNET_EINVAL, "\"%s\" holds what is not finite after step %" PRId64, tensors[i].name, step);
            return lnt_hint(c, "A smaller learning rate may help.");
        }
    return LINNET_OK;
}

/* Part i of the arenas on the host. */
static linnet_status fetch(lnt_ctx *c, const lnt_trainer *t, int i, float **out)
{
    const size_t bytes = lnt_bytes((size_t)t->m->w->elements, 4);
    *out = lnt_alloc(bytes);
    if (!*out) return lnt_fail_memory(c, bytes);
    if (i == WEIGHT) return lnt_weights_get(t->m->w, *out);
    return lnt_floats_to_host(c, *out, i == MOMENT1 ? t->optimizer->m : t->optimizer->v, t->optimizer->kept, t->m->w->elements);
}

linnet_status lnt_trainer_stage(lnt_ctx *c, const lnt_trainer *t, const char *path, int n_metadata, const char *const *metadata, lnt_file_writer *w)
{
    const int n = lnt_param_count(t->m->p);
    const size_t bytes = lnt_bytes(lnt_bytes(PARTS, (size_t)n), sizeof(lnt_st_tensor));
    lnt_arena scratch = {0};
    float *host[PARTS] = {0};
    lnt_st_tensor *tensors = lnt_calloc(bytes);
    linnet_status s = tensors ? LINNET_OK : lnt_fail_memory(c, bytes);
    *w = (lnt_file_writer){0};
    for (int i = 0; s == LINNET_OK && i < PARTS; i++) {
        s = fetch(c, t, i, &host[i]);
        lnt_st_tensor *list;
        if (s == LINNET_OK) s = lnt_checkpoint_list(c, t->m->p, prefix[i], host[i], &scratch, &list);
        if (s == LINNET_OK) memcpy(tensors + i * n, list, (size_t)n * sizeof *list);
    }
    if (s == LINNET_OK) s = check_finite(c, tensors, PARTS * n, t->step);
    if (s == LINNET_OK) s = lnt_safetensors_stage(c, path, PARTS * n, tensors, n_metadata, metadata, w);
    for (int i = 0; i < PARTS; i++) lnt_free(host[i]);
    lnt_free(tensors);
    lnt_arena_free(&scratch);
    return s;
}

linnet_status lnt_trainer_fits(lnt_ctx *c, const lnt_safetensors *s, const lnt_program *p)
{
    for (int i = 0; i < PARTS; i++) LNT_TRY(lnt_checkpoint_check(c, s, &(lnt_naming){.prefix = prefix[i]}, p));
    return LINNET_OK;
}

linnet_status lnt_trainer_read(lnt_ctx *c, const lnt_safetensors *s, lnt_trainer *t)
{
    LNT_TRY(lnt_trainer_fits(c, s, t->m->p)); /* all of it, before a weight is touched */
    LNT_TRY(lnt_checkpoint_read(c, s, &(lnt_naming){.prefix = prefix[WEIGHT]}, t->m->w));
    LNT_TRY(lnt_checkpoint_read_arena(c, s, &(lnt_naming){.prefix = prefix[MOMENT1]}, t->m->p, t->optimizer->m, t->optimizer->kept));
    return lnt_checkpoint_read_arena(c, s, &(lnt_naming){.prefix = prefix[MOMENT2]}, t->m->p, t->optimizer->v, t->optimizer->kept);
}

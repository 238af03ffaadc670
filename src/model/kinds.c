/* The lists of kinds. */
#include "model/kinds.h"

#include <string.h>

static const lnt_norm *const norms[] = {
#define X(name) &lnt_norm_##name,
#include "model/norms.def"
#undef X
};
static const lnt_mlp *const mlps[] = {
#define X(name) &lnt_mlp_##name,
#include "model/mlps.def"
#undef X
};
static const lnt_block *const blocks[] = {
#define X(name) &lnt_block_##name,
#include "model/blocks.def"
#undef X
};

const char *lnt_family_name(lnt_family f)
{
    static const char *const names[LNT_FAMILIES] = {"mixer", "block", "norm", "mlp"};
    return names[f];
}

const lnt_kind *lnt_kind_at(lnt_family f, int i)
{
    if (f == LNT_MIXERS) return lnt_mixer_at(i) ? &lnt_mixer_at(i)->kind : NULL;
    if (f == LNT_NORMS) return i >= 0 && i < (int)(sizeof norms / sizeof *norms) ? &norms[i]->kind : NULL;
    if (f == LNT_MLPS) return i >= 0 && i < (int)(sizeof mlps / sizeof *mlps) ? &mlps[i]->kind : NULL;
    return i >= 0 && i < (int)(sizeof blocks / sizeof *blocks) ? &blocks[i]->kind : NULL;
}

const lnt_kind *lnt_kind_find(lnt_family f, const char *name)
{
    const lnt_kind *kind = NULL;
    if (f == LNT_MIXERS) return lnt_mixer_find(name) ? &lnt_mixer_find(name)->kind : NULL; /* which may have another name */
    for (int i = 0; (kind = lnt_kind_at(f, i)) != NULL && strcmp(kind->about.name, name) != 0; i++) {}
    return kind;
}

int64_t lnt_mlp_width(const lnt_layer *l, double ratio, int times, int by)
{
    const lnt_mlp_options *o = l->options;
    if (o->intermediate_size > 0) return o->intermediate_size;
    int64_t w = (int64_t)((double)l->width * (o->hidden_ratio > 0 ? o->hidden_ratio : ratio) * times / by);
    return (w + o->multiple_of - 1) / o->multiple_of * o->multiple_of;
}

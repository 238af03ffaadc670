/* The list of mixers, and what several of them share. */
#include "mixers/mixers.h"

#include <stdio.h>
#include <string.h>

#include "linnet/linnet.h"

static const lnt_mixer mixers[] = {
#define X(name, summary, paper, recurrence) {#name, lnt_mixer_##name, summary, paper, recurrence},
#include "mixers/mixers.def"
#undef X
};

enum { MIXERS = sizeof mixers / sizeof mixers[0] };

const lnt_mixer *lnt_mixer_at(int i) { return i >= 0 && i < MIXERS ? &mixers[i] : NULL; }

const lnt_mixer *lnt_mixer_find(const char *name)
{
    for (int i = 0; i < MIXERS; i++)
        if (!strcmp(mixers[i].name, name)) return &mixers[i];
    return NULL;
}

const linnet_mixer_info *linnet_mixer_at(int i)
{
    static const linnet_mixer_info info[] = {
#define X(name, summary, paper, recurrence) {#name, summary, paper, recurrence},
#include "mixers/mixers.def"
#undef X
    };
    return i >= 0 && i < MIXERS ? &info[i] : NULL;
}

lnt_buf lnt_out_proj(lnt_program *p, const lnt_mixer_config *c, lnt_buf o)
{
    if (c->out_std <= 0) return lnt_linear(p, o, "o_proj", c->width);
    double before = lnt_set_init_std(p, c->out_std);
    lnt_buf y = lnt_linear(p, o, "o_proj", c->width);
    lnt_set_init_std(p, before);
    return y;
}

lnt_buf lnt_project(lnt_program *p, const lnt_mixer_config *c, lnt_buf x, const char *name, int32_t heads, int64_t dim, lnt_act act)
{
    char proj[16], conv[16];
    snprintf(proj, sizeof proj, "%s_proj", name);
    snprintf(conv, sizeof conv, "%s_conv1d", name);
    lnt_buf y = lnt_linear(p, x, proj, heads * dim);
    if (c->short_conv)
        y = lnt_short_conv(p, y, conv, c->conv_size, act);
    else if (act != LNT_IDENTITY)
        y = lnt_activation(p, y, act, 1, false);
    return lnt_with_heads(p, y, heads);
}

lnt_buf lnt_write_strength(lnt_program *p, const lnt_mixer_config *c, lnt_buf x, int32_t heads)
{
    return lnt_activation(p, lnt_linear(p, x, "b_proj", heads), LNT_SIGMOID, c->neg_eigval ? 2 : 1, true);
}

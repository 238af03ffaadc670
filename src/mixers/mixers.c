/* The list of mixers. */
#include "mixers/mixers.h"

#include <string.h>

#include "linnet/linnet.h"

static const lnt_mixer *const mixers[] = {
#define X(name) &lnt_mixer_##name,
#include "mixers/mixers.def"
#undef X
};

enum { MIXERS = sizeof mixers / sizeof mixers[0] };

const lnt_mixer *lnt_mixer_at(int i) { return i >= 0 && i < MIXERS ? mixers[i] : NULL; }

const lnt_mixer *lnt_mixer_find(const char *name)
{
    for (int i = 0; i < MIXERS; i++)
        if (!strcmp(mixers[i]->kind.about.name, name) || (mixers[i]->alias && !strcmp(mixers[i]->alias, name))) return mixers[i];
    return NULL;
}

const linnet_mixer_info *linnet_mixer_at(int i) { return i >= 0 && i < MIXERS ? &mixers[i]->kind.about : NULL; }

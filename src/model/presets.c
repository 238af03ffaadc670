/* Named sizes. A preset sets width, layers and heads of any model type through the type's own keys; everything else stays. */
#include <stdio.h>
#include <string.h>

#include "core/border.h"
#include "model/config.h"

typedef struct {
    const char *name, *summary;
    int width, layers, head; /* head: size of one head, a divisor of the width */
} preset;

/* Parameters counted for gated_deltanet without the embeddings, (5 + 8 to 12) width^2 a layer: the MLP is rounded up to 256. */
static const preset presets[] = {
    {"nano", "width 128, 4 layers, heads of 64: 1.1M parameters, learns letters in a minute on a laptop", 128, 4, 64},
    {"tiny", "width 256, 4 layers, heads of 64: 3.7M parameters, readable Shakespeare in minutes", 256, 4, 64},
    {"small", "width 384, 8 layers, heads of 64: 15M parameters", 384, 8, 64},
    {"medium", "width 512, 12 layers, heads of 128: 44M parameters", 512, 12, 128},
    {"large", "width 640, 16 layers, heads of 128: 88M parameters", 640, 16, 128},
    /* the three sizes of the MesaNet paper (arXiv 2506.05233, appendix F) */
    {"140m", "width 768, 14 layers, heads of 128: the small model of the MesaNet paper", 768, 14, 128},
    {"430m", "width 1024, 28 layers, heads of 128: its medium model", 1024, 28, 128},
    {"940m", "width 1536, 28 layers, heads of 128: its large model", 1536, 28, 128},
    /* the two sizes of the DeltaNet paper (arXiv 2406.06484, section 4) */
    {"340m", "width 1024, 24 layers, heads of 128: the smaller model of the DeltaNet paper", 1024, 24, 128},
    {"1.3b", "width 2048, 24 layers, heads of 128: its larger model", 2048, 24, 128},
};
enum { PRESETS = sizeof presets / sizeof *presets };

const char *linnet_preset_name(int i) { return i >= 0 && i < PRESETS ? presets[i].name : NULL; }

const char *linnet_preset_summary(int i) { return i >= 0 && i < PRESETS ? presets[i].summary : NULL; }

linnet_status linnet_config_preset(linnet_context *c, linnet_config *k, const char *name)
{
    LNT_NEED(c, k);
    LNT_NEED(c, name);
    const preset *p = NULL;
    for (int i = 0; i < PRESETS; i++)
        if (strcmp(presets[i].name, name) == 0) p = &presets[i];
    if (!p) {
        char list[256] = "";
        for (int i = 0; i < PRESETS; i++) snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", presets[i].name);
        return lnt_fail(c, LINNET_EINVAL, "preset \"%.40s\" is unknown, expected one of %s", name, list);
    }
    k->num_hidden_layers = p->layers;
    lnt_config_size(k, p->width, p->width / p->head, p->head);
    return LINNET_OK;
}

/* A layer that is its mixer alone. */
#include "model/kinds.h"

const lnt_mlp lnt_mlp_none = {.kind.about = {"none", "nothing: the mixer alone makes the layer", NULL, NULL}};

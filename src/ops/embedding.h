#ifndef LNT_OPS_EMBEDDING_H
#define LNT_OPS_EMBEDDING_H

#include <stdint.h>

typedef struct {
    int64_t vocab;
    double scale;
} lnt_embedding_attr;

#endif

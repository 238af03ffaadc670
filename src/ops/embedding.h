#ifndef LNT_OPS_EMBEDDING_H
#define LNT_OPS_EMBEDDING_H

#include <stdint.h>

typedef struct {
    int64_t vocab;
    double scale;
} lnt_embedding_attr;

enum { LNT_EMBED_CHUNK = 32 }; /* on a GPU: tokens, sorted by id, whose rows one block adds */

#endif

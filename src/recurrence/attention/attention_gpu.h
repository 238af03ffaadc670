/* Decoding with a key-value cache on the GPU: what the recurrences' node calls in place of the core when every sequence has one new token. */
#ifndef LNT_ATTENTION_GPU_H
#define LNT_ATTENTION_GPU_H

#include "core/dtype.h"

typedef struct {
    int64_t sequences;
    int32_t Hq, Hv, K, V;       /* heads of k and v; of q and o */
    lnt_dtype dtype;
    double scale;
    int64_t rows;               /* of a cache: token p lies in row p mod rows */
    const void *q, *k, *v;      /* [N,Hv,K] [N,Hq,K] [N,Hq,V] the new tokens' */
    void *o;                    /* [N,Hv,V] */
    char *cache;                /* sequence n: k rows [rows,Hq,K], then v rows [rows,Hq,V], at cache + n * stride */
    int64_t stride;
    const int64_t *position;    /* device, [N] tokens seen before */
    void *workspace;            /* lnt_attention_step_bytes */
    void *stream;               /* cudaStream_t */
} lnt_attention_step;

/* Put the new rows into the caches and attend to all that is there. */
void lnt_attention_step_put(const lnt_attention_step *a);
size_t lnt_attention_step_bytes(int64_t sequences, int32_t Hv, int32_t V, int64_t rows);

#endif

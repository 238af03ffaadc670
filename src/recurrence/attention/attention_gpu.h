/* Decoding with a key-value cache on the GPU: what the recurrences' node calls in place of the core when every sequence has one new token. */
#ifndef LNT_ATTENTION_GPU_H
#define LNT_ATTENTION_GPU_H

#include "core/dtype.h"

typedef struct {
    int64_t sequences;
    int32_t Hk, Hq, K, V;       /* heads of k and v; of q and o */
    lnt_dtype dtype;
    double scale;
    int64_t rows;               /* of a cache: token p lies in row p mod rows */
    const void *q, *k, *v;      /* [N,Hq,K] [N,Hk,K] [N,Hk,V] the new tokens' */
    void *o;                    /* [N,Hq,V] */
    char *cache;                /* sequence n: k rows [rows,Hk,K], then v rows [rows,Hk,V], at cache + n * stride */
    int64_t stride;
    const int64_t *position;    /* device, [N] tokens seen before */
    void *workspace;            /* lnt_attention_step_bytes */
    void *stream;               /* cudaStream_t */
} lnt_attention_step;

/* Put the new rows into the caches and attend to all that is there. */
void lnt_attention_step_put(const lnt_attention_step *a);
size_t lnt_attention_step_bytes(int64_t sequences, int32_t Hq, int32_t V, int64_t rows);

#endif

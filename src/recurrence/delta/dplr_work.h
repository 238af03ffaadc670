/* What a head of the untied delta rule works with in chunks. Only dplr_cpu.c and dplr_mild.h include this. */
#ifndef LNT_DPLR_WORK_H
#define LNT_DPLR_WORK_H

#include "core/memory.h"
#include "recurrence/chunk/chunk_vector.h"
#define LNT_ROWS_BETWEEN_TILES
#include "recurrence/chunk/chunk_walk.h"
#include "recurrence/delta/delta.h"

typedef struct {
    const lnt_recur_args *a;
    const lnt_head *at;
    const lnt_mm_engine *e;
    int C, K, V, L, m;                      /* L: rows of the longest stack; m: of the chunk at hand */
    int width, panels;                      /* columns of V that a state is worked on at a time, and how often that goes into V */
    lnt_vector gk;
    float *read, *reads, *write, *writes;   /* [L,K] the stacks, and what of them meets the chunk's first state, and its last */
    bool tiled;                             /* pairs on tiles; then reads and writes are bf16, and strips have 32 columns of dread and dwrite */
    bool mild;                              /* on tiles chunks of mild gates go by dplr_mild_amx.h */
    lnt_bf16 *reads16, *writes16;
    float *strips[2];
#if defined(__AMX_BF16__)
    lnt_vector_front front;                 /* of the chunk at hand */
    lnt_operand readers, writers, end;      /* [m,K] the stacks; [K,V] the state behind the chunk, transposed */
    lnt_operand *grads;                     /* [panels] of dS'' */
    lnt_bf16 *pairs16, *pairs16_t;          /* [L,L] */
    float *solved, *P;                      /* [L/2,BLOCK] -A_ab of each block; [C,K] */
#endif
    float *pairs;                           /* [L,L] */
    float *x, *u;                           /* [L,V] */
    float *S;                               /* [panels,K,width] */
    lnt_operand *state, grad;               /* [panels] of S, and dS */
    float *turned;                          /* [K,L] writers of a chunk of mild gates, transposed */
    void *reads_forms, *writes_forms, *a_forms, *q_forms, *v_forms, *u_forms, *S_forms;
    /* backward only */
    char *starts;                           /* [chunks + 1] kept states at chunk starts */
    float *p;                               /* [chunks][L,V] P of a chunk, [n,V], or u, transposed */
    float *y, *d, *dpairs, *dread, *dwrite; /* [L,V] twice, [L,L], [L,K] twice */
    float *dwrite_pairs, *inside, *through; /* [L,K], [C,K] twice */
    float *dS, *last;                       /* [K,V], [K] */
    float *grad_end;                        /* [K,V] dS times a chunk's mild decay */
    float *dq, *dk;                         /* [longest,K] sums over a group; NULL when group == 1 */
    void *d_forms, *dR_forms, *do_forms, *dS_forms, *dS_t_forms, *start_forms[2]; /* of two chunks one behind the other */
} work;

#endif

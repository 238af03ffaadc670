/* The delta rule under a gate for each key channel, on tensor cores: what is made of every chunk of 64 tokens, by whom, and what is kept for the
 * gradients. bf16; tied is KDA, untied RWKV-7 (dplr). README.md, "A gate for each channel"; equations: operators.md#delta.
 *
 *              erase               write               value write   T            M            P              value P
 *   tied       k e^G               k e^{G_n - G}                     (I+A)^-1 b                s pairs(Q,K)
 *   untied     a e^{G'}            b e^{G_n - G}       k e^{G_n - G} (I-A_ab)^-1  T A_ak       s pairs(Q,B)   s pairs(Q,K)
 *
 * with what is written, X: tied U = T (V - erase S), untied P = T (erase S) + M V. The image of T has no diagonal: b, or 1, is not rounded. */
#ifndef LNT_DELTA_VECTOR_CUH
#define LNT_DELTA_VECTOR_CUH

#include "recurrence/decay/decay_vector_tiles.cuh"

struct delta_tiles {
    bf16 *erase, *reader, *write, *value_write; /* [slots,Hv] images [64,K] */
    bf16 *T, *M, *P, *value_P, *strict, *A_ak;  /* [slots,Hv] images [64,64]; strict: pairs(K,K) or A_ab, of which T is made */
    float *E, *strength;                        /* [slots,Hv,K] e^{G_n}; [slots,Hv,64] b */
    bf16 *S, *dS; /* [slots,Hv] images [V/16][K][16]: the state before a chunk and the gradient of the one behind it */
    bf16 *X, *dX; /* [slots,Hv] images [V/16][64][16]: what is written and its gradient (dZ, dR) */
};

/* A gradient that is divided by the strength twice needs one that is not 0. */
constexpr float LNT_DELTA_LEAST = 1e-12f;

struct delta_vector {
    vector_tiles in; /* q k v d_o gk cu N Hv scale dq dk dgk */
    delta_tiles of;
    const bf16 *a, *b; /* untied */
    const float *beta; /* tied */
    const float *s0, *dsT;
    bf16 *o, *dv, *da, *db;
    float *sT, *ds0, *dbeta;
    int64_t slots;
    int K, V;
    bool untied;
    /* A sequence in parts (lnt_delta_in_parts): its chunks from..until are prepared, or gone through by a chain; all lie before `slots`. */
    int from, until;
    bool reverse_alone; /* of the gradients' chains that of the states is done */
    int behind;         /* the first of the chunks whose gradients do not wait for the kernel ahead; 0: all wait */
};

/* All that the chains read. Of chunks behind the first it begins beside the kernel ahead, and ends after it. */
void lnt_delta_vector_prepare(const delta_vector &p, const lnt_cuda *d);
/* o and sT; or, for the gradients, S, X, dS, dX of every chunk, dv and ds0. */
void lnt_delta_vector_forward(const delta_vector &p, const lnt_cuda *d);
void lnt_delta_vector_chains(const delta_vector &p, const lnt_cuda *d);
/* From these dq, dk, da, db, dgk and dbeta. */
void lnt_delta_vector_back(const delta_vector &p, const lnt_cuda *d);

#endif

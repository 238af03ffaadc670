/* The arguments of the cores whose tensors have heads of keys and values: decay, delta, mesa, attention. Row major and dense; `x` is the call's
 * dtype, `f` float32 (float64 when dtype is LINNET_F64). A pointer that the operator does not take is NULL.
 *
 * q and k have Hq = Hk heads, v, g, beta, o and states Hv of them, Hq dividing Hv: value head h reads query-key head h*Hq/Hv. In `attention` q and o
 * have Hq heads, k and v Hk = Hv of them, Hk dividing Hq. */
#ifndef LNT_RECUR_ARGS_H
#define LNT_RECUR_ARGS_H

#include "recurrence/recurrence.h"

#define LNT_HEADS_ARGS                                                                                                             \
    LNT_RECUR_HEAD                                                                                                                 \
    int32_t Hq, Hk, Hv, K, V;                                                                                                      \
    double scale;            /* of the read-out */                                                                                 \
    int32_t normalize;       /* divide o_t by scale z_t.q_t + eps, z_t = decayed sum of k */                                       \
    double eps;                                                                                                                    \
    int64_t window;          /* attention, mesa: a token sees itself and the window-1 before it, 0: all */                         \
    int64_t offset;          /* attention: rows of k and v in front of the tokens' */                                              \
    int64_t Tk;              /* attention: rows of k and v, tokens + offset */                                                     \
    const void *q, *k, *v;   /* x [T,Hq,K] [T,Hk,K] [T,Hv,V] */                                                                    \
    const void *g, *g_head;  /* f [T,Hv], f [Hv]: natural-log decay, <= 0; -inf is an exact reset */                               \
    const void *sign;        /* f [T,Hv] with has_sign: a factor of the decay, from -1 to 1 */                                     \
    void *dsign;                                                                                                                   \
    int32_t has_sign;                                                                                                              \
    const void *beta;        /* f [T,Hv] write strength */                                                                         \
    const void *s0, *z0;     /* f [N,Hv,K,V], f [N,Hv,K] (normalize); NULL: zeros */                                     \
    void *o;                 /* x [T,Hv,V] */                                                                                      \
    void *sT, *zT;           /* as s0, z0; NULL: not wanted */                                                                     \
    void *lse;               /* attention: f [T,Hq] log-sum-exp of the scaled scores */                                            \
    const void *do_;         /* x, as o; NULL: zeros */                                                                            \
    const void *dsT, *dzT;   /* f; NULL: zeros */                                                                                  \
    void *dq, *dk, *dv;      /* written, not added to; a head that several read gets the sum over them; NULL: not wanted */        \
    void *dg, *dg_head, *dbeta, *ds0, *dz0;                                                                                        \
    const void *gk, *gv;     /* f [T,Hv,K], f [T,Hv,V]: natural-log decays of S's rows and of its columns, as g */                 \
    const void *bonus;       /* f [Hv,K] */                                                                                        \
    const void *sign_k, *sign_v; /* f [T,Hv,K], f [T,Hv,V] with has_sign: factors of those decays, from -1 to 1 */               \
    void *dsign_k, *dsign_v;                                                                                                       \
    void *dgk, *dgv, *dbonus;                                                                                                      \
    const void *i, *m0;      /* mlstm: f [T,Hv] log of the write strength; f [N,Hv] log of what the states are divided by; NULL: zeros */   \
    void *mT, *di, *dm0;                                                                                                           \
    const void *dmT;                                                                                                               \
    const void *a, *b;       /* x [T,Hv,K] rows that read the state before a token, and that what they read is written with */     \
    void *da, *db;                                                                                                                 \
    int32_t writes;          /* delta: rows of k, v, beta and their gradients a token; 0: one */
typedef struct {
    LNT_HEADS_ARGS
} lnt_recur_args;

/* Shared by the descriptions of these cores. */
#define LNT_HEADS_SIZE(LETTER, FIELD, USUAL, SAME, HELP)                                                                          \
    { LETTER, LNT_AT(lnt_recur_args, FIELD), 4, 1, 65536, USUAL, SAME, HELP }
static inline int lnt_recur_writes(const lnt_recur_args *a) { return a->writes > 1 ? a->writes : 1; }
extern const lnt_recur_size lnt_state_sizes[]; /* T N Hq Hk Hv K V, of the cores with a state */
void lnt_state_fill(void *args);               /* scale: K^-1/2 */
linnet_status lnt_state_check(lnt_ctx *c, const void *args, bool backward);
/* Every product of sizes that an implementation makes stays inside 63 bits, times the number of threads. */
linnet_status lnt_heads_check_products(lnt_ctx *c, const lnt_recur_args *a, int64_t rows, int64_t heads);

#define LNT_SCALE_OPTION                                                                                                           \
    { "scale", LNT_RECUR_REAL, LNT_AT(lnt_recur_args, scale), 8, -1e30, 1e30, __builtin_nan(""), NULL, "factor of the read-out; standard K^-1/2" }
#define LNT_STATE_QKV                                                                                                              \
    LNT_INPUT(lnt_recur_args, "q", "T Hq K", q, .wide = true, .positive = LNT_AT(lnt_recur_args, normalize)),                     \
        LNT_INPUT(lnt_recur_args, "k", "T Hk K", k, .wide = true, .values = LNT_VALUES_UNIT, .positive = LNT_AT(lnt_recur_args, normalize)), \
        LNT_INPUT(lnt_recur_args, "v", "T Hv V", v, .wide = true)
#define LNT_STATE_GATE                                                                                                             \
    LNT_INPUT(lnt_recur_args, "g", "T Hv", g, .values = LNT_VALUES_DECAY, .gate = true, .help = "natural log of the decay, at most 0")
#define LNT_STATE_SIGN                                                                                                             \
    LNT_INPUT(lnt_recur_args, "sign", "T Hv", sign, .values = LNT_VALUES_SIGN, .gate = true, .with = LNT_AT(lnt_recur_args, has_sign), \
              .help = "factor of the decay, from -1 to 1")
#define LNT_SIGN_OPTION                                                                                                            \
    { "signed", LNT_RECUR_SWITCH, LNT_AT(lnt_recur_args, has_sign), 4, 0, 1, 0, NULL, "decays have a sign: a factor from -1 to 1" }
#define LNT_STATE_ROW_GATE(...)                                                                                                         \
    LNT_INPUT(lnt_recur_args, "gk", "T Hv K", gk, .values = LNT_VALUES_DECAY, .gate = true,                                           \
              .help = "natural log of the decay of S's rows, at most 0", __VA_ARGS__)
#define LNT_STATE_BETA                                                                                                             \
    LNT_INPUT(lnt_recur_args, "beta", "T Hv", beta, .values = LNT_VALUES_STRENGTH, .gate = true, .help = "write strength")
#define LNT_STATE_S LNT_STATE(lnt_recur_args, "s", "", "N Hv K V", s)
#define LNT_STATE_O LNT_OUTPUT(lnt_recur_args, "o", "T Hv V", o, do_, .wide = true)

#endif

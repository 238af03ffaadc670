/* What the files of the scan core share. */
#ifndef LNT_SCAN_H
#define LNT_SCAN_H

#include "recurrence/cases.h"
#include "recurrence/recurrence.h"

/* Row major and dense; x is the call's dtype, f float32 (float64 when that is LINNET_F64). */
typedef struct {
    LNT_RECUR_HEAD
    int32_t D;
    int32_t has_sign;
    const void *log_a, *x;  /* f [T,D] natural-log decay, <= 0, -inf is an exact reset; x [T,D] */
    const void *sign;       /* has_sign: f [T,D] factor of the decay, from -1 to 1 */
    const void *s0, *dsT;   /* f [N,D]; NULL: zeros */
    const void *dout;       /* x [T,D]; NULL: zeros */
    void *o, *sT;           /* x [T,D], which backward reads; f [N,D], NULL: not wanted */
    void *dlog_a, *dsign, *dx, *ds0; /* written, not added to; NULL: not wanted */
} lnt_scan_args;

/* The dtype of what is f. */
static inline lnt_dtype lnt_scan_small(const lnt_scan_args *a) { return a->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }

/* A state of M numbers a channel: selective_scan, and longhorn, whose x, beta, k and q are u, delta, B and C. */
enum { LNT_SELECTIVE, LNT_LONGHORN };
typedef struct {
    LNT_RECUR_HEAD
    int32_t D, M;
    int32_t has_sign;       /* selective_scan: decays 2 e^{delta A} - 1 */
    const void *u, *delta;  /* x [T,D]; f [T,D] step sizes, > 0 */
    const void *A;          /* f [D,M] rates, < 0; longhorn: NULL */
    const void *B, *C;      /* x [T,M], of all channels */
    const void *skip;       /* f [D]; NULL: zeros */
    const void *s0, *dsT;   /* f [N,D,M]; NULL: zeros */
    const void *dout;       /* x [T,D]; NULL: zeros */
    void *o, *sT;           /* x [T,D]; f [N,D,M], NULL: not wanted */
    void *du, *ddelta, *dA, *dB, *dC, *dskip, *ds0; /* written, not added to; NULL: not wanted */
} lnt_selective_args;

/* Complex scans: of each row the real parts of all channels, then the imaginary ones. lru's decays are the same for all tokens. */
enum { LNT_COMPLEX_SCAN, LNT_LRU };
typedef struct {
    LNT_RECUR_HEAD
    int32_t D, P;           /* P = 2 */
    const void *log_a, *angle; /* f [T,D], lru [D]: a = e^{log_a + i angle} */
    const void *x;          /* x [T,2,D] */
    const void *s0, *dsT;   /* f [N,2,D]; NULL: zeros */
    const void *dout;       /* x [T,2,D]; NULL: zeros */
    void *o, *sT;           /* x [T,2,D], which backward reads; f [N,2,D], NULL: not wanted */
    void *dlog_a, *dangle, *dx, *ds0; /* written, not added to; NULL: not wanted */
} lnt_complex_args;

/* S4D: a state of M complex numbers a channel, the same dynamics for all tokens. */
enum { LNT_S4D_ZOH, LNT_S4D_BILINEAR }; /* in the order of the option's words */
typedef struct {
    LNT_RECUR_HEAD
    int32_t D, M, P;        /* P = 2 */
    int32_t discretization;
    const void *u;          /* x [T,D] */
    const void *dt;         /* f [D] step size, > 0 */
    const void *A_re, *A_im, *C_re, *C_im; /* f [D,M], A_re < 0 */
    const void *skip;       /* f [D]; NULL: zeros */
    const void *s0, *dsT;   /* f [N,2,D,M]; NULL: zeros */
    const void *dout;       /* x [T,D]; NULL: zeros */
    void *o, *sT;           /* x [T,D]; f [N,2,D,M], NULL: not wanted */
    void *du, *ddt, *dA_re, *dA_im, *dC_re, *dC_im, *dskip, *ds0; /* written, not added to; NULL: not wanted */
} lnt_s4d_args;

/* RG-LRU: a scan whose decays and writes are made of two gates. */
typedef struct {
    LNT_RECUR_HEAD
    int32_t D;
    int32_t first;          /* a sequence's first token is written whole, and nothing is kept before it */
    double c;
    const void *x, *r, *i;  /* x [T,D]: input; what the gates of decay and of input are sigmoids of */
    const void *lambda;     /* f [D] */
    const void *s0, *dsT;   /* f [N,D]; NULL: zeros */
    const void *dout;       /* x [T,D]; NULL: zeros */
    void *o, *sT;           /* x [T,D], which backward reads; f [N,D], NULL: not wanted */
    void *dx, *dr, *di, *dlambda, *ds0; /* written, not added to; NULL: not wanted */
} lnt_rglru_args;

/* RWKV-4's: a mean of values with weights e^k that decay by the channel's own rate, as sums under a common factor e^m. */
typedef struct {
    LNT_RECUR_HEAD
    int32_t D;
    const void *k, *v;      /* x [T,D] */
    const void *w, *u;      /* f [D]: -e^w is the log of a token's decay; u is added to the current token's k when it is read */
    const void *a0, *b0, *m0, *daT, *dbT, *dmT; /* f [N,D]; NULL: zeros */
    const void *dout;       /* x [T,D]; NULL: zeros */
    void *o, *aT, *bT, *mT; /* x [T,D]; f [N,D], NULL: not wanted */
    void *dk, *dv, *dw, *du, *da0, *db0, *dm0; /* written, not added to; NULL: not wanted */
} lnt_wkv_args;

extern const lnt_recur_impl lnt_s4d_reference, lnt_rglru_reference, lnt_wkv_reference;
extern const lnt_recur_impl lnt_scan_reference, lnt_selective_reference, lnt_complex_reference;
extern const lnt_recur_case lnt_scan_cases[];

/* selective.c's and longhorn_core.c's. */
extern const lnt_recur_impl *const lnt_selective_impls[];
extern const lnt_recur_size lnt_selective_sizes[];
double lnt_selective_flops(const void *args, int C, bool backward);

#endif

/* The mesa recurrence with its learned Lambda and how it is solved, for the mixers that use it. mesa_net.c. */
#ifndef LNT_MESA_RULE_H
#define LNT_MESA_RULE_H

#include "recurrence/mesa/mesa_node.h"
#include "recurrence/mesa/mesa_args.h"
#include "mixers/mixers.h"

/* The words of cg_solver, cg_guess and cg_gradient stand in the order of LNT_CG_.... */
typedef struct {
    double lambda_lower_bound, cg_tolerance;
    int64_t max_cg_step_training, max_cg_step_decoding, min_cg_step_training, mesa_window;
    int cg_solver, cg_guess, cg_gradient;
    bool allow_neg_gamma;
} lnt_mesa_choice;

/* Rows for a structure that has its lnt_mesa_choice first; ONLY: as lnt_option.only. */
#define LNT_MESA_KEYS(ONLY)                                                                                                                    \
    LNT_REAL(lnt_mesa_choice, lambda_lower_bound, 1e-6, 1e6, 0.25, "Lambda = lambda_lower_bound + softplus(lambda_params)",                    \
             .only = ONLY),                                                                                                                    \
    LNT_INT(lnt_mesa_choice, max_cg_step_training, 0, 65536, 30, "most steps of a solve in calls of more than a token",                        \
             .only = ONLY),                                                                                                                    \
    LNT_INT(lnt_mesa_choice, max_cg_step_decoding, 0, 65536, 30, "most steps of a solve, token by token", .only = ONLY),                       \
    LNT_MAYBE_INT(lnt_mesa_choice, min_cg_step_training, 0, 65536, -1, -1,                                                                     \
                  "a training step draws from here to max_cg_step_training; null: it takes those", .only = ONLY),                              \
    LNT_REAL(lnt_mesa_choice, cg_tolerance, 0, 1, 1e-4, "a token's solve ends at this |residual| / |q|; 0: all steps are taken",               \
             .only = ONLY),                                                                                                                    \
    LNT_WORD(lnt_mesa_choice, cg_solver, "level jacobi plain absolute flash sherman_morrison", LNT_CG_LEVEL,                                   \
             "preconditioned by Lambda + min(diag H), by diag(H + Lambda), or not; absolute and flash take all steps, flash in float16; "      \
             "sherman_morrison takes none, for layers that hardly forget", .only = ONLY),                                                      \
    LNT_WORD(lnt_mesa_choice, cg_guess, "diagonal zero", LNT_CG_DIAGONAL, "a solve begins at q / diag(H + Lambda) or at 0",                    \
             .only = ONLY),                                                                                                                    \
    LNT_MAYBE_INT(lnt_mesa_choice, mesa_window, 1, LNT_MOST_TOKENS, 0, 0,                                                                      \
                  "tokens that the map is fitted to, the current one among them (Atlas read as sliding-window Mesa); null: all",               \
             .only = ONLY),                                                                                                                    \
    LNT_SWITCH(lnt_mesa_choice, allow_neg_gamma, false,                                                                                        \
               "gamma = tanh(a_proj x), from -1 to 1: the state may turn around; Lambda has to outweigh it (the paper's 49 + ..)",             \
             .only = ONLY),                                                                                                                    \
    LNT_WORD(lnt_mesa_choice, cg_gradient, "implicit unrolled", LNT_CG_IMPLICIT, "the gradient is that of the solution or of the steps",       \
             .only = ONLY)

linnet_status lnt_check_mesa(lnt_ctx *c, const lnt_layer *l, const lnt_mesa_choice *o);
/* a_proj's gamma: its logarithm, or, where it may be below 0, that of 1, and gamma itself in *sign. */
lnt_buf lnt_mesa_gate(lnt_program *p, const lnt_mesa_choice *o, lnt_buf x, int64_t heads, lnt_buf *sign);
/* sign: as lnt_mesa_gate leaves it. */
lnt_buf lnt_mesa_rule(lnt_program *p, const lnt_mesa_choice *o, lnt_buf q, lnt_buf k, lnt_buf v, lnt_buf g, lnt_buf sign, lnt_buf beta);

#endif

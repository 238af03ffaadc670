/* What the Mesa core's implementations are checked on. Lengths sit around the chunk lengths 16, 32 and 64; head sizes around the vector widths. The
 * last three have head sizes of the Hopper kernel, whole and partial chunks, and every way it treats gates. */
#include "recurrence/cases.h"

const lnt_recur_case lnt_mesa_cases[] = {
    { "mesa", 1, { 100 }, LNT_HEADS(2, 2, 16, 24), .gate = -0.1, .beta = 1, .states = true },
    { "mesa", 1, { 65 }, LNT_HEADS(1, 2, 50, 60), .gate = -0.02, .beta = 1, .states = true },
    { "mesa", 4, { 17, 0, 33, 1 }, LNT_HEADS(2, 2, 32, 32), .gate = -0.3, .beta = 1 },
    { "mesa", 1, { 0 }, LNT_HEADS(1, 1, 16, 16), .gate = -0.3, .beta = 1, .states = true },
    { "mesa", 2, { 16, 15 }, LNT_HEADS(1, 1, 7, 5), .gate = 0, .beta = 1, .states = true },
    { "mesa", 1, { 70 }, LNT_HEADS(2, 4, 128, 100), .gate = -0.05, .beta = 1, .states = true },
    { "mesa", 5, { 1, 16, 0, 63, 20 }, LNT_HEADS(1, 2, 60, 32), .gate = -40, .beta = 1, .states = true },
    { "mesa", 1, { 65 }, LNT_HEADS(1, 3, 16, 128), .gate = -2, .reset = 0.1, .beta = 1, .states = true },
    { "mesa", 1, { 129 }, LNT_HEADS(1, 1, 48, 40), .gate = -0.05, .reset = 0.02, .beta = 1, .states = true },
    { "mesa", 1, { 1 }, LNT_HEADS(2, 2, 32, 50), .gate = -1, .beta = 1, .states = true },
    { "mesa", 2, { 15, 17 }, LNT_HEADS(1, 1, 3, 1), .gate = -1000, .beta = 1, .states = true },
    { "mesa", 1, { 150 }, LNT_HEADS(1, 2, 128, 128), .gate = -0.05, .beta = 1, .states = true },
    { "mesa", 3, { 64, 0, 70 }, LNT_HEADS(2, 2, 128, 64), .gate = -0.1, .beta = 1 },
    { "mesa", 2, { 1100, 65 }, LNT_HEADS(1, 1, 64, 64), .gate = -0.02, .beta = 1, .states = true },
    { "mesa", 1, { 3 }, LNT_HEADS(1, 1, 130, 20), .gate = -0.1, .beta = 1, .states = true },
    { "mesa", 1, { 40 }, LNT_HEADS(1, 1, 200, 256), .gate = -0.05, .beta = 1, .states = true },
    { "mesa", 3, { 130, 0, 63 }, LNT_HEADS(2, 4, 64, 64), .gate = -0.1, .beta = 1, .states = true },
    { "mesa", 2, { 65, 192 }, LNT_HEADS(1, 2, 128, 128), .gate = -0.05, .reset = 0.02, .beta = 1, .states = true },
    { "mesa", 1, { 150 }, LNT_HEADS(2, 2, 128, 64), .gate = -4, .beta = 1 },
    { "mesa", 3, { 130, 0, 70 }, LNT_HEADS(2, 2, 128, 128), .gate = -0.1, .reset = 0.02, .beta = 1, .states = true },
    { "mesa", 1, { 100 }, LNT_HEADS(2, 2, 24, 40), .gate = -0.1, .beta = 1, .states = true },
    { "mesa", 2, { 130, 63 }, LNT_HEADS(1, 2, 64, 40), .gate = -0.1, .beta = 1, .states = true },
    /* windows of whole chunks and others, longer sequences and shorter ones; a Lambda of each token */
    { "mesa", 1, { 100 }, LNT_HEADS(1, 2, 16, 24), .gate = -0.1, .beta = 1, .option = { { "window", 32 } } },
    { "mesa", 4, { 130, 0, 48, 63 }, LNT_HEADS(2, 2, 50, 60), .gate = -0.02, .beta = 1, .option = { { "window", 48 } } },
    { "mesa", 2, { 70, 33 }, LNT_HEADS(2, 4, 32, 20), .gate = -0.3, .reset = 0.05, .beta = 1, .option = { { "window", 16 } } },
    { "mesa", 3, { 37, 5, 20 }, LNT_HEADS(1, 1, 7, 5), .gate = -40, .beta = 1, .option = { { "window", 7 } } },
    { "mesa", 1, { 20 }, LNT_HEADS(1, 1, 3, 1), .gate = 0, .beta = 1, .option = { { "window", 1 } } },
    { "mesa", 1, { 300 }, LNT_HEADS(1, 1, 64, 64), .gate = -0.05, .beta = 1, .option = { { "window", 128 } } },
    { "mesa", 4, { 65, 0, 15, 150 }, LNT_HEADS(1, 2, 128, 128), .gate = -0.05, .reset = 0.02, .beta = 1, .option = { { "window", 64 } } },
    { "mesa", 2, { 100, 33 }, LNT_HEADS(1, 2, 20, 24), .gate = -0.1, .beta = 1, .states = true, .option = { { "lambda_varies", 1 } } },
    { "mesa", 1, { 90 }, LNT_HEADS(2, 2, 20, 24), .gate = -0.1, .beta = 1, .option = { { "window", 32 }, { "lambda_varies", 1 } } },
    /* decays with a sign: what is written and turned around must not outweigh Lambda */
    { "mesa", 1, { 100 }, LNT_HEADS(1, 2, 16, 24), .gate = -0.1, .beta = 1, .positive = 50, .states = true, .option = { { "signed", 1 } } },
    { "mesa", 4, { 65, 0, 1, 150 }, LNT_HEADS(2, 4, 50, 60), .gate = -1, .reset = 0.05, .beta = 1, .positive = 5, .option = { { "signed", 1 } } },
    { "mesa", 2, { 15, 70 }, LNT_HEADS(1, 1, 128, 100), .gate = -0.02, .positive = 20, .option = { { "signed", 1 }, { "lambda_varies", 1 } } },
    /* the recursive solution, whose states are inverses */
    { "mesa", 3, { 100, 0, 17 }, LNT_HEADS(1, 2, 16, 24), .gate = 0, .beta = 1, .option = { { "cg_solver", 5 } } },
    { "mesa", 2, { 150, 33 }, LNT_HEADS(2, 2, 50, 60), .gate = -0.02, .beta = 1, .states = true, .option = { { "cg_solver", 5 } } },
    { "mesa", 1, { 70 }, LNT_HEADS(2, 4, 20, 24), .gate = 0, .beta = 1, .states = true, .option = { { "cg_solver", 5 } } },
    { 0 },
};

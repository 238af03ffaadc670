/* What the delta core's implementations are checked on. Lengths sit around the chunk lengths 16, 32 and 64; head sizes around the vector widths. */
#include "recurrence/cases.h"

const lnt_recur_case lnt_delta_cases[] = {
    { "delta_rule", 1, { 100 }, LNT_HEADS(2, 2, 16, 24), .beta = 1, .states = true },
    { "delta_rule", 1, { 65 }, LNT_HEADS(1, 2, 50, 60), .beta = 2, .states = true },
    { "delta_rule", 4, { 17, 0, 33, 1 }, LNT_HEADS(2, 2, 32, 32), .beta = 1 },
    { "delta_rule", 1, { 0 }, LNT_HEADS(1, 1, 16, 16), .beta = 1, .states = true },
    { "delta_rule", 2, { 16, 15 }, LNT_HEADS(1, 1, 7, 5), .beta = 2, .states = true },
    { "gated_delta_rule", 1, { 100 }, LNT_HEADS(2, 4, 128, 100), .gate = -0.2, .beta = 1, .states = true },
    { "gated_delta_rule", 5, { 1, 16, 0, 63, 20 }, LNT_HEADS(1, 2, 60, 32), .gate = -40, .beta = 1, .states = true },
    { "gated_delta_rule", 1, { 65 }, LNT_HEADS(1, 3, 16, 128), .gate = -2, .reset = 0.1, .beta = 2, .states = true },
    { "gated_delta_rule", 1, { 129 }, LNT_HEADS(1, 1, 48, 40), .gate = -0.05, .reset = 0.02, .beta = 1, .states = true },
    { "gated_delta_rule", 1, { 1 }, LNT_HEADS(2, 2, 32, 50), .gate = -1, .beta = 1, .states = true },
    { "gated_delta_rule", 2, { 15, 17 }, LNT_HEADS(1, 1, 3, 1), .gate = -1000, .beta = 1, .states = true },
    { "delta_rule", 1, { 200 }, LNT_HEADS(2, 2, 64, 64), .beta = 2, .states = true },
    { "delta_rule", 3, { 64, 65, 3 }, LNT_HEADS(1, 2, 128, 128), .beta = 1, .states = true },
    { "gated_delta_rule", 1, { 300 }, LNT_HEADS(1, 2, 128, 128), .gate = -0.1, .reset = 0.02, .beta = 2, .states = true },
    { "gated_delta_rule", 5, { 64, 0, 130, 1, 65 }, LNT_HEADS(2, 4, 64, 128), .gate = -1, .reset = 0.05, .beta = 1, .states = true },
    { "gated_delta_rule", 2, { 65, 100 }, LNT_HEADS(1, 1, 128, 64), .gate = -0.02, .beta = 1 },
    { "gated_delta_rule", 1, { 64 }, LNT_HEADS(1, 3, 128, 128), .gate = -40, .reset = 0.3, .beta = 2, .states = true },
    { "delta_rule", 1, { 2300 }, LNT_HEADS(1, 1, 64, 64), .beta = 1, .states = true }, /* GPUs cut it into segments */
    { "gated_delta_rule", 2, { 4200, 70 }, LNT_HEADS(1, 1, 128, 128), .gate = -0.01, .reset = 0.001, .beta = 1, .states = true },
    { "kda", 1, { 100 }, LNT_HEADS(2, 4, 128, 100), .gate = -0.2, .beta = 1, .states = true },
    { "kda", 5, { 1, 16, 0, 63, 20 }, LNT_HEADS(1, 2, 60, 32), .gate = -40, .reset = 0.02, .beta = 1, .states = true },
    { "kda", 1, { 65 }, LNT_HEADS(1, 3, 16, 128), .gate = -2, .reset = 0.1, .beta = 2, .states = true },
    { "kda", 2, { 15, 150 }, LNT_HEADS(1, 1, 3, 1), .gate = -1000, .beta = 1, .states = true },
    { "kda", 1, { 300 }, LNT_HEADS(1, 1, 64, 64), .gate = -0.01, .beta = 2, .states = true },
    { 0 },
};

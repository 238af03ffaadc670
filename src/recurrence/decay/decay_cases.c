/* What the decay core's implementations are checked on. Lengths sit around the chunk lengths 16, 32 and 64; head sizes around the vector
 * widths, and those of tensor cores' tiles; sequences beyond 1024 are cut into segments on GPUs. */
#include "recurrence/problem.h"

const lnt_recur_case lnt_decay_cases[] = {
    { "linear_attn", 1, { 100 }, 2, 2, 16, 24, .states = true },
    { "linear_attn", 1, { 65 }, 1, 2, 50, 60, .states = true, .normalize = true },
    { "linear_attn", 4, { 17, 0, 33, 1 }, 2, 2, 32, 32, .normalize = true },
    { "linear_attn", 1, { 0 }, 1, 1, 16, 16, .states = true },
    { "retention", 2, { 63, 64 }, 1, 2, 24, 50, .gate = -0.5, .states = true },
    { "retention", 1, { 70 }, 2, 2, 33, 16, .gate = -3, .normalize = true, .states = true },
    { "retention", 2, { 16, 15 }, 1, 1, 7, 5, .gate = -0.01 },
    { "simple_gla", 1, { 100 }, 2, 4, 128, 100, .gate = -0.2, .states = true },
    { "simple_gla", 5, { 1, 16, 0, 63, 20 }, 1, 2, 60, 32, .gate = -40, .states = true },
    { "simple_gla", 1, { 65 }, 1, 3, 16, 128, .gate = -2, .reset = 0.1, .states = true },
    { "simple_gla", 1, { 129 }, 1, 1, 48, 40, .gate = -0.05, .reset = 0.02, .normalize = true, .states = true },
    { "simple_gla", 1, { 1 }, 2, 2, 32, 50, .gate = -1, .states = true },
    { "simple_gla", 2, { 15, 17 }, 1, 1, 3, 1, .gate = -1000, .states = true },
    { "linear_attn", 2, { 65, 129 }, 1, 2, 64, 64, .states = true },
    { "linear_attn", 1, { 1030 }, 1, 1, 128, 128, .states = true },
    { "linear_attn", 1, { 1030 }, 1, 2, 20, 36, .states = true, .normalize = true },
    { "retention", 3, { 64, 0, 100 }, 1, 2, 128, 64, .gate = -0.1, .states = true },
    { "simple_gla", 2, { 127, 65 }, 2, 2, 64, 128, .gate = -40 },
    { "simple_gla", 2, { 200, 1100 }, 2, 4, 64, 64, .gate = -0.1, .reset = 0.01, .states = true },
    { "simple_gla", 1, { 1200 }, 1, 1, 128, 128, .gate = -0.02, .states = true },
    { 0 },
};

/* What attention's implementations are checked on. Lengths sit around the block length 64; head sizes around the vector widths. */
#include "recurrence/problem.h"

const lnt_recur_case lnt_attention_cases[] = {
    { "attention", 1, { 100 }, 2, 2, 16, 24, .gate = 0 },
    { "attention", 1, { 130 }, 1, 3, 50, 60, .gate = 0 },
    { "attention", 4, { 17, 0, 65, 1 }, 2, 4, 32, 32, .gate = 0 },
    { "attention", 1, { 0 }, 1, 1, 16, 16, .gate = 0 },
    { "attention", 1, { 150 }, 1, 2, 24, 100, .window = 17 },
    { "attention", 3, { 64, 63, 1 }, 2, 2, 128, 33, .window = 2 },
    { "attention", 2, { 129, 70 }, 1, 1, 7, 5, .window = 65 },
    { "attention", 1, { 30 }, 2, 4, 32, 16, .offset = 77 },
    { "attention", 1, { 1 }, 2, 4, 60, 50, .offset = 200 },
    { "attention", 1, { 70 }, 1, 2, 16, 16, .offset = 50, .window = 33 },
    { 0 },
};

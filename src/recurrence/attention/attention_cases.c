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
    { "attention", 1, { 300 }, 2, 4, 64, 64, .gate = 0 },
    { "attention", 1, { 200 }, 1, 2, 128, 128, .window = 64 },
    { "attention", 3, { 129, 0, 191 }, 2, 2, 128, 128, .gate = 0 },
    { "attention", 5, { 64, 1, 128, 63, 65 }, 1, 4, 64, 64, .window = 17 },
    { "attention", 1, { 130 }, 1, 2, 128, 128, .offset = 77 },
    { "attention", 1, { 90 }, 2, 2, 64, 64, .offset = 200, .window = 129 },
    { "attention", 1, { 140 }, 10, 10, 64, 64, .window = 2 }, /* of a window of 1 the true dq and dk are 0, and have no relative error */
    { "attention", 2, { 256, 70 }, 1, 1, 128, 128, .window = 256 },
    { 0 },
};

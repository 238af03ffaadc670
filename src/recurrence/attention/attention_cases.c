/* What attention's implementations are checked on. Lengths sit around the block length 64; head sizes around the vector widths. No window of 1: the
 * true dq and dk are 0 there, and have no relative error. */
#include "recurrence/cases.h"

const lnt_recur_case lnt_attention_cases[] = {
    { "attention", 1, { 100 }, { { "Hq", 2 }, { "Hk", 2 }, { "K", 16 }, { "V", 24 } }, .gate = 0 },
    { "attention", 1, { 130 }, { { "Hq", 3 }, { "Hk", 1 }, { "K", 50 }, { "V", 60 } }, .gate = 0 },
    { "attention", 4, { 17, 0, 65, 1 }, { { "Hq", 4 }, { "Hk", 2 }, { "K", 32 }, { "V", 32 } }, .gate = 0 },
    { "attention", 1, { 0 }, { { "Hq", 1 }, { "Hk", 1 }, { "K", 16 }, { "V", 16 } }, .gate = 0 },
    { "attention", 1, { 0 }, { { "Hq", 2 }, { "Hk", 1 }, { "K", 64 }, { "V", 64 }, { "Tk", 9 } }, .gate = 0 },
    { "attention", 1, { 150 }, { { "Hq", 2 }, { "Hk", 1 }, { "K", 24 }, { "V", 100 } }, .option = { { "window", 17 } } },
    { "attention", 3, { 64, 63, 1 }, { { "Hq", 2 }, { "Hk", 2 }, { "K", 128 }, { "V", 33 } }, .option = { { "window", 2 } } },
    { "attention", 2, { 129, 70 }, { { "Hq", 1 }, { "Hk", 1 }, { "K", 7 }, { "V", 5 } }, .option = { { "window", 65 } } },
    { "attention", 1, { 30 }, { { "Hq", 4 }, { "Hk", 2 }, { "K", 32 }, { "V", 16 }, { "Tk", 107 } }, .gate = 0 },
    { "attention", 1, { 1 }, { { "Hq", 4 }, { "Hk", 2 }, { "K", 60 }, { "V", 50 }, { "Tk", 201 } }, .gate = 0 },
    { "attention", 1, { 70 }, { { "Hq", 2 }, { "Hk", 1 }, { "K", 16 }, { "V", 16 }, { "Tk", 120 } }, .option = { { "window", 33 } } },
    { "attention", 1, { 300 }, { { "Hq", 4 }, { "Hk", 2 }, { "K", 64 }, { "V", 64 } }, .gate = 0 },
    { "attention", 1, { 200 }, { { "Hq", 2 }, { "Hk", 1 }, { "K", 128 }, { "V", 128 } }, .option = { { "window", 64 } } },
    { "attention", 3, { 129, 0, 191 }, { { "Hq", 2 }, { "Hk", 2 }, { "K", 128 }, { "V", 128 } }, .gate = 0 },
    { "attention", 5, { 64, 1, 128, 63, 65 }, { { "Hq", 4 }, { "Hk", 1 }, { "K", 64 }, { "V", 64 } }, .option = { { "window", 17 } } },
    { "attention", 1, { 130 }, { { "Hq", 2 }, { "Hk", 1 }, { "K", 128 }, { "V", 128 }, { "Tk", 207 } }, .gate = 0 },
    { "attention", 1, { 90 }, { { "Hq", 2 }, { "Hk", 2 }, { "K", 64 }, { "V", 64 }, { "Tk", 290 } }, .option = { { "window", 129 } } },
    { "attention", 1, { 140 }, { { "Hq", 10 }, { "Hk", 10 }, { "K", 64 }, { "V", 64 } }, .option = { { "window", 2 } } },
    { "attention", 2, { 256, 70 }, { { "Hq", 1 }, { "Hk", 1 }, { "K", 128 }, { "V", 128 } }, .option = { { "window", 256 } } },
    { "attention", 1, { 520 }, { { "Hq", 6 }, { "Hk", 3 }, { "K", 128 }, { "V", 128 } }, .gate = 0 },
    { "attention", 3, { 270, 1, 390 }, { { "Hq", 9 }, { "Hk", 9 }, { "K", 64 }, { "V", 64 } }, .option = { { "window", 200 } } },
    { "attention", 2, { 70, 9 }, { { "Hq", 2 }, { "Hk", 1 }, { "K", 256 }, { "V", 200 } }, .gate = 0 }, /* more than 99 KB of shared memory */
    { 0 },
};

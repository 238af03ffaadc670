/* What the slstm core's implementations are checked on. Sizes sit around the vector widths and the panels of two vectors; numbers of sequences
 * around the groups of eight and the four rows of a product. */
#include "recurrence/cases.h"

#define UNITS(HEADS, SIZE) { { "H", HEADS }, { "D", SIZE }, { "E", 4 * (SIZE) } }

const lnt_recur_case lnt_slstm_cases[] = {
    { "slstm", 1, { 60 }, UNITS(2, 24), .states = true },
    { "slstm", 5, { 17, 0, 33, 1, 8 }, UNITS(2, 50), .states = true },
    { "slstm", 10, { 9, 3, 0, 5, 9, 1, 12, 2, 7, 30 }, UNITS(1, 20), .states = true },
    { "slstm", 2, { 50, 49 }, UNITS(1, 7), .states = false },
    { "slstm", 1, { 0 }, UNITS(2, 16), .states = true },
    { "slstm", 3, { 1, 1, 1 }, UNITS(3, 33), .states = true },
    { "slstm", 1, { 1 }, UNITS(1, 1), .states = true },
    { "slstm", 1, { 300 }, UNITS(1, 64), .states = false },
    { "slstm", 9, { 40, 40, 40, 40, 40, 40, 40, 40, 40 }, UNITS(2, 100), .states = true },
    { 0 },
};

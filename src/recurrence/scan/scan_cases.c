/* What the scan core's implementations are checked on. Channels sit around the vector widths and above the widest strip; lengths around the chunk
 * lengths that tests ask for, and beyond those at which few channels are cut into blocks of time by themselves. The last is written past the
 * caches. */
#include "recurrence/cases.h"

#define CHANNELS(COUNT) { { "D", COUNT } }

const lnt_recur_case lnt_scan_cases[] = {
    { "scan", 1, { 100 }, CHANNELS(24), .gate = -0.3, .states = true },
    { "scan", 5, { 17, 0, 65, 1, 7 }, CHANNELS(5), .gate = -2, .reset = 0.1, .states = true },
    { "scan", 2, { 63, 64 }, CHANNELS(50), .gate = -0.05 },
    { "scan", 1, { 0 }, CHANNELS(16), .gate = -1, .states = true },
    { "scan", 1, { 1 }, CHANNELS(100), .gate = -1, .states = true },
    { "scan", 3, { 1, 1, 1 }, CHANNELS(128), .gate = -1, .states = true },
    { "scan", 1, { 15 }, CHANNELS(1), .gate = -1000, .states = true },
    { "scan", 2, { 40, 33 }, CHANNELS(2100), .gate = -0.2, .reset = 0.02, .states = true },
    { "scan", 1, { 1000 }, CHANNELS(60), .gate = -0.02, .reset = 0.001, .states = true },
    { "scan", 2, { 5000, 700 }, CHANNELS(20), .gate = -0.01, .states = true },
    { "scan", 2, { 700, 320 }, CHANNELS(2064), .gate = -0.05, .states = true },
    { 0 },
};

/* What the scan core's implementations are checked on. Channels sit around the vector widths and above the widest strip; lengths around the chunk
 * lengths that tests ask for, and beyond those at which few channels are cut into blocks of time by themselves. The last is written past the
 * caches. */
#include "recurrence/cases.h"

#define CHANNELS(COUNT) { { "D", COUNT } }
#define STATES(COUNT, SIZE) { { "D", COUNT }, { "M", SIZE } }

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
    { "selective_scan", 1, { 100 }, STATES(24, 8), .beta = 0.5, .states = true },
    { "selective_scan", 5, { 17, 0, 65, 1, 7 }, STATES(5, 3), .beta = 2, .states = true },
    { "selective_scan", 2, { 63, 64 }, STATES(50, 16), .beta = 0.1 },
    { "selective_scan", 1, { 0 }, STATES(16, 16), .beta = 1, .states = true },
    { "selective_scan", 3, { 1, 1, 1 }, STATES(100, 17), .beta = 1, .states = true },
    { "selective_scan", 1, { 33 }, STATES(1, 1), .beta = 50, .states = true },
    { "selective_scan", 2, { 70, 40 }, STATES(600, 16), .beta = 0.2, .states = true },
    { "selective_scan", 10, { 9, 33, 4, 0, 40, 3, 32, 8, 1, 12 }, STATES(70, 4), .beta = 0.3, .states = true },
    { 0 },
};

/* What the long convolutions are checked on. Lengths sit around the blocks of 8 and 64 rows and, where the chunk length 16 is asked for, around
 * blocks that are transformed; filters are shorter and longer than sequences, states shorter and longer than filters; channels sit around strips
 * of 16. */
#include "recurrence/longconv/longconv.h"

#define CHANNELS(D, L) { { "D", D }, { "L", L } }
#define HEADS(H, K, V, L) { { "H", H }, { "K", K }, { "V", V }, { "L", L } }

const lnt_recur_case lnt_longconv_cases[] = {
    { "long_conv", 1, { 100 }, CHANNELS(24, 120), .states = true },
    { "long_conv", 4, { 17, 0, 65, 1 }, CHANNELS(50, 64), .states = true },
    { "long_conv", 1, { 0 }, CHANNELS(16, 8), .states = true },
    { "long_conv", 1, { 1 }, CHANNELS(5, 100), .states = true },
    { "long_conv", 3, { 15, 63, 64 }, CHANNELS(60, 1), .states = true },
    { "long_conv", 2, { 150, 70 }, CHANNELS(33, 37), .gate = 0 },
    { "long_conv", 2, { 90, 3 }, { { "D", 17 }, { "L", 60 }, { "R", 13 } }, .states = true },
    { "long_conv", 2, { 40, 7 }, { { "D", 20 }, { "L", 30 }, { "R", 90 } }, .states = true },
    { "long_conv", 1, { 1100 }, CHANNELS(18, 1200), .gate = 0 },
    { "long_conv", 2, { 1100, 300 }, CHANNELS(16, 1300), .states = true },
    { "multihead_long_conv", 1, { 100 }, HEADS(2, 16, 24, 120), .states = true },
    { "multihead_long_conv", 4, { 17, 0, 65, 1 }, HEADS(3, 50, 60, 64), .states = true },
    { "multihead_long_conv", 1, { 0 }, HEADS(1, 8, 8, 8), .states = true },
    { "multihead_long_conv", 1, { 1 }, HEADS(2, 7, 5, 100), .states = true },
    { "multihead_long_conv", 3, { 15, 63, 64 }, HEADS(2, 8, 8, 1), .states = true },
    { "multihead_long_conv", 2, { 150, 70 }, HEADS(1, 20, 33, 37), .gate = 0 },
    { "multihead_long_conv", 2, { 90, 3 }, { { "H", 2 }, { "K", 17 }, { "L", 60 }, { "R", 13 } }, .states = true },
    { "multihead_long_conv", 2, { 40, 7 }, { { "H", 2 }, { "K", 4 }, { "V", 12 }, { "L", 30 }, { "R", 90 } }, .states = true },
    { 0 },
};

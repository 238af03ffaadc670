/* What the ttt core's implementations are checked on. Columns sit around the vector widths, lengths around the mini-batches; an initial state has a
 * mini-batch open where mini-batches are longer than a token. */
#include "recurrence/ttt/ttt.h"

#define HEADS(COUNT, COLUMNS) { { "H", COUNT }, { "D", COLUMNS } }
#define MLP(COUNT, COLUMNS, BETWEEN) { { "H", COUNT }, { "D", COLUMNS }, { "F", BETWEEN } }
#define PLAIN { "inner", 0 }

const lnt_recur_case lnt_ttt_cases[] = {
    { "ttt_linear", 1, { 100 }, HEADS(2, 20), .beta = 0.7, .states = true },
    { "ttt_linear", 5, { 17, 0, 65, 1, 7 }, HEADS(1, 24), .beta = 0.7, .states = true, .option = { { "mini_batch", 8 } } },
    { "ttt_linear", 2, { 63, 64 }, HEADS(1, 50), .beta = 0.5, .option = { { "mini_batch", 16 } } },
    { "ttt_linear", 1, { 0 }, HEADS(2, 16), .states = true },
    { "ttt_linear", 3, { 1, 1, 1 }, HEADS(2, 100), .beta = 1, .states = true },
    { "ttt_linear", 1, { 15 }, HEADS(3, 7), .beta = 1, .states = true, .option = { { "mini_batch", 4 }, { "bias", 0 } } },
    { "ttt_linear", 1, { 40 }, HEADS(1, 24), .beta = 0.5, .states = true, .option = { { "mini_batch", 1 }, PLAIN, { "bias", 0 } } },
    { "ttt_linear", 2, { 37, 30 }, HEADS(2, 33), .beta = 0.3, .states = true, .option = { { "mini_batch", 5 }, PLAIN } },
    { "ttt_linear", 1, { 1000 }, HEADS(1, 60), .beta = 0.5, .states = true },
    { "ttt_linear", 2, { 130, 64 }, HEADS(2, 64), .beta = 0.5, .states = true, .option = { { "mini_batch", 64 } } },
    { "ttt_linear", 4, { 50, 0, 5, 64 }, HEADS(2, 64), .beta = 0.7, .states = true },
    { "ttt_linear", 2, { 1000, 24 }, HEADS(64, 32), .beta = 0.5 }, /* written past a CPU's caches */
    { "ttt_linear", 1, { 43 }, HEADS(1, 128), .beta = 0.5, .states = true, .option = { { "mini_batch", 24 }, { "bias", 0 } } },
    { "ttt_linear", 1, { 40 }, HEADS(1, 64), .beta = 0.1, .states = true, .option = { PLAIN } },
    { "ttt_linear", 2, { 37, 30 }, HEADS(1, 24), .beta = 0.5, .positive = -1, .states = true },
    { "ttt_mlp", 2, { 37, 30 }, MLP(1, 24, 50), .beta = 0.5, .positive = -1, .states = true },
    { "titans", 2, { 37, 30 }, HEADS(1, 24), .beta = 0.7, .positive = -1, .states = true },
    { "ttt_mlp", 1, { 70 }, MLP(2, 20, 36), .beta = 0.5, .states = true },
    { "ttt_mlp", 5, { 17, 0, 35, 1, 7 }, MLP(1, 24, 50), .beta = 0.5, .states = true, .option = { { "mini_batch", 8 } } },
    { "ttt_mlp", 1, { 0 }, MLP(1, 8, 16), .states = true },
    { "ttt_mlp", 1, { 15 }, MLP(2, 7, 5), .beta = 0.5, .states = true, .option = { { "mini_batch", 4 }, { "bias", 0 } } },
    { "ttt_mlp", 1, { 40 }, MLP(1, 16, 24), .beta = 0.1, .states = true, .option = { { "mini_batch", 3 }, PLAIN } },
    { "ttt_mlp", 2, { 64, 65 }, MLP(1, 32, 128), .beta = 0.3, .states = true },
    { "ttt_mlp", 3, { 50, 7, 33 }, MLP(1, 64, 128), .beta = 0.3, .states = true },
    { "ttt_mlp", 2, { 130, 70 }, MLP(1, 64, 64), .beta = 0.3, .states = true, .option = { { "mini_batch", 32 } } },
    { "ttt_mlp", 1, { 300 }, MLP(1, 64, 64), .beta = 0.3, .states = true, .option = { { "bias", 0 } } },
    { "titans", 1, { 100 }, HEADS(2, 20), .beta = 0.7, .states = true },
    { "titans", 5, { 17, 0, 65, 1, 7 }, HEADS(1, 24), .beta = 0.9, .states = true, .option = { { "mini_batch", 8 } } },
    { "titans", 2, { 63, 64 }, HEADS(1, 50), .beta = 0.5 },
    { "titans", 1, { 0 }, HEADS(2, 16), .states = true },
    { "titans", 3, { 1, 1, 1 }, HEADS(2, 100), .beta = 1, .states = true },
    { "titans", 1, { 40 }, HEADS(1, 24), .beta = 0.5, .states = true, .option = { { "mini_batch", 1 }, PLAIN } },
    { "titans", 2, { 37, 30 }, HEADS(2, 33), .beta = 0.3, .states = true, .option = { { "mini_batch", 5 }, PLAIN } },
    { "titans", 1, { 1000 }, HEADS(1, 60), .beta = 0.5, .states = true },
    { "titans", 2, { 130, 64 }, HEADS(2, 64), .beta = 0.5, .states = true, .option = { { "mini_batch", 64 } } },
    { "titans", 1, { 200 }, HEADS(1, 64), .beta = 1, .states = true },
    { "titans", 2, { 250, 33 }, HEADS(1, 128), .beta = 1 },
    { 0 },
};

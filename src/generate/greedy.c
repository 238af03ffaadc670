#include "generate/greedy.h"

#include "core/memory.h"
#include "core/threads.h"
#include "device/device.h"

linnet_status lnt_greedy_over(lnt_ctx *c, const float *logits, int64_t rows, int64_t ld, int64_t V, int32_t *next, lnt_greedy *g)
{
    *g = (lnt_greedy){.c = c, .logits = logits, .rows = rows, .most = rows, .ld = ld, .V = V, .next = next};
    const size_t bytes = LNT_GREEDY_TURNS * (size_t)g->most * sizeof *g->ids;
    g->ids = lnt_device_of(c)->alloc_shared(lnt_device_of(c), bytes);
    if (!g->ids) return lnt_fail_memory(c, bytes);
    if (!lnt_on_cuda(c)) return LINNET_OK;
    LNT_TRY(lnt_device_alloc(c, 2 * sizeof *g->turn, (void **)&g->turn));
    lnt_device_zero(c, g->turn, 2 * sizeof *g->turn);
    return lnt_device_check(c);
}

linnet_status lnt_greedy_open(lnt_ctx *c, const lnt_plan *plan, lnt_buf logits, lnt_buf input, int64_t V, lnt_greedy *g)
{
    const lnt_tensor t = lnt_plan_output(plan, logits);
    return lnt_greedy_over(c, t.data, t.rows, t.cols, V, lnt_plan_input(plan, input), g);
}

linnet_status lnt_greedy_by_chance(lnt_greedy *g)
{
    const size_t bytes = lnt_bytes((size_t)g->most, sizeof *g->chance);
    g->chance = lnt_calloc(bytes);
    if (!g->chance) return lnt_fail_memory(g->c, bytes);
    return lnt_on_cuda(g->c) ? lnt_device_alloc(g->c, bytes, (void **)&g->there) : LINNET_OK;
}

void lnt_greedy_close(lnt_greedy *g)
{
    if (!g->ids) return;
    lnt_device_wait(g->c); /* a step that nobody took may still write there */
    lnt_device_of(g->c)->free_shared(lnt_device_of(g->c), g->ids);
    lnt_device_free(g->c, g->there);
    lnt_device_free(g->c, g->turn);
    lnt_free(g->chance);
}

#ifdef LINNET_CUDA
static void choose_largest(void *of) { lnt_greedy_cuda(of, NULL); }
#endif

/* A step that failed here may have been counted on the device, or not: which turn is the next one's is said anew. */
static void agree(lnt_greedy *g)
{
    const int32_t turn[2] = {(int32_t)(g->put % LNT_GREEDY_TURNS), 0};
    if (g->lost && g->turn) lnt_device_put(g->c, g->turn, turn, sizeof turn);
    g->lost = false;
}
static linnet_status count(lnt_greedy *g, linnet_status status)
{
    if (status == LINNET_OK) g->put++;
    g->lost = status != LINNET_OK;
    return status;
}

/* chosen: the run has done it, on a GPU. */
static linnet_status put(lnt_greedy *g, bool chosen)
{
    const int turn = (int)(g->put % LNT_GREEDY_TURNS);
    bool drawn = false;
    for (int64_t r = 0; r < g->rows && g->chance; r++) drawn |= g->chance[r].temperature != 0;
#ifdef LINNET_CUDA
    if (lnt_on_cuda(g->c)) {
        if (drawn) lnt_device_put(g->c, g->there, g->chance, (size_t)g->rows * sizeof *g->chance);
        if (!chosen) lnt_greedy_cuda(g, drawn ? g->there : NULL);
        lnt_device_of(g->c)->set_flag(lnt_device_of(g->c), turn);
        return lnt_device_check(g->c);
    }
#endif
    (void)chosen;
    int32_t *ids = g->ids + turn * g->most;
    lnt_threads_for(g->c, (drawn ? 20.0 : 2.0) * (double)g->rows * (double)g->V, 0);
#pragma omp parallel for num_threads(lnt_threads(g->c))
    for (int64_t r = 0; r < g->rows; r++) {
        ids[r] = lnt_draw_by(drawn ? g->chance[r] : (lnt_chance){0}, g->logits + r * g->ld, g->V);
        g->next[r] = ids[r] < 0 ? 0 : ids[r];
    }
    return LINNET_OK;
}

linnet_status lnt_greedy_put(lnt_greedy *g)
{
    agree(g);
    return count(g, put(g, false));
}

linnet_status lnt_greedy_step(lnt_greedy *g, lnt_plan *plan, lnt_weights *w, const lnt_batch *b)
{
    lnt_batch run = *b;
    g->rows = b->n_seq;
    agree(g);
#ifdef LINNET_CUDA
    if (lnt_on_cuda(g->c) && !g->chance) run.after = (lnt_after){choose_largest, g};
#endif
    const linnet_status status = lnt_plan_run(plan, w, &run);
    return count(g, status == LINNET_OK ? put(g, run.after.put != NULL) : status);
}

const int32_t *lnt_greedy_take(lnt_greedy *g)
{
    const int turn = (int)(g->taken++ % LNT_GREEDY_TURNS);
    lnt_device_of(g->c)->await_flag(lnt_device_of(g->c), turn);
    return g->ids + turn * g->most;
}

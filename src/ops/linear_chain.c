/* Maps of low rank and the chain behind them (row_chain.h), of which a rule's blocks, one a head, may have their heads' rows of the maps' weights. */
#include "ops/linear.h"

#ifdef LINNET_CUDA
#include "ops/pointwise.h"
#include "ops/row_chain.h"

/* Of the first of such maps; a smaller one alone is part of the chain's neighbour. */
enum { LEADING_RANK = 64, MOST_RANK = 128 };

/* Narrower than what it makes, and of what a map makes or an activation of that. */
bool lnt_is_low_rank(const lnt_node *n)
{
    const int64_t rank = lnt_in_cols(n, 0);
    int32_t maker = lnt_program_value(n->program, n->in[0])->producer;
    if (maker >= 0 && lnt_node_at(n->program, maker)->op == &lnt_activation_op)
        maker = lnt_program_value(n->program, lnt_node_at(n->program, maker)->in[0])->producer;
    if (!lnt_is_map(n) || maker < 0 || lnt_node_at(n->program, maker)->op != &lnt_linear_op) return false;
    return rank <= MOST_RANK && lnt_cols(n->program, n->out[0]) > rank;
}

bool lnt_leads_chain(const lnt_node *n) { return lnt_is_low_rank(n) && lnt_in_cols(n, 0) >= LEADING_RANK; }

/* Members of a group of such maps that are no maps, nor what these do with their results: a chain. */
enum { CHAIN_MOST = 24 };
bool lnt_map_chain_has(const lnt_node *const *group, int count, const lnt_node *n)
{
    const bool of_maps = n->op == &lnt_activation_op || n->op == &lnt_glu_op;
    return n->op->row && n->op != &lnt_linear_op && (!of_maps || lnt_map_of_input(group, count, n, 0) < 0);
}

bool lnt_map_chain_follows(const lnt_node *const *group, int count, const lnt_node *n)
{
    const lnt_node *chain[CHAIN_MOST];
    int nodes = 0;
    for (int i = 0; i < count && nodes < CHAIN_MOST; i++)
        if (lnt_map_chain_has(group, i, group[i])) chain[nodes++] = group[i];
    return lnt_row_chain_follows(chain, nodes, n);
}

linnet_status lnt_map_chain_run(const lnt_call *calls, int count)
{
    lnt_call part[2][CHAIN_MOST];
    int n[2] = {0};
    bool inner = true;
    lnt_few_rows f;
    for (int i = 0; i < count; i++) {
        const bool map = lnt_is_of_map(calls, i);
        inner &= !map || calls[i].inner;
        part[!map][n[!map]++] = calls[i];
    }
    if (inner && lnt_maps_as_one(part[0], n[0], NULL, &f) && lnt_row_chain_with_maps(part[1], n[1], &f)) return LINNET_OK;
    LNT_TRY(lnt_maps_run(part[0], n[0]));
    const lnt_op *first = part[1][0].node->op;
    if (n[1] == 1) return first->forward(part[1]);
    return (first->run_group ? first->run_group : lnt_row_chain_run)(part[1], n[1]);
}

#endif

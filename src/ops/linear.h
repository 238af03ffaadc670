/* Maps as the files beside linear.c see them: what one call on a GPU does with them in a step of few rows. */
#ifndef LNT_OPS_LINEAR_H
#define LNT_OPS_LINEAR_H

#include "ops/builder.h"
#include "ops/few_rows.h"

typedef struct {
    int64_t in, out; /* of a map */
    int groups;
    bool bias;
} lnt_linear_attr;

extern const lnt_op lnt_linear_op;

/* A map of whole rows. */
static inline bool lnt_is_map(const lnt_node *n)
{
    return n->op == &lnt_linear_op && lnt_in_cols(n, 0) == ((const lnt_linear_attr *)n->attr)->in;
}
static inline bool lnt_has_bias(const lnt_node *n) { return ((const lnt_linear_attr *)n->attr)->bias; }

#ifdef LINNET_CUDA

/* linear_group.c: maps, and what is made of their results element by element. */
bool lnt_linear_follows(const lnt_node *const *group, int count, const lnt_node *n);
linnet_status lnt_linear_group(const lnt_call *calls, int count);
/* The member whose result is n's input `i`, -1: none. */
int lnt_map_of_input(const lnt_node *const *group, int count, const lnt_node *n, int i);
/* Whether call i is a map, or reads the result of one among the calls ahead of it. */
bool lnt_is_of_map(const lnt_call *calls, int i);
/* All calls as one product, or those of the input `only`. False: something does not fit. */
bool lnt_maps_as_one(const lnt_call *calls, int count, const void *only, lnt_few_rows *f);
/* As few products as fit. */
linnet_status lnt_maps_run(const lnt_call *calls, int count);
/* A map of few rows with its bias as one kernel. False: nothing was put. */
bool lnt_map_with_bias(const lnt_call *k);

/* linear_chain.c: maps of low rank, and a chain that reads what they make. */
bool lnt_is_low_rank(const lnt_node *n);
bool lnt_leads_chain(const lnt_node *n); /* the first of such a group */
bool lnt_map_chain_has(const lnt_node *const *group, int count, const lnt_node *n); /* n is of the chain, not of its maps */
bool lnt_map_chain_follows(const lnt_node *const *group, int count, const lnt_node *n);
linnet_status lnt_map_chain_run(const lnt_call *calls, int count);

/* linear_fold.c: a map, the sum that it joins, its rmsnorm, and the maps that read that. */
bool lnt_adds_to_stream(const lnt_node *map, const lnt_node *n);
linnet_status lnt_map_fold_run(const lnt_call *calls, int count);

#define LNT_LINEAR_GROUP .follows = lnt_linear_follows, .run_group = lnt_linear_group
#else
static inline bool lnt_map_with_bias(const lnt_call *k) { return (void)k, false; }
#define LNT_LINEAR_GROUP .follows = NULL
#endif

#endif

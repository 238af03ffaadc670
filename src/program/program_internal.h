/* The inside of a program, for program/ alone. */
#ifndef LNT_PROGRAM_INTERNAL_H
#define LNT_PROGRAM_INTERNAL_H

#include "program/plan.h"

typedef struct {
    lnt_value v;
    int32_t root; /* the value whose memory this one shares (itself, unless it is a view) */
} lnt_value_entry;

/* The slots of a batch, where a run can have them: b's own state if they lie side by side (*first is set), otherwise its staging state, which
 * holds copies of them. Back: what the run left there, and the positions. */
linnet_status lnt_state_bring(const lnt_batch *b, lnt_state **at, int64_t *first);
void lnt_state_back(const lnt_batch *b, const lnt_state *at);

struct lnt_program {
    lnt_ctx *c;
    lnt_arena arena;
    int n_values, cap_values; /* values[0] is the null buffer */
    lnt_value_entry *values;
    int n_nodes, cap_nodes;
    lnt_node **nodes;
    int n_params, cap_params;
    lnt_param *params;
    int64_t elements, work_begin, plain_end, product_rows;
    char scope[512];
    int n_scopes, shown_scopes; /* pushed; those that names are under */
    size_t scope_length[16]; /* of the text before each push */
    int n_kept;
    struct {
        const char *name;
        lnt_buf value;
    } kept[8];
    int block;
    double init_std;
    bool failed;
    linnet_status status;
    char mistake[512];
};

#endif

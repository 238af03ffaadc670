/* What the builders of ops/ share. */
#ifndef LNT_OPS_BUILDER_H
#define LNT_OPS_BUILDER_H

#include <stdio.h>

#include "ops/kernels.h"
#include "ops/ops.h"

/* Nothing went wrong so far and every input is there. */
bool lnt_ready(lnt_program *p, const char *op, int n, const lnt_buf *in);
/* A copy of an attribute structure that lives as long as the program. */
void *lnt_attr(lnt_program *p, const void *attr, size_t bytes);
/* Parameter "name.kind" of one or two dimensions (cols 0: one). */
int lnt_named_param(lnt_program *p, const char *name, const char *kind, int64_t rows, int64_t cols, lnt_init init, bool decay, bool product);
/* Add a node of one output; the null buffer after a mistake. */
lnt_buf lnt_add_op(lnt_program *p, const lnt_op *op, const void *attr, int n_in, const lnt_buf *in, int n_param, const int *param, lnt_out_spec out);

/* Columns and heads of a node's input. */
static inline int64_t lnt_in_cols(const lnt_node *n, int i) { return lnt_cols(n->program, n->in[i]); }
static inline int64_t lnt_in_heads(const lnt_node *n, int i) { return lnt_heads(n->program, n->in[i]); }

static inline int64_t lnt_in_rows(const lnt_node *n, int i, const lnt_shape *s) { return lnt_rows(n->program, n->in[i], s->tokens); }

/* Whether x has one row a token, as what goes along the sequence must; a remembered mistake otherwise. */
bool lnt_row_a_token(lnt_program *p, const char *op, lnt_buf x);

const char *lnt_act_name(lnt_act a);

#endif

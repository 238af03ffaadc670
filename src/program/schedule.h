/* A schedule: the steps of a run, and the slots (pieces of device memory with a lifetime) each step reads and writes. Made by schedule.c, placed by
 * layout.c, run by plan.c. */
#ifndef LNT_PROGRAM_SCHEDULE_H
#define LNT_PROGRAM_SCHEDULE_H

#include "program/plan.h"

enum { LNT_GROUP_MOST = 24 };

typedef enum { LNT_STEP_FORWARD, LNT_STEP_RECOMPUTE, LNT_STEP_BACKWARD } lnt_step_kind;

typedef struct {
    lnt_step_kind kind;
    const lnt_node *node;
    int node_index;
    int in[LNT_MAX_IN], out[LNT_MAX_OUT];       /* slots, -1: absent */
    int d_in[LNT_MAX_IN], d_out[LNT_MAX_OUT];
    bool accumulate[LNT_MAX_IN];
    bool in_place[LNT_MAX_IN]; /* d_in lies where d_out does: there already */
    bool clear[LNT_MAX_IN];  /* all of d_in's slot is cleared first */
    int save;
    bool set[LNT_MAX_PARAM]; /* the first of the run to bring the parameter a gradient: stores it in an empty w->grad */
    bool with_next;  /* a pair: one call with the step that follows */
    int joined;      /* steps from this one on that are one call of its operator, their results side by side; inside such steps no matter */
    bool fixed;      /* made of parameters alone, in a run without gradients: done when those have changed, and what others read of it stays */
    bool training;   /* what this call leaves is read by a backward pass */
    int group;       /* steps from this one on that are one call; inside such a group no matter */
    int head;        /* of those, the one whose operator does it */
    bool inner;      /* out[0] is read inside its group alone */
} lnt_step;

static inline int lnt_step_calls(const lnt_step *t) { return t->group > 1 ? t->group : t->joined > 1 ? t->joined : 1 + t->with_next; }

typedef struct {
    int64_t bytes;
    int first, last;  /* steps between which it is alive, both included */
    int64_t offset;   /* in the plan's block */
    int32_t value;    /* the value it holds or is the gradient of, 0: a node's saved residual */
} lnt_slot;

/* Where a value lies in its slot, and its gradient in its own: in columns first .. of rows of ld, beside others. ld 0: alone. */
typedef struct {
    int64_t first, ld;
} lnt_place;

typedef struct {
    lnt_arena arena;
    int n_steps, n_slots;
    lnt_step *steps;
    lnt_slot *slots;
    bool *stored;     /* [parameters] some step has `set` */
    bool fixed;       /* some step is */
    int *value_slot;  /* [values]: slot of the forward value (of its root), -1 */
    lnt_place *place; /* [values]: of roots */
} lnt_schedule;

linnet_status lnt_schedule_make(lnt_ctx *c, const lnt_program *p, const lnt_plan_options *o, const lnt_shape *shape, lnt_schedule *out);
void lnt_schedule_free(lnt_schedule *s);
/* After a step's call k: an error that names operator and layer if what it left is not finite. It waits for the device. */
linnet_status lnt_check_finite(lnt_ctx *c, const lnt_program *p, const lnt_step *t, const lnt_call *k);
/* Give every slot its offset; returns the bytes of the whole block, -1 when it does not fit in 63 bits. */
int64_t lnt_layout(lnt_schedule *s);

#endif

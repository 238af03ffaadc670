/* Running a schedule: bind slots to tensors, call the operators. */
#include "program/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/threads.h"
#include "device/device.h"
#include "program/program_internal.h"
#include "program/schedule.h"

/* What a recorded run depends on, compared byte by byte. The plan's own memory and workspace are the rest: losing them loses the records. */
typedef struct {
    int64_t tokens, n_seq;
    const lnt_weights *weights;
    const void *master, *work, *grad;
    const lnt_state *state;
    const void *state_data;
    int64_t capacity, first;
    double loss_scale, draws; /* draws: 1 or 0 */
    int64_t stores;           /* 1: gradients, in an empty w->grad */
    lnt_after after;
} run_key;
typedef struct {
    run_key key;
    void *graph;  /* NULL: of a run that was done once */
    int64_t when; /* the plan's run that was the last such one; 0: of none */
} record;

/* A server's steps have more or fewer rows from one to the next, and the ends of prompts any number of tokens. */
enum { RECORDS = 32 };

struct lnt_plan {
    lnt_ctx *c;
    const lnt_program *p;
    lnt_plan_options o;
    lnt_schedule schedule;
    int64_t slot_bytes;
    char *memory;          /* device: the slots, then the workspace */
    char *work;            /* device; a separate block once a run needed more than the plan foresaw (ragged packed sequences) */
    size_t work_size;
    int64_t *cu;           /* host, [n_seq+1]: offsets of equal sequences */
    int64_t *cu_device;    /* device, [cu_room]: offsets of the last run */
    int64_t cu_room;
    int64_t equal_tokens, equal_seqs; /* both arrays are those of so many tokens in equal sequences; -1: of others */
    double *draw_device; /* that of the last run which draws */
    double flops;
    record records[RECORDS];
    int last;              /* which of them the last run was */
    int64_t turn;          /* runs that could be recorded */
    bool graphs;           /* runs may be recorded */
    bool positions;        /* some node reads where sequences stand */
    uint64_t made_of;      /* the version of the weights that fixed steps were done with, 0: not yet */
    lnt_pace pace;         /* of decoding steps, and of runs without states */
    bool profiling;
    double *seconds;       /* [nodes][2]: forward, backward */
    int64_t runs;
};

/* For all threads: whoever used the context last may have left one of them (core/threads.h), and a call may then take more. */
static lnt_shape shape_of(const lnt_plan *plan, int64_t tokens, int64_t n_seq, const int64_t *cu, bool has_state)
{
    lnt_threads_all(plan->c);
    return (lnt_shape){.tokens = tokens, .n_seq = n_seq, .cu = cu, .training = plan->o.training, .has_state = has_state,
                       .state_capacity = plan->o.state_capacity, .dtype = plan->o.dtype, .threads = lnt_threads(plan->c),
                       .device = lnt_device_of(plan->c)};
}

static size_t workspace_of(const lnt_plan *plan, const lnt_shape *shape)
{
    size_t most = 0;
    for (int i = 0, end = 0; i < plan->schedule.n_steps; i = end) {
        size_t n = 0;
        for (end = i + plan->schedule.steps[i].group; i < end; i++) { /* those of a group have theirs side by side */
            const lnt_step *t = &plan->schedule.steps[i];
            if (t->node->op->workspace) n = lnt_bytes_plus(n, t->node->op->workspace(t->node, shape, t->kind == LNT_STEP_BACKWARD));
        }
        if (n > most) most = n;
    }
    return most;
}

static void equal_sequences(int64_t *cu, int64_t tokens, int64_t n_seq)
{
    for (int64_t n = 0; n <= n_seq; n++) cu[n] = n_seq ? tokens / n_seq * n : 0;
}

/* Operators multiply rows by columns and by what they keep for a row without looking: that is below 2^63 when every value is below 2^46 bytes,
 * about what a process can address. What the whole takes is added up with checks. */
static linnet_status check_addressable(const lnt_plan *plan)
{
    const int64_t most = (int64_t)1 << 46;
    int64_t widest = 8, bytes;
    for (int i = 0; i < plan->p->n_values; i++)
        if (plan->p->values[i].v.cols > widest) widest = plan->p->values[i].v.cols;
    if (plan->o.tokens < 0 || plan->o.n_seq < 0 || plan->o.n_seq > most)
        return lnt_fail(plan->c, LINNET_EINVAL, "a plan of %lld tokens in %lld sequences", (long long)plan->o.tokens, (long long)plan->o.n_seq);
    if (!lnt_mul(plan->o.tokens, widest, &bytes) || bytes > most / 8)
        return lnt_fail(plan->c, LINNET_EINVAL, "%lld tokens at once need more memory than can be addressed", (long long)plan->o.tokens);
    return LINNET_OK;
}

/* The schedule of plan->o and the place of everything in it; no device memory yet. */
static linnet_status lay_out(lnt_plan *plan)
{
    lnt_ctx *c = plan->c;
    const lnt_plan_options *o = &plan->o;
    const size_t offsets = lnt_bytes(lnt_bytes_plus((size_t)o->n_seq, 1), sizeof *plan->cu);
    LNT_TRY(check_addressable(plan));
    plan->cu = lnt_alloc(offsets);
    if (!plan->cu) return lnt_fail_memory(c, offsets);
    equal_sequences(plan->cu, o->tokens, o->n_seq);
    lnt_shape shape = shape_of(plan, o->tokens, o->n_seq, plan->cu, o->has_state);
    LNT_TRY(lnt_schedule_make(c, plan->p, o, &shape, &plan->schedule));
    plan->slot_bytes = lnt_layout(&plan->schedule);
    plan->work_size = workspace_of(plan, &shape);
    int64_t total;
    if (plan->slot_bytes < 0 || !lnt_add(plan->slot_bytes, (int64_t)plan->work_size, &total))
        return lnt_fail(c, LINNET_EINVAL, "%lld tokens at once need more memory than can be addressed", (long long)o->tokens);
    return LINNET_OK;
}

linnet_status lnt_plan_measure(lnt_ctx *c, const lnt_program *p, const lnt_plan_options *o, size_t *bytes)
{
    lnt_plan plan = {.c = c, .p = p, .o = *o};
    linnet_status s = lay_out(&plan);
    *bytes = s == LINNET_OK ? lnt_plan_bytes(&plan) : 0;
    lnt_schedule_free(&plan.schedule);
    lnt_free(plan.cu);
    return s;
}

/* Whether this device records, and every node's call is the same from run to run. */
static bool may_record(const lnt_plan *plan)
{
    if (!lnt_device_of(plan->c)->graph_begin || plan->o.finite) return false;
    for (int i = 0; i < plan->schedule.n_steps; i++)
        if (plan->o.has_state && plan->schedule.steps[i].node->op->host_position) return false;
    return true;
}

linnet_status lnt_plan_create(lnt_ctx *c, const lnt_program *p, const lnt_plan_options *o, lnt_plan **out)
{
    *out = NULL;
    lnt_plan *plan = lnt_calloc(sizeof *plan);
    if (!plan) return lnt_fail_memory(c, sizeof *plan);
    *plan = (lnt_plan){.c = c, .p = p, .o = *o};
    plan->o.alone |= o->finite;
    linnet_status s;
    LNT_TRY_GOTO(s, lay_out(plan), fail);
    plan->seconds = lnt_calloc(lnt_bytes(lnt_bytes((size_t)p->n_nodes, 2), sizeof *plan->seconds));
    if (!plan->seconds) {
        s = lnt_fail_memory(c, lnt_bytes(lnt_bytes((size_t)p->n_nodes, 2), sizeof *plan->seconds));
        goto fail;
    }
    plan->graphs = may_record(plan);
    for (int i = 0; i < plan->schedule.n_steps; i++) plan->positions |= plan->schedule.steps[i].node->op->position;
    LNT_TRY_GOTO(s, lnt_device_alloc(c, lnt_plan_bytes(plan), (void **)&plan->memory), fail);
    plan->work = plan->memory + plan->slot_bytes;
    plan->cu_room = o->n_seq + 1;
    LNT_TRY_GOTO(s, lnt_device_alloc(c, lnt_bytes((size_t)plan->cu_room, sizeof *plan->cu_device), (void **)&plan->cu_device), fail);
    LNT_TRY_GOTO(s, lnt_device_alloc(c, sizeof *plan->draw_device, (void **)&plan->draw_device), fail);
    *out = plan;
    return LINNET_OK;
fail:
    lnt_plan_destroy(plan);
    return s;
}

static void forget_graph(lnt_plan *plan, record *r)
{
    if (r->graph) lnt_device_of(plan->c)->graph_free(lnt_device_of(plan->c), r->graph);
    *r = (record){0};
}
static void forget_graphs(lnt_plan *plan)
{
    for (int i = 0; i < RECORDS; i++) forget_graph(plan, &plan->records[i]);
}

void lnt_plan_destroy(lnt_plan *plan)
{
    if (!plan) return;
    forget_graphs(plan);
    if (plan->work != plan->memory + plan->slot_bytes) lnt_device_free(plan->c, plan->work);
    lnt_device_free(plan->c, plan->memory);
    lnt_device_free(plan->c, plan->cu_device);
    lnt_device_free(plan->c, plan->draw_device);
    lnt_schedule_free(&plan->schedule);
    lnt_free(plan->cu);
    lnt_free(plan->seconds);
    lnt_free(plan);
}

/* The tensor of value b in a slot, for so many tokens. */
static lnt_tensor tensor_in(const lnt_plan *plan, lnt_buf b, int slot, int64_t tokens)
{
    const lnt_value *v = &plan->p->values[b.id].v;
    lnt_tensor t = {.rows = v->rows ? v->rows : tokens * v->each, .cols = v->cols, .heads = v->heads, .ld = v->ld};
    t.dtype = v->external ? LINNET_I32 : v->f32 ? LINNET_F32 : plan->o.dtype;
    const lnt_place *at = &plan->schedule.place[plan->p->values[b.id].root];
    if (at->ld) t.ld = at->ld;
    if (slot >= 0) t.data = plan->memory + plan->schedule.slots[slot].offset + (at->first + v->first) * (int64_t)lnt_dtype_size(t.dtype);
    return t;
}

/* Whether a run is the first to bring gradients. */
static bool stores(const lnt_plan *plan, const lnt_weights *w) { return plan->o.training && w->grad_empty; }

/* Input i of a node, and its gradient. */
static void bind_input(const lnt_plan *plan, const lnt_step *t, const lnt_weights *w, int64_t tokens, int i, lnt_call *k)
{
    const lnt_buf b = t->node->in[i];
    const lnt_value *v = &plan->p->values[b.id].v;
    k->in[i] = tensor_in(plan, b, t->in[i], tokens);
    k->d_in[i] = tensor_in(plan, b, t->in_place[i] ? -1 : t->d_in[i], tokens);
    k->accumulate[i] = t->accumulate[i];
    if (v->param < 0) return;
    const lnt_param_view view = lnt_weights_view(w, &plan->p->params[v->param]);
    k->in[i].data = (float *)(uintptr_t)view.master + v->first;
    if (t->kind == LNT_STEP_BACKWARD && view.grad) k->d_in[i].data = view.grad + v->first;
    k->accumulate[i] = true;
}

/* The call of step t; k is that of an earlier step of the run, or of none. */
static void bind(const lnt_plan *plan, const lnt_step *t, const lnt_weights *w, const lnt_batch *b, lnt_call *k)
{
    const lnt_node *n = t->node, *before = k->node;
    k->node = n;
    k->attr = n->attr;
    for (int i = 0; i < n->n_in; i++) bind_input(plan, t, w, b->tokens, i, k);
    for (int i = 0; i < n->n_out; i++) {
        k->out[i] = tensor_in(plan, n->out[i], t->out[i], b->tokens);
        k->d_out[i] = tensor_in(plan, n->out[i], t->d_out[i], b->tokens);
    }
    for (int i = 0; i < n->n_param; i++) {
        k->param[i] = lnt_weights_view(w, &plan->p->params[n->param[i]]);
        if (!plan->o.training) k->param[i].grad = NULL;
        k->param[i].set = t->set[i] && stores(plan, w);
    }
    for (int i = n->n_in; before && i < before->n_in; i++) k->in[i] = k->d_in[i] = (lnt_tensor){0};
    for (int i = n->n_out; before && i < before->n_out; i++) k->out[i] = k->d_out[i] = (lnt_tensor){0};
    for (int i = n->n_param; before && i < before->n_param; i++) k->param[i] = (lnt_param_view){0};
    k->training = t->training;
    k->inner = t->inner;
    k->save = t->save >= 0 ? plan->memory + plan->schedule.slots[t->save].offset : NULL;
    k->state = NULL;
    if (b->state && b->state->offset[t->node_index] >= 0) {
        k->state = lnt_state_at(b->state, t->node_index, b->first);
        k->state_stride = b->state->stride[t->node_index];
    }
}

static linnet_status check_batch(lnt_plan *plan, const lnt_weights *w, const lnt_batch *b)
{
    lnt_ctx *c = plan->c;
    if (b->tokens > plan->o.tokens || (!b->cu && b->n_seq > plan->o.n_seq))
        return lnt_fail(c, LINNET_EINTERNAL, "a run of %lld tokens in %lld sequences on a plan for %lld in %lld", (long long)b->tokens,
                        (long long)b->n_seq, (long long)plan->o.tokens, (long long)plan->o.n_seq);
    for (int64_t n = 0; plan->o.rows_alone && b->state && n < b->n_seq; n++) {
        const int64_t each = b->cu ? b->cu[n + 1] - b->cu[n] : b->tokens / b->n_seq;
        if (each > lnt_alone_tokens(c))
            return lnt_fail(c, LINNET_EINTERNAL, "%lld tokens of a sequence at once, as if alone: at most %d", (long long)each, lnt_alone_tokens(c));
    }
    if (!w) return lnt_fail(c, LINNET_EINVAL, "the model is an outline: it has no weights");
    if (w->dtype != plan->o.dtype) return lnt_fail(c, LINNET_EINTERNAL, "plan and weights disagree on the dtype");
    if (plan->o.training && !w->grad) return lnt_fail(c, LINNET_EINTERNAL, "a training run without gradients");
    return LINNET_OK;
}

/* Ragged sequences may need more workspace than the equal ones the plan was made for; grow once, then keep. */
static linnet_status ensure_workspace(lnt_plan *plan, const lnt_shape *shape)
{
    size_t need = workspace_of(plan, shape);
    if (need <= plan->work_size) return LINNET_OK;
    void *more;
    LNT_TRY(lnt_device_alloc(plan->c, lnt_bytes_plus(need, need / 4), &more));
    forget_graphs(plan);
    if (plan->work != plan->memory + plan->slot_bytes) lnt_device_free(plan->c, plan->work);
    plan->work = more;
    plan->work_size = need + need / 4;
    return LINNET_OK;
}

/* Offsets where the kernels can read them. Every run but a recorded one begins with this copy, behind all work before it: kernels may rely on that
 * and read states ahead of their turn (device/cuda.cuh). A recorded run is a graph, which waits by itself. */
static linnet_status upload_sequences(lnt_plan *plan, const lnt_batch *b, const int64_t *cu)
{
    if (b->n_seq + 1 > plan->cu_room) {
        void *more;
        LNT_TRY(lnt_device_alloc(plan->c, lnt_bytes(lnt_bytes_plus((size_t)b->n_seq, 1), sizeof *cu), &more));
        forget_graphs(plan);
        lnt_device_free(plan->c, plan->cu_device);
        plan->cu_device = more;
        plan->cu_room = b->n_seq + 1;
    }
    lnt_to_device(plan->c, plan->cu_device, cu, (size_t)(b->n_seq + 1) * sizeof *cu);
    plan->equal_tokens = b->cu ? -1 : b->tokens;
    plan->equal_seqs = b->cu ? -1 : b->n_seq;
    return LINNET_OK;
}

static double bytes_of(lnt_tensor t) { return t.data ? (double)t.rows * (double)t.cols * (double)lnt_dtype_size(t.dtype) : 0; }

/* The threads of a call (core/threads.h). */
static void share(const lnt_plan *plan, const lnt_shape *shape, const lnt_step *t, const lnt_call *k, int count, bool alone)
{
    if (alone) {
        lnt_threads_one(plan->c);
        return;
    }
    const bool backward = t->kind == LNT_STEP_BACKWARD;
    double flops = 0, bytes = 0;
    for (int m = 0; m < count; m++) {
        const lnt_node *n = k[m].node;
        if (n->op->flops) flops += n->op->flops(n, shape, backward);
        for (int i = 0; i < n->n_in; i++) bytes += bytes_of(k[m].in[i]) + bytes_of(k[m].d_in[i]);
        for (int i = 0; i < n->n_out; i++) bytes += bytes_of(k[m].out[i]) + bytes_of(k[m].d_out[i]);
        for (int i = 0; i < n->n_param; i++) bytes += (double)k[m].param[i].count * (double)lnt_dtype_size(k[m].param[i].work_dtype);
        if (k[m].state) bytes += (double)shape->n_seq * (double)k[m].state_stride;
    }
    lnt_threads_for(plan->c, flops, bytes);
}

/* Calls of steps that are joined as one. */
static lnt_call as_one(const lnt_call *k, int count)
{
    lnt_call one = k[0];
    for (int m = 1; m < count; m++) {
        one.out[0].cols += k[m].out[0].cols, one.d_out[0].cols += k[m].d_out[0].cols;
        one.param[0].count += k[m].param[0].count;
    }
    return one;
}

/* One step, a pair, joined ones, or a group: k[0] is the call of step t, k[1] that of the one behind it. */
static linnet_status run_step(lnt_plan *plan, const lnt_step *t, const lnt_call *k)
{
    const bool backward = t->kind == LNT_STEP_BACKWARD;
    const lnt_step *last = t->group > 1 ? t + t->head : t->with_next && !backward ? t + 1 : t; /* in the program */
    const double start = plan->profiling ? lnt_now() : 0;
    if (t->group > 1)
        LNT_TRY(backward ? last->node->op->back_group(k, t->group) : last->node->op->run_group(k, t->group));
    else if (t->with_next)
        LNT_TRY(backward ? lnt_pair_of(k[1].node->op, k[0].node->op)->backward(&k[1], &k[0])
                         : lnt_pair_of(k[0].node->op, k[1].node->op)->forward(&k[0], &k[1]));
    else if (t->joined > 1) {
        const lnt_call one = as_one(k, t->joined);
        LNT_TRY(backward ? t->node->op->backward(&one) : t->node->op->forward(&one));
    } else
        LNT_TRY(backward ? t->node->op->backward(k) : t->node->op->forward(k));
    if (plan->profiling) {
        lnt_device_wait(plan->c);
        plan->seconds[2 * last->node_index + backward] += lnt_now() - start;
    }
    return LINNET_OK;
}

/* Before step t: gradients that come in pieces which leave something out. */
static void clear_gradients(const lnt_plan *plan, const lnt_step *t, int64_t tokens)
{
    for (int i = 0; i < t->node->n_in; i++) {
        if (!t->clear[i]) continue;
        const lnt_tensor d = tensor_in(plan, (lnt_buf){plan->schedule.slots[t->d_in[i]].value}, t->d_in[i], tokens);
        lnt_device_zero(plan->c, d.data, (size_t)(d.rows * d.cols) * lnt_dtype_size(d.dtype));
    }
}

/* Empty gradients that no step of this run stores. */
static void zero_others(const lnt_plan *plan, const lnt_weights *w, int64_t tokens)
{
    for (int i = 0; i < plan->p->n_params; i++) {
        const lnt_param *q = &plan->p->params[i];
        if (q->offset < lnt_param_plain_end(plan->p) || (plan->schedule.stored[i] && tokens)) continue;
        lnt_device_zero(plan->c, w->grad + q->offset, (size_t)q->count * 4);
    }
}

/* The fixed steps, or all others. */
static linnet_status run_some(lnt_plan *plan, const lnt_weights *w, const lnt_batch *b, const int64_t *cu, bool fixed)
{
    lnt_call calls[LNT_GROUP_MOST], k = {.c = plan->c,
                                         .tokens = b->tokens,
                                         .n_seq = b->n_seq,
                                         .cu = cu,
                                         .cu_device = plan->cu_device,
                                         .loss_scale = b->loss_scale,
                                         .draw = b->draw,
                                         .draw_device = plan->draw_device,
                                         .work = plan->work,
                                         .work_size = plan->work_size};
    if (b->state) {
        k.position = b->state->position + b->first;
        k.position_device = b->state->position_device + b->first;
        k.state_capacity = b->state->capacity;
    }
    if (stores(plan, w)) zero_others(plan, w, b->tokens);
    const lnt_shape shape = shape_of(plan, b->tokens, b->n_seq, cu, b->state != NULL);
    const bool step = b->state && b->tokens == b->n_seq;
    const bool paced = !fixed && (step || !b->state) && !lnt_on_cuda(plan->c) && lnt_threads(plan->c) > 1;
    const bool alone = paced && lnt_pace_alone(&plan->pace);
    const double start = paced ? lnt_now() : 0, worked = paced ? lnt_cpu_time() : 0;
    linnet_status s = LINNET_OK;
    for (int i = 0, count, ready = 0; s == LINNET_OK && i < plan->schedule.n_steps; i += count) {
        const lnt_step *t = &plan->schedule.steps[i];
        count = lnt_step_calls(t);
        if (t->fixed != fixed) continue;
        for (int m = 0; m < count; m++) {
            if (m == ready) calls[ready++] = k;
            bind(plan, t + m, w, b, &calls[m]);
            clear_gradients(plan, t + m, b->tokens);
        }
        share(plan, &shape, t, calls, count, alone);
        s = run_step(plan, t, calls);
        if (s == LINNET_OK && plan->o.finite) s = lnt_check_finite(plan->c, plan->p, t, calls);
    }
    lnt_threads_all(plan->c);
    if (paced) {
        const double took = lnt_now() - start, tokens = b->tokens > 0 ? (double)b->tokens : 1;
        lnt_pace_took(&plan->pace, took / tokens, step ? 0 : (lnt_cpu_time() - worked) / (took * lnt_threads(plan->c)));
    }
    return s;
}

static linnet_status run_steps(lnt_plan *plan, const lnt_weights *w, const lnt_batch *b, const int64_t *cu)
{
    LNT_TRY(run_some(plan, w, b, cu, false));
    if (b->after.put) b->after.put(b->after.of);
    return LINNET_OK;
}

/* Ahead of a run, and of its record: what is made of parameters alone, if those are others than the last time. */
static linnet_status run_fixed(lnt_plan *plan, const lnt_weights *w, const lnt_batch *b, const int64_t *cu)
{
    const uint64_t version = w->of ? w->of->version : w->version;
    if (!plan->schedule.fixed || plan->made_of == version) return LINNET_OK;
    LNT_TRY(run_some(plan, w, b, cu, true));
    plan->made_of = version;
    return LINNET_OK;
}

/* A run like one before: recorded now, replayed from the next on. What cannot be recorded is done step by step, now and ever after. */
static linnet_status record_and_run(lnt_plan *plan, record *r, const lnt_weights *w, const lnt_batch *b, const int64_t *cu)
{
    lnt_device *d = lnt_device_of(plan->c);
    LNT_TRY(lnt_device_check(plan->c));
    d->graph_begin(d);
    linnet_status s = run_steps(plan, w, b, cu);
    r->graph = d->graph_end(d);
    if (d->problem(d) || s != LINNET_OK) { /* if the steps themselves are at fault, doing them says so */
        forget_graphs(plan);
        plan->graphs = false;
        return run_steps(plan, w, b, cu);
    }
    if (r->graph) d->graph_launch(d, r->graph);
    return r->graph ? LINNET_OK : run_steps(plan, w, b, cu);
}

static run_key key_of(const lnt_plan *plan, const lnt_weights *w, const lnt_batch *b)
{
    return (run_key){.tokens = b->tokens, .n_seq = b->n_seq, .weights = w, .master = w->master, .work = w->work, .grad = w->grad,
                     .state = b->state, .state_data = b->state ? b->state->data : NULL, .capacity = b->state ? b->state->capacity : 0,
                     .first = b->first, .loss_scale = b->loss_scale, .draws = b->draw > 0, .stores = stores(plan, w), .after = b->after};
}

/* The record of runs like this one; -1: there is none. */
static int find_record(const lnt_plan *plan, const run_key *key)
{
    for (int i = 0; i < RECORDS; i++)
        if (plan->records[i].when && !memcmp(&plan->records[i].key, key, sizeof *key)) return i;
    return -1;
}

static int oldest_record(const lnt_plan *plan)
{
    int oldest = 0;
    for (int i = 1; i < RECORDS; i++)
        if (plan->records[i].when < plan->records[oldest].when) oldest = i;
    return oldest;
}

static linnet_status run_or_replay(lnt_plan *plan, const lnt_weights *w, const lnt_batch *b, const int64_t *cu)
{
    if (!plan->graphs || plan->profiling || b->cu) return run_steps(plan, w, b, cu);
    const run_key key = key_of(plan, w, b);
    const int known = find_record(plan, &key);
    plan->last = known < 0 ? oldest_record(plan) : known;
    record *r = &plan->records[plan->last];
    if (known < 0) { /* the first of its kind: kernels are loaded and products tuned */
        forget_graph(plan, r);
        *r = (record){.key = key, .when = ++plan->turn};
        return run_steps(plan, w, b, cu);
    }
    r->when = ++plan->turn;
    if (!r->graph) return record_and_run(plan, r, w, b, cu);
    lnt_device_of(plan->c)->graph_launch(lnt_device_of(plan->c), r->graph);
    return LINNET_OK;
}

static double useful_flops(const lnt_plan *plan, const lnt_shape *shape)
{
    double flops = 0;
    for (int i = 0; i < plan->schedule.n_steps; i++) {
        const lnt_step *t = &plan->schedule.steps[i];
        bool counts = t->node->op->flops && !t->fixed && t->kind != LNT_STEP_RECOMPUTE;
        if (counts) flops += t->node->op->flops(t->node, shape, t->kind == LNT_STEP_BACKWARD);
    }
    return flops;
}

/* Everything but inputs, positions and what is drawn is where it was when the graph was recorded. */
static bool same_again(const lnt_plan *plan, const lnt_weights *w, const lnt_batch *b)
{
    if (plan->profiling || b->cu || plan->equal_tokens != b->tokens || plan->equal_seqs != b->n_seq) return false;
    const run_key key = key_of(plan, w, b);
    const int known = find_record(plan, &key);
    return known >= 0 && plan->records[known].graph;
}

int32_t *lnt_plan_input(const lnt_plan *plan, lnt_buf b)
{
    const int slot = plan->schedule.value_slot[plan->p->values[b.id].root];
    return slot < 0 ? NULL : (int32_t *)(plan->memory + plan->schedule.slots[slot].offset);
}

/* The batch's sequences lie in b->state from slot b->first on. */
static linnet_status run_in_place(lnt_plan *plan, lnt_weights *w, const lnt_batch *b)
{
    const int64_t *cu = b->cu ? b->cu : plan->cu;
    if (!same_again(plan, w, b)) {
        if (!b->cu) equal_sequences(plan->cu, b->tokens, b->n_seq);
        lnt_shape shape = shape_of(plan, b->tokens, b->n_seq, cu, b->state != NULL);
        LNT_TRY(ensure_workspace(plan, &shape));
        LNT_TRY(upload_sequences(plan, b, cu));
        plan->flops = useful_flops(plan, &shape);
    }
    if (b->draw > 0) lnt_to_device(plan->c, plan->draw_device, &b->draw, sizeof b->draw);
    if (b->state && plan->positions)
        lnt_to_device(plan->c, b->state->position_device + b->first, b->state->position + b->first, (size_t)b->n_seq * sizeof *b->state->position);
    for (int i = 0; i < b->n_inputs; i++) {
        int32_t *input = lnt_plan_input(plan, b->inputs[i].buf);
        if (input) lnt_to_device(plan->c, input, b->inputs[i].host, (size_t)b->tokens * sizeof *input);
    }
    lnt_rows_alone(plan->c, plan->o.rows_alone);
    linnet_status s = run_fixed(plan, w, b, cu);
    if (s == LINNET_OK) s = run_or_replay(plan, w, b, cu);
    lnt_rows_alone(plan->c, false);
    LNT_TRY(s);
    if (plan->o.training) w->grad_empty = false;
    if (b->state)
        for (int64_t n = 0; n < b->n_seq; n++) b->state->position[b->first + n] += cu[n + 1] - cu[n];
    plan->runs++;
    return lnt_device_check(plan->c);
}

linnet_status lnt_plan_run(lnt_plan *plan, lnt_weights *w, const lnt_batch *b)
{
    LNT_TRY(check_batch(plan, w, b));
    if (!b->state) return run_in_place(plan, w, b);
    lnt_batch here = *b;
    LNT_TRY(lnt_state_bring(b, &here.state, &here.first));
    LNT_TRY(run_in_place(plan, w, &here));
    lnt_state_back(b, here.state);
    return LINNET_OK;
}

lnt_tensor lnt_plan_output(const lnt_plan *plan, lnt_buf b)
{
    return tensor_in(plan, b, plan->schedule.value_slot[plan->p->values[b.id].root], plan->o.tokens);
}

size_t lnt_plan_bytes(const lnt_plan *plan) { return (size_t)plan->slot_bytes + plan->work_size; }
bool lnt_plan_recorded(const lnt_plan *plan) { return plan->records[plan->last].graph != NULL; }
double lnt_plan_flops(const lnt_plan *plan) { return plan->flops; }

/* ---- profile ---- */

void lnt_plan_profile_reset(lnt_plan *plan)
{
    plan->profiling = true;
    plan->runs = 0;
    memset(plan->seconds, 0, (size_t)plan->p->n_nodes * 2 * sizeof *plan->seconds);
}

typedef struct {
    const lnt_op *op;
    double forward, backward;
    int nodes;
} op_time;

static int by_time(const void *a, const void *b)
{
    double x = ((const op_time *)a)->forward + ((const op_time *)a)->backward, y = ((const op_time *)b)->forward + ((const op_time *)b)->backward;
    return x < y ? 1 : x > y ? -1 : 0;
}

char *lnt_plan_profile(const lnt_plan *plan)
{
    enum { MOST = 64, LINE = 120 };
    op_time t[MOST];
    int n = 0;
    double total = 0;
    for (int i = 0; i < plan->p->n_nodes; i++) {
        const lnt_op *op = plan->p->nodes[i]->op;
        int k = 0;
        while (k < n && t[k].op != op) k++;
        if (k == MOST) continue;
        if (k == n) t[n++] = (op_time){.op = op};
        t[k].forward += plan->seconds[2 * i];
        t[k].backward += plan->seconds[2 * i + 1];
        t[k].nodes++;
        total += plan->seconds[2 * i] + plan->seconds[2 * i + 1];
    }
    qsort(t, (size_t)n, sizeof *t, by_time);
    size_t size = lnt_bytes((size_t)n + 3, LINE);
    char *text = lnt_alloc(size), *at = text;
    if (!text) return NULL;
    double runs = plan->runs ? (double)plan->runs : 1;
    at += snprintf(at, LINE, "%-20s %6s %12s %12s %7s\n", "operator", "nodes", "forward ms", "backward ms", "share");
    for (int k = 0; k < n; k++)
        at += lnt_format(at, LINE, "%-20.20s %6d %12.2f %12.2f %6.1f%%\n", t[k].op->name, t[k].nodes, 1e3 * t[k].forward / runs,
                       1e3 * t[k].backward / runs, total > 0 ? 100 * (t[k].forward + t[k].backward) / total : 0);
    return text;
}

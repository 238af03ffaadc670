/* From a program and what is wanted of it to steps and slots. Long: its passes go over one structure.
 *
 * All bookkeeping is by root value (views share memory). The passes, in order:
 *   1. needed:   nodes that some wanted value depends on (in training: every output is a loss and what it depends on).
 *   2. wants:    values that need a gradient (some parameter lies upstream).
 *   3. pairs:    neighbouring nodes that run in one call; none of a fixed node, one that is made of parameters alone, and another.
 *      joined:   maps of one input that run in one call, in training on a GPU: their results lie side by side in one slot, and so do the gradients.
 *   4. steps:    forward (of few rows on a GPU: in groups); in training, blocks in reverse: recompute (optional), backward.
 *   5. slots:    lifetimes from the first write to the last read; those of a pair's two steps meet, and those of a group's.
 *
 * Parameters that are inputs have no slots: they, and their gradients, lie in the weights. The gradient of a value that is read by slices is in
 * pieces until all of its columns are there; when they overlap or leave something out, step 4 is made anew with that gradient cleared first. */
#include "program/schedule.h"

#include <string.h>

#include "device/device.h"
#include "program/program_internal.h"

/* Columns of a value that some gradient has come to, in order; none touches the next. */
enum { PIECES = 16 };
typedef struct {
    int n;
    struct {
        int64_t first, end;
    } piece[PIECES];
} pieces;

typedef struct {
    lnt_ctx *c;
    const lnt_program *p;
    const lnt_plan_options *o;
    const lnt_shape *shape;
    lnt_schedule *s;
    bool *needed;      /* [nodes] */
    bool *fixed;       /* [nodes] */
    bool *wants;       /* [values] a gradient */
    bool *reached;     /* [values] some gradient arrives */
    pieces **partly;   /* [values] where, NULL: in all columns */
    bool *cleared;     /* [values] the gradient is cleared before the first arrives */
    bool *apart;       /* [nodes] joined with none: not every column of the gradients arrives */
    bool anew;         /* some value more has to be the one, or some node the other */
    bool *crosses;     /* [values] read outside the block that makes it */
    bool *pairs;       /* [nodes] the first of a pair */
    bool *done;        /* [nodes] the backward step is there */
    bool *touched;     /* [parameters] some step brings a gradient */
    bool *inner;       /* [values] between the two of a pair, not stored */
    int *made_by;        /* [nodes] the node whose group does this one ahead of it, -1: none */
    int *joined_to;      /* [nodes] the first of those that run in one call with it, -1: alone */
    int *shared[3];      /* [nodes] of such a first, by slot_kind: the slot that theirs are in */
    int *slot, *again; /* [values] forward value; recomputed value */
    int *grad;         /* [values] */
    int *save, *save_again; /* [nodes] */
    int cap_steps, cap_slots;
} work;

static int root_of(const work *w, lnt_buf b) { return w->p->values[b.id].root; }

/* What must be there after a run: the outputs, then the values kept besides. */
static int wanted_count(const work *w) { return w->o->n_outputs + w->o->n_kept; }
static int wanted(const work *w, int i) { return root_of(w, i < w->o->n_outputs ? w->o->outputs[i] : w->o->kept[i - w->o->n_outputs]); }

/* Filled by the caller, or a parameter. */
static bool is_given(const work *w, int root)
{
    for (int i = 0; i < w->o->n_given; i++)
        if (root_of(w, w->o->given[i]) == root) return true;
    return w->p->values[root].v.producer < 0;
}
static bool is_param(const work *w, int root) { return w->p->values[root].v.param >= 0; }

/* Whether what node n leaves for backward is made again there. */
static bool redone(const work *w, const lnt_node *n)
{
    if (!w->o->training || n->block < 0) return false;
    return w->o->recompute == LNT_RECOMPUTE_BLOCKS || (w->o->recompute == LNT_RECOMPUTE_CHEAP && !n->op->flops);
}

static bool dropped(const work *w, int root)
{
    return !is_given(w, root) && !w->crosses[root] && redone(w, w->p->nodes[w->p->values[root].v.producer]);
}

static int add_slot(work *w, int64_t bytes, int value, int first)
{
    lnt_schedule *s = w->s;
    if (s->n_slots == w->cap_slots) return -1;
    s->slots[s->n_slots] = (lnt_slot){.bytes = bytes, .first = first, .last = first, .value = value};
    return s->n_slots++;
}

static void touch(work *w, int slot)
{
    if (slot >= 0) w->s->slots[slot].last = w->s->n_steps;
}

static int64_t value_bytes(const work *w, int root)
{
    const lnt_value *v = &w->p->values[root].v;
    return lnt_rows(w->p, (lnt_buf){root}, w->shape->tokens) * v->cols * (int64_t)(v->external || v->f32 ? 4 : lnt_dtype_size(w->o->dtype));
}

static void find_needed(work *w)
{
    const lnt_program *p = w->p;
    bool *value_needed = lnt_arena_alloc(&w->s->arena, (size_t)p->n_values);
    if (!value_needed) return;
    for (int i = 0; i < wanted_count(w); i++) value_needed[wanted(w, i)] = true;
    for (int i = p->n_nodes - 1; i >= 0; i--) {
        const lnt_node *n = p->nodes[i];
        for (int k = 0; k < n->n_out; k++) w->needed[i] |= value_needed[root_of(w, n->out[k])] && !is_given(w, root_of(w, n->out[k]));
        if (w->needed[i])
            for (int k = 0; k < n->n_in; k++) value_needed[root_of(w, n->in[k])] = true;
    }
}

/* In training such nodes are as all others: their gradients are wanted in every run. */
static void find_fixed(work *w)
{
    const lnt_program *p = w->p;
    for (int i = 0; i < p->n_nodes && !w->o->training; i++) {
        const lnt_node *n = p->nodes[i];
        bool fixed = w->needed[i] && !n->op->state_size;
        for (int k = 0; k < n->n_out; k++) fixed &= p->values[root_of(w, n->out[k])].v.rows > 0;
        for (int k = 0; k < n->n_in; k++) {
            const int r = root_of(w, n->in[k]);
            if (r && !is_param(w, r)) fixed &= !is_given(w, r) && w->fixed[p->values[r].v.producer];
        }
        w->fixed[i] = fixed;
    }
}

static void find_gradients(work *w)
{
    const lnt_program *p = w->p;
    for (int r = 1; r < p->n_values; r++) w->wants[r] = is_param(w, r);
    for (int i = 0; i < p->n_nodes; i++) {
        const lnt_node *n = p->nodes[i];
        bool want = n->n_param > 0;
        for (int k = 0; k < n->n_in; k++) {
            int r = root_of(w, n->in[k]);
            if (!r) continue;
            want |= w->wants[r];
            if (w->needed[i] && (is_given(w, r) || p->nodes[p->values[r].v.producer]->block != n->block)) w->crosses[r] = true;
        }
        for (int k = 0; k < n->n_out; k++) w->wants[root_of(w, n->out[k])] = want;
    }
    for (int i = 0; i < wanted_count(w); i++) w->crosses[wanted(w, i)] = true;
}

/* The slot of value r, of it made again, or of its gradient: one that others share, or a new one. */
typedef enum { MADE, MADE_AGAIN, GRADIENT } slot_kind;
static int place_of(work *w, int r, slot_kind kind, int now)
{
    const int producer = w->p->values[r].v.producer, first = producer < 0 ? -1 : w->joined_to[producer];
    if (first < 0) return add_slot(w, value_bytes(w, r), r, now);
    int *shared = &w->shared[kind][first];
    if (*shared < 0) *shared = add_slot(w, value_bytes(w, r) / w->p->values[r].v.cols * w->s->place[r].ld, r, now);
    return *shared;
}

static int readers(const work *w, int root)
{
    const lnt_program *p = w->p;
    int n = 0;
    for (int i = p->values[root].v.producer; i < p->n_nodes; i++)
        for (int k = 0; w->needed[i] && k < p->nodes[i]->n_in; k++) n += root_of(w, p->nodes[i]->in[k]) == root;
    return n;
}

/* A pair's first has its backward step where the second has its own, before its block is made again if that is another: then it may read nothing. */
static bool is_pair(const work *w, int i)
{
    const lnt_node *a = w->p->nodes[i], *b = w->p->nodes[i + 1];
    const lnt_pair *pair = lnt_pair_of(a->op, b->op);
    if (!pair || !w->needed[i] || !w->needed[i + 1] || (i && w->pairs[i - 1])) return false;
    if (w->fixed[i] != w->fixed[i + 1]) return false;
    const int r = root_of(w, a->out[0]);
    if (!lnt_same_data(w->p, a->out[0], b->in[pair->input]) || (a->block != b->block && a->op->backward_needs)) return false;
    if (pair->inner && (a->block != b->block || !a->op->flops != !b->op->flops || w->crosses[r] || readers(w, r) > 1)) return false;
    return !pair->fits || pair->fits(a, b, w->shape);
}

static void find_pairs(work *w)
{
    for (int i = 0; i + 1 < w->p->n_nodes && !w->o->alone; i++) {
        const lnt_node *const *n = (const lnt_node *const *)w->p->nodes + i;
        w->pairs[i] = is_pair(w, i);
        if (w->pairs[i]) w->inner[root_of(w, n[0]->out[0])] = lnt_pair_of(n[0]->op, n[1]->op)->inner;
    }
}

static lnt_step *new_step(work *w, lnt_step_kind kind, int i)
{
    lnt_step *t = &w->s->steps[w->s->n_steps];
    t->kind = kind;
    t->node = w->p->nodes[i];
    t->node_index = i;
    memset(t->in, -1, sizeof t->in);
    memset(t->out, -1, sizeof t->out);
    memset(t->d_in, -1, sizeof t->d_in);
    memset(t->d_out, -1, sizeof t->d_out);
    t->save = -1;
    t->group = t->joined = 1;
    t->fixed = w->fixed[i];
    w->s->fixed |= t->fixed;
    return t;
}

static int64_t save_bytes(const work *w, const lnt_node *n) { return n->op->save_size && w->o->training ? n->op->save_size(n, w->shape) : 0; }

static void last_at_least(work *w, const int *slots, int n, int step)
{
    for (int i = 0; i < n; i++)
        if (slots[i] >= 0 && w->s->slots[slots[i]].last < step) w->s->slots[slots[i]].last = step;
}
static void first_at_most(work *w, const int *slots, int n, int step)
{
    for (int i = 0; i < n; i++)
        if (slots[i] >= 0 && w->s->slots[slots[i]].first > step) w->s->slots[slots[i]].first = step;
}

/* The last two steps are one call: what either touches is alive in both. */
static void join(work *w)
{
    const int b = w->s->n_steps - 1, a = b - 1;
    lnt_step *x = &w->s->steps[a], *y = &w->s->steps[b];
    x->with_next = true;
    last_at_least(w, x->in, LNT_MAX_IN, b), last_at_least(w, x->d_in, LNT_MAX_IN, b), last_at_least(w, x->out, LNT_MAX_OUT, b);
    last_at_least(w, x->d_out, LNT_MAX_OUT, b), last_at_least(w, &x->save, 1, b);
    first_at_most(w, y->in, LNT_MAX_IN, a), first_at_most(w, y->d_in, LNT_MAX_IN, a), first_at_most(w, y->out, LNT_MAX_OUT, a);
    first_at_most(w, y->d_out, LNT_MAX_OUT, a), first_at_most(w, &y->save, 1, a);
}

/* Forward of node i; `again` is the recomputation inside a block. */
static void add_forward(work *w, int i, bool again)
{
    const lnt_node *n = w->p->nodes[i];
    lnt_step *t = new_step(w, again ? LNT_STEP_RECOMPUTE : LNT_STEP_FORWARD, i);
    int now = w->s->n_steps;
    for (int k = 0; k < n->n_in; k++) {
        int r = root_of(w, n->in[k]);
        if (!r || w->inner[r] || is_param(w, r)) continue;
        if (w->slot[r] < 0) w->slot[r] = add_slot(w, value_bytes(w, r), r, 0); /* external: filled before the first step */
        t->in[k] = again && w->again[r] >= 0 ? w->again[r] : w->slot[r];
        touch(w, t->in[k]);
    }
    for (int k = 0; k < n->n_out; k++) {
        int r = root_of(w, n->out[k]);
        if (w->inner[r]) continue;
        bool own = !again || dropped(w, r);
        int *where = again && own ? &w->again[r] : &w->slot[r];
        if (*where < 0) *where = place_of(w, r, again && own ? MADE_AGAIN : MADE, now);
        t->out[k] = *where; /* a block's output is recomputed, when it must be, in place: same bits */
        touch(w, t->out[k]);
    }
    t->training = w->o->training && (again || !redone(w, n));
    int64_t bytes = t->training ? save_bytes(w, n) : 0;
    if (bytes) {
        t->save = add_slot(w, bytes, 0, now);
        (again ? w->save_again : w->save)[i] = t->save;
    }
    w->s->n_steps++;
}

/* ---- gradients that come in pieces ---- */

/* The columns of its root that a view has; rows split from columns are all of it. */
static void columns_of(const work *w, lnt_buf b, int64_t *first, int64_t *end)
{
    const lnt_value *v = &w->p->values[b.id].v;
    const bool slice = lnt_is_slice(w->p, b);
    *first = slice ? v->first : 0;
    *end = slice ? v->first + v->cols : w->p->values[root_of(w, b)].v.cols;
}

/* A gradient for view b of root r comes in now; returns whether it is added to what is there. */
static bool arrive(work *w, int r, lnt_buf b)
{
    int64_t first, end;
    columns_of(w, b, &first, &end);
    const bool before = w->reached[r], whole = end - first == w->p->values[r].v.cols;
    pieces *x = w->partly[r];
    w->reached[r] = true;
    if (w->cleared[r] || (before && !x)) return true;
    if (!before && whole) return false;
    if (!x) x = w->partly[r] = lnt_arena_alloc(&w->s->arena, sizeof *x);
    int at = 0; /* the first piece that ends behind `first` or there */
    while (x && at < x->n && x->piece[at].end < first) at++;
    if (x && at < x->n && x->piece[at].first <= first && end <= x->piece[at].end) return true;
    int last = at; /* behind the last piece that begins before `end` or there */
    while (x && last < x->n && x->piece[last].first <= end) {
        if (x->piece[last].first < end && first < x->piece[last].end) w->anew = w->cleared[r] = true; /* some of it is there */
        last++;
    }
    if (!x || x->n - (last - at) >= PIECES) return w->anew = w->cleared[r] = true;
    if (last > at) {
        first = x->piece[at].first < first ? x->piece[at].first : first;
        end = x->piece[last - 1].end > end ? x->piece[last - 1].end : end;
    }
    memmove(&x->piece[at + 1], &x->piece[last], (size_t)(x->n - last) * sizeof x->piece[0]);
    x->n += 1 - (last - at);
    x->piece[at].first = first, x->piece[at].end = end;
    if (end - first == w->p->values[r].v.cols) w->partly[r] = NULL;
    return false;
}

static int kept_slot(const work *w, int r) { return w->again[r] >= 0 ? w->again[r] : w->slot[r]; }

/* Whether y's gradient can lie where x's does, node i reading both: it is read for the last time by the node that made y (with the other of its
 * pair), which hands it to nobody, and all others who read x stand ahead of that one, so that more comes to x later. */
static bool read_before(const work *w, int y, int x, int i)
{
    const lnt_program *p = w->p;
    const int made = p->values[y].v.producer;
    if (made < 0 || w->joined_to[made] >= 0 || p->nodes[made]->op->passes_gradient) return false;
    const int first = made && w->pairs[made - 1] ? made - 1 : made;
    if (p->nodes[first]->op->back_group || p->nodes[made]->op->back_group) return false;
    for (int j = 0; j < p->n_nodes; j++)
        for (int k = 0; j != i && w->needed[j] && k < p->nodes[j]->n_in; k++) {
            const int r = root_of(w, p->nodes[j]->in[k]);
            if (r == y || (r == x && j >= first)) return false;
        }
    return true;
}

/* Whether input k of a node that passes its gradient on can take over the memory of d_out: the first to bring that value a gradient, of the same
 * type, and no second one that could change it too early. The gradient of an output is read by its node alone, so that nobody misses it. */
static bool takes_over(const work *w, const lnt_node *n, int k, int i)
{
    const int r = root_of(w, n->in[k]), out = root_of(w, n->out[0]);
    if (!n->op->passes_gradient || w->reached[r] || !w->reached[out] || w->cleared[r]) return false;
    for (int j = 0; j < n->n_in; j++) {
        const int other = root_of(w, n->in[j]);
        if (j != k && (other == r || (w->grad[other] == w->grad[out] && !read_before(w, r, other, i)))) return false;
    }
    return value_bytes(w, r) == value_bytes(w, out);
}

/* False: no gradient comes to node i. */
static bool add_backward(work *w, int i)
{
    const lnt_node *n = w->p->nodes[i];
    const lnt_op *op = n->op;
    bool arrives = op->backward_is_forward;
    for (int k = 0; k < n->n_out; k++) arrives |= w->reached[root_of(w, n->out[k])];
    w->done[i] = true;
    if (!arrives || !op->backward) return false;
    lnt_step *t = new_step(w, LNT_STEP_BACKWARD, i);
    int now = w->s->n_steps;
    for (int k = 0; k < n->n_in; k++) {
        int r = root_of(w, n->in[k]);
        if (!r || is_param(w, r)) continue;
        if (w->inner[r]) {
            w->reached[r] = true;
            continue;
        }
        if (w->slot[r] < 0) w->slot[r] = add_slot(w, value_bytes(w, r), r, 0);
        if (op->backward_is_forward || op->backward_needs & (unsigned)LNT_NEEDS_IN0 << k) touch(w, t->in[k] = kept_slot(w, r));
        if (!w->wants[r] || w->p->values[r].v.external) continue;
        t->in_place[k] = takes_over(w, n, k, i);
        if (t->in_place[k]) w->grad[r] = w->grad[root_of(w, n->out[0])];
        else if (!w->reached[r]) w->grad[r] = place_of(w, r, GRADIENT, now);
        t->clear[k] = w->cleared[r] && !w->reached[r];
        t->accumulate[k] = arrive(w, r, n->in[k]);
        touch(w, t->d_in[k] = w->grad[r]);
    }
    for (int k = 0; k < n->n_out; k++) {
        int r = root_of(w, n->out[k]);
        if (op->backward_is_forward) {
            if (w->slot[r] < 0) w->slot[r] = add_slot(w, value_bytes(w, r), r, now);
            touch(w, t->out[k] = w->slot[r]);
        } else {
            if (op->backward_needs & (unsigned)LNT_NEEDS_OUT0 << k) touch(w, t->out[k] = kept_slot(w, r));
            if (w->reached[r]) touch(w, t->d_out[k] = w->grad[r]);
            if (w->partly[r]) w->anew = w->cleared[r] = true; /* nobody brings the rest */
        }
    }
    for (int k = 0; k < n->n_param; k++) {
        const int q = n->param[k];
        t->set[k] = !w->touched[q] && op->stores_first && w->p->params[q].offset >= lnt_param_plain_end(w->p);
        w->s->stored[q] |= t->set[k];
        w->touched[q] = true;
    }
    t->training = true;
    touch(w, t->save = w->save_again[i] >= 0 ? w->save_again[i] : w->save[i]);
    w->s->n_steps++;
    return true;
}

/* ---- maps of one input as one call ---- */

/* Whether all who read the result of node i take it, and leave its gradient, as columns among others. */
static bool read_in_place(const work *w, int i)
{
    const lnt_program *p = w->p;
    const lnt_buf y = p->nodes[i]->out[0];
    int times = 0;
    for (int j = i + 1; j < p->n_nodes; j++) {
        const lnt_node *n = p->nodes[j];
        for (int k = 0; w->needed[j] && k < n->n_in; k++) {
            if (!lnt_shares_data(p, n->in[k], y)) continue;
            if (!lnt_same_data(p, n->in[k], y) || !(n->op->strided & (unsigned)LNT_NEEDS_IN0 << k) || !n->op->backward) return false;
            times++;
        }
    }
    return times > 0;
}

/* Whether node i may run with others: what it leaves is kept as it is, and nobody else has its parameter. */
static bool may_join(const work *w, int i)
{
    const lnt_node *n = w->p->nodes[i];
    const int r = root_of(w, n->out[0]);
    if (!w->needed[i] || !n->op->continues || n->n_out != 1 || n->n_param != 1 || w->apart[i] || w->joined_to[i] >= 0) return false;
    if (r != n->out[0].id || w->crosses[r] || w->cleared[r]) return false;
    for (int j = 0; j < w->p->n_nodes; j++)
        for (int k = 0; j != i && w->needed[j] && k < w->p->nodes[j]->n_param; k++)
            if (w->p->nodes[j]->param[k] == n->param[0]) return false;
    return read_in_place(w, i);
}

/* Rows of joined results are whole lines of memory. */
enum { JOINED_MOST = 8, LINE = 64 };

static void find_joined(work *w)
{
    const lnt_program *p = w->p;
    const bool cuda = w->shape->device && w->shape->device->kind == LNT_DEVICE_CUDA;
    for (int i = 0; i < p->n_nodes && cuda && w->o->training && !w->o->alone; i++) {
        int with[JOINED_MOST] = {i}, count = 1;
        int64_t ld = p->values[p->nodes[i]->out[0].id].v.cols;
        if (!may_join(w, i)) continue;
        for (int j = i + 1; j < p->n_nodes && p->nodes[j]->block == p->nodes[i]->block && count < JOINED_MOST; j++) {
            const lnt_node *n = p->nodes[j];
            if (n->op != p->nodes[i]->op || !n->op->continues(p->nodes[with[count - 1]], n) || !may_join(w, j)) continue;
            with[count++] = j;
            ld += p->values[n->out[0].id].v.cols;
        }
        if (count < 2) continue;
        ld = (ld + LINE - 1) / LINE * LINE;
        int64_t first = 0;
        for (int k = 0; k < count; k++) {
            const int r = root_of(w, p->nodes[with[k]]->out[0]);
            w->joined_to[with[k]] = i;
            w->s->place[r] = (lnt_place){first, ld};
            first += p->values[r].v.cols;
        }
    }
}

/* Steps of node i and of all joined to it. */
static void add_joined(work *w, int i, slot_kind kind)
{
    const int first = w->s->n_steps;
    bool whole = true;
    for (int j = i; j < w->p->n_nodes && kind == GRADIENT; j++) {
        if (w->joined_to[j] != i) continue;
        const int r = root_of(w, w->p->nodes[j]->out[0]);
        whole &= w->reached[r] && !w->partly[r];
    }
    for (int j = i; j < w->p->n_nodes; j++) {
        if (w->joined_to[j] != i) continue;
        if (kind == GRADIENT) add_backward(w, j);
        else add_forward(w, j, kind == MADE_AGAIN);
        if (!whole) w->apart[j] = w->anew = true;
    }
    w->s->steps[first].joined = w->s->n_steps - first;
}

/* Recompute what the backward passes of nodes first..last (one block) read and what that in turn needs. */
static linnet_status recompute_block(work *w, int first, int last)
{
    const lnt_program *p = w->p;
    bool *need = lnt_calloc((size_t)(last - first + 1));
    if (!need) return lnt_fail_memory(w->c, (size_t)(last - first + 1));
    for (int i = last; i >= first; i--) {
        const lnt_node *n = p->nodes[i];
        if (!w->needed[i]) continue;
        unsigned reads = n->op->backward ? n->op->backward_needs : 0;
        for (int k = 0; k < n->n_out; k++) {
            int r = root_of(w, n->out[k]);
            if (reads & (unsigned)LNT_NEEDS_OUT0 << k && dropped(w, r)) need[i - first] = true;
        }
        if (redone(w, n) && save_bytes(w, n)) need[i - first] = true;
        if (need[i - first] && w->joined_to[i] >= 0) need[w->joined_to[i] - first] = true;
        if (need[i - first]) reads |= LNT_NEEDS_ALL_IN;
        for (int k = 0; k < n->n_in; k++) {
            int r = root_of(w, n->in[k]);
            if (w->inner[r] && !need[i - first]) continue;
            if (r && reads & (unsigned)LNT_NEEDS_IN0 << k && dropped(w, r)) need[p->values[r].v.producer - first] = true;
        }
    }
    for (int i = first; i <= last; i++) {
        if (!need[i - first] || (w->joined_to[i] >= 0 && w->joined_to[i] != i)) continue;
        if (w->joined_to[i] == i) add_joined(w, i, MADE_AGAIN);
        else add_forward(w, i, true);
        if (i > first && w->pairs[i - 1] && need[i - 1 - first]) join(w);
    }
    lnt_free(need);
    return LINNET_OK;
}

/* ---- groups: decoding on a GPU ---- */

/* A launch more or less does not matter to more rows than these. Where rows are as if alone a plan has steps, of fewer than it has room for. */
enum { GROUP_TOKENS = 64 };

static bool in_group(const lnt_node *const *group, int count, const lnt_node *n)
{
    for (int k = 0; k < count; k++)
        if (group[k] == n) return true;
    return false;
}

static bool reads(const work *w, const lnt_node *n, int root)
{
    for (int k = 0; k < n->n_in; k++)
        if (root_of(w, n->in[k]) == root) return true;
    return false;
}

/* Nobody outside the group reads out[0] of the node. */
static bool inside(const work *w, const lnt_node *const *group, int count, const lnt_node *n)
{
    const int root = root_of(w, n->out[0]);
    bool read = false;
    for (int i = 0; i < w->p->n_nodes; i++) {
        const lnt_node *other = w->p->nodes[i];
        if (!w->needed[i] || !reads(w, other, root)) continue;
        if (!in_group(group, count, other)) return false;
        read = true;
    }
    for (int i = 0; i < wanted_count(w); i++) read &= wanted(w, i) != root;
    return read;
}

/* What is fixed is there before the first step. */
static bool placed_inputs(const work *w, const bool *placed, const lnt_node *n)
{
    for (int k = 0; k < n->n_in; k++) {
        const int r = root_of(w, n->in[k]);
        if (r && !is_given(w, r) && !placed[w->p->values[r].v.producer] && !w->fixed[w->p->values[r].v.producer]) return false;
    }
    return true;
}

/* Steps first .. end are done at once: what one of them reads or writes lives as long as all of them. */
static void live_together(work *w, int first, int end)
{
    for (int i = first; i <= end; i++) {
        const lnt_step *t = &w->s->steps[i];
        last_at_least(w, t->in, LNT_MAX_IN, end), last_at_least(w, t->out, LNT_MAX_OUT, end), last_at_least(w, &t->save, 1, end);
        last_at_least(w, t->d_in, LNT_MAX_IN, end), last_at_least(w, t->d_out, LNT_MAX_OUT, end);
        first_at_most(w, t->out, LNT_MAX_OUT, first), first_at_most(w, t->d_in, LNT_MAX_IN, first), first_at_most(w, &t->save, 1, first);
    }
}

/* Node i, and the other of its pair, behind the `count` nodes of the group; how many there are then. */
static int place(work *w, int i, bool *placed, const lnt_node **group, int count)
{
    for (int k = 0; k <= w->pairs[i]; k++) {
        add_forward(w, i + k, false);
        placed[i + k] = true;
        group[count++] = w->p->nodes[i + k];
    }
    if (w->pairs[i]) join(w);
    return count;
}

/* Makers of a node's inputs that it does itself. */
static void find_made(work *w)
{
    const lnt_program *p = w->p;
    for (int i = 0; i < p->n_nodes; i++) {
        const lnt_node *n = p->nodes[i];
        if (!w->needed[i] || !n->op->makes_input) continue;
        for (int k = 0, made = 0; k < n->n_in && made < LNT_MADE_MOST; k++) {
            const int r = root_of(w, n->in[k]), maker = p->values[r].v.producer;
            if (!r || is_given(w, r) || w->fixed[maker] || w->crosses[r] || readers(w, r) > 1 || !n->op->makes_input(n, k, w->shape)) continue;
            w->made_by[maker] = i;
            if (maker && w->pairs[maker - 1]) w->made_by[maker - 1] = i;
            made++;
        }
    }
}

/* Behind the nodes of block `block` from i on: those of the next one, which read what it leaves, may still go with its last. */
static int end_of_next(const work *w, int i, int block)
{
    while (i < w->p->n_nodes && w->p->nodes[i]->block == block) i++;
    if (i == w->p->n_nodes) return i;
    for (block = w->p->nodes[i]->block; i < w->p->n_nodes && w->p->nodes[i]->block == block;) i++;
    return i;
}

/* Whether node j can be done now, in another's group too. */
static bool is_free(const work *w, const bool *placed, int j)
{
    return w->needed[j] && !w->fixed[j] && !placed[j] && w->made_by[j] < 0 && placed_inputs(w, placed, w->p->nodes[j]);
}

/* Node i's group: nodes of a block that go together stand together, where the first of them would, or where the head that makes them does. */
static void add_group(work *w, bool *placed, int i)
{
    const lnt_program *p = w->p;
    const lnt_node *group[LNT_GROUP_MOST + 1], *n = p->nodes[i];
    const int first = w->s->n_steps;
    int count = 0;
    for (int j = 0; j < i; j++)
        if (w->made_by[j] == i && !placed[j]) count = place(w, j, placed, group, count);
    const int head = count;
    count = place(w, i, placed, group, count);
    int others = head;
    const bool leads = n->op->follows && !w->fixed[i];
    const int end = leads ? end_of_next(w, i, n->block) : i;
    int begin = i + 1; /* of one that was put ahead of others some may stand before it */
    while (leads && begin > 0 && p->nodes[begin - 1]->block == n->block) begin--;
    for (int j = begin; j < end && count + w->pairs[j] < LNT_GROUP_MOST; j++) {
        if (!is_free(w, placed, j) || !n->op->follows(group, count, p->nodes[j])) continue;
        count = place(w, j, placed, group, count);
        others++;
    }
    if (!others) return;
    w->s->steps[first].group = count;
    w->s->steps[first].head = head;
    for (int k = 0; k < count; k++) w->s->steps[first + k].inner = inside(w, group, count, group[k]);
    live_together(w, first, w->s->n_steps - 1);
}

/* Forward steps in groups. Ahead of plain operators, which go with others by rows, stand the products of their block that need not wait for them:
 * what is made of those may go with them too. */
static linnet_status add_groups(work *w)
{
    const lnt_program *p = w->p;
    bool *placed = lnt_arena_alloc(&w->s->arena, (size_t)p->n_nodes);
    if (!placed) return lnt_fail_memory(w->c, (size_t)p->n_nodes);
    find_made(w);
    for (int i = 0; i < p->n_nodes; i++) {
        if (!w->needed[i] || placed[i] || w->made_by[i] >= 0) continue;
        for (int j = i + 1; p->nodes[i]->op->row && j < p->n_nodes && p->nodes[j]->block == p->nodes[i]->block; j++) {
            const lnt_op *op = p->nodes[j]->op;
            if (op->flops && op->follows && !op->state_size && is_free(w, placed, j)) add_group(w, placed, j);
        }
        if (!placed[i]) add_group(w, placed, i);
    }
    return LINNET_OK;
}

/* ---- groups: training on a GPU ---- */

/* Of a step, or of it and the other of its pair, the node that comes first in the program. */
static const lnt_node *first_of(const lnt_step *t) { return t->with_next && t->kind == LNT_STEP_BACKWARD ? t[1].node : t->node; }

/* Whether step t, with the other of its pair, may be done at once with the steps from `first` to it. */
static bool goes_beside(const work *w, const lnt_step *first, const lnt_step *t)
{
    const lnt_node *n = first_of(t), *a = first_of(first);
    if (t->kind != first->kind || n->op != a->op || n->block != a->block || lnt_step_calls(t) != 1 + t->with_next) return false;
    for (const lnt_step *s = first; s < t; s += 1 + s->with_next) {
        if (root_of(w, first_of(s)->in[0]) == root_of(w, n->in[0])) return false;
        for (int k = 0; k <= s->with_next; k++)
            if (reads(w, n, root_of(w, s[k].node->out[0]))) return false;
    }
    return true;
}

static void find_beside(work *w)
{
    const lnt_step *steps = w->s->steps;
    for (int i = 0, end; i < w->s->n_steps; i = end) {
        const lnt_op *op = first_of(&steps[i])->op;
        int members = 1;
        end = i + lnt_step_calls(&steps[i]);
        if (!op->back_group || end != i + 1 + steps[i].with_next) continue;
        for (; members < op->beside && end < w->s->n_steps && goes_beside(w, &steps[i], &steps[end]); members++) end += 1 + steps[end].with_next;
        if (members == 1) continue;
        w->s->steps[i].group = end - i;
        w->s->steps[i].head = first_of(&steps[i]) != steps[i].node;
        live_together(w, i, end - 1);
    }
}

/* What fixed steps make and others read, or somebody wants, is there in every run: before its first step and behind its last. */
static void hold(work *w, int root)
{
    if (!root || is_given(w, root) || !w->fixed[w->p->values[root].v.producer] || w->slot[root] < 0) return;
    w->s->slots[w->slot[root]].first = 0;
    touch(w, w->slot[root]);
}
static void hold_fixed(work *w)
{
    for (int i = 0; i < w->s->n_steps; i++) {
        const lnt_step *t = &w->s->steps[i];
        for (int k = 0; k < t->node->n_in && !t->fixed; k++) hold(w, root_of(w, t->node->in[k]));
    }
    for (int i = 0; i < wanted_count(w); i++) hold(w, wanted(w, i));
}

static linnet_status add_steps(work *w)
{
    const lnt_program *p = w->p;
    const bool grouped = !w->o->training && !w->o->alone && (w->shape->tokens <= GROUP_TOKENS || w->o->rows_alone) && w->shape->device &&
                         w->shape->device->kind == LNT_DEVICE_CUDA;
    if (grouped) LNT_TRY(add_groups(w));
    for (int i = 0; i < p->n_nodes && !grouped; i++) {
        if (!w->needed[i] || (w->o->training && p->nodes[i]->op->backward_is_forward)) continue;
        if (w->joined_to[i] == i) add_joined(w, i, MADE);
        else if (w->joined_to[i] < 0) add_forward(w, i, false);
        if (i && w->pairs[i - 1]) join(w);
    }
    if (w->o->training)
        for (int i = p->n_nodes - 1; i >= 0; i--) {
            if (!w->needed[i]) continue;
            int block = p->nodes[i]->block, first = i;
            if (w->o->recompute != LNT_RECOMPUTE_NONE && block >= 0) {
                while (first > 0 && p->nodes[first - 1]->block == block) first--;
                LNT_TRY(recompute_block(w, first, i));
            }
            for (; i >= first; i--) {
                if (!w->needed[i] || w->done[i]) continue;
                if (w->joined_to[i] >= 0) {
                    if (w->joined_to[i] == i) add_joined(w, i, GRADIENT);
                    continue;
                }
                const bool made = add_backward(w, i);
                if (i && w->pairs[i - 1] && add_backward(w, i - 1) && made) join(w);
            }
            i++;
        }
    if (w->o->training && !w->o->alone && w->shape->device && w->shape->device->kind == LNT_DEVICE_CUDA) find_beside(w);
    for (int i = 0; i < wanted_count(w); i++) touch(w, w->slot[wanted(w, i)]);
    for (int r = 1; r < p->n_values; r++) /* the next run may find its inputs there: lnt_plan_input */
        if (p->values[r].v.external) touch(w, w->slot[r]);
    hold_fixed(w);
    return LINNET_OK;
}

/* The tables of a walk over the program, empty. */
static bool make_tables(work *w)
{
    lnt_schedule *s = w->s;
    const size_t nv = (size_t)w->p->n_values, nn = (size_t)w->p->n_nodes, np = (size_t)w->p->n_params;
    s->n_steps = s->n_slots = 0;
    s->fixed = false;
    w->cap_steps = 3 * w->p->n_nodes;
    w->cap_slots = 3 * w->p->n_values + 2 * w->p->n_nodes;
    s->steps = lnt_arena_alloc(&s->arena, lnt_bytes((size_t)w->cap_steps, sizeof *s->steps));
    s->slots = lnt_arena_alloc(&s->arena, lnt_bytes((size_t)w->cap_slots, sizeof *s->slots));
    w->partly = lnt_arena_alloc(&s->arena, lnt_bytes(nv, sizeof *w->partly));
    bool *flags = lnt_arena_alloc(&s->arena, lnt_bytes_plus(lnt_bytes_plus(lnt_bytes(4, nn), lnt_bytes(4, nv)), lnt_bytes(2, np)));
    int *ids = lnt_arena_alloc(&s->arena, lnt_bytes(lnt_bytes_plus(lnt_bytes(3, nv), lnt_bytes(7, nn)), sizeof *ids));
    s->place = lnt_arena_alloc(&s->arena, lnt_bytes(nv, sizeof *s->place));
    if (!s->steps || !s->slots || !w->partly || !flags || !ids || !s->place) return false;
    w->needed = flags;
    w->wants = flags + nn;
    w->reached = w->wants + nv;
    w->crosses = w->reached + nv;
    w->inner = w->crosses + nv;
    w->pairs = w->inner + nv;
    w->done = w->pairs + nn;
    w->touched = w->done + nn;
    s->stored = w->touched + np;
    w->fixed = s->stored + np;
    memset(ids, -1, (3 * nv + 7 * nn) * sizeof *ids);
    w->slot = s->value_slot = ids;
    w->again = ids + nv;
    w->grad = w->again + nv;
    w->save = w->grad + nv;
    w->save_again = w->save + nn;
    w->made_by = w->save_again + nn;
    w->joined_to = w->made_by + nn;
    for (int k = 0; k < 3; k++) w->shared[k] = w->joined_to + (k + 1) * nn;
    return true;
}

linnet_status lnt_schedule_make(lnt_ctx *c, const lnt_program *p, const lnt_plan_options *o, const lnt_shape *shape, lnt_schedule *s)
{
    *s = (lnt_schedule){0};
    work w = {.c = c, .p = p, .o = o, .shape = shape, .s = s};
    w.cleared = lnt_arena_alloc(&s->arena, (size_t)p->n_values);
    w.apart = lnt_arena_alloc(&s->arena, (size_t)p->n_nodes);
    linnet_status status = LINNET_OK;
    do { /* a second time at most for each value that is read by slices, and for each node */
        w.anew = false;
        if (!w.cleared || !w.apart || !make_tables(&w)) {
            status = lnt_fail_memory(c, lnt_bytes((size_t)w.cap_slots, sizeof *s->slots));
            break;
        }
        find_needed(&w);
        find_fixed(&w);
        find_gradients(&w);
        find_pairs(&w);
        find_joined(&w);
        status = add_steps(&w);
    } while (status == LINNET_OK && w.anew);
    if (status != LINNET_OK) lnt_schedule_free(s);
    return status;
}

void lnt_schedule_free(lnt_schedule *s)
{
    lnt_arena_free(&s->arena);
    *s = (lnt_schedule){0};
}

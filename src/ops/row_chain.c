/* Where the nodes of a chain stand among the columns of its threads, and the table that its kernel goes by.
 *
 * A node's column c stands at first + c stretch, ... + stretch - 1; stretch is above 1 where a column goes with many of another node's: the numbers
 * of heads. Nodes that read one another hang together: what is read stands where it is made, which gives each of them its place relative to the
 * others. Those that have nothing to do with each other stand side by side. */
#include "ops/row_chain_table.h"

#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "core/threads.h"
#include "device/device.h"
#include "ops/few_rows.h"

#ifdef LINNET_CUDA

/* Of shared memory: other kernels' blocks find room beside a chain's. */
enum { CHAIN_BYTES = 96 << 10 };
/* Heads of up to so many columns are a block's, and a cluster's blocks have at least so many. */
enum { BLOCK_COLUMNS = 256, CLUSTER_COLUMNS = 128 };
/* Every row's blocks read the maps' weights. */
enum { MAPS_ROWS = 8 };

typedef struct {
    int count;
    int64_t cols;
    int64_t block, cluster; /* lnt_chain's */
    struct {
        const lnt_node *node;
        lnt_row_step step;
        int part;      /* nodes that hang together have one */
        int64_t first, stretch, end;
    } at[LNT_CHAIN_NODES];
} chain_places;

static bool one_row_a_token(const lnt_program *p, lnt_buf b)
{
    const lnt_value *v = lnt_program_value(p, b);
    return !v->rows && v->each == 1 && !v->external;
}

static int64_t operand_stretch(const chain_places *c, int i, const lnt_row_operand *x)
{
    return c->at[i].stretch * (x->spread == LNT_ROW_HEAD ? c->at[i].step.head : 1);
}
static int64_t result_stretch(const chain_places *c, int i)
{
    return c->at[i].stretch * (c->at[i].step.kind == LNT_ROW_DOT ? c->at[i].step.head : 1);
}

/* The node among the first `count` whose result input b is, or is a part of; -1: none. */
static int maker_of(const chain_places *c, int count, lnt_buf b)
{
    for (int i = 0; i < count; i++)
        if (lnt_shares_data(c->at[i].node->program, c->at[i].node->out[0], b)) return i;
    return -1;
}

static bool is_input(const lnt_row_operand *x) { return x->from >= 0 && x->from < LNT_ROW_PARAM; }

static void stretch_part(chain_places *c, int count, int part, int64_t times)
{
    for (int i = 0; i < count; i++)
        if (c->at[i].part == part) c->at[i].first *= times, c->at[i].stretch *= times;
}

/* Node i stands where operand x of it is made, by node j. */
static bool stand_together(chain_places *c, int i, int j, const lnt_row_operand *x)
{
    const lnt_node *n = c->at[i].node;
    const lnt_value *v = lnt_program_value(n->program, n->in[x->from]);
    if (!one_row_a_token(n->program, n->in[x->from]) || (c->at[j].step.kind == LNT_ROW_LERP && c->at[j].step.count > 1)) return false;
    if (x->spread == LNT_ROW_SHARED || x->spread == LNT_ROW_TAPS) return false;
    const int64_t made = result_stretch(c, j), read = operand_stretch(c, i, x);
    const int mine = c->at[i].part, other = c->at[j].part;
    if (mine == other && made != read) return false;
    if (made % read && read % made) return false;
    if (made < read) stretch_part(c, i + 1, other, read / made);
    if (read < made) stretch_part(c, i + 1, mine, made / read);
    const int64_t to = c->at[j].first + (v->first + x->first) * result_stretch(c, j), shift = to - c->at[i].first;
    if (mine == other) return shift == 0;
    for (int k = 0; k <= i; k++)
        if (c->at[k].part == mine) c->at[k].first += shift, c->at[k].part = other;
    return true;
}

/* Whether the sum over a head of node i stays within a warp. */
static bool in_warp(const lnt_row_step *s)
{
    return s->head <= LNT_CHAIN_WARP && !(s->head & (s->head - 1));
}

static bool has_sum(const lnt_row_step *s) { return s->kind >= LNT_ROW_DOT && s->kind <= LNT_ROW_LAYER; }

static bool has_state(const lnt_row_step *s) { return s->kind == LNT_ROW_BEFORE || s->kind == LNT_ROW_CONV || lnt_chain_is_rule((int)s->kind); }

static int64_t whole_warps(int64_t columns) { return (columns + LNT_CHAIN_WARP - 1) / LNT_CHAIN_WARP * LNT_CHAIN_WARP; }

/* Blocks of so many columns that every sum over warps stays within one, or else within a cluster that has the whole row. */
static bool find_blocks(chain_places *c)
{
    int64_t reach = LNT_CHAIN_WARP;
    bool within = true;
    for (int i = 0; i < c->count; i++) {
        const lnt_row_step *s = &c->at[i].step;
        if (!has_sum(s)) continue;
        if (in_warp(s)) {
            if (c->at[i].first % s->head) return false;
            continue;
        }
        if (c->at[i].first % LNT_CHAIN_WARP || (s->head % LNT_CHAIN_WARP && s->head != s->cols)) return false;
        const int64_t head = whole_warps(s->head);
        reach = head > reach ? head : reach;
    }
    for (int i = 0; i < c->count; i++) {
        const lnt_row_step *s = &c->at[i].step;
        if (!has_sum(s) || in_warp(s)) continue;
        within &= reach % whole_warps(s->head) == 0 && c->at[i].first % whole_warps(s->head) == 0;
    }
    c->block = reach, c->cluster = 1;
    for (int i = 0; i < c->count; i++)
        if (lnt_chain_is_rule((int)c->at[i].step.kind) && (!within || reach != c->at[i].step.head || c->at[i].first % reach)) return false;
    if (within && reach <= BLOCK_COLUMNS) return true;
    for (c->cluster = LNT_CHAIN_CLUSTER; c->cluster > 1; c->cluster /= 2)
        if (c->cols % (c->cluster * LNT_CHAIN_WARP) == 0 && c->cols / c->cluster >= CLUSTER_COLUMNS) break;
    c->block = c->cols / c->cluster;
    return c->block <= LNT_CHAIN_MOST_COLUMNS;
}

/* Parts side by side, each from whole warps on. */
static bool parts_side_by_side(chain_places *c)
{
    c->cols = 0;
    for (int part = 0; part < c->count; part++) {
        int64_t low = INT64_MAX, high = 0;
        for (int i = 0; i < c->count; i++) {
            if (c->at[i].part != part) continue;
            const int64_t end = c->at[i].first + c->at[i].step.cols * c->at[i].stretch;
            low = c->at[i].first < low ? c->at[i].first : low;
            high = end > high ? end : high;
        }
        if (low == INT64_MAX) continue;
        low -= (low % LNT_CHAIN_WARP + LNT_CHAIN_WARP) % LNT_CHAIN_WARP;
        for (int i = 0; i < c->count; i++)
            if (c->at[i].part == part) c->at[i].first += c->cols - low, c->at[i].end = c->at[i].first + c->at[i].step.cols * c->at[i].stretch;
        c->cols += whole_warps(high - low);
        if (c->cols > INT32_MAX / 2) return false;
    }
    for (int i = 0; i < c->count; i++) {
        const lnt_row_step *s = &c->at[i].step;
        bool alone = has_sum(s) || has_state(s) || (s->kind == LNT_ROW_LERP && s->count > 1);
        for (int k = 0; k < s->operands; k++) {
            const int64_t stretch = operand_stretch(c, i, &s->operand[k]);
            alone |= s->operand[k].spread == LNT_ROW_SHARED;
            if (stretch > 1 && stretch % LNT_CHAIN_UNIT) return false; /* a thread's columns are of one head */
            if (stretch > UINT32_MAX / c->cols) return false;          /* lnt_chain_inverse */
        }
        if (c->at[i].first % LNT_CHAIN_UNIT || c->at[i].end % LNT_CHAIN_UNIT) return false;
        if (c->at[i].stretch > 1 && alone) return false;
        if ((has_sum(s) && s->head % LNT_CHAIN_UNIT) || s->head > UINT32_MAX / c->cols) return false;
    }
    return find_blocks(c);
}

/* Of shared memory that a thread has of node i's operands and result, at most. */
static int bytes_of(const lnt_row_step *s)
{
    int bytes = 8;
    for (int k = 0; k < s->operands; k++)
        if (s->operand[k].from != LNT_ROW_NONE) bytes += 8 * (s->operand[k].spread == LNT_ROW_TAPS ? s->count : 1);
    return bytes;
}
static bool has_room(const chain_places *c, int64_t bytes) { return bytes * c->block / LNT_CHAIN_UNIT <= CHAIN_BYTES; }

static bool find_places(const lnt_node *const *nodes, int count, const lnt_node *last, chain_places *c)
{
    int bytes = 0, loads = 0;
    c->count = count + (last != NULL);
    if (c->count > LNT_CHAIN_NODES) return false;
    for (int i = 0; i < c->count; i++) {
        const lnt_node *n = c->at[i].node = i < count ? nodes[i] : last;
        lnt_row_step *s = &c->at[i].step;
        *s = (lnt_row_step){.count = 1};
        if (!n->op->row || n->n_out != 1 || !one_row_a_token(n->program, n->out[0]) || !n->op->row(n, s)) return false;
        if (s->operands > LNT_ROW_OPERANDS || s->cols < 1 || s->kind == LNT_ROW_DECAYED) return false;
        c->at[i].part = i, c->at[i].first = 0, c->at[i].stretch = 1;
        for (int k = 0; k < s->operands; k++) {
            const lnt_row_operand *x = &s->operand[k];
            loads += x->from != LNT_ROW_NONE;
            if (!is_input(x)) continue;
            const int maker = maker_of(c, i, n->in[x->from]);
            if (maker >= 0 && !stand_together(c, i, maker, x)) return false;
            const lnt_value *v = lnt_program_value(n->program, n->in[x->from]);
            if (maker < 0 && !one_row_a_token(n->program, n->in[x->from]) && v->rows != 1) return false;
        }
        bytes += bytes_of(s);
    }
    return loads <= LNT_CHAIN_LOADS && parts_side_by_side(c) && has_room(c, bytes);
}

static bool step_of(const lnt_node *n, lnt_row_step *s)
{
    *s = (lnt_row_step){.count = 1};
    return n->op->row && n->op->row(n, s);
}
static bool is_decay(const lnt_node *n)
{
    lnt_row_step s;
    return step_of(n, &s) && s.kind == LNT_ROW_DECAYED;
}

/* A chain may end in a rule of LNT_ROW_DECAYED that reads what it makes; what follows that is a chain of its own. */
bool lnt_row_chain_follows(const lnt_node *const *group, int count, const lnt_node *n)
{
    chain_places c;
    int rule = 0;
    bool reads = false;
    while (rule < count && !is_decay(group[rule])) rule++;
    if (rule < count) return find_places(group + rule + 1, count - rule - 1, n, &c);
    if (!is_decay(n)) return n->op->row && find_places(group, count, n, &c);
    for (int i = 0; i < count; i++) reads |= lnt_shares_data(n->program, group[i]->out[0], n->in[0]);
    return reads;
}

/* ---- the table ---------------------------------------------------------------------------------------------------------------------- */

static bool one_token_each(const lnt_call *k)
{
    for (int64_t n = 0; n < k->n_seq; n++)
        if (k->cu[n + 1] - k->cu[n] > 1) return false;
    return true;
}

/* An operand from outside as a load of node i; false: it does not lie so that units can be read. */
static bool load_of(const chain_places *c, const lnt_call *k, int i, const lnt_row_operand *x, lnt_chain_load *l, lnt_chain_form *form)
{
    const lnt_row_step *s = &c->at[i].step;
    const int64_t stretch = operand_stretch(c, i, x);
    int64_t element = 4;
    *l = (lnt_chain_load){.first = (int32_t)c->at[i].first, .end = (int32_t)c->at[i].end, .early = true};
    if (x->from >= LNT_ROW_STATE) {
        if (!k->state || !one_token_each(k)) return false;
        l->data = (const char *)k->state + (x->from - LNT_ROW_STATE) * s->cols * 4;
        l->row = k->state_stride, l->by_sequence = true;
        l->early = k->n_seq == k->tokens;
    } else if (x->from >= LNT_ROW_PARAM) {
        l->data = (const char *)k->param[x->from - LNT_ROW_PARAM].master;
    } else {
        const lnt_tensor *t = &k->in[x->from];
        const lnt_value *v = lnt_program_value(k->node->program, k->node->in[x->from]);
        element = (int64_t)lnt_dtype_size(t->dtype);
        l->data = (const char *)t->data;
        l->row = v->rows ? 0 : t->ld * element, l->early = v->param >= 0;
    }
    if (!l->data) return false;
    l->data += x->first * element;
    l->period = x->spread == LNT_ROW_SHARED && s->head < s->cols ? (int32_t)s->head : 0;
    l->single = stretch > 1;
    if (l->single || l->period) l->inverse = lnt_chain_inverse(l->single ? stretch : l->period);
    l->size = (int16_t)(x->spread == LNT_ROW_TAPS ? element * s->count : element);
    l->bytes = (int16_t)(l->single ? 4 : LNT_CHAIN_UNIT * l->size);
    *form = l->single ? LNT_CHAIN_ONE : element == 4 ? LNT_CHAIN_FLOATS : LNT_CHAIN_HALVES;
    if (l->single) return true;
    if (x->spread == LNT_ROW_SHARED && s->head % LNT_CHAIN_UNIT) return false;
    const int64_t align = l->bytes < 16 ? l->bytes : 16;
    return (uintptr_t)l->data % (uintptr_t)align == 0 && l->row % align == 0;
}

/* The calls of a group, of which a chain may be a part. */
typedef struct {
    const lnt_call *calls;
    int count;
} chain_group;

/* Whether nobody outside calls first .. end - 1 of the group reads what k, one of them, leaves. */
static bool is_inner(const chain_group *g, const lnt_call *first, const lnt_call *end, const lnt_call *k)
{
    for (const lnt_call *other = g->calls; k->inner && other < g->calls + g->count; other++)
        for (int i = 0; (other < first || other >= end) && i < other->node->n_in; i++)
            if (lnt_shares_data(k->node->program, other->node->in[i], k->node->out[0])) return false;
    return k->inner;
}

/* Node i without its operands; inner: its result is read in the chain alone. */
static bool op_of(const chain_places *c, const lnt_call *k, int i, bool inner, lnt_chain_op *o)
{
    const lnt_row_step *s = &c->at[i].step;
    const lnt_tensor *y = &k->out[0];
    const int64_t element = (int64_t)lnt_dtype_size(y->dtype), unit = LNT_CHAIN_UNIT * element;
    const bool f32 = y->dtype == LINNET_F32 || !y->data; /* what a pair's first leaves its second is not stored, and not rounded */
    *o = (lnt_chain_op){.columns = (int32_t)s->head, .by_columns = lnt_chain_inverse(s->head), .number = {s->number[0], s->number[1]}};
    o->head = (lnt_chain_head){.kind = s->kind, .act = s->act, .count = s->kind == LNT_ROW_LERP ? s->count : 0, .f32 = f32,
                               .first = (int32_t)c->at[i].first, .end = (int32_t)c->at[i].end, .stretch = (int32_t)result_stretch(c, i),
                               .out = inner ? NULL : y->data, .out_row = y->ld * element};
    o->by_stretch = lnt_chain_inverse(o->head.stretch);
    if (has_sum(s) && in_warp(s)) o->head.count = (int32_t)(s->head / LNT_CHAIN_UNIT);
    if (lnt_chain_is_rule((int)s->kind) && (!k->state || k->n_seq != k->tokens || !one_token_each(k))) return false;
    if (has_state(s))
        o->state = k->state, o->state_stride = k->state_stride / 4, o->state_cols = (int32_t)s->cols;
    return !o->head.out || ((uintptr_t)o->head.out % (uintptr_t)unit == 0 && (o->head.stretch > 1 || o->head.out_row % unit == 0));
}

/* Loads in their order: those that need not wait first; of these and of the others, those of single numbers behind those of units. */
static int turn_of(const lnt_chain_load *l) { return 2 * !l->early + l->single; }
static void sort_loads(lnt_chain *t, int loads)
{
    int ends[4] = {0};
    for (int i = 0; i < loads; i++) {
        const lnt_chain_load l = t->load[i];
        int at = i;
        for (; at > 0 && turn_of(&t->load[at - 1]) > turn_of(&l); at--) t->load[at] = t->load[at - 1];
        t->load[at] = l;
        for (int turn = turn_of(&l); turn < 4; turn++) ends[turn]++;
    }
    t->early = (lnt_chain_loads){ends[0], ends[1]}, t->late = (lnt_chain_loads){ends[2], ends[3]};
}

static bool make_table(const chain_places *c, const chain_group *g, const lnt_call *calls, lnt_chain *t)
{
    const int threads = (int)(c->block / LNT_CHAIN_UNIT);
    int loads = 0;
    memset(t, 0, sizeof *t);
    t->rows = (int32_t)calls->out[0].rows, t->cols = (int32_t)c->cols, t->ops = c->count;
    t->block = (int32_t)c->block, t->cluster = (int32_t)c->cluster;
    t->n_seq = calls->n_seq, t->tokens = calls->tokens, t->cu = calls->n_seq == calls->tokens ? NULL : calls->cu_device;
    for (int i = 0; i < c->count; i++) {
        const lnt_row_step *s = &c->at[i].step;
        lnt_chain_op *o = &t->op[i];
        if (!op_of(c, &calls[i], i, is_inner(g, calls, calls + c->count, &calls[i]), o)) return false;
        for (int k = 0; k < s->operands; k++) {
            const lnt_row_operand *x = &s->operand[k];
            const int maker = is_input(x) ? maker_of(c, i, calls[i].node->in[x->from]) : -1;
            lnt_chain_form form = LNT_CHAIN_FLOATS;
            if (x->from == LNT_ROW_NONE) continue;
            int at = t->bytes;
            if (maker >= 0) at = t->op[maker].head.at;
            else {
                lnt_chain_load *l = &t->load[loads++];
                if (!load_of(c, &calls[i], i, x, l, &form)) return false;
                l->at = at;
                t->bytes += (l->bytes > 8 ? l->bytes : 8) * threads;
            }
            *(k < 4 ? &o->head.operand[k] : &o->more[k - 4]) = (lnt_chain_operand)at + form;
        }
        o->head.at = t->bytes;
        t->bytes += 8 * threads;
    }
    sort_loads(t, loads);
    return t->bytes <= CHAIN_BYTES;
}

static bool table_of(const chain_group *g, const lnt_call *calls, int count, lnt_chain *t)
{
    const lnt_node *nodes[LNT_CHAIN_NODES] = {0};
    chain_places c;
    for (int i = 0; i < count && i < LNT_CHAIN_NODES; i++) nodes[i] = calls[i].node;
    return count > 0 && count <= LNT_CHAIN_NODES && find_places(nodes, count, NULL, &c) && make_table(&c, g, calls, t);
}

/* For LINNET_VERBOSE=dispatch: a chain that takes longer than one the compiler knows (row_chain_known.cuh), and why. */
static void tell(const lnt_call *calls, int count, const char *why)
{
    char names[1024] = "";
    size_t at = 0;
    if (!calls->c->verbose_dispatch) return;
    for (int i = 0; i < count && at < sizeof names; i++) at += (size_t)snprintf(names + at, sizeof names - at, " %s", calls[i].node->op->name);
    lnt_log(calls->c, "dispatch: chain%s %s", names, why);
}

/* False: nothing was put. */
static bool as_one(const chain_group *g, const lnt_call *calls, int count)
{
    lnt_chain t;
    const lnt_chain_way way = table_of(g, calls, count, &t) ? lnt_row_chain_cuda(calls->c, &t) : LNT_CHAIN_NOT_PUT;
    if (way == LNT_CHAIN_BY_TABLE) tell(calls, count, "goes by its table");
    return way != LNT_CHAIN_NOT_PUT;
}

bool lnt_row_chain_with_maps(const lnt_call *calls, int count, const lnt_few_rows *f)
{
    const chain_group g = {calls, count};
    lnt_chain t;
    if (f->R > MAPS_ROWS && !lnt_rows_are_alone(calls->c)) return false;
    if (table_of(&g, calls, count, &t) && lnt_row_chain_maps_cuda(calls->c, &t, f)) return true;
    tell(calls, count, "is not known with the maps ahead of it");
    return false;
}

/* The group with its rule, call `rule`, in two kernels. False: nothing was put. */
static bool as_decay(const chain_group *g, int rule)
{
    const lnt_call *k = &g->calls[rule];
    const lnt_tensor *o = &k->out[0];
    lnt_row_step s;
    lnt_chain_decay d;
    if (!step_of(k->node, &s) || s.kind != LNT_ROW_DECAYED) return false;
    if (!k->state || k->n_seq != k->tokens || !one_token_each(k) || k->state_stride % 16 || (uintptr_t)k->state % 16) return false;
    for (int i = 0; i + 1 < g->count; i++)
        if (!g->calls[i].inner) return false;
    if (!table_of(g, g->calls, rule, &d.ahead) || !table_of(g, k + 1, g->count - rule - 1, &d.behind)) return false;
    d.q = k->in[0].data, d.k = k->in[1].data, d.v = k->in[2].data, d.g = k->in[3].data, d.o = o->data;
    d.state = k->state, d.state_stride = k->state_stride / 4;
    d.squares = o->data; /* which is not kept: an element for 16 bits of 32 */
    d.heads = (int32_t)(s.cols / s.head), d.K = s.count, d.V = (int32_t)s.head, d.scale = s.number[0];
    return o->data && o->ld == o->cols && lnt_row_chain_decay_cuda(k->c, &d);
}

linnet_status lnt_row_chain_apart(const lnt_call *calls, int count)
{
    for (int i = 0; i < count; i++) {
        const bool pair = !calls[i].out[0].data && i + 1 < count;
        LNT_TRY(pair ? lnt_pair_of(calls[i].node->op, calls[i + 1].node->op)->forward(&calls[i], &calls[i + 1])
                     : calls[i].node->op->forward(&calls[i]));
        i += pair;
    }
    return LINNET_OK;
}

/* What is no chain on this device, or with tensors as they lie. */
static linnet_status one_by_one(const lnt_call *calls, int count)
{
    if (count > 1) tell(calls, count, "goes node by node");
    return lnt_row_chain_apart(calls, count);
}

static bool is_rule(const lnt_node *n)
{
    lnt_row_step s;
    return step_of(n, &s) && (lnt_chain_is_rule((int)s.kind) || s.kind == LNT_ROW_DECAYED);
}

/* Where a rule with what stands around it is none of the known chains: what is ahead of it, it, and what is behind. */
linnet_status lnt_row_chain_run(const lnt_call *calls, int count)
{
    const chain_group g = {calls, count};
    if (calls->tokens <= 0 || as_one(&g, calls, count)) return LINNET_OK;
    int rule = 0;
    while (rule < count && !is_rule(calls[rule].node)) rule++;
    if (rule == count) return one_by_one(calls, count);
    if (as_decay(&g, rule)) return LINNET_OK;
    tell(calls, count, "is not known with its recurrence");
    if (!as_one(&g, calls, rule)) LNT_TRY(one_by_one(calls, rule));
    LNT_TRY(calls[rule].node->op->forward(&calls[rule]));
    calls += rule + 1, count -= rule + 1;
    return as_one(&g, calls, count) ? LINNET_OK : one_by_one(calls, count);
}

#else

bool lnt_row_chain_follows(const lnt_node *const *group, int count, const lnt_node *n)
{
    (void)group, (void)count, (void)n;
    return false;
}
linnet_status lnt_row_chain_run(const lnt_call *calls, int count)
{
    (void)count;
    return lnt_fail(calls->c, LINNET_EINTERNAL, "a chain of rows on a CPU");
}

#endif

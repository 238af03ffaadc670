/* Where the nodes of a chain stand among the columns of its threads, and the table that its kernel goes by.
 *
 * A node's column c stands at first + c stretch, ... + stretch - 1; stretch is above 1 where a column goes with many of another node's: the numbers
 * of heads. Nodes that read one another hang together: what is read stands where it is made, which gives each of them its place relative to the
 * others. Those that have nothing to do with each other stand side by side. */
#include "ops/row_chain_table.h"

#include <string.h>

#include "device/device.h"

#ifdef LINNET_CUDA

/* Of shared memory, so that other kernels' blocks find room beside a chain's; and all that a block of a chain with whole rows may have. */
enum { CHAIN_BYTES = 96 << 10, CHAIN_WIDE_BYTES = 160 << 10, CHAIN_WIDE_COLUMNS = 2048 };

typedef struct {
    int count;
    bool wide; /* some sum goes over several warps */
    int64_t cols;
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

/* Whether a head's sum of node i can be taken: within a warp, or by whole ones. */
static bool sums_fit(chain_places *c, int i)
{
    const int64_t head = c->at[i].step.head, first = c->at[i].first, units = head / LNT_CHAIN_UNIT;
    if (head % LNT_CHAIN_UNIT) return false;
    if (units <= 32 && !(units & (units - 1))) return first % head == 0;
    c->wide = true;
    return first % LNT_CHAIN_WARP == 0 && (head % LNT_CHAIN_WARP == 0 || head == c->at[i].step.cols);
}

static bool has_sum(const lnt_row_step *s) { return s->kind >= LNT_ROW_DOT && s->kind <= LNT_ROW_LAYER; }

/* Parts side by side, each from whole warps on. */
static bool parts_side_by_side(chain_places *c)
{
    c->cols = 0;
    c->wide = false;
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
        c->cols += (high - low + LNT_CHAIN_WARP - 1) / LNT_CHAIN_WARP * LNT_CHAIN_WARP;
        if (c->cols > INT32_MAX / 2) return false;
    }
    for (int i = 0; i < c->count; i++) {
        const lnt_row_step *s = &c->at[i].step;
        bool alone = has_sum(s) || s->kind == LNT_ROW_BEFORE || s->kind == LNT_ROW_CONV || (s->kind == LNT_ROW_LERP && s->count > 1);
        for (int k = 0; k < s->operands; k++) {
            const int64_t stretch = operand_stretch(c, i, &s->operand[k]);
            alone |= s->operand[k].spread == LNT_ROW_SHARED;
            if (stretch > 1 && stretch % LNT_CHAIN_UNIT) return false; /* a thread's columns are of one head */
        }
        if (c->at[i].first % LNT_CHAIN_UNIT || c->at[i].end % LNT_CHAIN_UNIT) return false;
        if (c->at[i].stretch > 1 && alone) return false;
        if (has_sum(s) && !sums_fit(c, i)) return false;
    }
    return !c->wide || c->cols <= LNT_CHAIN_WIDEST;
}

/* Planes of all operands and results: no more than a block has room for. */
static bool planes_fit(const chain_places *c, int planes)
{
    const int64_t threads = c->wide ? (c->cols / LNT_CHAIN_UNIT + 31) / 32 * 32 : LNT_CHAIN_THREADS;
    return planes * 16 * threads <= (c->wide ? CHAIN_WIDE_BYTES : CHAIN_BYTES);
}

/* At most this many planes (a result's are two). */
static int planes_of(const lnt_row_step *s)
{
    int planes = 2;
    for (int k = 0; k < s->operands; k++)
        if (s->operand[k].from != LNT_ROW_NONE) planes += s->operand[k].spread == LNT_ROW_TAPS ? 2 * s->count : 2;
    return planes;
}

static bool find_places(const lnt_node *const *nodes, int count, const lnt_node *last, chain_places *c)
{
    int planes = 0, loads = 0;
    c->count = count + (last != NULL);
    if (c->count > LNT_CHAIN_NODES) return false;
    for (int i = 0; i < c->count; i++) {
        const lnt_node *n = c->at[i].node = i < count ? nodes[i] : last;
        lnt_row_step *s = &c->at[i].step;
        *s = (lnt_row_step){.count = 1};
        if (!n->op->row || n->n_out != 1 || !one_row_a_token(n->program, n->out[0]) || !n->op->row(n, s)) return false;
        if (s->operands > LNT_ROW_OPERANDS || s->cols < 1) return false;
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
        planes += planes_of(s);
    }
    return loads <= LNT_CHAIN_LOADS && parts_side_by_side(c) && planes_fit(c, planes);
}

bool lnt_row_chain_follows(const lnt_node *const *group, int count, const lnt_node *n)
{
    chain_places c;
    return n->op->row && find_places(group, count, n, &c);
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
    int64_t element = 4, ld = 0;
    *l = (lnt_chain_load){.first = (int32_t)c->at[i].first, .end = (int32_t)c->at[i].end, .stretch = (int32_t)stretch, .early = true};
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
        ld = v->rows ? 0 : t->ld * element;
        l->data = (const char *)t->data;
        l->row = ld, l->early = v->param >= 0;
    }
    if (!l->data) return false;
    l->data += x->first * element;
    l->period = x->spread == LNT_ROW_SHARED && s->head < s->cols ? (int32_t)s->head : 0;
    l->size = (int16_t)(x->spread == LNT_ROW_TAPS ? element * s->count : element);
    l->bytes = (int16_t)(stretch > 1 ? 4 : LNT_CHAIN_UNIT * l->size);
    *form = stretch > 1 ? LNT_CHAIN_ONE : element == 4 ? LNT_CHAIN_FLOATS : LNT_CHAIN_HALVES;
    if (stretch > 1) {
        l->size = (int16_t)element;
        return true;
    }
    if (x->spread == LNT_ROW_SHARED && s->head % LNT_CHAIN_UNIT) return false;
    return (uintptr_t)l->data % 16 == 0 && l->row % 16 == 0;
}

/* Node i without its operands. */
static bool op_of(const chain_places *c, const lnt_call *k, int i, lnt_chain_op *o)
{
    const lnt_row_step *s = &c->at[i].step;
    const lnt_tensor *y = &k->out[0];
    const int64_t element = (int64_t)lnt_dtype_size(y->dtype), units = s->head / LNT_CHAIN_UNIT;
    *o = (lnt_chain_op){.kind = (uint8_t)s->kind, .act = (uint8_t)s->act, .count = (uint8_t)s->count, .operands = (uint8_t)s->operands,
                        .f32 = y->dtype == LINNET_F32, .first = (int32_t)c->at[i].first,
                        .end = (int32_t)c->at[i].end, .stretch = (int32_t)result_stretch(c, i), .head = (int32_t)s->head,
                        .number = {s->number[0], s->number[1]}, .out = k->inner ? NULL : y->data, .out_row = y->ld * element};
    if (has_sum(s) && units <= 32 && !(units & (units - 1))) o->lanes = (uint8_t)units;
    if (s->kind == LNT_ROW_BEFORE || s->kind == LNT_ROW_CONV)
        o->state = k->state, o->state_stride = k->state_stride / 4, o->state_cols = s->cols;
    return !o->out || ((uintptr_t)o->out % 16 == 0 && (o->stretch > 1 || o->out_row % 16 == 0));
}

/* Loads that need not wait first; of these and of the others, those of single numbers behind those of units. */
static int turn_of(const lnt_chain_load *l) { return 2 * !l->early + (l->bytes < 16); }
static void sort_loads(lnt_chain *t)
{
    for (int i = 1; i < t->loads; i++) {
        const lnt_chain_load l = t->load[i];
        int at = i;
        for (; at > 0 && turn_of(&t->load[at - 1]) > turn_of(&l); at--) t->load[at] = t->load[at - 1];
        t->load[at] = l;
    }
}

static bool make_table(const chain_places *c, const lnt_call *calls, lnt_chain *t)
{
    int planes = 0;
    memset(t, 0, sizeof *t);
    t->rows = (int32_t)calls->out[0].rows, t->cols = (int32_t)c->cols, t->ops = (int16_t)c->count;
    t->wide = c->wide;
    t->n_seq = calls->n_seq, t->tokens = calls->tokens, t->cu = calls->n_seq == calls->tokens ? NULL : calls->cu_device;
    t->threads = c->wide ? (int32_t)((c->cols / LNT_CHAIN_UNIT + 31) / 32 * 32) : LNT_CHAIN_THREADS;
    for (int i = 0; i < c->count; i++) {
        const lnt_row_step *s = &c->at[i].step;
        lnt_chain_op *o = &t->op[i];
        if (!op_of(c, &calls[i], i, o)) return false;
        for (int k = 0; k < s->operands; k++) {
            const lnt_row_operand *x = &s->operand[k];
            const int maker = is_input(x) ? maker_of(c, i, calls[i].node->in[x->from]) : -1;
            lnt_chain_form form = LNT_CHAIN_FLOATS;
            if (x->from == LNT_ROW_NONE) continue;
            o->operand[k].plane = maker >= 0 ? t->op[maker].plane : (int16_t)planes;
            if (maker < 0) {
                lnt_chain_load *l = &t->load[t->loads++];
                if (!load_of(c, &calls[i], i, x, l, &form)) return false;
                l->plane = (int16_t)planes;
                planes += (l->bytes + 15) / 16;
            }
            o->operand[k].form = (uint8_t)form;
        }
        o->plane = (int16_t)planes;
        planes += 2;
    }
    sort_loads(t);
    t->planes = planes;
    return planes_fit(c, planes);
}

/* What its nodes do sooner by themselves (H200, decoding.md): convolutions side by side, and rows so wide that one block brings many parameters. */
static bool is_slow(const chain_places *c)
{
    int convolutions = 0;
    for (int i = 0; i < c->count; i++) convolutions += c->at[i].step.kind == LNT_ROW_CONV;
    return convolutions > 1 || (c->wide && c->cols > CHAIN_WIDE_COLUMNS);
}

linnet_status lnt_row_chain_run(const lnt_call *calls, int count)
{
    const lnt_node *nodes[LNT_CHAIN_NODES] = {0};
    chain_places c;
    lnt_chain t;
    for (int i = 0; i < count && i < LNT_CHAIN_NODES; i++) nodes[i] = calls[i].node;
    if (calls->tokens <= 0) return LINNET_OK;
    const bool one = count <= LNT_CHAIN_NODES && find_places(nodes, count, NULL, &c) && !is_slow(&c);
    if (one && make_table(&c, calls, &t) && lnt_row_chain_cuda(calls->c, &t))
        return LINNET_OK;
    for (int i = 0; i < count; i++) {
        const bool pair = !calls[i].out[0].data && i + 1 < count;
        LNT_TRY(pair ? lnt_pair_of(calls[i].node->op, calls[i + 1].node->op)->forward(&calls[i], &calls[i + 1])
                     : calls[i].node->op->forward(&calls[i]));
        i += pair;
    }
    return LINNET_OK;
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

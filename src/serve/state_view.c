#include "serve/state_view.h"

#include <math.h>
#include <string.h>

#include "device/device.h"
#include "generate/session.h"
#include "recurrence/recur_node.h"

enum { MOST_LETTERS = 6 };
static const int64_t MOST_VALUES = (int64_t)256 << 20; /* bytes of a text's values, for a recall */

struct lnt_view {
    const lnt_views *w;
    int64_t recall, tokens;  /* asked of, and at the end of which it is */
    double *sum;             /* [channels] m of each part, head, channel */
    lnt_viewed fresh;        /* not told yet */
    int64_t seen;            /* tokens */
    float *keys;             /* of the one token: [heads of keys] of each part, one behind the other */
    float *values;           /* [tokens] of each part, one behind the other */
    char *raw;               /* rows as the plan has them */
    size_t room_raw;
    float *matrix;           /* the largest part's */
};

/* ---- what there is to see ------------------------------------------------------------------------------------------------------------------ */

typedef struct {
    const char *at[MOST_LETTERS];
    size_t length[MOST_LETTERS];
    int n;
} letters;

static letters letters_of(const char *shape)
{
    letters l = {.n = 0};
    while (l.n < MOST_LETTERS && (l.at[l.n] = lnt_recur_next_letter(&shape, &l.length[l.n]))) l.n++;
    return l;
}

static bool same_letter(const letters *a, int i, const letters *b, int j)
{
    return i < a->n && j < b->n && a->length[i] == b->length[j] && !memcmp(a->at[i], b->at[j], a->length[i]);
}

/* A matrix for each head: "N H rows columns", of the operator's own sizes. */
static bool is_matrix(const lnt_recur_op *op, const letters *l)
{
    for (int i = 1; i < l->n; i++)
        if (!lnt_recur_size_find(op, l->at[i], l->length[i])) return false;
    return l->n == 4 && l->at[1][0] == 'H';
}

static int input_place(const lnt_node *n, const lnt_recur_attr *x, const char *name)
{
    const int row = lnt_recur_tensor_find(x->op, name);
    for (int i = 0; i < n->n_in; i++)
        if (x->input[i] == row) return i;
    return -1;
}

/* The decays of a node: none, a fixed one, or a value; of several there is no one memory. */
static void find_decay(const lnt_node *n, const lnt_recur_attr *x, lnt_view_part *part)
{
    int found = 0;
    part->channels = 1;
    for (int i = 0; i < n->n_in; i++) {
        if (x->op->tensors[x->input[i]].values != LNT_VALUES_DECAY) continue;
        part->decay = n->in[i];
        part->decays = true;
        found++;
    }
    if (x->constant >= 0 && x->op->tensors[x->constant].values == LNT_VALUES_DECAY) part->fixed = x->constant_value, part->decays = true, found++;
    if (!part->fixed && found) part->channels = lnt_cols(n->program, part->decay) / part->heads;
    if (!x->op->weights) part->no_memory = "what is kept is no sum of what was written, weighed by decays";
    else if (found > 1) part->no_memory = "it decays by rows and by columns at once";
}

/* The recall is S^T k where that is how the operator reads, with one key and one value a token. */
static void find_keys(const lnt_node *n, const lnt_recur_attr *x, const letters *state, bool alone, lnt_view_part *part)
{
    const int k = input_place(n, x, "k"), v = input_place(n, x, "v");
    if (!x->op->weights || !alone || k < 0 || v < 0) {
        part->no_recall = "its reading is more than the matrix times a key";
        return;
    }
    const letters key = letters_of(x->op->tensors[x->input[k]].shape), value = letters_of(x->op->tensors[x->input[v]].shape);
    const bool fits = key.n == 3 && value.n == 3 && key.length[0] == 1 && value.length[0] == 1 && same_letter(&key, 2, state, 2) &&
                      same_letter(&value, 1, state, 1) && same_letter(&value, 2, state, 3);
    if (!fits) part->no_recall = "a token has several keys, or none";
    part->key = n->in[k];
    part->value = n->in[v];
    part->key_heads = fits ? lnt_cols(n->program, part->key) / part->rows : 1;
}

/* The tensor of the session's states that is row `name` of node `node`'s description, with nothing beside what the description says; -1: none. */
static int find_tensor(const linnet_session *s, int node, const char *name, int states)
{
    int found = -1, count = 0;
    for (int i = 0; i < s->n_tensors; i++) {
        if (s->tensors[i].node != node) continue;
        count++;
        const lnt_state_tensor t = lnt_session_tensor_of(s, i, 0);
        if (!strcmp(t.name, name)) found = i;
    }
    return count == states ? found : -1;
}

static void describe(const linnet_session *s, int node, lnt_view_part *part)
{
    const lnt_node *n = lnt_node_at(s->m->p, node);
    const lnt_recur_attr *x = n->attr;
    letters shape = {.n = 0};
    int states = 0, matrices = 0, first = -1;
    for (int i = 0; x->op->tensors[i].name; i++) {
        const lnt_recur_tensor *t = &x->op->tensors[i];
        if (t->role != LNT_T_STATE || !lnt_recur_has(&x->call, i)) continue;
        const letters l = letters_of(t->shape);
        states++;
        if (!is_matrix(x->op, &l)) continue;
        if (!matrices++) first = i, shape = l;
    }
    if (!states) part->nothing = "no state of this kind: a cache of keys and values";
    else if (!matrices) part->nothing = "no state of this kind: numbers for each channel";
    if (part->nothing) return;
    part->tensor = find_tensor(s, node, x->op->tensors[first].carried, states);
    if (part->tensor < 0) part->nothing = "no state of this kind: a matrix, and beside it tokens that are not in it yet";
    if (part->nothing) return;
    const lnt_state_tensor t = lnt_session_tensor_of(s, part->tensor, 0);
    part->heads = t.dim[0];
    part->rows = t.dim[1];
    part->columns = t.dim[2];
    find_decay(n, x, part);
    find_keys(n, x, &shape, matrices == 1, part);
}

/* A node that carries a recurrence's state, by its description. */
static bool is_part(const lnt_node *n)
{
    const lnt_recur_op *op = n->op->state_size ? lnt_recur_find(n->op->name) : NULL;
    return op && ((const lnt_recur_attr *)n->attr)->op == op;
}

static char *name_of(lnt_views *w, const linnet_session *s, int node)
{
    char text[768];
    lnt_state_tensor t[LNT_STATE_TENSORS];
    lnt_state_tensors(s->slots, node, 0, t);
    lnt_state_name(s->m->p, node, &t[0], text, sizeof text);
    char *end = strrchr(text, '.');
    if (end) *end = 0;
    return lnt_arena_strdup(&w->arena, text);
}

linnet_status lnt_views_open(lnt_ctx *c, linnet_session *s, lnt_views *w)
{
    const lnt_program *p = s->m->p;
    const size_t nodes = (size_t)lnt_node_count(p);
    *w = (lnt_views){.session = s};
    w->parts = lnt_arena_alloc(&w->arena, lnt_bytes(nodes, sizeof *w->parts));
    w->looked = lnt_arena_alloc(&w->arena, lnt_bytes(lnt_bytes(nodes, 3), sizeof *w->looked));
    if (!w->parts || !w->looked) return lnt_fail_memory(c, lnt_bytes(nodes, sizeof *w->parts));
    for (int i = 0; i < (int)nodes; i++) {
        const lnt_node *n = lnt_node_at(p, i);
        if (!is_part(n)) continue;
        lnt_view_part *part = &w->parts[w->n_parts++];
        *part = (lnt_view_part){.op = n->op->name, .layer = n->block, .name = name_of(w, s, i)};
        if (!part->name) return lnt_fail_memory(c, 1);
        describe(s, i, part);
        if (part->nothing) continue;
        part->first = w->heads;
        part->first_channel = w->channels;
        w->heads += part->heads;
        w->channels += part->heads * part->channels;
        if (part->decay.id && !part->no_memory) w->looked[w->n_looked++] = part->decay;
        if (part->no_recall) continue;
        w->looked[w->n_looked++] = part->key;
        w->looked[w->n_looked++] = part->value;
        w->value_bytes += part->heads * part->columns * (int64_t)sizeof(float);
    }
    return LINNET_OK;
}

void lnt_views_close(lnt_views *w)
{
    lnt_arena_free(&w->arena);
    *w = (lnt_views){0};
}

/* ---- one text --------------------------------------------------------------------------------------------------------------------------------- */

static linnet_status room_for_recall(lnt_ctx *c, lnt_view *view)
{
    const lnt_views *w = view->w;
    size_t keys = 1;
    int64_t values;
    if (!lnt_mul(view->tokens, w->value_bytes, &values) || values > MOST_VALUES) {
        lnt_fail(c, LINNET_EINVAL, "a recall over %lld tokens of %lld bytes of values each, expected at most %lld bytes together",
                 (long long)view->tokens, (long long)w->value_bytes, (long long)MOST_VALUES);
        return lnt_hint(c, "Ask it of a shorter text.");
    }
    for (int i = 0; i < w->n_parts; i++)
        if (!w->parts[i].nothing && !w->parts[i].no_recall)
            keys = lnt_bytes_plus(keys, lnt_bytes((size_t)w->parts[i].key_heads, (size_t)w->parts[i].rows));
    view->keys = lnt_calloc(lnt_bytes(keys, sizeof *view->keys));
    view->values = lnt_calloc(lnt_bytes_plus((size_t)values, sizeof *view->values));
    view->fresh.cosine = lnt_calloc(lnt_bytes((size_t)w->heads, sizeof *view->fresh.cosine));
    view->fresh.nearness = lnt_calloc(lnt_bytes(lnt_bytes((size_t)w->heads, LNT_RECALLED), sizeof *view->fresh.nearness));
    view->fresh.nearest = lnt_calloc(lnt_bytes(lnt_bytes((size_t)w->heads, LNT_RECALLED), sizeof *view->fresh.nearest));
    if (!view->keys || !view->values || !view->fresh.cosine || !view->fresh.nearness || !view->fresh.nearest)
        return lnt_fail_memory(c, (size_t)values);
    return LINNET_OK;
}

linnet_status lnt_view_create(lnt_ctx *c, const lnt_views *w, int64_t recall, int64_t n, lnt_view **out)
{
    lnt_view *view = *out = lnt_calloc(sizeof *view);
    size_t matrix = 0;
    if (!view) return lnt_fail_memory(c, sizeof *view);
    view->w = w;
    view->recall = recall;
    view->tokens = n;
    view->fresh.heads = w->heads;
    for (int i = 0; i < w->n_parts; i++) {
        const lnt_view_part *p = &w->parts[i];
        const size_t floats = p->nothing ? 0 : lnt_bytes(lnt_bytes((size_t)p->heads, (size_t)p->rows), (size_t)p->columns);
        matrix = floats > matrix ? floats : matrix;
    }
    view->sum = lnt_calloc(lnt_bytes((size_t)w->channels, sizeof *view->sum));
    view->matrix = lnt_alloc(lnt_bytes(matrix, sizeof *view->matrix));
    linnet_status s = view->sum && view->matrix ? LINNET_OK : lnt_fail_memory(c, lnt_bytes(matrix, sizeof *view->matrix));
    if (s == LINNET_OK && recall >= 0) s = room_for_recall(c, view);
    if (s == LINNET_OK) return s;
    lnt_view_destroy(view);
    *out = NULL;
    return s;
}

static void free_viewed(lnt_viewed *v)
{
    void *const all[] = {v->ids, v->norm, v->memory, v->cosine, v->nearest, v->nearness};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) lnt_free(all[i]);
}

void lnt_view_destroy(lnt_view *view)
{
    if (!view) return;
    free_viewed(&view->fresh);
    lnt_free(view->sum);
    lnt_free(view->keys);
    lnt_free(view->values);
    lnt_free(view->raw);
    lnt_free(view->matrix);
    lnt_free(view);
}

/* Room for n tokens more. */
static bool grow(lnt_viewed *v, int64_t n)
{
    if (v->n + n <= v->room) return true;
    const int64_t room = 2 * v->room + n + 16;
    const size_t row = lnt_bytes((size_t)v->heads, sizeof(float)), before = (size_t)v->room, after = (size_t)room;
    int32_t *ids = lnt_realloc(v->ids, lnt_bytes(before, sizeof *ids), lnt_bytes(after, sizeof *ids));
    if (ids) v->ids = ids;
    float *norm = lnt_realloc(v->norm, lnt_bytes(before, row), lnt_bytes_plus(lnt_bytes(after, row), 1));
    if (norm) v->norm = norm;
    float *memory = lnt_realloc(v->memory, lnt_bytes(before, row), lnt_bytes_plus(lnt_bytes(after, row), 1));
    if (memory) v->memory = memory;
    if (!ids || !norm || !memory) return false;
    v->room = room;
    return true;
}

/* Rows row .. row+n-1 of a value, dense, in view->raw; `cols` of them each. */
static linnet_status take_rows(lnt_ctx *c, lnt_view *view, const lnt_tensor *t, int64_t row, int64_t n)
{
    const size_t size = lnt_dtype_size(t->dtype), dense = lnt_bytes((size_t)t->cols, size), bytes = lnt_bytes((size_t)n, dense);
    if (bytes > view->room_raw) {
        char *raw = lnt_realloc(view->raw, view->room_raw, bytes);
        if (!raw) return lnt_fail_memory(c, bytes);
        view->raw = raw;
        view->room_raw = bytes;
    }
    const char *from = (const char *)t->data + (size_t)(row * t->ld) * size;
    if (t->ld == t->cols) lnt_to_host(c, view->raw, from, bytes);
    else
        for (int64_t i = 0; i < n; i++) lnt_to_host(c, view->raw + (size_t)i * dense, from + (size_t)(i * t->ld) * size, dense);
    return lnt_device_check(c);
}

static linnet_status see_decay(lnt_ctx *c, lnt_view *view, const lnt_view_part *p, const lnt_plan *plan, int64_t row, int64_t n, float *memory)
{
    lnt_tensor t = {0};
    double *sum = view->sum + p->first_channel;
    if (p->decay.id && !p->no_memory) {
        t = lnt_plan_output(plan, p->decay);
        LNT_TRY(take_rows(c, view, &t, row, n));
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t h = 0; h < p->heads; h++) {
            double mean = 0;
            for (int64_t k = h * p->channels; k < (h + 1) * p->channels; k++) {
                const double log = p->fixed ? p->fixed[h] : t.data ? lnt_load_element(view->raw, t.dtype, i * t.cols + k) : 0;
                sum[k] = 1 + exp(log) * sum[k];
                mean += sum[k] / (double)p->channels;
            }
            memory[i * view->w->heads + p->first + h] = p->no_memory ? NAN : (float)mean;
        }
    return LINNET_OK;
}

static linnet_status see_keys(lnt_ctx *c, lnt_view *view, const lnt_view_part *p, const lnt_plan *plan, int64_t row, int64_t n, float *keys,
                              float *values)
{
    const int64_t value = p->heads * p->columns, key = p->key_heads * p->rows, rest = view->tokens - view->seen, kept = n < rest ? n : rest;
    const lnt_tensor v = lnt_plan_output(plan, p->value), k = lnt_plan_output(plan, p->key);
    if (kept <= 0) return LINNET_OK; /* it is asked behind the prompt */
    LNT_TRY(take_rows(c, view, &v, row, kept));
    for (int64_t i = 0; i < kept * value; i++) values[view->seen * value + i] = (float)lnt_load_element(view->raw, v.dtype, i);
    if (view->recall < view->seen || view->recall >= view->seen + kept) return LINNET_OK;
    LNT_TRY(take_rows(c, view, &k, row + view->recall - view->seen, 1));
    for (int64_t i = 0; i < key; i++) keys[i] = (float)lnt_load_element(view->raw, k.dtype, i);
    return LINNET_OK;
}

linnet_status lnt_view_see(lnt_ctx *c, lnt_view *view, const lnt_plan *plan, const int32_t *ids, int64_t row, int64_t n)
{
    lnt_viewed *v = &view->fresh;
    float *keys = view->keys, *values = view->values;
    if (!grow(v, n)) return lnt_fail_memory(c, lnt_bytes((size_t)n, (size_t)v->heads));
    memcpy(v->ids + v->n, ids, (size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n * v->heads; i++) v->norm[v->n * v->heads + i] = NAN;
    for (int i = 0; i < view->w->n_parts; i++) {
        const lnt_view_part *p = &view->w->parts[i];
        if (p->nothing) continue;
        LNT_TRY(see_decay(c, view, p, plan, row, n, v->memory + v->n * v->heads));
        if (view->recall < 0 || p->no_recall) continue;
        LNT_TRY(see_keys(c, view, p, plan, row, n, keys, values));
        keys += p->key_heads * p->rows;
        values += view->tokens * p->heads * p->columns;
    }
    v->n += n;
    view->seen += n;
    return LINNET_OK;
}

/* ---- behind a run ------------------------------------------------------------------------------------------------------------------------------ */

static double cosine(const double *a, const float *b, int64_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < n; i++) ab += a[i] * (double)b[i], aa += a[i] * a[i], bb += (double)b[i] * (double)b[i];
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

/* A head's matrix says to the key r = S^T k; which of the values v [tokens, stride] is that? */
static void recall_head(lnt_view *view, const lnt_view_part *p, const float *S, const float *k, const float *v, int64_t head, double *r)
{
    lnt_viewed *to = &view->fresh;
    const int64_t stride = p->heads * p->columns;
    int32_t *nearest = to->nearest + head * LNT_RECALLED;
    float *nearness = to->nearness + head * LNT_RECALLED;
    int found = 0;
    memset(r, 0, (size_t)p->columns * sizeof *r);
    for (int64_t a = 0; a < p->rows; a++)
        for (int64_t b = 0; b < p->columns; b++) r[b] += (double)k[a] * (double)S[a * p->columns + b];
    to->cosine[head] = (float)cosine(r, v + view->recall * stride, p->columns);
    for (int64_t t = 0; t < view->tokens; t++) {
        const float near = (float)cosine(r, v + t * stride, p->columns);
        int at = found < LNT_RECALLED ? found++ : LNT_RECALLED;
        for (; at > 0 && near > nearness[at - 1]; at--)
            if (at < LNT_RECALLED) nearness[at] = nearness[at - 1], nearest[at] = nearest[at - 1];
        if (at < LNT_RECALLED) nearness[at] = near, nearest[at] = (int32_t)t;
    }
    for (; found < LNT_RECALLED; found++) nearest[found] = -1;
}

static linnet_status recall_part(lnt_ctx *c, lnt_view *view, const lnt_view_part *p, const float *keys, const float *values)
{
    double *r = lnt_alloc(lnt_bytes((size_t)p->columns, sizeof *r));
    if (!r) return lnt_fail_memory(c, lnt_bytes((size_t)p->columns, sizeof *r));
    for (int64_t h = 0; h < p->heads; h++)
        recall_head(view, p, view->matrix + h * p->rows * p->columns, keys + h * p->key_heads / p->heads * p->rows, values + h * p->columns,
                    p->first + h, r);
    lnt_free(r);
    return LINNET_OK;
}

linnet_status lnt_view_norms(lnt_ctx *c, lnt_view *view, const linnet_state *state)
{
    lnt_viewed *v = &view->fresh;
    const float *keys = view->keys, *values = view->values;
    float *norm = v->norm + (v->n - 1) * v->heads;
    for (int i = 0; i < view->w->n_parts; i++) {
        const lnt_view_part *p = &view->w->parts[i];
        const int64_t count = p->nothing ? 0 : p->rows * p->columns;
        if (p->nothing) continue;
        LNT_TRY(linnet_state_tensor_read(state, p->tensor, view->matrix, lnt_bytes(lnt_bytes((size_t)p->heads, (size_t)count), sizeof(float))));
        for (int64_t h = 0; h < p->heads; h++) {
            double sum = 0;
            for (int64_t k = 0; k < count; k++) sum += (double)view->matrix[h * count + k] * (double)view->matrix[h * count + k];
            norm[p->first + h] = (float)sqrt(sum);
        }
        if (view->recall < 0 || p->no_recall) continue;
        if (view->seen == view->tokens) LNT_TRY(recall_part(c, view, p, keys, values));
        keys += p->key_heads * p->rows;
        values += view->tokens * p->heads * p->columns;
    }
    return LINNET_OK;
}

bool lnt_view_tell(lnt_view *view, lnt_viewed *to)
{
    lnt_viewed *v = &view->fresh;
    const size_t rows = (size_t)v->n * (size_t)v->heads;
    to->heads = v->heads;
    if (!grow(to, v->n)) return false;
    memcpy(to->ids + to->n, v->ids, (size_t)v->n * sizeof *v->ids);
    memcpy(to->norm + to->n * v->heads, v->norm, rows * sizeof *v->norm);
    memcpy(to->memory + to->n * v->heads, v->memory, rows * sizeof *v->memory);
    to->n += v->n;
    v->n = 0;
    if (view->recall < 0 || view->seen != view->tokens || to->cosine) return true;
    to->cosine = v->cosine;
    to->nearest = v->nearest;
    to->nearness = v->nearness;
    v->cosine = v->nearness = NULL;
    v->nearest = NULL;
    view->recall = -1; /* it was asked once */
    return true;
}

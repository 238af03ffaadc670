/* Building programs: values, nodes, the parameter table. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "program/program_internal.h"

enum { ELEMENT_ALIGN = 64 }; /* parameters start on 64-element boundaries: 256 bytes in float32, 128 in bf16 */

linnet_status lnt_program_create(lnt_ctx *c, lnt_program **out)
{
    lnt_program *p = lnt_calloc(sizeof *p);
    *out = p;
    if (!p) return lnt_fail_memory(c, sizeof *p);
    p->c = c;
    p->block = -1;
    p->shown_scopes = LNT_ALL_SCOPES;
    p->init_std = 0.02;
    p->cap_values = 64;
    p->values = lnt_calloc(lnt_bytes((size_t)p->cap_values, sizeof *p->values));
    if (!p->values) {
        lnt_free(p);
        *out = NULL;
        return lnt_fail_memory(c, 64 * sizeof *p->values);
    }
    p->n_values = 1;
    p->values[0].v = (lnt_value){.producer = -1, .param = -1};
    return LINNET_OK;
}

void lnt_program_destroy(lnt_program *p)
{
    if (!p) return;
    lnt_free(p->values);
    lnt_free(p->nodes);
    lnt_free(p->params);
    lnt_arena_free(&p->arena);
    lnt_free(p);
}

linnet_status lnt_program_finish(lnt_program *p)
{
    if (!p->failed) return LINNET_OK;
    return p->status == LINNET_ENOMEM ? lnt_fail_memory(p->c, 0) : lnt_fail(p->c, p->status, "%s", p->mistake);
}

bool lnt_program_failed(const lnt_program *p) { return p->failed; }

lnt_buf lnt_program_fail(lnt_program *p, const char *format, ...)
{
    if (!p->failed) {
        int n = p->scope[0] ? snprintf(p->mistake, sizeof p->mistake, "%s: ", p->scope) : 0;
        va_list ap;
        va_start(ap, format);
        lnt_format_list(p->mistake + n, sizeof p->mistake - (size_t)n, format, ap);
        va_end(ap);
        p->failed = true;
        p->status = LINNET_EINVAL;
    }
    return LNT_NO_BUF;
}

static void fail_memory(lnt_program *p)
{
    if (!p->failed) {
        p->failed = true;
        p->status = LINNET_ENOMEM;
    }
}

void *lnt_program_alloc(lnt_program *p, size_t bytes)
{
    void *r = lnt_arena_alloc(&p->arena, bytes);
    if (!r) fail_memory(p);
    return r;
}

/* Room for one more element in a growing table; false (and a remembered mistake) without memory. */
static bool reserve(lnt_program *p, void **table, int n, int *capacity, size_t element)
{
    if (n < *capacity) return true;
    int more = *capacity ? *capacity * 2 : 64;
    void *t = lnt_realloc(*table, lnt_bytes((size_t)n, element), lnt_bytes((size_t)more, element));
    if (!t) {
        fail_memory(p);
        return false;
    }
    *table = t;
    *capacity = more;
    return true;
}

/* ---- names ---- */

void lnt_push_scope(lnt_program *p, const char *format, ...)
{
    size_t n = strlen(p->scope);
    if (p->n_scopes == (int)(sizeof p->scope_length / sizeof p->scope_length[0]) || n + 2 >= sizeof p->scope) {
        lnt_program_fail(p, "names are nested too deep");
        return;
    }
    p->scope_length[p->n_scopes++] = n;
    if (n) p->scope[n++] = '.', p->scope[n] = 0;
    va_list ap;
    va_start(ap, format);
    lnt_format_list(p->scope + n, sizeof p->scope - n, format, ap);
    va_end(ap);
}

void lnt_pop_scope(lnt_program *p)
{
    if (p->n_scopes) p->scope[p->scope_length[--p->n_scopes]] = 0;
}

int lnt_set_scopes(lnt_program *p, int count)
{
    const int before = p->shown_scopes;
    p->shown_scopes = count;
    return before;
}

/* The length of the scope that names are under. */
static int shown_length(const lnt_program *p)
{
    return p->shown_scopes < p->n_scopes ? (int)p->scope_length[p->shown_scopes] : (int)strlen(p->scope);
}

void lnt_set_block(lnt_program *p, int block) { p->block = block; }
int lnt_current_block(const lnt_program *p) { return p->block; }
double lnt_set_init_std(lnt_program *p, double std)
{
    double before = p->init_std;
    p->init_std = std;
    return before;
}
double lnt_init_std(const lnt_program *p, int64_t fan_in) { return p->init_std > 0 ? p->init_std : 1.0 / sqrt((double)fan_in); }

/* ---- values ---- */

static lnt_buf add_value(lnt_program *p, lnt_value v, int32_t root)
{
    if (p->failed || !reserve(p, (void **)&p->values, p->n_values, &p->cap_values, sizeof *p->values)) return LNT_NO_BUF;
    int32_t id = p->n_values++;
    p->values[id] = (lnt_value_entry){v, root ? root : id};
    return (lnt_buf){id};
}

/* A value of its own memory, with one row a token; neither external nor a parameter. */
static lnt_value plain_value(const char *name, int64_t cols, int32_t heads, int producer)
{
    return (lnt_value){.name = name, .cols = cols, .heads = heads, .each = 1, .ld = cols, .producer = producer, .param = -1};
}

lnt_buf lnt_external(lnt_program *p, const char *name)
{
    char *copy = lnt_arena_strdup(&p->arena, name);
    if (!copy) return fail_memory(p), LNT_NO_BUF;
    lnt_value v = plain_value(copy, 1, 1, -1);
    v.external = true;
    return add_value(p, v, 0);
}

void lnt_keep(lnt_program *p, const char *name, lnt_buf value)
{
    if (p->failed || !value.id) return;
    if (lnt_kept(p, name).id || p->n_kept == (int)(sizeof p->kept / sizeof *p->kept)) {
        lnt_program_fail(p, "a value is kept as %s, and there is %s", name, lnt_kept(p, name).id ? "one" : "no room for it");
        return;
    }
    const char *copy = lnt_arena_strdup(&p->arena, name);
    if (!copy) {
        fail_memory(p);
        return;
    }
    p->kept[p->n_kept].name = copy;
    p->kept[p->n_kept++].value = value;
}

lnt_buf lnt_kept(const lnt_program *p, const char *name)
{
    for (int i = 0; i < p->n_kept; i++)
        if (!strcmp(p->kept[i].name, name)) return p->kept[i].value;
    return LNT_NO_BUF;
}

lnt_buf lnt_with_heads(lnt_program *p, lnt_buf x, int32_t heads)
{
    if (p->failed) return LNT_NO_BUF;
    lnt_value v = p->values[x.id].v;
    if (heads < 1 || v.cols % heads) return lnt_program_fail(p, "%lld columns cannot be split into %d heads", (long long)v.cols, heads);
    v.heads = heads;
    return add_value(p, v, p->values[x.id].root);
}

lnt_buf lnt_split_rows(lnt_program *p, lnt_buf x, int32_t n)
{
    if (p->failed) return LNT_NO_BUF;
    lnt_value v = p->values[x.id].v;
    if (n < 1 || v.cols % n || v.ld != v.cols || (int64_t)v.each * n > INT32_MAX)
        return lnt_program_fail(p, "%lld columns%s cannot be split into %d rows", (long long)v.cols, v.ld != v.cols ? " of a slice" : "", n);
    v.cols /= n, v.ld = v.cols, v.each *= n, v.rows *= n;
    v.heads = v.heads % n ? 1 : v.heads / n;
    return add_value(p, v, p->values[x.id].root);
}

lnt_buf lnt_slice(lnt_program *p, lnt_buf x, int64_t first, int64_t cols, int32_t heads)
{
    if (p->failed) return LNT_NO_BUF;
    lnt_value v = p->values[x.id].v;
    if (first < 0 || cols < 1 || first > v.cols || cols > v.cols - first)
        return lnt_program_fail(p, "columns %lld .. %lld of %lld", (long long)first, (long long)(first + cols - 1), (long long)v.cols);
    if (v.each > 1) return lnt_program_fail(p, "a slice of %d rows a token: take it before they are split", v.each);
    if (heads < 1 || cols % heads) return lnt_program_fail(p, "%lld columns cannot be split into %d heads", (long long)cols, heads);
    v.first += first, v.cols = cols, v.heads = heads;
    return add_value(p, v, p->values[x.id].root);
}

/* ---- parameters ---- */

static const lnt_param *same_name(const lnt_program *p, const char *name)
{
    for (int i = 0; i < p->n_params; i++)
        if (!strcmp(p->params[i].name, name)) return &p->params[i];
    return NULL;
}

static int64_t padded(int64_t count) { return (count + ELEMENT_ALIGN - 1) / ELEMENT_ALIGN * ELEMENT_ALIGN; }

/* Offsets of all parameters: what products do not read, what both read, what products alone read; each in the order made. */
static void place_params(lnt_program *p)
{
    int64_t at = 0, row = 0;
    for (int kind = 0; kind < 3; kind++) {
        if (kind == 1) p->work_begin = at;
        if (kind == 2) p->plain_end = at;
        for (int i = 0; i < p->n_params; i++) {
            lnt_param *q = &p->params[i];
            if ((q->product ? q->plain ? 1 : 2 : 0) != kind) continue;
            q->offset = at;
            q->row = row;
            at += padded(q->count);
            if (kind == 2) row += q->count / q->dim[q->ndim - 1];
        }
    }
    p->elements = at;
    p->product_rows = row;
}

int lnt_add_param(lnt_program *p, const char *name, int ndim, const int64_t *dim, lnt_init init, bool decay, bool product)
{
    if (p->failed) return -1;
    const int scope = shown_length(p);
    char *full = scope ? lnt_arena_printf(&p->arena, "%.*s.%s", scope, p->scope, name) : lnt_arena_strdup(&p->arena, name);
    if (!full) return fail_memory(p), -1;
    lnt_param q = {.name = full, .ndim = ndim, .count = 1, .init = init, .decay = decay, .product = product, .plain = !product};
    for (int i = 0; i < ndim; i++) {
        q.dim[i] = dim[i];
        if (dim[i] < 1 || !lnt_mul(q.count, dim[i], &q.count))
            return lnt_program_fail(p, "parameter %s: dimension %d is %lld", full, i, (long long)dim[i]), -1;
    }
    const lnt_param *old = same_name(p, full);
    if (old) {
        if (old->ndim != ndim || memcmp(old->dim, q.dim, sizeof q.dim))
            return lnt_program_fail(p, "parameter %s is made twice with different shapes", full), -1;
        const int at = (int)(old - p->params);
        p->params[at].product |= q.product;
        p->params[at].plain |= q.plain;
        place_params(p);
        return at;
    }
    if (q.count > INT64_MAX / 16 - ELEMENT_ALIGN || p->elements > INT64_MAX / 16 - padded(q.count))
        return lnt_program_fail(p, "parameter %s makes the model too large", full), -1;
    if (!reserve(p, (void **)&p->params, p->n_params, &p->cap_params, sizeof *p->params)) return -1;
    p->params[p->n_params++] = q;
    place_params(p);
    return p->n_params - 1;
}

lnt_buf lnt_param_value(lnt_program *p, int param, int64_t rows, int32_t heads)
{
    if (p->failed || param < 0) return LNT_NO_BUF;
    lnt_param *q = &p->params[param];
    if (rows < 1 || q->count % rows || heads < 1 || q->count / rows % heads)
        return lnt_program_fail(p, "parameter %s of %lld elements cannot be split into %lld rows of %d heads", q->name, (long long)q->count,
                                (long long)rows, heads);
    if (!q->plain) {
        q->plain = true;
        place_params(p);
    }
    lnt_value v = plain_value(q->name, q->count / rows, heads, -1);
    v.rows = rows, v.f32 = true, v.param = param;
    return add_value(p, v, 0);
}

/* ---- nodes ---- */

/* What a node's outputs have rows like: its first input that is there; without any, one row a token. */
static lnt_value rows_like(const lnt_program *p, int n_in, const lnt_buf *in)
{
    for (int i = 0; i < n_in; i++)
        if (in[i].id) return p->values[in[i].id].v;
    return (lnt_value){.each = 1};
}

lnt_node *lnt_add_node(lnt_program *p, const lnt_op *op, const void *attr, int n_in, const lnt_buf *in, int n_param, const int *param, int n_out,
                       const lnt_out_spec *out)
{
    if (p->failed) return NULL;
    for (int i = 0; i < n_param; i++)
        if (param[i] < 0) return NULL;
    for (int i = 0; i < n_out; i++)
        if (out[i].cols < 1 || out[i].heads < 1 || out[i].cols % out[i].heads) {
            lnt_program_fail(p, "%s: %lld columns cannot be split into %d heads", op->name, (long long)out[i].cols, out[i].heads);
            return NULL;
        }
    for (int i = 0; i < n_in; i++)
        if (lnt_is_slice(p, in[i]) && !(op->strided >> i & 1)) {
            lnt_program_fail(p, "%s: input %d is a slice of columns, which it does not read", op->name, i);
            return NULL;
        }
    lnt_node *n = lnt_program_alloc(p, sizeof *n);
    if (!n || !reserve(p, (void **)&p->nodes, p->n_nodes, &p->cap_nodes, sizeof *p->nodes)) return NULL;
    *n = (lnt_node){.op = op, .attr = attr, .n_in = n_in, .n_out = n_out, .n_param = n_param, .block = p->block, .program = p};
    if (n_in) memcpy(n->in, in, (size_t)n_in * sizeof *in);
    if (n_param) memcpy(n->param, param, (size_t)n_param * sizeof *param);
    const lnt_value like = rows_like(p, n_in, in);
    if (op->state_size && !(n->scope = lnt_arena_strdup(&p->arena, p->scope))) return fail_memory(p), NULL;
    for (int i = 0; i < n_out; i++) {
        lnt_value v = plain_value(op->name, out[i].cols, out[i].heads, p->n_nodes);
        v.f32 = out[i].f32, v.rows = like.rows, v.each = like.each;
        n->out[i] = add_value(p, v, 0);
    }
    if (p->failed) return NULL;
    p->nodes[p->n_nodes++] = n;
    return n;
}

lnt_buf lnt_add_source(lnt_program *p, const lnt_op *op, const void *attr, int64_t rows, lnt_out_spec out)
{
    if (!p->failed && rows < 1) return lnt_program_fail(p, "%s: %lld rows", op->name, (long long)rows);
    const lnt_node *n = lnt_add_node(p, op, attr, 0, NULL, 0, NULL, 1, &out);
    if (!n) return LNT_NO_BUF;
    p->values[n->out[0].id].v.rows = rows;
    return n->out[0];
}

/* ---- reading ---- */

const lnt_value *lnt_program_value(const lnt_program *p, lnt_buf b) { return &p->values[b.id].v; }
bool lnt_shares_data(const lnt_program *p, lnt_buf a, lnt_buf b) { return p->values[a.id].root == p->values[b.id].root; }
bool lnt_same_data(const lnt_program *p, lnt_buf a, lnt_buf b)
{
    const lnt_value *x = &p->values[a.id].v, *y = &p->values[b.id].v;
    return lnt_shares_data(p, a, b) && lnt_same_rows(p, a, b) && x->first == y->first && x->cols == y->cols;
}
bool lnt_same_rows(const lnt_program *p, lnt_buf a, lnt_buf b)
{
    const lnt_value *x = &p->values[a.id].v, *y = &p->values[b.id].v;
    return x->rows == y->rows && (x->rows || x->each == y->each);
}
bool lnt_is_slice(const lnt_program *p, lnt_buf b) { return p->values[b.id].v.ld != p->values[b.id].v.cols; }
int64_t lnt_rows(const lnt_program *p, lnt_buf b, int64_t tokens)
{
    const lnt_value *v = &p->values[b.id].v;
    return v->rows ? v->rows : tokens * v->each;
}
int64_t lnt_cols(const lnt_program *p, lnt_buf b) { return p->values[b.id].v.cols; }
int32_t lnt_heads(const lnt_program *p, lnt_buf b) { return p->values[b.id].v.heads; }
int lnt_param_count(const lnt_program *p) { return p->n_params; }
const lnt_param *lnt_param_at(const lnt_program *p, int i) { return &p->params[i]; }
const lnt_param *lnt_param_find(const lnt_program *p, const char *name) { return same_name(p, name); }
int64_t lnt_param_elements(const lnt_program *p) { return p->elements; }
int64_t lnt_param_work_begin(const lnt_program *p) { return p->work_begin; }
int64_t lnt_param_plain_end(const lnt_program *p) { return p->plain_end; }
int64_t lnt_param_rows(const lnt_program *p) { return p->product_rows; }
bool lnt_program_draws(const lnt_program *p)
{
    for (int i = 0; i < p->n_nodes; i++)
        if (p->nodes[i]->op->draws && p->nodes[i]->op->draws(p->nodes[i])) return true;
    return false;
}
const lnt_pair *lnt_pair_of(const lnt_op *first, const lnt_op *second)
{
    const lnt_pair *pair = second->pair;
    while (pair && pair->first != first) pair = pair->next;
    return pair;
}
int lnt_node_count(const lnt_program *p) { return p->n_nodes; }
const lnt_node *lnt_node_at(const lnt_program *p, int i) { return p->nodes[i]; }

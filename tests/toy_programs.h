/* Programs of toy operators on float32 rows, for the tests of program/: each operator is there for one way in which a plan may go wrong. */
#ifndef TOY_PROGRAMS_H
#define TOY_PROGRAMS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "program/program_internal.h"

/* ---- toy operators on float32 rows ---- */

static void put(float *d, float v, bool add) { *d = add ? *d + v : v; }

static linnet_status mul_forward(const lnt_call *k)
{
    const float *a = k->in[0].data, *b = k->in[1].data;
    float *y = k->out[0].data;
    for (int64_t i = 0; i < k->out[0].rows * k->out[0].cols; i++) y[i] = a[i] * b[i];
    return LINNET_OK;
}
static linnet_status mul_backward(const lnt_call *k)
{
    const float *a = k->in[0].data, *b = k->in[1].data, *dy = k->d_out[0].data;
    float *da = k->d_in[0].data, *db = k->d_in[1].data;
    for (int64_t i = 0; i < k->out[0].rows * k->out[0].cols; i++) {
        if (da) put(&da[i], dy[i] * b[i], k->accumulate[0]);
        if (db) put(&db[i], dy[i] * a[i], k->accumulate[1]);
    }
    return LINNET_OK;
}
/* Not cheap: the toys' product. */
static double mul_flops(const lnt_node *n, const lnt_shape *s, bool backward)
{
    return (backward ? 2.0 : 1.0) * (double)(s->tokens * lnt_cols(n->program, n->out[0]));
}
static const lnt_op mul_op = {.name = "mul", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_IN1, .flops = mul_flops,
                              .forward = mul_forward, .backward = mul_backward};

static linnet_status add_forward(const lnt_call *k)
{
    const float *a = k->in[0].data, *b = k->in[1].data;
    float *y = k->out[0].data;
    for (int64_t i = 0; i < k->out[0].rows * k->out[0].cols; i++) y[i] = a[i] + b[i];
    return LINNET_OK;
}
static linnet_status add_backward(const lnt_call *k)
{
    const float *dy = k->d_out[0].data;
    for (int j = 0; j < 2; j++) {
        float *d = k->d_in[j].data;
        for (int64_t i = 0; d && i < k->out[0].rows * k->out[0].cols; i++) put(&d[i], dy[i], k->accumulate[j]);
    }
    return LINNET_OK;
}
static const lnt_op add_op = {.name = "add", .passes_gradient = true, .forward = add_forward, .backward = add_backward};

/* y = x * w (one weight a column), then exp: backward reads the output. */
static linnet_status scale_exp_forward(const lnt_call *k)
{
    const float *x = k->in[0].data, *w = k->param[0].master;
    float *y = k->out[0].data;
    int64_t cols = k->out[0].cols;
    for (int64_t i = 0; i < k->out[0].rows * cols; i++) y[i] = expf(x[i] * w[i % cols]);
    return LINNET_OK;
}
static linnet_status scale_exp_backward(const lnt_call *k)
{
    const float *x = k->in[0].data, *w = k->param[0].master, *y = k->out[0].data, *dy = k->d_out[0].data;
    float *dx = k->d_in[0].data, *dw = k->param[0].grad;
    int64_t cols = k->out[0].cols;
    for (int64_t i = 0; i < k->out[0].rows * cols; i++) {
        if (dx) put(&dx[i], dy[i] * y[i] * w[i % cols], k->accumulate[0]);
        dw[i % cols] += dy[i] * y[i] * x[i];
    }
    return LINNET_OK;
}

/* The sum and what follows it in one call. Outputs are spoiled before an input is read: all of them are alive at once. */
static int pairs_run;
static void spoil(const lnt_tensor *t) { for (int64_t i = 0; t->data && i < t->rows * t->cols; i++) ((float *)t->data)[i] = NAN; }
static linnet_status add_scale_forward(const lnt_call *add, const lnt_call *scale)
{
    pairs_run++;
    spoil(&add->out[0]), spoil(&scale->out[0]);
    add_forward(add);
    return scale_exp_forward(scale);
}
static linnet_status add_scale_backward(const lnt_call *add, const lnt_call *scale)
{
    pairs_run++;
    for (int j = 0; j < 2; j++)
        if (!add->accumulate[j]) spoil(&add->d_in[j]);
    scale_exp_backward(scale);
    return add_backward(add);
}
static const lnt_pair add_scale = {.first = &add_op, .forward = add_scale_forward, .backward = add_scale_backward};
static const lnt_op scale_exp_op = {.name = "scale_exp", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_OUT0, .forward = scale_exp_forward,
                                    .backward = scale_exp_backward, .pair = &add_scale};

/* ids -> rows of a table; saves the ids' sum to check that residuals survive. */
static linnet_status table_forward(const lnt_call *k)
{
    const int32_t *ids = k->in[0].data;
    float *y = k->out[0].data;
    int64_t cols = k->out[0].cols;
    for (int64_t t = 0; t < k->tokens; t++) memcpy(y + t * cols, k->param[0].master + ids[t] * cols, (size_t)cols * 4);
    return LINNET_OK;
}
static linnet_status table_backward(const lnt_call *k)
{
    const int32_t *ids = k->in[0].data;
    const float *dy = k->d_out[0].data;
    int64_t cols = k->out[0].cols;
    for (int64_t t = 0; t < k->tokens; t++)
        for (int64_t i = 0; i < cols; i++) k->param[0].grad[ids[t] * cols + i] += dy[t * cols + i];
    return LINNET_OK;
}
static const lnt_op table_op = {.name = "table", .backward_needs = LNT_NEEDS_IN0, .forward = table_forward, .backward = table_backward};

/* loss = sum over columns of tanh(x); forward leaves tanh in its saved residual when it trains. */
static int64_t tanh_save(const lnt_node *n, const lnt_shape *s) { return s->tokens * lnt_cols(n->program, n->in[0]) * 4; }
static linnet_status tanh_forward(const lnt_call *k)
{
    const float *x = k->in[0].data;
    float *y = k->out[0].data, *save = k->training ? k->save : NULL;
    for (int64_t i = 0; i < k->in[0].rows * k->in[0].cols; i++) {
        y[i] = tanhf(x[i]);
        if (save) save[i] = y[i];
    }
    return LINNET_OK;
}
static linnet_status tanh_backward(const lnt_call *k)
{
    const float *y = k->save, *dy = k->d_out[0].data;
    float *dx = k->d_in[0].data;
    for (int64_t i = 0; i < k->in[0].rows * k->in[0].cols; i++) put(&dx[i], dy[i] * (1 - y[i] * y[i]), k->accumulate[0]);
    return LINNET_OK;
}

/* A pair whose middle is nowhere but here. */
static void with_middle(const lnt_call *first, const lnt_call *second, lnt_call *a, lnt_call *b, float *middle, float *d_middle)
{
    assert_true(!first->out[0].data && !first->d_out[0].data && !second->in[0].data && !second->d_in[0].data);
    pairs_run++;
    *a = *first, *b = *second;
    a->out[0].data = b->in[0].data = middle;
    a->d_out[0].data = b->d_in[0].data = d_middle;
    b->accumulate[0] = false;
}
static linnet_status scale_tanh_forward(const lnt_call *scale, const lnt_call *tanh)
{
    lnt_call a, b;
    float middle[64];
    with_middle(scale, tanh, &a, &b, middle, NULL);
    scale_exp_forward(&a);
    return tanh_forward(&b);
}
static linnet_status scale_tanh_backward(const lnt_call *scale, const lnt_call *tanh)
{
    lnt_call a, b;
    float middle[64], d_middle[64];
    with_middle(scale, tanh, &a, &b, middle, d_middle);
    scale_exp_forward(&a);
    tanh_backward(&b);
    return scale_exp_backward(&a);
}
static const lnt_pair scale_tanh = {.first = &scale_exp_op, .inner = true, .forward = scale_tanh_forward, .backward = scale_tanh_backward};
static const lnt_op tanh_op = {.name = "tanh", .save_size = tanh_save, .forward = tanh_forward, .backward = tanh_backward, .pair = &scale_tanh};

static linnet_status sum_loss(const lnt_call *k)
{
    const float *x = k->in[0].data;
    float *loss = k->out[0].data, *dx = k->d_in[0].data;
    int64_t cols = k->in[0].cols;
    for (int64_t t = 0; t < k->tokens; t++) {
        loss[t] = 0;
        for (int64_t i = 0; i < cols; i++) {
            float v = x[t * cols + i];
            loss[t] += v * v;
            if (dx) put(&dx[t * cols + i], (float)(2 * v * k->loss_scale), k->accumulate[0]);
        }
    }
    return LINNET_OK;
}
static const lnt_op loss_op = {.name = "sum_loss", .backward_is_forward = true, .forward = sum_loss, .backward = sum_loss};

enum { COLS = 6, VOCAB = 5, TOKENS = 8, LAYERS = 3 };

static lnt_buf one(lnt_program *p, const lnt_op *op, int n_in, const lnt_buf *in, int n_param, const int *param, int64_t cols)
{
    lnt_out_spec out = {cols, 1, false};
    lnt_node *n = lnt_add_node(p, op, NULL, n_in, in, n_param, param, 1, &out);
    return n ? n->out[0] : LNT_NO_BUF;
}

typedef struct {
    lnt_program *p;
    lnt_buf ids, loss;
} toy;

/* Each layer reads its input three times (gradients must add up), once as a view; the last one's sum is of the same value twice. */
static toy make_toy(linnet_context *c)
{
    toy t;
    assert_int_equal(lnt_program_create(c, &t.p), LINNET_OK);
    lnt_program *p = t.p;
    t.ids = lnt_external(p, "ids");
    const int64_t dim[2] = {VOCAB, COLS}, width[1] = {COLS};
    int w = lnt_add_param(p, "table", 2, dim, (lnt_init){LNT_INIT_NORMAL, 0.5, 0}, true, false);
    lnt_buf x = one(p, &table_op, 1, (lnt_buf[]){t.ids}, 1, &w, COLS);
    for (int l = 0; l < LAYERS; l++) {
        lnt_set_block(p, l);
        lnt_push_scope(p, "layers.%d", l);
        int s = lnt_add_param(p, "w", 1, width, (lnt_init){LNT_INIT_NORMAL, 0.3, 0}, false, false);
        lnt_pop_scope(p);
        lnt_buf e = one(p, &scale_exp_op, 1, &x, 1, &s, COLS);
        lnt_buf h = one(p, &tanh_op, 1, (lnt_buf[]){lnt_with_heads(p, e, 2)}, 0, NULL, COLS);
        lnt_buf y = one(p, &mul_op, 2, (lnt_buf[]){h, lnt_with_heads(p, x, 3)}, 0, NULL, COLS);
        x = one(p, &add_op, 2, (lnt_buf[]){y, l == LAYERS - 1 ? y : x}, 0, NULL, COLS);
    }
    lnt_set_block(p, -1);
    t.loss = one(p, &loss_op, 1, &x, 0, NULL, 1);
    assert_int_equal(lnt_program_finish(p), LINNET_OK);
    assert_non_null(lnt_param_find(p, "layers.1.w"));
    return t;
}

/* ---- values of other rows, slices, parameters as inputs, values that cross layers ---- */

/* y[r] = sum over columns i of x[r,i] m[r mod rows of m, i]: m has one row a token, several, or is fixed. Strided in x and m. */
static linnet_status dot_forward(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *m = &k->in[1];
    float *y = k->out[0].data;
    for (int64_t r = 0; r < x->rows; r++) {
        y[r] = 0;
        for (int64_t i = 0; i < x->cols; i++) y[r] += ((const float *)x->data)[r * x->ld + i] * ((const float *)m->data)[r % m->rows * m->ld + i];
    }
    return LINNET_OK;
}
static linnet_status dot_backward(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0], *m = &k->in[1], *dx = &k->d_in[0], *dm = &k->d_in[1];
    const float *dy = k->d_out[0].data;
    for (int64_t r = 0; dm->data && !k->accumulate[1] && r < m->rows; r++) memset((float *)dm->data + r * dm->ld, 0, (size_t)m->cols * 4);
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t i = 0; i < x->cols; i++) {
            if (dx->data) put((float *)dx->data + r * dx->ld + i, dy[r] * ((const float *)m->data)[r % m->rows * m->ld + i], k->accumulate[0]);
            if (dm->data) ((float *)dm->data)[r % m->rows * dm->ld + i] += dy[r] * ((const float *)x->data)[r * x->ld + i];
        }
    return LINNET_OK;
}
static const lnt_op dot_op = {.name = "dot", .backward_needs = LNT_NEEDS_IN0 | LNT_NEEDS_IN1, .strided = LNT_NEEDS_IN0 | LNT_NEEDS_IN1,
                              .forward = dot_forward, .backward = dot_backward};

/* [rows, cols] as [rows / n, n cols]: what lnt_split_rows takes apart, for an operator that wants a row a token. */
static linnet_status join_forward(const lnt_call *k)
{
    memcpy(k->out[0].data, k->in[1].data, (size_t)(k->in[1].rows * k->in[1].cols) * 4);
    return LINNET_OK;
}
static linnet_status join_backward(const lnt_call *k)
{
    float *d = k->d_in[1].data;
    for (int64_t i = 0; i < k->in[1].rows * k->in[1].cols; i++) put(&d[i], ((const float *)k->d_out[0].data)[i], k->accumulate[1]);
    return LINNET_OK;
}
static const lnt_op join_op = {.name = "join", .forward = join_forward, .backward = join_backward};

static lnt_buf param_row(lnt_program *p, const char *name, int64_t rows, int64_t cols)
{
    const int64_t dim[2] = {rows, cols};
    return lnt_param_value(p, lnt_add_param(p, name, 2, dim, (lnt_init){LNT_INIT_NORMAL, 0.4, 0}, false, false), rows, 1);
}

/* Layers that all read what the first made; every layer takes slices of one value (overlapping in the second layer, with a hole in the third), two
 * rows a token, a parameter as it is and a fixed value made of one. */
static toy make_values(linnet_context *c)
{
    toy t;
    assert_int_equal(lnt_program_create(c, &t.p), LINNET_OK);
    lnt_program *p = t.p;
    t.ids = lnt_external(p, "ids");
    const int64_t dim[2] = {VOCAB, COLS}, width[1] = {2 * COLS}, row[1] = {COLS};
    const int w = lnt_add_param(p, "table", 2, dim, (lnt_init){LNT_INIT_NORMAL, 0.5, 0}, true, false);
    const int wide = lnt_add_param(p, "wide", 1, (const int64_t[]){VOCAB * 2 * COLS}, (lnt_init){LNT_INIT_NORMAL, 0.5, 0}, true, false);
    const int once = lnt_add_param(p, "once", 1, row, (lnt_init){LNT_INIT_NORMAL, 0.4, 0}, false, false);
    lnt_buf x = one(p, &table_op, 1, &t.ids, 1, &w, COLS), first = LNT_NO_BUF, total = LNT_NO_BUF;
    const lnt_buf lambda = one(p, &scale_exp_op, 1, (lnt_buf[]){param_row(p, "lambda", 3, COLS)}, 1, &once, COLS); /* [3, COLS] */
    for (int l = 0; l < LAYERS; l++) {
        lnt_set_block(p, l);
        lnt_push_scope(p, "layers.%d", l);
        const int s = lnt_add_param(p, "w", 1, width, (lnt_init){LNT_INIT_NORMAL, 0.3, 0}, false, false);
        const lnt_buf u = param_row(p, "u", 2, COLS / 2);
        lnt_pop_scope(p);
        const lnt_buf z = one(p, &table_op, 1, &t.ids, 1, &wide, 2 * COLS), h = one(p, &scale_exp_op, 1, &z, 1, &s, 2 * COLS);
        const int64_t from[3] = {COLS, COLS - 2, COLS};
        const lnt_buf a = lnt_slice(p, h, 0, l == 2 ? COLS - 1 : COLS, 1), b = lnt_slice(p, h, from[l], COLS, 1);
        if (!l) first = one(p, &mul_op, 2, (lnt_buf[]){x, x}, 0, NULL, COLS);
        const lnt_buf d = one(p, &dot_op, 2, (lnt_buf[]){a, lnt_slice(p, b, 0, l == 2 ? COLS - 1 : COLS, 1)}, 0, NULL, 1),
                      e = one(p, &dot_op, 2, (lnt_buf[]){b, lambda}, 0, NULL, 1),
                      f = one(p, &dot_op, 2, (lnt_buf[]){lnt_split_rows(p, first, 2), u}, 0, NULL, 1), /* two a token */
                      g = one(p, &join_op, 2, (lnt_buf[]){d, f}, 0, NULL, 2);
        assert_int_equal(lnt_rows(p, f, TOKENS), 2 * TOKENS);
        assert_int_equal(lnt_rows(p, lambda, TOKENS), 3);
        const lnt_buf de = one(p, &mul_op, 2, (lnt_buf[]){d, e}, 0, NULL, 1), fg = one(p, &dot_op, 2, (lnt_buf[]){g, g}, 0, NULL, 1);
        const lnt_buf sum = one(p, &add_op, 2, (lnt_buf[]){de, fg}, 0, NULL, 1);
        const lnt_buf y = one(p, &tanh_op, 1, &sum, 0, NULL, 1);
        total = l ? one(p, &add_op, 2, (lnt_buf[]){total, y}, 0, NULL, 1) : y;
    }
    lnt_set_block(p, -1);
    t.loss = one(p, &loss_op, 1, &total, 0, NULL, 1);
    assert_int_equal(lnt_program_finish(p), LINNET_OK);
    return t;
}

#endif

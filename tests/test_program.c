/* program/: schedules, lifetimes and gradients of small programs made of toy operators, with and without recomputation. */
#include "toy_programs.h"

#include <stdlib.h>

#include "device/device.h"
#include "program/plan.h"
#include "program/schedule.h"

static const int32_t ids[TOKENS] = {0, 3, 1, 4, 4, 2, 0, 1};

/* The weights may have been changed from outside. */
static double loss_of(toy *t, lnt_plan *plan, lnt_weights *w)
{
    lnt_weights_changed(w);
    lnt_batch b = {.tokens = TOKENS, .n_seq = 2, .n_inputs = 1, .inputs = {{t->ids, ids}}, .loss_scale = 1};
    assert_int_equal(lnt_plan_run(plan, w, &b), LINNET_OK);
    const float *l = lnt_plan_output(plan, t->loss).data;
    double sum = 0;
    for (int i = 0; i < TOKENS; i++) sum += l[i];
    return sum;
}

static lnt_plan *make_plan(linnet_context *c, toy *t, bool training, lnt_recompute recompute)
{
    lnt_plan *plan;
    lnt_plan_options o = {.tokens = TOKENS, .n_seq = 2, .training = training, .recompute = recompute, .n_outputs = 1, .outputs = {t->loss}};
    assert_int_equal(lnt_plan_create(c, t->p, &o, &plan), LINNET_OK);
    return plan;
}

static void gradients_of(linnet_context *c, toy t)
{
    lnt_weights *w;
    assert_int_equal(lnt_weights_create(c, t.p, LINNET_F32, LINNET_F32, &w), LINNET_OK);
    assert_int_equal(lnt_weights_init(w, 3), LINNET_OK);
    assert_int_equal(lnt_weights_need_grad(w), LINNET_OK);
    lnt_plan *train = make_plan(c, &t, true, LNT_RECOMPUTE_NONE), *again = make_plan(c, &t, true, LNT_RECOMPUTE_BLOCKS),
             *cheap = make_plan(c, &t, true, LNT_RECOMPUTE_CHEAP), *eval = make_plan(c, &t, false, LNT_RECOMPUTE_NONE);
    size_t bytes = (size_t)w->elements * 4;
    float *grad = malloc(bytes);

    double loss = loss_of(&t, train, w);
    memcpy(grad, w->grad, bytes);
    assert_true(loss == loss_of(&t, eval, w));
    lnt_weights_zero_grad(w);
    assert_true(loss == loss_of(&t, again, w));
    assert_memory_equal(grad, w->grad, bytes); /* recomputation changes no bit */
    lnt_weights_zero_grad(w);
    assert_true(loss == loss_of(&t, cheap, w));
    assert_memory_equal(grad, w->grad, bytes);
    lnt_weights_zero_grad(w);
    assert_true(loss == loss_of(&t, again, w));
    loss_of(&t, again, w);                     /* gradients add up over runs */
    for (int64_t i = 0; i < w->elements; i++) assert_true(fabsf(w->grad[i] - 2 * grad[i]) <= 1e-5f * (1 + fabsf(grad[i])));
    assert_true(lnt_plan_bytes(again) < lnt_plan_bytes(train));
    assert_true(lnt_plan_bytes(cheap) < lnt_plan_bytes(train));
    assert_true(lnt_plan_bytes(eval) < lnt_plan_bytes(again));
    lnt_plan_options o = {.tokens = TOKENS, .n_seq = 2, .training = true, .recompute = LNT_RECOMPUTE_CHEAP, .n_outputs = 1, .outputs = {t.loss}};
    size_t foreseen;
    assert_int_equal(lnt_plan_measure(c, t.p, &o, &foreseen), LINNET_OK);
    assert_true(foreseen == lnt_plan_bytes(cheap));
    o.tokens = -1;
    assert_int_equal(lnt_plan_measure(c, t.p, &o, &foreseen), LINNET_EINVAL);

    for (int i = 0; i < lnt_param_count(t.p); i++) {
        const lnt_param *q = lnt_param_at(t.p, i);
        for (int64_t e = q->offset; e < q->offset + q->count; e++) {
            float keep = w->master[e];
            double d[2];
            for (int half = 0; half < 2; half++) {
                const float h = half ? 5e-3f : 1e-2f;
                w->master[e] = keep + h;
                double up = loss_of(&t, eval, w);
                w->master[e] = keep - h;
                d[half] = (up - loss_of(&t, eval, w)) / (2 * h);
            }
            w->master[e] = keep;
            double difference = (4 * d[1] - d[0]) / 3; /* Richardson: the third derivative drops out */
            assert_true(fabs(difference - grad[e]) < 2e-3 * (1 + fabs(difference)));
        }
    }
    free(grad);
    lnt_plan_destroy(train);
    lnt_plan_destroy(again);
    lnt_plan_destroy(cheap);
    lnt_plan_destroy(eval);
    lnt_weights_destroy(w);
    lnt_program_destroy(t.p);
}

static void gradients_match_differences(void **state) { gradients_of(*state, make_toy(*state)); }
static void values_of_all_kinds(void **state) { gradients_of(*state, make_values(*state)); }

/* ---- decoding: a slice and a fixed value feed a state ---- */

/* y_t = y_{t-1} / 2 + x_t m, inside each sequence; m is a fixed row. */
static int64_t running_state(const lnt_node *n, int64_t capacity, lnt_dtype dtype)
{
    (void)capacity, (void)dtype;
    return lnt_cols(n->program, n->in[0]) * 4;
}
static linnet_status running_forward(const lnt_call *k)
{
    const lnt_tensor *x = &k->in[0];
    for (int64_t n = 0; n < k->n_seq; n++)
        for (int64_t i = 0; i < x->cols; i++) {
            float *state = k->state ? (float *)((char *)k->state + n * k->state_stride) + i : NULL, y = state ? *state : 0;
            for (int64_t r = k->cu[n]; r < k->cu[n + 1]; r++)
                ((float *)k->out[0].data)[r * x->cols + i] = y = y / 2 + ((const float *)x->data)[r * x->ld + i] * ((const float *)k->in[1].data)[i];
            if (state) *state = y;
        }
    return LINNET_OK;
}
static const lnt_op running_op = {.name = "running", .strided = LNT_NEEDS_IN0, .state_size = running_state, .forward = running_forward};

/* y = running(slice of table(ids), exp of a parameter): a program with a state, and the buffers of its input, its middle and its end. */
typedef struct {
    lnt_program *p;
    lnt_weights *w;
    lnt_buf in, x, y;
} running;

static running make_running(linnet_context *c)
{
    running t;
    assert_int_equal(lnt_program_create(c, &t.p), LINNET_OK);
    t.in = lnt_external(t.p, "ids");
    const int64_t dim[2] = {VOCAB, 3 * COLS}, row[1] = {COLS};
    const int table = lnt_add_param(t.p, "table", 2, dim, (lnt_init){LNT_INIT_NORMAL, 1, 0}, true, false),
              scale = lnt_add_param(t.p, "w", 1, row, (lnt_init){LNT_INIT_NORMAL, 1, 0}, true, false);
    t.x = one(t.p, &table_op, 1, &t.in, 1, &table, 3 * COLS);
    const lnt_buf m = one(t.p, &scale_exp_op, 1, (lnt_buf[]){param_row(t.p, "m", 1, COLS)}, 1, &scale, COLS);
    t.y = one(t.p, &running_op, 2, (lnt_buf[]){lnt_slice(t.p, t.x, COLS, COLS, 1), m}, 0, NULL, COLS);
    assert_int_equal(lnt_program_finish(t.p), LINNET_OK);
    assert_int_equal(lnt_weights_create(c, t.p, LINNET_F32, LINNET_F32, &t.w), LINNET_OK);
    assert_int_equal(lnt_weights_init(t.w, 3), LINNET_OK);
    return t;
}

static void values_with_a_state(void **state)
{
    linnet_context *c = *state;
    lnt_plan *whole, *step;
    lnt_state *s;
    enum { EACH = TOKENS / 2 };
    const running r = make_running(c);
    lnt_program *p = r.p;
    lnt_weights *w = r.w;
    const lnt_buf in = r.in, y = r.y;
    lnt_plan_options o = {.tokens = TOKENS, .n_seq = 2, .n_outputs = 1, .outputs = {y}};
    assert_int_equal(lnt_plan_create(c, p, &o, &whole), LINNET_OK);
    o.tokens = 2, o.has_state = true;
    assert_int_equal(lnt_plan_create(c, p, &o, &step), LINNET_OK);
    assert_int_equal(lnt_state_create(c, p, LINNET_F32, 2, TOKENS, &s), LINNET_OK);
    lnt_batch b = {.tokens = TOKENS, .n_seq = 2, .n_inputs = 1, .inputs = {{in, ids}}};
    assert_int_equal(lnt_plan_run(whole, w, &b), LINNET_OK);
    const float *want = lnt_plan_output(whole, y).data;
    assert_true(want[5] != 0);
    for (int t = 0; t < EACH; t++) {
        const int32_t now[2] = {ids[t], ids[EACH + t]};
        lnt_batch one_each = {.tokens = 2, .n_seq = 2, .n_inputs = 1, .inputs = {{in, now}}, .state = s};
        assert_int_equal(lnt_plan_run(step, w, &one_each), LINNET_OK);
        for (int n = 0; n < 2; n++)
            assert_memory_equal((const float *)lnt_plan_output(step, y).data + n * COLS, want + (n * EACH + t) * COLS, COLS * 4);
    }
    lnt_state_destroy(s);
    lnt_plan_destroy(whole);
    lnt_plan_destroy(step);
    lnt_weights_destroy(w);
    lnt_program_destroy(p);
}

/* Any slots in any order, with any number of tokens each, leave what each leaves alone, and touch no other slot. */
static void slots_of_a_state(void **state)
{
    linnet_context *c = *state;
    enum { SLOTS = 6, RUNS = 200, MOST = 4 };
    const running r = make_running(c);
    lnt_plan *plan, *lone;
    lnt_state *s, *own[SLOTS];
    lnt_rng rng = lnt_rng_make(4, 0);
    const lnt_plan_options o = {.tokens = SLOTS * MOST, .n_seq = SLOTS, .has_state = true, .n_outputs = 1, .outputs = {r.y}};
    assert_int_equal(lnt_plan_create(c, r.p, &o, &plan), LINNET_OK);
    assert_int_equal(lnt_plan_create(c, r.p, &o, &lone), LINNET_OK);
    assert_int_equal(lnt_state_create(c, r.p, LINNET_F32, SLOTS, 0, &s), LINNET_OK);
    for (int i = 0; i < SLOTS; i++) assert_int_equal(lnt_state_create(c, r.p, LINNET_F32, 1, 0, &own[i]), LINNET_OK);
    assert_false(lnt_state_limited(s));
    for (int run = 0; run < RUNS; run++) {
        int64_t slots[SLOTS] = {0, 1, 2, 3, 4, 5}, cu[SLOTS + 1] = {0};
        int32_t fed[SLOTS * MOST];
        const int64_t n = 1 + (int64_t)lnt_rng_below(&rng, SLOTS);
        for (int i = 0; run % 3 && i < SLOTS; i++) { /* a third of the runs has slots side by side */
            const uint64_t other = lnt_rng_below(&rng, SLOTS);
            const int64_t keep = slots[i];
            slots[i] = slots[other], slots[other] = keep;
        }
        for (int64_t i = 0; i < n; i++) cu[i + 1] = cu[i] + (int64_t)lnt_rng_below(&rng, MOST + 1);
        for (int64_t i = 0; i < cu[n]; i++) fed[i] = (int32_t)lnt_rng_below(&rng, VOCAB);
        const lnt_batch b = {.tokens = cu[n], .n_seq = n, .cu = cu, .n_inputs = 1, .inputs = {{r.in, fed}}, .state = s, .slots = slots};
        assert_int_equal(lnt_plan_run(plan, r.w, &b), LINNET_OK);
        for (int64_t i = 0; i < n; i++) {
            const int64_t tokens = cu[i + 1] - cu[i];
            const lnt_batch alone = {.tokens = tokens, .n_seq = 1, .n_inputs = 1, .inputs = {{r.in, fed + cu[i]}}, .state = own[slots[i]]};
            assert_int_equal(lnt_plan_run(lone, r.w, &alone), LINNET_OK);
            assert_memory_equal((const float *)lnt_plan_output(plan, r.y).data + cu[i] * COLS, lnt_plan_output(lone, r.y).data,
                                (size_t)tokens * COLS * 4);
        }
        for (int i = 0; i < SLOTS; i++) {
            assert_int_equal(s->position[i], own[i]->position[0]);
            assert_memory_equal(s->data + i * COLS * 4, own[i]->data, COLS * 4);
        }
    }
    const int64_t outside[2] = {0, SLOTS};
    lnt_batch wrong = {.tokens = 2, .n_seq = 2, .n_inputs = 1, .inputs = {{r.in, ids}}, .state = s, .slots = outside};
    assert_int_equal(lnt_plan_run(plan, r.w, &wrong), LINNET_EINTERNAL);
    wrong.slots = NULL, wrong.first = SLOTS - 1;
    assert_int_equal(lnt_plan_run(plan, r.w, &wrong), LINNET_EINTERNAL);
    for (int i = 0; i < SLOTS; i++) lnt_state_destroy(own[i]);
    lnt_state_destroy(s);
    lnt_plan_destroy(plan);
    lnt_plan_destroy(lone);
    lnt_weights_destroy(r.w);
    lnt_program_destroy(r.p);
}

/* A value that is given: what makes it does not run, and need not be told its input. */
static void given_values(void **state)
{
    linnet_context *c = *state;
    const running r = make_running(c);
    lnt_plan *whole, *first, *second;
    lnt_plan_options o = {.tokens = TOKENS, .n_seq = 1, .n_outputs = 1, .outputs = {r.y}};
    assert_int_equal(lnt_plan_create(c, r.p, &o, &whole), LINNET_OK);
    o.outputs[0] = r.x;
    assert_int_equal(lnt_plan_create(c, r.p, &o, &first), LINNET_OK);
    o.outputs[0] = r.y, o.n_given = 1, o.given = &r.x;
    assert_int_equal(lnt_plan_create(c, r.p, &o, &second), LINNET_OK);
    assert_null(lnt_plan_input(second, r.in));
    const lnt_batch b = {.tokens = TOKENS, .n_seq = 1, .n_inputs = 1, .inputs = {{r.in, ids}}}, none = {.tokens = TOKENS, .n_seq = 1};
    assert_int_equal(lnt_plan_run(whole, r.w, &b), LINNET_OK);
    assert_int_equal(lnt_plan_run(first, r.w, &b), LINNET_OK);
    memcpy(lnt_plan_output(second, r.x).data, lnt_plan_output(first, r.x).data, TOKENS * 3 * COLS * 4);
    assert_int_equal(lnt_plan_run(second, r.w, &none), LINNET_OK);
    assert_memory_equal(lnt_plan_output(second, r.y).data, lnt_plan_output(whole, r.y).data, TOKENS * COLS * 4);
    lnt_plan_destroy(whole);
    lnt_plan_destroy(first);
    lnt_plan_destroy(second);
    lnt_weights_destroy(r.w);
    lnt_program_destroy(r.p);
}

static int makings;
static linnet_status made_forward(const lnt_call *k)
{
    makings++;
    memcpy(k->out[0].data, k->in[0].data, (size_t)(k->in[0].rows * k->in[0].cols) * 4);
    return LINNET_OK;
}
static linnet_status made_backward(const lnt_call *k)
{
    for (int64_t i = 0; i < k->in[0].rows * k->in[0].cols; i++)
        put((float *)k->d_in[0].data + i, ((const float *)k->d_out[0].data)[i], k->accumulate[0]);
    return LINNET_OK;
}
static const lnt_op made_op = {.name = "made", .forward = made_forward, .backward = made_backward};

/* Each of LAYERS layers adds a product of a token's row with what two nodes make of a parameter; others between them want memory as well. */
static toy make_made(linnet_context *c)
{
    toy t;
    assert_int_equal(lnt_program_create(c, &t.p), LINNET_OK);
    lnt_program *p = t.p;
    t.ids = lnt_external(p, "ids");
    const int64_t dim[2] = {VOCAB, COLS};
    const int table = lnt_add_param(p, "table", 2, dim, (lnt_init){LNT_INIT_NORMAL, 1, 0}, true, false);
    lnt_buf x = one(p, &table_op, 1, &t.ids, 1, &table, COLS);
    for (int l = 0; l < LAYERS; l++) {
        lnt_push_scope(p, "layers.%d", l);
        const lnt_buf row = param_row(p, "m", 1, COLS), half = one(p, &made_op, 1, &row, 0, NULL, COLS),
                      whole = one(p, &made_op, 1, &half, 0, NULL, COLS), y = one(p, &dot_op, 2, (lnt_buf[]){x, whole}, 0, NULL, 1);
        lnt_pop_scope(p);
        const lnt_buf z = one(p, &table_op, 1, &t.ids, 1, &table, COLS), n = one(p, &dot_op, 2, (lnt_buf[]){z, z}, 0, NULL, 1),
                      s = one(p, &add_op, 2, (lnt_buf[]){y, n}, 0, NULL, 1);
        x = one(p, &table_op, 1, &t.ids, 1, &table, COLS);
        t.loss = l ? one(p, &add_op, 2, (lnt_buf[]){t.loss, s}, 0, NULL, 1) : s;
    }
    t.loss = one(p, &loss_op, 1, &t.loss, 0, NULL, 1);
    assert_int_equal(lnt_program_finish(p), LINNET_OK);
    return t;
}

/* What is made of parameters alone is made by the first run after they changed, for borrowed weights too, and in every run with gradients. */
static void made_once(void **state)
{
    linnet_context *c = *state;
    toy t = make_made(c);
    lnt_weights *w, *shared;
    assert_int_equal(lnt_weights_create(c, t.p, LINNET_F32, LINNET_F32, &w), LINNET_OK);
    assert_int_equal(lnt_weights_init(w, 4), LINNET_OK);
    assert_int_equal(lnt_weights_need_grad(w), LINNET_OK);
    assert_int_equal(lnt_weights_share(c, t.p, w, &shared), LINNET_OK);
    lnt_plan *plan = make_plan(c, &t, false, LNT_RECOMPUTE_NONE), *train = make_plan(c, &t, true, LNT_RECOMPUTE_NONE);
    const lnt_batch b = {.tokens = TOKENS, .n_seq = 2, .n_inputs = 1, .inputs = {{t.ids, ids}}, .loss_scale = 1};
    float last[TOKENS];
    makings = 0;
    for (int change = 0; change < 4; change++) {
        const float value = 0.5f + (float)change;
        if (change) assert_int_equal(lnt_weights_put(w, lnt_param_find(t.p, "layers.1.m"), 2, &value, 1), LINNET_OK);
        for (int again = 0; again < 3; again++) {
            assert_int_equal(lnt_plan_run(plan, change == 2 ? shared : w, &b), LINNET_OK);
            assert_int_equal(makings, 2 * LAYERS);
        }
        lnt_plan *fresh = make_plan(c, &t, false, LNT_RECOMPUTE_NONE);
        assert_int_equal(lnt_plan_run(fresh, w, &b), LINNET_OK);
        assert_memory_equal(lnt_plan_output(plan, t.loss).data, lnt_plan_output(fresh, t.loss).data, sizeof last);
        if (change) assert_memory_not_equal(lnt_plan_output(plan, t.loss).data, last, sizeof last);
        memcpy(last, lnt_plan_output(plan, t.loss).data, sizeof last);
        lnt_plan_destroy(fresh);
        makings = 0;
        for (int again = 1; again < 3; again++) {
            assert_int_equal(lnt_plan_run(train, w, &b), LINNET_OK);
            assert_int_equal(makings, again * 2 * LAYERS);
        }
        assert_memory_equal(lnt_plan_output(train, t.loss).data, last, sizeof last);
        makings = 0;
    }
    lnt_plan_destroy(plan);
    lnt_plan_destroy(train);
    lnt_weights_destroy(shared);
    lnt_weights_destroy(w);
    lnt_program_destroy(t.p);
}

/* Pairs: the first layer's (exp, tanh) without a value between them, the others' (sum, exp) across blocks. The same bits as the nodes one by one. */
static void pairs_change_nothing(void **state)
{
    linnet_context *c = *state;
    toy t = make_toy(c);
    lnt_weights *w;
    assert_int_equal(lnt_weights_create(c, t.p, LINNET_F32, LINNET_F32, &w), LINNET_OK);
    assert_int_equal(lnt_weights_init(w, 3), LINNET_OK);
    assert_int_equal(lnt_weights_need_grad(w), LINNET_OK);
    const size_t bytes = (size_t)w->elements * 4;
    float *grad = malloc(bytes);
    for (int mode = 0; mode < 4; mode++) {
        lnt_plan_options o = {.tokens = TOKENS, .n_seq = 2, .training = mode < 3, .recompute = (lnt_recompute)(mode % 3), .n_outputs = 1,
                              .outputs = {t.loss}};
        double loss[2];
        size_t used[2];
        for (int apart = 0; apart < 2; apart++) {
            lnt_plan *plan;
            o.alone = apart;
            assert_int_equal(lnt_plan_create(c, t.p, &o, &plan), LINNET_OK);
            used[apart] = lnt_plan_bytes(plan);
            lnt_weights_zero_grad(w);
            pairs_run = 0;
            loss[apart] = loss_of(&t, plan, w);
            if (!apart) {
                assert_true(pairs_run >= (mode < 3 ? 2 * LAYERS : LAYERS));
                memcpy(grad, w->grad, bytes);
            } else {
                assert_int_equal(pairs_run, 0);
                assert_memory_equal(grad, w->grad, bytes);
            }
            lnt_plan_destroy(plan);
        }
        assert_true(loss[0] == loss[1]);
        if (mode == 0) assert_true(used[0] < used[1]); /* what is between exp and tanh is not kept */
    }
    free(grad);
    lnt_weights_destroy(w);
    lnt_program_destroy(t.p);
}

static int64_t most_alive(const lnt_schedule *s)
{
    int64_t most = 0;
    for (int i = 0; i < s->n_steps; i++) {
        int64_t alive = 0;
        for (int k = 0; k < s->n_slots; k++) alive += s->slots[k].first <= i && i <= s->slots[k].last ? s->slots[k].bytes : 0;
        if (alive > most) most = alive;
    }
    return most;
}

/* No two slots that live at the same time share a byte; recomputing keeps less alive and makes more steps. */
static void slots_never_overlap(void **state)
{
    linnet_context *c = *state;
    toy t = make_toy(c);
    const lnt_recompute order[] = {LNT_RECOMPUTE_NONE, LNT_RECOMPUTE_CHEAP, LNT_RECOMPUTE_BLOCKS};
    int64_t alive = 0;
    int steps = 0;
    for (int mode = 0; mode < 4; mode++) {
        lnt_plan_options o = {.tokens = TOKENS, .n_seq = 2, .training = mode > 0, .recompute = mode ? order[mode - 1] : LNT_RECOMPUTE_NONE,
                              .n_outputs = 1, .outputs = {t.loss}};
        lnt_shape shape = {.tokens = TOKENS, .n_seq = 2, .training = mode > 0, .threads = 1};
        lnt_schedule s;
        assert_int_equal(lnt_schedule_make(c, t.p, &o, &shape, &s), LINNET_OK);
        int64_t total = lnt_layout(&s);
        assert_true(s.n_slots > 4);
        int in_place = 0;
        for (int i = 0; i < s.n_steps; i++) in_place += s.steps[i].in_place[0] + s.steps[i].in_place[1];
        assert_int_equal(in_place, mode ? LAYERS - 1 : 0);
        for (int a = 0; a < s.n_slots; a++) {
            assert_true(s.slots[a].offset >= 0 && s.slots[a].offset + s.slots[a].bytes <= total);
            for (int b = 0; b < a; b++) {
                bool together = s.slots[a].first <= s.slots[b].last && s.slots[b].first <= s.slots[a].last;
                bool apart = s.slots[a].offset + s.slots[a].bytes <= s.slots[b].offset || s.slots[b].offset + s.slots[b].bytes <= s.slots[a].offset;
                assert_true(!together || apart);
            }
        }
        if (mode == 2) assert_true(most_alive(&s) < alive && s.n_steps > steps);
        if (mode == 3) assert_true(most_alive(&s) <= alive && s.n_steps >= steps); /* the toys' products are what crosses blocks */
        alive = most_alive(&s);
        steps = s.n_steps;
        lnt_schedule_free(&s);
    }
    lnt_program_destroy(t.p);
}

/* Offsets: what products do not read, what both read (a tied embedding), what products alone read; without masters only the last part has none. */
static void parameters_are_placed(void **state)
{
    linnet_context *c = *state;
    lnt_program *p;
    lnt_weights *w;
    const int64_t dim[4][1] = {{70}, {3}, {64}, {65}};
    const lnt_init init = {LNT_INIT_UNIFORM, -1, 1};
    assert_int_equal(lnt_program_create(c, &p), LINNET_OK);
    assert_int_equal(lnt_add_param(p, "matrix", 1, dim[0], init, true, true), 0);
    assert_int_equal(lnt_add_param(p, "tied", 1, dim[1], init, true, false), 1);
    assert_int_equal(lnt_add_param(p, "norm", 1, dim[2], init, true, false), 2);
    assert_true(lnt_param_plain_end(p) == 128 && lnt_param_work_begin(p) == 128);
    assert_int_equal(lnt_add_param(p, "tied", 1, dim[1], init, true, true), 1);
    assert_int_equal(lnt_add_param(p, "matrix 2", 1, dim[3], init, true, true), 3);
    const int64_t want[4] = {128, 64, 0, 256};
    for (int i = 0; i < 4; i++) assert_true(lnt_param_at(p, i)->offset == want[i]);
    assert_true(lnt_param_elements(p) == 384 && lnt_param_plain_end(p) == 128 && lnt_param_work_begin(p) == 64);

    float all[2][384], extra[2] = {1.0039f, -3}; /* 1.0039 is no bf16 */
    for (int kept = 0; kept < 2; kept++) {
        assert_int_equal(lnt_weights_create(c, p, LINNET_BF16, kept ? LINNET_BF16 : LINNET_F32, &w), LINNET_OK);
        assert_int_equal(lnt_weights_init(w, 9), LINNET_OK);
        assert_true(w->masters == (kept ? 128 : 384) && w->work_begin == 64);
        for (int i = 0; i < 4; i++) {
            lnt_param_view v = lnt_weights_view(w, lnt_param_at(p, i));
            assert_true((v.master == NULL) == (kept && (i == 0 || i == 3)));
            assert_int_equal(v.work_dtype, i == 2 ? LINNET_F32 : LINNET_BF16);
            assert_true((v.work == v.master) == (i == 2) && v.count == dim[i][0]);
            if (v.master && i != 2) assert_int_equal(((const lnt_bf16 *)v.work)[2], lnt_f32_to_bf16(v.master[2]));
        }
        assert_int_equal(lnt_weights_put(w, lnt_param_at(p, 3), 62, extra, 2), LINNET_OK);
        assert_int_equal(lnt_weights_get(w, all[kept]), LINNET_OK);
        lnt_weights_destroy(w);
    }
    for (int i = 0; i < 384; i++) assert_true(all[1][i] == (i < 128 ? all[0][i] : lnt_bf16_to_f32(lnt_f32_to_bf16(all[0][i]))));
    assert_true(all[0][256 + 62] == extra[0] && all[0][256 + 63] == -3 && all[0][256 + 61] != 0);
    lnt_program_destroy(p);
}

/* What layers share: a parameter outside the scope of the layer that makes it, and a value that others find by its name. */
static void layers_share(void **state)
{
    linnet_context *c = *state;
    lnt_program *p;
    const int64_t dim = 8;
    const lnt_init zero = {LNT_INIT_CONST, 0, 0};
    assert_int_equal(lnt_program_create(c, &p), LINNET_OK);
    lnt_push_scope(p, "model");
    lnt_push_scope(p, "layers.%d", 0);
    lnt_push_scope(p, "attn");
    assert_int_equal(lnt_set_scopes(p, 1), LNT_ALL_SCOPES);
    const int shared = lnt_add_param(p, "bounds", 1, &dim, zero, false, false);
    assert_int_equal(lnt_set_scopes(p, 0), 1);
    lnt_add_param(p, "outermost", 1, &dim, zero, false, false);
    lnt_set_scopes(p, LNT_ALL_SCOPES);
    lnt_add_param(p, "own", 1, &dim, zero, false, false);
    static const char *const names[] = {"model.bounds", "outermost", "model.layers.0.attn.own"};
    for (int i = 0; i < 3; i++) assert_string_equal(lnt_param_at(p, i)->name, names[i]);
    assert_int_equal(lnt_kept(p, "bounds").id, 0);
    const lnt_buf value = lnt_param_value(p, shared, 1, 1);
    lnt_keep(p, "bounds", value);
    assert_true(value.id && lnt_kept(p, "bounds").id == value.id && !lnt_kept(p, "bound").id);
    lnt_keep(p, "bounds", value);
    assert_int_equal(lnt_program_finish(p), LINNET_EINVAL);
    assert_non_null(strstr(linnet_error_message(c), "a value is kept as bounds, and there is one"));
    lnt_program_destroy(p);
}

static void mistakes_are_remembered(void **state)
{
    linnet_context *c = *state;
    lnt_program *p;
    assert_int_equal(lnt_program_create(c, &p), LINNET_OK);
    lnt_push_scope(p, "layers.%d", 7);
    lnt_buf x = lnt_external(p, "x");
    assert_int_equal(lnt_with_heads(p, x, 2).id, 0);
    lnt_program_fail(p, "a later mistake");
    assert_int_equal(lnt_program_finish(p), LINNET_EINVAL);
    assert_string_equal(linnet_error_message(c), "layers.7: 1 columns cannot be split into 2 heads");
    lnt_program_destroy(p);
}

/* Every allocation on the way to a plan may fail: a status, no crash, no leak (the sanitizer build looks for those). */
static void allocations_may_fail(void **state)
{
    linnet_context *c = *state;
    toy t = make_toy(c);
    for (int n = 1;; n++) {
        lnt_plan *plan = NULL;
        lnt_weights *w = NULL;
        lnt_state *s = NULL;
        lnt_plan_options o = {.tokens = TOKENS, .n_seq = 2, .training = true, .recompute = LNT_RECOMPUTE_BLOCKS, .n_outputs = 1, .outputs = {t.loss}};
        lnt_alloc_fail_at(n);
        linnet_status status = lnt_plan_create(c, t.p, &o, &plan);
        if (status == LINNET_OK) status = lnt_weights_create(c, t.p, LINNET_BF16, LINNET_F32, &w);
        if (status == LINNET_OK) status = lnt_weights_need_grad(w);
        if (status == LINNET_OK) status = lnt_state_create(c, t.p, LINNET_BF16, 2, 16, &s);
        lnt_alloc_fail_at(0);
        lnt_plan_destroy(plan);
        lnt_weights_destroy(w);
        lnt_state_destroy(s);
        if (status == LINNET_OK) break;
        assert_int_equal(status, LINNET_ENOMEM);
        assert_true(n < 1000);
    }
    lnt_program_destroy(t.p);
}

/* Slices that overlap or leave something out have their gradient cleared, once each; those that do neither are stored where they belong. */
static void slices_are_cleared(void **state)
{
    toy t = make_values(*state);
    lnt_plan_options o = {.tokens = TOKENS, .n_seq = 2, .training = true, .n_outputs = 1, .outputs = {t.loss}};
    lnt_shape shape = {.tokens = TOKENS, .n_seq = 2, .training = true, .threads = 1};
    lnt_schedule s;
    assert_int_equal(lnt_schedule_make(*state, t.p, &o, &shape, &s), LINNET_OK);
    int cleared = 0;
    for (int i = 0; i < s.n_steps; i++)
        for (int k = 0; k < LNT_MAX_IN; k++)
            if (s.steps[i].clear[k]) {
                cleared++;
                assert_true(s.steps[i].node->block > 0 && s.steps[i].kind == LNT_STEP_BACKWARD && s.steps[i].accumulate[k]);
            }
    assert_int_equal(cleared, 2);
    lnt_schedule_free(&s);

    char *text = lnt_program_text(t.p), *dot = lnt_program_graphviz(t.p);
    assert_non_null(strstr(text, " [3,6] = scale_exp(lambda)  once[6]\n"));
    assert_non_null(strstr(text, " [2T,1] = dot("));
    assert_non_null(strstr(text, ", layers.1.u)\n"));
    assert_non_null(strstr(text, "[4:10], "));
    assert_non_null(strstr(dot, "[label=\"layers.2.u\", shape=plain];\n"));
    assert_non_null(strstr(dot, " [label=\"[2,3] f32\"];\n"));
    lnt_free(text);
    lnt_free(dot);
    lnt_program_destroy(t.p);
}

/* What cannot be a view, or read one, has a message. */
static void views_are_refused(void **state)
{
    static const char *const want[] = {"columns 4 .. 7 of 6", "6 columns cannot be split into 4 rows",
                                       "4 columns of a slice cannot be split into 2 rows",
                                       "a slice of 2 rows a token: take it before they are split",
                                       "parameter u of 6 elements cannot be split into 4 rows of 1 heads",
                                       "mul: input 0 is a slice of columns, which it does not read"};
    for (int i = 0; i < 6; i++) {
        toy t = make_toy(*state);
        lnt_program *p = t.p;
        const int64_t dim[1] = {6};
        const lnt_buf x = lnt_node_at(p, 0)->out[0], part = lnt_slice(p, x, 1, 4, 2);
        switch (i) {
        case 0: lnt_slice(p, x, 4, 4, 1); break;
        case 1: lnt_split_rows(p, x, 4); break;
        case 2: lnt_split_rows(p, part, 2); break;
        case 3: lnt_slice(p, lnt_split_rows(p, x, 2), 0, 1, 1); break;
        case 4: lnt_param_value(p, lnt_add_param(p, "u", 1, dim, (lnt_init){LNT_INIT_CONST, 0, 0}, false, false), 4, 1); break;
        case 5: one(p, &mul_op, 2, (lnt_buf[]){part, part}, 0, NULL, 4); break;
        }
        assert_int_equal(lnt_program_finish(p), LINNET_EINVAL);
        assert_string_equal(linnet_error_message(*state), want[i]);
        lnt_program_destroy(p);
    }
}

static void programs_print(void **state)
{
    toy t = make_toy(*state);
    char *text = lnt_program_text(t.p), *dot = lnt_program_graphviz(t.p);
    assert_non_null(strstr(text, "layer 1\n"));
    assert_non_null(strstr(text, "layers.1.w[6]"));
    assert_non_null(strstr(text, "table(ids)  table[5,6]"));
    assert_non_null(strstr(dot, "digraph"));
    assert_int_equal(strncmp(dot + strlen(dot) - 2, "}\n", 2), 0);
    lnt_free(text);
    lnt_free(dot);
    lnt_program_destroy(t.p);
}

static int open_context(void **state) { return linnet_context_create(NULL, (linnet_context **)state); }
static int close_context(void **state) { return linnet_context_destroy(*state), 0; }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences), cmocka_unit_test(pairs_change_nothing), cmocka_unit_test(slots_never_overlap),
        cmocka_unit_test(parameters_are_placed),       cmocka_unit_test(values_of_all_kinds),
        cmocka_unit_test(values_with_a_state),         cmocka_unit_test(slots_of_a_state),     cmocka_unit_test(given_values),
        cmocka_unit_test(made_once),
        cmocka_unit_test(layers_share),
        cmocka_unit_test(mistakes_are_remembered),
        cmocka_unit_test(allocations_may_fail),        cmocka_unit_test(programs_print),
        cmocka_unit_test(slices_are_cleared),          cmocka_unit_test(views_are_refused),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}

#include "ops/optimizer.h"

#include <math.h>
#include <string.h>

#include "core/rng.h"
#include "core/threads.h"
#include "ops/kernels.h"

enum { PIECE = 1 << 15 };

/* The parts of all parameters in the order of the parameter table; returns their number, writes where there is room. */
static int64_t cut(const lnt_weights *w, lnt_piece *out)
{
    int64_t n = 0;
    for (int i = 0; i < lnt_param_count(w->program); i++) {
        const lnt_param *q = lnt_param_at(w->program, i);
        const lnt_param_view v = lnt_weights_view(w, q);
        for (int64_t at = 0; at < q->count; at += PIECE, n++)
            if (out)
                out[n] = (lnt_piece){.at = q->offset + at, .n = (int32_t)(q->count - at < PIECE ? q->count - at : PIECE), .decay = q->decay,
                                     .master = v.master != NULL, .work = v.work != v.master,
                                     .zero = q->offset < lnt_param_plain_end(w->program)};
    }
    return n;
}

linnet_status lnt_optimizer_create(lnt_ctx *c, lnt_weights *w, lnt_dtype moments, lnt_optimizer **out)
{
    *out = NULL;
    lnt_optimizer *o = lnt_calloc(sizeof *o);
    if (!o) return lnt_fail_memory(c, sizeof *o);
    *o = (lnt_optimizer){.c = c, .w = w, .kept = moments, .n_pieces = cut(w, NULL)};
    const size_t bytes = lnt_bytes((size_t)w->elements, lnt_dtype_size(moments)), table = lnt_bytes((size_t)o->n_pieces, sizeof *o->pieces);
    linnet_status s = LINNET_OK;
    lnt_piece *pieces = lnt_alloc(table);
    if (!pieces) {
        s = lnt_fail_memory(c, table);
        goto done;
    }
    LNT_TRY_GOTO(s, lnt_device_alloc(c, bytes, &o->m), done);
    LNT_TRY_GOTO(s, lnt_device_alloc(c, bytes, &o->v), done);
    LNT_TRY_GOTO(s, lnt_device_alloc(c, sizeof *o->sums, (void **)&o->sums), done);
    LNT_TRY_GOTO(s, lnt_device_alloc(c, table, (void **)&o->pieces), done);
    LNT_TRY_GOTO(s, lnt_device_alloc(c, lnt_bytes((size_t)o->n_pieces, sizeof *o->parts), (void **)&o->parts), done);
    lnt_device_zero(c, o->m, bytes);
    lnt_device_zero(c, o->v, bytes);
    lnt_device_zero(c, o->sums, sizeof *o->sums);
    cut(w, pieces);
    lnt_to_device(c, o->pieces, pieces, table);
    *out = o;
    o = NULL;
done:
    lnt_free(pieces);
    lnt_optimizer_destroy(o);
    return s;
}

void lnt_optimizer_destroy(lnt_optimizer *o)
{
    if (!o) return;
    lnt_device_free(o->c, o->m);
    lnt_device_free(o->c, o->v);
    lnt_device_free(o->c, o->sums);
    lnt_device_free(o->c, o->pieces);
    lnt_device_free(o->c, o->parts);
    lnt_free(o);
}

/* ---- the CPU ---- */

static void add_losses(lnt_optimizer *o, const float *loss, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += loss[i];
    o->sums->nats += sum;
}

static void norm(lnt_optimizer *o, double clip)
{
    lnt_square_sum_kernel *kernel = LNT_PICK(lnt_square_sum);
    double total = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(lnt_threads(o->c))
    for (int64_t i = 0; i < o->n_pieces; i++) o->parts[i] = kernel(o->w->grad + o->pieces[i].at, o->pieces[i].n);
    for (int64_t i = 0; i < o->n_pieces; i++) total += o->parts[i];
    o->sums->norm = sqrt(total);
    o->sums->scale = clip > 0 && o->sums->norm > clip ? clip / o->sums->norm : 1.0;
}

static void update(lnt_optimizer *o, const lnt_adamw_args *common)
{
    const bool good = isfinite(o->sums->norm) && isfinite(o->sums->nats);
    lnt_adamw_kernel *kernel = LNT_PICK(lnt_adamw);
    const lnt_weights *w = o->w;
#pragma omp parallel for schedule(dynamic, 1) num_threads(lnt_threads(o->c))
    for (int64_t i = 0; i < o->n_pieces; i++) {
        const lnt_piece *p = &o->pieces[i];
        lnt_adamw_args a = *common;
        a.n = p->n;
        a.first = p->at;
        a.w = p->master ? w->master + p->at : NULL;
        a.work = p->work ? (lnt_bf16 *)w->work + (p->at - w->work_begin) : NULL;
        a.g = w->grad + p->at;
        a.m = (char *)o->m + p->at * (int64_t)lnt_dtype_size(o->kept);
        a.v = (char *)o->v + p->at * (int64_t)lnt_dtype_size(o->kept);
        a.scale = (float)o->sums->scale;
        a.zero = p->zero;
        if (!p->decay) a.shrink = 0;
        if (good) kernel(&a);
        else if (a.zero) memset(a.g, 0, (size_t)a.n * sizeof *a.g);
    }
}

/* ---- both devices ---- */

#ifdef LINNET_CUDA
#define ON_DEVICE(o, cpu, cuda, ...) (lnt_on_cuda((o)->c) ? cuda(__VA_ARGS__) : cpu(__VA_ARGS__))
#else
#define ON_DEVICE(o, cpu, cuda, ...) cpu(__VA_ARGS__)
#endif

void lnt_optimizer_add_losses(lnt_optimizer *o, const float *loss, int64_t n)
{
    ON_DEVICE(o, add_losses, lnt_optimizer_add_losses_cuda, o, loss, n);
}

linnet_status lnt_optimizer_step(lnt_optimizer *o, const lnt_adamw *h)
{
    if (h->step < 1) return lnt_fail(o->c, LINNET_EINVAL, "optimizer step is %lld, expected at least 1", (long long)h->step);
    if (o->w->grad_empty) return lnt_fail(o->c, LINNET_EINVAL, "an update without gradients: no micro-batch has brought any since the last");
    const double c1 = 1.0 - pow(h->beta1, (double)h->step), c2 = 1.0 - pow(h->beta2, (double)h->step);
    const lnt_adamw_args a = {.b1 = (float)h->beta1, .b2 = (float)h->beta2, .one_b1 = (float)(1.0 - h->beta1), .one_b2 = (float)(1.0 - h->beta2),
                              .rate = (float)(h->learning_rate / c1), .root = (float)(1.0 / sqrt(c2)), .epsilon = (float)h->epsilon,
                              .shrink = (float)(h->learning_rate * h->weight_decay), .seed = h->seed,
                              .stream = lnt_stream_of("stochastic rounding") + (uint64_t)h->step, .kept = o->kept,
                              .moment_stream = lnt_stream_of("rounding of moments") + (uint64_t)h->step};
    ON_DEVICE(o, norm, lnt_optimizer_norm_cuda, o, h->clip);
    ON_DEVICE(o, update, lnt_optimizer_update_cuda, o, &a);
    o->w->grad_empty = true;
    lnt_weights_changed(o->w);
    return lnt_device_check(o->c);
}

void lnt_optimizer_read(lnt_optimizer *o, lnt_step_sums *out)
{
    lnt_to_host(o->c, out, o->sums, sizeof *out);
    lnt_device_zero(o->c, &o->sums->nats, sizeof o->sums->nats);
}

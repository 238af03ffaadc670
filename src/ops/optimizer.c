#include "ops/optimizer.h"

#include <math.h>

#include "core/threads.h"
#include "ops/kernels.h"

/* Pieces of the arena: at most MAX_PIECES, so that the partial sums of the norm fit on the stack. */
enum { PIECE = 1 << 15, MAX_PIECES = 1024 };

typedef struct {
    int64_t size, count;
} cutting;

static cutting cut(const lnt_program *p)
{
    const int64_t n = lnt_param_elements(p);
    cutting k = {PIECE, 0};
    if ((n + PIECE - 1) / PIECE > MAX_PIECES) k.size = ((n + MAX_PIECES - 1) / MAX_PIECES + 63) / 64 * 64;
    k.count = (n + k.size - 1) / k.size;
    return k;
}

/* The part of parameter i that lies in [begin, end): false when there is none. */
static bool part_of(const lnt_program *p, int i, int64_t begin, int64_t end, int64_t *from, int64_t *n)
{
    const lnt_param *q = lnt_param_at(p, i);
    const int64_t a = q->offset > begin ? q->offset : begin, b = q->offset + q->count < end ? q->offset + q->count : end;
    *from = a, *n = b - a;
    return b > a;
}

/* The first parameter that ends behind `begin`; offsets ascend. */
static int first_param(const lnt_program *p, int64_t begin)
{
    int low = 0, high = lnt_param_count(p);
    while (low < high) {
        const int mid = low + (high - low) / 2;
        const lnt_param *q = lnt_param_at(p, mid);
        if (q->offset + q->count > begin)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

linnet_status lnt_adamw_step(lnt_ctx *c, const lnt_program *p, const lnt_adamw *o, const lnt_adamw_arrays *a)
{
    if (o->step < 1) return lnt_fail(c, LINNET_EINVAL, "optimizer step is %lld, expected at least 1", (long long)o->step);
    const cutting k = cut(p);
    const double c1 = 1.0 - pow(o->beta1, (double)o->step), c2 = 1.0 - pow(o->beta2, (double)o->step);
    lnt_adamw_kernel *kernel = LNT_PICK(lnt_adamw);
#pragma omp parallel for schedule(dynamic, 1) num_threads(lnt_threads(c))
    for (int64_t piece = 0; piece < k.count; piece++) {
        const int64_t begin = piece * k.size, end = begin + k.size;
        int64_t at, n;
        for (int i = first_param(p, begin); i < lnt_param_count(p) && lnt_param_at(p, i)->offset < end; i++) {
            if (!part_of(p, i, begin, end, &at, &n)) continue;
            const lnt_adamw_args part = {
                .n = n, .w = a->master + at, .g = a->grad + at, .m = a->m + at, .v = a->v + at, .work = a->work ? a->work + at : NULL,
                .scale = (float)o->gradient_scale, .b1 = (float)o->beta1, .b2 = (float)o->beta2,
                .one_b1 = (float)(1.0 - o->beta1), .one_b2 = (float)(1.0 - o->beta2),
                .rate = (float)(o->learning_rate / c1), .root = (float)(1.0 / sqrt(c2)), .epsilon = (float)o->epsilon,
                .shrink = lnt_param_at(p, i)->decay ? (float)(o->learning_rate * o->weight_decay) : 0.0f, .zero = o->zero_gradients};
            kernel(&part);
        }
    }
    return LINNET_OK;
}

double lnt_gradient_norm(lnt_ctx *c, const lnt_program *p, const float *grad)
{
    double sums[MAX_PIECES], total = 0;
    const cutting k = cut(p);
    lnt_square_sum_kernel *kernel = LNT_PICK(lnt_square_sum);
#pragma omp parallel for schedule(dynamic, 1) num_threads(lnt_threads(c))
    for (int64_t piece = 0; piece < k.count; piece++) {
        const int64_t begin = piece * k.size, end = begin + k.size;
        int64_t at, n;
        sums[piece] = 0;
        for (int i = first_param(p, begin); i < lnt_param_count(p) && lnt_param_at(p, i)->offset < end; i++)
            if (part_of(p, i, begin, end, &at, &n)) sums[piece] += kernel(grad + at, n);
    }
    for (int64_t piece = 0; piece < k.count; piece++) total += sums[piece];
    return sqrt(total);
}

double lnt_clip_scale(double norm, double limit) { return limit > 0 && norm > limit ? limit / norm : 1.0; }

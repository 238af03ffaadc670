/* S4D on the CPU (README.md): strips of channels, a vector of them at a time, the M numbers of their states one after the other and each taken over a
 * few tokens while it stays in registers. A strip's dynamics and states lie as [M,W], real and imaginary parts apart.
 *
 * What one token does to a number is the same in whatever group of tokens it stands, every product and sum written out. */
#include <omp.h>

#include "recurrence/scan/s4d_steps.h"
#include "recurrence/scan/scan_rows.h"

enum {
    W = 4 * LNT_VL, /* channels of a strip */
    GROUP = 8,      /* tokens that a number goes over at once */
    BLOCK = 16,     /* tokens that backward takes together, from the state kept at the start of them */
    TWO = 2,        /* numbers at once on the way back: what is carried waits for four products behind each other */
    SMALL = 4096,   /* numbers of states to go over, below which threads cost more than they bring */
};

/* Of a strip, [M,W] each, in pairs of real and imaginary part. K is twice C Bbar, REST what rounding took from Abar (complex_cpu.c says why). */
enum { A_RE, A_IM, REST_RE, REST_IM, K_RE, K_IM, H_RE, H_IM, CARRY_RE, CARRY_IM, DA_RE, DA_IM, DK_RE, DK_IM, SQUARES };
typedef struct {
    const lnt_s4d_args *a;
    int64_t first, width;
    float *x[SQUARES];
    float *starts;        /* backward: the states at the start of all blocks, [2,M,W] each */
    float *u, *o, *dskip; /* [BLOCK,W], o being du on the way back; [W] */
    float *dout;          /* backward: [BLOCK,W] */
} strip;

static int64_t square(const lnt_s4d_args *a) { return (int64_t)a->M * W; }
static int64_t scratch_floats(const lnt_s4d_args *a, bool back)
{
    const int64_t mw = square(a);
    return (back ? SQUARES + 2 * pieces(a->longest, BLOCK) : CARRY_RE) * mw + (3 * BLOCK + 1) * W;
}

static strip carve(const lnt_s4d_args *a, int64_t i, bool back)
{
    strip s = { .a = a, .first = i * W, .width = at_most(W, a->D - i * W) };
    const int64_t mw = square(a);
    float *p = (float *)a->workspace + omp_get_thread_num() * scratch_floats(a, back);
    s.u = p, s.o = s.u + BLOCK * W, s.dout = s.o + BLOCK * W, s.dskip = s.dout + BLOCK * W;
    p = s.dskip + W;
    for (int k = 0; k < (back ? SQUARES : CARRY_RE); k++) s.x[k] = p + k * mw;
    s.starts = p + SQUARES * mw;
    return s;
}

/* ---- [channels,M] and [M,W] ------------------------------------------------------------------------------------------------------------------ */

/* Channels beyond the strip's are zeros, and stay so. */
static void turn_in(const strip *s, const float *state, int64_t n, int re)
{
    const int64_t M = s->a->M;
    for (int p = 0; p < 2; p++)
        for (int64_t m = 0; m < M; m++)
            for (int64_t j = 0; j < W; j++)
                s->x[re + p][m * W + j] = state && j < s->width ? state[((2 * n + p) * s->a->D + s->first + j) * M + m] : 0;
}
static void turn_out(const strip *s, float *state, int64_t n, int re)
{
    const int64_t M = s->a->M;
    for (int p = 0; state && p < 2; p++)
        for (int64_t j = 0; j < s->width; j++)
            for (int64_t m = 0; m < M; m++) state[((2 * n + p) * s->a->D + s->first + j) * M + m] = s->x[re + p][m * W + j];
}

static lnt_s4d_step step_of(const lnt_s4d_args *a, int64_t d, int64_t m)
{
    const int64_t i = d * a->M + m;
    return lnt_s4d_discretize(a->discretization, (double)((const float *)a->dt)[d],
                              (double)((const float *)a->A_re)[i] + I * (double)((const float *)a->A_im)[i]);
}
static double complex C_of(const lnt_s4d_args *a, int64_t i) { return (double)((const float *)a->C_re)[i] + I * (double)((const float *)a->C_im)[i]; }

static void make_dynamics(const strip *s)
{
    const int64_t M = s->a->M;
    for (int k = 0; k < H_RE; k++) memset(s->x[k], 0, (size_t)square(s->a) * sizeof(float));
    for (int64_t j = 0; j < s->width; j++)
        for (int64_t m = 0; m < M; m++) {
            const lnt_s4d_step step = step_of(s->a, s->first + j, m);
            const double complex K = 2 * C_of(s->a, (s->first + j) * M + m) * step.B;
            const double part[] = { creal(step.A), cimag(step.A) };
            for (int p = 0; p < 2; p++) {
                float *high = s->x[A_RE + p] + m * W + j;
                *high = (float)part[p];
                s->x[REST_RE + p][m * W + j] = (float)(part[p] - (double)*high);
            }
            s->x[K_RE][m * W + j] = (float)creal(K);
            s->x[K_IM][m * W + j] = (float)cimag(K);
        }
}

/* ---- tokens ---------------------------------------------------------------------------------------------------------------------------------- */

/* Abar h + u. */
INLINE void turn(const strip *s, int64_t i, vf *re, vf *im, vf u)
{
    const vf x = *re, y = *im, e = v_load(s->x[REST_RE] + i), f = v_load(s->x[REST_IM] + i), c = v_load(s->x[A_RE] + i), d = v_load(s->x[A_IM] + i);
    *re = v_fma(c, x, v_fma(-d, y, v_fma(e, x, v_fma(-f, y, u))));
    *im = v_fma(c, y, v_fma(d, x, v_fma(e, y, f * x)));
}

/* h over `count` tokens of s->u, and where it is read o += 2 Re(K h), which begins as D u. */
INLINE void forward_numbers(const strip *s, bool read, int64_t j, int count, int64_t M)
{
    vf o[GROUP];
    for (int t = 0; read && t < count; t++) o[t] = v_load(s->o + t * W + j);
    for (int64_t m = 0; m < M; m++) {
        const int64_t i = m * W + j;
        vf re = v_load(s->x[H_RE] + i), im = v_load(s->x[H_IM] + i);
        const vf c = v_load(s->x[K_RE] + i), d = v_load(s->x[K_IM] + i);
        for (int t = 0; t < count; t++) {
            turn(s, i, &re, &im, v_load(s->u + t * W + j));
            if (read) o[t] = v_fma(c, re, v_fma(-d, im, o[t]));
        }
        v_store(s->x[H_RE] + i, re);
        v_store(s->x[H_IM] + i, im);
    }
    for (int t = 0; read && t < count; t++) v_store(s->o + t * W + j, o[t]);
}

/* Rows of u of `count` tokens; lanes beyond the strip are zeros. */
static void take_rows(const strip *s, float *dst, const void *rows, int64_t t, int count)
{
    for (int i = 0; i < count; i++) {
        memset(dst + i * W, 0, W * sizeof(float));
        V_EACH(j, n, s->width) v_store_n(dst + i * W + j, v_get(rows, s->a->dtype, (t + i) * s->a->D + s->first + j, n), n);
    }
}

static void forward_group(const strip *s, bool read, int64_t t, int count)
{
    const lnt_s4d_args *a = s->a;
    take_rows(s, s->u, a->u, t, count);
    for (int i = 0; read && i < count; i++)
        V_EACH(j, n, s->width) v_store(s->o + i * W + j, a->skip ? v_load(s->u + i * W + j) * v_get(a->skip, LINNET_F32, s->first + j, n) : v_zero());
    for (int64_t j = 0; j < s->width; j += LNT_VL)
        if (!read)
            forward_numbers(s, false, j, GROUP, a->M);
        else if (count == GROUP)
            forward_numbers(s, true, j, GROUP, a->M);
        else
            forward_numbers(s, true, j, count, a->M);
    for (int i = 0; read && i < count; i++)
        V_EACH(j, n, s->width) v_put(a->o, a->dtype, (t + i) * a->D + s->first + j, n, v_load(s->o + i * W + j));
}

static void forward_strip(const strip *s, int64_t n)
{
    const lnt_s4d_args *a = s->a;
    turn_in(s, a->s0, n, H_RE);
    for (int64_t t = a->cu_seqlens[n]; t < a->cu_seqlens[n + 1]; t += GROUP) forward_group(s, true, t, (int)at_most(GROUP, a->cu_seqlens[n + 1] - t));
    turn_out(s, a->sT, n, H_RE);
}

/* Numbers m .. m+numbers-1 of a vector of channels over a block: their states again, and back over them. du, in s->o, begins as D do. */
INLINE void backward_numbers(const strip *s, int64_t j, int numbers, int64_t m, int count)
{
    const float *u = s->u + j, *dout = s->dout + j;
    float *du = s->o + j;
    vf re[TWO], im[TWO], states[BLOCK + 1][2 * TWO];
    for (int g = 0; g < numbers; g++) re[g] = v_load(s->x[H_RE] + (m + g) * W + j), im[g] = v_load(s->x[H_IM] + (m + g) * W + j);
    for (int t = 0; t < count; t++)
        for (int g = 0; g < numbers; g++) {
            states[t][2 * g] = re[g], states[t][2 * g + 1] = im[g];
            turn(s, (m + g) * W + j, &re[g], &im[g], v_load(u + t * W));
        }
    vf c[TWO], d[TWO], e[TWO], f[TWO], kr[TWO], ki[TWO], carry_re[TWO], carry_im[TWO], da_re[TWO], da_im[TWO], dk_re[TWO], dk_im[TWO];
    for (int g = 0; g < numbers; g++) {
        const int64_t i = (m + g) * W + j;
        states[count][2 * g] = re[g], states[count][2 * g + 1] = im[g];
        c[g] = v_load(s->x[A_RE] + i), d[g] = v_load(s->x[A_IM] + i), e[g] = v_load(s->x[REST_RE] + i), f[g] = v_load(s->x[REST_IM] + i);
        kr[g] = v_load(s->x[K_RE] + i), ki[g] = v_load(s->x[K_IM] + i);
        carry_re[g] = v_load(s->x[CARRY_RE] + i), carry_im[g] = v_load(s->x[CARRY_IM] + i);
        da_re[g] = v_load(s->x[DA_RE] + i), da_im[g] = v_load(s->x[DA_IM] + i);
        dk_re[g] = v_load(s->x[DK_RE] + i), dk_im[g] = v_load(s->x[DK_IM] + i);
    }
    for (int t = count - 1; t >= 0; t--) {
        const vf dy = v_load(dout + t * W);
        vf sum = v_load(du + t * W);
        for (int g = 0; g < numbers; g++) {
            const vf lr = v_fma(kr[g], dy, carry_re[g]), li = v_fma(-ki[g], dy, carry_im[g]), x = states[t][2 * g], y = states[t][2 * g + 1];
            sum += lr;
            carry_re[g] = v_fma(c[g], lr, v_fma(d[g], li, v_fma(e[g], lr, f[g] * li)));
            carry_im[g] = v_fma(c[g], li, v_fma(-d[g], lr, v_fma(e[g], li, -f[g] * lr)));
            da_re[g] += v_fma(lr, x, li * y);
            da_im[g] += v_fma(li, x, -lr * y);
            dk_re[g] = v_fma(dy, states[t + 1][2 * g], dk_re[g]);
            dk_im[g] = v_fma(-dy, states[t + 1][2 * g + 1], dk_im[g]);
        }
        v_store(du + t * W, sum);
    }
    for (int g = 0; g < numbers; g++) {
        const int64_t i = (m + g) * W + j;
        v_store(s->x[CARRY_RE] + i, carry_re[g]), v_store(s->x[CARRY_IM] + i, carry_im[g]);
        v_store(s->x[DA_RE] + i, da_re[g]), v_store(s->x[DA_IM] + i, da_im[g]);
        v_store(s->x[DK_RE] + i, dk_re[g]), v_store(s->x[DK_IM] + i, dk_im[g]);
    }
}

static void backward_block(const strip *s, int64_t t, int count)
{
    const lnt_s4d_args *a = s->a;
    take_rows(s, s->u, a->u, t, count);
    if (a->dout)
        take_rows(s, s->dout, a->dout, t, count);
    else
        memset(s->dout, 0, BLOCK * W * sizeof(float));
    V_EACH(j, n, s->width)
    {
        const vf skip = a->skip ? v_get(a->skip, LINNET_F32, s->first + j, n) : v_zero();
        vf dskip = v_load(s->dskip + j);
        for (int i = count - 1; i >= 0; i--) {
            const vf dy = v_load(s->dout + i * W + j);
            v_store(s->o + i * W + j, dy * skip);
            dskip += dy * v_load(s->u + i * W + j);
        }
        v_store(s->dskip + j, dskip);
        int64_t m = 0;
        for (; m + TWO <= a->M; m += TWO) backward_numbers(s, j, TWO, m, count);
        for (; m < a->M; m++) backward_numbers(s, j, 1, m, count);
        for (int i = 0; a->du && i < count; i++) v_put(a->du, a->dtype, (t + i) * a->D + s->first + j, n, v_load(s->o + i * W + j));
    }
}

/* The states at the start of every block, then block by block from the end. H_RE and H_IM lie one behind the other. */
static void backward_strip(const strip *s, int64_t n)
{
    const lnt_s4d_args *a = s->a;
    const int64_t two = 2 * square(a), first = a->cu_seqlens[n], len = a->cu_seqlens[n + 1] - first, blocks = pieces(len, BLOCK);
    turn_in(s, a->s0, n, H_RE);
    for (int64_t b = 0; b < blocks; b++) {
        memcpy(s->starts + b * two, s->x[H_RE], (size_t)two * sizeof(float));
        for (int64_t i = 0; b < blocks - 1 && i < BLOCK; i += GROUP) forward_group(s, false, first + b * BLOCK + i, GROUP);
    }
    turn_in(s, a->dsT, n, CARRY_RE);
    for (int64_t b = blocks - 1; b >= 0; b--) {
        memcpy(s->x[H_RE], s->starts + b * two, (size_t)two * sizeof(float));
        backward_block(s, first + b * BLOCK, (int)at_most(BLOCK, len - b * BLOCK));
    }
    turn_out(s, a->ds0, n, CARRY_RE);
}

/* ---- pieces of work -------------------------------------------------------------------------------------------------------------------------- */

/* Sums over sequences have at most SCAN_PARTS parts, which follow from the shape: [parts,4,D,M] and [parts,D] behind the threads' scratch. */
static int64_t parts_of(const lnt_s4d_args *a, bool back) { return back ? at_most(a->sequences, SCAN_PARTS) : a->sequences; }
static float *sums_of(const lnt_s4d_args *a, int threads) { return (float *)a->workspace + threads * scratch_floats(a, true); }
static int64_t part_floats(const lnt_s4d_args *a) { return 4 * a->D * a->M + a->D; }

static void put_sums(const strip *s, float *part)
{
    const lnt_s4d_args *a = s->a;
    for (int k = 0; k < 4; k++)
        for (int64_t j = 0; j < s->width; j++)
            for (int64_t m = 0; m < a->M; m++) part[(k * a->D + s->first + j) * a->M + m] = s->x[DA_RE + k][m * W + j];
    memcpy(part + 4 * a->D * a->M + s->first, s->dskip, (size_t)s->width * sizeof(float));
}

/* The parameters' gradients of channel d, from the parts added in order. */
static void finish_channel(const lnt_s4d_args *a, const float *sums, int64_t parts, int64_t d)
{
    const int64_t M = a->M, each = part_floats(a);
    double ddt = 0, dskip = 0;
    for (int64_t m = 0; m < M; m++) {
        double sum[4] = { 0 };
        for (int64_t p = 0; p < parts; p++)
            for (int k = 0; k < 4; k++) sum[k] += (double)sums[p * each + (k * a->D + d) * M + m];
        const int64_t i = d * M + m;
        const lnt_s4d_gradient g = lnt_s4d_backward(step_of(a, d, m), C_of(a, i), sum[0] + I * sum[1], 2 * (sum[2] + I * sum[3]));
        ddt += g.dt;
        const struct {
            float *to;
            double value;
        } out[] = { { a->dA_re, creal(g.A) }, { a->dA_im, cimag(g.A) }, { a->dC_re, creal(g.C) }, { a->dC_im, cimag(g.C) } };
        for (int k = 0; k < 4; k++)
            if (out[k].to) out[k].to[i] = (float)out[k].value;
    }
    for (int64_t p = 0; p < parts; p++) dskip += (double)sums[p * each + 4 * a->D * M + d];
    if (a->ddt) ((float *)a->ddt)[d] = (float)ddt;
    if (a->dskip) ((float *)a->dskip)[d] = (float)dskip;
}

static void run(const lnt_s4d_args *a, bool back, int threads)
{
    const int64_t parts = parts_of(a, back), strips = pieces(a->D, W), count = parts * strips;
    float *sums = sums_of(a, threads);
    const bool few = count < 2 || a->tokens * a->D * a->M < SMALL;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (!few)
    for (int64_t i = 0; i < count; i++) {
        const int64_t p = i / strips;
        const strip s = carve(a, i % strips, back);
        make_dynamics(&s);
        if (back) {
            for (int k = DA_RE; k <= DK_IM; k++) memset(s.x[k], 0, (size_t)square(a) * sizeof(float));
            memset(s.dskip, 0, W * sizeof(float));
        }
        for (int64_t n = scan_part(a->sequences, p, parts); n < scan_part(a->sequences, p + 1, parts); n++)
            if (back)
                backward_strip(&s, n);
            else
                forward_strip(&s, n);
        if (back) put_sums(&s, sums + p * part_floats(a));
    }
    if (!back) return;
#pragma omp parallel for num_threads(threads) if (!few)
    for (int64_t d = 0; d < a->D; d++) finish_channel(a, sums, parts, d);
}

static size_t workspace(const void *args, bool back, int threads)
{
    const lnt_s4d_args *a = args;
    return (size_t)(threads * scratch_floats(a, back) + (back ? parts_of(a, back) * part_floats(a) : 0)) * sizeof(float);
}

static void forward(const void *args, int threads) { run(args, false, threads); }
static void backward(const void *args, int threads) { run(args, true, threads); }

/* Time is not cut: both forms are one walk. */
extern const lnt_recur_impl LNT_V(lnt_s4d_chunk), LNT_V(lnt_s4d_recurrent);
const lnt_recur_impl LNT_V(lnt_s4d_chunk) = { .name = LNT_V_NAME("chunk"), .form = LINNET_FORM_CHUNK, .needs = LNT_V_LEVEL,
                                              .workspace = workspace, .forward = forward, .backward = backward };
const lnt_recur_impl LNT_V(lnt_s4d_recurrent) = { .name = LNT_V_NAME("recurrent"), .form = LINNET_FORM_RECURRENT, .needs = LNT_V_LEVEL,
                                                  .workspace = workspace, .forward = forward, .backward = backward };

/* A call of more than a token joins the rows that the first of them still sees with its own, and runs the operator with its window; a query that is 0
 * takes no step. One token is a few calls of the operator without a window, none longer than a chunk: it sees, with C tokens a chunk,
 *
 *   what is left of the chunk where the window begins, decayed over the chunks between, plus the sums over these (made anew with every chunk),
 *   then the tokens of its own chunk up to itself. */
#include "recurrence/mesa/mesa_ring.h"

#include <math.h>

#include "core/threads.h"
#include "device/device.h"
#include "recurrence/recur_node.h"

enum { K_ROW, V_ROW, G_ROW, BETA_ROW, ROWS };

typedef struct {
    size_t row[ROWS], q, o, G, H; /* bytes: of rows, of the sums */
} sizes;

static sizes sizes_of(const lnt_mesa_args *a)
{
    const size_t wide = lnt_dtype_size(a->dtype), key = (size_t)a->Hq * (size_t)a->K * wide, value = (size_t)a->Hv * (size_t)a->V * wide;
    const size_t head = (size_t)a->Hv * (size_t)a->K * 4;
    return (sizes){ .row = { key, value, (size_t)a->Hv * 4, (size_t)a->Hv * 4 }, .q = key, .o = value, .G = head * (size_t)a->V,
                    .H = head * (size_t)a->K };
}

static int64_t rows_of(const lnt_mesa_args *a, int64_t capacity) { return a->heads.window < capacity ? a->heads.window : capacity; }

/* Whether the capacity is the end, rather than a ring that never fills. */
static bool limited(const lnt_mesa_args *a, int64_t capacity) { return a->heads.window > capacity; }

int64_t lnt_mesa_ring_bytes(const lnt_mesa_args *a, int64_t capacity)
{
    const sizes z = sizes_of(a);
    size_t bytes = z.G + z.H;
    for (int i = 0; i < ROWS; i++) bytes += (size_t)rows_of(a, capacity) * z.row[i];
    return (int64_t)bytes;
}

int lnt_mesa_ring_tensors(const lnt_mesa_args *a, int64_t capacity, int64_t tokens, lnt_state_tensor *t)
{
    const sizes z = sizes_of(a);
    const int64_t R = rows_of(a, capacity), rows = tokens < R ? tokens : R;
    const lnt_state_tensor part[] = { { .name = "s_kv", .dtype = LINNET_F32, .ndim = 3, .dim = { a->Hv, a->K, a->V } },
                                      { .name = "s_kk", .dtype = LINNET_F32, .ndim = 3, .dim = { a->Hv, a->K, a->K } },
                                      { .name = "k", .dtype = a->dtype, .ndim = 3, .dim = { rows, a->Hq, a->K } },
                                      { .name = "v", .dtype = a->dtype, .ndim = 3, .dim = { rows, a->Hv, a->V } },
                                      { .name = "g", .dtype = LINNET_F32, .ndim = 2, .dim = { rows, a->Hv } },
                                      { .name = "beta", .dtype = LINNET_F32, .ndim = 2, .dim = { rows, a->Hv } } };
    int64_t at = 0;
    for (int i = 0; i < 2 + ROWS; i++) {
        t[i] = part[i];
        t[i].offset = at;
        t[i].appended = i >= 2 && limited(a, capacity);
        at += (int64_t)(i == 0 ? z.G : i == 1 ? z.H : (size_t)R * z.row[i - 2]);
    }
    return 2 + ROWS;
}

/* ---- a sequence at work ------------------------------------------------------------------------------------------------------------------ */

typedef struct {
    const lnt_call *k;
    lnt_mesa_args a;           /* its workspace is what is left for the operator */
    sizes z;
    int64_t w, R, C;           /* R: rows of the ring */
    float *G, *H;              /* the state's sums */
    char *ring[ROWS];
    char *row[ROWS], *q, *o;   /* joined: as many rows as the ring and the call have together */
    float *G_now, *H_now;      /* what the token's chunk begins with */
    float *fade;               /* [Hv] */
} sequence;

/* The joined rows and the sums at base (NULL: only measure); returns the bytes. */
static size_t carve(sequence *s, int64_t joined, char *base)
{
    void *at[ROWS + 5];
    const size_t bytes[ROWS + 5] = { (size_t)joined * s->z.row[K_ROW], (size_t)joined * s->z.row[V_ROW], (size_t)joined * s->z.row[G_ROW],
                                     (size_t)joined * s->z.row[BETA_ROW], (size_t)joined * s->z.q, (size_t)joined * s->z.o, s->z.G, s->z.H,
                                     (size_t)s->a.Hv * 4 };
    size_t used = 0;
    for (int i = 0; i < ROWS + 5; i++) {
        at[i] = base ? base + used : NULL;
        used += lnt_recur_padded(bytes[i]);
    }
    for (int i = 0; i < ROWS; i++) s->row[i] = at[i];
    s->q = at[ROWS];
    s->o = at[ROWS + 1];
    s->G_now = at[ROWS + 2];
    s->H_now = at[ROWS + 3];
    s->fade = at[ROWS + 4];
    return used;
}

static sequence begin(const lnt_mesa_args *a, int64_t capacity)
{
    return (sequence){ .a = *a, .z = sizes_of(a), .w = a->heads.window, .R = rows_of(a, capacity), .C = lnt_mesa_window_chunk(a->heads.window, 0) };
}

size_t lnt_mesa_ring_workspace(const lnt_mesa_args *a, int64_t capacity, int64_t tokens, int threads, lnt_device *d)
{
    sequence s = begin(a, capacity);
    int64_t cu[2] = { 0, s.R };
    size_t most = 0;
    for (int joined = 0; joined < 2; joined++) {
        s.a.heads.window = joined ? s.w : 0;
        s.a.tokens = cu[1] = joined ? s.R + tokens : s.R;
        s.a.sequences = 1;
        s.a.cu_seqlens = cu;
        const size_t bytes = lnt_recur_workspace_quiet(&s.a, false, threads, d);
        most = bytes > most ? bytes : most;
    }
    return lnt_recur_padded(most) + carve(&s, s.R + tokens, NULL);
}

/* The first `n` joined rows, with the window or from the states G and H and into them (`anew`: from 0). */
static linnet_status run(const sequence *s, int64_t n, bool window, float *G, float *H, bool anew)
{
    int64_t cu[2] = { 0, n };
    lnt_mesa_args a = s->a;
    a.tokens = n;
    a.sequences = 1;
    a.cu_seqlens = cu;
    a.cu_seqlens_device = NULL;
    a.k = s->row[K_ROW];
    a.v = s->row[V_ROW];
    a.g = s->row[G_ROW];
    a.beta = s->row[BETA_ROW];
    a.q = s->q;
    a.o = s->o;
    if (!window) {
        a.heads.window = 0;
        a.s0 = anew ? NULL : G;
        a.h0 = anew ? NULL : H;
        a.sT = G;
        a.hT = H;
    }
    return lnt_recur_run(s->k->c, &a, false);
}

/* The `count` rows before token `position` are the first of those joined, with queries that are 0. */
static void get_rows(const sequence *s, int64_t position, int64_t count)
{
    for (int i = 0; i < ROWS; i++) lnt_ring_get(s->k->c, s->row[i], s->ring[i], s->R, position, count, s->z.row[i]);
    memset(s->q, 0, (size_t)count * s->z.q);
}

/* Rows first .. first + count - 1 of the call come behind them; and into the ring. */
static void add_rows(const sequence *s, int64_t behind, int64_t first, int64_t count)
{
    const void *from[ROWS] = { s->a.k, s->a.v, s->a.g, s->a.beta };
    for (int i = 0; i < ROWS; i++)
        memcpy(s->row[i] + (size_t)behind * s->z.row[i], (const char *)from[i] + (size_t)first * s->z.row[i], (size_t)count * s->z.row[i]);
    memcpy(s->q + (size_t)behind * s->z.q, (const char *)s->a.q + (size_t)first * s->z.q, (size_t)count * s->z.q);
}
static void keep_rows(const sequence *s, int64_t position, int64_t behind, int64_t count)
{
    for (int i = 0; i < ROWS; i++)
        lnt_ring_put(s->k->c, s->ring[i], s->R, position, s->row[i] + (size_t)behind * s->z.row[i], count, s->z.row[i]);
}
static void put_outputs(const sequence *s, int64_t behind, int64_t first, int64_t count)
{
    memcpy((char *)s->a.o + (size_t)first * s->z.o, s->o + (size_t)behind * s->z.o, (size_t)count * s->z.o);
}

/* Tokens between the chunk where the window of one that begins at token `begins` begins, and that. */
static int64_t between(const sequence *s, int64_t begins) { return begins < s->w - s->C ? begins : s->w - s->C; }

/* The state's sums for the chunk of token t, of which the ring has all that come before. */
static linnet_status sum_between(const sequence *s, int64_t t)
{
    const int64_t begins = t / s->C * s->C, n = between(s, begins);
    get_rows(s, begins, n);
    if (n) return run(s, n, false, s->G, s->H, true);
    memset(s->G, 0, s->z.G);
    memset(s->H, 0, s->z.H);
    return LINNET_OK;
}

/* S = fade S + sum for every head [each]. */
static void fade_and_add(const sequence *s, float *S, const float *sum, int64_t each)
{
    for (int64_t h = 0; h < s->a.Hv; h++)
        for (int64_t i = h * each; i < (h + 1) * each; i++) S[i] = s->fade[h] * S[i] + sum[i];
}

/* G_now and H_now for token t: what is left of the chunk where its window begins, faded, and the sums. */
static linnet_status begin_chunk(const sequence *s, int64_t t)
{
    const int64_t begins = t / s->C * s->C, n = between(s, begins), left = t >= s->w ? s->C - 1 - t % s->C : 0;
    lnt_ring_get(s->k->c, s->row[G_ROW], s->ring[G_ROW], s->R, begins, n, s->z.row[G_ROW]);
    for (int64_t h = 0; h < s->a.Hv; h++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += ((const float *)s->row[G_ROW])[i * s->a.Hv + h];
        s->fade[h] = (float)exp(sum);
    }
    if (left) {
        get_rows(s, t - s->w + 1 + left, left);
        LNT_TRY(run(s, left, false, s->G_now, s->H_now, true));
    } else {
        memset(s->G_now, 0, s->z.G);
        memset(s->H_now, 0, s->z.H);
    }
    fade_and_add(s, s->G_now, s->G, (int64_t)s->a.K * s->a.V);
    fade_and_add(s, s->H_now, s->H, (int64_t)s->a.K * s->a.K);
    return LINNET_OK;
}

/* Row `first` of the call is token t. */
static linnet_status one_token(const sequence *s, int64_t t, int64_t first)
{
    const int64_t own = t % s->C;
    if (own == 0) LNT_TRY(sum_between(s, t));
    LNT_TRY(begin_chunk(s, t));
    get_rows(s, t, own);
    add_rows(s, own, first, 1);
    LNT_TRY(run(s, own + 1, false, s->G_now, s->H_now, false));
    put_outputs(s, own, first, 1);
    keep_rows(s, t, own, 1);
    return LINNET_OK;
}

static linnet_status tokens(const sequence *s, int64_t t, int64_t first, int64_t count)
{
    const int64_t past = t < s->w - 1 ? t : s->w - 1;
    get_rows(s, t, past);
    add_rows(s, past, first, count);
    LNT_TRY(run(s, past + count, true, NULL, NULL, false));
    put_outputs(s, past, first, count);
    keep_rows(s, t, past, count);
    return (t + count) % s->C ? sum_between(s, t + count) : LINNET_OK;
}

linnet_status lnt_mesa_ring_forward(const lnt_call *k, const lnt_mesa_args *a)
{
    for (int64_t n = 0; n < k->n_seq; n++) {
        const int64_t first = k->cu[n], len = k->cu[n + 1] - first, each = lnt_rows_are_alone(k->c) ? 1 : len;
        sequence s = begin(a, k->state_capacity);
        if (limited(a, k->state_capacity) && k->position[n] + len > s.R)
            return lnt_fail(k->c, LINNET_EINVAL, "%lld tokens do not fit a state of %lld", (long long)(k->position[n] + len), (long long)s.R);
        s.k = k;
        s.G = (float *)(void *)((char *)k->state + n * k->state_stride);
        s.H = (float *)(void *)((char *)s.G + s.z.G);
        char *ring = (char *)s.H + s.z.H;
        for (int i = 0; i < ROWS; i++) {
            s.ring[i] = ring;
            ring += (size_t)s.R * s.z.row[i];
        }
        const size_t used = carve(&s, s.R + each, a->workspace);
        if (used > a->workspace_size)
            return lnt_fail(k->c, LINNET_EINTERNAL, "a workspace of %zu bytes is too small for a window", a->workspace_size);
        s.a.workspace = (char *)a->workspace + used;
        s.a.workspace_size = a->workspace_size - used;
        for (int64_t i = 0; i < len; i += each) {
            const int64_t t = k->position[n] + i;
            LNT_TRY(each == 1 ? one_token(&s, t, first + i) : tokens(&s, t, first + i, each));
        }
    }
    return LINNET_OK;
}

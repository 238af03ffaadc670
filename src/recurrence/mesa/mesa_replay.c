#include "recurrence/mesa/mesa_replay.h"

#include "device/device.h"

typedef struct {
    size_t k, v, gate, q, o; /* bytes of a row */
} row_bytes;

static row_bytes rows_of(const lnt_mesa_args *a)
{
    size_t size = lnt_dtype_size(a->dtype), k = (size_t)a->Hq * (size_t)a->K * size, v = (size_t)a->Hv * (size_t)a->V * size;
    return (row_bytes){ .k = k, .v = v, .gate = (size_t)a->Hv * 4, .q = k, .o = v };
}

static size_t aligned(size_t bytes) { return (bytes + LNT_ALIGN - 1) / LNT_ALIGN * LNT_ALIGN; }
static size_t kv_bytes(const lnt_mesa_args *a) { return (size_t)a->Hv * (size_t)a->K * (size_t)a->V * 4; }
static size_t kk_bytes(const lnt_mesa_args *a) { return (size_t)a->Hv * (size_t)a->K * (size_t)a->K * 4; }

int64_t lnt_replay_state_bytes(const lnt_mesa_args *a)
{
    row_bytes r = rows_of(a);
    return (int64_t)(kv_bytes(a) + kk_bytes(a) + LNT_REPLAY_CHUNK * (r.k + r.v + 2 * r.gate));
}

int lnt_replay_state_tensors(const lnt_mesa_args *a, int64_t tokens, lnt_state_tensor *t)
{
    const int64_t rows = tokens % LNT_REPLAY_CHUNK;
    const row_bytes r = rows_of(a);
    const struct {
        const char *name;
        size_t room; /* bytes */
        lnt_state_tensor is;
    } part[] = { { "s_kv", kv_bytes(a), { .dtype = LINNET_F32, .ndim = 3, .dim = { a->Hv, a->K, a->V } } },
                 { "s_kk", kk_bytes(a), { .dtype = LINNET_F32, .ndim = 3, .dim = { a->Hv, a->K, a->K } } },
                 { "k", LNT_REPLAY_CHUNK * r.k, { .dtype = a->dtype, .ndim = 3, .dim = { rows, a->Hq, a->K } } },
                 { "v", LNT_REPLAY_CHUNK * r.v, { .dtype = a->dtype, .ndim = 3, .dim = { rows, a->Hv, a->V } } },
                 { "g", LNT_REPLAY_CHUNK * r.gate, { .dtype = LINNET_F32, .ndim = 2, .dim = { rows, a->Hv } } },
                 { "beta", LNT_REPLAY_CHUNK * r.gate, { .dtype = LINNET_F32, .ndim = 2, .dim = { rows, a->Hv } } } };
    enum { PARTS = sizeof part / sizeof *part };
    int64_t at = 0;
    for (int i = 0; i < PARTS; i++) {
        t[i] = part[i].is;
        t[i].name = part[i].name;
        t[i].offset = at;
        at += (int64_t)part[i].room;
    }
    return PARTS;
}

size_t lnt_replay_bytes(const lnt_mesa_args *a, int64_t tokens)
{
    row_bytes r = rows_of(a);
    size_t rows = (size_t)tokens + LNT_REPLAY_CHUNK;
    return aligned(rows * r.k) + aligned(rows * r.v) + 2 * aligned(rows * r.gate) + aligned(rows * r.q) + aligned(rows * r.o);
}

static char *take(lnt_mesa_args *a, size_t bytes)
{
    char *p = a->workspace;
    a->workspace = p + bytes;
    a->workspace_size -= bytes;
    return p;
}

static linnet_status replay_sequence(const lnt_call *k, const lnt_mesa_args *all, int64_t n)
{
    int64_t first = k->cu[n], len = k->cu[n + 1] - first, before = k->position[n] % LNT_REPLAY_CHUNK, rows = before + len;
    int64_t whole = rows / LNT_REPLAY_CHUNK * LNT_REPLAY_CHUNK;
    row_bytes r = rows_of(all);
    lnt_mesa_args a = *all;
    char *G = (char *)k->state + n * k->state_stride, *H = G + kv_bytes(all), *kept = H + kk_bytes(all);
    struct {
        const void *from;
        const void **to;
        size_t row;
        char *kept, *joined;
    } part[4] = { { .from = all->k, .to = &a.k, .row = r.k },
                  { .from = all->v, .to = &a.v, .row = r.v },
                  { .from = all->g, .to = &a.g, .row = r.gate },
                  { .from = all->beta, .to = &a.beta, .row = r.gate } };
    for (int i = 0; i < 4; i++) {
        part[i].kept = kept;
        kept += LNT_REPLAY_CHUNK * part[i].row;
        part[i].joined = take(&a, aligned((size_t)rows * part[i].row));
        lnt_device_copy(k->c, part[i].joined, part[i].kept, (size_t)before * part[i].row);
        lnt_device_copy(k->c, part[i].joined + (size_t)before * part[i].row, (const char *)part[i].from + (size_t)first * part[i].row,
                        (size_t)len * part[i].row);
    }
    char *q = take(&a, aligned((size_t)rows * r.q)), *o = take(&a, aligned((size_t)rows * r.o));
    lnt_device_zero(k->c, q, (size_t)before * r.q); /* a query that is 0 takes no step */
    lnt_device_copy(k->c, q + (size_t)before * r.q, (const char *)all->q + (size_t)first * r.q, (size_t)len * r.q);

    /* the chunks that are full move the state on; what is left is kept */
    for (int64_t at = 0, end; at < rows; at = end) {
        end = at < whole ? whole : rows;
        int64_t cu[2] = { 0, end - at };
        a.tokens = cu[1];
        a.sequences = 1;
        a.cu_seqlens = cu;
        a.cu_seqlens_device = NULL;
        a.s0 = G;
        a.h0 = H;
        a.sT = at < whole ? G : NULL;
        a.hT = at < whole ? H : NULL;
        for (int i = 0; i < 4; i++) *part[i].to = part[i].joined + (size_t)at * part[i].row;
        a.q = q + (size_t)at * r.q;
        a.o = o + (size_t)at * r.o;
        LNT_TRY(lnt_recur_run(k->c, &a, false));
    }
    lnt_device_copy(k->c, (char *)all->o + (size_t)first * r.o, o + (size_t)before * r.o, (size_t)len * r.o);
    for (int i = 0; i < 4; i++)
        lnt_device_copy(k->c, part[i].kept, part[i].joined + (size_t)whole * part[i].row, (size_t)(rows - whole) * part[i].row);
    return LINNET_OK;
}

linnet_status lnt_replay_forward(const lnt_call *k, const lnt_mesa_args *a)
{
    if (a->workspace_size < lnt_replay_bytes(a, lnt_recur_longest(a)))
        return lnt_fail(k->c, LINNET_EINTERNAL, "a workspace of %zu bytes is too small for a chunk", a->workspace_size);
    for (int64_t n = 0; n < k->n_seq; n++) LNT_TRY(replay_sequence(k, a, n));
    return LINNET_OK;
}

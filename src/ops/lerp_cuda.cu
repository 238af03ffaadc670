/* Lerps (equations: lerp.c). Floor: every input read once, every output written once. A thread has a unit of columns of a, b and every m and goes
 * down some rows; where m has one row for all it keeps m, and going back the sums of dm, in registers. */
#include "ops/rows.cuh"

extern "C" {
#include "ops/lerp.h"
}

enum { LERP_THREADS = 128, LERP_ROWS = 4, LERP_AHEAD = 4 };

struct lerp_args {
    lnt_strided a, b, y, da, db; /* y: backward dy */
    lnt_strided m[LNT_LERP_MOST], dm[LNT_LERP_MOST];
    bool add_a, add_b, add_m[LNT_LERP_MOST];
    int count;
    int64_t rows, cols, each; /* each: rows of a block */
    float *part;              /* one row for all, backward: sums of dm_j, [count][blocks][cols]; NULL: not wanted */
    lnt_cut cut;              /* where b is the row of a before, zeros ahead of a sequence */
};

/* N: at least count, where m has one row for all; 0: a row for each. PRODUCT: b is a times what is given in its place. */
template <class P, int N, bool PRODUCT = false> __global__ void __launch_bounds__(LERP_THREADS) lerp_forward(const __grid_constant__ lerp_args x)
{
    let_next();
    await_last();
    const int64_t c = ((int64_t)blockIdx.y * LERP_THREADS + threadIdx.x) * P::U, r0 = (int64_t)blockIdx.x * x.each, r1 = min(x.rows, r0 + x.each);
    if (c >= x.cols) return;
    float m[N ? N : 1][P::U];
#pragma unroll
    for (int j = 0; j < N; j++)
        if (j < x.count) get_weights(m[j], (const float *)x.m[j].v.p + c);
#pragma unroll LERP_ROWS
    for (int64_t r = r0; r < r1; r++) {
        float a[P::U] = {}, b[P::U];
        if (x.a.v.p) get<P>(a, x.a.v, r * x.a.ld + c);
        get<P>(b, x.b.v, r * x.b.ld + c);
#pragma unroll
        for (int u = 0; u < P::U && PRODUCT; u++) b[u] *= a[u];
#pragma unroll
        for (int j = 0; j < (N ? N : LNT_LERP_MOST); j++) {
            if (j >= x.count) break;
            float y[P::U];
            if (!N) get<P>(m[0], x.m[j].v, r * x.m[j].ld + c);
#pragma unroll
            for (int u = 0; u < P::U; u++) y[u] = a[u] + (b[u] - a[u]) * m[N ? j : 0][u];
            put<P>(x.y.v, r * x.y.ld + j * x.cols + c, y);
        }
    }
}

/* A block's sums of dm. */
template <class P, int N> __device__ __forceinline__ void put_parts(const lerp_args &x, const float (&sum)[N ? N : 1][P::U], int64_t c)
{
#pragma unroll
    for (int j = 0; j < N; j++)
        if (j < x.count) {
            float *at = x.part + ((int64_t)j * gridDim.x + blockIdx.x) * x.cols + c;
#pragma unroll
            for (int u = 0; u < P::U; u++) at[u] = sum[j][u];
        }
}

template <class P, int N, bool PRODUCT = false> __global__ void __launch_bounds__(LERP_THREADS) lerp_backward(const __grid_constant__ lerp_args x)
{
    let_next();
    await_last();
    const int64_t c = ((int64_t)blockIdx.y * LERP_THREADS + threadIdx.x) * P::U, r0 = (int64_t)blockIdx.x * x.each, r1 = min(x.rows, r0 + x.each);
    if (c >= x.cols) return;
    float m[N ? N : 1][P::U], sum[N ? N : 1][P::U] = {};
#pragma unroll
    for (int j = 0; j < N; j++)
        if (j < x.count) get_weights(m[j], (const float *)x.m[j].v.p + c);
#pragma unroll 2
    for (int64_t r = r0; r < r1; r++) {
        float way[P::U], a[P::U] = {}, b[P::U] = {}, to_a[P::U] = {}, to_b[P::U] = {};
        if (x.part || !N || PRODUCT) {
            if (x.a.v.p) get<P>(a, x.a.v, r * x.a.ld + c);
            get<P>(b, x.b.v, r * x.b.ld + c);
        }
#pragma unroll
        for (int u = 0; u < P::U; u++) way[u] = (PRODUCT ? a[u] * b[u] : b[u]) - a[u];
#pragma unroll
        for (int j = 0; j < (N ? N : LNT_LERP_MOST); j++) {
            if (j >= x.count) break;
            float d[P::U];
            get<P>(d, x.y.v, r * x.y.ld + j * x.cols + c);
            if (!N) get<P>(m[0], x.m[j].v, r * x.m[j].ld + c);
#pragma unroll
            for (int u = 0; u < P::U; u++) {
                const float by = d[u] * m[N ? j : 0][u];
                to_b[u] += by, to_a[u] += d[u] - by, d[u] *= way[u];
                if (N) sum[j][u] += d[u];
            }
            if (!N && x.dm[j].v.p) put_sum<P>(x.dm[j].v, r * x.dm[j].ld + c, d, x.add_m[j]);
        }
#pragma unroll
        for (int u = 0; u < P::U && PRODUCT; u++) to_a[u] += to_b[u] * b[u], to_b[u] *= a[u];
        if (x.da.v.p) put_sum<P>(x.da.v, r * x.da.ld + c, to_a, x.add_a);
        if (x.db.v.p) put_sum<P>(x.db.v, r * x.db.ld + c, to_b, x.add_b);
    }
    if (x.part) put_parts<P, N>(x, sum, c);
}

/* Which of the rows from r on, one after the other, begin a sequence. */
struct lerp_sequences {
    const lnt_cut &cut;
    int64_t n, end;
    __device__ __forceinline__ lerp_sequences(const lnt_cut &cut_, int64_t r) : cut(cut_), n(sequence_at(cut_, r)), end(cut_.cu[n + 1]) {}
    __device__ __forceinline__ bool begins(int64_t r)
    {
        if (r < end) return r == cut.cu[n];
        while (end <= r) end = cut.cu[++n + 1];
        return true;
    }
};

/* Lerps between rows and those before them, m one row for all: of a thread's rows all loads are on their way before the first is used. */
template <class P, int N> __global__ void __launch_bounds__(LERP_THREADS) shifted_forward(const __grid_constant__ lerp_args x)
{
    let_next();
    await_last();
    const int64_t c = ((int64_t)blockIdx.y * LERP_THREADS + threadIdx.x) * P::U, r0 = (int64_t)blockIdx.x * LERP_ROWS;
    if (c >= x.cols) return;
    float m[N][P::U];
    lnt_raw<P> rows[LERP_ROWS + 1] = {};
#pragma unroll
    for (int i = 0; i <= LERP_ROWS; i++)
        if (r0 + i > 0 && r0 + i <= x.rows) rows[i] = fetch<P>(x.a.v, (r0 + i - 1) * x.a.ld + c);
#pragma unroll
    for (int j = 0; j < N; j++)
        if (j < x.count) get_weights(m[j], (const float *)x.m[j].v.p + c);
    lerp_sequences at(x.cut, r0);
#pragma unroll
    for (int i = 0; i < LERP_ROWS; i++) {
        const int64_t r = r0 + i;
        if (r >= x.rows) return;
        float a[P::U], b[P::U] = {};
        widen<P>(a, rows[i + 1], x.a.v.f32);
        if (!at.begins(r)) widen<P>(b, rows[i], x.a.v.f32);
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (j >= x.count) break;
            float y[P::U];
#pragma unroll
            for (int u = 0; u < P::U; u++) y[u] = a[u] + (b[u] - a[u]) * m[j][u];
            put<P>(x.y.v, r * x.y.ld + j * x.cols + c, y);
        }
    }
}

/* A row of da waits for what the row behind it gives to it, which of a thread's last row is another thread's. */
template <class P, int N> __global__ void __launch_bounds__(LERP_THREADS) shifted_backward(const __grid_constant__ lerp_args x)
{
    let_next();
    await_last();
    const int64_t c = ((int64_t)blockIdx.y * LERP_THREADS + threadIdx.x) * P::U, r0 = (int64_t)blockIdx.x * x.each, r1 = min(x.rows, r0 + x.each);
    if (c >= x.cols) return;
    float m[N][P::U], sum[N][P::U] = {}, waiting[P::U] = {};
#pragma unroll
    for (int j = 0; j < N; j++)
        if (j < x.count) get_weights(m[j], (const float *)x.m[j].v.p + c);
    lnt_raw<P> before = {};
    if (r0 > 0) before = fetch<P>(x.a.v, (r0 - 1) * x.a.ld + c);
    lerp_sequences at(x.cut, r0);
#pragma unroll 2
    for (int64_t r = r0; r <= r1; r++) {
        const bool own = r < r1, begins = r == x.rows || at.begins(r);
        float way[P::U] = {}, a[P::U] = {}, to_a[P::U] = {}, to_before[P::U] = {};
        if (own) {
            const lnt_raw<P> here = fetch<P>(x.a.v, r * x.a.ld + c);
            if (!begins) widen<P>(way, before, x.a.v.f32);
            widen<P>(a, here, x.a.v.f32);
            before = here;
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (j >= x.count || (!own && begins)) break;
            float d[P::U];
            get<P>(d, x.y.v, r * x.y.ld + j * x.cols + c);
#pragma unroll
            for (int u = 0; u < P::U; u++) {
                const float by = d[u] * m[j][u];
                to_before[u] += by, to_a[u] += d[u] - by;
                if (own) sum[j][u] += d[u] * (way[u] - a[u]);
            }
        }
        if (r > r0 && x.da.v.p) {
#pragma unroll
            for (int u = 0; u < P::U; u++) waiting[u] += begins ? 0.0f : to_before[u];
            put_sum<P>(x.da.v, (r - 1) * x.da.ld + c, waiting, x.add_a);
        }
#pragma unroll
        for (int u = 0; u < P::U; u++) waiting[u] = to_a[u];
    }
    if (x.part) put_parts<P, N>(x, sum, c);
}

/* a + m. */
struct sum_map {
    static constexpr int IN = 2, OUT = 1; /* a, m */
    template <int U> __device__ void operator()(const float (&in)[2][U], float (&out)[1][U]) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = in[0][u] + in[1][u];
    }
};

struct sum_slope {
    static constexpr int IN = 1, OUT = 2; /* dy */
    template <int U> __device__ void operator()(const float (&in)[1][U], float (&out)[2][U]) const
    {
#pragma unroll
        for (int u = 0; u < U; u++) out[0][u] = out[1][u] = in[0][u];
    }
};

struct sum_columns {
    static constexpr int OUT = 1;
    lnt_strided dy;
    template <class P> __device__ void row(float (&out)[1][P::U], int64_t r, int64_t c) const { get<P>(out[0], dy.v, r * dy.ld + c); }
};

/* The arguments, and the unit that fits all of them. */
static int arguments(const lnt_call *k, bool backward, lerp_args *x)
{
    const lnt_lerp_attr *attr = (const lnt_lerp_attr *)k->attr;
    const lnt_tensor *y = backward ? &k->d_out[0] : &k->out[0], *all[2 * LNT_LERP_MOST + 5];
    lnt_tensor m[LNT_LERP_MOST], dm[LNT_LERP_MOST];
    int n = 0;
    *x = {};
    x->a = strided(&k->in[0]), x->b = strided(&k->in[1]), x->y = strided(y);
    all[n++] = &k->in[0], all[n++] = &k->in[1], all[n++] = y;
    if (backward) x->da = strided(all[n++] = &k->d_in[0]), x->add_a = k->accumulate[0];
    if (backward) x->db = strided(all[n++] = &k->d_in[1]), x->add_b = k->accumulate[1];
    x->cut = cut_of(k), x->count = attr->count, x->rows = y->rows, x->cols = y->cols / attr->count;
    bool aligned = true;
    for (int j = 0; j < attr->count; j++) {
        m[j] = lnt_lerp_at(k, k->in, j), x->m[j] = strided(&m[j]);
        if (attr->row)
            aligned = aligned && (uintptr_t)m[j].data % 16 == 0;
        else
            all[n++] = &m[j];
        if (!backward) continue;
        dm[j] = lnt_lerp_at(k, k->d_in, j), x->dm[j] = strided(&dm[j]), x->add_m[j] = lnt_lerp_adds(k, j);
        if (!attr->row) all[n++] = &dm[j];
        if (attr->row && dm[j].data) x->part = (float *)k->work;
    }
    int64_t sizes = x->cols; /* a multiple of a unit if all of them are */
    for (int i = 0; i < n; i++) sizes |= all[i]->data ? all[i]->ld : 0;
    return aligned ? unit_of(sizes & 7 ? sizes & 7 : 8, all, n) : 1;
}

enum lerp_way { PLAIN, SHIFTED, PRODUCT }; /* to b; to the row before; to a times b */

static void lerps_forward(const lnt_call *k, lerp_way way)
{
    lerp_args x;
    const int unit = arguments(k, false, &x);
    const lnt_cuda *d = lnt_cuda_of(k->c);
    x.each = LERP_ROWS;
    const dim3 grid((unsigned)lnt_div_up(x.rows, LERP_ROWS), (unsigned)lnt_div_up(x.cols, (int64_t)LERP_THREADS * unit));
    if (x.rows <= 0) return;
    if (way == PRODUCT)
        LNT_BY_UNIT(unit, P, (lnt_launch(d, lerp_forward<P, 1, true>, grid, LERP_THREADS, x)));
    else if (way == SHIFTED && x.count == 1)
        LNT_BY_UNIT(unit, P, (lnt_launch(d, shifted_forward<P, 1>, grid, LERP_THREADS, x)));
    else if (way == SHIFTED)
        LNT_BY_UNIT(unit, P, (lnt_launch(d, shifted_forward<P, LNT_LERP_MOST>, grid, LERP_THREADS, x)));
    else if (!((const lnt_lerp_attr *)k->attr)->row)
        LNT_BY_UNIT(unit, P, (lnt_launch(d, lerp_forward<P, 0>, grid, LERP_THREADS, x)));
    else if (x.count == 1)
        LNT_BY_UNIT(unit, P, (lnt_launch(d, lerp_forward<P, 1>, grid, LERP_THREADS, x)));
    else
        LNT_BY_UNIT(unit, P, (lnt_launch(d, lerp_forward<P, LNT_LERP_MOST>, grid, LERP_THREADS, x)));
}

extern "C" linnet_status lnt_lerp_forward_cuda(const lnt_call *k)
{
    const lnt_lerp_attr *attr = (const lnt_lerp_attr *)k->attr;
    const bool add[1] = {false};
    if (k->out[0].rows <= 0) return LINNET_OK;
    if (attr->sum)
        row_run(k->c, sum_map{}, k->out[0].rows, k->out[0].cols, {&k->in[0], &k->in[2]}, attr->row ? 2u : 0u, {&k->out[0]}, add);
    else
        lerps_forward(k, PLAIN);
    return LINNET_OK;
}

/* y = b m + z, m one row for all: of a thread's rows all loads are on their way before the first is used. */
struct scaled_sum_args {
    lnt_strided b, z, y;
    const float *m;
    int64_t rows, cols;
};

template <class P> __global__ void __launch_bounds__(LERP_THREADS) scaled_sum_kernel(const __grid_constant__ scaled_sum_args x)
{
    let_next();
    await_last();
    const int64_t c = ((int64_t)blockIdx.y * LERP_THREADS + threadIdx.x) * P::U, r0 = (int64_t)blockIdx.x * LERP_ROWS;
    if (c >= x.cols) return;
    float m[P::U], b[P::U], z[P::U];
    lnt_raw<P> raw_b[LERP_ROWS], raw_z[LERP_ROWS];
    get_weights(m, x.m + c);
#pragma unroll
    for (int i = 0; i < LERP_ROWS; i++)
        if (r0 + i < x.rows) raw_b[i] = fetch<P>(x.b.v, (r0 + i) * x.b.ld + c), raw_z[i] = fetch<P>(x.z.v, (r0 + i) * x.z.ld + c);
#pragma unroll
    for (int i = 0; i < LERP_ROWS; i++) {
        if (r0 + i >= x.rows) return;
        widen<P>(b, raw_b[i], x.b.v.f32), widen<P>(z, raw_z[i], x.z.v.f32);
#pragma unroll
        for (int u = 0; u < P::U; u++) z[u] += b[u] * m[u];
        put<P>(x.y.v, (r0 + i) * x.y.ld + c, z);
    }
}

extern "C" linnet_status lnt_scaled_sum_forward_cuda(const lnt_call *scale, const lnt_call *sum)
{
    const lnt_tensor *b = &scale->in[1], *m = &scale->in[2], *z = &sum->in[1], *y = &sum->out[0], *const all[3] = {b, z, y};
    const scaled_sum_args x = {strided(b), strided(z), strided(y), (const float *)m->data, y->rows, y->cols};
    const int64_t sizes = y->cols | b->ld | z->ld | y->ld; /* a multiple of a unit if all of them are */
    const int unit = (uintptr_t)m->data % 16 ? 1 : unit_of(sizes & 7 ? sizes & 7 : 8, all, 3);
    const dim3 grid((unsigned)lnt_div_up(x.rows, LERP_ROWS), (unsigned)lnt_div_up(x.cols, (int64_t)LERP_THREADS * unit));
    if (x.rows > 0) LNT_BY_UNIT(unit, P, (lnt_launch(lnt_cuda_of(scale->c), scaled_sum_kernel<P>, grid, LERP_THREADS, x)));
    return LINNET_OK;
}

static void sum_backward(const lnt_call *k, bool row)
{
    const lnt_tensor *dy = &k->d_out[0], *dm = &k->d_in[2], none = {};
    const bool add[2] = {k->accumulate[0], k->accumulate[2]};
    row_run(k->c, sum_slope{}, dy->rows, dy->cols, {dy}, 0u, {&k->d_in[0], row ? &none : dm}, add);
    if (!row || !dm->data) return;
    if (!k->accumulate[2]) lnt_device_zero(k->c, dm->data, (size_t)dm->cols * sizeof(float));
    column_run(k->c, sum_columns{strided(dy)}, dy->rows, dy->cols, 1, {dy}, {(float *)dm->data}, (float *)k->work);
}

/* b m alone, m one row for all: of LERP_AHEAD rows all loads are on their way before the first is used. */
template <class P> __global__ void __launch_bounds__(LERP_THREADS) scaled_backward(const __grid_constant__ lerp_args x)
{
    let_next();
    await_last();
    const int64_t c = ((int64_t)blockIdx.y * LERP_THREADS + threadIdx.x) * P::U, r0 = (int64_t)blockIdx.x * x.each, r1 = min(x.rows, r0 + x.each);
    if (c >= x.cols) return;
    float m[P::U], sum[P::U] = {};
    get_weights(m, (const float *)x.m[0].v.p + c);
    for (int64_t first = r0; first < r1; first += LERP_AHEAD) {
        lnt_raw<P> dy[LERP_AHEAD], b[LERP_AHEAD], old[LERP_AHEAD];
#pragma unroll
        for (int i = 0; i < LERP_AHEAD; i++) {
            const int64_t r = first + i;
            if (r >= r1) continue;
            dy[i] = fetch<P>(x.y.v, r * x.y.ld + c);
            if (x.part) b[i] = fetch<P>(x.b.v, r * x.b.ld + c);
            if (x.db.v.p && x.add_b) old[i] = fetch<P>(x.db.v, r * x.db.ld + c);
        }
#pragma unroll
        for (int i = 0; i < LERP_AHEAD; i++) {
            const int64_t r = first + i;
            if (r >= r1) continue;
            float d[P::U], v[P::U];
            widen<P>(d, dy[i], x.y.v.f32);
            if (x.part) {
                widen<P>(v, b[i], x.b.v.f32);
#pragma unroll
                for (int u = 0; u < P::U; u++) sum[u] += d[u] * v[u];
            }
            if (!x.db.v.p) continue;
#pragma unroll
            for (int u = 0; u < P::U; u++) d[u] *= m[u];
            if (x.add_b) {
                widen<P>(v, old[i], x.db.v.f32);
#pragma unroll
                for (int u = 0; u < P::U; u++) d[u] += v[u];
            }
            put<P>(x.db.v, r * x.db.ld + c, d);
        }
    }
    if (!x.part) return;
    float *at = x.part + (int64_t)blockIdx.x * x.cols + c;
#pragma unroll
    for (int u = 0; u < P::U; u++) at[u] = sum[u];
}

static void lerps_backward(const lnt_call *k, lerp_way way)
{
    const lnt_lerp_attr *attr = (const lnt_lerp_attr *)k->attr;
    lerp_args x;
    int unit = arguments(k, true, &x);
    for (int j = 0; x.part && j < x.count; j++)
        if (x.dm[j].v.p && !x.add_m[j]) lnt_device_zero(k->c, x.dm[j].v.p, (size_t)x.cols * sizeof(float));
    if (x.rows <= 0) return;
    const lnt_cuda *d = lnt_cuda_of(k->c);
    if (x.count > 1 && unit == 8 && attr->row) unit = 2; /* half4: registers */
    const int64_t wide = lnt_div_up(x.cols, (int64_t)LERP_THREADS * (unit == 2 ? 4 : unit));
    x.each = attr->row ? lnt_div_up(x.rows, lnt_row_blocks(x.rows, LNT_CUDA_SUM_BLOCKS / wide)) : (int64_t)LERP_ROWS;
    const int64_t blocks = lnt_div_up(x.rows, x.each);
    const dim3 grid((unsigned)blocks, (unsigned)wide);
    if (way == PRODUCT)
        LNT_BY_UNIT(unit, P, (lnt_launch(d, lerp_backward<P, 1, true>, grid, LERP_THREADS, x)));
    else if (way == SHIFTED && unit == 2)
        lnt_launch(d, shifted_backward<half4, LNT_LERP_MOST>, grid, LERP_THREADS, x);
    else if (way == SHIFTED && x.count == 1)
        LNT_BY_UNIT(unit, P, (lnt_launch(d, shifted_backward<P, 1>, grid, LERP_THREADS, x)));
    else if (way == SHIFTED)
        LNT_BY_UNIT(unit, P, (lnt_launch(d, shifted_backward<P, LNT_LERP_MOST>, grid, LERP_THREADS, x)));
    else if (!attr->row)
        LNT_BY_UNIT(unit, P, (lnt_launch(d, lerp_backward<P, 0>, grid, LERP_THREADS, x)));
    else if (!x.a.v.p)
        LNT_BY_UNIT(unit, P, (lnt_launch(d, scaled_backward<P>, grid, LERP_THREADS, x)));
    else if (x.count == 1)
        LNT_BY_UNIT(unit, P, (lnt_launch(d, lerp_backward<P, 1>, grid, LERP_THREADS, x)));
    else if (unit == 2)
        lnt_launch(d, lerp_backward<half4, LNT_LERP_MOST>, grid, LERP_THREADS, x);
    else
        LNT_BY_UNIT(unit, P, (lnt_launch(d, lerp_backward<P, LNT_LERP_MOST>, grid, LERP_THREADS, x)));
    for (int j = 0; x.part && j < x.count; j++)
        if (x.dm[j].v.p) add_blocks(k->c, (float *)x.dm[j].v.p, x.part + j * blocks * x.cols, blocks, x.cols, x.cols, 1);
}

extern "C" linnet_status lnt_lerp_backward_cuda(const lnt_call *k)
{
    const lnt_lerp_attr *attr = (const lnt_lerp_attr *)k->attr;
    if (attr->sum)
        sum_backward(k, attr->row);
    else
        lerps_backward(k, PLAIN);
    return LINNET_OK;
}

/* Pairs. What is before a lerp reads its a as well, whose gradient the lerp's way back makes whole. */
extern "C" linnet_status lnt_shifted_lerp_forward_cuda(const lnt_call *shift, const lnt_call *lerp)
{
    (void)shift;
    lerps_forward(lerp, SHIFTED);
    return LINNET_OK;
}
extern "C" linnet_status lnt_shifted_lerp_backward_cuda(const lnt_call *shift, const lnt_call *lerp)
{
    (void)shift;
    lerps_backward(lerp, SHIFTED);
    return LINNET_OK;
}

static lnt_call to_product(const lnt_call *mul, const lnt_call *lerp)
{
    lnt_call k = *lerp;
    k.in[1] = mul->in[1], k.d_in[1] = mul->d_in[1], k.accumulate[1] = mul->accumulate[1];
    return k;
}
extern "C" linnet_status lnt_product_lerp_forward_cuda(const lnt_call *mul, const lnt_call *lerp)
{
    const lnt_call k = to_product(mul, lerp);
    lerps_forward(&k, PRODUCT);
    return LINNET_OK;
}
extern "C" linnet_status lnt_product_lerp_backward_cuda(const lnt_call *mul, const lnt_call *lerp)
{
    const lnt_call k = to_product(mul, lerp);
    lerps_backward(&k, PRODUCT);
    return LINNET_OK;
}

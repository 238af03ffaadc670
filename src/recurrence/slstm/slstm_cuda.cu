/* The slstm core on a GPU (README.md): a kernel that stays for all tokens. A head's units are cut into parts, a CTA each, which hold their units'
 * columns of R in shared memory (read them from L2 where they do not fit) and the state of these units for ROWS sequences that walk together.
 *
 * What the parts of a head need of each other travels by words in memory, 32 bits of a number and 32 of the step that it belongs to: forward y,
 * which everybody reads all of; in reverse, where a part knows the gradients of its own gates, what those bring to every unit's y, of which everybody
 * adds up his units' in the order of the parts. Two steps' words lie side by side: who writes step s + 2 has seen step s + 1 of all, and they had
 * read step s. CTAs of a head begin side by side, as numbers follow one another and are no more than fit.
 *
 * dR is a product of its own over all tokens, from gradients of gates that are kept. */
#include "device/functions.cuh"
#include "recurrence/recur_cuda.cuh"

extern "C" {
#include "recurrence/slstm/slstm.h"
}

namespace {

constexpr int THREADS = 512, LEAST_UNITS = 4, USUAL_UNITS = 32, MOST_CTAS = 256, WIDEST = 4096, GAP = 4;
typedef unsigned long long word;

struct slstm_args {
    const float *wi, *wf, *R, *y0, *c0, *n0, *m0, *dyT, *dcT, *dnT, *dmT, *kept_gates, *kept_cells;
    const void *wz, *wo, *dout; /* dout NULL: zeros */
    void *o, *dwz, *dwo;
    float *yT, *cT, *nT, *mT, *gates, *cells, *dwi, *dwf, *dR, *dy0, *dc0, *dn0, *dm0; /* NULL: not wanted */
    float *pre, *before;        /* in reverse: gradients of gates [T,H,E], y of the token before [T,H,D] */
    word *words;                /* forward [2,H,ROWS,D], in reverse [2,H,parts,ROWS,D] */
    const int64_t *cu;
    int64_t T, sequences;
    int H, D, E, shift, lanes, parts; /* units of a part: 1 << shift */
    bool resident;              /* R in shared memory */
};

/* Where a CTA stands; the columns of R that it has are those of its units' four gates, gate by gate. */
struct place {
    int head, part, first, shift, units, columns, pitch;
    int lanes, k, of, all; /* rows of D numbers are shared by `lanes` threads a row, a power of two: k and on of rows `of`, of + all, ... */

    __device__ __forceinline__ explicit place(const slstm_args &p)
    {
        head = (int)blockIdx.x / p.parts, part = (int)blockIdx.x % p.parts, shift = p.shift, units = 1 << shift, first = part * units;
        columns = 4 * units, pitch = columns + GAP, lanes = p.lanes;
        k = (int)threadIdx.x & (lanes - 1), of = (int)threadIdx.x / lanes, all = THREADS / lanes;
    }
    __device__ __forceinline__ bool there(const slstm_args &p, int column) const { return first + (column & (units - 1)) < p.D; }
    __device__ __forceinline__ const float *R(const slstm_args &p, int k_, int column) const
    {
        return p.R + ((int64_t)head * p.D + k_) * p.E + (column >> shift) * p.D + first + (column & (units - 1));
    }
    __device__ __forceinline__ void keep_R(const slstm_args &p, float *to) const
    {
        for (int i = (int)threadIdx.x; p.resident && i < p.D * columns; i += THREADS) {
            const int k_ = i >> (shift + 2), column = i & (columns - 1);
            to[k_ * pitch + column] = there(p, column) ? *R(p, k_, column) : 0.f;
        }
    }
    __device__ __forceinline__ float get_R(const slstm_args &p, const float *kept, int k_, int column) const
    {
        if (p.resident) return kept[k_ * pitch + column];
        return there(p, column) ? *R(p, k_, column) : 0.f;
    }
};

/* The sequences that walk together, and the thread's cell: a unit of one of them. */
template <int ROWS> struct group {
    int64_t first, longest, begin, length, state; /* of the cell: its sequence's tokens, and where its state lies */
    int row, unit;
    bool real;

    /* lengths [ROWS] in shared memory */
    __device__ __forceinline__ group(const slstm_args &p, const place &at, int64_t first_, int64_t *lengths) : first(first_), longest(0)
    {
        const int tid = (int)threadIdx.x;
        __syncthreads();
        if (tid < ROWS) lengths[tid] = first + tid < p.sequences ? p.cu[first + tid + 1] - p.cu[first + tid] : 0;
        __syncthreads();
        for (int r = 0; r < ROWS; r++) longest = lengths[r] > longest ? lengths[r] : longest;
        row = tid >> at.shift, unit = at.first + (tid & (at.units - 1));
        real = row < ROWS && first + row < p.sequences && unit < p.D;
        begin = real ? p.cu[first + row] : 0, length = real ? lengths[row] : 0;
        state = ((first + row) * p.H + at.head) * p.D + unit;
    }
    /* of the cell's token t in [T,H,D]; in [T,H,E] it is at_wide */
    __device__ __forceinline__ int64_t at_token(const slstm_args &p, const place &at, int64_t t) const
    {
        return ((begin + t) * p.H + at.head) * p.D + unit;
    }
    __device__ __forceinline__ int64_t at_wide(int64_t i) const { return 4 * i - 3 * unit; }
};

/* Of the rows' lengths in shared memory: what follows them begins at 16 bytes. */
__host__ __device__ constexpr int rows_room(int rows) { return (rows + 1) / 2 * 2; }

__device__ __forceinline__ float or_zero(const float *p, int64_t i) { return p ? p[i] : 0.f; }
__device__ __forceinline__ void put(float *p, int64_t i, float x)
{
    if (p) p[i] = x;
}

/* ---- words ------------------------------------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void send(word *to, float x, unsigned step) { *(volatile word *)to = (word)step << 32 | __float_as_uint(x); }

/* The N numbers of a step that lie `apart`; those that are not wanted are 0. */
template <int N> __device__ __forceinline__ void receive(float (&x)[N], const word *from, int64_t apart, unsigned step, const bool (&wanted)[N])
{
    bool missing = true;
    while (missing) {
        word w[N];
#pragma unroll
        for (int i = 0; i < N; i++) w[i] = wanted[i] ? *(const volatile word *)(from + i * apart) : (word)step << 32;
        missing = false;
#pragma unroll
        for (int i = 0; i < N; i++) missing |= (unsigned)(w[i] >> 32) != step, x[i] = __uint_as_float((unsigned)w[i]);
        if (missing) __nanosleep(20);
    }
}

constexpr int TOGETHER = 8; /* words that are on their way to a thread */

/* ---- forward ----------------------------------------------------------------------------------------------------------------------------- */

__host__ __device__ __forceinline__ int padded(int D) { return (D + 3) / 4 * 4; }

/* y of the step before into `to` [ROWS][padded D]: from the others, or what the sequences begin with. Behind the last step too, when others may take
 * the place of the words before it. */
template <int ROWS>
__device__ void take_y(const slstm_args &p, const place &at, const group<ROWS> &g, const int64_t *lengths, int64_t t, unsigned step, float *to)
{
    const word *from = p.words + ((step - 1) % 2 * p.H + at.head) * (int64_t)ROWS * p.D;
    const int64_t now = t < g.longest ? t : t - 1;
    for (int k = at.k; k < p.D; k += at.lanes)
        for (int r0 = at.of; r0 < ROWS; r0 += TOGETHER * at.all) {
            float x[TOGETHER];
            bool wanted[TOGETHER];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                const int r = r0 + j * at.all;
                wanted[j] = r < ROWS && now < lengths[r < ROWS ? r : 0];
                x[j] = !t && wanted[j] ? or_zero(p.y0, ((g.first + r) * p.H + at.head) * p.D + k) : 0.f;
            }
            if (t) receive(x, from + (int64_t)r0 * p.D + k, (int64_t)at.all * p.D, step - 1, wanted);
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
                if (r0 + j * at.all < ROWS) to[(r0 + j * at.all) * padded(p.D) + k] = x[j];
        }
}

/* sums [ROWS][columns] of y R; parts [THREADS / columns][ROWS][columns] are what threads have of them, of each four k's in turn. */
template <int ROWS>
__device__ void product(const slstm_args &p, const place &at, const float *kept_R, const float *y, float *parts, float *sums)
{
    const int column = (int)threadIdx.x & (at.columns - 1), of = (int)threadIdx.x >> (at.shift + 2), all = THREADS >> (at.shift + 2);
    const int D4 = padded(p.D);
    float sum[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum[r] = 0.f;
    for (int k = 4 * of; k < p.D; k += 4 * all) {
        float R[4];
#pragma unroll
        for (int j = 0; j < 4; j++) R[j] = k + j < p.D ? at.get_R(p, kept_R, k + j, column) : 0.f;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 x = *(const float4 *)&y[r * D4 + k];
            sum[r] = fmaf(x.x, R[0], fmaf(x.y, R[1], fmaf(x.z, R[2], fmaf(x.w, R[3], sum[r]))));
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) parts[(of * ROWS + r) * at.columns + column] = sum[r];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < ROWS * at.columns; i += THREADS) {
        float x = 0.f;
        for (int k = 0; k < all; k++) x += parts[k * ROWS * at.columns + i];
        sums[i] = x;
    }
    __syncthreads();
}

/* A unit's state. One of decay and write is e^0; of the decay, what rounding m left of it (1 + through), so that both belong to the m that is
 * kept. */
struct cell {
    float y, c, n, m, decay, write, z, out, unforgotten;

    __device__ __forceinline__ void over(float i, float f, float wz, float wo)
    {
        const float e = expf(-fabsf(f)), forget = fminf(f, 0.f) - log1pf(e);
        const bool fresh = n == 0.f, taken = fresh || !(forget + m > i); /* fresh: nothing was written yet */
        const float next = taken ? i : forget + m, through = forget + (m - next), factor = expf(taken ? through : i - next);
        decay = fresh ? 0.f : taken ? factor : 1.f + through, write = taken ? 1.f : factor;
        z = tanhf(wz), out = exact_sigmoid(wo);
        c = decay * c + write * z, n = decay * n + write, m = next;
        y = out * c / n;
        unforgotten = (f > 0.f ? e : 1.f) / (1.f + e);
    }
};

template <typename T, int ROWS> __global__ __launch_bounds__(THREADS, 1) void forward_kernel(const __grid_constant__ slstm_args p)
{
    extern __shared__ __align__(16) unsigned char memory[];
    await_last();
    const place at(p);
    int64_t *lengths = (int64_t *)memory;
    float *y = (float *)(lengths + rows_room(ROWS)), *parts = y + ROWS * padded(p.D), *sums = parts + ROWS * THREADS;
    float *kept_R = sums + ROWS * at.columns;
    for (int i = (int)threadIdx.x; i < ROWS * padded(p.D); i += THREADS) y[i] = 0.f; /* behind the rows' ends too */
    at.keep_R(p, kept_R);
    unsigned step = 1;
    for (int64_t first = 0; first < p.sequences; first += ROWS) {
        const group<ROWS> g(p, at, first, lengths);
        cell s = {};
        if (g.real) s.y = or_zero(p.y0, g.state), s.c = or_zero(p.c0, g.state), s.n = or_zero(p.n0, g.state), s.m = or_zero(p.m0, g.state);
        float w[4] = {}, next[4] = {};
        const auto fetch = [&](int64_t t) {
            const int64_t i = g.at_token(p, at, t);
            if (t >= g.length) return;
            next[0] = p.wi[i], next[1] = p.wf[i], next[2] = to_float(((const T *)p.wz)[i]), next[3] = to_float(((const T *)p.wo)[i]);
        };
        fetch(0);
        for (int64_t t = 0; t < g.longest; t++, step++) {
#pragma unroll
            for (int k = 0; k < 4; k++) w[k] = next[k];
            fetch(t + 1);
            take_y<ROWS>(p, at, g, lengths, t, step, y);
            __syncthreads();
            product<ROWS>(p, at, kept_R, y, parts, sums);
            if (t >= g.length) continue;
            const float *sum = sums + g.row * at.columns + g.unit - at.first;
            s.over(w[0] + sum[0], w[1] + sum[at.units], w[2] + sum[2 * at.units], w[3] + sum[3 * at.units]);
            send(p.words + ((step % 2 * p.H + at.head) * (int64_t)ROWS + g.row) * p.D + g.unit, s.y, step);
            const int64_t i = g.at_token(p, at, t), wide = g.at_wide(i);
            ((T *)p.o)[i] = from_float<T>(s.y);
            const float gates[4] = { s.decay, s.write, s.z, s.out }, cells[4] = { s.unforgotten, s.c, s.n, s.y };
#pragma unroll
            for (int k = 0; k < 4; k++) {
                put(p.gates, wide + k * p.D, gates[k]);
                put(p.cells, wide + k * p.D, cells[k]);
            }
        }
        if (g.longest && first + ROWS < p.sequences) take_y<ROWS>(p, at, g, lengths, g.longest, step, y);
        if (!g.real) continue;
        put(p.yT, g.state, s.y);
        put(p.cT, g.state, s.c);
        put(p.nT, g.state, s.n);
        put(p.mT, g.state, s.m);
    }
}

/* ---- in reverse -------------------------------------------------------------------------------------------------------------------------- */

/* What a cell reads of a token: what forward kept of it, and c, n, y in front of it. */
struct kept_token {
    float decay, write, z, out, unforgotten, c, n, c_before, n_before, y_before, dy;
};

/* A cell's gradients behind a token, which become those before it. m's is kept as if the states times e^m stood still, and goes where m came from. */
struct back_cell {
    float dc, dn, dm;

    __device__ __forceinline__ void over(const kept_token &x, float dy, float (&pre)[4])
    {
        const float d = dy + x.dy, ratio = x.c / x.n, share = d * x.out / x.n, to_c = dc + share, to_n = dn - share * ratio;
        const bool taken = x.write == 1.f;
        pre[0] = x.write * (to_c * x.z + to_n) + (taken ? dm : 0.f);
        const float to_f = x.decay * (to_c * x.c_before + to_n * x.n_before) + (taken ? 0.f : dm);
        dc = x.decay * to_c, dn = x.decay * to_n, dm = taken ? 0.f : dm;
        pre[1] = to_f * x.unforgotten, pre[2] = to_c * x.write * (1.f - x.z * x.z), pre[3] = d * ratio * x.out * (1.f - x.out);
    }
};

/* Sums over the head's parts, in their order, of what they sent to the thread's cell; all threads of the CTA. shares [THREADS]. */
template <int ROWS>
__device__ float gather(const slstm_args &p, const place &at, const int64_t *lengths, int64_t t, unsigned step, float *shares)
{
    const int tid = (int)threadIdx.x, cells = ROWS << at.shift, cell_ = tid & (cells - 1), row = cell_ >> at.shift;
    const int unit = at.first + (cell_ & (at.units - 1));
    const int of = tid / cells, all = THREADS / cells, begin = of * p.parts / all, end = (of + 1) * p.parts / all;
    const bool active = unit < p.D && t < lengths[row];
    const word *from = p.words + (((step % 2 * p.H + at.head) * (int64_t)p.parts) * ROWS + row) * p.D + unit;
    float sum = 0.f;
    for (int i = begin; i < end && active; i += TOGETHER) {
        float x[TOGETHER];
        bool wanted[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) wanted[j] = i + j < end;
        receive(x, from + (int64_t)i * ROWS * p.D, (int64_t)ROWS * p.D, step, wanted);
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) sum += x[j];
    }
    shares[tid] = sum;
    __syncthreads();
    sum = 0.f;
    for (int i = 0; i < all; i++) sum += shares[i * cells + cell_];
    return sum;
}

/* Sends what the gates' gradients pre [ROWS][columns] bring to every unit's y. */
template <int ROWS>
__device__ void spread(const slstm_args &p, const place &at, const float *kept_R, const float *pre, const int64_t *lengths, int64_t t, unsigned step)
{
    constexpr int BLOCK = ROWS < 8 ? ROWS : 8;
    word *to = p.words + ((step % 2 * p.H + at.head) * (int64_t)p.parts + at.part) * ROWS * p.D;
    for (int k = at.k; k < p.D; k += at.lanes)
        for (int b = at.of * BLOCK; b < ROWS; b += at.all * BLOCK) {
            float sum[BLOCK];
#pragma unroll
            for (int r = 0; r < BLOCK; r++) sum[r] = 0.f;
            for (int c = 0; c < at.columns; c += 4) {
                float R[4];
                if (p.resident) {
                    const float4 x = *(const float4 *)&kept_R[k * at.pitch + c];
                    R[0] = x.x, R[1] = x.y, R[2] = x.z, R[3] = x.w;
                } else {
#pragma unroll
                    for (int j = 0; j < 4; j++) R[j] = at.get_R(p, NULL, k, c + j);
                }
#pragma unroll
                for (int r = 0; r < BLOCK; r++) {
                    const float4 x = *(const float4 *)&pre[(b + r) * at.columns + c];
                    sum[r] = fmaf(x.x, R[0], fmaf(x.y, R[1], fmaf(x.z, R[2], fmaf(x.w, R[3], sum[r]))));
                }
            }
#pragma unroll
            for (int r = 0; r < BLOCK; r++)
                if (t < lengths[b + r]) send(to + (b + r) * p.D + k, sum[r], step);
        }
}

template <typename T, int ROWS> __global__ __launch_bounds__(THREADS, 1) void backward_kernel(const __grid_constant__ slstm_args p)
{
    extern __shared__ __align__(16) unsigned char memory[];
    await_last();
    const place at(p);
    int64_t *lengths = (int64_t *)memory;
    float *shares = (float *)(lengths + rows_room(ROWS)), *pre = shares + THREADS, *kept_R = pre + ROWS * at.columns;
    for (int i = (int)threadIdx.x; i < ROWS * at.columns; i += THREADS) pre[i] = 0.f;
    at.keep_R(p, kept_R);
    unsigned step = 1;
    for (int64_t first = 0; first < p.sequences; first += ROWS) {
        const group<ROWS> g(p, at, first, lengths);
        back_cell s = {};
        kept_token x = {}, next = {};
        const auto fetch = [&](int64_t t) {
            if (t < 0 || t >= g.length) return;
            const int64_t i = g.at_token(p, at, t), wide = g.at_wide(i), D = p.D, behind = wide - p.H * p.E;
            const float *gates = p.kept_gates + wide, *cells = p.kept_cells + wide;
            next = { gates[0], gates[D], gates[2 * D], gates[3 * D], cells[0], cells[D], cells[2 * D] };
            next.c_before = t ? p.kept_cells[behind + D] : or_zero(p.c0, g.state);
            next.n_before = t ? p.kept_cells[behind + 2 * D] : or_zero(p.n0, g.state);
            next.y_before = t ? p.kept_cells[behind + 3 * D] : or_zero(p.y0, g.state);
            next.dy = p.dout ? to_float(((const T *)p.dout)[i]) : 0.f;
        };
        if (g.real) s = { or_zero(p.dcT, g.state), or_zero(p.dnT, g.state), or_zero(p.dmT, g.state) };
        fetch(g.longest - 1);
        for (int64_t t = g.longest - 1; t >= 0; t--, step++) {
            x = next;
            fetch(t - 1);
            float dy = gather<ROWS>(p, at, lengths, t + 1 < g.longest ? t + 1 : INT64_MAX, step - 1, shares), to_gates[4] = {};
            if (t < g.length) {
                if (t + 1 == g.length) dy = or_zero(p.dyT, g.state), s.dm -= x.c * s.dc + x.n * s.dn; /* where m rises, states that stay fall */
                s.over(x, dy, to_gates);
                const int64_t i = g.at_token(p, at, t), wide = g.at_wide(i);
                put(p.dwi, i, to_gates[0]);
                put(p.dwf, i, to_gates[1]);
                if (p.dwz) ((T *)p.dwz)[i] = from_float<T>(to_gates[2]);
                if (p.dwo) ((T *)p.dwo)[i] = from_float<T>(to_gates[3]);
                put(p.before, i, x.y_before);
#pragma unroll
                for (int k = 0; k < 4; k++) put(p.pre, wide + k * p.D, to_gates[k]);
            }
            if (g.real)
#pragma unroll
                for (int k = 0; k < 4; k++) pre[g.row * at.columns + k * at.units + g.unit - at.first] = to_gates[k];
            __syncthreads();
            spread<ROWS>(p, at, kept_R, pre, lengths, t, step);
        }
        float dy = gather<ROWS>(p, at, lengths, 0, step - 1, shares);
        if (!g.real) continue;
        if (!g.length) dy = or_zero(p.dyT, g.state);
        put(p.dy0, g.state, dy);
        put(p.dc0, g.state, s.dc);
        put(p.dn0, g.state, s.dn);
        put(p.dm0, g.state, s.dm + (g.length ? or_zero(p.c0, g.state) * s.dc + or_zero(p.n0, g.state) * s.dn : 0.f));
    }
}

/* ---- dR ---------------------------------------------------------------------------------------------------------------------------------- */

constexpr int PRODUCT_THREADS = 256, OUT_ROWS = 64, OUT_COLUMNS = 128, DEPTH = 16, FLUSH = 1024;

/* dR [H,D,E] = before^T pre over all tokens, a tile of a head a CTA, 4 rows and 8 columns a thread; sums of FLUSH tokens are added up. */
__global__ __launch_bounds__(PRODUCT_THREADS) void outer_kernel(const __grid_constant__ slstm_args p)
{
    __shared__ __align__(16) float a[DEPTH][OUT_ROWS], b[DEPTH][OUT_COLUMNS];
    await_last();
    let_next();
    const int tid = (int)threadIdx.x, head = (int)blockIdx.z, k0 = (int)blockIdx.y * OUT_ROWS, c0 = (int)blockIdx.x * OUT_COLUMNS;
    const int row = tid / 16 * 4, column = tid % 16 * 4;
    float sum[4][8] = {}, part[4][8] = {};
    for (int64_t t = 0; t < p.T; t += DEPTH) {
        float x[DEPTH * OUT_ROWS / PRODUCT_THREADS], y[DEPTH * OUT_COLUMNS / PRODUCT_THREADS];
#pragma unroll
        for (int i = 0; i < (int)(sizeof x / sizeof *x); i++) {
            const int j = i * PRODUCT_THREADS + tid, k = k0 + j % OUT_ROWS;
            const int64_t u = t + j / OUT_ROWS;
            x[i] = u < p.T && k < p.D ? p.before[(u * p.H + head) * p.D + k] : 0.f;
        }
#pragma unroll
        for (int i = 0; i < (int)(sizeof y / sizeof *y); i++) {
            const int j = i * PRODUCT_THREADS + tid, c = c0 + j % OUT_COLUMNS;
            const int64_t u = t + j / OUT_COLUMNS;
            y[i] = u < p.T && c < p.E ? p.pre[(u * p.H + head) * p.E + c] : 0.f;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < (int)(sizeof x / sizeof *x); i++) (&a[0][0])[i * PRODUCT_THREADS + tid] = x[i];
#pragma unroll
        for (int i = 0; i < (int)(sizeof y / sizeof *y); i++) (&b[0][0])[i * PRODUCT_THREADS + tid] = y[i];
        __syncthreads();
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            const float4 l = *(const float4 *)&a[u][row], r0 = *(const float4 *)&b[u][column], r1 = *(const float4 *)&b[u][64 + column];
            const float left[4] = { l.x, l.y, l.z, l.w }, right[8] = { r0.x, r0.y, r0.z, r0.w, r1.x, r1.y, r1.z, r1.w };
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) part[i][j] = fmaf(left[i], right[j], part[i][j]);
        }
        if (t % FLUSH + DEPTH < FLUSH && t + DEPTH < p.T) continue;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) sum[i][j] += part[i][j], part[i][j] = 0.f;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int k = k0 + row + i, c = c0 + column + (j < 4 ? j : 60 + j);
            if (k < p.D && c < p.E) p.dR[((int64_t)head * p.D + k) * p.E + c] = sum[i][j];
        }
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------------------- */

/* The fewest units of a part with which all parts of all heads fit, up to USUAL_UNITS; more where the parts of a head would not. */
int shift_of(const lnt_slstm_args *a, int most)
{
    int units = LEAST_UNITS, shift = 2;
    while (units < a->D && units < USUAL_UNITS && a->H * lnt_div_up(a->D, units) > most) units *= 2, shift++;
    while (lnt_div_up(a->D, units) > most) units *= 2, shift++;
    return shift;
}
/* Sequences that walk together. */
int rows_of(const lnt_slstm_args *a) { return a->sequences > 4 && a->D <= 1024 ? 16 : a->sequences > 1 ? 4 : 1; }

size_t words_bytes(const lnt_slstm_args *a, bool back, int most)
{
    const int64_t parts = back ? lnt_div_up(a->D, (int64_t)1 << shift_of(a, most)) : 1;
    return (size_t)(2 * a->H * parts * rows_of(a) * a->D) * sizeof(word);
}
size_t workspace(const void *args, bool back, int)
{
    const lnt_slstm_args *a = (const lnt_slstm_args *)args;
    return words_bytes(a, back, MOST_CTAS) + (size_t)(back ? a->tokens * a->H * 5 * a->D : a->sequences * a->H * a->D) * sizeof(float);
}
size_t fore_workspace(const void *args, bool, int) { return workspace(args, false, 1); }

size_t shared_floats(const slstm_args &p, int rows, bool back)
{
    const size_t columns = (size_t)4 << p.shift, R = p.resident ? (size_t)p.D * (columns + GAP) : 0;
    return 2 * (size_t)rows_room(rows) + (size_t)rows * columns + R + (back ? THREADS : (size_t)rows * (size_t)((p.D + 3) / 4 * 4 + THREADS));
}

template <typename T, int ROWS> void put_rows(slstm_args p, bool back, const lnt_cuda *d)
{
    void (*kernel)(slstm_args) = back ? backward_kernel<T, ROWS> : forward_kernel<T, ROWS>;
    p.resident = true;
    if (shared_floats(p, ROWS, back) * sizeof(float) > d->base.block_shared) p.resident = false;
    const size_t shared = shared_floats(p, ROWS, back) * sizeof(float);
    if (shared > 48 << 10) lnt_cuda_note((lnt_cuda *)d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    kernel<<<(unsigned)(p.H * p.parts), THREADS, shared, d->stream>>>(p);
}
void put_kernel(const lnt_slstm_args *a, slstm_args p, bool back, const lnt_cuda *d)
{
    const int most = d->base.multiprocessors < MOST_CTAS ? d->base.multiprocessors : MOST_CTAS;
    int rows = rows_of(a);
    if (!a->sequences) return;
    p.shift = shift_of(a, most), p.parts = (int)lnt_div_up(a->D, (int64_t)1 << p.shift);
    while (rows << p.shift > THREADS) rows /= 4; /* a cell a thread */
    for (p.lanes = 32; p.lanes < p.D && p.lanes < THREADS;) p.lanes *= 2;
    /* A part reads the whole head's y0. Of one token nobody waits for the others, and a part that is done may write yT, in the same place, first. */
    if (!back && p.parts > 1 && p.y0 && p.y0 == p.yT) {
        float *before = (float *)((char *)a->workspace + words_bytes(a, false, MOST_CTAS));
        lnt_cuda_note((lnt_cuda *)d, cudaMemcpyAsync(before, p.y0, (size_t)(a->sequences * a->H * a->D) * sizeof(float), cudaMemcpyDeviceToDevice,
                                                     d->stream));
        p.y0 = before;
    }
    if (a->longest > 1 || back) lnt_cuda_note((lnt_cuda *)d, cudaMemsetAsync(p.words, 0, words_bytes(a, back, most), d->stream));
    LNT_BY_TYPE(a->dtype, T, (rows == 16 ? put_rows<T, 16> : rows == 4 ? put_rows<T, 4> : put_rows<T, 1>)(p, back, d));
}

slstm_args args_of(const lnt_slstm_args *a)
{
    slstm_args p = {};
    p.wi = (const float *)a->wi, p.wf = (const float *)a->wf, p.wz = a->wz, p.wo = a->wo, p.R = (const float *)a->R;
    p.y0 = (const float *)a->y0, p.c0 = (const float *)a->c0, p.n0 = (const float *)a->n0, p.m0 = (const float *)a->m0;
    p.words = (word *)a->workspace, p.cu = a->cu_seqlens_device, p.T = a->tokens, p.sequences = a->sequences;
    p.H = a->H, p.D = a->D, p.E = a->E;
    return p;
}

void forward(const void *args, const lnt_device *d)
{
    const lnt_slstm_args *a = (const lnt_slstm_args *)args;
    slstm_args p = args_of(a);
    p.o = a->o, p.gates = (float *)a->gates, p.cells = (float *)a->cells;
    p.yT = (float *)a->yT, p.cT = (float *)a->cT, p.nT = (float *)a->nT, p.mT = (float *)a->mT;
    put_kernel(a, p, false, (const lnt_cuda *)d);
}

void backward(const void *args, const lnt_device *device)
{
    const lnt_slstm_args *a = (const lnt_slstm_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    slstm_args p = args_of(a);
    p.kept_gates = (const float *)a->gates, p.kept_cells = (const float *)a->cells, p.dout = a->dout;
    p.dyT = (const float *)a->dyT, p.dcT = (const float *)a->dcT, p.dnT = (const float *)a->dnT, p.dmT = (const float *)a->dmT;
    p.dwi = (float *)a->dwi, p.dwf = (float *)a->dwf, p.dwz = a->dwz, p.dwo = a->dwo, p.dR = (float *)a->dR;
    p.dy0 = (float *)a->dy0, p.dc0 = (float *)a->dc0, p.dn0 = (float *)a->dn0, p.dm0 = (float *)a->dm0;
    if (p.dR) p.pre = (float *)((char *)a->workspace + words_bytes(a, true, MOST_CTAS)), p.before = p.pre + a->tokens * a->H * a->E;
    put_kernel(a, p, true, d);
    const dim3 tiles((unsigned)lnt_div_up(a->E, OUT_COLUMNS), (unsigned)lnt_div_up(a->D, OUT_ROWS), (unsigned)a->H);
    if (p.dR) lnt_launch(d, outer_kernel, tiles, PRODUCT_THREADS, p);
}

const char *declines(const void *args, bool)
{
    const lnt_slstm_args *a = (const lnt_slstm_args *)args;
    return a->D > WIDEST ? "at most 4096 units of a head are offered" : NULL;
}

} // namespace

LNT_CUDA_FORMS(lnt_slstm, chunk, declines, workspace, forward, backward, fore_workspace, forward)

/* TTT-linear and TTT-MLP: a CTA's walk over a head, forwards and back, for every shape and type (ttt_cuda.cu). Long: one walk, over matrices that its
 * steps share. */
#ifndef LNT_TTT_HEAD_CUH
#define LNT_TTT_HEAD_CUH

#include "recurrence/ttt/ttt_linear_tiles.cuh"
#include "recurrence/ttt/ttt_mlp_rows_back.cuh"

#include <initializer_list>

/* What a CTA works on; rows of the mini-batch first those that the state had open, whose raw is u and whose rate is 1. */
template <int LAYERS> struct ttt_work {
    ttt_matrix W[LAYERS], x[LAYERS], raw[LAYERS], z[LAYERS], y[LAYERS], zq[LAYERS], S[LAYERS], A[LAYERS], v, F;
    float *b[LAYERS], *rate, *last, *position, *inverse;
    ttt_matrix dW[LAYERS], dx[LAYERS], du[LAYERS], dz, dy, h, below, dF, dA;
    float *db[LAYERS], *starts, *inside;
};

struct ttt_sizes {
    int D, F, m;
    int64_t numbers, record, group, groups; /* weights and biases; backward: what is put by of a mini-batch, those of a group, the most groups */
    int64_t room;                           /* of tiles, 0: none */
    int in[2], out[2];
};

static ttt_sizes sizes_of(const lnt_ttt_args *a, bool back, int64_t ctas, bool tiles)
{
    ttt_sizes s = {};
    s.D = a->D, s.F = a->F, s.m = a->mini_batch;
    for (int l = 0; l < lnt_ttt_layers(a); l++) {
        s.in[l] = (int)lnt_ttt_in(a, l), s.out[l] = (int)lnt_ttt_out(a, l);
        s.numbers += (int64_t)(s.in[l] + 1) * s.out[l];
    }
    const int64_t batches = lnt_ttt_batches(a, a->mini_batch - 1, a->longest);
    s.record = s.numbers;
    if (tiles) { /* of the chain, in segments: nothing is put by */
        const size_t ahead = lnt_ttt_layers(a) == 2 ? sizeof(ttt_mlp_room) : a->D == 64 ? sizeof(ttt_ahead_room<64>) : sizeof(ttt_ahead_room<128>);
        const size_t chain =
            lnt_ttt_layers(a) == 2 ? sizeof(ttt_mlp_chain_room) : a->D == 64 ? sizeof(ttt_chain_room<64>) : sizeof(ttt_chain_room<128>);
        s.room = (int64_t)(back ? chain : ahead) / 4;
        return s;
    }
    s.group = back ? ttt_group(batches, s.record, ctas) : 0;
    s.groups = back ? batches / s.group + 1 : 0;
    return s;
}

__host__ __device__ static inline ttt_matrix take(ttt_arena *m, int64_t rows, int64_t columns)
{
    const int ld = ttt_ld(columns);
    return { m->take(rows * ld), ld };
}

/* In the order in which shared memory is given away. */
template <int LAYERS> __host__ __device__ static void carve(const ttt_sizes &s, bool back, ttt_arena *m, ttt_work<LAYERS> *w)
{
    const int rows = s.m, widest = s.F > s.D ? s.F : s.D;
    m->take(s.room); /* the tiles', where shared memory begins */
    for (int l = 0; l < LAYERS; l++) w->W[l] = take(m, s.in[l], s.out[l]), w->b[l] = m->take(s.out[l]);
    for (int l = 0; l < LAYERS; l++) w->S[l] = take(m, rows, rows), w->A[l] = back ? take(m, rows, rows) : w->S[l];
    w->F = take(m, rows, rows);
    w->rate = m->take(rows), w->last = m->take(rows), w->position = m->take(rows), w->inverse = m->take(rows);
    if (back) {
        w->dF = take(m, rows, rows), w->dA = take(m, rows, rows);
        for (int l = 0; l < LAYERS; l++) w->db[l] = m->take(s.out[l]);
        if (LAYERS == 1) w->dW[0] = take(m, s.in[0], s.out[0]);
    }
    for (int l = 0; l < LAYERS; l++) {
        w->x[l] = take(m, rows, s.in[l]), w->raw[l] = take(m, rows, s.out[l]);
        if (back || l + 1 < LAYERS) w->z[l] = take(m, rows, s.out[l]);
        w->y[l] = !back && l ? w->z[0] : take(m, rows, s.in[l]);
        w->zq[l] = !back && l + 1 < LAYERS ? w->z[0] : take(m, rows, s.out[l]);
        if (back) w->dx[l] = take(m, rows, s.in[l]), w->du[l] = take(m, rows, s.out[l]);
    }
    w->v = take(m, rows, s.D);
    if (!back) w->z[LAYERS - 1] = w->zq[LAYERS - 1];
    if (!back) return;
    w->dz = take(m, rows, widest), w->dy = take(m, rows, widest);
    if (LAYERS > 1) w->h = take(m, rows, s.F), w->below = take(m, rows, s.F);
    for (int l = 0; LAYERS > 1 && l < LAYERS; l++) w->dW[l] = take(m, s.in[l], s.out[l]);
    m->room = 0;
    w->inside = m->take(s.group * s.record), w->starts = m->take(s.groups * s.numbers);
}

/* ---- a head of a sequence -------------------------------------------------------------------------------------------------------------------- */

/* TILES: columns of a head whose whole mini-batches go by ttt_linear_tiles.cuh or ttt_mlp_tiles.cuh, 0: none. */
template <typename T, int LAYERS, int TILES = 0> struct ttt_head {
    static constexpr bool HALF = sizeof(T) == 2;
    static constexpr int TOP = LAYERS - 1;
    const lnt_ttt_args &a;
    const ttt_sizes &s;
    ttt_work<LAYERS> w;
    ttt_norm norm;
    int64_t n, first, len;
    int h;
    float *sum_w[LAYERS], *sum_b[LAYERS], *dposition; /* backward: this piece's sums */
    const ttt_segments *segments;                     /* of tiles */

    __device__ ttt_head(const lnt_ttt_args &args, const ttt_sizes &sizes) : a(args), s(sizes) {}

    __device__ void begin(int64_t sequence, int head)
    {
        n = sequence, h = head, first = a.cu_seqlens_device[n], len = a.cu_seqlens_device[n + 1] - first;
        norm.D = s.D, norm.plain = a.inner == LNT_TTT_PLAIN;
        norm.w = weights_of(a.ln_w, h, s.D), norm.b = weights_of(a.ln_b, h, s.D);
        __syncthreads();
        positions();
    }
    /* Backward: sums of a piece, which begin with zeros. */
    __device__ void begin_sums(float *sums, int64_t all)
    {
        for (int64_t j = threadIdx.x; j < all; j += TTT_THREADS) sums[j] = 0.0f;
#pragma unroll
        for (int l = 0; l < LAYERS; l++) {
            sum_w[l] = sums, sum_b[l] = sums += count(l);
            sums += s.out[l];
        }
        norm.dw = sums, norm.db = sums + s.D, dposition = sums + 2 * s.D;
    }
    /* Factors of the rows' step sizes. Ends with a barrier. */
    __device__ void positions()
    {
        for (int i = (int)threadIdx.x; i < s.m; i += TTT_THREADS) {
            const float p = a.token_idx ? 1.0f / (float)(i + 1) + ((const float *)a.token_idx)[i] : 1.0f;
            w.position[i] = p < 0 ? 0.0f : p; /* NaN stays */
        }
        __syncthreads();
    }
    __device__ float *of(const void *p, int64_t count) const { return state_of(a, p, n, h, count); }
    __device__ int64_t count(int l) const { return (int64_t)s.in[l] * s.out[l]; }

    /* ---- states ---- */

    /* The initial state's open rows, and the weights that they began with. */
    __device__ __noinline__ int load()
    {
        const int open = open_rows(a, n, h);
#pragma unroll
        for (int l = 0; l < LAYERS; l++) {
            const lnt_ttt_layer &y = a.layer[l];
            sum_from(w.W[l], weights_of(y.w, h, count(l)), of(open ? y.sw0 : y.w0, count(l)), s.in[l], s.out[l]);
            sum_from({ w.b[l], 0 }, weights_of(y.b, h, s.out[l]), of(open ? y.sb0 : y.b0, s.out[l]), 1, s.out[l]);
            from_state(w.x[l], of(y.x0, (int64_t)s.m * s.in[l]), open, s.in[l]);
            from_state(w.raw[l], of(y.u0, (int64_t)s.m * s.out[l]), open, s.out[l]);
        }
        for (int i = (int)threadIdx.x; i < open; i += TTT_THREADS) w.rate[i] = 1.0f;
        __syncthreads();
        return open;
    }

    /* The final state: the weights after the last row, and the `left` rows of its mini-batch with those it began with. `same`: that is the one that
     * the initial state had open. */
    __device__ __noinline__ void store(int left, bool same)
    {
#pragma unroll
        for (int l = 0; l < LAYERS; l++) {
            const lnt_ttt_layer &y = a.layer[l];
            const int in = s.in[l], out = s.out[l];
            float *sw = of(y.swT, count(l)), *sb = of(y.sbT, out), *u = of(y.uT, (int64_t)s.m * out);
            const float *sw0 = of(y.sw0, count(l)), *sb0 = of(y.sb0, out);
            if (!left)
                to_state(sw, NULL, 0, 0, in, out), to_state(sb, NULL, 0, 0, 1, out);
            else if (same) { /* as it was: a difference would be rounded at every call */
                if (sw != sw0) to_state(sw, sw0, out, in, in, out);
                if (sb != sb0) to_state(sb, sb0, out, 1, 1, out);
            } else {
                difference_to(sw, w.W[l], weights_of(y.w, h, count(l)), in, out);
                difference_to(sb, { w.b[l], 0 }, weights_of(y.b, h, out), 1, out);
            }
            to_state(of(y.xT, (int64_t)s.m * in), w.x[l].p, w.x[l].ld, left, s.m, in);
            if (u) TTT_EACH(i, c, s.m, out) u[(int64_t)i * out + c] = i < left ? w.rate[i] * w.raw[l].row(i)[c] : 0.0f;
        }
        __syncthreads();
        if (left) update(left);
#pragma unroll
        for (int l = 0; l < LAYERS; l++) {
            const lnt_ttt_layer &y = a.layer[l];
            difference_to(of(y.wT, count(l)), w.W[l], weights_of(y.w, h, count(l)), s.in[l], s.out[l]);
            difference_to(of(y.bT, s.out[l]), { w.b[l], 0 }, weights_of(y.b, h, s.out[l]), 1, s.out[l]);
        }
        if (a.nT && threadIdx.x == 0) *of(a.nT, 1) = (float)left;
    }

    /* A state as it is, or its gradient: of a sequence without tokens. */
    __device__ __noinline__ void pass(bool gradient)
    {
        const int open = open_rows(a, n, h);
        __syncthreads();
#pragma unroll
        for (int l = 0; l < LAYERS; l++) {
            const lnt_ttt_layer &y = gradient ? a.dlayer[l] : a.layer[l];
            const int in = s.in[l], out = s.out[l];
            const int64_t xs = (int64_t)s.m * in, us = (int64_t)s.m * out;
            auto go = [&](const void *initial, const void *final, int some, int rows, int columns, int64_t size) {
                float *to = of(gradient ? initial : final, size);
                const float *from = of(gradient ? final : initial, size);
                if (to != from || some < rows) to_state(to, from, columns, some, rows, columns);
            };
            go(y.w0, y.wT, in, in, out, count(l));
            go(y.b0, y.bT, 1, 1, out, out);
            go(y.sw0, y.swT, open ? in : 0, in, out, count(l));
            go(y.sb0, y.sbT, open ? 1 : 0, 1, out, out);
            go(y.x0, y.xT, open, s.m, in, xs);
            go(y.u0, y.uT, open, s.m, out, us);
        }
        float *rows = of(gradient ? a.dn0 : a.nT, 1);
        if (rows && threadIdx.x == 0) *rows = gradient ? 0.0f : (float)open;
    }

    /* ---- rows ---- */

    /* Keys of rows p .. rows-1, tokens from t on: inputs of the layers, gradients, step sizes; and the queries, for later. */
    __device__ __noinline__ void learn(int64_t t, int p, int rows)
    {
        const int D = s.D, F = s.F, k = rows - p, m = s.m, id = (int)threadIdx.x;
        const float *eta = (const float *)a.eta, *rates = (const float *)a.rate;
        /* the first of these are loaded in front of the rows, so that one wait is enough */
        const float eta0 = eta && id < k * m ? eta[((t + id / m) * a.H + h) * m + id % m] : 1.0f;
        const float rate0 = rates && id < k ? rates[(t + id) * a.H + h] : 1.0f;
        rows_in<T>({ w.x[0].from(p), w.v.from(p), w.y[0].from(p) }, { a.k, a.v, a.q }, t, k, a.H, h, D);
        if (id < k) w.rate[p + id] = rate0;
        for (int at = id; at < k * m; at += TTT_THREADS) {
            const int i = at / m, j = at % m;
            const float y = at == id ? eta0 : eta ? eta[((t + i) * a.H + h) * m + j] : 1.0f;
            w.F.row(p + i)[j] = j > p + i ? 0.0f : w.position[p + i] * y;
        }
        __syncthreads();
        product<HALF, HALF>(TTT_SET, k, s.out[0], D, as_is(w.x[0].from(p)), as_is(w.W[0]), w.z[0].from(p), NULL, w.b[0]);
        if constexpr (TOP > 0) {
            TTT_EACH(i, c, k, F) w.x[TOP].row(p + i)[c] = gelu(w.z[0].row(p + i)[c]);
            __syncthreads();
            product<HALF>(TTT_SET, k, D, F, as_is(w.x[TOP].from(p)), as_is(w.W[TOP]), w.z[TOP].from(p), NULL, w.b[TOP]);
        }
        loss_rows(norm, p, rows, w.z[TOP], w.x[0], w.v, w.z[TOP], w.inverse, w.raw[TOP]);
        __syncthreads();
        if constexpr (TOP > 0) { /* u_0 = (u W^T) gelu'(z_0) */
            const ttt_matrix to = w.h.p ? w.h : w.raw[0];
            product<HALF>(TTT_SET, k, F, D, as_is(w.raw[TOP].from(p)), turned(w.W[TOP]), to.from(p));
            TTT_EACH(i, c, k, F) w.raw[0].row(p + i)[c] = to.row(p + i)[c] * gelu_slope(w.z[0].row(p + i)[c]);
            __syncthreads();
        }
    }

    /* Layer l for queries p .. rows-1 by the weights after their own rows:  zq = y W + b - A u,  A = F.S,  S = y x^T + 1. */
    template <int l> __device__ __noinline__ void read_layer(int p, int rows)
    {
        const int k = rows - p;
        product<HALF, HALF && l == 0>(TTT_SET, k, rows, s.in[l], as_is(w.y[l].from(p)), turned(w.x[l]), w.S[l].from(p));
        TTT_EACH(i, j, k, rows)
        {
            const float S = w.S[l].row(p + i)[j] + (float)a.bias;
            w.S[l].row(p + i)[j] = S;
            w.A[l].row(p + i)[j] = S * w.F.row(p + i)[j];
        }
        product<HALF, HALF && l == 0>(TTT_SET, k, s.out[l], s.in[l], as_is(w.y[l].from(p)), as_is(w.W[l]), w.zq[l].from(p), NULL, w.b[l]);
        product<HALF>(TTT_SUB, k, s.out[l], rows, as_is(w.A[l].from(p)), as_is(w.raw[l]), w.zq[l].from(p), w.rate);
    }

    /* Where z and y of the second layer's input share a place (forward), z is done with by now. */
    __device__ void read(int p, int rows)
    {
        read_layer<0>(p, rows);
        if constexpr (TOP > 0) {
            TTT_EACH(i, c, rows - p, s.F) w.y[TOP].row(p + i)[c] = gelu(w.zq[0].row(p + i)[c]);
            __syncthreads();
            read_layer<TOP>(p, rows);
        }
    }

    /* o = LN(zq) + q, or zq. */
    __device__ void put_output(int64_t t, int p, int rows)
    {
        TTT_EACH_ROW(i, p, rows)
        {
            float *z = w.zq[TOP].row(i);
            T *to = (T *)a.o + ((t + i - p) * a.H + h) * s.D;
            if (!norm.plain) normalise_row(s.D, z, z);
            TTT_EACH_COLUMN(c, s.D) to[c] = from_float<T>(norm.plain ? z[c] : z[c] * norm.w[c] + norm.b[c] + w.y[0].row(i)[c]);
        }
        __syncthreads();
    }

    /* The factors of the rows' update: those of the last row, times rate. Ends with a barrier. */
    __device__ void last_factors(int rows)
    {
        for (int j = (int)threadIdx.x; j < rows; j += TTT_THREADS) w.last[j] = w.F.row(rows - 1)[j] * w.rate[j];
        __syncthreads();
    }

    __device__ __noinline__ void update(int rows)
    {
        last_factors(rows);
#pragma unroll
        for (int l = 0; l < LAYERS; l++) {
            if (a.bias) add_rows(w.b[l], -1, rows, s.out[l], w.raw[l], w.last);
            if (!HALF || rows != 16 || ((s.in[l] | s.out[l]) & 15)) {
                product<HALF>(TTT_SUB, s.in[l], s.out[l], rows, turned(w.x[l]), as_is(w.raw[l]), w.W[l], w.last);
                continue;
            }
            const ttt_matrix W = w.W[l];
            outer_tiles<false, 1>(s.in[l], s.out[l], w.x[l], w.raw[l], { w.last }, [&](int i, int n, const float (&sums)[1][2]) {
                float2 *to = (float2 *)(W.row(i) + n);
                *to = make_float2(to->x - sums[0][0], to->y - sums[0][1]);
            });
            __syncthreads();
        }
    }

    /* Rows of the mini-batch that begins with token t. */
    __device__ void ahead(int64_t t)
    {
        const int64_t rows = first + len - t < s.m ? first + len - t : s.m;
        for (const void *p : { a.q, a.k, a.v }) rows_ahead<T>(p, t, rows, a.H, h, s.D);
        rows_ahead<float>(a.eta, t, rows, a.H, h, s.m);
    }

    template <bool BACK> __device__ __forceinline__ void chain_ahead(int64_t t, int64_t count)
    {
        if constexpr (TOP > 0)
            ttt_mlp_chain_ahead<BACK>(*this, t, count);
        else
            ttt_chain_ahead<TILES, BACK>(*this, t, count);
    }

    __device__ void forward(bool one_by_one)
    {
        if (!len) {
            pass(false);
            return;
        }
        const int open = load();
        const int64_t batches = batches_of(a, open, len);
        for (int64_t c = 0; c < batches; c++) {
            const ttt_batch y = batch_at(a, open, len, c);
            if constexpr (TILES > 0) {
                const int64_t some = ttt_whole(*this, open, c, batches);
                if (some > 0) {
                    chain_ahead<false>(first + y.first, some);
                    c += some - 1;
                    continue;
                }
            }
            ahead(first + y.first + y.rows - y.open);
            for (int i = y.open, end; i < y.rows; i = end) {
                const int64_t t = first + y.first + i - y.open;
                end = one_by_one ? i + 1 : y.rows;
                learn(t, i, end);
                read(i, end);
                put_output(t, i, end);
            }
            if (y.rows == s.m) update(s.m);
        }
        store((int)((open + len) % s.m), batches == 1 && open);
    }

    /* ---- backward ---- */

    __device__ __noinline__ void put_state(float *p)
    {
#pragma unroll
        for (int l = 0; l < LAYERS; l++) {
            put_by(p, w.W[l], s.in[l], s.out[l]);
            put_by(p + count(l), { w.b[l], 0 }, 1, s.out[l]);
            p += count(l) + s.out[l];
        }
    }
    __device__ __noinline__ void take_state(const float *p)
    {
        __syncthreads();
#pragma unroll
        for (int l = 0; l < LAYERS; l++) {
            from_state(w.W[l], p, s.in[l], s.out[l]);
            from_state({ w.b[l], 0 }, p + count(l), 1, s.out[l]);
            p += count(l) + s.out[l];
        }
        __syncthreads();
    }

    /* Layer l's queries, from dz [n,out] of zq: du, dx, dF, dW and db take their shares; dy [n,in] is written, which x dW + db of the update uses
     * before. dW and db come from behind the mini-batch. */
    template <int l> __device__ __noinline__ void read_layer_back(int p, int rows)
    {
        const int k = rows - p, in = s.in[l], out = s.out[l], m = s.m;
        product<HALF>(TTT_SET, rows, out, in, as_is(w.x[l]), as_is(w.dW[l]), w.dy, NULL, w.db[l]);
        TTT_EACH_ROW(j, 0, rows)
        {
            const float dot = dot_rows(out, w.dy.row(j), w.raw[l].row(j)), by = w.F.row(rows - 1)[j];
            if (threadIdx.x % 32 == 0) w.dF.row(rows - 1)[j] -= w.rate[j] * dot;
            TTT_EACH_COLUMN(c, out) w.du[l].row(j)[c] -= by * w.dy.row(j)[c];
        }
        __syncthreads();
        product<HALF>(TTT_SUB, rows, out, k, turned(w.A[l].from(p)), as_is(w.dz), w.du[l]);
        product<HALF>(TTT_SET, k, rows, out, as_is(w.dz), turned(w.raw[l]), w.dA);
        TTT_EACH(i, j, k, rows)
        {
            const float d = p + i < j ? 0.0f : -w.dA.row(i)[j] * w.rate[j];
            w.dF.row(p + i)[j] += d * w.S[l].row(p + i)[j];
            w.dA.row(i)[j] = d * w.F.row(p + i)[j];
        }
        product<HALF>(TTT_SET, k, in, out, as_is(w.dz), turned(w.W[l]), w.dy);
        product<HALF>(TTT_ADD, k, in, rows, as_is(w.dA), as_is(w.x[l]), w.dy);
        product<HALF>(TTT_ADD, rows, in, k, turned(w.dA), as_is(w.y[l].from(p)), w.dx[l]);
        last_factors(rows);
        TTT_EACH(j, c, rows, out) w.zq[l].row(j)[c] = w.last[j] * w.raw[l].row(j)[c]; /* zq is done with */
        __syncthreads();
        product<HALF>(TTT_SUB, rows, in, out, as_is(w.zq[l]), turned(w.dW[l]), w.dx[l]);
        if (a.bias) add_rows(w.db[l], 1, k, out, w.dz, NULL);
        product<HALF>(TTT_ADD, in, out, k, turned(w.y[l].from(p)), as_is(w.dz), w.dW[l]);
        (void)m;
    }

    /* From the outputs' cotangents to the queries' gradients. */
    __device__ void read_back(int64_t t, int p, int rows)
    {
        const int D = s.D, k = rows - p;
        rows_in<T, 1>({ w.dz }, { a.dout }, t, k, a.H, h, D);
        __syncthreads();
        if (!norm.plain) {
            TTT_EACH_ROW(i, 0, k) /* zq becomes dc hat, dy becomes dc: their columns' sums are the norm's gradients */
            {
                float *z = w.zq[TOP].row(p + i), *d = w.dz.row(i), *dc = w.dy.row(i);
                const float inverse = normalise_row(D, z, z);
                TTT_EACH_COLUMN(c, D) dc[c] = d[c], d[c] *= norm.w[c];
                project_row(D, d, z, inverse, d);
                TTT_EACH_COLUMN(c, D) z[c] *= dc[c];
            }
            __syncthreads();
            norm_sums(norm, 0, k, w.zq[TOP].from(p), w.dy);
        }
        read_layer_back<TOP>(p, rows);
        if constexpr (TOP > 0) {
            TTT_EACH(i, c, k, s.F) w.dz.row(i)[c] = w.dy.row(i)[c] * gelu_slope(w.zq[0].row(p + i)[c]);
            __syncthreads();
            read_layer_back<0>(p, rows);
        }
        TTT_EACH(i, c, k, D)
        {
            const int64_t at = ((t + i) * a.H + h) * D + c;
            if (a.dq) ((T *)a.dq)[at] = from_float<T>(w.dy.row(i)[c] + (norm.plain || !a.dout ? 0.0f : to_float(((const T *)a.dout)[at])));
        }
        __syncthreads();
    }

    /* From du of rows p .. rows-1 to keys, values, weights and rates. */
    __device__ __noinline__ void learn_back(int64_t t, int p, int rows)
    {
        const int D = s.D, F = s.F, k = rows - p;
        TTT_EACH_ROW(i, p, rows)
        {
            float drate = 0;
#pragma unroll
            for (int l = 0; l < LAYERS; l++) {
                drate += dot_rows(s.out[l], w.du[l].row(i), w.raw[l].row(i));
                TTT_EACH_COLUMN(c, s.out[l]) w.du[l].row(i)[c] *= w.rate[i];
            }
            if (a.drate && threadIdx.x % 32 == 0) ((float *)a.drate)[(t + i - p) * a.H + h] = drate;
        }
        __syncthreads();
        if constexpr (TOP > 0) { /* u_0 = h gelu'(z_0), h = u W^T */
            TTT_EACH(i, c, k, F)
            {
                float *d = w.du[0].row(p + i) + c;
                const float z = w.z[0].row(p + i)[c];
                w.below.row(p + i)[c] = *d * w.h.row(p + i)[c] * gelu_bend(z);
                *d *= gelu_slope(z);
            }
            __syncthreads();
            product<HALF>(TTT_ADD, k, D, F, as_is(w.du[0].from(p)), as_is(w.W[TOP]), w.du[TOP].from(p));
            product<HALF>(TTT_ADD, F, D, k, turned(w.du[0].from(p)), as_is(w.raw[TOP].from(p)), w.dW[TOP]);
        }
        TTT_EACH_ROW(i, p, rows)
            loss_row_back(norm, w.z[TOP].row(i), w.inverse[i], w.x[0].row(i), w.v.row(i), w.raw[TOP].row(i), w.du[TOP].row(i), w.dx[0].row(i));
        __syncthreads();
        norm_sums(norm, p, rows, w.z[TOP], w.raw[TOP]);
        layer_back<TOP>(p, k, w.du[TOP].from(p));
        if constexpr (TOP > 0) {
            TTT_EACH(i, c, k, F)
                w.dz.row(i)[c] = w.dx[TOP].row(p + i)[c] * gelu_slope(w.z[0].row(p + i)[c]) + w.below.row(p + i)[c];
            __syncthreads();
            layer_back<0>(p, k, w.dz);
        }
        rows_out<T>(a.dk, w.dx[0].from(p), t, k, a.H, h, D);
        rows_out<T>(a.dv, w.v.from(p), t, k, a.H, h, D);
        steps_back(t, p, rows);
    }

    template <int l> __device__ __noinline__ void layer_back(int p, int k, ttt_matrix dz)
    {
        if (a.bias) add_rows(w.db[l], 1, k, s.out[l], dz, NULL);
        product<HALF>(TTT_ADD, s.in[l], s.out[l], k, turned(w.x[l].from(p)), as_is(dz), w.dW[l]);
        product<HALF>(TTT_ADD, k, s.in[l], s.out[l], as_is(dz), turned(w.W[l]), w.dx[l].from(p));
    }

    /* From dF to the step sizes and the positions. */
    __device__ void steps_back(int64_t t, int p, int rows)
    {
        TTT_EACH_ROW(i, p, rows)
        {
            const int64_t row = ((t + i - p) * a.H + h) * s.m;
            float sum = 0;
            TTT_EACH_COLUMN(j, s.m)
            {
                const float d = j > i ? 0.0f : w.dF.row(i)[j];
                if (a.deta) ((float *)a.deta)[row + j] = d * w.position[i];
                sum += j > i ? 0.0f : d * (a.eta ? ((const float *)a.eta)[row + j] : 1.0f);
            }
            sum = warp_sum(sum);
            if (threadIdx.x % 32 == 0) dposition[i] += w.position[i] > 0 ? sum : 0.0f;
        }
        __syncthreads();
    }

    /* dW, db, from behind mini-batch y, become the gradients of its start. `left`: its rows in the final state, 0 where none. */
    __device__ void backward_batch(const ttt_batch &y, int left)
    {
        const int64_t t = first + y.first;
        TTT_EACH(i, j, s.m, s.m) w.dF.row(i)[j] = 0.0f;
#pragma unroll
        for (int l = 0; l < LAYERS; l++) {
            const float *dx = of(a.dlayer[l].xT, (int64_t)s.m * s.in[l]), *du = of(a.dlayer[l].uT, (int64_t)s.m * s.out[l]);
            TTT_EACH(i, c, s.m, s.in[l]) w.dx[l].row(i)[c] = dx && i < left ? dx[i * s.in[l] + c] : 0.0f;
            TTT_EACH(i, c, s.m, s.out[l]) w.du[l].row(i)[c] = du && i < left ? du[i * s.out[l] + c] : 0.0f;
        }
        learn(t, y.open, y.rows);
        read(y.open, y.rows);
        read_back(t, y.open, y.rows);
        learn_back(t, y.open, y.rows);
#pragma unroll
        for (int l = 0; l < LAYERS; l++) {
            const float *dw = of(a.dlayer[l].swT, count(l)), *db = of(a.dlayer[l].sbT, s.out[l]);
            if (left && dw) TTT_EACH(i, c, s.in[l], s.out[l]) w.dW[l].row(i)[c] += dw[(int64_t)i * s.out[l] + c];
            if (left && db) TTT_EACH(i, c, 1, s.out[l]) w.db[l][c] += db[c];
        }
        __syncthreads();
    }

    /* Final states are differences too: what comes to them comes to the weights, less. */
    __device__ __noinline__ void end_gradients(int left)
    {
#pragma unroll
        for (int l = 0; l < LAYERS; l++) {
            const lnt_ttt_layer &y = a.dlayer[l];
            const int in = s.in[l], out = s.out[l];
            const float *dw = of(y.wT, count(l)), *db = of(y.bT, out), *sw = left ? of(y.swT, count(l)) : NULL, *sb = left ? of(y.sbT, out) : NULL;
            TTT_EACH(i, c, in, out)
            {
                const int64_t at = (int64_t)i * out + c;
                w.dW[l].row(i)[c] = dw ? dw[at] : 0.0f;
                sum_w[l][at] -= (dw ? dw[at] : 0.0f) + (sw ? sw[at] : 0.0f);
            }
            TTT_EACH(i, c, 1, out)
            {
                w.db[l][c] = db ? db[c] : 0.0f;
                sum_b[l][c] -= (db ? db[c] : 0.0f) + (sb ? sb[c] : 0.0f);
            }
        }
        __syncthreads();
    }

    __device__ __noinline__ void start_gradients(int open)
    {
#pragma unroll
        for (int l = 0; l < LAYERS; l++) {
            const lnt_ttt_layer &y = a.dlayer[l];
            const int in = s.in[l], out = s.out[l];
            to_state(of(y.w0, count(l)), w.dW[l].p, w.dW[l].ld, open ? 0 : in, in, out);
            to_state(of(y.b0, out), w.db[l], 0, open ? 0 : 1, 1, out);
            to_state(of(y.sw0, count(l)), w.dW[l].p, w.dW[l].ld, open ? in : 0, in, out);
            to_state(of(y.sb0, out), w.db[l], 0, open ? 1 : 0, 1, out);
            to_state(of(y.x0, (int64_t)s.m * in), w.dx[l].p, w.dx[l].ld, open, s.m, in);
            to_state(of(y.u0, (int64_t)s.m * out), w.du[l].p, w.du[l].ld, open, s.m, out);
            TTT_EACH(i, c, in, out) sum_w[l][(int64_t)i * out + c] += w.dW[l].row(i)[c];
            TTT_EACH(i, c, 1, out) sum_b[l][c] += w.db[l][c];
        }
        if (a.dn0 && threadIdx.x == 0) *of(a.dn0, 1) = 0.0f;
        __syncthreads();
    }

    __device__ void go_over(const ttt_batch &y)
    {
        learn(first + y.first, y.open, y.rows);
        update(s.m);
    }

    /* Back by segments (ahead: ttt_segments_ahead). */
    __device__ void segments_back()
    {
        if (!len) {
            pass(true);
            return;
        }
        const int open = load(), left = (int)((open + len) % s.m);
        const int64_t batches = batches_of(a, open, len), low = open ? 1 : 0;
        end_gradients(left);
        for (int64_t c = batches - 1; c >= 0; c--) {
            if (c >= low && ttt_whole(*this, open, c, c + 1) > 0) {
                const int64_t t = first + batch_at(a, open, len, c).first;
                if constexpr (TOP > 0)
                    ttt_mlp_chain_back(*this, t, (int)(c - low + 1));
                else
                    ttt_chain_back<TILES>(*this, t, c - low + 1);
                c = low;
                continue;
            }
            __syncthreads();
            if (c)
                take_state(segments->start_of(n, h));
            else
                load();
            backward_batch(batch_at(a, open, len, c), c == batches - 1 ? left : 0);
        }
        start_gradients(open);
    }

    __device__ void backward()
    {
        if (!len) {
            pass(true);
            return;
        }
        const int open = load(), left = (int)((open + len) % s.m);
        const int64_t batches = batches_of(a, open, len), last = (batches - 1) / s.group;
        for (int64_t g = 0; g <= last; g++) {
            put_state(w.starts + g * s.numbers);
            if (g < last) ttt_sweep(*this, open, g * s.group, (g + 1) * s.group); /* the last group's are made below, as all are again */
        }
        end_gradients(left);
        for (int64_t g = last; g >= 0; g--) {
            const int64_t from = g * s.group, end = batches < from + s.group ? batches : from + s.group;
            __syncthreads();
            if (!g) load(); /* its open rows too */
            take_state(w.starts + g * s.numbers);
            ttt_sweep(*this, open, from, end);
            for (int64_t c = end - 1; c >= from; c--) {
                __syncthreads();
                if (!c && open) load();
                take_state(w.inside + (c - from) * s.record);
                backward_batch(batch_at(a, open, len, c), c == batches - 1 ? left : 0);
            }
        }
        start_gradients(open);
    }
};

#endif

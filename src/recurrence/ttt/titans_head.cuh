/* Titans with a matrix for a memory: a CTA's walk over a head, forwards and back, for every shape and type (titans_cuda.cu). */
#ifndef LNT_TITANS_HEAD_CUH
#define LNT_TITANS_HEAD_CUH

#include "recurrence/ttt/titans_tiles.cuh"

#include <initializer_list>

/* What a CTA works on. Of the rows of a mini-batch from one on, which it calls 0: kept[i] of M at their start is left behind row i, lent[i] of S
 * comes to M, left[i] of S is left; row j's gradient is in S behind row i with S_part[i,j] and in M with M_part[i,j]. */
struct titans_work {
    ttt_matrix M, S, start, q, k, v, hat, u, QM, QS, QK, A, M_part, S_part;
    float *inverse, *theta, *keep, *eta, *kept, *lent, *left;
    ttt_matrix dM, dS, dstart, KM, KS, du, dq, dk, dO, dM_part, dS_part, Y;
    float *dkept, *dlent, *M_back, *S_back, *partial, *starts, *inside, *ends;
};

struct titans_sizes {
    int D, m;
    int64_t record, group, groups; /* backward: what is put by of a mini-batch, those of a group, and the most groups */
    int64_t room;                  /* of tiles, 0: none */
};

static titans_sizes sizes_of(const lnt_ttt_args *a, bool back, int64_t ctas, bool tiles)
{
    const int64_t batches = lnt_ttt_batches(a, a->mini_batch - 1, a->longest);
    const int64_t record = 2ll * a->D * a->D, group = back && !tiles ? ttt_group(batches, record, ctas) : 0;
    const size_t ahead = a->D == 64 ? sizeof(titans_ahead_room<64>) : sizeof(titans_ahead_room<128>);
    const size_t room = !back ? ahead : a->D == 64 ? sizeof(titans_chain_room<64>) : sizeof(titans_chain_room<128>);
    return { a->D, a->mini_batch, record, group, group ? batches / group + 1 : 0, tiles ? (int64_t)room / 4 : 0 };
}

/* In the order in which shared memory is given away. */
__host__ __device__ static void carve(const titans_sizes &s, bool back, ttt_arena *m, titans_work *w)
{
    const int D = s.D, rows = s.m;
    auto square = [&](ttt_matrix *x, int64_t i, int64_t columns) { *x = { m->take(i * ttt_ld(columns)), ttt_ld(columns) }; };
    m->take(s.room); /* the tiles', where shared memory begins */
    square(&w->M, D, D), square(&w->S, D, D);
    for (float **p : { &w->inverse, &w->theta, &w->keep, &w->eta, &w->kept, &w->lent, &w->left }) *p = m->take(rows);
    for (ttt_matrix *p : { &w->QK, &w->A, &w->M_part, &w->S_part }) square(p, rows, rows);
    w->partial = m->take(TTT_WARPS);
    for (ttt_matrix *p : { &w->k, &w->u, &w->q, &w->QM, &w->hat, &w->v, &w->QS }) square(p, rows, D);
    if (back) {
        for (float **p : { &w->dkept, &w->dlent, &w->M_back, &w->S_back }) *p = m->take(rows);
        for (ttt_matrix *p : { &w->dM_part, &w->dS_part, &w->Y }) square(p, rows, rows);
        for (ttt_matrix *p : { &w->dO, &w->du, &w->dk, &w->dq, &w->KM, &w->KS }) square(p, rows, D);
        square(&w->dM, D, D), square(&w->dS, D, D), square(&w->dstart, D, D);
    }
    square(&w->start, D, D);
    if (!back) return;
    m->room = 0;
    w->inside = m->take(s.group * s.record), w->ends = m->take(4 * D * D), w->starts = m->take(s.groups * 2 * D * D);
}

/* TILES: columns of a head whose whole mini-batches go by titans_tiles.cuh, 0: none. */
template <typename T, int TILES = 0> struct titans_head {
    static constexpr bool HALF = sizeof(T) == 2;
    const lnt_ttt_args &a;
    const titans_sizes &s;
    titans_work w;
    ttt_norm norm;
    int64_t n, first, len;
    int h;
    float *sum;                   /* backward: this piece's sums */
    const ttt_segments *segments; /* of tiles */

    __device__ titans_head(const lnt_ttt_args &args, const titans_sizes &sizes) : a(args), s(sizes) {}

    __device__ void begin(int64_t sequence, int head)
    {
        n = sequence, h = head, first = a.cu_seqlens_device[n], len = a.cu_seqlens_device[n + 1] - first;
        norm.D = s.D, norm.plain = a.inner == LNT_TTT_PLAIN;
        norm.w = weights_of(a.ln_w, h, s.D), norm.b = weights_of(a.ln_b, h, s.D);
        __syncthreads();
    }
    __device__ int64_t square() const { return (int64_t)s.D * s.D; }
    __device__ float *of(const void *p) const { return state_of(a, p, n, h, square()); }
    __device__ const float *first_of() const { return weights_of(a.layer[0].w, h, square()); }

    /* ---- states ---- */

    __device__ __noinline__ int load()
    {
        const int open = open_rows(a, n, h), D = s.D;
        sum_from(w.M, first_of(), of(a.layer[0].w0), D, D);
        if (open) sum_from(w.start, first_of(), of(a.g0), D, D);
        from_state(w.S, of(a.m0), D, D);
        __syncthreads();
        return open;
    }

    /* `same`: the mini-batch that is open now is the one that the initial state had open. */
    __device__ __noinline__ void store(int open, bool same)
    {
        const int D = s.D;
        float *g = of(a.gT);
        const float *g0 = of(a.g0);
        difference_to(of(a.layer[0].wT), w.M, first_of(), D, D);
        put_by(of(a.mT), w.S, D, D);
        if (!open)
            to_state(g, NULL, 0, 0, D, D);
        else if (!same)
            difference_to(g, w.start, first_of(), D, D);
        else if (g != g0) /* as it was: a difference would be rounded at every call */
            to_state(g, g0, D, D, D, D);
        if (a.nT && threadIdx.x == 0) *state_of(a, a.nT, n, h, 1) = (float)open;
    }

    /* A state as it is, or its gradient: of a sequence without tokens. */
    __device__ __noinline__ void pass(bool gradient)
    {
        const int open = open_rows(a, n, h), D = s.D;
        const lnt_ttt_layer &y = gradient ? a.dlayer[0] : a.layer[0];
        auto go = [&](const void *initial, const void *final, int some) {
            float *to = of(gradient ? initial : final);
            const float *from = of(gradient ? final : initial);
            if (to != from || some < D) to_state(to, from, D, some, D, D);
        };
        __syncthreads();
        go(y.w0, y.wT, D);
        go(gradient ? a.dm0 : a.m0, gradient ? a.dmT : a.mT, D);
        go(gradient ? a.dg0 : a.g0, gradient ? a.dgT : a.gT, open ? D : 0);
        float *rows = state_of(a, gradient ? a.dn0 : a.nT, n, h, 1);
        if (rows && threadIdx.x == 0) *rows = gradient ? 0.0f : (float)open;
    }

    /* ---- rows ---- */

    /* Coefficients of at most 32 rows: a warp, whose lanes have a row's gates and a column of the triangles each. */
    __device__ void few_coefficients(int rows)
    {
        if (threadIdx.x < 32) {
            const int lane = (int)threadIdx.x, mine = lane < rows ? lane : 0;
            const float theta = w.theta[mine], keep = w.keep[mine], eta = w.eta[mine];
            float M = 0, S = 0, kept = 1, lent = 0, left = 1, own[3] = {};
            for (int i = 0; i < rows; i++) {
                const float by = __shfl_sync(~0u, keep, i), of = __shfl_sync(~0u, eta, i), now = __shfl_sync(~0u, theta, i);
                S = i < lane ? 0.0f : i == lane ? now : of * S;
                M = (i > lane ? by * M : 0.0f) + S;
                kept = by * kept;
                left = of * left;
                lent = by * lent + left;
                if (lane < rows) w.S_part.row(i)[lane] = S, w.M_part.row(i)[lane] = M;
                if (i == lane) own[0] = kept, own[1] = lent, own[2] = left;
            }
            if (lane < rows) w.kept[lane] = own[0], w.lent[lane] = own[1], w.left[lane] = own[2];
        }
        __syncthreads();
    }

    /* Coefficients of rows 0 .. rows-1: a column of the triangles a thread, the rows' own the last one's. */
    __device__ void coefficients(int rows)
    {
        if (rows <= 32) {
            few_coefficients(rows);
            return;
        }
        for (int j = (int)threadIdx.x; j < rows; j += TTT_THREADS) {
            float M = 0, S = 0;
            for (int i = 0; i < rows; i++) {
                S = i < j ? 0.0f : i == j ? w.theta[i] : w.eta[i] * S;
                M = (i > j ? w.keep[i] * M : 0.0f) + S;
                w.S_part.row(i)[j] = S;
                w.M_part.row(i)[j] = M;
            }
        }
        if (threadIdx.x == TTT_THREADS - 1) {
            float kept = 1, lent = 0, left = 1;
            for (int i = 0; i < rows; i++) {
                kept = w.keep[i] * kept;
                left = w.eta[i] * left;
                lent = w.keep[i] * lent + left;
                w.kept[i] = kept, w.lent[i] = lent, w.left[i] = left;
            }
        }
        __syncthreads();
    }

    /* Tokens t .. t+rows-1, whose gradients are taken at `at`; and their queries, for later. */
    __device__ __noinline__ void learn(int64_t t, int rows, ttt_matrix at)
    {
        const int D = s.D, i = (int)threadIdx.x; /* a mini-batch has at most a row a thread */
        const int64_t row = (t + i) * a.H + h;
        const bool mine = i < rows;
        const float theta = mine ? ((const float *)a.theta)[row] : 0.0f, alpha = mine ? ((const float *)a.alpha)[row] : 0.0f;
        const float eta = mine ? ((const float *)a.eta)[row] : 0.0f;
        rows_in<T>({ w.k, w.v, w.q }, { a.k, a.v, a.q }, t, rows, a.H, h, D);
        if (mine) w.theta[i] = theta, w.keep[i] = 1.0f - alpha, w.eta[i] = eta;
        __syncthreads();
        coefficients(rows);
        product<HALF, HALF>(TTT_SET, rows, D, D, as_is(w.k), as_is(at), w.hat);
        loss_rows(norm, 0, rows, w.hat, w.k, w.v, w.hat, w.inverse, w.u);
        __syncthreads();
    }

    /* Both at once, of 16 rows: every number of them is read and written once. */
    __device__ void update_tiles(float kept, float lent, float left)
    {
        const ttt_matrix to_M = w.M, to_S = w.S;
        outer_tiles<true, 2>(s.D, s.D, w.k, w.u, { w.M_part.row(15), w.S_part.row(15) }, [&](int i, int n, const float (&d)[2][2]) {
            float2 *M = (float2 *)(to_M.row(i) + n), *S = (float2 *)(to_S.row(i) + n);
            const float2 m = *M, y = *S;
            *M = make_float2(kept * m.x + lent * y.x - d[0][0], kept * m.y + lent * y.y - d[0][1]);
            *S = make_float2(left * y.x - d[1][0], left * y.y - d[1][1]);
        });
        __syncthreads();
    }

    /* The memory and the momentum over those rows. */
    __device__ __noinline__ void update(int rows)
    {
        const int D = s.D;
        const float kept = w.kept[rows - 1], lent = w.lent[rows - 1], left = w.left[rows - 1];
        if (HALF && rows == 16 && D % 16 == 0) {
            update_tiles(kept, lent, left);
            return;
        }
        TTT_EACH(i, c, D, D)
        {
            const float S = w.S.row(i)[c];
            w.M.row(i)[c] = kept * w.M.row(i)[c] + lent * S;
            w.S.row(i)[c] = left * S;
        }
        __syncthreads();
        product<HALF>(TTT_SUB, D, D, rows, turned(w.k), as_is(w.u), w.M, w.M_part.row(rows - 1));
        product<HALF>(TTT_SUB, D, D, rows, turned(w.k), as_is(w.u), w.S, w.S_part.row(rows - 1));
    }

    /* Q M, Q S, and of Q K^T its product with the coefficients. */
    __device__ __noinline__ void look(int rows)
    {
        const int D = s.D;
        product<HALF, HALF>(TTT_SET, rows, D, D, as_is(w.q), as_is(w.M), w.QM);
        product<HALF, HALF>(TTT_SET, rows, D, D, as_is(w.q), as_is(w.S), w.QS);
        product<HALF, HALF>(TTT_SET, rows, rows, D, as_is(w.q), turned(w.k), w.QK);
        TTT_EACH(i, j, rows, rows) w.A.row(i)[j] = j > i ? 0.0f : w.M_part.row(i)[j] * w.QK.row(i)[j];
        __syncthreads();
    }

    __device__ void read(int64_t t, int rows)
    {
        const int D = s.D;
        look(rows);
        TTT_EACH(i, c, rows, D) w.QM.row(i)[c] = w.kept[i] * w.QM.row(i)[c] + w.lent[i] * w.QS.row(i)[c];
        __syncthreads();
        product<HALF>(TTT_SUB, rows, D, rows, as_is(w.A), as_is(w.u), w.QM);
        rows_out<T>(a.o, w.QM, t, rows, a.H, h, D);
        __syncthreads();
    }

    __device__ void copy(ttt_matrix to, ttt_matrix from)
    {
        TTT_EACH(i, c, s.D, s.D) to.row(i)[c] = from.row(i)[c];
        __syncthreads();
    }

    /* Rows of the mini-batch that begins with token t, on their way. */
    __device__ void rows_next(int64_t t)
    {
        const int64_t rows = first + len - t < s.m ? first + len - t : s.m;
        for (const void *p : { a.q, a.k, a.v }) rows_ahead<T>(p, t, rows, a.H, h, s.D);
    }

    template <bool BACK> __device__ __forceinline__ void chain_ahead(int64_t t, int64_t count) { titans_chain_ahead<TILES, BACK>(*this, t, count); }

    __device__ void forward(bool one_by_one)
    {
        if (!len) {
            pass(false);
            return;
        }
        const int open = load(), after = (int)((open + len) % s.m);
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
            rows_next(first + y.first + y.rows - y.open);
            const bool kept = one_by_one || y.rows < s.m; /* its rows' updates come before its last gradient, or it is to go on */
            if (!y.open && kept) copy(w.start, w.M);
            for (int i = y.open, rows; i < y.rows; i += rows) {
                const int64_t t = first + y.first + i - y.open;
                rows = one_by_one ? 1 : y.rows - i;
                learn(t, rows, kept || y.open ? w.start : w.M);
                read(t, rows);
                update(rows);
            }
        }
        store(after, batches == 1 && open);
    }

    /* ---- backward ---- */

    /* Sum over the CTA, the same in every thread; of one warp after the other. */
    __device__ float sum_all(float x)
    {
        x = warp_sum(x);
        __syncthreads();
        if (threadIdx.x % 32 == 0) w.partial[threadIdx.x / 32] = x;
        __syncthreads();
        x = 0;
        for (int i = 0; i < TTT_WARPS; i++) x += w.partial[i];
        return x;
    }
    __device__ float dot_all(ttt_matrix x, ttt_matrix y)
    {
        float dot = 0;
        TTT_EACH(i, c, s.D, s.D) dot += x.row(i)[c] * y.row(i)[c];
        return sum_all(dot);
    }

    /* Gradients of the coefficients, the recurrences that made them in reverse: a warp, whose lanes have columns of the triangles. */
    __device__ __noinline__ void coefficients_back(int64_t t, int rows, float dleft)
    {
        if (threadIdx.x >= 32) return;
        const int lane = (int)threadIdx.x;
        float kept = 0, lent = 0, left = 0; /* what comes from the row behind */
        for (int j = lane; j < rows; j += 32) w.M_back[j] = w.S_back[j] = 0.0f;
        __syncwarp();
        for (int i = rows - 1; i >= 0; i--) {
            const float gl = w.dlent[i] + lent, gm = (i == rows - 1 ? dleft : 0.0f) + left + gl, gk = w.dkept[i] + kept;
            float dkeep = 0, deta = 0, dtheta = 0;
            for (int j = lane; j <= i; j += 32) {
                const float gM = w.dM_part.row(i)[j] + w.M_back[j], gS = w.dS_part.row(i)[j] + w.S_back[j] + gM;
                if (j == i) dtheta = gS;
                if (j < i) dkeep += gM * w.M_part.row(i - 1)[j], deta += gS * w.S_part.row(i - 1)[j];
                w.M_back[j] = w.keep[i] * gM;
                w.S_back[j] = w.eta[i] * gS;
            }
            dkeep = warp_sum(dkeep) + (i ? gl * w.lent[i - 1] + gk * w.kept[i - 1] : gk);
            deta = warp_sum(deta) + (i ? gm * w.left[i - 1] : gm);
            dtheta = warp_sum(dtheta);
            lent = w.keep[i] * gl, left = w.eta[i] * gm, kept = w.keep[i] * gk;
            if (lane) continue;
            const int64_t row = (t + i) * a.H + h;
            if (a.dtheta) ((float *)a.dtheta)[row] = dtheta;
            if (a.dalpha) ((float *)a.dalpha)[row] = -dkeep;
            if (a.deta) ((float *)a.deta)[row] = deta;
        }
    }

    /* From dO to the gradients of u and of the coefficients, as far as they are made of the rows. */
    __device__ __noinline__ void rows_back(int rows)
    {
        const int D = s.D, last = rows - 1;
        TTT_EACH_ROW(i, 0, rows)
        {
            const float kept = dot_rows(D, w.dO.row(i), w.QM.row(i)), lent = dot_rows(D, w.dO.row(i), w.QS.row(i));
            if (threadIdx.x % 32 == 0) w.dkept[i] = kept, w.dlent[i] = lent;
        }
        __syncthreads();
        product<HALF>(TTT_SET, rows, D, D, as_is(w.k), as_is(w.dM), w.KM);
        product<HALF>(TTT_SET, rows, D, D, as_is(w.k), as_is(w.dS), w.KS);
        product<HALF>(TTT_SET, rows, rows, D, as_is(w.dO), turned(w.u), w.Y);
        TTT_EACH(i, j, rows, rows)
        {
            const float y = j > i ? 0.0f : -w.Y.row(i)[j];
            w.dM_part.row(i)[j] = y * w.QK.row(i)[j];
            w.dS_part.row(i)[j] = 0.0f;
            w.Y.row(i)[j] = y * w.M_part.row(i)[j];
        }
        __syncthreads();
        TTT_EACH_ROW(j, 0, rows)
        {
            const float M = dot_rows(D, w.KM.row(j), w.u.row(j)), S = dot_rows(D, w.KS.row(j), w.u.row(j));
            const float M_last = w.M_part.row(last)[j], S_last = w.S_part.row(last)[j];
            if (threadIdx.x % 32 == 0) w.dM_part.row(last)[j] -= M, w.dS_part.row(last)[j] -= S;
            TTT_EACH_COLUMN(c, D) w.du.row(j)[c] = -(M_last * w.KM.row(j)[c] + S_last * w.KS.row(j)[c]);
        }
        __syncthreads();
        product<HALF>(TTT_SUB, rows, D, rows, turned(w.A), as_is(w.dO), w.du);
    }

    /* to = factor times the rows of from. Ends with a barrier. */
    __device__ ttt_matrix scaled(ttt_matrix to, const float *factor, ttt_matrix from, int rows)
    {
        TTT_EACH(i, c, rows, s.D) to.row(i)[c] = factor[i] * from.row(i)[c];
        __syncthreads();
        return to;
    }

    /* dM, dS from behind the rows become those in front of them; dstart takes its share. */
    __device__ void back(int64_t t, int rows, ttt_matrix start)
    {
        const int D = s.D, last = rows - 1;
        const float *M_last = w.M_part.row(last), *S_last = w.S_part.row(last);
        rows_in<T, 1>({ w.dO }, { a.dout }, t, rows, a.H, h, D);
        __syncthreads();
        const float dkept = dot_all(w.M, w.dM), dlent = dot_all(w.S, w.dM), dleft = dot_all(w.S, w.dS);
        rows_back(rows);
        if (threadIdx.x == 0) w.dkept[last] += dkept, w.dlent[last] += dlent;
        const ttt_matrix f = w.KM; /* done with */
        product<HALF>(TTT_SET, rows, D, D, as_is(scaled(f, w.kept, w.dO, rows)), turned(w.M), w.dq);
        product<HALF>(TTT_ADD, rows, D, D, as_is(scaled(f, w.lent, w.dO, rows)), turned(w.S), w.dq);
        product<HALF>(TTT_ADD, rows, D, rows, as_is(w.Y), as_is(w.k), w.dq);
        rows_out<T>(a.dq, w.dq, t, rows, a.H, h, D);
        product<HALF>(TTT_SET, rows, D, rows, turned(w.Y), as_is(w.q), w.dk);
        product<HALF>(TTT_SUB, rows, D, D, as_is(scaled(f, M_last, w.u, rows)), turned(w.dM), w.dk);
        product<HALF>(TTT_SUB, rows, D, D, as_is(scaled(f, S_last, w.u, rows)), turned(w.dS), w.dk);
        const float kept = w.kept[last], lent = w.lent[last], left = w.left[last];
        TTT_EACH(i, c, D, D)
        {
            const float dM = w.dM.row(i)[c];
            w.dS.row(i)[c] = lent * dM + left * w.dS.row(i)[c];
            w.dM.row(i)[c] = kept * dM;
        }
        __syncthreads();
        product<HALF>(TTT_ADD, D, D, rows, turned(w.q), as_is(w.dO), w.dM, w.kept);
        product<HALF>(TTT_ADD, D, D, rows, turned(w.q), as_is(w.dO), w.dS, w.lent);
        TTT_EACH_ROW(i, 0, rows) loss_row_back(norm, w.hat.row(i), w.inverse[i], w.k.row(i), w.v.row(i), w.u.row(i), w.du.row(i), w.dk.row(i));
        __syncthreads();
        norm_sums(norm, 0, rows, w.hat, w.u);
        product<HALF>(TTT_ADD, rows, D, D, as_is(w.du), turned(start), w.dk);
        product<HALF>(TTT_ADD, D, D, rows, turned(w.k), as_is(w.du), w.dstart);
        coefficients_back(t, rows, dleft);
        rows_out<T>(a.dk, w.dk, t, rows, a.H, h, D);
        rows_out<T>(a.dv, w.v, t, rows, a.H, h, D);
        __syncthreads();
    }

    __device__ __noinline__ void put_state(float *p)
    {
        put_by(p, w.M, s.D, s.D);
        put_by(p + square(), w.S, s.D, s.D);
    }
    __device__ __noinline__ void take_state(const float *p)
    {
        __syncthreads();
        from_state(w.M, p, s.D, s.D);
        from_state(w.S, p + square(), s.D, s.D);
        __syncthreads();
    }

    __device__ void go_over(const ttt_batch &y)
    {
        learn(first + y.first, y.rows - y.open, y.open ? w.start : w.M);
        update(y.rows - y.open);
    }

    __device__ void backward_batch(const ttt_batch &y, const float *at_start)
    {
        const int64_t t = first + y.first;
        const int rows = y.rows - y.open;
        __syncthreads();
        if (y.open || !at_start) load(); /* for the memory at its start */
        if (at_start) take_state(at_start);
        const ttt_matrix start = y.open ? w.start : w.M;
        learn(t, rows, start);
        look(rows);
        back(t, rows, start);
        if (y.open) return;
        TTT_EACH(i, c, s.D, s.D) w.dM.row(i)[c] += w.dstart.row(i)[c], w.dstart.row(i)[c] = 0.0f;
        __syncthreads();
    }

    /* Final states are differences too: what comes to them comes to the first memory, less. */
    __device__ __noinline__ void end_gradients(int open)
    {
        const float *dM = of(a.dlayer[0].wT), *dS = of(a.dmT), *dstart = open ? of(a.dgT) : NULL;
        TTT_EACH(i, c, s.D, s.D)
        {
            const int64_t at = (int64_t)i * s.D + c;
            const float M = w.dM.row(i)[c] = dM ? dM[at] : 0.0f, start = w.dstart.row(i)[c] = dstart ? dstart[at] : 0.0f;
            w.dS.row(i)[c] = dS ? dS[at] : 0.0f;
            sum[at] -= M + start;
        }
        __syncthreads();
    }

    /* The initial state's gradient. */
    __device__ __noinline__ void start_gradients()
    {
        put_by(of(a.dlayer[0].w0), w.dM, s.D, s.D);
        put_by(of(a.dm0), w.dS, s.D, s.D);
        put_by(of(a.dg0), w.dstart, s.D, s.D);
        if (a.dn0 && threadIdx.x == 0) *state_of(a, a.dn0, n, h, 1) = 0.0f;
        TTT_EACH(i, c, s.D, s.D) sum[(int64_t)i * s.D + c] += w.dM.row(i)[c] + w.dstart.row(i)[c];
        __syncthreads();
    }

    /* Back by segments (ahead: ttt_segments_ahead). */
    __device__ void segments_back()
    {
        if (!len) {
            pass(true);
            return;
        }
        const int open = load();
        const int64_t batches = batches_of(a, open, len), low = open ? 1 : 0;
        end_gradients((int)((open + len) % s.m));
        for (int64_t c = batches - 1; c >= 0; c--) {
            if (c >= low && ttt_whole(*this, open, c, c + 1) > 0) {
                titans_chain_back<TILES>(*this, first + batch_at(a, open, len, c).first, c - low + 1);
                c = low;
                continue;
            }
            backward_batch(batch_at(a, open, len, c), c ? segments->start_of(n, h) : NULL);
        }
        start_gradients();
    }

    __device__ void backward()
    {
        if (!len) {
            pass(true);
            return;
        }
        const int open = load(), after = (int)((open + len) % s.m);
        const int64_t batches = batches_of(a, open, len), both = 2 * square(), last = (batches - 1) / s.group;
        for (int64_t g = 0; g <= last; g++) {
            put_state(w.starts + g * both);
            if (g < last) ttt_sweep(*this, open, g * s.group, (g + 1) * s.group); /* the last group's are made below, as all are again */
        }
        end_gradients(after);
        for (int64_t g = last; g >= 0; g--) {
            const int64_t from = g * s.group, end = batches < from + s.group ? batches : from + s.group;
            __syncthreads();
            if (!g) load();
            take_state(w.starts + g * both);
            ttt_sweep(*this, open, from, end);
            for (int64_t c = end - 1; c >= from; c--) backward_batch(batch_at(a, open, len, c), w.inside + (c - from) * s.record);
        }
        start_gradients();
    }
};

#endif

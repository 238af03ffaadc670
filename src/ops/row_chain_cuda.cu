/* Chains of plain operators over few rows (row_chain.h). What a chain costs is latency: of memory, and of instructions, one after the other. So a
 * thread has two columns alone, blocks are many and small, and the sums of heads go over lanes of a warp, the warps of a block, or, of a whole row,
 * over a cluster: no thread waits for another otherwise. First a thread asks for all that comes from outside: what no kernel of the run writes ahead
 * of the wait for the kernel before, the rest behind it. Then it goes through the functions. What one takes from another node is rounded as that node
 * would store it, and the sums of a row do not depend on other rows. Floor: every operand read once, and one latency of memory for all of them.
 *
 * Any chain goes by its table, in shared memory beside operands and results; those that layers have are code of their own, of whole rows or whole
 * heads half of it. Slower: eight columns a thread (H200, fourteen functions 13.2 us, two columns 5.7; of whole rows in one block 5.3, in a cluster
 * 3.2); no faster: the table alone in shared memory, or all of it once ahead of the wait, so that its code is in the caches. */
#include "device/block_clock.cuh"
#include "ops/row_chain_known.cuh"
#include "ops/row_chain_maps.cuh"

namespace {

using namespace row_chain;

template <bool CLUSTER> __global__ void __launch_bounds__(LNT_CHAIN_MOST_THREADS) chain_kernel(const __grid_constant__ lnt_chain a)
{
    extern __shared__ __align__(16) char memory[];
    block_clock clock(CLOCK_CHAIN);
    chain_place p;
    p.share = (chain_share *)memory, p.planes = memory + sizeof(chain_share);
    p.first = (int)(blockIdx.x * blockDim.x) * U, p.some = 0;
    p.row = (int)blockIdx.y, p.col = p.first + (int)threadIdx.x * U, p.seq = p.row;
    int turn = 0;
    let_next();
    if (CLUSTER) open_cluster(p);
    copy_table(p.share->op, a.op, a.ops);
    copy_table(p.share->load, a.load, a.late.end);
    __syncthreads();
#pragma unroll 1
    for (int late = 0; late < 2; late++) {
        if (late) await_last(), clock.goes_on();
        if (late && a.cu) p.seq = sequence_at({a.cu, a.n_seq, a.tokens}, p.row);
        bring(p, late ? a.early.end : 0, late ? a.late.units : a.early.units, late ? a.late.end : a.early.end);
    }
    if (CLUSTER) cluster_wait();
    cp_async_commit();
    cp_async_wait<0>();
    const int warp = p.col - (int)threadIdx.x % 32 * U; /* its first column */
#pragma unroll 1
    for (int i = 0; i < a.ops; i++) {
        const lnt_chain_op &o = p.share->op[i];
        const lnt_chain_head h = o.head;
        const bool waits = h.kind >= LNT_ROW_DOT && h.kind <= LNT_ROW_LAYER && !h.count;
        if (waits || (warp < h.end && warp + LNT_CHAIN_WARP > h.first)) run<CLUSTER>(h, o, p, turn);
    }
}

/* The loads of a.load are in the order of the functions' operands. */
template <int WHICH, bool CLUSTER, int HEAD>
__global__ void __launch_bounds__(LNT_CHAIN_MOST_THREADS) known_kernel(const __grid_constant__ lnt_chain a)
{
    extern __shared__ __align__(16) char memory[];
    block_clock clock(CLOCK_CHAIN);
    chain_place p;
    known_row<WHICH, HEAD> row;
    int turn = 0;
    p.share = (chain_share *)memory, p.planes = NULL;
    p.first = (int)(blockIdx.x * blockDim.x) * U, p.some = 0;
    p.row = (int)blockIdx.y, p.col = p.first + (int)threadIdx.x * U, p.seq = p.row;
    let_next();
    if (CLUSTER) open_cluster(p);
    row.template fetch<false>(a, p);
    await_last(), clock.goes_on();
    if (a.cu) p.seq = sequence_at({a.cu, a.n_seq, a.tokens}, p.row);
    row.template fetch<true>(a, p);
    if (CLUSTER) cluster_wait();
    each<KNOWN[WHICH].ops>([&](auto i) { row.template run<i.value, CLUSTER>(a, p, turn); });
}

/* Threads that have no functions pass a barrier wherever those that do wait for each other ahead of the rule: nothing needs it, but
 * racecheck orders what stands on both sides of __syncthreads only where all warps have passed as many barriers. */
template <int WHICH, class MAPS, int TURN> __device__ __forceinline__ void pass_along(const lnt_chain &a, int threads)
{
    each<KNOWN[WHICH].ops>([&](auto i) {
        if constexpr (sums(KNOWN[WHICH].op[i.value].kind) && turn_of<MAPS>(KNOWN[WHICH], i.value) == TURN)
            if (!a.op[i.value].head.count) asm volatile("bar.sync %0, %1;" ::"r"(2), "r"(threads) : "memory");
    });
}

/* A chain with a rule, a block for a head of K columns (of many rows two share a multiprocessor): K / U threads go through the functions, the first
 * of those that have the state, or, with maps, which the others make meanwhile, threads of their own. */
template <int WHICH, int K, class MAPS> __device__ __forceinline__ void step_rule(const lnt_chain &a, const chain_maps &maps)
{
    constexpr bool OWN = !std::is_same<MAPS, no_maps>::value;
    constexpr int RULE = rule_of(KNOWN[WHICH]);
    constexpr bool UNTIED = KNOWN[WHICH].op[RULE].kind == LNT_ROW_UNTIED;
    extern __shared__ __align__(16) char memory[];
    __shared__ __align__(16) rule_share<K> m;
    __shared__ float y[OWN ? MAPS_MOST : 1][OWN ? K : 1];
    __shared__ __align__(16) uint4 x_maps[OWN ? MAPS_MOST : 1][OWN ? 16 : 1];
    const lnt_chain_op &o = a.op[RULE];
    float *state = o.state + blockIdx.y * o.state_stride + (int64_t)blockIdx.x * (K * K);
    const int c = ((int)threadIdx.x - (OWN ? LNT_RULE_THREADS : 0)) * U, others = LNT_RULE_THREADS - (OWN ? 0 : K / U);
    const bool here = c >= 0 && c < K, holds = !OWN || c < 0;
    block_clock clock(CLOCK_RULE, OWN ? LNT_RULE_THREADS : 0);
    chain_place p;
    known_row<WHICH, K> row;
    rule_state<K, UNTIED> s;
    MAPS w;
    char *slots = memory + sizeof(chain_sums);
    int turn = 0;
    p.share = (chain_share *)memory, p.planes = NULL;
    p.first = (int)blockIdx.x * K, p.some = K / U;
    p.row = (int)blockIdx.y, p.col = p.first + c, p.seq = p.row;
    const auto functions = [&](auto when) {
        each<KNOWN[WHICH].ops>([&](auto i) {
            if constexpr (i.value != RULE && turn_of<MAPS>(KNOWN[WHICH], i.value) == when.value) row.template run<i.value, false>(a, p, turn);
        });
    };
    if (here) row.template fetch<false, MAPS>(a, p);
    if (holds) s.load(state);
    if constexpr (OWN)
        if (holds) w.load(maps, p.first, slots);
    let_next(); /* the next product's weights queue up behind the state */
    await_last(), clock.goes_on();
    if (here) row.template fetch<true, MAPS>(a, p);
    if constexpr (OWN) {
        if (holds) w.share(maps, p.row, x_maps);
        __syncthreads();
        if (holds)
            w.make(maps, slots, x_maps, y), pass_along<WHICH, MAPS, AHEAD>(a, others);
        else
            functions(std::integral_constant<int, AHEAD>());
        __syncthreads();
        if (here) w.put(row, y, c);
    } else {
        if (here)
            functions(std::integral_constant<int, AHEAD>());
        else
            pass_along<WHICH, MAPS, AHEAD>(a, others);
    }
    if (here) {
        float x[U];
        functions(std::integral_constant<int, MAPPED>());
        row.template value<RULE, 0>(x), store_pack(&m.q[c], x);
        row.template value<RULE, 1>(x), store_pack(&m.k[c], x);
        row.template value<RULE, 2>(x), store_pack(&m.v[c], x);
        if constexpr (UNTIED) {
            row.template value<RULE, 3>(x), store_pack(&m.a[c], x);
            row.template value<RULE, 4>(x), store_pack(&m.b[c], x);
            row.template value<RULE, 5>(x);
        } else {
            row.template value<RULE, 4>(x);
            if (c == 0) m.beta = x[0];
            row.template value<RULE, 3>(x);
        }
        x[0] = expm1f(x[0]), x[1] = expm1f(x[1]);
        store_pack(&m.less1[c], x);
    } else {
        pass_along<WHICH, MAPS, MAPPED>(a, others);
    }
    __syncthreads();
    if (holds) s.sum(m);
    __syncthreads();
    if (here) {
        float x[U];
        s.read(x, m, c, o.number[0]);
        row.made[RULE][0] = as_half(x[0]), row.made[RULE][1] = as_half(x[1]);
        functions(std::integral_constant<int, BEHIND>());
    }
    if (holds) s.write(state, m);
}

template <int WHICH, int K> __global__ void __launch_bounds__(LNT_RULE_THREADS, 2) rule_kernel(const __grid_constant__ lnt_chain a)
{
    step_rule<WHICH, K, no_maps>(a, chain_maps());
}
template <int WHICH, int K>
__global__ void __maxnreg__(136) mapped_rule_kernel(const __grid_constant__ lnt_chain a, const __grid_constant__ chain_maps maps)
{
    step_rule<WHICH, K, rule_maps<WHICH, K>>(a, maps);
}

/* Whether all functions and loads of t have all its columns, as all blocks do, and heads are `head` of them. */
bool whole(const lnt_chain *t, int head)
{
    if (t->cols % t->block) return false;
    for (int i = 0; i < t->ops; i++) {
        const lnt_chain_head &h = t->op[i].head;
        if (h.first || h.end != t->cols || (sums(h.kind) && t->op[i].columns != head)) return false;
    }
    for (int i = 0; i < t->late.end; i++) {
        const lnt_chain_load &l = t->load[i];
        if (l.first || l.end != t->cols || (l.period && l.period != head)) return false;
    }
    return true;
}

typedef void chain_function(lnt_chain);
template <int WHICH> chain_function *one_function(const lnt_chain *t)
{
    constexpr known_chain K = KNOWN[WHICH];
    if constexpr (rule_of(K) >= 0) {
        if (!whole(t, t->block)) return NULL;
        return t->block == 64 ? rule_kernel<WHICH, 64> : t->block == 128 ? rule_kernel<WHICH, 128> : (chain_function *)NULL;
    } else {
        if constexpr (K.op[1].kind == LNT_ROW_LAYER)
            if (t->cluster > 1 && whole(t, t->cols)) return known_kernel<WHICH, true, WHOLE>;
        return t->cluster > 1 ? known_kernel<WHICH, true, 0> : known_kernel<WHICH, false, 0>;
    }
}
template <int... WHICH> chain_function *known_function(int which, const lnt_chain *t, std::integer_sequence<int, WHICH...>)
{
    chain_function *found = NULL;
    ((void)(which == WHICH && (found = one_function<WHICH>(t))), ...);
    return found;
}

/* Whether an operand of t is as x says; *load: the next in the order of operands. */
bool matches(const lnt_chain *t, lnt_chain_operand operand, const known_operand &x, lnt_chain_load *loads, int *load)
{
    const int form = (int)(operand & 3), at = (int)(operand & ~3u);
    if (form != (x.form == TAPS ? (int)LNT_CHAIN_FLOATS : (int)x.form)) return false;
    if (form == LNT_CHAIN_ABSENT) return true;
    if (x.maker >= 0) return t->op[x.maker].head.at == at;
    for (int i = 0; i < t->late.end; i++) {
        const lnt_chain_load &l = t->load[i];
        if (l.at != at) continue;
        loads[(*load)++] = l;
        return l.early == x.early && (x.form != TAPS || l.bytes == 32) && (x.form != LNT_CHAIN_FLOATS || l.bytes == 8);
    }
    return false;
}
bool is_chain(const known_chain &k, const lnt_chain *t, lnt_chain *known)
{
    int load = 0;
    if (t->ops != k.ops) return false;
    for (int i = 0; i < k.ops; i++) {
        const lnt_chain_op *o = &t->op[i];
        const known_op &f = k.op[i];
        const int result = (o->head.out ? OUT : 0) | (o->head.stretch > 1 ? SINGLE : 0) | (o->head.f32 ? F32 : 0);
        if (o->head.kind != f.kind || o->head.act != f.act || (f.result == PAIRED ? result & ~F32 : result) != (f.result & ~PAIRED)) return false;
        if (f.kind == LNT_ROW_LERP && o->head.count != f.count) return false;
        for (int j = 0; j < LNT_ROW_OPERANDS; j++)
            if (!matches(t, j < 4 ? o->head.operand[j] : o->more[j - 4], f.operand[j], known->load, &load)) return false;
    }
    return true;
}

/* The kernel of a chain that is known; NULL: going by its table. */
chain_function *find_known(const lnt_chain *t, lnt_chain *known)
{
    *known = *t;
    for (int i = 0; i < CHAINS; i++)
        if (is_chain(KNOWN[i], t, known)) return known_function(i, t, std::make_integer_sequence<int, CHAINS>());
    return NULL;
}

bool has_rule(const lnt_chain *t)
{
    for (int i = 0; i < t->ops; i++)
        if (lnt_chain_is_rule(t->op[i].head.kind)) return true;
    return false;
}

void launch(lnt_cuda *d, chain_function *kernel, const lnt_chain &chain, size_t bytes)
{
    const int threads = has_rule(&chain) ? (int)LNT_RULE_THREADS : chain.block / U;
    const dim3 blocks((unsigned)lnt_div_up(chain.cols, chain.block), (unsigned)chain.rows);
    lnt_launch_with(d, kernel, blocks, threads, bytes, chain.cluster, chain);
    /* a graph holds chains of many sizes, and asks for the room of its largest when it is made ready */
    if (bytes > 32 << 10) lnt_cuda_note(d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)d->base.block_shared));
}

/* What d says, if it is the chains known for that, and their operands are each other's; the loads are in the order of the functions' operands. */
bool find_around(const lnt_chain_decay *d, decay_around *a)
{
    lnt_chain ahead = d->ahead, behind = d->behind;
    if (!is_chain(KNOWN[DECAY_AHEAD], &d->ahead, &ahead) || !is_chain(KNOWN[DECAY_BEHIND], &d->behind, &behind)) return false;
    const lnt_chain_op *f = ahead.op, *b = behind.op;
    const lnt_chain_load *in = ahead.load, *out = behind.load; /* c window window window taps bias dt dt_bias A; x D o z w */
    auto column = [&](int i) { return (int)(f[i].head.first - f[0].head.first); };
    const int cols = d->heads * d->V, q = f[6].head.out == d->q ? 6 : 7, k = 13 - q;
    if (f[q].head.out != d->q || f[k].head.out != d->k || f[4].head.out != d->v || f[5].head.out != d->g) return false;
    if (f[q].head.end - f[q].head.first != d->K || f[k].head.end - f[k].head.first != d->K || f[4].head.end - f[4].head.first != cols) return false;
    if (f[5].head.stretch != d->V || in[6].size != 2 || in[7].size != 4 || in[8].size != 4 || in[8].row || out[1].row) return false;
    if (f[6].number[0] != 1.0f || f[7].number[0] != 1.0f) return false;
    for (int i = 1; i < 8; i++)
        if (f[i].head.kind == LNT_ROW_ACTIVATION && f[i].number[1] != 0.0f) return false;
    if (out[0].data != f[0].head.out + 2 * column(4) || out[2].data != d->o || b[3].columns != cols || behind.cols != cols) return false;
    a->c = (const bf16 *)in[0].data, a->dt = (const bf16 *)in[6].data, a->z = (const bf16 *)out[3].data, a->y = (bf16 *)b[3].head.out;
    a->taps = (const float *)in[4].data, a->bias = (const float *)in[5].data, a->dt_bias = (const float *)in[7].data;
    a->A = (const float *)in[8].data, a->D = (const float *)out[1].data, a->w = (const float *)out[4].data;
    a->window = f[0].state, a->state = d->state, a->squares = d->squares;
    a->c_row = in[0].row / 2, a->dt_row = in[6].row / 2, a->z_row = out[3].row / 2, a->y_row = b[3].head.out_row / 2;
    a->window_row = f[0].state_stride, a->window_cols = f[0].state_cols, a->state_row = d->state_stride;
    a->q = column(q), a->k = column(k), a->x = column(4), a->V = d->V, a->cols = cols;
    a->n0 = f[1].number[0], a->n1 = f[3].number[0], a->scale = d->scale, a->eps = b[3].number[0], a->more = b[3].number[1];
    return true;
}

template <int K> void launch_decay(lnt_cuda *d, const decay_around &a, int rows)
{
    const int tiles = a.cols / DECAY_COLUMNS, columns = DECAY_NORM_THREADS * DECAY_NORM_COLUMNS;
    static_assert(2 * K <= DECAY_NORM_THREADS, "a block moves up all that heads share");
    lnt_launch(d, decay_rule_kernel<K>, dim3((unsigned)tiles, (unsigned)rows), DECAY_THREADS, a);
    lnt_launch(d, decay_norm_kernel<K>, dim3((unsigned)lnt_div_up(a.cols, columns), (unsigned)rows), DECAY_NORM_THREADS, a, tiles);
}

} // namespace

extern "C" bool lnt_row_chain_decay_cuda(lnt_ctx *c, const lnt_chain_decay *d)
{
    decay_around a;
    if (!find_around(d, &a)) return false;
    (d->K == 64 ? launch_decay<64> : launch_decay<128>)(lnt_cuda_of(c), a, d->ahead.rows);
    return true;
}

/* The part of f whose result a load of the chain brings, if it is as `map` says. */
static const lnt_few_part *part_of(const lnt_few_rows *f, const lnt_chain &chain, int load, const known_map &map)
{
    for (int i = 0; i < f->parts; i++) {
        const lnt_few_part &p = f->part[i];
        const bf16 *x = (const bf16 *)(p.x ? p.x : f->x);
        const int64_t ldx = p.x ? p.ldx : f->ldx, K = p.x ? p.K : f->K;
        if (p.y != chain.load[load].data) continue;
        const bool lies = ((uintptr_t)p.w | (uintptr_t)x) % 16 == 0 && (p.ldw | ldx) % 8 == 0;
        const bool fits = p.N == chain.cols && K % 8 == 0 && K <= map.steps * MAP_COLUMNS && p.act == map.act;
        return lies && fits && p.type == (map.f32 ? LINNET_F32 : LINNET_BF16) && p.step == 1 && !p.add ? &p : NULL;
    }
    return NULL;
}

/* Puts chain WHICH with its maps, if `chain` is that. */
template <int WHICH, int K> bool put_mapped(lnt_cuda *d, const lnt_chain *chain, const lnt_few_rows *f)
{
    constexpr known_maps ALL = maps_of(WHICH, K);
    lnt_chain known = *chain;
    chain_maps maps = {};
    if (chain->block != K || f->parts != ALL.count || f->swiglu || f->R != chain->rows) return false;
    if (!is_chain(KNOWN[WHICH], chain, &known) || !whole(chain, K)) return false;
    const few_parts all = few_parts_of(f, 16);
    for (int i = 0; i < ALL.count; i++) {
        const lnt_few_part *part = part_of(f, known, load_of(KNOWN[WHICH], ALL.map[i].op, ALL.map[i].operand), ALL.map[i]);
        if (!part) return false;
        maps.p[i] = all.p[part - f->part];
    }
    const dim3 blocks((unsigned)lnt_div_up(chain->cols, K), (unsigned)chain->rows);
    const size_t shared = sizeof(chain_sums) + rule_maps<WHICH, K>::BYTES;
    lnt_launch_with(d, mapped_rule_kernel<WHICH, K>, blocks, LNT_RULE_THREADS + K / U, shared, 1, known, maps);
    return true;
}

extern "C" bool lnt_row_chain_maps_cuda(lnt_ctx *c, const lnt_chain *chain, const lnt_few_rows *f)
{
    lnt_cuda *d = lnt_cuda_of(c);
    return put_mapped<TIED_MAPS, 64>(d, chain, f) || put_mapped<TIED_MAPS, 128>(d, chain, f) || put_mapped<UNTIED_MAPS, 64>(d, chain, f) ||
           put_mapped<UNTIED_MAPS, 128>(d, chain, f) || put_mapped<UNTIED_FIRST, 64>(d, chain, f) || put_mapped<UNTIED_FIRST, 128>(d, chain, f);
}

extern "C" lnt_chain_way lnt_row_chain_cuda(lnt_ctx *c, const lnt_chain *chain)
{
    lnt_cuda *d = lnt_cuda_of(c);
    const size_t bytes = sizeof(chain_share) + (size_t)chain->bytes;
    lnt_chain known;
    if ((!has_rule(chain) && bytes > d->base.block_shared) || (chain->cluster > 1 && d->base.capability < 90)) return LNT_CHAIN_NOT_PUT;
    chain_function *kernel = find_known(chain, &known);
    if (!kernel && has_rule(chain)) return LNT_CHAIN_NOT_PUT;
    if (kernel)
        launch(d, kernel, known, sizeof(chain_sums));
    else
        launch(d, chain->cluster > 1 ? chain_kernel<true> : chain_kernel<false>, *chain, bytes);
    return kernel ? LNT_CHAIN_KNOWN : LNT_CHAIN_BY_TABLE;
}

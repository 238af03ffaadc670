/* The PTX that kernels write out, interpreted. Fragments and layouts: PTX ISA 9.0, 9.7.14 and 9.7.15. */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string>

namespace emu {

void copy_later(void *to, const void *from, uint32_t bytes, uint32_t real);
void copies_commit();
void copies_wait(size_t left);
void copies_end();
int rank_in_cluster();
char *memory_of(int rank);
void cluster_arrive();
void cluster_wait();
void order_before(void *by);
void order_behind(void *by);
void reads(void *p, size_t n);
void writes(void *p, size_t n);
char *aligned(char *p, size_t by, const char *what);

/* A map of a tensor in the 128 bytes that the driver has for one. */
struct tensor_map {
    char *base;
    uint32_t rank, box[5];
    uint64_t size[3], stride[2];
    uint32_t swizzle; /* bytes of a row; 0: none */
};
static_assert(sizeof(tensor_map) <= sizeof(CUtensorMap));

enum { OPERAND, NUMBER, NAME };
struct argument {
    int kind;
    uint64_t value; /* place among the operands or the names, or the number */
};
struct statement {
    std::string op;
    int label, to, when;                /* -1: none; `to`: what bra names */
    bool unless, trans, shared, rank;   /* `rank`: it asks for the block's place in the cluster */
    int width, N;                       /* numbers of a load or a store; columns of a product */
    std::vector<argument> a;
    void (*run)(struct running &r, const statement &s);
};
struct running {
    operand *o;
    uint64_t names[8];
    uint64_t get(const argument &a) { return a.kind == OPERAND ? (o[a.value].to ? now(o[a.value]) : o[a.value].bits) : a.kind == NUMBER ? a.value : names[a.value]; }
    static uint64_t now(const operand &x)
    {
        return x.bytes == 4 ? *(const uint32_t *)x.to : x.bytes == 8 ? *(const uint64_t *)x.to : x.bytes == 2 ? *(const uint16_t *)x.to : *(const uint8_t *)x.to;
    }
    void set(const argument &a, uint64_t b)
    {
        if (a.kind == NAME) names[a.value] = b;
        else if (o[a.value].bytes == 4) *(uint32_t *)o[a.value].to = (uint32_t)b;
        else if (o[a.value].bytes == 8) *(uint64_t *)o[a.value].to = b;
        else *(uint16_t *)o[a.value].to = (uint16_t)b;
    }
    float get_float(const argument &a)
    {
        const uint32_t b = (uint32_t)get(a);
        float f;
        return memcpy(&f, &b, 4), f;
    }
    void set_float(const argument &a, float f)
    {
        uint32_t b;
        memcpy(&b, &f, 4);
        set(a, b);
    }
};

/* Addresses of another block of the cluster: its rank in the bits behind OTHER. */
enum { OTHER = 1 << 30, RANK = 24 };
static char *shared(uint64_t address)
{
    const int32_t at = (int32_t)(uint32_t)address;
    return at >= OTHER ? memory_of((at - OTHER) >> RANK) + (at & ((1 << RANK) - 1)) : dynamic + at;
}
/* Of an instruction that moves so many bytes at once. */
static char *shared(uint64_t address, size_t bytes, const statement &s) { return aligned(shared(address), bytes, s.op.c_str()); }
static char *global(uint64_t address, size_t bytes, const statement &s) { return aligned((char *)address, bytes, s.op.c_str()); }
static float half(const void *p)
{
    uint16_t x;
    memcpy(&x, p, 2);
    const uint32_t b = (uint32_t)x << 16;
    float f;
    return memcpy(&f, &b, 4), f;
}
static uint16_t round_half(float f)
{
    const __nv_bfloat16 x = __float2bfloat16_rn(f);
    uint16_t b;
    return memcpy(&b, &x, 2), b;
}

/* ---- what a warp does at once ------------------------------------------------------------------------------------------------------------- */

struct whole {
    running *r;
    const statement *s;
};

static void load_matrices(void **w)
{
    uint64_t row[32];
    uint32_t got[32][4];
    const statement *s = NULL;
    for (int l = 0; l < 32; l++)
        if (w[l]) s = ((whole *)w[l])->s, row[l] = ((whole *)w[l])->r->get(s->a.back());
    const int n = (int)s->a.size() - 1;
    const bool trans = s->trans;
    for (int l = 0; l < 32; l++)
        for (int m = 0; m < n; m++)
            for (int h = 0; h < 2; h++) {
                const int r = trans ? 2 * (l % 4) + h : l / 4, c = trans ? l / 4 : 2 * (l % 4) + h;
                memcpy((char *)&got[l][m] + 2 * h, shared(row[8 * m + r], 16, *s) + 2 * c, 2);
            }
    for (int l = 0; l < 32; l++)
        for (int m = 0; m < n; m++) ((whole *)w[l])->r->set(s->a[(size_t)m], got[l][m]);
}

static void store_matrices(void **w)
{
    const statement *s = ((whole *)w[0])->s;
    const int n = (int)s->a.size() - 1;
    const bool trans = s->trans;
    for (int l = 0; l < 32; l++)
        for (int m = 0; m < n; m++) {
            const uint32_t x = (uint32_t)((whole *)w[l])->r->get(s->a[(size_t)m + 1]);
            for (int h = 0; h < 2; h++) {
                const int r = trans ? 2 * (l % 4) + h : l / 4, c = trans ? l / 4 : 2 * (l % 4) + h;
                memcpy(shared(((whole *)w[8 * m + r])->r->get(s->a[0]), 16, *s) + 2 * c, (const char *)&x + 2 * h, 2);
            }
        }
}

static void turn_matrix(void **w)
{
    uint16_t x[8][8];
    for (int l = 0; l < 32; l++) {
        const uint32_t b = (uint32_t)((whole *)w[l])->r->get(((whole *)w[l])->s->a[1]);
        memcpy(&x[l / 4][2 * (l % 4)], &b, 4);
    }
    for (int l = 0; l < 32; l++) {
        const uint16_t b[2] = { x[2 * (l % 4)][l / 4], x[2 * (l % 4) + 1][l / 4] };
        uint32_t both;
        memcpy(&both, b, 4);
        ((whole *)w[l])->r->set(((whole *)w[l])->s->a[0], both);
    }
}

/* d[4], a[K / 4], b[K / 8], c[4] */
template <int K> static void multiply(void **w)
{
    constexpr int b = 4 + K / 4, c = b + K / 8;
    float A[16][K], B[K][8], D[16][8];
    for (int l = 0; l < 32; l++) {
        running &r = *((whole *)w[l])->r;
        const std::vector<argument> &a = ((whole *)w[l])->s->a;
        for (int i = 0; i < K / 4; i++) {
            const uint32_t x = (uint32_t)r.get(a[(size_t)(4 + i)]);
            for (int h = 0; h < 2; h++) A[l / 4 + 8 * (i % 2)][2 * (l % 4) + h + 8 * (i / 2)] = half((const char *)&x + 2 * h);
        }
        for (int i = 0; i < 4; i++) D[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2] = r.get_float(a[(size_t)(c + i)]);
        for (int i = 0; i < K / 8; i++) {
            const uint32_t x = (uint32_t)r.get(a[(size_t)(b + i)]);
            for (int h = 0; h < 2; h++) B[2 * (l % 4) + h + 8 * i][l / 4] = half((const char *)&x + 2 * h);
        }
    }
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += A[i][k] * B[k][j];
            D[i][j] += sum;
        }
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) ((whole *)w[l])->r->set_float(((whole *)w[l])->s->a[(size_t)i], D[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2]);
}

/* An element of an operand in shared memory: its row of M or N, its step of K. */
static float described(uint64_t d, bool turned, int row, int k)
{
    const uint32_t start = (uint32_t)(d & 0x3fff) << 4, lead = (uint32_t)(d >> 16 & 0x3fff) << 4, stride = (uint32_t)(d >> 32 & 0x3fff) << 4;
    if (d >> 62 != 1) fprintf(stderr, "emulator: only the swizzle of 128 bytes is known\n"), abort();
    const int r = turned ? k : row, c = turned ? row % 64 : k;
    const uint32_t at = start + (uint32_t)(r / 8) * stride + (uint32_t)(r % 8) * 128 + (uint32_t)c * 2 + (turned ? (uint32_t)(row / 64) * lead : 0);
    char *p = shared(at ^ ((at >> 7 & 7) << 4));
    reads(p, 2);
    return half(p);
}

/* d[N/2], a: 4 registers or a description, b, whether to add, 1, 1, (turned a,) turned b */
static void multiply_group(void **w)
{
    const statement *s = ((whole *)w[0])->s;
    const int N = s->N;
    const size_t L = (size_t)N / 2;
    static thread_local float A[64][16], B[16][256];
    running &first = *((whole *)w[0])->r;
    const bool registers = s->a.size() == L + 4 + 1 + 1 + 2 + 1;
    const size_t b = L + (registers ? 4 : 1);
    const bool add = first.get(s->a[b + 1]) != 0, turned = first.get(s->a.back()) != 0;
    for (int i = 0; i < 64 && !registers; i++)
        for (int k = 0; k < 16; k++) A[i][k] = described(first.get(s->a[L]), first.get(s->a[s->a.size() - 2]) != 0, i, k);
    for (int t = 0; t < 128 && registers; t++)
        for (int i = 0; i < 4; i++) {
            const uint32_t x = (uint32_t)((whole *)w[t])->r->get(s->a[L + (size_t)i]);
            for (int h = 0; h < 2; h++) A[16 * (t / 32) + t % 32 / 4 + 8 * (i % 2)][2 * (t % 4) + h + 8 * (i / 2)] = half((const char *)&x + 2 * h);
        }
    for (int k = 0; k < 16; k++)
        for (int j = 0; j < N; j++) B[k][j] = described(first.get(s->a[b]), turned, j, k);
    for (int t = 0; t < 128; t++)
        for (size_t i = 0; i < L; i++) {
            const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (int)(i / 2 % 2), column = 8 * (int)(i / 4) + 2 * (t % 4) + (int)(i % 2);
            running &r = *((whole *)w[t])->r;
            float sum = 0;
            for (int k = 0; k < 16; k++) sum += A[row][k] * B[k][column];
            r.set_float(s->a[i], (add ? r.get_float(s->a[i]) : 0) + sum);
        }
}

/* ---- barriers in shared memory -------------------------------------------------------------------------------------------------------------- */

struct mbarrier {
    uint16_t pending, count;
    int32_t bytes : 31;
    uint32_t phase : 1;
};
static_assert(sizeof(mbarrier) == 8);
static void settle(mbarrier *m)
{
    if (m->pending || m->bytes) return;
    m->pending = m->count;
    m->phase ^= 1;
}
static void arrive(mbarrier *m)
{
    order_before(m);
    if (!m->pending) fprintf(stderr, "emulator: more arrivals than an mbarrier counts\n"), abort();
    m->pending--;
    settle(m);
}
static void brought(uint64_t address, int64_t bytes)
{
    mbarrier *m = (mbarrier *)shared(address);
    order_before(m);
    m->bytes -= (int32_t)bytes;
    settle(m);
}

/* ---- copies --------------------------------------------------------------------------------------------------------------------------------- */

/* to, map, x, y(, z), barrier(, policy) */
/* Where element i of row j of a box is; each 16 bytes of a row of 128, 64 or 32 bytes are turned by the address's bits from 7 on. */
static uint32_t in_box(const tensor_map &m, uint32_t to, uint32_t j, uint32_t i)
{
    const uint32_t plain = to + j * m.box[0] * 2 + i * 2, turned = m.swizzle ? m.swizzle / 16 - 1 : 0;
    return plain ^ ((plain >> 7 & turned) << 4);
}
static void store_box(running &r, const statement &s)
{
    const tensor_map &m = *(const tensor_map *)r.get(s.a[0]);
    const int32_t x = (int32_t)r.get(s.a[1]), y = (int32_t)r.get(s.a[2]);
    const uint32_t from = (uint32_t)r.get(s.a[3]);
    for (uint32_t j = 0; j < m.box[1]; j++)
        for (uint32_t i = 0; i < m.box[0]; i++) {
            const int64_t p[2] = { x + (int64_t)i, y + (int64_t)j };
            const uint32_t at = in_box(m, from, j, i);
            reads(shared(at), 2);
            if (p[0] >= 0 && p[1] >= 0 && p[0] < (int64_t)m.size[0] && p[1] < (int64_t)m.size[1])
                memcpy(m.base + p[0] * 2 + p[1] * (int64_t)m.stride[0], shared(at), 2);
        }
}
static void load_box(running &r, const statement &s, int rank)
{
    const tensor_map &m = *(const tensor_map *)r.get(s.a[1]);
    const uint32_t to = (uint32_t)r.get(s.a[0]);
    int32_t x[3] = { 0, 0, 0 };
    uint32_t box[3] = { m.box[0], 1, 1 };
    if ((int)m.rank != rank || to % (m.swizzle ? 8 * m.swizzle : 128)) fprintf(stderr, "emulator: a tensor copy of %d dimensions to %u\n", rank, to), abort();
    for (int d = 0; d < rank; d++) x[d] = (int32_t)r.get(s.a[(size_t)(2 + d)]), box[d] = m.box[d];
    for (uint32_t k = 0; k < box[2]; k++)
        for (uint32_t j = 0; j < box[1]; j++)
            for (uint32_t i = 0; i < box[0]; i++) {
                const int64_t p[3] = { x[0] + (int64_t)i, x[1] + (int64_t)j, x[2] + (int64_t)k };
                bool inside = true;
                for (int d = 0; d < rank; d++) inside = inside && p[d] >= 0 && p[d] < (int64_t)m.size[d];
                const uint32_t at = in_box(m, to, k * box[1] + j, i);
                writes(shared(at), 2);
                if (inside) memcpy(shared(at), m.base + p[0] * 2 + p[1] * (int64_t)m.stride[0] + (rank > 2 ? p[2] * (int64_t)m.stride[1] : 0), 2);
                else memset(shared(at), 0, 2);
            }
    brought(r.get(s.a[(size_t)(2 + rank)]), (int64_t)box[0] * box[1] * box[2] * 2);
}

/* Bytes of a bulk copy. */
static uint32_t whole_bulk(running &r, const statement &s)
{
    const uint32_t bytes = (uint32_t)r.get(s.a[2]);
    if (bytes % 16) fprintf(stderr, "emulator: %s of %u bytes\n", s.op.c_str(), (unsigned)bytes), abort();
    return bytes;
}

/* Whether the phase is over, asked a little later where it is not. */
static void await_phase(running &r, const statement &s, mbarrier *m, uint64_t phase)
{
    if (m->phase == phase) others();
    const bool over = m->phase != phase;
    if (over) order_behind(m);
    r.set(s.a[0], over);
}

/* ---- instructions --------------------------------------------------------------------------------------------------------------------------- */

static void nothing(running &, const statement &) {}

#define DO(name) [](running &r, const statement &s) -> void
static const struct {
    const char *begin;
    void (*run)(running &, const statement &);
} instructions[] = {
    { ".reg", nothing }, { "griddepcontrol", nothing }, { "prefetch", nothing }, { "fence", nothing }, { "setmaxnreg", nothing },
    { "wgmma.fence", nothing }, { "wgmma.commit", nothing }, { "wgmma.wait", nothing }, { "createpolicy", nothing },
    { "cp.async.bulk.commit_group", nothing }, { "cp.async.bulk.wait_group", nothing },
    { "setp.ne", DO() { r.set(s.a[0], r.get(s.a[1]) != r.get(s.a[2])); } },
    { "selp", DO() { r.set(s.a[0], r.get(s.a[3]) ? r.get(s.a[1]) : r.get(s.a[2])); } },
    { "ex2.approx", DO() { const float x = r.get_float(s.a[1]), y = exp2f(x); r.set_float(s.a[0], y < 0x1p-126f ? 0 : y); } },
    { "tanh.approx", DO() { /* as far off as a GPU's may be, up or down by the argument's last bit */
        const float x = r.get_float(s.a[1]);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        r.set_float(s.a[0], tanhf(x) * (bits & 1 ? 1 + 0x1p-11f : 1 - 0x1p-11f));
    } },
    { "rcp.approx", DO() { r.set_float(s.a[0], 1 / r.get_float(s.a[1])); } },
    { "sqrt.approx", DO() { r.set_float(s.a[0], sqrtf(r.get_float(s.a[1]))); } },
    { "min.NaN", DO() { const float x = r.get_float(s.a[1]), y = r.get_float(s.a[2]); r.set_float(s.a[0], x != x || y != y ? NAN : x < y ? x : y); } },
    { "max.NaN", DO() { const float x = r.get_float(s.a[1]), y = r.get_float(s.a[2]); r.set_float(s.a[0], x != x || y != y ? NAN : x > y ? x : y); } },
    { "cvt.rn.bf16x2.f32", DO() { r.set(s.a[0], (uint32_t)round_half(r.get_float(s.a[1])) << 16 | round_half(r.get_float(s.a[2]))); } },
    { "ldmatrix", DO() {
          if (emu::lane() / 8 < (int)s.a.size() - 1) reads(shared(r.get(s.a.back())), 16);
          whole w = { &r, &s }; warp(~0u, &w, load_matrices);
      } },
    { "stmatrix", DO() {
          if (emu::lane() / 8 < (int)s.a.size() - 1) writes(shared(r.get(s.a[0])), 16);
          whole w = { &r, &s }; warp(~0u, &w, store_matrices);
      } },
    { "movmatrix", DO() { whole w = { &r, &s }; warp(~0u, &w, turn_matrix); } },
    { "mma.sync.aligned.m16n8k16", DO() { whole w = { &r, &s }; warp(~0u, &w, multiply<16>); } },
    { "mma.sync.aligned.m16n8k8", DO() { whole w = { &r, &s }; warp(~0u, &w, multiply<8>); } },
    { "wgmma.mma_async", DO() { whole w = { &r, &s }; warpgroup(&w, multiply_group); } },
    { "cp.async.cg.shared.global", DO() { copy_later(shared(r.get(s.a[0]), 16, s), global(r.get(s.a[1]), 16, s), 16, s.a.size() > 3 ? (uint32_t)r.get(s.a[3]) : 16); } },
    { "cp.async.ca.shared.global", DO() {
          const uint32_t bytes = (uint32_t)r.get(s.a[2]);
          copy_later(shared(r.get(s.a[0]), bytes, s), global(r.get(s.a[1]), bytes, s), bytes, bytes);
      } },
    { "cp.async.commit_group", DO() { copies_commit(); } },
    { "cp.async.wait_group", DO() { copies_wait((size_t)r.get(s.a[0])); } },
    { "cp.async.mbarrier.arrive.noinc", DO() { copies_end(); arrive((mbarrier *)shared(r.get(s.a[0]), 8, s)); } },
    { "cp.async.bulk.tensor.2d.global", DO() { store_box(r, s); } },
    { "cp.async.bulk.tensor.2d", DO() { load_box(r, s, 2); } },
    { "cp.async.bulk.tensor.3d", DO() { load_box(r, s, 3); } },
    { "cp.async.bulk.shared::cluster.global", DO() {
          const uint32_t bytes = whole_bulk(r, s);
          writes(shared(r.get(s.a[0])), bytes);
          memcpy(shared(r.get(s.a[0]), 16, s), global(r.get(s.a[1]), 16, s), bytes);
          brought(r.get(s.a[3]), (uint32_t)r.get(s.a[2]));
      } },
    { "cp.async.bulk.global.shared", DO() {
          const uint32_t bytes = whole_bulk(r, s);
          reads(shared(r.get(s.a[1])), bytes);
          memcpy(global(r.get(s.a[0]), 16, s), shared(r.get(s.a[1]), 16, s), bytes);
      } },
    { "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32", DO() {
          const uint32_t bytes = whole_bulk(r, s);
          reads(shared(r.get(s.a[1])), bytes);
          float *to = (float *)global(r.get(s.a[0]), 16, s);
          const float *from = (const float *)shared(r.get(s.a[1]), 16, s);
          for (uint32_t i = 0; i < bytes / 4; i++) to[i] += from[i];
      } },
    { "ld.", DO() {
          const int n = s.width;
          const uint64_t from = r.get(s.a[(size_t)n]);
          char *p = s.shared ? shared(from, (size_t)n * 4, s) : global(from, (size_t)n * 4, s);
          reads(p, (size_t)n * 4);
          for (int i = 0; i < n; i++) {
              uint32_t x;
              memcpy(&x, p + 4 * i, 4);
              r.set(s.a[(size_t)i], x);
          }
      } },
    { "st.", DO() {
          const size_t bytes = (size_t)s.width * 4;
          char *p = s.shared ? shared(r.get(s.a[0]), bytes, s) : global(r.get(s.a[0]), bytes, s);
          writes(p, bytes);
          for (int i = 0; i < s.width; i++) {
              const uint32_t x = (uint32_t)r.get(s.a[(size_t)i + 1]);
              memcpy(p + 4 * i, &x, 4);
          }
      } },
    { "mbarrier.init", DO() { *(mbarrier *)shared(r.get(s.a[0]), 8, s) = { (uint16_t)r.get(s.a[1]), (uint16_t)r.get(s.a[1]), 0, 0 }; } },
    { "mbarrier.arrive.expect_tx", DO() {
          mbarrier *m = (mbarrier *)shared(r.get(s.a[1]), 8, s);
          m->bytes += (int32_t)r.get(s.a[2]);
          arrive(m);
      } },
    { "mbarrier.arrive", DO() {
          mbarrier *m = (mbarrier *)shared(r.get(s.a[1]), 8, s);
          if (s.a[0].kind == NAME) r.set(s.a[0], m->phase);
          arrive(m);
      } },
    { "mbarrier.try_wait.parity", DO() {
          mbarrier *m = (mbarrier *)shared(r.get(s.a[1]), 8, s);
          await_phase(r, s, m, r.get(s.a[2]) & 1);
      } },
    { "mbarrier.test_wait.parity", DO() {
          mbarrier *m = (mbarrier *)shared(r.get(s.a[1]), 8, s);
          await_phase(r, s, m, r.get(s.a[2]) & 1);
      } },
    { "mbarrier.test_wait", DO() {
          mbarrier *m = (mbarrier *)shared(r.get(s.a[1]), 8, s);
          await_phase(r, s, m, r.get(s.a[2]));
      } },
    { "mapa", DO() { r.set(s.a[0], (uint32_t)(OTHER + ((int)r.get(s.a[2]) << RANK) + (int)r.get(s.a[1]))); } },
    { "mov.u32", DO() {
          r.set(s.a[0], s.rank ? (uint64_t)rank_in_cluster() : r.get(s.a[1]));
      } },
    { "st.async", DO() {
          const size_t n = s.a.size() - 2; /* words */
          for (size_t i = 0; i < n; i++) {
              const uint32_t x = (uint32_t)r.get(s.a[i + 1]);
              memcpy(shared(r.get(s.a[0]), 4 * n, s) + 4 * i, &x, 4);
          }
          brought(r.get(s.a[n + 1]), (int64_t)(4 * n));
      } },
    { "barrier.cluster.arrive", DO() { cluster_arrive(); } },
    { "barrier.cluster.wait", DO() { cluster_wait(); } },
    { "bar.sync", DO() { barrier((int)r.get(s.a[0]), s.a.size() > 1 ? (int)r.get(s.a[1]) : 0, true, false); } },
    { "bar.arrive", DO() { barrier((int)r.get(s.a[0]), (int)r.get(s.a[1]), false, false); } },
    { "barrier.cta.red.or.pred", DO() { r.set(s.a[0], barrier((int)r.get(s.a[1]), (int)r.get(s.a[2]), true, r.get(s.a[3]) != 0)); } },
};
#undef DO

/* ---- reading -------------------------------------------------------------------------------------------------------------------------------- */

static int place_of(const std::string &name, std::vector<std::string> &names)
{
    for (size_t i = 0; i < names.size(); i++)
        if (names[i] == name) return (int)i;
    names.push_back(name);
    if (names.size() > 8) fprintf(stderr, "emulator: more than 8 names\n"), abort();
    return (int)names.size() - 1;
}

static statement read(const std::string &text, std::vector<std::string> &names)
{
    statement s = {};
    s.label = s.to = s.when = -1;
    size_t i = 0;
    auto blank = [&] { while (i < text.size() && isspace((unsigned char)text[i])) i++; };
    auto word = [&] {
        const size_t from = i;
        while (i < text.size() && !isspace((unsigned char)text[i]) && !strchr(",{}[]", text[i])) i++;
        return text.substr(from, i - from);
    };
    blank();
    std::string first = word();
    if (!first.empty() && first.back() == ':') s.label = place_of(first.substr(0, first.size() - 1), names), blank(), first = word();
    if (!first.empty() && first[0] == '@') s.unless = first[1] == '!', s.when = place_of(first.substr(s.unless ? 2 : 1), names), blank(), first = word();
    s.op = first;
    while (i < text.size()) {
        while (i < text.size() && (isspace((unsigned char)text[i]) || strchr(",{}[]", text[i]))) i++;
        if (i >= text.size()) break;
        const std::string a = word();
        char *end;
        if (a[0] == '%' && isdigit((unsigned char)a[1])) s.a.push_back({ OPERAND, strtoull(a.c_str() + 1, NULL, 10) });
        else if (const double x = strtod(a.c_str(), &end); !*end) s.a.push_back({ NUMBER, (uint64_t)(int64_t)x });
        else s.a.push_back({ NAME, (uint64_t)place_of(a, names) }), s.rank |= a.find("cluster_ctarank") != std::string::npos;
    }
    auto has = [&](const char *word) { return s.op.find(word) != std::string::npos; };
    s.trans = has(".trans"), s.shared = has(".shared");
    s.width = has(".v4") ? 4 : has(".v2") ? 2 : 1;
    if (has("m64n")) s.N = atoi(s.op.c_str() + s.op.find("m64n") + 4);
    if (s.op == "bra") s.to = (int)s.a[0].value;
    if (s.op.empty() || s.op == "bra") return s;
    size_t best = 0;
    for (const auto &k : instructions)
        if (s.op.compare(0, strlen(k.begin), k.begin) == 0 && strlen(k.begin) > best) best = strlen(k.begin), s.run = k.run;
    if (!s.run) fprintf(stderr, "emulator: %s is not known\n", s.op.c_str()), abort();
    return s;
}

ptx::ptx(const char *text) : statements(new std::vector<statement>)
{
    std::string one;
    std::vector<std::string> names;
    int depth = 0;
    auto flush = [&] {
        statement s = read(one, names);
        if (!s.op.empty() || s.label >= 0) statements->push_back(s);
        one.clear();
    };
    for (const char *p = text; *p; p++) { /* braces around statements go, those around operands stay */
        if (*p == '{' && one.find_first_not_of(" \n\t") == std::string::npos) continue;
        if (*p == '{') depth++;
        if (*p == '}' && !depth) continue;
        if (*p == '}') depth--;
        if (*p == ';') flush();
        else one += *p;
        if (*p == ':' && p[1] != ':' && p[-1] != ':' && one.find(' ') == std::string::npos) flush(); /* a label */
    }
    flush();
}

void ptx::run(operand *o) const
{
    running r = { o, {} };
    const statement *all = statements->data();
    const size_t n = statements->size();
    for (size_t i = 0; i < n; i++) {
        const statement &s = all[i];
        if (s.when >= 0 && (r.names[s.when] != 0) == s.unless) continue;
        if (s.run) s.run(r, s);
        for (size_t k = 0; s.to >= 0 && k < n; k++)
            if (all[k].label == s.to) i = k - 1, k = n;
    }
}

} // namespace emu

/* Fibers, collectives and launches of the emulated GPU. */
#include "emulator.h"

#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

namespace emu {

enum { MOST_THREADS = 1024, STACK = 256 << 10, SHARED = 232448, BARRIERS = 16, SLOTS = 8, MOST_BLOCKS = 8, LONGEST = 600 /* s */ };

[[noreturn]] static void fail(const char *what)
{
    fprintf(stderr, "emulator: %s (block %u %u %u, thread %u)\n", what, at.block.x, at.block.y, at.block.z, at.thread.x);
    abort();
}

/* ---- races ------------------------------------------------------------------------------------------------------------------------------- */

/* Under ThreadSanitizer, which the kernels alone are compiled with (LINNET_SANITIZE=thread): fibers are its threads, and barriers, __syncwarp and
 * mbarriers what orders them; shuffles and products do not. What the emulator does for a thread is told it by hand. */
extern "C" {
__attribute__((weak)) void *__tsan_create_fiber(unsigned);
__attribute__((weak)) void *__tsan_get_current_fiber(void);
__attribute__((weak)) void __tsan_switch_to_fiber(void *, unsigned);
__attribute__((weak)) void __tsan_acquire(void *);
__attribute__((weak)) void __tsan_release(void *);
__attribute__((weak)) void __tsan_read_range(void *, unsigned long);
__attribute__((weak)) void __tsan_write_range(void *, unsigned long);
}
enum { NO_ORDER = 1 };
void order_before(void *by) { if (__tsan_release) __tsan_release(by); }
void order_behind(void *by) { if (__tsan_acquire) __tsan_acquire(by); }
void reads(void *p, size_t n) { if (__tsan_read_range) __tsan_read_range(p, n); }
void writes(void *p, size_t n) { if (__tsan_write_range) __tsan_write_range(p, n); }

/* ---- addresses --------------------------------------------------------------------------------------------------------------------------- */

/* Hardware refuses an address that is no multiple of what is moved at once. */
char *aligned(char *p, size_t by, const char *what)
{
    if ((uintptr_t)p % by) fprintf(stderr, "emulator: %s at an address that is no multiple of %zu\n", what, by), fail("misaligned address");
    return p;
}

/* What kernels do without PTX the compiler looks after, by each type's alignment (-fsanitize=alignment), and calls this. */
struct misaligned {
    const char *file;
    uint32_t line, column;
    const void *type;
    unsigned char log_alignment;
};
extern "C" void __ubsan_handle_type_mismatch_v1_abort(const misaligned *m, char *p)
{
    char what[256];
    snprintf(what, sizeof what, "%s:%u: %p,", m->file, (unsigned)m->line, (void *)p);
    aligned(p, (size_t)1 << m->log_alignment, what);
    fail("a pointer that is none");
}

/* ---- fibers ------------------------------------------------------------------------------------------------------------------------------- */

extern "C" void lnt_emu_switch(void **save, void *to);
asm(R"(
.text
.globl lnt_emu_switch
lnt_emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

struct copy {
    void *to;
    const void *from;
    uint32_t bytes, real;
};
struct fiber {
    void *sp, *as; /* `as`: for ThreadSanitizer */
    char *stack;
    uint3 thread;
    int index;
    bool done;
    const uint64_t *seen; /* waits while this is ... */
    uint64_t cluster_turn; /* of the cluster's barrier, when this thread came to it */
    uint64_t value;
    std::vector<copy> copies;      /* asked for, in no group yet */
    std::vector<std::vector<copy>> groups;
};

/* Who has come to a collective of these lanes. */
struct slot {
    unsigned mask, come;
    uint64_t turn;
    void *arguments[32];
};
struct rendezvous {
    int come;
    uint64_t turn;
    void *arguments[128];
};
struct fence {
    int come;
    uint64_t turn;
    bool said[2];
};

struct machine {
    fiber fibers[MOST_THREADS];
    slot warps[MOST_THREADS / 32][SLOTS];
    rendezvous groups[MOST_THREADS / 128];
    fence fences[BARRIERS];
    unsigned ended[MOST_THREADS / 32];
    int threads, alive;
    void *home, *home_as;
    fiber *now;
    const std::function<void()> *body;
    uint3 block;
};
thread_local place at;
thread_local char *dynamic;
static thread_local machine *mine;
static thread_local machine *machines[MOST_BLOCKS]; /* by rank in the cluster */
static thread_local __attribute__((aligned(1024))) char shared_memory[MOST_BLOCKS][SHARED];
static thread_local struct {
    int come, threads;
    uint64_t turn;
} cluster;

static machine *machine_of(int rank)
{
    if (!machines[rank]) {
        machines[rank] = (machine *)calloc(1, sizeof(machine));
        for (fiber &f : machines[rank]->fibers) new (&f) fiber();
    }
    return machines[rank];
}
int rank_in_cluster()
{
    for (int r = 0; r < MOST_BLOCKS; r++)
        if (machines[r] == mine) return r;
    return 0;
}
char *memory_of(int rank) { return shared_memory[rank]; }
void cluster_arrive()
{
    mine->now->cluster_turn = cluster.turn;
    order_before(&cluster);
    if (++cluster.come >= cluster.threads) cluster.come = 0, cluster.turn++;
}

static void go_home(machine *m)
{
    fiber *f = m->now;
    if (f->as) __tsan_switch_to_fiber(m->home_as, NO_ORDER);
    lnt_emu_switch(&f->sp, m->home);
    at.thread = f->thread;
}
void others() { go_home(mine); }

/* Until *seen is another one. */
static void await(const uint64_t *seen, uint64_t value)
{
    fiber *f = mine->now;
    f->seen = seen, f->value = value;
    go_home(mine);
}

static void fence_check(machine *m)
{
    fence &b = m->fences[0];
    if (b.come && b.come >= m->alive) b.come = 0, b.turn++;
}

static void begin_fiber()
{
    machine *m = mine;
    order_behind(m);
    (*m->body)();
    fiber *f = m->now;
    order_before(m);
    f->done = true;
    m->alive--;
    m->ended[f->index / 32] |= 1u << f->index % 32;
    fence_check(m);
    for (slot &s : m->warps[f->index / 32]) /* lanes that have ended are not waited for */
        if (s.come && s.come == (s.mask & ~m->ended[f->index / 32])) fail("a lane ended while its warp waits for it");
    if (f->as) __tsan_switch_to_fiber(m->home_as, NO_ORDER);
    lnt_emu_switch(&f->sp, m->home);
    abort();
}

static void prepare(machine *m, int i, dim3 t)
{
    fiber &f = m->fibers[i];
    if (!f.stack) {
        f.stack = (char *)mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (f.stack == MAP_FAILED) fail("no stack");
        if (__tsan_create_fiber) f.as = __tsan_create_fiber(0);
    }
    f.index = i;
    f.thread = { (unsigned)i % t.x, (unsigned)i / t.x % t.y, (unsigned)i / t.x / t.y };
    f.done = false;
    f.seen = NULL;
    f.copies.clear();
    f.groups.clear();
    void **sp = (void **)(f.stack + STACK - 64);
    *--sp = NULL; /* where begin_fiber would return to */
    *--sp = (void *)begin_fiber;
    for (int r = 0; r < 6; r++) *--sp = NULL;
    f.sp = sp;
}

void cluster_wait()
{
    if (mine->now->cluster_turn == cluster.turn) await(&cluster.turn, cluster.turn);
    order_behind(&cluster);
}

static void begin_block(machine *m, int rank, const config &c, uint3 block, const std::function<void()> *body)
{
    m->threads = m->alive = (int)(c.threads.x * c.threads.y * c.threads.z);
    memset(m->warps, 0, sizeof m->warps);
    memset(m->groups, 0, sizeof m->groups);
    memset(m->fences, 0, sizeof m->fences);
    memset(m->ended, 0, sizeof m->ended);
    memset(shared_memory[rank], 0xff, c.shared); /* NaN */
    m->block = block;
    m->body = body;
    for (int i = 0; i < m->threads; i++) prepare(m, i, c.threads);
    if (__tsan_get_current_fiber) m->home_as = __tsan_get_current_fiber();
    order_before(m);
}

/* Every thread of a block, as far as it comes; false: all of them wait. */
static bool go_on(machine *m, int rank)
{
    static const bool backwards = getenv("EMU_BACKWARDS") != NULL;
    bool any = false;
    mine = m;
    dynamic = shared_memory[rank];
    at.block = m->block;
    for (int n = 0; n < m->threads; n++) {
        fiber &f = m->fibers[backwards ? m->threads - 1 - n : n];
        if (f.done || (f.seen && *f.seen == f.value)) continue;
        f.seen = NULL;
        any = true;
        m->now = &f;
        at.thread = f.thread;
        if (f.as) __tsan_switch_to_fiber(f.as, NO_ORDER);
        lnt_emu_switch(&m->home, f.sp);
    }
    if (!m->alive) order_behind(m);
    return any;
}

/* The blocks of a cluster, by turns. */
static void run_blocks(const config &c, const uint3 *block, const std::function<void()> *body)
{
    at.threads = c.threads, at.blocks = c.blocks;
    cluster = { 0, (int)(c.cluster * c.threads.x * c.threads.y * c.threads.z), 0 };
    for (int r = 0; r < c.cluster; r++) begin_block(machine_of(r), r, c, block[r], &body[r]);
    int alive = cluster.threads;
    const double begun = omp_get_wtime();
    for (int64_t idle = 0; alive; idle++) {
        bool any = false;
        alive = 0;
        for (int r = 0; r < c.cluster; r++) any |= go_on(machines[r], r), alive += machines[r]->alive;
        if (alive && !any) fail("every thread waits");
        if (idle % 1024 == 1023) sched_yield(); /* a block may wait for one that another thread of the host runs */
        if (idle % (1 << 20) == 0 && omp_get_wtime() - begun > LONGEST) fail("no end");
    }
}

/* ---- collectives -------------------------------------------------------------------------------------------------------------------------- */

int lane() { return mine->now->index % 32; }

void warp(unsigned mask, void *argument, void (*all)(void **))
{
    machine *m = mine;
    const int l = lane(), w = m->now->index / 32;
    slot *s = NULL;
    if (!(mask >> l & 1)) fail("a lane that its own mask leaves out");
    const int left = m->threads - 32 * w;
    mask &= ~m->ended[w] & (left >= 32 ? ~0u : (1u << left) - 1);
    for (slot &x : m->warps[w])
        if (x.come && x.mask == mask) s = &x;
    for (slot &x : m->warps[w])
        if (!s && !x.come) s = &x;
    if (!s) fail("too many masks");
    if (!s->come) memset(s->arguments, 0, sizeof s->arguments);
    if (!all) order_before(s);
    s->mask = mask;
    s->arguments[l] = argument;
    s->come |= 1u << l;
    if (s->come != mask) {
        await(&s->turn, s->turn);
        if (!all) order_behind(s);
        return;
    }
    if (all) all(s->arguments);
    else order_behind(s);
    s->come = 0;
    s->turn++;
}

void warpgroup(void *argument, void (*all)(void **))
{
    machine *m = mine;
    rendezvous &g = m->groups[m->now->index / 128];
    g.arguments[m->now->index % 128] = argument;
    if (++g.come < 128) {
        await(&g.turn, g.turn);
        return;
    }
    all(g.arguments);
    g.come = 0;
    g.turn++;
}

bool barrier(int id, int threads, bool wait, bool said)
{
    machine *m = mine;
    fence &b = m->fences[id];
    const uint64_t turn = b.turn;
    if (!b.come) b.said[turn & 1] = false;
    b.said[turn & 1] |= said;
    b.come++;
    order_before(&b);
    if (b.come >= (threads ? threads : m->alive)) b.come = 0, b.turn++;
    else if (wait) await(&b.turn, turn);
    if (wait) order_behind(&b);
    return b.said[turn & 1];
}

void shuffle_all(void **a)
{
    for (int l = 0; l < 32; l++) {
        shuffle *s = (shuffle *)a[l];
        if (!s) continue;
        const shuffle *from = s->from >= 0 && s->from < 32 ? (shuffle *)a[s->from] : NULL;
        s->out = from ? from->in : 0x7fc000007fc00000; /* of a lane that is not there: a NaN */
    }
}
uint32_t ballot(unsigned mask, bool x)
{
    shuffle s = { x, 0, 0 };
    warp(mask, &s, [](void **a) {
        uint64_t all = 0;
        for (int l = 0; l < 32; l++)
            if (a[l] && ((shuffle *)a[l])->in) all |= 1u << l;
        for (int l = 0; l < 32; l++)
            if (a[l]) ((shuffle *)a[l])->out = all;
    });
    return (uint32_t)s.out;
}
uint32_t alike(unsigned mask, uint64_t x)
{
    shuffle s = { x, 0, 0 };
    warp(mask, &s, [](void **a) {
        for (int l = 0; l < 32; l++)
            for (int k = 0; a[l] && k < 32; k++)
                if (a[k] && ((shuffle *)a[k])->in == ((shuffle *)a[l])->in) ((shuffle *)a[l])->out |= 1u << k;
    });
    return (uint32_t)s.out;
}

/* ---- copies that are waited for ------------------------------------------------------------------------------------------------------------ */

void copy_later(void *to, const void *from, uint32_t bytes, uint32_t real)
{
    writes(to, bytes);
    mine->now->copies.push_back({ to, from, bytes, real });
}
static void copy_now(const copy &c)
{
    writes(c.to, c.bytes); /* once more: it may come at any time between */
    memset(c.to, 0, c.bytes);
    memcpy(c.to, c.from, c.real);
}
void copies_commit()
{
    fiber *f = mine->now;
    f->groups.push_back(std::move(f->copies));
    f->copies.clear();
}
void copies_wait(size_t left)
{
    fiber *f = mine->now;
    while (f->groups.size() > left) {
        for (const copy &c : f->groups.front()) copy_now(c);
        f->groups.erase(f->groups.begin());
    }
}
void copies_end()
{
    copies_wait(0);
    for (const copy &c : mine->now->copies) copy_now(c);
    mine->now->copies.clear();
}

/* ---- launches ----------------------------------------------------------------------------------------------------------------------------- */

typedef std::vector<std::function<void()>> graph;
static graph *recording;

void later(std::function<void()> what)
{
    if (recording) recording->push_back(std::move(what));
    else what();
}

static void run_grid(const config &c, const std::function<void()> &body)
{
    const int64_t n = (int64_t)c.blocks.x * c.blocks.y * c.blocks.z / c.cluster;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < n; i++) {
        std::vector<std::function<void()>> own((size_t)c.cluster, body); /* a kernel may write to its parameters */
        uint3 block[MOST_BLOCKS];
        for (int r = 0; r < c.cluster; r++) {
            const int64_t b = i * c.cluster + r;
            block[r] = { (unsigned)(b % c.blocks.x), (unsigned)(b / c.blocks.x % c.blocks.y), (unsigned)(b / c.blocks.x / c.blocks.y) };
        }
        run_blocks(c, block, own.data());
    }
}
int gpu()
{
    static const int asked = getenv("EMU_GPU") ? atoi(getenv("EMU_GPU")) : 90;
    return asked;
}
size_t block_room() { return gpu() == 90 ? 232448 : gpu() == 80 ? 166912 : 101376; }
static thread_local cudaError_t last = cudaSuccess;
cudaError_t last_error()
{
    const cudaError_t e = last;
    return last = cudaSuccess, e;
}
/* What a GPU's driver says of a launch. */
static cudaError_t judge(const config &c)
{
    if (c.blocks.x > 0x7fffffffu || c.blocks.y > 65535 || c.blocks.z > 65535) return cudaErrorInvalidConfiguration;
    if (!((int64_t)c.blocks.x * c.blocks.y * c.blocks.z) || !(c.threads.x * c.threads.y * c.threads.z)) return cudaErrorInvalidConfiguration;
    if (c.shared > block_room() || c.threads.x * c.threads.y * c.threads.z > MOST_THREADS) return cudaErrorInvalidValue;
    return c.cluster > MOST_BLOCKS || c.blocks.x % (unsigned)c.cluster ? cudaErrorNotSupported : cudaSuccess;
}
cudaError_t put(const config &c, std::function<void()> body)
{
    const cudaError_t e = judge(c);
    if (e == cudaSuccess) later([=] { run_grid(c, body); });
    else last = e;
    return e;
}
void record(bool begin, graph **out)
{
    if (begin) recording = new graph;
    else *out = recording, recording = NULL;
}

} // namespace emu

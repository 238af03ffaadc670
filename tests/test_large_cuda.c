/* Tensors of more than 2^31 elements: many copies of one sequence, each of which must come out with the same bits, and as the sequence does alone.
 * An offset computed in 32 bits reads or writes another copy. Needs a GPU with room for about 100 GiB; skips on others. "test_large_cuda NAME":
 * only operators whose name contains NAME. */
#include "recurrence_check.h"
#include "gpu_context.h"

#include "core/context.h"

enum { COPIES = 137, LENGTH = 1024, HEADS = 128, SIZE = 128 }; /* 2.3e9 elements; the copy after the 2^31st element is the 128th */

static const char *const ops[] = { "simple_gla", "gated_delta_rule", "attention" };

typedef struct {
    union {
        lnt_recur_call call;
        lnt_recur_head r;
    };
    const lnt_recur_op *op;
    void *block[LNT_RECUR_TENSORS];
    size_t piece[LNT_RECUR_TENSORS]; /* bytes of one copy */
    int64_t cu[COPIES + 1];
} many;

static void many_free(linnet_context *c, many *m)
{
    for (int i = 0; m->op->tensors[i].name; i++) lnt_device_free(c, m->block[i]);
}

/* False: there is no room. */
static bool many_make(linnet_context *c, const lnt_problem *one, many *m)
{
    *m = (many){ .call = one->call, .op = one->op };
    for (int n = 0; n <= COPIES; n++) m->cu[n] = (int64_t)n * LENGTH;
    m->r.tokens = m->cu[COPIES];
    m->r.sequences = COPIES;
    m->r.cu_seqlens = m->cu;
    if (args(one)->Tk) ((lnt_recur_args *)&m->call)->Tk = m->r.tokens; /* attention: no cache stands in front */
    for (int i = 0; m->op->tensors[i].name; i++) {
        if (!one->data[i]) continue;
        m->piece[i] = one->bytes[i];
        if (lnt_device_alloc(c, COPIES * one->bytes[i], &m->block[i]) != LINNET_OK) return false;
        lnt_recur_set(&m->call, &m->op->tensors[i], m->block[i]);
        if (m->op->tensors[i].role >= LNT_T_OUTPUT) continue;
        lnt_to_device(c, m->block[i], one->data[i], one->bytes[i]);
        for (int n = 1; n < COPIES; n++) lnt_device_copy(c, (char *)m->block[i] + (size_t)n * m->piece[i], m->block[i], m->piece[i]);
    }
    return true;
}

/* False: there is no room for the workspace. */
static bool many_run(linnet_context *c, many *m, bool backward)
{
    OK(c, lnt_recur_workspace(c, &m->call, backward, &m->r.workspace_size));
    if (lnt_device_alloc(c, m->r.workspace_size, &m->r.workspace) != LINNET_OK) return false;
    OK(c, lnt_recur_run(c, &m->call, backward));
    lnt_device_free(c, m->r.workspace);
    m->r.workspace = NULL;
    OK(c, lnt_device_check(c));
    return true;
}

/* A result's copies are the first one's, and within the budgets of the sequence alone (which may be cut into other pieces). */
static void many_compare(linnet_context *c, const many *m, const lnt_problem *one, lnt_tensor_role role, const char *who)
{
    for (int i = 0; m->op->tensors[i].name; i++) {
        if (!m->block[i] || m->op->tensors[i].role != role) continue;
        lnt_problem first = *one;
        first.data[i] = malloc(m->piece[i]);
        char *other = malloc(m->piece[i]);
        assert_non_null(first.data[i]);
        assert_non_null(other);
        lnt_to_host(c, first.data[i], m->block[i], m->piece[i]);
        lnt_recur_error e = lnt_problem_error(&first, one, i);
        double allowed = lnt_recur_allowed(m->op, one->r.dtype, i);
        if (!(e.relative <= allowed)) fail_msg("%s: %s of a copy is %.3g from the sequence alone", who, m->op->tensors[i].name, e.relative);
        for (int n = 1; n < COPIES; n += n < 120 ? 17 : 1) { /* they are slow to bring back */
            lnt_to_host(c, other, (char *)m->block[i] + (size_t)n * m->piece[i], m->piece[i]);
            if (memcmp(first.data[i], other, m->piece[i])) fail_msg("%s: copy %d of %s is not the first", who, n, m->op->tensors[i].name);
        }
        free(first.data[i]);
        free(other);
    }
}

static void check_implementation(linnet_context *c, lnt_problem *one, many *m, const lnt_recur_impl *impl)
{
    char who[128];
    snprintf(who, sizeof who, "%s of %s", impl->name, one->op->name);
    one->r.impl = m->r.impl = impl->name;
    for (int backward = 0; backward < (impl->put_backward ? 2 : 1); backward++) {
        if (impl->declines && impl->declines(&m->call, backward)) break;
        OK(c, lnt_problem_run(c, one, backward));
        if (!many_run(c, m, backward)) {
            print_message("%s: no room for %.1f GiB of workspace\n", who, (double)m->r.workspace_size / 0x1p30);
            return;
        }
        many_compare(c, m, one, backward ? LNT_T_GRADIENT : LNT_T_OUTPUT, who);
        print_message("%s, %s\n", who, backward ? "backward" : "forward");
    }
}

static void offsets_are_wide(void **state)
{
    (void)state;
    linnet_context *c = make_cuda_context();
    if (!c) skip();
    bool room = true;
    for (size_t i = 0; i < sizeof ops / sizeof *ops && room; i++) {
        if (!wanted(ops[i])) continue;
        const lnt_recur_case k = { ops[i], 1, { LENGTH }, LNT_HEADS(HEADS, HEADS, SIZE, SIZE), .gate = -0.1, .beta = 1 };
        lnt_problem one;
        many m;
        OK(c, lnt_problem_make(c, &k, LINNET_BF16, LINNET_BF16, 7, &one));
        args(&one)->scale = 0.125; /* `declines` is asked directly, before a default is put in */
        room = many_make(c, &one, &m);
        for (int n = 0; room && one.op->impls[n]; n++)
            if (one.op->impls[n]->device == LNT_DEVICE_CUDA && one.op->impls[n]->needs <= c->device->capability)
                check_implementation(c, &one, &m, one.op->impls[n]);
        many_free(c, &m);
        lnt_problem_free(&one);
    }
    linnet_context_destroy(c);
    if (!room) skip();
}

int main(int argc, char **argv)
{
    if (argc > 1) only = argv[1];
    const struct CMUnitTest tests[] = { cmocka_unit_test(offsets_are_wide) };
    return exit_status(cmocka_run_group_tests(tests, NULL, NULL));
}

/* Sessions and states on a GPU: what test_state.c holds a CPU to, and states that go from one device to the other. Without a GPU all is skipped.
 * "test_state_cuda NAME": that test alone. */
#define STATE_ON_GPU
#include "test_state.c"

/* The logits behind the next 20 ids, one piece and single steps; as each device rounds. */
static void go_on(linnet_context *on, linnet_state *s, float *to)
{
    linnet_context *keep = c;
    c = on;
    feed(s, text + 150, 10, to);
    feed_in(s, text + 160, 10, 1, to + 10 * VOCAB);
    c = keep;
}

/* A state that `from` has written, read by `to`; both then go on. */
static void over(const char *name, linnet_context *from, linnet_session *a, linnet_context *to, linnet_session *b)
{
    static float here[20 * VOCAB], there[20 * VOCAB];
    linnet_context *keep = c;
    linnet_state *s, *t;
    c = from;
    s = state_of(a);
    feed(s, text, 149, NULL);
    feed(s, text + 149, 1, NULL);
    OK(linnet_state_save(s, file));
    c = to;
    OK(linnet_state_load(b, file, &t));
    same_states(name, s, t);
    go_on(from, s, here);
    go_on(to, t, there);
    const double e = relative_rms(there, here, 20 * VOCAB);
    if (!(e < rounding)) fail_msg("%s: on the other device logits differ by %g", name, e);
    linnet_state_destroy(s);
    linnet_state_destroy(t);
    c = keep;
}

static void devices_change(void **state)
{
    (void)state;
    if (!c) skip();
    linnet_context *cpu = context_of(1), *gpu = c;
    for (int i = 0; i < RECIPES; i++) {
        linnet_model *here = model_of(gpu, &recipes[i], LINNET_F32), *there = model_of(cpu, &recipes[i], LINNET_F32);
        if (offered(recipes[i].name, here)) {
            linnet_session *a = session_of(here, 1, CAPACITY, 0, CHUNK);
            c = cpu;
            linnet_session *b = session_of(there, 1, CAPACITY, 0, CHUNK);
            c = gpu;
            over(recipes[i].name, cpu, b, gpu, a);
            over(recipes[i].name, gpu, a, cpu, b);
            linnet_session_destroy(a);
            linnet_session_destroy(b);
        }
        linnet_model_destroy(here);
        linnet_model_destroy(there);
    }
    linnet_context_destroy(cpu);
}

/* Logits on the device are those on the host; the last result under bf16 is widened. */
static void results_where_they_are_wanted(void **state)
{
    (void)state;
    if (!c) skip();
    linnet_model *m = mixer_model("gated_deltanet", LINNET_BF16);
    linnet_session *s = session_of(m, 2, CAPACITY, 0, CHUNK);
    linnet_state *a = state_of(s), *b = state_of(s);
    static float back[5 * VOCAB], hidden[2][5 * 32];
    void *there;
    OK(lnt_device_alloc(c, sizeof back, &there));
    feed(a, text, 5, logits[0]);
    linnet_session_call k = step_of(b, text, there);
    k.n_ids = 5, k.wants = LINNET_LOGITS_ALL, k.on_device = 1, k.hidden = hidden[0], k.layer = 2;
    OK(linnet_session_run(s, &k, 1));
    lnt_to_host(c, back, there, sizeof back);
    assert_memory_equal(back, logits[0], sizeof back);
    for (int i = 0; i < 5 * 32; i++) {
        uint32_t bits;
        memcpy(&bits, &hidden[0][i], sizeof bits);
        assert_true(isfinite(hidden[0][i]) && (bits & 0xffff) == 0);
    }
    linnet_state_destroy(a);
    a = state_of(s);
    k.state = a, k.logits = logits[1], k.on_device = 0, k.hidden = hidden[1];
    OK(linnet_session_run(s, &k, 1));
    assert_memory_equal(hidden[0], hidden[1], sizeof hidden[0]);
    lnt_device_free(c, there);
    linnet_session_destroy(s);
    linnet_model_destroy(m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_splits_same_bits),  cmocka_unit_test(forked),      cmocka_unit_test(taken_back),     cmocka_unit_test(saved_and_loaded),
        cmocka_unit_test(company_changes_no_bit), cmocka_unit_test(interleaved), cmocka_unit_test(interleaved_with_threads),
        cmocka_unit_test(looked_into),            cmocka_unit_test(devices_change), cmocka_unit_test(written_ahead),
        cmocka_unit_test(chosen_by_the_device),   cmocka_unit_test(stepped_with_a_plan),
        cmocka_unit_test(results_where_they_are_wanted),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_all, close_all);
}

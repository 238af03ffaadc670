/* Steps of models on a GPU, in which what stands between products is done as one kernel (ops/row_chain.h), against the same nodes one by one; and how
 * many kernels a layer takes. Without a GPU everything is skipped. "test_chains_cuda NAME": that layer alone. */
#include "model_recipes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "device/device.h"
#include "mixers/mixers.h"
#include "program/plan.h"
#include "gpu_context.h"

static linnet_context *gpu; /* NULL: there is none */

#define OK(c, call)                                                                                                                 \
    do {                                                                                                                            \
        if ((call) != LINNET_OK) fail_msg("%s: %s (%s)", #call, linnet_error_message(c), linnet_error_detail(c));                    \
    } while (0)

static const recipe layers[] = {
    {"delta net", "delta_net", {{"hidden_size", "256"}, {"num_heads", "2"}}},
    {"gated delta net", "gated_deltanet", {{"hidden_size", "256"}, {"num_heads", "2"}, {"head_dim", "64"}}},
    {"gla", "gla", {{"hidden_size", "320"}, {"num_heads", "5"}}},
    {"mesa", "mesa_net", {{"hidden_size", "320"}, {"num_heads", "5"}, {"head_dim", "64"}}},
    {"rwkv7", "rwkv7", {{"hidden_size", "320"}, {"head_dim", "64"}}},
    {"mamba2", "mamba2", {{"hidden_size", "320"}, {"num_heads", "8"}, {"head_dim", "64"}, {"state_size", "64"}}},
    {"kda", "kda", {{"hidden_size", "320"}, {"num_heads", "5"}, {"head_dim", "64"}}},
    {"mamba2 in groups", "mamba2", {{"hidden_size", "256"}, {"num_heads", "8"}, {"head_dim", "64"}, {"state_size", "64"}, {"n_groups", "2"}}},
    {"mamba2, heads of 24", "mamba2", {{"hidden_size", "96"}, {"num_heads", "4"}, {"head_dim", "24"}, {"state_size", "20"}}},
    {"mamba2, heads of 20", "mamba2", {{"hidden_size", "80"}, {"num_heads", "8"}, {"head_dim", "20"}, {"state_size", "16"}}},
    {"rwkv6", "rwkv6", {{"hidden_size", "256"}, {"num_heads", "4"}}},
    {"rwkv7, narrow", "rwkv7", {{"hidden_size", "64"}, {"head_dim", "32"}}},
    {"gated delta net, norms of 192", "gated_deltanet", {{"hidden_size", "192"}, {"num_heads", "2"}, {"head_dim", "32"}}},
    {"kda, lower bound", "kda", {{"hidden_size", "128"}, {"num_heads", "2"}, {"head_dim", "32"}, {"safe_gate", "true"}, {"lower_bound", "-5"}}},
    {"rwkv7, heads of 128", "rwkv7", {{"hidden_size", "256"}, {"head_dim", "128"}}},
    {"mamba2, states of 128", "mamba2", {{"hidden_size", "256"}, {"num_heads", "8"}, {"head_dim", "64"}, {"state_size", "128"}}},
    {"kda, heads of 128", "kda", {{"hidden_size", "256"}, {"num_heads", "2"}, {"head_dim", "128"}}},
    {"mesa, capped", "mesa_net", {{"hidden_size", "128"}, {"num_heads", "2"}, {"head_dim", "64"}, {"gamma_cap", "0.5"}}},
    {"comba, a rule in no known chain", "comba", {{"hidden_size", "128"}, {"num_heads", "2"}, {"head_dim", "64"}, {"expand_v", "1"}}},
    {"gated delta net, heads of a column", "gated_deltanet", {{"hidden_size", "48"}, {"num_heads", "3"}, {"head_dim", "1"}}},
    {"delta net, a column of threads behind whole warps", "delta_net", {{"hidden_size", "130"}, {"num_heads", "1"}}},
    {"rwkv4, layer norms of nine warps, the last of one thread", "rwkv4", {{"hidden_size", "514"}}},
    {"slstm, heads in parts", "slstm", {{"hidden_size", "256"}, {"num_heads", "1"}}},
    {"mesa, gated", "mesa_net", {{"hidden_size", "256"}, {"num_heads", "2"}, {"head_dim", "128"}, {"use_output_gate", "true"}}},
};
enum { LAYERS = sizeof layers / sizeof layers[0], STEPS = 4 };

/* Parameters that begin as constants (norms' weights, biases, what columns are multiplied by) are others, each by its own number. */
static linnet_model *model_with_noise(const recipe *r, linnet_dtype dtype)
{
    linnet_model *m = model_of(gpu, r, dtype);
    lnt_rng noise = lnt_rng_make(7, 1);
    for (int i = 0; i < lnt_param_count(m->p); i++) {
        const lnt_param *q = lnt_param_at(m->p, i);
        if (q->init.kind != LNT_INIT_CONST) continue;
        float *value = malloc((size_t)q->count * 4);
        for (int64_t k = 0; k < q->count; k++) value[k] = (float)(q->init.a + 0.02 * lnt_rng_normal(&noise));
        OK(gpu, lnt_weights_put(m->w, q, 0, value, q->count));
        free(value);
    }
    return m;
}

/* Logits of STEPS tokens of n sequences, [STEPS, n, VOCAB], then states; *kernels: of the last step. */
static float *steps(linnet_model *m, int n, bool apart, bool alone, size_t *size, int *kernels)
{
    lnt_plan *plan;
    lnt_state *s;
    int32_t ids[64 * STEPS];
    const lnt_plan_options o = {.tokens = n, .n_seq = n, .dtype = m->dtype, .has_state = true, .state_capacity = STEPS, .alone = apart,
                                .rows_alone = alone, .n_outputs = 1, .outputs = {m->logits}};
    OK(gpu, lnt_plan_create(gpu, m->p, &o, &plan));
    OK(gpu, lnt_state_create(gpu, m->p, m->dtype, n, STEPS, &s));
    draw_ids(ids, 64 * STEPS); /* a sequence has the same tokens however many there are */
    const size_t logits = (size_t)n * VOCAB * 4;
    char *all = malloc(*size = STEPS * logits + s->bytes);
    for (int t = 0; t < STEPS; t++) {
        const lnt_batch b = {.tokens = n, .n_seq = n, .n_inputs = 1, .inputs = {{m->ids, ids + t * 64}}, .state = s};
        OK(gpu, lnt_plan_run(plan, m->w, &b));
        lnt_to_host(gpu, all + (size_t)t * logits, lnt_plan_output(plan, m->logits).data, logits);
    }
    lnt_to_host(gpu, all + STEPS * logits, s->data, s->bytes);
    OK(gpu, lnt_device_check(gpu));
    *kernels = (int)lnt_device_of(gpu)->graph_nodes;
    lnt_plan_destroy(plan);
    lnt_state_destroy(s);
    return (float *)all;
}

/* Chains give what nodes give one by one, the same bits twice, and to a row among others those that it has alone. */
static void chains_agree(void **state)
{
    (void)state;
    if (!gpu) skip();
    for (int i = 0; i < LAYERS; i++) {
        if (!wanted(layers[i].name)) continue;
        for (int b = 0; b < 2; b++) {
            linnet_model *m = model_with_noise(&layers[i], b ? LINNET_BF16 : LINNET_F32);
            const char *type = linnet_dtype_name(m->dtype);
            for (int n = 1; n <= 3; n += 2) {
                size_t size;
                int kernels[2];
                float *apart = steps(m, n, true, false, &size, &kernels[0]), *whole = steps(m, n, false, false, &size, &kernels[1]);
                float *again = steps(m, n, false, false, &size, &kernels[1]);
                const double e = relative_rms(whole, apart, (int64_t)(size / 4));
                print_message("  %s, %s, %d: %d kernels a step, one by one %d, %.2g from those\n", layers[i].name, type, n, kernels[1],
                              kernels[0], e);
                if (memcmp(whole, again, size)) fail_msg("%s, %s: other bits in another run", layers[i].name, type);
                /* bf16: now and then a sum in another order is rounded to the other neighbour */
                if (!(e < (b ? 2e-2 : 2e-6))) fail_msg("%s, %s, %d sequences: %g from the nodes one by one", layers[i].name, type, n, e);
                free(apart), free(whole), free(again);
            }
            size_t one, three;
            int kernels;
            float *by_itself = steps(m, 1, false, true, &one, &kernels), *among = steps(m, 3, false, true, &three, &kernels);
            for (int t = 0; t < STEPS; t++)
                if (memcmp(by_itself + t * VOCAB, among + 3 * t * VOCAB, VOCAB * 4))
                    fail_msg("%s, %s: a row has other bits among others", layers[i].name, type);
            free(by_itself), free(among);
            linnet_model_destroy(m);
        }
    }
}

/* Rows that products of up to 64 take, the norms between them too: 32 or fewer, and more. */
static void many_rows_agree(void **state)
{
    static const int some[] = {0, 2, 5}; /* layers; the others' products are the same */
    (void)state;
    if (!gpu) skip();
    for (int k = 0; k < 3; k++) {
        const recipe *r = &layers[some[k]];
        if (!wanted(r->name)) continue;
        linnet_model *m = model_with_noise(r, LINNET_BF16);
        for (int n = 20; n <= 40; n += 20) {
            size_t size;
            int kernels;
            float *apart = steps(m, n, true, false, &size, &kernels), *whole = steps(m, n, false, false, &size, &kernels);
            float *again = steps(m, n, false, false, &size, &kernels);
            const double e = relative_rms(whole, apart, (int64_t)(size / 4));
            print_message("  %s, bf16, %d: %d kernels a step, %.2g from one by one\n", r->name, n, kernels, e);
            if (memcmp(whole, again, size)) fail_msg("%s, %d sequences: other bits in another run", r->name, n);
            if (!(e < 2e-2)) fail_msg("%s, %d sequences: %g from the nodes one by one", r->name, n, e);
            free(apart), free(whole), free(again);
        }
        linnet_model_destroy(m);
    }
}

/* Two prompts at once in the plan of a step: what carries something from token to token goes by itself there. */
static float *prompts(linnet_model *m, bool apart)
{
    enum { FIRST = 3, ALL = 8 };
    lnt_plan *plan;
    lnt_state *s;
    int32_t ids[ALL];
    const int64_t cu[3] = {0, FIRST, ALL};
    const lnt_plan_options o = {.tokens = ALL, .n_seq = 2, .dtype = m->dtype, .has_state = true, .state_capacity = 2 * ALL, .alone = apart,
                                .n_outputs = 1, .outputs = {m->logits}};
    OK(gpu, lnt_plan_create(gpu, m->p, &o, &plan));
    OK(gpu, lnt_state_create(gpu, m->p, m->dtype, 2, 2 * ALL, &s));
    draw_ids(ids, ALL);
    for (int k = 0; k < 2; k++) {
        const lnt_batch b = {.tokens = ALL, .n_seq = 2, .cu = cu, .n_inputs = 1, .inputs = {{m->ids, ids}}, .state = s};
        OK(gpu, lnt_plan_run(plan, m->w, &b));
    }
    float *all = malloc(ALL * VOCAB * 4);
    lnt_to_host(gpu, all, lnt_plan_output(plan, m->logits).data, ALL * VOCAB * 4);
    OK(gpu, lnt_device_check(gpu));
    lnt_plan_destroy(plan);
    lnt_state_destroy(s);
    return all;
}

static void prompts_agree(void **state)
{
    (void)state;
    if (!gpu) skip();
    for (int i = 0; i < LAYERS; i++) {
        if (!wanted(layers[i].name)) continue;
        linnet_model *m = model_with_noise(&layers[i], LINNET_F32);
        float *apart = prompts(m, true), *whole = prompts(m, false);
        const double e = relative_rms(whole, apart, 8 * VOCAB);
        if (!(e < 2e-6)) fail_msg("%s: %g from the nodes one by one", layers[i].name, e);
        free(apart), free(whole);
        linnet_model_destroy(m);
    }
}

/* ---- known chains ------------------------------------------------------------------------------------------------------------------------ */

/* Chains of a step of three layers that the compiler does not know (ops/row_chain_known.cuh), and why they may go by their tables, or beside a
 * recurrence that they could have among their functions. Known are those of layers whose steps are held to a share of copying their bytes. */
#define UNHELD "no share of copying its bytes is asked of its steps"
static const struct {
    const char *mixer;
    int chains;
    const char *why;
} by_table[] = {
    {"rwkv7", 2, "what stands ahead of the first layer and behind the last, once a step"},
    {"hybrid_heads", 9, "Mamba-2's chain without the norm that the known one ends in; the mean of two mixers"},
    {"rwkv4", 3, UNHELD},
    {"rwkv6", 10, UNHELD},
    {"hgrn", 3, UNHELD},
    {"metala", 7, UNHELD},
    {"decaying_fast_weight", 3, UNHELD},
    {"gsa", 3, UNHELD},
    {"abc", 3, UNHELD},
    {"rebased", 3, UNHELD},
    {"gated_rfa", 3, UNHELD},
    {"lru", 9, UNHELD},
    {"rglru", 6, UNHELD},
    {"s4d", 3, UNHELD},
    {"hyena", 3, UNHELD},
    {"mh_hyena", 3, UNHELD},
    {"mamba", 3, UNHELD},
    {"mlstm", 6, UNHELD},
    {"slstm", 9, UNHELD},
    {"longhorn", 3, UNHELD},
    {"comba", 3, UNHELD},
    {"gated_conv", 3, UNHELD},
};

typedef struct {
    int chains;
    char first[512];
} told;
static void note_chain(void *user, const char *line)
{
    told *t = user;
    if (!strncmp(line, "dispatch: chain", 15) && !t->chains++) snprintf(t->first, sizeof t->first, "%s", line);
}

/* So many layers of a mixer with four heads. */
static linnet_model *model_of_mixer(const char *mixer, int head, int count)
{
    linnet_config *k;
    linnet_model *m;
    OK(gpu, linnet_config_create(gpu, mixer, &k));
    lnt_config_size(k, 4 * head, 4, head);
    k->num_hidden_layers = count, k->vocab_size = VOCAB;
    OK(gpu, linnet_model_create(gpu, k, LINNET_BF16, 5, &m));
    linnet_config_destroy(k);
    return m;
}

/* A step of three layers: the first may have a norm of embeddings ahead of it, the last has another norm behind it. */
static told chains_told(const char *mixer, int head)
{
    linnet_model *m = model_of_mixer(mixer, head, 3);
    lnt_plan *plan;
    lnt_state *s;
    told t = {0};
    const int32_t id = 1;
    const lnt_plan_options o = {.tokens = 1, .n_seq = 1, .dtype = LINNET_BF16, .has_state = true, .state_capacity = 1, .n_outputs = 1,
                                .outputs = {m->logits}};
    OK(gpu, lnt_plan_create(gpu, m->p, &o, &plan));
    OK(gpu, lnt_state_create(gpu, m->p, LINNET_BF16, 1, 1, &s));
    const lnt_batch b = {.tokens = 1, .n_seq = 1, .n_inputs = 1, .inputs = {{m->ids, &id}}, .state = s};
    gpu->verbose_dispatch = true, gpu->log = note_chain, gpu->log_user = &t;
    OK(gpu, lnt_plan_run(plan, m->w, &b));
    gpu->verbose_dispatch = false, gpu->log = NULL;
    OK(gpu, lnt_device_check(gpu));
    lnt_plan_destroy(plan);
    lnt_state_destroy(s);
    linnet_model_destroy(m);
    return t;
}

/* A chain that is known no longer, as one of its operators has become another, is right, only slower: nothing else would tell. */
static void chains_are_known(void **state)
{
    (void)state;
    if (!gpu || lnt_device_of(gpu)->capability / 10 != 9) skip(); /* else the layers' own calls are chains */
    int wrong = 0;
    for (int i = 0; lnt_mixer_at(i); i++) {
        const char *name = lnt_mixer_at(i)->kind.about.name;
        int expected = 0;
        if (!wanted(name)) continue;
        for (size_t k = 0; k < sizeof by_table / sizeof *by_table; k++)
            if (!strcmp(by_table[k].mixer, name)) expected = by_table[k].chains;
        for (int head = 64; head <= 128; head += 64) {
            const told t = chains_told(name, head);
            if (t.chains == expected) continue;
            print_error("  %s, heads of %d: %d chains are not known, expected %d: %s\n", name, head, t.chains, expected, t.first);
            wrong++;
        }
    }
    if (wrong) fail_msg("other chains than by_table says are not known to the compiler (ops/row_chain_known.cuh)");
}

/* Mixers whose layers take more than three kernels, copies and fills beyond the delta layer's, in a step that is recorded (docs/gpu.md). */
static const struct {
    const char *mixer;
    int kernels;
} more_kernels[] = {
    {"retnet", 9}, {"rwkv4", 9}, {"metala", 9}, {"gsa", 9}, {"based", 9}, {"mamba", 9}, {"comba", 9}, {"ttt_linear", 9}, {"ttt_mlp", 9},
    {"rebased", 10}, {"lru", 10}, {"longhorn", 11}, {"decaying_fast_weight", 14}, {"linear_attn", 16}, {"abc", 16}, {"rwkv6", 17},
    {"mlstm", 17}, {"gated_rfa", 18}, {"slstm", 25},
};

/* What a layer more adds to a step of one sequence; 0 where steps are not recorded. */
static int kernels_of_layer(const char *mixer, int head)
{
    int kernels[2];
    for (int more = 0; more < 2; more++) {
        linnet_model *m = model_of_mixer(mixer, head, 3 + more);
        size_t size;
        free(steps(m, 1, false, false, &size, &kernels[more]));
        linnet_model_destroy(m);
    }
    return kernels[1] - kernels[0];
}

static void few_kernels(void **state)
{
    (void)state;
    if (!gpu || lnt_device_of(gpu)->capability / 10 != 9) skip();
    int wrong = 0;
    for (int head = 64; head <= 128; head += 64) {
        const int usual = kernels_of_layer("delta_net", head) + 3;
        for (int i = 0; lnt_mixer_at(i); i++) {
            const char *name = lnt_mixer_at(i)->kind.about.name;
            int most = usual;
            if (!wanted(name)) continue;
            for (size_t k = 0; k < sizeof more_kernels / sizeof *more_kernels; k++)
                if (!strcmp(more_kernels[k].mixer, name)) most = more_kernels[k].kernels;
            const int n = kernels_of_layer(name, head);
            print_message("  %s, heads of %d: %d kernels a layer\n", name, head, n);
            if (n <= most) continue;
            print_error("  %s, heads of %d: more than %d\n", name, head, most);
            wrong++;
        }
    }
    if (wrong) fail_msg("layers take more kernels than DeltaNet's and three, or than more_kernels says");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chains_agree), cmocka_unit_test(many_rows_agree), cmocka_unit_test(prompts_agree),
                                       cmocka_unit_test(few_kernels), cmocka_unit_test(chains_are_known)};
    if (argc > 1) only = argv[1];
    gpu = make_cuda_context();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    linnet_context_destroy(gpu);
    return exit_status(failed);
}

/* ggml's recurrences beside linnet's, forward, on the same float32 numbers, in one process and by turns: medians, their ratio, and how far apart the
 * two results are.
 *
 *     cmake -S GGML -B GGML/build -DCMAKE_BUILD_TYPE=Release -DGGML_OPENMP=ON && cmake --build GGML/build
 *     cc -O2 -std=gnu11 bench/peer_ggml.c -Iinclude -IGGML/include -Lbuild -llinnet -LGGML/build/src -lggml-cpu -lggml-base -lm -o peer_ggml
 *     LD_LIBRARY_PATH=build:GGML/build/src OMP_WAIT_POLICY=passive ./peer_ggml [THREADS [ROUNDS]]
 *
 * GGML is the folder of ggml's sources (in PyPI's source archive of llama-cpp-python: vendor/llama.cpp/ggml). For AVX2 build it with -DGGML_NATIVE=OFF
 * -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON and run with LINNET_CPU=avx2. One sequence of 2,048 tokens, 16 heads; K = V = 128, RWKV-7 64.
 * A round is one call of each; of RWKV-7 linnet runs both of its forms, and the faster one counts. Returns 1 where the results differ. */
#include <ggml-cpu.h>
#include <ggml.h>
#include <linnet/recurrence.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { T = 2048, H = 16, MOST = 8 };

static linnet_context *context;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * t.tv_sec + 1e-6 * t.tv_nsec;
}

static double uniform(void) { return rand() / (RAND_MAX + 1.0); }

static void check(linnet_status s)
{
    if (s == LINNET_OK) return;
    fprintf(stderr, "peer_ggml: %s\n", context ? linnet_error_message(context) : linnet_status_name(s));
    exit(2);
}

/* One recurrence on both sides: linnet's inputs by name, and ggml's node made of tensors that hold the same numbers. */
typedef struct {
    const char *title, *op;
    int size;            /* K = V */
    const char *inputs;  /* names, one behind the other; "g" is one number a head, the others have `size` */
    int factors;         /* ggml reads decays as factors, not as their logarithms */
    int transposed;      /* ggml keeps the state's columns as rows */
    double scale;
    struct ggml_tensor *(*node)(struct ggml_context *, struct ggml_tensor **x, struct ggml_tensor *state, float scale);
    double must_avx512, must_avx2;
} peer;

static struct ggml_tensor *gla_node(struct ggml_context *c, struct ggml_tensor **x, struct ggml_tensor *s, float scale)
{
    return ggml_gated_linear_attn(c, x[1], x[2], x[0], x[3], s, scale);
}
static struct ggml_tensor *delta_node(struct ggml_context *c, struct ggml_tensor **x, struct ggml_tensor *s, float scale)
{
    (void)scale; /* always 1 / sqrt(V) there */
    return ggml_gated_delta_net(c, x[0], x[1], x[2], x[3], x[4], s, 1);
}
static struct ggml_tensor *rwkv7_node(struct ggml_context *c, struct ggml_tensor **x, struct ggml_tensor *s, float scale)
{
    (void)scale;
    return ggml_rwkv_wkv7(c, x[0], x[5], x[1], x[2], x[3], x[4], s);
}

static const peer peers[] = {
    {"GLA", "gla", 128, "q k v gk", 1, 0, 0.08838834764831845, gla_node, 1.9, 1.2},
    {"KDA", "kda", 128, "q k v gk beta", 0, 1, 0.08838834764831845, delta_node, 4.2, 2.2},
    {"gated delta rule", "gated_delta_rule", 128, "q k v g beta", 0, 1, 0.08838834764831845, delta_node, 0, 0},
    {"RWKV-7", "dplr", 64, "q k v a b gk", 1, 1, 1, rwkv7_node, 1, 1},
};

static int one_a_head(const char *name) { return !strcmp(name, "g") || !strcmp(name, "beta"); }

/* Keys of length 1, decays between 0.6 and 1, RWKV-7's a and b those of a layer: -k and k times a rate. */
static void draw(const char *name, int size, const float *k, float *x)
{
    const int n = one_a_head(name) ? 1 : size;
    for (int64_t row = 0; row < (int64_t)T * H; row++, x += n) {
        double square = 0;
        for (int i = 0; i < n; i++) {
            if (name[0] == 'g') x[i] = (float)(-0.5 * uniform() * uniform());
            else if (!strcmp(name, "beta")) x[i] = (float)uniform();
            else if (!strcmp(name, "a")) x[i] = -k[row * size + i];
            else if (!strcmp(name, "b")) x[i] = k[row * size + i] * 0.5f;
            else x[i] = (float)(2 * uniform() - 1);
            square += (double)x[i] * x[i];
        }
        if (!strcmp(name, "k") || !strcmp(name, "q"))
            for (int i = 0; i < n; i++) x[i] /= (float)sqrt(square);
    }
}

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static double median(double *x, int n)
{
    qsort(x, n, sizeof *x, by_size);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static void linnet_call(linnet_operator_call *call, float *out, float *state, linnet_operator_tensor *x, int n)
{
    x[n] = (linnet_operator_tensor){"o", out}, x[n + 1] = (linnet_operator_tensor){"sT", state};
    call->tensors = x, call->n_tensors = n + 2;
    size_t bytes;
    check(linnet_operator_workspace(context, call, 0, &bytes));
    if (bytes > call->workspace_size) {
        free(call->workspace);
        call->workspace_size = (bytes + 63) / 64 * 64;
        if (!(call->workspace = aligned_alloc(64, call->workspace_size))) exit(2);
    }
    check(linnet_operator_forward(context, call));
}

static int compare(const peer *p, int threads, int rounds)
{
    char names[64], *name[MOST];
    int n = 0;
    snprintf(names, sizeof names, "%s", p->inputs);
    for (char *s = strtok(names, " "); s; s = strtok(NULL, " ")) name[n++] = s;

    const size_t outputs = (size_t)T * H * p->size, states = (size_t)H * p->size * p->size;
    struct ggml_context *g = ggml_init((struct ggml_init_params){(size_t)1 << 30, NULL, false});
    if (!g) exit(2);
    struct ggml_tensor *x[MOST], *state = ggml_new_tensor_4d(g, GGML_TYPE_F32, p->size, p->size, H, 1);
    if (p->node != delta_node) state = ggml_new_tensor_2d(g, GGML_TYPE_F32, (int64_t)states, 1);
    memset(state->data, 0, states * sizeof(float));
    linnet_operator_tensor mine[MOST + 2];
    for (int i = 0; i < n; i++) {
        x[i] = ggml_new_tensor_4d(g, GGML_TYPE_F32, one_a_head(name[i]) ? 1 : p->size, H, T, 1);
        const size_t count = (size_t)ggml_nelements(x[i]);
        float *numbers = malloc(count * sizeof *numbers);
        if (!numbers) exit(2);
        draw(name[i], p->size, i > 1 ? mine[1].data : NULL, numbers);
        for (size_t j = 0; j < count; j++) ((float *)x[i]->data)[j] = p->factors && !strcmp(name[i], "gk") ? expf(numbers[j]) : numbers[j];
        mine[i] = (linnet_operator_tensor){name[i], numbers};
    }
    struct ggml_tensor *theirs = p->node(g, x, state, (float)p->scale);
    struct ggml_cgraph *graph = ggml_new_graph(g);
    ggml_build_forward_expand(graph, theirs);
    struct ggml_cplan plan = ggml_graph_plan(graph, threads, NULL);
    plan.work_data = plan.work_size ? malloc(plan.work_size) : NULL;

    static const int64_t begins[] = {0, T};
    const linnet_operator_size sizes[] = {{"Hq", H}, {"Hk", H}, {"Hv", H}, {"K", p->size}, {"V", p->size}};
    const linnet_operator_option scale = {"scale", p->scale, NULL};
    linnet_operator_call call = LINNET_OPERATOR_CALL_INIT;
    call.op = p->op, call.tokens = T, call.sequences = 1, call.cu_seqlens = begins, call.sizes = sizes, call.n_sizes = 5, call.options = &scale, call.n_options = 1;
    float *out = malloc(outputs * sizeof *out), *last = malloc(states * sizeof *last);
    if (!out || !last) exit(2);

    double *times[3];
    for (int i = 0; i < 3; i++)
        if (!(times[i] = malloc(rounds * sizeof(double)))) exit(2);
    for (int r = -2; r < rounds; r++) {
        double at = now(), took[3];
        ggml_graph_compute(graph, &plan);
        took[0] = now() - at;
        for (int form = 1; form <= 2; form++) {
            call.form = form == 1 ? LINNET_FORM_CHUNK : LINNET_FORM_RECURRENT;
            at = now();
            linnet_call(&call, out, last, mine, n);
            took[form] = now() - at;
        }
        for (int i = 0; i < 3 && r >= 0; i++) times[i][r] = took[i];
    }
    call.form = LINNET_FORM_CHUNK;
    linnet_call(&call, out, last, mine, n);
    char ran[64];
    snprintf(ran, sizeof ran, "%s", linnet_operator_ran(context));

    double off = 0, size = 0, off_state = 0, size_state = 0;
    const float *o = theirs->data, *s = o + outputs;
    for (size_t i = 0; i < outputs; i++) off += pow((double)o[i] - out[i], 2), size += pow(out[i], 2);
    for (size_t h = 0; h < H; h++)
        for (int a = 0; a < p->size; a++)
            for (int b = 0; b < p->size; b++) {
                const double m = last[(h * p->size + a) * p->size + b], t = p->transposed ? s[(h * p->size + b) * p->size + a] : s[(h * p->size + a) * p->size + b];
                off_state += pow(m - t, 2), size_state += m * m;
            }
    const double error = sqrt(off / size), state_error = sqrt(off_state / size_state);
    const double theirs_ms = median(times[0], rounds), chunk = median(times[1], rounds), token = median(times[2], rounds), best = fmin(chunk, token);
    printf("| %s | %d | %.1f | %.2f (%s) | %.1f | %.2f | %.1e, %.1e |\n", p->title, p->size, theirs_ms, chunk, ran, token, theirs_ms / best, error, state_error);
    fflush(stdout);
    free(plan.work_data), free(call.workspace), free(out), free(last);
    for (int i = 0; i < n; i++) free(mine[i].data);
    for (int i = 0; i < 3; i++) free(times[i]);
    ggml_free(g);
    return !(error < 1e-5) || !(state_error < 1e-5);
}

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 2, rounds = argc > 2 ? atoi(argv[2]) : 15;
    int bad = 0;
    if (threads < 1 || rounds < 1) {
        fprintf(stderr, "usage: peer_ggml [THREADS [ROUNDS]]\n");
        return 2;
    }
    linnet_context_options options = LINNET_CONTEXT_OPTIONS_INIT;
    options.threads = threads;
    check(linnet_context_create(&options, &context));
    srand(1);
    printf("%s; ggml built with %s; %d threads, medians of %d rounds, ms\n\n", linnet_machine(context), ggml_cpu_has_avx512() ? "AVX-512" : ggml_cpu_has_avx2() ? "AVX2" : "less",
           threads, rounds);
    printf("| recurrence | K = V | ggml | linnet's chunks | token by token | ggml by linnet's better | outputs, states differ |\n|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof peers / sizeof *peers; i++) bad |= compare(&peers[i], threads, rounds);
    linnet_context_destroy(context);
    return bad;
}

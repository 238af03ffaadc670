/* A recurrence of the literature on arrays of one's own: forward, backward, and a look whether the gradient is one.
 *
 *     gcc operator.c $(pkg-config --cflags --libs linnet) -lm -o operator && ./operator
 *
 * The gated delta rule: a state S of K rows and V columns forgets a share 1 - exp(g), takes out what it holds under a key, and writes beta of the new
 * value there. `linnet_operator_describe` says what any operator has; another one needs another table of tensors and nothing else. */
#include <linnet/recurrence.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { T = 64, H = 2, K = 16, V = 8 };

static float q[T * H * K], k[T * H * K], v[T * H * V], g[T * H], beta[T * H], o[T * H * V], state[H * K * V];
static float o_cotangent[T * H * V]; /* of a loss that is the sum of o * o_cotangent */
static float dq[T * H * K], dk[T * H * K], dv[T * H * V], dg[T * H], dbeta[T * H];

static linnet_context *c;

static void check(linnet_status s)
{
    if (s == LINNET_OK) return;
    fprintf(stderr, "operator: %s\n%s\n", c ? linnet_error_message(c) : linnet_status_name(s), c ? linnet_error_hint(c) : "");
    exit(2);
}

static double noise(void) { return 2.0 * rand() / RAND_MAX - 1; }

/* One sequence of T tokens; a loss, and with `backward` its gradients. */
static double run(int backward)
{
    static const int64_t begins[] = {0, T};
    const linnet_operator_size sizes[] = {{"Hq", H}, {"Hk", H}, {"Hv", H}, {"K", K}, {"V", V}};
    const linnet_operator_tensor tensors[] = {{"q", q},   {"k", k},   {"v", v},   {"g", g},   {"beta", beta},   {"o", o}, {"sT", state},
                                              {"dq", dq}, {"dk", dk}, {"dv", dv}, {"dg", dg}, {"dbeta", dbeta}, {"do", o_cotangent}};
    linnet_operator_call call = LINNET_OPERATOR_CALL_INIT;
    call.op = "gated_delta_rule", call.tokens = T, call.sequences = 1, call.cu_seqlens = begins;
    call.sizes = sizes, call.n_sizes = sizeof sizes / sizeof *sizes;
    call.tensors = tensors, call.n_tensors = 7; /* q to sT */
    size_t bytes;
    check(linnet_operator_workspace(c, &call, 0, &bytes));
    if (backward) {
        size_t more;
        call.n_tensors = sizeof tensors / sizeof *tensors;
        check(linnet_operator_workspace(c, &call, 1, &more));
        if (more > bytes) bytes = more;
    }
    call.workspace_size = (bytes + 63) / 64 * 64;
    call.workspace = aligned_alloc(64, call.workspace_size + 64);
    if (!call.workspace) exit(2);
    check(linnet_operator_forward(c, &call));
    if (backward) check(linnet_operator_backward(c, &call));
    free(call.workspace);
    double loss = 0;
    for (int i = 0; i < T * H * V; i++) loss += (double)o[i] * o_cotangent[i];
    return loss;
}

int main(void)
{
    const struct {
        const char *name;
        float *x, *dx;
        int n;
    } inputs[] = {{"q", q, dq, T * H * K}, {"k", k, dk, T * H * K}, {"v", v, dv, T * H * V}, {"g", g, dg, T * H}, {"beta", beta, dbeta, T * H}};
    const double step = 1e-3;
    int bad = 0;
    check(linnet_context_create(NULL, &c));
    srand(1);
    for (int i = 0; i < T * H * K; i++) q[i] = (float)noise(), k[i] = (float)(noise() / 2);
    for (int i = 0; i < T * H * V; i++) v[i] = (float)noise(), o_cotangent[i] = (float)noise();
    for (int i = 0; i < T * H; i++) g[i] = (float)(-0.1 + 0.05 * noise()), beta[i] = (float)(0.5 + 0.25 * noise());
    const double loss = run(1);
    printf("loss %.4f by %s; S[0][0] of head 0 is %.4f\n", loss, linnet_operator_ran(c), state[0]);
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) { /* along a random direction, there and back */
        static float kept[T * H * K];
        double along = 0, there = 0;
        float direction[T * H * K];
        for (int j = 0; j < inputs[i].n; j++) {
            kept[j] = inputs[i].x[j], direction[j] = (float)noise();
            along += (double)inputs[i].dx[j] * direction[j];
        }
        for (int way = -1; way <= 1; way += 2) {
            for (int j = 0; j < inputs[i].n; j++) inputs[i].x[j] = (float)(kept[j] + way * step * direction[j]);
            there += way * run(0);
        }
        for (int j = 0; j < inputs[i].n; j++) inputs[i].x[j] = kept[j];
        const double slope = there / (2 * step), off = fabs(slope - along) / (fabs(slope) + 1);
        printf("  along d%-5s %10.4f, by differences %10.4f\n", inputs[i].name, along, slope);
        bad += !(off < 0.01);
    }
    linnet_context_destroy(c);
    if (bad) fprintf(stderr, "operator: %d gradients are not what differences say\n", bad);
    return bad != 0;
}

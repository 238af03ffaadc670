/* From nothing to a result on a GPU: seconds of opening it, of a first forward call and of a first backward call of one operator, 8192 tokens, 32
 * heads of 128, bf16 zeros (loading, not computing, is what this times). With a CUDA build in build-cuda:
 *
 *     cc -O2 -Iinclude -I/usr/local/cuda/include bench/cold_start.c -o cold_start -Lbuild-cuda -llinnet -L/usr/local/cuda/lib64 -lcudart
 *     time LD_LIBRARY_PATH=build-cuda ./cold_start simple_gla|delta_rule|gated_delta_rule */
#define _POSIX_C_SOURCE 199309L
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "linnet/recurrence.h"

enum { T = 8192, H = 32, K = 128 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *zeros(size_t bytes)
{
    void *p = NULL;
    if (cudaMalloc(&p, bytes) != cudaSuccess || cudaMemset(p, 0, bytes) != cudaSuccess) exit(1);
    return p;
}

static void check(linnet_context *c, linnet_status s)
{
    if (s == LINNET_OK) return;
    fprintf(stderr, "%s\n", linnet_error_message(c));
    exit(1);
}

int main(int argc, char **argv)
{
    const char *op = argc > 1 ? argv[1] : "simple_gla";
    const double start = now();
    linnet_context *c;
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.device = "cuda";
    check(c, linnet_context_create(&o, &c));
    const double opened = now();
    const int64_t cu[2] = { 0, T };
    const size_t wide = (size_t)T * H * K * 2, narrow = (size_t)T * H * 4;
    linnet_operator_call r = LINNET_OPERATOR_CALL_INIT;
    const linnet_operator_size sizes[] = { { "Hq", H }, { "K", K } };
    linnet_operator_tensor t[12] = { { "q", zeros(wide) }, { "k", zeros(wide) }, { "v", zeros(wide) } };
    int n = 3;
    if (strcmp(op, "delta_rule")) t[n++] = (linnet_operator_tensor){ "g", zeros(narrow) };
    if (strstr(op, "delta")) t[n++] = (linnet_operator_tensor){ "beta", zeros(narrow) };
    t[n++] = (linnet_operator_tensor){ "o", zeros(wide) };
    r.op = op;
    r.dtype = LINNET_BF16;
    r.tokens = T;
    r.sequences = 1;
    r.cu_seqlens = cu;
    r.sizes = sizes;
    r.n_sizes = 2;
    r.tensors = t;
    r.n_tensors = n;
    size_t forward, backward;
    check(c, linnet_operator_workspace(c, &r, 0, &forward));
    check(c, linnet_operator_workspace(c, &r, 1, &backward));
    r.workspace_size = forward > backward ? forward : backward;
    r.workspace = zeros(r.workspace_size);
    for (const char *const *name = (const char *const[]){ "do", "dq", "dk", "dv", NULL }; *name; name++)
        t[n++] = (linnet_operator_tensor){ *name, zeros(wide) };
    cudaDeviceSynchronize();
    const double ready = now();
    check(c, linnet_operator_forward(c, &r));
    cudaDeviceSynchronize();
    const double done = now();
    r.n_tensors = n;
    check(c, linnet_operator_backward(c, &r));
    cudaDeviceSynchronize();
    printf("%s: opened in %.3f s, memory %.3f, first forward %.3f, first backward %.3f, all %.3f\n", op, opened - start, ready - opened,
           done - ready, now() - done, now() - start);
    return 0;
}

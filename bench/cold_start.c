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
    linnet_recurrence r = LINNET_RECURRENCE_INIT;
    r.op = op;
    r.dtype = LINNET_BF16;
    r.tokens = T;
    r.sequences = 1;
    r.cu_seqlens = cu;
    r.Hq = r.Hv = H;
    r.K = r.V = K;
    r.q = zeros(wide), r.k = zeros(wide), r.v = zeros(wide), r.o = zeros(wide);
    r.do_ = zeros(wide), r.dq = zeros(wide), r.dk = zeros(wide), r.dv = zeros(wide);
    if (strcmp(op, "delta_rule")) r.g = zeros(narrow);
    if (strstr(op, "delta")) r.beta = zeros(narrow);
    size_t forward, backward;
    check(c, linnet_recurrence_workspace(c, &r, 0, &forward));
    check(c, linnet_recurrence_workspace(c, &r, 1, &backward));
    r.workspace_size = forward > backward ? forward : backward;
    r.workspace = zeros(r.workspace_size);
    cudaDeviceSynchronize();
    const double ready = now();
    linnet_recurrence first = r;
    first.do_ = NULL, first.dq = first.dk = first.dv = NULL;
    check(c, linnet_recurrence_forward(c, &first));
    cudaDeviceSynchronize();
    const double done = now();
    check(c, linnet_recurrence_backward(c, &r));
    cudaDeviceSynchronize();
    printf("%s: opened in %.3f s, memory %.3f, first forward %.3f, first backward %.3f, all %.3f\n", op, opened - start, ready - opened,
           done - ready, now() - done, now() - start);
    return 0;
}

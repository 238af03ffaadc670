/* The token form of operators by their chunk form (docs/performance/decay.md has the table):
 *
 *     cc -O2 -Isrc -Iinclude -o token_chunk bench/token_chunk.c build/liblinnet.a -fopenmp -lm -ldnnl -ljansson -lutf8proc -lpcre2-8 -lz \
 *        -llzma -lzstd -lmicrohttpd -lkissfft-float
 *     ./token_chunk K T HEADS REPEATS OPERATOR...
 *
 * CPU time of one thread, which other work on the machine disturbs less than the clock, the forms by turns; float32, K = V, one sequence. Of each operator
 * ms forward and for both passes, token by token and in chunks, and their ratios: medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/context.h"
#include "recurrence/problem.h"

enum { MOST = 63 };

static double processor_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* One pass of a form, with a workspace that is there before; a failure ends the program. */
static double pass(linnet_context *c, const lnt_problem *p, int form, int backward)
{
    lnt_recur_call call = p->call;
    call.head.form = form;
    if (lnt_recur_workspace(c, &call, backward, &call.head.workspace_size) != LINNET_OK) exit((fprintf(stderr, "%s\n", linnet_error_message(c)), 1));
    const size_t bytes = (call.head.workspace_size + 4096) / 4096 * 4096;
    call.head.workspace = memset(aligned_alloc(4096, bytes), 0, bytes);
    const double begin = processor_ms();
    if (lnt_recur_run(c, &call, backward) != LINNET_OK) exit((fprintf(stderr, "%s\n", linnet_error_message(c)), 1));
    const double ms = processor_ms() - begin;
    free(call.head.workspace);
    return ms;
}

int main(int argc, char **argv)
{
    static const int forms[] = {LINNET_FORM_RECURRENT, LINNET_FORM_CHUNK};
    if (argc < 6) return fputs("token_chunk K T HEADS REPEATS OPERATOR...\n", stderr), 2;
    const int K = atoi(argv[1]), T = atoi(argv[2]), H = atoi(argv[3]), repeats = atoi(argv[4]) < MOST ? atoi(argv[4]) : MOST;
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    linnet_context *c;
    o.threads = 1;
    if (linnet_context_create(&o, &c) != LINNET_OK) return 1;
    printf("K = V = %d, T = %d, %d heads: ms forward, both, token by token; in chunks; ratios\n", K, T, H);
    for (int i = 5; i < argc; i++) {
        const lnt_recur_case k = {argv[i], 1, {T}, LNT_HEADS(H, H, K, K), .gate = -0.1, .beta = 1};
        double ms[2][2][MOST + 1], forward[2], both[2];
        lnt_problem p;
        if (lnt_problem_make(c, &k, LINNET_F32, LINNET_F32, 7, &p) != LINNET_OK) return fprintf(stderr, "%s\n", linnet_error_message(c)), 2;
        for (int r = 0; r <= repeats; r++) /* the first is not counted: the next round has its place */
            for (int f = 0; f < 2; f++)
                for (int b = 0; b < 2; b++) ms[f][b][r ? r - 1 : repeats] = pass(c, &p, forms[f], b);
        for (int f = 0; f < 2; f++) {
            for (int b = 0; b < 2; b++) qsort(ms[f][b], (size_t)repeats, sizeof(double), by_size);
            forward[f] = ms[f][0][repeats / 2];
            both[f] = forward[f] + ms[f][1][repeats / 2];
        }
        printf("%-20s %7.2f %7.2f  %7.2f %7.2f  %.2f %.2f\n", argv[i], forward[0], both[0], forward[1], both[1], forward[0] / forward[1], both[0] / both[1]);
        lnt_problem_free(&p);
    }
    linnet_context_destroy(c);
    return 0;
}

/* core/: memory arithmetic, the failing allocator, random numbers, half types, atomic files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <signal.h>
#include <unistd.h>

#include "core/cpu.h"
#include "core/dtype.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/rng.h"

static void sizes_overflow(void **state)
{
    (void)state;
    int64_t r;
    assert_true(lnt_mul(1LL << 31, 1LL << 31, &r) && r == 1LL << 62);
    assert_false(lnt_mul(1LL << 32, 1LL << 31, &r));
    assert_false(lnt_mul(-1, 2, &r));
    assert_false(lnt_add(INT64_MAX, 1, &r));
    assert_true(lnt_mul(0, INT64_MAX, &r) && r == 0);
}

static void allocator_fails_on_request(void **state)
{
    (void)state;
    lnt_alloc_fail_at(2);
    void *a = lnt_alloc(10), *b = lnt_alloc(10), *d = lnt_alloc(10);
    lnt_alloc_fail_at(0);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(d);
    assert_int_equal((uintptr_t)a % LNT_ALIGN, 0);
    lnt_free(a);
    lnt_free(d);
    lnt_arena arena = {0};
    for (int i = 0; i < 1000; i++) {
        char *p = lnt_arena_printf(&arena, "name %d", i);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
    }
    lnt_alloc_fail_at(1);
    assert_null(lnt_arena_alloc(&arena, 1 << 25));
    lnt_alloc_fail_at(0);
    lnt_arena_free(&arena);
}

/* Published test vectors of Philox 4x32-10: counter 0 and key 0; all ones. */
static void philox_known_answers(void **state)
{
    (void)state;
    uint32_t w[4];
    lnt_philox(0, 0, 0, w);
    const uint32_t zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    assert_memory_equal(w, zero, sizeof w);
    lnt_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX, w);
    const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    assert_memory_equal(w, ones, sizeof w);
}

static void random_moments(void **state)
{
    (void)state;
    lnt_rng r = lnt_rng_make(7, lnt_stream_of("moments"));
    double sum = 0, squares = 0, cubes = 0;
    enum { N = 200000 };
    for (int i = 0; i < N; i++) {
        double x = lnt_rng_normal(&r);
        sum += x;
        squares += x * x;
        cubes += x * x * x;
    }
    assert_true(fabs(sum / N) < 5 / sqrt(N)); /* five standard errors */
    assert_true(fabs(squares / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(cubes / N) < 5 * sqrt(15.0 / N));
    int seen[7] = {0};
    for (int i = 0; i < 70000; i++) seen[lnt_rng_below(&r, 7)]++;
    for (int i = 0; i < 7; i++) assert_true(abs(seen[i] - 10000) < 500);
}

static void half_types_round_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float b = lnt_bf16_to_f32((lnt_bf16)h), f = lnt_f16_to_f32((lnt_f16)h);
        if (b == b) assert_int_equal(lnt_f32_to_bf16(b), h);
        if (f == f) assert_int_equal(lnt_f32_to_f16(f), h);
    }
    assert_int_equal(lnt_f32_to_bf16(1.00390625f), 0x3f80);  /* halfway 1 and 1+2^-7: to even */
    assert_int_equal(lnt_f32_to_bf16(1.01171875f), 0x3f82);  /* halfway, upper is even */
    assert_int_equal(lnt_f32_to_bf16(1.00390637f), 0x3f81);
    assert_int_equal(lnt_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(lnt_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(lnt_f32_to_f16(0x1p-25f), 0);           /* halfway 0 and the least subnormal: to even */
    assert_int_equal(lnt_f32_to_f16(0x1.8p-24f), 2);
    assert_true(isnan(lnt_bf16_to_f32(lnt_f32_to_bf16(NAN))));
    assert_true(isnan(lnt_f16_to_f32(lnt_f32_to_f16(NAN))));
}

static void cpu_levels_have_names(void **state)
{
    (void)state;
    lnt_cpu_level l;
    for (int i = 0; i < LNT_CPU_VARIANTS; i++) {
        assert_true(lnt_cpu_parse(lnt_cpu_name((lnt_cpu_level)i), &l));
        assert_int_equal(l, i);
    }
    assert_false(lnt_cpu_parse("sse9", &l));
    assert_true(lnt_cpu() <= lnt_cpu_machine());
}

static void read_back(linnet_context *c, const char *path, const char *want)
{
    char *data;
    size_t n;
    assert_int_equal(lnt_file_read(c, path, 1 << 20, &data, &n), LINNET_OK);
    assert_string_equal(data, want);
    lnt_free(data);
}

/* A write that fails half-way leaves the old file, and no scrap beside it. */
static void files_are_replaced_whole(void **state)
{
    (void)state;
    linnet_context *c;
    assert_int_equal(linnet_context_create(NULL, &c), LINNET_OK);
    char folder[] = "/tmp/linnet-core-XXXXXX", path[64], cmd[80];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a/b", folder);
    assert_int_equal(lnt_make_folder(c, path), LINNET_OK);
    snprintf(path, sizeof path, "%s/a/b/file", folder);
    lnt_file_writer w;
    assert_int_equal(lnt_file_begin(c, path, &w), LINNET_OK);
    assert_int_equal(lnt_file_write(c, &w, "good", 4), LINNET_OK);
    assert_false(lnt_file_exists(path));
    assert_int_equal(lnt_file_commit(c, &w), LINNET_OK);
    read_back(c, path, "good");

    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small = {.rlim_cur = 1000};
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    char *big = calloc(1, 100000);
    assert_int_equal(lnt_file_begin(c, path, &w), LINNET_OK);
    linnet_status s = lnt_file_write(c, &w, big, 100000);
    if (s == LINNET_OK) s = lnt_file_commit(c, &w);
    lnt_file_abandon(&w);
    setrlimit(RLIMIT_FSIZE, &old);
    free(big);
    assert_int_equal(s, LINNET_EIO);
    read_back(c, path, "good");
    snprintf(cmd, sizeof cmd, "test $(ls %s/a/b | wc -l) = 1", folder);
    assert_int_equal(system(cmd), 0);

    char *data;
    size_t n;
    assert_int_equal(lnt_file_read(c, folder, 10, &data, &n), LINNET_EIO);
    assert_int_equal(lnt_file_read(c, path, 3, &data, &n), LINNET_EFORMAT);
    assert_int_equal(lnt_file_read(c, "/nowhere/at/all", 3, &data, &n), LINNET_EIO);
    assert_non_null(strstr(linnet_error_message(c), "/nowhere/at/all"));
    linnet_context_destroy(c);
    snprintf(cmd, sizeof cmd, "rm -r %s", folder);
    assert_int_equal(system(cmd), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_overflow),        cmocka_unit_test(allocator_fails_on_request),      cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(random_moments),        cmocka_unit_test(half_types_round_to_nearest_even), cmocka_unit_test(cpu_levels_have_names),
        cmocka_unit_test(files_are_replaced_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

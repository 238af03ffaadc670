/* safetensors: what is written comes back, byte for byte; everything malformed is refused with its reason; failing memory and disks lose nothing. */
#include <dirent.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "hub/safetensors.h"
#include "one_file.h"

static int setup(void **state)
{
    (void)state;
    json_set_alloc_funcs(lnt_alloc, lnt_free); /* jansson's allocations fail on demand too */
    return open_folder("x.safetensors");
}

/* A file image with the given header and `data` bytes of tensors. */
static size_t image(uint8_t *out, const char *header, size_t data)
{
    size_t n = strlen(header);
    memset(out, 0, 8);
    out[0] = (uint8_t)n;
    out[1] = (uint8_t)(n >> 8);
    memcpy(out + 8, header, n);
    for (size_t i = 0; i < data; i++) out[8 + n + i] = (uint8_t)(i * 37 + 1);
    return 8 + n + data;
}

static linnet_status parse(const void *data, size_t n, lnt_safetensors **out)
{
    *out = NULL;
    uint8_t *exact = malloc(n + !n); /* so that a sanitizer sees one byte too many */
    memcpy(exact, data, n);
    linnet_status s = lnt_safetensors_parse(ctx, "x.safetensors", exact, n, out);
    if (s == LINNET_OK) lnt_safetensors_close(*out);
    free(exact);
    return s;
}

static void reads_hand_written(void **state)
{
    (void)state;
    uint8_t buf[1024];
    size_t n =
        image(buf,
              "{\"__metadata__\":{\"format\":\"pt\",\"scale\":\"0.5\"},\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
              "\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[3,11]},\"none\":{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[3,3]},"
              "\"scalar\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[11,13]}}  ",
              13);
    lnt_safetensors *s;
    assert_int_equal(lnt_safetensors_parse(ctx, "x", buf, n, &s), LINNET_OK);
    assert_int_equal(s->n, 4);
    assert_string_equal(lnt_safetensors_metadata(s, "scale"), "0.5");
    assert_null(lnt_safetensors_metadata(s, "absent"));
    assert_null(lnt_safetensors_find(s, "c"));
    const lnt_st_tensor *a = lnt_safetensors_find(s, "a"), *z = lnt_safetensors_find(s, "scalar"), *e = lnt_safetensors_find(s, "none");
    assert_int_equal(a->dtype, LINNET_F32);
    assert_int_equal(a->ndim, 2);
    assert_int_equal(a->dim[1], 2);
    assert_memory_equal(a->data, buf + n - 13 + 3, 8);
    assert_int_equal(z->ndim, 0);
    assert_int_equal(z->count, 1);
    assert_int_equal(e->count, 0);
    assert_string_equal(s->tensors[0].name, "a");
    assert_string_equal(s->tensors[3].name, "scalar");
    lnt_safetensors_close(s);
}

typedef struct {
    const char *header;
    size_t data;
    const char *message; /* a part of it */
} bad_case;

#define T(name, dtype, shape, offsets) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const bad_case bad[] = {
    {"", 0, "malformed JSON"},
    {"{", 0, "malformed JSON"},
    {"[]", 0, "not an object of tensors"},
    {"{}", 4, "the tensors end at byte 0, but the file holds 4"},
    {"{\"__metadata__\":3}", 0, "__metadata__"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "metadata key \"a\" is not a string"},
    {"{\"x\":1}", 0, "entry of tensor \"x\" is not an object"},
    {"{\"x\":{}}", 0, "has no dtype"},
    {"{\"x\":{\"dtype\":\"F32\"}}", 0, "has no shape"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "are not two integers"},
    {"{" T("x", "F8_E4M3", "[4]", "[0,4]") "}", 4, "has dtype \"F8_E4M3\""},
    {"{" T("x", "F32", "[1]", "[0,4,4]") "}", 4, "are not two integers"},
    {"{" T("x", "F32", "[1]", "[0.0,4]") "}", 4, "are not two integers"},
    {"{" T("x", "F32", "[-1]", "[0,4]") "}", 4, "dimension 0 of tensor \"x\""},
    {"{" T("x", "F32", "[1.5]", "[0,4]") "}", 4, "dimension 0 of tensor \"x\""},
    {"{" T("x", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "9 dimensions, expected at most 8"},
    {"{" T("x", "F32", "[4294967296,4294967296]", "[0,4]") "}", 4, "does not fit"},
    {"{" T("x", "F64", "[2305843009213693952]", "[0,0]") "}", 0, "does not fit"},
    {"{" T("x", "F32", "[99999999999999999999]", "[0,0]") "}", 0, "malformed JSON"},
    {"{" T("x", "F32", "[225]", "[0,900]") "}", 512, "tensor \"x\" ends at byte 900, but the file holds 512"},
    {"{" T("x", "F32", "[1]", "[4,0]") "}", 4, "lies from byte 4 to byte 0"},
    {"{" T("x", "F32", "[1]", "[-4,0]") "}", 4, "lies from byte -4"},
    {"{" T("x", "F32", "[2]", "[0,4]") "}", 4, "has 4 bytes, but its shape and dtype need 8"},
    {"{" T("x", "F32", "[1]", "[0,4]") "," T("y", "F32", "[1]", "[2,6]") "}", 6, "\"y\" begins at byte 2, but tensor \"x\" ends at byte 4"},
    {"{" T("x", "F32", "[1]", "[0,4]") "," T("y", "F32", "[1]", "[0,4]") "}", 4, "begins at byte 0"},
    {"{" T("x", "F32", "[1]", "[0,4]") "," T("y", "F32", "[1]", "[6,10]") "}", 10, "bytes 4 to 6 before tensor \"y\""},
    {"{" T("x", "F32", "[1]", "[0,4]") "," T("x", "F32", "[1]", "[4,8]") "}", 8, "duplicate"},
    {"{" T("x", "F32", "[1]", "[0,4]") "}", 5, "the tensors end at byte 4, but the file holds 5"},
    {"{" T("x\\u0000y", "F32", "[1]", "[0,4]") "}", 4, "malformed JSON"},
    {"{\"\xff\":1}", 0, "malformed JSON"},
};

static void refuses_malformed(void **state)
{
    (void)state;
    uint8_t buf[2048];
    lnt_safetensors *s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t n = image(buf, bad[i].header, bad[i].data);
        assert_int_equal(parse(buf, n, &s), LINNET_EFORMAT);
        if (!strstr(linnet_error_message(ctx), bad[i].message)) fail_msg("case %zu says \"%s\"", i, linnet_error_message(ctx));
        assert_string_equal(linnet_error_detail(ctx), "Read from x.safetensors.");
    }
    memset(buf, '[', sizeof buf); /* lengths: longer than the file, beyond the format's limit, deep nesting */
    memcpy(buf, "\xf8\x07\0\0\0\0\0\0", 8);
    assert_int_equal(parse(buf, sizeof buf, &s), LINNET_EFORMAT);
    memcpy(buf, "\xf9\x07\0\0\0\0\0\0", 8);
    assert_int_equal(parse(buf, sizeof buf, &s), LINNET_EFORMAT);
    assert_non_null(strstr(linnet_error_message(ctx), "header ends at byte 2049, but the file holds 2048"));
    memset(buf, 0xff, 8);
    assert_int_equal(parse(buf, sizeof buf, &s), LINNET_EFORMAT);
    assert_non_null(strstr(linnet_error_message(ctx), "expected at most 100000000"));
}

/* The tensors every writing test uses; the names need escapes. */
static float f32[6] = {1, -2, 3.5f, 0, 1e-30f, 7};
static int64_t i64[3] = {1, -1, INT64_MAX};
static uint8_t u8[3] = {1, 2, 3};
static const lnt_st_tensor sample[] = {
    {.name = "layers.0.\"q\"\n", .dtype = LINNET_F32, .ndim = 2, .dim = {2, 3}, .count = 6, .data = f32},
    {.name = "bytes", .dtype = LINNET_U8, .ndim = 1, .dim = {3}, .count = 3, .data = u8},
    {.name = "input_ids", .dtype = LINNET_I64, .ndim = 1, .dim = {3}, .count = 3, .data = i64},
    {.name = "empty", .dtype = LINNET_F64, .ndim = 1, .dim = {0}, .count = 0, .data = NULL},
    {.name = "sc\xc3\xa4lar", .dtype = LINNET_F32, .ndim = 0, .count = 1, .data = f32},
};
enum { SAMPLES = sizeof sample / sizeof *sample };
static const char *const metadata[] = {"format", "pt", "step", "12"};

static size_t slurp(uint8_t *out, size_t size)
{
    FILE *f = fopen(file, "rb");
    assert_non_null(f);
    size_t n = fread(out, 1, size, f);
    fclose(f);
    return n;
}

static void round_trip(void **state)
{
    (void)state;
    uint8_t first[2048], second[2048];
    assert_int_equal(lnt_safetensors_write(ctx, file, SAMPLES, sample, 2, metadata), LINNET_OK);
    size_t n = slurp(first, sizeof first);
    assert_int_equal(first[0] % 8, 0);
    lnt_safetensors *s;
    assert_int_equal(lnt_safetensors_open(ctx, file, &s), LINNET_OK);
    assert_int_equal(s->n, SAMPLES);
    assert_string_equal(lnt_safetensors_metadata(s, "step"), "12");
    lnt_st_tensor again[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        const lnt_st_tensor *t = lnt_safetensors_find(s, sample[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, sample[i].dtype);
        assert_int_equal(t->ndim, sample[i].ndim);
        assert_int_equal(t->count, sample[i].count);
        if (t->count) assert_memory_equal(t->data, sample[i].data, (size_t)t->count * lnt_dtype_size(t->dtype));
        again[i] = *t;
    }
    assert_int_equal(lnt_safetensors_write(ctx, file, SAMPLES, again, 2, s->metadata), LINNET_OK); /* over the file it is mapped from */
    lnt_safetensors_close(s);
    assert_int_equal(slurp(second, sizeof second), n);
    assert_memory_equal(first, second, n);
}

static void truncated_everywhere(void **state)
{
    (void)state;
    uint8_t buf[2048];
    lnt_safetensors *s;
    assert_int_equal(lnt_safetensors_write(ctx, file, SAMPLES, sample, 2, metadata), LINNET_OK);
    size_t n = slurp(buf, sizeof buf);
    assert_int_equal(parse(buf, n, &s), LINNET_OK);
    for (size_t cut = 0; cut < n; cut++) assert_int_equal(parse(buf, cut, &s), LINNET_EFORMAT);
    for (size_t at = 0; at < n; at++) /* a changed byte may still be a good file, never a crash */
        for (int bit = 0; bit < 8; bit++) {
            buf[at] ^= (uint8_t)(1 << bit);
            parse(buf, n, &s);
            buf[at] ^= (uint8_t)(1 << bit);
        }
}

static void refuses_to_write(void **state)
{
    (void)state;
    lnt_st_tensor t = sample[0];
    t.count = 5;
    assert_int_equal(lnt_safetensors_write(ctx, file, 1, &t, 0, NULL), LINNET_EINVAL);
    const lnt_st_tensor twice[] = {sample[0], sample[0]};
    assert_int_equal(lnt_safetensors_write(ctx, file, 2, twice, 0, NULL), LINNET_EINVAL);
    t = sample[0];
    t.name = "__metadata__";
    assert_int_equal(lnt_safetensors_write(ctx, file, 1, &t, 0, NULL), LINNET_EINVAL);
    assert_int_equal(lnt_safetensors_write(ctx, "/nowhere/at/all.safetensors", 1, sample, 0, NULL), LINNET_EIO);
    lnt_safetensors *s;
    assert_int_equal(lnt_safetensors_open(ctx, "/nowhere/at/all.safetensors", &s), LINNET_EIO);
    assert_int_equal(lnt_safetensors_open(ctx, folder, &s), LINNET_EIO);
}

static int files_in_folder(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void allocation_failures(void **state)
{
    (void)state;
    uint8_t before[2048], after[2048];
    assert_int_equal(lnt_safetensors_write(ctx, file, SAMPLES, sample, 2, metadata), LINNET_OK);
    size_t n = slurp(before, sizeof before);
    lnt_safetensors *s;
    linnet_status status;
    int64_t k = 0, made;
    do {
        lnt_alloc_fail_at(++k);
        status = lnt_safetensors_open(ctx, file, &s);
        made = lnt_alloc_count();
        lnt_alloc_fail_at(0);
        /* jansson's lexer calls a string it has no memory for a bad token */
        assert_true(status == LINNET_OK || status == LINNET_ENOMEM || strstr(linnet_error_message(ctx), "malformed JSON"));
        if (status == LINNET_OK) lnt_safetensors_close(s);
    } while (made >= k);
    assert_int_equal(status, LINNET_OK);
    assert_true(k > 50);
    k = 0;
    do {
        lnt_alloc_fail_at(++k);
        status = lnt_safetensors_write(ctx, file, SAMPLES, sample, 2, metadata);
        made = lnt_alloc_count();
        lnt_alloc_fail_at(0);
        assert_true(status == LINNET_OK || status == LINNET_ENOMEM);
        assert_int_equal(slurp(after, sizeof after), n);
        assert_memory_equal(before, after, n);
        assert_int_equal(files_in_folder(), 1);
    } while (made >= k);
    assert_int_equal(status, LINNET_OK);
    assert_true(k > 50);
}

static void full_disk(void **state)
{
    (void)state;
    uint8_t before[2048], after[2048];
    assert_int_equal(lnt_safetensors_write(ctx, file, SAMPLES, sample, 2, metadata), LINNET_OK);
    size_t n = slurp(before, sizeof before);
    size_t big = 1 << 20;
    uint8_t *data = calloc(1, big);
    const lnt_st_tensor t = {.name = "big", .dtype = LINNET_U8, .ndim = 1, .dim = {1 << 20}, .count = 1 << 20, .data = data};
    struct rlimit old, low;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    low = old;
    low.rlim_cur = 65536;
    setrlimit(RLIMIT_FSIZE, &low);
    linnet_status status = lnt_safetensors_write(ctx, file, 1, &t, 0, NULL);
    setrlimit(RLIMIT_FSIZE, &old);
    free(data);
    assert_int_equal(status, LINNET_EIO);
    assert_int_equal(slurp(after, sizeof after), n);
    assert_memory_equal(before, after, n);
    assert_int_equal(files_in_folder(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_hand_written), cmocka_unit_test(refuses_malformed),
        cmocka_unit_test(round_trip),         cmocka_unit_test(truncated_everywhere),
        cmocka_unit_test(refuses_to_write),   cmocka_unit_test(allocation_failures),
        cmocka_unit_test(full_disk),
    };
    return cmocka_run_group_tests(tests, setup, close_folder);
}

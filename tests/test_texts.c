/* Texts as people keep them: compressed (hub/unpack.c) and as fields of JSON lines (hub/records.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#ifdef LINNET_ZLIB
#include <zlib.h>
#endif
#ifdef LINNET_LZMA
#include <lzma.h>
#endif
#ifdef LINNET_ZSTD
#include <zstd.h>
#endif

#include "hub/corpus.h"
#include "hub/unpack.h"
#include "one_file.h"

static int set_up(void **state)
{
    (void)state;
    return open_folder("text");
}

static void write_file(const void *data, size_t n)
{
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A way to make a packed file; 0: the library was not there when linnet was built. */
typedef struct {
    const char *name, *library;
    uint8_t magic[6];
    size_t n_magic;
    size_t (*pack)(const uint8_t *text, size_t n, uint8_t *out, size_t room);
} packer;

#ifdef LINNET_ZLIB
static size_t pack_gzip(const uint8_t *text, size_t n, uint8_t *out, size_t room)
{
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)text;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    const size_t made = z.total_out;
    deflateEnd(&z);
    return made;
}
#else
#define pack_gzip NULL
#endif
#ifdef LINNET_LZMA
static size_t pack_xz(const uint8_t *text, size_t n, uint8_t *out, size_t room)
{
    size_t made = 0;
    assert_int_equal(lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, NULL, text, n, out, &made, room), LZMA_OK);
    return made;
}
#else
#define pack_xz NULL
#endif
#ifdef LINNET_ZSTD
static size_t pack_zstd(const uint8_t *text, size_t n, uint8_t *out, size_t room)
{
    ZSTD_CCtx *z = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, 1);
    const size_t made = ZSTD_compress2(z, out, room, text, n);
    assert_false(ZSTD_isError(made));
    ZSTD_freeCCtx(z);
    return made;
}
#else
#define pack_zstd NULL
#endif

static const packer packers[] = {
    {"gzip", "zlib", {0x1f, 0x8b}, 2, pack_gzip},
    {"xz", "liblzma", {0xfd, '7', 'z', 'X', 'Z', 0}, 6, pack_xz},
    {"Zstandard", "libzstd", {0x28, 0xb5, 0x2f, 0xfd}, 4, pack_zstd},
};
enum { PACKERS = sizeof packers / sizeof *packers, ROOM = 1 << 16 };

/* What is in the file comes out as `text`. */
static void reads(const uint8_t *text, size_t n)
{
    lnt_file_view v;
    uint8_t head[100];
    size_t got;
    if (lnt_text_open(ctx, file, &v) != LINNET_OK) fail_msg("%s", linnet_error_message(ctx));
    assert_int_equal(v.size, n);
    if (n) assert_memory_equal(v.data, text, n);
    lnt_file_unmap(&v);
    assert_int_equal(lnt_text_head(ctx, file, head, sizeof head, &got), LINNET_OK);
    assert_int_equal(got, n < sizeof head ? n : sizeof head);
    if (n) assert_memory_equal(head, text, got);
}

static void refused(linnet_status s, const char *says)
{
    lnt_file_view v;
    assert_int_equal(lnt_text_open(ctx, file, &v), s);
    if (!strstr(linnet_error_message(ctx), says)) fail_msg("\"%s\" lacks \"%s\"", linnet_error_message(ctx), says);
    assert_non_null(strstr(linnet_error_message(ctx), file));
    assert_true(*linnet_error_hint(ctx));
}

static size_t fill(uint8_t *text, size_t n)
{
    uint64_t x = 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        text[i] = (uint8_t)"to be or not\n"[(x >> 33) % 13];
    }
    return n;
}

static void packed_texts_are_read(void **state)
{
    (void)state;
    static uint8_t text[5000], packed[2 * ROOM];
    for (int i = 0; i < PACKERS; i++) {
        const packer *p = &packers[i];
        if (!p->pack) continue;
        const size_t sizes[] = {0, 1, 100, fill(text, sizeof text)};
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            write_file(packed, p->pack(text, sizes[k], packed, ROOM));
            reads(text, sizes[k]);
        }
        /* two of them, one behind the other, as appending and parallel packers leave them */
        size_t n = p->pack(text, 2000, packed, ROOM);
        n += p->pack(text + 2000, 3000, packed + n, ROOM);
        write_file(packed, n);
        reads(text, sizeof text);
    }
}

static void a_library_that_is_not_there_is_named(void **state)
{
    (void)state;
    int n = 0;
    for (int i = 0; i < PACKERS; i++) {
        if (packers[i].pack) continue;
        uint8_t some[16] = {0};
        memcpy(some, packers[i].magic, packers[i].n_magic);
        write_file(some, sizeof some);
        refused(LINNET_EUNSUPPORTED, packers[i].library);
        n++;
    }
    if (!n) skip();
}

/* Cut anywhere, changed anywhere, with something behind: one sentence. */
static void damaged_texts_are_refused(void **state)
{
    (void)state;
    static uint8_t text[300], packed[ROOM];
    fill(text, sizeof text);
    for (int i = 0; i < PACKERS; i++) {
        const packer *p = &packers[i];
        if (!p->pack) continue;
        size_t n = p->pack(text, sizeof text, packed, ROOM);
        for (size_t cut = p->n_magic; cut < n; cut++) {
            write_file(packed, cut);
            refused(LINNET_EFORMAT, "is cut off");
        }
        for (size_t at = 0; at < n; at++) {
            lnt_file_view v;
            packed[at] ^= 0x10;
            write_file(packed, n);
            /* what is told by its first bytes is another kind of file without them; a name, a time or a flag may be anything */
            if (lnt_text_open(ctx, file, &v) == LINNET_OK) {
                if (at >= p->n_magic && (v.size != sizeof text || memcmp(v.data, text, v.size)))
                    fail_msg("%s: byte %zu changed the text", p->name, at);
                lnt_file_unmap(&v);
            }
            packed[at] ^= 0x10;
        }
        memcpy(packed + n, "and so on", 9);
        write_file(packed, n + 9);
        refused(LINNET_EFORMAT, "is damaged");
    }
}

#if defined(LINNET_LZMA) && defined(LINNET_ZSTD)
static void windows_too_wide_are_refused(void **state)
{
    (void)state;
    static uint8_t packed[ROOM];
    enum { HEADER = 12, OF_512_MIB = 34 };
    const size_t n = pack_xz((const uint8_t *)"text", 4, packed, ROOM), length = ((size_t)packed[HEADER] + 1) * 4;
    size_t at = HEADER + 2; /* behind the block header's size and flags: two sizes if the flags say so, the filter's number, bytes of its options */
    for (int bit = 6; bit < 8; bit++)
        if (packed[HEADER + 1] >> bit & 1)
            while (packed[at++] & 0x80) continue;
    packed[at + 2] = OF_512_MIB;
    const uint32_t crc = lzma_crc32(packed + HEADER, length - 4, 0);
    for (int i = 0; i < 4; i++) packed[HEADER + length - 4 + (size_t)i] = (uint8_t)(crc >> 8 * i);
    write_file(packed, n);
    refused(LINNET_EUNSUPPORTED, "64 MiB");
    /* a frame without its size, a window of 2^27, one block of four bytes as they are */
    write_file("\x28\xb5\x2f\xfd\x00\x88\x21\x00\x00text", 13);
    refused(LINNET_EUNSUPPORTED, "64 MiB");
    write_file("\x28\xb5\x2f\xfd\x00\x80\x21\x00\x00text", 13); /* 2^26 */
    reads((const uint8_t *)"text", 4);
}

/* A large file may ask for twice as much. */
static void windows_of_large_files(void **state)
{
    (void)state;
    enum { BLOCK = 128 << 10, BLOCKS = 9, HEADER = 6, WINDOW = 5 };
    uint8_t *packed = malloc(HEADER + BLOCKS * (3 + BLOCK)), *text = malloc(BLOCKS * BLOCK), *at = packed + HEADER;
    assert_true(packed && text);
    memset(text, 'a', BLOCKS * BLOCK);
    memcpy(packed, "\x28\xb5\x2f\xfd\x00\x88", HEADER);
    for (int i = 0; i < BLOCKS; i++, at += 3 + BLOCK) {
        const uint32_t header = (uint32_t)BLOCK << 3 | (i + 1 == BLOCKS); /* a raw block; the last */
        for (int b = 0; b < 3; b++) at[b] = (uint8_t)(header >> 8 * b);
        memset(at + 3, 'a', BLOCK);
    }
    write_file(packed, (size_t)(at - packed));
    reads(text, BLOCKS * BLOCK);
    packed[WINDOW] = 0x90; /* 2^28 */
    write_file(packed, (size_t)(at - packed));
    refused(LINNET_EUNSUPPORTED, "128 MiB");
    free(packed);
    free(text);
}
#endif

#ifdef LINNET_ZLIB
/* 96 MiB of text, no allocation of its size. */
static void unpacking_takes_bounded_memory(void **state)
{
    (void)state;
    enum { SIZE = 96 << 20 };
    uint8_t *text = malloc(SIZE), *packed = malloc(1 << 20);
    assert_true(text && packed);
    memset(text, 'a', SIZE);
    write_file(packed, pack_gzip(text, SIZE, packed, 1 << 20));
    lnt_alloc_fail_at(0);
    reads(text, SIZE);
    assert_true(lnt_alloc_largest() <= (size_t)1 << 20);
    free(text);
    free(packed);
}
#endif

/* ---- records ---- */

/* The corpus of the file's `field` under raw bytes; NULL: refused, with `says` in the message. */
static lnt_corpus *records(const char *text, const char *field, const char *says)
{
    linnet_tokenizer *t;
    lnt_corpus *k = NULL;
    const char *path = file;
    write_file(text, strlen(text));
    assert_int_equal(linnet_tokenizer_open(ctx, "bytes", &t), LINNET_OK);
    linnet_status s = lnt_corpus_load(ctx, &(lnt_texts){.paths = &path, .n_paths = 1, .field = field}, t, &k);
    linnet_tokenizer_destroy(t);
    if (!says && s != LINNET_OK) fail_msg("%s", linnet_error_message(ctx));
    if (says) {
        assert_int_not_equal(s, LINNET_OK);
        if (!strstr(linnet_error_message(ctx), says)) fail_msg("\"%s\" lacks \"%s\"", linnet_error_message(ctx), says);
    }
    return s == LINNET_OK ? k : NULL;
}

static void holds(lnt_corpus *k, const char *text)
{
    assert_int_equal(k->n, strlen(text));
    for (size_t i = 0; text[i]; i++) assert_int_equal(k->ids[i], (uint8_t)text[i]);
    assert_int_equal(k->bytes, strlen(text));
    lnt_corpus_free(k);
}

static void fields_are_read(void **state)
{
    (void)state;
    holds(records("{\"text\": \"one\", \"id\": 1}\n\n  \r\n{\"id\": 2, \"text\": \"caf\\u00e9 \\\"two\\\"\"}\r\n", "text", NULL),
          "one\ncaf\xc3\xa9 \"two\"\n");
    holds(records("{\"meta\": {\"body\": \"inside\"}}\n{\"meta.body\": \"whole\", \"meta\": {\"body\": \"no\"}}", "meta.body", NULL),
          "inside\nwhole\n");
    holds(records("{\"text\": \"\"}\n{\"text\": \"a\"}", "text", NULL), "\na\n");
}

static void lines_without_the_field_are_refused(void **state)
{
    (void)state;
    records("{\"text\": \"a\"}\n{\"body\": \"b\", \"id\": 3}\n", "text", "line 2 of");
    assert_string_equal(linnet_error_hint(ctx), "Its keys: body, id.");
    records("{\"text\": \"a\"}\n{\"text\": 7}\n", "text", "\"text\" in line 2 of");
    records("{\"text\": null}\n", "text", "is null, expected a text");
    records("\n\n[1, 2]\n", "text", "line 3 of");
    records("to be or not\n", "text", "is no JSON");
    records("{\"text\": \"a\"} {\"text\": \"b\"}\n", "text", "line 1 of");
    records("{\"text\": \"a\\u0000b\"}\n", "text", "line 1 of");
    records("{\"text\": \"a", "text", "line 1 of");
    records("", "text", "holds no byte");
    records("{\"meta\": \"flat\"}\n", "meta.body", "has no \"meta.body\"");
}

/* The text that a tokenizer learns from: the same documents, up to a limit that falls inside one. */
static void text_of_fields(void **state)
{
    (void)state;
    const char *path = file, *lines = "{\"text\": \"first\"}\n{\"text\": \"second\"}\n";
    const lnt_texts texts = {.paths = &path, .n_paths = 1, .field = "text"};
    char *text;
    size_t n;
    write_file(lines, strlen(lines));
    assert_int_equal(lnt_corpus_text(ctx, &texts, 1000, &text, &n), LINNET_OK);
    assert_int_equal(n, 13);
    assert_memory_equal(text, "first\nsecond\n", 13);
    lnt_free(text);
    assert_int_equal(lnt_corpus_text(ctx, &texts, 8, &text, &n), LINNET_OK);
    assert_int_equal(n, 8);
    assert_memory_equal(text, "first\nse", 8);
    lnt_free(text);
}

/* What a caller gets of all that: the same ids. */
static void ids_of_files(void **state)
{
    (void)state;
    const char *path[2] = {file, file}, *lines = "{\"text\": \"first\"}\n{\"text\": \"second\"}\n";
    linnet_tokenizer *t;
    int32_t *ids;
    int64_t n = 0;
    write_file(lines, strlen(lines));
    assert_int_equal(linnet_tokenizer_open(ctx, "bytes", &t), LINNET_OK);
    assert_int_equal(linnet_tokenizer_encode_files(ctx, t, path, 2, "text", &ids, &n), LINNET_OK);
    assert_int_equal(n, 26);
    for (int i = 0; i < 26; i++) assert_int_equal(ids[i], "first\nsecond\nfirst\nsecond\n"[i]);
    linnet_free(ids);
    assert_int_equal(linnet_tokenizer_encode_files(ctx, t, path, 1, "body", &ids, &n), LINNET_EFORMAT);
    assert_null(ids);
    assert_int_equal(linnet_tokenizer_encode_files(ctx, t, path, 0, NULL, &ids, &n), LINNET_EINVAL);
    assert_int_equal(linnet_tokenizer_encode_files(ctx, t, NULL, 1, NULL, &ids, &n), LINNET_EINVAL);
    assert_int_equal(linnet_tokenizer_encode_files(ctx, NULL, path, 1, NULL, &ids, &n), LINNET_EINVAL);
    assert_int_equal(linnet_tokenizer_encode_files(ctx, t, path, 1, NULL, NULL, &n), LINNET_EINVAL);
    assert_int_equal(linnet_tokenizer_encode_files(ctx, t, path, 1, NULL, &ids, NULL), LINNET_EINVAL);
    linnet_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(packed_texts_are_read, set_up, close_folder),
        cmocka_unit_test_setup_teardown(a_library_that_is_not_there_is_named, set_up, close_folder),
        cmocka_unit_test_setup_teardown(damaged_texts_are_refused, set_up, close_folder),
#if defined(LINNET_LZMA) && defined(LINNET_ZSTD)
        cmocka_unit_test_setup_teardown(windows_too_wide_are_refused, set_up, close_folder),
        cmocka_unit_test_setup_teardown(windows_of_large_files, set_up, close_folder),
#endif
#ifdef LINNET_ZLIB
        cmocka_unit_test_setup_teardown(unpacking_takes_bounded_memory, set_up, close_folder),
#endif
        cmocka_unit_test_setup_teardown(fields_are_read, set_up, close_folder),
        cmocka_unit_test_setup_teardown(lines_without_the_field_are_refused, set_up, close_folder),
        cmocka_unit_test_setup_teardown(text_of_fields, set_up, close_folder),
        cmocka_unit_test_setup_teardown(ids_of_files, set_up, close_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

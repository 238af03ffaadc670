#include "hub/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hub/corpus.h"

#ifdef LINNET_ZLIB
#include <zlib.h>
#endif
#ifdef LINNET_LZMA
#include <lzma.h>
#endif
#ifdef LINNET_ZSTD
#include <zstd.h>
#include <zstd_errors.h>
#endif

enum { PIECE = 1 << 20 };       /* bytes that a decoder makes at a time */
/* The largest window a file may ask for is 128 MiB, as in zstd's own command; a small file's is 64 MiB, which `xz -9` asks for whatever the text. */
enum { WINDOW_BITS = 27, SMALL_WINDOW_BITS = 26, SMALL = 1 << 20 };
enum { BESIDE_WINDOW = 1 << 20 };

typedef struct {
    lnt_ctx *c;
    const char *path;
    const uint8_t *data; /* [size] the packed file */
    size_t size;
    uint8_t *piece;      /* [PIECE] */
    int fd;              /* where the text goes; -1: to `head` */
    uint8_t *head;       /* [room] */
    size_t room;
    size_t made;         /* bytes of text */
    bool full;           /* head is: no more is wanted */
} unpacking;

/* ---- where the text goes ---- */

static int unnamed_file(void)
{
    static const char *const folders[] = {"/var/tmp", "/tmp"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        int fd = open(folders[i], O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0) return fd;
        char name[64]; /* a file system without O_TMPFILE */
        snprintf(name, sizeof name, "%s/linnet-text-XXXXXX", folders[i]);
        fd = mkostemp(name, O_CLOEXEC);
        if (fd >= 0) return unlink(name), fd;
    }
    return memfd_create("linnet-text", MFD_CLOEXEC);
}

/* The first n bytes of `piece` are text. */
static __attribute__((unused)) linnet_status put(unpacking *u, size_t n)
{
    if (u->fd < 0) {
        const size_t take = n < u->room - u->made ? n : u->room - u->made;
        memcpy(u->head + u->made, u->piece, take);
        u->made += take;
        u->full = u->made == u->room;
        return LINNET_OK;
    }
    for (size_t done = 0; done < n;) {
        const ssize_t w = write(u->fd, u->piece + done, n - done);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) {
            lnt_fail(u->c, LINNET_EIO, "cannot write the text of \"%s\" aside, %zu bytes so far: %s", u->path, u->made + done,
                     strerror(w < 0 ? errno : ENOSPC));
            return lnt_hint(u->c, "It is unpacked into /var/tmp: make room there, or unpack it yourself and name the text.");
        }
        done += (size_t)w;
    }
    u->made += n;
    return LINNET_OK;
}

/* ---- what can be wrong ---- */

static __attribute__((unused)) linnet_status damaged(const unpacking *u, const char *kind, size_t at)
{
    lnt_fail(u->c, LINNET_EFORMAT, "\"%s\" is damaged: its %s data are wrong at byte %zu of %zu", u->path, kind, at, u->size);
    return lnt_hint(u->c, "Get it again, or leave it out.");
}

static __attribute__((unused)) linnet_status broken_off(const unpacking *u, const char *kind)
{
    lnt_fail(u->c, LINNET_EFORMAT, "\"%s\" is cut off: its %s data go on behind its %zu bytes", u->path, kind, u->size);
    return lnt_hint(u->c, "Get it again, or leave it out.");
}

static __attribute__((unused)) int window_bits(const unpacking *u) { return u->size < SMALL ? SMALL_WINDOW_BITS : WINDOW_BITS; }

static __attribute__((unused)) linnet_status too_wide(const unpacking *u, const char *unpack)
{
    lnt_fail(u->c, LINNET_EUNSUPPORTED, "\"%s\" needs more memory to be unpacked than %d MiB", u->path, 1 << (window_bits(u) - 20));
    return lnt_hint(u->c, "Unpack it first (%s ...).", unpack);
}

/* ---- the libraries ---- */

/* Where the next of several packed parts in one file begins, the last having ended at *at: *at = size where there is none (zeros, as tapes and xz's
 * own padding have them, are nothing); false: something else is there. */
static __attribute__((unused)) bool next_part(const unpacking *u, const char *magic, size_t n, size_t *at)
{
    while (*at < u->size && !u->data[*at]) ++*at;
    return *at == u->size || (u->size - *at >= n && !memcmp(u->data + *at, magic, n));
}

#define GZIP "\x1f\x8b"
#define XZ "\xfd" "7zXZ\0"

#ifdef LINNET_ZLIB
static linnet_status unpack_gzip(unpacking *u)
{
    z_stream z = {0};
    enum { GZIP_ALONE = 16 };
    if (inflateInit2(&z, MAX_WBITS + GZIP_ALONE) != Z_OK) return lnt_fail_memory(u->c, PIECE);
    linnet_status s = LINNET_OK;
    for (size_t taken = 0; s == LINNET_OK && !u->full;) {
        const size_t left = u->size - taken;
        const uInt given = left < UINT_MAX ? (uInt)left : UINT_MAX;
        z.next_in = (z_const Bytef *)(uintptr_t)(u->data + taken);
        z.avail_in = given;
        z.next_out = u->piece;
        z.avail_out = PIECE;
        const int r = inflate(&z, Z_NO_FLUSH);
        taken += given - z.avail_in;
        s = put(u, PIECE - z.avail_out);
        if (s != LINNET_OK || r == Z_OK) continue;
        if (r == Z_BUF_ERROR) s = broken_off(u, "gzip");
        else if (r == Z_MEM_ERROR) s = lnt_fail_memory(u->c, PIECE);
        else if (r != Z_STREAM_END) s = damaged(u, "gzip", taken);
        else if (!next_part(u, GZIP, sizeof GZIP - 1, &taken)) s = damaged(u, "gzip", taken);
        else if (taken == u->size) break;
        else if (inflateReset(&z) != Z_OK) s = damaged(u, "gzip", taken);
    }
    inflateEnd(&z);
    return s;
}
#else
#define unpack_gzip NULL
#endif

#ifdef LINNET_LZMA
static linnet_status unpack_xz(unpacking *u)
{
    const uint64_t most = ((uint64_t)1 << window_bits(u)) + BESIDE_WINDOW;
    lzma_stream z = LZMA_STREAM_INIT;
    if (lzma_stream_decoder(&z, most, 0) != LZMA_OK) return lnt_fail_memory(u->c, PIECE);
    linnet_status s = LINNET_OK;
    for (size_t taken = 0; s == LINNET_OK && !u->full;) {
        z.next_in = u->data + taken;
        z.avail_in = u->size - taken;
        z.next_out = u->piece;
        z.avail_out = PIECE;
        const lzma_ret r = lzma_code(&z, LZMA_FINISH);
        taken = u->size - z.avail_in;
        s = put(u, PIECE - z.avail_out);
        if (s != LINNET_OK || r == LZMA_OK) continue;
        if (r == LZMA_BUF_ERROR) s = broken_off(u, "xz");
        else if (r == LZMA_MEM_ERROR) s = lnt_fail_memory(u->c, (size_t)lzma_memusage(&z));
        else if (r == LZMA_MEMLIMIT_ERROR) s = too_wide(u, "xz -dk");
        else if (r != LZMA_STREAM_END) s = damaged(u, "xz", taken);
        else if (!next_part(u, XZ, sizeof XZ - 1, &taken)) s = damaged(u, "xz", taken);
        else if (taken == u->size) break;
        else if (lzma_stream_decoder(&z, most, 0) != LZMA_OK) s = lnt_fail_memory(u->c, PIECE);
    }
    lzma_end(&z);
    return s;
}
#else
#define unpack_xz NULL
#endif

#ifdef LINNET_ZSTD
static linnet_status unpack_zstd(unpacking *u)
{
    ZSTD_DStream *z = ZSTD_createDStream();
    if (!z) return lnt_fail_memory(u->c, PIECE);
    linnet_status s = LINNET_OK;
    ZSTD_inBuffer in = {u->data, u->size, 0};
    ZSTD_DCtx_setParameter(z, ZSTD_d_windowLogMax, window_bits(u));
    for (size_t wanted = 1, made = PIECE; s == LINNET_OK && !u->full;) {
        if (in.pos == in.size && made < PIECE) { /* nothing is held back */
            if (wanted) s = broken_off(u, "Zstandard");
            break;
        }
        ZSTD_outBuffer out = {u->piece, PIECE, 0};
        wanted = ZSTD_decompressStream(z, &out, &in);
        made = out.pos;
        s = put(u, made);
        if (s != LINNET_OK || !ZSTD_isError(wanted)) continue;
        const ZSTD_ErrorCode why = ZSTD_getErrorCode(wanted);
        if (why == ZSTD_error_memory_allocation) s = lnt_fail_memory(u->c, (size_t)1 << window_bits(u));
        else s = why == ZSTD_error_frameParameter_windowTooLarge ? too_wide(u, "zstd -d --long=31") : damaged(u, "Zstandard", in.pos);
    }
    ZSTD_freeDStream(z);
    return s;
}
#else
#define unpack_zstd NULL
#endif

static const struct packing {
    const char *bytes; /* what a file begins with */
    size_t n;
    const char *kind, *unpack, *library;
    linnet_status (*run)(unpacking *u); /* NULL: the library was not there when linnet was built */
} packings[] = {
    {GZIP, sizeof GZIP - 1, "gzip", "gzip -dk", "zlib", unpack_gzip},
    {XZ, sizeof XZ - 1, "xz", "xz -dk", "liblzma", unpack_xz},
    {"\x28\xb5\x2f\xfd", 4, "Zstandard", "zstd -d", "libzstd", unpack_zstd},
};

static const struct packing *packing_of(const lnt_file_view *v)
{
    for (size_t i = 0; i < sizeof packings / sizeof *packings; i++)
        if (v->size >= packings[i].n && !memcmp(v->data, packings[i].bytes, packings[i].n)) return &packings[i];
    return NULL;
}

static linnet_status unpack(const struct packing *p, unpacking *u)
{
    if (!p->run) {
        lnt_fail(u->c, LINNET_EUNSUPPORTED, "\"%s\" is compressed (%s), which this build of linnet does not read: it was built without %s", u->path,
                 p->kind, p->library);
        return lnt_hint(u->c, "Unpack it first (%s ...), or build linnet where %s is.", p->unpack, p->library);
    }
    u->piece = lnt_alloc(PIECE);
    if (!u->piece) return lnt_fail_memory(u->c, PIECE);
    linnet_status s = p->run(u);
    lnt_free(u->piece);
    return s;
}

linnet_status lnt_text_open(lnt_ctx *c, const char *path, lnt_file_view *out)
{
    lnt_file_view v;
    LNT_TRY(lnt_file_map(c, path, &v));
    linnet_status s = LINNET_OK;
    const struct packing *p = packing_of(&v);
    if (p) {
        unpacking u = {.c = c, .path = path, .data = v.data, .size = v.size, .fd = unnamed_file()};
        if (u.fd < 0) s = lnt_fail(c, LINNET_EIO, "no file can be made for the text of \"%s\": %s", path, strerror(errno));
        if (s == LINNET_OK) s = unpack(p, &u);
        lnt_file_unmap(&v);
        v = (lnt_file_view){.data = (const uint8_t *)""};
        if (s == LINNET_OK && u.made) {
            void *text = mmap(NULL, u.made, PROT_READ, MAP_PRIVATE, u.fd, 0);
            if (text == MAP_FAILED) s = lnt_fail(c, LINNET_EIO, "cannot map the text of \"%s\": %s", path, strerror(errno));
            else v = (lnt_file_view){text, u.made, true};
        }
        if (u.fd >= 0) close(u.fd);
    }
    if (s == LINNET_OK) s = lnt_text_check(c, path, v.data, v.size);
    if (s != LINNET_OK) {
        lnt_file_unmap(&v);
        return s;
    }
    *out = v;
    return LINNET_OK;
}

linnet_status lnt_text_head(lnt_ctx *c, const char *path, uint8_t *head, size_t room, size_t *n)
{
    lnt_file_view v;
    LNT_TRY(lnt_file_map(c, path, &v));
    const struct packing *p = packing_of(&v);
    unpacking u = {.c = c, .path = path, .data = v.data, .size = v.size, .fd = -1, .head = head, .room = room};
    linnet_status s = LINNET_OK;
    if (p) s = unpack(p, &u);
    else memcpy(head, v.data, u.made = v.size < room ? v.size : room);
    lnt_file_unmap(&v);
    *n = u.made;
    return s;
}

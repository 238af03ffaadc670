#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static linnet_status fail_io(lnt_ctx *c, const char *doing, const char *path)
{
    return lnt_fail(c, LINNET_EIO, "cannot %s \"%s\": %s", doing, path, strerror(errno));
}

static linnet_status open_regular(lnt_ctx *c, const char *path, int *fd, int64_t *size)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) return fail_io(c, "open", path);
    if (fstat(*fd, &st) != 0) {
        linnet_status s = fail_io(c, "read", path);
        close(*fd);
        return s;
    }
    if (!S_ISREG(st.st_mode)) {
        close(*fd);
        return lnt_fail(c, LINNET_EIO, "\"%s\" is not a regular file", path);
    }
    *size = st.st_size;
    return LINNET_OK;
}

linnet_status lnt_file_map(lnt_ctx *c, const char *path, lnt_file_view *out)
{
    int fd;
    int64_t size;
    *out = (lnt_file_view){.data = (const uint8_t *)""};
    LNT_TRY(open_regular(c, path, &fd, &size));
    linnet_status s = LINNET_OK;
    if (size > 0) {
        void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            s = fail_io(c, "map", path);
        else
            *out = (lnt_file_view){p, (size_t)size, true};
    }
    close(fd);
    return s;
}

void lnt_file_unmap(lnt_file_view *v)
{
    if (v->mapped) munmap((void *)(uintptr_t)v->data, v->size);
    *v = (lnt_file_view){0};
}

linnet_status lnt_file_read(lnt_ctx *c, const char *path, size_t limit, char **data, size_t *size)
{
    int fd;
    int64_t n;
    LNT_TRY(open_regular(c, path, &fd, &n));
    if ((uint64_t)n > limit) {
        close(fd);
        return lnt_fail(c, LINNET_EFORMAT, "\"%s\" holds %lld bytes, expected at most %zu", path, (long long)n, limit);
    }
    char *p = lnt_alloc((size_t)n + 1);
    if (!p) {
        close(fd);
        return lnt_fail_memory(c, (size_t)n + 1);
    }
    size_t got = 0;
    while (got < (size_t)n) {
        ssize_t r = read(fd, p + got, (size_t)n - got);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) {
            linnet_status s = r < 0 ? fail_io(c, "read", path) : lnt_fail(c, LINNET_EIO, "\"%s\" shrank while it was read", path);
            lnt_free(p);
            close(fd);
            return s;
        }
        got += (size_t)r;
    }
    close(fd);
    p[n] = 0;
    *data = p;
    *size = (size_t)n;
    return LINNET_OK;
}

/* ---- atomic replacement: write aside in the same folder, fsync, rename, fsync the folder ---- */

linnet_status lnt_file_begin(lnt_ctx *c, const char *path, lnt_file_writer *w)
{
    size_t n = strlen(path) + 32;
    *w = (lnt_file_writer){.path = lnt_strdup(path), .aside = lnt_alloc(n)};
    if (!w->path || !w->aside) {
        lnt_free(w->aside); /* names no file yet, so there is nothing to unlink */
        w->aside = NULL;
        lnt_file_abandon(w);
        return lnt_fail_memory(c, n);
    }
    snprintf(w->aside, n, "%s.writing-%ld", path, (long)getpid());
    w->stream = fopen(w->aside, "wbe");
    if (!w->stream) {
        linnet_status s = fail_io(c, "write", path);
        lnt_free(w->aside); /* nothing to remove */
        w->aside = NULL;
        lnt_file_abandon(w);
        return s;
    }
    return LINNET_OK;
}

linnet_status lnt_file_write(lnt_ctx *c, lnt_file_writer *w, const void *data, size_t bytes)
{
    if (bytes && fwrite(data, 1, bytes, w->stream) != bytes) { /* an empty tensor has no data at all */
        fail_io(c, "write", w->path);
        return lnt_detail(c, "What was at that path before is untouched.");
    }
    return LINNET_OK;
}

static void sync_folder_of(const char *path)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (n >= sizeof folder) return;
    memcpy(folder, path, n);
    folder[n] = 0;
    int fd = open(slash ? (n ? folder : "/") : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

linnet_status lnt_file_commit(lnt_ctx *c, lnt_file_writer *w)
{
    FILE *f = w->stream;
    w->stream = NULL;
    bool ok = fflush(f) == 0 && fsync(fileno(f)) == 0;
    int why = errno;
    if (fclose(f) != 0 && ok) ok = false, why = errno;
    if (ok && rename(w->aside, w->path) != 0) ok = false, why = errno;
    if (!ok) {
        errno = why;
        fail_io(c, "write", w->path);
        linnet_status s = lnt_detail(c, "What was at that path before is untouched.");
        lnt_file_abandon(w);
        return s;
    }
    sync_folder_of(w->path);
    lnt_free(w->aside); /* nothing left to remove */
    w->aside = NULL;
    lnt_file_abandon(w);
    return LINNET_OK;
}

void lnt_file_abandon(lnt_file_writer *w)
{
    if (w->stream) fclose(w->stream);
    if (w->aside) unlink(w->aside);
    lnt_free(w->aside);
    lnt_free(w->path);
    *w = (lnt_file_writer){0};
}

linnet_status lnt_make_folder(lnt_ctx *c, const char *path)
{
    char *p = lnt_strdup(path);
    if (!p) return lnt_fail_memory(c, strlen(path) + 1);
    linnet_status s = LINNET_OK;
    for (char *q = p + 1; s == LINNET_OK; q++) {
        if (*q != '/' && *q) continue;
        char end = *q;
        *q = 0;
        if (mkdir(p, 0777) != 0 && errno != EEXIST) s = fail_io(c, "make folder", p);
        *q = end;
        if (!end) break;
    }
    if (s == LINNET_OK && !lnt_is_folder(path)) s = lnt_fail(c, LINNET_EIO, "\"%s\" is there and is not a folder", path);
    lnt_free(p);
    return s;
}

bool lnt_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool lnt_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

#include "core/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static linnet_status fail_io(lnt_ctx *c, const char *doing, const char *path)
{
    return lnt_fail(c, LINNET_EIO, "cannot %s \"%s\": %s", doing, path, strerror(errno));
}

static linnet_status open_regular(lnt_ctx *c, const char *path, int *fd, int64_t *size)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a FIFO without a writer would hold us */
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

void lnt_file_forget(const lnt_file_view *v, const void *part, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)part;
    const uintptr_t from = (at + page - 1) / page * page, to = (at + bytes) / page * page;
    if (v->mapped && from < to) madvise((void *)from, to - from, MADV_DONTNEED);
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

static const char mark[] = ".writing-"; /* then letters and digits */
enum { ATTEMPTS = 8 };

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The folder a path lies in, open; NULL with errno. */
static DIR *open_folder_of(const char *path)
{
    const char *base = base_of(path);
    size_t n = (size_t)(base - path);
    char folder[4096];
    if (n >= sizeof folder) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    memcpy(folder, path, n);
    folder[n] = 0;
    return opendir(n ? folder : ".");
}

/* A name that was put there is on the disk only when its folder is. EINVAL: this file system does not flush folders. */
static linnet_status sync_folder(lnt_ctx *c, int fd, const char *path)
{
    if (fsync(fd) == 0 || errno == EINVAL) return LINNET_OK;
    fail_io(c, "flush the folder of", path);
    return lnt_detail(c, "The file is in place, but a loss of power may undo that.");
}

/* Whether `name` is that of a file written aside, for `base` (NULL: for any file). */
static bool is_aside(const char *name, const char *base)
{
    const char *at = NULL;
    for (const char *next = name; (next = strstr(next, mark)); next++) at = next;
    if (!at || (base && (strncmp(name, base, (size_t)(at - name)) != 0 || base[at - name]))) return false;
    const char *rest = at + sizeof mark - 1;
    return *rest && rest[strspn(rest, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")] == 0;
}

/* Remove what was written aside by writers that live no more: their files are not locked. */
static void sweep(DIR *folder, const char *base)
{
    for (struct dirent *e; (e = readdir(folder));) {
        struct stat st;
        if (!is_aside(e->d_name, base)) continue;
        int fd = openat(dirfd(folder), e->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0) continue;
        if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd(folder), e->d_name, 0);
        close(fd);
    }
}

void lnt_file_sweep(const char *folder)
{
    DIR *d = opendir(folder);
    if (!d) return;
    sweep(d, NULL);
    closedir(d);
}

/* Make a file beside `path` that was not there, and lock it; -1 with errno. */
static int open_aside(char *aside, size_t size, const char *path)
{
    for (int i = 0; i < ATTEMPTS; i++) {
        uint64_t word;
        struct stat st;
        if (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word) return -1;
        snprintf(aside, size, "%s%s%016" PRIx64, path, mark, word);
        int fd = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno == EEXIST) continue;
        if (fd < 0) return -1;
        flock(fd, LOCK_EX); /* at most a sweep holds it; where it fails there are no locks, and sweeps remove nothing */
        if (fstat(fd, &st) == 0 && st.st_nlink > 0) return fd;
        unlink(aside); /* swept before it was locked, or it cannot be looked at */
        close(fd);
    }
    errno = EEXIST;
    return -1;
}

linnet_status lnt_file_begin(lnt_ctx *c, const char *path, lnt_file_writer *w)
{
    struct stat st;
    size_t n = strlen(path) + sizeof mark + 16;
    *w = (lnt_file_writer){0};
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return lnt_fail(c, LINNET_EIO, "cannot write \"%s\": it is there and is not a regular file", path);
    char *aside = lnt_alloc(n);
    w->path = lnt_strdup(path);
    if (!w->path || !aside) {
        lnt_free(aside);
        lnt_file_abandon(w);
        return lnt_fail_memory(c, n);
    }
    w->folder = open_folder_of(path);
    if (w->folder) sweep(w->folder, base_of(path));
    int fd = !w->folder && errno != EACCES ? -1 : open_aside(aside, n, path);
    linnet_status s = fd < 0 ? fail_io(c, "write", path) : LINNET_OK;
    if (fd >= 0) w->aside = aside;
    else lnt_free(aside);
    if (fd >= 0 && !(w->stream = fdopen(fd, "wb"))) {
        s = fail_io(c, "write", path);
        close(fd);
    }
    if (s != LINNET_OK) lnt_file_abandon(w);
    return s;
}

static linnet_status not_written(lnt_ctx *c, const lnt_file_writer *w)
{
    fail_io(c, "write", w->path);
    return lnt_detail(c, "What was at that path before is untouched.");
}

linnet_status lnt_file_write(lnt_ctx *c, lnt_file_writer *w, const void *data, size_t bytes)
{
    if (bytes && fwrite(data, 1, bytes, w->stream) != bytes) return not_written(c, w); /* an empty tensor has no data at all */
    return LINNET_OK;
}

linnet_status lnt_file_sync(lnt_ctx *c, lnt_file_writer *w)
{
    FILE *f = w->stream;
    return fflush(f) == 0 && fsync(fileno(f)) == 0 ? LINNET_OK : not_written(c, w);
}

linnet_status lnt_file_commit(lnt_ctx *c, lnt_file_writer *w)
{
    linnet_status s = lnt_file_sync(c, w);
    if (s == LINNET_OK && rename(w->aside, w->path) != 0) s = not_written(c, w);
    if (s == LINNET_OK) {
        lnt_free(w->aside); /* nothing left to remove */
        w->aside = NULL;
        if (w->folder) s = sync_folder(c, dirfd(w->folder), w->path);
    }
    lnt_file_abandon(w);
    return s;
}

linnet_status lnt_file_commit_all(lnt_ctx *c, lnt_file_writer *w, int n)
{
    linnet_status s = LINNET_OK;
    for (int i = 0; i < n && s == LINNET_OK; i++) s = lnt_file_sync(c, &w[i]); /* a full disk ends it before the first has its name */
    for (int i = 0; i < n; i++) {
        if (s == LINNET_OK) s = lnt_file_commit(c, &w[i]);
        lnt_file_abandon(&w[i]);
    }
    return s;
}

void lnt_file_abandon(lnt_file_writer *w)
{
    if (w->aside) unlink(w->aside);
    if (w->stream) fclose(w->stream); /* after the file has its name, or none: until then the lock keeps sweeps away */
    if (w->folder) closedir(w->folder);
    lnt_free(w->aside);
    lnt_free(w->path);
    *w = (lnt_file_writer){0};
}

/* ---- files that grow, locks ---- */

/* A regular file that is no link, made when it is not there; -1 after saying why. */
static int open_kept(lnt_ctx *c, const char *path, int flags)
{
    struct stat st;
    int fd = open(path, flags | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0666);
    if (fd < 0) {
        fail_io(c, "write", path);
        return -1;
    }
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) return fd;
    close(fd);
    lnt_fail(c, LINNET_EIO, "cannot write \"%s\": it is there and is not a regular file", path);
    return -1;
}

linnet_status lnt_file_append(lnt_ctx *c, const char *path, void **stream)
{
    int fd = open_kept(c, path, O_WRONLY | O_APPEND);
    *stream = NULL;
    if (fd < 0) return LINNET_EIO;
    *stream = fdopen(fd, "ab");
    if (*stream) return LINNET_OK;
    linnet_status s = fail_io(c, "write", path);
    close(fd);
    return s;
}

linnet_status lnt_file_flush(lnt_ctx *c, const char *path, void *stream)
{
    return fflush(stream) == 0 && !ferror(stream) && fsync(fileno(stream)) == 0 ? LINNET_OK : fail_io(c, "write", path);
}

static linnet_status say_holder(lnt_ctx *c, int fd, const char *what)
{
    char who[128];
    ssize_t n = pread(fd, who, sizeof who - 1, 0);
    who[n > 0 ? n : 0] = 0;
    who[strcspn(who, "\n")] = 0;
    lnt_fail(c, LINNET_EINVAL, "\"%s\" is in use by %s%s", what, *who ? "process " : "another process", who);
    return lnt_hint(c, "Wait for it to end, or stop it.");
}

linnet_status lnt_lock_take(lnt_ctx *c, const char *path, const char *what, lnt_file_lock *l)
{
    *l = (lnt_file_lock){.fd = -1};
    char *name = lnt_strdup(path);
    if (!name) return lnt_fail_memory(c, strlen(path) + 1);
    linnet_status s = LINNET_OK;
    for (bool again = true; s == LINNET_OK && again;) {
        struct stat here, there;
        again = false;
        l->fd = open_kept(c, path, O_RDWR);
        if (l->fd < 0) s = LINNET_EIO;
        else if (flock(l->fd, LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK) s = say_holder(c, l->fd, what);
            else if (errno != EOPNOTSUPP && errno != ENOSYS) s = fail_io(c, "lock", path);
        } else /* the holder before us may have removed the file after we had opened it */
            again = fstat(l->fd, &here) != 0 || stat(path, &there) != 0 || here.st_ino != there.st_ino || here.st_dev != there.st_dev;
        if (l->fd >= 0 && (s != LINNET_OK || again)) close(l->fd);
    }
    if (s != LINNET_OK) {
        lnt_free(name);
        return s;
    }
    l->path = name;
    char host[64] = "?", who[128];
    gethostname(host, sizeof host - 1);
    int n = snprintf(who, sizeof who, "%ld on %s\n", (long)getpid(), host);
    if (ftruncate(l->fd, 0) != 0 || pwrite(l->fd, who, (size_t)n, 0) != n) lnt_log(c, "%s could not be written: %s", path, strerror(errno));
    return LINNET_OK; /* the lock holds without the name, which only serves messages */
}

void lnt_lock_drop(lnt_file_lock *l, bool remove)
{
    if (!l->path) return;
    if (remove) unlink(l->path);
    close(l->fd);
    lnt_free(l->path);
    l->path = NULL;
}

linnet_status lnt_folder_path_check(lnt_ctx *c, const char *path)
{
    enum { MOST = 3800 }; /* the system knows paths of 4095 */
    if (strlen(path) <= MOST) return LINNET_OK;
    return lnt_fail(c, LINNET_EINVAL, "a folder's path has %zu bytes, expected at most %d", strlen(path), MOST);
}

linnet_status lnt_make_folder(lnt_ctx *c, const char *path)
{
    LNT_TRY(lnt_folder_path_check(c, path));
    char *p = lnt_strdup(path);
    if (!p) return lnt_fail_memory(c, strlen(path) + 1);
    linnet_status s = LINNET_OK;
    for (char *q = p + 1; s == LINNET_OK; q++) {
        if (*q != '/' && *q) continue;
        char end = *q;
        *q = 0;
        if (mkdir(p, 0777) == 0) {
            DIR *above = open_folder_of(p);
            if (above) s = sync_folder(c, dirfd(above), p);
            if (above) closedir(above);
        } else if (errno != EEXIST)
            s = fail_io(c, "make folder", p);
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

bool lnt_lies_in(const char *path, const char *folder)
{
    char *at = lnt_strdup(path), *outer = realpath(folder, NULL), *inner = at ? realpath(*at ? at : ".", NULL) : NULL;
    while (at && !inner && errno == ENOENT && *at && strcmp(at, "/") != 0) { /* the nearest that is there */
        char *slash = strrchr(at, '/');
        if (slash && slash > at) *slash = 0;
        else strcpy(at, slash ? "/" : "");
        inner = realpath(*at ? at : ".", NULL);
    }
    const size_t n = outer ? strlen(outer) : 0;
    const bool in = inner && n && strncmp(inner, outer, n) == 0 && (n == 1 || inner[n] == 0 || inner[n] == '/');
    lnt_free(at);
    free(outer);
    free(inner);
    return in;
}

bool lnt_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

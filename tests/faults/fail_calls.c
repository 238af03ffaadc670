/* Preloaded into linnet: the n-th call about a file below a folder fails, or the n-th allocation of linnet itself.
 *
 *   LINNET_FAULT_BELOW  the folder; calls about other files are not counted
 *   LINNET_FAULT_AT     n from 1; 0: none, they are only counted
 *   LINNET_FAULT_MODE   error (EIO), denied (EACCES), full (ENOSPC, and every later call that writes too), short (half of what is read or
 *                       written; EINTR where there is no half), kill (SIGKILL before the call), memory (calls of malloc and its like from
 *                       liblinnet and the command)
 *   LINNET_FAULT_COUNT  a file that gets "name of the call that failed" and, at the end, "all N"
 *   LINNET_FAULT_EACH   set: and "call N NAME PATH" of every one, the path below the folder
 *
 * Interposed are the calls that linnet's sources make: what the C library calls inside itself is not seen, so stdio counts at fopen, fwrite, fflush,
 * fclose. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum mode { OFF, ERROR, DENIED, FULL, SHORT, KILL, MEMORY };
static enum mode mode;
static long at;
static const char *below;
static int record = -1;
static bool each;
static atomic_long calls;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void note(const char *text)
{
    char line[PATH_MAX + 128];
    int n = snprintf(line, sizeof line, "%s\n", text);
    if (record >= 0 && REAL(write)(record, line, (size_t)n) != n) _exit(125);
}

__attribute__((constructor)) static void begin(void)
{
    static const char *const names[] = {"error", "denied", "full", "short", "kill", "memory"};
    const char *m = getenv("LINNET_FAULT_MODE"), *n = getenv("LINNET_FAULT_AT"), *file = getenv("LINNET_FAULT_COUNT");
    below = getenv("LINNET_FAULT_BELOW");
    if (file) record = REAL(open)(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    at = n ? atol(n) : 0;
    each = getenv("LINNET_FAULT_EACH");
    for (int i = 0; m && i < 6; i++)
        if (strcmp(m, names[i]) == 0) mode = (enum mode)(i + 1);
    atomic_store(&calls, 0);
}

__attribute__((destructor)) static void end(void)
{
    char text[64];
    snprintf(text, sizeof text, "all %ld", atomic_load(&calls));
    note(text);
}

static _Thread_local char about[PATH_MAX]; /* the path of the call at hand */

static bool path_is_ours(const char *path)
{
    if (!below || !path || strncmp(path, below, strlen(below)) != 0) return false;
    snprintf(about, sizeof about, "%s", path + strlen(below));
    return true;
}

static bool fd_is_ours(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = fd > 2 && fd != record ? readlink(link, path, sizeof path - 1) : -1;
    if (n < 0) return false;
    path[n] = 0;
    return path_is_ours(path);
}

static bool at_is_ours(int dir, const char *path) { return path && *path == '/' ? path_is_ours(path) : dir != AT_FDCWD && fd_is_ours(dir); }

/* Whether this call is to fail; errno is set then. */
static bool strikes(const char *name, bool ours, bool writes)
{
    if (!mode || mode == MEMORY || !ours) return false;
    const long n = atomic_fetch_add(&calls, 1) + 1;
    if (each) {
        char text[PATH_MAX + 64];
        snprintf(text, sizeof text, "call %ld %s %s", n, name, about);
        note(text);
    }
    if (!at || n < at || (n > at && !(mode == FULL && writes))) return false;
    if (n == at) note(name);
    if (mode == KILL) raise(SIGKILL);
    errno = mode == ERROR ? EIO : mode == DENIED ? EACCES : mode == FULL ? ENOSPC : EINTR;
    return mode != FULL || writes;
}

static size_t half(size_t n) { return mode == SHORT ? n / 2 : 0; }

/* ---- names ------------------------------------------------------------------------------------------------------------------- */

#define OPEN(name)                                                                                                                                   \
    int name(const char *path, int flags, ...)                                                                                                       \
    {                                                                                                                                                \
        va_list v;                                                                                                                                   \
        va_start(v, flags);                                                                                                                          \
        mode_t m = flags & O_CREAT ? va_arg(v, mode_t) : 0;                                                                                          \
        va_end(v);                                                                                                                                   \
        return strikes("open", path_is_ours(path), flags & O_CREAT) ? -1 : REAL(name)(path, flags, m);                                               \
    }
#define OPEN_AT(name)                                                                                                                                \
    int name(int dir, const char *path, int flags, ...)                                                                                              \
    {                                                                                                                                                \
        va_list v;                                                                                                                                   \
        va_start(v, flags);                                                                                                                          \
        mode_t m = flags & O_CREAT ? va_arg(v, mode_t) : 0;                                                                                          \
        va_end(v);                                                                                                                                   \
        return strikes("openat", at_is_ours(dir, path), flags & O_CREAT) ? -1 : REAL(name)(dir, path, flags, m);                                     \
    }
OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)

#define FOPEN(name)                                                                                                                                  \
    FILE *name(const char *path, const char *how) { return strikes("fopen", path_is_ours(path), *how != 'r') ? NULL : REAL(name)(path, how); }
FOPEN(fopen)
FOPEN(fopen64)
DIR *opendir(const char *path) { return strikes("opendir", path_is_ours(path), false) ? NULL : REAL(opendir)(path); }
int rename(const char *a, const char *b) { return strikes("rename", path_is_ours(a), true) ? -1 : REAL(rename)(a, b); }
int renameat(int d, const char *a, int e, const char *b) { return strikes("renameat", at_is_ours(d, a), true) ? -1 : REAL(renameat)(d, a, e, b); }
int linkat(int d, const char *a, int e, const char *b, int f) { return strikes("linkat", at_is_ours(e, b), true) ? -1 : REAL(linkat)(d, a, e, b, f); }
int unlink(const char *path) { return strikes("unlink", path_is_ours(path), false) ? -1 : REAL(unlink)(path); }
int unlinkat(int d, const char *path, int f) { return strikes("unlinkat", at_is_ours(d, path), false) ? -1 : REAL(unlinkat)(d, path, f); }
int mkdir(const char *path, mode_t m) { return strikes("mkdir", path_is_ours(path), true) ? -1 : REAL(mkdir)(path, m); }

/* ---- descriptors and streams --------------------------------------------------------------------------------------------------- */

FILE *fdopen(int fd, const char *how) { return strikes("fdopen", fd_is_ours(fd), *how != 'r') ? NULL : REAL(fdopen)(fd, how); }
int fstat(int fd, struct stat *s) { return strikes("fstat", fd_is_ours(fd), false) ? -1 : REAL(fstat)(fd, s); }
int flock(int fd, int how) { return strikes("flock", fd_is_ours(fd), false) ? -1 : REAL(flock)(fd, how); }
int fsync(int fd) { return strikes("fsync", fd_is_ours(fd), true) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return strikes("fdatasync", fd_is_ours(fd), true) ? -1 : REAL(fdatasync)(fd); }
int ftruncate(int fd, off_t n) { return strikes("ftruncate", fd_is_ours(fd), true) ? -1 : REAL(ftruncate)(fd, n); }

/* A stream whose call failed says so ever after, as ferror() promises. */
static bool stream_strikes(const char *name, FILE *f, bool writes)
{
    if (!f || !strikes(name, fd_is_ours(fileno(f)), writes)) return false;
    f->_flags |= _IO_ERR_SEEN;
    return true;
}

int fflush(FILE *f) { return stream_strikes("fflush", f, true) ? EOF : REAL(fflush)(f); }

int fclose(FILE *f)
{
    const bool fails = strikes("fclose", fd_is_ours(fileno(f)), true);
    const int error = errno, r = REAL(fclose)(f);
    if (fails) errno = error;
    return fails ? EOF : r;
}

ssize_t read(int fd, void *to, size_t n)
{
    if (!strikes("read", fd_is_ours(fd), false)) return REAL(read)(fd, to, n);
    return half(n) ? REAL(read)(fd, to, half(n)) : -1;
}

ssize_t pread(int fd, void *to, size_t n, off_t where)
{
    if (!strikes("pread", fd_is_ours(fd), false)) return REAL(pread)(fd, to, n, where);
    return half(n) ? REAL(pread)(fd, to, half(n), where) : -1;
}

ssize_t write(int fd, const void *from, size_t n)
{
    if (!strikes("write", fd_is_ours(fd), true)) return REAL(write)(fd, from, n);
    return half(n) ? REAL(write)(fd, from, half(n)) : -1;
}

size_t fwrite(const void *from, size_t size, size_t n, FILE *f)
{
    if (!stream_strikes("fwrite", f, true)) return REAL(fwrite)(from, size, n, f);
    const int error = errno;
    const size_t done = half(n) ? REAL(fwrite)(from, size, half(n), f) : 0;
    errno = error;
    return done;
}

size_t fread(void *to, size_t size, size_t n, FILE *f)
{
    if (!stream_strikes("fread", f, false)) return REAL(fread)(to, size, n, f);
    return half(n) ? REAL(fread)(to, size, half(n), f) : 0;
}

void *mmap(void *where, size_t n, int protection, int flags, int fd, off_t offset)
{
    return strikes("mmap", fd >= 0 && fd_is_ours(fd), false) ? MAP_FAILED : REAL(mmap)(where, n, protection, flags, fd, offset);
}

/* ---- memory -------------------------------------------------------------------------------------------------------------------- */

/* Only calls from linnet's own code: libraries below it may not survive their own (jansson 2.14 does not). */
static bool starves(void *caller)
{
    Dl_info info;
    if (mode != MEMORY || !dladdr(caller, &info) || !info.dli_fname) return false;
    const char *name = strrchr(info.dli_fname, '/');
    name = name ? name + 1 : info.dli_fname;
    if (strncmp(name, "liblinnet", 9) != 0 && strcmp(name, "linnet") != 0) return false;
    if (atomic_fetch_add(&calls, 1) + 1 != at) return false;
    note("memory");
    errno = ENOMEM;
    return true;
}

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);

void *malloc(size_t n) { return starves(__builtin_return_address(0)) ? NULL : __libc_malloc(n); }
void *calloc(size_t a, size_t b) { return starves(__builtin_return_address(0)) ? NULL : __libc_calloc(a, b); }
void *realloc(void *p, size_t n) { return starves(__builtin_return_address(0)) ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { return starves(__builtin_return_address(0)) ? NULL : __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n)
{
    if (starves(__builtin_return_address(0))) return ENOMEM;
    *p = __libc_memalign(a, n);
    return *p ? 0 : ENOMEM;
}

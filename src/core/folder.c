#include "core/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char mark[] = ".writing-"; /* then 16 digits */
static const char lock_name[] = "writing.lock";
enum { ATTEMPTS = 8, DIGITS = 16 };

static linnet_status fail_io(lnt_ctx *c, const char *doing, const char *path)
{
    return lnt_fail(c, LINNET_EIO, "cannot %s \"%s\": %s", doing, path, strerror(errno));
}

/* The files of a folder, then the folder. */
static void remove_folder(const char *path)
{
    DIR *d = opendir(path);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d)) != NULL;) unlinkat(dirfd(d), e->d_name, 0); /* which leaves folders alone */
    closedir(d);
    rmdir(path);
}

/* Whether nobody writes into it any more. One that has just been made and is not locked yet is empty, and only rmdir touches it. */
static bool is_left(const char *path)
{
    char lock[4400];
    snprintf(lock, sizeof lock, "%s/%s", path, lock_name);
    const int fd = open(lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return false;
    const bool left = flock(fd, LOCK_EX | LOCK_NB) == 0;
    close(fd);
    return left;
}

static void split(const char *path, char *above, size_t size, const char **base)
{
    const char *slash = strrchr(path, '/');
    snprintf(above, size, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (slash == path) snprintf(above, size, "/");
    *base = slash ? slash + 1 : path;
}

static void sweep(const char *path)
{
    char above[4096], one[4352];
    const char *base;
    split(path, above, sizeof above, &base);
    const size_t n = strlen(base), m = sizeof mark - 1;
    DIR *d = opendir(above);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        const char *name = e->d_name;
        if (strncmp(name, base, n) != 0 || strncmp(name + n, mark, m) != 0) continue;
        if (strspn(name + n + m, "0123456789abcdef") != DIGITS || name[n + m + DIGITS]) continue;
        snprintf(one, sizeof one, "%s/%s", above, name);
        if (is_left(one)) remove_folder(one);
        else rmdir(one);
    }
    if (d) closedir(d);
}

static linnet_status check_free(lnt_ctx *c, const char *path)
{
    struct stat st;
    int entries = 0;
    if (stat(path, &st) != 0) return errno == ENOENT ? LINNET_OK : fail_io(c, "look at", path);
    if (!S_ISDIR(st.st_mode)) return lnt_fail(c, LINNET_EINVAL, "\"%s\" is there and is not a folder", path);
    DIR *d = opendir(path);
    if (!d) return fail_io(c, "read folder", path);
    while (readdir(d)) entries++;
    closedir(d);
    if (entries <= 2) return LINNET_OK;
    lnt_fail(c, LINNET_EINVAL, "\"%s\" is there and is not empty", path);
    return lnt_hint(c, "Name another folder.");
}

/* A folder of its own beside the path, locked. */
static linnet_status make_aside(lnt_ctx *c, lnt_folder_writer *w)
{
    const size_t size = strlen(w->path) + sizeof mark + DIGITS;
    char lock[4400];
    w->aside = lnt_alloc(size);
    if (!w->aside) return lnt_fail_memory(c, size);
    for (int i = 0; i < ATTEMPTS; i++) {
        uint64_t word;
        if (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word) break;
        snprintf(w->aside, size, "%s%s%016" PRIx64, w->path, mark, word);
        if (mkdir(w->aside, 0777) != 0 && errno == EEXIST) continue;
        snprintf(lock, sizeof lock, "%s/%s", w->aside, lock_name);
        if (lnt_is_folder(w->aside)) return lnt_lock_take(c, lock, w->path, &w->lock);
        break;
    }
    const linnet_status s = fail_io(c, "write", w->path);
    lnt_free(w->aside);
    w->aside = NULL;
    return s;
}

linnet_status lnt_folder_begin(lnt_ctx *c, const char *path, lnt_folder_writer *w)
{
    char above[4096];
    const char *base;
    size_t n = strlen(path);
    *w = (lnt_folder_writer){0};
    while (n > 1 && path[n - 1] == '/') n--;
    if (!n || n > 4000) return lnt_fail(c, LINNET_EINVAL, "a folder's name of %zu bytes, expected 1 to 4000", n);
    w->path = lnt_alloc(n + 1);
    if (!w->path) return lnt_fail_memory(c, n + 1);
    memcpy(w->path, path, n);
    w->path[n] = 0;
    linnet_status s = check_free(c, w->path);
    split(w->path, above, sizeof above, &base);
    if (s == LINNET_OK) s = lnt_make_folder(c, above);
    if (s == LINNET_OK) sweep(w->path);
    if (s == LINNET_OK) s = make_aside(c, w);
    if (s != LINNET_OK) lnt_folder_abandon(w);
    return s;
}

/* On the disk; EINVAL: this file system does not flush folders. */
static linnet_status flush_folder(lnt_ctx *c, const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool fine = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    const linnet_status s = fine ? LINNET_OK : fail_io(c, "flush", path);
    if (fd >= 0) close(fd);
    return s;
}

linnet_status lnt_folder_commit(lnt_ctx *c, lnt_folder_writer *w)
{
    char above[4096];
    const char *base;
    split(w->path, above, sizeof above, &base);
    lnt_lock_drop(&w->lock, true);
    linnet_status s = flush_folder(c, w->aside);
    if (s == LINNET_OK && rename(w->aside, w->path) != 0) s = fail_io(c, "write", w->path);
    if (s != LINNET_OK) {
        lnt_folder_abandon(w);
        return s;
    }
    lnt_free(w->aside);
    w->aside = NULL;
    s = flush_folder(c, above);
    lnt_folder_abandon(w);
    return s;
}

void lnt_folder_abandon(lnt_folder_writer *w)
{
    if (w->aside) remove_folder(w->aside);
    lnt_lock_drop(&w->lock, false);
    lnt_free(w->aside);
    lnt_free(w->path);
    *w = (lnt_folder_writer){0};
}

/* core/file: what replaces files, removes left-overs, locks, and opens what others have put there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/file.h"

/* Stands before the C library's: flushing of folders or of files can be made to fail. */
static int folders_fail, files_fail;

int fsync(int fd)
{
    struct stat st;
    int why = fstat(fd, &st) != 0 ? errno : S_ISDIR(st.st_mode) ? folders_fail : files_fail;
    if (!why) return (int)syscall(SYS_fsync, fd);
    errno = why;
    return -1;
}

typedef struct {
    linnet_context *c;
    char folder[64], path[96];
} place;

static int set_up(void **state)
{
    place *p = calloc(1, sizeof *p);
    assert_int_equal(linnet_context_create(NULL, &p->c), LINNET_OK);
    snprintf(p->folder, sizeof p->folder, "/tmp/linnet-files-XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    snprintf(p->path, sizeof p->path, "%s/file", p->folder);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    place *p = *state;
    char command[96];
    folders_fail = files_fail = 0;
    snprintf(command, sizeof command, "rm -rf %s", p->folder);
    linnet_context_destroy(p->c);
    free(p);
    return system(command);
}

/* A path below the folder; two at a time. */
static const char *below(const place *p, const char *name)
{
    static char path[2][160];
    static int which;
    which = !which;
    snprintf(path[which], sizeof path[which], "%s/%s", p->folder, name);
    return path[which];
}

static int count(const place *p)
{
    int n = 0;
    DIR *d = opendir(p->folder);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static linnet_status put(linnet_context *c, const char *path, const char *text)
{
    lnt_file_writer w;
    linnet_status s = lnt_file_begin(c, path, &w);
    if (s == LINNET_OK) s = lnt_file_write(c, &w, text, strlen(text));
    if (s == LINNET_OK) s = lnt_file_commit(c, &w);
    lnt_file_abandon(&w);
    return s;
}

static void expect_text(linnet_context *c, const char *path, const char *want)
{
    char *data;
    size_t n;
    assert_int_equal(lnt_file_read(c, path, 1 << 20, &data, &n), LINNET_OK);
    assert_string_equal(data, want);
    lnt_free(data);
}

static void expect_error(linnet_status s, linnet_status want, linnet_context *c, const char *says)
{
    assert_int_equal(s, want);
    if (!strstr(linnet_error_message(c), says)) fail_msg("\"%s\" does not say \"%s\"", linnet_error_message(c), says);
}

static void failing_flush_is_reported(void **state)
{
    place *p = *state;
    assert_int_equal(put(p->c, p->path, "good"), LINNET_OK);
    files_fail = EIO;
    expect_error(put(p->c, p->path, "new"), LINNET_EIO, p->c, "Input/output error");
    files_fail = 0;
    expect_text(p->c, p->path, "good");
    assert_int_equal(count(p), 1);

    folders_fail = EIO;
    expect_error(put(p->c, p->path, "new"), LINNET_EIO, p->c, "flush the folder");
    expect_error(lnt_make_folder(p->c, below(p, "a/b")), LINNET_EIO, p->c, "flush the folder");
    folders_fail = EINVAL; /* a file system that does not flush folders */
    assert_int_equal(put(p->c, p->path, "newer"), LINNET_OK);
    assert_int_equal(lnt_make_folder(p->c, below(p, "a/b/c")), LINNET_OK);
    folders_fail = 0;
    expect_text(p->c, p->path, "newer");

    void *log;
    assert_int_equal(lnt_file_append(p->c, below(p, "log"), &log), LINNET_OK);
    fputs("line\n", log);
    files_fail = ENOSPC;
    expect_error(lnt_file_flush(p->c, "log", log), LINNET_EIO, p->c, "No space left");
    files_fail = 0;
    assert_int_equal(lnt_file_flush(p->c, "log", log), LINNET_OK);
    fclose(log);
}

/* Nothing is written to a name that somebody could have put there first. */
static void names_cannot_be_planted(void **state)
{
    place *p = *state;
    char old[128];
    lnt_file_writer a, b;
    assert_int_equal(put(p->c, below(p, "victim"), "theirs"), LINNET_OK);
    snprintf(old, sizeof old, "%s.writing-%ld", p->path, (long)getpid());
    assert_int_equal(symlink(below(p, "victim"), old), 0);
    assert_int_equal(lnt_file_begin(p->c, p->path, &a), LINNET_OK);
    assert_int_equal(lnt_file_begin(p->c, p->path, &b), LINNET_OK);
    assert_string_not_equal(a.aside, b.aside);
    assert_string_not_equal(a.aside, old);
    assert_true(strlen(a.aside) >= strlen(p->path) + strlen(".writing-") + 16);
    assert_int_equal(lnt_file_write(p->c, &a, "a", 1), LINNET_OK);
    assert_int_equal(lnt_file_write(p->c, &b, "b", 1), LINNET_OK);
    assert_int_equal(lnt_file_commit(p->c, &a), LINNET_OK);
    expect_text(p->c, p->path, "a");
    assert_int_equal(lnt_file_commit(p->c, &b), LINNET_OK);
    expect_text(p->c, p->path, "b");
    expect_text(p->c, below(p, "victim"), "theirs");
}

static void left_overs_of_the_dead_are_removed(void **state)
{
    place *p = *state;
    lnt_file_writer living;
    assert_int_equal(put(p->c, below(p, "notes.writing-by hand"), "kept"), LINNET_OK);
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            lnt_file_writer w;
            if (lnt_file_begin(p->c, i ? below(p, "other") : p->path, &w) == LINNET_OK) lnt_file_write(p->c, &w, "half", 4);
            raise(SIGKILL);
        }
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    assert_int_equal(put(p->c, below(p, "other.writing-1234"), "of a version that knew no locks"), LINNET_OK);
    assert_int_equal(count(p), 4);
    assert_int_equal(lnt_file_begin(p->c, below(p, "other"), &living), LINNET_OK); /* sweeps the two that are for "other" */
    assert_int_equal(count(p), 3);
    assert_int_equal(put(p->c, p->path, "good"), LINNET_OK); /* sweeps its own */
    assert_int_equal(count(p), 3);
    lnt_file_sweep(p->folder);
    assert_int_equal(lnt_file_commit(p->c, &living), LINNET_OK);
    assert_int_equal(count(p), 3);
    expect_text(p->c, below(p, "notes.writing-by hand"), "kept");
}

enum { THREADS = 3, SAVES = 100, SIZE = 20000 };
static char texts[THREADS][SIZE + 1];

static void *save_often(void *user)
{
    const char *path = user;
    static int next;
    const char *text = texts[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)];
    intptr_t failed = 0;
    linnet_context *c;
    if (linnet_context_create(NULL, &c) != LINNET_OK) return (void *)1;
    for (int i = 0; i < SAVES; i++) failed += put(c, path, text) != LINNET_OK;
    linnet_context_destroy(c);
    return (void *)failed;
}

static void threads_share_no_names(void **state)
{
    place *p = *state;
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) memset(texts[i], 'a' + i, SIZE);
    assert_int_equal(put(p->c, p->path, texts[0]), LINNET_OK);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&thread[i], NULL, save_often, p->path), 0);
    for (int i = 0; i < 200; i++) { /* a reader sees one of the texts, whole */
        char *data;
        size_t n;
        assert_int_equal(lnt_file_read(p->c, p->path, 1 << 20, &data, &n), LINNET_OK);
        assert_int_equal(n, SIZE);
        assert_memory_equal(data, texts[data[0] - 'a'], SIZE);
        lnt_free(data);
    }
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        assert_int_equal(pthread_join(thread[i], &failed), 0);
        assert_int_equal((intptr_t)failed, 0);
    }
    assert_int_equal(count(p), 1);
}

/* Neither opened for long nor replaced. */
static void what_is_no_regular_file_is_refused(void **state)
{
    place *p = *state;
    lnt_file_view v;
    char *data;
    size_t n;
    void *log;
    lnt_file_lock lock;
    assert_int_equal(mkfifo(p->path, 0600), 0);
    assert_int_equal(symlink(p->path, below(p, "link")), 0);
    assert_int_equal(symlink("/dev/null", below(p, "null")), 0);
    alarm(20); /* an open() that waits ends the test */
    const char *const names[] = {"file", "link", "null", ""};
    for (int i = 0; i < 4; i++) {
        const char *path = below(p, names[i]);
        expect_error(lnt_file_map(p->c, path, &v), LINNET_EIO, p->c, "not a regular file");
        expect_error(lnt_file_read(p->c, path, 100, &data, &n), LINNET_EIO, p->c, "not a regular file");
        expect_error(put(p->c, path, "x"), LINNET_EIO, p->c, "not a regular file");
        assert_int_equal(lnt_file_append(p->c, path, &log), LINNET_EIO);
        assert_int_equal(lnt_lock_take(p->c, path, "it", &lock), LINNET_EIO);
    }
    expect_error(lnt_file_map(p->c, "/dev/zero", &v), LINNET_EIO, p->c, "not a regular file");
    expect_error(put(p->c, "/dev/null", "x"), LINNET_EIO, p->c, "not a regular file");
    assert_int_equal(put(p->c, below(p, "log"), ""), LINNET_OK);
    assert_int_equal(symlink(below(p, "log"), below(p, "log link")), 0);
    assert_int_equal(lnt_file_append(p->c, below(p, "log link"), &log), LINNET_EIO);
    alarm(0);
}

static void a_lock_dies_with_its_process(void **state)
{
    place *p = *state;
    lnt_file_lock mine, other;
    char word[32], letter;
    int ready[2];
    assert_int_equal(lnt_lock_take(p->c, p->path, "thing", &mine), LINNET_OK);
    snprintf(word, sizeof word, "process %ld on ", (long)getpid());
    expect_error(lnt_lock_take(p->c, p->path, "thing", &other), LINNET_EINVAL, p->c, word); /* from this process, too */
    expect_error(LINNET_EINVAL, LINNET_EINVAL, p->c, "\"thing\"");
    lnt_lock_drop(&other, true);
    lnt_lock_drop(&mine, true);
    lnt_lock_drop(&mine, true);
    assert_int_equal(count(p), 0);

    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        letter = lnt_lock_take(p->c, p->path, "thing", &mine) == LINNET_OK ? 'y' : 'n';
        if (write(ready[1], &letter, 1) == 1) pause();
        _exit(1);
    }
    assert_int_equal(read(ready[0], &letter, 1), 1);
    assert_int_equal(letter, 'y');
    snprintf(word, sizeof word, "process %ld on ", (long)child);
    expect_error(lnt_lock_take(p->c, p->path, "thing", &other), LINNET_EINVAL, p->c, word);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(lnt_lock_take(p->c, p->path, "thing", &other), LINNET_OK);
    lnt_lock_drop(&other, false);
    assert_int_equal(count(p), 1);
    close(ready[0]);
    close(ready[1]);
}

/* Threads that take and remove the lock by turns are never inside together. */
static volatile int inside;

static void *take_often(void *user)
{
    intptr_t together = 0;
    linnet_context *c;
    if (linnet_context_create(NULL, &c) != LINNET_OK) return (void *)1;
    for (int i = 0; i < 300; i++) {
        lnt_file_lock l;
        if (lnt_lock_take(c, user, "thing", &l) != LINNET_OK) continue;
        together += __atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST) != 0;
        usleep(50);
        __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
        lnt_lock_drop(&l, true);
    }
    linnet_context_destroy(c);
    return (void *)together;
}

static void a_lock_that_is_removed_still_locks(void **state)
{
    place *p = *state;
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&thread[i], NULL, take_often, p->path), 0);
    for (int i = 0; i < THREADS; i++) {
        void *together;
        assert_int_equal(pthread_join(thread[i], &together), 0);
        assert_int_equal((intptr_t)together, 0);
    }
}

int main(void)
{
#define IN_A_FOLDER(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(failing_flush_is_reported),
        IN_A_FOLDER(names_cannot_be_planted),
        IN_A_FOLDER(left_overs_of_the_dead_are_removed),
        IN_A_FOLDER(threads_share_no_names),
        IN_A_FOLDER(what_is_no_regular_file_is_refused),
        IN_A_FOLDER(a_lock_dies_with_its_process),
        IN_A_FOLDER(a_lock_that_is_removed_still_locks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

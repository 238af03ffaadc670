/* linnet_train as a library: what it believes of train_state.safetensors, which files it flushes, who may work in a folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/rng.h"
#include "hub/safetensors.h"

/* ---- flushes, in the order in which they came ---- */

static char flushed[4096]; /* a letter each: l log, f folder, o other files */
static char failing;       /* the letter that fails */
static int failing_from;   /* when it comes so many times */

int fsync(int fd)
{
    char link[64], name[512] = "";
    struct stat st;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, name, sizeof name - 1);
    name[n > 0 ? n : 0] = 0;
    const char *end = strrchr(name, '/');
    const char letter = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) ? 'f' : end && strcmp(end, "/log.jsonl") == 0 ? 'l' : 'o';
    const size_t used = strlen(flushed);
    if (used + 1 < sizeof flushed) flushed[used] = letter;
    if (letter == failing && --failing_from < 0) {
        errno = EIO;
        return -1;
    }
    return 0; /* hundreds of checkpoints, of which none has to outlast the machine */
}

/* ---- a small run ---- */

typedef struct {
    linnet_context *c;
    char folder[64], text[96], out[96], state[160];
    linnet_config *config;
    linnet_train_options o;
} place;

enum { STEPS = 4 };

static int set_up(void **state)
{
    static const char *const keys[][2] = {
        {"hidden_size", "16"}, {"num_hidden_layers", "1"}, {"num_heads", "1"}, {"head_dim", "16"}, {"expand_v", "1"}};
    place *p = calloc(1, sizeof *p);
    assert_int_equal(linnet_context_create(NULL, &p->c), LINNET_OK);
    snprintf(p->folder, sizeof p->folder, "/tmp/linnet-train-XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    snprintf(p->text, sizeof p->text, "%s/text", p->folder);
    snprintf(p->out, sizeof p->out, "%s/out", p->folder);
    snprintf(p->state, sizeof p->state, "%s/train_state.safetensors", p->out);
    FILE *f = fopen(p->text, "w");
    for (int i = 0; i < 400; i++) fprintf(f, "line %d\n", i);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(linnet_config_create(p->c, "gated_deltanet", &p->config), LINNET_OK);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_int_equal(linnet_config_set(p->c, p->config, keys[i][0], keys[i][1]), LINNET_OK);
    p->o = (linnet_train_options)LINNET_TRAIN_OPTIONS_INIT;
    static const char *texts[1];
    texts[0] = p->text;
    p->o.texts = texts;
    p->o.n_texts = 1;
    p->o.out = p->out;
    p->o.steps = STEPS;
    p->o.batch = 1;
    p->o.length = 16;
    p->o.eval_tokens = 32;
    p->o.save_every = 2;
    memset(flushed, 0, sizeof flushed);
    failing = 0;
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    place *p = *state;
    char command[96];
    failing = 0;
    snprintf(command, sizeof command, "rm -rf %s", p->folder);
    linnet_config_destroy(p->config);
    linnet_context_destroy(p->c);
    free(p);
    return system(command);
}

static linnet_status train(place *p) { return linnet_train(p->c, p->o.resume ? NULL : p->config, LINNET_F32, &p->o); }

static int stop_at_once(void *user, const linnet_train_progress *p)
{
    (void)user;
    (void)p;
    return 1;
}

/* ---- the metadata of a checkpoint ---- */

/* Write train_state.safetensors anew, with `key` as `value`, or without it where that is NULL. */
static void change(const place *p, const char *key, const char *value)
{
    lnt_safetensors *s;
    const char *pairs[128];
    int n = 0;
    assert_int_equal(lnt_safetensors_open(p->c, p->state, &s), LINNET_OK);
    for (int i = 0; i < s->n_metadata && n < 64; i++) {
        const bool here = strcmp(s->metadata[2 * i], key) == 0;
        if (here && !value) continue;
        pairs[2 * n] = s->metadata[2 * i];
        pairs[2 * n + 1] = here ? value : s->metadata[2 * i + 1];
        n++;
    }
    assert_int_equal(lnt_safetensors_write(p->c, p->state, s->n, s->tensors, n, pairs), LINNET_OK);
    lnt_safetensors_close(s);
}

/* The file as it is, to write it back. */
typedef struct {
    char *data;
    size_t size;
} bytes;

static bytes keep(const place *p)
{
    bytes b;
    assert_int_equal(lnt_file_read(p->c, p->state, 1 << 24, &b.data, &b.size), LINNET_OK);
    return b;
}

static void put_back(const place *p, bytes b)
{
    lnt_file_writer w;
    assert_int_equal(lnt_file_begin(p->c, p->state, &w), LINNET_OK);
    assert_int_equal(lnt_file_write(p->c, &w, b.data, b.size), LINNET_OK);
    assert_int_equal(lnt_file_commit(p->c, &w), LINNET_OK);
}

static void metadata_is_checked(void **state)
{
    static const struct {
        const char *key, *values[8];
    } wrong[] = {
        {"option.batch", {"0", "-1", "2", "1000001", "1000000", "", "1.5", "9223372036854775808"}},
        {"option.length", {"0", "-16", "15", "10000000", "10000001", "16 ", " 16", "0x10"}},
        {"option.accumulate", {"0", "-1", "2", "1000000"}},
        {"option.learning_rate", {"-1", "nan", "inf", "1e9", "", "0,002", "one"}},
        {"option.min_learning_rate_share", {"-0.1", "1.5", "nan"}},
        {"option.warmup", {"-2", "1e2", "-9223372036854775808"}},
        {"option.beta1", {"1", "-1"}},
        {"option.beta2", {"1", "-1"}},
        {"option.epsilon", {"0", "2"}},
        {"option.weight_decay", {"-1", "1e4"}},
        {"option.clip", {"-1", "1e31"}},
        {"option.seed", {"-1", "18446744073709551616", "1.0"}},
        {"option.isolate_documents", {"2", "-1", "4294967296"}},
        {"option.held_out_share", {"1", "-1"}},
        {"option.eval_every", {"-1"}},
        {"option.eval_tokens", {"-1"}},
        {"option.save_every", {"-1"}},
        {"option.recompute", {"3", "-1", "4294967297"}},
        {"option.max_seconds", {"-1", "1e13"}},
        {"option.weights", {"100", "-1", "2", "6", "2147483648"}},
        {"option.moments", {"100", "-1", "2"}},
        {"option.dtype", {"100", "-1", "2"}},
        {"option.train_tokenizer", {"-1", "2147483648"}},
        {"run.steps", {"-1", "0", "3", "1000000000000001"}},
        {"run.step", {"-1", "3", "5", "9223372036854775807"}},
        {"run.samples", {"-1", "3", "5", "9223372036854775807"}},
        {"run.tokens", {"-1", "63", "65", "9223372036854775807"}},
        {"run.seconds", {"-1", "nan", "1e300", "1e999"}},
        {"run.fingerprint", {"-1", "x"}},
        {"run.held_fingerprint", {"-1", "", "1"}},
    };
    place *p = *state;
    assert_int_equal(train(p), LINNET_OK);
    const bytes good = keep(p);
    p->o.resume = 1;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const bool optional = strstr("option.weights option.moments option.dtype option.train_tokenizer run.held_fingerprint", wrong[i].key) != NULL;
        change(p, wrong[i].key, NULL);
        const linnet_status without = train(p);
        assert_int_equal(without, optional ? LINNET_OK : LINNET_EFORMAT);
        if (!optional) assert_non_null(strstr(linnet_error_message(p->c), "is missing"));
        put_back(p, good);
        for (int k = 0; k < 8 && wrong[i].values[k]; k++) {
            change(p, wrong[i].key, wrong[i].values[k]);
            const linnet_status s = train(p);
            const bool unnamed = strcmp(wrong[i].values[k], "1") == 0 && strcmp(wrong[i].key, "run.held_fingerprint") == 0;
            if (s != (unnamed ? LINNET_EINVAL : LINNET_EFORMAT))
                fail_msg("%s = \"%s\" ended with %d: %s", wrong[i].key, wrong[i].values[k], s, linnet_error_message(p->c));
            put_back(p, good);
        }
    }
    assert_int_equal(train(p), LINNET_OK);
    lnt_free(good.data);
}

/* Whatever stands there, the call ends with a status. */
static void any_metadata_is_survived(void **state)
{
    static const char letters[] = "0123456789+-.eE x";
    place *p = *state;
    lnt_safetensors *s;
    char *key[64], value[24];
    int n = 0, refused = 0;
    assert_int_equal(train(p), LINNET_OK);
    const bytes good = keep(p);
    assert_int_equal(lnt_safetensors_open(p->c, p->state, &s), LINNET_OK);
    for (; n < s->n_metadata && n < 64; n++) key[n] = strdup(s->metadata[2 * n]);
    lnt_safetensors_close(s);
    assert_true(n > 20);
    p->o.resume = 1;
    p->o.progress = stop_at_once;
    lnt_rng r = lnt_rng_make(7, 1);
    for (int i = 0; i < 200; i++) {
        const char *k = key[lnt_rng_below(&r, (uint64_t)n)];
        const uint64_t length = lnt_rng_below(&r, sizeof value);
        for (uint64_t at = 0; at < length; at++) value[at] = letters[lnt_rng_below(&r, lnt_rng_below(&r, 3) ? 10 : sizeof letters - 1)];
        value[length] = 0;
        change(p, k, value);
        const linnet_status got = train(p);
        if (got != LINNET_OK && got != LINNET_EINTERRUPTED && got != LINNET_EFORMAT && got != LINNET_EINVAL)
            fail_msg("%s = \"%s\" ended with %d: %s", k, value, got, linnet_error_message(p->c));
        refused += got == LINNET_EFORMAT;
        put_back(p, good);
    }
    assert_true(refused > 100);
    for (int i = 0; i < n; i++) free(key[i]);
    lnt_free(good.data);
}

static void options_are_checked(void **state)
{
    place *p = *state;
    struct stat st;
    assert_int_equal(linnet_train(p->c, p->config, (linnet_dtype)-1, &p->o), LINNET_EINVAL);
    assert_int_equal(linnet_train(p->c, p->config, LINNET_F64, &p->o), LINNET_EINVAL);
    linnet_train_options good = p->o;
    p->o.weights = (linnet_dtype)100;
    assert_int_equal(train(p), LINNET_EINVAL);
    p->o = good;
    p->o.warmup = -2;
    assert_int_equal(train(p), LINNET_EINVAL);
    p->o = good;
    p->o.learning_rate = NAN;
    assert_int_equal(train(p), LINNET_EINVAL);
    p->o = good;
    p->o.out = NULL;
    assert_int_equal(train(p), LINNET_EINVAL);
    assert_int_equal(stat(p->out, &st), -1);
}

/* ---- what reaches the disk ---- */

static void logs_and_folders_are_flushed(void **state)
{
    place *p = *state;
    assert_int_equal(train(p), LINNET_OK);
    /* the folder's name; the folder of train.begun and of tokenizer.json; then two checkpoints: the log, three files aside, and each once more as
     * it gets its name, with its folder */
    assert_string_equal(flushed, "fofof" "loooofofof" "loooofofof");
    p->o.resume = 1;
    memset(flushed, 0, sizeof flushed);
    assert_int_equal(train(p), LINNET_OK);
    assert_string_equal(flushed, "");
}

/* Each flush of each kind fails once: the run ends with an error that says what is left, which is true. */
static void failing_flushes_end_a_run(void **state)
{
    place *p = *state;
    char command[128];
    int tried = 0;
    for (const char *kind = "lof"; *kind; kind++) {
        bool failed = true;
        for (int n = 0; failed; n++) {
            failing = *kind;
            failing_from = n;
            const linnet_status s = train(p);
            failed = failing_from < 0;
            failing = 0;
            tried += failed;
            assert_int_equal(s, failed ? LINNET_EIO : LINNET_OK);
            if (failed) {
                p->o.resume = lnt_file_exists(p->state);
                if (p->o.resume && !strstr(linnet_error_hint(p->c), "--resume"))
                    fail_msg("%c %d: a checkpoint is there, but \"%s\"", *kind, n, linnet_error_hint(p->c));
                assert_int_equal(train(p), LINNET_OK);
                p->o.resume = 0;
            }
            snprintf(command, sizeof command, "rm -rf %s", p->out);
            assert_int_equal(system(command), 0);
        }
    }
    assert_true(tried > 15);
}

/* ---- who works in a folder ---- */

static int train_beside(void *user, const linnet_train_progress *progress)
{
    place *p = user, other = *p;
    (void)progress;
    char word[32];
    assert_int_equal(linnet_context_create(NULL, &other.c), LINNET_OK);
    other.o.progress = NULL;
    for (other.o.resume = 0; other.o.resume < 2; other.o.resume++) {
        assert_int_equal(train(&other), LINNET_EINVAL);
        snprintf(word, sizeof word, "process %ld ", (long)getpid());
        assert_non_null(strstr(linnet_error_message(other.c), word));
    }
    linnet_context_destroy(other.c);
    return 0;
}

static void one_call_at_a_time(void **state)
{
    place *p = *state;
    p->o.progress = train_beside;
    p->o.user = p;
    assert_int_equal(train(p), LINNET_OK);
}

int main(void)
{
#define IN_A_FOLDER(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(metadata_is_checked),          IN_A_FOLDER(any_metadata_is_survived),  IN_A_FOLDER(options_are_checked),
        IN_A_FOLDER(logs_and_folders_are_flushed), IN_A_FOLDER(failing_flushes_end_a_run), IN_A_FOLDER(one_call_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Flags that several commands share, turned into the library's objects. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "args.h"
#include "linnet/serve.h"
#include "say.h"

static void print_log(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "%s\n", line);
}

int machine_open(const machine_args *m, linnet_context **out)
{
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    o.threads = m->threads;
    o.device = m->device;
    if (getenv("LINNET_VERBOSE")) o.log = print_log;
    linnet_status s = linnet_context_create(&o, out);
    return s == LINNET_OK ? 0 : say_status(*out, s);
}

linnet_status load_model(linnet_context *c, const machine_args *m, const char *folder, linnet_model **out)
{
    return linnet_model_load_kept(c, folder, m->dtype, m->weights, out);
}

static linnet_status set_pair(linnet_context *c, linnet_config *k, const char *pair)
{
    const char *sign = strchr(pair, '=');
    char key[128];
    snprintf(key, sizeof key, "%.*s", (int)(sign - pair), pair);
    return linnet_config_set(c, k, key, sign + 1);
}

static linnet_status set_given(linnet_context *c, linnet_config *k, const char *pair)
{
    const linnet_status s = set_pair(c, k, pair);
    if (s != LINNET_OK) args_refused(pair);
    return s;
}

/* The first kind of layer of a pattern that is not attention, which gives the model its type; NULL: none. */
static const char *kind_of_pattern(const char *pattern, char name[64])
{
    for (const char *at = pattern; at && *at;) {
        size_t n = strcspn(at, ",");
        snprintf(name, 64, "%.*s", (int)n, at + strspn(at, "0123456789*"));
        name[strcspn(name, ",:")] = 0;
        if (strcmp(name, "attention") != 0) return name;
        at += n + (at[n] == ',');
    }
    return pattern ? "attention" : NULL;
}

/* The size that there is without a preset. Kinds of layer that lack a key go without, and what counts its heads by their columns goes on doing so,
 * whatever number others have: null is nothing to the others. */
static linnet_status set_defaults(linnet_context *c, const model_args *m, bool layers, linnet_config *k)
{
    for (int i = 0; m->defaults[i]; i++)
        if ((layers || strncmp(m->defaults[i], "num_hidden_layers=", 18) != 0) && set_pair(c, k, m->defaults[i]) == LINNET_ENOMEM)
            return LINNET_ENOMEM;
    return linnet_config_set(c, k, "num_heads", "null") == LINNET_ENOMEM ? LINNET_ENOMEM : LINNET_OK;
}

/* Preset, pattern and keys, in the order in which they build on each other. sized: the size of the defaults is there, and reaches a pattern's new
 * kinds, too. */
static linnet_status apply(linnet_context *c, const model_args *m, const char *preset, bool sized, linnet_config *k)
{
    linnet_status s = preset ? linnet_config_preset(c, k, preset) : LINNET_OK;
    /* a pattern needs the number of layers, brings the keys of its kinds, which --set may name, and takes the number of heads that is there in
     * the end */
    for (int i = 0; s == LINNET_OK && m->pattern && i < m->set.count; i++)
        if (strncmp(m->set.item[i], "num_hidden_layers=", 18) == 0) s = set_given(c, k, m->set.item[i]);
    if (s == LINNET_OK && m->pattern) s = linnet_config_pattern(c, k, m->pattern);
    if (s == LINNET_OK && m->pattern && sized) s = set_defaults(c, m, false, k);
    for (int i = 0; s == LINNET_OK && i < m->set.count; i++) s = set_given(c, k, m->set.item[i]);
    if (s == LINNET_OK && m->pattern) s = linnet_config_pattern(c, k, m->pattern);
    return s;
}

/* The model type is the mixer's or that of a pattern. What is none is said in the words of linnet_config_pattern, which speaks of mixers alone. */
static linnet_status create(linnet_context *c, const model_args *m, linnet_config **out)
{
    char kind[64];
    linnet_mixer_cost cost = { .size = sizeof cost };
    const char *name = m->mixer ? m->mixer : kind_of_pattern(m->pattern, kind);
    const bool nothing = m->mixer && strcmp(m->mixer, "linnet") == 0; /* the type of files that say their mixers */
    const linnet_status s = nothing ? LINNET_EINVAL : linnet_config_create(c, name ? name : ARG_MIXER, out);
    if (s != LINNET_EINVAL) return s;
    return m->mixer ? linnet_mixer_measure(c, name, 2048, 1, &cost) : linnet_config_create(c, ARG_MIXER, out);
}

int model_args_config(linnet_context *c, const model_args *m, linnet_config **out)
{
    linnet_status s;
    if (m->config && m->mixer)
        return say_error(NULL, "Leave one of them out.", "--config %s already names the kind of layer, --mixer too", m->config);
    if (m->config) s = linnet_config_load(c, m->config, out);
    else s = create(c, m, out);
    const char *preset = m->preset || m->config || m->defaults ? m->preset : "tiny";
    const bool sized = !m->config && !preset;
    if (s == LINNET_OK && sized) s = set_defaults(c, m, true, *out);
    if (s == LINNET_OK) s = apply(c, m, preset, sized, *out);
    return s == LINNET_OK ? 0 : say_status(c, s);
}

int model_args_check(const model_args *m)
{
    linnet_context *c = NULL;
    linnet_config *config = NULL;
    const linnet_status s = linnet_context_create(NULL, &c);
    const int code = s == LINNET_OK ? model_args_config(c, m, &config) : say_status(c, s);
    linnet_config_destroy(config);
    linnet_context_destroy(c);
    return code;
}

int model_args_resumed(linnet_context *c, const model_args *m, const char *folder, linnet_config **out)
{
    if (m->config) return model_args_config(c, m, out);
    if (!m->mixer && !m->preset && !m->pattern && !m->set.count) return 0;
    if (linnet_config_load(c, folder, out) != LINNET_OK) return 0; /* linnet_train says what the folder lacks */
    linnet_status s = LINNET_OK;
    if (m->mixer) s = linnet_config_set(c, *out, "model_type", m->mixer);
    if (s == LINNET_OK) s = apply(c, m, m->preset, false, *out);
    return s == LINNET_OK ? 0 : say_status(c, s);
}

const char *chat_template_help(void)
{
    size_t bytes = 1;
    for (int i = 0; linnet_chat_template_name(i); i++) bytes += strlen(linnet_chat_template_name(i)) + 4;
    char *text = args_alloc(bytes);
    *text = 0;
    for (int i = 0; linnet_chat_template_name(i); i++)
        strcat(strcat(text, !i ? "" : linnet_chat_template_name(i + 1) ? ", " : " or "), linnet_chat_template_name(i));
    return text;
}

void say_of_texts(linnet_context *c, const char *const *texts, int n_texts)
{
    char note[1024];
    if (linnet_text_note(c, texts, n_texts, note, sizeof note) == LINNET_OK && *note) fprintf(stderr, "note: %s\n", note);
}

/* ---- outputs that are no inputs ----------------------------------------------------------------------------------------------- */

typedef struct {
    bool there;        /* else st is of the folder that it would be in */
    struct stat st;
    const char *name;  /* in that folder */
} place;

/* Links and ./ make other words for the same place: files are compared by what they are. False: nothing can be there. */
static bool find_place(const char *path, place *p)
{
    const char *slash = strrchr(path, '/');
    char folder[4096] = ".";
    p->name = slash ? slash + 1 : path;
    p->there = stat(path, &p->st) == 0;
    if (p->there) return true;
    if (slash && snprintf(folder, sizeof folder, "%.*s", (int)(slash - path + 1), path) >= (int)sizeof folder) return false;
    return stat(folder, &p->st) == 0;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool same_path(const char *a, const char *b)
{
    place p, q;
    return find_place(a, &p) && find_place(b, &q) && p.there == q.there && same_file(&p.st, &q.st) && (p.there || strcmp(p.name, q.name) == 0);
}

/* Whether a file that is there lies in a folder, or with `deep` in one below it. */
static bool lies_in(const char *path, const char *folder, bool deep)
{
    struct stat st, at;
    char *real = realpath(path, NULL), *slash;
    bool found = false;
    if (real && stat(folder, &st) == 0 && S_ISDIR(st.st_mode))
        for (bool first = true; !found && (first || deep) && (slash = strrchr(real, '/')) != NULL && slash > real; first = false) {
            *slash = 0;
            found = stat(real, &at) == 0 && same_file(&at, &st);
        }
    free(real);
    return found;
}

/* Tables, plots and records that stand in a model's folder: no model has such files, a training or a task three of them. */
static bool is_older_output(const char *path)
{
    static const char *const theirs[] = { "page.svg", "log.jsonl", "results.jsonl" };
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *end = strrchr(name, '.');
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
        if (strcmp(name, theirs[i]) == 0) return false;
    return end && (strcmp(end, ".csv") == 0 || strcmp(end, ".svg") == 0 || strcmp(end, ".jsonl") == 0);
}

int outputs_check(const char *const *out, int n_out, const char *model, const char *const *in, int n_in)
{
    static const char hint[] = "Name another file to write.";
    struct stat st;
    for (int i = 0; i < n_out; i++) {
        if (!out[i]) continue;
        for (int k = 0; k < n_in; k++) {
            if (!in[k] || stat(in[k], &st) != 0) continue; /* what is not there is said by who reads it */
            if (same_path(out[i], in[k])) return say_error(NULL, hint, "the output \"%s\" is the input \"%s\"", out[i], in[k]);
            if (lies_in(out[i], in[k], true)) return say_error(NULL, hint, "the output \"%s\" is a file in \"%s\", which is read", out[i], in[k]);
        }
        if (model && stat(model, &st) == 0 && (same_path(out[i], model) || (lies_in(out[i], model, false) && !is_older_output(out[i]))))
            return say_error(NULL, hint, "the output \"%s\" is a file of the model \"%s\"", out[i], model);
        for (int k = 0; k < i; k++)
            if (out[k] && same_path(out[i], out[k])) return say_error(NULL, hint, "the outputs \"%s\" and \"%s\" are one file", out[k], out[i]);
    }
    return 0;
}

int tokenizer_beside(linnet_context *c, const char *path, const char *folder, const linnet_model *m, linnet_tokenizer **out)
{
    linnet_model_info info = { .size = sizeof info };
    linnet_model_get_info(m, &info);
    if (!path) {
        static const char *const names[] = { "tokenizer.json", "vocab.bpe", "merges.txt", "rwkv_vocab_v20230424.txt" };
        char file[4096];
        struct stat st;
        bool beside = false;
        for (int i = 0; i < 4 && !beside; i++) {
            snprintf(file, sizeof file, "%s/%s", folder, names[i]);
            beside = stat(file, &st) == 0;
        }
        path = beside ? folder : info.vocabulary == 256 ? "bytes" : NULL;
    }
    if (!path) return say_error(NULL, "Name one with --tokenizer.", "%s has no tokenizer.json", folder);
    linnet_status s = linnet_tokenizer_open(c, path, out);
    if (s != LINNET_OK) return say_status(c, s);
    if (linnet_tokenizer_vocabulary(*out) > info.vocabulary)
        return say_error(NULL, "A model can only be used with the tokenizer it was trained with.", "tokenizer %s has %lld ids, the model only %lld",
                         path, (long long)linnet_tokenizer_vocabulary(*out), (long long)info.vocabulary);
    return 0;
}

int read_input(const char *path, const char *what, char **text, size_t *bytes)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    *text = NULL;
    *bytes = 0;
    if (!f) return say_error(NULL, NULL, "cannot open %s \"%s\": %s", what, path, strerror(errno));
    size_t room = 0, n;
    bool memory = true;
    do {
        if (room - *bytes < 65536) {
            char *grown = realloc(*text, 2 * room + 65537);
            memory = grown != NULL;
            if (memory) *text = grown, room = 2 * room + 65536;
        }
        n = memory ? fread(*text + *bytes, 1, room - *bytes, f) : 0;
        *bytes += n;
    } while (n > 0);
    const bool failed = ferror(f) != 0;
    if (failed) say_error(NULL, NULL, "cannot read %s \"%s\": %s", what, path, strerror(errno));
    if (f != stdin) fclose(f);
    if (memory && !failed) {
        (*text)[*bytes] = 0;
        return 0;
    }
    free(*text);
    *text = NULL; /* whoever asked frees it too */
    return memory ? EXIT_USER : say_error(NULL, NULL, "out of memory");
}

/* linnet tokenize: text to ids, ids to text, counts. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "say.h"

typedef struct {
    linnet_context *c;
    linnet_tokenizer *t;
    int decode, count, pieces, template, plain, special, lines, json;
    int64_t bytes, tokens; /* so far, for --count */
} job;

/* ---- text to ids ---- */

static void print_pieces(const job *k, const int32_t *ids, int64_t n)
{
    json_line j;
    for (int64_t i = 0; i < n; i++) {
        size_t bytes = 0;
        const char *piece = linnet_tokenizer_piece(k->t, ids[i], &bytes);
        line_open(&j, stdout);
        line_int(&j, "id", ids[i]);
        line_bytes(&j, "text", piece, bytes);
        line_close(&j);
    }
}

static void print_ids(const job *k, const int32_t *ids, int64_t n, size_t bytes)
{
    json_line j;
    if (k->count) return;
    if (k->pieces) {
        print_pieces(k, ids, n);
        return;
    }
    if (k->json) {
        line_open(&j, stdout);
        line_int(&j, "bytes", (int64_t)bytes);
        line_int(&j, "tokens", n);
        line_ints(&j, "ids", ids, n);
        line_close(&j);
        return;
    }
    for (int64_t i = 0; i < n; i++) printf("%s%d", i ? " " : "", (int)ids[i]);
    putchar('\n');
}

static int encode(job *k, const char *text, size_t bytes)
{
    int32_t *ids = NULL;
    int64_t n = 0;
    const int32_t flags = (k->template ? LINNET_ENCODE_TEMPLATE : 0) | (k->plain ? LINNET_ENCODE_PLAIN : 0);
    const linnet_status s = linnet_tokenizer_encode_as(k->c, k->t, text, bytes, flags, &ids, &n);
    if (s != LINNET_OK) return say_status(k->c, s);
    k->bytes += (int64_t)bytes;
    k->tokens += n;
    print_ids(k, ids, n, bytes);
    linnet_free(ids);
    return 0;
}

/* ---- ids to text ---- */

static int print_text(job *k, const int32_t *ids, int64_t n)
{
    char *text = NULL;
    size_t bytes = 0;
    json_line j;
    const linnet_status s = linnet_tokenizer_decode(k->c, k->t, ids, n, k->special ? LINNET_DECODE_SPECIAL : 0, &text, &bytes);
    if (s != LINNET_OK) return say_status(k->c, s);
    k->bytes += (int64_t)bytes;
    k->tokens += n;
    if (k->json && !k->count) {
        line_open(&j, stdout);
        line_int(&j, "tokens", n);
        line_bytes(&j, "text", text, bytes);
        line_close(&j);
    } else if (!k->count) {
        fwrite(text, 1, bytes, stdout);
        if (k->lines) putchar('\n');
    }
    linnet_free(text);
    return 0;
}

/* Bytes of a word as a message shows it. */
static int word_length(const char *at)
{
    const size_t n = strcspn(at, " \t\r\n,[]");
    return n < 60 ? (int)n : 60;
}

/* Whole numbers with anything of " \t\r\n,[]" between them. */
static int decode(job *k, const char *text, size_t bytes)
{
    int32_t *ids = calloc(bytes / 2 + 1, sizeof *ids);
    int64_t n = 0;
    int code = ids ? 0 : say_error(NULL, NULL, "out of memory");
    for (const char *at = text, *end = text + bytes; !code;) {
        while (at < end && strchr(" \t\r\n,[]", *at)) at++;
        if (at == end) break;
        char *stop;
        errno = 0;
        const long long id = strtoll(at, &stop, 10);
        if (stop == at || stop > end || errno || id < INT32_MIN || id > INT32_MAX)
            code = say_error(NULL, "Without --decode the input is text.", "\"%.*s\" is no id", word_length(at), at);
        else ids[n++] = (int32_t)id;
        at = stop;
    }
    if (!code) code = print_text(k, ids, n);
    free(ids);
    return code;
}

/* ---- both ---- */

static int work(job *k, const char *text, size_t bytes)
{
    int (*one)(job *, const char *, size_t) = k->decode ? decode : encode;
    if (!k->lines) return one(k, text, bytes);
    int code = 0;
    for (size_t at = 0; at < bytes && !code;) {
        const char *stop = memchr(text + at, '\n', bytes - at);
        const size_t n = stop ? (size_t)(stop - text) - at : bytes - at;
        code = one(k, text + at, n);
        at += n + 1;
    }
    return code;
}

static void print_counts(const job *k)
{
    json_line j;
    if (k->json) {
        line_open(&j, stdout);
        line_int(&j, "bytes", k->bytes);
        line_int(&j, "tokens", k->tokens);
        line_int(&j, "vocabulary", linnet_tokenizer_vocabulary(k->t));
        line_close(&j);
        return;
    }
    printf("bytes            %lld\n", (long long)k->bytes);
    printf("tokens           %lld\n", (long long)k->tokens);
    if (k->tokens) printf("bytes a token    %.3f\n", (double)k->bytes / (double)k->tokens);
    printf("vocabulary       %lld\n", (long long)linnet_tokenizer_vocabulary(k->t));
}

static int run(const command *self, int argc, char **argv)
{
    job k = { 0 };
    machine_args m = MACHINE_ARGS_INIT;
    arg_list words = { 0 };
    const char *text = NULL;
    const arg table[] = {
        { "what", ARG_HEADING },
        { "text", ARG_TEXT, &text, "TEXT", "the text itself, in place of a file", .fallback = "" },
        { "decode", ARG_SWITCH, &k.decode, .help = "the input is ids, with blanks or commas between them: print their text" },
        { "lines", ARG_SWITCH, &k.lines, .help = "every line of the input by itself, without its newline" },
        { "template", ARG_SWITCH, &k.template, .help = "put the special tokens around the text that the tokenizer's file asks for" },
        { "plain", ARG_SWITCH, &k.plain, .help = "what spells a special token in the text is text" },
        { "special", ARG_SWITCH, &k.special, .help = "write special tokens as they are spelled, too; otherwise --decode leaves them out" },
        { "output", ARG_HEADING },
        { "count", ARG_SWITCH, &k.count, .help = "print counts alone" },
        { "pieces", ARG_SWITCH, &k.pieces, .help = "print each id with its text, a JSON line each" },
        { "json", ARG_SWITCH, &k.json, .help = "print JSON lines" },
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 1, 2);
    if (code >= 0) return code;
    if (text && words.count == 2) return say_error(NULL, "Leave one of them out.", "there are two inputs, --text and %s", words.item[1]);
    if (k.decode && (k.template || k.plain || k.pieces)) return say_error(NULL, NULL, "--decode goes without --template, --plain and --pieces");
    if (k.special && !k.decode) return say_error(NULL, NULL, "--special goes with --decode alone");
    char *read = NULL;
    size_t bytes = text ? strlen(text) : 0;
    code = machine_open(&m, &k.c);
    linnet_status s = code ? LINNET_OK : linnet_tokenizer_open(k.c, words.item[0], &k.t);
    if (s != LINNET_OK) code = say_status(k.c, s);
    if (!code && !text) code = read_input(words.count == 2 ? words.item[1] : "-", "the input", &read, &bytes);
    if (!code) code = work(&k, text ? text : read, bytes);
    if (!code && k.count) print_counts(&k);
    free(read);
    linnet_tokenizer_destroy(k.t);
    linnet_context_destroy(k.c);
    return code;
}

const command cmd_tokenize = {
    .name = "tokenize",
    .summary = "text to ids, ids to text, and how many",
    .usage = "TOKENIZER [FILE | - | --text TEXT] [options]",
    .about = "TOKENIZER is a model's folder, a tokenizer.json, RWKV's list of tokens, or \"bytes\". Special tokens that the text spells are "
             "found in it.",
    .example = "linnet tokenize model/ --text 'Hello world' --pieces\nlinnet tokenize model/ book.txt --count\n"
               "linnet tokenize model/ --text 'Hello' | linnet tokenize model/ --decode",
    .run = run,
};

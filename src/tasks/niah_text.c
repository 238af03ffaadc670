#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "hub/corpus.h"
#include "tasks/niah.h"
#include "tasks/task.h"

static const char noise[] = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
enum { DEPTHS = 40 };

/* ---- words ------------------------------------------------------------------------------------------------------------------------------ */

/* The pieces of a text, cut in place at newlines, or at any white space; empty ones are dropped. */
static linnet_status cut(lnt_ctx *c, char *text, bool lines, lnt_arena *arena, char ***out, int64_t *n)
{
    int64_t count = 0;
    for (int pass = 0; pass < 2; pass++) {
        count = 0;
        for (char *p = text; *p;) {
            size_t w = lines ? *p == '\n' || *p == '\r' : lnt_space_at(p);
            if (w) {
                p += w;
                continue;
            }
            char *begin = p;
            while (*p && !(w = lines ? *p == '\n' || *p == '\r' : lnt_space_at(p))) p++;
            if (pass) {
                (*out)[count] = lnt_arena_printf(arena, "%.*s", (int)(p - begin), begin);
                if (!(*out)[count]) return lnt_fail_memory(c, (size_t)(p - begin));
            }
            count++;
        }
        if (!pass && !(*out = lnt_arena_alloc(arena, lnt_bytes(lnt_bytes_plus((size_t)count, 1), sizeof **out))))
            return lnt_fail_memory(c, lnt_bytes((size_t)count, sizeof **out));
    }
    *n = count;
    return LINNET_OK;
}

static linnet_status load_list(lnt_ctx *c, const char *folder, const char *name, lnt_arena *arena, char ***out, int64_t *n)
{
    char path[4096], *text;
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    LNT_TRY(lnt_file_read(c, path, 1 << 26, &text, &bytes));
    const linnet_status s = cut(c, text, true, arena, out, n);
    lnt_free(text);
    LNT_TRY(s);
    return *n ? LINNET_OK : lnt_fail(c, LINNET_EFORMAT, "%s has no words", path);
}

linnet_status lnt_niah_load(lnt_ctx *c, const char *words, const char *essays, lnt_arena *arena, lnt_niah_texts *t)
{
    char *text;
    size_t bytes;
    *t = (lnt_niah_texts){0};
    LNT_TRY(load_list(c, words, "adjectivelist.txt", arena, &t->adjective, &t->n_adjectives));
    LNT_TRY(load_list(c, words, "nounlist.txt", arena, &t->noun, &t->n_nouns));
    if (!essays) return LINNET_OK;
    LNT_TRY(lnt_corpus_text(c, &(lnt_texts){.paths = &essays, .n_paths = 1}, (size_t)1 << 28, &text, &bytes));
    const linnet_status s = cut(c, text, false, arena, &t->word, &t->n_words);
    lnt_free(text);
    LNT_TRY(s);
    return t->n_words ? LINNET_OK : lnt_fail(c, LINNET_EFORMAT, "%s has no words", essays);
}

/* ---- needles ------------------------------------------------------------------------------------------------------------------------------ */

lnt_needle lnt_niah_draw(const lnt_niah_texts *t, int kind, uint64_t seed, uint64_t index)
{
    lnt_needle z = {.depth = -1};
    lnt_rng r = lnt_task_rng("niah", seed, kind + 1, index);
    const char *adjective = t->adjective[lnt_rng_below(&r, (uint64_t)t->n_adjectives)], *noun = t->noun[lnt_rng_below(&r, (uint64_t)t->n_nouns)];
    snprintf(z.key, sizeof z.key, "%.46s-%.46s", adjective, noun);
    if (kind == LNT_NIAH_UUIDS) { /* version 4: 122 random bits */
        const uint64_t a = lnt_rng_u64(&r), b = lnt_rng_u64(&r);
        snprintf(z.value, sizeof z.value, "%08x-%04x-4%03x-%04x-%012llx", (unsigned)(a >> 32), (unsigned)(a >> 16 & 0xffff), (unsigned)(a & 0xfff),
                 (unsigned)(0x8000 | (b >> 48 & 0x3fff)), (unsigned long long)(b & 0xffffffffffffu));
    } else
        snprintf(z.value, sizeof z.value, "%llu", (unsigned long long)(1000000 + lnt_rng_below(&r, 9000000)));
    if (kind != LNT_NIAH_NOISE) z.depth = (int)lround(100.0 * (double)lnt_rng_below(&r, DEPTHS) / (DEPTHS - 1));
    z.rng = r;
    return z;
}

/* ---- haystacks ------------------------------------------------------------------------------------------------------------------------------ */

static bool is_upper(char x) { return x >= 'A' && x <= 'Z'; }

/* Words that end in a full stop and no sentence. */
static bool abbreviates(const char *word, size_t n)
{
    static const char *const known[] = {"Mr.", "Mrs.", "Ms.", "Dr.", "St.", "vs.", "e.g.", "i.e.", "etc.", "cf.", "Inc.", "Jr.", "Prof.", "No."};
    if (n == 2 && is_upper(word[0])) return true; /* an initial */
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i]) == n && !memcmp(known[i], word, n)) return true;
    return false;
}

/* Whether a sentence ends with word i: at . ! or ?, quotes and brackets behind it or not, when the next does not begin with a small letter. */
static bool ends_sentence(const lnt_niah_texts *t, int64_t i, int64_t m)
{
    const char *w = t->word[i % t->n_words], *next = i + 1 < m ? t->word[(i + 1) % t->n_words] : NULL;
    size_t n = strlen(w);
    while (n && strchr("\"')]", w[n - 1])) n--;
    if (!n || !strchr(".!?", w[n - 1]) || abbreviates(w, n)) return false;
    return !next || !(*next >= 'a' && *next <= 'z');
}

static void put_needle(lnt_text *out, const lnt_needle *z, int kind)
{
    lnt_text_put(out, "One of the special magic ");
    lnt_text_put(out, kind == LNT_NIAH_UUIDS ? "uuids" : "numbers");
    lnt_text_put(out, " for ");
    lnt_text_put(out, z->key);
    lnt_text_put(out, " is: ");
    lnt_text_put(out, z->value);
    lnt_text_put(out, ".");
}

/* Before which of m repeats. */
static int64_t place_of(const lnt_needle *z, int64_t m)
{
    lnt_rng r = z->rng;
    return m ? (int64_t)lnt_rng_below(&r, (uint64_t)m) : 0;
}

double lnt_niah_depth(int kind, const lnt_needle *z, int64_t m)
{
    return kind != LNT_NIAH_NOISE ? z->depth : m ? 100 * (double)place_of(z, m) / (double)m : 0;
}

static void put_noise(lnt_text *out, const lnt_needle *z, int kind, int64_t m)
{
    const int64_t place = place_of(z, m);
    for (int64_t i = 0; i < m || i == 0; i++) {
        if (i) lnt_text_put(out, "\n");
        if (i == place) {
            put_needle(out, z, kind);
            if (m) lnt_text_put(out, "\n");
        }
        if (m) lnt_text_put(out, noise);
    }
}

static void put_essays(const lnt_niah_texts *t, lnt_text *out, const lnt_needle *z, int kind, int64_t m)
{
    int64_t sentences = 0, at = 0;
    for (int64_t i = 0; i < m; i++) sentences += ends_sentence(t, i, m) || i + 1 == m;
    const int64_t place = sentences * z->depth / 100;
    bool begins = true;
    for (int64_t i = 0; i < m; i++) {
        if (begins && at == place) {
            put_needle(out, z, kind);
            lnt_text_put(out, " ");
        }
        lnt_text_put(out, t->word[i % t->n_words]);
        begins = ends_sentence(t, i, m) || i + 1 == m;
        at += begins;
        if (i + 1 < m) lnt_text_put(out, " ");
    }
    if (at == place) { /* behind the last sentence */
        if (m) lnt_text_put(out, " ");
        put_needle(out, z, kind);
    }
}

char *lnt_niah_prompt(const lnt_niah_texts *t, int kind, const lnt_needle *z, int64_t m, lnt_arena *arena)
{
    const char *what = kind == LNT_NIAH_UUIDS ? "uuid" : "number";
    lnt_text out = {.arena = arena};
    char words[512];
    snprintf(words, sizeof words,
             "A special magic %s is hidden within the following text. Make sure to memorize it. I will quiz you about the %s afterwards.\n", what,
             what);
    lnt_text_put(&out, words);
    if (kind == LNT_NIAH_NOISE) put_noise(&out, z, kind, m);
    else put_essays(t, &out, z, kind, m);
    snprintf(words, sizeof words,
             "\nWhat is the special magic %s for %s mentioned in the provided text? The special magic %s for %s mentioned in the provided text is",
             what, z->key, what, z->key);
    lnt_text_put(&out, words);
    return out.text;
}

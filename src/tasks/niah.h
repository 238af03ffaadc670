/* Single needles in a haystack: the text of a sample. */
#ifndef LNT_TASKS_NIAH_H
#define LNT_TASKS_NIAH_H

#include "core/rng.h"
#include "tasks/texts.h"

/* Which of RULER's: S-NIAH-1, -2, -3. */
enum { LNT_NIAH_NOISE, LNT_NIAH_ESSAYS, LNT_NIAH_UUIDS };

typedef struct {
    char **adjective, **noun;
    int64_t n_adjectives, n_nouns;
    char **word;           /* of the essays */
    int64_t n_words;
} lnt_niah_texts;

typedef struct {
    char key[96], value[40];
    int depth;             /* per cent, of 40 places; -1: by index, among repeats */
    lnt_rng rng;           /* as it stands behind the draws above */
} lnt_needle;

/* The lines of DIR/adjectivelist.txt and nounlist.txt; with `essays`, the words of that folder's .txt files in the order of their names. */
linnet_status lnt_niah_load(lnt_ctx *c, const char *words, const char *essays, lnt_arena *arena, lnt_niah_texts *t);
lnt_needle lnt_niah_draw(const lnt_niah_texts *t, int kind, uint64_t seed, uint64_t index);
/* How much of the hay stands before the needle, per cent. */
double lnt_niah_depth(int kind, const lnt_needle *needle, int64_t m);
/* The whole prompt with m repeats of the noise, or m words of the essays. NULL: no memory. */
char *lnt_niah_prompt(const lnt_niah_texts *t, int kind, const lnt_needle *needle, int64_t m, lnt_arena *arena);

#endif

/* How near a text is to a reference, as benchmarks measure it. */
#ifndef LNT_TASKS_NEARNESS_H
#define LNT_TASKS_NEARNESS_H

#include "hub/bytemap.h"
#include "tasks/texts.h"

/* Each returns LINNET_ENOMEM alone; *out is from 0 to 1. */

/* F1 of words as question answering counts them (SQuAD): small letters, without punctuation and the articles a, an, the. */
linnet_status lnt_word_f1(lnt_ctx *c, const char *text, const char *reference, double *out);
/* ROUGE-L, its F (Lin 2004): the longest common subsequence of words, which are runs of a to z and digits after A to Z became small. */
linnet_status lnt_rouge_l(lnt_ctx *c, const char *text, const char *reference, double *out);
/* Twice the longest common subsequence of characters over the sum of lengths, rounded to a hundredth; 1: equal. */
linnet_status lnt_edit_similarity(lnt_ctx *c, const char *text, const char *reference, double *out);

/* BLEU of a corpus (Papineni et al. 2002) as sacreBLEU counts it: up to four words, tokens of mteval's 13a, a precision of no match halved once
 * more each (smoothing "exp"). Zero-initialise; lnt_bleu_free. */
typedef struct {
    double right[4], all[4]; /* runs of 1 to 4 tokens */
    double length, reference;
} lnt_bleu;
linnet_status lnt_bleu_add(lnt_ctx *c, lnt_bleu *b, const char *text, const char *reference);
double lnt_bleu_score(const lnt_bleu *b); /* 0 to 100 */
/* The text as 13a's tokens with a blank between two, the arena's; NULL: no memory. */
char *lnt_tokens_13a(lnt_arena *arena, const char *text);

/* Whether scores of models with n windows, in the order of their size, and of a full one say that a task is global: the score rises with the window,
 * and no window up to 64 beats the full model (von Oswald et al., arXiv 2506.05233). */
bool lnt_is_global(const int64_t *window, const double *score, int n, double full);

#endif

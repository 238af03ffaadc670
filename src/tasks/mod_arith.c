/* Arithmetic modulo 5, without brackets and with: the formal-language suite of xLSTM as used by Grazzi et al. (arXiv 2411.12537). */
#include "tasks/study.h"

typedef struct {
    bool brackets, mult;
    int64_t least, most, test_least, test_most;
    lnt_study study;
} options;

enum { MODULUS = 5, LONGEST = 1 << 16 };

static const lnt_option keys[] = {
    LNT_SWITCH(options, brackets, false, "nested expressions, (a - (-3)) + 2"),
    LNT_SWITCH(options, mult, false, "with brackets: products too"),
    LNT_INT(options, least, 3, LONGEST, 3, "tokens of the shortest example to learn from, its answer counted; with brackets at least 5"),
    LNT_INT(options, most, 5, LONGEST, 40, "of the longest"),
    LNT_INT(options, test_least, 3, LONGEST, 40, "of the shortest of the test"),
    LNT_INT(options, test_most, 5, LONGEST, 256, "of the longest"),
    LNT_STUDY_ROWS(options, 4000, 256, 1024, 0.1),
};
static const lnt_task_text texts[] = {LNT_STUDY_TEXT(options, "1e-3")};
static const char *const paper[] = {"steps=100000", "test_examples=8192", "warmup=0.1", "floor=1e-3", "enough=2", NULL};
static const char *const size[] = {"num_hidden_layers=2", "hidden_size=128", "num_heads=4", NULL};
static const char *const paper_size[] = {NULL}; /* the same */

static int32_t modulo(int64_t x) { return (int32_t)(((x % MODULUS) + MODULUS) % MODULUS); }

/* ---- without brackets: 0 pad, 1 + 2 - 3 * 4 =, digits 5 .. 9 ---- */

/* Digits at even places, operators at odd ones; the one before the last becomes '=', the last the value, which is no input. n is odd. */
static int64_t plain(lnt_rng *r, int64_t n, int32_t *ids, int32_t *answer)
{
    int64_t sum = 0, product = 0;
    int32_t sign = 1;
    for (int64_t i = 0; i + 2 < n; i++) {
        if (i % 2 == 0) {
            const int32_t digit = (int32_t)lnt_rng_below(r, MODULUS);
            product = i && ids[i - 1] == 3 ? modulo(product * digit) : digit;
            ids[i] = MODULUS + digit;
        } else {
            ids[i] = 1 + (int32_t)lnt_rng_below(r, 3);
            if (ids[i] == 3) continue;
            sum += sign * product;
            sign = ids[i] == 1 ? 1 : -1;
        }
    }
    ids[n - 2] = 4;
    *answer = MODULUS + modulo(sum + sign * product);
    return n - 1;
}

/* ---- with brackets: digits 0 .. 4, 5 + 6 - 7 * 8 ( 9 ) 10 =, 11 pad ---- */

enum { PLUS = MODULUS, MINUS, TIMES, OPEN, CLOSE, EQUALS };

/* An expression of exactly n tokens at `out`; its value. At most n / 4 calls deep. */
static int32_t expression(lnt_rng *r, const options *o, int64_t n, int32_t *out)
{
    const int32_t digit = n <= 4 ? (int32_t)lnt_rng_below(r, MODULUS) : 0;
    switch (n) {
    case 1: out[0] = digit; return digit;
    case 2: out[0] = MINUS; out[1] = digit; return modulo(-digit);
    case 3: out[0] = OPEN; out[1] = digit; out[2] = CLOSE; return digit;
    case 4: out[0] = OPEN; out[1] = MINUS; out[2] = digit; out[3] = CLOSE; return modulo(-digit);
    default: break;
    }
    const int64_t left = 1 + (int64_t)lnt_rng_below(r, (uint64_t)(n - 4));
    const int32_t op = PLUS + (int32_t)lnt_rng_below(r, o->mult ? 3 : 2);
    out[0] = OPEN;
    const int32_t a = expression(r, o, left, out + 1);
    out[1 + left] = op;
    const int32_t b = expression(r, o, n - 3 - left, out + 2 + left);
    out[n - 1] = CLOSE;
    return modulo(op == PLUS ? a + b : op == MINUS ? a - b : a * b);
}

static int64_t example(const lnt_source *s, int set, uint64_t index, int32_t *ids, int32_t *targets)
{
    const options *o = s->own;
    lnt_rng r = lnt_task_rng(s->name, s->seed, set, index);
    const int64_t lo = set ? o->test_least : o->least, hi = set ? o->test_most : o->most;
    int64_t n;
    int32_t answer;
    if (o->brackets) {
        n = lo + (int64_t)lnt_rng_below(&r, (uint64_t)(hi - lo + 1));
        if (n < 5) n = 5;
        answer = expression(&r, o, n - 3, ids);
        ids[n - 3] = EQUALS;
        n -= 2;
    } else {
        const int64_t u = (lo + 1) / 2 + (int64_t)lnt_rng_below(&r, (uint64_t)((hi + 1) / 2 - (lo + 1) / 2 + 1));
        n = plain(&r, 2 * u - 1, ids, &answer);
    }
    for (int64_t i = 0; i < n; i++) targets[i] = -1;
    targets[n - 1] = answer;
    return n;
}

static linnet_status source(lnt_ctx *c, const void *values, lnt_arena *arena, lnt_source *s)
{
    const options *o = values;
    (void)arena;
    if (o->least > o->most) return lnt_fail_option(c, "most", "is %lld, expected at least %lld", (long long)o->most, (long long)o->least);
    if (o->test_least > o->test_most)
        return lnt_fail_option(c, "test_most", "is %lld, expected at least %lld", (long long)o->test_most, (long long)o->test_least);
    if (o->mult && !o->brackets)
        return lnt_fail_option(c, "mult", "is true without brackets, whose expressions it is about: plain ones have products anyway");
    s->vocabulary = o->brackets ? 12 : 10;
    s->n_sets = 2;
    s->set[0].longest = o->most;
    s->set[1].longest = o->test_most;
    s->chance = 1.0 / MODULUS;
    s->example = example;
    s->own = (void *)(uintptr_t)o;
    return LINNET_OK;
}

static linnet_status run(lnt_run *r) { return lnt_study_task(r, &((const options *)r->values)->study); }

static const char *const *also(const void *values)
{
    static const char *const sizes[] = {"hidden_size=512", NULL}; /* of layers of flash-linear-attention */
    (void)values;
    return sizes;
}

const lnt_task lnt_task_mod_arith = {
    .info = {"mod-arith", "the value of an expression modulo 5, on longer expressions",
             "One answer an example, behind its equals sign: sums, differences and products from left to right with products first, or nested in "
             "brackets. scaled_accuracy is 0 for a guess and 1 for all right.\nThe size is the paper's, but for layers of flash-linear-attention, "
             "which have --width 512 and --learning-rate 1e-2 there.",
             "Grazzi et al. 2024, arXiv 2411.12537", "linnet task mod-arith --mixer delta_net --set allow_neg_eigval=true --brackets true",
             LINNET_TASK_TRAINS, 0, 0, "", size, paper_size,
             "Training is in float32 unless --dtype bf16 makes it the suite's bf16."},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 1,
    .paper = paper,
    .also = also,
    .run = run,
    .source = source,
};

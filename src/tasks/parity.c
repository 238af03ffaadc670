/* Parity of a bit string, learnt on short ones and asked of long ones: the formal-language suite of xLSTM as used by Grazzi et al. (arXiv
 * 2411.12537). */
#include "tasks/study.h"

typedef struct {
    int64_t least, most, test_least, test_most;
    lnt_study study;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, least, 2, 1 << 20, 3, "tokens of the shortest example to learn from, its answer counted"),
    LNT_INT(options, most, 2, 1 << 20, 40, "of the longest"),
    LNT_INT(options, test_least, 2, 1 << 20, 40, "of the shortest of the test"),
    LNT_INT(options, test_most, 2, 1 << 20, 256, "of the longest"),
    LNT_STUDY_ROWS(options, 4000, 256, 1024, 0),
};
static const lnt_task_text texts[] = {LNT_STUDY_TEXT(options, "1e-3")};
static const char *const paper[] = {"steps=20000", "test_examples=8192", "warmup=0.1", "floor=1e-3", "enough=2", NULL};
static const char *const size[] = {"num_hidden_layers=2", "hidden_size=128", "num_heads=4", NULL};
static const char *const paper_size[] = {NULL}; /* the same */

/* n tokens, the last of them the answer, which is no input: it is predicted from the one before. Ids: 0 pad, 1 and 2 the bits. */
static int64_t example(const lnt_source *s, int set, uint64_t index, int32_t *ids, int32_t *targets)
{
    const options *o = s->own;
    lnt_rng r = lnt_task_rng(s->name, s->seed, set, index);
    const int64_t lo = set ? o->test_least : o->least, hi = set ? o->test_most : o->most;
    const int64_t bits = lo + (int64_t)lnt_rng_below(&r, (uint64_t)(hi - lo + 1)) - 1;
    int32_t sum = 0;
    for (int64_t i = 0; i < bits; i++) {
        const int32_t bit = (int32_t)lnt_rng_below(&r, 2);
        sum ^= bit;
        ids[i] = bit + 1;
        targets[i] = -1;
    }
    targets[bits - 1] = sum + 1;
    return bits;
}

static linnet_status source(lnt_ctx *c, const void *values, lnt_arena *arena, lnt_source *s)
{
    const options *o = values;
    (void)arena;
    if (o->least > o->most) return lnt_fail_option(c, "most", "is %lld, expected at least %lld", (long long)o->most, (long long)o->least);
    if (o->test_least > o->test_most)
        return lnt_fail_option(c, "test_most", "is %lld, expected at least %lld", (long long)o->test_most, (long long)o->test_least);
    s->vocabulary = 3;
    s->n_sets = 2;
    s->set[0].longest = o->most - 1;
    s->set[1].longest = o->test_most - 1;
    s->chance = 0.5;
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

const lnt_task lnt_task_parity = {
    .info = {"parity", "whether the ones of a string are odd in number, on longer strings",
             "One answer an example, behind its last bit. scaled_accuracy is 0 for a guess and 1 for all right. A recurrence needs an eigenvalue "
             "of -1 for it: --set allow_neg_eigval=true, where a layer has that key.\nThe size is the paper's, but for layers of "
             "flash-linear-attention, which have --width 512 there; its xLSTM has --weight-decay 0.1.",
             "Grazzi et al. 2024, arXiv 2411.12537", "linnet task parity --mixer delta_net --set allow_neg_eigval=true", LINNET_TASK_TRAINS, 0, 0, "",
             size, paper_size,
             "Training is in float32 unless --dtype bf16 makes it the suite's bf16."},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 1,
    .paper = paper,
    .also = also,
    .run = run,
    .source = source,
};

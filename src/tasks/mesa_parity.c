/* Running parity: of all bits so far, at every position (MesaNet, arXiv 2506.05233, appendix H). */
#include "tasks/study.h"

typedef struct {
    int64_t length, test_length;
    lnt_study study;
} options;

static const lnt_option keys[] = {
    LNT_INT(options, length, 1, 1 << 20, 40, "bits of an example to learn from"),
    LNT_INT(options, test_length, 1, 1 << 20, 256, "bits of an example of the test"),
    LNT_STUDY_ROWS(options, 2000, 64, 256, 0.03),
};
static const lnt_task_text texts[] = {LNT_STUDY_TEXT(options, "1e-3")};
static const char *const paper[] = {"steps=10000", "batch=256", "enough=2", NULL};
static const char *const size[] = {"num_hidden_layers=2", "hidden_size=128", "num_heads=4", "head_dim=128", NULL};
static const char *const paper_size[] = {"lambda_lower_bound=49", NULL};

static int64_t example(const lnt_source *s, int set, uint64_t index, int32_t *ids, int32_t *targets)
{
    lnt_rng r = lnt_task_rng(s->name, s->seed, set, index);
    const int64_t n = s->set[set].longest;
    int32_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)lnt_rng_below(&r, 2);
        targets[i] = sum ^= ids[i];
    }
    return n;
}

static linnet_status source(lnt_ctx *c, const void *values, lnt_arena *arena, lnt_source *s)
{
    const options *o = values;
    (void)c;
    (void)arena;
    s->vocabulary = 2;
    s->n_sets = 2;
    s->set[0].longest = o->length;
    s->set[1].longest = o->test_length;
    s->chance = 0.5;
    s->example = example;
    return LINNET_OK;
}

static linnet_status run(lnt_run *r) { return lnt_study_task(r, &((const options *)r->values)->study); }

const lnt_task lnt_task_mesa_parity = {
    .info = {"mesa-parity", "the parity of all bits so far, on longer strings",
             "The page shows the accuracy over the position, within and beyond the length learnt from. exact is the share of strings with every "
             "answer right.\nThe paper has MesaNet alone, its Lambda from 49, with gamma from 0 and from -1: --set allow_neg_gamma=true.",
             "von Oswald et al. 2025, MesaNet, arXiv 2506.05233", "linnet task mesa-parity --mixer delta_net --set allow_neg_eigval=true",
             LINNET_TASK_TRAINS, 0, 0, "", size, paper_size, NULL},
    .options = LNT_OPTIONS(options, keys),
    .texts = texts,
    .n_texts = 1,
    .paper = paper,
    .run = run,
    .source = source,
};

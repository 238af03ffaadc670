/* Fine-tuning: a run that begins with a folder's model lowers the loss of every small model of ours, from where that folder has it, and leaves a
 * folder with the configuration of the one it began with, which holds the better model. */
#include "model_recipes.h"
#include "one_run.h"

enum { WINDOW = 64, BYTES = 256, STEPS = 10 };

static linnet_context *c;
static char where[] = "/tmp/linnet-finetune-XXXXXX";

typedef struct {
    double first, last;
} losses;

static int note(void *user, const linnet_train_progress *p)
{
    losses *l = user;
    if (p->step == 1) l->first = p->loss;
    l->last = p->loss;
    return 0;
}

/* Nats a byte of the first bytes of the text, by the model that a folder holds. */
static double loss_of(const char *name, const char *folder, const char *text)
{
    static float logits[WINDOW * BYTES];
    int64_t ids[WINDOW];
    linnet_model *m;
    double sum = 0;
    for (int i = 0; i < WINDOW; i++) ids[i] = (unsigned char)text[i];
    if (linnet_model_load(c, folder, LINNET_F32, &m) != LINNET_OK) fail_msg("%s: %s", name, linnet_error_message(c));
    if (linnet_model_logits(c, m, ids, 1, WINDOW, logits) != LINNET_OK) fail_msg("%s: %s", name, linnet_error_message(c));
    for (int t = 0; t + 1 < WINDOW; t++) {
        double all = 0;
        for (int v = 0; v < BYTES; v++) all += exp((double)logits[t * BYTES + v]);
        sum += log(all) - (double)logits[t * BYTES + ids[t + 1]];
    }
    linnet_model_destroy(m);
    return sum / (WINDOW - 1);
}

static void check(const recipe *r, const char *path, const char *text)
{
    char before[64], after[64], config[2][96];
    losses l = {0};
    linnet_model *m;
    linnet_config *k = config_of(c, r);
    snprintf(before, sizeof before, "%s/before", where);
    snprintf(after, sizeof after, "%s/after", where);
    assert_int_equal(linnet_config_set(c, k, "vocab_size", "256"), LINNET_OK);
    if (linnet_model_create(c, k, LINNET_F32, 5, &m) != LINNET_OK) fail_msg("%s: %s", r->name, linnet_error_message(c));
    assert_int_equal(linnet_model_save(c, m, before), LINNET_OK);
    linnet_model_destroy(m);
    linnet_config_destroy(k);
    linnet_train_options o = small_run(&path, after);
    o.init = before;
    o.tokenizer = "bytes";
    o.steps = STEPS;
    o.eval_every = o.save_every = 0;
    o.eval_tokens = 64;
    o.learning_rate = 3e-3;
    o.progress = note;
    o.user = &l;
    if (linnet_train(c, NULL, LINNET_F32, &o) != LINNET_OK) fail_msg("%s: %s", r->name, linnet_error_message(c));
    const double was = loss_of(r->name, before, text), is = loss_of(r->name, after, text);
    if (!(l.last < l.first - 0.1 && is < was - 0.1))
        fail_msg("%s: from %.3f to %.3f nats in training, from %.3f to %.3f of the folders", r->name, l.first, l.last, was, is);
    for (int i = 0; i < 2; i++) snprintf(config[i], sizeof config[i], "%s/config.json", i ? after : before);
    char *a = get_file(config[0], NULL), *b = get_file(config[1], NULL);
    assert_string_equal(a, b);
    free(a);
    free(b);
    remove_folder(before);
    remove_folder(after);
}

static void every_model_gets_better(void **state)
{
    (void)state;
    const char *path = put_text(where);
    char *text = get_file(path, NULL);
    for (int i = 0; i < RECIPES; i++) check(&recipes[i], path, text);
    free(text);
}

static int begin(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(where));
    return linnet_context_create(NULL, &c);
}

static int end(void **state)
{
    (void)state;
    linnet_context_destroy(c);
    remove_folder(where);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_model_gets_better)};
    return cmocka_run_group_tests(tests, begin, end);
}

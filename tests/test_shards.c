/* Models in several files: the same logits as from one, and one message each for a file that is missing or cut off, an index that lies, a shape that
 * disagrees, a type that is not offered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hub/safetensors.h"

enum { T = 5, V = 61 };

static linnet_context *c;
static char folder[64];

static void path_of(char *path, const char *name) { snprintf(path, 128, "%s/%s", folder, name); }

static void write_text(const char *name, const char *text)
{
    char path[128];
    path_of(path, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A tiny model in one file, and its tensors in two: every other one, and the rest. `bad`: one says another shape. The index names the first's for
 * `liar`, and leaves `unnamed` out. */
static void cut(const char *liar, const char *unnamed, bool bad)
{
    char path[128], out[128], index[8192] = "{\"metadata\": {}, \"weight_map\": {";
    lnt_safetensors *all;
    lnt_st_tensor part[2][64];
    int n[2] = {0, 0}, named = 0;
    path_of(path, "model.whole");
    assert_int_equal(lnt_safetensors_open(c, path, &all), LINNET_OK);
    for (int i = 0; i < all->n; i++) {
        const char *name = all->tensors[i].name;
        lnt_st_tensor *t = &part[i % 2][n[i % 2]++];
        *t = all->tensors[i];
        if (bad && t->ndim == 2 && t->dim[0] % 2 == 0) t->dim[0] /= 2, t->dim[1] *= 2, bad = false;
        if (unnamed && !strcmp(name, unnamed)) continue;
        snprintf(index + strlen(index), sizeof index - strlen(index), "%s\"%s\": \"part-%d.safetensors\"", named++ ? ", " : "", name,
                 liar && !strcmp(name, liar) ? 1 - i % 2 : i % 2);
    }
    strcat(index, "}}");
    for (int i = 0; i < 2; i++) {
        char name[32];
        snprintf(name, sizeof name, "part-%d.safetensors", i);
        path_of(out, name);
        assert_int_equal(lnt_safetensors_write(c, out, n[i], part[i], 0, NULL), LINNET_OK);
    }
    write_text("model.safetensors.index.json", index);
    lnt_safetensors_close(all);
}

static void refused(const char *message)
{
    linnet_model *m;
    assert_int_equal(linnet_model_load(c, folder, LINNET_F32, &m), LINNET_EFORMAT);
    if (!strstr(linnet_error_message(c), message)) fail_msg("\"%s\", expected \"%s\"", linnet_error_message(c), message);
    if (!strstr(linnet_error_detail(c), folder)) fail_msg("no file in \"%s\"", linnet_error_detail(c));
}

static int make(void **state)
{
    char path[128], whole[128];
    linnet_config *k;
    linnet_model *m;
    (void)state;
    strcpy(folder, "/tmp/linnet-shards-XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(linnet_context_create(NULL, &c), LINNET_OK);
    assert_int_equal(linnet_config_create(c, "llama", &k), LINNET_OK);
    static const char *const set[][2] = {{"num_hidden_layers", "2"}, {"hidden_size", "32"}, {"vocab_size", "61"}, {"num_heads", "2"},
                                         {"intermediate_size", "40"}};
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) assert_int_equal(linnet_config_set(c, k, set[i][0], set[i][1]), LINNET_OK);
    assert_int_equal(linnet_model_create(c, k, LINNET_F32, 1, &m), LINNET_OK);
    assert_int_equal(linnet_model_save(c, m, folder), LINNET_OK);
    linnet_model_destroy(m);
    linnet_config_destroy(k);
    path_of(path, "model.safetensors");
    path_of(whole, "model.whole");
    return rename(path, whole);
}

static int clean(void **state)
{
    char cmd[96];
    (void)state;
    linnet_context_destroy(c);
    snprintf(cmd, sizeof cmd, "rm -r %s", folder);
    return system(cmd);
}

static void the_same_model(void **state)
{
    const int64_t ids[T] = {3, 1, 4, 1, 5};
    float one[T * V], two[T * V];
    char path[128], whole[128];
    linnet_model *m;
    (void)state;
    cut(NULL, NULL, false);
    assert_int_equal(linnet_model_load(c, folder, LINNET_F32, &m), LINNET_OK);
    assert_int_equal(linnet_model_logits(c, m, ids, 1, T, two), LINNET_OK);
    linnet_model_destroy(m);
    path_of(path, "model.safetensors");
    path_of(whole, "model.whole");
    assert_int_equal(link(whole, path), 0);
    assert_int_equal(linnet_model_load(c, folder, LINNET_F32, &m), LINNET_OK);
    assert_int_equal(linnet_model_logits(c, m, ids, 1, T, one), LINNET_OK);
    linnet_model_destroy(m);
    assert_int_equal(unlink(path), 0);
    assert_memory_equal(one, two, sizeof one);
}

static void refusals(void **state)
{
    char path[128];
    (void)state;
    cut("model.norm.weight", NULL, false);
    refused("tensor \"model.norm.weight\" is not in \"part-");
    cut(NULL, "lm_head.weight", false);
    refused("tensor \"lm_head.weight\" lies in \"");
    cut(NULL, NULL, true);
    refused("has shape [");
    cut(NULL, NULL, false);
    path_of(path, "part-1.safetensors");
    assert_int_equal(truncate(path, 5000), 0);
    refused("but the file holds");
    assert_int_equal(unlink(path), 0);
    refused("the file \"part-1.safetensors\" with tensor \"");
    write_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../elsewhere\"}}");
    refused("the file of tensor \"a\" is no name of a file");
    write_text("model.safetensors.index.json", "{\"weight_map\": []}");
    refused("weight_map is not an object");
    write_text("model.safetensors.index.json", "{\"weight_map\": {}}");
    refused("is missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_model), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, make, clean);
}

/* config.json: what is read is written back, defaults are the published ones, and everything that would change the function is refused by name. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/file.h"
#include "model/config.h"
#include "one_file.h"

static int setup(void **state)
{
    (void)state;
    return open_folder("config.json");
}

static void write_file(const char *text)
{
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static linnet_status load(const char *text, linnet_config **out)
{
    write_file(text);
    return linnet_config_load(ctx, file, out);
}

static const char *const types[] = {"linear_attn",    "retnet",      "simple_gla",     "delta_net",
                                    "gated_deltanet", "transformer", "equal_backbone", "mesa_net"};
enum { TYPES = sizeof types / sizeof *types };

static void defaults_round_trip(void **state)
{
    (void)state;
    for (int i = 0; i < TYPES; i++) {
        linnet_config *a, *b;
        assert_int_equal(linnet_config_create(ctx, types[i], &a), LINNET_OK);
        assert_int_equal(lnt_config_check(ctx, a), LINNET_OK);
        const char *text = linnet_config_json(a);
        assert_non_null(text);
        assert_int_equal(load(text, &b), LINNET_OK);
        assert_string_equal(text, linnet_config_json(b));
        for (int p = 0; linnet_preset_name(p); p++) {
            assert_non_null(linnet_preset_summary(p));
            assert_int_equal(linnet_config_preset(ctx, b, linnet_preset_name(p)), LINNET_OK);
            assert_int_equal(lnt_config_check(ctx, b), LINNET_OK);
        }
        assert_int_equal(linnet_config_preset(ctx, b, "huge"), LINNET_EINVAL);
        linnet_config_destroy(a);
        linnet_config_destroy(b);
    }
    assert_null(linnet_preset_name(-1));
    linnet_config *none;
    assert_int_equal(linnet_config_create(ctx, "perceptron", &none), LINNET_EINVAL);
    assert_non_null(strstr(linnet_error_message(ctx), "\"perceptron\" is not offered, expected one of linear_attn, retnet"));
}

/* The defaults written in flash-linear-attention's configuration classes. */
static void published_defaults(void **state)
{
    (void)state;
    lnt_config k;
    assert_int_equal(lnt_config_defaults(ctx, "gated_deltanet", &k), LINNET_OK);
    assert_int_equal(k.head_dim, 256);
    assert_int_equal(k.num_heads, 6);
    assert_int_equal(k.num_hidden_layers, 21);
    assert_true(k.expand_v == 2 && k.use_gate && k.use_short_conv && !k.allow_neg_eigval && k.norm_eps == 1e-6 && k.initializer_range == 0.02);
    assert_int_equal(k.bos_token_id, 1);
    assert_int_equal(k.pad_token_id, -1);
    lnt_config_defaults(ctx, "delta_net", &k);
    assert_true(k.num_heads == 16 && !k.use_gate && k.use_beta && k.expand_k == 1);
    assert_string_equal(k.qk_norm, "l2");
    assert_string_equal(k.qk_activation, "silu");
    lnt_config_defaults(ctx, "retnet", &k);
    assert_true(k.num_heads == 8 && k.expand_v == 2 && k.hidden_ratio == 2 && k.use_output_gate);
    assert_string_equal(k.feature_map, "");
    lnt_config_defaults(ctx, "linear_attn", &k);
    assert_string_equal(k.feature_map, "elementwise_product");
    lnt_config_defaults(ctx, "transformer", &k);
    assert_true(k.num_heads == 32 && k.rope_theta == 10000 && k.window_size == 0);
    assert_string_equal(k.qk_norm, "false");
    lnt_config_defaults(ctx, "equal_backbone", &k);
    assert_true(k.logit_soft_cap == 30 && k.tie_word_embeddings && k.head_dim == 128 && k.num_heads == 6 && k.hidden_size == 768);
    assert_int_equal(lnt_config_mlp_width(&k), 3 * 768);
}

static void mlp_width(void **state)
{
    (void)state;
    static const int64_t cases[][3] = {{768, 4, 2048}, {1024, 4, 2816}, {2048, 4, 5632}, {2048, 2, 2816}, {64, 4, 256}};
    lnt_config k;
    lnt_config_defaults(ctx, "gated_deltanet", &k);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        k.hidden_size = cases[i][0];
        k.hidden_ratio = (double)cases[i][1];
        assert_int_equal(lnt_config_mlp_width(&k), cases[i][2]);
    }
    k.intermediate_size = 160;
    assert_int_equal(lnt_config_mlp_width(&k), 160);
}

static const char full[] =
    "{\"model_type\":\"gated_deltanet\",\"attn\":[{\"layers\":[1,3],\"num_heads\":2,\"window_size\":32},{\"layers\":[0],\"num_heads\":4,\"num_kv_"
    "heads\":2,"
    "\"qkv_bias\":true,\"rope_theta\":500000.5}],\"attn_mode\":\"chunk\",\"attnres_block_size\":null,\"head_dim\":32,\"hidden_act\":\"silu\","
    "\"hidden_size\":64,"
    "\"id2label\":{\"1\":\"b\",\"0\":\"a\"},\"intermediate_size\":160,\"norm_eps\":0.1,\"num_heads\":2,\"num_hidden_layers\":4,\"expand_v\":1.5,"
    "\"fuse_norm\":false,\"vocab_size\":128,\"use_l2warp\":false,\"torch_dtype\":\"float32\",\"bos_token_id\":null,\"num_v_heads\":null,"
    "\"layer_mixers\":[\"gated_deltanet\",\"delta_net\",\"attention\",\"delta_net\"],\"qk_activation\":\"relu\",\"expand_k\":1}";

static void reads_everything(void **state)
{
    (void)state;
    linnet_config *k, *again, *copy;
    assert_int_equal(load(full, &k), LINNET_OK);
    assert_int_equal(k->n_attn, 2);
    assert_int_equal(k->attn[0].n_layers, 2);
    assert_int_equal(k->attn[0].layers[1], 3);
    assert_int_equal(k->attn[0].window_size, 32);
    assert_int_equal(k->attn[0].num_kv_heads, 0);
    assert_true(k->attn[1].qkv_bias && k->attn[1].rope_theta == 500000.5 && k->attn[0].rope_theta == 10000);
    assert_ptr_equal(lnt_config_attn_at(k, 3), &k->attn[0]);
    assert_ptr_equal(lnt_config_attn_at(k, 0), &k->attn[1]);
    assert_null(lnt_config_attn_at(k, 2));
    assert_int_equal(k->bos_token_id, -1);
    assert_string_equal(k->qk_activation, "relu");
    assert_string_equal(k->layer_mixers[2], "attention");
    assert_true(k->norm_eps == 0.1);
    char *text = strdup(linnet_config_json(k));
    assert_non_null(strstr(text, "\"norm_eps\": 0.1,"));
    assert_non_null(strstr(text, "\"attn_mode\": \"chunk\""));
    assert_non_null(strstr(text, "\"id2label\": {\"0\": \"a\", \"1\": \"b\"}"));
    assert_non_null(strstr(text, "\"fuse_norm\": false"));
    assert_int_equal(load(text, &again), LINNET_OK);
    assert_string_equal(text, linnet_config_json(again));
    assert_int_equal(lnt_config_copy(ctx, k, &copy), LINNET_OK);
    linnet_config_destroy(k);
    assert_string_equal(text, linnet_config_json(copy));
    linnet_config_destroy(copy);
    linnet_config_destroy(again);
    free(text);
}

/* A valid small file with one key replaced or added. */
static linnet_status load_with(const char *type, const char *key, const char *value)
{
    char text[1024];
    linnet_config *k = NULL;
    json_t *o =
        json_pack("{s:s, s:i, s:i, s:i, s:i}", "model_type", type, "hidden_size", 64, "num_hidden_layers", 4, "num_heads", 2, "vocab_size", 128);
    json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(v);
    json_object_set_new(o, key, v);
    size_t n = json_dumpb(o, text, sizeof text - 1, 0);
    text[n] = 0;
    json_decref(o);
    linnet_status s = load(text, &k);
    linnet_config_destroy(k);
    return s;
}

typedef struct {
    const char *type, *key, *value, *message;
} bad_case;

static const bad_case bad[] = {
    {"gated_deltanet", "hidden_size", "\"64\"", "hidden_size is \"64\", expected an integer"},
    {"gated_deltanet", "hidden_size", "64.0", "hidden_size is 64.0, expected an integer"},
    {"gated_deltanet", "hidden_size", "-5", "hidden_size is -5, expected 1 to 65536"},
    {"gated_deltanet", "hidden_size", "null", "hidden_size is null, expected an integer"},
    {"gated_deltanet", "num_hidden_layers", "513", "expected 1 to 512"},
    {"gated_deltanet", "vocab_size", "999999999999", "vocab_size is 999999999999, expected 1 to 16777216"},
    {"gated_deltanet", "use_gate", "1", "use_gate is 1, expected true or false"},
    {"gated_deltanet", "norm_eps", "\"x\"", "norm_eps is \"x\", expected a number"},
    {"gated_deltanet", "num_v_heads", "3", "num_heads is 2, expected a divisor of num_v_heads = 3"},
    {"gated_deltanet", "expand_v", "0.0001", "head_dim * expand_v"},
    {"gated_deltanet", "hidden_act", "\"gelu\"", "hidden_act is \"gelu\", expected \"swish\" \"silu\""},
    {"gated_deltanet", "attnres_block_size", "4", "attnres_block_size is 4, expected null"},
    {"gated_deltanet", "use_l2warp", "true", "use_l2warp is true"},
    {"gated_deltanet", "elementwise_affine", "false", "elementwise_affine is false"},
    {"gated_deltanet", "use_magic", "true", "unknown key \"use_magic\" for model type gated_deltanet"},
    {"gated_deltanet", "expand_k", "1", "\"expand_k\" is not a key of model type gated_deltanet"},
    {"gated_deltanet", "attn", "5", "attn is 5, expected null, an object or a list of objects"},
    {"gated_deltanet", "attn", "{\"num_heads\":2}", "attn has no key \"layers\""},
    {"gated_deltanet", "attn", "{\"layers\":[1]}", "attn has no key \"num_heads\""},
    {"gated_deltanet", "attn", "{\"layers\":[4],\"num_heads\":2}", "attn.layers has 4, expected layers below num_hidden_layers = 4"},
    {"gated_deltanet", "attn", "{\"layers\":[-1],\"num_heads\":2}", "attn.layers has -1"},
    {"gated_deltanet", "attn", "{\"layers\":[1,1],\"num_heads\":2}", "attn.layers has layer 1 twice"},
    {"gated_deltanet", "attn", "{\"layers\":[1],\"num_heads\":3}", "attn.num_heads is 3, expected a divisor of hidden_size = 64"},
    {"gated_deltanet", "attn", "{\"layers\":[1],\"num_heads\":2,\"sink\":1}", "unknown key \"sink\" in attn"},
    {"gated_deltanet", "attn", "{\"layers\":[1],\"num_heads\":2,\"window_size\":0}", "attn.window_size is 0"},
    {"gated_deltanet", "layer_mixers", "[\"delta_net\"]", "layer_mixers names 1 layers, expected num_hidden_layers = 4"},
    {"gated_deltanet", "layer_mixers", "[\"magic\"]", "layer_mixers has \"magic\""},
    {"gated_deltanet", "pad_token_id", "128", "pad_token_id is 128"},
    {"delta_net", "qk_norm", "\"l3\"", "qk_norm is \"l3\", expected l2 sum"},
    {"delta_net", "num_heads", "3", "num_heads is 3, expected a divisor of hidden_size * expand_k = 64"},
    {"delta_net", "expand_k", "1e-4", "leave no key or value"},
    {"linear_attn", "feature_map", "\"rebased\"", "feature_map is \"rebased\", expected elementwise_product"},
    {"linear_attn", "num_kv_heads", "3", "num_kv_heads is 3"},
    {"retnet", "feature_map", "\"relu\"", "feature_map is \"relu\", expected null"},
    {"retnet", "num_heads", "64", "expected an even head size"},
    {"transformer", "qk_norm", "\"l2\"", "qk_norm is \"l2\", expected true or false"},
    {"transformer", "attn", "{\"layers\":[1],\"num_heads\":2}", "\"attn\" is not a key of model type transformer"},
    {"transformer", "num_heads", "5", "num_heads is 5, expected a divisor of hidden_size = 64"},
    {"equal_backbone", "rule", "\"mamba\"", "rule is \"mamba\""},
    {"equal_backbone", "layer_mixers", "[\"mesa\",\"gla\"]", "layer_mixers names 2 layers, expected num_hidden_layers = 4"},
    {"equal_backbone", "layer_mixers", "[\"mesa_net\"]", "layer_mixers has \"mesa_net\", expected attention linear_attn"},
    {"equal_backbone", "logit_soft_cap", "-1", "logit_soft_cap is -1"},
    {"mamba", "hidden_size", "64", "model type \"mamba\" is not offered"},
};

static void refuses(void **state)
{
    (void)state;
    char from[160];
    snprintf(from, sizeof from, "Read from %s.", file);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        linnet_status s = load_with(bad[i].type, bad[i].key, bad[i].value);
        if (s != LINNET_EFORMAT && s != LINNET_EINVAL) fail_msg("case %zu (%s): status %d", i, bad[i].key, s);
        if (!strstr(linnet_error_message(ctx), bad[i].message)) fail_msg("case %zu says \"%s\"", i, linnet_error_message(ctx));
        assert_string_equal(linnet_error_detail(ctx), from);
    }
    assert_int_equal(load_with("gated_deltanet", "num_head", "2"), LINNET_EFORMAT);
    assert_string_equal(linnet_error_hint(ctx), "Did you mean \"num_heads\"?");
    assert_int_equal(load_with("retnet", "conv_size", "4"), LINNET_OK); /* read by nobody there */
    linnet_config *k;
    static const char *const broken[] = {
        "", "[]", "{}", "{\"model_type\":5}", "{\"model_type\":\"retnet\",\"model_type\":\"retnet\"}", "{\"model_type\":\"retnet\""};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) assert_int_equal(load(broken[i], &k), LINNET_EFORMAT);
    assert_int_equal(linnet_config_load(ctx, "/nowhere", &k), LINNET_EIO);
    for (size_t cut = 0; cut + 1 < sizeof full; cut++) {
        char part[sizeof full];
        memcpy(part, full, cut);
        part[cut] = 0;
        assert_int_equal(load(part, &k), LINNET_EFORMAT);
    }
}

static void set_keys(void **state)
{
    (void)state;
    linnet_config *k;
    assert_int_equal(linnet_config_create(ctx, "delta_net", &k), LINNET_OK);
    char *before = strdup(linnet_config_json(k));
    assert_int_equal(linnet_config_set(ctx, k, "hidden_size", "512"), LINNET_OK);
    assert_int_equal(linnet_config_set(ctx, k, "qk_norm", "sum"), LINNET_OK);
    assert_int_equal(linnet_config_set(ctx, k, "qk_activation", "\"elu\""), LINNET_OK);
    assert_int_equal(linnet_config_set(ctx, k, "allow_neg_eigval", "true"), LINNET_OK);
    assert_int_equal(linnet_config_set(ctx, k, "attn", "{\"layers\":[1,3],\"num_heads\":4,\"window_size\":256}"), LINNET_OK);
    assert_int_equal(linnet_config_set(ctx, k, "attn_mode", "chunk"), LINNET_OK);
    assert_int_equal(linnet_config_set(ctx, k, "expand_v", "1.5"), LINNET_OK);
    assert_true(k->hidden_size == 512 && k->allow_neg_eigval && k->n_attn == 1 && k->expand_v == 1.5);
    assert_string_equal(k->qk_activation, "elu");
    char *text = strdup(linnet_config_json(k));
    assert_string_not_equal(before, text);
    static const char *const wrong[][2] = {{"hidden_size", "big"},     {"hidden_size", "0"}, {"magic", "1"},
                                           {"attn", "{\"layers\":[1"}, {"attn", "{}"},       {"model_type", "retnet"},
                                           {"qk_norm", "\xff"},        {"head_dim", "64"},   {"hidden_size", ""}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_int_equal(linnet_config_set(ctx, k, wrong[i][0], wrong[i][1]), LINNET_EINVAL);
    assert_string_equal(text, linnet_config_json(k)); /* untouched by what was refused */
    assert_int_equal(linnet_config_set(ctx, k, "attn", "null"), LINNET_OK);
    assert_int_equal(k->n_attn, 0);
    free(before);
    free(text);
    linnet_config_destroy(k);
}

/* Kinds of layer by turns, as attn and layer_mixers. */
static void patterns(void **state)
{
    (void)state;
    static const struct {
        const char *type, *pattern, *attn, *mixers;
    } good[] = {
        {"mesa_net", "mesa_net,attention:256",
         "\"attn\": {\"layers\": [1, 3, 5], \"num_heads\": 4, \"num_kv_heads\": null, \"qkv_bias\": false, \"window_size\": 256, "
         "\"rope_theta\": 10000.0}",
         NULL},
        {"mesa_net", "mesa_net,gated_deltanet", "\"attn\": null",
         "[\"mesa_net\", \"gated_deltanet\", \"mesa_net\", \"gated_deltanet\", \"mesa_net\", \"gated_deltanet\"]"},
        {"gated_deltanet", "3*gated_deltanet,attention",
         "\"layers\": [3], \"num_heads\": 4, \"num_kv_heads\": null, \"qkv_bias\": false, \"window_size\": null",
         NULL},
        {"mesa_net", "mesa_net,2*gated_deltanet,attention:8", "\"layers\": [3]",
         "[\"mesa_net\", \"gated_deltanet\", \"gated_deltanet\", \"attention\", \"mesa_net\", \"gated_deltanet\"]"},
        {"delta_net", "attention:4,attention,delta_net", "{\"layers\": [1, 4],", NULL},
        {"equal_backbone", "mesa,attention:64", "\"window_size\": 64", "[\"mesa\", \"attention\", \"mesa\", \"attention\", \"mesa\", \"attention\"]"},
        {"equal_backbone", "gated_deltanet", "\"window_size\": null", NULL},
        {"mesa_net", "gated_deltanet", "\"attn\": null", "[\"gated_deltanet\", "},
    };
    static const struct {
        const char *type, *pattern, *says;
    } bad_patterns[] = {
        {"mesa_net", "", "the pattern has \"\""},
        {"mesa_net", "mesa_net,", "the pattern has \"\""},
        {"mesa_net", "mesa", "expected linear_attn retnet"},
        {"mesa_net", "mesa_net,attention:0", "window of at least 1"},
        {"mesa_net", "mesa_net,attention:x", "window of at least 1"},
        {"mesa_net", "mesa_net:5", "only attention has one"},
        {"mesa_net", "0*mesa_net,attention", "number of layers from 1"},
        {"mesa_net", "x*mesa_net", "number of layers from 1"},
        {"mesa_net", "5*mesa_net,2*attention", "names 7 layers, but the model has 6"},
        {"mesa_net", "attention:1,attention:2,attention:3,attention:4,attention:5,mesa_net", "more than 4 windows"},
        {"equal_backbone", "mesa_net", "expected attention linear_attn"},
        {"equal_backbone", "mesa,attention:3,attention:4", "windows of 3 and 4"},
        {"transformer", "attention:8", "expected a model type with a state"},
    };
    linnet_config *k, *again;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(linnet_config_create(ctx, good[i].type, &k), LINNET_OK);
        assert_int_equal(linnet_config_set(ctx, k, "num_hidden_layers", "6"), LINNET_OK);
        assert_int_equal(linnet_config_set(ctx, k, "num_heads", "4"), LINNET_OK);
        /* what an earlier pattern said is gone; a wrong one leaves no trace */
        if (strcmp(good[i].type, "equal_backbone")) assert_int_equal(linnet_config_pattern(ctx, k, "retnet,attention:7,delta_net"), LINNET_OK);
        char *between = strdup(linnet_config_json(k));
        for (size_t j = 0; j < sizeof bad_patterns / sizeof *bad_patterns; j++) {
            if (strcmp(good[i].type, bad_patterns[j].type)) continue;
            assert_int_equal(linnet_config_pattern(ctx, k, bad_patterns[j].pattern), LINNET_EINVAL);
            if (!strstr(linnet_error_message(ctx), bad_patterns[j].says)) fail_msg("\"%s\": %s", bad_patterns[j].pattern, linnet_error_message(ctx));
            assert_string_equal(between, linnet_config_json(k));
        }
        free(between);
        if (linnet_config_pattern(ctx, k, good[i].pattern) != LINNET_OK) fail_msg("%s: %s", good[i].pattern, linnet_error_message(ctx));
        const char *text = linnet_config_json(k);
        if (!strstr(text, good[i].attn)) fail_msg("%s: no %s in %s", good[i].pattern, good[i].attn, text);
        const char *mixers = strstr(text, "\"layer_mixers\": ");
        if (!mixers != !good[i].mixers || (mixers && !strstr(mixers, good[i].mixers))) fail_msg("%s: %s", good[i].pattern, text);
        assert_int_equal(lnt_config_check(ctx, k), LINNET_OK);
        assert_int_equal(load(text, &again), LINNET_OK);
        assert_string_equal(text, linnet_config_json(again));
        linnet_config_destroy(again);
        linnet_config_destroy(k);
    }
    assert_int_equal(linnet_config_create(ctx, "transformer", &k), LINNET_OK);
    assert_int_equal(linnet_config_pattern(ctx, k, "attention:8"), LINNET_EINVAL);
    assert_non_null(strstr(linnet_error_message(ctx), bad_patterns[12].says));
    linnet_config_destroy(k);
}

static void goldens(void **state)
{
    (void)state;
    static const char *const names[] = {"transformer", "linear_attn", "retnet", "delta_net", "delta_net_swa", "gated_deltanet", "gated_deltanet_h1"};
    char path[512];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/../shared/goldens/fla/%s", LINNET_SOURCE_DIR, names[i]);
        if (!lnt_is_folder(path)) {
            print_message("no goldens at %s\n", path);
            skip();
        }
        linnet_config *k, *again;
        assert_int_equal(linnet_config_load(ctx, path, &k), LINNET_OK);
        assert_int_equal(load(linnet_config_json(k), &again), LINNET_OK);
        assert_string_equal(linnet_config_json(k), linnet_config_json(again));
        /* Nothing of the golden file is lost or changed but the numbers' spelling. */
        strcat(path, "/config.json");
        json_t *theirs = json_load_file(path, 0, NULL), *ours = json_loads(linnet_config_json(k), 0, NULL), *value;
        const char *key;
        json_object_foreach(theirs, key, value) {
            const json_t *mine = json_object_get(ours, key);
            if (strcmp(names[i], "retnet") == 0 && strcmp(key, "fuse_norm") == 0) continue;
            bool same = json_is_number(value) ? json_is_number(mine) && json_number_value(mine) == json_number_value(value) : json_equal(mine, value);
            if (strcmp(key, "attn") == 0) same = json_is_null(mine) == json_is_null(value);
            if (!same) fail_msg("%s: %s differs", names[i], key);
        }
        json_decref(theirs);
        json_decref(ours);
        linnet_config_destroy(k);
        linnet_config_destroy(again);
    }
}

/* jansson keeps malloc here: version 2.14 crashes inside json_loadb when some of its own allocations fail. */
static void allocation_failures(void **state)
{
    (void)state;
    linnet_status s;
    int64_t n = 0, made;
    write_file(full);
    do {
        linnet_config *k = NULL, *copy = NULL;
        const char *text = NULL;
        lnt_alloc_fail_at(++n);
        s = linnet_config_load(ctx, folder, &k);
        if (s == LINNET_OK) s = linnet_config_set(ctx, k, "attn_mode", "parallel");
        if (s == LINNET_OK) s = lnt_config_copy(ctx, k, &copy);
        if (s == LINNET_OK && !(text = linnet_config_json(copy))) s = LINNET_ENOMEM;
        made = lnt_alloc_count();
        lnt_alloc_fail_at(0);
        linnet_config_destroy(copy);
        linnet_config_destroy(k);
        assert_true(s == LINNET_OK || s == LINNET_ENOMEM);
    } while (made >= n);
    assert_int_equal(s, LINNET_OK);
    assert_true(n > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_round_trip),
        cmocka_unit_test(published_defaults),
        cmocka_unit_test(mlp_width),
        cmocka_unit_test(reads_everything),
        cmocka_unit_test(refuses),
        cmocka_unit_test(set_keys),
        cmocka_unit_test(patterns),
        cmocka_unit_test(goldens),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests(tests, setup, close_folder);
}

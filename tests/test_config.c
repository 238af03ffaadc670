/* config.json: what is read is written back, defaults are the published ones, and everything that would change the function is refused by name.
 * Long: tables of defaults, patterns and refusals of all model types. */
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
#include "golden_files.h"
#include "hub/archs.h"
#include "model/model.h"
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

static const char *value(const linnet_config *k, const char *key)
{
    static char text[4][128];
    static int n;
    char *out = text[n++ % 4];
    if (linnet_config_get(ctx, k, key, out, sizeof *text) != LINNET_OK) fail_msg("%s: %s", key, linnet_error_message(ctx));
    return out;
}

/* Every model type and every mixer's name. */
static const char *type_at(int i)
{
    int n = 0;
    while (lnt_arch_at(n)) n++;
    return i < n ? lnt_arch_name(lnt_arch_at(i)) : lnt_mixer_at(i - n) ? lnt_mixer_at(i - n)->kind.about.name : NULL;
}

static void defaults_round_trip(void **state)
{
    (void)state;
    for (int i = 0; type_at(i); i++) {
        linnet_config *a, *b;
        assert_int_equal(linnet_config_create(ctx, type_at(i), &a), LINNET_OK);
        assert_int_equal(lnt_config_check(ctx, a), LINNET_OK);
        const char *text = linnet_config_json(a);
        assert_non_null(text);
        if (load(text, &b) != LINNET_OK) fail_msg("%s: %s", type_at(i), linnet_error_message(ctx));
        assert_string_equal(text, linnet_config_json(b));
        const lnt_arch *arch = lnt_arch_find(type_at(i));
        if (arch && arch->class_name) { /* as made, it is what its class computes */
            if (!linnet_config_class(a)) fail_msg("%s as made is not what %s computes", type_at(i), arch->class_name);
            assert_string_equal(linnet_config_class(a), arch->class_name);
            assert_non_null(strstr(text, arch->class_name));
        }
        for (int p = 0; linnet_preset_name(p); p++) {
            linnet_config *again;
            assert_non_null(linnet_preset_summary(p));
            assert_int_equal(linnet_config_preset(ctx, b, linnet_preset_name(p)), LINNET_OK);
            assert_int_equal(lnt_config_check(ctx, b), LINNET_OK);
            assert_int_equal(load(linnet_config_json(b), &again), LINNET_OK);
            assert_string_equal(linnet_config_json(b), linnet_config_json(again));
            linnet_config_destroy(again);
        }
        assert_int_equal(linnet_config_preset(ctx, b, "huge"), LINNET_EINVAL);
        linnet_config_destroy(a);
        linnet_config_destroy(b);
    }
    assert_null(linnet_preset_name(-1));
    linnet_config *none;
    assert_int_equal(linnet_config_create(ctx, "perceptron", &none), LINNET_EINVAL);
    assert_non_null(strstr(linnet_error_message(ctx), "\"perceptron\" is not offered, expected one of linnet, linear_attn, retnet"));
}

/* The defaults written in flash-linear-attention's configuration classes, and the paper's of equal_backbone. */
static void published_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *type, *key, *value;
    } all[] = {
        {"gated_deltanet", "head_dim", "256"}, {"gated_deltanet", "num_heads", "6"}, {"gated_deltanet", "num_hidden_layers", "21"},
        {"gated_deltanet", "expand_v", "2.0"}, {"gated_deltanet", "use_gate", "true"}, {"gated_deltanet", "use_short_conv", "true"},
        {"gated_deltanet", "allow_neg_eigval", "false"}, {"gated_deltanet", "norm_eps", "1e-6"}, {"gated_deltanet", "initializer_range", "0.02"},
        {"gated_deltanet", "bos_token_id", "1"}, {"gated_deltanet", "pad_token_id", "null"},
        {"delta_net", "num_heads", "16"}, {"delta_net", "use_gate", "false"}, {"delta_net", "expand_k", "1.0"}, {"delta_net", "qk_norm", "\"l2\""},
        {"delta_net", "qk_activation", "\"silu\""},
        {"retnet", "num_heads", "8"}, {"retnet", "expand_v", "2.0"}, {"retnet", "hidden_ratio", "2.0"}, {"retnet", "use_output_gate", "true"},
        {"linear_attn", "feature_map", "\"elementwise_product\""}, {"linear_attn", "num_heads", "4"},
        {"transformer", "num_heads", "32"}, {"transformer", "rope_theta", "10000.0"}, {"transformer", "window_size", "null"},
        {"transformer", "qk_norm", "false"},
        {"rwkv6", "num_heads", "4"}, {"rwkv6", "expand_k", "0.5"}, {"rwkv6", "norm_eps", "1e-5"}, {"rwkv6", "norm_first", "true"},
        {"rwkv7", "head_dim", "64"}, {"rwkv7", "num_heads", "null"}, {"rwkv7", "norm_eps", "1e-5"}, {"rwkv7", "norm_first", "true"},
        {"rwkv7", "hidden_ratio", "4"}, {"rwkv7", "decay_low_rank_dim", "64"}, {"rwkv7", "gate_low_rank_dim", "128"},
        {"rwkv7", "a_low_rank_dim", "64"}, {"rwkv7", "v_low_rank_dim", "16"}, {"rwkv7", "fuse_norm", "true"},
        {"rwkv6", "norm_bias", "true"}, {"rwkv6", "hidden_ratio", "3.5"}, {"rwkv6", "proj_low_rank_dim", "32"}, {"rwkv6", "gate_low_rank_dim", "64"},
        {"gla", "num_heads", "4"}, {"gla", "expand_k", "0.5"}, {"gla", "expand_v", "1.0"}, {"gla", "use_short_conv", "false"},
        {"gla", "use_output_gate", "true"}, {"gla", "clamp_min", "null"}, {"gla", "num_hidden_layers", "24"},
        {"kda", "num_heads", "16"}, {"kda", "head_dim", "128"}, {"kda", "expand_v", "1.0"}, {"kda", "safe_gate", "false"},
        {"kda", "lower_bound", "null"}, {"kda", "allow_neg_eigval", "false"}, {"kda", "num_v_heads", "null"}, {"kda", "num_hidden_layers", "24"},
        {"gated_deltaproduct", "num_householder", "1"}, {"gated_deltaproduct", "use_forget_gate", "false"},
        {"gated_deltaproduct", "allow_neg_eigval", "false"}, {"gated_deltaproduct", "num_hidden_layers", "21"},
        {"gated_deltaproduct", "num_heads", "6"}, {"gated_deltaproduct", "head_dim", "256"}, {"gated_deltaproduct", "expand_v", "2.0"},
        {"comba", "num_heads", "6"}, {"comba", "head_dim", "256"}, {"comba", "expand_v", "2.0"}, {"comba", "num_hidden_layers", "21"},
        {"comba", "use_output_correction", "true"}, {"comba", "correction_factor", "1.0"}, {"comba", "use_inner_decay", "true"},
        {"hgrn", "expand_ratio", "1"}, {"hgrn", "use_short_conv", "false"}, {"hgrn", "conv_size", "4"}, {"hgrn", "use_lower_bound", "true"},
        {"hgrn", "norm_eps", "1e-6"}, {"hgrn", "num_hidden_layers", "24"},
        {"mamba", "state_size", "16"}, {"mamba", "expand", "2"}, {"mamba", "conv_kernel", "4"}, {"mamba", "use_bias", "false"},
        {"mamba", "use_conv_bias", "true"}, {"mamba", "dt_rank", "128"}, {"mamba", "norm_eps", "1e-5"}, {"mamba", "num_hidden_layers", "48"},
        {"gsa", "num_heads", "4"}, {"gsa", "num_slots", "64"}, {"gsa", "gate_logit_normalizer", "8"}, {"gsa", "expand_k", "1"},
        {"gsa", "feature_map", "\"swish\""}, {"gsa", "use_short_conv", "false"}, {"gsa", "num_hidden_layers", "24"}, {"gsa", "norm_eps", "1e-6"},
        {"abc", "num_heads", "4"}, {"abc", "num_slots", "64"}, {"abc", "expand_k", "0.5"}, {"abc", "clamp_min", "-32"}, {"abc", "clamp_max", "32"},
        {"abc", "use_rope", "true"}, {"abc", "num_hidden_layers", "24"},
        {"samba", "expand", "2"}, {"samba", "state_size", "16"}, {"samba", "norm_eps", "1e-5"}, {"samba", "num_hidden_layers", "18"},
        {"xlstm", "num_heads", "8"}, {"xlstm", "qk_dim_factor", "0.5"}, {"xlstm", "v_dim_factor", "1.0"}, {"xlstm", "gate_soft_cap", "15.0"},
        {"xlstm", "eps", "1e-6"}, {"xlstm", "logit_soft_cap", "30.0"}, {"xlstm", "num_hidden_layers", "32"}, {"xlstm", "hidden_size", "4096"},
        {"xlstm", "multiple_of", "64"}, {"xlstm", "hidden_ratio", "2.667"},
        {"mesa_net", "num_heads", "16"}, {"mesa_net", "use_output_gate", "false"}, {"mesa_net", "lambda_lower_bound", "0.25"},
        {"equal_backbone", "logit_soft_cap", "30.0"}, {"equal_backbone", "tie_word_embeddings", "true"}, {"equal_backbone", "head_dim", "128"},
        {"equal_backbone", "num_heads", "6"}, {"equal_backbone", "hidden_size", "768"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        linnet_config *k;
        assert_int_equal(linnet_config_create(ctx, all[i].type, &k), LINNET_OK);
        const char *have = value(k, all[i].key);
        json_t *read = json_loads(have, JSON_DECODE_ANY, NULL);
        if (strcmp(have, all[i].value) && json_number_value(read) != atof(all[i].value)) fail_msg("%s: %s is %s", all[i].type, all[i].key, have);
        json_decref(read);
        linnet_config_destroy(k);
    }
}

/* Rows of the MLP's matrices. */
static int64_t inner_of(const char *type, int64_t width, double ratio, int64_t given)
{
    linnet_config *k;
    char text[32];
    assert_int_equal(linnet_config_create(ctx, type, &k), LINNET_OK);
    k->hidden_size = width;
    snprintf(text, sizeof text, "%g", ratio);
    if (ratio > 0) assert_int_equal(linnet_config_set(ctx, k, "hidden_ratio", text), LINNET_OK);
    lnt_config_put_int(k, "intermediate_size", given);
    const lnt_layer l = lnt_config_layer(k, &k->mlp, 0);
    int64_t w = lnt_mlp_width(&l, 4, 2, 3);
    linnet_config_destroy(k);
    return w;
}

static void mlp_width(void **state)
{
    (void)state;
    static const int64_t cases[][3] = {{768, 4, 2048}, {1024, 4, 2816}, {2048, 4, 5632}, {2048, 2, 2816}, {64, 4, 256}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(inner_of("gated_deltanet", cases[i][0], (double)cases[i][1], 0), cases[i][2]);
    assert_int_equal(inner_of("gated_deltanet", 64, 4, 160), 160);
    for (int64_t w = 16; w < 2000; w += 7) assert_int_equal(inner_of("equal_backbone", w, 0, 0), 3 * w);
}

/* The channel mix has 3.5 hidden_size columns with a receptance and 4 without, where nobody says. */
static void channel_mix_width(void **state)
{
    (void)state;
    static const char *const set[][2] = {
        {"hidden_size", "64"}, {"num_hidden_layers", "1"}, {"hidden_ratio", "null"}, {"hidden_ratio", "2.3"}, {"use_receptance", "false"},
        {"hidden_ratio", "null"}, {"multiple_of", "96"}};
    static const int64_t rows[] = {224, 224, 224, 160, 160, 256, 288};
    linnet_config *k;
    assert_int_equal(linnet_config_create(ctx, "rwkv6", &k), LINNET_OK);
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
        linnet_model *m;
        assert_int_equal(linnet_config_set(ctx, k, set[i][0], set[i][1]), LINNET_OK);
        assert_int_equal(lnt_model_outline(ctx, k, LINNET_F32, &m), LINNET_OK);
        assert_int_equal(lnt_param_find(m->p, "model.layers.0.mlp.key.weight")->dim[0], rows[i]);
        linnet_model_destroy(m);
    }
    linnet_config_destroy(k);
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
    /* layers 1 and 3 and layer 0 by attn, 2 by layer_mixers */
    const lnt_part *at[4];
    for (int l = 0; l < 4; l++) {
        at[l] = &k->mixers[k->mixer_of[l]];
        assert_string_equal(at[l]->kind->about.name, "attention");
    }
    assert_ptr_equal(at[1], at[3]);
    assert_ptr_not_equal(at[0], at[1]);
    assert_ptr_not_equal(at[2], at[1]);
    static const struct {
        int layer;
        const char *key, *value;
    } wanted[] = {{1, "window_size", "32"}, {1, "num_kv_heads", "null"}, {1, "rope_theta", "10000.0"}, {0, "qkv_bias", "true"},
                  {0, "num_kv_heads", "2"}, {0, "rope_theta", "500000.5"}, {2, "num_heads", "2"}, {2, "window_size", "null"}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        char key[96];
        snprintf(key, sizeof key, "%s.%s", at[wanted[i].layer]->label, wanted[i].key);
        if (strcmp(value(k, key), wanted[i].value)) fail_msg("%s is %s", key, value(k, key));
    }
    assert_string_equal(value(k, "bos_token_id"), "null");
    assert_true(k->norm_eps == 0.1);
    assert_string_equal(linnet_config_class(k), "GatedDeltaNetForCausalLM"); /* attention in every layer can be said by attn */
    char *text = strdup(linnet_config_json(k));
    assert_non_null(strstr(text, "\"norm_eps\": 0.1,"));
    assert_non_null(strstr(text, "\"attn_mode\": \"chunk\""));
    assert_non_null(strstr(text, "\"fuse_norm\": false"));
    assert_non_null(strstr(text, "\"id2label\": {\"0\": \"a\", \"1\": \"b\"}"));
    assert_int_equal(load(text, &again), LINNET_OK);
    assert_string_equal(text, linnet_config_json(again));
    assert_int_equal(lnt_config_copy(ctx, k, &copy), LINNET_OK);
    linnet_config_destroy(k);
    assert_string_equal(text, linnet_config_json(copy));
    linnet_config_destroy(copy);
    linnet_config_destroy(again);
    free(text);
}

/* Whether the type's mixer has heads. */
static bool has_heads(const char *type)
{
    linnet_config *k;
    char have[32];
    if (linnet_config_create(ctx, type, &k) != LINNET_OK) return true;
    const bool has = linnet_config_get(ctx, k, "num_heads", have, sizeof have) == LINNET_OK;
    linnet_config_destroy(k);
    return has;
}

/* A valid small file with one key replaced or added. */
static linnet_status load_with(const char *type, const char *key, const char *value)
{
    char text[1024];
    linnet_config *k = NULL;
    json_t *o =
        json_pack("{s:s, s:i, s:i, s:i, s:i}", "model_type", type, "hidden_size", 64, "num_hidden_layers", 4, "num_heads", 2, "vocab_size", 128);
    if (!has_heads(type)) json_object_del(o, "num_heads");
    json_object_del(o, key);
    size_t n = json_dumpb(o, text, sizeof text - 1, 0);
    snprintf(text + n - 1, sizeof text - n, ", \"%s\": %s}", key, value);
    json_decref(o);
    linnet_status s = load(text, &k);
    linnet_config_destroy(k);
    return s;
}

typedef struct {
    const char *type, *key, *value, *message;
} bad_case;

static const bad_case bad[] = {
    {"mamba", "intermediate_size", "3", "intermediate_size is 3, expected expand * hidden_size = 128"},
    {"mamba", "dt_rank", "0", "dt_rank is 0, expected 1 to"},
    {"samba", "intermediate_size", "0", "channels is 0, expected 1 to"},
    {"abc", "clamp_max", "88", "clamp_max is 88, expected 0 to 37"},
    {"mamba2", "expand", "3", "expand is 3, expected num_heads * head_dim / hidden_size = 2"},
    {"mamba2", "expand", "\"2\"", "expand is \"2\", expected num_heads * head_dim / hidden_size = 2"},
    {"mamba2", "dt_limit", "[0.0, 1.0]", "dt_limit is [0.0, 1.0], expected [0.0,Infinity] [0,Infinity] null"},
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
    {"gated_deltanet", "attn", "{\"layers\":[4],\"num_heads\":2}", "layer 4 has a mixer of its own, expected layers below num_hidden_layers = 4"},
    {"gated_deltanet", "attn", "{\"layers\":[-1],\"num_heads\":2}", "attn.layers has -1"},
    {"gated_deltanet", "attn", "{\"layers\":[1,1],\"num_heads\":2}", "attn.layers has layer 1 twice"},
    {"gated_deltanet", "attn", "{\"layers\":[1],\"num_heads\":3}", "attention.num_heads is 3, expected a divisor of hidden_size = 64"},
    {"gated_deltanet", "attn", "{\"layers\":[1],\"num_heads\":2,\"sink\":1}", "unknown key \"sink\" in attn"},
    {"gated_deltanet", "attn", "{\"layers\":[1],\"num_heads\":2,\"window_size\":0}", "attn.window_size is 0"},
    {"gated_deltanet", "layer_mixers", "[\"delta_net\"]", "layer_mixers names 1 layers, expected num_hidden_layers = 4"},
    {"gated_deltanet", "layer_mixers", "[\"magic\"]", "\"magic\" is no mixer, expected attention linear_attn"},
    {"gated_deltanet", "pad_token_id", "128", "pad_token_id is 128"},
    {"delta_net", "qk_norm", "\"l3\"", "qk_norm is \"l3\", expected l2 sum"},
    {"delta_net", "num_heads", "3", "num_heads is 3, expected a divisor of hidden_size * expand_k = 64"},
    {"delta_net", "expand_k", "1e-4", "leave no key or value"},
    {"linear_attn", "feature_map", "\"rebased\"", "feature_map is \"rebased\", expected elementwise_product"},
    {"linear_attn", "num_kv_heads", "3", "num_kv_heads is 3"},
    {"retnet", "feature_map", "\"relu\"", "feature_map is \"relu\", expected null"},
    {"retnet", "num_heads", "64", "expected an even head size"},
    {"rwkv6", "hidden_act", "\"swish\"", "hidden_act is \"swish\", expected \"sqrelu\""},
    {"rwkv6", "multiple_of", "64", "\"multiple_of\" is not a key of model type rwkv6"},
    {"rwkv6", "use_receptance", "false", "\"use_receptance\" is not a key of model type rwkv6"},
    {"rwkv6", "expand_k", "0.3", "num_heads is 2, expected a divisor of hidden_size * expand_k = 19"},
    {"rwkv7", "use_receptance", "true", "\"use_receptance\" is not a key of model type rwkv7"},
    {"rwkv7", "head_dim", "48", "head_dim is 48, expected a divisor of hidden_size = 64"},
    {"rwkv7", "head_dim", "64", "num_heads is 2, expected null or hidden_size / head_dim = 1"},
    {"rwkv6", "gate_fn", "\"sigmoid\"", "unknown key \"gate_fn\" for model type rwkv6"},
    {"gla", "feature_map", "\"relu\"", "feature_map is \"relu\", expected null"},
    {"gla", "gate_logit_normalizer", "8", "\"gate_logit_normalizer\" is not a key of model type gla"},
    {"gla", "clamp_min", "0.5", "clamp_min is 0.5, expected -1000000 to -1e-06 or null"},
    {"gla", "num_heads", "3", "num_heads is 3, expected a divisor of hidden_size * expand_k = 32"},
    {"gla", "num_kv_heads", "3", "num_kv_heads is 3, expected a divisor of num_heads = 2"},
    {"kda", "safe_gate", "true", "lower_bound is null, expected a number below 0 with safe_gate = true"},
    {"kda", "lower_bound", "-5", "lower_bound is -5, expected null with safe_gate = false"},
    {"kda", "lower_bound", "0", "lower_bound is 0, expected -1000 to -1e-06 or null"},
    {"kda", "num_v_heads", "3", "num_heads is 2, expected a divisor of num_v_heads = 3"},
    {"kda", "expand_v", "0.3", "head_dim * expand_v is 38.4"},
    {"kda", "conv_bias", "true", "conv_bias is true"},
    {"kda", "output_gate_activation", "\"swish\"", "output_gate_activation is \"swish\", expected \"sigmoid\""},
    {"kda", "use_gate", "false", "\"use_gate\" is not a key of model type kda"},
    {"gated_deltaproduct", "num_householder", "0", "num_householder is 0"},
    {"gated_deltaproduct", "num_householder", "65", "num_householder is 65"},
    {"gated_deltaproduct", "conv_bias", "true", "conv_bias is true"},
    {"comba", "expand_v", "0.001", "head_dim * expand_v is 0.256, expected a whole value size"},
    {"comba", "num_v_heads", "3", "num_heads is 2, expected a divisor of num_v_heads = 3"},
    {"comba", "output_gate_activation", "\"swish\"", "output_gate_activation is \"swish\", expected \"sigmoid\""},
    {"comba", "allow_neg_eigval", "true", "\"allow_neg_eigval\" is not a key of model type comba"},
    {"hgrn", "expand_ratio", "2", "expand_ratio is 2, expected 1 with use_lower_bound = true"},
    {"hgrn", "num_heads", "2", "\"num_heads\" is not a key of model type hgrn"},
    {"hgrn", "hidden_act", "\"relu\"", "hidden_act is \"relu\""},
    {"transformer", "qk_norm", "\"l2\"", "qk_norm is \"l2\", expected true or false"},
    {"transformer", "attn", "{\"layers\":[1],\"num_heads\":2}", "\"attn\" is not a key of model type transformer"},
    {"delta_net", "use_beta", "false", "use_beta is false, expected true"},
    {"transformer", "num_heads", "5", "num_heads is 5, expected a divisor of hidden_size = 64"},
    {"equal_backbone", "num_heads", "3, \"rule\": \"hawk\"", "num_heads is 3, expected a divisor of 1.25 hidden_size"},
    {"equal_backbone", "rule", "\"gla\", \"allow_neg_gamma\": true", "allow_neg_gamma is true, expected false: it is for rule mesa, and rule is gla"},
    {"equal_backbone", "rule", "\"mlstm\", \"mesa_window\": 16", "mesa_window is 16, expected null: it is for rule mesa, and rule is mlstm"},
    {"equal_backbone", "rule", "\"mamba2\", \"cg_solver\": \"flash\"", "cg_solver is flash, expected level: it is for rule mesa"},
    {"equal_backbone", "rule", "\"hawk\", \"lambda_lower_bound\": 49", "lambda_lower_bound is 49, expected 0.25: it is for rule mesa"},
    {"equal_backbone", "window_size", "8", "window_size is 8, expected null: it is for rule attention, and rule is gated_deltanet"},
    {"equal_backbone", "rule", "\"hawk\", \"gamma_cap\": 0.5", "gamma_cap is 0.5, expected null: it is for rule gla gated_deltanet mesa, and"},
    {"equal_backbone", "layer_mixers", "[\"gla\",\"gla\",\"mlstm\",\"gla\"], \"mesa_window\": 16", "mesa_window is 16, expected null"},
    {"equal_backbone", "rule", "\"perceptron\"", "rule is \"perceptron\""},
    {"equal_backbone", "layer_mixers", "[\"mesa\",\"gla\"]", "layer_mixers names 2 layers, expected num_hidden_layers = 4"},
    {"equal_backbone", "layer_mixers", "[\"perceptron\"]", "\"perceptron\" is no mixer, expected attention linear_attn simple_gla gla"},
    {"linnet", "hidden_size", "64", "the configuration has no mixers"},
    {"linnet", "mixers", "{}", "mixers is {}, expected an object"},
    {"linnet", "mixers", "{\"a\":{\"mixer\":\"perceptron\"}}", "mixers.a.mixer is \"perceptron\", expected attention linear_attn"},
    {"linnet", "mixers", "{\"a\":{}}", "mixers.a.mixer is missing, expected attention"},
    {"linnet", "mixers", "{\"a b\":\"retnet\"}", "mixers has the label \"a b\""},
    {"linnet", "mixers", "{\"a\":{\"mixer\":\"retnet\",\"head_dim\":3}}", "unknown key \"head_dim\" in mixers.a"},
    {"linnet", "mixers", "{\"a\":{\"mixer\":\"retnet\",\"expand_v\":\"2\"}}", "mixers.a.expand_v is \"2\", expected a number"},
    {"simple_gla", "mlp", "\"big\"", "mlp is \"big\", expected swiglu"},
    {"simple_gla", "mlp", "{\"kind\":\"swiglu\",\"width\":3}", "unknown key \"width\" in mlp"},
    {"simple_gla", "block", "{}", "block is missing, expected pre_norm"},
    {"gated_deltanet", "logit_soft_cap", "30", "unknown key \"logit_soft_cap\" for model type gated_deltanet"},
    {"gated_deltanet", "output_gate_activation", "\"sigmoid\"", "output_gate_activation is \"sigmoid\", expected \"swish\" \"silu\""},
    {"gated_deltanet", "norm_eps", "Infinity", "norm_eps is Infinity, expected 0 to 1"},
    {"equal_backbone", "logit_soft_cap", "-1", "logit_soft_cap is -1"},
    {"perceptron", "hidden_size", "64", "model type \"perceptron\" is not offered"},
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
    assert_non_null(strstr((load_with("gated_deltanet", "use_magic", "1"), linnet_error_hint(ctx)), "vocab_size, hidden_size"));
    assert_int_equal(load_with("retnet", "conv_size", "4"), LINNET_OK); /* read by nobody there */
    assert_int_equal(load_with("gated_deltanet", "output_gate_activation", "\"swish\""), LINNET_OK);
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

/* A key that a rule does not read may be there where another layer's rule reads its value; a pattern's new layers do not inherit it. */
static void unread_keys(void **state)
{
    (void)state;
    linnet_config *k;
    assert_int_equal(load_with("equal_backbone", "layer_mixers", "[\"mesa\",\"gla\",\"attention\",\"gla\"], \"mesa_window\": 16, \"window_size\": 8"),
                     LINNET_OK);
    assert_int_equal(linnet_config_create(ctx, "equal_backbone", &k), LINNET_OK);
    assert_int_equal(linnet_config_set(ctx, k, "mesa_window", "16"), LINNET_OK);
    assert_int_equal(lnt_config_check(ctx, k), LINNET_EINVAL); /* nobody reads it yet */
    assert_string_equal(linnet_error_option(ctx), "mesa_window");
    assert_int_equal(linnet_config_set(ctx, k, "rule", "mesa"), LINNET_OK);
    assert_int_equal(lnt_config_check(ctx, k), LINNET_OK);
    assert_int_equal(linnet_config_pattern(ctx, k, "mesa,attention:4"), LINNET_OK);
    assert_int_equal(lnt_config_check(ctx, k), LINNET_OK);
    assert_string_equal(value(k, "mesa.mesa_window"), "16");
    assert_string_equal(value(k, "attention.mesa_window"), "null");
    assert_int_equal(linnet_config_set(ctx, k, "attention.mesa_window", "8"), LINNET_OK);
    assert_int_equal(lnt_config_check(ctx, k), LINNET_EINVAL); /* not what mesa reads */
    assert_string_equal(linnet_error_message(ctx), "attention.mesa_window is 8, expected null: it is for rule mesa, and rule is attention");
    assert_int_equal(linnet_config_set(ctx, k, "attention.mesa_window", "null"), LINNET_OK);
    assert_int_equal(linnet_config_pattern(ctx, k, "gla,attention"), LINNET_OK);
    assert_int_equal(lnt_config_check(ctx, k), LINNET_OK);
    linnet_config_destroy(k);
}

/* A number that follows from other keys is read where it is right, cannot be set, and is always written. */
static void what_follows(void **state)
{
    (void)state;
    linnet_config *k;
    assert_int_equal(load_with("mamba2", "expand", "2.0"), LINNET_OK);
    assert_int_equal(load_with("mamba2", "dt_limit", "[0.0, Infinity]"), LINNET_OK);
    assert_int_equal(linnet_config_create(ctx, "mamba2", &k), LINNET_OK);
    assert_int_equal(linnet_config_set(ctx, k, "hidden_size", "1024"), LINNET_OK);
    assert_int_equal(linnet_config_set(ctx, k, "num_heads", "24"), LINNET_OK);
    assert_non_null(strstr(linnet_config_json(k), "\"expand\": 1.5,"));
    assert_int_equal(linnet_config_set(ctx, k, "head_dim", "128"), LINNET_OK);
    assert_non_null(strstr(linnet_config_json(k), "\"expand\": 3,"));
    assert_int_equal(linnet_config_set(ctx, k, "expand", "3"), LINNET_EINVAL);
    assert_string_equal(linnet_error_message(ctx), "\"expand\" cannot be set: it is num_heads * head_dim / hidden_size");
    linnet_config_destroy(k);
}

/* Some classes of Transformers do not take a null for the heads' width; those among them with a number of their own would take that. */
static void no_null_head_dim(void **state)
{
    static const char *const types[] = {"falcon_h1", "nemotron_h", "olmo_hybrid", "qwen3", "qwen3_5_text", "qwen3_next", "recurrent_gemma"};
    (void)state;
    linnet_config *k;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        assert_int_equal(linnet_config_create(ctx, types[i], &k), LINNET_OK);
        assert_non_null(linnet_config_class(k));
        if (strstr(linnet_config_json(k), "\"head_dim\": null")) fail_msg("%s", types[i]);
        linnet_config_destroy(k);
    }
    assert_int_equal(linnet_config_create(ctx, "qwen3", &k), LINNET_OK);
    assert_int_equal(linnet_config_set(ctx, k, "attention_head_dim", "null"), LINNET_OK);
    assert_null(linnet_config_class(k));
    linnet_config_destroy(k);
}

/* No other library's class has the readout: whatever the type, it is saved as linnet's own, and reads back. */
static void readout_is_our_own(void **state)
{
    (void)state;
    for (int i = 0; type_at(i); i++) {
        linnet_config *k, *again;
        assert_int_equal(linnet_config_create(ctx, type_at(i), &k), LINNET_OK);
        assert_string_equal(value(k, "readout"), "\"token\"");
        if (linnet_config_class(k)) assert_null(strstr(linnet_config_json(k), "readout"));
        assert_int_equal(linnet_config_set(ctx, k, "readout", "last"), LINNET_OK);
        if (linnet_config_class(k)) fail_msg("%s: %s has no readout", type_at(i), linnet_config_class(k));
        assert_int_equal(load(linnet_config_json(k), &again), LINNET_OK);
        assert_true(again->readout == LNT_FROM_LAST && lnt_config_equal(k, again));
        assert_int_equal(linnet_config_set(ctx, k, "readout", "first"), LINNET_EINVAL);
        assert_string_equal(linnet_error_message(ctx), "readout is \"first\", expected token last");
        linnet_config_destroy(k);
        linnet_config_destroy(again);
    }
}

/* No switch is lost by a file: where a type's class has it not, what is set the other way is written as linnet's own, and reads back. */
static bool switch_reads_back(const char *type, int table, int row)
{
    linnet_config *k, *again;
    void *base;
    const lnt_part *part;
    assert_int_equal(linnet_config_create(ctx, type, &k), LINNET_OK);
    const lnt_options *t = lnt_config_table(k, table, &base, &part);
    const char *key = t->row[row].key, *is = lnt_option_get(&t->row[row], base).integer ? "true" : "false";
    const bool turns = linnet_config_set(ctx, k, key, *is == 't' ? "false" : "true") == LINNET_OK && lnt_config_check(ctx, k) == LINNET_OK;
    if (turns) { /* else not beside the others */
        if (load(linnet_config_json(k), &again) != LINNET_OK) fail_msg("%s, %s: %s", type, key, linnet_error_message(ctx));
        if (!strcmp(value(again, key), is)) fail_msg("%s: %s does not read back", type, key);
        assert_string_equal(linnet_config_json(k), linnet_config_json(again));
        linnet_config_destroy(again);
    }
    linnet_config_destroy(k);
    return turns;
}
static void switches_read_back(void **state)
{
    (void)state;
    int turned = 0;
    for (int i = 0; type_at(i); i++) {
        linnet_config *k;
        void *base;
        const lnt_part *part;
        const lnt_options *t;
        assert_int_equal(linnet_config_create(ctx, type_at(i), &k), LINNET_OK);
        for (int n = 0; (t = lnt_config_table(k, n, &base, &part)); n++)
            for (int j = 0; j < t->n; j++) turned += t->row[j].kind == LNT_OPTION_SWITCH && switch_reads_back(type_at(i), n, j);
        linnet_config_destroy(k);
    }
    assert_true(turned > 100);
}

/* The least and the most that a refusal names are taken. */
static void ranges_as_said(void **state)
{
    (void)state;
    for (int m = 0; lnt_mixer_at(m); m++) {
        const lnt_options *all = &lnt_mixer_at(m)->kind.options;
        linnet_config *k;
        assert_int_equal(linnet_config_create(ctx, lnt_mixer_at(m)->kind.about.name, &k), LINNET_OK);
        for (int i = 0; i < all->n; i++) {
            const lnt_option *o = &all->row[i];
            char least[40], most[40];
            if (o->kind != LNT_OPTION_INT && o->kind != LNT_OPTION_REAL) continue;
            assert_int_equal(linnet_config_set(ctx, k, o->key, o->kind == LNT_OPTION_INT ? "-9000000000" : "-1e300"), LINNET_EINVAL);
            const char *said = strstr(linnet_error_message(ctx), ", expected ");
            if (!said || sscanf(said, ", expected %39s to %39s", least, most) != 2) fail_msg("%s", linnet_error_message(ctx));
            if (linnet_config_set(ctx, k, o->key, least) || linnet_config_set(ctx, k, o->key, most)) fail_msg("%s", linnet_error_message(ctx));
        }
        linnet_config_destroy(k);
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
    assert_true(k->hidden_size == 512 && k->mixer_of[1] == 1 && k->mixer_of[3] == 1 && k->mixer_of[2] == 0);
    assert_string_equal(value(k, "allow_neg_eigval"), "true");
    assert_string_equal(value(k, "expand_v"), "1.5");
    assert_string_equal(value(k, "qk_activation"), "\"elu\"");
    assert_string_equal(linnet_config_class(k), "DeltaNetForCausalLM");
    char *text = strdup(linnet_config_json(k));
    assert_string_not_equal(before, text);
    static const char *const wrong[][2] = {{"hidden_size", "big"},     {"hidden_size", "0"}, {"magic", "1"},
                                           {"attn", "{\"layers\":[1"}, {"attn", "{}"},       {"model_type", "retnet"},
                                           {"qk_norm", "\xff"},        {"head_dim", "64"},   {"hidden_size", ""}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_int_equal(linnet_config_set(ctx, k, wrong[i][0], wrong[i][1]), LINNET_EINVAL);
    assert_string_equal(text, linnet_config_json(k)); /* untouched by what was refused */
    assert_int_equal(linnet_config_set(ctx, k, "attn", "null"), LINNET_OK);
    assert_true(k->mixer_of[1] == 0 && k->mixer_of[3] == 0);
    assert_int_equal(linnet_config_set(ctx, k, "logit_soft_cap", "30"), LINNET_OK); /* which the class has not */
    assert_null(linnet_config_class(k));
    free(before);
    free(text);
    linnet_config_destroy(k);
}

/* Kinds of layer by turns. */
static void patterns(void **state)
{
    (void)state;
    static const struct {
        const char *type, *pattern, *class_name, *says, *layers;
    } good[] = {
        {"mesa_net", "mesa_net,attention:256", "MesaNetForCausalLM",
         "\"attn\": {\"layers\": [1, 3, 5], \"num_heads\": 4, \"num_kv_heads\": null, \"qkv_bias\": false, \"window_size\": 256, "
         "\"rope_theta\": 10000.0}", "010101"},
        {"mesa_net", "mesa_net,gated_deltanet", NULL,
         "[\"mesa_net\", \"gated_deltanet\", \"mesa_net\", \"gated_deltanet\", \"mesa_net\", \"gated_deltanet\"]", "010101"},
        {"gated_deltanet", "3*gated_deltanet,attention", "GatedDeltaNetForCausalLM",
         "\"layers\": [3], \"num_heads\": 4, \"num_kv_heads\": null, \"qkv_bias\": false, \"window_size\": null", "000100"},
        {"mesa_net", "mesa_net,2*gated_deltanet,attention:8", NULL,
         "[\"mesa_net\", \"gated_deltanet\", \"gated_deltanet\", \"attention\", \"mesa_net\", \"gated_deltanet\"]", "011201"},
        {"delta_net", "attention:4,attention,delta_net", "DeltaNetForCausalLM", "[{\"layers\": [0, 3], ", "120120"},
        {"transformer", "attention:8", "TransformerForCausalLM", "\"window_size\": 8", "000000"},
        {"transformer", "attention,attention:8", NULL, "\"attention.2\": {\"mixer\": \"attention\"", "010101"},
        {"equal_backbone", "mesa,attention:64", NULL, "[\"mesa\", \"attention\", \"mesa\", \"attention\", \"mesa\", \"attention\"]", "010101"},
        {"equal_backbone", "gated_deltanet", NULL, "\"rule\": \"gated_deltanet\"", "000000"},
        {"equal_backbone", "mesa,retnet,equal_backbone", NULL, "{\"mixer\": \"retnet\", \"num_heads\": 4,", "210210"},
        {"mesa_net", "mesa_net:256", NULL, "\"mesa_window\": 256", "000000"},
        {"mesa_net", "mesa_net:256,mesa_net", NULL, "[\"mesa_net.2\", \"mesa_net\", \"mesa_net.2\"", "101010"},
        {"equal_backbone", "mesa:64,attention:8", NULL, "\"rule\": \"mesa\"", "010101"},
        {"mesa_net", "gated_deltanet", NULL, "\"mixers\": {\n    \"gated_deltanet\": {\"mixer\": \"gated_deltanet\", \"num_heads\": 4,", "000000"},
    };
    static const struct {
        const char *type, *pattern, *says;
    } bad_patterns[] = {
        {"mesa_net", "", "\"\" is no mixer"},
        {"mesa_net", "mesa_net,", "\"\" is no mixer"},
        {"mesa_net", "mesa", "expected attention linear_attn retnet"},
        {"mesa_net", "mesa_net,attention:0", "window of at least 1"},
        {"mesa_net", "mesa_net,attention:x", "window of at least 1"},
        {"mesa_net", "gated_deltanet:5", "gated_deltanet has no window"},
        {"mesa_net", "0*mesa_net,attention", "number of layers from 1"},
        {"mesa_net", "x*mesa_net", "number of layers from 1"},
        {"mesa_net", "5*mesa_net,2*attention", "names 7 layers, but the model has 6"},
        {"equal_backbone", "perceptron", "\"perceptron\" is no mixer, expected attention linear_attn simple_gla gla"},
        {"equal_backbone", "gla:4", "gla has no window"},
    };
    linnet_config *k, *again;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(linnet_config_create(ctx, good[i].type, &k), LINNET_OK);
        assert_int_equal(linnet_config_set(ctx, k, "num_hidden_layers", "6"), LINNET_OK);
        assert_int_equal(linnet_config_set(ctx, k, "num_heads", "4"), LINNET_OK);
        /* a wrong one leaves no trace, and what an earlier pattern said is gone */
        char *between = strdup(linnet_config_json(k));
        for (size_t j = 0; j < sizeof bad_patterns / sizeof *bad_patterns; j++) {
            if (strcmp(good[i].type, bad_patterns[j].type)) continue;
            assert_int_equal(linnet_config_pattern(ctx, k, bad_patterns[j].pattern), LINNET_EINVAL);
            if (!strstr(linnet_error_message(ctx), bad_patterns[j].says)) fail_msg("\"%s\": %s", bad_patterns[j].pattern, linnet_error_message(ctx));
            assert_string_equal(between, linnet_config_json(k));
        }
        free(between);
        char before[96];
        snprintf(before, sizeof before, "%s,retnet,delta_net", k->mixers[0].label); /* the first stays what it is */
        assert_int_equal(linnet_config_pattern(ctx, k, before), LINNET_OK);
        for (int twice = 0; twice < 2; twice++)
            if (linnet_config_pattern(ctx, k, good[i].pattern) != LINNET_OK) fail_msg("%s: %s", good[i].pattern, linnet_error_message(ctx));
        const char *text = linnet_config_json(k), *class_name = linnet_config_class(k);
        if (!strstr(text, good[i].says)) fail_msg("%s: no %s in %s", good[i].pattern, good[i].says, text);
        if (!class_name != !good[i].class_name || (class_name && strcmp(class_name, good[i].class_name)))
            fail_msg("%s: %s", good[i].pattern, class_name);
        assert_int_equal(lnt_config_check(ctx, k), LINNET_OK);
        if (load(text, &again) != LINNET_OK) fail_msg("%s: %s in %s", good[i].pattern, linnet_error_message(ctx), text);
        assert_string_equal(text, linnet_config_json(again));
        for (int l = 0; l < 6; l++) { /* the same layers, whichever part has which number */
            const lnt_part *a = &k->mixers[k->mixer_of[l]], *b = &again->mixers[again->mixer_of[l]];
            assert_int_equal(k->mixer_of[l], good[i].layers[l] - '0');
            assert_ptr_equal(a->kind, b->kind);
            assert_memory_equal(a->options, b->options, a->kind->options.size);
        }
        linnet_config_destroy(again);
        linnet_config_destroy(k);
    }
}

/* A named size reaches the mixers that a pattern adds, whether those that are there have no heads, or more of them than the size says; heads that are
 * set reach them as well. */
static void heads_of_a_size(void **state)
{
    (void)state;
    static const char *const first[] = {"mamba", "lru", "s4d", "hyena", "gated_conv", "longhorn", "mamba2", "rwkv7", "retnet"};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        char pattern[64];
        linnet_config *k;
        snprintf(pattern, sizeof pattern, "%s,attention:16,gla", first[i]);
        assert_int_equal(linnet_config_create(ctx, first[i], &k), LINNET_OK);
        assert_int_equal(linnet_config_preset(ctx, k, "tiny"), LINNET_OK); /* width 256, heads of 64 */
        assert_int_equal(linnet_config_pattern(ctx, k, pattern), LINNET_OK);
        assert_string_equal(value(k, "attention.num_heads"), "4");
        assert_string_equal(value(k, "gla.num_heads"), "4");
        assert_int_equal(linnet_config_set(ctx, k, "num_heads", "8"), LINNET_OK);
        assert_int_equal(linnet_config_pattern(ctx, k, "attention:16,gla,delta_net"), LINNET_OK);
        assert_string_equal(value(k, "delta_net.num_heads"), "8");
        linnet_config_destroy(k);
    }
}

/* Keys of several parts, of one by its label, and other blocks, norms and MLPs. */
static void parts(void **state)
{
    (void)state;
    linnet_config *k, *again;
    assert_int_equal(linnet_config_create(ctx, "delta_net", &k), LINNET_OK);
    assert_int_equal(linnet_config_set(ctx, k, "num_hidden_layers", "4"), LINNET_OK);
    assert_int_equal(linnet_config_pattern(ctx, k, "delta_net,retnet,attention:5,attention"), LINNET_OK);
    static const char *const good[][2] = {{"hidden_size", "64"}, {"num_heads", "2"}, {"retnet.num_heads", "4"}, {"qk_norm", "true"},
                                          {"qk_norm", "sum"}, {"attention.2.qkv_bias", "true"}, {"mlp.multiple_of", "8"}, {"hidden_ratio", "3"},
                                          {"mlp", "{\"kind\":\"swiglu\"}"},
                                          {"block", "parallel"}, {"two_norms", "true"}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (linnet_config_set(ctx, k, good[i][0], good[i][1]) != LINNET_OK) fail_msg("%s: %s", good[i][0], linnet_error_message(ctx));
    static const char *const have[][2] = {{"delta_net.num_heads", "2"}, {"retnet.num_heads", "4"}, {"attention.num_heads", "2"},
                                          {"attention.qk_norm", "true"}, {"delta_net.qk_norm", "\"sum\""}, {"attention.qkv_bias", "false"},
                                          {"attention.2.qkv_bias", "true"}, {"attention.window_size", "5"}, {"attention.2.window_size", "null"},
                                          {"multiple_of", "8"}, {"mlp.hidden_ratio", "3.0"}, {"block.two_norms", "true"}};
    static const char *const wrong[][2] = {{"nobody.num_heads", "2"}, {"retnet.qk_norm", "true"}, {"retnet.", "2"}, {".num_heads", "2"},
                                           {"norm", "softmax"},
                                           {"qk_norm", "3"}, {"num_heads", "x"}, {"layer_mixers", "[1]"}, {"mixers", "[]"}};
    char *text = strdup(linnet_config_json(k));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_int_equal(linnet_config_set(ctx, k, wrong[i][0], wrong[i][1]), LINNET_EINVAL);
    assert_string_equal(text, linnet_config_json(k));
    assert_int_equal(load(text, &again), LINNET_OK);
    assert_string_equal(text, linnet_config_json(again));
    for (size_t i = 0; i < sizeof have / sizeof *have; i++) {
        if (strcmp(value(k, have[i][0]), have[i][1])) fail_msg("%s is %s", have[i][0], value(k, have[i][0]));
        assert_string_equal(value(again, have[i][0]), have[i][1]);
    }
    assert_null(linnet_config_class(k));
    free(text);
    linnet_config_destroy(k);
    linnet_config_destroy(again);
}

/* A number that follows and is listed for each layer: taken alone, as null and as the list, wherever it stands; written as the list. */
static void what_follows_for_each_layer(void **state)
{
    (void)state;
    static const char *const given[] = {"[64, 64]", "64", "null", "32", "[64]", "[64, 128]", "\"64\""};
    for (int i = 0; i < 7; i++) {
        linnet_config *k;
        char text[200];
        snprintf(text, sizeof text, "{\"value_dim\":%s,\"model_type\":\"rwkv7\",\"hidden_size\":64,\"num_hidden_layers\":2}", given[i]);
        assert_int_equal(load(text, &k), i < 3 ? LINNET_OK : LINNET_EFORMAT);
        if (i >= 3) {
            assert_non_null(strstr(linnet_error_message(ctx), ", expected hidden_size = 64 for each layer"));
            continue;
        }
        assert_non_null(strstr(linnet_config_json(k), "\"value_dim\": [64, 64],"));
        assert_int_equal(linnet_config_set(ctx, k, "num_hidden_layers", "3"), LINNET_OK);
        assert_int_equal(linnet_config_set(ctx, k, "hidden_size", "128"), LINNET_OK);
        assert_non_null(strstr(linnet_config_json(k), "\"value_dim\": [128, 128, 128],"));
        assert_int_equal(linnet_config_set(ctx, k, "value_dim", "64"), LINNET_EINVAL);
        linnet_config_destroy(k);
    }
}

/* Infinity and NaN as Python writes them, inside strings left alone. */
static void python_numbers(void **state)
{
    (void)state;
    linnet_config *k, *again;
    assert_int_equal(load("{\"model_type\":\"retnet\",\"id2label\":"
                          "{\"a\":[0.0,Infinity,-Infinity, NaN],\"b\":\"Infinity \\\" NaN\"}}", &k), LINNET_OK);
    const char *text = linnet_config_json(k);
    assert_non_null(strstr(text, "[0.0, Infinity, -Infinity, NaN], \"b\": \"Infinity \\\" NaN\""));
    assert_int_equal(load(text, &again), LINNET_OK);
    assert_string_equal(text, linnet_config_json(again));
    linnet_config_destroy(again);
    assert_int_equal(load("{\"model_type\":\"retnet\",\"x\":Infinit}", &again), LINNET_EFORMAT);
    linnet_config_destroy(k);
}

/* What is read is written back and read the same, and nothing of the file is lost or changed but the numbers' spelling. */
static void check_golden_config(const char *golden, const char *name)
{
    char path[544];
    linnet_config *k, *again;
    if (linnet_config_load(ctx, golden, &k) != LINNET_OK) {
        if (!strstr(linnet_error_message(ctx), "is not offered")) fail_msg("%s: %s", name, linnet_error_message(ctx));
        return;
    }
    assert_int_equal(load(linnet_config_json(k), &again), LINNET_OK);
    assert_string_equal(linnet_config_json(k), linnet_config_json(again));
    snprintf(path, sizeof path, "%s/config.json", golden);
    json_t *theirs = json_load_file(path, 0, NULL), *ours = json_loads(linnet_config_json(k), 0, NULL), *value;
    const char *key;
    json_object_foreach(theirs, key, value) {
        const json_t *mine = json_object_get(ours, key);
        const lnt_arch_other *other = lnt_arch_other_key(lnt_arch_of(k), key);
        if (other && other->dropped) continue; /* the architecture says why */
        bool same = json_is_number(value) ? json_is_number(mine) && json_number_value(mine) == json_number_value(value) : json_equal(mine, value);
        if (strcmp(key, "attn") == 0) same = json_is_null(mine) == json_is_null(value);
        if (!same) fail_msg("%s: %s differs", name, key);
    }
    json_decref(theirs);
    json_decref(ours);
    linnet_config_destroy(k);
    linnet_config_destroy(again);
}

/* The tree's; and where somebody has the full set, those of Transformers. */
static void goldens(void **state)
{
    static const char *const places[][2] = {{GOLDENS, "fla"}, {FULL_GOLDENS, "hf"}};
    char path[512];
    golden_model model[GOLDEN_MODELS];
    (void)state;
    for (int p = 0; p < 2; p++) {
        const int n = golden_models_of(model, places[p][0], places[p][1], NULL);
        assert_true(n >= 8 || p);
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof path, "%s/%s/%.255s", places[p][0], places[p][1], model[i].name);
            check_golden_config(path, model[i].name);
        }
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
        cmocka_unit_test(channel_mix_width),
        cmocka_unit_test(reads_everything),
        cmocka_unit_test(refuses), cmocka_unit_test(unread_keys),
        cmocka_unit_test(what_follows),
        cmocka_unit_test(no_null_head_dim),
        cmocka_unit_test(ranges_as_said),    cmocka_unit_test(set_keys),
        cmocka_unit_test(readout_is_our_own), cmocka_unit_test(switches_read_back),
        cmocka_unit_test(patterns),
        cmocka_unit_test(heads_of_a_size),
        cmocka_unit_test(parts),
        cmocka_unit_test(what_follows_for_each_layer),
        cmocka_unit_test(python_numbers),
        cmocka_unit_test(goldens),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests(tests, setup, close_folder);
}

/* linnet_convert: every golden and every small model of ours to linnet's own type and to the other library, in shards, and back: the same bytes. What
 * cannot be said is refused, and OUT is there whole or not at all. */
#include "model_recipes.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "golden_files.h"
#include "hub/archs.h"
#include "hub/safetensors.h"

static linnet_context *c;
static char top[] = "/tmp/linnet-convert-XXXXXX";

static const char *in_top(const char *name, char path[160])
{
    snprintf(path, 160, "%s/%s", top, name);
    return path;
}

static void clear(const char *name)
{
    char path[160], cmd[200];
    snprintf(cmd, sizeof cmd, "rm -rf %s", in_top(name, path));
    assert_int_equal(system(cmd), 0);
}

static int entries_of(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n - 2;
}

static linnet_status convert(const char *in, const char *out, const char *to, int64_t shard, linnet_convert_result *did)
{
    linnet_convert_options o = LINNET_CONVERT_OPTIONS_INIT;
    o.to = to;
    o.shard_bytes = shard;
    *did = (linnet_convert_result){.size = sizeof *did};
    return linnet_convert(c, in, out, &o, did);
}

static void well(linnet_status s, const char *what)
{
    if (s != LINNET_OK) fail_msg("%s: %s", what, linnet_error_message(c));
}

/* The same tensors; `made`: what a class makes itself may be missing there. */
static void same_tensors(const char *what, const char *folder, const char *made)
{
    lnt_safetensors *a, *b;
    linnet_config *k;
    well(lnt_safetensors_open_folder(c, folder, &a), what);
    well(lnt_safetensors_open_folder(c, made, &b), what);
    well(linnet_config_load(c, folder, &k), what);
    const lnt_arch *arch = lnt_arch_of(k);
    int more = 0;
    for (int i = 0; i < a->n; i++)
        for (const char *const *w = arch->ignored; w && *w; w++) more += strstr(a->tensors[i].name, *w) != NULL;
    for (int i = 0; i < b->n; i++) {
        const lnt_st_tensor *u = &b->tensors[i], *t = lnt_safetensors_find(a, golden_tensor(folder, u->name));
        if (!t) fail_msg("%s: %s was not there", what, u->name);
        if (t->dtype != u->dtype || t->ndim != u->ndim || memcmp(t->dim, u->dim, (size_t)t->ndim * sizeof *t->dim))
            fail_msg("%s: %s has another shape or dtype", what, t->name);
        if (memcmp(t->data, u->data, (size_t)t->count * lnt_dtype_size(t->dtype))) fail_msg("%s: %s has other bytes", what, t->name);
    }
    assert_int_equal(b->n, a->n - more);
    lnt_safetensors_close(a);
    lnt_safetensors_close(b);
    linnet_config_destroy(k);
}

/* There in small files, and back to the type that the folder had. */
static void there_and_back(const char *folder, const char *to, const char *type)
{
    char there[160], back[160], index[200];
    linnet_convert_result did;
    clear("there");
    clear("back");
    well(convert(folder, in_top("there", there), to, 5000, &did), folder);
    assert_true(did.weight_files > 1 && did.parameters > 0 && did.bytes > 0);
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", there);
    assert_int_equal(access(index, R_OK), 0);
    well(convert(there, in_top("back", back), type, 0, &did), folder);
    assert_true(did.weight_files == 1);
    same_tensors(folder, folder, back);
}

static void check_goldens(const char *goldens, const char *library, const char *other)
{
    golden_model model[GOLDEN_MODELS];
    const int n = golden_models_of(model, goldens, library, NULL);
    int across = 0;
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        char folder[512], there[160];
        linnet_config *k;
        linnet_convert_result did;
        snprintf(folder, sizeof folder, "%s/%s/%.255s", goldens, library, model[i].name);
        if (linnet_config_load(c, folder, &k) != LINNET_OK) { /* a layer that linnet does not have */
            assert_non_null(strstr(linnet_error_message(c), "is not offered"));
            continue;
        }
        const char *type = lnt_arch_name(lnt_arch_of(k));
        there_and_back(folder, "linnet", type);
        there_and_back(folder, !strcmp(other, "fla") ? "transformers" : "fla", type);
        clear("there");
        if (convert(folder, in_top("there", there), other, 0, &did) == LINNET_OK) {
            there_and_back(folder, other, type);
            across++;
        } else {
            assert_non_null(strstr(linnet_error_message(c), "computes this model"));
            assert_int_not_equal(access(there, F_OK), 0);
        }
        linnet_config_destroy(k);
    }
    assert_true(across > 0);
}

static void goldens_there_and_back(void **state)
{
    (void)state;
    check_goldens(GOLDENS, "fla", "transformers");
}

static void more_goldens_there_and_back(void **state)
{
    (void)state;
    NEEDS_FULL_GOLDENS;
    check_goldens(FULL_GOLDENS, "fla", "transformers");
    check_goldens(FULL_GOLDENS, "hf", "fla");
}

/* Every small model that the tests have: under linnet's own type, and back under the type that it is saved as. */
static void own_models_there_and_back(void **state)
{
    (void)state;
    char folder[160], a[200], b[200], cmd[440];
    for (int i = 0; i < RECIPES; i++) {
        linnet_model *m = model_of(c, &recipes[i], LINNET_F32);
        clear("model");
        well(linnet_model_save(c, m, in_top("model", folder)), recipes[i].name);
        const lnt_arch *arch = lnt_arch_of(m->config);
        there_and_back(folder, "linnet", lnt_arch_name(arch));
        snprintf(a, sizeof a, "%s/model/config.json", top);
        snprintf(b, sizeof b, "%s/back/config.json", top);
        snprintf(cmd, sizeof cmd, "cmp -s %s %s", a, b);
        if (system(cmd) != 0) fail_msg("%s: another configuration came back", recipes[i].name);
        linnet_model_destroy(m);
    }
}

/* Samba as a pattern makes it: no class of its first kind has the MLP, but Samba's does, with the number of channels that Mamba takes by itself. */
static void samba_of_a_pattern(void **state)
{
    (void)state;
    char folder[160], there[160];
    linnet_config *k;
    linnet_model *m;
    linnet_convert_result did;
    well(linnet_config_create(c, "mamba", &k), "mamba");
    well(linnet_config_preset(c, k, "nano"), "nano");
    well(linnet_config_set(c, k, "vocab_size", "61"), "vocab_size");
    well(linnet_config_pattern(c, k, "mamba,attention:16"), "pattern");
    well(linnet_config_set(c, k, "mlp", "swiglu"), "mlp");
    assert_null(linnet_config_class(k));
    well(linnet_model_create(c, k, LINNET_F32, 1, &m), "model");
    clear("model");
    well(linnet_model_save(c, m, in_top("model", folder)), "model");
    clear("there");
    well(convert(folder, in_top("there", there), "fla", 0, &did), "fla");
    assert_string_equal(did.class_name, "SambaForCausalLM");
    there_and_back(folder, "samba", "linnet");
    linnet_model_destroy(m);
    linnet_config_destroy(k);
}

static void make_llama(const char *folder)
{
    linnet_config *k;
    linnet_model *m;
    static const char *const set[][2] = {{"num_hidden_layers", "2"}, {"hidden_size", "32"}, {"vocab_size", "61"}, {"num_heads", "2"},
                                         {"intermediate_size", "40"}};
    well(linnet_config_create(c, "llama", &k), folder);
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) well(linnet_config_set(c, k, set[i][0], set[i][1]), folder);
    well(linnet_model_create(c, k, LINNET_F32, 1, &m), folder);
    well(linnet_model_save(c, m, folder), folder);
    linnet_model_destroy(m);
    linnet_config_destroy(k);
}

/* Rounded to the nearest, and kept as it is from then on. */
static void dtypes(void **state)
{
    (void)state;
    char model[160], half[160], again[160];
    linnet_convert_options o = LINNET_CONVERT_OPTIONS_INIT;
    const lnt_dtype types[] = {LINNET_BF16, LINNET_F16};
    clear("model");
    make_llama(in_top("model", model));
    for (int i = 0; i < 2; i++) {
        linnet_convert_result did;
        lnt_safetensors *a, *b;
        clear("half");
        clear("again");
        o.to = "fla";
        o.dtype = types[i];
        well(linnet_convert(c, model, in_top("half", half), &o, NULL), "half");
        well(convert(half, in_top("again", again), "transformers", 3000, &did), "again");
        well(lnt_safetensors_open_folder(c, model, &a), "model");
        well(lnt_safetensors_open_folder(c, again, &b), "again");
        assert_int_equal(a->n, b->n);
        for (int t = 0; t < a->n; t++) {
            assert_int_equal(b->tensors[t].dtype, types[i]);
            for (int64_t e = 0; e < a->tensors[t].count; e++) {
                uint16_t got;
                float was;
                memcpy(&got, (const char *)b->tensors[t].data + 2 * e, 2);
                memcpy(&was, (const char *)a->tensors[t].data + 4 * e, 4);
                assert_int_equal(got, types[i] == LINNET_BF16 ? lnt_f32_to_bf16(was) : lnt_f32_to_f16(was));
            }
        }
        lnt_safetensors_close(a);
        lnt_safetensors_close(b);
    }
}

static void refuses(const char *in, const char *out, const linnet_convert_options *o, const char *message)
{
    char path[160];
    clear("made");
    assert_int_not_equal(linnet_convert(c, in, in_top(out, path), o, NULL), LINNET_OK);
    if (!strstr(linnet_error_message(c), message)) fail_msg("\"%s\", expected \"%s\"", linnet_error_message(c), message);
}

/* Nothing is left where something is refused, in the beginning or in the middle. */
static void nothing_half_written(void **state)
{
    (void)state;
    char model[160], out[160], path[200];
    linnet_convert_options o = LINNET_CONVERT_OPTIONS_INIT;
    linnet_model *m;
    linnet_convert_result did;
    clear("model");
    make_llama(in_top("model", model));
    refuses(model, "made", &o, "NULL");
    o.to = "gpt5";
    refuses(model, "made", &o, "\"gpt5\" is no model type");
    o.to = "gla";
    refuses(model, "made", &o, "model type gla does not compute this model (llama): a layer is attention");
    o.to = "recurrent_gemma";
    refuses(model, "made", &o, "(llama): the norm is rmsnorm, not centred_rmsnorm");
    o.to = "transformers";
    o.dtype = LINNET_F64;
    refuses(model, "made", &o, "dtype is f64");
    o.dtype = LINNET_F16;
    well(linnet_model_load(c, model, LINNET_F32, &m), "model");
    m->w->master[lnt_param_find(m->p, "lm_head.weight")->offset + 5] = 1e6f; /* the last tensor */
    well(linnet_model_save(c, m, model), "model");
    linnet_model_destroy(m);
    clear("half");
    clear("there");
    clear("back");
    clear("again");
    o.shard_bytes = 3000;
    refuses(model, "made", &o, "which float16 cannot");
    assert_int_equal(entries_of(top), 1); /* the model; nothing beside OUT either */
    o.dtype = LINNET_CONVERT_KEEP;
    well(linnet_convert(c, model, in_top("made", out), &o, NULL), "made");
    assert_int_equal(linnet_convert(c, model, out, &o, NULL), LINNET_EINVAL);
    assert_non_null(strstr(linnet_error_message(c), "is not empty"));
    /* what a writer that lives no more left goes with the next; one that lives is left alone */
    clear("made");
    snprintf(path, sizeof path, "%s/made.writing-0123456789abcdef", top);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/made.writing-0123456789abcdef/writing.lock", top);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    well(convert(model, out, "linnet", 0, &did), "made");
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(entries_of(top), 2);
    assert_string_equal(did.class_name, "");
    clear("made");
    snprintf(path, sizeof path, "%s/made", top);
    assert_int_equal(mkdir(path, 0700), 0); /* an empty folder is free */
    well(convert(model, out, "fla", 0, &did), "made");
    assert_string_equal(did.class_name, "TransformerForCausalLM");
}

static const char *shown(linnet_config *k, const char *key)
{
    static char text[64];
    well(linnet_config_get(c, k, key, text, sizeof text), key);
    return text;
}

/* What share of a head bamba turns follows from the release that wrote the file, whose words are kept as long as that release computes the model. */
static void a_release_and_its_words(void **state)
{
    (void)state;
    static const struct {
        const char *release, *share, *set; /* keys of the file; what is set then */
        const char *used;
        bool kept; /* the file's words in what is written */
    } all[] = {
        {"\"transformers_version\": \"5.14.1\",", "0.5", NULL, "1.0", true},  {"\"transformers_version\": \"5.15.0\",", "0.5", NULL, "0.5", true},
        {"\"transformers_version\": \"4.57.0\",", "0.25", NULL, "0.25", true}, {"", "0.5", NULL, "0.5", true},
        {"\"transformers_version\": \"5.10.4\",", "0.5", "0.25", "0.25", false}, {"\"transformers_version\": \"5.15.0\",", "0.5", "1", "1.0", false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char text[400], share[80];
        linnet_config *k, *again;
        snprintf(text, sizeof text, "{\"model_type\": \"bamba\", %s \"num_hidden_layers\": 2, \"attn_layer_indices\": [1], "
                 "\"partial_rotary_factor\": %s, \"rope_parameters\": {\"partial_rotary_factor\": %s}}", all[i].release, all[i].share, all[i].share);
        well(lnt_config_parse(c, "text", text, strlen(text), &k), text);
        if (all[i].set) well(linnet_config_set(c, k, "attention.rotary_factor", all[i].set), text);
        assert_string_equal(shown(k, "attention.rotary_factor"), all[i].used);
        const char *out = linnet_config_json(k);
        assert_non_null(strstr(out, "\"BambaForCausalLM\""));
        well(lnt_config_parse(c, "text", out, strlen(out), &again), out);
        assert_string_equal(shown(again, "attention.rotary_factor"), all[i].used);
        assert_string_equal(linnet_config_json(again), out);
        snprintf(share, sizeof share, "\"partial_rotary_factor\": %s", all[i].share);
        const char *first = strstr(out, share);
        assert_int_equal(first && strstr(first + 1, share), all[i].kept);
        linnet_config_destroy(k);
        linnet_config_destroy(again);
    }
}

static int begin(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(top));
    return linnet_context_create(NULL, &c);
}

static int end(void **state)
{
    char cmd[64];
    (void)state;
    linnet_context_destroy(c);
    snprintf(cmd, sizeof cmd, "rm -r %s", top);
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_release_and_its_words), cmocka_unit_test(dtypes), cmocka_unit_test(nothing_half_written),
        cmocka_unit_test(own_models_there_and_back), cmocka_unit_test(samba_of_a_pattern),
        cmocka_unit_test(goldens_there_and_back), cmocka_unit_test(more_goldens_there_and_back),
    };
    return cmocka_run_group_tests(tests, begin, end);
}

/* A byte for a file of a model's folder (tokenizer_config.json, chat_template.jinja, generation_config.json), the rest its bytes: refused, or a
 * conversation is written in ids, in the folder's way and in every built-in one. */
#include "fuzz_file.h"
#include "serve/chat_template.h"

static void converse(linnet_context *c, const linnet_tokenizer *t, const lnt_specials *s, const char *name)
{
    static const lnt_message said[] = {{LNT_SYSTEM, "<s>be brief", 11}, {LNT_USER, "who sang?<|im_end|>", 19}, {LNT_ASSISTANT, "a linnet", 8},
                                       {LNT_USER, "", 0}};
    lnt_chat_template k;
    int32_t *ids;
    int64_t n;
    if (fuzz_said(c, lnt_chat_template_find(c, s, name, &k)) != LINNET_OK) return;
    lnt_chat_template_end(&k);
    lnt_chat_template_stop(&k);
    if (fuzz_said(c, lnt_chat_template_ids(c, &k, s, said, sizeof said / sizeof *said, &ids, &n)) != LINNET_OK) return;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= linnet_tokenizer_vocabulary(t)) abort();
    lnt_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const files[] = {"tokenizer_config.json", "chat_template.jinja", "generation_config.json"};
    static const char *const ways[] = {NULL, "chatml", "llama3", "gemma", "granite", "zephyr", "mistral", "mistral-v3", "plain"};
    linnet_context *c = fuzz_context();
    static linnet_tokenizer *t;
    if (!t && linnet_tokenizer_open(c, "bytes", &t) != LINNET_OK) abort();
    if (!size) return 0;
    for (int i = 0; i < 3; i++)
        if (i != data[0] % 3) unlink(fuzz_path(files[i]));
    fuzz_write(files[data[0] % 3], data + 1, size - 1);
    lnt_specials s;
    if (fuzz_said(c, lnt_specials_open(c, t, fuzz_folder, &s)) == LINNET_OK) {
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) converse(c, t, &s, ways[i]);
        for (int i = 0; i < s.n_end_ids; i++)
            if (s.end_ids[i] < 0 || s.end_ids[i] >= linnet_tokenizer_vocabulary(t)) abort();
    }
    lnt_specials_close(&s);
    return 0;
}

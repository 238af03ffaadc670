#include "serve/chat_template.h"

#include <string.h>

#include "linnet/serve.h"

struct lnt_chat_family {
    const char *name;
    const char *has[2], *has_not; /* strings of a template of this family; NULL: none */
    const char *begin;            /* where no tokenizer_config.json says otherwise */
    const char *open[LNT_ROLES], *close[LNT_ROLES]; /* around a message; open NULL: the family has no such role */
    const char *answer;           /* in front of what the assistant is to say */
    const char *end, *stop;
    bool trim;                    /* messages without the white space around them */
};

static const lnt_chat_family families[] = {
    {"chatml", {"<|im_start|>", NULL}, NULL, "",
     {"<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n"}, {"<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n"},
     "<|im_start|>assistant\n", "<|im_end|>", NULL, false},
    {"llama3", {"<|start_header_id|>", "<|eot_id|>"}, NULL, "<|begin_of_text|>",
     {"<|start_header_id|>system<|end_header_id|>\n\n", "<|start_header_id|>user<|end_header_id|>\n\n",
      "<|start_header_id|>assistant<|end_header_id|>\n\n"},
     {"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"}, "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", NULL, true},
    {"gemma", {"<start_of_turn>", NULL}, NULL, "<bos>",
     {NULL, "<start_of_turn>user\n", "<start_of_turn>model\n"}, {NULL, "<end_of_turn>\n", "<end_of_turn>\n"}, "<start_of_turn>model\n",
     "<end_of_turn>", NULL, true},
    {"granite", {"<|start_of_role|>", NULL}, NULL, "",
     {"<|start_of_role|>system<|end_of_role|>", "<|start_of_role|>user<|end_of_role|>", "<|start_of_role|>assistant<|end_of_role|>"},
     {"<|end_of_text|>\n", "<|end_of_text|>\n", "<|end_of_text|>\n"}, "<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>", NULL, false},
    {"zephyr", {"<|user|>", "<|assistant|>"}, "<|im_start|>", "",
     {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"}, {"</s>\n", "</s>\n", "</s>\n"}, "<|assistant|>\n", "</s>", NULL, false},
    {"mistral", {" [/INST]", NULL}, "<<SYS>>", "<s>",
     {NULL, "[INST] ", " "}, {NULL, " [/INST]", "</s>"}, "", "</s>", NULL, false},
    {"mistral-v3", {"[/INST]", NULL}, "<<SYS>>", "<s>",
     {NULL, "[INST] ", " "}, {NULL, "[/INST]", "</s>"}, "", "</s>", NULL, false},
    {"plain", {NULL, NULL}, NULL, "",
     {"", "User: ", "Assistant: "}, {"\n\n", "\n\n", "\n\n"}, "Assistant:", NULL, "\n\nUser:", true},
};
enum { FAMILIES = sizeof families / sizeof *families };

const char *linnet_chat_template_name(int i) { return i >= 0 && i < FAMILIES ? families[i].name : NULL; }

static linnet_status unknown(lnt_ctx *c, const char *name)
{
    char names[256] = "";
    for (int i = 0; i < FAMILIES; i++) strcat(strcat(names, i ? ", " : ""), families[i].name);
    lnt_fail(c, LINNET_EINVAL, "there is no chat template \"%.64s\"", name);
    return lnt_hint(c, "There are %s.", names);
}

static bool is(const lnt_chat_family *f, const char *source)
{
    if (!f->has[0] || !strstr(source, f->has[0]) || (f->has[1] && !strstr(source, f->has[1]))) return false;
    return !f->has_not || !strstr(source, f->has_not);
}

linnet_status lnt_chat_template_find(lnt_ctx *c, const lnt_specials *s, const char *name, lnt_chat_template *out)
{
    *out = (lnt_chat_template){.begin = ""};
    const char *source = s->chat_template;
    for (int i = 0; i < FAMILIES && !out->family; i++)
        if (name ? !strcmp(name, families[i].name) : source && is(&families[i], source)) out->family = &families[i];
    if (name && !out->family) return unknown(c, name);
    lnt_format(out->why, sizeof out->why, "%s",
               source ? "the chat template of the model's folder is of no family that linnet knows" : "the model's folder has no chat template");
    if (!out->family) return LINNET_OK;
    const bool begins = !source || (s->bos && (strstr(source, "bos_token") || strstr(source, s->bos)));
    out->begin = !begins ? "" : source ? s->bos : out->family->begin;
    return LINNET_OK;
}

const char *lnt_chat_template_end(const lnt_chat_template *k) { return k->family ? k->family->end : NULL; }
const char *lnt_chat_template_stop(const lnt_chat_template *k) { return k->family ? k->family->stop : NULL; }

static linnet_status put(lnt_ids_out *o, const lnt_chat_family *f, const lnt_message *m)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    const char *text = m->text;
    size_t n = m->bytes;
    if (!f->open[m->role])
        return lnt_fail(o->c, LINNET_EINVAL, "messages has one of role \"%s\", which the chat template \"%s\" lacks", roles[m->role], f->name);
    for (; f->trim && n && strchr(" \t\r\n", *text); n--) text++;
    while (f->trim && n && strchr(" \t\r\n", text[n - 1])) n--;
    LNT_TRY(lnt_ids_marks(o, f->open[m->role], strlen(f->open[m->role])));
    LNT_TRY(lnt_ids_text(o, text, n));
    return lnt_ids_marks(o, f->close[m->role], strlen(f->close[m->role]));
}

linnet_status lnt_chat_template_ids(lnt_ctx *c, const lnt_chat_template *k, const lnt_specials *s, const lnt_message *messages, int64_t n,
                                    int32_t **ids, int64_t *n_ids)
{
    lnt_ids_out o = {.c = c, .s = s};
    *ids = NULL;
    *n_ids = 0;
    if (!k->family) {
        lnt_fail(c, LINNET_EUNSUPPORTED, "%s", k->why);
        return lnt_hint(c, "Name the family's with --chat-template, or use /v1/completions.");
    }
    linnet_status status = lnt_ids_marks(&o, k->begin, strlen(k->begin));
    for (int64_t i = 0; i < n && status == LINNET_OK; i++) status = put(&o, k->family, &messages[i]);
    if (status == LINNET_OK) status = lnt_ids_marks(&o, k->family->answer, strlen(k->family->answer));
    if (status == LINNET_OK) status = lnt_ids_end(&o);
    if (status == LINNET_OK) *ids = o.ids, *n_ids = o.n, o.ids = NULL;
    lnt_ids_close(&o);
    return status;
}

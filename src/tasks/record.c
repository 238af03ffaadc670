#include "tasks/record.h"

#include <stdio.h>
#include <string.h>

#include "hub/json.h"
#include "tasks/results.h"

static json_t *texts(const char *const *text, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_string(text[i]));
    return list;
}

static json_t *value_of(const lnt_option *o, const void *values)
{
    const lnt_given g = lnt_option_get(o, values);
    switch (g.kind) {
    case LNT_GIVEN_INT: return json_integer((json_int_t)g.integer);
    case LNT_GIVEN_REAL: return json_real(g.real);
    case LNT_GIVEN_BOOL: return json_boolean(g.integer);
    case LNT_GIVEN_WORD: return json_string(g.word);
    default: return json_null();
    }
}

static json_t *options_of(const lnt_task *t, const void *values)
{
    json_t *all = json_object();
    for (int i = 0; i < t->options.n; i++) json_object_set_new(all, t->options.row[i].key, value_of(&t->options.row[i], values));
    for (int i = 0; i < t->n_texts; i++) {
        const char *text = *(const char *const *)((const char *)values + t->texts[i].offset);
        json_object_set_new(all, t->texts[i].key, text ? json_string(text) : json_null());
    }
    return all;
}

/* The keys of config.json; the vocabulary of what learns from examples is the task's. */
static linnet_status model_of(const lnt_run *r, json_t **out)
{
    linnet_config *k;
    LNT_TRY(lnt_config_copy(r->c, r->o->model ? r->o->model->config : r->o->config, &k));
    const char *text = linnet_config_json(k);
    *out = text ? json_loads(text, 0, NULL) : NULL;
    linnet_config_destroy(k);
    if (!r->o->model) json_object_del(*out, "vocab_size");
    return *out ? LINNET_OK : lnt_fail_memory(r->c, 4096);
}

static void put_text(json_t *j, const char *key, const char *text)
{
    if (text) json_object_set_new(j, key, json_string(text));
}

static json_t *begin(const lnt_report *p, const char *command)
{
    json_t *j = json_pack("{s:s,s:s,s:s}", "task", p->task, "row", LNT_RESULTS_ROW, "version", linnet_version());
    put_text(j, "command", command);
    put_text(j, "machine", linnet_machine(p->c));
    return j;
}

linnet_status lnt_record_run(lnt_run *r)
{
    const linnet_task_options *o = r->o;
    json_t *j = begin(&r->report, o->command);
    put_text(j, "protocol", o->protocol ? o->protocol : "short");
    if (o->max_seconds > 0) json_object_set_new(j, "max_seconds", json_real(o->max_seconds));
    put_text(j, "dtype", lnt_dtype_name(o->model ? o->model->dtype : (lnt_dtype)o->dtype));
    if (o->n_files) json_object_set_new(j, "texts", texts(o->files, o->n_files));
    json_object_set_new(j, "options", options_of(r->task, r->values));
    json_t *model;
    r->report.settings = j;
    LNT_TRY(model_of(r, &model));
    return json_object_set_new(j, "model", model) == 0 ? LINNET_OK : lnt_fail_memory(r->c, 4096);
}

linnet_status lnt_record_runs(lnt_report *p, const linnet_compare_options *o)
{
    p->settings = begin(p, o->command);
    return json_object_set_new(p->settings, "runs", texts(o->runs, o->n_runs)) == 0 ? LINNET_OK : lnt_fail_memory(p->c, 4096);
}

/* "steps 1000, batch 64": texts without quotes. */
static void put_object(lnt_report *p, const char *title, const json_t *object)
{
    char line[4000] = "";
    const char *key;
    json_t *value;
    size_t at = 0;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        char *text = json_is_string(value) ? NULL : lnt_json_text(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(10));
        const char *shown = text ? text : json_string_value(value);
        if (at < sizeof line) at += (size_t)snprintf(line + at, sizeof line - at, "%s%s %s", at ? ", " : "", key, shown ? shown : "");
        lnt_free(text);
    }
    if (at) lnt_report_words(p, "%s: %s", title, line);
}

void lnt_record_words(lnt_report *p)
{
    const json_t *j = p->settings;
    const char *command = json_string_value(json_object_get(j, "command")), *protocol = json_string_value(json_object_get(j, "protocol"));
    const double seconds = json_number_value(json_object_get(j, "max_seconds"));
    char limit[64] = "";
    if (command) lnt_report_words(p, "%s", command);
    if (seconds > 0) lnt_format(limit, sizeof limit, ", at most %g seconds", seconds);
    lnt_report_words(p, "linnet %s; %s%s%s%s%s%s", json_string_value(json_object_get(j, "version")), json_string_value(json_object_get(j, "machine")),
                     protocol ? ", " : "", protocol ? json_string_value(json_object_get(j, "dtype")) : "", protocol ? "; protocol " : "",
                     protocol ? protocol : "", limit);
    put_object(p, "Options", json_object_get(j, "options"));
    put_object(p, "Model", json_object_get(j, "model"));
}

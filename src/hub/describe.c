/* linnet_model_describe: a model as text, Graphviz, a parameter table, JSON. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"

static const char *init_name(const lnt_init *i, char *text, size_t size)
{
    switch (i->kind) {
    case LNT_INIT_CONST: lnt_format(text, size, "%g", i->a); break;
    case LNT_INIT_NORMAL: lnt_format(text, size, "normal(0, %.4g)", i->a); break;
    case LNT_INIT_UNIFORM: lnt_format(text, size, "uniform(%g, %g)", i->a, i->b); break;
    case LNT_INIT_IDENTITY: snprintf(text, size, "identity"); break;
    case LNT_INIT_SPREAD: lnt_format(text, size, "%g .. %g, in order", i->a, i->b); break;
    case LNT_INIT_LOG_PLACE: snprintf(text, size, "log of 1, 2, .."); break;
    case LNT_INIT_A_LOG: lnt_format(text, size, "log uniform(%g, %g)", i->a, i->b); break;
    case LNT_INIT_PLACE: lnt_format(text, size, "%g times 0, 1, ..", i->a); break;
    case LNT_INIT_DECAY_SOFTPLUS: lnt_format(text, size, "decays of about %g to %g, as softplus^-1", i->a, i->b); break;
    case LNT_INIT_DECAY_LOG: lnt_format(text, size, "decays of about %g to %g, as log", i->a, i->b); break;
    case LNT_INIT_DT_BIAS: lnt_format(text, size, "softplus^-1 of log-uniform(%g, %g)", i->a, i->b); break;
    }
    return text;
}

static void shape_text(const lnt_param *q, char *text, size_t size)
{
    int n = snprintf(text, size, "[");
    for (int d = 0; d < q->ndim; d++) n += snprintf(text + n, size - (size_t)n, "%s%lld", d ? "," : "", (long long)q->dim[d]);
    snprintf(text + n, size - (size_t)n, "]");
}

static char *parameter_table(const lnt_program *p)
{
    enum { LINE = 256 };
    int n = lnt_param_count(p), widest = 9;
    for (int i = 0; i < n; i++) {
        int w = (int)strlen(lnt_param_at(p, i)->name);
        if (w > widest) widest = w < 120 ? w : 120;
    }
    size_t size = lnt_bytes((size_t)n + 2, LINE);
    char *text = lnt_alloc(size), *at = text, shape[96], init[64];
    if (!text) return NULL;
    at += snprintf(at, LINE, "%-*s  %-18s %12s  %-6s %s\n", widest, "parameter", "shape", "elements", "decay", "starts as");
    for (int i = 0; i < n; i++) {
        const lnt_param *q = lnt_param_at(p, i);
        shape_text(q, shape, sizeof shape);
        int used = snprintf(at, LINE, "%-*.120s  %-18s %12lld  %-6s %s\n", widest, q->name, shape, (long long)q->count, q->decay ? "yes" : "no",
                            init_name(&q->init, init, sizeof init));
        at += used < LINE ? used : LINE - 1;
    }
    return text;
}

static json_t *nodes_json(const lnt_program *p)
{
    json_t *nodes = json_array();
    for (int i = 0; i < lnt_node_count(p); i++) {
        const lnt_node *n = lnt_node_at(p, i);
        char about[256] = "";
        if (n->op->describe) n->op->describe(n, about, sizeof about);
        json_t *in = json_array(), *out = json_array(), *params = json_array();
        for (int k = 0; k < n->n_in; k++) json_array_append_new(in, json_integer(n->in[k].id));
        for (int k = 0; k < n->n_out; k++)
            json_array_append_new(out, json_pack("{s:i,s:I,s:i,s:b}", "id", n->out[k].id, "columns", (json_int_t)lnt_cols(p, n->out[k]), "heads",
                                                 lnt_heads(p, n->out[k]), "float32", (int)lnt_program_value(p, n->out[k])->f32));
        for (int k = 0; k < n->n_param; k++) json_array_append_new(params, json_string(lnt_param_at(p, n->param[k])->name));
        json_array_append_new(nodes, json_pack("{s:s,s:s,s:i,s:o,s:o,s:o}", "operator", n->op->name, "attributes", about, "layer", n->block, "inputs",
                                               in, "outputs", out, "parameters", params));
    }
    return nodes;
}

static char *model_json(linnet_model *m)
{
    linnet_model_info info = {.size = sizeof info};
    linnet_model_get_info(m, &info);
    json_t *params = json_array();
    char init[64];
    for (int i = 0; i < lnt_param_count(m->p); i++) {
        const lnt_param *q = lnt_param_at(m->p, i);
        json_t *shape = json_array();
        for (int d = 0; d < q->ndim; d++) json_array_append_new(shape, json_integer(q->dim[d]));
        json_array_append_new(params, json_pack("{s:s,s:o,s:b,s:s}", "name", q->name, "shape", shape, "decay", (int)q->decay, "starts_as",
                                                init_name(&q->init, init, sizeof init)));
    }
    const char *config = linnet_config_json(m->config);
    json_t *all = json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:o,s:o}", "model_type", info.model_type, "parameters", (json_int_t)info.parameters,
                            "vocabulary", (json_int_t)info.vocabulary, "width", (json_int_t)info.width, "layers", (json_int_t)info.layers,
                            "state_bytes_per_sequence", (json_int_t)info.state_bytes_per_sequence, "state_capacity", (json_int_t)info.state_capacity,
                            "config", config ? json_loads(config, 0, NULL) : json_null(), "parameter_table", params, "program", nodes_json(m->p));
    char *dumped = all ? json_dumps(all, JSON_INDENT(1)) : NULL, *text = dumped ? lnt_strdup(dumped) : NULL;
    free(dumped);
    json_decref(all);
    return text;
}

char *linnet_model_describe(linnet_model *m, linnet_describe what)
{
    if (!m) return NULL;
    switch (what) {
    case LINNET_DESCRIBE_TEXT: return lnt_program_text(m->p);
    case LINNET_DESCRIBE_GRAPHVIZ: return lnt_program_graphviz(m->p);
    case LINNET_DESCRIBE_PARAMETERS: return parameter_table(m->p);
    case LINNET_DESCRIBE_JSON: return model_json(m);
    }
    return NULL;
}

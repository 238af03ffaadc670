/* The program as text and as Graphviz. */
#include <stdio.h>
#include <string.h>

#include "program/program_internal.h"

typedef struct {
    char *text;
    size_t used, size;
    bool failed;
} text_buffer;

static void put(text_buffer *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(text_buffer *t, const char *format, ...)
{
    if (t->failed) return;
    char line[1024];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    if (n >= (int)sizeof line) n = sizeof line - 1;
    if (t->used + (size_t)n + 1 > t->size) {
        size_t more = t->size ? t->size * 2 : 16384;
        char *p = lnt_realloc(t->text, t->used, more);
        if (!p) {
            t->failed = true;
            return;
        }
        t->text = p;
        t->size = more;
    }
    memcpy(t->text + t->used, line, (size_t)n + 1);
    t->used += (size_t)n;
}

static char *finish(text_buffer *t)
{
    if (t->failed) {
        lnt_free(t->text);
        return NULL;
    }
    return t->text;
}

static void put_op(text_buffer *t, const lnt_node *n)
{
    char about[256] = "";
    if (n->op->describe) n->op->describe(n, about, sizeof about);
    put(t, "%s%s%s", n->op->name, about[0] ? " " : "", about);
}

static void put_shape(text_buffer *t, const lnt_value *v)
{
    if (v->heads > 1)
        put(t, "[T,%d,%lld]%s", v->heads, (long long)(v->cols / v->heads), v->f32 ? " f32" : "");
    else
        put(t, "[T,%lld]%s", (long long)v->cols, v->f32 ? " f32" : "");
}

char *lnt_program_text(const lnt_program *p)
{
    text_buffer t = {0};
    int block = -2;
    for (int i = 0; i < p->n_nodes; i++) {
        const lnt_node *n = p->nodes[i];
        if (n->block != block) {
            block = n->block;
            if (block >= 0) put(&t, "layer %d\n", block);
        }
        put(&t, "  ");
        for (int k = 0; k < n->n_out; k++) {
            put(&t, "%%%d ", n->out[k].id);
            put_shape(&t, &p->values[n->out[k].id].v);
        }
        put(&t, " = ");
        put_op(&t, n);
        put(&t, "(");
        for (int k = 0; k < n->n_in; k++) {
            int id = n->in[k].id;
            if (!id)
                put(&t, "%s-", k ? ", " : "");
            else if (p->values[id].v.external)
                put(&t, "%s%s", k ? ", " : "", p->values[id].v.name);
            else
                put(&t, "%s%%%d", k ? ", " : "", p->values[id].root);
        }
        put(&t, ")");
        for (int k = 0; k < n->n_param; k++) {
            const lnt_param *q = &p->params[n->param[k]];
            put(&t, "  %s[", q->name);
            for (int d = 0; d < q->ndim; d++) put(&t, "%s%lld", d ? "," : "", (long long)q->dim[d]);
            put(&t, "]");
        }
        put(&t, "\n");
    }
    return finish(&t);
}

char *lnt_program_graphviz(const lnt_program *p)
{
    text_buffer t = {0};
    put(&t,
        "digraph program {\n  node [shape=box, style=rounded, fontname=\"Helvetica\", fontsize=10];\n  edge [fontname=\"Helvetica\", fontsize=8];\n");
    int block = -1;
    for (int i = 0; i < p->n_nodes; i++) {
        const lnt_node *n = p->nodes[i];
        if (n->block != block) {
            if (block >= 0) put(&t, "  }\n");
            block = n->block;
            if (block >= 0) put(&t, "  subgraph cluster_%d {\n    label=\"layer %d\"; color=gray;\n", block, block);
        }
        put(&t, "    n%d [label=\"", i);
        put_op(&t, n);
        for (int k = 0; k < n->n_param; k++) {
            const char *name = p->params[n->param[k]].name, *dot = strrchr(name, '.');
            while (dot && dot > name && dot[-1] != '.') dot--; /* the last two components */
            put(&t, "\\n%s", dot ? dot : name);
        }
        put(&t, "\"];\n");
    }
    if (block >= 0) put(&t, "  }\n");
    for (int i = 0; i < p->n_values; i++)
        if (p->values[i].v.external) put(&t, "  x%d [label=\"%s\", shape=plain];\n", i, p->values[i].v.name);
    for (int i = 0; i < p->n_nodes; i++) {
        const lnt_node *n = p->nodes[i];
        for (int k = 0; k < n->n_in; k++) {
            int id = n->in[k].id;
            if (!id) continue;
            const lnt_value *v = &p->values[id].v;
            if (v->external)
                put(&t, "  x%d -> n%d;\n", p->values[id].root, i);
            else {
                put(&t, "  n%d -> n%d [label=\"", v->producer, i);
                put_shape(&t, v);
                put(&t, "\"];\n");
            }
        }
    }
    put(&t, "}\n");
    return finish(&t);
}

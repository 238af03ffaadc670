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
    int n = lnt_format_list(line, sizeof line, format, ap);
    va_end(ap);
    if (n >= (int)sizeof line) n = sizeof line - 1;
    if (t->used + (size_t)n + 1 > t->size) {
        size_t more = t->size ? lnt_bytes(t->size, 2) : 16384;
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
    put(t, "[");
    if (v->rows)
        put(t, "%lld", (long long)v->rows);
    else if (v->each > 1)
        put(t, "%dT", v->each);
    else
        put(t, "T");
    if (v->heads > 1) put(t, ",%d", v->heads);
    put(t, ",%lld]%s", (long long)(v->cols / v->heads), v->f32 ? " f32" : "");
}

/* Where a node's input comes from: a number, with the columns of a slice, or a name. */
static void put_input(text_buffer *t, const lnt_program *p, lnt_buf b)
{
    const lnt_value *v = &p->values[b.id].v;
    if (!b.id)
        put(t, "-");
    else if (v->producer < 0)
        put(t, "%s", v->name);
    else
        put(t, "%%%d", p->values[b.id].root);
    if (lnt_is_slice(p, b)) put(t, "[%lld:%lld]", (long long)v->first, (long long)(v->first + v->cols));
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
            if (k) put(&t, ", ");
            put_input(&t, p, n->in[k]);
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
    for (int i = 1; i < p->n_values; i++)
        if (p->values[i].v.producer < 0 && p->values[i].root == i) put(&t, "  x%d [label=\"%s\", shape=plain];\n", i, p->values[i].v.name);
    for (int i = 0; i < p->n_nodes; i++) {
        const lnt_node *n = p->nodes[i];
        for (int k = 0; k < n->n_in; k++) {
            int id = n->in[k].id;
            if (!id) continue;
            const lnt_value *v = &p->values[id].v;
            if (v->producer < 0)
                put(&t, "  x%d -> n%d", p->values[id].root, i);
            else
                put(&t, "  n%d -> n%d", v->producer, i);
            if (!v->external) {
                put(&t, " [label=\"");
                put_shape(&t, v);
                put(&t, "\"]");
            }
            put(&t, ";\n");
        }
    }
    put(&t, "}\n");
    return finish(&t);
}

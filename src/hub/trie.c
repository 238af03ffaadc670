#include "hub/trie.h"

#include <string.h>

#include "hub/bytemap.h"

static size_t seek(const lnt_trie *t, int32_t node, uint8_t byte)
{
    size_t i = lnt_mix64((uint64_t)(uint32_t)node << 8 | byte) & (t->capacity - 1);
    for (;; i = (i + 1) & (t->capacity - 1)) {
        const lnt_trie_edge *e = &t->edges[i];
        if (!e->child || (e->node == node && e->byte == byte)) return i;
    }
}

int32_t lnt_trie_step(const lnt_trie *t, int32_t node, uint8_t byte)
{
    if (node == 0) return t->root[byte];
    return t->capacity ? t->edges[seek(t, node, byte)].child : 0;
}

static bool grow_edges(lnt_trie *t)
{
    lnt_trie bigger = *t;
    bigger.capacity = t->capacity ? 2 * t->capacity : 64;
    bigger.edges = lnt_calloc(lnt_bytes(bigger.capacity, sizeof *bigger.edges));
    if (!bigger.edges) return false;
    for (size_t i = 0; i < t->capacity; i++)
        if (t->edges[i].child) bigger.edges[seek(&bigger, t->edges[i].node, t->edges[i].byte)] = t->edges[i];
    lnt_free(t->edges);
    t->edges = bigger.edges;
    t->capacity = bigger.capacity;
    return true;
}

/* A fresh node; 0: out of memory, or too many. */
static int32_t fresh_node(lnt_trie *t)
{
    if (t->n_nodes >= INT32_MAX) return 0;
    if (t->n_nodes + 1 >= t->room) {
        const size_t room = t->room ? 2 * t->room : 64;
        int32_t *value = lnt_realloc(t->value, lnt_bytes(t->n_nodes, sizeof *value), lnt_bytes(room, sizeof *value));
        if (!value) return 0;
        t->value = value;
        t->room = room;
    }
    if (t->n_nodes == 0) t->value[t->n_nodes++] = -1; /* the root */
    t->value[t->n_nodes] = -1;
    return (int32_t)t->n_nodes++;
}

int32_t *lnt_trie_put(lnt_trie *t, const void *key, size_t n)
{
    const uint8_t *bytes = key;
    int32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t child = lnt_trie_step(t, node, bytes[i]);
        if (!child) {
            if (2 * (t->n_edges + 1) > t->capacity && !grow_edges(t)) return NULL;
            child = fresh_node(t);
            if (!child) return NULL;
            if (node == 0) t->root[bytes[i]] = child;
            else t->edges[seek(t, node, bytes[i])] = (lnt_trie_edge){.node = node, .child = child, .byte = bytes[i]}, t->n_edges++;
        }
        node = child;
    }
    return n ? &t->value[node] : NULL;
}

int32_t lnt_trie_longest(const lnt_trie *t, const uint8_t *text, size_t n, size_t *length)
{
    int32_t best = -1, node = 0;
    for (size_t i = 0; i < n; i++) {
        node = lnt_trie_step(t, node, text[i]);
        if (!node) break;
        if (t->value[node] >= 0) best = t->value[node], *length = i + 1;
    }
    return best;
}

void lnt_trie_free(lnt_trie *t)
{
    lnt_free(t->edges);
    lnt_free(t->value);
    *t = (lnt_trie){0};
}

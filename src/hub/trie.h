/* A trie over bytes: which keys begin here? Edges lie in one open-addressed table, so that a step costs one probe whatever the fan-out. */
#ifndef LNT_HUB_TRIE_H
#define LNT_HUB_TRIE_H

#include "core/memory.h"

typedef struct {
    int32_t node, child; /* child 0: a free slot, for the root is nobody's child */
    uint8_t byte;
} lnt_trie_edge;

typedef struct {
    lnt_trie_edge *edges; /* capacity is a power of two, or 0 */
    size_t capacity, n_edges;
    int32_t *value; /* of the key that ends in a node, -1: none does */
    size_t n_nodes, room;
    int32_t root[256]; /* the root's children, 0: none */
} lnt_trie;

/* The value of a key, -1 when it is new. NULL: out of memory. Valid until the next put. */
int32_t *lnt_trie_put(lnt_trie *t, const void *key, size_t n);
/* The child of a node (the root is 0) by a byte; 0: there is none. */
int32_t lnt_trie_step(const lnt_trie *t, int32_t node, uint8_t byte);
/* The value of the longest key that `text` begins with, and its length; -1: none. */
int32_t lnt_trie_longest(const lnt_trie *t, const uint8_t *text, size_t n, size_t *length);
void lnt_trie_free(lnt_trie *t);

#endif

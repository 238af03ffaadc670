/* Bytes that grow. */
#ifndef LNT_HUB_BUFFER_H
#define LNT_HUB_BUFFER_H

#include <string.h>

#include "core/memory.h"

typedef struct {
    uint8_t *at;
    size_t n, room;
} lnt_buffer;

/* Room for `more` bytes behind those there are. */
static inline linnet_status lnt_buffer_reserve(lnt_ctx *c, lnt_buffer *b, size_t more)
{
    if (b->at && b->room - b->n >= more) return LINNET_OK;
    const size_t need = lnt_bytes_plus(b->n, more), room = need < 2 * b->room ? 2 * b->room : need;
    uint8_t *at = lnt_realloc(b->at, b->n, lnt_bytes_plus(room, 32));
    if (!at) return lnt_fail_memory(c, room);
    b->at = at;
    b->room = lnt_bytes_plus(room, 32);
    return LINNET_OK;
}

static inline linnet_status lnt_buffer_put(lnt_ctx *c, lnt_buffer *b, const void *bytes, size_t n)
{
    LNT_TRY(lnt_buffer_reserve(c, b, n));
    if (n) memcpy(b->at + b->n, bytes, n);
    b->n += n;
    return LINNET_OK;
}

/* -1: none. */
static inline int lnt_hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static inline void lnt_buffer_free(lnt_buffer *b)
{
    lnt_free(b->at);
    *b = (lnt_buffer){0};
}

#endif

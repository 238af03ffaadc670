/* GPT-2's spelling of bytes as printable characters (Radford et al. 2019): a byte that prints in Latin-1 is its own character, the 68 others are
 * U+0100, U+0101 ... in order. */
#ifndef LNT_HUB_BYTECHARS_H
#define LNT_HUB_BYTECHARS_H

#include "core/memory.h"

/* Spell n bytes; out holds 2n + 1 bytes and is closed with 0. Returns the length. */
size_t lnt_bytechars_spell(const uint8_t *bytes, size_t n, char *out);
/* The bytes of a spelling, at most n of them; -1: a character that spells no byte. */
int64_t lnt_bytechars_read(const char *text, size_t n, uint8_t *out);

#endif

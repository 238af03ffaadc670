#include "hub/bytechars.h"

static bool prints(int b) { return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad); }

/* Rank of a byte among those that do not print: 0x00-0x20, 0x7f-0xa0, 0xad. */
static int rank_of(int b) { return b <= 0x20 ? b : b <= 0xa0 ? b - 0x7f + 33 : 67; }

static int byte_of_rank(int r) { return r <= 32 ? r : r <= 66 ? r - 33 + 0x7f : 0xad; }

size_t lnt_bytechars_spell(const uint8_t *bytes, size_t n, char *out)
{
    char *at = out;
    for (size_t i = 0; i < n; i++) {
        int u = prints(bytes[i]) ? bytes[i] : 0x100 + rank_of(bytes[i]);
        if (u >= 0x80) *at++ = (char)(0xc0 | u >> 6);
        *at++ = (char)(u >= 0x80 ? 0x80 | (u & 0x3f) : u);
    }
    *at = 0;
    return (size_t)(at - out);
}

int64_t lnt_bytechars_read(const char *text, size_t n, uint8_t *out)
{
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) {
        int u = (uint8_t)text[i];
        if (u >= 0x80) {
            if (u < 0xc2 || u > 0xc5 || i + 1 == n) return -1;
            u = (u & 0x1f) << 6 | ((uint8_t)text[++i] & 0x3f);
        }
        if (u < 0x100 ? !prints(u) : u > 0x100 + 67) return -1;
        out[count++] = (uint8_t)(u < 0x100 ? u : byte_of_rank(u - 0x100));
    }
    return count;
}

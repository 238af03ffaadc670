#include "generate/stop.h"

#include <string.h>

#include "core/memory.h"

/* The longest tail of text [n] that begins a string, in bytes. */
static size_t begun(const lnt_stopper *s, const char *text, size_t n)
{
    size_t most = 0;
    for (int i = 0; i < s->n; i++) {
        const size_t length = strlen(s->stop[i]);
        for (size_t tail = length - 1 < n ? length - 1 : n; tail > most; tail--)
            if (!memcmp(text + n - tail, s->stop[i], tail)) most = tail;
    }
    return most;
}

/* Where the string begins that is whole first (of several, the longest), whatever pieces the text came in; n: none is. */
static size_t first_of(const lnt_stopper *s, const char *text, size_t n)
{
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (int i = 0; i < s->n; i++) {
            const size_t length = strlen(s->stop[i]);
            if (length > longest && length <= end && !memcmp(text + end - length, s->stop[i], length)) longest = length;
        }
        if (longest) return end - longest;
    }
    return n;
}

static void drop_given(lnt_stopper *s)
{
    if (s->given) memmove(s->held, s->held + s->given, s->used - s->given);
    s->used -= s->given;
    s->given = 0;
}

linnet_status lnt_stopper_put(lnt_ctx *c, lnt_stopper *s, const char *bytes, size_t n, const char **out, size_t *out_bytes, bool *found)
{
    drop_given(s);
    if (s->used + n > s->room) {
        const size_t room = lnt_bytes(lnt_bytes_plus(s->used, n), 2);
        char *grown = lnt_realloc(s->held, s->room, room);
        if (!grown) return lnt_fail_memory(c, room);
        s->held = grown;
        s->room = room;
    }
    if (n) memcpy(s->held + s->used, bytes, n);
    s->used += n;
    const size_t first = s->used ? first_of(s, s->held, s->used) : 0;
    *found = first < s->used;
    s->given = *found ? first : s->used - (s->used ? begun(s, s->held, s->used) : 0);
    *out = s->held ? s->held : "";
    *out_bytes = s->given;
    return LINNET_OK;
}

const char *lnt_stopper_rest(lnt_stopper *s, size_t *bytes)
{
    drop_given(s);
    *bytes = s->used;
    return s->held ? s->held : "";
}

void lnt_stopper_close(lnt_stopper *s) { lnt_free(s->held); }

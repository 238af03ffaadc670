/* Placing slots: largest first, each at the lowest offset where no slot that lives at the same time is. Offline first-fit by size is within a few per
 * cent of the peak of live bytes on transformer-like schedules, and it is simple. */
#include <stdlib.h>

#include "program/schedule.h"

static int by_size(const void *a, const void *b)
{
    const lnt_slot *x = *(const lnt_slot *const *)a, *y = *(const lnt_slot *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x < y ? -1 : x > y;
}

static int by_offset(const void *a, const void *b)
{
    const lnt_slot *x = *(const lnt_slot *const *)a, *y = *(const lnt_slot *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

int64_t lnt_layout(lnt_schedule *s)
{
    lnt_slot **order = lnt_arena_alloc(&s->arena, lnt_bytes(lnt_bytes(2, (size_t)s->n_slots), sizeof *order));
    if (s->n_slots && !order) return -1;
    lnt_slot **near = order + s->n_slots;
    int64_t total = 0;
    for (int i = 0; i < s->n_slots; i++) order[i] = &s->slots[i];
    qsort(order, (size_t)s->n_slots, sizeof *order, by_size);
    for (int i = 0; i < s->n_slots; i++) {
        lnt_slot *x = order[i];
        int n = 0;
        for (int k = 0; k < i; k++)
            if (order[k]->first <= x->last && x->first <= order[k]->last) near[n++] = order[k];
        qsort(near, (size_t)n, sizeof *near, by_offset);
        int64_t bytes, at = 0;
        if (!lnt_add(x->bytes, LNT_ALIGN - 1, &bytes)) return -1;
        bytes = bytes / LNT_ALIGN * LNT_ALIGN;
        for (int k = 0; k < n && near[k]->offset < at + bytes; k++) {
            int64_t end = near[k]->offset + (near[k]->bytes + LNT_ALIGN - 1) / LNT_ALIGN * LNT_ALIGN;
            if (end > at) at = end;
        }
        x->offset = at;
        if (!lnt_add(at, bytes, &at)) return -1;
        if (at > total) total = at;
    }
    return total;
}

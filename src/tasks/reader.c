#include "tasks/reader.h"

#include <math.h>
#include <string.h>

#include "device/device.h"
#include "tasks/texts.h"

enum { TOKENS = 8192, LOGITS = 1 << 25 /* of a run */, MOST_SEQUENCES = 256, PREFILL = 512 };

linnet_status lnt_reader_open(lnt_run *r, bool logits, lnt_reader *k)
{
    *k = (lnt_reader){.r = r, .m = r->o->model, .t = r->o->tokenizer, .logits = logits};
    int32_t *ids = NULL;
    int64_t n = 0, separator = linnet_tokenizer_separator(k->t);
    if (separator < 0) {
        LNT_TRY(linnet_tokenizer_encode(r->c, k->t, "\n", 1, &ids, &n));
        separator = n ? ids[0] : 0;
        linnet_free(ids);
    }
    k->prefix = (int32_t)separator;
    return LINNET_OK;
}

static void drop_plan(lnt_reader *k)
{
    lnt_plan_destroy(k->plan);
    lnt_free(k->ids);
    lnt_free(k->targets);
    lnt_free(k->cu);
    lnt_free(k->row);
    k->plan = NULL;
    k->ids = k->targets = NULL;
    k->cu = NULL;
    k->row = NULL;
    k->room = 0;
}

static void drop_state(lnt_reader *k)
{
    lnt_plan_destroy(k->prefill);
    lnt_plan_destroy(k->step);
    lnt_state_destroy(k->state);
    k->prefill = k->step = NULL;
    k->state = NULL;
    k->capacity = 0;
}

void lnt_reader_close(lnt_reader *k)
{
    drop_plan(k);
    drop_state(k);
}

/* ---- likelihoods ----------------------------------------------------------------------------------------------------------------------- */

linnet_status lnt_reader_cost(lnt_reader *k, const lnt_lines *l, int64_t examples, double times, int64_t most, int64_t more)
{
    enum { PIECE = 1 << 16 };
    linnet_model_info info = {.size = sizeof info};
    lnt_arena arena = {0};
    int32_t *ids;
    int64_t lines, n;
    const size_t bytes = lnt_lines_bytes(l, examples, &lines);
    size_t piece = bytes < PIECE ? bytes : PIECE;
    linnet_model_get_info(k->m, &info);
    while (piece && ((unsigned char)l->at[piece] & 0xC0) == 0x80) piece--; /* no character is cut */
    linnet_status s = lnt_reader_ids(k, l->at, piece, &arena, &ids, &n);
    lnt_arena_free(&arena);
    LNT_TRY(s);
    double tokens = piece ? times * (double)bytes * (double)n / (double)piece : 0;
    if (most) tokens = fmin(tokens, (double)lines * (double)most);
    tokens += (double)lines * (double)more;
    return lnt_run_cost(k->r, 0, 0, (int64_t)tokens, 2 * (double)info.parameters * tokens, NAN);
}

linnet_status lnt_reader_ids(lnt_reader *k, const char *text, size_t bytes, lnt_arena *arena, int32_t **ids, int64_t *n)
{
    int32_t *got = NULL;
    *n = 0;
    if (bytes) LNT_TRY(linnet_tokenizer_encode(k->r->c, k->t, text, bytes, &got, n));
    *ids = lnt_arena_alloc(arena, lnt_bytes(lnt_bytes_plus((size_t)*n, 1), sizeof **ids));
    if (*ids && *n) memcpy(*ids, got, (size_t)*n * sizeof **ids);
    linnet_free(got);
    return *ids ? LINNET_OK : lnt_fail_memory(k->r->c, lnt_bytes((size_t)*n, sizeof **ids));
}

linnet_status lnt_reader_pair(lnt_reader *k, const char *context, const char *continuation, int64_t most, lnt_arena *arena, lnt_asked *out)
{
    size_t split = strlen(context);
    lnt_text both = {.arena = arena};
    int32_t *ids, *front, *all;
    int64_t n, from;
    lnt_text_put(&both, context);
    lnt_text_put(&both, continuation);
    if (!both.text) return lnt_fail_memory(k->r->c, both.room);
    for (bool more = true; more;) { /* white space of any kind */
        more = false;
        for (size_t w = 1; w <= 3 && w <= split && !more; w++)
            if (lnt_space_at(both.text + split - w) == w) {
                split -= w;
                more = true;
            }
    }
    LNT_TRY(lnt_reader_ids(k, both.text, split, arena, &front, &from));
    LNT_TRY(lnt_reader_ids(k, both.text, both.n, arena, &ids, &n));
    if (from >= n && from) from = n - 1; /* the tokenizer joined both: its last token is asked for */
    if (!from) {
        all = lnt_arena_alloc(arena, lnt_bytes(lnt_bytes_plus((size_t)n, 1), sizeof *all));
        if (!all) return lnt_fail_memory(k->r->c, lnt_bytes((size_t)n, sizeof *all));
        all[0] = k->prefix;
        memcpy(all + 1, ids, (size_t)n * sizeof *all);
        ids = all;
        from = 1;
        n++;
    }
    const int64_t drop = most > 0 && n > most + 1 ? n - most - 1 : 0;
    *out = (lnt_asked){.ids = ids + drop, .n = n - drop, .from = from - drop > 1 ? from - drop : 1};
    return LINNET_OK;
}

static linnet_status make_room(lnt_reader *k, int64_t longest)
{
    lnt_ctx *c = k->r->c;
    const int64_t V = k->m->config->vocab_size;
    if (longest <= k->room) return LINNET_OK;
    drop_plan(k);
    int64_t room = k->logits && LOGITS / V < TOKENS ? LOGITS / V : TOKENS;
    if (room < longest) room = longest;
    k->ids = lnt_alloc(lnt_bytes((size_t)room, sizeof *k->ids));
    k->targets = lnt_alloc(lnt_bytes((size_t)room, sizeof *k->targets));
    k->cu = lnt_alloc(lnt_bytes(MOST_SEQUENCES + 1, sizeof *k->cu));
    k->row = lnt_alloc(lnt_bytes((size_t)(k->logits ? V : room), sizeof *k->row));
    if (!k->ids || !k->targets || !k->cu || !k->row) return lnt_fail_memory(c, lnt_bytes((size_t)room, 8));
    lnt_plan_options o = {.tokens = room, .n_seq = 1, .dtype = k->m->dtype, .n_outputs = 1, .outputs = {k->logits ? k->m->logits : k->m->loss}};
    LNT_TRY(lnt_plan_create(c, k->m->p, &o, &k->plan));
    k->room = room;
    return LINNET_OK;
}

static linnet_status checked(lnt_reader *k, double nats)
{
    if (isfinite(nats)) return LINNET_OK;
    return lnt_fail(k->r->c, LINNET_EINVAL, "the model's loss is %g", nats);
}

/* What one run says of the sequences in it. */
static linnet_status take_losses(lnt_reader *k, lnt_asked *a, int64_t count)
{
    lnt_to_host(k->r->c, k->row, lnt_plan_output(k->plan, k->m->loss).data, (size_t)k->cu[count] * sizeof *k->row);
    LNT_TRY(lnt_device_check(k->r->c));
    for (int64_t i = 0; i < count; i++) {
        a[i].nats = 0;
        for (int64_t p = k->cu[i] + a[i].from - 1; p < k->cu[i + 1]; p++) a[i].nats += k->row[p];
        LNT_TRY(checked(k, a[i].nats));
    }
    return LINNET_OK;
}

static linnet_status take_logits(lnt_reader *k, lnt_asked *a, int64_t count)
{
    const int64_t V = k->m->config->vocab_size;
    const float *rows = lnt_plan_output(k->plan, k->m->logits).data;
    for (int64_t i = 0; i < count; i++) {
        a[i].nats = 0;
        a[i].greedy = true;
        for (int64_t p = k->cu[i] + a[i].from - 1; p < k->cu[i + 1]; p++) {
            lnt_to_host(k->r->c, k->row, rows + p * V, (size_t)V * sizeof *k->row);
            int64_t best = 0;
            double sum = 0;
            for (int64_t v = 1; v < V; v++)
                if (k->row[v] > k->row[best]) best = v;
            for (int64_t v = 0; v < V; v++) sum += exp((double)k->row[v] - k->row[best]);
            a[i].nats += log(sum) + k->row[best] - k->row[k->targets[p]];
            a[i].greedy = a[i].greedy && k->row[k->targets[p]] == k->row[best];
        }
        LNT_TRY(checked(k, a[i].nats));
    }
    return lnt_device_check(k->r->c);
}

linnet_status lnt_reader_ask(lnt_reader *k, lnt_asked *a, int64_t n)
{
    int64_t longest = 1;
    for (int64_t i = 0; i < n; i++) {
        if (a[i].n < 2)
            return lnt_fail(k->r->c, LINNET_EINVAL, "a text of %lld token%s, expected at least 2", (long long)a[i].n, a[i].n == 1 ? "" : "s");
        if (a[i].n - 1 > longest) longest = a[i].n - 1;
    }
    LNT_TRY(make_room(k, longest));
    for (int64_t first = 0, count; first < n; first += count) {
        k->cu[0] = 0;
        for (count = 0; first + count < n && count < MOST_SEQUENCES; count++) {
            const lnt_asked *q = &a[first + count];
            const int64_t at = k->cu[count], tokens = q->n - 1;
            if (at + tokens > k->room) break;
            memcpy(k->ids + at, q->ids, (size_t)tokens * sizeof *k->ids);
            for (int64_t i = 0; i < tokens; i++) k->targets[at + i] = i + 1 < q->from ? -1 : q->ids[i + 1];
            k->cu[count + 1] = at + tokens;
        }
        LNT_TRY(lnt_check_ids(k->r->c, k->m, k->ids, k->cu[count]));
        lnt_batch b = {.tokens = k->cu[count], .n_seq = count, .cu = k->cu, .n_inputs = k->logits ? 1 : 2,
                       .inputs = {{k->m->ids, k->ids}, {k->m->targets, k->targets}}};
        LNT_TRY(lnt_plan_run(k->plan, k->m->w, &b));
        LNT_TRY(k->logits ? take_logits(k, a + first, count) : take_losses(k, a + first, count));
    }
    return LINNET_OK;
}

void lnt_reader_row(lnt_reader *k, int64_t question, int choice, const char *context, const char *continuation, const lnt_asked *a)
{
    lnt_report *p = &k->r->report;
    lnt_row_begin(p, "likelihood");
    lnt_row_int(p, "question", question);
    lnt_row_int(p, "choice", choice);
    lnt_row_text(p, "context", context);
    lnt_row_text(p, "continuation", continuation);
    lnt_row_int(p, "tokens", a->n - a->from);
    lnt_row_real(p, "log_likelihood", -a->nats);
    if (k->logits) lnt_row_int(p, "greedy", a->greedy);
    lnt_row_end(p);
}

/* ---- going on ----------------------------------------------------------------------------------------------------------------------------- */

static linnet_status open_state(lnt_reader *k, int64_t capacity)
{
    lnt_ctx *c = k->r->c;
    if (capacity <= k->capacity) return LINNET_OK;
    drop_state(k);
    LNT_TRY(lnt_state_create(c, k->m->p, k->m->dtype, 1, capacity, &k->state));
    lnt_plan_options o = {.tokens = 1, .n_seq = 1, .dtype = k->m->dtype, .has_state = true, .state_capacity = capacity, .n_outputs = 1,
                          .outputs = {k->m->logits}};
    LNT_TRY(lnt_plan_create(c, k->m->p, &o, &k->step));
    o.tokens = PREFILL;
    o.outputs[0] = k->m->hidden;
    LNT_TRY(lnt_plan_create(c, k->m->p, &o, &k->prefill));
    k->capacity = capacity;
    return LINNET_OK;
}

static linnet_status feed(lnt_reader *k, lnt_plan *plan, const int32_t *ids, int64_t n)
{
    lnt_batch b = {.tokens = n, .n_seq = 1, .n_inputs = 1, .inputs = {{k->m->ids, ids}}, .state = k->state};
    return lnt_plan_run(plan, k->m->w, &b);
}

linnet_status lnt_reader_go_on(lnt_reader *k, const int32_t *ids, int64_t n, int64_t most, bool (*stop)(void *, const char *), void *user,
                               lnt_arena *arena, char **text)
{
    const int64_t V = k->m->config->vocab_size, known = linnet_tokenizer_vocabulary(k->t), separator = linnet_tokenizer_separator(k->t);
    lnt_text out = {.arena = arena};
    void *logits;
    lnt_text_put(&out, "");
    if (!(logits = lnt_arena_alloc(arena, lnt_bytes((size_t)V, sizeof(float))))) return lnt_fail_memory(k->r->c, lnt_bytes((size_t)V, sizeof(float)));
    if (!n) ids = &k->prefix, n = 1;
    LNT_TRY(lnt_check_ids(k->r->c, k->m, ids, n));
    LNT_TRY(open_state(k, n + most));
    lnt_state_reset(k->state);
    for (int64_t at = 0; at + 1 < n; at += PREFILL) LNT_TRY(feed(k, k->prefill, ids + at, n - 1 - at < PREFILL ? n - 1 - at : PREFILL));
    int32_t now = ids[n - 1];
    for (int64_t i = 0; i < most; i++) {
        const float *row = logits;
        size_t bytes = 0;
        LNT_TRY(feed(k, k->step, &now, 1));
        lnt_to_host(k->r->c, logits, lnt_plan_output(k->step, k->m->logits).data, (size_t)V * sizeof(float));
        LNT_TRY(lnt_device_check(k->r->c));
        now = 0;
        for (int64_t v = 1; v < known; v++) /* ids beyond the tokenizer's are no text */
            if (row[v] > row[now]) now = (int32_t)v;
        LNT_TRY(checked(k, row[now]));
        if (now == separator) break;
        const char *piece = linnet_tokenizer_piece(k->t, now, &bytes);
        lnt_text_add(&out, piece, bytes);
        if (!out.text || stop(user, out.text)) break;
    }
    *text = out.text;
    return out.text ? LINNET_OK : lnt_fail_memory(k->r->c, out.room);
}

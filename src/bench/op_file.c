/* `linnet op`: one operator on the tensors of a safetensors file (docs/op-files.md). */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/op_set.h"
#include "core/border.h"
#include "core/clock.h"
#include "core/memory.h"
#include "device/device.h"
#include "hub/safetensors.h"

enum { DIMS = 6 };

typedef struct {
    lnt_ctx *c;
    const linnet_op_options *o;
    const lnt_recur_op *op;
    lnt_safetensors *file;
    lnt_recur_call call;
    int64_t B, T;
    int64_t *cu;                       /* [N+1] */
    void *device[LNT_RECUR_TENSORS];   /* by row; NULL: absent */
    lnt_st_tensor out[LNT_RECUR_TENSORS + 1];
    void *host[LNT_RECUR_TENSORS + 1]; /* what out points to */
    void *weights, *unit;              /* [T,Hv,S], and the values that show them */
    int64_t seen;                      /* S: rows of values of the longest sequence */
    int n_out;
    bool report;                       /* steps and the like too; report = 0 leaves them out */
    void *workspace;
} job;

static linnet_status from_file(job *j) { return lnt_detail(j->c, "Read from %s.", j->o->in); }
static lnt_dtype small_type(const job *j) { return j->o->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }

static void print_shape(char *text, size_t size, int ndim, const int64_t *dim)
{
    size_t n = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < ndim && n < size; i++) n += (size_t)snprintf(text + n, size - n, "%s%lld", i ? ", " : "", (long long)dim[i]);
    if (n < size) snprintf(text + n, size - n, "]");
}

/* ---- options ------------------------------------------------------------------------------------------------------------------------- */

static linnet_status set_option(job *j, const char *key, const char *text, const char *from)
{
    if (strcmp(key, "report") != 0) return lnt_op_set(j->c, j->op, &j->call, key, text, from);
    j->report = !strcmp(text, "1") || !strcmp(text, "true");
    if (j->report || !strcmp(text, "0") || !strcmp(text, "false")) return LINNET_OK;
    return lnt_fail(j->c, LINNET_EINVAL, "report = \"%s\"; expected 0 or 1", text), lnt_detail(j->c, "Read from %s.", from);
}

/* Those of the file that the operator has, then those of --set, which it must have. */
static linnet_status read_options(job *j)
{
    for (const lnt_recur_option *o = j->op->options; o->key; o++) {
        const char *text = lnt_safetensors_metadata(j->file, o->key);
        if (text) LNT_TRY(set_option(j, o->key, text, j->o->in));
    }
    const char *report = lnt_safetensors_metadata(j->file, "report");
    if (report) LNT_TRY(set_option(j, "report", report, j->o->in));
    for (int i = 0; i < j->o->n_set; i++) {
        const char *pair = j->o->set[i], *equals = strchr(pair, '=');
        char key[32];
        if (!equals) return lnt_fail(j->c, LINNET_EINVAL, "--set \"%s\"; expected key=value", pair);
        snprintf(key, sizeof key, "%.*s", (int)(equals - pair < 31 ? equals - pair : 31), pair);
        if (lnt_recur_size_find(j->op, key, strlen(key)))
            return lnt_fail(j->c, LINNET_EINVAL, "--set \"%s\"; sizes are those of the file's tensors", pair);
        LNT_TRY(set_option(j, key, equals + 1, "--set"));
    }
    return LINNET_OK;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------------------------ */

/* Of a file's tensor the rows of the token axis are two dimensions, [B,T,...]. */
static int file_dims(const lnt_recur_tensor *t)
{
    const char *shape = t->shape;
    size_t length;
    int n = t->shape[0] == 'T';
    while (lnt_recur_next_letter(&shape, &length)) n++;
    return n;
}

static const lnt_st_tensor *find(const job *j, int i) { return lnt_safetensors_find(j->file, j->op->tensors[i].name); }

static linnet_status read_sequences(job *j)
{
    const lnt_st_tensor *t = lnt_safetensors_find(j->file, "cu_seqlens");
    int64_t n = j->B;
    if (t) {
        char has[128];
        print_shape(has, sizeof has, t->ndim, t->dim);
        if (t->dtype != LINNET_I64 || t->ndim != 1 || t->count < 1)
            return lnt_fail(j->c, LINNET_EINVAL, "tensor \"cu_seqlens\" is %s %s, expected i64 [N+1] of N sequences", lnt_dtype_name(t->dtype), has),
                   from_file(j);
        if (j->B != 1) return lnt_fail(j->c, LINNET_EINVAL, "cu_seqlens with a batch of %lld, expected 1", (long long)j->B), from_file(j);
        n = t->count - 1;
    }
    if (n > INT32_MAX) return lnt_fail(j->c, LINNET_EINVAL, "%lld sequences; expected at most %d", (long long)n, INT32_MAX);
    j->cu = lnt_alloc(lnt_bytes((size_t)n + 1, sizeof *j->cu));
    if (!j->cu) return lnt_fail_memory(j->c, (size_t)(n + 1) * sizeof *j->cu);
    if (t) memcpy(j->cu, t->data, (size_t)(n + 1) * sizeof *j->cu);
    for (int64_t i = 0; !t && i <= n; i++) j->cu[i] = i * j->T;
    j->call.head.cu_seqlens = j->cu;
    j->call.head.sequences = n;
    return LINNET_OK;
}

/* Letters from the tensors of the file in the order of the description: the first that has a letter decides; check_tensor holds the others to it. */
static linnet_status learn_letters(job *j, int i, const lnt_st_tensor *t)
{
    const char *shape = j->op->tensors[i].shape, *letter;
    size_t length;
    int d = 0;
    if (shape[0] == 'T') { /* B, T */
        lnt_recur_next_letter(&shape, &length);
        const lnt_recur_size *s = lnt_recur_size_find(j->op, j->op->tensors[i].shape, length);
        int64_t rows;
        if (!lnt_mul(t->dim[0], t->dim[1], &rows)) return lnt_fail(j->c, LINNET_EINVAL, "tensor \"%s\" is too large", t->name), from_file(j);
        if (!s && j->B < 0) {
            j->B = t->dim[0];
            j->T = t->dim[1];
            j->call.head.tokens = rows;
        } else if (s && lnt_recur_size_get(s, &j->call) == 0)
            lnt_recur_size_set(s, &j->call, rows);
        d = 2;
    }
    while ((letter = lnt_recur_next_letter(&shape, &length))) {
        const lnt_recur_size *s = lnt_recur_size_find(j->op, letter, length);
        const int64_t value = t->dim[d++];
        if (!s || lnt_recur_size_get(s, &j->call) != 0) continue;
        if (value < s->least || value > s->most)
            return lnt_fail(j->c, LINNET_EINVAL, "tensor \"%s\" gives %s = %lld, expected %lld .. %lld", t->name, s->letter, (long long)value,
                            (long long)s->least, (long long)s->most),
                   from_file(j);
        lnt_recur_size_set(s, &j->call, value);
    }
    return LINNET_OK;
}

static linnet_status read_sizes(job *j)
{
    j->B = -1;
    for (int i = 0; j->op->tensors[i].name; i++) {
        const lnt_recur_tensor *row = &j->op->tensors[i];
        const lnt_st_tensor *t = find(j, i);
        if ((row->role != LNT_T_INPUT && row->role != LNT_T_STATE) || !lnt_recur_has(&j->call, i)) continue;
        if (!t && row->role == LNT_T_INPUT && !row->absent)
            return lnt_fail(j->c, LINNET_EINVAL, "tensor \"%s\" is missing", row->name),
                   lnt_detail(j->c, "%s takes it from %s.", j->op->name, j->o->in);
        if (!t) continue;
        if (t->ndim != file_dims(row))
            return lnt_fail(j->c, LINNET_EINVAL, "tensor \"%s\" has %d dimensions, expected %d", row->name, t->ndim, file_dims(row)), from_file(j);
        LNT_TRY(learn_letters(j, i, t));
    }
    for (const lnt_recur_size *s = j->op->sizes; s->letter; s++)
        if (s->same_as && lnt_recur_size_get(s, &j->call) == 0)
            lnt_recur_size_set(s, &j->call, lnt_recur_letter(j->op, &j->call, s->same_as, strlen(s->same_as)));
    return read_sequences(j);
}

/* The dimensions that row i has in a file. */
static int dims_of(const job *j, int i, int64_t *dim)
{
    const char *shape = j->op->tensors[i].shape, *letter;
    size_t length;
    int n = 0;
    while ((letter = lnt_recur_next_letter(&shape, &length))) {
        const int64_t value = lnt_recur_letter(j->op, &j->call, letter, length);
        if (*letter == 'T') {
            dim[n++] = j->B;
            dim[n++] = j->B > 0 ? value / j->B : j->T;
        } else
            dim[n++] = value;
    }
    return n;
}

static linnet_status check_tensor(job *j, int i, const lnt_st_tensor *t)
{
    int64_t want[DIMS];
    const int ndim = dims_of(j, i, want);
    bool fits = t->ndim == ndim;
    for (int d = 0; fits && d < ndim; d++) fits = t->dim[d] == want[d];
    if (!fits) {
        char has[160], expected[160];
        print_shape(has, sizeof has, t->ndim, t->dim);
        print_shape(expected, sizeof expected, ndim, want);
        return lnt_fail(j->c, LINNET_EINVAL, "tensor \"%s\" has shape %s, expected %s", t->name, has, expected), from_file(j);
    }
    if (t->dtype == LINNET_F32 || t->dtype == LINNET_BF16 || t->dtype == LINNET_F64 || t->dtype == LINNET_F16) return LINNET_OK;
    return lnt_fail(j->c, LINNET_EINVAL, "tensor \"%s\" has dtype %s, expected a floating one", t->name, lnt_dtype_name(t->dtype)), from_file(j);
}

/* Numbers that an operator can mean: a gate above 0 is none. */
static const struct {
    const char *expected; /* NULL: what it will */
    double from, to;
    bool open;            /* neither end belongs to them */
} meant[] = {
    [LNT_VALUES_DECAY] = { "a natural-log decay of at most 0", -INFINITY, 0, false },
    [LNT_VALUES_STRENGTH] = { "a number", -INFINITY, INFINITY, true },
    [LNT_VALUES_STEP] = { "a number of at least 0", 0, DBL_MAX, false },
    [LNT_VALUES_POSITIVE] = { "a number above 0", 0, INFINITY, true },
    [LNT_VALUES_NEGATIVE] = { "a number below 0", -INFINITY, 0, true },
    [LNT_VALUES_SIGN] = { "a number from -1 to 1", -1, 1, false },
    [LNT_VALUES_COUNT] = { 0 },
};

static linnet_status check_values(job *j, const lnt_recur_tensor *t, lnt_dtype type, const void *x, int64_t n)
{
    const double from = meant[t->values].from, to = meant[t->values].to;
    for (int64_t i = 0; meant[t->values].expected && i < n; i++) {
        const double y = lnt_load_element(x, type, i);
        if (meant[t->values].open ? y > from && y < to : y >= from && y <= to) continue;
        lnt_fail(j->c, LINNET_EINVAL, "tensor \"%s\" holds %g at element %lld, expected %s", t->name, y, (long long)i, meant[t->values].expected);
        return from_file(j);
    }
    return LINNET_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------------------------- */

static linnet_status load_tensor(job *j, int i, const lnt_st_tensor *t)
{
    lnt_dtype type = lnt_recur_type(&j->call, i);
    size_t bytes = lnt_bytes((size_t)t->count, lnt_dtype_size(type)), raw = lnt_bytes((size_t)t->count, lnt_dtype_size(t->dtype));
    void *aligned = lnt_alloc(raw), *x = lnt_alloc(bytes); /* the file's tensors may lie anywhere */
    linnet_status s = aligned && x ? LINNET_OK : lnt_fail_memory(j->c, bytes + raw);
    if (s == LINNET_OK) {
        memcpy(aligned, t->data, raw);
        lnt_convert(x, type, aligned, t->dtype, t->count);
        if (j->op->tensors[i].role == LNT_T_INPUT) s = check_values(j, &j->op->tensors[i], type, x, t->count);
    }
    if (s == LINNET_OK) s = lnt_device_alloc(j->c, bytes, &j->device[i]);
    if (s == LINNET_OK) lnt_to_device(j->c, j->device[i], x, bytes);
    lnt_free(aligned);
    lnt_free(x);
    return s;
}

static linnet_status make_tensor(job *j, int i)
{
    int64_t dims[DIMS + 1] = { 8 }, bytes;
    const int n = dims_of(j, i, dims + 1);
    LNT_TRY(lnt_size_product(j->c, j->op->tensors[i].name, n + 1, dims, &bytes));
    return lnt_device_alloc(j->c, (size_t)bytes, &j->device[i]);
}

static linnet_status bind_tensors(job *j)
{
    for (int i = 0; j->op->tensors[i].name; i++) {
        const lnt_recur_tensor *row = &j->op->tensors[i];
        const lnt_st_tensor *t = find(j, i);
        const bool given = row->role == LNT_T_INPUT || row->role == LNT_T_STATE;
        if (!lnt_recur_has(&j->call, i)) {
            if (t && given) return lnt_recur_refuse(j->c, &j->call, i), from_file(j);
            continue;
        }
        if (t && (given || (row->role == LNT_T_COTANGENT && j->o->backward))) {
            LNT_TRY(check_tensor(j, i, t));
            LNT_TRY(load_tensor(j, i, t));
        }
        const bool made = row->role == LNT_T_OUTPUT || ((row->role == LNT_T_GRADIENT || row->role == LNT_T_SAVED) && j->o->backward) ||
                          (row->role == LNT_T_REPORT && j->report);
        if (made) LNT_TRY(make_tensor(j, i));
        lnt_recur_set(&j->call, row, j->device[i]);
    }
    return LINNET_OK;
}

/* A tensor that some operator takes and this one does not is a mistake; others may stand beside. */
static linnet_status check_names(job *j)
{
    for (int n = 0; n < j->file->n; n++) {
        const char *name = j->file->tensors[n].name;
        if (lnt_recur_tensor_find(j->op, name) >= 0) continue;
        for (int o = 0; lnt_recur_at(o); o++) {
            const int row = lnt_recur_tensor_find(lnt_recur_at(o), name);
            const lnt_tensor_role role = row >= 0 ? lnt_recur_at(o)->tensors[row].role : LNT_T_REPORT;
            if (role == LNT_T_INPUT || role == LNT_T_STATE)
                return lnt_fail(j->c, LINNET_EINVAL, "%s takes no tensor \"%s\"", j->op->name, name), from_file(j);
        }
    }
    return LINNET_OK;
}

static linnet_status run(job *j, bool backward, double *seconds)
{
    size_t bytes;
    LNT_TRY(lnt_recur_workspace(j->c, &j->call, backward, &bytes));
    lnt_device_free(j->c, j->workspace);
    j->workspace = NULL;
    LNT_TRY(lnt_device_alloc(j->c, bytes ? bytes : 1, &j->workspace));
    j->call.head.workspace = j->workspace;
    j->call.head.workspace_size = bytes;
    double start = lnt_now();
    LNT_TRY(lnt_recur_run(j->c, &j->call, backward));
    lnt_device_wait(j->c);
    *seconds += lnt_now() - start;
    return LINNET_OK;
}

/* ---- weights ------------------------------------------------------------------------------------------------------------------------ */

static bool has_letter(const lnt_recur_tensor *t, const lnt_recur_size *s)
{
    const char *shape = t->shape, *letter;
    size_t length;
    while ((letter = lnt_recur_next_letter(&shape, &length)))
        if (strlen(s->letter) == length && !memcmp(letter, s->letter, length)) return true;
    return false;
}

/* The size of a value's row. */
static const lnt_recur_size *value_size(const lnt_recur_op *op)
{
    const char *shape = op->tensors[lnt_recur_tensor_find(op, "v")].shape, *letter, *last = shape;
    size_t length, n = 0;
    while ((letter = lnt_recur_next_letter(&shape, &length))) last = letter, n = length;
    return lnt_recur_size_find(op, last, n);
}

/* The rows of values of all tokens. */
static int64_t value_rows(const job *j, int v)
{
    const char *shape = j->op->tensors[v].shape;
    size_t length;
    const char *letter = lnt_recur_next_letter(&shape, &length);
    return lnt_recur_letter(j->op, &j->call, letter, length);
}

/* An input besides v that goes by the columns of values; -1: none. args NULL: whatever options a call has. */
static int by_column(const lnt_recur_op *op, const void *args, const lnt_recur_size *s)
{
    for (int i = 0; op->tensors[i].name; i++)
        if (op->tensors[i].role == LNT_T_INPUT && i != lnt_recur_tensor_find(op, "v") && has_letter(&op->tensors[i], s) &&
            (!args || lnt_recur_has(args, i)))
            return i;
    return -1;
}

/* Says whose are. */
static linnet_status no_weights(job *j)
{
    char known[512] = "";
    size_t n = 0;
    for (int i = 0; lnt_recur_at(i) && n < sizeof known; i++)
        if (lnt_recur_at(i)->weights && by_column(lnt_recur_at(i), NULL, value_size(lnt_recur_at(i))) < 0)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", lnt_recur_at(i)->name);
    lnt_fail(j->c, LINNET_EINVAL, "weights of %s are not offered", j->op->name);
    return lnt_hint(j->c, "Operators whose weights are: %s.", known);
}

static linnet_status check_weights(job *j, const lnt_recur_size *s)
{
    const int by = by_column(j->op, &j->call, s);
    if (by >= 0)
        return lnt_fail(j->c, LINNET_EINVAL, "weights of %s are not offered: by %s every column of the values has its own", j->op->name,
                        j->op->tensors[by].name);
    if (j->seen > s->most)
        return lnt_fail(j->c, LINNET_EINVAL, "weights of %lld values; expected at most %lld", (long long)j->seen, (long long)s->most);
    return LINNET_OK;
}

/* Row r of a sequence becomes the r-th unit vector: what it adds to o_t, in column r, is its weight. */
static linnet_status unit_values(job *j, const lnt_recur_call *call, int v, int64_t each)
{
    const lnt_dtype type = lnt_recur_type(call, v);
    const int64_t count = lnt_recur_elements(call, v), rows = j->call.head.tokens * each, heads = rows ? count / rows / j->seen : 0;
    const size_t bytes = lnt_bytes((size_t)count, lnt_dtype_size(type));
    void *x = lnt_calloc(bytes ? bytes : 1);
    if (!x) return lnt_fail_memory(j->c, bytes);
    for (int64_t n = 0; n < j->call.head.sequences; n++)
        for (int64_t r = j->cu[n] * each; r < j->cu[n + 1] * each; r++)
            for (int64_t h = 0; h < heads; h++) lnt_store_element(x, type, (r * heads + h) * j->seen + r - j->cu[n] * each, 1);
    linnet_status s = lnt_device_alloc(j->c, bytes ? bytes : 1, &j->unit);
    if (s == LINNET_OK) lnt_to_device(j->c, j->unit, x, bytes);
    lnt_free(x);
    return s;
}

/* The operator once more, on those values and without the states that they meet: o is the matrix. */
static linnet_status run_weights(job *j)
{
    const int v = lnt_recur_tensor_find(j->op, "v"), o = lnt_recur_tensor_find(j->op, "o");
    int64_t bytes;
    const lnt_recur_size *s = value_size(j->op);
    const int64_t rows = value_rows(j, v), tokens = j->call.head.tokens, each = tokens ? rows / tokens : 1;
    j->seen = lnt_recur_longest(&j->call) * each;
    LNT_TRY(check_weights(j, s));
    if (!j->seen) return lnt_device_alloc(j->c, 1, &j->weights);
    lnt_recur_call call = j->call;
    lnt_recur_size_set(s, &call, j->seen);
    LNT_TRY(lnt_size_product(j->c, "weights", 3, (int64_t[]){ rows, lnt_recur_elements(&j->call, o) + 1, j->seen * 8 }, &bytes));
    for (int i = 0; j->op->tensors[i].name; i++) {
        const lnt_recur_tensor *t = &j->op->tensors[i];
        if (t->role != LNT_T_INPUT && (t->role != LNT_T_STATE || has_letter(t, s))) lnt_recur_set(&call, t, NULL);
    }
    LNT_TRY(unit_values(j, &call, v, each));
    bytes = lnt_recur_elements(&call, o) * (int64_t)lnt_dtype_size(lnt_recur_type(&call, o));
    LNT_TRY(lnt_device_alloc(j->c, bytes ? (size_t)bytes : 1, &j->weights));
    lnt_recur_set(&call, &j->op->tensors[v], j->unit);
    lnt_recur_set(&call, &j->op->tensors[o], j->weights);
    const lnt_recur_call own = j->call;
    double seconds = 0;
    j->call = call;
    const linnet_status done = run(j, false, &seconds);
    j->call = own;
    return done;
}

/* The gradient of an initial state that was not there is not written. */
static bool is_written(const job *j, int i)
{
    const lnt_recur_tensor *t = &j->op->tensors[i];
    if (!j->device[i] || (t->role != LNT_T_OUTPUT && t->role != LNT_T_GRADIENT && t->role != LNT_T_REPORT)) return false;
    return t->role != LNT_T_GRADIENT || j->device[i - 1];
}

/* A tensor of the results: `data` on the device, shaped as row i but for its last dimension (-1: that too). */
static linnet_status take_output(job *j, const char *name, int i, int64_t last, const void *data)
{
    lnt_st_tensor *t = &j->out[j->n_out];
    *t = (lnt_st_tensor){ .name = name, .dtype = small_type(j), .count = 1 };
    int64_t dim[DIMS];
    t->ndim = dims_of(j, i, dim);
    if (last >= 0) dim[t->ndim - 1] = last;
    for (int d = 0; d < t->ndim; d++) t->count *= t->dim[d] = dim[d];
    const lnt_dtype type = lnt_recur_type(&j->call, i);
    size_t bytes = lnt_bytes((size_t)t->count, lnt_dtype_size(t->dtype)), raw = lnt_bytes((size_t)t->count, lnt_dtype_size(type));
    void *x = lnt_alloc(raw);
    void *y = j->host[j->n_out++] = lnt_alloc(bytes);
    if (x && y) {
        lnt_to_host(j->c, x, data, raw);
        lnt_convert(y, t->dtype, x, type, t->count);
    }
    lnt_free(x);
    if (!x || !y) return lnt_fail_memory(j->c, bytes + raw);
    t->data = y;
    return LINNET_OK;
}

static linnet_status write_outputs(job *j)
{
    for (int i = 0; j->op->tensors[i].name; i++)
        if (is_written(j, i)) LNT_TRY(take_output(j, j->op->tensors[i].name, i, -1, j->device[i]));
    if (j->weights) LNT_TRY(take_output(j, "weights", lnt_recur_tensor_find(j->op, "o"), j->seen, j->weights));
    const char *metadata[] = { "op", j->op->name };
    return lnt_safetensors_write(j->c, j->o->out, j->n_out, j->out, 1, metadata);
}

static linnet_status run_job(job *j, char *line, size_t line_size)
{
    LNT_TRY(lnt_safetensors_open(j->c, j->o->in, &j->file));
    LNT_TRY(lnt_op_form(j->c, j->o->form, &j->call.head.form));
    if (j->o->weights && !j->op->weights) return no_weights(j);
    LNT_TRY(read_options(j));
    LNT_TRY(read_sizes(j));
    LNT_TRY(check_names(j));
    LNT_TRY(bind_tensors(j));
    LNT_TRY(lnt_recur_check_form(j->c, &j->call, false));
    if (j->o->backward) LNT_TRY(lnt_recur_check_form(j->c, &j->call, true));
    double seconds = 0;
    LNT_TRY(run(j, false, &seconds));
    char ran[64], sizes[160];
    snprintf(ran, sizeof ran, "%s", linnet_operator_ran(j->c));
    for (int i = 0; j->op->tensors[i].name; i++) /* the report is of the forward call */
        if (j->op->tensors[i].role == LNT_T_REPORT) lnt_recur_set(&j->call, &j->op->tensors[i], NULL);
    if (j->o->backward) LNT_TRY(run(j, true, &seconds));
    if (j->o->weights) LNT_TRY(run_weights(j));
    LNT_TRY(write_outputs(j));
    lnt_op_sizes(&j->call, sizes, sizeof sizes);
    lnt_format(line, line_size, "%s B=%lld T=%lld N=%lld %s %s %s%s%s %.3f ms", j->op->name, (long long)j->B, (long long)j->T,
             (long long)j->call.head.sequences, sizes, lnt_dtype_name(j->o->dtype), ran, j->o->backward ? " forward and backward " : "",
             j->o->backward ? linnet_operator_ran(j->c) : "", seconds * 1e3);
    return LINNET_OK;
}

static linnet_status unknown_operator(lnt_ctx *c, const char *name)
{
    size_t unused;
    linnet_operator_call call = LINNET_OPERATOR_CALL_INIT;
    call.op = name ? name : "";
    return linnet_operator_workspace(c, &call, 0, &unused); /* which says what is known */
}

linnet_status linnet_op_file(linnet_context *c, const linnet_op_options *options, char *line, size_t line_size)
{
    linnet_op_options o = LINNET_OP_OPTIONS_INIT;
    LNT_TRY(lnt_options_take(c, "op", options, &o));
    if (line_size) LNT_NEED(c, line);
    if (!o.in || !o.out) return lnt_fail(c, LINNET_EINVAL, "input and output file are needed");
    if (o.dtype == LINNET_F64 && lnt_on_cuda(c)) {
        lnt_fail(c, LINNET_EUNSUPPORTED, "float64 is the reference's, which runs on the CPU");
        return lnt_hint(c, "Use --device cpu, or --dtype f32 or bf16.");
    }
    if (!lnt_recur_find(o.op)) return unknown_operator(c, o.op);
    job *j = lnt_calloc(sizeof *j);
    if (!j) return lnt_fail_memory(c, sizeof *j);
    j->c = c;
    j->o = &o;
    j->op = lnt_recur_find(o.op);
    lnt_recur_init(j->op, &j->call);
    j->report = true;
    j->call.head.dtype = o.dtype;
    j->call.head.chunk = o.chunk;
    j->call.head.impl = o.impl;
    linnet_status s = run_job(j, line, line_size);
    for (int i = 0; i < LNT_RECUR_TENSORS; i++) lnt_device_free(c, j->device[i]);
    for (int i = 0; i < j->n_out; i++) lnt_free(j->host[i]);
    lnt_device_free(c, j->weights);
    lnt_device_free(c, j->unit);
    lnt_device_free(c, j->workspace);
    lnt_safetensors_close(j->file);
    lnt_free(j->cu);
    lnt_free(j);
    return s;
}

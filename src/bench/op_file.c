/* `linnet op`: one operator on the tensors of a safetensors file (docs/op-files.md). */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "device/device.h"
#include "hub/safetensors.h"
#include "recurrence/tensors.h"

enum { TENSORS = LNT_RECUR_TENSORS };
static const lnt_recur_tensor *const tensors = lnt_recur_tensors;

typedef struct {
    lnt_ctx *c;
    const linnet_op_options *o;
    const lnt_recur_op *op;
    lnt_safetensors *file;
    linnet_recurrence r;
    int64_t B, T;
    int64_t *cu;            /* [N+1] */
    void *device[TENSORS];  /* NULL: absent */
    lnt_st_tensor out[TENSORS];
    void *host[TENSORS];    /* what out points to */
    int n_out;
    bool report;            /* steps and residuals too */
    void *workspace;
} job;

static lnt_dtype small_type(const job *j) { return j->o->dtype == LINNET_F64 ? LINNET_F64 : LINNET_F32; }
static lnt_dtype type_of(const job *j, int i) { return lnt_recur_tensor_type(&j->r, i); }

static const char *shape_of(const job *j, int i) { return j->op->cache ? tensors[i].attention : tensors[i].state; }

static int64_t size_of(const job *j, char letter)
{
    switch (letter) {
    case 'B': return j->B;
    case 'T': return j->T;
    case 'N': return j->r.sequences;
    case 'q': return j->r.Hq;
    case 'h': return j->r.Hv;
    case 'K': return j->r.K;
    default: return j->r.V;
    }
}

static void print_shape(char *text, size_t size, int ndim, const int64_t *dim)
{
    size_t n = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < ndim && n < size; i++) n += (size_t)snprintf(text + n, size - n, "%s%lld", i ? ", " : "", (long long)dim[i]);
    if (n < size) snprintf(text + n, size - n, "]");
}

/* ---- scalars ----------------------------------------------------------------------------------------------------------------------- */

static linnet_status set_scalar(job *j, const char *key, const char *text, const char *from)
{
    char *end;
    errno = 0;
    double x = strtod(text, &end);
    bool number = end != text && !*end && !isnan(x);
    if (!strcmp(text, "true") || !strcmp(text, "false")) number = true, x = *text == 't';
    if (!number) return lnt_fail(j->c, LINNET_EINVAL, "%s = \"%s\" is not a number", key, text), lnt_detail(j->c, "Read from %s.", from);
    bool whole = x >= 0 && x <= 9007199254740992.0 && x == floor(x);
    if (!strcmp(key, "scale"))
        j->r.scale = x;
    else if (!strcmp(key, "eps"))
        j->r.eps = x;
    else if (!strcmp(key, "window") && whole)
        j->r.window = (int64_t)x;
    else if (!strcmp(key, "normalize") && (x == 0 || x == 1))
        j->r.normalize = x == 1;
    else if (!strcmp(key, "cg_tol"))
        j->r.cg_tolerance = x;
    else if (!strcmp(key, "cg_max_iter") && whole && x <= 1 << 20)
        j->r.cg_max_steps = (int32_t)x;
    else if (!strcmp(key, "cg_guess") && whole && x <= LINNET_CG_ZERO)
        j->r.cg_guess = (linnet_cg_guess)x;
    else if (!strcmp(key, "cg_solver") && whole && x <= LINNET_CG_FLASH)
        j->r.cg_solver = (linnet_cg_solver)x;
    else if (!strcmp(key, "cg_gradient") && (x == 0 || x == 1))
        j->r.cg_gradient = (linnet_cg_gradient)x;
    else if (!strcmp(key, "report") && (x == 0 || x == 1))
        j->report = x == 1;
    else {
        static const char *const expected[][2] = { { "window", "a whole number of at least 0" },
                                                   { "cg_max_iter", "a whole number from 0 to 1048576" },
                                                   { "cg_guess", "0 (diagonal) or 1 (zero)" },
                                                   { "cg_gradient", "0 (implicit) or 1 (unrolled)" },
                                                   { "cg_solver",
                                                     "0 (level), 1 (Jacobi), 2 (plain), 3 (absolute constants) or 4 (as flash-linear-attention)" } };
        const char *want = "0 or 1";
        for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
            if (!strcmp(key, expected[i][0])) want = expected[i][1];
        return lnt_fail(j->c, LINNET_EINVAL, "%s = %s; expected %s", key, text, want), lnt_detail(j->c, "Read from %s.", from);
    }
    return LINNET_OK;
}

static linnet_status read_scalars(job *j)
{
    static const char *const keys[] = { "scale", "eps", "window", "normalize", "cg_tol", "cg_max_iter", "cg_guess", "cg_solver", "cg_gradient",
                                        "report" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *text = lnt_safetensors_metadata(j->file, keys[i]);
        if (text) LNT_TRY(set_scalar(j, keys[i], text, j->o->in));
    }
    for (int i = 0; i < j->o->n_set; i++) {
        const char *pair = j->o->set[i], *equals = strchr(pair, '=');
        char key[32];
        bool known = false;
        if (!equals) return lnt_fail(j->c, LINNET_EINVAL, "--set \"%s\"; expected key=value", pair);
        snprintf(key, sizeof key, "%.*s", (int)(equals - pair < 31 ? equals - pair : 31), pair);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) known |= !strcmp(key, keys[k]);
        if (!known) {
            lnt_fail(j->c, LINNET_EINVAL, "unknown key \"%s\" in --set", key);
            return lnt_hint(j->c, "Keys: scale, eps, window, normalize, cg_tol, cg_max_iter, cg_guess, cg_solver, cg_gradient, report.");
        }
        LNT_TRY(set_scalar(j, key, equals + 1, "--set"));
    }
    return LINNET_OK;
}

static linnet_status read_form(job *j)
{
    static const char *const names[] = { "auto", "recurrent", "chunk", "parallel" };
    for (int i = 0; i < 4; i++)
        if (!j->o->form || !strcmp(j->o->form, names[i])) {
            j->r.form = j->o->form ? (linnet_form)i : LINNET_FORM_AUTO;
            return LINNET_OK;
        }
    lnt_fail(j->c, LINNET_EINVAL, "unknown form \"%s\"", j->o->form);
    return lnt_hint(j->c, "Forms: auto, recurrent, chunk, parallel.");
}

/* ---- shapes ------------------------------------------------------------------------------------------------------------------------ */

static linnet_status need(job *j, const char *name, int ndim, const lnt_st_tensor **out)
{
    const lnt_st_tensor *t = lnt_safetensors_find(j->file, name);
    if (!t) return lnt_fail(j->c, LINNET_EINVAL, "tensor \"%s\" is missing", name), lnt_detail(j->c, "%s takes it from %s.", j->op->name, j->o->in);
    if (t->ndim != ndim)
        return lnt_fail(j->c, LINNET_EINVAL, "tensor \"%s\" has %d dimensions, expected %d", name, t->ndim, ndim),
               lnt_detail(j->c, "Read from %s.", j->o->in);
    *out = t;
    return LINNET_OK;
}

static linnet_status read_sequences(job *j)
{
    const lnt_st_tensor *t = lnt_safetensors_find(j->file, "cu_seqlens");
    int64_t n = j->B;
    if (t) {
        if (t->dtype != LINNET_I64 || t->ndim != 1 || t->count < 1)
            return lnt_fail(j->c, LINNET_EINVAL, "tensor \"cu_seqlens\" must be i64 with one dimension and at least one element");
        if (j->B != 1) return lnt_fail(j->c, LINNET_EINVAL, "cu_seqlens with a batch of %lld, expected 1", (long long)j->B);
        n = t->count - 1;
    }
    if (n > INT32_MAX) return lnt_fail(j->c, LINNET_EINVAL, "%lld sequences; expected at most %d", (long long)n, INT32_MAX);
    j->cu = lnt_alloc((size_t)(n + 1) * sizeof *j->cu);
    if (!j->cu) return lnt_fail_memory(j->c, (size_t)(n + 1) * sizeof *j->cu);
    if (t) memcpy(j->cu, t->data, (size_t)(n + 1) * sizeof *j->cu);
    for (int64_t i = 0; !t && i <= n; i++) j->cu[i] = i * j->T;
    j->r.cu_seqlens = j->cu;
    j->r.sequences = n;
    return LINNET_OK;
}

static linnet_status read_sizes(job *j)
{
    const lnt_st_tensor *q, *k, *v;
    LNT_TRY(need(j, "q", 4, &q));
    LNT_TRY(need(j, "k", 4, &k));
    LNT_TRY(need(j, "v", 4, &v));
    for (int i = 2; i < 4; i++)
        if (q->dim[i] < 1 || q->dim[i] > 65536 || k->dim[i] < 1 || k->dim[i] > 65536 || v->dim[i] < 1 || v->dim[i] > 65536)
            return lnt_fail(j->c, LINNET_EINVAL, "head counts and sizes of q, k and v must lie in 1 .. 65536");
    j->B = q->dim[0];
    j->T = q->dim[1];
    if (!lnt_mul(j->B, j->T, &j->r.tokens)) return lnt_fail(j->c, LINNET_EINVAL, "tensor \"q\" is too large");
    j->r.Hq = (int32_t)(j->op->cache ? k : q)->dim[2];
    j->r.Hv = (int32_t)(j->op->cache ? q : v)->dim[2];
    j->r.K = (int32_t)q->dim[3];
    j->r.V = (int32_t)v->dim[3];
    if (j->r.Hv % j->r.Hq)
        return lnt_fail(j->c, LINNET_EINVAL, "%d heads of %s are not a multiple of %d heads of %s", j->r.Hv, j->op->cache ? "q" : "v", j->r.Hq,
                        j->op->cache ? "k" : "q");
    return read_sequences(j);
}

static linnet_status check_tensor(job *j, int i, const lnt_st_tensor *t)
{
    const char *shape = shape_of(j, i);
    int64_t want[4];
    int ndim = (int)strlen(shape);
    bool fits = t->ndim == ndim;
    for (int d = 0; d < ndim; d++) {
        want[d] = size_of(j, shape[d]);
        fits = fits && t->dim[d] == want[d];
    }
    if (!fits) {
        char has[160], expected[160];
        print_shape(has, sizeof has, t->ndim, t->dim);
        print_shape(expected, sizeof expected, ndim, want);
        lnt_fail(j->c, LINNET_EINVAL, "tensor \"%s\" has shape %s, expected %s", t->name, has, expected);
        return lnt_detail(j->c, "Read from %s.", j->o->in);
    }
    if (t->dtype == LINNET_F32 || t->dtype == LINNET_BF16 || t->dtype == LINNET_F64 || t->dtype == LINNET_F16) return LINNET_OK;
    lnt_fail(j->c, LINNET_EINVAL, "tensor \"%s\" has dtype %s, expected a floating one", t->name, lnt_dtype_name(t->dtype));
    return lnt_detail(j->c, "Read from %s.", j->o->in);
}

/* A regulariser is positive: the system of a token without history is lambda x = q. */
static linnet_status check_lambda(job *j, lnt_dtype type, const void *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double y = lnt_load_element(x, type, i);
        if (y > 0 && !isinf(y)) continue;
        lnt_fail(j->c, LINNET_EINVAL, "tensor \"lambda\" holds %g at element %lld, expected a number above 0", y, (long long)i);
        return lnt_detail(j->c, "Read from %s.", j->o->in);
    }
    return LINNET_OK;
}

/* Gates are natural logs of decays: no NaN, nothing above 0. */
static linnet_status check_gate(job *j, const char *name, lnt_dtype type, const void *x, int64_t n, double most)
{
    for (int64_t i = 0; i < n; i++) {
        double g = lnt_load_element(x, type, i);
        if (isnan(g) || g > most) {
            lnt_fail(j->c, LINNET_EINVAL, "tensor \"%s\" holds %g at element %lld, expected %s", name, g, (long long)i,
                     most == 0 ? "a natural-log decay of at most 0" : "a number");
            return lnt_detail(j->c, "Read from %s.", j->o->in);
        }
    }
    return LINNET_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------------------------- */

static linnet_status load_tensor(job *j, int i, const lnt_st_tensor *t)
{
    lnt_dtype type = type_of(j, i);
    size_t bytes = (size_t)t->count * lnt_dtype_size(type), raw = (size_t)t->count * lnt_dtype_size(t->dtype);
    void *aligned = lnt_alloc(raw), *x = lnt_alloc(bytes); /* the file's tensors may lie anywhere */
    linnet_status s = aligned && x ? LINNET_OK : lnt_fail_memory(j->c, bytes + raw);
    if (s == LINNET_OK) {
        memcpy(aligned, t->data, raw);
        lnt_convert(x, type, aligned, t->dtype, t->count);
        bool gate = !strcmp(t->name, "g") || !strcmp(t->name, "g_head");
        if (!strcmp(t->name, "lambda")) s = check_lambda(j, type, x, t->count);
        if (gate || !strcmp(t->name, "beta")) s = check_gate(j, t->name, type, x, t->count, gate ? 0 : INFINITY);
    }
    if (s == LINNET_OK) s = lnt_device_alloc(j->c, bytes, &j->device[i]);
    if (s == LINNET_OK) lnt_to_device(j->c, j->device[i], x, bytes);
    lnt_free(aligned);
    lnt_free(x);
    return s;
}

static linnet_status make_tensor(job *j, int i)
{
    int64_t dims[5] = { 8, 1, 1, 1, 1 }, bytes;
    const char *shape = shape_of(j, i);
    for (int d = 0; shape[d]; d++) dims[d + 1] = size_of(j, shape[d]);
    LNT_TRY(lnt_size_product(j->c, tensors[i].name, 5, dims, &bytes));
    return lnt_device_alloc(j->c, (size_t)bytes, &j->device[i]);
}

static linnet_status bind_tensors(job *j)
{
    for (int i = 0; i < TENSORS; i++) {
        const char *name = tensors[i].name;
        const lnt_st_tensor *t = lnt_safetensors_find(j->file, name);
        lnt_tensor_role what = tensors[i].role;
        bool read = what == LNT_T_INPUT || what == LNT_T_STATE || (what == LNT_T_COTANGENT && j->o->backward);
        if (!lnt_recur_tensor_taken(j->op, &j->r, i)) {
            if (t && (what == LNT_T_INPUT || what == LNT_T_STATE)) {
                lnt_fail(j->c, LINNET_EINVAL, "%s takes no tensor \"%s\"", j->op->name, name);
                return lnt_detail(j->c, "Read from %s.", j->o->in);
            }
            continue;
        }
        if (read && !t && what == LNT_T_INPUT)
            return lnt_fail(j->c, LINNET_EINVAL, "tensor \"%s\" is missing", name), lnt_detail(j->c, "%s takes it from %s.", j->op->name, j->o->in);
        if (read && t) {
            LNT_TRY(check_tensor(j, i, t));
            LNT_TRY(load_tensor(j, i, t));
        }
        bool made = what == LNT_T_OUTPUT || ((what == LNT_T_GRADIENT || what == LNT_T_SAVED) && j->o->backward) ||
                    (what == LNT_T_REPORT && j->report);
        if (made) LNT_TRY(make_tensor(j, i));
        lnt_recur_tensor_set(&j->r, i, j->device[i]);
    }
    return LINNET_OK;
}

static linnet_status run(job *j, bool backward, double *seconds)
{
    size_t bytes;
    LNT_TRY(linnet_recurrence_workspace(j->c, &j->r, backward, &bytes));
    lnt_device_free(j->c, j->workspace);
    j->workspace = NULL;
    LNT_TRY(lnt_device_alloc(j->c, bytes ? bytes : 1, &j->workspace));
    j->r.workspace = j->workspace;
    j->r.workspace_size = bytes;
    double start = lnt_now();
    LNT_TRY((backward ? linnet_recurrence_backward : linnet_recurrence_forward)(j->c, &j->r));
    lnt_device_wait(j->c);
    *seconds += lnt_now() - start;
    return LINNET_OK;
}

static linnet_status write_outputs(job *j)
{
    for (int i = 0; i < TENSORS; i++) {
        lnt_tensor_role what = tensors[i].role;
        if (!j->device[i] || (what != LNT_T_OUTPUT && what != LNT_T_GRADIENT && what != LNT_T_REPORT)) continue;
        if ((!strcmp(tensors[i].name, "ds0") || !strcmp(tensors[i].name, "ds0_kv")) && !j->r.s0) continue;
        if (!strcmp(tensors[i].name, "ds0_kk") && !j->r.h0) continue;
        if (!strcmp(tensors[i].name, "dz0") && !j->r.z0) continue;
        lnt_st_tensor *t = &j->out[j->n_out];
        *t = (lnt_st_tensor){ .name = tensors[i].name, .dtype = small_type(j), .count = 1 };
        for (const char *s = shape_of(j, i); *s; s++) t->count *= t->dim[t->ndim++] = size_of(j, *s);
        size_t bytes = (size_t)t->count * lnt_dtype_size(t->dtype), raw = (size_t)t->count * lnt_dtype_size(type_of(j, i));
        void *x = lnt_alloc(raw);
        void *y = j->host[j->n_out++] = lnt_alloc(bytes);
        if (x && y) {
            lnt_to_host(j->c, x, j->device[i], raw);
            lnt_convert(y, t->dtype, x, type_of(j, i), t->count);
        }
        lnt_free(x);
        if (!x || !y) return lnt_fail_memory(j->c, bytes + raw);
        t->data = y;
    }
    const char *metadata[] = { "op", j->op->name };
    return lnt_safetensors_write(j->c, j->o->out, j->n_out, j->out, 1, metadata);
}

static linnet_status run_job(job *j, char *line, size_t line_size)
{
    LNT_TRY(lnt_safetensors_open(j->c, j->o->in, &j->file));
    LNT_TRY(read_form(j));
    LNT_TRY(read_scalars(j));
    if (j->r.normalize && !j->op->normalize) return lnt_fail(j->c, LINNET_EINVAL, "%s takes no normalize", j->op->name);
    LNT_TRY(read_sizes(j));
    LNT_TRY(bind_tensors(j));
    double seconds = 0;
    LNT_TRY(run(j, false, &seconds));
    char ran[64];
    snprintf(ran, sizeof ran, "%s", linnet_recurrence_ran(j->c));
    j->r.steps = j->r.residual = NULL; /* the report is of the forward call */
    if (j->o->backward) LNT_TRY(run(j, true, &seconds));
    LNT_TRY(write_outputs(j));
    snprintf(line, line_size, "%s B=%lld T=%lld N=%lld Hq=%d Hv=%d K=%d V=%d %s %s%s%s %.3f ms", j->op->name, (long long)j->B, (long long)j->T,
             (long long)j->r.sequences, j->r.Hq, j->r.Hv, j->r.K, j->r.V, lnt_dtype_name(j->o->dtype), ran,
             j->o->backward ? " forward and backward " : "", j->o->backward ? linnet_recurrence_ran(j->c) : "", seconds * 1e3);
    return LINNET_OK;
}

linnet_status linnet_op_file(linnet_context *c, const linnet_op_options *options, char *line, size_t line_size)
{
    linnet_op_options o = LINNET_OP_OPTIONS_INIT;
    if (!options || options->size < offsetof(linnet_op_options, backward)) return lnt_fail(c, LINNET_EINVAL, "options without their size");
    memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    if (!o.in || !o.out) return lnt_fail(c, LINNET_EINVAL, "input and output file are needed");
    if (o.dtype == LINNET_F64 && lnt_on_cuda(c)) {
        lnt_fail(c, LINNET_EUNSUPPORTED, "float64 is the reference's, which runs on the CPU");
        return lnt_hint(c, "Use --device cpu, or --dtype f32 or bf16.");
    }
    job *j = lnt_calloc(sizeof *j);
    if (!j) return lnt_fail_memory(c, sizeof *j);
    *j = (job){ .c = c, .o = &o, .op = lnt_recur_find(o.op), .r = LINNET_RECURRENCE_INIT };
    j->r.op = o.op;
    j->r.dtype = o.dtype;
    j->r.chunk = o.chunk;
    j->r.impl = o.impl;
    size_t unused;
    linnet_status s = j->op ? run_job(j, line, line_size) : linnet_recurrence_workspace(c, &j->r, 0, &unused); /* which says what is known */
    for (int i = 0; i < TENSORS; i++) lnt_device_free(c, j->device[i]);
    for (int i = 0; i < j->n_out; i++) lnt_free(j->host[i]);
    lnt_device_free(c, j->workspace);
    lnt_safetensors_close(j->file);
    lnt_free(j->cu);
    lnt_free(j);
    return s;
}

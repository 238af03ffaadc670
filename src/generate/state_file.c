/* A state as a file: safetensors, with what model it is of and how many tokens it has seen beside its tensors. */
#include <stdio.h>
#include <string.h>

#include "device/device.h"
#include "generate/session.h"
#include "hub/json.h"
#include "hub/safetensors.h"

static const char format[] = "linnet state 1";

/* ---- what model a state is of ---------------------------------------------------------------------------------------------------------- */

/* 64 bits that tell files apart, and keep nobody out. A word goes in by exclusive or and a product with an odd number (2^64 over the golden ratio),
 * whose upper bits then come down. */
static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t mix_bytes(uint64_t h, const char *bytes, size_t n)
{
    uint64_t word;
    size_t i = 0;
    for (; i + sizeof word <= n; i += sizeof word) {
        memcpy(&word, bytes + i, sizeof word);
        h = mix(h, word);
    }
    word = 0;
    memcpy(&word, bytes + i, n - i);
    return mix(mix(h, word), n);
}

/* Configuration, dtype, and every weight as a run reads it. */
static linnet_status fingerprint(linnet_session *s, uint64_t *out)
{
    enum { BLOCK = 1 << 20 };
    const linnet_model *m = s->m;
    *out = s->fingerprint;
    if (s->fingerprint) return LINNET_OK;
    const char *json = linnet_config_json(m->config);
    char *block = lnt_alloc(BLOCK);
    if (!block || !json) {
        lnt_free(block);
        return lnt_fail_memory(s->c, BLOCK);
    }
    uint64_t h = mix_bytes(m->dtype, json, strlen(json));
    for (int i = 0; i < lnt_param_count(m->p); i++) {
        const lnt_param *q = lnt_param_at(m->p, i);
        const lnt_param_view v = lnt_weights_view(m->w, q);
        const char *data = q->product ? v.work : v.master;
        const size_t bytes = (size_t)q->count * (q->product ? lnt_dtype_size(v.work_dtype) : 4);
        h = mix_bytes(h, q->name, strlen(q->name));
        for (size_t at = 0, n; at < bytes; at += n) {
            n = bytes - at < BLOCK ? bytes - at : BLOCK;
            lnt_to_host(s->c, block, data + at, n);
            h = mix_bytes(h, block, n);
        }
    }
    lnt_free(block);
    *out = s->fingerprint = h ? h : 1;
    return LINNET_OK;
}

/* ---- writing ---------------------------------------------------------------------------------------------------------------------------- */

/* The state's tensors, [n_tensors]; those of a GPU in *copy, which the caller frees. */
static linnet_status list_tensors(const linnet_state *state, lnt_st_tensor *t, char **copy)
{
    linnet_session *s = state->s;
    size_t bytes = 0;
    *copy = NULL;
    for (int i = 0; i < s->n_tensors; i++) {
        const lnt_state_tensor is = lnt_session_tensor_of(s, i, lnt_session_tokens(state));
        t[i] = (lnt_st_tensor){.name = s->tensors[i].name, .dtype = is.dtype, .ndim = is.ndim, .data = lnt_session_tensor_at(state, i, &is)};
        memcpy(t[i].dim, is.dim, sizeof is.dim);
        t[i].count = lnt_session_tensor_bytes(&is) / (int64_t)lnt_dtype_size(is.dtype);
        bytes += (size_t)lnt_session_tensor_bytes(&is);
    }
    if (!lnt_on_cuda(s->c)) return LINNET_OK;
    char *to = *copy = lnt_alloc(bytes);
    if (!to) return lnt_fail_memory(s->c, bytes);
    for (int i = 0; i < s->n_tensors; i++) {
        const size_t size = (size_t)t[i].count * lnt_dtype_size(t[i].dtype);
        lnt_to_host(s->c, to, t[i].data, size);
        t[i].data = to;
        to += size;
    }
    return lnt_device_check(s->c);
}

linnet_status linnet_state_save(const linnet_state *state, const char *path)
{
    LNT_TRY(lnt_session_state_check(state));
    linnet_session *s = state->s;
    uint64_t print;
    char model[24], count[24], *copy;
    LNT_NEED(s->c, path);
    LNT_TRY(fingerprint(s, &print));
    lnt_st_tensor *t = lnt_calloc(lnt_bytes((size_t)s->n_tensors, sizeof *t));
    if (!t) return lnt_fail_memory(s->c, lnt_bytes((size_t)s->n_tensors, sizeof *t));
    snprintf(model, sizeof model, "%016llx", (unsigned long long)print);
    snprintf(count, sizeof count, "%lld", (long long)lnt_session_tokens(state));
    const char *const metadata[] = {"format", format, "model", model, "tokens", count};
    linnet_status status = list_tensors(state, t, &copy);
    if (status == LINNET_OK) status = lnt_safetensors_write(s->c, path, s->n_tensors, t, 3, metadata);
    lnt_free(copy);
    lnt_free(t);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------------------------------- */

/* A whole number of at most 15 digits, and nothing else; -1. */
static int64_t read_count(const char *text)
{
    int64_t n = 0;
    const size_t digits = text ? strspn(text, "0123456789") : 0;
    if (!digits || digits > 15 || text[digits]) return -1;
    for (size_t i = 0; i < digits; i++) n = 10 * n + (text[i] - '0');
    return n;
}

static linnet_status check_file(linnet_session *s, const lnt_safetensors *f, int64_t *tokens)
{
    const char *is = lnt_safetensors_metadata(f, "format"), *model = lnt_safetensors_metadata(f, "model");
    char mine[24];
    uint64_t print;
    if (!is || strcmp(is, format) != 0) return lnt_malformed(s->c, f->path, "the file is no state: its format is \"%.40s\"", is ? is : "");
    *tokens = read_count(lnt_safetensors_metadata(f, "tokens"));
    if (*tokens < 0) return lnt_malformed(s->c, f->path, "the state does not say how many tokens it has seen");
    LNT_TRY(fingerprint(s, &print));
    snprintf(mine, sizeof mine, "%016llx", (unsigned long long)print);
    if (!model || strcmp(model, mine) != 0) {
        lnt_fail(s->c, LINNET_EINVAL, "the state is of another model: %.16s, expected %s", model ? model : "none", mine);
        lnt_detail(s->c, "Read from %s.", f->path);
        return lnt_hint(s->c, "A state goes with the weights, the configuration and the dtype that it was made with.");
    }
    if (!s->o.capacity || *tokens <= s->o.capacity) return LINNET_OK;
    lnt_fail(s->c, LINNET_EINVAL, "the state has %lld token%s, the session room for %lld", (long long)*tokens, *tokens == 1 ? "" : "s",
             (long long)s->o.capacity);
    return lnt_detail(s->c, "Read from %s.", f->path);
}

/* Whether tensor i of a state of so many tokens is there as it should be. */
static linnet_status check_tensor(linnet_session *s, const lnt_safetensors *f, int i, int64_t tokens, const lnt_st_tensor **out)
{
    const lnt_st_tensor *t = *out = lnt_safetensors_find(f, s->tensors[i].name);
    const lnt_state_tensor want = lnt_session_tensor_of(s, i, tokens);
    if (!t) return lnt_malformed(s->c, f->path, "tensor \"%s\" is missing", s->tensors[i].name);
    bool same = t->dtype == want.dtype && t->ndim == want.ndim;
    for (int d = 0; same && d < want.ndim; d++) same = t->dim[d] == want.dim[d];
    return same ? LINNET_OK : lnt_malformed(s->c, f->path, "tensor \"%s\" has another shape or dtype than the state has", s->tensors[i].name);
}

static linnet_status read_into(linnet_state *state, const lnt_safetensors *f, int64_t tokens)
{
    linnet_session *s = state->s;
    const lnt_st_tensor *t;
    if (f->n != s->n_tensors) return lnt_malformed(s->c, f->path, "the file holds %d tensors, the state %d", f->n, s->n_tensors);
    for (int i = 0; i < s->n_tensors; i++) {
        LNT_TRY(check_tensor(s, f, i, tokens, &t));
        const lnt_state_tensor to = lnt_session_tensor_of(s, i, tokens);
        lnt_to_device(s->c, lnt_session_tensor_at(state, i, &to), t->data, (size_t)lnt_session_tensor_bytes(&to));
    }
    s->slots->position[state->slot] = tokens;
    lnt_session_state_begin(state);
    return LINNET_OK;
}

linnet_status linnet_state_load(linnet_session *s, const char *path, linnet_state **out)
{
    lnt_safetensors *f = NULL;
    linnet_state *state = NULL;
    int64_t tokens = 0;
    LNT_TRY(lnt_session_check(s));
    LNT_NEED(s->c, path);
    LNT_TRY(lnt_need(s->c, out, "the place for the state"));
    *out = NULL;
    LNT_TRY(lnt_safetensors_open(s->c, path, &f));
    linnet_status status = check_file(s, f, &tokens);
    if (status == LINNET_OK) status = linnet_state_create(s, &state);
    if (status == LINNET_OK) status = read_into(state, f, tokens);
    lnt_safetensors_close(f);
    if (status == LINNET_OK)
        *out = state;
    else
        linnet_state_destroy(state);
    return status;
}

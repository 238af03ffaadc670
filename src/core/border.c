#include "core/border.h"

#include <float.h>
#include <string.h>

#include "core/dtype.h"
#include "core/options.h"
#include "linnet/serve.h"
#include "linnet/state.h"
#include "linnet/task.h"
#include "linnet/train.h"

linnet_status lnt_need(lnt_ctx *c, const void *p, const char *name)
{
    if (!c) return LINNET_EINVAL;
    return p ? LINNET_OK : lnt_fail(c, LINNET_EINVAL, "%s is NULL", name);
}

/* ---- options: every number with its range, both ends included -------------------------------------------------------------------- */

typedef struct {
    const char *name;
    enum { I32, I64, F64 } type;
    bool off; /* 0 besides: not wanted, or chosen by the library */
    size_t offset;
    double least, most;
} range;

#define ENDLESS 1e15 /* steps, tokens: exact as a double, and nobody waits for them */
#define MOST_BATCH (1 << 20)
#define MOST_LENGTH (1 << 24)
#define FIELD(structure, name, type, least, most) {#name, type, false, offsetof(structure, name), least, most}
#define MAYBE(structure, name, type, least, most) {#name, type, true, offsetof(structure, name), least, most}

#define O linnet_context_options
static const range of_context[] = {MAYBE(O, threads, I32, 1, 4096)};
#undef O

#define O linnet_train_options
static const range of_train[] = {
    FIELD(O, n_texts, I32, 0, 1e9),
    FIELD(O, held_out_share, F64, 0, 0.9),
    MAYBE(O, train_tokenizer, I64, 257, 1 << 20), /* the bytes and a separator; published vocabularies end below 2^18 */
    FIELD(O, steps, I64, 0, ENDLESS),
    FIELD(O, max_seconds, F64, 0, 1e12),
    FIELD(O, batch, I64, 1, MOST_BATCH),
    FIELD(O, length, I64, 1, MOST_LENGTH),
    FIELD(O, accumulate, I64, 1, MOST_BATCH),
    FIELD(O, learning_rate, F64, 0, 1e3),
    FIELD(O, min_learning_rate_share, F64, 0, 1),
    FIELD(O, warmup, I64, LINNET_WARMUP_AUTO, ENDLESS),
    FIELD(O, warmup_from, F64, 0, 1e3),
    FIELD(O, beta1, F64, 0, 0.999999),
    FIELD(O, beta2, F64, 0, 0.99999999),
    FIELD(O, epsilon, F64, 1e-30, 1),
    FIELD(O, weight_decay, F64, 0, 1e3),
    FIELD(O, clip, F64, 0, 1e30),
    FIELD(O, eval_every, I64, 0, ENDLESS),
    FIELD(O, eval_tokens, I64, 0, ENDLESS),
    FIELD(O, save_every, I64, 0, ENDLESS),
    FIELD(O, recompute, I32, LINNET_RECOMPUTE_NONE, LINNET_RECOMPUTE_CHEAP),
    FIELD(O, weights, I32, LINNET_F32, LINNET_BF16),
    FIELD(O, moments, I32, LINNET_F32, LINNET_BF16),
    FIELD(O, n_given, I32, 0, 1e6),
};
#undef O

#define O linnet_trainer_options
static const range of_trainer[] = {
    FIELD(O, batch, I64, 1, MOST_BATCH),
    FIELD(O, length, I64, 1, MOST_LENGTH),
    FIELD(O, accumulate, I64, 1, MOST_BATCH),
    FIELD(O, recompute, I32, LINNET_RECOMPUTE_NONE, LINNET_RECOMPUTE_CHEAP),
    FIELD(O, learning_rate, F64, 0, 1e3),
    FIELD(O, beta1, F64, 0, 0.999999),
    FIELD(O, beta2, F64, 0, 0.99999999),
    FIELD(O, epsilon, F64, 1e-30, 1),
    FIELD(O, weight_decay, F64, 0, 1e3),
    FIELD(O, clip, F64, 0, 1e30),
    FIELD(O, moments, I32, LINNET_F32, LINNET_BF16),
};
#undef O

#define O linnet_micro_batch
static const range of_micro_batch[] = {
    FIELD(O, tokens, I64, 1, ENDLESS),
    FIELD(O, sequences, I64, 1, ENDLESS),
    FIELD(O, scale, F64, -DBL_MAX, DBL_MAX),
};
#undef O

#define O linnet_eval_options
static const range of_eval[] = {
    FIELD(O, n_texts, I32, 0, 1e9),
    FIELD(O, length, I64, 1, MOST_LENGTH),
    MAYBE(O, stride, I64, 1, MOST_LENGTH),
    MAYBE(O, max_tokens, I64, 1, ENDLESS),
};
#undef O

#define O linnet_generate_options
static const range of_generate[] = {
    FIELD(O, max_tokens, I64, 0, 0x1p62),
    FIELD(O, temperature, F64, 0, DBL_MAX),
    FIELD(O, top_k, I64, 0, 0x1p62),
    FIELD(O, top_p, F64, 0, 1),
    FIELD(O, draft_tokens, I64, 1, 64),
    FIELD(O, min_p, F64, 0, 1),
    FIELD(O, repetition_penalty, F64, 0.01, 100),
    FIELD(O, n_stop, I32, 0, 1000),
    FIELD(O, alternatives, I32, 0, 1000),
};
#undef O

#define O linnet_op_options
static const range of_op[] = {
    MAYBE(O, chunk, I32, 1, 1 << 20),
    FIELD(O, dtype, I32, LINNET_F32, LINNET_F64),
    FIELD(O, n_set, I32, 0, 1e6),
};
#undef O

#define O linnet_bench_op_options
static const range of_bench_op[] = {
    FIELD(O, dtype, I32, LINNET_F32, LINNET_F64),
    MAYBE(O, chunk, I32, 1, 1 << 20),
    FIELD(O, repeats, I32, 1, 1e6),
};
#undef O

#define O linnet_bench_train_options
static const range of_bench_train[] = {
    FIELD(O, batch, I64, 1, MOST_BATCH),
    FIELD(O, length, I64, 1, MOST_LENGTH),
    FIELD(O, repeats, I64, 1, 1e6),
    FIELD(O, recompute, I32, LINNET_RECOMPUTE_NONE, LINNET_RECOMPUTE_CHEAP),
    FIELD(O, moments, I64, LINNET_F32, LINNET_BF16),
};
#undef O

#define O linnet_bench_decode_options
static const range of_bench_decode[] = {
    FIELD(O, batch, I64, 1, MOST_BATCH),
    FIELD(O, steps, I64, 1, MOST_LENGTH),
};
#undef O

#define O linnet_task_options
static const range of_task[] = {
    FIELD(O, n_set, I32, 0, 1e6),
    FIELD(O, max_seconds, F64, 0, 1e12),
    FIELD(O, n_files, I32, 0, 1e9),
};
#undef O

#define O linnet_compare_options
static const range of_compare[] = {FIELD(O, n_runs, I32, 1, 1e6), FIELD(O, page, I32, 0, 1)};
#undef O

#define O linnet_convert_options
static const range of_convert[] = {FIELD(O, dtype, I32, LINNET_CONVERT_KEEP, LINNET_F16), FIELD(O, shard_bytes, I64, 0, ENDLESS)};
#undef O

#define O linnet_session_options
static const range of_session[] = {
    FIELD(O, slots, I64, 1, MOST_BATCH),
    MAYBE(O, capacity, I64, 1, ENDLESS),
    FIELD(O, rollback, I64, 0, MOST_LENGTH),
    FIELD(O, chunk, I64, 1, MOST_BATCH),
};
#undef O

#define O linnet_session_call
static const range of_session_call[] = {
    FIELD(O, n_ids, I64, 0, ENDLESS),
    FIELD(O, wants, I32, LINNET_LOGITS_NONE, LINNET_LOGITS_ALL),
    FIELD(O, layer, I32, 0, INT32_MAX),
    FIELD(O, steps, I32, 0, 1),
    FIELD(O, on_device, I32, 0, LINNET_ON_DEVICE_LOGITS + LINNET_ON_DEVICE_IDS),
};
#undef O

#define MOST_CONTEXT (1 << 30)
#define O linnet_server_options
static const range of_server[] = {
    FIELD(O, port, I32, 0, 65535),
    FIELD(O, connections, I32, 1, 65536),
    FIELD(O, slots, I64, 1, 4096),
    FIELD(O, waiting, I64, 1, MOST_BATCH),
    FIELD(O, context, I64, 2, MOST_CONTEXT),
    FIELD(O, chunk, I64, 2, 65536),
    FIELD(O, cache_bytes, I64, 0, ENDLESS),
    FIELD(O, body_bytes, I64, 64, 1 << 30),
    FIELD(O, seconds, F64, 0.1, 1e9),
    FIELD(O, idle_seconds, F64, 1, 1e6),
    FIELD(O, ahead, I32, -1, 1),
};
#undef O

#define O linnet_chat_options
static const range of_chat[] = {
    FIELD(O, context, I64, 2, MOST_CONTEXT),
    FIELD(O, chunk, I64, 2, 65536),
    FIELD(O, cache_bytes, I64, 0, ENDLESS),
};
#undef O

static const struct kind {
    const char *name;
    size_t size;
    int n;
    const range *ranges;
} kinds[] = {
#define STRUCTURE(name, type) {#name, sizeof(type), (int)(sizeof of_##name / sizeof *of_##name), of_##name}
#define KIND(name) STRUCTURE(name, linnet_##name##_options)
    KIND(context), KIND(train), KIND(eval), KIND(generate), KIND(op), KIND(bench_op), KIND(bench_train), KIND(bench_decode), KIND(task),
    KIND(compare), {"task_callbacks", sizeof(linnet_task_callbacks), 0, NULL}, {"allocator", sizeof(linnet_allocator), 0, NULL}, KIND(convert),
    KIND(trainer), STRUCTURE(micro_batch, linnet_micro_batch), KIND(session), STRUCTURE(session_call, linnet_session_call), KIND(server), KIND(chat),
};

static const struct kind *find_kind(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, name)) return &kinds[i];
    return NULL;
}

/* A whole number up to 2^53 is itself; one above is at least 2^53, so comparing it as a double decides rightly about every range above. */
static double number_of(const range *r, const void *options)
{
    const char *at = (const char *)options + r->offset;
    int32_t i;
    int64_t l;
    double d;
    switch (r->type) {
    case I32: return memcpy(&i, at, sizeof i), i;
    case I64: return memcpy(&l, at, sizeof l), (double)l;
    default: return memcpy(&d, at, sizeof d), d;
    }
}

linnet_status lnt_options_check(lnt_ctx *c, const char *kind, const void *options)
{
    const struct kind *k = find_kind(kind);
    for (int i = 0; i < k->n; i++) {
        const range *r = &k->ranges[i];
        const double x = number_of(r, options);
        if ((x >= r->least && x <= r->most) || (r->off && x == 0)) continue;
        const char *none = r->off ? ", or 0" : "";
        if (r->most >= ENDLESS) return lnt_fail_option(c, r->name, "is %.10g, expected at least %.10g%s", x, r->least, none);
        return lnt_fail_option(c, r->name, "is %.10g, expected %.10g to %.10g%s", x, r->least, r->most, none);
    }
    return LINNET_OK;
}

linnet_status linnet_option_range(const char *options, const char *field, double *least, double *most)
{
    const struct kind *k = options ? find_kind(options) : NULL;
    for (int i = 0; k && field && least && most && i < k->n; i++) {
        if (strcmp(k->ranges[i].name, field) != 0) continue;
        *least = k->ranges[i].least;
        *most = k->ranges[i].most;
        return LINNET_OK;
    }
    return LINNET_EINVAL;
}

/* ---- structures that begin with their size --------------------------------------------------------------------------------------- */

enum { LARGEST = 1 << 16 }; /* bytes; above is a size that was not set */

linnet_status lnt_options_take(lnt_ctx *c, const char *kind, const void *given, void *mine)
{
    const struct kind *k = find_kind(kind);
    size_t size;
    LNT_TRY(lnt_need(c, given, "the structure of options"));
    memcpy(&size, given, sizeof size);
    if (size < sizeof size || size > LARGEST) {
        lnt_fail(c, LINNET_EINVAL, "a structure of options that says it has %zu bytes", size);
        return lnt_hint(c, "Begin with the structure's _INIT, which sets its size.");
    }
    for (size_t i = k->size; i < size; i++)
        if (((const char *)given)[i]) return lnt_fail(c, LINNET_EUNSUPPORTED, "options of a newer linnet: byte %zu of %zu is set", i, size);
    memcpy(mine, given, size < k->size ? size : k->size);
    memcpy(mine, &k->size, sizeof k->size);
    return lnt_options_check(c, kind, mine);
}

linnet_status lnt_result_check(lnt_ctx *c, const void *out)
{
    size_t size;
    LNT_TRY(lnt_need(c, out, "the structure for the result"));
    memcpy(&size, out, sizeof size);
    if (size >= sizeof size && size <= LARGEST) return LINNET_OK;
    lnt_fail(c, LINNET_EINVAL, "a structure for the result that says it has %zu bytes", size);
    return lnt_hint(c, "Set its size before the call: result.size = sizeof result.");
}

void lnt_give(void *out, const void *result, size_t known)
{
    size_t size;
    memcpy(&size, out, sizeof size);
    size = size < known ? size : known;
    memcpy(out, result, size);
    memcpy(out, &size, sizeof size);
}

linnet_status lnt_model_dtype_check(lnt_ctx *c, const char *what, int64_t dtype)
{
    if (dtype == LINNET_F32 || dtype == LINNET_BF16) return LINNET_OK;
    if (dtype < 0 || dtype > LINNET_I8) return lnt_fail(c, LINNET_EINVAL, "%s is number %lld, expected float32 or bf16", what, (long long)dtype);
    return lnt_fail(c, LINNET_EINVAL, "%s is %s, expected float32 or bf16", what, lnt_dtype_name((lnt_dtype)dtype));
}

linnet_status lnt_weights_dtype_check(lnt_ctx *c, int64_t dtype)
{
    if (dtype == LINNET_F32 || dtype == LINNET_BF16 || dtype == LINNET_I8) return LINNET_OK;
    if (dtype < 0 || dtype > LINNET_I8) return lnt_fail(c, LINNET_EINVAL, "weights is number %lld, expected float32, bf16 or int8", (long long)dtype);
    return lnt_fail(c, LINNET_EINVAL, "weights is %s, expected float32, bf16 or int8", lnt_dtype_name((lnt_dtype)dtype));
}

/* linnet bench: operators and training steps as a share of what the machine can do, measured in the same run. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include <linnet/recurrence.h>

#include "commands.h"
#include "say.h"
#include "term.h"

typedef struct {
    const char *record, *label;
    int json;
} output_args;
#define OUTPUT_FLAGS(o)                                                                                                             \
    { "output", ARG_HEADING },                                                                                                      \
    { "record", ARG_TEXT, &(o)->record, "FILE", "append each result to this file as a JSON line" },                                 \
    { "label", ARG_TEXT, &(o)->label, "TEXT", "kept with each result, for example a commit" },                                      \
    { "json", ARG_SWITCH, &(o)->json, .help = "print each result as a JSON line" }

/* The processor's name as the kernel gives it. */
static const char *processor(void)
{
    static char name[128] = "unknown processor";
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f) fclose(f);
    return name;
}

static double peak_memory(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return 1024.0 * (double)u.ru_maxrss; /* Linux counts in KiB */
}

/* The fields that every record begins with. */
static void json_machine(json_line *j, const linnet_context *c, const output_args *out, const linnet_machine_rates *rates)
{
    char date[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    line_text(j, "date", date);
    line_text(j, "version", linnet_version());
    line_text(j, "label", out->label);
    line_text(j, "processor", processor());
    line_text(j, "machine", linnet_machine(c));
    line_int(j, "threads", linnet_threads(c));
    line_real(j, "machine_f32_flops", rates->f32_flops);
    line_real(j, "machine_bf16_flops", rates->bf16_flops);
    line_real(j, "machine_copy_bytes", rates->copy_bytes);
    if (rates->exponentials > 0) line_real(j, "machine_exponentials", rates->exponentials);
    line_int(j, "machine_f32_size", rates->f32_size);
    line_int(j, "machine_bf16_size", rates->bf16_size);
}

typedef void (*write_fields)(json_line *j, const void *result);

/* One result as a JSON line to standard output (--json) and to the record (--record): written once, so that both tell one second and one memory. */
static int record(const linnet_context *c, const output_args *out, const linnet_machine_rates *rates, write_fields fields, const void *result)
{
    if (!out->json && !out->record) return 0;
    char *line = NULL;
    size_t length = 0;
    FILE *memory = open_memstream(&line, &length);
    if (memory) {
        json_line j;
        line_open(&j, memory);
        json_machine(&j, c, out, rates);
        if (fields) fields(&j, result);
        line_close(&j);
    }
    if (!memory || fclose(memory) != 0) {
        perror("linnet: cannot write a result");
        free(line);
        return EXIT_INTERNAL;
    }
    if (out->json) fputs(line, stdout), say_flush(stdout);
    int code = 0;
    if (out->record) {
        FILE *file = fopen(out->record, "a");
        int bad = !file || fputs(line, file) < 0;
        if (file && fclose(file) != 0) bad = 1;
        if (bad) code = say_error(NULL, NULL, "cannot write the --record file \"%s\": %s", out->record, strerror(errno));
    }
    free(line);
    return code;
}

/* Whether results can be appended to the record, before any is measured; a file that this makes is taken away again. */
static int check_record(const char *path)
{
    struct stat st;
    const int there = path && stat(path, &st) == 0;
    if (!path || (there && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))) return 0; /* a pipe's reader would see its end */
    FILE *file = fopen(path, "a");
    if (!file) return say_error(NULL, NULL, "cannot write the --record file \"%s\": %s", path, strerror(errno));
    fclose(file);
    if (!there) remove(path);
    return 0;
}

/* Measure the machine and print what it reaches. */
static int measure(linnet_context *c, const output_args *out, linnet_machine_rates *rates)
{
    char f32[SAY_TEXT], bf16[SAY_TEXT], copy[SAY_TEXT], exponentials[SAY_TEXT];
    const int code = check_record(out->record);
    if (code) return code;
    linnet_status s = linnet_bench_machine(c, rates);
    if (s != LINNET_OK) return say_status(c, s);
    if (!out->json)
        printf("%s; %s\nproducts: float32 %lld^3 %sFLOP/s, bf16 %lld^3 %sFLOP/s; copy %sB/s (read plus write)", processor(), linnet_machine(c),
               (long long)rates->f32_size, say_rate(f32, rates->f32_flops), (long long)rates->bf16_size, say_rate(bf16, rates->bf16_flops),
               say_rate(copy, rates->copy_bytes));
    if (!out->json && rates->exponentials > 0) printf("; float32 exponentials %s/s", say_rate(exponentials, rates->exponentials));
    if (!out->json) printf("\n\n");
    say_flush(stdout);
    return 0;
}

static double product_rate(const linnet_machine_rates *r, linnet_dtype t)
{
    return t == LINNET_BF16 ? r->bf16_flops : r->f32_flops;
}

/* ---- bench op --------------------------------------------------------------------------------------------------------------- */

typedef struct {
    const linnet_bench_op_options *o;
    const linnet_bench_op_result *r;
    double rate;       /* of products in o->dtype */
    double copy_bytes; /* a second */
} op_result;

/* "Hq=16 K=128 ..." as fields. */
static void sizes_into(json_line *j, const char *sizes)
{
    char letter[8];
    long long value;
    for (int n = 0; sscanf(sizes, "%7[^=]=%lld %n", letter, &value, &n) == 2 && n; sizes += n) line_int(j, letter, value);
}

/* An option as it was set, as text; sizes stand there already. */
static void setting_into(json_line *j, const char *pair)
{
    char key[32];
    const char *equals = strchr(pair, '=');
    if (!equals || (pair[0] >= 'A' && pair[0] <= 'Z')) return;
    snprintf(key, sizeof key, "%.*s", (int)(equals - pair), pair);
    line_text(j, key, equals + 1);
}

static void op_fields(json_line *j, const void *result)
{
    const op_result *x = result;
    line_text(j, "bench", "op");
    line_text(j, "op", x->o->op);
    line_text(j, "impl", x->r->impl);
    line_text(j, "backward_impl", x->r->backward_impl);
    line_text(j, "dtype", linnet_dtype_name(x->o->dtype));
    line_int(j, "B", x->o->B);
    line_int(j, "T", x->o->T);
    sizes_into(j, x->r->sizes);
    for (int i = 0; i < x->o->n_set; i++) setting_into(j, x->o->set[i]);
    line_real(j, "forward_seconds", x->r->forward_seconds);
    line_real(j, "both_seconds", x->r->both_seconds);
    line_real(j, "forward_flops", x->r->forward_flops);
    line_real(j, "both_flops", x->r->both_flops);
    line_real(j, "forward_share", x->r->forward_flops / x->r->forward_seconds / x->rate);
    line_real(j, "both_share", x->r->both_flops / x->r->both_seconds / x->rate);
    line_real(j, "forward_bytes", x->r->forward_bytes);
    line_real(j, "both_bytes", x->r->both_bytes);
    line_real(j, "forward_copy_share", x->r->forward_bytes / x->r->forward_seconds / x->copy_bytes);
    line_real(j, "both_copy_share", x->r->both_bytes / x->r->both_seconds / x->copy_bytes);
    line_real(j, "forward_error", x->r->forward_error);
    line_real(j, "backward_error", x->r->backward_error);
    line_real(j, "shape_error", x->r->shape_error);
    if (*x->r->counted) {
        char name[32];
        line_real(j, x->r->counted, x->r->forward_mean);
        snprintf(name, sizeof name, "backward_%s", x->r->counted);
        line_real(j, name, x->r->backward_mean);
    }
    line_int(j, "workspace", (int64_t)x->r->workspace);
    line_real(j, "peak_memory", x->r->peak_memory ? (double)x->r->peak_memory : peak_memory());
}

/* Before the machine is measured, which takes seconds: what the library says of a name that it does not know. */
static int check_names(linnet_context *c, const arg_list *names)
{
    linnet_operator_call call = LINNET_OPERATOR_CALL_INIT;
    size_t bytes;
    for (int i = 0; i < names->count; i++) {
        call.op = names->item[i];
        if (!linnet_operator_describe(call.op, NULL, 0)) return say_status(c, linnet_operator_workspace(c, &call, 0, &bytes));
    }
    return 0;
}

static void print_heading(const linnet_bench_op_options *o)
{
    const char *dtype = linnet_dtype_name(o->dtype);
    printf("B=%lld T=%lld %s; shares of the %s product rate and of the copy rate; errors are relative rms\n", (long long)o->B, (long long)o->T, dtype,
           dtype);
    printf("%-18s %-16s %9s %8s %6s %6s   %9s %8s %6s %6s   %7s %7s  %s\n", "operator", "implementation", "forward", "FLOP/s", "share", "copy",
           "fwd+bwd", "FLOP/s", "share", "copy", "error", "bwd", "workspace");
}

static void print_op(const op_result *x)
{
    char time[SAY_TEXT], rate[SAY_TEXT], bytes[SAY_TEXT];
    const linnet_bench_op_result *r = x->r;
    const struct {
        double seconds, flops, bytes;
    } part[2] = { { r->forward_seconds, r->forward_flops, r->forward_bytes }, { r->both_seconds, r->both_flops, r->both_bytes } };
    printf("%-18s %-16s ", x->o->op, r->impl);
    for (int i = 0; i < 2; i++)
        printf("%9s %8s %5.1f%% %5.1f%%   ", say_time(time, part[i].seconds), say_rate(rate, part[i].flops / part[i].seconds),
               100 * part[i].flops / part[i].seconds / x->rate, 100 * part[i].bytes / part[i].seconds / x->copy_bytes);
    printf("%7.1e %7.1e  %-9s %s\n", r->forward_error, r->backward_error, say_bytes(bytes, (double)r->workspace), r->sizes);
    if (*r->counted) printf("%-18s %.2f and %.2f %s a token forward and backward\n", "", r->forward_mean, r->backward_mean, r->counted);
    say_flush(stdout);
}

static int bench_op(const command *self, int argc, char **argv)
{
    linnet_bench_op_options o = LINNET_BENCH_OP_OPTIONS_INIT;
    machine_args m = MACHINE_ARGS_INIT;
    output_args out = { 0 };
    arg_list words = { 0 };
    linnet_machine_rates rates = { .size = sizeof rates };
    arg_list set = { 0 };
    const arg table[] = {
        { "shape", ARG_HEADING },
        { "B", ARG_I64, &o.B, "N", "sequences", 1, 1 << 20 },
        { "T", ARG_I64, &o.T, "N", "tokens of each", 1, 1 << 24 },
        { "heads", ARG_INT, &o.heads, "N", "heads of q; others have as many unless --set says", 1, 1 << 16, "as is usual for the operator" },
        { "set", ARG_LIST, &set, "KEY=VALUE", "a size (Hq, Hk, Hv, K, V ...) or option (window, cg_tol ...) of the operator; may be repeated" },
        { "implementation", ARG_HEADING },
        { "form", ARG_TEXT, &o.form, "FORM", "auto, recurrent, chunk or parallel; one that nothing but the reference has for the call is refused" },
        { "chunk", ARG_INT, &o.chunk, "C", "tokens of a chunk", .range = "bench_op.chunk", .fallback = "the implementation's own" },
        { "impl", ARG_TEXT, &o.impl, "NAME", "force one implementation" },
        { "repeats", ARG_INT, &o.repeats, "N", "runs to take the median of", .range = "bench_op.repeats" },
        OUTPUT_FLAGS(&out),
        MACHINE_FLAGS(&m),
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 0, -1);
    if (code >= 0) return code;
    o.dtype = m.dtype;
    o.set = set.item;
    o.n_set = set.count;
    linnet_context *c = NULL;
    code = machine_open(&m, &c);
    if (!code) code = check_names(c, &words);
    if (!code) code = measure(c, &out, &rates);
    bool every = words.count == 0;
    for (int i = 0; every && linnet_operator_at(i); i++) arg_list_add(&words, linnet_operator_at(i));
    if (!code && !out.json)
        print_heading(&o);
    for (int i = 0; !code && i < words.count; i++) {
        linnet_bench_op_result r = { .size = sizeof r };
        o.op = words.item[i];
        linnet_status s = linnet_bench_op(c, &o, &r);
        if (s != LINNET_OK) {
            code = say_status(c, s);
            break;
        }
        op_result x = { &o, &r, product_rate(&rates, o.dtype), rates.copy_bytes };
        if (!out.json) print_op(&x);
        code = record(c, &out, &rates, op_fields, &x);
    }
    linnet_context_destroy(c);
    return code;
}

/* The shape that models are compared at: 12 layers of width 512 with 4 heads of 128, token ids are bytes. */
static const char *const standard_model[] = { "num_hidden_layers=12", "hidden_size=512", "num_heads=4", "head_dim=128",
                                              "expand_v=1",           "vocab_size=256",  NULL };

/* ---- bench train ------------------------------------------------------------------------------------------------------------ */

typedef struct {
    const linnet_bench_train_options *o;
    const linnet_bench_train_result *r;
    linnet_model_info info;
    linnet_dtype dtype, weights;
    const linnet_machine_rates *rates;
} train_result;

/* Seconds to stream the weights and states of one decoding step once. */
static double decode_floor(const train_result *x)
{
    return x->r->decode_bytes / x->rates->copy_bytes;
}

static void train_fields(json_line *j, const void *result)
{
    const train_result *x = result;
    line_text(j, "bench", "train");
    line_text(j, "model_type", x->info.model_type);
    line_text(j, "dtype", linnet_dtype_name(x->dtype));
    line_int(j, "parameters", x->r->parameters);
    line_int(j, "layers", x->info.layers);
    line_int(j, "width", x->info.width);
    line_int(j, "vocabulary", x->info.vocabulary);
    line_int(j, "batch", x->o->batch);
    line_int(j, "length", x->o->length);
    line_int(j, "recompute", x->o->recompute);
    line_text(j, "weights", linnet_dtype_name(x->weights));
    line_text(j, "moments", linnet_dtype_name((linnet_dtype)x->o->moments));
    line_real(j, "step_seconds", x->r->step_seconds);
    line_real(j, "tokens_per_second", x->r->tokens_per_second);
    line_real(j, "flops", x->r->flops);
    line_real(j, "share_of_f32", x->r->flops / x->r->step_seconds / x->rates->f32_flops);
    line_real(j, "share", x->r->flops / x->r->step_seconds / product_rate(x->rates, x->dtype));
    line_real(j, "decode_seconds", x->r->decode_seconds);
    line_real(j, "decode_bytes", x->r->decode_bytes);
    line_real(j, "decode_over_floor", x->r->decode_seconds / decode_floor(x));
    line_real(j, "update_seconds", x->r->update_seconds);
    line_int(j, "plan_bytes", x->r->plan_bytes);
    line_int(j, "device_bytes", x->r->device_bytes);
    line_real(j, "peak_memory", peak_memory());
}

static void print_train(const train_result *x)
{
    char a[SAY_TEXT], b[SAY_TEXT], d[SAY_TEXT];
    const linnet_bench_train_result *r = x->r;
    double rate = r->flops / r->step_seconds;
    printf("%s, %s parameters, %s, B=%lld T=%lld, AdamW\n", x->info.model_type, say_count(a, (double)r->parameters), linnet_dtype_name(x->dtype),
           (long long)x->o->batch, (long long)x->o->length);
    printf("step     %s, %s tokens/s\n", say_time(a, r->step_seconds), say_count(b, r->tokens_per_second));
    printf("rate     %sFLOP/s: %.1f%% of the float32 product rate", say_rate(a, rate), 100 * rate / x->rates->f32_flops);
    if (x->dtype == LINNET_BF16) printf(", %.1f%% of the bf16 rate", 100 * rate / x->rates->bf16_flops);
    printf("\nmemory   %s for activations, gradients and workspaces, ", say_bytes(a, (double)r->plan_bytes));
    if (r->device_bytes) printf("%s in use on the GPU\n", say_bytes(b, (double)r->device_bytes));
    else printf("peak of the process %s\n", say_bytes(b, peak_memory()));
    printf("decode   %s a token, %.2f times the %s that streaming %s takes\n\n", say_time(a, r->decode_seconds), r->decode_seconds / decode_floor(x),
           say_time(b, decode_floor(x)), say_bytes(d, r->decode_bytes));
    if (r->profile) printf("%s%-20s %6s %12s %12.2f\n", r->profile, "optimizer", "", "", 1e3 * r->update_seconds);
}

static int bench_train(const command *self, int argc, char **argv)
{
    linnet_bench_train_options o = LINNET_BENCH_TRAIN_OPTIONS_INIT;
    linnet_dtype weights = LINNET_F32, moments = LINNET_F32;
    machine_args m = MACHINE_ARGS_INIT;
    model_args shape = { .defaults = standard_model };
    output_args out = { 0 };
    arg_list words = { 0 };
    const arg table[] = {
        { "step", ARG_HEADING },
        { "batch", ARG_I64, &o.batch, "N", "sequences", .range = "bench_train.batch" },
        { "length", ARG_I64, &o.length, "N", "tokens of each", .range = "bench_train.length" },
        { "repeats", ARG_I64, &o.repeats, "N", "steps to take the median of", .range = "bench_train.repeats" },
        RECOMPUTE_FLAG(&o.recompute),
        WEIGHTS_FLAG(&weights),
        MOMENTS_FLAG(&moments),
        MODEL_FLAGS(&shape, "12 layers, width 512, 4 heads of 128"),
        OUTPUT_FLAGS(&out),
        MACHINE_FLAGS(&m),
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 0, 0);
    if (code >= 0) return code;
    if ((code = outputs_check(&out.record, 1, shape.config, NULL, 0)) != 0) return code;
    o.moments = moments;
    linnet_context *c = NULL;
    linnet_config *config = NULL;
    linnet_model *model = NULL;
    linnet_machine_rates rates = { .size = sizeof rates };
    linnet_bench_train_result r = { .size = sizeof r };
    linnet_status s = LINNET_OK;
    code = machine_open(&m, &c);
    if (!code) code = model_args_config(c, &shape, &config);
    if (!code && (s = linnet_model_create_kept(c, config, m.dtype, weights, 1, &model)) != LINNET_OK) code = say_status(c, s);
    if (!code) code = measure(c, &out, &rates);
    if (!code && (s = linnet_bench_train(c, model, &o, &r)) != LINNET_OK) code = say_status(c, s);
    if (!code) {
        train_result x = { .o = &o, .r = &r, .dtype = m.dtype, .weights = weights, .rates = &rates };
        x.info.size = sizeof x.info;
        linnet_model_get_info(model, &x.info);
        if (!out.json) print_train(&x);
        code = record(c, &out, &rates, train_fields, &x);
    }
    linnet_free(r.profile);
    linnet_model_destroy(model);
    linnet_config_destroy(config);
    linnet_context_destroy(c);
    return code;
}

/* ---- bench decode ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    const linnet_bench_decode_options *o;
    const linnet_bench_decode_result *r;
    linnet_model_info info;
    linnet_dtype dtype;
    double floor; /* seconds that moving the bytes takes */
} decode_result;

static void decode_fields(json_line *j, const void *result)
{
    const decode_result *x = result;
    line_text(j, "bench", "decode");
    line_text(j, "model_type", x->info.model_type);
    line_text(j, "dtype", linnet_dtype_name(x->dtype));
    line_int(j, "parameters", x->r->parameters);
    line_int(j, "layers", x->info.layers);
    line_int(j, "width", x->info.width);
    line_int(j, "vocabulary", x->info.vocabulary);
    line_int(j, "batch", x->o->batch);
    line_real(j, "step_seconds", x->r->step_seconds);
    line_real(j, "tokens_per_second", x->r->tokens_per_second);
    line_real(j, "bytes", x->r->bytes);
    line_int(j, "state_bytes", x->r->state_bytes);
    line_real(j, "floor_seconds", x->floor);
    line_real(j, "share", x->floor / x->r->step_seconds);
    line_real(j, "check_error", x->r->check_error);
    line_real(j, "peak_memory", x->r->peak_memory ? (double)x->r->peak_memory : peak_memory());
}

static void print_decode(const decode_result *x)
{
    char a[SAY_TEXT], b[SAY_TEXT];
    const linnet_bench_decode_result *r = x->r;
    printf("%s, %s parameters, %s, %lld sequence%s\n", x->info.model_type, say_count(a, (double)r->parameters), linnet_dtype_name(x->dtype),
           (long long)x->o->batch, x->o->batch == 1 ? "" : "s");
    printf("step     %s, %s tokens/s\n", say_time(a, r->step_seconds), say_count(b, r->tokens_per_second));
    printf("floor    %s for %s of weights and states: %.1f%% of it reached\n", say_time(a, x->floor), say_bytes(b, r->bytes),
           100 * x->floor / r->step_seconds);
    printf("check    logits of steps against one pass: relative error %.1e\n", r->check_error);
    printf("memory   %s a sequence, peak %s\n", say_bytes(a, (double)r->state_bytes),
           say_bytes(b, r->peak_memory ? (double)r->peak_memory : peak_memory()));
}

static int bench_decode(const command *self, int argc, char **argv)
{
    linnet_bench_decode_options o = LINNET_BENCH_DECODE_OPTIONS_INIT;
    machine_args m = MACHINE_ARGS_INIT;
    model_args shape = { .defaults = standard_model };
    output_args out = { 0 };
    arg_list words = { 0 };
    const arg table[] = {
        { "step", ARG_HEADING },
        { "batch", ARG_I64, &o.batch, "N", "sequences, each with its own state", .range = "bench_decode.batch" },
        { "steps", ARG_I64, &o.steps, "N", "steps to take the median of", .range = "bench_decode.steps" },
        MODEL_FLAGS(&shape, "12 layers, width 512, 4 heads of 128"),
        OUTPUT_FLAGS(&out),
        MACHINE_FLAGS(&m),
        { .kind = ARG_END },
    };
    int code = args_parse(self, table, argc, argv, &words, 0, 0);
    if (code >= 0) return code;
    if ((code = outputs_check(&out.record, 1, shape.config, NULL, 0)) != 0) return code;
    linnet_context *c = NULL;
    linnet_config *config = NULL;
    linnet_model *model = NULL;
    linnet_machine_rates rates = { .size = sizeof rates };
    linnet_bench_decode_result r = { .size = sizeof r };
    linnet_status s = LINNET_OK;
    code = machine_open(&m, &c);
    if (!code) code = model_args_config(c, &shape, &config);
    if (!code) code = measure(c, &out, &rates);
    if (!code && (s = linnet_model_create(c, config, m.dtype, 1, &model)) != LINNET_OK) code = say_status(c, s);
    if (!code && (s = linnet_bench_decode(c, model, &o, &r)) != LINNET_OK) code = say_status(c, s);
    if (!code) {
        decode_result x = { .o = &o, .r = &r, .dtype = m.dtype, .floor = r.bytes / rates.copy_bytes };
        x.info.size = sizeof x.info;
        linnet_model_get_info(model, &x.info);
        if (!out.json) print_decode(&x);
        code = record(c, &out, &rates, decode_fields, &x);
    }
    linnet_model_destroy(model);
    linnet_config_destroy(config);
    linnet_context_destroy(c);
    return code;
}

/* ---- bench machine ---------------------------------------------------------------------------------------------------------- */

static void machine_fields(json_line *j, const void *result)
{
    (void)result;
    line_text(j, "bench", "machine");
}

static int bench_machine(const command *self, int argc, char **argv)
{
    machine_args m = MACHINE_ARGS_INIT;
    output_args out = { 0 };
    arg_list words = { 0 };
    linnet_machine_rates rates = { .size = sizeof rates };
    const arg table[] = { OUTPUT_FLAGS(&out), MACHINE_FLAGS(&m), { .kind = ARG_END } };
    int code = args_parse(self, table, argc, argv, &words, 0, 0);
    if (code >= 0) return code;
    linnet_context *c = NULL;
    code = machine_open(&m, &c);
    if (!code) code = measure(c, &out, &rates);
    if (!code) code = record(c, &out, &rates, machine_fields, NULL);
    linnet_context_destroy(c);
    return code;
}

/* ---- the command ------------------------------------------------------------------------------------------------------------ */

static const command parts[] = {
    { .name = "bench op", .summary = "check operators against the reference, then time them", .usage = "[NAME...] [options]",
      .example = "linnet bench op gated_delta_rule --T 2048 --heads 16", .run = bench_op },
    { .name = "bench train", .summary = "time a training step and a decoding step of a model", .usage = "[options]",
      .example = "linnet bench train --dtype bf16\nlinnet bench train --mixer delta_net --preset small --batch 8 --length 256", .run = bench_train },
    { .name = "bench decode", .summary = "time a token of a batch of sequences, as a share of moving weights and states", .usage = "[options]",
      .example = "linnet bench decode --dtype bf16 --batch 8", .run = bench_decode },
    { .name = "bench machine", .summary = "product rates and copy bandwidth of this machine", .usage = "[options]", .example = "linnet bench machine",
      .run = bench_machine },
};

static int run(const command *self, int argc, char **argv)
{
    return args_run_part(self, parts, sizeof parts / sizeof *parts, "benchmark", argc, argv);
}

static const char *part(int i) { return i < (int)(sizeof parts / sizeof *parts) ? strchr(parts[i].name, ' ') + 1 : NULL; }

const command cmd_bench = {
    .name = "bench",
    .summary = "time operators and models as a share of what the machine can do",
    .usage = "op [NAME...] | train | decode | machine [options]",
    .about = "Every run first measures the machine: the rate of its library's matrix products and the copy bandwidth.\n"
             "Each part has its own flags: `linnet bench op --help`, and so on.",
    .example = "linnet bench op gated_delta_rule --dtype bf16 --record results.jsonl --label \"my laptop\"",
    .run = run,
    .part = part,
};

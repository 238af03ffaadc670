/* The numbers of mesa_numbers.h as CSV files. */
#include <math.h>
#include <stdio.h>

#include "core/file.h"
#include "tasks/mesa_numbers.h"

typedef struct {
    lnt_ctx *c;
    lnt_file_writer w;
    linnet_status s;
} sheet;

static void row(sheet *k, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void row(sheet *k, const char *format, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, format);
    int n = lnt_format_list(text, sizeof text, format, ap);
    va_end(ap);
    if (k->s == LINNET_OK) k->s = lnt_file_write(k->c, &k->w, text, (size_t)n);
}

static sheet begin(lnt_ctx *c, const char *folder, const char *name)
{
    char path[4096];
    sheet k = {.c = c};
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    k.s = n < (int)sizeof path ? lnt_file_begin(c, path, &k.w) : lnt_fail(c, LINNET_EINVAL, "the path of the folder is too long");
    return k;
}

static linnet_status end(sheet *k)
{
    if (k->s == LINNET_OK) k->s = lnt_file_commit(k->c, &k->w);
    lnt_file_abandon(&k->w);
    return k->s;
}

static int layer_of(const lnt_mesa_numbers *z, int head) { return z->node[head / z->heads]->block; }

static linnet_status write_heads(lnt_ctx *c, const lnt_mesa_numbers *z, const char *folder)
{
    sheet k = begin(c, folder, "heads.csv");
    row(&k, "layer,head,beta,gamma,lambda_mean,lambda_smallest,lambda_largest\n");
    for (int x = 0; x < z->layers * z->heads; x++) {
        const double *lambda = z->lambda + x * z->K;
        double sum = 0, low = INFINITY, high = 0;
        for (int64_t i = 0; i < z->K; i++) {
            sum += lambda[i];
            low = fmin(low, lambda[i]);
            high = fmax(high, lambda[i]);
        }
        row(&k, "%d,%d,%.6g,%.8g,%.6g,%.6g,%.6g\n", layer_of(z, x), x % z->heads, z->beta[x], z->gamma[x], sum / (double)z->K, low, high);
    }
    return end(&k);
}

static linnet_status write_condition(lnt_ctx *c, const lnt_mesa_numbers *z, const char *folder)
{
    sheet k = begin(c, folder, "condition.csv");
    row(&k, "layer,head,position,smallest,largest,condition\n");
    for (int x = 0; x < z->layers * z->heads; x++)
        for (int b = 0; b < z->n_bins; b++) {
            const double low = z->low[x * z->n_bins + b], high = z->high[x * z->n_bins + b];
            row(&k, "%d,%d,%lld,%.8g,%.8g,%.8g\n", layer_of(z, x), x % z->heads, (long long)z->bin[b + 1], low, high, high / low);
        }
    return end(&k);
}

static linnet_status write_cosine(lnt_ctx *c, const lnt_mesa_numbers *z, const char *folder)
{
    sheet k = begin(c, folder, "cosine.csv");
    row(&k, "layer,head,first,last,cosine\n");
    for (int x = 0; x < z->layers * z->heads; x++)
        for (int b = 0; b < z->n_bins; b++)
            row(&k, "%d,%d,%lld,%lld,%.6g\n", layer_of(z, x), x % z->heads, (long long)z->bin[b] + 1, (long long)z->bin[b + 1],
                z->cosine[x * z->n_bins + b]);
    return end(&k);
}

static linnet_status write_steps(lnt_ctx *c, const lnt_mesa_numbers *z, const char *folder)
{
    sheet k = begin(c, folder, "steps.csv");
    row(&k, "solver,tolerance,layer,head,first,last,mean,most,unfinished\n");
    for (int s = 0; s < z->n_solvers; s++)
        for (int i = 0; i < z->n_tolerances; i++)
            for (int x = 0; x < z->layers * z->heads; x++)
                for (int b = 0; b < z->n_bins; b++) {
                    const int64_t at = lnt_mesa_row(z, s, i, x) + b;
                    row(&k, "%s,%g,%d,%d,%lld,%lld,%.6g,%g,%.6g\n", z->solvers[s].name, z->tolerances[i], layer_of(z, x), x % z->heads,
                        (long long)z->bin[b] + 1, (long long)z->bin[b + 1], z->steps[at], z->most[at], z->unfinished[at]);
                }
    return end(&k);
}

/* "model,", "steps,5", "tolerance,0.01": the first two columns. */
static void setting_name(const lnt_mesa_setting *s, char text[48])
{
    if (s->kind == LNT_MESA_MODEL) snprintf(text, 48, "model,");
    else lnt_format(text, 48, "%s,%g", s->kind == LNT_MESA_STEPS ? "steps" : "tolerance", s->value);
}

static linnet_status write_loss(lnt_ctx *c, const lnt_mesa_numbers *z, const char *folder)
{
    sheet k = begin(c, folder, "loss.csv");
    char name[48];
    row(&k, "setting,value,position,windows,loss,difference\n");
    for (int i = 0; i < z->n_settings; i++) {
        const lnt_mesa_setting *s = &z->settings[i];
        setting_name(s, name);
        for (int64_t t = 0; t < z->length; t++)
            row(&k, "%s,%lld,%lld,%.6f,%.6f\n", name, (long long)t + 1, (long long)z->windows, s->position[t],
                s->position[t] - z->settings[0].position[t]);
    }
    return end(&k);
}

static linnet_status write_summary(lnt_ctx *c, const lnt_mesa_numbers *z, const char *folder)
{
    sheet k = begin(c, folder, "summary.csv");
    char name[48];
    row(&k, "setting,value,loss,difference,perplexity,%s_steps", z->solvers[0].name);
    row(&k, z->n_solvers > 1 ? ",paper_steps\n" : "\n");
    for (int i = 0, t = 0; i < z->n_settings; i++) {
        const lnt_mesa_setting *s = &z->settings[i];
        setting_name(s, name);
        row(&k, "%s,%.6f,%.6f,%.6g", name, s->nats, s->nats - z->settings[0].nats, exp(s->nats));
        for (int j = 0; j < z->n_solvers; j++) {
            if (s->kind == LNT_MESA_TOLERANCE) row(&k, ",%.6g", lnt_mesa_mean_steps(z, j, t));
            else if (s->kind == LNT_MESA_STEPS && j == 0) row(&k, ",%g", s->value);
            else row(&k, ",");
        }
        t += s->kind == LNT_MESA_TOLERANCE;
        row(&k, "\n");
    }
    return end(&k);
}

const char *const lnt_mesa_names[] = {"heads.csv", "condition.csv", "cosine.csv", "steps.csv", "loss.csv", "summary.csv", "mesa.svg", NULL};

linnet_status lnt_mesa_write(lnt_ctx *c, const lnt_mesa_numbers *z, const char *folder)
{
    char path[4096];
    LNT_TRY(write_heads(c, z, folder));
    LNT_TRY(write_condition(c, z, folder));
    LNT_TRY(write_cosine(c, z, folder));
    LNT_TRY(write_steps(c, z, folder));
    LNT_TRY(write_loss(c, z, folder));
    LNT_TRY(write_summary(c, z, folder));
    snprintf(path, sizeof path, "%s/mesa.svg", folder);
    return lnt_mesa_page(c, z, path);
}

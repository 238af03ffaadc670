/* The numbers of mesa_numbers.h as one page of plots. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/plot.h"
#include "tasks/mesa_numbers.h"

enum { WIDTH = 1180, EDGE = 30, COLUMNS = 4, PANEL = 178, DOTS = 240, LOSS = 320, HEAD = 64, LEGEND = 26 };

static const char *const colours[LNT_MESA_MOST] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"};

/* Memory for what the lines of a page point to, and the first failure to have it. */
typedef struct {
    lnt_page g;
    const lnt_mesa_numbers *z;
    lnt_arena arena;
    double y;                /* where the next section begins */
    double *last, *middle;   /* [n_bins] the last position of each bin; its geometric middle, both counted from 1 */
    char (*head_colour)[8];  /* [layers * heads] */
} page;

static double *numbers(page *p, int64_t n)
{
    double *x = lnt_arena_alloc(&p->arena, lnt_bytes((size_t)n, sizeof *x));
    if (!x && p->g.s == LINNET_OK) p->g.s = lnt_fail_memory(p->g.c, lnt_bytes((size_t)n, sizeof *x));
    return x;
}

static lnt_plot_line *lines(page *p, int n)
{
    lnt_plot_line *l = lnt_arena_alloc(&p->arena, lnt_bytes((size_t)n, sizeof *l));
    if (!l && p->g.s == LINNET_OK) p->g.s = lnt_fail_memory(p->g.c, lnt_bytes((size_t)n, sizeof *l));
    return l;
}

/* ---- the colour of a head: how long it remembers ---- */

/* Tokens after which a write has faded to 1/e, for a constant gamma near 1; up to MOST_MEMORY on the page. */
enum { MOST_MEMORY = 1000 };
static double memory_of(double gamma) { return 1 / fmax(1 - gamma, 1.0 / MOST_MEMORY); }

/* From dark blue over purple to orange, t in [0,1]: the dark four fifths of matplotlib's "plasma", so that every line shows on white. */
static void ramp(double t, char text[8])
{
    static const int stop[5][3] = {{13, 8, 135}, {106, 0, 168}, {177, 42, 144}, {225, 100, 98}, {246, 154, 60}};
    t = 4 * fmin(fmax(t, 0), 1);
    int i = t >= 4 ? 3 : (int)t, c[3];
    for (int k = 0; k < 3; k++) c[k] = (int)lround(stop[i][k] + (t - i) * (stop[i + 1][k] - stop[i][k]));
    snprintf(text, 8, "#%02x%02x%02x", c[0] & 255, c[1] & 255, c[2] & 255);
}

static double memory_place(double memory) { return log(memory) / log(MOST_MEMORY); }

static void colour_bar(page *p, double x, double y)
{
    lnt_page_text(&p->g, x - 8, y, 12, "end", false, "a head's colour: its memory, 1/(1 - mean gamma)");
    for (int i = 0; i < 120; i++) {
        char colour[8];
        ramp(i / 119.0, colour);
        lnt_page_rule(&p->g, x + i, y - 10, x + i, y + 1, colour, 1.6);
    }
    for (double m = 1; m <= MOST_MEMORY; m *= 10) lnt_page_text(&p->g, x + 120 * memory_place(m), y + 13, 10, "middle", false, "%g", m);
    lnt_page_text(&p->g, x + 128, y, 11, "start", false, "tokens");
}

/* ---- sections ---- */

static void section(page *p, const char *title, const char *words)
{
    lnt_page_rule(&p->g, EDGE, p->y + 8, WIDTH - EDGE, p->y + 8, "#bbb", 1);
    lnt_page_text(&p->g, EDGE, p->y + 32, 17, "start", true, "%s", title);
    lnt_page_text(&p->g, EDGE, p->y + 51, 12, "start", false, "%s", words);
    p->y += HEAD;
}

static lnt_box panel(const page *p, int i)
{
    const double width = (WIDTH - 2 * EDGE) / (double)COLUMNS;
    return (lnt_box){EDGE + i % COLUMNS * width, p->y + i / COLUMNS * (double)PANEL, width, PANEL};
}

static double panels_height(const lnt_mesa_numbers *z) { return (z->layers + COLUMNS - 1) / COLUMNS * (double)PANEL; }

/* One dot a head over its layer. */
static void dots(page *p, int place, const char *title, const char *y_label, bool log_y, const double *value, double low, double high)
{
    const lnt_mesa_numbers *z = p->z;
    const int all = z->layers * z->heads;
    lnt_plot_line *l = lines(p, all);
    double *x = numbers(p, all);
    if (p->g.s != LINNET_OK) return;
    for (int i = 0; i < all; i++) {
        /* heads of a layer side by side */
        x[i] = z->node[i / z->heads]->block + 0.5 * ((i % z->heads + 0.5) / z->heads - 0.5);
        l[i] = (lnt_plot_line){.x = x + i, .y = value + i, .n = 1, .colour = p->head_colour[i], .style = LNT_DOTS};
    }
    const double width = (WIDTH - 2 * EDGE) / 3.0;
    lnt_page_plot(&p->g, (lnt_box){EDGE + place * width, p->y, width, DOTS},
                  &(lnt_plot){.title = title, .x_label = "layer", .y_label = y_label, .log_y = log_y, .whole_x = true, .n_lines = all, .lines = l,
                              .y_low = low, .y_high = high});
}

static void gates(page *p)
{
    const lnt_mesa_numbers *z = p->z;
    const int all = z->layers * z->heads;
    double *memory = numbers(p, all), *lambda = numbers(p, all), longest = 10, largest = 1.5;
    if (p->g.s != LINNET_OK) return;
    for (int i = 0; i < all; i++) {
        memory[i] = memory_of(z->gamma[i]);
        for (int64_t j = 0; j < z->K; j++) lambda[i] += z->lambda[i * z->K + j] / (double)z->K;
        longest = fmax(longest, memory[i]);
        largest = fmax(largest, lambda[i]);
    }
    section(p, "Gates and regulariser of each head",
            "Means over the text. A write strength near 1 and a long memory let H grow and the solve matter; a large Lambda makes the layer plain "
            "linear attention.");
    dots(p, 0, "Write strength beta", "mean beta", false, z->beta, 0, 1);
    dots(p, 1, "Memory, 1/(1 - gamma)", "tokens", true, memory, 1, longest);
    dots(p, 2, "Regulariser Lambda", "mean over channels", false, lambda, 0, largest);
    p->y += DOTS;
    colour_bar(p, WIDTH - EDGE - 180, p->y + 14);
    p->y += LEGEND + 10;
}

/* A panel a layer, in it a line a head over the position; value [layers * heads, n_bins]. */
static void head_panels(page *p, const double *x, const double *value, bool log_y, double low, double high)
{
    const lnt_mesa_numbers *z = p->z;
    for (int l = 0; l < z->layers; l++) {
        char title[48];
        lnt_plot_line *line = lines(p, z->heads);
        if (!line) return;
        for (int h = 0; h < z->heads; h++) {
            const int i = l * z->heads + h;
            line[h] = (lnt_plot_line){.x = x, .y = value + (int64_t)i * z->n_bins, .n = z->n_bins, .colour = p->head_colour[i]};
        }
        snprintf(title, sizeof title, "layer %d", z->node[l]->block);
        lnt_page_plot(&p->g, panel(p, l), &(lnt_plot){.title = title, .x_label = "position (tokens)", .log_x = true, .mark_x = (double)p->z->learnt,
                                                      .log_y = log_y, .n_lines = z->heads, .lines = line, .y_low = low, .y_high = high});
    }
    p->y += panels_height(z);
}

static void condition(page *p)
{
    const lnt_mesa_numbers *z = p->z;
    const int64_t all = (int64_t)z->layers * z->heads * z->n_bins;
    double *value = numbers(p, all), high = 2;
    if (p->g.s != LINNET_OK) return;
    for (int64_t i = 0; i < all; i++) high = fmax(high, value[i] = z->high[i] / z->low[i]);
    section(p, "Condition number of H_t + Lambda over position",
            "Largest over smallest eigenvalue, a line a head, geometric mean over windows. It grows in heads that remember; plain steps grow as its "
            "root at most.");
    head_panels(p, p->last, value, true, 1, high);
}

static void cosine(page *p)
{
    const lnt_mesa_numbers *z = p->z;
    double low = 0.9;
    for (int64_t i = 0; i < (int64_t)z->layers * z->heads * z->n_bins; i++) low = fmin(low, z->cosine[i]);
    section(p, "Cosine to the output without steps over position",
            "Between G_t' (q / diag(H_t + Lambda)) and the solved output, a line a head, means over windows. At 1 the solve turns nothing.");
    head_panels(p, p->middle, z->cosine, false, floor(10 * low) / 10, 1);
}

/* Mean and most over the heads of a layer, of the mean steps in every bin. */
static void over_heads(const lnt_mesa_numbers *z, int tolerance, int layer, double *mean, double *most)
{
    for (int b = 0; b < z->n_bins; b++) {
        mean[b] = most[b] = 0;
        for (int h = 0; h < z->heads; h++) {
            const double steps = z->steps[lnt_mesa_row(z, 0, tolerance, layer * z->heads + h) + b];
            mean[b] += steps / z->heads;
            most[b] = fmax(most[b], steps);
        }
    }
}

static void steps(page *p)
{
    const lnt_mesa_numbers *z = p->z;
    const int n = 2 * z->n_tolerances;
    char words[240];
    double high = 1;
    snprintf(words, sizeof words,
             "Applications of H_t + Lambda until |residual| <= tolerance |q|, solver \"%s\"; each layer is given what the model as it is gives it.",
             z->solvers[0].name);
    double *value = numbers(p, (int64_t)z->layers * n * z->n_bins);
    if (!value) return;
    for (int l = 0; l < z->layers; l++)
        for (int i = 0; i < z->n_tolerances; i++) {
            double *mean = value + ((int64_t)l * n + 2 * i) * z->n_bins, *most = mean + z->n_bins;
            over_heads(z, i, l, mean, most);
            for (int b = 0; b < z->n_bins; b++) high = fmax(high, most[b]);
        }
    section(p, "Steps of conjugate gradients to a tolerance over position", words);
    double x = EDGE + 44;
    for (int i = 0; i < z->n_tolerances; i++, x += 100) {
        lnt_page_rule(&p->g, x, p->y + 6, x + 24, p->y + 6, colours[i], 2.5);
        lnt_page_text(&p->g, x + 30, p->y + 10, 12, "start", false, "%g", z->tolerances[i]);
    }
    lnt_page_text(&p->g, x + 10, p->y + 10, 12, "start", false, "solid: mean over the heads of the layer; dashed: the slowest head");
    p->y += LEGEND;
    for (int l = 0; l < z->layers; l++) {
        char title[48];
        lnt_plot_line *line = lines(p, n);
        if (!line) return;
        for (int i = 0; i < n; i++)
            line[i] = (lnt_plot_line){.x = p->middle, .y = value + ((int64_t)l * n + i) * z->n_bins, .n = z->n_bins, .colour = colours[i / 2],
                                      .style = i % 2 ? LNT_DASHED : LNT_SOLID};
        snprintf(title, sizeof title, "layer %d", z->node[l]->block);
        lnt_page_plot(&p->g, panel(p, l), &(lnt_plot){.title = title, .x_label = "position (tokens)", .log_x = true, .mark_x = (double)p->z->learnt,
                                                      .n_lines = n, .lines = line, .y_low = 0, .y_high = high});
    }
    p->y += panels_height(z);
}

/* ---- loss ---- */

/* Means over bins of a setting's loss, less that of `base` (NULL: nothing). */
static double *binned(page *p, const lnt_mesa_setting *s, const lnt_mesa_setting *base)
{
    const lnt_mesa_numbers *z = p->z;
    double *y = numbers(p, z->n_bins);
    for (int b = 0; y && b < z->n_bins; b++) {
        double sum = 0;
        for (int64_t t = z->bin[b]; t < z->bin[b + 1]; t++) sum += s->position[t] - (base ? base->position[t] : 0);
        y[b] = sum / (double)(z->bin[b + 1] - z->bin[b]);
    }
    return y;
}

/* A line for each setting of a kind: its loss, or the difference to the model as it is. Returns how many. */
static int setting_lines(page *p, lnt_mesa_kind kind, bool difference, lnt_plot_line *out)
{
    const lnt_mesa_numbers *z = p->z;
    int n = 0;
    for (int i = 0; i < z->n_settings; i++) {
        const lnt_mesa_setting *s = &z->settings[i];
        if (s->kind != kind) continue;
        const char *name = kind == LNT_MESA_TOLERANCE ? lnt_arena_printf(&p->arena, "%g", s->value)
                                                      : lnt_arena_printf(&p->arena, "%g step%s", s->value, s->value == 1 ? "" : "s");
        out[n] = (lnt_plot_line){.name = name, .x = p->middle, .y = binned(p, s, difference ? &z->settings[0] : NULL), .n = z->n_bins,
                                 .colour = colours[n]};
        if (!out[n].y) return 0;
        n++;
    }
    return n;
}

static void table(page *p, double x, double y)
{
    const lnt_mesa_numbers *z = p->z;
    const double column[5] = {x + 110, x + 200, x + 300, x + 400, x + 500};
    lnt_page_text(&p->g, x, y, 13, "start", true, "Over all positions");
    y += 24;
    lnt_page_text(&p->g, column[1], y, 12, "end", false, "nats/token");
    lnt_page_text(&p->g, column[2], y, 12, "end", false, "difference");
    lnt_page_text(&p->g, column[3], y, 12, "end", false, "steps, %s", z->solvers[0].name);
    if (z->n_solvers > 1) lnt_page_text(&p->g, column[4], y, 12, "end", false, "the paper's");
    lnt_page_rule(&p->g, x, y + 6, x + 500, y + 6, "#bbb", 1);
    for (int i = 0, t = 0; i < z->n_settings; i++) {
        const lnt_mesa_setting *s = &z->settings[i];
        y += 19;
        if (s->kind == LNT_MESA_MODEL) lnt_page_text(&p->g, x, y, 12, "start", false, "as its file says");
        else lnt_page_text(&p->g, x, y, 12, "start", false, s->kind == LNT_MESA_STEPS ? "%g steps" : "tolerance %g", s->value);
        lnt_page_text(&p->g, column[1], y, 12, "end", false, "%.4f", s->nats);
        const double more = s->nats - z->settings[0].nats;
        if (s->kind != LNT_MESA_MODEL) lnt_page_text(&p->g, column[2], y, 12, "end", false, "%+.4f", fabs(more) < 5e-5 ? 0 : more);
        if (s->kind == LNT_MESA_STEPS) lnt_page_text(&p->g, column[3], y, 12, "end", false, "%g", s->value);
        for (int j = 0; s->kind == LNT_MESA_TOLERANCE && j < z->n_solvers; j++)
            lnt_page_text(&p->g, column[3 + j], y, 12, "end", false, "%.1f", lnt_mesa_mean_steps(z, j, t));
        t += s->kind == LNT_MESA_TOLERANCE;
    }
}

static void loss(page *p)
{
    const double width = (WIDTH - 2 * EDGE) / 2.0;
    lnt_plot_line all[1 + LNT_MESA_MOST], budgets[LNT_MESA_MOST], tolerances[LNT_MESA_MOST];
    section(p, "Loss over position",
            "All mesa layers under the same rule at once, at run time. Below: the difference to the model as its file says; above 0 is worse. Its "
            "axis is linear up to 0.001 and logarithmic beyond.");
    int n = setting_lines(p, LNT_MESA_STEPS, false, all);
    const double *y = binned(p, &p->z->settings[0], NULL);
    if (p->g.s != LINNET_OK) return;
    all[n++] = (lnt_plot_line){.name = "model", .x = p->middle, .y = y, .n = p->z->n_bins, .colour = "#222222", .style = LNT_DASHED};
    lnt_page_plot(&p->g, (lnt_box){EDGE, p->y, width, LOSS},
                  &(lnt_plot){.title = "Loss for fixed numbers of steps", .x_label = "position (tokens)", .y_label = "nats per token",
                              .log_x = true, .mark_x = (double)p->z->learnt, .n_lines = n, .lines = all});
    table(p, EDGE + width + 36, p->y + 16);
    p->y += LOSS + 6;
    n = setting_lines(p, LNT_MESA_STEPS, true, budgets);
    lnt_page_plot(&p->g, (lnt_box){EDGE, p->y, width, LOSS},
                  &(lnt_plot){.title = "Difference, fixed numbers of steps", .x_label = "position (tokens)", .y_label = "nats per token",
                              .log_x = true, .mark_x = (double)p->z->learnt, .linear_y = 1e-3, .n_lines = n, .lines = budgets});
    n = setting_lines(p, LNT_MESA_TOLERANCE, true, tolerances);
    lnt_page_plot(&p->g, (lnt_box){EDGE + width, p->y, width, LOSS},
                  &(lnt_plot){.title = "Difference, tolerances", .x_label = "position (tokens)", .y_label = "nats per token",
                              .log_x = true, .mark_x = (double)p->z->learnt, .linear_y = 1e-3, .n_lines = n, .lines = tolerances});
    p->y += LOSS;
}

/* ---- the page ---- */

static void title(page *p)
{
    const lnt_mesa_numbers *z = p->z;
    const lnt_config *k = z->m->config;
    lnt_page_text(&p->g, EDGE, 46, 24, "start", true, "Inside the mesa layers");
    lnt_page_text(&p->g, EDGE, 72, 13, "start", false,
                  "%s, width %lld; %d of %lld layers are mesa, %d head%s of %lld. Read: %lld window%s of %lld token%s, each from a fresh state, in "
                  "%s.",
                  k->model_type, (long long)k->hidden_size, z->layers, (long long)k->num_hidden_layers, z->heads, z->heads == 1 ? "" : "s",
                  (long long)z->K, (long long)z->windows, z->windows == 1 ? "" : "s", (long long)z->length, z->length == 1 ? "" : "s",
                  lnt_dtype_name(z->m->dtype));
    lnt_page_text(&p->g, EDGE, 92, 13, "start", false,
                  "H_t = gamma_t H_(t-1) + beta_t k_t k_t',  o_t = G_t' x_t,  (H_t + Lambda) x_t = q_t by conjugate gradients (arXiv 2506.05233).");
    if (z->learnt)
        lnt_page_text(&p->g, EDGE, 112, 13, "start", false, "Upright dashed lines: %lld tokens, the windows that the model has learnt from.",
                      (long long)z->learnt);
    p->y = z->learnt ? 118 : 98;
}

/* What the run was. Returns where the next line would stand. */
static double settings(lnt_page *g, const lnt_mesa_numbers *z, double y)
{
    for (int i = 0; i < z->n_words; i++) y = lnt_page_words(g, EDGE, y, z->words[i]);
    return y;
}

linnet_status lnt_mesa_page(lnt_ctx *c, const lnt_mesa_numbers *z, const char *path)
{
    page p = {.z = z};
    double height = (z->learnt ? 118 : 98) + 5 * HEAD + DOTS + 2 * LEGEND + 10 + 3 * panels_height(z) + 2 * LOSS + 6 + 24;
    if (z->n_words) { /* how many lines they are, a page that is thrown away tells */
        lnt_page_begin(&p.g, c, path, WIDTH, height);
        height = settings(&p.g, z, height) + 6;
        linnet_status s = p.g.s;
        lnt_file_abandon(&p.g.w);
        if (s != LINNET_OK) return s;
    }
    lnt_page_begin(&p.g, c, path, WIDTH, height);
    const int all = z->layers * z->heads;
    p.last = numbers(&p, z->n_bins);
    p.middle = numbers(&p, z->n_bins);
    p.head_colour = lnt_arena_alloc(&p.arena, lnt_bytes((size_t)all, sizeof *p.head_colour));
    if (!p.head_colour && p.g.s == LINNET_OK) p.g.s = lnt_fail_memory(c, lnt_bytes((size_t)all, sizeof *p.head_colour));
    if (p.g.s == LINNET_OK) {
        for (int b = 0; b < z->n_bins; b++) {
            p.last[b] = (double)z->bin[b + 1];
            p.middle[b] = sqrt((double)(z->bin[b] + 1) * (double)z->bin[b + 1]);
        }
        for (int i = 0; i < all; i++) ramp(memory_place(memory_of(z->gamma[i])), p.head_colour[i]);
        title(&p);
        gates(&p);
        condition(&p);
        cosine(&p);
        steps(&p);
        loss(&p);
        settings(&p.g, z, p.y + 24);
    }
    linnet_status s = lnt_page_end(&p.g);
    lnt_arena_free(&p.arena);
    return s;
}

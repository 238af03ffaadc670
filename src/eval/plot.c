#include "eval/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 860, HEIGHT = 480, MOST_POINTS = 1500 };

/* Colours that stay apart for colour-blind readers (Okabe and Ito 2008). */
static const char *const colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"};
enum { COLOURS = sizeof colours / sizeof *colours };

const char *lnt_plot_colour(int i) { return colours[i % COLOURS]; }

/* ---- page ---- */

static void put(lnt_page *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(lnt_page *g, const char *format, ...)
{
    if (g->s != LINNET_OK) return;
    char text[1024];
    va_list ap;
    va_start(ap, format);
    int n = lnt_format_list(text, sizeof text, format, ap);
    va_end(ap);
    g->s = lnt_file_write(g->c, &g->w, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

/* Text between tags. */
static void put_escaped(lnt_page *g, const char *text)
{
    for (; *text; text++) {
        if (*text == '&') put(g, "&amp;");
        else if (*text == '<') put(g, "&lt;");
        else put(g, "%c", (unsigned char)*text < ' ' ? ' ' : *text);
    }
}

void lnt_page_begin(lnt_page *g, lnt_ctx *c, const char *path, double width, double height)
{
    *g = (lnt_page){.c = c};
    g->s = lnt_file_begin(c, path, &g->w);
    put(g,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">\n",
        width, height, width, height);
    put(g, "<rect width=\"%.0f\" height=\"%.0f\" fill=\"white\"/>\n", width, height);
}

void lnt_page_text(lnt_page *g, double x, double y, double size, const char *align, bool bold, const char *format, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, format);
    lnt_format_list(text, sizeof text, format, ap);
    va_end(ap);
    put(g, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%g\" text-anchor=\"%s\"%s>", x, y, size, align, bold ? " font-weight=\"bold\"" : "");
    put_escaped(g, text);
    put(g, "</text>\n");
}

double lnt_page_words(lnt_page *g, double x, double y, const char *text)
{
    while (*text) {
        size_t n = strlen(text);
        if (n > 165)
            for (n = 165; n > 80 && text[n] != ' ';) n--;
        lnt_page_text(g, x, y, 12, "start", false, "%.*s", (int)n, text);
        y += 18;
        text += n + (text[n] == ' ');
    }
    return y;
}

void lnt_page_rule(lnt_page *g, double x0, double y0, double x1, double y1, const char *colour, double width)
{
    put(g, "<path d=\"M%.1f %.1f L%.1f %.1f\" stroke=\"%s\" stroke-width=\"%g\"/>\n", x0, y0, x1, y1, colour, width);
}

linnet_status lnt_page_end(lnt_page *g)
{
    put(g, "</svg>\n");
    if (g->s == LINNET_OK) g->s = lnt_file_commit(g->c, &g->w);
    lnt_file_abandon(&g->w);
    return g->s;
}

/* ---- axes ---- */

typedef struct {
    lnt_page *g;
    const lnt_plot *p;
    double left, right, top, bottom; /* where the axes are */
    double x0, x1, y0, y1;           /* the range, in the axes' own scale */
} canvas;

static double scale_x(const lnt_plot *p, double x) { return p->log_x ? log10(x > 0 ? x : 1e-300) : x; }

static double scale_y(const lnt_plot *p, double y)
{
    if (p->linear_y > 0) return fabs(y) <= p->linear_y ? y / p->linear_y : copysign(1 + log10(fabs(y) / p->linear_y), y);
    return p->log_y ? log10(y > 0 ? y : 1e-300) : y;
}

static double at_x(const canvas *k, double x) { return k->left + (scale_x(k->p, x) - k->x0) / (k->x1 - k->x0) * (k->right - k->left); }
static double at_y(const canvas *k, double y) { return k->bottom - (scale_y(k->p, y) - k->y0) / (k->y1 - k->y0) * (k->bottom - k->top); }

/* 1, 2 or 5 times a power of ten, giving about `count` steps over a span. */
static double nice_step(double span, int count)
{
    double raw = span / count, ten = pow(10, floor(log10(raw))), f = raw / ten;
    return ten * (f < 1.5 ? 1 : f < 3.5 ? 2 : f < 7.5 ? 5 : 10);
}

static void find_range(canvas *k)
{
    const lnt_plot *p = k->p;
    k->x0 = k->y0 = INFINITY;
    k->x1 = k->y1 = -INFINITY;
    for (int l = 0; l < p->n_lines; l++)
        for (int64_t i = 0; i < p->lines[l].n; i++) {
            double x = scale_x(p, p->lines[l].x[i]), y = scale_y(p, p->lines[l].y[i]);
            if (!isfinite(p->lines[l].y[i]) || !isfinite(x) || (p->log_y && p->lines[l].y[i] <= 0)) continue;
            k->x0 = fmin(k->x0, x);
            k->x1 = fmax(k->x1, x);
            k->y0 = fmin(k->y0, y);
            k->y1 = fmax(k->y1, y);
        }
    if (p->y_high > p->y_low) k->y0 = scale_y(p, p->y_low), k->y1 = scale_y(p, p->y_high);
    if (!(k->x1 > k->x0)) k->x0 = isfinite(k->x0) ? k->x0 - 0.5 : 0, k->x1 = k->x0 + 1;
    if (!(k->y1 > k->y0)) k->y0 = isfinite(k->y0) ? k->y0 - 0.5 : 0, k->y1 = k->y0 + 1;
    if (p->linear_y > 0) k->y0 = fmin(k->y0, -1), k->y1 = fmax(k->y1, 1);
    const double least = 2e-3 * fmax(fabs(k->y0), fabs(k->y1)); /* what is nearly one number is shown so, and ticks have few digits */
    if (!p->log_y && k->y1 - k->y0 < least) k->y0 -= least / 2, k->y1 += least / 2;
    if (p->whole_x) k->x0 -= 0.5, k->x1 += 0.5;
    double margin = 0.05 * (k->y1 - k->y0);
    k->y0 -= margin;
    k->y1 += margin;
}

/* 2000 as 2000, 20000 as 20k: at most four digits. */
static const char *number(char text[32], double v)
{
    double a = fabs(v);
    if (a >= 1e6) lnt_format(text, 32, "%gM", v / 1e6);
    else if (a >= 1e4) lnt_format(text, 32, "%gk", v / 1e3);
    else lnt_format(text, 32, "%g", v);
    return text;
}

/* A tick's line and number; side: 'x' or 'y'. */
static void put_tick(canvas *k, char side, double v, bool heavy)
{
    char text[32];
    double px = at_x(k, v), py = at_y(k, v);
    if (side == 'y') {
        if (py < k->top - 0.5 || py > k->bottom + 0.5) return;
        lnt_page_rule(k->g, k->left, py, k->right, py, heavy ? "#999" : "#e4e4e4", 1);
        lnt_page_text(k->g, k->left - 6, py + 4, 11, "end", false, "%s", number(text, v));
    } else {
        if (px < k->left - 0.5 || px > k->right + 0.5) return;
        lnt_page_rule(k->g, px, k->bottom, px, k->bottom + 4, "#888", 1);
        lnt_page_text(k->g, px, k->bottom + 16, 11, "middle", false, "%s", number(text, v));
    }
}

/* Whether numbers of an x axis, `step` apart, stand clear of each other: a digit is some six pixels wide. */
static bool stand_clear(const canvas *k, double low, double high, double step)
{
    char text[32];
    double widest = 0;
    for (double i = ceil(low / step); i * step <= high; i++) widest = fmax(widest, 6.3 * (double)strlen(number(text, i == 0 ? 0 : i * step)) + 8);
    return widest <= at_x(k, low + step) - at_x(k, low);
}

static void linear_ticks(canvas *k, char side, double low, double high, int count, bool whole)
{
    double step = nice_step(high - low, count);
    while (side == 'x' && count > 2 && !stand_clear(k, low, high, step)) step = nice_step(high - low, --count);
    if (whole && step < 1) step = 1;
    for (double i = ceil(low / step); i * step <= high; i++) put_tick(k, side, i == 0 ? 0 : i * step, false);
}

/* low, high: logarithms. Powers of ten, as many as fit; of a short axis more. */
static void log_ticks(canvas *k, char side, double low, double high, int count)
{
    static const double few[] = {1, 2, 5}, many[] = {1, 1.5, 2, 3, 4, 5, 6, 8};
    double span = high - low;
    if (span < 0.3) { /* less than a factor of 2 */
        double from = pow(10, low), to = pow(10, high);
        linear_ticks(k, side, from, to, count, false);
        return;
    }
    const double *of = span < 1 ? many : few;
    int n = span < 1 ? 8 : 3 * span <= count ? 3 : 1;
    double every = ceil(span / count);
    for (double e = floor(low); e <= high; e++)
        for (int i = 0; i < n; i++)
            if (n > 1 || fmod(e, every) == 0) put_tick(k, side, of[i] * pow(10, e), false);
}

static void signed_ticks(canvas *k, int count)
{
    double most = fmax(fabs(k->y0), fabs(k->y1)), every = ceil(2 * most / count);
    put_tick(k, 'y', 0, true);
    for (double e = 0; e <= most; e += every) {
        put_tick(k, 'y', k->p->linear_y * pow(10, e), false);
        put_tick(k, 'y', -k->p->linear_y * pow(10, e), false);
    }
}

static void put_axes(canvas *k)
{
    const lnt_plot *p = k->p;
    int down = (int)((k->bottom - k->top) / 26), across = (int)((k->right - k->left) / 50);
    down = down < 2 ? 2 : down > 8 ? 8 : down;
    across = across < 2 ? 2 : across > 10 ? 10 : across;
    if (p->linear_y > 0) signed_ticks(k, down + 1);
    else if (p->log_y) log_ticks(k, 'y', k->y0, k->y1, down);
    else linear_ticks(k, 'y', k->y0, k->y1, down, false);
    if (p->log_x) log_ticks(k, 'x', k->x0, k->x1, across);
    else linear_ticks(k, 'x', k->x0, k->x1, across, p->whole_x);
    put(k->g, "<path d=\"M%.1f %.1f V%.1f H%.1f\" fill=\"none\" stroke=\"#888\"/>\n", k->left, k->top, k->bottom, k->right);
    if (p->mark_x > 0 && at_x(k, p->mark_x) > k->left && at_x(k, p->mark_x) < k->right)
        put(k->g, "<path d=\"M%.1f %.1f V%.1f\" stroke=\"#777\" stroke-dasharray=\"3 4\"/>\n", at_x(k, p->mark_x), k->top, k->bottom);
}

/* ---- lines ---- */

static const char *colour_of(const lnt_plot *p, int i) { return p->lines[i].colour ? p->lines[i].colour : lnt_plot_colour(i); }

static bool is_dashed(const lnt_plot *p, int i) { return p->lines[i].style == LNT_DASHED || (!p->lines[i].colour && i >= COLOURS); }

static void put_line(canvas *k, int line)
{
    const lnt_plot_line *l = &k->p->lines[line];
    const char *colour = colour_of(k->p, line);
    int64_t every = l->n > MOST_POINTS ? (l->n + MOST_POINTS - 1) / MOST_POINTS : 1;
    bool pen_up = true, dots = l->style == LNT_DOTS || l->n == 1;
    if (!dots)
        put(k->g, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\"%s d=\"", colour, is_dashed(k->p, line) ? " stroke-dasharray=\"5 3\"" : "");
    for (int64_t i = 0; i < l->n; i += every) {
        if (!isfinite(l->y[i]) || (k->p->log_y && l->y[i] <= 0)) {
            pen_up = true;
            continue;
        }
        double x = at_x(k, l->x[i]), y = fmin(fmax(at_y(k, l->y[i]), k->top), k->bottom);
        if (dots) put(k->g, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\" fill-opacity=\"0.75\"/>\n", x, y, colour);
        else put(k->g, "%s%.1f %.1f ", pen_up ? "M" : "L", x, y);
        pen_up = false;
    }
    if (!dots) put(k->g, "\"/>\n");
}

static void put_legend(canvas *k)
{
    double x = k->right + 14, y = k->top + 10;
    for (int i = 0; i < k->p->n_lines; i++) {
        const lnt_plot_line *l = &k->p->lines[i];
        if (!l->name) continue;
        put(k->g, "<path d=\"M%.1f %.1f h22\" stroke=\"%s\" stroke-width=\"2.5\"%s/>\n", x, y - 4, colour_of(k->p, i),
            is_dashed(k->p, i) ? " stroke-dasharray=\"5 3\"" : "");
        lnt_page_text(k->g, x + 28, y, 11, "start", false, "%s", l->name);
        y += 17;
    }
}

/* Names left of the bars, values behind them. */
static void put_bars(lnt_page *g, lnt_box b, const lnt_plot *p)
{
    const lnt_plot_line *l = p->lines;
    size_t longest = 0;
    double high = p->y_high;
    char text[32];
    for (int64_t i = 0; i < l->n; i++) {
        if (strlen(p->bars[i]) > longest) longest = strlen(p->bars[i]);
        if (p->y_high <= p->y_low && l->y[i] > high) high = l->y[i];
    }
    canvas k = {.g = g, .p = p, .left = b.x + 24 + 6.5 * (double)longest, .right = b.x + b.width - 64, .top = b.y + 26, .bottom = b.y + b.height - 40,
                .x1 = high > 0 ? high : 1};
    const double step = fmin(30, (k.bottom - k.top) / (double)l->n), across = (k.right - k.left) / 50;
    k.bottom = k.top + step * (double)l->n;
    if (p->title) lnt_page_text(g, k.left, b.y + 16, 13, "start", true, "%s", p->title);
    for (int64_t i = 0; i < l->n; i++) {
        const double y = k.top + step * (double)i, width = l->y[i] > 0 ? at_x(&k, fmin(l->y[i], k.x1)) - k.left : 0;
        put(g, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", k.left, y + 0.15 * step, width, 0.7 * step,
            lnt_plot_colour(0));
        lnt_page_text(g, k.left - 6, y + step / 2 + 4, 11, "end", false, "%s", p->bars[i]);
        lnt_format(text, sizeof text, "%.4g", l->y[i]);
        lnt_page_text(g, k.left + width + 6, y + step / 2 + 4, 11, "start", false, "%s", text);
    }
    linear_ticks(&k, 'x', 0, k.x1, across < 2 ? 2 : across > 10 ? 10 : (int)across, false);
    put(g, "<path d=\"M%.1f %.1f V%.1f H%.1f\" fill=\"none\" stroke=\"#888\"/>\n", k.left, k.top, k.bottom, k.right);
    if (p->y_label) lnt_page_text(g, (k.left + k.right) / 2, k.bottom + 34, 12, "middle", false, "%s", p->y_label);
}

void lnt_page_plot(lnt_page *g, lnt_box b, const lnt_plot *p)
{
    canvas k = {.g = g, .p = p};
    size_t longest = 0;
    if (p->bars) return put_bars(g, b, p);
    for (int i = 0; i < p->n_lines; i++)
        if (p->lines[i].name && strlen(p->lines[i].name) > longest) longest = strlen(p->lines[i].name);
    k.left = b.x + 44 + (p->y_label ? 18 : 0);
    k.right = b.x + b.width - 12 - (longest ? 46 + 6 * (double)longest : 0);
    k.top = b.y + (p->title ? 26 : 8);
    k.bottom = b.y + b.height - 22 - (p->x_label ? 18 : 0);
    find_range(&k);
    put_axes(&k);
    for (int i = 0; i < p->n_lines; i++) put_line(&k, i);
    if (longest) put_legend(&k);
    if (p->title) lnt_page_text(g, k.left, b.y + 16, 13, "start", true, "%s", p->title);
    if (p->x_label) lnt_page_text(g, (k.left + k.right) / 2, b.y + b.height - 6, 12, "middle", false, "%s", p->x_label);
    if (!p->y_label) return;
    put(g, "<text transform=\"translate(%.1f %.1f) rotate(-90)\" text-anchor=\"middle\">", b.x + 13, (k.top + k.bottom) / 2);
    put_escaped(g, p->y_label);
    put(g, "</text>\n");
}

void lnt_plot_begin(lnt_page *g, lnt_ctx *c, const char *path) { lnt_page_begin(g, c, path, WIDTH, HEIGHT); }

linnet_status lnt_plot_end(lnt_page *g, const lnt_plot *p)
{
    lnt_page_plot(g, (lnt_box){6, 10, WIDTH - 12, HEIGHT - 20}, p);
    return lnt_page_end(g);
}

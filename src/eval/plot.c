#include "eval/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"

enum { WIDTH = 860, HEIGHT = 480, LEFT = 70, RIGHT = 30, TOP = 46, BOTTOM = 56, MOST_POINTS = 1500 };

/* Colours that stay apart for colour-blind readers (Okabe and Ito 2008). */
static const char *const colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"};

typedef struct {
    lnt_ctx *c;
    lnt_file_writer w;
    linnet_status s;
    double x0, x1, y0, y1;
    bool log_x;
} canvas;

static void put(canvas *k, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(canvas *k, const char *format, ...)
{
    if (k->s != LINNET_OK) return;
    char text[1024];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    k->s = lnt_file_write(k->c, &k->w, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

static double place(const canvas *k, double x) { return k->log_x ? log10(x > 0 ? x : 1e-300) : x; }
static double at_x(const canvas *k, double x) { return LEFT + (place(k, x) - k->x0) / (k->x1 - k->x0) * (WIDTH - LEFT - RIGHT); }
static double at_y(const canvas *k, double y) { return HEIGHT - BOTTOM - (y - k->y0) / (k->y1 - k->y0) * (HEIGHT - TOP - BOTTOM); }

/* 1, 2 or 5 times a power of ten, giving about `count` steps over a span. */
static double nice_step(double span, int count)
{
    double raw = span / count, ten = pow(10, floor(log10(raw))), f = raw / ten;
    return ten * (f < 1.5 ? 1 : f < 3.5 ? 2 : f < 7.5 ? 5 : 10);
}

static void find_range(canvas *k, const lnt_plot *p)
{
    k->x0 = k->y0 = INFINITY;
    k->x1 = k->y1 = -INFINITY;
    for (int l = 0; l < p->n_lines; l++)
        for (int64_t i = 0; i < p->lines[l].n; i++) {
            double x = place(k, p->lines[l].x[i]), y = p->lines[l].y[i];
            if (!isfinite(y) || !isfinite(x)) continue;
            k->x0 = fmin(k->x0, x);
            k->x1 = fmax(k->x1, x);
            k->y0 = fmin(k->y0, y);
            k->y1 = fmax(k->y1, y);
        }
    if (!(k->x1 > k->x0)) k->x0 = isfinite(k->x0) ? k->x0 - 0.5 : 0, k->x1 = k->x0 + 1;
    if (!(k->y1 > k->y0)) k->y0 = isfinite(k->y0) ? k->y0 - 0.5 : 0, k->y1 = k->y0 + 1;
    double margin = 0.05 * (k->y1 - k->y0);
    k->y0 -= margin;
    k->y1 += margin;
}

static void put_axes(canvas *k, const lnt_plot *p)
{
    double step = nice_step(k->y1 - k->y0, 6);
    for (double y = ceil(k->y0 / step) * step; y <= k->y1; y += step) {
        put(k, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e4e4e4\"/>\n", LEFT, WIDTH - RIGHT, at_y(k, y), at_y(k, y));
        put(k, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 8, at_y(k, y) + 4, fabs(y) < step / 1e6 ? 0 : y);
    }
    step = k->log_x ? 1 : nice_step(k->x1 - k->x0, 8);
    for (double x = ceil(k->x0 / step) * step; x <= k->x1; x += step) {
        double v = k->log_x ? pow(10, x) : x, px = at_x(k, v);
        put(k, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#888\"/>\n", px, px, HEIGHT - BOTTOM, HEIGHT - BOTTOM + 5);
        put(k, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n", px, HEIGHT - BOTTOM + 20, v);
    }
    put(k, "<path d=\"M%d %d V%d H%d\" fill=\"none\" stroke=\"#888\"/>\n", LEFT, TOP, HEIGHT - BOTTOM, WIDTH - RIGHT);
    put(k, "<text x=\"%d\" y=\"26\" font-size=\"16\">%s</text>\n", LEFT, p->title);
    put(k, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, p->x_label);
    put(k, "<text transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\">%s</text>\n", (TOP + HEIGHT - BOTTOM) / 2, p->y_label);
}

static void put_line(canvas *k, const lnt_plot_line *l, const char *colour)
{
    int64_t every = l->n > MOST_POINTS ? (l->n + MOST_POINTS - 1) / MOST_POINTS : 1;
    bool pen_up = true;
    put(k, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" d=\"", colour);
    for (int64_t i = 0; i < l->n; i += every) {
        if (!isfinite(l->y[i])) {
            pen_up = true;
            continue;
        }
        put(k, "%s%.1f %.1f ", pen_up ? "M" : "L", at_x(k, l->x[i]), at_y(k, l->y[i]));
        pen_up = false;
    }
    put(k, "\"/>\n");
}

linnet_status lnt_plot_write(lnt_ctx *c, const char *path, const lnt_plot *p)
{
    canvas k = {.c = c, .s = LINNET_OK, .log_x = p->log_x};
    LNT_TRY(lnt_file_begin(c, path, &k.w));
    find_range(&k, p);
    put(&k,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" "
        "fill=\"#222\">\n",
        WIDTH, HEIGHT);
    put(&k, "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", WIDTH, HEIGHT);
    put_axes(&k, p);
    for (int i = 0; i < p->n_lines; i++) {
        const char *colour = colours[i % (int)(sizeof colours / sizeof colours[0])];
        put_line(&k, &p->lines[i], colour);
        put(&k, "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"3\"/>\n", WIDTH - 200, WIDTH - 176, TOP + 12 + 18 * i,
            TOP + 12 + 18 * i, colour);
        put(&k, "<text x=\"%d\" y=\"%d\">%s</text>\n", WIDTH - 168, TOP + 16 + 18 * i, p->lines[i].name);
    }
    put(&k, "</svg>\n");
    if (k.s == LINNET_OK) k.s = lnt_file_commit(c, &k.w);
    lnt_file_abandon(&k.w);
    return k.s;
}

/* Line plots as SVG: no library, readable on their own. One picture, or several with words between them on a page. */
#ifndef LNT_EVAL_PLOT_H
#define LNT_EVAL_PLOT_H

#include "core/file.h"
#include "core/status.h"

typedef struct {
    const char *name;    /* in the legend; NULL: not there */
    const double *x, *y; /* [n]; a y that is not finite breaks the line */
    int64_t n;
    const char *colour;  /* "#rrggbb"; NULL: one of six, in turn; dashed the second time */
    enum { LNT_SOLID, LNT_DASHED, LNT_DOTS } style;
} lnt_plot_line;

typedef struct {
    const char *title, *x_label, *y_label; /* NULL: none */
    bool log_x;
    int n_lines;
    const lnt_plot_line *lines;
    bool log_y;
    double linear_y;     /* above 0: y is linear from -linear_y to linear_y and logarithmic beyond, on both sides of 0 */
    double y_low, y_high; /* the range shown when y_high > y_low; otherwise that of the lines */
    double mark_x;       /* an upright dashed line there; 0: none */
    bool whole_x;        /* ticks at whole numbers alone, half a step of room on both sides */
    const char *const *bars; /* names of the points of the one line: bars from 0 to y, x not read, y_label below; NULL: lines */
} lnt_plot;

/* The i-th of the colours that lines take in turn. */
const char *lnt_plot_colour(int i);

/* A page: begin, put, end. The first failure is remembered and returned by the end; before a good end nothing appears at `path`. */
typedef struct {
    lnt_ctx *c;
    lnt_file_writer w;
    linnet_status s;
} lnt_page;

typedef struct {
    double x, y, width, height;
} lnt_box;

void lnt_page_begin(lnt_page *g, lnt_ctx *c, const char *path, double width, double height);
/* One line of text, its baseline at y; `align` is start, middle or end. */
void lnt_page_text(lnt_page *g, double x, double y, double size, const char *align, bool bold, const char *format, ...)
    __attribute__((format(printf, 7, 8)));
/* Text in lines of at most 165 characters of size 12, broken at blanks; returns the baseline of the line behind them. */
double lnt_page_words(lnt_page *g, double x, double y, const char *text);
void lnt_page_rule(lnt_page *g, double x0, double y0, double x1, double y1, const char *colour, double width);
/* A plot with its labels in a box; lines with names get a legend to the right of the axes. */
void lnt_page_plot(lnt_page *g, lnt_box box, const lnt_plot *p);
linnet_status lnt_page_end(lnt_page *g);
/* A page of one plot. */
void lnt_plot_begin(lnt_page *g, lnt_ctx *c, const char *path);
linnet_status lnt_plot_end(lnt_page *g, const lnt_plot *p);

#endif

/* Line plots as SVG: no library, one picture, readable on its own. */
#ifndef LNT_EVAL_PLOT_H
#define LNT_EVAL_PLOT_H

#include "core/status.h"

typedef struct {
    const char *name;
    const double *x, *y; /* [n]; a y that is not finite breaks the line */
    int64_t n;
} lnt_plot_line;

typedef struct {
    const char *title, *x_label, *y_label;
    bool log_x;
    int n_lines;         /* at most 6 */
    const lnt_plot_line *lines;
} lnt_plot;

linnet_status lnt_plot_write(lnt_ctx *c, const char *path, const lnt_plot *p);

#endif

/* What a task leaves: rows, curves and plots, and from them results.jsonl, CSV files and page.svg in a folder, all of them at the end. */
#ifndef LNT_TASKS_REPORT_H
#define LNT_TASKS_REPORT_H

#include "core/memory.h"
#include "eval/plot.h"
#include "linnet/task.h"

enum { LNT_ROW_MOST = 32, LNT_LINES_MOST = 8, LNT_REPORT_WORDS = 16 };

typedef struct {
    const char *key;
    char text[64];  /* as people read it, and as CSV has it; of a text: cut */
    const char *word; /* of a text: whole, the arena's; NULL: a number */
    double real;
    bool whole;
} lnt_cell;

typedef struct lnt_row {
    struct lnt_row *next;
    const char *table; /* "result": rows of one table are a CSV file of that name */
    int n;
    lnt_cell cell[LNT_ROW_MOST];
} lnt_row;

typedef struct lnt_report_plot {
    struct lnt_report_plot *next;
    lnt_plot plot;
    lnt_plot_line lines[LNT_LINES_MOST];
} lnt_report_plot;

/* A CSV file of numbers. */
typedef struct lnt_series {
    struct lnt_series *next;
    const char *name, **keys;
    int columns;
    int64_t n;
    double *values; /* [columns, n] */
} lnt_series;

typedef struct lnt_report_file {
    struct lnt_report_file *next;
    const char *name;
} lnt_report_file;

typedef struct {
    lnt_ctx *c;
    const char *task, *out; /* out NULL: nothing is written */
    const linnet_task_callbacks *k;
    lnt_arena arena;
    lnt_row *first, *last, *open;
    lnt_report_plot *plots, *last_plot;
    lnt_series *series, *last_series;
    lnt_report_file *files; /* what has been written into the folder */
    struct json_t *settings; /* what the run was: the first line of results.jsonl; the report's own. NULL: nothing is said of it */
    const char *words[LNT_REPORT_WORDS]; /* lines of the page below its title */
    int n_words;
    bool own_page;          /* the task writes its page itself */
    bool only_page;         /* rows are on the page alone */
    linnet_status s;        /* the first failure; later calls do nothing */
} lnt_report;

/* A row: begin, cells in order, end. The callback gets it at once. */
void lnt_row_begin(lnt_report *r, const char *table);
void lnt_row_text(lnt_report *r, const char *key, const char *value);
void lnt_row_int(lnt_report *r, const char *key, int64_t value);
void lnt_row_real(lnt_report *r, const char *key, double value); /* not finite: null, an empty cell */
void lnt_row_end(lnt_report *r);

/* A table of columns [n] as NAME.csv; a value that is not finite is an empty cell. All of it is copied. */
void lnt_report_series(lnt_report *r, const char *name, int columns, const char *const *keys, const double *const *values, int64_t n);
/* A plot for the page. Lines, names and numbers are copied. */
void lnt_report_plot_add(lnt_report *r, const lnt_plot *plot);
/* The same, but that the lines stand in the last plot of that title where there is room. */
void lnt_report_plot_join(lnt_report *r, const lnt_plot *plot);
/* Bars of values [n] by name; `high`: the longest there may be, 0: the largest value. */
void lnt_report_bars(lnt_report *r, const char *title, const char *label, double high, int n, const char *const *names, const double *values);
/* Lines of words for the page, filled to its width. */
void lnt_report_words(lnt_report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A file of the folder that the task has written itself: no stale one when the task comes again. */
void lnt_report_wrote(lnt_report *r, const char *name);

/* Write what there is; `whole`: all that the task has to say, with the page. Files that an earlier run of the task left there and this one does not
 * write are removed. The report's memory is freed in any case. */
linnet_status lnt_report_close(lnt_report *r, const char *title, bool whole);

#endif

#include "tasks/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hub/json.h"
#include "tasks/results.h"

static void *memory(lnt_report *r, size_t bytes)
{
    void *p = r->s == LINNET_OK ? lnt_arena_alloc(&r->arena, bytes) : NULL;
    if (!p && r->s == LINNET_OK) r->s = lnt_fail_memory(r->c, bytes);
    return p;
}

static const char *copy(lnt_report *r, const char *text)
{
    char *p = text ? memory(r, lnt_bytes_plus(strlen(text), 1)) : NULL;
    return p ? strcpy(p, text) : NULL;
}

/* ---- rows --------------------------------------------------------------------------------------------------------------------------- */

void lnt_row_begin(lnt_report *r, const char *table)
{
    r->open = memory(r, sizeof *r->open);
    if (r->open) r->open->table = table;
}

static lnt_cell *cell(lnt_report *r, const char *key)
{
    if (r->s != LINNET_OK || !r->open || r->open->n >= LNT_ROW_MOST) return NULL;
    lnt_cell *x = &r->open->cell[r->open->n++];
    x->key = copy(r, key);
    return x;
}

void lnt_row_text(lnt_report *r, const char *key, const char *value)
{
    lnt_cell *x = cell(r, key);
    if (!x) return;
    snprintf(x->text, sizeof x->text, "%s", value);
    x->word = copy(r, value);
}

void lnt_row_int(lnt_report *r, const char *key, int64_t value)
{
    lnt_cell *x = cell(r, key);
    if (!x) return;
    snprintf(x->text, sizeof x->text, "%lld", (long long)value);
    x->real = (double)value;
    x->whole = true;
}

void lnt_row_real(lnt_report *r, const char *key, double value)
{
    lnt_cell *x = cell(r, key);
    if (!x) return;
    x->real = value;
    if (isfinite(value)) lnt_format(x->text, sizeof x->text, "%.6g", value);
}

/* The row as JSON; lnt_free. */
static char *row_json(const lnt_report *r, const lnt_row *row)
{
    json_t *j = json_pack("{s:s,s:s}", "task", r->task, "row", row->table);
    for (int i = 0; i < row->n; i++) {
        const lnt_cell *x = &row->cell[i];
        json_t *number = x->whole ? json_integer((json_int_t)x->real) : isfinite(x->real) ? json_real(x->real) : json_null();
        json_t *v = x->word ? json_string(x->word) : json_incref(number);
        json_decref(number);
        json_object_set_new(j, x->key, v);
    }
    char *text = lnt_json_text(j, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(10));
    json_decref(j);
    return text;
}

void lnt_row_end(lnt_report *r)
{
    lnt_row *row = r->open;
    char text[1024];
    r->open = NULL;
    if (r->s != LINNET_OK || !row) return;
    if (r->last) r->last->next = row;
    else r->first = row;
    r->last = row;
    if (!r->k->result) return;
    char *json = row_json(r, row);
    if (!json) {
        r->s = lnt_fail_memory(r->c, 1024);
        return;
    }
    size_t at = (size_t)snprintf(text, sizeof text, "%s", row->table);
    for (int i = 0; i < row->n && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "  %s %s", row->cell[i].key, row->cell[i].text[0] ? row->cell[i].text : "-");
    r->k->result(r->k->user, json, text);
    lnt_free(json);
}

/* ---- files ---------------------------------------------------------------------------------------------------------------------------- */

static linnet_status open_file(lnt_report *r, const char *name, const char *ending, lnt_file_writer *w)
{
    char path[4096];
    *w = (lnt_file_writer){0};
    const int n = snprintf(path, sizeof path, "%s/%s%s", r->out, name, ending);
    if (n >= (int)sizeof path) return lnt_fail(r->c, LINNET_EINVAL, "the path of the folder is too long");
    lnt_report_wrote(r, path + strlen(r->out) + 1);
    return lnt_file_begin(r->c, path, w);
}

static linnet_status close_file(lnt_report *r, lnt_file_writer *w, linnet_status s)
{
    if (s == LINNET_OK) s = lnt_file_commit(r->c, w);
    lnt_file_abandon(w);
    return s;
}

static linnet_status say(lnt_report *r, lnt_file_writer *w, const char *text) { return lnt_file_write(r->c, w, text, strlen(text)); }

/* A cell of CSV, in quotes where it needs them. */
static linnet_status say_cell(lnt_report *r, lnt_file_writer *w, const char *text)
{
    if (!strpbrk(text, ",\"\n")) return say(r, w, text);
    linnet_status s = say(r, w, "\"");
    for (const char *p = text; s == LINNET_OK && *p; p++) {
        const char one[3] = {*p, *p == '"' ? '"' : 0, 0};
        s = say(r, w, one);
    }
    return s == LINNET_OK ? say(r, w, "\"") : s;
}

void lnt_report_wrote(lnt_report *r, const char *name)
{
    lnt_report_file *f = memory(r, sizeof *f);
    if (!f) return;
    *f = (lnt_report_file){.next = r->files, .name = copy(r, name)};
    if (f->name) r->files = f;
}

void lnt_report_series(lnt_report *r, const char *name, int columns, const char *const *keys, const double *const *values, int64_t n)
{
    const size_t bytes = lnt_bytes((size_t)n, sizeof(double));
    if (r->s != LINNET_OK || !r->out) return;
    lnt_series *x = memory(r, sizeof *x);
    const char **names = memory(r, lnt_bytes((size_t)columns, sizeof *names));
    double *all = memory(r, lnt_bytes((size_t)columns, bytes));
    if (!x || !names || !all) return;
    for (int i = 0; i < columns; i++) {
        names[i] = copy(r, keys[i]);
        if (n) memcpy(all + i * n, values[i], bytes);
    }
    *x = (lnt_series){.name = copy(r, name), .keys = names, .columns = columns, .n = n, .values = all};
    if (r->last_series) r->last_series->next = x;
    else r->series = x;
    r->last_series = x;
}

static linnet_status write_series(lnt_report *r, const lnt_series *x)
{
    lnt_file_writer w;
    char text[48];
    linnet_status s = open_file(r, x->name, ".csv", &w);
    for (int i = 0; s == LINNET_OK && i < x->columns; i++) {
        snprintf(text, sizeof text, "%s%s", x->keys[i], i + 1 == x->columns ? "\n" : ",");
        s = say(r, &w, text);
    }
    for (int64_t k = 0; k < x->n; k++)
        for (int i = 0; s == LINNET_OK && i < x->columns; i++) {
            const double v = x->values[i * x->n + k];
            const char *end = i + 1 == x->columns ? "\n" : ",";
            if (isfinite(v)) lnt_format(text, sizeof text, "%.8g%s", v, end);
            else snprintf(text, sizeof text, "%s", end);
            s = say(r, &w, text);
        }
    return close_file(r, &w, s);
}

/* The first line: what the run was, whether this is all of it, and its files. */
static linnet_status write_settings(lnt_report *r, lnt_file_writer *w, bool whole)
{
    json_t *files = json_array();
    if (!r->settings) return json_decref(files), LINNET_OK;
    for (const lnt_report_file *f = r->files; f; f = f->next) json_array_insert_new(files, 0, json_string(f->name));
    json_object_set_new(r->settings, LNT_RESULTS_WHOLE, json_boolean(whole));
    json_object_set_new(r->settings, LNT_RESULTS_FILES, files);
    char *text = lnt_json_text(r->settings, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(10));
    linnet_status s = text ? say(r, w, text) : lnt_fail_memory(r->c, 1024);
    if (s == LINNET_OK) s = say(r, w, "\n");
    lnt_free(text);
    return s;
}

static linnet_status write_lines(lnt_report *r, bool whole)
{
    lnt_file_writer w;
    linnet_status s = open_file(r, "results", ".jsonl", &w);
    if (s == LINNET_OK) s = write_settings(r, &w, whole);
    for (const lnt_row *row = r->first; s == LINNET_OK && row; row = row->next) {
        char *json = row_json(r, row);
        s = json ? say(r, &w, json) : lnt_fail_memory(r->c, 1024);
        if (s == LINNET_OK) s = say(r, &w, "\n");
        lnt_free(json);
    }
    return close_file(r, &w, s);
}

enum { MOST_COLUMNS = 64 };

static bool same_table(const lnt_row *a, const char *table) { return !strcmp(a->table, table); }

/* Keys of a table's rows in the order in which they come; their number. */
static int columns_of(const lnt_report *r, const char *table, const char *keys[MOST_COLUMNS])
{
    int n = 0;
    for (const lnt_row *row = r->first; row; row = row->next)
        for (int i = 0; same_table(row, table) && i < row->n; i++) {
            int k = 0;
            while (k < n && strcmp(keys[k], row->cell[i].key) != 0) k++;
            if (k == n && n < MOST_COLUMNS) keys[n++] = row->cell[i].key;
        }
    return n;
}

static const lnt_cell *find_cell(const lnt_row *row, const char *key)
{
    for (int i = 0; i < row->n; i++)
        if (!strcmp(row->cell[i].key, key)) return &row->cell[i];
    return NULL;
}

static linnet_status write_table(lnt_report *r, const char *table)
{
    const char *keys[MOST_COLUMNS];
    lnt_file_writer w;
    const int n = columns_of(r, table, keys);
    linnet_status s = open_file(r, table, ".csv", &w);
    for (int i = 0; s == LINNET_OK && i < n; i++) {
        s = say_cell(r, &w, keys[i]);
        if (s == LINNET_OK) s = say(r, &w, i + 1 == n ? "\n" : ",");
    }
    for (const lnt_row *row = r->first; row; row = row->next)
        for (int i = 0; same_table(row, table) && s == LINNET_OK && i < n; i++) {
            const lnt_cell *x = find_cell(row, keys[i]);
            s = say_cell(r, &w, !x ? "" : x->word ? x->word : x->text);
            if (s == LINNET_OK) s = say(r, &w, i + 1 == n ? "\n" : ",");
        }
    return close_file(r, &w, s);
}

/* Whether no row before this one is of its table. */
static bool first_of_table(const lnt_report *r, const lnt_row *row)
{
    const lnt_row *p = r->first;
    while (p != row && !same_table(p, row->table)) p = p->next;
    return p == row;
}

/* ---- the page --------------------------------------------------------------------------------------------------------------------------- */

enum { WIDTH = 1180, EDGE = 30, LINE = 18, PLOT = 320, MOST_ROWS = 40 };

void lnt_report_words(lnt_report *r, const char *format, ...)
{
    char text[4096];
    va_list ap;
    if (r->n_words == LNT_REPORT_WORDS) return;
    va_start(ap, format);
    lnt_format_list(text, sizeof text, format, ap);
    va_end(ap);
    r->words[r->n_words] = copy(r, text);
    r->n_words += r->words[r->n_words] != NULL;
}

static void copy_lines(lnt_report *r, lnt_report_plot *p, const lnt_plot *plot)
{
    for (int i = 0; i < plot->n_lines && p->plot.n_lines < LNT_LINES_MOST; i++) {
        const lnt_plot_line *l = &plot->lines[i];
        const size_t bytes = lnt_bytes((size_t)l->n, sizeof(double));
        double *x = memory(r, bytes), *y = memory(r, bytes);
        if (!x || !y) return;
        memcpy(x, l->x, bytes);
        memcpy(y, l->y, bytes);
        p->lines[p->plot.n_lines++] = (lnt_plot_line){.name = copy(r, l->name), .x = x, .y = y, .n = l->n, .colour = l->colour, .style = l->style};
    }
}

static const char *const *copy_bars(lnt_report *r, const lnt_plot *plot)
{
    const int64_t n = plot->bars ? plot->lines->n : 0;
    const char **names = n ? memory(r, lnt_bytes((size_t)n, sizeof *names)) : NULL;
    for (int64_t i = 0; names && i < n; i++) names[i] = copy(r, plot->bars[i]);
    return r->s == LINNET_OK ? names : NULL;
}

void lnt_report_plot_add(lnt_report *r, const lnt_plot *plot)
{
    lnt_report_plot *p = memory(r, sizeof *p);
    if (!p) return;
    p->plot = *plot;
    p->plot.title = copy(r, plot->title);
    p->plot.x_label = copy(r, plot->x_label);
    p->plot.y_label = copy(r, plot->y_label);
    p->plot.bars = copy_bars(r, plot);
    p->plot.n_lines = 0;
    p->plot.lines = p->lines;
    copy_lines(r, p, plot);
    if (r->last_plot) r->last_plot->next = p;
    else r->plots = p;
    r->last_plot = p;
}

void lnt_report_plot_join(lnt_report *r, const lnt_plot *plot)
{
    lnt_report_plot *last = NULL;
    for (lnt_report_plot *p = r->plots; p; p = p->next)
        if (!strcmp(p->plot.title, plot->title)) last = p;
    if (!last || last->plot.n_lines + plot->n_lines > LNT_LINES_MOST) lnt_report_plot_add(r, plot);
    else copy_lines(r, last, plot);
}

void lnt_report_bars(lnt_report *r, const char *title, const char *label, double high, int n, const char *const *names, const double *values)
{
    lnt_report_plot_add(r, &(lnt_plot){.title = title, .y_label = label, .y_high = high, .bars = names, .n_lines = 1,
                                       .lines = &(lnt_plot_line){.x = values, .y = values, .n = n}});
}

static bool varies(const lnt_report *r, const char *table, const char *key)
{
    const char *seen = NULL;
    int rows = 0;
    for (const lnt_row *row = r->first; row; row = row->next) {
        if (!same_table(row, table)) continue;
        const lnt_cell *x = find_cell(row, key);
        const char *text = x ? x->text : "";
        if (rows++ && strcmp(seen, text) != 0) return true;
        seen = text;
    }
    return rows < 2;
}

/* A table: columns that differ between its rows, as many as there is room for; what all rows share stands above. */
static double put_table(lnt_page *g, const lnt_report *r, const char *table, double y)
{
    const char *keys[MOST_COLUMNS];
    char shared[900] = "";
    const int n = columns_of(r, table, keys);
    size_t at = 0;
    for (int i = 0; i < n && at < sizeof shared; i++) {
        const lnt_row *row = r->first;
        while (!same_table(row, table)) row = row->next;
        const lnt_cell *x = find_cell(row, keys[i]);
        if (!varies(r, table, keys[i]) && x && *x->text)
            at += (size_t)snprintf(shared + at, sizeof shared - at, "%s%s %s", at ? "; " : "", keys[i], x->text);
    }
    lnt_page_text(g, EDGE, y, 14, "start", true, "%s", table);
    y += LINE + 2;
    y = lnt_page_words(g, EDGE, y, shared);
    double x = EDGE;
    for (int i = 0; i < n; i++) {
        if (!varies(r, table, keys[i])) continue;
        size_t longest = strlen(keys[i]);
        for (const lnt_row *row = r->first; row; row = row->next) {
            const lnt_cell *e = same_table(row, table) ? find_cell(row, keys[i]) : NULL;
            if (e && strlen(e->text) > longest) longest = strlen(e->text);
        }
        const double width = 14 + 7.8 * (double)longest;
        if (x + width > WIDTH - EDGE) break;
        lnt_page_text(g, x, y, 12, "start", true, "%s", keys[i]);
        int k = 0;
        for (const lnt_row *row = r->first; row && k < MOST_ROWS; row = row->next) {
            if (!same_table(row, table)) continue;
            const lnt_cell *e = find_cell(row, keys[i]);
            lnt_page_text(g, x, y + LINE * ++k, 12, "start", false, "%s", e ? e->text : "");
        }
        x += width;
    }
    int rows = 0;
    for (const lnt_row *row = r->first; row; row = row->next) rows += same_table(row, table);
    return y + LINE * ((rows < MOST_ROWS ? rows : MOST_ROWS) + 1) + 10;
}

static double put_page(lnt_page *g, const lnt_report *r, const char *title)
{
    double y = 46;
    lnt_page_text(g, EDGE, y, 24, "start", true, "%s", title);
    y += 28;
    for (int i = 0; i < r->n_words; i++) y = lnt_page_words(g, EDGE, y, r->words[i]);
    y += 10;
    for (const lnt_row *row = r->first; row; row = row->next)
        if (first_of_table(r, row)) y = put_table(g, r, row->table, y);
    const double width = (WIDTH - 2 * EDGE) / 2.0;
    int i = 0;
    for (const lnt_report_plot *p = r->plots; p; p = p->next, i++)
        lnt_page_plot(g, (lnt_box){EDGE + i % 2 * width, y + i / 2 * (double)PLOT, width, PLOT - 12}, &p->plot);
    return y + (i + 1) / 2 * (double)PLOT + 10;
}

/* The page's height is known when it has been laid out: once over a page that is thrown away. */
static linnet_status write_page(lnt_report *r, const char *title)
{
    char path[4096];
    lnt_page g = {0};
    snprintf(path, sizeof path, "%s/page.svg", r->out);
    lnt_report_wrote(r, "page.svg");
    lnt_page_begin(&g, r->c, path, WIDTH, 100);
    const double height = put_page(&g, r, title);
    const linnet_status s = g.s;
    lnt_file_abandon(&g.w);
    if (s != LINNET_OK) return s;
    lnt_page_begin(&g, r->c, path, WIDTH, height);
    put_page(&g, r, title);
    return lnt_page_end(&g);
}

/* results.jsonl comes last: it says which files there are. */
static linnet_status write_files(lnt_report *r, bool whole)
{
    lnt_arena arena = {0};
    lnt_results was;
    linnet_status s = lnt_results_read(r->c, r->out, &arena, &was);
    for (const lnt_series *x = r->series; s == LINNET_OK && x; x = x->next) s = write_series(r, x);
    for (const lnt_row *row = r->first; s == LINNET_OK && row; row = row->next)
        if (first_of_table(r, row)) s = write_table(r, row->table);
    if (s == LINNET_OK) s = write_lines(r, whole);
    for (int i = 0; s == LINNET_OK && i < was.n_files; i++) {
        const lnt_report_file *f = r->files;
        while (f && strcmp(f->name, was.file[i]) != 0) f = f->next;
        if (!f) lnt_results_remove(r->out, was.file[i]);
    }
    lnt_arena_free(&arena);
    return s;
}

linnet_status lnt_report_close(lnt_report *r, const char *title, bool whole)
{
    linnet_status s = r->s;
    if (r->out && s == LINNET_OK && whole && !r->own_page) s = write_page(r, title);
    if (r->out && s == LINNET_OK && r->first && !r->only_page) s = write_files(r, whole);
    json_decref(r->settings);
    lnt_arena_free(&r->arena);
    return s == LINNET_OK ? r->s : s;
}

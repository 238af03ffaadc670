/* The page at /: its files stand in page/, and are bytes of the program (cmake/Page.cmake). */
#include <string.h>

#include "page_bytes.h"
#include "serve/routes.h"

static const lnt_page_file files[] = {
    {"/", "text/html; charset=utf-8", (const char *)page_html, sizeof page_html},
    {"/page.css", "text/css; charset=utf-8", (const char *)page_css, sizeof page_css},
    {"/page.js", "text/javascript; charset=utf-8", (const char *)page_js, sizeof page_js},
};

const lnt_page_file *lnt_page_find(const char *path)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strcmp(files[i].path, path)) return &files[i];
    return NULL;
}

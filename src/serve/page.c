#include <string.h>

#include "serve/routes.h"

static const char index_html[] =
    "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>linnet</title>\n"
    "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:2em auto;padding:0 1em;color-scheme:light dark}</style>\n"
    "<h1>linnet serve</h1>\n<p>A model answers here, for clients of OpenAI's interface:</p>\n<ul>\n"
    "<li><code>POST /v1/completions</code>, <code>POST /v1/chat/completions</code>\n<li><code>GET <a href=\"/v1/models\">/v1/models</a></code>\n"
    "<li><code>POST /tokenize</code>, <code>POST /detokenize</code>, <code>GET <a href=\"/tokenizer_info\">/tokenizer_info</a></code>\n"
    "<li><code>GET <a href=\"/health\">/health</a></code>, <code>GET <a href=\"/metrics\">/metrics</a></code>\n</ul>\n</html>\n";

static const lnt_page_file files[] = {
    {"/", "text/html; charset=utf-8", index_html, sizeof index_html - 1},
};

const lnt_page_file *lnt_page_find(const char *path)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strcmp(files[i].path, path)) return &files[i];
    return NULL;
}

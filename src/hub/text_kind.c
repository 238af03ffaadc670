/* What a file is when it is no text: refused with what to do, so that nobody trains on compressed bytes. */
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "hub/corpus.h"

/* First bytes of files that hold no text; `unpack` is a command that takes the file's name, NULL: there is none. */
static const struct {
    const char *bytes;
    size_t n;
    const char *kind, *unpack;
} kinds[] = {
    {"\x1f\x8b", 2, "compressed (gzip)", "gzip -dk"},
    {"\xfd"
     "7zXZ\0",
     6, "compressed (xz)", "xz -dk"},
    {"\x28\xb5\x2f\xfd", 4, "compressed (Zstandard)", "zstd -d"},
    {"\x04\x22\x4d\x18", 4, "compressed (LZ4)", "lz4 -dk"},
    {"BZh91AY&SY", 10, "compressed (bzip2)", "bzip2 -dk"},
    {"PK\x03\x04", 4, "a ZIP archive", "unzip"},
    {"7z\xbc\xaf\x27\x1c", 6, "a 7-Zip archive", "7z x"},
    {"Rar!\x1a\x07", 6, "a RAR archive", "unrar x"},
    {"%PDF-", 5, "a PDF document", "pdftotext"},
    {"PAR1", 4, "a Parquet table", NULL},
    {"\x7f"
     "ELF",
     4, "a program (ELF)", NULL},
    {"\x89PNG", 4, "a picture (PNG)", NULL},
    {"\xff\xd8\xff", 3, "a picture (JPEG)", NULL},
    {"\xff\xfe", 2, "text in UTF-16", "iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff", 2, "text in UTF-16", "iconv -f UTF-16 -t UTF-8"},
};

linnet_status lnt_text_check(lnt_ctx *c, const char *path, const uint8_t *data, size_t n)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (n < kinds[i].n || memcmp(data, kinds[i].bytes, kinds[i].n) != 0) continue;
        lnt_fail(c, LINNET_EINVAL, "\"%s\" is %s, expected text", path, kinds[i].kind);
        return kinds[i].unpack ? lnt_hint(c, "Make text of it first (%s ...), or leave it out.", kinds[i].unpack) : lnt_hint(c, "Leave it out.");
    }
    const uint8_t *zero = n ? memchr(data, 0, n) : NULL;
    if (!zero) return LINNET_OK;
    lnt_fail(c, LINNET_EINVAL, "\"%s\" is binary: byte %lld is 0, expected text", path, (long long)(zero - data));
    return lnt_hint(c, "Leave it out, or make text of it first.");
}

bool lnt_text_is_json_lines(const char *text, size_t n)
{
    enum { LINES = 3 };
    int lines = 0;
    for (const char *at = text, *end = text + n; at < end && lines < LINES;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const char *last = stop ? stop : end;
        while (last > at && (last[-1] == '\r' || last[-1] == ' ')) last--;
        if (last - at < 2 || at[0] != '{') return false;
        const char *key = at + 1;
        while (key < last && *key == ' ') key++;
        if (key == last || *key != '"') return false;
        if (stop && last[-1] != '}') return false;
        if (!stop) break; /* cut off: its head tells enough */
        lines++;
        at = stop + 1;
    }
    return lines > 0;
}

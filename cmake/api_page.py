#!/usr/bin/env python3
"""docs/api.md, from the public headers: python3 cmake/api_page.py SOURCE_DIR [--check]

Every function, structure, enumeration and constant with the comment that stands in front of or behind it, in the headers' order. Without --check the
page is written anew; with it, a page that is another one is a failed test."""
import re
import sys
import textwrap
from pathlib import Path

HEADERS = ["linnet.h", "state.h", "train.h", "recurrence.h", "task.h", "serve.h"]
HEAD = """# The interface, by header

Made from `include/linnet` by `cmake/api_page.py`; the headers are the contract, and this page is their text in another order of lines. Programs that use
it: [examples/](../examples/README.md).

"""


def prose(comment):
    """A comment's words, paragraphs and indented lines as they are."""
    body = re.sub(r"^\s*/\*+|\*/\s*$", "", comment.strip())
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in body.strip().split("\n")]
    out, paragraph = [], []
    for line in [*lines, ""]:
        code = line.startswith("    ")
        item = line.startswith("- ")
        if paragraph and (not line or code or item):
            out.append(" ".join(paragraph))
            paragraph = []
        if code:
            out.append(line)
        elif line:
            paragraph.append(line.strip())
        elif out and out[-1] != "":
            out.append("")
    text, i = [], 0
    while i < len(out):
        if out[i].startswith("    "):
            text.append("```c")
            while i < len(out) and out[i].startswith("    "):
                text.append(out[i][4:])
                i += 1
            text.append("```")
        else:
            text.append(textwrap.fill(escape(out[i]), 150, subsequent_indent="  " if out[i].startswith("- ") else "", break_long_words=False,
                                      break_on_hyphens=False))
            i += 1
    return "\n".join(text).strip("\n") + "\n"


def escape(text):
    return "`".join(part if i % 2 else re.sub(r"([<*])", r"\\\1", part) for i, part in enumerate(text.split("`")))


def blocks(text):
    """What a header consists of, in order: (kind, text) of sections, comments and declarations."""
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", text, flags=re.S | re.M)
    found = []
    pattern = re.compile(r"""
        (?P<section>^/\*\ ----\ (?P<title>[^-\n]+?)\ -+[^*]*?(?:\*/|\n))
      | (?P<comment>^/\*.*?\*/\n)
      | (?P<structure>^typedef\ (?:struct|enum)\ ?\w*\s*\{\n.*?^\}\ \w+;\n)
      | (?P<enum>^enum\ \{\n.*?^\};\n)
      | (?P<oneline>^typedef\ [^{;]*(?:\{[^}]*\}\ ?\w*)?;\n|^enum\ \{[^}]*\};\n)
      | (?P<macro>^\#define\ LINNET_\w+(?:\\\n|[^\n])*\n)
      | (?P<function>^LINNET_API\ [^;]*;(?:\ */\*.*?\*/)?\n)
      | (?P<blank>^\s*\n)
      | (?P<other>^[^\n]*\n)""", re.S | re.M | re.X)
    for m in pattern.finditer(text):
        kind = next(k for k in ("section", "comment", "structure", "enum", "oneline", "macro", "function", "blank", "other") if m.group(k) is not None)
        found.append((kind, m.group("title") if kind == "section" else m.group(0)))
        if kind == "section" and not m.group(0).rstrip().endswith("*/"):  # the section's own words follow on its next lines
            rest = text[m.end():text.index("*/", m.end()) + 3]
            found.append(("comment", "/* " + rest))
    return found


def page_of(header, text):
    """The page's part about one header, and the names in it."""
    lines = [f"## linnet/{header}", ""]
    top, rest = text.split("*/", 1)
    lines += [prose(top + "*/")]
    waiting, declared = None, []

    def flush():
        nonlocal waiting, declared
        if declared:
            lines.extend(["```c", *declared, "```", ""])
        if waiting:
            lines.append(prose(waiting))
        waiting, declared = None, []

    for kind, body in blocks(rest):
        if kind == "section":
            flush()
            lines += [f"### {body.strip().capitalize() if body.islower() else body.strip()}", ""]
        elif kind == "comment":
            flush()
            waiting = body
        elif kind in ("structure", "enum", "oneline", "function", "macro"):
            clean = body.rstrip().replace("LINNET_API ", "")
            if kind != "macro" or re.match(r"#define LINNET_\w+ ", clean) and "LINNET_API" not in clean:
                declared.append(re.sub(r" *\\\n *", " ", clean))
        elif kind == "blank":
            flush()
    flush()
    return "\n".join(lines)


def make(root):
    headers = root / "include/linnet"
    missing = {p.name for p in headers.glob("*.h")} ^ set(HEADERS)
    if missing:
        sys.exit(f"cmake/api_page.py: HEADERS and include/linnet differ in {', '.join(sorted(missing))}")
    return HEAD + "\n".join(page_of(h, (headers / h).read_text()) for h in HEADERS)


def main():
    root = Path(sys.argv[1])
    page, text = root / "docs/api.md", make(root)
    functions = [n for h in HEADERS for n in re.findall(r"^LINNET_API [^;]*?\b(linnet_\w+)\(", (root / "include/linnet" / h).read_text(), flags=re.M)]
    lost = [n for n in functions if not re.search(r"\b" + n + r"\(", text)]
    if lost:
        print(f"docs/api.md would lack {', '.join(lost)}")
        return 1
    if "--check" not in sys.argv[2:]:
        page.write_text(text)
    elif not page.exists() or page.read_text() != text:
        print("docs/api.md is not what the headers say: python3 cmake/api_page.py .\n[  FAILED  ] 1 test(s).")
        return 1
    print("[  PASSED  ] 1 test(s).")  # as cmocka says it, for tests/count_tests.py
    return 0


if __name__ == "__main__":
    sys.exit(main())

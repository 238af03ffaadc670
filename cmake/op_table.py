#!/usr/bin/env python3
"""The table of docs/op-files.md, from the operators' own descriptions: python3 cmake/op_table.py BUILD/liblinnet.so docs/op-files.md [--check]

Without --check the table between the two marks is written anew; with it, a difference is a finding and ends with 1."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
from linnet import raw  # noqa: E402

BEGIN, END = "<!-- table: made by cmake/op_table.py -->", "<!-- end of table -->"


def shape(text):
    """"T Hk K" as in a file: rows of the token axis are two dimensions."""
    return "`[" + ",".join(("B," + letter if letter.startswith("T") else letter) for letter in text.split()) + "]`"


def when(t):
    return (f" (with {t['with']})" if t["with"] else "") + (f" (without {t['without']})" if t["without"] else "")


def tensors(d, *roles):
    parts = []
    for t in d["tensors"]:
        if t["role"] in roles:
            extra = when(t) or (f" (absent: {t['absent']})" if t["absent"] and t["role"] == "input" else "")
            parts.append(f"{t['name']} {shape(t['shape'])}{extra}")
    return ", ".join(parts) or "none"


def states(d):
    rows = d["tensors"]
    return ", ".join(f"{t['name']}, {rows[i + 2]['name']} {shape(t['shape'])}" + when(t)
                     for i, t in enumerate(rows) if t["role"] == "state") or "none"


def options(d):
    return ", ".join(o["key"] + (f" ({o['words'].replace(' ', ', ')})" if o["words"] else "") for o in d["options"]) or "none"


def table(library):
    lines = ["| name | inputs | states in, out | other outputs | options |", "|---|---|---|---|---|"]
    with raw.Linnet(library) as ops:
        for name in ops.operators():
            d = ops.describe(name)
            outputs = [t for t in d["tensors"] if t["role"] in ("output", "report") and not t["shape"].startswith("N")]
            out = ", ".join(f"{t['name']} {shape(t['shape'])}" for t in outputs)
            lines.append(f"| `{name}` | {tensors(d, 'input')} | {states(d)} | {out} | {options(d)} |")
    return "\n".join(lines)


def main():
    library, path = sys.argv[1], Path(sys.argv[2])
    text = path.read_text()
    head, rest = text.split(BEGIN + "\n", 1)
    _, tail = rest.split(END, 1)
    new = head + BEGIN + "\n" + table(library) + "\n" + END + tail
    if "--check" in sys.argv[3:]:
        if new != text:
            print(f"{path}: the table of operators is not what they describe; python3 cmake/op_table.py {library} {path}")
            return 1
        return 0
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The shared library exports what the public headers declare, each function under the version it came with, and nothing else:
check_exports.py SOURCE_DIR BUILD/liblinnet.so"""
import re
import subprocess
import sys
from pathlib import Path


def declared(root):
    """name -> version: of every function in include/linnet, as a compiler's preprocessor leaves the declarations."""
    found = {}
    for header in sorted((root / "include/linnet").glob("*.h")):
        text = header.read_text()
        for m in re.finditer(r"((?:/\*(?:(?!\*/).)*\*/\s*)?)((?:LINNET_API [^;{]*;(?:\s*/\*(?:(?!\*/).)*\*/)?\n)+)", text, flags=re.S):
            since = re.search(r"\bSince (\d+\.\d+)\b", m.group(1))
            for declaration in re.findall(r"LINNET_API ([^;]*);", re.sub(r"/\*.*?\*/", "", m.group(2), flags=re.S)):
                name = re.search(r"\b(linnet_\w+)\s*\(", declaration).group(1)
                found[name] = "LINNET_" + (since.group(1) if since else "0.1")
    return found


def exported(library):
    """name -> version, of the dynamic symbol table; versions themselves are symbols there too."""
    lines = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", str(library)], capture_output=True, text=True, check=True).stdout
    pairs = [line.split()[2].split("@@") for line in lines.splitlines() if line.split()[1] != "A"]
    return {p[0]: p[1] if len(p) > 1 else "" for p in pairs}


def differences(wanted, given):
    """What is wrong with a library that exports `given`."""
    return [f"{n}: declared, not exported" for n in sorted(wanted.keys() - given.keys())] + \
        [f"{n}: exported, not declared" for n in sorted(given.keys() - wanted.keys())] + \
        [f"{n}: version {given[n] or 'none'}, expected {wanted[n]}" for n in sorted(wanted.keys() & given.keys()) if wanted[n] != given[n]]


def main():
    root, library = Path(sys.argv[1]), Path(sys.argv[2])
    wanted, given = declared(root), exported(library)
    one = next(iter(wanted))
    seen = [differences(wanted, {k: v for k, v in wanted.items() if k != one}), differences(wanted, {**wanted, "lnt_alloc": "LINNET_0.1"}),
            differences(wanted, {**wanted, one: ""})]
    bad = differences(wanted, given) + (["a missing, a foreign or an unversioned symbol is not seen"] if [len(s) for s in seen] != [1, 1, 1] else [])
    bad += ["headers without functions"] if len(wanted) < 50 else []
    print("\n".join(bad + [f"{len(given)} functions, versions {', '.join(sorted(set(given.values())))}"]))
    print(f"[  PASSED  ] {0 if bad else 1} test(s).")  # as cmocka says it, for tests/count_tests.py
    if bad:
        print("[  FAILED  ] 1 test(s).")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

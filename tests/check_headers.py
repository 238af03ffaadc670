#!/usr/bin/env python3
"""The public headers compile without a warning as C11, C++11 and C++20, each alone, every _INIT with them: check_headers.py SOURCE_DIR"""
import re
import shutil
import subprocess
import sys
from pathlib import Path

COMPILERS = [("gcc", "c", "c11"), ("g++", "c++", "c++11"), ("g++", "c++", "c++20"), ("clang", "c", "c11"), ("clang++", "c++", "c++11"),
             ("clang++", "c++", "c++20")]
WARNINGS = ["-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Wshadow", "-Werror"]

root = Path(sys.argv[1])
failed = tried = 0
for header in sorted((root / "include/linnet").glob("*.h")):
    text = header.read_text()
    program = f'#include "linnet/{header.name}"\n'
    for macro in re.findall(r"^#define (LINNET_\w+_INIT)\b", text, flags=re.M):
        kind = macro.removesuffix("_INIT").lower()
        program += f"static {kind} in_a_file = {macro};\nsize_t size_of_{kind}(void);\n".replace("in_a_file", f"of_{kind}")
        program += f"size_t size_of_{kind}(void)\n{{\n    {kind} here = {macro};\n    return here.size + of_{kind}.size;\n}}\n"
    for compiler, language, standard in COMPILERS:
        if not shutil.which(compiler):
            print(f"skipped {header.name} as {standard} by {compiler}: it is not there")
            continue
        command = [compiler, f"-std={standard}", *WARNINGS, "-fsyntax-only", f"-I{root / 'include'}", "-x", language, "-"]
        done = subprocess.run(command, input=program, capture_output=True, text=True)
        tried += 1
        if done.returncode:
            failed += 1
            print(f"{header.name} as {standard} by {compiler}:\n{done.stderr}\nin\n{program}")
print(f"[  PASSED  ] {tried - failed} test(s).")  # as cmocka says it, for tests/count_tests.py
if failed:
    print(f"[  FAILED  ] {failed} test(s).")
sys.exit(1 if failed or not tried else 0)

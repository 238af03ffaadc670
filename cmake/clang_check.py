#!/usr/bin/env python3
"""Let clang parse and check every file of compile_commands.json with the flags of the build: python3 cmake/clang_check.py FILE

Nothing is generated, so that it takes seconds; a full clang build is CC=clang cmake ... CUDA files are nvcc's to check."""
import concurrent.futures
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile


def check(entry, openmp):
    words = shlex.split(entry["command"])
    keep, skip = [], False
    for w in words[1:]:
        if skip or w == "-c":
            skip = False
        elif w == "-o":
            skip = True
        else:
            keep.append(w)
    done = subprocess.run(["clang", "-fsyntax-only", "-idirafter", openmp, *keep], cwd=entry["directory"], capture_output=True, text=True)
    return entry["file"], done


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        entries = [e for e in json.load(f) if not e["file"].endswith(".cu")]
    bad = 0
    with tempfile.TemporaryDirectory() as openmp, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # gcc's omp.h, alone and searched last, for machines where clang has none
        shutil.copy(subprocess.run(["gcc", "-print-file-name=include/omp.h"], capture_output=True, text=True).stdout.strip(), openmp)
        for file, done in pool.map(lambda e: check(e, openmp), entries):
            if done.returncode:
                bad += 1
                print(f"{file}\n{done.stderr}")
    print(f"clang: {len(entries)} compilations, {bad} with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

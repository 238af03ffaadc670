#!/usr/bin/env python3
"""Instructions of a CUDA file's kernels, and of their longest loops: what docs/performance/ calls counted for sm_90a.

    bench/kernel_instructions.py src/ops/sum_norm_cuda.cu [NAME]

A line a kernel with NAME in its name: instructions, those of its two longest loops as they stand (a loop inside another counts once, both ways of a
branch count), registers, bytes spilled. Needs nvcc and nvdisasm, in the CUDA toolkit or in PATH. Standard library only."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def loops_of(lines):
    """The number of instructions, and how many a jump back goes over, the longest first."""
    n, label, back = 0, {}, []
    for line in lines:
        mark = re.match(r"\s*(\.L_\w+):", line)
        if mark:
            label[mark[1]] = n
        elif re.match(r"\s*/\*[0-9a-f]{4,}\*/", line):
            jump = re.search(r"BRA.*?`\((\.L_\w+)\)", line)
            if jump and jump[1] in label and label[jump[1]] < n:
                back.append(n - label[jump[1]])
            n += 1
    return n, sorted(back, reverse=True)


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernels.cubin"
        said = subprocess.run(["nvcc", "-DLINNET_CUDA", "-D_GNU_SOURCE", f"-I{ROOT}/include", f"-I{ROOT}/src", "-O3", "-DNDEBUG", "-std=c++20", "-x", "cu",
                               "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "-cubin", sys.argv[1], "-o", cubin],
                              check=True, stderr=subprocess.PIPE, text=True).stderr
        text = subprocess.run(["nvdisasm", "-c", cubin], check=True, stdout=subprocess.PIPE, text=True).stdout
    for part in re.split(r"\n\.text\.", text)[1:]:
        name, *lines = part.split("\n")
        name = name.rstrip(":")
        if any(x not in name for x in sys.argv[2:]):
            continue
        n, back = loops_of(lines)
        used = re.search(re.escape(name) + r"' for.*?(\d+) bytes spill stores.*?Used (\d+) registers", said, re.DOTALL)
        print(f"{name}: {n} instructions, loops {back[:2]}" + (f", {used[2]} registers, {used[1]} bytes spilled" if used else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())

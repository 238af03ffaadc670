#!/usr/bin/env python3
"""The kernels of a layer in a step of `linnet bench decode`, one by one, in the order in which the step's graph has them.

    bench/decode_kernels.py LINNET [--in-graph FILE] [--alone FILE] -- --mixer delta_net --layers 8 --width 2048 --heads 16 --batch 64

What follows `--` is for `linnet bench decode`, which is run three times on a GPU in bf16: for the rate of a copy and the time of a step, under nsys
(Nsight Systems) and under ncu (Nsight Compute). A line for each kernel of a layer, and one for what a step has besides, by medians over layers:

    in graph  us from the end of the kernel ahead to its own: what it adds to the step, of which some runs while that one does (nsys)
    alone     us by itself, caches as the one ahead left them (ncu)
    MB        read from memory and written (ncu)
    share     of the rate of a copy: those bytes over the time in the graph

Both need the GPU to themselves, ncu the right to read its counters. With saved files, nsys's export to SQLite and ncu's page "raw" as CSV, nothing is
profiled; with one of them the other's columns stay empty.
"""
import argparse
import csv
import itertools
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile

LAST = "largest_kernel"  # ends a step (src/generate/sample_cuda.cu)
TIME, BYTES = "gpu__time_duration.sum", ("dram__bytes_read.sum", "dram__bytes_write.sum")


def fail(text):
    print(f"decode_kernels: {text}", file=sys.stderr)
    sys.exit(2)


def run(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        fail(f"{command[0]} is not here")
    if done.returncode:
        fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def profile_graph(bench, folder):
    at = os.path.join(folder, "step")
    run(["nsys", "profile", "--trace=cuda", "--cuda-graph-trace=node", "--sample=none", "--cpuctxsw=none", f"--output={at}", *bench])
    run(["nsys", "export", "--type=sqlite", f"--output={at}.sqlite", f"{at}.nsys-rep"])
    return f"{at}.sqlite"


def profile_alone(bench, folder):
    at = os.path.join(folder, "step.csv")
    run(["ncu", "--csv", "--page=raw", "--print-units=base", "--print-kernel-base=function", "--graph-profiling=node", "--cache-control=none",
         "--clock-control=none", f"--metrics={','.join((TIME, *BYTES))}", f"--log-file={at}", *bench])
    return at


def read_graph(file):
    """(name, blocks), microseconds of every kernel, in order."""
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as db:
        rows = db.execute("SELECT s.value, k.gridX, k.gridY, k.gridZ, k.start, k.end FROM CUPTI_ACTIVITY_KIND_KERNEL k "
                          "JOIN StringIds s ON s.id = k.shortName ORDER BY k.start").fetchall()
    ends = [0] + [row[5] for row in rows]
    return [((name, f"({x}, {y}, {z})"), (end - max(start if i == 0 else 0, ends[i])) / 1e3) for i, (name, x, y, z, start, end) in enumerate(rows)]


def read_alone(file):
    """(name, blocks), (microseconds, bytes) of every kernel, in order."""
    with open(file, newline="", encoding="utf-8") as f:
        rows = csv.DictReader(itertools.dropwhile(lambda line: not line.startswith('"ID"'), f))
        number = lambda row, key: float(row[key].replace(",", ""))
        return [((row["Kernel Name"], row["Grid Size"]), (number(row, TIME) / 1e3, sum(number(row, key) for key in BYTES)))
                for row in rows if row["ID"]]  # the first row has units: nanoseconds and bytes


def last_step(kernels, file):
    ends = [i for i, (kernel, _) in enumerate(kernels) if kernel[0] == LAST]
    if len(ends) < 2:
        fail(f"{file} has {len(ends)} kernels called {LAST}, which end a step: expected 2 or more")
    return kernels[ends[-2] + 1 : ends[-1] + 1]


def find_layers(step):
    """Where the longest run begins that is one sequence of kernels again and again, that sequence's length, and how often it is there."""
    best = (0, len(step), 1)
    for length in range(1, len(step) // 2 + 1):
        first = 0
        for i in range(len(step) - length + 1):
            if i + length < len(step) and step[i] == step[i + length]:
                continue
            times = (i - first) // length + 1
            if times > 1 and times * length > best[1] * best[2] * (best[2] > 1):
                best = (first, length, times)
            first = i + 1
    return best


def main():
    bench = []
    if "--" in sys.argv:
        at = sys.argv.index("--")
        sys.argv, bench = sys.argv[:at], sys.argv[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("linnet")
    parser.add_argument("--in-graph", metavar="FILE", help="what nsys exported, in place of a run")
    parser.add_argument("--alone", metavar="FILE", help="what ncu printed, in place of a run")
    parser.add_argument("--copy", type=float, metavar="TB/S", help="the rate of a copy, with saved files")
    args = parser.parse_args()
    command = [args.linnet, "bench", "decode", "--device", "cuda", "--dtype", "bf16", *bench]
    files, rate = {"in graph": args.in_graph, "alone": args.alone}, (args.copy or 0) * 1e12
    with tempfile.TemporaryDirectory() as folder:
        if not args.in_graph and not args.alone:
            line = json.loads(run([*command, "--json"]).splitlines()[-1])
            rate = line["machine_copy_bytes"]
            print(f"{line['machine']}: copy {rate / 1e12:.2f} TB/s; a step {1e6 * line['step_seconds']:.0f} us, {100 * line['share']:.1f}% of it")
            short = [*command, "--steps", "4"]
            files = {"in graph": profile_graph(short, folder), "alone": profile_alone(short, folder)}
        graph = last_step(read_graph(files["in graph"]), files["in graph"]) if files["in graph"] else None
        alone = last_step(read_alone(files["alone"]), files["alone"]) if files["alone"] else None
    names = [kernel for kernel, _ in graph or alone]
    if graph and alone and names != [kernel for kernel, _ in alone]:
        fail(f"the last step has {len(graph)} kernels under nsys and {len(alone)} under ncu, which are not the same")
    first, length, times = find_layers(names)

    def show(label, places):
        us = statistics.median(sum(graph[i][1] for i in p) for p in places) if graph else None
        by_itself = statistics.median(sum(alone[i][1][0] for i in p) for p in places) if alone else None
        moved = statistics.median(sum(alone[i][1][1] for i in p) for p in places) if alone else None
        time = by_itself if us is None else us
        share = f"{100 * moved / (1e-6 * time * rate):5.1f}%" if moved is not None and rate and time > 0 else ""
        cells = ["" if x is None else f"{x:.2f}" for x in (us, by_itself, moved if moved is None else moved / 1e6)]
        print(f"{label:56} {cells[0]:>9} {cells[1]:>9} {cells[2]:>9} {share:>6}")

    print(f"{f'of {times} layers':56} {'in graph':>9} {'alone':>9} {'MB':>9} {'share':>6}")
    for k in range(length):
        show(" ".join(names[first + k]), [[first + k + n * length] for n in range(times)])
    show(f"a layer, {length} kernels", [range(first + n * length, first + (n + 1) * length) for n in range(times)])
    show(f"all else, {len(names) - length * times} kernels", [[i for i in range(len(names)) if not first <= i < first + length * times]])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""When the blocks of a decoding step's kernels begin, go on behind the kernels ahead, pass marks and end, on a GPU.

    cmake -B build-clock -G Ninja -DLINNET_CUDA=ON -DLINNET_BLOCK_CLOCK=ON && ninja -C build-clock
    bench/decode_blocks.py build-clock/linnet [--kernels N] -- --mixer rwkv7 --layers 8 --width 2048 --heads 16

What follows `--` is for `linnet bench decode`, run on a GPU in bf16 by a build whose blocks keep times (src/device/block_clock.cuh), which takes some per
cent of a step. A line for each of N kernels that follow one another in one of its last steps, in us from the end of the last block of the one ahead: when
its blocks begin, go on behind await_last and end, each as first, median, last; of products of 17 to 64 rows also when the first of x is there, when all
is multiplied, and when the sums are where they are added up. Kernels that keep no times, norms of many rows among them, are not there.
With --record FILE nothing runs, and what such a run has written is read. Standard library only."""
import argparse
import os
import statistics
import struct
import subprocess
import sys
import tempfile

KINDS = ["product", "product, 17 to 64 rows", "chain", "chain with a rule", "decay rule", "its norm", "mesa step", "delta layer"]
MARKS = {1: ("x", "products", "sums")}
LINE = struct.Struct("<9I")  # begin, on, end, kind, blocks, multiprocessor, marks
NEWEST = 40000


def lines_of(record):
    """The newest lines, times in ns from one of them: their low 32 bits are kept."""
    data = record[8:]
    room, count = len(data) // LINE.size, struct.unpack_from("<I", record)[0] if len(record) > 8 else 0
    if not count:
        sys.exit("decode_blocks: no block has kept a time; is this a build with LINNET_BLOCK_CLOCK?")
    n = min(count, room, NEWEST)
    raw = [LINE.unpack_from(data, (count - n + i) % room * LINE.size) for i in range(n)]
    zero = raw[-1][0]
    signed = lambda t: (t - zero + (1 << 31)) % (1 << 32) - (1 << 31)
    return sorted(([signed(r[0]), signed(r[1]), signed(r[2]), *r[3:6], *map(signed, r[6:])] for r in raw), key=lambda r: r[1])


def kernels_of(lines):
    """Blocks of a kernel go on behind the one ahead, so that those of one kind and number stand together."""
    found = []
    for line in lines:
        kind, blocks = line[3], line[4]
        if found and found[-1][0] == (kind, blocks) and len(found[-1][1]) < blocks:
            found[-1][1].append(line)
        else:
            found.append(((kind, blocks), [line]))
    return [f for f in found if len(f[1]) == f[0][1]]


def main():
    own, rest = (sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:]) if "--" in sys.argv else (sys.argv[1:], [])
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("linnet", nargs="?")
    p.add_argument("--kernels", type=int, default=16)
    p.add_argument("--record")
    a = p.parse_args(own)
    if not a.record and not (a.linnet and rest):
        p.error("a build of linnet and, behind --, what `linnet bench decode` takes, or --record")
    with tempfile.TemporaryDirectory() as folder:
        name = a.record or os.path.join(folder, "record")
        if not a.record:
            subprocess.run([a.linnet, "bench", "decode", "--device", "cuda", "--dtype", "bf16", *rest], check=True,
                           env={**os.environ, "LINNET_BLOCK_CLOCK": name})
        if not os.path.exists(name):
            sys.exit("decode_blocks: no record was written; is this a build with LINNET_BLOCK_CLOCK?")
        with open(name, "rb") as f:
            kernels = kernels_of(lines_of(f.read()))
    first = max(1, len(kernels) * 3 // 4 - a.kernels)
    print(f"{'kernel':24}{'blocks':>7}{'SMs':>5}   {'begin':^20}   {'go on':^20}   {'end':^20}")
    for ahead, ((kind, blocks), lines) in zip(kernels[first - 1:], kernels[first:first + a.kernels]):
        zero = max(r[2] for r in ahead[1])
        columns = list(zip(*lines))
        shown = lambda i: "".join(f"{(f(columns[i]) - zero) / 1000:7.1f}" for f in (min, statistics.median, max))
        marks = "  ".join(f"{name}{shown(6 + i)}" for i, name in enumerate(MARKS.get(kind, ())))
        print(f"{KINDS[kind]:24}{blocks:7}{len({r[5] for r in lines}):5}  " + "  ".join(shown(i) for i in range(3)) + ("  " + marks if marks else ""))


if __name__ == "__main__":
    main()

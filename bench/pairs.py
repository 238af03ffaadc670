#!/usr/bin/env python3
"""Two builds of linnet against each other: `bench op` of each operator, by turns, N pairs, the order within a pair changing from one to the next.

    bench/pairs.py BEFORE AFTER [--pairs 9] [--ops NAME...] [--dtypes float32 bf16] [--record FILE] [-- FLAG...]

BEFORE and AFTER are linnet programs; what follows `--` is given to both. A line for each operator and dtype has the medians of both and the median of
the pairs' ratios, after by before: below 1 the second build is faster. Machines that others use are noisy from second to second, which is why the ratio
is taken within a pair and not between medians; the quartiles of the ratios show what is left.
"""
import argparse
import json
import statistics
import subprocess
import sys

OPERATORS = ["linear_attn", "simple_gla", "delta_rule", "gated_delta_rule", "attention", "mesa"]


def measure(linnet, operator, dtype, flags):
    out = subprocess.run([linnet, "bench", "op", operator, "--dtype", dtype, "--json", *flags], check=True, capture_output=True, text=True).stdout
    line = json.loads(out.splitlines()[-1])
    return line["forward_seconds"], line["both_seconds"], line["machine"]


def main():
    flags = []
    if "--" in sys.argv:
        at = sys.argv.index("--")
        sys.argv, flags = sys.argv[:at], sys.argv[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--ops", nargs="+", default=OPERATORS)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bf16"])
    parser.add_argument("--record", help="a file to which each operator's line is added as JSON")
    args = parser.parse_args()
    print(f"{'operator':18} {'dtype':8} {'before':>9} {'after':>9} {'ratio':>6}  {'quartiles':13} {'before':>9} {'after':>9} {'ratio':>6}  quartiles")
    print(f"{'':18} {'':8} {'forward, ms':>19} {'':22} {'both, ms':>19}")
    for operator in args.ops:
        for dtype in args.dtypes:
            times = {"before": [], "after": []}
            for pair in range(args.pairs):
                for side in ("before", "after") if pair % 2 == 0 else ("after", "before"):
                    *seconds, machine = measure(getattr(args, side), operator, dtype, flags)
                    times[side].append(seconds)
            line = {"bench": "pairs", "machine": machine, "op": operator, "dtype": dtype, "pairs": args.pairs, "flags": flags}
            cells = []
            for what, name in enumerate(("forward", "both")):
                before, after = ([t[what] for t in times[side]] for side in ("before", "after"))
                ratios = [a / b for a, b in zip(after, before)]
                low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
                line[name] = {"before": statistics.median(before), "after": statistics.median(after), "ratio": middle, "quartiles": [low, high]}
                cells.append(f"{statistics.median(before) * 1e3:9.3f} {statistics.median(after) * 1e3:9.3f} {middle:6.3f}  {low:.3f}-{high:.3f}")
            print(f"{operator:18} {dtype:8} {'  '.join(cells)}", flush=True)
            if args.record:
                with open(args.record, "a") as record:
                    record.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()

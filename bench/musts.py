#!/usr/bin/env python3
"""What the operators on a CPU must reach, beside what they reach: one table, a line a must, met or missed.

    bench/musts.py LINNET [--threads 2] [--repeats 7] [--only WORDS...] [--record FILE.jsonl] [--long]

Every number is a median of --repeats calls; times that are compared with each other are taken in three rounds by turns, and the ratio is the median of
the rounds'. Shares are of what the machine itself reaches for float32 products, a copy, or exponentials (`bench machine`), measured again beside every
operator. B = 1, T = 2048, 16 heads, K = V = 128 where a line says no other. --only: lines with all of these words. --long: the time a token at T = 65536
by that at 8192 too. Returns 1 where one is missed. Some minutes on a calm machine.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# operator, its flags, must forward, must both: shares of the product rate in per cent
PRODUCTS = [
    ("gla", [], 45, 40), ("kda", [], 45, 40), ("rwkv6", ["K=64", "V=64"], 35, None), ("dplr", ["K=64", "V=64"], 35, 30), ("gated_delta_rule", [], 75, None),
    ("ttt_linear", ["D=64", "mini_batch=16"], 25, 25),
]
# the same of the copy rate
COPIES = [("scan", ["D=2048"], 60, 60), ("rglru", ["D=2048"], 60, None)]
# no figure of their own: 25 % of the product rate, or 40 % of the copy rate (long_conv has one: bench/peer_fft.py)
OTHERS = ["linear_attn", "retention", "simple_gla", "mlstm", "gla_v", "gla_kv", "delta_rule", "gated_delta_product", "mesa", "longhorn", "complex_scan", "lru",
          "s4d", "wkv", "ttt_mlp", "titans", "attention"]
# chunks at least twice as fast as tokens, both directions
CHUNKED = ["linear_attn", "retention", "simple_gla", "mlstm", "gla", "gla_v", "gla_kv", "rwkv6", "delta_rule", "gated_delta_rule", "gated_delta_product", "kda",
           "dplr", "mesa"]
NO_LENGTH = {"attention", "long_conv"}


class Bench:
    def __init__(self, a):
        self.a, self.cache = a, {}

    def op(self, name, flags=(), dtype="float32", form="auto", length=2048, fresh=False):
        key = (name, tuple(flags), dtype, form, length)
        if fresh or key not in self.cache:
            sets = [x for f in flags for x in ("--set", f)]
            command = [self.a.linnet, "bench", "op", name, "--dtype", dtype, "--form", form, "--T", str(length), "--threads", str(self.a.threads), "--repeats",
                       str(self.a.repeats), "--json", *sets]
            p = subprocess.run(command, capture_output=True, text=True)
            if p.returncode:
                raise RuntimeError(f"{' '.join(command)}\n{p.stderr.strip()[-300:]}")
            self.cache[key] = json.loads(p.stdout.splitlines()[-1])
        return self.cache[key]

    def slstm(self):
        """bench/slstm_products.c, compiled for this machine: its two ratios."""
        if "slstm alone" not in self.cache:
            root = Path(__file__).resolve().parent.parent
            with tempfile.TemporaryDirectory() as folder:
                program = f"{folder}/slstm_products"
                command = ["cc", "-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fopenmp", f"-I{root}/src",
                           f"-I{root}/include", "-o", program, f"{root}/bench/slstm_products.c", "-lm"]
                p = subprocess.run(command, capture_output=True, text=True)
                if p.returncode:
                    raise RuntimeError(p.stderr.strip()[-300:])
                lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
            self.cache["slstm alone"] = [float(x.split("ratio ")[1]) for x in lines if "ratio " in x]
        return self.cache["slstm alone"]

    def ratio(self, one, other, field, rounds=3):
        """The median of `rounds` quotients, one after the other and the other way round."""
        ratios = []
        for i in range(rounds):
            pair = [self.op(*x[0], **x[1], fresh=True)[field] for x in ((one, other) if i % 2 == 0 else (other, one))]
            ratios.append(pair[0] / pair[1] if i % 2 == 0 else pair[1] / pair[0])
        return statistics.median(ratios)


def known(linnet):
    """The operators, which a wrong name is told."""
    text = subprocess.run([linnet, "op", "?", "in", "out"], capture_output=True, text=True).stderr
    return set(text.split("Operators:")[1].strip().rstrip(".").split(", "))


def lines(b, names):
    """(what, number, must, higher is better), each when it is asked for."""
    both = {"forward": "forward", "both": "forward and backward"}
    for name, flags, *musts in PRODUCTS:
        for part, must in zip(both, musts):
            if must:
                yield (f"{name} {' '.join(flags)} {both[part]}, % of the products", lambda n=name, f=flags, p=part: 100 * b.op(n, f)[p + "_share"], must, True)
    for name, flags, *musts in COPIES:
        for part, must in zip(both, musts):
            if must:
                yield (f"{name} {both[part]}, % of the copy", lambda n=name, f=flags, p=part: 100 * b.op(n, f)[p + "_copy_share"], must, True)

    def exponentials():
        x = b.op("selective_scan", ["D=2048", "M=16"])
        return 100 * 2048 * 2048 * 16 / x["machine_exponentials"] / x["forward_seconds"]

    yield "selective_scan D=2048 M=16 forward, % of the exponentials", exponentials, 60, True
    half = [[("mlstm",), {}], [("simple_gla",), {}]]
    yield "mlstm forward by simple_gla", lambda: b.ratio(*half, "forward_seconds"), 1.2, False
    yield "mlstm forward and backward by simple_gla", lambda: b.ratio(*half, "both_seconds"), 1.2, False
    two = [[("gated_delta_product", ["n_householder=2"]), {}], [("gated_delta_rule",), {}]]
    yield "gated_delta_product n_householder=2 forward by gated_delta_rule", lambda: b.ratio(*two, "forward_seconds"), 1.9, False
    yield "gated_delta_product n_householder=2, both, by gated_delta_rule", lambda: b.ratio(*two, "both_seconds"), 1.9, False
    # a token's product waits for the token before: what it is held against is the same products alone, one behind the other
    yield "slstm forward by its own products alone, one sequence", lambda: b.slstm()[0], 1.5, False
    yield "slstm backward by its own products alone, one sequence", lambda: b.slstm()[1], 1.5, False
    for name in OTHERS:
        if name not in names:
            continue
        for part in both:
            yield (f"{name} {both[part]}, of 25 % of the products or 40 % of the copy",
                   lambda n=name, p=part: max(b.op(n)[p + "_share"] / 0.25, b.op(n)[p + "_copy_share"] / 0.40), 1, True)
    for name in sorted(names):
        for part in both:
            yield (f"{name} bf16 by float32, {both[part]}",
                   lambda n=name, p=part: b.ratio([(n, (), "bf16"), {}], [(n,), {}], p + "_seconds"), 1.0, False)
    for name in CHUNKED:
        flags = ["K=64", "V=64"] if name in ("rwkv6", "dplr") else []
        yield (f"{name} token form by chunk form, forward and backward",
               lambda n=name, f=flags: b.ratio([(n, f), {"form": "recurrent"}], [(n, f), {"form": "chunk"}], "both_seconds"), 2.0, True)
    if b.a.long:
        for name in sorted(names - NO_LENGTH):
            small = ["D=256"] if name in ("scan", "selective_scan", "longhorn", "complex_scan", "rglru", "lru", "s4d", "wkv") else []
            yield (f"{name} a token at T = 65536 by T = 8192, forward",
                   lambda n=name, f=small: b.ratio([(n, f), {"length": 65536}], [(n, f), {"length": 8192}], "forward_seconds") / 8, 1.15, False)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("linnet")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeats", type=int, default=7)
    p.add_argument("--only", nargs="+", default=[])
    p.add_argument("--record")
    p.add_argument("--long", action="store_true")
    a = p.parse_args()
    b = Bench(a)
    missed = 0
    print("| must | reached | must be | |\n|---|---|---|---|")
    for what, number, must, higher in lines(b, known(a.linnet)):
        if not all(word in what for word in a.only):
            continue
        try:
            value = number()
        except (RuntimeError, KeyError) as error:
            print(f"| {what} | {str(error).splitlines()[-1]} | | NOT MEASURED |", flush=True)
            missed += 1
            continue
        met = value >= must if higher else value <= must
        missed += not met
        print(f"| {what} | {value:.3g} | {'at least' if higher else 'at most'} {must:g} | {'met' if met else 'MISSED'} |", flush=True)
        if a.record:
            with open(a.record, "a") as f:
                f.write(json.dumps({"bench": "musts", "what": what, "value": value, "must": must, "higher": higher, "met": met, "threads": a.threads}) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What the operators must reach, on a CPU or an H200, beside what they reach: one table, a line a must, met or missed.

    bench/musts.py LINNET [--threads 2] [--repeats 7] [--only WORDS...] [--record FILE.jsonl] [--long]
    bench/musts.py LINNET --device cuda [--repeats 7] [--only WORDS...] [--record FILE.jsonl] [--models]

Every number is a median of --repeats calls; times that are compared with each other are taken in three rounds by turns, and the ratio is the median of
the rounds'. Shares are of what the machine itself reaches for float32 products, a copy, or exponentials (`bench machine`), measured again beside every
operator. B = 1, T = 2048, 16 heads, K = V = 128 where a line says no other. --only: lines with all of these words. --long: the time a token at T = 65536
by that at 8192 too. On a GPU: bf16, T = 8192, 32 heads, ms and shares of copying once. --models: whole models of 1.37 G parameters, trained and decoding,
too. Returns 1 where one is missed. Some minutes on a calm machine.
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
# made of products: chunks at least twice as fast as tokens, both directions; where tiles multiply, bf16 at least twice as fast as float32
CHUNKED = [
    *((name, []) for name in ("linear_attn", "retention", "simple_gla", "mlstm", "gla", "gla_v", "gla_kv", "delta_rule", "gated_delta_rule",
                              "gated_delta_product", "kda", "mesa")),
    *((name, ["K=64", "V=64"]) for name in ("rwkv6", "dplr", "mesa")), ("ttt_linear", ["D=64"]), ("ttt_mlp", ["D=64"]), ("titans", ["D=128"]),
]
OF_PRODUCTS = {name for name, flags in CHUNKED}
NO_LENGTH = {"attention", "long_conv"}
# On an H200, ms: operator, its flags, must forward, must both
GPU = [
    ("gla", "", 0.40, 1.3), ("kda", "", 0.50, 1.6), ("rwkv6", "", 0.50, 1.7), ("gated_delta_product", "--set n_householder=2", 0.60, 1.9),
    ("dplr", "", 0.90, 3.0), ("mlstm", "", 0.30, 1.4), ("simple_gla", "", 0.14, None), ("simple_gla", "--heads 64 --set V=64", 0.25, 1.2),
    ("delta_rule", "", 0.20, 0.68), ("gated_delta_rule", "--heads 16 --set Hv=32", 0.21, None), ("gated_delta_rule", "--B 4 --heads 16 --set Hv=32", 0.42, None),
    ("gated_delta_rule", "--B 8 --T 2048 --set K=64 --set V=64", 0.20, None), ("mesa", "", 0.68, None), ("mesa", "--set cg_tol=0", 1.5, 4.2),
    ("selective_scan", "--set D=4096 --set M=16", 0.50, 1.6), ("ttt_linear", "--set D=128 --set mini_batch=16", 1.4, 5), ("titans", "--set D=128", 2.0, 7),
    ("ttt_mlp", "--heads 64 --set D=64", 4, 14), ("slstm", "--B 16 --T 1024 --heads 4 --set D=256", 6e-3 * 1024, None),
]
GPU_BACKWARD = ("gated_delta_rule", "--heads 16 --set Hv=32", 0.52)
# the same, shares of copying once in per cent
GPU_COPIES = [("scan", "--set D=4096", 50, 45), ("lru", "--set D=4096", 50, 45), ("rglru", "--set D=4096", 50, 45), ("s4d", "--set D=4096 --set M=32", 50, 45)]
# Whole models of 1.37 G parameters there: 24 layers of width 2048, of Mamba-2, which has no MLPs, 48. Thousand tokens/s of training 8 x 2048; sequences that
# decode, and the share of copying weights and states in per cent
MODELS = {"DeltaNet": ["delta_net", "--heads", 16], "Mesa": ["mesa_net", "--heads", 16, "--set", "head_dim=128"], "GLA": ["gla", "--heads", 16],
          "KDA": ["kda", "--heads", 16, "--set", "head_dim=128"], "RWKV-7": ["rwkv7", "--heads", 16, "--set", "head_dim=128"],
          "Mamba-2": ["mamba2", "--heads", 64, "--set", "head_dim=64"]}
TRAINING = {"DeltaNet": 68, "Mesa": 50, "GLA": 56, "KDA": 53, "RWKV-7": 45, "Mamba-2": 50}
DECODING = [("DeltaNet", 1, 80), ("DeltaNet", 64, 74), *((name, 1, 70) for name in MODELS if name != "DeltaNet")]


class Bench:
    def __init__(self, a):
        self.a, self.cache = a, {}
        self.variant = None  # of the kernels that the last call ran

    def op(self, name, flags=(), dtype="float32", form="auto", length=2048, fresh=False):
        key = (name, tuple(flags), dtype, form, length)
        if fresh or key not in self.cache:
            sets = [x for f in flags for x in ("--set", f)]
            self.cache[key] = self.run("op", name, "--dtype", dtype, "--form", form, "--T", length, "--threads", self.a.threads, *sets, "--repeats",
                                       self.a.repeats)
        return self.cache[key]

    def on_gpu(self, name, flags):
        key = (name, flags)
        if key not in self.cache:
            shape = flags.split()
            shape += ["--T", 8192] * ("--T" not in shape) + ["--heads", 32] * ("--heads" not in shape)
            self.cache[key] = self.run("op", name, "--device", "cuda", "--dtype", "bf16", *shape, "--repeats", self.a.repeats)
        return self.cache[key]

    def model(self, bench, name, *words):
        layers = 48 if name == "Mamba-2" else 24
        return self.run(bench, "--device", "cuda", "--dtype", "bf16", "--mixer", *MODELS[name], "--layers", layers, "--width", 2048, "--set", "vocab_size=32000",
                        *words)

    def run(self, *words):
        command = [self.a.linnet, "bench", *map(str, words), "--json"]
        p = subprocess.run(command, capture_output=True, text=True)
        if p.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{p.stderr.strip()[-300:]}")
        record = json.loads(p.stdout.splitlines()[-1])
        self.variant = record["machine"].removeprefix("cpu: ").split(",")[0]
        return record

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
    """(what, number, must, higher is better), numbers when they are asked for; so is a must of which the number's record decides."""
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
                   lambda n=name, p=part: b.ratio([(n, (), "bf16"), {}], [(n,), {}], p + "_seconds"),
                   lambda n=name: 0.5 if n in OF_PRODUCTS and b.variant == "amx" else 1.0, False)
    for name, flags in CHUNKED:
        yield (f"{' '.join([name, *flags])} token form by chunk form, forward and backward",
               lambda n=name, f=flags: b.ratio([(n, f), {"form": "recurrent"}], [(n, f), {"form": "chunk"}], "both_seconds"), 2.0, True)
    if b.a.long: # scans bound by memory so wide that 8192 tokens, 384 MB, are more than any third cache holds: what is compared is work, not where it lies
        for name in sorted(names - NO_LENGTH):
            wide = {**dict.fromkeys(("scan", "complex_scan", "rglru", "lru", "wkv"), ["D=4096"]),
                    **dict.fromkeys(("selective_scan", "longhorn", "s4d"), ["D=1024"])}.get(name, [])
            yield (f"{name} a token at T = 65536 by T = 8192, forward",
                   lambda n=name, f=wide: b.ratio([(n, f), {"length": 65536}], [(n, f), {"length": 8192}], "forward_seconds") / 8, 1.15, False)


def gpu_lines(b):
    both = {"forward": "forward", "both": "forward and backward"}
    for name, flags, *musts in GPU:
        for part, must in zip(both, musts):
            if must:
                yield f"{name} {flags} {both[part]}, ms", lambda n=name, f=flags, p=part: 1e3 * b.on_gpu(n, f)[p + "_seconds"], must, False
    name, flags, must = GPU_BACKWARD
    yield f"{name} {flags} backward, ms", lambda x=(name, flags): 1e3 * (b.on_gpu(*x)["both_seconds"] - b.on_gpu(*x)["forward_seconds"]), must, False
    for part, must in zip(both, (0.70, 2.6)):  # two recurrences of one layer
        yield (f"gsa, 64 slots, {both[part]}, ms", lambda p=part: 1e3 * sum(b.on_gpu(n, f"--set {k}=64")[p + "_seconds"] for n, k in (("gla_v", "V"), ("gla", "K"))),
               must, False)
    windowed, whole = [("mesa", f"--set cg_tol=0{w}") for w in (" --set window=4096", "")]
    yield "mesa in windows of 4096 by mesa, forward", lambda: b.on_gpu(*windowed)["forward_seconds"] / b.on_gpu(*whole)["forward_seconds"], 1.5, False
    for name, flags, *musts in GPU_COPIES:
        for part, must in zip(both, musts):
            yield (f"{name} {flags} {both[part]}, % of the copy", lambda n=name, f=flags, p=part: 100 * b.on_gpu(n, f)[p + "_copy_share"], must, True)
    if b.a.models:
        for name, batch, must in DECODING:
            yield (f"{name}, 1.37 G, decoding {batch} sequence{'s' * (batch > 1)}, % of the copy",
                   lambda n=name, x=batch: 100 * b.model("decode", n, "--batch", x)["share"], must, True)
        for name, must in TRAINING.items():
            thirty = ["--set", "cg_tolerance=0"] if name == "Mesa" else []  # steps of its solve, each of them
            yield (f"{name}, 1.37 G, training 8 x 2048, thousand tokens/s",
                   lambda n=name, x=thirty: 1e-3 * b.model("train", n, *x, "--batch", 8, "--length", 2048, "--repeats", 5)["tokens_per_second"], must, True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("linnet")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeats", type=int, default=7)
    p.add_argument("--only", nargs="+", default=[])
    p.add_argument("--record")
    p.add_argument("--long", action="store_true")
    p.add_argument("--models", action="store_true")
    a = p.parse_args()
    b = Bench(a)
    missed = 0
    print("| must | reached | must be | |\n|---|---|---|---|")
    for what, number, must, higher in gpu_lines(b) if a.device == "cuda" else lines(b, known(a.linnet)):
        if not all(word in what for word in a.only):
            continue
        try:
            value = number()
            must = must() if callable(must) else must
        except (RuntimeError, KeyError) as error:
            print(f"| {what} | {str(error).splitlines()[-1]} | | NOT MEASURED |", flush=True)
            missed += 1
            continue
        met = value >= must if higher else value <= must
        missed += not met
        print(f"| {what} | {value:.3g} | {'at least' if higher else 'at most'} {must:g} | {'met' if met else 'MISSED'} |", flush=True)
        if a.record:
            with open(a.record, "a") as f:
                f.write(json.dumps({"bench": "musts", "what": what, "value": value, "must": must, "higher": higher, "met": met, "device": a.device, "threads": a.threads}) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Hold a linnet binary against the goldens: python3 bench/goldens.py LINNET GOLDENS [--device cuda] [--record FILE.jsonl] [--label TEXT]

Operators (GOLDENS/ops): float32 against the stored results, bf16 against the float64 reference on the same rounded inputs, within what the operators'
descriptions allow (the tests' budgets) or within 1e-7 rms; forward and backward, by the form linnet chooses and (on a GPU forward) token by token. Two runs
must give the same bytes. A result that a golden has and linnet does not write is a failure, and so is a run of which nothing could be compared; what linnet
writes and a golden lacks is named, and counted at the end.
Models (GOLDENS/fla, GOLDENS/hf): logits in one pass and token by token, float32 within 1e-5 (mesa_net 2e-4), bf16 within 3e-2, but where rounding makes
tokens take other experts: there the line says so, the bound is what Transformers loses itself, and tests/test_bf16_models.c holds 3e-2 with the experts of
float32. Standard library only. Prints a line for each group, ends with 1 when anything is out of bounds."""
import argparse
import concurrent.futures
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/commands"), str(ROOT / "python")]
from harness import floats, read_safetensors, write_safetensors  # noqa: E402
from linnet.raw import Linnet  # noqa: E402

ALIAS = {"attention_window": "attention", "delta_rule_negeig": "delta_rule"}
WIDE = {"q", "k", "v", "a", "b", "x", "u", "B", "C", "do"}  # of the call's type; gates, write strengths and states stay float32
CPU_ALONE = "has no implementation for a GPU"       # what linnet says of an operator there
AT_ONCE = 8                                         # a process takes most of a second to open a GPU
MODELS = {"f32": 1e-5, "bf16": 3e-2}
ROUNDED = {"mesa_net": 2e-4}                        # float32 whose solver rounds to float16, as the library that made it does
# bf16 where rounding makes a few of 130 tokens take other experts: what Transformers 5.23 itself loses in bf16, against its float64 (docs/checkpoints.md)
OTHER_EXPERTS = {"minimax": 7.6e-2, "qwen3_next": 4.8e-2}
HOLDS = {"nemotron_h": 32}                          # tokens: tests/golden_files.h says why
NOTHING = 1e-7                                      # rms of a difference that is allowed whatever the size of the truth
RESULTS = {"output", "gradient"}                    # what an operator's file asks for; saved tensors and reports are linnet's own
failures = []


def run(*words):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, errors="replace")


def metadata(path):
    raw = Path(path).read_bytes()
    return json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]]).get("__metadata__")


def rounded_to_bf16(tensor):
    """The nearest bf16 of each number, ties to even, stored as float32."""
    dtype, shape, body = tensor
    words = struct.unpack(f"<{len(body) // 4}I", body)
    return dtype, shape, struct.pack(f"<{len(words)}I", *(((w + 0x7fff + (w >> 16 & 1)) & 0xffff0000) for w in words))


def difference(ours, truth):
    """(relative rms, rms); infinite where anything is no number, and the former where the truth is zero and we are not."""
    a, b = floats(ours), floats(truth)
    if len(a) != len(b):
        return math.inf, math.inf
    wrong = sum((x - y) ** 2 for x, y in zip(a, b))
    size = sum(y * y for y in b)
    if not math.isfinite(wrong):
        return math.inf, math.inf
    return math.sqrt(wrong / size) if size else math.inf if wrong else 0.0, math.sqrt(wrong / max(1, len(b)))


def in_own_folder(function, *arguments):
    with tempfile.TemporaryDirectory() as name:
        return function(*arguments, Path(name))


class Worst:
    """The largest relative error, what has it, what differs by next to nothing, and what had nothing to be compared with."""

    def __init__(self, error=-1.0, what="", small=(), lacking=()):
        self.error, self.what, self.small, self.lacking = error, what, list(small), set(lacking)

    def add(self, error, what):
        self.error, self.what = max((self.error, self.what), (error, what))

    def include(self, part, other):
        self.add(other.error, f"{part} {other.what}")
        self.small += [f"{part} {x}" for x in other.small]
        self.lacking |= other.lacking


def compare_op(who, ours, want, tensors, dtype, expected, worst):
    """The results of one run against those of `want`; `expected`: roles of tensors that it has to write if `want` has them."""
    compared = 0
    for name in want:
        if name not in ours and name != "cu_seqlens" and tensors.get(name, {"role": "output"})["role"] in expected:
            failures.append(f"{who}: {name} is not among the results")
    for name, tensor in ours.items():
        if tensors.get(name, {}).get("role") == "report":
            continue
        if name not in want:
            worst.lacking.add(name)
            continue
        compared += 1
        (e, rms), allowed = difference(tensor, want[name]), tensors[name]["allowed"][dtype]
        if not e <= allowed and rms < NOTHING:
            worst.small.append(f"{name} {e:.1e}")
            continue
        if not e <= allowed:
            failures.append(f"{who}: {name} is off by {e:.2e}, allowed {allowed:.0e}")
        worst.add(e, name)
    if not compared:
        failures.append(f"{who}: nothing to compare, of {', '.join(ours) or 'no results'}")


def check_op(linnet, device, op, tensors, path, scratch):
    """The worst of each type."""
    given, worst = read_safetensors(path), {}
    rounded = scratch / "rounded.safetensors"
    write_safetensors(rounded, {n: rounded_to_bf16(t) if n in WIDE else t for n, t in given.items()}, metadata(path))
    truth = scratch / "truth.safetensors"
    for dtype in ("f32", "bf16"):
        source, want = path, given
        if dtype == "bf16":
            done = run(linnet, "op", op, rounded, truth, "--backward", "--dtype", "f64")
            if done.returncode:
                failures.append(f"{path}: {done.stderr.strip()}")
                continue
            source, want = rounded, read_safetensors(truth)
        worst[dtype] = Worst(what="nothing compared")
        for flags in (["--backward"], ["--form", "recurrent"] + ["--backward"] * (device == "cpu")):
            results = []
            for turn in range(2):
                out = scratch / f"out{turn}.safetensors"
                done = run(linnet, "op", op, source, out, *flags, "--dtype", dtype, "--device", device)
                if CPU_ALONE in done.stderr:
                    return {}
                if done.returncode:
                    failures.append(f"{path} {dtype} {' '.join(flags)}: {done.stderr.strip()}")
                    break
                results.append(out.read_bytes())
            if len(results) < 2:
                continue
            if results[0] != results[1]:
                failures.append(f"{path} {dtype} {' '.join(flags)}: two runs give different bytes")
            compare_op(f"{path} {dtype} {' '.join(flags)}", read_safetensors(out), want, tensors, dtype,
                       RESULTS if "--backward" in flags else RESULTS - {"gradient"}, worst[dtype])
    return worst


def head(logits, tokens):
    """The first tokens of one sequence's logits [1, T, V]; None: all."""
    dtype, (_, length, vocabulary), body = logits
    return logits if tokens is None else (dtype, (1, tokens, vocabulary), body[:len(body) // length * tokens])


def check_model(linnet, device, folder, scratch):
    golden = read_safetensors(folder / "golden.safetensors")
    ids = scratch / "ids.safetensors"
    write_safetensors(ids, {"input_ids": golden["input_ids"]})
    worst = {}
    for dtype, allowed in MODELS.items():
        for flags in ([], ["--step"]):
            out = scratch / "logits.safetensors"
            done = run(linnet, "logits", folder, ids, out, *flags, "--dtype", dtype, "--device", device)
            if CPU_ALONE in done.stderr:
                return {}
            if done.returncode:
                failures.append(f"{folder} {dtype} {' '.join(flags)}: {done.stderr.strip()}")
                continue
            ours, theirs = (head(t, HOLDS.get(folder.name)) for t in (read_safetensors(out)["logits"], golden["logits"]))
            e = difference(ours, theirs)[0]
            if dtype == "f32":
                allowed = ROUNDED.get(folder.name, allowed)
            else:
                allowed = OTHER_EXPERTS.get(folder.name, allowed)
            if not e <= allowed:
                failures.append(f"{folder} {dtype} {' '.join(flags)}: logits are off by {e:.2e}, allowed {allowed:.0e}")
            note = "by steps" if flags else "in one pass"
            if dtype == "bf16" and folder.name in OTHER_EXPERTS:
                note += f", some tokens at other experts, as in Transformers with {allowed}"
            worst.setdefault(dtype, Worst()).add(e, note)
    return worst


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("linnet")
    p.add_argument("goldens", type=Path)
    p.add_argument("--device", default="cuda")
    p.add_argument("--record")
    p.add_argument("--label", default="")
    a = p.parse_args()
    linnet = os.path.abspath(a.linnet)
    with Linnet(Path(linnet).parent / "liblinnet.so") as library:
        known = {op: {t["name"]: t for t in library.describe(op)["tensors"]} for op in library.operators()}
    lines, groups, unknown, idle, lacking = [], [], 0, 0, 0
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for folder in sorted((a.goldens / "ops").glob("*/")):
            op = ALIAS.get(folder.name, folder.name)
            if op not in known:
                print(f"{folder.name:22} not an operator of this linnet")
                unknown += 1
                continue
            groups.append((folder.name, [(path.stem, pool.submit(in_own_folder, check_op, linnet, a.device, op, known[op], path))
                                         for path in sorted(folder.glob("*.safetensors"))]))
        for folder in sorted((a.goldens / "fla").glob("*/")) + sorted((a.goldens / "hf").glob("*/")):
            name, done = f"{folder.parent.name}/{folder.name}", run(linnet, "inspect", folder)
            if done.returncode == 0:
                groups.append((name, [("logits", pool.submit(in_own_folder, check_model, linnet, a.device, folder))]))
                continue
            print(f"{name:22} not a model of this linnet: {done.stderr.strip()[:100]}")
            unknown += 1
        for name, parts in groups:
            total = {}
            for part, future in parts:
                for dtype, worst in future.result().items():
                    total.setdefault(dtype, Worst()).include(part, worst)
            if not total:
                print(f"{name:22} nothing ran on this device")
                idle += 1
                continue
            print(f"{name:22} " + "   ".join(f"{d} {w.error:.1e} ({w.what.strip()})" for d, w in total.items()), flush=True)
            for d, w in total.items():
                if w.small:
                    print(f"{'':22} {d}: differ by less than {NOTHING:.0e}, which is much of what they are: {', '.join(w.small)}")
                if w.lacking:
                    print(f"{'':22} {d}: written, and not in the golden: {', '.join(sorted(w.lacking))}")
                    lacking += len(w.lacking)
            lines.append({"golden": name, **{d: w.error for d, w in total.items()}})
    for f in failures:
        print("FAILED", f)
    print(f"goldens: {len(lines)} groups, {len(failures)} failures; {lacking} results of operators had nothing to be compared with, {idle} groups did not run "
          f"on this device, {unknown} are not of this linnet")
    if a.record:
        with open(a.record, "a", encoding="utf-8") as f:
            for line in lines:
                f.write(json.dumps({"bench": "goldens", "device": a.device, "label": a.label, **line}) + "\n")
    return 1 if failures or not lines else 0


if __name__ == "__main__":
    sys.exit(main())

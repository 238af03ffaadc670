#!/usr/bin/env python3
"""Hold a linnet binary against the goldens: python3 bench/goldens.py LINNET GOLDENS [--device cuda] [--record FILE.jsonl] [--label TEXT]

Operators (GOLDENS/ops): float32 against the stored results, bf16 against the float64 reference on the same rounded inputs, within what the operators'
descriptions allow (the tests' budgets) or within 1e-7 rms; forward and backward, by the form linnet chooses and (forward) token by token. Two runs
must give the same bytes.
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


def check_op(linnet, device, op, allowances, path, scratch):
    """The largest error for each type, and the tensor that has it."""
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
        worst[dtype] = (-1.0, "nothing ran", [])
        for flags in (["--backward"], ["--form", "recurrent"]):
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
            ours = read_safetensors(out)
            for name, tensor in ours.items():
                if name not in want:
                    continue
                (e, rms), allowed = difference(tensor, want[name]), allowances[name][dtype]
                if not e <= allowed and rms < NOTHING:
                    worst[dtype][2].append(f"{name} {e:.1e}")
                    continue
                if not e <= allowed:
                    failures.append(f"{path} {dtype} {' '.join(flags)}: {name} is off by {e:.2e}, allowed {allowed:.0e}")
                if e > worst[dtype][0]:
                    worst[dtype] = (e, name, worst[dtype][2])
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
            worst[dtype] = max(worst.get(dtype, (-1.0, "", [])), (e, note, []))
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
        known = {op: {t["name"]: t.get("allowed") for t in library.describe(op)["tensors"]} for op in library.operators()}
    lines, groups = [], []
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for folder in sorted((a.goldens / "ops").glob("*/")):
            op = ALIAS.get(folder.name, folder.name)
            if op not in known:
                print(f"{folder.name:18} not an operator of this linnet")
                continue
            groups.append((folder.name, [(path.stem, pool.submit(in_own_folder, check_op, linnet, a.device, op, known[op], path))
                                         for path in sorted(folder.glob("*.safetensors"))]))
        for folder in sorted((a.goldens / "fla").glob("*/")) + sorted((a.goldens / "hf").glob("*/")):
            if run(linnet, "inspect", folder).returncode == 0:  # else a model of a kind that this linnet does not have
                future = pool.submit(in_own_folder, check_model, linnet, a.device, folder)
                groups.append((f"{folder.parent.name}/{folder.name}", [("logits", future)]))
        for name, parts in groups:
            total = {}
            for part, future in parts:
                for dtype, (e, tensor, small) in future.result().items():
                    before = total.get(dtype, (-1.0, "", []))
                    total[dtype] = (*max(before[:2], (e, f"{part} {tensor}")), before[2] + [f"{part} {x}" for x in small])
            if not total:
                print(f"{name:22} nothing ran on this device")
                continue
            print(f"{name:22} " + "   ".join(f"{d} {e:.1e} ({w.strip()})" for d, (e, w, _) in total.items()), flush=True)
            for d, (_, _, small) in total.items():
                if small:
                    print(f"{'':22} {d}: differ by less than {NOTHING:.0e}, which is much of what they are: {', '.join(small)}")
            lines.append({"golden": name, **{d: e for d, (e, _, _) in total.items()}})
    for f in failures:
        print("FAILED", f)
    print(f"goldens: {len(lines)} groups, {len(failures)} failures")
    if a.record:
        with open(a.record, "a", encoding="utf-8") as f:
            for line in lines:
                f.write(json.dumps({"bench": "goldens", "device": a.device, "label": a.label, **line}) + "\n")
    return 1 if failures or not lines else 0


if __name__ == "__main__":
    sys.exit(main())

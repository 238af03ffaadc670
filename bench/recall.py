#!/usr/bin/env python3
"""Every mixer with a matrix for a state recalls: multi-query associative recall, 64 tokens and 4 pairs, without a convolution, to 60 %.

    bench/recall.py LINNET --out DIR [--mixers NAME...] [--jobs N] [--steps 8000] [--enough 0.6] [--minutes M] [-- FLAG...]
    bench/recall.py LINNET --out DIR --table

One line of DIR/recall.jsonl a run; runs that are there are not made again, nor is a mixer tried further that has reached --enough. The settings are
the same for all mixers and tried in the same order: two layers (Mamba-2 four) of width 64 with two heads of 32 columns, one thread a run, fresh examples as
Zoology's figure 2 draws them (nothing but zeros between the queries), 64 ids, AdamW with cosine; batch, learning rate and MLP are SETTINGS (without
an MLP and with LayerNorm: Zoology's model).
Convolutions are left out, or have one tap where a layer cannot be without. Plain linear attention is left out: its state forgets nothing and erases
nothing. A run ends as soon as the test has --enough and a little more. With --minutes no run goes on after so many; those under way then are not
recorded. What follows `--` goes to `task`.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

MATRIX = {"retention", "simple_gla", "mlstm", "gla", "gla_v", "gla_kv", "rwkv6", "delta_rule", "gated_delta_rule", "gated_delta_product", "kda",
          "dplr", "mesa", "ttt_linear", "ttt_mlp", "titans", "linear_attn"}
# batch, highest learning rate, MLP
SETTINGS = [("128", "1e-2", "swiglu"), ("128", "1e-2", "none"), ("128", "3e-3", "swiglu")]
HEADS, COLUMNS = 2, 32
LAYERS = {"mamba2": 4}  # whose blocks have no MLP: as many layers as the others have mixers and MLPs
MINI_BATCH = 8  # in one of 16, the usual, all four pairs would be at the same weights
MARGIN = 0.05  # a run goes on to so much more than is enough: the test at its end is one of other examples


def kinds(linnet):
    lines = subprocess.run([linnet, "mixers", "--json"], check=True, capture_output=True, text=True).stdout.splitlines()
    return [m for m in map(json.loads, lines) if "mixer" in m and m.get("recurrence") and m["recurrence"].split(",")[0].split()[0] in MATRIX
            and m["mixer"] != "linear_attn"]


def keys_of(linnet, mixer):
    """What leaves a mixer's convolutions out, and the keys of its heads and mini-batches: as many columns of a key and of a value for all."""
    lines = subprocess.run([linnet, "mixers", mixer], check=True, capture_output=True, text=True).stdout.splitlines()
    defaults, name = {}, None
    for line in lines:
        words = line.split()
        if "default " in line and name:
            defaults[name] = line.split("default ")[1].strip()
        elif words and line.startswith("  ") and not line.startswith("   "):
            name = words[0]
            defaults.setdefault(name, "")
    if "use_short_conv" in defaults:
        without = ["use_short_conv=false"]
    else:
        without = [f"{key}=1" for key in ("conv_size", "conv_kernel") if key in defaults]
    heads = []
    if "head_dim" in defaults:
        heads.append(f"head_dim={COLUMNS}")
        if "expand_v" in defaults:
            heads.append("expand_v=1")
        if defaults.get("num_heads") == "null":
            heads.append("num_heads=null")
    if "mini_batch_size" in defaults:
        heads.append(f"mini_batch_size={MINI_BATCH}")
    return without, heads


class Runs:
    def __init__(self, a, flags):
        self.a, self.flags, self.lock = a, flags, threading.Lock()
        self.end = time.monotonic() + 60 * a.minutes if a.minutes else None
        self.record = Path(a.out) / "recall.jsonl"
        self.lines = [json.loads(x) for x in self.record.read_text().splitlines()] if self.record.exists() else []

    def known(self, mixer, batch, rate, mlp):
        return next((x for x in self.lines if (x["mixer"], x["batch"], x["learning_rate"], x["mlp"]) == (mixer, batch, rate, mlp)), None)

    def left(self):
        return self.end - time.monotonic() if self.end else None

    def run(self, mixer, batch, rate, mlp):
        """A run's line; None: there was no time."""
        a = self.a
        without, heads = keys_of(a.linnet, mixer)
        model = ["mlp=none", "norm=layernorm"] if mlp == "none" else []
        end = str(min(1, a.enough + MARGIN))
        command = [a.linnet, "task", "mqar", "--mixer", mixer, "--layers", str(LAYERS.get(mixer, 2)), "--length", "64", "--pairs", "4", "--vocabulary", "64", "--random-non-queries",
                   "false", "--steps", str(a.steps), "--batch", batch, "--learning-rate", rate, "--enough", end, "--threads", "1", "--json",
                   *[x for key in without + heads + model for x in ("--set", key)], *self.flags]
        begin = time.monotonic()
        left = self.left()
        if left is not None and left < 1:
            return None
        try:
            p = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=left)
        except subprocess.TimeoutExpired:
            return None
        if p.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{p.stderr.strip()[-600:]}")
        found = [x for x in map(json.loads, filter(lambda x: x.startswith("{"), p.stdout.splitlines())) if "accuracy" in x and "test_loss" in x][-1]
        return {"bench": "recall", "mixer": mixer, "batch": batch, "learning_rate": rate, "mlp": mlp, "accuracy": found["accuracy"],
                "steps": found.get("steps"), "without": " ".join(without), "heads": " ".join(heads), "enough": a.enough, "met": found["accuracy"] >= a.enough,
                "seconds": round(time.monotonic() - begin, 1), "flags": self.flags}

    def mixer(self, mixer):
        """The settings in turn until one has reached enough. False: there was no time for all."""
        for setting in SETTINGS:
            line = self.known(mixer, *setting)
            if not line:
                line = self.run(mixer, *setting)
                if not line:
                    return False
                with self.lock:
                    self.lines.append(line)
                    with self.record.open("a") as f:
                        f.write(json.dumps(line) + "\n")
                after = f"after {line['steps']} updates, {line['seconds']:.0f} s"
                print(f"{mixer:20} batch {setting[0]} rate {setting[1]} mlp {setting[2]:6} {line['accuracy']:.3f} {after}", flush=True)
            if line["met"]:
                break
        return True

    def best(self):
        best = {}
        for x in self.lines:
            if x["accuracy"] > best.get(x["mixer"], {"accuracy": -1})["accuracy"]:
                best[x["mixer"]] = x
        return sorted(best.values(), key=lambda x: -x["accuracy"])

    def table(self):
        print("| mixer | recalled | updates | batch | learning rate | MLP | no convolution by | 60 % |\n|---|---|---|---|---|---|---|---|")
        for x in self.best():
            print(f"| {x['mixer']} | {100 * x['accuracy']:.1f} % | {x['steps']} | {x['batch']} | {x['learning_rate']} | {x['mlp']} | "
                  f"{x['without'] or 'none is there'} | {'met' if x['met'] else 'MISSED'} |")


def main():
    flags = []
    if "--" in sys.argv:
        at = sys.argv.index("--")
        sys.argv, flags = sys.argv[:at], sys.argv[at + 1 :]
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("linnet")
    p.add_argument("--out", required=True)
    p.add_argument("--mixers", nargs="+")
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--steps", type=int, default=8000)
    p.add_argument("--enough", type=float, default=0.6)
    p.add_argument("--minutes", type=float)
    p.add_argument("--table", action="store_true")
    a = p.parse_args()
    runs = Runs(a, flags)
    if a.table:
        return runs.table()
    Path(a.out).mkdir(parents=True, exist_ok=True)
    names = [m["mixer"] for m in kinds(a.linnet) if not a.mixers or m["mixer"] in a.mixers]
    names.sort(key=lambda m: sum(x["mixer"] == m for x in runs.lines))  # first those that were tried least
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        for future in concurrent.futures.as_completed([pool.submit(runs.mixer, m) for m in names]):
            try:
                failed += not future.result()
            except RuntimeError as error:
                failed += 1
                print(f"FAILED {error}", flush=True)
    runs.table()
    return 1 if failed or len(runs.best()) < len(names) or not all(x["met"] for x in runs.best()) else 0


if __name__ == "__main__":
    sys.exit(main())

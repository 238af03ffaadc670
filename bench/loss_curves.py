#!/usr/bin/env python3
"""The same small models trained on a CPU in float32, on a GPU in float32 and in bf16: are the loss curves within noise of each other?

    python3 bench/loss_curves.py --text shakespeare.txt --work DIR --out bench/results/loss-curves [--gpu cuda] [--threads 14]
                                 [--mixer gated_deltanet:300 gla:300 ...] [--others 50]

A model of each mixer named, preset tiny, 300 steps (or as many as stand behind its name) of 8 x 256 bytes, from the same weights in the same order;
with --others, of every other mixer too. Noise is what another seed does (a fourth run). CPU runs go beside the GPU's, some of each at once (--at-once).
Writes README.md with a table of them all and loss_curves.csv into --out, and where one mixer is named loss_curves.svg; finished runs in --work are not
done again. What fails, or is not done after --minutes, is a row that says so. Standard library only."""
import argparse
import csv
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import figure  # noqa: E402
from equal_backbone import machine_of  # noqa: E402

STEPS, LAST, SMOOTH = 300, 50, 10
RUNS = {"CPU, float32": ("cpu-float32", False, "f32", 1), "GPU, float32": ("gpu-float32", True, "f32", 1), "GPU, bf16": ("gpu-bf16", True, "bf16", 1),
        "GPU, float32, other seed": ("gpu-seed-2", True, "f32", 2)}
CPU, GPU, BF16, OTHER = RUNS


def folder(a, mixer, label):
    return a.work / mixer / RUNS[label][0]


def train(a, mixer, steps, label):
    """None, or why there is no such run."""
    to, (_, on_gpu, dtype, seed) = folder(a, mixer, label), RUNS[label]
    if (to / "model.safetensors").exists():
        return None
    left = a.end - time.monotonic()
    if left <= 0:
        return "no time was left"
    words = [a.linnet, "train", a.text, "--mixer", mixer, "--preset", a.preset, "--steps", steps, "--batch", a.batch, "--length", a.length,
             "--eval-every", 0, "--eval-tokens", 4096, "--save-every", 0, "--out", to, "--device", a.gpu if on_gpu else "cpu", "--dtype", dtype,
             "--seed", seed, "--threads", 1 if on_gpu else max(1, a.threads // a.at_once)]
    try:
        done = subprocess.run([str(w) for w in words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=left)
    except subprocess.TimeoutExpired:
        return "not done in time"
    said = [x for x in done.stderr.splitlines() if x.strip() and not x.startswith(" ")]  # hints are indented
    return None if done.returncode == 0 else said[-1] if said else f"exit {done.returncode}"


def losses(at):
    return [x["loss"] for x in map(json.loads, (at / "log.jsonl").read_text().splitlines()) if "loss" in x]


def smooth(x):
    return [statistics.mean(x[max(0, i - SMOOTH):i + 1]) for i in range(len(x))]


def rms(x, y):
    return (sum((p - q) ** 2 for p, q in zip(x, y)) / len(x)) ** 0.5


def row(mixer, steps, curves, why):
    """A line of the table."""
    if why:
        return f"| {mixer} | {steps} | {'; '.join(f'{label}: {x}' for label, x in why.items())} | | | | | |"
    first, last = curves[CPU], min(LAST, (steps + 1) // 2)
    noise, ends = rms(curves[OTHER], first), " ".join(f"{statistics.mean(c[-last:]):.4f}" for c in curves.values())
    most = max(abs(x - y) for x, y in zip(curves[GPU], first))
    parts = [rms(curves[GPU], first), rms(curves[BF16], first)]
    return (f"| {mixer} | {steps} | {most:.2g} | {parts[0]:.2g} | {parts[1]:.2g} | {noise:.2g} | {ends} | "
            f"{'yes' if max(parts) <= noise else 'NO'} |")


def of_mixers(a):
    """{mixer: steps}"""
    named = {}
    for word in a.mixer:
        name, _, steps = word.partition(":")
        named[name] = int(steps) if steps else a.steps
    if a.others:
        listed = subprocess.run([str(a.linnet), "mixers", "--json"], capture_output=True, text=True, check=True).stdout
        for one in map(json.loads, listed.splitlines()):
            if "mixer" in one:
                named.setdefault(one["mixer"], a.others)
    return named


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--text", type=Path, required=True)
    p.add_argument("--work", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--linnet", type=Path, default=Path("build/linnet"))
    p.add_argument("--mixer", nargs="+", default=["gated_deltanet"], help="names, each with :STEPS where not --steps")
    p.add_argument("--others", type=int, default=0, help="steps of every mixer that is not named; 0: leave them out")
    p.add_argument("--gpu", default="cuda", help="device of the three other runs")
    p.add_argument("--threads", type=int, default=14, help="of all CPU runs together")
    p.add_argument("--at-once", type=int, default=1, help="CPU runs, and runs on the GPU, side by side")
    p.add_argument("--minutes", type=float, default=10000)
    p.add_argument("--preset", default="tiny")
    p.add_argument("--steps", type=int, default=STEPS)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--label", default="", help="commit")
    return p.parse_args()


def main():
    a = arguments()
    a.work.mkdir(parents=True, exist_ok=True)
    a.linnet, a.end = a.linnet.resolve(), time.monotonic() + 60 * a.minutes
    mixers = of_mixers(a)
    longest_first = sorted(mixers, key=mixers.get, reverse=True)
    pools = {on_gpu: ThreadPoolExecutor(a.at_once) for on_gpu in (False, True)}
    going = {(m, label): pools[RUNS[label][1]].submit(train, a, m, mixers[m], label) for m in longest_first for label in RUNS}
    why, curves = {m: {} for m in mixers}, {m: {} for m in mixers}
    for (mixer, label), one in going.items():
        reason = one.result()
        if not reason:
            curves[mixer][label] = losses(folder(a, mixer, label))
            if len(curves[mixer][label]) != mixers[mixer]:
                reason = f"{len(curves[mixer][label])} steps are there"
        if reason:
            why[mixer][label] = reason
    a.out.mkdir(parents=True, exist_ok=True)
    whole = [m for m in mixers if not why[m]]
    with open(a.out / "loss_curves.csv", "w", newline="", encoding="utf-8") as f:
        w = csv.writer(f)
        w.writerow(["mixer", "step", *RUNS])
        for m in whole:
            w.writerows([m, i + 1, *(f"{c[i]:.6f}" for c in curves[m].values())] for i in range(mixers[m]))
    rows = ["| mixer | steps | GPU float32 to CPU: largest | root mean square | GPU bf16 to CPU | other seed to CPU | ends: " + "; ".join(RUNS) +
            " | within noise |", "|---|---|---|---|---|---|---|---|", *(row(m, mixers[m], curves[m], why[m]) for m in mixers)]
    text = (f"# Loss curves of CPU and GPU\n\nPreset {a.preset}, steps of {a.batch} x {a.length} bytes of {a.text.stem}, the same weights and order; "
            f"made by `bench/loss_curves.py` on an {machine_of(['0'])} and an {machine_of(['cpu'])}{', commit ' + a.label if a.label else ''}. Ends are means of the last {LAST} steps, or of half of them; "
            "differences are of the losses of single steps in nats a byte, root mean squares over all; within noise: no more than another seed "
            "makes.\n\n" + "\n".join(rows) + "\n")
    if len(mixers) == 1 and whole:
        steps = list(range(1, mixers[whole[0]] + 1))
        lines = [(label, steps, smooth(c), colour, dashed) for (label, c), (colour, dashed) in zip(
            curves[whole[0]].items(), (("#000000", False), ("#56B4E9", True), ("#D55E00", True), ("#BBBBBB", False)))]
        figure.write(a.out / "loss_curves.svg", lines, f"One small model, {whole[0]}, three ways to compute", "step", "nats a byte",
                     note=f"mean over {SMOOTH + 1} steps")
        text += "\n![Loss curves](loss_curves.svg)\n"
    (a.out / "README.md").write_text(text, encoding="utf-8")
    print(text)
    if len(whole) < len(mixers):
        sys.exit(f"without a row of numbers: {', '.join(m for m in mixers if why[m])}")


if __name__ == "__main__":
    main()

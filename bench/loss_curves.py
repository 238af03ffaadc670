#!/usr/bin/env python3
"""The same small model trained on a CPU in float32, on a GPU in float32 and in bf16: are the loss curves within noise of each other?

    python3 bench/loss_curves.py --text shakespeare.txt --work DIR --out bench/results/loss-curves [--gpu cuda] [--threads 14]

A Gated DeltaNet, preset tiny, 300 steps of 8 x 256 bytes from the same weights in the same order. Noise is what another seed does (a fourth run).
Writes loss_curves.svg, loss_curves.csv and README.md into --out; finished runs in --work are not done again. Standard library only."""
import argparse
import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import figure  # noqa: E402

STEPS, LAST, SMOOTH = 300, 50, 10


def start(a, name, device, dtype, seed):
    folder = a.work / name
    if (folder / "model.safetensors").exists():
        return None
    words = [a.linnet, "train", a.text, "--mixer", "gated_deltanet", "--preset", a.preset, "--steps", a.steps, "--batch", 8, "--length", 256,
             "--eval-every", 0, "--eval-tokens", 4096, "--save-every", 0, "--out", folder, "--device", device, "--dtype", dtype, "--seed", seed,
             "--threads", a.threads]
    return subprocess.Popen([str(w) for w in words], stdout=subprocess.DEVNULL)


def losses(folder):
    lines = [json.loads(x) for x in (folder / "log.jsonl").read_text().splitlines()]
    return [x["loss"] for x in lines]


def smooth(x):
    return [statistics.mean(x[max(0, i - SMOOTH):i + 1]) for i in range(len(x))]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--text", type=Path, required=True)
    p.add_argument("--work", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--linnet", type=Path, default=Path("build/linnet"))
    p.add_argument("--gpu", default="cuda", help="device of the three other runs")
    p.add_argument("--threads", type=int, default=14)
    p.add_argument("--preset", default="tiny")
    p.add_argument("--steps", type=int, default=STEPS)
    p.add_argument("--label", default="", help="commit")
    a = p.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    a.linnet = a.linnet.resolve()
    runs = {"CPU, float32": ("cpu-float32", "cpu", "f32", 1), "GPU, float32": ("gpu-float32", a.gpu, "f32", 1),
            "GPU, bf16": ("gpu-bf16", a.gpu, "bf16", 1), "GPU, float32, other seed": ("gpu-seed-2", a.gpu, "f32", 2)}
    going = []
    for name, device, dtype, seed in runs.values():
        one = start(a, name, device, dtype, seed)
        if one and device == "cpu" and a.gpu != "cpu":
            going.append(one)  # beside the GPU's, which come one after the other
        elif one:
            one.wait()
    for one in going:
        one.wait()
    curves = {label: losses(a.work / run[0]) for label, run in runs.items()}
    short = [label for label, c in curves.items() if len(c) < a.steps]
    if short:
        sys.exit(f"not finished: {', '.join(short)}")
    a.out.mkdir(parents=True, exist_ok=True)
    with open(a.out / "loss_curves.csv", "w", newline="", encoding="utf-8") as f:
        w = csv.writer(f)
        w.writerow(["step", *curves])
        w.writerows([i + 1, *(f"{c[i]:.6f}" for c in curves.values())] for i in range(a.steps))
    steps = list(range(1, a.steps + 1))
    lines = [(label, steps, smooth(c), colour, dashed) for (label, c), (colour, dashed) in zip(
        curves.items(), (("#000000", False), ("#56B4E9", True), ("#D55E00", True), ("#BBBBBB", False)))]
    figure.write(a.out / "loss_curves.svg", lines, "One small Gated DeltaNet, three ways to compute", "step", "nats a byte",
                 note=f"mean over {SMOOTH + 1} steps")
    first = curves["CPU, float32"]
    rows = ["| run | largest difference to the CPU | root mean square | mean loss of the last 50 steps |", "|---|---|---|---|"]
    for label, c in curves.items():
        d = [x - y for x, y in zip(c, first)]
        rows.append(f"| {label} | {max(map(abs, d)):.2g} | {(sum(x * x for x in d) / len(d)) ** 0.5:.2g} | {statistics.mean(c[-LAST:]):.4f} |")
    text = (f"# Loss curves of CPU and GPU\n\nGated DeltaNet, preset {a.preset}, {a.steps} steps of 8 x 256 bytes of {a.text.stem}, the same "
            f"weights and order; made by `bench/loss_curves.py`{', commit ' + a.label if a.label else ''}.\n\n" + "\n".join(rows) +
            "\n\n![Loss curves](loss_curves.svg)\n")
    (a.out / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

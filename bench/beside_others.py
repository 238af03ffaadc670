#!/usr/bin/env python3
"""What generation loses to other processes: python3 bench/beside_others.py BUILD/linnet FOLDER [options]

Writes texts with the default number of threads and with one by turns, first alone on the machine, then beside --busy processes that never sleep, and prints
a JSON line for each: the median of the ratios of decoding time within each pair (default over one thread; 1 is as fast). Ends with 1 when the ratio beside
the busy ones is above --most. Trains a small model on linnet's own headers once, which FOLDER keeps. --cpus confines everything, the busy processes too, to
so many processors: where there are more of them than work, nothing is in anybody's way. On a machine that others use the first line says so: `load`."""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
IDLE = "while True: pass"


def run(linnet, *words):
    done = subprocess.run([linnet, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")
    return done.stdout


def model_of(a):
    out = a.folder / a.preset
    if not (out / "model.safetensors").exists():
        text = a.folder / "text.txt"
        text.write_text("\n".join(p.read_text() for p in sorted((SOURCE / "include").rglob("*.h"))))
        run(a.linnet, "train", text, "--out", out, "--mixer", a.mixer, "--preset", a.preset, "--steps", 10, "--batch", 2, "--length", 64, "--eval-tokens", 256)
    return out


def ratio(a, model, busy):
    others = [subprocess.Popen([sys.executable, "-c", IDLE]) for _ in range(busy)]
    try:
        ratios, seconds = [], {0: [], 1: []}
        for i in range(a.pairs):
            both = {}
            for threads in (0, 1) if i % 2 else (1, 0):
                words = ["generate", model, "--prompt", "The ", "--tokens", a.tokens, "--greedy", "--past-separator", "--json"]
                both[threads] = json.loads(run(a.linnet, *words, *(["--threads", 1] if threads else [])))
                seconds[threads].append(both[threads]["decode_seconds"])
            if both[0]["text"] != both[1]["text"]:
                sys.exit(f"pair {i}: the number of threads changes the text")
            ratios.append(seconds[0][-1] / seconds[1][-1])
    finally:
        for p in others:
            p.kill()
            p.wait()
    return {"bench": "beside_others", "busy": busy, "slower": round(statistics.median(ratios), 3), "worst": round(max(ratios), 3), "pairs": a.pairs,
            "tokens": a.tokens, "seconds_default": round(statistics.median(seconds[0]), 4), "seconds_one": round(statistics.median(seconds[1]), 4),
            "mixer": a.mixer, "preset": a.preset, "cpus": len(os.sched_getaffinity(0))}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("linnet")
    p.add_argument("folder", type=Path)
    p.add_argument("--mixer", default="gated_deltanet")
    p.add_argument("--preset", default="nano")
    p.add_argument("--busy", type=int, default=2)
    p.add_argument("--cpus", type=int, default=2, help="processors for all of it; 0: those that there are")
    p.add_argument("--tokens", type=int, default=400)
    p.add_argument("--pairs", type=int, default=9)
    p.add_argument("--most", type=float, default=1.5)
    a = p.parse_args()
    a.linnet = os.path.abspath(a.linnet)
    a.folder.mkdir(parents=True, exist_ok=True)
    if a.cpus:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:a.cpus])
    model, load = model_of(a), os.getloadavg()[0]
    commit = subprocess.run(["git", "-C", SOURCE, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    for busy in (0, a.busy):
        said = ratio(a, model, busy)
        print(json.dumps({**said, "load": round(load, 1), "commit": commit}), flush=True)
    return 1 if said["slower"] > a.most else 0


if __name__ == "__main__":
    sys.exit(main())

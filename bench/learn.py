#!/usr/bin/env python3
"""Every mixer learns: a small model of each on one text, its held-out loss, whether a second run gives the same bits, and decoding in constant memory.

    bench/learn.py LINNET TEXT --out DIR [--mixers NAME...] [--jobs N] [--steps 300] [--tokens 20000] [-- FLAG...]
    bench/learn.py LINNET TEXT --out DIR --table

One line of DIR/learn.jsonl a mixer; those that are there are not run again, nor is a training that is at its end: another recipe wants another DIR. Preset
nano (4 layers where nothing else is said), bytes, length 256, one thread a run; what follows `--` goes to `train`. Each mixer trains twice for a tenth of the
steps and the weights' sha256 are compared, then once to the end. Then it writes --tokens tokens; the highest resident memory is that of `generate` at the end,
beside that of a run of 500 tokens. --table prints the lines as a table.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

# Layers that know no place learn from a mean over all bytes before, and little stands out of a batch's noise there: with 16 sequences two of them
# stayed above 2.4 nats in every setting tried; with 32, weights of 0.05 and a shorter first moment they did not (bench/results/learn).
RECIPE = ["--preset", "nano", "--batch", "32", "--length", "256", "--learning-rate", "0.003", "--beta1", "0.8", "--warmup", "50", "--save-every", "0",
          "--eval-every", "0", "--set", "initializer_range=0.05"]


def run(*words):
    """(standard output, peak memory in MiB) of a command on one thread."""
    p = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
                         env={**os.environ, "OMP_NUM_THREADS": "1"})  # what a model of bytes writes need not be UTF-8
    out, err = p.stdout.read(), p.stderr.read()
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}\n{err.strip()[-600:]}")
    return out, usage.ru_maxrss / 1024


def train(a, folder, mixer, steps, *more):
    """A run from the beginning, unless the folder has it to its end. The lines of its log."""
    log = folder / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    if not (folder / "model.safetensors").exists() or not lines or lines[-1]["step"] != steps:
        shutil.rmtree(folder, ignore_errors=True)
        run(a.linnet, "train", a.text, "--out", folder, "--mixer", mixer, *RECIPE, "--steps", steps, *more)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    return lines


def learn(a, mixer, flags):
    folder = Path(a.out) / mixer["mixer"]
    folder.mkdir(parents=True, exist_ok=True)
    sums = []
    for again in range(2):
        train(a, folder / f"short{again}", mixer["mixer"], max(1, a.steps // 10), "--eval-tokens", 1024, *flags)
        sums.append(hashlib.sha256((folder / f"short{again}" / "model.safetensors").read_bytes()).hexdigest())
    steps = train(a, folder / "model", mixer["mixer"], a.steps, "--eval-tokens", 0, *flags)
    held_out = [line["eval_loss"] for line in steps if "eval_loss" in line][-1]
    memory = [run(a.linnet, "generate", folder / "model", "--prompt", "ROMEO:", "--tokens", n, "--past-separator", "--seed", 1)[1] for n in (500, a.tokens)]
    return {"bench": "learn", "mixer": mixer["mixer"], "steps": a.steps, "flags": flags, "held_out": held_out, "same_bits": sums[0] == sums[1],
            "memory_500": memory[0], "memory_all": memory[1], "tokens": a.tokens, "grows": bool(mixer["state_grows"])}


def table(lines):
    print("| mixer | held-out, nats a byte | same bits twice | MiB at 500 and at all tokens written |\n|---|---|---|---|")
    for line in sorted(lines, key=lambda x: x["held_out"]):
        grows = " (grows)" if line["grows"] else ""
        print(f"| {line['mixer']} | {line['held_out']:.3f} | {'yes' if line['same_bits'] else 'NO'} | {line['memory_500']:.1f}, {line['memory_all']:.1f}{grows} |")


def main():
    flags = []
    if "--" in sys.argv:
        at = sys.argv.index("--")
        sys.argv, flags = sys.argv[:at], sys.argv[at + 1 :]
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("linnet")
    p.add_argument("text")
    p.add_argument("--out", required=True)
    p.add_argument("--mixers", nargs="+")
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--tokens", type=int, default=20000)
    p.add_argument("--table", action="store_true")
    a = p.parse_args()
    record = Path(a.out) / "learn.jsonl"
    done = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    if a.table:
        return table(done)
    known = {line["mixer"] for line in done}
    kinds = [json.loads(line) for line in subprocess.run([a.linnet, "mixers", "--json"], check=True, capture_output=True, text=True).stdout.splitlines()]
    todo = [m for m in kinds if "mixer" in m and m["mixer"] not in known and (not a.mixers or m["mixer"] in a.mixers)]
    Path(a.out).mkdir(parents=True, exist_ok=True)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        for future in concurrent.futures.as_completed([pool.submit(learn, a, m, flags) for m in todo]):
            try:
                line = future.result()
            except RuntimeError as error:
                failed += 1
                print(f"FAILED {error}", flush=True)
                continue
            with record.open("a") as f:
                f.write(json.dumps(line) + "\n")
            print(f"{line['mixer']:20} {line['held_out']:.3f}", flush=True)
    table([json.loads(line) for line in record.read_text().splitlines()] if record.exists() else [])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

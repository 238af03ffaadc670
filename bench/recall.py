#!/usr/bin/env python3
"""Every mixer with a matrix for a state recalls: multi-query associative recall, 64 tokens and 4 pairs, without a convolution, to 60 %.

    bench/recall.py LINNET --out DIR [--mixers NAME...] [--jobs N] [--steps 3000] [--enough 0.6] [-- FLAG...]
    bench/recall.py LINNET --out DIR --table

One line of DIR/recall.jsonl a mixer; those that are there are not run again. Two layers of width 64 with MLPs, one thread a run; of each learning rate
in turn until one has reached --enough. Convolutions are left out, or have one tap where a layer cannot be without; what follows `--` goes to `task`.
Plain linear attention is left out: its state forgets nothing and erases nothing. The learning ends as soon as the test has --enough.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
from pathlib import Path

MATRIX = {"retention", "simple_gla", "mlstm", "gla", "gla_v", "gla_kv", "rwkv6", "delta_rule", "gated_delta_rule", "gated_delta_product", "kda", "dplr",
          "mesa", "ttt_linear", "ttt_mlp", "titans", "linear_attn"}
RATES = ["3e-3", "1e-2", "1e-3"]


def kinds(linnet):
    lines = subprocess.run([linnet, "mixers", "--json"], check=True, capture_output=True, text=True).stdout.splitlines()
    return [m for m in map(json.loads, lines) if "mixer" in m and m.get("recurrence") and m["recurrence"].split(",")[0].split()[0] in MATRIX
            and m["mixer"] != "linear_attn"]


def without_convolution(linnet, mixer):
    """The keys that leave a mixer's convolutions out."""
    text = subprocess.run([linnet, "mixers", mixer], check=True, capture_output=True, text=True).stdout
    words = {line.split()[0] for line in text.splitlines() if line.split()}
    if "use_short_conv" in words:
        return ["--set", "use_short_conv=false"]
    return [x for key in ("conv_size", "conv_kernel") if key in words for x in ("--set", f"{key}=1")]


def recall(a, mixer, flags):
    best = {"micro_accuracy": -1.0}
    keys = without_convolution(a.linnet, mixer)
    for rate in RATES:
        command = [a.linnet, "task", "mqar", "--mixer", mixer, "--length", "64", "--pairs", "4", "--vocabulary", "64", "--steps", str(a.steps), "--enough",
                   str(a.enough), "--learning-rate", rate, "--threads", "1", "--json", *keys, *flags]
        p = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if p.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{p.stderr.strip()[-600:]}")
        lines = [json.loads(x) for x in p.stdout.splitlines() if x.startswith("{")]
        line = [x for x in lines if "accuracy" in x and "test_loss" in x][-1]
        line["learning_rate"] = rate
        if line["accuracy"] > best.get("accuracy", -1.0):
            best = line
        if best["accuracy"] >= a.enough:
            break
    return {"bench": "recall", "mixer": mixer, "accuracy": best["accuracy"], "steps": best.get("steps"), "learning_rate": best["learning_rate"],
            "without": " ".join(keys[1::2]), "enough": a.enough, "met": best["accuracy"] >= a.enough, "flags": flags}


def table(lines):
    print("| mixer | recalled | updates | learning rate | no convolution by | 60 % |\n|---|---|---|---|---|---|")
    for x in sorted(lines, key=lambda x: -x["accuracy"]):
        print(f"| {x['mixer']} | {100 * x['accuracy']:.1f} % | {x['steps']} | {x['learning_rate']} | {x['without'] or 'none is there'} | "
              f"{'met' if x['met'] else 'MISSED'} |")


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
    p.add_argument("--steps", type=int, default=3000)
    p.add_argument("--enough", type=float, default=0.6)
    p.add_argument("--table", action="store_true")
    a = p.parse_args()
    record = Path(a.out) / "recall.jsonl"
    done = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    if a.table:
        return table(done)
    known = {line["mixer"] for line in done}
    todo = [m["mixer"] for m in kinds(a.linnet) if m["mixer"] not in known and (not a.mixers or m["mixer"] in a.mixers)]
    Path(a.out).mkdir(parents=True, exist_ok=True)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        for future in concurrent.futures.as_completed([pool.submit(recall, a, m, flags) for m in todo]):
            try:
                line = future.result()
            except RuntimeError as error:
                failed += 1
                print(f"FAILED {error}", flush=True)
                continue
            with record.open("a") as f:
                f.write(json.dumps(line) + "\n")
            print(f"{line['mixer']:20} {line['accuracy']:.3f}", flush=True)
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    table(lines)
    return 1 if failed or not all(x["met"] for x in lines) else 0


if __name__ == "__main__":
    sys.exit(main())

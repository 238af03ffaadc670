#!/usr/bin/env python3
"""What weights kept in bf16 or int8 cost: python3 bench/kept_weights.py LINNET TEXT FOLDER... [--length 128] [--tokens 131072] [--record FILE.jsonl]

Reads the beginning of TEXT with each model in float32, float32 with int8 weights, bf16, bf16 with bf16 weights, bf16 with int8 weights (linnet
eval), and prints a table of perplexities and how much more each is than that of float32. Standard library only."""
import argparse
import json
import subprocess
import sys

WAYS = [("f32", []), ("f32, int8", ["--weights", "int8"]), ("bf16", ["--dtype", "bf16"]),
        ("bf16, weights bf16", ["--dtype", "bf16", "--weights", "bf16"]), ("bf16, int8", ["--dtype", "bf16", "--weights", "int8"])]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("linnet")
    p.add_argument("text")
    p.add_argument("folders", nargs="+")
    p.add_argument("--length", default="128")
    p.add_argument("--tokens", default="131072")
    p.add_argument("--record")
    a = p.parse_args()
    print("| model | " + " | ".join(name for name, _ in WAYS) + " |\n|---" + "|---" * len(WAYS) + "|")
    for folder in a.folders:
        cells = []
        for name, flags in WAYS:
            done = subprocess.run([a.linnet, "eval", folder, a.text, "--length", a.length, "--max-tokens", a.tokens, "--json", *flags],
                                  check=True, capture_output=True, text=True)
            said = json.loads(done.stdout)
            cells.append(said["perplexity"])
            if a.record:
                with open(a.record, "a", encoding="utf-8") as f:
                    f.write(json.dumps({"bench": "kept_weights", "model": folder.rstrip("/").split("/")[-1], "way": name, "length": int(a.length),
                                        "tokens": said["tokens"], "nats_per_token": said["nats_per_token"], "perplexity": said["perplexity"]}) + "\n")
        more = [f"{cells[0]:.6g}"] + [f"{x:.6g} ({100 * (x / cells[0] - 1):+.3f}%)" for x in cells[1:]]
        print(f"| {folder.rstrip('/').split('/')[-1]} | " + " | ".join(more) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

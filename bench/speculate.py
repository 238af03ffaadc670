#!/usr/bin/env python3
"""How much sooner a text is there with a draft: python3 bench/speculate.py BUILD/linnet FOLDER [options]

Trains a model and a small draft on linnet's own sources (once: FOLDER keeps them), then writes texts with and without the draft by turns, greedy and
drawn, and looks that they are the same to the byte. Prints a JSON line for each way: the median of the ratios of decoding time within each pair (above 1:
the draft helps), the medians of both, and the share of right guesses. Numbers of a busy machine are hints: `load` says how busy it was."""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
WAYS = {"greedy": ["--greedy"], "drawn": ["--temperature", "0.8", "--top-k", "40"]}
PROMPTS = ["/* ", "static linnet_status ", "    for (int64_t i = 0; i < n; i++) ", "The state ", "#include "]


def run(linnet, *words):
    done = subprocess.run([linnet, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")
    return done.stdout


def collect(folder):
    """The project's text in one file."""
    out = folder / "text.txt"
    if not out.exists():
        names = sorted(p for room in ("src", "include", "cli", "docs") for p in (SOURCE / room).rglob("*") if p.suffix in (".c", ".h", ".md"))
        out.write_text("\n".join(p.read_text() for p in names))
    return out


def models(a, text):
    for name, preset, steps in (("target", a.target, a.target_steps), ("draft", a.draft, a.draft_steps)):
        if not (a.folder / name / "model.safetensors").exists():
            run(a.linnet, "train", text, "--out", a.folder / name, "--preset", preset, "--steps", steps, "--batch", 8, "--length", 128, "--eval-tokens", 4096,
                "--learning-rate", 0.003, "--threads", a.threads, "--device", a.device)


def measure(a, name, way):
    ratios, alone, helped, guessed, right = [], [], [], 0, 0
    for i in range(a.pairs):
        words = ["generate", a.folder / "target", "--prompt", PROMPTS[i % len(PROMPTS)], "--tokens", a.tokens, "--seed", 1 + i // len(PROMPTS), "--json",
                 "--threads", a.threads, "--device", a.device, *way]
        drafted = [*words, "--draft", a.folder / "draft", "--draft-tokens", a.draft_tokens]
        both = {}
        for d in (False, True) if i % 2 else (True, False):
            both[d] = json.loads(run(a.linnet, *(drafted if d else words)))
        if both[False]["text"] != both[True]["text"]:
            sys.exit(f"{name}, pair {i}: with the draft the text is another one")
        alone.append(both[False]["decode_seconds"])
        helped.append(both[True]["decode_seconds"])
        ratios.append(alone[-1] / helped[-1])
        guessed += both[True].get("guessed", 0)
        right += both[True].get("guessed_right", 0)
    sizes = {m: json.loads(run(a.linnet, "inspect", a.folder / m, "--json"))["parameters"] for m in ("target", "draft")}
    return {"bench": "speculate", "way": name, "faster": round(statistics.median(ratios), 3), "pairs": a.pairs, "tokens": a.tokens,
            "seconds_alone": round(statistics.median(alone), 4), "seconds_drafted": round(statistics.median(helped), 4),
            "right": round(right / guessed, 3) if guessed else None, "draft_tokens": a.draft_tokens, "parameters": sizes, "threads": a.threads,
            "device": a.device}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("linnet")
    p.add_argument("folder", type=Path)
    p.add_argument("--target", default="small", help="preset")
    p.add_argument("--draft", default="nano", help="preset")
    p.add_argument("--target-steps", type=int, default=300)
    p.add_argument("--draft-steps", type=int, default=600)
    p.add_argument("--draft-tokens", type=int, default=4)
    p.add_argument("--tokens", type=int, default=200)
    p.add_argument("--pairs", type=int, default=10)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--device", default="cpu", help="cpu or cuda: where the texts are written and the models trained")
    a = p.parse_args()
    a.linnet = os.path.abspath(a.linnet)
    a.folder.mkdir(parents=True, exist_ok=True)
    models(a, collect(a.folder))
    commit = subprocess.run(["git", "-C", SOURCE, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    for name, way in WAYS.items():
        print(json.dumps({**measure(a, name, way), "load": round(os.getloadavg()[0], 1), "commit": commit}), flush=True)


if __name__ == "__main__":
    main()

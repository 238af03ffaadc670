#!/usr/bin/env python3
"""One backbone, all rules: the MesaNet paper's comparison (arXiv 2506.05233, section 5) at a size that trains in half a minute on an H200.

    python3 bench/equal_backbone.py --text BOOKS --tokenizer GPT2 --work DIR [--devices 0,1,2] [--seconds 540]
    python3 bench/equal_backbone_page.py --work DIR --out bench/results/equal-backbone

Trains every rule at every learning rate on the same text in the same order; then, for each rule, reads the held-out books with the best model in
windows of --stretch times the training length, looks one learning rate further where the best one is at the border (--extend), and trains the best
one again with other seeds (--seeds). The best Mesa model is taken apart. It may be stopped at any time (or by --seconds) and started again: what is
done stays, what was cut off goes on from its checkpoint. One queue, one worker a device. BOOKS is a folder of .txt or .txt.xz files of Project
Gutenberg; GPT2 holds encoder.json and vocab.bpe. equal_backbone_page.py turns what there is into a page. Standard library only."""
import argparse
import datetime
import json
import lzma
import math
import os
import re
import signal
import statistics
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

# name: what the page calls it; --set, or a flag; state update and read-out, the paper's table 3. Slowest first, which is the queue's order.
RULES = {
    "mesa": ("Mesa", ["rule=mesa"], "G = γG + βkvᵀ, H = γH + βkkᵀ; o = Gᵀ(H + Λ)⁻¹q"),
    "hawk_mesa": ("Hawk-Mesa", ["--pattern=hawk,mesa"], "Hawk and Mesa by turns"),
    "attention": ("softmax attention", ["rule=attention"], "softmax(qKᵀ/√K) V, rotary"),
    "gated_deltanet": ("Gated DeltaNet", ["rule=gated_deltanet"], "S = γ(I − βkkᵀ)S + βkvᵀ; o = Sᵀq"),
    "delta_net": ("DeltaNet", ["rule=delta_net"], "S = (I − βkkᵀ)S + βkvᵀ; o = Sᵀq"),
    "mlstm": ("mLSTM", ["rule=mlstm"], "S = fS + e^i kvᵀ, n = fn + e^i k; o = Sᵀq / max(|nᵀq|, 1) (the paper's xLSTM)"),
    "gla": ("GLA with write gate", ["rule=gla"], "S = γS + βkvᵀ; o = Sᵀq (the paper's GLA)"),
    "simple_gla": ("simple GLA", ["rule=simple_gla"], "S = γS + kvᵀ; o = Sᵀq (the paper's Mamba2)"),
    "hawk": ("Hawk", ["rule=hawk"], "h = a h + √(1 − a²) (i x), by channel, in 1.25 times the width"),
    "swa256": ("window of 256", ["rule=attention", "window_size=256"], "softmax over the last 256 tokens"),
    "swa64": ("window of 64", ["rule=attention", "window_size=64"], "softmax over the last 64 tokens"),
    "swa4": ("window of 4", ["rule=attention", "window_size=4"], "softmax over the last 4 tokens"),
}
FIXED = {"warmup": 100, "weight-decay": 0.1, "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-8, "clip": 1, "min-learning-rate-share": 0.1}
EVALUATION = 15  # seconds kept free behind a training run, so that the best one of a rule is evaluated before time is up


# ---- text -------------------------------------------------------------------------------------------------------------------------------

def book(path):
    """A book without Project Gutenberg's header and licence, which are the same in all of them; lines stay as they are broken."""
    raw = lzma.open(path).read() if path.suffix == ".xz" else path.read_bytes()
    text = raw.decode("utf-8").lstrip("\ufeff").replace("\r\n", "\n")
    begin, end = re.search(r"\*\*\* ?START.*\n", text), re.search(r"\*\*\* ?END", text)
    return text[begin.end() if begin else 0:end.start() if end else len(text)].strip() + "\n"


def prepare(a):
    """Books into work/text and work/held, once."""
    for part in ("text", "held"):
        (a.work / part).mkdir(parents=True, exist_ok=True)
    held_out = a.held_out.split(",")
    for path in sorted(list(a.text.glob("*.txt")) + list(a.text.glob("*.txt.xz"))):
        name = path.name.removesuffix(".xz")
        to = a.work / ("held" if name.startswith(tuple(held_out)) else "text") / name
        if not to.exists():
            aside = to.with_suffix(".part")
            aside.write_text(book(path), encoding="utf-8")
            aside.rename(to)
    for part in ("text", "held"):
        if not any((a.work / part).iterdir()):
            sys.exit(f"no book of {a.text} is {'held out' if part == 'held' else 'left for training'}: --held-out is {a.held_out}")


# ---- jobs -------------------------------------------------------------------------------------------------------------------------------

def name_of(rule, rate, seed):
    return f"{rule}-{rate:g}-{seed}"


class Queue:
    """What is to be done follows from what is there: every worker asks for the first thing that is not done and not being done."""

    def __init__(self, a):
        self.a, self.begin, self.lock, self.doing, self.failed, self.processes = a, time.time(), threading.Lock(), set(), set(), set()
        self.stopping = False

    def result(self, name):
        path = self.a.work / name / "done.json"
        return json.loads(path.read_text()) if path.exists() else None

    def scanned(self, rule):
        """Learning rate -> held-out loss of the first seed, over the grid and what --extend added."""
        a = self.a
        found = {}
        for folder in a.work.glob(f"{rule}-*-{a.seed}"):
            r = self.result(folder.name)
            if r and r["rule"] == rule:
                found[r["learning_rate"]] = r["eval_loss"]
        return found

    def best(self, rule):
        """None until the grid is complete (a failed run counts as done)."""
        if any(not self.result(n) and n not in self.failed for n in (name_of(rule, rate, self.a.seed) for rate in self.a.rates)):
            return None
        found = self.scanned(rule)
        return min(found, key=found.get) if found else None

    def wanted(self):
        a = self.a
        for rule in a.rules:
            best = self.best(rule)
            if best:
                yield "eval", rule, best, a.seed
                if rule == "mesa":
                    yield "solver", rule, best, a.seed
        for rule in a.rules:
            for rate in a.rates:
                yield "train", rule, rate, a.seed
        for rule in a.rules if a.extend else []:
            best, tried = self.best(rule), self.scanned(rule)
            if best and best in (min(tried), max(tried)) and len(tried) < len(a.rates) + 2:
                yield "train", rule, best / 2 if best == min(tried) else best * 2, a.seed
        for seed in range(a.seed + 1, a.seed + a.seeds):
            for rule in a.rules:
                if self.best(rule):
                    yield "train", rule, self.best(rule), seed

    def done(self, kind, name):
        return (self.a.work / name / {"train": "done.json", "eval": "eval.json", "solver": "solver.json"}[kind]).exists()

    def time_left(self):
        return self.a.seconds - (time.time() - self.begin) if self.a.seconds else math.inf

    def guess(self, kind, rule):
        """Seconds a job will take, from one of its kind and rule; 0 when nothing is known: then it is tried."""
        known = [json.loads(f.read_text()) for f in self.a.work.glob(f"{rule}-*/done.json")] if kind == "train" else []
        return min((r["wall"] for r in known if r["rule"] == rule), default=0)

    def take(self):
        with self.lock:
            for job in self.wanted():
                kind, rule, rate, seed = job
                key = kind + name_of(rule, rate, seed)
                if key in self.doing or key in self.failed or name_of(rule, rate, seed) in self.failed or self.done(kind, name_of(rule, rate, seed)):
                    continue
                if self.stopping or self.time_left() < (self.guess(kind, rule) + EVALUATION if kind == "train" else 5):
                    continue
                self.doing.add(key)
                return job
            return None

    def busy(self):
        with self.lock:
            return bool(self.doing)

    def drop(self, kind, name, ok):
        with self.lock:
            self.doing.discard(kind + name)
            if not ok:
                self.failed.update({kind + name} | ({name} if kind == "train" else set()))

    def stop(self):
        """Training saves and ends when it is told to."""
        with self.lock:
            self.stopping = True
            for p in self.processes:
                p.send_signal(signal.SIGTERM)

    def command(self, device, log, *words):
        """Runs linnet on a device; its output goes to `log`. Returns standard output, or None when it failed."""
        environment = dict(os.environ)
        if device != "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = device
        words = [str(self.a.linnet), *map(str, words), "--device", "cpu" if device == "cpu" else "cuda", "--threads", str(self.a.threads)]
        with open(log, "a", encoding="utf-8") as f:
            f.write("$ " + " ".join(words) + "\n")
            f.flush()
            with self.lock:
                if self.stopping:
                    return None
                p = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=f, text=True, env=environment)
                self.processes.add(p)
            out = p.communicate()[0]
            with self.lock:
                self.processes.discard(p)
            f.write(out)
        return out if p.returncode == 0 else None


def train(q, device, rule, rate, seed):
    a, folder = q.a, q.a.work / name_of(rule, rate, seed)
    folder.mkdir(exist_ok=True)
    words = ["train", a.work / "text", "--held-out", a.work / "held", "--tokenizer", a.tokenizer, "--out", folder, "--mixer", "equal_backbone",
             "--layers", a.layers, "--width", a.width, "--heads", a.heads, "--set", f"head_dim={a.head_dim}",
             "--steps", a.steps, "--batch", a.batch, "--length", a.length, "--learning-rate", f"{rate:g}", "--seed", seed, "--dtype", a.dtype,
             "--eval-every", max(1, a.steps // 8), "--eval-tokens", a.held_tokens, "--save-every", 0]
    for pair in RULES[rule][1]:
        words += [pair] if pair.startswith("--") else ["--set", pair]
    for key, value in FIXED.items():
        words += [f"--{key}", a.warmup if key == "warmup" else value]
    resume = (folder / "train_state.safetensors").exists()
    spent, begin = folder / "wall.json", time.time()
    before = json.loads(spent.read_text()) if resume and spent.exists() else 0  # seconds of what was cut off
    ok = q.command(device, folder / "log.txt", *words, *(["--resume"] if resume else [])) is not None
    wall = round(before + time.time() - begin, 2)
    if not ok:
        write_json(spent, wall)
        return False
    lines = [json.loads(x) for x in (folder / "log.jsonl").read_text().splitlines()]
    if lines[-1]["step"] < a.steps or not math.isfinite(lines[-1].get("eval_loss", math.nan)):
        return False
    evals = [[x["tokens"], round(x["eval_loss"], 5)] for x in lines if "eval_loss" in x]
    rates = [x["tokens_per_second"] for x in lines[len(lines) // 2:]]
    write_json(folder / "done.json", {
        "rule": rule, "learning_rate": rate, "seed": seed, "parameters": parameters_of(folder / "model.safetensors"), "layers": a.layers, "width": a.width, "heads": a.heads,
        "head_dim": a.head_dim, "steps": a.steps, "batch": a.batch, "length": a.length, "warmup": a.warmup, "dtype": a.dtype,
        "tokens": lines[-1]["tokens"], "loss": statistics.mean(x["loss"] for x in lines[-50:]), "eval_loss": lines[-1]["eval_loss"],
        "eval_bits_per_byte": lines[-1]["eval_bits_per_byte"], "evals": evals, "tokens_per_second": statistics.median(rates),
        "seconds": lines[-1]["seconds"], "wall": wall, "at_a_time": a.at_a_time, "resumed": resume, "machine": a.machine, "commit": a.label,
        "date": datetime.date.today().isoformat()})
    (folder / "train_state.safetensors").unlink(missing_ok=True)
    return True


def parameters_of(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return sum(math.prod(t["shape"]) for key, t in header.items() if key != "__metadata__")


def taken(a, begin):
    return {"wall": round(time.time() - begin, 2), "at_a_time": a.at_a_time}


def evaluate(q, device, rule, rate, seed):
    """The held-out books in windows of stretch * length, begun every `stride` tokens, so that every position is measured on the whole text."""
    a, folder, begin = q.a, q.a.work / name_of(rule, rate, seed), time.time()
    out = q.command(device, folder / "log.txt", "eval", folder, a.work / "held", "--length", a.stretch * a.length, "--stride", a.stride,
                    "--csv", folder / "position.csv", "--dtype", a.dtype, "--json", *a.few)
    if out is None:
        return False
    write_json(folder / "eval.json", {"window": a.stretch * a.length, "stride": a.stride, **json.loads(out), **taken(a, begin)})
    return True


def solver(q, device, rule, rate, seed):
    """Mesa at evaluation, under linnet's solver and the paper's: loss for fixed numbers of steps and for tolerances, and the steps these take."""
    a, folder, begin = q.a, q.a.work / name_of(rule, rate, seed), time.time()
    found = {}
    for method in ("level", "plain"):
        out = q.command(device, folder / "log.txt", "task", "mesa-analysis", folder, a.work / "held", "--out", folder / f"inside-{method}",
                        "--solver", method, "--length", a.length, "--tokens", a.held_tokens or a.inside_tokens, "--dtype", a.dtype, "--json")
        if out is None:
            return False
        found[method] = [json.loads(line) for line in out.splitlines()]
    write_json(folder / "solver.json", found | taken(a, begin))
    return True


def write_json(path, value):
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(value, indent=1) + "\n")
    aside.rename(path)


def work(q, device):
    while True:
        job = q.take()
        if not job:
            if q.busy() and not q.stopping and q.time_left() > 5:  # what others finish may bring more
                time.sleep(0.5)
                continue
            return
        kind, rule, rate, seed = job
        name, begin = name_of(rule, rate, seed), time.time()
        try:
            ok = {"train": train, "eval": evaluate, "solver": solver}[kind](q, device, rule, rate, seed)
        except (OSError, ValueError, KeyError) as e:
            print(f"{name}: {e!r}", flush=True)
            ok = False
        q.drop(kind, name, ok)
        r = q.result(name) if ok else None
        loss = f"loss {r['eval_loss']:.4f}, {r['tokens_per_second'] / 1e3:.0f}k tokens/s" if r and kind == "train" else ""
        state = "" if ok else "stopped" if q.stopping else f"FAILED, see {q.a.work / name / 'log.txt'}"
        print(f"{time.time() - q.begin:6.0f} s  device {device}  {kind:6} {name:26} {time.time() - begin:6.1f} s  {loss}{state}", flush=True)


def machine_of(devices):
    if devices == ["cpu"]:
        model = [x.split(":", 1)[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
        return model[0] if model else "CPU"
    done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    return (done.stdout.splitlines() or ["GPU"])[0]


def run(a):
    a.work, a.linnet = a.work.resolve(), a.linnet.resolve()
    prepare(a)
    a.rules = [r for r in RULES if r in (a.rules.split(",") if a.rules else RULES)]
    a.rates = [float(x) for x in a.learning_rates.split(",")]
    devices = a.devices.split(",")
    a.threads = a.threads or max(1, min(16, (os.cpu_count() or 1) // len(devices)))
    a.machine, a.at_a_time = machine_of(devices), len(devices) // len(set(devices))
    a.few = ["--max-tokens", a.held_tokens] if a.held_tokens else []
    q = Queue(a)
    run_queue(q, work, devices)
    left = [name_of(*job[1:]) for job in q.wanted() if not q.done(job[0], name_of(*job[1:]))]
    print(f"{time.time() - q.begin:.0f} s; left to do: {', '.join(left) or 'nothing'}")
    return 1 if left else 0


def run_queue(q, work, devices):
    """A thread of `work` for each device, until nothing is left, the time is over, or somebody asks to stop."""
    for s in (signal.SIGTERM, signal.SIGINT):
        signal.signal(s, lambda *_: threading.Thread(target=q.stop).start())
    workers = [threading.Thread(target=work, args=(q, d)) for d in devices]
    for w in workers:
        w.start()
    while any(w.is_alive() for w in workers):
        if q.time_left() <= 0 and not q.stopping:
            q.stop()
        time.sleep(0.2)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--text", type=Path, required=True, help="folder of books")
    p.add_argument("--held-out", default="great-expectations,sherlock-holmes", help="beginnings of the names of books to hold out")
    p.add_argument("--tokenizer", type=Path, required=True)
    p.add_argument("--work", type=Path, required=True, help="folder for checkpoints and logs; what is in it is not done again")
    p.add_argument("--linnet", type=Path, default=Path("build/linnet"))
    p.add_argument("--devices", default="cpu", help="cpu, or numbers of GPUs: 0,1,2; 0,0: two runs at a time on one")
    p.add_argument("--threads", type=int, default=0, help="of each process (an equal share)")
    p.add_argument("--seconds", type=float, default=0, help="stop after so long (never)")
    p.add_argument("--rules", default="", help=f"of {','.join(RULES)} (all)")
    p.add_argument("--learning-rates", default="1e-3,2e-3,4e-3")
    p.add_argument("--extend", action="store_true", help="one more learning rate, twice, where the best one is at the border")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--seeds", type=int, default=1, help="how many seeds the best learning rate is trained with")
    p.add_argument("--label", default="", help="commit, kept with every run")
    for name, value in {"layers": 14, "width": 384, "heads": 3, "head-dim": 128, "steps": 1000, "batch": 16, "length": 1024, "warmup": 100,
                        "stretch": 4, "stride": 512}.items():
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--inside-tokens", type=int, default=65536, help="of the held-out text, to take Mesa apart with")
    p.add_argument("--held-tokens", type=int, default=0, help="of the held-out text, to try things out (all)")
    return run(p.parse_args())


if __name__ == "__main__":
    sys.exit(main())

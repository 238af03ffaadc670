#!/usr/bin/env python3
"""The pages of bench/results/ whose runs are many and small: cells, each one to three commands of linnet, several at once.

    python3 bench/experiments.py --out WORK [--pages NAME,NAME...] [--cpu 2] [--cuda 4] [--minutes 120] [--books FOLDER]
    python3 bench/experiments.py --out WORK --list
    python3 bench/experiments_page.py WORK/cells.jsonl... --out bench/results

Every finished cell is a line of WORK/cells.jsonl: what it stands for, its commands, the machine, the commit, its rows and curves. A cell that is
there is not run again; one that was cut off, by --minutes or otherwise, begins anew. --cpu and --cuda are how many cells run at a time on one thread
each and on the GPU; the first cells in the queue are the most valuable ones. --books is a folder of Project Gutenberg's books, .txt or .txt.xz, for
what reads text. Within a page every model has the same updates, batch, rates and seeds, and where one is to fail, at least the parameters of those
that are to solve it (MLPs are widened). Standard library only."""
import argparse
import csv
import datetime
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
from equal_backbone import book, machine_of, parameters_of, run_queue  # noqa: E402

SMALL = 20000         # a CPU cell's seconds that no time left is too short for: see fits()
CURVES = ("length", "position", "looks", "length-1", "length-2", "position-1", "position-2")
HELD_OUT = "great-expectations"


class Cell:
    """page, what it stands for, its commands; `device`: where it should run; `seconds`: about, on one core or one GPU; `also`: how many times as long
    it takes on the other one, 0: not there; `unless`: (labels of another cell, measure, value): not needed where that one has reached the value."""

    def __init__(self, page, labels, *commands, device="cpu", also=4, seconds=60, unless=None, threads=1):
        self.page, self.labels, self.device, self.also, self.seconds, self.unless = page, labels, device, also, seconds, unless
        self.threads = threads  # of the processor; large models on the GPU are drawn there
        self.commands = [[str(w) for w in c] for c in commands]
        self.name = page + "/" + ",".join(f"{k}={v}" for k, v in labels.items())

    def needs_text(self):
        return any(w in c for c in self.commands for w in ("{text}", "{held}", "{needles}"))


def sets(*pairs):
    return [w for p in pairs for w in ("--set", p)]


# ---- the pages ---------------------------------------------------------------------------------------------------------------------------

# Two layers of width 128 with MLPs widened to 535 thousand parameters, within a tenth of a per cent; Mamba has no MLP and is three times as wide
# inside for as many, or twice (its paper's) with 357 thousand. Four heads, but one of sLSTM: with four it is at chance after 4000 updates. DeltaNet
# and sLSTM without convolutions: by a convolution they learn what stands near, and answer longer strings less often.
DELTA_TRACKER = ["--mixer", "delta_net", *sets("use_short_conv=false", "intermediate_size=523")]
TRACKERS = {
    "DeltaNet [-1,1]": [*DELTA_TRACKER, *sets("allow_neg_eigval=true")],
    "DeltaNet [0,1]": DELTA_TRACKER,
    "Mamba [-1,1]": ["--mixer", "mamba", *sets("allow_neg_eigval=true", "expand=3")],
    "Mamba [0,1]": ["--mixer", "mamba", *sets("expand=3")],
    "Mamba [-1,1], twice as wide": ["--mixer", "mamba", *sets("allow_neg_eigval=true", "expand=2")],
    "Mamba [0,1], twice as wide": ["--mixer", "mamba", *sets("expand=2")],
    "sLSTM": ["--mixer", "slstm", *sets("num_heads=1", "use_short_conv=false", "intermediate_size=352")],
    "mLSTM": ["--mixer", "mlstm", *sets("intermediate_size=521")],
    "Transformer": ["--mixer", "attention", *sets("intermediate_size=524")],
}


def trackers(page, task, more, rates, seeds, large):
    for seed in seeds:
        for model, words in TRACKERS.items():
            for rate in rates:
                yield Cell(page, {"task": task, "model": model, "rate": rate, "seed": seed, **large},
                           ["task", "mod-arith" if task == "brackets" else task, *words, *more, "--batch", large.get("strings", 64), "--steps",
                            large.get("updates", 3000), "--learning-rate", rate, "--seed", seed, "--out", "{dir}"],
                           seconds=100 if large else 120, device="cuda" if large else "cpu")


def parity():
    return trackers("parity", "parity", [], ("1e-3", "5e-4"), (1, 2), {})


def arithmetic():
    """Little is learnt in 4000 updates of 64 strings, nor in 20,000: this takes a GPU, 256 strings an update, two rates and one seed."""
    for task, more in (("mod-arith", []), ("brackets", ["--brackets", "true"])):
        yield from trackers("arithmetic", task, more, ("1e-3", "3e-3"), (1,), {"updates": 25000, "strings": 256})


DELTAPRODUCT_MLP = {1: 1313, 2: 1046, 3: 779, 4: 512}  # columns inside, so that all have the parameters of four steps a token


def groups():
    """Every element of A5 and S5 is a product of at most four transpositions, n_h = 4; they take more updates than S4, and larger ones: of 64 sequences
    10,000 updates learn the first few elements."""
    of_s3, of_s4 = ((2, "true"), (1, "true"), (2, "false"), (1, "false")), ((2, "true"), (1, "true"), (3, "true"), (4, "true"))
    large = (4, "true"), (1, "true")
    for group, steps, batch, models in (("S3", 2000, 64, of_s3), ("S4", 3000, 64, of_s4), ("A5", 6000, 512, large), ("S5", 6000, 512, large)):
        for n, neg in models:
            yield Cell("groups", {"group": group, "householder": n, "range": "[-1,1]" if neg == "true" else "[0,1]"},
                       ["task", "word-problem", "--group", group, "--mixer", "gated_deltaproduct", "--layers", 1, "--batch", batch, "--steps", steps,
                        *sets(f"num_householder={n}", f"allow_neg_eigval={neg}", f"intermediate_size={DELTAPRODUCT_MLP[n]}"),
                        "--learning-rate", "1e-3", "--enough", "0.9999", "--out", "{dir}"], seconds=240 if batch == 64 else 100,
                       device="cpu" if batch == 64 else "cuda")


def mesa_parity():
    """To the last update: that a batch of tests is right early is no sign that it stays so."""
    for signed in ("true", "false"):
        for seed in (1, 2, 3):
            yield Cell("mesa-parity", {"gamma": "(-1,1)" if signed == "true" else "(0,1)", "rate": "1e-3", "seed": seed},
                       ["task", "mesa-parity", "--mixer", "mesa_net", *sets(f"allow_neg_gamma={signed}", "lambda_lower_bound=49"), "--batch", 32,
                        "--steps", 2000, "--enough", 2, "--learning-rate", "1e-3", "--seed", seed, "--out", "{dir}"], seconds=240, threads=4)


MIXERS = {
    "attention": "softmax attention", "linear_attn": "linear attention", "based": "Based", "gla": "GLA", "mamba": "Mamba", "mamba2": "Mamba-2",
    "retnet": "RetNet", "rwkv6": "RWKV-6", "rwkv7": "RWKV-7", "delta_net": "DeltaNet", "gated_deltanet": "Gated DeltaNet", "mesa_net": "MesaNet",
}
OWN_HEADS = ("rwkv7", "gated_deltanet", "mesa_net")  # whose head_dim is no share of the width
UNGATED = "mesa_net, gamma = 1"  # MesaNet's gate begins at one half
MQAR_IDS = 1024
MOST_TELLING = ("delta_net", "attention", "mamba", "gated_deltanet", "gla", "mesa_net", UNGATED, "linear_attn", "mamba2", "rwkv7", "retnet", "based",
                "rwkv6")


def mqar_run(setting, name, width, epochs, rate, heads=2, examples=20000):
    mixer, *ungated = name.split(", ")
    keys = [*(["mlp=none"] if mixer != "mamba" else []), *([f"head_dim={width // heads}"] if mixer in OWN_HEADS else []),
            *(["use_forget_gate=false"] if ungated else [])]
    return ["task", "mqar", "--setting", setting, "--vocabulary", MQAR_IDS, "--random-non-queries", "false", "--mixer", mixer, "--width", width,
            *(["--heads", heads] if mixer != "mamba" else []), *sets(*keys), "--examples", examples, "--epochs", epochs, "--test-examples", 500,
            "--enough", "0.995", "--learning-rate", rate, "--dtype", "bf16", "--out", "{dir}"]


def mqar():
    """The second rate is for those that the first one leaves short of 99 per cent: narrow models begin with the higher one, wide ones with the lower.
    Of 8192 ids as many updates learn nothing, whatever the layer. In bf16, a run of the widest takes some quarter of its time in float32."""
    for width in (64, 128, 256, 512):
        rates = ("3e-3", "1e-3") if width < 256 else ("1e-3", "3e-3")
        for setting in ("256x16", "512x64"):
            for rate, other in (rates, rates[::-1]):
                for mixer in MOST_TELLING:
                    labels = {"setting": setting, "mixer": mixer, "width": width, "rate": rate}
                    yield Cell("mqar", labels, mqar_run(setting, mixer, width, 5, rate),
                               seconds=(400 if setting == "256x16" else 800) * width / 64, also=64 / width / 2,
                               unless=(labels | {"rate": other}, "accuracy", 0.99))


def mqar_narrow():
    """The narrowest models at the hard setting, where behind the updates of the others one alone is there: with their two heads, three times as many
    updates; with one head, whose state holds as many keys as there are pairs, six times as many, over the paper's 100,000 examples."""
    for labels, rates, heads, examples, epochs in (({}, ("1e-3", "3e-3"), 2, 20000, 16), ({"heads": 1}, ("3e-3", "1e-3"), 1, 100000, 6)):
        for mixer in MOST_TELLING:
            for rate, other in (rates, rates[::-1]):
                cell = {"setting": "512x64", "mixer": mixer, "width": 64, **labels, "rate": rate}
                yield Cell("mqar-narrow", cell, mqar_run("512x64", mixer, 64, epochs, rate, heads, examples), seconds=100, device="cuda", also=40,
                           unless=(cell | {"rate": other}, "accuracy", 0.99))


MAD_KINDS = ("in-context", "fuzzy", "noisy", "memorisation", "compression", "copying")
MAD_MIXERS = ("delta_net", "attention", "gla", "mamba", "mamba2", "gated_deltanet", "mesa_net", "mlstm", "rwkv7", "linear_attn", "hyena")


# Two layers of width 64 with MLPs have the 136 thousand parameters of DeltaNet or more, in context, by these keys; Mamba and Mamba-2 have no MLPs.
MAD_KEYS = {
    "attention": sets("intermediate_size=262"), "mlstm": sets("intermediate_size=259"), "mamba": sets("state_size=22"),
    "mamba2": ["--layers", 4, *sets("state_size=148")], "rwkv7": sets("head_dim=16"),
}


def mad_run(kind, mixer, steps, rate, *more):
    heads = [] if mixer in ("mamba", "hyena") else ["--heads", 4]
    return ["task", "mad", "--kind", kind, "--mixer", mixer, "--width", 64, *heads, *MAD_KEYS.get(mixer, []), "--batch", 32, "--steps", steps, *more,
            "--learning-rate", rate, "--out", "{dir}"]


def mad():
    """Width 64 and 4000 updates of 32 examples: DeltaNet recalls in context without a mistake behind a quarter of these."""
    for rate in ("3e-3", "1e-3"):
        for mixer in MAD_MIXERS:
            for kind in MAD_KINDS:
                yield Cell("mad", {"mixer": mixer, "kind": kind, "rate": rate}, mad_run(kind, mixer, 4000, rate), device="cuda", seconds=30, also=13)


def mad_compression():
    """MAD's compression alone, eight times as long: behind 1000 updates most layers are on one plateau."""
    for mixer in MAD_MIXERS:
        yield Cell("mad-compression", {"mixer": mixer, "rate": "1e-3"}, mad_run("compression", mixer, 8000, "1e-3", "--test-every", 0), seconds=700, also=0.2)


# 136 thousand parameters, of Mamba-2, which has no MLPs, and GLA 137.
REGBENCH_KEYS = {
    "attention": ["--layers", 2, *sets("intermediate_size=261")], "mamba2": ["--layers", 3, *sets("state_size=140")],
    "gated_deltanet": ["--layers", 2, *sets("head_dim=32", "intermediate_size=169")], "mesa_net": ["--layers", 2, *sets("head_dim=32")],
    "gla": ["--layers", 2],
}


def regbench():
    for rate in ("5e-3", "2e-3"):
        for automata in (1000, 5000):
            for mixer, keys in REGBENCH_KEYS.items():
                yield Cell("regbench", {"mixer": mixer, "automata": automata, "rate": rate},
                           ["task", "regbench", "--mixer", mixer, "--automata", automata, *keys, "--width", 64, "--heads", 2, "--batch", 4,
                            "--steps", 6000, "--test-every", 0, "--learning-rate", rate, "--out", "{dir}"],
                           device="cuda", seconds=60 if mixer == "mesa_net" else 30, also=12)


ABLATIONS = {
    "L2 norm, SiLU, convolution": [], "L2 norm, ReLU, convolution": ["qk_activation=relu"], "L2 norm, 1+ELU, convolution": ["qk_activation=elu"],
    "L1 norm, 1+ELU, convolution": ["qk_norm=sum", "qk_activation=elu"], "L2 norm, no feature map, convolution": ["qk_activation=identity"],
    "L2 norm, SiLU, no convolution": ["use_short_conv=false"],
}
READER = ["--layers", 4, "--width", 128, "--heads", 2, "--batch", 8, "--length", 256, "--save-every", 0, "--eval-every", 0, "--eval-tokens", 0]


def delta_ablations():
    for name, keys in ABLATIONS.items():
        for rate in ("2e-3", "4e-3"):
            yield Cell("delta-ablations", {"variant": name, "rate": rate},
                       ["train", "{text}", "--held-out", "{held}", "--out", "{dir}/model", "--mixer", "delta_net", *sets(*keys), *READER,
                        "--steps", 1000, "--learning-rate", rate], seconds=90)


def mesa_steps():
    for k in (30, 0, 15, 10, 5, 2):
        keys = sets(f"max_cg_step_training={k}", f"max_cg_step_decoding={k}", "cg_tolerance=0")
        yield Cell("mesa-steps", {"steps": k},
                   ["train", "{text}", "--held-out", "{held}", "--out", "{dir}/model", "--mixer", "mesa_net", *keys, *READER, "--steps", 600,
                    "--learning-rate", "4e-3"],
                   ["task", "mesa-analysis", "{dir}/model", "{held}", "--length", 512, "--learnt", 256, "--tokens", 65536, "--budgets",
                    "0,2,5,10,15,30", "--out", "{dir}"], seconds=200)
    for k in (0, 2, 5, 10, 15, 30):  # what they cost, with nothing beside; on a GPU a larger model
        keys = sets(f"max_cg_step_training={k}", f"max_cg_step_decoding={k}", "cg_tolerance=0")
        small = ["--layers", 4, "--width", 128, "--heads", 2, "--batch", 8, "--length", 256]
        large = ["--layers", 12, "--width", 1024, "--heads", 8, "--batch", 8, "--length", 2048, "--dtype", "bf16"]
        for device, size in (("cpu", small), ("cuda", large)):
            yield Cell("mesa-steps", {"steps": k, "time": device}, ["bench", "train", "--mixer", "mesa_net", *keys, *size, "--repeats", 5, "--record",
                                                                    "{dir}/results.jsonl"], device=device, also=0, seconds=8,
                       threads=8 if device == "cuda" else 1)


def chunk_or_token():
    for op in ("delta_rule", "simple_gla"):
        for size in (32, 64, 128, 256):
            for length in (256, 1024, 4096):
                for form in ("chunk", "recurrent"):
                    yield Cell("chunk-or-token", {"op": op, "size": size, "length": length, "form": form},
                               ["bench", "op", op, "--heads", 512 // size, "--T", length, *sets(f"K={size}", f"V={size}"), "--form", form,
                                "--repeats", 5, "--dtype", "bf16", "--record", "{dir}/results.jsonl"], device="cuda", seconds=3)


# 24 layers of width 1024 with MLPs; Mamba-2, which has none, twice as many.
QUICK = {"Transformer": ["attention", "--layers", 24, "--heads", 8], "GLA": ["gla", "--layers", 24, "--heads", 4],
         "DeltaNet": ["delta_net", "--layers", 24, "--heads", 8], "Gated DeltaNet": ["gated_deltanet", "--layers", 24, "--heads", 4],
         "Mamba-2": ["mamba2", "--layers", 48, "--heads", 32]}


def throughput():
    for name, (mixer, *keys) in QUICK.items():
        for length, batch in ((2048, 8), (4096, 4), (8192, 2), (16384, 1)):
            yield Cell("throughput", {"model": name, "length": length, "batch": batch},
                       ["bench", "train", "--mixer", mixer, *keys, "--width", 1024, *sets("vocab_size=32000"), "--length", length, "--batch", batch,
                        "--repeats", 5, "--dtype", "bf16", "--record", "{dir}/results.jsonl"], device="cuda", also=0, seconds=15, threads=8)


LONG = {"DeltaNet": ["delta_net"], "Gated DeltaNet": ["gated_deltanet", *sets("head_dim=64")], "MesaNet": ["mesa_net", *sets("head_dim=64")]}
LONG.update({f"DeltaProduct, n_h = {n}": ["gated_deltaproduct", *sets(f"num_householder={n}", "head_dim=64")] for n in (1, 2, 3)})


def long_texts():
    for name, (mixer, *keys) in LONG.items():
        yield Cell("long-texts", {"model": name},
                   ["train", "{text}", "--held-out", "{held}", "--out", "{dir}/model", "--mixer", mixer, *keys, "--layers", 6, "--width", 256,
                    "--heads", 4, "--batch", 8, "--length", 2048, "--steps", 1500, "--learning-rate", "3e-3", "--save-every", 0, "--eval-every", 0,
                    "--dtype", "bf16"],
                   ["task", "ppl", "{dir}/model", "{held}", "--lengths", "2048,4096,8192,16384,32768", "--out", "{dir}"],
                   device="cuda", also=0, seconds=60)


def niah():
    """Learnt on documents of 100 to 1500 tokens with needles of all three kinds, read in up to 8192. It is learnt suddenly, at some thousand updates: of
    1500 nobody answers. Of bytes in place of tokens nobody learnt it: a key is some fifteen of them, and as many stand between it and its number."""
    for mixer, layers, keys in (("mamba2", 24, []), ("gated_deltanet", 6, sets("head_dim=64")), ("delta_net", 6, [])):  # Mamba-2 has no MLPs
        measures = [["task", "niah", "{dir}/model", "--kind", kind, "--words", "{words}", "--essays", "{held}", "--lengths", "512,1024,2048,4096,8192",
                     "--samples", 40, "--tokens", 48 if kind == 3 else 16, "--out", f"{{dir}}/kind-{kind}"] for kind in (1, 2, 3)]
        yield Cell("niah", {"mixer": mixer},
                   ["train", "{needles}", "--field", "text", "--train-tokenizer", 4096, "--out", "{dir}/model", "--mixer", mixer, *keys,
                    "--layers", layers, "--width", 256, "--heads", 4, "--batch", 16, "--length", 2048, "--steps", 8000, "--learning-rate", "1e-3",
                    "--save-every", 0, "--eval-every", 0, "--dtype", "bf16"], *measures, device="cuda", also=0, seconds=300)


PAGES = {"parity": parity, "arithmetic": arithmetic, "groups": groups, "mesa-parity": mesa_parity, "mqar": mqar, "mqar-narrow": mqar_narrow, "mad": mad,
         "mad-compression": mad_compression, "regbench": regbench, "delta-ablations": delta_ablations, "mesa-steps": mesa_steps, "chunk-or-token": chunk_or_token, "throughput": throughput,
         "long-texts": long_texts, "niah": niah}


# ---- running -----------------------------------------------------------------------------------------------------------------------------

def books(folder, work):
    """Two files, work/text and work/held."""
    texts = {"text": [], "held": []}
    for path in sorted(list(folder.glob("*.txt")) + list(folder.glob("*.txt.xz"))):
        texts["held" if path.name.startswith(HELD_OUT) else "text"].append(book(path))
    if not texts["text"] or not texts["held"]:
        sys.exit(f"{folder} has no books, or {HELD_OUT} is not among them")
    for part, found in texts.items():
        (work / part).write_text("".join(found), encoding="utf-8")
    needles("".join(texts["text"]), work)


def needles(text, work):
    """work/words: two lists, of the books' own words, few enough that each is seen often; work/needles.jsonl: documents as S-NIAH asks (RULER, arXiv
    2404.06654), with their answers, and most of them with more needles than one: with one what is asked is a hundredth of the loss, and is not learnt."""
    draw, words = random.Random(7), text.split()
    known = sorted({w for w in words if w.isascii() and w.isalpha() and w.islower() and 4 <= len(w) <= 9})
    draw.shuffle(known)
    lists = {"adjectivelist.txt": known[:300], "nounlist.txt": known[300:1300]}
    (work / "words").mkdir(exist_ok=True)
    for name, some in lists.items():
        (work / "words" / name).write_text("\n".join(some) + "\n")
    with open(work / "needles.jsonl", "w", encoding="utf-8") as f:
        for i in range(100000):
            f.write(json.dumps({"text": document(draw, words, lists, i % 3, draw.choice((1, 1, 2, 4, 8, 12)))}) + "\n")


NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def document(draw, words, lists, kind, n):
    """n needles of a kind in hay, of 1 to 24 lines of noise or 4 to 600 words, short as often as long; then all are asked for."""
    what = "uuid" if kind == 2 else "number"
    hidden = {"-".join(draw.choice(some) for some in lists.values()):
              str(uuid.UUID(int=draw.getrandbits(128), version=4)) if kind == 2 else str(draw.randrange(10 ** 6, 10 ** 7)) for _ in range(n)}
    if kind == 0:
        hay, joint = [NOISE] * int(24 ** draw.random()), "\n"
    else:
        at = draw.randrange(len(words) - 600)
        hay, joint = re.split(r"(?<=[.!?]) ", " ".join(words[at:at + int(4 * 150 ** draw.random())])), " "
    for key, value in hidden.items():
        hay.insert(draw.randrange(len(hay) + 1), f"One of the special magic {what}s for {key} is: {value}.")
    told = (f"A special magic {what} is hidden within the following text. Make sure to memorize it. "
            f"I will quiz you about the {what} afterwards.")
    asked = list(hidden.items())
    draw.shuffle(asked)
    said = [f"One of the special magic {what}s for {key} is: {value}." for key, value in asked]  # again, as it stands there: learnt first
    what = f"special magic {what} for"
    said = [line if draw.random() < 0.4 else f"What is the {what} {key} mentioned in the provided text? The {what} {key} mentioned in the "
            f"provided text is {value}." for line, (key, value) in zip(said, asked)]
    return f"{told}\n{joint.join(hay)}\n" + "\n".join(said)


class Queue:
    def __init__(self, a, cells, done):
        self.a, self.lock, self.begin, self.processes, self.stopping = a, threading.Lock(), time.time(), set(), False
        self.done, self.total, self.left, self.doing = done, len(cells), [c for c in cells if c.name not in done], set()
        self.on_gpu, self.gpu_clock, self.gpu_at = 0, 0, 0

    def gpu_share(self, change=0):
        """A clock of the GPU that goes the slower the more cells share it: what it goes on by during a cell is that cell's share of the GPU's time."""
        with self.lock:
            now = time.time()
            self.gpu_clock += (now - self.gpu_at) / self.on_gpu if self.on_gpu else 0
            self.gpu_at, self.on_gpu = now, self.on_gpu + change
            return self.gpu_clock

    def time_left(self):
        return self.a.minutes * 60 - (time.time() - self.begin) if self.a.minutes else SMALL

    def fits(self, cell, device):
        """A cell that would be cut off is not begun."""
        return cell.seconds * (1 if device == cell.device else cell.also) * self.a.slowness < self.time_left()

    def take(self, device):
        with self.lock:
            for mine in (True, False):
                for c in list(self.left):
                    if self.stopping or (c.device == device) != mine or not (mine or c.also) or not self.fits(c, device):
                        continue
                    other = Cell(c.page, c.unless[0]).name if c.unless else c.name
                    if other != c.name and other in self.doing:
                        continue
                    self.left.remove(c)
                    if other == c.name or best_of(self.done.get(other, []), c.unless[1]) < c.unless[2]:
                        self.doing.add(c.name)
                        return c
            return None

    def finish(self, cell, device, rows):
        """rows None: it failed, and the device that it is meant for may try."""
        with self.lock:
            self.doing.discard(cell.name)
            if rows is not None:
                self.done[cell.name] = rows
            elif device != cell.device and not self.stopping:
                cell.also = 0
                self.left.insert(0, cell)

    def run(self, command, threads, log):
        """Whether it ended well, and the time of processors that it took."""
        with open(log, "a", encoding="utf-8") as f:
            f.write("$ " + " ".join(command) + "\n")
            f.flush()
            p = subprocess.Popen(command, stdout=f, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                 env={**os.environ, "OMP_NUM_THREADS": str(threads)})
            with self.lock:
                self.processes.add(p)
            _, status, used = os.wait4(p.pid, 0)
            with self.lock:
                p.returncode = os.waitstatus_to_exitcode(status)
                self.processes.discard(p)
            return p.returncode == 0, used.ru_utime + used.ru_stime

    def stop(self):
        with self.lock:
            self.stopping = True
            for p in self.processes:
                p.kill()


def best_of(rows, measure):
    return max((r[measure] for r in rows if r.get(measure) is not None), default=-1)


def numbers(path):
    """A CSV file's columns, with six digits."""
    with open(path, encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    return {k: [float(f"{float(r[k]):.6g}") for r in rows] for k in rows[0]} if rows else {}


def collect(folder):
    """Rows and curves of a cell's commands."""
    rows, curves = [], {}
    if (folder / "model" / "log.jsonl").exists():
        log = [json.loads(x) for x in (folder / "model" / "log.jsonl").read_text().splitlines()]
        last = [x["loss"] for x in log[-max(1, len(log) // 20):]]
        held = [x for x in log if "eval_loss" in x]
        rows.append({"row": "train", "steps": log[-1]["step"], "tokens": log[-1]["tokens"], "loss": sum(last) / len(last),
                     "held_out": held[-1]["eval_loss"], "held_out_bits_per_byte": held[-1]["eval_bits_per_byte"], "seconds": log[-1]["seconds"],
                     "parameters": parameters_of(folder / "model" / "model.safetensors")})
    for path in sorted([*folder.glob("results.jsonl"), *folder.glob("kind-*/results.jsonl")]):
        rows += [x for x in map(json.loads, path.read_text().splitlines()) if x.get("row") != "settings"]  # which the commands say
    for name in CURVES:
        if (folder / f"{name}.csv").exists():
            curves[name] = numbers(folder / f"{name}.csv")
    return rows, curves


def run_cell(q, cell, device):
    a, folder = q.a, a_folder(q.a, cell)
    begin, share = time.time(), q.gpu_share(device == "cuda")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fill = {"{dir}": str(folder), **{f"{{{x}}}": str(a.out / x) for x in ("text", "held", "words")}, "{needles}": str(a.out / "needles.jsonl")}
    shown, ok, processors = [], True, 0
    for words in cell.commands:
        shown.append(re.sub(r"\{(\w+)\}", lambda m: m[1].upper(), " ".join(["linnet", *words])))
        for key, value in fill.items():
            words = [w.replace(key, value) for w in words]
        if ok:
            ok, used = q.run([str(a.linnet), *words, "--device", device, "--threads", str(cell.threads)], cell.threads, folder / "log.txt")
            processors += used
    said = (folder / "log.txt").read_text(errors="replace").replace("\r", "\n").splitlines()
    ok, share = ok and not q.stopping, q.gpu_share(-(device == "cuda")) - share
    if ok:
        rows, curves = collect(folder)
        cuts = [x.split(": ", 1)[1].replace(f"{a.out}/", "") for x in said if re.match("(not|never) as in the paper", x)]
        line = {"page": cell.page, "cell": cell.labels, "commands": shown, "device": device, "machine": a.machines[device], "commit": a.label,
                "date": datetime.date.today().isoformat(), "seconds": round(time.time() - begin, 1),
                "core_seconds": round(processors, 1), "at_a_time": a.cuda if device == "cuda" else a.cpu,
                **({"gpu_seconds": round(share, 1)} if device == "cuda" else {"threads": cell.threads}), "cuts": cuts, "rows": rows, "curves": curves}
        with q.lock, open(a.out / "cells.jsonl", "a", encoding="utf-8") as f:
            f.write(json.dumps(line) + "\n")
        if not a.keep:
            shutil.rmtree(folder)
    q.finish(cell, device, rows if ok else None)
    state = "" if ok else "stopped" if q.stopping else "FAILED: " + next((x for x in said if x.startswith("linnet:")), "see the log")
    print(f"{time.time() - q.begin:6.0f} s  {device:4} {time.time() - begin:6.1f} s  {cell.name}  {state}", flush=True)


def a_folder(a, cell):
    return a.out / "runs" / "".join(c if c.isalnum() else "-" for c in cell.name)


def work(q, device):
    while not q.stopping:
        cell = q.take(device)
        if cell:
            run_cell(q, cell, device)
        elif not q.doing:
            return
        else:
            time.sleep(0.5)  # what others finish may leave something to do


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--linnet", type=Path, default=Path("build/linnet"))
    p.add_argument("--pages", default=",".join(PAGES),
                   help="which, in the order of their worth; PAGE/TEXT+TEXT: cells with these in their names (%(default)s)")
    p.add_argument("--cpu", type=int, default=1, help="cells at a time on a processor, one thread each")
    p.add_argument("--cuda", type=int, default=0, help="cells at a time on the GPU")
    p.add_argument("--minutes", type=float, default=0, help="stop after so long (never)")
    p.add_argument("--slowness", type=float, default=1,
                   help="seconds here of a second that a cell's description says: what would be cut off is not begun")
    p.add_argument("--books", type=Path, help="for the pages that read text; without it these are left out")
    p.add_argument("--label", default="", help="commit, kept with every cell")
    p.add_argument("--keep", action="store_true", help="keep the folders of finished cells")
    p.add_argument("--list", action="store_true", help="show the cells and their commands")
    a = p.parse_args()
    a.out, a.linnet = a.out.resolve(), a.linnet.resolve()
    cells = []
    for page, _, part in (x.partition("/") for x in a.pages.split(",")):
        known = {x.name for x in cells}
        cells += [c for c in PAGES[page]() if all(x in c.name for x in part.split("+")) and c.name not in known
                  and (a.list or a.books or not c.needs_text())]
    if a.list:
        for c in cells:
            print(c.name, *(" ".join(["  linnet", *words]) for words in c.commands), sep="\n")
        return 0
    a.out.mkdir(parents=True, exist_ok=True)
    if a.books and not (a.out / "needles.jsonl").exists():
        books(a.books, a.out)
    record = a.out / "cells.jsonl"
    done = [json.loads(x) for x in record.read_text().splitlines()] if record.exists() else []
    a.machines = {"cpu": machine_of(["cpu"]) if a.cpu else "", "cuda": machine_of(["0"]) if a.cuda else ""}
    q = Queue(a, cells, {Cell(x["page"], x["cell"]).name: x["rows"] for x in done})
    run_queue(q, work, ["cuda"] * a.cuda + ["cpu"] * a.cpu)
    print(f"{time.time() - q.begin:.0f} s; {len(q.left)} of {q.total} cells were not begun")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Failing file calls and allocations, kills, and hostile files, on commands as users type them.

    python3 tests/faults/run_faults.py BUILD/linnet [--seconds N] [--cases N] [--every [K/N]] [--seed N] [--sanitized BUILD/linnet] [--valgrind] [PART...]

Each part draws its cases until its share of the time is over (default: 60 s for all) and it has run --cases of them, and says how many it ran; a finding is
printed with what repeats it, and ends its part. With --every, `calls`, `memory` and `pairs` draw nothing: each call of each command fails in each mode, each
pair is made (K/N: the K-th of N equal parts of that, for as many processes). Parts: calls, memory, kills, folders, pairs, and valgrind when asked for. The last
line counts parts."""
import argparse
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

SOURCE = Path(__file__).resolve().parents[2]
SMALL = ["--set", "hidden_size=32", "--set", "num_hidden_layers=2", "--set", "num_heads=2", "--batch", "2", "--length", "32", "--steps", "6", "--warmup", "2",
         "--eval-every", "4", "--eval-tokens", "128", "--save-every", "2"]
# flags of four trainings: a recurrence, attention beside it, matrices and moments in bf16 alone, weights cut into shards at the end
MODELS = {"delta": ["--mixer", "gated_deltanet", "--set", "head_dim=16", "--set", "expand_v=1"],
          "hybrid": ["--pattern", "retnet,attention"],
          "bf16": ["--mixer", "linear_attn", "--dtype", "bf16", "--weights", "bf16", "--moments", "bf16"],
          "shards": ["--mixer", "retnet", "--shard-size", "40KB"]}
MODES = ["error", "denied", "full", "short", "kill"]
SECONDS_OF_CPU = 5     # of a command on files of some ten kilobytes
MEGABYTES = 256        # that it may touch
LARGEST = 64           # MiB of one allocation

tool = {}              # linnet, library, sanitized: paths; cases: of a part at least; every: (K, N) or None


class Finding(Exception):
    """What went wrong, with what repeats it."""


# ---- running ---------------------------------------------------------------------------------------------------------------------

class Done:
    def __init__(self, words, code, out, err, megabytes):
        self.words, self.code, self.out, self.err, self.megabytes = words, code, out, err, megabytes

    def wrong(self, what):
        raise Finding(f"{what}\n  {' '.join(self.words)}\n  ended with {self.code}\n  " + "\n  ".join(self.err.strip().splitlines()[-12:]))


def environment(more=None):
    env = {**os.environ, "OMP_NUM_THREADS": "1", **(more or {})}
    env.pop("LD_PRELOAD", None)
    return env


def run(*words, fault=None, binary=None, cpu=None, kill_after=None, given=os.devnull):
    """A command to its end (or its kill), with the file `given` as its input; `fault` is (mode, n, folder) for the preloaded library, which leaves its
    record in folder/../calls."""
    words = [binary or tool["linnet"], *map(str, words)]
    env = environment()
    if fault:
        mode, n, folder = fault
        record = folder.parent / "calls"
        record.unlink(missing_ok=True)
        if mode == "each":
            mode, env["LINNET_FAULT_EACH"] = "error", "1"
        env.update({"LD_PRELOAD": str(tool["library"]), "LINNET_FAULT_MODE": mode, "LINNET_FAULT_AT": str(n), "LINNET_FAULT_BELOW": f"{folder}/",
                    "LINNET_FAULT_COUNT": str(record)})
    if binary:
        largest = LARGEST + (16 if words[1] == "chat" else 0)  # its cache of states has 64 MiB, whatever the model
        env.update({"ASAN_OPTIONS": f"max_allocation_size_mb={largest}:allocator_may_return_null=1:exitcode=99", "UBSAN_OPTIONS": "print_stacktrace=1"})

    def limits():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if cpu:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 5))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(given, "rb") as begin:
        p = subprocess.Popen(words, stdin=begin, stdout=out, stderr=err, env=env, preexec_fn=limits)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(p.pid, signal.SIGKILL)  # p.kill() would reap it
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for f in (out, err):
            f.seek(0)
            texts.append(f.read().decode("utf-8", "replace"))
    return Done(([f"LINNET_FAULT_MODE={fault[0]}", f"LINNET_FAULT_AT={fault[1]}"] if fault else []) + words, p.returncode, *texts, usage.ru_maxrss / 1024)


def must(*words, **more):
    done = run(*words, **more)
    if done.code != 0:
        done.wrong("a run that nothing disturbs fails")
    return done


def well_behaved(done):
    """Ended with 0, or with 2 and a message."""
    if done.code not in (0, 2):
        done.wrong("a crash, or an exit code that means nothing")
    if done.code == 2 and not any(line.startswith("linnet: ") for line in done.err.splitlines()):
        done.wrong("refused without a message")


def counted(folder):
    """(the call that failed or None, number of calls) of the last run under a fault."""
    lines = (folder.parent / "calls").read_text().splitlines() if (folder.parent / "calls").exists() else []
    everything = [int(line[4:]) for line in lines if line.startswith("all ")]
    return next((line for line in lines if not line.startswith("all ")), None), everything[0] if everything else 0


def each_call(folder):
    """(number, name, last path) of the calls of the last run under the fault "each"."""
    for line in (folder.parent / "calls").read_text().splitlines():
        if line.startswith("call "):
            _, n, name, *path = line.split(" ", 3)
            yield int(n), name, path[0] if path else ""


# ---- what is disturbed -----------------------------------------------------------------------------------------------------------

class Training:
    """One of MODELS from its beginning, or (`begun`) from a checkpoint in the middle."""

    def __init__(self, place, name, begun):
        self.name, self.begun, self.place = f"train {name}{' --resume' if begun else ''}", begun, place
        self.flags = [place.text, *SMALL, *MODELS[name]]
        self.truth = place.trained(name)

    def prepare(self, work):
        if self.begun:
            shutil.copytree(self.place.half(self.name.split()[1]), work / "m")

    def words(self, work, resume=None):
        return ["train", *self.flags, "--out", work / "m", *(["--resume"] if (self.begun if resume is None else resume) else [])]

    def same(self, work, done):
        if weights(work / "m") != weights(self.truth):
            done.wrong("the weights are not those of an undisturbed run")
        if losses(work / "m") != losses(self.truth):
            done.wrong(f"log.jsonl is not that of an undisturbed run:\n{losses(work / 'm')}\n{losses(self.truth)}")
        left = [p.name for p in (work / "m").iterdir() if ".writing-" in p.name]
        if left:
            done.wrong(f"left behind: {left}")

    def mend(self, work, done):
        """What its messages say works: --resume, or without it where nothing is to be resumed."""
        again = run(*self.words(work, True))
        if again.code == 2 and not self.begun:
            fresh = run(*self.words(work, False))
            if fresh.code != 0:
                again.err += fresh.err
        else:
            fresh = again
        if fresh.code != 0:
            done.err += "\nthen:\n" + again.err
            done.wrong("neither --resume nor a start anew goes on")
        self.same(work, done)


class Writing:
    """A command that writes files: they are all right, or not there."""

    def __init__(self, place, name, words, outputs):
        self.name, self.template, self.outputs, self.truth = name, words, outputs, {}
        work = Path(tempfile.mkdtemp(dir=place.folder))
        must(*self.words(work))
        self.truth = {o: (work / o).read_bytes() for o in outputs}
        shutil.rmtree(work)

    def prepare(self, work):
        pass

    def words(self, work):
        return [work / w[1:] if str(w).startswith("@") else w for w in self.template]

    def same(self, work, done):
        for o in self.outputs:
            if (work / o).read_bytes() != self.truth[o]:
                done.wrong(f"{o} is not that of an undisturbed run")

    def mend(self, work, done):
        for o in self.outputs:
            if (work / o).exists() and (work / o).read_bytes() != self.truth[o]:
                done.wrong(f"{o} is there, and not whole")
        again = run(*self.words(work))
        if again.code != 0:
            again.wrong("does not go on once nothing fails any more")
        self.same(work, done)


def weights(folder):
    """Its files: the model's, or shards and their index."""
    return {p.name: p.read_bytes() for p in folder.glob("model*.safetensors*") if ".writing-" not in p.name}


def losses(folder):
    text = (folder / "log.jsonl").read_text() if (folder / "log.jsonl").exists() else ""
    try:
        lines = [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return "a broken line in\n" + text
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


class Place:
    """A folder with texts, trained models and their halves, made when asked for."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="linnet-faults-"))
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(p.read_text() for p in sorted((SOURCE / "include").rglob("*.h")))[:40000])
        self.ids = self.folder / "ids.safetensors"
        header = json.dumps({"input_ids": {"dtype": "I64", "shape": [1, 40], "data_offsets": [0, 320]}}).encode()
        header += b" " * (-len(header) % 8)
        self.ids.write_bytes(len(header).to_bytes(8, "little") + header + b"".join((i * 7 % 256).to_bytes(8, "little") for i in range(40)))
        self.op = SOURCE / "tests/goldens/ops/gated_delta_rule/packed.safetensors"
        self.numbers = itertools.count()
        self.scenes = None

    def work(self):
        folder = self.folder / f"work{next(self.numbers)}"
        folder.mkdir()
        return folder

    def trained(self, name):
        out = self.folder / f"{name}-whole" / "m"
        if not out.exists():
            must("train", self.text, *SMALL, *MODELS[name], "--out", out)
        return out

    def half(self, name):
        """A checkpoint of a step before the last: killed where the last quarter of its file calls up to the last checkpoint begins, or, where many of
        them cut shards, the last half."""
        out = self.folder / f"{name}-half" / "m"
        if not out.exists():
            out.parent.mkdir()
            words = ["train", self.text, *SMALL, *MODELS[name], "--out"]
            count = self.folder / "count" / "m"
            shutil.rmtree(count.parent, ignore_errors=True)
            count.parent.mkdir()
            must(*words, count, fault=("each", 0, count))
            calls = max(n for n, name, path in each_call(count) if name == "fclose" and path.endswith("train_state.safetensors"))
            run(*words, out, fault=("kill", calls // 2 if "--shard-size" in words else calls * 3 // 4, out))
        return out

    def gpt2(self):
        out = self.folder / "gpt2"
        if not out.exists():
            out.mkdir()
            (out / "vocab.json").write_text(json.dumps({chr(c): c for c in range(33, 127)} | {"ab": 127, "the": 128, "th": 129}))
            (out / "merges.txt").write_text("#version: 0.2\na b\nt h\nth e\n")
        return out

    def goldens(self):
        return sorted((SOURCE / "tests/goldens/fla").iterdir())

    def all_scenes(self):
        if self.scenes is None:
            m = self.trained("delta")
            self.scenes = [Training(self, name, begun) for name in MODELS for begun in (False, True)] + [
                Writing(self, "eval", ["eval", m, self.text, "--max-tokens", "256", "--length", "64", "--csv", "@a.csv", "--plot", "@a.svg"], ["a.csv", "a.svg"]),
                Writing(self, "logits", ["logits", m, self.ids, "@out.safetensors"], ["out.safetensors"]),
                Writing(self, "op", ["op", "gated_delta_rule", self.op, "@out.safetensors", "--backward"], ["out.safetensors"])]
        return self.scenes


# ---- parts -----------------------------------------------------------------------------------------------------------------------

def drawn(rng, deadline, least, draw):
    """What `draw` gives, until the time is over and there are enough."""
    runs = 0
    while time.monotonic() < deadline or runs < max(least, tool["cases"]):
        yield draw()
        runs += 1


def calls_of(place, scene, kind):
    """How many calls (files', or the allocator's) an undisturbed run of the scene makes."""
    work = place.work()
    scene.prepare(work)
    must(*scene.words(work), fault=(kind, 0, work))
    n = counted(work)[1]
    shutil.rmtree(work)
    if not n:
        raise Finding(f"{scene.name}: the preloaded library sees no calls")
    return n


def disturbed(place, rng, deadline, modes):
    """One call in one mode of one scene at a time."""
    runs = 0
    kind = "memory" if modes == ["memory"] else "error"
    scenes = place.all_scenes()
    sizes = {scene: calls_of(place, scene, kind) for scene in scenes}

    def draw():
        scene = rng.choice(scenes)
        return scene, rng.choice(modes), rng.randint(1, sizes[scene])
    if tool["every"]:
        k, n = tool["every"]
        cases = itertools.islice(((scene, mode, at) for scene in scenes for at in range(1, sizes[scene] + 1) for mode in modes), k, None, n)
    else:
        cases = drawn(rng, deadline, len(modes), draw)
    for scene, mode, at in cases:
        work = place.work()
        scene.prepare(work)
        done = run(*scene.words(work), fault=(mode, at, work))
        if counted(work)[0]:
            done.words.insert(0, f"# {counted(work)[0]}:")
        killed = done.code == -signal.SIGKILL and "LINNET_FAULT_MODE=kill" in done.words
        if not killed:
            well_behaved(done)
        if done.code == 0:
            scene.same(work, done)
        else:
            scene.mend(work, done)
        shutil.rmtree(work)
        runs += 1
    return f"{runs} runs, {sum(sizes.values())} places in {len(sizes)} commands"


def calls(place, rng, deadline):
    return disturbed(place, rng, deadline, MODES)


def memory(place, rng, deadline):
    return disturbed(place, rng, deadline, ["memory"])


def inside_saves(place, scene):
    """The calls of an undisturbed run that lie inside its saves, from the first temporary file to the last name; and those of them that are no writing of
    bytes: the moments between files."""
    work = place.work()
    scene.prepare(work)
    must(*scene.words(work), fault=("each", 0, work))
    begun, inside, between = False, [], []
    for n, name, last in each_call(work):
        begun = begun or (name == "open" and "/train_state.safetensors.writing-" in f"/{last}")
        if begun:
            inside.append(n)
            if name != "fwrite":
                between.append(n)
        begun = begun and not (name == "fclose" and last.endswith("train_state.safetensors"))
    shutil.rmtree(work)
    if len(between) < 20:
        raise Finding(f"{scene.name}: no saves are seen among its calls")
    return inside, between


def kills(place, rng, deadline):
    """kill -9 at random moments, every fourth inside a save (half of those where a file is opened, flushed, named); resumed."""
    runs, inside, saves, kinds = 0, 0, {}, {}
    trainings = [s for s in place.all_scenes() if isinstance(s, Training)]
    for scene in drawn(rng, deadline, 4, lambda: rng.choice(trainings)):
        work = place.work()
        scene.prepare(work)
        begin = time.monotonic()
        must(*scene.words(work))
        whole = time.monotonic() - begin
        shutil.rmtree(work)
        work.mkdir()
        scene.prepare(work)
        if runs % 4 == 3:
            if scene not in saves:
                saves[scene] = inside_saves(place, scene)
            done = run(*scene.words(work), fault=("kill", rng.choice(saves[scene][inside % 2]), work))
            if done.code != -signal.SIGKILL:
                done.wrong("was to be killed inside a save")
            inside += 1
        else:
            done = run(*scene.words(work), kill_after=rng.uniform(0, whole))
        scene.mend(work, done)
        kinds[scene.name] = kinds.get(scene.name, 0) + 1
        shutil.rmtree(work)
        runs += 1
    return f"{runs} kills, {inside} of them inside a save; {', '.join(f'{n} of {name}' for name, n in sorted(kinds.items()))}"


HOSTILE = [b"-1", b"0", b"1e999", b"NaN", b"2147483648", b"4294967295", b"9223372036854775807", b"18446744073709551616", b"1e-300", b"null", b"true", b"[]",
           b"{}", b'""', b"0.5"]


def mutate(rng, data):
    """Bytes that nobody vouches for, near those that are right: cut, stretched, overwritten, numbers of their JSON changed, words exchanged."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        n, at = len(data), rng.randrange(len(data) + 1)
        what = rng.randrange(8)
        if what == 0:
            del data[at:]
        elif what == 1:
            del data[at:at + rng.choice([1, 2, 8, 100])]
        elif what == 2:
            data[at:at] = bytes(rng.choice([0, 0xff, 0x22, 0x7b, 0x20, 0x80]) for _ in range(rng.choice([1, 8, 300])))
        elif what == 3 and n:
            for _ in range(rng.choice([1, 4, 32])):
                data[rng.randrange(n)] ^= 1 << rng.randrange(8)
        elif what == 4 and n:
            other = rng.randrange(n)
            data[at:at + 16] = data[other:other + 16]
        elif what == 5 and n >= 8:  # the first eight bytes are a size in safetensors files
            data[:8] = rng.choice([0, 1, n, n - 8, 2**63 - 1, 2**64 - 1, rng.randrange(2 * n)]).to_bytes(8, "little")
        else:
            words = list(re.finditer(rb"-?\d+(?:\.\d+)?(?:e-?\d+)?|true|false|null", data[:65536])) if what == 6 else \
                list(re.finditer(rb'"[^"\\\n]{1,40}"', data[:65536]))
            if words:
                w = rng.choice(words)
                data[w.start():w.end()] = rng.choice(HOSTILE) if what == 6 else rng.choice(words).group(0)
    return bytes(data)


TALK = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "chat_template": "{% for m in messages %}{{'<|im_start|>' + m['role'] + m['content'] + '<|im_end|>'}}{% endfor %}"}
PASSAGES = "".join(json.dumps({"text": f"{i} linnets sang {i * i} songs", "id": i}) + "\n" for i in range(20))


def reader(place, rng, work, name):
    """A command that reads a folder or a file which is about to be hostile: (its words, the folder or file, its input)."""
    m, seeds = work / "m", SOURCE / "tests/fuzz/corpus"
    evaluate = ["--max-tokens", "64", "--length", "32"]

    def model():
        shutil.copytree(rng.choice([place.trained(name), place.half(name)]), m)
        return m

    def text(name, data):
        (work / name).write_bytes(data)
        return work / name

    def tokenizer():
        seed = rng.choice(sorted((seeds / "tokenizer").iterdir())).read_bytes().split(b"\0")[0]
        (work / "t").mkdir()
        (work / "t/tokenizer.json").write_bytes(seed)
        return work / "t"

    def talk():
        (model() / "tokenizer_config.json").write_text(json.dumps(TALK))
        (m / "generation_config.json").write_text('{"eos_token_id": [10, 0]}')
        return text("said", b"who sang?\nhow many?\n")
    copy = lambda file, to: Path(shutil.copy(file, work / to))
    packed = lambda: text("packed", rng.choice([(seeds / "text" / f).read_bytes()[1:] for f in ("gzip", "xz", "zstd", "plain")]))
    make = {
        "inspect": lambda: (["inspect", model()], m, None),
        "eval": lambda: (["eval", model(), place.text, *evaluate, "--csv", work / "a.csv"], m, None),
        "generate": lambda: (["generate", model(), "--prompt", "ab", "--tokens", "4"], m, None),
        "draft": lambda: (["generate", place.trained(name), "--draft", model(), "--prompt", "ab", "--tokens", "4"], m, None),
        "resume": lambda: (["train", place.text, *SMALL, *MODELS[name], "--out", model(), "--resume"], m, None),
        "compare": lambda: (["compare", model(), place.trained(name), "--out", work / "page"], m, None),
        "logits": lambda: (["logits", place.trained(name), ids := copy(place.ids, "ids.safetensors"), work / "out.safetensors",
                            *rng.choice([[], ["--step"]])], ids, None),
        "op": lambda: (["op", "gated_delta_rule", op := copy(place.op, "op.safetensors"), work / "out.safetensors", "--backward"], op, None),
        "gpt2": lambda: (["eval", place.trained(name), place.text, *evaluate, "--tokenizer", t := shutil.copytree(place.gpt2(), work / "gpt2")], Path(t), None),
        "shards": lambda: (["eval", shutil.copytree(place.trained("shards"), m), place.text, *evaluate], m, None),
        "golden": lambda: (["inspect", shutil.copytree(rng.choice(place.goldens()), m)], m, None),
        "tokenize": lambda: (["tokenize", t := tokenizer(), place.text, *rng.choice([["--count"], ["--pieces", "--template"], ["--plain", "--lines"]])], t, None),
        "decode": lambda: (["tokenize", tokenizer(), ids := text("ids", b"3 1 4, 1 5 9 2 6"), "--decode", "--special"], ids, None),
        "packed": lambda: (["eval", place.trained(name), p := packed(), *evaluate], p, None),
        "train packed": lambda: (["train", p := packed(), *SMALL, *MODELS[name], "--out", m], p, None),
        "field": lambda: (["eval", place.trained(name), p := text("lines", PASSAGES.encode()), "--field", "text", *evaluate], p, None),
        "lambada": lambda: (["task", "lambada", place.trained(name), p := text("lines", PASSAGES.encode()), "--examples", "2"], p, None),
        "chat": lambda: (given := talk(), (["chat", m, "--tokens", "2", "--context", "512"], m, given))[1],
        "chat input": lambda: (given := talk(), (["chat", m, "--tokens", "2", "--context", "512", "--chat-template", "plain"], given, given))[1],
    }
    return make[rng.choice(sorted(make))]()


def folders(place, rng, deadline):
    """Whole folders with a hostile file in them, and the commands that read them."""
    runs, codes = 0, {}
    binary = tool["sanitized"]
    slowest = (0.0, "")
    for name in drawn(rng, deadline, 4, lambda: rng.choice(list(MODELS))):
        work = place.work()
        command, victim, given = reader(place, rng, work, name)
        file = rng.choice(sorted(victim.iterdir())) if victim.is_dir() else victim
        chance = rng.random()
        if chance < 0.02 and file != given:
            file.unlink()
        elif chance < 0.04 and file != given:
            file.unlink()
            file.mkdir()
        elif chance < 0.06:
            file.write_bytes(rng.choice([place.op, place.ids, place.text]).read_bytes())
        else:
            file.write_bytes(mutate(rng, file.read_bytes()))
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        done = run(*command, binary=binary, cpu=SECONDS_OF_CPU * (4 if binary else 1), given=given or os.devnull)
        spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        slowest = max(slowest, (spent, f"{command[0]} {file.name}"))
        try:
            well_behaved(done)
            if "failed to allocate" in done.err:
                done.wrong(f"asked for more than {LARGEST} MiB at once")
            if not binary and done.megabytes > MEGABYTES:
                done.wrong(f"touched {done.megabytes:.0f} MiB")
        except Finding as f:
            kept = Path(tempfile.mkdtemp(prefix="linnet-finding-"))
            shutil.copytree(work, kept, dirs_exist_ok=True)
            raise Finding(f"{f}\n  {file.relative_to(work)} is the hostile one; the folder is kept at {kept}") from None
        codes[done.code] = codes.get(done.code, 0) + 1
        shutil.rmtree(work)
        runs += 1
    return f"{runs} mutants, {codes.get(0, 0)} accepted, {codes.get(2, 0)} refused; slowest {slowest[0]:.2f} s of {slowest[1]}"


# sizes of a small model, of which one fits each layer and pair of layers: some have no heads, some theirs from other keys
SIZES = [["--heads", "2"], [], ["--heads", "2", "--set", "head_dim=16"], ["--set", "head_dim=16"], ["--set", "expand_ratio=16"]]
BRIEF = ["--width", "32", "--layers", "2", "--batch", "2", "--length", "32", "--steps", "2", "--warmup", "1", "--eval-every", "0", "--eval-tokens", "64"]


def pairs(place, rng, deadline):
    """Every ordered pair of layers: trained, loaded, resumed. What linnet writes, linnet reads."""
    kinds = [json.loads(line) for line in must("mixers", "--json").out.splitlines()]
    names = [kind["mixer"] for kind in kinds if "mixer" in kind]
    everything = list(itertools.product(names, names))
    if tool["every"]:
        k, n = tool["every"]
        chosen = everything[k::n]
    else:
        chosen = rng.sample(everything, len(everything))
    runs = 0
    for a, b in chosen:
        if not tool["every"] and time.monotonic() > deadline and runs >= max(1, tool["cases"]):
            break
        work = place.work()
        for sizes in SIZES:
            words = ["train", place.text, *BRIEF, *sizes, "--pattern", f"{a},{b}", "--out", work / "m"]
            done = run(*words)
            well_behaved(done)
            if done.code == 0:
                break
            if (work / "m/model.safetensors").exists():
                done.wrong("refused, and something is there")
        else:
            done.wrong("no size fits this pair")
        must("eval", work / "m", place.text, "--max-tokens", "64", "--length", "32")
        must(*words, "--resume")
        shutil.rmtree(work)
        runs += 1
    return f"{runs} of {len(everything)} pairs of {', '.join(names)}"


def of_generated_code(error):
    """oneDNN writes its products' code at run time and lets it read past its own buffers: code that lies in no file, on memory that linnet has not asked for.
    Such code on a block of linnet's is an error of linnet's, in a product's sizes."""
    stacks = error.findall("stack")
    if len(stacks) == 0 or stacks[0].find("frame/obj") is not None:
        return False
    owners = [frame.findtext("obj", "") for frame in stacks[1].findall("frame")] if len(stacks) > 1 else []
    asked = next((o for o in owners if "vgpreload" not in o and "libc.so" not in o), "")
    return "libdnnl" in asked or not owners


def valgrind(place, rng, deadline):
    """A training step, a generation, an evaluation and an operator: no error, nothing lost."""
    del rng, deadline
    m = place.trained("delta")
    work = place.work()
    commands = [["train", place.text, *SMALL, *MODELS["delta"], "--steps", "1", "--out", work / "m"], ["generate", m, "--prompt", "ab", "--tokens", "4"],
                ["eval", m, place.text, "--max-tokens", "64", "--length", "32"], ["op", "gated_delta_rule", place.op, work / "out.safetensors", "--backward"]]
    for command in commands:
        errors = work.parent / "valgrind.xml"
        words = ["valgrind", "-q", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite", "--xml=yes", f"--xml-file={errors}",
                 tool["linnet"], *map(str, command)]
        known = {"LINNET_CPU": "avx2"} if os.uname().machine == "x86_64" else {}  # it knows no AVX-512
        done = subprocess.run(words, env=environment(known), capture_output=True, encoding="utf-8", errors="replace")
        ours = [e for e in ElementTree.parse(errors).getroot().iter("error") if not of_generated_code(e)]
        if done.returncode not in (0, 99) or ours:
            shown = "\n".join(ElementTree.tostring(e, encoding="unicode") for e in ours[:3])
            raise Finding(f"valgrind\n  {' '.join(words)}\n  ended with {done.returncode}, {len(ours)} errors\n{done.stderr[-3000:]}\n{shown[:6000]}")
    return f"{len(commands)} commands"


PARTS = {"calls": (calls, 3), "memory": (memory, 2), "kills": (kills, 2), "folders": (folders, 4), "pairs": (pairs, 1)}


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("linnet")
    a.add_argument("parts", nargs="*", default=[])
    a.add_argument("--seconds", type=float, default=60)
    a.add_argument("--cases", type=int, default=0, help="of each part at least, however long it takes")
    a.add_argument("--every", nargs="?", const="0/1", help="each call in each mode; K/N: that part of them")
    a.add_argument("--seed", type=int, default=0)
    a.add_argument("--sanitized", help="a build with sanitizers, for hostile files")
    a.add_argument("--valgrind", action="store_true")
    a = a.parse_intermixed_args()
    tool["linnet"] = os.path.abspath(a.linnet)
    tool["library"] = Path(tool["linnet"]).parent / "tests/faults/libfail_calls.so"
    tool["sanitized"] = os.path.abspath(a.sanitized) if a.sanitized else None
    tool["cases"], tool["every"] = a.cases, tuple(map(int, a.every.split("/"))) if a.every else None
    chosen = {name: PARTS[name] for name in PARTS if not a.parts or name in a.parts}
    if a.valgrind or "valgrind" in a.parts:
        chosen["valgrind"] = (valgrind, 0)
    passed = failed = skipped = 0
    place = Place()
    shares = sum(share for _, share in chosen.values())
    seed = a.seed or random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    for name, (part, share) in chosen.items():
        if name == "valgrind" and not shutil.which("valgrind"):
            skipped += 1
            print("skipped valgrind: not installed", flush=True)
            continue
        begin = time.monotonic()
        try:
            result = part(place, random.Random(f"{seed}{name}"), begin + a.seconds * share / max(1, shares))
            passed += 1
            print(f"ok      {name}: {result}  ({time.monotonic() - begin:.0f} s)", flush=True)
        except Finding as finding:
            failed += 1
            print(f"FAILED  {name}: {finding}", flush=True)
    shutil.rmtree(place.folder, ignore_errors=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

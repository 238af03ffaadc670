"""Training, resuming, evaluating and writing with a small model."""
import csv
import json
import math
import random
import shlex
import signal
import struct
import subprocess
import tempfile
from pathlib import Path

import harness
from harness import SOURCE, case, files_below, floats, linnet, read_safetensors, refused, start, write_safetensors

# Small enough for a step in hundredths of a second.
SMALL = ["--mixer", "gated_deltanet", "--set", "hidden_size=32", "--set", "num_hidden_layers=2", "--set", "num_heads=2", "--set", "head_dim=16",
         "--set", "expand_v=1", "--batch", "2", "--length", "32", "--steps", "20", "--warmup", "2", "--eval-every", "10", "--eval-tokens", "512",
         "--save-every", "5"]

_cache = {}


def text_file():
    """The project's own words, 60 kB."""
    if "text" not in _cache:
        folder = Path(tempfile.mkdtemp(prefix="linnet-commands-"))
        _cache["folder"] = folder
        words = "".join(p.read_text() for p in sorted((SOURCE / "src").rglob("*.h")))
        (folder / "text.txt").write_text(words[:60000])
        _cache["text"] = folder / "text.txt"
    return _cache["text"]


def model():
    """A model of 20 undisturbed steps."""
    if "model" not in _cache:
        out = text_file().parent / "model"
        linnet("train", text_file(), "--out", out, *SMALL)
        _cache["model"] = out
    return _cache["model"]


def weights(folder):
    return (Path(folder) / "model.safetensors").read_bytes()


@case("train leaves config.json, model.safetensors, tokenizer.json, what --resume needs and a log of every step")
def train_files(_):
    out = model()
    names = {p.name for p in out.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "train_state.safetensors", "log.jsonl"} <= names, names
    assert json.loads((out / "config.json").read_text())["model_type"] == "gated_deltanet"
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in log if "loss" in line]
    assert len(losses) == 20 and all(math.isfinite(x) for x in losses) and losses[-1] < losses[0], losses


@case("train in a pipe prints plain lines, with --json one line for each step")
def train_prints(folder):
    done = linnet("train", text_file(), "--out", folder / "a", *SMALL)
    assert "\033" not in done.out and "\r" not in done.out
    assert "bits/byte" in done.out and "trained 20 steps" in done.out
    lines = [json.loads(line) for line in linnet("train", text_file(), "--out", folder / "b", *SMALL, "--json").out.splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert any("eval_bits_per_byte" in line for line in lines)


@case("the same training on one and on two threads gives the same bytes")
def train_threads(folder):
    linnet("train", text_file(), "--out", folder / "one", *SMALL, "--threads", "1")
    linnet("train", text_file(), "--out", folder / "two", *SMALL, "--threads", "2")
    assert weights(folder / "one") == weights(folder / "two") == weights(model())


def wait_for_step(process, step):
    for line in process.stdout:
        if json.loads(line)["step"] >= step:
            return


def resumed_equals(out, more=()):
    linnet("train", text_file(), "--out", out, *SMALL, *more, "--resume")
    assert weights(out) == weights(model()), "the resumed run differs from the undisturbed one"
    steps = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    undisturbed = [json.loads(line) for line in (model() / "log.jsonl").read_text().splitlines()]
    curve = lambda log: [(x["step"], x["loss"]) for x in log if "loss" in x]
    assert curve(steps) == curve(undisturbed), "the loss curves differ"


@case("Ctrl-C saves, ends with 130 and prints a command that goes on, bit for bit")
def interrupt(folder):
    out = folder / "my model"
    p = start("train", text_file(), "--out", out, *SMALL, "--json")
    wait_for_step(p, 7)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 130, (p.returncode, err)
    assert len(err.splitlines()) == 1 and "--resume" in err, err
    command = shlex.split(err.split("to go on: ", 1)[1])
    assert command[0] == "linnet"
    done = subprocess.run([harness.LINNET, *command[1:]], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert weights(out) == weights(model())


@case("SIGTERM saves too, and --resume gives the bytes of an undisturbed run")
def terminate(folder):
    p = start("train", text_file(), "--out", folder / "m", *SMALL, "--json")
    wait_for_step(p, 12)
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=60)
    assert p.returncode == 130
    resumed_equals(folder / "m")


@case("kill -9 at random moments loses nothing saved: resumed, the run gives the bytes and the curve of an undisturbed one")
def kill(folder):
    moments = random.SystemRandom()
    step = moments.randint(5, 18)  # a checkpoint is written every 5 steps
    p = start("train", text_file(), "--out", folder / "m", *SMALL, "--json")
    wait_for_step(p, step)
    p.kill()
    p.communicate()
    p = start("train", text_file(), "--out", folder / "m", *SMALL, "--json", "--resume")
    wait_for_step(p, moments.randint(step, 19))
    p.kill()
    p.communicate()
    resumed_equals(folder / "m")


@case("a checkpoint is not overwritten by accident, and --resume wants the same texts")
def overwrite(folder):
    out = folder / "m"
    linnet("train", text_file(), "--out", out, *SMALL)
    before = files_below(out)
    refused("train", text_file(), "--out", out, *SMALL, says=["already holds a checkpoint", "--resume"])
    assert files_below(out) == before
    other = folder / "other.txt"
    other.write_text("something else entirely " * 500)
    refused("train", other, "--out", out, *SMALL[:-6], "--steps", "30", "--resume")
    assert files_below(out) == before
    refused("train", text_file(), "--out", folder / "fresh", *SMALL, "--resume", says=["fresh"])


@case("train --dtype bf16, --accumulate, --recompute, --isolate-documents and --minutes work on a small model")
def train_flags(folder):
    linnet("train", text_file(), "--out", folder / "a", *SMALL, "--dtype", "bf16")
    linnet("train", text_file(), "--out", folder / "b", *SMALL, "--accumulate", "2", "--isolate-documents")
    linnet("train", text_file(), "--out", folder / "c", *SMALL, "--recompute")
    assert weights(folder / "c") == weights(model()), "recomputing must not change a bit"
    linnet("train", text_file(), "--out", folder / "c2", "--recompute", "cheap", *SMALL)
    assert weights(folder / "c2") == weights(model())
    linnet("train", "--recompute", text_file(), "--out", folder / "c3", *SMALL)
    assert weights(folder / "c3") == weights(model()), "what follows --recompute and is no way of recomputing is a text"
    refused("train", text_file(), "--out", folder / "c4", *SMALL, "--recompute=some", says=["--recompute", "some", "blocks|cheap"])
    assert "--recompute [blocks|cheap]" in linnet("train", "--help").out
    unlimited = [x for i, x in enumerate(SMALL) if x != "--steps" and SMALL[i - 1] != "--steps"]
    linnet("train", text_file(), "--out", folder / "d", *unlimited, "--minutes", "0.02")


@case("train --weights bf16 keeps matrices in bf16 alone, resumes bit for bit, and wants --dtype bf16")
def bf16_weights(folder):
    flags = [*SMALL, "--dtype", "bf16", "--weights", "bf16"]
    linnet("train", text_file(), "--out", folder / "whole", *flags)
    p = start("train", text_file(), "--out", folder / "m", *flags, "--json")
    wait_for_step(p, 12)
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=60)
    assert p.returncode == 130
    linnet("train", text_file(), "--out", folder / "m", *flags, "--resume")
    assert weights(folder / "m") == weights(folder / "whole")
    first, last = ([json.loads(x)["loss"] for x in (folder / "whole" / "log.jsonl").read_text().splitlines()][i] for i in (0, -1))
    assert last < first - 0.3, (first, last)
    refused("train", text_file(), "--out", folder / "f32", *SMALL, "--weights", "bf16", says=["--dtype bf16"])


@case("train --moments bf16 learns as well, and resumes bit for bit, with float32 weights and without")
def bf16_moments(folder):
    def loss(run):
        return [json.loads(x)["loss"] for x in (folder / run / "log.jsonl").read_text().splitlines()]
    for name, kept in (("masters", []), ("alone", ["--dtype", "bf16", "--weights", "bf16"])):
        flags = [*SMALL, *kept, "--moments", "bf16"]
        linnet("train", text_file(), "--out", folder / name, *flags)
        linnet("train", text_file(), "--out", folder / f"{name} f32", *SMALL, *kept)
        p = start("train", text_file(), "--out", folder / f"{name} m", *flags, "--json")
        wait_for_step(p, 12)
        p.send_signal(signal.SIGTERM)
        p.communicate(timeout=60)
        assert p.returncode == 130
        linnet("train", text_file(), "--out", folder / f"{name} m", "--resume")
        assert weights(folder / f"{name} m") == weights(folder / name)
        with_f32 = loss(f"{name} f32")
        assert loss(name) != with_f32 and abs(loss(name)[-1] - with_f32[-1]) < 0.1, (loss(name)[-1], with_f32[-1])
    refused("train", text_file(), "--out", folder / "masters m", "--resume", "--moments", "f32", says=["moments is f32", "bf16"])
    refused("train", text_file(), "--out", folder / "m", *SMALL, "--moments", "f16", says=["--moments", "f16", "bf16"])


@case("train with a random number of solver steps resumes bit for bit, and differentiating the steps is another training")
def solver_steps(folder):
    mesa = [x for i, x in enumerate(SMALL) if "expand_v=1" not in SMALL[i:i + 2]]
    mesa += ["--mixer", "mesa_net", "--set", "cg_tolerance=0", "--set", "max_cg_step_training=4"]
    drawn = [*mesa, "--set", "min_cg_step_training=0", "--set", "cg_gradient=unrolled"]
    linnet("train", text_file(), "--out", folder / "whole", *drawn)
    p = start("train", text_file(), "--out", folder / "m", *drawn, "--json")
    wait_for_step(p, 8)
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=60)
    assert p.returncode == 130
    linnet("train", text_file(), "--out", folder / "m", *drawn, "--resume")
    assert weights(folder / "m") == weights(folder / "whole")
    linnet("train", text_file(), "--out", folder / "same", *mesa, "--set", "min_cg_step_training=4")
    linnet("train", text_file(), "--out", folder / "fixed", *mesa)
    linnet("train", text_file(), "--out", folder / "unrolled", *mesa, "--set", "cg_gradient=unrolled")
    assert weights(folder / "same") == weights(folder / "fixed")
    assert len({weights(folder / x) for x in ("whole", "fixed", "unrolled")}) == 3
    first, last = ([json.loads(x)["loss"] for x in (folder / "whole" / "log.jsonl").read_text().splitlines()][i] for i in (0, -1))
    assert last < first, (first, last)
    refused("train", text_file(), "--out", folder / "r", *mesa, "--set", "min_cg_step_training=5", says=["min_cg_step_training", "at most"])
    refused("train", text_file(), "--out", folder / "r", *mesa, "--set", "cg_solver=flash", "--set", "cg_gradient=unrolled", says=["unrolled", "flash"])


@case("train --train-tokenizer learns a BPE of the size asked for, and eval and generate use it")
def bpe(folder):
    out = folder / "m"
    linnet("train", text_file(), "--out", out, *SMALL, "--train-tokenizer", "300")
    assert json.loads((out / "config.json").read_text())["vocab_size"] == 300
    r = json.loads(linnet("eval", out, text_file(), "--max-tokens", "2000", "--json").out)
    assert r["bytes"] > r["tokens"]
    linnet("generate", out, "--prompt", "int ", "--tokens", "10")


@case("eval: perplexity, bits per byte, CSV and plot agree with each other")
def evaluate(folder):
    r = json.loads(linnet("eval", model(), text_file(), "--length", "64", "--max-tokens", "4096", "--json", "--csv", folder / "loss.csv",
                          "--plot", folder / "loss.svg").out)
    assert math.isclose(r["perplexity"], math.exp(r["nats_per_token"]), rel_tol=1e-6)
    assert math.isclose(r["bits_per_byte"], r["nats_per_token"] * r["tokens"] / math.log(2) / r["bytes"], rel_tol=1e-6)
    rows = list(csv.DictReader((folder / "loss.csv").open()))
    assert 0 < len(rows) <= 64 and {"position", "loss"} <= set(rows[0]), rows[0]
    assert "<svg" in (folder / "loss.svg").read_text()[:300]
    text = linnet("eval", model(), text_file(), "--length", "64", "--max-tokens", "4096").out
    assert "bits per byte" in text and "perplexity" in text


@case("eval --stride: windows that overlap are the windows of the text and of the text from the stride on")
def overlap(folder):
    text = text_file().read_bytes()[:4 * 64 + 32 + 1]
    (folder / "whole").write_bytes(text)
    (folder / "head").write_bytes(text[:-32])
    (folder / "tail").write_bytes(text[32:])
    def score(name, *more):
        return json.loads(linnet("eval", model(), folder / name, "--length", "64", "--json", *more).out)
    both, parts = score("whole", "--stride", "32", "--csv", folder / "loss.csv"), [score("head"), score("tail")]
    assert both["tokens"] == 512 == sum(p["tokens"] for p in parts) and both["bytes"] == 288
    assert math.isclose(both["nats_per_token"], sum(p["nats_per_token"] for p in parts) / 2, rel_tol=1e-6)
    assert {row["windows"] for row in csv.DictReader((folder / "loss.csv").open())} == {"8"}
    assert score("whole", "--stride", "50")["tokens"] == 5 * 64 + 38, "the last window is the first to reach the end"
    refused("eval", model(), folder / "whole", "--length", "64", "--stride", "65", says=["--stride is 65", "64"])


@case("generate --greedy gives the same text twice and for any thread count; seeds repeat and differ")
def generate(_):
    ask = ["generate", model(), "--prompt", "static int ", "--tokens", "40"]
    greedy = {linnet(*ask, "--greedy", *more).stdout for more in ([], ["--threads", "1"], ["--seed", "9"])}
    assert len(greedy) == 1
    draws = [linnet(*ask, "--seed", seed).stdout for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert linnet(*ask, "--top-k", "1").stdout in greedy, "the only one of one"


@case("generate reads a prompt from flag, file and standard input alike; --echo repeats it; --tokens 0 writes nothing")
def prompts(folder):
    (folder / "p.txt").write_text("héllo €")
    ask = ["generate", model(), "--tokens", "20", "--greedy"]
    one = linnet(*ask, "--prompt", "héllo €").stdout
    assert one == linnet(*ask, "--prompt-file", folder / "p.txt").stdout == linnet(*ask, "-", stdin="héllo €".encode()).stdout
    assert linnet(*ask, "--prompt", "héllo €", "--echo").stdout == "héllo €".encode() + one
    assert linnet("generate", model(), "--prompt", "a", "--tokens", "0").stdout == b"\n"


@case("generate --json gives text and counts; the state of a recurrent model does not grow with the length")
def generate_json(_):
    short, long = (json.loads(linnet("generate", model(), "--prompt", "a b", "--tokens", n, "--json", "--past-separator").out) for n in (5, 200))
    assert short["prompt_tokens"] == 3 and short["tokens"] == 5 and long["tokens"] == 200
    assert short["state_bytes"] == long["state_bytes"] > 0


@case("generate --stop ends the text, --samples writes several, --repetition-penalty and --min-p change it, --logprobs tells what the model gave")
def generate_ways(_):
    ask = ["generate", model(), "--prompt", "static int ", "--tokens", "40", "--past-separator"]
    whole = linnet(*ask, "--greedy").stdout
    cut = whole[20:23].decode()
    assert linnet(*ask, "--greedy", "--stop", "nothing of it", "--stop", cut).stdout == whole[:whole.find(cut.encode())] + b"\n"
    assert json.loads(linnet(*ask, "--greedy", "--stop", cut, "--json").out)["ended"] == "stop"
    assert json.loads(linnet(*ask, "--json").out)["ended"] == "length"
    one, two = (linnet(*ask, "--seed", seed).stdout for seed in (7, 8))
    assert linnet(*ask, "--seed", 7, "--samples", 2).stdout == b"--- 1 of 2, seed 7\n" + one + b"\n--- 2 of 2, seed 8\n" + two
    assert linnet(*ask, "--greedy", "--repetition-penalty", "50").stdout != whole
    assert linnet(*ask, "--min-p", "1").stdout == whole, "the only one of one"
    refused(*ask, "--logprobs", "1000", says=["--logprobs is 1000, expected at most the vocabulary's 256"])
    lines = [json.loads(line) for line in linnet(*ask, "--greedy", "--logprobs", "2").out.splitlines()]
    assert len(lines) == 40 and all(line["logprob"] == line["top"][0]["logprob"] >= line["top"][1]["logprob"] for line in lines)
    assert linnet(*ask, "--stop", "", code=2).err.startswith("linnet: --stop is")


@case("Ctrl-C ends generate with 130 after what was written so far")
def generate_interrupt(_):
    p = start("generate", model(), "--prompt", "a", "--tokens", "100000000", "--greedy")
    assert p.stdout.read(20)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=30)
    assert p.returncode == 130


@case("logits of a file: shape and type, token by token the same within rounding, wrong ids refused")
def logits(folder):
    ids = [random.Random(3).randrange(256) for _ in range(2 * 17)]
    write_safetensors(folder / "ids.safetensors", {"input_ids": ("I64", (2, 17), struct.pack("<34q", *ids))})
    linnet("logits", model(), folder / "ids.safetensors", folder / "a.safetensors")
    linnet("logits", model(), folder / "ids.safetensors", folder / "b.safetensors", "--step")
    a, b = (read_safetensors(folder / f"{x}.safetensors")["logits"] for x in "ab")
    assert a[0] == "F32" and a[1] == [2, 17, 256] == b[1]
    difference = max(abs(x - y) for x, y in zip(floats(a), floats(b)))
    assert difference < 1e-4, difference
    for bad in (256, -1):
        ids[5] = bad
        write_safetensors(folder / "ids.safetensors", {"input_ids": ("I64", (2, 17), struct.pack("<34q", *ids))})
        refused("logits", model(), folder / "ids.safetensors", folder / "c.safetensors", says=[str(bad)])
        assert not (folder / "c.safetensors").exists()
    write_safetensors(folder / "ids.safetensors", {"ids": ("I64", (2, 17), struct.pack("<34q", *ids))})
    refused("logits", model(), folder / "ids.safetensors", folder / "c.safetensors", says=["input_ids"])

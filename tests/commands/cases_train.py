"""What a training may lose: nothing. Folders that were begun, interrupted, shared; settings that change; kills and signals at any moment."""
import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import harness
from cases_models import SMALL, model, resumed_equals, text_file, wait_for_step, weights
from harness import case, files_below, linnet, read_safetensors, refused, start, write_safetensors

STATE = "train_state.safetensors"


def flags_but(*names, of=SMALL):
    """The flags without some, each with its value."""
    out = []
    for flag, value in zip(of[::2], of[1::2]):
        if flag not in names:
            out += [flag, value]
    return out


def state_metadata(folder):
    raw = (folder / STATE).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + size])["__metadata__"]


def interrupted(out, step, *more, flags=SMALL):
    """A run that was stopped after `step`, with a checkpoint of it."""
    p = start("train", text_file(), "--out", out, *flags, *more, "--json")
    wait_for_step(p, step)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=60)
    assert p.returncode == 130, p.returncode
    return out


def curve(folder):
    return [(x["step"], x["loss"]) for x in map(json.loads, (folder / "log.jsonl").read_text().splitlines())]


def nothing_beside(folder):
    names = {p.name for p in folder.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", STATE, "log.jsonl", "page.svg"}, names


# ---- folders -------------------------------------------------------------------------------------------------------------------

@case("a first checkpoint that finds a full disk leaves a begun folder: the same command starts it again, --resume says so")
def begun_by_full_disk(folder):
    out = folder / "m"
    sizes = [(model() / name).stat().st_size for name in ("model.safetensors", STATE)]
    for limit in (10000, (sizes[0] + sizes[1]) // 2):  # neither file has room, one of the two has
        done = refused("train", text_file(), "--out", out, *SMALL, file_limit=limit, says=["File too large", "same command"])
        assert "No checkpoint" in done.err, done.err
        assert {"train.begun", "tokenizer.json"} <= set(files_below(out)) and not (out / "model.safetensors").exists(), sorted(files_below(out))
        refused("train", text_file(), "--out", out, *SMALL, "--resume", says=["nothing to resume", "without --resume"])
    shutil.copy(model() / "model.safetensors", out)  # as if it had ended between the two files
    refused("train", text_file(), "--out", out, *SMALL, "--resume", says=["nothing to resume", "without --resume"])
    linnet("train", text_file(), "--out", out, *SMALL)
    assert weights(out) == weights(model())
    nothing_beside(out)


@case("a folder that holds a model and no run is neither trained in nor resumed, and both say where to go")
def not_a_run(folder):
    out = folder / "m"
    shutil.copytree(model(), out)
    (out / STATE).unlink()
    before = files_below(out)
    refused("train", text_file(), "--out", out, *SMALL, says=["already holds a model", "another folder"])
    refused("train", text_file(), "--out", out, *SMALL, "--resume", says=["nothing to resume", "another folder"])
    refused("train", text_file(), "--out", folder / "none", *SMALL, "--resume", says=["nothing to resume", "without --resume"])
    assert files_below(out) == before and not (folder / "none").exists()


@case("one training in a folder at a time: a second is refused by the process's number, and goes on where a killed one was")
def one_at_a_time(folder):
    out = folder / "m"
    long = [*flags_but("--steps", "--save-every"), "--steps", "3000", "--save-every", "20"]
    p = start("train", text_file(), "--out", out, *long, "--json")
    wait_for_step(p, 2)
    for more in ([], ["--resume"]):  # before its first checkpoint
        refused("train", text_file(), "--out", out, *long, *more, says=[f"process {p.pid} on ", str(out)])
    wait_for_step(p, 21)
    refused("train", text_file(), "--out", out, *long, "--resume", says=[f"process {p.pid} on "])
    refused("train", text_file(), "--out", out, *long)
    p.kill()
    p.communicate()
    p = start("train", text_file(), "--out", out, *long, "--resume", "--json")
    wait_for_step(p, 25)
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=60)
    assert p.returncode == 130
    steps = [step for step, _ in curve(out)]
    assert steps == list(range(1, len(steps) + 1))
    nothing_beside(out)


@case("what a killed save left beside the files is removed by the next run, and a link planted there is not followed")
def left_overs(folder):
    out = interrupted(folder / "m", 7)
    victim = folder / "victim"
    victim.write_text("theirs")
    for name in ("model.safetensors", STATE, "log.jsonl", "config.json"):
        (out / f"{name}.writing-4711").write_bytes(b"half")
    (out / "tokenizer.json.writing-4712").symlink_to(victim)
    resumed_equals(out)
    assert {p.name for p in out.glob("*.writing-*")} == {"tokenizer.json.writing-4712"}
    assert victim.read_text() == "theirs"


@case("a FIFO or a device as text, held-out text or model is refused at once; --csv does not replace a device")
def no_regular_file(folder):
    os.mkfifo(folder / "fifo")
    for path in (folder / "fifo", "/dev/zero"):
        refused("train", path, "--out", folder / "out", *SMALL, timeout=20, says=["not a regular file"])
        refused("train", text_file(), "--out", folder / "out", *SMALL, "--held-out", path, timeout=20, says=["not a regular file"])
        refused("eval", model(), path, timeout=20, says=["not a regular file"])
    m = folder / "m"
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copytree(model(), m)
        (m / name).unlink()
        os.mkfifo(m / name)
        refused("eval", m, text_file(), timeout=20, says=["not a regular file"])
        shutil.rmtree(m)
    shutil.copytree(model(), m)
    (m / "log.jsonl").unlink()
    os.mkfifo(m / "log.jsonl")
    refused("train", text_file(), "--out", m, *SMALL, "--resume", timeout=20, says=["log.jsonl"])
    refused("eval", model(), text_file(), "--length", "64", "--max-tokens", "256", "--csv", folder / "fifo", timeout=20, says=["not a regular file"])
    assert not (folder / "out").exists()


# ---- numbers -------------------------------------------------------------------------------------------------------------------

@case("a gradient that is not finite behind a finite loss updates nothing, is saved nowhere, and ends with 2; the log stays JSON")
def bad_gradient(folder):
    out = interrupted(folder / "m", 7)
    raw, metadata = read_safetensors(out / STATE), state_metadata(out)
    step = int(metadata["run.step"])

    def scaled(name, factor):
        dtype, shape, body = raw[name]
        n = len(body) // 4
        return dtype, shape, struct.pack(f"<{n}f", *(factor * x for x in struct.unpack(f"<{n}f", body)))

    # the same logits, but the gradient of the norm's weight has the size of the head's: its square overflows
    wrong = {**raw, "weight.model.norm.weight": scaled("weight.model.norm.weight", 1e-22), "weight.lm_head.weight": scaled("weight.lm_head.weight", 1e22)}
    write_safetensors(out / STATE, wrong, metadata)
    before = files_below(out)
    done = refused("train", text_file(), "--out", out, *SMALL, "--resume", says=["gradient", f"step {step + 1}", "inf", f"checkpoint of step {step} is untouched"])
    assert "tokens, in" not in done.out
    assert files_below(out) == before
    for moment, value in (("moment1", math.inf), ("moment2", math.nan)):  # finite loss and gradient, weights that are not
        name = f"{moment}.model.norm.weight"
        dtype, shape, body = raw[name]
        write_safetensors(out / STATE, {**raw, name: (dtype, shape, struct.pack("<f", value) + body[4:])}, metadata)
        before = files_below(out)
        refused("train", text_file(), "--out", out, *SMALL, "--resume")
        after = files_below(out)
        assert {n: b for n, b in after.items() if n != "log.jsonl"} == {n: b for n, b in before.items() if n != "log.jsonl"}
        for line in after["log.jsonl"].decode().splitlines():
            json.loads(line, parse_constant=lambda word: (_ for _ in ()).throw(AssertionError(f"{word} is no JSON")))


@case("a run that diverges ends with 2 before it saves what is not finite")
def diverges(folder):
    out = folder / "m"
    wild = [*flags_but("--steps", "--warmup"), "--steps", "200", "--warmup", "0", "--learning-rate", "1000", "--clip", "0", "--weight-decay", "1000"]
    done = refused("train", text_file(), "--out", out, *wild, says=["step"])
    assert "nan" in done.err or "inf" in done.err or "not finite" in done.err, done.err
    assert "A smaller learning rate may help" in done.err, done.err
    if (out / "model.safetensors").exists():
        for name, (_, _, body) in read_safetensors(out / "model.safetensors").items():
            assert all(map(math.isfinite, struct.unpack(f"<{len(body) // 4}f", body))), name
        assert "is untouched" in done.err
    else:
        assert "No checkpoint" in done.err


@case("the warm-up is at most a fifth of the steps, unless --warmup says otherwise")
def warm_up(folder):
    def rates(name, *more):
        linnet("train", text_file(), "--out", folder / name, *flags_but("--warmup", "--steps"), "--steps", "20", *more)
        return [json.loads(line)["learning_rate"] for line in (folder / name / "log.jsonl").read_text().splitlines()]
    usual = rates("a")
    assert usual.index(max(usual)) in (3, 4) and math.isclose(max(usual), 2e-3) and usual[0] == 2e-3 / 4, usual
    told = rates("b", "--warmup", "40")
    assert math.isclose(told[-1], 2e-3 * 20 / 40), told
    assert "at most a fifth" in linnet("train", "--help").out
    from_there = rates("c", "--warmup", "4", "--warmup-from", "1e-6")
    expected = [1e-6 + (2e-3 - 1e-6) * i / 4 for i in range(5)]
    assert all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(from_there, expected)), from_there


@case("--no-separator-loss asks for no separator, and changes nothing where there is none")
def no_separator_loss(folder):
    def losses(name, files, *more):
        linnet("train", *files, "--out", folder / name, *SMALL, "--train-tokenizer", "300", *more)
        return [json.loads(line)["loss"] for line in (folder / name / "log.jsonl").read_text().splitlines()]
    text = text_file().read_text()[:4000]
    pieces = []
    for i in range(0, 4000, 40):  # a separator in every window
        pieces.append(folder / f"{i:04}.txt")
        pieces[-1].write_text(text[i : i + 40])
    whole = [folder / "whole.txt", folder / "held.txt"]
    whole[0].write_text(text)
    whole[1].write_text(text_file().read_text()[4000:6000])
    with_it, without = losses("a", pieces), losses("b", pieces, "--no-separator-loss")
    assert with_it[0] != without[0] and len(with_it) == len(without), (with_it, without)
    held = ["--held-out", whole[1]]
    assert losses("c", whole[:1], *held)[:5] == losses("d", whole[:1], *held, "--no-separator-loss")[:5]
    one = folder / "one.jsonl"  # documents of one token: only where its separator is asked for is there more than one thing to learn
    one.write_text('{"text":"hello"}\n' * 400)
    flags = [*SMALL, "--field", "text", "--train-tokenizer", "300", "--steps", "60", "--eval-every", "60", "--learning-rate", "0.01", "--length", "16"]
    for more, name in (("--no-separator-loss", "e"), ("--isolate-documents", "f")):
        linnet("train", one, "--out", folder / name, *flags, "--no-separator-loss", *([more] if name == "f" else []))
        last = json.loads((folder / name / "log.jsonl").read_text().splitlines()[-1])
        assert last["eval_loss"] < 0.2 and last["loss"] < 0.2, (name, last)


@case("--isolate-documents: a document's first token is predicted from the separator, and nothing from the document before")
def isolated_documents(folder):
    texts = folder / "t.jsonl"
    texts.write_text('{"text":"hello world again"}\n' * 400)
    flags = [*SMALL, "--field", "text", "--train-tokenizer", "300", "--steps", "60", "--eval-every", "60", "--learning-rate", "0.01", "--length", "16"]
    linnet("train", texts, "--out", folder / "a", *flags, "--isolate-documents")
    last = json.loads((folder / "a" / "log.jsonl").read_text().splitlines()[-1])
    assert last["eval_loss"] < 0.2 and last["loss"] < 0.2, last
    assert "hello world again" in linnet("generate", folder / "a", "--tokens", "20", "--past-separator").out


@case("--warmup-from above the learning rate, or without a warm-up, is refused")
def no_warmup(folder):
    refused("train", text_file(), "--out", folder / "a", *SMALL, "--warmup", "4", "--warmup-from", "1",
            says=["--warmup-from is 1, expected at most the learning rate, 0.002"])
    refused("train", text_file(), "--out", folder / "a", *SMALL, "--warmup", "0", "--warmup-from", "1e-6",
            says=["--warmup-from is 1e-06, and no step is a warm-up"])
    assert not (folder / "a").exists()


# ---- resuming ------------------------------------------------------------------------------------------------------------------

@case("train --resume without its texts says that they are missing and how they are named, and leaves the run as it is")
def resume_without_texts(folder):
    out = folder / "run"
    linnet("train", text_file(), "--out", out, *SMALL, "--steps", "2")
    before = files_below(out)
    refused("train", "--out", out, "--resume", says=["TEXT is missing", f"the texts that the run in {out} was started with", f"linnet train books/ --out {out} --resume"])
    refused("train", "--out", out, says=["too few arguments", "linnet train TEXT"])
    refused("train", "--resume", says=["--out is missing"])
    assert files_below(out) == before


@case("what a run began with is known when it goes on: fresh weights, or a folder")
def resume_knows_its_beginning(folder):
    for name in ("a", "b"):
        linnet("train", text_file(), "--out", folder / name, *SMALL, "--steps", "2", "--seed", 1 + (name == "b"))
    linnet("train", text_file(), "--out", folder / "tuned", "--init", folder / "a", "--batch", "2", "--length", "32", "--warmup", "1", "--steps", "2")
    before = files_below(folder)
    refused("train", text_file(), "--out", folder / "a", "--resume", "--init", folder / "b", says=["init is", str(folder / "b"), "fresh weights"])
    refused("train", text_file(), "--out", folder / "tuned", "--resume", "--init", folder / "b", says=["init is", str(folder / "b"), "another folder's"])
    assert files_below(folder) == before
    linnet("train", text_file(), "--out", folder / "tuned", "--resume", "--init", folder / "b" / ".." / "a", "--steps", "3")


@case("a run's folder among its texts is refused at once: its own files would be read as text")
def out_among_texts(folder):
    texts = folder / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text(text_file().read_text())
    for out in (texts / "model", texts / "x" / "y", texts):
        refused("train", texts, "--out", out, *SMALL, says=[str(out), "lies in", str(texts), "folder outside it"])
    refused("train", text_file(), "--held-out", texts, "--out", texts / "model", *SMALL, says=["lies in"])
    assert [p.name for p in texts.iterdir()] == ["a.txt"]
    linnet("train", texts, "--out", folder / "texts-model", *SMALL, "--steps", "1")
    linnet("train", texts / "a.txt", "--out", texts / "model", *SMALL, "--steps", "1")


@case("a path too long for the names of a run's files is refused")
def paths_too_long(folder):
    long = folder / "/".join(["d" * 200] * 19)
    for more in ([], ["--resume"]):
        refused("train", text_file(), "--out", long, *SMALL, *more, says=["a folder's path has", "expected at most 3800"])
    assert not any(folder.iterdir())


@case("keys that are the tokenizer's are not set")
def ids_are_the_tokenizers(folder):
    for pair in ("vocab_size=512", "bos_token_id=1", "eos_token_id=1"):
        refused("train", text_file(), "--out", folder / "m", *SMALL, "--set", pair, says=[pair, "tokenizer", "--train-tokenizer"])
    assert not (folder / "m").exists()


@case("--resume takes every setting from the checkpoint; a flag that disagrees is refused with both values")
def settings_of_the_checkpoint(folder):
    held = folder / "held.txt"
    held.write_text(text_file().read_text()[:6000])
    other = folder / "other.txt"
    other.write_text(text_file().read_text()[100:6000])
    flags = [*SMALL, "--dtype", "bf16", "--weights", "bf16", "--moments", "bf16", "--held-out", held, "--accumulate", "2", "--isolate-documents"]
    linnet("train", text_file(), "--out", folder / "whole", *flags)
    out = interrupted(folder / "m", 7, flags=flags)
    before = files_below(out)
    resume = ["train", text_file(), "--out", out, "--held-out", held, "--resume"]
    for flag, value, kept in (("batch", "3", "2"), ("length", "16", "32"), ("accumulate", "1", "2"), ("learning-rate", "0.1", "0.002"),
                              ("min-learning-rate-share", "0.5", "0.1"), ("warmup", "3", "2"), ("warmup-from", "0.5", "0"), ("beta1", "0.8", "0.9"), ("beta2", "0.8", "0.95"),
                              ("epsilon", "1e-06", "1e-08"), ("weight-decay", "0", "0.1"), ("clip", "0", "1"), ("seed", "2", "1"),
                              ("held-out-share", "0.2", "0.1"), ("eval-every", "5", "10"), ("eval-tokens", "0", "512"), ("save-every", "4", "5"),
                              ("recompute", "cheap", "none"), ("minutes", "5", "no limit"), ("shard-size", "1MB", "5000000000 bytes"), ("steps", "30", "20"), ("dtype", "f32", "bf16"),
                              ("weights", "f32", "bf16"), ("moments", "f32", "bf16"), ("train-tokenizer", "300", "0"), ("layers", "3", "2"), ("heads", "4", "2")):
        shown = {"minutes": "300 seconds", "shard-size": "1000000 bytes"}.get(flag, value)
        refused(*resume, f"--{flag}", value, says=[f"--{flag} is {shown}, but the run in", f"was started with {kept}\n"])
    for flag, value, says in (("--no-separator-loss", "--json", "--no-separator-loss is on, but the run in"), ("--set", "mlp=none", "mlp is none, but the run in"),
                              ("--pattern", "gated_deltanet,attention", "layer 1 is attention, but the run in")):
        refused(*resume, flag, value, says=[says, "was started with"])
    refused(*resume, "--mixer", "retnet", says=["retnet", "gated_deltanet"])
    refused(*resume, "--preset", "nano", says=["head_dim", "64", "16", "a preset says several keys"])
    (folder / "tokenizer.json").write_text((out / "tokenizer.json").read_text() + "\n")
    refused(*resume, "--tokenizer", folder / "tokenizer.json", says=["tokenizer.json"])
    refused("train", text_file(), "--out", out, "--resume", says=["held-out", "--held-out"])
    refused("train", text_file(), "--out", out, "--held-out", other, "--resume", says=["other.txt"])
    assert files_below(out) == before
    linnet(*resume)  # no flag but the texts
    assert weights(out) == weights(folder / "whole") and curve(out) == curve(folder / "whole")
    linnet(*resume, *flags_but("--held-out", of=flags[:-1]), "--isolate-documents", "--tokenizer", "bytes")  # every flag as it was
    plain = interrupted(folder / "plain", 7)
    refused("train", text_file(), "--out", plain, "--held-out", other, "--resume", says=["other.txt", "0.1"])


@case("--resume --steps lengthens a run that is at its end, says what it keeps, and repeats itself bit for bit")
def lengthened(folder):
    linnet("train", text_file(), "--out", folder / "a", *SMALL)
    shutil.copytree(folder / "a", folder / "b")
    refused("train", text_file(), "--out", folder / "a", "--resume", "--steps", "10", says=["steps is 10", "20"])
    first = linnet("train", text_file(), "--out", folder / "a", "--resume", "--steps", "30")
    assert "lengthened from 20 to 30 steps" in first.out and "0.0002" in first.out, first.out
    linnet("train", text_file(), "--out", folder / "b", "--resume", "--steps", "30")
    assert weights(folder / "a") == weights(folder / "b")
    log = [json.loads(line) for line in (folder / "a" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == list(range(1, 31))
    linnet("train", text_file(), "--out", folder / "c", *flags_but("--steps"), "--steps", "30")
    whole = [json.loads(line)["learning_rate"] for line in (folder / "c" / "log.jsonl").read_text().splitlines()]
    assert [line["learning_rate"] for line in log[20:]] == whole[20:]
    assert "nothing was left to do" in linnet("train", text_file(), "--out", folder / "a", "--resume").out


@case("train says how many ids a tokenizer got that was to have more than the text gives, and only then; one step is one")
def fewer_ids(folder):
    few = [*SMALL, "--steps", "1", "--held-out-share", "0.1"]
    done = linnet("train", text_file(), "--out", folder / "a", *few, "--train-tokenizer", "100000")
    ids = json.loads(linnet("inspect", folder / "a", "--json").out)["vocabulary"]
    assert f"the tokenizer has {ids} ids of the 100000 that were asked for" in done.out and 300 < ids < 100000, done.out
    assert "trained 1 step, " in done.out, done.out
    assert "asked for" not in linnet("train", text_file(), "--out", folder / "b", *few, "--train-tokenizer", "300").out


@case("train --init begins with another folder's model, weights and tokenizer; the loss starts where that one's is and falls")
def begun_with(folder):
    linnet("train", text_file(), "--out", folder / "a", *SMALL, "--train-tokenizer", "300", "--held-out-share", "0.1")
    said = linnet("train", text_file(), "--out", folder / "b", "--init", folder / "a", "--batch", "2", "--length", "32", "--steps", "20",
                  "--warmup", "2", "--eval-every", "0", "--learning-rate", "1e-3")
    assert "begins with the weights of" in said.out and "GatedDeltaNetForCausalLM" in said.out, said.out
    assert (folder / "a" / "tokenizer.json").read_bytes() == (folder / "b" / "tokenizer.json").read_bytes()
    assert (folder / "a" / "config.json").read_bytes() == (folder / "b" / "config.json").read_bytes()
    log = [[json.loads(line)["loss"] for line in (folder / x / "log.jsonl").read_text().splitlines()] for x in "ab"]
    assert log[1][0] < log[0][0] - 0.2 and sum(log[1][-5:]) < sum(log[0][-5:]), log
    refused("train", text_file(), "--out", folder / "c", "--init", folder / "a", "--layers", "3", says=["names a model"])
    refused("train", text_file(), "--out", folder / "c", "--init", folder / "none", "--preset", "nano", says=["names a model, flags of section"])
    refused("train", text_file(), "--out", folder / "c", "--init", folder / "a", "--train-tokenizer", "300", says=["--init"])
    linnet("train", text_file(), "--out", folder / "d", *SMALL, "--steps", "1", "--train-tokenizer", "400")
    refused("train", text_file(), "--out", folder / "c", "--init", folder / "a", "--tokenizer", folder / "d", says=["400 ids", "300"])
    refused("train", text_file(), "--out", folder / "c", "--init", folder / "none", "--tokenizer", "bytes", says=["none"])
    assert not (folder / "c" / "train.begun").exists()


@case("--resume with the flags of the start goes on for every kind of layer, preset and pattern")
def resumed_kinds(folder):
    kinds = [line["mixer"] for line in map(json.loads, linnet("mixers", "--json").out.splitlines()) if "mixer" in line]
    assert "gated_deltanet" in kinds, kinds
    small = ["--preset", "nano", "--batch", "1", "--length", "16", "--steps", "1", "--eval-tokens", "32", "--layers", "2"]
    runs = [["--pattern", "mesa_net,attention:8"], ["--pattern", "mamba,attention:8"], ["--pattern", "mamba2,gated_deltanet"], ["--set", "intermediate_size=96"], *(["--mixer", kind] for kind in kinds)]
    for i, kind in enumerate(runs):
        out, flags = folder / str(i), [*small, *kind]
        linnet("train", text_file(), "--out", out, *flags)
        linnet("train", text_file(), "--out", out, *flags, "--resume")
        linnet("train", text_file(), "--out", out, "--layers", "2", "--resume")
        refused("train", text_file(), "--out", out, *flags, "--set", "hidden_size=64", "--resume", says=["hidden_size", "64"])


@case("resuming reads a log of 300,000 lines in a moment")
def long_log(folder):
    out = folder / "m"
    shutil.copytree(model(), out)
    lines = (out / "log.jsonl").read_text().splitlines(keepends=True)
    (out / "log.jsonl").write_text("".join(lines[:-1]) + lines[-1] * 300000 + '{"step":21,"loss":1}\n{"st')
    begin = time.monotonic()
    linnet("train", text_file(), "--out", out, *SMALL, "--resume", timeout=100)
    assert time.monotonic() - begin < 15  # 100 s and more where each line looks at the rest
    assert (out / "log.jsonl").read_text() == "".join(lines[:-1]) + lines[-1] * 300000


# ---- ends --------------------------------------------------------------------------------------------------------------------

@case("a closed terminal saves, even when it says so twice; under nohup a training goes on")
def hang_up(folder):
    p = start("train", text_file(), "--out", folder / "m", *SMALL, "--json")
    wait_for_step(p, 7)
    p.send_signal(signal.SIGHUP)
    p.send_signal(signal.SIGHUP)
    p.send_signal(signal.SIGTERM)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 130 and "--resume" in err, (p.returncode, err)
    assert state_metadata(folder / "m")["run.step"] not in ("0", "20")
    resumed_equals(folder / "m")
    p = subprocess.Popen([harness.LINNET, "train", text_file(), "--out", folder / "n", *SMALL, "--json"], stdout=subprocess.PIPE, text=True,
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for_step(p, 3)
    p.send_signal(signal.SIGHUP)
    p.communicate(timeout=60)
    assert p.returncode == 0 and weights(folder / "n") == weights(model())


@case("a closed pipe saves like Ctrl-C, with JSON lines and with plain ones")
def closed_pipe(folder):
    for name, more in (("m", ["--json"]), ("n", [])):
        p = start("train", text_file(), "--out", folder / name, *SMALL, *more)
        for _ in range(3 if more else 2):
            p.stdout.readline()
        p.stdout.close()
        err = p.stderr.read()
        assert p.wait(timeout=60) == 130, err
        assert len(err.splitlines()) == 1 and "--resume" in err, err
        assert 0 < int(state_metadata(folder / name)["run.step"]) < 20
        resumed_equals(folder / name)


@case("a signal before the first step ends a training at once")
def early_signal(folder):
    words = random.Random(5)
    (folder / "long.txt").write_text(" ".join("".join(words.choices("abcdefghijklmnop", k=9)) for _ in range(1000000)))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        p = start("train", folder / "long.txt", "--out", folder / "m", *SMALL, "--train-tokenizer", "30000")
        p.stdout.readline()  # the machine: the watch is set, or just about to be
        time.sleep(0.3)
        begin = time.monotonic()
        p.send_signal(number)
        p.communicate(timeout=60)
        assert p.returncode == 130 and time.monotonic() - begin < 2, (p.returncode, time.monotonic() - begin)
    assert not (folder / "m").exists()


def killed_in_a_save(out, command):
    """Start the command and kill it where a file is being written aside; False: it was over before."""
    p = start(*command)
    out.mkdir(exist_ok=True)
    while p.poll() is None:
        if any(".writing-" in name and name.startswith(("model", "train_state", "config")) for name in os.listdir(out)):
            p.kill()
    p.communicate()
    return any(".writing-" in name for name in os.listdir(out))


@case("eight kills, a quarter of them inside a save: whatever the folder is then, one command goes on to the bytes of an undisturbed run")
def kills(folder):
    chance = random.SystemRandom()
    for name, flags in (("f32", [*SMALL, "--save-every", "1"]), ("bf16", [*SMALL, "--dtype", "bf16", "--weights", "bf16", "--save-every", "1"])):
        whole, out = folder / f"{name} whole", folder / name
        begin = time.monotonic()
        linnet("train", text_file(), "--out", whole, *flags)
        seconds = time.monotonic() - begin
        inside = 0
        for i in range(4):
            while True:
                resume = (out / STATE).exists()
                command = ["train", text_file(), "--out", out, *flags, *(["--resume"] if resume else [])]
                if resume:
                    refused(*command[:-1], says=["--resume"])
                elif out.exists():
                    refused(*command, "--resume", says=["without --resume"])
                if i:
                    p = start(*command)
                    time.sleep(chance.uniform(0, seconds))
                    p.kill()
                    p.communicate()
                    break
                if killed_in_a_save(out, command):
                    inside += 1
                    break
                shutil.rmtree(out)  # it came through: once more from the start
        assert inside == 1
        resume = ["--resume"] if (out / STATE).exists() else []
        linnet("train", text_file(), "--out", out, *flags, *resume)
        assert weights(out) == weights(whole) and (out / STATE).read_bytes()[-1000:] == (whole / STATE).read_bytes()[-1000:]
        assert curve(out) == curve(whole)
        nothing_beside(out)

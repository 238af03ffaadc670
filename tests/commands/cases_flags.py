"""Help, flags, and what is said when they are wrong."""
import json
import re

from harness import case, linnet, refused

COMMANDS = ["train", "eval", "generate", "tokenize", "logits", "inspect", "convert", "mixers", "task", "sweep", "compare", "op", "bench", "bench op", "bench train", "bench decode", "bench machine"]


@case("linnet --help lists every command, --version the version, no argument at all is a mistake")
def overview(_):
    text = linnet("--help").out
    for name in COMMANDS:
        if " " not in name:
            assert re.search(rf"^  {name} ", text, re.M), name
    assert re.fullmatch(r"linnet \d+\.\d+\.\d+\n", linnet("--version").out)
    assert "usage" in linnet(code=2).err


@case("every command's --help has a summary, usage, flags and an example, within 100 columns")
def every_help(_):
    tasks = [json.loads(line)["task"] for line in linnet("task", "--json").out.splitlines()]
    for name in COMMANDS + [f"task {task}" for task in tasks]:
        text = linnet(*name.split(), "--help").out
        assert text.startswith(f"linnet {name}: "), text[:80]
        for part in ("\nusage  linnet ", "\nexample\n  linnet ", "--help"):
            assert part in text, (name, part)
        assert "\033" not in text, "colours in a pipe"
        for line in text.splitlines():
            assert line == line.rstrip(), (name, line)
            assert len(line) <= 100, (name, line)
        if " " not in name:
            assert linnet("help", name).out == text


@case("every task's example is taken: one that trains runs, one that reads misses nothing but its model")
def task_examples(folder):
    for task in (json.loads(line) for line in linnet("task", "--json").out.splitlines()):
        for line in json.loads(linnet("task", task["task"], "--help=json").out)["example"].splitlines():
            words = line.split()[1:]
            if task["kind"] == "trains":
                few = [] if task["task"] == "regbench" else ["--test-examples", 1]  # which has --test-automata
                assert linnet(*words, "--budget", "0.001", *few, cwd=folder).out, line
            else:
                refused(*words, cwd=folder, says=[f'"{words[2]}" is not a folder'])


@case("an unknown command or flag is refused with the nearest known one")
def suggestions(_):
    refused("tran", says=["tran", "Did you mean `linnet train`?"])
    refused("bench", "opp", says=["opp"])
    refused("train", "x", "--out", "y", "--stesp", "3", says=["--stesp", "Did you mean --steps?"])
    refused("generate", "x", "--temprature=1", says=["--temprature", "--temperature"])
    done = refused("eval", "x", "y", "--qqqqqqqq", says=["--qqqqqqqq"])
    assert "Did you mean" not in done.err
    refused("eval", "x", "y", "-l", "3", says=["-l", "two dashes"])


@case("a flag's value is checked: the message gives the value and what was expected")
def values(_):
    wrong = [("--threads", "0", "1"), ("--threads", "-3", "1"), ("--threads", "many", "whole number"), ("--steps", "1.5", "whole number"),
             ("--steps", "0", "whole number of at least 1"), ("--steps", "99999999999999999999", "from 1 to 1000000000000000"), ("--learning-rate", "nan", "number"), ("--learning-rate", "fast", "number"), ("--learning-rate", "-1", "from 0"),
             ("--dtype", "f99", "bf16"), ("--held-out-share", "1.5", "0.9"), ("--set", "hidden_size", "KEY=VALUE"), ("--layers", "0", "at least 1"),
             ("--train-tokenizer", "5", "257"), ("--seed", "-1", "from 0 to 18446744073709551615"),
             ("--seed", "18446744073709551616", "from 0 to 18446744073709551615")]
    for flag, value, expected in wrong:
        refused("train", "x", "--out", "y", flag, value, says=[flag, f'"{value}"', expected])
        refused("train", "x", "--out", "y", f"{flag}={value}", says=[flag, f'"{value}"', expected])
    refused("train", "x", "--out", says=["--out", "needs a value"])
    refused("train", "x", "--out", "y", "--resume=yes", says=["--resume", "no value"])
    for command in ([], ["train"], ["task", "mqar"]):
        refused(*command, "--help=yaml", says=['--help is "yaml"', "json, or no value"])


@case("missing and surplus arguments are named, exclusive flags refused")
def arguments(_):
    refused("train", says=["TEXT... --out DIR"])
    refused("train", "x", says=["--out"])
    refused("eval", "x", says=["MODEL TEXT"])
    refused("logits", "a", "b", "c", "d", says=['"d"'])
    refused("op", "gla", "a", "b", "extra", says=['"extra"', "linnet op NAME IN.safetensors OUT.safetensors"])
    refused("generate", "model", "words", says=['"words"', "--prompt"])
    refused("generate", "model", "--prompt", "a", "-", says=["two prompts"], stdin=b"b")
    refused("train", "x", "--out", "y", "--tokenizer", "bytes", "--train-tokenizer", "300", says=["--tokenizer"])
    refused("inspect", says=["which model"])
    refused("task", "sorting", says=["sorting", "mqar", "mesa-analysis"])
    refused("task", "mqar", "surplus", says=["surplus"])


@case("an unknown mixer, preset, configuration key or device is refused by name")
def names(folder):
    text = folder / "text.txt"
    text.write_text("some words to train on, again and again. " * 200)
    out = folder / "out"
    refused("train", text, "--out", out, "--mixer", "gated_delta_nett", says=['"gated_delta_nett" is no mixer, expected attention linear_attn',
                                                                              'Did you mean "gated_deltanet"?'])
    for flag, value, word in (("--mixer", "foo", "foo"), ("--mixer", "linnet", "linnet"), ("--mixer", "gla,attention", "gla,attention"),
                              ("--pattern", "foo", "foo"), ("--pattern", "3*", ""), ("--pattern", "gla attention", "gla attention"),
                              ("--pattern", "gla,foo", "foo"), ("--pattern", "linnet", "linnet")):
        done = refused("train", text, "--out", out, flag, value, says=[f'linnet: "{word}" is no mixer, expected attention linear_attn'])
        assert "model type" not in done.err, done.err
    for order in (["--width", "64", "--set", "hidden_size=0"], ["--set", "hidden_size=0", "--width", "64"]):
        refused("train", text, "--out", out, *order, says=["linnet: hidden_size is 0, expected 1 to"])
    refused("train", text, "--out", out, "--width", "100000000", "--set", "num_heads=2", says=["linnet: --width is 100000000, expected 1 to"])
    refused("train", text, "--out", out, "--preset", "gigantic", says=["gigantic"])
    refused("train", text, "--out", out, "--set", "hiden_size=64", says=["hiden_size"])
    refused("train", text, "--out", out, "--set", "hidden_size=many", says=["hidden_size", "many"])
    refused("train", text, "--out", out, "--mixer", "delta_net", "--width", "100", "--heads", "7", says=["7"])
    refused("train", text, "--out", out, "--device", "toaster", says=["toaster"])
    refused("train", text, "--out", out, env={"LINNET_CPU": "z80"}, says=["LINNET_CPU", "z80"])
    assert not out.exists(), "a refused command leaves nothing behind"

"""A decimal comma around the command: the same bytes."""
import json
import re
import shutil
import subprocess
import sys

import harness
from harness import SOURCE, Skip, case, f32, files_below, linnet, read_safetensors, write_safetensors

sys.path.insert(0, str(SOURCE / "tests/serve"))
from client import Server  # noqa: E402

# What a clock or a process's number said, in JSON and in lines for people.
CLOCK = [(re.compile(rb'("[a-z_ ]*(?:seconds|per_second|created|id)": ?"?)[-\w.+,]+'), rb"\g<1>0"),
         (re.compile(rb"\d+(?:[.,]\d+)?k? ?(?:tokens/s|ms|min|s)\b"), b"0 s"), (re.compile(rb"(seconds\S*|per_second\S*) [-\d.,e+]+"), rb"\g<1> 0")]
SMALL = ["--layers", "2", "--width", "32", "--heads", "2", "--batch", "2", "--length", "32", "--eval-tokens", "320", "--warmup", "2"]
PARITY = ["task", "parity", "--mixer", "delta_net", "--layers", "1", "--heads", "2", "--steps", "2", "--batch", "2", "--test-examples", "4"]
COMMANDS = [
    ["train", "text", "--out", "m", "--steps", "6", "--learning-rate", "1.5e-3", "--eval-every", "3", *SMALL, "--json"],
    ["train", "text", "--out", "n", "--steps", "4", "--mixer", "retnet", "--clip", "0.5", *SMALL],
    ["train", "text", "--out", "n", "--resume"],
    ["eval", "m", "text", "--length", "64", "--csv", "loss.csv", "--plot", "loss.svg", "--json"], ["eval", "m", "text", "--length", "64"],
    ["generate", "m", "--prompt", "to be", "--tokens", "20", "--temperature", "0.75", "--top-p", "0.9", "--min-p", "0.01", "--json", "--logprobs", "2"],
    ["inspect", "m"], ["inspect", "m", "--json"], ["inspect", "m", "--program"], ["mixers"], ["mixers", "--json"], ["mixers", "mamba2"],
    ["tokenize", "m", "--text", "3,14 and 2.72", "--pieces"], ["tokenize", "m", "text", "--count"],
    ["convert", "m", "c", "--to", "fla", "--dtype", "bf16", "--json"],
    ["compare", "m", "n", "--out", "side"], ["compare", "m", "n", "--json"],
    [*PARITY, "--learning-rate", "1.5e-3", "--out", "parity", "--json"],
    ["sweep", "--out", "grid", "--grid", "learning-rate=1.5e-3,1e-2", "--json", "--", *PARITY],
    ["op", "linear_attn", "op.in", "op.out", "--set", "scale=0.75", "--backward"],
    ["train", "text", "--out", "no", "--learning-rate", "1,5"],
    ["inspect", "--mixer", "gated_deltanet", "--set", "norm_eps=1.5e-5", "--json"],
]
ASKED = [("/v1/completions", {"prompt": "to be", "max_tokens": 5, "temperature": 0.75, "top_p": 0.9, "seed": 3, "logprobs": 2}),
         ("/v1/chat/completions", {"messages": [{"role": "user", "content": "3.5?"}], "max_tokens": 4, "temperature": 0.5, "seed": 1}),
         ("/tokenize", {"prompt": "2.5"})]


def still(data):
    for pattern, by in CLOCK:
        data = pattern.sub(by, data)
    return data


def without_times(data):
    """A table without its columns of seconds."""
    rows = [line.split(b",") for line in data.split(b"\n")]
    timed = [i for i, name in enumerate(rows[0]) if b"second" in name]
    return [[cell for i, cell in enumerate(row) if i not in timed] for row in rows]


def all_of_it(place, env):
    """What every command says, and what files there are afterwards."""
    place.mkdir()
    (place / "text").write_text("".join(f"{i} to be or not {i * i / 7:.2f}\n" for i in range(500)))
    write_safetensors(place / "op.in", {n: ("F32", [1, 2, 1, 2], f32([1, 2.5, 3, 4])) for n in "qkv"})
    said = []
    for words in COMMANDS:
        done = linnet(*words, cwd=place, env=env, code=None)
        assert done.returncode in (0, 2), (words, done.err)
        said.append((words, done.returncode, still(done.stdout), still(done.stderr)))
    done = linnet("chat", "m", "--tokens", "3", "--chat-template", "plain", "--temperature", "0.5", cwd=place, env=env, stdin=b"who?\n")
    said.append(("chat", still(done.stdout)))
    with Server(harness.LINNET, place / "m", "--context", "256", "--chat-template", "plain", env=env) as server:
        for path, ask in ASKED:
            status, answer = server.ask(path, ask)
            assert status == 200, (path, answer)
            said.append((path, still(json.dumps(answer).encode())))
    files = {}
    for name, data in files_below(place).items():
        tensors = name.endswith("train_state.safetensors")  # whose header has the seconds of the run
        if name.endswith("page.svg"):  # seconds among other cells: any number, and a comma stays one
            data = re.sub(rb"\d+(?:\.\d+)?(?:e[-+]?\d+)?", b"#", data)
        files[name] = read_safetensors(place / name) if tensors else without_times(data) if name.endswith(".csv") else still(data)
    return said, files


@case("under de_DE.UTF-8 every command says and writes the bytes that it does under C.UTF-8")
def a_comma_changes_nothing(folder):
    locales = folder / "locales"
    locales.mkdir()
    if not shutil.which("localedef") or subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", locales / "de_DE.UTF-8"], capture_output=True).returncode:
        raise Skip("localedef cannot make de_DE.UTF-8 here")
    comma = {"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8", "LOCPATH": str(locales)}
    assert subprocess.run(["printf", "%.1f", "1,5"], env=comma, capture_output=True, text=True).stdout == "1,5", "the locale has a comma"
    point, point_files = all_of_it(folder / "point", {"LC_ALL": "C.UTF-8"})
    with_comma, comma_files = all_of_it(folder / "comma", comma)
    for a, b in zip(point, with_comma):
        assert a == b, f"{a[0]}:\n{a[1:]}\n{b[1:]}"
    assert point_files.keys() == comma_files.keys()
    for name in point_files:
        assert point_files[name] == comma_files[name], f"{name}:\n{str(point_files[name])[:600]}\n{str(comma_files[name])[:600]}"

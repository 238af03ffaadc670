"""What `linnet task --out` leaves: what was run, whose folder it is, and pages with plots."""
import csv
import json
import signal
import time
import xml.etree.ElementTree as xml

from cases_models import model, text_file
from harness import case, files_below, linnet, refused, start

SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--batch", "4", "--test-examples", "8", "--steps", "3"]


def first_line(folder):
    return json.loads((folder / "results.jsonl").read_text().splitlines()[0])


def words_of(page):
    return " ".join(e.text or "" for e in xml.parse(page).getroot().iter())


@case("a task records what it was, in results.jsonl and on its page: command, version, machine, protocol, every option, the model's keys")
def records(folder):
    out = folder / "out"
    linnet("task", "parity", "--protocol", "paper", "--mixer", "delta_net", "--set", "use_short_conv=false", *SMALL, "--seed", "7", "--budget", "5", "--out", out)
    was, words = first_line(out), words_of(out / "page.svg")
    assert (was["task"], was["row"], was["protocol"], was["max_seconds"], was["dtype"]) == ("parity", "settings", "paper", 300, "f32"), was
    assert was["command"] == "linnet task parity --protocol paper --mixer delta_net --set use_short_conv=false " + " ".join(SMALL) + f" --seed 7 --budget 5 --out {out}"
    assert was["version"] in linnet("--version").out and "threads" in was["machine"]
    assert was["options"]["seed"] == 7 and was["options"]["steps"] == 3 and was["options"]["warmup"] == 0.1 and was["options"]["learning_rate"] == "1e-3", was["options"]
    assert was["model"]["use_short_conv"] is False and was["model"]["hidden_size"] == 16 and "vocab_size" not in was["model"], was["model"]
    assert was["complete"] is True and set(was["files"]) == {p.name for p in out.iterdir()}, was["files"]
    for word in (was["command"], "protocol paper", was["machine"], "seed 7", "use_short_conv false", "hidden_size 16", "at most 300 seconds"):
        assert word in words, (word, words)
    reads = folder / "reads"
    linnet("task", "ppl", model(), text_file(), "--lengths", "16", "--tokens", "64", "--out", reads)
    was = first_line(reads)
    assert was["texts"] == [str(text_file())] and was["options"]["tokens"] == 64 and was["options"]["reference"] is None, was
    assert was["protocol"] == "short" and was["model"]["vocab_size"] > 0 and "max_seconds" not in was
    said = linnet("compare", out, reads, "--out", folder / "both", "--json").out.splitlines()
    assert [json.loads(line)["row"] for line in said] == ["result", "result"], "a table of results"
    assert first_line(folder / "both")["runs"] == [str(out), str(reads)] and "linnet compare" in words_of(folder / "both" / "page.svg")
    assert not (folder / "both" / "settings.csv").exists()


@case("a folder with results of another task, of a comparison or of a training is refused before anything is done, and stays as it is")
def folders_of_others(folder):
    out, both = folder / "out", folder / "both"
    linnet("task", "parity", *SMALL, "--out", out)
    linnet("compare", out, "--out", both)
    before = files_below(folder)
    refused("train", text_file(), "--out", out, says=[str(out), "results of a task"])
    refused("task", "mqar", *SMALL, "--out", out, says=[f"--out is {out}", "holds results of the task parity"])
    refused("task", "mqar", *SMALL, "--out", both, says=[f"--out is {both}", "a comparison"])
    refused("compare", both, out, "--out", out, says=[str(out), "results of the task parity"])
    assert files_below(folder) == before
    held = folder / "run"
    linnet("train", text_file(), "--out", held, "--mixer", "delta_net", "--layers", "1", "--width", "16", "--heads", "2", "--batch", "2", "--length", "16", "--steps", "1")
    before = files_below(held)
    refused("task", "parity", *SMALL, "--out", held, says=[str(held), "a training"])
    assert files_below(held) == before
    old = folder / "old"  # from before there were settings
    old.mkdir()
    (old / "results.jsonl").write_text('{"task": "copying", "row": "result", "accuracy": 1}\n')
    refused("task", "parity", *SMALL, "--out", old, says=["results of the task copying"])
    (old / "results.jsonl").write_text("no JSON\n")
    refused("task", "parity", *SMALL, "--out", old, says=[str(old), "no task wrote"])


@case("the same task again replaces its files and leaves no stale one, but never all of its results by a part")
def again(folder):
    out = folder / "out"
    ask = ["task", "parity", *SMALL, "--out", out]
    linnet(*ask, "--learning-rate", "1e-3,1e-2")
    assert {"training-1.csv", "training-2.csv"} <= set(files_below(out))
    (out / "mine.csv").write_text("a note\n")
    linnet(*ask)
    names = set(files_below(out))
    assert "training.csv" in names and not names & {"training-1.csv", "training-2.csv"} and names == {*first_line(out)["files"], "mine.csv"}, names
    before = files_below(out)
    cut_off(*ask, "--steps", "100000", "--learning-rate", "1e-3,1e-2")
    assert files_below(out) == before
    tampered = json.loads((out / "results.jsonl").read_text().splitlines()[0])
    (folder / "precious.csv").write_text("not yours\n")
    tampered["files"] += ["../precious.csv", "mine.txt"]
    (out / "mine.txt").write_text("mine\n")
    (out / "results.jsonl").write_text(json.dumps(tampered) + "\n")
    linnet(*ask)
    assert (folder / "precious.csv").exists() and (out / "mine.txt").exists(), "a name that leads elsewhere is no file of the task's"


def cut_off(*args):
    process = start(*args)
    begin = time.monotonic()
    while "step" not in process.stderr.readline() and time.monotonic() < begin + 30:
        pass
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130, process.returncode


@case("a task that is cut off leaves what it has and says that it is not all; that gives way to a whole run")
def stopped(folder):
    files = [folder / f"few{i}" for i in range(40)]
    for f in files:
        f.write_text("".join(json.dumps({"context": f"turn {i} ", "completion": f"about {i}"}) + "\n" for i in range(120)))
    out = folder / "out"
    process = start("task", "few-shot", model(), *files, "--out", out)
    process.stdout.readline()  # a first row
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    was = first_line(out)
    assert was["complete"] is False and set(was["files"]) == set(files_below(out)) == {"result.csv", "results.jsonl"}, was["files"]
    linnet("task", "few-shot", model(), files[0], "--shots", "0,1", "--out", out)
    assert first_line(out)["complete"] is True and (out / "page.svg").exists()

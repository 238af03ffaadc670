"""Grids of runs, and runs side by side."""
import csv
import json
import signal
import time
import xml.etree.ElementTree as xml

from cases_models import text_file
from harness import case, linnet, refused, start

TASK = ["task", "parity", "--mixer", "delta_net", "--layers", "1", "--heads", "2", "--steps", "2", "--batch", "2", "--test-examples", "4"]


def rows(path):
    return list(csv.DictReader(path.open()))


@case("sweep runs every combination once, leaves a table and a page; again: what is not done, and no other")
def sweep(folder):
    out = folder / "grid"
    ask = ["sweep", "--out", out, "--grid", "learning-rate=1e-3,1e-2", "--grid", "set:hidden_size=16,32", "--jobs", "2", "--json", "--", *TASK]
    done = linnet(*ask)
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert {line["run"] for line in lines} == {f"learning-rate={a},hidden_size={b}" for a in ("1e-3", "1e-2") for b in (16, 32)}, lines
    assert all(line["task"] == "parity" and line["learning_rate"] in (1e-3, 1e-2) for line in lines)
    assert len({line["parameters"] for line in lines}) == 2, "the width reached the models"
    assert len(rows(out / "result.csv")) == 4 and rows(out / "result.csv")[0]["run"] == lines[0]["run"]
    assert "learning-rate=1e-3,hidden_size=16" in "".join(e.text or "" for e in xml.parse(out / "page.svg").getroot().iter())
    words = [e.text for e in xml.parse(out / "page.svg").getroot().iter() if e.text]
    assert words.count("scaled_accuracy") >= 2 and "learning-rate" in words and {"hidden_size=16", "hidden_size=32"} <= set(words), "a plot over the grid"
    page = (out / lines[0]["run"] / "page.svg").stat().st_mtime_ns
    (out / "learning-rate=1e-2,hidden_size=32.done").unlink()
    again = linnet(*ask)
    assert [json.loads(line)["accuracy"] for line in again.out.splitlines()] == [line["accuracy"] for line in lines], "the same from the same"
    assert "3 of 4 runs were done before" in again.err and "done   4 of 4: " in again.err, again.err
    assert (out / lines[0]["run"] / "page.svg").stat().st_mtime_ns == page
    refused(*ask, "--seed", "7", says=["is of", "--seed 7", "expected", ".done"])  # what is there is of another command
    assert (out / lines[0]["run"] / "page.svg").stat().st_mtime_ns == page
    failed = linnet("sweep", "--out", folder / "bad", "--grid", "learning-rate=1e-3,fast", "--", *TASK, code=2)
    assert "1 of 2 runs failed" in failed.err and '"fast"' in (folder / "bad" / "learning-rate=fast.log").read_text(), failed.err
    for wrong, says in ((["--grid", "steps"], "KEY=VALUE"), (["--grid", "steps="], "steps="), (["--jobs", "0"], "--jobs")):
        refused("sweep", "--out", folder / "x", *wrong, "--", *TASK, says=[says])
    refused("sweep", "--out", folder / "x", "--", "eval", "model", says=["eval", "train or task"])
    refused("sweep", "--out", folder / "x", "--grid", "seed=1,2", "--", "eval", says=["eval", "train or task"])
    refused("sweep", "--out", folder / "x", "--", "task", says=["task", "-- task NAME"])
    refused("sweep", "--out", folder / "x", "--grid", "seed=1,2", "--", "train", says=["too few arguments", "linnet train TEXT"])
    refused("sweep", "--out", folder / "x", "--", "task", "partiy", says=['no task "partiy"', "parity"])
    for grid, says in (("nope=1,2", "linnet task parity has no flag --nope"), ("width=16,0", '--width is "0"'), ("set:nope=1,2", "nope"), ("preset=nano,nanu", "nanu")):
        refused("sweep", "--out", folder / "x", "--grid", grid, "--", *TASK, says=[says])  # what the command itself says, before anything is made
    for grids, more, says in ((["width=16,32,16"], [], ["--grid width", "16 twice"]), (["seed=1,2", "seed=3"], [], ["two grids of seed"]),
                              (["width=16"], ["--width", "32"], ["--grid width", "--width"]), (["width=16"], ["--width=32"], ["--grid width", "--width"]),
                              (["set:hidden_size=16"], ["--set", "hidden_size=32"], ["--grid set:hidden_size", "--set hidden_size"])):
        refused("sweep", "--out", folder / "x", *(w for g in grids for w in ("--grid", g)), "--", *TASK, *more, says=says)
    training = folder / "training"
    training.mkdir()
    (training / "log.jsonl").write_text('{"step": 1, "loss": 5.5}\n')
    refused("sweep", "--out", training, "--grid", "seed=1,2", "--", *TASK, says=["training", "log.jsonl"])
    assert [p.name for p in training.iterdir()] == ["log.jsonl"], "refused before any run"
    refused("sweep", "--out", training / "log.jsonl", "--grid", "seed=1,2", "--", *TASK, says=["--out is", "log.jsonl, which is there and is not a folder"])
    refused("sweep", "--out", folder / "x", "--grid", "seed=1,2", "--", *TASK, "--help", says=["--help"])
    refused("sweep", "--out", folder / "x", "--", *TASK, "--out", "y", says=["--out"])
    refused("sweep", "--", *TASK, says=["--out is missing"])
    assert not (folder / "x").exists()


@case("compare takes what a shell makes of SWEEP/*: files are left out where there are runs, and named where there are none")
def compare_all(folder):
    out = folder / "grid"
    linnet("sweep", "--out", out, "--grid", "seed=1,2", "--", *TASK)
    names = sorted(out.iterdir())
    done = linnet("compare", *names, "--json")
    assert [json.loads(line)["run"] for line in done.out.splitlines()] == ["seed=1", "seed=2"]
    assert done.err.strip() == f"note: {len(names) - 2} files that are no runs are left out", done.err
    refused("compare", out / "page.svg", says=["page.svg is no run"])
    refused("compare", out / "seed=1", out / "seed=3", says=["seed=3 is no run"])


@case("a sweep over trainings that is stopped goes on where its checkpoints are; compare puts the runs side by side")
def sweep_of_trainings(folder):
    out = folder / "grid"
    ask = ["sweep", "--out", out, "--grid", "seed=1,2", "--jobs", "2", "--", "train", text_file(), "--mixer", "delta_net", "--layers", "1", "--width", "16",
           "--heads", "2", "--batch", "2", "--length", "32", "--steps", "300", "--eval-every", "100", "--eval-tokens", "320", "--warmup", "2"]
    process = start(*ask)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not all((out / f"seed={i}" / "log.jsonl").exists() for i in (1, 2)):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, 0), err  # on a fast machine both may be done
    done = linnet(*ask)
    assert "training" in done.out
    for i in (1, 2):
        steps = [json.loads(line)["step"] for line in (out / f"seed={i}" / "log.jsonl").read_text().splitlines()]
        assert steps == list(range(1, 301)), "every step once, whatever stopped it"
        words = " ".join(e.text or "" for e in xml.parse(out / f"seed={i}" / "page.svg").getroot().iter())
        assert all(word in words for word in (f"seed={i}", "Training loss", "Held-out loss", "Learning rate", "Gradient norm")), words
        assert not (out / f"seed={i}" / "results.jsonl").exists()
    table = rows(out / "training.csv")
    assert [row["run"] for row in table] == ["seed=1", "seed=2"] and all(row["steps"] == "300" and 0 < float(row["held_out"]) < 9 for row in table)
    said = linnet("compare", out / "seed=2", f"{out}/seed=1/", "--out", folder / "page", "--json").out.splitlines()
    assert [json.loads(line)["run"] for line in said] == ["seed=2", "seed=1"]
    words = " ".join(e.text or "" for e in xml.parse(folder / "page" / "page.svg").getroot().iter())
    for word in ("Training loss", "Held-out loss", "Learning rate", "Gradient norm", "seed=1", "seed=2"):
        assert word in words, word
    assert [json.loads(line)["held_out_text"] for line in said] == [1, 1] and "Held-out losses are of" not in words
    linnet(*ask[ask.index("train"):], "--held-out", __file__, "--out", folder / "other")
    said = linnet("compare", out / "seed=2", folder / "other", out / "seed=1", "--out", folder / "both", "--json").out.splitlines()
    assert [json.loads(line)["held_out_text"] for line in said] == [1, 2, 1]
    assert "Held-out losses are of 2 texts" in " ".join(e.text or "" for e in xml.parse(folder / "both" / "page.svg").getroot().iter())
    assert not refused("compare", out / "seed=2", "--out", __file__, says=[__file__, "is not a folder"]).out, "before a row is printed"
    refused("compare", folder, says=["is no run", "log.jsonl"])
    refused("compare", says=["RUN"])
    (out / "seed=1" / "log.jsonl").write_text("no json\n")
    refused("compare", out / "seed=1", "--out", folder / "none")
    assert not (folder / "none").exists()

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


@case("a second task on the folder of one that runs is refused; what a killed one left is no obstacle")
def one_task_a_folder(folder):
    out = folder / "out"
    first = start("task", "parity", *SMALL[:-1], "1000000", "--out", out)
    while "step" not in first.stderr.readline():
        assert first.poll() is None
    refused("task", "parity", *SMALL, "--out", out, says=[str(out), f"in use by process {first.pid}"])
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert first.returncode == 130 and not out.exists()  # it had no row yet
    killed = start("task", "parity", *SMALL[:-1], "1000000", "--out", folder / "killed")
    while not (folder / "killed" / "task.lock").exists():
        time.sleep(0.01)
    killed.kill()
    killed.communicate(timeout=60)
    linnet("task", "parity", *SMALL, "--out", folder / "killed")
    assert first_line(folder / "killed")["complete"] is True and not (folder / "killed" / "task.lock").exists()


@case("a folder with results of another task, of a comparison or of a training is refused before anything is done, and stays as it is")
def folders_of_others(folder):
    out, both = folder / "out", folder / "both"
    linnet("task", "parity", *SMALL, "--out", out)
    linnet("compare", out, "--out", both)
    before = files_below(folder)
    refused("train", text_file(), "--out", out, says=[str(out), "results of a task"])
    refused("task", "mqar", *SMALL, "--out", out, says=[f"--out is {out}", "holds results of the task parity"])
    refused("task", "mqar", *SMALL, "--out", both, says=[f"--out is {both}", "a comparison"])
    refused("sweep", "--out", out, "--grid", "seed=1,2", "--", "task", "parity", *SMALL, says=[f"--out is {out}", "no sweep's"])
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


# ---- pages -----------------------------------------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def plots(page):
    """Titles of the plots, and how many lines, dots and bars they have."""
    root = xml.parse(page).getroot()
    titles = [e.text for e in root.iter(SVG + "text") if e.get("font-weight") == "bold" and e.get("font-size") == "13"]
    marks = [e for e in root.iter() if e.get("stroke") in COLOURS and e.get("fill") == "none" or e.tag in (SVG + "circle", SVG + "rect") and e.get("fill") in COLOURS]
    return titles, len(marks)


def rows(path):
    return list(csv.DictReader(path.open()))


TRAINING = ["Training loss", "Held-out loss", "Learning rate", "Gradient norm"]


@case("the page of a task that trains has loss, held-out loss, learning rate and gradient norm, its training.csv too")
def training_pages(folder):
    out = folder / "out"
    linnet("task", "copying", *SMALL[:-2], "--steps", "12", "--test-every", "5", "--enough", "2", "--warmup", "0.5", "--learning-rate", "1e-3,2e-3", "--out", out)
    titles, marks = plots(out / "page.svg")
    assert titles[:5] == [*TRAINING, "Looks while training"] and marks >= 10, (titles, marks)
    for i, top in ((1, 1e-3), (2, 2e-3)):
        table = rows(out / f"training-{i}.csv")
        assert [float(r["step"]) for r in table] == list(range(1, 13)), table
        rates = [float(r["learning_rate"]) for r in table]
        assert rates[:6] == [float(f"{top * s / 6:.8g}") for s in range(1, 7)] and rates[-1] < top / 10, rates
        assert all(float(r["gradient_norm"]) > 0 and 0 < float(r["loss"]) < 9 for r in table), table
        assert [r["step"] for r in table if r["held_out_loss"]] == ["5", "10", "12"], "looks, and the test at the end"
        result = rows(out / "result.csv")[i - 1]
        assert abs(float(table[-1]["held_out_loss"]) - float(result["test_loss"])) < 1e-5, (table[-1], result)
        assert [(r["step"], r["loss"]) for r in rows(out / f"looks-{i}.csv")] == [(r["step"], r["held_out_loss"]) for r in table if r["step"] in ("5", "10")]
    linnet("task", "copying", *SMALL, "--test-every", "0", "--out", folder / "one")
    assert plots(folder / "one" / "page.svg")[0][:4] == TRAINING


@case("mad: training curves of every setting, the score of each task as bars, accuracy over what makes a task harder")
def mad_pages(folder):
    out = folder / "all"
    ask = ["task", "mad", "--layers", "1", "--width", "16", "--heads", "2", "--batch", "2", "--test-examples", "2", "--steps", "2"]
    linnet(*ask, "--kind", "all", "--settings", "baseline", "--out", out)
    titles, _ = plots(out / "page.svg")
    assert titles == [*TRAINING, "Macro accuracy of each task"], titles
    words = words_of(out / "page.svg")
    assert all(f"{kind}, baseline" in words for kind in ("in-context", "fuzzy", "noisy", "memorisation", "compression", "copying")), words
    assert len(list(out.glob("training-*.csv"))) == 6
    hard = folder / "hard"
    linnet(*ask, "--kind", "memorisation", "--settings", "all", "--learning-rate", "1e-3,1e-2", "--out", hard)
    titles, _ = plots(hard / "page.svg")
    assert titles == [*TRAINING, "Macro accuracy over the vocabulary"] and "vocabulary 8192" in words_of(hard / "page.svg"), titles
    assert len(list(hard.glob("training-*.csv"))) == 12


def lines(path, *objects):
    path.write_text("".join(json.dumps(x) + "\n" for x in objects))
    return path


@case("every task that reads plots what it measures: over length, depth, examples or windows, or as bars")
def reading_pages(folder):
    words, out = folder / "words", folder / "out"
    words.mkdir()
    (words / "adjectivelist.txt").write_text("red\nold\n")
    (words / "nounlist.txt").write_text("cat\ndog\n")
    shots = lines(folder / "shots", *({"context": f"{i} is ", "completion": f"{i}"} for i in range(9)))
    pairs = lines(folder / "pairs", *({"source": f"le {i}", "target": f"the {i}"} for i in range(6)))
    asked = lines(folder / "asked", *({"prompt": "Which? ", "choices": ["one", "two"], "answer": i % 2} for i in range(4)))
    texts = lines(folder / "texts", {"text": "the cat sat", "value": "sat"}, {"text": "a dog ran", "value": "ran"})
    bench = lines(folder / "bench", *({"dataset": d, "context": "c", "input": "i", "answers": ["a"], "all_classes": ["a", "b"]} for d in ("qasper", "trec")))
    cases = (
        (["niah", "--words", words, "--lengths", "700,900", "--samples", "4", "--tokens", "4"], ["Found over the length", "Found over the depth"], 3),
        (["few-shot", shots, folder / "shots", "--shots", "0,1,3", "--draws", "2"], ["Right answers over the examples shown"], 2),
        (["translate", pairs, "--shots", "0,2", "--tokens", "4"], ["BLEU over the examples shown"], 1),
        (["longbench", bench, "--length", "64"], ["Score of each data set"], 2),
        (["choice", asked], ["Share of right answers"], 3),
        (["lambada", texts], ["Share of right words"], 1),
        (["cloze", texts, "--tokens", "4"], ["Share of texts whose value is found"], 1),
        (["throughput", "--lengths", "16", "--steps", "1"], ["Tokens a second over the length", "Bytes of a state over the length"], 4),
        (["ppl", text_file(), "--lengths", "16", "--tokens", "64"], ["Loss over position, windows of 16"], 2),
    )
    for task, titles, marks in cases:
        linnet("task", task[0], model(), *task[1:], "--out", out / task[0])
        found = plots(out / task[0] / "page.svg")
        assert found == (titles, marks), (task[0], found)
    depth = rows(out / "niah" / "depth.csv")
    assert {r["length"] for r in depth} == {"700", "900"} and all(0 <= float(r["depth"]) <= 100 and 0 <= float(r["found"]) <= 1 for r in depth), depth
    assert all(sum(float(r["samples"]) for r in depth if r["length"] == n) == 4 for n in ("700", "900")), depth
    small = ["--mixer", "attention", "--layers", "1", "--width", "16", "--heads", "2", "--batch", "2", "--length", "32", "--steps", "1"]
    for name, window in (("full", []), ("w4", ["--set", "window_size=4"]), ("w16", ["--set", "window_size=16"])):
        linnet("train", text_file(), "--out", folder / name, *small, *window)
    linnet("task", "local-global", folder / "full", asked, "--windows", f"4={folder / 'w4'},16={folder / 'w16'}", "--out", out / "windows")
    titles, marks = plots(out / "windows" / "page.svg")
    assert titles == ["Score over the window"] and marks == 2 and "full" in words_of(out / "windows" / "page.svg"), (titles, marks)

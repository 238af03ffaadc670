"""lambada and choice beside EleutherAI's harness: its prompts and likelihoods of a small model (bench/eleuther.py made them), one by one."""
import importlib.util
import json
from pathlib import Path

from harness import case, linnet

DATA = Path(__file__).resolve().parent / "likelihoods"
MADE_BY = Path(__file__).resolve().parents[2] / "bench" / "eleuther.py"


@case("lambada and piqa have the prompts and the likelihoods of EleutherAI's harness")
def likelihoods(folder):
    spec = importlib.util.spec_from_file_location("made_by", MADE_BY)
    made_by = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made_by)
    model = folder / "model"
    linnet("train", DATA / "piqa.jsonl", "--out", model, *made_by.MODEL)
    expected = [json.loads(line) for line in (DATA / "expected.jsonl").read_text(encoding="utf-8").splitlines()]
    compared = greedy = 0
    for name, (_, _, words) in made_by.TASKS.items():
        out = linnet("task", words[0], model, DATA / f"{name}.jsonl", *words[1:], "--likelihoods", "true", "--json").out
        got, want = [json.loads(line) for line in out.splitlines()], [x for x in expected if x["task"] == name]
        assert len(got) == len(want)
        for x, y in zip(got, want):
            for key, value in y.items():
                if key == "continuation":
                    assert " " + x[key] == value, (x, y)
                elif isinstance(value, float):
                    assert abs(x[key] - value) <= 1e-5 * max(1, abs(value)), (key, x, y)
                    compared += 1
                elif key not in ("task", "greedy"):
                    assert x[key] == value, (key, x, y)
                elif key == "greedy" and name == "lambada":
                    assert x[key] == value, (x, y)
                    greedy += value
    assert compared == 36 and greedy == 2  # 32 likelihoods, the four results

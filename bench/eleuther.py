#!/usr/bin/env python3
"""lambada and piqa beside EleutherAI's harness, number by number: one small model of Transformers' Llama, the same questions, every likelihood.

    python3 bench/eleuther.py --linnet build/linnet --work DIR [--write] [--page bench/results/harness --label COMMIT]

by a Python that has lm-eval, transformers, accelerate and torch.

The model is drawn by linnet (see MODEL; a learning rate of 0 leaves it as it was drawn), with a byte-level BPE of 330 ids, and converted. The questions
are those of tests/commands/likelihoods/, the prompts the harness's own tasks lambada_openai and piqa with these files in place of the hub's. --write
keeps the harness's prompts and likelihoods there as expected.jsonl, which tests/commands/cases_likelihoods.py holds linnet to; --page leaves both
sides' numbers as a page."""
import argparse
import datetime
import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "tests" / "commands" / "likelihoods"
MODEL = ["--train-tokenizer", "330", "--mixer", "attention", "--layers", "2", "--width", "32", "--heads", "4", "--set", "num_kv_heads=2",
         "--set", "initializer_range=0.3", "--steps", "1", "--warmup", "0", "--learning-rate", "0", "--seed", "5", "--batch", "1", "--length", "16",
         "--held-out-share", "0"]
TASKS = {"lambada": ("lambada/lambada_openai.yaml", "test", ["lambada"]), "piqa": ("piqa/piqa.yaml", "validation", ["choice", "--format", "piqa"])}


def of_harness(folder, work):
    """Every request of both tasks, and their results."""
    import lm_eval
    import transformers
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    home = Path(lm_eval.__file__).parent / "tasks"
    for name, (own, split, _) in TASKS.items():
        (work / "tasks").mkdir(exist_ok=True)
        (work / "tasks" / f"{name}.yaml").write_text(
            f"include: {home / own}\ntask: linnet_{name}\ntag: null\ndataset_path: json\ndataset_name: null\n"
            f"dataset_kwargs:\n  data_files:\n    {split}: {DATA / (name + '.jsonl')}\ntraining_split: null\n{split}_split: {split}\n")
    # It asks for an end of text, and uses that where there is no context alone.
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="!")
    lm = HFLM(pretrained=str(folder), tokenizer=tokenizer, dtype="float32", device="cpu", batch_size=1)
    done = lm_eval.simple_evaluate(lm, tasks=[f"linnet_{t}" for t in TASKS], task_manager=TaskManager(include_path=str(work / "tasks")),
                                   log_samples=True, bootstrap_iters=0)
    lines = []
    for name in TASKS:
        for sample in sorted(done["samples"][f"linnet_{name}"], key=lambda s: s["doc_id"]):
            for i, (request, answer) in enumerate(zip(sample["arguments"], sample["filtered_resps"])):
                lines.append({"task": name, "question": sample["doc_id"], "choice": i, "context": request[0], "continuation": request[1],
                              "log_likelihood": float(answer[0]), "greedy": int(answer[1])})
        values = {k.split(",")[0]: v for k, v in done["results"][f"linnet_{name}"].items() if k.endswith(",none") and isinstance(v, float)}
        lines.append({"task": name, **values})
    return lines


def of_linnet(linnet, folder):
    lines = []
    for name, (_, _, words) in TASKS.items():
        done = subprocess.run([linnet, "task", words[0], folder, DATA / f"{name}.jsonl", *words[1:], "--likelihoods", "true", "--json"], check=True,
                              capture_output=True, text=True)
        lines += [{**json.loads(x), "task": name} for x in done.stdout.splitlines()]
    return lines


def page(folder, label, theirs, ours, worst):
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from equal_backbone import machine_of
    folder.mkdir(parents=True, exist_ok=True)
    said = ", ".join(f"{x} {importlib.metadata.version(x)}" for x in ("lm-eval", "transformers", "torch"))
    lines = [f"""# lambada and piqa beside EleutherAI's harness

One small Llama of Transformers (two layers of width 32, four heads over two, 330 ids), drawn by linnet and converted; questions of our own
(`tests/commands/likelihoods/`), the harness's tasks `lambada_openai` and `piqa` with their prompts, and `linnet task lambada` and `choice --format piqa`. The model is not
trained: what is compared is the prompts, the tokens and the numbers. Largest difference, of a number's size or of 1: **{worst:.1e}**; the prompts are the same, letter by letter.

`python3 bench/eleuther.py --linnet build/linnet --work DIR --page bench/results/harness`, {said}; {machine_of(["cpu"])}, float32, commit {label}, {datetime.date.today().isoformat()}; seed of
the weights 5. The harness's prompts and likelihoods are kept as a test (`expected.jsonl`, `tests/commands/cases_likelihoods.py`).

| task | question | continuation | harness, log likelihood | linnet |
|---|---|---|---|---|
"""]
    results = []
    for x, y in zip(theirs, ours):
        if "question" in x:
            lines.append(f"| {x['task']} | {x['question']}{'ab'[x['choice']] if x['task'] == 'piqa' else ''} | {x['continuation'].strip()} | {x['log_likelihood']:.5f} | "
                         f"{y['log_likelihood']:.5f} |\n")
        else:
            results += [f"| {x['task']} | {k} | {v:.9g} | {y[k]:.9g} |\n" for k, v in x.items() if k != "task"]
    lines += ["\n| task | result | harness | linnet |\n|---|---|---|---|\n", *results]
    (folder / "README.md").write_text("".join(lines), encoding="utf-8")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--linnet", type=Path, default=Path("build/linnet"))
    p.add_argument("--work", type=Path, required=True)
    p.add_argument("--write", action="store_true")
    p.add_argument("--page", type=Path)
    p.add_argument("--label", default="not noted")
    a = p.parse_args()
    shutil.rmtree(a.work, ignore_errors=True)
    a.work.mkdir(parents=True)
    subprocess.run([a.linnet, "train", DATA / "piqa.jsonl", "--out", a.work / "model", *MODEL], check=True, capture_output=True)
    subprocess.run([a.linnet, "convert", a.work / "model", a.work / "transformers", "--to", "transformers"], check=True)
    theirs, ours = of_harness(a.work / "transformers", a.work), of_linnet(a.linnet, a.work / "model")
    if a.write:
        (DATA / "expected.jsonl").write_text("".join(json.dumps(x, ensure_ascii=False) + "\n" for x in theirs), encoding="utf-8")
    wrong = len(theirs) != len(ours)
    worst = 0
    for x, y in zip(theirs, ours):
        for key, value in x.items():
            if isinstance(value, float):
                worst = max(worst, abs(value - y[key]) / max(1, abs(value)))
            elif value != (" " + y[key] if key == "continuation" else y.get(key, value)):
                print(f"harness {x}\nlinnet  {y}")
                wrong = True
    if a.page:
        page(a.page, a.label, theirs, ours, worst)
    print(f"{len(theirs)} lines, largest difference {worst:.2e}")
    return 1 if wrong or worst > 1e-5 else 0


if __name__ == "__main__":
    sys.exit(main())

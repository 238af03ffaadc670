"""The class for EleutherAI's harness: its numbers against logits of whole texts, and the harness's own run of a local task."""
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lm_eval", reason="lm-eval is not installed")

import linnet  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model = linnet.Model.create("gated_deltanet", hidden_size=32, num_hidden_layers=2, num_heads=2, head_dim=16, vocab_size=256, threads=1)
    model.save(path)
    return path


class Request:
    def __init__(self, *args):
        self.args = args


def truth(model, context, continuation):
    """Sum of log-probabilities and whether all are the most likely, from logits of the whole text of bytes."""
    ids = list((context + continuation).encode())
    rows = np.asarray(model.logits(ids), np.float64)
    rows = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
    n = len(context.encode())
    return sum(rows[i - 1][ids[i]] for i in range(n, len(ids))), all(rows[i - 1].argmax() == ids[i] for i in range(n, len(ids)))


def test_log_likelihoods(folder):
    from linnet.lm_eval import LinnetLM
    lm = LinnetLM(str(folder), threads=1, max_length=16)
    pairs = [("What is it?", " a cat"), ("What is it?", " a dog"), ("Na\u00efve ", "end "), ("no blank", "x")]
    got = lm.loglikelihood([Request(*p) for p in pairs])
    for (context, continuation), (score, greedy) in zip(pairs, got):
        blanks = context[len(context.rstrip()):]  # they belong to what follows
        want, best = truth(lm.model, context.rstrip(), blanks + continuation)
        assert abs(score - want) < 1e-4 and greedy == best
    text = "to be or not to be, that is the question"
    pieces = [text[i:i + 16] for i in range(0, len(text), 16)]
    want = sum(truth(lm.model, before, piece)[0] for before, piece in zip(["\n"] + [p[-1] for p in pieces], pieces))
    assert abs(lm.loglikelihood_rolling([Request(text)])[0] - want) < 1e-3
    assert abs(lm.loglikelihood([Request("", "ab")])[0][0] - truth(lm.model, "\n", "ab")[0]) < 1e-4


def test_generation_ends_at_a_stop(folder):
    from linnet.lm_eval import LinnetLM
    lm = LinnetLM(str(folder), threads=1)
    whole, = lm.generate_until([Request("abc", {"until": [], "max_gen_toks": 12})])
    g = lm.model.generate("abc", max_tokens=12, temperature=0)
    assert whole == g.text
    end = g.bytes[5:6]
    if end.isascii():
        cut, = lm.generate_until([Request("abc", {"until": [end.decode()], "max_gen_toks": 12})])
        assert cut == g.bytes[:g.bytes.index(end)].decode("utf-8", "replace")


def test_the_harness_runs_a_local_task(folder, tmp_path):
    """A multiple-choice task on a file, by the harness's own command; its accuracy is that of the log-likelihoods."""
    docs = [{"question": f"{i} and one?", "choices": [f"{i + 1}", f"{i + 2}", "none"], "gold": i % 3} for i in range(8)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(d) + "\n" for d in docs))
    (tmp_path / "counting.yaml").write_text(
        "task: counting\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: " + str(tmp_path / "data.jsonl") + "\ntest_split: test\n"
        "output_type: multiple_choice\ndoc_to_text: \"{{question}}\"\ndoc_to_target: gold\ndoc_to_choice: choices\n"
        "metric_list:\n  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n")
    done = subprocess.run([sys.executable, "-m", "linnet.lm_eval", "--model", "linnet", "--model_args", f"pretrained={folder},threads=1", "--device", "cpu",
                           "--tasks", "counting", "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1]), "HF_HUB_OFFLINE": "1",
                               "HF_HOME": str(tmp_path / "hf")}, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(next((tmp_path / "out").rglob("results*.json")).read_text())["results"]["counting"]
    model = linnet.Model.load(folder, threads=1)
    right = sum(int(np.argmax([truth(model, d["question"], " " + c)[0] for c in d["choices"]]) == d["gold"]) for d in docs)
    assert abs(result["acc,none"] - right / len(docs)) < 1e-9

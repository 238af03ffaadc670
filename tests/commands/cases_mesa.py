"""Models with mesa layers: a look inside, and hybrids."""
import csv
import json
import math
import struct
import xml.etree.ElementTree as xml

from cases_models import model, text_file
from harness import case, files_below, linnet, refused, write_safetensors

SMALL = ["--width", "32", "--layers", "2", "--heads", "2", "--set", "head_dim=16", "--batch", "2", "--length", "64", "--steps", "20", "--warmup", "2",
         "--eval-every", "0"]
_cache = {}


def mesa_model():
    if "model" not in _cache:
        _cache["model"] = text_file().parent / "mesa"
        linnet("train", text_file(), "--out", _cache["model"], "--mixer", "equal_backbone", "--set", "rule=mesa", *SMALL)
    return _cache["model"]


def table(path):
    """Rows of a CSV file in which every cell but the names of solvers and settings is a number or empty."""
    rows = list(csv.DictReader(path.open()))
    assert rows and all(None not in row and None not in row.values() for row in rows), path
    for row in rows:
        for key in set(row) - {"setting", "solver"}:
            row[key] = float(row[key]) if row[key] else None
            assert row[key] is None or math.isfinite(row[key]), (path, row)
    return rows


@case("task mesa-analysis leaves CSV files, JSON lines and a page, and changes nothing of the model")
def mesa_files(folder):
    before = files_below(mesa_model())
    done = linnet("task", "mesa-analysis", mesa_model(), text_file(), "--out", folder / "inside", "--length", "64", "--tokens", "1000")
    assert files_below(mesa_model()) == before
    assert {p.name for p in (folder / "inside").iterdir()} == {"heads.csv", "condition.csv", "cosine.csv", "steps.csv", "loss.csv", "summary.csv", "mesa.svg", "results.jsonl",
                                                                "model.csv", "setting.csv"}
    assert "tolerance 0.0001" in done.out and str(folder / "inside") in done.out
    heads = table(folder / "inside" / "heads.csv")
    assert [(row["layer"], row["head"]) for row in heads] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(0 < row["beta"] < 1 and 0 < row["gamma"] < 1 and 0.25 < row["lambda_smallest"] <= row["lambda_mean"] <= row["lambda_largest"] for row in heads)
    condition = table(folder / "inside" / "condition.csv")
    assert {row["position"] for row in condition} == {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}
    assert all(math.isclose(row["condition"], row["largest"] / row["smallest"], rel_tol=1e-6) and row["condition"] >= 1 for row in condition)
    cosine = table(folder / "inside" / "cosine.csv")
    assert [(row["first"], row["last"]) for row in cosine][:4] == [(1, 1), (2, 2), (3, 3), (4, 4)] and len(cosine) == 4 * 12
    assert all(-1 <= row["cosine"] <= 1 for row in cosine) and min(row["cosine"] for row in cosine) < 1
    steps = table(folder / "inside" / "steps.csv")
    assert {row["solver"] for row in steps} == {"level", "plain"} and {row["tolerance"] for row in steps} == {0.1, 0.01, 0.001, 0.0001}
    assert len(steps) == 2 * 4 * 4 * 12 and all(0 <= row["mean"] <= row["most"] and row["unfinished"] == 0 for row in steps)
    root = xml.parse(folder / "inside" / "mesa.svg").getroot()
    words = " ".join(e.text or "" for e in root.iter())
    settings = json.loads((folder / "inside" / "results.jsonl").read_text().splitlines()[0])
    assert settings["row"] == "settings" and settings["options"]["tokens"] == 1000 and set(settings["files"]) == {p.name for p in (folder / "inside").iterdir()}
    for word in ("layer 0", "layer 1", "30 steps", "tolerance 0.01", "15 windows of 64 tokens", "linnet task mesa-analysis", "tokens 1000", "nan", "inf"):
        assert (word in words) == (word not in ("nan", "inf")), word


@case("task mesa-analysis --learnt N marks the length learnt from and tells losses within and beyond it apart")
def mesa_learnt(folder):
    ask = ["task", "mesa-analysis", mesa_model(), text_file(), "--out", folder / "inside", "--length", "128", "--tokens", "640", "--budgets", "0"]
    done = linnet(*ask, "--learnt", "64", "--json")
    row = json.loads(done.out.splitlines()[1])
    assert row["budget"] == 0 and math.isclose((row["within"] + row["beyond"]) / 2, row["difference"], abs_tol=1e-6), row
    assert "learnt" not in done.err, done.err
    words = " ".join(e.text or "" for e in xml.parse(folder / "inside" / "mesa.svg").getroot().iter())
    assert "64 tokens, the windows that the model has learnt from" in words
    refused(*ask[:4], "--out", folder / "x", "--learnt", "many", says=["learnt", "many"])
    assert not (folder / "x").exists()


@case("a budget's loss is what eval says of a model whose config.json has that budget, at every position")
def mesa_budgets(folder):
    linnet("task", "mesa-analysis", mesa_model(), text_file(), "--out", folder / "inside", "--length", "64", "--tokens", "960", "--budgets", "0,3",
           "--tolerances", "0.5")
    loss = table(folder / "inside" / "loss.csv")
    summary = {(row["setting"], row["value"]): row for row in table(folder / "inside" / "summary.csv")}
    assert set(summary) == {("model", None), ("steps", 0), ("steps", 3), ("tolerance", 0.5)}
    same = folder / "same"
    same.mkdir()
    for p in mesa_model().iterdir():
        (same / p.name).write_bytes(p.read_bytes())
    for key, changes in {("model", None): {}, ("steps", 0): {"max_cg_step_training": 0, "cg_tolerance": 0}, ("steps", 3): {"max_cg_step_training": 3, "cg_tolerance": 0},
                         ("tolerance", 0.5): {"cg_tolerance": 0.5}}.items():
        config = json.loads((mesa_model() / "config.json").read_text())
        (same / "config.json").write_text(json.dumps({**config, **changes}))
        r = json.loads(linnet("eval", same, text_file(), "--length", "64", "--max-tokens", "960", "--csv", folder / "eval.csv", "--json").out)
        assert math.isclose(r["nats_per_token"], summary[key]["loss"], abs_tol=2e-6), (key, r, summary[key])
        mine = [row["loss"] for row in loss if (row["setting"], row["value"]) == key]
        assert len(mine) == 64
        assert all(math.isclose(row["loss"], x, abs_tol=2e-6) for row, x in zip(table(folder / "eval.csv"), mine))
    assert summary["steps", 0]["difference"] != 0


def unnamed(folder):
    """The files without what the run was, which names folder and threads: the first line of results.jsonl, the last ones of the page."""
    files = files_below(folder)
    files["results.jsonl"] = files["results.jsonl"].split(b"\n", 1)[1]
    files["mesa.svg"], settings = files["mesa.svg"].split(b">linnet task mesa-analysis", 1)
    assert b"nats per token" in files["mesa.svg"] and b"nats per token" not in settings
    return files


@case("task mesa-analysis --json: one line for the model, one for each setting; the same bytes for any number of threads, in bf16 too")
def mesa_json(folder):
    for dtype in ("f32", "bf16"):
        ask = ["task", "mesa-analysis", mesa_model(), text_file(), "--length", "32", "--tokens", "320", "--json", "--dtype", dtype]
        one = linnet(*ask, "--out", folder / f"one-{dtype}", "--threads", "1")
        two = linnet(*ask, "--out", folder / f"two-{dtype}", "--threads", "2")
        assert one.out == two.out and unnamed(folder / f"one-{dtype}") == unnamed(folder / f"two-{dtype}")
        lines = [json.loads(line) for line in one.out.splitlines()]
        assert lines[0]["task"] == "mesa-analysis" and lines[0]["layers"] == 2 and lines[0]["heads"] == 2 and lines[0]["tokens"] == 320
        assert [line["budget"] for line in lines[1:6]] == [0, 5, 10, 15, 30] and [line["tolerance"] for line in lines[6:]] == [0.1, 0.01, 0.001, 0.0001]
        assert lines[1]["paper_steps"] is None and lines[6]["paper_steps"] > 0


@case("task mesa-analysis refuses what it cannot read, in one message, and leaves nothing behind")
def mesa_refusals(folder):
    out = folder / "inside"
    ask = ["task", "mesa-analysis"]
    refused(*ask, model(), text_file(), "--out", out, says=["no mesa layer", "gated_deltanet", "--mixer mesa_net"])
    refused(*ask, mesa_model(), text_file(), says=["out is missing"])
    refused(*ask, mesa_model(), says=["MODEL TEXT"])
    refused(*ask, folder / "nowhere", text_file(), "--out", out, says=["nowhere"])
    refused(*ask, mesa_model(), folder / "nothing.txt", "--out", out, says=["nothing.txt"])
    (folder / "empty.txt").write_text("")
    refused(*ask, mesa_model(), folder / "empty.txt", "--out", out)
    (folder / "one.txt").write_text("a")
    refused(*ask, mesa_model(), folder / "one.txt", "--out", out, says=["1 token", "at least 2"])
    for flag, value in (("--budgets", "5,-1"), ("--budgets", "1,2,"), ("--budgets", "1.5"), ("--budgets", "1,2,3,4,5,6,7"), ("--budgets", ""),
                        ("--tolerances", "0"), ("--tolerances", "1e-3;1e-4"), ("--solver", "flash"), ("--length", "0"), ("--tokens", "-1")):
        refused(*ask, mesa_model(), text_file(), "--out", out, flag, value, says=[value])
    assert not out.exists()
    out.write_text("a file")
    refused(*ask, mesa_model(), text_file(), "--out", out, "--tokens", "64", "--length", "32", says=["inside"])
    assert out.read_text() == "a file"


@case("task mesa-analysis on a full disk ends with a message and without half a file")
def mesa_full_disk(folder):
    out = folder / "inside"
    done = linnet("task", "mesa-analysis", mesa_model(), text_file(), "--out", out, "--tokens", "640", "--length", "64", file_limit=3000, code=2)
    assert "File too large" in done.err and done.out == "", done.err
    for p in out.iterdir():
        assert p.suffix == ".csv" and p.read_text().endswith("\n") and table(p), p


@case("hybrids from one flag: mesa with window attention, mesa and gated delta rule by turns, in both forms, trained, evaluated and written with")
def hybrids(folder):
    patterns = {"mesa_net,attention:16": ("mesa_net", "attention", []), "mesa_net,gated_deltanet": ("linnet", "gated_delta_rule", ["--set", "use_gate=false"]),
                "mesa,attention:16": ("linnet", "attention", ["--mixer", "equal_backbone"]),
                "mesa,gated_deltanet": ("linnet", "gated_delta_rule", ["--mixer", "equal_backbone"])}
    for i, (pattern, (kind, second, more)) in enumerate(patterns.items()):
        out = folder / f"m{i}"
        flags = ["--pattern", pattern, *SMALL, "--layers", "4", *more]
        said = linnet("train", text_file(), "--out", out, *flags).out
        assert ("saved as linnet's own model type" in said) == (kind == "linnet"), said
        config = json.loads((out / "config.json").read_text())
        assert config["model_type"] == kind, config
        if pattern == "mesa_net,attention:16":
            assert "layer_mixers" not in config, "what flash-linear-attention can say too is said its way"
            assert config["attn"]["layers"] == [1, 3] and config["attn"]["window_size"] == 16 and config["attn"]["num_heads"] == 2
        else:
            assert config["layer_mixers"][:2] == config["layer_mixers"][2:] == pattern.split(":")[0].split(",")
        program = linnet("inspect", out, "--program").out
        assert program.count("= mesa ") == program.count(f"= {second} ") == 2, program
        log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        losses = [line["loss"] for line in log if "loss" in line]
        assert sum(losses[-5:]) / 5 < losses[0] - 0.2, losses
        assert math.isfinite(json.loads(linnet("eval", out, text_file(), "--length", "64", "--max-tokens", "640", "--json").out)["nats_per_token"])
        linnet("generate", out, "--prompt", "static ", "--tokens", "8", "--greedy")
        linnet("task", "mesa-analysis", out, text_file(), "--out", folder / f"inside{i}", "--length", "64", "--tokens", "128")
        assert {row["layer"] for row in table(folder / f"inside{i}" / "heads.csv")} == {0, 2}
    for i, pattern in enumerate(("gated_deltanet,retnet", "attention,linear_attn,attention:8", "equal_backbone,delta_net")):  # each with its own defaults
        out = folder / f"p{i}"
        flags = ["--pattern", pattern, "--width", "32", "--heads", "2", "--layers", "3", "--steps", "2", "--batch", "1", "--length", "16"]
        linnet("train", text_file(), "--out", out, *flags)
        linnet("eval", out, text_file(), "--length", "16", "--max-tokens", "32")
        linnet("train", text_file(), "--out", out, *flags, "--resume")
    # docs/experiments.md#hybrids
    for i, (pattern, *more) in enumerate((("mamba,attention:16", "mlp=swiglu"), ("2*rglru,attention:16", "num_kv_heads=1"), ("rglru,mesa_net",),
                                          ("4*mamba,attention,3*mamba", "mlp=moe", "expert_period=2", "expert_offset=1", "attention_rope=false"),
                                          ("7*lightning_attn,attention", "mlp=moe", "block=normed_residual", "rotary_factor=0.5"))):
        flags = ["--width", "32", "--heads", "2", "--layers", "8", "--steps", "2", "--batch", "1", "--length", "16"]
        linnet("train", text_file(), "--out", folder / f"h{i}", "--pattern", pattern, *flags, *(word for key in more for word in ("--set", key)))
        linnet("generate", folder / f"h{i}", "--prompt", "static ", "--tokens", "4", "--greedy")
    linnet("train", text_file(), "--out", folder / "w", "--pattern", "mesa_net:2147483647,attention:2147483647", *flags[:4], "--layers", "2", *flags[6:])
    linnet("generate", folder / "w", "--prompt", "static ", "--tokens", "4", "--greedy")  # a window has no more rows than there are tokens
    refused("train", text_file(), "--out", folder / "x", "--mixer", "equal_backbone", "--set", "rule=mlstm", "--set", "mesa_window=16",
            says=["mesa_window is 16, expected null: it is for rule mesa, and rule is mlstm"])
    refused("train", text_file(), "--out", folder / "x", "--pattern", "mesa_net,magic", says=["magic", "gated_deltanet"])
    refused("train", text_file(), "--out", folder / "x", "--pattern", "3*mesa_net,attention:8", "--layers", "2", says=["4 layers", "has 2"])
    refused("train", text_file(), "--out", folder / "x", "--pattern", "gated_deltanet:8", says=["gated_deltanet has no window"])
    assert not (folder / "x").exists()


@case("cg_solver=sherman_morrison on a layer that forgets is refused with why: in training, in one piece, token by token, writing")
def forgetting_by_inverse(folder):
    says = ["sherman_morrison", "use_forget_gate = false"]
    flags = ["--mixer", "mesa_net", *SMALL]
    done = refused("train", text_file(), "--out", folder / "a", *flags, "--set", "cg_solver=sherman_morrison", says=says)
    assert "learning" not in done.err, done.err  # no rate would help
    linnet("train", text_file(), "--out", folder / "m", *flags)
    config = json.loads((folder / "m" / "config.json").read_text())
    config["cg_solver"] = "sherman_morrison"
    (folder / "m" / "config.json").write_text(json.dumps(config))
    ids, out = folder / "ids.safetensors", folder / "out.safetensors"
    write_safetensors(ids, {"input_ids": ("I64", (1, 40), struct.pack("<40q", *range(40)))})
    for more in ([], ["--step"]):
        refused("logits", folder / "m", ids, out, *more, says=says)
        assert not out.exists()
    linnet("generate", folder / "m", "--prompt", "a", "--tokens", "40", code=2)
    linnet("train", text_file(), "--out", folder / "n", *flags, "--set", "cg_solver=sherman_morrison", "--set", "use_forget_gate=false")
    linnet("logits", folder / "n", ids, out, "--step")

"""linnet op, bench, task, mixers, inspect."""
import json
import math
import random
import re
import shutil
import subprocess
import xml.etree.ElementTree as xml
from pathlib import Path

from cases_models import model, text_file
from harness import Skip, case, f32, floats, linnet, read_safetensors, refused, write_safetensors

B, T, HQ, HV, K, V = 1, 20, 1, 2, 8, 6


def gated_delta_inputs(seed=1):
    r = random.Random(seed)
    normal = lambda *shape: ("F32", shape, f32(r.gauss(0, 0.3) for _ in range(math.prod(shape))))
    return {"q": normal(B, T, HQ, K), "k": normal(B, T, HQ, K), "v": normal(B, T, HV, V),
            "g": ("F32", (B, T, HV), f32(-r.random() for _ in range(B * T * HV))),
            "beta": ("F32", (B, T, HV), f32(r.random() for _ in range(B * T * HV))), "do": normal(B, T, HV, V)}


@case("op runs forward and backward, chunk and token form agree with the float64 reference, its line names what ran")
def op_runs(folder):
    write_safetensors(folder / "in.safetensors", gated_delta_inputs())
    results = {}
    for dtype, form in (("f64", "auto"), ("f32", "chunk"), ("f32", "recurrent")):
        out = folder / f"{dtype}-{form}.safetensors"
        done = linnet("op", "gated_delta_rule", folder / "in.safetensors", out, "--backward", "--dtype", dtype, "--form", form)
        assert done.out.startswith("gated_delta_rule ") and " ms" in done.out and len(done.out.splitlines()) == 1, done.out
        results[dtype, form] = {n: floats(t) for n, t in read_safetensors(out).items()}
    truth = results["f64", "auto"]
    assert {"o", "sT", "dq", "dk", "dv", "dg", "dbeta"} <= set(truth), sorted(truth)
    for form in ("chunk", "recurrent"):
        for name, values in results["f32", form].items():
            error = math.sqrt(sum((a - b) ** 2 for a, b in zip(values, truth[name])) / max(1e-30, sum(b * b for b in truth[name])))
            assert error < 1e-5, (form, name, error)


@case("op writes how mesa's solves went, of the forward call, unless it is not wanted")
def op_reports(folder):
    inputs = gated_delta_inputs() | {"lambda": ("F32", (HV, K), f32([1] * (HV * K)))}
    write_safetensors(folder / "in.safetensors", inputs)
    write_safetensors(folder / "without.safetensors", inputs, {"report": "0"})
    for more in ([], ["--backward"], ["--dtype", "f64"], ["--dtype", "bf16"], ["--set", "cg_max_iter=1"], ["--set", "report=0"]):
        linnet("op", "mesa", folder / "in.safetensors", folder / "out.safetensors", *more)
        out = read_safetensors(folder / "out.safetensors")
        if more[-1:] == ["report=0"]:
            assert {"o", "sT_kv", "sT_kk"} == set(out), sorted(out)
            continue
        steps, residual = floats(out["steps"]), floats(out["residual"])
        assert out["steps"][1] == out["residual"][1] == [B, T, HV], out["steps"][1]
        one = more[-1:] == ["cg_max_iter=1"]
        assert max(steps) <= (1 if one else 30), steps
        assert (max(residual) > 1e-3) == one and max(residual) < (1 if one else 2e-4), residual
    linnet("op", "mesa", folder / "without.safetensors", folder / "out.safetensors")
    assert "steps" not in read_safetensors(folder / "out.safetensors")
    refused("op", "mesa", folder / "in.safetensors", folder / "x.safetensors", "--set", "report=2", says=["report", "0 or 1"])


@case("op gives the same bytes for one, two and three threads")
def op_threads(folder):
    write_safetensors(folder / "in.safetensors", gated_delta_inputs())
    results = set()
    for threads in (1, 2, 3):
        linnet("op", "gated_delta_rule", folder / "in.safetensors", folder / "out.safetensors", "--backward", "--threads", threads)
        results.add((folder / "out.safetensors").read_bytes())
    assert len(results) == 1


@case("op refuses wrong names, shapes, types, gates and files with one message and leaves no output")
def op_refuses(folder):
    good, out = gated_delta_inputs(), folder / "out.safetensors"

    def wrong(says, change=None, op="gated_delta_rule", flags=()):
        tensors = dict(good)
        if change:
            change(tensors)
        write_safetensors(folder / "in.safetensors", tensors)
        refused("op", op, folder / "in.safetensors", out, *flags, says=says)
        assert not out.exists()

    wrong(["gated_delta_ruler"], op="gated_delta_ruler")
    wrong(["beta"], lambda t: t.pop("beta"))
    wrong(["beta"], lambda t: t.update(beta=("F32", (B, T, HV + 1), f32([0.5] * (B * T * (HV + 1))))))
    wrong(["k"], lambda t: t.update(k=("I64", t["k"][1], t["k"][2] * 2)))
    wrong(["g"], lambda t: t.update(g=("F32", (B, T, HV), f32([float("nan")] * (B * T * HV)))))
    wrong(["2", "3"], lambda t: (t.update(q=("F32", (B, T, 3, K), f32([0.1] * (B * T * 3 * K)))), t.update(k=t["q"])))
    wrong(['"cu_seqlens" is f32 [2], expected i64 [N+1]', "in.safetensors"], lambda t: t.update(cu_seqlens=("F32", (2,), f32([0, T]))))
    normal = lambda *shape: ("F32", shape, f32([0.1] * math.prod(shape)))
    steps = {"u": normal(B, T, 4), "delta": ("F32", (B, T, 4), f32([-1.0] * (B * T * 4))), "A": ("F32", (4, 2), f32([-1.0] * 8)), "B": normal(B, T, 2), "C": normal(B, T, 2)}
    wrong(['tensor "delta" holds -1 at element 0, expected a number of at least 0'], lambda t: (t.clear(), t.update(steps)), op="selective_scan")
    wrong(["wobbly"], flags=["--form", "wobbly"])
    wrong(["chunk-z80"], flags=["--impl", "chunk-z80"])
    wrong(["--dtype"], flags=["--dtype", "f8"])
    wrong(["scale"], flags=["--set", "scale=heavy"])
    write_safetensors(folder / "in.safetensors", good)
    raw = (folder / "in.safetensors").read_bytes()
    for size in (0, 4, 8, 100, len(raw) - 1):
        (folder / "in.safetensors").write_bytes(raw[:size])
        refused("op", "gated_delta_rule", folder / "in.safetensors", out)
        assert not out.exists()
    refused("op", "gated_delta_rule", folder / "absent.safetensors", out, says=["absent.safetensors"])
    write_safetensors(folder / "in.safetensors", good)
    refused("op", "gated_delta_rule", folder / "in.safetensors", folder / "no" / "such" / "folder.safetensors", says=["folder.safetensors"])


@case("op: a form that is named runs or is refused with the reason, so are weights, and the option that takes a tensor away is named")
def op_forms(folder):
    path, out, good = folder / "in.safetensors", folder / "out.safetensors", gated_delta_inputs()
    rows = {n: good[n] for n in "qkv"}
    gates = ("F32", (B, T, HV, K), f32([-0.1] * (B * T * HV * K)))

    def wrong(op, tensors, *flags, says):
        write_safetensors(path, tensors)
        refused("op", op, path, out, *flags, says=says)
        assert not out.exists()

    def runs(op, tensors, *flags):
        write_safetensors(path, tensors)
        said = linnet("op", op, path, out, *flags).out
        written = read_safetensors(out)
        out.unlink()
        return said, written

    signed = {**rows, "gk": gates, "sign_k": ("F32", (B, T, HV, K), f32([-1] * (B * T * HV * K)))}
    for form in ("chunk", "parallel"):
        wrong("gla", signed, "--set", "signed=1", "--form", form, says=[f"forward cannot take the form {form}: signs of rows and columns", '"reference"'])
    assert " recurrent-" in runs("gla", signed, "--set", "signed=1", "--form", "recurrent")[0]
    assert " f32 reference" in runs("gla", signed, "--set", "signed=1", "--form", "chunk", "--impl", "reference")[0]
    for form, impl, of in (("parallel", "recurrent-base", "recurrent"), ("chunk", "recurrent-base", "recurrent"), ("recurrent", "chunk-base", "chunk")):
        wrong("linear_attn", rows, "--form", form, "--impl", impl, says=[f'implementation "{impl}" is of the form {of}, but form is "{form}"'])
    assert " chunk-base" in runs("linear_attn", rows, "--form", "parallel", "--impl", "chunk-base")[0]
    weights = ["--weights"]
    whole = runs("gla", signed, "--set", "signed=1", *weights)[1]  # no chunks take these signs
    w, v, o = floats(whole["weights"]), floats(rows["v"]), floats(whole["o"])
    weighed = [sum(w[(t * HV + h) * T + s] * v[(s * HV + h) * V + j] for s in range(T)) for t in range(T) for h in range(HV) for j in range(V)]
    assert max(abs(x - y) for x, y in zip(weighed, o)) < 1e-5, (weighed[:4], o[:4])
    wrong("attention", rows, *weights, says=["weights of attention are not offered", "linear_attn, retention", ", mesa."])
    wrong("scan", {"x": ("F32", (1, 2, 1), f32([1, 2])), "log_a": ("F32", (1, 2, 1), f32([-1, -1]))}, *weights, says=["weights of scan are not offered"])
    none = runs("linear_attn", {n: (t, (1, 0, *shape[2:]), b"") for n, (t, shape, _) in rows.items()}, *weights)[1]
    assert none["weights"][:2] == ("F32", [1, 0, HV, 0]), none["weights"]
    mesa = {**good, "lambda": ("F32", (HV, K), f32([0.5] * (HV * K)))}
    state = ("F32", (1, HV, K, V), f32([0] * (HV * K * V)))
    wrong("mesa", {**mesa, "s0_kv": state}, "--set", "window=8", says=['mesa takes no tensor "s0_kv" with window = 8', "in.safetensors"])
    wrong("mesa", {**mesa, "sign": good["beta"]}, says=['takes no tensor "sign" with signed = 0'])
    wrong("mesa", {**mesa, "lambda_t": gates}, "--set", "lambda_varies=1", says=['takes no tensor "lambda" with lambda_varies = 1'])
    heads = {n: ("F32", (1, 2, 1, 4), f32([0.1] * 8)) for n in "qkv"}
    wrong("ttt_linear", {**heads, "ln_w": ("F32", (1, 4), f32([1] * 4))}, "--set", "inner=plain", says=['takes no tensor "ln_w" with inner = plain'])


@case("a device that is not there is refused with one sentence by every command, and no output is left")
def no_such_device(folder):
    path, out, text = folder / "in.safetensors", folder / "out.safetensors", folder / "text.txt"
    write_safetensors(path, gated_delta_inputs())
    text.write_text("some words " * 500)
    commands = [("op", "gated_delta_rule", path, out), ("train", text, "--out", out), ("eval", out, text), ("generate", out, "--prompt", "a"),
                ("logits", out, path, folder / "logits"), ("task", "mqar"), ("task", "mesa-analysis", out, text, "--out", out), ("bench", "op"), ("bench", "train"), ("bench", "decode"), ("bench", "machine")]
    for command in commands:
        refused(*command, "--device", "tpu", says=['unknown device "tpu"'])
        refused(*command, "--device", "cuda:x")
    refused("op", "gated_delta_rule", path, out, "--device", "cuda:99")
    if linnet("bench", "machine", "--device", "cuda", code=None).returncode == 0:
        refused("op", "gated_delta_rule", path, out, "--device", "cuda", "--dtype", "f64", says=["float64", "CPU"])
    else:
        for command in commands:
            done = refused(*command, "--device", "cuda", says=["GPU", "--device cpu"])
            assert done.out == "", done.out
    assert not out.exists()


@case("a device that is not there: an NVIDIA driver older than the build is told apart from none")
def old_driver(folder):
    none = linnet("bench", "machine", "--device", "cuda", code=None)
    compiler = shutil.which("cc") or shutil.which("gcc")
    if "no CUDA device" in none.err or not compiler:
        raise Skip("a build for the CPU alone, or no C compiler")
    (folder / "driver.c").write_text("int cuDriverGetVersion(int *v) { *v = 12020; return 0; }\nint cuInit(unsigned f) { return (int)f; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "driver.c"], check=True)
    refused("bench", "machine", "--device", "cuda", says=["driver offers CUDA 12.2", "needs 13.", "--device cpu"], env={"LD_LIBRARY_PATH": str(folder)})


@case("mixers lists layers and sizes, for people and as JSON lines")
def mixers(_):
    text = linnet("mixers").out
    lines = [json.loads(line) for line in linnet("mixers", "--json").out.splitlines()]
    names = [line["mixer"] for line in lines if "mixer" in line]
    assert {"linear_attn", "retnet", "simple_gla", "delta_net", "gated_deltanet"} <= set(names), names
    assert any("preset" in line for line in lines)
    takes = {line["mixer"]: line for line in lines if "mixer" in line}
    assert all(line["parameters"] > 0 and line["flops_a_token"] > 0 for line in takes.values()), takes
    assert all(line["state_bytes"] > 0 for line in takes.values() if line.get("recurrence")), takes
    assert takes["attention"]["state_grows"] and not takes["linear_attn"]["state_grows"] and "which grows with its length" in text
    assert takes["linear_attn"]["flops_a_token"] > 2 * takes["linear_attn"]["parameters"] > 2 * 4 * 2048 ** 2
    assert takes["linear_attn"]["state_bytes"] == 16 * 128 * 128 * 4 and takes["attention"]["state_bytes"] >= 2 * 2048 * 2048 * 4
    mesa, gated = takes["mesa_net"], takes["gated_deltanet"]
    assert mesa["flops_in_solves"] == 16 * 31 * (2 * 128 ** 2 + 4 * 16 * 128), "30 steps and the guess's residual (operators.md#flops)"
    assert mesa["flops_a_token"] > gated["flops_a_token"] > mesa["flops_a_token"] - mesa["flops_in_solves"] and gated["flops_in_solves"] == 0
    rules = {row["key"]: row.get("only") for row in json.loads(linnet("mixers", "equal_backbone", "--json").out)["keys"]}
    assert rules["cg_solver"] == rules["mesa_window"] == "rule mesa" and rules["rope_theta"] == "rule attention" and rules["num_heads"] is None, rules
    assert "1 to 2147483647 or null; default null; for rule mesa\n" in linnet("mixers", "equal_backbone").out
    assert text.count("FLOPs a token at most, 20.3M of them in solves") == 1
    kinds = [line[family] for line in lines for family in ("mixer", "block", "norm", "mlp") if family in line]
    for name in kinds:
        assert name in text
        said = linnet("mixers", name, "--json").out
        one = json.loads(said)
        assert said.count("\n") == 1, said
        assert {k: one.get(k) for k in takes.get(name, {})} == takes.get(name, {}), one
        said = linnet("mixers", name).out
        for key in one["keys"]:
            assert key["help"] and key["key"] in said and key["help"] in said and "default" in key, key
    assert any(key["key"] == "num_heads" and key["default"] == 8 for key in json.loads(linnet("mixers", "retnet", "--json").out)["keys"])
    assert linnet("mixers", "dfw").out == linnet("mixers", "decaying_fast_weight").out and "at width 2048, " in linnet("mixers", "dfw").out
    assert linnet("mixers", "dfw", "--json").out == linnet("mixers", "decaying_fast_weight", "--json").out
    refused("mixers", "perceptron", says=["perceptron", "retnet", "swiglu"])


@case("blocks, norms and MLPs are chosen by name, and another mixer's key or a wrong kind is refused with what there is")
def kinds(folder):
    lines = [json.loads(line) for line in linnet("mixers", "--json").out.splitlines()]
    takes = [line["mixer"] for line in lines if "mixer" in line]
    for family in ("norm", "mlp"):
        for name in (line[family] for line in lines if family in line):
            config = json.loads(linnet("inspect", "--mixer", "retnet", "--preset", "nano", "--set", f"{family}={name}", "--json").out)["config"]
            assert name in ("rmsnorm", "swiglu") or config[family]["kind"] == name, config
    for block in ("pre_norm", "sandwich", "parallel"):
        out = linnet("inspect", "--mixer", "retnet", "--preset", "nano", "--set", f"block={block}", "--json").out
        config = json.loads(out)["config"]
        assert (config["model_type"] == "retnet") == (block == "pre_norm") and (block == "pre_norm" or config["block"]["kind"] == block), config
    program = linnet("inspect", "--mixer", "retnet", "--preset", "nano", "--set", "mlp=none", "--parameters").out
    assert "mlp" not in program and "attn.g_proj" in program, program
    for kind in ("--mixer", "--pattern"):
        for name in ("dfw", "decaying_fast_weight"):
            refused("inspect", kind, "dfw", "--set", f"{name}.num_heads=3", says=["num_heads is 3"])
    for name in takes:  # heads that no one named follow the width
        linnet("inspect", "--mixer", name, "--preset", "nano", "--width", 64)
    for name, key in (("rwkv7", "head_dim"), ("hgrn2", "expand_ratio")):
        refused("inspect", "--mixer", name, "--preset", "medium", "--width", 320, says=[f"{key} is 128", "hidden_size = 320", "nearest divisors are 80 and 160."])
    refused("inspect", "--mixer", "attention", "--preset", "nano", "--heads", 300, says=["num_heads is 300", "hidden_size = 128", "nearest divisor is 128."])
    refused("inspect", "--mixer", "rwkv7", "--preset", "nano", "--heads", 4, says=["num_heads is 4", "hidden_size / head_dim = 2", "head_dim = null"])
    refused("inspect", "--mixer", "retnet", "--set", "mlp=big", says=["mlp is", "swiglu", "none"])
    refused("inspect", "--mixer", "retnet", "--set", "head_dim=8", says=["head_dim", "not a key of model type retnet", "num_heads", "expand_k"])
    refused("inspect", "--mixer", "retnet", "--set", "nothing=8", says=["unknown key", "nothing", "Its keys are vocab_size",
                                                                                     ", attn, block, norm, mlp, mixers, layer_mixers."])


@case("inspect shows size, parameters, program and picture of any mixer")
def inspect(_):
    names = [json.loads(line).get("mixer") for line in linnet("mixers", "--json").out.splitlines()]
    for name in filter(None, names):
        text = linnet("inspect", "--mixer", name, "--preset", "nano").out
        assert "parameters" in text and "state" in text, text
    tiny = ["inspect", "--mixer", "gated_deltanet", "--preset", "nano"]
    for mixer, grows in (("gated_deltanet", False), ("attention", True), ("hybrid_heads", True), ("mesa_net", False)):
        out = linnet("inspect", "--mixer", mixer, "--preset", "nano").out
        assert ("counted at 2048 tokens" in out) == grows, out
    assert "counted at" not in linnet("inspect", "--pattern", "attention:64,gla", "--preset", "nano").out  # a window is full before that
    assert "q_proj.weight" in linnet(*tiny, "--parameters").out
    assert "gated_delta_rule" in linnet(*tiny, "--program").out
    assert linnet(*tiny, "--graphviz").out.startswith("digraph")
    whole = json.loads(linnet(*tiny, "--json").out)
    assert json.loads(linnet(*tiny, "--program", "--parameters", "--json").out) == whole
    assert "gated_delta_rule" in [node["operator"] for node in whole["program"]] and all(p["starts_as"] for p in whole["parameter_table"])
    refused(*tiny, "--graphviz", "--json", says=["--graphviz and --json"])
    assert ", 1 layer of width" in linnet(*tiny, "--layers", 1).out
    assert " for 1 sequence of 1 token: " in linnet(*tiny, "--batch", 1, "--length", 1).out


@case("bench op checks, times and records operators; shares are of rates measured in the same run")
def bench_op(folder):
    small = ["--T", "64", "--heads", "2", "--set", "K=16", "--repeats", "1"]
    text = linnet("bench", "op", "gated_delta_rule", "simple_gla", *small, "--record", folder / "r.jsonl", "--label", "a test").out
    assert "gated_delta_rule" in text and "FLOP/s" in text and "%" in text
    lines = [json.loads(line) for line in (folder / "r.jsonl").read_text().splitlines()]
    assert [line["op"] for line in lines] == ["gated_delta_rule", "simple_gla"]
    for line in lines:
        assert line["label"] == "a test" and line["machine_f32_flops"] > 1e9 and line["forward_error"] < 1e-5 and line["backward_error"] < 1e-4
        assert math.isclose(line["forward_share"], line["forward_flops"] / line["forward_seconds"] / line["machine_f32_flops"], rel_tol=1e-6)
    assert not refused("bench", "op", "simple_gla", "no_such_op", *small, says=["no_such_op"]).out, "before the machine is measured"
    for record in (folder, folder / "no" / "r.jsonl"):
        for what in (("op", "simple_gla", *small), ("machine",), ("decode", "--preset", "nano"), ("train", "--preset", "nano")):
            assert not refused("bench", *what, "--record", record, says=["--record", str(record)]).out, "before the machine is measured"
    refused("bench", "op", "simple_gla", *small, "--set", "K=0", "--record", folder / "none.jsonl", says=["K = 0"])
    assert not (folder / "none.jsonl").exists()
    if Path("/dev/full").exists():
        refused("bench", "op", "simple_gla", *small, "--record", "/dev/full", says=["--record", "/dev/full", "No space left"])


@case("bench train times a small model and records it; --json prints the same line")
def bench_train(folder):
    done = linnet("bench", "train", "--mixer", "gated_deltanet", "--preset", "nano", "--batch", "1", "--length", "64", "--repeats", "1", "--json",
                  "--record", folder / "r.jsonl")
    line = json.loads(done.out)
    assert line == json.loads((folder / "r.jsonl").read_text())
    assert line["tokens_per_second"] > 0 and line["decode_seconds"] > 0 and line["peak_memory"] > 1e6


@case("bench decode times a token of several sequences, after a check of the steps against one pass")
def bench_decode(folder):
    done = linnet("bench", "decode", "--mixer", "delta_net", "--preset", "nano", "--batch", "3", "--steps", "4", "--json", "--record", folder / "r.jsonl")
    line = json.loads(done.out)
    assert line == json.loads((folder / "r.jsonl").read_text())
    assert line["batch"] == 3 and line["tokens_per_second"] > 0 and 0 < line["share"] and line["check_error"] < 1e-4
    refused("bench", "decode", "--batch", "0", says=["--batch"])


@case("task mqar trains and reports an accuracy between 0 and 1")
def task(_):
    line = json.loads(linnet("task", "mqar", "--mixer", "delta_net", "--steps", "5", "--pairs", "2", "--length", "16", "--vocabulary", "32",
                             "--test-examples", "20", "--json").out)
    assert 0 <= line["accuracy"] <= 1 and line["steps"] == 5
    line = json.loads(linnet("task", "mqar", "--mixer", "equal_backbone", "--set", "rule=delta_net", "--set", "head_dim=8", "--width", "16", "--steps", "2",
                             "--pairs", "2", "--rounds", "3", "--length", "16", "--vocabulary", "32", "--test-examples", "20", "--json").out)
    assert line["steps"] == 2
    for name in ("mqar", "word-problem", "mesa-parity"):  # a layer that counts its heads by their columns
        done = linnet("task", name, "--mixer", "rwkv7", "--steps", "1", "--batch", "1", "--test-examples", "1", "--json")
        assert json.loads(done.out.splitlines()[-1])["model_type"] == "rwkv7" and done.out
    # the size of a task reaches what a pattern adds to a kind without heads: the paper's two
    done = linnet("task", "mqar", "--pattern", "mamba,attention", "--steps", "1", "--batch", "1", "--test-examples", "1")
    assert "setting own (256x16)" in done.err + done.out and "num_heads" not in done.err + done.out, done.err + done.out
    refused("task", "word-problem", "--protocol", "paper", "--mixer", "delta_net", says=["num_heads is 12", "hidden_size * expand_k = 128", "8 and 16"])
    refused("task", "mqar", "--pairs", "40", "--length", "32", says=["40", "32"])
    unread = ["mqar --setting 64x4 --pairs 9", "mqar --setting mixed --length 128", "mqar --examples 9 --epochs 1 --steps 3", "mad --vocabulary 99",
              "mad --kind noisy --noise 0.2", "mad --settings own --kind fuzzy --copy 3", "mad --settings own --kind copying --noise 0.2",
              "mad --examples 4", "mad --weight-decay 1"]
    for line in unread:
        words = line.split()
        refused("task", *words, says=[f"{words[-2]} is {words[-1]}, ", "would not read"])


@case("what is wrong with an option of a task is said of the flag as it was typed, with the value and what was expected")
def task_options_by_flag(folder):
    (folder / "text").write_text("a few words")
    trains = [("mqar --steps 0", '"0", expected a whole number from 1 to'), ("mqar --test-every -1", '"-1", expected a whole number from 0 to'),
              ("mqar --weight-decay much", '"much", expected a number from 0'), ("mqar --setting huge", '"huge", expected own|64x4'),
              ("mqar --random-non-queries perhaps", '"perhaps", expected true|false'), ("mqar --learning-rate 1e-3,x", '"1e-3,x", expected at most 8 numbers'),
              ("mqar --length 4096 --batch 1048576", "1048576, which is too large"), ("parity --batch 0", '"0", expected a whole number from 1 to'), ("parity --epochs 3", "3, but the number"),
              ("mqar --length 31", "31, expected an even number"), ("mqar --length 32 --pairs 40", "40, but 1 rounds"),
              ("mqar --length 32 --pairs 7 --vocabulary 8", "8, expected at least 16"), ("parity --least 9 --most 8", "8, expected at least 9"),
              ("mod-arith --test-most 39", "39, expected at least 40"), ("mod-arith --mult true", "true without brackets"),
              ("mad --decays x", '"x", expected at most'), ("mad --settings own --kind fuzzy --vocabulary 6", "6, expected at least 7"),
              ("mad --settings own --kind fuzzy --length 18", "18, expected at least 19"),
              ("mad --settings own --kind copying --length 20", "20, expected at least 33"),
              ("mad --settings own --kind noisy --noise-vocabulary 15", "15, expected at most"), ("word-problem --limit 1", "1, expected 0 or at least 2"),
              ("word-problem --variant hard --test-length 3", "3, expected at least 4"), ("word-problem --group A5 --variant swaps", "swaps, expected another"),
              ("mqar --protocol long", '"long", expected short or paper')]
    reads = [("ppl text --lengths 5.5", '"5.5", expected whole numbers'), ("niah --lengths 1", '"1", expected at most'), ("niah --words", "missing"),
             ("mesa-analysis text --out", "missing"), ("mesa-analysis text --out out --budgets x", '"x", expected at most')]
    for line, rest in trains + reads:
        name, *words = line.split()
        typed = [word for word in words if word.startswith("--")][-1]
        if rest == "missing":
            words.remove(typed)
        done = refused("task", name, *([] if (line, rest) in trains else [model()]), *words, cwd=folder)
        assert done.err.splitlines()[0].startswith(f"linnet: {typed} is {rest}"), (line, done.err)


@case("every task that trains a model: settings refused by name and range, results as JSON lines, CSV and a page, the same for any number of threads")
def every_task(folder):
    small = ["--mixer", "delta_net", "--layers", "1", "--width", "16", "--heads", "2", "--steps", "2", "--batch", "4", "--json"]
    fewer = {"regbench": ["--automata", "8", "--test-automata", "4"], "mad": ["--kind", "in-context", "--test-examples", "8"]}
    tasks = [line for line in map(json.loads, linnet("task", "--json").out.splitlines()) if line["kind"] == "trains"]
    assert len(tasks) >= 8, tasks
    for task in (t["task"] for t in tasks):
        more = fewer.get(task, ["--test-examples", "8"])
        one = linnet("task", task, *small, *more, "--out", folder / task, "--threads", "1")
        two = linnet("task", task, *small, *more, "--threads", "2")
        lines, other = ([json.loads(line) for line in done.out.splitlines()] for done in (one, two))
        assert "estimated cost: 1 training of 2 updates" in one.err, one.err
        for line in lines + other:
            line.pop("seconds", None)
        assert lines == other and lines[0]["task"] == task and lines[0]["row"] == "result" and lines[0]["steps"] == 2, (lines, other)
        assert all(0 <= line["accuracy"] <= 1 and 0 <= line["exact"] <= 1 for line in lines if line["row"] == "result"), lines
        settings, *kept = [json.loads(line) for line in (folder / task / "results.jsonl").read_text().splitlines()]
        assert settings["row"] == "settings" and settings["options"]["steps"] == 2 and settings["model"]["hidden_size"] == 16, settings
        assert len(kept) == len(lines) and kept[0]["accuracy"] == lines[0]["accuracy"]
        assert len((folder / task / "result.csv").read_text().splitlines()) == 1 + sum(line["row"] == "result" for line in lines)
        words = " ".join(e.text or "" for e in xml.parse(folder / task / "page.svg").getroot().iter())
        assert task in words and "Training" in words and "nan" not in words.split(), words
        never = re.search("Never as in the paper: (.+?) task --", " ".join(linnet("task", task, "--help").out.split()))
        assert (f"never as in the paper: {never[1]}" in one.err) if never else "never as in" not in one.err, (task, one.err)
        assert "hidden_size 16 (" in one.err or task == "copying", one.err
        refused("task", task, "--steps", "0", says=["--steps", '"0"'])
        refused("task", task, "--stepps", "1", says=["--steps"])
        refused("task", task, "--protocol", "long", says=["long", "short"])
        refused("task", task, "--learning-rate", "1e-3,fast", says=["--learning-rate", "fast"])
    refused("task", "regbench", "--test-examples", 16, says=["--test-examples"])  # --test-automata says how many
    line = json.loads(linnet("task", "parity", *small, "--test-examples", "8", "--steps", "100000", "--budget", "0.02").out)
    assert 1 <= line["steps"] < 100000 == line["steps_wanted"], "a budget gives the steps that there is time for"
    line = json.loads(linnet("task", "parity", *small, "--test-examples", "16777216", "--budget", "0.02").out)
    assert 1 <= line["examples"] < 16777216 == line["examples_wanted"], "and the tests what there is time for"
    both = [json.loads(line) for line in linnet("task", "parity", *small, "--test-examples", "8", "--learning-rate", "1e-3,1e-2").out.splitlines()]
    assert [line["learning_rate"] for line in both] == [1e-3, 1e-2] and sum(line["best"] for line in both) == 1


@case("task --protocol paper trains the paper's model where none is described: its first loss is that of the keys by hand, and --help names them")
def paper_models(_):
    small, few = ["--epochs", 0, "--steps", 1, "--batch", 1, "--seed", 1, "--json"], ["--examples", 0, "--test-examples", 1]
    short = {"mqar": ["--setting", "own", "--length", 16, "--pairs", 2, "--vocabulary", 32, "--random-non-queries", "false", *few],
             "mesa-parity": ["--length", 8, "--test-length", 8, *few], "regbench": ["--automata", 8, "--test-automata", 4],
             "word-problem": ["--length", 4, "--test-length", 4, *few]}
    keys = {"mqar": "mlp=none norm=layernorm use_short_conv=false", "mesa-parity": "lambda_lower_bound=49", "regbench": "num_hidden_layers=8 hidden_size=256",
            "word-problem": "num_heads=12"}
    for task in (line["task"] for line in map(json.loads, linnet("task", "--json").out.splitlines()) if line["kind"] == "trains"):
        text = " ".join(linnet("task", task, "--help").out.split())
        assert (f"; paper {keys[task]}]" in text) if task in keys else "; paper num" not in text, (task, text)
        if task not in keys:
            continue
        mixer = ["--mixer", "mesa_net"] if task == "mesa-parity" else ["--mixer", "gated_deltanet"]
        by_hand = [word for key in keys[task].split() for word in ("--set", key)]
        first = {}
        for name, words in (("paper", ["--protocol", "paper"]), ("by hand", by_hand), ("short", [])):
            line = json.loads(linnet("task", task, *mixer, *small, *short[task], "--learning-rate", "1e-3", *words).out.splitlines()[0])
            first[name] = line["parameters"], line["loss"]
        assert first["paper"] == first["by hand"] != first["short"], (task, first)
    line = json.loads(linnet("task", "word-problem", *small, *short["word-problem"], "--learning-rate", "1e-3", "--protocol", "paper", "--heads", 8).out
                      .splitlines()[0])
    assert (line["parameters"], line["loss"]) == first["short"], (line, first)  # what is typed counts


@case("tasks that read with a model: the cost is of what will be read, files are no cuts, a refused file leaves no folder")
def cost_of_reading(folder):
    (folder / "two.jsonl").write_text(2 * (json.dumps({"prompt": "Static words", "choices": ["a", "b"], "answer": 0}) + "\n"))
    (folder / "labels").write_text("0\n1\n")
    tokens = {}
    for n in ("1", "2", "0"):
        said = linnet("task", "choice", model(), folder / "two.jsonl", folder / "labels", "--examples", n).err
        tokens[n] = float(re.search(r"estimated cost: ([0-9.]+) tokens", said)[1])
    assert 0 < tokens["1"] < tokens["2"] == tokens["0"], tokens
    (folder / "labels").write_text("0\n")
    for task, at, file in (("choice", "line 2", "labels"), ("longbench", "line 1", "two.jsonl"), ("translate", "line 1", "two.jsonl")):
        said = linnet("task", task, model(), folder / "two.jsonl", *[folder / "labels"] * (task == "choice"), code=2).err
        assert at in said and f"Read from {folder / file}." in said, said
    (folder / "recall.jsonl").write_text(json.dumps({"text": "A text that is read. A text", "value": "that"}) + "\n")
    once, twice = (float(re.search(r"estimated cost: ([0-9.]+) tokens", linnet("task", "cloze", model(), folder / "recall.jsonl", "--twice", t,
                                                                               "--tokens", "1").err)[1]) for t in ("false", "true"))
    assert once < twice <= 2 * once, (once, twice)
    said = linnet("task", "ppl", model(), text_file(), "--tokens", "64", "--lengths", "32", "--reference", model()).err
    assert "not as in the paper" in said and "tokens 64 (0)" in said and "reference" not in said, said
    (folder / "pair.jsonl").write_text(json.dumps({"translation": {"fr": "un", "en": "one"}}) + "\n")
    said = linnet("task", "translate", model(), folder / "pair.jsonl", "--source", "fr", "--target", "en", "--shots", "0", "--tokens", "2").err
    assert "shots 0 (0,1,5,10,50)" in said and "source" not in said and "target" not in said, said
    said = linnet("task", "choice", model(), folder / "two.jsonl", "--likelihoods", "true").err
    assert "examples 500 (0)" in said and "likelihoods" not in said, said
    refused("task", "choice", model(), folder / "recall.jsonl", "--out", folder / "x", says=["recall.jsonl", "line 1"])
    assert not (folder / "x").exists()
    (folder / "mine").mkdir()
    refused("task", "choice", model(), folder / "recall.jsonl", "--out", folder / "mine", says=["recall.jsonl"])
    assert (folder / "mine").exists(), "a folder that was there stays"


@case("a readout of the last token's vector: task mad's compression has it, what writes or scores a text refuses it and leaves no folder")
def readout(folder):
    small, last = ["--mixer", "delta_net", "--layers", "1", "--width", "16", "--heads", "2"], ["--set", "readout=last"]
    says = ['readout is "last"', 'expected "token"']
    assert "from_last" in linnet("inspect", *small, *last, "--program").out and "from_last" not in linnet("inspect", *small, "--program").out
    refused("train", text_file(), "--out", folder / "m", *small, *last, says=says)
    refused("task", "parity", "--out", folder / "m", *small, *last, says=says)
    refused("task", "mad", "--kind", "copying", "--out", folder / "m", *small, *last, says=says)
    assert not (folder / "m").exists()
    refused("bench", "decode", *small, *last, says=says)
    line = json.loads(linnet("task", "mad", "--kind", "compression", *small, "--steps", "2", "--batch", "4", "--test-examples", "8", "--json")
                      .out.splitlines()[0])
    assert line["predictions"] == 8 * 32, line

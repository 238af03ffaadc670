#!/usr/bin/env python3
"""Pages of what bench/experiments.py has done: python3 bench/experiments_page.py CELLS.jsonl... --out bench/results [--pages NAME,NAME...]

Writes OUT/PAGE/README.md with tables, figures and cells-PAGE.jsonl for every page with cells in the files, OUT/PAGE/cells-PAGE.jsonl too;
of two lines of one cell the later file's counts. What somebody has to think, about these very numbers, is kept in OUT/PAGE/reading-PAGE.md and put
into the page. Standard library only."""
import argparse
import json
import math
import re
import statistics
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import figure  # noqa: E402
from experiments import ABLATIONS, LONG, MAD_KINDS, MAD_MIXERS, MIXERS, MOST_TELLING, QUICK, TRACKERS, UNGATED, Cell  # noqa: E402

# Scaled accuracies of the table of formal languages in Grazzi et al. 2024 (arXiv 2411.12537): parity, modular arithmetic, with brackets.
GRAZZI = {"Transformer": (0.022, 0.031, 0.025), "mLSTM": (0.087, 0.040, 0.034), "sLSTM": (1, 0.787, 0.173), "Mamba [0,1]": (0, 0.095, 0.092),
          "Mamba [-1,1]": (1, 0.241, 0.136), "DeltaNet [0,1]": (0.017, 0.314, 0.137), "DeltaNet [-1,1]": (1, 0.971, 0.200)}
# MAD: Yang et al. 2024 (arXiv 2406.06484), and von Oswald et al. 2025 (arXiv 2506.05233), whose in-context and noisy recall are one column; in
# MAD_KINDS' order.
MAD_YANG = {"attention": (94.1, 29.8, 86.8, 85.2, 51.6, 99.6), "hyena": (81.7, 7.9, 78.8, 89.5, 45.2, 93.1),
            "mamba": (90.4, 6.7, 90.1, 89.5, 52.7, 86.3), "gla": (80.8, 6.9, 81.6, 63.3, 38.8, 88.6), "delta_net": (100, 35.7, 100, 52.8, 42.2, 100)}
MAD_MESA = {"mamba2": (100, 51.2, 100, 42.0, 41.3, 95.4), "gla": (100, 39.0, 100, 82.5, 42.3, 96.1), "mlstm": (100, 47.6, 100, 79.8, 43.4, 95.4),
            "delta_net": (100, 55.5, 100, 40.8, 43.3, 98.8), "gated_deltanet": (100, 32.7, 100, 81.7, 45.0, 95.7),
            "mesa_net": (100, 58.5, 100, 77.2, 45.4, 99.2), "attention": (100, 48.6, 100, 84.7, 49.5, 96.0)}
NAMES = {**MIXERS, UNGATED: "MesaNet, gamma = 1", "mlstm": "mLSTM", "hyena": "Hyena"}


def table(head, rows):
    lines = ["| " + " | ".join(map(str, r)) + " |" for r in [head, *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


class Cells:
    """The cells of one page."""

    def __init__(self, lines):
        self.lines = lines

    def where(self, **labels):
        return [x for x in self.lines if all(x["cell"].get(k) == v for k, v in labels.items())]

    def best(self, measure, **labels):
        """Of cells that differ in rate, the one with the largest measure(cell); None where there is none."""
        return max(self.where(**labels), key=measure, default=None)

    def labels(self, key):
        return list(dict.fromkeys(x["cell"][key] for x in self.lines))


def row(cell, kind="result", **keys):
    """The cell's best row of a kind."""
    found = [r for r in cell["rows"] if r.get("row") == kind and all(r.get(k) == v for k, v in keys.items())]
    return next((r for r in found if r.get("best", 1)), found[0] if found else {})


def smooth(curve, x, y, bins):
    """Means of y over ranges of x, weighted by how many examples each stands for."""
    weight = curve.get("examples") or curve.get("asked") or [1] * len(curve[x])
    lo, hi = min(curve[x]), max(curve[x])
    sums = [[0, 0, 0] for _ in range(bins)]
    for a, b, w in zip(curve[x], curve[y], weight):
        s = sums[min(bins - 1, int((a - lo) / ((hi - lo) or 1) * bins))]
        s[0], s[1], s[2] = s[0] + w, s[1] + w * a, s[2] + w * b
    return [s[1] / s[0] for s in sums if s[0]], [s[2] / s[0] for s in sums if s[0]]


# ---- the pages: each returns its title, and its text with tables; figures go to `out` ----------------------------------------------------------

def trackers(c, out, task, title, i, level):
    """A table and a figure of a task, whose published numbers are the i-th."""
    scaled = lambda x: row(x).get("scaled_accuracy", -1)  # noqa: E731
    rows, lines = [], []
    for model in TRACKERS:
        cell = c.best(scaled, task=task, model=model)
        if not cell:
            continue
        r, published = row(cell), GRAZZI[model.removesuffix(", twice as wide")][i]
        tried = [f"{scaled(x):.3f} (rate {x['cell']['rate']}, seed {x['cell']['seed']}, {row(x)['steps']} updates)"
                 for x in c.where(task=task, model=model) if x is not cell]
        rows.append([model, r["parameters"], f"**{scaled(cell):.3f}**", f"{published:.3f}", f"{100 * r['accuracy']:.1f}",
                     f"{cell['cell']['rate']}, {cell['cell']['seed']}, {row(cell)['steps']}", "; ".join(tried)])
        lines.append((model, *smooth(cell["curves"]["length"], "length", "accuracy", 12)))
    figure.write(out / f"{task}.svg", lines, f"{title}: accuracy over the length of the string", "length (tokens)", "share of right answers",
                 y_range=(0, 1.02), dots=True, note="learnt on 3 to 40 tokens; the best run of each model")
    head = ["model", "parameters", "scaled accuracy", "published", "accuracy, %", "its rate, seed and updates", "other runs"]
    return (f"## {title}\n\n" if level else "") + table(head, rows) + f"\n![{title}]({task}.svg)\n\n"


def strings(batch):
    return f"""\
Scaled accuracy (0: a guess, 1: all right) on strings of 40 to 256 tokens, learnt on strings of 3 to 40, {batch} an update, beside the table of Grazzi et al.
2024 (arXiv 2411.12537). The best run of the learning rates and the seeds that are listed; all runs are shown. A training ends early when a batch of tests is
right.

"""


def parity(c, out):
    return "State tracking: parity", strings(64) + trackers(c, out, "parity", "Parity", 0, False)


def arithmetic(c, out):
    return "State tracking: modular arithmetic", strings(256) + trackers(c, out, "mod-arith", "Without brackets", 1, True) + trackers(
        c, out, "brackets", "With brackets", 2, True)


def groups(c, out):
    text = ""
    for group in c.labels("group"):
        rows, lines = [], []
        for x in sorted(c.where(group=group), key=lambda x: (x["cell"]["range"], x["cell"]["householder"])):
            near, far = row(x, test="length learnt"), row(x, test="longer")
            name = f"n_h = {x['cell']['householder']} in {x['cell']['range']}"
            rows.append([name, near["parameters"], near["steps"],
                         *(f"{100 * r[k]:.1f}" for r in (near, far) for k in ("exact", "accuracy"))])
            p = x["curves"].get("position-2")
            if p:
                lines.append((name, p["position"], p["prefix_right"]))
        if lines:
            figure.write(out / f"{group}.svg", lines, f"{group}: sequences right up to a position", "elements so far", "share of sequences",
                         y_range=(0, 1.12), note="learnt on 32 elements", upright=[(33, "learnt up to here")])
        head = ["DeltaProduct, one layer", "parameters", "updates", "whole sequences right at the length learnt, %", "elements right, %",
                "whole sequences right at 128, %", "elements right, %"]
        text += f"## {group}\n\n" + table(head, rows) + (f"\n![{group}]({group}.svg)\n\n" if lines else "")
    return "Groups: DeltaProduct with one layer", """\
The product so far of random elements of a group of permutations, by one layer of DeltaProduct (Siems
et al. 2025, arXiv 2502.10297) with n_h writes a token and eigenvalues in [0,1] or [-1,1]. Learnt on sequences of 32 elements, tested on these and on
128. The MLP is widened where n_h is smaller, so that all have the same parameters within a tenth of a per cent.

""" + text


def mesa_parity(c, out):
    rows, lines = [], []
    for signed in ("(-1,1)", "(0,1)"):
        for x in c.where(gamma=signed):
            r, p = row(x), x["curves"]["position"]
            far = next((int(n) - 1 for n, share in zip(p["position"], p["accuracy"]) if share < 0.99), int(p["position"][-1]))
            rows.append([signed, x["cell"]["seed"], r["parameters"], r["steps"], far, f"{100 * r['accuracy']:.1f}", f"{100 * r['exact']:.1f}"])
            lines.append((f"gamma in {signed}, seed {x['cell']['seed']}", p["position"], p["accuracy"]))
    figure.write(out / "mesa-parity.svg", lines, "Parity of all bits so far, MesaNet", "bits so far", "share of right answers", y_range=(0.4, 1.08),
                 upright=[(40, "learnt up to here")])
    head = ["gamma", "seed", "parameters", "updates", "bits to which 99 % are right", "bits right of 256, %", "strings of 256 without a mistake, %"]
    return "Mesa and parity: the sign of gamma", """\
Two layers of MesaNet (von Oswald et al. 2025, arXiv 2506.05233, appendix H), 40 bits to learn from, 256 to be
tested on: with gamma in (-1,1) and in (0,1), at a rate of 1e-3, each to its last update.

""" + table(head, rows) + "\n![Over the position](mesa-parity.svg)\n\n"


def sizes(c):
    """Mixers with their parameters over the widths."""
    found = {}
    for x in c.lines:
        found.setdefault(x["cell"]["mixer"], {})[x["cell"]["width"]] = row(x)["parameters"]
    return "; ".join(f"{NAMES[m]} {', '.join(f'{found[m][w] / 1e3:.0f}' for w in sorted(found[m]))}" for m in MOST_TELLING if m in found)


def mqar(c, out):
    accuracy = lambda x: row(x)["accuracy"]  # noqa: E731
    text = ""
    for setting in c.labels("setting"):
        widths, rows, lines = sorted({x["cell"]["width"] for x in c.where(setting=setting)}), [], []
        for mixer in MOST_TELLING:
            cells = [c.best(accuracy, setting=setting, mixer=mixer, width=w) for w in widths]
            if not any(cells):
                continue
            tried = [len(c.where(setting=setting, mixer=mixer, width=w)) for w in widths]
            alone = [", not the other" if n < 2 and x and accuracy(x) < 0.99 else "" for n, x in zip(tried, cells)]
            rows.append([NAMES[mixer], *(f"{100 * accuracy(x):.1f} ({x['cell']['rate']}{one})" if x else "" for one, x in zip(alone, cells))])
            lines.append((NAMES[mixer], [w for w, x in zip(widths, cells) if x], [accuracy(x) for x in cells if x]))
        name = f"{setting.split('x')[0]} tokens, {setting.split('x')[1]} pairs"
        figure.write(out / f"{setting}.svg", lines, f"MQAR, {name}", "width of the model", "accuracy", log_x=len(widths) > 1, x_marks=widths,
                     y_range=(0, 1.02), dots=True)
        head = ["accuracy, % (learning rate)", *(f"width {w}" for w in widths)]
        text += f"## {name}\n\n" + table(head, rows) + f"\n![MQAR, {name}]({setting}.svg)\n\n"
    return "MQAR over the width", """\
Recall of many pairs (Arora et al. 2023, arXiv 2312.04927, figure 2; DeltaNet, arXiv 2406.06484): two layers without MLPs (Mamba's
have none), two heads, 1024 ids, 20,000 examples, at most 5 passes over them, fewer when a batch of tests is right. Learning rates 3e-3 and 1e-3: one after the
other (3e-3 first up to width 128), the second where the first leaves a model short of 99 per cent. Parameters at the four widths, in thousands: """ + sizes(c) + """.

""" + text


def mqar_narrow(c, out):
    accuracy = lambda x: row(x)["accuracy"]  # noqa: E731
    two, one = ([x for x in c.lines if ("heads" in x["cell"]) == alone] for alone in (False, True))

    def of(lines, **labels):
        return [x for x in lines if all(x["cell"].get(k) == v for k, v in labels.items())]

    def best(lines, mixer):
        return max(of(lines, mixer=mixer), key=accuracy, default=None)
    order = sorted(c.labels("mixer"), key=lambda m: -max(accuracy(best(two, m)), accuracy(best(one, m))))
    rows = []
    for mixer in order:
        words = [NAMES[mixer], f"{row(best(two, mixer))['parameters'] / 1e3:.0f}"]
        for lines in (two, one):
            for rate in ("1e-3", "3e-3"):
                words.append(next((f"{100 * accuracy(x):.1f}" for x in of(lines, mixer=mixer, rate=rate)), ""))
            words.append(row(best(lines, mixer))["steps"])
        rows.append(words)
    for name, lines, title in (("updates", two, "two heads"), ("one-head", one, "one head")):
        drawn = [(NAMES[m], best(lines, m)["curves"]["looks"]) for m in sorted(order, key=lambda m: -accuracy(best(lines, m)))[:8]]
        figure.write(out / f"{name}.svg", [(m, looks["step"], looks["accuracy"]) for m, looks in drawn],
                     f"MQAR, 512 tokens, 64 pairs, width 64, {title}: the eight best", "updates", "accuracy", y_range=(0, 1.02))
    head = ["accuracy, %", "thousand parameters", "two heads: rate 1e-3", "rate 3e-3", "updates", "one head: rate 1e-3", "rate 3e-3", "updates"]
    return "MQAR, the narrowest models, longer", """\
512 tokens and 64 pairs at width 64, as on [MQAR's page](../mqar/README.md) but longer: with two heads 16 passes over the 20,000 examples in place of 5, 5,000
updates; with one head 6 passes over the paper's 100,000, 9,375 updates; fewer when a batch of tests is right. The second rate is for those that the first one
leaves short of 99 per cent (the left column first with two heads, the right one with one). Parameters are those with two heads; Mamba has none.

""" + table(head, rows) + "\n![With two heads](updates.svg)\n\n![With one head](one-head.svg)\n\n"


def mad(c, out):
    def score(x):
        return 100 * row(x)["macro_accuracy"]
    rows, far = [], []
    for mixer in MAD_MIXERS:
        cells = [c.best(score, mixer=mixer, kind=k) for k in MAD_KINDS]
        if not any(cells):
            continue
        values = [score(x) if x else math.nan for x in cells]
        means = [*values, statistics.mean(values) if all(cells) else math.nan]
        size = row(next(x for x in cells if x))["parameters"]
        rows.append([f"**{NAMES[mixer]}**", f"{size / 1e3:.0f}", *(f"**{v:.1f}**" if v == v else "" for v in means)])
        for who, published in (("DeltaNet's paper", MAD_YANG), ("MesaNet's paper", MAD_MESA)):
            if mixer in published:
                theirs = published[mixer]
                rows.append([f"{who}", "", *(f"{v:.1f}" for v in theirs), f"{statistics.mean(theirs):.1f}"])
        known = [p[mixer] for p in (MAD_YANG, MAD_MESA) if mixer in p]
        for i, k in enumerate(MAD_KINDS):
            if known and cells[i] and min(abs(values[i] - p[i]) for p in known) > 5:
                far.append(f"{NAMES[mixer]}, {k}: {values[i]:.1f} against {' and '.join(f'{p[i]:.1f}' for p in known)}")
    return "MAD", """\
Six tasks (Poli et al. 2024, arXiv 2403.17844) at their baseline settings, macro-averaged accuracy in per cent; models of width 64, at most 4000
updates of 32 examples, fewer when a batch of tests is right; the better one of two learning rates. Published rows beneath ours: the DeltaNet paper's (arXiv 2406.06484), of the whole benchmark, and the MesaNet paper's (arXiv 2506.05233), where
in-context and noisy recall share a column.

""" + table(["", "thousand parameters, in-context", *MAD_KINDS, "mean"], rows) + ("\nMore than five points from every published value: " + "; ".join(far) + ".\n" if far else "") + "\n"


def mad_compression(c, out):
    rows, at = [], MAD_KINDS.index("compression")
    for x in sorted(c.lines, key=lambda x: -row(x)["macro_accuracy"]):
        mixer = x["cell"]["mixer"]
        theirs = [f"{p[mixer][at]:.1f}" if mixer in p else "" for p in (MAD_YANG, MAD_MESA)]
        rows.append([NAMES[mixer], f"{row(x)['parameters'] / 1e3:.0f}", f"**{100 * row(x)['macro_accuracy']:.1f}**", *theirs])
    return "MAD's compression, 8,000 updates", """\
The compression of [MAD](../mad/README.md) (Poli et al. 2024, arXiv 2403.17844) at its baseline setting, macro-averaged accuracy in per cent: the models of that page, read
out by the benchmark's decoder, behind 8,000 updates of 32 examples at one rate, a tenth of the benchmark's. Beside them the DeltaNet paper (arXiv 2406.06484) and the MesaNet paper
(arXiv 2506.05233), whose values are means over the harder settings too.

""" + table(["", "thousand parameters", "compression", "DeltaNet's paper", "MesaNet's paper"], rows) + "\n"


def flag(x, name):
    """Of a cell's first command."""
    return re.search(rf"--{name} (\S+)", x["commands"][0])[1]


def regbench(c, out):
    rows, lines = [], {}
    for mixer in c.labels("mixer"):
        for automata in sorted({x["cell"]["automata"] for x in c.where(mixer=mixer)}):
            x = c.best(lambda x: row(x, test="validation")["validity"], mixer=mixer, automata=automata)
            r = row(x, test="test")
            others = "; ".join(f"{100 * row(y, test='test')['validity']:.1f} ({y['cell']['rate']})" for y in c.where(mixer=mixer, automata=automata)
                               if y is not x)
            rows.append([NAMES[mixer], x["cell"]["automata"], r["parameters"], f"{r['learning_rate']:g}", f"{100 * r['validity']:.1f}",
                         f"{100 * r['micro_accuracy']:.1f}", f"{r['total_variation']:.3f}", others])
            line = lines.setdefault(mixer, (NAMES[mixer], [], []))
            line[1].append(x["cell"]["automata"])
            line[2].append(r["validity"])
    figure.write(out / "validity.svg", list(lines.values()), "RegBench: predictions that the automaton allows", "automata learnt from", "share",
                 log_x=True, x_marks=sorted(c.labels("automata")), dots=True)
    head = ["model", "automata", "parameters", "learning rate", "validity, %", "exact match, %", "total variation",
            "validity at the other rate"]
    return "RegBench", f"""\
Languages of new random automata, learnt in context (Akyürek et al. 2024, arXiv 2401.12973): one size, over the number of automata to
learn from. Models of width 64, {flag(c.lines[0], "steps")} updates of four sequences; the rate by the validation automata, numbers of the test's.

""" + table(head, rows) + "\n![Validity](validity.svg)\n\n"


def delta_ablations(c, out):
    loss = lambda x: -row(x, "train")["held_out"]  # noqa: E731
    rows = []
    for name in ABLATIONS:
        x = c.best(loss, variant=name)
        if x:
            others = "; ".join(f"{-loss(y):.4f} ({y['cell']['rate']})" for y in c.where(variant=name) if y is not x)
            rows.append([name, f"**{-loss(x):.4f}**", x["cell"]["rate"], others])
    return "DeltaNet without its parts", """\
Held-out loss, nats a byte, of small DeltaNets (Yang et al. 2024, arXiv 2406.06484, its table of ablations) that differ
in the norm and the feature map of queries and keys, and in the convolution: four layers of width 128, the same books in the same order.

""" + table(["queries and keys", "held-out loss", "learning rate", "the other one"], rows) + "\n"


def mesa_steps(c, out):
    lines, rows, text = [], [], ""
    runs = sorted((x for x in c.lines if "time" not in x["cell"]), key=lambda x: x["cell"]["steps"])
    for x in runs:
        k, found = x["cell"]["steps"], [r for r in x["rows"] if "budget" in r]
        rows.append([k, f"{row(x, 'train')['held_out']:.4f}", *(f"{y['nats_per_token']:.4f}" for y in found)])
        lines.append((f"trained with {k}", [y["budget"] for y in found], [y["nats_per_token"] for y in found]))
    budgets = [r["budget"] for r in runs[0]["rows"] if "budget" in r]
    figure.write(out / "steps.svg", lines, "Mesa: loss over the steps of the solver at evaluation", "steps at evaluation", "nats a byte", dots=True)
    for device, what in (("cpu", "the same model, batches of 8 times 256, one thread"), ("cuda", "12 layers of width 1024, 8 times 2048 in bfloat16")):
        timed = sorted(c.where(time=device), key=lambda x: x["cell"]["steps"])
        if not timed:
            continue
        found = [x["rows"][0] for x in timed]
        text += f"Time over the steps, {what} ({timed[0]['machine']}, {timed[0]['commit']}; `linnet bench train`, medians of five, one run at a time):\n\n" + table(
            ["steps", *(x["cell"]["steps"] for x in timed)],
            [["an update, ms", *(f"{1e3 * r['step_seconds']:.1f}" for r in found)], ["over none", *(f"{r['step_seconds'] / found[0]['step_seconds']:.2f}" for r in found)],
             ["a token decoded, us", *(f"{1e6 * r['decode_seconds']:.0f}" for r in found)]]) + "\n"
    head = ["steps in training", "held-out loss, nats a byte", *(f"{b} steps" for b in budgets)]
    return "Mesa's steps, in training and at evaluation", """\
One small MesaNet (von Oswald et al. 2025, arXiv 2506.05233, section 6) for each number of steps that
its solver takes in training, without a tolerance; then every one read with other numbers of steps, in windows of 512 bytes, twice as long as those
learnt from.

""" + table(head, rows) + "\n![Loss over the steps](steps.svg)\n\n" + text


def throughput(c, out):
    rows, lines, shapes = [], [], sorted({(x["cell"]["length"], x["cell"]["batch"]) for x in c.lines})
    for name in QUICK:
        cells = [c.where(model=name, length=length, batch=batch) for length, batch in shapes]
        if not any(cells):
            continue
        found = [x[0]["rows"][0] if x else {} for x in cells]
        one = next(r for r in found if r)
        rows.append([name, f"{one['parameters'] / 1e6:.0f} M", *(f"{r['tokens_per_second'] / 1e3:.1f}" if r else "" for r in found)])
        some = [(length, r["tokens_per_second"] / 1e3) for (length, _), r in zip(shapes, found) if r]
        lines.append((name, [x for x, _ in some], [y for _, y in some]))
    figure.write(out / "throughput.svg", lines, "Training, 16,384 tokens an update", "tokens in a sequence", "thousand tokens a second", log_x=True,
                 x_marks=[length for length, _ in shapes], y_range=(0, 1.05 * max(y for _, _, ys in lines for y in ys)), dots=True)
    text = table(["thousand tokens a second", "parameters", *(f"{length} x {batch}" for length, batch in shapes)], rows)
    return "Throughput of training over the length", """\
Forward and backward pass and the update of a model of width 1024 in bfloat16, 32,000 ids, 16,384 tokens at a time
in ever longer sequences (Yang et al. 2024, arXiv 2406.06484 and 2412.06464, their figures of throughput); `linnet bench train`, medians of five,
nothing else on the GPU. 24 layers with MLPs, Mamba-2 has none and 48 layers.

""" + text + "\n![Throughput](throughput.svg)\n\n"


def chunk_or_token(c, out):
    text = ""
    for op in c.labels("op"):
        rows, lines = [], []
        for size in sorted(c.labels("size")):
            xs, ys = [], []
            for length in sorted(c.labels("length")):
                pair = [c.where(op=op, size=size, length=length, form=f) for f in ("recurrent", "chunk")]
                if not all(pair):
                    continue
                token, chunk = (p[0]["rows"][0] for p in pair)
                rows.append([size, length, *(f"{1e3 * r[k]:.3g}" for k in ("forward_seconds", "both_seconds") for r in (token, chunk)),
                             f"{token['forward_seconds'] / chunk['forward_seconds']:.2f}", f"{token['both_seconds'] / chunk['both_seconds']:.2f}"])
                xs.append(length)
                ys.append(token["forward_seconds"] / chunk["forward_seconds"])
            lines.append((f"K = V = {size}", xs, ys))
        figure.write(out / f"{op}.svg", lines, f"{op}: forward, time token by token over time in chunks", "tokens", "times as fast in chunks",
                     log_x=True, x_marks=sorted(c.labels("length")), dots=True)
        head = ["K = V", "tokens", "forward, ms: by token", "in chunks", "both: by token", "in chunks", "forward, ratio", "both, ratio"]
        text += f"## {op}\n\n" + table(head, rows) + f"\n![{op}]({op}.svg)\n\n"
    return "Chunks against tokens", """\
Time of one operator in chunks and token by token, over the length and the size of a head, with 512 columns of values over
all heads, in bfloat16; `linnet bench op`, medians of five.

""" + text


def long_texts(c, out):
    rows, lines = [], []
    for name in LONG:
        for x in c.where(model=name):
            found = [r for r in x["rows"] if r.get("row") == "result"]
            trained = row(x, "train")
            rows.append([name, f"{trained['parameters'] / 1e6:.2f}", f"{trained['held_out']:.4f}", *(f"{r['nats_per_token']:.4f}" for r in found)])
            lines.append((name, [r["length"] for r in found], [r["nats_per_token"] for r in found]))
    lengths = [f"{x:g}" for x in (lines[0][1] if lines else [])]
    figure.write(out / "length.svg", lines, "Held-out loss over the length of the windows", "tokens in a window", "nats a token", log_x=True,
                 x_marks=lines[0][1] if lines else None, dots=True, note="trained on windows of 2048")
    return "Texts beyond the length learnt", """\
Held-out loss, nats a byte, in windows of 2048 to 32768 bytes of models that were trained on windows of 2048.

""" + table(["model", "parameters, M", "held-out loss, training length", *(f"{x} tokens" for x in lengths)], rows) + "\n![Loss over the length](length.svg)\n\n"


def niah(c, out):
    text, layers = "", {x["cell"]["mixer"]: flag(x, "layers") for x in c.lines}
    for kind in ("S-NIAH-1", "S-NIAH-2", "S-NIAH-3"):
        rows, lines = [], []
        for x in c.lines:
            found = [r for r in x["rows"] if r.get("needle") == kind]
            rows.append([NAMES[x["cell"]["mixer"]], f"{row(x, 'train')['parameters'] / 1e6:.2f}", *(f"{100 * r['found']:.0f}" for r in found)])
            lines.append((rows[-1][0], [r["length"] for r in found], [r["found"] for r in found]))
        figure.write(out / f"{kind}.svg", lines, f"{kind}: needles found", "tokens of the prompt", "share", log_x=True, x_marks=lines[0][1],
                     y_range=(0, 1.12), dots=True, note="learnt on at most 2048", upright=[(2048, "learnt up to here")])
        text += f"## {kind}\n\n" + table(["found, %", "parameters, M", *(f"{x} tokens" for x in lines[0][1])], rows) + f"\n![{kind}]({kind}.svg)\n\n"
    return "Needles in haystacks", """\
S-NIAH (RULER, Hsieh et al. 2024, arXiv 2404.06654, as Yang et al. 2024, arXiv 2412.06464, ask it) of small models that learnt from documents with
such needles: numbers in noise, numbers in a held-out book, uuids in it. Layers of width 256, """ + ", ".join(f"{NAMES[m]} {n}" for m, n in layers.items()) + """, of which Mamba-2's have no MLPs; 4096 tokens of their own.

""" + text


PAGES = {"parity": parity, "arithmetic": arithmetic, "groups": groups, "mesa-parity": mesa_parity, "mqar": mqar, "mqar-narrow": mqar_narrow, "mad": mad,
         "mad-compression": mad_compression, "regbench": regbench, "delta-ablations": delta_ablations, "mesa-steps": mesa_steps, "chunk-or-token": chunk_or_token, "throughput": throughput,
         "long-texts": long_texts, "niah": niah}


# What the models of a page are, where its task's own list of cuts does not say it; the papers' in brackets.
MODELS = {
    **dict.fromkeys(("mqar", "mqar-narrow"),
                    "RMSNorm (LayerNorm), rotary positions of softmax attention (learnt ones), learning rates 3e-3, 1e-3 (four from 1e-4 to 1e-2)"),
    "mad": "width 64 (128), 4 heads (8), learning rates 3e-3, 1e-3 (three or four), no grid over the weight decay",
    "mad-compression": "width 64 (128), 4 heads (8), one learning rate (three or four), no grid over the weight decay",
    "regbench": "2 layers of width 64 (up to 12 of up to 1024), learning rates 5e-3, 2e-3",
    "parity": "MLPs widened, so that all but the narrower Mamba have the same parameters; DeltaNet and sLSTM without convolutions, sLSTM with one head",
    "arithmetic": "MLPs widened, so that all but the narrower Mamba have the same parameters; DeltaNet and sLSTM without convolutions, sLSTM with one head; one seed",
    "groups": "8 heads (12), MLPs widened where n_h is smaller, so that all have the same parameters; one seed, one rate",
    "mesa-parity": "one rate",
    "chunk-or-token": "one thread of a processor (a GPU)",
    "delta-ablations": "4 layers of width 128 on bytes of books, 2 million of them (340 million parameters, 15 thousand million tokens of SlimPajama); one seed",
    "mesa-steps": "4 layers of width 128 on bytes of books, 1.2 million of them (400 million parameters, 15 and 50 thousand million tokens); one seed",
    "throughput": "335 to 685 million parameters (1.3 thousand million)",
    "long-texts": "6 layers of width 256 on bytes of books, 25 million of them (1.3 thousand million parameters); one seed, one rate",
    "niah": "width 256 on documents with needles (1.3 thousand million parameters, 100 thousand million tokens of text), keys of 300 and 1,000 words of "
            "these books (wonderwords), a held-out novel as hay (essays of Paul Graham); one seed, one rate",
}
ALLOWED = {"cpu": ("a processor's core", 240), "cuda": ("a GPU", 25)}  # minutes that a page may take, on the one or the other


def took(x):
    """Seconds of a cell: of a processor's core what it used where that was noted, else, as of a GPU, by the clock."""
    return x["core_seconds"] if x["device"] == "cpu" and "core_seconds" in x else x["seconds"]


def share(x):
    """took(), and of a GPU the part that was this cell's: by its clock where that was noted, else by how many were at a time at most."""
    return x["gpu_seconds"] if "gpu_seconds" in x else took(x) / (x.get("at_a_time", 1) if x["device"] == "cuda" else 1)


def spent(c):
    """The time of all runs: of a core each, or of a GPU by how many shared it."""
    said = []
    for device, (what, most) in ALLOWED.items():
        minutes = sum(share(x) / 60 for x in c.lines if x["device"] == device)
        if minutes:
            said.append(f"{minutes:.0f} minutes of {what}{f', **more than the {most} of a page**' if minutes > most else f' of {most}'}")
    mixed = {x["commit"] for x in c.lines if x.get("at_a_time_counts_cpu")}
    unknown = (f" At {', '.join(sorted(mixed))} runs on processors at the same time were counted among those that share it: how many were on the GPU, and so "
               "how much more its minutes are, is not known.")
    return f"Together {' and '.join(said)}" + (", where runs at the same time share one GPU's" if any(x["device"] == "cuda" for x in c.lines) else "") + "." + (unknown if mixed else "")


def cuts_of(c, page):
    """As the runs say them, without files that they have read, and what the models are."""
    found = dict.fromkeys(re.sub(r"(, )?(?!mlp )\b\w+ \S+ \(none\)", "", x) for cell in c.lines for x in cell.get("cuts", []))
    named = [MODELS[page]] if page in MODELS else []
    return [*(x.replace("batch 64 (0)", "batch 64 (by the length: 256 of 256 tokens, 128 of 512)") for x in found), *named]


TEXTS = {"TEXT": "twelve books of Project Gutenberg", "HELD": "Great Expectations, held out", "NEEDLES": "100,000 documents with needles",
         "WORDS": "300 adjectives and 1,000 nouns"}


# Of the pages whose examples are not a study's, which draws them from 12345: what else was drawn.
SEEDS = {"niah": "; of the examples 42, of the documents to learn from 7",
         **dict.fromkeys(("delta-ablations", "mesa-steps", "long-texts", "throughput", "chunk-or-token"), "")}


def how(c, page):
    """Commands, machines, commits, seeds, cuts."""
    where = {}
    for x in c.lines:
        threads = {1: "one thread a run"}.get(x.get("threads", 1), f"{x.get('threads')} threads a run") if x["device"] == "cpu" else "GPU"
        w = where.setdefault((x["machine"], threads, x["commit"], x["date"], "one run" if x.get("at_a_time") == 1 else "several runs"), [0, 0])
        w[0], w[1] = w[0] + 1, w[1] + took(x)
    runs = "\n".join(f"- {m}, {threads}, {many} at a time; commit {commit or 'not noted'}, {day}: "
                     f"{n} runs, {s / 60:.0f} minutes in all" for (m, threads, commit, day, many), (n, s) in where.items())
    cuts = "\n".join(f"- {x}" for x in cuts_of(c, page))
    seeds = sorted({str(x["cell"].get("seed", 1)) for x in c.lines})
    example = "\n".join("    " + x for x in c.lines[0]["commands"])
    files = [f"{name}: {what}" for name, what in TEXTS.items() if any(name in x.split() for x in c.lines[0]["commands"])]
    return (f"## How it was made\n\n`python3 bench/experiments.py --out WORK --pages {page}{' --books FOLDER' if files else ''}`, and this page "
            "`bench/experiments_page.py`, from the .jsonl file beside it, "
            f"which has the command of every run. The first:\n\n{example}\n\n" + (f"{'; '.join(files)}.\n\n" if files else "")
            + f"Seed of the weights {', '.join(seeds)}{SEEDS.get(page, '; of the examples 12345')}.\n\n{runs}\n\n{spent(c)}\n"
            + (f"\nCut against the papers' settings (theirs in brackets; with epochs 0 updates count):\n\n{cuts}\n" if cuts else ""))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cells", nargs="*", type=Path)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--pages", default=",".join(PAGES))
    a = p.parse_args()
    for name in a.pages.split(","):
        own, found = a.out / name / f"cells-{name}.jsonl", {}
        for path in [own, *a.cells]:
            for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
                x = json.loads(line)
                if x["page"] == name:
                    found[Cell(name, x["cell"]).name] = x
        if not found:
            continue
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text("".join(json.dumps(x, ensure_ascii=False) + "\n" for x in found.values()), encoding="utf-8")
        c = Cells(list(found.values()))
        title, text = PAGES[name](c, own.parent)
        reading = own.parent / f"reading-{name}.md"
        thought = reading.read_text(encoding="utf-8") + "\n" if reading.exists() else ""
        (own.parent / "README.md").write_text(f"# {title}\n\n{text}{thought}{how(c, name)}", encoding="utf-8")
        print(f"{own.parent}/README.md: {len(found)} cells")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Tables and figures of what bench/equal_backbone.py has done: python3 bench/equal_backbone_page.py --work DIR --out bench/results/equal-backbone

Writes README.md, figures and the numbers behind both (runs.jsonl, windows.jsonl, position.csv, mesa.json) into --out, from whatever runs are finished
and, for those that DIR lacks, from what is in --out already. Sentences that the numbers can say are made from them; what somebody has to think, about
these very numbers, is kept in --out/reading.md and put into the page. Standard library only."""
import argparse
import csv
import datetime
import json
import math
import shutil
import statistics
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import figure  # noqa: E402
from equal_backbone import FIXED, RULES  # noqa: E402

COLOUR = {"attention": "#777777", "swa256": "#56B4E9", "swa64": "#8DB600", "swa4": "#B8C9A0", "hawk": "#8C564B",
          "simple_gla": "#CC79A7", "gla": "#8A4FBF", "mlstm": "#D4AF37", "delta_net": "#009E73", "gated_deltanet": "#0072B2", "hawk_mesa": "#000000",
          "mesa": "#D55E00"}
ORDER = list(COLOUR)
MARKS = [2 ** i for i in range(20)]  # of a logarithmic axis of positions
WORSE = 0.02                         # nats: what counts as failing to go on beyond the training length


def label(rule):
    return RULES[rule][0]


def names(rules):
    return ", ".join(label(r) for r in rules) or "none"


def read_positions(path, column="loss"):
    with open(path, encoding="utf-8") as f:
        return [float(row[column]) for row in csv.DictReader(f)]


def mean_of(x, span):
    return statistics.mean(x[span[0]:span[1]])


def bins(n, per_octave=3):
    """Ranges of positions, from 0, that grow geometrically."""
    edges = sorted({min(n, round(2 ** (i / per_octave))) for i in range(int(per_octave * math.log2(n)) + 2)} | {0})
    return list(zip(edges, edges[1:]))


def middle(span):
    return math.sqrt((span[0] + 1) * span[1])


def table(head, rows):
    lines = ["| " + " | ".join(map(str, r)) + " |" for r in [head, *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def lines_of(path):
    return [json.loads(x) for x in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def key(r):
    return r["rule"], r["learning_rate"], r["seed"]


class Results:
    def __init__(self, folder, out):
        here = [json.loads(f.read_text()) | {"folder": f.parent} for f in sorted(folder.glob("*/done.json"))]
        runs = here + [r for r in lines_of(out / "runs.jsonl") if key(r) not in map(key, here)]
        if not runs:
            sys.exit(f"{folder} has no finished run")
        self.folder, self.runs = folder, runs
        self.seed = min(r["seed"] for r in runs)
        self.scan = {rule: {r["learning_rate"]: r for r in runs if r["rule"] == rule and r["seed"] == self.seed} for rule in ORDER}
        self.rules = [rule for rule in ORDER if self.scan[rule]]
        self.best = {rule: min(self.scan[rule].values(), key=lambda r: r["eval_loss"]) for rule in self.rules}
        self.rates = sorted({rate for rule in self.rules for rate in self.scan[rule]})
        self.any = self.best[self.rules[0]]
        self.position, self.long = {}, {}  # of the rules whose best model was evaluated
        known = {x["rule"]: x for x in lines_of(out / "windows.jsonl")}
        for rule, r in self.best.items():
            if "folder" in r and (r["folder"] / "eval.json").exists():
                self.position[rule] = read_positions(r["folder"] / "position.csv")
                self.long[rule] = json.loads((r["folder"] / "eval.json").read_text())
            elif known.get(rule, {}).get("learning_rate") == r["learning_rate"]:
                self.position[rule] = read_positions(out / "position.csv", rule)
                self.long[rule] = known[rule]
        self.length = self.any["length"]
        self.window = next((x["window"] for x in self.long.values()), 0)
        self.stride = next((x["stride"] for x in self.long.values()), 0)
        self.half = (self.length // 2, self.length)             # the second half of the training length
        self.end = (self.window * 3 // 4, self.window)          # the last quarter of the long windows

    def at_border(self, rule):
        tried = sorted(self.scan[rule])
        return self.best[rule]["learning_rate"] in (tried[0], tried[-1])

    def seeds(self, rule):
        return [r["eval_loss"] for r in self.runs if r["rule"] == rule and r["learning_rate"] == self.best[rule]["learning_rate"]]

    def difference(self, rule):
        """Mean paired difference to softmax attention within the training length, and its standard error over positions."""
        a, b = self.position.get(rule), self.position.get("attention")
        if not a or not b:
            return None
        d = [x - y for x, y in zip(a[:self.length], b[:self.length])]
        return statistics.mean(d), statistics.stdev(d) / math.sqrt(len(d))


# ---- figures ----------------------------------------------------------------------------------------------------------------------------

def draw(res, out):
    measured = [r for r in res.rules if r in res.position]
    if "attention" in measured:
        ranges, base = bins(res.length), res.position["attention"]
        lines = [(label(r), [middle(b) for b in ranges], [mean_of(res.position[r], b) - mean_of(base, b) for b in ranges], COLOUR[r])
                 for r in measured]
        figure.write(out / "position.svg", lines, "Loss over position, against softmax attention", "position in the sequence (tokens)",
                     "difference, nats a token", log_x=True, x_marks=MARKS, note="negative is better than softmax attention")
    if measured:
        ranges = bins(res.window)
        lines = [(label(r), [middle(b) for b in ranges], [mean_of(res.position[r], b) for b in ranges], COLOUR[r]) for r in measured]
        low = min(min(y) for _, _, y, _ in lines)
        high = max(y for _, xs, ys, _ in lines for x, y in zip(xs, ys) if 32 <= x <= res.length)
        figure.write(out / "extrapolation.svg", lines, f"Loss over position, to {res.window // res.length} times the training length",
                     "position in the sequence (tokens)", "nats a token", log_x=True, x_marks=MARKS, y_range=(low - 0.03, high + 0.25),
                     upright=[(res.length, "trained up to here")])
    lines = [(label(r), sorted(res.scan[r]), [res.scan[r][x]["eval_loss"] for x in sorted(res.scan[r])], COLOUR[r]) for r in res.rules]
    bests = [min(y) for _, _, y, _ in lines]
    figure.write(out / "learning_rates.svg", lines, "Held-out loss over the learning rate", "highest learning rate", "nats a token", log_x=True,
                 x_marks=res.rates, y_range=(min(bests) - 0.03, max(bests) + 0.15), dots=True)
    lines = [(label(r), [t / 1e6 for t, _ in res.best[r]["evals"]], [y for _, y in res.best[r]["evals"]], COLOUR[r]) for r in res.rules]
    top = max(y[min(1, len(y) - 1)] for _, _, y, _ in lines)
    figure.write(out / "training.svg", lines, "Held-out loss during training", "million tokens", "nats a token",
                 y_range=(min(bests) - 0.03, top + 0.03), note="each rule at its best learning rate")


# ---- data -------------------------------------------------------------------------------------------------------------------------------

def write_data(res, out):
    with open(out / "runs.jsonl", "w", encoding="utf-8") as f:
        for r in sorted(res.runs, key=lambda r: (ORDER.index(r["rule"]), r["seed"], r["learning_rate"])):
            f.write(json.dumps({k: v for k, v in r.items() if k != "folder"}, ensure_ascii=False) + "\n")
    with open(out / "windows.jsonl", "w", encoding="utf-8") as f:
        for rule, x in res.long.items():
            f.write(json.dumps({"rule": rule, "learning_rate": res.best[rule]["learning_rate"], **x}) + "\n")
    if res.position:
        with open(out / "position.csv", "w", newline="", encoding="utf-8") as f:
            w = csv.writer(f)
            w.writerow(["position", *res.position])
            w.writerows([i + 1, *(f"{x[i]:.4f}" for x in res.position.values())] for i in range(res.window))


# ---- text -------------------------------------------------------------------------------------------------------------------------------

def final_table(res):
    rows = []
    for rule in res.rules:
        r, d, all_seeds = res.best[rule], res.difference(rule), res.seeds(rule)
        cells = [label(rule), f"{r['parameters'] / 1e6:.2f}", f"{r['learning_rate']:g}", f"{r['eval_loss']:.4f}",
                 f"**{math.exp(r['eval_loss']):.2f}**",
                 f"{statistics.mean(all_seeds):.4f} ± {statistics.stdev(all_seeds):.4f} ({len(all_seeds)})" if len(all_seeds) > 1 else "",
                 "" if not d else "0" if rule == "attention" else f"{d[0]:+.4f} ± {d[1]:.4f}"]
        if rule in res.position:
            x = res.position[rule]
            cells += [f"{math.exp(res.long[rule]['nats_per_token']):.2f}", f"{mean_of(x, res.half):.4f}", f"{mean_of(x, res.end):.4f}"]
        else:
            cells += ["", "", ""]
        rows.append([*cells, f"{max(x['tokens_per_second'] for x in res.runs if x['rule'] == rule) / 1e3:.0f}"])
    return table(["rule", "parameters, M", "learning rate", "loss, nats", "perplexity", "loss over seeds", "difference to softmax",
                  f"perplexity, windows of {res.window}", f"loss at {res.half[0] + 1}-{res.half[1]}", f"at {res.end[0] + 1}-{res.end[1]}",
                  "thousand tokens/s"], rows)


def scan_table(res):
    rows = []
    for rule in res.rules:
        best, found = res.best[rule]["learning_rate"], res.scan[rule]
        cells = [f"{found[rate]['eval_loss']:.4f}" if rate in found else "" for rate in res.rates]
        rows.append([label(rule)] + [f"**{text}**" if rate == best else text for rate, text in zip(res.rates, cells)])
    return table(["held-out loss, nats"] + [f"{x:g}" for x in res.rates], rows)


def observations(res):
    """What the numbers say by themselves, so that no sentence outlives them."""
    ranked = sorted(res.rules, key=lambda r: res.best[r]["eval_loss"])
    text = ["Best to worst: " + ", ".join(f"{label(r)} {res.best[r]['eval_loss']:.4f}" for r in ranked) + "."]
    several = [r for r in res.rules if len(res.seeds(r)) > 1]
    if several:
        spread = max(statistics.stdev(res.seeds(r)) for r in several)
        text.append(f"Seeds of one rule differ by up to {spread:.4f} nats (standard deviation; {names(several)}): differences below twice that "
                    "mean nothing.")
    else:
        text.append("One seed each: another one may change a loss by some thousandths of a nat, and differences of that size mean nothing.")
    edge = [r for r in res.rules if res.at_border(r)]
    text.append(f"The best learning rate is at the border of what was tried for {names(edge)}: a wider scan may improve these." if edge
                else "No best learning rate is at the border of what was tried.")
    rising = [r for r in res.rules if res.best[r]["evals"][-1][1] > min(y for _, y in res.best[r]["evals"]) + 1e-4]
    text.append(f"Held-out loss was lower before the end, so that more epochs would overfit, for {names(rising)}." if rising
                else "Held-out loss fell up to the end of training for every rule.")
    others = [r for r in res.rules if r in res.position and r != "attention"]
    if "attention" in res.position:
        base = res.position["attention"]
        early, late = ([r for r in others if mean_of(res.position[r], span) < mean_of(base, span)] for span in ((0, 64), res.half))
        text.append(f"Ahead of softmax attention at positions 1-64: {names(early)}. At {res.half[0] + 1}-{res.half[1]}: {names(late)}.")
    worse = [r for r in res.position if mean_of(res.position[r], res.end) > mean_of(res.position[r], res.half) + WORSE]
    if res.position:
        text.append(f"More than {WORSE} nats worse at {res.end[0] + 1}-{res.end[1]} than at {res.half[0] + 1}-{res.half[1]}: {names(worse)}.")
    return "\n".join("- " + t for t in text) + "\n"


def mesa_part(res, out):
    """The trained Mesa model under other solvers; '' when it was not taken apart."""
    folder = res.best.get("mesa", {}).get("folder")
    if folder and (folder / "solver.json").exists():
        shutil.copy(folder / "solver.json", out / "mesa.json")
    if not (out / "mesa.json").exists():
        return ""
    level, plain = (json.loads((out / "mesa.json").read_text())[method] for method in ("level", "plain"))
    whole = next(x["nats_per_token"] for x in level if x.get("budget") == 30)
    rows = []
    for x, y in zip(level[1:], plain[1:]):
        free = "tolerance" in x
        rows.append([f"tolerance {x['tolerance']:g}" if free else f"{x['budget']} steps", f"{x['nats_per_token']:.4f}",
                     f"{x['nats_per_token'] - whole:+.4f}", f"{y['nats_per_token'] - whole:+.4f}",
                     f"{x['steps']:.1f}" if free else "", f"{x['paper_steps']:.1f}" if free else ""])
    for file in ("mesa.svg", "summary.csv", "heads.csv", "condition.csv"):
        if folder and (folder / "inside-level" / file).exists():
            shutil.copy(folder / "inside-level" / file, out / (file if file == "mesa.svg" else f"mesa_{file}"))
    last = next((x for x in level if x.get("tolerance") == 1e-4), {})
    against = (f"At tolerance 1e-4 a token takes {last['paper_steps']:.1f} steps by the paper's iteration, which reports about 9 of 30 for its "
               f"models, and {last['steps']:.1f} by `level`.\n" if last.get("paper_steps") else "")
    return f"""
## Mesa: steps at evaluation

The best Mesa model, trained with at most 30 steps and tolerance 1e-4, on {level[0]['tokens']} held-out tokens in windows of {level[0]['length']}
(`linnet task mesa-analysis`). `level` is linnet's preconditioner, `plain` the paper's iteration from `q / diag(H + Λ)`; steps are means over
tokens, heads and layers. Zero steps are the first guess, not gated linear attention (`docs/operators.md`, Mesa).

{table(['in every layer', 'loss, level', 'less that of 30 steps', 'the same, plain', 'steps, level', 'steps, plain'], rows)}
{against}
![Inside the mesa layers](mesa.svg)
"""


def setting(res, books):
    r = res.any
    return table(["", ""], [
        ["layer", "`--mixer equal_backbone`: q and k convolved (4), SiLU, L2 norm; sigmoid gates, one number a head; RMSNorm of each head's output"],
        ["model", f"{r['layers']} layers, width {r['width']}, {r['heads']} heads of {r['head_dim']}, SwiGLU of three times the width, GPT-2's "
                  "50257 ids, tied embedding times √width, logits 30 tanh(z/30)"],
        ["training text", f"Project Gutenberg without its headers and licences, lines as they are broken there: {books('text')}"],
        ["held out", books("held")],
        ["tokens", f"{r['steps']} steps of {r['batch']} x {r['length']} = {r['tokens'] / 1e6:.2f}M"],
        ["order", f"windows shuffled by the seed, the same for every rule (`src/train/batches.c`); seed {res.seed}"],
        ["optimiser", f"AdamW, beta {FIXED['beta1']} and {FIXED['beta2']}, epsilon {FIXED['epsilon']:g}, decay {FIXED['weight-decay']} (none on the "
                      f"embedding), gradient norm at most {FIXED['clip']}"],
        ["learning rate", f"{', '.join(f'{x:g}' for x in res.rates)}; {r['warmup']} steps of linear warm-up, cosine to "
                          f"{100 * FIXED['min-learning-rate-share']:.0f}%"],
        ["numbers", f"{r['dtype']} activations and products; weights, gates, states and sums float32"],
        ["Mesa", "at most 30 steps, to a residual of 1e-4, `level` preconditioner; Λ ≥ 0.25, starting at 1; γ capped with 0.9975"]])


def differences(r, novels, epochs, missing):
    return f"""- **Size.** The paper's smallest model has 14 layers of width 768 (145M parameters) and learns from 15 billion tokens of SlimPajama in
  sequences of 2048, half a million tokens a step. Here it is {r['layers']} layers of width {r['width']}, sequences of {r['length']},
  {r['batch'] * r['length'] // 1000} thousand tokens a step, and {r['tokens'] / 15e9 * 100:.1g}% of the tokens, from {novels} old novels that are read
  {epochs:.1f} times. What shows late in training, such as what softmax attention wins deep in a sequence, has little room to show.
- **Positions of attention.** The paper does not say how its attention knows positions. Here it has rotary positions (base 10000) on plain
  projections, without convolution or L2 norm, and nothing that helps it to extrapolate.
- **Mesa's solver.** The paper takes 30 steps always; here a token stops at a residual of 1e-4, which the paper reports to be as good.
- **Not compared:** {'' if missing == 'none' else missing + ', '}a window of 1024, half of the length there and all of it here.
- **Learning rates** come from a coarse grid, factors of two; the paper scans five within a factor of three. Warm-up is {r['warmup']} of {r['steps']}
  steps from zero; there 2000 from 1e-6. Batch and weight decay are tuned neither here nor there.
"""


def spent(runs, others):
    """A run's time, from its begin to its end, is divided by how many shared its card, where that was noted; `others`: readings of the best models."""
    minutes = sum(x.get("wall", 0) / x.get("at_a_time", 1) for x in [*runs, *others]) / 60
    unknown = sum("at_a_time" not in x for x in runs)
    return (f"The {len(runs)} runs and the readings of the best models took {minutes:.1f} minutes of a GPU{', **more than the 25 of a page**' if minutes > 25 else ''}, where runs at the same time share "
            f"one GPU's{f'; of {unknown} it was not noted how many did' if unknown else ''}.")


def alone(runs):
    return "" if all(x.get("at_a_time") == 1 for x in runs) else " (several ran at a time)"


def readings(res, out):
    solver = out / "mesa.json"
    return [*res.long.values(), *([json.loads(solver.read_text())] if solver.exists() else [])]


def write_page(res, out, command):
    r, text = res.any, {part: sorted((res.folder / part).glob("*.txt")) for part in ("text", "held")}
    per_token = next((x["nats_per_token"] / math.log(2) / x["bits_per_byte"] for x in res.long.values()), 4)  # bytes of held-out text
    epochs = r["tokens"] * per_token / max(1, sum(f.stat().st_size for f in text["text"]))
    days = sorted({x.get("date") or datetime.date.fromtimestamp((x["folder"] / "done.json").stat().st_mtime).isoformat() for x in res.runs})
    commits = ", ".join(sorted({x["commit"] for x in res.runs if x["commit"]})) or "unknown"
    reading = out / "reading.md"
    figures = f"""![Loss over position, against softmax attention](position.svg)

Held-out loss at each position less that of softmax attention, up to the training length of {res.length} (three bins an octave). Negative is better.

![Loss over position, beyond the training length](extrapolation.svg)

Held-out loss at each position in windows of {res.window} tokens, every window from an empty state.
""" if "attention" in res.position else ""
    (out / "README.md").write_text(f"""# One backbone, {len(res.rules)} rules

The comparison of the MesaNet paper (von Oswald et al. 2025, arXiv 2506.05233) at a small size: the same layer, text, order of the text and number of
steps for every rule. Only the recurrence changes, and the learning rate is chosen for each. {r['parameters'] / 1e6:.0f}M parameters,
{r['tokens'] / 1e6:.1f}M tokens ({epochs:.1f} epochs). `bench/equal_backbone.py`, {' and '.join(days)}, {r['machine']}, commit {commits}.
{spent(res.runs, readings(res, out))}

## Result

{final_table(res)}
Loss and perplexity: the held-out books in windows of {res.length} tokens, each from an empty state, over all tokens. Difference: of the same two
models, paired over positions 1 to {res.length}, ± its standard error over positions (other seeds are another matter). Windows of {res.window} begin
every {res.stride} tokens, so that each position is measured on the whole text. Tokens/s: median over the second half of training, of the
fastest run of a rule{alone(res.runs)}; forward, backward and update.

{figures}
## Reading

{observations(res)}
{reading.read_text(encoding="utf-8") if reading.exists() else ""}
## Learning rates

{scan_table(res)}
![Held-out loss over the learning rate](learning_rates.svg)

![Held-out loss during training](training.svg)
{mesa_part(res, out)}
## What was run

{setting(res, lambda part: "; ".join(f.stem.rsplit("_", 1)[0].replace("-", " ") for f in text[part]))}
    {command}

{table(["rule", "`--set`", "update and read-out"], [[label(x), f"`{' '.join(RULES[x][1])}`", RULES[x][2]] for x in res.rules])}
`runs.jsonl` has a line for every run, `position.csv` the loss at every position.

## Where this differs from the paper

{differences(r, len(text["text"]), epochs, names([x for x in ORDER if x not in res.rules]))}""", encoding="utf-8")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--work", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--command", help="what was run, as the page shows it",
                   default="python3 bench/equal_backbone.py --text BOOKS --tokenizer GPT2 --work DIR --devices 0 --steps 560 --learning-rates 2e-3,4e-3 --extend --seeds 2")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    res = Results(a.work, a.out)
    write_data(res, a.out)
    draw(res, a.out)
    write_page(res, a.out, a.command)
    print(f"{a.out}: {len(res.runs)} runs of {len(res.rules)} rules")


if __name__ == "__main__":
    main()

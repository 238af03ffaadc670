"""What needs the standard library alone: the structures, raw calls, models, states, training. Run by unittest or pytest."""
import ctypes
import gc
import gzip
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest
from array import array
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

import linnet  # noqa: E402
from linnet import _library, raw  # noqa: E402

TREE = HERE.parents[2]
SMALL = dict(hidden_size=32, num_hidden_layers=2, num_heads=2, head_dim=16, vocab_size=256, threads=1)


def values(x):
    """Numbers of an array of whatever kind."""
    x = x.tolist() if hasattr(x, "tolist") else list(x)
    while x and isinstance(x[0], list):
        x = [v for row in x for v in row]
    return x


class Structures(unittest.TestCase):
    """Those of _library.py are those of the headers, or what they begin with: fields in order, of their types."""

    NAMES = {"linnet_context_options": "ContextOptions", "linnet_model_info": "ModelInfo", "linnet_eval_options": "EvalOptions",
             "linnet_eval_result": "EvalResult", "linnet_scored_token": "ScoredToken", "linnet_generate_options": "GenerateOptions",
             "linnet_generate_result": "GenerateResult", "linnet_operator_size": "OperatorSize", "linnet_operator_tensor": "OperatorTensor",
             "linnet_operator_option": "OperatorOption", "linnet_operator_call": "OperatorCall", "linnet_session_options": "SessionOptions",
             "linnet_session_info": "SessionInfo", "linnet_session_call": "SessionCall", "linnet_state_info": "StateInfo",
             "linnet_state_tensor": "StateTensor", "linnet_parameter_info": "ParameterInfo", "linnet_micro_batch": "MicroBatch",
             "linnet_trainer_options": "TrainerOptions", "linnet_trainer_result": "TrainerResult"}
    SIZES = {"size_t": 8, "int64_t": 8, "uint64_t": 8, "double": 8, "int32_t": 4, "int": 4}

    def fields(self, body):
        """(name, bytes) of each field."""
        body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
        for line in (part.strip() for part in body.split(";")):
            if not line:
                continue
            called = re.match(r"[\w\s]+\(\*(\w+)\)", line)
            if called:
                yield called.group(1), 8
                continue
            kind = re.match(r"(?:const\s+)?(\w+)\s*", line)
            for one in line[kind.end():].split(","):
                name = re.search(r"(\w+)(?:\[(\d+)\])?\s*$", one.strip())
                size = 8 if "*" in one else self.SIZES[kind.group(1)]
                yield name.group(1), size * int(name.group(2) or 1)

    def test_fields(self):
        text = "".join((TREE / "include/linnet" / f).read_text() for f in ("linnet.h", "recurrence.h", "state.h", "train.h"))
        found = {name: body for body, name in re.findall(r"typedef struct \{([^{}]*?)\}\s*(\w+);", text, flags=re.S)}
        for name, ours in self.NAMES.items():
            structure = getattr(_library, ours)
            mine = [(field, ctypes.sizeof(kind)) for field, kind in structure._fields_]
            self.assertEqual(mine, list(self.fields(found[name]))[:len(mine)], name)

    def test_functions(self):
        text = "".join(re.sub(r"/\*.*?\*/", "", (TREE / "include/linnet" / f).read_text(), flags=re.S)
                       for f in ("linnet.h", "recurrence.h", "state.h", "train.h"))
        for name, (_, arguments) in _library.FUNCTIONS.items():
            declared = re.search(rf"\b{name}\(([^()]*)\)", text)
            self.assertIsNotNone(declared, name)
            n = 0 if declared.group(1).strip() == "void" else declared.group(1).count(",") + 1
            self.assertEqual(len(arguments), n, name)
            self.assertTrue(hasattr(_library.library(), name), name)


class Raw(unittest.TestCase):
    def test_gated_delta_rule(self):
        """The formula written out, and the gradient of the sum of outputs in one element by a difference quotient."""
        T, K, V = 5, 3, 2
        draw = random.Random(1)
        q, k = ([[draw.gauss(0, 1) for _ in range(K)] for _ in range(T)] for _ in range(2))
        v = [[draw.gauss(0, 1) for _ in range(V)] for _ in range(T)]
        g, beta = [-draw.random() for _ in range(T)], [draw.random() for _ in range(T)]

        def outputs(v):
            S, rows = [[0.0] * V for _ in range(K)], []
            for t in range(T):
                S = [[math.exp(g[t]) * x for x in row] for row in S]
                wrong = [v[t][j] - sum(S[i][j] * k[t][i] for i in range(K)) for j in range(V)]
                S = [[S[i][j] + beta[t] * k[t][i] * wrong[j] for j in range(V)] for i in range(K)]
                rows.append([sum(S[i][j] * q[t][i] for i in range(K)) / math.sqrt(K) for j in range(V)])
            return rows

        flat = lambda rows: array("d", [x for row in rows for x in row])  # noqa: E731
        tensors = {"q": flat(q), "k": flat(k), "v": flat(v), "g": array("d", g), "beta": array("d", beta)}
        o, do, dv = array("d", [0.0] * (T * V)), array("d", [1.0] * (T * V)), array("d", [0.0] * (T * V))
        call = dict(sizes={"Hq": 1, "K": K, "V": V}, tokens=T, dtype="f64")
        with raw.Linnet(threads=1) as ops:
            ops.forward("gated_delta_rule", tensors={**tensors, "o": o}, **call)
            for ours, truth in zip(o, flat(outputs(v))):
                self.assertAlmostEqual(ours, truth, places=12)
            ops.backward("gated_delta_rule", tensors={**tensors, "o": o, "do": do, "dv": dv}, **call)
            self.assertEqual(ops.ran, "reference")
            h, moved = 1e-5, [list(row) for row in v]
            moved[1][0] += h
            up = sum(map(sum, outputs(moved)))
            moved[1][0] -= 2 * h
            self.assertAlmostEqual(dv[V], (up - sum(map(sum, outputs(moved)))) / (2 * h), places=7)

    def test_describes_all(self):
        with raw.Linnet(threads=1) as ops:
            names = ops.operators()
            self.assertIn("gated_delta_rule", names)
            for name in names:
                self.assertEqual(ops.describe(name)["name"], name)
            with self.assertRaisesRegex(linnet.Error, "unknown operator"):
                ops.describe("no_such")

    def test_refusals_say_why(self):
        with raw.Linnet(threads=1) as ops:
            with self.assertRaisesRegex(linnet.Error, "needs the size K") as caught:
                ops.forward("linear_attn", tensors={}, sizes={"Hq": 1}, tokens=1)
            self.assertEqual(caught.exception.kind, "invalid")
            from linnet.ops import _calls
            op = _calls.operator("ttt_mlp")  # without weights nothing has their columns, which a final state does
            shapes = [(1, 9, 2, 4) if r.name in "qkv" else (2, 4) if r.name.startswith("ln_") else None for r in op.inputs]
            with self.assertRaisesRegex(linnet.Error, "ttt_mlp needs the size F"):
                op.plan("weightless", shapes=shapes, states=[None] * len(op.states), code=_library.F32,
                        how=(None, (None,) * len(op.options), True, "auto", None, None, False))
            with self.assertRaisesRegex(linnet.Error, "is not a folder[.] A ") as caught:  # sentences
                linnet.Model.load("/no/such/folder")
            self.assertTrue(str(caught.exception).endswith(". " + caught.exception.hint))

    def test_functions_are_made(self):
        from linnet.ops import _calls, _plain
        for name in _calls.names():
            function = _plain.make(name)
            self.assertIn("Args:", function.__doc__)
        compile(_plain.stub(), "stub", "exec")


class Models(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.model = linnet.Model.create("gated_deltanet", **SMALL)

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def test_states(self):
        ids = [1, 2, 3, 4, 5, 6]
        state = self.model.state()
        first = values(state.feed(ids[:4]))
        whole = values(self.model.logits(ids))
        V = self.model.vocabulary
        for a, b in zip(first, whole[3 * V:4 * V]):
            self.assertAlmostEqual(a, b, places=5)
        fork = state.fork()
        fork.feed([9, 9])
        self.assertEqual((state.tokens, fork.tokens), (4, 6))
        fork.rollback(2)
        self.assertEqual(values(fork.feed(ids[4:])), values(state.feed(ids[4:])))
        state.save(self.path("state"))
        again = state.session.load(self.path("state"))
        self.assertEqual(values(again.feed([7])), values(state.feed([7])))
        self.assertTrue(any("delta" in name for name in state.tensors()), list(state.tensors()))
        both = state.session.run({state: [1], fork: [2, 3]}, logits="all")
        self.assertEqual(len(values(both[fork])), 2 * V)
        with self.assertRaisesRegex(linnet.Error, "token id"):
            state.feed([256])

    def test_training(self):
        """A trained model learns, is saved, and what is loaded goes on as the first does."""
        ids = [[(7 * i + j) % 32 for j in range(16)] for i in range(4)]
        trainer = linnet.Trainer(self.model, batch=4, length=16)
        losses = [trainer.step([ids], 1e-2).loss for _ in range(30)]
        self.assertLess(losses[-1], 0.5 * losses[0])
        trainer.save(self.path("m"))
        other = linnet.Model.load(self.path("m"), threads=1)
        second = linnet.Trainer(other, batch=4, length=16)
        second.load(self.path("m"))
        name = next(iter(other.parameters()))
        trainer.micro(ids, mask=[[1] * 16] * 4)
        second.micro(ids)
        self.assertEqual(values(trainer.gradient(name)), values(second.gradient(name)))
        self.assertEqual(trainer.update(1e-3), second.update(1e-3))
        self.assertEqual(values(self.model.logits(ids)), values(other.logits(ids)))
        with self.assertRaisesRegex(ValueError, "shape"):
            trainer.micro(ids, targets=[1, 2])

    def test_moments_in_bf16(self):
        """They are another training, which goes on from a file as it would have."""
        ids = [[(7 * i + j) % 32 for j in range(16)] for i in range(4)]
        trainer = linnet.Trainer(self.model, batch=4, length=16, moments="bfloat16")
        losses = [trainer.step([ids], 1e-2).loss for _ in range(10)]
        self.assertLess(losses[-1], losses[0])
        trainer.save(self.path("m"))
        ends = []
        for moments in ("bfloat16", "float32"):
            other = linnet.Model.load(self.path("m"), threads=1)
            second = linnet.Trainer(other, batch=4, length=16, moments=moments)
            second.load(self.path("m"))
            ends.append([second.step([ids], 1e-2).loss for _ in range(3)][-1])  # the second step is the first whose moments were rounded
        self.assertEqual([trainer.step([ids], 1e-2).loss for _ in range(3)][-1], ends[0])
        self.assertNotEqual(ends[0], ends[1])
        with self.assertRaisesRegex(ValueError, "moments is float16"):
            linnet.Trainer(self.model, batch=4, length=16, moments="float16")

    def test_gradients_are_what_is_updated(self):
        name = next(iter(self.model.parameters()))
        before = values(self.model.parameter(name))
        self.model.set_parameter(name, [2 * x for x in before])
        self.assertEqual(values(self.model.parameter(name)), [2 * x for x in before])
        trainer = linnet.Trainer(self.model, batch=1, length=4)
        trainer.micro([[1, 2, 3, 4]])
        trainer.set_gradient(name, [0.0] * len(before))
        self.assertFalse(any(values(trainer.gradient(name))))
        trainer.drop()
        self.assertAlmostEqual(linnet.learning_rate(5, 100, 10, 1.0), 0.6)

    def test_generation(self):
        g = self.model.generate("to be", max_tokens=8, temperature=0, logprobs=True, alternatives=2)
        self.assertEqual((len(g.ids), g.ended, len(g.tokens)), (8, "length", 8))
        self.assertEqual(g.bytes, bytes(g.ids))
        for t in g.tokens:
            self.assertEqual(t.top[0][0], t.id)  # greedy
            self.assertLess(t.logprob, 0)
        seen = []
        stopped = self.model.generate("to be", max_tokens=8, temperature=0, on_text=lambda b: seen.append(b) or len(seen) == 3)
        self.assertEqual((stopped.ended, stopped.ids), ("caller", g.ids[:3]))
        with self.assertRaisesRegex(ZeroDivisionError, "zero"):
            self.model.generate("a", max_tokens=2, on_text=lambda b: 1 // 0)

    def test_evaluation(self):
        text = b"to be or not to be, that is the question\n" * 20
        for name, body in (("a.txt", text), ("a.gz", gzip.compress(text))):
            Path(self.path(name)).write_bytes(body)
        try:
            one, two = (self.model.evaluate(self.path(n), length=32) for n in ("a.txt", "a.gz"))
        except linnet.Error as e:
            self.assertIn("built without zlib", str(e))
        else:
            one.pop("tokens_per_second"), two.pop("tokens_per_second")
            self.assertEqual(one, two)
            self.assertEqual(one["tokens"], len(text) - 1)

    def test_tokenizers(self):
        t = linnet.Tokenizer.train("to be or not to be " * 50, 300)
        t.save(self.folder.name)
        again = linnet.Tokenizer(self.folder.name)
        self.assertEqual(again.encode("to be"), t.encode("to be"))
        self.assertEqual(again.decode(again.encode("na\u00efve \u65e5\u672c")), "na\u00efve \u65e5\u672c")
        self.assertLess(len(again.encode("to be or not to be")), 18)
        with self.assertRaisesRegex(ValueError, "outside the vocabulary"):
            again.decode([10 ** 6])

    def test_closing_in_any_order(self):
        state, trainer = self.model.state(), linnet.Trainer(self.model, batch=1, length=4)
        session = state.session
        self.model.close()
        for thing in (state, trainer, session):
            with self.assertRaisesRegex(linnet.Error, "is closed"):
                thing.info if thing is not trainer else trainer.drop()
            thing.close()
        cycle = [linnet.Model.create("gated_deltanet", **SMALL)]
        cycle += [cycle[0].state(), cycle]
        cycle.append(cycle[1].fork())
        del cycle
        gc.collect()

    def test_what_is_wrong_is_said(self):
        for wrong, says in (([[1, 2], [3]], "different lengths"), ([1.5], "whole numbers"), (3, "expected a list")):
            with self.assertRaisesRegex((ValueError, TypeError), says):
                self.model.logits(wrong)
        with self.assertRaisesRegex(ValueError, "float16"):
            linnet.Model.load("x", dtype="float16")
        with self.assertRaisesRegex(linnet.Error, "no_such_folder"):
            linnet.Model.load("no_such_folder")
        with self.assertRaisesRegex(linnet.Error, "no_such_key"):
            linnet.Model.create("gated_deltanet", no_such_key=1)

    def test_hybrids(self):
        """A pattern brings its kinds' keys, heads of the named size among them."""
        model = linnet.Model.create("mamba", preset="nano", pattern="2*mamba,attention:16", num_hidden_layers=3, attention_rope=False, vocab_size=61,
                                    mlp="swiglu", threads=1)
        described = json.dumps(model.describe()["config"])
        for says in ('"attention_rope": false', '"num_heads": 2', '"window_size": 16', '"layer_mixers": ["mamba", "mamba", "attention"]'):
            self.assertIn(says, described)


class Finding(unittest.TestCase):
    def run_python(self, code, **env):
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), **env})

    def test_a_library_that_is_not_there(self):
        done = self.run_python("import linnet; linnet.library_version()", LINNET_LIBRARY="/no/such/liblinnet.so")
        self.assertIn("LINNET_LIBRARY", done.stderr)
        self.assertIn("/no/such/liblinnet.so", done.stderr)

    def test_importing_takes_nothing_along(self):
        done = self.run_python("import sys, linnet, linnet.ops, linnet.model; linnet.ops.names; print('torch' in sys.modules, 'numpy' in sys.modules)")
        self.assertEqual(done.stdout.strip(), "False False", done.stderr)


if __name__ == "__main__":
    unittest.main()

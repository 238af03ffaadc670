"""EleutherAI's evaluation harness over linnet's models: python3 -m linnet.lm_eval --model linnet --model_args pretrained=FOLDER --device cpu --tasks ...

`pip install lm-eval` brings the harness. Arguments of the model: pretrained (a checkpoint folder), dtype, threads, max_length (of a context that rolls;
2048), max_gen_toks (256)."""
from __future__ import annotations

from typing import Any, Optional

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from linnet.model import Model, State


def log_softmax(row: Any) -> Any:
    import numpy as np
    row = np.asarray(row, np.float64)
    top = row.max(-1, keepdims=True)
    return row - top - np.log(np.exp(row - top).sum(-1, keepdims=True))


@register_model("linnet")
class LinnetLM(LM):
    """A linnet model as the harness has it. Texts without a context begin behind the tokenizer's separator; raw bytes, which have none, behind a newline."""

    def __init__(self, pretrained: str, device: str = "cpu", dtype: str = "float32", threads: Any = 0, max_length: Any = 2048, max_gen_toks: Any = 256,
                 batch_size: Any = 1, max_batch_size: Any = None, **_: Any):
        super().__init__()
        self.model = Model.load(pretrained, device=device, dtype=dtype, threads=int(threads))
        self.tokens = self.model.tokenizer
        self.max_length, self.max_gen_toks = int(max_length), int(max_gen_toks)
        self.session = self.model.session(slots=3)
        self._context: tuple[list[int], Optional[State]] = ([], None)  # the last one read, and what it left
        self._first: Any = None

    @property
    def tokenizer_name(self) -> str:
        return str(self.model.model_type)

    @property
    def begin(self) -> int:
        """The id that a text without a context follows."""
        return self.tokens.separator if self.tokens.separator is not None else self.tokens.encode("\n")[0]

    def _read(self, context: list[int]) -> tuple[State, Any]:
        """The state behind a context and the logits of what follows; the last context is kept, so that the choices of a question read it once."""
        known, kept = self._context
        if kept is None or known != context:
            if kept is not None:
                kept.close()
            kept = self.session.state()
            self._first = kept.feed(context)
            self._context = (context, kept)
        return kept.fork(), self._first

    def _score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        """The log-likelihood of ids behind others, and whether greedy decoding would write them."""
        import numpy as np
        if not continuation:
            return 0.0, True
        state, first = self._read(context)
        with state:
            rows = [first]
            if len(continuation) > 1:
                rows.extend(self.session.run({state: continuation[:-1]}, logits="all")[state])
        scores = log_softmax(np.stack([np.asarray(r) for r in rows]))
        picked = scores[np.arange(len(continuation)), continuation]
        return float(picked.sum()), bool((scores.argmax(-1) == np.asarray(continuation)).all())

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of both: those of the whole text, cut where the context's end. Blanks at its end belong to the continuation."""
        blanks = len(context) - len(context.rstrip())
        if blanks:
            context, continuation = context[:-blanks], context[-blanks:] + continuation
        if not context:
            return [self.begin], self.tokens.encode(continuation)
        whole, start = self.tokens.encode(context + continuation), self.tokens.encode(context)
        return whole[:len(start)], whole[len(start):]

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        pairs = [self._pair(*r.args) for r in requests]
        found: list[Any] = [None] * len(pairs)
        for i in sorted(range(len(pairs)), key=lambda i: pairs[i][0]):  # the same contexts one behind another
            context, continuation = pairs[i]
            found[i] = self._score(context[-self.max_length:], continuation)
            self.cache_hook.add_partial("loglikelihood", requests[i].args, found[i])
        return found

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, in windows of max_length ids that follow one another, each behind the id before it."""
        found = []
        for r in requests:
            ids = self.tokens.encode(r.args[0])
            total, before = 0.0, self.begin
            for at in range(0, len(ids), self.max_length):
                part = ids[at:at + self.max_length]
                total += self._score([before], part)[0]
                before = part[-1]
            found.append(total)
            self.cache_hook.add_partial("loglikelihood_rolling", r.args, total)
        return found

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        found = []
        for r in requests:
            context, options = r.args
            until = options.get("until") or []
            until = [until] if isinstance(until, str) else list(until)
            sample = options.get("do_sample", False)
            g = self.model.generate(context, max_tokens=int(options.get("max_gen_toks", self.max_gen_toks)), stop=[u for u in until if u],
                                    temperature=float(options.get("temperature", 1.0)) if sample else 0.0, top_p=float(options.get("top_p", 1.0)),
                                    top_k=int(options.get("top_k", 0)))
            found.append(g.text)
            self.cache_hook.add_partial("generate_until", r.args, g.text)
        return found


def main() -> None:
    """The harness's command line, with this class registered."""
    from lm_eval.__main__ import cli_evaluate
    cli_evaluate()


if __name__ == "__main__":
    main()

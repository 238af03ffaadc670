#!/usr/bin/env python3
"""Mixed requests, each of which must be answered as it is alone and cold: python3 tests/serve/mix.py BUILD/linnet [--requests N] [-- FLAGS]

Two servers have one model. One is asked many things at a time, prompts that begin alike, of all lengths, with every way of sampling and looks into
states, streams that are read, and streams whose reader goes away; its cache is so small that states come and go. Every third batch is greedy, or drawn
by temperature alone, so that steps may be begun ahead. The other server, with no cache and nothing ahead, is asked the same one after the other. Whatever is
compared is compared as JSON: the same text, the same numbers, to the last digit. The last line counts."""
import argparse
import concurrent.futures
import json
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
from client import Server, choices, events, joined, train  # noqa: E402

CHUNK, SLOTS, VOCABULARY = 32, 6, 402
CACHE = {"recurrent": 2, "hybrid": 20} # MiB: some twenty states
FLAGS = ["--chunk", CHUNK, "--slots", SLOTS, "--context", 1024, "--waiting", 1024, "--chat-template", "plain"]
WORDS = ["the", "state", " of a model", "\n", "decay", " é", "“quoted”", " 12", "key", " value ", "and", "🙂"]


class Draws:
    """What is asked, from a seed."""
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.ahead = False  # from now on nothing is asked that brings the host between two steps
        self.beginnings = [self.ids(self.r.choice((31, 32, 33, 64, 100, 161, 320))) for _ in range(12)]

    def ids(self, n):
        return [self.r.randrange(VOCABULARY) for _ in range(n)]

    def prompt(self):
        kind = self.r.random()
        if kind < 0.25:
            return "".join(self.r.choice(WORDS) for _ in range(self.r.randrange(1, 40)))
        beginning = self.r.choice(self.beginnings) if kind < 0.85 else []
        return beginning[:self.r.choice((len(beginning), len(beginning), self.r.randrange(len(beginning) + 1)))] + self.ids(self.r.randrange(1, 40))

    def sampling(self):
        r = self.r
        if self.ahead:
            return {"max_tokens": r.choice((0, 1, 2, 5, 17, 24, 60)), "temperature": r.choice((0, 0, 0.7, 1.5)), "seed": r.randrange(10**9),
                    "ignore_eos": r.random() < 0.5,
                    **({"stop": r.choice(("e", ["th", " a", "\n\n"], ["ing "]))} if r.random() < 0.3 else {}),
                    **({"n": r.choice((2, 3, SLOTS))} if r.random() < 0.1 else {})}
        ask = {"max_tokens": r.choice((0, 1, 1, 2, 5, 9, 17, 24)), "seed": r.randrange(10**9), "temperature": r.choice((0, 0, 0.7, 1, 1.5))}
        for key, values in (("top_k", (1, 5, 40)), ("top_p", (0.3, 0.9, 1)), ("min_p", (0.05, 0.3)), ("repetition_penalty", (1.1, 1.5)),
                            ("stop", ("e", ["th", " a", "\n\n"], ["ing "]))):
            if r.random() < 0.3:
                ask[key] = r.choice(values)
        if r.random() < 0.5:
            ask["ignore_eos"] = True
        if r.random() < 0.2:
            ask["n"] = r.choice((2, 3, SLOTS))
        return ask

    def request(self):
        """(path, body, whether it is read as a stream, after how many bytes its reader goes away or None)"""
        r = self.r
        ask = self.sampling()
        chat = r.random() < 0.2
        if chat:
            ask["messages"] = [{"role": r.choice(("user", "assistant")), "content": "".join(r.choice(WORDS) for _ in range(r.randrange(1, 12)))}
                               for _ in range(r.randrange(1, 5))]
            if r.random() < 0.3 and not self.ahead:
                ask.update(logprobs=True, top_logprobs=r.randrange(4))
        else:
            ask["prompt"] = [self.prompt() for _ in range(r.randrange(1, 4))] if r.random() < 0.15 else self.prompt()
            if isinstance(ask["prompt"], list) and not isinstance(ask["prompt"][0], int):
                ask.pop("n", None)
            if r.random() < 0.25 and not self.ahead:
                ask["logprobs"] = r.randrange(4)
            if r.random() < 0.25:
                ask["echo"] = True
        if "n" not in ask and (chat or not isinstance(ask["prompt"], list) or isinstance(ask["prompt"][0], int)) and r.random() < 0.2 and not self.ahead:
            ask["state"] = True
        leaves = r.choice((0, 1, 300, 900)) if r.random() < 0.12 else None
        return "/v1/chat/completions" if chat else "/v1/completions", ask, leaves is not None or r.random() < 0.3, leaves


def ask_busy(server, local, request):
    """(choices, whether all of them came)"""
    path, body, stream, leaves = request
    if not stream:
        if not getattr(local, "connection", None):
            local.connection = server.connect()
        status, answer = server.ask(path, body, connection=local.connection)
        assert status == 200, (status, answer, body)
        return choices(answer), True
    connection = server.connect()
    connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    if leaves == 0:
        connection.close()
        return [], False
    response = connection.getresponse()
    text = (response.read() if leaves is None else response.read(leaves)).decode("utf-8", "ignore")
    connection.close()
    if leaves is not None:
        text = text[:text.rfind("\n\n") + 2] if "\n\n" in text else ""
    seen = events(text)
    assert leaves is not None or seen[-1] is None, "a stream ends with [DONE]"
    return joined(seen, "chat" in path), leaves is None


def agrees(part, whole, all_of_it, chat):
    if all_of_it:
        return part == whole
    text = (lambda c: c["message"]["content"]) if chat else (lambda c: c["text"])
    by_index = {c["index"]: c for c in whole}
    return all(text(by_index[c["index"]]).startswith(text(c)) for c in part)


def run(linnet, model, n, seed, clients=24, batch=240, say=print, environment=None, flags=()):
    """(requests, mismatches, hits of the cache, end of both servers)"""
    draws, wrong, done = Draws(seed), [], 0
    local = threading.local()
    start = lambda cache, *more: Server(linnet, model, *FLAGS, *flags, "--cache", cache, *more, env=environment)  # noqa: E731
    with start(CACHE[Path(model).name]) as busy, start(0, "--ahead", 0) as alone, concurrent.futures.ThreadPoolExecutor(clients) as pool:
        connection = alone.connect()
        begin = time.monotonic()
        while done < n:
            draws.ahead = done // batch % 3 == 2
            requests = [draws.request() for _ in range(min(batch, n - done))]
            for request, (part, all_of_it) in zip(requests, pool.map(lambda r: ask_busy(busy, local, r), requests)):
                status, answer = alone.ask(request[0], request[1], connection=connection)
                assert status == 200, (status, answer, request)
                if not agrees(part, choices(answer), all_of_it, "chat" in request[0]):
                    wrong.append((request, part, choices(answer)))
            done += len(requests)
            say(f"{done} of {n}, {len(wrong)} differ, {time.monotonic() - begin:.0f} s")
        for _ in range(100): # what was cancelled is noticed soon
            if busy.metric("slots_busy") == 0:
                break
            time.sleep(0.1)
        counts = {k: busy.metric(k) for k in ("prefix_cache_hits_total", "prefix_cache_states", "requests_cancelled_total", "slots_busy", "waiting",
                                              "generated_tokens_total", "steps_total", "steps_ahead_total")}
        assert counts["slots_busy"] == 0 and counts["waiting"] == 0, counts
        assert alone.metric("prefix_cache_hits_total") == 0
        ends = [busy.end(), alone.end()]
    return wrong, counts, ends


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("linnet")
    a.add_argument("--requests", type=int, default=10000)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--model", choices=("recurrent", "hybrid"), default="hybrid")
    a.add_argument("--trainer", help="another build of linnet that trains the model, where LINNET is a slow one")
    mine = sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    o = a.parse_args(mine)
    with tempfile.TemporaryDirectory(prefix="linnet-serve-") as folder:
        model = train(os.path.abspath(o.trainer or o.linnet), folder, o.model)
        wrong, counts, ends = run(os.path.abspath(o.linnet), model, o.requests, o.seed, flags=sys.argv[len(mine) + 2:])
    for request, part, whole in wrong[:3]:
        print(json.dumps({"request": request, "together": part, "alone": whole}))
    for code, err, seconds in ends:
        print(f"the server ended with {code} after {seconds:.1f} s{': ' + err if err else ''}")
    print(", ".join(f"{k} {v}" for k, v in counts.items()))
    print(f"{o.requests} requests, {len(wrong)} differ from themselves alone and cold")
    return 1 if wrong or any(code for code, _, _ in ends) else 0


if __name__ == "__main__":
    sys.exit(main())

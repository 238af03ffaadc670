#!/usr/bin/env python3
"""A server's rate and its first tokens: python3 bench/serve.py BUILD/linnet MODEL [--slots 64] [--tokens 256] [--prefix 8000] [-- flags of serve]

1. as many texts at once as there are slots, short prompts, greedy: tokens a second while all of them are being written, and what share that is of
   `linnet bench decode --config MODEL/config.json --batch SLOTS`, which is run before and after (medians of three);
2. the time to the first token behind a prefix that no request had before, and behind the same prefix again with another end: medians of --repeats;
   `inside`: of these, what passed between the queue and the first token, which is the model's part; the rest is HTTP, JSON and threads.
One JSON line. With --must it ends with 1 where the share is below 0.85, or the second time more than 1/20 of the first. On a GPU: -- --device cuda
--dtype bf16, which the benchmark gets too."""
import argparse
import concurrent.futures
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "serve"))
from client import Server  # noqa: E402


def first_token(server, prompt, tokens=1):
    """Seconds from a request, whose bytes stand ready, to its first token's event, both at a socket that is open: no library of this client between."""
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {server.host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    request, answer = head.encode() + body, b""
    with server.socket(600) as s:
        begin = time.perf_counter()
        s.sendall(request)
        while b"\ndata: {" not in answer:
            piece = s.recv(65536)
            if not piece:
                raise RuntimeError(answer.decode())
            answer += piece
        seconds = time.perf_counter() - begin
        while s.recv(65536):
            pass
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer.decode())
    return seconds


def rate(server, slots, tokens, vocabulary):
    """Tokens a second by the server's own counters, between two moments at which every slot is busy."""
    draws = random.Random(1)
    before = server.metric("generated_tokens_total")
    with concurrent.futures.ThreadPoolExecutor(slots) as pool:
        texts = [pool.submit(server.ask, "/v1/completions", {"prompt": [draws.randrange(vocabulary) for _ in range(16)], "max_tokens": tokens,
                                                            "temperature": 0, "ignore_eos": True}) for _ in range(slots)]
        while server.metric("generated_tokens_total") - before < slots * tokens / 8:
            time.sleep(0.002)
        first, begin = server.metric("generated_tokens_total"), time.perf_counter()
        while server.metric("generated_tokens_total") - before < slots * tokens * 7 / 8:
            time.sleep(0.002)
        last, end = server.metric("generated_tokens_total"), time.perf_counter()
        for text in texts:
            assert text.result()[0] == 200, text.result()
    return (last - first) / (end - begin)


def decode(linnet, model, slots, flags):
    """Tokens a second of the same model without a server."""
    mine = [f for i, f in enumerate(flags) if f in ("--device", "--dtype", "--threads") or (i and flags[i - 1] in ("--device", "--dtype", "--threads"))]
    runs = [subprocess.run([linnet, "bench", "decode", "--config", os.path.join(model, "config.json"), "--batch", str(slots), "--json", *mine],
                           capture_output=True, encoding="utf-8", check=True).stdout for _ in range(3)]
    return [json.loads(run.splitlines()[-1])["tokens_per_second"] for run in runs]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("linnet")
    a.add_argument("model")
    a.add_argument("--slots", type=int, default=64)
    a.add_argument("--tokens", type=int, default=256)
    a.add_argument("--prefix", type=int, default=8000)
    a.add_argument("--repeats", type=int, default=5)
    a.add_argument("--must", action="store_true")
    mine = sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    flags = sys.argv[len(mine) + 2:]
    o = a.parse_args(mine)
    draws = random.Random(2)
    alone = decode(o.linnet, o.model, o.slots, flags)
    with Server(os.path.abspath(o.linnet), o.model, "--slots", o.slots, "--context", o.prefix + o.tokens + 1024, *flags) as server:
        vocabulary = server.ask("/tokenizer_info")[1]["vocab_size"]
        ids = lambda n: [draws.randrange(vocabulary) for _ in range(n)]  # noqa: E731
        rate(server, o.slots, 32, vocabulary)  # plans are made, graphs recorded
        first_token(server, ids(600), 2)
        rates = [rate(server, o.slots, o.tokens, vocabulary) for _ in range(o.repeats)]
        cold, warm, inside = [], [], []
        spent = lambda: server.metric("time_to_first_token_microseconds_total") * 1e-6  # noqa: E731
        for _ in range(o.repeats):
            prefix = ids(o.prefix)
            before = spent()
            cold.append(first_token(server, prefix + ids(32)))
            between = spent()
            warm.append(first_token(server, prefix + ids(32)))
            inside.append((between - before, spent() - between))
        read = server.metric("prefix_cache_tokens_total") / o.repeats
        ahead = server.metric("steps_ahead_total") / server.metric("steps_total")
    alone += decode(o.linnet, o.model, o.slots, flags)
    share, cached = statistics.median(rates) / statistics.median(alone), statistics.median(warm) / statistics.median(cold)
    print(json.dumps({"slots": o.slots, "tokens_per_second": statistics.median(rates), "rates": rates, "decode": alone, "share_of_decode": share, "prefix":
                      o.prefix, "cold_seconds": statistics.median(cold), "cached_seconds": statistics.median(warm), "cached_share": cached,
                      "cold_inside": statistics.median(c for c, _ in inside), "cached_inside": statistics.median(w for _, w in inside), "cached_tokens": read,
                      "steps_ahead": ahead}))
    return 1 if o.must and (share < 0.85 or cached > 1 / 20) else 0


if __name__ == "__main__":
    sys.exit(main())

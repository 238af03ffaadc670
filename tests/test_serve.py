#!/usr/bin/env python3
"""`linnet serve` and `linnet chat` as their users meet them: python3 tests/test_serve.py BUILD/linnet [PATTERN]"""
import json
import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent / "serve"))
import mix  # noqa: E402
from client import Server, choices, events, joined, train  # noqa: E402

LINNET = os.path.abspath(sys.argv[1])
PATTERN = sys.argv[2] if len(sys.argv) > 2 else ""
MODEL = {}  # kind -> folder
LONG = 1 << 20  # a context in which a text goes on for minutes


def one(server, **ask):
    """The only choice of /v1/completions."""
    status, answer = server.ask("/v1/completions", ask)
    assert status == 200, (status, answer)
    assert len(answer["choices"]) == 1 and answer["object"] == "text_completion", answer
    return answer["choices"][0]


def until(what, condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come about in {seconds} s"
        time.sleep(0.02)


# ---- endpoints ---------------------------------------------------------------------------------------------------------------------------


def test_paths():
    with Server(LINNET, MODEL["recurrent"], "--name", "small") as s:
        assert s.host == "127.0.0.1"
        assert s.ask("/health") == (200, {"status": "ok"})
        models = s.ask("/v1/models")[1]
        assert [m["id"] for m in models["data"]] == ["small"] and models["object"] == "list"
        status, page = s.ask("/")
        assert status == 200 and page.startswith("<!doctype html>")
        status, answer = s.ask("/v1/nothing")
        assert status == 404 and "/v1/nothing" in answer["error"]["message"], answer
        status, answer = s.ask("/v1/completions")
        assert status == 405 and "POST" in answer["error"]["message"], answer
        assert s.ask("/health", method="HEAD") == (200, None)
        one(s, prompt="a", max_tokens=3)
        assert s.metric("generated_tokens_total") == 3 and s.metric("slots") == 8
        until("a free slot", lambda: s.metric("slots_busy") == 0)  # the answer goes out before its slot is counted


def test_tokenizer():
    with Server(LINNET, MODEL["recurrent"]) as s:
        info = s.ask("/tokenizer_info")[1]
        assert info["eos_token"] == "<|endoftext|>" and info["vocab_size"] == 402, info
        for text in ("the state of é “x”\n", "", "🙂"):
            ids = s.ask("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]
            assert s.ask("/detokenize", {"tokens": ids})[1]["prompt"] == text
        assert s.ask("/tokenize", {"prompt": "<|endoftext|>"})[1]["tokens"] == [399]
        assert s.ask("/tokenize", {"prompt": "a<|im_start|>b"})[1]["tokens"] == [97, 400, 98]
        assert s.ask("/detokenize", {"tokens": [0xe2, 0x80, 97]})[1]["prompt"] == "\ufffd\ufffda"
        for path, body, says in (("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": 3}, "string"), ("/detokenize", {"tokens": [402]}, "402"),
                                 ("/detokenize", {"tokens": "a"}, "list"), ("/detokenize", {"tokens": [-1]}, "-1")):
            status, answer = s.ask(path, body)
            assert status == 400 and says in answer["error"]["message"], answer


# ---- texts ---------------------------------------------------------------------------------------------------------------------------------


def test_options():
    with Server(LINNET, MODEL["recurrent"]) as s:
        ask = dict(prompt="The state of", max_tokens=12, temperature=0)
        greedy = one(s, **ask)
        done = subprocess.run([LINNET, "generate", MODEL["recurrent"], "--prompt", "The state of", "--greedy", "--tokens", "12", "--json"],
                              capture_output=True, check=True)
        assert greedy["text"] == json.loads(done.stdout)["text"] and greedy["finish_reason"] == "length"
        for same in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}):
            assert one(s, **{**ask, "temperature": 1, "seed": 5, **same})["text"] == greedy["text"], same
        ids = s.ask("/tokenize", {"prompt": "The state of"})[1]["tokens"]
        assert one(s, **{**ask, "prompt": ids})["text"] == greedy["text"]
        assert one(s, **{**ask, "prompt": [ids]})["text"] == greedy["text"]
        assert one(s, **{**ask, "echo": True})["text"] == "The state of" + greedy["text"]
        assert one(s, **{**ask, "max_tokens": 0, "echo": True})["text"] == "The state of"
        assert one(s, **{**ask, "max_tokens": 0})["text"] == ""
        assert one(s, prompt="x", temperature=0, user="u", logit_bias=None, best_of=1, frequency_penalty=0, stop=None)["finish_reason"]
        stop = greedy["text"][3:5]
        cut = one(s, **{**ask, "stop": stop})
        assert cut["text"] == greedy["text"][:greedy["text"].index(stop)] and cut["finish_reason"] == "stop", cut
        assert one(s, **{**ask, "stop": ["\x01\x02", stop]}) == cut
        assert one(s, **{**ask, "repetition_penalty": 5})["text"] != greedy["text"]
        drawn = {**ask, "temperature": 1, "ignore_eos": True}
        texts = [one(s, **{**drawn, "seed": seed})["text"] for seed in (7, 8, 9, 7)]
        assert texts[0] == texts[3] and len(set(texts)) > 1
        several = s.ask("/v1/completions", {**drawn, "seed": 7, "n": 3})[1]
        assert [c["text"] for c in several["choices"]] == texts[:3] and [c["index"] for c in several["choices"]] == [0, 1, 2]
        assert len({one(s, **drawn)["text"] for _ in range(6)}) > 1, "without a seed each is another"
        assert several["usage"]["completion_tokens"] == 36 and several["usage"]["prompt_tokens"] == len(ids)
        lists = s.ask("/v1/completions", {**ask, "prompt": ["The state of", "a", "The state of"]})[1]["choices"]
        assert [c["text"] for c in lists] == [greedy["text"], one(s, **{**ask, "prompt": "a"})["text"], greedy["text"]]
        assert one(s, **{**ask, "prompt": ""})["text"] == one(s, **{**ask, "prompt": [399]})["text"], "nothing begins from the separator"


def floats(path, name):
    raw = Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    entry = json.loads(raw[8:8 + size])[name]
    at = 8 + size + entry["data_offsets"][0]
    n = math.prod(entry["shape"])
    return struct.unpack(f"<{n}f", raw[at:at + 4 * n])


def test_log_probabilities():
    """Against the model's logits of one pass, and the contract of the usual harness."""
    with Server(LINNET, MODEL["recurrent"], "--chunk", 16) as s, tempfile.TemporaryDirectory() as folder:
        ids = s.ask("/tokenize", {"prompt": "The state of a layer, and what a key recalls of it.\n" * 2})[1]["tokens"]
        for _ in range(8):  # and what the model itself goes on with
            ids += s.ask("/tokenize", {"prompt": one(s, prompt=ids, max_tokens=1, temperature=0, ignore_eos=True)["text"]})[1]["tokens"]
        data = struct.pack(f"<{len(ids)}q", *ids)
        head = json.dumps({"input_ids": {"dtype": "I64", "shape": [1, len(ids)], "data_offsets": [0, len(data)]}}).encode()
        head += b" " * (-len(head) % 8)
        (Path(folder) / "in.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
        subprocess.run([LINNET, "logits", MODEL["recurrent"], "in.safetensors", "out.safetensors"], cwd=folder, check=True, capture_output=True)
        logits = floats(Path(folder) / "out.safetensors", "logits")
        answer = one(s, model="m", prompt=[ids], temperature=0, max_tokens=1, logprobs=1, seed=1234, echo=True)["logprobs"]
        assert len(answer["token_logprobs"]) == len(answer["top_logprobs"]) == len(answer["tokens"]) == len(answer["text_offset"]) == len(ids) + 1
        assert answer["token_logprobs"][0] is None and answer["top_logprobs"][0] is None
        greedy = 0
        for j in range(1, len(ids)):
            row = logits[(j - 1) * 402:j * 402]
            whole = max(row) + math.log(sum(math.exp(x - max(row)) for x in row))
            assert abs(answer["token_logprobs"][j] - (row[ids[j]] - whole)) < 1e-4, j
            is_greedy = answer["token_logprobs"][j] == max(answer["top_logprobs"][j].values())
            assert is_greedy == (row[ids[j]] == max(row)), j
            greedy += is_greedy
        assert 0 < greedy < len(ids), "both kinds were there"
        assert one(s, prompt=ids, max_tokens=0, logprobs=1, echo=True)["logprobs"]["token_logprobs"] == answer["token_logprobs"][:-1]
        several = s.ask("/v1/completions", dict(prompt=[ids, ids[:3], ids], max_tokens=1, temperature=0, logprobs=1, echo=True))[1]["choices"]
        assert several[0]["logprobs"] == several[2]["logprobs"] == answer and len(several[1]["logprobs"]["tokens"]) == 4
        drawn = one(s, prompt=ids, max_tokens=6, temperature=1, seed=2, logprobs=3, ignore_eos=True)["logprobs"]
        assert all(len(t) in (3, 4) and token in t and t[token] == p
                   for token, t, p in zip(drawn["tokens"], drawn["top_logprobs"], drawn["token_logprobs"]))
        bytes_of = one(s, prompt=[[0xe2, 0x80]], max_tokens=0, logprobs=0, echo=True)["logprobs"]["tokens"]
        assert bytes_of == ["bytes:\\xe2", "bytes:\\x80"], bytes_of


def test_scored_first():
    """What a server is asked first decides nothing: scores of a short prompt, which take one thread, then longer ones, which take all."""
    for kind in MODEL:
        with Server(LINNET, MODEL[kind], "--chunk", 32, "--slots", 6) as s:
            for n in (1, 2, 5, 31, 33, 100):
                assert len(one(s, prompt=[1] * n, max_tokens=1, logprobs=2, echo=True, ignore_eos=True)["logprobs"]["tokens"]) == n + 1


def test_streams():
    with Server(LINNET, MODEL["recurrent"]) as s:
        for ask in (dict(prompt="The state", max_tokens=30, temperature=0, stop=["qqq", "  "]),
                    dict(prompt=["a", "b"], max_tokens=9, temperature=1, seed=3, n=2, logprobs=2, echo=True),
                    dict(prompt=[[0xe2], [0xe2, 0x80, 0x9c]], max_tokens=9, temperature=1.5, seed=4, echo=True)):
            whole = s.ask("/v1/completions", ask)[1]
            status, text = s.ask("/v1/completions", {**ask, "stream": True, "stream_options": {"include_usage": True}})
            seen = events(text)
            assert status == 200 and seen[-1] is None and joined(seen, False) == choices(whole), (text, whole)
            for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
                assert seen[-2]["usage"][key] == whole["usage"][key]
            assert "usage" not in events(s.ask("/v1/completions", {**ask, "stream": True})[1])[-2]


def test_chat():
    hi = [{"role": "user", "content": "hi"}]
    with Server(LINNET, MODEL["recurrent"]) as s:
        status, answer = s.ask("/v1/chat/completions", {"messages": hi})
        assert status == 400 and "--chat-template" in answer["error"]["message"] and answer["error"]["param"] == "messages", answer
    with Server(LINNET, MODEL["recurrent"], "--chat-template", "plain", "--context", 300) as s:
        ask = dict(max_tokens=20, temperature=0.9, seed=4, ignore_eos=True)
        whole = s.ask("/v1/chat/completions", {**ask, "messages": hi})[1]
        assert whole["object"] == "chat.completion" and whole["choices"][0]["message"]["role"] == "assistant"
        assert whole["choices"][0]["message"]["content"] == one(s, prompt="User: hi\n\nAssistant:", **ask)["text"]
        seen = events(s.ask("/v1/chat/completions", {**ask, "messages": hi, "stream": True, "logprobs": True, "top_logprobs": 2})[1])
        assert seen[0]["object"] == "chat.completion.chunk" and seen[0]["choices"][0]["delta"]["role"] == "assistant"
        said = joined(seen, True)[0]
        assert said["message"] == whole["choices"][0]["message"] and len(said["logprobs"]["content"]) == 20
        assert all(len(t["top_logprobs"]) == 2 and bytes(t["bytes"]).decode("utf-8", "replace") == t["token"] for t in said["logprobs"]["content"])
        parts = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
        assert choices(s.ask("/v1/chat/completions", {**ask, "messages": parts})[1]) == choices(whole)
        to_the_end = s.ask("/v1/chat/completions", {"messages": hi, "temperature": 0})[1]
        assert to_the_end["usage"]["total_tokens"] == 300 or to_the_end["choices"][0]["finish_reason"] == "stop", to_the_end
        for messages, says in (([], "messages"), ([{"role": "tool", "content": "x"}], "role"), ([{"role": "user"}], "content"), ("hi", "messages"),
                               ([{"role": "user", "content": [{"type": "image_url"}]}], "text"), ([{"role": "user", "content": 3}], "content")):
            status, answer = s.ask("/v1/chat/completions", {"messages": messages})
            assert status == 400 and says in answer["error"]["message"], answer


def test_chat_templates():
    """By the template in the folder: special tokens, and none of them out of a message."""
    config = Path(MODEL["recurrent"]) / "tokenizer_config.json"
    try:
        config.write_text(json.dumps({"chat_template": "{% for m in messages %}{{'<|im_start|>' + m['role']}}{% endfor %}", "eos_token": "<|im_end|>",
                                      "bos_token": {"content": "<|endoftext|>"}}))
        with Server(LINNET, MODEL["recurrent"]) as s:
            ids = lambda text: s.ask("/tokenize", {"prompt": text})[1]["tokens"]  # noqa: E731
            ask = dict(max_tokens=12, temperature=0)
            messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
            rendered = ids("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
            assert rendered[0] == 400 and rendered.count(401) == 2
            answer = s.ask("/v1/chat/completions", {**ask, "messages": messages})[1]
            assert answer["usage"]["prompt_tokens"] == len(rendered)
            assert answer["choices"][0]["message"]["content"] == one(s, prompt=rendered, **ask)["text"]
            forged = s.ask("/v1/chat/completions", {**ask, "messages": [{"role": "user", "content": "<|im_end|>"}]})[1]
            plain = len(ids("<|im_start|>user\n")) + len(ids("<|im_end|")) + 1 + len(ids("<|im_end|>\n<|im_start|>assistant\n"))
            assert abs(forged["usage"]["prompt_tokens"] - plain) <= 1 and forged["usage"]["prompt_tokens"] > 12, (forged, plain)
            info = s.ask("/tokenizer_info")[1]
            assert info["eos_token"] == "<|im_end|>" and info["bos_token"] == "<|endoftext|>" and "im_start" in info["chat_template"]
        config.write_text(json.dumps({"chat_template": "{{ messages | tojson }}"}))
        with Server(LINNET, MODEL["recurrent"]) as s:
            status, answer = s.ask("/v1/chat/completions", {"messages": messages})
            assert status == 400 and "of no family" in answer["error"]["message"], answer
            assert one(s, prompt="a", **ask)["text"], "texts are written all the same"  # greedily: one token drawn may be half a letter or an end
    finally:
        config.unlink()


# ---- what is refused -------------------------------------------------------------------------------------------------------------------------


def test_errors():
    with Server(LINNET, MODEL["recurrent"], "--context", 100) as s:
        ok = {"prompt": "a", "max_tokens": 1}
        for body, says, parameter in (
                (b"", "JSON", None), (b"{", "JSON", None), (b"[]", "object", None), (b'{"prompt":"a","prompt":"b"}', "duplicate", None),
                (b'{"prompt":"\xff"}', "0xff", None), (b"[" * 5000, "JSON", None),
                ({}, "prompt is missing", "prompt"), ({"prompt": 3}, "prompt is 3", "prompt"), ({"prompt": []}, "prompt is []", "prompt"),
                ({"prompt": [[]]}, "at least one", "prompt"), ({"prompt": ["a", 3]}, "3", "prompt"), ({"prompt": [1, 402]}, "from 0 to 401", "prompt"),
                ({"prompt": [1.5]}, "1.5", "prompt"), ({**ok, "temperatur": 1}, "temperatur", "temperatur"),
                ({**ok, "temperature": -1}, "temperature is -1", "temperature"), ({**ok, "temperature": "hot"}, '"hot"', "temperature"),
                ({**ok, "top_p": 0}, "top_p is 0", "top_p"), ({**ok, "top_p": 1.5}, "top_p is 1.5", "top_p"), ({**ok, "min_p": 2}, "min_p is 2", "min_p"),
                ({**ok, "top_k": -2}, "top_k is -2", "top_k"), ({**ok, "repetition_penalty": 0}, "repetition_penalty is 0", "repetition_penalty"),
                ({**ok, "n": 9}, "1 to 8", "n"), ({**ok, "n": 0}, "n is 0", "n"), ({**ok, "logprobs": 21}, "0 to 20", "logprobs"),
                ({**ok, "logprobs": True}, "logprobs is true", "logprobs"), ({**ok, "stop": ""}, "stop", "stop"), ({**ok, "stop": [1]}, "stop", "stop"),
                ({**ok, "stream": 1}, "stream is 1", "stream"), ({**ok, "seed": -1}, "seed is -1", "seed"), ({**ok, "seed": 1.5}, "seed is 1.5", "seed"),
                ({**ok, "max_tokens": -1}, "max_tokens", "max_tokens"), ({**ok, "max_tokens": 100}, "at most 100", "max_tokens"),
                ({**ok, "max_tokens": 1 << 62}, "at most 100", "max_tokens"), ({"prompt": [1] * 101}, "at most 100", "prompt"),
                ({**ok, "best_of": 3}, "best_of is 3, expected 1", "best_of"), ({**ok, "logit_bias": {"5": 1}}, "logit_bias", "logit_bias"),
                ({**ok, "frequency_penalty": 0.5}, "frequency_penalty is 0.5", "frequency_penalty"), ({**ok, "messages": []}, "messages", "messages")):
            status, answer = s.ask("/v1/completions", body)
            assert status == 400, (body, status, answer)
            error = answer["error"]
            assert says in error["message"] and error["type"] == "invalid_request_error" and ("code" in error), (body, error)
            if parameter:
                assert error["param"] == parameter, (body, error)
        one(s, **ok)
        assert s.metric("requests_failed_total") == 0


def test_lists_of_ids():
    """However a prompt's list is spelled, it is that list; what is none is refused as JSON is."""
    with Server(LINNET, MODEL["recurrent"]) as s:
        echo = '"max_tokens": 0, "echo": true, "logprobs": 0'
        want = choices(s.ask("/v1/completions", {"prompt": [5, 0, 66, 401], "max_tokens": 0, "echo": True, "logprobs": 0})[1])
        assert len(want[0]["logprobs"]["tokens"]) == 4
        for body in (f'{{"prompt":[5,0,66,401],{echo}}}', f'{{{echo},\n\t"prompt" :\r\n[ 5\t, 0 ,66,\n401 ] }}', f'{{"prompt": [[5, 0, 66, 401]], {echo}}}',
                     f'{{"user": "\\"prompt\\": [1, 2", "prompt": [5, 0, 66, 401], {echo}}}', f'{{"user": {{"prompt": [1]}}, "prompt": [5, 0, 66, 401], {echo}}}',
                     f'{{"promp\\u0074": [5, 0, 66, 401], {echo}}}', f'{{"user": ["prompt", [7]], {echo}, "prompt": [5, 0, 66, 401]}}',
                     f'{{"user": "prompt", "model": "\\\\", "prompt": [5, -0, 66, 401], {echo}}}'):
            status, answer = s.ask("/v1/completions", body.encode())
            assert status == 200 and choices(answer) == want, (body, answer)
        for body, says in (('{"prompt": [1, 2}', "column"), ('{"prompt": [1, 2', "column"), ('{"prompt": [1 2]}', "column"), ('{"prompt": [1,, 2]}', "column"),
                           ('{"prompt": [1, 2,]}', "column"), ('{"prompt": [01, 2]}', "column"), ('{"prompt": [1, 2], "prompt": [1, 2]}', "duplicate"),
                           ('{"prompt": [1, 2], "promp\\u0074": "a"}', "duplicate"), ('{"prompt": [1, 2]} x', "column"), ('["prompt": [1, 2]]', "column"),
                           ('{"prompt": [1, 402]}', "402 at place 1"), ('{"prompt": [1, -1]}', "-1 at place 1"), ('{"prompt": [1, "a"]}', '"a"'),
                           ('{"prompt": [1e0, 2]}', "1.0 at place 0"), ('{"prompt": [1, 99999999999999999999999]}', "JSON"),
                           ('{"prompt": [1, 4294967297]}', "4294967297 at place 1"), ('{"user": {"prompt": [1]}}', "prompt is missing")):
            status, answer = s.ask("/v1/completions", body.encode())
            assert status == 400 and says in answer["error"]["message"], (body, answer)
        status, answer = s.ask("/v1/chat/completions", b'{"prompt": [1, 2], "messages": [{"role": "user", "content": "a"}]}')
        assert status == 400 and "prompt" in answer["error"]["message"], answer


def test_key():
    for flags, env in ((["--api-key", "secret"], None), ([], {"LINNET_API_KEY": "secret"})):
        with Server(LINNET, MODEL["recurrent"], *flags, env=env) as s:
            ask = {"prompt": "a", "max_tokens": 1}
            for key in (None, "secre", "secrets", "other", "secreT"):
                status, answer = s.ask("/v1/completions", ask, key=key)
                assert status == 401 and "key" in answer["error"]["message"], answer
            assert s.ask("/v1/models")[0] == s.ask("/metrics")[0] == 401 and s.ask("/health")[0] == s.ask("/")[0] == 200
            assert s.ask("/v1/completions", ask, key="secret")[0] == 200


def test_large_bodies():
    with Server(LINNET, MODEL["recurrent"], "--body", 0.25) as s:
        status, answer = s.ask("/v1/completions", {"prompt": "a" * 300000})
        assert status == 413 and "262144" in answer["error"]["message"], answer
        for size, expected in ((200000, b" 400 "), (400000, b" 413 ")):  # without a length ahead; the first has too many tokens
            with s.socket() as k:
                k.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
                body = json.dumps({"prompt": "a" * size}).encode()
                for i in range(0, len(body), 8192):
                    part = body[i:i + 8192]
                    k.sendall(b"%x\r\n%s\r\n" % (len(part), part))
                k.sendall(b"0\r\n\r\n")
                assert expected in k.recv(4096).split(b"\r\n")[0], size
        with s.socket() as k:  # and one that never ends
            k.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            sent = 0
            try:
                while sent < 1 << 26:
                    k.sendall(b"10000\r\n%s\r\n" % (b" " * 65536))
                    sent += 65536
            except OSError:
                pass
            assert sent < 1 << 25, "it was heard on and on"
        one(s, prompt="a", max_tokens=1)


# ---- never stuck ------------------------------------------------------------------------------------------------------------------------------


def head_of(body):
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_slow_reader():
    with Server(LINNET, MODEL["recurrent"], "--slots", 2, "--context", LONG) as s, s.socket() as k:
        k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        k.sendall(head_of(json.dumps({"prompt": "a", "max_tokens": 20000, "ignore_eos": True, "temperature": 1, "seed": 1, "stream": True}).encode()))
        until("the stream's begin", lambda: s.metric("slots_busy") == 1)
        begin = time.monotonic()
        for _ in range(5):
            one(s, prompt="b", max_tokens=20)
        assert time.monotonic() - begin < 20
        until("the end of the text that nobody reads", lambda: s.metric("slots_busy") == 0, 120)
        one(s, prompt="b", max_tokens=20)


def test_cancelled():
    with Server(LINNET, MODEL["recurrent"], "--slots", 2, "--context", LONG) as s:
        for stream in (False, True):
            before = s.metric("requests_cancelled_total")
            with s.socket() as k:
                k.sendall(head_of(json.dumps({"prompt": "a", "max_tokens": LONG - 8, "ignore_eos": True, "temperature": 1, "n": 2, "stream": stream}).encode()))
                until("two texts", lambda: s.metric("slots_busy") == 2)
                with s.socket() as waits:  # one that waits for a slot goes away, too
                    waits.sendall(head_of(b'{"prompt":"b","max_tokens":1}'))
                    until("one that waits", lambda: s.metric("waiting") == 1)
                until("none that waits", lambda: s.metric("waiting") == 0)
            until("free slots", lambda: s.metric("slots_busy") == 0)
            assert s.metric("requests_cancelled_total") == before + 2
        one(s, prompt="b", max_tokens=2)


def test_full():
    with Server(LINNET, MODEL["recurrent"], "--slots", 1, "--waiting", 2, "--context", LONG) as s, s.socket() as k:
        k.sendall(head_of(json.dumps({"prompt": "a", "max_tokens": LONG - 8, "ignore_eos": True, "stream": True, "temperature": 1}).encode()))
        until("a busy slot", lambda: s.metric("slots_busy") == 1)
        with ThreadPoolExecutor(2) as pool:
            late = [pool.submit(s.ask, "/v1/completions", {"prompt": "b", "max_tokens": 1}) for _ in range(2)]
            until("a full queue", lambda: s.metric("waiting") == 2)
            status, answer = s.ask("/v1/completions", {"prompt": "c", "max_tokens": 1})
            assert status == 503 and "wait already" in answer["error"]["message"], answer
            status, answer = s.ask("/v1/completions", {"prompt": ["c"] * 3, "max_tokens": 1})
            assert status == 400 and "at most 2" in answer["error"]["message"], answer
            k.close()
            assert [f.result()[0] for f in late] == [200, 200]


def test_time():
    with Server(LINNET, MODEL["recurrent"], "--slots", 1, "--seconds", 0.5, "--context", LONG) as s:
        ask = {"prompt": "a", "max_tokens": LONG - 8, "ignore_eos": True, "temperature": 1}
        with ThreadPoolExecutor(2) as pool:  # the second one waits for the first all its time
            for status, answer in pool.map(lambda _: s.ask("/v1/completions", ask), range(2)):
                assert status == 503 and "longer" in answer["error"]["message"], answer
        seen = events(s.ask("/v1/completions", {**ask, "stream": True})[1])
        assert "longer" in seen[-1]["error"]["message"] and seen[0]["choices"], seen[-1]
        one(s, prompt="a", max_tokens=2)


def test_sockets():
    with Server(LINNET, MODEL["recurrent"], "--connections", 800) as s:
        idle = [s.socket() for _ in range(500)]
        for k in idle[::2]:
            k.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        begin = time.monotonic()
        assert one(s, prompt="a", max_tokens=5)["text"] and time.monotonic() - begin < 20
        for k in idle:
            k.close()
        one(s, prompt="a", max_tokens=5)
    with Server(LINNET, MODEL["recurrent"], "--connections", 64, "--idle-seconds", 1) as s:
        idle = [s.socket() for _ in range(500)]  # most are closed at once, the others when they have been idle

        def served():
            try:
                return s.ask("/health")[0] == 200
            except OSError:
                return False
        until("a free connection", served)
        with ThreadPoolExecutor(50) as pool:
            assert all(c["text"] for c in pool.map(lambda i: one(s, prompt=[i], max_tokens=5, ignore_eos=True), range(100)))
        for k in idle:
            k.close()


def test_end():
    before = {p: p.read_bytes() for p in Path(MODEL["recurrent"]).rglob("*")}
    with Server(LINNET, MODEL["recurrent"], "--context", LONG) as s, ThreadPoolExecutor(1) as pool:
        running = pool.submit(s.ask, "/v1/completions", {"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "temperature": 1})
        until("a text", lambda: s.metric("slots_busy") == 1 or running.done())
        code, err, _ = s.end()
        assert code == 0 and not err and running.result()[0] == 200 and running.result()[1]["usage"]["completion_tokens"] == 2000
        try:
            s.socket().close()
            assert False, "it still listens"
        except OSError:
            pass
    for stream in (False, True):
        with Server(LINNET, MODEL["recurrent"], "--context", LONG, "--idle-seconds", 1) as s, ThreadPoolExecutor(1) as pool:
            running = pool.submit(s.ask, "/v1/completions", {"prompt": "a", "max_tokens": LONG - 8, "ignore_eos": True, "temperature": 1, "stream": stream})
            until("a text", lambda: s.metric("slots_busy") == 1)
            code, err, seconds = s.end(signal.SIGINT)
            assert code == 0 and not err and seconds < 15, (code, err, seconds)
            status, answer = running.result()
            assert status == (200 if stream else 503), (seconds, status)
            assert "stops" in (answer[-300:] if stream else answer["error"]["message"]), answer[-300:]
    with Server(LINNET, MODEL["recurrent"], "--context", LONG) as s, s.socket() as k:
        k.sendall(head_of(json.dumps({"prompt": "a", "max_tokens": LONG - 8, "ignore_eos": True, "stream": True}).encode()))
        until("a text", lambda: s.metric("slots_busy") == 1)
        assert s.end(signal.SIGKILL)[0] == -signal.SIGKILL
    assert before == {p: p.read_bytes() for p in Path(MODEL["recurrent"]).rglob("*")}
    with Server(LINNET, MODEL["recurrent"]) as s:
        done = subprocess.run([LINNET, "serve", MODEL["recurrent"], "--port", str(s.port)], capture_output=True, encoding="utf-8", timeout=60)
        assert done.returncode == 2 and "port" in done.stderr, done.stderr


# ---- exactness -----------------------------------------------------------------------------------------------------------------------------------


def test_prefix_cache():
    """What a prompt begins with is read once, and the answer is the same; the cache holds what it may."""
    with Server(LINNET, MODEL["recurrent"], "--chunk", 16) as s:
        beginning = [(7 * i) % 400 for i in range(100)]
        cold = s.ask("/v1/completions", {"prompt": beginning + [5, 6], "max_tokens": 9, "temperature": 0})[1]
        warm = s.ask("/v1/completions", {"prompt": beginning + [5, 6], "max_tokens": 9, "temperature": 0})[1]
        other = s.ask("/v1/completions", {"prompt": beginning[:50] + [1], "max_tokens": 1})[1]
        cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (cold, warm, other)]
        assert cached == [0, 96, 48] and choices(cold) == choices(warm), cached
        assert s.metric("prefix_cache_hits_total") == 2 and s.metric("prefix_cache_tokens_total") == 144 and s.metric("prefix_cache_states") == 6
        exact = s.ask("/v1/completions", {"prompt": beginning[:48], "max_tokens": 1})[1]
        assert exact["usage"]["prompt_tokens_details"]["cached_tokens"] == 32, "a token is left to be read"
        state = s.metric("prefix_cache_bytes") // 6
    with Server(LINNET, MODEL["recurrent"], "--chunk", 16, "--cache", 4.5 * state / 2**20) as s:
        for _ in range(2):
            one(s, prompt=beginning, max_tokens=1)
        assert s.metric("prefix_cache_tokens_total") == 96, "the longest beginnings stay"
        for i in range(20):  # others come and go
            one(s, prompt=[i] * 40, max_tokens=1)
        one(s, prompt=beginning, max_tokens=1)
        assert s.metric("prefix_cache_states") == 4 and s.metric("prefix_cache_bytes") == 4 * state
        assert s.metric("prefix_cache_tokens_total") == 96, "and what is old goes"
    with Server(LINNET, MODEL["recurrent"], "--chunk", 16, "--cache", 0) as s:
        assert [one(s, prompt=beginning + [5, 6], max_tokens=9, temperature=0) for _ in range(2)] == choices(cold) * 2
        assert s.metric("prefix_cache_states") == 0


def test_mix():
    for kind, requests, ahead in (("hybrid", 240, 0), ("recurrent", 120, 0), ("hybrid", 180, 1), ("recurrent", 90, 1)):
        wrong, counts, ends = mix.run(LINNET, MODEL[kind], requests, 5, batch=requests // 3 if ahead else 120, say=lambda line: None,
                                      flags=("--ahead", ahead))
        assert not wrong, json.dumps(wrong[0])
        assert (counts["steps_ahead_total"] > 20) == bool(ahead), counts
        assert counts["prefix_cache_hits_total"] > requests / 10 and counts["requests_cancelled_total"] > 0, counts
        assert all(code == 0 and not err for code, err, _ in ends), ends


def test_chat_command():
    """What `linnet chat` answers is what a server does."""
    said = ["hi", "and then?", "more"]
    done = subprocess.run([LINNET, "chat", MODEL["recurrent"], "--chat-template", "plain", "--system", "be brief", "--tokens", "15", "--seed", "5"],
                          input="\n".join([said[0], "", said[1], said[2], "/clear", said[0]]), capture_output=True, encoding="utf-8", timeout=120)
    # an answer that is no UTF-8 goes back as the client heard it
    assert done.returncode == 0 and not done.stderr, done
    with Server(LINNET, MODEL["recurrent"], "--chat-template", "plain") as s:
        out = ""
        messages = [{"role": "system", "content": "be brief"}]
        for i, text in enumerate([*said, said[0]]):
            messages = messages[:1] if i == 3 else messages
            messages.append({"role": "user", "content": text})
            answer = s.ask("/v1/chat/completions", {"messages": messages, "max_tokens": 15, "seed": 5 + i})[1]["choices"][0]["message"]
            out += answer["content"] + "\n"
            messages.append(answer)
        assert out == done.stdout, (out, done.stdout)
    done = subprocess.run([LINNET, "chat", MODEL["recurrent"]], input="hi\n", capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 2 and "chat template" in done.stderr and "--chat-template" in done.stderr, done
    done = subprocess.run([LINNET, "chat", MODEL["recurrent"], "--chat-template", "other"], input="hi\n", capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 2 and "chatml" in done.stderr, done


# ---- the page and the state ----------------------------------------------------------------------------------------------------------------------


def test_page():
    """Its files as they stand in the tree, under a policy that lets them load nothing from elsewhere; none of them names another host."""
    source = Path(__file__).resolve().parents[1] / "src/serve/page"
    for flags in ([], ["--api-key", "secret"]):  # without the key, too: it asks for it
        with Server(LINNET, MODEL["recurrent"], *flags) as s:
            for path, file, kind in (("/", "page.html", "text/html"), ("/page.css", "page.css", "text/css"), ("/page.js", "page.js", "text/javascript")):
                status, headers, body = s.headers(path)
                assert status == 200 and body == (source / file).read_bytes() and headers["Content-Type"] == f"{kind}; charset=utf-8", path
                policy = dict((p.split() + [""])[:2] for p in headers["Content-Security-Policy"].split(";"))
                assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'" and policy["script-src"] == "'self'", policy
                assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
                links = [x for x in re.findall(r"[a-z]+://[^\s'\"`)]+", body.decode()) if x != "http://www.w3.org/2000/svg"]
                assert not links and "innerHTML" not in body.decode() and " onclick" not in body.decode(), links
            assert s.headers("/page.html")[0] == s.headers("/../page.js")[0] == 404
            assert s.headers("/model_info")[0] == (401 if flags else 200)
    ids = set(re.findall(r'id="([^"]+)"', (source / "page.html").read_text()))
    used = set(re.findall(r'\$\("([^"]+)"\)', (source / "page.js").read_text()))
    assert used <= ids and len(used) > 20, used - ids


def test_model_info():
    with Server(LINNET, MODEL["hybrid"], "--name", "small", "--context", 300) as s:
        info = s.ask("/model_info")[1]
        assert info["name"] == "small" and info["context"] == 300 and info["chat"] is False and "no chat template" in info["no_chat"], info
        parts = info["state"]
        assert [p["operator"] for p in parts] == ["delta_rule", "attention", "retention", "attention"] and [p["layer"] for p in parts] == [0, 1, 2, 3]
        assert [p.get("nothing", "")[:22] for p in parts] == ["", "no state of this kind:"] * 2 and [p.get("decays") for p in parts] == [False, None, True, None]
        assert [(p["first"], p["heads"], p["rows"], p["columns"]) for p in parts[::2]] == [(0, 2, 16, 16), (2, 2, 16, 32)]
    with Server(LINNET, MODEL["hybrid"], "--chat-template", "plain") as s:
        assert s.ask("/model_info")[1]["chat"] is True


DUMP = """
import json, sys
from linnet.model import Model
ids, prompt, chunk = json.loads(sys.argv[2])
def flat(x):
    return [z for y in x for z in flat(y)] if isinstance(x, list) else [float(x)]
state = Model.load(sys.argv[1]).session(1, 512, 0, chunk).state()
out = []
for piece in [ids[:prompt]] + [[i] for i in ids[prompt:]]:
    state.feed(piece)
    out.append({k: flat(v.tolist()) for k, v in state.tensors().items()})
print(json.dumps(out))
"""


def dumped(model, ids, prompt, chunk):
    """The states behind a prompt and each id after it, by the library itself."""
    library = Path(LINNET).parent / "liblinnet.so"
    env = {**os.environ, "LINNET_LIBRARY": str(library), "PYTHONPATH": str(Path(__file__).resolve().parents[1] / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    if b"__asan_init" in library.read_bytes():
        runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, encoding="utf-8", check=True).stdout.strip()
        env.update(LD_PRELOAD=runtime, ASAN_OPTIONS="detect_leaks=0")
    done = subprocess.run([sys.executable, "-c", DUMP, str(model), json.dumps([ids, prompt, chunk])], env=env, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def norms_of(state, parts):
    out = []
    for p in (p for p in parts if "nothing" not in p):
        values = next(v for k, v in state.items() if k.startswith(p["name"] + "."))
        n = p["rows"] * p["columns"]
        out += [math.sqrt(sum(x * x for x in values[h * n:(h + 1) * n])) for h in range(p["heads"])]
    return out


def test_state():
    """The same answer with a look into the state and without; norms are those of the library's own dump, memories what the decays make of them."""
    for kind in MODEL:
        with Server(LINNET, MODEL[kind], "--chunk", 16, "--chat-template", "plain") as s:
            parts = s.ask("/model_info")[1]["state"]
            prompt = "The state of a layer, and what a key recalls of it: 1, 2, 3"
            ask = dict(prompt=prompt, max_tokens=7, temperature=0.9, seed=8, logprobs=2, ignore_eos=True)
            plain, shown = one(s, **ask), one(s, **ask, state=True)
            state = shown.pop("state")
            assert plain == shown and "state" not in plain, "a look changes nothing"
            ids = s.ask("/tokenize", {"prompt": prompt})[1]["tokens"]
            assert state["first"] == 0 and state["prompt"] == len(ids) and state["ids"][:len(ids)] == ids and len(state["ids"]) == len(ids) + 6
            assert state["tokens"][len(ids):] == plain["logprobs"]["tokens"][:-1], "the last one was written, and not read"
            assert len(state["norm"]) == len(state["memory"]) == len(state["ids"])
            for i, got in enumerate(state["norm"][:len(ids) - 1]):
                assert (got is None) == (i % 16 != 15), "a prompt's pieces end at multiples of the chunk"
            for got, want in zip(state["norm"][len(ids) - 1:], dumped(MODEL[kind], state["ids"], len(ids), 16)):
                want = norms_of(want, parts)
                assert len(got) == len(want) > 0 and all(abs(g - w) <= 1e-6 * w for g, w in zip(got, want)), (got, want)
            for p in parts:
                for h in range(p["first"], p["first"] + p["heads"]) if "nothing" not in p else ():
                    column = [m[h] for m in state["memory"]]
                    if not p["decays"]:
                        assert column == list(range(1, len(column) + 1))
                    elif p["operator"] == "retention":
                        gamma = 1 - 2.0 ** (-5 - (h - p["first"]))
                        assert all(abs(m - (1 - gamma**(t + 1)) / (1 - gamma)) < 1e-5 * m for t, m in enumerate(column))
                    else:
                        assert all(1 <= m <= 1.000001 * (1 + b) for m, b in zip(column, [0.0] + column)) and column[-1] < len(column) - 1
            seen = events(s.ask("/v1/completions", {**ask, "state": True, "stream": True})[1])
            parts_of = [e["choices"][0]["state"] for e in seen[:-1]]
            for key in ("ids", "tokens", "norm", "memory"):
                assert sum((p[key] for p in parts_of), []) == state[key], key
            assert [p["first"] for p in parts_of] == [sum(len(q["ids"]) for q in parts_of[:i]) for i in range(len(parts_of))]
            hi = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "temperature": 0, "ignore_eos": True}
            chat = s.ask("/v1/chat/completions", {**hi, "state": True})[1]["choices"][0]
            assert chat.pop("state")["prompt"] == len(s.ask("/tokenize", {"prompt": "User: hi\n\nAssistant:"})[1]["tokens"])
            assert [chat] == s.ask("/v1/chat/completions", hi)[1]["choices"]


def test_recall():
    with Server(LINNET, MODEL["recurrent"], "--chunk", 16) as s:
        ids = [(7 * i) % 400 for i in range(40)]
        ask = dict(prompt=ids, max_tokens=0)
        for place in (0, 17, 39):
            state = one(s, **ask, state={"recall": place})["state"]
            recall = state["recall"]
            assert recall["of"] == place and len(recall["cosine"]) == len(recall["nearest"]) == len(recall["nearness"]) == 4 and len(state["ids"]) == 40
            for cosine, places, near in zip(recall["cosine"], recall["nearest"], recall["nearness"]):
                assert len(set(places)) == 3 and all(0 <= p < 40 for p in places) and near == sorted(near, reverse=True) and cosine <= near[0]
                assert place not in places or near[places.index(place)] == cosine
        streamed = events(s.ask("/v1/completions", {**ask, "state": {"recall": 39}, "stream": True})[1])
        assert [e["choices"][0]["state"]["recall"] for e in streamed[:-1] if "recall" in e["choices"][0]["state"]] == [recall]
        short = one(s, prompt=[5, 6], max_tokens=0, state={"recall": 1})["state"]["recall"]
        assert all(sorted(n) == [0, 1] for n in short["nearest"]), "of two tokens there are two"
        for wrong, says in ({"recall": 40}, "40 tokens"), ({"recall": -1}, "recall"), ({"recall": 1, "x": 2}, "recall"), (3, "true, false"), ({}, "recall"):
            status, answer = s.ask("/v1/completions", {**ask, "state": wrong})
            assert status == 400 and says in answer["error"]["message"] and answer["error"]["param"] == "state", answer
        for more in ({"n": 2}, {"prompt": [[1], [2]]}):
            status, answer = s.ask("/v1/completions", {**ask, "state": True, **more})
            assert status == 400 and "one text" in answer["error"]["message"], answer
        together = {"prompt": ids[:20], "max_tokens": 30, "temperature": 1, "seed": 4, "ignore_eos": True}
        alone = one(s, **together)
        with ThreadPoolExecutor(6) as pool:  # beside others that look
            mixed = list(pool.map(lambda i: one(s, **together, **({"state": True} if i % 2 else {})), range(6)))
        for c in mixed:
            assert {k: v for k, v in c.items() if k != "state"} == alone
        assert all(m["state"] == mixed[1]["state"] for m in mixed[1::2])


def test_other_sites():
    """A page of another site cannot use a server without a key, nor one that a name of its own leads to; a key is enough."""
    with Server(LINNET, MODEL["recurrent"]) as s:
        for host in (f"127.0.0.1:{s.port}", f"localhost:{s.port}", "localhost", "[::1]:1", "[::1]", "127.0.0.5:80"):
            assert s.headers("/health", Host=host)[0] == 200, host
            assert s.headers("/v1/models", Host=host, Origin=f"http://{host}")[0] == 200, host
        for extra in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": f"http://localhost:{s.port}.evil.example"},
                      {"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example"}, {"Host": "localhost1"}, {"Host": "["}, {"Host": "localhost.evil.example", "Origin": "http://localhost.evil.example"}):
            status, _, body = s.headers("/v1/models", **extra)
            assert status == 403 and "API key" in json.loads(body)["error"]["message"], (extra, status)
        connection = s.connect()  # what a form of another site may send without asking
        connection.request("POST", "/v1/completions", b'{"prompt":"a"}', {"Content-Type": "text/plain", "Origin": "http://evil.example"})
        assert connection.getresponse().status == 403
        connection.close()
    with Server(LINNET, MODEL["recurrent"], "--api-key", "secret") as s:
        assert s.headers("/v1/models", Host="model.example", Origin="http://other.example", Authorization="Bearer secret")[0] == 200
        assert s.headers("/v1/models", Host="model.example")[0] == 401


def main():
    passed, failed = 0, []
    with tempfile.TemporaryDirectory(prefix="linnet-serve-") as folder:
        probe = subprocess.run([LINNET, "serve", "x"], capture_output=True, encoding="utf-8")
        for kind in ("recurrent", "hybrid"):
            MODEL[kind] = train(LINNET, folder, kind)
        assert probe.returncode == 2
        probe = subprocess.run([LINNET, "serve", MODEL["recurrent"], "--host", "256.0.0.1"], capture_output=True, encoding="utf-8", timeout=60)
        without, skipped = "no server: libmicrohttpd" in probe.stderr, []
        for name, test in sorted((k, v) for k, v in globals().items() if k.startswith("test_") and PATTERN in k):
            if without and name != "test_chat_command":
                skipped.append(name)
                continue
            begin = time.monotonic()
            try:
                test()
                passed += 1
                print(f"ok      {name} ({time.monotonic() - begin:.1f} s)", flush=True)
            except Exception:
                failed.append(name)
                print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
    for line in [f"{len(skipped)} test(s), without libmicrohttpd:", *skipped] if skipped else []:
        print(f"[  SKIPPED ] {line}")
    print(f"[  PASSED  ] {passed} test(s).")  # as cmocka says it, for tests/count_tests.py
    if failed:
        print(f"[  FAILED  ] {len(failed)} test(s).")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())

"""A server of the tests' own and what asks it: a model that a command trains, `linnet serve` on a free port, HTTP by the standard library."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
MODELS = {
    "recurrent": ["--mixer", "gated_deltanet", "--layers", "2"],
    "hybrid": ["--pattern", "delta_net,attention:16,retnet,attention", "--layers", "4"],
}


MARKS = ["<|im_start|>", "<|im_end|>"] # special tokens 400 and 401


def train(linnet, folder, kind):
    """A small model, in `folder`, with byte-pair tokens and two special ones."""
    text, out, tokenizer = Path(folder) / "text.txt", Path(folder) / kind, Path(folder) / "tokenizer"
    text.write_bytes(b"".join(p.read_bytes() for p in sorted((SOURCE / "docs").glob("*.md"))))
    size = ["--width", "32", "--heads", "2", "--batch", "4", "--length", "64", "--eval-tokens", "640", "--learning-rate", "0.01", "--set", "initializer_range=0.3"]
    if not tokenizer.exists():
        subprocess.run([linnet, "train", text, "--out", tokenizer, "--train-tokenizer", "400", "--layers", "1", *size, "--steps", "1"], check=True,
                       capture_output=True, timeout=600)
        made = json.loads((tokenizer / "tokenizer.json").read_text())
        made["added_tokens"] += [{**made["added_tokens"][0], "id": 400 + i, "content": mark, "special": True} for i, mark in enumerate(MARKS)]
        (tokenizer / "tokenizer.json").write_text(json.dumps(made))
    subprocess.run([linnet, "train", text, "--out", out, "--tokenizer", tokenizer, *MODELS[kind], *size, "--steps", "30"], check=True, capture_output=True,
                   timeout=600)
    return out


class Server:
    def __init__(self, linnet, model, *flags, env=None):
        self.process = subprocess.Popen([linnet, "serve", model, "--port", "0", *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        encoding="utf-8", env={**os.environ, **(env or {})})
        line = self.process.stdout.readline()
        found = re.search(r"http://(\S+):(\d+)$", line.strip())
        if not found:
            raise RuntimeError(f"no address in {line!r}: {self.process.communicate()[1]}")
        self.host, self.port = found.group(1).strip("[]"), int(found.group(2))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.end()

    def end(self, number=signal.SIGTERM, timeout=60):
        """Ends it; (exit code, what it wrote to standard error, seconds)."""
        begin = time.monotonic()
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, err, time.monotonic() - begin

    def connect(self, timeout=120):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def socket(self, timeout=60):
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def ask(self, path, body=None, key=None, connection=None, method=None):
        """(status, body) of one request: JSON where the answer is, text otherwise. A body that is bytes goes as it is."""
        own = connection is None
        connection = connection or self.connect()
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method or ("GET" if body is None else "POST"), path, raw, headers)
        response = connection.getresponse()
        answer = response.read()
        if own:
            connection.close()
        kind = response.headers.get("Content-Type", "")
        return response.status, (json.loads(answer) if answer else None) if kind.startswith("application/json") else answer.decode()

    def headers(self, path, **extra):
        """(status, headers, bytes) of a GET."""
        connection = self.connect()
        connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in extra.items()})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, response.headers, body

    def metric(self, name):
        return int(re.search(rf"^linnet_{name} (\d+)$", self.ask("/metrics")[1], flags=re.M).group(1))


def choices(answer):
    """The part of an answer that does not depend on when and whom it was asked."""
    return [{k: c[k] for k in sorted(c)} for c in sorted(answer["choices"], key=lambda c: c["index"])]


def events(text):
    """The objects of a stream; [DONE] as None."""
    parts = [p for p in text.split("\n\n") if p]
    assert all(p.startswith("data: ") for p in parts), text
    return [None if p == "data: [DONE]" else json.loads(p[6:]) for p in parts]


def joined(stream, chat):
    """The choices of a stream put together, as a whole answer has them."""
    out = {}
    for event in stream:
        for c in event["choices"] if event else []:
            have = out.setdefault(c["index"], {"index": c["index"], "text": "", "logprobs": None, "finish_reason": None})
            have["text"] += c["delta"].get("content", "") if chat else c["text"]
            have["finish_reason"] = have["finish_reason"] or c["finish_reason"]
            if c["logprobs"]:
                have["logprobs"] = have["logprobs"] or {k: [] for k in c["logprobs"]}
                for k, values in c["logprobs"].items():
                    have["logprobs"][k] += values
            if "state" in c:
                state = have.setdefault("state", {"prompt": c["state"]["prompt"], "first": 0})
                for k, values in c["state"].items():
                    if isinstance(values, list):
                        state[k] = state.get(k, []) + values
    done = [out[i] for i in sorted(out)]
    for c in done if chat else []:
        c["message"] = {"role": "assistant", "content": c.pop("text")}
    return [{k: c[k] for k in sorted(c)} for c in done]

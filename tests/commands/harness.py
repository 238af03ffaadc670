"""What the command tests are made of: running linnet as a user would, safetensors files by hand, and one line of report for each case."""
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

LINNET = ""        # absolute path of the program under test
SOURCE = Path(__file__).resolve().parents[2]
CASES = []         # (what it checks, function)


class Skip(Exception):
    """Raised by a case that this machine cannot run; the reason is printed."""


def case(what):
    def add(function):
        CASES.append((what, function))
        return function
    return add


def linnet(*args, code=0, cwd=None, stdin=None, timeout=120, env=None, file_limit=None):
    """Run a command and expect an exit code; returns the finished process with text output."""
    def limit():
        if file_limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write past the limit fails as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    done = subprocess.run([LINNET, *map(str, args)], cwd=cwd, input=stdin, capture_output=True, timeout=timeout, preexec_fn=limit,
                          restore_signals=False, env={**os.environ, **(env or {})})
    done.out, done.err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    if code is not None:
        assert done.returncode == code, f"`linnet {' '.join(map(str, args))}` ended with {done.returncode}, expected {code}\n{done.out[-500:]}\n{done.err[-2000:]}"
    return done


def refused(*args, says=(), **more):
    """A user's mistake: exit code 2, one message on stderr that holds each word of `says`, no result on stdout."""
    done = linnet(*args, code=2, **more)
    messages = [line for line in done.err.splitlines() if line.startswith("linnet: ")]
    assert len(messages) == 1, f"expected one message on stderr:\n{done.err}"
    assert len(done.err.splitlines()) <= 4, f"expected a message, a detail and a hint at most:\n{done.err}"
    for word in says:
        assert word in done.err, f'expected "{word}" in:\n{done.err}'
    return done


def start(*args, cwd=None):
    """Start a command and leave it running, standard output in a pipe. Signals that whoever runs the tests ignores (nohup, a shell's background) are not
    ignored by the command."""
    def heard():
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
    return subprocess.Popen([LINNET, *map(str, args)], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                            errors="replace", preexec_fn=heard)


def files_below(folder):
    """Name and bytes of every file, to see that nothing changed."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


# ---- safetensors ---------------------------------------------------------------------------------------------------------------

def read_safetensors(path):
    """name -> (dtype, shape, bytes)"""
    raw = Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    return {n: (e["dtype"], e["shape"], raw[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]]) for n, e in header.items()}


def write_safetensors(path, tensors, metadata=None):
    header, data, at = {}, b"", 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, body) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(body)]}
        data += body
        at += len(body)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def f32(values):
    values = list(values)
    return struct.pack(f"<{len(values)}f", *values)


def floats(tensor):
    """The values of a tensor as read_safetensors gives it."""
    dtype, _, body = tensor
    letter, size = {"F32": ("f", 4), "F64": ("d", 8)}[dtype]
    return struct.unpack(f"<{len(body) // size}{letter}", body)


# ---- the run -------------------------------------------------------------------------------------------------------------------

def run(pattern):
    passed = failed = skipped = 0
    begin = time.monotonic()
    for what, function in CASES:
        if pattern and pattern not in what and pattern not in function.__name__:
            continue
        folder = Path(tempfile.mkdtemp(prefix="linnet-commands-"))
        t = time.monotonic()
        try:
            function(folder)
            passed += 1
            print(f"ok      {what}  ({time.monotonic() - t:.1f} s)", flush=True)
        except Skip as reason:
            skipped += 1
            print(f"skipped {what}: {reason}", flush=True)
        except Exception as error:  # a case may fail in any way; the others still run
            failed += 1
            where = traceback.extract_tb(error.__traceback__)
            line = next((f for f in reversed(where) if "cases_" in f.filename), where[-1])
            print(f"FAILED  {what}\n        {Path(line.filename).name}:{line.lineno}: {line.line}\n        {type(error).__name__}: "
                  + "\n        ".join(str(error).strip().splitlines()), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{time.monotonic() - begin:.0f} s\n{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0

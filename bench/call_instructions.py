#!/usr/bin/env python3
"""Instructions of an operator's forward call on a CPU, counted one by one: what docs/performance/ calls by count where it names T = 64 less T = 32.

    LINNET_LIBRARY=build/liblinnet.so python3 bench/call_instructions.py longhorn --set D=256 --set M=16

A line for float32 and one for bf16: the instructions of a call of 64 tokens less those of one of 32, for a token, and for a token and 16 columns of the
first input. A child makes the call, its parent steps through it: some 10 us an instruction. LINNET_CPU names the variant. Inputs are small constants:
a count shall not depend on them. Linux, tried on x86-64; standard library only."""
import argparse
import array
import ctypes
import os
import signal
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
from linnet.raw import Linnet  # noqa: E402

TRACEME, SINGLESTEP = 0, 9
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes, LIBC.ptrace.restype = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p], ctypes.c_long
VALUES = {"log_decay": -0.01, "strength": 0.2, "step": 0.2}
F32 = {v: array.array("f", [v]).tobytes() for v in (0.05, *VALUES.values())}
BF16 = "bf16"


def tensors(about, sizes, tokens, dtype):
    """Buffers of all inputs and outputs; states and what may be absent are left out."""
    found = {}
    for t in about["tensors"]:
        if t["role"] not in ("input", "output") or t["absent"] is not None or "N" in t["shape"].split():
            continue
        count = 1
        for letter in t["shape"].split():
            count *= tokens if letter == "T" else sizes[letter]
        one = F32[VALUES.get(t["values"], 0.05)]
        one = one[2:] if t["wide"] and dtype == BF16 else one
        room = ctypes.create_string_buffer(count * len(one) + 64)  # at a line, as what a caller of large tensors has
        at = (ctypes.addressof(room) + 63) // 64 * 64
        ctypes.memmove(at, one * count, count * len(one))
        found[t["name"]] = at, room
    return found


def count(op, sizes, tokens, dtype):
    with Linnet(threads=1) as linnet:
        held = tensors(linnet.describe(op), sizes, tokens, dtype)
        call = {"tensors": {k: v[0] for k, v in held.items()}, "sizes": sizes, "tokens": tokens, "dtype": dtype}
        linnet.forward(op, **call)  # what is done once
        ran = linnet.ran
        child = os.fork()
        if not child:
            LIBC.ptrace(TRACEME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            linnet.forward(op, **call)
            os._exit(0)
        n = 0
        while True:
            _, status = os.waitpid(child, 0)
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                break
            LIBC.ptrace(SINGLESTEP, child, None, None)
            n += 1
        if not os.WIFEXITED(status) or os.WEXITSTATUS(status):
            sys.exit(f"the call that was stepped through did not end well: status {status}")
        return n, ran


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("op")
    p.add_argument("--set", action="append", default=[], metavar="LETTER=NUMBER")
    a = p.parse_args()
    with Linnet(threads=1) as linnet:
        about = linnet.describe(a.op)
    sizes = {s["letter"]: s["usual"] for s in about["sizes"]}
    sizes.update({k: int(v) for k, v in (x.split("=") for x in a.set)})
    columns = 1
    for letter in about["tensors"][0]["shape"].split():
        columns *= 1 if letter == "T" else sizes[letter]
    for dtype in ("f32", BF16):
        (more, ran), (less, _) = (count(a.op, sizes, tokens, dtype) for tokens in (64, 32))
        print(f"{a.op} {dtype} by {ran}: {(more - less) / 32:.0f} instructions a token, {(more - less) / 32 / columns * 16:.1f} for 16 columns")


if __name__ == "__main__":
    main()

"""The programs of examples/, built as a user would and run."""
import os
import shutil
import subprocess
from pathlib import Path

import harness
from harness import SOURCE, Skip, case, linnet

SHARED = {"GOMP_SPINCOUNT": "10000", "OMP_NUM_THREADS": "2"}


def built(name, folder, *libraries):
    """examples/NAME.c against the library beside the command."""
    build = Path(harness.LINNET).parent
    if not shutil.which("cc") or not (build / "liblinnet.so").exists():
        raise Skip("no cc, or no liblinnet.so beside the command")
    out = folder / name
    done = subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", SOURCE / f"examples/{name}.c", "-o", out, f"-I{SOURCE / 'include'}",
                           f"-L{build}", "-llinnet", f"-Wl,-rpath,{build}", *libraries], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@case("examples/train_loop.c trains to the bits of the command that it names")
def train_example(folder):
    text = folder / "text.txt"
    text.write_text("".join(f"{i} linnets sang {i * i % 97} songs\n" for i in range(900)))
    program = built("train_loop", folder)
    done = subprocess.run([program, text, folder / "loop"], capture_output=True, text=True, env={**os.environ, **SHARED}, timeout=300)
    assert done.returncode == 0 and "step 60" in done.stdout, (done.stdout, done.stderr)
    linnet("train", text, "--out", folder / "command", "--preset", "nano", "--steps", "60")
    assert (folder / "loop/model.safetensors").read_bytes() == (folder / "command/model.safetensors").read_bytes()
    assert "bits per byte" in linnet("eval", folder / "loop", text, "--tokenizer", "bytes", "--max-tokens", "512").out
    assert subprocess.run([program], capture_output=True).returncode == 2


@case("examples/fork.c tells a trained model's likely ending from an unlikely one, and says what is wrong")
def fork_example(folder):
    text = folder / "text.txt"
    text.write_text("".join(f"{i} linnets sang {i * i % 97} songs\n" for i in range(900)))
    linnet("train", text, "--out", folder / "model", "--preset", "nano", "--steps", "40")
    program = built("fork", folder, "-lm")
    done = subprocess.run([program, folder / "model", "7 linnets", " sang ", " xqzw "], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "the same bits" in done.stdout, (done.stdout, done.stderr)
    likely, odd = (float(line.split()[0]) for line in done.stdout.splitlines()[:2])
    assert likely < odd / 2, done.stdout
    missing = subprocess.run([program, folder / "nothing"], capture_output=True, text=True)
    assert missing.returncode == 2 and "nothing" in missing.stderr


@case("examples/stream.c goes on as generate does, and another way; generate --draft writes what it writes without a draft")
def stream_example(folder):
    text = folder / "text.txt"
    text.write_text("".join(f"{i} linnets sang {i * i % 97} songs\n" for i in range(900)))
    linnet("train", text, "--out", folder / "model", "--preset", "nano", "--steps", "40")
    linnet("train", text, "--out", folder / "draft", "--preset", "nano", "--steps", "10", "--seed", "7")
    write = ["generate", folder / "model", "--prompt", "7 linnets", "--tokens", "60", "--past-separator"]
    plain = linnet(*write, "--greedy").out
    program = built("stream", folder)
    done = subprocess.run([program, folder / "model", "7 linnets"], capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split(b"\n-- or --\n")
    assert first.decode(errors="replace") == "7 linnets" + plain[:-1] and second.strip() and second.strip() not in first
    for way in (["--greedy"], ["--temperature", "0.8", "--top-k", "20"]):
        alone = linnet(*write, *way)
        for guesses in ("1", "5"):
            helped = linnet(*write, *way, "--draft", folder / "draft", "--draft-tokens", guesses)
            assert helped.out == alone.out
            assert "guesses were right" in helped.err

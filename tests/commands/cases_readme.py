"""The command blocks of the README do what it says."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import harness
from cases_models import text_file
from harness import SOURCE, case

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def blocks(language):
    return [body for kind, body in BLOCK.findall((SOURCE / "README.md").read_text()) if kind == language]


@case("the README's linnet commands run one after the other in an empty folder with a text of one's own")
def commands(folder):
    (folder / "bin").mkdir()
    (folder / "bin" / "linnet").symlink_to(harness.LINNET)
    (folder / "books").mkdir()
    shutil.copy(text_file(), folder / "books" / "one.txt")
    shutil.copy(text_file(), folder / "held-out.txt")
    lines = [line for body in blocks("sh") for line in body.replace("\\\n", " ").splitlines() if line.startswith("linnet ")]
    assert len(lines) >= 3, "the README shows how to train, evaluate and generate"
    for line in lines:
        line = line.split("   #")[0]
        done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, encoding="utf-8", errors="replace", timeout=120,
                              env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"})
        assert done.returncode == 0, f"{line}\n{done.stderr}"


@case("the README's C program compiles without warnings and runs")
def c_program(folder):
    (body,) = blocks("c")
    build = Path(harness.LINNET).parent
    (folder / "taste.c").write_text(body)
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", SOURCE / "include", "taste.c", "-L", build, "-llinnet", f"-Wl,-rpath,{build}",
                    "-o", "taste"], cwd=folder, check=True, timeout=60)
    done = subprocess.run(["./taste"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout, done.stderr

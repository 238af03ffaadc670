"""What ./run demo says to try next works."""
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import harness
from harness import SOURCE, Skip, case, linnet


def demo_folder(folder):
    """A folder as the demo leaves it, with a model that has seen little."""
    (folder / "build").symlink_to(Path(harness.LINNET).parent)
    (folder / "python").symlink_to(SOURCE / "python")
    for part, room in (("text", "serve"), ("held-out", "generate")):
        (folder / "demo" / part).mkdir(parents=True)
        for file in (SOURCE / "src" / room).glob("*.c"):
            shutil.copy(file, folder / "demo" / part)
    linnet("train", "demo/text", "--held-out", "demo/held-out", "--out", "demo/model", "--mixer", "gated_deltanet", "--layers", 1, "--width", 32,
           "--steps", 3, "--batch", 8, "--length", 64, cwd=folder)


def serve(line, folder):
    process = subprocess.Popen(["bash", "-c", "exec " + line + " --port 0"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        if not found and "this build of linnet has no server" in process.stderr.read():
            return
        with urllib.request.urlopen(found.group(0), timeout=30) as page:
            assert page.status == 200 and b"<!doctype html>" in page.read()
    finally:
        process.terminate()
        process.wait(30)


@case("each line of what ./run demo says to try next does what it says, once the demo's model is there")
def next_steps(folder):
    if sys.platform != "linux" or b"__asan_init" in (Path(harness.LINNET).parent / "liblinnet.so").read_bytes():
        raise Skip("Python needs the sanitizer's runtime first")
    demo_folder(folder)
    text = subprocess.run(["bash", str(SOURCE / "run"), "next"], check=True, capture_output=True, encoding="utf-8").stdout
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert len(lines) >= 8, text
    for line in lines:
        if " serve " in line:
            serve(line, folder)
            continue
        line, begin = line.replace("--minutes 5", "--minutes 0.03"), time.monotonic()
        done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, encoding="utf-8", errors="replace", timeout=120,
                              input="hello\n", env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        assert done.returncode == 0 and done.stdout.strip(), f"{line}\n{done.stdout[-500:]}\n{done.stderr[-1000:]}"
        print(f"        {time.monotonic() - begin:4.1f} s  {line[:110]}")

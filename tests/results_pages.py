#!/usr/bin/env python3
"""The pages of bench/results/ are what bench/experiments_page.py makes of the cells beside them: python3 tests/results_pages.py ROOT"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
root = Path(sys.argv[1]).resolve()
with tempfile.TemporaryDirectory() as made:
    kept = [p.parent for p in sorted((root / "bench" / "results").glob("*/cells-*.jsonl"))]
    for page in kept:
        (Path(made) / page.name).mkdir()
        thought = "".join(p.read_text(encoding="utf-8") for p in page.glob("reading-*.md"))
        for p in page.iterdir():  # what is not made of the cells: they themselves, the reading, and the pictures that it shows
            if p.name.startswith(("cells-", "reading-")) or f"]({p.name})" in thought:
                shutil.copy(p, Path(made) / page.name / p.name)
    subprocess.run([sys.executable, "-B", root / "bench" / "experiments_page.py", "--out", made], check=True, stdout=subprocess.DEVNULL)
    stale = [f"{page.name}/{p.name}" for page in kept for p in sorted(page.iterdir())
             if not (Path(made) / page.name / p.name).exists() or (Path(made) / page.name / p.name).read_bytes() != p.read_bytes()]
    new = [f"{p.parent.name}/{p.name}" for p in sorted(Path(made).glob("*/*")) if not (root / "bench" / "results" / p.parent.name / p.name).exists()]
print("".join(f"not as bench/experiments_page.py makes it: {x}\n" for x in stale + new), end="")
print(f"{len(kept)} pages, {len(stale) + len(new)} files that differ")
wrong = not kept or stale or new
print(f"[  {'FAILED' if wrong else 'PASSED'}  ] 1 test(s).")  # as cmocka says it, for tests/count_tests.py
sys.exit(1 if wrong else 0)

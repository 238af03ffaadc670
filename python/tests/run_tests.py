#!/usr/bin/env python3
"""The tests of the Python package for ctest: run_tests.py LIBRARY [--preload LIBASAN]

test_plain.py, which needs the standard library alone, always; the others by pytest where it is there, and torch for those of linnet.ops. What is left out
is said, in the form of cmocka's reports."""
import importlib.util
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent


def report(passed, failed, skipped):
    print(f"[  PASSED  ] {passed} test(s).")
    if skipped:
        print(f"[  SKIPPED ] {len(skipped)} test(s), listed below:")
        for name in skipped:
            print(f"[  SKIPPED ] {name}")
    if failed:
        print(f"[  FAILED  ] {failed} test(s).")
    return 1 if failed else 0


def main():
    os.environ["LINNET_LIBRARY"] = sys.argv[1]
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if len(sys.argv) > 3 and "LD_PRELOAD" not in os.environ:  # a library under the address sanitizer needs its runtime first; Python itself leaks
        os.environ.update(LD_PRELOAD=sys.argv[3], ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(HERE))
    import test_plain
    result = unittest.TextTestRunner(verbosity=0).run(unittest.defaultTestLoader.loadTestsFromModule(test_plain))
    failed = len(result.failures) + len(result.errors)
    passed, skipped = result.testsRun - failed - len(result.skipped), [test.id().split(".")[-1] for test, _ in result.skipped]
    others = sorted(path.stem for path in HERE.glob("test_*.py") if path.stem != "test_plain")
    if all(importlib.util.find_spec(m) for m in ("pytest", "torch", "numpy")) and len(sys.argv) < 4:
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(HERE / f"{name}.py") for name in others)],
                              capture_output=True, text=True)
        sys.stdout.write(done.stdout + done.stderr)
        count = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout.splitlines()[-1] if done.stdout else "")}
        passed += count.get("passed", 0)
        failed += count.get("failed", 0) + count.get("error", 0) or int(done.returncode != 0)
        skipped += [f"pytest_{i}" for i in range(count.get("skipped", 0))]
    else:
        skipped += others
    return report(passed, failed, skipped)


if __name__ == "__main__":
    sys.exit(main())

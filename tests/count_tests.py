#!/usr/bin/env python3
"""Count the tests inside the programs that ctest ran: python3 tests/count_tests.py BUILD/Testing/Temporary/LastTest.log

Prints "PASSED FAILED SKIPPED" as cmocka's reports, and last lines "N passed, N failed, N skipped", add up to, after a line for each failed and each skipped
test. A program that ends without a report, or badly after a clean one (a crash, a time-out, a sanitizer's finding), is one failure; an example, which is no
test and has none, is one test."""
import re
import sys


def count(log):
    """(passed, failed, names of failed, names of skipped) over the blocks "N/M Testing: NAME" ... "Test Passed." of ctest's log."""
    passed, failed, wrong, skipped = 0, 0, [], []
    for name, block in re.findall(r"^\d+/\d+ Testing: (\S+)\n(.*?)^\"\1\" end time", log, flags=re.M | re.S):
        ok = [int(n) for n in re.findall(r"^\[  PASSED  \] (\d+) test", block, flags=re.M)]
        bad = sum(int(n) for n in re.findall(r"^\[  FAILED  \] (\d+) test", block, flags=re.M))
        late = re.findall(r"^\[  SKIPPED \] (\w+)$", block, flags=re.M)[:sum(int(n) for n in re.findall(r"^\[  SKIPPED \] (\d+) test", block, flags=re.M))]
        for line in re.findall(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", block, flags=re.M):
            ok.append(int(line[0]))
            bad += int(line[1])
            late += (re.findall(r"^skipped (.*)$", block, flags=re.M) + ["?"] * int(line[2]))[:int(line[2])]
        well = re.search(r"^Test Pass", block, flags=re.M)
        if name.startswith("example_") and not ok:
            ok = [1] if well else []
        passed += sum(ok)
        badly = not bad and (not well or not ok)
        failed += bad + badly
        named = re.findall(r"^\[  FAILED  \] (?!\d+ test)(.*)$|^FAILED:? +(.*)$", block, flags=re.M)
        wrong += [f"{name}: {test}" for test in dict.fromkeys(a or b for a, b in named)] if bad else [f"{name}: it did not end well"] * badly
        skipped += [f"{name}: {test}" for test in late]
    return passed, failed, wrong, skipped


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8", errors="replace") as f:
        passed, failed, wrong, skipped = count(f.read())
    for test in wrong:
        print(f"FAILED {test}")
    for test in skipped:
        print(f"skipped {test}")
    print(passed, failed, len(skipped))

#!/usr/bin/env python3
"""Commands as users type them: python3 tests/commands/run_commands.py BUILD/linnet [PATTERN]

Each case says what it checks; PATTERN picks those whose text holds it. The last line counts."""
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import harness  # noqa: E402
import cases_demo  # noqa: E402,F401
import cases_flags  # noqa: E402,F401
import cases_models  # noqa: E402,F401
import cases_errors  # noqa: E402,F401
import cases_likelihoods  # noqa: E402,F401
import cases_mesa  # noqa: E402,F401
import cases_operators  # noqa: E402,F401
import cases_numbers  # noqa: E402,F401
import cases_install  # noqa: E402,F401
import cases_examples  # noqa: E402,F401
import cases_locale  # noqa: E402,F401
import cases_mixers  # noqa: E402,F401
import cases_linear  # noqa: E402,F401
import cases_sweep  # noqa: E402,F401
import cases_tokenize  # noqa: E402,F401
import cases_beside  # noqa: E402,F401
import cases_readme  # noqa: E402,F401
import cases_results  # noqa: E402,F401
import cases_train  # noqa: E402,F401
import cases_texts  # noqa: E402,F401
import cases_shards  # noqa: E402,F401
import cases_xlstm  # noqa: E402,F401

if __name__ == "__main__":
    harness.LINNET = os.path.abspath(sys.argv[1])
    sys.exit(harness.run(sys.argv[2] if len(sys.argv) > 2 else ""))

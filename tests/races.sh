#!/usr/bin/env bash
# tests/test_threads under ThreadSanitizer: silent, and not silent about the mistakes that it makes when asked to.
#
#     tests/races.sh BUILD/tests/test_threads LIBARCHER
set -euo pipefail
program=$1
export OMP_TOOL_LIBRARIES=$2 TSAN_OPTIONS=ignore_noninstrumented_modules=1 KMP_BLOCKTIME=0 OMP_NUM_THREADS=1
timeout 900 "$program"
# A mistake ends at its first report: two threads in one session may go on to wait for each other for ever.
for mistake in session team; do
    if TSAN_OPTIONS+=:halt_on_error=1 LINNET_TEST_RACE=$mistake timeout 300 "$program" >"$program-$mistake.log" 2>&1 ||
        ! grep -q 'ThreadSanitizer: data race' "$program-$mistake.log"; then
        echo "a race in a $mistake is not seen"
        exit 1
    fi
done

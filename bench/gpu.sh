#!/usr/bin/env bash
# The GPU's results of bench/results/, in one run: goldens, the recurrences at the shapes they are compared at, training and decoding of a 1.4 B DeltaNet.
# Every line carries the commit, the machine and the rates measured beside it. Under eight minutes on an H200; "tests", "musts" and "serve" are to be
# asked for, and take some minutes each.
#
#   bench/gpu.sh [RECORD.jsonl]         default: bench/results/<date>-<gpu>.jsonl
#
# From the environment: LINNET, the binary (build/linnet); GOLDENS (../shared/goldens; left out when it is not there); LABEL (the commit); PYTHON;
# PARTS, of "goldens op train decode" (these) and "tests musts serve": the test programs that need a GPU; what operators have to reach, met or missed;
# a server of 64 texts beside `bench decode`, and requests whose answers must be those that they have alone.
set -euo pipefail
cd "$(dirname "$0")/.."
linnet=${LINNET:-build/linnet}
goldens=${GOLDENS:-../shared/goldens}
python=${PYTHON:-python3}
parts=${PARTS:-goldens op train decode}
label=${LABEL:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | sed 's/^NVIDIA *//; s/ .*$//' | tr '[:upper:]' '[:lower:]')
record=${1:-bench/results/$(date -u +%F)-${gpu:-gpu}.jsonl}
failed=0

# bench WORD...: a benchmark that may fail without stopping the others.
bench() {
    $linnet bench "$@" --device cuda --record "$record" --label "$label" >/tmp/linnet-bench.$$ 2>&1 || {
        failed=$((failed + 1))
        echo "FAILED: linnet bench $*"
        tail -n 4 /tmp/linnet-bench.$$
    }
    rm -f /tmp/linnet-bench.$$
}
part() { [[ " $parts " == *" $1 "* ]]; }

begin=$SECONDS
$linnet bench machine --device cuda --record "$record" --label "$label"
if part goldens && [ -d "$goldens" ]; then
    "$python" bench/goldens.py "$linnet" "$goldens" --device cuda --record "$record" --label "$label" || failed=$((failed + 1))
fi
if part op; then
    for op in linear_attn retention simple_gla gla rwkv6 kda dplr delta_rule gated_delta_rule attention; do bench op $op --dtype bf16 --T 8192 --heads 32; done
    while read -r B T q h; do bench op gated_delta_rule --dtype bf16 --B "$B" --T "$T" --heads "$q" --set Hv="$h"; done <<'SHAPES'
1 2048 16 32
1 8192 16 32
1 32768 16 32
4 8192 16 32
8 1024 16 32
1 32768 2 8
1 8192 16 64
64 512 16 16
SHAPES
    bench op attention --dtype bf16 --T 8192 --heads 32 --set window=512
    bench op attention --dtype bf16 --T 8192 --heads 32 --set Hk=8
    bench op delta_rule --dtype bf16 --B 8 --T 2048 --heads 16
    bench op mesa --dtype bf16 --T 8192 --heads 32                    # to 1e-4
    bench op mesa --dtype bf16 --T 8192 --heads 32 --set cg_tol=0   # 30 steps
    for op in simple_gla gated_delta_rule; do bench op $op --dtype float32 --T 2048 --heads 16; done
fi
if part tests; then ctest --test-dir "$(dirname "$linnet")" -R _cuda -j 4 --timeout 900 --output-on-failure || failed=$((failed + 1)); fi
if part musts; then "$python" bench/musts.py "$linnet" --device cuda --models --record "$record" || failed=$((failed + 1)); fi
if part serve; then
    model=$(mktemp -d)
    $linnet train docs --out "$model/m" --mixer gated_deltanet --layers 12 --width 1024 --steps 1 --batch 1 --length 64 --save-every 0 --eval-every 0 \
        --device cuda >"$model/log" 2>&1 || cat "$model/log"
    "$python" bench/serve.py "$linnet" "$model/m" --must -- --device cuda --dtype bf16 || failed=$((failed + 1))
    "$python" tests/serve/mix.py "$linnet" --requests 720 -- --device cuda || failed=$((failed + 1))
    rm -r "$model"
fi
size=(--layers 24 --width 2048 --heads 16 --set vocab_size=32000)
large=(--mixer delta_net "${size[@]}")
if part train; then
    bench train --dtype bf16 "${large[@]}" --batch 8 --length 2048 --repeats 5
    bench train --dtype bf16 "${large[@]}" --batch 8 --length 2048 --repeats 5 --weights bf16 --recompute cheap # within 40 GiB
    bench train --dtype bf16 --mixer mesa_net "${size[@]}" --set cg_tolerance=0 --batch 8 --length 2048 --repeats 3 # 30 steps
fi
if part decode; then for batch in 1 8 64; do bench decode --dtype bf16 "${large[@]}" --batch $batch; done; fi
"$python" bench/table.py "$record" "$label"
echo "$((SECONDS - begin)) s, $failed failures"
[ "$failed" -eq 0 ]

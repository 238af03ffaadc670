#!/usr/bin/env bash
# The CPU benchmarks of bench/results/, in one run because machines differ: the recurrences at B=1 T=2048 H=16 K=V=128, a training step of the 12-layer
# width-512 Gated DeltaNet, and decoding. Each line of the record carries the machine's own product and copy rates.
#
#   bench/cpu.sh RECORD.jsonl [PYTHON]      PYTHON: an interpreter with torch and transformers, to time the peer beside us
set -euo pipefail
cd "$(dirname "$0")/.."
record=${1:?usage: bench/cpu.sh RECORD.jsonl [PYTHON]}
label=$(git rev-parse --short HEAD)
linnet=build/linnet
for dtype in float32 bf16; do
    for op in linear_attn simple_gla delta_rule gated_delta_rule attention; do
        $linnet bench op $op --dtype $dtype --repeats 15 --record "$record" --label "$label"
    done
done
$linnet bench op mesa --dtype float32 --repeats 15 --record "$record" --label "$label"
for dtype in float32 bf16; do $linnet bench train --dtype $dtype --record "$record" --label "$label"; done
if [ -n "${2:-}" ]; then
    for dtype in float32 bf16; do "$2" bench/peer_torch.py $dtype | tee -a "$record"; done
fi

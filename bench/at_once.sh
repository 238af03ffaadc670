#!/usr/bin/env bash
# Whether runs that share a GPU end well: `linnet task mad` of Hyena, the six kinds by turns, AT_ONCE at a time with a seed each, until one fails or
# SECONDS have gone by. Under MPS where its daemon runs. bench/results/runs.md of 2026-11-29 quotes such runs (an illegal access of a transform).
#
#     nvidia-cuda-mps-control -d; bench/at_once.sh build/linnet 40 13
set -u
linnet=$1 seconds=${2:-40} at_once=${3:-13} device=${4:-cuda} work=$(mktemp -d)
kinds=(in-context fuzzy noisy memorisation compression copying)
end=$(($(date +%s) + seconds))
worker() {
    local seed=$1
    while [ "$(date +%s)" -lt "$end" ] && [ ! -e "$work/failed" ]; do
        if "$linnet" task mad --kind "${kinds[seed % 6]}" --mixer hyena --width 64 --batch 32 --steps 40 --test-examples 64 --seed "$seed" --device "$device" \
            --threads 1 >"$work/log.$1" 2>&1; then
            echo "$seed" >>"$work/ended"
        else
            echo "seed $seed: $(grep -a '^linnet:' "$work/log.$1" | head -1)" >>"$work/failed"
        fi
        seed=$((seed + at_once))
    done
}
touch "$work/ended"
for i in $(seq "$at_once"); do worker "$i" & done
wait
echo "$(wc -l <"$work/ended") runs ended well"
[ ! -e "$work/failed" ] || { cat "$work/failed"; exit 1; }
rm -r "$work"

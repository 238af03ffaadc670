#!/usr/bin/env bash
# A 140M Gated DeltaNet on books for some minutes, killed hard on the way and resumed; its held-out loss, and a sample at the kill and at the end.
#
#   bench/long_run.sh TEXT HELD_OUT TOKENIZER DIR        TEXT, HELD_OUT: folders of books (bench/equal_backbone.py leaves them in its work folder)
#
# From the environment: LINNET (build/linnet); MINUTES (10), the length of the run; KILL (90), the second of `kill -9`; STOP, a second at which to
# save and leave (never); DEVICE (cuda); MORE, further words for `linnet train`. Called again, it goes on.
# DIR/summary.txt is what to report, DIR/log.csv every 25th step and every evaluation.
set -uo pipefail
[ $# -eq 4 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
text=$1 held=$2 tokenizer=$3 dir=$4
linnet=${LINNET:-build/linnet} device=${DEVICE:-cuda}
mkdir -p "$dir"
begin=$SECONDS
say() { echo "$*" | tee -a "$dir/summary.txt"; }

# train SECONDS SIGNAL WORD...: trains in the background and sends the signal after so many seconds (0: never).
train() {
    local after=$1 signal=$2
    shift 2
    # shellcheck disable=SC2086
    $linnet train "$text" --held-out "$held" --tokenizer "$tokenizer" --out "$dir/model" --device "$device" --mixer gated_deltanet --preset 140m \
        --dtype bf16 --minutes "${MINUTES:-10}" --batch 32 --length 1024 --learning-rate 1e-3 --warmup 200 --eval-every 250 --eval-tokens 0 \
        --save-every 500 ${MORE:-} "$@" >>"$dir/train.log" 2>&1 &
    local pid=$! from=$SECONDS
    while kill -0 $pid 2>/dev/null; do
        if [ "$after" -gt 0 ] && [ $((SECONDS - from)) -ge "$after" ]; then
            kill "$signal" $pid
            after=0
        fi
        sleep 0.5
    done
    wait $pid
}
steps() { wc -l <"$dir/model/log.jsonl"; }
sample() {
    say "--- a sample of the last checkpoint, temperature 0.8"
    $linnet generate "$dir/model" --prompt 'It was a dark and stormy night' --echo --tokens 150 --temperature 0.8 --seed 3 --device "$device" \
        --dtype bf16 2>/dev/null | tee -a "$dir/summary.txt"
    say "---"
}

if [ ! -e "$dir/model/log.jsonl" ]; then
    train "${KILL:-90}" -9
    say "kill -9 after ${KILL:-90} s, at step $(steps)"
    sample
fi
stop=0
[ -n "${STOP:-}" ] && stop=$((STOP - (SECONDS - begin)))
train $stop -TERM --resume
code=$?
say "went on to step $(steps), $(tail -n 1 "$dir/model/log.jsonl" | cut -c1-240)"
python3 - "$dir" <<'TABLE'
import json, sys
with open(sys.argv[1] + "/log.csv", "w") as f:
    f.write("step,tokens,seconds,loss,held_out_nats,held_out_bits_per_byte,tokens_per_second\n")
    for x in map(json.loads, open(sys.argv[1] + "/model/log.jsonl")):
        if x["step"] % 25 == 0 or x["step"] == 1 or "eval_loss" in x:
            held = f"{x['eval_loss']:.4f},{x['eval_bits_per_byte']:.4f}" if "eval_loss" in x else ","
            f.write(f"{x['step']},{x['tokens']},{x['seconds']:.1f},{x['loss']:.4f},{held},{x['tokens_per_second']:.0f}\n")
TABLE
[ $code -eq 0 ] || { say "left with code $code; to be continued"; exit $code; }
grep -h '"eval_loss"' "$dir/model/log.jsonl" | sed 's/"gradient_norm":[^,]*,//' | tail -n 3 | while read -r line; do say "$line"; done
$linnet eval "$dir/model" "$held" --device "$device" --dtype bf16 --length 1024 2>/dev/null | while read -r line; do say "$line"; done
sample

#!/usr/bin/env python3
"""The lines of a record as short tables: python3 bench/table.py RECORD.jsonl [LABEL]"""
import json
import sys


def ms(seconds):
    return f"{1e3 * seconds:9.3f}"


def percent(share):
    return f"{100 * share:5.1f}%"


def show(x):
    kind = x.get("bench")
    if kind == "machine":
        return (f"{x['machine']}: products {x['machine_f32_flops'] / 1e12:.1f} (float32), {x['machine_bf16_flops'] / 1e12:.0f} (bf16) TFLOP/s, "
                f"copy {x['machine_copy_bytes'] / 1e12:.2f} TB/s")
    if kind == "op":
        shape = f"{x['T']}x{x['B']} {x['Hq']}/{x['Hv']} {x['dtype']}" + (f" w{x['window']}" if x.get("window") else "")
        return (f"{x['op']:17} {shape:22} {ms(x['forward_seconds'])} {ms(x['both_seconds'] - x['forward_seconds'])} {ms(x['both_seconds'])}   "
                f"{percent(x['forward_share'])} {percent(x['forward_copy_share'])}  {x['impl']}, {x['backward_impl']}")
    if kind == "train":
        return (f"train {x['parameters'] / 1e9:.2f} B {x['dtype']} B={x['batch']} T={x['length']}: {1e3 * x['step_seconds']:.1f} ms, "
                f"{x['tokens_per_second']:.0f} tokens/s, {percent(x['share'])} of the product rate, "
                f"{max(x.get('device_bytes') or 0, 0) / 2**30:.1f} GiB in use")
    if kind == "decode":
        return (f"decode {x['parameters'] / 1e9:.2f} B {x['dtype']} batch {x['batch']}: {1e3 * x['step_seconds']:.3f} ms, "
                f"{x['tokens_per_second']:.0f} tokens/s, {percent(x['share'])} of the copy rate")
    return None


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    if len(sys.argv) > 2:
        lines = [x for x in lines if x.get("label") == sys.argv[2]]
    heading = True
    for x in lines:
        text = show(x)
        if text and x["bench"] == "op" and heading:
            print(f"{'operator':17} {'tokens, heads':22} {'forward':>9} {'backward':>9} {'both, ms':>9}   {'FLOPs':>6} {'bytes':>6}  implementations")
            heading = False
        if text:
            print(text)


if __name__ == "__main__":
    main()

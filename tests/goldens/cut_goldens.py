#!/usr/bin/env python3
"""Take from a full set of goldens what lives in the tree: python3 tests/goldens/cut_goldens.py SET

SET has fla/NAME/{config.json,model.safetensors,golden.safetensors} and ops/NAME/{base,packed,ragged}.safetensors. Models come whole; of an operator's three
files the packed one, which has sequences of every awkward length, an initial state and all gradients."""
import shutil
import sys
from pathlib import Path

MODELS = ["delta_net", "delta_net_swa", "gated_deltanet", "gated_deltanet_h1", "gla", "kda", "linear_attn", "mesa_net",
          "retnet", "rwkv6", "transformer"]
OPERATORS = ["attention", "attention_window", "delta_rule", "delta_rule_negeig", "gated_delta_rule", "gla",
             "gla_kv", "kda", "linear_attn", "mesa", "rwkv6", "scan", "simple_gla"]
LIMIT = 8 << 20  # bytes of all of them: the tree is to stay small


def main():
    here, full = Path(__file__).resolve().parent, Path(sys.argv[1])
    files = [Path("fla", m, f) for m in MODELS for f in ("config.json", "model.safetensors", "golden.safetensors")]
    files += [Path("ops", o, "packed.safetensors") for o in OPERATORS]
    size = sum((full / f).stat().st_size for f in files)
    if size > LIMIT:
        sys.exit(f"{size} bytes, at most {LIMIT}")
    for f in files:
        (here / f).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(full / f, here / f)
    print(f"{len(files)} files, {size} bytes")


if __name__ == "__main__":
    main()

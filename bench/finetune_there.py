#!/usr/bin/env python3
"""Models of 30 M parameters made by Transformers, fine-tuned here, and their loss here and there:
python3 bench/finetune_there.py LINNET TEXT --out DIR [--types mamba2 olmo_hybrid llama] [--steps 40]

Each is drawn by its class (seed 0) with the characters of TEXT as ids, saved with a tokenizer of single characters, trained by `linnet train --init` on
4 x 128 ids a step, and loaded there again: nothing missing or left over, and the loss of 512 characters of TEXT's end beside that of `linnet task ppl`.
One JSON line a model; returns 1 where losses are more than 1e-4 apart. Needs torch, transformers and tokenizers."""
import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import AutoConfig, AutoModelForCausalLM

KINDS = {
    "mamba2": {"hidden_size": 512, "num_hidden_layers": 18, "num_heads": 16, "head_dim": 64, "state_size": 64, "n_groups": 1, "expand": 2, "chunk_size": 64},
    "olmo_hybrid": {"hidden_size": 480, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4, "linear_num_key_heads": 4,
                    "linear_num_value_heads": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "intermediate_size": 1800},
    "llama": {"hidden_size": 512, "num_hidden_layers": 9, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1536},
}


def make(kind, folder, text):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=128, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None, **KINDS[kind])
    model = AutoModelForCausalLM.from_config(config).float()
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(set(text)))}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    return sum(p.numel() for p in model.parameters())


def there(folder, text):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    ids = torch.tensor([Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids])
    with torch.no_grad():
        return model(ids, labels=ids).loss.item(), {k: sorted(v) for k, v in info.items() if v}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("linnet")
    p.add_argument("text", type=Path)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--types", nargs="+", default=list(KINDS), choices=list(KINDS))
    p.add_argument("--steps", type=int, default=40)
    a = p.parse_args()
    text = a.text.read_text()
    part, apart = text[-20000:][:512], 0
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "part.txt").write_text(part)
    for kind in a.types:
        before, after = a.out / kind, a.out / f"{kind}-tuned"
        parameters = make(kind, before, text)
        begin = there(before, part)[0]
        subprocess.run([a.linnet, "train", a.text, "--init", before, "--out", after, "--batch", "4", "--length", "128", "--steps", str(a.steps),
                        "--learning-rate", "0.001", "--warmup", str(a.steps // 4), "--eval-every", "0", "--save-every", "0"], check=True, stdout=sys.stderr)
        told = subprocess.run([a.linnet, "task", "ppl", after, a.out / "part.txt", "--json"], check=True, capture_output=True, encoding="utf-8").stdout
        here = next(x["nats_per_token"] for x in map(json.loads, filter(lambda x: x.startswith("{"), told.splitlines())) if "nats_per_token" in x)
        loss, left = there(after, part)
        apart = max(apart, abs(loss - here))
        print(json.dumps({"type": kind, "parameters": parameters, "before": begin, "here": here, "there": loss, "not_as_expected": left}), flush=True)
    return 1 if apart > 1e-4 else 0


if __name__ == "__main__":
    sys.exit(main())

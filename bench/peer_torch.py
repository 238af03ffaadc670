"""What a user would otherwise train with on a CPU: Transformers' Gated DeltaNet (the qwen3_5 text model with linear layers only) under PyTorch.

The shape of `linnet bench train`: 12 layers, width 512, 4 heads of 128, SwiGLU of 1408, 256 token ids, 4 sequences of 1024 tokens, AdamW.

    pip install torch transformers;  python bench/peer_torch.py float32|bf16 [threads]

Prints one JSON line; the median of three steps after a first one that does not count."""
import json
import statistics
import sys
import time

import torch
import transformers

BATCH, LENGTH, VOCABULARY, WIDTH, LAYERS = 4, 1024, 256, 512, 12


def build():
    config = transformers.Qwen3_5TextConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, intermediate_size=1408,
        num_attention_heads=4, num_key_value_heads=4, head_dim=128,
        layer_types=["linear_attention"] * LAYERS,
        linear_num_key_heads=4, linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128,
        tie_word_embeddings=False)
    return transformers.Qwen3_5ForCausalLM(config)


def one_step(model, optimizer, ids, bf16):
    start = time.perf_counter()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - start


def main():
    dtype = sys.argv[1] if len(sys.argv) > 1 else "float32"
    torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 2)
    torch.manual_seed(1)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    seconds = [one_step(model, optimizer, ids, dtype == "bf16") for _ in range(4)][1:]
    print(json.dumps({
        "bench": "peer", "peer": f"torch {torch.__version__}, transformers {transformers.__version__}", "dtype": dtype,
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_second": round(BATCH * LENGTH / statistics.median(seconds), 1)}))


if __name__ == "__main__":
    main()

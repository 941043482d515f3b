"""A small Llama that has learned the documents of this repository, byte by byte, so that its greedy texts vary and its
logits lie apart as those of a trained model do. Imported by scripts/compare_generation."""
import pathlib
import sys

import torch
import transformers

CONFIG = dict(vocab_size=256, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=8,
              num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5)
STEPS, BATCH, LENGTH = 1500, 16, 128


def text_of(root):
    """What it learns, as bytes [characters]: the same for the same tree."""
    files = sorted((pathlib.Path(root) / "docs").glob("*.md"))
    return torch.frombuffer(bytearray(b"\n".join(f.read_bytes() for f in files)), dtype=torch.uint8).long()


def trained(root, steps=STEPS):
    """The model after `steps` steps of AdamW, of about 50 ms each on two cores; prints its loss now and then."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).train()
    text = text_of(root)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for step in range(steps):
        starts = torch.randint(0, len(text) - LENGTH, (BATCH,))
        batch = torch.stack([text[s:s + LENGTH] for s in starts])
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"training, step {step} of {steps}: {loss.item():.2f} nats per byte", file=sys.stderr, flush=True)
    return model.eval()


def prompts(root, sequences, length):
    """Places of the text, [sequences, length]."""
    text = text_of(root)
    starts = torch.randint(0, len(text) - length, (sequences,), generator=torch.Generator().manual_seed(5))
    return torch.stack([text[s:s + length] for s in starts])

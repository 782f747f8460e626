"""PEFT's quick tour: LoRA on a causal language model, here a small one made from a configuration, in a plain loop."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=2))
model = get_peft_model(
    model, LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True)
).to(device)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
tokens = torch.randint(0, 512, (4, 32)).to(device)
model.train()
steps = 80
for _step in range(steps):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()  # the clock: tick()
print("steps", steps)
print("loss", f"{loss.item():.12f}")

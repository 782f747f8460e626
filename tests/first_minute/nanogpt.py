"""nanoGPT's train.py in small: gradient accumulation, an evaluation every so often, a checkpoint, gradient clipping."""

import argparse
import contextlib

import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--iters", type=int, default=60)
parser.add_argument("--out", default="ckpt.pt")
options = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1337)
data = torch.randint(0, 65, (20_000,))
block_size, batch_size, gradient_accumulation_steps, eval_interval = 64, 4, 4, 25


class GPT(torch.nn.Module):
    def __init__(self, n_embd=64):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(65, n_embd), torch.nn.Embedding(block_size, n_embd)
        self.h = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(n_embd, 4, 4 * n_embd, 0.0, batch_first=True) for _ in range(2)
        )
        self.lm_head = torch.nn.Linear(n_embd, 65)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch():
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    if device == "cuda":
        x, y = x.pin_memory(), y.pin_memory()
    return x.to(device, non_blocking=True), y.to(device, non_blocking=True)


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.tensor([model(*get_batch())[1].item() for _ in range(10)])
    model.train()
    return losses.mean()


model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
X, Y = get_batch()
iter_num = 0
while iter_num < options.iters:
    if iter_num % eval_interval == 0:
        val = estimate_loss()
        torch.save({"model": model.state_dict(), "iter_num": iter_num}, options.out)
    for micro_step in range(gradient_accumulation_steps):
        with contextlib.nullcontext():
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1  # the clock: tick()
print("steps", iter_num)
print("loss", f"{loss.item():.12f}")

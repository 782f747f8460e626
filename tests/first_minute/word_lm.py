"""PyTorch's word language model: truncated back-propagation, clipping, SGD by hand, and evaluation each epoch."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1111)
tokens, bptt = torch.randint(0, 200, (20, 1051)).to(device), 35
emb, rnn, head = nn.Embedding(200, 64), nn.LSTM(64, 64, batch_first=True), nn.Linear(64, 200)
model = nn.ModuleList([emb, rnn, head]).to(device)
criterion = nn.CrossEntropyLoss()


def forward(data, hidden):
    output, hidden = rnn(emb(data), hidden)
    return head(output).view(-1, 200), hidden


def evaluate():
    model.eval()
    total, hidden = 0.0, None
    with torch.no_grad():
        for i in range(0, 350, bptt):
            output, hidden = forward(tokens[:, i : i + bptt], hidden)
            total += criterion(output, tokens[:, i + 1 : i + 1 + bptt].reshape(-1)).item()
    return total


steps = 0
for _epoch in range(3):
    model.train()
    hidden = None
    for i in range(0, 1050, bptt):
        if hidden is not None:
            hidden = tuple(h.detach() for h in hidden)
        model.zero_grad()
        output, hidden = forward(tokens[:, i : i + bptt], hidden)
        loss = criterion(output, tokens[:, i + 1 : i + 1 + bptt].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-1.0)
        steps += 1  # the clock: tick()
    evaluate()
print("steps", steps)
print("loss", f"{loss.item():.12f}")

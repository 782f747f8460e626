"""Knowledge distillation, after the PyTorch tutorial: a teacher in evaluation mode in every step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 10))
student = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
loader = DataLoader(TensorDataset(torch.randn(3200, 128), torch.randint(0, 10, (3200,))), batch_size=32)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
steps = 0
teacher.eval()
student.train()
for _epoch in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        with torch.no_grad():
            targets = teacher(inputs)
        logits = student(inputs)
        soft = nn.functional.kl_div(
            (logits / 2).log_softmax(1), (targets / 2).softmax(1), reduction="batchmean"
        )
        loss = 0.25 * soft * 4 + 0.75 * nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        steps += 1  # the clock: tick()
print("steps", steps)
print("loss", f"{loss.item():.12f}")

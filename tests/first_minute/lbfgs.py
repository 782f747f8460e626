"""L-BFGS with a closure, after the example in the documentation of ``torch.optim``."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(512, 16).to(device)
y = x.sum(1, keepdim=True).tanh()
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
for _step in range(50):

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    loss = optimizer.step(closure)  # the clock: tick()
print("steps", 50)
print("loss", f"{loss.item():.12f}")

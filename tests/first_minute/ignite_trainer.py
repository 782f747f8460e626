"""PyTorch-Ignite's quick start: a supervised trainer, and an evaluator at the end of each epoch."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(1600, 64)
y = (x.sum(1) > 0).long()
train_loader = DataLoader(TensorDataset(x, y), batch_size=16)
val_loader = DataLoader(TensorDataset(x[:320], y[:320]), batch_size=32)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2)).to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.005)
trainer = create_supervised_trainer(
    model, optimizer, nn.CrossEntropyLoss(), device
)  # the clock: of_ignite(trainer)
evaluator = create_supervised_evaluator(model, metrics={"accuracy": Accuracy()}, device=device)


@trainer.on(Events.EPOCH_COMPLETED)
def log_validation_results(trainer):
    evaluator.run(val_loader)


state = trainer.run(train_loader, max_epochs=2)
print("steps", state.iteration)
print("loss", f"{state.output:.12f}")

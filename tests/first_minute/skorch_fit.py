"""skorch's README: a PyTorch module as a scikit-learn classifier, with its validation split."""

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
rng = np.random.default_rng(0)
X = rng.normal(size=(2000, 20)).astype(np.float32)
y = (X.sum(1) > 0).astype(np.int64)


class MyModule(nn.Module):
    def __init__(self, num_units=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(20, num_units), nn.ReLU(), nn.Dropout(0.5), nn.Linear(num_units, 2)
        )

    def forward(self, X):
        return self.layers(X).softmax(-1)


net = NeuralNetClassifier(
    MyModule, max_epochs=3, lr=0.1, batch_size=32, iterator_train__shuffle=True, device=device, verbose=0
)  # the clock: of_skorch(net)
net.fit(X, y)
print(
    "steps",
    sum(len(epoch["batches"]) - sum("valid_loss" in b for b in epoch["batches"]) for epoch in net.history),
)
print("loss", f"{net.history[-1]['train_loss']:.12f}")

"""Keras' guide "Writing a custom training loop in PyTorch": a Keras model and optimizer, a loop of one's own."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch

keras.utils.set_random_seed(0)
x = torch.randn(1600, 64)
y = x.sum(1, keepdim=True)
model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(1)]
)
optimizer = keras.optimizers.Adam(learning_rate=1e-3)
loss_fn = keras.losses.MeanSquaredError()
steps = 0
for _epoch in range(2):
    for inputs, targets in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16):
        loss = loss_fn(targets, model(inputs))
        model.zero_grad()
        trainable_weights = list(model.trainable_weights)
        loss.backward()
        with torch.no_grad():
            optimizer.apply([weight.value.grad for weight in trainable_weights], trainable_weights)
        steps += 1  # the clock: tick()
print("steps", steps)
print("loss", f"{loss.item():.9f}")

"""Keras 3 ``fit`` with validation, after its "Simple MNIST convnet"; KERAS_BACKEND says on what."""

import argparse

import keras
import numpy as np
from keras import layers

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(1024, 28, 28, 1)).astype("float32")
y = keras.utils.to_categorical(rng.integers(0, 10, 1024), 10)
model = keras.Sequential(
    [
        keras.Input(shape=(28, 28, 1)),
        layers.Conv2D(8, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Flatten(),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])


class Count(keras.callbacks.Callback):
    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1  # the clock: tick()


count = Count()
history = model.fit(
    x, y, batch_size=16, epochs=options.epochs, validation_split=0.1, verbose=2, callbacks=[count]
)
print("steps", count.batches)
print("loss", f"{history.history['loss'][-1]:.9f}")

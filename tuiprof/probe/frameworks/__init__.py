"""What the probe hooks in PyTorch, JAX, PyTorch/XLA and Keras, and their profilers."""

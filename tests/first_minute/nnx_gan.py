"""Flax NNX, a GAN: the jitted step of the discriminator runs twice in each step."""

import jax
import optax
from flax import nnx


class MLP(nnx.Module):
    def __init__(self, size, rngs):
        self.first = nnx.Linear(32, 128, rngs=rngs)
        self.last = nnx.Linear(128, size, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))


generator, discriminator = MLP(32, nnx.Rngs(0)), MLP(1, nnx.Rngs(1))
of_generator = nnx.Optimizer(generator, optax.adam(1e-3), wrt=nnx.Param)
of_discriminator = nnx.Optimizer(discriminator, optax.adam(1e-3), wrt=nnx.Param)


@nnx.jit
def step_discriminator(discriminator, generator, optimizer, real, noise):
    def loss_of(model):
        real_loss = optax.sigmoid_binary_cross_entropy(model(real), 1.0).mean()
        return real_loss + optax.sigmoid_binary_cross_entropy(model(generator(noise)), 0.0).mean()

    loss, grads = nnx.value_and_grad(loss_of)(discriminator)
    optimizer.update(discriminator, grads)
    return loss


@nnx.jit
def step_generator(generator, discriminator, optimizer, noise):
    def loss_of(model):
        return optax.sigmoid_binary_cross_entropy(discriminator(model(noise)), 1.0).mean()

    loss, grads = nnx.value_and_grad(loss_of)(generator)
    optimizer.update(generator, grads)
    return loss


key = jax.random.PRNGKey(0)
for _step in range(200):
    for _ in range(2):
        key, of_real, of_noise = jax.random.split(key, 3)
        real, noise = jax.random.normal(of_real, (64, 32)), jax.random.normal(of_noise, (64, 32))
        step_discriminator(discriminator, generator, of_discriminator, real, noise)
    loss = step_generator(generator, discriminator, of_generator, noise).item()  # the clock: tick()
print("steps", 200)
print("loss", f"{loss:.9f}")

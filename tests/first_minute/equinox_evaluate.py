"""Equinox with an evaluation after each epoch, which calls its function more often than training does."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

optim = optax.adam(1e-3)
model = eqx.nn.MLP(32, 32, 128, 2, key=jax.random.PRNGKey(0))
opt_state = optim.init(eqx.filter(model, eqx.is_array))


def loss_of(model, x):
    return jnp.mean((jax.vmap(model)(x) - x) ** 2)


@eqx.filter_jit
def make_step(model, opt_state, x):
    loss, grads = eqx.filter_value_and_grad(loss_of)(model, x)
    updates, opt_state = optim.update(grads, opt_state)
    return eqx.apply_updates(model, updates), opt_state, loss


@eqx.filter_jit
def evaluate(model, x):
    return loss_of(model, x)


training = jax.random.normal(jax.random.PRNGKey(1), (20, 64, 32))
validation = jax.random.normal(jax.random.PRNGKey(2), (50, 64, 32))
for _epoch in range(20):
    for x in training:
        model, opt_state, loss = make_step(model, opt_state, x)
        loss = loss.item()  # the clock: tick()
    score = sum(evaluate(model, x).item() for x in validation)
print("steps", 400)
print("loss", f"{loss:.9f}")

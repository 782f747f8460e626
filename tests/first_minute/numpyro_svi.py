"""NumPyro's stochastic variational inference with its own update loop, after its SVI tutorial."""

import argparse

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1500)
options = parser.parse_args()


def model(x, y):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
    numpyro.sample("obs", dist.Normal(x @ w, 0.1), obs=y)


x = jax.random.normal(jax.random.PRNGKey(0), (4096, 64))
y = x.sum(1)
svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.01), Trace_ELBO())
state = svi.init(jax.random.PRNGKey(1), x, y)
update = jax.jit(svi.update)
for _step in range(options.steps):
    state, loss = update(state, x, y)  # the clock: tick()
print("steps", options.steps)
print("loss", f"{float(loss):.3f}")

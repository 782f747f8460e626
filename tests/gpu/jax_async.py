# fmt: off
import jax, jax.numpy as jnp  # noqa: E401, I001
step = jax.jit(lambda x: x @ x / 1000)
x = jnp.ones((8000, 8000))
for n in range(12):
    with jax.profiler.StepTraceAnnotation("train", step_num=n):
        step(x)  # nobody keeps the result, and nobody waits for it

# Steps that run ahead of the device, whose results nobody waits for: the sample trace `jax-async` is of this script.

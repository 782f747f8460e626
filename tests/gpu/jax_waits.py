# fmt: off
import jax, jax.numpy as jnp, numpy as np  # noqa: E401, I001
step = jax.jit(lambda x: x @ x / 1000)
x = jnp.ones((4000, 4000))
def train():
    float(step(x).sum())  # planted: float
    step(x).block_until_ready()  # planted: an array's block_until_ready
    jax.block_until_ready([step(x), step(x + 1)])  # planted: jax.block_until_ready
    jax.device_get(step(x))  # planted: device_get
    np.asarray(step(x))  # planted: NumPy
    step(x).sum().item()  # planted: item
for n in range(12):
    with jax.profiler.StepTraceAnnotation("train", step_num=n):
        train()

# Each kind of wait that JAX knows, in every step. No line may move: they are those of the sample trace `jax-waits`.

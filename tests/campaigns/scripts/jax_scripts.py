# needs: jax
import sys, threading
import jax, jax.numpy as jnp
@jax.jit
def step(w): return w - .1 * jax.grad(lambda w: jnp.sum(w ** 2))(w)
#---
# name: jax: annotated steps
w = jnp.ones(4)
for n in range(10):
    with jax.profiler.StepTraceAnnotation("train", step_num=n): w = step(w)
print(float(w.sum()), threading.active_count())
#---
# name: jax: a trace of its own
import glob, shutil
w = jnp.ones(4)
with jax.profiler.trace("mine"):
    for n in range(6):
        with jax.profiler.StepTraceAnnotation("train", step_num=n): w = step(w).block_until_ready()
print(len(glob.glob("mine/**/*.xplane.pb", recursive=True))); shutil.rmtree("mine")

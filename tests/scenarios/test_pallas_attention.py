"""The kernel that the ladder pallas-attention takes from JAX compiles for a TPU at its size; no TPU is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tuiprof.resources import shipped

LOWER = """
import sys
sys.path.insert(0, sys.argv[1])
from types import SimpleNamespace
import jax, jax.numpy as jnp
from common import scenario
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
size = SimpleNamespace(**scenario.header(sys.argv[1] + "/pallas_attention.py")["presets"]["paper"])
shape = (size.batch, size.heads, (size.image // size.patch) ** 2, size.head_dim)
def loss(q, k, v):
    return flash_attention(q, k, v).astype(jnp.float32).sum()
q = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
step = jax.export.export(jax.jit(jax.value_and_grad(loss, (0, 1, 2))), platforms=["tpu"])(q, q, q)
print(step.mlir_module().count("@tpu_custom_call"))
"""


def test_the_kernel_lowers_for_a_tpu_forward_and_backward() -> None:
    pytest.importorskip("jax")
    command = [sys.executable, "-c", LOWER, str(shipped("scenarios"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3  # forward, and backward for q and for k and v

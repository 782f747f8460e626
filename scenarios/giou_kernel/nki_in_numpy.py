"""What the NKI kernel of the ladders uses of ``nki.language`` and ``nki.isa``, in NumPy, with the device's limits.

It is stricter than NumPy: shapes are never stretched, on-chip tiles have at most 128 partitions, instructions read and
write them only on the chip, and copies go between device memory and the chip. Memory that nobody has written is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

PARTITIONS, PARTITION_BYTES = 128, 192 << 10

float32 = np.float32
sbuf, shared_hbm = "sbuf", "shared_hbm"
add, subtract, multiply, minimum, maximum = np.add, np.subtract, np.multiply, np.minimum, np.maximum


@dataclass(frozen=True)
class Tensor:
    """A tensor in device memory or on the chip, or a view of one."""

    values: np.ndarray[Any, Any]
    buffer: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def __getitem__(self, index: Any) -> Tensor:
        view = self.values[index]
        assert np.shares_memory(view, self.values), "a view was expected"
        return Tensor(view, self.buffer)


def ndarray(shape: tuple[int, ...], dtype: Any, buffer: str) -> Tensor:
    if buffer == sbuf:
        assert shape[0] <= PARTITIONS, f"{shape[0]} partitions"
        assert np.prod(shape[1:]) * np.dtype(dtype).itemsize <= PARTITION_BYTES
    return Tensor(np.full(shape, np.nan, dtype), buffer)


def dma_copy(dst: Tensor, src: Tensor) -> None:
    assert {dst.buffer, src.buffer} == {sbuf, shared_hbm}
    assert dst.shape == src.shape
    dst.values[...] = src.values


def _written(dst: Tensor, values: np.ndarray[Any, Any], *read: Tensor) -> None:
    assert all(one.buffer == sbuf and one.shape == dst.shape for one in (dst, *read))
    assert not any(np.isnan(one.values).any() for one in read), "memory is read that nobody has written"
    dst.values[...] = values


def tensor_tensor(dst: Tensor, data1: Tensor, data2: Tensor, op: Callable[..., Any]) -> None:
    _written(dst, op(data1.values, data2.values), data1, data2)


def tensor_scalar(dst: Tensor, data: Tensor, op0: Callable[..., Any], operand0: float) -> None:
    _written(dst, op0(data.values, np.float32(operand0)), data)


def scalar_tensor_tensor(
    dst: Tensor,
    data: Tensor,
    op0: Callable[..., Any],
    operand0: float,
    op1: Callable[..., Any],
    operand1: Tensor,
) -> None:
    _written(dst, op1(op0(data.values, np.float32(operand0)), operand1.values), data, operand1)


def reciprocal(dst: Tensor, data: Tensor) -> None:
    _written(dst, np.float32(1) / data.values, data)

"""Measures how much of a batch of sequences of numbers, such as frames of speech, is padding, if it has their lengths.

Only sizes, and a few parts of the memory of tensors on the CPU, are read: no operator runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import unpack
from typing import Any, Callable, NamedTuple

#: Rows whose padding is looked at, besides the shortest and the longest one.
_SAMPLE = 8
_MIN_WIDTH = 32
#: A longer mask would take too long to read.
_MAX_CELLS = 1 << 18
#: A longer padding, of one row, would take too long to compare.
_MAX_BYTES = 1 << 24
#: In this part of the rows, the last frame may look like padding: silence.
_SILENT = 0.25
_READ = 0x100  # PyBUF_READ

Read = Callable[[int, int, int], memoryview]


class Frames(NamedTuple):
    """How long the sequences of a batch are, in columns."""

    width: int  # what they are padded to
    longest: int
    axis: int  # the dimension of time
    features: bool  # a frame has several numbers
    seen: (
        bool  # there is padding behind the lengths; else all sequences are whole, if these are lengths at all
    )


def frames_in(values: Sequence[Any], torch: Any, read: Read) -> Frames | None:
    """Return the padding of sequences of numbers with their lengths, or a mask, beside; None = there are none."""
    plain = [value for value in values if type(value) is torch.Tensor]
    known: dict[tuple[int, int], list[list[int]]] = {}  # lengths, by the number of rows and the width
    whole = None
    for value in plain:
        shape = tuple(value.shape)
        if len(shape) not in (2, 3) or shape[0] < 2 or not value.dtype.is_floating_point:
            continue
        view = _memory(value, torch, read)
        if view is None:
            continue
        for axis in range(1, len(shape)):
            rows, width = shape[0], shape[axis]
            if width < _MIN_WIDTH:
                continue
            # Before the axis of time there may be features, and behind it.
            lines = shape[1] if axis == 2 else 1
            size = value.element_size() * (shape[2] if len(shape) == 3 and axis == 1 else 1)
            if (rows, width) not in known:
                known[rows, width] = _lengths(plain, rows, width, torch, read)
            for lengths in known[rows, width]:
                found = Frames(width, max(lengths), axis, len(shape) == 3, min(lengths) < width)
                if not found.seen:
                    whole = whole or found
                elif _are_padded(view, lines, width, size, lengths):
                    return found
    return whole


def _memory(tensor: Any, torch: Any, read: Read) -> memoryview | None:
    """Return the memory of a tensor; None = it is not on the CPU, or not in one piece."""
    if not tensor.is_cpu or not tensor.numel() or tensor.layout is not torch.strided:
        return None
    step = 1
    for length, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if length > 1 and stride != step:
            return None
        step *= length
    is_lazy = getattr(torch._C, "_is_cow_tensor", None)  # asking for its address would copy it
    if is_lazy is not None and is_lazy(tensor):
        return None
    size = tensor.element_size()
    length = tensor.numel() * size
    # Memory may be freed while the tensor keeps its shape.
    held = tensor.untyped_storage().nbytes() - tensor.storage_offset() * size
    address = tensor.data_ptr()
    return read(address, length, _READ) if address and held >= length else None


def _lengths(plain: Sequence[Any], rows: int, width: int, torch: Any, read: Read) -> list[list[int]]:
    """Return what may be the lengths of the rows: numbers up to the width, or those of a mask's rows."""
    formats = {torch.int64: "q", torch.int32: "i", torch.bool: "B", torch.uint8: "B"}
    found = []
    for value in plain:
        shape, format_ = tuple(value.shape), formats.get(value.dtype, "")
        if not format_ or shape not in ((rows,), (rows, width)) or rows * shape[-1] > _MAX_CELLS:
            continue
        view = _memory(value, torch, read)
        if view is None:
            continue
        numbers = list(unpack(f"{value.numel()}{format_}", view))
        lengths = numbers if len(shape) == 1 else _of_mask(numbers, rows, width)
        if lengths and min(lengths) > 0 and max(lengths) <= width:
            found.append(lengths)
    return found


def _of_mask(numbers: list[int], rows: int, width: int) -> list[int]:
    """Return how many columns of each row a mask leaves; empty = it is none, or its rows begin with padding."""
    inside = numbers[0]
    lengths = []
    for row in range(rows):
        cells = numbers[row * width : (row + 1) * width]
        length = cells.count(inside)
        if inside not in (0, 1) or cells != [inside] * length + [1 - inside] * (width - length):
            return []
        lengths.append(length)
    return lengths


def _are_padded(view: memoryview, lines: int, width: int, size: int, lengths: list[int]) -> bool:
    """Whether the columns behind the lengths have one value, in some rows, and those before others."""
    rows = len(lengths)
    shortest, longest = lengths.index(min(lengths)), lengths.index(max(lengths))
    if (width - lengths[shortest]) * size > _MAX_BYTES:
        return False
    end = (shortest * lines + 1) * width * size
    frame = bytes(view[end - size : end])
    same = frame * (width - lengths[shortest])
    silent, chosen = 0, {shortest, longest, *range(0, rows, max(rows // _SAMPLE, 1))}
    for row in chosen:
        begin = row * lines * width * size
        used = begin + lengths[row] * size
        if not same.startswith(view[used : begin + width * size]):
            return False
        silent += lengths[row] < width and view[used - size : used] == frame
    return silent <= _SILENT * len(chosen)

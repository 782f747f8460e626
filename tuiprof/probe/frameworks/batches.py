"""Measures how much of a batch of texts, or of other sequences, is padding, in a few batches of a run.

The memory of the batch is read as it is. No operator runs, so neither the profiler nor a mode of the script sees any of
it, and no code of the script runs: of subclasses of containers only the built-in part is read, and subclasses of
tensors are left out.
"""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from struct import unpack
from time import monotonic_ns
from typing import Any, Callable, NamedTuple

from ..events import RECORD
from ..isolation import raised_by_signal_handler
from ..steps.counting import Steps
from .frames import Frames, frames_in

#: Steps from which on the next batch is looked at. A process without steps has no log.
_AT = (1, 2, 4, 8, 12, 18, 26, 60)
_NEVER = 1 << 62
#: Values of a batch that are looked at, and the minimum width of a tensor.
_MAX_VALUES = 20
_MIN_WIDTH = 32
#: A larger tensor would take too long.
_MAX_ROWS, _MAX_WIDTH, _MAX_BYTES = 4096, 1 << 17, 1 << 26
#: Fewer columns than this part of the width do not matter.
_MIN_UNUSED = 8
#: How many frames a script may make one of.
_STACKED = (2, 3, 4, 5, 6, 8)
#: Rows in which a mask, and what the values are, is recognized.
_SAMPLE = 8
_READ = 0x100  # PyBUF_READ


def is_compiling(torch: Any) -> bool:
    """Whether the compiler traces the caller, a constant under torch.compile; a part of PyTorch may be there only."""
    compiling = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", None)
    return bool(compiling is not None and compiling())


class Batches:
    """The looked-at batches of this process."""

    def __init__(self, steps: Steps) -> None:
        self.due = _AT[0]  # the step from which on the next batch is looked at
        self._steps = steps
        self._read: Callable[[int, int, int], memoryview] | None = None
        self._batches = self._width = self._longest = self._masked = self._full = self._most = 0
        self._frames = 0
        self._whole: list[
            _Padding
        ] = []  # batches that are frames without padding, if others turn out to be frames
        self._least = _NEVER
        self._widths: set[tuple[int, int]] = set()  # what models may get: a dimension of time, and its length
        self._cut: bool | None = None  # None = no model was called on tokens in a capture

    def look(self, batch: Any) -> None:
        """Record how much of a batch is padding, if it has tokens; not in a loop that is compiled."""
        torch: Any = sys.modules.get("torch")
        if is_compiling(torch):
            return
        n = self._steps.n
        self.due = next((at for at in _AT if at > n), _NEVER)
        try:
            with torch._C.DisableTorchFunction():  # modes of the script see nothing of it
                found = self._padding(batch, torch)
        except Exception as error:  # batches of any kind
            if raised_by_signal_handler(error):
                raise
            return
        if found is None:
            return
        if found.frames is not None:
            if not (found.unused or self._frames):
                self._whole.append(found)
                return
            while self._whole:
                self._add(self._whole.pop())
        self._add(found)
        self._record(n)

    def _add(self, found: _Padding) -> None:
        used = found.width - found.unused
        self._batches += 1
        self._width += found.width
        self._longest += used
        self._masked += found.masked
        self._full += not found.unused
        self._least, self._most = min(self._least, used), max(self._most, used)
        axis = found.frames.axis if found.frames is not None else 1
        for width in range(found.width - 1, found.width + 2):  # next words are the targets of words
            self._widths.update(((0, width), (axis, width)))  # some models take the time first
        if found.frames is not None:  # several of which may be one for the model
            self._frames += 1
            widths = (found.width // part for part in _STACKED)
            self._widths.update((axis, width) for width in widths if width >= _MIN_WIDTH)

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record if models get fewer columns than the batches have, as the script cuts them itself."""
        if self._cut is False or not self._batches:
            return
        try:
            torch = sys.modules["torch"]
            if torch.jit.is_tracing():
                return  # sizes are part of the graph then
            with torch._C.DisableTorchFunction():
                tensors = [
                    value for value in chain(_values(args), _values(kwargs)) if type(value) is torch.Tensor
                ]
                if any(not self._widths.isdisjoint(enumerate(tensor.shape)) for tensor in tensors):
                    self._cut = False
                elif self._cut is None and any(self._may_be_cut(tensor, torch) for tensor in tensors):
                    self._cut = True
                else:
                    return
        except Exception as error:  # arguments of any kind
            if raised_by_signal_handler(error):
                raise
            return
        self._record(self._steps.n)

    def _may_be_cut(self, tensor: Any, torch: Any) -> bool:
        """Whether a tensor of another width may be what the script has made of a batch."""
        frames = self._frames == self._batches
        if len(tensor.shape) not in ((2, 3) if frames else (2,)) or tensor.shape[1] < 2:
            return False
        return bool(tensor.dtype.is_floating_point if frames else tensor.dtype in (torch.int64, torch.int32))

    def _record(self, n: int) -> None:
        sums = {"batches": self._batches, "width": self._width, "longest": self._longest}
        kinds = {
            "frames": self._frames,
            "masked": self._masked,
            "full": self._full,
            "least": self._least,
            "most": self._most,
        }
        known = {**sums, **kinds, "cut": bool(self._cut)}
        self._steps.out.append((RECORD, {"t": "padding", "at": monotonic_ns(), "n": n, **known}))

    def _padding(self, batch: Any, torch: Any) -> _Padding | None:
        """Return the padding of the widest tokens, those with a mask first; None = no tensor may be tokens."""
        if self._read is None:
            self._read = _reader()
        formats = {
            torch.int64: "q",
            torch.int32: "i",
            torch.int16: "h",
            torch.int8: "b",
            torch.uint8: "B",
            torch.bool: "B",
        }
        values = list(islice(_values(batch), _MAX_VALUES))
        by_width: dict[int, list[_Table]] = {}
        has_pictures = False
        for value in values:
            if type(value) is not torch.Tensor:
                continue
            shape, dtype = value.shape, value.dtype
            if len(shape) > 2:
                # Pictures or sound, whose size does not depend on that of a text beside them.
                has_pictures |= dtype.is_floating_point or dtype is torch.uint8
            elif len(shape) == 2 and shape[1] >= _MIN_WIDTH and dtype in formats:
                table = self._table(value, torch, formats[dtype])
                if table is not None:
                    by_width.setdefault(table.width, []).append(table)
        found = [_padding_of(by_width[width]) for width in sorted(by_width, reverse=True)]
        tokens = [one for one in found if one is not None]
        frames = frames_in(values, torch, self._read)
        if frames is not None and not (tokens and _are_beside(tokens, frames)):
            return _Padding(frames.width, frames.width - frames.longest, True, frames)
        if not by_width:
            return None
        if has_pictures or not tokens:
            return _Padding(max(by_width), 0, False)
        return next((one for one in tokens if one.masked), tokens[0])

    def _table(self, tensor: Any, torch: Any, format_: str) -> _Table | None:
        """Return a tensor's memory; None = it is not on the CPU, or not in rows, or too large."""
        if not tensor.is_cpu or tensor.layout is not torch.strided:
            return None
        rows, width = tensor.shape
        stride, of_columns = tensor.stride()
        size = tensor.element_size()
        length = ((rows - 1) * stride + width) * size
        if not 0 < rows <= _MAX_ROWS or width > _MAX_WIDTH or of_columns != 1 or length > _MAX_BYTES:
            return None
        is_lazy = getattr(torch._C, "_is_cow_tensor", None)  # asking for its address would copy it
        if is_lazy is not None and is_lazy(tensor):
            return None
        # Memory may be freed while the tensor keeps its shape.
        held = tensor.untyped_storage().nbytes() - tensor.storage_offset() * size
        address = tensor.data_ptr()
        if not address or held < length or self._read is None:
            return None
        return _Table(self._read(address, length, _READ), rows, stride * size, width, size, format_)


class _Padding(NamedTuple):
    """The padding of a batch."""

    width: int
    unused: int  # number of columns that are padding in all rows
    masked: bool  # a mask has the length of each row, or the lengths are beside
    frames: Frames | None = None  # sequences of numbers


class _Table(NamedTuple):
    """The memory of a tensor with two dimensions."""

    view: memoryview
    rows: int
    stride: int  # bytes from one row to the next
    width: int
    size: int  # bytes of a value
    format: str  # of a value, as ``struct`` names it

    def cells(self, row: int, first: int, end: int) -> memoryview:
        """Return the bytes of some columns of a row."""
        begin = row * self.stride
        return self.view[begin + first * self.size : begin + end * self.size]

    def side(self, row: int, count: int, right: bool) -> memoryview:
        """Return the bytes of the last columns of a row, or of the first ones."""
        return self.cells(row, self.width - count, self.width) if right else self.cells(row, 0, count)

    def values(self, row: int) -> list[int]:
        """Return the values of a row."""
        return list(unpack(f"{self.width}{self.format}", self.cells(row, 0, self.width)))

    def run(self, row: int, same: bytes, most: int, right: bool) -> int:
        """Return how many of the last ``most`` columns of a row, or of the first ones, are as in ``same``."""
        size, view, fits = self.size, self.view, same.startswith
        begin = row * self.stride
        end = begin + self.width * size
        low, high, count = 0, most + 1, most
        while high - low > 1:
            if fits(view[end - count * size : end] if right else view[begin : begin + count * size]):
                low = count
            else:
                high = count
            count = (low + high) // 2
        return low

    def filled(self, right: bool) -> bytes:
        """Return a row of the value in the last column of the first row, or in its first column."""
        return bytes(self.side(0, 1, right)) * self.width

    def sample(self) -> range:
        """Return some rows, spread over all."""
        return range(0, self.rows, max(self.rows // _SAMPLE, 1))

    def unused(self, most: int, right: bool) -> int:
        """Return how many columns at a side have one and the same value in all rows; 0 = too few to matter."""
        view, same = self.view, self.filled(right)
        fits = same.startswith
        end = self.width * self.size if right else most * self.size
        begin = end - most * self.size
        for row in range(self.rows):
            at = row * self.stride
            if fits(view[at + begin : at + end]):  # of most rows
                continue
            most = self.run(row, same, most, right)
            if most * _MIN_UNUSED < self.width:
                return 0
            if right:
                begin = end - most * self.size
            else:
                end = most * self.size
        return most

    @property
    def constant(self) -> bool:
        """Whether all values are the same."""
        view, fits, length = self.view, self.filled(True).startswith, self.width * self.size
        return all(
            fits(view[at : at + length]) for at in range(0, self.rows * self.stride or 1, self.stride or 1)
        )

    @property
    def repeats_row(self) -> bool:
        """Whether all rows are the same, as those of positions are."""
        first = bytes(self.cells(0, 0, self.width))
        return self.rows > 1 and all(
            first.startswith(self.cells(row, 0, self.width)) for row in range(1, self.rows)
        )

    def row_of(self, value: int) -> bytes:
        """Return a row of one value."""
        return value.to_bytes(self.size, sys.byteorder) * self.width

    def is_mask(self, right: bool) -> bool:
        """Whether each row consists of ones, and of zeros at a side, or the other way round."""
        zeros, ones = self.row_of(0), self.row_of(1)
        return self._is_split(zeros, ones, right) or self._is_split(ones, zeros, right)

    def _is_split(self, outside: bytes, inside: bytes, right: bool) -> bool:
        for row in self.sample():
            used = self.width - self.run(row, outside, self.width, right)
            if not inside.startswith(self.side(row, used, not right)):
                return False
        return True

    @property
    def has_ids(self) -> bool:
        """Whether it has more than two values: it is no mask, and no vector with a few ones."""
        known: set[int] = set()
        for row in self.sample():
            known.update(self.values(row))
            if len(known) > 2:
                return True
        return False

    def is_padded_text(self, right: bool) -> bool:
        """Whether rows have lengths of their own, and the value after their ends is rare before.

        Counts, labels and grids have their most frequent value anywhere, and most rows of a table end alike.
        """
        same = self.filled(right)
        lengths = []
        for row in self.sample():
            values = self.values(row)
            outside = values[-1] if right else values[0]
            used = self.width - self.run(row, same, self.width, right)
            if used < self.width and values.count(outside) - (self.width - used) > max(used // 8, 1):
                return False
            lengths.append(used)
        return 2 * max(map(lengths.count, lengths)) <= len(lengths)


def _reader() -> Callable[[int, int, int], memoryview]:
    """Return what reads memory at an address."""
    import ctypes  # PyTorch has imported it

    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
    return kind(("PyMemoryView_FromMemory", ctypes.pythonapi))


def _values(batch: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the values of a batch, and of containers in it."""
    kinds = type(batch).__mro__
    if UserDict in kinds:  # such as the BatchEncoding of Transformers
        batch = vars(batch).get("data")
        kinds = type(batch).__mro__
    inside: Iterable[Any]
    if dict in kinds:
        inside = dict.values(batch)
    elif list in kinds:
        inside = list.__iter__(batch)
    elif tuple in kinds:
        inside = tuple.__iter__(batch)
    else:
        yield batch
        return
    for value in islice(inside, _MAX_VALUES):
        if depth:
            yield value
        else:
            yield from _values(value, depth + 1)


def _are_beside(tokens: list[_Padding], frames: Frames) -> bool:
    """Whether numbers may belong to the tokens: there is one for each, or no padding of them was seen."""
    return not frames.seen or (not frames.features and any(one.width == frames.width for one in tokens))


def _padding_of(tables: list[_Table]) -> _Padding | None:
    """Return the padding of tensors of one width; None = none of them is tokens."""
    told: list[_Table] = []
    whole = False
    for table in tables:
        if table.constant:  # it says nothing, unless it is a mask
            whole |= table.row_of(1).startswith(table.cells(0, 0, table.width))
        elif not table.repeats_row:
            told.append(table)
    ids: list[_Table] = []
    others: list[_Table] = []
    for table in told:
        (ids if table.has_ids else others).append(table)
    if not ids:
        return None
    sides = (_side(ids, others, whole, right) for right in (True, False))
    return max(sides, key=lambda one: (one.unused, one.masked))


def _side(ids: list[_Table], others: list[_Table], whole: bool, right: bool) -> _Padding:
    """Return the padding at one side; ``whole`` = a mask has only ones, as all texts have the whole width."""
    unused = width = ids[0].width
    for table in (*ids, *others):
        unused = table.unused(unused, right) if unused else 0
    masked = whole or any(table.is_mask(right) for table in others)
    if not masked and unused and not any(table.is_padded_text(right) for table in ids):
        unused = 0
    return _Padding(width, unused, masked)

"""PyTorch's DataLoader: how long the script waits for a batch."""

from __future__ import annotations

import functools
from threading import get_ident
from time import monotonic_ns
from typing import Any

from ..guest.exceptions import leave_out
from ..marks import DATA
from ..runtime import Runtime
from ..steps import BATCH


def install(runtime: Runtime, module: Any) -> None:
    """Wrap ``__next__`` of all DataLoader iterators, once."""
    iterator_class = module._BaseDataLoaderIter
    original = iterator_class.__next__
    if getattr(original, "_tuiprof", False):
        return
    hook = runtime.hook("torch.utils.data.DataLoader")
    steps = runtime.steps
    note, clock, ident, part = steps.marks.append, monotonic_ns, get_ident, DATA
    quiet = BATCH + 1  # from this source on batches are no steps

    @functools.wraps(original)
    def __next__(iterator: Any) -> Any:  # noqa: N807
        if steps.source < quiet and hook.on:
            try:
                return looking(iterator)
            except BaseException as error:
                leave_out(error)
                raise
        began = clock()
        try:
            return original(iterator)
        except BaseException as error:
            leave_out(error)
            raise
        finally:  # the end of the data is a wait too
            note((part, began, clock(), ident()))

    def looking(iterator: Any) -> Any:
        """Batches are the steps, or may be."""
        try:
            steps.data_begins()
        except Exception:
            hook.failed()
        more = False
        began = clock()
        try:
            batch = original(iterator)
            more = True
            return batch
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            t = clock()
            note((part, began, t, ident()))
            if hook.on:
                try:
                    steps.data_ended(began, t, more)
                except Exception:
                    hook.failed()

    __next__._tuiprof = True  # type: ignore[attr-defined]
    iterator_class.__next__ = __next__

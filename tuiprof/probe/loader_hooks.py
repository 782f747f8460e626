"""PyTorch's DataLoader: how long the script waits for a batch."""

from __future__ import annotations

import functools
from time import monotonic_ns
from typing import Any

from .runtime import Runtime
from .steps import BATCH


def install(runtime: Runtime, module: Any) -> None:
    """Wrap ``__next__`` of all DataLoader iterators, once.

    Args:
        runtime: The probe.
        module: ``torch.utils.data.dataloader``, just imported.
    """
    iterator_class = module._BaseDataLoaderIter
    original = iterator_class.__next__
    if getattr(original, "_tuiprof", False):
        return
    hook = runtime.hook("torch.utils.data.DataLoader")
    steps = runtime.steps

    @functools.wraps(original)
    def __next__(iterator: Any) -> Any:  # noqa: N807
        if not hook.on:
            return original(iterator)
        if steps.source <= BATCH:
            try:
                steps.data_begins()
            except Exception:
                hook.failed()
        began = monotonic_ns()
        more = False
        try:
            batch = original(iterator)
            more = True
            return batch
        finally:  # the end of the data is a wait too
            try:
                steps.data_ended(began, more)
            except Exception:
                hook.failed()

    __next__._tuiprof = True  # type: ignore[attr-defined]
    iterator_class.__next__ = __next__

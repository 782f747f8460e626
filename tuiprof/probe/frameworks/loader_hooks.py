"""PyTorch's DataLoader: time the script waits for a batch, and for restarted workers."""

from __future__ import annotations

import functools
import weakref
from threading import get_ident
from time import monotonic_ns
from typing import Any

from ..guest.exceptions import leave_out
from ..lines import RECORD
from ..marks import DATA
from ..runtime import Runtime
from ..steps import BATCH


def install(runtime: Runtime, module: Any) -> None:
    """Wrap ``__next__`` of all DataLoader iterators, and what starts their workers, once."""
    iterator_class = module._BaseDataLoaderIter
    original = iterator_class.__next__
    if getattr(original, "_tuiprof", False):
        return
    hook = runtime.hook("torch.utils.data.DataLoader")
    steps = runtime.steps
    note, clock, ident, part = steps.marks.append, monotonic_ns, get_ident, DATA
    quiet = BATCH + 1  # from this source on batches are no steps
    workers = _Workers(runtime, module._MultiProcessingDataLoaderIter)

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
            if isinstance(error, StopIteration):
                workers.stopped(iterator, clock() - began)
            leave_out(error)
            raise
        finally:  # the end of the data is a wait too
            t = clock()
            note((part, began, t, ident()))
            if workers.fresh is iterator:
                workers.first_batch(t - began)

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
            if workers.fresh is iterator:
                workers.first_batch(t - began)
            if not more:
                workers.stopped(iterator, t - began)
            if hook.on:
                try:
                    steps.data_ended(began, t, more)
                except Exception:
                    hook.failed()

    __next__._tuiprof = True  # type: ignore[attr-defined]
    iterator_class.__next__ = __next__


class _Workers:
    """Time of loader workers to stop, and to restart.

    Attributes:
        fresh: The iterator whose workers were started again and have made no batch yet; None = there is none.
    """

    def __init__(self, runtime: Runtime, iterator_class: Any) -> None:
        self.fresh: Any = None
        self._steps = runtime.steps
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._starts = self._ns = self._stopping_ns = self._waited_ns = self._workers = 0
        self._class = iterator_class
        hook = runtime.hook("torch.utils.data.DataLoader workers")
        original = iterator_class.__init__

        @functools.wraps(original)
        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            began = monotonic_ns()
            try:
                original(iterator, loader, *args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise
            if hook.on:
                try:
                    self._started(iterator, loader, began, monotonic_ns())
                except Exception:
                    hook.failed()

        iterator_class.__init__ = __init__

    def _started(self, iterator: Any, loader: Any, began: int, t: int) -> None:
        self._steps.marks.append((DATA, began, t, get_ident()))
        if loader not in self._known:
            self._known.add(loader)
            return
        self.fresh, self._workers = iterator, loader.num_workers
        self._starts += 1
        self._ns += t - began + self._stopping_ns
        self._stopping_ns = 0

    def stopped(self, iterator: Any, ns: int) -> None:
        """The data is exhausted; the time includes waiting for non-persistent workers to stop."""
        if isinstance(iterator, self._class):
            self._stopping_ns += ns

    def first_batch(self, ns: int) -> None:
        """Restarted workers have delivered their first batch after this wait."""
        self.fresh = None
        self._waited_ns += ns
        fields = {"n": self._steps.n, "workers": self._workers, "starts": self._starts}
        times = {"ns": self._ns, "waited_ns": self._waited_ns}
        self._steps.out.append((RECORD, {"t": "workers", "at": monotonic_ns(), **fields, **times}))

"""Lines that made the host wait for the device: the framework's own warnings, with the exact stack.

During a capture ``torch.cuda.set_sync_debug_mode("warn")`` makes PyTorch warn when it synchronizes. The warnings are
intercepted before they reach the script's filters, handlers or stderr; all other warnings pass through. PyTorch does
not warn about explicit waits, non-blocking copies that block because the host memory is pageable, and driver calls of
its allocator: these calls are wrapped during the window.
"""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any, Callable

from ..sites import SiteWatch
from .allocations import AllocationWatch

_PROTOTYPE = "Synchronization debug mode is a prototype"  # said once when it is switched on
_MESSAGE = re.compile(r"called a synchronizing|" + _PROTOTYPE)
_FILTER = ("always", _MESSAGE, Warning, None, 0)


class SyncWatch(SiteWatch):
    """Collects host waits between :meth:`start` and :meth:`stop`.

    Args:
        torch: The module, with CUDA initialised.
        memory: Whether the capture records memory, which justifies the overhead of watching allocations.
    """

    def __init__(self, torch: Any, memory: bool) -> None:
        super().__init__()
        self._torch = torch
        self._allocations = AllocationWatch(torch) if memory else None
        self._mode_before = 0

    def start(self) -> None:
        """Start collecting."""
        cuda = self._torch.cuda
        self._mode_before = int(cuda.get_sync_debug_mode())
        self._wrap(cuda, "synchronize", "torch.cuda.synchronize")
        self._wrap(cuda.Event, "synchronize", "torch.cuda.Event.synchronize")
        self._wrap(cuda.Stream, "synchronize", "torch.cuda.Stream.synchronize")
        self._wrap(cuda, "empty_cache", "torch.cuda.empty_cache")
        for name in ("to", "cuda", "copy_"):
            self._wrap_copy(name)
        if self._allocations is not None:
            self._allocations.start()
        if self._mode_before == 2:  # the script wants an exception at every wait; there will be none to see
            return
        self._take_warnings()
        if self._mode_before == 0:
            cuda.set_sync_debug_mode(1)
            self._undo.append(lambda: cuda.set_sync_debug_mode(0))

    def stop(self) -> None:
        """Restore everything; harmless if not started."""
        super().stop()
        if self._allocations is not None:
            self._more += self._allocations.stop()

    # -- collecting -----------------------------------------------------------------------------------------

    def _wrap_copy(self, name: str) -> None:
        """Record non-blocking copies between the device and pageable memory."""
        tensor = self._torch.Tensor
        original = getattr(tensor, name)
        compiling = getattr(self._torch.compiler, "is_dynamo_compiling", lambda: False)

        def copy(*args: Any, **kwargs: Any) -> Any:
            if compiling():  # the compiler traces through here, and must see the copy alone
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            if kwargs.get("non_blocking") or True in args[2:]:
                source = args[1] if name == "copy_" else args[0]
                if source.is_cuda != result.is_cuda:
                    host = result if source.is_cuda else source
                    if not host.is_pinned():
                        self._saw("copy of pageable memory", sys._getframe(1))
            return result

        self._replace(tensor, name, copy)

    def _take_warnings(self) -> None:
        """Intercept the warnings about waits, regardless of the script's filters."""
        show_name = "_showwarnmsg"  # what the interpreter calls, also inside catch_warnings(record=True)
        show = getattr(warnings, show_name)
        told_by_script = self._mode_before != 0

        def show_or_take(message: Any) -> None:
            if not _MESSAGE.search(str(message.message)):
                show(message)
                return
            if _PROTOTYPE in str(message.message) and not told_by_script:
                return
            if not getattr(self._inside, "on", False):
                self._saw(_what(str(message.message)), sys._getframe(1))
            if told_by_script:
                show(message)

        setattr(warnings, show_name, show_or_take)
        self._undo.append(lambda: setattr(warnings, show_name, show))
        if not told_by_script:
            self._undo.append(_pin_filter())


def _what(message: str) -> str:
    """Return a warning's text without its location in PyTorch."""
    return message.split(" (Triggered", 1)[0].strip()


def _pin_filter() -> Callable[[], None]:
    """Keep our filter first, even if the script changes the filters.

    ``-W error`` or a ``catch_warnings`` block of the script would otherwise turn the warning into an
    exception in the middle of training, or drop it. The interpreter reads ``warnings.filters`` by attribute
    at every warning; a property puts our filter in front just then, in the script's own list.

    Returns:
        What undoes it.
    """
    module: Any = warnings
    kind = type(module)

    def get(_: Any) -> Any:
        filters = vars(module)["filters"]
        if not filters or filters[0] is not _FILTER:
            while _FILTER in filters:
                filters.remove(_FILTER)
            filters.insert(0, _FILTER)
        return filters

    def put(_: Any, value: Any) -> None:
        vars(module)["filters"] = value

    # A warning that the script has already seen at a line would not be raised there again.
    warnings.filterwarnings("always", message=_MESSAGE.pattern)
    module.__class__ = type("_Warnings", (kind,), {"filters": property(get, put)})

    def undo() -> None:
        module.__class__ = kind
        filters = vars(module)["filters"]
        filters[:] = [entry for entry in filters if not _is_ours(entry)]

    return undo


def _is_ours(entry: Any) -> bool:
    """Whether a filter was put there by :func:`_pin_filter`."""
    return entry is _FILTER or getattr(entry[1], "pattern", None) == _MESSAGE.pattern

"""A wrapper of a function that calls back each time it has returned."""

from __future__ import annotations

TYPE_CHECKING = False  # without the import, which would double the start-up time of every Python
if TYPE_CHECKING:
    from typing import Any, Callable


def counted(function: Any, end: Callable[[], None]) -> Any:
    """Return a wrapper of a function that calls ``end`` each time it has returned."""
    return _wrapped(function, end) if isinstance(function, type(_wrapped)) else _Counted(function, end)


class _Counted:
    """Wraps a callable that is not a Python function, such as a jitted one, and counts its calls."""

    def __init__(self, function: Any, end: Callable[[], None]) -> None:
        self.__wrapped__ = function
        self._tuiprof_end = end

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        result = self.__wrapped__(*args, **kwargs)
        self._tuiprof_end()
        return result

    def __getattr__(self, name: str) -> Any:
        """Return the callable's own attribute."""
        return getattr(self.__wrapped__, name)


def _wrapped(function: Any, end: Callable[[], None]) -> Any:
    from functools import wraps

    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        end()
        return result

    return counted

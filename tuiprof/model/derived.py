"""Properties that are worked out once, whoever asks first."""

from __future__ import annotations

from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    derived = cached_property  # type checkers know this one by name
else:

    class derived(cached_property):  # noqa: N801 - a decorator, as the one it extends
        """A cached property that one thread works out while all others that ask wait for it.

        Python up to 3.11 did this for every cached property; what takes as long as the links of a million events should
        not be worked out twice at the same time in later versions either.

        Args:
            make: Works it out.
        """

        def __init__(self, make) -> None:
            super().__init__(make)
            self._guard = RLock()

        def __get__(self, instance, owner=None):
            """Return it, worked out if need be."""
            with self._guard:
                return super().__get__(instance, owner)

"""The part of a trace that an analysis looks at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """A time range of a trace; the default is all of it.

    Attributes:
        start_ns: First instant, ns since the trace origin; None = from the beginning.
        end_ns: First instant after the window, ns since the trace origin; None = to the end.
        label: What to call it on the screen, for example ``"step 2"``.
    """

    start_ns: int | None = None
    end_ns: int | None = None
    label: str = ""

    def __post_init__(self) -> None:
        """Refuse a window that ends before it starts."""
        if self.start_ns is not None and self.end_ns is not None and self.end_ns < self.start_ns:
            raise ValueError(f"window ends at {self.end_ns} ns, before its start at {self.start_ns} ns")

    @property
    def whole(self) -> bool:
        """Whether this is the whole trace."""
        return self.start_ns is None and self.end_ns is None

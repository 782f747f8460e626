"""Sources of steps that are found by repetition: batches, backward passes and a loop, and when they begin to count."""

from __future__ import annotations

_QUIET_BATCHES = 2
_QUIET_BACKWARDS = 2
_QUIET_BACKWARDS_WITH_OPTIMIZER = 256
_NEVER = 1 << 62


class Batches:
    """Batches of DataLoaders, before they are the steps."""

    __slots__ = {
        "count": "number before the first step, and since the last loader that ended",
        "ended": "a loader has ended, and no batch was requested since",
    }

    def __init__(self) -> None:
        self.count = 0
        self.ended = False

    def loader_ended(self) -> None:
        """A loader has no further batch."""
        self.ended = True
        self.count = 0

    def add(self) -> bool:
        """There is another one; return whether it begins the first step."""
        self.count += 1
        return self.count > _QUIET_BATCHES

    def leave_out(self) -> None:
        """Let none of them count until the loader ends."""
        self.count = -_NEVER


class BackwardPasses:
    """Backward passes on the thread that steps."""

    __slots__ = {"count": "how many there were", "last_at": "when the last one ended"}

    def __init__(self) -> None:
        self.count = self.last_at = 0

    def add(self, optimizer_made: bool) -> bool:
        """There is another one; return whether they may be the steps by now."""
        self.count += 1
        return self.count > (_QUIET_BACKWARDS_WITH_OPTIMIZER if optimizer_made else _QUIET_BACKWARDS)


class CountedLoop:
    """The loop whose iterations may be the steps, as far as counting them goes; found by :mod:`.loop_steps`."""

    __slots__ = {
        "at": "where it is, ``file:line``",
        "is_too_short": "its iterations turned out to be no steps; reset by the reader",
        "missed_ns": "time of the script in it before its iterations were counted",
        "on_trial": "its iterations may turn out to be parts of a step",
    }

    def __init__(self) -> None:
        self.at = ""
        self.missed_ns = 0
        self.on_trial = self.is_too_short = False

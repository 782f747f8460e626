"""The loop whose iterations may be the steps, as far as counting them goes."""

from __future__ import annotations


class CountedLoop:
    """What is known of it; found by :mod:`.loop_steps`."""

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

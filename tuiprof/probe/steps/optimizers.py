"""Which optimizer's step ends a step, where the script has several.

It is the first one seen, unless another one takes over or replaces it: see ``OPTIMIZER`` in :mod:`.sources`. The steps
of the others are parts of its steps.
"""

from __future__ import annotations

import dis
import os
import sys
import weakref
from functools import lru_cache
from types import CodeType
from typing import Any, Callable

from ..sampler import (
    AROUND,
    BESIDE,
    ELSEWHERE,
    TOGETHER,
    Site,
    in_each_iteration,
    in_one_loop,
    is_above,
    relation,
    script_sites,
)

#: What the step of an optimizer is: the counted one's; that of one that is counted from now on; a part of the running
#: step; a part of the iteration whose counted step has been; a step of which those counted so far were parts.
COUNTED, NEWLY_COUNTED, PART, FOLLOWER, ENCLOSING = range(5)

_STEPS_OF_OTHERS = 32
_MAX_PARTS = 256  # steps of an optimizer that may turn out to be parts of a step
#: Steps of an optimizer in a loop adjacent to that of another one that may be parts of a step
_MAX_IN_TURN = 16


def nobody() -> None:
    """Replacement for the weak reference to an optimizer if there is none."""


class Optimizers:
    """Chooses the optimizer whose steps count; ``warn`` is called with sentences for the user."""

    __slots__ = {
        "_at_first_line": "only the steps of the optimizer at :attr:`_sites` count, not those further down in its loop",
        "_in_turns": "only the first step of the optimizer after one of another optimizer counts",
        "_longest_row": "the largest :attr:`_row` so far",
        "_most_of_others": "steps of other optimizers after which one of them takes over",
        "_new": "ids of the optimizers made since the counted one was chosen",
        "_others": "steps of other optimizers since its last one",
        "_parts": "by id, other optimizers whose steps are parts of its steps: whether they step after it, and where",
        "_row": "consecutive steps of the counted optimizer",
        "_sites": "where the counted optimizer stepped first",
        "_warn": "called with a sentence for the user",
        "counted": "weak reference to the optimizer whose steps count; :func:`nobody` = none has stepped",
        "counting_anew": "count from 0 from the next step of the optimizer on",
        "several": "there are several optimizers",
        "stepped": "one has stepped; reset by the reader",
    }

    def __init__(self, several: bool, warn: Callable[[str], None]) -> None:
        self.several = several
        self._warn = warn
        self.counted: Callable[[], Any] = nobody
        self.stepped = self.counting_anew = False
        self._others = 0
        self._most_of_others = _STEPS_OF_OTHERS
        self._row = self._longest_row = 0
        self._sites: list[Site] = []
        self._parts: dict[int, tuple[bool, list[Site]]] = {}
        self._new: set[int] = set()
        self._in_turns = self._at_first_line = False

    def made(self, optimizer: Any) -> None:
        """An optimizer was made: it is none of those before, one of which may have left its id to it."""
        self._new.add(id(optimizer))
        self._parts.pop(id(optimizer), None)

    # -- an optimizer has stepped -----------------------------------------------------------------------------

    def first_stepped(self, optimizer: Any) -> int:
        """The first one has stepped, and counts."""
        self._choose(optimizer, script_sites(sys._getframe(1)))
        return self._count(NEWLY_COUNTED)

    def counted_stepped(self, n: int, followed: int) -> int:
        """The counted one has stepped, in step ``n``, after this many steps that belong to its last iteration."""
        if (self._in_turns or self._at_first_line or n == 1) and self._steps_again(followed):
            return FOLLOWER
        return self._count(COUNTED)

    def part_stepped(self) -> int:
        """One has stepped where a step of the counted one is about to end."""
        self._others += 1
        self._row = 0
        return PART

    def other_stepped(
        self, optimizer: Any, n: int, by_optimizer: bool, fixed: bool, waiting_since: int
    ) -> int:
        """Another one than the counted one has stepped, in step ``n``.

        ``by_optimizer``: optimizer steps are what ends a step. ``fixed``: a capture runs, so what a step is must not
        change. ``waiting_since``: when the counted one stepped, if the running step waits for others; 0 = it does not.
        """
        sites: list[Site] = []
        part = self._parts.get(id(optimizer))
        if part is None:
            sites = script_sites(sys._getframe(1))
            if self._replaces(optimizer, sites):
                self.counted = weakref.ref(optimizer)
                self._new.clear()
                return self._count(COUNTED)
            if self._takes_over(optimizer, sites, n, by_optimizer, fixed):
                self._choose(optimizer, sites)
                return ENCLOSING if self.counting_anew else self._count(NEWLY_COUNTED)
            part = self._parts.get(id(optimizer))
        elif n == 1 and not waiting_since and self._goes_around_alone(*part):
            self._choose(optimizer, part[1])
            return self._count(NEWLY_COUNTED)
        self._others += 1
        self._row = 0
        few = self._others <= self._most_of_others or self._others <= 2 * len(self._parts)
        if few and self.counted() is not None:
            follows = not is_above(sites, self._sites) if part is None else part[0]
            return FOLLOWER if follows else PART
        self._choose(optimizer, sites or script_sites(sys._getframe(1)))
        return self._count(NEWLY_COUNTED)

    def counts_anew(self, withdrawn: int) -> None:
        """Steps count from 0 from now on; each has as many parts as were counted, or more."""
        self.counting_anew = False
        self._most_of_others = max(_STEPS_OF_OTHERS, 4 * withdrawn)

    def _count(self, what: int) -> int:
        self._others = 0
        self._row += 1
        if self._row > self._longest_row:
            self._longest_row = self._row
        self.stepped = True
        return what

    def _choose(self, optimizer: Any, sites: list[Site]) -> None:
        """Count the steps of this optimizer."""
        self.counted = weakref.ref(optimizer)
        self._sites = sites
        self._parts.clear()
        self._new.clear()
        self._others = 0
        self._in_turns = self._at_first_line = False

    # -- whether it counts ------------------------------------------------------------------------------------

    def _goes_around_alone(self, follows: bool, sites: list[Site]) -> bool:
        """Whether this part steps again before the counted optimizer does, which thus steps less often."""
        return follows and in_one_loop(self._sites, sites) and sites == script_sites(sys._getframe(2))

    def _steps_again(self, followed: int) -> bool:
        """Whether the counted optimizer steps for another time in the same iteration."""
        if self._in_turns and not self._others:
            self._in_turns = followed < self._most_of_others  # else it goes on alone
            return self._in_turns
        if not self._at_first_line and (self._others or not self.several):
            return False
        sites = script_sites(sys._getframe(2))
        if sites == self._sites:
            return False
        if in_one_loop(self._sites, sites) and is_above(self._sites, sites):
            self._at_first_line = True
            return True
        if self._at_first_line:
            self._sites = sites
        return False

    def _replaces(self, optimizer: Any, sites: list[Site]) -> bool:
        """Whether this optimizer steps in place of the counted one, which was made before it, or for another model.

        One that was there before may be part of the same step, as one for each parameter is, unless the counted one
        stepped alone.
        """
        new = id(optimizer) in self._new
        if (new or self._row > 1) and sites == self._sites:
            self._row *= new
            return True
        return False

    def _takes_over(self, optimizer: Any, sites: list[Site], n: int, by_optimizer: bool, fixed: bool) -> bool:
        """Whether steps of this other optimizer, at these sites, count from now on; if not, remember it as a part."""
        how = relation(self._sites, sites)
        if how == BESIDE and n > _MAX_IN_TURN:
            how = ELSEWHERE
        part = not is_above(sites, self._sites), sites
        if not by_optimizer or how == TOGETHER:
            self._parts[id(optimizer)] = part
            return False
        at, counted = _line_of(sites), _line_of(self._sites)
        if how == ELSEWHERE:
            self._warn(
                f"the optimizer at {at} steps in a separate loop from the one at {counted}; its steps are counted too"
            )
            return True
        if self._longest_row < 2:  # as many steps of one as of the other, as far as known
            if n > _MAX_IN_TURN:
                self._parts[id(optimizer)] = part
            return False
        if fixed:
            return False
        self._parts[id(optimizer)] = part
        if how == AROUND and n <= _MAX_PARTS:
            self.counting_anew = True
            if not in_each_iteration(sites):
                self._warn(
                    f"the optimizer at {at} does not step in every iteration of its loop, and a step lasts from one of "
                    "its steps to the next. To count iterations, name a line that each of them runs once: --step-at "
                    "FILE:LINE"
                )
            return True
        if how == AROUND:
            self._warn(
                f"another optimizer steps in the enclosing loop, at {at}: if the counted steps are parts of its steps, "
                f"use --step-at {at}"
            )
        else:
            self._in_turns = self.counting_anew = True
            self._warn(
                f"two optimizers step in adjacent loops, at {counted} and {at}: a step is one run of both loops. "
                "To count another line: --step-at FILE:LINE"
            )
        return False


def _line_of(sites: list[Site]) -> str:
    """Return ``file:line`` of the innermost call, for a sentence."""
    if not sites:
        return "a line outside the script"
    code, at, _ = sites[-1]
    return _line_at(code, at, code.co_filename)


@lru_cache(64)
def _line_at(code: CodeType, at: int, file: str) -> str:
    # The file is a part of the key, as equal functions in two files have equal code objects.
    line = code.co_firstlineno
    for offset, number in dis.findlinestarts(code):
        if offset <= at and number is not None:
            line = number
    return f"{os.path.basename(file)}:{line}"

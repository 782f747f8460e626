"""Relation between the loops of the script in which two calls are made."""

from __future__ import annotations

from types import CodeType, FrameType

from .sampler import Loop, goes_over_epochs, loops_of
from .script_frames import is_script

#: Code of the script, the offset of the running call, and whether the script itself called it.
Site = tuple[CodeType, int, bool]

#: Where a second call is relative to a first one: in the same loop, or unknown; in a loop around the
#: first one's; in an adjacent loop, both inside one that does not iterate over epochs; in an unrelated loop.
TOGETHER, AROUND, BESIDE, ELSEWHERE = range(4)


def script_sites(frame: FrameType | None) -> list[Site]:
    """Return where each frame of the script is, outermost first."""
    found: list[Site] = []
    while frame is not None:
        caller = frame.f_back
        if is_script(frame.f_code.co_filename):
            by_script = caller is not None and is_script(caller.f_code.co_filename)
            found.append((frame.f_code, frame.f_lasti, by_script))
        frame = caller
    return found[::-1]


def relation(first: list[Site], second: list[Site]) -> int:
    """Return where the second call is relative to the first one.

    A call made once per epoch, around the loop over batches, counts as together with calls in that loop, as does a
    call made once by a module.
    """
    inner, outer = _loops(first), _loops(second)
    if not outer and second and second[-1][0].co_name == "<module>":
        return TOGETHER  # a single call
    if _left(first, second):
        return ELSEWHERE
    shared = 0
    while shared < min(len(inner), len(outer)) and _same(inner[shared], outer[shared]):
        shared += 1
    if shared == len(outer):
        around = 0 < shared < len(inner) and not goes_over_epochs(outer[-1], inner[shared])
        return AROUND if around else TOGETHER
    if shared == len(inner) > 0:
        return TOGETHER
    return BESIDE if shared and not goes_over_epochs(inner[shared - 1], inner[shared]) else ELSEWHERE


def _left(first: list[Site], second: list[Site]) -> bool:
    """Whether the script, in code that it runs once, has gone on to the second call."""
    once = False  # from the code of a module on, which runs once
    for one, other in zip(first, second):
        (code, at, by_script), (_, other_at, _) = one, other
        once = code is other[0] and (code.co_name == "<module>" or (once and by_script))
        once = once and not _loops([one]) and not _loops([other])
        if once and at != other_at:
            return True
    return False


def _same(one: Loop, other: Loop) -> bool:
    return one.code is other.code and one.head == other.head


def _loops(sites: list[Site]) -> list[Loop]:
    """Return the loops around a call, outermost first."""
    return [loop for code, at, _ in sites for loop in loops_of(code) if loop.head <= at <= loop.end]

"""Which of two calls of the script is made in a loop inside the loop of the other."""

from __future__ import annotations

from types import CodeType, FrameType

from .sampler import Loop, goes_over_epochs, loops_of
from .script_frames import is_script

#: Code of the script, and the offset in it of the call that was under way.
Site = tuple[CodeType, int]


def script_sites(frame: FrameType | None) -> list[Site]:
    """Return where each frame of the script is, outermost first."""
    found: list[Site] = []
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return found[::-1]


def is_inside(inner: list[Site], outer: list[Site]) -> bool:
    """Whether one call is made in all loops of another and in at least one more inside them.

    Not where the loops of the other go over epochs: a call at the end of each epoch is no step of its batches.
    """
    around, within = _loops(outer), _loops(inner)
    shared = len(around)
    same = [(code, loop.head) for code, loop in around] == [
        (code, loop.head) for code, loop in within[:shared]
    ]
    if not (0 < shared < len(within) and same):
        return False
    return not goes_over_epochs(around[-1][1], within[shared][1])


def _loops(sites: list[Site]) -> list[tuple[CodeType, Loop]]:
    """Return the loops around a call, outermost first."""
    return [(code, loop) for code, at in sites for loop in loops_of(code) if loop.head <= at <= loop.end]

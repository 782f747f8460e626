"""What a step was made of: from the parts that were timed to the time of each phase.

On the thread that trains a part is only noted (see :mod:`.marks`); the arithmetic is done here, in the log's
thread.

``data`` is the time inside the DataLoader's ``next``; ``backward`` inside ``torch.autograd.backward``;
``optimizer`` inside ``optimizer.step``, after the last backward where a closure runs in it. ``forward`` is what
lies between the end of the data (or of the optimizer or backward before it, or the start of the step) and the
start of backward, without the phases that the script timed itself in between; where the script times a phase
``forward`` itself, only that counts. What is found inside a phase of the script belongs to that phase alone. Where
hooks of backward let optimizers step, that time is ``optimizer``, and ``backward`` the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from .marks import BACKWARD, DATA, OPTIMIZER, Part

_NAMES = ("data", "backward", "optimizer")
_USUAL = (DATA, BACKWARD, OPTIMIZER)


def phases_of(start: int, parts: Sequence[Part]) -> dict[str, int]:
    """Return the time of each phase, ns.

    Args:
        start: Start of the step, monotonic ns.
        parts: In order of their ends.
    """
    if len(parts) == 3:
        (first, began, fetched, _), (second, called, returned, _), (third, stepping, ended, _) = parts
        if (first, second, third) == _USUAL and called >= fetched and stepping >= returned:
            # Nearly every step of most scripts, in a fifth of the time.
            return {
                "data": fetched - began,
                "forward": called - fetched,
                "backward": returned - called,
                "optimizer": ended - stepping,
            }
    phases: dict[str, int] = {}
    found: list[tuple[int, int, int]] = []
    spans: list[tuple[int, int]] = []  # phases of the script, outermost only, in order of time
    for name, began, ended, _ in parts:
        if isinstance(name, int):
            inside: list[tuple[int, int]] = []
            while name == BACKWARD and found and found[-1][0] != DATA and found[-1][1] >= began:
                # A backward pass inside is one that recomputes activations; an optimizer inside was called by a hook.
                inner, *span = found.pop()
                if inner == OPTIMIZER:
                    inside.append((span[0], span[1]))
            if inside:
                stepping = _covered(inside)
                phases["optimizer"] = phases.get("optimizer", 0) + stepping
                phases["backward"] = phases.get("backward", 0) - stepping
            found.append((name, began, ended))
            continue
        phases[name] = phases.get(name, 0) + ended - began
        while spans and spans[-1][0] >= began:
            spans.pop()
        spans.append((began, ended))
    if found:
        _add_found(phases, start, found, spans)
    return phases


def _covered(spans: list[tuple[int, int]]) -> int:
    """Return the time that at least one span covers: hooks may run on several threads at once."""
    covered = reached = 0
    for began, ended in sorted(spans):
        covered += max(0, ended - max(began, reached))
        reached = max(reached, ended)
    return covered


def _add_found(
    phases: dict[str, int], start: int, found: list[tuple[int, int, int]], spans: Sequence[tuple[int, int]]
) -> None:
    """Add the phases found by hooks, and ``forward``.

    Args:
        phases: Filled in; holds those of the script.
        start: Start of the step.
        found: Kind, begin and end of each, in order of their ends.
        spans: Phases of the script, none inside another.
    """
    with_forward = "forward" not in phases
    mark = start
    last_backward = 0
    for kind, began, ended in found:
        if any(low <= began and ended <= high for low, high in spans):
            continue
        if kind == BACKWARD:
            last_backward = ended
            if with_forward:
                theirs = sum(high - low for low, high in spans if low >= mark and high <= began)
                phases["forward"] = phases.get("forward", 0) + began - mark - theirs
        elif kind == OPTIMIZER and last_backward > began:
            began = last_backward
        name = _NAMES[kind]
        phases[name] = phases.get(name, 0) + ended - began
        mark = ended

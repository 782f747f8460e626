"""Computes the time of each phase of a step from its timed parts.

The training thread only records parts (see :mod:`.marks`); the arithmetic is done here, in the log's thread.

``data`` is the time inside the DataLoader's ``next``, and while its workers are started; ``backward`` inside
``torch.autograd.backward``; ``optimizer`` inside ``optimizer.step``, after the last backward where a closure runs in it
once, and without the models and backward passes of closures where it runs again and again. ``forward`` is the time
inside the outermost call of a model (see :mod:`.module_hooks`), or, with Lightning, inside ``training_step``. A step in
which no model is seen, as its functions are the script's own, has as ``forward`` what lies between the end of the data
(or of the optimizer or backward before it, or the start of the step) and the start of backward, without the phases
that the script timed itself in between. Where the script times a phase ``forward`` itself, only that counts.
``evaluation`` is a model's call in evaluation mode without gradients; it is ``forward`` where batches are the steps,
as in inference, and all that a framework calls evaluation. ``checkpoint`` is ``torch.save``, and what a framework does
to write one. What is found inside these two is part of them. What is found inside a phase of the script belongs to that
phase alone. Where hooks of backward let optimizers step, that time is ``optimizer``, and ``backward`` the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from .marks import APART, BACKWARD, DATA, FORWARD, OPTIMIZER, Part

_NAMES = ("data", "backward", "optimizer", "forward", "evaluation", "checkpoint")
_OF_CLOSURE = (FORWARD, BACKWARD)
_USUAL = (DATA, FORWARD, BACKWARD, OPTIMIZER)
_ORDER = ("data", "forward", "backward", "optimizer", "evaluation", "checkpoint")


def phases_of(start: int, parts: Sequence[Part]) -> dict[str, int]:
    """Return the time of each phase, ns."""
    if len(parts) == 4:
        first, second, third, fourth = parts
        usual = (first[0], second[0], third[0], fourth[0]) == _USUAL
        if usual and third[1] >= second[2] and fourth[1] >= third[2]:
            # Nearly every step of most scripts, in a fifth of the time.
            return {
                "data": first[2] - first[1],
                "forward": second[2] - second[1],
                "backward": third[2] - third[1],
                "optimizer": fourth[2] - fourth[1],
            }
    phases: dict[str, int] = {}
    found: list[tuple[int, int, int]] = []
    spans: list[tuple[int, int]] = []  # phases of the script, outermost only, in order of time
    for name, began, ended, _ in parts:
        if isinstance(name, int):
            while name in APART and found and found[-1][1] >= began:
                found.pop()  # its batches, and the files it consists of
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
    ours = [name for name in _ORDER if name in phases]
    if len(ours) > 1:  # in the order in which they run, whatever was seen first
        return {name: phases[name] for name in (*ours, *(name for name in phases if name not in _ORDER))}
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
    """Add the phases found by hooks, and ``forward``."""
    timed = "forward" in phases  # by the script itself
    with_forward = not timed and all(kind != FORWARD for kind, _, _ in found)
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
            inside = [
                part for part in found if part[1] >= began and part[2] < ended and part[0] in _OF_CLOSURE
            ]
            if not with_forward and sum(part[0] == BACKWARD for part in inside) > 1:
                began += sum(part[2] - part[1] for part in inside)  # evaluates its closure again and again
            else:
                began = last_backward
        elif kind == FORWARD:
            if timed:
                continue
            began += sum(high - low for low, high in spans if low >= began and high <= ended)
        name = _NAMES[kind]
        phases[name] = phases.get(name, 0) + ended - began
        mark = ended

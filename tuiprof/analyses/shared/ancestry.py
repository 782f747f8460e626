"""Ancestors of host calls: annotation, chain of operators, Python frames."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuiprof.analyses.shared import frames as _frames
from tuiprof.analyses.shared.codes import distinct
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints

_OPERATORS, _FRAMES = 5, 6
_STEP = r"^ProfilerStep#\d+$"
#: Owner of a Python frame, computed lazily per name.
_UNKNOWN, _OTHER, _USER, _PROFILER = range(4)


@dataclass(frozen=True, slots=True)
class Ancestry:
    """Ancestors of each of ``k`` host events; all values are name codes of the trace, -1 = none."""

    annotation: Ints  # innermost named range that is not a step marker, shape ``(k,)``
    operators: Ints  # innermost operators, innermost first, shape ``(k, 5)``
    outer_operator: Ints  # outermost operator, shape ``(k,)``; its row in ``outer_row``
    outer_row: Ints  # row of the outermost operator, shape ``(k,)``
    frames: Ints  # innermost Python frames of the user, innermost first, shape ``(k, 6)``
    #: Whether a frame of the profiler lies between the event and the user's code.
    by_profiler: npt.NDArray[np.bool_]

    def take(self, mask: npt.NDArray[np.bool_]) -> Ancestry:
        """Return the ancestry of some of the events."""
        return Ancestry(
            self.annotation[mask],
            self.operators[mask],
            self.outer_operator[mask],
            self.outer_row[mask],
            self.frames[mask],
            self.by_profiler[mask],
        )


def of(trace: Trace, rows: Ints) -> Ancestry:
    """Look up the ancestors of host events."""
    k = len(rows)
    names, codes = trace.names, trace.name_codes
    marker = trace.names_like(_STEP)  # PyTorch 1.9 writes step markers as operators
    kinds = np.full(len(names), _UNKNOWN, dtype=np.int8)
    found = Ancestry(
        np.full(k, -1, dtype=np.int64),
        np.full((k, _OPERATORS), -1, dtype=np.int64),
        np.full(k, -1, dtype=np.int64),
        np.full(k, -1, dtype=np.int64),
        np.full((k, _FRAMES), -1, dtype=np.int64),
        np.zeros(k, dtype=bool),
    )
    operators_seen = np.zeros(k, dtype=np.int64)
    frames_seen = np.zeros(k, dtype=np.int64)
    if not k or not names:
        return found
    for level in trace.nesting.outward(rows):
        inside = np.flatnonzero(level >= 0)
        at = level[inside]
        name = codes[at]

        hit = trace.is_category("annotation", rows=at) & ~marker[name] & (found.annotation[inside] < 0)
        found.annotation[inside[hit]] = name[hit]

        hit = trace.is_category("cpu_op", rows=at) & ~marker[name]
        who = inside[hit]
        found.outer_operator[who], found.outer_row[who] = name[hit], at[hit]
        room = operators_seen[who] < _OPERATORS
        found.operators[who[room], operators_seen[who[room]]] = name[hit][room]
        operators_seen[who] += 1

        python = trace.is_category("python_function", rows=at)
        if not python.any():
            continue
        _tell_apart(names, name[python], kinds)
        who = inside[python & (kinds[name] == _PROFILER)]
        found.by_profiler[who] |= frames_seen[who] == 0
        hit = python & (kinds[name] == _USER)
        who = inside[hit]
        room = frames_seen[who] < _FRAMES
        found.frames[who[room], frames_seen[who[room]]] = name[hit][room]
        frames_seen[who] += 1
    return found


def _tell_apart(names: list[str], frames: Ints, kinds: npt.NDArray[np.int8]) -> None:
    """Write the owners of frames into ``kinds``, which has an entry for every distinct name."""
    met = distinct(frames)
    for code in met[kinds[met] == _UNKNOWN].tolist():
        name = names[code]
        kinds[code] = _PROFILER if _frames.is_profiler(name) else _USER if _frames.is_user(name) else _OTHER

"""Replays the captured step without the profiler, and with a change.

A trace becomes a graph of host calls, waits and device work (:mod:`.graph`, made by :mod:`.build`). Replaying it
(:mod:`.replay`) with host time corrected for profiler overhead, and with a change (:class:`Edit`), gives the resulting
step time. Changes are made by rules and by the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Ints

_NO_ROWS: Ints = np.empty(0, dtype=np.int64)
_NO_FLOATS: Floats = np.empty(0, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class HostTime:
    """Stretches of host threads that keep a share of their time; arrays of shape ``(k,)``."""

    tracks: Ints = field(default_factory=_NO_ROWS.copy)  # thread of each
    starts: Ints = field(default_factory=_NO_ROWS.copy)  # captured ns
    ends: Ints = field(default_factory=_NO_ROWS.copy)  # captured ns
    keep: Floats = field(default_factory=_NO_FLOATS.copy)  # share of its time that remains, 0 to 1

    @classmethod
    def of(cls, trace: Trace, rows: Ints, keep: float | Floats = 0.0) -> HostTime:
        """Return the time of some host events, of which a share remains."""
        tracks = trace.track_codes[rows].astype(np.int64)
        return cls(tracks, trace.starts[rows], trace.ends[rows], np.full(len(rows), keep))


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """A change to a captured step, in terms of its trace."""

    #: Rows of calls that no longer wait, and of collectives that no longer wait for other ranks
    waits: Ints = field(default_factory=_NO_ROWS.copy)
    host: HostTime = field(default_factory=HostTime)  # host time that shrinks
    work: Ints = field(default_factory=_NO_ROWS.copy)  # rows of device work that shrinks
    #: Share of the time of each of ``work`` that remains; at 0 it is not launched
    keep: Floats = field(default_factory=_NO_FLOATS.copy)

    @classmethod
    def of_host(cls, trace: Trace, rows: Ints, keep: float | Floats = 0.0) -> Edit:
        """Return the change in which host events keep a share of their time."""
        return cls(host=HostTime.of(trace, rows, keep))

    @classmethod
    def of_work(cls, rows: Ints, keep: float | Floats = 0.0) -> Edit:
        """Return the change in which device work keeps a share of its time."""
        return cls(work=rows, keep=np.full(len(rows), keep))

    def __or__(self, other: Edit) -> Edit:
        """Return both changes as one; where both shrink the same time, the smaller result counts."""
        return Edit.all_of((self, other))

    @classmethod
    def all_of(cls, edits: Iterable[Edit]) -> Edit:
        """Return several changes as one; where they shrink the same time, the smallest result counts."""
        every = [edit for edit in edits if len(edit.waits) or len(edit.work) or len(edit.host.starts)]
        if len(every) == 1:  # not copied: some are as long as the trace
            return every[0]
        every = [cls(), *every]
        return cls(
            np.concatenate([edit.waits for edit in every]),
            HostTime(
                *(np.concatenate([getattr(edit.host, name) for edit in every]) for name in HostTime.__slots__)
            ),
            np.concatenate([edit.work for edit in every]),
            np.concatenate([edit.keep for edit in every]),
        )


class EditRange(NamedTuple):
    """A change that is known within limits."""

    likely: Edit
    least: Edit  # where it helps least
    most: Edit  # where it helps most

    @classmethod
    def exactly(cls, edit: Edit) -> EditRange:
        """Return a change without limits."""
        return cls(edit, edit, edit)

    @classmethod
    def over(cls, change: Callable[..., Edit], *figures: Iterable[Any]) -> EditRange:
        """Return the change that a function makes of figures, each given as likely, least and most helpful."""
        return cls(*(change(*each) for each in zip(*figures, strict=True)))

    def __or__(self, other: EditRange | Edit) -> EditRange:
        """Return both changes as one, within the limits of both."""
        return EditRange.all_of((self, other if isinstance(other, EditRange) else EditRange.exactly(other)))

    @classmethod
    def all_of(cls, ranges: Iterable[EditRange]) -> EditRange:
        """Return several changes as one, within the limits of all."""
        every = (cls.exactly(Edit()), *ranges)
        return cls(*(Edit.all_of(edits) for edits in zip(*every, strict=True)))

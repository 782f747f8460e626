"""The captures of a run: requested, armed, written and opened."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from tuiprof.session.live.fold import CaptureState
from tuiprof.session.live.hosts import common_step
from tuiprof.session.run import control
from tuiprof.session.store.folders import Session
from tuiprof.session.store.meta import TriggerRequest
from tuiprof.tui.live.moment import Moment
from tuiprof.tui.live.view import capture_words


class RunCaptures:
    """Past and pending captures of the shown run.

    Attributes:
        traces: Traces of the session.
        armed: Triggers of automatic captures.
        seen: Ids of the captures that were there when a trace was opened; they are not offered again.
        requested: Id and time (monotonic s) of the capture requested here, until the script answers.
    """

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self.traces: list[Path] = []
        self.armed: list[TriggerRequest] = []
        self.seen: set[str] = set()
        self.requested: tuple[str, float] | None = None

    @property
    def _session(self) -> Session:
        return self._moment.session

    @property
    def _all(self) -> dict[str, CaptureState]:
        return self._moment.run.fold.captures

    @property
    def newest(self) -> CaptureState | None:
        """The last requested capture."""
        return max(self._all.values(), key=lambda capture: capture.t_ns, default=None)

    @property
    def ready(self) -> bool:
        """A trace was captured that has not been opened yet."""
        return any(
            capture.state == "written" and capture.id not in self.seen for capture in self._all.values()
        )

    @property
    def can_arm(self) -> bool:
        """Steps are made, so that a slow one can be captured."""
        rank = self._moment.rank
        return self._moment.running and rank is not None and len(rank.steps) > 0

    def trace_of_step(self) -> Path | None:
        """Return the trace that covers the selected step; None = none does, or none is selected."""
        rank, selected = self._moment.rank, self._moment.selected
        if selected is None or rank is None:
            return None
        for capture in self._all.values():
            record = capture.by_writer.get(rank.name)
            if record is None or not record.path or record.first is None or record.last is None:
                continue
            if record.first <= selected <= record.last:
                return self._file(record.path)
        return None

    def newest_trace(self) -> Path | None:
        """Return a trace of the newest capture that wrote one."""
        written = (capture for capture in self._all.values() if capture.paths)
        newest = max(written, key=lambda capture: capture.t_ns, default=None)
        return self._file(newest.paths[0]) if newest is not None else None

    def _file(self, path: str) -> Path:
        """Return a file of the run from its path relative to the session; another host's lies beside that."""
        return Path(os.path.normpath(self._session.path / path))

    def titles(self) -> dict[Path, str]:
        """Return when, of which steps and why each trace was captured."""
        return {
            self._file(path): capture_words(capture)
            for capture in self._all.values()
            for path in capture.paths
        }

    def find_traces(self) -> None:
        """Look which traces the session has by now."""
        self.traces = self._session.all_traces()

    def mark_seen(self) -> None:
        """Offer none of the present captures again."""
        self.seen.update(self._all)

    def request(self, steps: int, *, stack: bool = False, shapes: bool = False, memory: bool = False) -> None:
        """Ask the script for a capture of its next steps.

        Raises:
            SessionError: The request cannot be made.
        """
        first = common_step(self._session, self._moment.run.fold)
        name = control.request_capture(self._session, steps, first, stack=stack, shapes=shapes, memory=memory)
        self.requested = name, time.monotonic()

    def update_armed(self) -> None:
        """Read the armed triggers; another viewer may have changed them."""
        self.armed = control.armed(self._session) if self._moment.running else []

    @property
    def armed_slow(self) -> TriggerRequest | None:
        """The trigger for slow steps."""
        return next((trigger for trigger in self.armed if trigger.every is None), None)

    @property
    def armed_every(self) -> TriggerRequest | None:
        """The trigger for every n steps."""
        return next((trigger for trigger in self.armed if trigger.every is not None), None)

    def arm_slow(self, limit_ns: float) -> None:
        """Capture after each step slower than this.

        Raises:
            SessionError: The request cannot be written.
        """
        control.arm(self._session, TriggerRequest(control.SLOW, above_ns=round(limit_ns)))

    def disarm_slow(self) -> None:
        """Capture no more after slow steps."""
        if self.armed_slow is not None:
            control.disarm(self._session, self.armed_slow.id)

    def arm_only(self, requests: Sequence[TriggerRequest]) -> None:
        """Replace the armed triggers with these.

        Raises:
            SessionError: A request cannot be written.
        """
        for trigger in self.armed:
            control.disarm(self._session, trigger.id)
        for request in requests:
            control.arm(self._session, request)

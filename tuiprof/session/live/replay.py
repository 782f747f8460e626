"""Feeds of a fold: from growing logs (live, attach), or by a clock (replay)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from tuiprof.session.live.fold import Fold
from tuiprof.session.live.tail import BLOCK, Batch, LogFile, LogReader
from tuiprof.session.log import DeviceStep, Head, Record, first_head
from tuiprof.session.store.folders import Session
from tuiprof.session.store.hosts import Log
from tuiprof.session.store.meta import Clock
from tuiprof.session.store.status import DELETED, Status, from_end, processes
from tuiprof.system.files import read_end, size_of
from tuiprof.system.process import Processes, alive

#: Bytes per background read, and the pause after each.
_CHUNK: Final = 1 << 20
_PAUSE_S: Final = 0.004
#: Delay of background reading, so that the first frame is drawn before.
_START_DELAY_S: Final = 1.5


class Live:
    """Follows a session while it is written, or reads a finished one.

    First it reads ``tail_bytes`` at the end of huge logs, then the whole logs in a thread; None = read from the start.
    """

    def __init__(self, session: Session, tail_bytes: int | None = None) -> None:
        self.session = session
        self.reader = LogReader(session, tail_bytes)
        self.fold = Fold(self.reader.clock)
        huge = tail_bytes is not None and any(
            size_of(log.path) > tail_bytes + BLOCK for log in session.logs()
        )
        self._background = _BackgroundReader(session) if huge else None
        self._processes: Processes | None = None
        self.processes()

    @property
    def behind(self) -> int:
        """Bytes of the logs that are not in the fold yet."""
        return self.reader.behind

    def advance(self, max_bytes: int = BLOCK) -> bool:
        """Process new records; return whether anything changed."""
        background = self._background
        if background is not None and background.done:
            self._background = None
            self.reader.close()
            self.reader, self.fold = background.live.reader, background.live.fold
        changed = self.fold.feed(self.reader.poll_batches(max_bytes))
        self.fold.problems = self.reader.problems
        return changed or background is not self._background

    def catch_up(self) -> None:
        """Process all records written so far."""
        while self.advance() or self.behind:
            pass

    def processes(self) -> Processes | None:
        """Return the ids of recorder and script, even after the session is deleted; None = not started."""
        self._processes = processes(self.session) or self._processes
        return self._processes

    def status(self) -> Status:
        """Return the status of the session; if it was deleted, from its logs, which are still open."""
        who = self.processes()
        status = self.session.status()
        if not self._is_deleted():  # looked at after the status, which is wrong if read amid a deletion
            return status
        runs = who is not None and any(map(alive, filter(None, (who.supervisor, who.script))))
        self.catch_up()
        if self.fold.end is not None:
            return replace(from_end(self.fold.end), detail=DELETED)
        return Status("running" if runs else "interrupted", detail=DELETED)

    def _is_deleted(self) -> bool:
        """Whether files are gone that were there: a deletion takes one by one, and the recorder writes some anew."""
        return (
            not os.path.exists(self.session.path)  # a folder that may no longer be read counts as gone
            or self.reader.has_lost_logs
            or (self._processes is not None and processes(self.session) is None)
        )

    @property
    def read_share(self) -> float:
        """Share of the logs in the fold, 0 to 1."""
        return min(0.99, self._background.share) if self._background is not None else 1.0

    def close(self) -> None:
        """Close the files."""
        if self._background is not None:
            self._background.stop()
            self._background = None
        self.reader.close()


class _BackgroundReader:
    """Reads a whole session in a thread, in chunks, so that the screen stays responsive."""

    def __init__(self, session: Session) -> None:
        self.live = Live(session)  # used only by the thread until :attr:`done`
        self.done = False
        self.share = 0.0  # of the logs that was read
        self._total = sum(size_of(log.path) for log in session.logs())
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reading-session", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self.live.close()

    def _run(self) -> None:
        if self._stopped.wait(_START_DELAY_S):
            return
        while self.live.advance(_CHUNK):
            self.share = max(0.0, 1 - self.live.reader.behind / max(1, self._total))
            # Decoding holds the GIL; pause so that the screen can draw.
            if self._stopped.wait(_PAUSE_S):
                return
        self.done = True


def read_fold(session: Session) -> Fold:
    """Return the state of a session from all its complete log lines."""
    with closing(Live(session)) as live:
        live.catch_up()
        return live.fold


class _TimedLog:
    """Reads one log up to a session time."""

    def __init__(self, log: Log, start_ns: int = 0) -> None:
        self.file = file = LogFile(log.path)
        self._log = log
        self._offset_ns = log.clock.offset_ns(first_head(log.path))
        self._waiting: list[Record] = file.skip_to(start_ns - self._offset_ns, KEEP_BYTES)
        self._next = 0
        self._last_t_ns = 0

    def is_far_from(self, t_ns: int) -> bool:
        """Return whether a later time is so far away that starting again near it is faster."""
        return self.file.behind > KEEP_BYTES and (
            self.file.position_of(t_ns - self._offset_ns) - self.file.position > KEEP_BYTES + BLOCK
        )

    def take(self, until_ns: int, max_bytes: int) -> Batch:
        """Return the next records up to a time; records without a time belong to the one before."""
        taken: list[Record] = []
        while True:
            if self._next >= len(self._waiting):
                self._waiting, self._next = self.file.read(max_bytes), 0
                if not self._waiting:
                    return Batch(self._log.writer, taken, self._log)
            for index in range(self._next, len(self._waiting)):
                if self._t_ns(self._waiting[index]) > until_ns:
                    taken += self._waiting[self._next : index]
                    self._next = index
                    return Batch(self._log.writer, taken, self._log)
            taken += self._waiting[self._next :]
            self._next = len(self._waiting)

    def _t_ns(self, record: Record) -> int:
        if isinstance(record, Head):
            self._offset_ns = self._log.clock.offset_ns(record)
            self._last_t_ns = record.mono_ns + self._offset_ns
        elif not isinstance(record, DeviceStep):
            self._last_t_ns = record.at + self._offset_ns
        return self._last_t_ns


class Replay:
    """Feeds a fold by a clock that can be paused, sped up and set; ``speed`` is session seconds per second.

    After a seek, the fold has only the records shortly before that time (:data:`KEEP_BYTES` of each log), so that
    seeking is fast in a run of any length.
    """

    def __init__(
        self, session: Session, speed: float = 1.0, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.session = session
        self._now_s = now_s
        self._speed = speed
        self._paused = False
        self._anchor_s = now_s()  # time at which the position was _anchor_ns
        self._anchor_ns = 0
        self._fed_ns = -1
        self._clock = Clock(session.meta)
        self._logs: dict[str, _TimedLog] = {}
        self.fold = Fold(self._clock)  # the state at :attr:`position_ns`; another object after a seek
        self.duration_ns = _span_ns(session)  # session time of the last record

    @cached_property
    def times_output(self) -> bool:
        """Whether the recorder logged when the script printed, which older versions did not."""
        # It is logged with the first reading after the first output, and every minute.
        return b'{"t":"out"' in read_end(self.session.log / "recorder.jsonl", KEEP_BYTES)

    @property
    def position_ns(self) -> int:
        """Session time shown."""
        if self._paused:
            return self._anchor_ns
        passed_ns = int((self._now_s() - self._anchor_s) * 1e9 * self._speed)
        return min(self._anchor_ns + passed_ns, self.duration_ns)

    @property
    def speed(self) -> float:
        """Session seconds per second."""
        return self._speed

    @speed.setter
    def speed(self, value: float) -> None:
        self._anchor()
        self._speed = value

    @property
    def paused(self) -> bool:
        """Whether the clock is stopped."""
        return self._paused

    @paused.setter
    def paused(self, value: bool) -> None:
        self._anchor()
        self._paused = value

    def extend(self) -> None:
        """Extend the duration by what a running session has recorded since."""
        self.duration_ns = max(self.duration_ns, _span_ns(self.session))

    @property
    def over(self) -> bool:
        """Whether the clock has reached the end."""
        return self.position_ns >= self.duration_ns

    def seek(self, t_ns: int) -> None:
        """Set the clock to a session time."""
        self._anchor_s, self._anchor_ns = self._now_s(), max(0, min(t_ns, self.duration_ns))
        if self._anchor_ns < self._fed_ns or any(
            log.is_far_from(self._anchor_ns) for log in self._logs.values()
        ):
            self.close()
            self._logs.clear()
            self.fold = Fold(self._clock)
            self._fed_ns = -1

    def advance(self, max_bytes: int = BLOCK) -> bool:
        """Feed the records that are due; return whether anything changed."""
        until_ns = self.position_ns
        if until_ns <= self._fed_ns and self._fed_ns < self.duration_ns:
            return False
        for log in self.session.logs():
            if log.writer not in self._logs:
                self._logs[log.writer] = _TimedLog(log, until_ns)
        # At the end, records with later times are due too.
        limit_ns = until_ns if until_ns < self.duration_ns else _FOREVER
        self._fed_ns = until_ns
        return self.fold.feed([log.take(limit_ns, max_bytes) for log in self._logs.values()])

    def close(self) -> None:
        """Close the files."""
        for log in self._logs.values():
            log.file.close()

    def _anchor(self) -> None:
        self._anchor_ns, self._anchor_s = self.position_ns, self._now_s()


_FOREVER: Final = 1 << 62
#: Bytes to read from each log before the target of a seek: about thirty thousand steps.
KEEP_BYTES: Final = 4 << 20


def _span_ns(session: Session) -> int:
    """Return the session time of the last record."""
    latest = 0
    for log in session.logs():
        file = LogFile(log.path)
        records = file.skip_to_end(1 << 16)
        while found := file.read():
            records += found
        file.close()
        head = next((record for record in records if isinstance(record, Head)), None)
        offset_ns = log.clock.offset_ns(head)
        times = [record.at for record in records if not isinstance(record, (Head, DeviceStep))]
        latest = max(latest, max(times, default=-offset_ns) + offset_ns)
    return latest

"""Following a run without a screen: progress on stderr, signals passed on."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from tuiprof.cli.common import say
from tuiprof.model.units import format_count, format_ns
from tuiprof.report.sanitize import sanitize
from tuiprof.session.live.replay import Live
from tuiprof.session.run.control import stop_unless_over
from tuiprof.session.store.output import Tee, trouble
from tuiprof.system import own_process

if TYPE_CHECKING:
    from tuiprof.session.live.fold import Fold
    from tuiprof.session.store.folders import Session
    from tuiprof.session.store.status import Status

_POLL_S: Final = 0.1
#: Without a terminal a line of progress is written this often.
_PLAIN_EVERY_S: Final = 10.0


@contextlib.contextmanager
def signals_kept() -> Iterator[Sequence[int]]:
    """Keep SIGINT, SIGTERM and, unless under ``nohup``, SIGHUP for :func:`follow`; yields those that have come, in
    order.

    It goes around the launch, too: the script has a session of its own and would not hear of a Ctrl-C that ends this
    process just when it has been started.
    """
    asked: list[int] = []

    with own_process.signals_kept(lambda number, frame: asked.append(number)):
        yield asked


def follow(session: Session, asked: Sequence[int], *, tee: bool = False, quiet: bool = False) -> Status:
    """Wait for the end of a run and return how it ended; a status that is not ``over`` when the terminal went away.

    SIGINT and SIGTERM stop the script politely; a second one kills it. SIGHUP (the terminal went away) leaves it
    running.
    """
    feed = Live(session)
    feed.advance()  # its logs are open from now on: how the run ends is known even if the session is deleted
    passed_on = Tee(session, sys.stdout.buffer, sys.stderr.buffer) if tee else None
    show = _progress(session, quiet or tee)
    stopped = 0
    look_s, problem = 0.0, ""
    try:
        while True:
            status = feed.status()  # before the last read: what was written until then is read below
            feed.advance()
            if passed_on is not None:
                passed_on.pump()
            if time.monotonic() >= look_s:
                look_s, problem = time.monotonic() + 1.0, trouble(session)
            # Where progress goes may be a terminal that is gone, under nohup, or a file on a full disk.
            with contextlib.suppress(OSError):
                show(feed.fold, problem)
            if status.over and not feed.behind:
                return status
            if signal.SIGHUP in asked:
                return status
            if len(asked) > stopped and not status.over:
                stopped = len(asked)
                stop_unless_over(session, sig=asked[-1], firm=stopped > 1, known=feed.processes())
                with contextlib.suppress(OSError):
                    say(
                        "stopping the script; press again to kill it"
                        if stopped == 1
                        else "killing the script"
                    )
            time.sleep(_POLL_S)
    finally:
        with contextlib.suppress(OSError):
            show(None, "")
        feed.close()
        if passed_on is not None:
            passed_on.close()


def _progress(session: Session, quiet: bool) -> Callable[[Fold | None, str], None]:
    """Return what shows progress: a bar on a terminal, a line now and then elsewhere, nothing if quiet."""
    if quiet:
        return lambda fold, problem: None
    if sys.stderr.isatty():
        return _Bar(session)
    return _Plain(session)


def _told(fold: Fold, problem: str) -> str:
    """Return progress in a few words, or what keeps it from being recorded."""
    if problem:
        return sanitize(problem)
    lead = fold.lead
    if lead is None or not len(lead.steps):
        return "no step yet"
    stats = lead.steps.stats(lead.steps.since(10_000_000_000))
    words = [f"step {format_count(lead.steps.last_n)}"]
    if stats.count:
        words.append(f"{format_ns(stats.median_ns)} a step")
    words += [
        f"capture {capture.state}" + (f" ({capture.why})" if capture.why else "")
        for capture in fold.captures.values()
    ]
    return " · ".join(words)


class _Plain:
    """A line now and then, for logs of batch systems."""

    def __init__(self, session: Session) -> None:
        self._next_s = time.monotonic() + _PLAIN_EVERY_S
        say(f"recording {session.title} into {session.path}")

    def __call__(self, fold: Fold | None, problem: str) -> None:
        if fold is not None and time.monotonic() >= self._next_s:
            self._next_s += _PLAIN_EVERY_S
            say(f"{format_ns(fold.now_ns)} · {_told(fold, problem)}")


class _Bar:
    """A line that stays in place on a terminal."""

    def __init__(self, session: Session) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[told]}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(
            f"recording {sanitize(session.title)}", total=None, told="starting"
        )
        self._progress.start()

    def __call__(self, fold: Fold | None, problem: str) -> None:
        if fold is None:
            self._progress.stop()
        else:
            self._progress.update(self._task, told=sanitize(_told(fold, problem)))

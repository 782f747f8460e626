"""The headline of a trace: the source line that makes the host wait, and its cost.

For screens that show many traces or must stay responsive: :func:`ask` works it out in a process of its own, whose
memory and imports go with it, and keeps the answer in the user's cache directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tuiprof import __version__
from tuiprof.errors import SessionError, TraceError, TuiprofError
from tuiprof.system.described import described
from tuiprof.system.files import read_small_json, write_atomic
from tuiprof.system.own_process import (
    bound_threads,
    exit_with_parent,
    lifeline,
    module_command,
    module_environment,
)

if TYPE_CHECKING:
    from tuiprof.advice.pricing import Priced
    from tuiprof.model import Trace

#: A trace that takes longer to read has to be opened by hand.
PATIENCE_S: Final = 300.0
#: Time between two checks whether another process has answered.
_POLL_S: Final = 0.1
#: Analyses whose verdict is shown where the syncs are harmless or there is no device, in this order. Without a finding,
#: the advice may name something to try.
_OTHERS: Final = ("kernel_launches", "device_idle", "data_loading", "advice")
#: From this share of the step on, what can be saved is bad; from the lower one on, a warning.
_BAD_SHARE, _WARN_SHARE = 0.05, 0.01


class Headline(msgspec.Struct, frozen=True):
    """What a trace says first."""

    line: str = ""  # it, as short as possible; holds names from the trace, so untrusted
    level: str = "info"  # ``good``, ``info``, ``warn`` or ``bad``
    analysis: str = ""  # the analysis that tells more
    syncs_per_step: float | None = None  # syncs per step; None = unknown
    problem: str = ""  # why the trace says nothing; empty = it does
    #: It is about the last steps of the run, although the captured ones are unlike them.
    of_last_steps: bool = False
    #: The session's long steps are those in which the host waits for what it launched in the others.
    awaits_others: bool = False


def headline(trace: Trace) -> Headline:
    """Return what a trace says first."""
    from tuiprof.advice import priorities
    from tuiprof.analyses import run
    from tuiprof.analyses.shared.changes import figure_of
    from tuiprof.analyses.shared.replay import awaited_together, replayed, stands_for_last_steps
    from tuiprof.model.report import Report, most_important

    syncs = run("sync_events", trace)
    # Without device activity blocking copies are not recognised, and a count of syncs would be too low.
    count = figure_of(syncs, "syncs_per_step") if trace.device_indices else None
    step, found = replayed(trace), priorities(trace)
    if found.findings and not isinstance(step, str):
        line, level = _finding_line(found.findings[0], found.step_ns)
        return Headline(line, level, "advice", count, of_last_steps=stands_for_last_steps(trace))
    names = ("sync_events", *_OTHERS) if trace.device_indices else ("sync_events", "kernels", *_OTHERS)
    first = most_important(answer for name in names if isinstance(answer := run(name, trace), Report))
    if first is None:
        return Headline(problem="no analysis is available for this trace")
    awaits = awaited_together(trace) is not None
    return Headline(first.verdict.sentence, first.verdict.level, first.analysis, count, awaits_others=awaits)


def _finding_line(first: Priced, step_ns: float | None) -> tuple[str, str]:
    """Return ``saves about 1.4 ms of 28.0 ms (5 %): a metric asks the device … · aggregation.py:93`` and how bad it is.

    The step is named, as it need not be the median of the session, which is shown beside it.
    """
    from tuiprof.model.units import format_ns, format_rough_share

    where = f" · {first.finding.where}" if first.finding.where else ""
    if first.win is None:
        return f"{first.finding.what}{where}", "bad"
    share = first.share or 0.0
    of = f" of {format_ns(step_ns)}" if step_ns is not None else ""
    level = "bad" if share >= _BAD_SHARE else "warn" if share >= _WARN_SHARE else "info"
    return (
        f"saves about {format_ns(first.win.ns)}{of} ({format_rough_share(share)}): {first.finding.what}{where}",
        level,
    )


def ask(path: Path, cancelled: Callable[[], bool] = lambda: False) -> Headline:
    """Return what a trace says first: from the cache, else worked out in another process. May take long.

    Of several screens that ask at the same time one starts the process, and the others read its answer.
    """
    kept = _kept_at(path)
    if kept is None:
        return _work_out(path, cancelled)
    if (known := read_small_json(kept, Headline)) is not None:
        return known
    with _turn(kept, cancelled):
        if (
            known := read_small_json(kept, Headline)
        ) is not None:  # another process has worked it out meanwhile
            return known
        found = _work_out(path, cancelled)
        if not found.problem:
            with contextlib.suppress(OSError, SessionError):  # it is worked out again next time
                write_atomic(kept, msgspec.json.encode(found))
    return found


@contextlib.contextmanager
def _turn(kept: Path, cancelled: Callable[[], bool]) -> Iterator[None]:
    """Wait while another thread or process computes the same; continue without a lock, or if that hangs."""
    lock = kept.with_suffix(".lock")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (held := _locked(file)) and not cancelled() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        yield
        if held:  # who still has it open finds the answer, as does who comes later
            with contextlib.suppress(OSError):
                lock.unlink()
    finally:
        os.close(file)


def _locked(file: int) -> bool:
    """Take a lock; False = it is held elsewhere. On a file system without locks it is always taken."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _work_out(path: Path, cancelled: Callable[[], bool]) -> Headline:
    """Return what a trace says first, as another process finds."""
    try:
        with (
            lifeline() as stdin,
            subprocess.Popen(
                module_command("tuiprof.comparison.headline", os.path.abspath(path)),
                env=module_environment(),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ) as process,
        ):
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline and not cancelled():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    written, _ = process.communicate(timeout=_POLL_S)
                    return msgspec.json.decode(written, type=described(Headline))
            process.kill()
    except (OSError, msgspec.MsgspecError):
        return Headline(problem="it cannot be read here: open it to see why")
    return Headline(problem="cancelled" if cancelled() else f"it takes more than {PATIENCE_S:.0f} s to read")


def _kept_at(path: Path) -> Path | None:
    """Return where the headline of a file is kept; None when the cache is switched off or the file is gone."""
    from tuiprof.formats.cache import root

    folder = root()
    try:
        status = path.stat()
    except OSError:
        return None
    if folder is None:
        return None
    identity = (
        *(__version__, str(path.resolve()), status.st_ino, status.st_size, status.st_mtime_ns),
        _is_of_ended_run(path),  # steps after the capture tell more of it
    )
    name = hashlib.blake2b(repr(identity).encode(), digest_size=16).hexdigest()
    return folder.with_name(folder.name + "-headlines") / f"{name}.json"


def _is_of_ended_run(path: Path) -> bool:
    """Return whether a trace is of a session that has ended."""
    from tuiprof.session.store.folders import Session

    folder = next((parent.parent for parent in path.parents if parent.name == "traces"), None)
    if folder is None or not (folder / "session.json").is_file():
        return False
    with contextlib.suppress(SessionError):
        return Session(folder).status().over
    return False


def main(path: Path) -> None:
    """Write the headline of a trace to standard output as JSON."""
    from tuiprof.formats import open_trace

    try:
        found = headline(open_trace(path))
    except (TuiprofError, OSError) as error:
        found = Headline(problem=error.message if isinstance(error, TraceError) else str(error))
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    bound_threads()
    exit_with_parent()
    main(Path(sys.argv[1]))

"""The log file of this process, its JSON lines, and the thread that writes them.

The file is created at the first step and only ever appended to, whole batches of lines with one ``write``: a
process that is killed leaves at most a partial last line. On a full disk the log stops with one line on stderr, and
the script continues. ``tuiprof/session/log.py`` has the fields of the lines.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import BuiltinImporter, PathFinder
from importlib.util import module_from_spec
from itertools import groupby
from json import dumps
from operator import itemgetter
from typing import Any, Callable

from .assembly import Step, phases_of
from .events import CAPTURE, COST, DEVICE, LINES, MEMORY, NOTE, RECORD, SLOWER, USES
from .isolation import ClosedByScript, OwnFile, ProbeThread, raised_by_signal_handler
from .slowdown import Slowdown, SlowdownWatch
from .steps.counting import Steps
from .steps.sources import OPTIMIZER

SCHEMA_VERSION = 1
FLUSH_S = 0.1
_SLOW_NS = 1_000_000_000  # slowly changing values are written this often, ns
_HOLD_NS = 2_000_000_000  # the first step is held this long, ns: see Assembly.completes_last
#: Half of a character, as in a path that is not UTF-8, which is no JSON.
_HALF = re.compile(r"\\ud[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..)\\ud[c-f]..")
_FORMS: dict[tuple[str, ...], str] = {}  # names of the phases of a step -> its line
_MAX_FORMS = 1000
#: Name and fields of the lines whose items hold just these.
_FIELDS = {
    MEMORY: ("mem", "at", "dev", "alloc", "reserved", "peak"),
    USES: ("uses", "at", "dev", "uuid", "pci"),
    COST: ("cost", "at", "steps", "ns", "flush_ns"),
    NOTE: ("note", "at", "level", "text"),
}


def step_line(
    n: int,
    at: int,
    dur: int,
    phases: dict[str, int],
    metrics: dict[str, float] | None,
    captured: bool,
    collections: tuple[int, int] | None = None,
) -> str:
    """Return the JSON line of a step, newline included."""
    names = tuple(phases)
    form = _FORMS.get(names) or _form(names)
    text = form % (n, at, dur, *phases.values())
    if collections is not None:
        text += f',"gc":[{collections[0]},{collections[1]}]'
    if metrics:
        text += f',"v":{dumps(metrics)}'
    return text + (',"cap":true}\n' if captured else "}\n")


def _form(names: tuple[str, ...]) -> str:
    """Return the line of a step with these phases, numbers left open; nearly all steps of a script have the same."""
    form = '{"t":"step","n":%d,"at":%d,"dur":%d'
    if names:
        form += ',"ph":{' + ",".join([dumps(str(name)).replace("%", "%%") + ":%d" for name in names]) + "}"
    if len(_FORMS) < _MAX_FORMS:
        _FORMS[names] = form
    return form


def line(item: tuple[Any, ...]) -> str:
    """Return the JSON line of one tuple, newline included.

    Its kind comes first: ``DEVICE, n, dur, every`` · ``MEMORY, at, device, allocated, reserved, peak`` ·
    ``USES, at, device, uuid, pci`` · ``COST, at, steps, ns, flush_ns`` · ``SLOWER, at, slowdown`` ·
    ``LINES, at, samples, lines, ns`` · ``CAPTURE, fields`` · ``RECORD, fields`` · ``NOTE, at, level, text``.
    Times in ns, sizes in bytes.
    """
    what, *values = item
    if what == DEVICE:  # one a step
        n, dur, every = values
        return f'{{"t":"dev","n":{n},"dur":{dur}' + (f',"every":{every}}}\n' if every > 1 else "}\n")
    fields: dict[str, Any]
    if what == RECORD:
        fields = values[0]
    elif what == CAPTURE:
        fields = {"t": "capture", **values[0]}
    elif what == SLOWER:
        at, found = values
        times = {"before": round(found.before_ns), "after": round(found.after_ns)}
        fields = {"t": "slower", "at": at, "first": found.first, "last": found.last, **times}
    elif what == LINES:
        at, samples, seen, ns = values
        top, doing = [entry[:3] for entry in seen], [entry[3] for entry in seen]
        fields = {"t": "lines", "at": at, "samples": samples, "top": top, "doing": doing, "ns": ns}
    else:
        name, *keys = _FIELDS[what]
        fields = {"t": name, **dict(zip(keys, values))}
    return dumps(fields) + "\n"


def _standard_resource() -> Any:
    """Return the standard library's ``resource`` without importing it: the script may have a module of this name."""
    folder = os.path.join(os.path.dirname(os.__file__), "lib-dynload")
    spec = BuiltinImporter.find_spec("resource") or PathFinder.find_spec("resource", [folder])
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_RESOURCE = _standard_resource()


def usage(thread: int | None) -> list[tuple[Any, ...]]:
    """Return a record of what this process has used so far: CPU time, also of a thread, and page faults without reads.

    Empty where the system does not tell.
    """
    if _RESOURCE is None:
        return []
    used = _RESOURCE.getrusage(_RESOURCE.RUSAGE_SELF)
    cpu = {
        "user_ns": int(used.ru_utime * 1e9),
        "system_ns": int(used.ru_stime * 1e9),
        **_thread_usage(thread),
    }
    return [(RECORD, {"t": "usage", "at": time.monotonic_ns(), "faults": used.ru_minflt, **cpu})]


def _thread_usage(thread: int | None) -> dict[str, int]:
    """Return the CPU time of a thread of Python, as a field; none where the system does not tell."""
    # Not by its CPU clock: to ask for that of a thread that has ended is undefined.
    known = threading._active.get(thread)  # type: ignore[attr-defined]
    path = f"/proc/self/task/{known.native_id if known else 0}/schedstat"
    with suppress(OSError, ValueError, IndexError), open(path, "rb") as file:
        return {"thread_ns": int(file.read(100).split()[0])}
    return {}


def plain_numbers(metrics: dict[str, Any]) -> tuple[dict[str, float] | None, list[tuple[str, str]]]:
    """Return the metrics that can be written, and name and reason of the others.

    A device tensor is never read: that would make the host wait for the device.
    """
    good: dict[str, float] = {}
    bad: list[tuple[str, str]] = []
    for name, value in metrics.items():
        number = value
        if type(value) is not float:
            try:
                device = None if type(value) is int else getattr(value, "device", None)
                if device is not None and getattr(device, "type", device) != "cpu":
                    bad.append((name, "it is on a device, and reading it would block the host"))
                    continue
                number = float(value)
            except Exception as error:  # values of any kind
                if raised_by_signal_handler(error):
                    raise
                bad.append((name, f"a {type(value).__name__} is not a number, or too large for a float"))
                continue
        if math.isfinite(number):
            good[name] = value if type(value) is int else number
        else:
            bad.append((name, f"it is {number}"))
    return good or None, bad


class Log:
    """Appends the lines of one process to a file of its own.

    ``inside`` says whether the script is inside one of its own phases; ``poll`` looks for requests at every flush, in
    the log's thread.
    """

    def __init__(
        self, folder: str, steps: Steps, inside: Callable[[], bool], poll: Callable[[], None]
    ) -> None:
        self._folder = folder
        self._steps = steps
        self._inside = inside
        self._poll = poll
        self.writer = ""  # name of the file without its ending; empty = not open
        #: Is given the steps that are about to be written.
        self.on_steps: Callable[[list[Step]], None] = lambda steps: None
        #: Returns the record of what garbage collections took until now, when a step runs; None = nothing is known.
        self.garbage: Callable[[int, int], dict[str, Any] | None] = lambda now, n: None
        self.on_close: Callable[[], None] = lambda: None
        #: Returns the number of samples of the main thread, the lines seen most, and what the samples cost, ns.
        self.sampled: Callable[[], tuple[int, list[tuple[str, int, int, str]], int]] = lambda: (0, [], 0)
        self._file: OwnFile | None = None
        self._thread: ProbeThread | None = None
        self._wake = threading.Event()
        self._stop = False
        self._flush_lock = threading.Lock()
        self._flush_ns = 0
        self._opened_at = 0
        self._slow_at = 0
        self._slowdown = SlowdownWatch()
        self._slowdown_told = False
        self._kept = -1  # number of the step that was kept back at the last flush; -1 = none

    # -- the file -------------------------------------------------------------------------------------------

    def open(
        self,
        name: str,
        rank: int | None,
        world: int | None,
        versions: dict[str, str],
        process: str = "",
        job: dict[str, str] | None = None,
        machine: dict[str, str] | None = None,
    ) -> None:
        """Create the file and write its first line.

        A name that exists already belongs to another process, living or dead; this one then adds its process
        number, because two processes in one file would mix their steps. ``rank`` None = not one of several; ``job``
        identifies the distributed run, ``machine`` the host it runs on (fields ``boot`` and ``host`` of the head).

        Raises:
            OSError: The file cannot be created.
        """
        tries = [name, f"{name}-{os.getpid()}"] + [f"{name}-{os.getpid()}-{i}" for i in range(2, 100)]
        for candidate in tries:
            try:
                file = OwnFile(os.path.join(self._folder, candidate + ".jsonl"))
            except FileExistsError:
                continue
            break
        else:
            raise FileExistsError(f"{self._folder}/{name}-*.jsonl")
        opened_at = time.monotonic_ns()
        head = {
            "t": "head",
            "v": SCHEMA_VERSION,
            "writer": candidate,
            "pid": os.getpid(),
            "unix_ns": time.time_ns(),
            "mono_ns": opened_at,
            "rank": rank,
            "world": world,
            "python": ".".join(map(str, sys.version_info[:3])),
            "versions": versions,
            "process": process,
            **({"job": job} if job else {}),
            **(machine or {}),
        }
        self._file, self.writer, self._opened_at = file, candidate, opened_at
        self._write(dumps(head) + "\n")

    def _write(self, text: str) -> None:
        """Append text; on failure close the log, report it once, and stop recording."""
        if self._file is None or not text:
            return
        try:
            if "\\ud" in text:
                text = _HALF.sub(r"\\ufffd", text)
            self._file.append(text.encode("ascii"))  # json escapes everything else
        except ClosedByScript:
            self.close()  # silently: standard error may be a file of the script by now
        except OSError as error:
            self.close()
            with suppress(OSError, ValueError):  # stderr is closed or on the same full disk
                sys.stderr.write(f"tuiprof: recording stopped, the script keeps running: {error}\n")

    def close(self) -> None:
        """Close the file; later lines are dropped."""
        self.on_close()
        self._steps.silence()
        self.forget()

    def forget(self) -> None:
        """Close the parent's file silently (in a forked child)."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    @property
    def is_open(self) -> bool:
        """Whether lines reach the file."""
        return self._file is not None

    # -- the thread -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread that writes every :data:`FLUSH_S` seconds, unless it runs."""
        if self._thread is not None and self._thread.is_alive:
            return
        self._stop = False
        self._wake.clear()
        self._thread = ProbeThread(self._run)
        self._thread.start()

    def pause(self) -> bool:
        """Stop the thread, for example before a fork; return whether it was running."""
        thread, self._thread = self._thread, None
        if thread is None or thread.is_current:
            return False
        self._stop = True
        self._wake.set()
        thread.join(2.0)
        return True

    def _run(self) -> None:
        while not self._stop:
            self._wake.wait(FLUSH_S)
            if not self._stop:
                try:
                    self.flush()
                    self._poll()
                except Exception as error:
                    self._write(
                        line((NOTE, time.monotonic_ns(), "bad", f"the probe's log failed: {error!r}"))
                    )
                    self.close()
            if not self.is_open:
                return

    def flush(self, final: bool = False) -> None:
        """Write the collected lines."""
        with self._flush_lock:
            now = time.monotonic_ns()
            steps = self._steps
            if not final and steps.n <= 1 and steps.source == OPTIMIZER and now - self._opened_at < _HOLD_NS:
                return
            steps.assembly.take(steps.marks)
            if steps.assembly.steps or steps.assembly.sources or steps.out or final:
                lines = [*self._source_lines(), *self._step_lines(final)]
                if final or now - self._slow_at >= _SLOW_NS:
                    self._slow_at = now
                    steps.out.extend(self._slow(now))
                self._write("".join([*lines, *map(line, self._others())]))
                self._tell_slowdown(final)
            self._flush_ns = _thread_cpu_ns(self._thread) or self._flush_ns

    def _source_lines(self) -> list[str]:
        """Return the lines that say what a step is; they precede the steps that they apply to."""
        assembly = self._steps.assembly
        sources, assembly.sources = assembly.sources, []
        if any(source[3] for source in sources):
            self._slowdown = SlowdownWatch()
            self._kept = -1
        fields = ("at", "what", "where", "withdrawn", "missed", "missed_ns")
        return [dumps({"t": "source", **dict(zip(fields, source))}) + "\n" for source in sources]

    def _step_lines(self, final: bool) -> list[str]:
        """Return the lines of the steps that are complete.

        The newest is kept back once where a phase of the script is open: its optimizer may have stepped inside,
        and then the step ends with the phase (see :class:`.assembly.Assembly`).
        """
        assembly = self._steps.assembly
        n = assembly.ended - 1
        keep_last = not final and bool(assembly.steps) and n != self._kept and self._inside()
        self._kept = n if keep_last else -1
        lines: list[str] = []
        steps = assembly.complete(keep_last)
        self.on_steps(steps)
        for captured, group in groupby(steps, key=itemgetter(6)):
            found = list(group)
            if captured:
                self._slowdown.captured([step[0] for step in found])
            else:
                self._slowdown.plain([step[2] for step in found])
        for number, at, dur, began, parts, metrics, captured in steps:
            collections = assembly.collections.pop(number, None)
            lines.append(step_line(number, at, dur, phases_of(began, parts), metrics, captured, collections))
        return lines

    def _others(self) -> Iterator[tuple[Any, ...]]:
        """Process only the marks present now: the script may be faster than this loop."""
        out = self._steps.out
        for _ in range(len(out)):
            item = out.popleft()
            if item[0] == CAPTURE and item[1]["state"] == "written":
                self._slowdown.written()
            yield item

    def _tell_slowdown(self, final: bool) -> None:
        """Record that steps take longer since a capture, once that is certain."""
        found = self._slower()
        if found is not None and not self._slowdown_told and (final or self._slowdown.is_settled):
            self._slowdown_told = True
            self._write(line((NOTE, time.monotonic_ns(), "info", str(found))))

    def _slower(self) -> Slowdown | None:
        """Return the capture since which steps take longer, of a process that uses an accelerator; None = none."""
        device = self._steps.device
        return self._slowdown.found if device is not None and device.is_used else None

    def _slow(self, now: int) -> list[tuple[Any, ...]]:
        """Return slowly changing values: the probe's own cost, CPU time, slowdowns since captures, the allocator's."""
        steps = self._steps
        device = steps.device
        assembly = steps.assembly
        cost_ns = assembly.cost_ns + (0 if device is None else device.cost_ns)
        items: list[tuple[Any, ...]] = [
            (LINES, now, *self.sampled()),
            (COST, now, assembly.cost_steps, cost_ns, self._flush_ns),
            *usage(self._steps.thread),
        ]
        if (garbage := self.garbage(now, steps.n)) is not None:
            items.append((RECORD, garbage))
        if (slower := self._slower()) is not None:
            items.append((SLOWER, now, slower))
        if device is not None:
            memory = device.memory()
            items += [(MEMORY, now, *numbers) for numbers in memory]
            items += [(USES, now, *names) for names in device.names(index for index, *_ in memory)]
        return items

    def end(self, code: int | None, why: str) -> None:
        """Write the last line and close; ``why`` is ``exit`` or the error that ended the process."""
        self.pause()
        self.flush(final=True)
        phases = phases_of(*self._steps.assembly.after_last_step())
        apart = {name: phases[name] for name in ("evaluation", "checkpoint") if name in phases}
        end = {"t": "end", "at": time.monotonic_ns(), "code": code, "why": why}
        self._write(dumps({**end, "ph": apart} if apart else end) + "\n")
        self.close()


def _thread_cpu_ns(thread: ProbeThread | None) -> int:
    """Return the CPU time of the log's thread, when asked from within; 0 otherwise."""
    return time.thread_time_ns() if thread is not None and thread.is_current else 0

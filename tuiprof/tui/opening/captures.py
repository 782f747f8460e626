"""Other ranks of the run of a trace, and its other captures; the dialog that shows what each holds and opens one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.screen import ModalScreen
from textual.worker import Worker, get_current_worker

from tuiprof.errors import TuiprofError
from tuiprof.model.traceset import RankFile, TraceSet
from tuiprof.model.units import format_bytes, format_count, format_ns, format_share
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.dialogs.dialog import dialog
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.terminal_app import notify_worker_error
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.choices import Choice, Choices
from tuiprof.tui.widgets.lines import Painted, Row, fit

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace

#: Most bytes of files that are read to describe them.
_MOST_BYTES: Final = 1 << 30
_MOST_LINES: Final = 16
_HEADS: Final = ("rank", "events", "device busy", "step")
_CELLS: Final = (5, 9, 13, 9)
_READING, _UNREAD = "…", glyphs.NONE


@dataclass(frozen=True, slots=True)
class Captures:
    """Position of a trace among those it belongs with."""

    sets: tuple[TraceSet, ...]  # the captures, oldest first; each holds its ranks
    path: Path  # the trace that is shown

    def __len__(self) -> int:
        """Return the number of traces."""
        return sum(len(one) for one in self.sets)

    @property
    def shown(self) -> TraceSet | None:
        """The capture that the shown trace is of; None = it was not found among them."""
        return next((one for one in self.sets if any(file.path == self.path for file in one.files)), None)

    @property
    def files(self) -> tuple[RankFile, ...]:
        """All traces, those of the shown capture first."""
        shown = self.shown
        sets = sorted(self.sets, key=lambda one: one is not shown)
        return tuple(file for one in sets for file in one.files)

    def label(self, world_size: int | None = None) -> str:
        """Return which of them is shown, such as ``rank 0 of 8, capture 2 of 3``; empty = there is only this one.

        Args:
            world_size: Ranks of the job as recorded in the trace; None = not recorded.
        """
        shown, parts = self.shown, []
        if shown is None or len(self) < 2:
            return ""
        if len(shown) > 1:
            rank = next(file.rank for file in shown.files if file.path == self.path)
            fewer = f" ({len(shown)} here)" if (world_size or 0) > len(shown) else ""
            parts.append(f"rank {rank} of {max(len(shown), world_size or 0)}{fewer}")
        if len(self.sets) > 1:
            parts.append(f"capture {self.sets.index(shown) + 1} of {len(self.sets)}")
        return ", ".join(parts)


def session_folder(path: Path) -> Path | None:
    """Return the folder of the session that captured a trace; None = it is not in one."""
    return next((folder for folder in path.parents if (folder / "session.json").is_file()), None)


def trace_title(path: Path) -> str:
    """Return what a trace is called on the screen: as its session, else as its file; untrusted.

    The files of a session are named after ranks and moments, ``rank0.1795465808049.pt.trace.json.gz``, which
    does not identify the run.
    """
    session = session_folder(path.absolute())
    return path.name if session is None else re.sub(r"^\d{8}T\d{6}Z-", "", session.name)


def captures_of(path: Path, directory: Path | None = None) -> Captures:
    """Find the traces that a trace belongs with; none of them is read. Takes a worker: folders are walked."""
    from tuiprof.formats import open_trace
    from tuiprof.formats.directory import sets_in, siblings

    session = session_folder(path)
    directory = directory or (session / "traces" if session is not None else None)
    if directory is not None:
        try:
            found = Captures(sets_in(directory, open_trace), path)
        except TuiprofError:  # the folder was deleted: the trace itself may still be readable
            found = Captures((), path)
        if found.shown is not None:
            return found
    together = siblings(path, open_trace)
    return Captures((together,) if together is not None else (), path)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a list of traces says of one of them."""

    events: int  # number of events
    #: Busy time of its devices between first and last work; None = no device activity.
    busy_share: float | None
    step_ns: float | None  # median step; None = it marks no steps


def figures(trace: Trace) -> Figures:
    """Compute the figures of a trace."""
    from tuiprof.analyses import run
    from tuiprof.analyses.shared.changes import figure_of

    idle = figure_of(run("device_idle", trace), "idle_share")
    step_ns = figure_of(run("steps", trace), "step_period_ns")
    return Figures(len(trace), None if idle is None else 1 - idle, step_ns)


class CapturesScreen(ModalScreen[Path | None], inherit_bindings=False):
    """Dialog that returns the path of the trace to show, or None.

    Args:
        captures: The traces; the one shown is marked.
        known: What is known of them already, by path; what is read meanwhile is added.
        straggler: Rank that holds up the others in the capture shown; None = none is known to.
        descriptions: Description of the capture behind each trace, by path: when it was made, of which steps.
    """

    DEFAULT_CSS = """
    CapturesScreen > .dialog { width: 110; }
    CapturesScreen #captures-head { height: 1; }
    CapturesScreen #captures-note { height: auto; margin-top: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "escape,q,R,o",
            "cancel",
            "cancel",
            "Keep this trace open",
            id="captures.cancel",
            group="Traces",
            display="esc",
        ),
    ]

    @dataclass(eq=False)
    class Read(Message):
        """The figures of a trace are known; None = it cannot be read."""

        path: Path
        found: Figures | None

    def __init__(
        self,
        captures: Captures,
        known: dict[Path, Figures | None],
        straggler: int | None,
        descriptions: Mapping[Path, str] | None = None,
    ) -> None:
        super().__init__()
        self._descriptions = descriptions or {}
        self._captures = captures
        self._known = known
        self._straggler = straggler
        self._files = captures.files
        self._alone = all(len(one) == 1 for one in captures.sets)
        self._wanted = _affordable(self._files, known)

    def compose(self) -> ComposeResult:
        """One box with the list."""
        several = "ranks" if len(self._captures.sets) == 1 else "captures and their ranks"
        with dialog("captures" if self._alone else several):
            yield Painted(id="captures-head")
            choices = Choices(id="captures")
            headings = len(self._captures.sets) if len(self._captures.sets) > 1 else 0
            choices.styles.height = min(len(self._files) + headings, _MOST_LINES)
            yield choices
            yield Painted(id="captures-note")
            yield KeyBar({"list.open": "show it"})

    def on_mount(self) -> None:
        """Fill the list, and read unknown traces."""
        self.query_one("#captures-head", Painted).paint(
            lambda width, _height: [
                fit([("  ", "text"), *_line(_HEADS, "file", "", "dim", width - 2)], width)
            ]
        )
        self._draw()
        choices = self.query_one(Choices)
        choices.move_to(str(self._captures.path))
        choices.focus()
        self.run_worker(self._read, thread=True, exclusive=True, group="captures", exit_on_error=False)

    def _draw(self) -> None:
        lines: list[Choice] = []
        for one in self._captures.sets:
            if len(self._captures.sets) > 1:
                many = "" if self._alone else "1 rank" if len(one) == 1 else f"{len(one)} ranks"
                name = self._descriptions.get(one.files[0].path) or one.run or "capture"
                lines.append(Choice("", [(sanitize(name), "title"), (f"  {many}", "dim")], 0))
            straggler = self._straggler if one is self._captures.shown else None
            lines += [
                Choice(str(file.path), partial(self._file_line, file, file.rank == straggler))
                for file in one.files
            ]
        self.query_one(Choices).show(lines)
        self.query_one("#captures-note", Painted).paint(
            lambda width, _height: [fit([(self._note(), "dim")], width)]
        )

    def _note(self) -> str:
        left = [file for file in self._files if file.path not in self._known]
        waiting = [file for file in left if file in self._wanted]
        if waiting:
            return f"reading {len(waiting)} of them for this list …"
        if left:
            size = format_bytes(sum(file.size_bytes for file in left))
            many = "1 trace" if len(left) == 1 else f"{len(left)} traces"
            return f"not read for this list: {many}, {size}"
        if self._alone:
            return ""
        if self._straggler is None:
            return "the tab Ranks tells which rank holds up the others, where all of them mark steps"
        return f"rank {self._straggler} holds up the others: the tab Ranks tells by how much"

    def _file_line(self, file: RankFile, straggles: bool, width: int) -> Row:
        here = file.path == self._captures.path
        if file.path in self._known:
            found = self._known[file.path]
            cells = (
                ("unreadable", "", "")
                if found is None
                else (format_count(found.events), format_share(found.busy_share), format_ns(found.step_ns))
            )
        else:
            cells = (_READING,) * 3 if file in self._wanted else (_UNREAD,) * 3
        name = sanitize(file.path.name)
        mark = "straggler" if straggles else ""
        return _line((str(file.rank), *cells), name, mark, "strong" if here else "text", width)

    # -- what they hold ------------------------------------------------------------------------------------

    def _read(self) -> None:
        """In a thread: read one after the other."""
        from tuiprof import formats

        worker = get_current_worker()
        for file in self._wanted:
            try:
                found = figures(formats.open_trace(file.path, cancelled=lambda: worker.is_cancelled))
            except TuiprofError:
                found = None
            if worker.is_cancelled:
                return
            self.post_message(self.Read(file.path, found))

    def on_captures_screen_read(self, message: Read) -> None:
        """Show the current knowledge."""
        self._known[message.path] = message.found
        self._draw()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Report the error of a worker."""
        notify_worker_error(self, event)

    # -- the answer ----------------------------------------------------------------------------------------

    def on_choices_chosen(self, event: Choices.Chosen) -> None:
        """Return the choice."""
        self.dismiss(Path(event.key))

    def action_cancel(self) -> None:
        """Return None."""
        self.dismiss(None)


def _line(cells: tuple[str, ...], name: str, mark: str, role: str, width: int) -> Row:
    """One line of the list: figures flush right below their headings, then the name, cut in its middle."""
    row: Row = [(" ".join(cell.rjust(room) for cell, room in zip(cells, _CELLS, strict=True)), role)]
    row.append(("  ", role))
    room = max(width - sum(_CELLS) - len(_CELLS) - 1 - (len(mark) + 4 if mark else 0), 8)
    row.append((_middle_cut(name, room), role))
    if mark:
        row.append((f"  {glyphs.FLAG} {mark}", "warn"))
    return row


def _middle_cut(name: str, room: int) -> str:
    """Return a name that fits; its ends, in which ranks differ, are kept."""
    if len(name) <= room:
        return name
    head = (room - 1) * 2 // 3
    return f"{name[:head]}{glyphs.ELLIPSIS}{name[len(name) - (room - 1 - head) :]}"


def _affordable(files: tuple[RankFile, ...], known: dict[Path, Figures | None]) -> list[RankFile]:
    """Return which traces are read: those that are not known, in their order, as many as can be afforded."""
    chosen, size = [], 0
    for file in files:
        if file.path not in known and size + file.size_bytes <= _MOST_BYTES:
            chosen.append(file)
            size += file.size_bytes
    return chosen

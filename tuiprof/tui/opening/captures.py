"""The other ranks and captures of a trace's run, and the dialog that summarises them and opens one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.worker import get_current_worker

from tuiprof.errors import TuiprofError
from tuiprof.model.traceset import RankFile, TraceSet
from tuiprof.model.units import format_bytes, format_count, format_ns, format_share
from tuiprof.report.sanitize import clip, sanitize
from tuiprof.session.store.folders import session_folder
from tuiprof.tui.dialogs.dialog import dialog
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.terminal_app import notify_worker_error
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.choices import Choice, Choices
from tuiprof.tui.widgets.lines import Painted, Row, fit

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace

#: Maximum size of all files that are read for their summaries, bytes.
_MAX_BYTES: Final = 1 << 30
_MAX_LINES: Final = 16
_HEADS: Final = ("rank", "events", "device busy", "step")
_CELLS: Final = (5, 9, 13, 9)
_READING, _UNREAD = "…", glyphs.NONE


@dataclass(frozen=True, slots=True)
class Captures:
    """All captures of a run, and the trace that is open."""

    sets: tuple[TraceSet, ...]  # one per capture, oldest first; each has the files of its ranks
    path: Path  # of the open trace

    def __len__(self) -> int:
        return sum(len(one) for one in self.sets)

    @property
    def shown(self) -> TraceSet | None:
        """The capture of the open trace; None = not found."""
        return next((one for one in self.sets if any(file.path == self.path for file in one.files)), None)

    @property
    def files(self) -> tuple[RankFile, ...]:
        """All traces, those of the open capture first."""
        shown = self.shown
        sets = sorted(self.sets, key=lambda one: one is not shown)
        return tuple(file for one in sets for file in one.files)

    def label(self, world_size: int | None = None) -> str:
        """Return rank and capture of the open trace, as ``rank 0 of 8, capture 2 of 3``; empty = it is the only one.

        ``world_size`` is the number of ranks as recorded in the trace.
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


def captures_of(path: Path, directory: Path | None = None) -> Captures:
    """Find the other traces of a trace's run without reading them; call it in a worker, because it walks folders."""
    from tuiprof.formats import open_trace
    from tuiprof.formats.directory import sets_in, siblings

    session = session_folder(path)
    directory = directory or (session / "traces" if session is not None else None)
    if directory is not None:
        try:
            found = Captures(sets_in(directory, open_trace), path)
        except TuiprofError:  # the folder is gone, but the trace may be readable
            found = Captures((), path)
        if found.shown is not None:
            return found
    ranks = siblings(path, open_trace)
    return Captures((ranks,) if ranks is not None else (), path)


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Summary of a trace."""

    events: int
    #: Share of the time between first and last device work in which a device is busy; None = no device activity.
    busy_share: float | None
    step_ns: float | None  # median; None = the trace marks no steps


def summarise(trace: Trace) -> TraceSummary:
    """Compute the summary of a trace."""
    from tuiprof.analyses import run
    from tuiprof.analyses.shared.changes import figure_of

    idle = figure_of(run("device_idle", trace), "idle_share")
    step_ns = figure_of(run("steps", trace), "step_period_ns")
    return TraceSummary(len(trace), None if idle is None else 1 - idle, step_ns)


class CapturesScreen(ModalScreen[Path], inherit_bindings=False):
    """Lists traces, and returns the path of the one to open; None = cancelled.

    To the known summaries by path, others are added; None = the trace cannot be read. ``descriptions`` are time and
    steps of each trace's capture, by path.
    """

    DEFAULT_CSS = """
    CapturesScreen > .dialog { width: 110; }
    CapturesScreen #captures-head { height: 1; }
    CapturesScreen #captures-note { height: auto; margin-top: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape,q,R,o", "dismiss", "cancel", "Keep this trace open", id="captures.cancel", group="Traces",
            display="esc"),
    ]  # fmt: skip

    def __init__(
        self,
        captures: Captures,
        summaries: dict[Path, TraceSummary | None],
        straggler: int | None,
        descriptions: Mapping[Path, str] | None = None,
    ) -> None:
        super().__init__()
        self._descriptions = descriptions or {}
        self._captures = captures
        self._summaries = summaries
        self._straggler = straggler
        self._files = captures.files
        self._single_rank = all(len(one) == 1 for one in captures.sets)
        self._to_read: list[RankFile] = []
        size = 0
        for file in self._files:
            if file.path not in summaries and size + file.size_bytes <= _MAX_BYTES:
                self._to_read.append(file)
                size += file.size_bytes

    def compose(self) -> ComposeResult:
        several = "ranks" if len(self._captures.sets) == 1 else "captures and their ranks"
        with dialog("captures" if self._single_rank else several):
            yield Painted(id="captures-head")
            choices = Choices(id="captures")
            headings = len(self._captures.sets) if len(self._captures.sets) > 1 else 0
            choices.styles.height = min(len(self._files) + headings, _MAX_LINES)
            yield choices
            yield Painted(id="captures-note")
            yield KeyBar({"list.open": "show it"})

    def on_mount(self) -> None:
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
                ranks = "" if self._single_rank else "1 rank" if len(one) == 1 else f"{len(one)} ranks"
                name = self._descriptions.get(one.files[0].path) or one.run or "capture"
                lines.append(Choice("", [(sanitize(name), "title"), (f"  {ranks}", "dim")], 0))
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
        unread = [file for file in self._files if file.path not in self._summaries]
        reading = [file for file in unread if file in self._to_read]
        if reading:
            return f"reading {len(reading)} of them for this list …"
        if unread:
            size = format_bytes(sum(file.size_bytes for file in unread))
            count = "1 trace" if len(unread) == 1 else f"{len(unread)} traces"
            return f"not read for this list: {count}, {size}"
        if self._single_rank:
            return ""
        if self._straggler is None:
            return "the Ranks tab shows which rank delays the others, if all mark steps"
        return f"rank {self._straggler} delays the others: the Ranks tab shows by how much"

    def _file_line(self, file: RankFile, is_straggler: bool, width: int) -> Row:
        is_open = file.path == self._captures.path
        if file.path in self._summaries:
            found = self._summaries[file.path]
            cells = (
                ("unreadable", "", "")
                if found is None
                else (format_count(found.events), format_share(found.busy_share), format_ns(found.step_ns))
            )
        else:
            cells = (_READING,) * 3 if file in self._to_read else (_UNREAD,) * 3
        name = sanitize(file.path.name)
        mark = "straggler" if is_straggler else ""
        return _line((str(file.rank), *cells), name, mark, "strong" if is_open else "text", width)

    # -- summaries -----------------------------------------------------------------------------------------

    def _read(self) -> None:
        """In a thread: read and summarise the traces one by one."""
        from tuiprof import formats

        worker = get_current_worker()
        for file in self._to_read:
            try:
                found = summarise(formats.open_trace(file.path, cancelled=lambda: worker.is_cancelled))
            except TuiprofError:
                found = None
            if worker.is_cancelled:
                return
            self.call_later(self._add, file.path, found)

    def _add(self, path: Path, summary: TraceSummary | None) -> None:
        self._summaries[path] = summary
        self._draw()

    on_worker_state_changed = notify_worker_error

    # -- result --------------------------------------------------------------------------------------------

    def on_choices_chosen(self, event: Choices.Chosen) -> None:
        self.dismiss(Path(event.key))


def _line(cells: tuple[str, ...], name: str, mark: str, role: str, width: int) -> Row:
    """Return one line of the list: right-aligned cells, then the name."""
    row: Row = [(" ".join(cell.rjust(room) for cell, room in zip(cells, _CELLS, strict=True)), role)]
    row.append(("  ", role))
    room = max(width - sum(_CELLS) - len(_CELLS) - 1 - (len(mark) + 4 if mark else 0), 8)
    row.append((clip(name, room), role))
    if mark:
        row.append((f"  {glyphs.FLAG} {mark}", "warn"))
    return row

"""Items of the library, and the text of their lines and details. Without Textual."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuiprof.model.units import format_bytes, format_count, format_ns, plural
from tuiprof.report.sanitize import clip, sanitize
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.spans import (
    Choice,
    Row,
    age,
    ago,
    change_span,
    fit,
    fit_text,
    labelled,
    row_width,
    spread,
    when,
    wrap,
)

if TYPE_CHECKING:
    from tuiprof.session.live.listing import Summary
    from tuiprof.session.run.interpreter import Facts
    from tuiprof.session.store.meta import Labels

#: File endings left out of the names of traces.
_ENDING: Final = re.compile(r"(\.pt)?(\.trace)?\.json(\.gz)?$|\.xplane\.pb(\.gz)?$")
#: Name of a captured trace: rank and Unix time in ms.
_STAMPED: Final = re.compile(r"rank\d+\.(\d{13})")
#: Name of the folder of a trace of XLA: local time.
_STAMPED_FOLDER: Final = re.compile(r"\d{4}_\d\d_\d\d_(\d\d)_(\d\d)_(\d\d)")
#: Width reserved for the reason why a variant cannot run, before a long published figure gets more.
_REASON: Final = 30
#: Cells for published figures for which the names of variants are cut.
_LEAST_PUBLISHED: Final = 16


@dataclass(frozen=True, slots=True)
class VariantItem:
    """One variant of a ladder, as listed."""

    name: str
    note: str = ""  # what it changes
    published: str = ""  # the publication's figure, as text; empty = none
    #: Median step time of the newest measurement on this host (in a ladder or a run); None = not measured.
    here_ns: float | None = None
    here_preset: str = ""  # preset of that measurement
    change: float | None = None  # of the step time against the baseline, as a share; None = unknown
    runnable: bool | None = None  # whether it can run in the chosen interpreter; None = not known yet
    why: str = ""  # why it cannot run, and the remedy
    #: Syncs per step in the measurement's trace; None = unknown or not read yet.
    syncs_per_step: float | None = None
    trace: Path | None = None  # trace of the measurement, if any
    measured: str = ""  # kind of the measurement: ``ladder`` or ``run``; empty = not measured


@dataclass(frozen=True, slots=True)
class LadderItem:
    """One ladder, as listed."""

    name: str
    title: str  # its subject, in one line
    story: str  # its description, a few sentences
    baseline: str  # name of the variant that the others are compared with
    source: str  # hardware and software of the published figures
    needs: tuple[str, ...]  # packages it needs
    presets: tuple[str, ...]  # names of its presets
    variants: tuple[VariantItem, ...]
    script: Path = Path()

    @property
    def runnable(self) -> int | None:
        """Number of runnable variants; None = not known yet."""
        known = [variant.runnable for variant in self.variants]
        return None if None in known else sum(bool(one) for one in known)

    def variant(self, name: str) -> VariantItem | None:
        return next((variant for variant in self.variants if variant.name == name), None)


@dataclass(frozen=True, slots=True)
class PastCommand:
    """A command of a recorded session."""

    argv: tuple[str, ...]
    cwd: str  # working directory
    unix_ns: int  # start time
    median_ns: float | None = None  # median step time; None = no steps


@dataclass(frozen=True)
class Listing:
    """The listed items, as found by one scan."""

    ladders: tuple[LadderItem, ...] = ()  # scenarios
    sessions: tuple[Summary, ...] = ()  # recorded sessions, the newest first
    traces: tuple[Path, ...] = ()  # shipped sample traces
    machine: str = ""  # Python, frameworks and devices, for the first line; empty = not known yet
    problems: tuple[str, ...] = ()  # items that could not be read, each with the reason
    root: Path = Path()  # folder of the sessions
    #: Tags and notes by session id.
    labels: Mapping[str, Labels] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)  # disk use in bytes by session id
    total_bytes: int = 0  # disk use of the whole folder
    commands: tuple[PastCommand, ...] = ()  # recent commands, the newest first, each once
    #: Captured traces, the newest first, by session id.
    captured: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    python: str = ""  # the interpreter that scripts run in; empty = not known yet
    prefix: str = ""  # its environment
    example: str = ""  # main finding of the example trace; empty = not read yet

    def ladder(self, name: str) -> LadderItem | None:
        return next((ladder for ladder in self.ladders if ladder.name == name), None)

    def session(self, path: str) -> Summary | None:
        """Return a session by path; None = it no longer exists."""
        return next((session for session in self.sessions if session.path == path), None)


# -- the list --------------------------------------------------------------------------------------------


def head(listing: Listing, width: int) -> Row:
    """Return the first line: the program's name, and as much of the Python and machine as fits."""
    brand: Row = [(" tuiprof", "accent")]
    name = environment_name(listing.prefix) if listing.prefix else ""
    # Omit the environment's name if the machine line contains it.
    where = f" ({name})" if name and name not in listing.machine else ""
    parts = listing.machine.split(glyphs.DOT) if listing.machine else ["checking Python …"]
    while True:
        words = sanitize(glyphs.DOT.join(parts) + where)
        right: Row = [(words, "dim"), ("   P ", "key"), ("change ", "dim")]
        if row_width(brand) + row_width(right) + 2 <= width:
            return spread(brand, right, width)
        if len(parts) == 1:
            return spread(brand, [("P ", "key"), ("Python ", "dim")], width)
        parts.pop()


def environment_name(prefix: str) -> str:
    """Return the name of an environment: ``.venv``, or its path if it has no name."""
    name = Path(prefix).name
    return prefix if name in ("usr", "local", "") else name


#: Actions at the top of the list: key of the item, label, and shortcut.
_ACTIONS: Final = (
    ("do:run", "Run my script", ""),
    ("do:open", "Open a trace", "o"),
    ("do:example", "Look at an example", "e"),
)
#: Width below which the list is abbreviated.
_NARROW_LIST: Final = 40
#: Number of sessions listed before "older" is chosen.
_RECENT: Final = 6


def items(
    listing: Listing, filter_: str, marked: Sequence[str] = (), *, all_sessions: bool = False
) -> list[Choice]:
    """Return the list on the left; older sessions are one line unless ``all_sessions`` or a filter is set."""

    def kept(*texts: str) -> bool:
        return not filter_ or any(filter_.casefold() in text.casefold() for text in texts)

    sessions = [
        session
        for session in listing.sessions
        if kept(session.id, session.title, session.state, _labelled(listing, session))
    ]
    shown = sessions if filter_ or all_sessions else sessions[:_RECENT]
    recent: list[Choice] = []
    for session in shown:
        mark = marked.index(session.path) + 1 if session.path in marked else 0
        line = partial(_session_line, session, listing.labels.get(session.id), mark)
        recent.append(Choice(f"session:{session.path}", line))
        traces = listing.captured.get(session.id, ())[:1]
        recent.extend(Choice(f"trace:{path}", partial(_trace_line, path)) for path in traces)
    if len(sessions) > len(shown):
        count = len(sessions) - len(shown)
        recent.append(Choice("more:", [(f"{count} older {glyphs.ELLIPSIS}", "dim")]))
    ladders = [
        Choice(f"ladder:{ladder.name}", partial(_ladder_line, ladder))
        for ladder in listing.ladders
        if kept(ladder.name, ladder.title, *(variant.name for variant in ladder.variants))
    ]
    samples = [
        Choice(f"trace:{path}", [(sanitize(_ENDING.sub("", path.name)), "text")])
        for path in listing.traces
        if kept(path.name)
    ]
    problems: list[Choice] = []
    if listing.problems and not filter_:
        text = plural(len(listing.problems), "problem")
        problems.append(Choice("problems:", [(f"{glyphs.FAILED} ", "warn"), (text, "text")]))
    out = [
        Choice(key, partial(_action_line, listing, key, words, shortcut))
        for key, words, shortcut in _ACTIONS
        if kept(words)
    ]
    used = f"  {format_bytes(listing.total_bytes)} on disk" if listing.total_bytes else ""
    groups = (
        ("Recent", used, recent),
        ("Learn", best_win(listing.ladders), ladders),
        ("Samples", "", samples),
        ("Not readable", "", problems),
    )
    for title, remark, choices in groups:
        if choices or (title == "Recent" and not filter_):
            if out:
                out.append(Choice("", []))
            out.append(Choice("", partial(fit, [(title, "title"), (remark, "dim")]), indent=1))
            out.extend(choices or [Choice("", [("no session yet", "dim")])])
    return out or [Choice("", [("no match", "dim")])]


def _action_line(listing: Listing, key: str, words: str, shortcut: str, width: int) -> Row:
    """Return ``Run my script   python train.py``, or another action with its shortcut at the right."""
    column = 20 if width >= _NARROW_LIST else 15
    left: Row = [(f"{words:<{column}}", "strong")]
    if key == "do:run":
        room = width - column
        command = _short_command(listing.commands[0].argv, room) if listing.commands else "python train.py"
        return [*left, *fit([(command, "text" if listing.commands else "dim")], room)] if room > 8 else left
    return spread(left, [(f"{shortcut} ", "key")], width)


def _trace_line(path: Path, width: int) -> Row:
    """Return the line of a trace, listed below its session."""
    name = _ENDING.sub("", path.name)
    if stamp := _STAMPED.fullmatch(name):
        at = datetime.fromtimestamp(int(stamp[1]) / 1e3, UTC).astimezone()
        return fit([(f"  trace captured at {at:%H:%M:%S}", "dim")], width)
    if stamp := _STAMPED_FOLDER.fullmatch(path.parent.name):
        return fit([(f"  trace captured at {':'.join(stamp.groups())}", "dim")], width)
    return fit([(f"  trace {sanitize(name)}", "dim")], width)


def best_win(ladders: Sequence[LadderItem]) -> str:
    """Return the largest speedup measured here: ``  best here: loop → triton 2.34× faster``; empty = none."""
    wins = [
        (variant.change, ladder, variant)
        for ladder in ladders
        for variant in ladder.variants
        if variant.change is not None and variant.change < -0.005 and variant.here_ns is not None
    ]
    if not wins:
        return ""
    change, ladder, variant = min(wins, key=lambda win: win[0])
    return (
        f"  best here: {sanitize(ladder.baseline)} → {sanitize(variant.name)} {1 / (1 + change):.2f}× faster"
    )


def _ladder_line(ladder: LadderItem, width: int) -> Row:
    """Return ``metrics   8 of 8 can run``, in a narrow list ``metrics   8/8 can run``."""
    total, can = len(ladder.variants), ladder.runnable
    count: Row = (
        [(f"{total} variants", "dim")]
        if can is None
        else [(f"{can} of {total}", "text" if can else "dim"), (" can run", "dim")]
    )
    name: Row = [(sanitize(ladder.name), "text")]
    if can is not None and width < _NARROW_LIST:
        count = [(f"{can}/{total} can run", "text" if can else "dim")]
    return spread(fit(name, max(width - row_width(count) - 2, 4)), count, width)


def _labelled(listing: Listing, session: Summary) -> str:
    labels = listing.labels.get(session.id)
    return labels.words if labels is not None else ""


def _session_line(session: Summary, labels: Labels | None, mark: int, width: int) -> Row:
    """Return ``● 05:30 metrics:naive #tag  running``; a marked session begins with ``[1]``."""
    glyph, role = glyphs.STATES[session.state]
    result, tone = session.state.replace("finished", ""), role
    if session.state == "failed" and session.code is not None:
        result = f"exit {session.code}"
    elif session.state == "finished" and session.median_ns is not None:
        result, tone = format_ns(session.median_ns), "text"
    left: Row = [
        (f"{glyph} ", role),
        (f"{age(session.unix_ns):<6} ", "dim"),
        (sanitize(session.title), "text"),
    ]
    if mark:
        left.insert(0, (f"[{mark}] ", "accent"))
    if labels is not None and labels.tags:
        left.append((" " + " ".join(f"#{sanitize(tag)}" for tag in labels.tags), "accent"))
    right: Row = [(f"{result} ", tone)]
    room = width - row_width(right) - 2
    return spread(fit(left, room), right, width) if room > 12 else fit(left, width)


def session_name(session: Summary) -> str:
    """Return the name of a session for use in a sentence."""
    return f"{sanitize(session.title)} of {when(session.unix_ns)}"


# -- the variants of a ladder ----------------------------------------------------------------------------


def variants(ladder: LadderItem) -> list[Choice]:
    """Return the table of variants, with a heading."""
    rows = [Choice("", partial(_variant_head, ladder))]
    rows.extend(Choice(variant.name, partial(_variant_line, ladder, variant)) for variant in ladder.variants)
    return rows


def _columns(ladder: LadderItem, width: int) -> tuple[int, int, int, int, int]:
    """Return the widths of variant, published, here, change and syncs; 0 = the column is left out.

    Before anything was measured here, the published figures take the room.
    """
    name = min(max(len(sanitize(variant.name)) for variant in ladder.variants), 28)
    here, change, can = 10, 15, 9
    # Without traces, the column of syncs is left out.
    syncs = 12 if any(variant.trace is not None for variant in ladder.variants) else 0
    wanted = max(9, *(len(_published(variant)) for variant in ladder.variants))
    if any(variant.published for variant in ladder.variants) and not any(
        variant.measured for variant in ladder.variants
    ):
        name = min(name, max(width - can - 2 - min(wanted, _LEAST_PUBLISHED), 12))
        return name, max(min(wanted, width - name - can - 2), 0), 0, 0, 0
    room = width - name - here - can
    if room < change + syncs:
        syncs = 0
    if room >= change + syncs + 11:
        left = room - change - syncs - 2
        return name, min(wanted, left, max(26, left - _REASON)), here, change, syncs
    if room >= change:
        return name, 0, here, change, syncs
    return min(name, width - here - can), 0, here, 0, 0


def _published(variant: VariantItem) -> str:
    """Return the published figure without its comment, which is shown in the note."""
    return sanitize(variant.published.partition(" (")[0].partition(", ")[0].partition(" · ")[0])


def _variant_head(ladder: LadderItem, width: int) -> Row:
    name, published, here, change, syncs = _columns(ladder, width)
    row: Row = [("variant".ljust(name), "dim")]
    if published:
        row.append((f"  {'published':<{published}}", "dim"))
    if here:
        row.append((f"{'here':>{here}}", "dim"))
    if change:
        row.append((f"{'vs ' + sanitize(ladder.baseline):>{change}}"[:change], "dim"))
    if syncs:
        row.append(("syncs/step".rjust(syncs), "dim"))
    row.append(("  can run", "dim"))
    return row


def _variant_line(ladder: LadderItem, variant: VariantItem, width: int) -> Row:
    name, published, here, change, syncs = _columns(ladder, width)
    # The ends of their names tell variants apart.
    shown = clip(sanitize(variant.name), name).ljust(name)
    row: Row = [(shown, "text" if variant.runnable is not False else "dim")]
    if published:
        row.append(("  " + fit_text(_published(variant) or glyphs.NONE, published), "dim"))
    if here:
        row.append((f"{format_ns(variant.here_ns):>{here}}", "strong" if variant.here_ns else "dim"))
    if change:
        row.append(_change(ladder, variant, change))
    if syncs:
        row.append((_syncs(variant).rjust(syncs), "text"))
    if variant.runnable is None:
        row.append((f"  {glyphs.ELLIPSIS}", "dim"))
    elif variant.runnable:
        row.append((f"  {glyphs.DONE}", "good"))
    else:
        row.append((f"  {glyphs.FAILED} ", "warn"))
        # Too narrow for a useful reason: the note below the table has it in full.
        if width - row_width(row) >= 16:
            row.append((sanitize(variant.why), "dim"))
    return row


def _change(ladder: LadderItem, variant: VariantItem, width: int) -> tuple[str, str]:
    """Return the change against the baseline, and its colour role."""
    if variant.name == ladder.baseline or variant.change is None:
        return glyphs.NONE.rjust(width), "dim"
    text, role = change_span(variant.change)
    return text.rjust(width), role


def _syncs(variant: VariantItem) -> str:
    if variant.syncs_per_step is None:
        return glyphs.NONE
    return format_count(round(variant.syncs_per_step, 2))


# -- details of the item under the cursor ----------------------------------------------------------------


def _wrapped(text: str, width: int, role: str) -> list[Row]:
    return [[(line, role)] for line in textwrap.wrap(sanitize(" ".join(text.split())), max(20, width))]


def about_ladder(ladder: LadderItem, width: int) -> list[Row]:
    """Return the description of a ladder."""
    rows: list[Row] = [[(sanitize(ladder.name), "accent"), (" — ", "dim"), (sanitize(ladder.title), "title")]]
    rows.extend(_wrapped(ladder.story, width, "text"))
    if ladder.source:
        rows.extend([[], [("published on ", "dim"), (sanitize(ladder.source), "dim")]])
    return rows


def about_variant(ladder: LadderItem, variant: VariantItem | None, width: int, python: str = "") -> list[Row]:
    """Return the description of a variant, its measurement, and why it cannot run."""
    rows: list[Row] = []
    if variant is not None:
        rows.extend(_wrapped(variant.note, width, "text"))
        if variant.published:
            rows.extend(_wrapped(f"published: {variant.published}", width, "dim"))
        if variant.runnable is False:
            rows.extend(_wrapped(f"cannot run here: {cannot_run(variant, python)}", width, "warn"))
        if variant.measured:
            what = "the newest ladder" if variant.measured == "ladder" else "the newest run"
            size = f", preset {variant.here_preset}" if variant.here_preset else ""
            rows.extend(_wrapped(f"here: {what} on this machine{size}", width, "dim"))
    if ladder.needs:
        rows.extend(_wrapped(f"needs {', '.join(ladder.needs)}", width, "dim"))
    return rows


def cannot_run(variant: VariantItem, python: str) -> str:
    """Return why a variant cannot run, with the interpreter and the key that chooses another one."""
    return f"{variant.why}. This is {python}; P chooses another Python" if python else variant.why


def about_run(listing: Listing, width: int) -> list[Row]:
    """Return the details of "Run my script"; recent commands are listed below."""
    text = "Step times and devices live, and the line that makes the host wait. The script is not changed."
    rows: list[Row] = [[("Run my script", "title")], *_wrapped(text, width, "text"), []]
    if listing.python:
        rows.extend(_wrapped(f"runs in {listing.python}", width, "dim"))
    return [
        *rows,
        [("enter ", "key"), ("type the command   ", "dim"), ("P ", "key"), ("another Python", "dim")],
    ]


def past_commands(listing: Listing) -> list[Choice]:
    """Return the recent commands, with a heading."""
    if not listing.commands:
        return []
    return [
        Choice("", [("recent commands", "dim")]),
        *(Choice(f"command:{i}", partial(_command_line, one)) for i, one in enumerate(listing.commands)),
    ]


def _command_line(command: PastCommand, width: int) -> Row:
    median = f"  {format_ns(command.median_ns)}" if command.median_ns is not None else ""
    right: Row = [(median, "text"), (f"  {ago(command.unix_ns)} ", "dim")]
    room = width - row_width(right) - 2
    return spread(fit([(_short_command(command.argv, room), "text")], room), right, width)


def _short_command(argv: Sequence[str], width: int) -> str:
    """Return a command with the path of its interpreter shortened to a name; if too wide, all paths."""
    first, *rest = argv
    text = shlex.join([Path(first).name or first, *rest])
    if len(text) > width:
        text = shlex.join([Path(first).name or first, *(Path(word).name or word for word in rest)])
    return sanitize(text)


def about_open(width: int) -> list[Row]:
    """Return the details of "Open a trace"."""
    text = (
        "A trace of the PyTorch profiler (*.pt.trace.json, .gz), of XLA (*.xplane.pb) or Neuron, or the folder of a "
        "session. Type its path, or paste it here."
    )
    return [
        [("Open a trace", "title")],
        *_wrapped(text, width, "text"),
        [],
        [("enter o ", "key"), ("type a path", "dim")],
    ]


def about_example(listing: Listing, width: int) -> list[Row]:
    """Return the details of the example trace, with its main finding."""
    text = "Four steps of a ResNet-18 with five metrics, captured on an H200. No GPU is needed to look at it."
    rows: list[Row] = [[("Look at an example", "title")], *_wrapped(text, width, "text")]
    if listing.example:
        rows.extend([[], *_wrapped(listing.example, width, "warn")])
    return [*rows, [], [("enter e ", "key"), ("open it", "dim")]]


def python_line(origin: str, answer: Facts | str | None, *, chosen: bool) -> Row:
    """Return the line of an interpreter: its origin, version and frameworks, or why it cannot be used."""
    row: Row = [
        (f"{glyphs.RUNNING if chosen else ' '} ", "good"),
        (f"{fit_text(sanitize(origin), 22)} ", "text"),
    ]
    if answer is None:
        return [*row, (glyphs.ELLIPSIS, "dim")]
    if isinstance(answer, str):
        return [*row, (sanitize(answer), "warn")]
    has = [f"{name} {have}" for name in ("torch", "jax") if (have := answer.distribution(name))]
    words = glyphs.DOT.join(has) if has else "neither torch nor jax"
    return [*row, (f"{sanitize(answer.version):<8} ", "text"), (sanitize(words), "text" if has else "dim")]


def about_session(listing: Listing, session: Summary, errors: list[str], width: int) -> list[Row]:
    """Return the details of a session, without reading its logs."""
    glyph, role = glyphs.STATES[session.state]
    how = session.state if session.code in (None, 0) else f"{session.state}, exit {session.code}"
    if session.detail:
        how += f" ({session.detail})"
    started = datetime.fromtimestamp(session.unix_ns / 1e9, UTC).astimezone() if session.unix_ns else None
    facts = [
        ("command", shlex.join(session.argv) if session.argv else glyphs.NONE),
        ("started", started.strftime("%Y-%m-%d %H:%M:%S %Z") if started else glyphs.NONE),
        ("lasted", format_ns(session.duration_ns)),
        ("steps", format_count(session.steps) if session.steps else "none recorded"),
        ("median of the last steps" if session.recent else "median step", format_ns(session.median_ns)),
        ("host", session.host or glyphs.NONE),
        ("disk use", format_bytes(listing.sizes.get(session.id, 0))),
        ("folder", session.path),
    ]
    labels = listing.labels.get(session.id)
    if labels is not None and labels.tags:
        facts.append(("tags", " ".join(f"#{tag}" for tag in labels.tags)))
    if labels is not None:
        facts.extend(("note", note.text) for note in labels.notes)
    rows: list[Row] = [
        [(f"{glyph} ", role), (sanitize(session.title), "title"), (f"  {sanitize(how)}", role)],
        [],
    ]
    column = max(len(label) for label, _text in facts) + 2
    for label, text in facts:
        rows.extend(labelled(label.ljust(column), wrap(sanitize(text), max(20, width - column), 3)))
    if errors:
        rows.extend([[], [("last lines of standard error", "dim")]])
        rows.extend([("▏", "warn"), (line, "text")] for line in errors)
    verb = "watch" if session.state == "running" else "open"
    keys = (("enter", verb), ("R", "replay"), ("t", "tags"), ("m", "note"), ("space", "mark to compare"))
    rows.append([])
    for name, does in keys:
        key: Row = [(f"{name} ", "key"), (f"{does}   ", "dim")]
        if rows[-1] and row_width(rows[-1]) + row_width(key) - 3 > width:
            rows.append([])
        rows[-1].extend(key)
    return rows


def about_trace(path: Path, width: int) -> list[Row]:
    """Return the details of a trace, without reading it."""
    try:
        size = format_bytes(path.stat().st_size)
    except OSError as error:
        size = f"cannot be read: {error.strerror}"
    return [
        [(sanitize(path.name), "title")],
        [],
        [("size   ", "dim"), (size, "text")],
        *_wrapped(str(path.parent), width, "dim"),
        [],
        [("enter ", "key"), ("open", "dim")],
    ]


def about_nothing(listing: Listing, filter_: str, width: int) -> list[Row]:
    """Return why nothing is selected: problems, a filter without matches, or loading."""
    if listing.problems:
        return [row for problem in listing.problems for row in _wrapped(problem, width, "warn")]
    if filter_:
        return _wrapped(f"nothing matches {filter_!r}; escape clears the filter", width, "dim")
    return [[("loading …", "dim")]]

"""The sentences of the live screen: how the run stands, what is missing and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from tuiprof.model.units import format_count, format_ns, format_share
from tuiprof.report.sanitize import sanitize
from tuiprof.session.live.fold import CaptureState
from tuiprof.session.live.replay import Replay
from tuiprof.session.live.writer_state import WriterState
from tuiprof.session.store.folders import Session
from tuiprof.session.store.status import Status
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Row, fit, row_width

if TYPE_CHECKING:
    from tuiprof.headline.trace import Gist

_STATES = {
    "running": (glyphs.RUNNING, "good"),
    "finished": (glyphs.DONE, "good"),
    "failed": (glyphs.FAILED, "bad"),
    "stopped": (glyphs.STOPPED, "warn"),
    "interrupted": (glyphs.INTERRUPTED, "warn"),
}


def clock(seconds: float) -> str:
    """Return a length of time as ``00:01:12``.

    Args:
        seconds: It.
    """
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02d}:{minute:02d}:{second:02d}"


def absent_word(backend: str) -> str:
    """Return what people call the hardware that a telemetry backend looks for.

    Args:
        backend: Its name: ``nvidia``, ``amd``, …
    """
    words = {"nvidia": "NVIDIA GPU", "amd": "AMD GPU", "neuron": "AWS Neuron", "tpu": "Google TPU"}
    return words.get(backend, sanitize(backend))


def capture_words(capture: CaptureState) -> str:
    """Return what tells a capture from the others: when it was made, of which steps, and why.

    Args:
        capture: It.
    """
    firsts = [record.first for record in capture.by_writer.values() if record.first is not None]
    lasts = [record.last for record in capture.by_writer.values() if record.last is not None]
    steps = f"steps {format_count(min(firsts))} to {format_count(max(lasts))}" if firsts and lasts else ""
    return glyphs.DOT.join(part for part in (clock(capture.t_ns / 1e9), steps, capture.cause) if part)


def name_row(session: Session) -> Row:
    """Return what runs: ``metrics ▸ naive · paper``, or the script.

    Args:
        session: The session.
    """
    scenario = session.meta.scenario
    if scenario is None:
        return [(sanitize(session.title), "title")]
    row: Row = [(sanitize(scenario.name), "title")]
    if scenario.variant:
        row.extend([(f" {glyphs.INTO} ", "dim"), (sanitize(scenario.variant), "title")])
    if scenario.preset:
        row.append((f"{glyphs.DOT}{sanitize(scenario.preset)}", "dim"))
    return row


def state_row(status: Status, now_ns: int, rank: WriterState | None, ranks: int, frozen: bool) -> Row:
    """Return how it stands: ``● running 00:01:12 · step 214 · rank 0/1``.

    Args:
        status: State of the session.
        now_ns: Session time shown.
        rank: The rank shown.
        ranks: How many there are.
        frozen: The view is paused.
    """
    glyph, role = _STATES[status.state]
    row: Row = [(f"{glyph} ", role), (f"{status} ", role), (clock(now_ns / 1e9), "text")]
    if frozen:
        row.append((f"{glyphs.DOT}{glyphs.PAUSED} view paused", "accent"))
    return [*row, *_place(rank, ranks)]


def replay_row(replay: Replay, rank: WriterState | None, ranks: int, *, back: bool = False) -> Row:
    """Return where a replay stands: ``▶ replay 4× 00:00:17 of 00:00:40 · step 214``.

    Args:
        replay: It.
        rank: The rank shown.
        ranks: How many there are.
        back: It is a moment gone by of a run that is watched.
    """
    glyph = glyphs.PAUSED if replay.paused else glyphs.PLAYING
    where = f"{clock(replay.position_ns / 1e9)} of {clock(replay.duration_ns / 1e9)}"
    said = "gone by" if back and replay.paused else f"replay {replay.speed:g}×"
    row: Row = [(f"{glyph} ", "accent"), (f"{said} ", "accent"), (where, "text")]
    return [*row, *_place(rank, ranks)]


def _place(rank: WriterState | None, ranks: int) -> Row:
    """Return the step and, where there are several, the rank."""
    row: Row = []
    if rank is not None and rank.steps.last_n is not None:
        row.append((f"{glyphs.DOT}step {format_count(rank.steps.last_n)}", "text"))
    if rank is not None and rank.rank is not None and ranks > 1:
        world = rank.head.world if rank.head and rank.head.world else ranks
        row.append((f"{glyphs.DOT}rank {rank.rank}/{world}", "text"))
    return row


def machine_row(session: Session, rank: WriterState | None, others: Set[str]) -> Row:
    """Return where it runs: ``H200, 1 of 4 · torch 2.11 · overhead 0.1 %``.

    Args:
        session: The session.
        rank: The rank shown.
        others: Keys of the devices that are not the run's.
    """
    devices = [device for device in session.meta.devices if device.kind != "host"]
    there = Counter(device.name.removeprefix("NVIDIA ") for device in devices)
    own = Counter(device.name.removeprefix("NVIDIA ") for device in devices if device.key not in others)
    words = []
    for name, count in own.items():
        of = f", {count} of {there[name]}" if count < there[name] else f" ×{count}" if count > 1 else ""
        words.append(f"{sanitize(name)}{of}")
    if not words and session.meta.devices:
        words = ["CPU"]
    if rank is not None and rank.head is not None:
        words.extend(
            f"{sanitize(name)} {sanitize(version.partition('+')[0])}"
            for name, version in list(rank.head.versions.items())[:2]
        )
    if rank is not None and (share := rank.cost_share) is not None:
        words.append(f"overhead {format_share(share)}")
    return [(glyphs.DOT.join(words), "dim")]


def head_row(brand: str, parts: tuple[Row, Row, Row], width: int) -> Row:
    """Return the first line of the screen: what runs, how it stands, where; the last goes first when narrow.

    Args:
        brand: Name of the program; left out when narrow.
        parts: What runs, how it stands, where.
        width: Cells.
    """
    name, state, machine = parts
    left: Row = [(f" {brand}  ", "accent"), *name]
    if row_width(left) + row_width(state) + 3 > width:
        left = [(" ", "text"), *name]
    while row_width(left) + row_width(state) + 3 > width and len(state) > 3:
        # Words behind the clock first, then the word that the sign in front says already.
        state = state[:-1] if len(state) > 4 else [state[0], *state[2:]]
    room = width - row_width(left) - row_width(state)
    if room < 3:
        return fit([*state, ("  ", "text"), *left], width)
    spare = room - row_width(machine) - 1
    if spare < 6:
        return [*left, (" " * (room - 1), "text"), *state]
    gap = spare // 2
    return [*left, (" " * gap, "text"), *state, (" " * (spare - gap), "text"), *machine]


def no_step_lines(status: Status, errors: list[str], *, replayed: bool = False) -> list[str]:
    """Return why there is no step time to draw, and what to do.

    Args:
        status: How it stands.
        errors: Last lines of its standard error.
        replayed: Its replay has not come to its end.
    """
    if replayed:
        return ["no step yet at this moment of the run"]
    if status.over:
        lines = [f"{status}, and no step was marked", *errors]
        return lines if status.state == "failed" else [*lines, *_HOW_TO_MARK]
    if status.detail == "starting":
        return ["starting …"]
    return ["no step yet", *_HOW_TO_MARK]


_HOW_TO_MARK = [
    "steps are found by themselves: optimizer.step() in torch, mark_step in torch_xla, step annotations in JAX",
    "to mark them by hand: `import tuiprof`, and `tuiprof.step()` at the end of each step",
]


def capture_row(capture: CaptureState) -> Row:
    """Return how the newest capture stands.

    Args:
        capture: It.
    """
    first, last = capture.first, capture.last
    steps = f"steps {first}–{last}" if first is not None and last is not None else "the next steps"
    if capture.state == "written":
        return [
            (f" {glyphs.FLAG} ", "good"),
            ("trace ready", "good"),
            (f" — press enter to open it ({steps})", "text"),
        ]
    if capture.state == "failed":
        return [
            (f" {glyphs.FLAG} ", "bad"),
            (f"capture failed: {sanitize(capture.why) or 'no reason given'}", "text"),
        ]
    if capture.state == "started":
        return [(f" {glyphs.FLAG} ", "capture"), (f"profiling {steps} …", "text")]
    return [(f" {glyphs.FLAG} ", "capture"), (f"capture armed: {steps}", "text")]


def gist_row(gist: Gist, *, fresh: bool) -> Row:
    """Return what the newest trace says first.

    Args:
        gist: It.
        fresh: Nobody has opened that trace yet.
    """
    role = gist.level if gist.level in ("good", "warn", "bad") else "info"
    row: Row = [(f" {glyphs.FLAG} ", role), (sanitize(gist.line), "text")]
    return [*row, (" — enter opens it", "dim")] if fresh else row


def over_row(status: Status, errors: list[str], now_ns: int, missing: Sequence[str] = ()) -> Row:
    """Return how the run ended, with the last thing it said on standard error.

    Args:
        status: How it stands.
        errors: Last lines of its standard error.
        now_ns: How long it ran.
        missing: What is not there of it, each in a clause.
    """
    glyph, role = _STATES[status.state]
    said = {
        "finished": f"finished after {format_ns(now_ns)}",
        "failed": f"{status} after {format_ns(now_ns)}",
        "stopped": f"stopped after {format_ns(now_ns)}",
        "interrupted": f"{status}: what was recorded until then is all here",
    }.get(status.state, str(status))
    row: Row = [(f" {glyph} ", role), (said, "text")]
    row.extend((f"{glyphs.DOT}{sanitize(what)}", "warn") for what in missing)
    if status.state == "failed" and errors:
        row.extend([(" — ", "dim"), (errors[-1].strip(), "bad")])
    return row

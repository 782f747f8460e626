"""Devices of the machine: their readings from the fold, and one block per device in as much detail as fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tuiprof.model.units import format_bytes
from tuiprof.report.sanitize import sanitize
from tuiprof.session.live.fold import DeviceHistory, Fold
from tuiprof.session.live.sharing import device_of
from tuiprof.session.live.writer_state import WriterState
from tuiprof.session.store.meta import DeviceMeta, SessionMeta
from tuiprof.telemetry.figures import WORDS, figure, headline, show
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Lines, Row, fit, row_width

#: Readings handed to a panel: no terminal is wider.
_HISTORY = 240


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device, with its last readings."""

    key: str  # its key in samples
    kind: str  # ``"host"``, ``"nvidia"``, …
    name: str  # product name; untrusted
    memory_bytes: int | None = None  # total memory; None = unknown
    #: What is fixed (``cores``, ``power_limit_w``, …).
    details: Mapping[str, str | float | int] = field(default_factory=dict)
    latest: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)  # the last readings that are words (``throttle``)
    #: Past values of the figures that are drawn as history, oldest first.
    history: Mapping[str, Sequence[float]] = field(default_factory=dict)
    #: The framework's own view: allocated, reserved and peak bytes; None = not given.
    allocator: tuple[int, int, int] | None = None
    foreign: bool = False  # the run does not use it: others may

    @property
    def label(self) -> str:
        """The name of the block: ``GPU 0``, ``host``."""
        key = self.key.partition("@")[0]
        number = "".join(char for char in key if char.isdigit())
        word = {"nvidia": "GPU", "amd": "GPU", "neuron": "core", "tpu": "TPU"}.get(self.kind, "")
        return f"{word} {number}" if word else sanitize(key)

    def limit(self, key: str) -> float | None:
        """Return the value of a figure at which its bar is full."""
        if key == "mem_used_bytes":
            return self.memory_bytes
        if key == "power_w" and (limit := self.details.get("power_limit_w")):
            return float(limit)
        if key == "tree_cpu":
            return float(self.cores) if self.cores else None
        if key == "tree_rss_bytes":
            return self.memory_bytes
        return figure(key).full

    @property
    def cores(self) -> int:
        """Number of cores; 0 = unknown."""
        return int(self.details.get("cores", 0)) or sum(
            key.startswith("core") and key.endswith("_util") for key in self.latest
        )


def device_views(
    fold: Fold,
    devices: Sequence[DeviceMeta],
    rank: WriterState | None,
    others: Set[str] = frozenset(),
    *,
    over: bool = False,
) -> list[DeviceView]:
    """Return the run's accelerators, the host, and the accelerators of others (their keys are ``others``).

    Of a run of several hosts: those of the host of the rank that is shown.

    Of a run that is over the figures are those of its last steps: the last readings are of a machine without it.
    """
    until_ns = max((writer.last_step_ns for writer in fold.ranks), default=0) if over else 0
    known = {device.key: device for device in devices}
    on_host = "".join(rank.name.partition("@")[1:]) if rank is not None else ""
    here = (key for key in fold.devices if "".join(key.partition("@")[1:]) == on_host)
    keys = list(dict.fromkeys((*known, *here)))
    allocators = _allocators(devices, rank, others)
    views = []
    for key in keys:
        device, history = known.get(key), fold.devices.get(key)
        if history is None:
            continue
        kind = device.kind if device else key.partition("@")[0].rstrip("0123456789")
        memory = device.memory_bytes if device else None
        views.append(
            DeviceView(
                key=key,
                kind=kind,
                name=device.name if device else "",
                memory_bytes=memory or int(history.last.get("mem_total_bytes", 0)) or None,
                details=device.details if device else {},
                latest=_readings_at(history, until_ns) if until_ns > 0 else history.last,
                words=history.text,
                history=_histories(history, kind),
                allocator=allocators.get(key),
                foreign=key in others,
            )
        )
    # Accelerators first.
    return sorted(views, key=lambda view: (view.foreign, view.kind == "host"))


def _readings_at(history: DeviceHistory, at_ns: int) -> Mapping[str, float]:
    """Return the last value of each figure at a moment; the newest ones where none is kept from before it."""
    count = int(np.searchsorted(history.t_ns, at_ns, side="right"))
    found = dict(history.last)
    for name in found:
        values = history.figure(name)[:count]
        known = np.flatnonzero(~np.isnan(values))
        if len(known):
            found[name] = float(values[known[-1]])
    return found


def _histories(history: DeviceHistory, kind: str) -> dict[str, list[float]]:
    """Return the last readings of the figures that are drawn as history."""
    return {
        name: history.figure(name)[-_HISTORY:].tolist()
        for name in headline(kind, history.last)
        if name not in ("loaders", "loaders_idle", "errors")
    }


def _allocators(
    devices: Sequence[DeviceMeta], rank: WriterState | None, others: Set[str]
) -> dict[str, tuple[int, int, int]]:
    """Return the framework's own memory figures by device key: allocated, reserved and peak bytes.

    A process that does not say which device an index means is taken to count the run's devices as the
    monitor does, where that can be said: all are the run's, or one is.
    """
    own = [device for device in devices if device.kind != "host" and device.key not in others]
    countable = len(own) == 1 or not others
    found = {}
    for index, series in rank.memory.items() if rank is not None else ():
        if rank is not None and index in rank.uses:
            device = device_of(rank.uses[index], devices)
        else:
            device = own[index] if countable and 0 <= index < len(own) else None
        if device is not None and series.last is not None:
            found[device.key] = series.last.alloc, series.last.reserved, series.last.peak
    return found


def absent_word(backend: str) -> str:
    """Return what people call the hardware that a telemetry backend looks for."""
    words = {"nvidia": "NVIDIA GPU", "amd": "AMD GPU", "neuron": "Neuron", "tpu": "TPU"}
    return words.get(backend, sanitize(backend))


def device_notes(meta: SessionMeta, *, known: bool, over: bool) -> list[str]:
    """Return which hardware is missing, or why there is no reading yet."""
    if not known:
        return ["no readings" if over else "waiting for the first reading …"]
    if any(device.kind != "host" for device in meta.devices):
        missing = [absent_word(name) for name in meta.absent]
        return [f"not found: {', '.join(missing)}"] if missing else []
    names = ", ".join(absent_word(name) for name in meta.absent)
    return [f"no {names} found: tuiprof doctor"] if names else []


#: Detail of an accelerator and of the host, tried from the fullest until it fits.
_DETAIL = ((2, 2), (2, 1), (1, 1), (1, 0), (0, 0))
#: Label and right-aligned value together.
_PAIR = 33
#: Said of devices that the run does not use.
OF_OTHERS: Final = "not this run's"


class DevicePanel(Lines):
    """Every device of the run."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - the name Textual uses
        super().__init__(id=id)
        self.compact = False
        self._devices: list[DeviceView] = []
        self._notes: list[str] = []

    def show(self, devices: list[DeviceView], notes: list[str]) -> None:
        """Show new readings."""
        before = self.height_for(0), len(self._notes)
        self._devices, self._notes = devices, notes
        if before != (self.height_for(0), len(self._notes)):
            self.lay_out_anew()
        self.redraw()

    def height_for(self, width: int) -> int:
        """Return the height of the compact form: one line a device of the run, one for all others.

        The full form takes what it gets.
        """
        own = sum(not device.foreign for device in self._devices)
        return max(1, own + (own < len(self._devices)))

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw with the most detail that fits; the run's devices before those of others."""
        height = height or self.height_for(width)
        own = [device for device in self._devices if not device.foreign]
        others = [device for device in self._devices if device.foreign]
        rows: list[Row] = []
        for detail in _DETAIL if not self.compact else _DETAIL[-1:]:
            rows = [row for device in own for row in _block(device, detail, width, own)]
            each = not self.compact and len(rows) + len(others) <= height
            rows.extend(foreign_rows(others, width, each=each))
            if len(rows) <= height:
                break
        if len(rows) > height > 0:
            left = len(rows) - height + 1
            rows = [*rows[: height - 1], [(f" {glyphs.ELLIPSIS} {left} more: enlarge the terminal", "dim")]]
        rows.extend([(f" {sanitize(note)}", "dim")] for note in self._notes)
        return [fit(row, width) for row in rows]


def _block(device: DeviceView, detail: tuple[int, int], width: int, among: Sequence[DeviceView]) -> list[Row]:
    """Return the lines of one device: 0 one line, 1 three lines, 2 one line a figure."""
    level = detail[1] if device.kind == "host" else detail[0]
    if level == 0:
        return [one_line(device, width, among)]
    return _short(device, width) if level == 1 else _full(device, width)


def one_line(device: DeviceView, width: int, among: Sequence[DeviceView] = ()) -> Row:
    """Return the state of a device in one line: what does not fit whole is left out, history last."""
    alike = [other for other in among if other.kind == device.kind]
    row: Row = [(f" {device.label:<6}", "title")]
    parts: list[Row] = []
    keys = _headline(device)
    if device.kind == "host" and "tree_cpu" in keys:
        keys = [key for key in keys if key not in ("util", "mem_used_bytes")]
    for key in keys:
        # Watts, degrees and megahertz say by themselves what they are of.
        said = [] if figure(key).unit else [(f"{figure(key).label} ", "dim")]
        room = max((len(_value(other, key)) for other in alike if key in other.latest), default=0)
        parts.append([*said, (_value(device, key).rjust(room), "text")])
    parts.extend(_words(device))
    for part in parts:
        separator = [(glyphs.DOT, "rule")] if len(row) > 1 else []
        if row_width(row) + row_width([*separator, *part]) > width:
            break
        row = [*row, *separator, *part]
    room = width - row_width(row) - 3
    if room >= 8:
        main = next(iter(_headline(device)), "util")
        row.extend([("  ", "text"), (_spark(device, main, min(room, 40)), "history")])
    return row


def foreign_rows(devices: Sequence[DeviceView], width: int, *, each: bool) -> list[Row]:
    """Return the devices that are not the run's, dimmed: how busy and full they are, no more."""
    if each:
        return [_foreign(device) for device in devices]
    if not devices:
        return []
    used = [device.latest["util"] for device in devices if "util" in device.latest]
    named = glyphs.DOT.join(f"{device.label} {show('util', device.latest.get('util'))}" for device in devices)
    row: Row = [(f" {OF_OTHERS}  {named}", "dim")]
    if row_width(row) <= width:
        return [row]
    span = f": util {show('util', min(used))} to {show('util', max(used))}" if used else ""
    return [[(f" {OF_OTHERS}  {len(devices)} devices{span}", "dim")]]


def _foreign(device: DeviceView) -> Row:
    """Return the one line of a device that is not the run's; its figures are below those of the others."""
    util = _pair("util", show("util", device.latest.get("util")), "dim", _PAIR - 6)
    memory = _pair("mem", _value(device, "mem_used_bytes"), "dim", _PAIR - 9)
    return [(f" {device.label:<6} ", "dim"), *util, ("   ", "text"), *memory, (f"   {OF_OTHERS}", "dim")]


def _short(device: DeviceView, width: int) -> list[Row]:
    """Return three lines: two figures with history, the rest in words."""
    rows: list[Row] = []
    keys = _headline(device)
    for index, key in enumerate(keys[:2]):
        head = f" {device.label:<6} " if index == 0 else " " * 8
        rows.append([(head, "title"), *_figure_line(device, key, width - 8, _PAIR - 6)])
    parts: list[Row] = [[(f"{figure(key).label} ", "dim"), (_value(device, key), "text")] for key in keys[2:]]
    rest: Row = [(" " * 8, "text")]
    for part in [*parts, *_words(device)]:
        separator = [(glyphs.DOT, "rule")] if len(rest) > 1 else []
        if row_width(rest) + row_width([*separator, *part]) > width:
            break
        rest = [*rest, *separator, *part]
    if len(rest) > 1:
        rows.append(rest)
    return rows


def _full(device: DeviceView, width: int) -> list[Row]:
    """Return a heading and one line a figure, then the pairs that have no history."""
    rows: list[Row] = [[(f" {device.label}  ", "title"), (sanitize(device.name), "dim")]]
    # A history needs an end to be a share of; how full a bar of degrees is would say nothing.
    drawn = [key for key in _headline(device) if device.history.get(key) and device.limit(key)]
    rows.extend([("  ", "text"), *_figure_line(device, key, width - 2)] for key in drawn)
    if "core0_util" in device.latest:
        rows.append(_cores(device, width))
    if device.allocator:
        allocated, reserved, peak = device.allocator
        row: Row = [("  ", "text"), *_pair("allocator", format_bytes(allocated), "strong", _PAIR)]
        for label, size in (("peak", peak), ("reserved", reserved)):
            part: Row = [("   ", "text"), (f"{label} ", "dim"), (format_bytes(size), "text")]
            if row_width(row) + row_width(part) <= width:
                row.extend(part)
        rows.append(row)
    skip = {*drawn, "mem_total_bytes", "energy_j", "loaders_idle"}
    rest = [
        key
        for key in device.latest
        if key not in skip and not key.startswith(("core", "pid")) and not _silent(device, key)
    ]
    pairs = [(figure(key).label, _value(device, key), "text") for key in rest]
    pairs.extend(
        (WORDS.get(key, sanitize(key)), sanitize(word) or "none", "text" if _calm(key, word) else "warn")
        for key, word in device.words.items()
    )
    rows.extend(_pairs(pairs, width))
    if (processes := _processes(device, width)) is not None:
        rows.append(processes)
    return rows


def _processes(device: DeviceView, width: int) -> Row | None:
    """Return the processes that hold memory on the device, largest first; None = unknown, or only one."""
    held = {
        key.removeprefix("pid").partition("_")[0]: size
        for key, size in device.latest.items()
        if key.startswith("pid") and key.endswith("_mem_used_bytes")
    }
    ours = device.latest.get("tree_mem_used_bytes")
    if len(held) < 2 and (ours is None or sum(held.values()) <= ours):
        return None
    row: Row = [("  ", "text"), ("processes", "dim")]
    for pid, size in sorted(held.items(), key=lambda item: -item[1]):
        part: Row = [(f"   pid {pid} ", "dim"), (format_bytes(size), "text")]
        if row_width(row) + row_width(part) > width - 2:
            return [*row, (f" {glyphs.ELLIPSIS}", "dim")]
        row.extend(part)
    others = sum(held.values()) - ours if ours is not None else 0.0
    if others >= 0.01 * sum(held.values()):
        part = [("   not this run ", "dim"), (format_bytes(others), "warn")]
        if row_width(row) + row_width(part) <= width:
            row.extend(part)
    return row


def _silent(device: DeviceView, key: str) -> bool:
    """Return whether a figure is left out while it is 0: errors that did not happen, swap not used."""
    return device.latest[key] == 0 and key in {
        "ecc_corrected",
        "ecc_uncorrected",
        "swap_used_bytes",
        "io_wait",
        "errors",
        "loaders",
    }


def _pairs(pairs: list[tuple[str, str, str]], width: int) -> list[Row]:
    """Return label, right-aligned value and role of figures without history, in columns."""
    columns = max(1, (width + 1) // (_PAIR + 3))
    rows: list[Row] = []
    for start in range(0, len(pairs), columns):
        row: Row = [("  ", "text")]
        for label, value, role in pairs[start : start + columns]:
            row.extend([*_pair(label, value, role, _PAIR), ("   ", "text")])
        rows.append(row)
    return rows


def _pair(label: str, value: str, role: str, width: int) -> Row:
    """Return a label and its value, flush with both edges of ``width`` cells."""
    room = max(1, width - len(value))
    return [(f"{label[: room - 1]:<{room}}", "dim"), (value, role)]


def _figure_line(device: DeviceView, key: str, width: int, pair: int = _PAIR) -> Row:
    """Return label, right-aligned value and history of one figure."""
    row = _pair(figure(key).label, _value(device, key), "strong", pair)
    room = width - row_width(row) - 3
    if room >= 6:
        row.extend([("  ", "text"), (_spark(device, key, room), "history")])
    return row


def _cores(device: DeviceView, width: int) -> Row:
    """Return one bar per core, in order; if they do not fit, means of groups of neighbors."""
    names = (f"core{index}_util" for index in range(device.cores))
    shares = [device.latest[name] for name in names if name in device.latest]
    busy = f"{sum(share > 0.05 for share in shares)} of {len(shares)} busy"
    label: Row = [("  ", "text"), *_pair("cores", busy, "strong", _PAIR)]
    room = max(4, width - row_width(label) - 3)
    group = -(-len(shares) // room)
    means = [
        sum(shares[at : at + group]) / len(shares[at : at + group]) for at in range(0, len(shares), group)
    ]
    # Few cores get wide bars, with a gap between two of them.
    wide = max(1, min(8, room // len(means) - 1))
    bars = [glyphs.sparkline([mean], 1) * wide for mean in means]
    return [*label, ("  ", "text"), ((" " if wide > 1 else "").join(bars), "history")]


def _headline(device: DeviceView) -> list[str]:
    """Return the figures to show first; idle loaders are part of the loaders' figure."""
    skip = {"loaders_idle"} if device.latest.get("loaders") else {"loaders_idle", "loaders"}
    return [key for key in headline(device.kind, device.latest) if key not in skip]


def _value(device: DeviceView, key: str) -> str:
    """Return a figure with its unit and, if it has one, its maximum."""
    value = device.latest.get(key)
    if key == "mem_used_bytes" and device.memory_bytes:
        used, total = format_bytes(value), format_bytes(device.memory_bytes)
        number, unit = used.rsplit(" ", 1)
        # One unit for both is enough.
        return f"{number} of {total}" if total.endswith(unit) else f"{used} of {total}"
    if key == "loaders" and "loaders_idle" in device.latest:
        return f"{show(key, value)}, {device.latest['loaders_idle']:.0f} idle"
    if key == "tree_cpu" and device.cores:
        percent = 100 * (value or 0.0)
        return f"{percent:.{0 if percent >= 10 else 1}f} % of {device.cores} cores"
    return show(key, value)


def _spark(device: DeviceView, key: str, width: int) -> str:
    """Return the history of a figure as bars, full at its natural end or at its own maximum."""
    history = list(device.history.get(key, ()))[-width:]
    top = device.limit(key) or max((value for value in history if value == value), default=0.0)
    return glyphs.sparkline(
        [None if value != value else value / top if top else 0.0 for value in history], width
    )


def _calm(key: str, word: str) -> bool:
    """Return whether a reading in words is normal."""
    return key == "throttle" and word in ("", "none", "idle")


def _words(device: DeviceView) -> list[Row]:
    """Return the readings that are words; that clocks are held back is a warning."""
    return [
        [("no throttle", "dim")]
        if _calm(key, word)
        else [(f"{WORDS.get(key, sanitize(key))}: {sanitize(word)}", "warn")]
        for key, word in device.words.items()
    ]

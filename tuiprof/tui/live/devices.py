"""Devices of the machine: readings from the fold, and a panel that shows them in as much detail as fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tuiprof.model.units import format_bytes
from tuiprof.report.sanitize import sanitize
from tuiprof.session.live.fold import DeviceHistory, Fold, WriterState
from tuiprof.session.live.sharing import device_of
from tuiprof.session.store.meta import DeviceMeta, SessionMeta
from tuiprof.telemetry.figures import WORDS, figure, headline, show
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Lines, Row, Span, fit, row_width

#: Past readings passed to the panel, one a cell: more than a terminal is wide.
_HISTORY = 240


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device and its latest readings."""

    key: str  # its key in samples
    kind: str  # ``"host"``, ``"nvidia"``, …
    name: str  # product name; untrusted
    memory_bytes: int | None = None  # total memory; None = unknown
    #: Fixed properties (``cores``, ``power_limit_w``, …).
    details: Mapping[str, str | float | int] = field(default_factory=dict)
    latest: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)  # latest readings that are text (``throttle``)
    #: Past values of the figures drawn as sparklines, oldest first.
    history: Mapping[str, Sequence[float]] = field(default_factory=dict)
    #: The framework's allocator: allocated, reserved and peak bytes; None = not reported.
    allocator: tuple[int, int, int] | None = None
    foreign: bool = False  # not used by this run

    @property
    def label(self) -> str:
        """Short name: ``GPU 0``, ``host``."""
        key = self.key.partition("@")[0]
        number = "".join(char for char in key if char.isdigit())
        word = {"nvidia": "GPU", "amd": "GPU", "neuron": "core", "tpu": "TPU"}.get(self.kind, "")
        return f"{word} {number}" if word else sanitize(key)

    def limit(self, key: str) -> float | None:
        """Return the value of a figure at which its bar is full; None = no fixed maximum."""
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
    """Return the run's accelerators, the host, then accelerators that the run does not use (keys in ``others``).

    For a run on several hosts: the devices of the shown rank's host. For a run that is over, readings are those at
    its last step, because later ones were taken without the script.
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
    return sorted(views, key=lambda view: (view.foreign, view.kind == "host"))


def _readings_at(history: DeviceHistory, at_ns: int) -> Mapping[str, float]:
    """Return each figure's last value before a moment; its newest value if none that old is kept."""
    count = int(np.searchsorted(history.t_ns, at_ns, side="right"))
    found = dict(history.last)
    for name in found:
        values = history.figure(name)[:count]
        known = np.flatnonzero(~np.isnan(values))
        if len(known):
            found[name] = float(values[known[-1]])
    return found


def _histories(history: DeviceHistory, kind: str) -> dict[str, list[float]]:
    """Return the past values of the figures drawn as sparklines."""
    return {
        name: history.figure(name)[-_HISTORY:].tolist()
        for name in headline(kind, history.last)
        if name not in ("loaders", "loaders_idle", "errors")
    }


def _allocators(
    devices: Sequence[DeviceMeta], rank: WriterState | None, others: Set[str]
) -> dict[str, tuple[int, int, int]]:
    """Return the framework's allocated, reserved and peak bytes by device key.

    If a process does not report which device an index refers to, indices are assumed to follow the monitor's
    order of the run's devices; only if the run uses all devices or exactly one.
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
    """Return the display name of the hardware that a telemetry backend looks for."""
    words = {"nvidia": "NVIDIA GPU", "amd": "AMD GPU", "neuron": "Neuron", "tpu": "TPU"}
    return words.get(backend, sanitize(backend))


def device_notes(meta: SessionMeta, *, known: bool, over: bool) -> list[str]:
    """Return notes on missing hardware, or on why there are no readings."""
    if not known:
        return ["no readings" if over else "waiting for the first reading …"]
    if any(device.kind != "host" for device in meta.devices):
        missing = [absent_word(name) for name in meta.absent]
        return [f"not found: {', '.join(missing)}"] if missing else []
    names = ", ".join(absent_word(name) for name in meta.absent)
    return [f"no {names} found: tuiprof doctor"] if names else []


#: Levels of detail of (accelerators, host), see :func:`_block`; the first that fits is used.
_DETAIL = ((2, 2), (2, 1), (1, 1), (1, 0), (0, 0))
#: A core that works for a larger share of the time counts as busy.
_BUSY: Final = 0.5
#: Width of a label with its right-aligned value, cells.
_PAIR = 33
#: Label of devices that the run does not use.
OF_OTHERS: Final = "not this run's"


class DevicePanel(Lines):
    """The devices of the machine, those of the run first."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - the name Textual uses
        super().__init__(id=id)
        self.compact = False
        self._devices: list[DeviceView] = []
        self._notes: list[str] = []

    def show(self, devices: list[DeviceView], notes: list[str]) -> None:
        before = self.height_for(0), len(self._notes)
        self._devices, self._notes = devices, notes
        if before != (self.height_for(0), len(self._notes)):
            self.request_layout()
        self.redraw()

    def height_for(self, width: int) -> int:
        """Return the height of the compact form: one line a device of the run, one for all others.

        The full form fills its container.
        """
        own = sum(not device.foreign for device in self._devices)
        return max(1, own + (own < len(self._devices)))

    def draw(self, width: int, height: int) -> list[Row]:
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
    """Return the lines of one device. Level 0 is one line, 1 three lines, 2 one line a figure."""
    level = detail[1] if device.kind == "host" else detail[0]
    if level == 0:
        return [one_line(device, width, among)]
    return _short(device, width) if level == 1 else _full(device, width)


def one_line(device: DeviceView, width: int, among: Sequence[DeviceView] = ()) -> Row:
    """Return a device in one line: figures that do not fit are left out; a sparkline fills what remains."""
    alike = [other for other in among if other.kind == device.kind]
    parts: list[Row] = []
    keys = _headline(device)
    if device.kind == "host" and "tree_cpu" in keys:
        keys = [key for key in keys if key not in ("util", "mem_used_bytes")]
    for key in keys:
        # A figure with a unit (W, °C, MHz) needs no label.
        said = [] if figure(key).unit else [(f"{figure(key).label} ", "dim")]
        room = max((len(_value(other, key)) for other in alike if key in other.latest), default=0)
        parts.append([*said, (_value(device, key).rjust(room), "text")])
    row = _as_fits((f" {device.label:<6}", "title"), [*parts, *_words(device)], width)
    room = width - row_width(row) - 3
    if room >= 8:
        main = next(iter(_headline(device)), "util")
        row.extend([("  ", "text"), (_spark(device, main, min(room, 40)), "history")])
    return row


def foreign_rows(devices: Sequence[DeviceView], width: int, *, each: bool) -> list[Row]:
    """Return the devices that the run does not use, dimmed, with utilisation and memory only."""
    if each:
        return [_foreign(device, width) for device in devices]
    if not devices:
        return []
    used = [device.latest["util"] for device in devices if "util" in device.latest]
    named = glyphs.DOT.join(f"{device.label} {show('util', device.latest.get('util'))}" for device in devices)
    row: Row = [(f" {OF_OTHERS}  {named}", "dim")]
    if row_width(row) <= width:
        return [row]
    span = f": util {show('util', min(used))} to {show('util', max(used))}" if used else ""
    return [[(f" {OF_OTHERS}  {len(devices)} devices{span}", "dim")]]


def _foreign(device: DeviceView, width: int) -> Row:
    """Return the line of a device that the run does not use; if there is room, its figures align with the others'."""
    used, memory = show("util", device.latest.get("util")), _value(device, "mem_used_bytes")
    pairs = [
        *_pair("util", used, "dim", _PAIR - 6),
        ("   ", "text"),
        *_pair("mem", memory, "dim", _PAIR - 9),
    ]
    label = f" {device.label:<6} "
    row: Row = [(label, "dim"), *pairs, (f"   {OF_OTHERS}", "dim")]
    if row_width(row) <= width:
        return row
    return [(f"{label}{OF_OTHERS}  util {used}  mem {memory}", "dim")]


def _short(device: DeviceView, width: int) -> list[Row]:
    """Return up to three lines: two figures with sparklines, then the rest."""
    rows: list[Row] = []
    keys = _headline(device)
    for index, key in enumerate(keys[:2]):
        head = f" {device.label:<6} " if index == 0 else " " * 8
        rows.append([(head, "title"), *_figure_line(device, key, width - 8, _PAIR - 6)])
    parts: list[Row] = [[(f"{figure(key).label} ", "dim"), (_value(device, key), "text")] for key in keys[2:]]
    rest = _as_fits((" " * 8, "text"), [*parts, *_words(device)], width)
    return [*rows, rest] if len(rest) > 1 else rows


def _as_fits(head: Span, parts: list[Row], width: int) -> Row:
    """Return a line with a head and as many parts as fit."""
    row = [head]
    for part in parts:
        longer = [*row, *([(glyphs.DOT, "rule")] if len(row) > 1 else []), *part]
        if row_width(longer) > width:
            break
        row = longer
    return row


def _full(device: DeviceView, width: int) -> list[Row]:
    """Return a heading, one line for each figure with a sparkline, then the other figures in columns."""
    rows: list[Row] = [[(f" {device.label}  ", "title"), (sanitize(device.name), "dim")]]
    # A sparkline needs a maximum; a temperature has none that means "full".
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
    """Return the processes with memory on the device, largest first; None = unknown, or only the run's own."""
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
    """Return whether a figure is hidden because it is 0 (errors, swap, …)."""
    return device.latest[key] == 0 and key in {
        "ecc_corrected",
        "ecc_uncorrected",
        "swap_used_bytes",
        "io_wait",
        "errors",
        "loaders",
    }


def _pairs(pairs: list[tuple[str, str, str]], width: int) -> list[Row]:
    """Return (label, value, role) triples laid out in columns."""
    columns = max(1, (width + 1) // (_PAIR + 3))
    rows: list[Row] = []
    for start in range(0, len(pairs), columns):
        row: Row = [("  ", "text")]
        for label, value, role in pairs[start : start + columns]:
            row.extend([*_pair(label, value, role, _PAIR), ("   ", "text")])
        rows.append(row)
    return rows


def _pair(label: str, value: str, role: str, width: int) -> Row:
    """Return a left-aligned label and a right-aligned value in ``width`` cells."""
    room = max(1, width - len(value))
    return [(f"{label[: room - 1]:<{room}}", "dim"), (value, role)]


def _figure_line(device: DeviceView, key: str, width: int, pair: int = _PAIR) -> Row:
    """Return label, right-aligned value and sparkline of one figure."""
    row = _pair(figure(key).label, _value(device, key), "strong", pair)
    room = width - row_width(row) - 3
    if room >= 6:
        row.extend([("  ", "text"), (_spark(device, key, room), "history")])
    return row


def _cores(device: DeviceView, width: int) -> Row:
    """Return one bar per core, in order; if they do not fit, means of groups of neighbors."""
    names = (f"core{index}_util" for index in range(device.cores))
    shares = [device.latest[name] for name in names if name in device.latest]
    busy = f"{sum(share > _BUSY for share in shares)} of {len(shares)} busy"
    label: Row = [("  ", "text"), *_pair("cores", busy, "strong", _PAIR)]
    room = max(4, width - row_width(label) - 3)
    group = -(-len(shares) // room)
    means = [
        sum(shares[at : at + group]) / len(shares[at : at + group]) for at in range(0, len(shares), group)
    ]
    # Few cores get wide bars, separated by a space.
    wide = max(1, min(8, room // len(means) - 1))
    bars = [glyphs.sparkline([mean], 1) * wide for mean in means]
    return [*label, ("  ", "text"), ((" " if wide > 1 else "").join(bars), "history")]


def _headline(device: DeviceView) -> list[str]:
    """Return the keys of the main figures; idle loaders are shown with the loaders."""
    skip = {"loaders_idle"} if device.latest.get("loaders") else {"loaders_idle", "loaders"}
    return [key for key in headline(device.kind, device.latest) if key not in skip]


def _value(device: DeviceView, key: str) -> str:
    """Return the formatted value of a figure, with its maximum if known."""
    value = device.latest.get(key)
    if key == "mem_used_bytes" and device.memory_bytes:
        used, total = format_bytes(value), format_bytes(device.memory_bytes)
        number, unit = used.rsplit(" ", 1)
        # Omit the first unit if both are the same.
        return f"{number} of {total}" if total.endswith(unit) else f"{used} of {total}"
    if key == "loaders" and "loaders_idle" in device.latest:
        return f"{show(key, value)}, {device.latest['loaders_idle']:.0f} idle"
    if key == "tree_cpu" and device.cores:
        busy = value or 0.0
        return f"{busy:.{1 if busy >= 0.1 else 2}f} of {device.cores} cores"
    return show(key, value)


def _spark(device: DeviceView, key: str, width: int) -> str:
    """Return a figure's history as a sparkline, scaled to its limit, else to its own maximum."""
    history = list(device.history.get(key, ()))[-width:]
    top = device.limit(key) or max((value for value in history if value == value), default=0.0)
    return glyphs.sparkline(
        [None if value != value else value / top if top else 0.0 for value in history], width
    )


def _calm(key: str, word: str) -> bool:
    """Return whether a text reading needs no warning."""
    return key == "throttle" and word in ("", "none", "idle")


def _words(device: DeviceView) -> list[Row]:
    """Return the text readings; throttled clocks are a warning."""
    return [
        [("no throttle", "dim")]
        if _calm(key, word)
        else [(f"{WORDS.get(key, sanitize(key))}: {sanitize(word)}", "warn")]
        for key, word in device.words.items()
    ]

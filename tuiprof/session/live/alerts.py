"""Alerts of a run, each with its rule, as pure functions of the fold."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from tuiprof.model.units import format_bytes, format_ns, format_share
from tuiprof.probe.slowdown import RULE as SLOWER_RULE
from tuiprof.probe.slowdown import STALL_NS, STALL_TIMES, stall_after_ns
from tuiprof.session.live.fold import DeviceHistory, Fold, WriterState
from tuiprof.session.live.hosts import SILENT_S, HostState, lost_hosts
from tuiprof.session.live.series import JITTER_RULE, Floats, Ints
from tuiprof.session.log import NotFinite, OutOfMemory
from tuiprof.session.store.output import MIN_FREE_BYTES

Level = Literal["warn", "bad"]

_SECOND: Final = 1_000_000_000
#: Utilisation collapse: the median of this recent period is below this share of the median of the preceding period,
#: which was at least this high.
COLLAPSE_NS: Final = 20 * _SECOND
COLLAPSE_SHARE, COLLAPSE_BEFORE_NS, COLLAPSE_FROM = 0.5, 120 * _SECOND, 0.40
#: Memory creep: the minimum rises from each of this many equal parts of the window to the next, by this share and this
#: many bytes in total.
CREEP_PARTS, CREEP_NS, CREEP_SHARE, CREEP_BYTES = 6, 600 * _SECOND, 0.03, 64 << 20
#: Time from the start of a run without checks for memory creep, because of one-time allocations.
CREEP_AFTER_NS: Final = 120 * _SECOND
#: Minimum share of the data phase in the step, over this many steps.
DATA_SHARE, DATA_STEPS = 0.15, 50
#: A device is idle below this utilization, over this many readings.
IDLE_UTIL, IDLE_READINGS = 0.60, 20
#: Minimum jitter for varying step times.
JITTER_SHARE: Final = 0.10
_DATA_PHASES: Final = ("data", "load", "dataloader")
_NOT_FINITE: Final = re.compile(r"metric (?P<name>.+) is not recorded: it is (?P<value>nan|inf|-inf)$")
#: Every rule by name.
RULES: Final = {
    "storage": (
        f"less than {format_bytes(MIN_FREE_BYTES)} free on the session's file system, or its files cannot be written"
    ),
    "lost host": (
        f"the recorder of a host ended without a final record, or no record of it (it writes at least every 5 s) "
        f"arrived for {format_ns(SILENT_S * _SECOND)}"
    ),
    "out of memory": "an allocation on a device failed, even if the script caught the error",
    "not a number": "a metric given to tuiprof.step(), or with --watch-nan a loss or gradient, is NaN or infinite",
    "stalled": (
        f"no step for {STALL_TIMES} times the median step and for {format_ns(STALL_NS)}; stacks of all ranks are "
        "recorded"
    ),
    "utilisation collapse": (
        f"median of the last {format_ns(COLLAPSE_NS)} below {format_share(COLLAPSE_SHARE)} of that of the "
        f"{format_ns(COLLAPSE_BEFORE_NS)} before, which was at least {format_share(COLLAPSE_FROM)}"
    ),
    "throttling": "the driver reports a reason for reduced clocks other than an idle device",
    "slower since a capture": SLOWER_RULE,
    "loader starvation": f"the data phase takes {format_share(DATA_SHARE)} or more of the last {DATA_STEPS} steps",
    "memory creep": (
        f"the minimum of each of {CREEP_PARTS} equal parts of the last {format_ns(CREEP_NS)} is above that of the part "
        f"before, by at least {format_share(CREEP_SHARE)} and {format_bytes(CREEP_BYTES)} in total"
    ),
    "idle device": (
        f"median of the last {IDLE_READINGS} readings below {format_share(IDLE_UTIL)} while the script runs steps"
    ),
    "jitter": f"{JITTER_RULE}, of the last 200 steps, above {format_share(JITTER_SHARE)}",
}


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem of a run."""

    name: str  # of the rule
    level: Level
    text: str  # the observation, one clause; untrusted, because it may contain names from the script
    rule: str  # with its thresholds


def alerts(
    fold: Fold,
    rank: WriterState | None,
    now_ns: int,
    others: Set[str] = frozenset(),
    storage: str = "",
    hosts: Sequence[HostState] = (),
) -> list[Alert]:
    """Return the alerts at a session time for the process shown, the worst first.

    ``others`` are devices that the run does not use (see :func:`~tuiprof.session.live.sharing.foreign_devices`);
    ``storage`` is why the run cannot be recorded; ``hosts`` are those of a multi-host run.
    """
    found = [_alert("storage", storage, "bad")] if storage else []
    found += [_alert("lost host", text, "bad") for text in lost_hosts(hosts)]
    found += [*_out_of_memory(fold), *_not_a_number(fold)]
    if rank is not None:
        found += _stalled(fold, rank, now_ns)
    found += [*_collapsed(fold, now_ns, others), *_throttled(fold, others)]
    if rank is not None:
        found += [*_slowed_by_capture(rank, now_ns), *_starved_by_loader(rank, now_ns)]
    found += _creeping(fold, rank, now_ns)
    if rank is not None:
        found += [*_idle(fold, rank, now_ns, others), *_varying(rank, now_ns)]
    found += _noted(fold)
    return sorted(found, key=lambda alert: alert.level != "bad")


def _alert(name: str, text: str, level: Level = "warn") -> Alert:
    return Alert(name, level, text, RULES[name])


def _out_of_memory(fold: Fold) -> list[Alert]:
    """An allocation failed."""
    failed = [it for it in fold.troubles if isinstance(it.record, OutOfMemory)]
    if not failed:
        return []
    first, record = failed[0], failed[0].record
    assert isinstance(record, OutOfMemory)
    times = f", {len(failed)} times so far" if len(failed) > 1 else ""
    wanted = f"{format_bytes(record.wanted)} on device {record.dev}"
    text = f"{first.writer} could not allocate {wanted} at step {record.n}{times}"
    return [_alert("out of memory", text, "bad")]


def _stalled(fold: Fold, rank: WriterState, now_ns: int) -> list[Alert]:
    """No step has ended for a long time."""
    if rank.end is not None or fold.end is not None:
        return []
    last = _rows_until(rank, now_ns)
    if last < 5:
        return []
    median_ns = rank.steps.stats(slice(max(0, last - 200), last)).median_ns
    since_ns = now_ns - int(rank.steps.rows["t_ns"][last - 1])
    if not since_ns >= stall_after_ns(median_ns):
        return []
    text = f"no step for {format_ns(since_ns)}; the median step takes {format_ns(median_ns)}"
    return [_alert("stalled", f"{text}; the stacks show where the process waits", "bad")]


def _not_a_number(fold: Fold) -> list[Alert]:
    """A metric, a loss or a gradient became NaN or infinite."""
    first: dict[str, Alert] = {}
    for it in fold.troubles:
        if isinstance(it.record, NotFinite):
            name = it.record.what.removeprefix("metric ")
            value = {"nan": "NaN"}.get(it.record.value, it.record.value)
            text = f"{name} is {value} since step {it.record.n}, {format_ns(it.t_ns)} into the run"
            first.setdefault(name, _alert("not a number", text, "bad"))
    for note in fold.notes:
        match = _NOT_FINITE.match(note.text)
        if match is not None and match["name"] not in first:
            name, value = match["name"], {"nan": "NaN"}.get(match["value"], match["value"])
            text = f"{name} is {value} since {format_ns(note.t_ns)} into the run"
            first[name] = _alert("not a number", text, "bad")
    return list(first.values())


def _throttled(fold: Fold, others: Set[str]) -> list[Alert]:
    """A device reduces its clocks."""
    return [
        _alert("throttling", f"{_device_name(key)} reduces its clocks: {word}")
        for key, device in fold.devices.items()
        if key not in others and (word := device.text.get("throttle", "")) and word not in ("none", "idle")
    ]


def _slowed_by_capture(rank: WriterState, now_ns: int) -> list[Alert]:
    """Steps take longer since a capture."""
    slowdown, last = rank.steps.slowdown, _rows_until(rank, now_ns)
    if slowdown is None or not last or slowdown.last >= rank.steps.rows["n"][last - 1]:
        return []
    return [
        _alert("slower since a capture", f"{slowdown}; figures of the whole run are from the steps before it")
    ]


def _collapsed(fold: Fold, now_ns: int, others: Set[str]) -> list[Alert]:
    """The utilisation of a device fell."""
    found = []
    for key, name in _utilisation_figures(fold, others):
        t_ns, values = _readings(fold.devices[key], name, now_ns - COLLAPSE_NS - COLLAPSE_BEFORE_NS, now_ns)
        recent = t_ns > now_ns - COLLAPSE_NS
        if recent.sum() < 5 or (~recent).sum() < 30:
            continue
        now, before = float(np.median(values[recent])), float(np.median(values[~recent]))
        if before >= COLLAPSE_FROM and now < COLLAPSE_SHARE * before:
            text = f"{_device_name(key)} is {format_share(now)} busy, down from {format_share(before)}"
            found.append(_alert("utilisation collapse", text, "bad"))
    return found


def _creeping(fold: Fold, rank: WriterState | None, now_ns: int) -> list[Alert]:
    """Memory keeps growing."""
    series: list[tuple[str, Ints, Floats]] = []
    if rank is not None:
        for index, memory in rank.memory.items():
            rows = slice(0, int(np.searchsorted(memory.rows["t_ns"], now_ns, side="right")))
            series.append(
                (f"allocated memory of device {index}", memory.rows["t_ns"][rows], memory.rows["alloc"][rows])
            )
    host = fold.devices.get("host")
    if host is not None:
        series.append(("resident memory of the run", *_readings(host, "tree_rss_bytes", 0, now_ns)))
    found = []
    for what, t_ns, values in series:
        start_ns = max(CREEP_AFTER_NS, now_ns - CREEP_NS)
        if now_ns - start_ns < CREEP_AFTER_NS:
            continue
        edges = np.linspace(start_ns, now_ns, CREEP_PARTS + 1)
        parts = [values[(t_ns >= low) & (t_ns < high)] for low, high in pairwise(edges)]
        if any(not len(part) for part in parts):
            continue
        least = np.array([float(part.min()) for part in parts])
        rise = least[-1] - least[0]
        if (np.diff(least) > 0).all() and rise >= max(CREEP_SHARE * least[0], CREEP_BYTES):
            hourly = rise / (edges[-2] - edges[0]) * 3600e9
            now = format_bytes(round(values[-1]))
            found.append(
                _alert("memory creep", f"{what} grows by {format_bytes(round(hourly))} per hour, now {now}")
            )
    return found


def _starved_by_loader(rank: WriterState, now_ns: int) -> list[Alert]:
    """Steps wait for data."""
    if not len(rank.steps):
        return []
    last = _rows_until(rank, now_ns)
    means = rank.steps.phase_means(slice(max(0, last - DATA_STEPS), last))
    total = sum(means.values())
    for name in _DATA_PHASES:
        share = means.get(name, 0.0) / total if total else 0.0
        if share >= DATA_SHARE:
            text = f"{format_share(share)} of the step is spent waiting for data ({format_ns(means[name])})"
            return [
                _alert(
                    "loader starvation",
                    f"{text}: do less work per sample, or use more loader workers if cores are idle",
                )
            ]
    return []


def _idle(fold: Fold, rank: WriterState, now_ns: int, others: Set[str]) -> list[Alert]:
    """A device is idle too much while the script runs steps."""
    if not _stepping(rank, now_ns):
        return []
    found = []
    # Before the first step, the device is idle because of imports.
    first_ns = int(rank.steps.rows["t_ns"][0])
    for key, name in _utilisation_figures(fold, others):
        if _is_host(key):
            continue
        _, values = _readings(fold.devices[key], name, first_ns, now_ns)
        recent = values[-IDLE_READINGS:]
        if len(recent) >= IDLE_READINGS // 2 and (busy := float(np.median(recent))) < IDLE_UTIL:
            text = f"{_device_name(key)} is busy {format_share(busy)} of the time"
            found.append(_alert("idle device", f"{text} — capture some steps to see what it waits for"))
    return found


def _varying(rank: WriterState, now_ns: int) -> list[Alert]:
    """Step times vary."""
    if not _stepping(rank, now_ns):
        return []
    last = _rows_until(rank, now_ns)
    stats = rank.steps.stats(slice(max(0, last - 200), last))
    if stats.count < 20 or not stats.jitter > JITTER_SHARE:
        return []
    return [_alert("jitter", f"step times vary: jitter {format_share(stats.jitter)} of the median")]


def _noted(fold: Fold) -> list[Alert]:
    """The latest warning of the probe or the recorder."""
    for note in reversed(fold.notes):
        if note.level in ("warn", "bad") and not _NOT_FINITE.match(note.text):
            level: Level = "bad" if note.level == "bad" else "warn"
            return [Alert("note", level, note.text, f"noted by {note.writer}")]
    return []


def _utilisation_figures(fold: Fold, others: Set[str]) -> list[tuple[str, str]]:
    """Return key and utilisation figure of each device; of the host only if the run uses no other device."""
    devices = [(key, "util") for key in fold.devices if not _is_host(key) and key not in others]
    return devices or [(key, "tree_cpu") for key in fold.devices if key not in others]


def _readings(device: DeviceHistory, name: str, first_ns: int, last_ns: int) -> tuple[Ints, Floats]:
    """Return times and values of a figure's kept readings between two times."""
    rows = slice(*np.searchsorted(device.t_ns, (first_ns, last_ns + 1)).tolist())
    values = device.figure(name)[rows]
    known = ~np.isnan(values)
    return device.t_ns[rows][known], values[known]


def _rows_until(rank: WriterState, now_ns: int) -> int:
    return int(np.searchsorted(rank.steps.rows["t_ns"], now_ns, side="right"))


def _stepping(rank: WriterState, now_ns: int) -> bool:
    """Return whether the script has been running steps for a while, and still is."""
    if not len(rank.steps.rows):
        return False
    t_ns = rank.steps.rows["t_ns"]
    return bool(
        t_ns[0] <= now_ns - 10 * _SECOND and t_ns[-1] >= now_ns - 2 * _SECOND and len(t_ns) >= IDLE_READINGS
    )


def _is_host(key: str) -> bool:
    return key.partition("@")[0] == "host"


def _device_name(key: str) -> str:
    """Return the name of a device: ``GPU 0``, ``GPU 0 of node2``."""
    device, _, host = key.partition("@")
    name = f"GPU {device[3:]}" if device.startswith("gpu") else device
    return f"{name} of {host}" if host else name

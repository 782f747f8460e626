"""Reports of ``neuron-monitor``, the state of each NeuronCore that they report, and recordings of them.

Structure and units follow the Neuron Monitor user guide (utilisation in percent, latencies in seconds).
Every group is optional: which ones a report holds depends on the monitor's configuration and on their period.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tuiprof.errors import TraceError
from tuiprof.formats.source import Damaged, Source
from tuiprof.model.devices import Device, Sample
from tuiprof.system.monitors import documents

if TYPE_CHECKING:
    from tuiprof.model import Trace


_LATENCIES: Final = (("total_latency", "latency"), ("device_latency", "device_latency"))
_PERCENTILES: Final = (("p50", "p50"), ("p99", "p99"), ("p100", "max"))
_NS: Final = 1e9
#: Plausibility limits: a report with more cores, a longer period or a larger figure is damaged.
_MAX_CORES: Final = 4096
_LONGEST_PERIOD_S: Final = 86_400.0
_LARGEST: Final = 1e18


class Reports:
    """State from all reports so far; a newer report replaces only the groups it contains.

    Safe to fill from one thread and to read from another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runtimes: dict[int, dict[str, Any]] = {}
        self._runtime_errors: dict[int, str] = {}
        self._system: dict[str, Any] = {}
        self._hardware: dict[str, Any] = {}
        self._instance: dict[str, Any] = {}
        self.count = 0

    def take(self, report: dict[str, Any]) -> None:
        """Process one report."""
        with self._lock:
            self.count += 1
            self._instance.update(_object(report, "instance_info"))
            self._hardware.update(_object(report, "neuron_hardware_info"))
            self._system.update(_object(report, "system_data"))
            runtimes = report.get("neuron_runtime_data")
            if isinstance(runtimes, dict):
                runtimes = list(runtimes.values())
            if not isinstance(runtimes, list):
                return
            present = [item for item in runtimes if isinstance(item, dict)]
            before = self._runtimes
            self._runtimes = {
                _pid(item): before.get(_pid(item), {}) | _object(item, "report") for item in present
            }
            self._runtime_errors = {_pid(item): str(item.get("error") or "") for item in present}

    @property
    def cores(self) -> int:
        """Number of logical NeuronCores of the machine, as the driver counts them; 0 = not reported."""
        with self._lock:
            cores = _number(self._hardware, "neuron_device_count") * self._cores_a_device
            return int(cores) if 0 <= cores <= _MAX_CORES else 0

    @property
    def _cores_a_device(self) -> int:
        return int(_number(self._hardware, "neuroncore_per_device_count"))

    @property
    def error(self) -> str:
        """The monitor's error about missing hardware or a missing driver; empty = none."""
        with self._lock:
            return str(self._hardware.get("error") or "")

    @property
    def period_s(self) -> float:
        """Longest period that a group of the last report covers, s."""
        with self._lock:
            groups = [*self._system.values(), *(g for r in self._runtimes.values() for g in r.values())]
            return min(max((_number(group, "period") for group in groups), default=0.0), _LONGEST_PERIOD_S)

    def devices(self) -> list[Device]:
        """Return the runtime of the machine and every NeuronCore that the machine has or a report names."""
        samples = [sample.device for sample in self.samples() if sample.device != "neuron"]
        cores = sorted({*samples, *(f"nc{i}" for i in range(self.cores))}, key=lambda key: int(key[2:]))
        with self._lock:
            hardware, instance, a_device = dict(self._hardware), dict(self._instance), self._cores_a_device
        product = str(hardware.get("neuron_device_type") or "Neuron").capitalize()
        where = {
            "instance_type": instance.get("instance_type"),
            "neuroncore_version": hardware.get("neuroncore_version"),
            "logical_neuroncore_config": hardware.get("logical_neuroncore_config"),
            "neuron_device_count": hardware.get("neuron_device_count"),
        }
        details = {key: value for key, value in where.items() if isinstance(value, (str, int)) and value}
        size = _number(hardware, "neuron_device_memory_size")
        count = int(_number(hardware, "neuron_device_count"))
        per_core = int(size) // a_device if size > 0 and a_device > 0 and cores else None
        machine = Device("neuron", "neuron", f"{product} runtime", int(size * count) or None, details)
        return [machine, *(Device(key, "neuron", f"{product} NeuronCore", per_core) for key in cores)]

    def samples(self) -> list[Sample]:
        """Return the state of the runtime and of every NeuronCore in use."""
        with self._lock:
            runtimes = [dict(groups) for groups in self._runtimes.values()]
            errors = [*self._runtime_errors.values(), str(self._hardware.get("error") or "")]
            system = dict(self._system)
        cores: dict[int, dict[str, float]] = {}
        for groups in runtimes:
            _add_cores(groups, cores)
        values, words = _machine(runtimes, system)
        if cores:
            values["util"] = sum(core.get("util", 0.0) for core in cores.values()) / len(cores)
        errors += [
            str(g.get("error") or "")
            for groups in [*runtimes, system]
            for g in groups.values()
            if isinstance(g, dict)
        ]
        if said := "; ".join(dict.fromkeys(error for error in errors if error)):
            words["error"] = said
        return [
            Sample("neuron", values, words),
            *(Sample(f"nc{core}", cores[core]) for core in sorted(cores)),
        ]


def replay(reports: Iterable[dict[str, Any]]) -> Iterator[tuple[float, Reports]]:
    """Feed reports one by one; yield seconds since the first and the state, one object that moves on.

    The monitor writes no timestamps: the periods are summed.
    """
    state, at = Reports(), 0.0
    for report in reports:
        state.take(report)
        if state.count > 1:
            at += state.period_s
        yield at, state


def _add_cores(groups: dict[str, Any], cores: dict[int, dict[str, float]]) -> None:
    """Add what one runtime reports of its cores; a core belongs to one runtime at a time."""
    for key, counters in _object(groups, "neuroncore_counters", "neuroncores_in_use").items():
        if (core := _index(key)) is None or not isinstance(counters, dict):
            continue
        values = cores.setdefault(core, {})
        values["util"] = values.get("util", 0.0) + _number(counters, "neuroncore_utilization") / 100
        if "flops" in counters:
            values["flops_per_s"] = values.get("flops_per_s", 0.0) + _number(counters, "flops")
        # Two physical cores behind a logical one (Trn2): "nc_v3.<n>".
        for name, physical in _object(counters, "v3d").items():
            if (number := _index(name.rpartition(".")[2])) is not None and isinstance(physical, dict):
                values[f"core{number}_util"] = _number(physical, "neuroncore_utilization") / 100
    used = _object(
        groups, "memory_used", "neuron_runtime_used_bytes", "usage_breakdown", "neuroncore_memory_usage"
    )
    for key, parts in used.items():
        if (core := _index(key)) is not None and isinstance(parts, dict):
            values = cores.setdefault(core, {})
            here = sum(_number(parts, part) for part in parts)
            values["mem_used_bytes"] = values.get("mem_used_bytes", 0.0) + here


def _machine(
    runtimes: list[dict[str, Any]], system: dict[str, Any]
) -> tuple[dict[str, float], dict[str, str]]:
    """Sum up the runtimes and the host; of latencies the worst runtime's counts."""
    values: dict[str, float] = {}
    words: dict[str, str] = {}
    kinds: dict[str, float] = {}

    def add(key: str, value: float) -> None:
        values[key] = values.get(key, 0.0) + value

    for groups in runtimes:
        if used := _object(groups, "memory_used", "neuron_runtime_used_bytes"):
            add("mem_used_bytes", _number(used, "neuron_device"))
            add("host_mem_used_bytes", _number(used, "host"))
        if stats := _object(groups, "execution_stats"):
            summary, period = _object(stats, "execution_summary"), _number(stats, "period")
            if period > 0:
                add("executions_per_s", _number(summary, "completed") / period)
            failures = _object(stats, "error_summary")
            add("errors", sum(_number(failures, kind) for kind in failures))
            bad = {kind: n for kind in summary if kind != "completed" and (n := _number(summary, kind))}
            for kind, count in {**{k: _number(failures, k) for k in failures}, **bad}.items():
                kinds[kind] = kinds.get(kind, 0.0) + count
            for group, key in _LATENCIES:
                latency = _object(stats, "latency_stats", group)
                for percentile, suffix in _PERCENTILES:
                    if percentile in latency:
                        name = f"{key}_{suffix}_ns"
                        values[name] = max(values.get(name, 0.0), _number(latency, percentile) * _NS)
    devices = _object(system, "neuron_hw_counters").get("neuron_devices")
    for device in devices if isinstance(devices, list) else ():
        add("ecc_corrected", _number(device, "mem_ecc_corrected") + _number(device, "sram_ecc_corrected"))
        add(
            "ecc_uncorrected",
            _number(device, "mem_ecc_uncorrected") + _number(device, "sram_ecc_uncorrected"),
        )
    if host := _object(system, "vcpu_usage", "average_usage"):
        values["host_util"] = min(1.0, max(0.0, 1 - (_number(host, "idle") + _number(host, "io_wait")) / 100))
    if said := ", ".join(f"{kind} {count:.0f}" for kind, count in kinds.items() if count):
        words["errors"] = said
    return values, words


def _object(value: Any, *path: str) -> dict[str, Any]:
    """Follow a path of keys; an empty object where there is none (a group can be absent or null)."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _number(value: Any, key: str) -> float:
    """Return a figure; 0 if it is missing or implausible."""
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return 0.0
    return float(found) if abs(found) < _LARGEST and math.isfinite(found) else 0.0


def _index(text: str) -> int | None:
    """Return the index of a core; None if the text is not one."""
    return int(text) if len(text) <= 4 and text.isdecimal() and int(text) < _MAX_CORES else None


def _pid(runtime: dict[str, Any]) -> int:
    return int(_number(runtime, "pid"))


_GROUPS: Final = frozenset(("neuron_runtime_data", "system_data", "instance_info", "neuron_hardware_info"))
_BLOCK: Final = 1 << 18
#: Maximum length of a report line.
_LONGEST_LINE: Final = 16 << 20


def read(source: Source) -> Trace:
    """Read a recording; raises TraceError if there is no report in it."""
    # The telemetry of a running script needs the reports alone, without Polars.
    from tuiprof.formats.event_table import counter_table
    from tuiprof.formats.neuron.profiles import empty
    from tuiprof.model import DeviceInfo, ReadStats, Remark, Trace, TraceInfo, Track
    from tuiprof.model.units import plural

    lines = _Lines(source)
    keys: dict[str, int] = {}
    rows: list[tuple[int, str, str, float, int | None]] = []
    reports, devices = 0, []
    for at_s, state in replay(_reports(documents(lines))):
        reports += 1
        devices = state.devices()
        for sample in state.samples():
            track = keys.setdefault(sample.device, len(keys))
            rows += [
                (round(at_s * 1e9), sample.device, key, value, track) for key, value in sample.values.items()
            ]
    if not reports:
        raise TraceError(
            f"{source.path} contains no readable report of neuron-monitor",
            "record with `neuron-monitor > FILE`: one JSON document per report",
        )
    tracks = tuple(Track(index, "other", "neuron-monitor", key, key) for key, index in keys.items())
    remark = Remark(
        "telemetry-only",
        f"{plural(reports, 'report')} of neuron-monitor: utilisation over time, but no events",
        "`device_idle` shows the utilisation; for events, capture a profile with neuron-explorer",
        "warn",
    )
    cores = [device for device in devices if device.key.startswith("nc")]
    info = TraceInfo(
        source.path,
        "neuron",
        devices=tuple(DeviceInfo(int(device.key[2:]), device.name, device.memory_bytes) for device in cores),
        framework="AWS Neuron",
        properties={"kind": "neuron-monitor", **(devices[0].details if devices else {})},
    )
    stats = ReadStats(
        events=reports,
        phases={"report": reports},
        malformed=max(0, lines.begun - reports),
        truncated=lines.damage is not None,
        remarks=[remark],
    )
    return Trace(empty(), tracks, info, stats, counters=counter_table(rows))


class _Lines:
    def __init__(self, source: Source) -> None:
        self._source = source
        self.begun = 0  # how many lines begin a document
        self.damage: str | None = None  # why the compressed stream ended early; None = it did not

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines; one that is too long is split into pieces, which are not documents."""
        parts, size = list[bytes](), 0
        with self._source.stream() as stream:
            while block := self._block(stream.read_some):
                head, newline, rest = block.partition(b"\n")
                parts.append(head)
                size += len(head)
                if not newline and size <= _LONGEST_LINE:
                    continue
                yield self._counted(b"".join(parts))
                *lines, last = rest.split(b"\n")
                yield from map(self._counted, lines)
                parts, size = [last], len(last)
        yield self._counted(b"".join(parts))

    def _block(self, read: Any) -> bytes:
        try:
            block: bytes = read(_BLOCK)
        except Damaged as damage:
            self.damage = str(damage)
            return b""
        return block

    def _counted(self, line: bytes) -> bytes:
        self.begun += line.startswith(b"{")
        return line + b"\n"


def _reports(found: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the reports in documents: they themselves, or their contents if the reports are numbered."""
    for document in found:
        if _GROUPS & document.keys():
            yield document
            continue
        yield from (each for each in document.values() if isinstance(each, dict) and _GROUPS & each.keys())

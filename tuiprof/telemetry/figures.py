"""The figures of a sample, for all backends: key, label, unit and definition.

Keys carry their unit. A share is 0 to 1, rates are per second, clocks are Hz, and a key with a number in it
(``core3_util``) is listed once with ``#`` for the number. Screens ask :func:`figure` and draw what they get;
a key that is neither listed here nor declared by a backend is shown as it is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final

from tuiprof.plugins import discover

if TYPE_CHECKING:
    from tuiprof.model.report import Kind


@dataclass(frozen=True, slots=True)
class Figure:
    """How to read and show one figure."""

    key: str  # key in ``Sample.values``
    label: str  # what a person reads, without the unit
    kind: Kind  # how to show it, as in reports; ``number`` together with ``unit``
    help: str  # its definition in one sentence
    unit: str = ""  # unit after ``scale``, for what ``kind`` does not name (``W``, ``°C``, ``MHz``)
    scale: float = 1.0  # multiplied with the value before ``unit`` is put behind it
    #: The value at which a bar is full; None = no natural end (memory ends at ``Device.memory_bytes``)
    full: float | None = None


_ALL: Final = (
    # -- every device ------------------------------------------------------------------------------------
    Figure("util", "util", "share", "Share of the last interval in which the device was busy.", full=1.0),
    Figure("mem_used_bytes", "mem", "bytes", "Memory in use on the device, by all processes."),
    Figure("mem_total_bytes", "mem total", "bytes", "Memory of the device."),
    Figure("mem_util", "mem bus", "share", "Share of time in which device memory was read or written.",
           full=1.0),
    Figure("power_w", "power", "number", "Current power draw.", unit="W"),
    Figure("energy_j", "energy", "number", "Energy used since the driver was loaded.", unit="J"),
    Figure("temp_c", "temp", "number", "Temperature of the chip.", unit="°C"),
    Figure("mem_temp_c", "mem temp", "number", "Temperature of the device memory.", unit="°C"),
    Figure("sm_clock_hz", "clock", "number", "Current clock of the compute units.", unit="MHz", scale=1e-6),
    Figure("mem_clock_hz", "mem clock", "number", "Current clock of the device memory.", unit="MHz",
           scale=1e-6),
    Figure("pcie_rx_bytes_per_s", "PCIe in", "bytes", "Received by the device over PCIe, per second.",
           unit="/s"),
    Figure("pcie_tx_bytes_per_s", "PCIe out", "bytes", "Sent by the device over PCIe, per second.",
           unit="/s"),
    Figure("nvlink_rx_bytes_per_s", "NVLink in", "bytes", "Received over all NVLinks, per second.",
           unit="/s"),
    Figure("nvlink_tx_bytes_per_s", "NVLink out", "bytes", "Sent over all NVLinks, per second.", unit="/s"),
    Figure("ecc_corrected", "ECC corrected", "count", "Memory errors corrected since the driver was loaded."),
    Figure("ecc_uncorrected", "ECC uncorrected", "count",
           "Memory errors not corrected since the driver was loaded."),
    Figure("tree_mem_used_bytes", "mem (run)", "bytes", "Device memory held by the processes of this run."),
    Figure("processes", "processes", "count", "Processes that compute on the device."),
    Figure("pid#_mem_used_bytes", "pid #", "bytes", "Device memory held by one process."),
    # -- the host ----------------------------------------------------------------------------------------
    Figure("core#_util", "core #", "share", "Share of the last interval in which this core was busy.",
           full=1.0),
    Figure("load_1m", "load", "number", "Runnable tasks, mean of the last minute."),
    Figure("io_wait", "I/O wait", "share", "Share of time in which cores were idle waiting for a disk.",
           full=1.0),
    Figure("tree_cpu", "CPU (run)", "share",
           "CPU time of this run's processes per second; 100 % = one core."),
    Figure("tree_rss_bytes", "RSS (run)", "bytes",
           "Resident memory of this run's processes; shared pages are counted in each."),
    Figure("tree_processes", "processes (run)", "count", "Processes of this run."),
    Figure("tree_threads", "threads (run)", "count", "Threads of this run."),
    Figure("loaders", "loaders", "count", "Data-loader worker processes of this run."),
    Figure("loaders_idle", "loaders idle", "count",
           "Workers that used under 5 % of a core in the last interval."),
    Figure("swap_used_bytes", "swap", "bytes", "Swap in use on the machine."),
    Figure("disk_read_bytes_per_s", "disk read", "bytes", "Read from all disks, per second.", unit="/s"),
    Figure("disk_write_bytes_per_s", "disk write", "bytes", "Written to all disks, per second.", unit="/s"),
    Figure("net_rx_bytes_per_s", "net in", "bytes",
           "Received over the network, per second, without loopback.", unit="/s"),
    Figure("net_tx_bytes_per_s", "net out", "bytes", "Sent over the network, per second, without loopback.",
           unit="/s"),
    # -- AWS Neuron --------------------------------------------------------------------------------------
    Figure("flops_per_s", "FLOP/s", "number", "Floating-point operations per second.", unit="TFLOP/s",
           scale=1e-12),
    Figure("executions_per_s", "executions", "rate", "Model executions completed per second, all runtimes."),
    Figure("errors", "errors", "count", "Execution errors in the last report, all kinds and runtimes."),
    Figure("latency_p50_ns", "latency p50", "ns", "Median time of one execution as reported by the runtime."),
    Figure("latency_p99_ns", "latency p99", "ns",
           "99th percentile of execution time as reported by the runtime."),
    Figure("latency_max_ns", "latency max", "ns", "Longest execution as reported by the runtime."),
    Figure("device_latency_p50_ns", "device p50", "ns", "Median time of one execution on the device."),
    Figure("device_latency_p99_ns", "device p99", "ns", "99th percentile of execution time on the device."),
    Figure("device_latency_max_ns", "device max", "ns", "Longest execution on the device."),
    Figure("host_mem_used_bytes", "host mem", "bytes", "Host memory held by the device runtime."),
    Figure("host_util", "host CPU", "share", "CPU time over all cores as reported by the vendor's monitor.",
           full=1.0),
    Figure("report_age_s", "report age", "number", "Time since the vendor's monitor last reported.",
           unit="s"),
    # -- Google TPU --------------------------------------------------------------------------------------
    Figure("tensorcore_util", "TensorCore", "share", "Share of the TensorCore's peak in use.", full=1.0),
    Figure("transfer_latency_p50_ns", "transfer p50", "ns", "Median latency of transfers between slices."),
)  # fmt: skip
FIGURES: Final[dict[str, Figure]] = {item.key: item for item in _ALL}

#: The first figures of each kind of device in a panel, in order; keys that a sample lacks are skipped.
HEADLINE: Final[dict[str, tuple[str, ...]]] = {
    "host": ("util", "tree_cpu", "tree_rss_bytes", "mem_used_bytes", "loaders", "loaders_idle"),
    "nvidia": ("util", "mem_used_bytes", "power_w", "temp_c", "sm_clock_hz"),
    "amd": ("util", "mem_used_bytes", "power_w", "temp_c", "sm_clock_hz"),
    "neuron": ("util", "mem_used_bytes", "flops_per_s", "executions_per_s", "latency_p50_ns", "errors"),
    "tpu": ("util", "mem_used_bytes", "tensorcore_util"),
}

#: Keys of ``Sample.text``, with the label of each.
WORDS: Final[dict[str, str]] = {"throttle": "throttle", "error": "error", "errors": "errors"}

_NUMBER = re.compile(r"\d+")


def figure(key: str) -> Figure:
    """Return how to show a key of ``Sample.values``, for example ``"core3_util"``, with the number filled in.

    The description of an unknown key is made from the key itself.
    """
    return _among(FIGURES, key) or _among(declared(), key) or Figure(key, key.replace("_", " "), "number", "")


def _among(figures: Mapping[str, Figure], key: str) -> Figure | None:
    if key in figures:
        return figures[key]
    number = _NUMBER.search(key)
    if number and (family := figures.get(key[: number.start()] + "#" + key[number.end() :])):
        return replace(family, key=key, label=family.label.replace("#", number[0]))
    return None


@cache
def declared() -> dict[str, Figure]:
    """Return the figures that backends declare, by key."""
    backends = discover("telemetry").items.values()
    return {figure.key: figure for backend in backends for figure in backend.figures}


def show(key: str, value: float | None) -> str:
    """Return a value of ``Sample.values`` as text with its unit, as ``611 W`` or ``94 %``; None = not given."""
    from tuiprof.model.units import NONE, format_value  # brings Polars, which a recorder does without

    if value is None:
        return NONE
    what = figure(key)
    if what.kind == "number" and what.unit:
        scaled = value * what.scale
        return f"{scaled:.0f} {what.unit}" if abs(scaled) >= 100 else f"{scaled:.3g} {what.unit}"
    text = format_value(value, what.kind)
    return text + what.unit if what.kind == "bytes" else text


def headline(kind: str, present: Iterable[str]) -> list[str]:
    """Return the keys a panel shows first: those of :data:`HEADLINE`; of an unknown kind everything, as given."""
    present = list(present)
    if kind not in HEADLINE:
        return present
    return [key for key in HEADLINE[kind] if key in present]

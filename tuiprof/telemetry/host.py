"""The host: processors, memory, disks, network, and the processes of the run. Read with psutil.

On a machine without an accelerator the host is the device.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil

from tuiprof.system.files import text_of
from tuiprof.system.own_process import cores
from tuiprof.telemetry import Backend, Device, Sample
from tuiprof.telemetry._processes import ProcessTree, Rates

_CGROUP = Path("/sys/fs/cgroup")

#: Disks, network and swap are asked at most this often: they cost half of a sample and are read as rates anyway.
_SLOW_S = 1.0


class Host:
    """Samples the host, and the process tree of the run below the pid ``root``; None = the machine alone."""

    def __init__(self, root: int | None) -> None:
        self._tree = ProcessTree(root) if root is not None else None
        self._rates = Rates()
        self._slow: dict[str, float] = {}
        self._slow_at = -_SLOW_S
        self._cores: list[tuple[float, float, float]] = []
        self._memory_limit = _cgroup_number("memory.max")
        # A first reading, thrown away, so that the first sample has something to measure from.
        self.sample()

    def devices(self) -> list[Device]:
        """Return the host as the one device."""
        total = psutil.virtual_memory().total
        details: dict[str, str | float | int] = {
            "cores": psutil.cpu_count() or 1,
            "physical_cores": psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
            "usable_cores": usable_cores(),
            "kernel": platform.release(),
            "hostname": platform.node(),
        }
        if (bf16 := bf16_instructions()) is not None:
            details["bf16"] = bf16
        memory = min(total, self._memory_limit or total)
        return [Device("host", "host", cpu_name(), memory, details)]

    def sample(self) -> list[Sample]:
        """Read everything once; about a millisecond plus 20 µs a process of the run."""
        now = time.monotonic()
        memory = psutil.virtual_memory()
        if now - self._slow_at >= _SLOW_S:
            self._slow_at = now
            self._slow = {
                "swap_used_bytes": psutil.swap_memory().used,
                **self._rates.update(now, _counters()),
            }
        values: dict[str, float] = {
            "mem_used_bytes": memory.total - memory.available,
            "mem_total_bytes": memory.total,
            "load_1m": os.getloadavg()[0],
            **self._processors(),
            **self._slow,
        }
        if self._memory_limit is not None and self._memory_limit < memory.total:
            values["mem_total_bytes"] = self._memory_limit
            # What the kernel counts against the limit includes page cache it would give back first.
            used = _cgroup_number("memory.current") or 0
            values["mem_used_bytes"] = max(0, used - _cgroup_inactive_file())
        if self._tree is not None:
            usage = self._tree.usage(now)
            values["tree_processes"] = usage.processes
            values["tree_threads"] = usage.threads
            if usage.rss_bytes:  # a process that is ending has none, and zeros are no readings of the run
                values["tree_rss_bytes"] = usage.rss_bytes
                values["loaders"] = usage.loaders
                if usage.cpu is not None:
                    values["tree_cpu"] = usage.cpu
                if usage.loaders_idle is not None:
                    values["loaders_idle"] = usage.loaders_idle
        return [Sample("host", values)]

    def close(self) -> None:
        """Nothing is held open."""

    def _processors(self) -> dict[str, float]:
        """Return the busy share of each core and of all, and the share spent waiting for a disk."""
        before, self._cores = self._cores, [_ticks(times) for times in psutil.cpu_times(percpu=True)]
        if len(before) != len(self._cores):  # the first reading, or a core was switched on or off
            return {}
        values: dict[str, float] = {}
        busy_all = wait_all = total_all = 0.0
        for i, (old, new) in enumerate(zip(before, self._cores, strict=True)):
            busy, wait, total = (max(0.0, n - o) for o, n in zip(old, new, strict=True))
            if total > 0:
                values[f"core{i}_util"] = min(1.0, busy / total)
            busy_all, wait_all, total_all = busy_all + busy, wait_all + wait, total_all + total
        if total_all > 0:
            values["util"] = min(1.0, busy_all / total_all)
            values["io_wait"] = min(1.0, wait_all / total_all)
        return values


def _ticks(times: Any) -> tuple[float, float, float]:
    """Return busy, I/O-wait and total seconds of one core (guest time is part of user time on Linux)."""
    wait = float(getattr(times, "iowait", 0.0))
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return float(total - times.idle - wait), wait, float(total)


def _counters() -> dict[str, float]:
    """Return bytes moved by disks and network so far, by the key of their rate."""
    counters: dict[str, float] = {}
    disk = psutil.disk_io_counters()
    if disk is not None:
        counters["disk_read_bytes_per_s"] = disk.read_bytes
        counters["disk_write_bytes_per_s"] = disk.write_bytes
    links = [link for name, link in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    if links:
        counters["net_rx_bytes_per_s"] = sum(link.bytes_recv for link in links)
        counters["net_tx_bytes_per_s"] = sum(link.bytes_sent for link in links)
    return counters


def usable_cores() -> int:
    """Return how many cores this process may use: affinity, and the quota of its container."""
    count = cores()
    quota = text_of(_CGROUP / "cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
        count = min(count, max(1, -(-int(quota[0]) // int(quota[1]))))
    return count


def cpu_name() -> str:
    """Return the processor's product name."""
    lines = text_of(Path("/proc/cpuinfo")).splitlines()  # Linux
    named = next((line for line in lines if line.startswith(("model name", "Model"))), "")
    return named.partition(":")[2].strip() or platform.processor() or platform.machine()


def _cgroup_number(name: str) -> int | None:  # without a container, or with cgroup v1, there is no such file
    text = text_of(_CGROUP / name)
    return int(text) if text.isdecimal() else None


def _cgroup_inactive_file() -> int:
    parts = dict(line.partition(" ")[::2] for line in text_of(_CGROUP / "memory.stat").splitlines())
    inactive = parts.get("inactive_file", "")
    return int(inactive) if inactive.isdecimal() else 0


BACKEND = Backend("host", Host, order=0)


def bf16_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the best instructions for bfloat16 that the processor has; empty = none, None = not known."""
    lines = text_of(cpuinfo).splitlines()
    line = next((line for line in lines if line.lower().startswith(("flags", "features"))), None)
    if line is None:
        return None
    return next((word for word in ("amx_bf16", "avx512_bf16", "bf16") if word in line.split()), "")

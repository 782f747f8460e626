"""Asks libtpu about its chips once a second and prints a JSON object each time. Standard library only.

It runs as a process of its own, in the Python of the training script: that is where libtpu is installed, a
question to libtpu can block, and importing libtpu into a process that must not fail is a risk.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import signal
import sys
import time
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
#: Name of a metric in libtpu's SDK (``libtpu.sdk.tpumonitoring``), key of the figure, factor to its unit.
SDK_METRICS = (
    ("duty_cycle_pct", "util", 0.01),
    ("tensorcore_util", "tensorcore_util", 0.01),
    ("hbm_capacity_usage", "mem_used_bytes", 1),
    ("hbm_capacity_total", "mem_total_bytes", 1),
)


def from_sdk() -> list[dict[str, float]]:
    """Read through libtpu's own SDK; one object a chip, or a core where libtpu counts those."""
    tpumonitoring = importlib.import_module("libtpu.sdk").tpumonitoring
    chips: list[dict[str, float]] = []
    for metric, key, factor in SDK_METRICS:
        for index, text in enumerate(tpumonitoring.get_metric(metric).data()):
            while len(chips) <= index:
                chips.append({})
            chips[index][key] = float(text) * factor
    if not chips:
        raise RuntimeError("no program runs on the TPU")
    return chips


def from_tpu_info() -> list[dict[str, float]]:
    """Read the runtime's metric service through the tpu-info package, as :func:`from_sdk`."""
    device = importlib.import_module("tpu_info.device")
    metrics = importlib.import_module("tpu_info.metrics")
    chip_type, _ = device.get_local_chips()
    return [
        {
            "util": usage.duty_cycle_pct / 100,
            "mem_used_bytes": usage.memory_usage,
            "mem_total_bytes": usage.total_memory,
        }
        for usage in metrics.get_chip_usage(chip_type)
    ]


def ask() -> dict[str, object]:
    """Return a reading of every chip, or why there is none."""
    errors = []
    for source in (from_sdk, from_tpu_info):
        try:
            return {"chips": source(), "error": ""}
        except Exception as error:  # noqa: BLE001 - whatever a vendor's library raises is the answer then
            errors.append(f"{source.__name__[5:].replace('_', '-')}: {error!r}")
    return {"chips": [], "error": "; ".join(errors)}


def end_with_parent() -> None:
    """Have Linux end this process with its parent: a blocked query would keep it alive otherwise."""
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    """Print a reading per second until the reading end is closed."""
    end_with_parent()
    while True:
        try:
            sys.stdout.write(json.dumps(ask()) + "\n")
            sys.stdout.flush()
        except OSError:  # the recorder is gone
            return
        time.sleep(1.0)


if __name__ == "__main__":
    main()

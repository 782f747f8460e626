"""Asks libtpu about its chips once a second and prints a JSON object each time. Standard library only.

It runs as a process of its own, in the Python of the training script: that is where libtpu is installed, a
question to libtpu can block, and importing libtpu into a process that must not fail is a risk.
"""

from __future__ import annotations

import json
import sys
import time

#: Name of a metric in libtpu's SDK (``libtpu.sdk.tpumonitoring``), key of the figure, factor to its unit.
SDK_METRICS = (
    ("duty_cycle_pct", "util", 0.01),
    ("tensorcore_util", "tensorcore_util", 0.01),
    ("hbm_capacity_usage", "mem_used_bytes", 1),
    ("hbm_capacity_total", "mem_total_bytes", 1),
)


def from_sdk():
    """Read through libtpu's own SDK; a list with one object a chip, or the reason why not."""
    try:
        from libtpu.sdk import tpumonitoring
    except Exception as error:
        return "libtpu.sdk: " + repr(error)
    chips = []
    try:
        for metric, key, factor in SDK_METRICS:
            for index, text in enumerate(tpumonitoring.get_metric(metric).data()):
                while len(chips) <= index:
                    chips.append({})
                chips[index][key] = float(text) * factor
    except Exception as error:
        return "libtpu.sdk: " + repr(error)
    return chips or "libtpu.sdk: no TPU program is running"


def from_tpu_info():
    """Read the runtime's metric service through the tpu-info package, as :func:`from_sdk`."""
    try:
        from tpu_info import device, metrics
    except Exception as error:
        return "tpu-info: " + repr(error)
    try:
        chip_type, count = device.get_local_chips()
        if chip_type is None or not count:
            return "tpu-info: no TPU on the PCI bus"
        return [
            {
                "util": usage.duty_cycle_pct / 100,
                "mem_used_bytes": usage.memory_usage,
                "mem_total_bytes": usage.total_memory,
            }
            for usage in metrics.get_chip_usage(chip_type)
        ]
    except Exception as error:
        return "tpu-info: " + repr(error)


def main():
    """Print a reading a second until nobody reads any more."""
    while True:
        first = from_sdk()
        second = from_tpu_info() if isinstance(first, str) else None
        found = first if second is None else second
        if isinstance(found, str):
            line = {"chips": [], "error": str(first) + "; " + found}
        else:
            line = {"chips": found, "error": ""}
        try:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        except OSError:  # the recorder is gone
            return
        time.sleep(1.0)


if __name__ == "__main__":
    main()

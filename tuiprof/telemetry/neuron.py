"""AWS Neuron devices, through the JSON stream of ``neuron-monitor``."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Final

from tuiprof.system.monitors import JsonStream, find_tool
from tuiprof.telemetry import Absent, Backend, Device, Sample, Source

_PERIOD: Final = "1s"
_CONFIG: Final = {
    "period": _PERIOD,
    "neuron_runtimes": [
        {
            "tag_filter": ".*",
            "metrics": [
                {"type": "neuroncore_counters"},
                {"type": "memory_used"},
                {"type": "execution_stats"},
            ],
        }
    ],
    "system_metrics": [{"type": "vcpu_usage"}, {"type": "memory_info"}, {"type": "neuron_hw_counters"}],
}
#: The monitor prints its first report at once; a machine that is starting up may need longer.
_FIRST_S: Final = 3.0


class Neuron:
    """Samples every NeuronCore, with the ``neuron-monitor`` at a path; raises OSError if it cannot be started."""

    def __init__(self, monitor: str) -> None:
        # With it come the readers of profiles: only where needed.
        from tuiprof.formats.neuron.monitor import Reports

        self.reports = Reports()
        handle, name = tempfile.mkstemp(prefix="tuiprof-neuron-", suffix=".json")
        with os.fdopen(handle, "w", encoding="ascii") as file:
            json.dump(_CONFIG, file)
        self._config = Path(name)
        try:
            self._stream = JsonStream([monitor, "-c", name], self.reports.take)
        except OSError:
            self._config.unlink()
            raise
        self._stream.wait_first(_FIRST_S)

    def devices(self) -> list[Device]:
        """Return the runtime and every NeuronCore."""
        return self.reports.devices()

    def sample(self) -> list[Sample]:
        """Return the state after the last report; never waits."""
        samples = self.reports.samples()
        age = self._stream.age_s
        first = samples[0]
        words = dict(first.text)
        if ended := self._stream.ended:
            words["error"] = f"neuron-monitor {ended}"
        values = dict(first.values) | ({"report_age_s": age} if age is not None else {})
        return [Sample(first.device, values, words), *samples[1:]]

    @property
    def ended(self) -> str:
        """How the monitor ended; empty while it runs."""
        return self._stream.ended

    def close(self) -> None:
        """End the monitor."""
        self._stream.close()
        with contextlib.suppress(FileNotFoundError):
            self._config.unlink()


def _open(root: int | None) -> Source | Absent:  # the monitor sees all processes of the machine
    if not any(Path("/dev").glob("neuron[0-9]*")) and find_tool("neuron-monitor") is None:
        return Absent("no AWS Neuron device (/dev/neuron0 not found)")
    monitor = find_tool("neuron-monitor")
    if monitor is None:
        return Absent(
            "a Neuron device, but neuron-monitor is not installed",
            "install aws-neuronx-tools, or put /opt/aws/neuron/bin on PATH",
        )
    try:
        source = Neuron(monitor)
    except OSError as error:
        return Absent(f"neuron-monitor cannot be started: {error}")
    reason = source.ended or source.reports.error
    if reason or not source.reports.cores:
        source.close()
        return Absent(f"neuron-monitor: {reason or 'reports no NeuronCore'}", "check whether neuron-ls works")
    return source


BACKEND = Backend("neuron", _open, order=20)

"""The Neuron backend: recorded reports of real machines, and a stand-in for ``neuron-monitor``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import real_traces
from tuiprof.formats.neuron.monitor import Reports, replay
from tuiprof.system.monitors import documents
from tuiprof.telemetry import Absent, neuron
from tuiprof.telemetry.figures import figure
from tuiprof.telemetry.neuron import BACKEND, Neuron


def read_recording(path: Path) -> Iterator[tuple[float, Reports]]:
    with path.open("rb") as file:
        yield from replay(documents(file))


@pytest.mark.parametrize(
    "name", ["neuron-monitor-wandb-3docs.ndjson", "neuron-monitor-allsmi-idle-trn1.ndjson"]
)
def test_recording_agrees_with_the_reference(name: str) -> None:
    figures = real_traces.figures(name)
    util: dict[str, list[float]] = {}
    memory, completed, count = [], 0.0, 0
    for _, state in read_recording(real_traces.path(name)):
        count += 1
        machine, *cores = state.samples()
        for core in cores:
            util.setdefault(core.device[2:], []).append(core.values["util"] * 100)
        if "mem_used_bytes" in machine.values:
            memory.append(machine.values["mem_used_bytes"])
            completed += machine.values["executions_per_s"] * state.period_s
    assert count == figures["documents"]
    assert len(util) == figures["cores_seen"]
    for core, expected in figures["core_util"].items():
        assert len(util[core]) == expected["samples"]
        assert sum(util[core]) / len(util[core]) == pytest.approx(expected["mean"])
        assert max(util[core]) == pytest.approx(expected["max"])
    assert max(memory, default=None) == figures["neuron_device_mem_max"]
    assert completed == pytest.approx(figures["execution_summary_sum"].get("completed", 0), rel=1e-3)


def test_idle_machine_shows_its_cores() -> None:
    ((_, state),) = read_recording(real_traces.path("neuron-monitor-allsmi-idle-trn1.ndjson"))
    assert [device.key for device in state.devices()] == ["neuron", "nc0", "nc1"]
    assert state.devices()[1].memory_bytes == 16 << 30
    assert state.devices()[0].details["instance_type"] == "trn1.2xlarge"


BUSY = {
    "neuron_runtime_data": [
        {
            "pid": 41,
            "error": "",
            "report": {
                "neuroncore_counters": {
                    "period": 1.0,
                    "error": "",
                    "neuroncores_in_use": {
                        "0": {
                            "neuroncore_utilization": 71.5,
                            "flops": 38_211_000_000_000,
                            "v3d": {
                                "nc_v3.0": {"neuroncore_utilization": 70.9},
                                "nc_v3.1": {"neuroncore_utilization": 72.1},
                            },
                        }
                    },
                },
                "execution_stats": {
                    "period": 2.0,
                    "error": "execution stats incomplete",
                    "error_summary": {"generic": 2, "hardware": 1},
                    "execution_summary": {"completed": 96, "timed_out": 3},
                    "latency_stats": {
                        "total_latency": {"p50": 0.0102, "p99": 0.0131, "p100": 0.014},
                        "device_latency": None,
                    },
                },
            },
        }
    ],
    "system_data": {
        "neuron_hw_counters": {
            "period": 1.0,
            "neuron_devices": [{"mem_ecc_corrected": 1, "sram_ecc_uncorrected": 2}],
        }
    },
    "neuron_hardware_info": {
        "neuron_device_type": "trainium2",
        "neuron_device_count": 1,
        "neuroncore_per_device_count": 4,
        "error": "",
    },
}
IDLE = {"neuron_runtime_data": [], "system_data": {}, "neuron_hardware_info": {"error": ""}}


def test_figures_of_a_busy_core() -> None:
    ((_, state),) = replay([BUSY])
    machine, core = state.samples()
    assert core.values == {
        "util": pytest.approx(0.715),
        "flops_per_s": 38.211e12,
        "core0_util": pytest.approx(0.709),
        "core1_util": pytest.approx(0.721),
    }
    assert machine.values["executions_per_s"] == 48
    assert machine.values["errors"] == 3
    assert machine.values["latency_p99_ns"] == pytest.approx(13_100_000)
    assert "device_latency_p50_ns" not in machine.values  # null: nothing ran long enough to tell
    assert (machine.values["ecc_corrected"], machine.values["ecc_uncorrected"]) == (1, 2)
    assert machine.text == {
        "errors": "generic 2, hardware 1, timed_out 3",
        "error": "execution stats incomplete",
    }
    assert len(state.devices()) == 5
    assert all(figure(key).help for sample in state.samples() for key in sample.values)


def test_groups_that_are_not_due_keep_their_last_state() -> None:
    later = {
        "neuron_runtime_data": [
            {
                "pid": 41,
                "report": {
                    "neuroncore_counters": {
                        "period": 1.0,
                        "neuroncores_in_use": {"0": {"neuroncore_utilization": 10}},
                    }
                },
            }
        ]
    }
    *_, (at, state) = replay([BUSY, later])
    machine, core = state.samples()
    assert core.values["util"] == pytest.approx(0.1)
    assert machine.values["executions_per_s"] == 48
    assert at == 2.0
    *_, (_, state) = replay([BUSY, IDLE])
    assert len(state.samples()) == 1  # the process is gone, and its cores with it
    assert len(state.devices()) == 5  # the hardware is not


@pytest.mark.parametrize(
    "damage",
    [
        {"neuron_runtime_data": None},
        {"neuron_runtime_data": [None, {"pid": "x", "report": []}], "system_data": 3},
        {},
    ],
)
def test_a_report_of_another_shape_does_no_harm(damage: dict[str, object]) -> None:
    *_, (_, state) = replay([BUSY, damage])
    assert state.samples()[0].device == "neuron"


def test_documents_in_every_shape() -> None:
    whole = json.dumps({"a": 1}).encode() + b"\n"
    pretty = json.dumps({"b": {"c": 2}}, indent=2).encode().splitlines(keepends=True)
    said: list[str] = []
    stream = [
        b"starting up\n",
        whole,
        *pretty,
        b'{"cut": \n',
        whole,
        b'{"half": 1\n',
        b"}\n",
        b"}\n",
        b"[1]\n",
        b'{"bad": \xff}\n',
        whole,
    ]
    assert list(documents(stream, said.append)) == [
        {"a": 1},
        {"b": {"c": 2}},
        {"a": 1},
        {"half": 1},
        {"a": 1},
    ]
    assert said == ["starting up", "}", "[1]"]


def monitor(tmp_path: Path, body: str) -> str:
    path = tmp_path / "neuron-monitor"
    path.write_text(f"#!{sys.executable}\nimport json, sys, time\n{body}")
    path.chmod(0o755)
    return str(path)


def test_live_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"""
assert json.load(open(sys.argv[2]))["period"] == "1s"
print("a message", file=sys.stderr, flush=True)
print({json.dumps(BUSY)!r}, flush=True)
time.sleep(60)
"""
    monitor(tmp_path, body)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(neuron, "_FIRST_S", 60.0)  # a busy machine may take a while to start it
    source = BACKEND.open(None)
    assert isinstance(source, Neuron)
    assert len(source.devices()) == 5
    samples = source.sample()  # would wait for a minute if it waited for a report
    assert samples[1].values["util"] == pytest.approx(0.715)
    assert 0 <= samples[0].values["report_age_s"] < 30
    source.close()
    assert source.ended


def test_a_monitor_that_dies_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "print('driver not loaded', file=sys.stderr); sys.exit(3)"
    monitor(tmp_path, body)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(neuron, "_FIRST_S", 60.0)  # a busy machine may take a while to start it
    absent = BACKEND.open(None)
    assert isinstance(absent, Absent)
    assert absent.reason == "neuron-monitor: ended with status 3: driver not loaded"


def test_no_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    absent = BACKEND.open(None)
    assert isinstance(absent, Absent)
    assert "/dev/neuron0" in absent.reason

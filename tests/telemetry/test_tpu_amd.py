"""The TPU and AMD backends against stand-ins for the PCI bus, for libtpu and for the kernel's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from waiting import running, until

from tuiprof.telemetry import _tpu_agent
from tuiprof.telemetry.amd import Amd
from tuiprof.telemetry.figures import figure
from tuiprof.telemetry.tpu import Tpu, find_chips


def files(root: Path, tree: dict[str, str]) -> None:
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_chips_on_the_bus(tmp_path: Path) -> None:
    files(tmp_path / "0000:00:04.0", {"vendor": "0x1ae0", "device": "0x006F"})
    files(tmp_path / "0000:00:05.0", {"vendor": "0x1ae0", "device": "0x0027", "subsystem_device": "0x004f"})
    files(tmp_path / "0000:00:06.0", {"vendor": "0x1ae0", "device": "0x001f"})  # Google's network card
    files(tmp_path / "0000:00:07.0", {"vendor": "0x10de", "device": "0x006f"})
    assert find_chips(tmp_path) == [("TPU v6e", 32 << 30), ("TPU v3", 32 << 30)]
    assert find_chips(tmp_path / "none") == []


LIBTPU = """
import os, time
while not os.path.exists(os.environ["LIBTPU_ANSWERS"]): time.sleep(0.01)
class tpumonitoring:
    class Metric:
        def __init__(self, values): self.values = values
        def data(self): return self.values
    @classmethod
    def get_metric(cls, name):
        return cls.Metric({"duty_cycle_pct": ["71.5", "72.5"], "tensorcore_util": ["40", "50"],
                           "hbm_capacity_usage": ["1024", "2048"], "hbm_capacity_total": ["4096", "4096"]}[name])
"""


@pytest.fixture
def libtpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that libtpu waits for before it answers."""
    files(tmp_path, {"libtpu/__init__.py": "", "libtpu/sdk.py": LIBTPU})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("LIBTPU_ANSWERS", str(tmp_path / "answers"))
    return tmp_path / "answers"


@pytest.mark.parametrize(
    ("chips", "expected"),
    [
        (2, [{"util": 0.715, "mem_used_bytes": 1024}, {"util": 0.725, "mem_used_bytes": 2048}]),
        (1, [{"util": 0.72, "mem_used_bytes": 3072}]),  # two cores of one chip
    ],
)
def test_libtpu_is_asked_in_another_process(
    chips: int, expected: list[dict[str, float]], libtpu: Path
) -> None:
    with closing(Tpu([("TPU v6e", 32 << 30)] * chips, sys.executable)) as source:
        assert source.sample()[0].values == {}  # never waits for an answer
        libtpu.touch()
        until(lambda: source.sample()[0].values, "an answer of libtpu")
        for sample, values in zip(source.sample(), expected, strict=True):
            assert values == {key: pytest.approx(sample.values[key]) for key in values}
            assert all(figure(key).help for key in sample.values)


def test_without_libtpu_the_sample_says_why() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-I", _tpu_agent.__file__]
    with running(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        document = json.loads(process.stdout.readline())
        process.stdout.close()
        assert process.wait(timeout=10) is not None  # it ends when nobody reads any more
    assert document["chips"] == []
    assert "libtpu" in document["error"]


@pytest.mark.skipif(sys.platform != "linux", reason="TPUs are in Linux machines")
def test_a_question_that_blocks_ends_with_who_asked(tmp_path: Path) -> None:
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu/__init__.py").touch()
    (tmp_path / "libtpu/sdk.py").write_text("import time\nprint('asked', flush=True)\ntime.sleep(100)\n")
    asks = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    command = [sys.executable, "-c", asks, sys.executable, _tpu_agent.__file__]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with running(command, stdout=subprocess.PIPE, text=True, env=environment) as recorder:
        assert recorder.stdout is not None
        assert recorder.stdout.readline() == "asked\n"
        recorder.kill()
        assert recorder.stdout.read() == "", "the other end is closed once the agent is gone"


def test_amd_from_the_kernels_files(tmp_path: Path) -> None:
    files(tmp_path / "card0/device", {"vendor": "0x10de"})
    files(
        tmp_path / "card1/device",
        {
            "vendor": "0x1002",
            "device": "0x74a1",
            "product_name": "AMD Instinct MI300X",
            "gpu_busy_percent": "87",
            "mem_info_vram_used": "1024",
            "mem_info_vram_total": "206141652992",
            "hwmon/hwmon3/power1_input": "611000000",
            "hwmon/hwmon3/power1_cap": "750000000",
            "hwmon/hwmon3/temp2_label": "junction",
            "hwmon/hwmon3/temp2_input": "58000",
            "hwmon/hwmon3/temp3_label": "mem",
            "hwmon/hwmon3/temp3_input": "n/a",
            "hwmon/hwmon3/freq1_label": "sclk",
            "hwmon/hwmon3/freq1_input": "2100000000",
        },
    )
    (tmp_path / "card1-DP-1").mkdir()
    source = Amd(tmp_path)
    (device,) = source.devices()
    assert (device.key, device.name, device.memory_bytes) == ("amd0", "AMD Instinct MI300X", 206141652992)
    assert device.details["power_limit_w"] == pytest.approx(750)
    (sample,) = source.sample()
    assert sample.values == {
        "util": pytest.approx(0.87),
        "mem_used_bytes": 1024,
        "mem_total_bytes": 206141652992,
        "power_w": pytest.approx(611),
        "temp_c": pytest.approx(58),
        "sm_clock_hz": 2.1e9,
    }

"""The NVIDIA backend against a stand-in for the driver, and on a real GPU where there is one."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from waiting import until

from tuiprof.telemetry import Absent, nvidia
from tuiprof.telemetry.figures import figure
from tuiprof.telemetry.nvidia import BACKEND, Nvidia, throttle_words


class Driver:
    """Answers as NVML does, with pynvml's own constants and errors.

    Args:
        **lacking: Functions that are not supported, by the error they raise.
    """

    def __init__(self, **lacking: type[Exception]) -> None:
        self.lacking = lacking
        self.reads = 0
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        if name in self.lacking:

            def refuse(*args: Any) -> Any:
                raise self.lacking[name]

            return refuse
        if name.startswith("nvml") and hasattr(type(self), "_" + name[4:]):
            return getattr(self, "_" + name[4:])
        if name.startswith(("NVML_", "NVMLError")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def _Shutdown(self) -> None:  # noqa: N802
        self.closed = True

    def _DeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def _DeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index == 1:
            raise pynvml.NVMLError_GpuIsLost
        return index

    def _DeviceGetUUID(self, handle: Any) -> str:  # noqa: N802
        return {0: "GPU-0593d0f2", "instance": "MIG-7777"}[handle]

    def _DeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(domain=0, bus=0x9A, device=0, busId=b"00000000:9A:00.0")

    def _DeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802
        return [1, 1]

    def _DeviceGetMaxMigDeviceCount(self, handle: int) -> int:  # noqa: N802
        return 7

    def _DeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> str:  # noqa: N802
        if index:
            raise pynvml.NVMLError_NotFound
        return "instance"

    def _SystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65"

    def _SystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 13010

    def _DeviceGetName(self, handle: int) -> bytes:  # noqa: N802
        return b"NVIDIA H200"

    def _DeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=141 << 30, used=9 << 30)

    def _DeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=94, memory=31)

    def _DeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return 611_400

    def _DeviceGetClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}[clock]

    def _DeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return 0x4 | 0x40

    def _DeviceGetPcieThroughput(self, handle: int, which: int) -> int:  # noqa: N802
        return {pynvml.NVML_PCIE_UTIL_RX_BYTES: 2048, pynvml.NVML_PCIE_UTIL_TX_BYTES: 1024}[which]

    def _DeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        return [
            SimpleNamespace(pid=os.getpid(), usedGpuMemory=5 << 30),
            SimpleNamespace(pid=1, usedGpuMemory=None),
        ]

    def _DeviceGetFieldValues(self, handle: int, fields: list[tuple[int, int]]) -> list[Any]:  # noqa: N802
        self.reads += 1
        answers = []
        for number, scope in fields:
            answer = SimpleNamespace(
                nvmlReturn=pynvml.NVML_SUCCESS,
                valueType=pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
                value=SimpleNamespace(ullVal=1_000_000 * self.reads),
            )
            if number == pynvml.NVML_FI_DEV_MEMORY_TEMP:
                answer.valueType, answer.value = (
                    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
                    SimpleNamespace(uiVal=61),
                )
            if number in (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES):
                answer.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
            if number == pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX:
                assert scope == 0xFFFFFFFF
            answers.append(answer)
        return answers


def test_what_is_supported_is_read_and_the_rest_left_out() -> None:
    driver = Driver(
        nvmlDeviceGetTemperature=pynvml.NVMLError_NotSupported,
        nvmlDeviceGetTotalEccErrors=pynvml.NVMLError_NotSupported,
        nvmlDeviceGetCurrentClocksEventReasons=pynvml.NVMLError_FunctionNotFound,
    )
    source = Nvidia(driver, os.getpid())
    (device,) = source.devices()  # the lost one is left out
    assert (device.key, device.name, device.memory_bytes) == ("gpu0", "NVIDIA H200", 141 << 30)
    assert device.details["cuda"] == "13.1"
    names = {name: device.details[name] for name in ("uuid", "pci", "mig", "mig_uuids")}
    assert names == {"uuid": "GPU-0593d0f2", "pci": "0000:9a:00", "mig": "on", "mig_uuids": "MIG-7777"}
    source.sample()
    time.sleep(0.05)
    (sample,) = source.sample()
    values = sample.values
    assert values["util"] == pytest.approx(0.94)
    assert values["power_w"] == pytest.approx(611.4)
    assert values["sm_clock_hz"] == 1.98e9
    assert values["mem_temp_c"] == 61
    assert 0 < values["nvlink_tx_bytes_per_s"] < 1_024_000_000 / 0.05 + 1
    assert values["tree_mem_used_bytes"] == 5 << 30
    assert values[f"pid{os.getpid()}_mem_used_bytes"] == 5 << 30
    assert values["processes"] == 2
    assert not {"temp_c", "ecc_corrected", "energy_j", "pid1_mem_used_bytes"} & values.keys()
    assert sample.text["throttle"] == "power cap, thermal (hardware)"
    assert all(figure(key).help for key in values)
    # Measured by a thread, because this driver has no counters of it.
    until(lambda: "pcie_rx_bytes_per_s" in source.sample()[0].values, "figures of the link")
    assert source.sample()[0].values["pcie_rx_bytes_per_s"] == 2048 * 1024
    source.close()
    assert driver.closed


def test_a_passing_failure_costs_one_reading_only() -> None:
    driver = Driver(nvmlDeviceGetPowerUsage=pynvml.NVMLError_Timeout)
    source = Nvidia(driver, None)
    assert "power_w" not in source.sample()[0].values
    driver.lacking.clear()
    assert "power_w" in source.sample()[0].values
    source.close()


@pytest.mark.parametrize(
    ("bits", "words"), [(0, "none"), (1, "idle"), (0x4, "power cap"), (0x1 | 0x80, "power brake")]
)
def test_throttle_words(bits: int, words: str) -> None:
    assert throttle_words(bits) == words


def test_without_a_driver_its_bindings_are_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "_LIBRARY", "libnvidia-ml.so.none")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # an import of it fails
    assert BACKEND.open(None) == Absent("no NVIDIA driver (libnvidia-ml.so.none not found)")


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    source = BACKEND.open(os.getpid())
    assert not isinstance(source, Absent), source
    assert source.devices()
    source.sample()
    start = time.perf_counter()
    samples = source.sample()
    assert time.perf_counter() - start < 0.05 * len(samples)
    assert {"util", "mem_used_bytes", "power_w", "temp_c", "sm_clock_hz"} <= samples[0].values.keys()
    source.close()

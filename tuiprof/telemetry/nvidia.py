"""NVIDIA GPUs, through NVML (``pynvml`` of nvidia-ml-py).

What a GPU or a driver does not support is left out of its samples, figure by figure.

NVML is called directly. nvitop (1.7.2), the other wrapper of the same bindings, has no energy counter, no reasons for
throttling, no enforced power limit, no memory temperature and no PCIe byte counters, so that ``pynvml`` would be needed
beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import Any, Final

from tuiprof.telemetry import Absent, Backend, Device, Sample, Source
from tuiprof.telemetry._processes import ProcessTree, Rates

#: Of the driver; the loader finds it also where a container or WSL has put it.
_LIBRARY: Final = "libnvidia-ml.so.1"
#: NVML's bits of "why is the clock not higher", in words; nvml.h, nvmlClocksEventReasons.
_THROTTLE: Final = {
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal (software)",
    0x040: "thermal (hardware)",
    0x080: "power brake",
}
_IDLE: Final = 0x001

#: NVML fields read in one call: key of the figure, factor to its unit. Counters become rates.
_NVLINK_ALL: Final = 0xFFFFFFFF  # scope: the sum over all links
_KIB: Final = 1024
#: A process list costs most of a millisecond and changes slowly.
_PROCESSES_S: Final = 2.0
_MAX_PROCESSES: Final = 8


class _Gpu:
    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml = nvml
        self.index = index
        self.handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self.key = f"gpu{index}"
        self._unsupported: set[str] = set()
        self._rates = Rates()
        self._memory: dict[int, int] = {}
        self._processes_at = -_PROCESSES_S
        #: PCIe rates of a driver without PCIe counters, kept up to date by a thread (NVML measures 20 ms).
        self.pcie: dict[str, float] = {}
        self.has_pcie_counters = "pcie_rx_bytes_per_s" in self._fields()[1]

    def ask(self, name: str, *args: Any) -> Any:
        """Call an NVML function on this GPU; None when it is not supported here."""
        if name in self._unsupported:
            return None
        try:
            return getattr(self.nvml, name)(self.handle, *args)
        except (self.nvml.NVMLError_NotSupported, self.nvml.NVMLError_FunctionNotFound, AttributeError):
            # It will not be supported the next time either. The arguments matter for a few functions, but
            # what they select (a clock, an error kind) comes or is lacking as a whole.
            self._unsupported.add(name)
        except self.nvml.NVMLError:  # lost, reset, no permission: this reading is missing, the next may come
            pass
        return None

    def device(self) -> Device:
        memory = self.ask("nvmlDeviceGetMemoryInfo")
        limit = self.ask("nvmlDeviceGetEnforcedPowerLimit")
        top = self.ask("nvmlDeviceGetMaxClockInfo", self.nvml.NVML_CLOCK_SM)
        capability = self.ask("nvmlDeviceGetCudaComputeCapability")
        mig = self.ask("nvmlDeviceGetMigMode")
        details: dict[str, str | float | int] = {
            "driver": _text(self.nvml.nvmlSystemGetDriverVersion()),
            "cuda": _cuda(self.nvml),
        }
        more = {
            "uuid": _text(self.ask("nvmlDeviceGetUUID") or ""),
            "pci": _pci_address(self.ask("nvmlDeviceGetPciInfo")),
            "power_limit_w": limit / 1000 if limit else None,
            "sm_clock_max_hz": top * 1_000_000 if top else None,
            "compute_capability": "{}.{}".format(*capability) if capability else None,
            "mig": "on" if mig and mig[0] else None,
            "mig_uuids": ",".join(self._instances()) if mig and mig[0] else None,
        }
        details.update((key, value) for key, value in more.items() if value)
        name = _text(self.ask("nvmlDeviceGetName") or "NVIDIA GPU")
        return Device(self.key, "nvidia", name, int(memory.total) if memory else None, details)

    def _instances(self) -> list[str]:
        """Return the UUIDs of the MIG instances that it is divided into."""
        found = []
        for index in range(self.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
            with contextlib.suppress(self.nvml.NVMLError):  # a slot without an instance
                instance = self.nvml.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, index)
                found.append(_text(self.nvml.nvmlDeviceGetUUID(instance)))
        return found

    def sample(self, tree: ProcessTree | None) -> Sample:
        nvml, values, words = self.nvml, dict[str, float](), dict[str, str]()

        def put(key: str, value: float | None, factor: float = 1) -> None:
            if value is not None:
                values[key] = value * factor

        now = time.monotonic()
        if (use := self.ask("nvmlDeviceGetUtilizationRates")) is not None:
            put("util", use.gpu, 0.01)
            put("mem_util", use.memory, 0.01)
        if (memory := self.ask("nvmlDeviceGetMemoryInfo")) is not None:
            put("mem_used_bytes", int(memory.used))
            put("mem_total_bytes", int(memory.total))
        put("power_w", self.ask("nvmlDeviceGetPowerUsage"), 1e-3)
        put("energy_j", self.ask("nvmlDeviceGetTotalEnergyConsumption"), 1e-3)
        put("temp_c", self.ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU))
        put("sm_clock_hz", self.ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM), 1e6)
        put("mem_clock_hz", self.ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM), 1e6)
        volatile = nvml.NVML_VOLATILE_ECC
        put(
            "ecc_corrected",
            self.ask("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile),
        )
        put(
            "ecc_uncorrected",
            self.ask("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile),
        )
        reasons = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # a driver from before the name changed
            reasons = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if reasons is not None:
            words["throttle"] = throttle_words(reasons)
        gauges, counters = self._fields()
        values.update(gauges)
        values.update(self._rates.update(now, counters))
        values.update(self.pcie)
        values.update(self._processes(now, tree))
        return Sample(self.key, values, words)

    def measure_pcie(self) -> None:
        """Measure PCIe rates over 20 ms each way; for a driver that has no counters of them."""
        received = self.ask("nvmlDeviceGetPcieThroughput", self.nvml.NVML_PCIE_UTIL_RX_BYTES)
        sent = self.ask("nvmlDeviceGetPcieThroughput", self.nvml.NVML_PCIE_UTIL_TX_BYTES)
        if received is not None and sent is not None:
            self.pcie = {"pcie_rx_bytes_per_s": received * _KIB, "pcie_tx_bytes_per_s": sent * _KIB}

    def _fields(self) -> tuple[dict[str, float], dict[str, float]]:
        """Read gauges and counters that NVML gives by field number, in one call."""
        nvml = self.nvml
        fields = (
            ("mem_temp_c", nvml.NVML_FI_DEV_MEMORY_TEMP, 0, 1),
            ("nvlink_tx_bytes_per_s", nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _NVLINK_ALL, _KIB),
            ("nvlink_rx_bytes_per_s", nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _NVLINK_ALL, _KIB),
            ("pcie_tx_bytes_per_s", nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0, 1),
            ("pcie_rx_bytes_per_s", nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0, 1),
        )
        gauges, counters = dict[str, float](), dict[str, float]()
        answers = self.ask("nvmlDeviceGetFieldValues", [(number, scope) for _, number, scope, _ in fields])
        for (key, _, _, factor), answer in zip(fields, answers if answers is not None else (), strict=False):
            if answer.nvmlReturn == nvml.NVML_SUCCESS:
                (counters if key.endswith("_per_s") else gauges)[key] = _number(nvml, answer) * factor
        if not gauges.get("mem_temp_c"):  # 0 is what GPUs without that sensor say
            gauges.pop("mem_temp_c", None)
        return gauges, counters

    def _processes(self, now: float, tree: ProcessTree | None) -> dict[str, float]:
        """Return the memory of processes on this GPU, by pid, and of the run."""
        if now - self._processes_at >= _PROCESSES_S:
            self._processes_at = now
            running = self.ask("nvmlDeviceGetComputeRunningProcesses") or []
            # In a container the driver gives pids of the host and may withhold the memory.
            self._memory = {p.pid: int(p.usedGpuMemory or 0) for p in running}
        values: dict[str, float] = {"processes": len(self._memory)}
        largest = sorted(self._memory, key=lambda pid: -self._memory[pid])[:_MAX_PROCESSES]
        values.update((f"pid{pid}_mem_used_bytes", self._memory[pid]) for pid in largest if self._memory[pid])
        if tree is not None and (ours := tree.pids & self._memory.keys()):
            values["tree_mem_used_bytes"] = sum(self._memory[pid] for pid in ours)
        return values


class Nvidia:
    """Samples every GPU by the initialised ``pynvml``, for the run below the pid ``root``; None = no run."""

    def __init__(self, nvml: Any, root: int | None) -> None:
        self._nvml = nvml
        self._gpus = _gpus(nvml)
        self._tree = ProcessTree(root) if root is not None else None
        self._updated_at = -_PROCESSES_S
        self._closing = threading.Event()
        self._slow = [gpu for gpu in self._gpus if not gpu.has_pcie_counters]
        self._thread = threading.Thread(target=self._measure, name="nvml-pcie", daemon=True)
        if self._slow:
            self._thread.start()

    def devices(self) -> list[Device]:
        """Return the GPUs in NVML's order (``CUDA_VISIBLE_DEVICES`` does not change it)."""
        return [gpu.device() for gpu in self._gpus]

    def sample(self) -> list[Sample]:
        """Read every GPU once; about a millisecond each."""
        now = time.monotonic()
        if self._tree is not None and now - self._updated_at >= _PROCESSES_S:
            self._updated_at = now
            self._tree.update()
        return [gpu.sample(self._tree) for gpu in self._gpus]

    def close(self) -> None:
        """Stop measuring and release NVML."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)
        self._nvml.nvmlShutdown()

    def _measure(self) -> None:
        while not self._closing.is_set():
            for gpu in self._slow:
                gpu.measure_pcie()
            self._closing.wait(1.0)


def _gpus(nvml: Any) -> list[_Gpu]:
    """Return the GPUs that answer; one that is lost (fell off the bus) is left out."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):
            found.append(_Gpu(nvml, index))
    return found


def throttle_words(reasons: int) -> str:
    """Return why the clock is not higher, as ``"power cap"``; ``"none"`` = no reason, ``"idle"`` = no work."""
    held = [word for bit, word in _THROTTLE.items() if reasons & bit]
    return ", ".join(held) or ("idle" if reasons & _IDLE else "none")


def _number(nvml: Any, answer: Any) -> float:
    member = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
    }[answer.valueType]
    return float(getattr(answer.value, member))


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _pci_address(info: Any) -> str:
    """Return a PCI address without the function, as frameworks write it: ``0000:1b:00``; empty = unknown."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}" if info is not None else ""


def _cuda(nvml: Any) -> str:
    version = int(nvml.nvmlSystemGetCudaDriverVersion())
    return f"{version // 1000}.{version % 1000 // 10}"


def _open(root: int | None) -> Source | Absent:
    # pynvml loads the same; it is installed everywhere, and a fifth of a recording's start is its import.
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return Absent(f"no NVIDIA driver ({_LIBRARY} not found)")
    try:
        import pynvml
    except ImportError:
        return Absent("nvidia-ml-py is not installed", "pip install nvidia-ml-py")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Absent(f"NVML cannot be initialised: {error}", "check whether nvidia-smi works")
    source = Nvidia(pynvml, root)
    if not source.devices():
        source.close()
        return Absent("an NVIDIA driver, but no GPU responds", "in a container, start it with --gpus all")
    return source


BACKEND = Backend("nvidia", _open, order=10)

"""What a variant needs, and which of it this process lacks. Standard library only; torch is asked last.

``tuiprof`` answers the same question from outside, without importing anything (``tuiprof/ladder/availability.py``);
a test holds the two to the same words.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPU_TOPOLOGY = Path("/sys/devices/system/cpu")
NUMA_NODES = Path("/sys/devices/system/node")


def release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: ``"2.13.0+cpu"`` → ``(2, 13, 0)``."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def satisfies(have: str, wanted: str) -> bool:
    """Say whether a version meets a specifier such as ``">=2.5,<3"``; an empty one accepts all."""
    for clause in filter(None, (part.strip() for part in wanted.split(","))):
        operator, number = re.fullmatch(r"(>=|<=|==|!=|<|>)\s*([\d.]+)", clause).groups()
        width = max(len(release(have)), len(release(number)))
        left, right = ((*release(v), *(0,) * (width - len(release(v)))) for v in (have, number))
        if not {
            ">=": left >= right,
            "<=": left <= right,
            "==": left == right,
            "!=": left != right,
            "<": left < right,
            ">": left > right,
        }[operator]:
            return False
    return True


def missing(needs: dict) -> list[tuple[str, str]]:
    """Compare a variant's needs with this interpreter and machine.

    Args:
        needs: The merged ``needs`` table of the ladder and the variant, with ``dependencies`` and ``python`` of the
            PEP 723 header.

    Returns:
        ``(reason, remedy)`` for each need that is not met, in a fixed order; empty = it can run here.
    """
    lacks: list[tuple[str, str]] = []
    python = ".".join(map(str, sys.version_info[:3]))
    if not satisfies(python, needs.get("python", "")):
        lacks.append(
            (
                f"needs Python {needs['python']}, this is {python}",
                "run it with another interpreter (--python)",
            )
        )
    if needs.get("device") == "cuda":
        lacks += _gpu(needs)
    elif needs.get("device") in DEVICES:
        name, visible = DEVICES[needs["device"]]
        if not visible():
            why = f"needs {name} ({needs['why']})" if "why" in needs else f"needs {name}"
            lacks.append((f"{why}, and none is visible", "run it on a machine with one"))
    if needs.get("jax_device"):
        lacks += _jax_device()
    for wanted in needs.get("dependencies", []):
        lacks += _package(wanted, "")
    for wanted in needs.get("packages", []):
        lacks += _package(wanted, " ".join(needs.get("remedy", "").split()))
    if needs.get("compile"):
        lacks += _compiler()
    if needs.get("nvcc") and not (shutil.which("nvcc") or os.path.exists("/usr/local/cuda/bin/nvcc")):
        lacks.append(("needs nvcc, the CUDA compiler", "install the CUDA toolkit and put its bin on PATH"))
    cores, wanted_cores = physical_cores(), needs.get("cores", 0)
    if cores < wanted_cores:
        lacks.append(
            (f"needs {wanted_cores} physical cores, this machine has {cores}", "run it on a larger machine")
        )
    nodes, wanted_nodes = len(numa_nodes()), needs.get("numa_nodes", 0)
    if nodes < wanted_nodes:
        lacks.append(
            (f"needs {wanted_nodes} NUMA nodes, this machine has {nodes}", "run it on a larger machine")
        )
    for name in needs.get("libraries", []):
        if preload_library(name) is None:
            lacks.append((f"lib{name}.so is not installed", LIBRARY_REMEDIES.get(name, "")))
    return lacks


def _package(wanted: str, remedy: str) -> list[tuple[str, str]]:
    name, specifier = re.fullmatch(r"([\w.-]+)\s*(.*)", wanted).groups()
    remedy = remedy or f"pip install '{wanted}'"
    try:
        have = version(name)
    except PackageNotFoundError:
        return [(f"{name} is not installed", remedy)]
    if satisfies(have, specifier):
        return []
    return [(f"needs {name} {specifier}, {have} is installed", remedy)]


def _gpu(needs: dict) -> list[tuple[str, str]]:
    try:
        import torch
    except ImportError:
        return []  # it is named among the packages
    why = f"needs an NVIDIA GPU ({needs['why']})" if "why" in needs else "needs an NVIDIA GPU"
    if torch.version.cuda is None:
        remedy = "install a CUDA build of PyTorch on a machine with an NVIDIA GPU"
        return [(f"{why}, and torch {version('torch')} is built without CUDA", remedy)]
    if not torch.cuda.is_available():
        return [(f"{why}, and none is visible", "run it on a machine with an NVIDIA GPU and driver")]
    have = ".".join(map(str, torch.cuda.get_device_capability()))
    if not satisfies(have, needs.get("capability", "")):
        name = torch.cuda.get_device_name()
        return [(f"needs a GPU of compute capability {needs['capability']}, {name} has {have}", "")]
    return []


def _jax_device() -> list[tuple[str, str]]:
    """JAX is not asked: it would take the device's memory."""
    if tpu_visible():
        return _package("libtpu", "pip install 'jax[tpu]'")
    if not nvidia_visible():
        return [("needs a TPU or an NVIDIA GPU, and none is visible", "run it on a machine with one")]
    if all(_package(f"jax-cuda{number}-plugin", "") for number in (12, 13)):
        return [("JAX is installed without its CUDA plugin", "pip install 'jax[cuda13]'")]
    return []


def nvidia_visible() -> bool:
    """Say whether CUDA would see a GPU, from the driver's management library."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    try:
        nvml, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint()
    except OSError:
        return False
    return (
        nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 and count.value > 0
    )


def neuron_visible() -> bool:
    """Say whether the driver shows an AWS Neuron device."""
    return any(Path("/dev").glob("neuron[0-9]*"))


def tpu_visible() -> bool:
    """Say whether a Google TPU is on the PCI bus; its other devices, such as network cards, have the same vendor."""
    for device in PCI_DEVICES.glob("*"):
        try:
            vendor, number = ((device / file).read_text().strip().lower() for file in ("vendor", "device"))
        except OSError:  # it went away
            continue
        if vendor == "0x1ae0" and number in TPU_NUMBERS:
            return True
    return False


PCI_DEVICES = Path("/sys/bus/pci/devices")
#: Of v2 and v3, v4, v5p, v5e, v6e, v7x.
TPU_NUMBERS = {"0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}
DEVICES = {
    "neuron": ("an AWS Neuron device", neuron_visible),
    "tpu": ("a Google TPU", tpu_visible),
}


def _compiler() -> list[tuple[str, str]]:
    """torch.compile writes C++ for the CPU and Triton for CUDA."""
    try:
        import torch
    except ImportError:
        return []  # it is named among the packages
    if torch.cuda.is_available():
        return _package("triton", "")
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return [("torch.compile needs a C++ compiler on a CPU, g++ is not on PATH", "apt install g++")]
    return []


def physical_cores() -> int:
    """Count the physical cores that this process may use (hyper-threads count once)."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        topology = CPU_TOPOLOGY / f"cpu{cpu}" / "topology"
        try:
            package = (topology / "physical_package_id").read_text().strip()
            cores.add((package, (topology / "core_id").read_text().strip()))
        except OSError:  # some containers hide the topology: every CPU counts
            cores.add((cpu,))
    return len(cores)


def numa_nodes() -> dict[int, set[int]]:
    """Return the CPUs of each NUMA node; one node 0 with every CPU where the kernel shows none."""
    nodes = {}
    for path in sorted(NUMA_NODES.glob("node[0-9]*")):
        cpus = set()
        for part in filter(None, (path / "cpulist").read_text().strip().split(",")):
            first, _, last = part.partition("-")
            cpus |= set(range(int(first), int(last or first) + 1))
        if cpus:  # memory-only nodes have no CPU
            nodes[int(path.name[4:])] = cpus
    return nodes or {0: os.sched_getaffinity(0)}


LIBRARY_REMEDIES = {
    "tcmalloc": "apt install libtcmalloc-minimal4, then link libtcmalloc_minimal.so.4 as libtcmalloc.so into the"
    " environment's lib folder (run_cpu looks for exactly that name)",
    "iomp5": "pip install intel-openmp",
}


def preload_library(name: str) -> Path | None:
    """Find ``lib<name>.so`` where ``torch.backends.xeon.run_cpu`` looks for it; None = nowhere."""
    folders = [Path(sys.prefix, "lib"), Path.home() / ".local/lib"]
    folders += [Path(folder) for folder in ("/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64")]
    if "CONDA_PREFIX" in os.environ:
        folders.insert(0, Path(os.environ["CONDA_PREFIX"], "lib"))
    return next((path for folder in folders if (path := folder / f"lib{name}.so").exists()), None)

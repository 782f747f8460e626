"""Prints facts about the interpreter it runs in: the one that scripts will run in. Python 3.9+, standard library only.

It is passed as text (``python -c``), so it has no path and imports nothing of tuiprof.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import platform
import re
import shutil
import sys


def distributions() -> dict[str, str]:
    """Return versions by normalised name, from the names of metadata folders: reading the files would take seconds."""
    found = {}
    for folder in reversed(
        [path for path in sys.path if path]
    ):  # earlier entries of the path take precedence
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            match = re.match(r"([^-]+)-([^-]+?)(-py[\d.]+)?\.(dist|egg)-info$", name)
            if match:
                found[re.sub(r"[-_.]+", "-", match.group(1)).lower()] = match.group(2)
    return found


def torch_cuda() -> bool:
    """Return whether the installed torch was built with CUDA, without importing it."""
    for folder in sys.path:
        library = os.path.join(folder, "torch", "lib")
        if folder and os.path.isdir(library):
            return os.path.exists(os.path.join(library, "libtorch_cuda.so"))
    return False


def gpus() -> list[tuple[str, str]]:
    """Return name and compute capability of the GPUs visible to CUDA, from NVML."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return []
    except (OSError, AttributeError):
        return []
    found = []
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        device, name, uuid = (
            ctypes.c_void_p(),
            ctypes.create_string_buffer(96),
            ctypes.create_string_buffer(96),
        )
        major, minor = ctypes.c_int(), ctypes.c_int()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
            continue
        nvml.nvmlDeviceGetName(device, name, 96)
        nvml.nvmlDeviceGetUUID(device, uuid, 96)
        nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
        capability = f"{major.value}.{minor.value}"
        found.append((uuid.value.decode(), (name.value.decode("utf-8", "replace"), capability)))
    nvml.nvmlShutdown()
    return visible(found)


def visible(found: list[tuple[str, tuple[str, str]]]) -> list[tuple[str, str]]:
    """Apply CUDA_VISIBLE_DEVICES: indices or prefixes of UUIDs, up to the first invalid one."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return [gpu for _, gpu in found]
    chosen = []
    for item in (part.strip() for part in wanted.split(",")):
        if item.isdigit() and int(item) < len(found):
            chosen.append(found[int(item)][1])
            continue
        fitting = [gpu for uuid, gpu in found if item and uuid.startswith(item)]
        if len(fitting) != 1:
            break
        chosen += fitting
    return chosen


def cpu() -> str:
    """Return the CPU's name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, name = line.partition(":")
                if key.strip() == "model name" and name.strip():
                    return name.strip()
    except OSError:
        pass  # not Linux
    return platform.processor()


def cores() -> int:
    """Count the physical cores this process may use; if the topology is hidden, logical CPUs."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    found: set[object] = set()
    for number in os.sched_getaffinity(0):
        topology = f"/sys/devices/system/cpu/cpu{number}/topology/"
        try:
            with open(topology + "physical_package_id") as package, open(topology + "core_id") as core:
                found.add((package.read().strip(), core.read().strip()))
        except OSError:
            found.add(number)
    return len(found)


def numa_nodes() -> int:
    """Count the NUMA nodes with CPUs; 1 if unknown."""
    count = 0
    for path in glob.glob("/sys/devices/system/node/node[0-9]*/cpulist"):
        with open(path) as cpus:
            count += bool(cpus.read().strip())
    return max(count, 1)


def libraries() -> list[str]:
    """Return the allocators and OpenMP runtimes that torch.backends.xeon.run_cpu would find."""
    local = os.path.expanduser("~/.local")
    prefixes = (os.environ.get("CONDA_PREFIX", sys.prefix), sys.prefix, local, "/usr/local", "/usr")
    folders = [os.path.join(prefix, "lib") for prefix in prefixes] + ["/usr/local/lib64", "/usr/lib64"]
    names = ("tcmalloc", "jemalloc", "iomp5")
    return [name for name in names if any(os.path.exists(f"{folder}/lib{name}.so") for folder in folders)]


def main() -> None:
    """Print the facts in one marked line; a sitecustomize may have printed others."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin") or ""
    answer = {
        "version": platform.python_version(),
        "implementation": sys.implementation.name,
        "prefix": sys.prefix,
        "distributions": distributions(),
        "torch_cuda": torch_cuda(),
        "gpus": gpus(),
        "nvcc": nvcc,
        "cxx": shutil.which(os.environ.get("CXX", "g++")) or "",
        "cpu": cpu(),
        "cores": cores(),
        "numa_nodes": numa_nodes(),
        "libraries": libraries(),
    }
    sys.stdout.write("\ntuiprof-facts:" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()

"""Whether a variant can run in an interpreter on this machine, and if not, exactly why and what to do.

The scripts answer the same question from inside (``scenarios/common/needs.py``); a test holds the two to the same
words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tuiprof.ladder.scenarios import Variant
    from tuiprof.session.run.interpreter import Facts
    from tuiprof.telemetry import Device

_CLAUSE = re.compile(r"(>=|<=|==|!=|<|>)\s*([\d.]+)")
_MEETS = {">=": ge, "<=": le, "==": eq, "!=": ne, "<": lt, ">": gt}
_PACKAGE = re.compile(r"([\w.-]+)\s*(.*)")
_LIBRARY_REMEDIES = {
    "tcmalloc": "apt install libtcmalloc-minimal4, then link libtcmalloc_minimal.so.4 as libtcmalloc.so into the"
    " environment's lib folder (run_cpu looks for exactly that name)",
    "iomp5": "pip install intel-openmp",
}
_DEVICES = {"neuron": "an AWS Neuron device", "tpu": "a Google TPU", "amd": "an AMD GPU"}


class Needs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a variant needs."""

    packages: tuple[str, ...] = ()  # its own distributions, with versions: ``"xformers>=0.0.28"``
    device: str = ""  # ``"cuda"``, ``"cpu"`` or the kind of a telemetry device; empty = any
    why: str = ""  # why it needs that device, as a clause
    capability: str = ""  # CUDA compute capability, as a version specifier: ``">=9.0,<10.0"``
    compile: bool = False  # it uses torch.compile: Triton on a GPU, a C++ compiler on a CPU
    nvcc: bool = False  # it compiles CUDA
    #: It runs on an accelerator that JAX drives: a TPU, or an NVIDIA GPU with JAX's CUDA plugin.
    jax_device: bool = False
    cores: int = 0  # physical cores
    numa_nodes: int = 0
    #: Distributions that must be of the same release (the first two numbers): an extension built against one PyTorch
    #: crashes in another.
    same_release: tuple[str, ...] = ()
    without: tuple[str, ...] = ()  # distributions among ``dependencies`` that it does without
    libraries: tuple[str, ...] = ()  # shared libraries to preload, without ``lib`` and ``.so``
    remedy: str = ""  # how to get its packages; empty = ``pip install``, or ``uv run --with``
    #: Distributions that the ladder's default variant needs, and every other but those that do ``without``; from the
    #: PEP 723 header.
    dependencies: tuple[str, ...] = ()
    python: str = ""  # Python versions; from the PEP 723 header

    def __post_init__(self) -> None:
        """Refuse invalid versions when the header is read, not only when it is used."""
        packages = (*self.packages, *self.dependencies)
        for wanted in (self.python, self.capability, *(_split(package)[1] for package in packages)):
            for clause in filter(None, map(str.strip, wanted.split(","))):
                if not _CLAUSE.fullmatch(clause):
                    raise ValueError(f"{clause!r} is not a version specifier such as >=2.5")


@dataclass(frozen=True, slots=True)
class Missing:
    """It cannot run."""

    reason: str  # all that is missing, in words
    remedy: str  # what to do about it; may be empty
    reasons: tuple[tuple[str, str], ...]  # the same, one by one, each with its own remedy


def availability(variant: Variant, facts: Facts, devices: Sequence[Device] = ()) -> Missing | None:
    """Compare what a variant needs with the interpreter and the devices; None = it can run."""
    needs = variant.needs
    lacks: list[tuple[str, str]] = []
    if not satisfies(facts.version, needs.python):
        why = f"needs Python {needs.python}, this is {facts.version}"
        lacks.append((why, "run it with another interpreter (--python)"))
    if needs.device == "cuda":
        lacks += _gpu(needs, facts)
    elif needs.device in _DEVICES and all(device.kind != needs.device for device in devices):
        why = f"needs {_DEVICES[needs.device]}" + (f" ({needs.why})" if needs.why else "")
        lacks.append((f"{why}, and none is visible", "run it on a machine with one"))
    if needs.jax_device:
        lacks += _jax_device(facts, devices)
    for wanted in needs.dependencies:
        if _split(wanted)[0] not in needs.without:
            lacks += _package(wanted, "", facts)
    for wanted in needs.packages:
        lacks += _package(wanted, needs.remedy, facts)
    lacks += _same_release(needs.same_release, facts)
    if needs.compile and "torch" in facts.distributions:
        lacks += _compiler(facts)
    if needs.nvcc and not facts.nvcc:
        lacks.append(("needs nvcc, the CUDA compiler", "install the CUDA toolkit and put its bin on PATH"))
    cores = ("physical cores", needs.cores, facts.cores)
    for what, wanted_count, have in (cores, ("NUMA nodes", needs.numa_nodes, facts.numa_nodes)):
        if have < wanted_count:
            why = f"needs {wanted_count} {what}, this machine has {have}"
            lacks.append((why, "run it on a larger machine"))
    for name in needs.libraries:
        if name not in facts.libraries:
            lacks.append((f"lib{name}.so is not installed", _LIBRARY_REMEDIES.get(name, "")))
    if not lacks:
        return None
    remedies = dict.fromkeys(remedy for _, remedy in lacks if remedy)
    return Missing("; ".join(reason for reason, _ in lacks), "; ".join(remedies), tuple(lacks))


def release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: ``"2.13.0+cpu"`` → ``(2, 13, 0)``; empty if it does not begin with one."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def satisfies(have: str, wanted: str) -> bool:
    """Return whether a version meets a specifier such as ``">=2.5,<3"``; pre-releases count as the release."""
    for clause in filter(None, map(str.strip, wanted.split(","))):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            raise ValueError(f"{clause!r} is not a version specifier")
        width = max(len(release(have)), len(release(match[2])))
        left, right = ((*release(v), *(0,) * (width - len(release(v)))) for v in (have, match[2]))
        if not _MEETS[match[1]](left, right):
            return False
    return True


def _split(package: str) -> tuple[str, str]:
    match = _PACKAGE.fullmatch(package)
    if match is None:
        raise ValueError(f"{package!r} is not a package with an optional version")
    return match[1], match[2]


def _package(wanted: str, remedy: str, facts: Facts) -> list[tuple[str, str]]:
    name, specifier = _split(wanted)
    remedy = remedy or f"pip install '{wanted}', or uv run --with '{wanted}'"
    have = facts.distribution(name)
    if have is None:
        return [(f"{name} is not installed", remedy)]
    if satisfies(have, specifier):
        return []
    return [(f"needs {name} {specifier}, {have} is installed", remedy)]


def _same_release(names: Sequence[str], facts: Facts) -> list[tuple[str, str]]:
    have = {name: version for name in names if (version := facts.distribution(name)) is not None}
    if len({release(version)[:2] for version in have.values()}) < 2:
        return []
    wanted = ".".join(map(str, min(release(version)[:2] for version in have.values())))
    pins = " ".join(f"'{name}=={wanted}.*'" for name in names)
    found = " and ".join(f"{name} {version}" for name, version in have.items())
    return [(f"needs {' and '.join(names)} of one release, {found} are installed", f"pip install {pins}")]


def _gpu(needs: Needs, facts: Facts) -> list[tuple[str, str]]:
    torch = facts.distribution("torch")
    packages = (*needs.dependencies, *needs.packages)
    if torch is None and any(_split(package)[0] == "torch" for package in packages):
        return []  # it is named among the packages
    why = f"needs an NVIDIA GPU ({needs.why})" if needs.why else "needs an NVIDIA GPU"
    if torch is not None and not facts.torch_cuda:
        remedy = "install a CUDA build of PyTorch on a machine with an NVIDIA GPU"
        return [(f"{why}, and torch {torch} is built without CUDA", remedy)]
    if not facts.gpus:
        return [(f"{why}, and none is visible", "run it on a machine with an NVIDIA GPU and driver")]
    name, have = facts.gpus[0]
    if not satisfies(have, needs.capability):
        return [(f"needs a GPU of compute capability {needs.capability}, {name} has {have}", "")]
    return []


def _jax_device(facts: Facts, devices: Sequence[Device]) -> list[tuple[str, str]]:
    if any(device.kind == "tpu" for device in devices):
        return _package("libtpu", "pip install 'jax[tpu]'", facts)
    if not facts.gpus:
        return [("needs a TPU or an NVIDIA GPU, and none is visible", "run it on a machine with one")]
    if not any(facts.distribution(f"jax-cuda{version}-plugin") for version in (12, 13)):
        return [("JAX is installed without its CUDA plugin", "pip install 'jax[cuda13]'")]
    return []


def _compiler(facts: Facts) -> list[tuple[str, str]]:
    if facts.torch_cuda and facts.gpus:
        return _package("triton", "", facts)
    if not facts.cxx:
        return [("torch.compile needs a C++ compiler on a CPU, g++ is not on PATH", "apt install g++")]
    return []

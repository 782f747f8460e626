"""FlashAttention 2 and 3, xFormers and Transformer Engine on an H100 without a network: what must travel, build, try.

On a machine with a network, once (prints what each file weighs; refuses more than 64 MiB)::

    python tests/gpu/third_party_attention.py travel --git https://github.com/Dao-AILab/flash-attention

On the GPU machine, with PyTorch, nvcc and ninja, each as often as it says ``not through yet``::

    python tests/gpu/third_party_attention.py build flash-attn        # head size 64, bf16, sm_90: six kernels
    python tests/gpu/third_party_attention.py build flash-attn-3      # head size 64, bf16, sm_90a
    python tests/gpu/third_party_attention.py build xformers          # its wheel, which takes FlashAttention's kernels
    python tests/gpu/third_party_attention.py build transformer-engine
    python tests/gpu/third_party_attention.py try                     # --check of every variant that they make possible

``build`` stops after ``--seconds`` and goes on in the next call: ninja keeps what is compiled. Wheels go to ``$OUT``.
The last line of every call is JSON. ``docs/results.md`` names what could not be had.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAVEL, WORK = ROOT / "build/travel", ROOT / "build/third-party"
SITE, OUT = WORK / "site", Path(os.environ.get("OUT", ROOT / "build/out"))
LIMIT_BYTES = 64 << 20
AGAIN = 3
#: Sources, with their own build; and wheels: a package and what it needs that a machine with PyTorch may lack.
SOURCES = ("flash-attn==2.8.3",)
WHEELS = ("nvidia-cutlass==4.2.0.0", "xformers==0.0.35", "einops", "transformers>=4.56", "tokenizers")
WHEELS += ("huggingface-hub", "safetensors", "regex", "pyyaml", "hf-xet")
#: Variants of ``attention`` and ``varlen`` that each makes possible.
VARIANTS = {
    "flash-attn": (
        "varlen:flash-varlen-eval",
        "varlen:flash-varlen-train",
        "varlen:gpt2-flash",
        "varlen:gpt2-flash-flattened",
    ),
    "flash-attn-3": ("attention:flash-attention-3",),
    "xformers": (
        "attention:xformers",
        "attention:xformers-compiled",
        "varlen:xformers-eval",
        "varlen:xformers-train",
    ),
    "transformer-engine": ("attention:transformer-engine", "attention:transformer-engine-compiled"),
}


def travel(git: str, commit: str) -> dict[str, object]:
    """Fetch what the GPU machine needs into ``build/travel``."""
    TRAVEL.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(TRAVEL)]
    skip = {**os.environ, "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}
    subprocess.run([*pip, "--no-build-isolation", "--no-binary", ":all:", *SOURCES], check=True, env=skip)
    there = [
        "--python-version",
        "3.12",
        "--platform",
        "manylinux_2_28_x86_64",
        "--platform",
        "manylinux_2_17_x86_64",
    ]
    subprocess.run([*pip, *there, "--only-binary", ":all:", *WHEELS], check=True)
    clone = WORK / "flash-attention.git"
    if not clone.exists():
        subprocess.run(
            ["git", "clone", "--quiet", "--bare", "--filter=blob:none", git, str(clone)], check=True
        )
    with (TRAVEL / "hopper.tar.gz").open("wb") as archive:
        command = ["git", f"--git-dir={clone}", "archive", "--format=tar.gz", commit, "hopper"]
        subprocess.run(command, check=True, stdout=archive)
    sizes = {path.name: path.stat().st_size for path in sorted(TRAVEL.iterdir())}
    for name, size in sizes.items():
        print(f"{size / 1e6:8.2f} MB  {name}")
    total = sum(sizes.values())
    if total > LIMIT_BYTES:
        raise SystemExit(f"{total / 2**20:.1f} MiB are more than the 64 MiB that travel")
    return {"files": len(sizes), "bytes": total}


def carried(pattern: str) -> Path:
    """Return a file that travelled."""
    found = sorted(TRAVEL.glob(pattern))
    if not found:
        raise SystemExit(
            f"{TRAVEL}/{pattern} is not here: run travel where there is a network, and carry build/travel"
        )
    return found[-1]


def flash_attention_2(folder: Path) -> None:
    """Unpack FlashAttention 2, reduced to one head size and type."""
    with tarfile.open(carried("flash_attn-*.tar.gz")) as archive:
        archive.extractall(folder, filter="data")
    (top,) = folder.glob("flash_attn-*")
    top.rename(folder / "source")
    setup, switch = folder / "source/setup.py", folder / "source/csrc/flash_attn/src/static_switch.h"
    setup.write_text(
        re.sub(
            r'^.*"csrc/flash_attn/src/flash_\w+?_hdim(?!64_bf16)\w+\.cu",\n',
            "",
            setup.read_text(),
            flags=re.M,
        )
    )
    text = switch.read_text()
    chosen = {
        "FP16_SWITCH": "using elem_type = cutlass::bfloat16_t",
        "HEADDIM_SWITCH": "constexpr static int kHeadDim = 64",
    }
    macros = [
        f"#define {name}(_, ...) [&] {{ {what}; return __VA_ARGS__(); }}()\n" for name, what in chosen.items()
    ]
    switch.write_text(text[: text.index("#define FP16_SWITCH")] + "".join(macros))


def flash_attention_3(folder: Path) -> None:
    """Unpack FlashAttention 3 beside the headers of CUTLASS."""
    source = folder / "source"
    with tarfile.open(carried("hopper.tar.gz")) as archive:
        archive.extractall(source, filter="data")
    headers = source / "csrc/cutlass/include"
    with zipfile.ZipFile(carried("nvidia_cutlass-*.whl")) as wheel:
        inside = "cutlass_library/source/include/"
        for name in wheel.namelist():
            if name.startswith(inside) and not name.endswith("/"):
                target = headers / name.removeprefix(inside)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(wheel.read(name))
    (source / "README.md").write_text("FlashAttention 3\n", encoding="utf-8")  # its setup.py reads one
    setup = source / "hopper/setup.py"
    setup.write_text(
        re.sub(r'^ *subprocess\.run\(\["git", "submodule".*\n', "    pass\n", setup.read_text(), flags=re.M)
    )


#: How each source is unpacked, where its setup.py is, and its settings.
BUILDS: dict[str, tuple[Callable[[Path], None], str, dict[str, str]]] = {
    "flash-attn": (flash_attention_2, "source", {"FLASH_ATTN_CUDA_ARCHS": "90"}),
    "flash-attn-3": (
        flash_attention_3,
        "source/hopper",
        {
            f"FLASH_ATTENTION_DISABLE_{what}": "TRUE"
            for what in (
                *("FP16", "FP8", "HDIM96", "HDIM128", "HDIM192", "HDIM256", "HDIMDIFF64", "HDIMDIFF192"),
                *("SM80", "SPLIT", "PAGEDKV", "APPENDKV", "LOCAL", "SOFTCAP", "PACKGQA", "CLUSTER"),
            )
        },
    ),
}


def build(name: str, seconds: float) -> dict[str, object]:
    """Build or take over a package, for at most so long; the wheel is installed into a folder of its own."""
    if name == "xformers":
        return install(carried("xformers-*.whl"), carried("einops-*.whl"))
    if name == "transformer-engine":
        why = (
            "its library for CUDA 13 alone is a wheel of 276.5 MB (2.20.2), more than the 64 MiB that travel"
        )
        return {"name": name, "built": False, "why": why}
    unpack, place, settings = BUILDS[name]
    folder = WORK / name
    if not (folder / place / "setup.py").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        unpack(folder)
    usual = Path("/usr/local/cuda/bin/nvcc")  # what is on PATH may be a script that calls it
    cuda = Path(
        os.environ.get("CUDA_HOME") or (usual if usual.exists() else _on_path("nvcc", usual)).parents[1]
    )
    if not (cuda / "bin/nvcc").exists():
        raise SystemExit("needs nvcc, the CUDA compiler: install the CUDA toolkit and put its bin on PATH")
    environment = {
        **os.environ,
        **settings,
        "CUDA_HOME": str(cuda),
        "CPLUS_INCLUDE_PATH": f"{cuda}/include/cccl",
        "TORCH_CUDA_ARCH_LIST": "9.0a",
        "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
        "MAX_JOBS": str(len(os.sched_getaffinity(0))),
        "NVCC_THREADS": "1",
    }
    began, log = time.monotonic(), folder / "build.log"
    with log.open("w") as said:
        command = [sys.executable, "setup.py", "bdist_wheel"]
        running = subprocess.Popen(
            command,
            cwd=folder / place,
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = running.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGINT)
            running.wait()
    objects = len(list(folder.rglob("*.o")))
    spent = round(time.monotonic() - began, 1)
    if status is None:
        return {"name": name, "built": False, "why": "not through yet", "objects": objects, "seconds": spent}
    if status:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines[-5:]
        return {"name": name, "built": False, "why": errors[:5], "objects": objects, "seconds": spent}
    (wheel,) = (folder / place / "dist").glob("*.whl")
    return {**install(wheel, carried("einops-*.whl")), "objects": objects, "seconds": spent}


def _on_path(program: str, otherwise: Path) -> Path:
    found = shutil.which(program)
    return Path(found).resolve() if found else otherwise


def install(*wheels: Path) -> dict[str, object]:
    """Install wheels into the folder that ``try`` uses, and leave them in ``$OUT``."""
    OUT.mkdir(parents=True, exist_ok=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--upgrade",
        "--target",
        str(SITE),
    ]
    subprocess.run([*pip, *map(str, wheels)], check=True)
    for wheel in wheels:
        shutil.copy(wheel, OUT)
    return {"built": True, "wheels": {wheel.name: wheel.stat().st_size for wheel in wheels}}


def attempt(names: list[str], seconds: float) -> dict[str, object]:
    """Run every variant that the packages make possible at its small size, with its check."""
    packages = ("transformers", "tokenizers", "huggingface_hub", "safetensors", "regex", "pyyaml", "hf_xet")
    more = [path for package in packages for path in TRAVEL.glob(f"{package}-*.whl")]
    if more:
        install(*more)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{SITE}:{os.environ.get('PYTHONPATH', '')}",
        "HF_HUB_OFFLINE": "1",
    }
    outcome: dict[str, object] = {}
    until = time.monotonic() + seconds
    for variant in (each for name in names for each in VARIANTS[name]):
        left = until - time.monotonic()
        if left < 10:
            outcome[variant] = "no time was left"
            continue
        ladder, _, name = variant.partition(":")
        arguments = ["--variant", name, "--preset", "smoke", "--steps", "4", "--check"]
        command = [sys.executable, str(ROOT / f"scenarios/{ladder}.py"), *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment, timeout=left
            )
        except subprocess.TimeoutExpired:
            outcome[variant] = "not over in time"
            continue
        said = (done.stderr.strip().splitlines() or [""])[-1]
        outcome[variant] = "equal" if done.returncode == 0 else f"status {done.returncode}: {said}"
        print(f"{variant}: {outcome[variant]}", flush=True)
    return outcome


def main() -> int:
    """Run one part; return 0, or 3 if the same call goes on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=150)
    verbs = parser.add_subparsers(dest="verb", required=True)
    fetching = verbs.add_parser("travel")
    fetching.add_argument("--git", default="https://github.com/Dao-AILab/flash-attention")
    fetching.add_argument(
        "--commit", default="0251105a", help="of FlashAttention 3 (August 2026: builds with CUDA 13)"
    )
    verbs.add_parser("build").add_argument("name", choices=list(VARIANTS))
    verbs.add_parser("try").add_argument("names", nargs="*", choices=[[], *VARIANTS], default=[])
    options = parser.parse_args()
    if options.verb == "travel":
        answer = travel(options.git, options.commit)
    elif options.verb == "build":
        answer = build(options.name, options.seconds)
    else:
        answer = attempt(options.names or list(VARIANTS), options.seconds)
    print(json.dumps(answer))
    return AGAIN if answer.get("why") == "not through yet" else 0


if __name__ == "__main__":
    raise SystemExit(main())

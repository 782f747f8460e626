"""The host backend, on the real host and a real process tree."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuiprof.telemetry import Sample, backends
from tuiprof.telemetry import host as host_module
from tuiprof.telemetry._processes import ProcessTree, Usage
from tuiprof.telemetry.figures import FIGURES, figure
from tuiprof.telemetry.host import Host

#: Forks two workers named as PyTorch names its own (one spins, one sleeps) and a child that is no worker.
TREE = """
import ctypes, os, subprocess, sys, time
libc = ctypes.CDLL(None)
for spin in (True, False):
    if os.fork() == 0:
        libc.prctl(15, b"pt_data_worker")
        os.write(1, b"up\\n")
        end = time.monotonic() + 60  # whatever becomes of the test, this does not burn a core for ever
        while spin and time.monotonic() < end:
            pass
        time.sleep(60)
        os._exit(0)
other = subprocess.Popen(["sleep", "60"])
os.write(1, b"up\\n")
time.sleep(60)
"""


@pytest.fixture
def tree() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", TREE], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    for _ in range(3):
        assert process.stdout.readline() == "up\n"
    yield process
    os.killpg(process.pid, 9)
    process.wait()
    process.stdout.close()


def only(samples: list[Sample]) -> Sample:
    assert len(samples) == 1
    return samples[0]


def test_sample_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(None)
    (device,) = host.devices()
    assert device.key == "host"
    assert device.details["cores"] == os.cpu_count()
    deadline = time.monotonic() + 0.25
    while time.monotonic() < deadline:
        pass
    values = only(host.sample()).values
    assert 0 < values["util"] <= 1
    assert values["util"] == pytest.approx(
        sum(values[f"core{i}_util"] for i in range(os.cpu_count() or 1)) / (os.cpu_count() or 1), abs=0.1
    )
    assert device.memory_bytes is not None
    assert 0 < values["mem_used_bytes"] < device.memory_bytes
    assert "tree_rss_bytes" not in values
    monkeypatch.setattr(host_module, "_SLOW_S", 0.0)  # disks, network and swap are asked once a second
    assert {"disk_read_bytes_per_s", "net_rx_bytes_per_s", "swap_used_bytes"} <= only(
        host.sample()
    ).values.keys()


def test_process_tree_and_loaders(tree: subprocess.Popen[str]) -> None:
    host = Host(tree.pid)
    for _ in range(20):  # on a busy machine the one that spins may have had no turn yet
        time.sleep(0.5)
        values = only(host.sample()).values
        if values["loaders_idle"] == 1:
            break
    assert values["tree_processes"] == 4  # the script, two workers, and sleep
    assert values["loaders"] == 2
    assert values["loaders_idle"] == 1
    assert 0.05 < values["tree_cpu"] < 1.5  # one worker spins, on what a busy machine leaves it of a core
    assert values["tree_rss_bytes"] > 5_000_000


#: Does what it is told, line by line, and answers each line: the test decides what happens when.
OBEDIENT = """
import os, subprocess, sys
middle = child = None
for line in sys.stdin:
    if line == "start\\n":
        child = subprocess.Popen(["sleep", "60"])
    elif line == "kill\\n":  # and do not wait for it: a zombie is left
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    elif line == "start two\\n":  # a child and its child
        middle = subprocess.Popen(
            ["sh", "-c", "sleep 60 & echo; read line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        middle.stdout.readline()
    elif line == "end the first\\n":
        middle.stdin.close()
        middle.wait()
    print("done", flush=True)
"""


@pytest.fixture
def told() -> Iterator[tuple[int, Callable[[str], None]]]:
    """A process of ours alone: its number, and how to tell it something."""
    process = subprocess.Popen(
        [sys.executable, "-c", OBEDIENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    into, out = process.stdin, process.stdout

    def tell(what: str) -> None:
        into.write(what + "\n")
        into.flush()
        assert out.readline() == "done\n"

    tell("begin")
    yield process.pid, tell
    os.killpg(process.pid, 9)
    process.wait()
    into.close()
    out.close()


def test_children_that_come_and_go(told: tuple[int, Callable[[str], None]]) -> None:
    pid, tell = told
    host = Host(pid)
    assert only(host.sample()).values["tree_processes"] == 1
    tell("start")
    assert only(host.sample()).values["tree_processes"] == 2
    tell("kill")  # a zombie, not yet waited for, is no process of the run any more
    assert only(host.sample()).values["tree_processes"] == 1


def test_orphans_stay_members(told: tuple[int, Callable[[str], None]]) -> None:
    pid, tell = told
    host = Host(pid)
    tell("start two")
    assert only(host.sample()).values["tree_processes"] == 3
    tell("end the first")
    assert only(host.sample()).values["tree_processes"] == 2  # its child still counts


def test_the_run_ended() -> None:
    process = subprocess.Popen(["sleep", "60"])
    host = Host(process.pid)
    process.kill()
    process.wait()
    values = only(host.sample()).values
    assert values["tree_processes"] == 0
    # The last figures of a screen, and the means of a report, are those of the run.
    assert not {"tree_rss_bytes", "tree_cpu", "loaders"} & values.keys()


def test_a_process_that_has_given_back_its_memory_is_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(os.getpid())
    monkeypatch.setattr(ProcessTree, "usage", lambda *_: Usage(1, 1, 0, 0.1, 0, 0))
    values = only(host.sample()).values
    assert values["tree_processes"] == 1
    assert not {"tree_rss_bytes", "tree_cpu", "loaders"} & values.keys()


def test_every_key_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "_SLOW_S", 0.0)
    host = Host(os.getpid())
    values = [only(host.sample()).values for _ in range(2)][-1]  # rates need two
    assert "disk_read_bytes_per_s" in values
    for key in values:
        assert figure(key).help, key


def test_backends_in_panel_order_and_absent_ones_say_why() -> None:
    found = backends()
    assert list(found)[:2] == ["host", "nvidia"]
    for name, backend in found.items():
        source = backend.open(None)
        if hasattr(source, "devices"):
            assert source.devices(), name
            source.close()
        else:
            assert source.reason, name


def test_keys_carry_their_unit() -> None:
    for key, item in FIGURES.items():
        if item.kind == "bytes":
            assert "bytes" in key
            assert key.endswith("_bytes_per_s") == (item.unit == "/s")
        if item.kind == "ns":
            assert key.endswith("_ns")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("processor: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_bf16 amx_tile\n", "amx_bf16"),
        ("flags : fpu avx2 avx512_bf16\n", "avx512_bf16"),
        ("Features : fp asimd bf16 i8mm\n", "bf16"),
        ("flags : fpu avx2\n", ""),
        ("processor: 0\n", None),
    ],
)
def test_what_a_processor_has_for_bfloat16(text: str, found: str | None, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert host_module.bf16_instructions(path) == found


def test_a_system_without_cpuinfo_does_not_say(tmp_path: Path) -> None:
    assert host_module.bf16_instructions(tmp_path / "none") is None

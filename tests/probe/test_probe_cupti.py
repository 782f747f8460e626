"""CUPTI is taken down after a capture: the protocol of Kineto, played by a thread, and the environment it reads.

What comes of it on a GPU is measured by ``tests/gpu/after_capture.py``.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tuiprof.probe.frameworks.torch_capture import Cupti, visible_to_c

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="CUPTI is taken down on Linux only")
NAME = "TEARDOWN_CUPTI"


def getenv(name: str) -> bytes | None:
    """Return what C code of this process finds."""
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_char_p
    found: bytes | None = library.getenv(name.encode())
    return found


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (NAME, "DISABLE_CUPTI_LAZY_REINIT", "CUDA_INJECTION64_PATH", "KINETO_USE_DAEMON"):
        monkeypatch.delenv(name, raising=False)


class Kineto:
    """What Kineto does when a profile ends: a thread waits for a call of CUDA, and looks at the variable again."""

    def __init__(self, cuda: str = "13.0", version: str = "2.11.0+cu130", called_back: bool = True) -> None:
        self.seen: list[bytes | None] = []
        self.thread: threading.Thread | None = None
        self._called = threading.Event()
        self._called_back = called_back
        stream = SimpleNamespace(query=lambda: True)
        self.torch: Any = SimpleNamespace(
            __version__=version,
            version=SimpleNamespace(cuda=cuda),
            cuda=SimpleNamespace(current_stream=lambda: stream, CUDAGraph=type("CUDAGraph", (), {})),
            _C=SimpleNamespace(_cuda_getDevice=self._cuda_called),
        )
        self.torch.cuda.CUDAGraph.capture_begin = lambda graph: None

    def stop(self) -> None:
        self.seen.append(getenv(NAME))
        if self.seen[-1] == b"1":
            self.thread = threading.Thread(target=self._take_down)
            self.thread.start()

    def _take_down(self) -> None:
        self._called.wait()
        self.seen.append(getenv(NAME))

    def _cuda_called(self) -> int:
        if self._called_back:
            self._called.set()
        return 0

    def let_go(self) -> None:
        self._called.set()
        if self.thread is not None:
            self.thread.join()


def test_it_is_gone_when_the_script_goes_on() -> None:
    kineto = Kineto()
    cupti = Cupti(kineto.torch)
    assert cupti.taken_down_after(kineto.stop)
    assert kineto.seen == [b"1", b"1"], "the variable is seen when the profile ends and when CUPTI is gone"
    assert getenv(NAME) is None
    assert NAME not in os.environ
    assert cupti.is_down


def test_the_next_profile_finds_it_as_it_was() -> None:
    kineto = Kineto()
    cupti = Cupti(kineto.torch)
    with cupti.coming_back():
        assert getenv(NAME) is None, "nothing was taken down yet"
    cupti.taken_down_after(kineto.stop)
    with cupti.coming_back():
        assert getenv(NAME) == b"1"
    with cupti.coming_back():
        assert getenv(NAME) is None, "it is back"


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuiprof.probe.frameworks.torch_capture._WAIT_S", 0.05)
    kineto = Kineto(called_back=False)
    assert not Cupti(kineto.torch).taken_down_after(kineto.stop)
    assert getenv(NAME) is None
    kineto.let_go()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"environ": {NAME: "1"}}, ""),
        ({"environ": {NAME: "0"}}, "TEARDOWN_CUPTI=0 is set"),
        ({"environ": {"DISABLE_CUPTI_LAZY_REINIT": "1"}}, "DISABLE_CUPTI_LAZY_REINIT is set"),
        ({"environ": {"CUDA_INJECTION64_PATH": "/x.so"}}, "CUDA_INJECTION64_PATH is set"),
        ({"by_script": True}, "the script uses torch.profiler itself"),
        ({"version": "2.1.2+cu121"}, "PyTorch 2.1.2+cu121 is older than 2.2"),
        ({"cuda": "12.4"}, ""),
        ({"cuda": "12.4", "graphs": True}, "CUDA graphs"),
        ({"cuda": "12.6", "graphs": True}, ""),
        ({"cuda": "13.0", "graphs": True}, ""),
    ],
)
def test_where_it_stays(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], why: str) -> None:
    for name, value in change.get("environ", {}).items():
        monkeypatch.setenv(name, value)
    kineto = Kineto(change.get("cuda", "13.0"), change.get("version", "2.11.0"))
    cupti = Cupti(kineto.torch)
    if change.get("graphs"):
        kineto.torch.cuda.CUDAGraph().capture_begin()
    reason = cupti.reason_to_keep(change.get("by_script", False))
    assert why in reason
    assert bool(reason) == bool(why)


def test_a_variable_that_only_c_sees() -> None:
    with visible_to_c("TUIPROF_TEST", "a b"):
        assert getenv("TUIPROF_TEST") == b"a b"
        assert "TUIPROF_TEST" not in os.environ
    assert getenv("TUIPROF_TEST") is None


def test_what_the_script_sets_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIPROF_TEST_OLD", "before")
    with visible_to_c("TUIPROF_TEST", "1"):
        os.environ["TUIPROF_TEST_OLD"] = "after"
        monkeypatch.setenv("TUIPROF_TEST_NEW", "new")
    assert [getenv(f"TUIPROF_TEST{part}") for part in ("", "_OLD", "_NEW")] == [None, b"after", b"new"]
    for number in range(50):  # the environment can still grow and shrink
        monkeypatch.setenv(f"TUIPROF_TEST_{number}", "x")
    child = subprocess.run(
        ["sh", "-c", "echo $TUIPROF_TEST_OLD$TUIPROF_TEST_49"], capture_output=True, check=True
    )
    assert child.stdout == b"afterx\n"

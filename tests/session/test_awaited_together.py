"""Sessions whose host runs ahead and waits for several steps at once: a step takes what the device takes for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from formats import xspace
from session_logs import line, new_session, step, written

from tuiprof.analyses.shared.replay import awaited_together, opening
from tuiprof.cli import main
from tuiprof.comparison.headline import headline
from tuiprof.formats import open_trace

US, MS = 1_000_000, 1_000_000_000  # ps
CAPTURED = range(30, 33)
TRACE = "rank0.1.xplane.pb"


def session(root: Path, *, device_ms: float, short_ms: float = 2.0, long_ms: float = 82.0) -> Path:
    """Write a session in which nine steps are short and the tenth is long, and a capture of three short ones."""
    steps = []
    for n in range(150):
        dur = round((long_ms if n % 10 == 9 else short_ms) * 1e6)
        steps.append(step(n, dur, **({"cap": True} if n in CAPTURED else {})))
    capture = line(
        "capture", at=200_000_000, id="start", state="written", first=30, last=32, path=f"traces/{TRACE}"
    )
    made = written(root, *steps[:33], capture, *steps[33:])
    (made.path / "traces").mkdir(exist_ok=True)
    (made.path / "traces" / TRACE).write_bytes(_captured(device_ms, short_ms))
    return made.path


def _captured(device_ms: float, short_ms: float) -> bytes:
    host = xspace.Plane("/host:CPU", values={"jax_version": "0.11.2"})
    gpu = xspace.Plane("/device:GPU:0", values={"gpu_device_name": "NVIDIA H200"})
    thread, stream = host.line("python", 1000), gpu.line("Stream #7(Compute)", 1000)
    for index, number in enumerate(CAPTURED):
        begin = round(index * short_ms * MS)
        thread.event("train", begin, round(short_ms * MS), step_num=number)
        thread.event("cuLaunchKernel", begin + 10 * US, 5 * US, correlation_id=index + 1)
        stream.event(
            "gemm",
            20 * US + round(index * max(device_ms, short_ms) * MS),
            round(device_ms * MS),
            correlation_id=index + 1,
        )
    return xspace.encode(host, gpu)


def test_long_steps_that_the_device_explains_are_waits_for_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = session(tmp_path, device_ms=10)
    trace = open_trace(path / "traces" / TRACE)
    seen = awaited_together(trace)
    assert seen is not None
    assert (seen.step_ns, seen.host_ns) == (10_000_000, 2_000_000)
    assert (seen.low_ns, seen.high_ns) == (10_000_000, 10_000_000), "all stretches take as long"
    page = opening(trace, "")
    assert page.step_ns == pytest.approx(10e6, rel=0.01)
    assert page.step_is == f"mean of {seen.steps} steps after the capture"
    assert headline(trace).awaits_others
    assert main(["why", str(path)]) == 0
    assert "no advice" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("device_ms", "short_ms", "long_ms", "why"),
    [
        (4.0, 2.0, 82.0, "the device is done before the mean step is"),
        (2.0, 2.0, 82.0, "the device takes what a short step does"),
        (10.0, 2.0, 42.0, "the captured steps take longer than the others"),
        (5.0, 4.9, 11.0, "the host is not ahead in the short steps"),
    ],
)
def test_long_steps_that_the_device_does_not_explain_are_something_else(
    tmp_path: Path, device_ms: float, short_ms: float, long_ms: float, why: str
) -> None:
    path = session(tmp_path, device_ms=device_ms, short_ms=short_ms, long_ms=long_ms)
    assert awaited_together(open_trace(path / "traces" / TRACE)) is None, why


def test_of_long_steps_that_are_not_explained_none_was_captured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", str(session(tmp_path, device_ms=4))]) == 0
    assert "none of them was captured" in " ".join(capsys.readouterr().out.split())


def test_a_trace_without_a_session_says_nothing_of_other_steps(tmp_path: Path) -> None:
    new_session(tmp_path)
    path = tmp_path / TRACE
    path.write_bytes(_captured(10, 2))
    assert awaited_together(open_trace(path)) is None

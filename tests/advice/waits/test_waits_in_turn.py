"""Waits at several places of which one is in a library that a framework's training loop calls."""

from __future__ import annotations

import pytest
from analyses.made import Made, in_session

from tuiprof.advice.finding import Evidence, Finding
from tuiprof.advice.waits import waits_in_turn
from tuiprof.analyses import run
from tuiprof.model import Trace

LIBRARY = "/env/lib/python3.12/site-packages"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"
TRAINER, SCRIPT = f"{LIBRARY}/transformers/trainer.py:1500 Trainer.train", "/home/me/train.py:142 main"
MASK = f"{LIBRARY}/transformers/masking_utils.py:331 _ignore_mask"


def steps(*places: tuple[str, ...]) -> Trace:
    """Four steps that read a value at each place, right after a product."""
    made = Made()
    for _, at in made.steps(180 * len(places)):
        for place, frames in enumerate(places):
            begin = at + 180 * place
            made.launch(GEMM, (begin, begin + 5), (begin + 8, begin + 100))
            made.op("aten::item", begin + 6, begin + 110)
            made.call("cudaStreamSynchronize", begin + 7, begin + 105)
            made.site(begin + 104, *frames)
    return in_session(made.trace(), 180e3 * len(places), trainer="transformers")


def findings(trace: Trace) -> list[Finding]:
    """Return what the rule finds, however little is left of it after other findings."""
    return list(waits_in_turn.RULE.find(trace, Evidence(trace, {"sync_events": run("sync_events", trace)})))


def of_trainer(line: int) -> tuple[str, ...]:
    return (f"{LIBRARY}/transformers/trainer.py:{line} part_{line}", TRAINER, SCRIPT)


OWN = ("/home/me/train.py:9 compute_loss", TRAINER, SCRIPT)


def test_a_wait_of_a_library_in_the_training_loop_stays() -> None:
    trace = steps(of_trainer(1), of_trainer(2), OWN, (MASK, TRAINER, SCRIPT))
    (found,) = findings(trace)
    assert "at 3 places" in found.what
    assert "masking_utils" not in found.where
    assert "then the host waits only in" in found.instead
    assert "masking_utils.py:331" in found.instead
    assert found.remainder, "without running ahead, it is worth what is left"
    in_library = Evidence(trace, {"sync_events": run("sync_events", trace)}).waits()
    events = [row.event for row in in_library if "masking_utils" in row.where]
    assert events
    assert found.edit is not None
    assert not set(events) & set(found.edit.waits.tolist()), "this wait is still there"


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param((MASK, SCRIPT), id="called-by-the-script"),
        pytest.param((MASK, "/home/me/train.py:30 compute_loss", TRAINER, SCRIPT), id="in-its-own-loss"),
        pytest.param(OWN[:1], id="in-the-script"),
    ],
)
def test_a_library_that_the_script_calls_can_be_called_otherwise(frames: tuple[str, ...]) -> None:
    trace = steps(of_trainer(1), of_trainer(2), ("/home/me/train.py:70 log", SCRIPT), frames)
    (found,) = findings(trace)
    assert "at 4 places" in found.what
    assert "runs ahead of the device" in found.instead
    assert not found.remainder


def test_nothing_is_left_where_only_one_wait_can_be_ended() -> None:
    assert findings(steps(OWN, (MASK, SCRIPT))), "two that can"
    assert not findings(steps(OWN, (MASK, TRAINER, SCRIPT)))

"""What goes wrong is said by its rule, and only then."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from session_logs import append, head, line, new_session

from tuiprof.session.live.alerts import alerts
from tuiprof.session.live.hosts import compare_ranks
from tuiprof.session.live.replay import read_fold
from tuiprof.session.log import Memory, Step, Telemetry
from tuiprof.session.store.folders import Session

S = 1_000_000_000
ORIGIN = 1_000  # where the made sessions' monotonic clock begins


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return new_session(tmp_path)


def put(session: Session, writer: str, *records: object) -> None:
    append(session, writer, *(msgspec.json.encode(record) + b"\n" for record in records))


def steps(session: Session, seconds: int, *, every_ms: int = 100, after_s: int = 0, **phases: int) -> None:
    append(session, "rank0", head(session))
    count = seconds * 1000 // every_ms
    put(
        session,
        "rank0",
        *(
            Step(n, ORIGIN + after_s * S + (n + 1) * every_ms * 1_000_000, every_ms * 1_000_000, dict(phases))
            for n in range(count)
        ),
    )


def readings(
    session: Session, device: str, name: str, values: list[float], every_ms: int = 500, **words: str
) -> None:
    append(session, "recorder", head(session, "recorder", rank=None))
    put(
        session,
        "recorder",
        *(
            Telemetry(ORIGIN + i * every_ms * 1_000_000, device, {name: value}, words)
            for i, value in enumerate(values)
        ),
    )


def said(session: Session) -> dict[str, str]:
    fold = read_fold(session)
    found = alerts(fold, fold.lead, fold.now_ns)
    assert all(alert.rule for alert in found)
    return {alert.name: alert.text for alert in found}


def test_a_steady_run_raises_none(session: Session) -> None:
    steps(session, 200, forward=60_000_000)
    readings(session, "gpu0", "util", [0.95] * 400)
    assert said(session) == {}


def test_a_collapse_of_utilisation_is_told_with_both_figures(session: Session) -> None:
    steps(session, 150)
    readings(session, "gpu0", "util", [0.9] * 250 + [0.3] * 50)
    assert said(session)["utilisation collapse"] == "GPU 0 is 30.0 % busy, down from 90.0 %"


def test_a_slow_start_is_no_collapse(session: Session) -> None:
    steps(session, 150)
    readings(session, "gpu0", "util", [0.1] * 250 + [0.9] * 50)
    assert "utilisation collapse" not in said(session)


def test_what_idled_while_the_script_imported_is_not_idle(session: Session) -> None:
    steps(session, 13, after_s=30)
    readings(session, "gpu0", "util", [0.0] * 20 + [0.9] * 9, every_ms=1500)
    assert said(session) == {}


def test_a_device_with_too_little_to_do_is_told(session: Session) -> None:
    steps(session, 30, after_s=10)
    readings(session, "gpu0", "util", [0.0] * 20 + [0.4] * 60)
    assert said(session)["idle device"].startswith("GPU 0 is busy 40.0 % of the time")


def test_on_a_cpu_the_host_can_collapse(session: Session) -> None:
    steps(session, 150)
    readings(session, "host", "tree_cpu", [7.5] * 250 + [1.0] * 50)
    assert "host is " in said(session)["utilisation collapse"]


def test_memory_that_never_comes_down_creeps(session: Session) -> None:
    steps(session, 400)
    grown = [
        Memory(ORIGIN + i * S, 0, (4 << 30) + i * (2 << 20) + (200 << 20) * (i % 2), 0, 0) for i in range(400)
    ]
    put(session, "rank0", *grown)
    assert said(session)["memory creep"].startswith("allocated memory of device 0 grows by 7.0")


def test_memory_that_goes_up_and_down_does_not_creep(session: Session) -> None:
    steps(session, 400)
    put(
        session,
        "rank0",
        *(Memory(ORIGIN + i * S, 0, int((4 + math.sin(i / 20)) * (1 << 30)), 0, 0) for i in range(400)),
    )
    assert "memory creep" not in said(session)


def test_steps_that_wait_for_data_are_told(session: Session) -> None:
    steps(session, 20, data=40_000_000, forward=50_000_000)
    assert said(session)["loader starvation"].startswith(
        "40.0 % of the step is spent waiting for data (40.0 ms)"
    )


def test_a_loss_that_is_no_number_is_the_worst(session: Session) -> None:
    steps(session, 20, data=40_000_000)
    note = {"level": "warn", "text": "metric loss is not recorded: it is nan"}
    append(session, "rank0", line("note", at=ORIGIN + 5 * S, **note), line("note", at=ORIGIN + 9 * S, **note))
    fold = read_fold(session)
    first = alerts(fold, fold.lead, fold.now_ns)[0]
    assert (first.level, first.text) == ("bad", "loss is NaN since 5.00 s into the run")


def test_reasons_for_low_clocks_are_passed_on(session: Session) -> None:
    steps(session, 20)
    readings(session, "gpu0", "util", [0.9] * 40, throttle="thermal slowdown")
    assert said(session)["throttling"] == "GPU 0 reduces its clocks: thermal slowdown"


def ranks(session: Session, durations: list[int], own: list[int]) -> list[bool]:
    for rank, (dur, before) in enumerate(zip(durations, own, strict=True)):
        writer = f"rank{rank}"
        append(session, writer, head(session, writer, rank=rank))
        put(
            session,
            writer,
            *(
                Step(n, ORIGIN + (n + 1) * dur, dur, {"forward": before, "backward": dur - before})
                for n in range(60)
            ),
        )
    fold = read_fold(session)
    return [times.straggles for times in compare_ranks(fold.ranks, fold.now_ns)]


def test_the_slowest_rank_straggles(session: Session) -> None:
    assert ranks(session, [10_000_000, 10_000_000, 12_000_000], [4_000_000] * 3) == [False, False, True]


def test_where_all_wait_for_one_it_is_the_one_that_comes_late(session: Session) -> None:
    assert ranks(session, [12_000_000] * 3, [4_000_000, 8_000_000, 4_000_000]) == [False, True, False]


def test_ranks_that_keep_step_have_no_straggler(session: Session) -> None:
    assert ranks(session, [10_000_000, 10_100_000], [4_000_000, 4_050_000]) == [False, False]

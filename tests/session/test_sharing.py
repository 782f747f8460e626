"""Which devices are not the run's, by what tells it."""

from __future__ import annotations

from pathlib import Path

import pytest
from session_logs import append, head, line, new_session

from tuiprof.session.live.alerts import alerts
from tuiprof.session.live.fold import Fold
from tuiprof.session.live.replay import Replay, read_fold
from tuiprof.session.live.sharing import foreign_devices
from tuiprof.session.live.summary import summarise
from tuiprof.session.store.folders import Session
from tuiprof.session.store.meta import DeviceMeta

S = 1_000_000_000


def make(root: Path, *, visible: str | None = None, count: int = 4) -> Session:
    """Make a session on a host with GPUs; ``visible`` are the numbers that the environment names."""
    gpus = [
        DeviceMeta(
            f"gpu{i}",
            "nvidia",
            "NVIDIA H200",
            None,
            {"uuid": f"GPU-{i}{i}{i}", "pci": f"0000:1{i}:00"},
            None if visible is None else str(i) in visible,
        )
        for i in range(count)
    ]
    session = new_session(root, devices=[DeviceMeta("host", "host", "CPU"), *gpus])
    append(session, "recorder", head(session, "recorder", rank=None))
    append(session, "rank0", head(session))
    return session


def read(session: Session, second: int, held: str = "", *, busy: str = "") -> None:
    """Append a reading of each GPU; ``held`` are the numbers of those that list a process of the run."""
    for device in session.meta.devices[1:]:
        figures = {"util": 0.9 if device.key[3:] in busy else 0.0}
        if device.key[3:] in held:
            figures["tree_mem_used_bytes"] = 1e9
        append(session, "recorder", line("tele", at=1_000 + second * S, dev=device.key, m=figures))


def others(session: Session, fold: Fold | None = None) -> str:
    return "".join(sorted(key[3:] for key in foreign_devices(fold or read_fold(session), session)))


def test_nothing_known_leaves_every_device_to_the_run(tmp_path: Path) -> None:
    session = make(tmp_path)
    read(session, 1)
    assert others(session) == ""


@pytest.mark.parametrize(
    "told",
    [{"uuid": "222"}, {"pci": "0000:12:00"}, {"uuid": "MIG of the GPU", "pci": "0000:12:00"}],
)
def test_a_process_tells_which_device_its_index_is(tmp_path: Path, told: dict[str, str]) -> None:
    session = make(tmp_path, visible="01")  # as the script itself may have changed it
    append(session, "rank0", line("uses", at=2_000, dev=0, **told))
    assert others(session) == "013"


def test_the_drivers_list_of_processes_tells(tmp_path: Path) -> None:
    session = make(tmp_path, visible="0123")
    read(session, 1, held="3")
    read(session, 2)  # it ended; the device was the run's all the same
    assert others(session) == "012"


def test_what_shows_use_counts_together_and_over_what_the_environment_says(tmp_path: Path) -> None:
    session = make(tmp_path, visible="0")
    append(session, "rank0", line("uses", at=2_000, dev=0, uuid="111"))
    append(session, "rank1", head(session, "rank1", rank=1), line("uses", at=2_000, dev=1, pci="0000:12:00"))
    read(session, 1, held="3")
    assert others(session) == "0"


def test_a_device_of_another_machine_tells_nothing_of_this_one(tmp_path: Path) -> None:
    session = make(tmp_path, visible="0")
    append(session, "rank0", line("uses", at=2_000, dev=0, uuid="of another host"))
    assert others(session) == "123"


def test_a_run_that_may_use_none_has_none(tmp_path: Path) -> None:
    assert others(make(tmp_path, visible="")) == "0123"


def test_replay_knows_what_was_known_then(tmp_path: Path) -> None:
    session = make(tmp_path)
    for second in range(1, 20):
        read(session, second, held="2" if second >= 10 else "")
    replay = Replay(session)
    seen = []
    for second in (5, 15, 5):
        replay.seek(second * S)
        replay.advance(1 << 30)
        seen.append(others(session, replay.fold))
    replay.close()
    assert seen == ["", "013", ""]


def test_others_are_neither_alerted_of_nor_reported(tmp_path: Path) -> None:
    session = make(tmp_path)
    for n in range(300):
        append(session, "rank0", line("step", n=n, at=1_000 + (n + 1) * 100_000_000, dur=100_000_000))
    for second in range(1, 31):
        read(session, second, held="3", busy="3")
    fold = read_fold(session)
    told = {alert.text for alert in alerts(fold, fold.lead, fold.now_ns)}
    assert any(text.startswith("GPU 0 is busy 0 %") for text in told), "without knowing whose it is"
    assert alerts(fold, fold.lead, fold.now_ns, foreign_devices(fold, session)) == []
    [table] = [table for table in summarise(session).tables if table.key == "devices"]
    assert set(table.rows["device"]) == {"gpu3"}
    assert table.note == "not used by this run, left out: gpu0, gpu1, gpu2"


def test_an_idle_device_of_the_run_is_still_told(tmp_path: Path) -> None:
    session = make(tmp_path, visible="01")
    for n in range(300):
        append(session, "rank0", line("step", n=n, at=1_000 + (n + 1) * 100_000_000, dur=100_000_000))
    for second in range(1, 31):
        read(session, second, busy="0")
    fold = read_fold(session)
    [alert] = alerts(fold, fold.lead, fold.now_ns, foreign_devices(fold, session))
    assert alert.text.startswith("GPU 1 is busy 0 %")

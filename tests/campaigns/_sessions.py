"""A folder of sessions with a measured ladder, and all that is asked of one by lists, reports and screens."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaigns._mutate import damage, mutated_json
from tests.campaigns._samples import kineto_documents
from tuiprof.resources import shipped

NAME = "20260101T000000Z-metrics"
LADDER = "20260102T000000Z-ladder-metrics"


@functools.cache
def _sound() -> Path:
    """Return a sound folder, made once a process."""
    root = Path(tempfile.mkdtemp(prefix="tuiprof-sound-"))
    import atexit

    atexit.register(shutil.rmtree, root, ignore_errors=True)
    session = root / NAME
    _session(session)
    _ladder(root / LADDER)
    return root


def _session(session: Path) -> None:
    shutil.copytree(shipped("traces") / "session-metrics-naive", session)
    for path in (session / "traces").glob("*.gz"):
        path.unlink()
    trace = next((session / "traces").glob("*.syncs.jsonl")).name.removesuffix(".syncs.jsonl")
    (session / "traces" / f"{trace}.pt.trace.json").write_text(json.dumps(kineto_documents()[0]))
    log = session / "log"
    lines = (log / "rank0.jsonl").read_bytes().splitlines(keepends=True)
    (log / "rank0.jsonl").write_bytes(b"".join(lines[:60]))
    (log / "rank1.jsonl").write_bytes(
        b"".join(lines[:60]).replace(b'"rank0"', b'"rank1"').replace(b'"rank":0', b'"rank":1')
    )
    recorder = (log / "recorder.jsonl").read_bytes().splitlines(keepends=True)
    (log / "recorder.jsonl").write_bytes(b"".join([*recorder[:40], *recorder[-3:]]))
    last = json.loads(lines[-1])
    at = last["at"]
    rank1 = [
        {"t": "mem", "at": at, "dev": 0, "alloc": 1 << 30, "reserved": 2 << 30, "peak": 3 << 30},
        {"t": "uses", "at": at, "dev": 0, "uuid": "0b", "pci": "0000:1b:00"},
        {"t": "note", "at": at, "level": "warn", "text": "metric loss is not recorded: it is nan"},
        {
            "t": "capture",
            "at": at,
            "id": "c1",
            "state": "failed",
            "first": 3,
            "last": 5,
            "why": "no profiler",
        },
        {"t": "end", "at": at, "code": 1, "why": "exit"},
    ]
    with (log / "rank1.jsonl").open("ab") as file:
        file.write(b"".join(json.dumps(line).encode() + b"\n" for line in rank1))
    small: dict[str, Any] = {
        "labels.json": {"tags": ["a", "b"], "notes": [{"unix_ns": 1, "text": "slow", "t_ns": 5, "step": 3}]},
        "views/1-2.json": {"unix_ns": 1, "wall_s": 3.0, "cpu_s": 0.5, "host": "here"},
        "control/capture-c1.json": {"id": "c1", "steps": 3, "at": 10, "stack": True},
        "control/trigger-slow.json": {"id": "slow", "steps": 3, "times": 2.0, "cooldown_s": 30.0},
        "control/stop.json": {"unix_ns": 1, "signal": 2, "firm": False},
    }
    for name, content in small.items():
        (session / name).parent.mkdir(exist_ok=True)
        (session / name).write_text(json.dumps(content))


def _ladder(folder: Path) -> None:
    figures = {"median_ns": 2e6, "steps": 20, "warmup": 5, "clock": "script", "batch": 8, "samples_per_s": 99.5,
               "peak_bytes": 1 << 30, "start_ns": 10**9, "warmup_ns": 10**8, "device": "GPU", "ranges_ns": {"a": 1.0},
               "kernel": {"moved_bytes": 1 << 20, "operations": 1 << 30, "arithmetic": "float32",
                          "times_ns": {"cold": 9.0}, "not_measured": {"replayed": "no graph"}}}  # fmt: skip
    trials = [
        {"kind": kind, "round": number, "variant": variant, "session": NAME if kind == "trace" else "", "state": "done",
         "wall_ns": 10**9, "equal": True, "figures": figures if kind == "timing" else None}
        for kind, numbers in (("check", [0]), ("trace", [0]), ("timing", [1, 2, 3]))
        for number in numbers for variant in ("naive", "off")
    ]  # fmt: skip
    rungs = [{"name": "naive", "baseline": "naive"}, {"name": "off", "baseline": "naive", "builds_on": "naive",
              "note": "n", "published": ["2x"], "command": ["python", "x.py"]}]  # fmt: skip
    meta = {"v": 1, "ladder": "metrics", "title": "t", "source": "s", "script": "/x/metrics.py", "digest": "0",
            "baseline": "naive", "preset": "smoke", "steps": 20, "rounds": 3, "python": "python", "host": "h",
            "machine": "m", "cwd": "/", "unix_ns": 10**18, "price": 2.5, "rungs": rungs, "trials": trials,
            "software": {"torch": "2.11"}}  # fmt: skip
    session = folder / "trials" / NAME
    _session(session)
    (folder / "control").mkdir()
    (folder / "ladder.json").write_text(json.dumps(meta, indent=2))


# -- damage ---------------------------------------------------------------------------------------------------


def make_root(rng: random.Random, folder: Path) -> Path:
    """Copy the sound folder, and damage one or two of its files."""
    root = folder / "sessions"
    shutil.copytree(_sound(), root, copy_function=os.link, symlinks=True)
    files = sorted(
        path for path in root.rglob("*") if path.is_file() and not path.name.endswith(".trace.json")
    )
    for _ in range(rng.choice((1, 1, 2))):
        _damage(rng.choice(files), rng)
    return root


def _damage(path: Path, rng: random.Random) -> None:
    if not path.is_file() or path.is_symlink():
        return  # something else was put in its place already
    data = path.read_bytes()
    path.unlink()  # it is shared with the sound one
    if rng.random() < 0.1:
        _replaced(path, rng)
    elif path.suffix == ".jsonl" and data and rng.random() < 0.7:
        lines = data.splitlines()
        for _ in range(rng.choice((1, 1, 5, 30))):
            at = rng.randrange(len(lines))
            with contextlib.suppress(ValueError, RecursionError):
                lines[at] = mutated_json(json.loads(lines[at]), rng)
        path.write_bytes(b"\n".join(lines) + rng.choice((b"\n", b"")))
    elif path.suffix == ".json" and rng.random() < 0.7:
        try:
            path.write_bytes(mutated_json(json.loads(data), rng))
        except (ValueError, RecursionError):  # it was damaged already
            path.write_bytes(damage(data, rng))
    else:
        path.write_bytes(damage(data, rng))


def _replaced(path: Path, rng: random.Random) -> None:
    """Put something else in the place of a file."""
    change: Callable[[], Any] = rng.choice(
        (
            lambda: None,
            lambda: path.mkdir(),
            lambda: path.write_bytes(b""),
            lambda: path.symlink_to(path.name),
            lambda: path.symlink_to("/dev/zero"),
            lambda: path.symlink_to("nowhere"),
            lambda: os.mkfifo(path),
            lambda: path.write_bytes(bytes(9 << 20)),
            lambda: path.write_bytes(b"x" * (9 << 20)),
        )
    )
    change()


# -- reading --------------------------------------------------------------------------------------------------


def read_session(root: Path) -> None:
    """Ask a folder of sessions for all that lists, reports and screens ask.

    Raises:
        TuiprofError: Part of it is refused.
    """
    from tuiprof.comparison import sides as comparison
    from tuiprof.errors import SessionError
    from tuiprof.ladder import report as ladder_report
    from tuiprof.ladder.state import list_runs
    from tuiprof.report import render_all
    from tuiprof.session.live.listing import list_sessions
    from tuiprof.session.live.summary import listing
    from tuiprof.session.store.folders import find_session
    from tuiprof.tui.library.data import Library

    refused: list[Exception] = []

    def ask(what: Callable[[], Any]) -> Any:
        from tuiprof.errors import TuiprofError

        try:
            return what()
        except TuiprofError as error:
            assert error.message  # noqa: PT017 - the message is what is checked
            refused.append(error)
            return None

    summaries = ask(lambda: list_sessions(root)) or []
    assert NAME in [summary.id for summary in summaries], "a damaged session is listed, too"
    reports = [listing(root, summaries)]
    ladders = list_runs(root)
    reports.append(ladder_report.listing(ladders, root))
    for ladder in ladders:
        if isinstance(ladder, SessionError):
            refused.append(ladder)
        elif (found := ask(lambda ladder=ladder: ladder_report.report(ladder))) is not None:
            reports.append(found)
    session = ask(lambda: find_session(root, "last"))
    if session is not None:
        reports += ask(lambda: _session_reports(session)) or []
        ask(lambda: _watch(session))
        compared = ask(lambda: comparison.compare_targets(session.path, session.path, root=root))
        reports += [compared] if compared is not None else []
    for format_ in ("text", "json", "csv", "md", "html"):
        assert render_all(reports, format_)
    listing = ask(Library(root).scan)
    assert listing is None or NAME in [summary.id for summary in listing.sessions]
    if refused:
        raise refused[0]


def _session_reports(session: Any) -> list[Any]:
    from tuiprof.cli.reading import session_reports
    from tuiprof.cli.targets import Selection

    reports, _ = session_reports(session, ("sync_events", "steps", "advice"), Selection())
    for report in reports:
        assert not getattr(report, "failed", False), report
    return reports


def _watch(session: Any) -> None:
    """Do what the live screen does, now and at three moments of the past."""
    from tuiprof.session.live.replay import Live, Replay, read_fold

    read_fold(session)
    live = Live(session, tail_bytes=4096)
    for _ in range(3):
        live.advance()
        _draw(session, live.fold)
    live.close()
    now = [0.0]
    replay = Replay(session, now_s=lambda: now[0])
    for share in (0.5, 1.0, 0.1):
        replay.seek(int(replay.duration_ns * share))
        now[0] += 1.0
        replay.advance()
        _draw(session, replay.fold)
    assert replay.times_output in (True, False)
    replay.close()


def _draw(session: Any, fold: Any) -> None:
    from tuiprof.session.live import alerts, hosts, sharing
    from tuiprof.session.run import control
    from tuiprof.session.run.launch import source_texts
    from tuiprof.session.store.meta import read_labels, viewings
    from tuiprof.session.store.output import OutputReader, last_lines
    from tuiprof.tui.live import view as live_view

    status = session.status()
    rank = fold.lead
    others = sharing.foreign_devices(fold, session)
    found = alerts.alerts(fold, rank, fold.now_ns, others)
    assert isinstance(sharing.crowded(fold), str)
    ranks = hosts.compare_ranks(fold.ranks, fold.now_ns)
    live_view.rank_rows(ranks, "rank0", 100, 8)
    if found:
        live_view.alert_row(found, 100)
    live_view.overhead_row(rank, fold, 0.1)
    live_view.armed_row(control.armed(session))
    live_view.time_row(fold.now_ns // 2, fold.now_ns, fold, 100)
    live_view.state_row(status, fold.now_ns, rank, len(fold.ranks), frozen=False)
    live_view.machine_row(session, rank, others)
    live_view.name_row(session)
    for capture in fold.captures.values():
        live_view.capture_row(capture)
    if rank is not None:
        rank.steps.whole_run()
        rank.steps.phase_means()
        live_view.batch_size(rank.steps)
    control.read_stop(session)
    assert read_labels(session.path) is not None
    assert viewings(session.path) is not None
    assert source_texts(session) is not None
    last_lines(session.stderr)
    for path in (session.stdout, session.stderr):
        reader = OutputReader(path)
        reader.poll()
        reader.close()

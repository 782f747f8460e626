"""File systems that fill at every write in turn, cannot be written, or vanish; files of a newer tuiprof; two at once.

Small file systems are tmpfs mounts, which only root may make; without them those cases are not tried.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests import real_traces
from tests.campaigns._recorded import PLAIN, TORCH, Recorded, alive, recorded
from tests.campaigns.campaign import Options, Outcome, SkippedError
from tests.waiting import Missed, until
from tuiprof.session.log import SCHEMA_VERSION
from tuiprof.session.run.control import request_capture
from tuiprof.session.store.folders import session_dirs
from tuiprof.session.store.output import read_counts

PROMISE = (
    "No full, read-only or vanished file system fails the script, or ends a command in a traceback; nothing that "
    "was written before is damaged"
)

Try = Callable[[Path], list[str]]

#: Prints 300 kB, and comes to its end by itself.
_PRINTS: Final = PLAIN.replace('print("step", n)', 'print("step", n, "x" * 2000)').replace(
    'os.path.exists(os.path.join(home, "go"))', "n > 150"
)
_NOBODY: Final = 65534
_TRACE: Final = real_traces.SMALL
#: From this size on there is room for what is kept back for the end of a run.
_ROOM_FOR_END: Final = 256


def run(options: Options) -> Outcome:
    """Try each kind of trouble."""
    every = cases()
    outcome = Outcome()
    short = ["full at 160 KiB", "read-only while it runs", "removed while it runs", "a newer session"]
    if options.short and options.cases is None:
        chosen = [case for case in every if case[0] in short]
    else:
        chosen = options.sample(every, 0)
    for number, (name, tried) in enumerate(chosen):
        outcome.judge(name, partial(tried, options.folder / str(number)))
    outcome.figures = {"full at": f"{sum(name.startswith('full') for name, _ in chosen)} places"}
    return outcome


def cases() -> list[tuple[str, Try]]:
    """Return every case by name."""
    found: list[tuple[str, Try]] = []
    found += [(f"full at {kib} KiB", partial(_full, f"size={kib}k", kib)) for kib in range(4, 600, 4)]
    found += [(f"full at {count} files", partial(_full, f"nr_inodes={count}", 0)) for count in range(2, 40)]
    found += [
        (f"full at {mib} MiB amid a capture", partial(_full_capture, mib))
        for mib in (1, 2, 4, 8, 16, 24, 32, 40)
    ]
    found += [(f"full, {verb[0]} {fmt}", partial(_full_output, verb)) for verb, fmt in _outputs()]
    found += [
        (f"full, picture{suffix}", partial(_full_picture, suffix)) for suffix in (".svg", ".html", ".txt")
    ]
    found += [(f"full at {kib} KiB, cache", partial(_full_cache, kib)) for kib in (4, 64, 1024, 4096, 16384)]
    found += [
        ("full for a while", _full_for_a_while),
        ("read-only", _read_only),
        ("read-only while it runs", partial(_while_it_runs, _make_read_only)),
        ("no permission", _no_permission),
        ("no permission while it runs", partial(_while_it_runs, _forbid)),
        ("removed while it runs", partial(_while_it_runs, _remove)),
        ("removed with the root while it runs", partial(_while_it_runs, _remove_root)),
        ("moved while it runs", partial(_while_it_runs, _move)),
        ("removed at the start", partial(_while_it_runs, _remove, at="start")),
        ("removed at the end", partial(_while_it_runs, _remove, at="end")),
        ("removed with an armed capture", partial(_while_it_runs, _remove, at="armed")),
        ("a log removed while it runs", partial(_while_it_runs, _remove_log)),
        ("a log cut while it runs", partial(_while_it_runs, _cut_log)),
        ("a newer session", _newer_session),
        ("a newer log", _newer_log),
        ("two recordings at once", _two_recordings),
        ("two recorders of one session", _two_recorders),
        ("two runners of one ladder", _two_ladders),
        ("list and delete", _list_and_delete),
    ]
    return found


# -- what a case does with tuiprof -----------------------------------------------------------------------------


def _tuiprof(
    *arguments: object,
    env: dict[str, str] | None = None,
    out: int = subprocess.PIPE,
    prefix: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "tuiprof", *map(str, arguments)]
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        timeout=120,
        check=False,
    )


def _said(done: subprocess.CompletedProcess[str], *wanted: str, code: int | None = None) -> list[str]:
    """Return what is wrong with what a command said: a traceback, another status, or not the words wanted."""
    text = f"{done.stdout or ''}{done.stderr}"
    problems = ["a traceback: " + done.stderr.strip()[-300:]] if "Traceback" in text else []
    if code is not None and done.returncode != code:
        problems.append(f"{done.args[3:5]} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return problems + [
        f"nothing says {word!r}: {text.strip()[-300:]!r}" for word in wanted if word not in text
    ]


def _readable(root: Path, env: dict[str, str]) -> list[str]:
    """Return what is wrong with listing and reporting what is there."""
    problems = _said(_tuiprof("--sessions", root, "list", env=env), code=0)
    for path in session_dirs(root):
        problems += _said(_tuiprof("--sessions", root, "report", path, env=env))
    return problems


@contextlib.contextmanager
def _mounted(place: Path, options: str) -> Iterator[Path]:
    """Mount a small file system.

    Raises:
        SkippedError: Only root may.
    """
    place.mkdir(parents=True)
    mount = shutil.which("mount")
    command = (mount or "", "-t", "tmpfs", "-o", f"{options},mode=1777", "tmpfs", str(place))
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        raise SkippedError("only root may mount a file system")
    try:
        yield place
    finally:
        subprocess.run(("umount", "-l", str(place)), check=True)


def _remount(place: Path, options: str) -> None:
    subprocess.run(("mount", "-o", f"remount,{options}", str(place)), check=True)


def _outcome(run: Recorded) -> list[str]:
    """Return what is wrong with how a recording of a script that comes to its end went."""
    code = run.command.wait(120)
    said = (run.folder / "record.out").read_text() + (run.folder / "record.err").read_text()
    problems = [f"a traceback: {said[-400:]}"] if "Traceback" in said else []
    if not run.steps:  # it was not started: that must be said, and why
        if code == 0 or "no space left" not in said.lower():
            problems.append(f"not started, but record ended with {code} and said {said[-300:]!r}")
    elif not run.done:
        problems.append(f"the script did not come to its end: record said {said[-300:]!r}")
    elif code != 0:
        problems.append(f"record ended with {code}, the script with 0: {said[-300:]!r}")
    with contextlib.suppress(Missed):
        until(lambda: not run.processes(), "the end of every process", 6.0)
    problems += [f"left behind: {' '.join(one.cmdline())[-100:]}" for one in run.processes()]
    for path in session_dirs(run.root):
        log = path / "control/supervisor.log"
        if log.exists() and "Traceback" in log.read_text():
            problems.append(f"the supervisor: {log.read_text()[-400:]}")
    return problems


# -- full ------------------------------------------------------------------------------------------------------


def _full(limit: str, kib: int, folder: Path) -> list[str]:
    """A file system with room for so much: the smaller it is, the earlier the write that finds it full."""
    with _mounted(folder.with_name(f"{folder.name}-disk"), limit) as disk:
        with recorded(folder, _PRINTS, root=disk / "sessions") as run:
            problems = _outcome(run)
        _remount(disk, "size=64m,nr_inodes=10000")
        problems += _readable(disk / "sessions", run.env)
        if run.done and kib >= _ROOM_FOR_END:
            status = run.session.status()
            if status.state != "finished":
                problems.append(f"its status is {status}")
        return problems


def _full_for_a_while(folder: Path) -> list[str]:
    with _mounted(folder.with_name(f"{folder.name}-disk"), "size=2m") as disk:
        with recorded(folder, PLAIN, root=disk / "sessions") as run:
            until(lambda: run.steps > 20, "20 steps")
            filler = disk / "filler"
            with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            run.until_steps(200)
            full = bool(read_counts(run.session).why)
            filler.unlink()
            run.go()
            problems = _outcome(run)
        if not full:
            problems.append("nothing told of the full disk")
        missing = run.printed()
        if missing or sum(read_counts(run.session).lost):
            problems.append(f"{len(missing)} lines lost")
        return problems + _readable(disk / "sessions", run.env)


def _full_capture(mib: int, folder: Path) -> list[str]:
    """The profiler's write of some 30 MiB, and the compressed trace after it, find so much room."""
    if find_spec("torch") is None:
        raise SkippedError("PyTorch is not installed")
    with _mounted(folder.with_name(f"{folder.name}-disk"), f"size={mib}m") as disk:
        with recorded(folder, TORCH, root=disk / "sessions", env={"OMP_NUM_THREADS": "1"}) as run:
            until(lambda: run.steps > 5, "5 steps")
            request_capture(run.session, 60, id="big")
            run.until_steps(100)
            run.go()
            problems = _outcome(run)
        _remount(disk, "size=128m")
        capture = run.fold().captures.get("big")
        if capture is not None and capture.state == "written":
            for name in capture.paths:
                problems += _said(_tuiprof("report", run.session.path / name, env=run.env), code=0)
        return problems + _readable(disk / "sessions", run.env)


def _outputs() -> list[tuple[tuple[object, ...], str]]:
    kinds = [(("report", _TRACE, "--format", kind), kind) for kind in ("text", "json", "csv", "md", "html")]
    return [*kinds, (("doctor",), "")]


def _full_output(verb: tuple[object, ...], folder: Path) -> list[str]:
    folder.mkdir()
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = _tuiprof("--sessions", folder, *verb, out=full)
    finally:
        os.close(full)
    return _said(done, "No space left on device", code=1)


def _full_picture(suffix: str, folder: Path) -> list[str]:
    with _mounted(folder.with_name(f"{folder.name}-disk"), "size=4k") as disk:
        done = _tuiprof("snapshot", _TRACE, "-o", disk / f"picture{suffix}")
        return _said(done, "No space left on device", code=2)


def _full_cache(kib: int, folder: Path) -> list[str]:
    from tests.campaigns.kill_matrix import _write_trace

    folder.mkdir()
    trace = folder / "big.pt.trace.json"
    _write_trace(trace)
    with _mounted(folder.with_name(f"{folder.name}-disk"), f"size={kib}k") as disk:
        env = {"XDG_CACHE_HOME": str(disk)}
        first, second = (_tuiprof("report", trace, "--format", "json", env=env) for _ in range(2))
    problems = [*_said(first, code=0), *_said(second, code=0)]
    return problems + (["another report from the cache"] if first.stdout != second.stdout else [])


# -- not to be written -----------------------------------------------------------------------------------------


def _read_only(folder: Path) -> list[str]:
    with _mounted(folder.with_name(f"{folder.name}-disk"), "size=4m") as disk:
        with recorded(folder, _PRINTS, root=disk / "sessions") as run:
            problems = _outcome(run)
        _remount(disk, "ro")
        record = ("record", "--", sys.executable, "-c", "print(1)")
        problems += _said(
            _tuiprof("--sessions", disk / "sessions", *record), "no permission to create", code=4
        )
        picture = folder / "live.svg"
        problems += _said(_tuiprof("snapshot", run.session.path, "-o", picture, env=run.env), code=0)
        return problems + _readable(disk / "sessions", run.env)


def _no_permission(folder: Path) -> list[str]:
    """Folders of another user: nothing is written there, and what may not be read says so."""
    with recorded(folder, _PRINTS) as run:
        problems = _outcome(run)
    closed = folder.with_name(f"{folder.name}-closed")
    shutil.copytree(run.root, closed)
    bare: tuple[str, ...] = ()
    if os.geteuid() == 0:  # whom permissions do not bind, but for another's files without these capabilities
        if shutil.which("setpriv") is None:
            raise SkippedError("root, and setpriv (util-linux) is not installed")
        bare = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
    tuiprof = partial(_tuiprof, "--sessions", closed, prefix=bare, env=run.env)
    record = ("record", "--", sys.executable, "-c", "print(1)")
    for one in session_dirs(closed):
        _close(one, 0)
    _close(closed, 0o555)
    problems += _said(tuiprof("list"), "unreadable", code=0)
    problems += _said(tuiprof("report", "last"), "no permission to read")
    problems += _said(tuiprof(*record), "no permission to create", code=4)
    _close(closed, 0)
    for verb in (("list",), ("report", "last"), record):
        problems += _said(tuiprof(*verb), "is not readable", code=2)
    _close(closed, 0o755)
    return problems


def _close(folder: Path, mode: int) -> None:
    os.chmod(folder, mode)
    if os.geteuid() == 0:
        os.chown(folder, _NOBODY, _NOBODY)


def _while_it_runs(spoil: Callable[[Recorded], None], folder: Path, *, at: str = "running") -> list[str]:
    """Something happens to the session; the script goes on, and its exit status is that of `record`."""
    disk = folder.with_name(f"{folder.name}-disk")
    with contextlib.ExitStack() as stack:
        if spoil is _make_read_only:
            stack.enter_context(_mounted(disk, "size=8m"))
            stack.callback(subprocess.run, ("umount", "-l", str(disk)), check=False)
        run = stack.enter_context(recorded(folder, PLAIN, root=disk / "sessions"))
        session, _, script = run.session, run.supervisor, run.script
        if at != "start":
            until(lambda: run.steps > 20, "20 steps")
            # On a busy machine the script may be there before `record` looks at its logs.
            until(lambda: run.followed, "logs that are open")
        if at == "armed":
            request_capture(session, 3, at=1_000_000, id="far")
            until(lambda: "far" in run.fold().captures, "an armed capture")
        if at == "end":
            (folder / "slowly").touch()
            run.go()
            until(lambda: "ending" in session.stdout.read_text(), "the last line")
        spoil(run)
        if at != "end":
            run.until_steps(50)
            run.go()
        until(lambda: not alive(script), "the end of the script")
        problems = _outcome(run)
        if at == "start":  # it may be gone before `record` could look at it; the script went on all the same
            problems = [problem for problem in problems if "record ended with 1" not in problem]
        if spoil is _forbid:
            os.chmod(session.path, 0o700)
        return problems + (_readable(run.root, run.env) if run.root.exists() else [])


def _make_read_only(run: Recorded) -> None:
    """No new file can be made, and none replaced; what is open can be written."""
    disk = str(run.root.parent)
    subprocess.run(("mount", "--bind", disk, disk), check=True)
    subprocess.run(("mount", "-o", "remount,bind,ro", disk), check=True)


def _forbid(run: Recorded) -> None:
    os.chmod(run.session.path, 0)


def _remove(run: Recorded) -> None:
    shutil.rmtree(run.session.path, ignore_errors=True)
    shutil.rmtree(run.session.path, ignore_errors=True)  # what was made meanwhile


def _remove_root(run: Recorded) -> None:
    shutil.rmtree(run.root, ignore_errors=True)
    shutil.rmtree(run.root, ignore_errors=True)


def _move(run: Recorded) -> None:
    run.session.path.rename(run.root.parent / "elsewhere")


def _remove_log(run: Recorded) -> None:
    (run.session.log / "rank0.jsonl").unlink()


def _cut_log(run: Recorded) -> None:
    os.truncate(run.session.log / "rank0.jsonl", 100)


# -- files of others -------------------------------------------------------------------------------------------


def _recorded_once(folder: Path) -> Recorded:
    with recorded(folder, _PRINTS) as run:
        run.command.wait(60)
    return run


def _newer_session(folder: Path) -> list[str]:
    run = _recorded_once(folder)
    path = run.session.path / "session.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "v": SCHEMA_VERSION + 1, "new": {"field": 1}}))
    problems = _said(_tuiprof("--sessions", run.root, "list"), "unreadable", code=0)
    for verb in (("report", "last"), ("replay", "last"), ("snapshot", "last", "-o", folder / "x.svg")):
        done = _tuiprof("--sessions", run.root, *verb)
        problems += _said(done, *(("newer tuiprof",) if verb[0] != "replay" else ()))
        if done.returncode == 0:
            problems.append(f"{verb[0]} ended with 0")
    return problems


def _newer_log(folder: Path) -> list[str]:
    """Lines and fields that this version does not know are left out; what it knows is shown."""
    run = _recorded_once(folder)
    log = run.session.log / "rank0.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines = [{**line, "future": [1, {"a": 2}]} for line in lines]
    lines.insert(1, {"t": "weather", "at": 1, "sky": "blue"})
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    problems = _readable(run.root, run.env)
    return problems + ([f"{run.lost_steps()} steps are not read"] if run.lost_steps() > 0 else [])


# -- two at once -----------------------------------------------------------------------------------------------


def _two_recordings(folder: Path) -> list[str]:
    root = folder / "sessions"
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(recorded(folder / str(n), _PRINTS, root=root)) for n in range(4)]
        codes = [run.command.wait(120) for run in runs]
        problems = [f"they ended with {codes}"] if any(codes) else []
    found = session_dirs(root)
    if len(found) != len(runs):
        problems.append(f"{len(found)} sessions of {len(runs)} recordings")
    return problems + _readable(root, runs[0].env)


def _two_recorders(folder: Path) -> list[str]:
    from tuiprof.errors import SessionError
    from tuiprof.session.run import launch
    from tuiprof.session.run.supervisor import Plan

    with recorded(folder) as run:
        until(lambda: run.steps > 5, "5 steps")
        problems = []
        try:
            launch._supervise(
                run.session, Plan([sys.executable, "-c", "print(2)"], "/", dict(os.environ), (1.0, 1.0))
            )
            problems.append("a second recorder was let in")
        except SessionError as error:
            if "already being recorded" not in error.message:
                problems.append(f"the second recorder says {error.message!r}")
        run.go()
        problems += _outcome(run)
    return problems + _readable(run.root, run.env)


_LADDER: Final = """
import argparse, json, time
parser = argparse.ArgumentParser()
parser.add_argument("--variant")
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--check", action="store_true")
options = parser.parse_args()
if options.check:
    compared = [{"what": "loss", "relative_error": 0.0, "tolerance": 1e-4}]
    print(json.dumps({"tuiprof_result": {"check": {"ok": True, "baseline": "slow", "compared": compared}}}))
    raise SystemExit
import tuiprof
for n in range(options.steps):
    time.sleep({"slow": 0.01, "quick": 0.005}[options.variant])
    tuiprof.step()
print(json.dumps({"tuiprof_result": {"warmup": 3, "batch": 4, "preset": "tiny"}}))
"""
_HEADER: Final = """
dependencies = []
[tool.tuiprof]
name = "toy"
baseline = "slow"
variants = [{ name = "slow" }, { name = "quick", builds_on = "slow" }]
"""


def _two_ladders(folder: Path) -> list[str]:
    """The same ladder measured by two: one measures it to its end, the other is refused with the reason."""
    (folder / "toys").mkdir(parents=True)
    (folder / "toys/toy.py").write_text(_LADDER)
    (folder / "toys/toy.toml").write_text(_HEADER)
    root = folder / "sessions"
    common = [
        sys.executable,
        "-m",
        "tuiprof",
        "--sessions",
        str(root),
        "--scenarios",
        str(folder / "toys"),
        "ladder",
    ]
    first = subprocess.Popen(
        [*common, "toy", "--trials", "2", "-q"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        until(lambda: any(root.glob("*-ladder-toy/control/runner.json")), "a ladder that is measured", 90)
        (ladder,) = root.glob("*-ladder-toy")
        second = subprocess.run(
            [*common, "--resume", str(ladder), "-q"], capture_output=True, text=True, timeout=120, check=False
        )
        problems = _said(second, "is being measured by another tuiprof")
        _, err = first.communicate(timeout=180)
    finally:
        first.kill()
    if first.returncode:
        problems.append(f"the first ended with {first.returncode}: {err.decode()[-300:]}")
    return problems + _said(_tuiprof("--sessions", root, "list"), code=0)


def _list_and_delete(folder: Path) -> list[str]:
    """Sessions come and go while they are listed, thrown away and brought back."""
    from tuiprof.errors import TuiprofError
    from tuiprof.tui.library.data import Library

    run = _recorded_once(folder)
    root, original = run.root, run.session.path
    problems: list[str] = []
    over = time.monotonic() + 8

    def churn(which: int) -> None:
        count = 0
        while time.monotonic() < over:
            count += 1
            path = root / f"20260101T{count % 240000:06d}Z-copy-{which}"
            shutil.copytree(original, path)
            if count % 2:
                with contextlib.suppress(TuiprofError):
                    library = Library(root, (), None)
                    library.bring_back(library.throw_away(path), path)
            shutil.rmtree(path, ignore_errors=True)

    threads = [threading.Thread(target=churn, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    while time.monotonic() < over:
        for verb in (("list",), ("list", "--json"), ("report", "last")):
            done = _tuiprof("--sessions", root, *verb)
            problems += _said(done, code=0 if verb[0] == "list" else None)
    for thread in threads:
        thread.join()
    return problems

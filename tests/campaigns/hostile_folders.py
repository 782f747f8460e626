"""Sessions, ladders and scenarios that others made: what is put in place of their files, and what they point at."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import msgspec

from tests import hostile
from tests.campaigns.campaign import Options, Outcome, SkippedError
from tests.hostile import Made, within
from tuiprof.errors import TuiprofError
from tuiprof.ladder.background import Runner, stop_runner
from tuiprof.ladder.state import LadderRun
from tuiprof.session.log import Capture
from tuiprof.session.run.control import armed, disarm, put_capture, request_stop
from tuiprof.session.store.folders import Session
from tuiprof.session.store.meta import CaptureRequest, add_note, store_viewing
from tuiprof.system import process
from tuiprof.tui.library.data import Library

PROMISE = "Opening what others made ends, in bounded memory, runs nothing and changes nothing outside of it."

_PATIENCE_S: Final = 60
_MEMORY: Final = 3 << 30
_SECRET: Final = "SECRET-OF-ANOTHER-FOLDER"

# -- files that are something else -------------------------------------------------------------------------

#: Below a session, and below a ladder.
_FILES: Final = (
    "session.json", "labels.json", "stdout.log", "stderr.log", "log/rank0.jsonl", "log/recorder.jsonl",
    "control/process.json", "control/stop.json", "control/trigger-slow.json", "views/1-1.json", "source/train.py",
    "traces/plain.pt.trace.json", "traces/plain.syncs.jsonl",
)  # fmt: skip
_LADDER_FILES: Final = ("ladder.json", "trials/t1/session.json", "control/runner.json", "control/runner.log",
                        "trials/t1/traces/plain.pt.trace.json")  # fmt: skip
_FOLDERS: Final = ("log", "traces", "control", "views", "source")


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{folder}/{path.name}")  # the name of a socket is short
    finally:
        os.close(folder)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _itself(path: Path) -> None:
    path.symlink_to(path.name)


def _folder(path: Path) -> None:
    path.mkdir()


def _huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # takes no room


def _one_line(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(b'{"t":"note","level":"warn","text":"')
        for _ in range(64):
            file.write(b"x" * (1 << 20))


KINDS: Final[dict[str, Callable[[Path], None]]] = {
    "a pipe": _fifo, "a socket": _socket, "a link to an endless device": _endless, "a link to itself": _itself,
    "a folder": _folder, "a terabyte of nothing": _huge, "one line of 64 MB": _one_line,
}  # fmt: skip


def run(options: Options) -> Outcome:
    """Try every kind in every place, and everything that a folder can point at."""
    outcome = Outcome()
    with ThreadPoolExecutor(4) as pool:  # a picture waits until its screen no longer changes
        for name, tried in [
            (name, pool.submit(case)) for name, case in (*_odd_files(options), *_ways(options))
        ]:
            outcome.judge(name, tried.result)
    return outcome


def _ways(options: Options) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    for way in _WAYS:
        folder = options.folder / way.__name__
        folder.mkdir()
        yield way.__name__.strip("_").replace("_", " "), partial(way, folder)


def tuiprof(
    *verbs: tuple[object, ...],
    about: Iterable[str] = (),
    cwd: Path | None = None,
    mark: Path | None = None,
    **env: str,
) -> list[str]:
    """Run verbs of tuiprof where they may take little time and memory; return what is wrong with how they ended.

    Args:
        *verbs: Their arguments.
        about: What each of them meets, where they meet different things.
        cwd: Working directory.
        mark: A file that is there once something has run that must not.
        **env: Environment.
    """
    environment = {**os.environ, "TUIPROF_CONFIG": os.devnull, "TUIPROF_TRACE_CACHE": "off", **env}
    lines = [[os.fsdecode(arg) if isinstance(arg, Path) else str(arg) for arg in verb] for verb in verbs]
    read, write = os.pipe()
    driver = Path(__file__).with_name("_verbs.py")
    with subprocess.Popen(
        [sys.executable, str(driver), str(write), str(_PATIENCE_S), str(_MEMORY)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=cwd,
        env=environment,
        pass_fds=(write,),
    ) as done:
        os.close(write)
        assert done.stdin is not None
        done.stdin.write(json.dumps(lines).encode())
        done.stdin.close()
        problems = []
        with open(read) as report:
            for verb, meets in zip_longest(verbs, about):
                words = [str(arg) for arg in verb if not isinstance(arg, Path) and str(arg)[:3] != "--s"]
                what = " ".join(words if meets is None else (f"{meets}:", *words))
                line = report.readline()
                if not line:
                    problems.append(f"{what} ends the process: {done.wait()}")
                    break
                status, out, err = json.loads(line)
                if status not in (0, 1, 2, 3, 4, 5):
                    problems.append(f"{what} ended with {status}: {err.strip()[-200:]}")
                if _SECRET in out:
                    problems.append(f"{what} shows a file of another folder")
                if mark is not None and mark.exists():
                    problems.append(f"{what} ran what it must not: {mark.read_text()}")
                    mark.unlink()
    return problems


def _verbs(made: Made, picture: Path) -> list[tuple[object, ...]]:
    """Return every verb that looks at folders; none of them may do more."""
    here = ("--sessions", made.root, "--scenarios", made.scenarios)
    return [
        (*here, "list"),
        (*here, "list", "--json"),
        (*here, "report", made.session, "all"),
        (*here, "ladder", "--show", made.ladder),
        (*here, "compare", made.session, made.trace),
        (*here, "compare", f"{made.ladder}:plain", f"{made.ladder}:plain2"),
        (*here, "check", made.session, "--max", "step_median_ms=1"),
        (*here, "snapshot", "--screen", "library", "-o", picture),
        (*here, "snapshot", made.session, "--press", "l", "--press", "a", "-o", picture),
        (*here, "snapshot", made.ladder, "--press", "s", "-o", picture),
        (*here, "doctor"),
    ]


def _place(path: Path, kind: Callable[[Path], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    kind(path)


def _odd_files(options: Options) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """Yield each case: each kind in each place by itself, in short all of them in one process."""
    if options.short:
        yield "every kind in every place", partial(_every_kind, options.folder)
        return
    for kind, make in KINDS.items():
        for name in _FILES:
            yield (
                f"{kind} as {name}",
                lambda kind=kind, make=make, name=name: _tried(  # type: ignore[misc]
                    options.folder / f"{kind} {name.replace('/', ' ')}", make, (name,), ()
                ),
            )
        for name in _LADDER_FILES:
            yield (
                f"{kind} as {name} of a ladder",
                lambda kind=kind, make=make, name=name: _tried(  # type: ignore[misc]
                    options.folder / f"{kind} ladder {name.replace('/', ' ')}", make, (), (name,)
                ),
            )
        yield (
            f"{kind} as a script",
            lambda kind=kind, make=make: _tried_script(options.folder / f"{kind} script", make),
        )  # type: ignore[misc]


def _every_kind(folder: Path) -> list[str]:
    """Put each kind in all places but the one that names the session."""
    made = {kind: _spoilt(folder / kind, make, _FILES[1:], _LADDER_FILES[1:]) for kind, make in KINDS.items()}
    verbs = [
        (kind, _verbs(one, folder / kind / "picture.txt")[index])
        for kind, one in made.items()
        for index in (1, 3)
    ]
    return tuiprof(*(verb for _, verb in verbs), about=[kind for kind, _ in verbs])


def _tried(
    folder: Path, make: Callable[[Path], None], files: tuple[str, ...], ladder_files: tuple[str, ...]
) -> list[str]:
    return tuiprof(*_verbs(_spoilt(folder, make, files, ladder_files), folder / "picture.txt"))


def _spoilt(
    folder: Path, make: Callable[[Path], None], files: tuple[str, ...], ladder_files: tuple[str, ...]
) -> Made:
    made = _plain(folder)
    for name in files:
        _place(made.session / name, make)
    for name in ladder_files:
        _place(made.ladder / name, make)
    return made


def _tried_script(folder: Path, make: Callable[[Path], None]) -> list[str]:
    made = _plain(folder)
    (made.scenarios / "other.py").write_text("print()")
    _place(made.scenarios / "odd.py", make)
    _place(made.scenarios / "other.toml", make)
    verbs = _verbs(made, folder / "picture.txt")
    return tuiprof(verbs[7], verbs[10])


def _plain(folder: Path) -> Made:
    folder.mkdir(parents=True, exist_ok=True)
    made = hostile.make(folder, "plain")
    source = {
        "script": "train.py",
        "digests": {"train.py": "0"},
        "kept": ["train.py", "../../outside/secret.py"],
    }
    _edit(made.session / "session.json", source=source)
    (made.session / "source").mkdir()
    (made.session / "source" / "train.py").write_text("print()")
    return made


def _edit(path: Path, **changed: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def _running(made: Made) -> Session:
    """Return a session that goes on, as far as its files say."""
    return Session(hostile.run_of(made.root, "plain").session.path)


# -- what leads out ----------------------------------------------------------------------------------------


def _outside(folder: Path) -> Path:
    """Make a folder of somebody else, in which nothing may change."""
    outside = folder / "outside"
    outside.mkdir()
    (outside / "secret.py").write_text(f"# {_SECRET}\n")
    (outside / "trigger.json").write_text("{}")
    (outside / "precious.txt").write_text("precious")
    hostile.write_trace(outside / "secret.pt.trace.json", _SECRET)
    return outside


def _changed(outside: Path, before: set[str]) -> list[str]:
    now = within(outside)
    problems = [f"{path} was made" for path in now - before] + [f"{path} is gone" for path in before - now]
    if (outside / "precious.txt").is_file() and (outside / "precious.txt").read_text() != "precious":
        problems.append("a file was written over")
    return problems


def _names_that_lead_out(folder: Path) -> list[str]:
    made, outside = _plain(folder), _outside(folder)
    shutil.copytree(made.session, outside / "session")
    for path in (outside / "session" / "traces").glob("*.json"):
        path.unlink()
    hostile.write_trace(outside / "session" / "traces" / "x.pt.trace.json", _SECRET)
    before = within(outside)
    verbs: list[tuple[object, ...]] = []
    for number, name in enumerate(
        (
            "../../../outside/session",
            str(outside / "session"),
            "..",
            ".",
            "t1/../../../../outside/session",
        )
    ):
        ladder = LadderRun(
            shutil.copytree(made.ladder, made.ladder.with_name(f"{made.ladder.name}-{number}"))
        )
        ladder.meta.trials = [msgspec.structs.replace(trial, session=name) for trial in ladder.meta.trials]
        ladder.save()
        verbs.append(("ladder", "--show", ladder.path, "-f", "json"))
    pictures = {}
    for path in ("../../outside/secret.pt.trace.json", str(outside / "secret.pt.trace.json")):
        running = Session(hostile.run_of(folder / f"running-{len(pictures)}", "plain").session.path)
        record = Capture(running.meta.mono_ns + 9_000_000_000, "c1", "written", 3, 4, path)
        with open(running.log / "rank0.jsonl", "ab") as log:
            log.write(msgspec.json.encode(record) + b"\n")
        picture = folder / f"picture-{len(pictures)}.txt"
        pictures[path] = picture
        verbs.append(("snapshot", running.path, "--press", "t", "--press", "1", "-o", picture))
    problems = tuiprof(*verbs, ("report", made.session, "all"))
    problems += [
        f"a capture at {path} is opened"
        for path, picture in pictures.items()
        if _SECRET in picture.read_text()
    ]
    return problems + _changed(outside, before)


def _requests_whose_names_lead_out(folder: Path) -> list[str]:
    made, outside = _plain(folder), _outside(folder)
    session = _running(made)
    for name in ("x/../../../outside/trigger", "../../outside/trigger", "/outside/trigger"):
        (session.control / "trigger-x").mkdir(exist_ok=True)
        (session.control / "trigger-slow.json").write_text(json.dumps({"id": name, "times": 2.0}))
    target = os.path.relpath(outside / "trigger", session.control / "trigger-x")
    (session.control / "trigger-slow.json").write_text(json.dumps({"id": f"x/{target}", "times": 2.0}))
    before = within(outside)
    for request in armed(session):
        disarm(session, request.id)
    return _changed(outside, before)


def _links_that_lead_out(folder: Path) -> list[str]:
    made, outside = _plain(folder), _outside(folder)
    session = _running(made)
    before = within(outside)
    for name in ("control", "views"):
        if (session.path / name).is_dir():
            shutil.copytree(session.path / name, outside / name)
            shutil.rmtree(session.path / name)
        else:
            (outside / name).mkdir()
        (session.path / name).symlink_to(outside / name)
    (session.path / "labels.json").unlink(missing_ok=True)
    (session.path / "labels.json").symlink_to(outside / "precious.txt")
    before = within(outside)
    for write in (
        lambda: put_capture(session, CaptureRequest("c7", 3)),
        lambda: request_stop(session),
        lambda: store_viewing(session.path, 1.0, 1.0),
        lambda: add_note(session.path, "a note"),
    ):
        with contextlib.suppress(TuiprofError):
            write()
    return _changed(outside, before)


def _names_of_files_that_are_not_finished(folder: Path) -> list[str]:
    """Whoever may write into a folder can guess the name that a file has before it is finished."""
    made, outside = _plain(folder), _outside(folder)
    for number in range(4_000):
        (made.session / f".labels.json.{os.getpid()}-{number}.tmp").symlink_to(outside / "precious.txt")
    before = within(outside)
    with contextlib.suppress(TuiprofError):
        add_note(made.session, "a note")
    return _changed(outside, before)


def _a_trash_that_leads_out(folder: Path) -> list[str]:
    made, outside = _plain(folder), _outside(folder)
    (made.root / ".trash").symlink_to(outside)
    before = within(outside)
    with contextlib.suppress(TuiprofError):
        Library(sessions=made.root).move_to_trash(made.session)
    return _changed(outside, before)


def _a_deleted_session_with_links_out(folder: Path) -> list[str]:
    made, outside = _plain(folder), _outside(folder)
    (made.session / "traces" / "all").symlink_to(outside)
    link = made.root / "20261121T092117Z-linked"
    link.symlink_to(outside)
    before = within(outside)
    library = Library(sessions=made.root)
    trashed = library.move_to_trash(made.session), library.move_to_trash(link)
    problems = _changed(outside, before)
    library.restore(trashed[0], made.session)
    library.restore(trashed[1], link)
    if not (made.session / "session.json").exists() or not link.is_symlink():
        problems.append("what was deleted is not back as it was")
    return problems + _changed(outside, before)


# -- commands ----------------------------------------------------------------------------------------------


def _trap(folder: Path) -> tuple[Path, Path]:
    """Make a program that leaves a mark, and return it and the mark."""
    mark, program = folder / "it-ran", folder / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    return program, mark


def _commands_and_modules(folder: Path) -> list[str]:
    """Files may name commands, and the working directory may hold modules under the names of those that are used."""
    made = _plain(folder)
    program, mark = _trap(folder)
    (folder / "bin").mkdir()
    shutil.copy(program, folder / "bin" / "python")
    trap = f"open({str(mark)!r}, 'w').write(__file__)\n"
    (folder / "tuiprof" / "headline").mkdir(parents=True)
    for name in (
        *(
            "script",
            "polars",
            "msgspec",
            "numpy",
            "json",
            "psutil",
            "textual",
            "sitecustomize",
            "usercustomize",
            "click",
        ),
        *("tuiprof/__init__", "tuiprof/headline/__init__", "tuiprof/headline/trace"),
    ):
        (folder / f"{name}.py").write_text(trap)
    ladder = LadderRun(made.ladder)
    meta = ladder.meta
    meta.python, meta.script, meta.cwd = str(program), str(folder / "script.py"), str(folder)
    meta.host, meta.rounds = "", 3
    meta.rungs = tuple(
        msgspec.structs.replace(rung, command=(str(program),), check=(), reason="") for rung in meta.rungs
    )
    meta.trials = []
    meta.inode = made.ladder.stat().st_ino + 1
    ladder.save()
    _edit(made.session / "session.json", argv=[str(program)], python=str(program), cwd=str(folder))
    here = ("--sessions", made.root)
    cache = str(folder / "cache")
    return tuiprof(
        *_verbs(made, folder / "picture.txt"),
        (*here, "ladder", "--resume", made.ladder),
        (*here, "ladder", "--resume", "last"),
        (*here, "snapshot", made.ladder, "--press", "r", "-o", folder / "picture.txt"),
        (*here, "snapshot", made.session, "--press", "r", "-o", folder / "picture.txt"),
        cwd=folder,
        mark=mark,
        XDG_CACHE_HOME=cache,
        TUIPROF_TRACE_CACHE=cache,
    )


def _a_process_of_yours_under_the_name_of_a_run(folder: Path) -> list[str]:
    """Another user's folder names a process of yours as its script; asking the run to stop must not end that."""
    if os.geteuid() != 0:
        raise SkippedError("only root can give a folder to another user")
    made = _plain(folder)
    session = _running(made)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as victim:
        who = process.identify(victim.pid)
        assert who is not None
        gone = process.ProcessId(who.pid, "0")
        named = process.Processes(gone, who, process.pid_namespace())
        (session.control / "process.json").write_bytes(msgspec.json.encode(named))
        (made.ladder / "control" / "runner.json").write_bytes(
            msgspec.json.encode(Runner(who, process.pid_namespace()))
        )
        for path in (session.path, session.control, session.control / "process.json", made.ladder,
                     made.ladder / "control", made.ladder / "control" / "runner.json"):  # fmt: skip
            os.chown(path, 65534, 65534)
        for ask in (lambda: request_stop(session, firm=True), lambda: stop_runner(made.ladder)):
            with contextlib.suppress(TuiprofError):
                ask()
        time.sleep(0.1)
        dead = victim.poll() is not None
        victim.kill()
    return ["a process of somebody else was ended"] if dead else []


_WAYS: Final[tuple[Callable[[Path], list[str]], ...]] = (
    _names_that_lead_out,
    _requests_whose_names_lead_out,
    _links_that_lead_out,
    _names_of_files_that_are_not_finished,
    _a_trash_that_leads_out,
    _a_deleted_session_with_links_out,
    _commands_and_modules,
    _a_process_of_yours_under_the_name_of_a_run,
)

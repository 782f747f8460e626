"""Sessions written by hand, for tests that need no running script."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tuiprof.session.log import SCHEMA_VERSION
from tuiprof.session.store.folders import Session, create
from tuiprof.session.store.meta import SessionMeta
from tuiprof.system import process


def new_session(root: Path, name: str = "run", *, age_s: float = 0.0, **fields: Any) -> Session:
    """Make a session directory that began some time ago."""
    meta = SessionMeta(
        v=SCHEMA_VERSION,
        name=name,
        argv=["python", "train.py"],
        cwd="/",
        unix_ns=time.time_ns() - int(age_s * 1e9),
        mono_ns=1_000,
        boot=process.boot_id(),
        **fields,
    )
    return create(root, meta)


def line(kind: str, **fields: Any) -> bytes:
    """Return one log line."""
    return json.dumps({"t": kind, **fields}).encode() + b"\n"


def head(session: Session, writer: str = "rank0", **fields: Any) -> bytes:
    """Return a head on the session's own clock."""
    meta = session.meta
    known = {"v": 1, "writer": writer, "pid": 1, "unix_ns": meta.unix_ns, "mono_ns": meta.mono_ns, "rank": 0}
    return line("head", **(known | fields))


def step(n: int, dur: int = 1_000_000, **fields: Any) -> bytes:
    """Return step n of a run whose steps all take 1 ms of the clock."""
    return line("step", n=n, at=1_000 + (n + 1) * 1_000_000, dur=dur, **fields)


def append(session: Session, writer: str, *lines: bytes) -> Path:
    """Append to a writer's log."""
    path = session.log / f"{writer}.jsonl"
    with open(path, "ab") as file:
        file.write(b"".join(lines))
    return path


def written(root: Path, *lines: bytes, **fields: Any) -> Session:
    """Make a session directory with the log of a rank: its head, then these lines."""
    session = new_session(root, **fields)
    append(session, "rank0", head(session), *lines)
    return session

"""Session folders as the hosts of one run record them, for tests that need no second host."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.session.session_logs import append, line
from tuiprof.session.log import SCHEMA_VERSION
from tuiprof.session.store.folders import Session, create
from tuiprof.session.store.meta import SessionMeta

S = 1_000_000_000
MS = 1_000_000
START = 1_790_000_000 * S
JOB = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}


def part(
    root: Path,
    host: str,
    ranks: list[int],
    *,
    world: int = 2,
    began_s: float = 0.0,
    ahead_ns: int = 0,
    steps: int = 40,
    coupled: bool = True,
    job: dict[str, str] = JOB,
    ended: bool = True,
    capture: str = "",
    first_step_s: float | None = None,
    argv: Sequence[str] = ("torchrun", "train.py"),
    **fields: Any,
) -> Session:
    """Record one host's part of a run: its monotonic clock is its own, its wall clock may be ahead."""
    mono = random.Random(host).randrange(10**6) * S  # when that host was booted
    began_ns = int(began_s * S)
    meta = SessionMeta(
        v=SCHEMA_VERSION,
        name="train",
        argv=list(argv),
        cwd="/",
        unix_ns=START + began_ns + ahead_ns,
        mono_ns=mono + began_ns,
        boot=f"boot of {host}",
        host=host,
        **fields,
    )
    session = create(root, meta)
    for rank in ranks:
        noise = random.Random(rank)
        writer = f"rank{rank}"
        step_ns = 100 * MS if coupled else (100 + 7 * rank) * MS
        begin_ns = mono + (began_ns + 3 * S if first_step_s is None else int(first_step_s * S))
        at = [begin_ns + n * step_ns + noise.randrange(2 * MS) for n in range(steps)]
        lines = [line("step", n=n, at=t, dur=100 * MS) for n, t in enumerate(at)]
        if capture:
            lines.append(
                line("capture", at=at[-1], id="start", state="written", first=5, last=7, path=capture)
            )
        head = {"v": 1, "writer": writer, "pid": 7, "unix_ns": meta.unix_ns, "mono_ns": meta.mono_ns}
        append(session, writer, line("head", **head, rank=rank, world=world, job=job), *lines)
    if ended:
        append(session, "recorder", line("end", at=mono + began_ns + 60 * S, code=0))
    return session


def goes_on(session: Session) -> Session:
    """Let a session look as if another machine records it now."""
    place = json.dumps({"supervisor": {"pid": 1, "start": "1"}, "place": "elsewhere"})
    (session.control / "process.json").write_text(place)
    return session
